//! The items of an answer: messages, reasoning, calls, and what the provider did itself.
//!
//! An item comes in pieces, then whole when it is done, and again with the end of the answer.
//! Servers leave out some of that. Only data that was not emitted yet is emitted.

use std::sync::Arc;

use mynah_data::{Metadata, Result};
use serde_json::{Value, json};

use super::request::{ITEM, KEPT, OTHER_CALLS};
use crate::{
    draft::{Block, CallKey, Draft},
    failure,
    json::Json,
    loose::{Members, Written, telling, tells, text_of},
};

/// The most items of an answer. Each event looks for its own.
const MAX_ITEMS: usize = 4_096;

/// The data of a message or a call.
const OF_MESSAGES: [&str; 6] = ["content", "id", "phase", "role", "status", "type"];
const OF_CALLS: [&str; 6] = ["arguments", "call_id", "id", "name", "status", "type"];

/// The most texts of an item.
const MAX_PIECES: usize = 1_000;

/// The items so far.
#[derive(Default)]
pub(super) struct Items(Vec<Item>);

impl Items {
    /// An item begins, or is done. All of it may already be there.
    pub(super) fn item(
        &mut self,
        item: WireItem<'_>,
        index: Option<u64>,
        is_done: bool,
        draft: &mut Draft,
    ) -> Result<()> {
        let (kind, id) = (text_of(&item.members, "type"), item_id(&item.members));
        let begun = |known: &Item| !known.is_done && (known.id.is_empty() || known.id == id);
        let is_it = |known: &Item| known.kind.is(kind) && (is_done || begun(known));
        let found = self.position(id, index).filter(|found| is_it(&self.0[*found]));
        let found = match found {
            Some(found) => found,
            None => self.begin(&item.members, index, draft)?,
        };
        self.0[found].read(item, is_done, draft);
        Ok(())
    }

    /// All items, as the end of the answer lists them. Emitted ones are in the same order,
    /// regardless of their ids. None is continued.
    pub(super) fn list(&mut self, items: Vec<WireItem<'_>>, draft: &mut Draft) -> Result<()> {
        for item in items.into_iter().filter(|item| !item.members.is_empty()) {
            let (kind, id) = (text_of(&item.members, "type"), item_id(&item.members));
            let is_left = |known: &Item| known.kind.is(kind) && !known.is_listed;
            let named = self.position(id, None).filter(|found| is_left(&self.0[*found]));
            let find = |is: &dyn Fn(&Item) -> bool| {
                self.0.iter().position(|known| is_left(known) && is(known))
            };
            let found = named.or_else(|| match text_of(&item.members, "call_id") {
                // Some servers announce what never comes.
                "" => find(&Item::is_told),
                call => find(&|known| known.call_id == call),
            });
            let found = match found.or_else(|| find(&|_| true)) {
                Some(found) => found,
                None => self.begin(&item.members, None, draft)?,
            };
            self.0[found].is_listed = true;
            self.0[found].read(item, true, draft);
        }
        for item in self.0.iter_mut().filter(|item| !item.is_done) {
            item.close(Metadata::new(), draft);
        }
        Ok(())
    }

    fn begin(&mut self, item: &Metadata, index: Option<u64>, draft: &mut Draft) -> Result<usize> {
        let kind = text_of(item, "type");
        if let ("message", Some(Value::String(phase))) = (kind, item.get("phase")) {
            draft.opaque(&None, json!({"type": "message", "phase": phase}));
        }
        self.open(Kind::of(kind, draft), item_id(item), index)
    }

    /// The item that a text belongs to. Servers may leave out its id, and its start.
    pub(super) fn find(
        &mut self,
        source: Source,
        id: &str,
        index: Option<u64>,
        draft: &mut Draft,
    ) -> Result<&mut Item> {
        let kind = source.item();
        let found = match self.position(id, index) {
            None if id.is_empty() && index.is_none() => self.0.len().checked_sub(1),
            found => found,
        };
        let found = match found.filter(|found| self.0[*found].kind.is(kind)) {
            Some(found) => found,
            None => self.open(Kind::of(kind, draft), id, index)?,
        };
        Ok(&mut self.0[found])
    }

    /// By id first, for gateways number items alike; then by place, for others change the ids on the way.
    fn position(&self, id: &str, index: Option<u64>) -> Option<usize> {
        let by_id = || self.0.iter().rposition(|item| !id.is_empty() && item.id == id);
        let by_index = || self.0.iter().rposition(|item| index.is_some() && item.index == index);
        by_id().or_else(by_index)
    }

    fn open(&mut self, kind: Kind, id: &str, index: Option<u64>) -> Result<usize> {
        let place = self.0.len();
        if place == MAX_ITEMS {
            return Err(failure::malformed(format!("more than {MAX_ITEMS} items")));
        }
        self.0.push(Item {
            id: id.to_owned(),
            call_id: String::new(),
            index,
            kind,
            block: Some(Arc::from(place.to_string())),
            pieces: Vec::new(),
            has_reasoned: false,
            is_done: false,
            is_listed: false,
        });
        Ok(place)
    }
}

/// An item as a server writes it.
#[derive(Default)]
pub(super) struct WireItem<'a> {
    members: Metadata,
    /// The arguments of a call. Some servers do not send them as text; then `members` are only
    /// their meaning.
    arguments: Written<'a>,
}

impl<'a> Members<'a> for WireItem<'a> {
    fn member(&mut self, name: &str, json: &mut Json<'a>) -> serde_json::Result<()> {
        let value = if name == "arguments" {
            let written = json.skip()?;
            self.arguments = Written::from_json(written)?;
            serde_json::from_str(written).unwrap_or_default()
        } else {
            json.value()?
        };
        self.members.insert(name.to_owned(), value);
        Ok(())
    }

    fn stray(&mut self, _: Value) {}
}

/// One of them.
pub(super) struct Item {
    id: String,
    call_id: String,
    index: Option<u64>,
    kind: Kind,
    block: Block,
    pieces: Vec<Piece>,
    has_reasoned: bool,
    is_done: bool,
    /// Whether the end of the answer listed it.
    is_listed: bool,
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
            name if is_call(name) => Self::Call(draft.open_call()),
            _ => {
                draft.commit();
                Self::Other
            }
        }
    }

    fn is(self, name: &str) -> bool {
        match self {
            Self::Message => name == "message",
            Self::Reasoning => name == "reasoning",
            Self::Call(_) => is_call(name),
            Self::Other => !matches!(name, "message" | "reasoning") && !is_call(name),
        }
    }
}

/// Whether the caller must answer items of this type.
fn is_call(name: &str) -> bool {
    name == "function_call" || OTHER_CALLS.contains(&name)
}

/// A text inside of an item.
struct Piece {
    source: Source,
    index: u64,
    block: Block,
    told: String,
    /// Whether it was emitted whole.
    is_whole: bool,
    annotated: bool,
}

/// The texts of one kind that were emitted before a list came, and how far the list has matched
/// them.
struct EmittedTexts {
    source: Source,
    text: String,
    at: usize,
}

/// What a text is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Source {
    Text,
    Refusal,
    Summary,
    Thought,
    Arguments,
}

impl Source {
    /// What a part of an item's content is.
    pub(super) fn of(part: &Metadata) -> Option<Self> {
        Some(match text_of(part, "type") {
            "output_text" | "text" => Self::Text,
            "refusal" => Self::Refusal,
            "summary_text" => Self::Summary,
            "reasoning_text" => Self::Thought,
            _ => return None,
        })
    }

    /// The text of a part that is this.
    fn text(self, part: &Metadata) -> &str {
        text_of(part, if self == Self::Refusal { "refusal" } else { "text" })
    }

    /// The type of the items that have it.
    fn item(self) -> &'static str {
        match self {
            Self::Text | Self::Refusal => "message",
            Self::Summary | Self::Thought => "reasoning",
            Self::Arguments => "function_call",
        }
    }
}

impl Item {
    /// Takes what an item holds so far.
    fn read(&mut self, item: WireItem<'_>, is_done: bool, draft: &mut Draft) {
        // A second start adds nothing.
        if self.is_done || (!is_done && self.is_told()) {
            return;
        }
        let WireItem { members: item, arguments } = item;
        match self.kind {
            Kind::Call(key) => {
                text_of(&item, "call_id").clone_into(&mut self.call_id);
                draft.call(key, &self.call_id, call_name(&item));
                self.tell_rest(Source::Arguments, 0, &arguments.0, draft);
            }
            Kind::Message => self.parts(&item, "content", draft),
            Kind::Reasoning => {
                self.parts(&item, "summary", draft);
                self.parts(&item, "content", draft);
            }
            Kind::Other => {}
        }
        if is_done {
            self.close(item, draft);
        }
    }

    fn parts(&mut self, item: &Metadata, list: &str, draft: &mut Draft) {
        if let (Kind::Message, Some(Value::String(text))) = (self.kind, item.get(list)) {
            self.tell_rest(Source::Text, 0, text, draft);
        }
        let parts = item.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut told: Vec<EmittedTexts> = Vec::new();
        for Piece { source, told: text, .. } in &self.pieces {
            match told.iter_mut().find(|told| told.source == *source) {
                Some(told) => told.text.push_str(text),
                None => told.push(EmittedTexts { source: *source, text: text.clone(), at: 0 }),
            }
        }
        for (index, part) in parts.iter().filter_map(Value::as_object).enumerate() {
            let Some(source) = Source::of(part) else {
                draft.raw(Value::Object(part.clone()));
                continue;
            };
            let is_left =
                |told: &&mut EmittedTexts| told.source == source && told.at < told.text.len();
            match told.iter_mut().find(is_left) {
                Some(told) => {
                    told.at += self.listed(index as u64, part, parts.len() as u64, told, draft);
                }
                None => {
                    self.place(source, index as u64);
                    self.part(source, index as u64, part, draft);
                }
            }
        }
    }

    /// Reads a part at this place of a list of this length, if emitted texts are left to be
    /// matched. Some servers do not number texts by their places, so their order counts. Returns
    /// how much of them this was.
    fn listed(
        &mut self,
        place: u64,
        part: &Metadata,
        parts: u64,
        told: &EmittedTexts,
        draft: &mut Draft,
    ) -> usize {
        let (source, left) = (told.source, &told.text[told.at..]);
        let text = source.text(part);
        let mut found = 0;
        if left.starts_with(text) {
            found = text.len();
        } else if let (Some(rest), Some(last)) = (text.strip_prefix(left), self.last(source)) {
            found = left.len();
            self.tell(source, self.pieces[last].index, rest.to_owned(), draft);
        } else if let Some(rest) = self.misnumbered(told, parts) {
            // Rewritten text: emitted words stay.
            found = rest;
        } else {
            let known = self.place(source, place);
            if left.starts_with(&self.pieces[known].told) {
                found = self.pieces[known].told.len();
            }
            self.tell_rest(source, place, text, draft);
        }
        self.beside(place, part, draft);
        found
    }

    /// How much is left of the text where a list of so many stands, if that text has a number that none of the list has.
    fn misnumbered(&self, told: &EmittedTexts, parts: u64) -> Option<usize> {
        let mut end = 0;
        let mut pieces = self.pieces.iter().filter(|piece| piece.source == told.source);
        let piece = pieces.find(|piece| {
            end += piece.told.len();
            end > told.at
        });
        piece.filter(|piece| piece.index >= parts).map(|_| end - told.at)
    }

    /// Takes a part of the item's content, with what it holds so far.
    pub(super) fn part(&mut self, source: Source, index: u64, part: &Metadata, draft: &mut Draft) {
        // Some servers stream a thought as one type and list it as another.
        let was_told = |piece: &Piece| piece.source == source && !piece.told.is_empty();
        if self.has_reasoned && !self.pieces.iter().any(was_told) {
            return;
        }
        self.tell_rest(source, index, source.text(part), draft);
        self.beside(index, part, draft);
    }

    /// Emits the members beside the text of a part.
    fn beside(&mut self, index: u64, part: &Metadata, draft: &mut Draft) {
        let rest = part.iter().filter(|(name, value)| {
            tells(value) && !matches!(name.as_str(), "type" | "text" | "refusal")
        });
        let rest: Metadata = rest.map(|(name, value)| (name.clone(), value.clone())).collect();
        if !rest.is_empty() && self.annotate(index) {
            draft.raw_rest("annotations", rest);
        }
    }

    /// Marks the annotations and other members of a text as emitted; false if they were already.
    pub(super) fn annotate(&mut self, index: u64) -> bool {
        let place = self.place(Source::Text, index);
        !std::mem::replace(&mut self.pieces[place].annotated, true)
    }

    /// Takes a piece of a text.
    pub(super) fn tell(&mut self, source: Source, index: u64, delta: String, draft: &mut Draft) {
        if delta.is_empty() {
            return;
        }
        // A number that was not announced is no other text: some servers count every piece.
        let place = self.find(source, index).or_else(|| self.last(source));
        let place = place.unwrap_or_else(|| self.place(source, index));
        let piece = &mut self.pieces[place];
        let begins = piece.told.is_empty();
        piece.told.push_str(&delta);
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

    /// Reads a whole text whose beginning was emitted. Some servers rewrite it: emitted words stay,
    /// and for arguments the last version counts.
    pub(super) fn tell_rest(&mut self, source: Source, index: u64, whole: &str, draft: &mut Draft) {
        let is_it = |piece: &Piece| {
            !piece.is_whole || whole.starts_with(&piece.told) || piece.told.ends_with(whole)
        };
        let place = match (self.find(source, index), self.last(source)) {
            (None, Some(last)) if !whole.is_empty() && is_it(&self.pieces[last]) => last,
            _ => self.place(source, index),
        };
        let Piece { told, index, is_whole, .. } = &mut self.pieces[place];
        *is_whole |= !whole.is_empty();
        match (whole.strip_prefix(told.as_str()), self.kind) {
            (Some(rest), _) => {
                let index = *index;
                self.tell(source, index, rest.to_owned(), draft);
            }
            (None, Kind::Call(key)) if !whole.is_empty() => draft.rewrite_arguments(key, whole),
            _ => {}
        }
    }

    fn find(&self, source: Source, index: u64) -> Option<usize> {
        self.pieces.iter().rposition(|piece| piece.source == source && piece.index == index)
    }

    fn last(&self, source: Source) -> Option<usize> {
        self.pieces.iter().rposition(|piece| piece.source == source)
    }

    /// Whether any of it was emitted.
    fn is_told(&self) -> bool {
        self.is_done || self.pieces.iter().any(|piece| !piece.told.is_empty())
    }

    /// Where a text is. Beyond a number that no answer has, all are taken for the last one.
    fn place(&mut self, source: Source, index: u64) -> usize {
        match self.find(source, index) {
            Some(place) => place,
            None if self.pieces.len() == MAX_PIECES => MAX_PIECES - 1,
            None => {
                let block = match (&self.block, source) {
                    (Some(item), Source::Text) => Some(Arc::from(format!("{item}.{index}"))),
                    _ => None,
                };
                self.pieces.push(Piece {
                    source,
                    index,
                    block,
                    told: String::new(),
                    is_whole: false,
                    annotated: false,
                });
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
                item.retain(|name, _| !OF_MESSAGES.contains(&name.as_str()));
                draft.raw_rest("message", item);
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
                let other = OTHER_CALLS.contains(&text_of(&item, "type")).then(|| item.clone());
                for name in KEPT {
                    let kept = item.shift_remove(name).filter(|kept| kept["type"] != "direct");
                    draft.call_metadata(key, telling(kept.map(|kept| (name.to_owned(), kept))));
                }
                if let Some(other) = other {
                    draft.arguments(key, &members(&other));
                    let whole = (ITEM.to_owned(), Value::Object(other));
                    draft.call_metadata(key, Metadata::from_iter([whole]));
                    item.clear();
                }
                draft.close_call(key);
                item.retain(|name, _| !OF_CALLS.contains(&name.as_str()));
                draft.raw_rest("function_call", item);
            }
            Kind::Other if item.is_empty() => {}
            Kind::Other => {
                draft.raw(Value::Object(item.clone()));
                draft.opaque(&self.block, Value::Object(item));
            }
        }
    }
}

fn item_id(item: &Metadata) -> &str {
    let ids = ["id", "call_id"].map(|name| text_of(item, name));
    ids.into_iter().find(|id| !id.is_empty()).unwrap_or_default()
}

/// The name of the tool that is called: the provider's own have that of their type.
fn call_name(item: &Metadata) -> &str {
    let kind = text_of(item, "type");
    match text_of(item, "name") {
        "" if OTHER_CALLS.contains(&kind) => kind.trim_end_matches("_call"),
        name => name,
    }
}

/// What a call holds that is no function's, as the arguments of one. What was cut off is no JSON.
fn members(call: &Metadata) -> String {
    const BESIDE: [&str; 8] =
        ["call_id", "caller", "created_by", "id", "name", "namespace", "status", "type"];
    let held = call.iter().filter(|(name, _)| !BESIDE.contains(&name.as_str()));
    let held: Metadata = held.map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut text = Value::Object(held).to_string();
    if text_of(call, "status") == "incomplete" {
        text.pop();
    }
    text
}

/// A reasoning item as it goes back: `summary` must be there, and neither a status nor what is empty.
fn reasoning_data(item: Metadata) -> Value {
    let mut data = telling(item);
    data.shift_remove("status");
    data.entry("summary").or_insert_with(|| json!([]));
    Value::Object(data)
}
