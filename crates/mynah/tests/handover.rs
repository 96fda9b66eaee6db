//! Runs that other engines resume it with: each reads what is there as those did that made it, and the whole replays.

use mynah::{
    Engine, HaltReason, Message, OnUncertain, Resume, Role, Thread, Tool, ToolOutcome, Tools,
    cancel_run,
    log::{Append, Fact, Log, MemoryLog, Record, verify_run},
    replay_run,
    testing::Scripted,
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::{
    param::Param as _,
    plans::{Plan, plan, runtime},
};

proptest! {
    #[test]
    fn whoever_goes_on_with_a_run_wherever_it_was_cut_off_it_replays(
        first in plan(), others in vec((plan(), go_on()), 1..4), cancelled in any::<bool>()
    ) {
        runtime().block_on(async {
            let log = MemoryLog::new();
            let mut stream = first.engine().chat("go").options(first.options()).record(&log).stream();
            let run = stream.run_id().cloned().unwrap_or_default();
            while let Some(Ok(_)) = futures_util::StreamExt::next(&mut stream).await {}
            drop(stream);
            // Who wrote what, from which record on.
            let (mut log, mut writers) = (log, vec![(0, &first)]);
            for (plan, how) in &others {
                let records = read(&log, &run).await;
                if records.is_empty() {
                    return Ok(());
                }
                let kept = records.len().min(1 + (records.len() as f64 * how.share) as usize);
                log = cut_off(&records[..kept]).await?;
                writers.retain(|(from, _)| *from < kept);
                let Some(resume) = how.resume(plan, &log, &run).await else { break };
                let resumed = match resume.stream().started().await {
                    // Options that make no sense.
                    Err(error) if error.kind().type_name() == "validation_error" => break,
                    // A message comes after the outcomes of the run's tools.
                    Err(error) if how.speaks && error.reason() == "invalid_status" => break,
                    // The engine that asked did not have the tool.
                    Err(error) if error.reason() == "approval_stale" => break,
                    resumed => resumed.map_err(failed)?,
                };
                let events = mynah::testing::collect(resumed).await;
                // The first model call of a run may be refused; other problems are no errors of the
                // run.
                if let Err(error) = &events {
                    prop_assert!(!matches!(error.kind().type_name(), "replay_mismatch" | "log_error"), "{error}");
                }
                // A process that finds the end adds only the seal.
                if read(&log, &run).await.len() > kept + 1 {
                    writers.push((kept, plan));
                }
            }
            let (_, last) = writers[writers.len() - 1];
            if cancelled && !is_sealed(&log, &run).await {
                cancel_run(&log, &run).await.map_err(failed)?;
            }
            check(&log, &run, last).await
        })?;
    }
}

#[tokio::test]
async fn another_limit_counts_from_where_another_engine_goes_on() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let call =
        |name: &str| json!([{"tool_call": {"id": "c", "name": name}}, {"finish": "tool_calls"}]);
    let engine = |scripts: Vec<Value>, max_turns: u32| -> mynah::Result<Engine> {
        let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("?"));
        let echo = Tool::new("echo", "", json!({})).handler(async |_, _| "echo");
        let engine = Engine::new(Scripted::new(scripts)?).tool(ask).tool(echo);
        Ok(engine.param("max_turns", max_turns))
    };
    let first = engine(vec![call("echo"), call("echo"), call("ask")], 8)?;
    let run = first.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let second = engine(vec![call("echo"), call("echo"), call("echo")], 2)?;
    let refused = second.resume(&log, &*run).answer("x").await.expect_err("another engine");
    assert_eq!(refused.metadata()["diff"][0]["path"], "about.params.max_turns");
    let ended = second.resume(&log, &*run).answer("x").allow_changed_engine().await?;
    assert_eq!((ended.halted_reason, ended.steps.len()), (HaltReason::MaxTurns, 5));
    assert_eq!(second.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    // The first engine did not continue it.
    let differs =
        first.replay(&log, &*run).replay_tools(Tools::All).await.expect_err("another engine");
    assert_eq!((&differs.metadata()["kind"], differs.reason()), (&json!("resumed"), "payload"));
    Ok(())
}

#[tokio::test]
async fn the_prompt_of_another_engine_takes_the_place_of_the_one_before() -> mynah::Result<()> {
    for (before, after) in [(Some("A"), Some("B")), (None, Some("B")), (Some("A"), None)] {
        let log = MemoryLog::new();
        let scripts = [
            json!([{"tool_call": {"id": "c", "name": "ask"}}, {"finish": "tool_calls"}]),
            json!([{"text": "done"}, {"finish": "stop"}]),
        ];
        let model = Scripted::new(scripts)?;
        let engine = |prompt: Option<&str>| {
            let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("?"));
            let engine = Engine::new(model.clone()).tool(ask);
            prompt.into_iter().fold(engine, |engine, prompt| engine.system(prompt))
        };
        let run = engine(before).chat("go").record(&log).await?.run_id.unwrap_or_default();
        engine(after).resume(&log, &*run).answer("x").allow_changed_engine().await?;
        let prompts: Vec<Option<String>> = model
            .requests()
            .iter()
            .map(|request| {
                let first = request.messages.get(0).filter(|it| it.role() == Role::System);
                first.map(|first| first.text().into_owned())
            })
            .collect();
        assert_eq!(prompts, [before.map(str::to_owned), after.map(str::to_owned)]);
        assert_eq!(replay_run(&log, &*run).await?.status, "equal");
        assert_eq!(engine(after).replay(&log, &*run).await?.status, "equal");
    }
    // A conversation that has a prompt of its own keeps it.
    let (log, model) = (MemoryLog::new(), Scripted::says(["first", "second"]));
    let own = Thread::from_iter([Message::system("own"), Message::user("go")]);
    let engine = |prompt: &str| Engine::new(model.clone()).system(prompt);
    let run = engine("A").chat(own).record(&log).await?.run_id.unwrap_or_default();
    let fork = mynah::fork_run(&log, &*run, 1).await?.run_id;
    let done = engine("B").resume(&log, &*fork).allow_changed_engine().await?;
    assert_eq!(
        done.thread.messages.get(0).map(|first| first.text().into_owned()),
        Some("own".into())
    );
    Ok(())
}

#[tokio::test]
async fn what_a_replay_is_told_is_told_to_the_last_engine() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("?"));
    let scripts = [
        json!([{"tool_call": {"id": "c", "name": "ask"}}, {"finish": "tool_calls"}]),
        json!([{"text": "done"}, {"finish": "stop"}]),
    ];
    let engine = Engine::new(Scripted::new(scripts)?).tool(ask);
    let run = engine.chat("go").param("seed", 1).record(&log).await?.run_id.unwrap_or_default();
    let resume = engine.resume(&log, &*run).answer("x").param("seed", 2);
    resume.allow_changed_engine().await?;
    assert_eq!(engine.replay(&log, &*run).param("seed", 2).await?.status, "equal");
    let differs = engine.replay(&log, &*run).param("seed", 3).await.expect_err("another option");
    assert_eq!(differs.metadata()["kind"], "resumed");
    Ok(())
}

#[tokio::test]
async fn a_replay_that_passes_over_what_an_engine_is_tells_what_it_does() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let engine = |gives: ToolOutcome| -> mynah::Result<Engine> {
        let scripts = [
            json!([{"tool_call": {"id": "c", "name": "echo"}}, {"finish": "tool_calls"}]),
            json!([{"text": "done"}, {"finish": "stop"}]),
        ];
        let give = move |_, _| std::future::ready(gives.clone());
        let echo = Tool::new("echo", "", json!({})).handler(give);
        Ok(Engine::new(Scripted::new(scripts)?).tool(echo).model("small"))
    };
    let seq = |error: mynah::Error| error.metadata()["seq"].clone();
    let run = engine("a".into())?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let changed = |gives: &str| -> mynah::Result<Engine> {
        Ok(engine(gives.into())?.model("large").param("seed", 7))
    };
    assert_eq!(seq(changed("b")?.replay(&log, &*run).await.expect_err("another model")), 1);
    let replay =
        |engine: Engine| engine.replay(&log, &*run).replay_tools(Tools::All).allow_changed_engine();
    assert_eq!(replay(changed("a")?).await?.status, "equal");
    let differs = replay(changed("b")?).await.expect_err("another tool");
    assert_eq!(differs.metadata()["kind"], "tool_completed");
    assert_eq!(replay(changed("b")?).replay_tools(Tools::Recorded).await?.status, "equal");
    let spent = replay(changed("a")?.param("budget", json!({"max_turns": 1}))).await;
    assert_eq!(spent.expect_err("another budget").metadata()["kind"], "budget_exceeded");
    // What it was asked is not the engine's.
    assert_eq!(seq(replay(changed("a")?).system("Be kind.").await.expect_err("a prompt")), 1);

    // Nor is it compared where another engine took over.
    let first = engine(ToolOutcome::ask("?"))?;
    let run = first.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let second = first.clone().model("large");
    second.resume(&log, &*run).answer("x").allow_changed_engine().await?;
    let resumed =
        first.replay(&log, &*run).replay_tools(Tools::All).await.expect_err("another model");
    assert_eq!(resumed.metadata()["kind"], "resumed");
    assert_eq!(
        first.replay(&log, &*run).replay_tools(Tools::All).allow_changed_engine().await?.status,
        "equal"
    );
    Ok(())
}

/// A run verifies, and replays from its records alone and against the engine that had it last.
async fn check(log: &MemoryLog, run: &str, last: &Plan) -> Result<(), TestCaseError> {
    let kinds = || async {
        let records = read(log, run).await;
        records.iter().map(|record| record.kind().to_string()).collect::<Vec<_>>()
    };
    let report = verify_run(log, run).await.map_err(failed)?;
    let alone = replay_run(log, run).await.map(|replayed| replayed.records);
    prop_assert_eq!(&alone, &Ok(report.records), "{:?}", kinds().await);
    for tools in [Tools::Recorded, Tools::All] {
        let replayed = last.engine().replay(log, run).replay_tools(tools).await;
        let replayed = replayed.map(|replayed| replayed.records);
        prop_assert_eq!(replayed, Ok(report.records), "{:?}: {:?}", tools, kinds().await);
    }
    Ok(())
}

/// How a run is gone on with: from which share of its records, what is said of calls, and whether something is said where it
/// does not wait.
#[derive(Clone, Debug)]
struct GoOn {
    share: f64,
    on_uncertain: u8,
    said: [u8; 8],
    speaks: bool,
}

fn go_on() -> impl Strategy<Value = GoOn> {
    let parts = (0.0..1.1f64, 0..3u8, any::<[u8; 8]>(), any::<bool>());
    parts.prop_map(|(share, on_uncertain, said, speaks)| GoOn { share, on_uncertain, said, speaks })
}

impl GoOn {
    /// Resumes a run, with what it waits for; none if it has its seal.
    async fn resume(&self, plan: &Plan, log: &MemoryLog, run: &str) -> Option<Resume> {
        let facts: Vec<Fact> =
            read(log, run).await.iter().filter_map(|record| record.fact().ok().flatten()).collect();
        let engine = plan.engine();
        let tools = engine.resolve_tools(&plan.options());
        let resume = engine.resume(log, run).options(plan.options()).allow_changed_engine();
        let mut resume = resume.on_uncertain(match self.on_uncertain {
            0 => OnUncertain::Suspend,
            1 => OnUncertain::Rerun,
            _ => OnUncertain::Fail,
        });
        let end = match facts.last()? {
            Fact::Sealed(_) => return None,
            Fact::Suspended(end) => end,
            Fact::BudgetExceeded { .. } | Fact::Completed(_) | Fact::Failed(_) => {
                return Some(resume);
            }
            _ if self.speaks => return Some(resume.message(Message::user("and then?"))),
            _ => return Some(resume),
        };
        if end.reason == HaltReason::AskUser {
            return Some(resume.answer("an answer"));
        }
        for (id, said) in waiting(&facts, end).into_iter().zip(self.said) {
            let (id, name) = id;
            let has_handler = tools.iter().any(|tool| tool.name() == name);
            resume = match said % 3 {
                0 if has_handler => resume.approve(id),
                1 => resume.reject(id, "no"),
                _ => resume.tool_result(id, said),
            };
        }
        Some(resume)
    }
}

/// The calls that a run waits for, and their tools.
fn waiting(facts: &[Fact], end: &mynah::log::End) -> Vec<(String, String)> {
    let answer = facts.iter().rev().find_map(|fact| match fact {
        Fact::AssistantCompleted { response, .. } => Some(response),
        _ => None,
    });
    let listed = |name: &str| end.metadata.get(name).and_then(Value::as_array);
    let calls = answer.into_iter().flat_map(|response| response.tool_calls());
    let calls = calls.filter(|call| match end.reason {
        HaltReason::UncertainTools => listed("uncertain_tool_calls")
            .is_some_and(|ids| ids.iter().any(|id| *id == call.id.as_str())),
        _ => listed("manual_tool_calls")
            .is_none_or(|calls| calls.iter().any(|manual| manual["id"] == call.id.as_str())),
    });
    calls.map(|call| (call.id.clone(), call.name.clone())).collect()
}

async fn is_sealed(log: &MemoryLog, run: &str) -> bool {
    let records = read(log, run).await;
    records.last().is_some_and(|record| record.kind().as_str() == "sealed")
}

async fn read(log: &MemoryLog, run: &str) -> Vec<Record> {
    log.read(run, 1, 10_000).await.unwrap_or_default()
}

/// A log in which a run ends with the last of these records.
async fn cut_off(records: &[Record]) -> Result<MemoryLog, TestCaseError> {
    let log = MemoryLog::new();
    let run = records[0].envelope().run_id.clone();
    log.append(Append::new(run, None, records.to_vec())).await.map_err(failed)?;
    Ok(log)
}

fn failed(error: mynah::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}
