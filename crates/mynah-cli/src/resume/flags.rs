//! Values of flags.

use clap::ValueEnum;
use mynah::{Budget, OnUncertain, log::Hash};
use serde_json::{Value, json};

/// One limit of a budget.
pub(crate) fn limit(said: &str) -> Result<(String, Value), String> {
    let (name, value) = said.split_once('=').ok_or("give a limit, =, and a number")?;
    let value: Value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    // Agent files have most of them without the first word.
    let full = format!("max_{name}");
    let name = if Budget::from_json(&json!({&full: value})).is_ok() { &full } else { name };
    match Budget::from_json(&json!({name: value})) {
        Ok(_) => Ok((name.to_owned(), value)),
        Err(errors) if errors.iter().any(|error| error.code == "unknown_field") => Err(format!(
            "no limit is called {name}; give one of max_input_tokens, max_output_tokens, \
             max_total_tokens, max_usd, max_wall_clock_ms, max_turns, max_tool_calls"
        )),
        Err(_) => Err("give a number that is not negative after the =".to_owned()),
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Policy {
    /// Suspend the run until a person decides.
    Suspend,
    /// Run them again.
    Rerun,
    /// Report the unknown outcome to the model.
    Fail,
}

impl From<Policy> for OnUncertain {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Suspend => Self::Suspend,
            Policy::Rerun => Self::Rerun,
            Policy::Fail => Self::Fail,
        }
    }
}

pub(super) fn tool_result(said: &str) -> Result<(String, Value), String> {
    let (id, value) = said.split_once('=').ok_or("give the call's id, =, and JSON")?;
    let value = serde_json::from_str(value)
        .map_err(|error| format!("not JSON after the =: {error}; text stands in quotes"))?;
    Ok((id.to_owned(), value))
}

pub(super) fn digest(said: &str) -> Result<(String, Hash), String> {
    let (id, digest) = said.split_once('=').ok_or("give the call's id, =, and the digest")?;
    let digest = digest.parse::<Hash>().map_err(|_| "not 64 hexadecimal digits after the =")?;
    Ok((id.to_owned(), digest))
}

/// The id of a call, and why it is not wanted.
pub(super) fn rejection(said: &str) -> (&str, &str) {
    said.split_once('=').unwrap_or((said, ""))
}
