//! Free-form JSON inside other values: `#[serde(with = "mynah_data::json")]`.
//!
//! Formats for people hold it as it is, nested. Others hold its text: the members keep the order in which they were written.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned},
    ser,
};

/// How deep JSON may nest whose text is read again.
const MAX_DEPTH: usize = 127;

/// Writes a value as it is, or as the text of its JSON.
///
/// # Errors
/// A value that has no JSON, or nests so deep that it could not be read again.
pub fn serialize<T: Serialize + ?Sized, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        return value.serialize(serializer);
    }
    serializer.serialize_str(&text_of(value)?)
}

/// Reads what [`serialize`] wrote.
///
/// # Errors
/// Text that is not JSON, or not of this type.
pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    if deserializer.is_human_readable() {
        return T::deserialize(deserializer);
    }
    deserializer.deserialize_str(TextVisitor(PhantomData))
}

/// The same for an optional member, where null differs from an absent one.
pub(crate) fn present<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    deserialize(deserializer).map(Some)
}

/// The same for a member that may be missing: `#[serde(default, with = "mynah_data::json::option")]`.
pub mod option {
    use super::{Deserialize, DeserializeOwned, Deserializer, Serialize, Serializer, text_of};

    /// Writes what is there as it is, or as the text of its JSON. Null is not there.
    ///
    /// # Errors
    /// As [`json::serialize`](super::serialize).
    pub fn serialize<T: Serialize, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) if !serializer.is_human_readable() => match text_of(value)?.as_str() {
                "null" => serializer.serialize_none(),
                text => serializer.serialize_str(text),
            },
            value => value.serialize(serializer),
        }
    }

    /// Reads what [`serialize`] wrote.
    ///
    /// # Errors
    /// As [`json::deserialize`](super::deserialize).
    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        match deserializer.is_human_readable() {
            true => Option::deserialize(deserializer),
            false => super::deserialize(deserializer).map(Some),
        }
    }
}

/// The same for a map: `#[serde(default, with = "mynah_data::json::members")]`. An empty map is
/// left out of compact formats.
pub mod members {
    use serde::Serializer;

    pub use super::deserialize;
    use crate::Metadata;

    /// Writes the members as they are, or as the text of their JSON.
    ///
    /// # Errors
    /// As [`json::serialize`](super::serialize).
    pub fn serialize<S: Serializer>(members: &Metadata, serializer: S) -> Result<S::Ok, S::Error> {
        match members.is_empty() && !serializer.is_human_readable() {
            true => serializer.serialize_none(),
            false => super::serialize(members, serializer),
        }
    }
}

/// A value as the member of a struct that is written by hand.
pub(crate) struct Json<'a, T: ?Sized>(pub(crate) &'a T);

impl<T: Serialize + ?Sized> Serialize for Json<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(self.0, serializer)
    }
}

fn text_of<T: Serialize + ?Sized, E: ser::Error>(value: &T) -> Result<String, E> {
    let text = serde_json::to_string(value).map_err(E::custom)?;
    match depth(&text) > MAX_DEPTH {
        true => Err(E::custom(format_args!("JSON that nests deeper than {MAX_DEPTH} levels"))),
        false => Ok(text),
    }
}

/// How deep JSON text nests.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_text, mut escaped) = (0_usize, 0, false, false);
    // An opening takes a byte, and so does its closing.
    if text.len() <= 2 * MAX_DEPTH {
        return 0;
    }
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth -= 1,
            _ => {}
        }
    }
    deepest
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: DeserializeOwned> de::Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the text of JSON")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        serde_json::from_str(text).map_err(E::custom)
    }
}
