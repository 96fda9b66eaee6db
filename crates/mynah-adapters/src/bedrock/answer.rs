//! An answer of Converse, streamed or whole.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mynah_data::{FinishReason, Metadata, Result, Usage};
use serde_json::{Value, json, value::RawValue};

use super::request::WITHHELD;
use crate::{
    draft::{Block, CallKey, Draft},
    failure,
    form::Form,
    format::Decoder,
    loose::{self, Extent, Loose, members, take_count, telling},
    sse::Frame,
};

/// Reads one answer.
pub(super) struct Answer {
    form: Form,
    blocks: Vec<Open>,
    /// The number of blocks. Each has its number as its id.
    begun: usize,
}

/// A block that is being written.
struct Open {
    index: u64,
    id: Block,
    kind: Kind,
}

enum Kind {
    /// Most blocks say with their first piece what they are.
    New,
    Text,
    /// Text beside a requested format.
    Beside(String),
    Reasoning {
        signature: String,
        withheld: Vec<u8>,
    },
    Call(CallKey),
    /// The call that is the answer: its input is text.
    Form,
    /// A call that the provider answers itself, and unknown types.
    Foreign,
}

members! {
    /// Every kind of event, for they share their members.
    Message<'a> {
        index: Loose<'a> = "contentBlockIndex",
        start: Loose<'a> = "start",
        delta: Option<Box<Delta<'a>>> = "delta",
        stop_reason: Loose<'a> = "stopReason",
        usage: Loose<'a> = "usage",
    } ignoring ["p", "role", "metrics"]
}

members! {
    Delta<'a> {
        text: Option<Loose<'a>> = "text",
        call: Option<Box<CallDelta<'a>>> = "toolUse",
        reasoning: Option<Box<ReasoningDelta<'a>>> = "reasoningContent",
    } ignoring []
}

members! {
    CallDelta<'a> {
        input: Loose<'a> = "input",
    } ignoring []
}

members! {
    ReasoningDelta<'a> {
        text: Loose<'a> = "text",
        signature: Loose<'a> = "signature",
        withheld: Loose<'a> = "redactedContent",
    } ignoring []
}

impl Decoder for Answer {
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
        let mut message = Message::default();
        let mut extent = loose::read_part(frame.data, &mut message)?;
        let index = message.index.number().unwrap_or_default();
        let mut unknown = telling(message.unknown);
        match frame.event {
            "messageStart" => {}
            "contentBlockStart" => {
                let start = message.start.into_object().unwrap_or_default();
                let rest = self.open(index, start, draft);
                unknown.extend((!rest.is_empty()).then(|| ("start".to_owned(), rest.into())));
            }
            "contentBlockDelta" => {
                if let Some(delta) = message.delta {
                    let rest = self.delta(index, *delta, draft);
                    unknown.extend((!rest.is_empty()).then(|| ("delta".to_owned(), rest.into())));
                }
            }
            "contentBlockStop" => self.close(index, draft),
            "messageStop" => self.stop(message.stop_reason.text(), draft),
            // The last of all: what ends before it broke off.
            "metadata" => {
                draft.usage(usage(message.usage.into_object().unwrap_or_default()));
                if draft.has_finished() {
                    self.end(draft);
                }
            }
            _ => (unknown, extent) = (loose::read_object(frame.data)?, Extent::All),
        }
        if !unknown.is_empty() {
            let place = message.index.number();
            unknown.extend(place.map(|index| ("contentBlockIndex".to_owned(), index.into())));
            draft.raw(json!({frame.event: unknown}));
        }
        extent.or_fail()
    }

    fn whole(&mut self, answer: &str, draft: &mut Draft) -> Result<()> {
        let mut body = loose::read_object(answer)?;
        let Some(content) = take_content(&mut body) else {
            return Err(failure::malformed("the answer has no message"));
        };
        let written = written_blocks(answer).unwrap_or_default();
        for (index, (block, written)) in content.into_iter().zip(written).enumerate() {
            let Value::Object(block) = block else { continue };
            self.block(index as u64, block, written.get(), draft);
        }
        self.stop(body.get("stopReason").and_then(Value::as_str).unwrap_or_default(), draft);
        if let Some(Value::Object(counters)) = body.shift_remove("usage") {
            draft.usage(usage(counters));
        }
        let known = ["stopReason", "metrics"];
        body.retain(|name, _| !known.contains(&name.as_str()));
        let unknown = telling(body);
        if !unknown.is_empty() {
            draft.raw(Value::Object(unknown));
        }
        self.end(draft);
        Ok(())
    }
}

impl Answer {
    pub(super) fn new(form: Form) -> Self {
        Self { form, blocks: Vec::new(), begun: 0 }
    }

    /// Begins a block. Returns its unknown members.
    fn open(&mut self, index: u64, mut start: Metadata, draft: &mut Draft) -> Metadata {
        let call = start.shift_remove("toolUse");
        let kind = match call {
            // What the provider calls itself is not ours to answer.
            Some(Value::Object(mut call)) if call.get("type").is_none_or(Value::is_null) => {
                let kind = match self.form.begins(text_of(&call, "name")) {
                    true => Kind::Form,
                    false => Kind::Call(draft.open_call()),
                };
                if let Kind::Call(key) = kind {
                    draft.call(key, text_of(&call, "toolUseId"), text_of(&call, "name"));
                }
                call.retain(|name, _| !matches!(name.as_str(), "toolUseId" | "name" | "input"));
                start.insert("toolUse".to_owned(), telling(call).into());
                kind
            }
            Some(call) => {
                start.insert("toolUse".to_owned(), call);
                Kind::Foreign
            }
            None => Kind::New,
        };
        self.begin(index, kind, draft);
        telling(start)
    }

    fn begin(&mut self, index: u64, kind: Kind, draft: &mut Draft) -> &mut Open {
        draft.count_part();
        let id = Some(Arc::from(self.begun.to_string()));
        self.begun += 1;
        let place = self.blocks.len();
        self.blocks.push(Open { index, id, kind });
        &mut self.blocks[place]
    }

    /// Adds to a block. Returns unknown members.
    fn delta(&mut self, index: u64, delta: Delta<'_>, draft: &mut Draft) -> Metadata {
        let mut rest = telling(delta.unknown);
        if let Some(text) = delta.text {
            let kind = if self.form.is_wanted() { Kind::Beside(String::new()) } else { Kind::Text };
            let open = self.open_block(index, kind, draft);
            match &mut open.kind {
                Kind::Beside(told) => told.push_str(&text.into_text()),
                _ => draft.text(&open.id, text.into_text()),
            }
        }
        if let Some(piece) = delta.reasoning {
            let kind = Kind::Reasoning { signature: String::new(), withheld: Vec::new() };
            let open = self.open_block(index, kind, draft);
            if let Kind::Reasoning { signature, withheld } = &mut open.kind {
                draft.reasoning(&open.id, piece.text.into_text());
                signature.push_str(piece.signature.text());
                withheld.extend(STANDARD.decode(piece.withheld.text()).unwrap_or_default());
            }
            rest.extend(telling(piece.unknown));
        }
        if let Some(piece) = delta.call {
            let open = self.open_block(index, Kind::New, draft);
            match open.kind {
                Kind::Call(key) => draft.arguments(key, &piece.input.into_text()),
                Kind::Form => {
                    let id = open.id.clone();
                    self.form.write(&id, piece.input.into_text(), draft);
                }
                _ => drop(rest.insert("toolUse".to_owned(), piece.input.into_value())),
            }
        }
        rest
    }

    /// The block of this index that a piece of this kind belongs to. Some blocks have no start
    /// event. Reasoning and text that share an index end each other.
    fn open_block(&mut self, index: u64, kind: Kind, draft: &mut Draft) -> &mut Open {
        let find = |blocks: &[Open]| blocks.iter().rposition(|open| open.index == index);
        let other = find(&self.blocks).is_some_and(|place| {
            matches!(
                (&self.blocks[place].kind, &kind),
                (Kind::Text | Kind::Beside(_), Kind::Reasoning { .. })
                    | (Kind::Reasoning { .. }, Kind::Text | Kind::Beside(_))
            )
        });
        if other {
            self.close(index, draft);
        }
        let Some(place) = find(&self.blocks) else { return self.begin(index, kind, draft) };
        if let Kind::New = self.blocks[place].kind {
            self.blocks[place].kind = kind;
        }
        &mut self.blocks[place]
    }

    fn close(&mut self, index: u64, draft: &mut Draft) {
        let Some(found) = self.blocks.iter().rposition(|open| open.index == index) else {
            return;
        };
        let Open { id, kind, .. } = self.blocks.remove(found);
        match kind {
            Kind::Text | Kind::Form => draft.close_text(&id),
            Kind::Beside(text) => self.form.set_aside(id, text),
            Kind::Reasoning { signature, withheld } => {
                let signature = (!signature.is_empty()).then_some(signature);
                let data =
                    (!withheld.is_empty()).then(|| json!({WITHHELD: STANDARD.encode(withheld)}));
                draft.close_reasoning(&id, signature, data);
            }
            Kind::Call(key) => draft.close_call(key),
            Kind::New | Kind::Foreign => {}
        }
    }

    /// A block that came whole, and how it is written.
    fn block(&mut self, index: u64, mut block: Metadata, written: &str, draft: &mut Draft) {
        let id: Block = Some(Arc::from(index.to_string()));
        if let Some(Value::String(text)) = block.shift_remove("text") {
            self.text(&id, text, draft);
        }
        if let Some(Value::Object(cited)) = block.get("citationsContent") {
            let texts = cited.get("content").and_then(Value::as_array).into_iter().flatten();
            let text = texts.filter_map(|text| text.get("text")?.as_str()).collect();
            self.text(&id, text, draft);
        }
        if let Some(Value::Object(thought)) = block.shift_remove("reasoningContent") {
            let text = thought.get("reasoningText").and_then(Value::as_object);
            let said = |name| text.map_or("", |text| text_of(text, name));
            draft.reasoning(&id, said("text"));
            let signature = Some(said("signature").to_owned()).filter(|text| !text.is_empty());
            let withheld = thought.get(WITHHELD).map(|withheld| json!({WITHHELD: withheld}));
            draft.close_reasoning(&id, signature, withheld);
        }
        let input = match block.get("toolUse").and_then(|call| call.get("input")) {
            // Some gateways write the object as text.
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => {
                member(written, "toolUse").and_then(|call| member(call, "input")).map(str::to_owned)
            }
            None => None,
        };
        let rest = self.open(index, block, draft);
        match (self.blocks.last().map(|open| &open.kind), input) {
            (Some(Kind::Call(key)), Some(input)) => draft.arguments(*key, &input),
            (Some(Kind::Form), Some(input)) => self.form.write(&id, input, draft),
            _ => {}
        }
        self.close(index, draft);
        if !rest.is_empty() {
            draft.raw(Value::Object(rest));
        }
    }

    /// A text that came whole.
    fn text(&mut self, id: &Block, text: String, draft: &mut Draft) {
        if self.form.is_wanted() {
            self.form.set_aside(id.clone(), text);
        } else {
            draft.text(id, text);
            draft.close_text(id);
        }
    }

    fn stop(&self, reason: &str, draft: &mut Draft) {
        let why = match reason {
            "" => return,
            "end_turn" | "stop_sequence" => FinishReason::Stop,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "tool_use" => FinishReason::ToolCalls,
            "guardrail_intervened" | "content_filtered" => FinishReason::ContentFilter,
            "malformed_model_output" | "malformed_tool_use" => FinishReason::Error,
            _ => FinishReason::Other,
        };
        self.form.finish(why, reason, draft);
    }

    fn end(&mut self, draft: &mut Draft) {
        // Some gateways close no blocks.
        while let Some(index) = self.blocks.first().map(|open| open.index) {
            self.close(index, draft);
        }
        self.form.tell_beside(draft);
        draft.end();
    }
}

/// The blocks of a whole answer, each as it is written.
fn written_blocks(answer: &str) -> Option<Vec<&RawValue>> {
    let message = member(answer, "output").and_then(|output| member(output, "message"))?;
    serde_json::from_str(member(message, "content")?).ok()
}

/// A member of an object, as it is written.
fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let members: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(object).ok()?;
    members.get(name).map(|value| value.get())
}

/// Reads the content of a whole answer. The members beside it stay.
fn take_content(body: &mut Metadata) -> Option<Vec<Value>> {
    let output = body.get_mut("output")?.as_object_mut()?;
    let mut message = output.shift_remove("message")?;
    let content = message.get_mut("content")?.as_array_mut().map(std::mem::take);
    if let Value::Object(mut rest) = message {
        rest.retain(|name, _| !matches!(name.as_str(), "content" | "role"));
        output.extend(telling([("message".to_owned(), rest.into())]));
    }
    content
}

fn text_of<'m>(map: &'m Metadata, name: &str) -> &'m str {
    map.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The provider counts what was read from and written to its cache beside the rest of the prompt; we count it as part of it.
fn usage(mut counters: Metadata) -> Usage {
    let mut count = |name: &str| take_count(&mut counters, &[name]);
    let fresh = count("inputTokens");
    let cached_input_tokens = count("cacheReadInputTokens");
    let cache_write_tokens = count("cacheWriteInputTokens");
    let parts = [cached_input_tokens, cache_write_tokens].into_iter().flatten();
    let input_tokens = fresh.map(|fresh| parts.fold(fresh, u64::saturating_add));
    let mut usage = Usage::new(input_tokens, count("outputTokens"));
    usage.cached_input_tokens = cached_input_tokens;
    usage.cache_write_tokens = cache_write_tokens;
    usage.total_tokens = count("totalTokens");
    if let Some(Value::Object(counts)) = counters.shift_remove("serverToolUsage") {
        usage.tool_usage = counts;
    }
    usage.extra = telling(counters).into();
    usage
}
