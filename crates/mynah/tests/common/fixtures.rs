//! Conversations of every kind: the awaited result must equal the folded stream.

use std::{sync::Arc, time::Duration};

use mynah::{
    Adapter, Chat, Engine, Event, FinishReason, Generate, Image, Message, OnUnknownTool, Options,
    Part, ResponseFormat, Step, Thread, Tool, ToolCall, ToolErrorDecision, ToolMode, ToolOutcome,
};
use serde_json::{Value, json};

use super::{Canned, boom, both, call, calls, echo, map, says, scripted, tool};

/// A conversation that can be had again and again, each time with a fresh model.
pub(crate) struct Fixture {
    pub(crate) name: &'static str,
    pub(crate) thread: Thread,
    model: Box<dyn Fn() -> Arc<dyn Adapter>>,
    tools: Vec<Tool>,
    options: Options,
}

impl Fixture {
    fn new<const N: usize>(name: &'static str, scripts: [Value; N]) -> Self {
        Self::with_model(name, move || Arc::new(scripted(scripts.clone())))
    }

    fn with_model(name: &'static str, model: impl Fn() -> Arc<dyn Adapter> + 'static) -> Self {
        let tools = vec![echo(), boom(), ask(), plan(), hand_over(), slow(), slow_plan()];
        // Ids are made up; given, they are the same each time.
        let options = Options::new().request_id("r");
        Self { name, thread: Thread::from("hi"), model: Box::new(model), tools, options }
    }

    fn options(mut self, set: impl FnOnce(Options) -> Options) -> Self {
        self.options = set(self.options);
        self
    }

    fn thread(mut self, thread: impl Into<Thread>) -> Self {
        self.thread = thread.into();
        self
    }

    fn engine(&self) -> Engine {
        Engine::new((self.model)()).tools(self.tools.clone())
    }

    pub(crate) fn chat(&self) -> Chat {
        self.engine().chat(&self.thread).options(self.options.clone())
    }

    pub(crate) fn generate(&self) -> Generate {
        self.engine().generate(self.thread.clone()).options(self.options.clone())
    }

    pub(crate) fn step(&self) -> Step {
        self.engine().step(&self.thread).options(self.options.clone())
    }
}

pub(crate) fn fixtures() -> Vec<Fixture> {
    let echo_call = |id| calls([(id, "echo", json!({"x": 1}))]);
    vec![
        Fixture::new("happy multi-turn", [echo_call("c0"), echo_call("c1"), says("done")]),
        Fixture::new("max_turns 1", [echo_call("c0"), says("never")]).options(|o| o.max_turns(1)),
        Fixture::new("single text", [says("hello")]),
        Fixture::new("halt_when at step 1", [echo_call("c0"), echo_call("c1"), says("never")])
            .options(|o| {
                o.halt_when("test", |step| step.response.tool_calls().any(|call| call.id == "c1"))
            }),
        Fixture::new("manual mode", [echo_call("c0")]).options(|o| o.mode(ToolMode::Manual)),
        Fixture::new("ask-user", [call("c0", "ask")]),
        Fixture::new("custom halt", [call("c0", "plan")]),
        Fixture::new("on_tool_error function continue", [call("c0", "boom"), says("done")])
            .options(|o| {
                o.on_tool_error(mynah::OnToolError::decide(|_, _| {
                    ToolErrorDecision::Continue(json!({"ok": 1}))
                }))
            }),
        Fixture::new("on_tool_error halt", [call("c0", "boom")])
            .options(|options| options.on_tool_error(mynah::OnToolError::Halt)),
        Fixture::new("vision thread", [says("a bird")]).thread(Message::user_parts([
            Part::text("what is this?"),
            Part::image(Image::from_url("https://example.com/bird.png")),
        ])),
        Fixture::new("mixed manual first turn", [both("echo", "hand_over")]),
        Fixture::new("pure manual first turn", [call("c0", "hand_over")]),
        Fixture::new("auto only", [both("echo", "echo"), says("done")]),
        Fixture::new("parallel, the first is slow", [both("slow", "echo"), says("done")]),
        Fixture::new("two halts, the first is slow", [both("slow_plan", "ask")]),
        Fixture::new("halt beside a manual call", [both("ask", "hand_over")]),
        Fixture::new("halt beside an error", [both("boom", "plan")])
            .options(|options| options.on_tool_error(mynah::OnToolError::Halt)),
        Fixture::new("on_tool_error panics", [call("c0", "boom")])
            .options(|o| o.on_tool_error(mynah::OnToolError::decide(|_, _| panic!("no idea")))),
        Fixture::new("unknown tool in turn 2", [echo_call("c0"), both("echo", "nope")]),
        Fixture::new("unknown tool, answered", [both("echo", "nope"), says("done")])
            .options(|o| o.on_unknown_tool(OnUnknownTool::Answer)),
        Fixture::new(
            "error in mid-stream",
            [echo_call("c0"), json!([{"text": "hal"}, {"error": "rate_limited"}])],
        ),
        Fixture::new("broken off", [json!([{"text": "hal"}, {"disconnect": true}])]),
        Fixture::new(
            "refused in turn 2",
            [echo_call("c0"), json!([{"preflight_error": "authentication_failed"}])],
        ),
        Fixture::new(
            "calls in pieces, reasoning, usage",
            [
                json!([
                    {"reasoning": "hm", "signature": "s"}, {"text": "let me "}, {"text": "see"},
                    {"tool_call_start": {"id": "c0", "name": "echo"}},
                    {"tool_call_delta": {"id": "c0", "arguments_delta": "{\"x\":"}},
                    {"tool_call_delta": {"id": "c0", "arguments_delta": " 1.0}"}},
                    {"usage": {"input_tokens": 7, "output_tokens": 3}}, {"raw_chunk": {"k": 1}}, {"finish": "tool_calls"},
                ]),
                says("done"),
            ],
        ),
        Fixture::new(
            "cut off by length with a call",
            [
                json!([{"tool_call": {"id": "c0", "name": "echo", "arguments": {}}}, {"finish": "length"}]),
            ],
        ),
        Fixture::new("finish other", [json!([{"text": "x"}, {"finish": "other"}])]),
        Fixture::new("no finish", [json!([{"text": "x"}])]),
        Fixture::new("tool_calls without calls", [json!([{"finish": "tool_calls"}]), says("done")]),
        Fixture::with_model("paused", || Arc::new(Canned::new([paused("a"), stopped("b")]))),
        Fixture::with_model("paused with a call that halts", || {
            Arc::new(Canned::new([paused_with_call("plan", FinishReason::ToolCalls)]))
        }),
        Fixture::new("structured_finalize", [echo_call("c0"), says("done"), says("{}")]).options(
            |o| {
                o.response_format(ResponseFormat::json_schema("p", json!({})))
                    .structured_finalize(true)
            },
        ),
    ]
}

fn ask() -> Tool {
    tool("ask", |_| ToolOutcome::ask_with("how many?", map(json!({"choices": [1, 2]}))))
}

fn plan() -> Tool {
    tool("plan", |_| ToolOutcome::halt("plan_submitted", json!({"ok": 1})))
}

fn hand_over() -> Tool {
    Tool::new("hand_over", "", json!({})).manual()
}

fn slow() -> Tool {
    Tool::new("slow", "", json!({})).handler(async |_, _| {
        tokio::time::sleep(Duration::from_millis(50)).await;
        json!("slow")
    })
}

fn slow_plan() -> Tool {
    Tool::new("slow_plan", "", json!({})).handler(async |_, _| {
        tokio::time::sleep(Duration::from_millis(50)).await;
        ToolOutcome::halt("slow_plan", json!("later"))
    })
}

/// The events of an answer after which the provider wants to be called again.
pub(crate) fn paused(text: &str) -> Vec<Event> {
    let mut completed = Event::message_completed(Some(FinishReason::Other));
    if let Event::MessageCompleted { raw_finish_reason, paused, .. } = &mut completed {
        (*raw_finish_reason, *paused) = (Some("pause_turn".to_owned()), true);
    }
    vec![Event::message_started(), Event::text_delta(text), completed]
}

/// The same with a call in the answer.
pub(crate) fn paused_with_call(tool: &str, finish: FinishReason) -> Vec<Event> {
    let mut events = paused("let me see");
    events.insert(2, Event::tool_call_completed(ToolCall::new("c0", tool, "{}")));
    if let Some(Event::MessageCompleted { finish_reason, .. }) = events.last_mut() {
        *finish_reason = Some(finish);
    }
    events
}

/// The events of a final answer.
pub(crate) fn stopped(text: &str) -> Vec<Event> {
    let completed = Event::message_completed(Some(FinishReason::Stop));
    vec![Event::message_started(), Event::text_delta(text), completed]
}
