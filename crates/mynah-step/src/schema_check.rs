//! The check of a call's arguments against the schema of its tool. It needs the feature `json-schema`; without it every schema is
//! accepted, and so are all arguments.

use serde_json::Value;

/// Why this is not JSON Schema, with the place; none if it is.
#[doc(hidden)]
pub fn schema_error(schema: &Value) -> Option<String> {
    SchemaCheck::new(schema).err()
}

/// A schema that values are checked against.
pub(crate) struct SchemaCheck {
    /// None if it permits everything.
    #[cfg(feature = "json-schema")]
    validator: Option<jsonschema::Validator>,
}

#[cfg(feature = "json-schema")]
impl SchemaCheck {
    /// # Errors
    /// Why it is not JSON Schema, with the place.
    pub(crate) fn new(schema: &Value) -> Result<Self, String> {
        if schema.as_object().is_some_and(|schema| schema.is_empty()) {
            return Ok(Self { validator: None });
        }
        let validator = jsonschema::validator_for(schema).map_err(|error| {
            let place = error.instance_path().as_str();
            let place = if place.is_empty() { "its root" } else { place };
            format!("{place}: {error}")
        })?;
        Ok(Self { validator: Some(validator) })
    }

    /// The arguments without members that are `null` where they could be left out.
    ///
    /// # Errors
    /// All reasons why they do not fit, in one line.
    pub(crate) fn fitting(&self, arguments: &Value) -> Result<Value, String> {
        let Some(validator) = &self.validator else { return Ok(arguments.clone()) };
        crate::nulls::fitting(validator, arguments).map_err(|without_nulls| {
            crate::misfits::list(validator, &without_nulls, "the arguments")
        })
    }
}

#[cfg(not(feature = "json-schema"))]
impl SchemaCheck {
    pub(crate) fn new(_: &Value) -> Result<Self, String> {
        Ok(Self {})
    }

    pub(crate) fn fitting(&self, arguments: &Value) -> Result<Value, String> {
        Ok(arguments.clone())
    }
}

#[cfg(all(test, not(feature = "json-schema")))]
mod tests {
    use serde_json::json;

    use super::SchemaCheck;

    #[test]
    fn without_the_feature_arguments_are_taken_as_they_come() {
        let check = SchemaCheck::new(&json!({"type": "no type at all"}));
        let arguments = json!({"n": "one"});
        assert_eq!(check.and_then(|check| check.fitting(&arguments)), Ok(arguments));
    }
}
