//! How an answer arrived: where its stream was cut, so that it can be streamed again piece by piece.
//!
//! An answer's text is stored once, in its message. The cuts store how long each piece was and what
//! came between. Events that the message cannot reproduce are stored as they came.

use std::sync::Arc;

use mynah_data::{Event, Part, Response, ResponseBuilder};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// One event of an answer, or a row of pieces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Cut {
    /// The answer began.
    Started,
    /// Pieces of a part's text, reasoning or arguments, by their lengths in bytes.
    Pieces {
        /// Which part of the message.
        part: usize,
        /// The id of the block, where the provider names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Arc<str>>,
        /// The lengths.
        lens: Vec<usize>,
    },
    /// A part was complete: text, reasoning or a tool call.
    Complete {
        /// Which part of the message.
        part: usize,
        /// The id of the block, where the provider names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Arc<str>>,
    },
    /// A tool call began.
    CallStarted {
        /// Which part of the message.
        part: usize,
    },
    /// The usage of the answer was reported.
    Usage,
    /// The answer was complete.
    Completed,
    /// An event that the message cannot reproduce.
    Event(
        #[serde(serialize_with = "mynah_data::json::serialize", deserialize_with = "whole_event")]
        Box<Event>,
    ),
}

/// Reads an event, and refuses one with members that this version does not know. Readers of JSON ignore those.
fn whole_event<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Event>, D::Error> {
    if deserializer.is_human_readable() {
        return Event::deserialize(deserializer).map(Box::new);
    }
    let text = String::deserialize(deserializer)?;
    let event: Event = serde_json::from_str(&text).map_err(D::Error::custom)?;
    match serde_json::to_string(&event) {
        Ok(written) if written == text => Ok(Box::new(event)),
        _ => Err(D::Error::custom("an event that is not as it is written")),
    }
}

/// Takes down how an answer arrives.
#[derive(Clone, Debug, Default)]
pub struct CutRecorder {
    cuts: Vec<Cut>,
    /// Blocks that were reported complete. The message cannot reproduce later pieces of them.
    complete: Vec<Option<Arc<str>>>,
    complete_calls: Vec<String>,
    /// Whether the message cannot reproduce the answer. Then every event is stored as it came.
    spelled: bool,
}

impl CutRecorder {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Folds an event into the answer, and takes down how.
    pub fn apply(&mut self, event: &Event, answer: &mut ResponseBuilder) {
        let continues = match event {
            Event::Usage { .. } | Event::RawChunk { .. } => false,
            _ if answer.has_completed() => true,
            Event::TextDelta { id, .. } => self.complete.contains(id),
            Event::ToolCallDelta { id, .. } => self.complete_calls.contains(id),
            _ => false,
        };
        if !self.spelled && (continues || answer.would_replace(event)) {
            self.spell_out(&answer.response());
        }
        answer.apply(event);
        let as_it_came = || Cut::Event(Box::new(event.clone()));
        let cut = match event {
            _ if self.spelled => as_it_came(),
            // A message cannot reproduce empty pieces.
            Event::TextDelta { delta: text, .. } | Event::TextCompleted { text, .. }
                if text.is_empty() =>
            {
                as_it_came()
            }
            Event::TextDelta { id, delta } | Event::ReasoningDelta { id, delta } => {
                return self.piece(answer.touched(), id, delta.len());
            }
            Event::ToolCallDelta { arguments_delta, .. } => {
                return self.piece(answer.touched(), &None, arguments_delta.len());
            }
            Event::TextCompleted { id, .. } => {
                self.complete.push(id.clone());
                // Without a name the text may stand in several parts.
                let part =
                    if id.is_some() { Some(answer.touched()) } else { answer.only_unnamed_text() };
                part.map_or_else(as_it_came, |part| Cut::Complete { part, id: id.clone() })
            }
            Event::ReasoningCompleted { id, .. } => {
                Cut::Complete { part: answer.touched(), id: id.clone() }
            }
            Event::ToolCallStarted { .. } => Cut::CallStarted { part: answer.touched() },
            Event::ToolCallCompleted(call) => {
                self.complete_calls.push(call.id.clone());
                Cut::Complete { part: answer.touched(), id: None }
            }
            Event::Usage { .. } => Cut::Usage,
            Event::MessageStarted { .. } => Cut::Started,
            Event::MessageCompleted { metadata, paused: false, finish_reason, .. }
                if metadata.is_empty() && *finish_reason == answer.finish_reason() =>
            {
                Cut::Completed
            }
            _ => as_it_came(),
        };
        self.cuts.push(cut);
    }

    /// How the answer arrived.
    pub fn finish(self) -> Vec<Cut> {
        self.cuts
    }

    fn piece(&mut self, part: usize, id: &Option<Arc<str>>, len: usize) {
        match self.cuts.last_mut() {
            Some(Cut::Pieces { part: last, id: last_id, lens })
                if *last == part && last_id == id =>
            {
                lens.push(len)
            }
            _ => self.cuts.push(Cut::Pieces { part, id: id.clone(), lens: vec![len] }),
        }
    }

    /// Something is about to change what the cuts refer to: what was said so far is spelled out.
    fn spell_out(&mut self, response: &Response) {
        let events = expand(&std::mem::take(&mut self.cuts), response);
        self.cuts.extend(events.into_iter().map(|event| Cut::Event(Box::new(event))));
        self.spelled = true;
    }
}

/// The text of a part that comes in pieces.
fn said(part: &Part) -> &str {
    match part {
        Part::Text { text, .. } | Part::Reasoning { text, .. } | Part::Refusal { text } => text,
        Part::ToolCall(call) => &call.raw_arguments,
        _ => "",
    }
}

/// The events of an answer, as they came.
pub fn expand(cuts: &[Cut], response: &Response) -> Vec<Event> {
    let parts = response.message.parts();
    let mut told = vec![0usize; parts.len()];
    let mut events = Vec::with_capacity(cuts.len());
    for cut in cuts {
        match cut {
            Cut::Started => events.push(started(response)),
            Cut::Pieces { part, id, lens } => {
                for len in lens {
                    events.extend(parts.get(*part).and_then(|content| {
                        let start = told[*part];
                        told[*part] = start.checked_add(*len)?;
                        let piece = said(content).get(start..told[*part])?.to_owned();
                        Some(delta(content, id.clone(), piece))
                    }));
                }
            }
            Cut::Complete { part, id } => {
                events.extend(parts.get(*part).map(|part| complete(part, id.clone())))
            }
            Cut::CallStarted { part } => {
                if let Some(Part::ToolCall(call)) = parts.get(*part) {
                    events.push(Event::ToolCallStarted {
                        id: call.id.clone(),
                        name: call.name.clone(),
                    });
                }
            }
            Cut::Usage => events.push(Event::Usage { usage: Box::new(response.usage.clone()) }),
            Cut::Completed => events.push(completed(response)),
            Cut::Event(event) => events.push(Event::clone(event)),
        }
    }
    events
}

fn started(response: &Response) -> Event {
    let mut event = Event::message_started();
    if let Event::MessageStarted { request_id, id, model, .. } = &mut event {
        request_id.clone_from(&response.request_id);
        id.clone_from(&response.id);
        model.clone_from(&response.model);
    }
    event
}

fn completed(response: &Response) -> Event {
    let mut event = Event::message_completed(response.finish_reason);
    if let Event::MessageCompleted { message, raw_finish_reason, .. } = &mut event {
        *message = Arc::clone(&response.message);
        raw_finish_reason.clone_from(&response.raw_finish_reason);
    }
    event
}

fn delta(part: &Part, id: Option<Arc<str>>, delta: String) -> Event {
    match part {
        Part::ToolCall(call) => {
            Event::ToolCallDelta { id: call.id.clone(), arguments_delta: delta }
        }
        Part::Reasoning { .. } => Event::ReasoningDelta { id, delta },
        _ => Event::TextDelta { id, delta },
    }
}

fn complete(part: &Part, id: Option<Arc<str>>) -> Event {
    match part {
        Part::ToolCall(call) => Event::ToolCallCompleted(Arc::clone(call)),
        Part::Reasoning { text, signature, redacted, data } => {
            let rest = (id, signature.clone(), *redacted, data.clone());
            let mut event = Event::reasoning_completed(text);
            if let Event::ReasoningCompleted { id, signature, redacted, data, .. } = &mut event {
                (*id, *signature, *redacted, *data) = rest;
            }
            event
        }
        other => Event::TextCompleted { id, text: said(other).to_owned() },
    }
}
