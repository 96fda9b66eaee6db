//! The JSON Schema that an answer must fit.

use mynah::{Metadata, Response, ResponseFormat};
use mynah_agent::answer;
use serde_json::Value;

/// What an answer must be.
pub(crate) struct Form {
    name: String,
    schema: Value,
}

impl Form {
    /// The form of a schema. Without a title it is called by the other name.
    pub(crate) fn new(schema: Value, other: &str) -> Result<Self, String> {
        jsonschema::validator_for(&schema).map_err(|error| format!("not JSON Schema: {error}"))?;
        Ok(Self { name: schema_name(&schema, other), schema })
    }

    pub(crate) fn format(&self) -> ResponseFormat {
        let Self { name, schema } = self;
        let strict = can_be_strict(schema);
        ResponseFormat::JsonSchema { name: name.clone(), schema: schema.clone(), strict }
    }

    pub(crate) fn check(&self, response: &Response) -> mynah::Result<()> {
        answer::check(&self.schema, response)
    }
}

/// Whether providers that enforce schemas take this one: the answer is an object, and no object of it may have other
/// properties than all that it says.
fn can_be_strict(schema: &Value) -> bool {
    const REFUSED: [&str; 11] = [
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "patternProperties",
        "prefixItems",
        "unevaluatedProperties",
    ];
    fn holds(schema: &Value) -> bool {
        let Some(schema) = schema.as_object() else {
            return false;
        };
        let each = |name: &str| schema.get(name).and_then(Value::as_object).into_iter().flatten();
        let required = schema.get("required").and_then(Value::as_array);
        let needs =
            |name: &String| required.is_some_and(|names| names.iter().any(|known| known == name));
        let is_closed = || schema.get("additionalProperties") == Some(&Value::Bool(false));
        let choices = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
        let named = ["properties", "$defs", "definitions"].into_iter().flat_map(each);
        !REFUSED.iter().any(|name| schema.contains_key(*name))
            && (!may_be_object(schema) || is_closed())
            && each("properties").all(|(name, _)| needs(name))
            && named.map(|(_, inner)| inner).chain(schema.get("items")).chain(choices).all(holds)
    }
    fn may_be_object(schema: &Metadata) -> bool {
        match schema.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
            Some(kind) => kind == "object",
            None => schema.contains_key("properties"),
        }
    }
    schema.get("type").is_some_and(|kind| kind == "object") && holds(schema)
}

/// A name for a schema, as providers want one: its title, or this.
fn schema_name(schema: &Value, other: &str) -> String {
    let title = schema.get("title").and_then(Value::as_str);
    let name = title.filter(|title| !title.trim().is_empty()).unwrap_or(other);
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    name.chars().map(legal).take(64).collect()
}
