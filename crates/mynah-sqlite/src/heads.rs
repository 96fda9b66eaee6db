//! Where the records of a run end and what they come to.
//!
//! Every append writes this, so it is a row of its own, and packed into a single column: a fraction of the work that a column
//! for each would be, and the rows of the runs that grow side by side share a page.

use mynah_log::{Hash, Head, Totals};
use rusqlite::{Error, Row, types::Type};

use crate::{keys::Recent, row::blob, varint};

/// The time of the newest record, its hash and the cost (eight bytes, thirty-two and eight), how many records there are and of
/// what, and then the keys of the newest.
pub(crate) fn pack(updated: i64, head: Head, totals: &Totals, recent: &[u8]) -> Vec<u8> {
    let Totals { turns, tool_calls, input_tokens, output_tokens, cost, .. } = *totals;
    let mut state = Vec::with_capacity(100 + recent.len());
    state.extend(updated.to_be_bytes());
    state.extend(head.hash.0);
    state.extend(cost.to_be_bytes());
    for count in [head.seq, turns, tool_calls, input_tokens, output_tokens] {
        varint::push(&mut state, count);
    }
    state.extend_from_slice(recent);
    state
}

pub(crate) struct State {
    pub(crate) updated: i64,
    pub(crate) head: Head,
    pub(crate) totals: Totals,
    pub(crate) recent: Recent,
}

/// Reads it from a row.
pub(crate) fn read(row: &Row<'_>, column: usize) -> rusqlite::Result<State> {
    let unsound = || Error::InvalidColumnType(column, "state".to_owned(), Type::Blob);
    unpack(blob(row, column)?).ok_or_else(unsound)
}

fn unpack(state: &[u8]) -> Option<State> {
    let (updated, state) = state.split_first_chunk()?;
    let (hash, state) = state.split_first_chunk()?;
    let (cost, mut state) = state.split_first_chunk()?;
    let mut count = || varint::pull(&mut state);
    // No more than can be numbered, with one to come.
    let records = count().filter(|records| *records < i64::MAX.cast_unsigned())?;
    let mut totals = Totals::default();
    totals.turns = count()?;
    totals.tool_calls = count()?;
    totals.input_tokens = count()?;
    totals.output_tokens = count()?;
    totals.cost = f64::from_be_bytes(*cost);
    Some(State {
        updated: i64::from_be_bytes(*updated),
        head: Head { seq: records, hash: Hash(*hash) },
        totals,
        recent: Recent::from_bytes(state, records)?,
    })
}
