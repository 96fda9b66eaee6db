//! What holds for every schema that is fitted to a dialect.

use mynah_adapters::fit::{Dialect, Target, fit};
use mynah_data::ToolCall;
use mynah_step::Tool;
use proptest::{collection::vec, prelude::*};
use serde_json::{Map, Value, json};

/// What a schema generator may refer to.
const REFERENCES: [&str; 5] =
    ["#", "#/$defs/d0", "#/$defs/d1", "#/definitions/old", "#/properties/a"];

/// Schemas with most of what JSON Schema has.
fn schemas() -> impl Strategy<Value = Value> {
    let text = proptest::sample::select(vec!["", "a", "b", "c", "null", "2026-01-01"]);
    let literal = prop_oneof![
        text.prop_map(Value::from),
        (-2i64..4).prop_map(Value::from),
        Just(json!(1.5)),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    let kinds = ["string", "integer", "number", "boolean", "null"];
    let leaf = prop_oneof![
        4 => proptest::sample::select(kinds.to_vec()).prop_map(|kind| json!({"type": kind})),
        1 => proptest::sample::subsequence(kinds.to_vec(), 2).prop_map(|kinds| json!({"type": kinds})),
        1 => vec(literal.clone(), 1..4).prop_map(|values| json!({"enum": values})),
        1 => (literal.clone(), "[a-z]{0,5}").prop_map(|(value, text)| json!({"const": value, "description": text})),
        1 => Just(json!({"type": "integer", "minimum": 0, "maximum": 2, "format": "uint8"})),
        1 => Just(json!({"type": "string", "minLength": 1, "maxLength": 2})),
        1 => Just(json!({"type": "string", "pattern": "^a", "format": "date", "default": "a"})),
        1 => Just(json!({})),
        1 => any::<bool>().prop_map(Value::from),
        2 => proptest::sample::select(REFERENCES.to_vec()).prop_map(|to| json!({"$ref": to})),
        1 => proptest::sample::select(REFERENCES.to_vec()).prop_map(|to| json!({"$ref": to, "description": "D.", "minLength": 1})),
    ];
    leaf.prop_recursive(4, 48, 4, |inner| {
        let names = proptest::sample::subsequence(vec!["a", "b", "c"], 0..=3);
        let more = prop_oneof![
            3 => Just(None), 3 => Just(Some(json!(false))), 1 => Just(Some(json!(true))), 1 => inner.clone().prop_map(Some)
        ];
        let object = (vec(inner.clone(), 0..4), names, more).prop_map(|(schemas, required, more)| {
            let properties: Map<String, Value> =
                ["a", "b", "c"].iter().map(ToString::to_string).zip(schemas).collect();
            let mut schema = json!({"type": "object", "properties": properties, "required": required});
            if let Some(more) = more {
                schema["additionalProperties"] = more;
            }
            schema
        });
        let list = |name: &'static str| {
            move |schemas: Vec<Value>| json!({name: schemas})
        };
        prop_oneof![
            6 => object.clone(),
            2 => inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
            1 => vec(inner.clone(), 1..3).prop_map(|items| json!({"type": "array", "prefixItems": items, "minItems": 1})),
            2 => vec(inner.clone(), 1..4).prop_map(list("anyOf")),
            2 => vec(inner.clone(), 1..4).prop_map(list("oneOf")),
            1 => vec(inner.clone(), 1..3).prop_map(list("allOf")),
            1 => vec(object.clone(), 1..3).prop_map(list("oneOf")),
            1 => (object.clone(), vec(object.clone(), 1..3)).prop_map(|(mut base, branches)| {
                base["anyOf"] = branches.into();
                base
            }),
            1 => (object, inner.clone()).prop_map(|(mut base, not)| {
                base["not"] = not;
                base
            }),
            1 => inner.prop_map(|schema| json!({"type": "array", "items": schema, "uniqueItems": true, "maxItems": 2})),
        ]
    })
}

/// Schemas of arguments, with definitions.
fn roots() -> impl Strategy<Value = Value> {
    let parts = (schemas(), schemas(), schemas(), schemas(), any::<u8>());
    parts.prop_map(|(mut a, d0, d1, old, form)| {
        let is_object = a.get("type") == Some(&json!("object"));
        let mut root = match form % 4 {
            0 if is_object => a.take(),
            1 => json!({"type": "object", "properties": {"a": a}}),
            2 => json!({"type": "object", "properties": {"a": a}, "required": ["a"], "additionalProperties": false}),
            _ => json!({"type": "object", "properties": {"a": a, "b": {"$ref": "#/$defs/d0"}}, "required": ["b"]}),
        };
        root["$defs"] = json!({"d0": d0, "d1": d1});
        root["definitions"] = json!({"old": old});
        root
    })
}

/// A value that a fitted schema may accept, by its own words.
fn sample(
    whole: &Value,
    schema: &Value,
    choices: &mut impl Iterator<Item = u8>,
    depth: usize,
) -> Value {
    let mut choose = |count: usize| usize::from(choices.next().unwrap_or(0)) % count.max(1);
    if depth > 8 {
        return Value::Null;
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = whole.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null);
        return sample(whole, target, choices, depth + 1);
    }
    if let Some(values) = schema["enum"].as_array() {
        return values[choose(values.len())].clone();
    }
    if let Some(branches) = schema["anyOf"].as_array() {
        let chosen = choose(branches.len());
        return sample(whole, &branches[chosen], choices, depth + 1);
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds[choose(kinds.len())].as_str(),
        kind => kind.as_str(),
    };
    match kind {
        Some("object") => {
            let required: Vec<&Value> =
                schema["required"].as_array().into_iter().flatten().collect();
            let mut members = Map::new();
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                let is_given = required.iter().any(|own| *own == name)
                    || choices.next().unwrap_or(0).is_multiple_of(2);
                if is_given {
                    members.insert(name.clone(), sample(whole, schema, choices, depth + 1));
                }
            }
            members.into()
        }
        Some("array") => {
            let count = choose(3);
            (0..count).map(|_| sample(whole, &schema["items"], choices, depth + 1)).collect()
        }
        Some("string") => json!(["", "a", "ab", "abc", "2026-01-01"][choose(5)]),
        Some("integer") => json!(choose(4)),
        Some("number") => json!([0.0, 1.0, 1.5, -1.0][choose(4)]),
        Some("boolean") => json!(choose(2) == 0),
        Some("null") => Value::Null,
        _ => [json!(1), json!("a"), json!(null), json!({})][choose(4)].clone(),
    }
}

/// Whether arguments reach a tool of this schema; none if it is no schema.
fn accepts(schema: &Value, arguments: &Value) -> Option<bool> {
    let tool = Tool::new("t", "", schema.clone());
    let call = ToolCall::new("c", "t", arguments.to_string());
    tool.schema_error().is_none().then(|| tool.check_arguments(&call).is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_fitted_schema_fits_as_it_is(schema in roots()) {
        for dialect in Dialect::ALL.iter().copied() {
            for strict in [None, Some(true), Some(false)] {
                let target = Target::arguments(dialect).strict(strict);
                let once = fit(&schema, target).unwrap();
                let twice = fit(&once.schema, target).unwrap();
                prop_assert_eq!(&twice.schema, &once.schema, "{:?} {:?}", dialect, strict);
                prop_assert_eq!(twice.strict, once.strict, "{:?} {:?}", dialect, strict);
            }
        }
    }

    #[test]
    fn any_json_is_fitted_or_refused(schema in anything()) {
        for dialect in Dialect::ALL.iter().copied() {
            for target in [Target::arguments(dialect), Target::answer(dialect).strict(Some(true))] {
                if let Ok(once) = fit(&schema, target) {
                    let twice = fit(&once.schema, target).unwrap();
                    prop_assert_eq!(twice.schema, once.schema, "{:?}", target);
                }
            }
        }
    }

    #[test]
    fn what_a_strict_schema_accepts_the_original_accepts(
        schema in roots(), choices in vec(vec(any::<u8>(), 0..40), 8),
    ) {
        for dialect in [Dialect::OpenAiChat, Dialect::OpenAiResponses, Dialect::DeepSeek, Dialect::Anthropic] {
            let fitted = fit(&schema, Target::arguments(dialect).strict(Some(true))).unwrap();
            if !fitted.strict || !fitted.is_lossless() {
                continue;
            }
            let validator = jsonschema::validator_for(&fitted.schema).unwrap();
            for choices in &choices {
                let value = sample(&fitted.schema, &fitted.schema, &mut choices.iter().copied(), 0);
                if validator.is_valid(&value) {
                    let is_accepted = accepts(&schema, &value);
                    prop_assert_ne!(is_accepted, Some(false), "{:?} {} accepts {}", dialect, fitted.schema, value);
                }
            }
        }
    }
}

/// JSON with the words of JSON Schema anywhere.
fn anything() -> impl Strategy<Value = Value> {
    let words = proptest::sample::select(vec![
        "type",
        "properties",
        "required",
        "items",
        "prefixItems",
        "additionalProperties",
        "$ref",
        "$defs",
        "definitions",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "enum",
        "const",
        "$schema",
        "$id",
        "$anchor",
        "format",
        "pattern",
        "minimum",
        "exclusiveMinimum",
        "minItems",
        "default",
        "description",
        "nullable",
        "dependencies",
        "if",
        "then",
        "a",
        "b",
    ]);
    let text = proptest::sample::select(vec![
        "object",
        "string",
        "array",
        "null",
        "#",
        "#/$defs/a",
        "#/properties/a",
        "#a",
        "http://json-schema.org/draft-07/schema#",
        "a",
        "",
        "#/%zz",
        "#/$defs/%41~1",
    ]);
    let leaf = prop_oneof![
        3 => text.prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => (-1i64..3).prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(5, 60, 5, move |inner| {
        prop_oneof![
            1 => vec(inner.clone(), 0..4).prop_map(Value::from),
            4 => vec((words.clone(), inner), 0..5).prop_map(|members| {
                Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
        ]
    })
}

#[test]
fn the_properties_are_tried_on_schemas_that_are_strict() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strict = (0..300).filter(|_| {
        let schema =
            proptest::strategy::ValueTree::current(&roots().new_tree(&mut runner).unwrap());
        let fitted =
            fit(&schema, Target::arguments(Dialect::OpenAiChat).strict(Some(true))).unwrap();
        fitted.strict && fitted.is_lossless()
    });
    let strict = strict.count();
    assert!(strict > 20, "{strict} of 300");
}
