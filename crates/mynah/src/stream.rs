//! The stream of events that a caller polls.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt as _};
use mynah_data::{Error, Event, Result, StepResult};

use crate::{cancel::CancelHandle, run::Driver};

/// What a caller wants to see. What is collected does not depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    pub(crate) text_deltas: bool,
    pub(crate) tool_deltas: bool,
    pub(crate) raw_chunks: bool,
}

impl Filter {
    const fn shows(&self, event: &Event) -> bool {
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
/// Nothing happens before the first poll, and nothing runs while it is not polled, except tools on threads of their own.
/// An `Err` is always the last item. As the first it says that the call was refused before there was anything to stream;
/// later, that a single call or step passed its budget, or in a run that is kept or performed again that its log failed or its
/// records say otherwise. What else fails is an [`Event::Error`], and the result says `error`. Dropping the stream frees everything at once.
///
/// ```
/// # use mynah::{Engine, Tool, testing::{self, Scripted}};
/// # use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([
/// #     json!([{"tool_call": {"id": "c0", "name": "echo", "arguments": {"x": 1}}}, {"finish": "tool_calls"}]),
/// #     json!([{"text": "done"}, {"finish": "stop"}])])?)
/// #     .tool(Tool::new("echo", "", json!({})).handler(async |arguments, _| arguments));
/// let events = testing::collect(engine.chat("echo please").stream()).await?;
/// let ends = testing::names(&events).into_iter().filter(|name| *name == "chat_completed");
/// assert_eq!(ends.count(), 1);
/// # Ok(()) }
/// ```
#[must_use = "a stream does nothing unless it is polled"]
pub struct EventStream {
    run: Result<Box<Driver>, Option<Error>>,
    filter: Filter,
}

impl EventStream {
    pub(crate) fn new(prepared: Result<(Driver, Filter)>) -> Self {
        match prepared {
            Ok((driver, filter)) => Self { run: Ok(Box::new(driver)), filter },
            Err(error) => {
                let filter = Filter { text_deltas: true, tool_deltas: true, raw_chunks: true };
                Self { run: Err(Some(error)), filter }
            }
        }
    }

    /// A handle that ends the run and lets the stream come to its result.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        self.run.as_mut().map_or_else(|_| CancelHandle::new(), |driver| driver.cancel.handle())
    }

    /// The id of the run, where it is kept.
    pub fn run_id(&self) -> Option<&str> {
        self.run.as_ref().ok()?.run_id().map(AsRef::as_ref)
    }

    /// What the last step so far came to. A chat that ended has put its steps into its result.
    pub fn last_step(&self) -> Option<&StepResult> {
        self.run.as_ref().ok()?.last_step()
    }

    /// Why the call was refused before there was anything to stream, as long as polling has not told it.
    pub fn refusal(&self) -> Option<&Error> {
        self.run.as_ref().err()?.as_ref()
    }

    /// The next event, whatever the filters say.
    pub(crate) fn poll_any(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        match &mut self.run {
            Ok(driver) => driver.poll_event(cx),
            Err(refused) => Poll::Ready(refused.take().map(Err)),
        }
    }

    pub(crate) const fn shows(&self, event: &Event) -> bool {
        self.filter.shows(event)
    }

    /// Polls to the end and gives the last step. Shows the model's events and the result to `see`; nobody sees the others.
    pub(crate) async fn drain(mut self, mut see: impl FnMut(Event)) -> Result<Option<StepResult>> {
        if let Ok(driver) = &mut self.run {
            driver.watched = false;
        }
        while let Some(event) = self.next().await {
            see(event?);
        }
        Ok(self.run.ok().and_then(|driver| driver.last_step().cloned()))
    }
}

impl Stream for EventStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        loop {
            let item = std::task::ready!(self.poll_any(cx));
            if !matches!(&item, Some(Ok(event)) if !self.shows(event)) {
                return Poll::Ready(item);
            }
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("filter", &self.filter).finish_non_exhaustive()
    }
}
