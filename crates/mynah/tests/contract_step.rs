//! One model call and its tools.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _};
use mynah::{
    AdapterReason, CancelHandle, Engine, EngineReason, Error, ErrorKind, Event, FinishReason,
    Message, OnUnknownTool, Result, RetryPolicy, StreamReason, Tool, ToolCall, ToolMode,
    ToolOutcome, testing::names,
};
use serde_json::json;

use crate::common::{
    self, Canned, Counter, both, call, calls, counted, echo, events, fixtures::fixtures, fold,
    folded, hanging, map, refusal, results, says, scripted, step, tool, transcript,
};

#[tokio::test]
async fn s01_a_text_answer_is_a_step_that_is_done() -> Result<()> {
    let step = step([], says("hi there")).await?;
    assert!(step.done);
    assert_eq!(transcript(&step.thread), ["user: hi", "assistant: hi there"]);
    assert_eq!((step.tool_results, step.metadata), (vec![], map(json!({}))));
    Ok(())
}

#[tokio::test]
async fn s02_a_tool_turn_is_a_step_that_is_not_done() -> Result<()> {
    let step = step([echo()], echo_call()).await?;
    assert!(!step.done);
    assert_eq!(results(&step), [r#"c0: {"x":1}"#]);
    let expected = ["user: hi", "assistant: → c0", r#"tool c0: {"x":1}"#];
    assert_eq!(transcript(&step.thread), expected);
    assert_eq!(step.metadata, map(json!({})));
    Ok(())
}

#[tokio::test]
async fn s03_in_manual_mode_no_tool_runs_whatever_its_own_flag() -> Result<()> {
    for make in [|tool: Tool| tool, Tool::manual] {
        let (counting, runs) = counted("echo");
        let step = step([make(counting)], echo_call()).mode(ToolMode::Manual).await?;
        assert_eq!((step.done, runs.get()), (false, 0));
        assert_eq!(step.tool_results, []);
        assert_eq!(step.metadata, map(json!({"mode": "manual"})));
        assert!(step.is_manual());
        assert_eq!(transcript(&step.thread), ["user: hi", "assistant: → c0"]);
        assert_eq!(step.response.tool_calls().count(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn s04_a_manual_tools_call_is_handed_to_the_caller() -> Result<()> {
    let step = step([echo().manual()], echo_call()).await?;
    let handed = ToolCall::from_value("c0", "echo", json!({"x": 1}));
    assert_eq!(step.metadata, map(json!({"manual_tool_calls": [&handed]})));
    assert_eq!(step.manual_tool_calls(), [handed]);
    assert!(!step.done && !step.is_manual());
    assert_eq!(transcript(&step.thread), ["user: hi", "assistant: → c0"]);
    Ok(())
}

#[tokio::test]
async fn s05_beside_a_manual_call_the_others_run() -> Result<()> {
    let step = step([echo(), hand_over()], both("echo", "hand_over")).await?;
    assert_eq!(results(&step), ["c0: {}"]);
    let handed = ToolCall::from_value("c1", "hand_over", json!({}));
    assert_eq!(step.metadata, map(json!({"manual_tool_calls": [handed]})));
    assert!(!step.done);
    assert_eq!(transcript(&step.thread), ["user: hi", "assistant: → c0 → c1", "tool c0: {}"]);
    Ok(())
}

#[tokio::test]
async fn s06_a_halt_wins_over_a_manual_call() -> Result<()> {
    let ask = tool("ask", |_| ToolOutcome::ask("q"));
    let step = step([ask, hand_over()], both("ask", "hand_over")).await?;
    assert!(step.done);
    let halt = json!({
        "halted_reason": "ask_user", "pending_question": "q", "pending_tool_call_id": "c0", "ask_user_opts": {},
    });
    assert_eq!(step.metadata, map(halt));
    Ok(())
}

#[tokio::test]
async fn s07_an_unknown_tool_is_an_error_before_any_tool_runs() {
    let (counting, runs) = counted("echo");
    for manual in [false, true] {
        let known = if manual { counting.clone().manual() } else { counting.clone() };
        let error = step([known], both("echo", "nope")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::UnknownTool));
        assert_eq!(error.metadata()["tool_name"], "nope");
    }
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn s07_an_unknown_tool_is_answered_where_the_caller_wants_it() -> Result<()> {
    let run = || step([echo()], both("nope", "echo")).on_unknown_tool(OnUnknownTool::Answer);
    let step = run().on_tool_error(mynah::OnToolError::Halt).await?;
    let told = format!("{}; its tools are: echo", Error::unknown_tool("nope").message());
    let told = json!({"error": told});
    assert_eq!(results(&step), [format!("c0: {told}"), "c1: {}".to_owned()]);
    assert!(!step.done, "it is not a failure of a tool");

    let seen = events(run().stream()).await;
    assert!(!names(&seen).contains(&"error"));
    assert_eq!(folded(&seen), step);
    Ok(())
}

#[tokio::test]
async fn s08_an_unknown_tool_is_an_event_of_the_stream_and_the_step_completes() {
    let seen = events(step([echo()], both("echo", "nope")).stream()).await;
    let [.., error, completed] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(*error, Event::Error { error: Error::unknown_tool("nope") });
    let Event::StepCompleted { response, thread, .. } = completed else { panic!("{completed:?}") };
    assert_eq!(transcript(thread.whole().unwrap()), ["user: hi", "assistant: → c0 → c1"]);
    assert_eq!(response.finish_reason, Some(FinishReason::ToolCalls));
    assert!(folded(&seen).done);
}

#[tokio::test]
async fn s09_an_error_in_mid_stream_is_a_result_that_says_so() -> Result<()> {
    let script = json!([{"text": "hal"}, {"error": "overloaded", "message": "come back later"}]);
    let step = step([], script).await?;
    let error = step.response.error().expect("an error");
    assert!(step.done);
    assert_eq!(step.response.finish_reason, Some(FinishReason::Error));
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Overloaded));
    assert_eq!(error.message(), "come back later");
    assert_eq!(transcript(&step.thread), ["user: hi", "assistant: hal"]);
    Ok(())
}

#[tokio::test]
async fn s09_an_error_before_anything_was_said_leaves_no_message() -> Result<()> {
    let step = step([], json!([{"error": "overloaded"}])).await?;
    assert_eq!(step.response.finish_reason, Some(FinishReason::Error));
    assert_eq!(transcript(&step.thread), ["user: hi"]);
    Ok(())
}

#[tokio::test]
async fn s10_without_an_adapter_every_call_is_refused() {
    let engine = Engine::without_adapter();
    let missing = ErrorKind::Engine(EngineReason::MissingAdapter);
    assert_eq!(engine.step("hi").await.unwrap_err().kind(), missing);
    assert_eq!(refusal(engine.step("hi").stream()).await.kind(), missing);
    assert_eq!(engine.generate("hi").await.unwrap_err().kind(), missing);
    assert_eq!(refusal(engine.generate("hi").stream()).await.kind(), missing);
}

#[tokio::test]
async fn s10_a_model_that_refuses_the_call_makes_it_an_error() {
    let run = || step([], json!([{"preflight_error": "rate_limited", "retry_after_ms": 9}]));
    let error = run().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::RateLimited));
    assert_eq!(error.retry_after(), Some(Duration::from_millis(9)));
    assert_eq!(refusal(run().stream()).await, error);
}

#[tokio::test]
async fn s13_a_step_streams_its_answer_then_its_tools_then_its_end() {
    let seen = events(step([echo()], echo_call()).stream()).await;
    let expected = [
        "message_started",
        "tool_call_started",
        "tool_call_completed",
        "message_completed",
        "tool_execution_started",
        "tool_execution_completed",
        "tool_result_encoded",
        "step_completed",
    ];
    assert_eq!(names(&seen), expected);
    let group = json!([
        {"type": "tool_execution_started", "id": "c0", "name": "echo", "arguments": {"x": 1}},
        {"type": "tool_execution_completed", "id": "c0", "name": "echo", "result": {"ok": {"x": 1}}},
        {"type": "tool_result_encoded", "id": "c0", "content": "{\"x\":1}"},
    ]);
    assert_eq!(json!(seen[4..7]), group);
}

#[tokio::test]
async fn s14_a_question_stands_in_the_thread_of_a_step_as_a_sentinel_only() -> Result<()> {
    let step = step([tool("ask", |_| ToolOutcome::ask("q"))], call("c0", "ask")).await?;
    let expected = ["user: hi", "assistant: → c0", "tool c0: <awaiting user response>"];
    assert_eq!(transcript(&step.thread), expected);
    Ok(())
}

#[tokio::test]
async fn s15_a_wish_for_tools_without_a_call_is_a_step_that_is_not_done() -> Result<()> {
    let step = step([echo()], json!([{"text": "hm"}, {"finish": "tool_calls"}])).await?;
    assert_eq!((step.done, step.tool_results), (false, vec![]));
    assert_eq!(step.metadata, map(json!({})));
    Ok(())
}

#[tokio::test]
async fn s16_dropping_a_step_in_its_answer_closes_the_models_stream_once() {
    let model = Canned::new([common::fixtures::stopped("x")]);
    let mut stream = Engine::new(model.clone()).step("hi").stream();
    assert_eq!(model.requests.all().len(), 0, "nothing happens before the first poll");
    stream.next().await.unwrap().unwrap();
    assert_eq!(model.dropped.get(), 0);
    drop(stream);
    assert_eq!(model.dropped.get(), 1);
}

#[tokio::test]
async fn s17_dropping_a_step_in_its_tools_stops_them_and_leaves_the_model_alone() {
    let dropped = Counter::default();
    let tool_turn = vec![
        Event::message_started(),
        Event::tool_call_completed(ToolCall::new("c0", "hang", "{}")),
        Event::tool_call_completed(ToolCall::new("c1", "hang", "{}")),
        Event::message_completed(Some(FinishReason::ToolCalls)),
    ];
    let model = Canned::new([tool_turn]);
    let mut stream = Engine::new(model.clone()).tool(hanging("hang", &dropped)).step("hi").stream();
    while let Some(Some(event)) = stream.next().now_or_never() {
        event.unwrap();
    }
    assert_eq!((model.dropped.get(), dropped.get()), (1, 0), "the answer is over, the tools run");
    drop(stream);
    assert_eq!((model.dropped.get(), dropped.get()), (1, 2));
}

#[tokio::test]
async fn s18_the_text_that_was_streamed_counts_not_the_models_own_message() -> Result<()> {
    let mut completed = Event::message_completed(Some(FinishReason::Stop));
    if let Event::MessageCompleted { message, .. } = &mut completed {
        *message = Arc::new(Message::assistant(" x").with_metadata("provider_id", "m1"));
    }
    let model = Canned::new([vec![Event::message_started(), Event::text_delta(" x "), completed]]);
    let step = Engine::new(model).step("hi").await?;
    assert_eq!(step.text(), " x ");
    assert_eq!(step.thread.last_message().unwrap().text(), " x ");
    assert_eq!(step.response.metadata, map(json!({"provider_id": "m1"})));
    Ok(())
}

#[tokio::test]
async fn s19_the_assistant_message_says_how_it_ended_and_holds_its_calls() -> Result<()> {
    let text = step([], says("x")).await?;
    let expected = Message::assistant("x").with_metadata("finish_reason", "stop");
    assert_eq!(text.thread.last_message(), Some(&expected));

    let tools = step([echo()], echo_call()).await?;
    let call = mynah::Part::tool_call(ToolCall::from_value("c0", "echo", json!({"x": 1})));
    let expected = Message::assistant_parts([call]).with_metadata("finish_reason", "tool_calls");
    assert_eq!(*tools.thread.messages.get(1).unwrap().as_ref(), expected);

    let unfinished = step([], json!([{"text": "x"}])).await?;
    let expected = Message::assistant("x").with_metadata("finish_reason", json!(null));
    assert_eq!(unfinished.thread.last_message(), Some(&expected));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn s20_a_step_is_the_fold_of_its_stream() -> Result<()> {
    for fixture in fixtures() {
        let seen = events(fixture.step().stream()).await;
        let folded = fold(&fixture.thread, &seen).step_result();
        assert_eq!(fixture.step().await?, folded, "{}", fixture.name);
    }
    Ok(())
}

#[tokio::test]
async fn s20_a_single_call_is_the_fold_of_its_stream_and_runs_no_tool() -> Result<()> {
    for fixture in fixtures() {
        let seen = events(fixture.generate().stream()).await;
        let own = names(&seen).into_iter().filter(|name| {
            name.starts_with("tool_execution")
                || ["step_completed", "chat_completed"].contains(name)
        });
        assert_eq!(own.count(), 0, "{}", fixture.name);
        let folded = fold(&fixture.thread, &seen).response();
        assert_eq!(fixture.generate().await?, folded, "{}", fixture.name);
    }
    Ok(())
}

#[tokio::test]
async fn s21_everything_but_a_wish_for_tools_is_done_on_both_paths() -> Result<()> {
    let reasons = ["stop", "length", "content_filter", "other"];
    let finishes = reasons.map(|reason| json!([{"text": "x"}, {"finish": reason}]));
    for script in finishes.into_iter().chain([json!([{"text": "x"}]), json!([])]) {
        let awaited = step([], script.clone()).await?;
        assert!(awaited.done, "{script}");
        let streamed = folded(&events(step([], script.clone()).stream()).await);
        assert_eq!(streamed, awaited, "{script}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cancelled_step_keeps_what_was_said_and_done() {
    let script = json!([
        {"text": "let me see"}, {"tool_call": {"id": "c0", "name": "echo", "arguments": {}}},
        {"tool_call": {"id": "c1", "name": "hang", "arguments": {}}}, {"finish": "tool_calls"},
    ]);
    // Twelve events; the caller that asks for a thirteenth waits for the tool that hangs.
    for position in 0..=13 {
        let dropped = Counter::default();
        let model = scripted([script.clone()]);
        let engine = Engine::new(model.clone()).tools([echo(), hanging("hang", &dropped)]);
        let mut stream = engine.step("hi").stream();
        let cancel = stream.cancel_handle();
        let mut seen = Vec::new();
        while seen.len() < position
            && let Some(Some(event)) = stream.next().now_or_never()
        {
            seen.push(event.unwrap());
        }
        cancel.cancel();
        seen.extend(events(stream).await);
        assert_eq!(model.open_streams(), 0, "{position}");
        assert_eq!(dropped.get(), usize::from(position == 13), "{position}");

        let named = names(&seen);
        assert_eq!(named[named.len() - 2..], ["error", "step_completed"], "{position}");
        let step = folded(&seen);
        let error = step.response.error().expect("an error");
        assert_eq!(error.kind(), ErrorKind::Stream(StreamReason::Cancelled), "{position}");
        assert!(step.done);
        assert_eq!(step.text(), mynah::testing::text(&seen), "{position}");
    }
}

#[tokio::test]
async fn a_step_that_is_complete_cannot_be_cancelled_any_more() {
    for script in [says("x"), echo_call()] {
        let mut stream = step([echo()], script).stream();
        let cancel = stream.cancel_handle();
        while stream.next().await.unwrap().unwrap().type_name() != "step_completed" {}
        cancel.cancel();
        assert_eq!(events(stream).await, [], "step_completed is the last event");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_ended_before_the_model_said_anything_says_why() -> Result<()> {
    let limit = Duration::from_millis(10);
    let busy = || scripted([json!([{"preflight_error": "overloaded"}]), says("late")]);
    let step = || Engine::new(busy()).step("hi").retry(RetryPolicy::attempts(2)).deadline(limit);
    let generate =
        || Engine::new(busy()).generate("hi").retry(RetryPolicy::attempts(2)).deadline(limit);
    let timeout = ErrorKind::Stream(StreamReason::Timeout);
    assert_eq!(step().await?.response.error().expect("an error").kind(), timeout);
    assert_eq!(generate().await?.error().expect("an error").kind(), timeout);

    let cancel = CancelHandle::new();
    cancel.cancel();
    let cancelled = ErrorKind::Stream(StreamReason::Cancelled);
    let awaited = step().cancel_handle(&cancel).await?;
    assert_eq!(awaited.response.error().expect("an error").kind(), cancelled);
    assert_eq!(transcript(&awaited.thread), ["user: hi"]);
    let seen = events(step().cancel_handle(&cancel).stream()).await;
    assert_eq!(names(&seen), ["error", "step_completed"]);
    assert_eq!(folded(&seen), awaited);
    Ok(())
}

fn echo_call() -> serde_json::Value {
    calls([("c0", "echo", json!({"x": 1}))])
}

fn hand_over() -> Tool {
    Tool::new("hand_over", "", json!({})).manual()
}
