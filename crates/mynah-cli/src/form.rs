//! The JSON Schema that an answer must fit.

use jsonschema::Validator;
use mynah::{
    AdapterReason, Error, FinishReason, HaltReason, Metadata, Response, ResponseFormat,
    log::{About, Fact},
};
use serde_json::{Value, json};

use crate::generate::cut_off;

/// What an answer must be.
pub(crate) struct Form {
    format: ResponseFormat,
    validator: Validator,
}

impl Form {
    /// The form of a schema. Without a title it is called by the other name.
    pub(crate) fn new(schema: Value, other: &str) -> Result<Self, String> {
        let validator = jsonschema::validator_for(&schema)
            .map_err(|error| format!("not JSON Schema: {error}"))?;
        let (name, strict) = (schema_name(&schema, other), can_be_strict(&schema));
        Ok(Self { format: ResponseFormat::JsonSchema { name, schema, strict }, validator })
    }

    /// The form that a recorded run asked for.
    fn recorded(about: &About) -> Option<Self> {
        let name = "response_format";
        let format = about.options.get(name).or_else(|| about.params.get(name))?;
        let format: ResponseFormat = serde_json::from_value(format.clone()).ok()?;
        let ResponseFormat::JsonSchema { schema, .. } = &format else { return None };
        let validator = jsonschema::validator_for(schema).ok()?;
        Some(Self { format, validator })
    }

    pub(crate) fn format(&self) -> ResponseFormat {
        self.format.clone()
    }

    /// Not every provider enforces a schema, and none can in an answer that it cuts off. One that calls tools is not held against it.
    pub(crate) fn check(&self, response: &Response) -> mynah::Result<()> {
        if response.finish_reason == Some(FinishReason::ToolCalls) {
            return Ok(());
        }
        let Err(why) = self.fits(&response.text()) else { return Ok(()) };
        let cut_off = cut_off(response).map(|how| format!("was cut off {how} and so "));
        let cut_off = cut_off.unwrap_or_default();
        let message = format!("adapter error: malformed_response: the answer {cut_off}{why}");
        Err(Error::adapter(AdapterReason::MalformedResponse)
            .with_message(message)
            .with("response", json!(response)))
    }

    /// The message for an answer that does not fit.
    fn fits(&self, text: &str) -> Result<(), String> {
        let answer: Value =
            serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
        self.validator.validate(&answer).map_err(|error| {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { String::new() } else { format!("{place}: ") };
            format!("does not fit the schema: {place}{error}")
        })
    }
}

/// Why the answer of a completed run does not fit the form that the run asked for; none if it fits, or if there is neither.
pub(crate) fn misfit(facts: &[Fact]) -> Option<Error> {
    let (mut form, mut answer, mut is_done) = (None, None, false);
    for fact in facts {
        match fact {
            Fact::RunStarted { about: Some(about), .. }
            | Fact::Resumed { about: Some(about), .. } => form = Form::recorded(about),
            Fact::AssistantCompleted { response, .. } => answer = Some(response),
            Fact::Completed(end) => is_done = end.reason == HaltReason::Completed,
            _ => {}
        }
    }
    let (form, answer) = form.zip(answer).filter(|_| is_done)?;
    form.check(answer).err()
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
