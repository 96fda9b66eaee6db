//! What errors and results report, to people and to programs.

use std::{error::Error as _, io, time::Duration};

use mynah_data::{
    AdapterReason, Breach, BreachTime, ChatResult, Error, ErrorKind, HaltReason, Limit, LogReason,
    Message, MismatchClass, Response, RunId, Session, StepResult, Thread, ToolReason, TurnResult,
};
use serde_json::{Value, json};

fn limited() -> Error {
    Error::adapter(AdapterReason::RateLimited)
        .with_message("slow down")
        .with_provider("openai")
        .with("status", 429)
        .with("request_id", "req_1")
        .with("retry_after_ms", 1500)
}

#[test]
fn an_error_names_provider_status_reason_and_request_for_people() {
    let told = "openai: slow down (status 429, rate_limited, request req_1, retry after 2 s)";
    assert_eq!(limited().to_string(), told);
    assert_eq!(limited().message(), "slow down");
    assert_eq!(limited().to_value()["message"], "slow down");
}

#[test]
fn an_error_says_nothing_twice() {
    let message = "openai refused req_1 with 429: rate_limited";
    let told = format!("{message} (retry after 2 s)");
    assert_eq!(limited().with_message(message).to_string(), told);
    let named = Error::tool(ToolReason::Failed).with("tool_name", "pay");
    assert_eq!(named.to_string(), "tool error (pay): failed");
    assert_eq!(named.with_message("no money").to_string(), "tool pay: no money");
}

#[test]
fn what_would_fit_in_the_place_of_a_refused_value_is_in_the_text_alone() {
    let error = Error::invalid_option("temperature", "out_of_range");
    let message = "validation failed: invalid_options (1 error(s)): temperature: out_of_range";
    assert_eq!(error.message(), message);
    assert_eq!(error.to_string(), format!("{message}; temperature must be a number from 0 to 2"));
}

#[test]
fn the_run_of_a_failed_call_is_beside_its_json_and_not_compared() {
    let run = RunId::from("r");
    let error = limited().of_run(Some(&run));
    assert_eq!((error.run_id(), limited().run_id()), (Some(run.clone()), None));
    assert_eq!((&error, error.to_value()), (&limited(), limited().to_value()));
    // The run that an error is about counts more.
    assert_eq!(limited().with("run_id", "about").of_run(Some(&run)).run_id(), Some("about".into()));
    assert_eq!(error.of_run(None).run_id(), Some(run));
}

#[test]
fn a_cause_can_be_made_part_of_the_message() {
    let caused = limited().caused_by(io::Error::other("broken pipe")).with_cause_told();
    assert_eq!(caused.message(), "slow down: broken pipe");
    assert_eq!(caused.to_string().matches("broken pipe").count(), 1);
    assert_eq!(caused.clone().with_cause_told().message(), caused.message());
}

#[test]
fn an_error_has_its_cause_as_its_source_and_in_its_text_alone() -> Result<(), Error> {
    let refused = Error::log(LogReason::Unavailable);
    let caused = refused.clone().caused_by(io::Error::other("disk on fire"));
    let source = caused.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::Other));
    assert_eq!(caused.to_string(), "log error: unavailable: disk on fire");
    let told = caused.clone().with_message("the disk on fire is not there").to_string();
    assert_eq!(told, "the disk on fire is not there");
    // It is neither compared nor stored, and stays with a copy.
    assert_eq!(caused, refused);
    assert_eq!(caused.to_value(), refused.to_value());
    assert!(caused.clone().source().is_some());
    let restored: Error = serde_json::from_value(caused.to_value())?;
    assert!(restored.source().is_none() && restored.with_cause_of(&caused).source().is_some());
    let malformed = serde_json::from_str::<Value>("{").map_err(Error::from);
    assert!(malformed.is_err_and(|error| error.source().is_some()));
    Ok(())
}

#[test]
fn debug_is_for_people_and_its_alternate_form_has_every_detail() {
    let error = limited().caused_by(io::Error::other("broken pipe"));
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(!format!("{error:?}").contains('{'), "{error:?}");
    let detailed = format!("{error:#?}");
    for detail in ["RateLimited", "slow down", "retry_after_ms", "1500", "broken pipe"] {
        assert!(detailed.contains(detail), "{detail}: {detailed}");
    }
}

#[test]
fn what_an_error_knows_can_be_asked_by_name() {
    let error = limited();
    assert_eq!((error.provider(), error.status()), (Some("openai"), Some(429)));
    assert_eq!(error.request_id(), Some("req_1"));
    assert_eq!(error.retry_after(), Some(Duration::from_millis(1500)));
    assert!(!error.is_unreachable() && error.with("connected", false).is_unreachable());
    let invalid = Error::invalid_option("max_turns", "must_be_positive");
    assert_eq!(invalid.field(), Some("max_turns"));
    let corrupt = Error::log(LogReason::Corrupt).with("run_id", "r").with("seq", 3);
    assert_eq!((corrupt.run_id(), corrupt.seq()), (Some(RunId::from("r")), Some(3)));
    // The status of a session is not one of HTTP.
    assert_eq!(corrupt.with("status", "idle").status(), None);
}

#[test]
fn a_mismatch_tells_where_a_run_differs_and_how() {
    let diff = json!([
        {"path": "content", "recorded": "a", "produced": "b"},
        {"path": "added", "recorded": null, "produced": 1},
        {"path": "gone", "recorded": null},
    ]);
    let error = Error::new(ErrorKind::Replay(MismatchClass::Payload))
        .with("run_id", "r")
        .with("seq", 4)
        .with("kind", "tool_completed")
        .with("expected_kind", "tool_completed")
        .with("diff", diff);
    let mismatch = error.mismatch().unwrap();
    assert_eq!(
        (mismatch.class, mismatch.run_id, mismatch.seq),
        (MismatchClass::Payload, "r".into(), 4)
    );
    assert_eq!(mismatch.recorded.as_deref(), Some("tool_completed"));
    let sides =
        mismatch.differences.iter().map(|it| (&*it.path, it.recorded.clone(), it.produced.clone()));
    let expected = [
        ("content", Some(json!("a")), Some(json!("b"))),
        ("added", None, Some(json!(1))),
        ("gone", Some(json!(null)), None),
    ];
    assert_eq!(sides.collect::<Vec<_>>(), expected);
    assert_eq!(limited().mismatch(), None);
}

#[test]
fn what_a_result_knows_of_its_end_can_be_asked_by_name() {
    let breach = Breach::new(Limit::Turns, 3u64, 4u64, BreachTime::PreCall);
    let mut result = ChatResult::new(Thread::from("hi"), HaltReason::BudgetExceeded);
    result.metadata.insert("budget".to_owned(), json!(breach));
    result.metadata.insert("error".to_owned(), json!(limited()));
    result.metadata.insert("repaired_tool_calls".to_owned(), json!(["c0"]));
    result.metadata.insert("structured_finalize".to_owned(), json!({"pass_2_error": limited()}));
    result.run_id = Some("r".into());
    assert_eq!((result.breach(), result.error()), (Some(breach.clone()), Some(limited())));
    assert_eq!(
        (result.finalize_error(), result.repaired_tool_calls()),
        (Some(limited()), vec!["c0".to_owned()])
    );
    let session = Session::new().apply_chat(&result);
    assert_eq!(session.breach(), Some(breach.clone()));
    let turn = TurnResult::Chat(Box::new(result));
    assert_eq!((turn.breach(), turn.error()), (Some(breach.clone()), Some(limited())));
    assert_eq!(turn.run_id(), Some("r".into()));

    let mut step = StepResult::new(Thread::from("hi"), Response::new(Message::assistant("")));
    step.metadata.insert("budget".to_owned(), json!(breach));
    step.response.metadata.insert("error".to_owned(), json!(limited()));
    assert_eq!((step.breach(), step.error()), (Some(breach), Some(limited())));
}

#[test]
fn a_failed_session_has_an_error_whatever_its_tool_left_behind() {
    let mut result = ChatResult::new(Thread::from("hi"), HaltReason::Error);
    result.metadata.insert("error".to_owned(), json!(limited()));
    let session = Session::new().apply_chat(&result);
    assert_eq!((session.error(), session.messages().len()), (Some(limited()), 1));
    result.halted_reason = HaltReason::ToolError;
    result.metadata = [("on_tool_error_exception".to_owned(), json!("oh"))].into_iter().collect();
    let error = Session::new().apply_chat(&result).error().unwrap();
    assert_eq!(
        (error.to_string().as_str(), &error.metadata()["error"]),
        ("tool error: failed: oh", &json!("oh"))
    );
    assert_eq!(Session::new().error(), None);
}

#[test]
fn results_and_sessions_with_members_of_a_newer_version_can_be_read() -> Result<(), Error> {
    let newer = |mut value: Value| {
        value["added_later"] = json!(1);
        value
    };
    let step = StepResult::new(Thread::from("hi"), Response::new(Message::assistant("ho")));
    assert_eq!(serde_json::from_value::<StepResult>(newer(json!(step)))?, step);
    let mut chat = ChatResult::new(Thread::from("hi"), HaltReason::Completed);
    assert_eq!(serde_json::from_value::<ChatResult>(newer(json!(chat)))?, chat);
    chat.steps.push(step);
    let mut stored = json!(chat);
    stored["steps"][0]["added_later"] = json!(1);
    assert_eq!(serde_json::from_value::<ChatResult>(stored)?, chat);
    let session = Session::from("hi").with_id("s");
    assert_eq!(serde_json::from_value::<Session>(newer(json!(session)))?, session);
    Ok(())
}
