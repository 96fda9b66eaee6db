//! Engines as tools of other engines.

use mynah::{
    ErrorPolicy, Options, Waiting,
    log::verify_run,
    prelude::*,
    testing::{Script, Scripted, crash_everywhere},
};
use serde_json::{Value, json};

fn says(text: &str) -> Script {
    Script::new().text(text).usage(10, 5).stop()
}

fn calls(name: &str, arguments: Value) -> Script {
    Script::new().tool_call("c0", name, arguments).usage(10, 5).call_tools()
}

/// An editor that asks a researcher once.
fn editor(research: Engine) -> Engine {
    let model =
        Scripted::play([calls("research", json!({"task": "Can they talk?"})), says("Yes.")]);
    Engine::new(model).tool(research.as_tool("research", "Looks facts up."))
}

fn researcher(scripts: impl IntoIterator<Item = Script>) -> Engine {
    Engine::new(Scripted::play(scripts))
}

#[tokio::test]
async fn the_run_of_an_agent_is_a_chain_of_its_own_that_the_parent_links() {
    let log = MemoryLog::new();
    let chat = editor(researcher([says("They can.")])).chat("Mynahs?").record(&log).run_id("p");
    let result = chat.await.unwrap();
    assert_eq!(result.text(), "Yes.");
    let runs = log.runs(Default::default()).await.unwrap().runs;
    let child = runs.iter().find(|run| run.run_id.starts_with("p+research-")).unwrap();
    let records = log.read("p", 1, 100).await.unwrap();
    let links: Vec<String> = records
        .iter()
        .filter(|record| record.kind().name() == "side_effect")
        .map(|record| json!(record.fact().unwrap().unwrap()).to_string())
        .collect();
    assert_eq!(links.len(), 1);
    assert!(links[0].contains(&*child.run_id), "{links:?}");
    for run in ["p", &*child.run_id] {
        assert!(verify_run(&log, run).await.is_ok());
    }
}

#[tokio::test]
async fn a_replay_of_the_parent_calls_no_agent() {
    let log = MemoryLog::new();
    let engine = editor(researcher([says("They can.")]));
    engine.chat("Mynahs?").record(&log).run_id("p").await.unwrap();
    let silent = editor(researcher([]));
    assert_eq!(silent.replay(&log, "p").await.unwrap().status, "equal");
    assert_eq!(silent.replay(&log, "p").rerun_tools().await.unwrap().status, "equal");
}

#[tokio::test]
async fn a_question_of_an_agent_is_answered_at_the_parent() {
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("Which kind?"));
    let research =
        || researcher([calls("ask", json!({})), says("Hill mynahs can.")]).tool(ask.clone());
    let log = MemoryLog::new();
    let engine = editor(research());
    let run = engine.chat("Mynahs?").record(&log).run_id("p").start_or_resume().await.unwrap();
    assert_eq!(run.waiting(), Some(Waiting::Question("Which kind?".to_owned())));
    let run = run.answer("The hill mynah").await.unwrap();
    assert_eq!((run.waiting(), run.result().text().as_ref()), (None, "Yes."));
    let runs = log.runs(Default::default()).await.unwrap().runs;
    let child = runs.iter().find(|run| run.run_id.starts_with("p+")).unwrap();
    let child = log.read(&child.run_id, 1, 100).await.unwrap();
    let heard = child
        .iter()
        .any(|record| json!(record.fact().unwrap()).to_string().contains("The hill mynah"));
    assert!(heard, "the answer is in the agent's run");
}

#[tokio::test]
async fn an_approval_of_an_agent_is_given_at_the_parent() {
    for (answer, text) in [("Yes.", "sent"), ("Not today", "a person rejected the call: Not today")]
    {
        let send = Tool::new("send", "", json!({})).manual().handler(async |_, _| "sent");
        let model = Scripted::play([calls("send", json!({"to": "x"})), says("Done.")]);
        let log = MemoryLog::new();
        let engine = editor(Engine::new(model.clone()).tool(send));
        let run = engine.chat("Mynahs?").record(&log).run_id("p").start_or_resume().await.unwrap();
        let Some(Waiting::Question(question)) = run.waiting() else {
            panic!("{:?}", run.waiting())
        };
        assert_eq!(question, "May send({\"to\":\"x\"}) run? Answer yes, or why not.");
        let run = run.answer(answer).await.unwrap();
        assert_eq!(run.result().text(), "Yes.");
        let told = model.requests()[1].messages.last().unwrap().text().into_owned();
        assert!(told.contains(text), "{told}");
    }
}

#[tokio::test]
async fn a_crash_anywhere_resumes_both_and_repeats_nothing() {
    let look = Tool::new("look", "", json!({})).idempotent(1).handler(async |_, _| "a bird");
    let research = || researcher([calls("look", json!({})), says("They can.")]).tool(look.clone());
    let report = crash_everywhere(|| editor(research()), "Mynahs?").await;
    assert!(report.crashed > 10);
}

#[tokio::test]
async fn what_an_agent_spends_counts_in_the_budget_of_its_parent() {
    let log = MemoryLog::new();
    // Two answers of the parent and one of the agent, at 5 tokens each.
    for (tokens, reason) in [(15, HaltReason::Completed), (9, HaltReason::BudgetExceeded)] {
        let budget = Budget::new().max_output_tokens(tokens);
        let engine = editor(researcher([says("They can.")]));
        let result = engine.chat("x").budget(budget).record(&log).await.unwrap();
        assert_eq!(result.halted_reason, reason, "{tokens}");
    }
}

#[tokio::test]
async fn an_agent_gets_what_is_left_of_the_budget() {
    let log = MemoryLog::new();
    let engine = editor(researcher([calls("none", json!({})), says("They can.")]));
    let chat = engine.chat("x").budget(Budget::new().max_turns(2)).record(&log).run_id("p");
    let result = chat.on_tool_error(ErrorPolicy::Continue).await.unwrap();
    let runs = log.runs(Default::default()).await.unwrap().runs;
    let child = runs.iter().find(|run| run.run_id.starts_with("p+")).unwrap();
    assert_eq!(child.totals.turns, 1, "{:?}", result.halted_reason);
}

#[tokio::test]
async fn agents_are_nested_four_deep_at_most() {
    for (depth, expected) in [(4, HaltReason::Completed), (5, HaltReason::ToolError)] {
        let mut engine = researcher([says("At the bottom.")]);
        for _ in 0..depth {
            let model = Scripted::play([calls("research", json!({"task": "go"})), says("up")]);
            let defaults = Options::new().on_tool_error(ErrorPolicy::Halt);
            let tool = engine.as_tool("research", "Looks facts up.");
            engine = Engine::new(model).tool(tool).defaults(defaults);
        }
        let result = engine.chat("go").on_tool_error(ErrorPolicy::Halt).await.unwrap();
        assert_eq!(result.halted_reason, expected, "{depth}");
    }
}
