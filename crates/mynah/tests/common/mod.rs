//! What the tests of the engine's calls share: short scripts, tools, a model of one's own, and ways to look at threads.

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::panic,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

pub(crate) mod fixtures;

use std::{
    collections::VecDeque,
    future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, StreamExt as _};
use mynah::{
    Adapter, BoxFuture, ChatResult, Collector, Engine, Error, Event, EventStream, Message,
    ModelCall, ModelStream, Request, Result, RetryPolicy, Step, StepResult, Thread, Tool,
    testing::Scripted,
};
use serde_json::{Value, json};

/// A model that plays these scripts.
pub(crate) fn scripted(scripts: impl IntoIterator<Item = Value>) -> Scripted {
    Scripted::new(scripts).expect("the script fits")
}

/// The script of a final answer.
pub(crate) fn says(text: &str) -> Value {
    json!([{"text": text}, {"finish": "stop"}])
}

/// The script of an answer that calls tools: `(id, tool, arguments)` each.
pub(crate) fn calls<const N: usize>(calls: [(&str, &str, Value); N]) -> Value {
    let call = |(id, name, arguments): (&str, &str, Value)| json!({"tool_call": {"id": id, "name": name, "arguments": arguments}});
    let finish = std::iter::once(json!({"finish": "tool_calls"}));
    Value::Array(calls.into_iter().map(call).chain(finish).collect())
}

/// The script of an answer that calls one tool without arguments.
pub(crate) fn call(id: &str, name: &str) -> Value {
    calls([(id, name, json!({}))])
}

/// The script of an answer that calls two tools without arguments, as c0 and c1.
pub(crate) fn both(first: &str, second: &str) -> Value {
    calls([("c0", first, json!({})), ("c1", second, json!({}))])
}

/// A tool that takes anything and gives what the function gives.
pub(crate) fn tool<T: Into<mynah::ToolOutcome>>(
    name: &str,
    run: impl Fn(Value) -> T + Send + Sync + 'static,
) -> Tool {
    Tool::new(name, "", json!({})).handler(move |arguments, _| {
        let outcome = run(arguments).into();
        async move { outcome }
    })
}

/// Gives its arguments back.
pub(crate) fn echo() -> Tool {
    tool("echo", |arguments| arguments)
}

/// Panics.
pub(crate) fn boom() -> Tool {
    Tool::new("boom", "", json!({})).handler(async |_, _| -> Value { panic!("kaboom") })
}

/// Gives its name after so many milliseconds.
pub(crate) fn sleepy(name: &'static str, ms: u64) -> Tool {
    Tool::new(name, "", json!({})).handler(move |_, _| async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        name
    })
}

/// Never ends, and counts when it is dropped.
pub(crate) fn hanging(name: &str, dropped: &Counter) -> Tool {
    let dropped = dropped.clone();
    Tool::new(name, "", json!({})).handler(move |_, _| {
        let guard = dropped.on_drop();
        async move {
            future::pending::<()>().await;
            drop(guard);
        }
    })
}

/// A tool that counts how often it was run.
pub(crate) fn counted(name: &str) -> (Tool, Counter) {
    let runs = Counter::default();
    let counter = runs.clone();
    let counting = tool(name, move |_| {
        counter.add();
        json!("counted")
    });
    (counting, runs)
}

/// A number that several places count up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<AtomicUsize>);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Counts when it is dropped.
    pub(crate) fn on_drop(&self) -> CountOnDrop {
        CountOnDrop(self.clone())
    }
}

/// Counts again when it is dropped.
#[derive(Debug)]
pub(crate) struct CountOnDrop(Counter);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.add();
    }
}

/// A shared list that closures write to.
#[derive(Clone, Debug)]
pub(crate) struct Seen<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Seen<T> {
    pub(crate) fn push(&self, value: T) {
        self.0.lock().expect("not poisoned").push(value);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().expect("not poisoned").clone()
    }
}

/// A model that emits these events as they are, one list for each call: for what a script cannot say.
#[derive(Clone, Default)]
pub(crate) struct Canned {
    answers: Arc<Mutex<VecDeque<Result<Vec<Event>>>>>,
    pub(crate) requests: Seen<Request>,
    pub(crate) calls: Seen<ModelCall>,
    pub(crate) dropped: Counter,
    needs_finalize: bool,
}

impl Canned {
    pub(crate) fn new(answers: impl IntoIterator<Item = Vec<Event>>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().map(Ok).collect())),
            ..Self::default()
        }
    }

    /// A model whose only call is refused.
    pub(crate) fn refusing(error: Error) -> Self {
        Self { answers: Arc::new(Mutex::new(VecDeque::from([Err(error)]))), ..Self::default() }
    }

    /// The same model, which cannot combine tools with a response format.
    pub(crate) fn needing_finalize(mut self) -> Self {
        self.needs_finalize = true;
        self
    }
}

impl Adapter for Canned {
    fn name(&self) -> &str {
        "canned"
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        self.requests.push(request);
        self.calls.push(call);
        let answer = self.answers.lock().expect("not poisoned").pop_front();
        let dropped = self.dropped.on_drop();
        Box::pin(async move {
            let events = answer.expect("an answer is left")?.into();
            Ok(Box::pin(Answer { events, _dropped: dropped }) as ModelStream)
        })
    }

    fn needs_structured_finalize(&self, request: &Request) -> bool {
        self.needs_finalize && !request.tools.is_empty()
    }

    fn default_retry(&self) -> RetryPolicy {
        RetryPolicy::never()
    }
}

struct Answer {
    events: VecDeque<Event>,
    _dropped: CountOnDrop,
}

impl Stream for Answer {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        Poll::Ready(self.events.pop_front().map(Ok))
    }
}

/// Every event of a stream that is not refused.
pub(crate) async fn events(stream: impl Stream<Item = Result<Event>>) -> Vec<Event> {
    mynah::testing::collect(stream).await.expect("the call is not refused")
}

/// The first events of a stream.
pub(crate) async fn pull(stream: &mut EventStream, count: usize) -> Vec<Event> {
    let mut seen = Vec::new();
    for _ in 0..count {
        seen.push(stream.next().await.expect("an event").expect("no refusal"));
    }
    seen
}

/// The result of a chat that streamed to its end.
#[track_caller]
pub(crate) fn completed(seen: &[Event]) -> ChatResult {
    match seen.last() {
        Some(Event::ChatCompleted { result }) => ChatResult::clone(result),
        last => panic!("expected chat_completed, found {last:?}"),
    }
}

/// The error of a stream that is refused: its first and only item.
pub(crate) async fn refusal(mut stream: EventStream) -> Error {
    let first = stream.next().await;
    assert!(stream.next().await.is_none(), "nothing comes after a refusal");
    match first {
        Some(Err(error)) => error,
        item => panic!("expected a refusal, found {item:?}"),
    }
}

/// What these events come to.
pub(crate) fn fold<'a>(thread: &Thread, events: impl IntoIterator<Item = &'a Event>) -> Collector {
    let mut collector = Collector::new(thread.clone());
    events.into_iter().for_each(|event| collector.apply(event));
    collector
}

/// Who says what in a thread: `user: hi`, `assistant: → c0`, `tool c0: 42`.
pub(crate) fn transcript(thread: &Thread) -> Vec<String> {
    thread.messages.iter().map(|message| line(message)).collect()
}

fn line(message: &Message) -> String {
    let calls = message.tool_calls().map(|call| format!("→ {}", call.id));
    let said = Some(message.text().into_owned()).filter(|text| !text.is_empty());
    let words: Vec<String> = said.into_iter().chain(calls).collect();
    match message.tool_call_id() {
        Some(id) => format!("tool {id}: {}", words.join(" ")),
        None => format!("{}: {}", message.role().as_str(), words.join(" ")),
    }
}

/// A map from JSON.
pub(crate) fn map(value: Value) -> mynah::Metadata {
    match value {
        Value::Object(map) => map,
        value => panic!("expected an object, found {value}"),
    }
}

/// One step with these tools on an answer of this script.
pub(crate) fn step<const N: usize>(tools: [Tool; N], script: Value) -> Step {
    Engine::new(scripted([script])).tools(tools).step("hi").request_id("r")
}

/// What the events of a [`step`] come to.
pub(crate) fn folded(events: &[Event]) -> StepResult {
    fold(&Thread::from("hi"), events).step_result()
}

/// The tool messages of a step: `c0: 42`.
pub(crate) fn results(step: &StepResult) -> Vec<String> {
    let line = |message: &Arc<Message>| {
        format!("{}: {}", message.tool_call_id().expect("an id"), message.text())
    };
    step.tool_results.iter().map(line).collect()
}
