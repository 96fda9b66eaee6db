//! `testing::crash_everywhere`: what it finds in agents with a bug, and that it finds nothing in the correct ones.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use mynah::{
    Adapter, Approval, BoxFuture, Budget, Decision, Engine, Error, ModelCall, ModelStream,
    OnUncertain, Options, Request, Result, StepResult, Tool, ToolContext, ToolMode, ToolOutcome,
    log::Kind,
    testing::{CrashViolation, CrashViolationKind, Script, Scripted, crash_everywhere},
};
use serde_json::{Value, json};

/// What a service outside of the process has done, by the key of the call.
type Ledger = Arc<Mutex<Vec<(String, u64)>>>;

#[tokio::test]
async fn an_effect_outside_the_boundary_is_found() {
    // The time is read beside the tool's context, so no record has it.
    let stamp = async |_: Value, _: ToolContext| {
        #[expect(clippy::disallowed_methods, reason = "the bug")]
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        json!({"at": now.map_or(0, |now| now.as_nanos() as u64)})
    };
    for stamp in [tool("stamp").handler(stamp), tool("stamp").idempotent(3).handler(stamp)] {
        let check = crash_everywhere(|| agent(stamp.clone()), "go").check();
        let found = check.await.expect_err("a bug");
        let expected = (CrashViolationKind::ResultDiffers, Some("stamp"), TOOL_COMPLETED);
        assert_eq!(place(&found), expected);
        assert!(found.crashes().is_empty());
        let text = found.to_string();
        assert!(text.contains("read time and chance from the tool's context"), "{text}");
    }
}

#[tokio::test]
async fn an_effect_where_the_engine_is_made_is_found() {
    let mails = AtomicUsize::new(0);
    let agent = || {
        mails.fetch_add(1, Relaxed);
        agent(echo())
    };
    let found = crash_everywhere(agent, "go")
        .before_each(|| mails.store(0, Relaxed))
        .observe(|| mails.load(Relaxed))
        .check()
        .await
        .expect_err("a bug");
    assert_eq!(
        place(&found),
        (CrashViolationKind::WorldDiffers, None, Some((1, Kind::RunStarted)))
    );
    let text = found.to_string();
    assert!(text.contains("do every effect in a tool"), "{text}");
}

#[tokio::test]
async fn time_and_chance_of_the_context_are_no_effect_outside_the_boundary() {
    let stamp = async |_: Value, context: ToolContext| {
        let since = context.now().await?.duration_since(SystemTime::UNIX_EPOCH);
        let at = since.map_or(0, |since| since.as_nanos() as u64);
        let read = context.side_effect("read", async { Ok::<_, Error>(7) }).await?;
        Ok::<_, Error>(json!({"at": at, "chance": context.random().await?, "read": read}))
    };
    for stamp in [tool("stamp").handler(stamp), tool("stamp").idempotent(3).handler(stamp)] {
        let report = crash_everywhere(|| agent(stamp.clone()), "go").await;
        assert_eq!(report.crashed as u64, 2 * report.records);
    }
}

#[tokio::test]
async fn a_tool_that_is_marked_idempotent_and_is_not_is_found_by_its_result() {
    let ledger = Ledger::default();
    let found = crash_everywhere(|| payer(&ledger, true, charge), "pay")
        .before_each(|| ledger.lock().expect("a ledger").clear())
        .check()
        .await
        .expect_err("a bug");
    assert_eq!(place(&found), (CrashViolationKind::NotIdempotent, Some("charge"), TOOL_COMPLETED));
    let text = found.to_string();
    assert!(text.contains("the process died before record 5, tool_completed of call c0"), "{text}");
    assert!(text.contains("first: {\"ok\":{\"charges\":1}}"), "{text}");
    assert!(text.contains("then:  {\"ok\":{\"charges\":2}}"), "{text}");
    assert!(text.contains("what to do: give context.idempotency_key()"), "{text}");
}

#[tokio::test]
async fn a_tool_that_is_marked_idempotent_and_is_not_is_found_by_what_it_did() {
    let ledger = Ledger::default();
    let silent = |ledger: &Ledger, key, arguments: Value| {
        charge(ledger, key, arguments);
        json!("charged")
    };
    let check = || {
        crash_everywhere(|| payer(&ledger, true, silent), "pay")
            .before_each(|| ledger.lock().expect("a ledger").clear())
    };
    // Its result does not show it.
    check().await;
    let found = check().observe(|| charged(&ledger)).check().await.expect_err("a bug");
    assert_eq!(place(&found), (CrashViolationKind::WorldDiffers, Some("charge"), TOOL_COMPLETED));
}

#[tokio::test]
async fn a_tool_that_does_its_work_once_for_each_key_is_idempotent() {
    let ledger = Ledger::default();
    let report = crash_everywhere(|| payer(&ledger, true, charge_once), "pay")
        .before_each(|| ledger.lock().expect("a ledger").clear())
        .observe(|| charged(&ledger))
        .crashes(2)
        .await;
    assert_eq!((report.records, report.uncertain), (9, 0));
    assert!(report.crashed > 100, "{report:?}");
}

#[tokio::test]
async fn a_tool_that_is_not_idempotent_waits_for_a_person_and_is_not_repeated() {
    let ledger = Ledger::default();
    let check = || {
        crash_everywhere(|| payer(&ledger, false, charge), "pay")
            .before_each(|| ledger.lock().expect("a ledger").clear())
            .observe(|| charged(&ledger))
    };
    let report = check().await;
    // After its announcement and before its outcome.
    assert_eq!((report.crashed, report.uncertain), (18, 2));
    let report = check().on_uncertain(OnUncertain::Fail).await;
    assert_eq!((report.crashed, report.uncertain), (18, 0));
    let found = check().on_uncertain(OnUncertain::Rerun).check().await.expect_err("two charges");
    assert_eq!(
        place(&found),
        (CrashViolationKind::ResultDiffers, Some("charge"), Some((7, Kind::ToolCompleted)))
    );
    // The tool is not marked, so the advice is about the policy.
    let advice = "what to do: on_uncertain(OnUncertain::Rerun) runs this tool again";
    let text = found.to_string();
    assert!(text.contains(advice) && !text.contains("remove idempotent"), "{text}");
    let silent = |ledger: &Ledger, key, arguments: Value| {
        charge(ledger, key, arguments);
        json!("charged")
    };
    let found = crash_everywhere(|| payer(&ledger, false, silent), "pay")
        .before_each(|| ledger.lock().expect("a ledger").clear())
        .observe(|| charged(&ledger))
        .on_uncertain(OnUncertain::Rerun);
    let found = found.check().await.expect_err("two charges");
    assert_eq!(found.kind(), CrashViolationKind::WorldDiffers);
    let text = found.to_string();
    assert!(text.contains(advice) && !text.contains("remove idempotent"), "{text}");
}

#[tokio::test]
async fn state_that_the_process_keeps_outside_the_run_is_found() {
    // Each process counts from one.
    let agent = || {
        let seats = Arc::new(AtomicU64::new(1));
        booker(move |_| seats.fetch_add(1, Relaxed))
    };
    let found = crash_everywhere(agent, "two seats").check().await.expect_err("a bug");
    assert_eq!((found.kind(), found.tool()), (CrashViolationKind::ResultDiffers, Some("book")));
    assert!(!found.crashes().is_empty());
    assert!(found.to_string().contains("differs after the crash"), "{found}");
    // All runs count on.
    let seats = Arc::new(AtomicU64::new(1));
    let agent = || {
        let seats = Arc::clone(&seats);
        booker(move |_| seats.fetch_add(1, Relaxed))
    };
    let found = crash_everywhere(agent, "two seats").check().await.expect_err("a bug");
    assert_eq!(place(&found), (CrashViolationKind::ResultDiffers, Some("book"), TOOL_COMPLETED));
    assert!(found.to_string().contains("differs in a second run without a crash"), "{found}");
}

#[tokio::test]
async fn state_that_outlives_the_process_is_no_state_outside_the_run() {
    let seats = Ledger::default();
    let agent = || {
        let seats = Arc::clone(&seats);
        booker(move |key| {
            let mut seats = seats.lock().expect("seats");
            let taken = seats.len() as u64 + 1;
            let seat = seats.iter().find(|(taken_by, _)| *taken_by == key).map(|(_, seat)| *seat);
            seat.unwrap_or_else(|| {
                seats.push((key, taken));
                taken
            })
        })
    };
    let emptied = || seats.lock().expect("seats").clear();
    let report = crash_everywhere(agent, "two seats").before_each(emptied).await;
    assert_eq!(report.records, 13);
}

#[tokio::test]
async fn a_result_that_may_differ_is_not_compared() {
    let weather = Arc::new(AtomicU64::new(0));
    let agent = || {
        let weather = Arc::clone(&weather);
        let run = move |_: Value, _: ToolContext| {
            let celsius = weather.fetch_add(1, Relaxed);
            async move { json!({"celsius": celsius}) }
        };
        agent(tool("weather").idempotent(2).handler(run))
    };
    let found = crash_everywhere(agent, "go").check().await.expect_err("it differs");
    assert_eq!(found.tool(), Some("weather"));
    crash_everywhere(agent, "go").varying("weather").await;
}

#[tokio::test]
async fn an_engine_that_each_process_makes_otherwise_is_found() {
    let made = AtomicUsize::new(0);
    let agent = || agent(echo()).temperature(made.fetch_add(1, Relaxed) as f64);
    let found = crash_everywhere(agent, "go").check().await.expect_err("another engine");
    assert_eq!((found.kind(), found.record()), (CrashViolationKind::ReplayDiffers, Some(1)));
    assert!(found.to_string().contains("about.params.temperature"), "{found}");
    let processes = AtomicUsize::new(0);
    // Each run has an engine, and one more for its replay: two runs without a crash, one that dies before its first record, and the second
    // process of one that dies after it.
    let agent = || {
        let differs = processes.fetch_add(1, Relaxed) == 2 * 2 + 3 + 1;
        self::agent(echo()).model(if differs { "large" } else { "small" })
    };
    let found = crash_everywhere(agent, "go").check().await.expect_err("another engine");
    assert_eq!((found.kind(), found.record()), (CrashViolationKind::NotResumed, Some(1)));
    assert!(found.to_string().contains("make the same engine in every process"), "{found}");
}

#[tokio::test]
async fn a_call_that_cannot_start_is_a_violation() {
    let found = crash_everywhere(Engine::without_adapter, "go").check().await.expect_err("none");
    assert_eq!((found.kind(), found.record()), (CrashViolationKind::NotTested, None));
    assert!(found.to_string().contains("missing_adapter"), "{found}");
    assert!(found.to_string().ends_with("or what is set for the check"), "{found}");
}

#[tokio::test]
async fn a_check_that_could_not_fail_is_a_violation() {
    let short = || Engine::new(Scripted::play([call("c0", "echo").call_tools()])).tool(echo());
    for (check, why) in [
        (crash_everywhere(|| Engine::new(Scripted::default()), "go"), "too few scripts"),
        (crash_everywhere(short, "go").on_uncertain(OnUncertain::Rerun), "too few scripts"),
        (crash_everywhere(|| agent(echo()), "go").crashes(0), "crashes(0) lets no process die"),
        (crash_everywhere(|| agent(echo()), "go").varying("nonsense"), "names no tool"),
    ] {
        let found = check.check().await.expect_err(why);
        assert_eq!(found.kind(), CrashViolationKind::NotTested);
        assert!(found.to_string().contains(why), "{found}");
    }
}

#[tokio::test]
async fn a_run_that_waits_is_not_tested_unless_it_may_wait() {
    let asks = || tool("ask").idempotent(1).handler(async |_, _| ToolOutcome::ask("How many?"));
    let pays = || echo().approval(Approval::Ask);
    let ask = || crash_everywhere(move || agent(asks()), "go");
    let pay = || crash_everywhere(move || agent(pays()), "go");
    for (check, why) in [
        (ask(), "waits for an answer to \"How many?\"; add answer(..), or may_wait()"),
        (pay(), "waits for a decision about echo; add approve_all() or decide(..), or may_wait()"),
    ] {
        let found = check.check().await.expect_err("it waits");
        assert_eq!(found.kind(), CrashViolationKind::NotTested, "{found}");
        let text = found.to_string();
        assert!(text.contains(why) && !text.contains("the same engine"), "{text}");
    }
    let waited = pay().may_wait().await;
    assert!(pay().approve_all().await.records > waited.records);
    ask().may_wait().await;
}

#[tokio::test]
async fn the_likely_cause_is_named_first() {
    let advice = |found: Box<CrashViolation>| {
        let text = found.to_string();
        text.split_once("what to do: ").expect("advice").1.to_owned()
    };
    // A condition that counts for itself halts elsewhere in a replay.
    let counts = || {
        let seen = AtomicUsize::new(0);
        Options::new().halt_when("count", move |_| seen.fetch_add(1, Relaxed) == 1)
    };
    let scripts = [call("c0", "echo"), call("c1", "echo"), call("c2", "echo")];
    let many = || Engine::new(Scripted::play(scripts.clone())).tool(echo());
    let found = crash_everywhere(many, "go").options(counts()).check().await.expect_err("a bug");
    assert!(advice(found).starts_with("let halt_when depend on its step alone"));

    let made = AtomicUsize::new(0);
    let making = || {
        made.fetch_add(1, Relaxed);
        agent(tool("echo").handler(async |_, _| "said"))
    };
    let check = || crash_everywhere(making, "go").observe(|| made.load(Relaxed));
    let found = check().check().await.expect_err("the world is not reset");
    assert!(advice(found).starts_with("reset the world in before_each(..); do every effect"));
    let found = check().before_each(|| made.store(0, Relaxed)).check().await.expect_err("a bug");
    let told = advice(found);
    assert!(told.starts_with("do every effect in a tool, and none where the engine is made"));
    assert!(!told.contains("halt_when") && !told.contains("idempotent"), "{told}");
}

#[tokio::test]
async fn a_question_is_answered_and_an_approved_call_runs_once() {
    let ledger = Ledger::default();
    let agent = || {
        let script = [call("c0", "ask"), call("c1", "charge"), Script::new().text("Paid.").stop()];
        let ask = tool("ask").idempotent(1).handler(async |_, _| ToolOutcome::ask("How many?"));
        Engine::new(Scripted::play(script)).tools([ask, charging(&ledger, charge_once).manual()])
    };
    let check = || {
        crash_everywhere(agent, "pay")
            .before_each(|| ledger.lock().expect("a ledger").clear())
            .observe(|| charged(&ledger))
    };
    // Without an answer or a decision the run ends there.
    assert_eq!(check().may_wait().await.records, 6);
    assert_eq!(check().answer("two").may_wait().await.records, 10);
    let report = check().answer("two").approve_all().await;
    assert_eq!((report.records, report.uncertain), (17, 2));
    check().answer("two").approve_all().on_uncertain(OnUncertain::Rerun).await;
    check().answer("two").decide(|_| Decision::Reject("too dear".to_owned())).await;
    check().answer("two").decide(|_| Decision::Result(json!(1))).await;
}

#[tokio::test(start_paused = true)]
async fn calls_side_by_side_that_fail_are_slow_or_use_threads_come_to_the_same() {
    let agent = || {
        let script = [
            Script::new()
                .tool_call("c0", "slow", json!({}))
                .tool_call("c1", "shaky", json!({}))
                .tool_call("c2", "thread", json!({"x": 1}))
                .tool_call("c3", "failing", json!({}))
                .call_tools(),
            call("c0", "slow"),
            Script::new().text("done").stop(),
        ];
        let slow = async |_: Value, _: ToolContext| {
            tokio::time::sleep(Duration::from_millis(5)).await;
            "slow"
        };
        let shaky = async |_: Value, context: ToolContext| match context.attempt() % 2 {
            1 => ToolOutcome::transient("busy"),
            _ => "steady".into(),
        };
        Engine::new(Scripted::play(script)).tools([
            tool("slow").idempotent(2).handler(slow),
            tool("shaky").idempotent(4).handler(shaky),
            tool("thread").idempotent(2).blocking(|arguments, _| arguments),
            tool("failing").idempotent(1).handler(async |_, _| ToolOutcome::error("no such thing")),
        ])
    };
    let report = crash_everywhere(agent, "go").await;
    assert!(report.crashed > 40, "{report:?}");
    let options = Options::new().max_turns(1);
    crash_everywhere(agent, "go").options(options).await;
}

#[tokio::test]
async fn options_and_functions_of_the_call_hold_in_every_process() {
    let options =
        || Options::new().halt_when("acted", |step: &StepResult| !step.tool_results.is_empty());
    let report = crash_everywhere(|| agent(echo()), "go").options(options()).await;
    assert_eq!(report.records, 7);
    let manual = Options::new().mode(ToolMode::Manual);
    crash_everywhere(|| agent(echo()), "go").options(manual).approve_all().await;
}

#[tokio::test]
async fn a_model_is_called_once_for_each_turn_of_all_runs() {
    let models = Mutex::new(Vec::new());
    let agent = || {
        let model = Scripted::play([call("c0", "echo"), Script::new().text("done").stop()]);
        models.lock().expect("models").push(model.clone());
        Engine::new(model).tool(echo())
    };
    crash_everywhere(agent, "go").await;
    let calls: Vec<usize> = models.lock().expect("models").iter().map(Scripted::calls).collect();
    assert_eq!((calls[0], calls[1..].iter().sum()), (2, 0));
}

#[tokio::test]
async fn a_run_that_its_provider_refuses_or_breaks_off_ends_alike() {
    let called = json!([{"tool_call": {"id": "c0", "name": "echo"}}, {"finish": "tool_calls"}]);
    let said = json!({"text": "par"});
    for last in [
        json!([{"preflight_error": "unauthorized"}]),
        json!([said, {"error": "overloaded"}]),
        json!([said, {"disconnect": true}]),
        json!([said]),
    ] {
        let agent = |scripts: &[&Value]| {
            let scripts = scripts.iter().copied().cloned();
            Engine::new(Scripted::new(scripts).expect("scripts")).tool(echo().idempotent(1))
        };
        crash_everywhere(|| agent(&[&last]), "go").await;
        crash_everywhere(|| agent(&[&called, &last]), "go").await;
    }
}

#[tokio::test]
async fn a_lost_model_call_that_uses_up_the_budget_is_no_violation() {
    let agent = || {
        let answer = |script: Script| script.usage(100, 10);
        let done = answer(Script::new().text("done")).stop();
        let call = answer(Script::new().tool_call("c0", "echo", json!({}))).call_tools();
        Engine::new(Scripted::play([call, done])).tool(echo())
    };
    for turns in [2, 3] {
        let budget = Options::new().budget(Budget::new().max_turns(turns));
        crash_everywhere(agent, "go").options(budget).on_uncertain(OnUncertain::Rerun).await;
    }
}

#[tokio::test]
async fn a_lost_model_call_that_uses_up_the_turns_is_no_violation() {
    for turns in [1, 2, 3] {
        let limit = Options::new().max_turns(turns);
        crash_everywhere(|| agent(echo()), "go").options(limit).await;
    }
}

/// An adapter that rewrites schemas, as those for HTTP do.
struct Fits(Arc<Scripted>);

impl Adapter for Fits {
    fn name(&self) -> &str {
        "fits"
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Arc::clone(&self.0).open(request, call)
    }

    fn schema_fit(&self) -> Option<u32> {
        Some(7)
    }

    fn needs_structured_finalize(&self, _: &Request) -> bool {
        true
    }
}

#[tokio::test]
async fn an_adapter_that_rewrites_schemas_or_needs_a_second_pass_is_no_violation() {
    let agent = || {
        let scripts = [
            call("c0", "echo"),
            Script::new().text("said").stop(),
            Script::new().text("{}").stop(),
        ];
        Engine::new(Fits(Arc::new(Scripted::play(scripts)))).tool(echo())
    };
    let form = Options::new().response_format(mynah::ResponseFormat::json_schema("f", json!({})));
    let report = crash_everywhere(agent, "go").options(form.clone()).await;
    assert!(report.records > 8, "{report:?}");
    // A lost model call uses up the turns, and the second pass comes earlier.
    crash_everywhere(agent, "go").options(form.clone().max_turns(2)).await;
    // It uses up the budget, which ends the second pass.
    crash_everywhere(agent, "go").options(form.budget(Budget::new().max_turns(3))).await;
}

#[tokio::test]
#[should_panic(expected = "tool: stamp")]
async fn an_awaited_check_panics_with_the_violation() {
    let made = AtomicU64::new(0);
    let agent = || {
        let number = made.fetch_add(1, Relaxed);
        agent(tool("stamp").handler(move |_, _| async move { json!(number) }))
    };
    crash_everywhere(agent, "go").await;
}

/// Where the outcome of an agent's first call is recorded.
const TOOL_COMPLETED: Option<(u64, Kind)> = Some((5, Kind::ToolCompleted));

fn place(found: &CrashViolation) -> (CrashViolationKind, Option<&str>, Option<(u64, Kind)>) {
    (found.kind(), found.tool(), found.record().zip(found.record_kind()))
}

fn tool(name: &str) -> Tool {
    Tool::new(name, "", json!({}))
}

fn echo() -> Tool {
    tool("echo").handler(async |arguments, _| arguments)
}

fn call(id: &str, name: &str) -> Script {
    Script::new().tool_call(id, name, json!({"x": 1})).call_tools()
}

/// An agent that calls its tool, and is done.
fn agent(tool: Tool) -> Engine {
    let script = [call("c0", tool.name()), Script::new().text("done").stop()];
    Engine::new(Scripted::play(script)).tool(tool)
}

/// An agent that books two seats, one after the other.
fn booker(seat: impl Fn(String) -> u64 + Send + Sync + 'static) -> Engine {
    let book = tool("book").idempotent(2).handler(move |_, context| {
        let seat = seat(context.idempotency_key());
        async move { json!({"seat": seat}) }
    });
    let done = Script::new().text("Both of you have a seat.").stop();
    Engine::new(Scripted::play([call("c0", "book"), call("c1", "book"), done])).tool(book)
}

/// An agent that charges a card.
fn payer(ledger: &Ledger, idempotent: bool, charge: Charge) -> Engine {
    let tool = charging(ledger, charge);
    agent(if idempotent { tool.idempotent(3) } else { tool })
}

type Charge = fn(&Ledger, String, Value) -> Value;

fn charging(ledger: &Ledger, charge: Charge) -> Tool {
    let ledger = Arc::clone(ledger);
    tool("charge").handler(move |arguments, context| {
        let charged = charge(&ledger, context.idempotency_key(), arguments);
        async move { charged }
    })
}

/// Charges with each call.
fn charge(ledger: &Ledger, key: String, arguments: Value) -> Value {
    let mut ledger = ledger.lock().expect("a ledger");
    ledger.push((key, arguments["x"].as_u64().unwrap_or_default()));
    json!({"charges": ledger.len()})
}

/// Charges once for each key.
fn charge_once(ledger: &Ledger, key: String, arguments: Value) -> Value {
    if !ledger.lock().expect("a ledger").iter().any(|(charged, _)| *charged == key) {
        return charge(ledger, key, arguments);
    }
    json!({"charges": charged(ledger)})
}

fn charged(ledger: &Ledger) -> usize {
    ledger.lock().expect("a ledger").len()
}
