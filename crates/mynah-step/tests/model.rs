//! Model calls of a custom loop.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use futures_util::future::{Either, select};
use mynah_data::{
    AdapterReason, Budget, Catalog, Error, ErrorKind, Event, FinishReason, MismatchClass,
    ModelInfo, Pricing, StreamReason, ToolCall,
};
use mynah_log::{Append, Fact, Log as _, MAX_PAYLOAD, MemoryLog};
use mynah_step::{Config, Context, RunMode};
use serde_json::json;

use crate::common::*;

#[tokio::test]
async fn a_model_call_is_a_turn_and_its_answer_and_a_replay_does_not_call() {
    let model = plays([says(&["hel", "lo"]), says(&["again"])]);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone());
    let (answers, facts) = twice(config, async |context| {
        let first = context.call_model(ask("hi")).await?;
        let second = context.call_model(ask("and?")).await?;
        Ok::<_, Error>([(first.turn, first.response), (second.turn, second.response)])
    })
    .await;
    let [(1, first), (2, second)] = answers.expect("the model answers") else { unreachable!() };
    assert_eq!((&*first.text(), &*second.text()), ("hello", "again"));
    assert_eq!(model.1.load(Relaxed), 2, "a replay does not call the model");
    let turn = ["turn_started", "assistant_completed"];
    let expected = [&["run_started"][..], &turn, &turn, &["completed", "sealed"]].concat();
    assert_eq!(kinds(&facts), expected);
    let is_answer = |fact: &&Fact| matches!(fact, Fact::AssistantCompleted { .. });
    assert!(facts.iter().filter(is_answer).all(|answer| answer.first_token_ms().is_some()));
}

#[tokio::test]
async fn answers_and_outcomes_are_on_their_way_to_the_log_when_the_loop_has_them() {
    let log = Arc::new(MemoryLog::new());
    let model = plays([says(&["hello"])]);
    let context = Context::new(plain(&log).adapter(model)).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    context.call_model(ask("hi")).await.expect("an answer");
    let answered = ["run_started", "turn_started", "assistant_completed"];
    assert_eq!(kinds(&facts(&read(&log).await)), answered);
    let unknown = context.call_tool(ToolCall::new("c0", "nobody", "{}")).await;
    assert_eq!(unknown.map_err(|error| error.reason()), Err("not_found"));
    let done = [&answered[..], &["tool_scheduled", "tool_failed"]].concat();
    assert_eq!(kinds(&facts(&read(&log).await)), done);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_asked_again_was_asked_in_the_log() {
    let log = Arc::new(MemoryLog::new());
    let silent = || plain(&log).adapter(plays([Vec::new()]));
    let mut expected = vec!["run_started"];
    let mut config = silent();
    for _ in 0..3 {
        expected.push("turn_started");
        let context = Context::new(config).expect("a run");
        assert_eq!(begin(&context).await, Ok(()));
        let second = std::time::Duration::from_secs(1);
        let answer = tokio::time::timeout(second, context.call_model(ask("hi"))).await;
        assert!(answer.is_err(), "the model says nothing");
        assert_eq!(kinds(&facts(&read(&log).await)), expected);
        drop(context);
        config = silent().resume().await.expect("it is there");
        // The run was dropped with it, so it is made again, and each of them counts.
        expected.extend(["turn_lost", "resumed"]);
    }
}

#[tokio::test]
async fn a_run_whose_id_is_taken_asks_no_model() {
    let log = Arc::new(MemoryLog::new());
    let model = plays([says(&["hello"]), says(&["again"])]);
    for expected in [Ok(()), Err("head_mismatch")] {
        let context = Context::new(plain(&log).adapter(model.clone())).expect("a run");
        assert_eq!(begin(&context).await, Ok(()));
        let answer = context.call_model(ask("hi")).await;
        assert_eq!(answer.map(drop).map_err(|error| error.reason()), expected);
        assert_eq!(model.1.load(Relaxed), 1);
    }
}

#[tokio::test]
async fn reasoning_is_part_of_the_recorded_answer() {
    let thought = Event::ReasoningDelta { id: None, delta: "hm".to_owned() };
    let model = plays([whole([thought, Event::text_delta("yes")])]);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone());
    let (answer, _) = twice(config, async |context| context.call_model(ask("?")).await).await;
    let message = answer.expect("an answer").response.message;
    assert_eq!(json!(message.parts()[0])["type"], "reasoning");
}

#[tokio::test]
async fn a_call_without_an_adapter_is_an_error_and_records_nothing() {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log)).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    let failed = context.call_model(ask("hi")).await.map_err(|error| error.reason());
    assert_eq!(failed, Err("missing_adapter"));
    assert_eq!(context.flush().await, Ok(()));
    assert_eq!(kinds(&facts(&read(&log).await)), ["run_started"]);
}

#[tokio::test]
async fn a_stream_that_breaks_the_rules_is_a_malformed_event() {
    let started = |id: &str| Event::ToolCallStarted { id: id.to_owned(), name: "t".to_owned() };
    let delta =
        |id: &str| Event::ToolCallDelta { id: id.to_owned(), arguments_delta: "{".to_owned() };
    let done = Event::tool_call_completed(ToolCall::new("c0", "t", "{}"));
    let mut after = says(&["hi"]);
    after.push(Ok(Event::text_delta("more")));
    let tool = Event::tool_execution_started("c0", "t", json!({}));
    for (why, script) in [
        ("it came after the end of the answer", after),
        ("the call was not started", whole([delta("c0")])),
        ("the call was already complete", whole([started("c0"), done, delta("c0")])),
        ("the call has no id", whole([started("")])),
        ("an adapter may not emit it", whole([tool])),
    ] {
        let (error, facts) = failing(script).await;
        assert_eq!(error.kind(), ErrorKind::Stream(StreamReason::MalformedEvent), "{why}");
        assert!(error.to_string().ends_with(why), "{error}");
        assert!(!kinds(&facts).contains(&"assistant_completed"), "{why}");
    }
}

#[tokio::test]
async fn an_answer_that_ends_before_its_end_is_a_broken_connection_and_not_an_answer() {
    let mut script = says(&["hal"]);
    script.pop();
    let (error, facts) = failing(script).await;
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
    assert_eq!(kinds(&facts)[1..3], ["turn_started", "side_effect"]);
}

#[tokio::test]
async fn errors_of_the_provider_keep_their_kind_live_and_in_a_replay() {
    let limited = Error::adapter(AdapterReason::RateLimited).with("retry_after_ms", 7);
    let mid = vec![Ok(Event::message_started()), Err(limited.clone())];
    assert_eq!(failing(mid).await.0, limited);
    assert_eq!(failing(vec![Err(limited.clone())]).await.0, limited);
}

#[tokio::test]
async fn a_loop_that_goes_on_after_a_failed_call_replays() {
    let limited = Error::adapter(AdapterReason::RateLimited);
    let model = plays([vec![Err(limited.clone())], says(&["at last"])]);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone());
    let (answers, _) = twice(config, async |context| {
        [context.call_model(ask("hi")).await, context.call_model(ask("hi")).await]
    })
    .await;
    assert_eq!(answers[0], Err(limited));
    let answer = answers[1].as_ref().expect("an answer");
    assert_eq!((answer.turn, &*answer.response.text()), (2, "at last"));
}

#[tokio::test]
async fn what_an_answer_took_may_be_told_after_its_end() {
    let mut script = says(&["hi"]);
    script.push(Ok(usage(7, 2)));
    let model = plays([script]);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone());
    let (answer, _) = twice(config, async |context| context.call_model(ask("hi")).await).await;
    let usage = answer.expect("an answer").response.usage;
    assert_eq!((usage.input_tokens, usage.output_tokens), (Some(7), Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_does_not_wait_for_an_answer_or_a_tool_replays() {
    let model = plays([Vec::new()]);
    let never = || tool("never", async |_| std::future::pending::<()>().await);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone()).tools([never()]);
    let second = || async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        Ok::<u8, String>(1)
    };
    let (done, facts) = twice(config, async |context| {
        let answer = std::pin::pin!(context.call_model(ask("hi")));
        let late = std::pin::pin!(context.side_effect("timer", second()));
        let late = matches!(select(answer, late).await, Either::Right((Ok(_), _)));
        let called = std::pin::pin!(context.call_tool(call("c0", "never")));
        let timer = std::pin::pin!(context.side_effect("timer", second()));
        (late, matches!(select(called, timer).await, Either::Right((Ok(_), _))))
    })
    .await;
    assert_eq!(done, (true, true));
    // What is given up is recorded when it is dropped: the newest first.
    let expected = [
        "turn_started",
        "side_effect",
        "tool_scheduled",
        "side_effect",
        "tool_failed",
        "turn_lost",
    ];
    assert_eq!(kinds(&facts)[1..7], expected);
}

/// Asks for an answer so often, and waits a second for each. Returns how often it gave up, and the reason of an error.
async fn impatient(context: &Context, times: u32) -> (u32, Option<String>) {
    let prompt = "a prompt of thirty characters.";
    for given_up in 0..times {
        let call = context.call_model(ask(prompt).with_model("m"));
        if let Ok(answer) = tokio::time::timeout(std::time::Duration::from_secs(1), call).await {
            return (given_up, answer.err().map(|error| error.reason().to_owned()));
        }
    }
    (times, context.random().await.err().map(|error| error.reason().to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_model_call_that_is_given_up_counts_in_the_budget() {
    let silent = || plays([Vec::new(), Vec::new(), Vec::new()]);
    let tokens = Budget::new().max_input_tokens(25);
    let dollars = Budget::new().max_usd(25e-6);
    for budget in [tokens, dollars] {
        let priced = |dollars: f64| {
            let pricing = Pricing::new(dollars, dollars);
            Catalog::new().with_model(ModelInfo::new("local", "m").with_pricing(pricing))
        };
        let config = |log: &Arc<MemoryLog>, dollars: f64| {
            let catalog = priced(dollars).expect("a model");
            plain(log).adapter(silent()).budget(budget.clone()).catalog(catalog)
        };
        let agent = async |context: &Context| impatient(context, 3).await;
        let log = Arc::new(MemoryLog::new());
        let live = perform(config(&log, 1.0), agent).await;
        assert_eq!(live, Ok((2, Some("budget_exceeded".to_owned()))));
        let records = facts(&read(&log).await);
        let turn = ["turn_started", "turn_lost"];
        assert_eq!(kinds(&records)[1..6], [&turn[..], &turn, &["budget_exceeded"]].concat());
        let Some(Fact::Sealed(seal)) = records.last() else { panic!("{:?}", kinds(&records)) };
        assert_eq!((seal.totals.turns, seal.totals.input_tokens), (2, 20));
        for dollars in [1.0, 9.0] {
            let again = config(&log, dollars).replay().await.expect("records");
            assert_eq!(perform(again, agent).await, live, "{dollars}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_call_that_was_given_up_is_given_up_again_wherever_the_run_was_cut_off() {
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(plays([Vec::new(), Vec::new()]));
    everywhere(config, async |context| impatient(context, 2).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_model_call_that_is_dropped_with_its_run_is_made_again_and_counts_once() {
    let log = Arc::new(MemoryLog::new());
    let answers = |answer| plain(&log).adapter(plays([answer]));
    let agent = async |context: &Context| context.call_model(ask("hi")).await;
    let second = std::time::Duration::from_secs(1);
    let dropped = tokio::time::timeout(second, perform(answers(Vec::new()), agent)).await;
    assert!(dropped.is_err(), "the model says nothing");
    let resumed = answers(whole([usage(7, 2)])).resume().await.expect("it goes on");
    let answer = perform(resumed, agent).await.expect("a run").expect("an answer");
    let facts = facts(&read(&log).await);
    let again = ["turn_lost", "resumed", "turn_started", "assistant_completed"];
    assert_eq!(kinds(&facts)[2..6], again);
    let Some(Fact::Sealed(seal)) = facts.last() else { panic!("{:?}", kinds(&facts)) };
    assert_eq!((seal.totals.turns, seal.totals.input_tokens), (2, 1 + 7));
    let replayed = answers(Vec::new()).replay().await.expect("records");
    assert_eq!(perform(replayed, agent).await, Ok(Ok(answer)));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_in_a_model_call_and_ended_from_outside_replays_and_nothing_waits() {
    let log = Arc::new(MemoryLog::new());
    let config = || plain(&log).adapter(plays([Vec::new()]));
    let agent = async |context: &Context| {
        let answer = context.call_model(ask("hi")).await;
        answer.map(drop).map_err(|error| error.reason().to_owned())
    };
    let second = std::time::Duration::from_secs(1);
    let dropped = tokio::time::timeout(second, perform(config(), agent)).await;
    assert!(dropped.is_err(), "the model says nothing");
    let replay = async || {
        let config = config().replay().await.expect("records");
        tokio::time::timeout(60 * second, perform(config, agent)).await.expect("no hang")
    };
    assert_eq!(
        replay().await.map_err(|error| error.kind().to_string()).err().as_deref(),
        Some("replay_mismatch / exhausted")
    );
    end_from_outside(&log).await;
    // The call failed as cancelled, and this loop goes on after that.
    let differs = replay().await.map_err(|error| error.to_string()).unwrap_err();
    assert!(differs.ends_with("expected cancelled, got completed: completed"), "{differs}");
}

#[tokio::test]
async fn an_answer_that_is_too_large_to_be_recorded_is_a_failed_call_after_any_record() {
    let large = "x".repeat(MAX_PAYLOAD);
    let config = |log: &Arc<MemoryLog>| {
        plain(log).adapter(plays([says(&[&large]), says(&["hi"])])).budget(Budget::new())
    };
    let agent = async |context: &Context| {
        let answer = context.call_model(ask("hi")).await;
        let reason = answer.map(drop).map_err(|error| error.reason());
        context.side_effect("then", async { Ok::<_, Error>(()) }).await.map(|()| reason)
    };
    let (done, facts) = twice(config, agent).await;
    assert_eq!(done, Ok(Err("too_large")));
    assert_eq!(kinds(&facts)[1..4], ["turn_started", "side_effect", "side_effect"]);
    let log = Arc::new(MemoryLog::new());
    assert_eq!(perform(config(&log), agent).await, Ok(done.clone()));
    let failed = read(&log).await[..3].to_vec();
    let resumed = Arc::new(MemoryLog::new());
    assert!(resumed.append(Append::new(RUN, None, failed)).await.is_ok());
    let resumed = config(&resumed).resume().await.expect("it can go on");
    assert_eq!(perform(resumed, agent).await, Ok(done));
}

#[tokio::test]
async fn a_part_of_an_answer_that_is_too_large_to_be_recorded_is_left_out_where_a_limit_is_passed()
{
    let large = "x".repeat(MAX_PAYLOAD);
    let budget = Budget::new().max_output_tokens(9);
    let config =
        |log: &Arc<MemoryLog>| plain(log).adapter(plays([says(&[&large])])).budget(budget.clone());
    let (answer, facts) = twice(config, async |cx| cx.call_model(ask("hi")).await).await;
    assert_eq!(answer.map_err(|error| error.reason().to_owned()), Err("budget_exceeded".into()));
    assert!(matches!(facts[2], Fact::BudgetExceeded { partial: None, .. }), "{:?}", kinds(&facts));
}

#[tokio::test]
async fn an_answer_without_the_hash_of_what_was_sent_is_refused_where_it_must_have_one() {
    let hashed = |hash: &str| {
        let mut script = says(&["hi"]);
        script.pop();
        let mut end = Event::message_completed(Some(FinishReason::Stop));
        if let Event::MessageCompleted { metadata, .. } = &mut end {
            metadata.insert("raw_response_hash".to_owned(), json!(hash));
        }
        script.push(Ok(end));
        script
    };
    for (script, fits) in [
        (says(&["hi"]), false),
        (hashed(""), false),
        (hashed(&"ab".repeat(31)), false),
        (hashed(&"ab".repeat(32)), true),
    ] {
        let model = plays([script.clone(), script]);
        let log = Arc::new(MemoryLog::new());
        let config = |run: &str| Config::new(&log, run).adapter(model.clone());
        let lenient = perform(config("run-1"), async |context: &Context| {
            context.call_model(ask("hi")).await.is_ok()
        });
        assert_eq!(lenient.await, Ok(true), "it may be missing unless it must be there");
        let strict = config("run-2").require_raw_response_hash(true);
        let strict = perform(strict, async |context: &Context| {
            context.call_model(ask("hi")).await.map(drop).map_err(|error| error.reason())
        });
        let expected = if fits { Ok(()) } else { Err("missing_raw_response_hash") };
        assert_eq!(strict.await, Ok(expected));
    }
}

#[tokio::test]
async fn another_prompt_or_turn_is_a_mismatch_of_its_class() {
    let log = Arc::new(MemoryLog::new());
    let model = plays([says(&["hi"])]);
    let agent = async |context: &Context| context.call_model(ask("one")).await.map(drop);
    let live = perform(plain(&log).adapter(model.clone()), &agent).await;
    assert_eq!(live, Ok(Ok(())));
    let replay = async |agent: &dyn Fn(
        Context,
    ) -> futures_util::future::LocalBoxFuture<
        'static,
        mynah_data::Result<()>,
    >| {
        let mode = RunMode::Replay(read(&log).await);
        let context = Context::new(plain(&log).adapter(model.clone()).mode(mode)).expect("a run");
        assert_eq!(begin(&context).await, Ok(()));
        agent(context).await.map_err(|error| error.kind())
    };
    let prompt =
        replay(&|context| Box::pin(async move { context.call_model(ask("two")).await.map(drop) }));
    assert_eq!(prompt.await, Err(ErrorKind::Replay(MismatchClass::Payload)));
    let turn = replay(&|context| {
        Box::pin(async move {
            context.emit(Fact::TurnStarted { turn: 7, prompt: None, input_tokens: 0 }).await
        })
    });
    assert_eq!(turn.await, Err(ErrorKind::Replay(MismatchClass::TurnId)));
}

#[tokio::test]
async fn calls_of_the_model_made_at_once_are_made_one_after_the_other() {
    let model = plays([says(&["one"]), says(&["two"])]);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone());
    let (answers, facts) = twice(config, async |context| {
        tokio::join!(context.call_model(ask("1")), context.call_model(ask("2")))
    })
    .await;
    let texts = [answers.0, answers.1].map(|answer| answer.expect("an answer").response);
    assert_eq!(texts.map(|response| response.text().into_owned()), ["one", "two"]);
    let turn = ["turn_started", "assistant_completed"];
    assert_eq!(kinds(&facts)[1..5], [turn, turn].concat());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_has_no_answer_and_replays_as_cancelled() {
    let model = plays([Vec::new()]);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone());
    let (answer, facts) = twice(config, async |context| {
        let cancel = async {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            context.cancel();
        };
        tokio::join!(context.call_model(ask("hi")), cancel).0
    })
    .await;
    assert_eq!(answer, Err(Error::stream(StreamReason::Cancelled)));
    assert_eq!(kinds(&facts)[1..3], ["turn_started", "side_effect"]);
}

#[tokio::test]
async fn a_changed_price_does_not_change_a_replay() {
    let priced = |price: f64| {
        let pricing = mynah_data::Pricing::new(price, price);
        mynah_data::ModelInfo::new("local", "m").with_pricing(pricing)
    };
    let log = Arc::new(MemoryLog::new());
    let agent = async |context: &Context| {
        let request = ask("hi").with_model("m");
        context.call_model(request).await.map(|answer| answer.response.usage.total_cost)
    };
    let config = |price: f64| {
        let mut config = plain(&log).adapter(plays([whole([usage(1000, 1000)])]));
        config =
            config.catalog(mynah_data::Catalog::new().with_model(priced(price)).expect("a model"));
        config
    };
    assert_eq!(perform(config(2.0), &agent).await, Ok(Ok(Some(0.004))));
    let again = config(9.0).mode(RunMode::Replay(log.read(RUN, 1, 100).await.expect("records")));
    assert_eq!(perform(again, &agent).await, Ok(Ok(Some(0.004))));
}

/// The error of a call with this script, the same live and again, and the records.
async fn failing(script: Vec<mynah_data::Result<Event>>) -> (Error, Vec<Fact>) {
    let model = plays([script]);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone());
    let (failed, facts) = twice(config, async |context| context.call_model(ask("hi")).await).await;
    (failed.err().unwrap_or_else(|| unreachable!("the call fails")), facts)
}
