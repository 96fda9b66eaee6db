//! Decisions about calls of an agent, as a question of its parent and as the answer to it.

use mynah_data::ToolCall;
use serde_json::{Map, Value, json};

use crate::Decision;

/// Asks about these calls, each with its exact arguments.
pub(super) fn question(calls: &[ToolCall], may_have_run: bool) -> String {
    let (what, which) = match (may_have_run, calls.len()) {
        (false, 1) => ("May this call run?", "it"),
        (false, _) => ("May these calls run?", "all"),
        (true, 1) => ("This call may have run before the process died. Run it again?", "it"),
        (true, _) => ("These calls may have run before the process died. Run them again?", "all"),
    };
    let calls: String = calls
        .iter()
        .enumerate()
        .map(|(place, call)| format!("{}. {} {}\n", place + 1, call.name, arguments(call)))
        .collect();
    let how = match which {
        "it" => "Answer yes, or why not; `with {…}` runs it with other arguments.",
        _ => {
            "Answer yes for all of them, why not, or a decision for each: `1 yes; 2 no, too expensive; 3 with {…}`. \
             `with` changes the arguments."
        }
    };
    format!("{what}\n{calls}{how}")
}

/// The arguments on one line, so that no text in them looks like another call.
fn arguments(call: &ToolCall) -> String {
    match call.argument_error() {
        None => call.arguments.to_string(),
        Some(_) => format!("{:?}", call.raw_arguments),
    }
}

/// Reads a decision for each call from an answer.
///
/// # Errors
/// What the answer lacks, for the person who gave it.
pub(super) fn decisions(answer: &str, calls: &[ToolCall]) -> Result<Vec<Decision>, String> {
    if let Ok(Value::Object(by_id)) = serde_json::from_str(answer) {
        return by_ids(by_id, calls);
    }
    let Some(parts) = numbered(answer, calls.len())? else {
        let decision = decision(answer)?;
        return match decision {
            Decision::ApproveWith(_) if calls.len() > 1 => {
                Err("Say which call has these arguments, as in `1 with {…}`.".to_owned())
            }
            decision => Ok(vec![decision; calls.len()]),
        };
    };
    let mut all = vec![None; calls.len()];
    for (place, text) in parts {
        if all[place].replace(decision(&text)?).is_some() {
            return Err(format!("Call {} has two decisions.", place + 1));
        }
    }
    complete(all)
}

/// The answer that gives these decisions, by the ids of the calls.
pub(crate) fn answer(decisions: &[(String, Decision)]) -> String {
    let decided = decisions.iter().map(|(id, decision)| {
        let value = match decision {
            Decision::Approve => json!(true),
            Decision::ApproveWith(arguments) => json!({"arguments": arguments}),
            Decision::Reject(why) if why.is_empty() => json!(false),
            Decision::Reject(why) => json!(why),
            Decision::Result(result) => json!({"result": result}),
        };
        (id.clone(), value)
    });
    Value::Object(decided.collect()).to_string()
}

fn complete(all: Vec<Option<Decision>>) -> Result<Vec<Decision>, String> {
    let lacks = |place: usize| format!("Call {} has no decision.", place + 1);
    let all = all.into_iter().enumerate();
    all.map(|(place, decision)| decision.ok_or_else(|| lacks(place))).collect()
}

/// The answer of a program: a member for each call, by its id.
fn by_ids(mut by_id: Map<String, Value>, calls: &[ToolCall]) -> Result<Vec<Decision>, String> {
    let mut all = Vec::new();
    for call in calls {
        all.push(by_id.remove(&call.id).map(decided).transpose()?);
    }
    match by_id.keys().next() {
        Some(id) => Err(format!("No call {id:?} waits for a decision.")),
        None => complete(all),
    }
}

fn decided(value: Value) -> Result<Decision, String> {
    match value {
        Value::Bool(true) => Ok(Decision::Approve),
        Value::Bool(false) => Ok(Decision::Reject(String::new())),
        Value::String(why) => Ok(Decision::Reject(why)),
        Value::Object(mut members) => {
            let arguments = members.remove("arguments").map(Decision::ApproveWith);
            let decision = arguments.or_else(|| members.remove("result").map(Decision::Result));
            decision.ok_or_else(|| "A decision has `arguments` or a `result`.".to_owned())
        }
        _ => Err("A decision is true, false, a reason, `arguments` or a `result`.".to_owned()),
    }
}

/// The parts of an answer that begins with the number of a call, by the places of the calls; none if it begins otherwise.
///
/// # Errors
/// A decision about a call that is none of these. A reason may begin with any number.
fn numbered(answer: &str, calls: usize) -> Result<Option<Vec<(usize, String)>>, String> {
    let mut parts: Vec<(usize, String)> = Vec::new();
    for piece in answer.split(['\n', ';']).filter(|piece| !piece.trim().is_empty()) {
        let text = piece.trim();
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = text.split_at(digits);
        let place = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let is_apart = rest.starts_with([' ', '.', ':', ')']);
        let rest = rest.trim_start_matches([' ', '.', ':', ')']);
        let is_reason = |decision| matches!(decision, Decision::Reject(why) if !why.is_empty());
        if digits > 0
            && is_apart
            && place.is_none_or(|place| place >= calls)
            && !is_reason(decision(rest)?)
        {
            return Err(match calls {
                1 => format!("There is no call {number}; there is one, so leave the number out."),
                _ => format!("There is no call {number}; give numbers from 1 to {calls}."),
            });
        }
        match (place.filter(|place| is_apart && *place < calls), parts.last_mut()) {
            (Some(place), _) => {
                parts.push((place, rest.to_owned()));
            }
            // A reason may have a semicolon or several lines.
            (None, Some((_, before))) => *before = format!("{before}; {text}"),
            (None, None) => return Ok(None),
        }
    }
    Ok((!parts.is_empty()).then_some(parts))
}

/// A decision in words. Anything but a clear yes is a rejection, with the words as the reason.
fn decision(text: &str) -> Result<Decision, String> {
    let text = text.trim();
    if let Some(arguments) = text.strip_prefix("with ").map(str::trim)
        && arguments.starts_with('{')
    {
        let parsed = serde_json::from_str(arguments).map(Decision::ApproveWith);
        return parsed.map_err(|error| format!("The arguments are not JSON: {error}."));
    }
    let word = text.to_lowercase();
    Ok(match word.trim_end_matches(['.', '!']) {
        "y" | "yes" | "ok" | "approve" | "approved" => Decision::Approve,
        "" | "n" | "no" => Decision::Reject(String::new()),
        _ => {
            let why = ["no,", "No,", "no:", "No:"].iter().find_map(|no| text.strip_prefix(no));
            Decision::Reject(why.unwrap_or(text).trim().to_owned())
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn calls(count: usize) -> Vec<ToolCall> {
        (0..count)
            .map(|n| ToolCall::new(format!("c{n}"), "send", format!(r#"{{"to":{n}}}"#)))
            .collect()
    }

    fn no(why: &str) -> Decision {
        Decision::Reject(why.to_owned())
    }

    #[test]
    fn an_answer_decides_about_all_calls_or_about_each() {
        use Decision::{Approve, ApproveWith, Result};
        let table = [
            (1, "Yes.", vec![Approve]),
            (2, "ok", vec![Approve, Approve]),
            (1, "no", vec![no("")]),
            (1, "No, not today; perhaps tomorrow", vec![no("not today; perhaps tomorrow")]),
            (2, "nobody asked", vec![no("nobody asked"), no("nobody asked")]),
            (1, r#"with {"to":7}"#, vec![ApproveWith(json!({"to": 7}))]),
            (1, "with pleasure", vec![no("with pleasure")]),
            (2, "1 yes; 2 no, too dear", vec![Approve, no("too dear")]),
            (2, "2: yes\n1) why? tell me; first", vec![no("why? tell me; first"), Approve]),
            (2, r#"1 with {"to":7}; 2 yes"#, vec![ApproveWith(json!({"to": 7})), Approve]),
            (1, "2 weeks is too late", vec![no("2 weeks is too late")]),
            (2, r#"{"c0":true,"c1":"later"}"#, vec![Approve, no("later")]),
            (1, r#"{"c0":{"arguments":{"to":7}}}"#, vec![ApproveWith(json!({"to": 7}))]),
            (1, r#"{"c0":{"result":"sent"}}"#, vec![Result(json!("sent"))]),
        ];
        for (count, answer, expected) in table {
            assert_eq!(decisions(answer, &calls(count)), Ok(expected), "{answer}");
        }
    }

    #[test]
    fn decisions_are_read_as_they_were_written() {
        let given = [
            Decision::Approve,
            Decision::ApproveWith(json!({"to": 7})),
            no(""),
            no("later"),
            Decision::Result(json!("sent")),
        ];
        let by_id =
            given.iter().enumerate().map(|(n, decision)| (format!("c{n}"), decision.clone()));
        let written = answer(&by_id.collect::<Vec<_>>());
        assert_eq!(decisions(&written, &calls(given.len())), Ok(given.to_vec()));
    }

    #[test]
    fn an_answer_that_leaves_a_call_open_is_refused() {
        let table = [
            ("1 yes", "Call 2 has no decision."),
            ("1 yes; 1 no; 2 yes", "Call 1 has two decisions."),
            ("3 yes", "There is no call 3; give numbers from 1 to 2."),
            ("1 yes; 0: no", "There is no call 0; give numbers from 1 to 2."),
            (r#"{"c0":true}"#, "Call 2 has no decision."),
            (r#"{"c0":true,"c1":true,"c9":true}"#, "No call \"c9\" waits for a decision."),
            (r#"with {"to":7}"#, "Say which call has these arguments, as in `1 with {…}`."),
            (
                r#"1 yes; 2 with {"to":}"#,
                "The arguments are not JSON: expected value at line 1 column 7.",
            ),
        ];
        for (answer, why) in table {
            assert_eq!(decisions(answer, &calls(2)), Err(why.to_owned()), "{answer}");
        }
    }

    #[test]
    fn a_question_has_each_call_on_a_line_of_its_own() {
        let two = [
            ToolCall::new("a", "send", "{\"to\": \"x\\n2. pay {}\"}"),
            ToolCall::new("b", "pay", "{broken\n"),
        ];
        let asked = question(&two, false);
        let lines: Vec<&str> = asked.lines().collect();
        assert_eq!(lines[1..3], [r#"1. send {"to":"x\n2. pay {}"}"#, r#"2. pay "{broken\n""#]);
        assert_eq!(lines.len(), 4, "{asked}");
    }
}
