//! The boundary: the one place where non-determinism enters a run.
//!
//! Time and randomness come from a [`World`]. Answers come from an [`Adapter`], which implements
//! one provider's wire format. Everything else that a model can request is a [`Tool`]. The loop
//! above decides, and this crate acts: it opens a model's stream under a [`RetryPolicy`], runs a
//! call with its time limit and retries, and contains its panics. [`Context`] is the boundary for
//! loops of others.
//!
//! Adapters and tools can be written outside the project: both are small traits behind `Arc<dyn …>`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]

mod adapter;
mod alone;
mod budget;
mod config;
mod context;
mod crashes;
mod cursor;
#[cfg(feature = "typed")]
mod derived;
mod difference;
mod effects;
mod fallback;
mod heartbeat;
mod incoming_answer;
mod journal;
pub mod layers;
mod lease;
mod metrics;
#[cfg(feature = "json-schema")]
mod misfits;
#[cfg(feature = "json-schema")]
mod nulls;
mod process;
mod recorded_fact;
mod recorder;
mod retry;
mod schema_check;
mod settle;
mod tool;
mod tool_context;
mod typed;
mod uncertain;
mod world;

pub use adapter::{Adapter, BoxFuture, ModelCall, ModelStream};
pub use config::{Config, RunMode};
pub use context::{CallTool, Context, ModelAnswer, ToolResult};
#[doc(hidden)]
#[cfg(feature = "typed")]
pub use derived::private as __private;
#[cfg(feature = "typed")]
pub use derived::schema_of;
pub use effects::SideEffectErrors;
pub use fallback::Fallback;
pub use metrics::{AppendMetric, MetricsSink, ModelCallMetric, ToolCallMetric};
pub use mynah_data::{Approval, ToolOutcome};
pub use mynah_log::OnUncertain;
pub use retry::RetryPolicy;
#[cfg(feature = "typed")]
pub use schemars;
pub use settle::{OnToolError, ToolErrorDecision};
pub use tool::{
    EncodeError, Handler, HandlerExecutor, JsonEncoder, Tool, ToolExecutor, ToolResultEncoder,
};
pub use tool_context::{Continuation, ToolContext, ToolProgress};
pub use typed::{IntoOutcome, IntoTool, IntoTools, ToolFn, ToolSet};
pub use world::{SystemWorld, World};

/// Markers of [`IntoOutcome`], which tell apart the types that a handler may return. They are inferred, and named only for an error that is
/// both an [`Error`](std::error::Error) and `Serialize`.
pub mod markers {
    pub use crate::typed::{Boxed, Fallible, Plain};
}

// What the engine shares with `Context`. It is no part of the API, and may change with any release.
#[doc(hidden)]
pub use self::{
    adapter::{Opened, Parking, open_model, open_or_park},
    budget::{Spent, WallClock, active, check_price, price_of, prompt_tokens},
    config::was_redacted,
    crashes::Crashes,
    cursor::{ReplayCursor, is_fresh_branch, outcome_of},
    difference::{differences, mismatch, recorded_error},
    heartbeat::{KeptLease, Moment},
    incoming_answer::IncomingAnswer,
    journal::Journal,
    lease::{Contact, LEASE, take_over},
    metrics::{Watch, tell_exceeded},
    recorded_fact::RecordedFact,
    recorder::{Recorder, new_owner},
    schema_check::schema_error,
    settle::settle,
    tool::{Settled, ToolLimits, denied, run_tool, tool_failed},
    tool_context::Try,
    uncertain::{is_not_rerun, reruns_lost, uncertain},
    world::{millis, since_1970},
};
#[doc(hidden)]
#[cfg(feature = "json-schema")]
pub use misfits::misfits;

mynah_data::partial_debug! {
    IncomingAnswer {} Journal {} Opened {} Recorder {} ReplayCursor {} WallClock {} Watch {}
}
