//! `ContextPolicy`: requests are shortened, results and records are not.

use mynah::{
    ContextPolicy, Options, ReplayStatus, Role,
    prelude::*,
    testing::{Script, Scripted, crash_everywhere},
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
    let kinds: Vec<&str> = records.iter().map(|record| record.kind().name()).collect();
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
