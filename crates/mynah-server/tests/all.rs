//! The integration tests, as one program: it is compiled and linked once.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers fail as tests do")]

mod actions;
mod client;
mod common;
mod forks;
mod guard;
mod metrics;
mod read;
mod search;
mod signals;
mod streams;
