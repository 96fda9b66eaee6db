//! The report of a replay that differs: where, in what, and what was produced.

use mynah_data::{AdapterReason, Error, ErrorKind, MismatchClass};
use mynah_log::{End, Fact, Kind};
use serde::Deserialize as _;
use serde_json::{Value, json};

/// The error for a replay that produces another fact than is recorded, one where none is recorded,
/// or none where one is.
pub fn mismatch(run: &str, seq: u64, recorded: Option<&Fact>, produced: Option<&Fact>) -> Error {
    difference_of(run, seq, recorded, produced, "")
}

/// The same, which names what it is about.
pub(crate) fn difference_of(
    run: &str,
    seq: u64,
    recorded: Option<&Fact>,
    produced: Option<&Fact>,
    about: &str,
) -> Error {
    let class = match (recorded, produced) {
        (None, _) => MismatchClass::Exhausted,
        (Some(Fact::TurnStarted { turn: a, .. }), Some(Fact::TurnStarted { turn: b, .. }))
            if a != b =>
        {
            MismatchClass::TurnId
        }
        _ if recorded.map(Fact::kind) == produced.map(Fact::kind) => MismatchClass::Payload,
        _ => MismatchClass::Kind,
    };
    let (made, expected) = (produced.map(Fact::kind), recorded.map(Fact::kind));
    let mut diff = Vec::new();
    if made == expected {
        diff = differences(&json!(recorded), &json!(produced));
    }
    let kind = made.map_or("nothing", Kind::as_str);
    let what = match (expected, diff.first()) {
        (Some(_), Some(first)) => {
            let names = match (recorded, produced) {
                (
                    Some(Fact::SideEffect { name: a, .. }),
                    Some(Fact::SideEffect { name: b, .. }),
                ) if a != b => {
                    format!(": recorded is {a:?}, not {b:?}")
                }
                _ => String::new(),
            };
            format!("{kind} differs at {}{names}", first["path"].as_str().unwrap_or(""))
        }
        (Some(expected), None) => {
            let says = produced.and_then(gist).map(|says| format!(": {says}"));
            format!("expected {expected}, got {kind}{}", says.unwrap_or_default())
        }
        (None, _) => format!("{kind} has no record"),
    };
    Error::new(ErrorKind::Replay(class))
        .with_message(format!("replay mismatch: {class}: run {run}, record {seq}: {about}{what}"))
        .with("run_id", run)
        .with("seq", seq)
        .with("kind", json!(made))
        .with("expected_kind", json!(expected))
        .with("diff", diff)
}

/// Every place where two values differ: `{"path", "recorded", "produced"}` each. A missing value is
/// null. If the other value is null, the member is left out.
pub fn differences(recorded: &Value, produced: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    compare_values("", Some(recorded), Some(produced), &mut found);
    found
}

fn compare_values(
    path: &str,
    recorded: Option<&Value>,
    produced: Option<&Value>,
    diff: &mut Vec<Value>,
) {
    let step = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (recorded, produced) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let added = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(added) {
                compare_values(&step(key), a.get(key), b.get(key), diff);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                compare_values(&step(&index.to_string()), a.get(index), b.get(index), diff);
            }
        }
        (a, b) if a == b => {}
        (Some(Value::Null), None) => diff.push(json!({"path": path, "recorded": null})),
        (None, Some(Value::Null)) => diff.push(json!({"path": path, "produced": null})),
        (a, b) => diff.push(json!({"path": path, "recorded": a, "produced": b})),
    }
}

/// The error of a model call, as it is recorded.
pub fn recorded_error(error: Option<&Value>) -> Error {
    let error = error.and_then(|error| Error::deserialize(error).ok());
    error.unwrap_or_else(|| {
        Error::adapter(AdapterReason::Unknown)
            .with_message("adapter error: unknown: the recorded call has no answer")
    })
}

/// What a fact says beyond its kind: how a tool came out, or why the run ended.
fn gist(fact: &Fact) -> Option<String> {
    let of_end = |end: &End| match end.metadata.get("error").and_then(|error| error.get("message"))
    {
        Some(Value::String(why)) => format!("{}: {why}", end.reason),
        _ => end.reason.to_string(),
    };
    let gist = match fact {
        Fact::ToolCompleted { content, .. } => content.clone(),
        Fact::ToolFailed { error, .. } | Fact::FinalizeFailed { error } => {
            error.message().into_owned()
        }
        Fact::SideEffect { name, .. } => name.clone(),
        Fact::BudgetExceeded { breach, .. } => {
            Error::budget_exceeded(breach, None).message().into_owned()
        }
        fact => of_end(fact.end()?),
    };
    Some(shortened(gist))
}

fn shortened(mut text: String) -> String {
    const MOST: usize = 200;
    if let Some((end, _)) = text.char_indices().nth(MOST) {
        text.truncate(end);
        text.push('…');
    }
    text
}
