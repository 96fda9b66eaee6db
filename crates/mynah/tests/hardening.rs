//! Mistakes of adapters, tools and callers, and their consequences.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{future::BoxFuture as LogFuture, stream};
use mynah::{
    Adapter, AdapterReason, BoxFuture, Budget, Engine, Error, Event, FinishReason, Image, Message,
    Metadata, ModelCall, ModelStream, Part, Request, Result, RetryPolicy, Tool, ToolContext,
    ToolExecutor, ToolOutcome, ToolReason,
    log::{
        AnswerPart, Append, Changes, Head, InboxMessage, Lease, Log, MemoryLog, Record, RunFilter,
        RunPage, RunSummary, SealedRun,
    },
    testing::Scripted,
};
use serde_json::{Value, json};

use crate::param::Param as _;

#[tokio::test]
async fn two_calls_with_one_id_are_a_malformed_answer_and_neither_runs() -> Result<()> {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let tool = Tool::new("t", "", json!({})).handler(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        async { json!(1) }
    });
    let call = |n: u8| json!({"tool_call": {"id": "c", "name": "t", "arguments": {"n": n}}});
    let model = Scripted::new([json!([call(1), call(2), {"finish": "tool_calls"}])])?;
    let result = Engine::new(model).tool(tool).chat("go").await?;
    assert_eq!(result.error().map(|error| error.reason()), Some("malformed_response"));
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    // Nothing is lost: both calls stand in the thread, answered.
    assert_eq!(result.steps[0].response.tool_calls().count(), 2);
    assert!(mynah::validate::thread(&result.thread).is_ok());
    Ok(())
}

#[tokio::test]
async fn an_answer_must_have_the_hash_of_what_was_sent_only_where_that_is_said() -> Result<()> {
    fn hashed(hash: &str) -> Vec<Result<Event>> {
        let mut end = Event::message_completed(Some(FinishReason::Stop));
        if let Event::MessageCompleted { metadata, .. } = &mut end {
            metadata.insert("raw_response_hash".to_owned(), json!(hash));
        }
        vec![Ok(Event::message_started()), Ok(Event::text_delta("hi")), Ok(end)]
    }
    const HASH: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    let log = MemoryLog::new();
    for (model, required, expected) in [
        (Raw(|| hashed("")), false, None),
        (Raw(|| hashed("")), true, Some("missing_raw_response_hash")),
        (Raw(|| hashed("abc")), true, Some("missing_raw_response_hash")),
        (Raw(|| hashed(HASH)), true, None),
    ] {
        let engine = Engine::new(model);
        let call = engine.chat("go").require_raw_response_hash(required);
        let result = call.record(&log).await?;
        assert_eq!(result.error().map(|error| error.reason()), expected);
        assert_eq!(result.text(), "hi");
        let run = result.run_id.unwrap_or_default();
        assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
        assert_eq!(mynah::replay_run(&log, &*run).await?.status, "equal");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_log_that_hangs_ends_a_call_after_its_emit_timeout() -> Result<()> {
    let limit = Duration::from_secs(3);
    let model = Scripted::new([json!([{"text": "hi"}, {"finish": "stop"}])])?;
    let call = Engine::new(model).chat("go").record(&Stuck).emit_timeout(limit);
    let began = tokio::time::Instant::now();
    assert_eq!(call.await.map(drop).map_err(|error| error.reason()), Err("unavailable"));
    assert_eq!(began.elapsed(), limit);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_log_that_hangs_keeps_no_call_for_much_longer_than_its_deadline() -> Result<()> {
    for (deadline, limit) in [(2, 5), (60, 60)] {
        let engine = Engine::new(Scripted::says(["hi"]));
        let call = engine.chat("go").record(&Stuck).deadline(Duration::from_secs(deadline));
        let began = tokio::time::Instant::now();
        assert_eq!(call.await.map(drop).map_err(|error| error.reason()), Err("unavailable"));
        assert_eq!(began.elapsed(), Duration::from_secs(limit));
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_begins_with_a_refusal_is_refused_whatever_the_retry_policy() {
    for policy in [RetryPolicy::never(), RetryPolicy::attempts(2)] {
        let engine = Engine::new(Raw(|| vec![Err(Error::adapter(AdapterReason::InvalidRequest))]));
        let error = engine.chat("go").retry(policy).await.err();
        assert_eq!(error.map(|error| error.reason()), Some("invalid_request"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_silent_or_slow_for_too_long_fails_with_a_timeout() -> Result<()> {
    let slow = || {
        Scripted::new([
            json!([{"text": "a"}, {"delay_ms": 300}, {"text": "b"}, {"finish": "stop"}]),
        ])
    };
    for option in ["stream_timeout", "request_timeout"] {
        let result = Engine::new(slow()?).chat("go").param(option, 200).await?;
        assert_eq!(result.error().map(|error| error.reason()), Some("timeout"), "{option}");
        assert_eq!(result.text(), "a");
        let result = Engine::new(slow()?).chat("go").param(option, 400).await?;
        assert_eq!(result.text(), "ab", "{option}");
    }
    // The timer for silence restarts with each event; that of the whole call does not.
    let steady = || {
        Scripted::new([
            json!([{"delay_ms": 150}, {"text": "a"}, {"delay_ms": 150}, {"finish": "stop"}]),
        ])
    };
    assert_eq!(Engine::new(steady()?).chat("go").param("stream_timeout", 200).await?.text(), "a");
    let whole = Engine::new(steady()?).chat("go").param("request_timeout", 200).await?;
    assert_eq!(whole.halted_reason.as_str(), "error");
    Ok(())
}

#[test]
fn a_blocking_tool_that_has_no_thread_yet_never_gets_one_once_the_chat_is_dropped() -> Result<()> {
    let started = Arc::new(AtomicUsize::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(1)
        .build()
        .map_err(|error| Error::adapter(AdapterReason::Unknown).with_message(error.to_string()))?;
    let (count, (release, gate)) = (Arc::clone(&started), std::sync::mpsc::channel::<()>());
    let gate = std::sync::Mutex::new(gate);
    let tool = Tool::new("t", "", json!({})).blocking(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        let _ = gate.lock().map(|gate| gate.recv());
    });
    let call = |id: &str| json!({"tool_call": {"id": id, "name": "t"}});
    let model = Scripted::new([json!([call("a"), call("b"), {"finish": "tool_calls"}])])?;
    runtime.block_on(async {
        let chat = std::future::IntoFuture::into_future(Engine::new(model).tool(tool).chat("go"));
        tokio::select! {
            _ = chat => {}
            () = async { while started.load(Ordering::SeqCst) == 0 { tokio::task::yield_now().await } } => {}
        }
    });
    // The one that runs is let go; the other must not follow it.
    drop(release);
    drop(runtime);
    assert_eq!(started.load(Ordering::SeqCst), 1);
    Ok(())
}

#[tokio::test]
async fn v25_an_image_in_a_system_message_is_refused_before_the_model_is_called() -> Result<()> {
    let model = Scripted::new([json!([{"text": "x"}, {"finish": "stop"}])])?;
    let system: Message = serde_json::from_value(json!({
        "role": "system", "content": [Part::image(Image::from_url("http://x"))]
    }))?;
    let error = Engine::new(model.clone()).chat([system, Message::user("hi")]).await.err();
    let error = error.ok_or_else(|| Error::adapter(AdapterReason::Unknown))?;
    assert_eq!(
        (error.reason(), &error.metadata()["field"]),
        ("invalid_message", &json!("messages.0.content"))
    );
    assert_eq!(error.field_errors()[0].code, "image_in_system_message");
    assert_eq!(model.calls(), 0);
    Ok(())
}

#[tokio::test]
async fn a_step_that_was_ended_early_hands_out_a_thread_that_can_go_on() -> Result<()> {
    for after in 0..8 {
        let hang = Tool::new("t", "", json!({}))
            .handler(async |_, _| std::future::pending::<Value>().await);
        let model = Scripted::new([
            json!([{"text": "a"}, {"tool_call": {"id": "c", "name": "t"}}, {"finish": "tool_calls"}]),
        ])?;
        let mut stream = Engine::new(model).tool(hang).step("go").stream();
        let cancel = stream.cancel_handle();
        let mut collector = mynah::Collector::new("go".into());
        let mut seen = 0;
        loop {
            if seen == after {
                cancel.cancel();
            }
            let Some(event) = futures_util::StreamExt::next(&mut stream).await else { break };
            collector.apply(&event?);
            seen += 1;
        }
        let step = collector.step_result();
        assert!(mynah::validate::thread(&step.thread).is_ok(), "after {after}");
        assert_eq!(step.metadata["halted_reason"], "cancelled", "after {after}");
    }
    Ok(())
}

#[tokio::test]
async fn numbers_that_are_none_are_refused() -> Result<()> {
    let engine = Engine::new(Scripted::default());
    let field = |error: Option<Error>| error.map(|error| error.metadata()["field"].clone());
    let budget = engine.chat("go").budget(Budget::new().max_usd(f64::NAN)).await.err();
    assert_eq!(field(budget), Some(json!("budget.max_usd")));
    assert_eq!(
        field(engine.chat("go").temperature(f64::NAN).await.err()),
        Some(json!("temperature"))
    );
    let stored = serde_json::to_string(&engine.adapter_option("api_key", "sk-1").spec()?)?;
    assert!(!stored.contains("sk-1"));
    Ok(())
}

#[tokio::test]
async fn a_value_too_deep_to_be_read_again_is_a_failed_tool() -> Result<()> {
    let deep = (0..200).fold(json!(1), |value, _| json!([value]));
    let tool = Tool::new("t", "", json!({})).handler(move |_, _| {
        let outcome = ToolOutcome::halt("deep", deep.clone());
        async move { outcome }
    });
    let model = Scripted::new([
        json!([{"tool_call": {"id": "c", "name": "t"}}, {"finish": "tool_calls"}]),
        json!([{"text": "done"}, {"finish": "stop"}]),
    ])?;
    let (session, _) = Engine::new(model).tool(tool).start("go").await?;
    assert_eq!(mynah::decode::session(&serde_json::to_string(&session)?)?, session);
    Ok(())
}

#[tokio::test]
async fn a_result_too_large_to_be_recorded_is_a_tool_that_finished_and_any_other_can_be_exported()
-> Result<()> {
    let large = 15 << 20;
    for (value, fits) in [
        (json!("x".repeat(large - 2)), true),
        (json!("x".repeat(large - 1)), false),
        (json!(vec![0; 1 << 17]), true),
    ] {
        let tool = Tool::new("t", "", json!({})).handler(move |_, _| {
            let value = value.clone();
            async move { value }
        });
        let model = Scripted::new([
            json!([{"tool_call": {"id": "c", "name": "t"}}, {"finish": "tool_calls"}]),
            json!([{"text": "done"}, {"finish": "stop"}]),
        ])?;
        let log = Arc::new(MemoryLog::new());
        let result = Engine::new(model).tool(tool).chat("go").record(&log).await?;
        let text = result.thread.messages.iter().nth(2).expect("a result").text().into_owned();
        let why = "tool error: result_too_large: the result is larger than 15728640 bytes of JSON";
        let error = json!({"error": why}).to_string();
        assert_eq!(text == error, !fits);
        assert_eq!(result.text(), "done");

        let run = result.run_id.expect("a run");
        let mut file = Vec::new();
        mynah::log::bundle::export(&log, &run, &mut file).await?;
        let other = MemoryLog::new();
        mynah::log::bundle::import(&other, std::io::Cursor::new(file)).await?;
        assert_eq!(mynah::replay_run(&other, &*run).await?.status, "equal");
    }
    Ok(())
}

/// Fails to run a tool, with a large error.
struct Refuses;

impl ToolExecutor for Refuses {
    fn name(&self) -> &str {
        "refuses"
    }

    fn execute(&self, _: &Tool, _: Value, _: ToolContext) -> BoxFuture<Result<ToolOutcome>> {
        let error = Error::tool(ToolReason::Failed).with_message("x".repeat(2 << 20));
        Box::pin(async move { Err(error) })
    }
}

#[tokio::test]
async fn an_effect_with_a_large_error_question_or_halt_is_recorded_as_finished() -> Result<()> {
    fn hints(mebibytes: usize) -> Metadata {
        let hint = json!("x".repeat(mebibytes << 20));
        ["a", "b", "c"].map(|name| (name.to_owned(), hint.clone())).into_iter().collect()
    }
    fn text(mebibytes: usize) -> String {
        "\"".repeat(mebibytes << 19)
    }
    let refused = || Engine::new(Scripted::new([]).expect("no answers")).tool_executor(Refuses);
    let own = || Engine::new(Scripted::new([]).expect("no answers"));
    type Run = fn() -> ToolOutcome;
    let ends: [(Run, &Engine, bool); 11] = [
        (|| ToolOutcome::error(text(12)), &own(), true),
        (|| ToolOutcome::error(json!({"list": [text(1)]})), &own(), true),
        (|| ToolOutcome::error("x".repeat(400 << 10)), &own(), false),
        (|| ToolOutcome::transient(text(15)), &own(), true),
        (|| std::panic::panic_any(text(18)), &own(), false),
        (|| ToolOutcome::ask(text(16)), &own(), true),
        (|| ToolOutcome::ask_with("Which?", hints(6)), &own(), true),
        (|| ToolOutcome::ask_with("Which?", hints(4)), &own(), false),
        (|| ToolOutcome::halt(text(16), 1), &own(), true),
        (|| vec![Part::text("x".repeat(14 << 20))].into(), &own(), false),
        (|| ToolOutcome::Ok(json!(1)), &refused(), true),
    ];
    for (case, (end, engine, is_too_large)) in ends.into_iter().enumerate() {
        let policy = if case % 2 == 0 { "halt" } else { "continue" };
        let tool = Tool::new("t", "", json!({})).idempotent(2).blocking(move |_, _| end());
        let answers = Scripted::new([
            json!([{"tool_call": {"id": "c", "name": "t"}}, {"finish": "tool_calls"}]),
            json!([{"text": "done"}, {"finish": "stop"}]),
        ])?;
        let log = MemoryLog::new();
        let engine = engine.clone().adapter(answers).tool(tool);
        let chat = engine.chat("go").param("on_tool_error", policy).record(&log).await?;
        let run = chat.run_id.clone().expect("a run");
        let records = log.read(&run, 1, 100).await?;
        let settled =
            |record: &&Record| ["tool_completed", "tool_failed"].contains(&record.kind().as_str());
        let last = records.iter().rfind(settled).expect("an outcome");
        let fact = serde_json::to_string(&last.fact().expect("a fact"))?;
        assert_eq!(fact.contains("result_too_large"), is_too_large, "{case} {policy}");
        assert_eq!(mynah::replay_run(&log, &*run).await?.status, "equal");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn retries_end_when_their_time_is_up() -> Result<()> {
    let model = Scripted::new(
        (0..9).map(|_| json!([{"preflight_error": "rate_limited", "retry_after_ms": 600}])),
    )?;
    let policy = json!({"max_attempts": 9, "jitter_ms": 0, "max_elapsed_ms": 1_500});
    let error = Engine::new(model.clone()).chat("go").param("retry", policy).await.err();
    assert_eq!(error.map(|error| error.reason()), Some("rate_limited"));
    assert_eq!(model.calls(), 3);
    Ok(())
}

#[tokio::test]
async fn a_tool_that_is_done_keeps_its_result_when_the_stream_is_dropped_right_then() -> Result<()>
{
    let model = Scripted::new([
        json!([{"tool_call": {"id": "c", "name": "t"}}, {"finish": "tool_calls"}]),
    ])?;
    let tool = Tool::new("t", "", json!({})).handler(async |_, _| json!({"paid": true}));
    let mut turn = Engine::new(model).tool(tool).start("go").stream();
    while let Some(event) = futures_util::StreamExt::next(&mut turn).await {
        if matches!(event?, Event::ToolExecutionCompleted { .. }) {
            break;
        }
    }
    let (session, _) = turn.finish();
    assert_eq!(
        session.thread.last_message().map(|m| m.text().into_owned()).as_deref(),
        Some(r#"{"paid":true}"#)
    );
    Ok(())
}

/// An adapter that plays these items as they are.
struct Raw(fn() -> Vec<Result<Event>>);

impl Adapter for Raw {
    fn name(&self) -> &str {
        "raw"
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        let items = (self.0)();
        Box::pin(async move { Ok(Box::pin(stream::iter(items)) as ModelStream) })
    }
}

#[tokio::test]
async fn calls_that_stand_only_in_the_completed_message_are_run_once_each() -> Result<()> {
    let engine = Engine::new(Raw(|| {
        let calls = ["a", "b"].map(|id| Part::tool_call(mynah::ToolCall::new(id, "t", "{}")));
        let mut completed = Event::message_completed(Some(FinishReason::ToolCalls));
        if let Event::MessageCompleted { message, .. } = &mut completed {
            *message = Arc::new(Message::assistant_parts(calls));
        }
        vec![Ok(completed)]
    }));
    let tool = Tool::new("t", "", json!({})).handler(async |_, _| json!(1));
    let chat = engine.tool(tool).step("go").deadline(Duration::from_secs(5)).await?;
    assert_eq!(chat.tool_results.len(), 2);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_replay_does_not_measure_the_deadline_again() -> mynah::Result<()> {
    let millis = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(1));
    let slow = std::sync::Arc::clone(&millis);
    let tool = mynah::Tool::new("t", "", serde_json::json!({})).handler(move |_, _| {
        let millis = slow.swap(400, std::sync::atomic::Ordering::Relaxed);
        async move {
            tokio::time::sleep(std::time::Duration::from_millis(millis)).await;
            serde_json::json!("done")
        }
    });
    let scripts = [
        serde_json::json!([{"tool_call": {"id": "c0", "name": "t"}}, {"finish": "tool_calls"}]),
        serde_json::json!([{"text": "ok"}, {"finish": "stop"}]),
    ];
    let engine = mynah::Engine::new(mynah::testing::Scripted::new(scripts)?).tool(tool);
    let log = std::sync::Arc::new(mynah::log::MemoryLog::new());
    let chat = engine.chat("go").deadline(std::time::Duration::from_millis(200));
    let run = chat.record(&log).await?.run_id.unwrap_or_default();
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    Ok(())
}

/// A log that never answers.
#[derive(Clone)]
struct Stuck;

type Never<T> = LogFuture<'static, Result<T>>;

impl Log for Stuck {
    fn append(&self, _: Append) -> Never<Head> {
        Box::pin(std::future::pending())
    }

    fn read(&self, _: &str, _: u64, _: usize) -> Never<Vec<Record>> {
        Box::pin(std::future::pending())
    }

    fn head(&self, _: &str) -> Never<Option<Head>> {
        Box::pin(std::future::pending())
    }

    fn wait(&self, _: &str, _: u64) -> Never<()> {
        Box::pin(std::future::pending())
    }

    fn run(&self, _: &str) -> Never<Option<RunSummary>> {
        Box::pin(std::future::pending())
    }

    fn runs(&self, _: RunFilter) -> Never<RunPage> {
        Box::pin(std::future::pending())
    }

    fn seals(&self, _: u64, _: usize) -> Never<Vec<SealedRun>> {
        Box::pin(std::future::pending())
    }

    fn lease(&self, _: &str, _: &str, _: Duration) -> Never<Lease> {
        Box::pin(std::future::pending())
    }

    fn take(&self, _: &str, _: &str, _: Duration, _: Option<i64>) -> Never<Lease> {
        Box::pin(std::future::pending())
    }

    fn beat(&self, _: &str, _: Duration) -> Never<()> {
        Box::pin(std::future::pending())
    }

    fn release(&self, _: &Lease) {}

    fn claim(&self, _: &str, _: Duration, _: &[&str], _: usize) -> Never<Vec<Lease>> {
        Box::pin(std::future::pending())
    }

    fn deliver(&self, _: &str, _: &str, _: Vec<u8>) -> Never<bool> {
        Box::pin(std::future::pending())
    }

    fn inbox(&self, _: &str, _: usize) -> Never<Vec<InboxMessage>> {
        Box::pin(std::future::pending())
    }

    fn was_delivered(&self, _: &str, _: &str) -> Never<bool> {
        Box::pin(std::future::pending())
    }

    fn keep_part(&self, _: &Lease, _: AnswerPart) -> Never<()> {
        Box::pin(std::future::pending())
    }

    fn parts(&self, _: &str, _: u64, _: u64) -> Never<Vec<AnswerPart>> {
        Box::pin(std::future::pending())
    }

    fn changes(&self, _: Option<&str>, _: usize) -> Never<Changes> {
        Box::pin(std::future::pending())
    }
}
