//! What a record says, in a few words.

use mynah::{
    HANDOFF, HaltReason, Metadata, Response, ToolCall, ToolOutcome,
    log::{About, End, Fact, LeftOut, Plan},
};
use serde_json::{Value, json};

use crate::text::count;

/// What the model reads of a call that is denied, in short.
pub(crate) const NOT_PERMITTED: &str = "the call is not permitted";

/// The calls of an answer that are not permitted.
pub(crate) fn denied(plan: &Plan) -> &[String] {
    match plan {
        Plan::Tools { denied, .. } => denied,
        _ => &[],
    }
}

/// The note beside a call that was given up.
pub(crate) const UNKNOWN_OUTCOME: &str = "its outcome is unknown";

/// That a person did not want a call, and why.
pub(crate) fn refusal(why: &str) -> String {
    if why.is_empty() { "rejected".to_owned() } else { format!("rejected: {why}") }
}

/// What is shown of a call whose agent answers in place of the model.
pub(crate) const TOOK_OVER: &str = "took over";

/// The answer of an agent that took the conversation over.
pub(crate) fn handoff(outcome: &ToolOutcome) -> Option<&str> {
    match outcome {
        ToolOutcome::Halt { reason, result } if reason.as_str() == HANDOFF => result.as_str(),
        _ => None,
    }
}

/// What changed when a run continued: its model, its tools, and the names of other settings.
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

/// The names that were added, removed or changed.
fn marks(before: &Metadata, after: &Metadata) -> Vec<String> {
    let old = before.iter().filter_map(|(name, old)| match after.get(name) {
        None => Some(format!("-{name}")),
        Some(new) => (new != old).then(|| format!("~{name}")),
    });
    let new = after.keys().filter(|name| !before.contains_key(*name));
    old.chain(new.map(|name| format!("+{name}"))).collect()
}

/// What requests left out so that they fit, if these facts say that.
pub(crate) fn left_out<'f>(facts: impl IntoIterator<Item = &'f Fact>) -> Option<String> {
    let (mut messages, mut how) = (0, None);
    for fact in facts {
        match fact {
            Fact::ContextTruncated { messages_before, messages_after, strategy, .. } => {
                messages += messages_before.saturating_sub(*messages_after);
                how = Some(strategy.as_str());
            }
            Fact::RunStarted { about: Some(about), .. } => {
                // What the turn before left out, this one leaves out from its beginning on.
                let previous = about.session.as_ref().and_then(|session| session.previous.as_ref());
                let earlier = previous.and_then(|run| run.left_out.as_ref());
                messages += earlier.map_or(0, |earlier| earlier.dropped);
                let strategy = |earlier: &LeftOut| match earlier.summary {
                    Some(_) => "summarise",
                    None => "drop",
                };
                how = how.or(earlier.map(strategy));
            }
            Fact::RunStarted { about: None, .. }
            | Fact::Resumed { .. }
            | Fact::UserMessage { .. }
            | Fact::TurnStarted { .. }
            | Fact::TurnLost { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::FinalizeFailed { .. }
            | Fact::AssistantCompleted { .. }
            | Fact::ToolScheduled { .. }
            | Fact::ToolCompleted { .. }
            | Fact::ToolFailed { .. }
            | Fact::SideEffect { .. }
            | Fact::BudgetExceeded { .. }
            | Fact::Suspended(_)
            | Fact::Completed(_)
            | Fact::Failed(_)
            | Fact::Cancelled { .. }
            | Fact::Sealed(_)
            | Fact::Removed(_) => {}
        }
    }
    how.map(|how| match (messages, how) {
        (0, _) => "old tool results left out of requests".to_owned(),
        (_, "summarise") => format!("{} summarised", count(messages, "older message")),
        _ => format!("{} left out of requests", count(messages, "older message")),
    })
}

/// The choices that the question of a run offers.
pub(crate) fn choices(metadata: &Metadata) -> Vec<String> {
    let choices = metadata.get("ask_user_opts").and_then(|hints| hints["choices"].as_array());
    let text = |choice: &Value| choice.as_str().map_or_else(|| choice.to_string(), str::to_owned);
    choices.into_iter().flatten().map(text).collect()
}

/// How a question with a form is answered.
pub(crate) fn form(metadata: &Metadata) -> Option<String> {
    let fields = metadata.get("ask_user_opts")?["schema"]["properties"].as_object()?;
    let kind = |field: &Value| match field["enum"].as_array() {
        Some(values) => values.iter().map(Value::to_string).collect::<Vec<_>>().join(" or "),
        None => field["type"].as_str().unwrap_or("any value").to_owned(),
    };
    let of = |(name, field): (&String, &Value)| format!("{}: {}", json!(name), kind(field));
    let all = fields.iter().map(of).collect::<Vec<_>>().join(", ");
    Some(match fields.len() {
        1 => format!("answer with the value of {all}, or decline"),
        _ => format!("answer with JSON, {{{all}}}, or decline"),
    })
}

/// The name of the tool that asks, if it continues with the answer: an agent, or a server's tool.
pub(crate) fn asker<'c>(
    metadata: &Metadata,
    mut calls: impl Iterator<Item = &'c ToolCall>,
) -> Option<&'c str> {
    let id = metadata.get("pending_tool_call_id")?.as_str()?;
    metadata.get("ask_user_opts")?.get("continue")?;
    calls.find(|call| call.id == id).map(|call| call.name.as_str())
}

/// The question, the limit, the error, or the calls that a run stopped for, behind the reason.
pub(crate) fn detail(end: &End) -> String {
    end.to_string().split_off(end.reason.as_str().len())
}

/// Why a run waits after this answer, and for what.
pub(crate) fn waits(end: &End, answer: Option<&Fact>, about: Option<&About>) -> String {
    let calls = end.waiting_calls(answer);
    let tools = about.map(|about| &*about.tools).unwrap_or_default();
    let runs = |name: &str| tools.iter().any(|tool| tool.name == name && !tool.manual);
    let why = match end.reason {
        HaltReason::ManualToolCalls if calls.iter().all(|call| runs(&call.name)) => "approval of",
        HaltReason::ManualToolCalls => "the results of",
        HaltReason::UncertainTools => "the unknown outcome of",
        _ => end.reason.as_str(),
    };
    let calls =
        calls.into_iter().map(|call| format!("{} {} [{}]", call.name, call.arguments, call.id));
    match calls.collect::<Vec<_>>().join(", ") {
        calls if calls.is_empty() => end.to_string(),
        calls => format!("{why} {calls}"),
    }
}
