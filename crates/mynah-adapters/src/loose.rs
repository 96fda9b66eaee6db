//! JSON members whose type is not to be relied on.

use std::{borrow::Cow, mem::take};

use mynah_data::Metadata;
use serde::de;
use serde_json::{Number, Value, value::RawValue};

use crate::{
    failure,
    json::{Json, Plain},
};

/// Text, borrowed if the JSON allows it, or any other value in its place. Small, because it is
/// moved often.
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
    pub(crate) fn as_text(&self) -> Cow<'_, str> {
        match self {
            Self::Null => "".into(),
            Self::Flag(flag) => flag.to_string().into(),
            Self::Number(number) => number.to_string().into(),
            Self::Text(text) => Cow::Borrowed(text),
            Self::Json(value) => value.to_string().into(),
        }
    }

    /// Takes the value out.
    pub(crate) fn take_text(&mut self) -> String {
        match self {
            Self::Text(Cow::Owned(text)) => take(text),
            other => other.as_text().into_owned(),
        }
    }

    /// The same.
    pub(crate) fn into_text(mut self) -> String {
        self.take_text()
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

    /// Takes the objects of a list, or the only one; nothing else counts.
    pub(crate) fn take_objects(&mut self) -> impl Iterator<Item = Metadata> + use<> {
        let list = match self {
            Self::Json(value) => match value.take() {
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

impl<'a> From<Value> for Loose<'a> {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Flag(flag),
            Value::Number(number) => Self::Number(number),
            Value::String(text) => Self::Text(Cow::Owned(text)),
            nested => Self::Json(Box::new(nested)),
        }
    }
}

/// Text, or the JSON of anything else exactly as it is written: to read a number and write it again may change it. Empty for
/// null.
#[derive(Default)]
pub(crate) struct Written<'a>(pub(crate) Cow<'a, str>);

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

/// A struct whose members are all optional. It keeps unknown members that are not [empty](tells) in
/// `unknown`, and also a value in its place that is not an object.
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
            unknown: $crate::loose::Rest,
        }

        impl<$json> $crate::loose::Members<$json> for $name<$json> {
            #[inline]
            fn member(
                &mut self,
                name: &str,
                json: &mut $crate::json::Json<$json>,
            ) -> serde_json::Result<()> {
                match name {
                    $($key => $crate::loose::Slot::put(&mut self.$member, json),)*
                    $($ignored => json.skip().map(drop),)*
                    unknown => json.value().map(|value| self.unknown.add(unknown, value)),
                }
            }

            fn stray(&mut self, value: Value) {
                self.unknown.add("value", value);
            }
        }
    };
}
pub(crate) use members;

/// What [`members!`] makes.
pub(crate) trait Members<'a>: Default {
    fn member(&mut self, name: &str, json: &mut Json<'a>) -> serde_json::Result<()>;

    /// What is no object.
    fn stray(&mut self, value: Value);
}

impl<'a, T: Members<'a>> Members<'a> for Box<T> {
    fn member(&mut self, name: &str, json: &mut Json<'a>) -> serde_json::Result<()> {
        T::member(self, name, json)
    }

    fn stray(&mut self, value: Value) {
        T::stray(self, value);
    }
}

/// Reads JSON.
#[inline]
pub(crate) fn read<'a>(text: &'a str, place: &mut impl Slot<'a>) -> mynah_data::Result<()> {
    read_part(text, place)?.or_fail()
}

/// Reads JSON that may turn out not to be needed: what is nested too deep stays as it is written.
#[inline]
pub(crate) fn read_part<'a>(
    text: &'a str,
    place: &mut impl Slot<'a>,
) -> mynah_data::Result<Extent> {
    let mut json = Json::new(text);
    place.put(&mut json).and_then(|()| json.end()).map_err(failure::malformed)?;
    Ok(if json.is_too_deep { Extent::Part } else { Extent::All })
}

/// Reads an object. A member that is nested too deep stays as it is written.
pub(crate) fn read_object(text: &str) -> mynah_data::Result<Metadata> {
    let mut json = Json::new(text);
    let object = json.whole_object();
    object.and_then(|object| json.end().map(|()| object)).map_err(failure::malformed)
}

/// The same, of any JSON.
pub(crate) fn read_raw(text: &str) -> mynah_data::Result<Value> {
    if text.trim_start().starts_with('{') {
        return read_object(text).map(Value::Object);
    }
    let mut value = Loose::Null;
    read_part(text, &mut value).map(|_| value.into_value())
}

/// How much of some JSON was read.
#[derive(Clone, Copy, PartialEq)]
#[must_use]
pub(crate) enum Extent {
    All,
    /// Some of it is nested too deep.
    Part,
}

impl Extent {
    /// All of it is needed.
    #[inline]
    pub(crate) fn or_fail(self) -> mynah_data::Result<()> {
        match self {
            Self::All => Ok(()),
            Self::Part => Err(failure::malformed("the answer is nested too deep")),
        }
    }
}

/// Where a value can be written to.
pub(crate) trait Slot<'a> {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()>;
}

impl<'a> Slot<'a> for Loose<'a> {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        *self = match json.plain() {
            Some(Plain::Null) => Self::Null,
            Some(Plain::Flag(flag)) => Self::Flag(flag),
            Some(Plain::Number(number)) => Self::Number(number.into()),
            Some(Plain::Text(text)) => Self::Text(Cow::Borrowed(text)),
            None => match json.nested()? {
                Ok(value) => value.into(),
                Err(written) => {
                    json.is_too_deep = true;
                    Self::Json(Box::new(written.into()))
                }
            },
        };
        Ok(())
    }
}

/// Null is nothing.
impl<'a> Slot<'a> for Option<Loose<'a>> {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        let mut read = Loose::Null;
        read.put(json)?;
        *self = (read != Loose::Null).then_some(read);
        Ok(())
    }
}

impl<'a> Slot<'a> for Written<'a> {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        *self = Self::from_json(json.skip()?)?;
        Ok(())
    }
}

macro_rules! replaced {
    ($($type:ty),*) => {
        $(impl<'a> Slot<'a> for $type {
            fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
                *self = json.read()?;
                Ok(())
            }
        })*
    };
}
replaced!(Option<Value>, Option<&'a RawValue>);

/// An object; anything else is nothing.
impl<'a> Slot<'a> for Option<Box<Metadata>> {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        *self = match json.peek() {
            b'{' => Some(Box::new(json.whole_object()?)),
            _ if json.plain().is_some() => None,
            _ => json.skip().map(|_| None)?,
        };
        Ok(())
    }
}

impl<'a, T: Members<'a>> Slot<'a> for T {
    #[inline]
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        if json.peek() == b'{' {
            return json.object(|name, json| self.member(&name, json));
        }
        let value = json.value()?;
        if !value.is_null() {
            self.stray(value);
        }
        Ok(())
    }
}

/// Null is nothing.
impl<'a, T: Members<'a>> Slot<'a> for Option<T> {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        match json.peek() {
            b'n' => json.skip().map(drop),
            _ => self.insert(T::default()).put(json),
        }
    }
}

/// The most elements of a list: in memory they take far more room than on the wire.
const MAX_LIST: usize = 4_096;

impl<'a, T: Members<'a>> Slot<'a> for List<T> {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        match json.peek() {
            b'[' => json.list(|json| self.add(json)),
            b'{' => self.add(json),
            _ => json.skip().map(drop),
        }
    }
}

impl<T> List<T> {
    fn add<'a>(&mut self, json: &mut Json<'a>) -> serde_json::Result<()>
    where
        T: Members<'a>,
    {
        if self.0.len() == MAX_LIST {
            return Err(de::Error::custom(format!("a list of more than {MAX_LIST}")));
        }
        // Lists of more than one are rare, and room for several costs more than to move one.
        if self.0.is_empty() {
            self.0.reserve_exact(1);
        }
        self.0.push(T::default());
        self.0.last_mut().map_or(Ok(()), |last| last.put(json))
    }
}

impl<'a, T: Members<'a>> Slot<'a> for Option<List<T>> {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        self.get_or_insert_default().put(json)
    }
}

/// Unknown members that are not [empty](tells). A list: it is nearly always empty, and even an
/// empty map costs something.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Rest(Vec<(String, Value)>);

impl Rest {
    /// Adds a member unless it is empty.
    #[inline]
    pub(crate) fn add(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        if tells(&value) {
            self.push(name, value);
        }
    }

    /// Adds a member, even if it is empty.
    pub(crate) fn push(&mut self, name: &str, value: impl Into<Value>) {
        self.0.push((name.to_owned(), value.into()));
    }

    pub(crate) fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Removes what equals the last emitted value, for servers that repeat it with every chunk.
    pub(crate) fn leave_told(&mut self, last: &mut Self) {
        if self == last {
            self.0.clear();
        } else if !self.is_empty() {
            last.clone_from(self);
        }
    }

    /// The same, but for one member, which is a piece like what the model says: equal ones follow each other.
    pub(crate) fn leave_told_beside(&mut self, piece: &str, last: &mut Self) {
        if self.is_empty() {
            return;
        }
        let is_piece = |(name, _): &(String, Value)| name == piece;
        let (pieces, others) = std::mem::take(&mut self.0).into_iter().partition(is_piece);
        self.0 = others;
        self.leave_told(last);
        self.0.extend::<Vec<_>>(pieces);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().rfind(|(known, _)| known == name).map(|(_, value)| value)
    }
}

impl IntoIterator for Rest {
    type Item = (String, Value);
    type IntoIter = std::vec::IntoIter<(String, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromIterator<(String, Value)> for Rest {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(members: I) -> Self {
        Self(members.into_iter().filter(|(_, value)| tells(value)).collect())
    }
}

/// An object; null if it would be empty.
impl From<Rest> for Value {
    #[inline]
    fn from(rest: Rest) -> Self {
        if rest.is_empty() { Self::Null } else { Self::Object(rest.into_iter().collect()) }
    }
}

/// Removes empty values: null, and empty text, lists and objects.
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

/// The cost of the call as the provider reports it: a number, its parts, or ticks of 10^-10
/// dollars.
pub(crate) fn told_cost(counters: &Metadata) -> Option<f64> {
    let ticks = || Some(counters.get("cost_in_usd_ticks")?.as_f64()? / 1e10);
    let cost = match counters.get("cost") {
        Some(Value::Object(costs)) => costs.get("total_cost"),
        cost => cost,
    };
    cost.and_then(Value::as_f64).or_else(ticks)
}

/// The maximum number of counters of an answer. Names that a server invents each time are dropped.
pub(crate) const MAX_COUNTERS: usize = 100;

/// Puts newer counters over those that are known.
pub(crate) fn overlay(known: &mut Vec<(String, Value)>, counters: Metadata) {
    for (name, count) in counters.into_iter().filter(|(_, count)| !count.is_null()) {
        let is_full = known.len() >= MAX_COUNTERS;
        match known.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = count,
            None if is_full => {}
            None => known.push((name, count)),
        }
    }
}

/// A member's text; empty where it has none.
pub(crate) fn text_of<'m>(map: &'m Metadata, name: &str) -> &'m str {
    map.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// What a counter says.
pub(crate) fn count(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => whole(number),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Takes a counter out of a map, by the way to it.
pub(crate) fn take_count(map: &mut Metadata, path: &[&str]) -> Option<u64> {
    match path {
        [] => None,
        [name] => {
            let count = count(map.get(*name)?)?;
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
