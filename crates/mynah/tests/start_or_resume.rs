//! One call that starts a run or continues it, in any state.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use mynah::{
    Approval, Budget, Decision, Engine, Result, RetryPolicy, Run, Tool, ToolOutcome, Waiting,
    log::{Log, MemoryLog, RunFilter, RunStatus, verify_run},
    testing::Scripted,
};
use serde_json::{Value, json};

use crate::kept::{copy, kinds, says};

/// Looks an invoice up, pays it after approval, and asks for a note.
fn clerk(model: &Scripted, paid: &Arc<AtomicUsize>) -> Engine {
    let paid = Arc::clone(paid);
    let look = Tool::new("look", "", json!({})).idempotent(1).handler(async |_, _| json!(17));
    let pay = Tool::new("pay", "", json!({})).manual().handler(move |_, _| {
        paid.fetch_add(1, Ordering::Relaxed);
        async { json!("paid") }
    });
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("Note?"));
    Engine::new(model.clone()).tools([look, pay, ask])
}

fn calls(id: &str, name: &str) -> Value {
    json!([{"tool_call": {"id": id, "name": name}}, {"finish": "tool_calls"}])
}

fn scripts() -> [Value; 4] {
    [calls("c0", "look"), calls("c1", "pay"), calls("c2", "ask"), says("Done.")]
}

async fn start(engine: &Engine, log: &MemoryLog) -> Result<Run> {
    engine.chat("Pay 17.").record(log).run_id("k").start_or_resume().await
}

async fn to_its_end(mut run: Run) -> Result<Run> {
    while let Some(waiting) = run.waiting() {
        run = match waiting {
            Waiting::Question(question) => {
                assert_eq!(question, "Note?");
                run.answer("thanks").await?
            }
            _ => run.decide(|_| Decision::Approve).await?,
        };
    }
    Ok(run)
}

#[tokio::test]
async fn a_run_that_was_cut_anywhere_is_continued_by_the_same_call() -> Result<()> {
    let (log, paid) = (MemoryLog::new(), Arc::default());
    let whole = to_its_end(start(&clerk(&Scripted::new(scripts())?, &paid), &log).await?).await?;
    assert_eq!(whole.result().text(), "Done.");
    let kinds = kinds(&log, "k").await;
    for cut in 1..=kinds.len() {
        let answered = kinds[..cut].iter().filter(|kind| *kind == "assistant_completed").count();
        let log = copy(&log, "k", cut as u64).await;
        let model = Scripted::new(scripts().into_iter().skip(answered))?;
        let paid = Arc::new(AtomicUsize::new(0));
        let run = to_its_end(start(&clerk(&model, &paid), &log).await?).await?;
        assert_eq!(run.result().thread, whole.result().thread, "cut at {cut}");
        let was_paid = kinds[..cut].iter().filter(|kind| *kind == "tool_completed").count() > 1;
        assert_eq!(paid.load(Ordering::Relaxed), usize::from(!was_paid), "cut at {cut}");
        assert_eq!(run.run_id(), "k");
    }
    Ok(())
}

#[tokio::test]
async fn an_observer_sees_the_whole_run_wherever_it_was_cut() -> Result<()> {
    let texts = || [calls("c0", "look"), says("Seen."), says("never")];
    let paid = Arc::default();
    let log = MemoryLog::new();
    drop(start(&clerk(&Scripted::new(texts())?, &paid), &log).await?);
    let kinds = kinds(&log, "k").await;
    for cut in 1..=kinds.len() {
        let answered = kinds[..cut].iter().filter(|kind| *kind == "assistant_completed").count();
        let log = copy(&log, "k", cut as u64).await;
        let engine = clerk(&Scripted::new(texts().into_iter().skip(answered))?, &paid);
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&seen);
        let chat = engine.chat("Pay 17.").record(&log).run_id("k").on_event(move |event| {
            let is_start = matches!(event, mynah::Event::MessageStarted { .. });
            counted.fetch_add(usize::from(is_start), Ordering::Relaxed);
        });
        assert_eq!(chat.start_or_resume().await?.result().text(), "Seen.", "cut at {cut}");
        assert_eq!(seen.load(Ordering::Relaxed), 2, "cut at {cut}");
    }
    Ok(())
}

#[tokio::test]
async fn a_changed_engine_continues_only_where_it_is_allowed() -> Result<()> {
    let (log, paid) = (MemoryLog::new(), Arc::default());
    let begun = clerk(&Scripted::new(scripts())?, &paid).system("Be brief.");
    let whole = to_its_end(start(&begun, &log).await?).await?;
    assert_eq!(whole.result().text(), "Done.");
    let kinds = kinds(&log, "k").await;
    for cut in 1..=kinds.len() {
        let answered = kinds[..cut].iter().filter(|kind| *kind == "assistant_completed").count();
        let log = copy(&log, "k", cut as u64).await;
        let model = Scripted::new(scripts().into_iter().skip(answered))?;
        let budget = Budget::new().max_turns(9);
        let paid = Arc::new(AtomicUsize::new(0));
        let changed = clerk(&model, &paid).system("Be kind.").budget(budget);
        let refused = start(&changed, &log).await.unwrap_err();
        assert_eq!(refused.reason(), "run_exists");
        let why = "began with another prompt, or other params or options";
        assert!(refused.to_string().contains(why), "{refused}");
        let has_ended = cut == kinds.len();
        let advice = if has_ended {
            "mynah::fork_run continues it"
        } else {
            "allow_changed_engine() continues"
        };
        assert!(refused.to_string().contains(advice), "{refused}");
        let chat = |said: &str| {
            changed.chat(said).record(&log).run_id("k").allow_changed_engine().start_or_resume()
        };
        assert_eq!(chat("Pay 18.").await.unwrap_err().reason(), "run_exists", "another input");
        for again in 0..2 {
            let run = to_its_end(chat("Pay 17.").await?).await?;
            assert_eq!(run.result().text(), "Done.", "cut at {cut}, {again}");
        }
        for request in model.requests() {
            assert_eq!(request.messages.get(0).unwrap().text(), "Be kind.", "cut at {cut}");
        }
        assert_eq!(mynah::replay_run(&log, "k").await?.status, "equal", "cut at {cut}");
        let was_paid = kinds[..cut].iter().filter(|kind| *kind == "tool_completed").count() > 1;
        assert_eq!(paid.load(Ordering::Relaxed), usize::from(!was_paid), "cut at {cut}");
        verify_run(&log, "k").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_changed_engine_is_refused_before_a_person_is_asked() -> Result<()> {
    let (log, paid) = (MemoryLog::new(), Arc::default());
    let model = Scripted::new([calls("c2", "ask"), says("Done.")])?;
    let run = start(&clerk(&model, &paid), &log).await?;
    assert!(matches!(run.waiting(), Some(Waiting::Question(_))));
    let changed = clerk(&model, &paid).tool(Tool::new("more", "", json!({})).manual());
    let refused = start(&changed, &log).await.unwrap_err();
    assert_eq!(refused.kind().type_name(), "replay_mismatch", "{refused}");
    assert!(refused.to_string().contains("ran with another engine: about.tools"), "{refused}");
    let chat = changed.chat("Pay 17.").record(&log).run_id("k").allow_changed_engine();
    let run = chat.start_or_resume().await?.answer("thanks").await?;
    assert_eq!(run.result().text(), "Done.");
    Ok(())
}

#[tokio::test]
async fn decisions_reject_and_give_results() -> Result<()> {
    let paid = Arc::default();
    for (decision, expected) in [
        (Decision::Reject("too much".into()), "too much"),
        (Decision::Result(json!("paid by hand")), "paid by hand"),
    ] {
        let model = Scripted::new([calls("c1", "pay"), says("Done.")])?;
        let run = start(&clerk(&model, &paid), &MemoryLog::new()).await?;
        assert!(matches!(run.waiting(), Some(Waiting::Approval(calls)) if calls[0].name == "pay"));
        let run = run.decide(|_| decision.clone()).await?;
        let told = run.result().thread.messages.iter().any(|m| m.text().contains(expected));
        assert!(told, "{expected}");
    }
    assert_eq!(paid.load(Ordering::Relaxed), 0);
    Ok(())
}

#[tokio::test]
async fn a_decision_sees_the_exact_arguments_after_a_restart_and_may_change_them() -> Result<()> {
    let pays = json!([
        {"tool_call": {"id": "c0", "name": "pay", "arguments": {"euros": 700}}},
        {"finish": "tool_calls"},
    ]);
    let model = Scripted::new([pays, says("Done.")])?;
    let engine = || {
        let pay = Tool::new("pay", "", json!({})).approval(Approval::Ask);
        Engine::new(model.clone()).tool(pay.handler(async |arguments, _| arguments))
    };
    let log = MemoryLog::new();
    let before = start(&engine(), &log).await?;
    // Another engine has nothing but the records.
    let run = start(&engine(), &log).await?;
    let waiting = run.waiting().expect("it waits");
    assert_eq!(waiting.calls()[0].raw_arguments, r#"{"euros":700}"#);
    assert_eq!(Some(waiting), before.waiting());
    let run = run
        .decide(|call| {
            assert_eq!(call.arguments, json!({"euros": 700}));
            Decision::ApproveWith(json!({"euros": 7}))
        })
        .await?;
    let result = run.result().thread.messages.get(2).unwrap().text().into_owned();
    assert!(result.starts_with(r#"{"euros":7}"#) && run.waiting().is_none(), "{result}");
    Ok(())
}

#[tokio::test]
async fn a_run_without_a_log_or_an_id_is_refused() -> Result<()> {
    let engine = Engine::new(Scripted::default());
    let log = MemoryLog::new();
    for chat in [engine.chat("hi").run_id("k"), engine.chat("hi").record(&log)] {
        let refused = chat.start_or_resume().await.err().map(|error| error.to_string());
        assert!(refused.is_some_and(|why| why.contains("record(&log) and run_id(id)")));
    }
    Ok(())
}

#[tokio::test]
async fn a_run_whose_provider_failed_continues_in_a_linked_run() -> Result<()> {
    let (log, paid) = (MemoryLog::new(), Arc::new(AtomicUsize::new(0)));
    let down = json!([{"preflight_error": "overloaded"}]);
    let model = Scripted::new([calls("c0", "look"), down.clone(), down, says("Done.")])?;
    let engine = clerk(&model, &paid).retry(RetryPolicy::never());
    for _ in 0..2 {
        let failed = start(&engine, &log).await?;
        let reason = failed.result().error().map(|error| error.reason().to_owned());
        assert_eq!((reason.as_deref(), failed.waiting()), (Some("overloaded"), None));
    }
    let run = start(&engine, &log).await?;
    assert_eq!((run.run_id().as_str(), &*run.result().text()), ("k~3", "Done."));
    assert_eq!(model.model_calls().len(), 4, "the tool turn was not repeated");

    // The earlier runs stay as they were, and every one of them verifies and replays.
    let runs = log.runs(RunFilter::new()).await?.runs;
    let status = |id: &str| runs.iter().find(|run| &*run.run_id == id).map(|run| run.status);
    assert_eq!(status("k"), Some(RunStatus::Failed));
    assert_eq!(status("k~2"), Some(RunStatus::Failed));
    assert_eq!(status("k~3"), Some(RunStatus::Completed));
    for id in ["k", "k~2", "k~3"] {
        verify_run(&log, id).await?;
        engine.replay(&log, id).await?;
    }
    // Again, and nothing is called.
    assert_eq!(start(&engine, &log).await?.result().text(), "Done.");
    assert_eq!(
        engine.resume(&log, "k").await.map_err(|e| e.reason().to_owned()),
        Err("sealed".into())
    );
    assert_eq!(model.model_calls().len(), 4);
    Ok(())
}

#[tokio::test]
async fn a_run_that_its_budget_ended_continues_with_a_larger_one() -> Result<()> {
    for by_its_id in [false, true] {
        let (log, paid) = (MemoryLog::new(), Arc::new(AtomicUsize::new(0)));
        let model = Scripted::new([calls("c0", "look"), says("Done.")])?;
        let engine = clerk(&model, &paid);
        let chat = |turns: u64| {
            let chat = engine.chat("Pay 17.").record(&log).run_id("k");
            chat.budget(Budget::new().max_turns(turns))
        };
        assert_eq!(chat(1).await?.halted_reason.as_str(), "budget_exceeded");
        let refused = engine.resume(&log, "k").await.expect_err("the budget is spent");
        assert_eq!(refused.reason(), "sealed");
        let done = match by_its_id {
            true => chat(5).allow_changed_engine().start_or_resume().await?.into_result(),
            false => engine.resume(&log, "k").budget(Budget::new().max_turns(5)).await?,
        };
        assert_eq!((done.run_id.as_deref(), &*done.text()), (Some("k~2"), "Done."));
        verify_run(&log, "k").await?;
        engine.replay(&log, "k~2").await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_to_an_earlier_question_is_not_taken_for_the_next() -> Result<()> {
    let scripts = [calls("c0", "ask"), calls("c1", "ask"), says("Done.")];
    let (log, model) = (MemoryLog::new(), Scripted::new(scripts)?);
    let engine = clerk(&model, &Arc::default());
    let (first, second) = (start(&engine, &log).await?, start(&engine, &log).await?);
    let asks_again = first.answer("red").await?;
    let late = second.answer("yes, red").await.expect_err("a stale answer");
    assert_eq!((late.reason(), late.run_id()), ("session_moved", Some("k".into())), "{late}");
    assert_eq!(asks_again.answer("blue").await?.result().text(), "Done.");
    Ok(())
}

#[tokio::test]
async fn an_approval_from_before_a_crash_does_not_run_the_call_again() -> Result<()> {
    let (log, paid) = (MemoryLog::new(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&paid);
    let pay = Tool::new("pay", "", json!({})).manual().handler(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<Value>()
    });
    let engine = Engine::new(Scripted::new([calls("c0", "pay"), says("Done.")])?).tool(pay);
    let (first, second) = (start(&engine, &log).await?, start(&engine, &log).await?);
    let mut dies = Box::pin(first.decide(|_| Decision::Approve));
    while paid.load(Ordering::Relaxed) == 0 {
        assert!(futures_util::poll!(&mut dies).is_pending());
        tokio::task::yield_now().await;
    }
    drop(dies);
    let uncertain = start(&engine, &log).await?;
    assert!(matches!(uncertain.waiting(), Some(Waiting::Uncertain(_))));
    assert!(matches!(second.waiting(), Some(Waiting::Approval(_))));
    let late = second.decide(|_| Decision::Approve).await.expect_err("a stale approval");
    assert_eq!(late.reason(), "session_moved", "{late}");
    let done = uncertain.decide(|_| Decision::Result(json!("paid"))).await?;
    assert_eq!((&*done.result().text(), paid.load(Ordering::Relaxed)), ("Done.", 1));
    Ok(())
}
