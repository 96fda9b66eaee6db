//! JSON members whose type is not to be relied on.

use std::{borrow::Cow, fmt, marker::PhantomData};

use mynah_data::Metadata;
use serde::{
    Deserialize, Deserializer,
    de::{
        self,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::{Number, Value};

/// Text, borrowed where the JSON allows it, or whatever else stands in its place. Small, for it is moved a lot.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum Loose<'a> {
    #[default]
    Null,
    Flag(bool),
    Number(Number),
    Text(Cow<'a, str>),
    Json(Box<Value>),
}

impl Loose<'_> {
    /// The text; empty for anything else.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            _ => "",
        }
    }

    /// The text, or the JSON of anything else; empty for null.
    pub(crate) fn into_text(self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Text(text) => text.into_owned(),
            other => other.into_value().to_string(),
        }
    }

    /// The whole number, which may be written as text.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => whole(number),
            Self::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// Whether it says yes.
    pub(crate) fn is_true(&self) -> bool {
        matches!(self, Self::Flag(true)) || self.text().eq_ignore_ascii_case("true")
    }

    /// Whether it says that something went wrong: servers also write an error that is none.
    pub(crate) fn is_failure(&self) -> bool {
        match self {
            Self::Null | Self::Flag(false) => false,
            Self::Text(text) => !text.is_empty(),
            Self::Json(value) => tells(value),
            Self::Flag(true) | Self::Number(_) => true,
        }
    }

    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Flag(flag) => Value::Bool(flag),
            Self::Number(number) => Value::Number(number),
            Self::Text(text) => Value::String(text.into_owned()),
            Self::Json(value) => *value,
        }
    }

    /// The members of an object; nothing else has any.
    pub(crate) fn into_object(self) -> Option<Metadata> {
        match self {
            Self::Json(value) => into_object(*value),
            _ => None,
        }
    }

    /// The objects of a list, or the only one; nothing else counts.
    pub(crate) fn into_objects(self) -> impl Iterator<Item = Metadata> {
        let list = match self.into_value() {
            Value::Array(list) => list,
            only => vec![only],
        };
        list.into_iter().filter_map(into_object)
    }
}

/// A number without a fraction, however it is written.
fn whole(number: &Number) -> Option<u64> {
    let rounded = || number.as_f64().filter(|float| *float >= 0.0 && float.fract() == 0.0);
    number.as_u64().or_else(|| rounded().map(|float| float as u64))
}

fn into_object(value: Value) -> Option<Metadata> {
    match value {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Loose<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor)
    }
}

struct LooseVisitor;

impl<'de> de::Visitor<'de> for LooseVisitor {
    type Value = Loose<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Loose::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Loose::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Loose::Text(Cow::Owned(text)))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Loose::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Self::Value, E> {
        Ok(Loose::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Loose::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Loose::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(number).map_or(Loose::Null, Loose::Number))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list))
            .map(|value| Loose::Json(Box::new(value)))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Value::deserialize(MapAccessDeserializer::new(map))
            .map(|value| Loose::Json(Box::new(value)))
    }
}

/// A list, an only element that stands without one, or nothing.
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

macro_rules! nothing_else {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> Result<Self::Value, E> {
            Ok(List::default())
        })*
    };
}

impl<'de, T: Deserialize<'de>> de::Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(List)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|only| List(vec![only]))
    }

    nothing_else!(visit_str: &str, visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64);

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(List::default())
    }
}

/// A struct whose members may all be missing, and that keeps what it does not know in `unknown`: also what stands in its
/// place and is no object.
///
/// What `flatten` would do at several times the cost, for members that are there in every piece of a stream.
macro_rules! members {
    ($(#[$doc:meta])* $name:ident<$json:lifetime> {
        $($(#[$member_doc:meta])* $member:ident: $type:ty = $key:literal,)*
    } ignoring [$($ignored:literal),*]) => {
        $(#[$doc])*
        #[derive(Default)]
        struct $name<$json> {
            $($(#[$member_doc])* $member: $type,)*
            unknown: Vec<(String, Value)>,
        }

        impl<$json> $crate::loose::Members<$json> for $name<$json> {
            fn read<A: serde::de::MapAccess<$json>>(mut map: A) -> Result<Self, A::Error> {
                let mut value = Self::default();
                while let Some(key) = map.next_key::<Loose<'_>>()? {
                    match key.text() {
                        $($key => value.$member = map.next_value()?,)*
                        $($ignored => drop(map.next_value::<serde::de::IgnoredAny>()?),)*
                        unknown => {
                            value.unknown.push((unknown.to_owned(), map.next_value()?));
                        }
                    }
                }
                Ok(value)
            }

            fn stray(value: Value) -> Self {
                Self { unknown: vec![("value".to_owned(), value)], ..Self::default() }
            }
        }

        impl<$json> serde::Deserialize<$json> for $name<$json> {
            fn deserialize<D: serde::Deserializer<$json>>(json: D) -> Result<Self, D::Error> {
                json.deserialize_any($crate::loose::MembersVisitor(std::marker::PhantomData))
            }
        }
    };
}
pub(crate) use members;

/// What [`members!`] makes.
pub(crate) trait Members<'de>: Sized {
    fn read<A: de::MapAccess<'de>>(map: A) -> Result<Self, A::Error>;

    /// What is no object.
    fn stray(value: Value) -> Self;
}

pub(crate) struct MembersVisitor<T>(pub(crate) PhantomData<T>);

impl<'de, T: Members<'de>> de::Visitor<'de> for MembersVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::read(map)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list)).map(T::stray)
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::stray(text.into()))
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::stray(Value::Null))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<T, E> {
        Ok(T::stray(flag.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<T, E> {
        Ok(T::stray(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<T, E> {
        Ok(T::stray(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<T, E> {
        Ok(T::stray(number.into()))
    }
}

/// Leaves away what says nothing: null, and empty text, lists and objects.
pub(crate) fn telling(members: impl IntoIterator<Item = (String, Value)>) -> Metadata {
    members.into_iter().filter(|(_, value)| tells(value)).collect()
}

pub(crate) fn tells(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

/// The most counters of an answer: what a server makes up anew each time is not kept.
const MAX_COUNTERS: usize = 100;

/// Puts newer counters over those that are known.
pub(crate) fn overlay(known: &mut Metadata, counters: Metadata) {
    for (name, count) in counters.into_iter().filter(|(_, count)| !count.is_null()) {
        if known.len() < MAX_COUNTERS || known.contains_key(&name) {
            known.insert(name, count);
        }
    }
}

/// A member's text; empty where it has none.
pub(crate) fn text_of<'m>(map: &'m Metadata, name: &str) -> &'m str {
    map.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Takes a counter out of a map, by the way to it.
pub(crate) fn take_count(map: &mut Metadata, path: &[&str]) -> Option<u64> {
    match path {
        [] => None,
        [name] => {
            let count = match map.get(*name)? {
                Value::Number(number) => whole(number)?,
                Value::String(text) => text.trim().parse().ok()?,
                _ => return None,
            };
            map.shift_remove(*name);
            Some(count)
        }
        [name, rest @ ..] => {
            let inner = map.get_mut(*name)?.as_object_mut()?;
            let count = take_count(inner, rest);
            if inner.is_empty() {
                map.shift_remove(*name);
            }
            count
        }
    }
}
