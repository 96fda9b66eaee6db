//! What can go wrong with records, their encoding and their trees elsewhere, and does not here.

use std::sync::Arc;

use mynah_data::{HaltReason, Metadata, Thread};
use mynah_log::{
    About, Append, Body, Chain, Corrupt, End, Extent, Fact, Kind, Log as _, MemoryLog, Record,
    Seal, Totals, VerifyStatus, cbor, conformance::Sample, merkle, verify,
};
use serde_json::{Value, json};

#[test]
fn bytes_that_are_not_canonical_are_refused() {
    let refused = |bytes: &[u8]| cbor::from_slice::<Value>(bytes).is_err();
    for (what, bytes) in [
        ("an integer that has a shorter form", &[0x18, 0x01][..]),
        ("a length that has a shorter form", &[0x78, 0x01, b'a']),
        ("a number that has a shorter form", &[0xfb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0]),
        ("keys that are not in order", &[0xa2, 0x61, b'b', 0x01, 0x61, b'a', 0x01]),
        ("a key that is there twice", &[0xa2, 0x61, b'a', 0x01, 0x61, b'a', 0x01]),
        ("a list of unknown length", &[0x9f, 0x01, 0xff]),
        ("text that is not UTF-8", &[0x61, 0xff]),
        ("something after the end", &[0x01, 0x01]),
        ("less than was promised", &[0x82, 0x01]),
        ("nothing", &[]),
    ] {
        assert!(refused(bytes), "{what}");
    }
    assert_eq!(cbor::from_slice::<Value>(&[0x82, 0x01, 0x61, b'a']), Ok(json!([1, "a"])));
    assert!(refused(&[&[0x81].repeat(100_000)[..], &[0x01]].concat()), "a value that is too deep");
}

#[test]
fn unknown_members_and_unknown_kinds_are_refused() {
    let fact = json!(Fact::Cancelled {
        end: End::new(HaltReason::Cancelled, Metadata::new()),
        partial: None,
        cuts: Vec::new(),
    });
    let decoded = |fact: &Value| serde_json::from_value::<Fact>(fact.clone()).map_err(drop);
    assert!(decoded(&fact).is_ok());
    let mut more = fact.clone();
    let members = more.as_object_mut().expect("an object");
    members.insert("surprise".to_owned(), json!(1));
    assert_eq!(decoded(&more), Err(()));
    assert_eq!(decoded(&json!({"kind": "invented"})), Err(()));
    let decoded = |payload: &Value| {
        let bytes = cbor::to_vec(payload).expect("it has an encoding");
        cbor::from_slice::<Fact>(&bytes).map(drop).map_err(|error| error.is_newer())
    };
    let error = |reason: &str| json!({"type": "tool_error", "reason": reason, "message": "no", "metadata": "{}"});
    assert_eq!(decoded(&json!({"turn_started": {"turn": 1}})), Ok(()));
    assert_eq!(decoded(&json!({"finalize_failed": {"error": error("failed")}})), Ok(()));
    // Unknown members are distinguished from wrong ones.
    assert_eq!(decoded(&json!({"turn_started": {"turn": 1, "surprise": 1}})), Err(true));
    assert_eq!(decoded(&json!({"finalize_failed": {"error": error("invented")}})), Err(true));
    assert_eq!(decoded(&json!({"invented": {}})), Err(true));
    assert_eq!(decoded(&json!({"turn_started": {"turn": "one"}})), Err(false));
    assert_eq!(decoded(&json!({"turn_started": {}})), Err(false));
}

#[test]
fn every_kind_has_its_name_in_the_list() {
    let error = serde_json::from_str::<Fact>(r#"{"kind": "x"}"#).expect_err("an unknown kind");
    let error = error.to_string();
    let (_, expected) = error.split_once("expected one of ").expect("a list");
    let expected: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(names, expected);
}

#[test]
fn a_kind_is_read_from_its_name() {
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(*kind));
    }
    assert_eq!(format!("{:<8}|", Kind::Failed), "failed  |");
    let error = "tool".parse::<Kind>().expect_err("no kind");
    assert_eq!(error.field(), Some("kind"));
    assert!(error.message().contains("the kinds are run_started, resumed"), "{error}");
}

#[test]
fn a_corrupt_record_names_its_run_and_its_place() {
    let mut chain = Chain::new("run");
    let fact = Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    let record = chain.append(0, [7; 16], &fact).expect("a fact");
    let body = record.body().cloned().expect("a body");
    let other = Record::from_parts(
        &record.envelope_bytes()[..],
        Some(Body { payload: Arc::from([0u8]), ..body }),
    );
    let place = |found: Result<(), Corrupt>| found.map_err(|corrupt| (corrupt.run_id, corrupt.seq));
    assert_eq!(place(other.map(drop)), Err(("run".into(), 1)));
    assert_eq!(place(chain.follow(&record)), Err(("run".into(), 2)));
    assert_eq!(place(Record::from_parts([0u8], None).map(drop)), Err(("".into(), 0)));
}

#[test]
fn numbers_and_text_lose_nothing() {
    for value in [
        json!(i64::MIN),
        json!(u64::MAX),
        json!(9_007_199_254_740_993u64),
        json!(1.0),
        json!(1e2),
        json!(0.1),
        json!(-0.0),
        json!("<a href=\"x\">&\u{2028}"),
    ] {
        let bytes = cbor::to_vec(&value).expect("it has an encoding");
        let back: Value = cbor::from_slice(&bytes).expect("it comes back");
        assert_eq!(back.to_string(), value.to_string());
    }
}

#[test]
fn a_list_with_its_last_leaf_doubled_has_another_root() {
    let leaves: Vec<_> = (0u8..3).map(|n| merkle::leaf(&[n])).collect();
    let doubled = [&leaves[..], &leaves[2..]].concat();
    assert_ne!(merkle::root(&leaves), merkle::root(&doubled));
}

#[test]
fn an_inner_node_does_not_pass_for_a_leaf() {
    let leaves: Vec<_> = (0u8..4).map(|n| merkle::leaf(&[n])).collect();
    let halves: Vec<_> = leaves.chunks(2).map(merkle::root).collect();
    let joined: Vec<_> =
        leaves.chunks(2).map(|pair| merkle::leaf(&[pair[0].0, pair[1].0].concat())).collect();
    assert_ne!(halves, joined, "what is hashed says what it is");
    assert_eq!(merkle::root(&halves), merkle::root(&leaves), "trees are told apart by their size");
    let proof = merkle::inclusion_proof(&halves, 0).expect("a proof");
    let root = merkle::root(&leaves);
    assert!(!merkle::verify_inclusion(&halves[0], 0, 4, &root, &proof));
}

#[test]
fn what_the_seal_says_of_the_run_is_checked_against_it() {
    let mut chain = Chain::new("run");
    let started =
        Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    let end = Fact::Completed(End::new(HaltReason::Completed, Metadata::new()));
    let mut records = vec![];
    for fact in [started, end] {
        records.push(chain.append(0, [0; 16], &fact).expect("a record"));
    }
    let mut totals = Totals::default();
    let sealed = |totals: Totals| {
        let mut chain = chain.clone();
        let seal = Fact::Sealed(Seal::new(chain.root(), totals));
        let seal = chain.append(0, [0; 16], &seal).expect("a record");
        let all = [&records[..], &[seal]].concat();
        verify("run", &all).map(|report| report.status).map_err(|corrupt| corrupt.what)
    };
    assert_eq!(sealed(totals.clone()), Ok(VerifyStatus::Verified));
    totals.turns = 7;
    let what = "the seal's totals are not those of the records before it".to_owned();
    assert_eq!(sealed(totals), Err(what));
}

#[test]
fn a_lost_turn_adds_its_estimate_to_the_totals_that_the_seal_holds() {
    let mut chain = Chain::new("run");
    let started =
        Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    let turn = Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 100 };
    let lost = Fact::TurnLost { turn: 1, input_tokens: 100, cost: Some(0.25), given_up: false };
    let mut totals = Totals::default();
    let mut records = vec![];
    for fact in [started, turn.clone(), lost, turn] {
        let record = chain.append(0, [0; 16], &fact).expect("a record");
        totals.add(record.adds());
        records.push(record);
    }
    assert_eq!((totals.turns, totals.input_tokens, totals.cost), (2, 100, 0.25));
    let seal = Fact::Sealed(Seal::new(chain.root(), totals));
    records.push(chain.append(0, [0; 16], &seal).expect("a record"));
    assert_eq!(verify("run", &records).map(|report| report.status), Ok(VerifyStatus::Verified));
}

#[test]
fn what_was_not_measured_is_not_encoded() {
    let mut end = End::new(HaltReason::Completed, Metadata::new());
    assert!(json!(end).get("duration_ms").is_none());
    end.duration_ms = Some(3);
    let fact = Fact::Completed(end);
    assert_eq!(json!(fact)["duration_ms"], 3);
    assert_eq!(serde_json::from_value::<Fact>(json!(fact)).expect("a fact"), fact);
    let turn = Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 };
    assert!(json!(turn).get("input_tokens").is_none());
    assert!(json!(About::default()).get("behaviour").is_none());
}

#[test]
fn a_run_that_goes_on_is_in_progress_and_not_corrupt() {
    let records = Sample::new("run", 0).tool_turn().batch().records;
    for end in 1..=records.len() {
        let report = verify("run", &records[..end]).expect("a sound run");
        assert_eq!((report.status.as_str(), report.records), ("in_progress", end as u64));
    }
}

#[tokio::test]
async fn a_run_begins_once_and_with_its_beginning() {
    let log = MemoryLog::new();
    let mut chain = Chain::new("run");
    let early = Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 };
    let early = chain.append(0, [0; 16], &early).expect("a record");
    assert!(log.append(Append::new("run", None, vec![early])).await.is_err());
    assert_eq!(log.head("run").await, Ok(None));
}

#[tokio::test]
async fn reading_or_waiting_for_a_run_that_is_not_there_leaves_no_trace() {
    let log = MemoryLog::new();
    assert_eq!(log.read("ghost", 1, 10).await, Ok(Vec::new()));
    let wait = std::pin::pin!(log.wait("ghost", 0));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(wait.poll(&mut cx).is_pending());
    let page = log.runs(Default::default()).await.expect("a list");
    assert!(page.runs.is_empty());
}
