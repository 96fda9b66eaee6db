//! Runs that continue others. A run that a failed model call or its budget ended stays sealed; another run continues it.

use std::{sync::Arc, time::Duration};

use mynah_data::{Breach, Budget, Error, HaltReason, LogReason, Result, RunId};
use mynah_log::{Continues, Fact, Log, RunFilter};
use mynah_step::{Spent, active};

use crate::{engine::Engine, fork::Fork, loaded::Loaded, options::Options, turn::stay};

/// What ended a run that another can continue.
struct Outage {
    /// The last record before it.
    at: u64,
    /// The limit, if one was passed.
    breach: Option<Breach>,
    /// What the run that continues it has to know.
    link: Continues,
    /// For how long the run was active, the failed call included.
    active: Duration,
}

impl Outage {
    /// Why a model call or a limit ended the run; none if something else did.
    fn of(run: &Loaded) -> Option<Self> {
        if !matches!(run.kept.last(), Some(Fact::Sealed(_))) {
            return None;
        }
        // The record of the last model call, what was spent before it, and whether it is in flight.
        let (mut spent, mut asked) = (Spent::default(), (0, Spent::default(), false));
        for (fact, seq) in run.kept.records.iter().map(|kept| (kept.fact(), kept.record().seq())) {
            let before = spent;
            spent.evolve(fact);
            let (at, before, breach) = match fact {
                Fact::TurnStarted { .. } => {
                    asked = (seq - 1, before, true);
                    continue;
                }
                Fact::BudgetExceeded { breach, .. } => match asked {
                    (at, before, true) => (at, before, Some(breach.clone())),
                    (_, _, false) => (seq - 1, before, Some(breach.clone())),
                },
                Fact::Failed(end) if asked.0 > 0 => {
                    let failed = end.reason == HaltReason::Error && end.error()?.is_resumable();
                    if !failed {
                        return None;
                    }
                    (asked.0, asked.1, None)
                }
                _ => {
                    asked.2 &=
                        !matches!(fact, Fact::AssistantCompleted { .. } | Fact::TurnLost { .. });
                    continue;
                }
            };
            let mut link = run.link().cloned().unwrap_or_else(|| Continues::new(&run.kept.run));
            spent.add_since(&before, &mut link);
            return Some(Self { at, breach, link, active: active(&run.kept.records) });
        }
        None
    }
}

/// Returns the run to continue: the one that was read, or if a model call or its budget ended it, the newest run that continues it. That is
/// made if there is none; for a run that its budget ended, only if the budget is large enough by now.
pub(crate) async fn continued(
    log: &Arc<dyn Log>,
    engine: &Engine,
    mut loaded: Loaded,
    options: &Options,
) -> Result<Loaded> {
    while let Some(outage) = Outage::of(&loaded) {
        let root = outage.link.root.clone();
        let next = match newest(&**log, &loaded.kept.run).await? {
            Some(next) => next,
            None => {
                if let Some(breach) = &outage.breach
                    && !budget(engine, options, &loaded)?.is_none_or(|budget| budget.admits(breach))
                {
                    break;
                }
                check_session(&**log, &loaded).await?;
                link(log, engine, &loaded, outage).await?
            }
        };
        loaded = Loaded::read(&**log, &next).await?;
        if loaded.link().is_none_or(|link| link.root != root) {
            let message = format!(
                "log error: run_exists: run {next} does not continue run {root}, and no other may have its id; \
                 fork run {root} to continue it"
            );
            return Err(Error::log(LogReason::RunExists)
                .with_message(message)
                .with("run_id", &*next));
        }
    }
    Ok(loaded)
}

/// Makes the run that continues another. Of several processes one gets its id.
async fn link(log: &Arc<dyn Log>, engine: &Engine, run: &Loaded, outage: Outage) -> Result<RunId> {
    let next = next_id(&run.kept.run);
    let Outage { at, link, active, .. } = outage;
    let world = Arc::clone(&engine.0.world);
    let forked = Fork::linked(Arc::clone(log), &run.kept.run, at, &next, world, (link, active));
    match forked.await {
        Err(error) if log.head(&next).await?.is_none() => Err(error),
        _ => Ok(next),
    }
}

/// The newest of the runs that continue a run, if there are any.
pub(crate) async fn newest(log: &dyn Log, run: &RunId) -> Result<Option<RunId>> {
    let mut newest = None;
    let mut next = next_id(run);
    while log.head(&next).await?.is_some() {
        let after = next_id(&next);
        newest = Some(std::mem::replace(&mut next, after));
    }
    Ok(newest)
}

/// The budget with which a run would continue.
fn budget(engine: &Engine, options: &Options, run: &Loaded) -> Result<Option<Budget>> {
    let (_, last) = run.stretches();
    let recorded = Options::of(last.about)?.values.budget;
    let said = options.values.budget.clone().or(recorded);
    Ok(said.or_else(|| engine.0.options.values.budget.clone()))
}

/// Refuses to continue a turn of a session that has continued without it.
async fn check_session(log: &dyn Log, run: &Loaded) -> Result<()> {
    let Some(id) = run.about.session.as_ref().and_then(|link| link.id.as_deref()) else {
        return Ok(());
    };
    let newest = log.runs(RunFilter::new().session(id).limit(1)).await?;
    match newest.sound()?.first() {
        Some(newest) if newest.run_id != run.kept.run => stay(log, newest).await,
        _ => Ok(()),
    }
}

/// The id of the run that continues another: `invoice-17`, `invoice-17~2`, `invoice-17~3`.
fn next_id(run: &RunId) -> RunId {
    let parts = run.rsplit_once('~').and_then(|(id, count)| Some((id, count.parse::<u32>().ok()?)));
    let (id, count) = parts.unwrap_or((run, 1));
    format!("{id}~{}", count.saturating_add(1)).into()
}
