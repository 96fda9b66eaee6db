//! The integration tests, as one program: it is compiled and linked once.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers fail as tests do")]

mod columns;
mod conformance;
mod hostile;
mod removal;
mod sqlite;
mod tables;
mod tamper;
mod targets;
