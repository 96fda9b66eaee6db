//! Where a JSON value does not fit its type.

use std::cell::RefCell;

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor,
        value::BorrowedStrDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::{Error, Value, map};

/// The JSON Pointer of the innermost value that a type refuses; empty if that is the whole, or not known.
///
/// An error of `serde` has no place. So the value is read again, and each of its parts notes where it failed. This is for the way
/// of the error only: it is slower than reading.
pub(crate) fn misplaced<T: DeserializeOwned>(value: &Value) -> String {
    let found = RefCell::new(None);
    let _ = T::deserialize(Part { value, path: String::new(), found: &found });
    found.into_inner().unwrap_or_default()
}

/// A part of a value, and its place.
struct Part<'a> {
    value: &'a Value,
    path: String,
    found: &'a RefCell<Option<String>>,
}

impl<'a> Part<'a> {
    /// Reads a part of this one.
    fn read<S: DeserializeSeed<'a>>(
        &self,
        seed: S,
        name: &str,
        value: &'a Value,
    ) -> Result<S::Value, Error> {
        let path = format!("{}/{}", self.path, name.replace('~', "~0").replace('/', "~1"));
        let part = Part { value, path: path.clone(), found: self.found };
        seed.deserialize(part).inspect_err(|_| {
            self.found.borrow_mut().get_or_insert(path);
        })
    }
}

impl<'de> Deserializer<'de> for Part<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Object(members) => {
                visitor.visit_map(Members { rest: members.iter(), next: None, whole: self })
            }
            Value::Array(items) => {
                visitor.visit_seq(Items { rest: items.iter().enumerate(), whole: self })
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.value.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Members<'a> {
    rest: map::Iter<'a>,
    next: Option<(&'a String, &'a Value)>,
    whole: Part<'a>,
}

impl<'de> MapAccess<'de> for Members<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        self.next = self.rest.next();
        let name = self.next.map(|(name, _)| BorrowedStrDeserializer::new(name));
        name.map(|name| seed.deserialize(name)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, value) = self.next.take().ok_or_else(|| Error::custom("no name"))?;
        self.whole.read(seed, name, value)
    }
}

struct Items<'a> {
    rest: std::iter::Enumerate<std::slice::Iter<'a, Value>>,
    whole: Part<'a>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let next = self.rest.next();
        next.map(|(place, value)| self.whole.read(seed, &place.to_string(), value)).transpose()
    }
}
