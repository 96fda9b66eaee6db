//! Conversations as the log has them.

use std::{mem, sync::Arc};

use mynah::{
    Adapter, AdapterReason, BoxFuture, CancelHandle, Engine, Error, Message, Messages, ModelCall,
    ModelStream, Request, Role, RunId, Session, Status,
    log::{Log as _, RunFilter},
    recorded_call, restore_session, restore_turn,
};

use crate::{Failure, ledger::Ledger, store};

/// The member of a session's metadata which says that all of its messages were taken back.
const EMPTY: &str = "taken_back";

/// A conversation as the log has it.
#[derive(Default)]
pub(super) struct StoredSession {
    /// None before the first answer.
    pub(super) session: Option<Session>,
    /// The turn after it that has no end.
    pub(super) open: Option<OpenTurn>,
    /// Whether the last turn was left behind, so that the next one starts beside it.
    pub(super) branches: bool,
}

/// A turn without an end.
pub(super) struct OpenTurn {
    pub(super) run: RunId,
    pub(super) message: Option<Message>,
    /// Whether its process ended, or works on it. Otherwise it waits.
    pub(super) is_interrupted: bool,
}

/// A conversation by its name, if the log has it.
pub(super) async fn found(log: &Arc<Ledger>, id: &str) -> Result<Option<StoredSession>, Failure> {
    if log.runs(RunFilter::new().session(id).limit(1)).await?.runs.is_empty() {
        return Ok(None);
    }
    let restored = restore_session(log, id).await?;
    let session = Some(restored.session).filter(|session| session.last_run.is_some());
    let is_interrupted = restored.unfinished.is_some();
    let last = session.as_ref().and_then(|session| session.last_run.as_ref());
    let waits = last.filter(|last| last.waits).map(|last| last.run_id.clone());
    if let Some(run) = restored.unfinished.or(waits) {
        let thread = recorded_call(log, &run).await?.thread;
        let message = said(&thread.messages).last().cloned();
        let session = before(log, &run).await?.map(|session| session.with_id(id));
        let open = Some(OpenTurn { run, message, is_interrupted });
        return Ok(Some(StoredSession { session, open, branches: false }));
    }
    let last = last.map(|last| last.run_id.clone());
    Ok(Some(match (session, last) {
        (Some(session), _) if session.metadata.contains_key(EMPTY) => {
            StoredSession { branches: true, ..StoredSession::default() }
        }
        (Some(session), Some(run)) if session.status() == Status::Error => {
            let session = before(log, &run).await?.map(|session| session.with_id(id));
            StoredSession { session, open: None, branches: true }
        }
        (session, _) => StoredSession { branches: session.is_none(), session, open: None },
    }))
}

/// The session before the turn of a run; none if that was its first.
async fn before(log: &Arc<Ledger>, run: &str) -> Result<Option<Session>, Failure> {
    Ok(match store::needed(log.as_ref(), run).await?.first() {
        Some(run) => Some(restore_turn(log, run).await?.session),
        None => None,
    })
}

/// The session before the last message of this one, and that message.
pub(super) async fn earlier(
    log: &Arc<Ledger>,
    session: &Session,
) -> Result<Option<(Option<Session>, Message)>, Failure> {
    let Some(message) = said(session.messages()).last().cloned() else { return Ok(None) };
    let count = |session: &Session| said(session.messages()).count();
    let (mut at, own) = (Some(session.clone()), count(session));
    // Runs that keep a place add no message.
    while let Some(session) = at.as_ref().filter(|at| count(at) >= own) {
        at = match &session.last_run {
            Some(last) => before(log, &last.run_id).await?,
            None => None,
        };
    }
    Ok(Some((at, message)))
}

/// Records that a conversation continues with this session, without later messages: a run that is cancelled before it asks the model.
/// Returns the session after it.
pub(super) async fn keep(
    log: &Arc<Ledger>,
    engine: &Engine,
    session: &Session,
) -> Result<Session, Failure> {
    let cancelled = CancelHandle::new();
    cancelled.cancel();
    let engine = match engine.get_adapter_name() {
        Some(name) => engine.clone().adapter(Unasked(name.to_owned())),
        None => engine.clone(),
    };
    let turn = engine.continue_session(session, None).branch();
    Ok(turn.record(log).cancel_handle(&cancelled).await?.0)
}

/// A model that is not asked, by the name of its adapter. It needs no key, region or address.
struct Unasked(String);

impl Adapter for Unasked {
    fn name(&self) -> &str {
        &self.0
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<mynah::Result<ModelStream>> {
        Box::pin(async { Err(Error::adapter(AdapterReason::Unknown)) })
    }
}

/// A session that stands for one without messages, which cannot be recorded: its only message was taken back.
pub(super) fn emptied(begun: Session, taken: &Message) -> Session {
    begun.append(taken.clone()).with_metadata(EMPTY, true)
}

/// The messages with which a person began turns. An answer to a question of a tool is a part of the turn that asks.
pub(super) fn said(messages: &Messages) -> impl Iterator<Item = &Message> {
    let mut is_asked = false;
    messages.iter().map(AsRef::as_ref).filter(move |message: &&Message| {
        let asks = message.metadata().contains_key("ask_user");
        let is_answer = mem::replace(&mut is_asked, asks);
        message.role() == Role::User && !is_answer
    })
}
