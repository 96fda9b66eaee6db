//! The rules that types alone cannot keep.

use std::fmt::Debug;

use mynah_data::{
    Error, ErrorKind, Image, Message, Part, Request, ResponseFormat, Session, Status, Thread,
    ToolChoice, ToolSpec, ValidationReason, decode, validate,
};
use serde_json::{Value, json};

use crate::common::{calling, map, refused, rules};

#[test]
fn v01_a_request_needs_a_message() {
    let result = validate::request(&Request::default());
    assert_reason(&result, ValidationReason::InvalidRequest);
    assert_eq!(rules(result), ["messages: empty"]);
}

#[test]
fn v02_an_unknown_role_is_named_with_its_place() {
    let list = [json!({"role": "bogus", "content": "x"}), json!({"role": "user", "content": "x"})];
    let result = decode::thread(&list);
    assert_reason(&result, ValidationReason::InvalidThread);
    assert_eq!(rules(result), ["messages.0.role: unknown"]);
}

#[test]
fn v03_a_tool_message_names_its_call() {
    for id in [json!({}), json!({"tool_call_id": null}), json!({"tool_call_id": 5})] {
        let mut value = map(json!({"role": "tool", "content": "x"}));
        value.extend(map(id));
        let value = Value::Object(value);
        let result = decode::message(&value);
        assert_reason(&result, ValidationReason::InvalidMessage);
        assert_eq!(rules(result), ["tool_call_id: required"]);
        refused::<Message>(&value.to_string());
    }
    let named = json!({"role": "tool", "content": "x", "tool_call_id": "c0"});
    assert_eq!(decode::message(&named), Ok(Message::tool_result("c0", "x")));
}

#[test]
fn v04_content_is_text_or_a_list() {
    for content in [json!({"text": "x"}), json!(5), json!(true)] {
        let result = decode::message(&json!({"role": "user", "content": content}));
        assert_reason(&result, ValidationReason::InvalidMessage);
        assert_eq!(rules(result), ["content: invalid_type"]);
    }
}

#[test]
fn v05_a_list_holds_known_parts_only() {
    for part in [json!({"a": 1}), json!({"type": "video"}), json!("text"), json!({"type": 1})] {
        let result = decode::message(&json!({"role": "user", "content": [part]}));
        assert_eq!(rules(result), ["content: invalid_part_type"]);
    }
    // A known part with a wrong inside is wrong JSON, not an unknown part.
    let result = decode::message(&json!({"role": "user", "content": [{"type": "text"}]}));
    assert_reason(&result, ValidationReason::InvalidJson);
    assert!(result.unwrap_err().to_string().contains("missing field `text`"));
}

#[test]
fn v06_text_and_image_parts_are_fine() {
    let parts = [Part::text("look"), Part::image(Image::from_url("https://example.com/x.png"))];
    let message = Message::user_parts(parts);
    assert_eq!(decode::message(&serde_json::to_value(&message).unwrap()), Ok(message.clone()));
    assert_eq!(validate::request(&Request::new([message])), Ok(()));
}

#[test]
fn v07_v08_v09_tool_names_are_short_words_of_their_own() {
    let longest = "a".repeat(64);
    let too_long = "a".repeat(65);
    let table = [
        ("", "name: empty"),
        ("auto", "name: reserved_tool_name"),
        ("none", "name: reserved_tool_name"),
        ("required", "name: reserved_tool_name"),
        (too_long.as_str(), "name: invalid_format"),
        ("two words", "name: invalid_format"),
        ("grüße", "name: invalid_format"),
        ("a.b", "name: invalid_format"),
    ];
    for (name, rule) in table {
        let result = validate::tool(&tool(name));
        assert_reason(&result, ValidationReason::InvalidTool);
        let told = result.as_ref().unwrap_err().to_string();
        assert!(name.is_empty() || told.contains(&format!("{name:?} is ")), "{told}");
        assert_eq!(rules(result), [rule], "{name}");
    }
    for name in ["x", "Auto", "get_weather-2", longest.as_str()] {
        assert_eq!(validate::tool(&tool(name)), Ok(()), "{name}");
    }
}

#[test]
fn v07_the_schema_of_a_tool_is_an_object() {
    let result = validate::tool(&ToolSpec::new("", "d", json!("object")));
    assert_eq!(rules(result), ["name: empty", "schema: not_a_map"]);
}

#[test]
fn v10_two_tools_of_one_name_are_refused() {
    let request = asking().with_tools([tool("a"), tool("b"), tool("a"), tool("a")]);
    assert_eq!(rules(validate::request(&request)), ["tools: duplicate_name"]);
    assert_eq!(validate::request(&asking().with_tools([tool("a"), tool("b")])), Ok(()));
}

#[test]
fn v11_v12_the_temperature_is_a_number_from_0_to_2() {
    for wrong in [2.1, -0.1, f64::NAN, f64::INFINITY, 2.0 + f64::EPSILON * 2.0] {
        let result = validate::request(&asking().with_temperature(wrong));
        assert_eq!(rules(result), ["temperature: out_of_range"], "{wrong}");
    }
    for fine in [0.0, -0.0, 0.5, 2.0] {
        assert_eq!(validate::request(&asking().with_temperature(fine)), Ok(()), "{fine}");
    }
    refused::<Request>(r#"{"messages":[],"temperature":"x"}"#);
    let whole: Request = serde_json::from_str(r#"{"messages":[],"temperature":1}"#).unwrap();
    assert_eq!(whole.temperature, Some(1.0));
}

#[test]
fn v13_a_limit_of_no_tokens_is_refused() {
    let result = validate::request(&asking().with_max_tokens(0));
    assert_eq!(rules(result), ["max_tokens: must_be_positive"]);
    for wrong in ["-1", "1.5", "\"8\""] {
        refused::<Request>(&format!(r#"{{"messages":[],"max_tokens":{wrong}}}"#));
    }
}

#[test]
fn v14_a_response_format_is_text_or_an_object() {
    for wrong in [r#""json""#, "5", "[]", "true"] {
        let error = refused::<Request>(&format!(r#"{{"messages":[],"response_format":{wrong}}}"#));
        assert!(error.to_string().contains("expected \"text\" or an object"), "{error}");
    }
    let own = r#"{"messages":[],"response_format":{"type":"grammar","syntax":"lark"}}"#;
    let own: Request = serde_json::from_str(own).unwrap();
    let format = map(json!({"type": "grammar", "syntax": "lark"}));
    assert_eq!(own.response_format, Some(ResponseFormat::Other(format)));
}

#[test]
fn v15_an_answer_is_given_its_form_by_a_schema_only() {
    let finalizing = |format| {
        let mut request = asking();
        (request.structured_finalize, request.response_format) = (true, format);
        request
    };
    for format in [None, Some(ResponseFormat::Text), Some(ResponseFormat::JsonObject)] {
        let result = validate::request(&finalizing(format));
        assert_eq!(rules(result), ["structured_finalize: requires_json_schema"]);
    }
    let schema = ResponseFormat::json_schema("p", json!({}));
    assert_eq!(validate::request(&finalizing(Some(schema))), Ok(()));
}

#[test]
fn v16_every_broken_rule_is_reported_in_the_order_of_the_rules() {
    let mut request = Request::default()
        .with_tools([tool("fine"), tool("fine"), tool("")])
        .with_max_tokens(0)
        .with_temperature(3.0);
    request.structured_finalize = true;
    let result = validate::request(&request);
    let error = result.clone().unwrap_err();
    assert_eq!(
        rules(result),
        [
            "messages: empty",
            "tools.2.name: empty",
            "tools: duplicate_name",
            "temperature: out_of_range",
            "max_tokens: must_be_positive",
            "structured_finalize: requires_json_schema",
        ]
    );
    assert!(error.to_string().contains("(6 error(s))"), "{error}");
    assert_eq!(error.metadata()["field"], "messages");
}

#[test]
fn v16_every_broken_message_of_a_thread_is_reported() {
    let result = decode::thread(&[
        json!({"role": "bogus", "content": 5}),
        json!({"role": "user", "content": "fine"}),
        json!({"role": "tool", "content": [{}]}),
    ]);
    assert_eq!(
        rules(result),
        [
            "messages.0.role: unknown",
            "messages.0.content: invalid_type",
            "messages.2.content: invalid_part_type",
            "messages.2.tool_call_id: required",
        ]
    );
}

#[test]
fn v17_an_empty_thread_is_valid() {
    assert_eq!(validate::thread(&Thread::new()), Ok(()));
    assert_eq!(decode::thread(&[]), Ok(Thread::new()));
}

#[test]
fn v18_v19_v20_a_session_has_what_its_status_needs() {
    let table = [
        (Status::AwaitingUser, "pending_question: required_for_status"),
        (Status::AwaitingTools, "pending_tool_calls: required_for_status"),
        (Status::Error, "metadata: error_required_for_status"),
    ];
    for (status, rule) in table {
        let text = json!({"thread": {"messages": []}, "status": status}).to_string();
        let result = decode::session(&text);
        assert_reason(&result, ValidationReason::InvalidSession);
        assert_eq!(rules(result), [rule]);
        let plain = refused::<Session>(&text);
        assert!(plain.to_string().contains(rule), "{plain}");
    }
    for status in [Status::Idle, Status::Completed] {
        let session = decode::session(&json!({"status": status}).to_string()).unwrap();
        assert_eq!(session.status(), status);
    }
}

#[test]
fn v18_an_unknown_status_is_named() {
    let result = decode::session(r#"{"status":"sleeping"}"#);
    assert_reason(&result, ValidationReason::InvalidSession);
    assert_eq!(rules(result), ["status: unknown"]);
}

#[test]
fn v21_a_broken_message_of_a_session_is_named_with_its_place() {
    let messages = json!([{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]);
    let text = json!({"status": "sleeping", "thread": {"messages": messages}}).to_string();
    let result = decode::session(&text);
    assert_reason(&result, ValidationReason::InvalidSession);
    assert_eq!(rules(result), ["status: unknown", "thread.messages.1.tool_call_id: required"]);
}

#[test]
fn v29_a_call_without_a_result_is_named_before_anything_is_sent() {
    let open = Thread::from("hi").with(calling(&["c0", "c1"])).with(Message::tool_result("c0", ""));
    let left = open.clone().with_user("never mind");
    for thread in [open, left] {
        let rule = ["messages.1.tool_calls.c1: unanswered_tool_call"];
        let result = validate::thread(&thread);
        assert_reason(&result, ValidationReason::InvalidThread);
        assert_eq!(rules(result), rule);
        let result = validate::request(&Request::from(thread));
        assert_reason(&result, ValidationReason::InvalidRequest);
        assert_eq!(rules(result), rule);
    }
}

#[test]
fn v29_results_may_come_in_any_order_and_ids_may_be_used_again() {
    let answered = |thread: Thread, ids: [&str; 2]| {
        let thread = thread.with(calling(&["c0", "c1"]));
        ids.into_iter().fold(thread, |thread, id| thread.with(Message::tool_result(id, "x")))
    };
    let once = answered(Thread::from("hi"), ["c1", "c0"]);
    let twice = answered(once.with_user("again"), ["c0", "c1"]);
    assert_eq!(validate::thread(&twice), Ok(()));
    assert!(twice.messages.unanswered().is_empty());
}

#[test]
fn v29_the_first_unanswered_call_stays_named_after_later_turns() {
    let thread = Thread::from("hi").with(calling(&["c0"])).with_user("b").with(calling(&["c1"]));
    assert_eq!(
        rules(validate::thread(&thread)),
        ["messages.1.tool_calls.c0: unanswered_tool_call"]
    );
    assert_eq!(thread.messages.unanswered(), ["c1"]);
    let text = serde_json::to_string(&thread).unwrap();
    let loaded: Thread = serde_json::from_str(&text).unwrap();
    assert_eq!(validate::thread(&loaded), validate::thread(&thread));
}

#[test]
fn v30_a_plain_request_is_valid() {
    assert_eq!(validate::request(&asking().with_temperature(0.5).with_max_tokens(1)), Ok(()));
}

#[test]
fn an_unanswered_call_can_be_answered_afterwards() {
    let mut thread = Thread::from("hi").with(calling(&["c0", "c1"]));
    assert_eq!(thread.messages.repair("lost"), ["c0", "c1"]);
    assert_eq!(validate::thread(&thread), Ok(()));
    let lost = Message::tool_error("c1", json!({"error": "lost"}));
    assert_eq!(thread.last_message(), Some(&lost));
    assert_eq!(thread.messages.repair("lost"), [""; 0]);
    assert_eq!(thread.messages.len(), 4);
}

fn asking() -> Request {
    Request::new([Message::user("hi")])
}

fn tool(name: &str) -> ToolSpec {
    ToolSpec::new(name, "does something", json!({"type": "object"}))
}

#[track_caller]
fn assert_reason<T: Debug>(result: &Result<T, Error>, reason: ValidationReason) {
    match result {
        Ok(value) => panic!("{value:?} is valid"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Validation(reason), "{error}"),
    }
}

#[test]
fn a_tool_choice_that_names_no_tool_is_refused() {
    let mut request = Request::from("hi");
    request.tool_choice = Some(ToolChoice::Tool("pya".to_owned()));
    let error = validate::request(&request).unwrap_err();
    assert_eq!(rules(validate::request(&request)), ["tool_choice: unknown_tool"]);
    assert!(
        error.message().ends_with("tool_choice names \"pya\", and there are no tools"),
        "{error}"
    );
    request.tools = vec![ToolSpec::new("pay", "", json!({})).into()];
    let error = validate::request(&request).unwrap_err();
    assert!(error.message().ends_with("and the tools are \"pay\""), "{error}");
    request.tool_choice = Some(ToolChoice::Tool("pay".to_owned()));
    assert_eq!(validate::request(&request), Ok(()));
}

#[test]
fn a_schema_name_that_providers_refuse_is_refused_before_the_call() {
    let named = |name: &str| {
        let mut request = Request::from("hi");
        request.response_format = Some(ResponseFormat::json_schema(name, json!({})));
        validate::request(&request)
    };
    assert_eq!(rules(named("")), ["response_format.name: empty"]);
    for name in ["two words", "ä", &"x".repeat(65)] {
        assert_eq!(rules(named(name)), ["response_format.name: invalid_format"], "{name}");
    }
    assert_eq!(named("Bird_2-b"), Ok(()));
}
