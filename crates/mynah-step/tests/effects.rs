//! Time, chance, side effects and facts of a custom loop, live and again.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use futures_util::FutureExt as _;
use mynah_data::{
    Breach, BreachTime, Error, ErrorKind, HaltReason, Limit, Message, Metadata, MismatchClass,
    Response, ToolOutcome, ToolReason,
};
use mynah_log::{
    Append, Effect, End, Fact, Inside, Log as _, MemoryLog, Plan, Resolution, VerifyStatus,
};
use mynah_step::{Config, Context, RunMode, SideEffectErrors};
use serde_json::{Value, json};

use crate::common::*;

#[tokio::test]
async fn now_reads_the_worlds_clock_records_it_and_replays_without_a_clock() {
    let world = Arc::new(Counting::default());
    let config = |log: &Arc<MemoryLog>| plain(log).world(world.clone());
    let (now, facts) = twice(config, async |context| context.now().await).await;
    let asked = world.0.load(Relaxed);
    let Fact::SideEffect { inside: None, name, effect: Effect::Done(nanos), .. } = &facts[1] else {
        unreachable!("{:?}", facts[1])
    };
    assert_eq!(name, "now");
    let recorded = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos.as_u64().unwrap_or(0));
    assert_eq!(now, Ok(recorded));
    assert_eq!(kinds(&facts), ["run_started", "side_effect", "completed", "sealed"]);
    let log = Arc::new(MemoryLog::new());
    assert!(perform(config(&log), async |context: &Context| context.now().await).await.is_ok());
    let before = world.0.load(Relaxed);
    let again = config(&log).mode(RunMode::Replay(read(&log).await));
    assert!(perform(again, async |context: &Context| context.now().await).await.is_ok());
    assert_eq!(world.0.load(Relaxed), before, "a replay never asks the world");
    assert!(asked > 0);
}

#[tokio::test]
async fn a_run_whose_id_is_taken_does_nothing() {
    let (log, done) = (Arc::new(MemoryLog::new()), AtomicUsize::new(0));
    for expected in [Ok(0), Err("head_mismatch")] {
        let context = Context::new(plain(&log)).expect("a run");
        assert_eq!(begin(&context).await, Ok(()));
        let count = async { Ok::<_, Error>(done.fetch_add(1, Relaxed)) };
        let counted = context.side_effect("count", count).await;
        assert_eq!(counted.map_err(|error| error.reason()), expected);
    }
    assert_eq!(done.load(Relaxed), 1);
}

#[tokio::test]
async fn random_is_drawn_recorded_and_comes_back_the_same() {
    let (numbers, facts) = twice(plain, async |context| {
        Ok::<_, mynah_data::Error>([context.random().await?, context.random().await?])
    })
    .await;
    let recorded = facts.iter().filter_map(|fact| match fact {
        Fact::SideEffect { name, effect: Effect::Done(value), .. } => {
            Some((name.as_str(), value.as_u64()))
        }
        _ => None,
    });
    let [first, second] = numbers.expect("chance is there");
    assert_eq!(recorded.collect::<Vec<_>>(), [("random", Some(first)), ("random", Some(second))]);
}

#[tokio::test]
async fn a_side_effect_is_done_once_and_its_value_comes_from_the_record() {
    let done = Arc::new(AtomicUsize::new(0));
    let (value, facts) = twice(plain, async |context| {
        context
            .side_effect("fetch", async {
                done.fetch_add(1, Relaxed);
                Ok::<_, std::io::Error>(json!({"pages": [1, 2.5, null, "ü"]}))
            })
            .await
    })
    .await;
    assert_eq!(value, Ok(json!({"pages": [1, 2.5, null, "ü"]})));
    assert_eq!(done.load(Relaxed), 1);
    let effect = Effect::Done(json!({"pages": [1, 2.5, null, "ü"]}));
    let name = "fetch".to_owned();
    assert_eq!(facts[1], Fact::SideEffect { inside: None, name, ahead: 0, effect });
}

#[tokio::test]
async fn a_failed_side_effect_of_the_loop_is_recorded_and_fails_the_same_way_undone() {
    let done = Arc::new(AtomicUsize::new(0));
    let (failed, facts) = twice(plain, async |context| {
        let effect = async {
            done.fetch_add(1, Relaxed);
            Err::<(), _>("no route")
        };
        let failed = context.side_effect("fetch", effect).await;
        // What follows is not taken for what failed.
        (failed.map_err(|error| (error.kind(), error.to_string())), context.random().await)
    })
    .await;
    assert_eq!(failed.0, Err((ErrorKind::Tool(ToolReason::Failed), "no route".to_owned())));
    assert_eq!(done.load(Relaxed), 1);
    assert_eq!(kinds(&facts)[1..3], ["side_effect", "side_effect"]);
}

#[tokio::test]
async fn a_failed_side_effect_that_is_not_recorded_is_done_again_and_nothing_is_out_of_step() {
    let done = Arc::new(AtomicUsize::new(0));
    let config = |log: &Arc<MemoryLog>| plain(log).side_effect_errors(SideEffectErrors::Unrecorded);
    let (_, facts) = twice(config, async |context| {
        let effect = async {
            done.fetch_add(1, Relaxed);
            Err::<(), _>("no route")
        };
        let failed = context.side_effect("fetch", effect).await.is_err();
        (failed, context.random().await)
    })
    .await;
    assert_eq!(done.load(Relaxed), 2);
    assert_eq!(kinds(&facts), ["run_started", "side_effect", "completed", "sealed"]);
}

#[tokio::test]
async fn the_name_of_failed_model_calls_is_not_for_side_effects() {
    let (refused, facts) = twice(plain, async |context| {
        let mine = context.side_effect("model_call", async { Ok::<_, String>("mine".to_owned()) });
        mine.await.map_err(|error| error.reason())
    })
    .await;
    assert_eq!(refused, Err("invalid_options"));
    assert_eq!(kinds(&facts), ["run_started", "completed", "sealed"]);
}

#[tokio::test]
async fn a_value_that_cannot_be_recorded_is_a_failed_effect() {
    let deep = |levels, leaf| (0..levels).fold(leaf, |value, _| json!([value]));
    let out_of_order = json!({"b": 1, "a": 2});
    let (fetched, facts) = twice(plain, async |context| {
        let mut fetched = Vec::new();
        let many = json!("x".repeat(mynah_data::MAX_RESULT));
        for value in [deep(96, json!(1)), deep(97, json!(1)), deep(200, out_of_order.clone()), many]
        {
            let effect = async { Ok::<_, String>(value) };
            fetched.push(context.side_effect("fetch", effect).await.map_err(|e| e.to_string()));
        }
        let bytes = std::collections::HashMap::from([(vec![1_u8], 1)]);
        let effect = async { Ok::<_, String>(bytes) };
        fetched.push(
            context.side_effect("odd", effect).await.map(|_| json!(1)).map_err(|e| e.to_string()),
        );
        fetched
    })
    .await;
    let too_deep = || Err("its value is nested deeper than 96 levels".to_owned());
    let too_many = Err("its value is larger than 15728640 bytes of JSON".to_owned());
    let no_json = Err("its value has no JSON: key must be a string".to_owned());
    assert_eq!(fetched, [Ok(deep(96, json!(1))), too_deep(), too_deep(), too_many, no_json]);
    let effects = facts.iter().filter_map(|fact| match fact {
        Fact::SideEffect { effect, .. } => Some(matches!(effect, Effect::Failed(_))),
        _ => None,
    });
    assert_eq!(effects.collect::<Vec<_>>(), [false, true, true, true, true]);
}

#[tokio::test]
async fn a_recorded_value_of_another_type_is_an_error_and_no_panic() {
    let log = Arc::new(MemoryLog::new());
    let text = async |context: &Context| {
        context.side_effect("it", async { Ok::<_, String>("text".to_owned()) }).await.is_ok()
    };
    assert_eq!(perform(plain(&log), &text).await, Ok(true));
    let number = async |context: &Context| {
        context.side_effect("it", async { Ok::<u64, String>(1) }).await.map_err(|e| e.to_string())
    };
    let again = perform(plain(&log).mode(RunMode::Replay(read(&log).await)), &number).await;
    let said = again.expect("the run goes on").expect_err("a text is no number");
    assert!(said.starts_with("what is recorded does not fit"), "{said}");
}

#[tokio::test]
async fn a_call_id_is_fresh_sorts_by_time_and_is_the_same_in_a_replay() {
    let config = |log: &Arc<MemoryLog>| plain(log).world(Counting::default());
    let (ids, _) = twice(config, async |context| {
        [context.new_call_id().await.ok(), context.new_call_id().await.ok()]
    })
    .await;
    assert!(ids[0] < ids[1], "{ids:?}");
    assert!(ids.iter().flatten().all(|id| id.len() == 26), "{ids:?}");
}

#[tokio::test]
async fn an_emitted_fact_is_recorded_in_its_place_and_the_seal_by_itself() {
    let before = Fact::ContextTruncated {
        strategy: "oldest".to_owned(),
        tokens_before: 90,
        tokens_after: 40,
        messages_before: 9,
        messages_after: 4,
        dropped: 0,
        cleared: 0,
        summary: None,
    };
    let (_, facts) = twice(plain, async |context| context.emit(before.clone()).await).await;
    assert_eq!(facts[1], before);
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log)).expect("a run");
    let Some(seal) = facts.last().cloned() else { unreachable!() };
    assert_eq!(context.emit(seal).await.map_err(|error| error.reason()), Err("invalid_options"));
}

#[tokio::test]
async fn a_fact_that_the_loop_could_not_emit_again_is_refused_before_it_is_recorded() {
    let (call_id, attempt, content) = ("c0".to_owned(), 1, "1".to_owned());
    let outcome = ToolOutcome::Ok(json!(1));
    let error = Error::tool(ToolReason::Failed);
    let resolution = Resolution::Continued;
    let inside = Some(Inside { call_id: call_id.clone(), attempt });
    let effect = |inside| {
        let (name, effect) = ("fetch".to_owned(), Effect::Done(json!(1)));
        Fact::SideEffect { inside, name, ahead: 0, effect }
    };
    let refused = [
        (Fact::ToolScheduled { call_id: call_id.clone(), attempt, call: None }, "call_tool"),
        (
            Fact::ToolCompleted {
                call_id: call_id.clone(),
                attempt,
                outcome,
                content: content.clone(),
                duration_ms: None,
            },
            "call_tool",
        ),
        (
            Fact::ToolFailed { call_id, attempt, error, resolution, content, duration_ms: None },
            "call_tool",
        ),
        (effect(inside), "side_effect"),
        (effect(None), "side_effect"),
        (Fact::SEAM, "resume"),
    ];
    let (_, facts) = twice(plain, async |context| {
        for (fact, instead) in &refused {
            let kind = fact.kind();
            let error = context.emit(fact.clone()).await.expect_err(kind.as_str());
            assert_eq!(error.reason(), "invalid_options", "{kind}");
            assert!(error.to_string().contains(&format!("::{instead} records")), "{error}");
        }
    })
    .await;
    assert_eq!(kinds(&facts), ["run_started", "completed", "sealed"]);
}

#[tokio::test]
async fn every_other_fact_is_emitted_again_as_it_was() {
    let end = || {
        let mut end = End::new(HaltReason::AskUser, Metadata::new());
        end.duration_ms = Some(7);
        end
    };
    let message = || Arc::new(Message::user("hi"));
    let mut resumed = Fact::SEAM;
    if let Fact::Resumed { message: told, .. } = &mut resumed {
        *told = Some(message());
    }
    let response = Box::new(Response::new(Message::assistant("ho")));
    let breach = Breach::new(Limit::Turns, 1_u64, 2_u64, BreachTime::PreCall);
    let emitted = [
        Fact::UserMessage { message: message() },
        Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 },
        Fact::AssistantCompleted {
            response,
            plan: Plan::Nothing,
            cuts: Vec::new(),
            duration_ms: None,
            first_token_ms: None,
        },
        Fact::FinalizeStarted { conversation: end(), nudge: Some(message()) },
        Fact::FinalizeFailed { error: Error::tool(ToolReason::Failed) },
        Fact::BudgetExceeded { breach, partial: None, cuts: Vec::new() },
        Fact::Suspended(end()),
        resumed,
    ];
    let (_, facts) = twice(plain, async |context| {
        for fact in &emitted {
            assert_eq!(context.emit(fact.clone()).await, Ok(()), "{}", fact.kind());
        }
    })
    .await;
    assert_eq!(facts[1..=emitted.len()], emitted);
}

#[tokio::test]
async fn nothing_can_be_recorded_after_the_end() {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log)).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert_eq!(end(&context).await, Ok(()));
    assert_eq!(context.random().await.map_err(|error| error.reason()), Err("sealed"));
}

#[tokio::test]
async fn the_duration_of_a_replay_is_the_recorded_one() {
    let log = Arc::new(MemoryLog::new());
    let took = async |context: &Context, live: u64| {
        let took = context.replay_duration_ms(live);
        let mut end = End::new(HaltReason::Completed, Metadata::new());
        end.duration_ms = Some(took);
        context.emit(Fact::Completed(end)).await.map(|()| took)
    };
    let context = Context::new(plain(&log)).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert_eq!(took(&context, 1_234).await, Ok(1_234));
    let again = plain(&log).mode(RunMode::Replay(read(&log).await));
    let again = Context::new(again).expect("a run");
    assert_eq!(begin(&again).await, Ok(()));
    assert_eq!(took(&again, 9).await, Ok(1_234));
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_asks_for_more_than_is_recorded_is_exhausted() {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log)).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert_eq!(context.flush().await, Ok(()));
    let again = plain(&log).mode(RunMode::Replay(read(&log).await));
    let again = Context::new(again).expect("a run");
    assert_eq!(begin(&again).await, Ok(()));
    let error = again.random().await.expect_err("nothing is recorded");
    assert_eq!(error.kind(), ErrorKind::Replay(MismatchClass::Exhausted));
    assert_eq!(
        (&error.metadata()["seq"], &error.metadata()["kind"]),
        (&json!(2), &json!("side_effect"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_does_something_else_is_told_at_that_record_with_the_fields_that_differ() {
    let random = async |context: &Context| context.random().await.map(drop);
    let now = async |context: &Context| context.now().await.map(drop);
    let message = async |context: &Context| {
        let message = Arc::new(mynah_data::Message::user("hi"));
        context.emit(Fact::UserMessage { message }).await
    };
    let other = async |context: &Context| {
        let message = Arc::new(mynah_data::Message::user("ho"));
        context.emit(Fact::UserMessage { message }).await
    };
    let nothing = async |_: &Context| Ok(());
    let told = |error: mynah_data::Error| {
        let of = |name: &str| error.metadata().get(name).cloned().unwrap_or_default();
        let paths =
            of("diff").as_array().into_iter().flatten().map(|at| at["path"].clone()).collect();
        (error.reason(), of("seq"), of("kind"), of("expected_kind"), Value::Array(paths))
    };
    let effect = json!("side_effect");
    assert_eq!(
        told(mismatch(random, now).await),
        ("payload", json!(2), effect.clone(), effect.clone(), json!(["name"]))
    );
    assert_eq!(
        told(mismatch(random, message).await),
        ("kind", json!(2), json!("user_message"), effect.clone(), json!([]))
    );
    let ended = mismatch(random, nothing).await;
    assert!(ended.to_string().ends_with(": expected side_effect, got completed: completed"));
    assert_eq!(told(ended), ("kind", json!(2), json!("completed"), effect, json!([])));
    let (class, seq, _, _, paths) = told(mismatch(message, other).await);
    assert_eq!((class, seq), ("payload", json!(2)));
    assert!(paths[0].as_str().is_some_and(|path| path.starts_with("message")), "{paths}");
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_stops_early_is_told_at_its_end() {
    let log = Arc::new(MemoryLog::new());
    let random = async |context: &Context| context.random().await.is_ok();
    assert_eq!(perform(plain(&log), &random).await, Ok(true));
    let again = Context::new(plain(&log).replay().await.expect("records")).expect("a run");
    assert_eq!(begin(&again).await, Ok(()));
    let error = again.finish().await.expect_err("records are left");
    assert_eq!(error.kind(), ErrorKind::Replay(MismatchClass::Kind));
    let said = "replay mismatch: kind: run run-1, record 2: expected side_effect, got nothing";
    assert_eq!(error.message(), said);
    assert_eq!(error.metadata()["kind"], Value::Null);
    let whole = Context::new(plain(&log).replay().await.expect("records")).expect("a run");
    assert_eq!(begin(&whole).await, Ok(()));
    assert!(random(&whole).await);
    assert_eq!(end(&whole).await, Ok(()));
    assert_eq!(whole.finish().await, Ok(()));
    // A difference that was swallowed is reported too.
    let other = Context::new(plain(&log).replay().await.expect("records")).expect("a run");
    assert_eq!(begin(&other).await, Ok(()));
    assert!(other.now().await.is_err());
    assert_eq!(other.finish().await.map_err(|error| error.reason()), Err("payload"));
}

#[tokio::test(start_paused = true)]
async fn what_a_loop_does_at_once_is_recorded_as_it_is_done_and_replays() {
    let (_, facts) = twice(plain, async |context| {
        let slow = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok::<_, String>("slow".to_owned())
        };
        let fast = async { Ok::<_, String>("fast".to_owned()) };
        tokio::join!(
            context.side_effect("slow", slow),
            context.side_effect("fast", fast),
            context.random(),
        )
    })
    .await;
    let names = facts.iter().filter_map(|fact| match fact {
        Fact::SideEffect { name, .. } => Some(name.as_str()),
        _ => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["fast", "random", "slow"]);
}

#[tokio::test(start_paused = true)]
async fn effects_of_one_name_done_at_once_keep_their_own_values() {
    let (pages, facts) = twice(plain, async |context| {
        let both = async { tokio::join!(fetch(context, "slow", 50), fetch(context, "fast", 10)) };
        let pages = tokio::select! {
            biased;
            late = fetch(context, "late", 90) => (late.clone(), late),
            both = both => both,
        };
        (pages, fetch(context, "then", 0).await)
    })
    .await;
    let page = |name: &str| Ok(name.to_owned());
    assert_eq!(pages, ((page("slow"), page("fast")), page("then")));
    let ahead = facts.iter().filter_map(|fact| match fact {
        Fact::SideEffect { ahead, .. } => Some(*ahead),
        _ => None,
    });
    assert_eq!(ahead.collect::<Vec<_>>(), [2, 1, 1], "nobody got the late one");
}

#[tokio::test(start_paused = true)]
async fn effects_of_one_name_cut_off_at_any_record_go_on_with_their_own_values() {
    let agent = async |context: &Context| {
        let both = tokio::join!(fetch(context, "slow", 50), fetch(context, "fast", 10));
        (both, fetch(context, "then", 0).await)
    };
    let whole = Arc::new(MemoryLog::new());
    let live = perform(plain(&whole), &agent).await.expect("the run goes well");
    let records = read(&whole).await;
    for kept in 1..records.len() {
        let log = Arc::new(MemoryLog::new());
        let prefix = Append::new(RUN, None, records[..kept].to_vec());
        assert!(log.append(prefix).await.is_ok());
        let resumed = plain(&log).resume().await.expect("it can go on");
        assert_eq!(perform(resumed, &agent).await.as_ref(), Ok(&live), "after {kept}");
        let again = plain(&log).replay().await.expect("it can be performed again");
        assert_eq!(perform(again, &agent).await.as_ref(), Ok(&live), "after {kept}");
    }
}

#[tokio::test]
async fn an_effect_that_failed_unrecorded_does_not_get_the_value_of_the_next() {
    let config = |log: &Arc<MemoryLog>| plain(log).side_effect_errors(SideEffectErrors::Unrecorded);
    let (fetched, _) = twice(config, async |context| {
        let refused = context.side_effect("fetch", async { Err::<String, _>("no route") }).await;
        (refused.map_err(|error| error.to_string()), fetch(context, "page", 0).await)
    })
    .await;
    assert_eq!(fetched, (Err("no route".to_owned()), Ok("page".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_context_used_from_many_threads_keeps_one_chain_and_replays() {
    let count = async |context: &Context| {
        let tasks = (0..64).map(|number| {
            let context = context.clone();
            tokio::spawn(async move {
                let effect = async move { Ok::<_, String>(number) };
                let name = format!("number {number}");
                (context.side_effect(&name, effect).await, context.now().await.is_ok())
            })
        });
        for (number, task) in tasks.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(task.await.expect("no panic"), (Ok(number), true));
        }
    };
    let log = Arc::new(MemoryLog::new());
    assert_eq!(perform(plain(&log), &count).await, Ok(()));
    let records = read(&log).await;
    assert_eq!(records.len(), 1 + 128 + 2);
    assert_eq!(
        mynah_log::verify(RUN, &records).expect("it verifies").status,
        VerifyStatus::Verified
    );
    assert_eq!(perform(plain(&log).mode(RunMode::Replay(records)), &count).await, Ok(()));
}

#[tokio::test]
async fn a_side_effect_of_the_loop_that_panics_leaves_the_run_as_it_was() {
    let (_, facts) = twice(plain, async |context| {
        if context.is_replaying() {
            return context.random().await;
        }
        let effect =
            async { if true { std::panic::panic_any("boom") } else { Ok::<_, String>(1) } };
        let panicked = AssertUnwindSafe(context.side_effect("bad", effect)).catch_unwind().await;
        assert!(panicked.is_err());
        context.random().await
    })
    .await;
    assert_eq!(kinds(&facts), ["run_started", "side_effect", "completed", "sealed"]);
}

#[tokio::test]
async fn odd_run_ids_are_kept_as_they_are() {
    for id in ["tenant/01HX", "ü—🦜", "a b\tc\n", "%252F..", &"x".repeat(255)] {
        let log = Arc::new(MemoryLog::new());
        let agent = async |context: &Context| context.random().await;
        let live = perform(Config::new(&log, id), &agent).await.expect(id);
        let records = mynah_log::Log::read(&log, id, 1, 100).await.expect(id);
        assert_eq!(mynah_log::verify(id, &records).expect(id).status, VerifyStatus::Verified);
        let again = Config::new(&log, id).mode(RunMode::Replay(records));
        assert_eq!(perform(again, &agent).await, Ok(live), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_swallows_a_difference_does_not_pass_for_equal() {
    let random = async |context: &Context| context.random().await.map(drop);
    let swallows = async |context: &Context| {
        drop(context.now().await);
        context.random().await.map(drop)
    };
    assert_eq!(mismatch(random, swallows).await.reason(), "payload");
    let message = async |context: &Context, text: &str| {
        let message = Arc::new(mynah_data::Message::user(text));
        context.emit(Fact::UserMessage { message }).await
    };
    let swallowed = mismatch(
        async |context| message(context, "a").await,
        async |context| {
            drop(message(context, "b").await);
            Ok(())
        },
    );
    assert_eq!(swallowed.await.reason(), "payload");
}

#[tokio::test]
async fn the_members_of_a_value_keep_their_order_in_a_replay() {
    let (text, _) = twice(plain, async |context| {
        let page = json!({"title": "z", "body": [{"y": 1, "x": 2}], "a": null});
        context.side_effect("fetch", async { Ok::<_, String>(page) }).await.map(|v| v.to_string())
    })
    .await;
    assert_eq!(text, Ok(r#"{"title":"z","body":[{"y":1,"x":2}],"a":null}"#.to_owned()));
}

/// A page that takes so long to come.
async fn fetch(context: &Context, page: &str, millis: u64) -> mynah_data::Result<String> {
    let effect = async {
        tokio::time::sleep(Duration::from_millis(millis)).await;
        Ok::<_, String>(page.to_owned())
    };
    context.side_effect("fetch", effect).await
}
