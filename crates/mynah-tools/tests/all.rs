//! The integration tests, as one program: it is compiled and linked once.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]

mod calculator;
mod common;
mod fetch;
mod files;
mod hostile;
mod shell;
mod small;
