//! Layers around tools: each alone, their order, and one of one's own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use mynah_data::{Part, ToolCall, ToolOutcome};
use mynah_step::{
    HandlerExecutor, SystemWorld, Tool, ToolContext, ToolLimits,
    layers::{Cache, ConcurrencyLimit, OutputCap, RateLimit, RedactOutput, Timeout},
    run_tool,
};
use serde_json::{Value, json};
use tokio::time::Instant;

fn tool() -> Tool {
    Tool::new("t", "", json!({"type": "object"}))
}

async fn outcome(tool: &Tool, arguments: Value) -> ToolOutcome {
    let context =
        ToolContext::new(ToolCall::from_value("c0", tool.name(), arguments), Arc::new(SystemWorld));
    let limits = ToolLimits::new(Duration::from_secs(3600));
    run_tool(Arc::new(HandlerExecutor), tool.clone(), context, limits).await.outcome.unwrap()
}

fn ok(value: Value) -> ToolOutcome {
    ToolOutcome::Ok(value)
}

#[tokio::test]
async fn the_layer_that_was_added_last_is_the_outermost_and_the_handler_may_come_later() {
    let mark = |tool: Tool, name: &'static str| {
        tool.around(move |next, mut arguments, context| async move {
            arguments["way"] = json!(format!("{}{name}", arguments["way"].as_str().unwrap_or("")));
            match next.call(arguments, context).await {
                ToolOutcome::Ok(Value::String(text)) => ok(json!(format!("{text}{name}"))),
                outcome => outcome,
            }
        })
    };
    let echo = async |arguments: Value, _| arguments["way"].clone();
    let before = mark(mark(tool().handler(echo), "a"), "b");
    assert_eq!(outcome(&before, json!({})).await, ok(json!("baab")));
    let after = mark(mark(tool(), "a"), "b").handler(echo);
    assert_eq!(outcome(&after, json!({})).await, ok(json!("baab")));
    let between = mark(mark(tool(), "a").blocking(|arguments, _| arguments["way"].clone()), "b");
    assert_eq!(outcome(&between, json!({})).await, ok(json!("baab")));
}

#[tokio::test]
async fn the_texts_of_a_result_with_parts_are_redacted_and_cut_together() {
    let parts = |texts: [&str; 3]| ToolOutcome::Parts(texts.map(Part::text).into());
    let returns = tool().handler_with_state(["key=k1", "k1 again", "more"], async |texts, _, _| {
        texts.map(Part::text).to_vec()
    });
    let redacted = returns.clone().layer(RedactOutput::words(["k1"]));
    let expected = parts(["key=[redacted]", "[redacted] again", "more"]);
    assert_eq!(outcome(&redacted, json!({})).await, expected);
    let cut = [
        "key=k1",
        "k1 a\n[truncated: the first 4 of 8 bytes]",
        "\n[truncated: the first 0 of 4 bytes]",
    ];
    assert_eq!(outcome(&returns.layer(OutputCap::new(10)), json!({})).await, parts(cut));
}

#[tokio::test]
async fn a_long_output_is_cut_between_characters_and_says_so() {
    let cap =
        |value: Value| tool().handler_with_state(value, async |v, _, _| v).layer(OutputCap::new(5));
    assert_eq!(outcome(&cap(json!("12345")), json!({})).await, ok(json!("12345")));
    let cut = "1234\n[truncated: the first 4 of 8 bytes]";
    assert_eq!(outcome(&cap(json!("1234é67")), json!({})).await, ok(json!(cut)));
    let cut = "[1,2,\n[truncated: the first 5 of 7 bytes]";
    assert_eq!(outcome(&cap(json!([1, 2, 3])), json!({})).await, ok(json!(cut)));
    assert_eq!(outcome(&cap(json!([1])), json!({})).await, ok(json!([1])));
    let fails = tool().handler(async |_, _| Err::<(), _>("a long error")).layer(OutputCap::new(6));
    let cut = ToolOutcome::error("a long\n[truncated: the first 6 of 12 bytes]");
    assert_eq!(outcome(&fails, json!({})).await, cut);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_is_a_failure_that_may_pass() {
    let slow = tool()
        .handler(async |_, _| tokio::time::sleep(Duration::from_secs(5)).await)
        .layer(Timeout::new(Duration::from_millis(20)));
    assert_eq!(outcome(&slow, json!({})).await, ToolOutcome::transient("no result after 20 ms"));
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_run_at_once_than_the_limit_of_all_its_tools() {
    let limit = ConcurrencyLimit::new(2);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let busy = || {
        tool().layer(limit.clone()).handler_with_state(
            (running.clone(), most.clone()),
            async |(running, most), _, _| {
                most.fetch_max(running.fetch_add(1, Relaxed) + 1, Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
                running.fetch_sub(1, Relaxed);
            },
        )
    };
    let (one, other) = (busy(), busy());
    join_all((0..6).map(|n| outcome(if n % 2 == 0 { &one } else { &other }, json!({})))).await;
    assert_eq!(most.load(Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn calls_over_the_rate_wait() {
    let began = Instant::now();
    let limited = tool()
        .handler_with_state(began, async |began, _, _| began.elapsed().as_secs())
        .layer(RateLimit::new(2, Duration::from_secs(60)));
    let started = join_all((0..5).map(|_| outcome(&limited, json!({})))).await;
    assert_eq!(started, [0, 0, 60, 60, 120].map(|second| ok(json!(second))));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(outcome(&limited, json!({})).await, ok(json!(720)));
}

#[tokio::test(start_paused = true)]
async fn a_cached_result_is_returned_for_the_same_arguments_while_it_is_fresh_and_there_is_room() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = tool()
        .handler_with_state(runs.clone(), async |runs, arguments: Value, _| {
            let run = runs.fetch_add(1, Relaxed);
            if arguments["fail"] == true { Err("no".to_owned()) } else { Ok(run) }
        })
        .layer(Cache::new(2, Duration::from_secs(60)));
    assert_eq!(outcome(&counted, json!({"a": 1, "b": 2})).await, ok(json!(0)));
    assert_eq!(outcome(&counted, json!({"b": 2, "a": 1})).await, ok(json!(0)), "another order");
    assert_eq!(outcome(&counted, json!({"a": 2})).await, ok(json!(1)));
    assert_eq!(outcome(&counted, json!({"a": 3})).await, ok(json!(2)));
    assert_eq!(outcome(&counted, json!({"a": 1, "b": 2})).await, ok(json!(3)), "made room");
    assert_eq!(outcome(&counted, json!({"a": 3})).await, ok(json!(2)));
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(outcome(&counted, json!({"a": 3})).await, ok(json!(4)), "too old");
    for _ in 0..2 {
        assert_eq!(outcome(&counted, json!({"fail": true})).await, ToolOutcome::error("no"));
    }
    assert_eq!(runs.load(Relaxed), 7, "failures are not cached");
}

#[tokio::test]
async fn redaction_reaches_every_text_of_an_outcome() {
    let redact = || RedactOutput::words(["hunter2", ""]);
    let value = json!({"hunter2": ["my hunter2", 5, {"a": "hunter2"}]});
    let leaks = tool().handler_with_state(value, async |value, _, _| value).layer(redact());
    let clean = json!({"[redacted]": ["my [redacted]", 5, {"a": "[redacted]"}]});
    assert_eq!(outcome(&leaks, json!({})).await, ok(clean));
    let fails = tool().handler(async |_, _| Err::<(), _>("bad hunter2")).layer(redact());
    assert_eq!(outcome(&fails, json!({})).await, ToolOutcome::error("bad [redacted]"));
    let asks = tool().handler(async |_, _| ToolOutcome::ask("Is it hunter2?")).layer(redact());
    assert_eq!(outcome(&asks, json!({})).await, ToolOutcome::ask("Is it [redacted]?"));
    let panics = tool().handler(async |_, _| -> Value { panic!("no hunter2") }).layer(redact());
    let context =
        ToolContext::new(ToolCall::from_value("c0", "t", json!({})), Arc::new(SystemWorld));
    let limits = ToolLimits::new(Duration::from_secs(3600));
    let settled = run_tool(Arc::new(HandlerExecutor), panics, context, limits).await;
    let error = settled.outcome.unwrap_err().to_string();
    assert_eq!(error, "tool error (t): handler_raised: no [redacted]");
}
