//! The integration tests, as one program: it is compiled and linked once.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers fail as tests do")]

mod agents;
mod checks;
mod examples;
mod files;
mod goldens;
mod servers;
