//! Engines as tools of other engines.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::StreamExt as _;
use mynah::{
    AdapterReason, Approval, CancelHandle, Event, OnToolError, OnUncertain, Options, Role, Waiting,
    cancel_run,
    log::{RunStatus, verify_run},
    prelude::*,
    testing::{Entry, Script, Scripted, crash_everywhere},
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
        .filter(|record| record.kind().as_str() == "side_effect")
        .map(|record| json!(record.fact().unwrap().unwrap()).to_string())
        .collect();
    assert_eq!(links.len(), 2, "when the run starts, and when it ended");
    assert!(links.iter().all(|link| link.contains(&*child.run_id)), "{links:?}");
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
        assert!(question.starts_with("May this call run?\n1. send {\"to\":\"x\"}\n"), "{question}");
        let run = run.answer(answer).await.unwrap();
        assert_eq!(run.result().text(), "Yes.");
        let told = model.requests()[1].messages.last().unwrap().text().into_owned();
        assert!(told.contains(text), "{told}");
    }
}

/// An agent that sends two mails and answers, and its model.
fn mailer() -> (Engine, Scripted) {
    let send = Tool::new("send", "", json!({})).approval(Approval::Ask);
    let send = send.handler(async |arguments: Value, _| format!("sent to {}", arguments["to"]));
    let two = Script::new().tool_call("m0", "send", json!({"to": "ada"}));
    let two = two.tool_call("m1", "send", json!({"to": "bob"})).usage(10, 5).call_tools();
    let model = Scripted::play([two, says("Done.")]);
    (Engine::new(model.clone()).tool(send), model)
}

#[tokio::test]
async fn each_call_of_an_agent_is_decided_on_its_own() {
    let results = async |answer: &str| {
        let (log, (agent, model)) = (MemoryLog::new(), mailer());
        let engine = editor(agent);
        let run = engine.chat("Write").record(&log).run_id("p").start_or_resume().await.unwrap();
        let Some(Waiting::Question(question)) = run.waiting() else {
            panic!("{:?}", run.waiting())
        };
        assert!(question.contains("\n1. send {\"to\":\"ada\"}\n2. send {\"to\":\"bob\"}\n"));
        let calls = run.result().metadata["ask_user_opts"]["calls"].clone();
        assert_eq!(calls[1]["arguments"], json!({"to": "bob"}), "programs get the calls too");
        // An answer that leaves a call open decides nothing.
        let run = run.answer("1 yes").await.unwrap();
        let Some(Waiting::Question(again)) = run.waiting() else { panic!("{:?}", run.waiting()) };
        assert_eq!(again, format!("Call 2 has no decision. {question}"));
        let run = run.answer(answer).await.unwrap();
        assert_eq!((run.waiting(), run.result().text().as_ref()), (None, "Yes."));
        assert_eq!(engine.replay(&log, "p").await.unwrap().status, "equal");
        let last = &model.requests()[1].messages;
        let texts = last.iter().filter(|message| message.role() == mynah::Role::Tool);
        texts.map(|message| message.text().into_owned()).collect::<Vec<_>>()
    };
    let told = results("1 yes; 2 no, he left").await;
    assert_eq!(told[0], "sent to \"ada\"");
    assert!(told[1].contains("a person rejected the call: he left"), "{told:?}");
    let told = results(r#"{"m0": false, "m1": {"arguments": {"to": "eve"}}}"#).await;
    assert!(told[0].contains("a person rejected the call"), "{told:?}");
    assert!(told[1].starts_with("sent to \"eve\""), "{told:?}");
}

#[tokio::test]
async fn the_calls_of_an_agent_two_levels_below_are_decided_at_the_top() {
    let (log, (agent, _)) = (MemoryLog::new(), mailer());
    let middle = Scripted::play([calls("mail", json!({"task": "write"})), says("Written.")]);
    let engine = editor(Engine::new(middle).tool(agent.as_tool("mail", "Writes mails.")));
    let run = engine.chat("Write").record(&log).run_id("p").start_or_resume().await.unwrap();
    assert_eq!(run.result().metadata["ask_user_opts"]["calls"][0]["id"], "m0");
    assert_eq!(run.result().metadata["ask_user_opts"]["for"], "approval");
    let run = run.answer(r#"{"m0": true, "m1": true}"#).await.unwrap();
    assert_eq!((run.waiting(), run.result().text().as_ref()), (None, "Yes."));
}

#[tokio::test]
async fn what_an_agent_does_is_progress_of_the_call_and_is_not_recorded() {
    // Progress is emitted while the run waits.
    let look = Tool::new("look", "", json!({})).handler(async |_, _| {
        tokio::time::sleep(Duration::from_millis(5)).await;
        "a bird"
    });
    let slow = Script::new().text("Hill mynahs imitate human voices well.");
    let slow = slow.with(Entry::Delay(Duration::from_millis(5))).usage(10, 5).stop();
    let agent = researcher([calls("look", json!({"at": "page 3"})), slow]);
    let middle = Scripted::play([calls("inner", json!({"task": "go"})), says("They can.")]);
    let middle = Engine::new(middle).tool(agent.tool(look).as_tool("inner", "Looks."));
    let log = MemoryLog::new();
    let mut stream = editor(middle).chat("Mynahs?").record(&log).run_id("p").stream();
    let mut shown = Vec::new();
    while let Some(event) = stream.next().await {
        if let Event::ToolExecutionProgress { name, message, .. } = event.unwrap() {
            assert_eq!(name, "research");
            shown.push(message.unwrap());
        }
    }
    for doing in
        ["inner: look {\"at\":\"page 3\"}", "inner: Hill mynahs imitate human voices well."]
    {
        assert!(shown.iter().any(|shown| shown == doing), "{shown:?}");
    }
    for run in log.runs(Default::default()).await.unwrap().runs {
        for record in log.read(&run.run_id, 1, 100).await.unwrap() {
            assert!(!json!(record.fact().unwrap()).to_string().contains("inner: "));
        }
    }
}

#[tokio::test]
async fn a_crash_anywhere_resumes_both_and_repeats_nothing() {
    let look = Tool::new("look", "", json!({})).idempotent(1).handler(async |_, _| "a bird");
    let research = || researcher([calls("look", json!({})), says("They can.")]).tool(look.clone());
    let report = crash_everywhere(|| editor(research()), "Mynahs?").await;
    // Twice at each record, those of the agent's run included.
    assert!(report.crashed as u64 > 2 * report.records, "{report:?}");
}

#[tokio::test]
async fn what_an_agent_spends_counts_in_the_budget_of_its_parent() {
    let log = MemoryLog::new();
    // Two answers of the parent and one of the agent, at 5 tokens each.
    for (tokens, reason) in [(15, HaltReason::Completed), (14, HaltReason::BudgetExceeded)] {
        let budget = Budget::new().max_output_tokens(tokens);
        let engine = editor(researcher([says("They can.")]));
        let result = engine.chat("x").budget(budget).record(&log).await.unwrap();
        assert_eq!(result.halted_reason, reason, "{tokens}");
        let replayed = mynah::replay_run(&log, result.run_id.unwrap()).await.unwrap();
        assert_eq!(replayed.status, "equal", "{tokens}");
    }
}

#[tokio::test]
async fn what_an_agent_of_an_agent_spends_counts_at_the_top() {
    // Two answers of each of the upper levels and one at the bottom, at 5 tokens each.
    for (tokens, reason) in [(25, HaltReason::Completed), (24, HaltReason::BudgetExceeded)] {
        let log = MemoryLog::new();
        let middle = Scripted::play([calls("inner", json!({"task": "go"})), says("They can.")]);
        let inner = researcher([says("They can.")]).as_tool("inner", "Looks facts up.");
        let engine = editor(Engine::new(middle).tool(inner));
        let budget = Budget::new().max_output_tokens(tokens);
        let result = engine.chat("x").budget(budget).record(&log).run_id("p").await.unwrap();
        assert_eq!(result.halted_reason, reason, "{tokens}");
        assert_eq!(mynah::replay_run(&log, "p").await.unwrap().status, "equal", "{tokens}");
    }
}

#[tokio::test]
async fn an_agent_gets_what_is_left_of_the_budget() {
    let log = MemoryLog::new();
    let engine = editor(researcher([calls("none", json!({})), says("They can.")]));
    let chat = engine.chat("x").budget(Budget::new().max_turns(2)).record(&log).run_id("p");
    let result = chat.on_tool_error(OnToolError::Continue).await.unwrap();
    let runs = log.runs(Default::default()).await.unwrap().runs;
    let child = runs.iter().find(|run| run.run_id.starts_with("p+")).unwrap();
    assert_eq!(child.totals.turns, 1, "{:?}", result.halted_reason);
}

#[tokio::test]
async fn an_unfinished_run_of_an_agent_continues_with_the_agent_as_it_is_now() {
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("Which kind?"));
    let research = |prompt: &str| {
        let agent = researcher([calls("ask", json!({})), says("Hill mynahs can.")]);
        agent.tool(ask.clone()).system(prompt)
    };
    let log = MemoryLog::new();
    let engine = editor(research("Be brief."));
    engine.chat("Mynahs?").record(&log).run_id("p").await.unwrap();
    let engine = Engine::new(Scripted::play([says("Yes.")]));
    let agent = researcher([says("Hill mynahs can.")]).tool(ask.clone()).system("Be thorough.");
    let engine = engine.tool(agent.as_tool("research", "Looks facts up."));
    let done = engine.resume(&log, "p").answer("The hill mynah").await.unwrap();
    assert_eq!(done.text(), "Yes.");
    let result = done.thread.messages.iter().find(|message| message.role() == Role::Tool);
    assert_eq!(
        result.map(|message| message.text().into_owned()).as_deref(),
        Some("Hill mynahs can.")
    );
    assert_eq!(statuses(&log, "p+").await, [RunStatus::Completed]);
}

#[tokio::test]
async fn an_agent_continues_where_it_was_in_the_run_that_continues_its_parent() {
    static PAID: AtomicUsize = AtomicUsize::new(0);
    static LOOKED: AtomicUsize = AtomicUsize::new(0);
    let pay = Tool::new("pay", "", json!({})).handler(async |_, _| {
        PAID.fetch_add(1, Ordering::SeqCst);
        "paid"
    });
    let look = Tool::new("look", "", json!({})).idempotent(2).handler(async |_, _| {
        // The first look takes longer than the parent's budget.
        if LOOKED.fetch_add(1, Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        "a bird"
    });
    let limit = |ms: u64| Budget::new().max_wall_clock_ms(ms);
    for (is_nested, turns) in [(false, 3), (true, 5)] {
        [&PAID, &LOOKED].into_iter().for_each(|count| count.store(0, Ordering::SeqCst));
        let second = Script::new().tool_call("c1", "look", json!({})).usage(10, 5).call_tools();
        let agent = researcher([calls("pay", json!({})), second, says("They can.")]);
        let agent = agent.tool(pay.clone()).tool(look.clone());
        let engine = editor(if is_nested { editor(agent) } else { agent });
        let log = MemoryLog::new();
        let chat = engine.chat("Mynahs?").budget(limit(1_500)).record(&log).run_id("p");
        assert_eq!(chat.await.unwrap().halted_reason.as_str(), "budget_exceeded");
        let done = engine.resume(&log, "p").budget(limit(600_000)).await.unwrap();
        assert_eq!((done.text().as_ref(), done.run_id.as_deref()), ("Yes.", Some("p~2")));
        assert_eq!([&PAID, &LOOKED].map(|count| count.load(Ordering::SeqCst)), [1, 2]);
        let agents = if is_nested { 2 } else { 1 };
        assert_eq!(statuses(&log, "p+").await, vec![RunStatus::Completed; agents]);
        assert_eq!(statuses(&log, "p~2+").await, []);
        assert_eq!(engine.replay(&log, "p~2").await.unwrap().status, "equal");
        // What the agents used counts once, though two records link to each.
        let run = log.run("p~2").await.unwrap().unwrap();
        assert_eq!(mynah::log::agents_totals(&log, &run).await.unwrap().turns, turns);
    }
}

/// An engine whose first answer calls two agents, and an agent that looks for as long as it may.
fn two_agents(scripts: impl IntoIterator<Item = Script>) -> Engine {
    let look = Tool::new("look", "", json!({})).idempotent(1).handler(async |_, _| "a bird");
    let agent = researcher(scripts).tool(look);
    let both = Script::new().tool_call("c0", "research", json!({"task": "one"}));
    let both = both.tool_call("c1", "research", json!({"task": "two"})).usage(10, 5).call_tools();
    let model = Scripted::play([both, says("Yes.")]);
    Engine::new(model).tool(agent.as_tool("research", "Looks facts up."))
}

fn looks() -> Script {
    calls("look", json!({}))
}

/// The limit on turns with which each agent began and the turns that it took, in the order of their starts.
async fn agents_of(log: &MemoryLog) -> Vec<(u64, u64)> {
    let mut runs = log.runs(Default::default()).await.unwrap().runs;
    runs.retain(|run| run.run_id.starts_with("p+"));
    runs.sort_by_key(|run| run.started);
    let mut agents = Vec::new();
    for run in runs {
        let first = &log.read(&run.run_id, 1, 1).await.unwrap()[0];
        let first = json!(first.fact().unwrap());
        let limit = first["about"]["options"]["budget"]["max_turns"].as_u64().unwrap();
        agents.push((limit, run.totals.turns));
    }
    agents
}

#[tokio::test]
async fn agents_of_one_answer_share_what_is_left_of_the_budget() {
    for (turns, expected) in [(7, [(3, 3), (3, 3)]), (6, [(3, 3), (2, 2)]), (2, [(1, 1), (0, 0)])] {
        let log = MemoryLog::new();
        let engine = two_agents((0..9).map(|_| looks()));
        let chat = engine.chat("x").budget(Budget::new().max_turns(turns)).record(&log).run_id("p");
        let result = chat.on_tool_error(OnToolError::Continue).await.unwrap();
        assert_eq!(result.halted_reason, HaltReason::BudgetExceeded, "{turns}");
        let mut agents = agents_of(&log).await;
        agents.sort_by_key(|agent| std::cmp::Reverse(*agent));
        assert_eq!(agents, expected, "{turns}");
        assert_eq!(mynah::replay_run(&log, "p").await.unwrap().status, "equal", "{turns}");
    }
}

#[tokio::test]
async fn an_agent_that_starts_later_gets_what_the_first_one_left() {
    let log = MemoryLog::new();
    let engine = two_agents([says("One."), looks(), says("Two.")]);
    let chat = engine.chat("x").budget(Budget::new().max_turns(7)).record(&log).run_id("p");
    assert_eq!(chat.max_concurrency(1).await.unwrap().text(), "Yes.");
    assert_eq!(agents_of(&log).await, [(3, 1), (5, 2)]);
}

#[tokio::test]
async fn an_agent_that_waits_for_an_answer_keeps_its_part_of_the_budget() {
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("Which kind?"));
    let agent = researcher([calls("ask", json!({})), says("Two."), says("One.")]).tool(ask);
    let both = Script::new().tool_call("c0", "research", json!({"task": "one"}));
    let both = both.tool_call("c1", "research", json!({"task": "two"})).usage(10, 5).call_tools();
    let engine =
        Engine::new(Scripted::play([both, says("Yes.")])).tool(agent.as_tool("research", ""));
    let log = MemoryLog::new();
    let chat = engine.chat("x").budget(Budget::new().max_turns(7)).record(&log).run_id("p");
    let run = chat.max_concurrency(1).start_or_resume().await.unwrap();
    // The first took one turn of three. The second gets half of the five that are left.
    assert_eq!(agents_of(&log).await, [(3, 1), (2, 1)]);
    let run = run.answer("The hill mynah").await.unwrap();
    assert_eq!(run.result().text(), "Yes.");
    assert_eq!(agents_of(&log).await, [(3, 2), (2, 1)]);
}

#[tokio::test]
async fn a_crash_anywhere_repeats_nothing_where_two_agents_share_a_budget() {
    let options = Options::new().budget(Budget::new().max_turns(40)).max_concurrency(1);
    let engine = || two_agents([looks(), says("Found."), looks(), says("Found.")]);
    let report = crash_everywhere(engine, "Mynahs?").options(options).await;
    assert!(report.crashed > 20, "{report:?}");
}

#[tokio::test]
async fn the_depth_of_agents_is_no_data_of_the_user() {
    let engine = nested(2).context("agent_depth_left", 0);
    assert_eq!(engine.chat("go").await.unwrap().halted_reason, HaltReason::Completed);
}

#[tokio::test]
async fn an_agent_that_sleeps_ends_with_its_parent() {
    let sleep = Tool::new("sleep", "", json!({}))
        .handler(async |_, _| ToolOutcome::later(Duration::from_secs(3600)));
    let log = MemoryLog::new();
    let engine = editor(researcher([calls("sleep", json!({}))]).tool(sleep));
    let result = engine.chat("Mynahs?").record(&log).run_id("p").await.unwrap();
    assert_eq!(result.halted_reason, HaltReason::Sleeping);
    cancel_run(&log, "p").await.unwrap();
    assert_eq!(statuses(&log, "p").await, [RunStatus::Cancelled; 2]);
}

/// An engine above so many levels of agents.
fn nested(depth: u32) -> Engine {
    let mut engine = researcher([says("At the bottom.")]);
    for _ in 0..depth {
        let model = Scripted::play([calls("research", json!({"task": "go"})), says("up")]);
        let defaults = Options::new().on_tool_error(OnToolError::Halt);
        let tool = engine.as_tool("research", "Looks facts up.");
        engine = Engine::new(model).tool(tool).defaults(defaults);
    }
    engine
}

#[tokio::test]
async fn agents_are_nested_as_deep_as_the_engine_permits() {
    let table = [
        (4, None, HaltReason::Completed),
        (5, None, HaltReason::ToolError),
        (1, Some(1), HaltReason::Completed),
        (2, Some(1), HaltReason::ToolError),
        (1, Some(0), HaltReason::ToolError),
        (8, Some(99), HaltReason::Completed),
        (9, Some(99), HaltReason::ToolError),
    ];
    for (depth, limit, expected) in table {
        let mut engine = nested(depth);
        if let Some(limit) = limit {
            engine = engine.max_agent_depth(limit);
        }
        let result = engine.chat("go").await.unwrap();
        assert_eq!(result.halted_reason, expected, "{depth} {limit:?}");
    }
}

#[tokio::test]
async fn the_limit_of_an_agent_counts_beneath_it() {
    let agent = nested(1).max_agent_depth(0);
    let result = editor(agent).max_agent_depth(9).chat("go").await.unwrap();
    assert!(result.steps[0].tool_results[0].text().contains("ended with tool_error"), "{result:?}");
}

/// The runs of a log whose ids begin so, with how they stand.
async fn statuses(log: &MemoryLog, prefix: &str) -> Vec<RunStatus> {
    let runs = log.runs(Default::default()).await.unwrap().runs;
    runs.iter().filter(|run| run.run_id.starts_with(prefix)).map(|run| run.status).collect()
}

#[tokio::test]
async fn cancelling_the_parent_ends_the_agents_beneath_it() {
    for deadline in [false, true] {
        let cancel = CancelHandle::new();
        let stop = cancel.clone();
        let hang = Tool::new("hang", "", json!({})).handler(move |_, _| {
            if !deadline {
                stop.cancel();
            }
            std::future::pending::<Value>()
        });
        let inner = researcher([calls("hang", json!({}))]).tool(hang);
        let middle = Scripted::play([calls("research", json!({"task": "go"}))]);
        let middle = Engine::new(middle).tool(inner.as_tool("research", "Looks facts up."));
        let log = MemoryLog::new();
        let mut chat = editor(middle).chat("go").record(&log).run_id("p").cancel_handle(&cancel);
        if deadline {
            chat = chat.deadline(Duration::from_millis(50));
        }
        let result = chat.await.unwrap();
        assert!(matches!(result.halted_reason, HaltReason::Cancelled | HaltReason::Deadline));
        assert_eq!(statuses(&log, "p").await, [RunStatus::Cancelled; 3], "{deadline}");
    }
}

#[tokio::test]
async fn agents_that_run_side_by_side_end_with_their_parent() {
    let (cancel, begun) = (CancelHandle::new(), AtomicUsize::new(0));
    let stop = cancel.clone();
    let hang = Tool::new("hang", "", json!({})).handler(move |_, _| {
        if begun.fetch_add(1, Ordering::Relaxed) == 1 {
            stop.cancel();
        }
        std::future::pending::<Value>()
    });
    let agent = researcher([calls("hang", json!({})), calls("hang", json!({}))]).tool(hang);
    let both = Script::new().tool_call("c0", "research", json!({"task": "one"}));
    let both = both.tool_call("c1", "research", json!({"task": "two"})).call_tools();
    let engine = Engine::new(Scripted::play([both])).tool(agent.as_tool("research", ""));
    let log = MemoryLog::new();
    let result = engine.chat("go").record(&log).run_id("p").cancel_handle(&cancel).await.unwrap();
    assert_eq!(result.halted_reason, HaltReason::Cancelled);
    assert_eq!(statuses(&log, "p").await, [RunStatus::Cancelled; 3]);
}

#[tokio::test]
async fn an_agent_that_waits_ends_with_its_parent() {
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("Which kind?"));
    let log = MemoryLog::new();
    let engine = editor(researcher([calls("ask", json!({}))]).tool(ask));
    engine.chat("Mynahs?").record(&log).run_id("p").await.unwrap();
    assert_eq!(statuses(&log, "p").await, [RunStatus::Suspended; 2]);
    cancel_run(&log, "p").await.unwrap();
    assert_eq!(statuses(&log, "p").await, [RunStatus::Cancelled; 2]);
}

#[tokio::test]
async fn a_crash_anywhere_repeats_nothing_while_an_agent_waits_for_approval() {
    let send =
        Tool::new("send", "", json!({})).approval(Approval::Ask).handler(async |_, _| "sent");
    let agent = || researcher([calls("send", json!({})), says("They can.")]).tool(send.clone());
    let report = crash_everywhere(|| editor(agent()), "Mynahs?").answer("yes").await;
    assert!(report.crashed > 15, "{report:?}");
}

#[tokio::test]
async fn a_call_of_an_agent_that_may_have_run_is_uncertain_for_the_check() {
    let send = Tool::new("send", "", json!({})).handler(async |_, _| "sent");
    let agent = || researcher([calls("send", json!({})), says("They can.")]).tool(send.clone());
    let engines: [(&str, &(dyn Fn() -> Engine + Send + Sync)); 2] =
        [("as a tool", &|| editor(agent())), ("by a handoff", &|| desk(agent()))];
    for (how, engine) in engines {
        let check = || crash_everywhere(engine, "Mynahs?");
        for check in [check(), check().answer("yes"), check().approve_all()] {
            let report = check.await;
            assert!(report.uncertain > 0, "{how}: {report:?}");
        }
        for policy in [OnUncertain::Rerun, OnUncertain::Fail] {
            let report = check().on_uncertain(policy).await;
            assert_eq!(report.uncertain, 0, "{how}: {report:?}");
        }
    }
}

#[tokio::test]
async fn decisions_of_the_check_hold_for_the_calls_of_an_agent() {
    let send = Tool::new("send", "", json!({})).idempotent(1).approval(Approval::Ask);
    let send = send.handler(async |arguments: Value, _| arguments);
    let agent = || researcher([calls("send", json!({})), says("They can.")]).tool(send.clone());
    let check = || crash_everywhere(|| editor(agent()), "Mynahs?");
    let answered = check().answer("yes").await;
    assert_eq!(check().approve_all().await, answered);
    let rejected = check().decide(|_| Decision::Reject("not today".to_owned())).await;
    assert_eq!(rejected.records, answered.records);
}

/// A front desk that hands over to another agent.
fn desk(agent: Engine) -> Engine {
    let hand =
        Script::new().text("One moment.").tool_call("c0", "billing", json!({"note": "Order 17."}));
    let model = Scripted::play([hand.usage(10, 5).call_tools(), says("Anything else?")]);
    Engine::new(model).system("You greet.").tool(agent.as_handoff("billing", "Handles refunds."))
}

#[tokio::test]
async fn an_agent_that_takes_over_reads_the_conversation_and_its_answer_is_the_answer() {
    let model = Scripted::play([says("You get 20 euros back.")]);
    let (log, billing) = (MemoryLog::new(), Engine::new(model.clone()).system("You refund."));
    let thread = Thread::from("Hello!").with_assistant("How can I help?").with_user("Money back!");
    let engine = desk(billing);
    let result = engine.chat(thread).record(&log).run_id("p").await.unwrap();
    assert_eq!(result.halted_reason, HaltReason::Completed);
    assert_eq!(result.text(), "You get 20 euros back.");
    assert_eq!(result.thread.messages.last().unwrap().text(), "You get 20 euros back.");
    assert!(result.thread.messages.unanswered().is_empty());
    let read: Vec<String> =
        model.requests()[0].messages.iter().map(|message| message.text().into_owned()).collect();
    let note = "[The conversation was handed over to you. A note for you: Order 17.]";
    assert_eq!(read, ["You refund.", "Hello!", "How can I help?", "Money back!", note]);
    assert_eq!(engine.replay(&log, "p").await.unwrap().status, "equal");
    assert_eq!(mynah::replay_run(&log, "p").await.unwrap().status, "equal");
}

#[tokio::test]
async fn the_next_turn_of_a_session_reads_the_answer_of_the_agent_that_took_over() {
    let engine = desk(researcher([says("You get 20 euros back.")]));
    let (session, _) = engine.reply(&Session::new(), "Money back!").await.unwrap();
    let (session, _) = engine.reply(&session, "Thanks.").await.unwrap();
    let texts: Vec<String> =
        session.thread.messages.iter().map(|message| message.text().into_owned()).collect();
    assert_eq!(texts[4..], ["You get 20 euros back.", "Thanks.", "Anything else?"], "{texts:?}");
}

#[tokio::test]
async fn a_question_of_an_agent_that_took_over_is_answered_at_the_parent() {
    let ask =
        Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("Which order?"));
    let engine = desk(researcher([calls("ask", json!({})), says("Refunded.")]).tool(ask));
    let log = MemoryLog::new();
    let run = engine.chat("Hi").record(&log).run_id("p").start_or_resume().await.unwrap();
    assert_eq!(run.waiting(), Some(Waiting::Question("Which order?".to_owned())));
    let run = run.answer("17").await.unwrap();
    assert_eq!((run.waiting(), run.result().text().as_ref()), (None, "Refunded."));
}

#[tokio::test]
async fn a_crash_anywhere_in_a_handoff_repeats_nothing() {
    let look = Tool::new("look", "", json!({})).idempotent(1).handler(async |_, _| "a bird");
    let agent = || researcher([calls("look", json!({})), says("Refunded.")]).tool(look.clone());
    let report = crash_everywhere(|| desk(agent()), "Money back!").await;
    assert!(report.crashed > 10, "{report:?}");
}

#[tokio::test]
async fn an_agent_that_cannot_take_over_leaves_the_conversation_with_the_first() {
    let broken = Engine::new(Scripted::play([
        Script::new().fail(Error::adapter(AdapterReason::NetworkError))
    ]));
    let result = desk(broken).chat("Hi").await.unwrap();
    assert_eq!(result.text(), "Anything else?");
}
