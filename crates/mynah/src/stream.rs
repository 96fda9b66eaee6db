//! The stream of events that a caller polls.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::{Stream, StreamExt as _};
use mynah_data::{ChatResult, Error, Event, Result, RunId, StepResult};
use mynah_step::BoxFuture;

use crate::{cancel::CancelHandle, run::Driver};

/// What a caller wants to see. What is collected does not depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    pub(crate) text_deltas: bool,
    pub(crate) tool_deltas: bool,
    pub(crate) raw_chunks: bool,
}

impl Filter {
    fn shows(self, event: &Event) -> bool {
        match event {
            Event::TextDelta { .. } => self.text_deltas,
            Event::ToolCallDelta { .. } => self.tool_deltas,
            Event::RawChunk { .. } => self.raw_chunks,
            _ => true,
        }
    }
}

/// A run as it happens.
///
/// Nothing happens before the first poll, and nothing runs while it is not polled, except tools on
/// threads of their own. In a recorded run, the outcome of a tool is on its way to the log before
/// it is emitted: a caller that stops polling loses nothing that it has seen. An `Err` is always
/// the last item. As the first item it means that the call was refused. Later it means that a
/// single call or step passed its budget, or that the log of a recorded or replayed run failed or
/// contradicts it. All other failures are an [`Event::Error`], and the result has `error`. Dropping
/// the stream frees everything at once.
///
/// ```
/// use mynah::{Engine, Tool, testing::{self, Scripted}};
/// use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([
/// #     json!([{"tool_call": {"id": "c0", "name": "echo", "arguments": {"x": 1}}}, {"finish": "tool_calls"}]),
/// #     json!([{"text": "done"}, {"finish": "stop"}])])?)
/// #     .tool(Tool::new("echo", "", json!({})).handler(async |arguments, _| arguments));
///
/// let events = testing::collect(engine.chat("echo please").stream()).await?;
/// let ends = testing::names(&events).into_iter().filter(|name| *name == "chat_completed");
/// assert_eq!(ends.count(), 1);
/// # Ok(()) }
/// ```
#[must_use = "a stream does nothing unless it is polled"]
pub struct EventStream(State);

enum State {
    /// Whether and how the run continues is looked up in its log.
    Starting {
        run: BoxFuture<Result<Driver>>,
        cancel: CancelHandle,
        watched: bool,
    },
    Running(Box<Driver>),
    /// Refused; the error was not returned yet.
    Refused(Option<Error>),
}

impl EventStream {
    pub(crate) fn new(prepared: Result<Driver>) -> Self {
        Self(match prepared {
            Ok(driver) => State::Running(Box::new(driver)),
            Err(error) => State::Refused(Some(error)),
        })
    }

    /// A run that something must be looked up for, and that this handle ends.
    pub(crate) fn starting(run: BoxFuture<Result<Driver>>, cancel: CancelHandle) -> Self {
        Self(State::Starting { run, cancel, watched: true })
    }

    /// Waits until the call is accepted, before its first event: a run in a log was read, and its lease is held. A server can answer with
    /// an error then instead of a stream.
    ///
    /// ```
    /// use mynah::{Engine, log::MemoryLog, testing::Scripted};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    ///
    /// let engine = Engine::new(Scripted::default());
    /// let refused = engine.resume(&MemoryLog::new(), "invoice-17").stream().started().await;
    /// assert_eq!(refused.unwrap_err().reason(), "run_not_found");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Why the call was refused.
    pub async fn started(mut self) -> Result<Self> {
        std::future::poll_fn(|cx| self.poll_started(cx)).await;
        match self.0 {
            State::Refused(Some(error)) => Err(error),
            _ => Ok(self),
        }
    }

    /// A handle that ends the run and lets the stream come to its result.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        match &mut self.0 {
            State::Starting { cancel, .. } => cancel.clone(),
            State::Running(driver) => driver.cancel_handle(),
            State::Refused(_) => CancelHandle::new(),
        }
    }

    /// The id of the run, if it is recorded and has begun. A session's turn begins when it is
    /// first polled.
    pub fn run_id(&self) -> Option<&RunId> {
        self.driver()?.run_id()
    }

    /// The last record up to which a replay was found equal.
    #[doc(hidden)]
    pub fn compared(&self) -> Option<u64> {
        self.driver()?.compared()
    }

    /// The last record of a run that was polled to its end: written, or compared with.
    pub(crate) fn last_record(&self) -> Option<u64> {
        let driver = self.driver()?;
        driver.stopped().map(|(_, head, _)| head.seq).or_else(|| driver.compared())
    }

    /// The result of the last step so far. A chat that ended has moved its steps into its result.
    pub fn last_step(&self) -> Option<&StepResult> {
        self.driver()?.last_step()
    }

    /// Why the call was refused before it began, until polling returns it. It includes errors of
    /// the adapter's [preflight](crate::Adapter::preflight), but not those of the provider, which
    /// is called when the stream is polled.
    pub fn refusal(&self) -> Option<&Error> {
        match &self.0 {
            State::Refused(error) => error.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn driver(&self) -> Option<&Driver> {
        match &self.0 {
            State::Running(driver) => Some(driver),
            _ => None,
        }
    }

    fn poll_started(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let State::Starting { run, watched, .. } = &mut self.0 {
            let watched = *watched;
            self.0 = match ready!(run.as_mut().poll(cx)) {
                Ok(mut driver) => {
                    driver.watch(watched);
                    State::Running(Box::new(driver))
                }
                Err(error) => State::Refused(Some(error)),
            };
        }
        Poll::Ready(())
    }

    /// The next event, before filters.
    pub(crate) fn poll_any(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        ready!(self.poll_started(cx));
        match &mut self.0 {
            State::Running(driver) => {
                let event = ready!(driver.poll_event(cx));
                Poll::Ready(event.map(|event| event.map_err(|e| e.of_run(driver.run_id()))))
            }
            State::Refused(error) => Poll::Ready(error.take().map(Err)),
            State::Starting { .. } => Poll::Pending,
        }
    }

    /// The result of a run that was polled to its end and has no result of a chat: a single call or
    /// step.
    pub(crate) fn result(&mut self) -> Option<ChatResult> {
        match &mut self.0 {
            State::Running(driver) => Some(driver.result()),
            _ => None,
        }
    }

    pub(crate) fn shows(&self, event: &Event) -> bool {
        self.driver().is_none_or(|driver| driver.filter.shows(event))
    }

    /// Polls to the end and returns the last step. Passes the model's events and the result to
    /// `see`, and drops the others.
    pub(crate) async fn drain(&mut self, mut see: impl FnMut(Event)) -> Result<Option<StepResult>> {
        match &mut self.0 {
            State::Starting { watched, .. } => *watched = false,
            State::Running(driver) => driver.watch(false),
            State::Refused(_) => {}
        }
        while let Some(event) = self.next().await {
            see(event?);
        }
        Ok(self.last_step().cloned())
    }
}

impl Stream for EventStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        loop {
            let item = ready!(self.poll_any(cx));
            if !matches!(&item, Some(Ok(event)) if !self.shows(event)) {
                return Poll::Ready(item);
            }
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("run_id", &self.run_id()).finish_non_exhaustive()
    }
}
