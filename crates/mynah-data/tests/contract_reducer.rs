//! The events of a session's turn, folded into the session after it.

use mynah_data::{
    AdapterReason, CUT_SHORT, ChatResult, Error, Event, FinishReason, HaltReason, Message,
    Metadata, Response, Session, SessionReducer, SessionState, Status, Thread, ToolMode,
    TurnResult, validate,
};
use serde_json::json;

use crate::common::{call, calling, map, through_json};

#[test]
fn m02_the_events_of_a_whole_turn_give_the_session_after_it() {
    let (before, events, result) = replied();
    let mut reducer = SessionReducer::chat(before.clone(), Some(Message::user("and?")));
    events.iter().for_each(|event| reducer.apply(event));
    let (session, told) = reducer.finalize();
    assert_eq!(told, TurnResult::Chat(Box::new(result.clone())));
    assert_eq!(session, before.apply_chat(&result));
    assert_eq!((session.status(), session.id.as_deref()), (Status::Completed, Some("s")));
    assert_eq!(session.context, before.context);
}

#[test]
fn m03_finalize_may_be_asked_again_and_events_may_still_come() {
    let (before, events, _) = replied();
    let mut reducer = SessionReducer::chat(before.clone(), Some(Message::user("and?")));
    let mut asked = reducer.clone();
    for event in &events {
        assert_eq!(asked.finalize(), asked.finalize());
        reducer.apply(event);
        asked.apply(event);
    }
    assert_eq!(asked, reducer);
    assert_eq!(asked.finalize(), reducer.finalize());
}

#[test]
fn m04_m09_a_turn_that_was_cut_off_keeps_the_message_and_the_marked_text() {
    let (before, events, _) = replied();
    let mut reducer = SessionReducer::chat(before.clone(), Some(Message::user("and?")));
    events.iter().take(2).for_each(|event| reducer.apply(event));
    let (session, told) = reducer.finalize();
    let partial = Message::assistant("do")
        .with_metadata("finish_reason", json!(null))
        .with_metadata("partial", true);
    let thread = before.thread.clone().with_user("and?").with(partial);
    assert_eq!(session.thread, thread);
    assert_eq!(session.status(), Status::Idle);
    let TurnResult::Chat(result) = told else { panic!("a chat's result") };
    assert_eq!(result.halted_reason, HaltReason::Cancelled);
    assert_eq!((result.text().as_ref(), &result.thread), ("do", &thread));
    through_json(&session);
}

#[test]
fn m04_a_turn_that_was_cut_off_before_its_first_event_keeps_the_message() {
    let reducer = SessionReducer::chat(waiting(), Some(Message::user("yes")));
    let (session, _) = reducer.finalize();
    assert_eq!(session.thread, waiting().thread.with_user("yes"));
    assert_eq!((session.status(), session.pending_question()), (Status::Idle, None));
}

#[test]
fn m04_a_turn_that_was_cut_off_among_its_tools_answers_every_call() {
    let mut reducer = SessionReducer::chat(Session::new(), Some(Message::user("hi")));
    for id in ["c0", "c1"] {
        reducer.apply(&Event::tool_call_completed(call(id)));
    }
    reducer.apply(&Event::message_completed(Some(FinishReason::ToolCalls)));
    reducer.apply(&encoded("c1", "ran"));
    let (session, _) = reducer.finalize();
    let asked = calling(&["c0", "c1"]).with_metadata("finish_reason", "tool_calls");
    let expected = Thread::from("hi")
        .with(asked)
        .with(Message::tool_result("c1", "ran"))
        .with(Message::tool_error("c0", json!({"error": CUT_SHORT})));
    assert_eq!(session.thread, expected);
    assert_eq!(session.turn_metadata, map(json!({"repaired_tool_calls": ["c0"]})));
}

#[test]
fn m04_calls_that_were_open_before_the_cut_are_answered_in_their_place() {
    let before = Session::from("hi").append(calling(&["c0"]));
    let mut reducer = SessionReducer::chat(before.clone(), None);
    reducer.apply(&Event::text_delta("par"));
    let (session, _) = reducer.finalize();
    let lost = Message::tool_error("c0", json!({"error": CUT_SHORT}));
    assert_eq!(session.thread.messages.get(2).map(|m| m.as_ref()), Some(&lost));
    assert_eq!(session.thread.last_message().unwrap().text(), "par");
    assert_eq!(session.turn_metadata, map(json!({"repaired_tool_calls": ["c0"]})));
    assert_eq!(validate::thread(&session.thread), Ok(()));
}

#[test]
fn m05_the_events_of_a_whole_step_give_the_session_after_it() {
    let before = Session::from("hi").with_id("s");
    let mut reducer = SessionReducer::step(before.clone());
    reducer.apply(&Event::message_started());
    reducer.apply(&Event::tool_call_completed(call("c0")));
    reducer.apply(&Event::message_completed(Some(FinishReason::ToolCalls)));
    reducer.apply(&encoded("c0", "ran"));
    let asked = calling(&["c0"]);
    let mut response = Response::new(asked.clone());
    response.finish_reason = Some(FinishReason::ToolCalls);
    let thread = before.thread.clone().with(asked).with(Message::tool_result("c0", "ran"));
    reducer.apply(&step_completed(&response, &thread));
    let (session, told) = reducer.finalize();
    let TurnResult::Step(step) = told else { panic!("a step's result") };
    assert_eq!((&step.thread, &step.response, step.done), (&thread, &response, false));
    assert_eq!(session, before.apply_step(&step));
    assert_eq!((session.status(), session.thread), (Status::Idle, thread));
}

#[test]
fn m06_a_step_that_never_completed_leaves_the_session_as_it_was() {
    for before in [Session::from("hi").with_id("s"), waiting()] {
        let mut reducer = SessionReducer::step(before.clone());
        assert_cancelled(&reducer, &before);
        reducer.apply(&Event::message_started());
        reducer.apply(&Event::text_delta("par"));
        assert_cancelled(&reducer, &before);
    }
}

#[test]
fn m07_an_error_without_an_end_fails_the_session() {
    let error = Error::adapter(AdapterReason::NetworkError);
    let before = Session::from("hi");
    for mut reducer in
        [SessionReducer::chat(before.clone(), None), SessionReducer::step(before.clone())]
    {
        reducer.apply(&Event::text_delta("par"));
        reducer.apply(&Event::Error { error: error.clone() });
        let (session, told) = reducer.finalize();
        assert_eq!(session.state, SessionState::Failed { error: error.to_value() });
        let TurnResult::Chat(result) = told else { panic!("a chat's result") };
        assert_eq!(result.halted_reason, HaltReason::Error);
        assert_eq!(result.error().as_ref(), Some(&error));
        assert_eq!(session.thread.last_message().unwrap().text(), "par");
        assert_eq!(session.recover().status(), Status::Idle);
    }
}

#[test]
fn m07_an_error_that_the_answer_does_not_tell_is_told_by_the_step() {
    let before = Session::from("hi");
    let error = Error::unknown_tool("nope");
    let response = Response::new(calling(&["c0"]));
    let mut reducer = SessionReducer::step(before.clone());
    reducer.apply(&Event::Error { error: error.clone() });
    reducer.apply(&step_completed(&response, &before.thread.clone().with(calling(&["c0"]))));
    let (session, told) = reducer.finalize();
    let TurnResult::Step(step) = told else { panic!("a step's result") };
    assert!(step.done);
    assert_eq!(step.metadata, map(json!({"error": error.to_value()})));
    assert_eq!(session.state, SessionState::Failed { error: error.to_value() });
    assert_eq!(validate::thread(&session.thread), Ok(()));
}

#[test]
fn m08_events_that_mean_nothing_to_the_fold_change_nothing() {
    let mut reducer = SessionReducer::chat(Session::from("hi"), None);
    let before = reducer.clone();
    reducer.apply(&Event::tool_execution_started("c0", "echo", json!({})));
    assert_eq!(reducer, before);
    reducer.apply(&Event::RawChunk { chunk: json!({"thinking_delta": "hm"}) });
    let ((session, _), (was, _)) = (reducer.finalize(), before.finalize());
    assert_eq!(session, was);
}

#[test]
fn m10_the_session_is_not_touched_by_the_fold() {
    let (before, events, _) = replied();
    let kept = before.clone();
    let mut reducer = SessionReducer::chat(before.clone(), Some(Message::user("and?")));
    events.iter().for_each(|event| reducer.apply(event));
    let (after, _) = reducer.finalize();
    assert_eq!(before, kept);
    assert_ne!(after, before);
}

/// A session, the events of a reply to it, and the result they end with.
fn replied() -> (Session, Vec<Event>, ChatResult) {
    let before = Session::from("hi")
        .append(Message::assistant("hello"))
        .with_id("s")
        .with_context(map(json!({"a": 1})));
    let answer = Message::assistant("done").with_metadata("finish_reason", "stop");
    let mut response = Response::new(answer.clone());
    response.finish_reason = Some(FinishReason::Stop);
    let thread = before.thread.clone().with_user("and?").with(answer);
    let mut result = ChatResult::new(thread.clone(), HaltReason::Completed);
    result.final_response = Some(response.clone());
    let events = vec![
        Event::message_started(),
        Event::text_delta("do"),
        Event::text_delta("ne"),
        Event::message_completed(Some(FinishReason::Stop)),
        step_completed(&response, &thread),
        Event::ChatCompleted { result: Box::new(result.clone()) },
    ];
    (before, events, result)
}

fn waiting() -> Session {
    Session::awaiting_user(Thread::from("hi"), "Sure?", Some("c0".to_owned()))
}

fn encoded(id: &str, content: &str) -> Event {
    Event::tool_result_encoded(id, content)
}

fn step_completed(response: &Response, thread: &Thread) -> Event {
    Event::step_completed(response.clone(), thread.clone(), ToolMode::Auto, Vec::new())
}

#[track_caller]
fn assert_cancelled(reducer: &SessionReducer, before: &Session) {
    let (session, told) = reducer.finalize();
    assert_eq!(&session, before);
    let TurnResult::Chat(result) = told else { panic!("a chat's result") };
    assert_eq!((result.halted_reason, result.metadata), (HaltReason::Cancelled, Metadata::new()));
}
