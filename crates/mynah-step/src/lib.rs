//! The boundary: the one place where non-determinism enters a run.
//!
//! Time and chance come from a [`World`]. Answers come from an [`Adapter`], which speaks one provider's wire format.
//! Everything else a model can ask for is a [`Tool`]. The loop above decides what is to happen and this crate makes it
//! happen: [`open_model`] opens a model's stream under a [`RetryPolicy`], [`run_tool`] runs one call with its time limit,
//! its tries and its panics contained.
//!
//! Adapters and tools can be written outside the project: both are small traits behind `Arc<dyn …>`.

mod adapter;
mod retry;
mod tape;
mod tool;
mod world;

pub use adapter::{Adapter, BoxFuture, ModelCall, ModelStream, open_model};
pub use retry::RetryPolicy;
pub use tape::{LEASE, Recorded, Recorder, Tape, nanos, new_owner};
pub use tool::{
    EncodeError, Handler, HandlerExecutor, JsonEncoder, Settled, Tool, ToolContext, ToolExecutor,
    ToolLimits, ToolResultEncoder, panic_text, run_tool,
};
pub use world::{SystemWorld, World};
