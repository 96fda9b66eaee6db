//! What the fuzzer calls with any bytes: the functions that `cargo test` calls with some.

#[path = "../../crates/mynah-adapters/tests/targets/mod.rs"]
mod answers;
#[path = "../../crates/mynah-log/tests/targets/mod.rs"]
mod records;
#[path = "../../crates/mynah-sqlite/tests/targets/mod.rs"]
mod sqlite;

pub use answers::{answer, event_stream, lines, sse};
pub use records::{bundle, cbor, record};
pub use sqlite::rows;
