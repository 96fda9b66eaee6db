//! Requests as the documentation of Messages wants them.

use mynah_adapters::{anthropic::Anthropic, format::Format};
use mynah_data::{
    AdapterReason, CacheRetention, EngineReason, ErrorKind, Image, Message, ModelRef, Part,
    Request, ResponseFormat, ToolCall, ToolChoice, ToolSpec,
};
use mynah_step::ModelCall;
use serde_json::{Value, json};

use crate::asked::{cached, marked, search, with_blanks, with_options};

#[test]
fn n01_n02_instructions_stand_apart_and_a_limit_is_always_there() {
    let request = Request::new([
        Message::system("Be brief."),
        Message::user("hi"),
        Message::system("Be kind."),
    ]);
    assert_eq!(
        body(request),
        json!({
            "model": "claude-sonnet-4-6",
            "max_tokens": 64_000,
            "system": "Be brief.\n\nBe kind.",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": true,
        })
    );
    let mut known = ModelRef::new("claude-sonnet-4-6");
    known.limits.insert("output".to_owned(), json!(64_000));
    let limit = |request: &Request| {
        Anthropic::default().body(request, &ModelCall::default()).unwrap()["max_tokens"].clone()
    };
    let request = Request::from("hi").with_model(known);
    assert_eq!(limit(&request), 64_000);
    assert_eq!(limit(&request.with_max_tokens(9)), 9);
    for older in ["claude-3-haiku-20240307", "kimi-k3"] {
        assert_eq!(limit(&Request::from("hi").with_model(older)), 4096, "{older}");
    }
}

#[test]
fn n05_n06_n07_n22_results_of_tools_come_together_and_before_what_the_user_says() {
    let calls = Message::assistant_parts([
        Part::text("let me see"),
        Part::tool_call(ToolCall::new("c1", "search", r#"{"q": "go"}"#)),
        Part::tool_call(ToolCall::new("functions.now:0", "now", "")),
    ]);
    let request = Request::new([
        Message::user("hi"),
        calls,
        Message::tool_result("c1", "found"),
        Message::tool_result("functions.now:0", "no clock").with_metadata("is_error", true),
        Message::user("go on"),
    ]);
    assert_eq!(
        body(request.with_tools([search()]))["messages"],
        json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "go"}},
                {"type": "tool_use", "id": "functions_now_0", "name": "now", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "found"},
                {"type": "tool_result", "tool_use_id": "functions_now_0", "content": "no clock", "is_error": true},
                {"type": "text", "text": "go on"},
            ]},
        ])
    );
}

#[test]
fn n03_each_choice_of_a_tool_has_its_form() {
    let sent = |choice, options: Value| {
        let options = options.as_object().unwrap().clone();
        let mut request = Request::from("hi").with_options(options);
        request.tool_choice = choice;
        body(request.with_tools([search()])).get("tool_choice").cloned()
    };
    let tool = || Some(ToolChoice::Tool("search".to_owned()));
    assert_eq!(sent(None, json!({})), None);
    assert_eq!(sent(Some(ToolChoice::Auto), json!({})), None);
    assert_eq!(sent(Some(ToolChoice::None), json!({})), Some(json!({"type": "none"})));
    assert_eq!(sent(Some(ToolChoice::Required), json!({})), Some(json!({"type": "any"})));
    assert_eq!(sent(tool(), json!({})), Some(json!({"type": "tool", "name": "search"})));
    let alone = json!({"parallel_tool_calls": false});
    assert_eq!(
        sent(None, alone.clone()),
        Some(json!({"type": "auto", "disable_parallel_tool_use": true}))
    );
    assert_eq!(
        sent(tool(), alone),
        Some(json!({"type": "tool", "name": "search", "disable_parallel_tool_use": true}))
    );
}

#[test]
fn n04_a_tool_that_must_be_called_must_be_there() {
    let request = Request::from("hi").with_tool_choice(ToolChoice::Required).with_model("claude-x");
    let error = Anthropic::default().body(&request, &ModelCall::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature));
}

#[test]
fn n20_images_go_as_an_address_or_as_their_bytes() {
    let parts = [
        Image::from_url("https://example.com/a.png"),
        Image::from_base64("aGk=", "image/png"),
        Image::from_binary(*b"hi", "image/gif"),
    ];
    let request = Request::new([Message::user_parts(parts.map(Part::image))]);
    assert_eq!(
        body(request)["messages"][0]["content"],
        json!([
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "aGk="}},
        ])
    );
    let result = Message::tool_parts(
        "c1",
        [Part::text("a chart"), Part::image(Image::from_base64("aGk=", "image/png"))],
    );
    let sent = body(Request::new([result]))["messages"][0]["content"][0]["content"].clone();
    assert_eq!(sent[0], json!({"type": "text", "text": "a chart"}));
    assert_eq!(sent[1]["type"], "image");
}

#[test]
fn n21_reasoning_goes_back_as_it_came_or_not_at_all() {
    let thought = |text: &str, signature: Option<&str>, data: Option<Value>| Part::Reasoning {
        text: text.to_owned(),
        signature: signature.map(str::to_owned),
        redacted: text.is_empty(),
        data,
    };
    let search = json!({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}});
    let message = Message::assistant_parts([
        thought("because", Some("sig"), None),
        thought("", None, Some(json!("withheld"))),
        thought("another provider's", None, None),
        thought("", None, Some(search.clone())),
        Part::text("so"),
    ]);
    assert_eq!(
        body(Request::new([message]))["messages"][0]["content"],
        json!([
            {"type": "thinking", "thinking": "because", "signature": "sig"},
            {"type": "redacted_thinking", "data": "withheld"},
            search,
            {"type": "text", "text": "so"},
        ])
    );
}

#[test]
fn blank_text_is_left_away() {
    let sent = body(with_blanks("found"));
    assert_eq!(sent.get("system"), None);
    assert_eq!(
        sent["messages"],
        json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c1", "name": "search", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "found"},
            ]},
        ])
    );
}

#[test]
fn n08_newer_models_are_given_the_schema_and_older_ones_a_tool() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let request = Request::from("hi")
        .with_response_format(ResponseFormat::json_schema("count", schema.clone()));
    let sent = body(request.clone());
    let mut closed = schema.clone();
    closed["additionalProperties"] = json!(false);
    assert_eq!(sent["output_config"], json!({"format": {"type": "json_schema", "schema": closed}}));
    assert_eq!(sent.get("tools"), None);
    for model in [
        "claude-3-5-haiku-20241022",
        "claude-sonnet-4-20250514",
        "us.anthropic.claude-opus-4-1-20250805-v1:0",
    ] {
        let request = request.clone().with_model(model);
        let sent = Anthropic::default().body(&request, &ModelCall::default()).unwrap();
        assert_eq!(sent.get("output_config"), None, "{model}");
        assert_eq!(sent["tools"][0]["name"], "respond_with_json_count");
        assert_eq!(sent["tools"][0]["input_schema"], schema);
        assert_eq!(sent["tool_choice"], json!({"type": "tool", "name": "respond_with_json_count"}));
        assert!(!Anthropic::default().needs_structured_finalize(&request));
        assert!(Anthropic::default().needs_structured_finalize(&request.with_tools([search()])));
    }
}

#[test]
fn an_older_model_is_given_a_tool_that_it_takes_or_the_call_is_refused() {
    let asked = |name: &str, schema: Value| {
        let format = ResponseFormat::json_schema(name, schema);
        let request = Request::from("hi").with_response_format(format);
        Anthropic::default().body(&request.with_model("claude-3-5-haiku"), &ModelCall::default())
    };
    let long = format!("a name {}", "x".repeat(80));
    let sent = asked(&long, json!({"type": "object"})).unwrap();
    let name = sent["tools"][0]["name"].as_str().unwrap();
    assert!(name.starts_with("respond_with_json_a_name_xxx") && name.len() == 64, "{name}");
    let error = asked("list", json!({"type": "array"})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature));
}

/// Closed, they would hold nothing.
#[test]
fn objects_with_members_of_any_name_are_asked_for_by_a_tool_or_refused() {
    let sent = |model: &str, tags: Value| {
        let schema = json!({"type": "object", "properties": {"tags": tags}});
        let form = ResponseFormat::json_schema("x", schema);
        let request = Request::from("hi").with_response_format(form).with_model(model);
        Anthropic::default().body(&request, &ModelCall::default())
    };
    for tags in [
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        json!({"type": "object", "additionalProperties": false, "patternProperties": {"^x": {}}}),
        json!({"type": "object"}),
    ] {
        for model in ["claude-opus-5", "claude-haiku-5-5", "glm-4.6"] {
            let sent = sent(model, tags.clone()).unwrap();
            assert_eq!(sent["tools"][0]["input_schema"]["properties"]["tags"], tags, "{model}");
            assert_eq!(sent["tool_choice"]["name"], "respond_with_json_x", "{model}");
            assert_eq!(sent.get("output_config"), None, "{model}");
        }
        let error = sent("claude-opus-5-5", tags).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::UnsupportedResponseFormat));
    }
}

/// Each of them names its members, in another place.
#[test]
fn an_object_that_others_describe_is_as_closed_as_they_are() {
    let sent = |schema: &Value| {
        let form = ResponseFormat::json_schema("x", schema.clone());
        let request = Request::from("hi").with_response_format(form).with_model("claude-opus-5-5");
        let body = Anthropic::default().body(&request, &ModelCall::default());
        body.map(|body| body["output_config"]["format"]["schema"].clone())
    };
    let point = json!({"type": "object", "properties": {"x": {"type": "string"}}});
    let mut closed = point.clone();
    closed["additionalProperties"] = json!(false);
    let of = |part: Value, point: &Value| json!({"type": "object", "properties": {"a": part}, "$defs": {"A/B": point, "Any": {"type": "object"}}});
    for (part, written) in [
        (json!({"type": "string"}), json!({"type": "string"})),
        (json!({"type": "object", "$ref": "#/$defs/A~1B"}), json!({"$ref": "#/$defs/A~1B"})),
        (
            json!({"type": "object", "oneOf": [{"$ref": "#/$defs/A~1B"}, point]}),
            json!({"anyOf": [{"$ref": "#/$defs/A~1B"}, closed]}),
        ),
        (
            json!({"type": "object", "description": "Where.", "allOf": [{"$ref": "#/$defs/A~1B"}]}),
            json!({"description": "Where.", "$ref": "#/$defs/A~1B"}),
        ),
        (json!({"type": "object", "allOf": [point]}), closed.clone()),
    ] {
        let sent = sent(&of(part, &point)).unwrap();
        assert_eq!(sent["properties"]["a"], written);
        let refers = written.to_string().contains("$ref");
        assert_eq!(sent.pointer("/$defs/A~1B"), refers.then_some(&closed));
    }
    let whole = json!({"$ref": "#/$defs/A", "type": "object", "$defs": {"A": point}});
    assert_eq!(sent(&whole).unwrap(), closed);
    for open in [
        json!({"type": "object", "$ref": "#/$defs/Any"}),
        json!({"$ref": "#/$defs/%41ny"}),
        json!({"type": "object", "anyOf": [point, {"type": "object"}]}),
        json!({"type": "object", "anyOf": [{"required": ["x"]}]}),
        json!({"type": "object", "allOf": [closed, {"type": "object", "properties": {"y": {}}}]}),
        // Nothing that refers to itself can be enforced.
        json!({"type": "object", "properties": {"whole": {"$ref": "#"}}}),
    ] {
        let kind = sent(&of(open.clone(), &point)).map_err(|error| error.kind());
        let refused = ErrorKind::Engine(EngineReason::UnsupportedResponseFormat);
        assert_eq!(kind, Err(refused), "{open}");
    }
}

/// `tool_choice: type "tool" and "any" are not supported for this model.`
#[test]
fn a_model_that_decides_itself_is_not_made_to_call_a_tool() {
    let own = |choice: Value| ToolChoice::Other(choice.as_object().unwrap().clone());
    let reasons = |model: &str| {
        let kind = |request: Request| {
            let request = request.with_model(model).with_tools([search()]);
            let body = Anthropic::default().body(&request, &ModelCall::default());
            body.err().map(|error| error.kind())
        };
        let choose = |choice| kind(Request::from("hi").with_tool_choice(choice));
        [
            choose(ToolChoice::Required),
            choose(ToolChoice::Tool("search".to_owned())),
            choose(own(json!({"type": "any"}))),
            choose(own(json!({"type": "tool", "name": "search"}))),
            kind(Request::from("hi").with_response_format(ResponseFormat::JsonObject)),
            choose(ToolChoice::Auto),
            choose(ToolChoice::None),
            choose(own(json!({"type": "auto", "disable_parallel_tool_use": true}))),
            kind(Request::from("hi").with_response_format(ResponseFormat::json_schema(
                "x",
                json!({"type": "object", "properties": {}}),
            ))),
        ]
    };
    let forced = Some(ErrorKind::Adapter(AdapterReason::UnsupportedFeature));
    let formless = Some(ErrorKind::Engine(EngineReason::UnsupportedResponseFormat));
    for model in ["claude-fable-5-1", "claude-mythos-5-2", "claude-opus-5-5", "claude-sonnet-5-5"] {
        let [demanded @ .., form, auto, none, own, schema] = reasons(model);
        assert_eq!((demanded, form), ([forced; 4], formless), "{model}");
        assert_eq!([auto, none, own, schema], [None; 4], "{model}");
    }
    for model in ["claude-sonnet-5", "claude-opus-5", "claude-fable-5", "claude-haiku-5-5"] {
        assert_eq!(reasons(model), [None; 9], "{model}");
    }
}

/// `Thinking may not be enabled when tool_choice forces tool use.`
#[test]
fn an_older_model_does_not_think_where_a_tool_gives_the_form() {
    let kind = |model: &str, thinking: &str| {
        let options = json!({"thinking": {"type": thinking}});
        let request = with_options(&options).with_response_format(ResponseFormat::JsonObject);
        let body = Anthropic::default().body(&request.with_model(model), &ModelCall::default());
        body.err().map(|error| error.kind())
    };
    let refused = Some(ErrorKind::Engine(EngineReason::UnsupportedResponseFormat));
    assert_eq!(kind("claude-sonnet-4-6", "adaptive"), refused);
    assert_eq!(kind("claude-haiku-4-5", "enabled"), refused);
    assert_eq!(kind("claude-haiku-4-5", "disabled"), None);
    assert_eq!(kind("claude-opus-4-7", "adaptive"), refused);
    for model in ["claude-opus-4-8", "claude-opus-4-9", "claude-opus-5"] {
        assert_eq!(kind(model, "adaptive"), None, "{model}");
    }
}

#[test]
fn n11_a_model_that_gave_its_answer_is_not_made_to_give_it_again() {
    let answered = Message::assistant_parts([Part::tool_call(ToolCall::new(
        "c1",
        "respond_with_json_object",
        "{}",
    ))]);
    let request =
        Request::new([Message::user("hi"), answered, Message::tool_result("c1", "thanks")]);
    let object = ResponseFormat::json_schema("object", json!({"type": "object", "properties": {}}));
    for (model, form) in
        [("claude-opus-5", ResponseFormat::JsonObject), ("claude-sonnet-4-0", object)]
    {
        let request = request.clone().with_response_format(form).with_model(model);
        let sent = Anthropic::default().body(&request, &ModelCall::default()).unwrap();
        assert_eq!(sent["tool_choice"], json!({"type": "none"}), "{model}");
        assert_eq!(sent.get("output_config"), None, "{model}");
    }
}

#[test]
fn the_prompt_is_cached_where_the_caller_says_or_where_the_provider_likes() {
    let mark = json!({"type": "ephemeral"});
    let sent = body(marked(&mark));
    assert_eq!(
        sent["system"],
        json!([{"type": "text", "text": "Be brief.", "cache_control": mark}])
    );
    assert_eq!(sent["tools"][0]["cache_control"], mark);
    assert_eq!(sent["messages"][0]["content"][0]["cache_control"], mark);
    let automatic = |retention| body(cached(retention))["cache_control"].clone();
    assert_eq!(automatic(CacheRetention::Short), mark);
    assert_eq!(automatic(CacheRetention::Long), json!({"type": "ephemeral", "ttl": "1h"}));
}

#[test]
fn calls_without_tools_are_described_and_not_to_be_repeated() {
    let called = Message::assistant_parts([Part::tool_call(ToolCall::new("c1", "search", "{}"))]);
    let sent =
        body(Request::new([Message::user("hi"), called, Message::tool_result("c1", "found")]));
    assert_eq!(
        sent["tools"],
        json!([{"name": "search", "description": "", "input_schema": {"type": "object"}}])
    );
    assert_eq!(sent["tool_choice"], json!({"type": "none"}));
}

/// "A prefix check fails if `system`, `tools`, or an earlier message changed after Claude produced a block."
#[test]
fn a_call_that_gives_the_form_describes_the_tools_as_they_were() {
    for conversation in [called_after_a_thought().to_vec(), answered_after_a_thought().to_vec()] {
        let first = Request::new(conversation).with_model("claude-fable-5-2");
        let form = ResponseFormat::json_schema("x", json!({"type": "object", "properties": {}}));
        let second = first.clone().with_response_format(form);
        let first = Anthropic::default()
            .body(&first.with_tools([search()]), &ModelCall::default())
            .unwrap();
        let mut to = ModelCall::default();
        to.former_tools = vec![search().into()];
        let second = Anthropic::default().body(&second, &to).unwrap();
        for prefix in ["system", "tools", "messages"] {
            assert_eq!(second.get(prefix), first.get(prefix));
        }
        assert_eq!(second["tool_choice"], json!({"type": "none"}));
        assert_eq!(second["messages"][1]["content"][0]["signature"], "sig");
    }
}

#[test]
fn a_tool_that_gives_the_form_stands_behind_the_others_and_outdates_thoughts() {
    let mut to = ModelCall::default();
    to.former_tools = vec![search().into()];
    for (model, blocks) in [("claude-haiku-5-5", 1), ("claude-haiku-4-5", 2)] {
        let request = Request::new(called_after_a_thought())
            .with_model(model)
            .with_response_format(ResponseFormat::JsonObject);
        let sent = Anthropic::default().body(&request, &to).unwrap();
        let names: Vec<&Value> =
            sent["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
        assert_eq!(names, ["search", "respond_with_json_object"], "{model}");
        assert_eq!(sent["tool_choice"]["name"], "respond_with_json_object");
        assert_eq!(sent["messages"][1]["content"].as_array().unwrap().len(), blocks, "{model}");
    }
}

fn thought() -> Part {
    Part::Reasoning {
        text: String::new(),
        signature: Some("sig".to_owned()),
        redacted: false,
        data: None,
    }
}

fn called_after_a_thought() -> [Message; 3] {
    let call = Part::tool_call(ToolCall::new("c1", "search", "{}"));
    [
        Message::user("hi"),
        Message::assistant_parts([thought(), call]),
        Message::tool_result("c1", "found"),
    ]
}

fn answered_after_a_thought() -> [Message; 2] {
    [Message::user("hi"), Message::assistant_parts([thought(), Part::text("so")])]
}

/// A system message "must immediately follow a user message", and be the last entry or be followed by an assistant turn.
#[test]
fn instructions_within_a_conversation_stay_where_the_model_takes_them() {
    let sent = |model: &str, messages: &[Message]| {
        let request = Request::new(messages.to_vec()).with_model(model);
        let body = Anthropic::default().body(&request, &ModelCall::default()).unwrap();
        (body["system"].clone(), body["messages"].clone())
    };
    let call = Part::tool_call(ToolCall::new("c1", "search", "{}"));
    let conversation = [
        Message::system("Be brief."),
        Message::user("hi"),
        Message::assistant("hello"),
        Message::system("Be kind."),
        Message::system("Be clear."),
        Message::user("find it"),
        Message::assistant_parts([call]),
        Message::tool_result("c1", "found"),
        Message::system("Be quick.").with_metadata("cache_control", json!({"type": "ephemeral"})),
    ];
    let text = |text: &str| json!({"type": "text", "text": text});
    let mut marked = text("Be quick.");
    marked["cache_control"] = json!({"type": "ephemeral"});
    let turns = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "find it"},
        {"role": "system", "content": [text("Be kind."), text("Be clear.")]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c1", "name": "search", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "found"},
        ]},
        {"role": "system", "content": [marked]},
    ]);
    for model in ["claude-opus-4-8", "claude-fable-5-1", "claude-sonnet-5-5", "claude-haiku-5-5"] {
        assert_eq!(sent(model, &conversation), (json!("Be brief."), turns.clone()), "{model}");
        for end in [1, 2, 6, 7] {
            let (system, messages) = sent(model, &conversation[..end]);
            let known = messages.as_array().unwrap();
            assert_eq!(system, "Be brief.", "what was said stays as it was");
            assert_eq!(known[..], turns.as_array().unwrap()[..known.len()]);
        }
    }
    for model in ["claude-opus-4-7", "claude-sonnet-5", "glm-4.6"] {
        let (system, messages) = sent(model, &conversation[..6]);
        assert_eq!(system, "Be brief.\n\nBe kind.\n\nBe clear.", "{model}");
        assert_eq!(messages.as_array().unwrap().len(), 3, "{model}");
    }
}

#[test]
fn of_many_strict_tools_the_first_20_stay_strict() {
    let schema =
        json!({"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]});
    let tool = |number: usize| {
        let mut tool = ToolSpec::new(format!("t{number}"), "", schema.clone());
        tool.metadata.insert("strict".to_owned(), true.into());
        tool
    };
    let sent = body(Request::from("hi").with_tools((0..23).map(tool)));
    let strict = |tool: &Value| tool["strict"].as_bool();
    let strict: Vec<_> = sent["tools"].as_array().unwrap().iter().map(strict).collect();
    assert_eq!(strict, [[Some(true); 20].as_slice(), &[Some(false); 3]].concat());
}

#[test]
fn what_the_provider_does_not_enforce_is_told_in_words() {
    let sent = |schema: Value| {
        let format = ResponseFormat::json_schema("x", schema);
        let body = body(Request::from("hi").with_response_format(format));
        body["output_config"]["format"]["schema"].to_string()
    };
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "minimum": {"type": "string", "description": "A word.", "minLength": 2, "format": "color"},
            "list": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"$ref": "#/$defs/day"}},
            "either": {"oneOf": [{"type": ["object", "null"], "properties": {}}, {"enum": [1, 2]}]},
        },
        "required": ["age"],
        "$defs": {"day": {"type": "string", "format": "date", "pattern": "^2"}},
    });
    let expected = json!({
        "type": "object",
        "properties": {
            "age": {"type": "integer", "description": "Minimum: 0. Maximum: 150."},
            "minimum": {"type": "string", "description": "A word.\nMin length: 2. Format: color."},
            "list": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/day"}, "description": "Max items: 3."},
            "either": {"anyOf": [
                {"type": ["object", "null"], "properties": {}, "additionalProperties": false}, {"enum": [1, 2]},
            ]},
        },
        "required": ["age"],
        "$defs": {"day": {"type": "string", "format": "date", "pattern": "^2"}},
        "additionalProperties": false,
    });
    assert_eq!(sent(schema), expected.to_string());
    assert_eq!(
        sent(expected.clone()),
        expected.to_string(),
        "as it is where nothing is to be told"
    );
}

#[test]
fn the_callers_own_params_are_passed_on() {
    let options = json!({"stop": "END", "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}, "top_k": 5});
    let format = ResponseFormat::json_schema("x", json!({"type": "object", "properties": {}}));
    let request = with_options(&options);
    let sent = body(request.with_response_format(format));
    assert_eq!(sent["stop_sequences"], json!(["END"]));
    assert_eq!(sent.get("stop"), None);
    assert_eq!((&sent["thinking"], &sent["top_k"]), (&options["thinking"], &json!(5)));
    assert_eq!(sent["output_config"]["effort"], "low");
    assert_eq!(sent["output_config"]["format"]["type"], "json_schema");
    let sent = body(with_options(&json!({"reasoning_effort": "high"})));
    assert_eq!(sent["output_config"], json!({"effort": "high"}));
    assert_eq!(sent.get("reasoning_effort"), None);
}

fn body(request: Request) -> Value {
    let request = request.with_model("claude-sonnet-4-6");
    Anthropic::default().body(&request, &ModelCall::default()).unwrap()
}
