//! Layers: what happens around a tool's handler.
//!
//! A layer gets each call of a tool before the handler does, and its outcome after it. Layers fit any tool: typed, dynamic, from
//! a server. They are added with [`Tool::layer`].
//!
//! **The layer that was added last is the outermost**: it gets the call first and the outcome last.
//!
//! ```
//! # use mynah_step as mynah;
//! use std::time::Duration;
//! use mynah::Tool;
//! use mynah::layers::{Cache, OutputCap, RateLimit};
//! use serde_json::json;
//!
//! let search = Tool::new("search", "Searches the web", json!({"type": "object"}))
//!     .handler(async |_, _| "a very long page")
//!     .layer(OutputCap::new(10_000))
//!     .layer(RateLimit::new(10, Duration::from_secs(60)))
//!     // Outermost: an outcome that is cached does not count in the rate limit.
//!     .layer(Cache::new(100, Duration::from_secs(600)));
//! ```
//!
//! [`Tool::around`] makes a layer of an async closure:
//!
//! ```
//! # use mynah_step::Tool;
//! # use serde_json::json;
//! # let search = Tool::new("search", "", json!({"type": "object"}));
//! let logged = search.around(async |next, arguments, context| {
//!     println!("{} with {arguments}", context.call.name);
//!     next.call(arguments, context).await
//! });
//! ```
//!
//! One that is used more than once is a type that implements [`Layer`].

use std::{
    borrow::Cow,
    cell::Cell,
    collections::{HashMap, VecDeque},
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt as _;
use mynah_data::{Error, Part, ToolOutcome};
use serde_json::Value;
use tokio::{sync::Semaphore, time::Instant};

use crate::{BoxFuture, Handler, Tool, ToolContext, journal::lock, tool::panic_text};

/// What is inside a layer: the handler, or the next layer.
pub type Next = Arc<dyn Handler>;

/// Something around a tool's handler; see [the module](self).
pub trait Layer: Send + Sync + 'static {
    /// Runs one call.
    fn call(&self, next: Next, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome>;
}

/// A layer and what is inside it.
struct Layered {
    layer: Arc<dyn Layer>,
    next: Next,
}

impl Handler for Layered {
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome> {
        self.layer.call(Arc::clone(&self.next), arguments, context)
    }
}

pub(crate) fn layered(layer: Arc<dyn Layer>, next: Next) -> Next {
    Arc::new(Layered { layer, next })
}

/// A layer that is an async function.
struct Around<F>(F);

impl<F, Fut> Layer for Around<F>
where
    F: Fn(Next, Value, ToolContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ToolOutcome> + Send + 'static,
{
    fn call(&self, next: Next, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome> {
        Box::pin(self.0(next, arguments, context))
    }
}

impl Tool {
    /// The same tool with an async function around its handler, outside of what is there already; see [layers](crate::layers).
    pub fn around<Fut>(
        self,
        layer: impl Fn(Next, Value, ToolContext) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = ToolOutcome> + Send + 'static,
    {
        self.layer(Around(layer))
    }
}

/// Ends a call that takes too long, with an error that may pass.
///
/// [`Tool::timeout`] limits an attempt with all its layers, and is part of the tool's spec. This limits only what is inside the layer: the
/// wait for a [`RateLimit`] outside of it does not count.
#[derive(Clone, Copy, Debug)]
pub struct Timeout(Duration);

impl Timeout {
    /// With this limit.
    pub fn new(limit: Duration) -> Self {
        Self(limit)
    }
}

impl Layer for Timeout {
    fn call(&self, next: Next, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome> {
        let limit = self.0;
        Box::pin(async move {
            let run = tokio::time::timeout(limit, next.call(arguments, context));
            let late =
                |_| ToolOutcome::transient(format!("no result after {} ms", limit.as_millis()));
            run.await.unwrap_or_else(late)
        })
    }
}

/// Truncates a result or an error that is too long for the model, with a note for the model.
#[derive(Clone, Copy, Debug)]
pub struct OutputCap(usize);

impl OutputCap {
    /// Cuts texts after so many bytes, between characters. A result that is not text counts as JSON, and becomes text if it is cut. The
    /// texts of a result with several parts count together, images do not.
    pub fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    /// Cuts a text to what is left of the limit.
    fn cut(value: Value, left: &Cell<usize>) -> Value {
        let limit = left.get();
        let text = match &value {
            Value::String(text) => Cow::Borrowed(text.as_str()),
            value => Cow::Owned(value.to_string()),
        };
        left.set(limit.saturating_sub(text.len()));
        if text.len() <= limit {
            return value;
        }
        let shown = &text[..text.floor_char_boundary(limit)];
        let (first, all) = (shown.len(), text.len());
        Value::String(format!("{shown}\n[truncated: the first {first} of {all} bytes]"))
    }
}

impl Layer for OutputCap {
    fn call(&self, next: Next, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome> {
        let limit = self.0;
        Box::pin(async move {
            let outcome = next.call(arguments, context).await;
            let left = Cell::new(limit);
            map(outcome, |value| Self::cut(value, &left))
        })
    }
}

/// The outcome with another value: of its result, of the texts among its parts, or of its error.
fn map(outcome: ToolOutcome, change: impl Fn(Value) -> Value) -> ToolOutcome {
    match outcome {
        ToolOutcome::Ok(value) => ToolOutcome::Ok(change(value)),
        ToolOutcome::Error { error, transient } => {
            ToolOutcome::Error { error: change(error), transient }
        }
        ToolOutcome::Halt { reason, result } => {
            ToolOutcome::Halt { reason, result: change(result) }
        }
        ToolOutcome::Parts(parts) => {
            let changed = |part| match part {
                Part::Text { text, metadata } => match change(text.into()) {
                    Value::String(text) => Part::Text { text, metadata },
                    value => Part::Text { text: value.to_string(), metadata },
                },
                part => part,
            };
            ToolOutcome::Parts(parts.into_iter().map(changed).collect())
        }
        outcome => outcome,
    }
}

/// Runs a call when its turn has come, and keeps the turn until the call has ended.
fn after<T: Send>(
    turn: impl Future<Output = T> + Send + 'static,
    next: Next,
    arguments: Value,
    context: ToolContext,
) -> BoxFuture<ToolOutcome> {
    // A replay has an order of its own, in which one call may wait for another.
    if context.is_replayed() {
        return next.call(arguments, context);
    }
    Box::pin(async move {
        let _turn = turn.await;
        next.call(arguments, context).await
    })
}

/// Lets so many calls run at once. Others wait for their turn. Clones share the limit, over several tools and chats.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimit(Arc<Semaphore>);

impl ConcurrencyLimit {
    /// So many calls at once.
    pub fn new(calls: usize) -> Self {
        Self(Arc::new(Semaphore::new(calls.min(Semaphore::MAX_PERMITS))))
    }
}

impl Layer for ConcurrencyLimit {
    fn call(&self, next: Next, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome> {
        after(Arc::clone(&self.0).acquire_owned(), next, arguments, context)
    }
}

/// Lets so many calls start within a time. Others wait. Clones share the limit, over several tools and chats.
#[derive(Clone, Debug)]
pub struct RateLimit {
    calls: usize,
    per: Duration,
    /// When the last calls started, or will start.
    started: Arc<Mutex<VecDeque<Instant>>>,
}

impl RateLimit {
    /// So many calls, at least 1, in each stretch of time of this length.
    pub fn new(calls: usize, per: Duration) -> Self {
        Self { calls: calls.max(1), per, started: Arc::default() }
    }

    /// When the next call may start.
    fn next(&self) -> Instant {
        let mut started = lock(&self.started);
        let now = Instant::now();
        let start = match started.len() < self.calls {
            true => now,
            false => started.pop_front().map_or(now, |first| now.max(first + self.per)),
        };
        started.push_back(start);
        start
    }
}

impl Layer for RateLimit {
    fn call(&self, next: Next, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome> {
        let this = self.clone();
        let turn = async move { tokio::time::sleep_until(this.next()).await };
        after(turn, next, arguments, context)
    }
}

/// Returns the result of an earlier call with the same arguments, in any order of their members.
/// Only results are cached, no errors or questions. Clones share the cache; each tool has its own
/// entries.
///
/// In a recorded run, the returned result is recorded, so a replay is the same with any cache.
#[derive(Clone)]
pub struct Cache {
    entries: usize,
    keep: Duration,
    cached: Arc<Mutex<Cached>>,
}

#[derive(Default)]
struct Cached {
    results: HashMap<String, (Instant, Value)>,
    /// The keys, oldest first.
    order: VecDeque<String>,
}

impl Cache {
    /// Keeps this many results, dropping the oldest, each for this time.
    pub fn new(entries: usize, keep: Duration) -> Self {
        Self { entries, keep, cached: Arc::default() }
    }

    fn get(&self, key: &str) -> Option<Value> {
        let cached = lock(&self.cached);
        let (since, value) = cached.results.get(key)?;
        (since.elapsed() < self.keep).then(|| value.clone())
    }

    fn insert(&self, key: String, value: Value) {
        let mut cached = lock(&self.cached);
        if cached.results.insert(key.clone(), (Instant::now(), value)).is_some() {
            cached.order.retain(|other| *other != key);
        }
        cached.order.push_back(key);
        while cached.order.len() > self.entries {
            if let Some(oldest) = cached.order.pop_front() {
                cached.results.remove(&oldest);
            }
        }
    }
}

impl Layer for Cache {
    fn call(&self, next: Next, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome> {
        let mut sorted = arguments.clone();
        sorted.sort_all_objects();
        let (cache, key) = (self.clone(), format!("{} {sorted}", context.call.name));
        Box::pin(async move {
            // A list, as a result may be null.
            let look_up = async { Ok::<Vec<Value>, Error>(cache.get(&key).into_iter().collect()) };
            match context.side_effect("cache", look_up).await.map(|mut found| found.pop()) {
                Ok(Some(value)) => return ToolOutcome::Ok(value),
                Ok(None) => {}
                Err(error) => return ToolOutcome::error(error.to_string()),
            }
            let outcome = next.call(arguments, context).await;
            if let ToolOutcome::Ok(value) = &outcome {
                cache.insert(key, value.clone());
            }
            outcome
        })
    }
}

type Rewrite = dyn Fn(&str) -> String + Send + Sync;

/// Rewrites every text in an outcome, names of members, questions and the message of a panic included, before the model or a record
/// gets it. The value of a [`ToolContext::side_effect`] is recorded as it is: a secret does not belong there.
#[derive(Clone)]
pub struct RedactOutput(Arc<Rewrite>);

impl RedactOutput {
    /// With a function of each text.
    pub fn new(rewrite: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(rewrite))
    }

    /// Replaces these words, as keys and passwords, by `[redacted]`.
    pub fn words(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let words: Vec<String> =
            words.into_iter().map(Into::into).filter(|word: &String| !word.is_empty()).collect();
        Self::new(move |text| {
            words.iter().fold(text.to_owned(), |text, word| text.replace(word, "[redacted]"))
        })
    }

    fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String((self.0)(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(members) => members
                .into_iter()
                .map(|(name, value)| ((self.0)(&name), self.value(value)))
                .collect(),
            value => value,
        }
    }
}

impl Layer for RedactOutput {
    fn call(&self, next: Next, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome> {
        let this = self.clone();
        Box::pin(async move {
            let call = async { next.call(arguments, context).await };
            let outcome = AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|panic| {
                let text = (this.0)(&panic_text(panic.as_ref()));
                panic::resume_unwind(Box::new(text))
            });
            match map(outcome, |value| this.value(value)) {
                ToolOutcome::AskUser { question, opts } => {
                    let opts = opts.into_iter().map(|(name, value)| (name, this.value(value)));
                    ToolOutcome::AskUser { question: (this.0)(&question), opts: opts.collect() }
                }
                outcome => outcome,
            }
        })
    }
}

mynah_data::partial_debug! { Cache { entries, keep } RedactOutput {} }
