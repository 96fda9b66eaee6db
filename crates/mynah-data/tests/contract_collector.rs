//! Events, and what they fold into.

use std::sync::Arc;

use mynah_data::{
    ASK_USER_SENTINEL, AdapterReason, CUT_SHORT, ChatResult, Collector, Error, Event, FinishReason,
    HaltReason, Message, Metadata, Part, Response, ResponseBuilder, StepResult, Thread, ToolCall,
    ToolMode, ToolOutcome, Usage, validate,
};
use serde_json::{Value, json};

use crate::common::{call, calling, map, refused, through_json};

#[test]
fn e01_there_are_nineteen_events_and_twelve_of_them_are_a_models() {
    let from_model = [
        "message_started",
        "text_delta",
        "text_completed",
        "reasoning_delta",
        "reasoning_completed",
        "tool_call_started",
        "tool_call_delta",
        "tool_call_completed",
        "usage",
        "message_completed",
        "raw_chunk",
        "error",
    ];
    let made_by_the_loop = [
        "tool_execution_started",
        "tool_execution_completed",
        "tool_result_encoded",
        "ask_user_requested",
        "tool_halt",
        "step_completed",
        "chat_completed",
    ];
    let samples = samples();
    let named = |from_model| -> Vec<&str> {
        let some = samples.iter().filter(|event| event.is_from_model() == from_model);
        some.map(Event::type_name).collect()
    };
    assert_eq!(named(true), from_model);
    assert_eq!(named(false), made_by_the_loop);
    for event in &samples {
        let value = serde_json::to_value(through_json(event)).unwrap();
        assert_eq!(value["type"], event.type_name());
    }
}

#[test]
fn e02_an_event_has_the_members_of_its_type() {
    refused::<Event>(r#"{"type":"text_delta"}"#);
    refused::<Event>(r#"{"type":"text_delta","delta":5}"#);
    refused::<Event>(r#"["text_delta","x","y","z"]"#);
    for chunk in [json!("x"), json!(null), json!([1, {"b": 2}])] {
        through_json(&Event::RawChunk { chunk });
    }
    let short: Event = serde_json::from_str(r#"{"type":"text_delta","delta":"x"}"#).unwrap();
    assert_eq!(short, Event::text_delta("x"));
}

#[test]
fn e03_empty_metadata_is_not_written() {
    let value = |event: &Event| serde_json::to_value(event).unwrap();
    let done = value(&Event::message_completed(Some(FinishReason::Stop)));
    let keys: Vec<_> = done.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["type", "message", "finish_reason"]);
    let call = value(&Event::tool_call_completed(call("c0")));
    assert_eq!(call.get("metadata"), None);
}

#[test]
fn e12_pieces_of_text_are_joined() {
    let response = answered([Event::text_delta("hel"), Event::text_delta("lo")]);
    assert_eq!(response.text(), "hello");
    assert_eq!(response.message.parts(), [Part::text("hello")]);
}

#[test]
fn e13_completed_text_wins_over_its_pieces() {
    for id in [None, Some("t0")] {
        let response = answered([delta(id, "x"), completed(id, "y")]);
        assert_eq!(response.text(), "y", "{id:?}");
    }
    assert_eq!(answered([completed(None, "y")]).text(), "y");
    assert_eq!(answered([delta(None, "x"), completed(None, "")]).message.parts(), []);
}

#[test]
fn e14_a_piece_of_an_unknown_call_makes_a_call_without_a_name() {
    let response = answered([piece("c9", "{\"x\":"), piece("c9", "1}")]);
    let expected = ToolCall::new("c9", "", "{\"x\":1}");
    assert_eq!(response.tool_calls().collect::<Vec<_>>(), [&expected]);
    assert_eq!(expected.arguments, json!({"x": 1}));
}

#[test]
fn e15_a_completed_call_wins_over_its_pieces() {
    let mut whole = ToolCall::new("c0", "echo", "{\"x\": 2}");
    whole.metadata = map(json!({"signature": "s"}));
    let response = answered([
        started("c0", "ech"),
        piece("c0", "{\"x\""),
        piece("c0", ":1}"),
        Event::tool_call_completed(whole.clone()),
    ]);
    assert_eq!(response.tool_calls().collect::<Vec<_>>(), [&whole]);
}

#[test]
fn e15_calls_stand_in_the_order_in_which_they_began() {
    let response = answered([
        started("c0", "a"),
        started("c1", "b"),
        piece("c1", "[1]"),
        started("c0", "ignored: the call has its name"),
        Event::tool_call_completed(ToolCall::new("c1", "b", "[1]")),
        piece("c0", "{"),
    ]);
    let calls: Vec<_> = response.tool_calls().cloned().collect();
    assert_eq!(calls, [ToolCall::new("c0", "a", "{"), ToolCall::new("c1", "b", "[1]")]);
    assert!(calls[0].argument_error().is_some());
}

#[test]
fn a_call_that_was_cut_off_before_its_arguments_is_not_one_without_arguments() {
    let mut cut_off = ToolCall::new("c0", "echo", "");
    cut_off.arguments = Value::Null;
    let mut answer = ResponseBuilder::new();
    answer.apply(&Event::ToolCallStarted { id: "c0".to_owned(), name: "echo".to_owned() });
    answer.apply(&Event::tool_call_completed(cut_off.clone()));
    answer.apply(&Event::message_completed(Some(FinishReason::Length)));
    let response = answer.response();
    assert_eq!(response.tool_calls().collect::<Vec<_>>(), [&cut_off]);
    through_json(&response);
}

#[test]
fn a_refusal_is_known_from_the_completed_message_whatever_was_said_before() {
    let refusal = Part::Refusal { text: "no".to_owned() };
    let mut completed = Event::message_completed(Some(FinishReason::ContentFilter));
    if let Event::MessageCompleted { message, .. } = &mut completed {
        *message = Arc::new(Message::assistant_parts([refusal.clone()]));
    }
    for (before, expected) in [
        (None, vec![refusal.clone()]),
        (Some(Event::text_delta("well")), vec![Part::text("well"), refusal.clone()]),
        (
            Some(Event::ReasoningDelta { id: None, delta: "hm".to_owned() }),
            vec![Part::reasoning("hm"), refusal.clone()],
        ),
    ] {
        let mut answer = ResponseBuilder::new();
        before.iter().chain([&completed]).for_each(|event| answer.apply(event));
        assert_eq!(answer.response().message.parts(), expected);
    }
}

#[test]
fn e16_an_error_is_on_the_answer_not_instead_of_it() {
    let response = answered([Event::text_delta("par"), broken(AdapterReason::NetworkError)]);
    assert_eq!(response.text(), "par");
    assert_eq!(response.finish_reason, Some(FinishReason::Error));
    let error = Error::adapter(AdapterReason::NetworkError);
    assert_eq!(response.metadata["error"], error.to_value());
    assert_eq!(response.error(), Some(error.clone()));
    assert_eq!(response.message.metadata()["partial"], true);
    assert_eq!(response.into_text(), Err(error));
}

#[test]
fn e17_the_last_usage_wins_whole() {
    let first = Usage::new(1, 2);
    let second = Usage::new(None, 5);
    let response = answered([usage(first), usage(second.clone())]);
    assert_eq!(response.usage, second);
}

#[test]
fn e18_events_of_the_loop_do_not_change_an_answer() {
    let mut builder = ResponseBuilder::new();
    builder.apply(&Event::text_delta("x"));
    let before = builder.clone();
    samples().iter().filter(|event| !event.is_from_model()).for_each(|event| builder.apply(event));
    assert_eq!(builder, before);
    builder.apply(&Event::RawChunk { chunk: json!({"unknown": true}) });
    assert_eq!(builder, before);
}

#[test]
fn e19_the_halt_that_counts_is_that_of_the_earliest_call() {
    let ask = Event::ask_user_requested("c0", "echo", "Sure?", map(json!({"choices": [1]})));
    let halt = halting("c1", "plan_submitted");
    let asked = json!({
        "halted_reason": "ask_user",
        "pending_question": "Sure?",
        "pending_tool_call_id": "c0",
        "ask_user_opts": {"choices": [1]},
    });
    for order in [[&halt, &ask], [&ask, &halt]] {
        let mut collector = calling_collector(&["c0", "c1"]);
        order.into_iter().for_each(|event| collector.apply(event));
        let step = collector.step_result();
        assert_eq!(Value::Object(step.metadata), asked);
        assert!(step.done);
        // Each call keeps its message, in the order of the calls.
        let results =
            [Message::tool_result("c0", ASK_USER_SENTINEL), Message::tool_result("c1", "as text")];
        assert_eq!(step.tool_results, results.map(Arc::new));
    }
}

#[test]
fn e19_a_halt_tells_its_value_and_an_error_halt_does_not() {
    let told = |event: Event| {
        let mut collector = calling_collector(&["c0"]);
        collector.apply(&event);
        Value::Object(collector.step_result().metadata)
    };
    assert_eq!(
        told(halting("c0", "plan_submitted")),
        json!({"halted_reason": "plan_submitted", "halt_tool_call_id": "c0", "halt_result": {"v": 1}})
    );
    assert_eq!(
        told(halting("c0", "tool_error")),
        json!({"halted_reason": "tool_error", "halt_tool_call_id": "c0"})
    );
    let mut event = halting("c0", "tool_error");
    if let Event::ToolHalt { on_tool_error_exception, .. } = &mut event {
        *on_tool_error_exception = Some("oh".to_owned());
    }
    assert_eq!(told(event)["on_tool_error_exception"], "oh");
}

#[test]
fn e20_a_completed_step_is_kept_and_the_next_begins_afresh() {
    let mut collector = calling_collector(&["c0"]);
    collector.apply(&encoded("c0", "1"));
    let thread = Thread::from("hi").with(calling(&["c0"])).with(Message::tool_result("c0", "1"));
    let mut response = Response::new(calling(&["c0"]));
    response.finish_reason = Some(FinishReason::ToolCalls);
    collector.apply(&step_completed(&response, &thread));
    let mut step = StepResult::new(thread.clone(), response);
    step.tool_results = vec![Arc::new(Message::tool_result("c0", "1"))];
    assert_eq!(collector.steps(), [step.clone()]);
    assert_eq!(collector.step_result(), step);
    assert_eq!(collector.response(), step.response);

    collector.apply(&Event::message_started());
    collector.apply(&Event::text_delta("done"));
    let open = collector.step_result();
    assert_eq!((open.text().as_ref(), open.tool_results.len()), ("done", 0));
    assert_eq!(open.thread.messages.len(), 4);
    assert_eq!(collector.steps().len(), 1);
}

#[test]
fn e20_a_halt_does_not_outlive_its_step() {
    let mut collector = calling_collector(&["c0"]);
    collector.apply(&halting("c0", "plan_submitted"));
    let response = Response::new(Message::assistant("a"));
    collector.apply(&step_completed(&response, &Thread::from("hi")));
    assert_eq!(
        collector.steps()[0].halted_reason(),
        Some(HaltReason::from("plan_submitted".to_owned()))
    );
    collector.apply(&step_completed(&response, &Thread::from("hi")));
    assert_eq!(collector.steps()[1].metadata, Metadata::new());
}

#[test]
fn e20_an_error_outlives_its_step() {
    let mut collector = Collector::new(Thread::from("hi"));
    collector.apply(&broken(AdapterReason::Timeout));
    let response = collector.response();
    collector.apply(&step_completed(&response, &Thread::from("hi")));
    assert!(collector.steps()[0].done);
    collector.apply(&broken(AdapterReason::Unknown));
    assert_eq!(collector.error(), Some(&Error::adapter(AdapterReason::Timeout)));
    assert_eq!(collector.chat_result().halted_reason, HaltReason::Error);
}

#[test]
fn e20_a_manual_step_hands_over_its_calls() {
    let mut response = Response::new(calling(&["c0", "c1"]));
    response.finish_reason = Some(FinishReason::ToolCalls);
    let step = |mode, manual_tool_calls: Vec<ToolCall>| {
        let mut collector = Collector::new(Thread::from("hi"));
        let thread = Thread::from("hi");
        let completed = Event::step_completed(response.clone(), thread, mode, manual_tool_calls);
        collector.apply(&completed);
        collector.step_result()
    };
    let whole = step(ToolMode::Manual, Vec::new());
    assert_eq!(Value::Object(whole.metadata.clone()), json!({"mode": "manual"}));
    assert!(whole.is_manual() && !whole.done);
    let some = step(ToolMode::Auto, vec![call("c1")]);
    assert_eq!(some.manual_tool_calls(), [call("c1")]);
    assert_eq!(Value::Object(some.metadata), json!({"manual_tool_calls": [call("c1")]}));
    assert!(!some.done);
}

#[test]
fn e21_a_completed_chat_is_its_own_result() {
    let mut result = ChatResult::new(Thread::from("other"), HaltReason::MaxTurns);
    result.metadata = map(json!({"max_turns": 4}));
    let mut collector = Collector::default();
    collector.apply(&broken(AdapterReason::Unknown));
    collector.apply(&Event::ChatCompleted { result: Box::new(result.clone()) });
    assert_eq!(collector.chat_result(), result);
}

#[test]
fn e22_a_chat_that_was_cut_off_is_cancelled_and_keeps_its_steps() {
    let mut collector = Collector::new(Thread::from("hi"));
    let response = Response::new(Message::assistant("a"));
    let thread = Thread::from("hi").with_assistant("a");
    collector.apply(&step_completed(&response, &thread));
    let result = collector.chat_result();
    let mut expected = ChatResult::new(thread, HaltReason::Cancelled);
    expected.final_response = Some(response);
    expected.steps = collector.steps().to_vec();
    assert_eq!(result, expected);
    assert_eq!(result.steps.len(), 1);
}

#[test]
fn e22_a_chat_cut_off_in_mid_turn_keeps_what_was_said_and_answers_every_call() {
    let mut collector = calling_collector(&["c0", "c1"]);
    collector.apply(&encoded("c1", "1"));
    let result = collector.chat_result();
    assert_eq!(result.halted_reason, HaltReason::Cancelled);
    let lost = Message::tool_error("c0", json!({"error": CUT_SHORT}));
    let expected = Thread::from("hi")
        .with(calling(&["c0", "c1"]).with_metadata("finish_reason", "tool_calls"))
        .with(Message::tool_result("c1", "1"))
        .with(lost);
    assert_eq!(result.thread, expected);
    assert_eq!(Value::Object(result.metadata), json!({"repaired_tool_calls": ["c0"]}));
    assert_eq!(validate::thread(&result.thread), Ok(()));
}

#[test]
fn e22_a_chat_cut_off_before_its_first_word_is_the_thread_it_began_with() {
    let mut collector = Collector::new(Thread::from("hi"));
    let cancelled = ChatResult::new(Thread::from("hi"), HaltReason::Cancelled);
    assert_eq!(collector.chat_result(), cancelled);
    collector.apply(&Event::message_started());
    assert_eq!(collector.chat_result().thread, Thread::from("hi"));
}

#[test]
fn e23_a_chat_cut_off_after_an_error_has_failed() {
    let mut collector = Collector::new(Thread::from("hi"));
    collector.apply(&Event::text_delta("par"));
    collector.apply(&broken(AdapterReason::RateLimited));
    let result = collector.chat_result();
    assert_eq!(result.halted_reason, HaltReason::Error);
    assert_eq!(result.error(), Some(Error::adapter(AdapterReason::RateLimited)));
    assert_eq!(result.text(), "par");
    assert_eq!(result.thread.last_message().unwrap().metadata()["partial"], true);
}

#[test]
fn e24_a_collector_without_a_thread_begins_with_an_empty_one() {
    assert_eq!(Collector::default(), Collector::new(Thread::new()));
    let step = Collector::default().step_result();
    assert_eq!((&step.thread, step.text().as_ref()), (&Thread::new(), ""));
}

#[test]
fn e26_blocks_of_text_are_kept_in_their_places() {
    let tool = || Event::tool_call_completed(call("c0"));
    let expected = [Part::text("a"), Part::tool_call(call("c0")), Part::text("b")];
    let (t0, t1) = (Some("t0"), Some("t1"));
    let named =
        answered([delta(t0, "a"), completed(t0, "a"), tool(), delta(t1, "b"), completed(t1, "b")]);
    let whole = answered([delta(None, "a"), tool(), delta(None, "b"), completed(None, "ab")]);
    let only_pieces = answered([delta(None, "a"), tool(), delta(None, "b")]);
    for response in [named, whole, only_pieces] {
        assert_eq!(response.text(), "ab");
        assert_eq!(response.message.parts(), expected);
    }
}

#[test]
fn e26_pieces_of_several_blocks_may_come_interleaved() {
    let (t0, t1) = (Some("t0"), Some("t1"));
    let response = answered([delta(t0, "a"), delta(t1, "x"), delta(t0, "b"), delta(t1, "y")]);
    assert_eq!(response.message.parts(), [Part::text("ab"), Part::text("xy")]);
}

#[test]
fn e26_blocks_of_reasoning_keep_their_signatures() {
    let signed = |text: &str| Part::Reasoning {
        text: text.to_owned(),
        signature: Some("s".to_owned()),
        redacted: false,
        data: None,
    };
    let thought = |block: Option<&str>, text: &str| {
        let mut event = Event::reasoning_completed(text);
        if let Event::ReasoningCompleted { id, signature, .. } = &mut event {
            (*id, *signature) = (block.map(Into::into), Some("s".to_owned()));
        }
        event
    };
    for id in [None, Some("r0")] {
        let response = answered([
            Event::ReasoningDelta { id: id.map(Into::into), delta: "h".to_owned() },
            Event::ReasoningDelta { id: id.map(Into::into), delta: "m".to_owned() },
            thought(id, "hm"),
            thought(id, "so"),
            Event::text_delta("a"),
        ]);
        assert_eq!(response.message.parts(), [signed("hm"), signed("so"), Part::text("a")]);
        assert_eq!(response.text(), "a");
    }
}

#[test]
fn e27_a_finish_does_not_undo_an_error() {
    let error = broken(AdapterReason::Overloaded);
    let stop = Event::message_completed(Some(FinishReason::Stop));
    for events in [[error.clone(), stop.clone()], [stop, error]] {
        let response = answered(events);
        assert_eq!(response.finish_reason, Some(FinishReason::Error));
        assert_eq!(response.error(), Some(Error::adapter(AdapterReason::Overloaded)));
    }
    let twice = [broken(AdapterReason::Overloaded), broken(AdapterReason::Unknown)];
    assert_eq!(answered(twice).error(), Some(Error::adapter(AdapterReason::Overloaded)));
}

#[test]
fn e28_ids_model_and_raw_finish_reason_are_carried_to_the_response() {
    let mut started = Event::message_started();
    if let Event::MessageStarted { request_id, id, model, .. } = &mut started {
        *request_id = Some("req".to_owned());
        *id = Some("msg_1".to_owned());
        *model = Some("m-2025".to_owned());
    }
    let mut completed = Event::message_completed(Some(FinishReason::Other));
    if let Event::MessageCompleted { message, raw_finish_reason, paused, metadata, .. } =
        &mut completed
    {
        *message = Arc::new(Message::assistant("").with_metadata("provider_id", "p"));
        *raw_finish_reason = Some("pause_turn".to_owned());
        *paused = true;
        *metadata = map(json!({"k": 1}));
    }
    let response = answered([started, Event::text_delta("a"), completed]);
    let mut expected =
        Response::new(Message::assistant("a").with_metadata("finish_reason", "other"));
    expected.id = Some("msg_1".to_owned());
    expected.request_id = Some("req".to_owned());
    expected.model = Some("m-2025".to_owned());
    expected.finish_reason = Some(FinishReason::Other);
    expected.raw_finish_reason = Some("pause_turn".to_owned());
    expected.metadata = map(json!({"provider_id": "p", "k": 1}));
    assert_eq!(response, expected);
}

#[test]
fn a_completed_message_adds_what_the_events_did_not_say() {
    let whole = |said: Message| {
        let mut event = Event::message_completed(Some(FinishReason::ToolCalls));
        if let Event::MessageCompleted { message, .. } = &mut event {
            *message = Arc::new(said);
        }
        event
    };
    let parts = [Part::text("a"), Part::tool_call(call("c0"))];
    let silent = answered([whole(Message::assistant_parts(parts.clone()))]);
    assert_eq!(silent.message.parts(), parts);
    let heard = answered([Event::text_delta("b"), whole(Message::assistant("a"))]);
    assert_eq!(heard.message.parts(), [Part::text("b")]);
    // Calls and reasoning that were received are not lost to a message that holds only text.
    let called = answered([
        Event::ReasoningDelta { id: None, delta: "hm".to_owned() },
        Event::tool_call_completed(call("c0")),
        whole(Message::assistant("a")),
    ]);
    assert_eq!(called.text(), "a");
    assert_eq!(called.tool_calls().collect::<Vec<_>>(), [&call("c0")]);
    assert!(called.message.parts().contains(&Part::reasoning("hm")));
}

#[test]
fn a_sealed_answer_is_the_answer() {
    let mut builder = ResponseBuilder::new();
    builder.apply(&Event::text_delta("a"));
    builder.apply(&Event::tool_call_completed(call("c0")));
    builder.apply(&Event::message_completed(Some(FinishReason::ToolCalls)));
    let before = builder.response();
    assert_eq!(builder.seal(), before.message);
    assert_eq!(builder.response(), before);
    builder.apply(&usage(Usage::new(1, None)));
    assert_eq!(builder.response().message, before.message);
    builder.apply(&broken(AdapterReason::NetworkError));
    let failed = builder.response();
    assert_eq!(failed.message.parts(), before.message.parts());
    assert_eq!(failed.message.metadata()["finish_reason"], "error");
}

fn answered(events: impl IntoIterator<Item = Event>) -> Response {
    let mut builder = ResponseBuilder::new();
    events.into_iter().for_each(|event| builder.apply(&event));
    builder.response()
}

/// A collector whose model has just asked for these calls.
fn calling_collector(ids: &[&str]) -> Collector {
    let mut collector = Collector::new(Thread::from("hi"));
    collector.apply(&Event::message_started());
    for id in ids {
        collector.apply(&Event::tool_call_completed(call(id)));
    }
    collector.apply(&Event::message_completed(Some(FinishReason::ToolCalls)));
    collector
}

fn delta(id: Option<&str>, delta: &str) -> Event {
    Event::TextDelta { id: id.map(Into::into), delta: delta.to_owned() }
}

fn completed(id: Option<&str>, text: &str) -> Event {
    Event::TextCompleted { id: id.map(Into::into), text: text.to_owned() }
}

fn started(id: &str, name: &str) -> Event {
    Event::ToolCallStarted { id: id.to_owned(), name: name.to_owned() }
}

fn piece(id: &str, arguments_delta: &str) -> Event {
    Event::ToolCallDelta { id: id.to_owned(), arguments_delta: arguments_delta.to_owned() }
}

fn usage(usage: Usage) -> Event {
    Event::Usage { usage: Box::new(usage) }
}

fn broken(reason: AdapterReason) -> Event {
    Event::Error { error: Error::adapter(reason) }
}

fn encoded(id: &str, content: &str) -> Event {
    Event::tool_result_encoded(id, content)
}

fn halting(id: &str, reason: &str) -> Event {
    Event::tool_halt(id, HaltReason::from(reason.to_owned()), json!({"v": 1}), "as text")
}

fn step_completed(response: &Response, thread: &Thread) -> Event {
    Event::step_completed(response.clone(), thread.clone(), ToolMode::Auto, Vec::new())
}

/// One event of each type: a model's first, then those of the loop.
fn samples() -> Vec<Event> {
    let response = Response::new(Message::assistant("a"));
    let result = ChatResult::new(Thread::from("hi"), HaltReason::Completed);
    vec![
        Event::message_started(),
        Event::text_delta("a"),
        completed(None, "a"),
        Event::ReasoningDelta { id: None, delta: "hm".to_owned() },
        Event::reasoning_completed("hm"),
        started("c0", "echo"),
        piece("c0", "{}"),
        Event::tool_call_completed(call("c0")),
        usage(Usage::default()),
        Event::message_completed(None),
        Event::RawChunk { chunk: json!(1) },
        broken(AdapterReason::Unknown),
        Event::tool_execution_started("c0", "echo", json!({})),
        Event::tool_execution_completed("c0", "echo", ToolOutcome::Ok(json!(1))),
        encoded("c0", "1"),
        Event::ask_user_requested("c0", "echo", "?", Metadata::new()),
        halting("c0", "plan_submitted"),
        step_completed(&response, &Thread::from("hi")),
        Event::ChatCompleted { result: Box::new(result) },
    ]
}
