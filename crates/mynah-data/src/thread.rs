//! Threads: the conversation so far, cheap to share and to extend.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{FieldError, Message, Metadata, Part, Role};

/// An append-only list of shared messages.
///
/// Cloning and appending cost the same at any length: results, events and requests all hold the
/// whole conversation, and a turn in a long session must not pay for earlier turns. For the same
/// reason the list tracks unanswered tool calls and its size as it grows.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    /// Full chunks, shared by every list that grew from the same beginning.
    chunks: Shared<Chunk>,
    /// The newest messages, fewer than a chunk. Only these are copied, when a shared list grows.
    tail: Option<Chunk>,
    /// Characters of text and bytes of tool arguments, all together.
    size: u64,
    unanswered: Shared<String>,
    /// The index of the message that made those calls.
    asked_at: usize,
    defect: Option<Box<FieldError>>,
}

type Chunk = Arc<Vec<Arc<Message>>>;

/// A list that several threads share. An empty one allocates nothing, as a run has many of them.
type Shared<T> = Option<Arc<Vec<T>>>;

fn items<T>(shared: &Shared<T>) -> &[T] {
    shared.as_ref().map_or(&[], |list| list)
}

const CHUNK: usize = 32;

impl Messages {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a message.
    pub fn push(&mut self, message: impl Into<Arc<Message>>) {
        let message = message.into();
        match message.tool_call_id() {
            Some(answered) if message.role() == Role::Tool => {
                if let Some(open) = &mut self.unanswered {
                    Arc::make_mut(open).retain(|id| id != answered);
                }
            }
            _ => {
                if let (Some(id), None) = (self.unanswered().first(), &self.defect) {
                    self.defect = Some(Box::new(unanswered(self.asked_at, id)));
                }
                self.unanswered = None;
                match message.role() {
                    Role::Assistant => {
                        self.asked_at = self.len();
                        let mut asked = message.tool_calls().map(|call| call.id.clone()).peekable();
                        if asked.peek().is_some() {
                            self.unanswered = Some(Arc::new(asked.collect()));
                        }
                    }
                    Role::System if self.defect.is_none() && has_image(&message) => {
                        let error = FieldError::new("content", "image_in_system_message");
                        let place = ["messages".into(), self.len().into()];
                        self.defect = Some(Box::new(error.under(place)));
                    }
                    _ => {}
                }
            }
        }
        self.append(message);
    }

    fn append(&mut self, message: Arc<Message>) {
        self.size = self.size.saturating_add(message.size());
        let tail = self.tail.get_or_insert_default();
        match Arc::get_mut(tail) {
            Some(tail) => tail.push(message),
            None => {
                let mut grown = Vec::with_capacity(CHUNK);
                grown.extend_from_slice(tail);
                grown.push(message);
                *tail = Arc::new(grown);
            }
        }
        if let Some(full) = self.tail.take_if(|tail| tail.len() == CHUNK) {
            Arc::make_mut(self.chunks.get_or_insert_default()).push(full);
        }
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        items(&self.chunks).len() * CHUNK + items(&self.tail).len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message at an index.
    pub fn get(&self, index: usize) -> Option<&Arc<Message>> {
        let chunks = items(&self.chunks);
        match chunks.get(index / CHUNK) {
            Some(chunk) => chunk.get(index % CHUNK),
            None => items(&self.tail).get(index - chunks.len() * CHUNK),
        }
    }

    /// The newest message.
    pub fn last(&self) -> Option<&Arc<Message>> {
        items(&self.tail).last().or_else(|| items(&self.chunks).last()?.last())
    }

    /// The [size](Message::size) of all messages together, without visiting them.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The messages from an index on. The cost is independent of the messages before it.
    pub fn since(&self, index: usize) -> impl Iterator<Item = &Arc<Message>> {
        let chunks = items(&self.chunks);
        let first = (index / CHUNK).min(chunks.len());
        let rest = chunks[first..].iter().chain(&self.tail).flat_map(|chunk| chunk.iter());
        rest.skip(index - first * CHUNK)
    }

    /// Whether the conversation begins with another. Cheap if one grew from the other.
    pub fn starts_with(&self, other: &Self) -> bool {
        self.common_prefix(other) == other.len()
    }

    /// The number of messages that both begin with.
    pub(crate) fn common_prefix(&self, other: &Self) -> usize {
        let chunks = items(&self.chunks).iter().zip(items(&other.chunks));
        let shared = chunks.take_while(|(a, b)| Arc::ptr_eq(a, b)).count() * CHUNK;
        let same = |(a, b): &(&Arc<Message>, &Arc<Message>)| Arc::ptr_eq(a, b) || a == b;
        shared + self.since(shared).zip(other.since(shared)).take_while(same).count()
    }

    /// All messages, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Message>> {
        items(&self.chunks).iter().chain(&self.tail).flat_map(|chunk| chunk.iter())
    }

    /// The calls of the newest assistant message that have no result yet.
    pub fn unanswered(&self) -> &[String] {
        items(&self.unanswered)
    }

    /// The first call without a result that is followed by another message, or is at the end.
    pub(crate) fn pairing_error(&self) -> Option<FieldError> {
        let open = || Some(unanswered(self.asked_at, self.unanswered().first()?));
        self.defect.as_deref().cloned().or_else(open)
    }

    /// Answers every unanswered call with an error result, and returns the calls.
    pub fn repair(&mut self, why: &str) -> Vec<String> {
        self.repair_with(|_| why.to_owned())
    }

    /// The same, with a text for each call.
    #[doc(hidden)]
    pub fn repair_with(&mut self, why: impl Fn(&str) -> String) -> Vec<String> {
        let ids = self.unanswered.take().map(Arc::unwrap_or_clone).unwrap_or_default();
        for id in &ids {
            self.append(Arc::new(Message::tool_error(id, json!({"error": why(id)}))));
        }
        ids
    }
}

fn unanswered(index: usize, id: &str) -> FieldError {
    FieldError::new(id, "unanswered_tool_call").under([
        "messages".into(),
        index.into(),
        "tool_calls".into(),
    ])
}

fn has_image(message: &Message) -> bool {
    message.parts().iter().any(|part| matches!(part, Part::Image { .. }))
}

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<M: Into<Arc<Message>>> Extend<M> for Messages {
    fn extend<I: IntoIterator<Item = M>>(&mut self, messages: I) {
        messages.into_iter().for_each(|message| self.push(message));
    }
}

impl<M: Into<Arc<Message>>> FromIterator<M> for Messages {
    fn from_iter<I: IntoIterator<Item = M>>(messages: I) -> Self {
        let mut list = Self::new();
        list.extend(messages);
        list
    }
}

impl Serialize for Messages {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq;
        let mut list = serializer.serialize_seq(Some(self.len()))?;
        self.iter().try_for_each(|message| list.serialize_element(message))?;
        list.end()
    }
}

impl<'de> Deserialize<'de> for Messages {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Message>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// The conversation so far.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Message, Thread};
///
/// let thread = Thread::new().with_user("hi").with(Message::assistant("hello"));
/// assert_eq!(thread.messages.len(), 2);
/// assert_eq!(thread.last_message().map(|m| m.text().into_owned()), Some("hello".to_owned()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Thread {
    /// The messages, oldest first.
    pub messages: Messages,
    /// Anything else.
    #[serde(default, with = "crate::json::members")]
    pub metadata: Metadata,
}

impl Thread {
    /// A thread without messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// The thread with one more message.
    pub fn with(mut self, message: impl Into<Arc<Message>>) -> Self {
        self.messages.push(message);
        self
    }

    /// The thread with instructions appended.
    pub fn with_system(self, text: impl Into<String>) -> Self {
        self.with(Message::system(text))
    }

    /// The thread with a person's message appended.
    pub fn with_user(self, text: impl Into<String>) -> Self {
        self.with(Message::user(text))
    }

    /// The thread with a model's message appended.
    pub fn with_assistant(self, text: impl Into<String>) -> Self {
        self.with(Message::assistant(text))
    }

    /// The newest message.
    pub fn last_message(&self) -> Option<&Message> {
        self.messages.last().map(Arc::as_ref)
    }
}

impl<M: Into<Arc<Message>>> Extend<M> for Thread {
    fn extend<I: IntoIterator<Item = M>>(&mut self, messages: I) {
        self.messages.extend(messages);
    }
}

impl<M: Into<Arc<Message>>> FromIterator<M> for Thread {
    fn from_iter<I: IntoIterator<Item = M>>(messages: I) -> Self {
        Self { messages: messages.into_iter().collect(), metadata: Metadata::new() }
    }
}

impl From<Message> for Thread {
    fn from(message: Message) -> Self {
        Self::new().with(message)
    }
}

impl From<Vec<Message>> for Thread {
    fn from(messages: Vec<Message>) -> Self {
        messages.into_iter().collect()
    }
}

impl<const N: usize> From<[Message; N]> for Thread {
    fn from(messages: [Message; N]) -> Self {
        messages.into_iter().collect()
    }
}

impl From<&str> for Thread {
    fn from(text: &str) -> Self {
        Self::new().with_user(text)
    }
}

impl From<String> for Thread {
    fn from(text: String) -> Self {
        Self::new().with_user(text)
    }
}

impl From<&Thread> for Thread {
    fn from(thread: &Thread) -> Self {
        thread.clone()
    }
}
