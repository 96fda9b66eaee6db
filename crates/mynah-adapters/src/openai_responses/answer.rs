//! An answer of Responses, streamed or whole.

use std::sync::Arc;

use mynah_data::{AdapterReason, Error, FinishReason, Metadata, Result, Usage};
use serde_json::{Value, json};

use crate::{
    draft::{Block, CallKey, Draft},
    failure,
    format::Decoder,
    loose::{Loose, members, take_count, telling, text_of},
    sse::Frame,
};

/// Reads one answer.
///
/// An item is told in pieces, then again whole when it is done, and once more with the end of the answer. Servers leave away
/// what they like of that: whatever comes, only what was not yet told is told.
#[derive(Default)]
pub(super) struct Answer {
    items: Vec<Item>,
}

/// The most items of an answer. Each event looks for its own.
const MAX_ITEMS: usize = 10_000;

struct Item {
    id: String,
    index: Option<u64>,
    kind: Kind,
    block: Block,
    pieces: Vec<Piece>,
    has_reasoned: bool,
    is_done: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Message,
    Reasoning,
    Call(CallKey),
    /// What the provider does itself.
    Other,
}

impl Kind {
    fn of(name: &str, draft: &mut Draft) -> Self {
        match name {
            "message" => Self::Message,
            "reasoning" => Self::Reasoning,
            "function_call" => Self::Call(draft.open_call()),
            _ => Self::Other,
        }
    }

    fn is(self, name: &str) -> bool {
        match self {
            Self::Message => name == "message",
            Self::Reasoning => name == "reasoning",
            Self::Call(_) => name == "function_call",
            Self::Other => !matches!(name, "message" | "reasoning" | "function_call"),
        }
    }
}

/// A text inside of an item.
struct Piece {
    source: Source,
    index: u64,
    block: Block,
    /// How many of its bytes were told.
    told: usize,
    annotated: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Source {
    Text,
    Refusal,
    Summary,
    Thought,
    Arguments,
}

impl Source {
    /// The type of the items that have it.
    fn item(self) -> &'static str {
        match self {
            Self::Text | Self::Refusal => "message",
            Self::Summary | Self::Thought => "reasoning",
            Self::Arguments => "function_call",
        }
    }
}

members! {
    /// Every kind of event, for they share their members. `type` may come last.
    Event<'a> {
        kind: Loose<'a> = "type",
        item_id: Loose<'a> = "item_id",
        output_index: Option<u64> = "output_index",
        content_index: Option<u64> = "content_index",
        summary_index: Option<u64> = "summary_index",
        delta: Loose<'a> = "delta",
        text: Loose<'a> = "text",
        refusal: Loose<'a> = "refusal",
        arguments: Loose<'a> = "arguments",
        part: Loose<'a> = "part",
        item: Loose<'a> = "item",
        response: Option<Box<Reply<'a>>> = "response",
        error: Loose<'a> = "error",
    } ignoring ["sequence_number", "obfuscation", "name"]
}

members! {
    /// The answer itself. Most of its members only repeat the request.
    Reply<'a> {
        id: Loose<'a> = "id",
        model: Loose<'a> = "model",
        status: Loose<'a> = "status",
        output: Loose<'a> = "output",
        usage: Loose<'a> = "usage",
        error: Loose<'a> = "error",
        incomplete_details: Loose<'a> = "incomplete_details",
        reasoning: Loose<'a> = "reasoning",
        service_tier: Loose<'a> = "service_tier",
        tool_usage: Loose<'a> = "tool_usage",
    } ignoring [
        "background", "billing", "completed_at", "conversation", "created_at", "frequency_penalty", "instructions",
        "max_output_tokens", "max_tool_calls", "metadata", "object", "output_text", "parallel_tool_calls",
        "presence_penalty", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation",
        "user"
    ]
}

impl Decoder for Answer {
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
        if draft.has_ended() || frame.data.trim() == "[DONE]" {
            return Ok(());
        }
        let mut event: Event<'_> = serde_json::from_str(frame.data).map_err(failure::malformed)?;
        let reread = || serde_json::from_str(frame.data).map_err(failure::malformed);
        let kind = match std::mem::take(&mut event.kind) {
            Loose::Text(kind) => kind,
            _ if event.error != Loose::Null => "error".into(),
            _ => frame.event.into(),
        };
        let unknown = telling(std::mem::take(&mut event.unknown));
        let known = match kind.as_ref() {
            "error" | "response.error" => return Err(failure::in_stream(&reread()?)),
            "keepalive" | "ping" => true,
            "response.created" | "response.queued" | "response.in_progress" => {
                if let Some(reply) = event.response {
                    draft.start(Some(reply.id.text()), Some(reply.model.text()));
                }
                true
            }
            "response.output_item.added" | "response.output_item.done" => {
                let item = event.item.into_object().unwrap_or_default();
                self.item(event.output_index, item, kind.ends_with("done"), draft)?;
                true
            }
            "response.output_text.annotation.added" => {
                let index = event.content_index.unwrap_or_default();
                let item = self.find(Source::Text, event.item_id.text(), event.output_index, draft);
                item?.annotate(index);
                false
            }
            "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled" => {
                // The event's name says how it ended where the answer itself does not.
                let ended = kind.trim_start_matches("response.");
                self.end(*event.response.unwrap_or_default(), ended, draft)?;
                true
            }
            _ => self.piece(&kind, event, draft)?,
        };
        match (known, unknown.is_empty()) {
            (true, true) => {}
            (true, false) => draft.raw(tagged(&kind, unknown)),
            (false, _) => draft.raw(reread()?),
        }
        Ok(())
    }

    fn whole(&mut self, body: &str, draft: &mut Draft) -> Result<()> {
        let reply: Reply<'_> = serde_json::from_str(body).map_err(failure::malformed)?;
        if reply.output == Loose::Null && reply.error == Loose::Null {
            return Err(failure::malformed("the answer has no output"));
        }
        self.end(reply, "completed", draft)
    }
}

impl Answer {
    /// A text of an item, in pieces or whole; false if that is not understood.
    fn piece(&mut self, kind: &str, event: Event<'_>, draft: &mut Draft) -> Result<bool> {
        let name = kind.strip_prefix("response.").and_then(|name| name.rsplit_once('.'));
        let Some((name, step)) = name else { return Ok(false) };
        let id = event.item_id.text();
        if matches!(name, "content_part" | "reasoning_summary_part" | "reasoning_part") {
            let part = event.part.into_object().unwrap_or_default();
            let Some(source) = part_source(&part) else { return Ok(false) };
            let index = event.summary_index.or(event.content_index).unwrap_or_default();
            self.find(source, id, event.output_index, draft)?.part(source, index, &part, draft);
            return Ok(true);
        }
        let (source, index, whole) = match name {
            "output_text" => (Source::Text, event.content_index, event.text),
            "refusal" => (Source::Refusal, event.content_index, event.refusal),
            "reasoning_summary_text" | "reasoning_summary" => {
                (Source::Summary, event.summary_index, event.text)
            }
            "reasoning_text" | "reasoning" => (Source::Thought, event.content_index, event.text),
            "function_call_arguments" => (Source::Arguments, None, event.arguments),
            _ => return Ok(false),
        };
        let item = self.find(source, id, event.output_index, draft)?;
        let index = index.unwrap_or_default();
        match step {
            "delta" => item.tell(source, index, event.delta.into_text(), draft),
            "done" => item.tell_rest(source, index, &whole.into_text(), draft),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// An item begins, or is done. All of it may already be there.
    fn item(
        &mut self,
        index: Option<u64>,
        item: Metadata,
        is_done: bool,
        draft: &mut Draft,
    ) -> Result<()> {
        let kind = text_of(&item, "type");
        let id = ["id", "call_id"].map(|name| text_of(&item, name));
        let id = id.into_iter().find(|id| !id.is_empty()).unwrap_or_default();
        let begun = |known: &Item| !known.is_done && (known.id.is_empty() || known.id == id);
        let is_it = |known: &Item| known.kind.is(kind) && (is_done || begun(known));
        let found = self.position(id, index).filter(|found| is_it(&self.items[*found]));
        let found = match found {
            Some(found) => found,
            None => {
                if let ("message", Some(Value::String(phase))) = (kind, item.get("phase")) {
                    draft.opaque(&None, json!({"type": "message", "phase": phase}));
                }
                self.open(Kind::of(kind, draft), id, index)?
            }
        };
        let known = &mut self.items[found];
        if !known.is_done {
            known.read(&item, draft);
            if is_done {
                known.close(item, draft);
            }
        }
        Ok(())
    }

    /// The item that a text belongs to. Servers may leave away to say which, and to say that it begins.
    fn find(
        &mut self,
        source: Source,
        id: &str,
        index: Option<u64>,
        draft: &mut Draft,
    ) -> Result<&mut Item> {
        let kind = source.item();
        let found = match self.position(id, index) {
            None if id.is_empty() && index.is_none() => self.items.len().checked_sub(1),
            found => found,
        };
        let found = match found.filter(|found| self.items[*found].kind.is(kind)) {
            Some(found) => found,
            None => self.open(Kind::of(kind, draft), id, index)?,
        };
        Ok(&mut self.items[found])
    }

    /// By id first, for gateways number items alike; then by place, for others change the ids on the way.
    fn position(&self, id: &str, index: Option<u64>) -> Option<usize> {
        let by_id = || self.items.iter().rposition(|item| !id.is_empty() && item.id == id);
        let by_index =
            || self.items.iter().rposition(|item| index.is_some() && item.index == index);
        by_id().or_else(by_index)
    }

    fn open(&mut self, kind: Kind, id: &str, index: Option<u64>) -> Result<usize> {
        let place = self.items.len();
        if place == MAX_ITEMS {
            return Err(failure::malformed(format!("more than {MAX_ITEMS} items")));
        }
        self.items.push(Item {
            id: id.to_owned(),
            index,
            kind,
            block: Some(Arc::from(place.to_string())),
            pieces: Vec::new(),
            has_reasoned: false,
            is_done: false,
        });
        Ok(place)
    }

    /// The answer has ended, one way or another. What was never told of it is told now.
    fn end(&mut self, reply: Reply<'_>, ended: &str, draft: &mut Draft) -> Result<()> {
        let status = if reply.status.text().is_empty() { ended } else { reply.status.text() };
        if reply.error != Loose::Null {
            return Err(failure::in_stream(&json!({"error": reply.error.into_value()})));
        }
        if matches!(status, "failed" | "cancelled") {
            let why = format!("the provider gave the answer up: {status}");
            return Err(Error::adapter(AdapterReason::ProviderUnavailable).with_message(why));
        }
        draft.start(Some(reply.id.text()), Some(reply.model.text()));
        for (index, item) in reply.output.into_objects().enumerate() {
            self.item(Some(index as u64), item, true, draft)?;
        }
        for item in self.items.iter_mut().filter(|item| !item.is_done) {
            item.close(Metadata::new(), draft);
        }
        let details = reply.incomplete_details.into_object().unwrap_or_default();
        match (status, text_of(&details, "reason")) {
            ("completed", _) => draft.finish(FinishReason::Stop, None),
            ("incomplete", reason @ ("max_output_tokens" | "max_tokens")) => {
                draft.finish(FinishReason::Length, Some(reason))
            }
            ("incomplete", "content_filter") => {
                draft.finish(FinishReason::ContentFilter, Some("content_filter"))
            }
            ("incomplete", "") => draft.finish(FinishReason::Other, Some("incomplete")),
            ("incomplete", reason) => draft.finish(FinishReason::Other, Some(reason)),
            // It goes on without us: the provider does it in the background.
            ("queued" | "in_progress", _) => {}
            (status, _) => draft.finish(FinishReason::Other, Some(status)),
        }
        if let Some(counters) = reply.usage.into_object() {
            let tools = reply.tool_usage.into_object().unwrap_or_default();
            draft.usage(usage(counters, tools));
        }
        let notes = [
            ("incomplete_details", details),
            ("reasoning", reply.reasoning.into_object().unwrap_or_default()),
        ];
        for (name, said) in notes {
            let said = telling(said);
            if !said.is_empty() {
                draft.note(name, said);
            }
        }
        if !reply.service_tier.text().is_empty() {
            draft.note("service_tier", reply.service_tier.text());
        }
        let unknown = telling(reply.unknown);
        if !unknown.is_empty() {
            draft.raw(tagged("response", unknown));
        }
        draft.end();
        Ok(())
    }
}

impl Item {
    /// Takes what an item holds so far.
    fn read(&mut self, item: &Metadata, draft: &mut Draft) {
        if let Kind::Call(key) = self.kind {
            draft.call(key, text_of(item, "call_id"), text_of(item, "name"));
            match item.get("arguments") {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => self.tell_rest(Source::Arguments, 0, text, draft),
                Some(other) => self.tell_rest(Source::Arguments, 0, &other.to_string(), draft),
            }
        }
        if !matches!(self.kind, Kind::Message | Kind::Reasoning) {
            return;
        }
        for list in ["summary", "content"] {
            let parts = item.get(list).and_then(Value::as_array).into_iter().flatten();
            for (index, part) in parts.filter_map(Value::as_object).enumerate() {
                match part_source(part) {
                    Some(source) => self.part(source, index as u64, part, draft),
                    None => draft.raw(Value::Object(part.clone())),
                }
            }
        }
    }

    fn part(&mut self, source: Source, index: u64, part: &Metadata, draft: &mut Draft) {
        let text = if source == Source::Refusal { "refusal" } else { "text" };
        self.tell_rest(source, index, text_of(part, text), draft);
        let annotations = part.get("annotations").and_then(Value::as_array);
        if let Some(annotations) = annotations.filter(|list| !list.is_empty())
            && self.annotate(index)
        {
            draft.raw(json!({"type": "annotations", "annotations": annotations}));
        }
    }

    /// Notes that the annotations of a text are told; false if they were already.
    fn annotate(&mut self, index: u64) -> bool {
        let place = self.place(Source::Text, index);
        !std::mem::replace(&mut self.pieces[place].annotated, true)
    }

    fn tell(&mut self, source: Source, index: u64, delta: String, draft: &mut Draft) {
        if delta.is_empty() {
            return;
        }
        let place = self.place(source, index);
        let piece = &mut self.pieces[place];
        let begins = piece.told == 0;
        piece.told += delta.len();
        match (source, self.kind) {
            (Source::Text, _) => draft.text(&piece.block, delta),
            (Source::Refusal, _) => draft.refusal(&delta),
            (Source::Summary | Source::Thought, _) => {
                if begins && std::mem::replace(&mut self.has_reasoned, true) {
                    draft.reasoning(&self.block, "\n\n");
                }
                draft.reasoning(&self.block, delta);
            }
            (Source::Arguments, Kind::Call(key)) => draft.arguments(key, &delta),
            (Source::Arguments, _) => {}
        }
    }

    /// Takes a whole text, of which the beginning was told.
    fn tell_rest(&mut self, source: Source, index: u64, whole: &str, draft: &mut Draft) {
        let place = self.place(source, index);
        let rest = whole.get(self.pieces[place].told..).unwrap_or_default();
        self.tell(source, index, rest.to_owned(), draft);
    }

    /// Where a text is. Beyond a number that no answer has, all are taken for the last one.
    fn place(&mut self, source: Source, index: u64) -> usize {
        let is_it = |piece: &Piece| piece.source == source && piece.index == index;
        match self.pieces.iter().rposition(is_it) {
            Some(place) => place,
            None if self.pieces.len() == MAX_ITEMS => MAX_ITEMS - 1,
            None => {
                let block = match (&self.block, source) {
                    (Some(item), Source::Text) => Some(Arc::from(format!("{item}.{index}"))),
                    _ => None,
                };
                self.pieces.push(Piece { source, index, block, told: 0, annotated: false });
                self.pieces.len() - 1
            }
        }
    }

    /// The item is done. `item` is what must go back, where there is anything.
    fn close(&mut self, mut item: Metadata, draft: &mut Draft) {
        self.is_done = true;
        match self.kind {
            Kind::Message => {
                for piece in &self.pieces {
                    draft.close_text(&piece.block);
                }
            }
            Kind::Reasoning => {
                let encrypted = match item.shift_remove("encrypted_content") {
                    Some(Value::String(text)) => Some(text),
                    _ => None,
                };
                let data = (!item.is_empty()).then(|| reasoning_data(item));
                draft.close_reasoning(&self.block, encrypted, data);
            }
            Kind::Call(key) => {
                if let Some(namespace) = item.shift_remove("namespace") {
                    draft.call_metadata(key, telling([("namespace".to_owned(), namespace)]));
                }
                draft.close_call(key);
            }
            Kind::Other if item.is_empty() => {}
            Kind::Other => {
                draft.raw(Value::Object(item.clone()));
                draft.opaque(&self.block, Value::Object(item));
            }
        }
    }
}

/// A reasoning item as it goes back: `summary` must be there, and neither a status nor what is empty.
fn reasoning_data(item: Metadata) -> Value {
    let mut data = telling(item);
    data.shift_remove("status");
    data.entry("summary").or_insert_with(|| json!([]));
    Value::Object(data)
}

fn part_source(part: &Metadata) -> Option<Source> {
    Some(match text_of(part, "type") {
        "output_text" | "text" => Source::Text,
        "refusal" => Source::Refusal,
        "summary_text" => Source::Summary,
        "reasoning_text" => Source::Thought,
        _ => return None,
    })
}

fn tagged(kind: &str, mut members: Metadata) -> Value {
    members.insert("type".to_owned(), kind.into());
    Value::Object(members)
}

fn usage(mut counters: Metadata, tool_usage: Metadata) -> Usage {
    let mut count = |path: &[&str]| take_count(&mut counters, path);
    Usage {
        input_tokens: count(&["input_tokens"]),
        output_tokens: count(&["output_tokens"]),
        total_tokens: count(&["total_tokens"]),
        cached_input_tokens: count(&["input_tokens_details", "cached_tokens"]),
        cache_write_tokens: count(&["input_tokens_details", "cache_write_tokens"]),
        reasoning_tokens: count(&["output_tokens_details", "reasoning_tokens"]),
        total_cost: counters.get("cost").and_then(Value::as_f64),
        tool_usage,
        extra: telling(counters),
        ..Usage::default()
    }
}
