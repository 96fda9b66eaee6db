//! What a golden run must do.

use std::{collections::BTreeMap, io, path::Path};

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::{
    Done, Finding, GoldenError, Judges,
    judge::Judge,
    redact::{Names, Rules, Table},
    unusable,
};
use crate::{
    answer,
    place::{self, Source},
};

/// The expectations in the file beside a golden.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
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
    /// Values in an answer that is JSON, by their paths.
    #[serde(default)]
    json: BTreeMap<String, Value>,
    /// The JSON Schema that the answer fits.
    schema: Option<Value>,
    max_turns: Option<u64>,
    max_tokens: Option<u64>,
    max_usd: Option<f64>,
    max_seconds: Option<f64>,
    /// A model that judges the run.
    pub(super) judge: Option<Judge>,
    /// The share of runs that must pass; all by default.
    pass_rate: Option<f64>,
    /// Rules for what is replaced in this golden, besides those of its folder.
    pub(super) redact: Option<Table>,
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
    pub(super) fn read(file: &Path, judges: Option<&Judges>) -> Result<Self, GoldenError> {
        let text = match place::read(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.map_err(|error| unusable(file, error))?,
        };
        let source = Source::new(file, text);
        let expect: Self = toml::from_str(&source.text).map_err(|error| source.misfit(&error))?;
        expect.check(&source, judges)?;
        Ok(expect)
    }

    /// What cannot be checked would otherwise be found only when a run is judged.
    fn check(&self, source: &Source, judges: Option<&Judges>) -> Result<(), GoldenError> {
        let wrong = |path: &[&str], pattern: &str| match Regex::new(pattern) {
            Ok(_) => Ok(()),
            Err(error) => Err(source.error(path, error.to_string().replace('\n', " "))),
        };
        for (place, call) in self.calls.iter().enumerate() {
            for (name, pattern) in &call.arguments {
                wrong(&["calls", &place.to_string(), "arguments", name], pattern)?;
            }
        }
        if let Some(pattern) = &self.matches {
            wrong(&["matches"], pattern)?;
        }
        if let Some(path) = self.json.keys().find(|path| pointer(path).is_none()) {
            let why = "give a path as $.items[0].price, or a JSON pointer as /items/0/price";
            return Err(source.error(&["json", path], why).into());
        }
        if let Some(Err(error)) = self.schema.as_ref().map(jsonschema::validator_for) {
            return Err(source.error(&["schema"], error.to_string()).into());
        }
        if let Some(Err((name, why))) = self.redact.as_ref().map(|it| Rules::none().with(it)) {
            return Err(source.error(&["redact", &name], why).into());
        }
        if let Some(Err(why)) = self.judge.as_ref().map(|judge| judge.check(judges)) {
            return Err(source.error(&["judge", "model"], why).into());
        }
        if self.pass_rate.is_some_and(|rate| !(0.0..=1.0).contains(&rate)) {
            return Err(source.error(&["pass_rate"], "give a number from 0 to 1").into());
        }
        Ok(())
    }

    /// These rules with those of this golden, which were checked when it was read.
    pub(super) fn rules(&self, rules: Rules) -> Rules {
        match &self.redact {
            Some(table) => rules.clone().with(table).unwrap_or(rules),
            None => rules,
        }
    }

    /// Whether enough of the runs passed.
    pub(super) fn is_enough(&self, passed: u32, runs: u32) -> bool {
        f64::from(passed) >= self.pass_rate.unwrap_or(1.0) * f64::from(runs) - 1e-9
    }

    pub(super) fn has_calls(&self) -> bool {
        self.tools.is_some() || !self.calls.is_empty()
    }

    /// What a run did not do as expected. The judge is not asked.
    pub(super) fn findings(&self, done: &Done) -> Vec<Finding> {
        let mut findings = self.of_calls(done);
        findings.extend(
            done.misfit()
                .map(|error| Finding::new("output", format!("output: {}", error.message()))),
        );
        let (text, mut find) = (&done.text, |key: &str, what: String| {
            findings.push(Finding::new(key, format!("{key}: {what}")));
        });
        let names = &done.names;
        let has = |part: &&String| text.contains(&**part) || matches(&names.pattern(part), text);
        for part in self.contains.iter().filter(|part| !has(part)) {
            find("contains", format!("the answer has no {part:?}: {text:?}"));
        }
        let has = |part: &&String| text.contains(&names.clone().text(part));
        for part in self.lacks.iter().filter(has) {
            find("lacks", format!("the answer has {part:?}: {text:?}"));
        }
        if let Some(pattern) = self.matches.as_ref().filter(|pattern| !matches(pattern, text)) {
            find("matches", format!("the answer does not match {pattern:?}: {text:?}"));
        }
        let totals = &done.totals;
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
                // Six decimals are enough for a person, unless the limit would then look kept.
                let rounded = (spent * 1e6).round() / 1e6;
                let spent = if rounded > limit { rounded } else { spent };
                find(name, format!("at most {limit} expected, {spent} used"));
            }
        }
        if let Some(model) = done.unpriced_model().filter(|_| self.max_usd.is_some()) {
            find(
                "max_usd",
                format!("the price of {model} is not known, so the limit cannot be checked"),
            );
        }
        findings.extend(self.of_json(text, names));
        findings
    }

    fn of_calls(&self, done: &Done) -> Vec<Finding> {
        let mut findings = Vec::new();
        let called: Vec<&str> = done.calls().map(|call| call.name.as_str()).collect();
        if let Some(tools) = self.tools.as_ref().filter(|tools| **tools != called) {
            let what = format!("tools: expected {tools:?}, called {called:?}");
            findings.push(Finding::new("tools", what));
        }
        let mut calls = done.calls();
        let mut is_made =
            |expected: &ExpectedCall| calls.any(|call| expected.fits(&call.name, &call.arguments));
        let missing = self.calls.iter().find(|expected| !is_made(expected));
        if let Some(ExpectedCall { tool, arguments }) = missing {
            let made: Vec<String> =
                done.calls().map(|call| format!("{} {}", call.name, call.arguments)).collect();
            let what = format!(
                "calls: no call of {tool} with {arguments:?} in this order, among {made:?}"
            );
            findings.push(Finding::new("calls", what));
        }
        findings
    }

    fn of_json(&self, text: &str, names: &Names) -> Vec<Finding> {
        if self.json.is_empty() && self.schema.is_none() {
            return Vec::new();
        }
        let Ok(answer) = answer::read(text) else {
            return vec![Finding::new("json", format!("json: the answer is not JSON: {text:?}"))];
        };
        let mut findings = Vec::new();
        for (path, expected) in &self.json {
            let found = pointer(path).and_then(|pointer| answer.pointer(&pointer));
            let fits = |found: &Value| match (found, expected) {
                (Value::String(found), Value::String(expected)) => {
                    matches(&format!("^(?s:{})$", names.pattern(expected)), found)
                }
                _ => found == expected,
            };
            if !found.is_some_and(fits) {
                let found = found.map_or("not there".to_owned(), Value::to_string);
                let what = format!("json: {path} is {found}, expected {expected}");
                findings.push(Finding::new("json", what));
            }
        }
        let validator =
            self.schema.as_ref().and_then(|schema| jsonschema::validator_for(schema).ok());
        let errors = validator.iter().flat_map(|validator| validator.iter_errors(&answer));
        findings.extend(errors.map(|error| {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "the answer".to_owned() } else { place };
            Finding::new("schema", format!("schema: {place}: {error}"))
        }));
        findings
    }
}

/// The JSON pointer of a path: itself, or that of `$.items[0].price`.
fn pointer(path: &str) -> Option<String> {
    if path.is_empty() || path.starts_with('/') {
        return Some(path.to_owned());
    }
    let steps = path.strip_prefix('$')?.replace('[', ".").replace(']', "");
    let Some(steps) = steps.strip_prefix('.') else {
        return steps.is_empty().then(String::new);
    };
    let is_step = |step: &str| !step.is_empty() && step != "*";
    let steps: Vec<&str> = steps.split('.').collect();
    steps.iter().all(|step| is_step(step)).then(|| {
        let step = |step: &&str| format!("/{}", step.replace('~', "~0").replace('/', "~1"));
        steps.iter().map(step).collect()
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_pointers() {
        let table = [
            ("/a/0", Some("/a/0")),
            ("$.items[0].price", Some("/items/0/price")),
            ("$[1]", Some("/1")),
            ("$", Some("")),
            ("$.a/b", Some("/a~1b")),
            ("$..a", None),
            ("$.a[*]", None),
            ("price", None),
        ];
        for (path, expected) in table {
            assert_eq!(pointer(path).as_deref(), expected, "{path}");
        }
    }
}
