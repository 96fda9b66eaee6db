//! What a stream shows: order, filters, the observer, and what travels with events.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use mynah::{
    AdapterReason, Engine, ErrorKind, Event, FinishReason, HaltReason, Message, Request, Result,
    StreamReason, Thread, ToolCall, Usage,
    testing::{self, names},
};
use serde_json::json;

use crate::{
    common::{
        self, Canned, Seen, call, echo, events, fixtures::fixtures, fold, says, scripted,
        transcript,
    },
    param::Param as _,
};

#[tokio::test]
async fn e04_a_generated_answer_streams_its_text_and_ends() {
    let engine = Engine::new(two_deltas());
    let seen = events(engine.generate("hi").request_id("r").stream()).await;

    let message = Message::assistant("ab").with_metadata("finish_reason", "stop");
    let expected = json!([
        {"type": "message_started", "message": Message::assistant(""), "request_id": "r"},
        {"type": "text_delta", "id": null, "delta": "a"},
        {"type": "text_delta", "id": null, "delta": "b"},
        {"type": "text_completed", "id": null, "text": "ab"},
        {"type": "message_completed", "message": message, "finish_reason": "stop"},
    ]);
    assert_eq!(json!(seen), expected);
}

#[tokio::test]
async fn e05_text_deltas_can_be_left_out() {
    let stream = Engine::new(two_deltas()).generate("hi").emit_text_deltas(false).stream();
    let expected = ["message_started", "text_completed", "message_completed"];
    assert_eq!(names(&events(stream).await), expected);
}

#[tokio::test]
async fn e06_text_is_complete_though_its_deltas_are_not_shown() -> Result<()> {
    let model = Canned::new([common::fixtures::stopped("whole")]);
    let result = Engine::new(model).chat("hi").emit_text_deltas(false).await?;
    assert_eq!(result.text(), "whole");
    assert_eq!(transcript(&result.thread), ["user: hi", "assistant: whole"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn e06_filters_change_nothing_of_any_result() -> Result<()> {
    for fixture in fixtures() {
        let chat = || fixture.chat().emit_text_deltas(false).emit_tool_deltas(false);
        let (all, filtered) = (fixture.chat().await?, chat().await?);
        assert_eq!(filtered, all, "{}", fixture.name);
        let seen = events(chat().stream()).await;
        assert_eq!(testing::text(&seen), "", "{}", fixture.name);
        assert_eq!(fold(&fixture.thread, &seen).chat_result(), all, "{}", fixture.name);
    }
    Ok(())
}

#[tokio::test]
async fn e07_tool_deltas_can_be_left_out_and_the_call_is_still_collected() -> Result<()> {
    let script = json!([
        {"tool_call_start": {"id": "c0", "name": "echo"}},
        {"tool_call_delta": {"id": "c0", "arguments_delta": "{\"x\":"}},
        {"tool_call_delta": {"id": "c0", "arguments_delta": " 1}"}},
        {"finish": "tool_calls"},
    ]);
    let engine = || Engine::new(scripted([script.clone()]));
    let shown = events(engine().generate("hi").stream()).await;
    assert_eq!(count(&shown, "tool_call_delta"), 2);

    let hidden = events(engine().generate("hi").emit_tool_deltas(false).stream()).await;
    let expected =
        ["message_started", "tool_call_started", "tool_call_completed", "message_completed"];
    assert_eq!(names(&hidden), expected);
    let call = ToolCall::new("c0", "echo", "{\"x\": 1}");
    assert_eq!(testing::tool_calls(&hidden), std::slice::from_ref(&call));

    let response = engine().generate("hi").emit_tool_deltas(false).await?;
    assert_eq!(response.tool_calls().collect::<Vec<_>>(), [&call]);
    Ok(())
}

#[tokio::test]
async fn e08_raw_chunks_are_hidden_by_default_and_usage_never_is() {
    let script = json!([{"raw_chunk": "x"}, {"usage": {"input_tokens": 1}}, {"finish": "stop"}]);
    let engine = || Engine::new(scripted([script.clone()]));

    let hidden = events(engine().generate("hi").stream()).await;
    assert_eq!(names(&hidden), ["message_started", "usage", "message_completed"]);

    let shown = events(engine().generate("hi").include_raw_chunks(true).stream()).await;
    assert_eq!(names(&shown), ["message_started", "raw_chunk", "usage", "message_completed"]);
    assert_eq!(shown[1], Event::RawChunk { chunk: json!("x") });
}

#[tokio::test]
async fn e09_the_observer_sees_what_the_filters_hide() {
    let script = json!([{"raw_chunk": "x"}, {"text": "a"}, {"finish": "stop"}]);
    let seen = Seen::default();
    let watch = seen.clone();
    let generate = Engine::new(scripted([script])).generate("hi").emit_text_deltas(false);
    let shown = events(generate.on_event(move |event| watch.push(event.clone())).stream()).await;

    assert_eq!(names(&shown), ["message_started", "text_completed", "message_completed"]);
    let expected =
        ["message_started", "raw_chunk", "text_delta", "text_completed", "message_completed"];
    assert_eq!(names(&seen.all()), expected);
}

#[tokio::test]
async fn e10_a_panicking_observer_panics_where_the_stream_is_polled() {
    let chat = Engine::new(two_deltas()).chat("hi").on_event(|_| panic!("do not look"));
    let stream = chat.stream();
    let panic = AssertUnwindSafe(testing::collect(stream)).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"do not look"));
}

#[tokio::test]
async fn e11_the_observer_sees_nothing_of_tools_steps_and_chats() -> Result<()> {
    let seen = Seen::default();
    let watch = seen.clone();
    let engine = Engine::new(scripted([call("c0", "echo"), says("done")])).tool(echo());
    engine.chat("hi").on_event(move |event| watch.push(event.type_name())).await?;

    let tool_turn =
        ["message_started", "tool_call_started", "tool_call_completed", "message_completed"];
    let text_turn = ["message_started", "text_delta", "text_completed", "message_completed"];
    assert_eq!(seen.all(), [tool_turn, text_turn].concat());
    Ok(())
}

#[tokio::test]
async fn e25_what_trails_the_answer_is_heard_before_tools_start() {
    let chunk = Event::RawChunk { chunk: json!("trailer") };
    let usage = Usage::new(None, 9);
    let model = Canned::new([vec![
        Event::message_started(),
        Event::tool_call_completed(ToolCall::new("c0", "echo", "{}")),
        Event::message_completed(Some(FinishReason::ToolCalls)),
        chunk.clone(),
        Event::Usage { usage: Box::new(usage.clone()) },
    ]]);
    let seen =
        events(Engine::new(model).tool(echo()).step("hi").include_raw_chunks(true).stream()).await;
    let expected = [
        "message_started",
        "tool_call_completed",
        "message_completed",
        "raw_chunk",
        "usage",
        "tool_execution_started",
        "tool_execution_completed",
        "tool_result_encoded",
        "step_completed",
    ];
    assert_eq!(names(&seen), expected);
    assert_eq!(fold(&Thread::from("hi"), &seen).step_result().response.usage, usage);
}

#[tokio::test]
async fn e28_what_the_provider_says_of_its_answer_reaches_the_response() -> Result<()> {
    let answer = || {
        let mut started = Event::message_started();
        if let Event::MessageStarted { id, model, .. } = &mut started {
            (*id, *model) = (Some("msg_1".to_owned()), Some("m-2026".to_owned()));
        }
        let mut completed = Event::message_completed(Some(FinishReason::Stop));
        if let Event::MessageCompleted { message, raw_finish_reason, metadata, .. } = &mut completed
        {
            *message = Arc::new(Message::assistant("x"));
            *raw_finish_reason = Some("end_turn".to_owned());
            *metadata = common::map(json!({"service_tier": "standard"}));
        }
        vec![started, Event::text_delta("x"), completed]
    };
    let engine = || Engine::new(Canned::new([answer()]));
    let response = engine().generate("hi").request_id("r").await?;
    assert_eq!(response.id.as_deref(), Some("msg_1"));
    assert_eq!(response.model.as_deref(), Some("m-2026"));
    assert_eq!(response.raw_finish_reason.as_deref(), Some("end_turn"));
    assert_eq!(response.request_id.as_deref(), Some("r"));
    assert_eq!(response.metadata, common::map(json!({"service_tier": "standard"})));

    assert_eq!(engine().step("hi").request_id("r").await?.response, response);
    assert_eq!(engine().chat("hi").request_id("r").await?.final_response, Some(response.clone()));
    let streamed = events(engine().generate("hi").request_id("r").stream()).await;
    assert_eq!(fold(&Thread::from("hi"), &streamed).response(), response);
    Ok(())
}

#[tokio::test]
async fn e29_options_of_the_loop_do_not_reach_the_model_of_a_single_call() -> Result<()> {
    let model = scripted([says("x")]);
    let generate =
        Engine::new(model.clone()).generate("hi").param("max_turns", 3).param("top_k", 5);
    generate
        .param("mode", "manual")
        .options(mynah::Options::new().halt_when("test", |_| true))
        .await?;
    let mut expected = Request::from("hi").with_options(common::map(json!({"top_k": 5})));
    expected.stream = true;
    assert_eq!(model.requests(), [expected]);
    Ok(())
}

#[tokio::test]
async fn a_stream_that_breaks_the_rules_is_a_malformed_event() -> Result<()> {
    let started = |id: &str| Event::ToolCallStarted { id: id.to_owned(), name: "t".to_owned() };
    let delta =
        |id: &str| Event::ToolCallDelta { id: id.to_owned(), arguments_delta: "{".to_owned() };
    let done = || Event::tool_call_completed(mynah::ToolCall::new("c0", "t", "{}"));
    for (why, broken) in [
        ("it came after the end of the answer", vec![]),
        ("the call was not started", vec![delta("c0")]),
        ("the call was already complete", vec![started("c0"), done(), delta("c0")]),
        ("the call has no id", vec![started("")]),
    ] {
        let mut answer = vec![Event::message_started()];
        let after = broken.is_empty().then(|| Event::text_delta("more"));
        answer.extend(broken);
        answer.push(Event::message_completed(Some(FinishReason::Stop)));
        answer.extend(after);
        let result = Engine::new(Canned::new([answer])).chat("hi").await?;
        let error = result.error().unwrap_or_else(|| panic!("{why}: no error"));
        assert_eq!(error.kind(), ErrorKind::Stream(StreamReason::MalformedEvent), "{why}");
        assert!(error.to_string().ends_with(why), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn an_adapter_that_emits_what_is_not_a_models_gets_malformed_event() -> Result<()> {
    let foreign = [
        Event::tool_execution_started("c", "n", json!({})),
        Event::tool_result_encoded("c", "x"),
        Event::step_completed(
            mynah::Response::new(Message::assistant("forged")),
            Thread::new(),
            mynah::ToolMode::Auto,
            Vec::new(),
        ),
        Event::ChatCompleted {
            result: Box::new(mynah::ChatResult::new(Thread::new(), HaltReason::Completed)),
        },
    ];
    for event in foreign {
        let name = event.type_name();
        let answer = || {
            let completed = Event::message_completed(Some(FinishReason::Stop));
            vec![Event::message_started(), Event::text_delta("a"), event.clone(), completed]
        };
        let result = Engine::new(Canned::new([answer()])).chat("hi").request_id("r").await?;
        let error = result.error().expect("an error");
        assert_eq!(result.halted_reason, HaltReason::Error, "{name}");
        assert_eq!(error.kind(), ErrorKind::Stream(StreamReason::MalformedEvent));
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(transcript(&result.thread), ["user: hi", "assistant: a"], "{name}");

        let chat = Engine::new(Canned::new([answer()])).chat("hi").request_id("r");
        let seen = events(chat.stream()).await;
        let expected = ["message_started", "text_delta", "error", "message_completed"];
        assert_eq!(names(&seen), [&expected[..], &["step_completed", "chat_completed"]].concat());
        assert_eq!(fold(&Thread::from("hi"), &seen).chat_result(), result, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_network_error_and_its_text_is_kept() -> Result<()> {
    let canned = vec![Event::message_started(), Event::text_delta("hal")];
    let scripts = [json!([{"text": "hal"}, {"disconnect": true}])];
    let engines = [Engine::new(Canned::new([canned])), Engine::new(scripted(scripts))];
    for (engine, provider) in engines.into_iter().zip(["canned", "scripted"]) {
        let result = engine.chat("hi").await?;
        let error = result.error().expect("an error");
        assert_eq!(result.halted_reason, HaltReason::Error);
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
        assert_eq!(error.metadata()["provider"], provider);

        let said = result.thread.last_message().expect("a message");
        let marks = json!({"finish_reason": "error", "partial": true});
        assert_eq!((said.text().as_ref(), said.metadata()), ("hal", &common::map(marks)));
        let response = result.final_response.as_ref().expect("a response");
        assert_eq!(response.finish_reason, Some(FinishReason::Error));
        assert_eq!(result.steps.len(), 1);
        assert!(result.steps[0].done);
    }
    Ok(())
}

#[tokio::test]
async fn an_error_is_not_undone_by_what_comes_after_it() -> Result<()> {
    let error = mynah::Error::adapter(AdapterReason::Overloaded);
    let model = Canned::new([vec![
        Event::message_started(),
        Event::text_delta("a"),
        Event::Error { error: error.clone() },
        Event::text_delta("b"),
        Event::message_completed(Some(FinishReason::Stop)),
    ]]);
    let result = Engine::new(model).chat("hi").await?;
    assert_eq!(result.halted_reason, HaltReason::Error);
    assert_eq!(result.error(), Some(error));
    assert_eq!(result.text(), "ab");
    Ok(())
}

fn two_deltas() -> testing::Scripted {
    scripted([json!([{"text": "a"}, {"text": "b"}, {"finish": "stop"}])])
}

fn count(events: &[Event], name: &str) -> usize {
    names(events).iter().filter(|found| **found == name).count()
}
