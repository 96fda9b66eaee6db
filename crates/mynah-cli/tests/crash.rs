//! A process that is killed, and another that goes on: whatever the moment, the run comes to the same. After each record a
//! scenario ends its process itself, also where a budget is used up or what may have run is asked for first; at any moment the
//! operating system does, as after each record in `crates/mynah/tests/killed.rs`, where what ran is counted outside the log.
//!
//! `MYNAH_KILLS=5000` kills more often. Outputs are stable, which also lets an hour pass between two processes, so that what
//! the first had taken for a while is free again.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use mynah::log::{Fact, Kind, Log as _, Record, Resolution, RunFilter, SqliteLog};
use serde_json::{Value, json};

use crate::common::{Ran, feed, mynah};

/// The exit code that a scenario asks for.
const KILLED: Option<i32> = Some(137);

#[test]
fn a_run_that_is_killed_after_any_record_comes_to_the_same() {
    kill_after_every_record(&Reference::new(0), "completed");
}

#[test]
fn a_run_whose_budget_is_used_up_that_is_killed_after_any_record_comes_to_the_same() {
    let mut reference = Reference::new(0);
    // Turns that are lost with their process count, and calls that are announced again do not.
    reference.budget = json!({"max_tool_calls": 5});
    kill_after_every_record(&reference, "budget_exceeded");
}

fn kill_after_every_record(reference: &Reference, reason: &str) {
    let folder = tempfile::tempdir().unwrap();
    let whole = Store::new(&folder, "whole");
    let ran = whole.play(&reference.whole(&[]));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let (expected, records) = (result(&ran), whole.records());
    assert_eq!(expected["halted_reason"], reason);
    let kinds: Vec<&str> = records.iter().map(|record| record.kind().as_str()).collect();
    let suspended = suspended(&records);
    assert!(kinds.len() > 20 && kinds.contains(&"resumed"), "{kinds:?}");

    for seq in 1..=records.len() as u64 {
        let store = Store::new(&folder, &format!("crash-{seq}"));
        // The operation that writes the record: the chat, or its resume.
        let crash = if seq <= suspended { [Some(seq), None] } else { [None, Some(seq)] };
        let crashed = store.play(&reference.whole(&crash));
        assert_eq!(crashed.code, KILLED, "record {seq}: {}", crashed.stderr);
        let left = store.records();
        assert_eq!(left.len() as u64, seq, "what was safe is there, and nothing else");
        let careful = store.copy(&format!("careful-{seq}"));
        let ways = [vec![rerun(None)], vec![json!({"op": "resume"}), rerun(None)]];
        for (store, how) in [store, careful].into_iter().zip(&ways) {
            let place = format!("record {seq}, {} resumed", how.len());
            check_resumed(reference, &store, how, &expected, &place);
            assert_eq!(store.records()[..left.len()], left, "{place}: what was kept has changed");
            let again = store.play(&reference.replay());
            let equal = json!({"status": "equal", "records": store.records().len()});
            assert_eq!(lines(&again).next().unwrap()["ok"], equal, "{place}");
        }
    }
}

#[test]
fn a_run_that_is_killed_twice_comes_to_the_same() {
    let reference = Reference::new(0);
    let folder = tempfile::tempdir().unwrap();
    let expected = result(&Store::new(&folder, "whole").play(&reference.whole(&[])));
    for first in [3, 6, 9] {
        for second in [first + 2, first + 4, first + 6] {
            let store = Store::new(&folder, &format!("crash-{first}-{second}"));
            let crashed = store.play(&reference.whole(&[Some(first)]));
            assert_eq!(crashed.code, KILLED, "{first}");
            let again = store.play(&reference.after(&store.records(), &[rerun(Some(second))]));
            assert_eq!(again.code, KILLED, "{first}, {second}: {}", again.stdout);
            let place = format!("records {first}, {second}");
            check_resumed(&reference, &store, &[rerun(None)], &expected, &place);
        }
    }
}

#[test]
fn what_a_killed_process_held_is_free_soon() {
    let reference = Reference::new(0);
    let folder = tempfile::tempdir().unwrap();
    let whole = Store::new(&folder, "whole");
    whole.play(&reference.whole(&[]));
    let store = Store::new(&folder, "held");
    let scenario = reference.whole(&[None, Some(suspended(&whole.records()) + 2)]);
    let real_time = |scenario: &Value| {
        let path = store.write(scenario);
        feed(mynah(["play", "--log", &store.url(), path.to_str().unwrap()]), b"")
    };
    assert_eq!(real_time(&scenario).code, KILLED);
    let resumed = real_time(&reference.after(&store.records(), &[rerun(None)]));
    let first = lines(&resumed).next().unwrap();
    assert_eq!(first["ok"]["halted_reason"], "completed", "{first}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a process is killed at a moment of real time")]
fn a_run_that_is_killed_at_any_moment_comes_to_the_same() {
    let kills = std::env::var_os("MYNAH_KILLS").and_then(|n| n.to_str()?.parse().ok());
    let kills: u64 = kills.unwrap_or(16);
    let reference = Reference::new(8);
    let folder = tempfile::tempdir().unwrap();
    let whole = Store::new(&folder, "whole");
    let began = std::time::Instant::now();
    let expected = result(&whole.play(&reference.whole(&[])));
    let lasts = u64::try_from(began.elapsed().as_micros()).unwrap();

    let mut cut = 0;
    for index in 0..kills {
        let store = Store::new(&folder, &format!("kill-{index}"));
        let moment = Duration::from_micros(RandomState::new().hash_one(index) % lasts);
        let mut child = store.start(&reference.whole(&[]));
        std::thread::sleep(moment);
        child.kill().unwrap();
        child.wait().unwrap();
        let records = store.records();
        if records.is_empty() {
            continue;
        }
        cut += u64::from(records.last().unwrap().kind() != Kind::Sealed);
        let place = format!("{moment:?} of {lasts} µs");
        let careful = (index % 2 == 0).then(|| json!({"op": "resume"}));
        let how: Vec<Value> = careful.into_iter().chain([rerun(None)]).collect();
        check_resumed(&reference, &store, &how, &expected, &place);
    }
    assert!(cut > 0, "of {kills} runs none was cut off");
}

#[test]
fn of_two_processes_that_resume_a_run_one_goes_on() {
    // Slower than a process waits for one that may be gone.
    let reference = Reference::new(900);
    let folder = tempfile::tempdir().unwrap();
    for round in 0..2 {
        let store = Store::new(&folder, &format!("race-{round}"));
        let crashed = store.play(&reference.whole(&[Some(4)]));
        assert_eq!(crashed.code, KILLED);
        let mut scenario = reference.after(&store.records(), &[]);
        scenario["ops"] = json!([{"op": "resume", "on_uncertain": "rerun"}]);
        let path = store.write(&scenario);
        let url = store.url();
        let rivals = [0, 1].map(|_| {
            let mut command = mynah(["play", "--log", &url, path.to_str().unwrap()]);
            command.stdout(Stdio::piped()).spawn().unwrap()
        });
        let lines = rivals.map(|rival| {
            let output = rival.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(0));
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        });
        let went_on = lines.iter().filter(|line| line.get("ok").is_some()).count();
        assert_eq!(went_on, 1, "{lines:?}");
        let refused = lines.iter().find_map(|line| line.get("err")).unwrap();
        assert_eq!((&refused["type"], &refused["reason"]), (&json!("log_error"), &json!("leased")));
    }
}

/// Resumes a run in a process of its own, and checks its result. Answered model calls and completed
/// tools must not be called again: the model would take another script, and the tool fails.
fn check_resumed(
    reference: &Reference,
    store: &Store,
    how: &[Value],
    expected: &Value,
    place: &str,
) {
    let resumed = store.play(&reference.after(&store.records(), how));
    assert_eq!(resumed.code, Some(0), "{place}: {}", resumed.stderr);
    assert_eq!(result(&resumed), *expected, "{place}");
    let told: Vec<Value> = lines(&resumed).filter_map(|line| line.get("ok").cloned()).collect();
    let records = store.records().len();
    let verified = told.iter().find(|ok| ok["status"] == "verified");
    assert_eq!(verified.map(|report| &report["records"]), Some(&json!(records)), "{place}");
    assert_eq!(told.last(), Some(&json!({"status": "equal", "records": records})), "{place}");
}

/// Resumes, and runs calls with an unknown outcome again.
fn rerun(crash_after: Option<u64>) -> Value {
    json!({"op": "resume", "on_uncertain": "rerun", "crash_after": crash_after})
}

/// The record with which the run begins to wait for an answer.
fn suspended(records: &[Record]) -> u64 {
    records.iter().find(|record| record.kind().as_str() == "suspended").unwrap().seq()
}

/// The result of the run, from its replay.
fn result(ran: &Ran) -> Value {
    let completed = |line: &Value| line["event"]["type"] == "chat_completed";
    let last = lines(ran).filter(completed).last();
    assert!(last.is_some(), "no result in {}", ran.stdout);
    last.unwrap_or_default()["event"]["result"].clone()
}

fn lines(ran: &Ran) -> impl Iterator<Item = Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap())
}

/// A run with concurrent tools, one that is retried, one with a side effect, a question, several
/// turns, and a budget that it keeps to, unless it gets another.
struct Reference {
    scripts: Vec<Value>,
    /// Each tool, the call that runs it, and its outcome.
    tools: Vec<(Value, &'static str, Value)>,
    budget: Value,
}

impl Reference {
    /// With a pause before each thing that happens.
    fn new(pause: u64) -> Self {
        let pause = json!({"delay_ms": pause});
        let call = |id: &str, name: &str| json!({"tool_call": {"id": id, "name": name, "arguments": {"of": id}}});
        let calls = json!({"finish": "tool_calls"});
        let usage = json!({"usage": {"input_tokens": 9, "output_tokens": 2}});
        let scripts = vec![
            json!([
                pause,
                call("c0", "plain"),
                call("c1", "shaky"),
                call("c2", "fast"),
                call("c6", "paid"),
                usage,
                calls
            ]),
            json!([pause, {"text": "let me ask"}, pause, call("c3", "ask"), calls]),
            json!([pause, call("c4", "last"), call("c5", "failing"), usage, calls]),
            json!([pause, {"text": "do"}, pause, {"text": "ne"}, usage, {"finish": "stop"}]),
        ];
        let later = |mut form: Value, times: u64| {
            form["delay_ms"] = json!(pause["delay_ms"].as_u64().unwrap() * times);
            form
        };
        // The outcomes of a scripted tool start again in each process, of at most three, and failed
        // attempts add up.
        let idempotent = |name: &str| json!({"name": name, "idempotent": true, "max_attempts": 4});
        let busy = json!({"error": "busy", "transient": true});
        let tools = vec![
            (json!({"name": "plain"}), "c0", later(json!({"ok": {"n": 1}}), 3)),
            (
                idempotent("shaky"),
                "c1",
                json!([later(busy, 1), later(json!({"ok": "at last"}), 1)]),
            ),
            (json!({"name": "fast"}), "c2", json!({"echo": true})),
            (
                json!({"name": "paid"}),
                "c6",
                later(json!({"side_effect": {"name": "pay", "value": {"receipt": 7}}}), 2),
            ),
            (json!({"name": "ask"}), "c3", later(json!({"ask_user": "How many?"}), 1)),
            (idempotent("last"), "c4", later(json!({"ok": 4}), 1)),
            (json!({"name": "failing"}), "c5", json!({"error": "no such thing"})),
        ];
        // Each of three processes may lose a turn.
        let budget = json!({"max_turns": 6, "max_tool_calls": 7, "max_total_tokens": 10_000});
        Self { scripts, tools, budget }
    }

    /// The whole run, in which operations may end the process.
    fn whole(&self, crash_after: &[Option<u64>]) -> Value {
        let crash_after = |op: usize| crash_after.get(op).copied().flatten();
        self.scenario(
            &[],
            json!([
                {"op": "chat", "messages": [{"role": "user", "content": "go"}], "crash_after": crash_after(0),
                 "options": {"budget": self.budget}},
                {"op": "resume", "answer": "two", "crash_after": crash_after(1)},
                {"op": "verify"},
                {"op": "replay", "tools": "recorded", "stream": true},
            ]),
        )
    }

    /// What is left of the run after these records: whichever of these resumptions, or of one with the answer, the run waits
    /// for goes on with it.
    fn after(&self, records: &[Record], how: &[Value]) -> Value {
        let facts: Vec<Fact> = records.iter().filter_map(|record| record.fact().unwrap()).collect();
        let mut ops = how.to_vec();
        ops.extend([
            json!({"op": "resume", "answer": "two", "on_uncertain": "rerun"}),
            json!({"op": "verify"}),
            json!({"op": "replay", "tools": "recorded", "stream": true}),
        ]);
        self.scenario(&facts, json!(ops))
    }

    /// The run again, with its tools run again.
    fn replay(&self) -> Value {
        self.scenario(&[], json!([{"op": "replay", "tools": "rerun"}]))
    }

    fn scenario(&self, facts: &[Fact], ops: Value) -> Value {
        let is_answer = |fact: &&Fact| matches!(fact, Fact::AssistantCompleted { .. });
        let answered = facts.iter().filter(is_answer).count();
        let is_done = |id: &str| {
            facts.iter().any(|fact| match fact {
                Fact::ToolFailed {
                    resolution: Resolution::Retried | Resolution::CutOff, ..
                } => false,
                Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } => {
                    call_id == id
                }
                _ => false,
            })
        };
        let tools = self.tools.iter().map(|(tool, call, returns)| {
            let mut tool = tool.clone();
            let again = json!({"error": "it ran again"});
            tool["returns"] = if is_done(call) { again } else { returns.clone() };
            tool
        });
        let tools: Vec<Value> = tools.collect();
        json!({"scripts": self.scripts[answered..], "tools": tools, "ops": ops})
    }
}

/// A log in a file, and the scenarios that are played on it.
struct Store {
    path: PathBuf,
}

impl Store {
    fn new(folder: &tempfile::TempDir, name: &str) -> Self {
        Self { path: folder.path().join(format!("{name}.db")) }
    }

    /// The same log again, before it is resumed.
    fn copy(&self, name: &str) -> Self {
        let path = self.path.with_file_name(format!("{name}.db"));
        for ending in ["", "-wal"] {
            let file = |path: &Path| PathBuf::from(format!("{}{ending}", path.display()));
            if file(&self.path).exists() {
                std::fs::copy(file(&self.path), file(&path)).unwrap();
            }
        }
        Self { path }
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn write(&self, scenario: &Value) -> PathBuf {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}.json", FILES.fetch_add(1, Ordering::Relaxed));
        let path = self.path.with_extension(name);
        std::fs::write(&path, scenario.to_string()).unwrap();
        path
    }

    fn command(&self, scenario: &Path) -> std::process::Command {
        mynah(["play", "--stable", "--log", &self.url(), scenario.to_str().unwrap()])
    }

    fn play(&self, scenario: &Value) -> Ran {
        feed(self.command(&self.write(scenario)), b"")
    }

    fn start(&self, scenario: &Value) -> std::process::Child {
        self.command(&self.write(scenario)).stdout(Stdio::null()).spawn().unwrap()
    }

    /// The records of the newest run; none if there is no run.
    fn records(&self) -> Vec<Record> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            // A process may have been killed before it made the file, or in the middle of that.
            let Ok(log) = SqliteLog::open_read_only(&self.path) else { return Vec::new() };
            let page = log.runs(RunFilter::new().limit(1)).await.unwrap();
            let Some(run) = page.runs.first() else { return Vec::new() };
            log.read(&run.run_id, 1, 1000).await.unwrap()
        })
    }
}
