//! What records tell of code that they cannot hold.

use mynah::{
    BoxFuture, EncodeError, Engine, HandlerExecutor, OnToolError, Options, Tool, ToolContext,
    ToolExecutor, ToolOutcome, ToolResultEncoder,
    log::{Append, Log, MemoryLog, RunStatus},
    replay_run,
    testing::Scripted,
};
use serde_json::{Value, json};

#[tokio::test]
async fn a_run_that_has_code_is_not_resumed_without_it_unawares() -> mynah::Result<()> {
    for (name, told, code) in codes() {
        let (log, run) = cut_off(code()).await?;
        let refused = engine()?.resume(&log, &run).await.expect_err("nobody has the code");
        let path = format!("about.options.{name}");
        let lacks = json!({"path": path, "recorded": told, "produced": null});
        assert_eq!(refused.metadata()["diff"], json!([lacks]), "{refused}");
        assert!(refused.to_string().contains(&format!("the run has a {name}, ")), "{refused}");
        assert_eq!(log.run(&run).await?.map(|run| run.status), Some(RunStatus::Running));

        assert_eq!(engine()?.resume(&log, &run).options(code()).await?.text(), "done");
        assert_eq!(replay_run(&log, &run).await?.status, "equal", "{name}");
        let (log, run) = cut_off(code()).await?;
        let done = engine()?.resume(&log, &run).allow_changed_engine().await?;
        assert_eq!(done.text(), "done");
        assert_eq!(replay_run(&log, &run).await?.status, "equal", "{name} until it was left out");
    }
    Ok(())
}

#[tokio::test]
async fn code_that_is_given_to_a_run_that_had_none_is_meant() -> mynah::Result<()> {
    for (name, _, code) in codes() {
        let (log, run) = cut_off(Options::new()).await?;
        assert_eq!(engine()?.resume(&log, &run).options(code()).await?.text(), "done", "{name}");
        assert_eq!(replay_run(&log, &run).await?.status, "equal", "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_replay_needs_code_only_where_tools_are_run_again() -> mynah::Result<()> {
    for (name, _, code) in codes() {
        let (log, run) = kept(code()).await?;
        let replay = || engine().map(|engine| engine.replay(&log, &run));
        assert_eq!(replay()?.await?.status, "equal", "{name}");
        assert_eq!(replay()?.options(code()).await?.status, "equal", "{name}");
    }
    let (log, run) = kept(Options::new().tool_result_encoder(Loud)).await?;
    let changed = engine()?.replay(&log, &run).tool_result_encoder(Louder).await;
    let diff = json!([{"path": "about.options.tool_result_encoder", "recorded": "loud", "produced": "louder"}]);
    assert_eq!(changed.expect_err("another encoder").metadata()["diff"], diff);
    Ok(())
}

/// The name that records have for some code, what they tell of it, and the code.
type Code = (&'static str, Value, fn() -> Options);

fn codes() -> [Code; 3] {
    [
        ("on_tool_error", json!(true), || {
            Options::new().on_tool_error(mynah::ErrorPolicy::decide(|_, _| {
                OnToolError::Continue(json!("fine"))
            }))
        }),
        ("tool_executor", json!("loud"), || Options::new().tool_executor(Loud)),
        ("tool_result_encoder", json!("loud"), || Options::new().tool_result_encoder(Loud)),
    ]
}

/// A run whose tool fails, with these options.
async fn kept(options: Options) -> mynah::Result<(MemoryLog, String)> {
    let log = MemoryLog::new();
    let run = engine()?.chat("go").options(options).record(&log).await?.run_id;
    Ok((log, run.unwrap_or_default().to_string()))
}

/// The same, of a process that ended before the model answered.
async fn cut_off(options: Options) -> mynah::Result<(MemoryLog, String)> {
    let (whole, run) = kept(options).await?;
    let log = MemoryLog::new();
    log.append(Append::new(&*run, None, whole.read(&run, 1, 2).await?)).await?;
    Ok((log, run))
}

fn engine() -> mynah::Result<Engine> {
    let boom = Tool::new("boom", "", json!({})).handler(async |_, _| ToolOutcome::error("no"));
    let scripts = [
        json!([{"tool_call": {"id": "c0", "name": "boom"}}, {"finish": "tool_calls"}]),
        json!([{"text": "done"}, {"finish": "stop"}]),
    ];
    Ok(Engine::new(Scripted::new(scripts)?).tool(boom))
}

/// Runs tools as always, and says everything louder.
struct Loud;

impl ToolExecutor for Loud {
    fn name(&self) -> &str {
        "loud"
    }

    fn execute(
        &self,
        tool: &Tool,
        arguments: Value,
        context: ToolContext,
    ) -> BoxFuture<mynah::Result<ToolOutcome>> {
        HandlerExecutor.execute(tool, arguments, context)
    }
}

impl ToolResultEncoder for Loud {
    fn name(&self) -> &str {
        "loud"
    }

    fn encode(&self, value: &Value) -> Result<String, EncodeError> {
        Ok(value.to_string().to_uppercase())
    }
}

struct Louder;

impl ToolResultEncoder for Louder {
    fn name(&self) -> &str {
        "louder"
    }

    fn encode(&self, value: &Value) -> Result<String, EncodeError> {
        Ok(format!("{value}!"))
    }
}
