//! A neutral schema, rewritten by the rules of a dialect.

use std::collections::{HashSet, VecDeque};

use mynah_data::Metadata;
use serde_json::{Value, json};

use super::{
    Change, Note,
    cycles::Cycles,
    describe,
    disjoint::followed,
    in_words, is_annotation, is_object,
    neutral::{Neutral, escaped, name_of, reached, reference_to},
    root::{MAX_HOPS, resolved},
    rules::{Rules, is_vacuous},
    strings, type_of, types,
};

mod union;

/// How many values are copied: alternatives that repeat their siblings would grow without bound.
const MAX_COPIED: usize = 10_000;

/// How deep schemas are written within each other. Only what is copied in the place of references gets deeper than the original.
const MAX_WRITTEN: usize = 64;

pub(super) struct Writer<'n> {
    rules: &'n Rules,
    neutral: &'n Neutral,
    cycles: Cycles,
    notes: Vec<Note>,
    /// Why the model cannot be held to the schema.
    blocked: Option<Note>,
    queue: VecDeque<String>,
    seen: HashSet<String>,
    /// The reference to what is being written.
    within: String,
    /// References whose targets are being written in their place.
    merging: Vec<String>,
    /// How many values may still be copied.
    left: usize,
    /// How many schemas are being written.
    depth: usize,
    level: usize,
    properties: usize,
    values: usize,
    optional: usize,
    unions: usize,
}

impl<'n> Writer<'n> {
    pub(super) fn new(rules: &'n Rules, neutral: &'n Neutral) -> Self {
        Self {
            rules,
            neutral,
            cycles: Cycles::of(neutral),
            notes: Vec::new(),
            blocked: None,
            queue: VecDeque::new(),
            seen: HashSet::new(),
            within: "#".to_owned(),
            merging: Vec::new(),
            left: MAX_COPIED,
            depth: 0,
            level: 0,
            properties: 0,
            values: 0,
            optional: 0,
            unions: 0,
        }
    }

    /// The schema, what differs, and why the model cannot be held to it.
    pub(super) fn write(mut self) -> (Value, Vec<Note>, Option<Note>) {
        let neutral = self.neutral;
        if !self.rules.recursion && !self.cycles.is_empty() {
            self.block("", "refers to itself");
        }
        let root = self.schema(&neutral.root, "");
        if self.rules.typed && root.get("type") != Some(&"object".into()) {
            self.block("", "is not an object");
        }
        let mut defs = Metadata::new();
        while let Some(name) = self.queue.pop_front() {
            self.within = reference_to(&name);
            if let Some(Value::Object(def)) = neutral.defs.get(&name) {
                let path = self.within.trim_start_matches('#').to_owned();
                defs.insert(name, self.schema(def, &path).into());
            }
        }
        let in_order = neutral.defs.keys().filter_map(|name| defs.remove_entry(name)).collect();
        let limits = &self.rules.limits;
        for (count, most, what) in [
            (self.properties, limits.properties, "properties"),
            (self.values, limits.values, "values in enums"),
            (self.optional, limits.optional, "optional properties"),
            (self.unions, limits.unions, "schemas of several types"),
        ] {
            if count > most {
                self.block("", &format!("has more than {most} {what}"));
            }
        }
        let defs = reached(&root, in_order);
        (neutral.joined(root, defs), self.notes, self.blocked)
    }

    fn note(&mut self, path: &str, change: Change, text: impl Into<String>) {
        self.notes.push(Note { path: path.to_owned(), change, text: text.into() });
    }

    fn block(&mut self, path: &str, why: &str) {
        let note = || Note {
            path: path.to_owned(),
            change: Change::NotStrict,
            text: format!("{why}: the model is not held to the schema"),
        };
        self.blocked.get_or_insert_with(note);
    }

    /// Moves a constraint into words.
    fn lose(&mut self, told: &mut Vec<String>, path: &str, name: &str, value: &Value) {
        told.push(in_words(name, value));
        self.note(path, Change::Lost, format!("{name} is described alone"));
    }

    /// Whether so much more may be copied.
    fn affords(&mut self, copied: &Metadata) -> bool {
        let mut open: Vec<&Value> = copied.values().collect();
        while let Some(value) = open.pop() {
            let Some(left) = self.left.checked_sub(1) else { return false };
            self.left = left;
            match value {
                Value::Array(list) => open.extend(list),
                Value::Object(map) => open.extend(map.values()),
                _ => {}
            }
        }
        true
    }

    fn schema(&mut self, schema: &Metadata, path: &str) -> Metadata {
        if self.depth == MAX_WRITTEN {
            self.block(path, "is nested too deeply");
            self.note(path, Change::Lost, "is nested too deeply, and accepts anything");
            return Metadata::new();
        }
        self.depth += 1;
        let written = self.rewritten(schema, path);
        self.depth -= 1;
        written
    }

    fn rewritten(&mut self, schema: &Metadata, path: &str) -> Metadata {
        let mut own = schema.clone();
        only_reference(&mut own);
        if let Some(reference) = own.get("$ref").and_then(Value::as_str).map(str::to_owned) {
            self.drop_same_type(&mut own);
            if own.keys().all(|name| name == "$ref" || is_annotation(name)) {
                return self.reference(own, &reference, path);
            }
        }
        if own.contains_key("$ref") || own.contains_key("allOf") {
            return self.all_of(own, path);
        }
        if let Some(only) = own.shift_remove("const") {
            let listed = own.get("enum").and_then(Value::as_array);
            if listed.is_some_and(|listed| !listed.contains(&only)) {
                self.block(path, "permits nothing");
                self.note(path, Change::Lost, "const is none of enum");
            }
            own.insert("enum".to_owned(), json!([only]));
            self.note(path, Change::Rewritten, "const became enum");
        }
        self.union(&mut own, path);
        if self.rules.nullable {
            own = match self.without_null(own, path) {
                Ok(own) => own,
                Err(several) => return self.schema(&several, path),
            };
        }
        self.members(&own, path)
    }

    /// A reference, with annotations at most.
    fn reference(&mut self, own: Metadata, reference: &str, path: &str) -> Metadata {
        if let Some(name) = name_of(reference)
            && self.seen.insert(name.clone())
        {
            self.queue.push_back(name);
        }
        let mut written = self.members(&own, path);
        if self.rules.ref_siblings || written.len() == 1 {
            return written;
        }
        self.note(path, Change::Rewritten, "the reference is the only alternative");
        let alone = written.shift_remove("$ref").unwrap_or_default();
        written.insert("anyOf".to_owned(), json!([{"$ref": alone}]));
        written
    }

    /// Leaves the type away that a reference has anyway.
    fn drop_same_type(&mut self, own: &mut Metadata) {
        let target = own.get("$ref").cloned().map(|reference| json!({"$ref": reference}));
        let target = target.as_ref().and_then(|target| followed(self.neutral, target));
        if let (Some(target), Some(kinds)) = (target, types(own))
            && (types(target).is_some_and(|own| own == kinds)
                || are_of_type(self.neutral, target, &kinds))
        {
            own.shift_remove("type");
        }
    }

    /// Schemas that all hold, as one.
    fn all_of(&mut self, own: Metadata, path: &str) -> Metadata {
        let parts = own.get("allOf").and_then(Value::as_array).into_iter().flatten();
        let references: Vec<String> = std::iter::once(own.get("$ref"))
            .chain(parts.map(|part| part.get("$ref")))
            .filter_map(|reference| reference?.as_str().map(str::to_owned))
            .collect();
        let is_within = references.iter().any(|reference| self.merging.contains(reference));
        let merged = match is_within || self.merging.len() >= MAX_HOPS {
            true => None,
            false => resolved(self.neutral, &own, MAX_HOPS).filter(|merged| self.affords(merged)),
        };
        let (merged, count) = match merged {
            Some(merged) => {
                self.note(path, Change::Rewritten, "schemas that all hold became one");
                let count = references.len();
                self.merging.extend(references);
                (merged, count)
            }
            None => (self.without_all_of(own, path), 0),
        };
        let written = self.schema(&merged, path);
        self.merging.truncate(self.merging.len() - count);
        written
    }

    /// What is left of schemas that all hold and cannot be one.
    fn without_all_of(&mut self, mut own: Metadata, path: &str) -> Metadata {
        if self.rules.closed {
            self.block(path, "has schemas that all hold and cannot be one");
        }
        let mut told = Vec::new();
        let names: Vec<String> = match own.contains_key("$ref") {
            true => {
                own.keys().filter(|name| *name != "$ref" && !is_annotation(name)).cloned().collect()
            }
            false => vec!["allOf".to_owned()],
        };
        for name in names {
            if let Some(value) = own.shift_remove(&name) {
                self.lose(&mut told, path, &name, &value);
            }
        }
        tell(&mut own, &told);
        own
    }

    /// Each member by the rules. There are neither references beside others, nor `oneOf`, `allOf` or `const`.
    fn members(&mut self, own: &Metadata, path: &str) -> Metadata {
        let mut written = Metadata::new();
        let mut told = Vec::new();
        let is_object = is_object(own);
        self.level += usize::from(is_object);
        if self.level > self.rules.limits.levels {
            self.block(path, "is nested too deeply");
        }
        self.unions += usize::from(
            own.contains_key("anyOf") || types(own).is_some_and(|kinds| kinds.len() > 1),
        );
        if self.rules.closed && is_object && is_open(own) {
            self.block(path, "has members of any name");
        }
        for (name, value) in own {
            let at = format!("{path}/{}", escaped(name));
            let kept = match (name.as_str(), value) {
                ("$ref", value) => Some(value.clone()),
                ("type", value) => Some(value.clone()),
                ("properties", Value::Object(map)) => Some(self.properties(own, map, &at).into()),
                ("required", Value::Array(_)) => self.required(own, path),
                ("anyOf", Value::Array(list)) => {
                    let each = list.iter().enumerate();
                    let each = each.map(|(index, part)| self.part(part, &format!("{at}/{index}")));
                    Some(each.collect())
                }
                ("items", items) => {
                    let is_first = !self.rules.prefix_items && own.contains_key("prefixItems");
                    (!is_first).then(|| self.part(items, &at))
                }
                ("prefixItems", Value::Array(list)) if self.rules.prefix_items => {
                    let each = list.iter().enumerate();
                    let each = each.map(|(index, part)| self.part(part, &format!("{at}/{index}")));
                    Some(each.collect())
                }
                ("prefixItems", Value::Array(list)) => {
                    let items = self.one_for_all(own, list, &mut told, path);
                    written.insert("items".to_owned(), items);
                    None
                }
                ("enum", Value::Array(list)) => self.listed(own, list, &mut told, path),
                ("additionalProperties", more) => self.more(more, &mut told, &at),
                ("unevaluatedProperties", Value::Bool(false)) if self.rules.closed => None,
                (name, value) if self.rules.keeps(own, name, value) => Some(value.clone()),
                (name, value) if is_vacuous(name, value) => None,
                ("default" | "examples" | "example", value) => {
                    told.push(in_words(name, value));
                    self.note(path, Change::Described, format!("{name} is described alone"));
                    None
                }
                ("deprecated", Value::Bool(true)) => {
                    told.push("Deprecated".to_owned());
                    None
                }
                ("format", value) => {
                    // How many bits a number has is nothing that a model could use.
                    let is_number = types(own).is_some_and(|kinds| !kinds.contains(&"string"));
                    if !is_number {
                        told.push(in_words(name, value));
                    }
                    self.note(path, Change::Described, "format is left away");
                    None
                }
                ("nullable", _) => None,
                (name, _) if is_annotation(name) => None,
                (name, value) => {
                    self.lose(&mut told, path, name, value);
                    None
                }
            };
            written.extend(kept.map(|value| (name.clone(), value)));
        }
        self.complete(own, &mut written, path);
        self.level -= usize::from(is_object);
        tell(&mut written, &told);
        written
    }

    fn part(&mut self, part: &Value, path: &str) -> Value {
        match part {
            Value::Object(part) => self.schema(part, path).into(),
            other => other.clone(),
        }
    }

    /// Adds what the dialect wants to see.
    fn complete(&mut self, own: &Metadata, written: &mut Metadata, path: &str) {
        if self.rules.typed && !written.contains_key("type") && !written.contains_key("anyOf") {
            let listed = written.get("enum").and_then(Value::as_array);
            let mut kinds: Vec<&str> = Vec::new();
            listed.into_iter().flatten().map(type_of).for_each(|kind| {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            });
            let kind = match kinds.as_slice() {
                [] if is_object(own) => Some("object".into()),
                [] if own.contains_key("items") || own.contains_key("prefixItems") => {
                    Some("array".into())
                }
                [] => None,
                [one] => Some((*one).into()),
                several => Some(several.iter().copied().collect()),
            };
            match kind {
                Some(kind) => drop(written.insert("type".to_owned(), kind)),
                None if written.contains_key("$ref") => {}
                None => self.block(path, "accepts anything"),
            }
        }
        let kinds = types(written).unwrap_or_default();
        if self.rules.typed && kinds.contains(&"array") && !written.contains_key("items") {
            self.block(path, "has items of any kind");
        }
        if self.rules.nullable {
            let is_nothing = !written.contains_key("type") && !written.contains_key("anyOf");
            let lacks = |kind: &str, member: &str| {
                kinds.contains(&kind)
                    && written.get(member).and_then(Value::as_object).is_none_or(Metadata::is_empty)
            };
            if is_nothing
                || lacks("object", "properties")
                || (kinds.contains(&"array") && !written.contains_key("items"))
            {
                self.note(path, Change::Lost, "says too little for the provider");
            }
        }
        if self.rules.closed && is_object(own) && !written.contains_key("anyOf") {
            if self.rules.all_required {
                let names = written.get("properties").and_then(Value::as_object);
                let names: Vec<Value> = names
                    .into_iter()
                    .flat_map(|map| map.keys())
                    .map(|name| name.as_str().into())
                    .collect();
                written.insert("required".to_owned(), names.into());
            }
            written.insert("additionalProperties".to_owned(), false.into());
        }
    }

    fn properties(&mut self, own: &Metadata, map: &Metadata, path: &str) -> Metadata {
        let required: HashSet<&str> = strings(own.get("required")).collect();
        let mut written = Metadata::new();
        for (name, schema) in map {
            let is_required = required.contains(name.as_str());
            if self.rules.closed && !is_required && *schema == json!({"not": {}}) {
                continue;
            }
            self.properties += 1;
            self.optional += usize::from(!is_required);
            let at = format!("{path}/{}", escaped(name));
            let part = match self.part(schema, &at) {
                Value::Object(part) if self.rules.all_required && !is_required => {
                    nullable(part).into()
                }
                part => part,
            };
            written.insert(name.clone(), part);
        }
        written
    }

    /// The required members, if there are any.
    fn required(&mut self, own: &Metadata, path: &str) -> Option<Value> {
        let known = own.get("properties").and_then(Value::as_object);
        let mut names = Vec::new();
        for name in strings(own.get("required")) {
            let Some(schema) = known.and_then(|known| known.get(name)) else {
                if self.rules.closed {
                    self.block(path, "requires a member that it does not name");
                } else {
                    self.note(path, Change::Lost, format!("{name:?} is required, and not named"));
                }
                continue;
            };
            if self.rules.optional_recursion && self.cycles.returns(&self.within, schema) {
                let text = format!("{name:?} leads back, and cannot be required");
                self.note(path, Change::Lost, text);
                continue;
            }
            names.push(Value::from(name));
        }
        (!names.is_empty()).then(|| names.into())
    }

    /// One schema for items that have one each.
    fn one_for_all(
        &mut self,
        own: &Metadata,
        list: &[Value],
        told: &mut Vec<String>,
        path: &str,
    ) -> Value {
        let rest = own.get("items");
        let is_closed = rest == Some(&json!({"not": {}}));
        let mut known = HashSet::new();
        let parts = list.iter().chain(rest.filter(|_| !is_closed));
        let distinct: Vec<&Value> = parts.filter(|part| known.insert(part.to_string())).collect();
        let most = own.get("maxItems").and_then(Value::as_u64);
        let is_bounded = !is_closed || most.is_some_and(|most| most <= list.len() as u64);
        if distinct.len() > 1 || !is_bounded {
            self.lose(told, path, "prefixItems", &list.into());
        } else {
            self.note(path, Change::Rewritten, "items of one kind became items");
        }
        let items = match distinct.as_slice() {
            [] => Value::Object(Metadata::new()),
            [one] => (*one).clone(),
            several => json!({"anyOf": several}),
        };
        self.part(&items, &format!("{path}/prefixItems"))
    }

    /// The values that a schema lists, if they may be listed.
    fn listed(
        &mut self,
        own: &Metadata,
        list: &[Value],
        told: &mut Vec<String>,
        path: &str,
    ) -> Option<Value> {
        self.values += list.len();
        // Where only strings are listed, only a string's values are.
        let is_typed = !self.rules.nullable || types(own).is_some_and(|kinds| kinds == ["string"]);
        if is_typed && !list.is_empty() && list.iter().all(|value| self.rules.lists(value)) {
            return Some(list.into());
        }
        self.lose(told, path, "enum", &list.into());
        None
    }

    fn more(&mut self, more: &Value, told: &mut Vec<String>, path: &str) -> Option<Value> {
        match more {
            _ if self.rules.closed => None,
            more if self.rules.maps => Some(self.part(more, path)),
            // No object has other members.
            Value::Bool(_) => None,
            more => {
                self.lose(told, path, "additionalProperties", more);
                None
            }
        }
    }
}

/// Writes `allOf` of one reference as that reference.
fn only_reference(own: &mut Metadata) {
    let only = match own.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
        Some([only]) => {
            only.as_object().filter(|only| only.len() == 1).and_then(|only| only.get("$ref"))
        }
        _ => None,
    };
    if let (Some(reference), false) = (only.cloned(), own.contains_key("$ref")) {
        let members = std::mem::take(own).into_iter().map(|(name, value)| match name.as_str() {
            "allOf" => ("$ref".to_owned(), reference.clone()),
            _ => (name, value),
        });
        *own = members.collect();
    }
}

/// Whether all alternatives of a schema are of these types.
fn are_of_type(neutral: &Neutral, schema: &Metadata, kinds: &[&str]) -> bool {
    let branches = ["anyOf", "oneOf"].iter().find_map(|name| schema.get(*name)?.as_array());
    branches.is_some_and(|branches| {
        !branches.is_empty()
            && branches.iter().all(|branch| {
                let own = followed(neutral, branch).and_then(types);
                own.is_some_and(|own| own.iter().all(|kind| kinds.contains(kind)))
            })
    })
}

/// Whether an object is meant to have members that it does not name: it says so, or names none.
fn is_open(schema: &Metadata) -> bool {
    const MORE: [&str; 3] = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
    let says = |name: &&str| {
        schema.get(*name).is_some_and(|more| *more != false && !is_vacuous(name, more))
    };
    let names_none = !schema.contains_key("properties") && !schema.contains_key(MORE[0]);
    MORE.iter().any(says) || (names_none && !schema.contains_key("anyOf"))
}

/// The schema, or null.
fn nullable(mut schema: Metadata) -> Metadata {
    let null = Value::from("null");
    match schema.get_mut("type") {
        Some(kind) => {
            let mut kinds = match kind.take() {
                Value::Array(kinds) => kinds,
                one => vec![one],
            };
            if !kinds.contains(&null) {
                kinds.push(null);
            }
            *kind = if kinds.len() == 1 { kinds.remove(0) } else { kinds.into() };
            if let Some(Value::Array(values)) = schema.get_mut("enum")
                && !values.contains(&Value::Null)
            {
                values.push(Value::Null);
            }
            schema
        }
        None => {
            let or_null = json!({"type": "null"});
            match schema.get_mut("anyOf") {
                Some(Value::Array(branches)) => {
                    if !branches.iter().any(admits_null) {
                        branches.push(or_null);
                    }
                    schema
                }
                _ => Metadata::from_iter([("anyOf".to_owned(), json!([schema, or_null]))]),
            }
        }
    }
}

fn admits_null(schema: &Value) -> bool {
    schema.as_object().and_then(types).is_some_and(|kinds| kinds.contains(&"null"))
        && schema
            .get("enum")
            .and_then(Value::as_array)
            .is_none_or(|listed| listed.contains(&Value::Null))
}

/// Adds constraints that are not expressed to the description.
fn tell(schema: &mut Metadata, told: &[String]) {
    if !told.is_empty() {
        describe(schema, &format!("{}.", told.join(". ")));
    }
}
