//! What a person says to a run that does not wait: its process ended, or it is a fork.

use mynah::{
    Budget, Engine, HaltReason, Message, OnUncertain, Tool, ToolOutcome, fork_run,
    log::{Log, MemoryLog, VerifyStatus, verify_run},
    replay_run,
};
use serde_json::{Value, json};

use crate::{
    common::{call, echo, says, scripted, tool, transcript},
    kept::{copy, kinds},
    param::Param as _,
};

#[tokio::test]
async fn a_message_joins_a_run_after_any_record_and_the_model_is_asked_next() -> mynah::Result<()> {
    let scripts = [call("c0", "echo"), says("first")];
    let log = MemoryLog::new();
    let run = engine(scripts.clone()).chat("go").record(&log).await?.run_id.unwrap_or_default();
    let whole = kinds(&log, &run).await;
    let last = whole.iter().position(|kind| kind == "completed").expect("an end") as u64;
    for at in 1..=last {
        let log = copy(&log, &run, at).await;
        let resume = engine([says("second")]).resume(&log, &*run).on_uncertain(OnUncertain::Rerun);
        let done = resume.message(Message::user("and?")).await?;
        assert_eq!((done.text(), &done.halted_reason), ("second".into(), &HaltReason::Completed));

        let kinds = kinds(&log, &run).await;
        let joined = kinds.iter().position(|kind| kind == "user_message").expect("a message");
        assert_eq!(kinds[at as usize], "resumed", "{at}: {kinds:?}");
        assert_eq!(kinds[joined + 1], "turn_started", "{at}: {kinds:?}");
        assert_eq!(count(&kinds, "user_message"), 1);
        let expected: &[&str] = match at {
            1 | 2 => &["user: go"],
            3..=6 => &["user: go", "assistant: → c0", "tool c0: {}"],
            _ => &["user: go", "assistant: → c0", "tool c0: {}", "assistant: first"],
        };
        let said = transcript(&done.thread);
        let said: Vec<&str> = said.iter().map(String::as_str).collect();
        assert_eq!(said, [expected, &["user: and?", "assistant: second"]].concat(), "{at}");

        assert_eq!(verify_run(&log, &run).await?.status, VerifyStatus::Verified);
        let records = kinds.len() as u64;
        assert_eq!(engine(scripts.clone()).replay(&log, &*run).await?.records, records, "{at}");
        assert_eq!(replay_run(&log, &*run).await?.records, records, "{at}");
        // It continues from any prefix of that as well, and the message is not lost.
        for cut in joined as u64 + 1..records {
            let log = copy(&log, &run, cut).await;
            let again = engine([says("second")]).resume(&log, &*run).await?;
            assert_eq!(
                (again.thread, again.steps),
                (done.thread.clone(), done.steps.clone()),
                "{at}, {cut}"
            );
            assert_eq!(replay_run(&log, &*run).await?.status, "equal", "{at}, {cut}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn tools_that_may_have_run_come_before_a_message() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let pay = || Tool::new("pay", "", json!({})).handler(async |_, _| "paid");
    let model = |scripts: &[Value]| Engine::new(scripted(scripts.iter().cloned())).tool(pay());
    let run = model(&[call("c0", "pay"), says("x")]).chat("go").record(&log).await?.run_id;
    let run = run.unwrap_or_default();
    let cut = || copy(&log, &run, 4);
    let and = || Message::user("and?");

    let waits = cut().await;
    let refused = model(&[]).resume(&waits, &*run).message(and()).await.expect_err("not yet");
    assert_eq!(refused.reason(), "invalid_status");
    assert_eq!(refused.metadata()["missing_tool_calls"], json!(["c0"]));
    assert_eq!(kinds(&waits, &run).await.len(), 4, "nothing is written");

    for (policy, told) in
        [(OnUncertain::Rerun, "tool c0: paid"), (OnUncertain::Fail, r#"tool c0: {"error":"#)]
    {
        let log = cut().await;
        let model = model(&[says("second")]);
        let done = model.resume(&log, &*run).on_uncertain(policy).message(and()).await?;
        let said = transcript(&done.thread);
        assert!(said[2].starts_with(told), "{said:?}");
        assert_eq!(said[3..], ["user: and?", "assistant: second"]);
        assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    }
    // What is said of the calls may be said with it.
    let log = cut().await;
    let resume = model(&[says("second")]);
    let resume = resume.resume(&log, &*run).tool_result("c0", "paid twice");
    let done = resume.message(and()).await?;
    let said = ["tool c0: paid twice", "user: and?", "assistant: second"];
    assert_eq!(transcript(&done.thread)[2..], said);
    Ok(())
}

#[tokio::test]
async fn a_message_is_the_answer_where_there_is_a_question_and_waits_for_one_that_comes()
-> mynah::Result<()> {
    let log = MemoryLog::new();
    let asking = || engine([call("c0", "ask"), says("two")]);
    let run = asking().chat("go").record(&log).await?.run_id.unwrap_or_default();
    let answered = copy(&log, &run, u64::MAX).await;
    let done = engine([says("two")]).resume(&answered, &*run).message(Message::user("2")).await?;
    assert_eq!(done.text(), "two");
    assert_eq!(count(&kinds(&answered, &run).await, "user_message"), 0);

    // Its process ended before the question was asked: that comes first, and what was said is no answer to it.
    let cut = copy(&log, &run, 3).await;
    let waiting = engine([]).resume(&cut, &*run).message(Message::user("and?")).await?;
    assert_eq!(waiting.pending_question.as_deref(), Some("how many?"));
    assert_eq!(count(&kinds(&cut, &run).await, "user_message"), 0);
    assert_eq!(engine([says("two")]).resume(&cut, &*run).answer("2").await?.text(), "two");
    Ok(())
}

#[tokio::test]
async fn nothing_is_said_to_a_run_that_has_its_end_nor_answered_where_nothing_is_asked()
-> mynah::Result<()> {
    let log = MemoryLog::new();
    let run = engine([says("done")]).chat("go").record(&log).await?.run_id.unwrap_or_default();
    // With its seal, before it, and before its end.
    for (last, reason) in [(5, "sealed"), (4, "sealed"), (3, "invalid_status")] {
        let (cut, silent) = (copy(&log, &run, last).await, engine([]));
        let resume = silent.resume(&cut, &*run);
        let refused = match reason {
            "sealed" => resume.message(Message::user("and?")).await,
            _ => resume.answer("and?").await,
        };
        assert_eq!(refused.expect_err("refused").reason(), reason, "{last}");
        assert_eq!(kinds(&cut, &run).await.len() as u64, last, "nothing is written");
    }
    let cut = copy(&log, &run, 3).await;
    let model = engine([]).resume(&cut, &*run).message(Message::assistant("and?")).await;
    assert_eq!(model.expect_err("not the user").reason(), "invalid_status");
    let spent = engine([says("done")]).chat("go").budget(Budget::new().max_turns(0)).record(&log);
    let run = spent.await?.run_id.unwrap_or_default();
    let cut = copy(&log, &run, 2).await;
    let over = engine([]).resume(&cut, &*run).message(Message::user("and?")).await;
    assert_eq!(over.expect_err("its end follows").reason(), "sealed");
    Ok(())
}

#[tokio::test]
async fn single_calls_go_on_with_one_more() -> mynah::Result<()> {
    let log = MemoryLog::new();
    engine([says("a")]).step("go").record(&log).await?;
    engine([says("a")]).generate("go").record(&log).await?;
    let runs = log.runs(Default::default()).await?.runs;
    assert_eq!(runs.len(), 2);
    for run in runs {
        for at in 1..=3 {
            let fork = fork_run(&log, &*run.run_id, at).await?.run_id;
            let and = || Message::user("and?");
            let done = engine([says("b")]).resume(&log, &fork).message(and()).await?;
            assert_eq!(done.text(), "b");
            assert_eq!(replay_run(&log, &fork).await?.status, "equal");
            // One whose model refuses is refused again.
            let fork = fork_run(&log, &*run.run_id, at).await?.run_id;
            let refused =
                engine([json!([{"preflight_error": "rate_limited"}])]).resume(&log, &fork);
            let refused = refused.message(and()).await.expect_err("refused");
            assert_eq!(refused.reason(), "rate_limited");
            assert_eq!(replay_run(&log, &fork).await?.status, "equal");
        }
    }
    Ok(())
}

#[tokio::test]
async fn limits_count_on_behind_a_message() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let limited =
        |says: Vec<Value>, turns| engine(says).param("budget", json!({"max_turns": turns}));
    let run = limited(vec![says("a")], 1).chat("go").record(&log).await?.run_id;
    let cut = copy(&log, &run.clone().unwrap_or_default(), 3).await;
    let run = run.unwrap_or_default();
    let resume = limited(vec![says("b")], 1).resume(&cut, &*run);
    let spent = resume.message(Message::user("and?")).await?;
    assert_eq!(spent.halted_reason, HaltReason::BudgetExceeded);
    assert_eq!(transcript(&spent.thread), ["user: go", "assistant: a", "user: and?"]);
    assert_eq!(replay_run(&cut, &*run).await?.status, "equal");
    Ok(())
}

/// An engine with a tool that gives its arguments back, and one that asks.
fn engine(scripts: impl IntoIterator<Item = Value>) -> Engine {
    let ask = tool("ask", |_| ToolOutcome::ask("how many?")).idempotent(1);
    Engine::new(scripted(scripts)).tools([echo(), ask])
}

fn count(kinds: &[String], wanted: &str) -> usize {
    kinds.iter().filter(|kind| *kind == wanted).count()
}
