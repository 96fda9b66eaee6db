//! Reading, strictly.

use serde::{Deserialize, de};

use super::{CborError as Error, MAX_DEPTH, half_bits, half_value, major, simple};

/// The value that bytes stand for.
///
/// # Errors
/// Bytes that are not the deterministic encoding of a value of this type, with the place.
pub fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Error> {
    let mut reader = Reader { knows_all: true, ..Reader::new(bytes) };
    let mut value = T::deserialize(&mut reader);
    if let Err(error) = &mut value {
        error.0.offset.get_or_insert(reader.at);
    } else if let Err(error) = reader.end() {
        value = Err(error);
    }
    value
}

/// Reads items in sequence. It never allocates for a claimed length: the data may not be there.
pub(crate) struct Reader<'de> {
    bytes: &'de [u8],
    at: usize,
    depth: usize,
    /// Whether a member that the reader's type does not have is an error. JSON readers ignore such members.
    knows_all: bool,
    /// The key that was read last, as it is written.
    key: &'de [u8],
}

/// The first bytes of texts whose length is in that byte: from this one on, and before that one.
const SHORT_TEXT: u8 = major::TEXT << 5;
const LONG_TEXT: u8 = SHORT_TEXT + 24;

/// One item's beginning: its kind, and its number or length.
struct Head {
    major: u8,
    first: u8,
    argument: u64,
}

impl<'de> Reader<'de> {
    pub(crate) fn new(bytes: &'de [u8]) -> Self {
        Self { bytes, at: 0, depth: 0, knows_all: false, key: &[] }
    }

    /// The name of the variant that begins here, and ends with the bytes. Its content is read next.
    pub(crate) fn variant(&mut self) -> Result<&'de str, Error> {
        let start = self.at;
        if self.map()? != 1 {
            return Err(Error::at("expected a variant", start));
        }
        self.enter()?;
        self.str()
    }

    /// The number of entries of the map that begins here.
    pub(crate) fn map(&mut self) -> Result<u64, Error> {
        self.expect(major::MAP, "a map").map(|head| head.argument)
    }

    /// Reads a short key, which must be that of the entry that begins here.
    #[inline]
    pub(crate) fn key(&mut self, name: &str) -> Result<(), Error> {
        let (head, rest) = self.bytes[self.at..].split_first().unwrap_or((&0, &[]));
        if *head != major::TEXT << 5 | name.len() as u8 || !rest.starts_with(name.as_bytes()) {
            return Err(Error::at(format_args!("expected the key {name:?}"), self.at));
        }
        self.at += 1 + name.len();
        Ok(())
    }

    pub(crate) fn unsigned(&mut self) -> Result<u64, Error> {
        self.expect(major::UNSIGNED, "a number from 0 on").map(|head| head.argument)
    }

    pub(crate) fn integer(&mut self) -> Result<i64, Error> {
        let start = self.at;
        let head = self.head()?;
        let number = match (head.major, i64::try_from(head.argument)) {
            (major::UNSIGNED, Ok(number)) => Some(number),
            (major::NEGATIVE, Ok(number)) => Some(!number),
            _ => None,
        };
        number.ok_or_else(|| Error::at("expected an integer of 64 bits", start))
    }

    pub(crate) fn str(&mut self) -> Result<&'de str, Error> {
        let head = self.expect(major::TEXT, "text")?;
        self.text(&head)
    }

    pub(crate) fn byte_array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let start = self.at;
        let head = self.expect(major::BYTES, "bytes")?;
        if head.argument != N as u64 {
            return Err(Error::at(format_args!("expected {N} bytes"), start));
        }
        self.array()
    }

    /// There must be nothing more.
    pub(crate) fn end(&self) -> Result<(), Error> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(Error::at("trailing bytes", self.at)) }
    }

    #[inline]
    fn expect(&mut self, major: u8, what: &str) -> Result<Head, Error> {
        let start = self.at;
        let head = self.head()?;
        if head.major == major {
            Ok(head)
        } else {
            Err(Error::at(format_args!("expected {what}"), start))
        }
    }

    fn take(&mut self, count: usize) -> Result<&'de [u8], Error> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| Error::at("the bytes end too early", self.at))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let array = self.bytes[self.at..].first_chunk();
        let array = array.ok_or_else(|| Error::at("the bytes end too early", self.at))?;
        self.at += N;
        Ok(*array)
    }

    fn peek(&self) -> Result<u8, Error> {
        let first = self.bytes.get(self.at).copied();
        first.ok_or_else(|| Error::at("the bytes end too early", self.at))
    }

    #[inline]
    fn head(&mut self) -> Result<Head, Error> {
        let first = self.peek()?;
        let (major, low) = (first >> 5, first & 0x1f);
        if low < 24 {
            self.at += 1;
            return Ok(Head { major, first, argument: u64::from(low) });
        }
        self.long_head(first)
    }

    fn long_head(&mut self, first: u8) -> Result<Head, Error> {
        let start = self.at;
        self.at += 1;
        let (argument, least) = match first & 0x1f {
            24 => (u8::from_be_bytes(self.array()?).into(), 24),
            25 => (u16::from_be_bytes(self.array()?).into(), 1 << 8),
            26 => (u32::from_be_bytes(self.array()?).into(), 1 << 16),
            27 => (u64::from_be_bytes(self.array()?), 1 << 32),
            31 => return Err(Error::at("an indefinite length", start)),
            _ => return Err(Error::at("a reserved first byte", start)),
        };
        let major = first >> 5;
        if major != major::SIMPLE && argument < least {
            return Err(Error::at("a number or length that is not the shortest", start));
        }
        Ok(Head { major, first, argument })
    }

    /// The bytes of a text or byte string.
    fn string(&mut self, head: &Head) -> Result<&'de [u8], Error> {
        let len = usize::try_from(head.argument).map_err(|_| Error::at("too long", self.at))?;
        self.take(len)
    }

    fn text(&mut self, head: &Head) -> Result<&'de str, Error> {
        let start = self.at;
        std::str::from_utf8(self.string(head)?)
            .map_err(|_| Error::at("text that is not UTF-8", start))
    }

    /// The bytes of a text that is skipped. ASCII, the usual case, is checked faster than UTF-8.
    fn text_bytes(&mut self, head: &Head) -> Result<&'de [u8], Error> {
        let start = self.at;
        let bytes = self.string(head)?;
        if is_ascii(bytes) || std::str::from_utf8(bytes).is_ok() {
            Ok(bytes)
        } else {
            Err(Error::at("text that is not UTF-8", start))
        }
    }

    fn float(&self, head: &Head) -> Result<f64, Error> {
        let (value, is_shortest) = match head.first {
            simple::F16 => (half_value(head.argument as u16), true),
            simple::F32 => {
                let value = f32::from_bits(head.argument as u32);
                (value.into(), half_bits(value).is_none())
            }
            _ => {
                let value = f64::from_bits(head.argument);
                (value, f64::from(value as f32).to_bits() != head.argument)
            }
        };
        match value.is_finite() {
            true if is_shortest => Ok(value),
            true => Err(Error::at("a float that is not the shortest", self.at)),
            false => Err(Error::at("a float that is not a number", self.at)),
        }
    }

    fn enter(&mut self) -> Result<(), Error> {
        if self.depth == MAX_DEPTH {
            return Err(Error::at("nested too deep", self.at));
        }
        self.depth += 1;
        Ok(())
    }

    /// Skips an item, as strictly as if it were decoded.
    #[inline]
    fn pass_over(&mut self) -> Result<(), Error> {
        // Most items are these: keys and other short texts in ASCII, small numbers, and what is one byte.
        let len = match self.bytes[self.at..].split_first().map(|(first, rest)| (*first, rest)) {
            Some((first @ SHORT_TEXT..LONG_TEXT, rest)) => {
                let len = usize::from(first - SHORT_TEXT);
                rest.get(..len).is_some_and(<[u8]>::is_ascii).then_some(1 + len)
            }
            Some((0..24 | simple::FALSE | simple::TRUE | simple::NULL, _)) => Some(1),
            _ => None,
        };
        let Some(len) = len else { return self.pass_over_any() };
        self.at += len;
        Ok(())
    }

    fn pass_over_any(&mut self) -> Result<(), Error> {
        let start = self.at;
        let head = self.head()?;
        match head.major {
            major::UNSIGNED => Ok(()),
            major::NEGATIVE => negative(&head, start).map(drop),
            major::BYTES => self.string(&head).map(drop),
            major::TEXT => self.text_bytes(&head).map(drop),
            major::ARRAY => {
                let items = self.len(&head)?;
                self.enter()?;
                (0..items).try_for_each(|_| self.pass_over())?;
                self.depth -= 1;
                Ok(())
            }
            major::MAP => {
                let (entries, mut last) = (self.len(&head)?, None);
                self.enter()?;
                for _ in 0..entries {
                    let key = self.at;
                    self.pass_over()?;
                    self.follows(&mut last, key)?;
                    self.pass_over()?;
                }
                self.depth -= 1;
                Ok(())
            }
            major::SIMPLE => match head.first {
                simple::FALSE | simple::TRUE | simple::NULL => Ok(()),
                simple::F16 | simple::F32 | simple::F64 => self.float(&head).map(drop),
                _ => Err(Error::at("an unknown simple value", start)),
            },
            _ => Err(Error::at("a tag", start)),
        }
    }

    /// Whether the key that begins there and ends here may follow the one before it.
    fn follows(&self, last: &mut Option<&'de [u8]>, start: usize) -> Result<(), Error> {
        let written = &self.bytes[start..self.at];
        // Keys of different lengths differ in their first byte.
        let is_before = |last: &[u8]| last[0] < written[0] || last < written;
        if last.replace(written).is_some_and(|last| !is_before(last)) {
            return Err(Error::at("a key that is out of order or duplicated", start));
        }
        Ok(())
    }

    /// How many items follow. Each takes a byte at least, so a length beyond the bytes is a lie.
    fn len(&self, head: &Head) -> Result<usize, Error> {
        let len =
            usize::try_from(head.argument).ok().filter(|len| *len <= self.bytes.len() - self.at);
        len.ok_or_else(|| Error::at("a length beyond the bytes", self.at))
    }
}

impl<'de> de::Deserializer<'de> for &mut Reader<'de> {
    type Error = Error;

    fn deserialize_any<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let start = self.at;
        let head = self.head()?;
        match head.major {
            major::UNSIGNED => visitor.visit_u64(head.argument),
            major::NEGATIVE => visitor.visit_i64(negative(&head, start)?),
            major::BYTES => visitor.visit_borrowed_bytes(self.string(&head)?),
            major::TEXT => visitor.visit_borrowed_str(self.text(&head)?),
            major::ARRAY => {
                let left = self.len(&head)?;
                self.enter()?;
                let mut items = Items { reader: self, left };
                // A value may be large: it stays where it was made.
                let mut value = visitor.visit_seq(&mut items);
                if items.left > 0 && value.is_ok() {
                    value = Err(Error::at("more items than expected", start));
                }
                items.reader.depth -= 1;
                value
            }
            major::MAP => {
                let left = self.len(&head)?;
                self.enter()?;
                let mut entries = Entries { reader: self, left, last: None };
                let mut value = visitor.visit_map(&mut entries);
                if entries.left > 0 && value.is_ok() {
                    value = Err(Error::at("more entries than expected", start));
                }
                entries.reader.depth -= 1;
                value
            }
            major::SIMPLE => match head.first {
                simple::FALSE => visitor.visit_bool(false),
                simple::TRUE => visitor.visit_bool(true),
                simple::NULL => visitor.visit_unit(),
                simple::F16 | simple::F32 | simple::F64 => visitor.visit_f64(self.float(&head)?),
                _ => Err(Error::at("an unknown simple value", start)),
            },
            _ => Err(Error::at("a tag", start)),
        }
    }

    fn deserialize_option<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.peek()? == simple::NULL {
            self.head()?;
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_identifier<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.peek()? >> 5 != major::TEXT {
            return self.deserialize_any(visitor);
        }
        let head = self.head()?;
        visitor.visit_borrowed_bytes(self.text_bytes(&head)?)
    }

    fn deserialize_ignored_any<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.knows_all && !self.key.is_empty() {
            let key = Reader::new(self.key).str().unwrap_or_default();
            return Err(de::Error::unknown_field(key, &[]));
        }
        self.pass_over()?;
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let start = self.at;
        let head = self.head()?;
        match (head.major, head.argument) {
            (major::TEXT, _) => {
                let name = self.text(&head)?;
                visitor.visit_enum(de::value::BorrowedStrDeserializer::new(name))
            }
            (major::MAP, 1) => {
                self.enter()?;
                let value = visitor.visit_enum(Variant { reader: &mut *self });
                self.depth -= 1;
                value
            }
            _ => Err(Error::at("expected a variant", start)),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Looks at many bytes at once, as the function of this name in the standard library does not.
fn is_ascii(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| chunk.iter().fold(0, |all, byte| all | byte).is_ascii())
        && rest.is_ascii()
}

/// The number below zero that begins there.
fn negative(head: &Head, start: usize) -> Result<i64, Error> {
    let magnitude = i64::try_from(head.argument);
    let number = magnitude.map(|magnitude| -1 - magnitude);
    number.map_err(|_| Error::at("a number below the smallest", start))
}

struct Items<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: usize,
}

impl<'de> de::SeqAccess<'de> for Items<'_, 'de> {
    type Error = Error;

    fn next_element_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

struct Entries<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: usize,
    /// The key before, as it was written.
    last: Option<&'de [u8]>,
}

impl<'de> de::MapAccess<'de> for Entries<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let start = self.reader.at;
        let key = seed.deserialize(&mut *self.reader)?;
        self.reader.follows(&mut self.last, start)?;
        self.reader.key = self.last.unwrap_or_default();
        Ok(Some(key))
    }

    fn next_value_seed<V: de::DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut *self.reader)
    }
}

struct Variant<'a, 'de> {
    reader: &'a mut Reader<'de>,
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: de::DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let name = seed.deserialize(&mut *self.reader)?;
        Ok((name, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Err(Error::at("a variant without content stands alone", self.reader.at))
    }

    fn newtype_variant_seed<T: de::DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.reader)
    }

    fn tuple_variant<V: de::Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_any(self.reader, visitor)
    }

    fn struct_variant<V: de::Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_any(self.reader, visitor)
    }
}
