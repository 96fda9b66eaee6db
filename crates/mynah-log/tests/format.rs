//! The bytes that `docs/format.md` shows are the bytes that are written.

use mynah_log::VerifyStatus;
use std::{fmt::Display, sync::Arc};

use mynah_data::{
    Breach, BreachTime, EngineReason, Error, HaltReason, Limit, Message, Metadata, Response,
    Thread, ToolOutcome,
};
use mynah_log::{
    Body, Chain, Effect, End, Extent, Fact, Hash, MAINTENANCE, Plan, Record, Removed, Seal,
    Stripped, Tombstone, Totals, conformance::Sample, merkle, verify,
};
use serde_json::Value;

#[test]
fn the_vectors_of_the_format_are_what_is_written() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format.md");
    let page = std::fs::read_to_string(path).expect("the page");
    if std::env::var_os("MYNAH_WRITE_VECTORS").is_some() {
        let written = vectors();
        let line = |line: &str| match line.split_once(" = ") {
            Some((name, _)) => match written.iter().find(|(written, _)| written == name.trim()) {
                Some((name, value)) => format!("{name} = {value}\n"),
                None => format!("{line}\n"),
            },
            None => format!("{line}\n"),
        };
        std::fs::write(path, page.lines().map(line).collect::<String>()).expect("a file");
        return;
    }
    let shown: Vec<(&str, &str)> = page.lines().filter_map(|line| line.split_once(" = ")).collect();
    for (name, value) in vectors() {
        let found = shown.iter().find(|(shown, _)| shown.trim() == name).map(|(_, value)| *value);
        assert_eq!(found, Some(value.as_str()), "{name} = {value}");
    }
}

#[test]
fn the_vector_of_the_format_verifies_and_a_changed_byte_does_not() {
    let records = first();
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
            let turn = Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 };
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
    // Nothing confirms the end: either of the two may have been changed.
    assert_eq!(blamed(&[first, &other[1], third]), Err(3));
    // And nothing repeats the time of the last record.
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
            duration_ms: None,
            first_token_ms: None,
        }
    };
    let costs = [f64::NAN, f64::INFINITY, f64::MAX, f64::MAX, f64::NEG_INFINITY];
    let started =
        Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    let mut records = Vec::new();
    for fact in [started].into_iter().chain(costs.map(answer)) {
        let record = chain.append(0, [7; 16], &fact).expect("a fact that can be encoded");
        totals.add(record.adds());
        records.push(record);
    }
    assert_eq!(totals.cost, f64::MAX);
    let Ok(Some(Fact::AssistantCompleted { response, .. })) = records[1].fact() else {
        panic!("an answer, not {:?}", records[1].fact());
    };
    assert_eq!(response.usage.total_cost, None);
    let seal = Fact::Sealed(Seal::new(chain.root(), totals));
    records.push(chain.append(0, [7; 16], &seal).expect("a fact that can be encoded"));
    assert_eq!(verify("run-1", &records).map(|report| report.status), Ok(VerifyStatus::Verified));
}

#[test]
fn a_stored_record_adds_what_its_fact_did() {
    let mut answer = Response::new(Message::assistant("hi"));
    answer.model = Some("m".to_owned());
    let usage = &mut answer.usage;
    (usage.input_tokens, usage.output_tokens, usage.total_cost) = (Some(3), Some(5), Some(0.25));
    let (answer, of_answer) = (Box::new(answer), (0, 0, 3, 5, 0.25));
    let partial = || Some(answer.clone());
    let call_id = || "c0".to_owned();
    let scheduled = |attempt| Fact::ToolScheduled { call_id: call_id(), attempt, call: None };
    let breach = Breach::new(Limit::Turns, 1, 2, BreachTime::PreCall);
    let end = || End::new(HaltReason::Cancelled, Metadata::new());
    let facts = [
        (
            Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None },
            (0, 0, 0, 0, 0.0),
        ),
        (Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 9 }, (1, 0, 0, 0, 0.0)),
        (
            Fact::TurnLost { turn: 1, input_tokens: 9, cost: Some(0.5), given_up: false },
            (0, 0, 9, 0, 0.5),
        ),
        (
            Fact::AssistantCompleted {
                response: answer.clone(),
                plan: Plan::Nothing,
                cuts: Vec::new(),
                duration_ms: None,
                first_token_ms: None,
            },
            of_answer,
        ),
        (scheduled(1), (0, 1, 0, 0, 0.0)),
        (scheduled(2), (0, 0, 0, 0, 0.0)),
        (
            Fact::ContextTruncated {
                strategy: "summarise".to_owned(),
                tokens_before: 9,
                tokens_after: 1,
                messages_before: 9,
                messages_after: 1,
                dropped: 8,
                cleared: 0,
                summary: partial(),
            },
            of_answer,
        ),
        (Fact::BudgetExceeded { breach, partial: partial(), cuts: Vec::new() }, of_answer),
        (Fact::Cancelled { end: end(), partial: partial(), cuts: Vec::new() }, of_answer),
        (Fact::Completed(end()), (0, 0, 0, 0, 0.0)),
    ];
    for (fact, adds) in facts {
        let made = Chain::new("run-1").append(0, [7; 16], &fact).expect("a record");
        let envelope = Arc::clone(made.envelope_bytes());
        let stored = Record::from_parts(envelope, made.body().cloned()).expect("a record");
        for record in [made, stored] {
            let Totals { turns, tool_calls, input_tokens, output_tokens, cost, .. } =
                *record.adds();
            let added = (turns, tool_calls, input_tokens, output_tokens, cost);
            assert_eq!(added, adds, "{}", record.kind());
        }
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
    assert_eq!(
        verify("run-1", [&first, &seal]).map(|report| report.status),
        Ok(VerifyStatus::Verified)
    );
    let found = verify("run-1", [&first, &seal.without_body()]);
    assert_eq!(found.map_err(|corrupt| corrupt.seq), Err(2));
}

#[test]
fn free_form_json_is_stored_as_its_text_and_keeps_the_order_of_its_members() {
    let written = r#"{"z":{"y":1,"b":[{"d":-0.0,"c":1e2}]},"a":null}"#;
    let value: Value = serde_json::from_str(written).expect("JSON");
    let members: Metadata = serde_json::from_str(written).expect("JSON");
    let end = End::new(HaltReason::Completed, members);
    let outcome = |outcome| Fact::ToolCompleted {
        call_id: "c0".to_owned(),
        attempt: 1,
        outcome,
        content: String::new(),
        duration_ms: None,
    };
    let effect = Effect::Done(value.clone());
    for fact in [
        outcome(ToolOutcome::Ok(value.clone())),
        outcome(ToolOutcome::error(value.clone())),
        outcome(ToolOutcome::halt("mine", value.clone())),
        Fact::SideEffect { inside: None, name: "fetch".to_owned(), ahead: 0, effect },
        Fact::Completed(end),
        Fact::UserMessage {
            message: Arc::new(Message::user("hi").with_metadata("more", value.clone())),
        },
        Fact::FinalizeFailed {
            error: Error::engine(EngineReason::MissingAdapter).with("more", value),
        },
    ] {
        let record = Chain::new("run").append(0, [0; 16], &fact).expect("a record");
        let payload = &record.body().expect("a body").payload;
        let text = serde_json::to_string(&serde_json::from_str::<Value>(written).expect("JSON"));
        let text = text.expect("JSON");
        let stands = |text: &[u8]| payload.windows(text.len()).any(|bytes| bytes == text);
        assert!(stands(text.as_bytes()), "{fact:?}");
        let back = record.fact().expect("a fact").expect("a body");
        assert_eq!(serde_json::to_string(&back).ok(), serde_json::to_string(&fact).ok());
        assert!(serde_json::to_string(&fact).is_ok_and(|shown| shown.contains(&text)), "nested");
    }
}

#[test]
fn json_that_nests_too_deep_to_be_read_again_is_not_recorded() {
    let nested =
        |levels| (0..levels).fold(serde_json::json!("[[{"), |value, _| serde_json::json!([value]));
    let fact = |levels| Fact::SideEffect {
        inside: None,
        name: "deep".to_owned(),
        ahead: 0,
        effect: Effect::Done(nested(levels)),
    };
    let record = Chain::new("run").append(0, [0; 16], &fact(127)).expect("a record");
    assert_eq!(record.fact().expect("a fact"), Some(fact(127)));
    assert!(Chain::new("run").append(0, [0; 16], &fact(128)).is_err());
}

/// A run of two records, without an end.
fn first() -> Vec<Record> {
    let started =
        Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    chained(
        "run-1",
        [7; 16],
        [started, Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 }],
    )
}

/// A run with a tool call, and its seal.
fn second() -> Vec<Record> {
    let facts = Sample::new("run-2", 0).tool_turn().sealed().take();
    let facts = facts.iter().map(|record| record.fact().expect("a fact").expect("a body"));
    let facts: Vec<Fact> = facts.filter(|fact| !matches!(fact, Fact::Sealed(_))).collect();
    let records = chained("run-2", [7; 16], facts.clone());
    let mut totals = Totals::default();
    records.iter().for_each(|record| totals.add(record.adds()));
    let leaves: Vec<Hash> = records.iter().map(Record::leaf).collect();
    let seal = Fact::Sealed(Seal::new(merkle::root(&leaves), totals));
    chained("run-2", [7; 16], facts.into_iter().chain([seal]))
}

/// A body of the second run was removed, then the whole run.
fn removals() -> Vec<Record> {
    let records = second();
    let bury = |removed| {
        let (by, reason) = ("ann".to_owned(), "age".to_owned());
        Fact::Removed(Tombstone { run_id: "run-2".into(), removed, by, reason })
    };
    let adds = records[2].adds().clone();
    let bodies = Removed::Bodies(vec![Stripped::new(3, records[2].hash()).adding(adds)]);
    let run = Removed::Run { records: 8, hash: records[7].hash(), sealed: true };
    chained(MAINTENANCE, [0; 16], [bury(bodies), bury(run)])
}

fn chained(run: &str, salt: [u8; 16], facts: impl IntoIterator<Item = Fact>) -> Vec<Record> {
    let mut chain = Chain::new(run);
    let append = |fact| chain.append(0, salt, &fact).expect("a fact that can be encoded");
    facts.into_iter().map(append).collect()
}

fn vectors() -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (run, records) in [("run-1", first()), ("run-2", second()), (MAINTENANCE, removals())] {
        for (seq, record) in (1..).zip(&records) {
            let body = record.body().expect("a body");
            lines.push((format!("{run} payload {seq}"), hex(&body.payload)));
            lines.push((format!("{run} envelope {seq}"), hex(record.envelope_bytes())));
            lines.push((format!("{run} hash {seq}"), record.hash().to_string()));
        }
        let sealed = usize::from(records.iter().any(|record| record.kind().as_str() == "sealed"));
        let leaves = records[..records.len() - sealed].iter().map(Record::leaf);
        let root = merkle::root(&leaves.collect::<Vec<_>>());
        lines.push((format!("{run} root"), root.to_string()));
    }
    let fingerprints: Vec<Hash> = (1..=5u8).map(|n| Hash([n; 32])).collect();
    let leaves: Vec<Hash> = fingerprints.iter().map(|hash| merkle::leaf(&hash.0)).collect();
    let inclusion = merkle::inclusion_proof(&leaves, 2).expect("a leaf");
    let consistency = merkle::consistency_proof(&leaves, 3).expect("a smaller tree");
    for (name, value) in [
        ("fingerprints", joined(&fingerprints)),
        ("tree of 5", merkle::root(&leaves).to_string()),
        ("inclusion of 2", joined(&inclusion)),
        ("tree of 3", merkle::root(&leaves[..3]).to_string()),
        ("consistency with 3", joined(&consistency)),
    ] {
        lines.push((name.to_owned(), value));
    }
    lines
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn joined(hashes: &[impl Display]) -> String {
    hashes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
