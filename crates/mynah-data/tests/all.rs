//! The integration tests, as one program: it is compiled and linked once.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]

mod allocations;
mod budget;
mod common;
mod contract_collector;
mod contract_data;
mod contract_json;
mod contract_reducer;
mod contract_session_data;
mod contract_validation;
mod errors;
mod event_order;
mod linear_json;
#[path = "common/mutate.rs"]
mod mutate;
mod newer_json;
mod properties;
#[path = "common/strategies.rs"]
mod strategies;
#[path = "common/streams.rs"]
mod streams;
