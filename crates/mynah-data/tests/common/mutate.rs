//! Ways to break a JSON text.

use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

/// One way to break a JSON text.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    /// Puts another value in the place of a member or element.
    Replace(Index, Value),
    /// Leaves a member or element out.
    Remove(Index),
    /// Writes a member or element twice.
    Duplicate(Index),
    /// Gives a member another name.
    Rename(Index, String),
    /// Ends the text early.
    Truncate(Index),
    /// Flips a bit.
    Flip(Index, u8),
}

pub(crate) fn mutation() -> BoxedStrategy<Mutation> {
    let place = any::<Index>;
    let other = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        Just(json!(-1)),
        Just(json!(0.5)),
        Just(json!(u64::MAX)),
        Just(json!("")),
        Just(json!("text")),
        Just(json!([])),
        Just(json!(["text", "x"])),
        Just(json!({})),
        Just(json!({"type": "text", "text": "x"})),
    ];
    let name = prop_oneof![Just("type"), Just("x"), Just(""), Just("role"), Just("metadata")];
    prop_oneof![
        4 => (place(), other).prop_map(|(at, value)| Mutation::Replace(at, value)),
        2 => place().prop_map(Mutation::Remove),
        2 => place().prop_map(Mutation::Duplicate),
        1 => (place(), name).prop_map(|(at, name)| Mutation::Rename(at, name.to_owned())),
        1 => place().prop_map(Mutation::Truncate),
        2 => (place(), 0..8_u8).prop_map(|(at, bit)| Mutation::Flip(at, 1 << bit)),
    ]
    .boxed()
}

impl Mutation {
    /// The broken text, which may no longer be text.
    pub(crate) fn apply(&self, text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        match self {
            Self::Truncate(at) => bytes.truncate(at.index(bytes.len())),
            Self::Flip(at, bits) => {
                let at = at.index(bytes.len());
                bytes[at] ^= bits;
            }
            Self::Replace(at, _) | Self::Remove(at) | Self::Duplicate(at) | Self::Rename(at, _) => {
                let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let places = places(&value);
                if places == 0 {
                    return b"[]".to_vec();
                }
                let mut writer =
                    Writer { mutation: self, at: at.index(places), place: 0, out: String::new() };
                writer.write(&value);
                bytes = writer.out.into_bytes();
            }
        }
        bytes
    }
}

/// How many members and elements there are, at any depth.
fn places(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(|item| 1 + places(item)).sum(),
        Value::Object(map) => map.values().map(|item| 1 + places(item)).sum(),
        _ => 0,
    }
}

/// Writes a value out by hand: a map cannot hold the same member twice.
struct Writer<'a> {
    mutation: &'a Mutation,
    at: usize,
    place: usize,
    out: String,
}

impl Writer<'_> {
    fn write(&mut self, value: &Value) {
        match value {
            Value::Array(items) => {
                self.out.push('[');
                items.iter().for_each(|item| self.item(None, item));
                self.close(']');
            }
            Value::Object(map) => {
                self.out.push('{');
                map.iter().for_each(|(key, item)| self.item(Some(key), item));
                self.close('}');
            }
            scalar => self.out.push_str(&scalar.to_string()),
        }
    }

    fn item(&mut self, key: Option<&str>, item: &Value) {
        let hit = self.place == self.at;
        self.place += 1;
        match self.mutation {
            Mutation::Remove(_) if hit => self.place += places(item),
            Mutation::Replace(_, other) if hit => {
                self.place += places(item);
                self.entry(key, |writer| writer.out.push_str(&other.to_string()));
            }
            Mutation::Rename(_, name) if hit => {
                self.entry(key.map(|_| name.as_str()), |writer| writer.write(item))
            }
            Mutation::Duplicate(_) if hit => {
                self.entry(key, |writer| writer.out.push_str(&item.to_string()));
                self.entry(key, |writer| writer.write(item));
            }
            _ => self.entry(key, |writer| writer.write(item)),
        }
    }

    fn entry(&mut self, key: Option<&str>, write: impl FnOnce(&mut Self)) {
        if let Some(key) = key {
            self.out.push_str(&json!(key).to_string());
            self.out.push(':');
        }
        write(self);
        self.out.push(',');
    }

    fn close(&mut self, bracket: char) {
        if self.out.ends_with(',') {
            self.out.pop();
        }
        self.out.push(bracket);
    }
}
