//! JSON members whose type is not to be relied on.

use std::{borrow::Cow, fmt};

use mynah_data::Metadata;
use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeSeed,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};

use crate::failure;
use serde_json::{Number, Value, value::RawValue};

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
        let list = match self {
            Self::Json(value) => match *value {
                Value::Array(list) => list,
                only => vec![only],
            },
            _ => Vec::new(),
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

impl<'de> Place<'de> for Loose<'de> {
    fn put<D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(LooseVisitor(self))
    }
}

/// Null is nothing.
impl<'de> Place<'de> for Option<Loose<'de>> {
    fn put<D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        let mut read = Loose::Null;
        read.put(json)?;
        *self = (read != Loose::Null).then_some(read);
        Ok(())
    }
}

struct LooseVisitor<'p, 'a>(&'p mut Loose<'a>);

impl<'a> LooseVisitor<'_, 'a> {
    fn is<E>(self, read: Loose<'a>) -> Result<(), E> {
        *self.0 = read;
        Ok(())
    }
}

impl<'de> de::Visitor<'de> for LooseVisitor<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<(), E> {
        self.is(Loose::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.is(Loose::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.is(Loose::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<(), E> {
        self.is(Loose::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.is(Loose::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.is(Loose::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.is(Number::from_f64(number).map_or(Loose::Null, Loose::Number))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        let value = Value::deserialize(SeqAccessDeserializer::new(list))?;
        self.is(Loose::Json(Box::new(value)))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let value = Value::deserialize(MapAccessDeserializer::new(map))?;
        self.is(Loose::Json(Box::new(value)))
    }
}

/// Text, or the JSON of anything else exactly as it is written: to read a number and write it again may change it. Empty for
/// null.
#[derive(Default)]
pub(crate) struct Written<'a>(pub(crate) Cow<'a, str>);

impl<'de> Place<'de> for Written<'de> {
    fn put<D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        let json = <&'de RawValue>::deserialize(json)?.get();
        *self = Self::from_json(json).map_err(de::Error::custom)?;
        Ok(())
    }
}

impl<'a> Written<'a> {
    pub(crate) fn from_json(json: &'a str) -> serde_json::Result<Self> {
        Ok(Self(match json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(text) if !text.contains('\\') => text.into(),
            Some(_) => serde_json::from_str::<String>(json)?.into(),
            None if json == "null" => "".into(),
            None => json.into(),
        }))
    }
}

/// A list, an only element that stands without one, or nothing.
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// A struct whose members may all be missing, and that keeps what it does not know and [tells] something in `unknown`: also
/// what stands in its place and is no object.
///
/// What `flatten` would do at several times the cost, for members that are there in every piece of a stream. Each is written
/// where it belongs, for moving them costs as much as reading.
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
            #[inline]
            fn member<A: serde::de::MapAccess<$json>>(
                &mut self,
                name: &str,
                map: &mut A,
            ) -> Result<(), A::Error> {
                match name {
                    $($key => map.next_value_seed($crate::loose::Into(&mut self.$member)),)*
                    $($ignored => map.next_value::<serde::de::IgnoredAny>().map(drop),)*
                    unknown => {
                        let value = map.next_value()?;
                        if $crate::loose::tells(&value) {
                            self.unknown.push((unknown.to_owned(), value));
                        }
                        Ok(())
                    }
                }
            }

            fn stray(&mut self, value: Value) {
                self.unknown.push(("value".to_owned(), value));
            }
        }
    };
}
pub(crate) use members;

/// What [`members!`] makes.
pub(crate) trait Members<'de>: Default {
    fn member<A: de::MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>;

    /// What is no object.
    fn stray(&mut self, value: Value);
}

impl<'de, T: Members<'de>> Members<'de> for Box<T> {
    fn member<A: de::MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        T::member(self, name, map)
    }

    fn stray(&mut self, value: Value) {
        T::stray(self, value);
    }
}

/// Reads JSON.
#[inline]
pub(crate) fn read<'de>(text: &'de str, place: &mut impl Place<'de>) -> mynah_data::Result<()> {
    let mut json = serde_json::Deserializer::from_str(text);
    place.put(&mut json).and_then(|()| json.end()).map_err(failure::malformed)
}

/// Where JSON can be written to.
pub(crate) trait Place<'de> {
    fn put<D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error>;
}

/// Writes there.
pub(crate) struct Into<'p, P>(pub(crate) &'p mut P);

impl<'de, P: Place<'de>> DeserializeSeed<'de> for Into<'_, P> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        self.0.put(json)
    }
}

macro_rules! replaced {
    ($($type:ty),*) => {
        $(impl<'de> Place<'de> for $type {
            fn put<D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
                *self = Self::deserialize(json)?;
                Ok(())
            }
        })*
    };
}
replaced!(Option<Value>, Option<&'de RawValue>);

impl<'de, T: Members<'de>> Place<'de> for T {
    fn put<D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(MembersVisitor(self))
    }
}

/// Null is nothing.
impl<'de, T: Members<'de>> Place<'de> for Option<T> {
    fn put<D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        json.deserialize_option(OptionVisitor(self))
    }
}

impl<'de, T: Members<'de>> Place<'de> for List<T> {
    fn put<D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(ListVisitor(&mut self.0))
    }
}

impl<'de, T: Members<'de>> Place<'de> for Option<List<T>> {
    fn put<D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        self.get_or_insert_default().put(json)
    }
}

/// The visits of all that is neither an object nor a list.
macro_rules! scalars {
    ($stray:expr) => {
        fn visit_str<E>(self, text: &str) -> Result<(), E> {
            $stray(self, text.into());
            Ok(())
        }

        fn visit_unit<E>(self) -> Result<(), E> {
            Ok(())
        }

        fn visit_bool<E>(self, flag: bool) -> Result<(), E> {
            $stray(self, flag.into());
            Ok(())
        }

        fn visit_i64<E>(self, number: i64) -> Result<(), E> {
            $stray(self, number.into());
            Ok(())
        }

        fn visit_u64<E>(self, number: u64) -> Result<(), E> {
            $stray(self, number.into());
            Ok(())
        }

        fn visit_f64<E>(self, number: f64) -> Result<(), E> {
            $stray(self, number.into());
            Ok(())
        }
    };
}

struct MembersVisitor<'p, T>(&'p mut T);

impl<'de, T: Members<'de>> de::Visitor<'de> for MembersVisitor<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Name<'_>>()? {
            self.0.member(&name.0, &mut map)?;
        }
        Ok(())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        self.0.stray(Value::deserialize(SeqAccessDeserializer::new(list))?);
        Ok(())
    }

    scalars!(|visitor: Self, value: Value| visitor.0.stray(value));
}

struct OptionVisitor<'p, T>(&'p mut Option<T>);

impl<'de, T: Members<'de>> de::Visitor<'de> for OptionVisitor<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        self.0.insert(T::default()).put(json)
    }
}

/// The most elements of a list: in memory they take far more room than on the wire.
const MAX_LIST: usize = 4_096;

struct ListVisitor<'p, T>(&'p mut Vec<T>);

impl<'de, T: Members<'de>> de::Visitor<'de> for ListVisitor<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Onto(self.0))?.is_some() {
            if self.0.len() > MAX_LIST {
                return Err(de::Error::custom(format!("a list of more than {MAX_LIST}")));
            }
        }
        Ok(())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        Onto(self.0).deserialize(MapAccessDeserializer::new(map))
    }

    scalars!(|_: Self, _: Value| ());
}

/// Writes one more element.
struct Onto<'p, T>(&'p mut Vec<T>);

impl<'de, T: Members<'de>> DeserializeSeed<'de> for Onto<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        // Lists of more than one are rare, and room for several costs more than to move one.
        if self.0.is_empty() {
            self.0.reserve_exact(1);
        }
        self.0.push(T::default());
        self.0.last_mut().map_or(Ok(()), |last| last.put(json))
    }
}

/// The name of a member.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(Visitor)
    }
}

/// Leaves away what says nothing: null, and empty text, lists and objects.
pub(crate) fn telling(members: impl IntoIterator<Item = (String, Value)>) -> Metadata {
    let members = members.into_iter();
    // Nearly always there is nothing, and a map has its price.
    match members.size_hint() {
        (_, Some(0)) => Metadata::new(),
        _ => members.filter(|(_, value)| tells(value)).collect(),
    }
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
