//! The order in which a model's events may come.

use std::collections::HashMap;

use crate::{AdapterReason, Error, Event, Result, StreamReason};

/// The results of such calls could not be distinguished.
const TWINS: &str = "two tool calls have the same id";

/// Checks the events of one model call against the rules of their order.
///
/// An answer begins with `MessageStarted` and ends with `MessageCompleted`, each once; one that comes whole may be a
/// `MessageCompleted` alone. A tool call comes in pieces between
/// its `ToolCallStarted` and its `ToolCallCompleted`, or whole in a `ToolCallCompleted` alone. `Usage`, `RawChunk` and
/// `Error` may come at any time, also after the end.
///
/// ```
/// use mynah_data::{Event, EventOrder};
///
/// let mut order = EventOrder::new();
/// assert!(order.check(&Event::message_started()).is_ok());
/// assert!(order.check(&Event::text_delta("hi")).is_ok());
/// assert!(order.check(&Event::message_completed(None)).is_ok());
/// assert_eq!(order.check(&Event::text_delta("more")).unwrap_err().reason(), "malformed_event");
/// ```
#[derive(Clone, Debug, Default)]
pub struct EventOrder {
    place: Place,
    /// The calls so far, and whether they are complete.
    calls: HashMap<String, bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    BeforeStart,
    InAnswer,
    AfterEnd,
}

impl EventOrder {
    /// The order of a call that has not answered yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks the next event.
    ///
    /// # Errors
    /// `stream_error / malformed_event` if the event may not stand here, with its type in `event`, and
    /// `adapter_error / malformed_response` if two calls have the same id. The order is as before then.
    pub fn check(&mut self, event: &Event) -> Result<()> {
        match self.take_in(event) {
            Ok(()) => Ok(()),
            Err(TWINS) => Err(Error::adapter(AdapterReason::MalformedResponse)
                .with_message(format!("adapter error: malformed_response: {TWINS}"))),
            Err(why) => {
                let what = event.type_name();
                Err(Error::stream(StreamReason::MalformedEvent)
                    .with_message(format!("stream error: malformed_event: {what}: {why}"))
                    .with("event", what))
            }
        }
    }

    fn take_in(&mut self, event: &Event) -> std::result::Result<(), &'static str> {
        if !event.is_from_model() {
            return Err("an adapter may not emit it");
        }
        if matches!(event, Event::Usage { .. } | Event::RawChunk { .. } | Event::Error { .. }) {
            return Ok(());
        }
        let starts = matches!(event, Event::MessageStarted { .. });
        let is_whole = matches!(event, Event::MessageCompleted { .. });
        match self.place {
            Place::AfterEnd => return Err("it came after the end of the answer"),
            Place::BeforeStart if !starts && !is_whole => {
                return Err("it came before the start of the answer");
            }
            Place::InAnswer if starts => return Err("the answer started twice"),
            _ => {}
        }
        match event {
            Event::MessageStarted { .. } => self.place = Place::InAnswer,
            Event::MessageCompleted { .. } => self.place = Place::AfterEnd,
            Event::ToolCallStarted { id, .. } => {
                if id.is_empty() {
                    return Err("the call has no id");
                }
                // Two whole calls with one id stay separate. A reader of the answer sees both.
                if self.calls.insert(id.clone(), false) == Some(false) {
                    return Err(TWINS);
                }
            }
            Event::ToolCallDelta { id, .. } => match self.calls.get(id) {
                None => return Err("the call was not started"),
                Some(true) => return Err("the call was already complete"),
                Some(false) => {}
            },
            Event::ToolCallCompleted(call) => {
                if call.id.is_empty() {
                    return Err("the call has no id");
                }
                self.calls.insert(call.id.clone(), true);
            }
            _ => {}
        }
        Ok(())
    }
}
