//! What a golden run must do.

use std::{collections::BTreeMap, fs, io, path::Path};

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use crate::golden::Done;

/// The expectations in the file beside a golden.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// The tools that are called, in order, and no others.
    tools: Option<Vec<String>>,
    /// Calls that are made, in this order. Others may be between them.
    #[serde(default)]
    calls: Vec<ExpectedCall>,
    /// What the answer contains.
    #[serde(default)]
    contains: Vec<String>,
    /// What the answer does not contain.
    #[serde(default)]
    lacks: Vec<String>,
    /// A pattern that the answer matches.
    matches: Option<String>,
    /// Values in an answer that is JSON, by their JSON pointers.
    #[serde(default)]
    json: BTreeMap<String, Value>,
    /// The JSON Schema that the answer fits.
    schema: Option<Value>,
    max_turns: Option<u64>,
    max_tokens: Option<u64>,
    max_usd: Option<f64>,
    max_seconds: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedCall {
    tool: String,
    /// Patterns of its arguments, by their names.
    #[serde(default)]
    arguments: BTreeMap<String, String>,
}

impl Expect {
    /// Reads a file; one that is missing expects nothing.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        match fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.to_string()),
            Ok(text) => toml::from_str::<Self>(&text).map_err(|error| error.to_string())?.checked(),
        }
    }

    /// A pattern that cannot be read would otherwise be found only when a run is judged.
    fn checked(self) -> Result<Self, String> {
        let patterns = self.calls.iter().flat_map(|call| call.arguments.values());
        for pattern in patterns.chain(&self.matches) {
            Regex::new(pattern).map_err(|error| error.to_string())?;
        }
        if let Some(schema) = &self.schema {
            jsonschema::validator_for(schema).map_err(|error| format!("schema: {error}"))?;
        }
        Ok(self)
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.tools.is_some() || !self.calls.is_empty()
    }

    /// What a run did not do as expected.
    pub(crate) fn findings(&self, done: &Done) -> Vec<String> {
        let mut findings = Vec::new();
        let called: Vec<&str> = done.calls().map(|call| call.name.as_str()).collect();
        if let Some(tools) = self.tools.as_ref().filter(|tools| **tools != called) {
            findings.push(format!("tools: expected {tools:?}, called {called:?}"));
        }
        let mut calls = done.calls();
        for expected in &self.calls {
            if !calls.any(|call| expected.fits(&call.name, &call.arguments)) {
                let arguments = &expected.arguments;
                findings.push(format!(
                    "calls: no call of {} with {arguments:?} in this order",
                    expected.tool
                ));
                break;
            }
        }
        let text = &done.text;
        for part in self.contains.iter().filter(|part| !text.contains(&**part)) {
            findings.push(format!("contains: the answer has no {part:?}: {text:?}"));
        }
        for part in self.lacks.iter().filter(|part| text.contains(&**part)) {
            findings.push(format!("lacks: the answer has {part:?}: {text:?}"));
        }
        if let Some(pattern) = self.matches.as_ref().filter(|pattern| !matches(pattern, text)) {
            findings.push(format!("matches: the answer does not match {pattern:?}: {text:?}"));
        }
        findings.extend(self.of_json(text));
        let totals = &done.summary.totals;
        let tokens = totals.input_tokens + totals.output_tokens;
        let seconds = done.summary.updated.saturating_sub(done.summary.started) as f64 / 1e9;
        let limits = [
            ("max_turns", self.max_turns.map(|limit| limit as f64), totals.turns as f64),
            ("max_tokens", self.max_tokens.map(|limit| limit as f64), tokens as f64),
            ("max_usd", self.max_usd, totals.cost),
            ("max_seconds", self.max_seconds, seconds),
        ];
        for (name, limit, spent) in limits {
            if let Some(limit) = limit.filter(|limit| spent > *limit) {
                findings.push(format!("{name}: at most {limit} expected, {spent} used"));
            }
        }
        findings
    }

    fn of_json(&self, text: &str) -> Vec<String> {
        if self.json.is_empty() && self.schema.is_none() {
            return Vec::new();
        }
        let Ok(answer) = serde_json::from_str::<Value>(text) else {
            return vec![format!("json: the answer is not JSON: {text:?}")];
        };
        let mut findings = Vec::new();
        for (pointer, expected) in &self.json {
            let found = answer.pointer(pointer).unwrap_or(&Value::Null);
            if found != expected {
                findings.push(format!("json: {pointer} is {found}, expected {expected}"));
            }
        }
        let validator =
            self.schema.as_ref().and_then(|schema| jsonschema::validator_for(schema).ok());
        if let Some(Err(error)) = validator
            .map(|validator| validator.validate(&answer).map_err(|error| error.to_string()))
        {
            findings.push(format!("schema: {error}"));
        }
        findings
    }
}

impl ExpectedCall {
    fn fits(&self, tool: &str, arguments: &Value) -> bool {
        let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
        self.tool == tool
            && self.arguments.iter().all(|(name, pattern)| {
                arguments.get(name).is_some_and(|value| matches(pattern, &text(value)))
            })
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
}
