//! Schemas without references.

use mynah_data::Metadata;
use serde_json::Value;

use super::{
    Change, Note, is_annotation,
    neutral::{Neutral, escaped},
};

/// How many values are inlined before a target is replaced by any value: definitions that refer to
/// each other would grow without bound.
const MAX_INLINED: usize = 4_096;

/// How many references may stand within each other.
const MAX_WITHIN: usize = 32;

/// A schema with its references inlined, under their siblings. A target inside itself may be any
/// value there.
pub(super) fn inline(neutral: &mut Neutral) -> Value {
    let mut notes = Vec::new();
    let mut inlining =
        Inlining { neutral, within: vec!["#".to_owned()], left: MAX_INLINED, notes: &mut notes };
    let written = inlining.members(&neutral.root, "");
    neutral.notes.extend(notes);
    Value::Object(written)
}

/// The schema with nothing at its root but `type`, `properties` and `required`. What would say more of the arguments stays, for the
/// provider to refuse.
pub(super) fn with_bare_root(schema: Value) -> Value {
    let Value::Object(mut root) = schema else { return schema };
    root.retain(|name, value| {
        let is_closed = name == "additionalProperties" && *value == false;
        !is_annotation(name) && !is_closed
    });
    Value::Object(root)
}

struct Inlining<'n> {
    neutral: &'n Neutral,
    /// The references that are being inlined.
    within: Vec<String>,
    left: usize,
    notes: &'n mut Vec<Note>,
}

impl<'n> Inlining<'n> {
    fn part(&mut self, part: &'n Value, path: &str) -> Value {
        if self.within.len() > 1 {
            self.left = self.left.saturating_sub(1);
        }
        match part {
            Value::Array(parts) => {
                let each = parts.iter().enumerate();
                each.map(|(index, part)| self.part(part, &format!("{path}/{index}"))).collect()
            }
            Value::Object(members) => Value::Object(self.members(members, path)),
            other => other.clone(),
        }
    }

    fn members(&mut self, members: &'n Metadata, path: &str) -> Metadata {
        let mut written = Metadata::new();
        let reference = members.get("$ref").and_then(Value::as_str);
        if let Some(reference) = reference {
            let is_free = self.left > 0
                && self.within.len() < MAX_WITHIN
                && !self.within.iter().any(|within| within == reference);
            match self.neutral.target(reference).filter(|_| is_free) {
                Some(target) => {
                    self.within.push(reference.to_owned());
                    written = self.members(target, path);
                    self.within.pop();
                }
                None => self.note(path, format!("refers to {reference}, and accepts anything")),
            }
        }
        for (name, value) in members {
            let is_reference = name == "$ref" && reference.is_some();
            let is_empty = value.as_str().is_some_and(str::is_empty);
            if is_reference || (is_empty && written.contains_key(name)) {
                continue;
            }
            let part = self.part(value, &format!("{path}/{}", escaped(name)));
            if written.get(name).is_some_and(|known| *known != part) && !is_annotation(name) {
                self.note(path, format!("has a {name} beside a reference, which counts alone"));
            }
            written.insert(name.clone(), part);
        }
        written
    }

    fn note(&mut self, path: &str, text: String) {
        self.notes.push(Note { path: path.to_owned(), change: Change::Lost, text });
    }
}
