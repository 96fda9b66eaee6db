//! Requests as the documentation of Gemini wants them.

use mynah_adapters::{
    fit::{self, Target, fit},
    format::Format,
    gemini::Gemini,
};
use mynah_data::{Image, Message, Part, Request, ResponseFormat, ToolCall, ToolChoice, ToolSpec};
use mynah_step::ModelCall;
use serde_json::{Value, json};

use crate::asked::{search, with_options};

/// As the provider maps OpenAI's words itself: levels for Gemini 3, tokens for those before.
#[test]
fn effort_is_a_level_or_a_number_of_tokens() {
    let config = |model: &str, options: Value| {
        let request = with_options(&options).with_model(model);
        let body = Gemini::default().body(&request, &ModelCall::default()).unwrap();
        body["generationConfig"].clone()
    };
    let thinking = |model: &str, effort: &str| {
        config(model, json!({"reasoning_effort": effort}))["thinkingConfig"].clone()
    };
    for (effort, tokens, flash, other) in [
        ("none", 0, "minimal", "low"),
        ("minimal", 1024, "minimal", "low"),
        ("low", 1024, "low", "low"),
        ("medium", 8192, "medium", "medium"),
        ("high", 24_576, "high", "high"),
        ("xhigh", 24_576, "high", "high"),
    ] {
        assert_eq!(thinking("gemini-2.5-flash", effort), json!({"thinkingBudget": tokens}));
        assert_eq!(thinking("gemini-3.5-flash", effort), json!({"thinkingLevel": flash}));
        for model in ["gemini-3.1-pro-preview", "gemini-3.8-flash"] {
            assert_eq!(thinking(model, effort), json!({"thinkingLevel": other}), "{model}");
        }
    }
    let least = json!({"thinkingBudget": 128});
    assert_eq!(thinking("gemini-2.5-pro", "none"), least, "it refuses not to think");
    let both = json!({"reasoning_effort": "low", "thinking_config": {"includeThoughts": true}});
    assert_eq!(
        config("gemini-3.5-flash", both),
        json!({"thinkingConfig": {"thinkingLevel": "low", "includeThoughts": true}})
    );
}

#[test]
fn i01_instructions_stand_apart_and_the_model_is_named_in_the_path() {
    let request = Request::new([
        Message::system("Be brief."),
        Message::user("hi"),
        Message::assistant("hello"),
        Message::system("Be kind."),
        Message::user("and?"),
    ]);
    assert_eq!(
        body(request.clone().with_max_tokens(9).with_temperature(0.5)),
        json!({
            "systemInstruction": {"parts": [{"text": "Be brief.\n\nBe kind."}]},
            "contents": [
                {"role": "user", "parts": [{"text": "hi"}]},
                {"role": "model", "parts": [{"text": "hello"}]},
                {"role": "user", "parts": [{"text": "and?"}]},
            ],
            "generationConfig": {"maxOutputTokens": 9, "temperature": 0.5},
        })
    );
    let path = |model: &str| Gemini::default().path(&request.clone().with_model(model));
    assert_eq!(path("gemini-x"), "models/gemini-x:streamGenerateContent?alt=sse");
    assert_eq!(path("tunedModels/a?b"), "tunedModels/a%3Fb:streamGenerateContent?alt=sse");
}

#[test]
fn i18_the_key_goes_in_a_header_of_its_own() {
    assert_eq!(Gemini::default().key_header("k"), ("x-goog-api-key", "k".to_owned()));
}

#[test]
fn i02_results_go_back_together_under_the_names_and_ids_of_their_calls() {
    let mut made_up = ToolCall::new("call_1", "search", r#"{"q": "a"}"#);
    made_up.metadata.insert("without_id".to_owned(), true.into());
    made_up.metadata.insert("thoughtSignature".to_owned(), "sig".into());
    let request = Request::new([
        Message::user("hi"),
        Message::assistant_parts([
            Part::text("let me see"),
            Part::tool_call(made_up),
            Part::tool_call(ToolCall::new("fc-2", "search", r#"{"q": "b"}"#)),
            Part::tool_call(ToolCall::new("fc-3", "now", "")),
        ]),
        Message::tool_result("call_1", "found"),
        Message::tool_result("fc-2", json!({"hits": 2})),
        Message::tool_result("fc-3", "no clock").with_metadata("is_error", true),
        Message::user("go on"),
    ]);
    assert_eq!(
        body(request)["contents"],
        json!([
            {"role": "user", "parts": [{"text": "hi"}]},
            {"role": "model", "parts": [
                {"text": "let me see"},
                {"functionCall": {"name": "search", "args": {"q": "a"}}, "thoughtSignature": "sig"},
                {"functionCall": {"name": "search", "args": {"q": "b"}, "id": "fc-2"}},
                {"functionCall": {"name": "now", "args": {}, "id": "fc-3"}},
            ]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "search", "response": {"output": "found"}}},
                {"functionResponse": {"name": "search", "response": {"hits": 2}, "id": "fc-2"}},
                {"functionResponse": {"name": "now", "response": {"error": "no clock"}, "id": "fc-3"}},
            ]},
            {"role": "user", "parts": [{"text": "go on"}]},
        ])
    );
}

#[test]
fn i03_schemas_are_written_in_the_dialect_where_that_can_hold_them() {
    let nested = |more: Value| {
        let mut inner = json!({"type": "object", "additionalProperties": false});
        inner["properties"] = json!({"n": {"type": "integer", "minimum": 1}});
        inner.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"list": {"type": "array", "items": inner}},
            "required": ["list"],
        })
    };
    let declared = |schema: Value| {
        let tools = [ToolSpec::new("t", "does", schema)];
        body(Request::from("hi").with_tools(tools))["tools"][0]["functionDeclarations"][0].clone()
    };
    assert_eq!(
        declared(nested(json!({}))),
        json!({"name": "t", "description": "does", "parameters": {
            "type": "object",
            "properties": {"list": {"type": "array", "items": {
                "type": "object", "properties": {"n": {"type": "integer", "minimum": 1}},
            }}},
            "required": ["list"],
        }})
    );
    for more in [
        json!({"$ref": "#/$defs/a"}),
        json!({"oneOf": [{"type": "string"}]}),
        json!({"const": 1}),
        json!({"type": ["string", "null"]}),
        json!({"enum": [1, 2]}),
        json!({"properties": {"kind": {"enum": ["a", "b"]}}}),
        json!({"properties": {"kind": {"type": "string", "enum": ["", "b"]}}}),
        json!({"properties": {}}),
        json!({"properties": {"more": {"type": "object"}}}),
        json!({"properties": {"list": {"type": "array"}}}),
        json!({"properties": {"any": {}}}),
        json!({"properties": {"n": {"type": "integer", "required": ["a"]}}}),
        json!({"required": ["unknown"]}),
        json!({"type": "string", "format": "email"}),
        json!({"additionalProperties": {"type": "string"}}),
    ] {
        let schema = nested(more);
        let fitted = fit(&schema, Target::arguments(fit::Dialect::GeminiJson)).unwrap().schema;
        let expected = json!({"name": "t", "description": "does", "parametersJsonSchema": fitted});
        assert_eq!(declared(schema), expected);
    }
    for schema in [json!({"type": "object"}), json!({"type": "object", "properties": {}})] {
        assert_eq!(declared(schema), json!({"name": "t", "description": "does"}));
    }
}

#[test]
fn i04_i05_each_choice_of_a_tool_has_its_form() {
    let sent = |choice: ToolChoice, tools: Vec<ToolSpec>| {
        let request = Request::from("hi").with_tool_choice(choice);
        body(request.with_tools(tools)).get("toolConfig").cloned()
    };
    let own = json!({"mode": "VALIDATED"});
    for (choice, expected) in [
        (ToolChoice::Auto, json!({"mode": "AUTO"})),
        (ToolChoice::None, json!({"mode": "NONE"})),
        (ToolChoice::Required, json!({"mode": "ANY"})),
        (
            ToolChoice::Tool("search".to_owned()),
            json!({"mode": "ANY", "allowedFunctionNames": ["search"]}),
        ),
        (ToolChoice::Other(own.as_object().unwrap().clone()), own.clone()),
    ] {
        assert_eq!(
            sent(choice.clone(), vec![search()]),
            Some(json!({"functionCallingConfig": expected}))
        );
        assert_eq!(sent(choice, vec![]), None);
    }
}

#[test]
fn i06_images_go_as_an_address_or_as_their_bytes() {
    let mut typed = Image::from_url("https://example.com/a");
    typed.mime_type = Some("image/png".to_owned());
    let images = [
        Image::from_url("https://example.com/a.png"),
        typed,
        Image::from_base64("aGk=", "image/png"),
        Image::from_binary(*b"hi", "image/gif"),
    ];
    let request = Request::new([Message::user_parts(images.map(Part::image))]);
    assert_eq!(
        body(request)["contents"][0]["parts"],
        json!([
            {"fileData": {"fileUri": "https://example.com/a.png"}},
            {"fileData": {"fileUri": "https://example.com/a", "mimeType": "image/png"}},
            {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
            {"inlineData": {"mimeType": "image/gif", "data": "aGk="}},
        ])
    );
}

/// Multimodal function responses are "available for Gemini 3 series models", and hold `inlineData` alone.
#[test]
fn images_of_a_result_stand_in_it_or_behind_all_results() {
    let chart = || Part::image(Image::from_base64("aGk=", "image/png"));
    let map = || Part::image(Image::from_url("https://example.com/a.png"));
    let request = Request::new([
        Message::tool_parts("c1", [Part::text("a chart"), chart(), map()]).with_name("draw"),
        Message::tool_result("c2", "noon").with_name("now"),
    ]);
    let sent = |model: &str| {
        let request = request.clone().with_model(model);
        let body = Gemini::default().body(&request, &ModelCall::default()).unwrap();
        assert_eq!(body["contents"].as_array().unwrap().len(), 1, "one turn");
        body["contents"][0]["parts"].clone()
    };
    let inline = json!({"inlineData": {"mimeType": "image/png", "data": "aGk="}});
    let address = json!({"fileData": {"fileUri": "https://example.com/a.png"}});
    let drawn = json!({"name": "draw", "response": {"output": "a chart"}});
    let now = json!({"functionResponse": {"name": "now", "response": {"output": "noon"}}});
    let told = json!({"text": "Images of the result of draw:"});
    assert_eq!(
        sent("gemini-2.5-flash"),
        json!([{"functionResponse": drawn}, now, told, inline, address])
    );
    let mut with_chart = drawn;
    with_chart["parts"] = json!([inline]);
    assert_eq!(
        sent("gemini-3.5-flash"),
        json!([{"functionResponse": with_chart}, now, told, address])
    );
}

#[test]
fn i14_what_the_model_thought_goes_back_where_it_came() {
    let thought = |text: &str, signature: Option<&str>, data: Option<Value>| Part::Reasoning {
        text: text.to_owned(),
        signature: signature.map(str::to_owned),
        redacted: false,
        data,
    };
    let code =
        json!({"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s3"});
    let message = Message::assistant_parts([
        thought("because", Some("s1"), None),
        thought("unsigned", None, None),
        thought("", Some("s2"), None),
        Part::text("so"),
        thought("", None, Some(json!({"part": code}))),
        thought("", None, Some(json!({"type": "another provider's"}))),
        Part::text("and"),
        thought("", Some("s4"), None),
    ]);
    assert_eq!(
        body(Request::new([message]))["contents"][0]["parts"],
        json!([
            {"text": "because", "thought": true, "thoughtSignature": "s1"},
            {"text": "unsigned", "thought": true},
            {"text": "so", "thoughtSignature": "s2"},
            code,
            {"text": "and"},
            {"text": "", "thoughtSignature": "s4"},
        ])
    );
}

#[test]
fn newer_models_are_told_that_a_call_of_another_model_has_no_signature() {
    let calls = ["a", "b"].map(|id| Part::tool_call(ToolCall::new(id, "search", "{}")));
    let request = Request::new([Message::assistant_parts(calls)]);
    let signatures = |model: &str| {
        let request = request.clone().with_model(model);
        let body = Gemini::default().body(&request, &ModelCall::default()).unwrap();
        let parts = body["contents"][0]["parts"].as_array().unwrap().clone();
        parts.into_iter().map(|part| part.get("thoughtSignature").cloned()).collect::<Vec<_>>()
    };
    for model in ["gemini-2.5-pro", "gemini-1.5-pro-latest", "gemma-3-27b-it"] {
        assert_eq!(signatures(model), [None, None], "{model}");
    }
    for model in ["gemini-3-pro-preview", "gemini-4-argon", "gemini-flash-latest"] {
        let unsigned = Some(json!("skip_thought_signature_validator"));
        assert_eq!(signatures(model), [unsigned, None], "{model}");
    }
}

#[test]
fn an_answer_may_be_asked_for_as_json() {
    let sent = |format: ResponseFormat| {
        body(Request::from("hi").with_response_format(format))["generationConfig"].clone()
    };
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    assert_eq!(sent(ResponseFormat::JsonObject), json!({"responseMimeType": "application/json"}));
    assert_eq!(
        sent(ResponseFormat::json_schema("count", schema.clone())),
        json!({"responseMimeType": "application/json", "responseSchema": schema})
    );
    let rich = json!({"type": "object", "properties": {"n": {"const": 1}}});
    assert_eq!(
        sent(ResponseFormat::json_schema("count", rich.clone())),
        json!({"responseMimeType": "application/json", "responseJsonSchema": {
            "type": "object", "properties": {"n": {"enum": [1]}},
        }})
    );
    let both =
        Request::from("hi").with_tools([search()]).with_response_format(ResponseFormat::JsonObject);
    let needs =
        |model: &str| Gemini::default().needs_structured_finalize(&both.clone().with_model(model));
    assert!(needs("gemini-2.5-flash") && needs("models/gemini-2.0-flash"));
    assert!(!needs("gemini-3-flash-preview") && !needs("gemini-flash-latest"));
}

#[test]
fn the_callers_own_params_are_passed_on_to_their_places() {
    let options = json!({
        "stop": "END",
        "top_p": 0.5,
        "topK": 3,
        "thinkingConfig": {"includeThoughts": true},
        "cached_content": "cachedContents/x",
        "safetySettings": [{"category": "C", "threshold": "BLOCK_NONE"}],
        "tools": [{"googleSearch": {}}],
        "toolConfig": {"retrievalConfig": {"languageCode": "en"}},
        "generationConfig": {"seed": 7},
    });
    let request = Request::from("hi")
        .with_options(options.as_object().unwrap().clone())
        .with_tool_choice(ToolChoice::Auto);
    let sent = body(request.with_tools([search()]));
    assert_eq!(
        sent["generationConfig"],
        json!({
            "stopSequences": ["END"],
            "topP": 0.5,
            "topK": 3,
            "thinkingConfig": {"includeThoughts": true},
            "seed": 7,
        })
    );
    assert_eq!(sent["cachedContent"], "cachedContents/x");
    assert_eq!(sent["safetySettings"], options["safetySettings"]);
    assert_eq!(sent["tools"].as_array().unwrap().len(), 2);
    assert_eq!(sent["tools"][1], json!({"googleSearch": {}}));
    assert_eq!(
        sent["toolConfig"],
        json!({
            "functionCallingConfig": {"mode": "AUTO"},
            "retrievalConfig": {"languageCode": "en"},
        })
    );
}

fn body(request: Request) -> Value {
    let request = request.with_model("gemini-2.5-flash");
    Gemini::default().body(&request, &ModelCall::default()).unwrap()
}
