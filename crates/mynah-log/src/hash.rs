//! SHA-256, and what is hashed for what.

use std::{fmt, str::FromStr};

use mynah_data::{Error, ToolCall, ToolSpec};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::block_api::compress256;

/// A SHA-256 hash; hexadecimal in JSON and in payloads, bytes in envelopes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

/// Where SHA-256 begins.
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// How much of a message is copied before blocks are taken from where they lie.
const BUFFER: usize = 4 * 64;

impl Hash {
    /// The hash of several pieces, one after the other.
    ///
    /// A record takes four hashes, three of them of a few bytes. For those the buffer of a hasher that is fed bit by bit costs
    /// half as much as the hashing, so here whole blocks are taken from where they lie, and only beginnings and ends are copied,
    /// a few blocks at once.
    pub fn of(pieces: &[&[u8]]) -> Self {
        let (mut state, mut buffer) = (INITIAL, [0; BUFFER + 64]);
        let (mut filled, mut len) = (0, 0u64);
        for piece in pieces {
            len += piece.len() as u64;
            let (head, rest) = piece.split_at(piece.len().min(BUFFER - filled));
            buffer[filled..filled + head.len()].copy_from_slice(head);
            filled += head.len();
            if filled == BUFFER {
                compress256(&mut state, buffer[..BUFFER].as_chunks().0);
                let (blocks, tail) = rest.as_chunks();
                if !blocks.is_empty() {
                    compress256(&mut state, blocks);
                }
                buffer[..tail.len()].copy_from_slice(tail);
                filled = tail.len();
            }
        }
        // A one, zeros, and the number of bits at the end of a block.
        let padded = (filled + 9).next_multiple_of(64);
        buffer[filled] = 0x80;
        buffer[filled + 1..padded - 8].fill(0);
        buffer[padded - 8..padded].copy_from_slice(&(8 * len).to_be_bytes());
        compress256(&mut state, buffer[..padded].as_chunks().0);
        Self::from_state(state)
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

    /// The hash of a message whose length is known, and the number of blocks that it takes with its padding.
    pub(crate) fn of_array<const LEN: usize, const BLOCKS: usize>(message: [u8; LEN]) -> Self {
        const { assert!((LEN + 9).div_ceil(64) == BLOCKS) };
        let mut blocks = [[0; 64]; BLOCKS];
        let padded = blocks.as_flattened_mut();
        padded[..LEN].copy_from_slice(&message);
        padded[LEN] = 0x80;
        padded[64 * BLOCKS - 8..].copy_from_slice(&(8 * LEN as u64).to_be_bytes());
        let mut state = INITIAL;
        compress256(&mut state, &blocks);
        Self::from_state(state)
    }

    fn from_state(state: [u32; 8]) -> Self {
        let mut hash = [0; 32];
        for (bytes, word) in hash.chunks_exact_mut(4).zip(state) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        Self(hash)
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
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn pieces_of_every_length_hash_like_the_whole() {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(2 * BUFFER + 70).collect();
        for len in 0..bytes.len() {
            let whole = &bytes[..len];
            let expected = Hash(Sha256::digest(whole).into());
            assert_eq!(Hash::of(&[whole]), expected, "{len}");
            for first in 0..=len {
                let (a, b) = whole.split_at(first);
                let (b, c) = b.split_at(b.len() / 2);
                assert_eq!(Hash::of(&[a, b, c]), expected, "{first} of {len}");
            }
        }
    }

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

    #[test]
    fn messages_of_known_length_hash_like_any_other() {
        assert_eq!(Hash::of_array::<33, 1>([7; 33]), Hash::of(&[&[7; 33]]));
        assert_eq!(Hash::of_array::<55, 1>([7; 55]), Hash::of(&[&[7; 55]]));
        assert_eq!(Hash::of_array::<56, 2>([7; 56]), Hash::of(&[&[7; 56]]));
        assert_eq!(Hash::of_array::<65, 2>([7; 65]), Hash::of(&[&[7; 65]]));
    }
}
