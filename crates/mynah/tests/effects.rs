//! What happens inside tools is recorded in the moment, and met again in its turn.

#[allow(dead_code, reason = "of the random plans only their settings are needed")]
use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use mynah::{
    Engine, Error, OnUncertain, SideEffectErrors, Tool, ToolContext, ToolOutcome, Tools,
    log::{Append, Effect, Fact, Inside, Log as _, MemoryLog, Resolution, verify},
    testing::Scripted,
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::plans::runtime;

#[tokio::test(start_paused = true)]
async fn a_tool_that_hangs_when_it_is_run_again_is_given_up_after_its_own_time() -> mynah::Result<()>
{
    let calls = |ids: &[&str]| {
        let calls = ids.iter().map(|id| json!({"tool_call": {"id": id, "name": id}}));
        Value::from_iter(calls.chain([json!({"finish": "tool_calls"})]))
    };
    let engine = |hangs: Option<(&'static str, bool)>| -> mynah::Result<Engine> {
        let tool = |name: &'static str| {
            let tool = Tool::new(name, "", json!({})).timeout(Duration::from_secs(7));
            tool.handler(move |_, context: ToolContext| async move {
                let is_here = hangs.filter(|(other, _)| *other == name);
                if is_here.is_some_and(|(_, at_once)| at_once) {
                    std::future::pending::<()>().await;
                }
                let drawn = context.random().await?;
                if is_here.is_some() {
                    std::future::pending::<()>().await;
                }
                Ok::<_, mynah::Error>(json!(drawn))
            })
        };
        let scripts = [calls(&["a", "b"]), json!([{"text": "done"}, {"finish": "stop"}])];
        Ok(Engine::new(Scripted::new(scripts)?).tool(tool("a")).tool(tool("b")))
    };
    let log = Arc::new(MemoryLog::new());
    let run = engine(None)?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    for (name, at_once) in [("a", true), ("a", false), ("b", true), ("b", false)] {
        let began = tokio::time::Instant::now();
        let replayed =
            engine(Some((name, at_once)))?.replay(&log, &*run).replay_tools(Tools::All).await;
        let error = replayed.expect_err("it does not come to the same");
        assert_eq!(error.kind().type_name(), "replay_mismatch", "{name} {at_once}: {error}");
        assert_eq!(error.metadata()["kind"], "tool_failed", "{name} {at_once}: {error}");
        assert_eq!(began.elapsed(), Duration::from_secs(7), "{name} {at_once}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn time_chance_and_side_effects_of_a_tool_are_records_of_its_try() -> mynah::Result<()> {
    let ran = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&ran);
    let tool = Tool::new("t", "", json!({})).handler(move |_, context| {
        let ran = Arc::clone(&counter);
        async move {
            let time = context.now().await?;
            let number = context.random().await?;
            let count = async { Ok::<_, Error>(ran.fetch_add(1, Ordering::Relaxed)) };
            let count = context.side_effect("count", count).await?;
            Ok::<_, Error>(json!({"time": format!("{time:?}"), "number": number, "count": count}))
        }
    });
    let engine = Engine::new(calls(&["t"])?).tool(tool);
    let log = Arc::new(MemoryLog::new());
    let live = engine.chat("go").record(&log).await?;
    let run = live.run_id.clone().unwrap_or_default();
    let inside = Some(Inside { call_id: "c0".to_owned(), attempt: 1 });
    let effects = effects(&log, &run).await;
    let names: Vec<&str> = effects.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(names, ["now", "random", "count"]);
    assert!(effects.iter().all(|(at, ..)| *at == inside));
    assert_eq!(effects[2].2, Effect::Done(json!(0)));

    let replayed = engine.replay(&log, &*run).replay_tools(Tools::All).await?;
    assert_eq!(replayed.status, "equal");
    assert_eq!(ran.load(Ordering::Relaxed), 1, "a replay does not do what has an effect");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_failed_side_effect_is_recorded_and_fails_again_without_being_done() -> mynah::Result<()>
{
    let ran = Arc::new(AtomicU32::new(0));
    let engine = Engine::new(calls(&["t"])?).tool(failing(&ran));
    let log = Arc::new(MemoryLog::new());
    let live = engine.chat("go").record(&log).await?;
    let run = live.run_id.clone().unwrap_or_default();
    assert_eq!(effects(&log, &run).await[0].2, Effect::Failed("no such host".to_owned()));
    assert_eq!(engine.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    assert_eq!(ran.load(Ordering::Relaxed), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_failed_side_effect_that_is_not_recorded_is_done_again_on_replay() -> mynah::Result<()> {
    let ran = Arc::new(AtomicU32::new(0));
    let engine = Engine::new(calls(&["t"])?).tool(failing(&ran));
    let log = Arc::new(MemoryLog::new());
    let chat = engine.chat("go").side_effect_errors(SideEffectErrors::Unrecorded);
    let run = chat.record(&log).await?.run_id.unwrap_or_default();
    assert!(effects(&log, &run).await.is_empty());
    assert_eq!(engine.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    assert_eq!(ran.load(Ordering::Relaxed), 2);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn effects_of_one_name_at_once_inside_one_tool_keep_their_own_values() -> mynah::Result<()> {
    let tool = Tool::new("t", "", json!({})).handler(async |_, context: ToolContext| {
        let page = |name: &'static str, millis: u64| async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Ok::<_, Error>(name.to_owned())
        };
        let (slow, fast) = tokio::join!(
            context.side_effect("fetch", page("slow", 40)),
            context.side_effect("fetch", page("fast", 1)),
        );
        Ok::<_, Error>(json!([slow?, fast?]))
    });
    let engine = Engine::new(calls(&["t"])?).tool(tool);
    let log = Arc::new(MemoryLog::new());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let came = effects(&log, &run).await.into_iter().map(|(_, _, effect)| effect);
    assert_eq!(
        came.collect::<Vec<_>>(),
        [Effect::Done(json!("fast")), Effect::Done(json!("slow"))]
    );
    // The tool runs again, and what it gives is compared.
    assert_eq!(engine.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_side_effect_too_deep_to_be_recorded_fails_the_tool_and_not_the_chat() -> mynah::Result<()>
{
    let tool = Tool::new("t", "", json!({})).handler(async |_, context: ToolContext| {
        let deep = (0..127).fold(json!(1), |value, _| json!([value]));
        context.side_effect("deep", async { Ok::<_, Error>(deep) }).await
    });
    let engine = Engine::new(calls(&["t"])?).tool(tool);
    let log = Arc::new(MemoryLog::new());
    let result = engine.chat("go").record(&log).await?;
    assert_eq!(result.halted_reason, mynah::HaltReason::Completed);
    let run = result.run_id.unwrap_or_default();
    let why = "its value is nested deeper than 96 levels".to_owned();
    assert_eq!(effects(&log, &run).await[0].2, Effect::Failed(why));
    assert_eq!(engine.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn every_try_of_a_tool_is_announced_and_told() -> mynah::Result<()> {
    let tool = Tool::new("t", "", json!({})).idempotent(3).handler(async |_, context| {
        let attempt = context.attempt();
        match context.side_effect("ask", async { Ok::<_, Error>(attempt) }).await {
            Ok(3) => ToolOutcome::Ok(json!("at last")),
            _ => ToolOutcome::transient("busy"),
        }
    });
    let engine = Engine::new(calls(&["t"])?).tool(tool);
    let log = Arc::new(MemoryLog::new());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let mut story = String::new();
    for fact in facts(&log, &run).await {
        let _ = match fact {
            Fact::ToolScheduled { attempt, .. } => write!(story, "s{attempt} "),
            Fact::SideEffect { inside: Some(inside), .. } => write!(story, "e{} ", inside.attempt),
            Fact::ToolFailed { attempt, resolution: Resolution::Retried, .. } => {
                write!(story, "f{attempt} ")
            }
            Fact::ToolCompleted { attempt, .. } => write!(story, "c{attempt}"),
            _ => Ok(()),
        };
    }
    assert_eq!(story, "s1 e1 f1 s2 e2 f2 s3 e3 c3");
    assert_eq!(engine.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tries_are_counted_over_all_processes_of_a_run() -> mynah::Result<()> {
    let busy = || {
        let busy = async |_, _: ToolContext| ToolOutcome::transient("busy");
        Tool::new("t", "", json!({})).idempotent(2).handler(busy)
    };
    let log = Arc::new(MemoryLog::new());
    let engine = Engine::new(calls(&["t"])?).tool(busy());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    // Cut off in the first attempt, after it, and in the second: what was cut off does not count.
    for (seq, tries) in [(4, [1, 2, 3].as_slice()), (5, &[1, 2]), (6, &[1, 2, 3])] {
        let branch = mynah::fork_run(&log, &*run, seq).await?.run_id;
        let later = Scripted::new([json!([{"text": "done"}, {"finish": "stop"}])])?;
        let later = Engine::new(later).tool(busy());
        later.resume(&log, &branch).await?;
        let announced = facts(&log, &branch).await.into_iter().filter_map(|fact| match fact {
            Fact::ToolScheduled { attempt, .. } => Some(attempt),
            _ => None,
        });
        assert_eq!(announced.collect::<Vec<_>>(), tries, "cut off after record {seq}");
        assert_eq!(later.replay(&log, &branch).replay_tools(Tools::All).await?.status, "equal");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_asks_for_something_else_is_a_mismatch_at_that_record() -> mynah::Result<()> {
    let asking = |name: &'static str| {
        Tool::new("t", "", json!({})).handler(move |_, context: ToolContext| async move {
            context.side_effect(name, async { Ok::<_, Error>(json!(1)) }).await
        })
    };
    let log = Arc::new(MemoryLog::new());
    let engine = |tool| Ok::<_, Error>(Engine::new(calls(&["t"])?).tool(tool));
    let run = engine(asking("old"))?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let Err(error) = engine(asking("new"))?.replay(&log, &*run).replay_tools(Tools::All).await
    else {
        panic!("another side effect was taken for the recorded one")
    };
    assert_eq!((error.reason(), &error.metadata()["seq"]), ("payload", &json!(5)));
    let diff = json!([{"path": "name", "recorded": "old", "produced": "new"}]);
    assert_eq!(error.metadata()["diff"], diff);

    let silent = Tool::new("t", "", json!({})).handler(async |_, _| json!(1));
    let Err(error) = engine(silent)?.replay(&log, &*run).replay_tools(Tools::All).await else {
        panic!("a side effect went missing unnoticed")
    };
    let told = (error.reason(), &error.metadata()["seq"], &error.metadata()["expected_kind"]);
    assert_eq!(told, ("kind", &json!(5), &json!("side_effect")));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_tool_has_its_own_time_beside_what_it_waits_for_its_turn() -> mynah::Result<()> {
    let tool = |name: &'static str, pause, effect: &'static str| {
        let tool = Tool::new(name, "", json!({})).timeout(Duration::from_secs(pause + 1));
        tool.handler(move |_, context: ToolContext| async move {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            context.side_effect(effect, async { Ok::<_, Error>(json!(1)) }).await
        })
    };
    let with = |first, second| {
        let engine = Engine::new(calls(&["first", "second"])?);
        Ok::<_, Error>(engine.tools([first, second]))
    };
    let log = Arc::new(MemoryLog::new());
    let live = with(tool("first", 0, "a"), tool("second", 1, "b"))?.chat("go").record(&log).await?;
    let run = live.run_id.unwrap_or_default();
    let replay = |first| {
        let engine = with(first, tool("second", 1, "b"))?;
        Ok::<_, Error>(engine.replay(&log, &*run).replay_tools(Tools::All).allow_changed_engine())
    };
    // The second waits for the first, for longer than it may take.
    assert_eq!(replay(tool("first", 8, "a"))?.await?.status, "equal");
    let error = replay(tool("first", 0, "c"))?.await.expect_err("it asks for something else");
    let diff = json!([{"path": "name", "recorded": "a", "produced": "c"}]);
    assert_eq!(error.metadata()["diff"], diff, "{error}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_waits_for_its_turn_counts_at_no_moment() -> mynah::Result<()> {
    let pays = |name: &'static str, before, after| {
        Tool::new(name, "", json!({})).handler(move |_, context: ToolContext| async move {
            tokio::time::sleep(Duration::from_millis(before)).await;
            let paid = context.side_effect(name, async { Ok::<_, Error>(json!(1)) }).await?;
            tokio::time::sleep(Duration::from_millis(after)).await;
            Ok::<_, Error>(paid)
        })
    };
    let log = Arc::new(MemoryLog::new());
    let engine = |first| {
        let second = pays("second", 0, 1_000).timeout(Duration::from_secs(2));
        Ok::<_, Error>(
            Engine::new(calls(&["first", "second"])?).tools([pays("first", first, 0), second]),
        )
    };
    let run = engine(0)?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    for slower in [500, 1_500, 2_500, 8_000] {
        let replay = engine(slower)?.replay(&log, &*run).replay_tools(Tools::All);
        assert_eq!(replay.await?.status, "equal", "the first takes {slower} ms more");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_a_task_of_a_tool_waits_for_its_turn_puts_its_end_off_and_no_longer()
-> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let engine = |slower, takes| {
        let pays = move |_, context: ToolContext| async move {
            tokio::time::sleep(Duration::from_secs(slower)).await;
            context.side_effect("a", async { Ok::<_, Error>(json!(1)) }).await
        };
        let first = Tool::new("first", "", json!({})).handler(pays);
        let second = Tool::new("second", "", json!({})).timeout(Duration::from_secs(2));
        let second = second.handler(move |_, context: ToolContext| async move {
            let asks = async move { context.side_effect("b", async { Ok::<_, Error>(1) }).await };
            // It does not wake the tool.
            drop(tokio::spawn(asks));
            tokio::time::sleep(takes).await;
            "done"
        });
        Ok::<_, Error>(Engine::new(calls(&["first", "second"])?).tools([first, second]))
    };
    let run = engine(0, Duration::from_secs(1))?.chat("go").record(&log).await?;
    let run = run.run_id.unwrap_or_default();
    for slower in [0, 1, 3, 8] {
        let began = tokio::time::Instant::now();
        let replay = engine(slower, Duration::MAX)?.replay(&log, &*run).replay_tools(Tools::All);
        let error = replay.await.expect_err("it does not end");
        assert_eq!(error.metadata()["kind"], "tool_failed", "{error}");
        assert_eq!(began.elapsed().as_secs(), slower + 2);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_tool_whose_time_is_up_in_a_side_effect_is_so_again() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let engine = || {
        let pay = Tool::new("pay", "", json!({})).timeout(Duration::from_secs(2));
        let pay = pay.handler(async |_, context: ToolContext| {
            let never = async { std::future::pending::<Result<Value, Error>>().await };
            context.side_effect("pay", never).await
        });
        Ok::<_, Error>(Engine::new(calls(&["pay"])?).tool(pay))
    };
    let run = engine()?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    assert_eq!(engine()?.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn branches_of_a_tool_that_wait_for_something_else_are_met_again_in_their_order()
-> mynah::Result<()> {
    let pause = |millis| tokio::time::sleep(Duration::from_millis(millis));
    let tool = Tool::new("t", "", json!({})).handler(move |_, context: ToolContext| async move {
        let fetch = async |name: &str, before, during| {
            pause(before).await;
            let effect = async {
                pause(during).await;
                Ok::<_, Error>(json!(name))
            };
            context.side_effect(name, effect).await
        };
        let (a, b) = tokio::join!(fetch("a", 20, 0), fetch("b", 0, 60));
        Ok::<_, Error>(json!([a?, b?]))
    });
    let engine = Engine::new(calls(&["t", "t"])?).tool(tool);
    let log = Arc::new(MemoryLog::new());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let effects = effects(&log, &run).await;
    let names: Vec<&str> = effects.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "a", "b", "b"]);
    assert_eq!(engine.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_tool_waits_for_its_turn_too() -> mynah::Result<()> {
    let tool = Tool::new("t", "", json!({})).blocking(|_, context| {
        let runtime = tokio::runtime::Handle::current();
        runtime.block_on(context.random()).map(|number| json!(number))
    });
    let engine = Engine::new(calls(&["t", "t", "t"])?).tool(tool);
    let log = Arc::new(MemoryLog::new());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    assert_eq!(effects(&log, &run).await.len(), 3);
    assert_eq!(engine.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    Ok(())
}

proptest! {
    /// With any durations the second time, tools with side effects and retries get the recorded
    /// values.
    #[test]
    fn parallel_tools_with_side_effects_and_retries_replay_in_their_recorded_interleaving(
        programs in vec(program(), 1..6), again in vec(0u64..50, 8), places in 1usize..5,
    ) {
        runtime().block_on(async {
            tokio::time::pause();
            let log = Arc::new(MemoryLog::new());
            let live = engine(&programs, &[])?.chat("go").max_concurrency(places).record(&log).await.map_err(fail)?;
            let run = live.run_id.unwrap_or_default();
            let replayed = engine(&programs, &again)?.replay(&log, &*run).replay_tools(Tools::All).await;
            prop_assert!(replayed.is_ok(), "{replayed:?}");
            let recorded = engine(&programs, &again)?.replay(&log, &*run).await;
            prop_assert!(recorded.is_ok(), "{recorded:?}");
            Ok(())
        })?;
    }

    /// With processes that end at any moment, the records of the resumed run can be replayed.
    #[test]
    fn a_run_cut_off_twice_inside_its_tools_goes_on_and_replays(
        programs in vec(program(), 1..5), again in vec(0u64..50, 8), cuts in (0.0..1.0f64, 0.0..1.0f64),
    ) {
        runtime().block_on(async {
            tokio::time::pause();
            let log = Arc::new(MemoryLog::new());
            let live = engine(&programs, &[])?.chat("go").record(&log).await.map_err(fail)?;
            let run = live.run_id.unwrap_or_default();
            let first = cut(&log, &run, cuts.0).await;
            let resume = |log| Ok::<_, TestCaseError>(engine(&programs, &again)?.resume(log, &*run).on_uncertain(OnUncertain::Rerun));
            let Ok(_) = resume(&first)?.await else { return Ok(()) };
            let second = cut(&first, &run, cuts.1).await;
            let Ok(done) = resume(&second)?.await else { return Ok(()) };
            prop_assert_eq!(done.text(), "done");
            let records = second.read(&run, 1, 10_000).await.map_err(fail)?;
            prop_assert!(verify(&run, &records).is_ok());
            for tools in [Tools::All, Tools::Recorded] {
                let replayed = engine(&programs, &[])?.replay(&second, &*run).replay_tools(tools).await;
                prop_assert!(replayed.is_ok(), "{:?} {replayed:?}", tools);
            }
            Ok(())
        })?;
    }
}

/// What a tool does, one thing after another.
#[derive(Clone, Copy, Debug)]
enum Op {
    Sleep(u64),
    Now,
    Random,
    Effect,
    FailedEffect,
    Both,
}

/// A tool's actions, and how many of its attempts fail.
type Program = (Vec<Op>, u32);

fn program() -> impl Strategy<Value = Program> {
    let op = prop_oneof![
        3 => (0u64..50).prop_map(Op::Sleep),
        1 => Just(Op::Now),
        1 => Just(Op::Random),
        2 => Just(Op::Effect),
        1 => Just(Op::FailedEffect),
        1 => Just(Op::Both),
    ];
    (vec(op, 0..5), 0u32..3)
}

/// An engine whose model calls each program once. `again` are other times to sleep.
fn engine(programs: &[Program], again: &[u64]) -> Result<Engine, TestCaseError> {
    let names: Vec<String> = (0..programs.len()).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tools = programs.iter().zip(&names).map(|((ops, failures), name)| {
        let (ops, failures, again) = (ops.clone(), *failures, again.to_vec());
        Tool::new(*name, "", json!({})).idempotent(3).handler(move |_, context| {
            let (ops, again) = (ops.clone(), again.clone());
            async move { perform(&ops, failures, &again, &context).await }
        })
    });
    Ok(Engine::new(calls(&names).map_err(fail)?).tools(tools))
}

async fn perform(ops: &[Op], failures: u32, again: &[u64], context: &ToolContext) -> ToolOutcome {
    let mut seen = Vec::new();
    for (index, op) in ops.iter().enumerate() {
        let effect = |name: &'static str| {
            context.side_effect(name, async move { Ok::<_, Error>(json!(name)) })
        };
        let value = match op {
            Op::Sleep(millis) => {
                let millis = again.get(index).unwrap_or(millis);
                tokio::time::sleep(Duration::from_millis(*millis)).await;
                continue;
            }
            Op::Now => context.now().await.map(|time| json!(format!("{time:?}"))),
            Op::Random => context.random().await.map(|number| json!(number)),
            Op::Effect => effect("one").await,
            Op::FailedEffect => {
                let failed = context.side_effect("no", async { Err::<Value, _>("broken") }).await;
                Ok(json!(failed.map_err(|error| error.to_string())))
            }
            Op::Both => {
                let (one, two) = tokio::join!(effect("left"), effect("right"));
                one.and_then(|one| two.map(|two| json!([one, two])))
            }
        };
        match value {
            Ok(value) => seen.push(value),
            Err(error) => return ToolOutcome::error(error.to_string()),
        }
    }
    if context.attempt() <= failures {
        ToolOutcome::transient("busy")
    } else {
        Value::from(seen).into()
    }
}

fn failing(ran: &Arc<AtomicU32>) -> Tool {
    let ran = Arc::clone(ran);
    Tool::new("t", "", json!({})).handler(move |_, context: ToolContext| {
        let ran = Arc::clone(&ran);
        async move {
            let lookup = async {
                ran.fetch_add(1, Ordering::Relaxed);
                Err::<Value, _>("no such host")
            };
            context.side_effect("lookup", lookup).await
        }
    })
}

/// A model that calls these tools and then says that it is done.
fn calls(names: &[&str]) -> mynah::Result<Scripted> {
    let calls = names.iter().enumerate();
    let calls = calls.map(|(n, name)| json!({"tool_call": {"id": format!("c{n}"), "name": name}}));
    let turn: Vec<Value> = calls.chain([json!({"finish": "tool_calls"})]).collect();
    let last = json!([{"text": "done"}, {"finish": "stop"}]);
    // A resumed run calls its tools again.
    Scripted::new([Value::from(turn), last.clone(), last])
}

/// A log with the first records of a run.
async fn cut(log: &Arc<MemoryLog>, run: &str, share: f64) -> Arc<MemoryLog> {
    let records = log.read(run, 1, 10_000).await.unwrap_or_default();
    let answer = records.iter().position(|record| record.kind().as_str() == "assistant_completed");
    // From the answer on the process may end at any record.
    let from = answer.unwrap_or(0) + 1;
    let kept = from + ((records.len() - from) as f64 * share) as usize;
    let prefix = Arc::new(MemoryLog::new());
    let batch = Append::new(run, None, records[..kept].to_vec());
    assert!(prefix.append(batch).await.is_ok());
    prefix
}

async fn facts(log: &Arc<MemoryLog>, run: &str) -> Vec<Fact> {
    let records = log.read(run, 1, 10_000).await.unwrap_or_default();
    records.iter().filter_map(|record| record.fact().ok().flatten()).collect()
}

async fn effects(log: &Arc<MemoryLog>, run: &str) -> Vec<(Option<Inside>, String, Effect)> {
    let facts = facts(log, run).await.into_iter();
    let effects = facts.filter_map(|fact| match fact {
        Fact::SideEffect { inside, name, effect, .. } => Some((inside, name, effect)),
        _ => None,
    });
    effects.collect()
}

fn fail(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

#[tokio::test]
async fn a_tool_that_asks_for_another_side_effect_is_told_at_once() -> mynah::Result<()> {
    let engine = |names: [&'static str; 2]| -> mynah::Result<Engine> {
        let tool =
            Tool::new("t", "", json!({})).handler(move |_, context: ToolContext| async move {
                for name in names {
                    context.side_effect(name, async { Ok::<_, Error>(1) }).await?;
                }
                Ok::<_, Error>(json!(1))
            });
        let calls = json!([{"tool_call": {"id": "c0", "name": "t"}}, {"finish": "tool_calls"}]);
        let scripts = [calls, json!([{"text": "done"}, {"finish": "stop"}])];
        Ok(Engine::new(Scripted::new(scripts)?).tool(tool))
    };
    let log = MemoryLog::new();
    let run = engine(["a", "b"])?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    for names in [["b", "a"], ["c", "b"]] {
        let replayed = engine(names)?.replay(&log, &*run).replay_tools(Tools::All);
        let told = tokio::time::timeout(Duration::from_secs(5), replayed.into_future()).await;
        let error = told.expect("it need not be waited for").expect_err("it differs");
        assert_eq!(error.metadata()["seq"], 5, "{names:?}: {error}");
    }
    Ok(())
}
