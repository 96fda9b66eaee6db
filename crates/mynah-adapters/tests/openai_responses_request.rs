//! Requests as the documentation of Responses wants them.

use mynah_adapters::{
    format::Format,
    openai_responses::{OpenAiResponses, ResponsesDialect},
    presets::Preset,
};
use mynah_data::{
    CacheRetention, EngineReason, ErrorKind, Image, ImageDetail, Message, Metadata, Part, Request,
    ResponseFormat, ToolCall, ToolSpec,
};
use mynah_step::ModelCall;
use serde_json::{Value, json};

use crate::asked::{cache_members, cached, check_choices, with_options};

#[test]
fn a_question_is_a_model_and_input_and_is_not_kept() {
    let request = Request::new([Message::system("Be brief."), Message::user("hi")]);
    assert_eq!(
        body(request.with_temperature(0.5).with_max_tokens(64)),
        json!({
            "model": "gpt-4.1",
            "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "max_output_tokens": 64,
            "store": false,
            "stream": true,
        })
    );
}

#[test]
fn models_that_reason_are_asked_for_their_reasoning() {
    let include = |model: &str, dialect| {
        let request = Request::from("hi").with_model(model);
        let body = OpenAiResponses::new(dialect).body(&request, &ModelCall::default()).unwrap();
        body.get("include").cloned()
    };
    let asked = Some(json!(["reasoning.encrypted_content"]));
    for model in [
        "gpt-5",
        "GPT-5",
        "gpt-5.6-sol",
        "gpt-6-mini",
        "o3",
        "o4-mini",
        "ft:o4-mini-2025-04-16:org::id",
        "codex-mini-latest",
        "openai/o3",
    ] {
        assert_eq!(include(model, ResponsesDialect::OPENAI), asked, "{model}");
    }
    for model in
        ["gpt-4o", "gpt-4.1-mini", "gpt-5-chat-latest", "gpt-oss-120b", "omni", "my-deployment"]
    {
        assert_eq!(include(model, ResponsesDialect::OPENAI), None, "{model}");
    }
    let mut xai = ResponsesDialect::OPENAI;
    xai.always_encrypted = true;
    assert_eq!(include("grok-4", xai), asked);
    for how in [json!({"reasoning_effort": "low"}), json!({"reasoning": {"summary": "auto"}})] {
        let request = with_options(&how).with_model("my-deployment");
        let azure = Preset::named("azure-responses").unwrap().format();
        let body = azure.body(&request, &ModelCall::default()).unwrap();
        assert_eq!(body.get("include").cloned(), asked, "{how}");
    }
}

#[test]
fn what_the_provider_keeps_is_the_callers_choice() {
    let sent = |options: Value| {
        let body = body(with_options(&options));
        ["store", "include"].map(|name| body.get(name).cloned())
    };
    assert_eq!(sent(json!({"previous_response_id": "resp_1"})), [None, None]);
    assert_eq!(sent(json!({"conversation": "conv_1"})), [None, None]);
    assert_eq!(sent(json!({"background": true})), [None, None]);
    assert_eq!(sent(json!({"store": true})), [Some(json!(true)), None]);
    assert_eq!(
        sent(json!({"store": false, "previous_response_id": "resp_1"})),
        [Some(json!(false)), None]
    );
}

#[test]
fn o10_images_go_as_an_address_or_as_their_bytes() {
    let detailed = Part::Image {
        image: Image::from_binary(*b"hi", "image/png"),
        detail: ImageDetail::High,
        metadata: Metadata::new(),
    };
    let url = Part::image(Image::from_url("https://example.com/a.png"));
    let request = Request::new([Message::user_parts([Part::text("what?"), url, detailed])]);
    assert_eq!(
        body(request)["input"],
        json!([{"role": "user", "content": [
            {"type": "input_text", "text": "what?"},
            {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"},
            {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "high"},
        ]}])
    );
}

#[test]
fn o07_o11_o12_tools_calls_and_results() {
    let calls = Message::assistant_parts([
        Part::text("Let me see."),
        Part::tool_call(ToolCall::new("c1", "search", r#"{"q": 1.0}"#)),
        Part::tool_call(ToolCall::new("c2", "now", "")),
    ]);
    let picture = Message::tool_parts(
        "c2",
        [Part::text("noon"), Part::image(Image::from_url("https://e.com/clock"))],
    );
    let closed =
        json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false});
    let mut strict = ToolSpec::new("now", "tells the time", closed.clone());
    strict.metadata.insert("strict".to_owned(), json!(true));
    let request = Request::new([calls, Message::tool_result("c1", json!({"n": 1})), picture])
        .with_tools([ToolSpec::new("search", "finds", json!({"type": "object"})), strict]);
    let body = body(request);
    assert_eq!(
        body["tools"],
        json!([
            {"type": "function", "strict": false, "name": "search", "description": "finds", "parameters": {"type": "object", "properties": {}, "additionalProperties": true}},
            {"type": "function", "strict": true, "name": "now", "description": "tells the time", "parameters": closed},
        ])
    );
    assert_eq!(
        body["input"],
        json!([
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
            {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{\"q\": 1.0}"},
            {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "{\"n\":1}"},
            {"type": "function_call_output", "call_id": "c2", "output": [
                {"type": "input_text", "text": "noon"},
                {"type": "input_image", "image_url": "https://e.com/clock", "detail": "auto"},
            ]},
        ])
    );
}

#[test]
fn o08_each_choice_of_a_tool_has_its_form() {
    check_choices(body, json!({"type": "function", "name": "search"}));
}

#[test]
fn o09_each_form_of_answer_has_its_form() {
    let schema =
        json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false});
    let format = |format| body(Request::from("hi").with_response_format(format))["text"].clone();
    assert_eq!(format(ResponseFormat::Text), json!({"format": {"type": "text"}}));
    assert_eq!(format(ResponseFormat::JsonObject), json!({"format": {"type": "json_object"}}));
    assert_eq!(
        format(ResponseFormat::json_schema("person", schema.clone())),
        json!({"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": true}})
    );
}

#[test]
fn reasoning_goes_back_where_the_provider_can_read_it() {
    let encrypted =
        thought(Some("sealed"), json!({"type": "reasoning", "id": "rs_1", "summary": []}));
    let readable = thought(
        None,
        json!({"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}),
    );
    let kept = thought(None, json!({"type": "reasoning", "id": "rs_3", "summary": []}));
    let foreign = thought(Some("signed"), json!("withheld"));
    let call = Part::tool_call(ToolCall::new("c1", "f", "{}"));
    let said = Message::assistant_parts([encrypted, readable, kept, foreign, call]);
    let input = |options: Value| {
        let options = options.as_object().unwrap().clone();
        asked_of("gpt-5.2", Request::new([said.clone()]).with_options(options))["input"].clone()
    };
    let item = json!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"});
    let first =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"});
    let second = json!({"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
    let third = json!({"type": "reasoning", "id": "rs_3", "summary": []});
    assert_eq!(input(json!({})), json!([first, second, item]));
    assert_eq!(input(json!({"store": true})), json!([first, second, third, item]));
}

#[test]
fn o05_a_model_that_does_not_reason_is_not_told_how() {
    let options = json!({"reasoning_effort": "low", "reasoning_summary": "auto"});
    let members = |preset: &str, model: &str| {
        let request = with_options(&options).with_model(model);
        let body = Preset::named(preset).unwrap().format().body(&request, &ModelCall::default());
        let body = body.unwrap();
        ["reasoning", "include"].map(|name| body.get(name).is_some())
    };
    assert_eq!(members("openai", "gpt-4o"), [false; 2]);
    assert_eq!(members("openai", "gpt-4.1-mini"), [false; 2]);
    assert_eq!(members("openai", "gpt-5.2"), [true; 2]);
    assert_eq!(members("azure-responses", "gpt-4o"), [true; 2], "users name the models there");
}

/// `Reasoning input items can only be provided to a reasoning or computer use model.`
#[test]
fn a_model_that_does_not_reason_gets_no_reasoning() {
    let thought =
        thought(Some("sealed"), json!({"type": "reasoning", "id": "rs_1", "summary": []}));
    let request = Request::new([Message::assistant_parts([thought, Part::text("So.")])]);
    let types = |model: &str| {
        let body = asked_of(model, request.clone());
        let items = body["input"].as_array().unwrap().iter();
        items.map(|item| item["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for model in
        ["gpt-4.1-mini", "gpt-4o", "gpt-35-turbo", "chatgpt-4o-latest", "gpt-5-chat-latest"]
    {
        assert_eq!(types(model), ["message"], "{model}");
    }
    for model in ["gpt-5.2", "o3", "gpt-5.3-chat-latest", "my-deployment", "grok-4.7"] {
        assert_eq!(types(model), ["reasoning", "message"], "{model}");
    }
}

/// Users name the models there: one with reasoning options reasons.
#[test]
fn a_deployment_that_is_asked_for_its_reasoning_gets_it_back() {
    let thought =
        thought(Some("sealed"), json!({"type": "reasoning", "id": "rs_1", "summary": []}));
    let said = Message::assistant_parts([thought, Part::text("So.")]);
    let azure = Preset::named("azure-responses").unwrap().format();
    for (options, expected) in [
        (json!({"reasoning_effort": "low"}), &["reasoning", "message"][..]),
        (json!({}), &["message"]),
    ] {
        let options = with_options(&options).options;
        let request = Request::new([said.clone()]).with_options(options);
        let body = azure.body(&request.with_model("gpt-4o"), &ModelCall::default()).unwrap();
        let items = body["input"].as_array().unwrap().iter();
        let types: Vec<&str> = items.map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(types, expected);
        assert_eq!(body.get("include").is_some(), types.contains(&"reasoning"));
    }
}

#[test]
fn reasoning_that_was_cut_off_does_not_go_back() {
    let thought =
        || thought(Some("sealed"), json!({"type": "reasoning", "id": "rs_1", "summary": []}));
    let cut = Message::assistant_parts([Part::text("So"), thought(), thought()]);
    let thread = [Message::user("hi"), cut, Message::user("and?")];
    let input = asked_of("gpt-5.2", Request::new(thread))["input"].clone();
    let kinds: Vec<&Value> = input.as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, [&Value::Null, &json!("message"), &Value::Null]);
}

#[test]
fn what_the_providers_own_tools_did_goes_back_and_so_does_the_phase() {
    let search = json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}});
    let found =
        json!({"type": "tool_search_output", "id": "tso_1", "call_id": "ts_1", "tools": []});
    let program = json!({"type": "program", "id": "p_1", "call_id": "pc_1", "code": "await f({})", "fingerprint": "x"});
    let came = json!({"type": "program_output", "id": "po_1", "call_id": "pc_1", "result": "r", "status": "completed"});
    let mut namespaced = ToolCall::new("c1", "f", "{}");
    namespaced.metadata.insert("namespace".to_owned(), json!("crm"));
    let caller = json!({"type": "program", "caller_id": "pc_1"});
    namespaced.metadata.insert("caller".to_owned(), caller.clone());
    let said = Message::assistant_parts([
        thought(None, search.clone()),
        thought(None, found.clone()),
        thought(None, json!({"type": "message", "phase": "commentary"})),
        Part::text("Looking."),
        thought(None, program.clone()),
        Part::tool_call(namespaced),
        thought(None, came.clone()),
        Part::Refusal { text: "No.".to_owned() },
    ]);
    assert_eq!(
        body(Request::new([said, Message::tool_result("c1", "done")]))["input"],
        json!([
            search,
            found,
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}], "phase": "commentary"},
            program,
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "namespace": "crm", "caller": caller},
            came,
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "No."}], "phase": "commentary"},
            {"type": "function_call_output", "call_id": "c1", "output": "done", "caller": caller},
        ])
    );
}

#[test]
fn q17_a_prompt_is_cached_under_its_key_or_the_session() {
    let sent =
        |dialect| cache_members(&OpenAiResponses::new(dialect), cached(CacheRetention::Long));
    assert_eq!(sent(ResponsesDialect::OPENAI), [Some(json!("s1")), Some(json!("24h"))]);
    let mut xai = ResponsesDialect::OPENAI;
    xai.cache_retention = false;
    assert_eq!(sent(xai), [Some(json!("s1")), None]);
}

#[test]
fn places_up_to_which_to_cache_are_breakpoints_of_newer_models() {
    let mark = json!({"type": "ephemeral"});
    let system = Message::system("be brief").with_metadata("cache_control", mark);
    let request = Request::new([system, Message::user("hi")]);
    let sent = |model: &str| {
        let request = request.clone().with_model(model);
        OpenAiResponses::default().body(&request, &ModelCall::default()).unwrap()["input"].clone()
    };
    let explicit = json!({"mode": "explicit"});
    let part =
        json!({"type": "input_text", "text": "be brief", "prompt_cache_breakpoint": explicit});
    let said = json!({"role": "user", "content": "hi"});
    assert_eq!(sent("gpt-5.6"), json!([{"role": "system", "content": [part]}, said]));
    assert_eq!(sent("gpt-5.5"), json!([{"role": "system", "content": "be brief"}, said]));
}

#[test]
fn o04_the_callers_own_params_come_last_and_lists_are_added_to() {
    let options = json!({
        "reasoning_effort": "high", "reasoning_summary": "auto", "verbosity": "low", "top_p": 0.5, "truncation": "auto",
        "tools": [{"type": "web_search"}], "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
        "max_output_tokens": 9, "instructions": "Be kind.",
    });
    let request = with_options(&options)
        .with_tools([ToolSpec::new("f", "", json!({}))])
        .with_response_format(ResponseFormat::JsonObject)
        .with_max_tokens(5)
        .with_model("gpt-5");
    let body = OpenAiResponses::default().body(&request, &ModelCall::default()).unwrap();
    assert_eq!(body["reasoning"], json!({"effort": "high", "summary": "auto"}));
    assert_eq!(body["text"], json!({"format": {"type": "json_object"}, "verbosity": "low"}));
    assert_eq!(
        (&body["tools"][0]["name"], &body["tools"][1]),
        (&json!("f"), &json!({"type": "web_search"}))
    );
    assert_eq!(
        body["include"],
        json!(["reasoning.encrypted_content", "web_search_call.action.sources"])
    );
    for name in ["top_p", "truncation", "max_output_tokens", "instructions"] {
        assert_eq!(body[name], options[name]);
    }
}

#[test]
fn q18_what_was_sent_before_is_sent_again_byte_for_byte() {
    let messages = [
        Message::system("s"),
        Message::user("a"),
        Message::assistant_parts([
            thought(Some("x"), json!({"type": "reasoning", "id": "r", "summary": []})),
            Part::tool_call(ToolCall::new("c", "f", "{}")),
        ]),
        Message::tool_result("c", "found"),
    ];
    let asked = |count: usize| asked_of("gpt-5.2", Request::new(messages[..count].to_vec()));
    let text = |count: usize| asked(count)["input"].to_string();
    for count in 1..messages.len() {
        assert!(text(count + 1).starts_with(text(count).trim_end_matches(']')), "{count}");
    }
}

#[test]
fn o26_keys_and_organizations_go_in_headers() {
    let mut dialect = ResponsesDialect::OPENAI;
    dialect.key_header = Some("api-key");
    let own = OpenAiResponses::new(dialect);
    assert_eq!(own.key_header("k"), ("api-key", "k".to_owned()));
    assert_eq!(
        OpenAiResponses::default().key_header("k"),
        ("authorization", "Bearer k".to_owned())
    );
    let mut call = ModelCall::default();
    call.adapter_opts.insert("organization".to_owned(), json!("org-1"));
    assert_eq!(own.headers(&call), [("openai-organization".into(), "org-1".to_owned())]);
}

#[test]
fn a_model_must_be_named() {
    let error =
        OpenAiResponses::default().body(&Request::from("hi"), &ModelCall::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::MissingModel));
}

fn thought(signature: Option<&str>, data: Value) -> Part {
    Part::Reasoning {
        text: String::new(),
        signature: signature.map(str::to_owned),
        redacted: true,
        data: Some(data),
    }
}

fn body(request: Request) -> Value {
    asked_of("gpt-4.1", request)
}

fn asked_of(model: &str, request: Request) -> Value {
    OpenAiResponses::default().body(&request.with_model(model), &ModelCall::default()).unwrap()
}
