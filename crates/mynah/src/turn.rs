//! A session's turns.

use std::{
    future::IntoFuture,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::Stream;
use mynah_data::{
    ChatResult, Error, Event, Message, Operation, Result, Session, SessionReducer, StepResult,
    TurnResult,
};
use mynah_step::BoxFuture;

use crate::{
    call::{Chat, Step},
    cancel::CancelHandle,
    engine::Engine,
    options::{Options, option_setters},
    stream::EventStream,
};

/// A session's chat: a future of the session after it and the result, or a stream.
///
/// The session that it starts from never changes. Context and session id for the tools are the session's, unless the call
/// says otherwise.
///
/// ```
/// # use mynah::{Engine, testing::{self, Scripted}};
/// # use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([json!([{"text": "hi"}, {"finish": "stop"}])])?);
/// let events = testing::collect(engine.start("hello").stream()).await?;
/// let ends = testing::names(&events).into_iter().filter(|name| *name == "chat_completed");
/// assert_eq!(ends.count(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a turn does nothing unless it is awaited or streamed"]
pub struct Turn {
    engine: Engine,
    session: Session,
    operation: Operation,
    message: Option<Message>,
    options: Options,
}

option_setters!(Turn, self => self.options);

impl Turn {
    pub(crate) fn start(engine: Engine, session: Session) -> Self {
        Self {
            engine,
            session,
            operation: Operation::Start,
            message: None,
            options: Options::new(),
        }
    }

    pub(crate) fn reply(engine: Engine, session: Session, text: String) -> Self {
        let message = Some(Message::user(text));
        Self { engine, session, operation: Operation::Reply, message, options: Options::new() }
    }

    pub(crate) fn go_on(engine: Engine, session: Session, message: Option<Message>) -> Self {
        Self { engine, session, operation: Operation::Continue, message, options: Options::new() }
    }

    /// Adds options from elsewhere, over those set so far.
    pub fn options(mut self, options: Options) -> Self {
        self.options = self.options.overlay(options);
        self
    }

    fn chat(&self) -> Result<Chat> {
        self.session.check(self.operation, self.message.as_ref())?;
        let mut thread = self.session.thread.clone();
        thread.extend(self.message.clone());
        Ok(self
            .engine
            .chat(thread)
            .options(session_options(&self.session))
            .options(self.options.clone()))
    }

    /// The turn as it happens. [`SessionStream::finish`] gives the session after it, at any point.
    pub fn stream(self) -> SessionStream {
        let events = match self.chat() {
            Ok(chat) => chat.stream(),
            Err(error) => EventStream::new(Err(error)),
        };
        SessionStream::new(events, SessionReducer::chat(self.session, self.message))
    }
}

impl IntoFuture for Turn {
    type Output = Result<(Session, ChatResult)>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let result = self.chat()?.await?;
            Ok((self.session.apply_chat(&result), result))
        })
    }
}

/// A session's single step: a future of the session after it and the result, or a stream.
///
/// ```
/// # use mynah::{Engine, Session, testing::{self, Scripted}};
/// # use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([json!([{"text": "hi"}, {"finish": "stop"}])])?);
/// let events = testing::collect(engine.step_session(&Session::from("hi")).stream()).await?;
/// let ends = testing::names(&events).into_iter().filter(|name| *name == "step_completed");
/// assert_eq!(ends.count(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a turn does nothing unless it is awaited or streamed"]
pub struct StepTurn {
    engine: Engine,
    session: Session,
    options: Options,
}

option_setters!(StepTurn, self => self.options);

impl StepTurn {
    pub(crate) fn new(engine: Engine, session: Session) -> Self {
        Self { engine, session, options: Options::new() }
    }

    /// Adds options from elsewhere, over those set so far.
    pub fn options(mut self, options: Options) -> Self {
        self.options = self.options.overlay(options);
        self
    }

    fn step(&self) -> Result<Step> {
        self.session.check(Operation::Step, None)?;
        let step = self.engine.step(&self.session.thread).options(session_options(&self.session));
        Ok(step.options(self.options.clone()))
    }

    /// The step as it happens. [`SessionStream::finish`] gives the session after it.
    pub fn stream(self) -> SessionStream {
        let events = match self.step() {
            Ok(step) => step.stream(),
            Err(error) => EventStream::new(Err(error)),
        };
        SessionStream::new(events, SessionReducer::step(self.session))
    }
}

impl IntoFuture for StepTurn {
    type Output = Result<(Session, StepResult)>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let result = self.step()?.await?;
            Ok((self.session.apply_step(&result), result))
        })
    }
}

/// What a session adds to its calls. An empty context counts as none, so that the engine's holds.
fn session_options(session: &Session) -> Options {
    let mut options = Options::new();
    if !session.context.is_empty() {
        options = options.context(session.context.clone());
    }
    match &session.id {
        Some(id) => options.session_id(id),
        None => options,
    }
}

/// A session's turn as it happens.
///
/// ```
/// # use mynah::{Engine, Status, testing::Scripted};
/// # use serde_json::json;
/// use futures_util::StreamExt;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([
/// #     json!([{"text": "ok"}, {"finish": "stop"}]), json!([{"text": "again"}, {"finish": "stop"}])])?);
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
#[derive(Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct SessionStream {
    events: EventStream,
    reducer: SessionReducer,
}

impl SessionStream {
    fn new(events: EventStream, mut reducer: SessionReducer) -> Self {
        events.refusal().inspect(|error| reducer.refuse(error));
        Self { events, reducer }
    }

    /// Ends the turn here: what was not polled does not happen. Gives the session after what did, and the result.
    /// A turn that was refused leaves the session as it was.
    pub fn finish(self) -> (Session, TurnResult) {
        self.reducer.finalize()
    }

    /// A handle that ends the run and lets the stream come to its result.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        self.events.cancel_handle()
    }

    /// Why the turn was refused before there was anything to stream; polling tells it too.
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
