#![doc = include_str!("../docs/mynah.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]

mod alone;
#[cfg(feature = "typed")]
mod answer;
mod call;
mod cancel;
#[cfg(feature = "client")]
pub mod client;
mod code;
mod context_policy;
mod engine;
mod follow;
mod fork;
mod handle;
mod in_flight;
mod linked;
mod loaded;
mod mailbox;
mod options;
mod prepare;
mod recorded_tools;
mod replay;
mod restore;
mod resume;
mod run;
mod run_event;
mod spec;
mod start;
mod stream;
mod subagent;
pub mod testing;
mod turn;
mod values;
mod worker;

#[cfg(feature = "typed")]
pub use answer::{Answer, AnswerStream};
pub use call::{Chat, Generate, Step};
pub use cancel::{Cancel, CancelHandle, cancel_run};
pub use context_policy::ContextPolicy;
pub use engine::Engine;
pub use follow::{Follow, follow};
pub use fork::{Fork, Forked, fork_run};
pub use handle::{Decision, Run, Waiting};
pub use in_flight::InFlight;
#[doc(hidden)]
pub use linked::{check_own_id, next_id};
#[doc(inline)]
pub use mynah_adapters as adapters;
#[doc(hidden)]
pub use mynah_data::unfenced;
#[doc(inline)]
pub use mynah_data::{
    AdapterReason, Approval, Breach, BreachTime, Budget, CacheRetention, Catalog, ChatResult,
    Collector, Difference, EngineReason, Error, ErrorKind, Event, EventOrder, FieldError,
    FinishReason, HANDOFF, HaltReason, Image, ImageDetail, ImageError, ImageSource, Limit,
    LogReason, LongPrompt, Message, Messages, Metadata, Mismatch, MismatchClass, ModelInfo,
    ModelRef, Operation, Part, PathSegment, Pricing, PromptCache, Request, Response,
    ResponseFormat, Result, Role, RunId, Session, SessionReason, SessionReducer, SessionRun,
    SessionState, Status, StepResult, StepThread, StreamReason, Thread, ToolCall, ToolChoice,
    ToolMode, ToolOutcome, ToolReason, ToolSpec, TurnResult, Usage, ValidationReason, Wait, decode,
    validate,
};
#[cfg(feature = "typed")]
#[doc(inline)]
pub use mynah_macros::{tool, tools};
#[cfg(feature = "mcp")]
#[doc(inline)]
pub use mynah_mcp as mcp;
#[doc(hidden)]
#[cfg(feature = "typed")]
pub use mynah_step::__private;
#[doc(hidden)]
pub use mynah_step::differences;
#[cfg(feature = "json-schema")]
#[doc(hidden)]
pub use mynah_step::misfits;
#[doc(inline)]
pub use mynah_step::{
    Adapter, BoxFuture, Continuation, EncodeError, Fallback, Handler, HandlerExecutor, IntoOutcome,
    IntoTool, IntoTools, JsonEncoder, MetricsSink, ModelCall, ModelStream, OnToolError,
    OnUncertain, RetryPolicy, SideEffectErrors, SystemWorld, Tool, ToolContext, ToolErrorDecision,
    ToolExecutor, ToolFn, ToolProgress, ToolResultEncoder, ToolSet, World, layers,
};
#[cfg(feature = "typed")]
pub use mynah_step::{schema_of, schemars};
#[cfg(feature = "tools")]
pub use mynah_tools as tools;
pub use options::Options;
pub use recorded_tools::RecordedTools;
#[doc(hidden)]
pub use recorded_tools::UnknownCall;
pub use replay::{Replay, ReplayStatus, Replayed, Tools, replay_run};
pub use restore::{RecordedCall, Restored, recorded_call, restore_session, restore_turn};
pub use resume::Resume;
pub use run::OnUnknownTool;
pub use run_event::{EventId, FollowedEvent, RunEvent};
pub use spec::{EngineRegistry, EngineSpec, ToolEntry};
pub use stream::EventStream;
pub use turn::{SessionStream, StepTurn, Turn};
pub use worker::{Signal, Worker, WorkerReport, deliver};

/// What happened in a run, as data, and where it is stored: facts, records, logs and verification.
pub mod log {
    #[doc(inline)]
    pub use mynah_log::*;
    #[cfg(feature = "sqlite")]
    #[doc(inline)]
    pub use mynah_sqlite::SqliteLog;
}

/// For custom loops.
///
/// [`Context`](step::Context) is the boundary of a run, and [`Config`](step::Config) what it runs with. Loops, adapters and tools share the
/// traits at the root of the crate.
pub mod step {
    #[doc(inline)]
    pub use mynah_step::{
        AppendMetric, CallTool, Config, Context, ModelAnswer, ModelCallMetric, RunMode,
        ToolCallMetric, ToolResult, markers,
    };
}

/// Compiles the code of the README and the book.
#[cfg(all(
    doctest,
    feature = "client",
    feature = "http",
    feature = "mcp",
    feature = "sqlite",
    feature = "tools",
    feature = "typed"
))]
mod book {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/context.md")]
    mod context {}
    #[doc = include_str!("../../../docs/crashes.md")]
    mod crashes {}
    #[doc = include_str!("../../../docs/errors.md")]
    mod errors {}
    #[doc = include_str!("../../../docs/mcp.md")]
    mod mcp {}
    #[doc = include_str!("../../../docs/providers.md")]
    mod providers {}
    #[doc = include_str!("../../../docs/quickstart.md")]
    mod quickstart {}
    #[doc = include_str!("../../../docs/recording.md")]
    mod recording {}
    #[doc = include_str!("../../../docs/server.md")]
    mod server {}
    #[doc = include_str!("../../../docs/streaming.md")]
    mod streaming {}
    #[doc = include_str!("../../../docs/structured-output.md")]
    mod structured_output {}
    #[doc = include_str!("../../../docs/subagents.md")]
    mod subagents {}
    #[doc = include_str!("../../../docs/tools.md")]
    mod tools {}
    #[doc = include_str!("../../../docs/workers.md")]
    mod workers {}
}

/// Everything a program usually needs: `use mynah::prelude::*;`.
pub mod prelude {
    pub use futures_util::StreamExt as _;

    #[cfg(feature = "sqlite")]
    pub use crate::log::SqliteLog;
    pub use crate::{
        AdapterReason, Approval, Budget, CancelHandle, ChatResult, Decision, Engine, Error,
        ErrorKind, Event, EventStream, Fallback, HaltReason, Message, OnToolError, OnUncertain,
        Options, Request, Response, ResponseFormat, Result, RetryPolicy, RunId, Session, Status,
        StepResult, Thread, Tool, ToolCall, ToolChoice, ToolContext, ToolErrorDecision, ToolMode,
        ToolOutcome, Waiting,
        log::{Log, MemoryLog, verify_run},
    };
}
