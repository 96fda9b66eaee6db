//! Answers of a given form from models on Bedrock, by its own way or by a tool.

use std::sync::Arc;

use futures_util::StreamExt as _;
use mynah_adapters::{
    bedrock::Bedrock,
    conformance::{Reply, TestServer},
    format::{Delivery, Format},
    http::HttpAdapter,
};
use mynah_data::{
    AdapterReason, EngineReason, ErrorKind, Event, FinishReason, Message, ModelRef, Part, Request,
    Response, ResponseFormat, Result, ToolCall, ToolChoice, ToolSpec,
};
use mynah_step::{Adapter, ModelCall};
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::{
    asked::{search, with_options},
    common::{events, folded},
    frames,
};

const FORM: &str = "respond_with_json_count";
const NOVA: &str = "us.amazon.nova-2-lite-v1:0";
const LLAMA: &str = "us.meta.llama4-scout-17b-instruct-v1:0";
const OLDER_CLAUDE: &str = "anthropic.claude-3-7-sonnet-20250219-v1:0";
const UNFORMED: ErrorKind = ErrorKind::Engine(EngineReason::UnsupportedResponseFormat);

/// How a model was asked for the format.
#[derive(Debug, PartialEq)]
enum Asked {
    /// By its schema.
    Held,
    /// By a tool that it must call.
    Made,
    /// By a tool, for a model that Converse can force to call it.
    MadeToCallAny,
    /// By a tool, and an instruction to call it.
    Instructed,
    Refused,
}

fn way(model: &str, form: ResponseFormat) -> Asked {
    let request = Request::from("hi").with_response_format(form).with_model(model);
    let sent = match body(&request) {
        Ok(sent) => sent,
        Err(error) => {
            assert_eq!(error.kind(), UNFORMED, "{model}");
            return Asked::Refused;
        }
    };
    if sent.get("outputConfig").is_some() {
        assert_eq!((sent.get("toolConfig"), sent.get("system")), (None, None), "{model}");
        return Asked::Held;
    }
    let name = sent["toolConfig"]["tools"][0]["toolSpec"]["name"].as_str().unwrap();
    let choice = sent["toolConfig"].get("toolChoice");
    let is_instructed = sent["system"][0]["text"].as_str().is_some_and(|text| text.contains(name));
    match choice {
        Some(choice) if *choice == json!({"tool": {"name": name}}) && !is_instructed => Asked::Made,
        Some(choice) if *choice == json!({"any": {}}) && is_instructed => Asked::MadeToCallAny,
        None if is_instructed => Asked::Instructed,
        _ => panic!("{model}: {sent}"),
    }
}

#[test]
fn each_model_is_asked_for_a_form_as_it_can_be() {
    use Asked::*;
    let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let object = || ResponseFormat::JsonObject;
    for (model, by_schema, open) in [
        ("us.anthropic.claude-opus-5", Held, Made),
        ("us.anthropic.claude-opus-5-5", Held, Refused),
        (OLDER_CLAUDE, Made, Made),
        ("my-profile", Held, Made),
        ("openai.gpt-6-sol", Held, Instructed),
        ("deepseek.v3.2", Held, Instructed),
        ("mistral.mistral-large-3-675b-instruct", Held, MadeToCallAny),
        ("mistral.ministral-3-8b-instruct", Held, Instructed),
        // Its calls are held to the names that their schemas have.
        ("amazon.nova-pro-v1:0", Made, Refused),
        (NOVA, Made, Refused),
        (LLAMA, Instructed, Instructed),
        ("ai21.jamba-1-5-large-v1:0", Instructed, Instructed),
        ("cohere.command-r-plus-v1:0", Instructed, Instructed),
    ] {
        assert_eq!(way(model, count()), by_schema, "{model}");
        assert_eq!(way(model, ResponseFormat::json_schema("count", map.clone())), open, "{model}");
        assert_eq!(way(model, object()), open, "{model}");
    }
}

#[test]
fn the_form_that_no_tool_can_give_is_refused() {
    let list = ResponseFormat::json_schema("list", json!({"type": "array"}));
    let error = body(&Request::from("hi").with_response_format(list).with_model(NOVA)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature));
    for lacking in [json!(false), json!({"enabled": false})] {
        let mut request = formed(NOVA);
        request.model = Some(ModelRef::new(NOVA).with_capability("tools", lacking));
        assert_eq!(body(&request).unwrap_err().kind(), UNFORMED);
    }
    let on = json!({"type": "enabled", "budget_tokens": 2000});
    for options in [
        json!({"thinking": on}),
        json!({"additional_model_request_fields": {"thinking": on}}),
        json!({"additionalModelRequestFields": {"thinking": on}}),
    ] {
        let thinking = with_options(&options).with_response_format(count());
        let error = body(&thinking.clone().with_model(OLDER_CLAUDE)).unwrap_err();
        assert_eq!(error.kind(), UNFORMED, "it cannot think while it is made to call a tool");
        assert!(body(&thinking.with_model("us.anthropic.claude-opus-5")).is_ok());
    }
}

/// `extraneous key [definitions] is not permitted`
#[test]
fn nova_is_given_schemas_with_nothing_else_on_top() {
    let day = json!({"type": "string", "description": "A day."});
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Trip", "description": "A trip.",
        "type": "object", "additionalProperties": false, "required": ["from"],
        "properties": {
            "from": {"$ref": "#/$defs/day", "description": "The first."},
            "until": {"description": "The last.", "$ref": "#/$defs/day"},
            "days": {"type": "array", "items": {"$ref": "#/$defs/day"}},
            "then": {"$ref": "#/$defs/stay"},
            "title": {"type": "string"},
        },
        "$defs": {"day": day, "stay": {"type": "object", "properties": {"next": {"$ref": "#/$defs/stay"}}}},
    });
    let form = ResponseFormat::json_schema("trip", schema.clone());
    let tool = ToolSpec::new("plan", "Plans.", schema.clone());
    let sent = |model: &str, request: Request| {
        let sent = body(&request.with_model(model)).unwrap();
        sent["toolConfig"]["tools"][0]["toolSpec"].clone()
    };
    let asked = Request::from("hi");
    let formed = sent(NOVA, asked.clone().with_response_format(form));
    let expected = json!({
        "type": "object", "required": ["from"],
        "properties": {
            "from": {"type": "string", "description": "The first."},
            "until": {"type": "string", "description": "The last."},
            "days": {"type": "array", "items": day},
            "then": {"type": "object", "properties": {"next": {}}},
            "title": {"type": "string"},
        },
    });
    assert_eq!(formed["inputSchema"]["json"], expected);
    let described = formed["description"].as_str().unwrap();
    assert!(described.ends_with("\n\nA trip."), "{described}");
    let called = sent(NOVA, asked.clone().with_tools([tool.clone()]));
    assert_eq!(called["inputSchema"]["json"], expected);
    assert_eq!(called["description"], "Plans.\n\nA trip.");
    let root = json!({"$ref": "#/$defs/trip", "$defs": {"trip": expected, "more": {}}});
    let referring = ResponseFormat::json_schema("trip", root);
    let formed = sent(NOVA, asked.clone().with_response_format(referring));
    assert_eq!(formed["inputSchema"]["json"], expected);
    let elsewhere = sent(LLAMA, asked.with_tools([tool]));
    let mut any = schema;
    any.as_object_mut().unwrap().shift_remove("$schema");
    assert_eq!(elsewhere["inputSchema"]["json"], any, "others take any");
    assert_eq!(elsewhere["description"], "Plans.");
}

#[test]
fn schemas_for_nova_do_not_grow_beyond_bounds() {
    // Each type has two members of the next, so that the last would be written 2^40 times.
    let mut types = serde_json::Map::new();
    for n in 0..40 {
        let next = json!({"$ref": format!("#/$defs/t{}", n + 1)});
        let of_two = json!({"type": "object", "properties": {"a": next, "b": next}});
        types.insert(format!("t{n}"), of_two);
    }
    let first = json!({"$ref": "#/$defs/t0"});
    let schema = json!({"type": "object", "properties": {"a": first}, "$defs": types});
    let request = Request::from("hi").with_tools([ToolSpec::new("plan", "Plans.", schema)]);
    let sent = body(&request.with_model(NOVA)).unwrap().to_string();
    assert!(sent.contains("properties") && !sent.contains("$ref"), "{sent}");
    assert!(sent.len() < 200_000, "{} bytes", sent.len());
}

#[test]
fn a_form_is_given_after_the_tools_were_called() {
    let called = Message::assistant_parts([Part::tool_call(ToolCall::new("c", "search", "{}"))]);
    let conversation = [Message::user("hi"), called, Message::tool_result("c", "found")];
    let names = |sent: &Value| -> Vec<Value> {
        let tools = sent["toolConfig"]["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["toolSpec"]["name"].clone()).collect()
    };
    for (model, choice) in [(NOVA, Some(json!({"tool": {"name": FORM}}))), (LLAMA, None)] {
        let request =
            Request::new(conversation.clone()).with_response_format(count()).with_model(model);
        let needs = |request: &Request| Bedrock::default().needs_structured_finalize(request);
        assert!(!needs(&request), "{model}");
        let both = request.clone().with_tools([search()]);
        assert!(needs(&both), "{model}");
        let sent = body(&request).unwrap();
        assert_eq!(names(&sent), ["search", FORM], "{model}");
        assert_eq!(sent["toolConfig"].get("toolChoice"), choice.as_ref(), "{model}");
        let barred = both.with_tool_choice(ToolChoice::None);
        assert!(!needs(&barred), "{model}");
        // The form alone can keep it from the others.
        let sent = body(&barred).ok();
        let kept = sent.map(|sent| sent["toolConfig"]["toolChoice"].clone());
        assert_eq!(kept, choice, "{model}");
        let any = barred.with_response_format(ResponseFormat::JsonObject);
        let error = body(&any.with_model("mistral.mistral-large-3-675b-instruct")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature));
    }
    let thought = Part::Reasoning {
        text: "hm".to_owned(),
        signature: Some("sig".to_owned()),
        redacted: false,
        data: None,
    };
    let thoughtful = [Message::user("hi"), Message::assistant_parts([thought, Part::text("well")])];
    for (model, blocks) in [("us.anthropic.claude-haiku-5-5", 1), (OLDER_CLAUDE, 2)] {
        let request = Request::new(thoughtful.clone())
            .with_response_format(ResponseFormat::JsonObject)
            .with_model(model);
        let sent = body(&request).unwrap();
        let content = sent["messages"][1]["content"].as_array().unwrap();
        assert_eq!(content.len(), blocks, "{model}: a tool more outdates thoughts that are bound");
    }
}

#[test]
fn the_answer_that_a_tool_was_made_for_is_text() {
    let lines = [start(0, FORM), input(0, "{\"n\""), input(0, ": 1}"), close(0)];
    let told = told(&formed(NOVA), &lines, "tool_use");
    let names: Vec<&str> = told.iter().map(Event::type_name).collect();
    let expected = [
        "message_started",
        "text_delta",
        "text_delta",
        "text_completed",
        "usage",
        "message_completed",
    ];
    assert_eq!(names, expected);
    let response = folded(&told);
    assert_eq!(response.text(), "{\"n\": 1}");
    assert_eq!(response.finish_reason, Some(FinishReason::Stop));
    assert_eq!(response.raw_finish_reason.as_deref(), Some("tool_use"));
    assert_eq!(response.metadata["structured_output_tool"], true);
}

#[test]
fn the_answer_stands_alone_and_may_be_cut_off_empty_or_in_words() {
    use FinishReason::{ContentFilter, Length, Stop, ToolCalls};
    let sure = || [text(0, "Su"), text(0, "re"), close(0)];
    let form = |pieces: &[&str]| {
        let pieces = pieces.iter().map(|piece| input(1, piece));
        [start(1, FORM)].into_iter().chain(pieces).chain([close(1)]).collect::<Vec<_>>()
    };
    let again = |piece: &str| vec![start(2, FORM), input(2, piece), close(2)];
    let other = [start(2, "search"), input(2, "{}"), close(2)];
    for (lines, reason, said, finish, is_form) in [
        ([&sure()[..], &form(&["{\"n\"", ":1}"])].concat(), "tool_use", "{\"n\":1}", Stop, true),
        // Some models do not say that they called.
        (form(&["{\"n\":1}"]), "end_turn", "{\"n\":1}", Stop, true),
        (form(&[]), "tool_use", "{}", Stop, true),
        (form(&["{\"n\""]), "max_tokens", "{\"n\"", Length, true),
        (form(&[]), "max_tokens", "", Length, true),
        // Once more is not another answer.
        (
            [form(&["{\"n\"", ":1}"]), again("{\"n\":2}")].concat(),
            "tool_use",
            "{\"n\":1}",
            Stop,
            true,
        ),
        ([form(&["{\"n\":1}"]), again("")].concat(), "tool_use", "{\"n\":1}", Stop, true),
        (form(&["{\"n\""]), "content_filtered", "{\"n\"", ContentFilter, true),
        (sure().to_vec(), "end_turn", "Sure", Stop, false),
        (sure()[..2].to_vec(), "end_turn", "Sure", Stop, false),
        (sure().to_vec(), "max_tokens", "Sure", Length, false),
        ([&form(&["{}"])[..], &other].concat(), "tool_use", "{}", ToolCalls, false),
    ] {
        let response = folded(&told(&formed(NOVA), &lines, reason));
        assert_eq!((response.text().as_ref(), response.finish_reason), (said, Some(finish)));
        let is_told = response.metadata.contains_key("structured_output_tool");
        assert_eq!(is_told, is_form, "{lines:?}");
    }
    // Without a form to give, it is a call like any other.
    let lines = form(&["{\"n\":1}"]);
    let response = folded(&told(&Request::from("hi").with_model(NOVA), &lines, "tool_use"));
    assert_eq!(response.tool_calls().next().map(|call| call.name.as_str()), Some(FORM));
    assert_eq!(response.finish_reason, Some(ToolCalls));
}

#[test]
fn what_is_said_beside_the_answer_is_not_lost() {
    let thought = json!({"reasoningContent": {"text": "hm"}});
    let lines = [
        text(0, "Let me "),
        delta(0, &thought),
        text(0, "see."),
        start(1, FORM),
        input(1, "{\"n\":1}"),
    ];
    let told = told(&formed(NOVA), &lines, "tool_use");
    let raw = told.iter().filter_map(|event| match event {
        Event::RawChunk { chunk } => chunk["text"].as_str(),
        _ => None,
    });
    assert_eq!(raw.collect::<Vec<_>>(), ["Let me ", "see."]);
    let response = folded(&told);
    assert_eq!((response.text().as_ref(), response.message.parts().len()), ("{\"n\":1}", 2));
}

#[test]
fn the_answer_goes_back_as_text_and_the_form_is_asked_for_again() {
    let lines = [start(0, FORM), input(0, "{\"n\": 1}"), close(0)];
    let response = folded(&told(&formed(NOVA), &lines, "tool_use"));
    let thread =
        [Message::user("hi"), Message::clone(&response.message), Message::user("and then?")];
    let next = Request::new(thread).with_response_format(count()).with_model(NOVA);
    let sent = body(&next).unwrap();
    let answer = json!({"role": "assistant", "content": [{"text": "{\"n\": 1}"}]});
    assert_eq!(sent["messages"][1], answer);
    assert_eq!(sent["toolConfig"]["toolChoice"], json!({"tool": {"name": FORM}}));
    assert_eq!(sent["toolConfig"]["tools"].as_array().unwrap().len(), 1);
    // Who has it as a call, of another program's, is not to get it twice.
    let call = Message::assistant_parts([Part::tool_call(ToolCall::new("c", FORM, "{}"))]);
    let given = Request::new([Message::user("hi"), call, Message::tool_result("c", "thanks")]);
    let sent = body(&given.with_response_format(count()).with_model(NOVA)).unwrap();
    assert_eq!(sent["toolConfig"].get("toolChoice"), None);
}

/// `This model doesn't support tool use in streaming mode.`
#[test]
fn a_model_that_does_not_stream_its_calls_is_asked_for_a_whole_answer() {
    let operation = |request: Request, model: &str| {
        let path = Bedrock::default().path(&request.with_model(model));
        path.rsplit('/').next().unwrap().to_owned()
    };
    let asked = || Request::from("hi");
    let call = Message::assistant_parts([Part::tool_call(ToolCall::new("c", "search", "{}"))]);
    let barred = asked().with_tool_choice(ToolChoice::None).with_tools([search()]);
    for (request, whole) in [
        (asked(), false),
        (barred, false),
        (asked().with_tools([search()]), true),
        (asked().with_response_format(count()), true),
        (Request::new([call, Message::tool_result("c", "found")]), true),
    ] {
        let expected = if whole { "converse" } else { "converse-stream" };
        assert_eq!(operation(request.clone(), LLAMA), expected, "{request:?}");
        assert_eq!(operation(request, NOVA), "converse-stream");
    }
    let called = asked().with_tools([search()]);
    for model in
        ["writer.palmyra-x5-v1:0", "mistral.mistral-large-2407-v1:0", "us.deepseek.r1-v1:0"]
    {
        assert_eq!(operation(called.clone(), model), "converse", "{model}");
    }
    let later = "mistral.mistral-large-3-675b-instruct";
    assert_eq!(operation(called.clone(), later), "converse-stream");
    assert_eq!(operation(called, "my-profile"), "converse-stream");
}

#[tokio::test]
async fn an_answer_of_a_form_comes_over_the_wire_in_pieces_or_whole() {
    let server = TestServer::start(|received| match received.path.rsplit('/').next() {
        Some("converse") => Reply::json(200, whole().to_string()),
        _ => {
            let lines = [start(0, FORM), input(0, "{\"n\""), input(0, ": 1}"), close(0)];
            Reply::stream("application/vnd.amazon.eventstream", [stream(&lines, "tool_use")])
        }
    });
    let server = server.await.unwrap();
    for (model, path, said) in [
        (NOVA, "converse-stream", "{\"n\": 1}"),
        (OLDER_CLAUDE, "converse-stream", "{\"n\": 1}"),
        (LLAMA, "converse", "{\"n\":1}"),
    ] {
        let response = call(server.url(), formed(&format!("bedrock:{model}"))).await;
        assert_eq!(
            (response.text().as_ref(), response.finish_reason),
            (said, Some(FinishReason::Stop))
        );
        let received = server.received().pop().unwrap();
        assert!(received.path.ends_with(&format!("/{path}")), "{}", received.path);
        let accepts = received.headers.iter().find(|(name, _)| name == "accept");
        assert!(accepts.is_some_and(|(_, types)| types.contains("application/json")));
        assert_eq!(received.body["toolConfig"]["tools"][0]["toolSpec"]["name"], FORM);
    }
}

#[test]
fn a_whole_answer_is_text_too() {
    let read = |content: Value, reason: &str| {
        let mut answer = whole();
        answer["output"]["message"]["content"] = content;
        answer["stopReason"] = reason.into();
        let answer = answer.to_string();
        let (told, read) =
            events(&Bedrock::default(), &formed(LLAMA), Delivery::Whole, [answer.as_bytes()]);
        assert_eq!(read, Ok(()));
        let response = folded(&told);
        (response.text().into_owned(), response.finish_reason, response.tool_calls().count())
    };
    let form = |input: Value| json!({"toolUse": {"toolUseId": "t", "name": FORM, "input": input}});
    let stop = Some(FinishReason::Stop);
    for (content, reason, said) in [
        (json!([{"text": "Sure."}, form(json!({"n": 1}))]), "tool_use", "{\"n\":1}"),
        (json!([form(json!("{\"n\": 1}"))]), "tool_use", "{\"n\": 1}"),
        (json!([form(json!({}))]), "tool_use", "{}"),
        (json!([form(json!({"n": 1})), form(json!({"n": 2}))]), "tool_use", "{\"n\":1}"),
        (json!([{"text": "Sure."}]), "end_turn", "Sure."),
        (
            json!([{"citationsContent": {"content": [{"text": "Su"}, {"text": "re."}]}}]),
            "end_turn",
            "Sure.",
        ),
    ] {
        assert_eq!(read(content, reason), (said.to_owned(), stop, 0));
    }
}

fn count() -> ResponseFormat {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    ResponseFormat::json_schema("count", schema)
}

fn formed(model: &str) -> Request {
    Request::from("hi").with_response_format(count()).with_model(model)
}

fn body(request: &Request) -> Result<Value> {
    Bedrock::default().body(request, &ModelCall::default())
}

fn start(index: u64, name: &str) -> String {
    let call = json!({"toolUse": {"toolUseId": "t", "name": name}});
    format!("contentBlockStart {}", json!({"contentBlockIndex": index, "start": call}))
}

fn delta(index: u64, delta: &Value) -> String {
    format!("contentBlockDelta {}", json!({"contentBlockIndex": index, "delta": delta}))
}

fn input(index: u64, piece: &str) -> String {
    delta(index, &json!({"toolUse": {"input": piece}}))
}

fn text(index: u64, piece: &str) -> String {
    delta(index, &json!({"text": piece}))
}

fn close(index: u64) -> String {
    format!("contentBlockStop {}", json!({"contentBlockIndex": index}))
}

/// These events between a beginning and an end.
fn stream(lines: &[String], reason: &str) -> Vec<u8> {
    let begin = r#"messageStart {"role": "assistant"}"#.to_owned();
    let end = [
        format!("messageStop {}", json!({"stopReason": reason})),
        r#"metadata {"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}}"#.to_owned(),
    ];
    frames::stream([&[begin], lines, &end].concat().iter().map(String::as_str))
}

/// An answer that comes in one piece.
fn whole() -> Value {
    let call = json!({"toolUse": {"toolUseId": "t", "name": FORM, "input": {"n": 1}}});
    json!({
        "output": {"message": {"role": "assistant", "content": [call]}},
        "stopReason": "tool_use",
        "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
    })
}

fn told(request: &Request, lines: &[String], reason: &str) -> Vec<Event> {
    let body = stream(lines, reason);
    let (events, read) =
        events(&Bedrock::default(), request, Delivery::Streamed, [body.as_slice()]);
    assert_eq!(read, Ok(()));
    events
}

async fn call(url: &str, request: Request) -> Response {
    let adapter = HttpAdapter::named("bedrock").unwrap().with_base_url(url).unwrap();
    let key = Some(SecretString::from("key"));
    let mut to = ModelCall::default();
    to.api_key = key;
    let stream = Arc::new(adapter).open(request, to).await.unwrap();
    let events: Vec<Event> = stream.map(|event| event.unwrap()).collect().await;
    folded(&events)
}
