//! What a record says, in a few words.

use mynah::{
    Breach, Message, Metadata, Response,
    log::{About, Effect, End, Fact, Inside},
};
use serde::Deserialize as _;
use serde_json::{Value, json};

/// What is said beside a call that was given up.
pub(crate) const NOBODY_KNOWS: &str = "nobody knows whether it ran";

/// What a fact says, in a few words: to be shortened, and cleaned for a terminal.
pub(crate) fn gist(fact: &Fact) -> String {
    match fact {
        Fact::RunStarted { thread, .. } => {
            thread.messages.last().map_or_else(String::new, |last| said(last))
        }
        Fact::Resumed { message, tool_results, approved, rejected, given_up, .. } => {
            let results = tool_results.iter().map(|(id, content)| format!("[{id}] {content}"));
            let approved = approved.iter().map(|id| format!("[{id}] approved"));
            let rejected = rejected.iter().map(|(id, why)| format!("[{id}] {}", refusal(why)));
            let given_up = given_up.iter().map(|id| format!("[{id}] given up"));
            let answer = message.iter().map(|message| said(message));
            let all = results.chain(approved).chain(rejected).chain(given_up).chain(answer);
            all.collect::<Vec<_>>().join(" ")
        }
        Fact::UserMessage { message } => said(message),
        Fact::TurnStarted { turn, .. } => turn.to_string(),
        Fact::AssistantCompleted { response, .. } => said(&response.message),
        Fact::ToolScheduled { call_id, attempt, .. } => match attempt {
            1 => format!("[{call_id}]"),
            attempt => format!("[{call_id}] try {attempt}"),
        },
        Fact::ToolCompleted { call_id, content, .. } => format!("[{call_id}] {content}"),
        Fact::ToolFailed { call_id, error, .. } => format!("[{call_id}] {error}"),
        Fact::SideEffect { inside, name, effect, .. } => {
            let place = inside.as_ref().map(|Inside { call_id, .. }| format!("[{call_id}] "));
            format!("{}{name} {}", place.unwrap_or_default(), outcome(effect))
        }
        Fact::FinalizeFailed { error } => error.to_string(),
        Fact::Suspended(end)
        | Fact::Completed(end)
        | Fact::Failed(end)
        | Fact::Cancelled { end, .. } => format!("{}{}", end.reason, detail(end)),
        Fact::Sealed(seal) => seal.root.to_string(),
        other => {
            let mut value = json!(other);
            if let Value::Object(members) = &mut value {
                members.shift_remove("kind");
            }
            value.to_string()
        }
    }
}

/// That a person did not want a call, and why.
pub(crate) fn refusal(why: &str) -> String {
    if why.is_empty() { "rejected".to_owned() } else { format!("rejected: {why}") }
}

/// What came of a side effect.
pub(crate) fn outcome(effect: &Effect) -> String {
    match effect {
        Effect::Done(value) => value.to_string(),
        Effect::Failed(why) => format!("failed: {why}"),
    }
}

/// What a run goes on with that is not what it ran with before: its model, its tools, and the names of what else.
pub(crate) fn changes(before: &About, after: &About) -> Vec<String> {
    let mut changes = Vec::new();
    let model = |about: &About| about.model.clone().unwrap_or_else(|| about.adapter.clone());
    if (&before.adapter, &before.model) != (&after.adapter, &after.model) {
        changes.push(format!("model {} -> {}", model(before), model(after)));
    }
    let tools = |about: &About| {
        let tools = about.tools.iter().map(|tool| (tool.name.clone(), json!(tool)));
        tools.collect::<Metadata>()
    };
    let rest = [
        ("tools", marks(&tools(before), &tools(after))),
        ("params", marks(&before.params, &after.params)),
        ("options", marks(&before.options, &after.options)),
    ];
    let rest = rest.into_iter().filter(|(_, marks)| !marks.is_empty());
    changes.extend(rest.map(|(what, marks)| format!("{what} {}", marks.join(" "))));
    changes
}

/// The model that gave an answer, where it is not the one that the run asked. A snapshot of that one, which has a date, is.
pub(crate) fn other_model<'r>(about: Option<&About>, response: &'r Response) -> Option<&'r str> {
    let (asked, answered) = (about?.model.as_deref()?, response.model.as_deref()?);
    let is_date = |end: &str| end.len() > 8 && end.chars().all(|c| c == '-' || c.is_ascii_digit());
    let is_it =
        |name: &str| answered.strip_prefix(name).is_some_and(|end| end.is_empty() || is_date(end));
    let id = asked.split_once(':').map_or(asked, |(_, id)| id);
    (!is_it(asked) && !is_it(id)).then_some(answered)
}

/// The names of what came, went or is not the same.
fn marks(before: &Metadata, after: &Metadata) -> Vec<String> {
    let old = before.iter().filter_map(|(name, old)| match after.get(name) {
        None => Some(format!("-{name}")),
        Some(new) => (new != old).then(|| format!("~{name}")),
    });
    let new = after.keys().filter(|name| !before.contains_key(*name));
    old.chain(new.map(|name| format!("+{name}"))).collect()
}

/// The question, the limit, the error, or the calls that a run stopped for.
pub(crate) fn detail(end: &End) -> String {
    let metadata = &end.metadata;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let breach = || Breach::deserialize(metadata.get("budget")?).ok();
    let found = text(metadata.get("pending_question"))
        .or_else(|| breach().map(|breach| breach.to_string()))
        .or_else(|| text(metadata.get("error").and_then(|error| error.get("message"))))
        .or_else(|| metadata.get("uncertain_tool_calls").map(Value::to_string));
    found.map(|found| format!(": {found}")).unwrap_or_default()
}

/// Why a run waits after this answer, and for what.
pub(crate) fn waits(end: &End, answer: Option<&Fact>) -> String {
    let calls = end.waiting_calls(answer).into_iter();
    let calls = calls.map(|call| format!("{} {} [{}]", call.name, call.arguments, call.id));
    match calls.collect::<Vec<_>>().join(", ") {
        calls if calls.is_empty() => format!("{}{}", end.reason, detail(end)),
        calls => format!("{}: {calls}", end.reason),
    }
}

/// The text of a message, and the calls in it.
pub(crate) fn said(message: &Message) -> String {
    let text = message.text();
    let calls = message.tool_calls().map(|call| format!("> {} {}", call.name, call.arguments));
    let text = (!text.is_empty()).then(|| text.into_owned());
    text.into_iter().chain(calls).collect::<Vec<_>>().join(" ")
}
