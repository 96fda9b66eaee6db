//! Sessions: what becomes of one in each operation.

use futures_util::StreamExt as _;
use mynah::{
    AdapterReason, ChatResult, Engine, ErrorKind, Message, Result, Session, SessionReason,
    SessionState, Status, ToolMode,
};
use serde_json::{Value, json};

use crate::{
    common::{call, calls, map, says, transcript},
    sessions::{At, awaiting, engine, session},
};

#[tokio::test]
async fn d01_start_from_messages_completes() {
    let (engine, _) = engine([says("hi")]);
    let (session, result) = engine.start(vec![Message::user("hello")]).await.unwrap();
    assert_eq!(session.status(), Status::Completed);
    assert_eq!(result.halted_reason.as_str(), "completed");
    assert_eq!(session.thread, result.thread);
    assert_eq!(transcript(&session.thread), ["user: hello", "assistant: hi"]);
}

#[tokio::test]
async fn d02_start_from_a_session_keeps_id_context_and_metadata() {
    let (engine, _) = engine([says("hi")]);
    let mut given = Session::from("hello").with_id("s1").with_context(map(json!({"tenant": 7})));
    given.metadata = map(json!({"title": "greeting"}));
    let (session, _) = engine.start(&given).await.unwrap();
    assert_eq!(session.id, given.id);
    assert_eq!(session.context, given.context);
    assert_eq!(session.metadata, given.metadata);
}

#[tokio::test]
async fn d05_a_reply_to_a_question_clears_it_and_goes_on() {
    let waiting = session(At::AwaitingUser).await;
    let (engine, model) = engine([says("deleted")]);
    let (after, _) = engine.reply(&waiting, "yes").await.unwrap();
    assert_eq!(after.state, SessionState::Completed);
    assert_eq!((after.pending_question(), after.pending_tool_call_id()), (None, None));
    let sent = &model.requests()[0].messages;
    assert_eq!(sent.last().unwrap().text(), "yes");
    let said = transcript(&after.thread);
    assert_eq!(said[3..], ["assistant: Really?", "user: yes", "assistant: deleted"]);
}

#[tokio::test]
async fn d06_a_question_is_answered_by_a_user_and_by_nobody_else() {
    let waiting = session(At::AwaitingUser).await;
    let (engine, _) = engine([says("never heard")]);
    for message in [None, Some(Message::assistant("yes")), Some(Message::system("yes"))] {
        let refused = engine.continue_session(&waiting, message).await.unwrap_err();
        assert_eq!(refused.reason(), "invalid_status");
        assert_eq!(refused.metadata()["operation"], "continue");
        assert_eq!(refused.metadata()["status"], "awaiting_user");
    }
}

#[tokio::test]
async fn d08_manual_mode_leaves_every_call_pending() {
    let session = awaiting(["c0", "c1"]).await;
    assert_eq!(session.status(), Status::AwaitingTools);
    assert_eq!(pending(&session), ["c0", "c1"]);
    assert_eq!(transcript(&session.thread), ["user: hi", "assistant: → c0 → c1"]);
}

#[tokio::test]
async fn d09_one_result_of_two_leaves_the_other_call_pending() {
    let session = awaiting(["c0", "c1"]).await;
    let session = session.submit_tool_result("c0", "r0").unwrap();
    assert_eq!(session.status(), Status::AwaitingTools);
    assert_eq!(pending(&session), ["c1"]);
}

#[tokio::test]
async fn d10_the_last_result_makes_it_idle_and_continue_asks_the_model_again() {
    let session = awaiting(["c0", "c1"]).await;
    let session = session.submit_tool_result("c0", "r0").unwrap();
    let session = session.submit_tool_result("c1", "r1").unwrap();
    assert_eq!(session.status(), Status::Idle);

    let (engine, model) = engine([says("thanks"), says("thanks")]);
    let (awaited, _) = engine.continue_session(&session, None).await.unwrap();
    assert_eq!(awaited.status(), Status::Completed);
    let said = transcript(&awaited.thread);
    assert_eq!(said[2..], ["tool c0: r0", "tool c1: r1", "assistant: thanks"]);
    let mut turn = engine.continue_session(&session, None).stream();
    while turn.next().await.is_some() {}
    let (streamed, _) = turn.finish();
    assert_eq!(streamed, awaited);
    assert_eq!(model.requests()[0].messages, session.thread.messages);
}

#[tokio::test]
async fn d11_a_result_for_an_unknown_call_is_refused_by_name() {
    let session = awaiting(["c0", "c1"]).await;
    let refused = session.submit_tool_result("bogus", "r").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Session(SessionReason::UnknownToolCallId));
    assert_eq!(refused.metadata()["tool_call_id"], "bogus");
}

#[tokio::test]
async fn d12_a_batch_with_an_unknown_call_lands_nothing() {
    let session = awaiting(["c0", "c1"]).await;
    let before = session.clone();
    let refused = session.submit_tool_results([("c0", "r0"), ("bogus", "r1")]).unwrap_err();
    assert_eq!(refused.metadata()["tool_call_id"], "bogus");
    assert_eq!(session, before);

    let all = session.submit_tool_results([("c1", "r1"), ("c0", "r0")]).unwrap();
    assert_eq!(all.status(), Status::Idle);
    assert_eq!(transcript(&all.thread)[2..], ["tool c1: r1", "tool c0: r0"]);
}

#[tokio::test]
async fn d14_submitted_text_and_parts_stand_as_they_are_and_the_rest_becomes_json() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let cases = [
        (json!({"ok": true}), json!("{\"ok\":true}")),
        (json!("plain \"text\""), json!("plain \"text\"")),
        (json!(""), json!("")),
        (parts.clone(), parts),
        (json!([1, 2]), json!("[1,2]")),
        (json!(42), json!("42")),
        (json!(null), json!("null")),
    ];
    let session = awaiting(["c0"]).await;
    for (content, expected) in cases {
        let after = session.submit_tool_result("c0", content).unwrap();
        let message = json!(after.thread.last_message());
        assert_eq!(message["role"], "tool");
        assert_eq!(message["tool_call_id"], "c0");
        assert_eq!(message["content"], expected);
    }
}

#[tokio::test]
async fn d15_of_mixed_tools_only_the_manual_calls_are_pending() {
    let session = mixed(ToolMode::Auto).await;
    assert_eq!(session.status(), Status::AwaitingTools);
    assert_eq!(pending(&session), ["c1"]);
    assert_eq!(
        transcript(&session.thread),
        ["user: hi", "assistant: → c0 → c1", r#"tool c0: {"x":1}"#]
    );
    let session = session.submit_tool_result("c1", "picked").unwrap();
    let (engine, _) = engine([says("done")]);
    let (session, _) = engine.continue_session(&session, None).await.unwrap();
    assert_eq!(transcript(&session.thread)[3..], ["tool c1: picked", "assistant: done"]);
}

#[tokio::test]
async fn d16_a_result_for_a_call_that_ran_by_itself_is_refused() {
    let refused = mixed(ToolMode::Auto).await.submit_tool_result("c0", "r").unwrap_err();
    assert_eq!(refused.reason(), "unknown_tool_call_id");
}

#[tokio::test]
async fn d17_manual_mode_wins_over_the_flags_of_tools() {
    let session = mixed(ToolMode::Manual).await;
    assert_eq!(pending(&session), ["c0", "c1"]);
    assert_eq!(transcript(&session.thread), ["user: hi", "assistant: → c0 → c1"]);
}

#[tokio::test]
async fn d18_a_tool_that_asks_leaves_its_question_and_its_call() {
    let session = session(At::AwaitingUser).await;
    assert_eq!(session.status(), Status::AwaitingUser);
    assert_eq!(session.pending_question(), Some("Really?"));
    assert_eq!(session.pending_tool_call_id(), Some("c0"));
    assert_eq!(
        transcript(&session.thread)[2..],
        ["tool c0: <awaiting user response>", "assistant: Really?"]
    );
    assert_eq!(session.turn_metadata["ask_user_opts"], json!({"choices": ["yes", "no"]}));
}

#[tokio::test]
async fn d19_a_mid_stream_error_fails_the_session_and_not_the_call() {
    let (engine, _) = engine([json!([{"text": "par"}, {"error": "rate_limited"}])]);
    let (session, result) = engine.start("hi").await.unwrap();
    assert_eq!(session.status(), Status::Error);
    assert_eq!(result.halted_reason.as_str(), "error");
    let error = session.error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::RateLimited));
    assert_eq!(transcript(&session.thread), ["user: hi", "assistant: par"]);
}

#[tokio::test]
async fn d20_a_failing_tool_fails_the_session_when_the_policy_halts() {
    let (engine, _) = engine([call("c0", "boom")]);
    let (session, result) =
        engine.start("hi").on_tool_error(mynah::OnToolError::Halt).await.unwrap();
    assert_eq!(result.halted_reason.as_str(), "tool_error");
    assert_eq!(session.status(), Status::Error);
    assert_eq!(result.error().expect("an error").reason(), "failed");
    assert_eq!(session.error().expect("an error").message(), "tool error (boom): boom");
}

#[tokio::test]
async fn d21_max_turns_halt_when_and_a_tools_own_halt_complete_the_session() {
    let turn = |tool: &str| engine([call("c0", tool)]).0.start("hi");
    let cases = [
        ("max_turns", turn("echo").max_turns(1)),
        ("halt_when", turn("echo").halt_when("test", |_| true)),
        ("plan_submitted", turn("plan")),
    ];
    for (reason, turn) in cases {
        let (session, result) = turn.await.unwrap();
        assert_eq!(result.halted_reason.as_str(), reason);
        assert_eq!(session.status(), Status::Completed, "{reason}");
        assert_eq!(session.turn_metadata, result.metadata, "{reason}");
    }
}

#[tokio::test]
async fn d22_a_tool_sees_the_calls_context_else_the_sessions() {
    let given = Session::from("hi").with_context(map(json!({"from": "session"})));
    let turn = || asks_who().context("from", "engine").start(&given);
    assert_eq!(who(turn().await)["context"], json!({"from": "session"}));
    let call = turn().context("from", "call");
    assert_eq!(who(call.await)["context"], json!({"from": "call"}));
}

#[tokio::test]
async fn d23_a_tool_sees_the_sessions_id_if_it_has_one() {
    let named = Session::from("hi").with_id("s");
    assert_eq!(who(asks_who().start(&named).await)["session_id"], "s");
    assert_eq!(who(asks_who().start("hi").await)["session_id"], Value::Null);
    let call = asks_who().start(&named).session_id("other");
    assert_eq!(who(call.await)["session_id"], "other");
}

#[tokio::test]
async fn d24_a_step_with_tools_leaves_the_session_idle_with_their_results() {
    let (engine, model) = engine([call("c0", "echo"), says("done")]);
    let (session, step) = engine.step_session(&Session::from("hi")).await.unwrap();
    assert!(!step.done);
    assert_eq!(session.status(), Status::Idle);
    assert_eq!(transcript(&session.thread), ["user: hi", "assistant: → c0", "tool c0: {}"]);
    assert_eq!(model.calls(), 1);
    let (session, step) = engine.step_session(&session).await.unwrap();
    assert!(step.done);
    assert_eq!(session.status(), Status::Completed);
}

#[tokio::test]
async fn d25_a_streamed_reply_leaves_the_session_it_starts_from_alone() {
    let before = session(At::Completed).await;
    let held = before.clone();
    let (engine, _) = engine([says("again")]);
    let mut turn = engine.reply(&before, "more").stream();
    let mut events = Vec::new();
    while let Some(event) = turn.next().await {
        events.push(event.unwrap().type_name());
    }
    assert_eq!(events.iter().filter(|name| **name == "chat_completed").count(), 1);
    assert_eq!(events.last(), Some(&"chat_completed"));
    assert_eq!(before, held);
    let (after, _) = turn.finish();
    assert_eq!(transcript(&after.thread)[2..], ["user: more", "assistant: again"]);
}

#[tokio::test]
async fn d26_a_streamed_reply_is_refused_while_tools_are_pending() {
    let session = awaiting(["c0"]).await;
    let (engine, model) = engine([says("never heard")]);
    let mut turn = engine.reply(&session, "hello?").stream();
    let refused = turn.next().await.unwrap().unwrap_err();
    assert_eq!(refused.reason(), "invalid_status");
    assert!(turn.next().await.is_none());
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn d28_the_mode_of_a_turn_does_not_stick_to_the_session() {
    let call = || call("c0", "echo");
    let (engine, _) = engine([call(), call(), says("done")]);
    let first = engine.reply(&Session::new(), "one").mode(ToolMode::Manual);
    let (session, _) = first.await.unwrap();
    assert_eq!(pending(&session), ["c0"]);
    let session = session.submit_tool_result("c0", "by hand").unwrap();
    let (session, _) = engine.reply(&session, "two").await.unwrap();
    assert_eq!(session.status(), Status::Completed);
    let said = transcript(&session.thread);
    assert_eq!(said[..3], ["user: one", "assistant: → c0", "tool c0: by hand"]);
    assert_eq!(said[3..], ["user: two", "assistant: → c0", "tool c0: {}", "assistant: done"]);
}

#[tokio::test]
async fn d29_a_failed_turn_can_be_recovered_from() {
    let failed = session(At::Failed).await;
    let recovered = failed.recover();
    assert_eq!(recovered.status(), Status::Idle);
    assert_eq!(recovered.thread, failed.thread);
    let partial = recovered.thread.last_message().unwrap();
    assert_eq!(partial.metadata()["partial"], true);

    let (engine, _) = engine([says("whole")]);
    let (session, _) = engine.reply(&recovered, "again").await.unwrap();
    let said = transcript(&session.thread);
    assert_eq!(said, ["user: hi", "assistant: par", "user: again", "assistant: whole"]);
}

#[tokio::test]
async fn d29_recovering_answers_the_calls_that_were_left_open() {
    let open = awaiting(["c0", "c1"]).await;
    let recovered = open.submit_tool_result("c0", "r0").unwrap().recover();
    assert_eq!(recovered.status(), Status::Idle);
    let said = transcript(&recovered.thread);
    assert_eq!(said[2], "tool c0: r0");
    assert!(said[3].starts_with(r#"tool c1: {"error":"#), "{said:?}");
    let (engine, _) = engine([says("fine")]);
    assert!(engine.reply(&recovered, "never mind").await.is_ok());
}

#[tokio::test]
async fn d30_an_empty_session_context_does_not_hide_the_engines() {
    let turn = asks_who().context("from", "engine").start("hi");
    assert_eq!(who(turn.await)["context"], json!({"from": "engine"}));
}

#[tokio::test]
async fn a_turn_that_fails_before_it_streams_leaves_the_session_as_it_was() {
    let before = session(At::Completed).await;
    let (engine, _) = engine([json!([{"preflight_error": "rate_limited"}])]);
    let mut turn = engine.reply(&before, "more").stream();
    assert_eq!(turn.next().await.unwrap().unwrap_err().reason(), "rate_limited");
    assert!(turn.next().await.is_none());
    assert_eq!(turn.finish().0, before);
}

/// One call of an ordinary tool, one of a manual tool.
async fn mixed(mode: ToolMode) -> Session {
    let (engine, _) = engine([calls([("c0", "echo", json!({"x": 1})), ("c1", "pick", json!({}))])]);
    engine.start("hi").mode(mode).await.unwrap().0
}

fn asks_who() -> Engine {
    engine([call("c0", "who"), says("done")]).0
}

/// What the tool `who` saw.
fn who(turn: Result<(Session, ChatResult)>) -> Value {
    let (_, result) = turn.unwrap();
    serde_json::from_str(&result.steps[0].tool_results[0].text()).unwrap()
}

fn pending(session: &Session) -> Vec<&str> {
    session.pending_tool_calls().iter().map(|call| call.id.as_str()).collect()
}
