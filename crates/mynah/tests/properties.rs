//! One loop, and it is a stream: on random scripts, tools and options the folded stream is the result.
//!
//! `PROPTEST_CASES` sets the number of cases; `cargo xtask nightly` runs 10,000.

use std::{future::IntoFuture, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use mynah::{
    Collector, Engine, Event, HaltReason, Metadata, OnUncertain, Options, Session, SessionReducer,
    Status, Thread, Tool, ToolOutcome, Tools, TurnResult,
    log::{Append, Chain, End, Fact, Log, MemoryLog, Seal, Totals, verify_run},
    testing::Scripted,
};
use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

use crate::plans::{plan, runtime};

proptest! {
    #[test]
    fn a_chat_is_the_fold_of_its_stream(plan in plan()) {
        runtime().block_on(async {
            let awaited = plan.engine().chat("go").options(plan.options()).await;
            let folded = fold(plan.engine().chat("go").options(plan.options()).stream()).await;
            match (awaited, folded) {
                (Ok(awaited), Ok(folded)) => prop_assert_eq!(awaited, folded.chat_result()),
                (Err(awaited), Err(folded)) => prop_assert_eq!(awaited, folded),
                (awaited, folded) => prop_assert!(false, "{awaited:?} against {folded:?}"),
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_chat_and_its_events_come_back_from_their_json(plan in plan()) {
        runtime().block_on(async {
            let failed = |error: serde_json::Error| TestCaseError::fail(error.to_string());
            let mut stream = plan.engine().chat("go").options(plan.options()).stream();
            let (mut told, mut read) = (Collector::new("go".into()), Collector::new("go".into()));
            while let Some(Ok(event)) = stream.next().await {
                told.apply(&event);
                let back = serde_json::to_string(&event).and_then(|text| serde_json::from_str(&text));
                let back: Event = back.map_err(failed)?;
                prop_assert_eq!(&back, &event);
                read.apply(&back);
            }
            prop_assert_eq!(read.steps(), told.steps());
            prop_assert_eq!(read.chat_result(), told.chat_result());
            Ok(())
        })?;
    }

    #[test]
    fn the_collector_and_the_loop_agree_on_every_step(plan in plan()) {
        runtime().block_on(async {
            if let Ok(folded) = fold(plan.engine().chat("go").options(plan.options()).stream()).await {
                let result = folded.chat_result();
                prop_assert_eq!(folded.steps(), &result.steps[..]);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_step_is_the_fold_of_its_stream(plan in plan()) {
        runtime().block_on(async {
            let awaited = plan.engine().step("go").options(plan.options()).await;
            let folded = fold(plan.engine().step("go").options(plan.options()).stream()).await;
            match (awaited, folded) {
                (Ok(awaited), Ok(folded)) => prop_assert_eq!(awaited, folded.step_result()),
                (Err(awaited), Err(folded)) => prop_assert_eq!(awaited, folded),
                // An error of a step is an event in its stream.
                (Err(awaited), Ok(folded)) => {
                    prop_assert_eq!(awaited.reason(), "unknown_tool");
                    prop_assert_eq!(Some(&awaited), folded.error());
                }
                (awaited, folded) => prop_assert!(false, "{awaited:?} against {folded:?}"),
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_generated_response_is_the_fold_of_its_stream(plan in plan()) {
        runtime().block_on(async {
            let awaited = plan.engine().generate("go").options(plan.options()).await;
            let folded = fold(plan.engine().generate("go").options(plan.options()).stream()).await;
            prop_assert_eq!(awaited, folded.map(|collector| collector.response()));
            Ok(())
        })?;
    }

    #[test]
    fn any_prefix_of_a_stream_folds_into_a_sensible_result(plan in plan(), share in 0.0..1.0f64) {
        runtime().block_on(async {
            let Ok(events) = mynah::testing::collect(plan.engine().chat("go").options(plan.options()).stream()).await
            else { return Ok(()) };
            let cut = (events.len() as f64 * share) as usize;
            let mut collector = Collector::new(Thread::from("go"));
            events[..cut].iter().for_each(|event| collector.apply(event));
            let result = collector.chat_result();
            let ended_early = matches!(result.halted_reason, HaltReason::Cancelled | HaltReason::Error);
            prop_assert!(ended_early || cut == events.len(), "{:?}", result.halted_reason);
            prop_assert!(result.thread.messages.unanswered().is_empty());
            prop_assert!(mynah::validate::thread(&result.thread).is_ok());
            Ok(())
        })?;
    }

    #[test]
    fn filters_change_nothing_but_what_is_seen(plan in plan()) {
        runtime().block_on(async {
            let quiet = Options::new().emit_text_deltas(false).emit_tool_deltas(false);
            let awaited = plan.engine().chat("go").options(plan.options()).await;
            let filtered = fold(plan.engine().chat("go").options(plan.options().overlay(quiet)).stream()).await;
            match (awaited, filtered) {
                (Ok(awaited), Ok(filtered)) => prop_assert_eq!(awaited, filtered.chat_result()),
                (awaited, filtered) => prop_assert_eq!(awaited.err(), filtered.err()),
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_session_is_the_same_awaited_streamed_and_stored(plan in plan()) {
        runtime().block_on(async {
            let awaited = plan.engine().start("go").options(plan.options()).await;
            let mut stream = plan.engine().start("go").options(plan.options()).stream();
            let mut reducer = SessionReducer::chat(Session::from("go"), None);
            let mut refused = None;
            while let Some(event) = stream.next().await {
                match event {
                    Ok(event) => reducer.apply(&event),
                    Err(error) => refused = Some(error),
                }
            }
            match awaited {
                Err(error) => prop_assert_eq!(Some(error), refused),
                Ok((session, result)) => {
                    let (streamed, turn) = stream.finish();
                    prop_assert_eq!(&session, &streamed);
                    prop_assert_eq!(&session, &reducer.finalize().0);
                    prop_assert_eq!(turn, TurnResult::Chat(Box::new(result)));
                    let stored = serde_json::to_string(&session).map_err(|e| TestCaseError::fail(e.to_string()))?;
                    prop_assert_eq!(mynah::decode::session(&stored), Ok(session.clone()));
                    let ready = session.recover();
                    prop_assert_eq!(ready.status(), Status::Idle);
                    prop_assert!(mynah::validate::thread(&ready.thread).is_ok());
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn cancelling_anywhere_keeps_the_conversation_fit_to_go_on(plan in plan(), after in 0usize..40) {
        runtime().block_on(async {
            let mut stream = plan.engine().chat("go").options(plan.options()).stream();
            let cancel = stream.cancel_handle();
            let (mut seen, mut collector) = (0, Collector::new(Thread::from("go")));
            while let Some(event) = stream.next().await {
                let Ok(event) = event else { return Ok(()) };
                collector.apply(&event);
                seen += 1;
                if seen == after {
                    cancel.cancel();
                }
            }
            let result = collector.chat_result();
            if result.halted_reason != HaltReason::ManualToolCalls {
                prop_assert!(mynah::validate::thread(&result.thread).is_ok());
            }
            Ok(())
        })?;
    }
}

async fn fold(mut stream: mynah::EventStream) -> mynah::Result<Collector> {
    let mut collector = Collector::new(Thread::from("go"));
    while let Some(event) = stream.next().await {
        collector.apply(&event?);
    }
    Ok(collector)
}

/// The events of a stream follow the contract, for any script.
#[test]
fn event_is_small_enough_to_move() {
    assert!(size_of::<Event>() <= 176, "{} bytes", size_of::<Event>());
}

proptest! {
    #[test]
    fn a_forged_record_in_a_sound_chain_is_where_a_replay_ends(plan in plan(), which in any::<(Index, Index)>()) {
        runtime().block_on(async {
            let log = Arc::new(MemoryLog::new());
            let live = plan.engine().chat("go").options(plan.options()).record(&log).stream();
            let Some(run) = live.run_id().cloned() else { return Ok(()) };
            let _ = fold(live).await;
            let facts = facts(&log, &run).await;
            let Some((seq, path, forged)) = forge(&facts, which) else { return Ok(()) };
            let log = rechained(&run, &forged).await?;
            prop_assert!(verify_run(&log, &run).await.is_ok());
            let replayed = plan.engine().replay(&log, &*run).replay_tools(Tools::All).await;
            let found = replayed.err().map(|error| error.metadata().get("seq").and_then(Value::as_u64));
            let asked = facts.iter().position(|fact| matches!(fact, Fact::TurnStarted { .. }));
            if let Some(asked) = asked.filter(|_| path.starts_with("/thread/messages")) {
                // The first request is compared at the model call.
                prop_assert_eq!(found, Some(Some(asked as u64 + 1)), "{}", path);
            } else if is_given(facts[seq - 1].kind().as_str(), &path) {
                // Another model's answer is not wrong in itself. It shows in what was made of it, if in anything.
                prop_assert!(found.flatten().is_none_or(|found| found >= seq as u64), "{path}: {found:?}");
            } else {
                prop_assert_eq!(found, Some(Some(seq as u64)), "{}", path);
            }
            Ok(())
        })?;
    }

    #[test]
    fn records_that_are_missing_doubled_or_swapped_in_a_sound_chain_end_a_replay_and_a_resume(
        plan in plan(), damage in 0..3u8, which in any::<(Index, Index)>(),
    ) {
        runtime().block_on(async {
            tokio::time::pause();
            let log = Arc::new(MemoryLog::new());
            let live = plan.engine().chat("go").options(plan.options()).record(&log).stream();
            let Some(run) = live.run_id().cloned() else { return Ok::<_, TestCaseError>(()) };
            let _ = fold(live).await;
            let _ = plan.engine().resume(&log, &*run).answer("yes").await;
            let mut facts = facts(&log, &run).await;
            if facts.is_empty() { return Ok(()) }
            let (one, other) = (which.0.index(facts.len()), which.1.index(facts.len()));
            match damage {
                0 => drop(facts.remove(one)),
                1 => facts.insert(other, facts[one].clone()),
                _ => facts.swap(one, other),
            }
            // A log takes in no run without a beginning.
            let Ok(log) = rechained(&run, &facts).await else { return Ok(()) };
            for tools in [Tools::All, Tools::Recorded] {
                ends(plan.engine().replay(&log, &*run).replay_tools(tools)).await?;
            }
            ends(mynah::replay_run(&log, &*run)).await?;
            for policy in [OnUncertain::Suspend, OnUncertain::Rerun, OnUncertain::Fail] {
                let log = rechained(&run, &facts).await?;
                ends(plan.engine().resume(&log, &*run).on_uncertain(policy)).await?;
                ends(plan.engine().resume(&log, &*run).answer("yes").on_uncertain(policy)).await?;
            }
            Ok(())
        })?;
    }
}

/// Comes to an end, whichever. Time stands still while anything happens.
async fn ends(performed: impl IntoFuture) -> Result<(), TestCaseError> {
    let ended = tokio::time::timeout(Duration::from_secs(3600), performed.into_future()).await;
    prop_assert!(ended.is_ok());
    Ok(())
}

/// A question that was not asked: its tool has no outcome.
#[test]
fn a_run_that_waits_for_what_no_record_tells_is_a_mismatch() -> Result<(), TestCaseError> {
    runtime().block_on(async {
        let uncertain = |calls: Value| {
            let metadata = Metadata::from_iter([("uncertain_tool_calls".to_owned(), calls)]);
            End::new(HaltReason::UncertainTools, metadata)
        };
        let asked = End::new(HaltReason::AskUser, Metadata::new());
        let listed = [json!([]), json!("c0"), json!([1]), json!(["c1"]), Value::Null];
        for end in listed.map(uncertain).into_iter().chain([asked]) {
            let engine = || {
                let calls =
                    json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]);
                let ask =
                    Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("?"));
                Scripted::new([calls]).map(|model| Engine::new(model).tool(ask))
            };
            let failed = |error: mynah::Error| TestCaseError::fail(error.to_string());
            let log = Arc::new(MemoryLog::new());
            let live = engine().map_err(failed)?.chat("go").record(&log).await.map_err(failed)?;
            let run = live.run_id.unwrap_or_default();
            let mut facts = facts(&log, &run).await;
            facts.truncate(4);
            facts.push(Fact::Suspended(end));
            let log = rechained(&run, &facts).await?;
            let replayed = engine().map_err(failed)?.replay(&log, &*run).await;
            prop_assert_eq!(replayed.unwrap_err().metadata()["seq"].as_u64(), Some(5));
            // A process that resumes it reaches an end.
            let resumed = engine().map_err(failed)?.resume(&log, &*run).answer("yes");
            ends(resumed.on_uncertain(OnUncertain::Rerun)).await?;
        }
        Ok(())
    })
}

/// Whether a member of a fact came from outside: from the caller, or from the model. A replay takes
/// it from the record, and cannot detect a change; only the run's fingerprint can.
fn is_given(kind: &str, path: &str) -> bool {
    let given: &[&str] = match kind {
        "run_started" => &["/thread", "/extent", "/about/options", "/about/request_id"],
        "assistant_completed" => &["/response", "/cuts"],
        // What the model had said when it was cut off.
        "budget_exceeded" | "cancelled" => &["/partial", "/cuts"],
        // Of a model call that was refused.
        "failed" => &["/metadata/error"],
        "finalize_failed" => &["/error"],
        _ => &[],
    };
    ["/duration_ms", "/first_token_ms"].contains(&path)
        || given.iter().any(|given| path.starts_with(given))
}

/// A run's facts, one of them with one change, and where that is; none if nothing came of it.
fn forge(facts: &[Fact], (record, place): (Index, Index)) -> Option<(usize, String, Vec<Fact>)> {
    let made = facts.iter().filter(|fact| !matches!(fact, Fact::Sealed(_))).count();
    let index = record.index(made.max(1));
    let mut value = serde_json::to_value(facts.get(index)?).ok()?;
    let mut paths = Vec::new();
    leaves("", &value, &mut paths);
    let path = place.get(&paths).clone();
    let leaf = value.pointer_mut(&path)?;
    *leaf = match leaf.take() {
        Value::String(text) if text.is_empty() => "x".into(),
        Value::String(text) => (text[..text.len() - 1].to_owned() + "~").into(),
        Value::Number(number) => (number.as_u64()? + 1).into(),
        Value::Bool(flag) => (!flag).into(),
        _ => return None,
    };
    let forged: Fact = serde_json::from_value(value).ok()?;
    if forged == facts[index] {
        return None;
    }
    let mut facts = facts.to_vec();
    facts[index] = forged;
    Some((index + 1, path, facts))
}

/// Pointers to everything in a value that holds nothing else.
fn leaves(path: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| leaves(&format!("{path}/{key}"), value, found));
        }
        Value::Array(list) => {
            let items = list.iter().enumerate();
            items.for_each(|(index, value)| leaves(&format!("{path}/{index}"), value, found));
        }
        _ => found.push(path.to_owned()),
    }
}

async fn facts(log: &MemoryLog, run: &str) -> Vec<Fact> {
    let records = log.read(run, 1, 10_000).await.unwrap_or_default();
    records.iter().filter_map(|record| record.fact().ok().flatten()).collect()
}

/// A log with a run of these facts, whose chain and seal are sound.
async fn rechained(run: &str, facts: &[Fact]) -> Result<Arc<MemoryLog>, TestCaseError> {
    let failed = |error: mynah::Error| TestCaseError::fail(error.to_string());
    let (mut chain, mut totals, mut records) = (Chain::new(run), Totals::default(), Vec::new());
    for fact in facts {
        let fact = match fact {
            Fact::Sealed(_) => Fact::Sealed(Seal::new(chain.root(), totals.clone())),
            fact => fact.clone(),
        };
        let record = chain.append(0, [7; 16], &fact).map_err(failed)?;
        totals.add(record.adds());
        records.push(record);
    }
    let log = Arc::new(MemoryLog::new());
    log.append(Append::new(run, None, records)).await.map_err(failed)?;
    Ok(log)
}
