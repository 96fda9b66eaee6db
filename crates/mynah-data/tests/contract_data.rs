//! Constructors and accessors of the plain data.

use std::{io, path::Path};

use mynah_data::{
    AdapterReason, ChatResult, Error, ErrorKind, FieldError, HaltReason, Image, ImageError,
    Message, Part, Pricing, Request, Response, ResponseFormat, Role, Session, Thread, ToolCall,
    ToolOutcome, ToolReason, ToolSpec, Usage, ValidationReason,
};
use serde_json::{Value, json};

use crate::common::{call, calling, map, refused, rules};

#[test]
fn a01_a_user_message_has_a_role_and_text_and_nothing_else() {
    let message = Message::user("hi");
    assert_eq!(message.role(), Role::User);
    assert_eq!(message.parts(), [Part::text("hi")]);
    assert_eq!(message.text(), "hi");
    assert_eq!((message.name(), message.tool_call_id()), (None, None));
    assert!(message.metadata().is_empty());
}

#[test]
fn a01_each_constructor_sets_its_role() {
    let made = [
        (Message::system("x"), Role::System),
        (Message::user("x"), Role::User),
        (Message::assistant("x"), Role::Assistant),
        (Message::tool_result("c0", "x"), Role::Tool),
    ];
    for (message, role) in made {
        assert_eq!((message.role(), message.text().as_ref()), (role, "x"));
    }
}

#[test]
fn a02_a_message_without_content_is_refused() {
    let error = refused::<Message>(r#"{"role":"user"}"#);
    assert!(error.to_string().contains("missing field `content`"), "{error}");
}

#[test]
fn a03_a_tool_without_a_description_is_refused() {
    let error = refused::<ToolSpec>(r#"{"name":"echo","schema":{}}"#);
    assert!(error.to_string().contains("missing field `description`"), "{error}");
}

#[test]
fn a04_manual_is_a_boolean_and_nothing_else() {
    for manual in ["null", "\"yes\"", "1"] {
        let text = format!(r#"{{"name":"a","description":"b","schema":{{}},"manual":{manual}}}"#);
        assert!(refused::<ToolSpec>(&text).is_validation());
    }
}

#[test]
fn a05_a_tool_is_run_and_not_repeated_unless_it_says_otherwise() {
    let spec = ToolSpec::new("echo", "gives back", json!({"type": "object"}));
    assert!(!spec.manual && !spec.idempotent);
    assert_eq!((spec.max_attempts, spec.timeout_ms), (1, None));
    assert!(spec.metadata.is_empty());
    let short = r#"{"name":"echo","description":"gives back","schema":{"type":"object"}}"#;
    assert_eq!(serde_json::from_str::<ToolSpec>(short).unwrap(), spec);
}

#[test]
fn a06_a07_a_json_schema_is_strict_unless_it_is_lenient() {
    let schema = json!({"type": "object"});
    let strict = |strict| json!({"type": "json_schema", "name": "p", "schema": {"type": "object"}, "strict": strict});
    let format = ResponseFormat::json_schema("p", schema.clone());
    assert_eq!(serde_json::to_value(&format).unwrap(), strict(true));
    let format = ResponseFormat::lenient_json_schema("p", schema);
    assert_eq!(serde_json::to_value(&format).unwrap(), strict(false));
}

#[test]
fn a08_a_request_asks_for_nothing_but_an_answer() {
    let request = Request::new([Message::user("hi")]);
    let mut plain = Request::default();
    plain.messages = [Message::user("hi")].into_iter().collect();
    assert_eq!(request, plain);
    assert!(!request.stream && !request.structured_finalize);
    assert!(request.tools.is_empty() && request.options.is_empty());
    assert_eq!((request.temperature, request.max_tokens), (None, None));
}

#[test]
fn a09_a_request_with_an_unknown_member_is_refused() {
    let error = refused::<Request>(r#"{"messages":[],"bogus":1}"#);
    assert!(error.to_string().contains("unknown field `bogus`"), "{error}");
}

#[test]
fn a10_a11_the_text_of_a_response_is_that_of_its_message() {
    assert_eq!(Response::new(Message::assistant("a")).text(), "a");
    assert_eq!(Response::new(Message::assistant("")).text(), "");
}

#[test]
fn a12_the_text_of_a_response_with_several_parts_is_its_text_parts_joined() {
    let message = Message::assistant_parts([
        Part::reasoning("hm"),
        Part::text("a"),
        Part::tool_call(call("c0")),
        Part::text("b"),
        Part::Refusal { text: "no".to_owned() },
    ]);
    let response = Response::new(message);
    assert_eq!(response.text(), "ab");
    assert_eq!(response.tool_calls().collect::<Vec<_>>(), [&call("c0")]);
    assert_eq!(Response::new(calling(&["c0"])).text(), "");
}

#[test]
fn a13_only_a_completed_chat_is_not_halted() {
    let halted = |reason| ChatResult::new(Thread::new(), reason).is_halted();
    assert!(!halted(HaltReason::Completed));
    for reason in HaltReason::RESERVED.iter().skip(1) {
        assert!(halted(reason.clone()), "{reason}");
    }
    assert!(halted(HaltReason::from("plan_submitted".to_owned())));
}

#[test]
fn a14_an_empty_thread_has_no_last_message() {
    assert_eq!(Thread::new().last_message(), None);
    assert_eq!(Thread::from("hi").last_message(), Some(&Message::user("hi")));
}

#[test]
fn a15_messages_are_appended_in_order_and_the_shorter_thread_stays() {
    let short = Thread::from("a");
    let mut long = short.clone();
    long.extend([Message::assistant("b"), Message::user("c")]);
    let texts = |thread: &Thread| -> Vec<String> {
        thread.messages.iter().map(|m| m.text().into_owned()).collect()
    };
    assert_eq!(texts(&long), ["a", "b", "c"]);
    assert_eq!(texts(&short), ["a"]);
    assert_eq!(long, short.with_assistant("b").with_user("c"));
}

#[test]
fn a16_a17_the_media_type_of_a_file_comes_from_its_extension() {
    let table = [
        ("/x.PNG", Some("image/png")),
        ("/x.jpg", Some("image/jpeg")),
        ("/x.JpEg", Some("image/jpeg")),
        ("/x.webp", Some("image/webp")),
        ("/x.gif", Some("image/gif")),
        ("/x.svg", None),
        ("/noext", None),
        ("/.png", None),
    ];
    for (path, mime) in table {
        assert_eq!(Image::from_file(path).mime_type.as_deref(), mime, "{path}");
    }
}

#[test]
fn a18_an_address_is_never_fetched() {
    let image = Image::from_url("https://example.com/x.png");
    assert_eq!(image.mime_type, None);
    assert_eq!(image.to_binary(no_file), Err(ImageError::RemoteSource));
    assert_eq!(image.to_data_uri(no_file), Err(ImageError::RemoteSource));
}

#[test]
fn a19_base64_text_is_passed_on_as_it_is() {
    let image = Image::from_base64("aGk=", "image/png");
    assert_eq!(image.to_data_uri(no_file).unwrap(), "data:image/png;base64,aGk=");
    assert_eq!(image.to_binary(no_file).unwrap(), b"hi");
    assert_eq!(Image::from_data_uri("data:image/png;base64,aGk=").as_ref(), Some(&image));
    assert_eq!(Image::from_data_uri("https://example.com"), None);
    let broken = Image::from_base64("%%%", "image/png");
    assert_eq!(broken.to_data_uri(no_file).unwrap(), "data:image/png;base64,%%%");
}

#[test]
fn a20_text_that_is_not_base64_has_no_bytes() {
    let image = Image::from_base64("%%%", "image/png");
    assert_eq!(image.to_binary(no_file), Err(ImageError::InvalidBase64));
}

#[test]
fn a21_bytes_without_a_media_type_have_no_data_address() {
    let mut image = Image::from_binary(*b"hi", "image/png");
    assert_eq!(image.to_data_uri(no_file).unwrap(), "data:image/png;base64,aGk=");
    image.mime_type = None;
    assert_eq!(image.to_data_uri(no_file), Err(ImageError::MissingMimeType));
    assert_eq!(image.to_binary(no_file).unwrap(), b"hi");
}

#[test]
fn a22_a_missing_file_is_an_error() {
    let image = Image::from_file("/does/not/exist.png");
    let error = image.to_binary(|path| std::fs::read(path)).unwrap_err();
    assert!(
        matches!(&error, ImageError::Unreadable(why) if why.starts_with("/does/not/exist.png"))
    );
    assert_eq!(image.to_data_uri(|path| std::fs::read(path)), Err(error));
    let read = |path: &Path| Ok(path.to_string_lossy().into_owned().into_bytes());
    assert_eq!(image.to_binary(read).unwrap(), b"/does/not/exist.png");
    let empty = ImageError::Unreadable("/does/not/exist.png: it is empty".to_owned());
    assert_eq!(image.to_data_uri(|_| Ok(Vec::new())), Err(empty));
}

#[test]
fn a23_text_is_one_text_part_and_a_list_stays_as_it_is() {
    assert_eq!(Message::user("x").parts(), [Part::text("x")]);
    let parts = [Part::text("x"), Part::image(Image::from_url("u"))];
    assert_eq!(Message::user_parts(parts.clone()).parts(), parts);
    assert_eq!(Message::user_parts([Part::text("x")]), Message::user("x"));
}

#[test]
fn a24_an_unknown_reason_is_refused() {
    let bogus = r#"{"type":"adapter_error","reason":"bogus","message":"m","metadata":{}}"#;
    let error = refused::<Error>(bogus);
    assert!(error.to_string().contains("unknown error adapter_error / bogus"), "{error}");
    // A reason belongs to its kind.
    let mixed = r#"{"type":"tool_error","reason":"rate_limited","message":"m","metadata":{}}"#;
    assert!(refused::<Error>(mixed).is_validation());
}

#[test]
fn a25_the_message_of_an_error_names_kind_subject_and_reason() {
    let limited = Error::adapter(AdapterReason::RateLimited);
    assert_eq!(limited.to_string(), "adapter error: rate_limited");
    assert_eq!(limited.with_provider("openai").to_string(), "adapter error (openai): rate_limited");
    let timeout = Error::tool(ToolReason::Timeout).with("tool_name", "echo");
    assert_eq!(timeout.to_string(), "tool error (echo): timeout");
    let unknown = Error::unknown_tool("nope");
    assert_eq!(unknown.metadata()["tool_name"], "nope");
    assert!(unknown.to_string().contains("unknown_tool"));
}

#[test]
fn a26_the_message_of_a_validation_counts_and_names_the_broken_rules() {
    let errors = vec![
        FieldError::new("role", "unknown").under(["messages".into(), 0.into()]),
        FieldError::new("temperature", "out_of_range"),
    ];
    let error = Error::validation(ValidationReason::InvalidRequest, errors.clone());
    assert_eq!(
        error.message(),
        "validation failed: invalid_request (2 error(s)): messages.0.role: unknown, temperature: out_of_range"
    );
    assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidRequest));
    assert_eq!(error.field_errors(), errors);
    assert_eq!(error.metadata()["field"], "messages.0.role");
}

#[test]
fn a27_the_calls_of_an_assistant_message_are_parts_not_metadata() {
    let message = calling(&["c0", "c1"]);
    assert_eq!(message.tool_calls().collect::<Vec<_>>(), [&call("c0"), &call("c1")]);
    assert!(message.metadata().is_empty());
}

#[test]
fn a_tool_result_keeps_text_and_turns_other_values_into_json() {
    let text = |content: Value| Message::tool_result("c0", content).text().into_owned();
    assert_eq!(text(json!("{as it is}")), "{as it is}");
    assert_eq!(text(json!({"b": 1, "a": [1.0, null]})), r#"{"b":1,"a":[1.0,null]}"#);
    assert_eq!(text(json!(5)), "5");
    assert_eq!(text(Value::Null), "null");
    assert_eq!(Message::tool_result("c0", "").parts(), []);
}

#[test]
fn empty_text_and_no_text_are_the_same_message() {
    let empty = Message::assistant("");
    assert_eq!(empty, Message::assistant_parts([]));
    assert_eq!(empty, Message::assistant_parts([Part::text("")]));
    assert_eq!(empty, serde_json::from_str(r#"{"role":"assistant","content":null}"#).unwrap());
    assert_eq!(empty, serde_json::from_str(r#"{"role":"assistant","content":[]}"#).unwrap());
    let noted = Part::Text { text: String::new(), metadata: map(json!({"a": 1})) };
    assert_eq!(Message::user_parts([noted.clone()]).parts(), [noted]);
}

#[test]
fn a_tool_call_keeps_the_text_of_its_arguments() {
    let spaced = r#"{ "b": 1.50, "a": [ ] }"#;
    let call = ToolCall::new("c0", "echo", spaced);
    assert_eq!(call.raw_arguments, spaced);
    assert_eq!(call.arguments, json!({"b": 1.5, "a": []}));
    assert_eq!(call.argument_error(), None);
}

#[test]
fn a_tool_call_without_arguments_has_an_empty_object() {
    for raw in ["", "  ", "{}", "null", " null "] {
        let call = ToolCall::new("c0", "echo", raw);
        assert_eq!((&call.arguments, call.raw_arguments.as_str()), (&json!({}), raw));
        assert_eq!(call.argument_error(), None);
    }
    assert_eq!(ToolCall::from_value("c0", "echo", Value::Null).arguments, json!({}));
}

#[test]
fn a_tool_call_with_broken_arguments_says_what_is_wrong() {
    for raw in [r#"{"x":"#, "{} {}", "nul", "1e999", "{'x': 1}"] {
        let call = ToolCall::new("c0", "echo", raw);
        assert_eq!((&call.arguments, call.raw_arguments.as_str()), (&Value::Null, raw));
        assert!(call.argument_error().is_some_and(|why| !why.is_empty()), "{raw}");
    }
}

#[test]
fn arguments_of_too_many_items_are_not_read() {
    let fits = format!("[{}0]", "{},".repeat((1 << 19) - 2));
    assert_eq!(ToolCall::new("c0", "echo", fits).argument_error(), None);
    for raw in [format!("[{}0]", "0,".repeat(1 << 19)), format!("[{}0]", "[[]],".repeat(1 << 18))] {
        let call = ToolCall::new("c0", "echo", raw.as_str());
        assert_eq!((&call.arguments, call.raw_arguments == raw), (&Value::Null, true));
        assert_eq!(call.argument_error().as_deref(), Some("made of more than 524288 items"));
    }
}

#[test]
fn a_halt_may_not_use_a_reason_of_the_loop() {
    for reason in HaltReason::RESERVED {
        let spelled = HaltReason::Custom(reason.as_str().to_owned());
        for reason in [reason.clone(), spelled] {
            let outcome = ToolOutcome::Halt { reason: reason.clone(), result: Value::Null };
            let error = outcome.misuse().unwrap_or_else(|| panic!("{reason} was let through"));
            assert_eq!(error.kind(), ErrorKind::Tool(ToolReason::InvalidReturn));
            assert_eq!(error.metadata()["reserved_halt_reason"], reason.as_str());
        }
    }
    assert_eq!(ToolOutcome::halt("plan_submitted", 1).misuse(), None);
    assert_eq!(ToolOutcome::ask("?").misuse(), None);
}

#[test]
fn p05_prices_fill_in_the_costs_that_were_not_reported() {
    let mut usage = Usage::new(1000, 500);
    Pricing::new(0.15, 0.6).apply(&mut usage);
    assert_eq!(usage.input_cost, Some(0.00015));
    assert_eq!(usage.output_cost, Some(0.0003));
    assert_eq!(usage.total_cost, Some(0.00045));
}

#[test]
fn p05_a_reported_cost_is_never_overwritten() {
    let mut usage = Usage::new(1000, 500);
    usage.input_cost = Some(7.0);
    Pricing::new(0.15, 0.6).apply(&mut usage);
    assert_eq!((usage.input_cost, usage.total_cost), (Some(7.0), Some(7.0003)));
    let mut reported = Usage::new(1000, 500);
    reported.total_cost = Some(1.0);
    let mut usage = reported.clone();
    Pricing::new(0.15, 0.6).apply(&mut usage);
    assert_eq!(usage.total_cost, reported.total_cost);
}

#[test]
fn p05_what_was_not_counted_has_no_cost() {
    let mut usage = Usage::new(1000, None);
    Pricing::new(0.15, 0.6).apply(&mut usage);
    assert_eq!(
        (usage.input_cost, usage.output_cost, usage.total_cost),
        (Some(0.00015), None, None)
    );
}

#[test]
fn p05_cached_tokens_have_their_own_price() {
    let mut usage = Usage::new(1000, 0);
    usage.cached_input_tokens = Some(600);
    usage.cache_write_tokens = Some(300);
    let cost = |pricing: Pricing| {
        let mut usage = usage.clone();
        pricing.apply(&mut usage);
        usage.input_cost.unwrap()
    };
    assert_eq!(cost(Pricing::new(1.0, 1.0)), 0.001);
    assert_eq!(cost(Pricing::new(1.0, 1.0).with_cached_input(0.5)), 0.0007);
    let mut written = Pricing::new(1.0, 1.0).with_cached_input(0.5);
    written.cache_write = Some(2.0);
    assert_eq!(cost(written), 0.001);
}

#[test]
fn p05_counters_that_contradict_each_other_have_a_price_too() {
    let mut usage = Usage::new(1000, 0);
    usage.cached_input_tokens = Some(u64::MAX);
    usage.cache_write_tokens = Some(600);
    Pricing::new(1.0, 1.0).with_cached_input(0.5).apply(&mut usage);
    assert_eq!(usage.input_cost, Some(0.0005));
    let mut usage = Usage::new(1000, 0);
    usage.cached_input_tokens = Some(600);
    usage.cache_write_tokens = Some(600);
    Pricing::new(1.0, 1.0).with_cached_input(0.5).apply(&mut usage);
    assert_eq!(usage.input_cost, Some(0.0007));
}

#[test]
fn the_total_of_a_usage_is_reported_or_added_up() {
    assert_eq!(Usage::new(2, 3).total(), Some(5));
    let mut reported = Usage::new(2, 3);
    reported.total_tokens = Some(9);
    assert_eq!(reported.total(), Some(9));
    assert_eq!(Usage::new(2, None).total(), None);
    assert_eq!(Usage::new(u64::MAX, 1).total(), Some(u64::MAX));
}

#[test]
fn usages_add_up_whichever_of_them_reported_a_total() {
    let mut reported = Usage::new(4, 6);
    reported.total_tokens = Some(10);
    for (first, second) in [
        (Usage::new(4, 6), Usage::new(1, 2)),
        (reported.clone(), Usage::new(1, 2)),
        (Usage::new(1, 2), reported),
    ] {
        let mut sum = first.clone();
        sum.add(&second);
        assert_eq!((sum.input_tokens, sum.output_tokens), (Some(5), Some(8)));
        assert_eq!(sum.total(), Some(13), "{first:?} + {second:?}");
    }
}

#[test]
fn usages_add_up_without_overflow() {
    let mut sum = Usage::new(u64::MAX, u64::MAX);
    sum.add(&Usage::new(1, 1));
    assert_eq!((sum.input_tokens, sum.total()), (Some(u64::MAX), Some(u64::MAX)));
}

#[test]
fn counters_without_a_place_go_into_extra() {
    let usage = Usage::from_json(map(json!({"input_tokens": 9, "audio_tokens": 2}))).unwrap();
    assert_eq!(usage.input_tokens, Some(9));
    assert_eq!(*usage.extra, map(json!({"audio_tokens": 2})));
    let wrong = Usage::from_json(map(json!({"input_tokens": "many"})));
    assert_eq!(rules(wrong), ["data: malformed_struct"]);
}

#[test]
fn a_session_is_made_from_anything_that_makes_a_thread() {
    let expected = Session::new().append_user("hi");
    assert_eq!(Session::from("hi"), expected);
    assert_eq!(Session::from(Message::user("hi")), expected);
    assert_eq!(Session::from(vec![Message::user("hi")]), expected);
    assert_eq!(Session::from([Message::user("hi")]), expected);
    assert_eq!(Session::from(Thread::from("hi")), expected);
}

fn no_file(path: &Path) -> io::Result<Vec<u8>> {
    Err(io::Error::other(format!("{} was read", path.display())))
}
