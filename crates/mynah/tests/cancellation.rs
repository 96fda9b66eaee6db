//! Ending a chat from outside: by a handle, by a deadline, by dropping its stream; at every event of two turns with tools
//! side by side.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use mynah::{
    CancelHandle, Chat, ChatResult, Engine, Event, EventStream, HaltReason, Message, Result, Role,
    Thread, Tool, Usage,
    testing::{self, Scripted},
};
use serde_json::json;
use tokio::{runtime::Handle, time::advance};

use crate::common::{
    self, Counter, both, calls, completed, events, fold, hanging, pull, says, scripted, transcript,
};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn c40_a_chat_cancelled_at_any_event_keeps_what_was_said_and_done() {
    for position in 0..Rig::new().length().await {
        let rig = Rig::new();
        let mut stream = rig.chat().stream();
        let cancel = stream.cancel_handle();
        let seen = pull(&mut stream, position).await;
        cancel.cancel();
        rig.assert_ended(HaltReason::Cancelled, position, seen, stream).await;
    }
}

#[tokio::test(start_paused = true)]
async fn c40_a_chat_whose_deadline_passes_at_any_event_keeps_what_was_said_and_done() {
    // Before the first event no time runs.
    for position in 1..Rig::new().length().await {
        let rig = Rig::new();
        let mut stream = rig.chat().deadline(HOUR).stream();
        let seen = pull(&mut stream, position).await;
        advance(HOUR).await;
        rig.assert_ended(HaltReason::Deadline, position, seen, stream).await;
    }
}

#[tokio::test(start_paused = true)]
async fn c40_text_and_usage_of_a_cancelled_answer_are_on_the_final_response() {
    let script =
        json!([{"text": "so "}, {"usage": {"input_tokens": 5}}, {"text": "far"}, {"text": "!"}]);
    let mut stream = Engine::new(scripted([script])).chat("hi").stream();
    let cancel = stream.cancel_handle();
    let seen = pull(&mut stream, 4).await;
    cancel.cancel();
    let result = completed(&events(stream).await);
    assert_eq!(testing::text(&seen), "so far");
    assert_eq!(result.text(), "so far");
    let usage = Usage::new(5, None);
    assert_eq!(result.final_response.expect("a response").usage, usage);
    let said = result.thread.last_message().expect("a message");
    assert_eq!(said.metadata()["partial"], true);
}

#[tokio::test(start_paused = true)]
async fn c28_dropping_a_stream_at_any_event_leaves_nothing_behind() {
    let mut most_running = 0;
    for position in 0..=Rig::new().length().await {
        for poll_once_more in [false, true] {
            let rig = Rig::new();
            let mut stream = rig.chat().stream();
            pull(&mut stream, position).await;
            if poll_once_more {
                // Brings what waits, a pause of the model or the tools, into the middle of its waiting.
                _ = stream.next().now_or_never();
            }
            most_running = most_running.max(rig.started.get() - rig.dropped.get());
            drop(stream);
            rig.assert_nothing_left(&format!("{position}, polled once more: {poll_once_more}"));
        }
    }
    assert_eq!(most_running, 2, "both tools were caught running");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_chat_that_is_awaited_leaves_nothing_behind() {
    let rig = Rig::new();
    let chat = rig.chat().into_future();
    // The first answer takes 10 ms, then the tools run for 10 and 20 ms.
    let in_time = tokio::time::timeout(Duration::from_millis(15), chat).await;
    assert!(in_time.is_err());
    assert_eq!(rig.started.get(), 2);
    rig.assert_nothing_left("dropped by its timeout");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_chat_whose_tools_hang() -> Result<()> {
    let dropped = Counter::default();
    let model = scripted([both("echo", "hang"), says("never")]);
    let engine = Engine::new(model.clone()).tools([common::echo(), hanging("hang", &dropped)]);
    let result = engine.chat("hi").deadline(Duration::from_millis(50)).await?;
    assert_eq!(result.halted_reason, HaltReason::Deadline);
    assert_eq!(result.metadata, common::map(json!({"repaired_tool_calls": ["c1"]})));
    let expected = [
        "user: hi",
        "assistant: → c0 → c1",
        "tool c0: {}",
        r#"tool c1: {"error":"the turn ended before this call had a result"}"#,
    ];
    assert_eq!(transcript(&result.thread), expected);
    assert_eq!((dropped.get(), model.calls()), (1, 1));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_chat_that_waits_for_its_next_try() -> Result<()> {
    let busy = json!([{"preflight_error": "overloaded", "retry_after_ms": 60_000}]);
    let model = scripted([busy, says("never")]);
    let chat = Engine::new(model.clone()).chat("hi").retry(mynah::RetryPolicy::attempts(2));
    let result = chat.deadline(Duration::from_secs(1)).await?;
    let expected = ChatResult::new(Thread::from("hi"), HaltReason::Deadline);
    assert_eq!(result, expected, "nothing was said, so there is nothing but the question");
    assert_eq!(model.calls(), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_deadline_runs_from_the_first_poll_on() -> Result<()> {
    let limit = Duration::from_millis(10);
    let stream = Engine::new(scripted([says("in time")])).chat("hi").deadline(limit).stream();
    advance(HOUR).await;
    let result = completed(&events(stream).await);
    assert_eq!(
        (result.halted_reason.clone(), result.text().as_ref()),
        (HaltReason::Completed, "in time")
    );
    Ok(())
}

#[test]
fn a_stream_with_a_deadline_can_be_made_where_no_runtime_is() {
    let engine = Engine::new(scripted([says("x")]));
    let stream = engine.chat("hi").deadline(HOUR).stream();
    assert!(format!("{stream:?}").contains("EventStream"));
}

#[tokio::test]
async fn a_handle_cancels_from_another_task_what_waits() -> Result<()> {
    let dropped = Counter::default();
    let engine = Engine::new(scripted([both("hang", "hang")])).tool(hanging("hang", &dropped));
    let cancel = CancelHandle::new();
    let chat = tokio::spawn(engine.chat("hi").cancel_handle(&cancel).into_future());
    tokio::task::yield_now().await;
    assert!(!chat.is_finished());
    cancel.cancel();
    let result = chat.await.expect("no panic")?;
    assert_eq!(result.halted_reason, HaltReason::Cancelled);
    assert_eq!(dropped.get(), 2);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn one_handle_cancels_many_chats_and_many_handles_one() -> Result<()> {
    let hang = || {
        let engine = Engine::new(scripted([calls([("c0", "hang", json!({}))])]));
        engine.tool(hanging("hang", &Counter::default())).chat("hi")
    };
    let shared = CancelHandle::new();
    let chats = [hang().cancel_handle(&shared), hang().cancel_handle(&shared)];
    shared.cancel();
    assert!(shared.is_cancelled());
    for chat in chats {
        assert_eq!(chat.await?.halted_reason, HaltReason::Cancelled);
    }

    let given = CancelHandle::new();
    hang().cancel_handle(&given).stream().cancel_handle().cancel();
    assert!(!given.is_cancelled(), "a stream's own handle is for that stream alone");

    for used in 0..3 {
        let given = CancelHandle::new();
        let mut stream = hang().cancel_handle(&given).stream();
        let handles = [given, stream.cancel_handle(), stream.cancel_handle()];
        handles[used].cancel();
        let seen = tokio::time::timeout(Duration::from_secs(5), events(stream)).await;
        let seen = seen.unwrap_or_else(|_| panic!("handle {used} does nothing"));
        assert_eq!(completed(&seen).halted_reason, HaltReason::Cancelled);
    }
    Ok(())
}

#[tokio::test]
async fn a_chat_that_is_complete_cannot_be_cancelled_any_more() {
    let mut stream = Engine::new(scripted([says("x")])).chat("hi").stream();
    let cancel = stream.cancel_handle();
    while stream.next().await.unwrap().unwrap().type_name() != "chat_completed" {}
    cancel.cancel();
    assert_eq!(events(stream).await, []);
}

#[tokio::test]
async fn a_cancelled_conversation_can_go_on() -> Result<()> {
    let script =
        json!([{"text": "hal"}, {"tool_call": {"id": "c0", "name": "echo"}}, {"text": "never"}]);
    let model = scripted([script, says("again")]);
    let engine = Engine::new(model.clone()).tool(common::echo());
    let mut stream = engine.chat("hi").stream();
    let cancel = stream.cancel_handle();
    pull(&mut stream, 4).await;
    cancel.cancel();
    let cancelled = completed(&events(stream).await);
    let result = engine.chat(cancelled.thread.with_user("go on")).await?;
    let expected = [
        "user: hi",
        "assistant: hal → c0",
        r#"tool c0: {"error":"the turn ended before this call had a result"}"#,
        "user: go on",
        "assistant: again",
    ];
    assert_eq!(transcript(&result.thread), expected);
    Ok(())
}

/// Two turns: one with two tools side by side, one with text. Answers and tools take their time.
struct Rig {
    model: Scripted,
    engine: Engine,
    started: Counter,
    dropped: Counter,
}

impl Rig {
    fn new() -> Self {
        let model = scripted([
            json!([
                {"reasoning": "hm"}, {"text": "let me "}, {"delay_ms": 10}, {"text": "see"},
                {"usage": {"input_tokens": 7, "output_tokens": 3}},
                {"tool_call": {"id": "c0", "name": "slow", "arguments": {"ms": 20}}},
                {"tool_call_start": {"id": "c1", "name": "slow"}},
                {"tool_call_delta": {"id": "c1", "arguments_delta": "{\"ms\":"}},
                {"tool_call_delta": {"id": "c1", "arguments_delta": " 10}"}},
                {"finish": "tool_calls"},
            ]),
            json!([{"text": "do"}, {"delay_ms": 10}, {"text": "ne"}, {"finish": "stop"}]),
        ]);
        let (started, dropped) = (Counter::default(), Counter::default());
        let (on_start, on_drop) = (started.clone(), dropped.clone());
        let slow = Tool::new("slow", "", json!({})).handler(move |arguments, _| {
            on_start.add();
            let guard = on_drop.on_drop();
            async move {
                let _guard = guard;
                let ms = arguments["ms"].as_u64().unwrap_or_default();
                tokio::time::sleep(Duration::from_millis(ms)).await;
                arguments
            }
        });
        let engine = Engine::new(model.clone()).tool(slow);
        Self { model, engine, started, dropped }
    }

    fn chat(&self) -> Chat {
        self.engine.chat("hi")
    }

    /// How many events the whole chat has.
    async fn length(&self) -> usize {
        let seen = events(self.chat().stream()).await;
        assert_eq!(completed(&seen).halted_reason, HaltReason::Completed);
        assert_eq!(self.started.get(), 2);
        seen.len()
    }

    async fn assert_ended(
        &self,
        reason: HaltReason,
        position: usize,
        mut seen: Vec<Event>,
        mut stream: EventStream,
    ) {
        seen.extend(events(&mut stream).await);
        // The stream still exists: ending frees everything, not dropping it.
        self.assert_nothing_left(&format!("{reason} at {position}"));
        drop(stream);

        let result = completed(&seen);
        assert_eq!(result.halted_reason, reason, "{position}");
        assert_eq!(unanswered(&seen), repaired(&result), "{position}");
        assert!(mynah::validate::thread(&result.thread).is_ok(), "{position}");
        let said: String = from_model(&result).map(|message| message.text().into_owned()).collect();
        assert_eq!(said, testing::text(&seen), "{position}");
        let partial = from_model(&result).filter(|m| m.metadata().contains_key("partial")).count();
        assert_eq!(partial == 1, cut_in_mid_answer(&seen), "{position}");

        // A fold of the events before the end equals the chat's own result.
        let mut told = fold(&Thread::from("hi"), &seen[..seen.len() - 1]).chat_result();
        told.halted_reason = reason;
        assert_eq!(result, told, "{position}");
    }

    #[track_caller]
    fn assert_nothing_left(&self, when: &str) {
        assert_eq!(self.model.open_streams(), 0, "open streams, {when}");
        assert_eq!(self.dropped.get(), self.started.get(), "running tools, {when}");
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "tasks, {when}");
    }
}

fn from_model(result: &ChatResult) -> impl Iterator<Item = &Message> {
    let messages = result.thread.messages.iter().map(AsRef::as_ref);
    messages.filter(|message: &&Message| message.role() == Role::Assistant)
}

/// The calls that were begun and have no result.
fn unanswered(seen: &[Event]) -> Vec<&str> {
    let answered = |id: &str| {
        seen.iter()
            .any(|event| matches!(event, Event::ToolResultEncoded { id: of, .. } if of == id))
    };
    let begun = seen.iter().filter_map(|event| match event {
        Event::ToolCallStarted { id, .. } => Some(id.as_str()),
        _ => None,
    });
    begun.filter(|id| !answered(id)).collect()
}

fn repaired(result: &ChatResult) -> Vec<&str> {
    let listed = result.metadata.get("repaired_tool_calls").and_then(|list| list.as_array());
    listed.into_iter().flatten().filter_map(|id| id.as_str()).collect()
}

/// Whether the last answer had said something and was not complete.
fn cut_in_mid_answer(seen: &[Event]) -> bool {
    let names = testing::names(seen);
    let last = |name| names.iter().rposition(|found| *found == name);
    let began = last("reasoning_delta").max(last("text_delta"));
    began > last("message_completed")
}
