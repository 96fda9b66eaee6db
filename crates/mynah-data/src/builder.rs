//! Building one answer from the events of a model's stream.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{Error, Event, FinishReason, Message, Metadata, Part, Response, ToolCall, Usage};

/// Builds one answer from the events of a model's stream.
///
/// ```
/// use mynah_data::{Event, ResponseBuilder};
/// let mut builder = ResponseBuilder::new();
/// builder.apply(&Event::text_delta("hel"));
/// builder.apply(&Event::text_delta("lo"));
/// assert_eq!(builder.response().text(), "hello");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseBuilder {
    id: Option<String>,
    model: Option<String>,
    request_id: Option<String>,
    /// Each part with the id of its block. A call's own id is in the call.
    parts: Vec<(Option<Arc<str>>, Part)>,
    finish_reason: Option<FinishReason>,
    raw_finish_reason: Option<String>,
    usage: Usage,
    metadata: Metadata,
    error: Option<Error>,
    started: bool,
    completed: bool,
    paused: bool,
    /// The finished message, once it was requested. The parts have moved into it.
    sealed: Option<Arc<Message>>,
    /// The part that the last event went into.
    touched: usize,
    /// Complete blocks of reasoning and tool calls. A later block under the same name is a new one.
    closed: Vec<usize>,
}

impl ResponseBuilder {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether any part of an answer was received.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Whether the end of the answer was received.
    pub fn has_completed(&self) -> bool {
        self.completed
    }

    /// Whether the provider only paused and expects another call.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The error that broke the answer off.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Why the model stopped, if it reported a reason.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// Whether an event would change earlier output instead of adding to it.
    #[doc(hidden)]
    pub fn would_replace(&self, event: &Event) -> bool {
        let block = |id: &Option<Arc<str>>, wanted: fn(&Part) -> Option<&str>| {
            let named = self.parts.iter().rev().filter(|slot| slot.0 == *id);
            named.into_iter().find_map(|(_, part)| wanted(part))
        };
        match event {
            Event::MessageStarted { .. } => self.started,
            Event::Usage { .. } => self.usage != Usage::default(),
            Event::TextCompleted { id: None, text } => {
                let mut said = self.unnamed_texts().peekable();
                said.peek().is_some() && !said.collect::<String>().eq(text)
            }
            Event::TextCompleted { id, text } => {
                block(id, part_text).is_some_and(|said| said != text.as_str())
            }
            Event::ReasoningCompleted { id, text, .. } => {
                let mut probe = Self {
                    parts: self.parts.clone(),
                    closed: self.closed.clone(),
                    ..Self::default()
                };
                let parts = probe.parts.len();
                let open = reasoning_text(probe.reasoning(id)).is_some_and(|said| said != text);
                open && probe.parts.len() == parts
            }
            Event::ToolCallCompleted(call) => {
                self.parts.iter().enumerate().any(|(index, (_, part))| {
                    matches!(part, Part::ToolCall(known) if known.id == call.id
                        && !self.closed.contains(&index)
                        && (known.raw_arguments != call.raw_arguments && !known.raw_arguments.is_empty()
                            || known.name != call.name))
                })
            }
            Event::MessageCompleted { message, .. } => {
                let has_text = self.parts.iter().any(|(_, part)| part_text(part).is_some());
                self.completed
                    || (!self.parts.is_empty() && !has_text && !message.text().is_empty())
            }
            _ => self.sealed.is_some() && !matches!(event, Event::RawChunk { .. }),
        }
    }

    /// The one part that holds all text without a name.
    #[doc(hidden)]
    pub fn only_unnamed_text(&self) -> Option<usize> {
        let is_unnamed =
            |slot: &(Option<Arc<str>>, Part)| slot.0.is_none() && part_text(&slot.1).is_some();
        let first = self.parts.iter().position(is_unnamed)?;
        (self.parts.iter().rposition(is_unnamed) == Some(first)).then_some(first)
    }

    fn unnamed_texts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter(|slot| slot.0.is_none()).filter_map(|(_, part)| part_text(part))
    }

    /// The part that the last event went into.
    #[doc(hidden)]
    pub fn touched(&self) -> usize {
        self.touched
    }

    /// Folds in one event. Events that do not come from a model change nothing.
    pub fn apply(&mut self, event: &Event) {
        if !event.is_from_model() {
            return;
        }
        self.started = true;
        if self.sealed.is_some() && !matches!(event, Event::Usage { .. } | Event::RawChunk { .. }) {
            self.unseal();
        }
        match event {
            Event::TextDelta { id, delta } => self.text(id).push_str(delta),
            Event::TextCompleted { id: id @ Some(_), text } => text.clone_into(self.text(id)),
            Event::TextCompleted { id: None, text } => self.replace_unnamed_text(text),
            Event::ReasoningDelta { id, delta } => {
                if let Part::Reasoning { text, .. } = self.reasoning(id) {
                    text.push_str(delta);
                }
            }
            Event::ReasoningCompleted { id, text, signature, redacted, data } => {
                *self.reasoning(id) = Part::Reasoning {
                    text: text.clone(),
                    signature: signature.clone(),
                    redacted: *redacted,
                    data: data.clone(),
                };
                self.closed.push(self.touched);
            }
            Event::ToolCallStarted { id, name } => {
                let call = self.call(id);
                if call.name.is_empty() {
                    name.clone_into(&mut Arc::make_mut(call).name);
                }
            }
            Event::ToolCallDelta { id, arguments_delta } => {
                Arc::make_mut(self.call(id)).raw_arguments.push_str(arguments_delta);
            }
            Event::ToolCallCompleted(call) => {
                *self.call(&call.id) = Arc::clone(call);
                self.closed.push(self.touched);
            }
            Event::Usage { usage } => self.usage = Usage::clone(usage),
            Event::MessageStarted { request_id, id, model, .. } => {
                self.request_id = request_id.clone();
                self.id = id.clone();
                self.model = model.clone();
            }
            Event::MessageCompleted {
                message,
                finish_reason,
                raw_finish_reason,
                paused,
                metadata,
            } => {
                self.complete(message);
                // A later finish does not undo an error.
                if self.error.is_none() {
                    self.finish_reason = finish_reason.or(self.finish_reason);
                }
                self.raw_finish_reason =
                    raw_finish_reason.clone().or_else(|| self.raw_finish_reason.take());
                self.paused = *paused;
                // Some providers identify themselves only at the end.
                let late = |name: &str| metadata.get(name)?.as_str().map(str::to_owned);
                self.id = late("response_id").or_else(|| self.id.take());
                self.model = late("response_model").or_else(|| self.model.take());
                self.metadata.extend(metadata.clone());
            }
            Event::Error { error } => {
                self.finish_reason = Some(FinishReason::Error);
                self.error.get_or_insert_with(|| error.clone());
            }
            _ => {}
        }
    }

    /// The answer received so far.
    pub fn response(&self) -> Response {
        self.clone().into_response()
    }

    /// The answer received so far, without copying it.
    pub fn into_response(mut self) -> Response {
        let message = self.seal();
        if let Some(error) = &self.error {
            self.metadata.insert("error".to_owned(), error.to_value());
        }
        Response {
            id: self.id,
            request_id: self.request_id,
            model: self.model,
            message,
            finish_reason: self.finish_reason,
            raw_finish_reason: self.raw_finish_reason,
            usage: self.usage,
            raw: None,
            metadata: self.metadata,
            run_id: None,
        }
    }

    /// The finished message, without copying it, for callers that share it between several places.
    #[doc(hidden)]
    pub fn seal(&mut self) -> Arc<Message> {
        if let Some(message) = &self.sealed {
            return Arc::clone(message);
        }
        let mut parts = std::mem::take(&mut self.parts);
        // The message keeps the room of the list, and lives as long as the conversation.
        parts.shrink_to_fit();
        let message = Arc::new(self.message(parts));
        self.sealed = Some(Arc::clone(&message));
        message
    }

    /// Handles an event that arrives after the message was finished.
    fn unseal(&mut self) {
        if let Some(message) = self.sealed.take() {
            self.parts = message.parts().iter().map(|part| (None, part.clone())).collect();
        }
    }

    /// The assistant message of the answer, with `finish_reason`, and `partial` if the end was not
    /// received.
    fn message(&self, parts: Vec<(Option<Arc<str>>, Part)>) -> Message {
        let was_cut_off = |index: &usize, call: &ToolCall| {
            self.closed.contains(index) && call.raw_arguments.is_empty()
        };
        let parts = parts.into_iter().enumerate().map(|(index, (_, part))| match part {
            // A call that was never completed, or changed after its completion, is read from its
            // text.
            Part::ToolCall(call) if call.arguments.is_null() && !was_cut_off(&index, &call) => {
                let call = Arc::unwrap_or_clone(call);
                let parsed = ToolCall::new(call.id, call.name, call.raw_arguments);
                Part::tool_call(ToolCall { metadata: call.metadata, ..parsed })
            }
            part => part,
        });
        let message = Message::assistant_parts(parts)
            .with_metadata("finish_reason", json!(self.finish_reason));
        if self.completed { message } else { message.with_metadata("partial", true) }
    }

    /// The block of text that a piece belongs to: the named one, or the last unnamed one.
    fn text(&mut self, id: &Option<Arc<str>>) -> &mut String {
        let is_text =
            |slot: &(Option<Arc<str>>, Part)| matches!(slot.1, Part::Text { .. }) && slot.0 == *id;
        let found = match self.parts.last() {
            Some(last) if is_text(last) => Some(self.parts.len() - 1),
            _ if id.is_some() => self.parts.iter().rposition(is_text),
            _ => None,
        };
        match self.slot(found, id, || Part::text("")) {
            Part::Text { text, .. } => text,
            _ => unreachable!("the slot was found or made as text"),
        }
    }

    fn reasoning(&mut self, id: &Option<Arc<str>>) -> &mut Part {
        let is_open = |(index, slot): (usize, &(Option<Arc<str>>, Part))| {
            matches!(slot.1, Part::Reasoning { .. })
                && slot.0 == *id
                && !self.closed.contains(&index)
        };
        let last = self.parts.len().checked_sub(1);
        let found = match last.map(|last| (last, &self.parts[last])) {
            Some((last, slot)) if is_open((last, slot)) => Some(last),
            _ if id.is_some() => self.parts.iter().enumerate().rposition(is_open),
            _ => None,
        };
        self.slot(found, id, || Part::reasoning(""))
    }

    fn call(&mut self, id: &str) -> &mut Arc<ToolCall> {
        let is_open = |index: usize, part: &Part| {
            matches!(part, Part::ToolCall(call) if call.id == id) && !self.closed.contains(&index)
        };
        // The last part is nearly always the one that is being written.
        let mut parts = self.parts.iter().enumerate().rev();
        let found = parts.find(|(index, (_, part))| is_open(*index, part)).map(|(index, _)| index);
        let make = || {
            let call = ToolCall::new(id, "", "");
            Part::tool_call(ToolCall { arguments: Value::Null, ..call })
        };
        match self.slot(found, &None, make) {
            Part::ToolCall(call) => call,
            _ => unreachable!("the slot was found or made as a call"),
        }
    }

    fn slot(
        &mut self,
        found: Option<usize>,
        id: &Option<Arc<str>>,
        make: impl FnOnce() -> Part,
    ) -> &mut Part {
        let index = found.unwrap_or(self.parts.len());
        if index == self.parts.len() {
            self.parts.push((id.clone(), make()));
        }
        self.touched = index;
        &mut self.parts[index].1
    }

    /// Replaces all text blocks of a provider that does not name its blocks.
    fn replace_unnamed_text(&mut self, text: &str) {
        let unnamed = |slot: &(Option<Arc<str>>, Part)| {
            slot.0.is_none() && matches!(slot.1, Part::Text { .. })
        };
        let mut rest = Some(text);
        for (_, part) in self.parts.iter().filter(|slot| unnamed(slot)) {
            if let Part::Text { text, .. } = part {
                rest = rest.and_then(|rest| rest.strip_prefix(text.as_str()));
            }
        }
        if rest == Some("") {
            return;
        }
        match self.parts.iter().position(unnamed) {
            Some(first) => {
                let mut index = 0;
                self.parts.retain(|slot| {
                    index += 1;
                    index - 1 <= first || !unnamed(slot)
                });
                self.parts[first].1 = Part::text(text);
            }
            None => self.parts.push((None, Part::text(text))),
        }
    }

    /// Takes over fields of a completed message that earlier events did not have.
    fn complete(&mut self, message: &Message) {
        self.completed = true;
        let has_text = self.parts.iter().any(|(_, part)| matches!(part, Part::Text { .. }));
        if self.parts.is_empty() || (!has_text && !message.text().is_empty()) {
            let thinks = message.parts().iter().any(|part| matches!(part, Part::Reasoning { .. }));
            self.parts.retain(|(_, heard)| match heard {
                Part::ToolCall(heard) => !message.tool_calls().any(|call| call.id == heard.id),
                Part::Reasoning { .. } => !thinks,
                _ => false,
            });
            self.parts.extend(message.parts().iter().map(|part| (None, part.clone())));
        }
        // Only the last event reports a refusal.
        let is_refusal = |part: &Part| matches!(part, Part::Refusal { .. });
        if !self.parts.iter().any(|(_, heard)| is_refusal(heard)) {
            let refusals = message.parts().iter().filter(|part| is_refusal(part));
            self.parts.extend(refusals.map(|part| (None, part.clone())));
        }
        for (key, value) in message.metadata().iter().filter(|(key, _)| *key != "finish_reason") {
            self.metadata.insert(key.clone(), value.clone());
        }
    }
}

fn part_text(part: &Part) -> Option<&str> {
    match part {
        Part::Text { text, .. } => Some(text),
        _ => None,
    }
}

fn reasoning_text(part: &Part) -> Option<&str> {
    match part {
        Part::Reasoning { text, .. } => Some(text),
        _ => None,
    }
}
