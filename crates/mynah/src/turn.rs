//! A session's turns.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use futures_util::Stream;
use mynah_data::{
    ChatResult, Error, ErrorKind, Event, LogReason, Message, Messages, Operation, Result, RunId,
    Session, SessionReason, SessionReducer, SessionRun, StepResult, TurnResult,
};
use mynah_log::{Extent, Hash, Head, Log, Previous, RunFilter, RunStatus, RunSummary, SessionLink};
use mynah_step::take_over;
use serde_json::json;

use crate::{
    call::{awaited, chatted, stepped},
    cancel::CancelHandle,
    context_policy,
    engine::Engine,
    linked,
    loaded::Loaded,
    options::{Options, option_setters},
    prepare::{Input, Origin, prepare},
    resume::{Resume, TurnCall},
    run::Driver,
    stream::EventStream,
};

/// A session's chat: a future of the session after it and the result, or a stream.
///
/// The session that it starts from never changes. Tools get the session's context and id, unless
/// the call sets others.
///
/// In a log, the turn is a run that names the run of the previous turn and holds only new messages.
/// If that run waits for this turn (for an answer, or for tool results that were submitted), the
/// turn continues it instead: with its own engine and options, the session's current data, and the
/// run's budget unless it sets another. Either way, what the run has spent counts.
///
/// A recorded session is continued once from each of its states. If another turn was faster (a button clicked twice, two
/// requests at once, a session value that is out of date), this one fails with `session_moved` before it asks a model or runs a
/// tool. The error's `run_id` names the run that continued the session:
/// [`restore_session`](crate::restore_session) or [`restore_turn`](crate::restore_turn) returns the session after it.
/// [`branch`](Self::branch) starts a second continuation on purpose. A turn that the provider refused did not continue the
/// session. [`Engine::start`](crate::Engine::start) fails in the same way if the log already has a turn of a session with this id.
///
/// ```
/// use mynah::{Engine, testing::{self, Scripted}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi"]));
///
/// let events = testing::collect(engine.start("hello").stream()).await?;
/// let ends = testing::names(&events).into_iter().filter(|name| *name == "chat_completed");
/// assert_eq!(ends.count(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a turn does nothing unless it is awaited or streamed"]
pub struct Turn(pub(crate) PendingTurn);

option_setters!(Turn, self => self.0.options; options prompt model tools chat call live new data key tool_code approval chat_code record park keep queue);

impl Turn {
    /// Starts a run of its own from this session value, even if another turn has continued the session or a run waits for this
    /// turn. Both continuations are kept; [`restore_session`](crate::restore_session) returns the one that started last.
    ///
    /// ```
    /// use mynah::{Engine, log::MemoryLog, testing::Scripted};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["hi", "one", "two"]));
    ///
    /// let log = MemoryLog::new();
    /// let (session, _) = engine.start("hello").record(&log).await?;
    /// engine.reply(&session, "count").record(&log).await?;
    ///
    /// let refused = engine.reply(&session, "count").record(&log).await.unwrap_err();
    /// assert_eq!(refused.reason(), "session_moved");
    /// let (_, other) = engine.reply(&session, "count").branch().record(&log).await?;
    /// assert_eq!(other.text(), "two");
    /// # Ok(()) }
    /// ```
    pub fn branch(mut self) -> Self {
        self.0.branch = true;
        self
    }

    /// The turn as it happens. [`SessionStream::finish`] gives the session after it, at any point.
    pub fn stream(self) -> SessionStream {
        SessionStream::new(self.0.events(), SessionReducer::chat(self.0.session, self.0.message))
    }
}

awaited! { Turn => (Session, ChatResult), turn => {
    let mut events = turn.0.events();
    let result = chatted(&mut events).await?;
    Ok((kept(turn.0.session.apply_chat(&result), &events), result))
} }

/// A session's single step: a future of the session after it and the result, or a stream. In a log
/// it is a run like a [`Turn`], or continues the one that waits for it.
///
/// ```
/// use mynah::{Engine, Session, testing::{self, Scripted}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi"]));
///
/// let events = testing::collect(engine.step_session(&Session::from("hi")).stream()).await?;
/// let ends = testing::names(&events).into_iter().filter(|name| *name == "step_completed");
/// assert_eq!(ends.count(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a turn does nothing unless it is awaited or streamed"]
pub struct StepTurn(pub(crate) PendingTurn);

option_setters!(StepTurn, self => self.0.options; options prompt model tools call live new data key tool_code approval record keep);

impl StepTurn {
    /// Starts a run of its own from this session value; see [`Turn::branch`].
    pub fn branch(mut self) -> Self {
        self.0.branch = true;
        self
    }

    /// The step as it happens. [`SessionStream::finish`] gives the session after it.
    pub fn stream(self) -> SessionStream {
        SessionStream::new(self.0.events(), SessionReducer::step(self.0.session))
    }
}

awaited! { StepTurn => (Session, StepResult), turn => {
    let mut events = turn.0.events();
    let result = stepped(&mut events).await?;
    Ok((kept(turn.0.session.apply_step(&result), &events), result))
} }

/// A turn before its start.
#[derive(Clone, Debug)]
pub(crate) struct PendingTurn {
    engine: Engine,
    session: Session,
    operation: Operation,
    message: Option<Message>,
    options: Options,
    branch: bool,
    request_id: Option<String>,
}

impl PendingTurn {
    pub(crate) fn new(
        engine: Engine,
        session: Session,
        operation: Operation,
        message: Option<Message>,
    ) -> Self {
        let (options, branch, request_id) = (Options::new(), false, None);
        Self { engine, session, operation, message, options, branch, request_id }
    }

    fn extent(&self) -> Extent {
        if self.operation == Operation::Step { Extent::Step } else { Extent::Chat }
    }

    /// The events of the turn: of a run of its own, or of the one that waits for it.
    fn events(&self) -> EventStream {
        match self.session.check(self.operation, self.message.as_ref()) {
            Ok(()) => self.clone().begin(),
            Err(error) => EventStream::new(Err(error)),
        }
    }

    fn begin(mut self) -> EventStream {
        // A conversation goes on when its turn is done, so a turn waits for its times in place.
        self.options.park_after.get_or_insert(Duration::MAX);
        let may_be_in_log = self.may_be_in_log();
        let Some(log) = self.options.log.take_if(|_| may_be_in_log) else {
            return EventStream::new(self.afresh(None, None));
        };
        let cancel = self.options.own_cancel();
        // What can be refused is refused before anything is looked up.
        match self.clone().afresh(None, None) {
            Ok(unkept) => self.request_id = Some(unkept.request_id().to_owned()),
            Err(error) => return EventStream::new(Err(error)),
        }
        EventStream::starting(Box::pin(self.look_up(log)), cancel)
    }

    /// Whether the log may hold turns of the session.
    fn may_be_in_log(&self) -> bool {
        let starts_named = self.operation == Operation::Start && self.session.id.is_some();
        self.session.last_run.is_some() || (starts_named && !self.branch)
    }

    async fn look_up(mut self, log: Arc<dyn Log>) -> Result<Driver> {
        self.options.log = Some(Arc::clone(&log));
        if let Some(run) = self.session.last_run.clone() {
            return self.after(log, run).await;
        }
        if let Some(id) = &self.session.id {
            let newest = log.runs(RunFilter::new().session(id.as_str()).limit(1)).await?;
            if let Some(run) = newest.runs.first() {
                stay(&*log, run).await.map_err(|error| started_already(error, id, &run.run_id))?;
            }
        }
        self.afresh(None, None)
    }

    /// Continues the session's last run if that waits for this turn, and starts a run after it otherwise.
    async fn after(self, log: Arc<dyn Log>, run: SessionRun) -> Result<Driver> {
        let Some((left, indexed)) = left(&*log, &run).await? else {
            return self.afresh(None, None);
        };
        let grew = self.session.thread.messages.starts_with(&run.messages);
        let before = if grew { run.messages.clone() } else { Messages::new() };
        let policy = self.options.values.context_policy.as_ref();
        let policy = policy.or(self.engine.0.options.values.context_policy.as_ref());
        let left_out = match policy.filter(|_| grew) {
            Some(policy) => context_policy::left_out(&*log, (&run.run_id, run.seq), policy).await?,
            None => None,
        };
        let (Head { seq, hash }, messages) = (left.head, before.len() as u64);
        let previous = Previous { run_id: run.run_id.clone(), seq, hash, messages, left_out };
        let after = Predecessor { left, previous, before };
        if self.branch {
            return self.afresh(Some(after), None);
        }
        // A restored session refers to the start of its first run if that has no end.
        let has_grown = indexed.records > run.seq || indexed.status == RunStatus::Running;
        if has_grown && run.abandoned.as_ref() != Some(&run.run_id) {
            stay(&*log, &indexed).await?;
        }
        if let Some(next) = linked::newest(&*log, &run.run_id).await?
            && let Some(next) = log.run(&next).await?
        {
            stay(&*log, &next).await?;
        }
        let mut held = None;
        if run.waits && !has_grown {
            let taken = if grew { self.waiting(&log, &run, left).await? } else { None };
            if let Some(taken) = taken {
                return Ok(taken);
            }
            // Its lease decides between this turn and one that continues the run.
            let world = &*self.engine.0.world;
            let lease = take_over(&log, world, &run.run_id, Some(left.head)).await;
            held = Some(lease.map_err(|error| lost(error, &run.run_id))?);
        }
        // Under another name the conversation is another session.
        let started = match indexed.session_id.as_deref() == self.session.id.as_deref() {
            true => self.claim(&*log, &run, after).await,
            false => self.afresh(Some(after), None),
        };
        drop(held);
        started
    }

    /// Continues the waiting run; none if it waits for something else.
    async fn waiting(
        &self,
        log: &Arc<dyn Log>,
        run: &SessionRun,
        left: LastPosition,
    ) -> Result<Option<Driver>> {
        let Some(mut answer) = self.answer(log, run) else { return Ok(None) };
        let loaded = Loaded::read_knowing(&**log, &run.run_id, &run.messages).await?;
        if loaded.chain.head() != Some(left.head) {
            return Err(session_moved(&run.run_id, false));
        }
        if !self.is_of(&loaded) {
            return Ok(None);
        }
        let prepared = match answer.prepare(loaded).await {
            Err(error) if matches!(error.kind(), ErrorKind::Session(_)) => return Ok(None),
            prepared => prepared.map_err(|error| lost(error, &run.run_id))?,
        };
        // The run is held from here on, so no other turn can start beside it any more. One that did is the session's newest.
        if let Some(id) = &self.session.id {
            let newest = log.runs(RunFilter::new().session(id.as_str()).limit(1)).await?;
            if newest.runs.first().is_some_and(|newest| newest.run_id != run.run_id) {
                self.free_id(&**log, run, left, 0).await?;
            }
        }
        Ok(Some(prepared))
    }

    /// The id of the run that continues the session from where it was left, and its number among those that left the session as
    /// it was.
    async fn free_id(
        &self,
        log: &dyn Log,
        run: &SessionRun,
        left: LastPosition,
        mut number: u64,
    ) -> Result<(RunId, u64)> {
        let reached = Duration::from_nanos(u64::try_from(left.reached).unwrap_or_default());
        let reached = SystemTime::UNIX_EPOCH + reached;
        loop {
            let id = self.engine.0.world.run_id_at(&place(run, number), reached);
            match log.run(&id).await? {
                Some(found) => stay(log, &found).await?,
                None => return Ok((id, number)),
            }
            number += 1;
        }
    }

    /// Starts the one run that continues the session from here. Its id follows from the place where the run before was left,
    /// and a log takes an id once: of several turns one gets it.
    async fn claim(self, log: &dyn Log, run: &SessionRun, after: Predecessor) -> Result<Driver> {
        let mut number = 0;
        loop {
            let (id, free) = self.free_id(log, run, after.left, number).await?;
            let mut driver = self.clone().afresh(Some(after.clone()), Some(id))?;
            match poll_fn(|cx| driver.poll_durable(cx)).await {
                Ok(()) => return Ok(driver),
                Err(error) if error.kind() == ErrorKind::Log(LogReason::Pruned) => {
                    number = free + 1;
                }
                // Another turn was faster.
                Err(error) if is_taken(&error) => number = free,
                Err(error) => return Err(error),
            }
        }
    }

    /// What the waiting run continues with, if the new messages can be expressed that way.
    fn answer(&self, log: &Arc<dyn Log>, run: &SessionRun) -> Option<Resume> {
        let resume = Resume::new(self.engine.clone(), log.clone(), run.run_id.clone());
        let (request_id, session) = (self.request_id.clone()?, self.session.clone());
        let turn = TurnCall { request_id, extent: self.extent(), session };
        let mut resume = resume.with_turn(turn).options(self.options.clone());
        for message in self.session.thread.messages.since(run.messages.len()) {
            let text = message.text();
            let id = message
                .tool_call_id()
                .filter(|id| **message == Message::tool_result(*id, &*text))?;
            resume = resume.tool_result(id, &*text);
        }
        Some(match &self.message {
            Some(message) => resume.message(message.clone()),
            None => resume,
        })
    }

    /// Whether the run is a turn of this session, regardless of the session's current data.
    fn is_of(&self, loaded: &Loaded) -> bool {
        loaded.about.session.as_ref().is_some_and(|link| link.id == self.session.id)
    }

    /// Begins a run, after another that holds the conversation up to some point, or with the whole conversation.
    fn afresh(self, after: Option<Predecessor>, run_id: Option<RunId>) -> Result<Driver> {
        let (since, previous, before) = match after {
            Some(after) => (Some(after.left.at), Some(after.previous), after.before),
            None => (None, None, Messages::new()),
        };
        let extent = self.extent();
        let Session { id, thread: conversation, context, metadata, .. } = self.session;
        let mut thread = conversation;
        if !before.is_empty() {
            thread.messages = thread.messages.since(before.len()).cloned().collect();
        }
        thread.extend(self.message);
        let session = Some(SessionLink { id, context, metadata, previous });
        let request_id = self.request_id;
        let origin = Origin { before, session, request_id, since, run_id };
        prepare(&self.engine, Input::Thread(thread), self.options, extent, origin)
    }
}

/// The run that a new one continues the session of.
#[derive(Clone)]
struct Predecessor {
    left: LastPosition,
    previous: Previous,
    /// The conversation that it holds; empty if that was changed since.
    before: Messages,
}

/// Where and when a session's last run ended, and the latest time in its records.
#[derive(Clone, Copy)]
struct LastPosition {
    head: Head,
    reached: i64,
    at: i64,
}

/// Where a session's last run was left and what the index has of it now, if it is in this log.
async fn left(log: &dyn Log, run: &SessionRun) -> Result<Option<(LastPosition, RunSummary)>> {
    let Ok(hash) = run.hash.parse::<Hash>() else { return Ok(None) };
    let Some(indexed) = log.run(&run.run_id).await? else { return Ok(None) };
    let (head, at) = (indexed.head(), indexed.started.max(indexed.updated));
    // It may have gone on since, with another answer to the same question.
    let found = if head.seq > run.seq {
        let records = log.read(&run.run_id, run.seq, 1).await?;
        records.first().map(|record| (record.hash(), record.envelope().ts))
    } else {
        Some((head.hash, indexed.updated)).filter(|_| head.seq == run.seq)
    };
    let head = Head { seq: run.seq, hash };
    let left = |(_, reached)| (LastPosition { head, reached, at }, indexed);
    Ok(found.filter(|(found, _)| *found == hash).map(left))
}

/// Where the next run of a session begins: at the end of its last run. Turns there before it left the session as it was.
fn place(run: &SessionRun, number: u64) -> String {
    let SessionRun { run_id, seq, hash, abandoned, .. } = run;
    let abandoned = abandoned.as_deref().unwrap_or_default();
    json!(["turn", run_id, seq, hash, abandoned, number]).to_string()
}

/// Refuses a turn if this run has continued its session. One that was refused, or ended before its first step, has not.
pub(crate) async fn stay(log: &dyn Log, run: &RunSummary) -> Result<()> {
    let may_stay = matches!(run.status, RunStatus::Failed | RunStatus::Cancelled);
    if may_stay && Loaded::read(log, &run.run_id).await?.left_session_as_it_was() {
        return Ok(());
    }
    let is_unfinished = run.seal.is_none() && run.status != RunStatus::Suspended;
    Err(session_moved(&run.run_id, is_unfinished))
}

fn is_taken(error: &Error) -> bool {
    use LogReason::{HeadMismatch, Leased, Sealed};
    matches!(error.kind(), ErrorKind::Log(HeadMismatch | Leased | Sealed))
}

/// The same error, or that the session has moved if another turn got the run.
fn lost(error: Error, run: &str) -> Error {
    if is_taken(&error) { session_moved(run, true) } else { error }
}

/// The same error in the words of a first turn.
fn started_already(error: Error, session: &str, run: &str) -> Error {
    if error.kind() != ErrorKind::Session(SessionReason::SessionMoved) {
        return error;
    }
    error.with_message(format!(
        "session error: session_moved: session {session:?} is in this log already, run {run} is its newest turn; \
         continue it with restore_session() and reply(), choose another session id, or call branch() to start a second conversation"
    ))
}

fn session_moved(run: &str, runs: bool) -> Error {
    let first = if runs { "wait for that run, resume or cancel it, then " } else { "" };
    Error::session(SessionReason::SessionMoved)
        .with_message(format!(
            "session error: session_moved: run {run} continued this session; \
             {first}restore the session from the log and try again, or call branch() to start a second continuation"
        ))
        .with("run_id", run)
}

/// The session after a turn, which remembers the run that recorded the turn.
fn kept(mut session: Session, events: &EventStream) -> Session {
    if let Some((run, head, waits)) = events.driver().and_then(Driver::stopped) {
        let (hash, messages) = (head.hash.to_string(), session.thread.messages.clone());
        session.last_run = Some(SessionRun::new(run.clone(), head.seq, hash, waits, messages));
    }
    session
}

/// A session's turn as it happens.
///
/// ```
/// use mynah::{Engine, Status, testing::Scripted};
/// use futures_util::StreamExt;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["ok", "again"]));
///
/// let (session, _) = engine.start("hi").await?;
/// let mut turn = engine.reply(&session, "again").stream();
/// let mut ends = 0;
/// while let Some(event) = turn.next().await {
///     ends += usize::from(event?.type_name() == "chat_completed");
/// }
/// assert_eq!(ends, 1);
/// let (session, _result) = turn.finish();
/// assert_eq!(session.status(), Status::Completed);
/// # Ok(()) }
/// ```
#[doc(alias("stream_start", "stream_reply", "stream_step"))]
#[derive(Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct SessionStream {
    events: EventStream,
    reducer: SessionReducer,
    refused: bool,
}

impl SessionStream {
    fn new(events: EventStream, mut reducer: SessionReducer) -> Self {
        events.refusal().inspect(|error| reducer.refuse(error));
        Self { events, reducer, refused: false }
    }

    /// Ends the turn here: what was not polled does not happen. Returns the session after what did,
    /// and the result. A turn that was refused leaves the session as it was.
    pub fn finish(self) -> (Session, TurnResult) {
        let (session, result) = self.reducer.finalize();
        let mut session = kept(session, &self.events);
        let driver = self.events.driver().filter(|driver| driver.stopped().is_none());
        let run = driver.and_then(Driver::run_id).filter(|_| !self.refused);
        if let (Some(run), Some(last)) = (run, &mut session.last_run) {
            // The caller knows that this turn has no end, so the next one does not compete with it.
            last.abandoned = Some(run.clone());
        }
        (session, result)
    }

    /// Waits until the turn is accepted, before its first event; see [`EventStream::started`].
    ///
    /// # Errors
    /// Why the turn was refused.
    pub async fn started(mut self) -> Result<Self> {
        self.events = self.events.started().await?;
        Ok(self)
    }

    /// The id of the turn's run, if it is recorded and has begun.
    pub fn run_id(&self) -> Option<&RunId> {
        self.events.run_id()
    }

    /// A handle that ends the run and lets the stream come to its result.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        self.events.cancel_handle()
    }

    /// Why the turn was refused before it began. Polling returns it too.
    pub fn refusal(&self) -> Option<&Error> {
        self.events.refusal()
    }
}

impl Stream for SessionStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        loop {
            let item = ready!(self.events.poll_any(cx));
            let event = match &item {
                Some(Ok(event)) => event,
                Some(Err(refused)) => {
                    self.reducer.refuse(refused);
                    self.refused = true;
                    return Poll::Ready(item);
                }
                None => return Poll::Ready(item),
            };
            self.reducer.apply(event);
            if self.events.shows(event) {
                return Poll::Ready(item);
            }
        }
    }
}
