//! `ContextPolicy`: requests are shortened, results and records are not.

use std::{
    future::{Future, IntoFuture as _, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use mynah::{
    AdapterReason, ContextPolicy, Options, ReplayStatus, Role,
    prelude::*,
    testing::{Entry, Script, Scripted, crash_everywhere},
};
use serde_json::{Value, json};

/// A model that reads five long pages and then answers.
fn model() -> Scripted {
    let read = |page: u32| {
        Script::new().tool_call(format!("c{page}"), "read", json!({"page": page})).call_tools()
    };
    Scripted::play((1..=5).map(read).chain([Script::new().text("Done.").stop()]))
}

fn engine(model: &Scripted) -> Engine {
    let page =
        async |page: Value, _: ToolContext| json!({"page": page, "text": "word ".repeat(100)});
    let read =
        Tool::new("read", "Reads a page.", json!({"type": "object"})).idempotent(1).handler(page);
    Engine::new(model.clone()).tool(read).system("Be brief.")
}

fn policy() -> ContextPolicy {
    ContextPolicy::new(500).keep_turns(1)
}

#[tokio::test]
async fn a_tool_loop_is_shortened_in_the_middle_and_stays_whole_in_the_result() {
    let model = model();
    let chat = engine(&model).chat("Read all.").context_policy(policy());
    let result = chat.await.unwrap();
    assert_eq!(result.text(), "Done.");
    // The system prompt, the question, five answers with their results, and the last answer.
    assert_eq!(result.thread.messages.len(), 13);
    assert!(
        result.thread.messages.iter().all(|message| !message.text().contains("removed to save"))
    );
    for request in model.requests() {
        let users = request.messages.iter().filter(|message| message.role() == Role::User);
        assert_eq!(
            users.map(|message| message.text().into_owned()).collect::<Vec<_>>(),
            ["Read all."]
        );
        assert!(request.messages.unanswered().is_empty());
        assert!(request.messages.size() < 1_600, "{}", request.messages.size());
    }
    let last = model.requests().pop().unwrap();
    let results = last.messages.iter().filter(|message| message.role() == Role::Tool);
    let whole = results.filter(|message| message.size() > 400).count();
    assert_eq!(whole, 1, "only the newest result is sent whole");
}

#[tokio::test]
async fn what_was_left_out_is_recorded_and_a_replay_makes_the_same_requests() {
    let (log, model) = (MemoryLog::new(), model());
    let result =
        engine(&model).chat("Read all.").context_policy(policy()).record(&log).await.unwrap();
    let run = result.run_id.unwrap();
    let records = log.read(&run, 1, 1_000).await.unwrap();
    let kinds: Vec<&str> = records.iter().map(|record| record.kind().as_str()).collect();
    assert!(kinds.contains(&"context_truncated"), "{kinds:?}");
    let replayed = engine(&Scripted::default()).replay(&log, run).await.unwrap();
    assert_eq!(replayed.status, ReplayStatus::Equal, "{replayed:?}");
}

#[tokio::test]
async fn another_policy_is_a_difference_in_a_replay() {
    let (log, model) = (MemoryLog::new(), model());
    let result =
        engine(&model).chat("Read all.").context_policy(policy()).record(&log).await.unwrap();
    let other = engine(&Scripted::default())
        .defaults(Options::new().context_policy(ContextPolicy::new(100_000)));
    let error = other.replay(&log, result.run_id.unwrap()).await.unwrap_err();
    assert!(error.mismatch().is_some(), "{error}");
}

#[tokio::test]
async fn a_run_that_crashes_anywhere_leaves_out_the_same() {
    let options = Options::new().context_policy(policy());
    let report = crash_everywhere(|| engine(&model()), "Read all.").options(options).await;
    assert!(report.records > 15);
}

#[tokio::test]
async fn the_estimate_follows_what_the_provider_reports() {
    // 600 characters are 200 tokens as estimated; the provider counts three times as many.
    let calls = Script::new().tool_call("c1", "read", json!({})).usage(600, 1).call_tools();
    let model = Scripted::play([calls, Script::new().text("Two.").stop()]);
    let thread = Thread::from("x".repeat(300)).with_assistant("Yes.").with_user("y".repeat(300));
    let quick = Tool::new("read", "", json!({})).handler(async |_, _| json!("ok"));
    let chat = Engine::new(model.clone()).tool(quick).chat(thread);
    chat.context_policy(ContextPolicy::new(500).keep_turns(1)).await.unwrap();
    let sizes: Vec<usize> = model.requests().iter().map(|request| request.messages.len()).collect();
    assert_eq!(
        sizes,
        [3, 3],
        "the first question and its answer are left out of the second request"
    );
}

/// A model that reads five long pages and answers, and summarises what is left out with these words.
fn summarising() -> Scripted {
    let read = |page: u32| {
        Script::new()
            .tool_call(format!("c{page}"), "read", json!({"page": page}))
            .usage(9, 2)
            .call_tools()
    };
    let summary = |text: &str| Script::new().text(text).usage(7, 3).stop();
    Scripted::play([
        read(1),
        read(2),
        read(3),
        summary("Pages one and two are about birds."),
        read(4),
        summary("Pages one to three are about birds."),
        Script::new().text("Done.").usage(9, 2).stop(),
    ])
}

fn summarise() -> ContextPolicy {
    ContextPolicy::new(400).keep_turns(1).clear_tool_results(false).summarise(true)
}

#[tokio::test]
async fn what_is_left_out_is_summarised_in_the_middle_of_a_tool_loop() {
    let (log, model) = (MemoryLog::new(), summarising());
    let chat = engine(&model).chat("Read all.").context_policy(summarise());
    let result = chat.record(&log).run_id("r").await.unwrap();
    assert_eq!(result.text(), "Done.");
    assert_eq!(result.steps.len(), 5, "a summary is no step");
    assert_eq!(result.thread.messages.len(), 11, "nor is it part of the thread");
    let requests = model.requests();
    let asked = requests[3].messages.last().unwrap().text().into_owned();
    assert!(requests[3].tools.is_empty() && asked.contains("word word"), "{asked}");
    assert!(asked.contains("[calls read {\"page\":1}]"), "{asked}");
    // The next summary is made of the one before and of what is new.
    let again = requests[5].messages.last().unwrap().text().into_owned();
    assert!(again.contains("one and two are about birds"), "{again}");
    assert!(!again.contains("{\"page\":1}"), "{again}");
    let last = requests.last().unwrap();
    let texts: Vec<String> = last.messages.iter().map(|m| m.text().into_owned()).collect();
    assert_eq!(texts[0], "Be brief.");
    assert!(texts[1].ends_with("Pages one to three are about birds."), "{texts:?}");
    assert_eq!(texts[2], "Read all.");
    assert!(last.messages.unanswered().is_empty());

    let run = log.run("r").await.unwrap().unwrap();
    assert_eq!((run.totals.input_tokens, run.totals.output_tokens), (5 * 9 + 2 * 7, 5 * 2 + 2 * 3));
    let replayed = engine(&Scripted::default()).replay(&log, "r").await.unwrap();
    assert_eq!(replayed.status, ReplayStatus::Equal);
    assert_eq!(mynah::replay_run(&log, "r").await.unwrap().status, ReplayStatus::Equal);
}

#[tokio::test]
async fn a_run_that_crashes_anywhere_does_not_repeat_a_summary_that_is_recorded() {
    let options = Options::new().context_policy(summarise());
    let report = crash_everywhere(|| engine(&summarising()), "Read all.").options(options).await;
    assert!(report.crashed > 20, "{report:?}");
}

#[tokio::test]
async fn a_summary_counts_in_the_budget_and_is_not_made_if_that_has_no_room() {
    // Three answers, a summary, and the answer after it.
    for (turns, expected) in [(5, 4), (4, 4), (3, 3)] {
        let model = summarising();
        let chat = engine(&model).chat("Read all.").context_policy(summarise());
        let result = chat.budget(Budget::new().max_turns(turns)).await.unwrap();
        assert_eq!(result.halted_reason, HaltReason::BudgetExceeded);
        let answers = result.steps.len() + usize::from(turns > 3);
        assert_eq!(answers, model.requests().len(), "{turns}");
        assert!(answers >= expected, "{turns}");
    }
}

#[tokio::test]
async fn a_summary_that_fails_is_left_out_and_the_run_continues() {
    let read = |page: u32| {
        Script::new().tool_call(format!("c{page}"), "read", json!({"page": page})).call_tools()
    };
    let broken = Entry::Error(Error::adapter(AdapterReason::NetworkError));
    let broken = Script::new().text("Half a").with(broken);
    let done = Script::new().text("Done.").stop();
    let (log, model) =
        (MemoryLog::new(), Scripted::play([read(1), read(2), read(3), broken, done]));
    let chat = engine(&model).chat("Read all.").context_policy(summarise()).record(&log);
    let result = chat.run_id("r").await.unwrap();
    assert_eq!(result.text(), "Done.");
    let texts = model.requests()[4].messages.iter().any(|m| m.text().contains("Half a"));
    assert!(!texts);
    assert_eq!(engine(&model).replay(&log, "r").await.unwrap().status, ReplayStatus::Equal);
}

#[tokio::test]
async fn a_summary_that_fails_counts_in_the_budget() {
    for (turns, reason) in [(5, HaltReason::Completed), (4, HaltReason::BudgetExceeded)] {
        let read = |page: u32| {
            Script::new().tool_call(format!("c{page}"), "read", json!({"page": page})).call_tools()
        };
        let broken = Script::new().text("Half a").usage(7, 3);
        let broken = broken.with(Entry::Error(Error::adapter(AdapterReason::NetworkError)));
        let done = Script::new().text("Done.").stop();
        let model = Scripted::play([read(1), read(2), read(3), broken, done]);
        let log = MemoryLog::new();
        let chat = engine(&model).chat("Read all.").context_policy(summarise()).record(&log);
        let result = chat.budget(Budget::new().max_turns(turns)).run_id("r").await.unwrap();
        assert_eq!(result.halted_reason, reason, "{turns}");
        let totals = log.run("r").await.unwrap().unwrap().totals;
        assert_eq!((totals.input_tokens, totals.output_tokens), (7, 3), "{turns}");
        assert_eq!(mynah::replay_run(&log, "r").await.unwrap().status, ReplayStatus::Equal);
    }
}

/// A model that reads three pages, and is then asked for a summary that does not come.
fn silent() -> Scripted {
    let read = |page: u32| {
        let call = Script::new().tool_call(format!("c{page}"), "read", json!({"page": page}));
        call.usage(9, 2).call_tools()
    };
    let never = Script::new().with(Entry::Delay(Duration::from_secs(3600)));
    Scripted::play([read(1), read(2), read(3), never])
}

/// Polls a call until the model was asked for the summary.
async fn until_asked<F: Future + Unpin>(call: &mut F, model: &Scripted) {
    poll_fn(|cx| {
        assert!(Pin::new(&mut *call).poll(cx).is_pending());
        if model.calls() < 4 { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

/// The estimates of the model calls that were lost.
async fn lost(log: &MemoryLog) -> Vec<u64> {
    let records = log.read("r", 1, 1_000).await.unwrap();
    let facts = records.iter().map(|record| json!(record.fact().unwrap()));
    let lost = facts.filter(|fact| fact["kind"] == "turn_lost");
    lost.map(|fact| fact["input_tokens"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_summary_that_is_lost_with_its_process_counts_in_budgets_and_totals() {
    // Three answers and two summaries; the fourth answer would be the sixth call.
    for (turns, reason) in [(8, HaltReason::Completed), (5, HaltReason::BudgetExceeded)] {
        let (log, model) = (MemoryLog::new(), silent());
        let budget = Budget::new().max_turns(turns);
        let chat = engine(&model).chat("Read all.").context_policy(summarise()).budget(budget);
        let mut call = chat.record(&log).run_id("r").into_future();
        until_asked(&mut call, &model).await;
        drop(call);
        let summary = |text: &str| Script::new().text(text).usage(7, 3).stop();
        let read = Script::new().tool_call("c4", "read", json!({"page": 4}));
        let rest = Scripted::play([
            summary("Pages one and two are about birds."),
            read.usage(9, 2).call_tools(),
            summary("Pages one to three are about birds."),
            Script::new().text("Done.").usage(9, 2).stop(),
        ]);
        let result = engine(&rest).resume(&log, "r").await.unwrap();
        assert_eq!(result.halted_reason, reason, "{turns}");
        let lost = lost(&log).await;
        assert!(lost.len() == 1 && (100..=400).contains(&lost[0]), "{lost:?}");
        if reason == HaltReason::Completed {
            let totals = log.run("r").await.unwrap().unwrap().totals;
            assert_eq!(totals.input_tokens, 5 * 9 + 2 * 7 + lost[0]);
        }
        assert_eq!(mynah::replay_run(&log, "r").await.unwrap().status, ReplayStatus::Equal);
    }
}

#[tokio::test]
async fn a_summary_that_is_cut_off_counts_and_the_run_replays() {
    let (log, model, cancel) = (MemoryLog::new(), silent(), CancelHandle::new());
    let chat = engine(&model).chat("Read all.").context_policy(summarise());
    let mut call = chat.record(&log).run_id("r").cancel_handle(&cancel).into_future();
    until_asked(&mut call, &model).await;
    cancel.cancel();
    assert_eq!(call.await.unwrap().halted_reason, HaltReason::Cancelled);
    assert_eq!(lost(&log).await.len(), 1);
    assert_eq!(mynah::replay_run(&log, "r").await.unwrap().status, ReplayStatus::Equal);
}

/// A conversation of many short messages.
fn chatter() -> Thread {
    let mut thread = Thread::new();
    for n in 0..400 {
        thread = thread.with_user(format!("Fact {n} of all.")).with_assistant("Noted.");
    }
    thread.with_user("How many?")
}

#[tokio::test]
async fn the_request_for_a_summary_fits_the_window_itself() {
    let summary = Script::new().text("Many facts.").stop();
    let model = Scripted::play([summary, Script::new().text("400.").stop()]);
    let policy = ContextPolicy::new(600).keep_turns(2).summarise(true);
    let chat = Engine::new(model.clone()).chat(chatter()).context_policy(policy);
    assert_eq!(chat.await.unwrap().text(), "400.");
    let request = &model.requests()[0];
    assert!(request.messages.size() / 3 <= 600, "{}", request.messages.size());
    let asked = request.messages.last().unwrap().text().into_owned();
    assert!(!asked.contains("Fact 0 of all.") && asked.contains("Fact 3"), "{asked}");
}

#[tokio::test]
async fn a_window_that_has_no_room_for_that_request_drops() {
    let model = Scripted::play([Script::new().text("400.").stop()]);
    let policy = ContextPolicy::new(200).keep_turns(2).summarise(true);
    let chat = Engine::new(model.clone()).chat(chatter()).context_policy(policy);
    assert_eq!(chat.await.unwrap().text(), "400.");
    assert_eq!(model.calls(), 1);
}

#[tokio::test]
async fn the_model_reads_what_is_left_of_its_budget_if_that_is_wanted() {
    let note = async |wanted: bool| {
        let model = model();
        let log = MemoryLog::new();
        let budget =
            Budget::new().max_turns(9).max_tool_calls(20).max_usd(1.0).allow_unknown_price();
        let chat = engine(&model).chat("Read all.").budget(budget).budget_note(wanted);
        let result = chat.record(&log).run_id("r").await.unwrap();
        assert!(
            result.thread.messages.iter().all(|message| !message.text().contains("Budget left"))
        );
        assert_eq!(mynah::replay_run(&log, "r").await.unwrap().status, ReplayStatus::Equal);
        let last = |request: &mynah::Request| request.messages.last().unwrap().text().into_owned();
        model.requests().iter().map(last).collect::<Vec<_>>()
    };
    let notes = note(true).await;
    assert_eq!(notes[0], "[Budget left after this answer: 8 model calls, 20 tool calls, $1.0000.]");
    assert_eq!(notes[5], "[Budget left after this answer: 3 model calls, 15 tool calls, $1.0000.]");
    assert!(note(false).await.iter().all(|last| !last.contains("Budget left")));
}

#[tokio::test]
async fn a_later_turn_of_a_session_builds_on_the_summary_before() {
    let (log, model) = (MemoryLog::new(), Scripted::says((0..40).map(|n| format!("Answer {n}."))));
    let policy = ContextPolicy::new(1_000).keep_turns(1).summarise(true);
    let engine = Engine::new(model.clone()).context_policy(policy);
    let (mut session, mut runs, mut summaries) = (Session::default().with_id("s"), vec![], vec![]);
    for turn in 0..12 {
        let before = model.requests().len();
        let said = format!("Message {turn}: {}", "rain ".repeat(100));
        let (next, result) = engine.reply(&session, said).record(&log).await.unwrap();
        // A process that starts anew has the summary too.
        session = match turn % 2 {
            0 => next,
            _ => mynah::restore_session(&log, "s").await.unwrap().session,
        };
        runs.push(result.run_id.unwrap());
        let text = |request: &mynah::Request| {
            request.messages.iter().map(|message| message.text().into_owned()).collect::<String>()
        };
        let asked: Vec<String> = model.requests()[before..].iter().map(text).collect();
        if asked.len() == 2 {
            summaries.push((turn, asked[0].clone()));
        }
    }
    let turns: Vec<i32> = summaries.iter().map(|(turn, _)| *turn).collect();
    assert!(turns.len() >= 2, "{turns:?}");
    assert!(turns.windows(2).all(|two| two[1] > two[0] + 1), "made again at once: {turns:?}");
    assert!(summaries[0].1.contains("Message 0:"), "{}", summaries[0].1);
    let second = &summaries[1].1;
    assert!(second.contains("Summary of the earlier conversation"), "{second}");
    assert!(!second.contains("Message 0:"), "{second}");
    for run in runs {
        let replayed = engine.replay(&log, &run).await.unwrap();
        assert_eq!(replayed.status, ReplayStatus::Equal, "{replayed:?}");
        assert!(mynah::replay_run(&log, &run).await.is_ok());
    }
}
