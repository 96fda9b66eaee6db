//! The arguments of a call that come in pieces: values, each with the path to its place.

use mynah_data::Metadata;
use serde_json::{Map, Value};

/// How deep a piece may stand.
const MAX_DEPTH: usize = 64;

/// Merges a piece into its place, text after the existing text; none if that is impossible.
pub(super) fn put(arguments: &mut Value, piece: &Metadata) -> Option<()> {
    let place = place(arguments, piece.get("jsonPath")?.as_str()?)?;
    let value = ["numberValue", "boolValue"].iter().find_map(|name| piece.get(*name));
    match (place, piece.get("stringValue").and_then(Value::as_str)) {
        (Value::String(text), Some(more)) => text.push_str(more),
        (place, Some(text)) => *place = text.into(),
        (place, None) => *place = value.cloned().unwrap_or_default(),
    }
    Some(())
}

/// Goes along a path such as `$.foo.bar[0].data`, and makes what is missing of it.
fn place<'a>(arguments: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut rest = path.strip_prefix('$')?;
    let mut place = arguments;
    for _ in 0..MAX_DEPTH {
        if rest.is_empty() {
            return Some(place);
        }
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            place = member(place, &after[..end])?;
            rest = &after[end..];
        } else {
            let after = rest.strip_prefix('[')?;
            let quote = after.chars().next().filter(|c| matches!(c, '\'' | '"'));
            let inner = quote.map_or(after, |_| &after[1..]);
            let close = quote.map_or_else(|| "]".to_owned(), |quote| format!("{quote}]"));
            let (name, after) = inner.split_once(close.as_str())?;
            place = match quote {
                Some(_) => member(place, name)?,
                None => element(place, name.parse().ok()?)?,
            };
            rest = after;
        }
    }
    None
}

fn member<'a>(place: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    if place.is_null() {
        *place = Value::Object(Map::new());
    }
    Some(place.as_object_mut()?.entry(name).or_insert(Value::Null))
}

/// Lists grow one by one.
fn element(place: &mut Value, index: usize) -> Option<&mut Value> {
    if place.is_null() {
        *place = Value::Array(Vec::new());
    }
    let list = place.as_array_mut()?;
    if index == list.len() {
        list.push(Value::Null);
    }
    list.get_mut(index)
}
