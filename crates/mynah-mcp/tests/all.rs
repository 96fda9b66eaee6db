//! The integration tests, as one program: it is compiled and linked once.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]

mod common;
mod hostile;
mod killed;
mod real;
mod serve;
