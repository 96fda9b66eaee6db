//! SHA-256, and what is hashed for what.

use std::{fmt, str::FromStr};

use mynah_data::{Error, ToolCall, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// A SHA-256 hash; hexadecimal in JSON and in payloads, bytes in envelopes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash of several pieces, one after the other.
    pub fn of(pieces: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        pieces.iter().for_each(|piece| hasher.update(piece));
        Self(hasher.finalize().into())
    }

    /// The digest to which an approval of a tool call is bound: of the tool's name, its description and schema, and the exact arguments.
    ///
    /// ```
    /// # mod mynah { pub use {mynah_data::*, mynah_log as log}; }
    /// use mynah::{ToolCall, ToolSpec};
    /// use mynah::log::Hash;
    /// use serde_json::json;
    ///
    /// let pay = ToolSpec::new("pay", "pays a bill", json!({}));
    /// let call = ToolCall::new("c0", "pay", r#"{"euros":7}"#);
    /// assert_ne!(Hash::of_call(&pay, &call), Hash::of_call(&pay, &ToolCall::new("c0", "pay", r#"{"euros":8}"#)));
    /// ```
    pub fn of_call(tool: &ToolSpec, call: &ToolCall) -> Self {
        let schema = tool.schema.to_string();
        let parts = json!([tool.name, tool.description, schema, call.raw_arguments]).to_string();
        Self::of(&[b"mynah approval 1\n", parts.as_bytes()])
    }

    /// From 64 hexadecimal digits in lower case.
    fn from_hex(text: &str) -> Option<Self> {
        unhex(text)?.try_into().ok().map(Self)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// From 64 hexadecimal digits, in either case.
impl FromStr for Hash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::from_hex(&text.to_ascii_lowercase()).ok_or_else(|| {
            let why = format!("{text:?} is not a hash: give 64 hexadecimal digits");
            Error::invalid_option("hash", "not_a_hash").with_message(why)
        })
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // What is stored is written in one way alone.
        Self::from_hex(&text).ok_or_else(|| {
            serde::de::Error::custom("expected 64 hexadecimal digits, in lower case")
        })
    }
}

/// In hexadecimal digits, in lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// The bytes that these digits stand for.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_from_its_digits() {
        let hash = Hash::of(&[b"a"]);
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        for wrong in ["", "ab", &"g".repeat(64), &"a".repeat(65)] {
            let error = wrong.parse::<Hash>().expect_err("no hash");
            assert_eq!(error.field(), Some("hash"), "{error}");
        }
    }
}
