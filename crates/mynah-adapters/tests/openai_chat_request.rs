//! Requests as the documentation of Chat Completions wants them.

use mynah_adapters::{
    format::Format,
    openai_chat::{
        ChatDialect, CompletionTokens, JsonSchemas, OpenAiChat, PromptCaching, ReasoningBack,
    },
    presets::Preset,
};
use mynah_data::{
    CacheRetention, EngineReason, ErrorKind, Image, ImageDetail, Message, Metadata, Part,
    PromptCache, Request, ResponseFormat, ToolCall, ToolSpec,
};
use mynah_step::ModelCall;
use serde_json::{Value, json};

use crate::asked::{cache_members, cached, check_choices, search, with_options};

#[test]
fn a_question_is_a_model_and_messages_and_asks_for_its_usage() {
    let request = Request::new([Message::system("Be brief."), Message::user("hi")]);
    assert_eq!(
        body(request.with_temperature(0.5).with_max_tokens(64)),
        json!({
            "model": "gpt-4.1",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "max_completion_tokens": 64,
            "stream": true,
            "stream_options": {"include_usage": true},
        })
    );
}

#[test]
fn o03_the_limit_has_the_name_that_the_model_knows() {
    let limit = |model: &str, dialect| {
        let request = Request::from("hi").with_model(model).with_max_tokens(9);
        let body = OpenAiChat::new(dialect).body(&request, &ModelCall::default()).unwrap();
        let names = ["max_tokens", "max_completion_tokens"];
        names.map(|name| body.get(name).and_then(Value::as_u64))
    };
    for model in ["gpt-3.5-turbo", "gpt-4", "gpt-4-turbo", "GPT-4", "ft:gpt-3.5-turbo:us", "llama"]
    {
        assert_eq!(limit(model, ChatDialect::OPENAI), [Some(9), None], "{model}");
    }
    let mut azure = ChatDialect::OPENAI;
    azure.max_completion_tokens = CompletionTokens::NotTheOldest;
    for (model, expected) in [
        ("my-deployment", [None, Some(9)]),
        ("o4-mini", [None, Some(9)]),
        ("gpt-35-turbo", [Some(9), None]),
    ] {
        assert_eq!(limit(model, azure), expected, "{model}");
    }
    for model in
        ["gpt-4o", "gpt-4.1-mini", "gpt-5", "GPT-5", "o3", "ft:o4-mini:us", "chatgpt-4o-latest"]
    {
        assert_eq!(limit(model, ChatDialect::OPENAI), [None, Some(9)], "{model}");
        assert_eq!(limit(model, ChatDialect::COMPATIBLE), [Some(9), None], "{model} elsewhere");
    }
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
        body(request)["messages"][0]["content"],
        json!([
            {"type": "text", "text": "what?"},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "auto"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "high"}},
        ])
    );
    let mut unknown = Image::from_binary(*b"hi", "image/png");
    unknown.mime_type = None;
    let unknown = Part::image(unknown);
    let request = Request::new([Message::user_parts([unknown])]).with_model("m");
    let error = OpenAiChat::default().body(&request, &ModelCall::default()).unwrap_err();
    assert!(error.message().into_owned().contains("missing_mime_type"), "{error}");
}

#[test]
fn o07_o12_tools_calls_and_results() {
    let calls = Message::assistant_parts([
        Part::tool_call(ToolCall::new("c1", "search", r#"{"q": 1.0}"#)),
        Part::tool_call(ToolCall::new("c2", "now", "")),
    ]);
    let picture = Message::tool_parts(
        "c2",
        [Part::text("noon"), Part::image(Image::from_url("https://e.com/clock"))],
    );
    let request = Request::new([
        Message::user("hi"),
        calls,
        Message::tool_result("c1", json!({"n": 1})),
        picture,
        Message::user("so?"),
    ])
    .with_tools([ToolSpec::new("search", "finds", json!({"type": "object"}))]);
    let body = body(request);
    assert_eq!(
        body["tools"],
        json!([{"type": "function", "function": {"name": "search", "description": "finds", "parameters": {"type": "object", "properties": {}, "additionalProperties": true}}}])
    );
    assert_eq!(
        body["messages"].as_array().unwrap()[1..],
        [
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{\"q\": 1.0}"}},
                {"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
            ]}),
            json!({"role": "tool", "tool_call_id": "c1", "content": "{\"n\":1}"}),
            json!({"role": "tool", "tool_call_id": "c2", "content": "noon"}),
            json!({"role": "user", "content": [
                {"type": "text", "text": "Images of the result of c2:"},
                {"type": "image_url", "image_url": {"url": "https://e.com/clock", "detail": "auto"}},
            ]}),
            json!({"role": "user", "content": "so?"}),
        ]
    );
}

#[test]
fn ids_of_calls_fit_the_server_and_their_results() {
    let ids = ["call_1", "toolu_01ABC", "", "aB3xK9mP2"];
    let call = |id: &&str| Part::tool_call(ToolCall::new(*id, "search", "{}"));
    let clock = Part::image(Image::from_url("https://e.com/clock"));
    let results = ids.map(|id| Message::tool_parts(id, [Part::text("found"), clock.clone()]));
    let calls = Message::assistant_parts(ids.iter().map(call));
    let request = Request::new([calls].into_iter().chain(results));
    let sent = |short_call_ids, model: &str| {
        let request = request.clone().with_model(model);
        let mut dialect = ChatDialect::COMPATIBLE;
        dialect.short_call_ids = short_call_ids;
        let format = OpenAiChat::new(dialect);
        let messages = format.body(&request, &ModelCall::default()).unwrap()["messages"].take();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let calls = messages[0]["tool_calls"].as_array().unwrap();
        let called: Vec<String> = calls.iter().map(|call| text(&call["id"])).collect();
        let results = messages.as_array().unwrap()[1..5].iter();
        let answered: Vec<String> = results.map(|result| text(&result["tool_call_id"])).collect();
        assert_eq!(called, answered);
        assert_eq!(
            messages[5]["content"][0]["text"],
            format!("Images of the result of {}:", called[0])
        );
        called
    };
    assert_eq!(sent(false, "m"), ids);
    assert_eq!(sent(true, "m"), sent(false, "mistralai/mistral-large"), "behind a gateway too");
    assert_eq!(sent(true, "m"), ["16xj2wjzp", "kfmrsjvv6", "54xu4jzhi", "aB3xK9mP2"]);
}

#[test]
fn o08_each_choice_of_a_tool_has_its_form() {
    check_choices(body, json!({"type": "function", "function": {"name": "search"}}));
}

#[test]
fn newer_models_are_kept_from_reasoning_where_there_are_tools() {
    let effort = |preset: &str, request: Request| {
        let body = Preset::named(preset).unwrap().format().body(&request, &ModelCall::default());
        body.map(|body| body.get("reasoning_effort").cloned())
    };
    let with_tools = |model: &str| Request::from("hi").with_model(model).with_tools([search()]);
    for (preset, model, expected) in [
        ("openai-chat", "gpt-6-sol", Some(json!("none"))),
        ("openai-chat", "gpt-6.1-terra", Some(json!("none"))),
        ("azure", "gpt-5.6-luna", Some(json!("none"))),
        ("openai-chat", "gpt-5.5", None),
        ("openai-chat", "gpt-4.1", None),
        ("azure", "my-deployment", None),
        ("openrouter", "openai/gpt-6-sol", None),
        ("openai-chat", "openai/gpt-6-astra", None),
        ("vllm", "gpt-6-astra", None),
    ] {
        assert_eq!(effort(preset, with_tools(model)).unwrap(), expected, "{preset}:{model}");
    }
    let without = effort("openai-chat", Request::from("hi").with_model("gpt-6-sol"));
    assert_eq!(without.unwrap(), None);
    for model in ["gpt-6-astra", "gpt-6.1-sol-2026-10-12"] {
        let error = effort("openai-chat", with_tools(model)).unwrap_err();
        assert!(error.message().into_owned().contains("`openai:`"), "{error}");
        let own = with_options(&json!({"reasoning_effort": "low"})).with_tools([search()]);
        let said = effort("openai-chat", own.with_model(model));
        assert_eq!(said.unwrap(), Some(json!("low")), "the caller's own word stands");
    }
}

#[test]
fn o09_each_form_of_answer_has_its_form() {
    let schema = json!({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": false});
    let format = |format| {
        body(Request::from("hi").with_response_format(format)).get("response_format").cloned()
    };
    assert_eq!(format(ResponseFormat::Text), None);
    assert_eq!(format(ResponseFormat::JsonObject), Some(json!({"type": "json_object"})));
    assert_eq!(
        format(ResponseFormat::json_schema("person", schema.clone())),
        Some(
            json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": true}})
        )
    );
    let open = json!({"type": "object"});
    assert_eq!(
        format(ResponseFormat::json_schema("any", open.clone())),
        Some(
            json!({"type": "json_schema", "json_schema": {"name": "any", "schema": open, "strict": false}})
        ),
        "what cannot be closed cannot be strict"
    );
    let mut dialect = ChatDialect::COMPATIBLE;
    dialect.json_schema = JsonSchemas::Never;
    let deepseek = OpenAiChat::new(dialect);
    let request = Request::from("hi")
        .with_model("m")
        .with_response_format(ResponseFormat::json_schema("p", schema));
    let error = deepseek.body(&request, &ModelCall::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::UnsupportedResponseFormat));
}

/// "Streaming and tool use are not currently supported with Structured Outputs."
#[test]
fn groq_gives_an_answer_the_form_of_a_schema_in_one_piece_and_without_tools() {
    let groq = Preset::named("groq").unwrap().format();
    let plain = Request::from("hi").with_model("openai/gpt-oss-120b");
    let object = plain.clone().with_response_format(ResponseFormat::JsonObject);
    let schema = ResponseFormat::json_schema("person", json!({"type": "object"}));
    let formed = plain.clone().with_response_format(schema);
    let asked = |request: &Request| {
        let body = groq.body(request, &ModelCall::default()).unwrap();
        ["stream", "stream_options"].map(|name| body.get(name).cloned())
    };
    let streamed = [Some(json!(true)), Some(json!({"include_usage": true}))];
    assert_eq!(asked(&plain), streamed);
    assert_eq!(asked(&object), streamed);
    assert_eq!(asked(&formed), [Some(json!(false)), None]);

    let own_tool = formed
        .clone()
        .with_options(with_options(&json!({"tools": [{"type": "browser_search"}]})).options);
    for (request, expected) in [
        (plain.with_tools([search()]), false),
        (object.with_tools([search()]), false),
        (formed.clone(), false),
        (own_tool, true),
        (formed.clone().with_tools([search()]), true),
    ] {
        assert_eq!(groq.needs_structured_finalize(&request), expected, "{request:?}");
    }
    let elsewhere = formed.with_tools([search()]);
    assert!(!OpenAiChat::default().needs_structured_finalize(&elsewhere));
}

#[test]
fn reasoning_goes_back_as_each_server_wants_it() {
    let details = json!([{"type": "reasoning.text", "text": "because", "signature": "s"}]);
    let thought = Part::Reasoning {
        text: "because".to_owned(),
        signature: Some("s".to_owned()),
        redacted: false,
        data: Some(json!({"reasoning_details": details})),
    };
    let request = Request::new([Message::assistant_parts([thought, Part::text("so")])]);
    let sent_to = |model: &str, reasoning_back| {
        let mut dialect = ChatDialect::COMPATIBLE;
        dialect.reasoning_back = reasoning_back;
        let format = OpenAiChat::new(dialect);
        let request = request.clone().with_model(model);
        format.body(&request, &ModelCall::default()).unwrap()["messages"][0].clone()
    };
    let sent = |reasoning_back| sent_to("m", reasoning_back);
    let plain = json!({"role": "assistant", "content": "so"});
    assert_eq!(sent(ReasoningBack::Never), plain);
    let field = json!({"role": "assistant", "content": "so", "reasoning_content": "because"});
    assert_eq!(sent(ReasoningBack::Field("reasoning_content")), field);
    let to_reasoners = ReasoningBack::FieldOfReasoners("reasoning_content");
    assert_eq!(sent_to("llama-3.3-70b-versatile", to_reasoners), plain);
    for model in ["openai/gpt-oss-120b", "qwen/qwen3-32b", "deepseek-r1-distill-llama-70b"] {
        assert_eq!(sent_to(model, to_reasoners), field, "{model}");
    }
    assert_eq!(
        sent(ReasoningBack::Details),
        json!({"role": "assistant", "content": "so", "reasoning_details": details})
    );
    let parts = json!([
        {"type": "thinking", "thinking": [{"type": "text", "text": "because"}]},
        {"type": "text", "text": "so"},
    ]);
    assert_eq!(sent(ReasoningBack::Thinking), json!({"role": "assistant", "content": parts}));
}

#[test]
fn an_answer_that_says_nothing_is_left_away() {
    let request = Request::new([Message::user("a"), Message::assistant(""), Message::user("b")]);
    assert_eq!(
        body(request)["messages"],
        json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    );
}

/// `After the (optional) system message(s), user or tool message(s) should alternate with assistant message(s).`
#[test]
fn perplexity_gets_instructions_first_and_turns_below_them() {
    let sent = |messages: Vec<Message>| {
        let request = Request::new(messages).with_model("sonar");
        let format = Preset::named("perplexity").unwrap().format();
        format.body(&request, &ModelCall::default()).unwrap()["messages"].clone()
    };
    let said = vec![
        Message::user("a"),
        Message::assistant(""),
        Message::user("b"),
        Message::system("Be brief."),
        Message::user_parts([Part::image(Image::from_url("https://e.com/a"))]),
        Message::assistant("So."),
        Message::assistant("Well."),
    ];
    let image =
        json!({"type": "image_url", "image_url": {"url": "https://e.com/a", "detail": "auto"}});
    assert_eq!(
        sent(said),
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a\n\nb"}, image]},
            {"role": "assistant", "content": "So.\n\nWell."},
        ])
    );
    let call = |id: &str| Message::assistant_parts([Part::tool_call(ToolCall::new(id, "f", "{}"))]);
    let results = ["c1", "c2"].map(|id| Message::tool_result(id, "found"));
    let called =
        sent([vec![Message::assistant("So."), call("c1"), call("c2")], results.to_vec()].concat());
    assert_eq!(called[0]["content"], "So.");
    assert_eq!(called[0]["tool_calls"].as_array().map(Vec::len), Some(2));
    assert_eq!([&called[1]["tool_call_id"], &called[2]["tool_call_id"]], ["c1", "c2"]);
}

#[test]
fn q17_a_prompt_is_cached_under_its_key_or_the_session() {
    let chat = OpenAiChat::default();
    assert_eq!(cache_members(&chat, cached(CacheRetention::Short)), [Some(json!("s1")), None]);
    let mut keyed = cached(CacheRetention::Long);
    keyed.prompt_cache.as_mut().unwrap().key = Some("k".to_owned());
    assert_eq!(cache_members(&chat, keyed), [Some(json!("k")), Some(json!("24h"))]);
}

#[test]
fn retention_is_for_models_before_breakpoints_and_marks_are_for_those_after() {
    let mut cache = PromptCache::default();
    cache.retention = CacheRetention::Long;
    for (model, is_new) in [
        ("gpt-4.1", false),
        ("gpt-5-mini", false),
        ("gpt-5-2025-08-07", false),
        ("gpt-5.5", false),
        ("gpt-35-turbo", false),
        ("gpt-oss-120b", false),
        ("o3", false),
        ("gpt-5.6", true),
        ("gpt-5.10-sol", true),
        ("gpt-6-luna", true),
        ("openai/gpt-6.1-sol", true),
    ] {
        let request = marked().with_prompt_cache(cache.clone());
        let body = OpenAiChat::default().body(&request.with_model(model), &ModelCall::default());
        let body = body.unwrap();
        assert_eq!(body.get("prompt_cache_retention").is_some(), !is_new, "{model}");
        let mark = body.pointer("/messages/0/content/0/prompt_cache_breakpoint");
        assert_eq!(mark, is_new.then(|| json!({"mode": "explicit"})).as_ref(), "{model}");
    }
}

#[test]
fn places_up_to_which_to_cache_are_marked_as_the_server_takes_it() {
    let sent = |prompt_cache| {
        let mut dialect = ChatDialect::OPENAI;
        dialect.prompt_cache = prompt_cache;
        let format = OpenAiChat::new(dialect);
        let request = marked().with_model("gpt-5.6-sol");
        format.body(&request, &ModelCall::default()).unwrap()["messages"].clone()
    };
    let with = |name: &str, mark: Value| {
        let part = |text: &str| json!({"type": "text", "text": text});
        let (mut first, mut last, mut found) = (part("a"), part("d"), part("error: no"));
        for part in [&mut first, &mut last, &mut found] {
            part[name] = mark.clone();
        }
        json!([
            {"role": "user", "content": [first, part("b")]},
            {"role": "user", "content": [part("c"), last]},
            {"role": "tool", "tool_call_id": "1", "content": [found]},
        ])
    };
    let explicit = json!({"mode": "explicit"});
    assert_eq!(sent(PromptCaching::OpenAi), with("prompt_cache_breakpoint", explicit));
    assert_eq!(sent(PromptCaching::CacheControl), with("cache_control", mark()));
    assert_eq!(sent(PromptCaching::Never)[1], json!({"role": "user", "content": "c\nd"}));
}

#[test]
fn a_whole_prompt_is_cached_for_claude_behind_a_gateway() {
    let mut cache = PromptCache::default();
    cache.retention = CacheRetention::Long;
    let mut dialect = ChatDialect::COMPATIBLE;
    dialect.prompt_cache = PromptCaching::CacheControl;
    let format = OpenAiChat::new(dialect);
    let sent = |model: &str| {
        let request = Request::from("hi").with_prompt_cache(cache.clone());
        let body = format.body(&request.with_model(model), &ModelCall::default()).unwrap();
        body.get("cache_control").cloned()
    };
    assert_eq!(sent("anthropic/claude-sonnet-5"), Some(mark()));
    assert_eq!(sent("openai/gpt-5.6-sol"), None);
}

#[test]
fn o04_the_callers_own_params_come_last_and_win() {
    let options =
        json!({"top_p": 0.5, "stop": ["x"], "parallel_tool_calls": false, "stream_options": {}});
    let request = with_options(&options);
    let body = body(request);
    for (name, value) in options.as_object().unwrap() {
        assert_eq!(&body[name], value);
    }
}

#[test]
fn openai_is_not_asked_to_sum_up_thoughts() {
    let summary = |preset: &str, model: &str| {
        let request = with_options(&json!({"reasoning_summary": "auto"})).with_model(model);
        let body = Preset::named(preset).unwrap().format().body(&request, &ModelCall::default());
        body.unwrap().get("reasoning_summary").cloned()
    };
    assert_eq!(summary("openai-chat", "gpt-5.2"), None);
    assert_eq!(summary("azure", "my-deployment"), None);
    assert_eq!(summary("openrouter", "openai/gpt-5.2"), Some(json!("auto")));
}

#[test]
fn o05_a_model_that_does_not_reason_is_not_told_how() {
    let effort = |preset: &str, model: &str| {
        let request = with_options(&json!({"reasoning_effort": "low"})).with_model(model);
        let body = Preset::named(preset).unwrap().format().body(&request, &ModelCall::default());
        body.unwrap().get("reasoning_effort").cloned()
    };
    for model in ["gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "ft:gpt-4o-mini:us"] {
        assert_eq!(effort("openai-chat", model), None, "{model}");
    }
    for (preset, model) in [
        ("openai-chat", "gpt-5.2"),
        ("openai-chat", "o4-mini"),
        ("openai-chat", "somebodys-model"),
        ("azure", "gpt-4o"),
        ("openrouter", "openai/gpt-4o"),
    ] {
        assert_eq!(effort(preset, model), Some(json!("low")), "{preset}:{model}");
    }
}

/// `The 'stream_options' parameter is only allowed when 'stream' is enabled.`
#[test]
fn an_answer_in_one_piece_has_no_options_of_a_stream() {
    let sent = body(with_options(&json!({"stream": false})));
    assert_eq!((&sent["stream"], sent.get("stream_options")), (&json!(false), None));
}

#[test]
fn q18_what_was_sent_before_is_sent_again_byte_for_byte() {
    let first = Request::new([Message::system("s"), Message::user("a")]);
    let longer = Request::new([
        Message::system("s"),
        Message::user("a"),
        Message::assistant("b"),
        Message::user("c"),
    ]);
    let text = |request: Request| body(request)["messages"].to_string();
    let (first, longer) = (text(first), text(longer));
    assert!(longer.starts_with(first.trim_end_matches(']')), "{longer}");
}

#[test]
fn a_model_must_be_named() {
    let error =
        OpenAiChat::default().body(&Request::from("hi"), &ModelCall::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::MissingModel));
}

fn mark() -> Value {
    json!({"type": "ephemeral", "ttl": "1h"})
}

/// The first part, a message and a result that failed are each marked as the end of what is to be cached.
fn marked() -> Request {
    let metadata = Metadata::from_iter([("cache_control".to_owned(), mark())]);
    let first = Part::Text { text: "a".to_owned(), metadata };
    Request::new([
        Message::user_parts([first, Part::text("b")]),
        Message::user_parts([Part::text("c"), Part::text("d")])
            .with_metadata("cache_control", mark()),
        Message::tool_error("1", "no").with_metadata("cache_control", mark()),
    ])
}

fn body(request: Request) -> Value {
    let request = request.with_model("gpt-4.1");
    OpenAiChat::default().body(&request, &ModelCall::default()).unwrap()
}
