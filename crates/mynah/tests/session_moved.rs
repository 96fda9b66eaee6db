//! A recorded session is continued once from each of its states.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all};
use mynah::{
    Engine, Error, Result, RunId, Session, Status, Tool, cancel_run,
    log::{Append, Head, Lease, Log, LogFuture, MemoryLog, Prune, RunFilter, Warrant, forward_log},
    restore_session,
    testing::Scripted,
};
use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::kept::{copy, logs, says, talker};

#[tokio::test]
async fn a_second_turn_from_an_ended_state_is_refused_and_names_the_run_that_was_faster()
-> Result<()> {
    let (engine, log) = (talker(4)?, MemoryLog::new());
    let (first, _) = engine.start(Session::from("one").with_id("s")).record(&log).await?;
    let (second, _) = engine.reply(&first, "two").record(&log).await?;
    for stale in [first.clone(), serde_json::from_value(json!(first))?] {
        let error = engine.reply(&stale, "two").record(&log).await.expect_err("a stale session");
        assert_eq!(error.reason(), "session_moved");
        assert_eq!(error.metadata()["run_id"], json!(run_of(&second)));
        assert!(error.to_string().contains("restore the session"), "{error}");
        let step = engine.step_session(&stale.append_user("two")).record(&log).await;
        assert_eq!(step.expect_err("a stale session").reason(), "session_moved");
    }
    assert_eq!(runs(&log).await, 2);
    let restored = restore_session(&log, "s").await?.session;
    let (third, result) = engine.reply(&restored, "three").record(&log).await?;
    assert_eq!((third.thread.messages.len(), result.text().as_ref()), (6, "said 2"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_replies_one_wins_and_the_others_ask_no_model() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    for log in logs(folder.path()) {
        let model = Scripted::new((0..9).map(|n| says(&format!("said {n}"))))?;
        let engine = Engine::new(model.clone());
        let (session, _) = engine.start(Session::from("one")).record(&log).await?;
        let replies = (0..4).map(|n| {
            let (engine, session, log) = (engine.clone(), session.clone(), log.clone());
            tokio::spawn(async move {
                engine.reply(&session, format!("reply {n}")).record(&log).await.map(drop)
            })
        });
        assert_eq!(won(join_all(replies).await), 1);
        assert_eq!((runs(&*log).await, model.model_calls().len()), (2, 2));
    }
    Ok(())
}

#[tokio::test]
async fn two_turns_that_find_the_session_unmoved_at_the_same_time_do_not_both_go_on() -> Result<()>
{
    // From a state that ended, and from one that waits: both turns look before either of them writes.
    for waits in [false, true] {
        let log =
            Gate { log: MemoryLog::new(), ahead: Arc::default(), both: Arc::new(Barrier::new(2)) };
        let (engine, ran) = payer(4)?;
        let engine = if waits { engine } else { talker(9)? };
        let (session, _) = engine.start(Session::from("pay").with_id("s")).record(&log).await?;
        let session = if waits { session.submit_tool_result("c0", "go")? } else { session };
        log.ahead.store(2, Ordering::Relaxed);
        let turn = || {
            let (engine, session, log) = (engine.clone(), session.clone(), log.clone());
            tokio::spawn(async move {
                engine.continue_session(&session, None).record(&log).await.map(drop)
            })
        };
        assert_eq!(won(join_all([turn(), turn()]).await), 1, "waits: {waits}");
        assert_eq!(log.ahead.load(Ordering::Relaxed), 0, "both were let through together");
        assert_eq!(runs(&log).await, if waits { 1 } else { 2 });
        assert!(ran.load(Ordering::Relaxed) <= 1);
    }
    Ok(())
}

/// A log that lets two go ahead together who want to begin a run or to continue one.
#[derive(Clone)]
struct Gate {
    log: MemoryLog,
    /// How many are still to come.
    ahead: Arc<AtomicUsize>,
    both: Arc<Barrier>,
}

impl Gate {
    async fn pass(&self) {
        let come = |ahead: usize| ahead.checked_sub(1);
        if self.ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, come).is_ok() {
            self.both.wait().await;
        }
    }
}

impl Log for Gate {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        Box::pin(async move {
            if batch.expected.is_none() {
                self.pass().await;
            }
            self.log.append(batch).await
        })
    }

    fn take(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        seen: Option<i64>,
    ) -> LogFuture<'_, Lease> {
        let (run, owner) = (run.to_owned(), owner.to_owned());
        Box::pin(async move {
            self.pass().await;
            self.log.take(&run, &owner, term, seen).await
        })
    }

    forward_log!(self => self.log, except append, take);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_answers_to_a_waiting_run_one_wins_and_its_tool_runs_once() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    for log in logs(folder.path()) {
        let (engine, ran) = payer(2)?;
        let (waiting, _) = engine.start(Session::from("pay").with_id("s")).record(&log).await?;
        let paid = waiting.submit_tool_result("c0", "go ahead")?;
        let turns = (0..3).map(|_| {
            let (engine, paid, log) = (engine.clone(), paid.clone(), log.clone());
            tokio::spawn(async move {
                engine.continue_session(&paid, None).record(&log).await.map(drop)
            })
        });
        assert_eq!(won(join_all(turns).await), 1);
        let again = engine.continue_session(&paid, None).record(&log).await;
        assert_eq!(again.expect_err("it went on").reason(), "session_moved");
        assert_eq!((runs(&*log).await, ran.load(Ordering::Relaxed)), (1, 1));
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_is_approved_twice_runs_once() -> Result<()> {
    for at_once in [false, true] {
        let (engine, ran) = payer(2)?;
        let log = MemoryLog::new();
        let waiting = engine.chat("pay").record(&log).await?;
        let run = waiting.run_id.expect("a run");
        let approve = || {
            let (engine, run, log) = (engine.clone(), run.clone(), log.clone());
            tokio::spawn(async move {
                engine.resume(&log, &*run).approve("c0").await.map(|done| done.text().into_owned())
            })
        };
        let approved = match at_once {
            true => join_all([approve(), approve()]).await,
            false => vec![approve().await, approve().await],
        };
        let done: Vec<_> = approved.into_iter().map(|done| done.expect("a task")).collect();
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1, "{done:?}");
        assert_eq!((runs(&log).await, ran.load(Ordering::Relaxed)), (1, 2));
    }
    Ok(())
}

#[tokio::test]
async fn a_turn_that_starts_beside_a_waiting_run_and_one_that_continues_it_exclude_each_other()
-> Result<()> {
    // The edited conversation is not the one that the run waits with.
    let edited = |waiting: &Session| -> Result<Session> {
        let mut edited = json!(waiting.submit_tool_result("c0", "go ahead")?);
        edited["thread"]["messages"][0]["content"] = json!("stop");
        Ok(serde_json::from_value(edited)?)
    };
    for edited_first in [true, false] {
        let (engine, _) = payer(3)?;
        let log = MemoryLog::new();
        let (waiting, _) = engine.start(Session::from("pay").with_id("s")).record(&log).await?;
        let turns = [edited(&waiting)?, waiting.submit_tool_result("c0", "go ahead")?];
        let [first, second] = if edited_first { [0, 1] } else { [1, 0] };
        engine.continue_session(&turns[first], None).record(&log).await?;
        let late = engine.continue_session(&turns[second], None).record(&log).await;
        assert_eq!(late.expect_err("the other was faster").reason(), "session_moved");
    }
    Ok(())
}

#[tokio::test]
async fn a_refused_turn_does_not_move_the_session() -> Result<()> {
    let down = || json!([{"preflight_error": "authentication_failed"}]);
    let unknown = json!([{"tool_call": {"id": "c0", "name": "none"}}, {"finish": "tool_calls"}]);
    let scripts = [says("hi"), down(), down(), down(), unknown, says("again"), says("no")];
    let (engine, log) = (Engine::new(Scripted::new(scripts)?), MemoryLog::new());
    let (session, _) = engine.start(Session::from("one").with_id("s")).record(&log).await?;
    for _ in 0..2 {
        let error = engine.reply(&session, "two").record(&log).await.expect_err("a refusal");
        assert_eq!(error.reason(), "authentication_failed");
    }
    let step = engine.step_session(&session.clone().append_user("two")).record(&log).await;
    assert_eq!(step.expect_err("a refusal").reason(), "authentication_failed");
    let step = engine.step_session(&session.clone().append_user("two")).record(&log).await;
    assert_eq!(step.expect_err("no such tool").reason(), "unknown_tool");
    let warrant = Warrant::new("ann", "age", 0);
    Prune::before(i64::MAX).limit(1).perform(&log, &warrant).await?;
    let (_, result) = engine.reply(&session, "two").record(&log).await?;
    assert_eq!(result.text(), "again");
    let late = engine.reply(&session, "two").record(&log).await;
    assert_eq!(late.expect_err("it went on").reason(), "session_moved");
    Ok(())
}

#[tokio::test]
async fn a_turn_whose_process_died_is_resumed_before_the_session_goes_on() -> Result<()> {
    let (engine, log) = (talker(5)?, MemoryLog::new());
    let (session, _) = engine.start(Session::from("one").with_id("s")).record(&log).await?;
    let (after, _) = engine.reply(&session, "two").record(&log).await?;
    let log = copy(&log, &run_of(&after), 2).await;
    let error = engine.reply(&session, "two").record(&log).await.expect_err("an unfinished run");
    assert_eq!(error.metadata()["run_id"], json!(run_of(&after)));
    assert!(error.to_string().contains("resume or cancel it"), "{error}");
    engine.resume(&log, &*run_of(&after)).await?;
    let restored = restore_session(&log, "s").await?.session;
    engine.reply(&restored, "three").record(&log).await?;
    Ok(())
}

#[tokio::test]
async fn a_first_turn_whose_process_died_is_not_done_again() -> Result<()> {
    let (engine, whole) = (talker(20)?, MemoryLog::new());
    let opening = || Session::from("one").with_id("s");
    let (session, _) = engine.start(opening()).record(&whole).await?;
    let first = session.last_run.clone().expect("a run");
    for (cut, ends) in (1..first.seq).flat_map(|cut| [(cut, "resumed"), (cut, "cancelled")]) {
        let log = copy(&whole, &first.run_id, cut).await;
        let restored = restore_session(&log, "s").await?;
        assert_eq!(restored.unfinished.as_ref(), Some(&first.run_id), "cut at {cut}");
        let held = [restored.session.clone(), serde_json::from_value(json!(restored.session))?];
        for session in &held {
            let error = engine.reply(session, "two").record(&log).await.expect_err("unfinished");
            assert_eq!(error.reason(), "session_moved", "cut at {cut}");
            assert_eq!(error.metadata()["run_id"], json!(first.run_id));
            assert!(error.to_string().contains("resume or cancel it"), "{error}");
        }
        let again = engine.start(opening()).record(&log).await.expect_err("a second start");
        assert_eq!(again.reason(), "session_moved", "cut at {cut}");
        assert_eq!(runs(&log).await, 1);
        if ends == "resumed" {
            engine.resume(&log, &first.run_id).await?;
            let late = engine.reply(&held[0], "two").record(&log).await;
            assert_eq!(late.expect_err("it went on").reason(), "session_moved");
        } else {
            cancel_run(&log, &first.run_id).await?;
        }
        let restored = restore_session(&log, "s").await?;
        assert_eq!(restored.unfinished, None);
        let (second, _) = engine.reply(&restored.session, "two").record(&log).await?;

        let second = run_of(&second);
        let log = copy(&log, &second, 2).await;
        let restored = restore_session(&log, "s").await?;
        assert_eq!(restored.unfinished.as_deref(), Some(&*second), "cut at {cut}, {ends}");
        let error = engine.reply(&restored.session, "three").record(&log).await;
        assert_eq!(error.expect_err("unfinished").reason(), "session_moved", "{cut}, {ends}");
    }
    Ok(())
}

#[tokio::test]
async fn a_session_that_the_log_has_is_not_started_again() -> Result<()> {
    let (engine, log) = (talker(5)?, MemoryLog::new());
    let opening = || Session::from("one").with_id("s");
    let (session, _) = engine.start(opening()).record(&log).await?;
    let error = engine.start(opening()).record(&log).await.expect_err("a second start");
    assert_eq!(error.reason(), "session_moved");
    assert_eq!(error.metadata()["run_id"], json!(run_of(&session)));
    assert!(error.to_string().contains("session \"s\" is in this log already"), "{error}");
    let (branch, _) = engine.start(opening()).branch().record(&log).await?;
    assert_ne!(run_of(&branch), run_of(&session));
    engine.start(opening()).record(&MemoryLog::new()).await?;
    engine.start(opening()).await?;
    Ok(())
}

#[tokio::test]
async fn a_caller_that_stopped_a_turn_goes_on_and_a_copy_from_before_does_not() -> Result<()> {
    let (engine, log) = (talker(5)?, MemoryLog::new());
    let (session, _) = engine.start("one").record(&log).await?;
    let mut turn = engine.reply(&session, "two").record(&log).stream();
    turn.next().await.expect("an event")?;
    let (stopped, _) = turn.finish();
    let stale = engine.reply(&session, "two").record(&log).await;
    assert_eq!(stale.expect_err("an unfinished run").reason(), "session_moved");
    engine.reply(&stopped, "three").record(&log).await?;
    let stale = engine.reply(&stopped, "three").record(&log).await;
    assert_eq!(stale.expect_err("it went on").reason(), "session_moved");
    Ok(())
}

#[tokio::test]
async fn a_session_under_another_id_and_one_in_another_log_go_on_by_themselves() -> Result<()> {
    let (engine, log, other) = (talker(6)?, MemoryLog::new(), MemoryLog::new());
    let (session, _) = engine.start(Session::from("one").with_id("a")).record(&log).await?;
    engine.reply(&session, "two").record(&log).await?;
    engine.reply(&session.clone().with_id("b"), "two").record(&log).await?;
    engine.reply(&session, "two").record(&other).await?;
    // These are not recorded.
    engine.reply(&session, "two").await?;
    engine.reply(&session, "two").await?;
    Ok(())
}

#[tokio::test]
async fn a_waiting_run_that_was_cancelled_moves_the_session() -> Result<()> {
    let (engine, _) = payer(1)?;
    let log = MemoryLog::new();
    let (waiting, _) = engine.start(Session::from("pay").with_id("s")).record(&log).await?;
    cancel_run(&log, run_of(&waiting)).await?;
    let paid = waiting.submit_tool_result("c0", "go ahead")?;
    let late = engine.continue_session(&paid, None).record(&log).await;
    assert_eq!(late.expect_err("it has ended").reason(), "session_moved");
    assert_ne!(restore_session(&log, "s").await?.session.status(), Status::AwaitingTools);
    Ok(())
}

/// How many were not refused; the others must be because the session has moved.
fn won(turns: Vec<std::result::Result<Result<()>, tokio::task::JoinError>>) -> usize {
    let turns: Vec<Result<()>> = turns.into_iter().map(|turn| turn.expect("a task")).collect();
    let is_moved = |error: &Error| error.reason() == "session_moved";
    assert!(turns.iter().filter_map(|turn| turn.as_ref().err()).all(is_moved), "{turns:?}");
    turns.iter().filter(|turn| turn.is_ok()).count()
}

async fn runs(log: &(impl Log + ?Sized)) -> usize {
    log.runs(RunFilter::new()).await.map_or(0, |page| page.runs.len())
}

fn run_of(session: &Session) -> RunId {
    session.last_run.as_ref().expect("a session that was kept").run_id.clone()
}

/// An engine that asks for approval to pay, then looks this many times, and reports how often its
/// tools ran.
fn payer(times: usize) -> Result<(Engine, Arc<AtomicUsize>)> {
    let call = |id: &str, name: &str| json!([{"tool_call": {"id": id, "name": name}}, {"finish": "tool_calls"}]);
    let mut scripts = vec![call("c0", "pay")];
    for _ in 0..times {
        scripts.extend([call("c1", "look"), says("done")]);
    }
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = |name: &str| {
        let ran = Arc::clone(&ran);
        Tool::new(name, "", json!({})).handler(move |_: Value, _| {
            ran.fetch_add(1, Ordering::Relaxed);
            async { json!("ok") }
        })
    };
    let tools = [counted("pay").manual(), counted("look")];
    Ok((Engine::new(Scripted::new(scripts)?).tools(tools), ran))
}
