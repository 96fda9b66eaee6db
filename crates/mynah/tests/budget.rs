//! A run stays within its budget, over all its calls and processes, and reports the limit that it
//! passed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use mynah::{
    Breach, BreachTime, Budget, Catalog, Engine, Error, Event, HaltReason, Limit, ModelInfo,
    ModelRef, OnUncertain, Options, Pricing, Result, RunId, Status, Tool, ToolOutcome, Tools,
    World,
    log::{Append, Fact, Log, MemoryLog, VerifyStatus, verify},
    testing::{self, Scripted},
};
use serde_json::{Value, json};

use crate::param::Param as _;

/// Each limit, the place, a script that passes it, and what is left of the answer.
fn axes() -> Vec<(Value, Value, Value, &'static str)> {
    let said = json!([{"text": "hello "}, {"text": "world!"}, {"finish": "stop"}]);
    let reported = |input: u64, output: u64| {
        let usage = json!({"input_tokens": input, "output_tokens": output});
        json!([{"text": "hello"}, {"usage": usage}, {"text": "!"}, {"finish": "stop"}])
    };
    let breach = |limit: &str, cap: Value, actual: Value, place: &str| json!({"limit": limit, "cap": cap, "actual": actual, "where": place});
    vec![
        // The prompt is "go" and the tool's schema: 2 characters and 2 bytes.
        (
            json!({"max_input_tokens": 1}),
            breach("input_tokens", json!(1), json!(2), "pre_call"),
            said.clone(),
            "",
        ),
        (
            json!({"max_total_tokens": 1}),
            breach("total_tokens", json!(1), json!(2), "pre_call"),
            said.clone(),
            "",
        ),
        (
            json!({"max_usd": 1.5}),
            breach("usd", json!(1.5), json!(2.0), "pre_call"),
            said.clone(),
            "",
        ),
        (
            json!({"max_turns": 0}),
            breach("turns", json!(0), json!(1), "pre_call"),
            said.clone(),
            "",
        ),
        // Counted while nothing is reported.
        (
            json!({"max_output_tokens": 3}),
            breach("output_tokens", json!(3), json!(4), "mid_stream"),
            said.clone(),
            "hello world!",
        ),
        (
            json!({"max_total_tokens": 3}),
            breach("total_tokens", json!(3), json!(4), "mid_stream"),
            said.clone(),
            "hello ",
        ),
        (
            json!({"max_usd": 5.5}),
            breach("usd", json!(5.5), json!(6.0), "mid_stream"),
            said,
            "hello ",
        ),
        // As reported.
        (
            json!({"max_input_tokens": 2}),
            breach("input_tokens", json!(2), json!(3), "mid_stream"),
            reported(3, 9),
            "hello",
        ),
        (
            json!({"max_output_tokens": 8}),
            breach("output_tokens", json!(8), json!(9), "mid_stream"),
            reported(3, 9),
            "hello",
        ),
        (
            json!({"max_total_tokens": 11}),
            breach("total_tokens", json!(11), json!(12), "mid_stream"),
            reported(3, 9),
            "hello",
        ),
        (
            json!({"max_usd": 20.0}),
            breach("usd", json!(20.0), json!(21.0), "mid_stream"),
            reported(3, 9),
            "hello",
        ),
    ]
}

#[tokio::test]
async fn a_chat_that_passes_a_limit_ends_and_says_which() -> Result<()> {
    for (budget, breach, script, text) in axes() {
        let result = engine([script])?.chat("go").options(limited(&budget)).await?;
        assert_eq!(result.halted_reason, HaltReason::BudgetExceeded, "{budget}");
        assert_eq!(result.metadata["budget"], breach, "{budget}");
        assert!(result.steps.is_empty(), "{budget}");
        assert_eq!(result.text(), text, "{budget}");
        // What was said stays in the conversation, marked as what it is.
        let last = result
            .thread
            .last_message()
            .map(|m| (m.text().into_owned(), m.metadata().contains_key("partial")));
        let expected = if text.is_empty() { ("go", false) } else { (text, true) };
        assert_eq!(last, Some((expected.0.to_owned(), expected.1)), "{budget}");
    }
    Ok(())
}

#[tokio::test]
async fn exactly_the_limit_is_not_more_than_it() -> Result<()> {
    for budget in [
        json!({"max_output_tokens": 9, "max_input_tokens": 3, "max_total_tokens": 12, "max_usd": 21.0}),
        json!({"max_turns": 1, "max_tool_calls": 0}),
    ] {
        let usage = json!({"input_tokens": 3, "output_tokens": 9});
        let script = json!([{"text": "hello"}, {"usage": usage}, {"finish": "stop"}]);
        let result = engine([script])?.chat("go").options(limited(&budget)).await?;
        assert_eq!(result.halted_reason, HaltReason::Completed, "{budget}");
    }
    Ok(())
}

#[tokio::test]
async fn every_over_budget_run_is_sealed_replays_and_streams_again_alike() -> Result<()> {
    for (budget, _, script, _) in axes() {
        let log = Arc::new(MemoryLog::new());
        let stream =
            engine([script.clone()])?.chat("go").options(limited(&budget)).record(&log).stream();
        let run = stream.run_id().cloned().unwrap_or_default();
        let live = testing::collect(stream).await?;
        let records = log.read(&run, 1, 100).await?;
        assert_eq!(verify(&run, &records)?.status, VerifyStatus::Verified, "{budget}");
        let kinds: Vec<_> = records.iter().map(|record| record.kind().as_str()).collect();
        assert_eq!(kinds[kinds.len() - 3..], ["budget_exceeded", "failed", "sealed"], "{budget}");
        let engine = engine([script])?;
        assert_eq!(
            engine.replay(&log, &*run).replay_tools(Tools::All).await?.status,
            "equal",
            "{budget}"
        );
        let again =
            testing::collect(engine.replay(&log, &*run).replay_tools(Tools::All).stream()).await?;
        assert_eq!(live, again, "{budget}");
    }
    Ok(())
}

#[tokio::test]
async fn budget_errors_of_single_calls_match_the_public_error() -> Result<()> {
    for (budget, breach, script, text) in axes() {
        let generated = engine([script.clone()])?.generate("go").options(limited(&budget)).await;
        let stepped = engine([script.clone()])?.step("go").options(limited(&budget)).await;
        for error in [generated.expect_err("over budget"), stepped.expect_err("over budget")] {
            assert_eq!(
                (error.kind().type_name(), error.reason()),
                ("engine_error", "budget_exceeded")
            );
            assert_eq!(error.metadata()["budget"], breach, "{budget}");
            let partial =
                error.metadata().get("partial").map(|partial| partial["output_text"].clone());
            assert_eq!(partial, (!text.is_empty()).then(|| json!(text)), "{budget}");
        }
        // A stream of the same ends with the same error, and the run replays.
        let log = Arc::new(MemoryLog::new());
        let call = engine([script.clone()])?.step("go").options(limited(&budget)).record(&log);
        let stream = call.stream();
        let run = stream.run_id().cloned().unwrap_or_default();
        let error = testing::collect(stream).await.expect_err("over budget");
        assert_eq!(error.metadata()["budget"], breach, "{budget}");
        assert_eq!(
            engine([script])?.replay(&log, &*run).replay_tools(Tools::All).await?.status,
            "equal",
            "{budget}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn tools_that_would_be_too_many_are_not_run_and_their_calls_are_answered() -> Result<()> {
    let log = Arc::new(MemoryLog::new());
    let budget = Budget::new().max_tool_calls(2);
    let result = engine([calls(2), calls(1), text()])?
        .chat("go")
        .budget(budget.clone())
        .record(&log)
        .await?;
    let breach = Breach::new(Limit::ToolCalls, 2, 3, BreachTime::PreCall);
    assert_eq!(result.metadata["budget"], json!(breach));
    assert_eq!(result.steps.len(), 1);
    assert_eq!(result.metadata["repaired_tool_calls"], json!(["c0"]));
    assert!(result.thread.messages.unanswered().is_empty());
    let run = result.run_id.unwrap_or_default();
    assert_eq!(engine([])?.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    // A single step refuses too, after the model has answered.
    let stepped = engine([calls(3)])?.step("go").budget(budget).record(&log).await;
    let error = stepped.expect_err("over budget");
    assert_eq!(error.metadata()["budget"]["actual"], 3);
    let answer = &error.metadata()["partial"];
    assert_eq!(answer["tool_calls"].as_array().map(Vec::len), Some(3), "{answer}");
    let run = log.runs(Default::default()).await?.runs[0].run_id.clone();
    assert_eq!(engine([])?.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn budgets_are_cumulative_over_the_calls_of_a_run() -> Result<()> {
    let turn = |last: bool| {
        let usage = json!({"usage": {"input_tokens": 10, "output_tokens": 4}});
        if last {
            json!([{"text": "x"}, usage, {"finish": "stop"}])
        } else {
            json!([{"tool_call": {"id": "c0", "name": "act"}}, usage, {"finish": "tool_calls"}])
        }
    };
    for (budget, expected) in [
        (
            json!({"max_input_tokens": 19}),
            Breach::new(Limit::InputTokens, 19, 20, BreachTime::MidStream),
        ),
        (
            json!({"max_output_tokens": 7}),
            Breach::new(Limit::OutputTokens, 7, 8, BreachTime::MidStream),
        ),
        (
            json!({"max_total_tokens": 27}),
            Breach::new(Limit::TotalTokens, 27, 28, BreachTime::MidStream),
        ),
        (json!({"max_usd": 35.5}), Breach::usd(35.5, 36.0, BreachTime::MidStream)),
        // 10 as reported, and the estimate of the next request: "go", "{}", "1" and the schema.
        (
            json!({"max_input_tokens": 11}),
            Breach::new(Limit::InputTokens, 11, 13, BreachTime::PreCall),
        ),
        (json!({"max_turns": 1}), Breach::new(Limit::Turns, 1, 2, BreachTime::PreCall)),
    ] {
        let result =
            engine([turn(false), turn(true)])?.chat("go").options(limited(&budget)).await?;
        assert_eq!(result.metadata["budget"], json!(expected), "{budget}");
        assert_eq!(result.steps.len(), 1, "{budget}");
    }
    Ok(())
}

#[tokio::test]
async fn what_was_spent_before_a_resume_counts() -> Result<()> {
    for (budget, expected) in [
        (
            json!({"max_output_tokens": 5}),
            Breach::new(Limit::OutputTokens, 5, 6, BreachTime::MidStream),
        ),
        (json!({"max_turns": 1}), Breach::new(Limit::Turns, 1, 2, BreachTime::PreCall)),
    ] {
        let usage = json!({"usage": {"input_tokens": 1, "output_tokens": 3}});
        let first = json!([{"tool_call": {"id": "c0", "name": "act", "arguments": {"do": "ask"}}}, usage, {"finish": "tool_calls"}]);
        let second = json!([{"text": "so"}, usage, {"finish": "stop"}]);
        let (log, run) = waiting(engine([first.clone()])?, &budget).await?;
        let done = engine([second.clone()])?.resume(&log, &*run).answer("two").await?;
        assert_eq!(done.metadata["budget"], json!(expected), "{budget}");
        assert_eq!(
            engine([first, second])?.replay(&log, &*run).replay_tools(Tools::All).await?.status,
            "equal",
            "{budget}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_resumed_run_goes_on_at_the_price_that_it_began_with() -> Result<()> {
    let usage = json!({"usage": {"input_tokens": 1, "output_tokens": 0}});
    let first = json!([{"tool_call": {"id": "c0", "name": "act", "arguments": {"do": "ask"}}}, usage, {"finish": "tool_calls"}]);
    let second = json!([{"text": "so"}, usage, {"finish": "stop"}]);
    let (log, run) = waiting(engine([first])?, &json!({"max_usd": 99.0})).await?;
    let dearer = engine([second])?.model(ModelRef::new("m").with_pricing(Pricing::new(9e9, 9e9)));
    let done = dearer.resume(&log, &*run).answer("two").await?;
    assert_eq!(done.halted_reason, HaltReason::Completed);
    assert_eq!(done.final_response.and_then(|response| response.usage.total_cost), Some(1.0));
    Ok(())
}

#[tokio::test]
async fn a_mid_stream_check_fires_before_the_money_is_spent() -> Result<()> {
    // The provider reports only at the end, and the answer is long.
    let mut entries = vec![json!({"text": "word "}); 300];
    entries.push(json!({"usage": {"input_tokens": 1, "output_tokens": 300}}));
    entries.push(json!({"finish": "stop"}));
    let result =
        engine([json!(entries)])?.chat("go").budget(Budget::new().max_output_tokens(10)).await?;
    assert_eq!(result.metadata["budget"]["actual"], 11);
    assert_eq!(result.text().len(), 35);
    // A first report, of almost nothing, does not end the counting.
    entries.insert(0, json!({"usage": {"input_tokens": 1, "output_tokens": 1}}));
    let result =
        engine([json!(entries)])?.chat("go").budget(Budget::new().max_output_tokens(10)).await?;
    assert_eq!((result.metadata["budget"]["actual"].clone(), result.text().len()), (json!(11), 30));
    Ok(())
}

#[tokio::test]
async fn usage_that_is_reported_after_the_answer_still_counts() -> Result<()> {
    let late = json!([{"text": "hi"}, {"usage": {"input_tokens": 1, "output_tokens": 50}}, {"finish": "stop"}]);
    let result = engine([late])?.chat("go").budget(Budget::new().max_output_tokens(10)).await?;
    assert_eq!(
        result.metadata["budget"],
        json!(Breach::new(Limit::OutputTokens, 10, 50, BreachTime::MidStream))
    );
    assert_eq!(result.final_response.and_then(|response| response.usage.output_tokens), Some(50));
    Ok(())
}

#[tokio::test]
async fn cache_tokens_are_not_ignored_in_prices() -> Result<()> {
    let usage = json!({"input_tokens": 100, "cached_input_tokens": 90, "cache_write_tokens": 5, "output_tokens": 0});
    let script = json!([{"usage": usage}, {"finish": "stop"}]);
    let model = ModelRef::new("m")
        .with_pricing(Pricing::new(1e6, 1e6).with_cached_input(1e5).with_cache_write(2e6));
    let engine = engine([script.clone(), script])?.model(model);
    let result = engine.chat("go").budget(Budget::new().max_usd(24.0)).await?;
    assert_eq!(result.final_response.and_then(|response| response.usage.total_cost), Some(24.0));
    let result = engine.chat("go").budget(Budget::new().max_usd(23.5)).await?;
    assert_eq!(result.metadata["budget"], json!(Breach::usd(23.5, 24.0, BreachTime::MidStream)));
    Ok(())
}

#[tokio::test]
async fn the_first_limit_in_order_is_told_where_several_are_passed() -> Result<()> {
    let all = json!({"max_input_tokens": 0, "max_output_tokens": 0, "max_total_tokens": 0, "max_usd": 0.0, "max_turns": 0});
    let told = async |budget: &Value| -> Result<Value> {
        let usage = json!({"usage": {"input_tokens": 9, "output_tokens": 9}});
        let script = json!([usage, {"finish": "stop"}]);
        let result = engine([script])?.chat("go").options(limited(budget)).await?;
        Ok(result.metadata["budget"]["limit"].clone())
    };
    let mut rest = all.clone();
    for expected in ["input_tokens", "total_tokens", "usd", "turns"] {
        assert_eq!(told(&rest).await?, expected);
        if let Value::Object(limits) = &mut rest {
            limits.shift_remove(&format!("max_{expected}"));
        }
    }
    let mut during = json!({"max_input_tokens": 8, "max_output_tokens": 8, "max_total_tokens": 17, "max_usd": 26.0});
    for expected in ["input_tokens", "output_tokens", "total_tokens", "usd"] {
        assert_eq!(told(&during).await?, expected);
        if let Value::Object(limits) = &mut during {
            limits.shift_remove(&format!("max_{expected}"));
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_unknown_price_does_not_skip_the_cap_silently() -> Result<()> {
    let log = Arc::new(MemoryLog::new());
    let nobody_knows = || Ok::<_, Error>(engine([text()])?.model("nobody-knows"));
    let budget = Budget::new().max_usd(1.0);
    let error =
        nobody_knows()?.chat("go").budget(budget.clone()).record(&log).await.expect_err("refused");
    assert_eq!((error.kind().type_name(), error.reason()), ("engine_error", "unknown_price"));
    assert_eq!(error.metadata()["model"], "nobody-knows");
    assert!(log.runs(Default::default()).await?.runs.is_empty());
    let fast = engine([text()])?.model("claude-opus-4-6").chat("go").param("speed", "fast");
    let error = fast.budget(budget.clone()).await.expect_err("refused");
    assert_eq!(error.reason(), "unknown_price");
    // What the provider itself reports counts where the caller allows it.
    let allowed = budget.allow_unknown_price();
    let result = nobody_knows()?.chat("go").budget(allowed.clone()).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    let reported = json!([{"usage": {"input_tokens": 1, "output_tokens": 1, "total_cost": 2.0}}, {"finish": "stop"}]);
    let result = engine([reported])?.model("nobody-knows").chat("go").budget(allowed).await?;
    assert_eq!(result.metadata["budget"]["actual"], 2.0);
    Ok(())
}

#[tokio::test]
async fn a_price_comes_from_the_model_itself_or_from_the_catalog() -> Result<()> {
    let usage =
        json!({"input_tokens": 1_000_000, "output_tokens": 0, "cache_write_tokens": 1_000_000});
    let cost =
        async |change: fn(Engine) -> Result<Engine>, options: Value| -> Result<Option<f64>> {
            let script = json!([{"usage": usage}, {"finish": "stop"}]);
            let options = Options::from_json(options)?;
            Ok(change(engine([script])?)?.generate("go").options(options).await?.usage.total_cost)
        };
    let built_in = |engine: Engine| Ok(engine.model("claude-sonnet-4-5-20250929"));
    assert_eq!(cost(built_in, json!({})).await?, Some(3.75));
    assert_eq!(cost(built_in, json!({"prompt_cache": {"retention": "long"}})).await?, Some(6.0));
    let own = |engine: Engine| {
        Ok(engine.model(ModelRef::new("gpt-4.1").with_pricing(Pricing::new(7.0, 7.0))))
    };
    assert_eq!(cost(own, json!({})).await?, Some(7.0));
    let registered = |engine: Engine| {
        let model = ModelInfo::new("openai", "gpt-4.1").with_pricing(Pricing::new(5.0, 5.0));
        Ok(engine.model("gpt-4.1").catalog(Catalog::built_in().with_model(model)?))
    };
    assert_eq!(cost(registered, json!({})).await?, Some(5.0));
    let refused =
        |engine: Engine| Ok(engine.model(ModelRef::new("m").with_pricing(Pricing::new(-1.0, 1.0))));
    let error = cost(refused, json!({})).await.expect_err("no such price");
    assert_eq!(error.metadata()["field"], "model.pricing.input");
    Ok(())
}

#[tokio::test]
async fn a_changed_price_is_no_difference_and_a_changed_budget_is() -> Result<()> {
    let log = Arc::new(MemoryLog::new());
    let limited =
        |usd: f64| Ok::<_, Error>(engine([text()])?.param("budget", json!({"max_usd": usd})));
    let run = limited(9.0)?.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let diff = |error: Error| (error.metadata()["seq"].clone(), error.metadata()["diff"].clone());
    for price in [2e6, 9e9] {
        let dearer =
            limited(9.0)?.model(ModelRef::new("m").with_pricing(Pricing::new(price, price)));
        assert_eq!(dearer.replay(&log, &*run).await?.status, "equal", "{price}");
    }
    let error = limited(8.0)?.replay(&log, &*run).await.expect_err("another budget");
    let budget = json!([{"path": "about.params.budget.max_usd", "recorded": 9, "produced": 8}]);
    assert_eq!(diff(error), (json!(1), budget));
    let error = limited(9.0)?.replay(&log, &*run).budget(Budget::new().max_turns(1)).await;
    assert_eq!(diff(error.expect_err("another budget")).1[0]["path"], "about.options.budget");
    Ok(())
}

#[tokio::test]
async fn budgets_that_do_not_fit_are_refused_by_the_field() -> Result<()> {
    for (budget, field) in [
        (json!({"max_turns": -1}), "budget.max_turns"),
        (json!({"max_dollars": 1}), "budget.max_dollars"),
        (json!(3), "budget"),
    ] {
        let error = engine([])?.chat("go").options(limited(&budget)).await.expect_err("refused");
        assert_eq!(error.reason(), "invalid_options", "{budget}");
        assert_eq!(error.metadata()["field"], field, "{budget}");
    }
    Ok(())
}

#[tokio::test]
async fn the_calls_own_budget_replaces_the_engines() -> Result<()> {
    let strict = engine([text(), text()])?.param("budget", json!({"max_turns": 0}));
    assert_eq!(strict.chat("go").await?.halted_reason, HaltReason::BudgetExceeded);
    let result = strict.chat("go").budget(Budget::new().max_turns(1)).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    Ok(())
}

#[tokio::test]
async fn a_session_keeps_what_was_said_and_may_go_on() -> Result<()> {
    let engine = engine([json!([{"text": "hello world"}, {"finish": "stop"}]), text()])?;
    let (session, result) = engine.start("go").budget(Budget::new().max_output_tokens(1)).await?;
    assert_eq!(result.halted_reason, HaltReason::BudgetExceeded);
    assert_eq!(session.status(), Status::Completed);
    assert_eq!(session.thread.messages.len(), 2);
    let (session, _) = engine.reply(&session, "more").await?;
    assert_eq!(session.thread.messages.len(), 4);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn wall_clock_trips_interrupt_the_model_and_the_tools_and_replay() -> Result<()> {
    let slow =
        json!([{"text": "so far"}, {"delay_ms": 60_000}, {"text": "never"}, {"finish": "stop"}]);
    let silent = json!([{"delay_ms": 60_000}, {"finish": "stop"}]);
    let hanging = json!([{"tool_call": {"id": "c0", "name": "act", "arguments": {"do": "hang"}}}, {"finish": "tool_calls"}]);
    for (script, text) in [(slow, "so far"), (silent, ""), (hanging, "")] {
        let log = Arc::new(MemoryLog::new());
        let call = engine([script.clone()])?
            .chat("go")
            .budget(Budget::new().max_wall_clock_ms(500))
            .record(&log);
        let stream = call.stream();
        let run = stream.run_id().cloned().unwrap_or_default();
        let live = testing::collect(stream).await?;
        let Some(Event::ChatCompleted { result }) = live.last() else {
            panic!("the chat did not end: {live:?}");
        };
        let breach = Breach::new(Limit::WallClock, 500, 501, BreachTime::MidStream);
        assert_eq!(result.metadata["budget"], json!(breach), "{script}");
        assert_eq!(result.text(), text, "{script}");
        assert!(result.thread.messages.unanswered().is_empty(), "{script}");
        // Wall-clock trips replay, and take no time.
        let began = tokio::time::Instant::now();
        for tools in [Tools::All, Tools::Recorded] {
            let replay = || Ok::<_, Error>(engine([])?.replay(&log, &*run).replay_tools(tools));
            assert_eq!(replay()?.await?.status, "equal", "{script}");
            assert_eq!(testing::collect(replay()?.stream()).await?, live, "{script}");
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        // A process that takes over anywhere before the seal has the same result.
        let records = log.read(&run, 1, 100).await?;
        for kept in 1..records.len() {
            let prefix = Arc::new(MemoryLog::new());
            prefix.append(Append::new(&*run, None, records[..kept].to_vec())).await?;
            let answered =
                records[..kept].iter().any(|r| r.kind().as_str() == "assistant_completed");
            let engine = engine((!answered).then(|| script.clone()))?;
            let resumed = engine.resume(&prefix, &*run).on_uncertain(OnUncertain::Rerun).await?;
            assert_eq!(resumed.halted_reason, HaltReason::BudgetExceeded, "{kept}: {script}");
            assert_eq!(
                (resumed.text(), &resumed.thread),
                (result.text(), &result.thread),
                "{kept}"
            );
            assert_eq!(
                engine.replay(&prefix, &*run).replay_tools(Tools::All).await?.status,
                "equal",
                "{kept}: {script}"
            );
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn time_that_is_up_between_calls_is_found_before_the_next() -> Result<()> {
    let nap = json!([{"tool_call": {"id": "c0", "name": "act", "arguments": {"do": "nap"}}}, {"finish": "tool_calls"}]);
    let last = json!([{"delay_ms": 450}, {"text": "done"}, {"finish": "stop"}]);
    // A run that is over is not over its budget.
    let result = engine([last])?.chat("go").budget(Budget::new().max_wall_clock_ms(450)).await?;
    assert_eq!(result.halted_reason, HaltReason::Completed);
    // A limit of zero is passed by any action.
    let result = engine([text()])?.chat("go").budget(Budget::new().max_wall_clock_ms(0)).await?;
    let breach = json!({"limit": "wall_clock", "cap": 0, "actual": 1, "where": "pre_call"});
    assert_eq!((result.steps.len(), &result.metadata["budget"]), (0, &breach));
    let mut stream =
        engine([nap, text()])?.chat("go").budget(Budget::new().max_wall_clock_ms(500)).stream();
    let mut told = None;
    while let Some(event) = futures_util::StreamExt::next(&mut stream).await {
        match event? {
            // The caller takes its time: nothing runs, and time passes.
            Event::StepCompleted { .. } => tokio::time::sleep(Duration::from_secs(1)).await,
            Event::ChatCompleted { result } => told = Some(result.metadata["budget"].clone()),
            _ => {}
        }
    }
    assert_eq!(told, Some(json!(Breach::new(Limit::WallClock, 500, 1100, BreachTime::PreCall))));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn time_of_earlier_processes_counts_and_time_of_waiting_does_not() -> Result<()> {
    let ask = json!([{"tool_call": {"id": "c0", "name": "act", "arguments": {"do": "ask"}}}, {"finish": "tool_calls"}]);
    let slow = json!([{"delay_ms": 60_000}, {"text": "done"}, {"finish": "stop"}]);
    let clock = Clock::default();
    // Each of its six records is 10 ms after the one before.
    let (log, run) =
        waiting(engine([ask.clone()])?.world(clock.clone()), &json!({"max_wall_clock_ms": 100}))
            .await?;
    let kinds = log.read(&run, 1, 10).await?;
    assert_eq!(kinds.len(), 6);
    // A person thinks for an hour.
    clock.0.fetch_add(3_600_000, Ordering::Relaxed);
    let began = tokio::time::Instant::now();
    let done = engine([slow])?.world(clock).resume(&log, &*run).answer("two").await?;
    assert_eq!(
        done.metadata["budget"],
        json!(Breach::new(Limit::WallClock, 100, 101, BreachTime::MidStream))
    );
    assert_eq!(began.elapsed(), Duration::from_millis(51));
    assert_eq!(engine([ask])?.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn the_seal_counts_what_the_cut_off_answer_took() -> Result<()> {
    let log = Arc::new(MemoryLog::new());
    let usage = json!({"usage": {"input_tokens": 3, "output_tokens": 9}});
    let script = json!([{"text": "hello"}, usage, {"finish": "stop"}]);
    let result = engine([script])?
        .chat("go")
        .budget(Budget::new().max_output_tokens(8))
        .record(&log)
        .await?;
    let records = log.read(&result.run_id.unwrap_or_default(), 1, 10).await?;
    let Some(Ok(Some(Fact::Sealed(seal)))) = records.last().map(mynah::log::Record::fact) else {
        panic!("no seal");
    };
    assert_eq!((seal.totals.turns, seal.totals.input_tokens, seal.totals.output_tokens), (1, 3, 9));
    assert_eq!(seal.totals.cost, 21.0);
    Ok(())
}

/// An engine with a configurable tool, whose model costs a dollar for a token of input and two for
/// one of output.
fn engine(scripts: impl IntoIterator<Item = Value>) -> Result<Engine> {
    let model = ModelRef::new("m").with_pricing(Pricing::new(1e6, 2e6));
    let tool = Tool::new("act", "", json!({})).handler(async |arguments, _| {
        match arguments["do"].as_str() {
            Some("ask") => return ToolOutcome::ask("how many?"),
            Some("hang") => std::future::pending().await,
            Some("nap") => tokio::time::sleep(Duration::from_millis(100)).await,
            _ => {}
        }
        ToolOutcome::Ok(json!(1))
    });
    Ok(Engine::new(Scripted::new(scripts)?).model(model).tool(tool))
}

/// A script that calls the tool so many times.
fn calls(count: usize) -> Value {
    let call = |n: usize| json!({"tool_call": {"id": format!("c{n}"), "name": "act"}});
    json!((0..count).map(call).chain([json!({"finish": "tool_calls"})]).collect::<Vec<_>>())
}

fn text() -> Value {
    json!([{"text": "done"}, {"finish": "stop"}])
}

fn limited(budget: &Value) -> Options {
    Options::new().param("budget", budget.clone())
}

/// A run with this budget that asked a person.
async fn waiting(engine: Engine, budget: &Value) -> Result<(Arc<MemoryLog>, RunId)> {
    let log = Arc::new(MemoryLog::new());
    let result = engine.chat("go").options(limited(budget)).record(&log).await?;
    assert_eq!(result.halted_reason, HaltReason::AskUser);
    Ok((log, result.run_id.unwrap_or_default()))
}

/// A clock that advances by ten milliseconds with each reading.
#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl World for Clock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.fetch_add(10, Ordering::Relaxed))
    }

    fn random(&self) -> u64 {
        7
    }
}
