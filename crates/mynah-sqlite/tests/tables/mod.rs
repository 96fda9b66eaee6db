//! The rows of a log's tables, as anyone can read and write them.
#![allow(dead_code, clippy::expect_used, reason = "each test uses some of it, and fails with it")]

use rusqlite::{Connection, params};

/// What a row of `heads` has packed in its one column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) updated: i64,
    pub(crate) hash: Vec<u8>,
    pub(crate) cost: f64,
    pub(crate) records: u64,
    pub(crate) turns: u64,
    pub(crate) tool_calls: u64,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    /// Where the newest records are.
    pub(crate) keys: Vec<i64>,
}

impl Head {
    pub(crate) fn read(raw: &Connection, run: &str) -> Self {
        let state = format!("SELECT state FROM heads WHERE {}", row_of(run));
        let state: Vec<u8> = raw.query_row(&state, [], |row| row.get(0)).expect("a row");
        let (updated, state) = state.split_first_chunk().expect("a time");
        let (hash, state) = state.split_at(32);
        let (cost, state) = state.split_first_chunk().expect("a cost");
        let mut numbers = numbers(state).into_iter();
        let mut count = || numbers.next().expect("a number");
        Self {
            updated: i64::from_be_bytes(*updated),
            hash: hash.to_vec(),
            cost: f64::from_be_bytes(*cost),
            records: count(),
            turns: count(),
            tool_calls: count(),
            input_tokens: count(),
            output_tokens: count(),
            keys: keys(numbers),
        }
    }

    pub(crate) fn write(&self, raw: &Connection, run: &str) {
        let Self { updated, hash, cost, .. } = self;
        let mut state = [&updated.to_be_bytes()[..], hash, &cost.to_be_bytes()].concat();
        let counts = [self.records, self.turns, self.tool_calls];
        let tokens = [self.input_tokens, self.output_tokens];
        state.extend(packed(counts.into_iter().chain(tokens)));
        state.extend(packed_keys(&self.keys));
        let replace = "REPLACE INTO heads SELECT key, ?2 FROM runs WHERE id = ?1";
        assert_eq!(raw.execute(replace, params![run, state]), Ok(1));
    }

    /// Changes what a run's row has.
    pub(crate) fn change(raw: &Connection, run: &str, change: impl FnOnce(&mut Self)) {
        let mut head = Self::read(raw, run);
        change(&mut head);
        head.write(raw, run);
    }
}

/// The condition for a run's row of `heads`.
pub(crate) fn row_of(run: &str) -> String {
    format!("run = (SELECT key FROM runs WHERE id = '{run}')")
}

/// Keys are packed by how much each is greater than the one before.
fn keys(steps: impl IntoIterator<Item = u64>) -> Vec<i64> {
    let add = |last: &mut i64, step: u64| {
        *last = last.wrapping_add(step.cast_signed());
        Some(*last)
    };
    steps.into_iter().scan(0, add).collect()
}

fn packed_keys(keys: &[i64]) -> Vec<u8> {
    let before = [0].into_iter().chain(keys.iter().copied());
    packed(keys.iter().zip(before).map(|(key, before)| key.wrapping_sub(before).cast_unsigned()))
}

/// Seven bits a byte, the lowest first.
fn packed(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut number in numbers {
        while number >= 128 {
            bytes.push((number % 128) as u8 + 128);
            number /= 128;
        }
        bytes.push(number as u8);
    }
    bytes
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (mut numbers, mut number, mut bits) = (Vec::new(), 0, 0);
    for byte in bytes {
        number |= u64::from(byte % 128) << bits;
        bits += 7;
        if *byte < 128 {
            numbers.push(number);
            (number, bits) = (0, 0);
        }
    }
    numbers
}
