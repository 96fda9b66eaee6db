//! Goldens that are run again: what a person decided, how a run ended, and what it spent.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use mynah::{
    Approval, Budget, Engine, HaltReason, Tool, ToolOutcome, log::MemoryLog, testing::Scripted,
};
use mynah_agent::golden::{self, Answers, Check, Checked, Rules};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A model's answer that calls a tool.
fn calls(calls: &[(&str, Value)]) -> Value {
    let call = |(place, (name, arguments)): (usize, &(&str, Value))| json!({"tool_call": {"id": format!("{name}_{place}"), "name": name, "arguments": arguments}});
    calls.iter().enumerate().map(call).chain([json!({"finish": "tool_calls"})]).collect()
}

fn says(text: &str) -> Value {
    json!([{"text": text}, {"usage": {"input_tokens": 10, "output_tokens": 5}}, {"finish": "stop"}])
}

/// The calls that ran.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<String>>>);

impl Ran {
    /// Returns them in an order of their own, and forgets them.
    fn take(&self) -> Vec<String> {
        let mut ran = std::mem::take(&mut *self.0.lock().unwrap());
        ran.sort();
        ran
    }
}

/// An agent that pays if a person approves.
fn payer(scripts: &[Value], ran: &Ran) -> Engine {
    let pay = Tool::new("pay", "Pays.", json!({"type": "object"})).approval(Approval::Ask);
    let ran = ran.clone();
    let pay = pay.handler(move |arguments: Value, _| {
        ran.0.lock().unwrap().push(arguments.to_string());
        std::future::ready("paid")
    });
    Engine::new(Scripted::new(scripts.to_vec()).unwrap()).tool(pay)
}

/// Keeps a run as the golden `it`.
async fn kept(log: &MemoryLog, run: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    golden::add(log, run, folder.path(), "it", &Rules::none()).await.unwrap();
    folder
}

async fn checked(engine: &Engine, folder: &TempDir, answers: Answers) -> Checked {
    Check::new(engine, folder.path()).answers(answers).run().await.unwrap().remove(0)
}

fn messages(checked: &Checked) -> Vec<&str> {
    checked.findings.iter().map(|finding| &*finding.message).collect()
}

#[tokio::test]
async fn a_live_check_repeats_each_decision_of_the_person() {
    let (log, ran) = (MemoryLog::new(), Ran::default());
    let euros = |euros: u32| ("pay", json!({"euros": euros}));
    let scripts = [calls(&[euros(1), euros(2), euros(3)]), says("Done.")];
    let engine = payer(&scripts, &ran);
    let run = engine.chat("Pay.").record(&log).await.unwrap().run_id.unwrap();
    let resume = engine.resume(&log, &*run).approve("pay_0");
    let resume = resume.approve_with("pay_1", json!({"euros": 20})).reject("pay_2", "too dear");
    resume.await.unwrap();
    let paid = [r#"{"euros":1}"#, r#"{"euros":20}"#];
    assert_eq!(ran.take(), paid);
    let folder = kept(&log, &run).await;
    for (answers, expected) in [(Answers::Live, &paid[..]), (Answers::WhatIf, &[])] {
        let checked = checked(&payer(&scripts, &ran), &folder, answers).await;
        assert!(checked.ok, "{answers:?}: {:?}", checked.findings);
        // Results and reasons are the recorded ones.
        assert_eq!(checked.answer, None);
        assert_eq!(ran.take(), expected, "{answers:?}");
    }
    // What was approved once does not run twice.
    let twice = [calls(&[euros(1), euros(2), euros(3)]), calls(&[euros(1)]), says("Done.")];
    let again = checked(&payer(&twice, &ran), &folder, Answers::Live).await;
    assert!(!again.ok);
    assert_eq!(ran.take(), paid);
}

#[tokio::test]
async fn questions_are_answered_as_in_the_golden() {
    let log = MemoryLog::new();
    let engine = |scripts: &[Value]| {
        let ask = async |_: Value, _| ToolOutcome::ask("How many?");
        let model = Scripted::new(scripts.to_vec()).unwrap();
        let tool = Tool::new("ask", "Asks.", json!({"type": "object"})).handler(ask);
        (Engine::new(model.clone()).tool(tool), model)
    };
    let scripts = [calls(&[("ask", json!({}))]), says("Two it is.")];
    let (asking, _) = engine(&scripts);
    let run = asking.chat("Order.").record(&log).await.unwrap().run_id.unwrap();
    asking.resume(&log, &*run).answer("two").await.unwrap();
    let folder = kept(&log, &run).await;
    for answers in [Answers::WhatIf, Answers::Live] {
        let (asking, model) = engine(&scripts);
        let checked = checked(&asking, &folder, answers).await;
        assert!(checked.ok, "{answers:?}: {:?}", checked.findings);
        let last = model.requests().pop().unwrap();
        assert_eq!(last.messages.last().unwrap().text(), "two", "{answers:?}");
    }
}

/// An agent that lets another pay.
fn parent(child: &[Value], ran: &Ran) -> Engine {
    let scripts = [calls(&[("clerk", json!({"task": "Pay 7."}))]), says("It is paid.")];
    let clerk = payer(child, ran).as_tool("clerk", "Pays bills.");
    Engine::new(Scripted::new(scripts).unwrap()).tool(clerk)
}

/// A golden of a run whose agent was permitted to pay 7 euros, and used many tokens.
async fn delegated(ran: &Ran) -> TempDir {
    let (log, parent) = (MemoryLog::new(), parent(&clerk(7), ran));
    let run = parent.chat("Pay the bill.").record(&log).await.unwrap().run_id.unwrap();
    let done = parent.resume(&log, &*run).answer("yes").await.unwrap();
    assert_eq!(done.text(), "It is paid.");
    assert_eq!(ran.take(), [r#"{"euros":7}"#]);
    kept(&log, &run).await
}

fn clerk(euros: u32) -> [Value; 2] {
    let paid = json!([{"text": "Paid."}, {"usage": {"input_tokens": 9000, "output_tokens": 1000}}, {"finish": "stop"}]);
    [calls(&[("pay", json!({"euros": euros}))]), paid]
}

#[tokio::test]
async fn an_approval_of_an_agents_call_is_given_for_the_same_call_only() {
    let ran = Ran::default();
    let folder = delegated(&ran).await;
    let same = checked(&parent(&clerk(7), &ran), &folder, Answers::WhatIf).await;
    assert!(same.ok && same.answer.is_none(), "{:?}", same.findings);
    assert!(ran.take().is_empty());
    let live = checked(&parent(&clerk(7), &ran), &folder, Answers::Live).await;
    assert!(live.ok, "{:?}", live.findings);
    assert_eq!(ran.take(), [r#"{"euros":7}"#]);
    let other = checked(&parent(&clerk(700), &ran), &folder, Answers::Live).await;
    assert!(messages(&other)[0].starts_with("asks what the golden does not answer"));
    assert!(ran.take().is_empty());
}

#[tokio::test]
async fn limits_count_what_agents_spent_also_if_records_answer_for_them() {
    let ran = Ran::default();
    let folder = delegated(&ran).await;
    fs::write(folder.path().join("it.toml"), "max_tokens = 100\nmax_turns = 3").unwrap();
    for answers in [Answers::Records, Answers::WhatIf, Answers::Live] {
        let found = checked(&parent(&clerk(7), &ran), &folder, answers).await;
        let found = messages(&found);
        let turns = "max_turns: at most 3 expected, 4 used";
        assert_eq!(found[0], turns, "{answers:?}");
        assert!(
            found[1].starts_with("max_tokens: at most 100 expected, 100"),
            "{answers:?}: {found:?}"
        );
    }
}

#[tokio::test]
async fn other_arguments_are_a_difference_unless_a_golden_expects_less() {
    let (log, ran) = (MemoryLog::new(), Ran::default());
    let scripts = |euros: u32| [calls(&[("pay", json!({"euros": euros}))]), says("Done.")];
    let engine = payer(&scripts(7), &ran);
    let run = engine.chat("Pay.").record(&log).await.unwrap().run_id.unwrap();
    engine.resume(&log, &*run).approve("pay_0").await.unwrap();
    let folder = kept(&log, &run).await;
    ran.take();
    for answers in [Answers::WhatIf, Answers::Live] {
        let other = checked(&payer(&scripts(700), &ran), &folder, answers).await;
        assert_eq!(messages(&other), ["other calls than recorded"], "{answers:?}");
        assert_eq!(other.findings[0].changes[0].place, "call 1, pay: euros");
        assert!(ran.take().is_empty());
    }
    fs::write(folder.path().join("it.toml"), "tools = ['pay']").unwrap();
    assert!(checked(&payer(&scripts(700), &ran), &folder, Answers::WhatIf).await.ok);
}

/// A golden of one answer.
async fn answered() -> TempDir {
    let (log, engine) = (MemoryLog::new(), Engine::new(Scripted::says(["Hello."])));
    let run = engine.chat("Hi.").record(&log).await.unwrap().run_id.unwrap();
    kept(&log, &run).await
}

#[tokio::test]
async fn a_run_that_fails_is_a_finding_beside_those_that_pass() {
    let folder = answered().await;
    // The script has two answers for three runs.
    let engine = Engine::new(Scripted::says(["Hello.", "Hello."]));
    let check = Check::new(&engine, folder.path()).answers(Answers::WhatIf);
    let checked = check.repeat(3.try_into().unwrap()).jobs(1.try_into().unwrap()).run().await;
    let checked = checked.unwrap().remove(0);
    assert_eq!((checked.passed, checked.runs), (2, 3));
    assert_eq!(checked.findings[0].about, "end", "{:?}", checked.findings);
    // So is a judge whose verdict cannot be read.
    fs::write(folder.path().join("it.toml"), "[judge]\nmodel = 'a:b'\nrubric = 'Be kind.'")
        .unwrap();
    let engine = Engine::new(Scripted::says(["Hello."]));
    let check = Check::new(&engine, folder.path()).answers(Answers::WhatIf);
    let check = check.judges(|_| Ok(Engine::new(Scripted::says(["?", "?", "?"]))));
    let checked = check.run().await.unwrap().remove(0);
    assert!(messages(&checked)[0].starts_with("judge: no verdict: "), "{:?}", checked.findings);
}

#[tokio::test]
async fn an_update_keeps_a_run_whose_params_alone_are_others() {
    let folder = answered().await;
    let engine = || Engine::new(Scripted::says(["Hello."])).system("Be kind.");
    assert!(!checked(&engine(), &folder, Answers::Records).await.ok);
    let check = |engine: &Engine| {
        Check::new(engine, folder.path()).answers(Answers::WhatIf).update(true).run()
    };
    assert!(check(&engine()).await.unwrap()[0].updated);
    assert!(checked(&engine(), &folder, Answers::Records).await.ok);
    assert!(!check(&engine()).await.unwrap()[0].updated, "nothing is left to update");
}

#[tokio::test]
async fn a_run_that_ended_early_must_end_in_the_same_way() {
    let log = MemoryLog::new();
    let front = || {
        let billing = Engine::new(Scripted::says(["You get 20 euros back."]));
        let scripts = [calls(&[("billing", json!({"note": "Order 17."}))])];
        Engine::new(Scripted::new(scripts).unwrap()).tool(billing.as_handoff("billing", "Refunds."))
    };
    let run = front().chat("My money!").record(&log).await.unwrap().run_id.unwrap();
    let folder = kept(&log, &run).await;
    let same = checked(&front(), &folder, Answers::WhatIf).await;
    assert!(same.ok && same.answer.is_none(), "{:?}", same.findings);

    let limited = |turns: u64| {
        let scripts = [calls(&[("now", json!({}))]), says("Noon.")];
        let now = Tool::new("now", "Returns the time.", json!({"type": "object"}));
        let engine = Engine::new(Scripted::new(scripts).unwrap());
        let engine = engine.tool(now.handler(async |_: Value, _| "noon"));
        engine.budget(Budget::new().max_turns(turns))
    };
    let run = limited(1).chat("Time?").record(&log).await.unwrap().run_id.unwrap();
    let folder = kept(&log, &run).await;
    let same = checked(&limited(1), &folder, Answers::WhatIf).await;
    assert!(same.ok, "{:?}", same.findings);
    let longer = checked(&limited(5), &folder, Answers::WhatIf).await;
    let expected = "ended with completed; the golden ended with budget_exceeded";
    assert_eq!(messages(&longer), [expected]);
}

#[tokio::test]
async fn a_later_turn_of_a_session_is_kept_with_the_conversation_before_it() {
    let (log, model) = (MemoryLog::new(), Scripted::says(["Hi Ada.", "You are Ada."]));
    let engine = Engine::new(model).system("Be kind.");
    let (session, _) = engine.start("I am Ada.").record(&log).await.unwrap();
    let (_, result) = engine.reply(&session, "Who am I?").record(&log).await.unwrap();
    let folder = kept(&log, &result.run_id.unwrap()).await;
    let model = Scripted::says(["You are Ada."]);
    let engine = Engine::new(model.clone()).system("Be kind.");
    for answers in [Answers::Records, Answers::WhatIf] {
        let checked = checked(&engine, &folder, answers).await;
        assert!(checked.ok && checked.answer.is_none(), "{answers:?}: {:?}", checked.findings);
    }
    let asked = &model.requests()[0].messages;
    let said: Vec<_> = asked.iter().map(|message| message.text().into_owned()).collect();
    assert_eq!(said.last_chunk(), Some(&["I am Ada.", "Hi Ada.", "Who am I?"].map(String::from)));
}

#[tokio::test]
async fn a_run_that_waits_or_failed_is_no_golden() {
    let (log, ran) = (MemoryLog::new(), Ran::default());
    let folder = tempfile::tempdir().unwrap();
    let scripts = [calls(&[("pay", json!({"euros": 1}))])];
    let engine = payer(&scripts, &ran);
    let run = engine.chat("Pay.").record(&log).await.unwrap().run_id.unwrap();
    let add = async |run: &str| {
        let added = golden::add(&log, run, folder.path(), "it", &Rules::none()).await;
        added.unwrap_err().to_string()
    };
    assert!(add(&run).await.ends_with("cannot be a golden: it has not ended; resume it first"));
    // The script ends before the second answer.
    let failed = engine.resume(&log, &*run).approve("pay_0").await.unwrap();
    assert_eq!(failed.halted_reason, HaltReason::Error);
    let why = add(&run).await;
    assert!(why.contains("cannot be a golden: it failed when it was recorded"), "{why}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written");
}
