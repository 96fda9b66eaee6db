//! Placeholders in records for code that they cannot hold.

use std::sync::Arc;

use mynah::{
    Adapter, BoxFuture, EncodeError, Engine, HandlerExecutor, ModelCall, ModelStream, Options,
    Request, Tool, ToolContext, ToolErrorDecision, ToolExecutor, ToolOutcome, ToolResultEncoder,
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
        assert!(
            refused.to_string().contains(&format!("the run has code for {name}, ")),
            "{refused}"
        );
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

#[tokio::test]
async fn a_replay_by_other_rules_for_schemas_differs_and_a_resumed_run_goes_on_by_them()
-> mynah::Result<()> {
    let with_schema = |version: u32, schema: Value| -> mynah::Result<Engine> {
        let scripts = [
            json!([{"tool_call": {"id": "c0", "name": "boom"}}, {"finish": "tool_calls"}]),
            json!([{"text": "done"}, {"finish": "stop"}]),
        ];
        let boom = Tool::new("boom", "", schema).handler(async |_, _| ToolOutcome::error("no"));
        let inner = Arc::new(Scripted::new(scripts)?);
        Ok(Engine::new(Fitting { version, inner }).tool(boom))
    };
    let fitted = |version: u32| with_schema(version, json!({}));
    let log = MemoryLog::new();
    let run = fitted(1)?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    assert_eq!(fitted(1)?.replay(&log, &*run).await?.status, "equal");
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    let changed = fitted(2)?.replay(&log, &*run).await.expect_err("other rules");
    let diff = json!([{"path": "about.options.schema_fit", "recorded": 1, "produced": 2}]);
    assert_eq!(changed.metadata()["diff"], diff);

    let cut = MemoryLog::new();
    cut.append(Append::new(&*run, None, log.read(&run, 1, 2).await?)).await?;
    let result = fitted(2)?.resume(&cut, &*run).await?;
    assert_eq!(result.text(), "done");
    assert_eq!(fitted(2)?.replay(&cut, &*run).await?.status, "equal");
    assert!(fitted(1)?.replay(&cut, &*run).await.is_err(), "it ended by others");
    assert_eq!(replay_run(&cut, &*run).await?.status, "equal");

    let changed = with_schema(1, json!({"type": "object"}))?.replay(&log, &*run).await;
    let diff = changed.expect_err("another schema").metadata()["diff"].to_string();
    assert!(diff.contains("about.tools"), "{diff}");
    Ok(())
}

/// A model whose adapter rewrites schemas.
struct Fitting {
    version: u32,
    inner: Arc<Scripted>,
}

impl Adapter for Fitting {
    fn name(&self) -> &str {
        "fitting"
    }

    fn open(
        self: Arc<Self>,
        request: Request,
        call: ModelCall,
    ) -> BoxFuture<mynah::Result<ModelStream>> {
        Arc::clone(&self.inner).open(request, call)
    }

    fn schema_fit(&self) -> Option<u32> {
        Some(self.version)
    }
}

/// The name that records have for some code, its placeholder, and the code.
type Code = (&'static str, Value, fn() -> Options);

fn codes() -> [Code; 3] {
    [
        ("on_tool_error", json!(true), || {
            Options::new().on_tool_error(mynah::OnToolError::decide(|_, _| {
                ToolErrorDecision::Continue(json!("fine"))
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
