//! A resumed run returns what the call would have returned.

use mynah::{
    Engine, OnUncertain, StepResult, ToolOutcome, fork_run,
    log::{Fact, Log, MemoryLog},
};
use serde_json::{Value, json};

use crate::common::{call, echo, says, scripted, tool};

#[tokio::test]
async fn a_reply_that_was_killed_is_resumed_as_the_reply_that_it_was() -> mynah::Result<()> {
    let scripts = || [call("c0", "ask"), call("c1", "echo"), call("c2", "ask"), says("done")];
    let (log, engine) = (MemoryLog::new(), asking(scripts()));
    let (asked, _) = engine.start("go").record(&log).await?;
    let began = asked.last_run.as_ref().expect("a run").seq + 1;
    let (asked, reply) = engine.reply(&asked, "one").record(&log).await?;
    let waiting = asked.last_run.expect("a run");
    for at in began..waiting.seq {
        let fork = fork_run(&log, &*waiting.run_id, at).await?.run_id;
        let rest = asking(scripts().into_iter().skip(answers(&log, &fork).await));
        let mut resumed = rest.resume(&log, &*fork).on_uncertain(OnUncertain::Rerun).await?;
        resumed.run_id.clone_from(&reply.run_id);
        assert_eq!(resumed, reply, "cut off at {at}");
    }
    // Gone on with by no call of its own, it is still the reply.
    let done = asking([says("done")]).resume(&log, &*waiting.run_id).answer("two").await?;
    assert_eq!((reply.steps.len(), done.steps.len()), (2, 3));
    assert_eq!(done.steps[..2], reply.steps);
    Ok(())
}

#[tokio::test]
async fn a_result_tells_the_place_of_a_step_among_its_own() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let names = ["echo", "pay", "echo", "pay", "echo"].iter().enumerate();
    let engine = asking(names.map(|(place, name)| call(&format!("c{place}"), name)));
    let last = |step: &StepResult| step.response.tool_calls().any(|call| call.id == "c4");
    let first = engine.chat("go").halt_when("last", last).record(&log).await?;
    assert_eq!((first.steps.len(), &first.metadata["manual_turn_index"]), (2, &json!(1)));
    let run = first.run_id.expect("a run");
    let second = engine.resume(&log, &*run).approve("c1").halt_when("last", last).await?;
    assert_eq!((second.steps.len(), &second.metadata["manual_turn_index"]), (4, &json!(3)));
    let third = engine.resume(&log, &*run).approve("c3").halt_when("last", last).await?;
    assert_eq!((third.steps.len(), &third.metadata["halt_when_step_index"]), (5, &json!(4)));
    Ok(())
}

/// An engine whose tools ask, are the caller's to run, or give their arguments back.
fn asking(scripts: impl IntoIterator<Item = Value>) -> Engine {
    let ask = tool("ask", |_| ToolOutcome::ask("which?"));
    let pay = tool("pay", |_| "paid").manual();
    Engine::new(scripted(scripts)).tools([ask, pay, echo()])
}

/// How often the model has answered in a run.
async fn answers(log: &MemoryLog, run: &str) -> usize {
    let records = log.read(run, 1, usize::MAX).await.expect("records");
    let facts = records.iter().filter_map(|record| record.fact().ok().flatten());
    facts.filter(|fact| matches!(fact, Fact::AssistantCompleted { .. })).count()
}
