//! Values, calls and totals as a person reads them.

use mynah::{Catalog, ChatResult, Engine, ToolCall, log::Totals};
use mynah_agent::default_context;
use serde_json::Value;

use crate::text::{cost, count, line, short, width};

/// A value for a person: the fields of an object below each other, and texts as they are.
pub(super) fn legible(value: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
    let field = |(name, value): (&String, &Value)| {
        let text = text(value);
        let text = text.trim_end();
        let gap = if text.contains('\n') { "\n" } else { " " };
        format!("{name}:{gap}{text}")
    };
    match value {
        Value::Object(fields) => {
            let is_empty = |value: &Value| value.is_null() || value == "";
            let fields = fields.iter().filter(|(_, value)| !is_empty(value));
            fields.map(field).collect::<Vec<_>>().join("\n")
        }
        other => text(other),
    }
}

/// The arguments of a call, or what the model wrote in place of JSON.
pub(super) fn arguments_of(call: &ToolCall) -> String {
    match call.argument_error() {
        Some(_) => call.raw_arguments.clone(),
        None => call.arguments.to_string(),
    }
}

/// The result of a tool for a person: of a command what it printed, and its exit code if it failed.
pub(super) fn printed(result: &Value) -> String {
    let (Some(Value::String(stdout)), Some(code)) = (result.get("stdout"), result.get("exit_code"))
    else {
        return legible(result);
    };
    let stderr = result["stderr"].as_str().unwrap_or_default();
    let failed = if *code == 0 { String::new() } else { format!("exit code {code}") };
    let parts = [stdout.trim_end(), stderr.trim_end(), &failed];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The arguments of a call in few words: the only one alone.
pub(super) fn brief(arguments: &Value) -> String {
    let fields = arguments.as_object().map(|fields| fields.values().collect::<Vec<_>>());
    match fields.as_deref() {
        Some([Value::String(only)]) => only.clone(),
        Some([]) => String::new(),
        _ => arguments.to_string(),
    }
}

/// A call on one row: its name, its arguments if they fit, and the time.
pub(super) fn head(name: &str, arguments: &str, time: &str, columns: usize) -> String {
    let (name, taken) = (line(name), width(name) + width(time) + 8);
    let arguments = short(arguments, columns.saturating_sub(taken).max(8));
    format!("{name} {arguments} {time}").trim_end().to_owned()
}

/// How far a tool has come, in a few words.
pub(super) fn reached(progress: f64, total: Option<f64>, message: Option<&str>) -> String {
    const SHOWN: usize = 40;
    let share = match total {
        Some(total) if total > 0.0 => {
            format!("{:.0} %", (100.0 * progress / total).clamp(0.0, 100.0))
        }
        _ => progress.to_string(),
    };
    short(&line(&format!("{share} {}", message.unwrap_or_default())), SHOWN).trim_end().to_owned()
}

/// What was used, in a few words.
pub(crate) fn used(totals: &Totals) -> String {
    let cost = cost(totals.cost, "$").map(|cost| format!(", {cost}")).unwrap_or_default();
    format!(
        "{}, {}, {} + {} tokens{cost}",
        count(totals.turns, "turn"),
        count(totals.tool_calls, "tool call"),
        totals.input_tokens,
        totals.output_tokens
    )
}

/// How many tokens a request may have: as the agent says, or the context window of the model. None if neither is known.
pub(crate) fn context_room(engine: &Engine) -> Option<u64> {
    let catalog = Catalog::built_in();
    let (model, params) = (engine.get_model(), engine.get_params());
    let set = params.get("context_policy").and_then(|policy| policy["max_tokens"].as_u64());
    let own = set.filter(|own| *own != default_context(&catalog, model).max_tokens);
    own.or_else(|| catalog.inform(model?.clone()).limits.get("context")?.as_u64())
}

/// The share of that room that the last request and its answer take.
pub(crate) fn context_use(engine: &Engine, result: &ChatResult) -> Option<String> {
    let window = context_room(engine)?;
    let usage = &result.final_response.as_ref()?.usage;
    let tokens = usage.input_tokens? + usage.output_tokens.unwrap_or_default();
    Some(format!("context {}% of {}", tokens * 100 / window.max(1), thousands(window)))
}

/// A number of tokens in few digits.
pub(crate) fn thousands(tokens: u64) -> String {
    if tokens < 1000 { tokens.to_string() } else { format!("{}k", tokens / 1000) }
}
