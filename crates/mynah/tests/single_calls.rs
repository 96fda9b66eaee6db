//! The run of a single call or step: it ends with its result, and waits where a chat would wait.

use mynah::{
    Engine, HaltReason, Session, Status, ToolOutcome, fork_run,
    log::{Extent, Fact, Log, MemoryLog, RunFilter, RunStatus},
    replay_run, restore_session,
};
use serde_json::{Value, json};

use crate::{
    common::{self, call, echo, says, scripted, tool, transcript},
    param::Param as _,
};

#[tokio::test]
async fn a_single_call_or_step_that_failed_is_a_run_that_failed_live_replayed_and_resumed()
-> mynah::Result<()> {
    let broken = || json!([{"text": "half an ans"}, {"disconnect": true}]);
    let error = || json!([{"text": "half"}, {"error": "rate_limited"}]);
    for (extent, script, reason) in [
        (Extent::Generate, broken(), "network_error"),
        (Extent::Generate, error(), "rate_limited"),
        (Extent::Step, broken(), "network_error"),
        (Extent::Step, error(), "rate_limited"),
        (Extent::Step, call("c0", "nope"), "unknown_tool"),
        (Extent::Step, call("c0", "fails"), "tool_error"),
    ] {
        let engine = || {
            let fails = tool("fails", |_| ToolOutcome::error("no")).idempotent(1);
            Engine::new(scripted([script.clone()])).tool(fails).param("on_tool_error", "halt")
        };
        let log = MemoryLog::new();
        match extent {
            Extent::Generate => drop(engine().generate("hi").record(&log).await?),
            _ => drop(engine().step("hi").record(&log).await),
        }
        let run = only_run(&log).await;
        let failed = ended(&log, &run, reason).await;
        assert_eq!(engine().replay(&log, &*run).await?.status, "equal", "{reason}");
        assert_eq!(replay_run(&log, &*run).await?.status, "equal", "{reason}");
        // The end and its seal are the last two.
        for at in 1..failed {
            let fork = fork_run(&log, &*run, at).await?.run_id;
            let resumed = engine().resume(&log, &*fork).await?;
            assert!(resumed.is_halted(), "{reason}");
            assert_eq!(resumed.steps.len(), 1, "{reason}");
            ended(&log, &fork, reason).await;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_step_that_waits_is_a_run_that_waits_and_goes_on_with_a_step() -> mynah::Result<()> {
    for (waiting, given) in [
        (call("c0", "ask"), "answer"),
        (call("c0", "pay"), "result"),
        (call("c0", "pay"), "approval"),
    ] {
        let engine = || waiter([waiting.clone(), call("c1", "echo"), says("too far")]);
        let log = MemoryLog::new();
        let step = engine().step("hi").record(&log).await?;
        let run = only_run(&log).await;
        assert_eq!(status(&log, &run).await, RunStatus::Suspended, "{given}");
        assert_eq!(engine().replay(&log, &*run).await?.status, "equal", "{given}");
        let waits = mynah::recorded_call(&log, &run).await?.result.expect("it waits");
        let asked = (waits.pending_question.is_some(), waits.manual_tool_calls().len());
        assert_eq!(asked, if given == "answer" { (true, 0) } else { (false, 1) });
        let goes_on = waiter([call("c1", "echo"), says("too far")]);
        let resume = goes_on.resume(&log, &*run);
        let resume = match given {
            "answer" => resume.answer("two"),
            "result" => resume.tool_result("c0", "paid"),
            _ => resume.approve("c0"),
        };
        let mut stream = resume.stream().started().await?;
        let told = common::events(&mut stream).await;
        assert_eq!(mynah::testing::names(&told).last(), Some(&"step_completed"), "{given}");
        let next = stream.last_step().cloned().expect("a step");
        drop(stream);
        let gained = next.thread.messages.len() - step.thread.messages.len();
        assert_eq!((gained, common::results(&next)), (3, vec!["c1: {}".to_owned()]), "{given}");
        assert_eq!(status(&log, &run).await, RunStatus::Completed, "{given}");
        assert_eq!(engine().replay(&log, &*run).await?.status, "equal", "{given}");
        assert_eq!(replay_run(&log, &*run).await?.status, "equal", "{given}");
    }
    Ok(())
}

#[tokio::test]
async fn a_reply_goes_on_with_the_step_that_asked_and_is_a_chat() -> mynah::Result<()> {
    let scripts = || [call("c0", "ask"), call("c1", "echo"), says("two it is")];
    let (log, engine, plain) = (MemoryLog::new(), waiter(scripts()), waiter(scripts()));
    let asked = Session::from("how many").with_id("s");
    let (asking, _) = engine.step_session(&asked).record(&log).await?;
    assert_eq!(asking.status(), Status::AwaitingUser);
    assert_eq!(restore_session(&log, "s").await?.session, asking);
    let (done, result) = engine.reply(&asking, "two").request_id("r").record(&log).await?;
    let (plain_asking, _) = plain.step_session(&asked).await?;
    let (plain_done, plain_result) = plain.reply(&plain_asking, "two").request_id("r").await?;
    assert_eq!((&done.thread, done.status()), (&plain_done.thread, plain_done.status()));
    let steps = result.steps.len();
    assert_eq!((result.steps, result.metadata), (plain_result.steps, plain_result.metadata));
    let run = only_run(&log).await;
    assert_eq!(status(&log, &run).await, RunStatus::Completed);
    assert_eq!(restore_session(&log, "s").await?.session, done);
    assert_eq!(waiter(scripts()).replay(&log, &*run).await?.status, "equal");
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    // Wherever its process ended, it continues as the reply that it was.
    let records = log.head(&run).await?.expect("a run").seq;
    let went_on = position(&log, &run, "resumed").await;
    for at in went_on..records - 1 {
        let fork = fork_run(&log, &*run, at).await?.run_id;
        let answered = answers(&log, &fork).await;
        let rest = waiter(scripts().into_iter().skip(answered));
        let resumed = rest.resume(&log, &*fork).await?;
        assert_eq!(resumed.thread, done.thread, "cut off at {at}");
        assert_eq!(resumed.steps.len(), steps, "cut off at {at}");
        assert_eq!(replay_run(&log, &*fork).await?.status, "equal", "cut off at {at}");
    }
    Ok(())
}

#[tokio::test]
async fn a_step_goes_on_with_the_chat_that_waits_for_its_results() -> mynah::Result<()> {
    let scripts = || [call("c0", "pay"), call("c1", "echo"), says("thanks")];
    let (log, engine) = (MemoryLog::new(), waiter(scripts()));
    let (waiting, _) = engine.start(Session::from("pay").with_id("s")).record(&log).await?;
    let paid = waiting.submit_tool_result("c0", "paid")?;
    let (session, step) = engine.step_session(&paid).record(&log).await?;
    assert_eq!(common::results(&step), ["c1: {}"]);
    let run = only_run(&log).await;
    assert_eq!(status(&log, &run).await, RunStatus::Completed);
    assert_eq!(restore_session(&log, "s").await?.session, session);
    assert_eq!(waiter(scripts()).replay(&log, &*run).await?.status, "equal");
    let (done, _) = engine.continue_session(&session, None).record(&log).await?;
    assert_eq!(transcript(&done.thread).last().map(String::as_str), Some("assistant: thanks"));
    assert_eq!(restore_session(&log, "s").await?.session, done);
    Ok(())
}

/// An engine whose tools ask, are the caller's to run, or give their arguments back.
fn waiter(scripts: impl IntoIterator<Item = Value>) -> Engine {
    let ask = tool("ask", |_| ToolOutcome::ask("how many?"));
    let pay = tool("pay", |_| "paid").manual();
    Engine::new(scripted(scripts)).tools([ask, pay, echo().idempotent(1)])
}

/// The only run of a log.
async fn only_run(log: &MemoryLog) -> String {
    let runs = log.runs(RunFilter::new()).await.expect("a log").runs;
    assert_eq!(runs.len(), 1);
    runs[0].run_id.to_string()
}

async fn status(log: &MemoryLog, run: &str) -> RunStatus {
    log.run(run).await.expect("a log").expect("a run").status
}

/// The first record of this kind.
async fn position(log: &MemoryLog, run: &str, kind: &str) -> u64 {
    let records = log.read(run, 1, usize::MAX).await.expect("records");
    let found = records.iter().find(|record| record.kind().as_str() == kind);
    found.expect("such a record").seq()
}

/// How often the model has answered in a run.
async fn answers(log: &MemoryLog, run: &str) -> usize {
    let records = log.read(run, 1, usize::MAX).await.expect("records");
    records.iter().filter(|record| record.kind().as_str() == "assistant_completed").count()
}

/// Asserts that a run failed for this reason, and gives the record that says so.
async fn ended(log: &MemoryLog, run: &str, reason: &str) -> u64 {
    let summary = log.run(run).await.expect("a log").expect("a run");
    assert_eq!(summary.status, RunStatus::Failed, "{reason}");
    let record = log.read(run, summary.records - 1, 1).await.expect("records").remove(0);
    match record.fact() {
        Ok(Some(Fact::Failed(end))) if end.reason == HaltReason::ToolError => {
            assert_eq!(reason, "tool_error");
        }
        Ok(Some(Fact::Failed(end))) => assert_eq!(end.metadata["error"]["reason"], reason),
        other => panic!("expected a failure, found {other:?}"),
    }
    record.seq()
}
