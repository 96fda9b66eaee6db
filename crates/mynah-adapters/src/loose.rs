//! JSON members whose type is not to be relied on.

use std::{borrow::Cow, fmt};

use mynah_data::Metadata;
use serde::{
    Deserialize, Deserializer,
    de::{
        self,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::Value;

/// Text, borrowed where the JSON allows it, or whatever else stands in its place. Small, for it is moved a lot.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum Loose<'a> {
    #[default]
    Null,
    Text(Cow<'a, str>),
    Json(Box<Value>),
}

impl Loose<'_> {
    /// The text; empty for anything else.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Null | Self::Json(_) => "",
        }
    }

    /// The text, or the JSON of anything else; empty for null.
    pub(crate) fn into_text(self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Text(text) => text.into_owned(),
            Self::Json(value) => value.to_string(),
        }
    }

    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Text(text) => Value::String(text.into_owned()),
            Self::Json(value) => *value,
        }
    }

    /// The members of an object; nothing else has any.
    pub(crate) fn into_object(self) -> Option<Metadata> {
        match self {
            Self::Json(value) => into_object(*value),
            Self::Null | Self::Text(_) => None,
        }
    }

    /// The objects of a list; nothing else counts.
    pub(crate) fn into_objects(self) -> impl Iterator<Item = Metadata> {
        let list = match self {
            Self::Json(value) => match *value {
                Value::Array(list) => list,
                _ => Vec::new(),
            },
            Self::Null | Self::Text(_) => Vec::new(),
        };
        list.into_iter().filter_map(into_object)
    }
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
        Ok(Loose::Json(Box::new(flag.into())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Loose::Json(Box::new(number.into())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Loose::Json(Box::new(number.into())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Loose::Json(Box::new(number.into())))
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

/// A struct whose members may all be missing, and that keeps what it does not know in `unknown`.
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

        impl<$json> serde::Deserialize<$json> for $name<$json> {
            fn deserialize<D: serde::Deserializer<$json>>(json: D) -> Result<Self, D::Error> {
                struct Visitor;

                impl<$json> serde::de::Visitor<$json> for Visitor {
                    type Value = $name<$json>;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: serde::de::MapAccess<$json>>(
                        self,
                        mut map: A,
                    ) -> Result<Self::Value, A::Error> {
                        let mut value = $name::default();
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
                }

                json.deserialize_map(Visitor)
            }
        }
    };
}
pub(crate) use members;

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

/// A member's text; empty where it has none.
pub(crate) fn text_of<'m>(map: &'m Metadata, name: &str) -> &'m str {
    map.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Takes a counter out of a map, by the way to it.
pub(crate) fn take_count(map: &mut Metadata, path: &[&str]) -> Option<u64> {
    match path {
        [] => None,
        [name] => {
            let count = map.get(*name)?.as_u64()?;
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
