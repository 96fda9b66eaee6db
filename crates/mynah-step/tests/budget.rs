//! Budgets of a custom loop.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures_util::{StreamExt as _, future::join3, stream};
use mynah_data::{
    Breach, BreachTime, Budget, Error, Event, FinishReason, Limit, ModelRef, Pricing, Request,
    Result, ToolCall, ToolOutcome,
};
use mynah_log::{Fact, MemoryLog, Resolution, VerifyStatus};
use mynah_step::{
    Adapter, BoxFuture, Context, ModelAnswer, ModelCall, ModelStream, RunMode, Tool, ToolContext,
};
use serde_json::json;
use tokio::time::sleep;

use crate::common::*;

const PRE: BreachTime = BreachTime::PreCall;
const MID: BreachTime = BreachTime::MidStream;

#[tokio::test]
async fn a_prompt_that_is_too_long_is_recorded_and_refused_before_the_turn_begins() {
    let model = plays([says(&["never"])]);
    let config = |log: &Arc<MemoryLog>| {
        plain(log).adapter(model.clone()).budget(Budget::new().max_input_tokens(3))
    };
    let (answer, facts) = twice(config, async |context| {
        // 12 characters and 2 more.
        context.call_model(ask("twelve chars")).await
    })
    .await;
    let breach = Breach::new(Limit::InputTokens, 3, 4, PRE);
    assert_eq!(answer, Err(Error::budget_exceeded(&breach, None)));
    assert_eq!(facts[1], Fact::BudgetExceeded { breach, partial: None, cuts: Vec::new() });
    assert_eq!(kinds(&facts), ["run_started", "budget_exceeded", "completed", "sealed"]);
    assert_eq!(model.1.load(Relaxed), 0);
}

#[tokio::test]
async fn exactly_the_limit_is_not_more_than_it() {
    let model = plays([whole([usage(4, 6)])]);
    let budget = Budget::new().max_input_tokens(4).max_output_tokens(6).max_total_tokens(10);
    let budget = budget.max_turns(1).max_usd(10.0);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone()).budget(budget.clone());
    let (answer, _) = twice(config, async |context| context.call_model(priced("hi")).await).await;
    assert_eq!(answer.map(|answer| answer.response.usage.total_cost), Ok(Some(10.0)));
}

#[tokio::test]
async fn an_answer_that_passes_a_limit_is_cut_off_and_kept_as_far_as_it_came() {
    let long = || says(&["nine char", "s, then so many more", " that nobody hears"]);
    for (budget, script, breach, text) in [
        // Counted, as nothing is reported: 29 characters.
        (
            Budget::new().max_output_tokens(5),
            long(),
            Breach::new(Limit::OutputTokens, 5, 9, MID),
            29,
        ),
        (
            Budget::new().max_total_tokens(5),
            long(),
            Breach::new(Limit::TotalTokens, 5, 10, MID),
            29,
        ),
        (Budget::new().max_usd(5.0), long(), Breach::usd(5.0, 10.0, MID), 29),
        // Reported.
        (
            Budget::new().max_input_tokens(5),
            whole([Event::text_delta("hi"), usage(6, 1), Event::text_delta("more")]),
            Breach::new(Limit::InputTokens, 5, 6, MID),
            2,
        ),
        (
            Budget::new().max_output_tokens(5),
            whole([Event::text_delta("hi"), usage(1, 6), Event::text_delta("more")]),
            Breach::new(Limit::OutputTokens, 5, 6, MID),
            2,
        ),
        (
            Budget::new().max_usd(6.5),
            whole([Event::text_delta("hi"), usage(1, 6), Event::text_delta("more")]),
            Breach::usd(6.5, 7.0, MID),
            2,
        ),
    ] {
        let model = plays([script]);
        let config =
            |log: &Arc<MemoryLog>| plain(log).adapter(model.clone()).budget(budget.clone());
        let (answer, facts) =
            twice(config, async |context| context.call_model(priced("hi")).await).await;
        let Fact::BudgetExceeded { breach: recorded, partial: Some(partial), .. } = &facts[2]
        else {
            unreachable!("{:?}", facts[2])
        };
        assert_eq!((recorded, partial.text().len()), (&breach, text));
        assert_eq!(answer, Err(Error::budget_exceeded(&breach, Some(partial))));
        let end = ["completed", "sealed"];
        assert_eq!(
            kinds(&facts),
            [&["run_started", "turn_started", "budget_exceeded"], &end[..]].concat()
        );
    }
}

#[tokio::test]
async fn what_is_spent_adds_up_over_the_calls_of_a_run() {
    let model = plays([whole([usage(3, 3)]), whole([usage(3, 3)])]);
    let config = |log: &Arc<MemoryLog>| {
        plain(log).adapter(model.clone()).budget(Budget::new().max_output_tokens(5))
    };
    let (answers, _) = twice(config, async |context| {
        [context.call_model(ask("hi")).await.is_ok(), context.call_model(ask("hi")).await.is_ok()]
    })
    .await;
    assert_eq!(answers, [true, false]);
}

#[tokio::test]
async fn turns_and_tool_calls_are_counted_before_they_happen() {
    let model = plays([says(&["one"]), says(&["two"])]);
    let config = |log: &Arc<MemoryLog>| {
        let budget = Budget::new().max_turns(1).max_tool_calls(2);
        plain(log).adapter(model.clone()).tools([tool("t", async |_| json!(1))]).budget(budget)
    };
    let (done, facts) = twice(config, async |context| {
        let calls = |ids: &[&str]| ids.iter().map(|id| call(id, "t")).collect::<Vec<ToolCall>>();
        (
            context.call_model(ask("hi")).await.map(drop),
            context.call_model(ask("hi")).await.map(drop),
            context.call_tools(calls(&["a", "b", "c"])).await.map(drop),
            context.call_tools(calls(&["a", "b"])).await.map(drop),
            context.call_tool(call("c", "t")).await.map(drop),
        )
    })
    .await;
    let turns = Error::budget_exceeded(&Breach::new(Limit::Turns, 1, 2, PRE), None);
    let calls = Error::budget_exceeded(&Breach::new(Limit::ToolCalls, 2, 3, PRE), None);
    assert_eq!(done, (Ok(()), Err(turns), Err(calls.clone()), Ok(()), Err(calls)));
    assert_eq!(kinds(&facts).iter().filter(|kind| **kind == "tool_scheduled").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_tried_again_is_one_call_in_budgets_and_totals() {
    let flaky = || tool("flaky", async |_| ToolOutcome::transient("busy")).idempotent(3);
    let config =
        |log: &Arc<MemoryLog>| plain(log).tools([flaky()]).budget(Budget::new().max_tool_calls(2));
    let (done, facts) = twice(config, async |context| {
        let mut reasons = Vec::new();
        for id in ["a", "b", "c"] {
            let failed = context.call_tool(call(id, "flaky")).await;
            reasons.push(failed.map(drop).map_err(|error| error.reason()));
        }
        reasons
    })
    .await;
    assert_eq!(done, [Err("failed"), Err("failed"), Err("budget_exceeded")]);
    assert_eq!(kinds(&facts).iter().filter(|kind| **kind == "tool_scheduled").count(), 6);
    let Some(Fact::Sealed(seal)) = facts.last() else { unreachable!("{facts:?}") };
    assert_eq!(seal.totals.tool_calls, 2);
}

#[tokio::test]
async fn what_was_spent_before_a_resumption_counts() {
    let log = Arc::new(MemoryLog::new());
    let budget = || Budget::new().max_output_tokens(5).max_turns(2).max_tool_calls(1);
    let config = || {
        let model = plays([whole([usage(3, 3)])]);
        plain(&log).adapter(model).tools([tool("t", async |_| json!(1))]).budget(budget())
    };
    let begun = async |context: &Context| {
        assert_eq!(begin(context).await, Ok(()));
        assert_eq!(context.call_model(ask("hi")).await.map(|answer| answer.turn), Ok(1));
        assert!(context.call_tool(call("c0", "t")).await.is_ok());
        assert_eq!(context.flush().await, Ok(()));
    };
    begun(&Context::new(config()).expect("a run")).await;
    let context =
        Context::new(config().mode(RunMode::Resume(read(&log).await))).expect("it goes on");
    begun(&context).await;
    let limit = |error: Error| error.metadata()["budget"]["limit"].clone();
    assert_eq!(context.call_tool(call("c1", "t")).await.map_err(limit), Err(json!("tool_calls")));
    assert_eq!(context.call_model(ask("hi")).await.map_err(limit), Err(json!("output_tokens")));
    assert_eq!(context.call_model(ask("hi")).await.map_err(limit), Err(json!("output_tokens")));
    assert_eq!(end(&context).await, Ok(()));
    assert_eq!(
        mynah_log::verify(RUN, &read(&log).await).expect("it verifies").status,
        VerifyStatus::Verified
    );
}

#[tokio::test]
async fn a_price_that_nobody_knows_is_an_error_before_the_call_unless_it_is_allowed() {
    for (budget, request, expected) in [
        (Budget::new().max_usd(1.0), ask("hi"), Err("unknown_price")),
        (Budget::new().max_usd(1.0), ask("hi").with_model("nobody:m"), Err("unknown_price")),
        (Budget::new().max_usd(1.0).allow_unknown_price(), ask("hi"), Ok(1)),
        (Budget::new().max_usd(1e9), priced("hi"), Ok(1)),
        (Budget::new().max_turns(1), ask("hi"), Ok(1)),
    ] {
        let log = Arc::new(MemoryLog::new());
        let model = plays([says(&["hi"])]);
        let context = plain(&log).adapter(model.clone()).budget(budget);
        let context = Context::new(context).expect("a run");
        assert_eq!(begin(&context).await, Ok(()));
        let answer = context.call_model(request).await;
        assert_eq!(answer.map(|ModelAnswer { turn, .. }| turn).map_err(|e| e.reason()), expected);
        assert_eq!(model.1.load(Relaxed), usize::from(expected.is_ok()));
    }
}

#[tokio::test]
async fn cached_tokens_have_their_price() {
    let mut usage = mynah_data::Usage::new(10, 0);
    usage.cached_input_tokens = Some(8);
    let model = plays([whole([Event::Usage { usage: Box::new(usage) }])]);
    let pricing = Pricing::new(1e6, 1e6).with_cached_input(1e5);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone());
    let (answer, _) = twice(config, async |context| {
        let model = ModelRef::new("m").with_pricing(pricing);
        context.call_model(ask("hi").with_model(model)).await
    })
    .await;
    let cost = answer.expect("an answer").response.usage.total_cost.unwrap_or(0.0);
    assert!((cost - 2.8).abs() < 1e-9, "{cost}");
}

#[test]
fn a_budget_that_cannot_be_kept_is_refused() {
    let log = Arc::new(MemoryLog::new());
    for limit in [f64::NAN, -1.0] {
        let refused = Context::new(plain(&log).budget(Budget::new().max_usd(limit))).map(drop);
        assert_eq!(refused.map_err(|error| error.reason()), Err("invalid_options"));
    }
}

#[tokio::test(start_paused = true)]
async fn time_that_runs_out_cuts_off_the_model_and_the_tools_and_a_replay_measures_none() {
    let second = Duration::from_secs(1);
    let slow = || {
        let wait = Tool::new("wait", "", json!({})).handler(async |ms, context: ToolContext| {
            context.random().await?;
            sleep(Duration::from_millis(ms.as_u64().unwrap_or(0))).await;
            context.random().await.map(|_| ms)
        });
        [wait.idempotent(1)]
    };
    let speaks = || Speaks(vec![(0, "so "), (400, "it "), (900, "goes "), (5_000, "on")]);
    let config = |log: &Arc<MemoryLog>| {
        plain(log).adapter(speaks()).tools(slow()).budget(Budget::new().max_wall_clock_ms(2_500))
    };
    let wait = |id: &str, ms: u64| ToolCall::new(id, "wait", ms.to_string());
    let breach = |place| Breach::new(Limit::WallClock, 2_500, 2_501, place);
    let told = |error: Error| error.metadata()["budget"].clone();

    // While the model speaks.
    let (done, facts) = twice(config, async |context| {
        context.call_tool(wait("a", 1_000)).await?;
        context.call_model(ask("hi")).await
    })
    .await;
    let error = done.expect_err("it takes too long");
    let Fact::BudgetExceeded { breach: recorded, partial: Some(partial), .. } = &facts[6] else {
        unreachable!("{:?}", facts[6])
    };
    assert_eq!((recorded, &*partial.text()), (&breach(MID), "so it goes "));
    assert_eq!(error, Error::budget_exceeded(&breach(MID), Some(partial)));

    // While tools run: what is done is kept.
    let (done, facts) = twice(config, async |context| {
        let tools = [wait("a", 2_000), wait("b", 9_000), wait("c", 1_000)];
        context.call_tools(tools).await.map(drop)
    })
    .await;
    assert_eq!(done.map_err(told), Err(json!(breach(MID))));
    let kept = kinds(&facts);
    assert_eq!(kept.iter().filter(|kind| **kind == "tool_completed").count(), 2);
    assert_eq!(kept[kept.len() - 4..], ["tool_failed", "budget_exceeded", "completed", "sealed"]);
    let Fact::ToolFailed { call_id, error, resolution, .. } = &facts[facts.len() - 4] else {
        unreachable!("it is its kind")
    };
    let cut_off = ("b", "cancelled", &Resolution::CutOff);
    assert_eq!((call_id.as_str(), error.reason(), resolution), cut_off);

    // Before anything else is begun. What the loop does by itself is not cut off.
    let (done, _) = twice(config, async |context| {
        let effect = async {
            sleep(second * 5).await;
            Ok::<u8, String>(1)
        };
        let late = context.side_effect("late", effect).await;
        (late, context.call_model(ask("hi")).await, context.call_tool(wait("a", 1)).await)
    })
    .await;
    let late = Error::budget_exceeded(&Breach::new(Limit::WallClock, 2_500, 5_000, PRE), None);
    assert_eq!(done, (Ok(1), Err(late.clone()), Err(late)));
}

#[tokio::test(start_paused = true)]
async fn time_that_runs_out_in_several_branches_runs_out_in_each_of_them_again() {
    let clock = Arc::new(Clock::default());
    let config = |log: &Arc<MemoryLog>| {
        let wait = Tool::new("wait", "", json!({})).handler(async |ms, _| {
            sleep(Duration::from_millis(ms.as_u64().unwrap_or(0))).await;
            ms
        });
        let speaks = Speaks(vec![(0, "so "), (400, "it "), (9_000, "goes")]);
        let budget = Budget::new().max_wall_clock_ms(2_500);
        let config = plain(log).world(Arc::clone(&clock)).adapter(speaks);
        config.tools([wait.idempotent(1)]).budget(budget)
    };
    let wait = |id: &str, ms: u64| ToolCall::new(id, "wait", ms.to_string());
    let reason = |error: Error| error.reason().to_owned();
    let branches = async |context: &Context, model_first: bool| {
        let model = async { context.call_model(ask("hi")).await.map(drop).map_err(reason) };
        let tool = async |id, ms| context.call_tool(wait(id, ms)).await.map(drop).map_err(reason);
        let all = match model_first {
            true => join3(model, tool("a", 9_000), tool("b", 1_000)).await,
            false => {
                let (a, b, model) = join3(tool("a", 9_000), tool("b", 1_000), model).await;
                (model, a, b)
            }
        };
        (all, context.call_tool(wait("c", 1)).await.map(drop).map_err(reason))
    };
    let sleeps = async |context: &Context, seconds: u64| {
        let sleep = context.sleep(Duration::from_secs(seconds));
        let model = async { context.call_model(ask("hi")).await.map(drop).map_err(reason) };
        let tool = async { context.call_tool(wait("b", 1_000)).await.map(drop).map_err(reason) };
        join3(async { sleep.await.map_err(reason) }, tool, model).await
    };
    let late = || Err("budget_exceeded".to_owned());
    for model_first in [true, false] {
        let agent = async |context: &Context| branches(context, model_first).await;
        let (done, _) = twice(config, agent).await;
        assert_eq!(done, ((late(), late(), Ok(())), late()));
        everywhere(config, agent).await;
    }
    for (seconds, slept) in [(2, Ok(())), (9, late())] {
        let agent = async |context: &Context| sleeps(context, seconds).await;
        let (done, _) = twice(config, agent).await;
        assert_eq!(done, (slept, Ok(()), late()));
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_of_earlier_processes_counts_on() {
    let log = Arc::new(MemoryLog::new());
    let clock = Arc::new(Clock::default());
    let config = || {
        let mut config = plain(&log).adapter(Speaks(vec![(1_000, "hi")]));
        config = config.world(clock.clone());
        config.budget(Budget::new().max_wall_clock_ms(2_500))
    };
    let agent = async |context: &Context, calls: usize| {
        begin(context).await?;
        for _ in 0..calls {
            context.call_model(ask("hi")).await?;
        }
        context.flush().await
    };
    assert_eq!(agent(&Context::new(config()).expect("a run"), 2).await, Ok(()));
    // The run has no holder meanwhile, and replaying takes no time.
    sleep(Duration::from_secs(60)).await;
    let context =
        Context::new(config().mode(RunMode::Resume(read(&log).await))).expect("it goes on");
    let error = agent(&context, 3).await.expect_err("it takes too long");
    let breach = Breach::new(Limit::WallClock, 2_500, 2_501, MID);
    assert_eq!(error.metadata()["budget"], json!(breach));
    assert_eq!(end(&context).await, Ok(()));
    let replay =
        Context::new(config().mode(RunMode::Replay(read(&log).await))).expect("it is there");
    assert_eq!(agent(&replay, 3).await, Err(error));
    assert_eq!(end(&replay).await, Ok(()));
}

/// A model that says these words, each after so many milliseconds.
#[derive(Clone)]
struct Speaks(Vec<(u64, &'static str)>);

impl Adapter for Speaks {
    fn name(&self) -> &str {
        "speaks"
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        let words = stream::iter(self.0.clone()).then(async |(ms, word)| {
            sleep(Duration::from_millis(ms)).await;
            Ok(Event::text_delta(word))
        });
        let begun = stream::iter([Ok(Event::message_started())]);
        let end = stream::iter([Ok(Event::message_completed(Some(FinishReason::Stop)))]);
        Box::pin(async move { Ok(Box::pin(begun.chain(words).chain(end)) as ModelStream) })
    }
}

/// A request to a model that costs a dollar a token.
fn priced(text: &str) -> Request {
    ask(text).with_model(ModelRef::new("m").with_pricing(Pricing::new(1e6, 1e6)))
}
