//! Why a value does not fit a schema, in words that a model can act on: the place, what was expected, what it got.

use std::fmt::Write as _;

use jsonschema::{
    ValidationError, Validator,
    error::{TypeKind, ValidationErrorKind as Kind},
};
use serde_json::Value;

/// How many errors are listed.
const LISTED: usize = 8;
/// How many characters of a value are shown.
const SHOWN: usize = 80;

/// Why a value does not fit a JSON Schema, all reasons in one line. `whole` is what the value is called.
///
/// ```
/// use mynah_step::misfits;
/// use serde_json::json;
///
/// let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n", "unit"]});
/// assert_eq!(misfits(&schema, &json!({"n": 1, "unit": "m"}), "the arguments"), None);
/// let why = misfits(&schema, &json!({"n": "one"}), "the arguments");
/// assert_eq!(why.as_deref(), Some(r#"/n: expected integer, got "one"; /unit: missing"#));
/// ```
pub fn misfits(schema: &Value, value: &Value, whole: &str) -> Option<String> {
    match jsonschema::validator_for(schema) {
        Ok(validator) if validator.is_valid(value) => None,
        Ok(validator) => Some(list(&validator, value, whole)),
        Err(error) => Some(format!("the schema cannot be used: {error}")),
    }
}

/// All reasons why a value does not fit, in one line.
pub(crate) fn list(validator: &Validator, value: &Value, whole: &str) -> String {
    let mut errors: Vec<_> =
        validator.iter_errors(value).map(|error| line(&error, whole)).collect();
    errors.sort();
    errors.dedup();
    let more = errors.len().saturating_sub(LISTED);
    errors.truncate(LISTED);
    let mut text = errors.join("; ");
    if more > 0 {
        _ = write!(text, "; and {more} more");
    }
    text
}

fn line(error: &ValidationError<'_>, whole: &str) -> String {
    let place = error.instance_path().as_str();
    let at = if place.is_empty() { whole } else { place };
    let got = || shown(&error.instance().to_string());
    match error.kind() {
        Kind::Required { property } => {
            format!("{place}/{}: missing", property.as_str().unwrap_or_default())
        }
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            let each = |name: &String| format!("{place}/{}: unknown", shown(name));
            let names: Vec<_> = unexpected.iter().take(LISTED).map(each).collect();
            names.join("; ")
        }
        Kind::Type { kind: TypeKind::Single(expected) } => {
            format!("{at}: expected {expected}, got {}", got())
        }
        Kind::Type { kind: TypeKind::Multiple(expected) } => {
            let types: Vec<_> = expected.iter().map(|expected| expected.to_string()).collect();
            format!("{at}: expected {}, got {}", types.join(" or "), got())
        }
        Kind::Constant { expected_value } => {
            format!("{at}: expected {}, got {}", shown(&expected_value.to_string()), got())
        }
        Kind::Enum { options } => {
            let options: Vec<_> =
                options.as_array().into_iter().flatten().map(Value::to_string).collect();
            format!("{at}: expected one of {}, got {}", cut(&options.join(", "), 400), got())
        }
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
            let first = |errors: &Vec<ValidationError<'static>>| {
                errors.first().map(|error| line(error, at))
            };
            let forms: Vec<_> = context.iter().filter_map(first).take(LISTED).collect();
            format!("{at}: fits none of its forms ({}), got {}", forms.join(" | "), got())
        }
        // The texts of the others name what was expected and what was there.
        _ => format!("{at}: {}", cut(&error.to_string(), 4 * SHOWN)),
    }
}

fn shown(text: &str) -> String {
    cut(text, SHOWN)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
