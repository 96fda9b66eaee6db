//! What is one provider's alone. Signatures and encrypted items mean something to the provider that gave them, and make others
//! refuse the call; so do most options.

use std::sync::Arc;

use mynah_data::{Event, Message, Metadata, Part, Request, Role};
use serde_json::{Value, json};

use crate::presets::Preset;

const PROVIDER: &str = "provider";

/// Writes the provider beside what only it can read.
pub(super) fn mark(provider: &str, mut event: Event) -> Event {
    match &mut event {
        Event::ReasoningCompleted { signature, data, .. }
            if signature.is_some() || data.is_some() =>
        {
            match data {
                None => *data = Some(json!({PROVIDER: provider})),
                Some(Value::Object(kept)) => {
                    kept.insert(PROVIDER.to_owned(), provider.into());
                }
                // One provider alone withholds text so, and the others pass it by.
                Some(_) => {}
            }
        }
        Event::ToolCallCompleted(call) if !call.metadata.is_empty() => {
            Arc::make_mut(call).metadata.insert(PROVIDER.to_owned(), provider.into());
        }
        _ => {}
    }
    event
}

/// Leaves of a request's options what is for this adapter, or for all: what stands under the name of a preset is for that one.
pub(super) fn own_options(adapter: &str, options: &mut Metadata) {
    let own = options.get_mut(adapter).and_then(Value::as_object_mut).map(std::mem::take);
    let is_for_one = |name: &str| name == adapter || Preset::named(name).is_some();
    options.retain(|name, value| !(value.is_object() && is_for_one(name)));
    options.extend(own.unwrap_or_default());
}

/// Leaves of the conversation what this provider can read: of another's reasoning the words alone. What bears no mark is
/// taken for its own.
pub(super) fn only_own(provider: &str, request: &mut Request) {
    if request.messages.iter().any(|message| is_marked(message)) {
        let messages = request.messages.iter().map(|message| match is_marked(message) {
            true => Arc::new(unmarked(provider, message)),
            false => Arc::clone(message),
        });
        request.messages = messages.collect();
    }
}

fn is_marked(message: &Message) -> bool {
    message.role() == Role::Assistant
        && message.parts().iter().any(|part| match part {
            Part::Reasoning { data: Some(data), .. } => data.get(PROVIDER).is_some(),
            Part::ToolCall(call) => call.metadata.contains_key(PROVIDER),
            _ => false,
        })
}

fn unmarked(provider: &str, message: &Message) -> Message {
    let parts = message.parts().iter().filter_map(|part| own_part(provider, part.clone()));
    let mut own = Message::assistant_parts(parts);
    if let Some(name) = message.name() {
        own = own.with_name(name);
    }
    message.metadata().iter().fold(own, |own, (name, value)| own.with_metadata(name, value.clone()))
}

fn own_part(provider: &str, mut part: Part) -> Option<Part> {
    match &mut part {
        Part::Reasoning { text, signature, redacted, data } => {
            let Some(Value::Object(kept)) = data else { return Some(part) };
            let Some(origin) = kept.shift_remove(PROVIDER) else { return Some(part) };
            let is_bare = kept.is_empty();
            if origin != provider {
                (*signature, *redacted, *data) = (None, false, None);
                if text.is_empty() {
                    return None;
                }
            } else if is_bare {
                *data = None;
            }
        }
        Part::ToolCall(call) if call.metadata.contains_key(PROVIDER) => {
            let metadata = &mut Arc::make_mut(call).metadata;
            let origin = metadata.shift_remove(PROVIDER);
            if origin.is_some_and(|origin| origin != provider) {
                metadata.clear();
            }
        }
        _ => {}
    }
    Some(part)
}
