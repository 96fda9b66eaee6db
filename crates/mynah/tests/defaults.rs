//! What an engine sets for its calls, and what it cannot have.

use std::time::Duration;

use mynah::{
    Engine, OnToolError, Options, Result, Tool, ToolErrorDecision, log::MemoryLog, replay_run,
    testing::Scripted,
};
use serde_json::json;

use crate::kept::says;

fn failing() -> Result<Engine> {
    let call = json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"finish": "tool_calls"}]);
    let pay = Tool::new("pay", "", json!({})).handler(async |_, _| Err::<(), _>("no money"));
    Ok(Engine::new(Scripted::new([call.clone(), says("later"), call, says("later")])?).tool(pay))
}

#[tokio::test]
async fn an_engine_has_a_policy_for_errors_of_tools_and_a_call_may_have_another() -> Result<()> {
    let soften = || OnToolError::decide(|_, _| ToolErrorDecision::Continue(json!("tomorrow")));
    let result = |chat: mynah::ChatResult| {
        let message = chat.thread.messages.iter().nth(2);
        message.map(|message| message.text().into_owned()).unwrap_or_default()
    };
    for engine in [
        failing()?.on_tool_error(soften()),
        failing()?.defaults(Options::new().on_tool_error(soften())),
    ] {
        let log = MemoryLog::new();
        let chat = engine.chat("go").record(&log).run_id("k").await?;
        assert_eq!(result(chat), "tomorrow");
        engine.replay(&log, "k").await?;
        let error = engine.spec().expect_err("a function cannot be stored");
        assert_eq!(error.metadata()["field"], "on_tool_error");
        let chat = engine.chat("go").on_tool_error(OnToolError::Halt).await?;
        assert_eq!(chat.halted_reason.as_str(), "tool_error");
    }
    let halts = failing()?.on_tool_error(soften()).on_tool_error(OnToolError::Halt);
    assert_eq!(halts.chat("go").await?.halted_reason.as_str(), "tool_error");
    Ok(())
}

#[tokio::test]
async fn what_belongs_to_a_call_is_refused_on_an_engine_and_not_dropped() -> Result<()> {
    let log = MemoryLog::new();
    for (name, engine) in [
        ("record", failing()?.defaults(Options::new().record(&log))),
        ("halt_when", failing()?.defaults(Options::new().halt_when("v1", |_| true))),
        ("on_event", failing()?.defaults(Options::new().on_event(|_| {}))),
        ("api_key", failing()?.defaults(Options::new().api_key("sk-1"))),
        ("api_key", failing()?.adapter_option("api_key", "sk-1")),
    ] {
        let error = engine.chat("go").await.expect_err("a refusal");
        assert!(error.is_validation() && error.to_string().contains(name), "{error}");
        assert!(!error.to_string().contains("sk-1"), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_replay_without_an_engine_runs_no_tools() -> Result<()> {
    let log = MemoryLog::new();
    failing()?.chat("go").record(&log).run_id("k").await?;
    for replay in [replay_run(&log, "k").rerun_tools(), replay_run(&log, "k").rerun_tool("pay")] {
        let error = replay.await.expect_err("no tools to run");
        assert_eq!(error.metadata()["field"], "rerun_tools");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_set_for_a_replay_is_compared_with_the_run() -> Result<()> {
    let log = MemoryLog::new();
    failing()?.chat("go").max_tokens(9).record(&log).run_id("k").await?;
    let engine = failing()?;
    for has_engine in [false, true] {
        let replay = || if has_engine { engine.replay(&log, "k") } else { replay_run(&log, "k") };
        assert_eq!(replay().max_tokens(9).await?.records, replay().await?.records);
        for changed in [replay().max_tokens(8), replay().deadline(Duration::from_secs(1))] {
            let error = changed.await.expect_err("a difference");
            let path = error.metadata()["diff"][0]["path"].as_str().unwrap_or_default();
            assert!(path.starts_with("about.options"), "{error}");
        }
    }
    Ok(())
}
