//! Every format against every kind of thing that a request can hold, as the providers document it. The tests of each format go
//! further; this one says that no field of the table is empty.

use std::{slice, sync::Arc};

use mynah_adapters::presets::Preset;
use mynah_data::{
    Image, Message, Metadata, Part, PromptCache, Request, ResponseFormat, Result, ToolCall,
    ToolChoice, ToolSpec,
};
use mynah_step::ModelCall;
use serde_json::{Value, json};

/// The formats, each with a model that can do everything.
const FORMATS: [(&str, &str); 6] = [
    ("openai", "gpt-5.2"),
    ("openai-chat", "gpt-5.2"),
    ("anthropic", "claude-sonnet-5"),
    ("gemini", "gemini-3-pro"),
    ("bedrock", "anthropic.claude-sonnet-5"),
    ("ollama", "qwen3:4b"),
];

const CELLS: [&str; 11] = [
    "text",
    "system",
    "image by address",
    "image by bytes",
    "tools",
    "tool call",
    "tool result",
    "failed tool result",
    "reasoning",
    "structured output",
    "caching",
];

#[test]
fn every_format_writes_every_kind_of_request() {
    for (name, model) in FORMATS {
        for cell in CELLS {
            let format = Preset::named(name).unwrap().format();
            let request = request(name, cell).with_model(model);
            let body = format.body(&request, &ModelCall::default());
            if let Ok(body) = &body {
                check_frame(name, cell, body);
            }
            check(&format!("{name}, {cell}"), body, expected(name, cell));
        }
    }
}

#[test]
fn what_is_written_is_the_body_also_the_second_time() {
    for (name, model) in FORMATS {
        for cell in CELLS {
            let format = Preset::named(name).unwrap().format();
            let request = request(name, cell).with_model(model);
            let Ok(body) = format.body(&request, &ModelCall::default()) else { continue };
            for _ in 0..2 {
                let mut written = Vec::new();
                format.write_body(&request, &ModelCall::default(), &mut written).unwrap();
                assert_eq!(String::from_utf8(written).unwrap(), body.to_string(), "{name}, {cell}");
            }
        }
    }
}

#[test]
fn a_tool_that_is_changed_is_sent_as_it_is_then() {
    let format = Preset::named("vllm").unwrap().format();
    let mut request = request("openai-chat", "tools").with_model("m");
    let sent = |request: &Request| {
        format.body(request, &ModelCall::default()).unwrap()["tools"][0].clone()
    };
    let before = sent(&request);
    let spec = Arc::make_mut(&mut request.tools[0]);
    spec.schema = json!({"type": "object", "properties": {"another": {"type": "string"}}});
    assert_ne!(sent(&request), before);
    assert!(sent(&request)["function"]["parameters"]["properties"]["another"].is_object());
}

#[test]
fn one_call_at_a_time_is_asked_for_or_refused() {
    let sent = |name: &str, model: &str, parallel: bool, choice: Option<ToolChoice>| {
        let options = json!({"parallel_tool_calls": parallel});
        let mut request = request(name, "tools").with_options(options.as_object().unwrap().clone());
        request.tool_choice = choice;
        let format = Preset::named(name).unwrap().format();
        format.body(&request.with_model(model), &ModelCall::default())
    };
    for (name, model) in
        [("gemini", "gemini-3-pro"), ("ollama", "qwen3:4b"), ("bedrock", "amazon.nova-pro-v1:0")]
    {
        assert_eq!(sent(name, model, false, None).unwrap_err().reason(), "unsupported_feature");
        let body = sent(name, model, true, None).unwrap().to_string();
        assert!(!body.to_ascii_lowercase().contains("parallel"), "{body}");
    }
    let claude = |parallel, choice| {
        let body = sent("bedrock", "us.anthropic.claude-sonnet-5", parallel, choice).unwrap();
        body.pointer("/additionalModelRequestFields/tool_choice").cloned()
    };
    assert_eq!(claude(true, None), None);
    assert_eq!(
        claude(false, None),
        Some(json!({"disable_parallel_tool_use": true, "type": "auto"}))
    );
    assert_eq!(
        claude(false, Some(ToolChoice::Required)),
        Some(json!({"disable_parallel_tool_use": true})),
        "Converse says the rest"
    );
}

#[test]
fn tools_among_the_options_follow_the_others() {
    let own = json!({"own": {"name": "theirs"}});
    for (name, model) in FORMATS {
        let place = if name == "bedrock" { "/toolConfig/tools" } else { "/tools" };
        let sent = |asked: Request, own: &Value| {
            let options = Metadata::from_iter([("tools".to_owned(), own.clone())]);
            let request = asked.with_options(options).with_model(model);
            let format = Preset::named(name).unwrap().format();
            format.body(&request, &ModelCall::default())
        };
        let tools = |asked: Request, own: &Value| {
            let body = sent(asked, own).unwrap();
            body.pointer(place).cloned().unwrap_or(json!([])).as_array().unwrap().clone()
        };
        let ours = || request(name, "tools");
        let described = tools(ours(), &json!([]));
        let both = [described.clone(), vec![own.clone(), own.clone()]].concat();
        assert_eq!(tools(ours(), &json!([own, own])), both, "{name}");
        assert_eq!(tools(ours(), &Value::Null), described, "{name}");
        assert_eq!(tools(request(name, "text"), &own), slice::from_ref(&own), "{name}");
        assert_eq!(tools(request(name, "tool result"), &own), slice::from_ref(&own), "{name}");
        let choosing = |choice| request(name, "text").with_tool_choice(choice);
        let demanded = sent(choosing(ToolChoice::Required), &own);
        assert_eq!(demanded.is_ok(), name != "ollama", "{name}: there is a tool to call");
        let barred = sent(choosing(ToolChoice::None), &own).unwrap().to_string();
        let is_told = barred.to_lowercase().contains("none");
        assert_eq!(barred.contains("theirs"), is_told, "{name}: {barred}");
    }
}

#[test]
fn the_arguments_of_a_tool_are_an_object_though_its_schema_does_not_say_so() {
    let sent = |name: &str, model: &str, schema: &Value| {
        let mut tool = ToolSpec::new("f", "d", schema.clone());
        tool.metadata.insert("strict".to_owned(), false.into());
        let request = Request::from("hi").with_tools([tool]).with_model(model);
        let format = Preset::named(name).unwrap().format();
        let body = format.body(&request, &ModelCall::default()).unwrap();
        let place = match name {
            "openai" => "/tools/0/parameters",
            "anthropic" => "/tools/0/input_schema",
            "bedrock" => "/toolConfig/tools/0/toolSpec/inputSchema/json",
            "gemini" => "/tools/0/functionDeclarations/0/parameters",
            _ => "/tools/0/function/parameters",
        };
        body.pointer(place).cloned()
    };
    let properties = json!({"q": {"type": "string"}});
    for (name, model) in FORMATS {
        let mut nothing = json!({"type": "object", "properties": {}});
        if name.starts_with("openai") {
            nothing["additionalProperties"] = json!(true);
        }
        let expected = (name != "gemini").then_some(nothing);
        assert_eq!(sent(name, model, &json!({})), expected, "{name}");
        let said = json!({"type": "object", "properties": properties});
        assert_eq!(sent(name, model, &said), Some(said.clone()), "{name}");
        if name != "gemini" {
            let unsaid = json!({"properties": properties});
            assert_eq!(sent(name, model, &unsaid), Some(said), "{name}");
        }
    }
}

#[test]
fn calls_are_held_to_a_schema_that_can_be_closed() {
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let (text, any) = (json!({"type": "string"}), json!({"type": "object"}));
    let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let short = json!({"type": "string", "maxLength": 9});
    let mut closed = object(json!({"q": {"type": "string", "description": "Max length: 9."}}));
    closed["additionalProperties"] = json!(false);
    let sent = |name: &str, strict: bool, schema: &Value| {
        let mut tool = ToolSpec::new("f", "d", schema.clone());
        tool.metadata.insert("strict".to_owned(), strict.into());
        let request = Request::from("hi").with_tools([tool]).with_model("claude-sonnet-5");
        let format = Preset::named(name).unwrap().format();
        let body = format.body(&request, &ModelCall::default()).unwrap();
        let (spec, schema) = match name {
            "bedrock" => ("/toolConfig/tools/0/toolSpec", "/inputSchema/json"),
            _ => ("/tools/0", "/input_schema"),
        };
        let spec = body.pointer(spec).unwrap();
        (spec.pointer(schema).unwrap().clone(), spec.get("strict").cloned())
    };
    for name in ["anthropic", "bedrock"] {
        let limited = object(json!({"q": short}));
        assert_eq!(sent(name, true, &limited), (closed.clone(), Some(json!(true))), "{name}");
        assert_eq!(sent(name, false, &limited), (limited, Some(json!(false))), "{name}");
        for open in [
            any.clone(),
            map.clone(),
            object(json!({"q": map})),
            object(json!({"q": {"anyOf": [text, any]}})),
            object(json!({"q": {"type": "array", "items": any}})),
            json!({"type": "object", "properties": {"q": {"$ref": "#/$defs/m"}}, "$defs": {"m": map}}),
        ] {
            assert_eq!(sent(name, true, &open), (open, None), "{name}");
        }
    }
}

#[test]
fn what_says_by_itself_that_it_failed_does_not_say_it_twice() {
    let told = r#"{"error":"broke"}"#;
    for (said, sent) in [
        (told, told),
        ("Error: broke", "Error: broke"),
        ("broke", "error: broke"),
        ("", "error: "),
        (r#"{"ok":false}"#, r#"error: {"ok":false}"#),
    ] {
        let result = || Message::tool_error("call_1", said);
        for (name, place) in [
            ("openai", "/input/0/output"),
            ("openai-chat", "/messages/0/content"),
            ("ollama", "/messages/0/content"),
        ] {
            let format = Preset::named(name).unwrap().format();
            let request = Request::new([result()]).with_model("m");
            let body = format.body(&request, &ModelCall::default()).unwrap();
            assert_eq!(body.pointer(place), Some(&json!(sent)), "{name}");
        }
    }
}

/// Beside the conversation and what the cell asks for, a body holds what every body of the format does, and no more.
fn check_frame(name: &str, cell: &str, body: &Value) {
    let every = match name {
        "openai" => {
            json!({"model": "gpt-5.2", "store": false, "include": ["reasoning.encrypted_content"], "stream": true})
        }
        "openai-chat" => {
            json!({"model": "gpt-5.2", "stream": true, "stream_options": {"include_usage": true}})
        }
        "anthropic" => json!({"model": "claude-sonnet-5", "max_tokens": 64_000, "stream": true}),
        "ollama" => json!({"model": "qwen3:4b", "stream": true}),
        _ => json!({}),
    };
    let conversation = match name {
        "openai" => "input",
        "gemini" => "contents",
        _ => "messages",
    };
    let asked: &[&str] = match (name, cell) {
        ("anthropic", "system") => &["system"],
        ("gemini", "system" | "caching") => &["systemInstruction"],
        ("bedrock", "system" | "caching") => &["system"],
        ("bedrock", "tools") => &["toolConfig"],
        (_, "tools") => &["tools"],
        // Calls in the conversation demand that their tools are described.
        ("anthropic", "tool call" | "tool result" | "failed tool result" | "reasoning") => {
            &["tools", "tool_choice"]
        }
        ("bedrock", "tool call" | "tool result" | "failed tool result" | "reasoning") => {
            &["toolConfig"]
        }
        ("openai", "structured output") => &["text"],
        ("openai-chat", "structured output") => &["response_format"],
        ("anthropic", "structured output") => &["output_config"],
        ("gemini", "structured output") => &["generationConfig"],
        ("bedrock", "structured output") => &["outputConfig"],
        ("ollama", "structured output") => &["format"],
        ("openai" | "openai-chat", "caching") => &["prompt_cache_key"],
        ("anthropic", "caching") => &["system", "cache_control"],
        _ => &[],
    };
    let mut rest = body.as_object().unwrap().clone();
    for member in asked.iter().chain([&conversation]) {
        assert!(rest.shift_remove(*member).is_some(), "{name}, {cell}: {member} of {body:#}");
    }
    assert_eq!(Value::Object(rest), every, "{name}, {cell}");
}

fn check(name: &str, body: Result<Value>, expected: Expected) {
    match (body, expected) {
        (Ok(body), Expected::At(place, value)) => {
            assert_eq!(body.pointer(place), Some(&value), "{name}: {place} of {body:#}");
        }
        (Ok(body), Expected::NotAt(place)) => {
            assert_eq!(body.pointer(place), None, "{name}: {body:#}");
        }
        (Err(error), Expected::Refused(reason)) => assert_eq!(error.reason(), reason, "{name}"),
        (body, expected) => panic!("{name}: {expected:?}, found {body:#?}"),
    }
}

#[derive(Debug)]
enum Expected {
    /// This stands there.
    At(&'static str, Value),
    /// The format has no such thing: the provider sees nothing of it.
    NotAt(&'static str),
    /// The format has no such thing, and the call would not be what it says without it.
    Refused(&'static str),
}

const URL: &str = "https://pictures.example/bird.png";

fn request(name: &str, cell: &str) -> Request {
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    let picture =
        |image: Image| Request::new([Message::user_parts([Part::text("see"), image.into()])]);
    let call = || Part::tool_call(ToolCall::new("call_1", "search", r#"{"q":"go"}"#));
    let asked = |answer: Vec<Part>| vec![Message::user("hi"), Message::assistant_parts(answer)];
    let answered = |result: Message| Request::new(asked(vec![call()]).into_iter().chain([result]));
    let mut cache = PromptCache::default();
    cache.key = Some("k".to_owned());
    match cell {
        "text" => Request::from("hi"),
        "system" => Request::new([Message::system("be brief"), Message::user("hi")]),
        "image by address" => picture(Image::from_url(URL)),
        "image by bytes" => picture(Image::from_binary(b"bird".to_vec(), "image/png")),
        "tools" => Request::from("hi").with_tools([ToolSpec::new("search", "Finds", schema)]),
        "tool call" | "tool result" => answered(Message::tool_result("call_1", "found")),
        "failed tool result" => answered(Message::tool_error("call_1", "broke")),
        "reasoning" => {
            let (signature, data) = match name {
                "openai" => {
                    (Some("sig"), Some(json!({"type": "reasoning", "id": "rs_1", "summary": []})))
                }
                "openai-chat" | "ollama" => (None, None),
                _ => (Some("sig"), None),
            };
            let thought = Part::Reasoning {
                text: "because".to_owned(),
                signature: signature.map(str::to_owned),
                redacted: false,
                data,
            };
            let result = Message::tool_result("call_1", "found");
            Request::new(asked(vec![thought, call()]).into_iter().chain([result]))
        }
        "structured output" => {
            Request::from("hi").with_response_format(ResponseFormat::JsonSchema {
                name: "form".to_owned(),
                schema,
                strict: true,
            })
        }
        "caching" => Request::new([Message::system("be brief"), Message::user("hi")])
            .with_prompt_cache(cache),
        cell => panic!("no request for {cell}"),
    }
}

fn expected(name: &str, cell: &str) -> Expected {
    use Expected::{At, NotAt, Refused};
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}});
    let mut closed = schema.clone();
    closed["additionalProperties"] = json!(false);
    let strict = json!({"type": "object", "properties": {"q": {"type": ["string", "null"]}}, "required": ["q"], "additionalProperties": false});
    let mut function = json!({"name": "search", "description": "Finds", "parameters": schema});
    if name == "openai-chat" {
        function["parameters"] = strict.clone();
        function["strict"] = json!(true);
    }
    let said = json!({"role": "user", "content": "hi"});
    let system = json!({"role": "system", "content": "be brief"});
    match (name, cell) {
        ("openai", "text") => At("/input/0", said),
        ("openai", "system") => At("/input/0", system),
        ("openai", "image by address") => At(
            "/input/0/content/1",
            json!({"type": "input_image", "image_url": URL, "detail": "auto"}),
        ),
        ("openai", "image by bytes") => At(
            "/input/0/content/1",
            json!({"type": "input_image", "image_url": "data:image/png;base64,YmlyZA==", "detail": "auto"}),
        ),
        ("openai", "tools") => At(
            "/tools/0",
            json!({"type": "function", "strict": true, "name": "search", "description": "Finds", "parameters": strict}),
        ),
        ("openai", "tool call") => At(
            "/input/1",
            json!({"type": "function_call", "call_id": "call_1", "name": "search", "arguments": "{\"q\":\"go\"}"}),
        ),
        ("openai", "tool result") => At(
            "/input/2",
            json!({"type": "function_call_output", "call_id": "call_1", "output": "found"}),
        ),
        ("openai", "failed tool result") => At(
            "/input/2",
            json!({"type": "function_call_output", "call_id": "call_1", "output": "error: broke"}),
        ),
        ("openai", "reasoning") => At(
            "/input/1",
            json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sig"}),
        ),
        ("openai", "structured output") => At(
            "/text/format",
            json!({"type": "json_schema", "name": "form", "schema": strict, "strict": true}),
        ),
        ("openai" | "openai-chat", "caching") => At("/prompt_cache_key", json!("k")),

        ("openai-chat" | "ollama", "text") => At("/messages/0", said),
        ("openai-chat" | "ollama", "system") => At("/messages/0", system),
        ("openai-chat", "image by address") => At(
            "/messages/0/content/1",
            json!({"type": "image_url", "image_url": {"url": URL, "detail": "auto"}}),
        ),
        ("openai-chat", "image by bytes") => At(
            "/messages/0/content/1",
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,YmlyZA==", "detail": "auto"}}),
        ),
        ("openai-chat" | "ollama", "tools") => {
            At("/tools/0", json!({"type": "function", "function": function}))
        }
        ("openai-chat", "tool call") => At(
            "/messages/1",
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{\"q\":\"go\"}"}}
            ]}),
        ),
        ("openai-chat", "tool result") => {
            At("/messages/2", json!({"role": "tool", "tool_call_id": "call_1", "content": "found"}))
        }
        ("openai-chat", "failed tool result") => At(
            "/messages/2",
            json!({"role": "tool", "tool_call_id": "call_1", "content": "error: broke"}),
        ),
        ("openai-chat", "reasoning") => NotAt("/messages/1/reasoning_content"),
        ("openai-chat", "structured output") => At(
            "/response_format",
            json!({"type": "json_schema", "json_schema": {"name": "form", "schema": strict, "strict": true}}),
        ),

        ("anthropic", "text") => At("/messages/0", said),
        ("anthropic", "system") => At("/system", json!("be brief")),
        ("anthropic", "image by address") => At(
            "/messages/0/content/1",
            json!({"type": "image", "source": {"type": "url", "url": URL}}),
        ),
        ("anthropic", "image by bytes") => At(
            "/messages/0/content/1",
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "YmlyZA=="}}),
        ),
        ("anthropic", "tools") => At(
            "/tools/0",
            json!({"name": "search", "description": "Finds", "input_schema": schema}),
        ),
        ("anthropic", "tool call") => At(
            "/messages/1/content/0",
            json!({"type": "tool_use", "id": "call_1", "name": "search", "input": {"q": "go"}}),
        ),
        ("anthropic", "tool result") => At(
            "/messages/2/content/0",
            json!({"type": "tool_result", "tool_use_id": "call_1", "content": "found"}),
        ),
        ("anthropic", "failed tool result") => At(
            "/messages/2/content/0",
            json!({"type": "tool_result", "tool_use_id": "call_1", "content": "broke", "is_error": true}),
        ),
        ("anthropic", "reasoning") => At(
            "/messages/1/content/0",
            json!({"type": "thinking", "thinking": "because", "signature": "sig"}),
        ),
        ("anthropic", "structured output") => {
            At("/output_config", json!({"format": {"type": "json_schema", "schema": closed}}))
        }
        ("anthropic", "caching") => At("/cache_control", json!({"type": "ephemeral"})),

        ("gemini", "text") => At("/contents/0", json!({"role": "user", "parts": [{"text": "hi"}]})),
        ("gemini", "system") => At("/systemInstruction", json!({"parts": [{"text": "be brief"}]})),
        ("gemini", "image by address") => {
            At("/contents/0/parts/1", json!({"fileData": {"fileUri": URL}}))
        }
        ("gemini", "image by bytes") => At(
            "/contents/0/parts/1",
            json!({"inlineData": {"mimeType": "image/png", "data": "YmlyZA=="}}),
        ),
        ("gemini", "tools") => At("/tools/0/functionDeclarations/0", function),
        ("gemini", "tool call") => At(
            "/contents/1/parts/0",
            json!({
                "functionCall": {"name": "search", "args": {"q": "go"}, "id": "call_1"},
                "thoughtSignature": "skip_thought_signature_validator",
            }),
        ),
        ("gemini", "tool result") => At(
            "/contents/2",
            json!({"role": "user", "parts": [
                {"functionResponse": {"name": "search", "response": {"output": "found"}, "id": "call_1"}}
            ]}),
        ),
        ("gemini", "failed tool result") => {
            At("/contents/2/parts/0/functionResponse/response", json!({"error": "broke"}))
        }
        ("gemini", "reasoning") => At(
            "/contents/1/parts/0",
            json!({"text": "because", "thought": true, "thoughtSignature": "sig"}),
        ),
        ("gemini", "structured output") => At(
            "/generationConfig",
            json!({"responseMimeType": "application/json", "responseSchema": schema}),
        ),
        // The provider caches by itself.
        ("gemini", "caching") => NotAt("/cachedContent"),

        ("bedrock", "text") => {
            At("/messages/0", json!({"role": "user", "content": [{"text": "hi"}]}))
        }
        ("bedrock", "system") => At("/system", json!([{"text": "be brief"}])),
        ("bedrock", "image by address") => Refused("unsupported_feature"),
        ("bedrock", "image by bytes") => At(
            "/messages/0/content/1",
            json!({"image": {"format": "png", "source": {"bytes": "YmlyZA=="}}}),
        ),
        ("bedrock", "tools") => At(
            "/toolConfig/tools/0",
            json!({"toolSpec": {"name": "search", "inputSchema": {"json": schema}, "description": "Finds"}}),
        ),
        ("bedrock", "tool call") => At(
            "/messages/1/content/0",
            json!({"toolUse": {"toolUseId": "call_1", "name": "search", "input": {"q": "go"}}}),
        ),
        ("bedrock", "tool result") => At(
            "/messages/2/content/0",
            json!({"toolResult": {"toolUseId": "call_1", "content": [{"text": "found"}]}}),
        ),
        ("bedrock", "failed tool result") => At(
            "/messages/2/content/0",
            json!({"toolResult": {"toolUseId": "call_1", "content": [{"text": "broke"}], "status": "error"}}),
        ),
        ("bedrock", "reasoning") => At(
            "/messages/1/content/0",
            json!({"reasoningContent": {"reasoningText": {"text": "because", "signature": "sig"}}}),
        ),
        ("bedrock", "structured output") => At(
            "/outputConfig/textFormat",
            json!({"type": "json_schema", "structure": {"jsonSchema": {"name": "form", "schema": closed.to_string()}}}),
        ),
        ("bedrock", "caching") => {
            At("/system", json!([{"text": "be brief"}, {"cachePoint": {"type": "default"}}]))
        }

        ("ollama", "image by address") => Refused("unsupported_feature"),
        ("ollama", "image by bytes") => At("/messages/0/images", json!(["YmlyZA=="])),
        ("ollama", "tool call") => At(
            "/messages/1/tool_calls",
            json!([{"id": "call_1", "function": {"name": "search", "arguments": {"q": "go"}}}]),
        ),
        ("ollama", "tool result") => At(
            "/messages/2",
            json!({"role": "tool", "content": "found", "tool_call_id": "call_1", "tool_name": "search"}),
        ),
        ("ollama", "failed tool result") => At("/messages/2/content", json!("error: broke")),
        ("ollama", "reasoning") => At("/messages/1/thinking", json!("because")),
        ("ollama", "structured output") => At("/format", schema),
        // The server keeps what it last read.
        ("ollama", "caching") => NotAt("/prompt_cache_key"),

        (name, cell) => panic!("nothing is said of {cell} in {name}"),
    }
}
