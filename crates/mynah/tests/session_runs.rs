//! Recorded sessions: their runs are linked, and contain the session.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use mynah::{
    Budget, Engine, Metadata, Options, RunId, Session, Status, SystemWorld, Thread, Tool,
    ToolOutcome, World, cancel_run, fork_run,
    log::{
        About, Append, Extent, Fact, Kind, Log, MemoryLog, Redact, RunFilter, RunStatus, Warrant,
    },
    restore_session,
    testing::{self, Scripted},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    kept::{calls, copy, says, talker},
    plans::{Plan, plan, runtime},
};

proptest! {
    #[test]
    fn a_session_is_restored_from_its_records_and_each_run_replays(plan in plan(), steps in prop::collection::vec(prop::bool::weighted(0.2), 1..8)) {
        // A resumed run has spent what it spent; a new chat begins with a full budget.
        let plan = plan.without_budget();
        runtime().block_on(async {
            let log = MemoryLog::new();
            let kept = perform(&plan, &steps, Some(&log)).await;
            let plain = perform(&plan, &steps, None).await;
            prop_assert_eq!(kept.iter().map(forget).collect::<Vec<_>>(), plain.iter().map(forget).collect::<Vec<_>>());
            let Some(last) = kept.iter().rev().find(|done| done.is_told) else { return Ok(()) };
            if kept.last().is_some_and(|done| done.is_told) {
                let restored = restore_session(&log, "s").await;
                prop_assert_eq!(restored.as_ref().map(|restored| &restored.session), Ok(&last.session));
                prop_assert_eq!(restored.map(|restored| restored.unfinished), Ok(None));
            }
            let loaded: Session = serde_json::from_value(json!(last.session)).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(&loaded, &last.session);
            for run in log.runs(RunFilter::new()).await.unwrap_or_default().runs {
                let replayed = plan.engine().replay(&log, &*run.run_id).await;
                prop_assert_eq!(replayed.map(|replayed| replayed.records), Ok(run.records));
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_session_whose_last_run_was_killed_is_what_it_was_before_and_the_run_goes_on(plan in plan(), share in 0.0..1.0f64) {
        runtime().block_on(async {
            let log = MemoryLog::new();
            let kept = perform(&plan, &[false; 6], Some(&log)).await;
            let Some(last) = kept.last().filter(|done| done.is_told) else { return Ok(()) };
            let Some(run) = last.session.last_run.clone() else { return Ok(()) };
            let begins = last.began_at;
            let cut = begins + 1 + ((run.seq - 1 - begins) as f64 * share) as u64;
            let cut_log = copy(&log, &run.run_id, cut).await;
            let restored = restore_session(&cut_log, "s").await.map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(restored.unfinished.as_deref(), Some(&*run.run_id), "cut at {}", cut);
            if kept.len() > 1 && !last.recovered {
                prop_assert_eq!(&restored.session, &last.before);
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn each_run_names_the_one_before_and_holds_only_what_joined() -> mynah::Result<()> {
    let (engine, log) = (talker(4)?, MemoryLog::new());
    let (first, _) = engine.start(Session::from("one").with_id("s")).record(&log).await?;
    let (second, _) = engine.reply(&first, "two").record(&log).await?;
    let (third, result) = engine.reply(&second, "three").record(&log).await?;
    assert_eq!(result.thread.messages.len(), 6);
    let [a, b, c] = [&first, &second, &third].map(run_of);
    for (run, before, said) in [(&b, &a, "two"), (&c, &b, "three")] {
        let (thread, about) = began(&log, run).await;
        assert_eq!(thread, Thread::from(said));
        let previous = about.session.and_then(|link| link.previous).expect("a run before");
        let head = log.head(before).await?.expect("a run");
        assert_eq!(
            (previous.run_id.as_str(), previous.seq, previous.hash),
            (before.as_str(), head.seq, head.hash)
        );
        assert_eq!(engine.replay(&log, run).await?.status, "equal");
    }
    let listed = log.runs(RunFilter::new().session("s")).await?.runs;
    assert_eq!(listed.iter().map(|run| run.run_id.clone()).collect::<Vec<_>>(), [c, b, a]);
    Ok(())
}

#[tokio::test]
async fn a_session_that_was_stored_goes_on_and_one_that_was_edited_is_recorded_whole()
-> mynah::Result<()> {
    let (engine, log) = (talker(4)?, MemoryLog::new());
    let (session, _) = engine.start("one").record(&log).await?;
    let mut stored = json!(session);
    let loaded: Session = serde_json::from_value(stored.clone())?;
    assert_eq!(loaded, session);
    let (loaded, _) = engine.reply(&loaded, "two").record(&log).await?;
    assert_eq!(began(&log, &run_of(&loaded)).await.0, Thread::from("two"));

    stored["thread"]["messages"][0]["content"] = json!("another");
    let edited: Session = serde_json::from_value(stored)?;
    let (edited, _) = engine.reply(&edited, "two").branch().record(&log).await?;
    let (thread, about) = began(&log, &run_of(&edited)).await;
    assert_eq!(thread.messages.len(), 3);
    let previous = about.session.and_then(|link| link.previous).expect("a run before");
    assert_eq!((previous.run_id.as_str(), previous.messages), (&*run_of(&session), 0));
    Ok(())
}

#[tokio::test]
async fn turns_are_told_in_their_order_whatever_the_clock_says() -> mynah::Result<()> {
    /// A world whose clock stands still.
    struct At(u64);
    impl World for At {
        fn now(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + Duration::from_secs(self.0)
        }

        fn random(&self) -> u64 {
            SystemWorld.random()
        }
    }
    let log = Arc::new(MemoryLog::new());
    let talker = talker(4)?;
    let mut session = Session::new().with_id("s");
    for (turn, clock) in [(0, 7_200), (1, 3_600), (2, 3_601), (3, 7_201)] {
        let engine = talker.clone().world(At(clock));
        (session, _) = match turn {
            0 => engine.start(session.append_user("hello")).record(&log).await?,
            _ => engine.reply(&session, "and then?").record(&log).await?,
        };
        assert_eq!(restore_session(&log, "s").await?.session, session, "turn {turn}");
    }
    let told = log.runs(RunFilter::new().oldest_first()).await?.runs;
    let told = told.iter().map(|run| (run.started / 1_000_000_000, run.updated / 1_000_000_000));
    assert_eq!(
        told.collect::<Vec<_>>(),
        [(7_200, 7_200), (7_200, 7_200), (7_200, 7_200), (7_201, 7_201)]
    );
    Ok(())
}

#[tokio::test]
async fn in_another_log_a_session_is_recorded_whole() -> mynah::Result<()> {
    let (engine, log, other) = (talker(3)?, MemoryLog::new(), MemoryLog::new());
    let (session, _) = engine.start("one").record(&log).await?;
    let (session, _) = engine.reply(&session, "two").record(&other).await?;
    let (thread, about) = began(&other, &run_of(&session)).await;
    assert_eq!((thread.messages.len(), about.session.map(|link| link.previous)), (3, Some(None)));
    // Unrecorded turns are recorded with the next recorded one.
    let (session, _) = engine.reply(&session, "three").await?;
    let (session, _) = talker(1)?.reply(&session, "four").record(&other).await?;
    let (thread, _) = began(&other, &run_of(&session)).await;
    assert_eq!(
        thread.messages.iter().map(|m| m.text().into_owned()).collect::<Vec<_>>(),
        ["three", "said 2", "four"]
    );
    Ok(())
}

#[tokio::test]
async fn a_second_reply_to_the_same_state_is_a_branch_that_is_asked_for() -> mynah::Result<()> {
    let (engine, log) = (asker(3)?, MemoryLog::new());
    let (waiting, _) = engine.start(Session::from("go").with_id("s")).record(&log).await?;
    let (first, result) = engine.reply(&waiting, "yes").record(&log).await?;
    assert_eq!(
        (run_of(&first), result.steps.len()),
        (run_of(&waiting), 1),
        "the run that waited went on"
    );
    let refused = engine.reply(&waiting, "no").record(&log).await.expect_err("it went on");
    assert_eq!(refused.reason(), "session_moved");
    let (second, _) = engine.reply(&waiting, "no").branch().record(&log).await?;
    assert_ne!(run_of(&second), run_of(&waiting));
    let (thread, about) = began(&log, &run_of(&second)).await;
    assert_eq!(thread, Thread::from("no"));
    let previous = about.session.and_then(|link| link.previous).expect("a run before");
    let left = waiting.last_run.as_ref().expect("a run");
    assert_eq!((previous.run_id.as_str(), previous.seq), (&*left.run_id, left.seq));
    for session in [&first, &second] {
        assert_eq!(engine.replay(&log, &*run_of(session)).await?.status, "equal");
    }
    assert_eq!(restore_session(&log, "s").await?.session, second);
    Ok(())
}

#[tokio::test]
async fn submitted_tool_results_go_on_with_the_run_that_waits() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let engine = calls(["c0", "c1"])?.tool(Tool::new("pick", "", json!({})).manual());
    let (waiting, _) = engine.start(Session::from("go").with_id("s")).record(&log).await?;
    assert_eq!(restore_session(&log, "s").await?.session, waiting);
    let submitted = waiting.submit_tool_results([("c1", "one"), ("c0", "zero")])?;
    let (done, result) = engine.continue_session(&submitted, None).record(&log).await?;
    assert_eq!((run_of(&done), result.text().as_ref()), (run_of(&waiting), "done"));
    assert_eq!(done.status(), Status::Completed);
    assert_eq!(restore_session(&log, "s").await?.session, done);
    assert_eq!(engine.replay(&log, &*run_of(&done)).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_session_is_restored_from_a_run_that_went_on_after_another_turn_was_refused()
-> mynah::Result<()> {
    let log = MemoryLog::new();
    let call = json!([{"tool_call": {"id": "c0", "name": "pick", "arguments": {}}}, {"finish": "tool_calls"}]);
    let refusal = json!([{"preflight_error": "provider_unavailable"}]);
    let engine = Engine::new(Scripted::new([call, refusal, says("done")])?)
        .tool(Tool::new("pick", "", json!({})).manual());
    let (waiting, _) = engine.start(Session::from("go").with_id("s")).record(&log).await?;
    let submitted = waiting.submit_tool_results([("c0", "zero")])?;
    // What the session was is not what the run says: it begins another.
    let mut edited = json!(submitted);
    edited["thread"]["messages"][0]["content"] = json!("stop");
    let edited: Session = serde_json::from_value(edited)?;
    engine.step_session(&edited).record(&log).await.expect_err("a refusal");
    assert_eq!(restore_session(&log, "s").await?.session, waiting);
    let (done, _) = engine.continue_session(&submitted, None).record(&log).await?;
    assert_eq!(run_of(&done), run_of(&waiting));
    assert_eq!(restore_session(&log, "s").await?.session, done);
    Ok(())
}

#[tokio::test]
async fn what_a_caller_sees_and_how_it_names_its_call_is_no_part_of_a_run() -> mynah::Result<()> {
    let (engine, log) = (asker(1)?, MemoryLog::new());
    let quiet = || Options::new().emit_text_deltas(false).emit_tool_deltas(false);
    let (session, _) = engine.start("go").record(&log).await?;
    let reply = engine.reply(&session, "blue").options(quiet()).include_raw_chunks(true);
    let (after, _) = reply.request_id("mine").record(&log).await?;
    assert_eq!(run_of(&after), run_of(&session));
    let (_, about) = began(&log, &run_of(&after)).await;
    assert_eq!(about.options, Metadata::new());
    let replay = engine.replay(&log, &*run_of(&after)).options(quiet().request_id("other"));
    assert_eq!(replay.await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn another_engine_or_other_options_go_on_with_the_run_that_waits() -> mynah::Result<()> {
    for changed in [asker(0)?.model("other"), asker(0)?] {
        let log = MemoryLog::new();
        let (waiting, _) = asker(1)?.start("go").max_turns(3).record(&log).await?;
        let changed = changed.adapter(Scripted::new([says("fine")])?);
        let (done, result) = changed.reply(&waiting, "yes").record(&log).await?;
        assert_eq!((run_of(&done), result.text().as_ref()), (run_of(&waiting), "fine"));
        assert_eq!(changed.replay(&log, &*run_of(&done)).await?.status, "equal");
    }
    Ok(())
}

#[tokio::test]
async fn a_session_whose_data_changed_goes_on_with_the_run_that_waits() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let calls = json!([{"tool_call": {"id": "c1", "name": "who"}}, {"finish": "tool_calls"}]);
    let who = Tool::new("who", "", json!({})).handler(async |_, context| json!(*context.context));
    let session = Session::from("go").with_id("s").with_metadata("owner", "ann");
    let (mut session, _) = asker(0)?.tool(who.clone()).start(session).record(&log).await?;
    let waiting = run_of(&session);
    session.context = mynah::Metadata::from_iter([("tenant".to_owned(), json!(7))]);
    session.metadata.insert("owner".to_owned(), json!("bob"));
    let engine = asker(0)?.adapter(Scripted::new([calls, says("done")])?).tool(who);
    let (session, result) = engine.reply(&session, "yes").record(&log).await?;
    assert_eq!(run_of(&session), waiting);
    assert_eq!(result.steps[0].tool_results[0].text(), r#"{"tenant":7}"#);
    assert_eq!(restore_session(&log, "s").await?.session, session);
    assert_eq!(engine.replay(&log, &*waiting).await?.status, "equal");
    assert_eq!(mynah::replay_run(&log, &*waiting).await?.status, "equal");
    let (next, _) = talker(1)?.reply(&session, "more").record(&log).await?;
    assert_eq!(restore_session(&log, "s").await?.session, next);
    // Another session does not answer its question.
    let (asking, _) = asker(0)?.start(Session::from("go").with_id("a")).record(&log).await?;
    let (other, _) = asker(1)?.reply(&asking.clone().with_id("b"), "yes").record(&log).await?;
    assert_ne!(run_of(&other), run_of(&asking));
    Ok(())
}

#[tokio::test]
async fn an_answer_is_given_within_the_budget_of_the_run_that_waits() -> mynah::Result<()> {
    let budget = |turns| Budget::new().max_turns(turns);
    for (said, reason) in [
        (Options::new(), "budget_exceeded"),
        (Options::new().max_turns(2).budget(budget(1)), "budget_exceeded"),
        (Options::new().budget(budget(2)), "completed"),
    ] {
        let (engine, log) = (asker(1)?, MemoryLog::new());
        let (waiting, _) = engine.start("go").budget(budget(1)).record(&log).await?;
        let (after, result) = engine.reply(&waiting, "yes").options(said).record(&log).await?;
        assert_eq!((run_of(&after), result.halted_reason.as_str()), (run_of(&waiting), reason));
        assert_eq!(engine.replay(&log, &*run_of(&after)).await?.status, "equal");
    }
    Ok(())
}

#[tokio::test]
async fn the_run_that_is_missing_or_was_redacted_is_named() -> mynah::Result<()> {
    let (engine, log) = (talker(2)?, MemoryLog::new());
    let (first, _) = engine.start("one").record(&log).await?;
    let (second, _) = engine.reply(&first, "two").record(&log).await?;
    let (first, second) = (run_of(&first), run_of(&second));
    let alone = copy_run(&log, &second).await;
    let error = engine.replay(&alone, &*second).await.expect_err("the run before is gone");
    assert_eq!((error.reason(), &error.metadata()["run_id"]), ("run_not_found", &json!(first)));
    assert_eq!(error.metadata()["needed_by"], json!(second));
    let redact = Redact::kind(&*first, Kind::AssistantCompleted);
    redact.perform(&log, &Warrant::new("ann", "she asked for it", 0)).await?;
    let error = engine.replay(&log, &*second).await.expect_err("the run before is redacted");
    assert_eq!((error.reason(), &error.metadata()["run_id"]), ("redacted", &json!(first)));
    Ok(())
}

#[tokio::test]
async fn a_branch_of_a_turn_is_not_a_turn_of_the_session() -> mynah::Result<()> {
    let (engine, log) = (talker(3)?, MemoryLog::new());
    let (session, _) = engine.start(Session::from("one").with_id("s")).record(&log).await?;
    let (session, _) = engine.reply(&session, "two").record(&log).await?;
    let fork = fork_run(&log, &*run_of(&session), 1).await?;
    let result = engine.resume(&log, &*fork.run_id).await?;
    assert_eq!((result.thread.messages.len(), result.text().as_ref()), (4, "said 2"));
    assert_eq!(restore_session(&log, "s").await?.session, session);
    Ok(())
}

#[tokio::test]
async fn a_branch_of_a_turn_begins_with_another_prompt_or_message() -> mynah::Result<()> {
    let (engine, log) = (talker(4)?, MemoryLog::new());
    let (session, _) = engine.start(Session::from("one").with_id("s")).record(&log).await?;
    let (session, _) = engine.reply(&session, "two").record(&log).await?;
    let said = |thread: &Thread| -> Vec<String> {
        thread.messages.iter().map(|message| message.text().into_owned()).collect()
    };
    // Another message is the run's own, and what stands before it stays where it is.
    let fork = fork_run(&log, &*run_of(&session), 1).message("three").await?.run_id;
    let (thread, about) = began(&log, &fork).await;
    assert_eq!(said(&thread), ["three"]);
    assert!(about.session.is_some_and(|link| link.previous.is_some()));
    let result = engine.resume(&log, &*fork).await?;
    assert_eq!(said(&result.thread), ["one", "said 0", "three", "said 2"]);
    engine.replay(&log, &*fork).await?;
    // Another prompt stands before all of it, so the run holds the whole conversation.
    let fork = fork_run(&log, &*run_of(&session), 1).system("Be brief.").await?.run_id;
    let (thread, about) = began(&log, &fork).await;
    assert_eq!(said(&thread), ["Be brief.", "one", "said 0", "two"]);
    assert!(about.session.is_some_and(|link| link.previous.is_none()));
    let result = engine.resume(&log, &*fork).await?;
    assert_eq!(result.text(), "said 3");
    engine.replay(&log, &*fork).await?;
    assert_eq!(restore_session(&log, "s").await?.session, session);
    let refused = fork_run(&log, &*run_of(&session), 2).system("Be brief.").await.unwrap_err();
    assert!(refused.message().contains("record 1"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_dropped_turn_leaves_its_run_behind_and_the_session_goes_on() -> mynah::Result<()> {
    use futures_util::StreamExt as _;
    let (engine, log) = (talker(3)?, MemoryLog::new());
    let (session, _) = engine.start(Session::from("one").with_id("s")).record(&log).await?;
    let mut turn = engine.reply(&session, "two").record(&log).stream();
    for _ in 0..2 {
        turn.next().await.expect("an event")?;
    }
    let (dropped, _) = turn.finish();
    let place = |session: &Session| session.last_run.clone().map(|run| (run.run_id, run.seq));
    assert_eq!(place(&dropped), place(&session));
    let dropped: Session = serde_json::from_value(json!(dropped))?;
    let (after, _) = engine.reply(&dropped, "three").record(&log).await?;
    let (thread, _) = began(&log, &run_of(&after)).await;
    assert_eq!(
        thread.messages.len(),
        3,
        "the message, what was said of the answer, and the next message"
    );
    assert_eq!(engine.replay(&log, &*run_of(&after)).await?.status, "equal");
    assert_eq!(restore_session(&log, "s").await?.session, after);
    Ok(())
}

#[tokio::test]
async fn a_run_that_waits_or_was_killed_can_be_ended_from_outside() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let engine = calls(["c0", "c1"])?.tool(Tool::new("pick", "", json!({})).manual());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    cancel_run(&log, &run).await?;
    assert_eq!(log.run(&run).await?.map(|run| run.status), Some(RunStatus::Cancelled));
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    assert_eq!(cancel_run(&log, &run).await.expect_err("it has ended").reason(), "sealed");

    let step = talker(1)?.step("go").record(&log).stream();
    let run = step.run_id().cloned().unwrap_or_default();
    testing::collect(step).await?;
    for cut in 1..=3 {
        let log = copy(&log, &run, cut).await;
        cancel_run(&log, &run).await?;
        assert_eq!(talker(1)?.replay(&log, &*run).await?.status, "equal", "cut at {cut}");
    }
    Ok(())
}

#[tokio::test]
async fn a_killed_turn_that_is_ended_says_which_calls_may_have_done_their_work() -> mynah::Result<()>
{
    let log = MemoryLog::new();
    let pick = || Tool::new("pick", "", json!({})).handler(async |_, _| "picked");
    let engine = || Ok::<_, mynah::Error>(calls(["c0", "c1"])?.tool(pick()));
    let started = engine()?.start(Session::from("go").with_id("s")).record(&log).await?;
    let run = run_of(&started.0);
    let never = r#"{"error":"the turn ended before this call had a result"}"#.to_owned();
    let unknown = |id: &str| {
        let why = format!("the process ended during call {id}, and its outcome is unknown");
        json!({"error": format!("tool error (pick): {why}")}).to_string()
    };
    let results = |session: &Session| -> Vec<String> {
        let messages = session.thread.messages.iter();
        let results = messages.filter(|message| message.tool_call_id().is_some());
        results.map(|message| message.text().into_owned()).collect()
    };
    let cases = [
        (3, [never.clone(), never.clone()], vec![]),
        // Tools start when all calls are announced.
        (4, [never.clone(), never.clone()], vec![]),
        (5, [unknown("c0"), unknown("c1")], vec!["c0", "c1"]),
        (6, ["picked".to_owned(), unknown("c1")], vec!["c1"]),
    ];
    for (cut, expected, uncertain) in cases {
        let log = copy(&log, &run, cut).await;
        cancel_run(&log, &run).await?;
        let restored = restore_session(&log, "s").await?;
        assert_eq!(restored.unfinished, None);
        assert_eq!(results(&restored.session), expected, "cut at {cut}");
        let listed = restored.session.turn_metadata.get("uncertain_tool_calls").cloned();
        assert_eq!(listed, (!uncertain.is_empty()).then(|| json!(uncertain)), "cut at {cut}");
        assert_eq!(engine()?.replay(&log, &*run).await?.status, "equal", "cut at {cut}");
        let (after, _) = talker(1)?.reply(&restored.session, "and?").record(&log).await?;
        assert_eq!(talker(1)?.replay(&log, &*run_of(&after)).await?.status, "equal");
    }
    for (cut, expected) in
        [(5, [unknown("c0"), unknown("c1")]), (6, ["picked".to_owned(), unknown("c1")])]
    {
        let log = copy(&log, &run, cut).await;
        let waiting = engine()?.resume(&log, &*run).await?;
        assert_eq!(waiting.halted_reason.as_str(), "uncertain_tools");
        let session = restore_session(&log, "s").await?.session;
        assert_eq!(results(&session.recover()), expected, "cut at {cut}");
        // Ended from outside, it reads the same.
        cancel_run(&log, &run).await?;
        let restored = restore_session(&log, "s").await?.session;
        assert_eq!(results(&restored), expected, "cut at {cut}");
        assert_eq!(engine()?.replay(&log, &*run).await?.status, "equal", "cut at {cut}");
    }
    Ok(())
}

#[tokio::test]
async fn what_a_run_that_waits_goes_on_from_is_not_pruned() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let asks = json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]);
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("Sure?"));
    let scripts = [says("hi"), asks, says("done")];
    let engine = Engine::new(Scripted::new(scripts)?).tool(ask);
    // A session without a name is not in the index.
    let (session, _) = engine.start(Session::from("hello")).record(&log).await?;
    let (waiting, _) = engine.reply(&session, "more").record(&log).await?;
    let warrant = mynah::log::Warrant::new("ann", "age", 0);
    let gone = mynah::log::Prune::before(i64::MAX).perform(&log, &warrant).await?;
    assert_eq!(gone.pruned, []);
    // Nor is it removed while a process holds the run that needs it.
    let run = run_of(&waiting);
    let lease = log.lease(&run, "ann", std::time::Duration::from_secs(60)).await?;
    let all = mynah::log::Prune::before(i64::MAX).include_unfinished();
    let done = all.perform(&log, &warrant).await?;
    assert_eq!((done.pruned.len(), done.in_use.len()), (0, 2));
    log.release(&lease);
    let done = engine.resume(&log, &*run_of(&waiting)).answer("yes").await?;
    assert_eq!(done.text(), "done");
    Ok(())
}

#[tokio::test]
async fn a_fork_at_the_seal_is_refused_with_its_reason() -> mynah::Result<()> {
    let (engine, log) = (talker(1)?, MemoryLog::new());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let seal = log.head(&run).await?.map_or(0, |head| head.seq);
    let error = fork_run(&log, &*run, seal).await.expect_err("a seal");
    assert!(error.to_string().contains("nothing can follow it"), "{error}");
    assert!(fork_run(&log, &*run, seal - 1).await.is_ok());
    Ok(())
}

/// The result of an operation of a session.
#[derive(Clone, Debug, PartialEq)]
struct Done {
    session: Session,
    before: Session,
    result: Option<Value>,
    is_told: bool,
    recovered: bool,
    /// How many records the run had before.
    began_at: u64,
}

/// Everything but where it is kept.
fn forget(done: &Done) -> Done {
    let forget = |session: &Session| {
        let mut session = session.clone();
        session.last_run = None;
        session
    };
    Done {
        session: forget(&done.session),
        before: forget(&done.before),
        began_at: 0,
        ..done.clone()
    }
}

/// A session that starts, and continues as its status allows: with a step if one is asked for.
async fn perform(plan: &Plan, steps: &[bool], log: Option<&MemoryLog>) -> Vec<Done> {
    let engine = plan.engine();
    let mut session = Session::from("go").with_id("s").with_metadata("owner", "ann");
    let mut all = Vec::new();
    for (index, is_step) in steps.iter().enumerate() {
        let before = session.clone();
        let options = |options: Options| match log {
            Some(log) => options.record(log),
            None => options,
        };
        let options = options(plan.options());
        let recovered = session.status() == Status::Error;
        let from = match session.status() {
            Status::Error => session.recover(),
            Status::AwaitingTools => {
                let ids = session.pending_tool_calls().iter().map(|call| call.id.clone());
                let results: Vec<_> = ids.map(|id| (id, json!({"n": index}))).collect();
                session.submit_tool_results(results).unwrap_or_else(|_| session.clone())
            }
            _ => session.clone(),
        };
        let turned = if *is_step && matches!(from.status(), Status::Idle | Status::Completed) {
            use futures_util::StreamExt as _;
            let mut turn = engine.step_session(&from).options(options).stream();
            let mut refused = false;
            while let Some(event) = turn.next().await {
                refused |= event.is_err();
            }
            let (session, result) = turn.finish();
            let result = result.into_step().map(|step| json!(step));
            if refused { Err(()) } else { Ok((session, result.unwrap_or_default())) }
        } else {
            let turn = match from.status() {
                _ if index == 0 => engine.start(&from),
                Status::AwaitingUser => engine.reply(&from, "an answer"),
                Status::Idle if index % 2 == 0 => engine.continue_session(&from, None),
                _ => engine.reply(&from, format!("more {index}")),
            };
            turn.options(options).await.map_err(drop).map(|(session, mut result)| {
                result.run_id = None;
                (session, json!(result))
            })
        };
        let began_at = |after: &Session| match (&before.last_run, &after.last_run) {
            (Some(a), Some(b)) if a.run_id == b.run_id => a.seq,
            _ => 0,
        };
        all.push(match turned {
            Ok((after, result)) => {
                session = after.clone();
                let began_at = began_at(&after);
                Done {
                    session: after,
                    before,
                    result: Some(result),
                    is_told: true,
                    recovered,
                    began_at,
                }
            }
            Err(()) => Done {
                session: before.clone(),
                before,
                result: None,
                is_told: false,
                recovered,
                began_at: 0,
            },
        });
    }
    all
}

/// A log with one run of another.
async fn copy_run(log: &MemoryLog, run: &str) -> MemoryLog {
    let copy = MemoryLog::new();
    let records = log.read(run, 1, 10_000).await.expect("a run");
    copy.append(Append::new(run, None, records)).await.expect("a copy");
    copy
}

async fn began(log: &MemoryLog, run: &str) -> (Thread, About) {
    let first = log.read(run, 1, 1).await.expect("a run").remove(0);
    match first.fact() {
        Ok(Some(Fact::RunStarted { thread, extent: Extent::Chat, about: Some(about) })) => {
            (thread, *about)
        }
        other => panic!("{other:?}"),
    }
}

fn run_of(session: &Session) -> RunId {
    session.last_run.as_ref().expect("a session that was kept").run_id.clone()
}

/// An engine whose tool asks a person, and that says something so many times then.
fn asker(times: usize) -> mynah::Result<Engine> {
    let asks = json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]);
    let scripts = [asks].into_iter().chain((0..times).map(|n| says(&format!("said {n}"))));
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("Really?"));
    Ok(Engine::new(Scripted::new(scripts)?).tool(ask))
}
