//! The conversation after a step, without repeating the messages before the step.
//!
//! Every step of a chat holds the whole conversation so far. In memory they share it. Written out with each step, a chat
//! would take space in proportion to the square of its length. In JSON the steps of a chat therefore hold the messages
//! that they added, and how many messages stood before those.

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    ChatResult, HaltReason, Message, Messages, Metadata, Response, Role, RunId, StepResult, Thread,
    ToolCall, ToolMode,
};

/// The conversation after a step, as [`Event::StepCompleted`](crate::Event::StepCompleted) carries it.
///
/// A single step has the whole conversation, in Rust and in JSON (`thread`). In a chat the whole
/// conversation is shared in Rust, and the event's JSON holds the messages that the step added
/// (`messages`) and their index (`after`). An event that was read from such JSON lacks the
/// conversation before the step. [`onto`](StepThread::onto) restores it; a
/// [`Collector`](crate::Collector) does so automatically.
///
/// Two of a chat are equal if they add the same messages at the same place.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Message, StepThread, Thread};
///
/// let before = Thread::from("hi");
/// let after = before.clone().with(Message::assistant("hello"));
/// let step = StepThread::added(after.clone(), 1);
/// assert_eq!(step.whole(), Some(&after));
/// assert_eq!(step.messages().count(), 1);
/// assert_eq!(step.onto(&before), after);
/// ```
#[derive(Clone, Debug)]
pub struct StepThread {
    /// Known unless the event of a chat was read from JSON.
    whole: Option<Box<Thread>>,
    /// Of a step in a chat.
    added: Option<Added>,
}

#[derive(Clone, Debug, PartialEq)]
struct Added {
    after: usize,
    messages: Vec<Arc<Message>>,
}

impl StepThread {
    /// The conversation after a step in a chat, which added the messages from the index `after` on.
    pub fn added(thread: Thread, after: usize) -> Self {
        let after = after.min(thread.messages.len());
        let messages = thread.messages.since(after).cloned().collect();
        Self { whole: Some(Box::new(thread)), added: Some(Added { after, messages }) }
    }

    /// The whole conversation. `None` if the event of a step in a chat was read from JSON.
    pub fn whole(&self) -> Option<&Thread> {
        self.whole.as_deref()
    }

    /// The messages that the step added. All messages for a single step.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        let whole = self.whole.iter().filter(|_| self.added.is_none());
        let added = self.added.iter().flat_map(|added| &added.messages);
        added.chain(whole.flat_map(|thread| thread.messages.iter()))
    }

    /// The conversation after the step, given the one before it.
    pub fn onto(&self, before: &Thread) -> Thread {
        match (&self.whole, &self.added) {
            (Some(thread), _) => Thread::clone(thread),
            (None, Some(Added { after, messages })) => {
                let mut thread = before.clone();
                if *after < thread.messages.len() {
                    thread.messages = before.messages.iter().take(*after).cloned().collect();
                }
                thread.extend(messages.iter().cloned());
                thread
            }
            (None, None) => before.clone(),
        }
    }
}

/// The conversation after a single step.
impl From<Thread> for StepThread {
    fn from(thread: Thread) -> Self {
        Self { whole: Some(Box::new(thread)), added: None }
    }
}

impl PartialEq for StepThread {
    fn eq(&self, other: &Self) -> bool {
        self.added == other.added && (self.added.is_some() || self.whole == other.whole)
    }
}

impl StepResult {
    /// The index in [`thread`](StepResult::thread) of the first message that the step added to a chat.
    ///
    /// That is everything since the step `before` it. The first step added its answer and what follows it.
    #[doc(hidden)]
    pub fn first_added(&self, before: Option<&Self>) -> usize {
        let len = self.thread.messages.len();
        if let Some(before) = before {
            return before.thread.messages.len().min(len);
        }
        let newest_first = self.thread.messages.iter().rev();
        let results = newest_first.take_while(|message| message.role() == Role::Tool).count();
        // An empty answer may not be in the thread.
        let answer = len.checked_sub(results + 1);
        let is_answer =
            |index: &usize| self.thread.messages.get(*index) == Some(&self.response.message);
        answer.filter(is_answer).unwrap_or(len)
    }
}

/// `Event::StepCompleted` in JSON.
#[derive(Serialize, Deserialize)]
struct CompletedJson<'a> {
    response: Cow<'a, Response>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thread: Option<Cow<'a, Thread>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    messages: Option<Cow<'a, [Arc<Message>]>>,
    mode: ToolMode,
    manual_tool_calls: Cow<'a, [ToolCall]>,
}

/// The JSON of `Event::StepCompleted`.
pub(crate) mod completed {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        response: &Response,
        thread: &StepThread,
        mode: &ToolMode,
        manual_tool_calls: &[ToolCall],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let added = thread.added.as_ref();
        let json = CompletedJson {
            response: Cow::Borrowed(response),
            thread: thread.whole().filter(|_| added.is_none()).map(Cow::Borrowed),
            after: added.map(|added| added.after),
            messages: added.map(|added| Cow::Borrowed(&added.messages[..])),
            mode: *mode,
            manual_tool_calls: Cow::Borrowed(manual_tool_calls),
        };
        json.serialize(serializer)
    }

    type Fields = (Box<Response>, StepThread, ToolMode, Vec<ToolCall>);

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Fields, D::Error> {
        let json = CompletedJson::deserialize(deserializer)?;
        let messages = json.messages.map(Cow::into_owned);
        let thread = match one_form(json.thread.map(Cow::into_owned), json.after, messages)? {
            Form::Whole(thread) => StepThread::from(thread),
            Form::Added(added) => StepThread { whole: None, added: Some(added) },
        };
        let calls = json.manual_tool_calls.into_owned();
        Ok((Box::new(json.response.into_owned()), thread, json.mode, calls))
    }
}

enum Form {
    Whole(Thread),
    Added(Added),
}

fn one_form<E: de::Error>(
    thread: Option<Thread>,
    after: Option<usize>,
    messages: Option<Vec<Arc<Message>>>,
) -> Result<Form, E> {
    match (thread, after, messages) {
        (Some(thread), None, None) => Ok(Form::Whole(thread)),
        (None, Some(after), Some(messages)) => Ok(Form::Added(Added { after, messages })),
        _ => Err(E::custom("expected either `thread`, or `after` and `messages`")),
    }
}

/// A chat's result in JSON.
#[derive(Serialize, Deserialize)]
struct ChatJson<'a> {
    thread: Cow<'a, Thread>,
    final_response: Option<Cow<'a, Response>>,
    steps: Vec<StepJson<'a>>,
    halted_reason: Cow<'a, HaltReason>,
    #[serde(default)]
    pending_question: Option<Cow<'a, str>>,
    #[serde(default)]
    pending_tool_call_id: Option<Cow<'a, str>>,
    #[serde(default)]
    metadata: Cow<'a, Metadata>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
}

/// A step of a chat's result. It has `thread` only if `after` and `messages` cannot express its conversation.
#[derive(Serialize, Deserialize)]
struct StepJson<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    thread: Option<Cow<'a, Thread>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    messages: Option<Vec<Arc<Message>>>,
    response: Cow<'a, Response>,
    tool_results: Cow<'a, [Arc<Message>]>,
    done: bool,
    metadata: Cow<'a, Metadata>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
}

impl Serialize for ChatResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let before = [None].into_iter().chain(self.steps.iter().map(Some));
        let steps = self.steps.iter().zip(before);
        let json = ChatJson {
            thread: Cow::Borrowed(&self.thread),
            final_response: self.final_response.as_ref().map(Cow::Borrowed),
            steps: steps.map(|(step, before)| StepJson::new(step, before, &self.thread)).collect(),
            halted_reason: Cow::Borrowed(&self.halted_reason),
            pending_question: self.pending_question.as_deref().map(Cow::Borrowed),
            pending_tool_call_id: self.pending_tool_call_id.as_deref().map(Cow::Borrowed),
            metadata: Cow::Borrowed(&self.metadata),
            run_id: self.run_id.clone(),
        };
        json.serialize(serializer)
    }
}

impl<'a> StepJson<'a> {
    fn new(step: &'a StepResult, before: Option<&StepResult>, whole: &Thread) -> Self {
        let (thread, added) = if step.thread.metadata == whole.metadata {
            // The step may hold messages that the chat did not keep.
            let kept = step.thread.messages.common_prefix(&whole.messages);
            let after = step.first_added(before).min(kept);
            let messages = step.thread.messages.since(after).cloned().collect();
            (None, Some(Added { after, messages }))
        } else {
            (Some(Cow::Borrowed(&step.thread)), None)
        };
        Self {
            thread,
            after: added.as_ref().map(|added| added.after),
            messages: added.map(|added| added.messages),
            response: Cow::Borrowed(&step.response),
            tool_results: Cow::Borrowed(&step.tool_results),
            done: step.done,
            metadata: Cow::Borrowed(&step.metadata),
            run_id: step.run_id.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for ChatResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = ChatJson::deserialize(deserializer)?;
        let mut result = Self::new(json.thread.into_owned(), json.halted_reason.into_owned());
        result.final_response = json.final_response.map(Cow::into_owned);
        result.pending_question = json.pending_question.map(Cow::into_owned);
        result.pending_tool_call_id = json.pending_tool_call_id.map(Cow::into_owned);
        result.metadata = json.metadata.into_owned();
        result.run_id = json.run_id;
        let mut grown = Grown { whole: &result.thread, messages: Messages::new() };
        for step in json.steps {
            let thread =
                match one_form(step.thread.map(Cow::into_owned), step.after, step.messages)? {
                    Form::Whole(thread) => thread,
                    Form::Added(added) => grown.take_in(added)?,
                };
            let mut read = StepResult::new(thread, step.response.into_owned());
            read.tool_results = step.tool_results.into_owned();
            (read.done, read.metadata) = (step.done, step.metadata.into_owned());
            read.run_id = step.run_id;
            result.steps.push(read);
        }
        // The steps share its messages from here on.
        result.thread.messages = grown.up_to(usize::MAX);
        Ok(result)
    }
}

/// A conversation that is rebuilt step by step, so that the steps share its messages.
struct Grown<'a> {
    whole: &'a Thread,
    messages: Messages,
}

impl Grown<'_> {
    /// The conversation up to an index.
    fn up_to(&mut self, index: usize) -> Messages {
        if index < self.messages.len() {
            self.messages = Messages::new();
        }
        let len = self.messages.len();
        self.messages.extend(self.whole.messages.since(len).take(index - len).cloned());
        self.messages.clone()
    }

    fn take_in<E: de::Error>(&mut self, Added { after, messages }: Added) -> Result<Thread, E> {
        if after > self.whole.messages.len() {
            return Err(E::custom(format_args!(
                "`after` is {after}, and the thread has {} messages",
                self.whole.messages.len()
            )));
        }
        let kept = self.whole.messages.since(after).zip(&messages);
        let kept = kept.take_while(|(whole, own)| whole == own).count();
        let mut thread =
            Thread { messages: self.up_to(after + kept), metadata: self.whole.metadata.clone() };
        thread.extend(messages.into_iter().skip(kept));
        Ok(thread)
    }
}
