//! Sessions in every status, and the engine that brought them there.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

use mynah::{Engine, Session, Thread, Tool, ToolMode, ToolOutcome, testing::Scripted};
use serde_json::{Value, json};

use crate::common::{call, calls, echo, map, says, scripted, tool};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum At {
    Idle,
    Completed,
    AwaitingUser,
    AwaitingTools,
    AwaitingNoMoreTools,
    Failed,
}

/// A session that reached this status in the ordinary way, if that is possible.
pub(crate) async fn session(at: At) -> Session {
    let start = async |script: Value| engine([script]).0.start(fresh()).await.unwrap().0;
    match at {
        At::Idle => awaiting(["c0"]).await.submit_tool_result("c0", "r0").unwrap(),
        At::Completed => start(says("hello")).await,
        At::AwaitingUser => start(call("c0", "ask")).await,
        At::AwaitingTools => awaiting(["c0"]).await,
        At::AwaitingNoMoreTools => Session::awaiting_tools(Thread::from("hi"), Vec::new()),
        At::Failed => start(json!([{"text": "par"}, {"error": "rate_limited"}])).await,
    }
}

fn fresh() -> Session {
    Session::from("hi").with_id("s").with_context(map(json!({"tenant": 7})))
}

/// A session that waits for the results of these calls.
pub(crate) async fn awaiting<const N: usize>(ids: [&str; N]) -> Session {
    let (engine, _) = engine([calls(ids.map(|id| (id, "echo", json!({}))))]);
    engine.start(fresh()).mode(ToolMode::Manual).await.unwrap().0
}

/// A model that plays these scripts, and the tools that the tests call.
pub(crate) fn engine<const N: usize>(scripts: [Value; N]) -> (Engine, Scripted) {
    let model = scripted(scripts);
    let tools = [
        echo(),
        tool("ask", |_| {
            ToolOutcome::ask_with("Really?", map(json!({"choices": ["yes", "no"]})))
        }),
        tool("boom", |_| ToolOutcome::error("boom")),
        tool("plan", |_| ToolOutcome::halt("plan_submitted", "a plan")),
        Tool::new("pick", "", json!({})).manual(),
        Tool::new("who", "", json!({})).handler(async |_, context| {
            json!({"context": *context.context, "session_id": context.session_id})
        }),
    ];
    (Engine::new(model.clone()).tools(tools), model)
}
