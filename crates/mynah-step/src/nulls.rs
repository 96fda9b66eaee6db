//! Members that are `null` where they could be left away.
//!
//! Providers that require all members of an object are given optional ones as nullable, so models answer with `null` what they would
//! have left away.

use jsonschema::{ValidationError, Validator, error::ValidationErrorKind};
use serde_json::Value;

/// A value that fits the schema, or what keeps it from fitting.
///
/// Members that are `null` and optional, and whose schemas permit no `null`, are left away.
pub(crate) fn fitting<'v>(
    validator: &'v Validator,
    value: &'v Value,
) -> Result<Value, Box<ValidationError<'v>>> {
    let Err(first) = validator.validate(value) else { return Ok(value.clone()) };
    let mut stripped = value.clone();
    let mut removed: Vec<String> = Vec::new();
    // Without them alternatives may fit that did not, whose own members come next.
    loop {
        let mut places = Vec::new();
        for error in validator.iter_errors(&stripped) {
            collect(&error, &stripped, &mut places);
        }
        places.retain(|place| remove(&mut stripped, place));
        if validator.is_valid(&stripped) {
            return Ok(stripped);
        }
        if places.is_empty() {
            break;
        }
        removed.append(&mut places);
    }
    let mut missing = Vec::new();
    for error in validator.iter_errors(&stripped) {
        if let ValidationErrorKind::Required { property: Value::String(name) } = error.kind() {
            let name = name.replace('~', "~0").replace('/', "~1");
            missing.push(format!("{}/{name}", error.instance_path()));
        }
    }
    // An optional member that is null is not what is wrong.
    let is_wrong = |error: &ValidationError<'_>| {
        let place = error.instance_path().to_string();
        !removed.contains(&place) || missing.contains(&place)
    };
    Err(Box::new(validator.iter_errors(value).find(is_wrong).unwrap_or(first)))
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
        fitting(&validator, value).map_err(|error| error.to_string())
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
    fn what_is_required_or_an_item_is_not_left_away_and_the_error_names_it() {
        let schema = json!({
            "type": "object",
            "properties": {
                "s": {"type": "string"}, "n": {"type": "integer"},
                "list": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["n"],
        });
        for (value, why) in [
            (json!({"n": null}), r#"null is not of type "integer""#),
            (json!({"s": null, "n": "one"}), r#""one" is not of type "integer""#),
            (json!({"s": null, "n": null}), r#"null is not of type "integer""#),
            (json!({"n": 1, "list": [null]}), r#"null is not of type "string""#),
            (json!({"s": null}), r#""n" is a required property"#),
        ] {
            assert_eq!(checked(&schema, &value), Err(why.to_owned()), "{value}");
        }
    }
}
