//! Deterministic CBOR (RFC 8949 §4.2.1), written and read strictly.
//!
//! There is one byte sequence for a value: shortest integers and floats, definite lengths, map keys in bytewise order of
//! their encoding and without duplicates. Reading takes nothing else: another encoding of the same value is an error, so
//! bytes that decode are the bytes that encoding gives.
//!
//! Values are those of JSON, and byte strings. A float that is not a number is written as null and
//! rejected when read. An absent member of a struct is left out, not written as null. Serializers
//! see a format that is not human readable, so that a type can leave out derived members.
//!
//! ```
//! # mod mynah { pub use mynah_log as log; }
//! use mynah::log::cbor;
//! let bytes = cbor::to_vec(&serde_json::json!({"b": 1.5, "a": [1, -1]}))?;
//! assert_eq!(bytes, [0xa2, 0x61, b'a', 0x82, 0x01, 0x20, 0x61, b'b', 0xf9, 0x3e, 0x00]);
//! let back: serde_json::Value = cbor::from_slice(&bytes)?;
//! assert_eq!(back["b"], 1.5);
//! # Ok::<(), cbor::CborError>(())
//! ```

mod de;
mod ser;

use std::fmt;

pub(crate) use de::Reader;
pub use de::from_slice;
pub(crate) use ser::Writer;
pub use ser::{to_vec, with_bytes};

/// How deep values may nest.
pub const MAX_DEPTH: usize = 128;

/// Why a value could not be written, or bytes not be read.
///
/// One word wide: every read and write returns a `Result`, and most of them hold little else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CborError(Box<Wrong>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wrong {
    message: String,
    offset: Option<usize>,
    /// Whether it is nothing but a member or a variant that is not known.
    newer: bool,
}

impl CborError {
    #[cold]
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self(Box::new(Wrong { message: message.to_string(), offset: None, newer: false }))
    }

    #[cold]
    fn at(message: impl fmt::Display, offset: usize) -> Self {
        Self(Box::new(Wrong { message: message.to_string(), offset: Some(offset), newer: false }))
    }

    #[cold]
    pub(crate) fn newer(message: impl fmt::Display) -> Self {
        Self(Box::new(Wrong { message: message.to_string(), offset: None, newer: true }))
    }

    /// Whether nothing is wrong but a member or a variant that this version does not know.
    pub fn is_newer(&self) -> bool {
        self.0.newer
    }
}

impl fmt::Display for CborError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.offset {
            Some(offset) => write!(f, "{} at byte {offset}", self.0.message),
            None => f.write_str(&self.0.message),
        }
    }
}

impl std::error::Error for CborError {}

impl serde::ser::Error for CborError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message)
    }
}

impl serde::de::Error for CborError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message)
    }

    fn unknown_field(field: &str, _: &'static [&'static str]) -> Self {
        Self::newer(format_args!("the member {field:?}"))
    }

    fn unknown_variant(variant: &str, _: &'static [&'static str]) -> Self {
        Self::newer(format_args!("the variant {variant:?}"))
    }
}

/// Major types, in the upper three bits of an item's first byte.
pub(crate) mod major {
    pub(crate) const UNSIGNED: u8 = 0;
    pub(crate) const NEGATIVE: u8 = 1;
    pub(crate) const BYTES: u8 = 2;
    pub(crate) const TEXT: u8 = 3;
    pub(crate) const ARRAY: u8 = 4;
    pub(crate) const MAP: u8 = 5;
    pub(crate) const SIMPLE: u8 = 7;
}

/// First bytes of simple values and floats.
mod simple {
    pub(super) const FALSE: u8 = 0xf4;
    pub(super) const TRUE: u8 = 0xf5;
    pub(super) const NULL: u8 = 0xf6;
    pub(super) const F16: u8 = 0xf9;
    pub(super) const F32: u8 = 0xfa;
    pub(super) const F64: u8 = 0xfb;
}

/// The half-precision bits of a number that has exactly that value.
fn half_bits(value: f32) -> Option<u16> {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let exponent = ((bits >> 23) & 0xff) as i32 - 127;
    let fraction = bits & 0x007f_ffff;
    let half = match exponent {
        -127 if fraction == 0 => sign,
        128 if fraction == 0 => sign | 0x7c00,
        -14..=15 if fraction & 0x1fff == 0 => {
            sign | (((exponent + 15) as u16) << 10) | ((fraction >> 13) as u16)
        }
        // Subnormal halves: the leading one becomes explicit.
        -24..=-15 => {
            let shift = (-exponent - 14 + 13) as u32;
            let whole = fraction | 0x0080_0000;
            if whole & ((1 << shift) - 1) != 0 {
                return None;
            }
            sign | ((whole >> shift) as u16)
        }
        _ => return None,
    };
    Some(half)
}

/// The number that half-precision bits stand for.
fn half_value(bits: u16) -> f64 {
    let exponent = (bits >> 10) & 0x1f;
    let fraction = f64::from(bits & 0x03ff);
    let magnitude = match exponent {
        0 => fraction * (-24f64).exp2(),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * (f64::from(exponent) - 15.0).exp2(),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_hardly_larger_than_what_it_holds() {
        assert_eq!(size_of::<Result<(), CborError>>(), size_of::<usize>());
        assert_eq!(size_of::<Result<&str, CborError>>(), size_of::<&str>());
    }

    #[test]
    fn every_half_comes_back_from_its_value() {
        for bits in 0..=u16::MAX {
            let value = half_value(bits);
            if value.is_nan() {
                continue;
            }
            assert_eq!(half_bits(value as f32), Some(bits), "{bits:#06x} is {value}");
        }
    }
}
