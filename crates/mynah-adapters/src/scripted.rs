//! A model that plays a script.
//!
//! Each call plays the next script, for any request. A script is a list of entries; in JSON each
//! entry is an object with one of these members:
//!
//! | entry | what happens |
//! |---|---|
//! | `{"text": s}` | a piece of text |
//! | `{"reasoning": s, "signature": s?}` | a block of reasoning |
//! | `{"tool_call": {"id", "name", "arguments" or "raw_arguments"}}` | a whole tool call |
//! | `{"tool_call_start": {"id", "name"}}`, `{"tool_call_delta": {"id", "arguments_delta"}}` | a tool call in pieces |
//! | `{"usage": {…}}`, `{"raw_chunk": any}` | what it says |
//! | `{"finish": reason}` | the end of the answer |
//! | `{"error": reason, "message"?, "retry_after_ms"?}` | a failure in mid-stream |
//! | `{"preflight_error": reason, …}` | a failure before there is a stream; only as the first entry |
//! | `{"delay_ms": n}` | a pause |
//! | `{"disconnect": true}` | the stream breaks off |
//!
//! A script ends at `finish`, `error` or `disconnect`. One that just stops ends its answer without a reason.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::Stream;
use mynah_data::{
    AdapterReason, Error, Event, FieldError, FinishReason, Metadata, Request, Result, Role,
    ToolCall, Usage, ValidationReason,
};
use mynah_step::{Adapter, BoxFuture, ModelCall, ModelStream, RetryPolicy};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Sleep;

/// One thing a scripted model does.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Entry {
    /// A piece of text.
    Text(String),
    /// A block of reasoning.
    Reasoning {
        /// Its text.
        text: String,
        /// The signature over it.
        signature: Option<String>,
    },
    /// A whole tool call.
    ToolCall(ToolCall),
    /// The beginning of a tool call in pieces.
    ToolCallStart {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// A piece of its arguments.
    ToolCallDelta {
        /// The call's id.
        id: String,
        /// The piece.
        arguments_delta: String,
    },
    /// What the provider counted.
    Usage(Box<Usage>),
    /// Something of the provider's own.
    RawChunk(Value),
    /// The end of the answer.
    Finish(FinishReason),
    /// A failure in mid-stream.
    Error(Error),
    /// A failure before there is a stream.
    PreflightError(Error),
    /// A pause.
    Delay(Duration),
    /// The stream breaks off.
    Disconnect,
}

impl Entry {
    /// From its JSON.
    ///
    /// # Errors
    /// What does not fit, in words.
    fn from_json(value: &Value) -> std::result::Result<Self, String> {
        let Value::Object(map) = value else {
            return Err("expected an object".to_owned());
        };
        let mut fields = Fields(map.clone());
        let Some(name) = map.keys().find(|key| NAMES.contains(&key.as_str())).cloned() else {
            let found = map.keys().next().map_or("nothing", String::as_str);
            return Err(format!("expected one of {}, found {found}", NAMES.join(", ")));
        };
        let entry = match name.as_str() {
            "text" => Self::Text(fields.take("text")?),
            "reasoning" => Self::Reasoning {
                text: fields.take("reasoning")?,
                signature: fields.optional("signature")?,
            },
            "tool_call" => {
                let forms = ["arguments", "raw_arguments"];
                if forms.iter().all(|form| fields.0["tool_call"].get(form).is_some()) {
                    return Err(format!("tool_call: give one of {}", forms.join(", ")));
                }
                const MEMBERS: [&str; 5] = ["id", "name", "arguments", "raw_arguments", "metadata"];
                let mut members = fields.0["tool_call"].as_object().into_iter().flatten();
                if let Some((other, _)) =
                    members.find(|(name, _)| !MEMBERS.contains(&name.as_str()))
                {
                    return Err(format!("tool_call: unknown field `{other}`"));
                }
                Self::ToolCall(fields.object("tool_call")?)
            }
            "tool_call_start" => {
                let Start { id, name } = fields.object("tool_call_start")?;
                Self::ToolCallStart { id, name }
            }
            "tool_call_delta" => {
                let Delta { id, arguments_delta } = fields.object("tool_call_delta")?;
                Self::ToolCallDelta { id, arguments_delta }
            }
            "usage" => {
                let counters = fields.take("usage")?;
                Self::Usage(Box::new(
                    Usage::from_json(counters).map_err(|error| format!("usage: {error}"))?,
                ))
            }
            "raw_chunk" => Self::RawChunk(fields.take("raw_chunk")?),
            "finish" => Self::Finish(fields.take("finish")?),
            "error" => Self::Error(fields.error("error")?),
            "preflight_error" => Self::PreflightError(fields.error("preflight_error")?),
            "delay_ms" => Self::Delay(Duration::from_millis(fields.take("delay_ms")?)),
            _ => match fields.take("disconnect")? {
                true => Self::Disconnect,
                false => return Err("disconnect: expected true".to_owned()),
            },
        };
        match fields.0.keys().next() {
            Some(key) => Err(format!("unknown key {key:?} beside {name:?}")),
            None => Ok(entry),
        }
    }

    const fn ends(&self) -> bool {
        matches!(self, Self::Finish(_) | Self::Error(_) | Self::Disconnect)
    }
}

const NAMES: [&str; 12] = [
    "text",
    "reasoning",
    "tool_call",
    "tool_call_start",
    "tool_call_delta",
    "usage",
    "raw_chunk",
    "finish",
    "error",
    "preflight_error",
    "delay_ms",
    "disconnect",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    id: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delta {
    id: String,
    arguments_delta: String,
}

/// The members of an entry that were not read yet.
struct Fields(Metadata);

impl Fields {
    fn take<T: for<'de> Deserialize<'de>>(&mut self, name: &str) -> std::result::Result<T, String> {
        let value = self.0.shift_remove(name).unwrap_or_default();
        T::deserialize(value).map_err(|error| format!("{name}: {error}"))
    }

    fn optional<T: for<'de> Deserialize<'de>>(
        &mut self,
        name: &str,
    ) -> std::result::Result<Option<T>, String> {
        self.take(name)
    }

    /// A struct, from an object alone: what is derived would take a list as well.
    fn object<T: for<'de> Deserialize<'de>>(
        &mut self,
        name: &str,
    ) -> std::result::Result<T, String> {
        let map = self.take(name)?;
        T::deserialize(Value::Object(map)).map_err(|error| format!("{name}: {error}"))
    }

    fn error(&mut self, name: &str) -> std::result::Result<Error, String> {
        let reason: String = self.take(name)?;
        let known = AdapterReason::ALL.iter().copied().find(|known| known.as_str() == reason);
        let mut error =
            Error::adapter(known.unwrap_or(AdapterReason::Unknown)).with_provider("scripted");
        if known.is_none() {
            error = error.with("cause", reason);
        }
        if let Some(message) = self.optional::<String>("message")? {
            error = error.with_message(message);
        }
        for number in ["retry_after_ms", "status"] {
            if let Some(value) = self.optional::<u64>(number)? {
                error = error.with(number, value);
            }
        }
        match self.optional::<String>("request_id")? {
            Some(id) => Ok(error.with("request_id", id)),
            None => Ok(error),
        }
    }
}

/// What a scripted model does in one call.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::scripted::Script;
/// use serde_json::json;
///
/// let script = Script::new().text("hi").stop();
/// assert_eq!(script, Script::from_json(&json!([{"text": "hi"}, {"finish": "stop"}]))?);
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script(Arc<Vec<Entry>>);

impl Script {
    /// An empty script.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads its JSON, a list of entries.
    ///
    /// # Errors
    /// `invalid_json` with the index of the invalid entry.
    pub fn from_json(value: &Value) -> Result<Self> {
        Self::read(value, None)
    }

    /// `script` is the place of the script among others.
    fn read(value: &Value, script: Option<usize>) -> Result<Self> {
        let misfit = |entry: Option<usize>, why: String| {
            let path = script.into_iter().chain(entry).map(Into::into);
            let error = FieldError::at(path, "malformed");
            let place = error.path_text();
            let place = if place.is_empty() { "script".to_owned() } else { place };
            Error::validation(ValidationReason::InvalidJson, vec![error])
                .with_message(format!("{place}: {why}"))
        };
        let Value::Array(list) = value else {
            return Err(misfit(None, "expected a list of entries".to_owned()));
        };
        let mut entries = Vec::with_capacity(list.len());
        for (index, value) in list.iter().enumerate() {
            let entry = Entry::from_json(value).map_err(|why| misfit(Some(index), why))?;
            if index > 0 && matches!(entry, Entry::PreflightError(_)) {
                return Err(misfit(
                    Some(index),
                    "preflight_error may only be the first entry".to_owned(),
                ));
            }
            entries.push(entry);
        }
        Ok(Self(Arc::new(entries)))
    }

    /// The script with one more entry.
    pub fn with(mut self, entry: Entry) -> Self {
        Arc::make_mut(&mut self.0).push(entry);
        self
    }

    /// The script with a piece of text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.with(Entry::Text(text.into()))
    }

    /// The script with a tool call. Tools run if the script ends with [`call_tools`](Self::call_tools).
    pub fn tool_call(
        self,
        id: impl Into<String>,
        name: impl Into<String>,
        arguments: Value,
    ) -> Self {
        self.with(Entry::ToolCall(ToolCall::from_value(id, name, arguments)))
    }

    /// The script with the tokens that the provider counted, of the prompt and of the answer: what a budget counts.
    ///
    /// ```
    /// # mod mynah { pub use mynah_adapters as adapters; }
    /// use mynah::adapters::scripted::Script;
    /// use serde_json::json;
    ///
    /// let script = Script::new().text("hi").usage(1_000, 20).stop();
    /// let usage = json!({"usage": {"input_tokens": 1000, "output_tokens": 20}});
    /// assert_eq!(script, Script::from_json(&json!([{"text": "hi"}, usage, {"finish": "stop"}]))?);
    /// # Ok::<(), mynah_data::Error>(())
    /// ```
    pub fn usage(self, input_tokens: u64, output_tokens: u64) -> Self {
        self.with(Entry::Usage(Box::new(Usage::new(input_tokens, output_tokens))))
    }

    /// The script with a failure: before the call answers if this is the script's first entry, in mid-stream otherwise.
    ///
    /// ```
    /// # mod mynah { pub use {mynah_adapters as adapters, mynah_data::*}; }
    /// use mynah::{AdapterReason, Error};
    /// use mynah::adapters::scripted::{Entry, Script};
    ///
    /// let down = Error::adapter(AdapterReason::Overloaded);
    /// let refused = Script::new().fail(down.clone());
    /// assert_eq!(refused, Script::new().with(Entry::PreflightError(down.clone())));
    /// let broken_off = Script::new().text("I th").fail(down.clone());
    /// assert_eq!(broken_off, Script::new().text("I th").with(Entry::Error(down)));
    /// ```
    pub fn fail(self, error: Error) -> Self {
        let is_first = self.0.is_empty();
        self.with(if is_first { Entry::PreflightError(error) } else { Entry::Error(error) })
    }

    /// The script with an end for this reason.
    pub fn finish(self, reason: FinishReason) -> Self {
        self.with(Entry::Finish(reason))
    }

    /// The script with the end of a final answer. Its tool calls do not run.
    pub fn stop(self) -> Self {
        self.finish(FinishReason::Stop)
    }

    /// The script with the end of an answer that wants its tools run.
    pub fn call_tools(self) -> Self {
        self.finish(FinishReason::ToolCalls)
    }
}

/// An adapter that plays scripts, one for each call. Clones share the scripts and what was recorded.
///
/// Each process begins with the first script, regardless of its requests. For a program that is killed and started again, use
/// [`by_turn`](Self::by_turn).
#[doc(alias = "Fake")]
#[derive(Clone, Default)]
pub struct Scripted {
    shared: Arc<Shared>,
    by_turn: bool,
}

#[derive(Default)]
struct Shared {
    scripts: Vec<Script>,
    next: AtomicUsize,
    heard: Mutex<Vec<(Request, ModelCall)>>,
    open: AtomicUsize,
}

impl Scripted {
    /// Plays scripts given as JSON.
    ///
    /// # Errors
    /// `invalid_json` with the index of the invalid entry.
    pub fn new(scripts: impl IntoIterator<Item = Value>) -> Result<Self> {
        Ok(Self::play(
            scripts
                .into_iter()
                .enumerate()
                .map(|(index, script)| Script::read(&script, Some(index)))
                .collect::<Result<Vec<_>>>()?,
        ))
    }

    /// Answers with these texts, one for each call.
    ///
    /// ```
    /// # mod mynah { pub mod testing { pub use mynah_adapters::scripted::*; } }
    /// use mynah::testing::Scripted;
    ///
    /// let model = Scripted::says(["Hello.", "Hello again."]);
    /// ```
    pub fn says<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::play(texts.into_iter().map(|text| Script::new().text(text).stop()))
    }

    /// Plays these scripts.
    pub fn play(scripts: impl IntoIterator<Item = Script>) -> Self {
        let shared = Shared { scripts: scripts.into_iter().collect(), ..Shared::default() };
        Self { shared: Arc::new(shared), by_turn: false }
    }

    /// Picks the script by the request: its place is the number of answers in the conversation.
    ///
    /// A process that resumes a run, or continues a session, then gets the script that comes next, and a repeated call gets the same one again.
    ///
    /// ```
    /// # mod mynah { pub mod testing { pub use mynah_adapters::scripted::*; } }
    /// use mynah::testing::{Script, Scripted};
    /// use serde_json::json;
    ///
    /// let calls = Script::new().tool_call("c0", "pay", json!({"euros": 7})).call_tools();
    /// // After a crash in `pay`, the next process gets the second script.
    /// let model = Scripted::play([calls, Script::new().text("It is paid.").stop()]).by_turn();
    /// ```
    #[must_use]
    pub fn by_turn(mut self) -> Self {
        self.by_turn = true;
        self
    }

    /// Every request that was made so far, in order.
    pub fn requests(&self) -> Vec<Request> {
        self.heard().iter().map(|(request, _)| request.clone()).collect()
    }

    /// How many calls were made so far.
    pub fn calls(&self) -> usize {
        self.heard().len()
    }

    /// The data of each call beside its request, in order: ids, options, the key.
    pub fn model_calls(&self) -> Vec<ModelCall> {
        self.heard().iter().map(|(_, call)| call.clone()).collect()
    }

    /// How many streams are open: handed out, and not dropped.
    pub fn open_streams(&self) -> usize {
        self.shared.open.load(Ordering::Acquire)
    }

    fn heard(&self) -> MutexGuard<'_, Vec<(Request, ModelCall)>> {
        self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, request: Request, call: ModelCall) -> Result<Playing> {
        let answers = request.messages.iter().filter(|it| it.role() == Role::Assistant).count();
        self.heard().push((request, call));
        let next = self.shared.next.fetch_add(1, Ordering::AcqRel);
        let index = if self.by_turn { answers } else { next };
        let script = self.shared.scripts.get(index).ok_or_else(|| {
            Error::adapter(AdapterReason::NoScriptedResponse)
                .with_message(format!(
                    "adapter error: no_scripted_response: {} {} and only {} script(s)",
                    if self.by_turn { "turn" } else { "call" },
                    index + 1,
                    self.shared.scripts.len()
                ))
                .with_provider("scripted")
        })?;
        if let Some(Entry::PreflightError(error)) = script.0.first() {
            return Err(error.clone());
        }
        self.shared.open.fetch_add(1, Ordering::AcqRel);
        Ok(Playing {
            script: script.clone(),
            next: 0,
            ready: VecDeque::from([Ok(Event::message_started())]),
            text: String::new(),
            pieces: Vec::new(),
            pause: None,
            ended: false,
            shared: Arc::clone(&self.shared),
        })
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripted")
            .field("scripts", &self.shared.scripts)
            .field("calls", &self.calls())
            .finish()
    }
}

impl Adapter for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Box::pin(async move { Ok(Box::pin(self.begin(request, call)?) as ModelStream) })
    }

    /// A failing script is deliberate: it is retried only if the caller sets a policy.
    fn default_retry(&self) -> RetryPolicy {
        RetryPolicy::never()
    }
}

/// A script being played.
struct Playing {
    script: Script,
    next: usize,
    ready: VecDeque<Result<Event>>,
    text: String,
    /// Calls that came in pieces.
    pieces: Vec<ToolCall>,
    pause: Option<Pin<Box<Sleep>>>,
    ended: bool,
    shared: Arc<Shared>,
}

impl Playing {
    fn perform(&mut self, entry: &Entry) {
        match entry {
            Entry::Text(text) => {
                if !text.is_empty() {
                    self.text.push_str(text);
                    self.say(Event::text_delta(text));
                }
            }
            Entry::Reasoning { text, signature } => {
                self.say(Event::ReasoningDelta { id: None, delta: text.clone() });
                let mut completed = Event::reasoning_completed(text);
                if let Event::ReasoningCompleted { signature: signed, .. } = &mut completed {
                    signed.clone_from(signature);
                }
                self.say(completed);
            }
            Entry::ToolCall(call) => {
                self.say(Event::ToolCallStarted { id: call.id.clone(), name: call.name.clone() });
                self.say(Event::tool_call_completed(call.clone()));
            }
            Entry::ToolCallStart { id, name } => {
                self.piece(id).name.clone_from(name);
                self.say(Event::ToolCallStarted { id: id.clone(), name: name.clone() });
            }
            Entry::ToolCallDelta { id, arguments_delta } => {
                self.piece(id).raw_arguments.push_str(arguments_delta);
                self.say(Event::ToolCallDelta {
                    id: id.clone(),
                    arguments_delta: arguments_delta.clone(),
                });
            }
            Entry::Usage(usage) => self.say(Event::Usage { usage: usage.clone() }),
            Entry::RawChunk(chunk) => self.say(Event::RawChunk { chunk: chunk.clone() }),
            Entry::Finish(reason) => self.finish(Some(*reason)),
            Entry::Error(error) => self.ready.push_back(Err(error.clone())),
            Entry::Delay(pause) => self.pause = Some(Box::pin(tokio::time::sleep(*pause))),
            Entry::PreflightError(_) | Entry::Disconnect => {}
        }
    }

    fn say(&mut self, event: Event) {
        self.ready.push_back(Ok(event));
    }

    fn piece(&mut self, id: &str) -> &mut ToolCall {
        let index = self.pieces.iter().position(|call| call.id == id).unwrap_or(self.pieces.len());
        if index == self.pieces.len() {
            self.pieces.push(ToolCall::new(id, "", ""));
        }
        &mut self.pieces[index]
    }

    fn finish(&mut self, reason: Option<FinishReason>) {
        for call in std::mem::take(&mut self.pieces) {
            let call = ToolCall::new(call.id, call.name, call.raw_arguments);
            self.say(Event::tool_call_completed(call));
        }
        if !self.text.is_empty() {
            let text = std::mem::take(&mut self.text);
            self.say(Event::TextCompleted { id: None, text });
        }
        self.say(Event::message_completed(reason));
    }
}

impl Stream for Playing {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(event));
            }
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(cx));
                this.pause = None;
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let script = Arc::clone(&this.script.0);
            match script.get(this.next) {
                Some(entry) => {
                    this.next += 1;
                    this.ended = entry.ends();
                    this.perform(entry);
                }
                None => {
                    this.ended = true;
                    this.finish(None);
                }
            }
        }
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Ordering::AcqRel);
    }
}
