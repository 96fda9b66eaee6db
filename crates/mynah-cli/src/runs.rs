//! `mynah runs`: what a log has.

use std::{
    io::{self, BufWriter, IsTerminal as _, Write},
    time::{Duration, SystemTime},
};

use clap::Args;
use mynah::{
    Error, ErrorKind, SystemWorld, World as _,
    log::{Corrupt, Log, Parent, RunFilter, RunPage, RunStatus, RunSummary, Totals, agents_totals},
};
use serde_json::{Value, json};

use crate::{
    Failure, LogArgs, now, runtime,
    store::LogLocation,
    text::{Columns, Moment, Span, cost, line, short},
    tty,
    verify::with_run,
    written,
};

pub(crate) const EXAMPLES: &str = "An abandoned run has no end and no process: its process ended, the run was dropped, or it is a fork that was not resumed. `mynah resume` continues it, `mynah cancel` ends it. A queued run waits for a worker that has its agent; `--json` shows its queue, which ends with the agent's name. A sleeping run continues at its wake_at.

Examples:
  mynah runs                               list the newest runs
  mynah runs --status suspended            list runs that wait for a person or a tool
  mynah runs --status abandoned            list runs without an end that no process holds
  mynah runs --since 2h                    list runs of the last two hours; also 30m, 7d, 2026-11-01
  mynah runs --json | jq -r .run_id        print ids";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// List only runs of this status.
    #[arg(long, value_parser = wanted, value_name = "STATUS")]
    status: Option<Selection>,
    /// List only runs of this model, such as openai:gpt-4.1-mini, or gpt-4.1-mini with any adapter.
    #[arg(long)]
    model: Option<String>,
    /// List only runs of this session.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// List only runs that began since: 90s, 30m, 2h, 7d or 4w ago, or 2026-11-01, or 2026-11-01T09:30 (UTC).
    #[arg(long, value_parser = since, value_name = "WHEN")]
    since: Option<Moment>,
    /// List at most this many.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Continue after the previous page; its last line has the value.
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
}

/// The selected runs.
#[derive(Clone, Copy)]
enum Selection {
    Status(RunStatus),
    Abandoned,
    /// Those of abandoned runs that a worker will take.
    Queued,
    /// Those of suspended runs that continue at a time.
    Sleeping,
}

fn wanted(name: &str) -> Result<Selection, String> {
    match name {
        ABANDONED => Ok(Selection::Abandoned),
        QUEUED => Ok(Selection::Queued),
        SLEEPING => Ok(Selection::Sleeping),
        name => status(name)
            .map(Selection::Status)
            .map_err(|names| format!("{names}, {ABANDONED}, {QUEUED}, {SLEEPING}")),
    }
}

/// The status word of a run that is running and has no holder.
const ABANDONED: &str = "abandoned";

/// What the same is called if workers perform it, and none has it now.
const QUEUED: &str = "queued";

/// What a run is called that is suspended until a time.
const SLEEPING: &str = "sleeping";

/// Reads the name of a status.
pub(crate) fn status(name: &str) -> Result<RunStatus, String> {
    let found = RunStatus::ALL.iter().copied().find(|status| status.as_str() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = RunStatus::ALL.iter().map(|status| status.as_str()).collect();
        format!("give one of {}", names.join(", "))
    })
}

/// A moment, or how long ago it was.
fn since(text: &str) -> Result<Moment, String> {
    let unit = text.char_indices().next_back().and_then(|(place, unit)| {
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return None,
        };
        text[..place].parse::<u32>().ok().map(|number| u64::from(number) * seconds)
    });
    let ago = unit.map(|seconds| {
        let began = SystemWorld.now().checked_sub(Duration::from_secs(seconds));
        let since = began.and_then(|began| began.duration_since(SystemTime::UNIX_EPOCH).ok());
        Moment(i64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX))
    });
    let found = ago.or_else(|| Moment::parse(text));
    let found = found.ok_or("give 90s, 30m, 2h, 7d or 4w, or a date such as 2026-11-01")?;
    if found.0 > now() { Err("that is in the future".to_owned()) } else { Ok(found) }
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log, status, model, session, since, limit, after } = arguments;
    let mut filter = RunFilter::new().limit(limit as usize);
    filter.since = since.map(|moment| moment.0);
    (filter.model, filter.session, filter.after) = (model, session, after);
    match status {
        Some(Selection::Status(status)) => filter.status = Some(status),
        Some(Selection::Abandoned | Selection::Queued) => filter.abandoned = Some(now()),
        Some(Selection::Sleeping) => filter.status = Some(RunStatus::Suspended),
        None => {}
    }
    let word = match status {
        Some(Selection::Queued) => Some(QUEUED),
        Some(Selection::Sleeping) => Some(SLEEPING),
        _ => None,
    };
    let (store, runtime) = (LogLocation::parse(&log.log)?.open_to_read()?, runtime()?);
    let page = runtime.block_on(selected(store.as_ref(), filter, word));
    let page = page.map_err(|error| match error.kind() {
        ErrorKind::Validation(_) => Failure::input(
            "--after: no page ends there; `mynah runs` prints the cursor after each page",
        ),
        _ => Failure::of(&error),
    })?;
    let mut out = BufWriter::new(io::stdout().lock());
    written(if log.json {
        let runs = page.runs.iter();
        let runs = runs.map(|run| runtime.block_on(told(store.as_ref(), run)));
        write_json(runs.collect::<Result<_, _>>()?, &page, &mut out)
    } else {
        let mut runs = page.runs.clone();
        for run in &mut runs {
            run.totals.add(&runtime.block_on(agents_totals(store.as_ref(), run))?);
        }
        write_table(&runs, !page.damaged.is_empty(), width(), &mut out)
    })?;
    if let Some(next) = &page.next {
        // Not among the runs, so that it is not mistaken for one.
        let _ = writeln!(io::stderr(), "there are more: --after {next}");
    }
    if page.damaged.is_empty() {
        return Ok(());
    }
    let damaged: Vec<String> = page.damaged.iter().map(Corrupt::to_string).collect();
    Err(Failure::finding(format!(
        "not listed, as the log's index is damaged: {}",
        damaged.join("; ")
    )))
}

/// A page of runs, only those of a status word if one is given: pages of the log are read until there are enough.
async fn selected(log: &dyn Log, filter: RunFilter, word: Option<&str>) -> mynah::Result<RunPage> {
    let mut page = log.runs(filter.clone()).await?;
    let Some(word) = word else { return Ok(page) };
    let is_wanted = |run: &RunSummary| shown_status(run) == word;
    page.runs.retain(is_wanted);
    while let Some(next) = page.next.take_if(|_| page.runs.len() < filter.limit) {
        let more =
            log.runs(filter.clone().limit(filter.limit - page.runs.len()).after(next)).await?;
        page.runs.extend(more.runs.into_iter().filter(is_wanted));
        page.damaged.extend(more.damaged);
        page.next = more.next;
    }
    Ok(page)
}

/// A run in `--json`: its index entry, whether a process holds it, and where it was branched off
/// another.
pub(crate) async fn told(log: &dyn Log, run: &RunSummary) -> Result<Value, Failure> {
    let parent = mynah::log::parent(log, &run.run_id).await?;
    let parent = parent.map(
        |Parent { run_id, seq, hash, .. }| json!({"run_id": run_id, "seq": seq, "hash": hash}),
    );
    let mut told = json!(run);
    told["abandoned"] = json!(run.is_abandoned(now()));
    told["parent"] = json!(parent);
    let agents = agents_totals(log, run).await?;
    if agents != Totals::default() {
        told["agents"] = json!(agents);
    }
    Ok(told)
}

/// The status of a run in a word for people.
pub(crate) fn shown_status(run: &RunSummary) -> &'static str {
    run.status_word(now())
}

/// The last line has the cursor to the next page, if there is one.
fn write_json(mut lines: Vec<Value>, page: &RunPage, out: &mut impl Write) -> io::Result<()> {
    let damaged = page.damaged.iter().map(|damaged| {
        let error = Error::from(damaged.clone());
        with_run(&damaged.run_id, json!({"status": error.reason(), "err": error}))
    });
    lines.extend(damaged);
    if let (Some(last), Some(next)) = (lines.last_mut(), &page.next) {
        last["next"] = json!(next);
    }
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    out.flush()
}

const HEADINGS: [&str; 9] =
    ["RUN", "STARTED (UTC)", "STATUS", "MODEL", "TURNS", "TOOLS", "TOKENS", "USD", "TOOK"];

/// The columns that a narrow terminal has no room for, the first to go first.
const LESS: [&str; 7] = ["TOOLS", "USD", "TOOK", "MODEL", "TURNS", "STARTED (UTC)", "TOKENS"];

/// How many columns the terminal has; none if the table goes elsewhere.
fn width() -> Option<usize> {
    io::stdout().is_terminal().then(|| tty::size().0)
}

fn write_table(
    runs: &[RunSummary],
    is_damaged: bool,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    if runs.is_empty() {
        let none = if is_damaged { "no runs that can be listed" } else { "no runs" };
        writeln!(out, "{none}")?;
        return out.flush();
    }
    let rows: Vec<[String; 9]> = runs.iter().map(row).collect();
    let columns = Columns::new(&HEADINGS, &rows, 4..8);
    columns.within(width.unwrap_or(usize::MAX), &LESS).write(out)?;
    out.flush()
}

fn row(run: &RunSummary) -> [String; 9] {
    let totals = &run.totals;
    let cost = cost(totals.cost, "").unwrap_or_else(|| "-".to_owned());
    [
        line(&run.run_id),
        Moment(run.started).to_string(),
        shown_status(run).to_owned(),
        run.model.as_deref().map_or("-".to_owned(), |model| short(model, 30)),
        totals.turns.to_string(),
        totals.tool_calls.to_string(),
        totals.input_tokens.saturating_add(totals.output_tokens).to_string(),
        cost,
        Span(run.updated.saturating_sub(run.started)).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mynah::{
        Thread,
        log::{Append, Chain, Extent, Fact, MemoryLog, Queue},
    };

    use super::*;

    #[test]
    fn a_narrow_table_has_fewer_columns_and_no_row_is_broken() {
        let run = RunSummary::empty("01KABCDEFGHJKMNPQRSTVWXYZ0");
        for (width, columns) in [(120, 9), (80, 6), (40, 2)] {
            let mut out = Vec::new();
            write_table(std::slice::from_ref(&run), false, Some(width), &mut out).expect("room");
            let text = String::from_utf8(out).expect("text");
            let headings = text.lines().next().expect("headings").replace(" (UTC)", "");
            assert_eq!(headings.split_whitespace().count(), columns, "{text}");
            assert!(text.lines().all(|line| line.len() <= width), "{width}: {text}");
        }
        // An agent of an agent has the ids of both before its own.
        let agent =
            "01KABCDEFGHJKMNPQRSTVWXYZ0+research-0123456789abcdef+translate-0123456789abcdef";
        let runs = [run, RunSummary::empty(agent)];
        let mut out = Vec::new();
        write_table(&runs, false, Some(80), &mut out).expect("room");
        let text = String::from_utf8(out).expect("text");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("+translate-01234…  abandoned"), "{text}");
    }

    #[test]
    fn a_run_that_waits_for_a_worker_or_a_time_is_shown_so() {
        let mut run = RunSummary::empty("run");
        assert_eq!(shown_status(&run), "abandoned");
        run.queue = Some(Arc::new(Queue::new("default/sales")));
        assert_eq!(shown_status(&run), "queued");
        run.held_until = Some(i64::MAX);
        assert_eq!(shown_status(&run), "running");
        (run.status, run.held_until, run.wake_at) = (RunStatus::Suspended, None, Some(1));
        assert_eq!(shown_status(&run), "sleeping");
    }

    #[tokio::test]
    async fn runs_are_selected_by_the_word_that_is_shown() -> mynah::Result<()> {
        let log = MemoryLog::new();
        for (place, run) in ["q0", "a0", "q1", "a1", "q2"].iter().enumerate() {
            let queue = (place % 2 == 0).then(|| Queue::new("default/sales"));
            let mut chain = Chain::new(*run);
            let thread = Thread::from("Go.");
            let fact = Fact::RunStarted { thread, extent: Extent::Chat, about: None };
            let records = vec![chain.append(place as i64, [0; 16], &fact)?];
            log.append(Append::new(*run, None, records).queue(queue)).await?;
        }
        let ids = async |word: &str, limit: usize| {
            let filter = RunFilter::new().limit(limit);
            let page = selected(&log, filter, Some(word)).await?;
            let ids = page.runs.iter().map(|run| run.run_id.to_string());
            Ok::<_, Error>((ids.collect::<Vec<_>>(), page.next.is_some()))
        };
        assert_eq!(ids("queued", 2).await?, (vec!["q2".to_owned(), "q1".to_owned()], true));
        assert_eq!(ids("queued", 9).await?.0, ["q2", "q1", "q0"]);
        assert_eq!(ids("abandoned", 9).await?.0, ["a1", "a0"]);
        assert_eq!(ids("sleeping", 9).await?, (Vec::new(), false));
        Ok(())
    }
}
