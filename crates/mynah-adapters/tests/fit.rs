//! Schemas as each dialect takes them.
//!
//! `fit/inputs` holds tools by where they come from: MCP servers, as they answered `tools/list`; types, as schemars describes them; and
//! schemas written for these tests. `fit/goldens` holds what each dialect makes of them; `MYNAH_BLESS=1` writes it anew. A golden is
//! an assertion: read what has changed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use mynah_adapters::{
    fit::{Dialect, FitError, Fitted, Target, fit},
    format::Format,
    openai_chat::OpenAiChat,
};
use mynah_data::{Request, ToolSpec};
use mynah_step::ModelCall;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// What stands in the golden of a schema.
fn shown(fitted: &Fitted) -> Value {
    let notes = fitted.notes.iter().map(|note| format!("{:?} {note}", note.change));
    let notes: Vec<String> = notes.collect();
    let mut shown = json!({"strict": fitted.strict, "schema": fitted.schema});
    if !notes.is_empty() {
        shown["notes"] = notes.into();
    }
    shown
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fit").join(name)
}

/// Every schema of the inputs: where it comes from, its name, and the schema.
fn inputs() -> Vec<(String, String, Value)> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder("inputs")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut schemas = Vec::new();
    for file in files {
        let source = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let input: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for tool in input["tools"].as_array().unwrap() {
            let name = tool["name"].as_str().unwrap();
            schemas.push((source.clone(), name.to_owned(), tool["inputSchema"].clone()));
            if let Some(output) = tool.get("outputSchema") {
                schemas.push((source.clone(), format!("{name} (output)"), output.clone()));
            }
        }
    }
    assert!(schemas.len() > 90, "{} schemas", schemas.len());
    schemas
}

fn target(name: &str, dialect: Dialect, strict: Option<bool>) -> Target {
    match name.ends_with("(output)") {
        true => Target::answer(dialect).strict(strict),
        false => Target::arguments(dialect).strict(strict),
    }
}

#[test]
fn every_schema_has_its_golden_form_in_every_dialect() {
    let bless = env::var_os("MYNAH_BLESS").is_some();
    let mut wrong = Vec::new();
    for dialect in Dialect::ALL.iter().copied() {
        let mut forms: Map<String, Value> = Map::new();
        for (source, name, schema) in inputs() {
            let by_default = fit(&schema, target(&name, dialect, None)).unwrap();
            let mut form = shown(&by_default);
            let on_request = fit(&schema, target(&name, dialect, Some(true))).unwrap();
            if on_request != by_default {
                form["on request"] = shown(&on_request);
            }
            forms.insert(format!("{source}: {name}"), form);
        }
        let file = folder("goldens").join(format!("{dialect:?}.json"));
        // A line for each: they are many.
        let lines = forms.iter().map(|(name, form)| format!("{}: {form}", json!(name)));
        let written = format!("{{\n{}\n}}\n", lines.collect::<Vec<_>>().join(",\n"));
        if bless {
            fs::create_dir_all(folder("goldens")).unwrap();
            fs::write(&file, written).unwrap();
        } else if fs::read_to_string(&file).unwrap_or_default() != written {
            let known: Map<String, Value> = fs::read_to_string(&file)
                .ok()
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default();
            let differs = forms.iter().filter(|(name, form)| known.get(*name) != Some(*form));
            wrong.extend(differs.map(|(name, _)| format!("{dialect:?} {name}")));
            wrong.push(format!("{dialect:?}"));
        }
    }
    assert!(wrong.is_empty(), "MYNAH_BLESS=1 writes them: {wrong:#?}");
}

#[test]
fn a_schema_that_is_too_large_or_too_deep_is_refused_by_name() {
    let wide: Map<String, Value> = (0..100_000).map(|n| (format!("p{n}"), json!({}))).collect();
    let mut deep = json!({"type": "object"});
    for _ in 0..60 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    // Each of many places is referred to, and holds all places below it.
    let mut nested = json!({"type": "string"});
    let mut place = String::from("#");
    let mut references = Map::new();
    for n in 0..45 {
        nested = json!({"properties": {"a": nested, "x": {"enum": vec![n; 300]}}});
        place.push_str("/properties/a");
        references.insert(format!("r{n}"), json!({"$ref": place}));
    }
    nested["properties"]["r"] =
        json!({"properties": references, "enum": (0..20_000).collect::<Vec<_>>()});
    for (schema, why) in [
        (json!({"type": "object", "properties": wide}), FitError::TooLarge),
        (deep, FitError::TooDeep),
        (json!({"type": "string"}), FitError::NotAnObject),
    ] {
        for dialect in Dialect::ALL.iter().copied() {
            assert_eq!(fit(&schema, Target::arguments(dialect)), Err(why), "{dialect:?}");
        }
    }
    let request = Request::from("hi")
        .with_tools([ToolSpec::new("huge", "", json!({"type": "object", "properties": (0..100_000).map(|n| (n.to_string(), json!({}))).collect::<Map<_, _>>()}))])
        .with_model("m");
    let error = OpenAiChat::default().body(&request, &ModelCall::default()).unwrap_err();
    assert_eq!(error.reason(), "invalid_request");
    assert!(error.to_string().contains(r#"the schema of tool "huge" cannot be sent"#), "{error}");
    let begun = Instant::now();
    for dialect in Dialect::ALL.iter().copied() {
        drop(fit(&nested, Target::arguments(dialect)));
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn definitions_that_would_grow_without_bound_are_cut() {
    let mut defs = Map::new();
    for n in 0..60 {
        let next = json!({"$ref": format!("#/$defs/t{}", n + 1)});
        let both = json!({"allOf": [next, {"minProperties": 1}]});
        let base = json!({"type": "object", "properties": {"a": next, "b": both}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
        defs.insert(format!("t{n}"), base);
    }
    let schema =
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/t0"}}, "$defs": defs});
    for dialect in Dialect::ALL.iter().copied() {
        for strict in [None, Some(true)] {
            let fitted = fit(&schema, Target::arguments(dialect).strict(strict)).unwrap();
            let size = fitted.schema.to_string().len();
            assert!(size < 5_000_000, "{dialect:?}: {size} bytes");
        }
    }
}

/// What a member of an object becomes, if the model may be held to the schema on request; else none.
fn held(dialect: Dialect, member: Value) -> Option<Value> {
    let schema = json!({
        "type": "object", "properties": {"m": member}, "required": ["m"],
        "$defs": {
            "day": {"type": "string", "description": "A day."},
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}},
        },
    });
    let fitted = fit(&schema, Target::arguments(dialect).strict(Some(true))).unwrap();
    fitted.strict.then(|| fitted.schema["properties"]["m"].clone())
}

/// The same for dialects that hold no model to anything.
fn written(dialect: Dialect, member: Value) -> Value {
    let defs = json!({
        "day": {"type": "string", "description": "A day."},
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]},
    });
    let schema = json!({"type": "object", "properties": {"m": member}, "$defs": defs});
    fit(&schema, Target::arguments(dialect)).unwrap().schema
}

#[test]
fn openai_takes_no_limits_of_strings_no_one_of_and_no_tuples() {
    let held = |member: Value| held(Dialect::OpenAiChat, member);
    for (member, expected) in [
        (
            json!({"type": "string", "minLength": 1}),
            json!({"type": "string", "description": "Min length: 1."}),
        ),
        (json!({"type": "string", "minLength": 0}), json!({"type": "string"})),
        (
            json!({"type": "integer", "format": "int32", "minimum": 1}),
            json!({"type": "integer", "minimum": 1}),
        ),
        (json!({"type": "string", "format": "uuid"}), json!({"type": "string", "format": "uuid"})),
        (
            json!({"type": "string", "format": "uri", "description": "Where."}),
            json!({"type": "string", "description": "Where.\nFormat: uri."}),
        ),
        (json!({"const": 1}), json!({"enum": [1], "type": "integer"})),
        (json!({"enum": ["a", null]}), json!({"enum": ["a", null], "type": ["string", "null"]})),
        (
            json!({"oneOf": [{"type": "string"}, {"type": "integer"}]}),
            json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}], "minItems": 2, "maxItems": 2}),
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
        ),
        (json!({"$ref": "#/$defs/day"}), json!({"$ref": "#/$defs/day"})),
        (
            json!({"$ref": "#/$defs/day", "description": "The first."}),
            json!({"description": "The first.", "anyOf": [{"$ref": "#/$defs/day"}]}),
        ),
        (
            json!({"$ref": "#/$defs/day", "pattern": "^2"}),
            json!({"type": "string", "description": "A day.", "pattern": "^2"}),
        ),
        (json!({"$ref": "#/$defs/node"}), json!({"$ref": "#/$defs/node"})),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/day"}, "b": {"enum": ["x"]}}}),
            json!({
                "type": "object",
                "properties": {
                    "a": {"anyOf": [{"$ref": "#/$defs/day"}, {"type": "null"}]},
                    "b": {"enum": ["x", null], "type": ["string", "null"]},
                },
                "required": ["a", "b"],
                "additionalProperties": false,
            }),
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "anyOf": [
                {"properties": {"b": {"type": "null"}}, "required": ["b"]},
            ]}),
            json!({"anyOf": [{
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "null"}},
                "required": ["a", "b"],
                "additionalProperties": false,
            }]}),
        ),
    ] {
        assert_eq!(held(member.clone()), Some(expected), "{member}");
    }
    for member in [
        json!({}),
        json!(true),
        json!({"type": "array"}),
        json!({"type": "object"}),
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        json!({"type": "object", "properties": {}, "patternProperties": {"^x": {}}}),
        json!({"type": "object", "properties": {}, "required": ["a"]}),
        json!({"not": {"type": "string"}}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
    ] {
        assert_eq!(held(member.clone()), None, "{member}");
    }
}

#[test]
fn openai_is_strict_by_default_where_that_loses_nothing() {
    let object = |member: Value| json!({"type": "object", "properties": {"m": member}});
    for dialect in Dialect::ALL.iter().copied() {
        let is_strict = |schema: &Value, wish: Option<bool>| {
            fit(schema, Target::arguments(dialect).strict(wish)).unwrap().strict
        };
        let is_openai = matches!(dialect, Dialect::OpenAiChat | Dialect::OpenAiResponses);
        let is_held = is_openai
            || matches!(dialect, Dialect::Anthropic | Dialect::Bedrock | Dialect::DeepSeek);
        let (plain, limited) =
            (object(json!({"type": "string"})), object(json!({"type": "string", "maxLength": 9})));
        assert_eq!(is_strict(&plain, None), is_openai, "{dialect:?}");
        assert!(!is_strict(&plain, Some(false)), "{dialect:?}");
        assert_eq!(
            is_strict(&plain, Some(true)),
            is_held || dialect == Dialect::Plain,
            "{dialect:?}"
        );
        assert!(!is_strict(&limited, None), "{dialect:?}");
        assert_eq!(
            is_strict(&limited, Some(true)),
            is_held || dialect == Dialect::Plain,
            "{dialect:?}"
        );
    }
    let lossy = fit(
        &object(json!({"type": "string", "maxLength": 9})),
        Target::arguments(Dialect::OpenAiChat),
    )
    .unwrap();
    assert_eq!(lossy.schema, object(json!({"type": "string", "maxLength": 9})), "as it was");
    let mut deep = json!({"type": "string"});
    for _ in 0..11 {
        deep = object(deep);
    }
    assert!(
        !fit(&deep, Target::arguments(Dialect::OpenAiChat)).unwrap().strict,
        "more than ten levels"
    );
}

#[test]
fn documented_variants_become_one_enum_with_their_texts() {
    let variants = json!({"description": "Unit.", "oneOf": [
        {"type": "string", "enum": ["kelvin"]},
        {"type": "string", "const": "celsius", "description": "Degrees Celsius."},
    ]});
    let expected = json!({
        "description": "Unit.\n\"celsius\": Degrees Celsius.", "type": "string", "enum": ["kelvin", "celsius"],
    });
    for dialect in [
        Dialect::OpenAiChat,
        Dialect::OpenAiResponses,
        Dialect::DeepSeek,
        Dialect::Anthropic,
        Dialect::Bedrock,
    ] {
        assert_eq!(held(dialect, variants.clone()), Some(expected.clone()), "{dialect:?}");
    }
    for dialect in [Dialect::GeminiJson, Dialect::GeminiOpenApi] {
        assert_eq!(written(dialect, variants.clone())["properties"]["m"], expected, "{dialect:?}");
    }
    assert_eq!(written(Dialect::Plain, variants.clone())["properties"]["m"], variants);
}

#[test]
fn claude_takes_what_is_closed_and_does_not_refer_to_itself() {
    for dialect in [Dialect::Anthropic, Dialect::Bedrock] {
        assert_eq!(held(dialect, json!({"$ref": "#/$defs/node"})), None);
        assert_eq!(
            held(dialect, json!({"$ref": "#/$defs/day", "description": "The first."})),
            Some(json!({"$ref": "#/$defs/day", "description": "The first."}))
        );
        assert_eq!(
            held(
                dialect,
                json!({"type": "array", "items": {"type": "number", "minimum": 1}, "minItems": 1, "maxItems": 4})
            ),
            Some(json!({
                "type": "array", "items": {"type": "number", "description": "Minimum: 1."}, "minItems": 1,
                "description": "Max items: 4.",
            }))
        );
        assert_eq!(
            held(
                dialect,
                json!({"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}})
            ),
            Some(
                json!({"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}, "additionalProperties": false})
            )
        );
        let many: Map<String, Value> =
            (0..25).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
        assert_eq!(
            held(dialect, json!({"type": "object", "properties": many})),
            None,
            "25 optional members"
        );
    }
}

#[test]
fn gemini_takes_maps_and_recursion_where_it_is_optional_or_neither() {
    let json = |member: Value| written(Dialect::GeminiJson, member);
    let open_api =
        |member: Value| written(Dialect::GeminiOpenApi, member)["properties"]["m"].clone();
    let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    assert_eq!(json(map.clone())["properties"]["m"], map);
    assert_eq!(
        open_api(map),
        json!({"type": "object", "description": "Additional properties: {\"type\":\"string\"}."})
    );
    let node = json(json!({"$ref": "#/$defs/node"}));
    assert_eq!(node["$defs"]["node"].get("required"), None, "what leads back is optional");
    for (member, in_json, in_open_api) in [
        (json!({"const": "a"}), json!({"enum": ["a"]}), json!({"description": "Enum: [\"a\"]."})),
        (
            json!({"type": ["string", "null"], "pattern": "^a"}),
            json!({"type": ["string", "null"], "description": "Pattern: ^a."}),
            json!({"type": "string", "pattern": "^a", "nullable": true}),
        ),
        (
            json!({"type": ["string", "integer"], "minimum": 1}),
            json!({"type": ["string", "integer"], "minimum": 1}),
            json!({"anyOf": [{"type": "string"}, {"minimum": 1, "type": "integer"}]}),
        ),
        (
            json!({"anyOf": [{"$ref": "#/$defs/day"}, {"type": "null"}], "description": "When."}),
            json!({"anyOf": [{"$ref": "#/$defs/day"}, {"type": "null"}], "description": "When."}),
            json!({"type": "string", "description": "When.", "nullable": true}),
        ),
        (
            json!({"type": "integer", "enum": [1, 2]}),
            json!({"type": "integer", "enum": [1, 2]}),
            json!({"type": "integer", "description": "Enum: [1,2]."}),
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 0}),
            json!({"type": "number", "description": "Exclusive minimum: 0."}),
            json!({"type": "number", "description": "Exclusive minimum: 0."}),
        ),
    ] {
        assert_eq!(json(member.clone())["properties"]["m"], in_json, "{member}");
        assert_eq!(open_api(member.clone()), in_open_api, "{member}");
    }
}

#[test]
fn plain_schemas_refer_to_definitions_at_their_root_and_are_of_the_newest_draft() {
    let plain = |schema: Value| fit(&schema, Target::arguments(Dialect::Plain)).unwrap().schema;
    for (schema, expected) in [
        (json!({}), json!({"type": "object", "properties": {}})),
        (json!(true), json!({"type": "object", "properties": {}})),
        (json!({"$schema": "x", "type": "object"}), json!({"type": "object"})),
        (
            json!({"type": "object", "properties": {"a": true, "b": false}}),
            json!({"type": "object", "properties": {"a": {}, "b": {"not": {}}}}),
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#/definitions/x~1y"}}, "definitions": {"x/y": {"type": "null"}, "z": {}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": {"type": "null"}}}),
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "null"}}}),
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#here"}, "b": {"$anchor": "here", "type": "null"}}}),
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/here"}, "b": {"type": "null"}}, "$defs": {"here": {"type": "null"}}}),
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "https://example.com/a"}, "b": {"$ref": "#/$defs/none"}}}),
            json!({"type": "object", "properties": {"a": {}, "b": {}}}),
        ),
        (
            json!({"type": "object", "properties": {"a": {"items": [{"type": "null"}], "additionalItems": false}}}),
            json!({"type": "object", "properties": {"a": {"prefixItems": [{"type": "null"}], "items": {"not": {}}}}}),
        ),
        (
            json!({"type": "object", "properties": {"a": {"minimum": 1, "exclusiveMinimum": true}}, "dependencies": {"a": ["b"]}}),
            json!({"type": "object", "properties": {"a": {"exclusiveMinimum": 1}}, "dependentRequired": {"a": ["b"]}}),
        ),
    ] {
        assert_eq!(plain(schema.clone()), expected, "{schema}");
    }
    let old = "http://json-schema.org/draft-07/schema#";
    let beside = json!({"$schema": old, "type": "object", "properties": {"a": {"$ref": "#/definitions/x", "minLength": 1, "title": "T"}}, "definitions": {"x": {}}});
    assert_eq!(
        plain(beside)["properties"]["a"],
        json!({"$ref": "#/$defs/x", "title": "T"}),
        "it means nothing there"
    );
}

#[test]
fn alternatives_at_the_root_of_arguments_become_one_object() {
    let circle = json!({"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}}, "required": ["kind", "radius"]});
    let square = json!({"type": "object", "properties": {"kind": {"const": "square"}}, "required": ["kind"]});
    let schema =
        json!({"oneOf": [circle, {"$ref": "#/$defs/square"}], "$defs": {"square": square}});
    let told =
        "Exactly one of these sets of members: kind = \"circle\", radius; kind = \"square\".";
    for dialect in Dialect::ALL
        .iter()
        .copied()
        .filter(|dialect| *dialect != Dialect::Plain && *dialect != Dialect::Nova)
    {
        let fitted = fit(&schema, Target::arguments(dialect)).unwrap();
        assert!(!fitted.is_lossless(), "{dialect:?}");
        let fitted = fitted.schema;
        assert_eq!(
            (&fitted["type"], &fitted["description"]),
            (&json!("object"), &json!(told)),
            "{dialect:?}"
        );
        assert!(fitted["required"].as_array().unwrap().contains(&json!("kind")), "{dialect:?}");
        assert!(
            fitted["properties"]["radius"].is_object() && fitted.get("oneOf").is_none(),
            "{dialect:?}"
        );
    }
    let plain = fit(&schema, Target::arguments(Dialect::Plain)).unwrap().schema;
    assert_eq!((&plain["type"], &plain["oneOf"]), (&json!("object"), &schema["oneOf"]));
    let answer = fit(&schema, Target::answer(Dialect::OpenAiChat).strict(Some(true))).unwrap();
    assert!(!answer.strict && answer.schema["oneOf"].is_array(), "an answer keeps its form");
}
