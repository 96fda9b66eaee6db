//! A recorded run verifies, and its replay is equal.

use std::sync::Arc;

use mynah::{
    ChatResult, Decision, Engine, Event, HaltReason, Message, OnUncertain, RunId, StepResult, Tool,
    ToolCall, ToolMode, ToolOutcome, Tools, fork_run,
    log::{Append, Chain, Fact, Log, MemoryLog, Record, verify},
    replay_run,
    testing::{self, Scripted, crash_everywhere},
};
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};

use crate::plans::{plan, runtime};

#[tokio::test(start_paused = true)]
async fn the_time_to_the_first_token_is_recorded_and_the_same_in_a_replay() -> mynah::Result<()> {
    let script = json!([{"delay_ms": 300}, {"text": "so"}, {"delay_ms": 200}, {"text": " far"}, {"finish": "stop"}]);
    let silent = json!([{"delay_ms": 100}, {"finish": "stop"}]);
    for (script, least) in [(script, Some(300)), (silent, None)] {
        let log = Arc::new(MemoryLog::new());
        let engine = Engine::new(Scripted::new([script])?);
        engine.chat("go").record(&log).run_id("r").await?;
        let records = read(&log, "r").await;
        let mut facts = records.iter().filter_map(|record| record.fact().ok().flatten());
        let answer = facts.find(|fact| fact.duration_ms().is_some());
        let Some(Fact::AssistantCompleted { duration_ms, first_token_ms, .. }) = answer else {
            panic!("no answer in {records:?}");
        };
        assert_eq!(first_token_ms.is_some(), least.is_some());
        assert!(first_token_ms >= least && duration_ms > first_token_ms, "{first_token_ms:?}");
        assert_eq!(engine.replay(&log, "r").await?.status, "equal");
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_run_verifies_and_replays_equal(plan in plan()) {
        runtime().block_on(async {
            let log = Arc::new(MemoryLog::new());
            let live = plan.engine().chat("go").options(plan.options()).record(&log);
            let (run, live) = collect(live.stream()).await;
            let Some(run) = run else { return Ok(()) };
            let records = read(&log, &run).await;
            prop_assert!(verify(&run, &records).is_ok());
            let suspended = live.last().is_some_and(is_suspended);
            prop_assert_eq!(verify(&run, &records).map(|report| report.status.as_str()).ok(), Some(if suspended { "in_progress" } else { "verified" }));
            for tools in [Tools::Recorded, Tools::All] {
                let again = plan.engine().replay(&log, &*run).replay_tools(tools);
                let stream = again.stream().started().await.map_err(|e| TestCaseError::fail(e.to_string()))?;
                let (_, replayed) = collect(stream).await;
                prop_assert_eq!(&live, &replayed, "{:?}", tools);
                prop_assert_eq!(text(&live), text(&replayed), "{:?}, to the letter", tools);
                let report = plan.engine().replay(&log, &*run).replay_tools(tools).await;
                prop_assert_eq!(report.map(|replayed| replayed.records), Ok(records.len() as u64));
            }
            let alone = replay_run(&log, &*run).stream().started().await;
            let (_, alone) = collect(alone.map_err(|e| TestCaseError::fail(e.to_string()))?).await;
            prop_assert_eq!(text(&live), text(&alone), "from the records alone");
            Ok(())
        })?;
    }

    #[test]
    fn keeping_a_run_changes_nothing_but_its_id(plan in plan()) {
        runtime().block_on(async {
            let plain = plan.engine().chat("go").options(plan.options()).await;
            let kept = plan.engine().chat("go").options(plan.options()).record(&Arc::new(MemoryLog::new())).await;
            prop_assert_eq!(plain, kept.map(without_id));
            Ok(())
        })?;
    }

    #[test]
    fn a_cancelled_run_replays_as_far_as_it_went(plan in plan(), after in 1usize..30) {
        runtime().block_on(async {
            let log = Arc::new(MemoryLog::new());
            let mut stream = plan.engine().chat("go").options(plan.options()).record(&log).stream();
            let cancel = stream.cancel_handle();
            let run = stream.run_id().cloned();
            let mut seen = 0;
            while let Some(Ok(_)) = futures_util::StreamExt::next(&mut stream).await {
                seen += 1;
                if seen == after {
                    cancel.cancel();
                }
            }
            let Some(run) = run else { return Ok(()) };
            if read(&log, &run).await.is_empty() {
                return Ok(());
            }
            let replayed = plan.engine().replay(&log, &*run).await;
            prop_assert!(replayed.is_ok(), "{replayed:?}");
            Ok(())
        })?;
    }
}

/// Each case is as many runs as there are moments at which its process can die.
#[test]
fn a_run_whose_process_dies_at_any_record_comes_to_the_same() {
    let decide = |call: &ToolCall| match &*call.name {
        "nope" => Decision::Result(json!("no such tool")),
        _ => Decision::Approve,
    };
    let config = ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(20),
        ..ProptestConfig::default()
    };
    let died = TestRunner::new(config).run(&(plan(), any::<bool>()), |(plan, reruns)| {
        let policy = if reruns { OnUncertain::Rerun } else { OnUncertain::Suspend };
        let check = crash_everywhere(|| plan.engine(), "go").options(plan.options()).answer("yes");
        let checked = runtime().block_on(check.decide(decide).on_uncertain(policy).check());
        match checked {
            // The call is refused before it begins.
            Err(found) if found.crashes().is_empty() && found.record().is_none() => {}
            checked => prop_assert!(checked.is_ok(), "{}", checked.unwrap_err()),
        }
        Ok(())
    });
    assert!(died.is_ok(), "{}", died.unwrap_err());
}

#[tokio::test]
async fn a_key_among_a_requests_options_is_not_recorded() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let mut request = mynah::Request::from(mynah::Thread::from("hi"));
    request.options.insert("api_key".to_owned(), "sk-secret".into());
    request.options.insert("adapter_opts".to_owned(), serde_json::json!({"api_key": "sk-secret"}));
    let engine = Engine::new(mynah::testing::Scripted::new([
        serde_json::json!([{"text": "hi"}, {"finish": "stop"}]),
    ])?);
    engine.generate(request).record(&log).await?;
    let run = log.runs(mynah::log::RunFilter::new()).await?.runs.remove(0).run_id;
    let records = log.read(&run, 1, 100).await?;
    assert!(!records.is_empty());
    for body in records.iter().filter_map(|record| record.body()) {
        assert!(!String::from_utf8_lossy(&body.payload).contains("sk-secret"));
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_of_which_nobody_knows_whether_it_ran_is_not_run_again_unasked() -> mynah::Result<()>
{
    for (policy, expected) in [
        (OnUncertain::Suspend, "uncertain_tools"),
        (OnUncertain::Rerun, "completed"),
        (OnUncertain::Fail, "completed"),
    ] {
        let (log, run) = cut_after("tool_scheduled").await?;
        let engine = later(1)?;
        let result = engine.resume(&log, &*run).on_uncertain(policy).await?;
        assert_eq!(result.halted_reason.as_str(), expected);
        let told = result
            .thread
            .messages
            .iter()
            .find(|m| m.tool_call_id().is_some())
            .map(|m| m.text().into_owned());
        match policy {
            OnUncertain::Suspend => {
                assert_eq!(result.metadata["uncertain_tool_calls"], json!(["c0"]));
                let done = engine.resume(&log, &*run).tool_result("c0", 7).await?;
                assert_eq!(done.steps[0].tool_results[0].text(), "7");
                assert_eq!(done.text(), "done");
            }
            OnUncertain::Rerun => assert_eq!(told.as_deref(), Some("1")),
            _ => assert_eq!(
                told.as_deref(),
                Some(
                    r#"{"error":"tool error (echo): the process ended during call c0, and its outcome is unknown"}"#
                )
            ),
        }
        let replayed = self::engine(1)?.replay(&log, &*run).await?;
        assert_eq!(replayed.status, "equal", "{policy:?}");
    }
    Ok(())
}

#[tokio::test]
async fn whoever_knows_what_came_of_a_tool_says_so_when_the_run_is_resumed() -> mynah::Result<()> {
    let (log, run) = cut_after("tool_scheduled").await?;
    let done = later(1)?.resume(&log, &*run).tool_result("c0", 7).await?;
    assert_eq!((done.steps[0].tool_results[0].text(), done.text()), ("7".into(), "done".into()));
    // As if it had been resumed twice.
    let (other, again) = cut_after("tool_scheduled").await?;
    later(1)?.resume(&other, &*again).await?;
    let twice = later(1)?.resume(&other, &*again).tool_result("c0", 7).await?;
    assert_eq!(done.thread, twice.thread);
    let replayed = engine(1)?.replay(&log, &*run).await?;
    assert_eq!(replayed.status, "equal");
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");

    let (log, run) = cut_after("tool_scheduled").await?;
    let resumed = later(2)?.resume(&log, &*run).approve("c0").await?;
    assert_eq!(resumed.steps[0].tool_results[0].text(), "2");
    let (log, run) = cut_after("tool_scheduled").await?;
    let other = later(1)?.adapter(last_script()?).model("other");
    let resumed = other.resume(&log, &*run).tool_result("c0", 7).allow_changed_engine().await?;
    assert_eq!(resumed.text(), "done");
    let replay = other.replay(&log, &*run);
    assert_eq!(replay.await?.status, "equal", "another engine took over once");

    let (log, run) = cut_after("turn_started").await?;
    let refused = later(1)?.resume(&log, &*run).tool_result("c0", 7).await;
    assert_eq!(refused.expect_err("it waits for no tool").reason(), "invalid_status");
    Ok(())
}

#[tokio::test]
async fn of_several_uncertain_tools_each_needs_a_word() -> mynah::Result<()> {
    let calls = json!([
        {"tool_call": {"id": "c0", "name": "echo"}}, {"tool_call": {"id": "c1", "name": "echo"}},
        {"tool_call": {"id": "c2", "name": "look"}}, {"finish": "tool_calls"},
    ]);
    let look = Tool::new("look", "", json!({})).idempotent(1).handler(async |_, _| "looked");
    let with = |script| Ok::<_, mynah::Error>(engine(1)?.tool(look.clone()).adapter(script));
    let whole = || with(Scripted::new([calls.clone(), says_done()])?);
    for (policy, expected) in [
        (OnUncertain::Suspend, None),
        (OnUncertain::Rerun, Some("1")),
        (
            OnUncertain::Fail,
            Some("(echo): the process ended during call c1, and its outcome is unknown"),
        ),
    ] {
        let log = Arc::new(MemoryLog::new());
        let run = whole()?.chat("go").record(&log).await?.run_id.unwrap_or_default();
        let records = read(&log, &run).await;
        let is_last = |r: &Record| matches!(r.fact(), Ok(Some(Fact::ToolScheduled { call_id, .. })) if call_id == "c2");
        let end = records.iter().position(is_last).map_or(0, |index| index + 1);
        let log = Arc::new(MemoryLog::new());
        log.append(Append::new(&*run, None, records[..end].to_vec())).await?;
        let resume = with(last_script()?)?.resume(&log, &*run).tool_result("c0", 7);
        match (resume.on_uncertain(policy).await, expected) {
            (Ok(done), Some(expected)) => {
                let told: Vec<_> = done.steps[0].tool_results.iter().map(|m| m.text()).collect();
                assert_eq!((&*told[0], &*told[2]), ("7", "looked"));
                assert!(told[1].contains(expected), "{told:?}");
                let replay = whole()?.replay(&log, &*run);
                assert_eq!(replay.await?.status, "equal", "{policy:?}");
            }
            (Err(refused), None) => {
                assert_eq!(refused.metadata()["missing_tool_calls"], json!(["c1"]));
            }
            (result, _) => panic!("{policy:?}: {result:?}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_is_given_up_is_an_error_for_the_model_whenever_that_is_said()
-> mynah::Result<()> {
    let mut told = Vec::new();
    for suspended in [false, true] {
        let (log, run) = cut_after("tool_scheduled").await?;
        if suspended {
            later(1)?.resume(&log, &*run).await?;
        }
        let result = later(1)?.resume(&log, &*run).on_uncertain(OnUncertain::Fail).await?;
        assert_eq!(result.text(), "done");
        let [message] = &*result.steps[0].tool_results else { panic!("{:?}", result.steps) };
        assert_eq!(message.metadata()["is_error"], true);
        told.push(Arc::clone(message));
        let replayed = later(1)?.replay(&log, &*run).await?;
        assert_eq!(replayed.status, "equal");
    }
    assert_eq!(told[0], told[1]);
    Ok(())
}

#[tokio::test]
async fn tools_that_were_not_all_announced_did_not_run() -> mynah::Result<()> {
    let calls = json!([
        {"tool_call": {"id": "c0", "name": "echo"}}, {"tool_call": {"id": "c1", "name": "echo"}},
        {"finish": "tool_calls"},
    ]);
    let whole =
        || Ok::<_, mynah::Error>(later(1)?.adapter(Scripted::new([calls.clone(), says_done()])?));
    let (log, run) = cut(&whole()?, "tool_scheduled").await?;
    let result = later(1)?.resume(&log, &*run).await?;
    assert_eq!((result.text().as_ref(), result.steps[0].tool_results.len()), ("done", 2));
    assert_eq!(whole()?.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    let announced =
        read(&log, &run).await.iter().filter(|r| r.kind().as_str() == "tool_scheduled").count();
    assert_eq!(announced, 2);
    Ok(())
}

#[tokio::test]
async fn of_two_that_resume_a_run_one_goes_on() -> mynah::Result<()> {
    let (log, run) = cut_after("tool_completed").await?;
    let (first, second) = (later(1)?, later(1)?);
    let both = tokio::join!(first.resume(&log, &*run), second.resume(&log, &*run));
    let (done, refused) = match both {
        (Ok(done), Err(refused)) | (Err(refused), Ok(done)) => (done, refused),
        both => panic!("{both:?}"),
    };
    assert_eq!(done.text(), "done");
    assert!(matches!(refused.reason(), "sealed" | "head_mismatch"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_model_that_is_asked_again_is_heard() -> mynah::Result<()> {
    let (log, run) = cut_after("turn_started").await?;
    let events = testing::collect(engine(1)?.resume(&log, &*run).stream()).await?;
    assert_eq!(testing::names(&events)[0], "message_started");
    assert_eq!((testing::tool_calls(&events).len(), testing::text(&events).as_str()), (1, "done"));
    Ok(())
}

#[tokio::test]
async fn a_tool_that_is_run_again_is_told_of() -> mynah::Result<()> {
    let (log, run) = cut_after("tool_scheduled").await?;
    let resumed = later(1)?.resume(&log, &*run).on_uncertain(OnUncertain::Rerun);
    let events = testing::collect(resumed.stream()).await?;
    let first = ["tool_execution_started", "tool_execution_completed", "tool_result_encoded"];
    assert_eq!(testing::names(&events)[..3], first);
    Ok(())
}

#[tokio::test]
async fn a_run_that_a_condition_ended_ends_there_unless_another_is_given() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let halted =
        engine(1)?.chat("go").halt_when("test", |_: &StepResult| true).record(&log).await?;
    assert_eq!(halted.halted_reason, HaltReason::HaltWhen);
    let run = halted.run_id.unwrap_or_default();
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    assert_eq!(engine(1)?.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    let other = engine(1)?
        .replay(&log, &*run)
        .replay_tools(Tools::All)
        .halt_when("test", |_: &StepResult| false)
        .await;
    assert_eq!(other.expect_err("it goes on").reason(), "kind");
    Ok(())
}

#[tokio::test]
async fn a_run_with_a_condition_goes_on_with_one_or_says_that_it_has_none() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let chat = engine(1)?.chat("go").halt_when("test", |_: &StepResult| true).record(&log);
    let run = chat.await?.run_id.unwrap_or_default();
    let records = read(&log, &run).await;
    for end in 1..=records.len() - 2 {
        let cut = || async {
            let log = Arc::new(MemoryLog::new());
            log.append(Append::new(&*run, None, records[..end].to_vec())).await.map(|_| log)
        };
        let engine = || if end < 3 { engine(1) } else { later(1) };
        let log = cut().await?;
        let resume = || engine().map(|engine| engine.resume(&log, &*run));
        let resume = || resume().map(|resume| resume.on_uncertain(OnUncertain::Rerun));
        let refused = resume()?.await.expect_err("nobody has the condition");
        assert_eq!((refused.kind().type_name(), refused.reason()), ("replay_mismatch", "payload"));
        let lacks =
            json!({"path": "about.options.halt_when", "recorded": "test", "produced": null});
        assert_eq!(refused.metadata()["diff"], json!([lacks]), "{refused}");
        assert!(refused.to_string().contains("give it again"), "{refused}");
        assert_eq!(read(&log, &run).await.len(), end, "nothing was written");
        let halted = resume()?.halt_when("test", |_: &StepResult| true).await?;
        assert_eq!(halted.halted_reason, HaltReason::HaltWhen, "from record {end} on");
        assert_eq!(replay_run(&log, &*run).await?.status, "equal");
        let log = cut().await?;
        let resume = engine()?.resume(&log, &*run).on_uncertain(OnUncertain::Rerun);
        let done = resume.allow_changed_engine().await?;
        assert_eq!(done.halted_reason, HaltReason::Completed, "from record {end} on");
        assert_eq!(replay_run(&log, &*run).await?.status, "equal");
        assert_eq!(engine()?.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    }
    Ok(())
}

#[tokio::test]
async fn a_condition_of_the_last_engine_is_not_asked_of_what_others_did() -> mynah::Result<()> {
    let calls =
        |tool: &str| json!([{"tool_call": {"id": tool, "name": tool}}, {"finish": "tool_calls"}]);
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("?"));
    let engine = |scripts: &[Value]| -> mynah::Result<Engine> {
        Ok(engine(1)?.adapter(Scripted::new(scripts.to_vec())?).tool(ask.clone()))
    };
    let log = Arc::new(MemoryLog::new());
    let waiting = engine(&[calls("echo"), calls("ask")])?.chat("go").record(&log).await?;
    let run = waiting.run_id.unwrap_or_default();
    let resume = engine(&[calls("echo")])?.resume(&log, &*run).answer("yes");
    let halted = resume.allow_changed_engine().halt_when("test", |_: &StepResult| true).await?;
    assert_eq!((halted.halted_reason, halted.steps.len()), (HaltReason::HaltWhen, 3));
    let replay = engine(&[])?
        .replay(&log, &*run)
        .replay_tools(Tools::All)
        .halt_when("test", |_: &StepResult| true);
    assert_eq!(replay.await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_run_that_waits_goes_on_with_what_it_waited_for_and_nothing_else() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let waiting = engine(1)?.chat("go").mode(ToolMode::Manual).record(&log).await?;
    let run = waiting.run_id.unwrap_or_default();
    let resume = || Ok::<_, mynah::Error>(later(1)?.resume(&log, &*run));
    let (result, said) = (Message::tool_result("c0", 1), Message::assistant("I say so"));
    for refused in [
        resume()?,
        resume()?.tool_result("c0", 1).message(result),
        resume()?.tool_result("c0", 1).message(said),
    ] {
        let error = refused.await.expect_err("no results, or nobody's answer");
        assert_eq!(error.reason(), "invalid_status");
        assert_eq!(error.metadata()["operation"], "resume");
        assert_eq!(error.metadata()["status"], "suspended");
    }
    let done = later(1)?.resume(&log, &*run).tool_result("c0", json!({"n": 1})).await?;
    assert_eq!((done.text().as_ref(), done.thread.messages.len()), ("done", 4));
    assert_eq!(engine(1)?.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    assert_eq!(later(1)?.resume(&log, &*run).await.expect_err("it has ended").reason(), "sealed");
    Ok(())
}

#[tokio::test]
async fn a_fork_names_its_parent_and_goes_on_by_itself() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let run = engine(1)?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let records = read(&log, &run).await;
    let at =
        records.iter().position(|record| record.kind().as_str() == "tool_completed").unwrap_or(0)
            as u64
            + 1;
    let fork = fork_run(&log, &*run, at).await?;
    assert_eq!((fork.parent.seq, fork.parent.hash), (at, records[at as usize - 1].hash()));
    let other = Engine::new(Scripted::new([json!([{"text": "otherwise"}, {"finish": "stop"}])])?)
        .tool(Tool::new("echo", "", json!({})));
    let result = other.resume(&log, &*fork.run_id).await?;
    assert_eq!(result.text(), "otherwise");
    assert_eq!(read(&log, &run).await, records);
    for at in [0, 99] {
        let error = fork_run(&log, &*run, at).await.expect_err("no such record");
        assert_eq!(error.metadata()["field"], "at");
        let last = records.len() - 1;
        let said =
            format!("run {run} can be branched at its records 1 to {last}: it has no record {at}");
        assert!(error.to_string().ends_with(&said), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_changed_tool_is_the_first_difference() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let run = engine(1)?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let error = engine(2)?
        .replay(&log, &*run)
        .replay_tools(Tools::All)
        .await
        .expect_err("the tool answers differently");
    assert_eq!((error.kind().type_name(), error.reason()), ("replay_mismatch", "payload"));
    assert_eq!(error.metadata()["kind"], "tool_completed");
    let first = json!({"path": "outcome.ok", "recorded": 1, "produced": 2});
    assert_eq!(error.metadata()["diff"][0], first);
    let place = format!("run {run}, record 5: call c0 of echo:");
    let says = format!("replay mismatch: payload: {place} tool_completed differs at outcome.ok");
    assert_eq!(error.message(), says);
    let broken = Tool::new("echo", "", json!({})).handler(async |_, _| ToolOutcome::error("off"));
    let broken =
        Engine::new(script()?).tool(broken).replay(&log, &*run).replay_tools(Tools::All).await;
    let what = "expected tool_completed, got tool_failed: tool error (echo): off";
    let says = format!("replay mismatch: kind: {place} {what}");
    assert_eq!(broken.expect_err("the tool fails").to_string(), says);
    // Its record answers for it where the caller says so.
    assert_eq!(engine(2)?.replay(&log, &*run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_changed_prompt_model_or_option_is_told_at_the_first_record() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let run = engine(1)?.model("small").chat("go").record(&log).await?.run_id.unwrap_or_default();
    let error = engine(1)?.model("large").replay(&log, &*run).await.expect_err("another model");
    assert_eq!(error.metadata()["seq"], 1);
    assert_eq!(error.metadata()["diff"][0]["path"], "about.model");
    Ok(())
}

#[tokio::test]
async fn another_question_is_told_where_the_model_is_asked_it() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let (session, asked) = engine(1)?.start("go").record(&log).await?;
    let (_, replied) = engine(1)?.reply(&session, "and then?").record(&log).await?;
    for run in [asked, replied].map(|result| result.run_id.unwrap_or_default()) {
        let (records, forged) = (read(&log, &run).await, format!("forged {run}"));
        let mut chain = Chain::new(&*forged);
        let facts = records.iter().filter_map(|record| match record.fact().ok()?? {
            Fact::Sealed(_) => None,
            Fact::RunStarted { mut thread, extent, about } => {
                thread.messages = [Message::user("stay")].into_iter().collect();
                Some(Fact::RunStarted { thread, extent, about })
            }
            fact => Some(fact),
        });
        let facts = facts.map(|fact| chain.append(0, [7; 16], &fact));
        let records = facts.collect::<mynah::Result<_>>()?;
        log.append(Append::new(&*forged, None, records)).await?;
        let error = engine(1)?.replay(&log, &*forged).await.expect_err("another question");
        assert_eq!(error.metadata()["seq"], 2);
        assert_eq!(error.metadata()["diff"][0]["path"], "prompt");
    }
    Ok(())
}

#[tokio::test]
async fn the_seal_stands_last_and_a_waiting_run_has_none() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let run = engine(1)?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let records = read(&log, &run).await;
    assert!(matches!(records.last().map(Record::fact), Some(Ok(Some(Fact::Sealed(_))))));
    let waiting = engine(1)?.chat("go").mode(ToolMode::Manual).record(&log).await?;
    assert_eq!(waiting.halted_reason, HaltReason::ManualToolCalls);
    let records = read(&log, &waiting.run_id.unwrap_or_default()).await;
    assert!(matches!(records.last().map(Record::fact), Some(Ok(Some(Fact::Suspended(_))))));
    Ok(())
}

#[tokio::test]
async fn a_tool_starts_only_when_its_announcement_is_kept() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let seen = log.clone();
    let look = Tool::new("echo", "", json!({})).handler(move |_, _| {
        let seen = seen.clone();
        async move {
            let page = seen.runs(Default::default()).await?;
            let run = page.runs[0].run_id.clone();
            let kinds = read(&seen, &run).await;
            Ok::<_, mynah::Error>(json!(kinds.last().map(|record| record.kind().to_string())))
        }
    });
    let result = Engine::new(script()?).tool(look).chat("go").record(&log).await?;
    assert_eq!(result.steps[0].tool_results[0].text(), "tool_scheduled");
    Ok(())
}

/// A log with a run that ended without its end, right after its first record of this kind.
async fn cut_after(kind: &str) -> mynah::Result<(Arc<MemoryLog>, RunId)> {
    cut(&engine(1)?, kind).await
}

/// The same, with a run of this engine.
async fn cut(engine: &Engine, kind: &str) -> mynah::Result<(Arc<MemoryLog>, RunId)> {
    let log = Arc::new(MemoryLog::new());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let records = read(&log, &run).await;
    let end = records
        .iter()
        .position(|record| record.kind().as_str() == kind)
        .map_or(0, |index| index + 1);
    let cut = Arc::new(MemoryLog::new());
    cut.append(Append::new(&*run, None, records[..end].to_vec())).await?;
    Ok((cut, run))
}

/// The engine of a process that resumes after the first answer.
fn later(number: u8) -> mynah::Result<Engine> {
    Ok(engine(number)?.adapter(last_script()?))
}

fn last_script() -> mynah::Result<Scripted> {
    Scripted::new([says_done()])
}

fn says_done() -> Value {
    json!([{"text": "do"}, {"text": "ne"}, {"finish": "stop"}])
}

/// An engine whose tool gives a number.
fn engine(number: u8) -> mynah::Result<Engine> {
    let echo = Tool::new("echo", "", json!({}))
        .handler(move |_, _| async move { ToolOutcome::Ok(json!(number)) });
    Ok(Engine::new(script()?).tool(echo))
}

fn script() -> mynah::Result<Scripted> {
    Scripted::new([
        json!([{"tool_call": {"id": "c0", "name": "echo"}}, {"finish": "tool_calls"}]),
        says_done(),
    ])
}

fn without_id(mut result: ChatResult) -> ChatResult {
    result.run_id = None;
    result
}

async fn collect(stream: mynah::EventStream) -> (Option<RunId>, Vec<Event>) {
    let run = stream.run_id().cloned();
    (run, testing::collect(stream).await.unwrap_or_default())
}

/// Two values can be equal and have their members in another order; their texts differ then.
fn text(events: &[Event]) -> String {
    json!(events).to_string()
}

async fn read(log: &Arc<MemoryLog>, run: &str) -> Vec<Record> {
    log.read(run, 1, 10_000).await.unwrap_or_default()
}

fn is_suspended(event: &Event) -> bool {
    matches!(event, Event::ChatCompleted { result }
        if matches!(result.halted_reason, HaltReason::AskUser | HaltReason::ManualToolCalls))
}
