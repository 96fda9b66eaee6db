//! What the fuzzer calls with any bytes: the functions that `cargo test` calls with some.

#[path = "../../crates/mynah-log/tests/targets/mod.rs"]
mod records;

pub use records::{bundle, cbor, record, rows};
