//! Mynah: a runtime for language-model work.
//!
//! An [`Engine`] holds what is needed to run a conversation: an adapter, a model, tools. It makes three calls, each a
//! future of its result or a stream of how it comes about:
//!
//! | call | what it does | result | last event |
//! |---|---|---|---|
//! | [`Engine::generate`] | one model call | [`Response`] | `message_completed` |
//! | [`Engine::step`] | one model call and its tools | [`StepResult`] | `step_completed` |
//! | [`Engine::chat`] | steps until something ends or suspends the conversation | [`ChatResult`] | `chat_completed` |
//!
//! A [`Session`] is a thread that can be put away and picked up. Each call on it is checked against the session's state:
//!
//! | call | for a session that | with |
//! |---|---|---|
//! | [`Engine::start`] | begins | a thread, messages or text |
//! | [`Engine::reply`] | is done, or has asked the user a question | the user's text |
//! | [`Engine::continue_session`] | has its [tool results](Session::submit_tool_result), or gets a message that is not plain text | a message or none |
//! | [`Engine::step_session`] | is new or done | nothing: it performs one step instead of a chat |
//!
//! A call with `.record(&log)` is kept as a run in a [`log::Log`]: [`Engine::replay`] performs it again and compares,
//! [`Engine::resume`] goes on with it after a crash or an answer, [`fork_run`] branches it, [`cancel_run`] ends it.
//!
//! What a program lost with its process comes back from the log. The functions differ in what the caller knows:
//!
//! | function | the caller knows | and gets |
//! |---|---|---|
//! | [`Chat::start_or_resume`] | the call and its run id | the run, started or continued |
//! | [`restore_session`] | the session's id | the session after its newest turn |
//! | [`restore_turn`] | the run of one turn | the session after that turn, whatever came later |
//! | [`kept_call`] | any run, and has no engine | the input of the run, and what it waits for |
//!
//! A call with `.budget(..)` spends no more than its [`Budget`] says: tokens, dollars, time, turns, tool calls. What tokens cost is
//! in a [`Catalog`].
//!
//! The feature `http`, which is on by default, calls providers ([`adapters`], `Engine::named`). `bedrock` adds Amazon Bedrock to
//! them, and `sqlite` keeps runs in a file (`log::SqliteLog`).
//!
//! Runs need a tokio runtime with timers, as `#[tokio::main]` gives.
//!
//! There is one loop, and it is a stream; the futures fold it. Inside, the loop's state is a fold of facts, what comes next
//! is a pure function of that state, and only the boundary (`mynah-step`) touches a clock, a socket or a tool.
//!
//! ```
//! # use mynah::testing::Scripted;
//! use mynah::{Engine, Tool};
//! use serde_json::json;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
//! let adapter = Scripted::new([
//!     json!([{"tool_call": {"id": "c0", "name": "echo", "arguments": {"x": 1}}}, {"finish": "tool_calls"}]),
//!     json!([{"text": "done"}, {"finish": "stop"}]),
//! ])?;
//! let echo = Tool::new("echo", "gives its arguments back", json!({})).handler(async |arguments, _| arguments);
//!
//! let result = Engine::new(adapter).tool(echo).chat("echo please").await?;
//! assert_eq!(result.halted_reason.as_str(), "completed");
//! assert_eq!(result.steps.len(), 2);
//! # Ok(()) }
//! ```

mod alone;
mod answer;
mod call;
mod cancel;
mod code;
mod context_policy;
mod engine;
mod follow;
mod fork;
mod handle;
mod in_flight;
mod loaded;
mod options;
mod prepare;
mod replay;
mod restore;
mod resume;
mod run;
mod run_event;
mod spec;
mod start;
mod stream;
pub mod testing;
mod turn;
mod values;

pub use answer::{Answer, AnswerStream};
pub use call::{Chat, Generate, Step};
pub use cancel::{Cancel, CancelHandle, cancel_run};
pub use context_policy::ContextPolicy;
pub use engine::Engine;
pub use follow::{Follow, follow};
pub use fork::{Fork, Forked, fork_run};
pub use handle::{Decision, Run, Waiting};
pub use in_flight::InFlight;
pub use mynah_adapters as adapters;
pub use mynah_data::{
    AdapterReason, Breach, BreachTime, Budget, Catalog, ChatResult, Collector, Difference,
    EngineReason, Error, ErrorKind, Event, FieldError, FinishReason, HaltReason, Image, Limit,
    LogReason, MAX_RESULT, Message, Messages, Metadata, Mismatch, MismatchClass, ModelInfo,
    ModelRef, Operation, Part, Pricing, Request, Response, ResponseFormat, Result, Role, RunId,
    Session, SessionReason, SessionReducer, SessionRun, SessionState, Status, StepResult,
    StepThread, StreamReason, Thread, ToolCall, ToolChoice, ToolMode, ToolOutcome, ToolReason,
    ToolSpec, TurnResult, Usage, ValidationReason, decode, validate,
};
pub use mynah_log as log;
pub use mynah_macros::{tool, tools};
#[cfg(feature = "mcp")]
pub use mynah_mcp as mcp;
#[doc(hidden)]
pub use mynah_step::__private;
pub use mynah_step::{
    Adapter, BoxFuture, Continuation, EncodeError, ErrorPolicy, Fallback, Handler, HandlerExecutor,
    IntoOutcome, IntoTool, IntoTools, JsonEncoder, MetricsSink, ModelCall, ModelStream,
    OnUncertain, RetryPolicy, SideEffectErrors, SystemWorld, Tool, ToolContext, ToolExecutor,
    ToolFn, ToolProgress, ToolResultEncoder, ToolSet, World, differences, layers, schema_of,
    schemars, typed,
};
pub use options::Options;
pub use replay::{Replay, ReplayStatus, Replayed, Tools, replay_run};
pub use restore::{KeptCall, Restored, kept_call, restore_session, restore_turn};
pub use resume::Resume;
pub use run::{OnToolError, OnUnknownTool};
pub use run_event::{EventId, FollowedEvent, RunEvent};
pub use spec::{EngineRegistry, EngineSpec, ToolEntry};
pub use stream::EventStream;
pub use turn::{SessionStream, StepTurn, Turn};

/// For loops of one's own, and for adapters and tools of one's own.
///
/// [`Context`](step::Context) is the boundary of a run, and [`Config`](step::Config) what it runs with. The rest are the traits that a loop, an
/// adapter or a tool implements or calls.
pub mod step {
    pub use mynah_step::{
        Adapter, Backoff, BoxFuture, CallTool, Config, Context, DEFAULT_MAX_CONCURRENCY,
        EncodeError, ErrorPolicy, Fallback, Handler, HandlerExecutor, IntoOutcome, IntoTool,
        IntoTools, JsonEncoder, LEASE, MetricsSink, ModelAnswer, ModelCall, ModelStream,
        OnToolError, OnUncertain, RetryPolicy, RunMode, Settled, SideEffectErrors, SystemWorld,
        Tool, ToolContext, ToolExecutor, ToolFn, ToolLimits, ToolOutcome, ToolRegistry, ToolResult,
        ToolResultEncoder, ToolSet, World, differences, layers, open_model, run_tool, schema_of,
        schemars, take_over, typed,
    };
}

/// Everything a program usually needs: `use mynah::prelude::*;`.
pub mod prelude {
    pub use futures_util::StreamExt as _;

    #[cfg(feature = "sqlite")]
    pub use crate::log::SqliteLog;
    pub use crate::{
        Budget, CancelHandle, ChatResult, Engine, Error, Event, HaltReason, Message, OnToolError,
        OnUncertain, Request, Response, ResponseFormat, Result, RunId, Session, Status, StepResult,
        Thread, Tool, ToolCall, ToolContext, ToolMode, ToolOutcome,
        log::{Log, MemoryLog},
    };
}
