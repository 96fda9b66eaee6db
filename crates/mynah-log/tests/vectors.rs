//! Bundles that are sound, corrupt, or written by a newer version: `mynah verify` and `tools/verify.py` say the same of each.
//!
//! They are in `tests/vectors`, where `cargo xtask test` gives them to `verify.py`.
//! `MYNAH_WRITE_VECTORS=1` rewrites them.

use std::{collections::BTreeMap, fs, path::PathBuf};

use mynah_data::{ErrorKind, LogReason};
use mynah_log::{Hash, MAINTENANCE, bundle, cbor, merkle};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

#[test]
fn the_vectors_are_the_files_that_are_checked_in() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors"));
    let vectors = vectors();
    if std::env::var_os("MYNAH_WRITE_VECTORS").is_some() {
        for (name, file) in &vectors {
            fs::write(folder.join(name), file).expect("a file");
        }
    }
    let files = fs::read_dir(&folder).expect("a folder").map(|file| {
        let file = file.expect("a file");
        let name = file.file_name().into_string().expect("a name");
        (name, fs::read_to_string(file.path()).expect("a text"))
    });
    let files: BTreeMap<String, String> = files.collect();
    assert_eq!(files.keys().collect::<Vec<_>>(), vectors.keys().collect::<Vec<_>>());
    for (name, file) in files {
        assert_eq!(Some(&file), vectors.get(&name), "{name}");
    }
}

#[test]
fn every_vector_is_found_to_be_what_its_name_says() {
    for (name, file) in vectors() {
        let found = bundle::verify(file.as_bytes()).map(drop);
        let (why, found) = (format!("{name}: {found:?}"), found.map_err(|error| error.kind()));
        let expected = match name.split_once('-').map(|(class, _)| class) {
            Some("good") => Ok(()),
            Some("corrupt") => Err(ErrorKind::Log(LogReason::Corrupt)),
            _ => Err(ErrorKind::Log(LogReason::TooNew)),
        };
        assert_eq!(found, expected, "{why}");
    }
}

/// The files by their names, which begin with what they are.
fn vectors() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut put = |name: &str, file: String| files.insert(format!("{name}.ndjson"), file);

    put("good-open", plain([start(), turn(1)]));
    put("good-sealed", plain(sealed()));
    put("good-every-kind", plain(every_kind()));
    put("good-summary", plain(summarised()));
    put("good-without-facts", Forged::of(sealed()).change(3, drop_fact).file());
    put("good-redacted", redacted(3, |_| {}));
    put("good-cancelled", plain([start(), turn(1), cancelled(), seal(1, 0, 7, 3, 0.5)]));
    put("good-lost-turn", plain([start(), turn(1), lost(), turn(1), seal(2, 0, 90, 0, 0.25)]));
    put("good-given-up-turn", plain([start(), turn(1), given_up(), seal(1, 0, 90, 0, 0.25)]));

    put("corrupt-byte-of-a-payload", Forged::of(sealed()).change(3, flip_payload).file());
    put("corrupt-byte-of-an-envelope", Forged::of(sealed()).change(3, flip_time).file());
    put("corrupt-first-record", plain([turn(1)]));
    put("corrupt-second-start", plain([start(), start()]));
    put("corrupt-after-the-end", plain([start(), completed(), turn(1)]));
    put("corrupt-after-the-seal", plain([start(), seal(0, 0, 0, 0, 0.0), turn(1)]));
    put("corrupt-totals", plain([start(), turn(1), seal(2, 0, 0, 0, 0.0)]));
    put(
        "corrupt-totals-without-the-lost-turn",
        plain([start(), turn(1), lost(), seal(1, 0, 0, 0, 0.0)]),
    );
    let other_root = ("sealed", json!({"root": Hash([9; 32]), "totals": totals(0, 0, 0, 0, 0.0)}));
    put("corrupt-root", plain([start(), other_root]));
    put("corrupt-tombstone-in-a-run", plain([start(), ("removed", tombstone("run", &[]))]));
    put("corrupt-gap", Forged { skip: Some(2), ..Forged::of(sealed()) }.file());
    put("corrupt-link", Forged { unlinked: Some(2), ..Forged::of(sealed()) }.file());
    put("corrupt-member-of-another-type", plain([start(), ("turn_started", json!({"turn": "1"}))]));
    put("corrupt-missing-member", plain([start(), ("turn_started", json!({}))]));
    put(
        "corrupt-null-member",
        plain([start(), ("turn_started", json!({"turn": 1, "prompt": null}))]),
    );
    let (lost_turn, mut members) = lost();
    members["given_up"] = json!(false);
    put("corrupt-false-member", plain([start(), turn(1), (lost_turn, members)]));
    put(
        "corrupt-payload-of-another-kind",
        Forged { said: Some((2, "turn_lost")), ..Forged::of([start(), turn(1)]) }.file(),
    );
    put(
        "corrupt-fact-that-is-shown",
        Forged::of(sealed())
            .change(2, |entry| entry["fact"] = json!({"turn_started": {"turn": 2}}))
            .file(),
    );
    put("corrupt-missing-body", Forged::of(sealed()).change(3, strip).file());
    put("corrupt-missing-body-of-the-seal", redacted(8, |_| {}));
    put("corrupt-tombstone-of-a-body-that-is-there", redacted(3, |forged| forged.changes.clear()));
    put(
        "corrupt-tombstone-of-another-record",
        redacted(3, |forged| forged.gone = Some(Hash([9; 32]))),
    );
    put("corrupt-tombstone-of-another-run", redacted(3, |forged| forged.buried = "other"));
    put(
        "corrupt-count-in-the-end",
        Forged::of(sealed()).end(|end| end["records"] = json!(9)).file(),
    );
    put(
        "corrupt-fingerprint-in-the-end",
        Forged::of(sealed()).end(|end| end["fingerprint"] = json!(Hash([9; 32]))).file(),
    );
    put(
        "corrupt-inclusion",
        Forged::of(sealed()).end(|end| end["inclusion"]["size"] = json!(2)).file(),
    );
    put(
        "corrupt-no-inclusion",
        Forged::of(sealed()).end(|end| end["inclusion"] = Value::Null).file(),
    );
    put("corrupt-salt", Forged::of(sealed()).change(2, |entry| entry["salt"] = json!("07")).file());
    put(
        "corrupt-capital-letters",
        Forged::of(sealed())
            .change(2, |entry| {
                entry["envelope"] = json!(entry["envelope"].as_str().expect("text").to_uppercase());
            })
            .file(),
    );
    put(
        "corrupt-member-of-a-line",
        Forged::of(sealed()).change(2, |entry| entry["note"] = json!(1)).file(),
    );
    put("corrupt-member-of-an-envelope", Forged { extra: Some(2), ..Forged::of(sealed()) }.file());
    let file = plain(sealed());
    let (before, last) = file.trim_end().rsplit_once('\n').expect("lines");
    put("corrupt-no-end", format!("{before}\n"));
    put("corrupt-cut-off", file.trim_end().to_owned());
    put("corrupt-after-the-last-line", format!("{file}{last}\n"));
    put("corrupt-key-twice", file.replacen(r#""fact":{"#, r#""fact":{"run_started":{},"#, 1));

    put("too_new-version", Forged { version: Some(2), ..Forged::of([start(), turn(1)]) }.file());
    put("too_new-kind", plain([start(), ("turn_dreamt", json!({"turn": 1}))]));
    put("too_new-member", plain([start(), ("turn_started", json!({"turn": 1, "mood": "good"}))]));
    put("too_new-bundle", file.replacen(r#""version":1"#, r#""version":2"#, 1));
    files
}

type Kept = (&'static str, Value);

fn start() -> Kept {
    let message = json!({"role": "user", "content": "hi"});
    ("run_started", json!({"extent": "chat", "thread": {"messages": [message]}}))
}

fn turn(turn: u32) -> Kept {
    ("turn_started", json!({"turn": turn}))
}

fn lost() -> Kept {
    ("turn_lost", json!({"turn": 1, "input_tokens": 90, "cost": 0.25}))
}

fn given_up() -> Kept {
    let (kind, mut members) = lost();
    members["given_up"] = json!(true);
    (kind, members)
}

fn answer(plan: Value) -> Kept {
    let usage = json!({"input_tokens": 100, "output_tokens": 10, "total_cost": 0.1});
    let message = json!({"role": "assistant", "content": "I ask c1"});
    ("assistant_completed", json!({"plan": plan, "response": {"message": message, "usage": usage}}))
}

fn tools() -> [Kept; 2] {
    let outcome = json!({"ok": r#"{"z":1,"a":[]}"#});
    let completed = json!({"call_id": "c1", "attempt": 1, "outcome": outcome, "content": "1", "duration_ms": 7});
    [("tool_scheduled", json!({"call_id": "c1", "attempt": 1})), ("tool_completed", completed)]
}

fn completed() -> Kept {
    ("completed", json!({"reason": "completed", "duration_ms": 12}))
}

fn cancelled() -> Kept {
    let usage = json!({"input_tokens": 7, "output_tokens": 3, "total_cost": 0.5});
    let partial = json!({"message": {"role": "assistant", "content": "wai"}, "usage": usage});
    ("cancelled", json!({"end": {"reason": "cancelled"}, "partial": partial}))
}

fn totals(turns: u64, calls: u64, input: u64, output: u64, cost: f64) -> Value {
    json!({"turns": turns, "tool_calls": calls, "input_tokens": input, "output_tokens": output, "cost": cost})
}

/// A seal whose root is filled in.
fn seal(turns: u64, calls: u64, input: u64, output: u64, cost: f64) -> Kept {
    ("sealed", json!({"totals": totals(turns, calls, input, output, cost)}))
}

fn sealed() -> Vec<Kept> {
    let [scheduled, done] = tools();
    let plan = json!({"tools": {"run": ["c1"], "manual": []}});
    let more = ("user_message", json!({"message": {"role": "user", "content": "go on"}}));
    let seal = seal(1, 1, 100, 10, 0.1);
    vec![start(), turn(1), answer(plan), scheduled, done, more, completed(), seal]
}

/// A run with every kind that a run can have.
fn every_kind() -> Vec<Kept> {
    let error =
        json!({"type": "tool_error", "reason": "failed", "message": "no", "metadata": "{}"});
    let [scheduled, done] = tools();
    let breach = json!({"limit": "turns", "cap": 1, "actual": 2, "where": "pre_call"});
    let failed = json!({"call_id": "c1", "attempt": 1, "error": error, "resolution": "retried"});
    let again = ("tool_scheduled", json!({"call_id": "c1", "attempt": 2}));
    vec![
        start(),
        turn(1),
        lost(),
        ("resumed", json!({})),
        turn(1),
        answer(json!("nothing")),
        scheduled,
        ("tool_failed", failed),
        again,
        ("side_effect", json!({"name": "fetch", "effect": {"done": r#"{"b":1,"a":2}"#}})),
        done,
        ("user_message", json!({"message": {"role": "user", "content": "go on"}})),
        ("suspended", json!({"reason": "ask_user", "metadata": r#"{"pending_question":"?"}"#})),
        ("resumed", json!({"message": {"role": "user", "content": "yes"}})),
        ("resumed", json!({"approved": ["c1"], "edited": [["c1", r#"{"x":7}"#]]})),
        (
            "context_truncated",
            json!({"strategy": "s", "tokens_before": 9, "tokens_after": 8, "messages_before": 2, "messages_after": 1}),
        ),
        ("finalize_started", json!({"conversation": {"reason": "completed"}})),
        ("finalize_failed", json!({"error": error})),
        ("budget_exceeded", json!({"breach": breach})),
        ("failed", json!({"reason": "budget_exceeded"})),
        seal(2, 1, 190, 10, 0.35),
    ]
}

/// A run whose model summarised what it no longer reads.
fn summarised() -> Vec<Kept> {
    let (_, answered) = answer(json!("nothing"));
    let shortened = json!({
        "strategy": "summarise", "tokens_before": 9, "tokens_after": 8, "messages_before": 3, "messages_after": 2,
        "dropped": 2, "cleared": 2, "summary": answered["response"],
    });
    let shortened = ("context_truncated", shortened);
    let seal = seal(1, 0, 200, 20, 0.2);
    vec![start(), shortened, turn(1), answer(json!("nothing")), completed(), seal]
}

fn plain(records: impl IntoIterator<Item = Kept>) -> String {
    Forged::of(records).file()
}

/// The sealed run without the body of one of its records, and a tombstone that says so.
fn redacted(seq: usize, change: impl FnOnce(&mut Forged)) -> String {
    let mut forged = Forged { strips: Some(seq), ..Forged::of(sealed()) }.change(seq, strip);
    change(&mut forged);
    forged.file()
}

fn strip(entry: &mut Value) {
    *entry = json!({"envelope": entry["envelope"]});
}

fn drop_fact(entry: &mut Value) {
    entry.as_object_mut().expect("an object").remove("fact");
}

/// A member of the payload is another.
fn flip_payload(entry: &mut Value) {
    let payload = entry["payload"].as_str().expect("text").replace("61736b", "61736a");
    entry["payload"] = json!(payload);
    drop_fact(entry);
}

/// The record was made at another time.
fn flip_time(entry: &mut Value) {
    entry["envelope"] =
        json!(entry["envelope"].as_str().expect("text").replace("62747300", "62747301"));
}

fn tombstone(run: &str, bodies: &[Value]) -> Value {
    json!({"run_id": run, "removed": {"bodies": bodies}, "by": "ann", "reason": "age"})
}

type RunChange = fn(&mut Value);

/// A bundle whose records form a chain, with any contents.
struct Forged {
    records: Vec<Kept>,
    changes: Vec<(usize, RunChange)>,
    end: Option<RunChange>,
    /// The record that lost its body; its hash as the tombstone names it; and the run that the tombstone is of.
    strips: Option<usize>,
    gone: Option<Hash>,
    buried: &'static str,
    /// Records that have something else than they should: the place before them, no link, another kind in their payload, a member
    /// too many in their envelope; the version of all.
    skip: Option<usize>,
    unlinked: Option<usize>,
    said: Option<(usize, &'static str)>,
    extra: Option<usize>,
    version: Option<u8>,
}

impl Forged {
    fn of(records: impl IntoIterator<Item = Kept>) -> Self {
        Self {
            records: records.into_iter().collect(),
            changes: Vec::new(),
            end: None,
            strips: None,
            gone: None,
            buried: "run",
            skip: None,
            unlinked: None,
            said: None,
            extra: None,
            version: None,
        }
    }

    fn change(mut self, seq: usize, change: RunChange) -> Self {
        self.changes.push((seq, change));
        self
    }

    fn end(mut self, change: RunChange) -> Self {
        self.end = Some(change);
        self
    }

    fn file(self) -> String {
        let (mut lines, mut leaves, mut prev) = (Vec::new(), Vec::new(), None);
        let (mut root, mut hashes) = (None, Vec::new());
        for (seq, (kind, mut members)) in (1..).zip(self.records.clone()) {
            if kind == "sealed" {
                let over = merkle::root(&leaves);
                if members.get("root").is_none() {
                    members["root"] = json!(over);
                }
                root = Some(over);
            }
            let said = self.said.filter(|(place, _)| *place == seq).map_or(kind, |(_, said)| said);
            let placed = seq + usize::from(self.skip.is_some_and(|skip| seq > skip));
            let linked = prev.filter(|_| self.unlinked != Some(seq));
            let envelope = Envelope {
                v: self.version.unwrap_or(1),
                ts: 0,
                run: "run",
                seq: placed as u64,
                body: Bytes(Hash([0; 32])),
                kind,
                prev: linked.map(Bytes),
                surplus: (self.extra == Some(seq)).then_some(1),
            };
            let (hash, mut entry) = entry(envelope, [7; 16], said, &members);
            self.changes
                .iter()
                .filter(|(place, _)| *place == seq)
                .for_each(|(_, change)| change(&mut entry));
            lines.push(json!({"record": entry}));
            leaves.push(merkle::leaf(&hash.0));
            hashes.push(hash);
            prev = Some(hash);
        }
        let head = prev.expect("a record");
        let leaf = merkle::leaf(&head.0);
        let fingerprint = root.map(|_| head);
        let inclusion = root.map(|_| json!({"index": 0, "size": 1, "root": leaf, "proof": []}));
        let mut end = json!({
            "records": hashes.len(), "hash": head, "root": root, "fingerprint": fingerprint,
            "redacted": u64::from(self.strips.is_some()), "inclusion": inclusion,
        });
        if let Some(change) = self.end {
            change(&mut end);
        }
        let tombstone = self.strips.map(|seq| {
            let body = json!([seq, self.gone.unwrap_or(hashes[seq - 1]), totals(0, 0, 100, 10, 0.1)]);
            let envelope = Envelope {
                v: 1,
                ts: 0,
                run: MAINTENANCE,
                seq: 1,
                body: Bytes(Hash([0; 32])),
                kind: "removed",
                prev: None,
                surplus: None,
            };
            json!({"tombstone": entry(envelope, [0; 16], "removed", &tombstone(self.buried, &[body])).1})
        });
        let header = json!({"bundle": {"version": 1, "run_id": "run"}});
        let all = [header].into_iter().chain(tombstone).chain(lines).chain([json!({"end": end})]);
        all.map(|line| format!("{line}\n")).collect()
    }
}

/// The bytes of an envelope, whose members are in the order of deterministic CBOR.
#[derive(Serialize)]
struct Envelope {
    v: u8,
    ts: i64,
    run: &'static str,
    seq: u64,
    body: Bytes,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    surplus: Option<u8>,
}

#[derive(Clone, Copy)]
struct Bytes(Hash);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0.0)
    }
}

fn entry(envelope: Envelope, salt: [u8; 16], said: &str, members: &Value) -> (Hash, Value) {
    let fact = json!({said: members});
    let payload = cbor::to_vec(&fact).expect("CBOR");
    let body = Bytes(Hash::of(&[b"mynah record body 1\n", &salt, &payload]));
    let envelope = cbor::to_vec(&Envelope { body, ..envelope }).expect("CBOR");
    let hash = Hash::of(&[b"mynah record 1\n", &envelope]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let entry = json!({
        "envelope": hex(&envelope), "salt": hex(&salt), "payload": hex(&payload), "fact": fact,
    });
    (hash, entry)
}
