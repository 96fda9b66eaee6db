//! What may be done with a session in which status, and what its turns leave behind.

use mynah_data::{
    AdapterReason, CUT_SHORT, ChatResult, Collector, Error, ErrorKind, Event, FinishReason,
    HaltReason, Image, Message, Operation, Part, Response, Session, SessionReason, SessionState,
    Status, StepResult, StreamReason, Thread, ToolCall, validate,
};
use serde_json::{Value, json};

use crate::common::{call, calling, map, through_json};

#[test]
fn d04_the_whole_matrix_of_status_and_operation() {
    let user = Message::user("x");
    let other = Message::assistant("x");
    let columns = [
        (Operation::Start, None),
        (Operation::Reply, None),
        (Operation::Continue, Some(&user)),
        (Operation::Continue, Some(&other)),
        (Operation::Continue, None),
        (Operation::Step, None),
        (Operation::SubmitToolResult, None),
    ];
    //                  start  reply  user   other  none   step   submit
    let table = [
        (idle(), ["ok", "ok", "ok", "ok", "ok", "ok", "no"]),
        (completed(), ["ok", "ok", "ok", "ok", "ok", "ok", "no"]),
        (awaiting_user(), ["no", "ok", "ok", "no", "no", "no", "no"]),
        (awaiting_tools(&["c0"]), ["no", "no", "no", "no", "no", "no", "ok"]),
        (awaiting_tools(&[]), ["no", "no", "no", "no", "ok", "no", "ok"]),
        (failed(), ["failed"; 7]),
    ];
    for (session, row) in table {
        for ((operation, message), expected) in columns.into_iter().zip(row) {
            let status = session.status();
            let checked = session.check(operation, message);
            let place = format!("{operation} in {status} with {message:?}");
            match (expected, checked) {
                ("ok", checked) => assert_eq!(checked, Ok(()), "{place}"),
                ("no", checked) => {
                    assert_eq!(checked, Err(Error::invalid_status(operation, status)), "{place}")
                }
                (_, checked) => assert_eq!(
                    checked.expect_err(&place).kind(),
                    ErrorKind::Session(SessionReason::SessionInErrorState),
                    "{place}"
                ),
            }
        }
    }
}

#[test]
fn d04_a_refused_operation_names_itself_and_the_status() {
    let error = awaiting_tools(&["c0"]).check(Operation::Reply, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Session(SessionReason::InvalidStatus));
    assert_eq!(
        Value::Object(error.metadata().clone()),
        json!({"operation": "reply", "status": "awaiting_tools"})
    );
    let error = failed().check(Operation::Reply, None).unwrap_err();
    assert_eq!(error.metadata()["error"], limited().to_value());
}

#[test]
fn d08_a_manual_chat_leaves_all_its_calls_pending() {
    let session = idle().apply_chat(&manual_result(&["c0", "c1"], &[]));
    assert_eq!(session.status(), Status::AwaitingTools);
    assert_eq!(session.pending_tool_calls(), [call("c0"), call("c1")]);
}

#[test]
fn d09_d10_a_session_waits_until_the_last_result_is_given() {
    let session = idle().apply_chat(&manual_result(&["c0", "c1"], &[]));
    let half = session.submit_tool_result("c1", "1").unwrap();
    assert_eq!(half.status(), Status::AwaitingTools);
    assert_eq!(half.pending_tool_calls(), [call("c0")]);
    let whole = half.submit_tool_result("c0", "0").unwrap();
    assert_eq!(whole.status(), Status::Idle);
    assert_eq!(whole.check(Operation::Continue, None), Ok(()));
    let results = [Message::tool_result("c1", "1"), Message::tool_result("c0", "0")];
    let mut thread = session.thread.clone();
    thread.extend(results);
    assert_eq!(whole.thread, thread);
    assert_eq!(validate::thread(&whole.thread), Ok(()));
}

#[test]
fn d11_a_result_for_an_unknown_call_is_refused_by_id() {
    for session in [awaiting_tools(&["c0"]), awaiting_tools(&[])] {
        let error = session.submit_tool_result("bogus", "x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Session(SessionReason::UnknownToolCallId));
        assert_eq!(error.metadata()["tool_call_id"], "bogus");
    }
    let once = awaiting_tools(&["c0", "c1"]).submit_tool_result("c0", "x").unwrap();
    let error = once.submit_tool_result("c0", "again").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Session(SessionReason::UnknownToolCallId));
}

#[test]
fn d12_several_results_are_taken_together_or_not_at_all() {
    let session = awaiting_tools(&["c0", "c1"]);
    let before = session.clone();
    let error = session.submit_tool_results([("c0", "x"), ("bogus", "y")]).unwrap_err();
    assert_eq!(error.metadata()["tool_call_id"], "bogus");
    assert_eq!(session, before);
    let both = session.submit_tool_results([("c1", "y"), ("c0", "x")]).unwrap();
    let one_by_one = session.submit_tool_result("c1", "y").unwrap();
    assert_eq!(Ok(both), one_by_one.submit_tool_result("c0", "x"));
    // An unknown id is named wherever it stands, and so is one that stands twice.
    let named = |results: [&str; 3]| {
        let results = results.map(|id| (id, "x"));
        let error = session.submit_tool_results(results).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Session(SessionReason::UnknownToolCallId));
        error.metadata()["tool_call_id"].clone()
    };
    assert_eq!(named(["bogus", "c0", "c1"]), "bogus");
    assert_eq!(named(["c0", "bogus", "c1"]), "bogus");
    assert_eq!(named(["c0", "c1", "bogus"]), "bogus");
    assert_eq!(named(["c0", "c1", "c0"]), "c0");
}

#[test]
fn d13_no_results_change_nothing_in_any_status() {
    for session in every_status() {
        assert_eq!(session.submit_tool_results([("", ""); 0]), Ok(session.clone()));
    }
}

#[test]
fn d14_text_and_parts_stand_as_they_are_and_other_values_become_json() {
    let image = Part::image(Image::from_url("u"));
    let parts = serde_json::to_value([Part::text("see"), image.clone()]).unwrap();
    let table = [
        (json!("verbatim {"), vec![Part::text("verbatim {")]),
        (json!(""), vec![]),
        (json!({"b": 1.0, "a": null}), vec![Part::text(r#"{"b":1.0,"a":null}"#)]),
        (parts, vec![Part::text("see"), image]),
        (json!([1, 2]), vec![Part::text("[1,2]")]),
        (json!([]), vec![Part::text("[]")]),
        (json!(5), vec![Part::text("5")]),
        (json!(null), vec![Part::text("null")]),
    ];
    for (content, parts) in table {
        let session = awaiting_tools(&["c0"]).submit_tool_result("c0", content).unwrap();
        assert_eq!(session.thread.last_message(), Some(&Message::tool_parts("c0", parts)));
        through_json(&session);
    }
}

#[test]
fn d15_d16_of_mixed_calls_only_the_manual_ones_are_pending() {
    let mut result = manual_result(&["c0", "c1"], &["c1"]);
    result.thread.extend([Message::tool_result("c0", "ran")]);
    let session = idle().apply_chat(&result);
    assert_eq!(session.status(), Status::AwaitingTools);
    assert_eq!(session.pending_tool_calls(), [call("c1")]);
    assert_eq!(session.thread, result.thread);
    let error = session.submit_tool_result("c0", "x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Session(SessionReason::UnknownToolCallId));
    let whole = session.submit_tool_result("c1", "x").unwrap();
    assert_eq!(validate::thread(&whole.thread), Ok(()));
}

#[test]
fn d18_a_question_is_kept_with_its_call_and_its_hints() {
    let mut result = ChatResult::new(Thread::from("hi"), HaltReason::AskUser);
    result.pending_question = Some("Sure?".to_owned());
    result.pending_tool_call_id = Some("c0".to_owned());
    result.metadata = map(json!({"ask_user_opts": {"choices": ["yes"]}}));
    let session = idle().apply_chat(&result);
    assert_eq!(session.status(), Status::AwaitingUser);
    assert_eq!(session.pending_question(), Some("Sure?"));
    assert_eq!(session.pending_tool_call_id(), Some("c0"));
    assert_eq!(session.turn_metadata, result.metadata);
}

#[test]
fn d19_d20_a_failed_turn_leaves_its_error() {
    let error = |halted, metadata: Value| {
        let mut result = ChatResult::new(Thread::from("hi"), halted);
        result.metadata = map(metadata);
        let session = idle().apply_chat(&result);
        assert_eq!(session.status(), Status::Error);
        match session.state {
            SessionState::Failed { error } => Some(error),
            _ => None,
        }
    };
    let limited = limited().to_value();
    assert_eq!(error(HaltReason::Error, json!({"error": limited})), Some(limited));
    assert_eq!(error(HaltReason::Error, json!({"k": 1})), Some(json!({"k": 1})));
    let halted = json!({"halt_tool_call_id": "c0"});
    assert_eq!(error(HaltReason::ToolError, halted.clone()), Some(halted));
    let exception = json!({"halt_tool_call_id": "c0", "on_tool_error_exception": "oh"});
    assert_eq!(error(HaltReason::ToolError, exception), Some(json!("oh")));
}

#[test]
fn d21_every_halt_reason_has_its_status() {
    let table = [
        (HaltReason::Completed, Status::Completed),
        (HaltReason::MaxTurns, Status::Completed),
        (HaltReason::HaltWhen, Status::Completed),
        (HaltReason::BudgetExceeded, Status::Completed),
        (HaltReason::Custom("plan_submitted".to_owned()), Status::Completed),
        (HaltReason::Cancelled, Status::Idle),
        (HaltReason::Deadline, Status::Idle),
        (HaltReason::AskUser, Status::AwaitingUser),
        (HaltReason::ToolError, Status::Error),
        (HaltReason::Error, Status::Error),
    ];
    for (reason, status) in table {
        let result = ChatResult::new(Thread::from("hi"), reason.clone());
        assert_eq!(idle().apply_chat(&result).status(), status, "{reason}");
    }
}

#[test]
fn d02_a_turn_keeps_what_is_the_callers_and_replaces_what_is_the_turns() {
    let mut before = awaiting_user().with_id("s").with_context(map(json!({"a": 1})));
    before.metadata = map(json!({"mine": true}));
    before.turn_metadata = map(json!({"old": true}));
    let mut result = ChatResult::new(Thread::from("new"), HaltReason::MaxTurns);
    result.metadata = map(json!({"max_turns": 4}));
    let mut expected = before.clone();
    expected.thread = result.thread.clone();
    expected.state = SessionState::Completed;
    expected.turn_metadata = result.metadata.clone();
    assert_eq!(before.apply_chat(&result), expected);
}

#[test]
fn d24_a_step_leaves_the_status_of_its_end() {
    let error = Error::adapter(AdapterReason::Timeout);
    let asked =
        json!({"halted_reason": "ask_user", "pending_question": "?", "pending_tool_call_id": "c0"});
    let pending = json!({"manual_tool_calls": [call("c1")]});
    let (stop, tools) = (Some(FinishReason::Stop), Some(FinishReason::ToolCalls));
    let table = [
        (step(stop, true, json!({})), Status::Completed),
        (step(None, true, json!({})), Status::Completed),
        (step(tools, false, json!({})), Status::Idle),
        (step(tools, true, asked), Status::AwaitingUser),
        (step(tools, true, json!({"halted_reason": "tool_error"})), Status::Error),
        (step(tools, true, json!({"halted_reason": "plan_submitted"})), Status::Completed),
        (step(tools, false, pending), Status::AwaitingTools),
        (step(tools, false, json!({"mode": "manual"})), Status::AwaitingTools),
        (step(stop, true, json!({"halted_reason": "cancelled"})), Status::Idle),
        (broken(step(tools, true, json!({})), &error), Status::Error),
        (step(tools, true, json!({"error": error.to_value()})), Status::Error),
        (broken(step(tools, true, json!({})), &cancelled()), Status::Idle),
    ];
    for (step, status) in table {
        let session = idle().apply_step(&step);
        assert_eq!(session.status(), status, "{:?}", step.metadata);
        let pending = match status {
            Status::AwaitingTools if step.is_manual() => vec![call("c0"), call("c1")],
            Status::AwaitingTools => vec![call("c1")],
            _ => Vec::new(),
        };
        assert_eq!(session.pending_tool_calls(), pending);
        through_json(&session);
    }
}

#[test]
fn d24_a_question_of_a_step_is_pending() {
    let asked =
        json!({"halted_reason": "ask_user", "pending_question": "?", "pending_tool_call_id": "c0"});
    let session = idle().apply_step(&step(Some(FinishReason::ToolCalls), true, asked));
    assert_eq!(session.pending_question(), Some("?"));
    assert_eq!(session.pending_tool_call_id(), Some("c0"));
}

#[test]
fn d24_calls_that_a_step_left_open_are_answered_unless_the_caller_is_to_answer_them() {
    let session = idle().apply_step(&step(Some(FinishReason::Length), true, json!({})));
    assert_eq!(validate::thread(&session.thread), Ok(()));
    assert_eq!(session.turn_metadata["repaired_tool_calls"], json!(["c0", "c1"]));
    let manual = step(Some(FinishReason::ToolCalls), false, json!({"mode": "manual"}));
    let session = idle().apply_step(&manual);
    assert_eq!(session.thread, manual.thread);
    assert_eq!(session.turn_metadata, manual.metadata);
}

#[test]
fn d24_a_step_that_was_cut_off_leaves_an_idle_session() {
    let mut collector = Collector::new(Thread::from("hi"));
    collector.apply(&Event::text_delta("par"));
    let session = Session::from("hi").apply_step(&collector.step_result());
    assert_eq!(session.status(), Status::Idle);
    let last = session.thread.last_message().unwrap();
    assert_eq!((last.text().as_ref(), &last.metadata()["partial"]), ("par", &json!(true)));
}

#[test]
fn d29_a_failed_session_recovers_with_its_thread() {
    let partial = Message::assistant_parts([Part::text("par"), Part::tool_call(call("c0"))])
        .with_metadata("partial", true);
    let mut before = failed().append(partial).with_id("s").with_context(map(json!({"a": 1})));
    before.metadata = map(json!({"mine": true}));
    before.turn_metadata = map(json!({"old": true}));
    let session = before.recover();
    let mut expected = before.clone();
    expected.state = SessionState::Idle;
    expected.turn_metadata.clear();
    expected.thread.extend([Message::tool_error("c0", json!({"error": CUT_SHORT}))]);
    assert_eq!(session, expected);
    assert_eq!(validate::thread(&session.thread), Ok(()));
    assert_eq!(session.check(Operation::Reply, None), Ok(()));
    assert_eq!(session.recover(), session);
}

#[test]
fn d29_a_session_in_any_status_recovers_to_idle() {
    for session in every_status() {
        let recovered = session.recover();
        assert_eq!(recovered.status(), Status::Idle);
        assert_eq!(validate::thread(&recovered.thread), Ok(()));
    }
}

#[test]
fn a_raw_append_checks_nothing_and_leaves_the_pending_calls() {
    let session = awaiting_tools(&["c0"]).append_tool_result("c9", json!({"a": 1}));
    assert_eq!(session.pending_tool_calls(), [call("c0")]);
    assert_eq!(session.thread.last_message(), Some(&Message::tool_result("c9", "{\"a\":1}")));
    let session = failed().append_user("x").append(Message::assistant("y"));
    assert_eq!((session.status(), session.thread.messages.len()), (Status::Error, 3));
}

fn idle() -> Session {
    Session::from("hi")
}

fn completed() -> Session {
    idle().apply_chat(&ChatResult::new(Thread::from("hi"), HaltReason::Completed))
}

fn awaiting_user() -> Session {
    Session::awaiting_user(Thread::from("hi"), "Sure?", Some("c0".to_owned()))
}

fn awaiting_tools(ids: &[&str]) -> Session {
    let calls: Vec<ToolCall> = ids.iter().map(|id| call(id)).collect();
    Session::awaiting_tools(Thread::from("hi").with(calling(ids)), calls)
}

fn failed() -> Session {
    let mut session = idle();
    session.state = SessionState::Failed { error: limited().to_value() };
    session
}

fn every_status() -> [Session; 6] {
    let waiting = awaiting_tools(&["c0", "c1"]);
    [idle(), completed(), awaiting_user(), waiting, awaiting_tools(&[]), failed()]
}

fn limited() -> Error {
    Error::adapter(AdapterReason::RateLimited)
}

fn cancelled() -> Error {
    Error::stream(StreamReason::Cancelled)
}

/// A chat that handed over these calls; `listed` where only some of them are the caller's.
fn manual_result(ids: &[&str], listed: &[&str]) -> ChatResult {
    let thread = Thread::from("hi").with(calling(ids));
    let mut result = ChatResult::new(thread, HaltReason::ManualToolCalls);
    result.final_response = Some(Response::new(calling(ids)));
    if !listed.is_empty() {
        let calls: Vec<ToolCall> = listed.iter().map(|id| call(id)).collect();
        result.metadata = map(json!({"manual_tool_calls": calls}));
    }
    result
}

/// A step whose model called `c0` and `c1`, and neither ran.
fn step(finish_reason: Option<FinishReason>, done: bool, metadata: Value) -> StepResult {
    let mut response = Response::new(calling(&["c0", "c1"]));
    response.finish_reason = finish_reason;
    let mut step = StepResult::new(Thread::from("hi").with(calling(&["c0", "c1"])), response);
    step.done = done;
    step.metadata = map(metadata);
    step
}

fn broken(mut step: StepResult, error: &Error) -> StepResult {
    step.response.finish_reason = Some(FinishReason::Error);
    step.response.metadata = map(json!({"error": error.to_value()}));
    step
}
