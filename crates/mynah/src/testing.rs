//! For tests of code that uses Mynah: a model that plays a script, ways to look at what happened, and
//! [`crash_everywhere`], which lets a run's process die at every record.
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

mod crash;

use std::panic::Location;

use futures_util::{Stream, TryStreamExt as _};
pub use mynah_adapters::scripted::{Entry, Script, Scripted};
use mynah_data::{Error, Event, Result, ToolCall};
use mynah_log::Log;
use serde_json::Value;

pub use self::crash::{
    CrashEverywhere, CrashPoint, CrashReport, CrashViolation, CrashViolationKind, crash_everywhere,
};
use crate::{Engine, Replay};

/// Checks that a kept run comes out the same when this engine performs it again: a test for changed models, params and tools.
///
/// Neither the model nor a tool is called: records answer. To compare the idempotent tools too:
/// `assert_equal(engine.replay(&log, &run).rerun_tools())`.
///
/// ```
/// use mynah::{Engine, log::MemoryLog, testing::{Scripted, assert_replays}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi"]));
/// let log = MemoryLog::new();
/// let run = engine.chat("hello").record(&log).await?.run_id.unwrap();
/// assert_replays(&engine, &log, &run).await;
/// # Ok(()) }
/// ```
///
/// The conversation is the recorded one, and so are its instructions: [`assert_equal`] holds others against it.
///
/// # Panics
/// As [`assert_equal`].
#[track_caller]
pub fn assert_replays<L: Log + Clone>(
    engine: &Engine,
    log: &L,
    run: impl AsRef<str>,
) -> impl Future<Output = ()> {
    assert_equal(engine.replay(log, run))
}

/// Checks that a replay comes out the same, with what it changes: instructions, a conversation, options.
///
/// ```should_panic
/// use mynah::{Engine, Thread, log::MemoryLog, testing::{self, Scripted}};
/// # use serde_json::json;
/// const PROMPT: &str = "Be kind.";
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi"]));
/// let log = MemoryLog::new();
/// let thread = Thread::new().with_system("Be brief.").with_user("hello");
/// let run = engine.chat(thread).record(&log).await?.run_id.unwrap();
/// testing::assert_equal(engine.replay(&log, &*run).system(PROMPT)).await;
/// # Ok(()) }
/// ```
///
/// The model is not called. Tools run only if [`Replay::rerun_tools`] or [`Replay::rerun_tool`] asks for it, and the side effects that
/// they ask of their context are not repeated.
///
/// # Panics
/// At the first difference: with its record, and every place in it that differs.
#[track_caller]
#[expect(clippy::panic, reason = "an assertion fails by panicking")]
pub fn assert_equal(replay: Replay) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        if let Err(error) = replay.await {
            panic!("at {caller}: {}", difference(&error));
        }
    }
}

/// What a replay found, for people: the record, and every place in it that differs.
///
/// ```
/// use mynah::{Engine, log::MemoryLog, testing::{self, Scripted}};
/// use serde_json::json;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi"])).model("small");
///
/// let log = MemoryLog::new();
/// let run = engine.chat("hello").record(&log).await?.run_id.unwrap();
/// let error = engine.model("large").replay(&log, &*run).await.unwrap_err();
/// let told = testing::difference(&error);
/// assert!(told.contains("record 1, run_started"));
/// assert!(told.contains("about.model"));
/// assert!(told.contains("recorded: \"small\""));
/// assert!(told.contains("produced: \"large\""));
/// # Ok(()) }
/// ```
pub fn difference(error: &Error) -> String {
    let metadata = error.metadata();
    let (Some(seq), Some(kind)) = (metadata.get("seq"), metadata.get("kind")) else {
        return error.to_string();
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut lines = vec![error.to_string(), format!("  record {seq}, {}", text(kind))];
    let expected = metadata.get("expected_kind").filter(|expected| *expected != kind);
    lines.extend(expected.map(|expected| format!("    recorded: {}", text(expected))));
    for place in metadata.get("diff").and_then(Value::as_array).into_iter().flatten() {
        lines.push(format!("  {}", text(&place["path"])));
        for side in ["recorded", "produced"] {
            let told = place.get(side).map_or("nothing".to_owned(), Value::to_string);
            lines.push(format!("    {side}: {told}"));
        }
    }
    lines.join("\n")
}

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
