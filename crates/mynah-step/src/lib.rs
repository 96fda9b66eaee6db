//! The boundary: the one place where non-determinism enters a run.
//!
//! Time and randomness come from a [`World`]. Answers come from an [`Adapter`], which implements
//! one provider's wire format. Everything else that a model can request is a [`Tool`]. The loop
//! above decides, and this crate acts: [`open_model`] opens a model's stream under a
//! [`RetryPolicy`]; [`run_tool`] runs one call with its time limit and retries, and contains its
//! panics.
//!
//! Adapters and tools can be written outside the project: both are small traits behind `Arc<dyn …>`.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod adapter;
mod alone;
mod budget;
mod config;
mod context;
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
#[cfg(feature = "typed")]
mod misplaced;
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
pub mod typed;
mod uncertain;
mod world;

pub use adapter::{
    Adapter, BoxFuture, ModelCall, ModelStream, Opened, Parking, check_raw_hash, open_model,
    open_or_park,
};
pub use budget::{PartialAnswer, Spent, WallClock, active, check_price, price_of, prompt_tokens};
pub use config::{Config, DEFAULT_MAX_CONCURRENCY, RunMode, ToolRegistry, was_redacted};
pub use context::{CallTool, Context, ModelAnswer, ToolResult};
pub use cursor::{ReplayCursor, outcome_of};
#[doc(hidden)]
#[cfg(feature = "typed")]
pub use derived::private as __private;
#[cfg(feature = "typed")]
pub use derived::schema_of;
pub use difference::{differences, mismatch, recorded_error};
pub use effects::SideEffectErrors;
pub use fallback::Fallback;
pub use incoming_answer::IncomingAnswer;
pub use journal::{Journal, State as JournalState};
pub use lease::{LEASE, take_over};
pub use metrics::{
    AppendMetric, MetricsSink, ModelCallMetric, ToolCallMetric, Watch, tell_exceeded,
};
#[cfg(feature = "json-schema")]
pub use misfits::misfits;
pub use mynah_data::{Approval, ToolOutcome};
pub use mynah_log::OnUncertain;
pub use recorded_fact::RecordedFact;
pub use recorder::{Recorder, new_owner};
pub use retry::RetryPolicy;
#[cfg(feature = "typed")]
pub use schemars;
pub use settle::{ErrorPolicy, OnToolError, settle};
pub use tool::{
    Backoff, EncodeError, Handler, HandlerExecutor, JsonEncoder, Settled, Tool, ToolExecutor,
    ToolLimits, ToolResultEncoder, denied, panic_text, run_tool, tool_failed,
};
pub use tool_context::{Continuation, ToolContext, ToolProgress, Try};
pub use typed::{IntoOutcome, IntoTool, IntoTools, ToolFn, ToolSet};
pub use uncertain::{is_not_rerun, reruns_lost, uncertain};
pub use world::{SystemWorld, World, millis, since_1970};
