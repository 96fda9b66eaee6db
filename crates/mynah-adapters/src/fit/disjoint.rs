//! Whether two schemas are disjoint, as far as that is visible in them.

use mynah_data::Metadata;
use serde_json::Value;

use super::{merge::common_types, neutral::Neutral, strings, type_of, types};

/// How many references are followed.
const HOPS: usize = 8;

/// Whether no value of the first fits the second. With `closed`, the first has no members but those that it names.
pub(super) fn are_disjoint(neutral: &Neutral, first: &Value, second: &Value, closed: bool) -> bool {
    let (Some(first), Some(second)) = (followed(neutral, first), followed(neutral, second)) else {
        return false;
    };
    if excludes(first, second) || excludes(second, first) {
        return true;
    }
    let is_object = |schema: &Metadata| types(schema).is_some_and(|kinds| kinds == ["object"]);
    if !is_object(first) || !is_object(second) {
        return false;
    }
    lacks_required(first, second, closed)
        || lacks_required(second, first, false)
        || differ_by_tag(neutral, first, second)
}

/// The target of a reference, if it has no siblings.
pub(super) fn followed<'n>(neutral: &'n Neutral, schema: &'n Value) -> Option<&'n Metadata> {
    let mut schema = schema.as_object()?;
    for _ in 0..HOPS {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
            return Some(schema);
        };
        schema = neutral.target(reference)?;
    }
    None
}

/// The values that a schema permits, where it lists them.
pub(super) fn values(schema: &Metadata) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(only), _) => Some(vec![only]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// Whether values or types of the first are none of the second.
fn excludes(first: &Metadata, second: &Metadata) -> bool {
    if let (Some(one), Some(other)) = (types(first), types(second)) {
        return common_types(&one, &other).is_empty();
    }
    let Some(listed) = values(first) else { return false };
    match (values(second), types(second)) {
        (Some(others), _) => differ(&listed, &others),
        (None, Some(kinds)) => {
            listed.iter().all(|value| common_types(&[type_of(value)], &kinds).is_empty())
        }
        _ => false,
    }
}

/// Whether the second requires a member that the first, closed, does not have.
fn lacks_required(first: &Metadata, second: &Metadata, closed: bool) -> bool {
    let is_closed = first.get("additionalProperties") == Some(&Value::Bool(false)) || closed;
    let own = first.get("properties").and_then(Value::as_object);
    is_closed
        && !first.contains_key("patternProperties")
        && !first.contains_key("$ref")
        && !["allOf", "anyOf", "oneOf"].iter().any(|name| first.contains_key(*name))
        && strings(second.get("required")).any(|name| own.is_none_or(|own| !own.contains_key(name)))
}

/// Whether a member that one of them requires has other values in each.
fn differ_by_tag(neutral: &Neutral, first: &Metadata, second: &Metadata) -> bool {
    let properties = |schema: &'_ Metadata| schema.get("properties").cloned();
    let (Some(one), Some(other)) = (properties(first), properties(second)) else { return false };
    strings(first.get("required")).chain(strings(second.get("required"))).any(|name| {
        let listed = |properties: &Value| {
            let tag = followed(neutral, properties.get(name)?)?;
            Some(values(tag)?.into_iter().cloned().collect::<Vec<_>>())
        };
        match (listed(&one), listed(&other)) {
            (Some(one), Some(other)) => {
                differ(&one.iter().collect::<Vec<_>>(), &other.iter().collect::<Vec<_>>())
            }
            _ => false,
        }
    })
}

/// Whether no value is in both lists. Of long ones nothing is known.
fn differ(first: &[&Value], second: &[&Value]) -> bool {
    const MOST: usize = 1_000;
    first.len() * second.len() <= MOST * MOST / 10
        && !first.iter().any(|value| second.iter().any(|other| equal(value, other)))
}

/// Whether JSON Schema takes two values for one: 1 is 1.0.
fn equal(first: &Value, second: &Value) -> bool {
    first == second
        || first.as_f64().zip(second.as_f64()).is_some_and(|(first, second)| first == second)
        || first.is_array()
        || first.is_object()
}
