//! An answer of Messages, streamed or whole.

use std::{mem::take, sync::Arc};

use mynah_data::{FinishReason, Metadata, Result, Usage};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::request::must_go_back;
use crate::{
    draft::{Block, CallKey, Draft},
    failure,
    format::Decoder,
    loose::{self, Loose, members, overlay, take_count, telling, tells, text_of},
    sse::Frame,
};

/// Reads one answer.
pub(super) struct Answer {
    /// The tool whose input is the text of the answer.
    form_tool: Option<String>,
    form: Form,
    /// Texts beside a form that may still come: it takes their place.
    beside: Vec<(Block, String)>,
    blocks: Vec<Open>,
    /// Counters so far: those of the beginning, overlaid by those of the end.
    counters: Metadata,
    /// The model that took over where the one that was asked declined.
    served_by: Option<String>,
}

/// How far the call came that is the answer.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    NotCalled,
    Empty,
    Told,
}

/// A block that is being written.
struct Open {
    index: u64,
    id: Block,
    kind: Kind,
    /// The input of a call that came with its beginning. Some gateways write it again in pieces, and then it is theirs.
    input: String,
}

enum Kind {
    Text,
    /// Text where a form is asked for.
    Beside(String),
    Thinking {
        signature: String,
    },
    /// A block that must go back as it came. The input of the provider's own tools comes in pieces.
    Opaque {
        block: Metadata,
        input: String,
    },
    Call(CallKey),
    /// The call that is the answer: its input is text.
    Form,
    Unknown,
}

members! {
    /// Every kind of event, for they share their members. `type` may come last.
    Message<'a> {
        kind: Loose<'a> = "type",
        index: Loose<'a> = "index",
        message: Loose<'a> = "message",
        content_block: Option<&'a RawValue> = "content_block",
        delta: Option<Delta<'a>> = "delta",
        usage: Loose<'a> = "usage",
    } ignoring []
}

members! {
    Delta<'a> {
        kind: Loose<'a> = "type",
        text: Loose<'a> = "text",
        partial_json: Loose<'a> = "partial_json",
        thinking: Loose<'a> = "thinking",
        signature: Loose<'a> = "signature",
        content: Loose<'a> = "content",
        stop_reason: Loose<'a> = "stop_reason",
        stop_sequence: Loose<'a> = "stop_sequence",
    } ignoring []
}

impl Decoder for Answer {
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
        // Some gateways end so.
        if frame.data.trim() == "[DONE]" {
            return self.end(draft);
        }
        let mut message = Message::default();
        loose::read(frame.data, &mut message)?;
        let reread = || serde_json::from_str(frame.data).map_err(failure::malformed);
        let index = message.index.number().unwrap_or_default();
        let kind = match message.kind.text() {
            "" => frame.event,
            kind => kind,
        };
        match kind {
            "message_start" => self.start(message.message.into_object().unwrap_or_default(), draft),
            "content_block_start" => {
                self.open(index, message.content_block.map_or("{}", RawValue::get), draft)
            }
            "content_block_delta" => {
                if !message.delta.as_mut().is_some_and(|delta| self.delta(index, delta, draft)) {
                    draft.raw(reread()?);
                }
            }
            "content_block_stop" => self.close(index, draft),
            "message_delta" => {
                if let Some(delta) = message.delta {
                    self.stop(
                        delta.stop_reason.text(),
                        delta.stop_sequence.text(),
                        delta.unknown,
                        draft,
                    );
                }
                self.count(message.usage.into_object().unwrap_or_default(), draft);
            }
            "message_stop" => self.end(draft)?,
            "ping" => {}
            "error" => return Err(failure::in_stream(&reread()?)),
            _ => draft.raw(reread()?),
        }
        Ok(())
    }

    fn whole(&mut self, body: &str, draft: &mut Draft) -> Result<()> {
        let mut message: Metadata = serde_json::from_str(body).map_err(failure::malformed)?;
        if message.get("error").is_some_and(tells) {
            return Err(failure::in_stream(&Value::Object(message)));
        }
        let text = match message.shift_remove("content") {
            Some(Value::Array(_)) => None,
            Some(Value::String(text)) => Some(json!({"type": "text", "text": text}).to_string()),
            _ => return Err(failure::malformed("the answer has no content")),
        };
        let blocks = match &text {
            Some(text) => vec![text.as_str()],
            None => blocks_of(body)?,
        };
        let stop_reason = text_of(&message, "stop_reason").to_owned();
        let stop_sequence = text_of(&message, "stop_sequence").to_owned();
        let details = message.shift_remove("stop_details");
        self.start(message, draft);
        for (index, block) in blocks.into_iter().enumerate() {
            self.open(index as u64, block, draft);
            self.close(index as u64, draft);
        }
        let rest = details.map(|details| ("stop_details".to_owned(), details));
        self.stop(&stop_reason, &stop_sequence, rest.into_iter().collect(), draft);
        self.tell_beside(draft);
        draft.end();
        Ok(())
    }
}

impl Answer {
    pub(super) fn new(form_tool: Option<String>) -> Self {
        Self {
            form_tool,
            form: Form::NotCalled,
            beside: Vec::new(),
            blocks: Vec::new(),
            counters: Metadata::new(),
            served_by: None,
        }
    }

    fn start(&mut self, mut message: Metadata, draft: &mut Draft) {
        let usage = message.shift_remove("usage");
        draft.start(Some(text_of(&message, "id")), Some(text_of(&message, "model")));
        if let Some(Value::Object(usage)) = usage {
            self.count(usage, draft);
        }
    }

    /// A block begins. All of it may already be there.
    fn open(&mut self, index: u64, json: &str, draft: &mut Draft) {
        let Ok(block) = serde_json::from_str::<Metadata>(json) else { return };
        let id: Block = Some(Arc::from(index.to_string()));
        let input = match block.get("input") {
            Some(Value::Object(input)) if !input.is_empty() => input_of(json),
            _ => "",
        };
        if text_of(&block, "type") == "fallback" {
            self.taken_over(&block, draft);
        }
        let kind = match text_of(&block, "type") {
            "text" => {
                let text = text_of(&block, "text");
                let kind = match self.form_tool {
                    Some(_) => Kind::Beside(text.to_owned()),
                    None => {
                        draft.text(&id, text);
                        Kind::Text
                    }
                };
                if let Some(Value::Array(citations)) = block.get("citations")
                    && !citations.is_empty()
                {
                    draft.raw(json!({"type": "citations", "citations": citations}));
                }
                kind
            }
            "thinking" => {
                draft.reasoning(&id, text_of(&block, "thinking"));
                Kind::Thinking { signature: text_of(&block, "signature").to_owned() }
            }
            "tool_use" if self.form_tool.as_deref() == Some(text_of(&block, "name")) => {
                self.form = Form::Empty;
                Kind::Form
            }
            "tool_use" => {
                let key = draft.open_call();
                draft.call(key, text_of(&block, "id"), text_of(&block, "name"));
                Kind::Call(key)
            }
            "redacted_thinking" => Kind::Opaque { block, input: String::new() },
            // The provider's own tools, and what it made of the conversation: not ours to answer, and must go back.
            kind if must_go_back(kind) => {
                draft.raw(Value::Object(block.clone()));
                Kind::Opaque { block, input: String::new() }
            }
            _ => {
                draft.raw(Value::Object(block));
                Kind::Unknown
            }
        };
        draft.count_part();
        self.blocks.push(Open { index, id, kind, input: input.to_owned() });
    }

    /// Another model takes over, and has its own price.
    fn taken_over(&mut self, block: &Metadata, draft: &mut Draft) {
        let to = block.get("to").and_then(|to| to.get("model")?.as_str());
        if let Some(model) = to {
            self.served_by = Some(model.to_owned());
            draft.note("served_by", model);
            self.count(Metadata::new(), draft);
        }
    }

    /// Adds to a block; false if that is not understood.
    fn delta(&mut self, index: u64, delta: &mut Delta<'_>, draft: &mut Draft) -> bool {
        let Some(open) = self.blocks.iter_mut().rev().find(|open| open.index == index) else {
            return false;
        };
        if !delta.partial_json.text().is_empty() {
            open.input.clear();
        }
        match (delta.kind.text(), &mut open.kind) {
            ("text_delta", Kind::Text) => draft.text(&open.id, take(&mut delta.text).into_text()),
            ("text_delta", Kind::Beside(text)) => text.push_str(delta.text.text()),
            ("input_json_delta", Kind::Form) => {
                let piece = take(&mut delta.partial_json).into_text();
                if !piece.is_empty() {
                    self.form = Form::Told;
                }
                draft.text(&open.id, piece);
            }
            ("input_json_delta", Kind::Call(key)) => {
                draft.arguments(*key, delta.partial_json.text())
            }
            ("input_json_delta", Kind::Opaque { input, .. }) => {
                input.push_str(delta.partial_json.text())
            }
            ("compaction_delta", Kind::Opaque { block, .. }) => {
                let content = text_of(block, "content").to_owned();
                let content = content + &take(&mut delta.content).into_text();
                block.insert("content".to_owned(), content.into());
            }
            ("thinking_delta", Kind::Thinking { .. }) => {
                draft.reasoning(&open.id, take(&mut delta.thinking).into_text())
            }
            ("signature_delta", Kind::Thinking { signature }) => {
                signature.push_str(delta.signature.text())
            }
            _ => return false,
        }
        true
    }

    fn close(&mut self, index: u64, draft: &mut Draft) {
        let Some(found) = self.blocks.iter().rposition(|open| open.index == index) else {
            return;
        };
        let Open { id, kind, input: told, .. } = self.blocks.remove(found);
        match kind {
            Kind::Text => draft.close_text(&id),
            Kind::Beside(text) => self.beside.push((id, text)),
            Kind::Form => {
                if !told.is_empty() {
                    self.form = Form::Told;
                }
                draft.text(&id, told);
                draft.close_text(&id);
            }
            Kind::Thinking { signature } => {
                draft.close_reasoning(&id, (!signature.is_empty()).then_some(signature), None)
            }
            Kind::Opaque { mut block, input } => {
                if let Ok(input) = serde_json::from_str::<Value>(&input) {
                    block.insert("input".to_owned(), input);
                }
                match block.get("data") {
                    Some(withheld) if text_of(&block, "type") == "redacted_thinking" => {
                        draft.close_reasoning(&id, None, Some(withheld.clone()));
                    }
                    _ => draft.opaque(&id, Value::Object(block)),
                }
            }
            Kind::Call(key) => {
                draft.arguments(key, &told);
                draft.close_call(key);
            }
            Kind::Unknown => {}
        }
    }

    fn stop(
        &mut self,
        reason: &str,
        sequence: &str,
        rest: Vec<(String, Value)>,
        draft: &mut Draft,
    ) {
        let why = match reason {
            "" => return,
            "end_turn" | "stop_sequence" => FinishReason::Stop,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            // The only call was the answer itself.
            "tool_use" if self.form_tool.is_some() && !draft.has_calls() => FinishReason::Stop,
            "tool_use" => FinishReason::ToolCalls,
            "refusal" => FinishReason::ContentFilter,
            _ => FinishReason::Other,
        };
        draft.finish(why, reason);
        if matches!(reason, "pause_turn" | "compaction") {
            draft.pause();
        }
        if self.form != Form::NotCalled && !draft.has_calls() {
            draft.note("structured_output_tool", true);
        }
        if self.form == Form::Empty && reason == "tool_use" {
            draft.text(&None, "{}");
        }
        if !sequence.is_empty() {
            draft.note("stop_sequence", sequence);
        }
        let rest = telling(rest);
        if let ("refusal", Some(Value::Object(details))) = (reason, rest.get("stop_details")) {
            draft.refusal(text_of(details, "explanation"));
            draft.note("stop_details", details.clone());
        }
        if !rest.is_empty() {
            draft.raw(json!({"type": "message_delta", "delta": rest}));
        }
    }

    /// The end mark says nothing of an answer that was not finished.
    fn end(&mut self, draft: &mut Draft) -> Result<()> {
        if !draft.has_finished() {
            return Err(failure::broke_off());
        }
        // Some gateways close no blocks.
        while let Some(index) = self.blocks.first().map(|open| open.index) {
            self.close(index, draft);
        }
        self.tell_beside(draft);
        draft.end();
        Ok(())
    }

    /// Tells what stood beside the form: as the answer where there is none.
    fn tell_beside(&mut self, draft: &mut Draft) {
        for (id, text) in take(&mut self.beside) {
            if self.form == Form::NotCalled {
                draft.text(&id, text);
                draft.close_text(&id);
            } else if !text.is_empty() {
                draft.raw(json!({"type": "text", "text": text}));
            }
        }
    }

    fn count(&mut self, counters: Metadata, draft: &mut Draft) {
        overlay(&mut self.counters, counters);
        let mut usage = usage(self.counters.clone());
        if let Some(model) = &self.served_by {
            usage.extra.insert("unpriced_model".to_owned(), model.as_str().into());
        }
        draft.usage(usage);
    }
}

/// The blocks of a whole answer, each as it is written.
fn blocks_of(answer: &str) -> Result<Vec<&str>> {
    #[derive(Deserialize)]
    struct Blocks<'a> {
        #[serde(borrow)]
        content: Vec<&'a RawValue>,
    }
    let blocks: Blocks<'_> = serde_json::from_str(answer).map_err(failure::malformed)?;
    Ok(blocks.content.into_iter().map(RawValue::get).collect())
}

/// The input of a call, as it is written: to read a number and write it again may change it.
fn input_of(block: &str) -> &str {
    #[derive(Deserialize)]
    struct Input<'a> {
        #[serde(borrow)]
        input: &'a RawValue,
    }
    serde_json::from_str::<Input<'_>>(block).map_or("", |block| block.input.get())
}

/// The provider counts what was read from and written to its cache beside the rest of the prompt; we count it as part of it.
fn usage(mut counters: Metadata) -> Usage {
    let mut count = |path: &[&str]| take_count(&mut counters, path);
    let fresh = count(&["input_tokens"]);
    let cached = count(&["cache_read_input_tokens"]);
    let written = count(&["cache_creation_input_tokens"]);
    let output_tokens = count(&["output_tokens"]);
    let reasoning_tokens = count(&["output_tokens_details", "thinking_tokens"]);
    let parts = [cached, written].into_iter().flatten();
    let input_tokens = fresh.map(|fresh| parts.fold(fresh, u64::saturating_add));
    let tool_usage = match counters.shift_remove("server_tool_use") {
        Some(Value::Object(counts)) => counts,
        _ => Metadata::new(),
    };
    Usage {
        input_tokens,
        output_tokens,
        cached_input_tokens: cached,
        cache_write_tokens: written,
        reasoning_tokens,
        tool_usage,
        extra: telling(counters),
        ..Usage::default()
    }
}
