//! Secrets and personal data, replaced before a run is kept.
//!
//! Texts that match a rule are replaced in every fact, and the records are made anew: nothing of the old text is left in them. The agent itself
//! (its prompt, tools and params) is not changed, so that it still equals the agent file. Its texts are not replaced elsewhere either.

use std::{collections::BTreeMap, fmt, io, path::Path, sync::Arc};

use mynah::{
    Message, Part, Response, SystemWorld, World as _,
    log::{About, Append, Chain, Cut, Fact, Log, MemoryLog, Seal, Totals},
    recorded_call, replay_run,
};
use regex::{Captures, Regex};
use serde::Serialize;
use serde_json::Value;

use super::{GoldenError, unusable};
use crate::place::{self, Source};

/// The rules that always apply. A file can switch them off by name.
const BUILT_IN: [(&str, &str); 5] = [
    ("private_key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----"),
    (
        "key",
        r"\b(?:sk-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}|gh[oprsu]_[A-Za-z0-9]{20,}|xox[abprs]-[A-Za-z0-9-]{10,})",
    ),
    ("jwt", r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"),
    ("bearer", r"(?i)\bbearer\s+[a-z0-9._~+/-]{16,}=*"),
    ("email", r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"),
];

/// Members that name things and hold no content.
const NAMES: [&str; 15] = [
    "kind",
    "type",
    "role",
    "id",
    "call_id",
    "tool_call_id",
    "run_id",
    "request_id",
    "name",
    "model",
    "hash",
    "prompt",
    "root",
    "plan",
    "approved",
];

/// Members that hold values of tools and callers, in which any member is content.
const FREE: [&str; 6] = ["arguments", "ok", "opts", "metadata", "context", "effect"];

/// Rules by their names: a pattern, or `false` for a rule that is off.
pub(super) type Table = BTreeMap<String, Value>;

/// What is replaced in a run before it is kept as a golden.
///
/// Keys of providers, tokens, private keys and mail addresses are replaced by default. A text becomes `[RULE-N]`: the same text has the same
/// number wherever it occurs.
///
/// ```
/// use mynah_agent::golden::Rules;
///
/// let rules = Rules::default().rule("customer", r"C-\d{6}")?.without("email");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rules(Vec<(String, Regex)>);

impl Default for Rules {
    fn default() -> Self {
        let built_in =
            |(name, pattern): (&str, &str)| Some((name.to_owned(), Regex::new(pattern).ok()?));
        Self(BUILT_IN.into_iter().filter_map(built_in).collect())
    }
}

impl Rules {
    /// Replaces nothing.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// The default rules with those of a file, by default `redact.toml` beside the goldens: `customer = 'C-\d{6}'` adds a rule, `email = false`
    /// switches one off. A file that does not exist has none.
    ///
    /// # Errors
    /// A file that cannot be read, or a pattern that is none.
    pub fn read(file: &Path) -> Result<Self, GoldenError> {
        let text = match place::read(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.map_err(|error| unusable(file, error))?,
        };
        let source = Source::new(file, text);
        let table: Table = toml::from_str(&source.text).map_err(|error| source.misfit(&error))?;
        Self::default().with(&table).map_err(|(name, why)| source.error(&[&name], why).into())
    }

    /// The same rules with those of a table. The error has the name of the rule.
    pub(super) fn with(mut self, table: &Table) -> Result<Self, (String, String)> {
        for (name, rule) in table {
            self = match rule {
                Value::String(pattern) => {
                    self.rule(name, pattern).map_err(|why| (name.clone(), why))?
                }
                Value::Bool(false) => self.without(name),
                _ => return Err((name.clone(), "give a pattern, or false".to_owned())),
            };
        }
        Ok(self)
    }

    /// The table that makes these rules of others.
    pub(super) fn since(&self, others: &Self) -> Table {
        let has = |rules: &Self, name: &str, pattern: &Regex| {
            rules.0.iter().any(|(known, it)| known == name && it.as_str() == pattern.as_str())
        };
        let is_named = |name: &str| self.0.iter().any(|(known, _)| known == name);
        let gone = others.0.iter().filter(|(name, _)| !is_named(name));
        let gone = gone.map(|(name, _)| (name.clone(), false.into()));
        let new = self.0.iter().filter(|(name, pattern)| !has(others, name, pattern));
        let new = new.map(|(name, pattern)| (name.clone(), pattern.as_str().into()));
        gone.chain(new).collect()
    }

    /// Adds a rule, or replaces the one of this name.
    ///
    /// # Errors
    /// A text that is no pattern.
    pub fn rule(self, name: &str, pattern: &str) -> Result<Self, String> {
        let pattern = Regex::new(pattern).map_err(|error| error.to_string())?;
        if pattern.is_match("") {
            return Err("the pattern matches the empty text".to_owned());
        }
        let mut rules = self.without(name);
        rules.0.insert(0, (name.to_owned(), pattern));
        Ok(rules)
    }

    /// Removes a rule.
    pub fn without(mut self, name: &str) -> Self {
        self.0.retain(|(known, _)| known != name);
        self
    }
}

/// What was replaced: how many different texts, by the name of their rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Redacted(pub BTreeMap<String, usize>);

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.0.iter().map(|(name, count)| format!("{name} ({count})"));
        f.write_str(&counted.collect::<Vec<_>>().join(", "))
    }
}

/// The texts that were replaced, and by what. A text that is kept is known by itself.
///
/// Names are given in the order of the conversation. One that stands in it already is not given to another text. So a run that is made again from a
/// golden has the same names, as long as it has the same texts.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    rules: Rules,
    known: BTreeMap<String, String>,
    /// The last number of each rule.
    last: BTreeMap<String, usize>,
    redacted: Redacted,
    keeps: bool,
}

impl Names {
    pub(super) fn new(rules: &Rules) -> Self {
        Self { rules: rules.clone(), ..Self::default() }
    }

    /// Keeps the texts of a value wherever they occur.
    fn keep(&mut self, value: &impl Serialize) {
        self.keeps = true;
        serde_json::to_value(value).iter_mut().for_each(|value| self.free(value));
        self.keeps = false;
    }

    /// The names in a run. The rules leave the texts that it has.
    pub(super) fn of_run(rules: &Rules, messages: &[Arc<Message>]) -> Self {
        let mut names = Self::new(rules);
        messages.iter().for_each(|message| names.keep(message));
        names
    }

    /// The names for a run that is made from this one.
    pub(super) fn afresh(&self) -> Self {
        Self { last: BTreeMap::new(), ..self.clone() }
    }

    /// The same message with texts replaced.
    pub(super) fn message(&mut self, message: &Arc<Message>) -> Arc<Message> {
        let replaced = serde_json::to_value(message).and_then(|mut value| {
            self.value(&mut value);
            serde_json::from_value(value)
        });
        replaced.map_or_else(|_| Arc::clone(message), Arc::new)
    }

    /// A pattern for an expected text. A text that the run does not have may have any name of its rule.
    pub(super) fn pattern(&self, text: &str) -> String {
        let mut names = self.clone();
        let mut pattern = regex::escape(&names.plain(text));
        for name in names.known.iter().filter(|(text, _)| !self.known.contains_key(*text)) {
            let rule = name.1.trim_end_matches(|c: char| c.is_ascii_digit() || c == ']');
            let any = format!(r"{}\d+\]", regex::escape(rule));
            pattern = pattern.replace(&regex::escape(name.1), &any);
        }
        pattern
    }

    /// Replaces in a text. One that is JSON stays JSON.
    pub(super) fn text(&mut self, text: &str) -> String {
        if text.trim_start().starts_with(['{', '['])
            && let Ok(value) = serde_json::from_str::<Value>(text)
        {
            let mut changed = value.clone();
            self.free(&mut changed);
            return if changed == value { text.to_owned() } else { changed.to_string() };
        }
        self.plain(text)
    }

    fn plain(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, pattern) in &self.rules.0 {
            let last = self.last.entry(name.clone()).or_default();
            for rest in text.split(&format!("[{name}-")).skip(1) {
                let number = rest.split_once(']').and_then(|(number, _)| number.parse().ok());
                *last = number.unwrap_or(0).max(*last);
            }
            let replace = |found: &Captures<'_>| {
                let next = || {
                    if self.keeps {
                        return found[0].to_owned();
                    }
                    *self.redacted.0.entry(name.clone()).or_default() += 1;
                    *last += 1;
                    format!("[{name}-{last}]")
                };
                self.known.entry(found[0].to_owned()).or_insert_with(next).clone()
            };
            text = pattern.replace_all(&text, replace).into_owned();
        }
        text
    }

    /// Replaces everywhere in a value: in names and numbers too.
    pub(super) fn free(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Number(number) => {
                let text = number.to_string();
                let changed = self.plain(&text);
                if changed != text {
                    *value = changed.into();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.free(item)),
            Value::Object(fields) => {
                let changed = std::mem::take(fields).into_iter().map(|(name, mut field)| {
                    self.free(&mut field);
                    (self.plain(&name), field)
                });
                *fields = changed.collect();
            }
            _ => {}
        }
    }

    /// Replaces in the content of a fact.
    fn value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(fields) => {
                for (name, field) in fields {
                    match (name.as_str(), field) {
                        // What the agent is stays: it is in the agent file.
                        ("about", Value::Object(about)) => {
                            about.get_mut("session").into_iter().for_each(|link| self.value(link));
                        }
                        (name, field) if FREE.contains(&name) => self.free(field),
                        (name, _) if NAMES.contains(&name) => {}
                        (_, field) => self.value(field),
                    }
                }
            }
            _ => {}
        }
    }

    fn fact(&mut self, fact: Fact) -> Result<Fact, String> {
        let mut value = serde_json::to_value(&fact).map_err(|error| error.to_string())?;
        let before = value.clone();
        self.value(&mut value);
        if value == before {
            return Ok(fact);
        }
        let mut fact: Fact = serde_json::from_value(value).map_err(|error| error.to_string())?;
        match &mut fact {
            Fact::AssistantCompleted { response, cuts, .. }
            | Fact::BudgetExceeded { partial: Some(response), cuts, .. }
            | Fact::Cancelled { partial: Some(response), cuts, .. } => {
                *cuts = whole(cuts, response)?
            }
            Fact::RunStarted { .. }
            | Fact::Resumed { .. }
            | Fact::UserMessage { .. }
            | Fact::TurnStarted { .. }
            | Fact::TurnLost { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::FinalizeFailed { .. }
            | Fact::ToolScheduled { .. }
            | Fact::ToolCompleted { .. }
            | Fact::ToolFailed { .. }
            | Fact::SideEffect { .. }
            | Fact::ContextTruncated { .. }
            | Fact::BudgetExceeded { partial: None, .. }
            | Fact::Suspended(_)
            | Fact::Completed(_)
            | Fact::Failed(_)
            | Fact::Cancelled { partial: None, .. }
            | Fact::Sealed(_)
            | Fact::Removed(_) => {}
        }
        Ok(fact)
    }
}

/// How an answer arrived, with each of its parts in one piece: pieces could hold halves of what was replaced.
fn whole(cuts: &[Cut], response: &Response) -> Result<Vec<Cut>, String> {
    let parts = response.message.parts();
    let mut told = vec![false; parts.len()];
    let mut joined = Vec::new();
    for cut in cuts {
        match cut {
            Cut::Pieces { part, id, .. } => {
                let Some(told) = told.get_mut(*part).filter(|told| !**told) else { continue };
                *told = true;
                let len = match &parts[*part] {
                    Part::Text { text, .. }
                    | Part::Reasoning { text, .. }
                    | Part::Refusal { text } => text.len(),
                    Part::ToolCall(call) => call.raw_arguments.len(),
                    _ => 0,
                };
                joined.push(Cut::Pieces { part: *part, id: id.clone(), lens: vec![len] });
            }
            Cut::Event(event) => match event.type_name() {
                "raw_chunk" => {}
                "text_delta" | "reasoning_delta" | "tool_call_delta" => {
                    return Err(
                        "an answer came in pieces that cannot be redacted; choose another run"
                            .to_owned(),
                    );
                }
                _ => joined.push(cut.clone()),
            },
            cut => joined.push(cut.clone()),
        }
    }
    Ok(joined)
}

/// Fields that follow from the texts: a digest, and estimates by length.
const DERIVED: [&str; 6] = [
    "prompt",
    "input_tokens",
    "tokens_before",
    "tokens_after",
    "cost",
    // Of a call for a summary.
    "effect.done.input_tokens",
];

/// How many records are read at once.
const PAGE: usize = 256;

/// The facts of a run, with their times.
pub(super) async fn facts(log: &dyn Log, run: &str) -> Result<Vec<(i64, Fact)>, GoldenError> {
    let unreadable = |why: String| GoldenError::Unreadable { run: run.to_owned(), why };
    let mut facts = Vec::new();
    loop {
        let page = log.read(run, facts.len() as u64 + 1, PAGE).await?;
        for record in &page {
            let fact = record.fact().map_err(|corrupt| unreadable(corrupt.what))?;
            let fact =
                fact.ok_or_else(|| unreadable("the body of a record was removed".to_owned()))?;
            facts.push((record.envelope().ts, fact));
        }
        if page.is_empty() {
            return Ok(facts);
        }
    }
}

/// Puts the conversation before a turn of a session into its first fact. Returns whether the run is such a turn.
async fn stands_alone(
    log: &dyn Log,
    run: &str,
    facts: &mut [(i64, Fact)],
) -> Result<bool, GoldenError> {
    let Some((_, Fact::RunStarted { thread, about: Some(about), .. })) = facts.first_mut() else {
        return Ok(false);
    };
    let Some(previous) = about.session.as_mut().and_then(|link| link.previous.take()) else {
        return Ok(false);
    };
    let whole = recorded_call(log, run).await?.thread.messages;
    let before = whole.iter().take(usize::try_from(previous.messages).unwrap_or(usize::MAX));
    thread.messages = before.chain(thread.messages.iter()).cloned().collect();
    Ok(true)
}

/// The places of facts in the order of the conversation. Results of tools are recorded as they come, which may be in another order in the next run.
fn in_order(facts: &[(i64, Fact)]) -> Vec<usize> {
    let (mut answer, mut calls) = (0, Vec::new());
    let place = |(place, (_, fact)): (usize, &(i64, Fact))| match fact {
        Fact::AssistantCompleted { response, .. } => {
            (answer, calls) = (place, response.tool_calls().map(|call| call.id.clone()).collect());
            (place, 0, place)
        }
        Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } => {
            let call = calls.iter().position(|id| *id == **call_id);
            call.map_or((place, 0, place), |call| (answer, call + 1, place))
        }
        _ => (place, 0, place),
    };
    let mut places: Vec<_> = facts.iter().enumerate().map(place).collect();
    places.sort_unstable();
    places.into_iter().map(|(.., place)| place).collect()
}

/// Copies a run into a log of its own: with texts replaced, and with the conversation before it. None if neither changes anything.
///
/// # Errors
/// A run that cannot be read, or does not replay with the texts replaced.
pub(super) async fn redacted(
    log: &dyn Log,
    run: &str,
    rules: &Rules,
) -> Result<Option<(MemoryLog, Redacted)>, GoldenError> {
    let refused = |why: String| GoldenError::Redact { run: run.to_owned(), why };
    let mut names = Names::new(rules);
    let mut facts = facts(log, run).await?;
    let is_turn = stands_alone(log, run, &mut facts).await?;
    for (_, fact) in &facts {
        if let Fact::RunStarted { about: Some(about), .. }
        | Fact::Resumed { about: Some(about), .. } = fact
        {
            names.keep(&About { session: None, ..About::clone(about) });
        }
    }
    for place in in_order(&facts) {
        let fact = &mut facts[place].1;
        *fact = names.fact(fact.clone()).map_err(&refused)?;
    }
    // The seal is made anew.
    facts.retain(|(_, fact)| !matches!(fact, Fact::Sealed(_)));
    if names.redacted.0.is_empty() && !is_turn {
        return Ok(None);
    }
    for _ in 0..=facts.len() {
        let copy = recorded(run, &facts).await?;
        let Err(error) = replay_run(&copy, run).await else {
            return Ok(Some((copy, names.redacted)));
        };
        let Some(mismatch) = error.mismatch() else { return Err(error.into()) };
        let place = usize::try_from(mismatch.seq).unwrap_or_default();
        let fact = facts.get_mut(place.wrapping_sub(1)).map(|(_, fact)| fact);
        let is_derived = mismatch.differences.iter().all(|field| DERIVED.contains(&&*field.path));
        let (Some(fact), true) = (fact, is_derived && !mismatch.differences.is_empty()) else {
            return Err(refused(format!("it does not replay as a file of its own: {error}")));
        };
        let mut value = serde_json::to_value(&*fact).map_err(|error| refused(error.to_string()))?;
        for field in mismatch.differences {
            let produced = field.produced.unwrap_or_default();
            match value.pointer_mut(&format!("/{}", field.path.replace('.', "/"))) {
                Some(place) => *place = produced,
                None => value[field.path] = produced,
            }
        }
        *fact = serde_json::from_value(value).map_err(|error| refused(error.to_string()))?;
    }
    Err(refused("it does not replay as a file of its own".to_owned()))
}

/// Facts as records of a sealed run, in a log of its own.
async fn recorded(run: &str, facts: &[(i64, Fact)]) -> Result<MemoryLog, GoldenError> {
    let (mut chain, mut totals, mut records) = (Chain::new(run), Totals::default(), Vec::new());
    let salt = || SystemWorld.random_bytes();
    for (ts, fact) in facts {
        let record = chain.append(*ts, salt(), fact)?;
        totals.add(record.adds());
        records.push(record);
    }
    let ended = facts.last().map_or(0, |(ts, _)| *ts);
    let seal = Fact::Sealed(Seal::new(chain.root(), totals));
    records.push(chain.append(ended, salt(), &seal)?);
    let log = MemoryLog::new();
    log.append(Append::new(run, None, records)).await?;
    Ok(log)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_tools_are_replaced_in_names_numbers_and_json_within_texts() {
        let rules = Rules::default().rule("account", r"\b\d{8}\b").unwrap();
        let rules = rules.rule("customer", r"C-\d{6}").unwrap();
        let mut names = Names::new(&rules);
        let mut fact = json!({
            "kind": "tool_completed",
            "call_id": "C-123456",
            "outcome": {"ok": {
                "id": "C-123456",
                "account": 12345678,
                "ada@example.org": [1],
                "stdout": "{\"id\": \"C-123456\", \"n\": 12345678}",
            }},
            "content": "C-123456 and C-654321",
        });
        names.value(&mut fact);
        let expected = json!({
            "kind": "tool_completed",
            "call_id": "C-123456",
            "outcome": {"ok": {
                "id": "[customer-1]",
                "account": "[account-1]",
                "[email-1]": [1],
                "stdout": "{\"id\":\"[customer-1]\",\"n\":\"[account-1]\"}",
            }},
            "content": "[customer-1] and [customer-2]",
        });
        assert_eq!(fact, expected);
        assert_eq!(names.redacted.to_string(), "account (1), customer (2), email (1)");
    }
}
