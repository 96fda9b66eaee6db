//! JSON Schema for providers that hold a model to a part of it.

use mynah_data::{Error, Metadata, ToolSpec};
use serde_json::Value;

use crate::request::unsupported_form;

/// What can be enforced, beside what holds other schemas.
const ENFORCED: [&str; 8] =
    ["type", "title", "description", "enum", "const", "default", "required", "$ref"];

const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];

/// The schema as Claude can be held to it: its objects have no other properties than it says, and what cannot be enforced
/// stands in the descriptions, for the model to read. The provider refuses what is written otherwise.
pub(crate) fn closed(schema: &Value) -> Value {
    let Value::Object(members) = schema else {
        return schema.clone();
    };
    let mut written = Metadata::new();
    let mut told = Vec::new();
    for (name, value) in members {
        let (name, value) = match (name.as_str(), value) {
            ("$schema" | "$id" | "$comment", _) => continue,
            ("properties" | "$defs" | "definitions", Value::Object(schemas)) => {
                let each = schemas.iter().map(|(name, schema)| (name.clone(), closed(schema)));
                (name.as_str(), Value::Object(each.collect()))
            }
            // The provider refuses references in it.
            ("allOf", Value::Array(list)) if list.len() == 1 && refers(members) => {
                if let Value::Object(only) = closed(&list[0]) {
                    only.into_iter().for_each(|(name, value)| {
                        written.entry(name).or_insert(value);
                    });
                }
                continue;
            }
            ("anyOf" | "allOf", Value::Array(list)) => {
                (name.as_str(), list.iter().map(closed).collect())
            }
            ("oneOf", Value::Array(list)) => ("anyOf", list.iter().map(closed).collect()),
            ("items", items) => ("items", closed(items)),
            (name, value) if is_enforced(name, value) => (name, value.clone()),
            (name, value) => {
                told.push(format!("{name}: {value}"));
                continue;
            }
        };
        written.insert(name.to_owned(), value);
    }
    if refers(&written) {
        // An object that could have nothing, were it closed itself.
        written.retain(|name, _| name != "type");
    } else if is_object(&written) {
        written.insert("additionalProperties".to_owned(), false.into());
    }
    if !told.is_empty() {
        let known = written.get("description").and_then(Value::as_str);
        let told = format!("{{{}}}", told.join(", "));
        let description = known.map_or(told.clone(), |known| format!("{known}\n\n{told}"));
        written.insert("description".to_owned(), description.into());
    }
    Value::Object(written)
}

/// The schema of a tool's arguments. That they are an object goes without saying, but not for the providers.
pub(crate) fn arguments(tool: &ToolSpec) -> Value {
    match &tool.schema {
        Value::Object(schema) if !schema.contains_key("type") => {
            let mut typed = Metadata::from_iter([("type".to_owned(), "object".into())]);
            typed.extend(schema.clone());
            typed.entry("properties").or_insert_with(|| Metadata::new().into());
            Value::Object(typed)
        }
        schema => schema.clone(),
    }
}

/// The schema of a tool's arguments, and whether its calls are held to it, where the tool says. They cannot be where it wants
/// members that it does not name itself.
pub(crate) fn held_to(tool: &ToolSpec) -> (Value, Option<Value>) {
    let schema = arguments(tool);
    match tool.metadata.get("strict") {
        Some(Value::Bool(true)) if is_open(&schema) || schema.as_object().is_some_and(refers) => {
            (schema, None)
        }
        Some(Value::Bool(true)) => (closed(&schema), Some(true.into())),
        strict => (schema, strict.cloned()),
    }
}

/// Refuses a form of the answer that would be closed, though it is meant to be open.
pub(crate) fn open_form() -> Error {
    unsupported_form(
        "objects of this model's answers have no members but those that the schema names: name them all, or ask for a list of them",
    )
}

/// Whether an object in it may have members that it does not name, and is meant to: it says so, or names none. What nothing refers to
/// does not count.
pub(crate) fn is_open(schema: &Value) -> bool {
    let mut places = vec!["#"];
    let mut next = 0;
    while let Some(&place) = places.get(next) {
        next += 1;
        let is_open = match place.strip_prefix('#').and_then(|place| schema.pointer(place)) {
            Some(part) => opens(part, &mut places),
            // It is told in another way: any of them may be meant.
            None => ["$defs", "definitions"].iter().any(|name| {
                let parts = schema.get(name).and_then(Value::as_object);
                parts.is_some_and(|parts| parts.values().any(|part| opens(part, &mut places)))
            }),
        };
        if is_open {
            return true;
        }
    }
    false
}

/// Whether a part of a schema is open by itself. The places that it refers to are added to the others.
fn opens<'s>(schema: &'s Value, places: &mut Vec<&'s str>) -> bool {
    const MORE: [&str; 3] = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
    let Value::Object(members) = schema else { return false };
    let says = |name: &&str| members.get(*name).is_some_and(|more| more != false);
    let names_none = !members.contains_key("properties") && !members.contains_key(MORE[0]);
    MORE.iter().any(says)
        || (is_object(members) && names_none && !refers(members))
        || members.iter().any(|(name, value)| match (name.as_str(), value) {
            ("properties", Value::Object(schemas)) => {
                schemas.values().any(|schema| opens(schema, places))
            }
            ("anyOf" | "allOf" | "oneOf", Value::Array(list)) => {
                list.iter().any(|schema| opens(schema, places))
            }
            ("items", items) => opens(items, places),
            ("$ref", Value::String(place)) => {
                if !places.contains(&place.as_str()) {
                    places.push(place);
                }
                false
            }
            _ => false,
        })
}

/// Whether others say for this object which members it has. Several that all hold cannot be closed one by one.
fn refers(schema: &Metadata) -> bool {
    let names = |schema: &Value| {
        schema.as_object().is_some_and(|schema| is_object(schema) || refers(schema))
    };
    let all_name = |name: &str, longest: usize| {
        let list = schema.get(name).and_then(Value::as_array);
        list.is_some_and(|list| (1..=longest).contains(&list.len()) && list.iter().all(names))
    };
    schema.get("type").is_none_or(|kind| kind == "object")
        && !schema.contains_key("properties")
        && !schema.contains_key("additionalProperties")
        && (schema.contains_key("$ref")
            || all_name("anyOf", usize::MAX)
            || all_name("oneOf", usize::MAX)
            || all_name("allOf", 1))
}

fn is_enforced(name: &str, value: &Value) -> bool {
    match name {
        "format" => value.as_str().is_some_and(|format| FORMATS.contains(&format)),
        "additionalProperties" => value == false,
        "minItems" => matches!(value.as_u64(), Some(0 | 1)),
        // Neither looks ahead nor back.
        "pattern" => value.as_str().is_some_and(|pattern| {
            !pattern.contains("(?") && !pattern.contains("\\b") && !pattern.contains("\\B")
        }),
        name => ENFORCED.contains(&name),
    }
}

fn is_object(schema: &Metadata) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        _ => schema.contains_key("properties"),
    }
}
