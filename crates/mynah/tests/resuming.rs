//! What a run is gone on with: the engine and the options that it ran with, or what is said in their place.

use std::time::Duration;

use mynah::{
    Budget, Engine, HaltReason, Thread, Tool,
    log::MemoryLog,
    testing::{self, Scripted},
};
use serde_json::json;

use crate::{
    kept::{calls, copy, says, talker},
    param::Param as _,
};

#[tokio::test]
async fn another_engine_is_refused_unless_it_is_allowed() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let pick = || Tool::new("pick", "", json!({})).manual();
    let run = calls(["c0"])?
        .tool(pick())
        .model("small")
        .chat("go")
        .record(&log)
        .await?
        .run_id
        .unwrap_or_default();
    let changes: [(Engine, &str); 3] = [
        (Engine::new(Scripted::default()).tool(pick()).model("large"), "about.model"),
        (Engine::new(Scripted::default()).model("small"), "about.tools.0"),
        (
            Engine::new(Scripted::default()).tool(pick()).model("small").param("temperature", 0.5),
            "about.params.temperature",
        ),
    ];
    for (engine, path) in changes {
        let error =
            engine.resume(&log, &*run).tool_result("c0", 1).await.expect_err("another engine");
        assert_eq!(
            (error.kind().type_name(), &error.metadata()["seq"]),
            ("replay_mismatch", &json!(1))
        );
        let diff = error.metadata()["diff"].as_array().cloned().unwrap_or_default();
        assert!(diff[0]["path"].as_str().is_some_and(|found| found.starts_with(path)), "{diff:?}");
        let log = copy(&log, &run, u64::MAX).await;
        let engine = engine.adapter(Scripted::new([says("done")])?);
        let done = engine.resume(&log, &*run).tool_result("c0", 1).allow_changed_engine().await?;
        assert_eq!(done.text(), "done");
    }
    Ok(())
}

#[tokio::test]
async fn another_order_of_the_same_tools_is_no_difference() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let tools = ["pick", "buy", "pay"].map(|name| Tool::new(name, "", json!({})).manual());
    let model = || calls(["c0"]);
    let run =
        model()?.tools(tools.clone()).chat("go").record(&log).await?.run_id.unwrap_or_default();
    for shift in 1..tools.len() {
        let (mut shifted, log) = (tools.clone(), copy(&log, &run, u64::MAX).await);
        shifted.rotate_left(shift);
        let engine = model()?.tools(shifted);
        assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
        engine.resume(&log, &*run).tool_result("c0", 1).await?;
        assert_eq!(model()?.tools(tools.clone()).replay(&log, &*run).await?.status, "equal");
    }
    Ok(())
}

#[tokio::test]
async fn an_option_of_the_call_that_resumes_is_meant() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let engine = calls(["c0"])?.tool(Tool::new("pick", "", json!({})).manual());
    let turns = |limit| Budget::new().max_turns(limit);
    let waiting = engine.chat("go").budget(turns(1)).record(&log).await?;
    let run = waiting.run_id.unwrap_or_default();
    let done = engine.resume(&log, &*run).tool_result("c0", 1).budget(turns(2)).await?;
    assert_eq!(done.text(), "done");
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_deadline_holds_for_a_model_that_is_asked_again() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let run = talker(1)?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let cut = copy(&log, &run, 2).await;
    let slow = json!([{"delay_ms": 60_000}, {"text": "late"}, {"finish": "stop"}]);
    let slow = Engine::new(Scripted::new([slow])?);
    let late = slow.resume(&cut, &*run).deadline(Duration::from_secs(1)).await?;
    assert_eq!(late.halted_reason, HaltReason::Deadline);
    Ok(())
}

#[tokio::test]
async fn a_request_with_tools_replays_and_resumes() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let spec = Tool::new("pick", "", json!({})).spec().clone();
    let mut request = mynah::Request::from(Thread::from("go"));
    request.tools = vec![spec];
    let engine = talker(1)?;
    let stream = engine.generate(request).record(&log).stream();
    let run = stream.run_id().cloned().unwrap_or_default();
    testing::collect(stream).await?;
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    let cut = copy(&log, &run, 2).await;
    let resumed = testing::collect(talker(1)?.resume(&cut, &*run).stream()).await?;
    assert_eq!(testing::text(&resumed), "said 0");
    Ok(())
}
