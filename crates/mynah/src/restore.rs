//! Sessions and calls, from the records of their runs.

use std::collections::BTreeMap;

use mynah_data::{ChatResult, Error, Result, RunId, Session, SessionReason, Thread};
use mynah_log::{Extent, Hash, Log, RunFilter};

use crate::{
    Waiting,
    linked::current,
    loaded::{EngineSegment, Loaded},
};

/// A session, restored from its records.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Restored {
    /// The session after the last turn with a result.
    pub session: Session,
    /// The run of a later turn without an end: a process works on it, or its process ended.
    /// [`Engine::resume`](crate::Engine::resume) continues it; then the session can be restored
    /// again, with the outcome.
    pub unfinished: Option<RunId>,
}

/// Gives a session back from the records of its turns alone: the one that its caller held after the last of them.
///
/// Changes made to it without the model since then, such as submitted tool results, are not in the records. If a turn was
/// [branched](crate::Turn::branch), the branch that started last counts, unless it was refused. A turn that was dropped or killed
/// is [`unfinished`](Restored::unfinished): resume or cancel it first. Until then the next turn is refused with `session_moved`.
/// A session that was recorded without an id cannot be found.
///
/// ```
/// use mynah::{Engine, Session, testing::Scripted};
/// use mynah::log::MemoryLog;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi", "again"]));
///
/// let log = MemoryLog::new();
/// let (session, _) = engine.start(Session::from("hello").with_id("s-1")).record(&log).await?;
/// let (session, _) = engine.reply(&session, "hello again").record(&log).await?;
///
/// let restored = mynah::restore_session(&log, "s-1").await?;
/// assert_eq!(restored.session, session);
/// # Ok(()) }
/// ```
///
/// # Errors
/// `no_session` if no run in the log is a turn of it; a corrupt run, or one that lacks removed
/// records.
pub async fn restore_session(log: &dyn Log, id: &str) -> Result<Restored> {
    let page = log.runs(RunFilter::new().session(id).limit(1)).await?;
    let newest = page.sound()?.first().ok_or_else(|| {
        let message = format!("session error: no_session: no run in this log is a turn of {id:?}");
        Error::session(SessionReason::NoSession).with_message(message).with("session_id", id)
    })?;
    let mut turn = Loaded::read(log, &newest.run_id).await?;
    // A turn that was refused left the session as it was, and the run that waited before it may have gone on since.
    while let Some(previous) = turn.previous().filter(|_| turn.refusal().is_some()) {
        if log.head(&previous.run_id).await?.is_none_or(|head| head.seq == previous.seq) {
            break;
        }
        turn = Loaded::read(log, &previous.run_id).await?;
    }
    session_of(log, turn).await
}

/// Restores the session after the turn of this run, as its caller had it, without later turns. This
/// finds a session without an id.
///
/// ```
/// use mynah::{Engine, testing::Scripted};
/// use mynah::log::MemoryLog;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi"]));
///
/// let log = MemoryLog::new();
/// let (session, result) = engine.start("hello").record(&log).await?;
///
/// let run = result.run_id.unwrap();
/// assert_eq!(mynah::restore_turn(&log, &run).await?.session, session);
/// # Ok(()) }
/// ```
///
/// # Errors
/// `no_session` if the run is not a turn of a session; a corrupt run, or one that lacks removed
/// records.
pub async fn restore_turn(log: &dyn Log, run: impl AsRef<str>) -> Result<Restored> {
    let run = run.as_ref();
    let loaded = Loaded::read(log, run).await?;
    if loaded.about.session.is_none() {
        let message = format!("session error: no_session: run {run} is not a turn of a session");
        return Err(Error::session(SessionReason::NoSession)
            .with_message(message)
            .with("run_id", run));
    }
    session_of(log, loaded).await
}

/// The call that a run is, or that last continued it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RecordedCall {
    /// The run that was read: the one that was asked for, or the newest that [continues](crate::Engine::resume) it.
    pub run_id: RunId,
    /// The number of its last record; see [`Resume::at`](crate::Resume::at).
    pub last_record: u64,
    /// How far it goes.
    pub extent: Extent,
    /// The whole conversation with which it began, whichever runs hold it.
    pub thread: Thread,
    /// The result of a waiting run, as its caller received it: with the question, or with the calls
    /// and their arguments. None while it is in progress or after its process died, which
    /// [`Engine::resume`](crate::Engine::resume) continues, and none after its end.
    pub result: Option<ChatResult>,
    /// The digest of each call that the run waits for, by the call's id: what an approval of it is bound to. See
    /// [`Resume::approve_digest`](crate::Resume::approve_digest).
    pub digests: BTreeMap<String, Hash>,
    /// The [idempotency key](crate::ToolContext::idempotency_key) of each call that the run waits for, by the call's id. A service that
    /// was given the key knows whether a call with an unknown outcome did its work.
    pub idempotency_keys: BTreeMap<String, String>,
}

impl RecordedCall {
    /// What the run waits for; none while it is in progress, after its process died, and after its end.
    pub fn waiting(&self) -> Option<Waiting> {
        Waiting::of(self.result.as_ref()?)
    }
}

/// Reads a run's request and what it waits for, from its records and those of earlier turns of its
/// session. If another run [continues](crate::Engine::resume) it, that one is read.
///
/// A process that did not start the run can thus ask the person who decides:
///
/// ```
/// use mynah::{Engine, Tool, testing::Scripted};
/// use serde_json::json;
/// use mynah::log::MemoryLog;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([
/// #     json!([{"tool_call": {"id": "c0", "name": "pay", "arguments": {"euros": 7}}}, {"finish": "tool_calls"}])])?)
/// #     .tool(Tool::new("pay", "pays the bill", json!({})).manual());
/// # let log = MemoryLog::new();
///
/// let run = engine.chat("pay").record(&log).await?.run_id.unwrap();
///
/// let waiting = mynah::recorded_call(&log, &run).await?.waiting().unwrap();
/// let call = &waiting.calls()[0];
/// assert_eq!((&*call.name, &call.arguments), ("pay", &json!({"euros": 7})));
/// # Ok(()) }
/// ```
///
/// # Errors
/// A run that is missing or corrupt, lacks what was removed, or was written by a custom loop.
pub async fn recorded_call(log: &dyn Log, run: impl AsRef<str>) -> Result<RecordedCall> {
    let loaded = current(log, &run.as_ref().into()).await?;
    let (_, EngineSegment { extent, .. }) = loaded.stretches();
    Ok(RecordedCall {
        run_id: loaded.run.clone(),
        last_record: loaded.records.len() as u64,
        extent,
        result: loaded.waiting(),
        digests: loaded.digests(),
        idempotency_keys: loaded.idempotency_keys(),
        thread: loaded.thread_of_call(),
    })
}

async fn session_of(log: &dyn Log, loaded: Loaded) -> Result<Restored> {
    let mut before = loaded.session_before();
    let unfinished = (!loaded.was_told()).then(|| loaded.run.clone());
    // If the session's first turn has no end, the session refers to the start of its run, so that no other turn does its work.
    before.last_run = loaded.start().filter(|_| unfinished.is_some());
    let told = if loaded.was_told() && loaded.refusal().is_none() {
        Some(loaded)
    } else {
        // The turn has no result yet: the session is unchanged.
        match (loaded.previous().cloned(), loaded.until_it_waited()) {
            (_, Some(waiting)) => Some(waiting),
            (Some(previous), None) => Some(Loaded::read_until(log, &previous).await?),
            (None, None) => None,
        }
    };
    let Session { id, context, metadata, .. } = before.clone();
    let mut session = told.and_then(Loaded::session_after).unwrap_or(before);
    (session.id, session.context, session.metadata) = (id, context, metadata);
    Ok(Restored { session, unfinished })
}
