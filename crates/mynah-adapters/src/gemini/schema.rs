//! JSON Schema in the provider's own dialect, where that can hold it.

use mynah_data::Metadata;
use serde_json::Value;

/// What the dialect has, beside what holds other schemas.
const PLAIN: [&str; 16] = [
    "title",
    "description",
    "nullable",
    "required",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "example",
    "default",
    "minimum",
    "maximum",
    "propertyOrdering",
];

const FORMATS: [&str; 6] = ["date-time", "enum", "float", "double", "int32", "int64"];

/// A schema and the name of the member that may hold it: `dialect` where every server understands it, else `json`, which
/// takes any JSON Schema and which older servers do not know.
pub(super) fn member<'n>(schema: &Value, dialect: &'n str, json: &'n str) -> (&'n str, Value) {
    match in_dialect(schema) {
        Some(schema) => (dialect, schema),
        None => (json, schema.clone()),
    }
}

fn in_dialect(schema: &Value) -> Option<Value> {
    let mut written = Metadata::new();
    for (name, value) in schema.as_object()? {
        let value = match name.as_str() {
            // The dialect refuses them. No object of it has other properties than it says.
            "$schema" => continue,
            "additionalProperties" if value.is_boolean() => continue,
            "properties" => each(value)?,
            "items" => in_dialect(value)?,
            "anyOf" => value.as_array()?.iter().map(in_dialect).collect::<Option<_>>()?,
            "type" => value.as_str().filter(|kind| *kind != "null")?.into(),
            "enum" => value.as_array()?.iter().all(Value::is_string).then(|| value.clone())?,
            "format" => FORMATS.contains(&value.as_str()?).then(|| value.clone())?,
            name => PLAIN.contains(&name).then(|| value.clone())?,
        };
        written.insert(name.clone(), value);
    }
    is_complete(&written).then_some(Value::Object(written))
}

/// Whether the dialect takes it: it knows no schema without a type, and asks of each type for what belongs to it, and for no
/// more.
fn is_complete(schema: &Metadata) -> bool {
    let kind = schema.get("type").and_then(Value::as_str).map(str::to_ascii_lowercase);
    let has = |name: &str| schema.contains_key(name);
    let list = |name: &str| schema.get(name).and_then(Value::as_array).into_iter().flatten();
    let properties = schema.get("properties").and_then(Value::as_object);
    let knows = |name: &Value| {
        properties.zip(name.as_str()).is_some_and(|(known, name)| known.contains_key(name))
    };
    let is_object = kind.as_deref() == Some("object");
    (kind.is_some() || has("anyOf"))
        && has("items") == (kind.as_deref() == Some("array"))
        && has("properties") == is_object
        && properties.is_none_or(|properties| !properties.is_empty())
        && (is_object || !has("required"))
        && list("required").all(knows)
        && (kind.as_deref() == Some("string") || !has("enum"))
        && list("enum").all(|choice| choice != "")
}

fn each(properties: &Value) -> Option<Value> {
    let properties = properties.as_object()?.iter();
    let written: Option<Metadata> =
        properties.map(|(name, schema)| Some((name.clone(), in_dialect(schema)?))).collect();
    written.map(Value::Object)
}
