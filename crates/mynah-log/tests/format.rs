//! The bytes that `docs/format.md` shows are the bytes that are written.

#![allow(clippy::expect_used, reason = "helpers fail as tests do")]

use mynah_data::Thread;
use mynah_log::{Body, Chain, Extent, Fact, Record, Seal, Totals, verify};

#[test]
fn the_vector_of_the_format_is_what_is_written() {
    let page = include_str!("../../../docs/format.md");
    let shown: Vec<(&str, &str)> = page.lines().filter_map(|line| line.split_once(" = ")).collect();
    for (name, hex) in vector() {
        let found = shown.iter().find(|(shown, _)| shown.trim() == name).map(|(_, hex)| *hex);
        assert_eq!(found, Some(hex.as_str()), "{name} = {hex}");
    }
}

#[test]
fn the_vector_of_the_format_verifies_and_a_changed_byte_does_not() {
    let records = records();
    assert_eq!(verify("run-1", &records).map(|report| report.records), Ok(2));
    let body = records[1].body().cloned().expect("a body");
    for index in 0..records[1].envelope_bytes().len() {
        let mut bytes = records[1].envelope_bytes().to_vec();
        bytes[index] ^= 1;
        let changed = Record::from_parts(bytes, Some(Body { ..body.clone() }));
        let found = changed
            .map_or_else(|_| true, |record| verify("run-1", [&records[0], &record]).is_err());
        // The time is the one thing that only the next record, or the seal, vouches for.
        let time = records[1]
            .envelope_bytes()
            .windows(3)
            .position(|key| key == b"bts")
            .map_or(0, |at| at + 3);
        assert!(found || index == time, "byte {index}");
    }
}

#[test]
fn a_seal_whose_body_was_taken_away_is_corrupt() {
    let mut chain = Chain::new("run-1");
    let started =
        Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    let first = chain.append(0, [7; 16], &started).expect("a fact that can be encoded");
    let seal = Fact::Sealed(Seal::new(chain.root(), Totals::default()));
    let seal = chain.append(0, [7; 16], &seal).expect("a fact that can be encoded");
    assert_eq!(verify("run-1", [&first, &seal]).map(|report| report.status), Ok("verified"));
    let found = verify("run-1", [&first, &seal.without_body()]);
    assert_eq!(found.map_err(|corrupt| corrupt.seq), Err(2));
}

fn records() -> [Record; 2] {
    let mut chain = Chain::new("run-1");
    let started =
        Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    let mut append =
        |fact: &Fact| chain.append(0, [7; 16], fact).expect("a fact that can be encoded");
    [append(&started), append(&Fact::TurnStarted { turn: 1, prompt: None })]
}

fn vector() -> Vec<(String, String)> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut lines = Vec::new();
    for (index, record) in records().iter().enumerate() {
        let body = record.body().expect("a body");
        lines.push((format!("payload {}", index + 1), hex(&body.payload)));
        lines.push((format!("envelope {}", index + 1), hex(record.envelope_bytes())));
        lines.push((format!("hash {}", index + 1), record.hash().to_string()));
    }
    let leaves = records().map(|record| record.leaf());
    lines.push(("root of both".to_owned(), mynah_log::merkle::root(&leaves).to_string()));
    lines
}
