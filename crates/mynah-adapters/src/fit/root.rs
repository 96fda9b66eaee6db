//! The root of a schema: what providers want to see of it.

use std::collections::HashSet;

use mynah_data::Metadata;
use serde_json::{Value, json};

use super::{
    Change, FitError, Note, describe, in_words, is_annotation, merge::merge, neutral::Neutral,
    strings, types,
};

/// How many references, and alternatives within each other, are resolved.
pub(super) const MAX_HOPS: usize = 8;

/// Constraints that providers refuse at the root of a tool's arguments.
const REFUSED: [&str; 6] = ["enum", "const", "not", "if", "then", "else"];

/// Puts what the root refers to in its place.
pub(super) fn resolve(neutral: &mut Neutral) {
    if let Some(root) = resolved(neutral, &neutral.root, MAX_HOPS) {
        neutral.root = root;
    } else if neutral.root.contains_key("$ref") {
        neutral.root.shift_remove("$ref");
        let text = "refers to itself, and accepts anything".to_owned();
        neutral.notes.push(Note { path: String::new(), change: Change::Lost, text });
    }
}

/// A schema without a reference on top, and without `allOf`; none if that cannot be.
pub(super) fn resolved(neutral: &Neutral, schema: &Metadata, hops: usize) -> Option<Metadata> {
    let hops = hops.checked_sub(1)?;
    let mut own = schema.clone();
    if let Some(reference) = own.shift_remove("$ref") {
        let target = resolved(neutral, neutral.target(reference.as_str()?)?, hops)?;
        own = merge(&target, &own)?;
    }
    if let Some(Value::Array(all)) = own.shift_remove("allOf") {
        for part in &all {
            own = merge(&resolved(neutral, part.as_object()?, hops)?, &own)?;
        }
    }
    Some(own)
}

/// Makes the root one of an object. With `bare`, it has no references, alternatives or conditions.
pub(super) fn as_object(neutral: &mut Neutral, bare: bool) -> Result<(), FitError> {
    if bare {
        resolve(neutral);
        flatten(neutral);
    }
    let root = &mut neutral.root;
    match types(root) {
        Some(kinds) if kinds.contains(&"object") => {
            if kinds.len() > 1 {
                root.insert("type".to_owned(), "object".into());
            }
        }
        Some(_) => return Err(FitError::NotAnObject),
        None => {
            let mut typed = Metadata::from_iter([("type".to_owned(), "object".into())]);
            typed.extend(std::mem::take(root));
            *root = typed;
        }
    }
    Ok(())
}

/// Makes one object of alternatives, and words of conditions.
fn flatten(neutral: &mut Neutral) {
    let note = |neutral: &mut Neutral, text: &str| {
        let text = text.to_owned();
        neutral.notes.push(Note { path: String::new(), change: Change::Lost, text });
    };
    for name in ["anyOf", "oneOf"] {
        if !neutral.root.contains_key(name) {
            continue;
        }
        match alternatives(neutral, &neutral.root, name, MAX_HOPS) {
            Some(root) => neutral.root = root,
            None => refuse(neutral, name),
        }
        note(neutral, &format!("{name} at the root is described alone"));
    }
    for name in REFUSED.into_iter().chain(["allOf"]) {
        if neutral.root.contains_key(name) {
            refuse(neutral, name);
            note(neutral, &format!("{name} at the root is described alone"));
        }
    }
}

fn refuse(neutral: &mut Neutral, name: &str) {
    if let Some(value) = neutral.root.shift_remove(name) {
        describe(&mut neutral.root, &format!("{}.", in_words(name, &value)));
    }
}

/// An object that has the members of all alternatives, and requires what each of them does.
fn alternatives(neutral: &Neutral, base: &Metadata, union: &str, hops: usize) -> Option<Metadata> {
    let mut root = base.clone();
    let branches = root.shift_remove(union)?;
    let branches: Vec<Metadata> = branches
        .as_array()?
        .iter()
        .map(|branch| {
            let branch = resolved(neutral, branch.as_object()?, hops)?;
            let nested = ["anyOf", "oneOf"].into_iter().find(|name| branch.contains_key(*name));
            match (nested, hops.checked_sub(1)) {
                (Some(nested), Some(hops)) => alternatives(neutral, &branch, nested, hops),
                (Some(_), None) => None,
                (None, _) => Some(branch),
            }
        })
        .collect::<Option<_>>()?;
    let objects: Vec<&Metadata> = branches
        .iter()
        .filter(|branch| types(branch).is_none_or(|kinds| kinds.contains(&"object")))
        .collect();
    let (first, others) = objects.split_first()?;
    const MEMBERS: [&str; 4] = ["type", "properties", "required", "additionalProperties"];
    let is_plain = |branch: &&&Metadata| {
        branch.keys().all(|name| MEMBERS.contains(&name.as_str()) || is_annotation(name))
    };
    if !objects.iter().all(|branch| is_plain(&branch)) {
        return None;
    }
    let mut properties = match root.get("properties") {
        Some(Value::Object(properties)) => properties.clone(),
        _ => Metadata::new(),
    };
    for branch in &objects {
        for (name, schema) in
            branch.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            match properties.get_mut(name) {
                None => drop(properties.insert(name.clone(), schema.clone())),
                Some(known) => add_alternative(known, schema),
            }
        }
    }
    let mut required: Vec<Value> =
        root.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut known: HashSet<String> =
        required.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let others: Vec<HashSet<&str>> =
        others.iter().map(|other| strings(other.get("required")).collect()).collect();
    for name in strings(first.get("required")) {
        if others.iter().all(|other| other.contains(name)) && known.insert(name.to_owned()) {
            required.push(name.into());
        }
    }
    let is_closed = |branch: &&Metadata| branch.get("additionalProperties") == Some(&false.into());
    if objects.iter().all(is_closed) {
        root.insert("additionalProperties".to_owned(), false.into());
    }
    let told: Vec<String> = objects.iter().map(|branch| told(branch)).collect();
    root.insert("type".to_owned(), "object".into());
    root.insert("properties".to_owned(), properties.into());
    if !required.is_empty() {
        root.insert("required".to_owned(), required.into());
    }
    if told.len() == 1 {
        return Some(root);
    }
    let word = if union == "oneOf" { "Exactly" } else { "At least" };
    describe(&mut root, &format!("{word} one of these sets of members: {}.", told.join("; ")));
    Some(root)
}

/// The members that an alternative requires, with the values that distinguish it from others.
fn told(branch: &Metadata) -> String {
    let properties = branch.get("properties").and_then(Value::as_object);
    let named = strings(branch.get("required")).map(|name| {
        let only = properties.and_then(|properties| properties.get(name)?.get("const"));
        only.map_or(name.to_owned(), |only| format!("{name} = {only}"))
    });
    let members: Vec<String> = named.collect();
    let members = if members.is_empty() { "any".to_owned() } else { members.join(", ") };
    match branch.get("description").and_then(Value::as_str) {
        Some(text) => format!("{members} ({})", text.trim_end_matches('.')),
        None => members,
    }
}

/// Permits what another schema permits, too.
fn add_alternative(known: &mut Value, schema: &Value) {
    if known == schema {
        return;
    }
    let is_list = known.as_object().is_some_and(|known| known.len() == 1);
    match known.get_mut("anyOf").and_then(Value::as_array_mut).filter(|_| is_list) {
        Some(list) if list.contains(schema) => {}
        Some(list) => list.push(schema.clone()),
        None => *known = json!({"anyOf": [known.take(), schema.clone()]}),
    }
}
