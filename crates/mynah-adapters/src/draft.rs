//! The answer as a decoder writes it down: what the model says becomes events in their order.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use mynah_data::{
    Event, FinishReason, Message, Metadata, Part, Pricing, Request, Result, Role, ToolCall, Usage,
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::{failure, loose::telling};

/// The name of a block of text or reasoning; none where the format has only one.
pub type Block = Option<Arc<str>>;

/// The maximum number of blocks and calls of an answer: each piece is looked up among them, here
/// and by every reader of the events.
const MAX_PARTS: usize = 4_096;

/// What ids begin with that no provider gave; a number follows.
const MADE_UP: &str = "call_";

/// The maximum number of events that wait for the model's first output.
const MAX_WAITING: usize = 64;

/// An answer in the making.
///
/// For any input from a provider, the events keep their rules: the answer is started first and
/// once. A call is started before its arguments, has an id that is unique in the answer, and is
/// completed. Empty pieces are not events. The start of an answer, its cost so far and unknown data
/// wait for the model's first output: a call that fails before that has emitted nothing, and can be
/// retried.
#[derive(Debug, Default)]
pub struct Draft {
    events: VecDeque<Waiting>,
    started: bool,
    has_said: bool,
    id: Option<String>,
    model: Option<String>,
    /// The model that was asked, for providers that do not say who answers.
    asked: Option<String>,
    end: End,
    /// Blocks that are emitted whole once they are complete.
    blocks: Vec<OpenBlock>,
    calls: Vec<Call>,
    /// The ids of the calls.
    call_ids: HashSet<String>,
    /// How many blocks and calls there were.
    parts: usize,
    /// How many calls the conversation had before, and no less than the highest number that one is called by: what makes up
    /// ids counts on from there.
    earlier_calls: u128,
    refusal: String,
    usage: Usage,
    finish_reason: Option<FinishReason>,
    raw_finish_reason: Option<String>,
    paused: bool,
    cut_off: bool,
    metadata: Metadata,
}

/// An event that was not taken yet. Nearly all are text deltas, which take a fourth of the size of
/// an event: a piece of a body holds a hundred of them, and moving them is measurable.
#[derive(Debug)]
enum Waiting {
    Words { id: Block, delta: String },
    Usage(Box<Usage>),
    Event(Box<Event>),
}

impl From<Waiting> for Event {
    fn from(waiting: Waiting) -> Self {
        match waiting {
            Waiting::Words { id, delta } => Self::TextDelta { id, delta },
            Waiting::Usage(usage) => Self::Usage { usage },
            Waiting::Event(event) => *event,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
enum End {
    #[default]
    Open,
    /// The body may end here, or continue.
    Possible,
    Marked,
}

#[derive(Debug)]
struct OpenBlock {
    id: Block,
    is_reasoning: bool,
    text: String,
}

/// A call of the answer, as [`Draft::open_call`] gave it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallKey(usize);

#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
    metadata: Metadata,
    told: CallProgress,
}

/// How much of a call was emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum CallProgress {
    #[default]
    Nothing,
    Start,
    All,
}

impl Draft {
    /// For the answer to this request.
    pub fn for_request(request: &Request) -> Self {
        let answers = request.messages.iter().filter(|message| message.role() == Role::Assistant);
        let calls = answers.flat_map(|message| message.tool_calls()).zip(1..);
        let numbers = calls.map(|(call, count)| {
            let number = call.id.strip_prefix(MADE_UP).and_then(|id| id.parse::<u64>().ok());
            number.map_or(count, |number| count.max(number.into()))
        });
        let earlier_calls = numbers.max().unwrap_or(0);
        let asked = request.model.as_ref().map(|model| model.id.clone());
        Self { earlier_calls, asked, ..Self::default() }
    }

    /// Starts the answer, with the provider's id and the model's name. Missing ones may come later.
    /// After the first output they are emitted at the end.
    #[inline]
    pub fn start(&mut self, id: Option<&str>, model: Option<&str>) {
        if self.id.is_some() && self.model.is_some() {
            return;
        }
        for (known, late, name) in
            [(&mut self.id, "response_id", id), (&mut self.model, "response_model", model)]
        {
            if let (None, Some(name)) = (&known, name.filter(|name| !name.is_empty())) {
                *known = Some(name.to_owned());
                if self.started {
                    self.metadata.insert(late.to_owned(), name.into());
                }
            }
        }
        if self.model.is_some() {
            self.begin();
        }
    }

    /// A piece of text.
    pub fn text(&mut self, block: &Block, delta: impl Into<String>) {
        let delta = delta.into();
        if delta.is_empty() {
            return;
        }
        if block.is_some() {
            self.block(block, false).push_str(&delta);
        }
        self.commit();
        self.events.push_back(Waiting::Words { id: block.clone(), delta });
    }

    /// A named block of text is complete.
    pub fn close_text(&mut self, block: &Block) {
        if let Some(text) = self.take_block(block, false) {
            self.say(Event::TextCompleted { id: block.clone(), text });
        }
    }

    /// A piece of reasoning.
    pub fn reasoning(&mut self, block: &Block, delta: impl Into<String>) {
        let delta = delta.into();
        if !delta.is_empty() {
            self.block(block, true).push_str(&delta);
            self.say(Event::ReasoningDelta { id: block.clone(), delta });
        }
    }

    /// A block of reasoning is complete. `data` is what the provider must get back beside text and signature; where there is
    /// no text, it was withheld.
    pub fn close_reasoning(
        &mut self,
        block: &Block,
        signature: Option<String>,
        data: Option<Value>,
    ) {
        let text = self.take_block(block, true);
        self.parts += usize::from(text.is_none());
        let text = text.unwrap_or_default();
        if !text.is_empty() || signature.is_some() || data.is_some() {
            let redacted = text.is_empty() && data.is_some();
            let rest = (block.clone(), signature, redacted, data);
            let mut event = Event::reasoning_completed(text);
            if let Event::ReasoningCompleted { id, signature, redacted, data, .. } = &mut event {
                (*id, *signature, *redacted, *data) = rest;
            }
            self.say(event);
        }
    }

    /// An opaque block that must go back unchanged.
    pub fn opaque(&mut self, block: &Block, data: Value) {
        self.parts += 1;
        let mut event = Event::reasoning_completed("");
        if let Event::ReasoningCompleted { id, data: opaque, .. } = &mut event {
            (*id, *opaque) = (block.clone(), Some(data));
        }
        self.say(event);
    }

    /// Makes room for one more tool call.
    pub fn open_call(&mut self) -> CallKey {
        self.parts += 1;
        self.calls.push(Call::default());
        CallKey(self.calls.len() - 1)
    }

    /// Adds data of a call; empty text is ignored. The call is emitted once its name is known.
    ///
    /// A call that the provider gives no id, or that of another call, gets a new one.
    pub fn call(&mut self, CallKey(key): CallKey, id: &str, name: &str) {
        let call = &mut self.calls[key];
        if call.told != CallProgress::Nothing {
            return;
        }
        call.name.push_str(name);
        if call.id.is_empty() && !id.is_empty() && self.call_ids.insert(id.to_owned()) {
            id.clone_into(&mut call.id);
        }
        if !call.name.is_empty() {
            self.start_call(key);
        }
    }

    /// A piece of a call's arguments.
    pub fn arguments(&mut self, CallKey(key): CallKey, delta: &str) {
        let call = &mut self.calls[key];
        call.arguments.push_str(delta);
        if call.told == CallProgress::Start && !delta.is_empty() {
            let (id, arguments_delta) = (call.id.clone(), delta.to_owned());
            self.say(Event::ToolCallDelta { id, arguments_delta });
        }
    }

    /// Replaces the arguments of an incomplete call, if they differ from the emitted pieces.
    pub(crate) fn rewrite_arguments(&mut self, CallKey(key): CallKey, whole: &str) {
        whole.clone_into(&mut self.calls[key].arguments);
    }

    /// What was said of a call: its name and its arguments.
    pub(crate) fn call_so_far(&self, CallKey(key): CallKey) -> (&str, &str) {
        (&self.calls[key].name, &self.calls[key].arguments)
    }

    /// Whether a call's arguments look complete.
    pub(crate) fn has_whole_arguments(&self, CallKey(key): CallKey) -> bool {
        let arguments = self.calls[key].arguments.trim();
        arguments.ends_with('}') && serde_json::from_str::<IgnoredAny>(arguments).is_ok()
    }

    /// Whether these are a call's arguments, all of them.
    pub(crate) fn has_all_of(&self, key: CallKey, arguments: &str) -> bool {
        self.calls[key.0].arguments == arguments && self.has_whole_arguments(key)
    }

    /// What the provider must get back with a call.
    pub fn call_metadata(&mut self, CallKey(key): CallKey, metadata: Metadata) {
        self.calls[key].metadata.extend(metadata);
    }

    /// A call is complete. One without arguments is held back until it is known why the model stopped: it may have been
    /// cut off before them.
    pub fn close_call(&mut self, CallKey(key): CallKey) {
        if !self.calls[key].arguments.trim().is_empty() {
            self.complete_call(key, false);
        }
    }

    /// A piece of a refusal.
    pub fn refusal(&mut self, delta: &str) {
        self.refusal.push_str(delta);
    }

    /// What the provider counted so far. It names the `service_tier` where that was noted and has prices of its own.
    pub fn usage(&mut self, mut usage: Usage) {
        if !Pricing::is_listed(&self.metadata)
            && let Some(tier) = self.noted("service_tier")
        {
            Arc::make_mut(&mut usage.extra).insert("service_tier".to_owned(), tier.into());
        }
        if self.usage != usage {
            self.usage = usage;
            self.tell_usage();
        }
    }

    /// The same, changing the previous value in place. `change` returns whether there is anything
    /// new.
    pub(crate) fn recount(&mut self, change: impl FnOnce(&mut Usage) -> bool) {
        if change(&mut self.usage) {
            self.tell_usage();
        }
    }

    /// With the total of what the provider counted, where it does not say it.
    fn tell_usage(&mut self) {
        let mut usage = self.usage.clone();
        usage.total_tokens = usage.total();
        self.wait(Waiting::Usage(Box::new(usage)));
        self.begin();
    }

    /// Emits the events that wait: the provider has begun work that must not be repeated needlessly,
    /// so the call is not retried from here on.
    pub fn commit(&mut self) {
        self.begin();
        self.has_said = true;
    }

    /// Something that has no other place.
    pub fn raw(&mut self, chunk: Value) {
        // This does not begin an answer: some gateways send it before the model is known.
        self.add(Event::RawChunk { chunk });
    }

    /// The unknown members of a value of this type; none if all are [empty](telling).
    #[inline]
    pub(crate) fn raw_rest(&mut self, kind: &str, rest: impl IntoIterator<Item = (String, Value)>) {
        let rest = rest.into_iter();
        // Nearly always there is nothing, and a map has its price.
        if rest.size_hint().1 == Some(0) {
            return;
        }
        let mut rest = telling(rest);
        if !rest.is_empty() {
            rest.insert("type".to_owned(), kind.into());
            self.raw(Value::Object(rest));
        }
    }

    /// Why the model stopped, and the provider's own word for it, if it says any.
    pub fn finish(&mut self, reason: FinishReason, raw: &str) {
        self.finish_reason = Some(reason);
        self.raw_finish_reason = (!raw.is_empty()).then(|| raw.to_owned());
    }

    /// Whether the provider has said why the model stopped.
    pub fn has_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// The answer is incomplete, for any stop reason: a call without arguments may have lost them.
    pub fn cut_off(&mut self) {
        self.cut_off = true;
    }

    /// The provider only paused, and wants to be called again.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Something for the metadata of the response.
    pub fn note(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.insert(key.to_owned(), value.into());
    }

    /// The text that was noted under this key.
    pub fn noted(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).and_then(Value::as_str)
    }

    /// The body may end here, or continue, for providers without an end mark.
    pub fn allow_end(&mut self) {
        if self.end == End::Open {
            self.end = End::Possible;
        }
    }

    /// More comes where the body might have ended.
    pub fn forbid_end(&mut self) {
        if self.end == End::Possible {
            self.end = End::Open;
        }
    }

    /// The provider says that this was all.
    pub fn end(&mut self) {
        self.end = End::Marked;
    }

    /// Whether the provider has said that this was all.
    pub fn has_ended(&self) -> bool {
        self.end == End::Marked
    }

    /// Whether any tool was called.
    pub fn has_calls(&self) -> bool {
        self.calls.iter().any(|call| call.told != CallProgress::Nothing)
    }

    pub(crate) fn may_end(&self) -> bool {
        self.end >= End::Possible
    }

    /// The next event that is ready; none before the model has said something.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        if self.has_said { self.events.pop_front().map(Event::from) } else { None }
    }

    /// Data that was not emitted.
    #[cfg(feature = "http")]
    pub(crate) fn rest(&mut self) -> impl Iterator<Item = Event> {
        self.events.drain(..).map(Event::from)
    }

    /// One more block, for decoders that keep a list of them too.
    pub(crate) fn count_part(&mut self) {
        self.parts += 1;
    }

    /// Whether the answer is still one that can be read.
    pub(crate) fn check(&self) -> Result<()> {
        if self.parts > MAX_PARTS {
            let why = format!("the answer has more than {MAX_PARTS} parts");
            return Err(failure::malformed(why).with("limit", MAX_PARTS));
        }
        Ok(())
    }

    /// Whether the last words may be missing.
    pub(crate) fn is_cut_off(&self) -> bool {
        use FinishReason::{ContentFilter, Error, Length};
        self.cut_off || matches!(self.finish_reason, Some(Length | ContentFilter | Error))
    }

    /// Emits the remaining events.
    pub(crate) fn complete(&mut self, metadata: Metadata) {
        let cut_off = self.is_cut_off();
        for key in 0..self.calls.len() {
            self.complete_call(key, cut_off);
            // A call without a name cannot run. Its data is kept.
            let Call { id, arguments, told, .. } = &self.calls[key];
            if *told == CallProgress::Nothing && !arguments.is_empty() {
                self.raw(json!({"tool_call": {"id": id, "arguments": arguments}}));
            }
        }
        if !self.refusal.is_empty() {
            self.finish_reason = Some(FinishReason::ContentFilter);
        } else if self.finish_reason == Some(FinishReason::Stop) && self.has_calls() {
            self.finish_reason = Some(FinishReason::ToolCalls);
        }
        let refusal = std::mem::take(&mut self.refusal);
        let parts = (!refusal.is_empty()).then_some(Part::Refusal { text: refusal });
        self.metadata.extend(metadata);
        let mut event = Event::message_completed(self.finish_reason);
        if let Event::MessageCompleted { message, raw_finish_reason, paused, metadata, .. } =
            &mut event
        {
            *message = Arc::new(Message::assistant_parts(parts));
            *raw_finish_reason = self.raw_finish_reason.take();
            *paused = self.paused;
            *metadata = std::mem::take(&mut self.metadata);
        }
        self.say(event);
    }

    /// What the model says.
    fn say(&mut self, event: Event) {
        self.commit();
        self.add(event);
    }

    fn add(&mut self, event: Event) {
        self.wait(Waiting::Event(Box::new(event)));
    }

    /// Events that wait for the model's first output, up to a limit.
    fn wait(&mut self, waiting: Waiting) {
        if self.events.len() >= MAX_WAITING {
            self.commit();
        }
        self.events.push_back(waiting);
    }

    fn begin(&mut self) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let mut event = Event::message_started();
        if let Event::MessageStarted { id, model, .. } = &mut event {
            id.clone_from(&self.id);
            *model = self.model.clone().or_else(|| self.asked.take());
        }
        self.events.push_front(Waiting::Event(Box::new(event)));
    }

    fn block(&mut self, id: &Block, is_reasoning: bool) -> &mut String {
        let found = self.find_block(id, is_reasoning).unwrap_or(self.blocks.len());
        if found == self.blocks.len() {
            self.parts += 1;
            self.blocks.push(OpenBlock { id: id.clone(), is_reasoning, text: String::new() });
        }
        &mut self.blocks[found].text
    }

    fn take_block(&mut self, id: &Block, is_reasoning: bool) -> Option<String> {
        let found = self.find_block(id, is_reasoning)?;
        Some(self.blocks.swap_remove(found).text)
    }

    fn find_block(&self, id: &Block, is_reasoning: bool) -> Option<usize> {
        self.blocks.iter().rposition(|open| open.id == *id && open.is_reasoning == is_reasoning)
    }

    fn start_call(&mut self, key: usize) {
        let call = &mut self.calls[key];
        let mut number = self.earlier_calls + key as u128 + 1;
        while call.id.is_empty() {
            let made_up = format!("{MADE_UP}{number}");
            if self.call_ids.insert(made_up.clone()) {
                call.id = made_up;
            }
            number += 1;
        }
        call.told = CallProgress::Start;
        let (id, name, said) = (call.id.clone(), call.name.clone(), call.arguments.clone());
        self.say(Event::ToolCallStarted { id: id.clone(), name });
        if !said.is_empty() {
            self.say(Event::ToolCallDelta { id, arguments_delta: said });
        }
    }

    fn complete_call(&mut self, key: usize, cut_off: bool) {
        let call = &mut self.calls[key];
        if call.told != CallProgress::Start {
            return;
        }
        call.told = CallProgress::All;
        let arguments = std::mem::take(&mut call.arguments);
        let mut told = ToolCall::new(call.id.clone(), call.name.clone(), arguments);
        told.metadata = std::mem::take(&mut call.metadata);
        if cut_off && told.raw_arguments.trim().is_empty() {
            told.arguments = Value::Null;
        }
        self.say(Event::tool_call_completed(told));
    }
}
