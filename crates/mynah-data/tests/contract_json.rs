//! The one JSON form of every value.

use mynah_data::{
    AdapterReason, ChatResult, EngineReason, Error, ErrorKind, Event, FieldError, FinishReason,
    Halt, HaltReason, Image, ImageSource, Message, ModelRef, Operation, Part, Pricing, PromptCache,
    Request, Response, ResponseFormat, Session, SessionReason, SessionState, StepResult,
    StreamReason, Thread, ToolCall, ToolChoice, ToolOutcome, ToolReason, ToolSpec, Usage,
    ValidationReason, decode,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::common::{call, calling, map, refused, through_json};

#[test]
fn j01_j02_each_type_has_one_form_with_its_empty_members() {
    assert_form(
        &Message::user("hi"),
        r#"{"role":"user","content":"hi","name":null,"tool_call_id":null,"metadata":{}}"#,
    );
    assert_form(
        &Message::tool_result("c0", "x").with_name("echo").with_metadata("k", 1),
        r#"{"role":"tool","content":"x","name":"echo","tool_call_id":"c0","metadata":{"k":1}}"#,
    );
    assert_form(
        &ToolCall::new("c0", "echo", r#"{"x": 1}"#),
        r#"{"id":"c0","name":"echo","arguments":{"x":1},"raw_arguments":"{\"x\": 1}"}"#,
    );
    assert_form(
        &ToolSpec::new("echo", "d", json!({})),
        r#"{"name":"echo","description":"d","schema":{},"manual":false,"idempotent":false,"max_attempts":1,"timeout_ms":null,"metadata":{}}"#,
    );
    assert_form(
        &Request::default(),
        r#"{"model":null,"messages":[],"tools":[],"tool_choice":null,"temperature":null,"max_tokens":null,"stream":false,"response_format":null,"structured_finalize":false,"options":{},"prompt_cache":null,"metadata":{}}"#,
    );
    assert_form(
        &Usage::new(9, None),
        r#"{"input_tokens":9,"output_tokens":null,"cached_input_tokens":null,"cache_write_tokens":null,"reasoning_tokens":null,"total_tokens":null,"input_cost":null,"output_cost":null,"total_cost":null,"tool_usage":{},"extra":{}}"#,
    );
    assert_form(&Thread::new(), r#"{"messages":[],"metadata":{}}"#);
    assert_form(
        &ModelRef::from(("openai", "gpt-x")).with_pricing(Pricing::new(1.0, 2.0)),
        r#"{"provider":"openai","id":"gpt-x","capabilities":{},"limits":{},"pricing":{"input":1.0,"output":2.0},"metadata":{}}"#,
    );
    assert_form(&PromptCache::default(), r#"{"key":null,"retention":"short"}"#);
    assert_form(
        &ChatResult::new(Thread::new(), HaltReason::MaxTurns),
        r#"{"thread":{"messages":[],"metadata":{}},"final_response":null,"steps":[],"halted_reason":"max_turns","pending_question":null,"pending_tool_call_id":null,"metadata":{}}"#,
    );
    assert_form(
        &Session::new(),
        r#"{"id":null,"thread":{"messages":[],"metadata":{}},"status":"idle","pending_tool_calls":[],"pending_question":null,"pending_tool_call_id":null,"context":{},"metadata":{},"turn_metadata":{}}"#,
    );
    assert_form(
        &Error::adapter(AdapterReason::RateLimited).with("retry_after_ms", 5),
        r#"{"type":"adapter_error","reason":"rate_limited","message":"adapter error: rate_limited","metadata":{"retry_after_ms":5}}"#,
    );
}

#[test]
fn j02_text_and_calls_of_a_response_stand_beside_its_message() {
    let parts = [Part::text("a"), Part::tool_call(call("c0"))];
    let mut response = Response::new(Message::assistant_parts(parts));
    response.finish_reason = Some(FinishReason::ToolCalls);
    let value = serde_json::to_value(through_json(&response)).unwrap();
    assert_eq!(value["output_text"], "a");
    assert_eq!(value["tool_calls"], json!([call("c0")]));
    assert_eq!(value["finish_reason"], "tool_calls");
    let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "id",
            "request_id",
            "model",
            "message",
            "output_text",
            "tool_calls",
            "finish_reason",
            "raw_finish_reason",
            "usage",
            "raw",
            "metadata",
        ]
    );
}

#[test]
fn j02_parts_of_every_kind_have_a_form() {
    let message = Message::assistant_parts([
        Part::Reasoning {
            text: "hm".to_owned(),
            signature: Some("sig".to_owned()),
            redacted: true,
            data: Some(json!({"id": "rs_1"})),
        },
        Part::text("a"),
        Part::image(Image::from_url("u")),
        Part::tool_call(call("c0")),
        Part::Refusal { text: "no".to_owned() },
    ]);
    let content = json!([
        {"type": "reasoning", "text": "hm", "signature": "sig", "redacted": true, "data": {"id": "rs_1"}},
        {"type": "text", "text": "a"},
        {"type": "image", "image": {"source": {"type": "url", "value": "u"}, "mime_type": null, "width": null, "height": null, "metadata": {}}, "detail": "auto"},
        {"type": "tool_call", "id": "c0", "name": "echo", "arguments": {}, "raw_arguments": "{}"},
        {"type": "refusal", "text": "no"},
    ]);
    assert_eq!(serde_json::to_value(through_json(&message)).unwrap()["content"], content);
}

#[test]
fn j02_outcomes_of_a_tool_have_the_form_of_a_scenario() {
    assert_form(&ToolOutcome::Ok(Value::Null), r#"{"ok":null}"#);
    assert_form(&ToolOutcome::error("no"), r#"{"error":"no"}"#);
    assert_form(&ToolOutcome::transient(5), r#"{"error":5,"transient":true}"#);
    assert_form(&ToolOutcome::ask("?"), r#"{"ask_user":"?","opts":{}}"#);
    assert_form(&ToolOutcome::halt("done", 1), r#"{"halt":"done","result":1}"#);
    for wrong in [
        r#"{}"#,
        r#"{"ok":1,"error":2}"#,
        r#"{"ok":1,"transient":true}"#,
        r#"{"error":1,"transient":"yes"}"#,
        r#"{"error":1,"transient":null}"#,
        r#"{"ask_user":"?","result":1}"#,
        r#"{"ask_user":"?","opts":null}"#,
        r#"{"halt":"done","opts":{}}"#,
        r#"{"result":1}"#,
        r#"5"#,
    ] {
        refused::<ToolOutcome>(wrong);
    }
}

#[test]
fn j02_a_call_may_be_written_with_its_arguments_or_with_their_text() {
    let read = |text: &str| serde_json::from_str::<ToolCall>(text).unwrap();
    let raw = read(r#"{"id":"c0","name":"echo","raw_arguments":"{\"x\": 1}"}"#);
    assert_eq!(raw, ToolCall::new("c0", "echo", "{\"x\": 1}"));
    let value = read(r#"{"id":"c0","name":"echo","arguments":{"x":1}}"#);
    assert_eq!(value, ToolCall::new("c0", "echo", "{\"x\":1}"));
    let neither = read(r#"{"id":"c0","name":"echo"}"#);
    assert_eq!(neither, ToolCall::new("c0", "echo", "{}"));
    // Hand-written messages may hold their calls beside the content.
    let beside = r#"{"role":"assistant","content":"","tool_calls":[{"id":"c0","name":"echo"}]}"#;
    assert_eq!(serde_json::from_str::<Message>(beside).unwrap(), calling(&["c0"]));
}

#[test]
fn j03_values_inside_values_come_back_as_what_they_were() {
    let parts = [Part::text("a"), Part::tool_call(call("c0"))];
    let thread = Thread::from("hi")
        .with(Message::assistant_parts(parts))
        .with(Message::tool_result("c0", json!({"b": 1.0, "a": -0.0})));
    let response = Response::new(thread.messages.get(1).unwrap().clone());
    let mut step = StepResult::new(thread.clone(), response.clone());
    step.tool_results.extend(thread.messages.get(2).cloned());
    let mut result = ChatResult::new(thread, HaltReason::Completed);
    result.steps.push(step);
    result.final_response = Some(response);
    through_json(&Event::ChatCompleted { result: Box::new(result) });
}

#[test]
fn j04_text_that_is_not_json_is_told_from_json_that_does_not_fit() {
    for text in ["", "{", "nope", "{\"role\":\"user\",", "\u{0}"] {
        let error = refused::<Message>(text);
        assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidJson));
        assert_eq!(error.field_errors(), [FieldError::new("json", "malformed")], "{text}");
    }
    let error = refused::<Message>("{}");
    assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidJson));
    assert_eq!(error.field_errors(), [FieldError::new("data", "malformed_struct")]);
}

#[test]
fn j05_j06_j08_j09_json_of_another_shape_is_refused() {
    for text in [r#"{"a":1}"#, "[1]", "[]", "null", "5", r#""user""#] {
        assert!(refused::<Message>(text).is_validation(), "{text}");
        assert!(refused::<Session>(text).is_validation(), "{text}");
        assert!(refused::<Event>(text).is_validation(), "{text}");
        assert!(refused::<Error>(text).is_validation(), "{text}");
    }
}

#[test]
fn j10_an_unknown_type_of_event_or_part_is_refused_by_name() {
    let error = refused::<Event>(r#"{"type":"telepathy","delta":"x"}"#);
    assert!(error.to_string().contains("unknown variant `telepathy`"), "{error}");
    let error = refused::<Part>(r#"{"type":"video"}"#);
    assert!(error.to_string().contains("unknown variant `video`"), "{error}");
}

#[test]
fn j11_unknown_words_of_closed_sets_are_refused() {
    refused::<Message>(r#"{"role":"wizard","content":"x"}"#);
    refused::<FinishReason>(r#""exploded""#);
    refused::<Session>(r#"{"status":"sleeping"}"#);
    refused::<Event>(
        r#"{"type":"message_completed","message":{"role":"assistant","content":""},"finish_reason":"exploded"}"#,
    );
}

#[test]
fn j11_every_reason_of_every_kind_comes_back() {
    for kind in kinds() {
        let error = through_json(&Error::new(kind));
        assert_eq!((error.kind(), error.reason()), (kind, kind.reason()));
        through_json(&Error::new(kind).with_message("said otherwise").with_provider("p"));
    }
}

#[test]
fn an_error_that_spells_out_its_default_message_is_the_same_error() {
    let plain = Error::adapter(AdapterReason::RateLimited);
    let spelled = plain.clone().with_message(plain.to_string());
    assert_eq!(through_json(&spelled), plain);
}

#[test]
fn j12_the_bytes_of_an_image_are_base64_inside_its_source() {
    let bytes: Vec<u8> = (0..=255).collect();
    let image = through_json(&Image::from_binary(bytes.clone(), "image/png"));
    assert_eq!(image.source, ImageSource::Binary(bytes));
    let value = serde_json::to_value(Image::from_binary(*b"hi", "image/png")).unwrap();
    assert_eq!(value["source"], json!({"type": "binary", "value": "aGk="}));
    for image in [Image::from_url("u"), Image::from_file("/x.png"), Image::from_base64("%%", "m")] {
        through_json(&image);
    }
}

#[test]
fn j13_bytes_that_are_not_base64_are_refused() {
    let error = refused::<Image>(r#"{"source":{"type":"binary","value":"%%%"}}"#);
    assert!(error.to_string().contains("invalid_base64"), "{error}");
}

#[test]
fn j15_a_tool_choice_is_a_word_a_name_or_a_providers_own_form() {
    assert_form(&ToolChoice::Auto, r#""auto""#);
    assert_form(&ToolChoice::None, r#""none""#);
    assert_form(&ToolChoice::Required, r#""required""#);
    assert_form(&ToolChoice::Tool("weather".to_owned()), r#""weather""#);
    let own = map(json!({"type": "function", "function": {"name": "weather"}}));
    assert_form(&ToolChoice::Other(own), r#"{"type":"function","function":{"name":"weather"}}"#);
    let spelled: ToolChoice = serde_json::from_str(r#"{"tool":"weather"}"#).unwrap();
    assert_eq!(spelled, ToolChoice::Tool("weather".to_owned()));
    let more = map(json!({"tool": "weather", "strict": true}));
    through_json(&ToolChoice::Other(more));
    refused::<ToolChoice>("5");
}

#[test]
fn j16_a_response_format_comes_back_typed() {
    assert_form(&ResponseFormat::Text, r#""text""#);
    assert_form(&ResponseFormat::JsonObject, r#"{"type":"json_object"}"#);
    let schema = json!({"z": 1, "a": {"y": 2, "b": 3}});
    assert_form(
        &ResponseFormat::json_schema("p", schema.clone()),
        r#"{"type":"json_schema","name":"p","schema":{"z":1,"a":{"y":2,"b":3}},"strict":true}"#,
    );
    let unsaid = json!({"type": "json_schema", "name": "p", "schema": schema});
    let unsaid: ResponseFormat = serde_json::from_value(unsaid).unwrap();
    assert_eq!(unsaid, ResponseFormat::json_schema("p", schema));
    // What says more than the typed form can hold is passed on whole.
    let more = map(json!({"type": "json_object", "x": 1}));
    assert_form(&ResponseFormat::Other(more), r#"{"type":"json_object","x":1}"#);
    let more = map(json!({"type": "json_schema", "name": "p", "schema": {}, "strict": "very"}));
    through_json(&ResponseFormat::Other(more));
    let more = map(json!({"type": "json_schema", "name": "p", "schema": {}, "description": "d"}));
    through_json(&ResponseFormat::Other(more));
}

#[test]
fn j21_members_of_metadata_keep_their_names_and_their_order() {
    let order = json!({"z": 1, "a": {"y": 2, "b": [{"x": 3, "c": 4}]}, "m": null});
    let text = order.to_string();
    let metadata = map(order.clone());
    let mut request = Request::default().with_options(metadata.clone());
    request.metadata = metadata.clone();
    let mut session = Session::new().with_context(metadata.clone());
    session.metadata = metadata.clone();
    session.state = SessionState::Failed { error: order.clone() };
    let mut usage = Usage::default();
    usage.extra = metadata.clone().into();
    let forms = [
        form(&Message::user("x").with_metadata("k", order.clone())),
        form(&Part::Text { text: "x".to_owned(), metadata: metadata.clone() }),
        form(&Part::tool_call(ToolCall::from_value("c0", "echo", order.clone()))),
        form(&ToolSpec::new("echo", "d", order.clone())),
        form(&request),
        form(&session),
        form(&usage),
        form(&Error::adapter(AdapterReason::Unknown).with("k", order.clone())),
        form(&ToolOutcome::ask_with("?", metadata)),
        form(&Event::RawChunk { chunk: order.clone() }),
        form(&Event::tool_execution_started("c0", "echo", order)),
    ];
    for form in forms {
        assert!(form.contains(&text), "{form}");
    }
}

#[test]
fn j22_j23_calls_and_their_signatures_survive_a_stored_session() {
    let mut signed = ToolCall::new("c0", "echo", r#"{ "x": 1.0 }"#);
    signed.metadata = map(json!({"thoughtSignature": "sig"}));
    let asked = Message::assistant_parts([
        Part::Reasoning {
            text: "hm".to_owned(),
            signature: Some("s".to_owned()),
            redacted: false,
            data: None,
        },
        Part::tool_call(signed.clone()),
    ]);
    let session = Session::from("hi").append(asked.clone()).append_tool_result("c0", "1");
    let loaded = through_json(&session);
    let message = loaded.thread.messages.get(1).unwrap();
    assert_eq!(message.as_ref(), &asked);
    assert_eq!(message.tool_calls().collect::<Vec<_>>(), [&signed]);
}

#[test]
fn j24_every_error_has_a_json_form() {
    // A cause is text or plain data by its type; nothing else can be put into an error.
    let cause = serde_json::from_str::<Value>("{").unwrap_err();
    let error = Error::adapter(AdapterReason::NetworkError)
        .with_message("connection reset \u{0}\u{fffd}")
        .with("cause", cause.to_string())
        .with("status", 502);
    through_json(&error);
    assert_eq!(serde_json::to_value(&error).unwrap(), error.to_value());
}

#[test]
fn j25_a_question_keeps_its_options() {
    let opts = json!({"choices": ["yes", "no"], "mask": true});
    let mut session = Session::awaiting_user(Thread::from("hi"), "Sure?", Some("c0".to_owned()));
    session.turn_metadata = map(json!({"ask_user_opts": opts}));
    assert_eq!(through_json(&session).turn_metadata["ask_user_opts"], opts);
    through_json(&Halt::AskUser {
        tool_call_id: "c0".to_owned(),
        question: "Sure?".to_owned(),
        opts: map(opts),
    });
}

#[test]
fn j26_the_broken_rules_of_a_validation_come_back() {
    let errors = vec![
        FieldError::new("role", "unknown").under(["thread".into(), "messages".into(), 1.into()]),
        FieldError::new("7", "a_field_named_like_an_index"),
    ];
    let error = Error::validation(ValidationReason::InvalidSession, errors.clone());
    assert_eq!(through_json(&error).field_errors(), errors);
}

#[test]
fn j27_a_halt_reason_of_a_tools_own_comes_back() {
    let reason = HaltReason::from("plan_submitted".to_owned());
    let result = through_json(&ChatResult::new(Thread::new(), reason));
    assert_eq!(result.halted_reason, HaltReason::Custom("plan_submitted".to_owned()));
    for reason in HaltReason::RESERVED {
        assert_eq!(through_json(reason), *reason);
    }
}

#[test]
fn j28_a_session_in_any_status_goes_on_after_loading_as_before() {
    let thread = Thread::from("hi").with(calling(&["c0", "c1"]));
    let error = Error::adapter(AdapterReason::RateLimited).to_value();
    let mut failed = Session::from("hi");
    failed.state = SessionState::Failed { error };
    let mut completed = Session::from("hi").append(Message::assistant("hello"));
    completed.state = SessionState::Completed;
    let sessions = [
        Session::from("hi").with_id("s"),
        Session::awaiting_user(Thread::from("hi"), "?", Some("c0".to_owned())),
        Session::awaiting_tools(thread, vec![call("c0"), call("c1")]),
        completed,
        failed,
    ];
    for session in sessions {
        let loaded = through_json(&session);
        let text = serde_json::to_string(&session).unwrap();
        assert_eq!(decode::session(&text), Ok(session.clone()));
        for operation in [Operation::Start, Operation::Reply, Operation::Continue, Operation::Step]
        {
            assert_eq!(loaded.check(operation, None), session.check(operation, None));
        }
        assert_eq!(loaded.submit_tool_result("c0", 1), session.submit_tool_result("c0", 1));
        assert_eq!(loaded.recover(), session.recover());
    }
}

#[test]
fn numbers_come_back_to_the_last_bit() {
    for number in [0.1 + 0.2, 5e-324, f64::MAX, f64::MIN_POSITIVE, -0.0, 1.0, 1e21, 1.0 / 3.0] {
        let mut usage = Usage::default();
        usage.total_cost = Some(number);
        let back = through_json(&usage).total_cost.unwrap();
        assert_eq!(back.to_bits(), number.to_bits(), "{number:e}");
        // Enums with a tag are read by way of a buffer.
        let event = through_json(&Event::RawChunk { chunk: json!([number]) });
        assert_eq!(serde_json::to_value(event).unwrap()["chunk"][0].as_f64(), Some(number));
    }
    let whole = json!([u64::MAX, i64::MIN, 9_007_199_254_740_993_u64]);
    through_json(&Event::RawChunk { chunk: whole.clone() });
    assert_eq!(form(&whole), "[18446744073709551615,-9223372036854775808,9007199254740993]");
}

#[test]
fn arguments_of_any_depth_can_be_stored() {
    for depth in [1, 60, 90, 118, 119, 120, 121, 122, 126, 127, 128, 5000] {
        let raw = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let call = ToolCall::new("c0", "echo", raw.as_str());
        assert_eq!(call.raw_arguments, raw);
        let session = Session::awaiting_tools(
            Thread::from(Message::assistant_parts([Part::tool_call(call.clone())])),
            vec![call],
        );
        let mut step = StepResult::new(session.thread.clone(), Response::new(Message::user("")));
        step.tool_results.extend(session.thread.messages.last().cloned());
        let mut result = ChatResult::new(session.thread.clone(), HaltReason::ManualToolCalls);
        result.steps.push(step);
        through_json(&session);
        through_json(&Event::ChatCompleted { result: Box::new(result) });
    }
}

fn kinds() -> Vec<ErrorKind> {
    let mut kinds = Vec::new();
    kinds.extend(EngineReason::ALL.iter().copied().map(ErrorKind::Engine));
    kinds.extend(AdapterReason::ALL.iter().copied().map(ErrorKind::Adapter));
    kinds.extend(StreamReason::ALL.iter().copied().map(ErrorKind::Stream));
    kinds.extend(ToolReason::ALL.iter().copied().map(ErrorKind::Tool));
    kinds.extend(SessionReason::ALL.iter().copied().map(ErrorKind::Session));
    kinds.extend(ValidationReason::ALL.iter().copied().map(ErrorKind::Validation));
    kinds
}

#[track_caller]
fn form<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn assert_form<T>(value: &T, expected: &str)
where
    T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    assert_eq!(form(&through_json(value)), expected);
}
