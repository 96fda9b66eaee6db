//! A walk through JSON.
//!
//! A stream consists of short names and texts, small numbers and nulls. Reading these in place is
//! faster than with a general parser. Everything else is read by `serde_json`: escapes, fractions,
//! and nested values that are not visited. So there is one grammar, and this module handles its
//! simplest part.

use std::borrow::Cow;

use mynah_data::Metadata;
use serde::{
    Deserialize,
    de::{Error as _, IgnoredAny},
};
use serde_json::{Deserializer, Error, Result, Value};

/// A place in JSON.
pub(crate) struct Json<'a> {
    text: &'a str,
    at: usize,
    /// Whether something that may be needed was nested too deep to be read.
    pub(crate) is_too_deep: bool,
}

/// A value that can be read in place.
pub(crate) enum Plain<'a> {
    Null,
    Flag(bool),
    Number(u64),
    Text(&'a str),
}

impl From<Plain<'_>> for Value {
    #[inline]
    fn from(plain: Plain<'_>) -> Self {
        match plain {
            Plain::Null => Self::Null,
            Plain::Flag(flag) => flag.into(),
            Plain::Number(number) => number.into(),
            Plain::Text(text) => text.into(),
        }
    }
}

impl<'a> Json<'a> {
    /// At the beginning.
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, is_too_deep: false }
    }

    /// The next byte that is no space; zero at the end, which has no place in JSON either.
    #[inline]
    pub(crate) fn peek(&mut self) -> u8 {
        loop {
            match self.text.as_bytes().get(self.at) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                next => return next.copied().unwrap_or_default(),
            }
        }
    }

    /// Walks through an object, which begins here. `member` must take the value of each.
    #[inline]
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(Cow<'a, str>, &mut Self) -> Result<()>,
    ) -> Result<()> {
        self.members(|json| json.named(&mut member))
    }

    /// The same, but `one` must take the name of each too.
    #[inline]
    pub(crate) fn members(&mut self, one: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.walk(b'{', b'}', one)
    }

    /// Takes a member: its name, its value, and both as they are written.
    pub(crate) fn member(&mut self) -> Result<(Cow<'a, str>, Value, &'a str)> {
        self.peek();
        let begin = self.at;
        self.named(|name, json| Ok((name, json.value()?, &json.text[begin..json.at])))
    }

    #[inline]
    fn named<T>(&mut self, member: impl FnOnce(Cow<'a, str>, &mut Self) -> Result<T>) -> Result<T> {
        if self.peek() != b'"' {
            return Err(self.error());
        }
        let name = match self.text() {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(self.read()?),
        };
        if self.take(b':') { member(name, self) } else { Err(self.error()) }
    }

    /// Walks through a list, which begins here. `element` must take each.
    #[inline]
    pub(crate) fn list(&mut self, element: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.walk(b'[', b']', element)
    }

    #[inline]
    fn walk(
        &mut self,
        open: u8,
        close: u8,
        mut one: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if !self.take(open) {
            return Err(self.error());
        }
        if self.take(close) {
            return Ok(());
        }
        loop {
            one(self)?;
            if self.take(close) {
                return Ok(());
            }
            if !self.take(b',') {
                return Err(self.error());
            }
        }
    }

    /// Takes the next byte if it is this one.
    #[inline]
    fn take(&mut self, byte: u8) -> bool {
        if self.peek() != byte {
            return false;
        }
        self.at += 1;
        true
    }

    /// Takes a value that can be read in place. None if this is no such value; then nothing is taken.
    #[inline]
    pub(crate) fn plain(&mut self) -> Option<Plain<'a>> {
        match self.peek() {
            b'"' => self.text().map(Plain::Text),
            b'0'..=b'9' => self.number().map(Plain::Number),
            b'n' => self.word(b"null").then_some(Plain::Null),
            b't' => self.word(b"true").then_some(Plain::Flag(true)),
            b'f' => self.word(b"false").then_some(Plain::Flag(false)),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'a str> {
        let begin = self.at + 1;
        let end = plain_end(self.text.as_bytes(), begin);
        if self.text.as_bytes().get(end) != Some(&b'"') {
            return None;
        }
        self.at = end + 1;
        self.text.get(begin..end)
    }

    fn number(&mut self) -> Option<u64> {
        let rest = &self.text.as_bytes()[self.at..];
        let (mut number, mut length) = (0, 0);
        while let Some(digit @ b'0'..=b'9') = rest.get(length) {
            number = 10 * number + u64::from(digit - b'0');
            length += 1;
            if length > 18 || (number == 0 && length > 1) {
                return None;
            }
        }
        if !matches!(rest.get(length), Some(b',' | b'}' | b']')) {
            return None;
        }
        self.at += length;
        Some(number)
    }

    fn word(&mut self, word: &[u8]) -> bool {
        if !self.text.as_bytes()[self.at..].starts_with(word) {
            return false;
        }
        self.at += word.len();
        true
    }

    /// Skips any value.
    pub(crate) fn value(&mut self) -> Result<Value> {
        match self.plain() {
            Some(plain) => Ok(plain.into()),
            None if self.word(b"[]") => Ok(Value::Array(Vec::new())),
            None => {
                let text = self.skip()?;
                // What is nested too deep, or a number too large, stays as it is written.
                Ok(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
            }
        }
    }

    /// Takes an object. A member that is nested too deep stays as it is written.
    pub(crate) fn whole_object(&mut self) -> Result<Metadata> {
        let mut members = Metadata::new();
        self.object(|name, json| {
            let value = match json.plain() {
                Some(plain) => plain.into(),
                None => json.nested()?.unwrap_or_else(Value::from),
            };
            members.insert(name.into_owned(), value);
            Ok(())
        })?;
        Ok(members)
    }

    /// Takes a value that is not plain, or what is written there if it is nested too deep to be read.
    #[inline(never)]
    pub(crate) fn nested(&mut self) -> Result<std::result::Result<Value, &'a str>> {
        match self.attempt() {
            Some(Err(error)) if is_too_deep(&error) => self.skip().map(Err),
            read => self.explained(read).map(Ok),
        }
    }

    /// Passes over a member if it is written exactly so.
    #[inline]
    pub(crate) fn repeats(&mut self, written: &str) -> bool {
        self.peek();
        let rest = self.text.as_bytes()[self.at..].strip_prefix(written.as_bytes());
        let is_same = matches!(rest, Some([b',' | b'}', ..]));
        if is_same {
            self.at += written.len();
        }
        is_same
    }

    /// Skips a value, and returns its text.
    pub(crate) fn skip(&mut self) -> Result<&'a str> {
        self.peek();
        let begin = self.at;
        if self.plain().is_none() {
            self.read::<IgnoredAny>()?;
        }
        Ok(&self.text[begin..self.at])
    }

    /// Has `serde_json` read a value.
    #[inline(never)]
    pub(crate) fn read<T: Deserialize<'a>>(&mut self) -> Result<T> {
        let read = self.attempt();
        self.explained(read)
    }

    /// Takes a value if `serde_json` can read it. None at the end.
    fn attempt<T: Deserialize<'a>>(&mut self) -> Option<Result<T>> {
        let mut values = Deserializer::from_str(&self.text[self.at..]).into_iter();
        let read = values.next()?;
        if read.is_ok() {
            self.at += values.byte_offset();
        }
        Some(read)
    }

    /// The whole text gives a better error, with its position.
    fn explained<T>(&self, read: Option<Result<T>>) -> Result<T> {
        match read {
            Some(Err(error)) => Err(self.syntax_error().unwrap_or(error)),
            Some(read) => read,
            None => Err(self.error()),
        }
    }

    /// Nothing may follow.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.peek();
        if self.at == self.text.len() { Ok(()) } else { Err(self.error()) }
    }

    #[cold]
    fn error(&self) -> Error {
        self.syntax_error().unwrap_or_else(|| Error::custom("not the JSON of an answer"))
    }

    fn syntax_error(&self) -> Option<Error> {
        serde_json::from_str::<IgnoredAny>(self.text).err()
    }
}

/// `serde_json` reports it in no other way.
fn is_too_deep(error: &Error) -> bool {
    error.to_string().starts_with("recursion limit exceeded")
}

/// Where a quote, an escape, or what must be escaped comes next.
#[inline]
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    const EACH: u64 = u64::MAX / 0xff;
    // Eight bytes at once. A subtraction that underflows sets the high bit of its byte. The lowest
    // such bit is exact; those above it may come from a borrow.
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        let word = u64::from_le_bytes(*word);
        let is = |byte: u8| (word ^ (EACH * u64::from(byte))).wrapping_sub(EACH);
        let is_control = word.wrapping_sub(EACH * 0x20);
        let found = (is(b'"') | is(b'\\') | is_control) & !word & (EACH << 7);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|byte| *byte >= b' ' && !matches!(byte, b'"' | b'\\')) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Walks through all of it.
    fn walked(json: &mut Json<'_>) -> Result<Value> {
        match json.peek() {
            b'{' => {
                let mut map = Metadata::new();
                json.object(|name, json| {
                    map.insert(name.into_owned(), walked(json)?);
                    Ok(())
                })?;
                Ok(Value::Object(map))
            }
            b'[' => {
                let mut list = Vec::new();
                json.list(|json| {
                    list.push(walked(json)?);
                    Ok(())
                })?;
                Ok(Value::Array(list))
            }
            _ => json.value(),
        }
    }

    fn to_the_end<'a, T>(
        text: &'a str,
        take: impl FnOnce(&mut Json<'a>) -> Result<T>,
    ) -> Option<T> {
        let mut json = Json::new(text);
        let taken = take(&mut json);
        json.end().and(taken).ok()
    }

    /// What JSON is made of, in any order: most of it is none, and some is.
    fn tokens() -> impl Strategy<Value = String> {
        let token = prop_oneof![
            4 => "[{}\\[\\],:]",
            2 => "\"[a-z\"\\\\ü\n]{0,20}\"|\"\\\\u[0-9a-f]{3,4}\"",
            2 => "-?[0-9]{1,21}|0[0-9.eE+-]{0,4}|1e[0-9]{1,3}",
            2 => "nul?l|true?|false|[ \t\r\n\0]",
        ];
        prop::collection::vec(token, 0..12).prop_map(|tokens| tokens.concat())
    }

    /// JSON.
    fn value() -> impl Strategy<Value = Value> {
        let plain = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(|number: f64| Value::from(number)),
            any::<String>().prop_map(Value::from),
        ];
        plain.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn a_member_is_passed_over_where_it_is_written_the_same() {
        fn left(text: &str) -> Option<Vec<&str>> {
            let mut left = Vec::new();
            let walked = to_the_end(text, |json| {
                json.members(|json| {
                    if !json.repeats(r#""a":1"#) {
                        left.push(json.member()?.2);
                    }
                    Ok(())
                })
            });
            walked.map(|()| left)
        }
        assert_eq!(left(r#"{"a":1}"#), Some(vec![]));
        assert_eq!(left(r#"{"b":[1],  "a":1,"a":12}"#), Some(vec![r#""b":[1]"#, r#""a":12"#]));
        for other in [r#""a":1.5"#, r#""a": 1"#, r#""a":"1""#, r#""a":10"#, r#""\u0061":1"#] {
            assert_eq!(left(&format!("{{{other}}}")), Some(vec![other]));
        }
        for broken in [r#"{"a":1"#, r#"{"a":1]"#, r#"{"a":1,}"#, r#"{"a":1 2}"#, r#"{"a"}"#] {
            assert_eq!(left(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn a_walk_takes_what_is_json_and_nothing_else(text in tokens()) {
            let is_json = serde_json::from_str::<IgnoredAny>(&text).is_ok();
            let walked = to_the_end(&text, walked);
            prop_assert_eq!(walked.is_some(), is_json);
            if let Ok(read) = serde_json::from_str(&text) {
                prop_assert_eq!(walked, Some(read));
            }
            prop_assert_eq!(to_the_end(&text, |json| json.skip().map(drop)).is_some(), is_json);
        }

        #[test]
        fn a_walk_reads_json_as_it_was_meant(value in value(), cut in any::<prop::sample::Index>()) {
            for text in [value.to_string(), format!(" {value:#}\n")] {
                prop_assert_eq!(to_the_end(&text, walked), Some(value.clone()));
                prop_assert_eq!(to_the_end(&text, |json| json.skip()), Some(text.trim()));
                let cut = text.floor_char_boundary(cut.index(text.len()));
                let read = serde_json::from_str(&text[..cut]).ok();
                prop_assert_eq!(to_the_end(&text[..cut], walked), read);
            }
        }
    }
}
