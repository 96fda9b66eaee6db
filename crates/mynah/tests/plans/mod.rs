//! Random runs: what the model says, what the tools do, what the caller asks for.

use mynah::{
    AdapterReason, Engine, Error, FinishReason, Metadata, ModelRef, Options, Pricing, Tool,
    ToolCall, ToolOutcome, Usage,
    testing::{Entry, Script, Scripted},
};
use proptest::{collection::vec, option, prelude::*};
use serde_json::{Value, json};

/// A random run: what the model says, what the tools do, what the caller asks for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    scripts: Vec<Script>,
    outcomes: Vec<ToolOutcome>,
    manual: bool,
    options: Value,
}

impl Plan {
    /// A fresh engine each time, so that two runs of the plan see the same scripts and outcomes.
    pub(crate) fn engine(&self) -> Engine {
        let tool = |index: usize, outcome: &ToolOutcome| {
            let outcome = outcome.clone();
            let tool = Tool::new(format!("t{index}"), "", json!({}));
            let tool = tool.handler(move |_, _| std::future::ready(outcome.clone()));
            if self.manual && index == 0 { tool.manual() } else { tool }
        };
        let tools = self.outcomes.iter().enumerate().map(|(index, outcome)| tool(index, outcome));
        let model = ModelRef::new("priced").with_pricing(Pricing::new(1.0, 2.0));
        Engine::new(Scripted::play(self.scripts.clone())).model(model).tools(tools)
    }

    #[allow(dead_code, reason = "most tests spend")]
    pub(crate) fn without_budget(mut self) -> Self {
        self.options["budget"] = Value::Null;
        self
    }

    pub(crate) fn options(&self) -> Options {
        Options::from_json(self.options.clone()).unwrap_or_default().request_id("same")
    }
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    (vec(script(), 0..5), vec(outcome(), 1..4), any::<bool>(), options()).prop_map(
        |(scripts, outcomes, manual, options)| Plan { scripts, outcomes, manual, options },
    )
}

fn script() -> impl Strategy<Value = Script> {
    let ends = prop_oneof![
        6 => Just(Entry::Finish(FinishReason::ToolCalls)),
        4 => finish().prop_map(Entry::Finish),
        1 => Just(Entry::Disconnect),
        1 => Just(Entry::Error(Error::adapter(AdapterReason::RateLimited))),
    ];
    let broken = prop::bool::weighted(0.05);
    (vec(entry(), 0..6), option::weighted(0.95, ends), broken).prop_map(|(entries, end, broken)| {
        let refused = Entry::PreflightError(Error::adapter(AdapterReason::ProviderUnavailable));
        let entries = broken.then_some(refused).into_iter().chain(unique_calls(entries));
        entries.chain(end).fold(Script::new(), Script::with)
    })
}

/// Ids are unique in an answer, as every provider promises.
fn unique_calls(entries: Vec<Entry>) -> impl Iterator<Item = Entry> {
    entries.into_iter().enumerate().map(|(index, entry)| match entry {
        Entry::ToolCall(mut call) => {
            call.id = format!("c{index}");
            Entry::ToolCall(call)
        }
        entry => entry,
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let arguments = prop_oneof!["\\{\\}", "\\{\"x\": ?1\\}", "\\{\"x\"", "null", ""];
    prop_oneof![
        3 => "[a-z ]{0,6}".prop_map(Entry::Text),
        1 => ("[a-z]{0,4}", option::of("[A-Z]{2}"))
            .prop_map(|(text, signature)| Entry::Reasoning { text, signature }),
        // One in eight calls names a tool that does not exist.
        4 => (0usize..8, arguments).prop_map(|(n, raw)| {
            Entry::ToolCall(ToolCall::new("", if n == 7 { "nope".to_owned() } else { format!("t{}", n % 3) }, raw))
        }),
        1 => (0u64..3).prop_map(|n| Entry::ToolCallDelta {
            id: format!("p{n}"), arguments_delta: "{}".to_owned(),
        }),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(input, output)| Entry::Usage(Box::new(Usage::new(u64::from(input), u64::from(output))))),
        1 => Just(Entry::RawChunk(json!({"odd": true}))),
    ]
}

fn finish() -> impl Strategy<Value = FinishReason> {
    prop_oneof![
        Just(FinishReason::Stop),
        Just(FinishReason::Length),
        Just(FinishReason::ContentFilter),
        Just(FinishReason::Other),
    ]
}

fn outcome() -> impl Strategy<Value = ToolOutcome> {
    prop_oneof![
        // Members that are not in the order in which records keep them.
        5 => any::<u8>().prop_map(|n| ToolOutcome::Ok(json!({"n": n, "b": {"z": 1, "a": 2}}))),
        2 => "[a-z]{1,5}".prop_map(ToolOutcome::error),
        1 => any::<u8>().prop_map(|n| ToolOutcome::error(json!({"z": n, "a": 1}))),
        1 => "[a-z]{1,5}\\?".prop_map(|question| {
            let opts = [("mask".to_owned(), json!(true)), ("choices".to_owned(), json!(["a"])), ("a".to_owned(), json!(1))];
            ToolOutcome::ask_with(question, Metadata::from_iter(opts))
        }),
        1 => Just(ToolOutcome::halt("plan_submitted", json!({"ok": 1, "by": {"z": 1, "a": 2}}))),
        1 => Just(ToolOutcome::halt("max_turns", json!(null))),
    ]
}

fn options() -> impl Strategy<Value = Value> {
    let schema = json!({"type": "json_schema", "name": "p", "schema": {}, "strict": true});
    (
        option::of(0u32..4),
        prop_oneof![4 => Just("auto"), 1 => Just("manual")],
        prop_oneof![3 => Just("continue"), 1 => Just("halt")],
        prop_oneof![2 => Just("fail"), 1 => Just("answer")],
        prop::bool::weighted(0.3),
        option::weighted(0.4, Just(schema)),
        1usize..4,
        option::weighted(0.4, budget()),
    )
        .prop_map(|(max_turns, mode, on_error, unknown, finalize, format, concurrency, budget)| {
            json!({
                "max_turns": max_turns, "mode": mode, "on_tool_error": on_error, "on_unknown_tool": unknown,
                "structured_finalize": finalize && format.is_some(), "response_format": format,
                "max_concurrency": concurrency, "budget": budget,
            })
        })
}

/// Limits that are passed now and then. Time is not among them: it does not pass in these runs.
fn budget() -> impl Strategy<Value = Value> {
    let now_and_then = |limit: std::ops::Range<u64>| option::weighted(0.3, limit);
    (
        now_and_then(0..70_000),
        now_and_then(0..70_000),
        now_and_then(0..140_000),
        option::weighted(0.3, 0.0..0.3f64),
        now_and_then(0..5),
        now_and_then(0..5),
        any::<bool>(),
    )
        .prop_map(|(input, output, total, usd, turns, calls, small)| {
            // Half of the limits are so small that what was not reported passes them too.
            let limit = |tokens: Option<u64>| tokens.map(|n| if small { n / 1_000 } else { n });
            json!({
                "max_input_tokens": limit(input), "max_output_tokens": limit(output),
                "max_total_tokens": limit(total), "max_usd": usd, "max_turns": turns, "max_tool_calls": calls,
            })
        })
}

#[expect(clippy::expect_used, reason = "a test without a runtime has failed")]
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}
