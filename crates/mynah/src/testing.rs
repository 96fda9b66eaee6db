//! For tests of code that uses Mynah: a model that plays a script, and ways to look at what happened.
//!
//! ```
//! use mynah::{Engine, testing::{self, Scripted}};
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
//! let model = Scripted::new([json!([{"text": "hel"}, {"text": "lo"}, {"finish": "stop"}])])?;
//! let events = testing::collect(Engine::new(model.clone()).chat("hi").stream()).await?;
//! assert_eq!(testing::text(&events), "hello");
//! assert_eq!(model.requests()[0].messages.len(), 1);
//! # Ok(()) }
//! ```

use futures_util::{Stream, TryStreamExt as _};
pub use mynah_adapters::scripted::{Entry, Script, Scripted};
use mynah_data::{Event, Result, ToolCall};

/// Every event of a stream.
///
/// # Errors
/// The error of a call that was refused.
pub async fn collect(stream: impl Stream<Item = Result<Event>>) -> Result<Vec<Event>> {
    stream.try_collect().await
}

/// The names of events, in order: `message_started`, `text_delta`, …
pub fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::type_name).collect()
}

/// The text that was streamed.
pub fn text(events: &[Event]) -> String {
    let delta = |event: &Event| match event {
        Event::TextDelta { delta, .. } => Some(delta.clone()),
        _ => None,
    };
    events.iter().filter_map(delta).collect()
}

/// The tool calls that the model completed.
pub fn tool_calls(events: &[Event]) -> Vec<ToolCall> {
    let call = |event: &Event| match event {
        Event::ToolCallCompleted(call) => Some(ToolCall::clone(call)),
        _ => None,
    };
    events.iter().filter_map(call).collect()
}
