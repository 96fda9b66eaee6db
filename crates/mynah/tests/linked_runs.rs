//! Runs that continue those which a provider or a budget ended.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mynah::{
    AdapterReason, BoxFuture, Budget, Engine, Error, OnToolError, Result, Session, Signal, Tool,
    ToolContext, ToolExecutor, ToolOutcome, cancel_run, deliver, fork_run,
    log::{Log, MemoryLog, RunStatus},
    recorded_call, restore_session,
    testing::Scripted,
};
use serde_json::{Value, json};

use crate::kept::says;

/// An answer that breaks off after so many tokens.
fn breaks_off(tokens: u64) -> Value {
    let usage = json!({"input_tokens": 1000, "output_tokens": tokens - 1000});
    json!([{"text": "So"}, {"usage": usage}, {"error": "overloaded"}])
}

fn calls(name: &str) -> Value {
    json!([{"tool_call": {"id": "c0", "name": name}}, {"finish": "tool_calls"}])
}

#[tokio::test(start_paused = true)]
async fn a_call_keeps_its_idempotency_key_in_the_run_that_continues_its_own() -> Result<()> {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&keys);
    let pay =
        Tool::new("pay", "", json!({})).idempotent(3).handler(move |_, context: ToolContext| {
            let attempt = context.attempt();
            seen.lock().expect("keys").push((attempt, context.idempotency_key()));
            async move {
                tokio::time::sleep(Duration::from_secs(if attempt < 3 { 10 } else { 0 })).await;
                json!("paid")
            }
        });
    let engine = Engine::new(Scripted::new([calls("pay"), says("done")])?).tool(pay);
    let log = MemoryLog::new();
    let budget = |seconds: u64| Budget::new().max_wall_clock_ms(seconds * 1000);
    let chat = engine.chat("go").budget(budget(1)).record(&log).run_id("k").await?;
    assert_eq!(chat.halted_reason.as_str(), "budget_exceeded");
    let again = engine.resume(&log, "k").budget(budget(5)).await?;
    assert_eq!(
        (again.halted_reason.as_str(), again.run_id.as_deref()),
        ("budget_exceeded", Some("k~2"))
    );
    let done = engine.resume(&log, "k").budget(budget(60)).await?;
    assert_eq!((done.run_id.as_deref(), &*done.text()), (Some("k~3"), "done"));
    let keys = keys.lock().expect("keys").clone();
    assert_eq!(keys.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(keys.iter().all(|(_, key)| *key == keys[0].1), "{keys:?}");
    engine.replay(&log, "k~3").await?;
    Ok(())
}

#[tokio::test]
async fn what_a_failed_call_spent_counts_in_the_runs_that_continue_its_own() -> Result<()> {
    let model = Scripted::new([breaks_off(2000), breaks_off(2000), says("never")])?;
    let engine = Engine::new(model.clone());
    let log = MemoryLog::new();
    let budget = Budget::new().max_total_tokens(4500);
    let first = engine.chat("go").budget(budget).record(&log).run_id("k").await?;
    assert_eq!(first.error().map(|error| error.reason()), Some("overloaded"));
    assert_eq!(engine.resume(&log, "k").await?.run_id.as_deref(), Some("k~2"));
    // 4,000 tokens are spent, and an answer of 600 would pass the limit.
    let long = json!([{"text": "x"}, {"usage": {"input_tokens": 500, "output_tokens": 100}}, {"finish": "stop"}]);
    let third = Engine::new(Scripted::new([long])?).resume(&log, "k").await?;
    assert_eq!(
        (third.run_id.as_deref(), third.halted_reason.as_str()),
        (Some("k~3"), "budget_exceeded")
    );
    assert_eq!(third.metadata["budget"]["actual"], 4600);
    // So do the tokens of the answer that the budget cut off.
    let turns = |turns| Budget::new().max_total_tokens(10_000).max_turns(turns);
    let fourth = engine.resume(&log, "k").budget(turns(3)).await?;
    assert_eq!(
        fourth.metadata["budget"],
        json!({"limit": "turns", "cap": 3, "actual": 4, "where": "pre_call"})
    );
    assert_eq!(model.calls(), 2);
    assert_eq!(engine.resume(&log, "k").budget(turns(4)).await?.text(), "never");
    assert_eq!(mynah::replay_run(&log, "k~5").await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_run_that_its_budget_ended_is_continued_only_with_one_that_is_large_enough() -> Result<()>
{
    let model = || Scripted::new([calls("t"), says("done")]);
    let engine = |turns| -> Result<Engine> {
        let tool = Tool::new("t", "", json!({})).handler(async |_, _| "ok");
        let options = mynah::Options::new().budget(Budget::new().max_turns(turns));
        Ok(Engine::new(model()?).tool(tool).defaults(options))
    };
    for of_engine in [false, true] {
        let log = MemoryLog::new();
        let mut first = engine(1)?.chat("go").record(&log).run_id("k");
        if !of_engine {
            first = first.budget(Budget::new().max_turns(1));
        }
        assert_eq!(first.await?.halted_reason.as_str(), "budget_exceeded");
        for budget in [None, Some(1)] {
            let mut resume = engine(1)?.resume(&log, "k");
            if let Some(turns) = budget {
                resume = resume.budget(Budget::new().max_turns(turns));
            }
            assert_eq!(resume.await.expect_err("the same budget").reason(), "sealed");
        }
        assert!(log.head("k~2").await?.is_none());
        let answers = Engine::new(Scripted::new([says("done")])?);
        let answers = answers.tool(Tool::new("t", "", json!({})).handler(async |_, _| "ok"));
        let more = Budget::new().max_turns(2);
        let resumed = match of_engine {
            true => answers.defaults(mynah::Options::new().budget(more)).resume(&log, "k"),
            false => {
                let engine =
                    answers.defaults(mynah::Options::new().budget(Budget::new().max_turns(1)));
                engine.resume(&log, "k").budget(more)
            }
        };
        let done = resumed.await?;
        assert_eq!((done.run_id.as_deref(), &*done.text()), (Some("k~2"), "done"));
    }
    Ok(())
}

#[tokio::test]
async fn a_run_that_had_all_its_turns_is_continued_with_more() -> Result<()> {
    let engine = |scripts: &[Value]| -> Result<Engine> {
        let tool = Tool::new("t", "", json!({})).handler(async |_, _| "ok");
        Ok(Engine::new(Scripted::new(scripts.to_vec())?).tool(tool))
    };
    let rest = &[says("done")];
    for of_engine in [false, true] {
        let log = MemoryLog::new();
        let poor = engine(&[calls("t")])?;
        let first = match of_engine {
            true => poor.clone().max_turns(1).chat("go"),
            false => poor.chat("go").max_turns(1),
        };
        assert_eq!(first.record(&log).run_id("k").await?.halted_reason.as_str(), "max_turns");
        let enough = match of_engine {
            true => engine(rest)?.max_turns(2),
            false => engine(rest)?,
        };
        let same = match of_engine {
            true => poor.clone().max_turns(1).resume(&log, "k"),
            false => poor.resume(&log, "k"),
        };
        let error = same.await.expect_err("as many turns");
        assert_eq!(error.reason(), "sealed");
        assert!(error.to_string().ends_with("resume it with a larger max_turns"), "{error}");
        assert!(log.head("k~2").await?.is_none());
        let resume = enough.resume(&log, "k");
        let resume = match of_engine {
            true => resume.allow_changed_engine(),
            false => resume.max_turns(2),
        };
        let done = resume.await?;
        assert_eq!((done.run_id.as_deref(), &*done.text()), (Some("k~2"), "done"));
        assert_eq!(mynah::replay_run(&log, "k~2").await?.status, "equal");
    }
    let log = MemoryLog::new();
    let start = |engine: Engine, turns| engine.chat("go").max_turns(turns).record(&log).run_id("k");
    drop(start(engine(&[calls("t")])?, 1).start_or_resume().await?);
    let again = start(engine(rest)?, 1).start_or_resume().await?;
    assert_eq!(again.result().halted_reason.as_str(), "max_turns");
    let more = start(engine(rest)?, 2).allow_changed_engine().start_or_resume().await?;
    assert_eq!((more.run_id().as_str(), &*more.result().text()), ("k~2", "done"));
    Ok(())
}

#[tokio::test]
async fn any_failed_model_call_is_made_again_where_a_changed_engine_is_allowed() -> Result<()> {
    for reason in ["invalid_request", "context_length_exceeded", "malformed_response", "unknown"] {
        for script in [json!([{"preflight_error": reason}]), json!([{"error": reason}])] {
            let failing = Engine::new(Scripted::new([calls("t"), script])?).model("typo");
            let tool = || Tool::new("t", "", json!({})).handler(async |_, _| "ok");
            let failing = failing.tool(tool());
            let log = MemoryLog::new();
            let start = |engine: &Engine| engine.chat("go").record(&log).run_id("k");
            assert!(start(&failing).await.is_ok_and(|result| result.error().is_some()), "{reason}");
            let right = Engine::new(Scripted::new([says("fine")])?).model("right").tool(tool());
            let error = right.resume(&log, "k").await.expect_err("an end");
            assert_eq!(error.reason(), "sealed");
            assert!(error.to_string().contains("allow_changed_engine()"), "{error}");
            let done = start(&right).allow_changed_engine().start_or_resume().await?;
            assert_eq!(
                (done.run_id().as_str(), &*done.result().text()),
                ("k~2", "fine"),
                "{reason}"
            );
        }
    }
    // An unknown tool is no failed model call.
    let engine = Engine::new(Scripted::new([calls("nope"), says("never")])?);
    let log = MemoryLog::new();
    engine.chat("go").record(&log).run_id("k").await?;
    let error = engine.resume(&log, "k").allow_changed_engine().await.expect_err("an end");
    assert!(error.to_string().ends_with("(mynah::fork_run)"), "{error}");
    Ok(())
}

#[tokio::test]
async fn only_a_failure_that_passes_or_can_be_mended_is_continued() -> Result<()> {
    for (reason, continues) in [
        ("overloaded", true),
        ("rate_limited", true),
        ("timeout", true),
        ("network_error", true),
        ("authentication_failed", true),
        ("invalid_request", false),
        ("context_length_exceeded", false),
        ("content_filter", false),
    ] {
        let down = json!([{"text": "So"}, {"error": reason}]);
        let engine = Engine::new(Scripted::new([down, says("fine")])?);
        let log = MemoryLog::new();
        engine.chat("go").record(&log).run_id("k").await?;
        match engine.resume(&log, "k").await {
            Ok(done) => assert!(continues && done.text() == "fine", "{reason}"),
            Err(error) => assert!(!continues && error.reason() == "sealed", "{reason}"),
        }
        assert_eq!(log.head("k~2").await?.is_some(), continues, "{reason}");
    }
    Ok(())
}

/// Fails to run the tool `call`, as an adapter would.
struct Remote(Arc<AtomicUsize>);

impl ToolExecutor for Remote {
    fn name(&self) -> &str {
        "remote"
    }

    fn execute(&self, tool: &Tool, _: Value, _: ToolContext) -> BoxFuture<Result<ToolOutcome>> {
        let outcome = match tool.name() {
            "pay" => {
                self.0.fetch_add(1, Ordering::Relaxed);
                Ok(ToolOutcome::from("paid"))
            }
            _ => Err(Error::adapter(AdapterReason::Overloaded)),
        };
        Box::pin(async move { outcome })
    }
}

#[tokio::test]
async fn a_tool_that_fails_as_a_provider_does_is_no_outage_and_no_tool_is_repeated() -> Result<()> {
    let both = json!([
        {"tool_call": {"id": "c0", "name": "pay"}}, {"tool_call": {"id": "c1", "name": "call"}},
        {"finish": "tool_calls"}
    ]);
    let paid = Arc::new(AtomicUsize::new(0));
    let tool = |name: &str| Tool::new(name, "", json!({}));
    let model = Scripted::new([calls("pay"), both.clone(), both, says("done")])?;
    let engine = Engine::new(model).tool(tool("pay")).tool(tool("call"));
    let engine = engine.tool_executor(Remote(Arc::clone(&paid)));
    let log = MemoryLog::new();
    let chat = engine.chat("go").on_tool_error(OnToolError::Halt).record(&log).run_id("k").await?;
    assert_eq!(chat.halted_reason.as_str(), "tool_error");
    assert_eq!(engine.resume(&log, "k").await.expect_err("an end").reason(), "sealed");
    assert_eq!(paid.load(Ordering::Relaxed), 2);
    Ok(())
}

#[tokio::test]
async fn a_session_whose_turn_was_continued_in_another_run_is_restored_with_it() -> Result<()> {
    let log = MemoryLog::new();
    let engine = |scripts: Vec<Value>| Scripted::new(scripts).map(Engine::new);
    let start = |engine: &Engine| engine.start(Session::from("hello").with_id("s")).record(&log);
    let (session, _) = start(&engine(vec![says("hi")])?).await?;
    let down = engine(vec![breaks_off(2000)])?;
    let (failed, _) = down.reply(&session, "and now?").record(&log).await?;
    let run = failed.last_run.clone().expect("a run").run_id;
    let done = engine(vec![says("now it rains")])?.resume(&log, &*run).await?;
    let next = done.run_id.clone().expect("a run");
    assert_eq!(*next, format!("{run}~2"));

    let restored = restore_session(&log, "s").await?;
    assert_eq!(
        restored.session.thread.last_message().map(|last| last.text().into_owned()),
        Some("now it rains".to_owned())
    );
    assert_eq!(restored.session.last_run.clone().map(|last| last.run_id), Some(next.clone()));
    // The session as it was before it was continued is out of date.
    let recovered = failed.recover();
    let stale = engine(vec![says("never")])?.reply(&recovered, "and?").record(&log).await;
    let stale = stale.expect_err("a session that moved");
    assert_eq!((stale.reason(), &stale.metadata()["run_id"]), ("session_moved", &json!(next)));
    let (session, _) =
        engine(vec![says("it shines")])?.reply(&restored.session, "and?").record(&log).await?;
    assert_eq!(restore_session(&log, "s").await?.session, session);
    Ok(())
}

#[tokio::test]
async fn a_turn_is_not_continued_in_another_run_once_its_session_has_moved_on() -> Result<()> {
    let log = MemoryLog::new();
    let engine = Engine::new(Scripted::new([breaks_off(2000), says("fine"), says("never")])?);
    let (failed, _) = engine.start(Session::from("hello").with_id("s")).record(&log).await?;
    let run = failed.last_run.clone().expect("a run").run_id;
    let (session, _) = engine.reply(&failed.recover(), "again").record(&log).await?;
    let error = engine.resume(&log, &*run).await.expect_err("a session that moved");
    assert_eq!(error.reason(), "session_moved");
    assert_eq!(restore_session(&log, "s").await?.session, session);
    Ok(())
}

#[tokio::test]
async fn a_run_of_another_kind_under_the_next_id_is_not_taken_for_a_continuation() -> Result<()> {
    let log = MemoryLog::new();
    let engine = Engine::new(Scripted::new([says("mine"), breaks_off(2000), says("never")])?);
    engine.chat("other").record(&log).run_id("other").await?;
    fork_run(&log, "other", 3).run_id("k~2").await?;
    engine.chat("go").record(&log).run_id("k").await?;
    let error = engine.resume(&log, "k").await.expect_err("an id that is taken");
    assert_eq!((error.reason(), &error.metadata()["run_id"]), ("run_exists", &json!("k~2")));
    Ok(())
}

#[tokio::test]
async fn the_id_of_a_failed_run_leads_to_the_run_that_continues_it() -> Result<()> {
    for ends in ["approved", "delivered", "cancelled"] {
        let pay = Tool::new("pay", "", json!({})).manual().handler(async |_, _| "paid");
        let scripts = [json!([{"error": "overloaded"}]), calls("pay"), says("Paid.")];
        let engine = Engine::new(Scripted::new(scripts)?).tool(pay);
        let log = MemoryLog::new();
        let failed = engine.chat("pay").record(&log).run_id("k").await?;
        assert!(failed.error().is_some());
        engine.resume(&log, "k").check().await?;
        let waiting = engine.resume(&log, "k").await?;
        assert_eq!(waiting.run_id.as_deref(), Some("k~2"));

        let call = recorded_call(&log, "k").await?;
        assert_eq!((&*call.run_id, call.waiting().is_some()), ("k~2", true));
        engine.resume(&log, "k").approve("c0").check().await?;
        match ends {
            "approved" => {
                let done = engine.resume(&log, "k").approve("c0").at(call.last_record).await?;
                assert_eq!(done.text(), "Paid.");
            }
            "delivered" => {
                let approve = Signal::approve("c0");
                assert!(deliver(&log, "k", "m0", &approve).await?);
                assert_eq!(log.inbox("k~2", 2).await?.len(), 1);
            }
            _ => {
                assert_eq!(cancel_run(&log, "k").await?, RunStatus::Cancelled);
                let ended = cancel_run(&log, "k").await.expect_err("nothing is left");
                assert_eq!(ended.reason(), "sealed", "{ended}");
            }
        }
    }
    Ok(())
}
