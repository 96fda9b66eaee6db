//! Any bytes at all: no panic, no hang, no more memory than the bytes are worth, and nothing that decodes has two encodings.
//!
//! `PROPTEST_CASES` sets the number of cases; `cargo xtask nightly` also runs the same functions under a fuzzer, see `fuzz/`.

use allocation_counter::measure;
use mynah_log::{Fact, Record, bundle, cbor, conformance::Sample};
use proptest::{collection::vec, prelude::*, sample::Index};
use serde::de::IgnoredAny;

use crate::targets;

proptest! {
    #[test]
    fn any_bytes_decode_into_what_encodes_to_them_or_not_at_all(bytes in bytes()) {
        targets::cbor(&bytes);
    }

    #[test]
    fn any_bytes_are_a_record_or_are_refused(bytes in bytes()) {
        targets::record(&bytes);
        targets::bundle(&bytes);
    }

    #[test]
    fn a_decoder_takes_no_more_memory_than_its_bytes_are_worth(bytes in bytes()) {
        is_frugal(&bytes)?;
    }

    #[test]
    fn a_payload_with_any_change_decodes_into_what_encodes_to_it_or_not_at_all(
        record in any::<Index>(), place in any::<Index>(), change in vec(any::<u8>(), 0..4), cut in 0usize..4
    ) {
        let payloads = payloads();
        let mut payload = record.get(&payloads).clone();
        let start = place.index(payload.len());
        payload.splice(start..payload.len().min(start + cut), change);
        targets::cbor(&payload);
        targets::record(&payload);
        is_frugal(&payload)?;
    }
}

#[test]
fn a_claim_of_more_than_there_is_is_refused_and_nothing_is_made_ready_for_it() {
    for major in [2, 3, 4, 5] {
        for claim in [u64::MAX, 1 << 40, 1 << 20, 5_000] {
            let mut bytes = vec![major << 5 | 27];
            bytes.extend(claim.to_be_bytes());
            is_refused(&bytes);
        }
        // As many as there are bytes, on every level.
        let mut bytes: Vec<u8> = Vec::new();
        for level in 0..120u16 {
            bytes.extend([major << 5 | 25]);
            bytes.extend((4_000 - 3 * level).to_be_bytes());
        }
        bytes.resize(4_096, 0);
        is_refused(&bytes);
    }
}

#[test]
fn values_nest_as_deep_as_they_may_and_no_deeper() {
    let nested = |deep: usize| [vec![0x81; deep], vec![0x00]].concat();
    let deepest = cbor::from_slice::<serde_json::Value>(&nested(cbor::MAX_DEPTH));
    assert_eq!(deepest.and_then(|value| cbor::to_vec(&value)), Ok(nested(cbor::MAX_DEPTH)));
    for deep in [cbor::MAX_DEPTH + 1, 1_000, 1_000_000] {
        is_refused(&nested(deep));
        is_refused(&[0xa1, 0x61, b'a'].repeat(deep));
    }
}

#[test]
fn a_fact_that_is_shown_is_read_only_if_its_record_could_hold_it() {
    let record = &Sample::new("run", 0).batch().records[0];
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let body = record.body().expect("a body");
    let (envelope, salt, payload) =
        (hex(record.envelope_bytes()), hex(&body.salt), hex(&body.payload));
    let many = "0,".repeat(4 << 20);
    let file = format!(
        r#"{{"bundle":{{"version":1,"run_id":"run"}}}}
{{"record":{{"envelope":"{envelope}","salt":"{salt}","payload":"{payload}","fact":[{many}0]}}}}
"#
    );
    let mut found = None;
    let taken = measure(|| found = bundle::verify(file.as_bytes()).err()).bytes_max;
    let what = "line 2: run run, record 1: the fact that is shown is not the one in its bytes";
    assert_eq!(found.map(|error| error.metadata()["what"].clone()), Some(what.into()));
    assert!(taken < 256 << 20, "{taken}");
}

#[test]
fn what_is_not_a_number_is_null_and_never_read() {
    assert_eq!(
        cbor::to_vec(&[f64::NAN, f64::INFINITY, 0.5]),
        Ok(vec![0x83, 0xf6, 0xf6, 0xf9, 0x38, 0x00])
    );
    for float in ["f97e00", "f97c00", "f9fc00", "fa7f800000", "fb7ff8000000000000"] {
        let bytes: Vec<u8> = (0..float.len() / 2)
            .map(|at| u8::from_str_radix(&float[2 * at..2 * at + 2], 16).expect("hexadecimal"))
            .collect();
        is_refused(&bytes);
    }
}

fn is_refused(bytes: &[u8]) {
    targets::cbor(bytes);
    assert!(cbor::from_slice::<IgnoredAny>(bytes).is_err());
    is_frugal(bytes).expect("little memory");
}

fn is_frugal(bytes: &[u8]) -> Result<(), TestCaseError> {
    // A byte can be an item of a list that has room for four: the smallest that a list is made for.
    let worth = 1_024 * bytes.len() as u64 + 4_096;
    for (what, decode) in [
        ("a value", (|bytes| drop(cbor::from_slice::<serde_json::Value>(bytes))) as fn(&[u8])),
        ("a fact", |bytes| drop(cbor::from_slice::<Fact>(bytes))),
        ("an envelope", |bytes| drop(Record::from_parts(bytes, None))),
    ] {
        let taken = measure(|| decode(bytes)).bytes_max;
        prop_assert!(taken <= worth, "{} took {} for {} bytes", what, taken, bytes.len());
    }
    let passed = measure(|| drop(cbor::from_slice::<IgnoredAny>(bytes)));
    prop_assert!(passed.bytes_max <= 256, "to look at the form needs no memory but for the error");
    Ok(())
}

/// Bytes of any kind, and bytes that look like CBOR.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let head = prop_oneof![
        4 => (0u8..8, 0u8..6).prop_map(|(major, low)| vec![major << 5 | low]),
        1 => (0u8..8, any::<u8>()).prop_map(|(major, n)| vec![major << 5 | 24, n]),
        1 => (0u8..8, any::<u16>()).prop_map(|(major, n)| [vec![major << 5 | 25], n.to_be_bytes().to_vec()].concat()),
        1 => any::<[u8; 2]>().prop_map(|half| vec![0xf9, half[0], half[1]]),
        2 => "[a-c]{1,2}".prop_map(|text| [vec![0x60 | text.len() as u8], text.into_bytes()].concat()),
    ];
    prop_oneof![
        1 => vec(any::<u8>(), 0..64),
        3 => vec(head, 0..24).prop_map(|heads| heads.concat()),
    ]
}

/// Payloads of every kind that a sample has.
fn payloads() -> Vec<Vec<u8>> {
    let batch = Sample::new("run", 0).user("one").tool_turn().seal().batch();
    let bodies = batch.records.iter().filter_map(Record::body);
    bodies.map(|body| body.payload.to_vec()).collect()
}
