//! What the tests share.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers fail as tests do"
)]

use std::{path::Path, sync::Arc, time::Duration};

use mynah_data::{CONTINUE, ToolCall, ToolOutcome};
use mynah_mcp::{Approval, Server};
use mynah_step::{
    Continuation, HandlerExecutor, SystemWorld, Tool, ToolContext, ToolLimits, run_tool,
};
use serde_json::{Value, json};

/// The hostile server in this mode, with a file in which it writes down what happens.
pub(crate) fn hostile(mode: &str, place: Option<&Path>) -> Server {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile.py");
    let mut command = vec!["python3".to_owned(), script.to_owned(), mode.to_owned()];
    command.extend(place.map(|place| place.display().to_string()));
    Server::stdio(command).name("h").prefix("").approval(Approval::Never)
}

/// Calls a tool once.
pub(crate) async fn call(tool: &Tool, arguments: Value) -> ToolOutcome {
    proceed(tool, arguments, None).await
}

/// Calls a tool that continues with a state and an answer.
pub(crate) async fn proceed(
    tool: &Tool,
    arguments: Value,
    continuation: Option<Continuation>,
) -> ToolOutcome {
    let call = ToolCall::from_value("c0", tool.name(), arguments);
    let context =
        ToolContext::new(call, Arc::new(SystemWorld)).continued(continuation.map(Arc::new));
    let limits = ToolLimits::new(Duration::from_secs(30));
    run_tool(Arc::new(HandlerExecutor), tool.clone(), context, limits)
        .await
        .outcome
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The question of an outcome, and how the call continues with this answer.
pub(crate) fn asked(outcome: ToolOutcome, answer: &str) -> (String, Continuation) {
    let ToolOutcome::AskUser { question, opts } = outcome else { panic!("{outcome:?}") };
    let state = opts.get(CONTINUE).expect("a state").clone();
    (question, Continuation::new(state, Some(answer.to_owned())))
}

/// The kind and the message of a failed call.
pub(crate) fn failed(outcome: ToolOutcome) -> (String, String) {
    let ToolOutcome::Error { error, .. } = outcome else { panic!("{outcome:?}") };
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    (text("mcp"), text("message"))
}

pub(crate) fn ok(outcome: ToolOutcome) -> String {
    let ToolOutcome::Ok(Value::String(text)) = outcome else { panic!("{outcome:?}") };
    text
}

/// A script of a model that makes these calls, each in a turn of its own, and ends.
pub(crate) fn script(calls: &[(&str, Value)]) -> Vec<Value> {
    let turn = |(place, (name, arguments)): (usize, &(&str, Value))| {
        let call = json!({"id": format!("c{place}"), "name": name, "arguments": arguments});
        json!([{"tool_call": call}, {"finish": "tool_calls"}])
    };
    let mut script: Vec<Value> = calls.iter().enumerate().map(turn).collect();
    script.push(json!([{"text": "Done."}, {"finish": "stop"}]));
    script
}
