//! What a check finds, for programs and for people.

use std::fmt;

use mynah::{Error, differences, log::Fact};
use serde::Serialize;
use serde_json::{Value, json};

use super::Done;

/// Something that is not as expected.
///
/// Its text names what is wrong. Below it stands each field that differs; `>` marks the first, and `^` the first character.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The key of the expectation that is not met; `record`, `differs` or `end` where the run differs from the recorded one; `update` where the golden was not
    /// replaced by the run; `file` where the golden cannot be read.
    pub about: String,
    /// What is wrong.
    pub message: String,
    /// The fields that differ, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// In how many runs it was found.
    pub runs: u32,
}

/// A field that has another value than before.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// The field, as `about.params.system` or `call 2, shell: command`.
    pub place: String,
    /// The recorded value; none if the record has none.
    pub recorded: Option<Value>,
    /// The value now; none if there is none.
    pub produced: Option<Value>,
}

/// How many characters of a value are shown.
const WIDTH: usize = 72;

/// How many of them stand before the first that differs, if the value is longer.
const BEFORE: usize = 24;

impl Finding {
    pub(super) fn new(about: &str, message: impl Into<String>) -> Self {
        Self { about: about.to_owned(), message: message.into(), changes: Vec::new(), runs: 1 }
    }

    /// Whether an expectation is not met, as opposed to a run that differs from the recorded one.
    pub fn is_expectation(&self) -> bool {
        !["record", "differs", "end", "update"].contains(&&*self.about)
    }

    /// What a replay found.
    pub(super) fn of_replay(error: &Error, recorded: &Done) -> Self {
        let Some(mismatch) = error.mismatch() else {
            return Self::new("record", error.to_string());
        };
        let (seq, message) = (mismatch.seq, error.message());
        let what = message.split_once(&format!("record {seq}: ")).map_or(&*message, |(_, it)| it);
        let changes = mismatch.differences.into_iter().map(|place| Change {
            place: named(&place.path, recorded),
            recorded: place.recorded,
            produced: place.produced,
        });
        Self { changes: changes.collect(), ..Self::new("record", format!("record {seq}: {what}")) }
    }
}

/// A field of a tool by the name of the tool, not its place among the tools.
fn named(path: &str, recorded: &Done) -> String {
    const TOOLS: &str = "about.tools.";
    let about = recorded.facts.iter().rev().find_map(|(_, fact)| match fact {
        Fact::RunStarted { about, .. } | Fact::Resumed { about, .. } => about.as_deref(),
        _ => None,
    });
    let rest = path.strip_prefix(TOOLS).map(|rest| rest.split_once('.').unwrap_or((rest, "")));
    let found = rest.and_then(|(place, rest)| {
        let tool = about?.tools.get(place.parse::<usize>().ok()?)?;
        Some(format!("{TOOLS}{}.{rest}", tool.name))
    });
    found.map_or_else(|| path.to_owned(), |path| path.trim_end_matches('.').to_owned())
}

impl Change {
    /// How the calls of two runs differ: in their order, their tools, and each of their arguments.
    pub(super) fn of_calls(recorded: &Done, made: &Done) -> Vec<Self> {
        let (recorded, made): (Vec<_>, Vec<_>) =
            (recorded.calls().collect(), made.calls().collect());
        let mut changes = Vec::new();
        for place in 0..recorded.len().max(made.len()) {
            let name = format!("call {}", place + 1);
            match (recorded.get(place), made.get(place)) {
                (Some(old), Some(new)) if old.name == new.name => {
                    for field in differences(&old.arguments, &new.arguments) {
                        let path = field["path"].as_str().unwrap_or_default();
                        changes.push(Self {
                            place: format!("{name}, {}: {path}", old.name),
                            recorded: field.get("recorded").cloned(),
                            produced: field.get("produced").cloned(),
                        });
                    }
                }
                (old, new) => {
                    let shown = |call: &&mynah::ToolCall| {
                        json!(format!("{} {}", call.name, call.arguments))
                    };
                    let (recorded, produced) = (old.map(shown), new.map(shown));
                    changes.push(Self { place: name, recorded, produced });
                }
            }
        }
        changes
    }

    /// How the answers of two runs differ.
    pub(super) fn of_answers(recorded: &Done, made: &Done) -> Option<Self> {
        let answer = |done: &Done| Some(Value::from(done.text.as_str()));
        (recorded.text != made.text).then(|| Self {
            place: "answer".to_owned(),
            recorded: answer(recorded),
            produced: answer(made),
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.runs > 1 {
            write!(f, " (in {} runs)", self.runs)?;
        }
        for (place, change) in self.changes.iter().enumerate() {
            write!(f, "\n{} {change}", if place == 0 { ">" } else { " " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<Value>| match value {
            Some(value) => value.to_string().chars().collect(),
            None => Vec::new(),
        };
        let (recorded, produced) = (text(&self.recorded), text(&self.produced));
        let same = recorded.iter().zip(&produced).take_while(|(a, b)| a == b).count();
        let is_long = recorded.len().max(produced.len()) > WIDTH;
        let from = if is_long { same.saturating_sub(BEFORE) } else { 0 };
        let shown = |text: &[char]| -> String {
            if text.is_empty() {
                return "nothing".to_owned();
            }
            let (before, after) = (from > 0, text.len() > from + WIDTH);
            let middle = text.iter().skip(from).take(WIDTH);
            before.then_some(&'…').into_iter().chain(middle).chain(after.then_some(&'…')).collect()
        };
        write!(f, "{}\n    recorded: {}\n    produced: ", self.place, shown(&recorded))?;
        f.write_str(&shown(&produced))?;
        if same > 1 {
            write!(
                f,
                "\n{:>1$}",
                '^',
                "    produced: ".len() + same - from + 1 + usize::from(from > 0)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut_around_the_first_character_that_differs() {
        let long = "word ".repeat(40);
        let change = |recorded: Value, produced: Value| {
            let (recorded, produced) = (Some(recorded), Some(produced));
            Change { place: "p".to_owned(), recorded, produced }.to_string()
        };
        let short = change(json!("Be brief."), json!("Be kind."));
        assert_eq!(
            short,
            "p\n    recorded: \"Be brief.\"\n    produced: \"Be kind.\"\n                  ^"
        );
        let long = change(json!(format!("{long}old")), json!(format!("{long}new")));
        let lines: Vec<&str> = long.lines().collect();
        let place = lines[3].chars().position(|c| c == '^').unwrap_or_default();
        assert_eq!(lines[1].chars().nth(place), Some('o'), "{long}");
        assert_eq!(lines[2].chars().nth(place), Some('n'), "{long}");
        assert!(lines[1].starts_with("    recorded: …") && lines[1].chars().count() < 90, "{long}");
        let gone = Change { place: "p".to_owned(), recorded: Some(json!(1)), produced: None };
        assert_eq!(gone.to_string(), "p\n    recorded: 1\n    produced: nothing");
    }
}
