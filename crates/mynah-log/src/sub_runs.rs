//! The runs that the tools of a run started.

use mynah_data::{Result, RunId};

use crate::{Fact, Log, RunFilter, RunSummary, Totals, parent};

/// Returns the runs that the tools of a run started, and those of their tools, each after the one that started it. A run that the log
/// lacks is left out.
///
/// # Errors
/// A log that cannot be read, or a damaged record.
pub async fn sub_runs(log: &dyn Log, run: &str) -> Result<Vec<RunId>> {
    started_by(log, run, |_| true).await
}

/// The same of the facts that are wanted.
async fn started_by(
    log: &dyn Log,
    run: &str,
    mut is_wanted: impl FnMut(&Fact) -> bool,
) -> Result<Vec<RunId>> {
    let mut all = vec![RunId::from(run)];
    let mut next = 0;
    while let Some(run) = all.get(next).cloned() {
        let mut seen = 0;
        loop {
            let page = log.read(&run, seen + 1, 256).await?;
            let Some(last) = page.last() else { break };
            seen = last.seq();
            for record in &page {
                let fact = record.fact()?.filter(&mut is_wanted);
                let Some((started, _)) = fact.as_ref().and_then(|fact| fact.sub_run()) else {
                    continue;
                };
                // Records of others may form a circle.
                if !all.iter().any(|known| **known == *started) && log.run(started).await?.is_some()
                {
                    all.push(started.into());
                }
            }
        }
        next += 1;
    }
    Ok(all.split_off(1))
}

/// Returns what the runs of a run's agents used. With the run's own [totals](RunSummary::totals), that is what the run used.
///
/// The agents of a run whose calls are answered by records did not work, and used nothing.
///
/// # Errors
/// A log that cannot be read, or a damaged record.
pub async fn agents_totals(log: &dyn Log, run: &RunSummary) -> Result<Totals> {
    let mut all = Totals::default();
    if run.totals.tool_calls == 0 {
        return Ok(all);
    }
    // The ids of agents' runs begin with that of the run that called them, so the index has them without a look at records.
    let own = format!("{}+", run.run_id);
    let mut filter = RunFilter::new().prefix(&own).limit(1000);
    loop {
        let page = log.runs(filter.clone()).await?;
        page.runs.iter().for_each(|run| all.add(&run.totals));
        let Some(next) = page.next else { break };
        filter = filter.after(next);
    }
    // A fork, and a run that continues another, have those of the other run too.
    if parent(log, &run.run_id).await?.is_some() {
        let mut is_answered = false;
        let is_spent = |fact: &Fact| {
            if let Fact::RunStarted { about: Some(about), .. }
            | Fact::Resumed { about: Some(about), .. } = fact
            {
                is_answered = about.answering_run().is_some();
            }
            !is_answered
        };
        for run in started_by(log, &run.run_id, is_spent).await? {
            if !run.starts_with(&own) {
                all.add(&log.run(&run).await?.map(|run| run.totals).unwrap_or_default());
            }
        }
    }
    Ok(all)
}
