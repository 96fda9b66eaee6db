//! A neutral schema, rewritten by the rules of a dialect.

use std::collections::{HashSet, VecDeque};

use mynah_data::Metadata;
use serde_json::{Value, json};

use super::{
    Change, Note,
    cycles::Cycles,
    describe,
    disjoint::{are_disjoint, followed, values},
    in_words, is_annotation, is_object,
    merge::merge,
    neutral::{Neutral, escaped, name_of, reached, reference_to},
    root::{MAX_HOPS, resolved},
    rules::{Rules, is_vacuous},
    strings, type_of, types,
};

/// How many alternatives are compared with each other.
const MAX_COMPARED: usize = 64;

/// How many values are copied: alternatives that say themselves what stands beside them would grow beyond every bound.
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

    /// Makes `anyOf` of `oneOf`, and one list of alternatives that are values.
    fn union(&mut self, own: &mut Metadata, path: &str) {
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

    /// Alternatives that say themselves what stands beside them: what is closed has no other members.
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
    fn without_null(&mut self, mut own: Metadata, path: &str) -> Result<Metadata, Metadata> {
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

    /// The members that are required, as far as there are such.
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

/// Adds what is not expressed to the description.
fn tell(schema: &mut Metadata, told: &[String]) {
    if !told.is_empty() {
        describe(schema, &format!("{}.", told.join(". ")));
    }
}
