//! Runs that continue others. A run that a failed model call or a limit ended stays sealed; another run continues it.

use std::{sync::Arc, time::Duration};

use mynah_data::{Breach, Error, ErrorKind, HaltReason, LogReason, Result, RunId};
use mynah_log::{Continues, Fact, Log, RunFilter};
use mynah_step::{Spent, active};
use serde_json::Value;

use crate::{
    engine::Engine, fork::fork_run, loaded::Loaded, options::Options, prepare::MAX_TURNS,
    turn::stay,
};

/// What ended a run that another can continue.
struct Outage {
    /// The last record before it.
    at: u64,
    cause: Cause,
    /// What the run that continues it has to know.
    link: Continues,
    /// For how long the run was active, the failed call included.
    active: Duration,
}

enum Cause {
    /// A model call failed, for a reason that passes or for one that another engine may avoid.
    Model { passes: bool },
    /// A limit of the budget was passed.
    Budget(Breach),
    /// The chat had this many turns, and no more were allowed.
    Turns(u64),
}

impl Outage {
    /// Why a model call or a limit ended the run; none if something else did.
    fn of(run: &Loaded) -> Option<Self> {
        if !matches!(run.last(), Some(Fact::Sealed(_))) {
            return None;
        }
        // The record of the last model call, what was spent before it, and whether it is in flight.
        let (mut spent, mut asked) = (Spent::default(), (0, Spent::default(), false));
        for (fact, seq) in run.records.iter().map(|kept| (kept.fact(), kept.record().seq())) {
            let before = spent;
            spent.evolve(fact);
            let (at, before, cause) = match fact {
                Fact::TurnStarted { .. } => {
                    asked = (seq - 1, before, true);
                    continue;
                }
                Fact::BudgetExceeded { breach, .. } => match asked {
                    (at, before, true) => (at, before, Cause::Budget(breach.clone())),
                    (_, _, false) => (seq - 1, before, Cause::Budget(breach.clone())),
                },
                Fact::Failed(end) if asked.0 > 0 => {
                    let error = end.error().filter(|_| end.reason == HaltReason::Error)?;
                    let of_model =
                        matches!(error.kind(), ErrorKind::Adapter(_) | ErrorKind::Stream(_));
                    if !(of_model || asked.2) {
                        return None;
                    }
                    (asked.0, asked.1, Cause::Model { passes: error.is_resumable() })
                }
                // An answer that got its form is complete.
                Fact::Completed(end)
                    if end.reason == HaltReason::MaxTurns
                        && !end.metadata.contains_key("structured_finalize") =>
                {
                    let turns = end.metadata.get("max_turns").and_then(Value::as_u64)?;
                    (seq - 1, before, Cause::Turns(turns))
                }
                Fact::AssistantCompleted { .. } | Fact::TurnLost { .. } => {
                    asked.2 = false;
                    continue;
                }
                Fact::RunStarted { .. }
                | Fact::Resumed { .. }
                | Fact::UserMessage { .. }
                | Fact::FinalizeStarted { .. }
                | Fact::FinalizeFailed { .. }
                | Fact::ToolScheduled { .. }
                | Fact::ToolCompleted { .. }
                | Fact::ToolFailed { .. }
                | Fact::SideEffect { .. }
                | Fact::ContextTruncated { .. }
                | Fact::Suspended(_)
                | Fact::Completed(_)
                | Fact::Failed(_)
                | Fact::Cancelled { .. }
                | Fact::Sealed(_)
                | Fact::Removed(_) => continue,
            };
            let mut link = run.link().cloned().unwrap_or_else(|| Continues::new(&run.run));
            spent.add_since(&before, &mut link);
            return Some(Self { at, cause, link, active: active(&run.records) });
        }
        None
    }

    /// Whether the run continues with this engine and these options.
    fn is_over(&self, engine: &Engine, options: &Options, run: &Loaded) -> Result<bool> {
        let (_, last) = run.stretches();
        let mut values = engine.0.options.values.clone();
        values.overlay(Options::of(last.about)?.values);
        values.overlay(options.values.clone());
        Ok(match &self.cause {
            Cause::Model { passes } => *passes || options.allow_changed,
            Cause::Budget(breach) => values.budget.is_none_or(|budget| budget.admits(breach)),
            Cause::Turns(turns) => values.max_turns.unwrap_or(MAX_TURNS) > *turns,
        })
    }
}

/// Whether a run has ended, and no other can continue it.
pub(crate) fn is_final(run: &Loaded) -> bool {
    matches!(run.last(), Some(Fact::Sealed(_))) && Outage::of(run).is_none()
}

/// How a run that has ended can be continued.
pub(crate) fn advice(run: &Loaded) -> &'static str {
    match Outage::of(run).map(|outage| outage.cause) {
        None => "fork it to continue (mynah::fork_run)",
        Some(Cause::Model { .. }) => {
            "its model call failed; allow_changed_engine() calls the model again, in another run"
        }
        Some(Cause::Budget(_)) => "its budget is spent; resume it with a larger budget",
        Some(Cause::Turns(_)) => "it had all its turns; resume it with a larger max_turns",
    }
}

/// Returns the run to continue: the one that was read, or if a model call or a limit ended it, the newest run that continues it. That is
/// made if there is none, and what ended the run is over.
pub(crate) async fn continued(
    log: &Arc<dyn Log>,
    engine: &Engine,
    mut loaded: Loaded,
    options: &Options,
) -> Result<Loaded> {
    while let Some(outage) = Outage::of(&loaded) {
        let root = outage.link.root.clone();
        let next = match newest(&**log, &loaded.run).await? {
            Some(next) => next,
            None => {
                if !outage.is_over(engine, options, &loaded)? {
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
    let next = next_id(&run.run);
    let Outage { at, link, active, .. } = outage;
    let mut fork = fork_run(log, &run.run, at).run_id(next.clone());
    (fork.world, fork.link) = (Arc::clone(&engine.0.world), Some((link, active)));
    match fork.await {
        Err(error) if log.head(&next).await?.is_none() => Err(error),
        _ => Ok(next),
    }
}

/// Reads a run, or the newest one that continues it.
pub(crate) async fn current(log: &dyn Log, run: &RunId) -> Result<Loaded> {
    let loaded = Loaded::read(log, run).await?;
    let Some(root) = Outage::of(&loaded).map(|outage| outage.link.root) else { return Ok(loaded) };
    let Some(next) = newest(log, run).await? else { return Ok(loaded) };
    let next = Loaded::read(log, &next).await?;
    Ok(if next.link().is_some_and(|link| link.root == root) { next } else { loaded })
}

/// The run as a call would continue it. Makes no run.
pub(crate) async fn continuable(
    log: &dyn Log,
    engine: &Engine,
    run: &RunId,
    options: &Options,
) -> Result<Loaded> {
    let loaded = current(log, run).await?;
    match Outage::of(&loaded) {
        Some(outage) if outage.is_over(engine, options, &loaded)? => Ok(loaded.cut(outage.at)),
        _ => Ok(loaded),
    }
}

/// The run that continues one which has ended; the error of that if there is none.
pub(crate) async fn after_end(log: &dyn Log, run: &RunId, ended: Error) -> Result<RunId> {
    let current = current(log, run).await?.run;
    if current == *run { Err(ended) } else { Ok(current) }
}

pub(crate) async fn newest(log: &dyn Log, run: &RunId) -> Result<Option<RunId>> {
    let mut newest = None;
    let mut next = next_id(run);
    while log.head(&next).await?.is_some() {
        let after = next_id(&next);
        newest = Some(std::mem::replace(&mut next, after));
    }
    Ok(newest)
}

/// Refuses to continue a turn of a session that has continued without it.
async fn check_session(log: &dyn Log, run: &Loaded) -> Result<()> {
    let Some(id) = run.about.session.as_ref().and_then(|link| link.id.as_deref()) else {
        return Ok(());
    };
    let newest = log.runs(RunFilter::new().session(id).limit(1)).await?;
    match newest.sound()?.first() {
        Some(newest) if newest.run_id != run.run => stay(log, newest).await,
        _ => Ok(()),
    }
}

/// The id of the run that continues another: `invoice-17`, `invoice-17~2`, `invoice-17~3`.
#[doc(hidden)]
pub fn next_id(run: &RunId) -> RunId {
    let (id, count) = counted(run).unwrap_or((run, 1));
    format!("{id}~{}", count.saturating_add(1)).into()
}

/// The first of the runs that a run with this id continues; its own if it continues none.
pub(crate) fn root(run: &RunId) -> &str {
    counted(run).map_or(run, |(id, _)| id)
}

/// Refuses an id that belongs to a run which continues another.
#[doc(hidden)]
pub fn check_own_id(run: &RunId) -> Result<()> {
    if counted(run).is_none() {
        return Ok(());
    }
    let why = "validation failed: run_id: ids that end in ~ and a number belong to runs that continue others";
    Err(Error::invalid_option("run_id", "reserved").with_message(why))
}

fn counted(run: &RunId) -> Option<(&str, u32)> {
    let (id, count) = run.rsplit_once('~')?;
    Some((id, count.parse().ok()?))
}
