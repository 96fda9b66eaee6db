//! How the calls of one answer are run: outcomes, errors and the policy for them, limits, order, concurrency.

use std::future;

use mynah::{
    EncodeError, Engine, Error, ErrorKind, Event, HaltReason, JsonEncoder, Result, Tool,
    ToolContext, ToolErrorDecision, ToolOutcome, ToolReason, ToolResultEncoder, ValidationReason,
    testing::names,
};
use serde_json::{Value, json};

use crate::{
    common::{
        Counter, Seen, boom, both, call, calls, counted, echo, events, folded, map, results, says,
        scripted, sleepy, step, tool, transcript,
    },
    param::Param as _,
};

#[tokio::test]
async fn t01_no_calls_run_nothing() {
    let seen = events(step([], json!([{"finish": "tool_calls"}])).stream()).await;
    assert_eq!(names(&seen), ["message_started", "message_completed", "step_completed"]);
    assert_eq!(folded(&seen).tool_results, []);
}

#[tokio::test]
async fn t02_a_call_gives_one_tool_message_with_its_id_and_json() -> Result<()> {
    let step = step([echo()], calls([("c0", "echo", json!({"x": 1}))])).await?;
    assert_eq!(results(&step), [r#"c0: {"x":1}"#]);
    Ok(())
}

#[tokio::test]
async fn n22_the_result_of_a_tool_that_failed_is_marked_unless_it_was_replaced() -> Result<()> {
    let run = || step([echo(), boom()], both("echo", "boom"));
    let marks = |step: &mynah::StepResult| -> Vec<Value> {
        step.tool_results.iter().map(|message| json!(message.metadata())).collect()
    };
    let expected = [json!({}), json!({"is_error": true})];
    assert_eq!(marks(&run().await?), expected);
    assert_eq!(marks(&folded(&events(run().stream()).await)), expected);
    assert_eq!(marks(&run().on_tool_error(mynah::OnToolError::Halt).await?), expected);
    let replaced = run().on_tool_error(mynah::OnToolError::decide(|_, _| {
        ToolErrorDecision::Continue(json!("never mind"))
    }));
    assert_eq!(marks(&replaced.await?), [json!({}), json!({})]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn t03_results_stand_in_call_order_and_events_in_order_of_completion() -> Result<()> {
    let run = || step([sleepy("slow", 50), sleepy("fast", 10)], both("slow", "fast"));
    let awaited = run().await?;
    assert_eq!(results(&awaited), ["c0: slow", "c1: fast"]);

    let seen = events(run().stream()).await;
    let completed = seen.iter().filter_map(|event| match event {
        Event::ToolExecutionCompleted { id, .. } => Some(id.as_str()),
        _ => None,
    });
    assert_eq!(completed.collect::<Vec<_>>(), ["c1", "c0"]);
    assert_eq!(folded(&seen), awaited);
    Ok(())
}

#[tokio::test]
async fn t04_t05_a_call_to_a_missing_tool_keeps_all_calls_from_running() {
    let (counting, runs) = counted("echo");
    let run = || step([counting.clone()], both("echo", "nope"));
    let error = run().await.unwrap_err();
    assert_eq!(error, Error::unknown_tool("nope"));
    assert_eq!(error.metadata()["tool_name"], "nope");

    let seen = events(run().stream()).await;
    let expected = Event::Error { error: Error::unknown_tool("nope") };
    assert_eq!(seen[seen.len() - 2], expected);
    let of_tools = names(&seen).into_iter().filter(|name| name.starts_with("tool_execution"));
    assert_eq!(of_tools.count(), 0);
    assert_eq!(runs.get(), 0);
}

#[tokio::test]
async fn t06_a_panic_is_told_to_the_model_and_halts_nothing() -> Result<()> {
    let early = Tool::new("early", "", json!({}))
        .handler(|_, _| -> future::Ready<Value> { panic!("before there is a future") });
    let step = step([boom(), early], both("boom", "early")).await?;
    assert_eq!(
        results(&step),
        [
            r#"c0: {"error":"tool error (boom): handler_raised: kaboom"}"#,
            r#"c1: {"error":"tool error (early): handler_raised: before there is a future"}"#,
        ]
    );
    assert!(!step.done);
    assert_eq!(step.metadata, map(json!({})));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn t07_a_panic_halts_where_errors_halt_and_siblings_are_done() -> Result<()> {
    let run = || {
        step([boom(), sleepy("slow", 50)], both("boom", "slow"))
            .on_tool_error(mynah::OnToolError::Halt)
    };
    let step = run().await?;
    let error = r#"{"error":"tool error (boom): handler_raised: kaboom"}"#;
    assert_eq!(results(&step), [format!("c0: {error}"), "c1: slow".to_owned()]);
    assert!(step.done);
    let halt = json!({"halted_reason": "tool_error", "halt_tool_call_id": "c0"});
    assert_eq!(step.metadata, map(halt));

    let seen = events(run().stream()).await;
    let raised = Error::tool(ToolReason::HandlerRaised)
        .with_message("tool error (boom): handler_raised: kaboom")
        .with("tool_name", "boom");
    let halt = Event::tool_halt("c0", HaltReason::ToolError, raised.to_value(), error);
    assert!(seen.contains(&halt), "{seen:?}");
    Ok(())
}

#[tokio::test]
async fn t08_a_policy_of_ones_own_can_replace_an_error() -> Result<()> {
    let asked = Seen::default();
    let policy = asked.clone();
    let run = step([boom()], call("c0", "boom")).on_tool_error(mynah::OnToolError::decide(
        move |call, error| {
            policy.push((call.id.clone(), error.kind()));
            ToolErrorDecision::Continue(json!({"ok": 1}))
        },
    ));
    let seen = events(run.stream()).await;
    let group = json!([
        {"type": "tool_execution_started", "id": "c0", "name": "boom", "arguments": {}},
        {"type": "tool_execution_completed", "id": "c0", "name": "boom", "result": {"ok": {"ok": 1}}},
        {"type": "tool_result_encoded", "id": "c0", "content": "{\"ok\":1}"},
    ]);
    assert_eq!(json!(seen[4..7]), group);
    let step = folded(&seen);
    assert_eq!((results(&step), step.done), (vec![r#"c0: {"ok":1}"#.to_owned()], false));
    assert_eq!(asked.all(), [("c0".to_owned(), ErrorKind::Tool(ToolReason::HandlerRaised))]);
    Ok(())
}

#[tokio::test]
async fn t09_a_policy_of_ones_own_can_halt() -> Result<()> {
    let step = step([boom()], call("c0", "boom"))
        .on_tool_error(mynah::OnToolError::decide(|_, _| ToolErrorDecision::Halt))
        .await?;
    assert_eq!(results(&step), [r#"c0: {"error":"tool error (boom): handler_raised: kaboom"}"#]);
    assert_eq!(step.halted_reason(), Some(HaltReason::ToolError));
    Ok(())
}

#[tokio::test]
async fn t10_a_policy_that_panics_halts_and_its_panic_is_told() -> Result<()> {
    let asked = Counter::default();
    let counter = asked.clone();
    let run = step([boom()], call("c0", "boom")).on_tool_error(mynah::OnToolError::decide(
        move |_, _| {
            counter.add();
            panic!("no idea")
        },
    ));
    let step = run.await?;
    let expected = json!({
        "halted_reason": "tool_error", "halt_tool_call_id": "c0", "on_tool_error_exception": "no idea",
    });
    assert_eq!(step.metadata, map(expected));
    assert_eq!(asked.get(), 1);
    Ok(())
}

#[tokio::test]
async fn a_replacement_that_cannot_be_encoded_halts_and_the_policy_is_not_asked_again() -> Result<()>
{
    let asked = Counter::default();
    let counter = asked.clone();
    let run = step([boom()], call("c0", "boom")).tool_result_encoder(Picky);
    let run = run.on_tool_error(mynah::OnToolError::decide(move |_, _| {
        counter.add();
        ToolErrorDecision::Continue(json!("unspeakable"))
    }));
    let step = run.await?;
    assert_eq!(
        results(&step),
        [r#"c0: {"error":"tool error (boom): encoding_failed: unspeakable"}"#]
    );
    assert_eq!(step.halted_reason(), Some(HaltReason::ToolError));
    assert_eq!(asked.get(), 1);
    Ok(())
}

#[tokio::test]
async fn t13_a_policy_that_does_not_exist_is_refused_before_anything_happens() {
    let model = scripted([call("c0", "echo")]);
    let engine = Engine::new(model.clone()).tool(echo());
    for policy in [json!("maybe"), json!(7), json!(["halt"])] {
        let error = engine.step("hi").param("on_tool_error", policy).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidOptions));
        assert_eq!(error.metadata()["field"], "on_tool_error");
    }
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn t15_every_way_to_fail_has_its_reason() -> Result<()> {
    let reserved = || tool("bad", |_| ToolOutcome::halt("completed", json!(1)));
    let cases = [
        (
            Tool::new("bad", "", json!({})).handler(async |_, _| -> Value { panic!("p") }),
            "handler_raised",
        ),
        (
            Tool::new("bad", "", json!({})).blocking(|_, _| -> Value { panic!("p") }),
            "handler_raised",
        ),
        (reserved(), "invalid_return"),
        (tool("bad", |_| json!("unspeakable")), "encoding_failed"),
        (tool("bad", |_| ToolOutcome::error("e")), "failed"),
    ];
    for (bad, expected) in cases {
        let reasons = Seen::default();
        let policy = reasons.clone();
        let run = step([bad], call("c0", "bad")).tool_result_encoder(Picky);
        let run = run.on_tool_error(mynah::OnToolError::decide(move |_, error| {
            policy.push(error.reason());
            ToolErrorDecision::Halt
        }));
        let step = run.await?;
        assert_eq!(reasons.all(), [expected]);
        assert_eq!(step.halted_reason(), Some(HaltReason::ToolError), "{expected}");
    }
    Ok(())
}

#[tokio::test]
async fn t15_a_tool_that_nothing_can_run_is_refused_before_the_model_is_called() -> Result<()> {
    let bare = || Tool::new("bare", "", json!({}));
    let engine = |tool: Tool| {
        let model = scripted([says("hi")]);
        (Engine::new(model.clone()).tool(tool), model)
    };
    let (bare, manual) = (engine(bare()), engine(bare().manual()));
    let (engine, model) = &bare;
    for refused in [engine.chat("hi").stream(), engine.step("hi").stream()] {
        let error = refused.refusal().expect("a refusal");
        assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidOptions));
        assert!(error.to_string().contains("\"bare\" has no handler"), "{error}");
    }
    assert_eq!(engine.generate("hi").await?.text(), "hi");
    assert_eq!(model.calls(), 1);
    assert_eq!(manual.0.chat("hi").await?.text(), "hi");
    let handed_over = engine.chat("hi").mode(mynah::ToolMode::Manual).stream();
    assert_eq!(handed_over.refusal(), None);
    let elsewhere = engine.clone().tool_executor(mynah::HandlerExecutor).chat("hi").stream();
    assert_eq!(elsewhere.refusal(), None);
    Ok(())
}

#[tokio::test]
async fn t16_t17_what_a_tool_reports_as_its_error_is_told_as_it_is() -> Result<()> {
    let cases = [
        (json!("x"), r#"{"error":"x"}"#),
        (json!({"code": 7}), r#"{"error":{"code":7}}"#),
        (json!(null), r#"{"error":null}"#),
    ];
    for (reported, content) in cases {
        let value = reported.clone();
        let failing = tool("failing", move |_| ToolOutcome::error(value.clone()));
        let seen = events(step([failing], call("c0", "failing")).stream()).await;
        assert_eq!(json!(seen[5])["result"], json!({"error": reported}));
        let step = folded(&seen);
        assert_eq!((results(&step), step.done), (vec![format!("c0: {content}")], false));
    }
    let failing = tool("failing", |_| Err::<Value, _>(std::fmt::Error));
    let step = step([failing], call("c0", "failing")).await?;
    assert_eq!(results(&step), [format!(r#"c0: {{"error":"{}"}}"#, std::fmt::Error)]);
    Ok(())
}

#[tokio::test]
async fn t18_t19_a_question_halts_with_its_hints() {
    let cases = [
        (ToolOutcome::ask("how many?"), json!({})),
        (ToolOutcome::ask_with("how many?", map(json!({"choices": [1]}))), json!({"choices": [1]})),
    ];
    for (outcome, opts) in cases {
        let ask = tool("ask", move |_| outcome.clone());
        let seen = events(step([ask], call("c0", "ask")).stream()).await;
        let requested = json!({
            "type": "ask_user_requested", "tool_call_id": "c0", "tool_name": "ask",
            "question": "how many?", "opts": opts,
        });
        assert_eq!(json!(seen[6]), requested);
        let step = folded(&seen);
        assert_eq!(results(&step), ["c0: <awaiting user response>"]);
        assert!(step.done);
        let halt = json!({
            "halted_reason": "ask_user", "pending_question": "how many?", "pending_tool_call_id": "c0",
            "ask_user_opts": opts,
        });
        assert_eq!(step.metadata, map(halt));
    }
}

#[tokio::test]
async fn t20_a_tool_can_halt_for_a_reason_of_its_own() -> Result<()> {
    let plan = tool("plan", |_| ToolOutcome::halt("plan", json!({"ok": 1})));
    let step = step([plan], call("c0", "plan")).await?;
    assert_eq!(results(&step), [r#"c0: {"ok":1}"#]);
    assert!(step.done);
    let halt =
        json!({"halted_reason": "plan", "halt_tool_call_id": "c0", "halt_result": {"ok": 1}});
    assert_eq!(step.metadata, map(halt));
    Ok(())
}

#[tokio::test]
async fn t21_the_loops_own_reasons_are_not_for_tools() -> Result<()> {
    for reason in HaltReason::RESERVED {
        let name = reason.as_str().to_owned();
        let halting = tool("halting", move |_| ToolOutcome::halt(name.clone(), json!(1)));
        let engine =
            || Engine::new(scripted([call("c0", "halting"), says("on")])).tool(halting.clone());
        let result = engine().chat("hi").await?;
        assert_eq!(
            (result.halted_reason.clone(), result.text().as_ref()),
            (HaltReason::Completed, "on")
        );
        let told = &transcript(&result.thread)[2];
        assert!(told.contains("invalid_return") && told.contains(reason.as_str()), "{told}");

        let halted = engine().chat("hi").on_tool_error(mynah::OnToolError::Halt).await?;
        assert_eq!(halted.halted_reason, HaltReason::ToolError, "{reason}");
    }
    Ok(())
}

#[tokio::test]
async fn t22_a_result_that_cannot_be_encoded_follows_the_policy() -> Result<()> {
    let halts = tool("halts", |_| ToolOutcome::halt("plan", json!("unspeakable")));
    for (name, bad) in [("bad", tool("bad", |_| json!("unspeakable"))), ("halts", halts)] {
        let run = || step([bad.clone()], call("c0", name)).tool_result_encoder(Picky);
        let content =
            format!(r#"c0: {{"error":"tool error ({name}): encoding_failed: unspeakable"}}"#);
        let told = run().await?;
        assert_eq!((results(&told), told.done), (vec![content.clone()], false));
        let halted = run().on_tool_error(mynah::OnToolError::Halt).await?;
        assert_eq!(results(&halted), [content]);
        assert_eq!(halted.halted_reason(), Some(HaltReason::ToolError));
    }
    Ok(())
}

#[tokio::test]
async fn t23_t24_a_tool_knows_the_call_it_serves() -> Result<()> {
    let seen = Seen::<ToolContext>::default();
    let contexts = seen.clone();
    let spy = Tool::new("spy", "", json!({})).handler(move |_, context| {
        contexts.push(context);
        async { json!(null) }
    });
    let engine = Engine::new(scripted([call("c0", "spy"), call("c1", "spy")]))
        .model("fake:m")
        .tool(spy)
        .context("a", 2)
        .context("b", 3);
    engine.step("hi").session_id("s").request_id("r").await?;
    engine.step("hi").context("a", 1).await?;

    let [first, second] = &seen.all()[..] else { panic!("two calls") };
    assert_eq!(*first.context, map(json!({"a": 2, "b": 3})));
    assert_eq!(first.session_id.as_deref(), Some("s"));
    assert_eq!(first.request_id.as_ref(), "r");
    assert_eq!((first.call.id.as_str(), &first.call.arguments), ("c0", &json!({})));
    let own = Engine::of(first).expect("the engine");
    assert_eq!(own.resolve_model(&mynah::Options::new()).unwrap().to_string(), "fake:m");

    assert_eq!(*second.context, map(json!({"a": 1})), "the whole map, not merged");
    assert_eq!(second.session_id, None);
    assert!(!second.request_id.is_empty());
    Ok(())
}

#[tokio::test]
async fn t26_t27_text_stands_as_it_is_and_everything_else_is_json() -> Result<()> {
    let cases = [
        (json!("s"), "s"),
        (json!(""), ""),
        (json!(null), "null"),
        (json!(42), "42"),
        (json!(true), "true"),
        (json!([1]), "[1]"),
        (json!({"a": 1}), r#"{"a":1}"#),
        (json!(ToolOutcome::Ok(json!(1))), r#"{"ok":1}"#),
        (json!(ToolOutcome::error("r")), r#"{"error":"r"}"#),
    ];
    for (value, text) in cases {
        assert_eq!(JsonEncoder.encode(&value).as_deref(), Ok(text));
        let giving = tool("giving", move |_| value.clone());
        let step = step([giving], call("c0", "giving")).await?;
        assert_eq!(results(&step), [format!("c0: {text}")]);
    }
    Ok(())
}

#[tokio::test]
async fn t32_an_error_has_a_text_even_if_the_encoder_has_none_for_it() -> Result<()> {
    let reporting = tool("reporting", |_| ToolOutcome::error(json!({"code": 7})));
    let run = || step([boom(), reporting.clone()], both("boom", "reporting"));
    for step in [run().tool_result_encoder(Mute), run().tool_result_encoder(Panicking)] {
        assert_eq!(
            results(&step.await?),
            [
                r#"c0: {"error":"tool error (boom): handler_raised: kaboom"}"#,
                r#"c1: {"error":"tool error (reporting): {\"code\":7}"}"#,
            ]
        );
    }
    Ok(())
}

#[tokio::test]
async fn t32_an_encoder_that_panics_fails_the_call_and_not_the_chat() -> Result<()> {
    let engine = Engine::new(scripted([call("c0", "echo"), says("on")])).tool(echo());
    let result = engine.chat("hi").tool_result_encoder(Panicking).await?;
    assert_eq!(result.text(), "on");
    let told = r#"tool c0: {"error":"tool error (echo): encoding_failed: no words"}"#;
    assert_eq!(transcript(&result.thread)[2], told);
    Ok(())
}

/// Encodes everything but one text.
struct Picky;

impl ToolResultEncoder for Picky {
    fn name(&self) -> &str {
        "picky"
    }

    fn encode(&self, value: &Value) -> std::result::Result<String, EncodeError> {
        match value.as_str() {
            Some("unspeakable") => Err(EncodeError("unspeakable".to_owned())),
            _ => JsonEncoder.encode(value),
        }
    }
}

/// Encodes nothing.
struct Mute;

impl ToolResultEncoder for Mute {
    fn name(&self) -> &str {
        "mute"
    }

    fn encode(&self, _: &Value) -> std::result::Result<String, EncodeError> {
        Err(EncodeError("mute".to_owned()))
    }
}

/// Does not even say that it cannot.
struct Panicking;

impl ToolResultEncoder for Panicking {
    fn name(&self) -> &str {
        "panicking"
    }

    #[expect(clippy::panic, reason = "what it is for")]
    fn encode(&self, _: &Value) -> std::result::Result<String, EncodeError> {
        panic!("no words")
    }
}
