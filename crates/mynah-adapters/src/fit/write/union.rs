//! Alternatives, null among them.

use std::collections::HashSet;

use mynah_data::Metadata;
use serde_json::{Value, json};

use super::{
    super::{
        Change, describe,
        disjoint::{are_disjoint, followed, values},
        is_annotation,
        merge::merge,
        root::{MAX_HOPS, resolved},
        type_of, types,
    },
    Writer, tell,
};

/// How many alternatives are compared with each other.
const MAX_COMPARED: usize = 64;

impl Writer<'_> {
    /// Makes `anyOf` of `oneOf`, and one list of alternatives that are values.
    pub(super) fn union(&mut self, own: &mut Metadata, path: &str) {
        for name in ["anyOf", "oneOf"] {
            let Some(Value::Array(branches)) = own.get(name).cloned() else { continue };
            if let Some(folded) = self.folded(own, name, &branches) {
                self.note(path, Change::Rewritten, format!("{name} of values became enum"));
                *own = folded;
                continue;
            }
            if name == "oneOf" && own.contains_key("anyOf") {
                let mut told = Vec::new();
                let value = own.shift_remove(name).unwrap_or_default();
                self.lose(&mut told, path, name, &value);
                tell(own, &told);
                continue;
            }
            let branches = match self.rules.closed {
                true => self.distributed(own, name, branches, path),
                false => branches,
            };
            if name == "oneOf" {
                let is_exact = branches.len() <= MAX_COMPARED
                    && branches.iter().enumerate().all(|(at, first)| {
                        branches.iter().enumerate().all(|(other, second)| {
                            at == other
                                || are_disjoint(self.neutral, first, second, self.rules.closed)
                        })
                    });
                match is_exact {
                    true => self.note(path, Change::Rewritten, "oneOf became anyOf"),
                    false => {
                        self.note(path, Change::Lost, "oneOf became anyOf, and several may fit")
                    }
                }
            }
            let renamed =
                std::mem::take(own).into_iter().map(|(member, value)| match member == name {
                    true => ("anyOf".to_owned(), branches.clone().into()),
                    false => (member, value),
                });
            *own = renamed.collect();
        }
    }

    /// One list of values for alternatives that each are values.
    fn folded(&self, own: &Metadata, name: &str, branches: &[Value]) -> Option<Metadata> {
        if own.contains_key("enum") {
            return None;
        }
        let (mut listed, mut kinds, mut told) = (Vec::new(), Vec::new(), Vec::new());
        let mut known = HashSet::new();
        for (index, branch) in branches.iter().enumerate() {
            let branch = branch.as_object()?;
            let is_plain = |name: &String| {
                is_annotation(name) || matches!(name.as_str(), "type" | "const" | "enum")
            };
            // A type that permits values that are listed nowhere is none of them.
            let own_values: Vec<Value> = match (values(branch), types(branch).as_deref()) {
                (Some(values), _) => values.into_iter().cloned().collect(),
                (None, Some(["null"])) => vec![Value::Null],
                _ => return None,
            };
            if !branch.keys().all(is_plain) {
                return None;
            }
            if let Some(own_kinds) = types(branch) {
                // Values of another type fit nothing.
                let fits = |value: &Value| {
                    own_kinds.contains(&type_of(value))
                        || (type_of(value) == "integer" && own_kinds.contains(&"number"))
                };
                if !own_values.iter().all(fits) {
                    return None;
                }
            }
            for value in own_values {
                if !known.insert((value.to_string(), 0)) {
                    // Several alternatives have it, or this one has it twice.
                    if name == "oneOf" && !known.contains(&(value.to_string(), index + 1)) {
                        return None;
                    }
                    continue;
                }
                known.insert((value.to_string(), index + 1));
                if let Some(text) =
                    branch.get("description").or(branch.get("title")).and_then(Value::as_str)
                {
                    told.push(format!("{value}: {text}"));
                }
                let kind = type_of(&value);
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
                listed.push(value);
            }
        }
        if !branches
            .iter()
            .any(|branch| branch.get("const").is_some() || branch.get("enum").is_some())
        {
            return None;
        }
        let mut folded = Metadata::new();
        for (member, value) in own {
            if member != name {
                folded.insert(member.clone(), value.clone());
                continue;
            }
            if !own.contains_key("type") {
                let kind = match kinds.as_slice() {
                    [one] => Value::from(*one),
                    several => several.iter().copied().collect(),
                };
                folded.insert("type".to_owned(), kind);
            }
            folded.insert("enum".to_owned(), listed.clone().into());
        }
        if !told.is_empty() {
            describe(&mut folded, &told.join("\n"));
        }
        Some(folded)
    }

    /// Alternatives that repeat their siblings: a closed alternative has no other members.
    fn distributed(
        &mut self,
        own: &mut Metadata,
        name: &str,
        branches: Vec<Value>,
        path: &str,
    ) -> Vec<Value> {
        if let Some(kinds) = types(own)
            && branches.iter().all(|branch| {
                let branch = followed(self.neutral, branch);
                branch.is_some_and(|branch| {
                    types(branch).is_some_and(|own| own.iter().all(|kind| kinds.contains(kind)))
                })
            })
        {
            own.shift_remove("type");
        }
        let mut base = Metadata::new();
        own.retain(|member, value| {
            let stays = member == name || is_annotation(member);
            if !stays {
                base.insert(member.clone(), value.clone());
            }
            stays
        });
        if base.is_empty() {
            return branches;
        }
        let mut written = Vec::with_capacity(branches.len());
        for branch in &branches {
            let branch = branch.as_object().and_then(|branch| {
                let is_recursive = branch.get("$ref").and_then(Value::as_str);
                if is_recursive
                    .is_some_and(|reference| self.merging.iter().any(|of| of == reference))
                {
                    return None;
                }
                merge(&base, &resolved(self.neutral, branch, MAX_HOPS)?)
            });
            match branch.filter(|branch| self.merging.len() < MAX_HOPS && self.affords(branch)) {
                Some(branch) => written.push(branch.into()),
                None => {
                    self.block(path, "has alternatives that cannot say what stands beside them");
                    own.extend(base);
                    return branches;
                }
            }
        }
        self.note(path, Change::Rewritten, format!("what stands beside {name} moved into it"));
        written
    }

    /// A schema of one type that may be nullable, or alternatives of several types.
    pub(super) fn without_null(
        &mut self,
        mut own: Metadata,
        path: &str,
    ) -> Result<Metadata, Metadata> {
        let mut is_nullable = false;
        if let Some(Value::Array(branches)) = own.get_mut("anyOf") {
            let before = branches.len();
            branches.retain(|branch| *branch != json!({"type": "null"}));
            is_nullable = branches.len() < before;
            if branches.is_empty() {
                self.note(path, Change::Lost, "null alone is no type");
                own.shift_remove("anyOf");
                own.insert("nullable".to_owned(), true.into());
                return Ok(own);
            }
            if let ([Value::Object(only)], true) = (branches.as_slice(), is_nullable) {
                let only = only.clone();
                let mut outer = own.clone();
                outer.shift_remove("anyOf");
                if let Some(mut merged) = merge(&only, &outer) {
                    merged.insert("nullable".to_owned(), true.into());
                    self.note(path, Change::Rewritten, "null became nullable");
                    return Err(merged);
                }
            }
        }
        let kinds: Vec<String> =
            types(&own).unwrap_or_default().into_iter().map(str::to_owned).collect();
        let others: Vec<&String> = kinds.iter().filter(|kind| *kind != "null").collect();
        is_nullable |= others.len() < kinds.len();
        match others.as_slice() {
            [] if is_nullable && !kinds.is_empty() => {
                self.note(path, Change::Lost, "null alone is no type");
                own.shift_remove("type");
            }
            [] => {}
            [only] => drop(own.insert("type".to_owned(), only.as_str().into())),
            several if !own.contains_key("anyOf") => {
                let of_type = |kind: &str| -> Value {
                    let members = own.iter().filter(|(name, _)| applies(name, kind));
                    let mut branch: Metadata =
                        members.map(|(name, value)| (name.clone(), value.clone())).collect();
                    branch.insert("type".to_owned(), kind.into());
                    branch.into()
                };
                let branches: Value = several.iter().map(|kind| of_type(kind)).collect();
                own.retain(|name, _| is_annotation(name));
                own.insert("anyOf".to_owned(), branches);
                if is_nullable {
                    own.insert("nullable".to_owned(), true.into());
                }
                self.note(path, Change::Rewritten, "several types became anyOf");
                return Err(own);
            }
            _ => {
                self.note(path, Change::Lost, "several types beside anyOf are left away");
                own.shift_remove("type");
            }
        }
        if let Some(Value::Array(listed)) = own.get_mut("enum") {
            let before = listed.len();
            listed.retain(|value| !value.is_null());
            // Only a type that permits null makes it one of the values.
            is_nullable &= listed.len() < before;
        }
        if is_nullable {
            own.insert("nullable".to_owned(), true.into());
            self.note(path, Change::Rewritten, "null became nullable");
        }
        Ok(own)
    }
}

/// Whether a member says something of values of a type.
fn applies(name: &str, kind: &str) -> bool {
    const STRINGS: [&str; 3] = ["minLength", "maxLength", "pattern"];
    const NUMBERS: [&str; 5] =
        ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
    const ARRAYS: [&str; 8] = [
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
    ];
    const OBJECTS: [&str; 10] = [
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
    ];
    let own: [(&[&str], &[&str]); 4] = [
        (&STRINGS, &["string"]),
        (&NUMBERS, &["number", "integer"]),
        (&ARRAYS, &["array"]),
        (&OBJECTS, &["object"]),
    ];
    !is_annotation(name)
        && own.iter().all(|(names, kinds)| !names.contains(&name) || kinds.contains(&kind))
}
