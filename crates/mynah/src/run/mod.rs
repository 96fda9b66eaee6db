//! One run: a machine that decides, a door through which the world or the records answer, and a driver between them.
//!
//! The [`machine`] has no async, no I/O and no clock: inputs in; facts, events and the next action out. Its [`state`] is a fold
//! of facts and nothing else, and what comes next ([`decide`]) is a pure function of it. Everything non-deterministic enters
//! as an [`input`] through the [`door`]: [`live`] calls models and tools, [`replayed`] answers from records. The [`driver`] is
//! the stream that a caller polls.

mod decide;
mod door;
mod driver;
mod input;
mod live;
mod machine;
#[cfg(test)]
mod machine_tests;
mod open_turn;
mod part_writer;
mod progress;
mod replayed;
mod setup;
mod state;
mod tell;
#[cfg(test)]
mod tests;

pub use decide::OnUnknownTool;
pub(crate) use decide::{ApprovalPolicy, HaltWhen, Policy};
pub(crate) use driver::Driver;
pub(crate) use mynah_step::OnToolError;
pub(crate) use setup::{Observer, Resumption, RunStart, Setup};
pub(crate) use state::{RunState, interrupted};
pub(crate) use tell::tell;
