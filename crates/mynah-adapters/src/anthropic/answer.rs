//! An answer of Messages, streamed or whole.

use std::{borrow::Cow, mem::take, sync::Arc};

use mynah_data::{FinishReason, Metadata, Result};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    counters::Counters,
    request::{CALLER, CONTAINER},
};
use crate::{
    draft::{Block, CallKey, Draft},
    failure,
    form::Form,
    format::Decoder,
    loose::{self, Loose, Written, members, telling, tells, text_of},
    sse::Frame,
};

/// Members of an answer that other fields already hold.
const ABOUT_ITSELF: [&str; 7] =
    ["content", "id", "model", "role", "stop_reason", "stop_sequence", "type"];

/// Reads one answer.
pub(super) struct Answer {
    form: Form,
    blocks: Vec<Open>,
    /// How many blocks there were.
    begun: usize,
    counters: Counters,
    /// Where the provider runs code.
    container: Metadata,
}

/// A block that is being written.
struct Open {
    index: u64,
    /// Its own: some gateways number all blocks alike.
    id: Block,
    kind: Kind,
    /// The input of a call that came with its beginning. Some gateways write it again in pieces, and then it is theirs.
    input: String,
    /// What a text was taken from.
    citations: Vec<Value>,
}

enum Kind {
    Text,
    /// Text beside a requested format.
    Beside(String),
    Thinking {
        signature: String,
    },
    /// An opaque block that goes back unchanged: results of the provider's own tools, summaries of
    /// the conversation, and unknown types.
    Opaque {
        block: Metadata,
        /// The input of the provider's own tools comes in pieces.
        input: String,
    },
    Call(CallKey),
    /// The call that is the answer: its input is text.
    Form,
}

impl Kind {
    /// Whether such a block is written in such pieces.
    fn takes(&self, piece: Piece) -> bool {
        match (piece, self) {
            (_, Self::Opaque { .. }) => true,
            (Piece::Text, kind) => matches!(kind, Self::Text | Self::Beside(_)),
            (Piece::Thinking | Piece::Signature, kind) => matches!(kind, Self::Thinking { .. }),
            (Piece::Input, kind) => matches!(kind, Self::Call(_) | Self::Form),
            (Piece::Citation | Piece::Other, _) => true,
        }
    }
}

/// What a piece of a block is.
#[derive(Clone, Copy)]
enum Piece {
    Text,
    Thinking,
    Signature,
    Input,
    Citation,
    Other,
}

members! {
    /// Every kind of event, for they share their members. `type` may come last.
    Message<'a> {
        kind: Loose<'a> = "type",
        index: Loose<'a> = "index",
        message: Option<Box<Metadata>> = "message",
        content_block: Option<&'a RawValue> = "content_block",
        delta: Option<Delta<'a>> = "delta",
        usage: Option<Box<Metadata>> = "usage",
    } ignoring []
}

members! {
    Delta<'a> {
        kind: Loose<'a> = "type",
        text: Loose<'a> = "text",
        partial_json: Written<'a> = "partial_json",
        thinking: Loose<'a> = "thinking",
        signature: Loose<'a> = "signature",
        stop_reason: Loose<'a> = "stop_reason",
        stop_sequence: Loose<'a> = "stop_sequence",
    } ignoring []
}

impl Delta<'_> {
    /// Its type. Some gateways leave it out.
    fn piece(&self) -> Piece {
        match self.kind.text() {
            "text_delta" => Piece::Text,
            "thinking_delta" => Piece::Thinking,
            "signature_delta" => Piece::Signature,
            "input_json_delta" => Piece::Input,
            "citations_delta" => Piece::Citation,
            "" if self.text != Loose::Null => Piece::Text,
            "" if self.thinking != Loose::Null => Piece::Thinking,
            "" if self.signature != Loose::Null => Piece::Signature,
            "" if !self.partial_json.0.is_empty() => Piece::Input,
            _ => Piece::Other,
        }
    }

    /// Appends to a block that is kept whole.
    fn write_on(&mut self, block: &mut Metadata) {
        let known = [
            ("text", &mut self.text),
            ("thinking", &mut self.thinking),
            ("signature", &mut self.signature),
        ];
        let known = known.map(|(name, said)| (name.to_owned(), take(said).into_value()));
        for (name, said) in telling(known.into_iter().chain(take(&mut self.unknown))) {
            match (block.get_mut(&name), said) {
                (Some(Value::String(text)), Value::String(more)) => text.push_str(&more),
                (_, said) => drop(block.insert(name, said)),
            }
        }
    }
}

members! {
    /// The beginning of a block, or all of it.
    Start<'a> {
        kind: Loose<'a> = "type",
        text: Loose<'a> = "text",
        thinking: Loose<'a> = "thinking",
        signature: Loose<'a> = "signature",
        citations: Loose<'a> = "citations",
        id: Loose<'a> = "id",
        name: Loose<'a> = "name",
        caller: Loose<'a> = "caller",
        input: Written<'a> = "input",
    } ignoring []
}

impl Start<'_> {
    /// The input of a call, if it is already complete.
    fn input(&self) -> &str {
        let input = self.input.0.trim();
        let is_empty = serde_json::from_str::<Metadata>(input).is_ok_and(|map| map.is_empty());
        if is_empty { "" } else { input }
    }
}

impl Decoder for Answer {
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
        // Some gateways end so.
        if frame.is_done() {
            return self.end(draft);
        }
        let mut message = Message::default();
        let extent = loose::read_part(frame.data, &mut message)?;
        let reread = || loose::read_raw(frame.data);
        let index = message.index.number().unwrap_or_default();
        let kind = match message.kind.text() {
            "" => frame.event,
            kind => kind,
        };
        match kind {
            "message_start" => self.start(*message.message.unwrap_or_default(), draft),
            "content_block_start" => {
                self.open(index, message.content_block.map_or("{}", RawValue::get), draft)?
            }
            "content_block_delta" => {
                let known = match &mut message.delta {
                    Some(delta) => self.delta(index, delta, draft)?,
                    None => false,
                };
                if !known {
                    draft.raw(reread()?);
                    return Ok(());
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
                self.counters.add(*message.usage.unwrap_or_default(), draft);
            }
            "message_stop" => self.end(draft)?,
            "ping" => {}
            "error" => return Err(failure::in_stream(&reread()?)),
            _ => {
                draft.raw(reread()?);
                return Ok(());
            }
        }
        draft.raw_rest(kind, message.unknown);
        extent.or_fail()
    }

    fn whole(&mut self, body: &str, draft: &mut Draft) -> Result<()> {
        let mut message = loose::read_object(body)?;
        if message.get("error").is_some_and(tells) {
            return Err(failure::in_stream(&Value::Object(message)));
        }
        let blocks = blocks_of(body)?;
        let stop_reason = text_of(&message, "stop_reason").to_owned();
        let stop_sequence = text_of(&message, "stop_sequence").to_owned();
        let details = message.shift_remove("stop_details");
        self.start(message, draft);
        for (index, block) in blocks.into_iter().enumerate() {
            self.open(index as u64, &block, draft)?;
            self.close(index as u64, draft);
        }
        let rest = details.map(|details| ("stop_details".to_owned(), details));
        self.stop(&stop_reason, &stop_sequence, rest, draft);
        self.tell_rest(draft);
        draft.end();
        Ok(())
    }
}

impl Answer {
    pub(super) fn new(form: Form) -> Self {
        Self {
            form,
            blocks: Vec::new(),
            begun: 0,
            counters: Counters::default(),
            container: Metadata::new(),
        }
    }

    fn start(&mut self, mut message: Metadata, draft: &mut Draft) {
        let usage = message.shift_remove("usage");
        self.contain(message.shift_remove("container"));
        draft.start(Some(text_of(&message, "id")), Some(text_of(&message, "model")));
        if let Some(Value::Object(usage)) = usage {
            self.counters.add(usage, draft);
        }
        message.retain(|name, _| !ABOUT_ITSELF.contains(&name.as_str()));
        draft.raw_rest("message", message);
    }

    /// A block begins. All of it may already be there.
    fn open(&mut self, index: u64, json: &str, draft: &mut Draft) -> Result<()> {
        let mut start = Start::default();
        loose::read(json, &mut start)?;
        let kind = match start.kind.text() {
            "text" => self.text_kind(),
            "" if start.text != Loose::Null => self.text_kind(),
            "thinking" => Kind::Thinking { signature: String::new() },
            "tool_use" if self.form.begins(start.name.text()) => Kind::Form,
            "tool_use" => {
                let key = draft.open_call();
                draft.call(key, start.id.text(), start.name.text());
                // Code that the provider runs calls tools too.
                if let Some(caller) = take(&mut start.caller).into_object()
                    && text_of(&caller, "type") != "direct"
                {
                    draft.call_metadata(key, telling([(CALLER.to_owned(), caller.into())]));
                }
                Kind::Call(key)
            }
            // What it is will be seen from its pieces.
            "" => {
                draft.raw_rest("content_block_start", start.unknown);
                return Ok(());
            }
            _ => {
                let block = loose::read_object(json)?;
                if text_of(&block, "type") == "fallback" {
                    self.taken_over(&block, draft);
                }
                Kind::Opaque { block, input: String::new() }
            }
        };
        let input = start.input().to_owned();
        let place = self.begin(index, kind, draft);
        let open = &mut self.blocks[place];
        open.input = input;
        match &mut open.kind {
            Kind::Text => draft.text(&open.id, start.text.into_text()),
            Kind::Beside(text) => *text = start.text.into_text(),
            Kind::Thinking { signature } => {
                draft.reasoning(&open.id, start.thinking.into_text());
                *signature = start.signature.into_text();
            }
            Kind::Opaque { .. } => return Ok(()),
            Kind::Call(_) | Kind::Form => {}
        }
        draft.raw_rest(start.kind.text(), start.unknown);
        open.citations = start.citations.take_objects().map(Value::Object).collect();
        if !open.citations.is_empty() {
            draft.raw(json!({"type": "citations", "citations": open.citations}));
        }
        Ok(())
    }

    /// Another model takes over, and has its own price.
    fn taken_over(&mut self, block: &Metadata, draft: &mut Draft) {
        let to = block.get("to").and_then(|to| to.get("model")?.as_str());
        if let Some(model) = to {
            draft.note("served_by", model);
            self.counters.are_of(model, draft);
        }
    }

    fn text_kind(&self) -> Kind {
        if self.form.is_wanted() { Kind::Beside(String::new()) } else { Kind::Text }
    }

    /// Begins an empty block, and returns its index.
    fn begin(&mut self, index: u64, kind: Kind, draft: &mut Draft) -> usize {
        draft.count_part();
        let id = Some(Arc::from(self.begun.to_string()));
        self.begun += 1;
        self.blocks.push(Open { index, id, kind, input: String::new(), citations: Vec::new() });
        self.blocks.len() - 1
    }

    /// Adds to a block; false if that is not understood. Some gateways do not say that words begin.
    fn delta(&mut self, index: u64, delta: &mut Delta<'_>, draft: &mut Draft) -> Result<bool> {
        let piece = delta.piece();
        let found = self.blocks.iter().rposition(|open| open.index == index);
        let place = match (found, piece) {
            (Some(found), _) if self.blocks[found].kind.takes(piece) => found,
            (_, Piece::Text) => self.begin(index, self.text_kind(), draft),
            (_, Piece::Thinking | Piece::Signature) => {
                self.begin(index, Kind::Thinking { signature: String::new() }, draft)
            }
            (_, Piece::Input) if !delta.partial_json.0.is_empty() => {
                return Err(failure::broke_off().with_message(
                    "adapter error: network_error: a piece of the answer is missing, for arguments came that belong to no call",
                ));
            }
            _ => return Ok(false),
        };
        let open = &mut self.blocks[place];
        let input = &delta.partial_json.0;
        if !input.is_empty() {
            open.input.clear();
        }
        match (piece, &mut open.kind) {
            (Piece::Text, Kind::Text) => draft.text(&open.id, delta.text.take_text()),
            (Piece::Text, Kind::Beside(text)) => text.push_str(&delta.text.as_text()),
            (Piece::Input, Kind::Form) => self.form.write(&open.id, input.as_ref(), draft),
            (Piece::Input, Kind::Call(key)) => draft.arguments(*key, input),
            (Piece::Input, Kind::Opaque { input: known, .. }) => known.push_str(input),
            (_, Kind::Opaque { block, .. }) => delta.write_on(block),
            (Piece::Citation, Kind::Text) => {
                let mut said = telling(take(&mut delta.unknown));
                open.citations.extend(said.shift_remove("citation"));
                return Ok(false);
            }
            (Piece::Thinking, Kind::Thinking { .. }) => {
                draft.reasoning(&open.id, delta.thinking.take_text())
            }
            (Piece::Signature, Kind::Thinking { signature }) => {
                signature.push_str(delta.signature.text())
            }
            _ => return Ok(false),
        }
        draft.raw_rest("content_block_delta", take(&mut delta.unknown));
        Ok(true)
    }

    fn close(&mut self, index: u64, draft: &mut Draft) {
        let Some(found) = self.blocks.iter().rposition(|open| open.index == index) else {
            return;
        };
        let Open { id, kind, input: told, citations, .. } = self.blocks.remove(found);
        match kind {
            Kind::Text => {
                draft.close_text(&id);
                if !citations.is_empty() {
                    draft.opaque(&id, json!({"type": "text", "citations": citations}));
                }
            }
            Kind::Beside(text) => self.form.set_aside(id, text),
            Kind::Form => {
                self.form.write(&id, told, draft);
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
                    _ => {
                        draft.raw(Value::Object(block.clone()));
                        draft.opaque(&id, Value::Object(block));
                    }
                }
            }
            Kind::Call(key) => {
                draft.arguments(key, &told);
                draft.close_call(key);
            }
        }
    }

    /// The container in which code ran. It may be reported at either end.
    fn contain(&mut self, container: Option<Value>) {
        if let Some(Value::Object(container)) = container {
            self.container = container;
        }
    }

    fn stop(
        &mut self,
        reason: &str,
        sequence: &str,
        rest: impl IntoIterator<Item = (String, Value)>,
        draft: &mut Draft,
    ) {
        let mut rest = telling(rest);
        self.contain(rest.shift_remove("container"));
        if !reason.is_empty() {
            self.finish(reason, sequence, rest.get("stop_details"), draft);
        }
        if !rest.is_empty() {
            draft.raw(json!({"type": "message_delta", "delta": rest}));
        }
    }

    fn finish(&mut self, reason: &str, sequence: &str, details: Option<&Value>, draft: &mut Draft) {
        let why = match reason {
            "end_turn" | "stop_sequence" => FinishReason::Stop,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "tool_use" => FinishReason::ToolCalls,
            "refusal" => FinishReason::ContentFilter,
            _ => FinishReason::Other,
        };
        self.form.finish(why, reason, draft);
        if matches!(reason, "pause_turn" | "compaction") {
            draft.pause();
        }
        if !sequence.is_empty() {
            draft.note("stop_sequence", sequence);
        }
        if let ("refusal", Some(Value::Object(details))) = (reason, details) {
            draft.refusal(text_of(details, "explanation"));
            draft.note("stop_details", details.clone());
        }
    }

    /// The end mark of an unfinished answer is ignored.
    fn end(&mut self, draft: &mut Draft) -> Result<()> {
        if !draft.has_finished() {
            return Err(failure::broke_off());
        }
        // Some gateways close no blocks.
        while let Some(index) = self.blocks.first().map(|open| open.index) {
            self.close(index, draft);
        }
        self.tell_rest(draft);
        draft.end();
        Ok(())
    }

    /// Emits the text beside the requested format, as the answer if there is no other, and the
    /// container in which code ran.
    fn tell_rest(&mut self, draft: &mut Draft) {
        self.form.tell_beside(draft);
        if !self.container.is_empty() {
            let container = Value::Object(take(&mut self.container));
            draft.note("container", container.clone());
            draft.opaque(&None, json!({"type": CONTAINER, "container": container}));
        }
    }
}

/// The blocks of a whole answer, each as it is written. Some gateways write text alone.
fn blocks_of(answer: &str) -> Result<Vec<Cow<'_, str>>> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        content: Option<&'a RawValue>,
    }
    let answer: Answer<'_> = serde_json::from_str(answer).map_err(failure::malformed)?;
    match answer.content.map_or("", RawValue::get) {
        list if list.starts_with('[') => {
            let blocks: Vec<&RawValue> = serde_json::from_str(list).map_err(failure::malformed)?;
            Ok(blocks.into_iter().map(|block| block.get().into()).collect())
        }
        text if text.starts_with('"') => {
            Ok(vec![format!(r#"{{"type":"text","text":{text}}}"#).into()])
        }
        _ => Err(failure::malformed("the answer has no content")),
    }
}
