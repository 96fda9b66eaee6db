//! The bytes that `docs/format.md` shows are the bytes that are written.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers fail as tests do")]

use mynah_data::{Message, Response, Thread};
use mynah_log::{Body, Chain, Extent, Fact, Plan, Record, Seal, Totals, verify};

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
fn an_envelope_changed_into_another_sound_one_is_blamed_if_what_follows_vouches_for_the_next() {
    let times = |times: [i64; 4]| {
        let mut chain = Chain::new("run-1");
        times.map(|time| {
            let turn = Fact::TurnStarted { turn: 1, prompt: None };
            let started =
                Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
            let fact = if chain.head().is_none() { started } else { turn };
            chain.append(time, [7; 16], &fact).expect("a fact that can be encoded")
        })
    };
    let (records, other) = (times([0, 0, 0, 0]), times([0, 9, 0, 0]));
    let blamed = |records: &[&Record]| {
        verify("run-1", records.iter().copied()).map(|_| 0).map_err(|corrupt| corrupt.seq)
    };
    let [first, second, third, fourth] = &records;
    assert_eq!(blamed(&[first, &other[1], third, fourth]), Err(2));
    // A record whose own link was changed has no one who vouches for it.
    assert_eq!(blamed(&[first, second, &other[2], fourth]), Err(3));
    // At the end nobody vouches: either of the two may be the one.
    assert_eq!(blamed(&[first, &other[1], third]), Err(3));
    // And the time of the last record is known to nobody but itself.
    assert_eq!(blamed(&[first, &other[1]]), Ok(0));
}

#[test]
fn a_cost_that_is_not_a_number_is_not_recorded_and_totals_stay_finite() {
    let mut chain = Chain::new("run-1");
    let mut totals = Totals::default();
    let answer = |cost: f64| {
        let mut response = Response::new(Message::assistant("hi"));
        response.usage.total_cost = Some(cost);
        Fact::AssistantCompleted {
            response: Box::new(response),
            plan: Plan::Nothing,
            cuts: Vec::new(),
        }
    };
    let costs = [f64::NAN, f64::INFINITY, f64::MAX, f64::MAX, f64::NEG_INFINITY];
    let started =
        Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    let mut records = Vec::new();
    for fact in [started].into_iter().chain(costs.map(answer)) {
        records.push(chain.append(0, [7; 16], &fact).expect("a fact that can be encoded"));
        totals.count(&fact);
    }
    assert_eq!(totals.cost, f64::MAX);
    let Ok(Some(Fact::AssistantCompleted { response, .. })) = records[1].fact() else {
        panic!("an answer, not {:?}", records[1].fact());
    };
    assert_eq!(response.usage.total_cost, None);
    let seal = Fact::Sealed(Seal::new(chain.root(), totals));
    records.push(chain.append(0, [7; 16], &seal).expect("a fact that can be encoded"));
    assert_eq!(verify("run-1", &records).map(|report| report.status), Ok("verified"));
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
