//! The integration tests, as one program: it is compiled and linked once.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]

mod budget;
mod common;
mod concurrency;
mod config;
mod effects;
mod idempotency;
mod json_schema_suite;
mod layers;
mod model;
mod own_runs;
mod recorder;
mod resume;
mod sleep;
mod tools;
#[cfg(all(feature = "json-schema", feature = "typed"))]
mod typed;
mod unavailable_log;
mod values;
