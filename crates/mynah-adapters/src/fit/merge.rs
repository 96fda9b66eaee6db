//! Two schemas that both hold, as one.

use std::collections::HashSet;

use mynah_data::Metadata;
use serde_json::Value;

use super::{is_annotation, types};

/// Members that have a meaning only together.
const TOGETHER: [&[&str]; 4] = [
    &["if", "then", "else"],
    &["contains", "minContains", "maxContains"],
    &["items", "prefixItems", "unevaluatedItems"],
    OF_OBJECTS,
];

const OF_OBJECTS: &[&str] =
    &["properties", "patternProperties", "additionalProperties", "unevaluatedProperties"];

const LEAST: [&str; 6] =
    ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"];

const MOST: [&str; 5] = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];

/// One schema for two that both apply. Annotations of the second win. None if the intersection
/// cannot be expressed without `allOf`.
pub(super) fn merge(first: &Metadata, second: &Metadata) -> Option<Metadata> {
    for group in TOGETHER {
        let of = |schema: &Metadata| -> Metadata {
            let own = group.iter().filter_map(|name| Some((*name, schema.get(*name)?.clone())));
            own.map(|(name, value)| (name.to_owned(), value)).collect()
        };
        let (one, other) = (of(first), of(second));
        if one.is_empty() || other.is_empty() || one == other {
            continue;
        }
        let is_alone =
            |name: &str| [&one, &other].iter().all(|of| of.len() == 1 && of.contains_key(name));
        let fits = match group {
            OF_OBJECTS => {
                is_alone("properties") || (permits(&one, &other) && permits(&other, &one))
            }
            _ => is_alone("items"),
        };
        if !fits {
            return None;
        }
    }
    let mut merged = first.clone();
    for (name, value) in second {
        let value = match merged.get(name) {
            None => value.clone(),
            Some(known) if known == value || is_annotation(name) => value.clone(),
            Some(known) => both(name, known, value)?,
        };
        merged.insert(name.clone(), value);
    }
    if let (Some(one), Some(other)) = (types(first), types(second)) {
        let common = common_types(&one, &other);
        let kind = match common.as_slice() {
            [] => return None,
            [one] => Value::from(*one),
            several => several.iter().copied().collect(),
        };
        merged.insert("type".to_owned(), kind);
    }
    Some(merged)
}

/// Whether the members that the second names are free in the first: it names them too, or closes nothing.
fn permits(first: &Metadata, second: &Metadata) -> bool {
    if first.keys().any(|name| name == "patternProperties" || name == "unevaluatedProperties") {
        return false;
    }
    match first.get("additionalProperties") {
        None | Some(Value::Bool(true)) => true,
        Some(_) => {
            let own = first.get("properties").and_then(Value::as_object);
            let other = second.get("properties").and_then(Value::as_object);
            other.is_none_or(|other| {
                other.keys().all(|name| own.is_some_and(|own| own.contains_key(name)))
            })
        }
    }
}

fn both(name: &str, first: &Value, second: &Value) -> Option<Value> {
    match (name, first, second) {
        // Done above.
        ("type", ..) => Some(first.clone()),
        ("properties", Value::Object(first), Value::Object(second)) => {
            let mut merged = first.clone();
            for (name, schema) in second {
                let schema = match merged.get(name) {
                    None => schema.clone(),
                    Some(known) => merge(known.as_object()?, schema.as_object()?)?.into(),
                };
                merged.insert(name.clone(), schema);
            }
            Some(merged.into())
        }
        ("items", Value::Object(first), Value::Object(second)) => {
            Some(merge(first, second)?.into())
        }
        ("required", Value::Array(first), Value::Array(second)) => {
            let known: HashSet<&str> = first.iter().filter_map(Value::as_str).collect();
            let more = second
                .iter()
                .filter(|name| name.as_str().is_some_and(|name| !known.contains(name)));
            Some(first.iter().chain(more).cloned().collect())
        }
        ("allOf", Value::Array(first), Value::Array(second)) => {
            Some(first.iter().chain(second).cloned().collect())
        }
        ("enum", Value::Array(first), Value::Array(second)) => {
            let known: HashSet<String> = second.iter().map(Value::to_string).collect();
            let both = first.iter().filter(|value| known.contains(&value.to_string()));
            let common: Vec<Value> = both.cloned().collect();
            (!common.is_empty()).then(|| common.into())
        }
        ("additionalProperties", Value::Bool(false), _) => Some(false.into()),
        ("additionalProperties", _, Value::Bool(false)) => Some(false.into()),
        ("additionalProperties", Value::Bool(true), other)
        | ("additionalProperties", other, Value::Bool(true)) => Some(other.clone()),
        ("uniqueItems", Value::Bool(first), Value::Bool(second)) => {
            Some((*first || *second).into())
        }
        (name, Value::Number(one), Value::Number(other)) if LEAST.contains(&name) => {
            let is_more = one.as_f64()? >= other.as_f64()?;
            Some(if is_more { first } else { second }.clone())
        }
        (name, Value::Number(one), Value::Number(other)) if MOST.contains(&name) => {
            let is_less = one.as_f64()? <= other.as_f64()?;
            Some(if is_less { first } else { second }.clone())
        }
        _ => None,
    }
}

/// The types that both have.
pub(super) fn common_types<'t>(first: &[&'t str], second: &[&'t str]) -> Vec<&'t str> {
    let mut common = Vec::new();
    for one in first {
        let kind = match (*one, second) {
            (kind, second) if second.contains(&kind) => kind,
            ("integer", second) if second.contains(&"number") => "integer",
            ("number", second) if second.contains(&"integer") => "integer",
            _ => continue,
        };
        if !common.contains(&kind) {
            common.push(kind);
        }
    }
    common
}
