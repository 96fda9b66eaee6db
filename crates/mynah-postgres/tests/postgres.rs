//! The integration tests, as one program: it is compiled and linked once.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers fail as tests do")]

mod conformance;
mod connect;
mod failures;
mod outage;
mod roles;
mod seals;
mod server;
mod tamper;
mod workers;
