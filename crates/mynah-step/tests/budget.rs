//! Budgets of a loop of one's own.

mod common;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use common::*;
use mynah_data::{
    Breach, Budget, Error, Event, Limit, ModelRef, Place, Pricing, Request, ToolCall,
};
use mynah_log::{Fact, MemoryLog};
use mynah_step::{Answer, Context, Mode};
use serde_json::json;

const PRE: Place = Place::PreCall;
const MID: Place = Place::MidStream;

#[tokio::test]
async fn a_prompt_that_is_too_long_is_recorded_and_refused_before_the_turn_begins() {
    let model = plays([says(&["never"])]);
    let config = |log: &Arc<MemoryLog>| {
        plain(log).adapter(model.clone()).budget(Budget::new().max_input_tokens(3))
    };
    let (answer, facts) = twice(config, async |context| {
        // 12 characters and 2 more.
        context.llm_call(ask("twelve chars")).await
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
    let (answer, _) = twice(config, async |context| context.llm_call(priced("hi")).await).await;
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
            twice(config, async |context| context.llm_call(priced("hi")).await).await;
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
        [context.llm_call(ask("hi")).await.is_ok(), context.llm_call(ask("hi")).await.is_ok()]
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
            context.llm_call(ask("hi")).await.map(drop),
            context.llm_call(ask("hi")).await.map(drop),
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
        assert_eq!(context.llm_call(ask("hi")).await.map(|answer| answer.turn), Ok(1));
        assert!(context.call_tool(call("c0", "t")).await.is_ok());
        assert_eq!(context.flush().await, Ok(()));
    };
    begun(&Context::new(config()).expect("a run")).await;
    let context = Context::new(config().mode(Mode::Resume(read(&log).await))).expect("it goes on");
    begun(&context).await;
    let limit = |error: Error| error.metadata()["budget"]["limit"].clone();
    assert_eq!(context.call_tool(call("c1", "t")).await.map_err(limit), Err(json!("tool_calls")));
    assert_eq!(context.llm_call(ask("hi")).await.map_err(limit), Err(json!("output_tokens")));
    assert_eq!(context.llm_call(ask("hi")).await.map_err(limit), Err(json!("output_tokens")));
    assert_eq!(end(&context).await, Ok(()));
    assert_eq!(mynah_log::verify(RUN, &read(&log).await).expect("it verifies").status, "verified");
}

#[tokio::test]
async fn a_price_that_nobody_knows_is_an_error_before_the_call_unless_it_is_allowed() {
    for (budget, request, expected) in [
        (Budget::new().max_usd(1.0), ask("hi"), Err("unknown_price")),
        (
            Budget::new().max_usd(1.0),
            Request { model: Some("nobody:m".into()), ..ask("hi") },
            Err("unknown_price"),
        ),
        (Budget::new().max_usd(1.0).allow_unknown_price(), ask("hi"), Ok(1)),
        (Budget::new().max_usd(1e9), priced("hi"), Ok(1)),
        (Budget::new().max_turns(1), ask("hi"), Ok(1)),
    ] {
        let log = Arc::new(MemoryLog::new());
        let model = plays([says(&["hi"])]);
        let context = plain(&log).adapter(model.clone()).budget(budget);
        let context = Context::new(context).expect("a run");
        assert_eq!(begin(&context).await, Ok(()));
        let answer = context.llm_call(request).await;
        assert_eq!(answer.map(|Answer { turn, .. }| turn).map_err(|e| e.reason()), expected);
        assert_eq!(model.1.load(Relaxed), usize::from(expected.is_ok()));
    }
}

#[tokio::test]
async fn cached_tokens_have_their_price() {
    let usage = mynah_data::Usage {
        input_tokens: Some(10),
        cached_input_tokens: Some(8),
        output_tokens: Some(0),
        ..Default::default()
    };
    let model = plays([whole([Event::Usage { usage: Box::new(usage) }])]);
    let pricing = Pricing::new(1e6, 1e6).with_cached_input(1e5);
    let config = |log: &Arc<MemoryLog>| plain(log).adapter(model.clone());
    let (answer, _) = twice(config, async |context| {
        let model = Some(ModelRef::new("m").with_pricing(pricing));
        context.llm_call(Request { model, ..ask("hi") }).await
    })
    .await;
    let cost = answer.expect("an answer").response.usage.total_cost.unwrap_or(0.0);
    assert!((cost - 2.8).abs() < 1e-9, "{cost}");
}

#[test]
fn a_budget_that_cannot_be_kept_is_refused() {
    let log = Arc::new(MemoryLog::new());
    for budget in [Budget::new().max_wall_clock_ms(1), Budget::new().max_usd(f64::NAN)] {
        let refused = Context::new(plain(&log).budget(budget)).map(drop);
        assert_eq!(refused.map_err(|error| error.reason()), Err("invalid_options"));
    }
}

/// A request to a model that costs a dollar a token.
fn priced(text: &str) -> Request {
    Request { model: Some(ModelRef::new("m").with_pricing(Pricing::new(1e6, 1e6))), ..ask(text) }
}
