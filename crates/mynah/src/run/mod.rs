//! One run: what is known ([`state`]), what comes next ([`decide`]), and who makes it happen ([`driver`]).
//!
//! The state is a fold of facts and nothing else. What comes next is a pure function of the state and the policy. Both
//! are tested without a runtime, a clock or a provider. The driver is the stream that a caller polls.

mod budget;
mod decide;
mod driver;
mod interrupt;
mod model;
mod settle;
mod state;
#[cfg(test)]
mod tests;
mod tools;

pub(crate) use budget::Meter;
pub use decide::OnUnknownTool;
pub(crate) use decide::{Finalize, HaltWhen, Policy};
pub(crate) use driver::{Beginning, Driver, Observer, Resumption, Setup};
pub(crate) use settle::ErrorPolicy;
pub use settle::OnToolError;
pub(crate) use state::RunState;
