//! How calls run: side by side, within limits, again after transient failures, by another executor, or not at all.

use std::{
    future,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _};
use mynah::{
    BoxFuture, Engine, ErrorKind, Event, HaltReason, Result, Tool, ToolContext, ToolExecutor,
    ToolOutcome, ToolSpec, ValidationReason, testing::names,
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::common::{
    Counter, Seen, both, call, echo, events, folded, hanging, results, says, scripted, sleepy,
    step, tool,
};

#[tokio::test(start_paused = true)]
async fn t14_a_tool_that_takes_too_long_is_dropped_and_its_error_follows_the_policy() -> Result<()>
{
    let dropped = Counter::default();
    let run = || {
        step([hanging("hang", &dropped)], call("c0", "hang"))
            .tool_timeout(Duration::from_millis(50))
    };
    let told = run().await?;
    let content = r#"c0: {"error":"tool error (hang): timeout: no result after 50 ms"}"#;
    assert_eq!((results(&told), told.done), (vec![content.to_owned()], false));
    assert_eq!(dropped.get(), 1);

    let halted = run().on_tool_error(mynah::OnToolError::Halt).await?;
    assert_eq!(results(&halted), [content]);
    assert_eq!(halted.halted_reason(), Some(HaltReason::ToolError));
    assert_eq!(dropped.get(), 2);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_tools_own_time_limit_wins_over_that_of_the_call() -> Result<()> {
    let limited = |name, takes, limit| sleepy(name, takes).timeout(Duration::from_millis(limit));
    let tools = [limited("patient", 200, 500), limited("hasty", 80, 20)];
    let step =
        step(tools, both("patient", "hasty")).tool_timeout(Duration::from_millis(100)).await?;
    assert_eq!(
        results(&step),
        [
            "c0: patient".to_owned(),
            r#"c1: {"error":"tool error (hasty): timeout: no result after 20 ms"}"#.to_owned(),
        ]
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_tool_has_thirty_seconds_if_nobody_says() -> Result<()> {
    let run = |takes| step([sleepy("slow", takes)], call("c0", "slow"));
    assert_eq!(results(&run(29_999).await?), ["c0: slow"]);
    let late = run(30_001).await?;
    assert_eq!(
        results(&late),
        [r#"c0: {"error":"tool error (slow): timeout: no result after 30000 ms"}"#]
    );
    Ok(())
}

#[tokio::test]
async fn t25_no_more_calls_run_at_once_than_are_allowed() -> Result<()> {
    for (limit, expected) in [(Some(1), 1), (Some(2), 2), (Some(99), 10), (None, 8)] {
        let gauge = Gauge::default();
        let engine = Engine::new(scripted([ten_calls()])).tool(gauge.tool());
        let step = match limit {
            Some(limit) => engine.step("hi").max_concurrency(limit),
            None => engine.step("hi"),
        };
        let seen = events(step.stream()).await;
        assert_eq!(gauge.most(), expected, "limit {limit:?}");
        assert_eq!(most_started(&seen), expected, "limit {limit:?}");
        assert_eq!(folded(&seen).tool_results.len(), 10);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_busy_tools_really_run_at_the_same_time() -> Result<()> {
    let meeting = Arc::new(Barrier::new(2));
    let busy = Tool::new("busy", "", json!({})).blocking(move |_, _| {
        // Neither gets past this line unless the other has come to it.
        meeting.wait();
        json!("met")
    });
    let step = step([busy], both("busy", "busy")).await?;
    assert_eq!(results(&step), ["c0: met", "c1: met"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn t28_t29_of_two_halting_calls_the_first_wins_and_both_are_answered() -> Result<()> {
    let slow = Tool::new("slow", "", json!({})).handler(async |_, _| {
        tokio::time::sleep(Duration::from_millis(50)).await;
        ToolOutcome::halt("slow", json!("s"))
    });
    let fast = tool("fast", |_| ToolOutcome::ask("q"));
    for (script, winner) in [
        (both("slow", "fast"), HaltReason::Custom("slow".to_owned())),
        (both("fast", "slow"), HaltReason::AskUser),
    ] {
        let run = || step([slow.clone(), fast.clone()], script.clone());
        let awaited = run().await?;
        assert_eq!(awaited.halted_reason(), Some(winner));
        assert_eq!(awaited.tool_results.len(), 2);

        let seen = events(run().stream()).await;
        let order: Vec<_> = names(&seen)
            .into_iter()
            .filter(|name| name.contains("ask") || *name == "tool_halt")
            .collect();
        assert_eq!(order, ["ask_user_requested", "tool_halt"], "the fast one is told first");
        assert_eq!(folded(&seen), awaited);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn t30_a_halt_does_not_stop_its_siblings() -> Result<()> {
    let plan = tool("plan", |_| ToolOutcome::halt("plan", json!("p")));
    let step = step([plan, sleepy("slow", 50)], both("plan", "slow")).await?;
    assert_eq!(results(&step), ["c0: p", "c1: slow"]);
    assert_eq!(step.halted_reason(), Some(HaltReason::Custom("plan".to_owned())));
    Ok(())
}

#[tokio::test]
async fn t30_a_halt_does_not_keep_waiting_siblings_from_starting() -> Result<()> {
    let plan = tool("plan", |_| ToolOutcome::halt("plan", json!("p")));
    let step = step([plan, echo()], both("plan", "echo")).max_concurrency(1).await?;
    assert_eq!(results(&step), ["c0: p", "c1: {}"]);
    Ok(())
}

#[tokio::test]
async fn t31_the_calls_executor_wins_over_the_engines_over_the_default() -> Result<()> {
    let engine = || Engine::new(scripted([call("c0", "echo")])).tool(echo());
    let default = engine().step("hi").await?;
    assert_eq!(results(&default), ["c0: {}"]);
    let own = engine().tool_executor(Named("engine"));
    assert_eq!(results(&own.step("hi").await?), ["c0: engine ran echo"]);
    let own = engine().tool_executor(Named("engine"));
    let step = own.step("hi").tool_executor(Named("call")).await?;
    assert_eq!(results(&step), ["c0: call ran echo"]);
    Ok(())
}

#[tokio::test]
async fn t33_that_a_tool_runs_is_told_before_it_is_done() {
    let allowed = Arc::new(Notify::new());
    let gate = Arc::clone(&allowed);
    let long = Tool::new("long", "", json!({})).handler(move |_, _| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            json!("done")
        }
    });
    let mut stream = step([long], call("c0", "long")).stream();
    while let Some(event) = stream.next().await {
        if event.unwrap().type_name() == "tool_execution_started" {
            break;
        }
    }
    assert!(stream.next().now_or_never().is_none(), "the tool waits for leave");
    allowed.notify_one();
    let rest = events(stream).await;
    assert_eq!(names(&rest), ["tool_execution_completed", "tool_result_encoded", "step_completed"]);
}

#[tokio::test]
async fn t34_arguments_that_are_not_json_or_do_not_fit_keep_the_tool_from_running() -> Result<()> {
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let cases = [
        (
            r#"{"n":"#,
            "the arguments are not valid JSON: EOF while parsing a value at line 1 column 5",
        ),
        (
            r#"{"n": 1} {"#,
            "the arguments are not valid JSON: trailing characters at line 1 column 10",
        ),
        (r#"{"n": "one"}"#, r#"/n: expected integer, got "one""#),
        ("", "/n: missing"),
        ("[1]", "the arguments: expected object, got [1]"),
    ];
    for (raw, why) in cases {
        let runs = Counter::default();
        let counter = runs.clone();
        let strict = Tool::new("strict", "", schema.clone()).handler(move |_, _| {
            counter.add();
            async { json!(null) }
        });
        let script = json!([
            {"tool_call": {"id": "c0", "name": "strict", "raw_arguments": raw}}, {"finish": "tool_calls"},
        ]);
        let run = || step([strict.clone()], script.clone());
        let message = format!("tool error (strict): invalid_arguments: {why}");
        let told = run().await?;
        assert_eq!(results(&told), [format!("c0: {}", json!({"error": message}))]);
        assert!(!told.done);
        let sent = told.response.tool_calls().next().expect("the call");
        assert_eq!(sent.raw_arguments, raw, "the model's own words are kept");

        let halted = run().on_tool_error(mynah::OnToolError::Halt).await?;
        assert_eq!(halted.halted_reason(), Some(HaltReason::ToolError), "{raw}");
        assert_eq!(runs.get(), 0, "{raw}");
    }
    Ok(())
}

#[tokio::test]
async fn t34_a_schema_that_arguments_cannot_be_checked_with_is_refused_before_the_model_is_called()
-> Result<()> {
    let cases = [
        (json!({"required": "people"}), r#"/required: "people" is not of type "array""#),
        (json!({"properties": {"a": {"type": "strin"}}}), "/properties/a/type: "),
        (json!({"$ref": "http://example.com/x"}), "http://example.com/x"),
        (json!({"$ref": "#/$defs/missing"}), "missing"),
        (json!({"$schema": "http://example.com/draft"}), "http://example.com/draft"),
    ];
    for (schema, why) in cases {
        let model = scripted([says("hi")]);
        let book = Tool::new("book", "", schema).handler(async |_, _| json!(null));
        let engine = Engine::new(model.clone()).tools([echo(), book]);
        for refused in [engine.chat("hi").await.map(drop), engine.step("hi").await.map(drop)] {
            let error = refused.expect_err(why);
            assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidRequest));
            let broken = error.field_errors();
            assert_eq!(
                broken.iter().map(ToString::to_string).collect::<Vec<_>>(),
                ["tools.1.schema: not_json_schema"]
            );
            let told = error.to_string();
            assert!(
                told.contains(r#"the schema of tool "book" cannot be used: "#)
                    && told.contains(why),
                "{told}"
            );
        }
        assert_eq!(model.calls(), 0);
        // What runs no tool leaves the schema to the provider.
        assert_eq!(engine.generate("hi").await?.text(), "hi");
    }
    Ok(())
}

#[tokio::test]
async fn t34_no_arguments_are_an_empty_object() -> Result<()> {
    for raw in ["", "  ", "null", "{}"] {
        let script = json!([
            {"tool_call": {"id": "c0", "name": "echo", "raw_arguments": raw}}, {"finish": "tool_calls"},
        ]);
        assert_eq!(results(&step([echo()], script).await?), ["c0: {}"], "{raw:?}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn transient_errors_of_an_idempotent_tool_are_tried_again_in_one_group_of_events() {
    let flaky = Flaky::new(2);
    let seen = events(step([flaky.tool().idempotent(3)], call("c0", "flaky")).stream()).await;
    let group = ["tool_execution_started", "tool_execution_completed", "tool_result_encoded"];
    assert_eq!(names(&seen)[4..], [&group[..], &["step_completed"]].concat());
    assert_eq!(results(&folded(&seen)), ["c0: at last"]);
    assert_eq!(flaky.runs.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_keeps_failing_is_told_once_with_its_last_error() -> Result<()> {
    let flaky = Flaky::new(9);
    let asked = Seen::default();
    let policy = asked.clone();
    let run = step([flaky.tool().idempotent(3)], call("c0", "flaky"));
    let run = run.on_tool_error(mynah::OnToolError::decide(move |_, error| {
        policy.push(error.metadata()["error"].clone());
        mynah::ToolErrorDecision::Halt
    }));
    let step = run.await?;
    assert_eq!(results(&step), [r#"c0: {"error":"failure 3"}"#]);
    assert_eq!(asked.all(), ["failure 3"]);
    assert_eq!(flaky.runs.get(), 3);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_may_do_harm_or_will_not_help_is_not_tried_again() -> Result<()> {
    let mut spec = ToolSpec::new("flaky", "", json!({}));
    spec.max_attempts = 3;
    let flaky = Flaky::new(1);
    let handler = Arc::clone(flaky.tool().get_handler().expect("a handler"));
    let not_idempotent = Tool::from_spec(spec).with_handler(handler);
    let step_of = |tool| step([tool], call("c0", "flaky"));
    assert_eq!(results(&step_of(not_idempotent).await?), [r#"c0: {"error":"failure 1"}"#]);
    assert_eq!(flaky.runs.get(), 1, "not idempotent");

    let final_error = Counter::default();
    let counter = final_error.clone();
    let failing = tool("flaky", move |_| {
        counter.add();
        ToolOutcome::error("for good")
    });
    assert_eq!(results(&step_of(failing.idempotent(3)).await?), [r#"c0: {"error":"for good"}"#]);
    assert_eq!(final_error.get(), 1, "not transient");

    let panicked = Counter::default();
    let counter = panicked.clone();
    let panicking = tool("flaky", move |_| -> Value {
        counter.add();
        panic!("p")
    });
    step_of(panicking.idempotent(3)).await?;
    assert_eq!(panicked.get(), 1, "a panic is not transient");

    let dropped = Counter::default();
    let hanging = hanging("flaky", &dropped).idempotent(3);
    step_of(hanging).tool_timeout(Duration::from_millis(5)).await?;
    assert_eq!(dropped.get(), 1, "a timeout is not transient");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn every_try_has_the_whole_time_limit() -> Result<()> {
    let tries = Counter::default();
    let counter = tries.clone();
    let slow = Tool::new("slow", "", json!({})).idempotent(3).handler(move |_, _| {
        counter.add();
        let last = counter.get() == 3;
        async move {
            tokio::time::sleep(Duration::from_millis(80)).await;
            if last { ToolOutcome::from("done") } else { ToolOutcome::transient("again") }
        }
    });
    let step = step([slow], call("c0", "slow")).tool_timeout(Duration::from_millis(100)).await?;
    assert_eq!(results(&step), ["c0: done"]);
    Ok(())
}

fn ten_calls() -> Value {
    let call =
        |n: usize| json!({"tool_call": {"id": format!("c{n}"), "name": "gauge", "arguments": {}}});
    Value::Array((0..10).map(call).chain([json!({"finish": "tool_calls"})]).collect())
}

/// The maximum number of concurrent calls, according to the events.
fn most_started(events: &[Event]) -> usize {
    let mut running = 0;
    let count = |event: &Event| {
        match event {
            Event::ToolExecutionStarted { .. } => running += 1,
            Event::ToolExecutionCompleted { .. } => running -= 1,
            _ => {}
        }
        running
    };
    events.iter().map(count).max().unwrap_or(0)
}

/// Counts how many of its calls are in flight.
#[derive(Clone, Default)]
struct Gauge {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Gauge {
    fn tool(&self) -> Tool {
        let gauge = self.clone();
        Tool::new("gauge", "", json!({})).handler(move |_, _| {
            let gauge = gauge.clone();
            async move {
                let running = 1 + gauge.running.fetch_add(1, Ordering::AcqRel);
                gauge.most.fetch_max(running, Ordering::AcqRel);
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                gauge.running.fetch_sub(1, Ordering::AcqRel);
            }
        })
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::Acquire)
    }
}

/// Fails so often, then gives a value.
struct Flaky {
    failures: usize,
    runs: Counter,
}

impl Flaky {
    fn new(failures: usize) -> Self {
        Self { failures, runs: Counter::default() }
    }

    fn tool(&self) -> Tool {
        let (failures, runs) = (self.failures, self.runs.clone());
        tool("flaky", move |_| {
            runs.add();
            match runs.get() {
                run if run <= failures => ToolOutcome::transient(format!("failure {run}")),
                _ => ToolOutcome::from("at last"),
            }
        })
    }
}

/// Runs no tool, and says who was asked to.
struct Named(&'static str);

impl ToolExecutor for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn execute(&self, tool: &Tool, _: Value, _: ToolContext) -> BoxFuture<Result<ToolOutcome>> {
        let told = format!("{} ran {}", self.0, tool.name());
        Box::pin(future::ready(Ok(ToolOutcome::from(told))))
    }
}
