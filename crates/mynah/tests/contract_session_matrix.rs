//! What may be done with a session in which status, streamed or not, in this process or another.

use std::{
    io::stdin,
    process::{Command, Stdio},
};

use futures_util::StreamExt as _;
use mynah::{
    Engine, Error, ErrorKind, Message, Operation, Result, Session, SessionReason, SessionState,
    SessionStream, Status, TurnResult, decode, testing::Scripted,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use Cell::{Dead as D, Legal as L, Misuse as M, UnknownId as U};
use Op::*;

use crate::{
    common::{call, says},
    sessions::{At, engine, session},
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    Legal,
    Misuse,
    UnknownId,
    Dead,
}

const OPS: [Op; 7] = [Start, Reply, ContinueAsUser, ContinueAsAssistant, Continue, Step, Submit];

#[rustfmt::skip]
const MATRIX: [(At, [Cell; 7]); 6] = [
    // start, reply, continue(user), continue(assistant), continue(none), step, submit
    (At::Idle,                [L, L, L, L, L, L, M]),
    (At::Completed,           [L, L, L, L, L, L, M]),
    (At::AwaitingUser,        [M, L, L, M, M, M, M]),
    (At::AwaitingTools,       [M, M, M, M, M, M, L]),
    (At::AwaitingNoMoreTools, [M, M, M, M, L, M, U]),
    (At::Failed,              [D, D, D, D, D, D, D]),
];

#[tokio::test]
async fn d04_every_operation_in_every_status_does_what_the_matrix_says() {
    for (at, row) in MATRIX {
        let session = session(at).await;
        for (op, cell) in OPS.into_iter().zip(row) {
            let (engine, model) = next_turn();
            let outcome = perform(&engine, &session, op).await;
            let place = format!("{op:?} at {at:?}: {outcome:?}");
            let refused = match (cell, &outcome) {
                (Cell::Legal, Ok((after, _))) => {
                    let expected = match op {
                        Step | Submit => Status::Idle,
                        _ => Status::Completed,
                    };
                    assert_eq!(after.status(), expected, "{place}");
                    continue;
                }
                (_, Err(error)) => error,
                _ => panic!("{place}"),
            };
            assert_eq!(model.calls(), 0, "{place}");
            match cell {
                Cell::Misuse => {
                    let told = Error::invalid_status(op.operation(), session.status());
                    assert_eq!(refused.metadata(), told.metadata(), "{place}");
                    assert_eq!(refused.kind(), told.kind(), "{place}");
                }
                Cell::UnknownId => {
                    assert_eq!(refused.reason(), "unknown_tool_call_id", "{place}")
                }
                _ => assert_eq!(refused.reason(), "session_in_error_state", "{place}"),
            }
        }
    }
}

#[tokio::test]
async fn d04_a_streamed_operation_comes_to_what_the_awaited_one_comes_to() {
    for (at, _) in MATRIX {
        let session = session(at).await;
        for op in OPS.into_iter().filter(|op| *op != Submit) {
            let awaited = perform(&next_turn().0, &session, op).await;
            let streamed = perform_streamed(&next_turn().0, &session, op).await;
            assert_eq!(streamed, awaited, "{op:?} at {at:?}");
        }
    }
}

#[tokio::test]
async fn d04_a_refused_stream_is_one_error_and_leaves_the_session_as_it_was() {
    for (at, row) in MATRIX {
        let session = session(at).await;
        let refused = OPS.into_iter().zip(row);
        for (op, _) in refused.filter(|(op, cell)| *op != Submit && *cell != Cell::Legal) {
            let (engine, model) = next_turn();
            let mut turn = stream(&engine, &session, op);
            assert!(matches!(turn.next().await, Some(Err(_))), "{op:?} at {at:?}");
            assert!(turn.next().await.is_none(), "{op:?} at {at:?}");
            assert_eq!(turn.finish().0, session, "{op:?} at {at:?}");

            let unpolled = stream(&engine, &session, op).finish().0;
            assert_eq!(unpolled, session, "{op:?} at {at:?}, not polled");
            assert_eq!(model.calls(), 0, "{op:?} at {at:?}");
        }
    }
}

#[tokio::test]
async fn d07_a_failed_session_says_why_whatever_is_asked_of_it() {
    let failed = session(At::Failed).await;
    let (engine, model) = engine([]);
    for op in OPS {
        let refused = perform(&engine, &failed, op).await.unwrap_err();
        let kind = ErrorKind::Session(SessionReason::SessionInErrorState);
        assert_eq!(refused.kind(), kind, "{op:?}");
        let SessionState::Failed { error } = &failed.state else { panic!("{:?}", failed.state) };
        assert_eq!(refused.metadata().get("error"), Some(error), "{op:?}");
    }
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn d13_an_empty_batch_changes_nothing_in_any_status() {
    for (at, _) in MATRIX {
        let session = session(at).await;
        let same = session.submit_tool_results(Vec::<(&str, &str)>::new());
        assert_eq!(same.unwrap(), session, "{at:?}");
    }
}

/// The test plays both processes: started again with the variable set, it is the one that loads.
#[tokio::test]
async fn d27_a_stored_session_goes_on_in_another_process_as_it_would_have_in_memory() {
    if std::env::var_os(LOADS).is_some() {
        let mut outcomes = Vec::new();
        for Job { session, op } in serde_json::from_reader::<_, Vec<Job>>(stdin()).unwrap() {
            let loaded = decode::session(&session).unwrap();
            outcomes.push(told(perform(&next_turn().0, &loaded, op).await));
        }
        println!("\n{MARK}{}", json!(outcomes));
        return;
    }

    let (mut jobs, mut expected) = (Vec::new(), Vec::new());
    for (at, _) in MATRIX.into_iter().filter(|(at, _)| *at != At::AwaitingNoMoreTools) {
        let held = session(at).await;
        for op in OPS {
            expected.push(told(perform(&next_turn().0, &held, op).await));
            jobs.push(Job { session: serde_json::to_string(&held).unwrap(), op });
        }
    }
    let name = "contract_session_matrix::d27_a_stored_session_goes_on_in_another_process_as_it_would_have_in_memory";
    let outcomes = in_another_process(name, &jobs);
    assert_eq!(outcomes.len(), jobs.len());
    for ((outcome, expected), job) in outcomes.iter().zip(&expected).zip(&jobs) {
        assert_eq!(outcome, expected, "{:?} on {}", job.op, job.session);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Op {
    Start,
    Reply,
    ContinueAsUser,
    ContinueAsAssistant,
    Continue,
    Step,
    Submit,
}

impl Op {
    fn operation(self) -> Operation {
        match self {
            Start => Operation::Start,
            Reply => Operation::Reply,
            Step => Operation::Step,
            Submit => Operation::SubmitToolResult,
            _ => Operation::Continue,
        }
    }

    fn message(self) -> Option<Message> {
        match self {
            ContinueAsUser => Some(Message::user("more")),
            ContinueAsAssistant => Some(Message::assistant("more")),
            _ => None,
        }
    }
}

/// An engine for the turn after: a tool, then an answer.
fn next_turn() -> (Engine, Scripted) {
    engine([call("n0", "who"), says("next")])
}

async fn perform(engine: &Engine, session: &Session, op: Op) -> Result<(Session, Value)> {
    let turn = match op {
        Start => engine.start(session),
        Reply => engine.reply(session, "more"),
        Step => {
            let (session, step) = engine.step_session(session).request_id("r").await?;
            return Ok((session, json!(step)));
        }
        Submit => return Ok((session.submit_tool_result("c0", "r0")?, Value::Null)),
        _ => engine.continue_session(session, op.message()),
    };
    let (session, result) = turn.request_id("r").await?;
    Ok((session, json!(result)))
}

fn stream(engine: &Engine, session: &Session, op: Op) -> SessionStream {
    let turn = match op {
        Start => engine.start(session),
        Reply => engine.reply(session, "more"),
        Step => return engine.step_session(session).request_id("r").stream(),
        _ => engine.continue_session(session, op.message()),
    };
    turn.request_id("r").stream()
}

async fn perform_streamed(engine: &Engine, session: &Session, op: Op) -> Result<(Session, Value)> {
    let mut turn = stream(engine, session, op);
    while let Some(event) = turn.next().await {
        event?;
    }
    let (session, result) = turn.finish();
    let result = match result {
        TurnResult::Chat(result) => json!(result),
        TurnResult::Step(result) => json!(result),
        other => panic!("{other:?}"),
    };
    Ok((session, result))
}

const LOADS: &str = "MYNAH_TEST_LOADS_SESSIONS";
const MARK: &str = "outcomes: ";

#[derive(Serialize, Deserialize)]
struct Job {
    session: String,
    op: Op,
}

fn told(outcome: Result<(Session, Value)>) -> Value {
    match outcome {
        Ok((session, result)) => json!({"session": session, "result": result}),
        Err(error) => json!({"err": error}),
    }
}

fn in_another_process(test: &str, jobs: &[Job]) -> Vec<Value> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(LOADS, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    serde_json::to_writer(child.stdin.take().unwrap(), jobs).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = String::from_utf8(output.stdout).unwrap();
    let line = output.lines().find_map(|line| line.strip_prefix(MARK));
    serde_json::from_str(line.unwrap()).unwrap()
}
