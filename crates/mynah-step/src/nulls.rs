//! Members that are `null` where they could be left out.
//!
//! Providers that require all members of an object are given optional ones as nullable, so models
//! answer with `null` what they would have left out.

use jsonschema::{ValidationError, Validator, error::ValidationErrorKind};
use serde_json::Value;

/// The value if it fits the schema, without members that are `null`, optional, and of a schema that permits no `null`. If it does not
/// fit, the error is the value without such members: what is wrong with it is not that they are `null`.
pub(crate) fn fitting(validator: &Validator, value: &Value) -> Result<Value, Value> {
    let mut stripped = value.clone();
    // Without them alternatives may fit that did not, whose own members come next.
    while !validator.is_valid(&stripped) {
        let mut places = Vec::new();
        for error in validator.iter_errors(&stripped) {
            collect(&error, &stripped, &mut places);
        }
        places.retain(|place| remove(&mut stripped, place));
        if places.is_empty() {
            return Err(stripped);
        }
    }
    Ok(stripped)
}

/// The places of members that are `null` and do not fit.
fn collect(error: &ValidationError<'_>, whole: &Value, places: &mut Vec<String>) {
    if let ValidationErrorKind::AnyOf { context }
    | ValidationErrorKind::OneOfNotValid { context }
    | ValidationErrorKind::OneOfMultipleValid { context } = error.kind()
    {
        context.iter().flatten().for_each(|error| collect(error, whole, places));
    }
    let place = error.instance_path().to_string();
    if whole.pointer(&place).is_some_and(Value::is_null) && !places.contains(&place) {
        places.push(place);
    }
}

/// Leaves a member of an object away.
fn remove(whole: &mut Value, place: &str) -> bool {
    let Some((parent, name)) = place.rsplit_once('/') else { return false };
    let name = name.replace("~1", "/").replace("~0", "~");
    match whole.pointer_mut(parent) {
        Some(Value::Object(members)) => members.shift_remove(&name).is_some(),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "tests fail")]
mod tests {
    use serde_json::{Value, json};

    use super::fitting;

    fn checked(schema: &Value, value: &Value) -> Result<Value, String> {
        let validator = jsonschema::validator_for(schema).expect("a schema");
        fitting(&validator, value).map_err(|value| crate::misfits::list(&validator, &value, "it"))
    }

    #[test]
    fn null_for_an_optional_member_is_as_if_it_was_left_away() {
        let inner = json!({"type": "object", "properties": {"x~/": {"type": "integer"}}});
        let schema = json!({
            "type": "object",
            "properties": {
                "n": {"type": "integer"}, "s": {"type": "string"}, "maybe": {"type": ["string", "null"]},
                "list": {"type": "array", "items": inner}, "either": {"anyOf": [{"type": "string"}, inner]},
            },
            "required": ["n"],
        });
        for (value, expected) in [
            (json!({"n": 1, "s": null, "maybe": null}), json!({"n": 1, "maybe": null})),
            (
                json!({"n": 1, "list": [{"x~/": null}, {"x~/": 2}]}),
                json!({"n": 1, "list": [{}, {"x~/": 2}]}),
            ),
            (json!({"n": 1, "either": {"x~/": null}}), json!({"n": 1, "either": {}})),
            (json!({"n": 1, "either": null}), json!({"n": 1})),
        ] {
            assert_eq!(checked(&schema, &value), Ok(expected), "{value}");
        }
    }

    #[test]
    fn what_is_required_or_an_item_cannot_be_null_and_the_error_names_it() {
        let schema = json!({
            "type": "object",
            "properties": {
                "s": {"type": "string"}, "n": {"type": "integer"},
                "list": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["n"],
        });
        for (value, why) in [
            (json!({"n": null}), "/n: missing"),
            (json!({"s": null, "n": "one"}), r#"/n: expected integer, got "one""#),
            (json!({"s": null, "n": null}), "/n: missing"),
            (json!({"n": 1, "list": [null]}), "/list/0: expected string, got null"),
            (json!({"s": null}), "/n: missing"),
        ] {
            assert_eq!(checked(&schema, &value), Err(why.to_owned()), "{value}");
        }
    }
}
