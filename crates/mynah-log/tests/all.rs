//! The integration tests, as one program: it is compiled and linked once.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers fail as tests do")]

mod bundle;
mod conformance;
mod cuts;
mod format;
mod hostile;
mod packed;
mod record_contract;
mod targets;
mod vectors;
