//! The prelude alone is enough for a program.

use mynah::{prelude::*, testing::Script, testing::Scripted};
use serde_json::json;

#[tokio::test]
async fn a_recording_agent_with_a_tool_a_budget_and_a_stream_needs_the_prelude_alone() -> Result<()>
{
    let model = Scripted::play([
        Script::new().tool_call("c0", "echo", json!({})).call_tools(),
        Script::new().text("done").stop(),
    ]);
    let echo =
        Tool::new("echo", "", json!({})).handler(async |arguments, _: ToolContext| arguments);
    let echo = echo.approval(Approval::Never);
    let options = Options::new().tool_choice(ToolChoice::Auto).retry(RetryPolicy::never());
    let engine = Engine::new(Fallback::new(model)).tool(echo).defaults(options);
    let log = MemoryLog::new();
    let mut events = engine.chat("go").record(&log).budget(Budget::new().max_turns(2)).stream();
    let mut done: Option<ChatResult> = None;
    while let Some(event) = events.next().await {
        if let Event::ChatCompleted { result } = event? {
            done = Some(*result);
        }
    }
    let done = done.ok_or_else(|| Error::invalid_option("events", "incomplete"))?;
    assert_eq!(done.halted_reason, HaltReason::Completed);
    let run: RunId = done.run_id.unwrap_or_default();
    assert!(log.run(&run).await?.is_some());
    #[cfg(feature = "sqlite")]
    drop(SqliteLog::open("/nowhere/at/all.db"));
    Ok(())
}
