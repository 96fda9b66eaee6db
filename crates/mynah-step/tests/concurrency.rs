//! Branches of one loop, or of one tool, that wait for things which are no part of the run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use mynah_data::{Error, Message, Result, ToolOutcome};
use mynah_log::{Append, Fact, Log as _, MemoryLog};
use mynah_step::{CallTool, Context, SideEffectErrors, ToolContext};
use serde_json::json;
use tokio::sync::{Mutex, mpsc::unbounded_channel};

use crate::common::*;

#[tokio::test(start_paused = true)]
async fn a_branch_that_waits_before_an_effect_replays_and_goes_on_after_any_record() {
    let effect = async |context: &Context| {
        pause(20).await;
        context.side_effect("first", async { Ok::<_, String>(1) }).await
    };
    everywhere(plain, async |context| tokio::join!(effect(context), slow(context))).await;
}

#[tokio::test(start_paused = true)]
async fn a_model_call_beside_an_effect_replays_and_goes_on_after_any_record() {
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(plays([says(&["hi"])]));
    let answer = async |context: &Context| {
        pause(20).await;
        let answer = context.call_model(ask("hi")).await?;
        Ok::<_, Error>(answer.response.text().into_owned())
    };
    everywhere(config, async |context| tokio::join!(answer(context), slow(context))).await;
}

#[tokio::test(start_paused = true)]
async fn a_tool_beside_an_effect_replays_and_goes_on_after_any_record() {
    let waits = |context: ToolContext| async move {
        pause(5).await;
        context.side_effect("inside", async { Ok::<_, String>(json!(1)) }).await
    };
    let config = move |log: &Arc<MemoryLog>| plain(log).tools([tool("waits", waits).idempotent(1)]);
    let called = async |context: &Context, after: u64| {
        pause(after).await;
        context.call_tool(call("c0", "waits")).await
    };
    everywhere(config, async |context| tokio::join!(called(context, 20), slow(context))).await;
    everywhere(config, async |context| tokio::join!(called(context, 0), slow(context))).await;
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_is_given_up_after_a_while_is_given_up_again() {
    let timeout = Duration::from_secs(5);
    everywhere(plain, async |context| {
        let never = context.side_effect("never", std::future::pending::<Result<u8, String>>());
        let given_up = tokio::time::timeout(timeout, never).await.is_err();
        (given_up, context.side_effect("after", async { Ok::<_, String>(2) }).await)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_asks_again_and_again_for_what_is_not_recorded_is_told() {
    let log = Arc::new(MemoryLog::new());
    perform(plain(&log), async |context| context.now().await.map(drop))
        .await
        .expect("a run")
        .expect("a time");
    let again = plain(&log).replay().await.expect("a run");
    let told = perform(again, async |context| {
        loop {
            tokio::select! { drawn = context.random() => break drawn, () = pause(50) => {} }
        }
    });
    let told = told.await.expect_err("a difference").to_string();
    assert!(told.contains("side_effect differs at name"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn branches_of_one_tool_that_wait_replay() {
    let branches = |context: ToolContext| async move {
        let first = async {
            pause(20).await;
            context.side_effect("first", async { Ok::<_, String>(1) }).await
        };
        let second = context.side_effect("second", async {
            pause(60).await;
            Ok::<_, String>(2)
        });
        let (first, second) = tokio::join!(first, second);
        Ok::<_, Error>(json!([first?, second?]))
    };
    let config = move |log: &Arc<MemoryLog>| plain(log).tools([tool("branches", branches)]);
    let (done, _) = twice(config, async |context| {
        context.call_tool(call("c0", "branches")).await.map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(done, Ok(json!([1, 2]).into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn spawned_clones_replay_and_go_on_in_every_round() {
    let count = async |context: &Context| {
        let tasks = (0..4).map(|task| {
            let context = context.clone();
            tokio::spawn(async move {
                let mut sum = 0;
                for step in 0..20 {
                    let effect = async { Ok::<_, String>(step * task) };
                    sum += context.side_effect(&format!("task {task}"), effect).await?;
                }
                context.call_model(ask(&format!("task {task}"))).await?;
                Ok::<_, Error>(sum)
            })
        });
        let mut sums = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            sums.push(task.await.expect("no panic"));
        }
        sums
    };
    let plain = |log: &Arc<MemoryLog>| plain(log).adapter(plays([(); 4].map(|()| says(&["hi"]))));
    for round in 0..200 {
        let log = Arc::new(MemoryLog::new());
        let live = perform(plain(&log), &count).await.expect("the run goes well");
        let again = plain(&log).replay().await.expect("records");
        assert_eq!(perform(again, &count).await.as_ref(), Ok(&live), "round {round}");
        let records = read(&log).await;
        let cut = Arc::new(MemoryLog::new());
        let prefix = records[..1 + round * 89 / 200].to_vec();
        assert!(cut.append(Append::new(RUN, None, prefix)).await.is_ok());
        let resumed = plain(&cut).resume().await.expect("it can go on");
        assert_eq!(perform(resumed, &count).await.as_ref(), Ok(&live), "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn model_calls_of_branches_find_their_own_records() {
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(plays([says(&["hi"]), says(&["hi"])]));
    everywhere(config, async |context| {
        let branch = async |name: &str, during: u64| {
            let effect = async {
                pause(during).await;
                Ok::<_, String>(())
            };
            context.side_effect(name, effect).await?;
            pause(10).await;
            context.call_model(ask(name)).await.map(|answer| answer.response)
        };
        tokio::join!(branch("slow", 5), branch("fast", 1))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn calls_without_ids_of_branches_find_their_own_records() {
    let says = |name: &'static str| tool(name, move |_| async move { json!(name) }).idempotent(1);
    let config = move |log: &Arc<MemoryLog>| plain(log).tools([says("first"), says("second")]);
    everywhere(config, async |context| {
        let branch = async |name: &str, live: u64, again: u64| {
            pause(if context.is_replaying() { again } else { live }).await;
            context.call_tool(call("", name)).await
        };
        tokio::join!(branch("second", 20, 0), branch("first", 10, 5), branch("first", 30, 0))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn facts_of_one_kind_emitted_by_branches_find_their_own_records() {
    let (_, facts) = twice(plain, async |context| {
        let emit = async |text: &str, live: u64, again: u64| {
            pause(if context.is_replaying() { again } else { live }).await;
            let message = Arc::new(Message::user(text));
            context.emit(Fact::UserMessage { message }).await
        };
        tokio::join!(emit("one", 10, 30), emit("two", 20, 20))
    })
    .await;
    assert_eq!(kinds(&facts)[1..3], ["user_message", "user_message"]);
}

#[tokio::test(start_paused = true)]
async fn an_effect_of_a_branch_is_not_done_again_where_failures_are_unrecorded() {
    let done = AtomicUsize::new(0);
    let config = |log: &Arc<MemoryLog>| plain(log).side_effect_errors(SideEffectErrors::Unrecorded);
    let (fetched, _) = twice(config, async |context| {
        let fetch = async |name: &str, before: u64, during: u64| {
            pause(before).await;
            let effect = async {
                pause(during).await;
                Ok::<_, String>(done.fetch_add(1, Relaxed))
            };
            context.side_effect(name, effect).await
        };
        tokio::join!(fetch("first", 20, 0), fetch("second", 0, 60), fetch("second", 0, 40))
    })
    .await;
    assert_eq!(fetched, (Ok(0), Ok(2), Ok(1)));
    assert_eq!(done.load(Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn another_order_is_told_when_nobody_asks_for_what_is_recorded() {
    let recorded = async |context: &Context| {
        context.random().await?;
        context.now().await.map(drop)
    };
    let performed = async |context: &Context| {
        context.now().await?;
        context.random().await.map(drop)
    };
    let error = mismatch(recorded, performed).await;
    assert_eq!((error.reason(), &error.metadata()["seq"]), ("payload", &json!(2)));
    assert_eq!(error.metadata()["diff"][0]["path"], "name");
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_asks_for_after_its_outcome_is_refused_live_and_again() {
    let (tell, told) = unbounded_channel();
    let leaves = move |context: ToolContext| {
        let tell = tell.clone();
        async move {
            tokio::spawn(async move {
                pause(20).await;
                let late = context.side_effect("late", async { Ok::<_, String>(1) }).await;
                let _ = tell.send(late.map_err(|error| error.reason()));
            });
            json!(1)
        }
    };
    let told = Mutex::new(told);
    let tool = tool("leaves", leaves).idempotent(1);
    let config = |log: &Arc<MemoryLog>| plain(log).tools([tool.clone()]);
    everywhere(config, async |context| {
        let is_run = !context.is_replaying();
        let called = context.call_tool(call("c0", "leaves")).await;
        let slow = slow(context).await;
        if is_run {
            assert_eq!(told.lock().await.recv().await, Some(Err("cancelled")));
        }
        (called, slow)
    })
    .await;
    assert_eq!(told.lock().await.recv().await, Some(Err("cancelled")), "the replay ran it too");
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_try_asks_for_while_the_next_runs_is_refused() {
    let (tell, mut told) = unbounded_channel();
    let leaves = move |context: ToolContext| {
        let tell = tell.clone();
        async move {
            if context.attempt() > 1 {
                pause(60).await;
                return ToolOutcome::Ok(json!(context.random().await.is_ok()));
            }
            let left = context.clone();
            tokio::spawn(async move {
                // One that is requested in time and done too late, and one that is requested too
                // late.
                let late = left.side_effect("late", async {
                    pause(20).await;
                    Ok::<_, String>(1)
                });
                for asked in [late.await, left.random().await] {
                    let _ = tell.send(asked.map_err(|error| error.reason()));
                }
            });
            tokio::task::yield_now().await;
            ToolOutcome::transient("once more")
        }
    };
    let tool = tool("leaves", leaves);
    let (done, facts) = twice(
        |log| plain(log).tools([tool.clone()]),
        async |context| {
            let twice = CallTool::from(call("c0", "leaves")).idempotent(2);
            let done = context.call_tool(twice.backoff(|_| Duration::ZERO)).await;
            pause(60).await;
            done
        },
    )
    .await;
    assert_eq!(done, Ok(json!(true).into()));
    let effects = facts.iter().filter(|fact| matches!(fact, Fact::SideEffect { .. }));
    assert_eq!(effects.count(), 1);
    for _ in 0..4 {
        assert_eq!(told.recv().await, Some(Err("cancelled")));
    }
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// An effect that takes long, where it is done.
async fn slow(context: &Context) -> Result<u64> {
    let effect = async {
        pause(60).await;
        Ok::<_, String>(2)
    };
    context.side_effect("slow", effect).await
}
