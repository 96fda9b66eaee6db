//! A run as a file: export and import return the same run, and a forged file is rejected.

use std::io::{BufReader, Cursor};

use mynah_data::{ErrorKind, LogReason, Message, Thread};
use mynah_log::{
    Append, Body, Chain, Effect, Extent, Fact, Hash, Log, LogFuture, MAINTENANCE, MAX_PAYLOAD,
    MemoryLog, Prune, Record, Redact, Removals, RunFilter, RunSummary, Warrant,
    bundle::{self, Imported},
    cbor,
    conformance::Sample,
    forward_log, verify_run, verify_seals,
};
use proptest::prelude::*;
use serde_json::{Value, json};

#[tokio::test]
async fn what_is_imported_is_what_was_exported() {
    for (run, status) in [("sealed", "verified"), ("open", "in_progress"), ("redacted", "verified")]
    {
        let log = library().await;
        let file = export(&log, run).await;
        let bundle = bundle::verify(&file[..]).expect("a bundle");
        assert_eq!((bundle.run_id.as_str(), bundle.report.status.as_str()), (run, status));
        assert_eq!(bundle.inclusion.is_some(), status == "verified");

        let target = MemoryLog::new();
        let records = log.read(run, 1, 1000).await.expect("records");
        let imported = import(&target, &file).await.expect("a bundle");
        assert_eq!(
            (imported.report, imported.added),
            (bundle.report.clone(), records.len() as u64)
        );
        assert_eq!(target.read(run, 1, 1000).await, Ok(records));
        assert_eq!(verify_run(&target, run).await.as_ref(), Ok(&bundle.report));
        verify_seals(&target).await.expect("a sound list");
        let again = import(&target, &file).await.expect("what is there already");
        assert_eq!((again.added, again.report), (0, bundle.report));
    }
}

#[tokio::test]
async fn a_run_that_the_index_contradicts_is_not_exported() {
    struct Contradicted(MemoryLog);

    impl Log for Contradicted {
        fn run(&self, run: &str) -> LogFuture<'_, Option<RunSummary>> {
            let (found, more) = (self.0.run(run), u64::from(run == "sealed"));
            Box::pin(async move {
                let mut found = found.await?;
                found.iter_mut().for_each(|run| run.totals.turns += more);
                Ok(found)
            })
        }

        forward_log!(self => self.0, except run);
    }

    let log = Contradicted(library().await);
    bundle::export(&log, "open", &mut Vec::new()).await.expect("a sound run");
    let error = bundle::export(&log, "sealed", &mut Vec::new()).await.expect_err("a wrong index");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt));
    assert!(error.message().contains("turns: the index says"), "{error}");
}

#[tokio::test]
async fn a_bundle_can_be_read_by_people_and_programs() {
    let log = library().await;
    let file = String::from_utf8(export(&log, "redacted").await).expect("text");
    let lines: Vec<Value> =
        file.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0], serde_json::json!({"bundle": {"version": 1, "run_id": "redacted"}}));
    assert_eq!(lines[1]["tombstone"]["fact"]["removed"]["reason"], "she asked for it");
    assert_eq!(lines[2]["record"]["fact"]["run_started"]["extent"], "chat");
    let redacted = lines[3]["record"].as_object().expect("an object");
    assert_eq!(redacted.keys().collect::<Vec<_>>(), ["envelope"]);
    let end = &lines.last().expect("a last line")["end"];
    assert_eq!((&end["records"], &end["redacted"]), (&9.into(), &1.into()));
    assert_eq!((&end["inclusion"]["index"], &end["inclusion"]["size"]), (&1.into(), &4.into()));
}

#[tokio::test]
async fn every_changed_byte_and_every_cut_is_found() {
    for (run, step) in [("small", 1), ("redacted", 7)] {
        let log = library().await;
        let file = export(&log, run).await;
        bundle::verify(&file[..]).expect("a bundle");
        // Only its log can confirm a tombstone's envelope.
        let text = String::from_utf8(file.clone()).expect("text");
        let claimed = text.find(r#"{"tombstone":{"envelope":""#).map_or(0..0, |start| {
            start..text[start..].find(r#""salt""#).map_or(start, |end| start + end)
        });
        for byte in (0..file.len()).step_by(step).filter(|byte| !claimed.contains(byte)) {
            let mut changed = file.clone();
            changed[byte] ^= 1;
            let found = bundle::verify(&changed[..]).expect_err("a changed byte");
            // A changed version looks like a newer one.
            let reasons = [LogReason::Corrupt, LogReason::TooNew].map(ErrorKind::Log);
            assert!(reasons.contains(&found.kind()), "{byte}: {found}");
        }
        for end in (0..file.len()).step_by(7) {
            bundle::verify(&file[..end]).expect_err("a cut");
        }
        let lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
        for index in 0..lines.len() {
            let mut without = lines.clone();
            without.remove(index);
            bundle::verify(&without.concat()[..]).expect_err("a line less");
            let mut twice = lines.clone();
            twice.insert(index, lines[index]);
            // A tombstone says the same again.
            let is_tombstone = lines[index].starts_with(br#"{"tombstone""#);
            assert_eq!(bundle::verify(&twice.concat()[..]).is_ok(), is_tombstone, "line {index}");
        }
    }
}

#[tokio::test]
async fn another_run_of_the_same_id_is_refused_and_a_longer_one_goes_on() {
    let mut run = Sample::new("run", 0).user("two");
    let target = MemoryLog::new();
    target.append(run.batch()).await.expect("a run");
    let longer = MemoryLog::new();
    let mut all = Sample::new("run", 0).user("two").user("three").sealed();
    longer.append(all.batch()).await.expect("a run");
    let file = export(&longer, "run").await;
    assert_eq!(import(&target, &file).await.map(|imported| imported.added), Ok(3));
    assert_eq!(target.head("run").await, Ok(Some(all.head())));

    let shorter = MemoryLog::new();
    shorter.append(Sample::new("run", 0).batch()).await.expect("a run");
    let file = export(&shorter, "run").await;
    assert_eq!(import(&target, &file).await.map(|imported| imported.added), Ok(0), "it is there");

    for mut other in [Sample::new("run", 7), Sample::new("run", 7).user("x").tool_turn().sealed()] {
        let log = MemoryLog::new();
        log.append(other.batch()).await.expect("a run");
        let error = import(&target, &export(&log, "run").await).await.expect_err("another run");
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::HeadMismatch), "{error}");
    }
    assert_eq!(target.head("run").await, Ok(Some(all.head())), "the run is as it was");
}

#[tokio::test]
async fn what_was_removed_here_stays_away() {
    let log = library().await;
    let file = export(&log, "sealed").await;
    Redact::records("sealed", [2]).perform(&log, &warrant()).await.expect("a record");
    assert_eq!(import(&log, &file).await.map(|imported| imported.added), Ok(0));
    assert_eq!(verify_run(&log, "sealed").await.map(|report| report.redacted), Ok(1));
    Prune::before(1000).perform(&log, &warrant()).await.expect("old runs");
    let error = import(&log, &file).await.expect_err("a run that was pruned");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Pruned), "{error}");
    let error = import(&log, &export(&log, MAINTENANCE).await).await;
    assert_eq!(error.map_err(|error| error.reason()), Err("head_mismatch"));

    // A log with the redaction, but without the run, imports it without the body.
    let (elsewhere, redacted) = (MemoryLog::new(), library().await);
    let tombstone = redacted.read(MAINTENANCE, 1, 1).await.expect("a tombstone");
    elsewhere.append(Append::new(MAINTENANCE, None, tombstone)).await.expect("a tombstone");
    let whole = MemoryLog::new();
    whole.append(redacted_run().batch()).await.expect("a run");
    import(&elsewhere, &export(&whole, "redacted").await).await.expect("a bundle");
    assert_eq!(verify_run(&elsewhere, "redacted").await.map(|report| report.redacted), Ok(1));
    let removals = Removals::read(&elsewhere).await.expect("tombstones");
    assert_eq!(removals.head().map(|head| head.seq), Some(1));
}

#[tokio::test]
async fn a_line_is_written_in_one_way_alone() {
    let log = library().await;
    for run in ["sealed", "open"] {
        let file = String::from_utf8(export(&log, run).await).expect("text");
        let lines: Vec<Value> =
            file.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let end = lines.len() - 1;
        let changed = |line: usize, member: &str, change: &dyn Fn(&mut Value, &str)| {
            let mut lines = lines.clone();
            let line = lines[line].as_object_mut().expect("an object");
            line.values_mut().for_each(|value| change(value, member));
            lines.iter().map(|line| format!("{line}\n")).collect::<String>()
        };
        let same = |file: &str| bundle::verify(file.as_bytes()).map(|bundle| bundle.run_id);
        assert_eq!(same(&changed(1, "fact", &|_, _| {})).as_deref(), Ok(run));
        for member in ["fact", "salt", "payload"] {
            let null = |value: &mut Value, member: &str| value[member] = Value::Null;
            same(&changed(1, member, &null)).expect_err("null");
        }
        let text = |value: &Value| value.as_str().unwrap_or("").to_uppercase();
        let upper = |value: &mut Value, member: &str| value[member] = text(&value[member]).into();
        same(&changed(end, "hash", &upper)).expect_err("upper case");
        for member in ["root", "fingerprint", "inclusion", "records", "redacted"] {
            let removed = |value: &mut Value, member: &str| {
                value.as_object_mut().expect("an object").remove(member).expect("a member");
            };
            same(&changed(end, member, &removed)).expect_err("a member less");
        }
    }
}

#[tokio::test]
async fn a_line_without_an_end_is_not_read_to_its_end() {
    let endless = BufReader::new(std::io::repeat(b' '));
    let error = bundle::verify(endless).expect_err("no bundle");
    assert!(error.to_string().contains("longer than"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_bytes_there_are_nothing_comes_of_a_bad_file(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        nothing_comes_of(&bytes);
    }

    #[test]
    fn whatever_is_changed_in_a_bundle_nothing_comes_of_it(
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(b'"'), Just(b'\n'), Just(b'0')]), 1..4),
        cut in any::<prop::sample::Index>(),
        doubled in any::<prop::sample::Index>(),
        structure in 0..4u8,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let file = runtime.block_on(async { export(&library().await, "redacted").await });
        let mut changed = file.clone();
        for (index, byte) in changes {
            let index = index.index(changed.len());
            changed[index] = byte;
        }
        let mut lines: Vec<&[u8]> = changed.split_inclusive(|byte| *byte == b'\n').collect();
        match structure {
            0 => drop(lines.remove(cut.index(lines.len()))),
            1 => lines.insert(cut.index(lines.len()), lines[doubled.index(lines.len())]),
            2 => { let (a, b) = (cut.index(lines.len()), doubled.index(lines.len())); lines.swap(a, b); }
            _ => {}
        }
        let changed = lines.concat();
        if changed != file {
            nothing_comes_of(&changed);
        }
    }
}

#[tokio::test]
async fn a_fact_that_is_shown_with_a_key_twice_does_not_come_in() {
    let file = String::from_utf8(export(&library().await, "sealed").await).expect("text");
    let twice = file.replacen(r#""fact":{"#, r#""fact":{"run_started":{},"#, 1);
    let error = bundle::verify(twice.as_bytes()).expect_err("two kinds");
    assert!(error.to_string().contains("the fact that is shown"), "{error}");
}

#[tokio::test]
async fn a_fact_that_no_reader_understands_does_not_come_in() {
    for payload in [
        json!({"turn_started": {"turn": "seven"}}),
        json!({"turn_started": {"turn": 1, "prompt": null}}),
    ] {
        let mut chain = Chain::new("run");
        let first =
            Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
        let facts = [first, Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 }];
        let records = facts.map(|fact| chain.append(0, [0; 16], &fact).expect("a record"));
        let sound = MemoryLog::new();
        sound.append(Append::new("run", None, records.to_vec())).await.expect("a run");
        let strange = holding(&records[1], &payload);
        let file = String::from_utf8(export(&sound, "run").await).expect("text");
        let mut lines: Vec<Value> =
            file.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let body = strange.body().expect("a body");
        lines[2]["record"] = json!({
            "envelope": hex(strange.envelope_bytes()),
            "salt": hex(&body.salt),
            "payload": hex(&body.payload),
        });
        lines[3]["end"]["hash"] = json!(strange.hash());
        let file: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let file = file.as_bytes();

        let target = MemoryLog::new();
        for found in [bundle::verify(file).map(drop), import(&target, file).await.map(drop)] {
            let error = found.expect_err("a fact that cannot be read");
            assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt), "{error}");
            assert_eq!(error.metadata()["seq"], 2, "{error}");
            assert!(error.to_string().contains("payload: "), "{error}");
        }
        assert_eq!(target.head("run").await, Ok(None));
    }
}

#[tokio::test]
async fn the_largest_record_can_be_exported_and_a_larger_one_is_not_appended() {
    let said = |size: usize| Fact::UserMessage { message: Message::user("x".repeat(size)).into() };
    let mut chain = Chain::new("run");
    let first = Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    let first = chain.append(0, [0; 16], &first).expect("a record");
    let around = cbor::to_vec(&said(1 << 20)).expect("CBOR").len() - (1 << 20);
    let most = MAX_PAYLOAD - around;
    let head = chain.head();
    let error = chain.append(0, [0; 16], &said(most + 1)).expect_err("a byte too many");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::TooLarge), "{error}");
    assert_eq!(error.metadata()["size"], MAX_PAYLOAD as u64 + 1);
    assert_eq!(chain.head(), head, "the chain is as it was");
    let largest = chain.append(0, [0; 16], &said(most)).expect("as large as it may be");
    assert_eq!(largest.body().map(|body| body.payload.len()), Some(MAX_PAYLOAD));
    let body = largest.body().cloned().expect("a body");
    let payload = [&body.payload[..], &[0]].concat().into();
    let larger = Record::from_parts(&largest.envelope_bytes()[..], Some(Body { payload, ..body }));
    assert!(larger.is_err_and(|corrupt| corrupt.what.contains("more than 33554432 bytes")));

    let log = MemoryLog::new();
    log.append(Append::new("run", None, vec![first, largest])).await.expect("a run");
    let file = export(&log, "run").await;
    let bundle = bundle::verify(&file[..]).expect("a bundle whose lines can be read");
    assert_eq!(bundle.report.records, 2);
}

#[test]
fn many_items_are_no_reason_to_refuse_a_record() {
    let effect = Effect::Done(json!(vec![0; 3 << 20]));
    let fact = Fact::SideEffect { inside: None, name: "many".to_owned(), ahead: 0, effect };
    let record = Chain::new("run").append(0, [0; 16], &fact).expect("a record");
    assert_eq!(record.fact().expect("a fact"), Some(fact));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same record with another payload, and the commitment to that.
fn holding(record: &Record, payload: &Value) -> Record {
    let payload = cbor::to_vec(payload).expect("CBOR").into();
    let body = Body { payload, ..record.body().expect("a body").clone() };
    let old = record.envelope().body.0;
    let new = Hash::of(&[b"mynah record body 1\n", &body.salt, &body.payload]).0;
    let mut envelope = record.envelope_bytes().to_vec();
    let place = envelope.windows(32).position(|bytes| bytes == old).expect("the commitment");
    envelope[place..place + 32].copy_from_slice(&new);
    Record::from_parts(envelope, Some(body)).expect("a record")
}

/// What fails leaves nothing behind; what does not fail is a bundle.
fn nothing_comes_of(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let log = MemoryLog::new();
        match import(&log, bytes).await {
            Err(_) => {
                assert_eq!(log.runs(RunFilter::new()).await.map(|page| page.runs), Ok(vec![]));
                assert_eq!(log.head(MAINTENANCE).await, Ok(None));
            }
            Ok(imported) => {
                let report = verify_run(&log, &imported.run_id).await;
                assert_eq!(report.as_ref(), Ok(&imported.report));
                // The one change that is none: a tombstone that occurs twice.
                assert_eq!(imported.report.redacted, 1);
            }
        }
    });
}

/// A log with a small run, one of which a body was removed, a longer one, and one without an end.
async fn library() -> MemoryLog {
    let log = MemoryLog::new();
    for mut run in [
        Sample::new("small", 0).sealed(),
        redacted_run(),
        Sample::new("sealed", 20).user("two").tool_turn().tool_turn().sealed(),
        Sample::new("open", 30).user("two").tool_turn(),
    ] {
        log.append(run.batch()).await.expect("a new run");
    }
    Redact::records("redacted", [2]).perform(&log, &warrant()).await.expect("a record");
    log
}

fn redacted_run() -> Sample {
    Sample::new("redacted", 10).user("my name is Ann").tool_turn().sealed()
}

fn warrant() -> Warrant {
    Warrant::new("ann", "she asked for it", 1_000)
}

async fn export(log: &MemoryLog, run: &str) -> Vec<u8> {
    let mut file = Vec::new();
    bundle::export(log, run, &mut file).await.expect("a run");
    file
}

async fn import(log: &MemoryLog, file: &[u8]) -> mynah_data::Result<Imported> {
    bundle::import(log, Cursor::new(file)).await
}
