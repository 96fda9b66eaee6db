//! Any schema as one of draft 2020-12 whose references all point to definitions at its root.

use std::collections::{HashMap, VecDeque};

use mynah_data::Metadata;
use serde_json::{Value, json};

use super::{Change, FitError, Fitted, MAX_DEPTH, MAX_NODES, Note, is_annotation};

/// Members that hold one schema.
const ONE: [&str; 12] = [
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "additionalItems",
];

/// Members that hold a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// Members that hold schemas by name.
const MAPS: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];

pub(super) const DEFS: &str = "$defs";

/// Where a schema within another stands.
pub(super) fn is_one(name: &str) -> bool {
    ONE.contains(&name)
}

pub(super) fn is_list(name: &str) -> bool {
    LISTS.contains(&name)
}

pub(super) fn is_map(name: &str) -> bool {
    MAPS.contains(&name)
}

/// The schemas directly within a schema.
pub(super) fn parts(schema: &Metadata) -> impl Iterator<Item = &Value> {
    schema.iter().flat_map(|(name, value)| -> Box<dyn Iterator<Item = &Value>> {
        match value {
            value if is_one(name) => Box::new(std::iter::once(value)),
            Value::Array(list) if is_list(name) => Box::new(list.iter()),
            Value::Object(map) if is_map(name) => Box::new(map.values()),
            _ => Box::new(std::iter::empty()),
        }
    })
}

/// A schema in its neutral form.
pub(super) struct Neutral {
    /// The root, without its definitions.
    pub(super) root: Metadata,
    /// The targets of references of the form `#/$defs/name`. Each is referred to.
    pub(super) defs: Metadata,
    /// The number of members of the root before its definitions.
    defs_at: Option<usize>,
    pub(super) notes: Vec<Note>,
}

impl Neutral {
    pub(super) fn of(schema: &Value) -> Result<Self, FitError> {
        check(schema)?;
        let mut reader = Reader::new(schema);
        let mut root = match reader.schema(schema, "")? {
            Value::Object(root) => root,
            _ => Metadata::new(),
        };
        while let Some((name, target, path)) = reader.queue.pop_front() {
            let written = reader.schema(target, &path)?;
            reader.defs.insert(name, written);
        }
        // Two drafts have different names for them.
        let defs_at = root.keys().position(|name| name == DEFS);
        root.shift_remove(DEFS);
        let order = |name: &str| {
            let known = ["$defs", "definitions"].iter().filter_map(|defs| schema.get(*defs));
            known.filter_map(Value::as_object).find_map(|defs| defs.keys().position(|d| d == name))
        };
        let mut defs: Vec<(String, Value)> = reader.defs.into_iter().collect();
        defs.sort_by_cached_key(|(name, _)| order(name).unwrap_or(usize::MAX));
        Ok(Self { root, defs: defs.into_iter().collect(), defs_at, notes: reader.notes })
    }

    /// The target of a reference.
    pub(super) fn target(&self, reference: &str) -> Option<&Metadata> {
        match name_of(reference) {
            None if reference == "#" => Some(&self.root),
            None => None,
            Some(name) => self.defs.get(&name)?.as_object(),
        }
    }

    /// The definitions that are reached, beside a root, in the place where they were.
    pub(super) fn joined(&self, mut root: Metadata, defs: Metadata) -> Value {
        if defs.is_empty() {
            return Value::Object(root);
        }
        match self.defs_at.filter(|at| *at <= root.len()) {
            Some(at) => drop(root.shift_insert(at, DEFS.to_owned(), defs.into())),
            None => drop(root.insert(DEFS.to_owned(), defs.into())),
        }
        Value::Object(root)
    }

    pub(super) fn into_fitted(mut self, strict: bool) -> Fitted {
        let root = std::mem::take(&mut self.root);
        let defs = reached(&root, std::mem::take(&mut self.defs));
        Fitted { schema: self.joined(root, defs), strict, notes: self.notes }
    }
}

/// The definitions that are reached from a root.
pub(super) fn reached(root: &Metadata, mut defs: Metadata) -> Metadata {
    let mut wanted: HashMap<String, ()> = HashMap::new();
    let mut open: Vec<&Metadata> = vec![root];
    while let Some(schema) = open.pop() {
        if let Some(name) = schema.get("$ref").and_then(Value::as_str).and_then(name_of)
            && wanted.insert(name.clone(), ()).is_none()
        {
            open.extend(defs.get(&name).and_then(Value::as_object));
        }
        open.extend(parts(schema).filter_map(Value::as_object));
    }
    defs.retain(|name, _| wanted.contains_key(name));
    defs
}

/// The name in a reference of the form `#/$defs/name`.
pub(super) fn name_of(reference: &str) -> Option<String> {
    let name = reference.strip_prefix("#/$defs/")?;
    (!name.contains('/')).then(|| name.replace("~1", "/").replace("~0", "~"))
}

/// The reference to a definition.
pub(super) fn reference_to(name: &str) -> String {
    format!("#/$defs/{}", escaped(name))
}

pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Rejects a schema that is too large or too deep.
fn check(schema: &Value) -> Result<(), FitError> {
    let mut left = MAX_NODES;
    let mut open = vec![(schema, 1)];
    while let Some((value, depth)) = open.pop() {
        if depth > MAX_DEPTH {
            return Err(FitError::TooDeep);
        }
        left = left.checked_sub(1).ok_or(FitError::TooLarge)?;
        match value {
            Value::Array(list) => open.extend(list.iter().map(|value| (value, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|value| (value, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

struct Reader<'s> {
    whole: &'s Value,
    /// Whether the draft has nothing beside a reference.
    is_old: bool,
    /// Places that have a name of their own.
    anchors: HashMap<&'s str, &'s Value>,
    /// Definitions below the root, by name.
    nested: HashMap<&'s str, &'s Value>,
    /// What references became.
    names: HashMap<String, Option<String>>,
    /// The names of definitions, by the address of what they hold.
    known: HashMap<usize, String>,
    queue: VecDeque<(String, &'s Value, String)>,
    defs: Metadata,
    taken: HashMap<String, ()>,
    notes: Vec<Note>,
    left: usize,
}

impl<'s> Reader<'s> {
    fn new(whole: &'s Value) -> Self {
        let draft = whole.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let is_old =
            ["draft-03", "draft-04", "draft-06", "draft-07"].iter().any(|old| draft.contains(old));
        let (mut anchors, mut nested) = (HashMap::new(), HashMap::new());
        let mut open = vec![whole];
        while let Some(value) = open.pop() {
            match value {
                Value::Array(list) => open.extend(list),
                Value::Object(map) => {
                    for name in ["$anchor", "$dynamicAnchor", "$id", "id"] {
                        if let Some(Value::String(anchor)) = map.get(name) {
                            anchors.entry(anchor.trim_end_matches('#')).or_insert(value);
                        }
                    }
                    for defs in ["$defs", "definitions"].iter().filter_map(|name| map.get(*name)) {
                        for (name, def) in defs.as_object().into_iter().flatten() {
                            nested.entry(name.as_str()).or_insert(def);
                        }
                    }
                    open.extend(map.values());
                }
                _ => {}
            }
        }
        Self {
            whole,
            is_old,
            anchors,
            nested,
            names: HashMap::new(),
            known: HashMap::new(),
            queue: VecDeque::new(),
            defs: Metadata::new(),
            taken: HashMap::new(),
            notes: Vec::new(),
            left: MAX_NODES,
        }
    }

    fn note(&mut self, path: &str, change: Change, text: impl Into<String>) {
        self.notes.push(Note { path: path.to_owned(), change, text: text.into() });
    }

    fn spend(&mut self) -> Result<(), FitError> {
        self.left = self.left.checked_sub(1).ok_or(FitError::TooLarge)?;
        Ok(())
    }

    fn schema(&mut self, schema: &'s Value, path: &str) -> Result<Value, FitError> {
        self.spend()?;
        let members = match schema {
            Value::Object(members) => members,
            Value::Bool(false) => return Ok(json!({"not": {}})),
            Value::Bool(true) | Value::Null => return Ok(json!({})),
            _ => {
                self.note(path, Change::Lost, "is no schema, and accepts anything");
                return Ok(json!({}));
            }
        };
        let mut written = Metadata::new();
        let has_ref = members.get("$ref").is_some_and(Value::is_string);
        for (name, value) in members {
            self.spend()?;
            if self.is_old && has_ref && name != "$ref" && !is_annotation(name) && !is_defs(name) {
                continue;
            }
            if !is_well_formed(name, value) {
                self.note(path, Change::Lost, format!("{name} has no meaning, and is left away"));
                continue;
            }
            self.member(members, name, value, path, &mut written)?;
        }
        Ok(Value::Object(written))
    }

    fn member(
        &mut self,
        members: &'s Metadata,
        name: &'s str,
        value: &'s Value,
        path: &str,
        written: &mut Metadata,
    ) -> Result<(), FitError> {
        let at = || format!("{path}/{}", escaped(name));
        let mut set = |name: &str, value: Value| drop(written.insert(name.to_owned(), value));
        match (name, value) {
            ("$schema" | "$comment" | "$id" | "id" | "$vocabulary", _) if is_name(name, value) => {}
            ("$anchor" | "$dynamicAnchor" | "$recursiveAnchor", _) => {}
            // Those of the root go where they were, with all others.
            ("$defs" | "definitions", _) => {
                if path.is_empty() {
                    set(DEFS, Value::Null);
                }
            }
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                match self.resolve(reference) {
                    Some(reference) => set("$ref", reference.into()),
                    None => {
                        let why =
                            format!("refers to {reference:?}, which the schema does not hold");
                        self.note(path, Change::Lost, why);
                    }
                }
            }
            ("items", Value::Array(list)) => set("prefixItems", self.list(list, &at())?),
            ("additionalItems", more) => {
                if members.get("items").is_some_and(Value::is_array) {
                    set("items", self.schema(more, &at())?);
                }
            }
            (
                "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems",
                Value::Bool(_),
            ) => {
                set(name, value.clone());
            }
            ("dependencies", Value::Object(map)) => {
                let (mut required, mut schemas) = (Metadata::new(), Metadata::new());
                for (name, value) in map {
                    match value {
                        Value::Array(_) => drop(required.insert(name.clone(), value.clone())),
                        _ => drop(schemas.insert(name.clone(), self.schema(value, &at())?)),
                    }
                }
                for (name, map) in [("dependentRequired", required), ("dependentSchemas", schemas)]
                {
                    if !map.is_empty() {
                        set(name, map.into());
                    }
                }
            }
            // Draft 4 says there whether the limit itself is excluded.
            ("exclusiveMinimum" | "exclusiveMaximum", Value::Bool(excluded)) => {
                let limit = if name == "exclusiveMinimum" { "minimum" } else { "maximum" };
                if let (true, Some(limit)) = (*excluded, members.get(limit)) {
                    set(name, limit.clone());
                }
            }
            ("minimum", _) if members.get("exclusiveMinimum") == Some(&Value::Bool(true)) => {}
            ("maximum", _) if members.get("exclusiveMaximum") == Some(&Value::Bool(true)) => {}
            (_, Value::Array(list)) if is_list(name) => set(name, self.list(list, &at())?),
            (_, Value::Object(map)) if is_map(name) => {
                let mut schemas = Metadata::new();
                for (name, schema) in map {
                    let at = format!("{}/{}", at(), escaped(name));
                    schemas.insert(name.clone(), self.schema(schema, &at)?);
                }
                set(name, schemas.into());
            }
            (_, schema) if is_one(name) => set(name, self.schema(schema, &at())?),
            _ => set(name, value.clone()),
        }
        Ok(())
    }

    fn list(&mut self, list: &'s [Value], path: &str) -> Result<Value, FitError> {
        let each = list.iter().enumerate();
        each.map(|(index, schema)| self.schema(schema, &format!("{path}/{index}"))).collect()
    }

    /// The reference in its neutral form; none if it has no target.
    fn resolve(&mut self, reference: &'s str) -> Option<String> {
        if let Some(known) = self.names.get(reference) {
            return known.clone();
        }
        let resolved = self.find(reference);
        self.names.insert(reference.to_owned(), resolved.clone());
        resolved
    }

    fn find(&mut self, reference: &'s str) -> Option<String> {
        let own = self.whole.get("$id").and_then(Value::as_str).unwrap_or_default();
        let own = own.trim_end_matches('#');
        let local = reference.strip_prefix(own).filter(|local| local.starts_with('#'));
        let local = local.unwrap_or(reference);
        if local == "#" || (!own.is_empty() && local == own) {
            return Some("#".to_owned());
        }
        let (pointer, wished) = match local.strip_prefix('#') {
            Some(place) => (decoded(place), decoded(place.rsplit('/').next().unwrap_or_default())),
            None => (String::new(), local.rsplit('/').next().unwrap_or_default().to_owned()),
        };
        let wished = wished.replace("~1", "/").replace("~0", "~");
        let target = match pointer.starts_with('/') {
            true => self.whole.pointer(&pointer).or_else(|| {
                // A schema that was put into another one took its definitions along.
                let is_def = ["/$defs/", "/definitions/"].iter().any(|at| pointer.starts_with(at));
                self.nested.get(wished.as_str()).copied().filter(|_| is_def)
            }),
            false => self.anchors.get(local.trim_start_matches('#').trim_end_matches('#')).copied(),
        }?;
        let address = std::ptr::from_ref(target) as usize;
        if std::ptr::eq(target, self.whole) {
            return Some("#".to_owned());
        }
        if let Some(name) = self.known.get(&address) {
            return Some(reference_to(name));
        }
        let wished = if wished.is_empty() { "definition".to_owned() } else { wished };
        let is_known = self.whole.get("$defs").and_then(|defs| defs.get(&wished));
        let is_own = is_known.is_none_or(|known| std::ptr::eq(known, target));
        let mut name = wished.clone();
        let mut count = 2;
        while self.taken.contains_key(&name) || (count == 2 && name == wished && !is_own) {
            name = format!("{wished}_{count}");
            count += 1;
        }
        self.taken.insert(name.clone(), ());
        self.known.insert(address, name.clone());
        let reference = reference_to(&name);
        self.queue.push_back((name, target, reference.trim_start_matches('#').to_owned()));
        Some(reference)
    }
}

/// Whether a member has a value that is meaningful in JSON Schema.
fn is_well_formed(name: &str, value: &Value) -> bool {
    let is_texts =
        |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
    match name {
        "type" => value.is_string() || (is_texts(value) && *value != json!([])),
        "required" => is_texts(value),
        "enum" => value.is_array(),
        "title" | "description" | "format" | "pattern" | "$ref" | "$dynamicRef"
        | "$recursiveRef" => value.is_string(),
        "nullable" => value.is_boolean(),
        "prefixItems" => value.is_array(),
        name if is_list(name) => value.as_array().is_some_and(|list| !list.is_empty()),
        name if is_map(name) => value.is_object(),
        _ => true,
    }
}

fn is_defs(name: &str) -> bool {
    name == DEFS || name == "definitions"
}

fn is_name(name: &str, value: &Value) -> bool {
    name != "id" || value.is_string()
}

/// Without percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => (bytes.push(byte), rest = &after[2..]).1,
            None => (bytes.push(first), rest = after).1,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
