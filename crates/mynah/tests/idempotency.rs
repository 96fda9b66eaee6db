//! Keys with which a service does the work of a call once.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
};

use mynah::{
    Engine, Result, RunId, Tool, ToolContext, ToolOutcome, fork_run, log::MemoryLog,
    testing::Scripted,
};
use serde_json::{Value, json};

use crate::kept::{copy, kinds, says};

/// What each attempt saw: its run, its call and its key.
type Seen = Arc<Mutex<Vec<(Option<RunId>, String, String)>>>;

#[tokio::test(start_paused = true)]
async fn a_key_is_the_same_in_all_attempts_and_different_for_calls_with_one_id() -> Result<()> {
    let log = MemoryLog::new();
    let (engine, seen) = payer(0, "pay")?;
    let run = engine.chat("go").record(&log).await?.run_id.expect("a run");
    let seen = seen.lock().expect("what was seen").clone();
    // The first turn's calls are attempted twice each, the second turn's call is attempted twice.
    assert_eq!(seen.len(), 6, "{seen:?}");
    assert!(seen.iter().all(|(run_id, ..)| run_id.as_deref() == Some(&*run)));
    let keys: HashSet<_> = seen.iter().map(|(_, _, key)| key).collect();
    assert_eq!(keys.len(), 3, "{seen:?}");
    assert!(keys.iter().all(|key| key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit())));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_key_is_the_same_in_a_process_that_resumes_the_run_and_in_a_replay() -> Result<()> {
    let log = MemoryLog::new();
    let (engine, live) = payer(0, "pay")?;
    let run = engine.chat("go").record(&log).await?.run_id.expect("a run");
    let live: HashSet<_> = live.lock().expect("what was seen").drain(..).collect();
    let (again, replayed) = payer(0, "pay")?;
    again.replay(&log, &*run).replay_tools(mynah::Tools::All).await?;
    assert_eq!(replayed.lock().expect("what was seen").drain(..).collect::<HashSet<_>>(), live);
    let kinds = kinds(&log, &run).await;
    let mut ran = HashSet::new();
    for cut in 1..kinds.len() - 1 {
        let answered = kinds[..cut].iter().filter(|kind| *kind == "assistant_completed").count();
        let log = copy(&log, &run, cut as u64).await;
        let (engine, resumed) = payer(answered, "pay")?;
        engine.resume(&log, &*run).await?;
        let resumed = resumed.lock().expect("what was seen").clone();
        assert!(resumed.iter().all(|seen| live.contains(seen)), "cut at {cut}: {resumed:?}");
        ran.extend(resumed);
    }
    assert_eq!(ran, live);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_approved_call_has_its_own_key_also_after_a_crash() -> Result<()> {
    let log = MemoryLog::new();
    let (engine, seen) = payer(0, "ask")?;
    let run = engine.chat("go").record(&log).await?.run_id.expect("a run");
    let waiting = copy(&log, &run, u64::MAX).await;
    engine.resume(&waiting, &*run).approve("c0").approve("c1").await?;
    let live: HashSet<_> = seen.lock().expect("what was seen").drain(..).collect();
    // The calls of the first turn, and the call of the second that has the id of one of them.
    assert_eq!(live.len(), 3, "{live:?}");
    let scheduled = kinds(&waiting, &run).await.iter().position(|kind| kind == "tool_scheduled");
    let cut = scheduled.expect("an announcement") as u64 + 2;
    let cut = copy(&waiting, &run, cut).await;
    let (engine, seen) = payer(1, "ask")?;
    engine.resume(&cut, &*run).on_uncertain(mynah::OnUncertain::Rerun).await?;
    assert_eq!(seen.lock().expect("what was seen").drain(..).collect::<HashSet<_>>(), live);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_calls_that_a_run_waits_for_are_known() -> Result<()> {
    let log = MemoryLog::new();
    let (engine, seen) = payer(0, "ask")?;
    let keys = |seen: &Seen| -> BTreeMap<String, String> {
        let seen = seen.lock().expect("what was seen");
        seen.iter().take(2).map(|(_, id, key)| (id.clone(), key.clone())).collect()
    };
    let run = engine.chat("go").record(&log).run_id("k").start_or_resume().await?;
    let waiting = run.idempotency_keys().await?;
    let done = engine.resume(&log, "k").approve("c0").approve("c1").await?;
    assert_eq!((done.text().as_ref(), waiting), ("done", keys(&seen)));
    // The process died in the calls that were approved: their outcome is unknown.
    let scheduled = kinds(&log, "k").await.iter().position(|kind| kind == "tool_scheduled");
    let cut = copy(&log, "k", scheduled.expect("an announcement") as u64 + 2).await;
    let unsafe_to_repeat = |name| Tool::new(name, "", json!({})).handler(async |_, _| "paid");
    let tools = [unsafe_to_repeat("pay"), unsafe_to_repeat("ask").manual()];
    let engine = Engine::new(Scripted::new([])?).tools(tools);
    let chat = engine.chat("go").record(&cut).run_id("k").allow_changed_engine();
    let run = chat.start_or_resume().await?;
    assert!(matches!(run.waiting(), Some(mynah::Waiting::Uncertain(calls)) if calls.len() == 2));
    assert_eq!(run.idempotency_keys().await?, keys(&seen));
    assert_eq!(mynah::recorded_call(&cut, "k").await?.idempotency_keys, keys(&seen));
    assert!(
        mynah::recorded_call(&log, "k").await?.idempotency_keys.is_empty(),
        "it waits for none"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_fork_and_a_run_that_is_not_recorded_have_keys_of_their_own() -> Result<()> {
    let log = MemoryLog::new();
    let mut all = HashSet::new();
    let mut keys = |seen: &Seen| {
        let seen: Vec<_> = seen.lock().expect("what was seen").drain(..).collect();
        let keys: HashSet<_> = seen.iter().map(|(_, _, key)| key.clone()).collect();
        let fresh = keys.iter().filter(|key| all.insert((*key).clone())).count();
        (seen.iter().all(|(run, ..)| run.is_some()), keys.len(), fresh)
    };
    let (engine, seen) = payer(0, "pay")?;
    let run = engine.chat("go").request_id("r").record(&log).await?.run_id.expect("a run");
    assert_eq!(keys(&seen), (true, 3, 3));
    let fork = fork_run(&log, &*run, 2).await?.run_id;
    let (engine, seen) = payer(0, "pay")?;
    engine.resume(&log, &*fork).await?;
    assert_eq!(keys(&seen), (true, 3, 3));
    for (request_id, fresh) in [("r", 3), ("r", 0), ("s", 3)] {
        let (engine, seen) = payer(0, "pay")?;
        engine.chat("go").request_id(request_id).await?;
        assert_eq!(keys(&seen), (false, 3, fresh), "{request_id}");
    }
    Ok(())
}

/// An engine that calls a tool twice in its first turn and again in its second under an id that it used before, from one of its
/// answers on. The first attempt of each call fails.
fn payer(answered: usize, first: &str) -> Result<(Engine, Seen)> {
    let call = |id: &str, name: &str| json!({"tool_call": {"id": id, "name": name}});
    let calls = json!([call("c0", first), call("c1", first), {"finish": "tool_calls"}]);
    let again = json!([call("c0", "pay"), {"finish": "tool_calls"}]);
    let model = Scripted::new([calls, again, says("done")].into_iter().skip(answered))?;
    let seen = Seen::default();
    let pay = |name: &str| {
        let saw = Arc::clone(&seen);
        Tool::new(name, "", json!({})).idempotent(2).handler(
            move |_: Value, context: ToolContext| {
                let (run, key) = (context.run_id().cloned(), context.idempotency_key());
                saw.lock().expect("what was seen").push((run, context.call.id.clone(), key));
                async move {
                    match context.attempt() % 2 {
                        1 => ToolOutcome::transient("no line"),
                        _ => ToolOutcome::from(json!("paid")),
                    }
                }
            },
        )
    };
    Ok((Engine::new(model).tools([pay("pay"), pay("ask").manual()]), seen))
}
