//! What an error tells of a fact: whom it is about, and what was made.

use mynah_data::Error;
use mynah_log::{End, Fact};
use serde_json::Value;

use crate::recorded::of_tool;

/// The call that a fact is about.
pub(crate) fn call_of(fact: &Fact) -> Option<&str> {
    match fact {
        Fact::ToolScheduled { call_id, .. } => Some(call_id),
        _ => of_tool(fact).map(|(call, _)| call),
    }
}

/// What a fact says beyond its kind: how a tool came out, or why the run ended.
pub(crate) fn gist(fact: &Fact) -> Option<String> {
    let of_end = |end: &End| match end.metadata.get("error").and_then(|error| error.get("message"))
    {
        Some(Value::String(why)) => format!("{}: {why}", end.reason),
        _ => end.reason.to_string(),
    };
    let gist = match fact {
        Fact::ToolCompleted { content, .. } => content.clone(),
        Fact::ToolFailed { error, .. } | Fact::FinalizeFailed { error } => error.to_string(),
        Fact::SideEffect { name, .. } => name.clone(),
        Fact::BudgetExceeded { breach, .. } => Error::budget_exceeded(breach, None).to_string(),
        Fact::Suspended(end) | Fact::Completed(end) | Fact::Failed(end) => of_end(end),
        Fact::Cancelled { end, .. } => of_end(end),
        _ => return None,
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
