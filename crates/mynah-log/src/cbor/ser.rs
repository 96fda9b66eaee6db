//! Writing.

use std::{cell::Cell, cmp::Ordering};

use serde::{Serialize, ser};

use super::{CborError as Error, MAX_DEPTH, half_bits, major, simple};

/// The bytes of a value.
///
/// # Errors
/// A map with two equal keys, a length that is not known beforehand, or too deep a nesting.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    with_bytes(value, <[u8]>::to_vec)
}

/// Does something with the bytes of a value, as [`to_vec`] gives them, without memory of their own.
///
/// ```
/// # mod mynah { pub use mynah_log as log; }
/// use mynah::log::cbor;
/// assert_eq!(cbor::with_bytes("a", |bytes| bytes == [0x61, b'a'])?, true);
/// # Ok::<(), cbor::CborError>(())
/// ```
///
/// # Errors
/// As [`to_vec`].
#[doc(hidden)]
pub fn with_bytes<T: Serialize + ?Sized, R>(
    value: &T,
    look: impl FnOnce(&[u8]) -> R,
) -> Result<R, Error> {
    Writer::with(|writer| writer.encode(value).map(look))
}

thread_local! {
    /// Taken out while it writes.
    static WRITER: Cell<Option<Writer>> = const { Cell::new(None) };
}

/// Writes values one after the other, into the same memory.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    out: Vec<u8>,
    /// The keys of the maps that are being written, the innermost map's last.
    keys: Vec<Key>,
    scratch: Vec<u8>,
    depth: usize,
    /// Where the last value that is not there was written.
    nothing: Option<usize>,
}

/// The position of an entry of a map.
#[derive(Clone, Copy, Debug)]
struct Key {
    begin: usize,
    end: usize,
    /// The end of its value.
    value_end: usize,
}

impl Writer {
    /// Writes with the memory that this thread keeps for it: what a run would keep for itself, it would rarely need.
    pub(crate) fn with<R>(write: impl FnOnce(&mut Self) -> R) -> R {
        /// How many bytes a thread keeps at most.
        const KEPT: usize = 64 << 10;
        let mut writer = WRITER.try_with(Cell::take).ok().flatten().unwrap_or_default();
        writer.start();
        let written = write(&mut writer);
        if writer.out.capacity().max(writer.scratch.capacity()) <= KEPT {
            // A thread that ends keeps nothing.
            let _ = WRITER.try_with(|kept| kept.set(Some(writer)));
        }
        written
    }

    fn encode<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<&[u8], Error> {
        self.start();
        value.serialize(&mut *self)?;
        Ok(&self.out)
    }

    /// Resets the encoder.
    pub(crate) fn start(&mut self) {
        self.out.clear();
        self.keys.clear();
        (self.depth, self.nothing) = (0, None);
    }

    /// All that was written since the start.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.out
    }

    #[inline]
    pub(crate) fn head(&mut self, major: u8, argument: u64) {
        match argument {
            0..=23 => self.out.push(major << 5 | argument as u8),
            _ => self.long_head(major << 5, argument),
        }
    }

    fn long_head(&mut self, major: u8, argument: u64) {
        match argument {
            ..=0xff => self.out.extend_from_slice(&[major | 24, argument as u8]),
            0x100..=0xffff => {
                self.out.push(major | 25);
                self.out.extend_from_slice(&(argument as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.out.push(major | 26);
                self.out.extend_from_slice(&(argument as u32).to_be_bytes());
            }
            _ => {
                self.out.push(major | 27);
                self.out.extend_from_slice(&argument.to_be_bytes());
            }
        }
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.head(major::TEXT, text.len() as u64);
        self.out.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn byte_string(&mut self, bytes: &[u8]) {
        self.head(major::BYTES, bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn integer(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.head(major::UNSIGNED, value),
            Err(_) => self.head(major::NEGATIVE, !(value as u64)),
        }
    }

    fn enter(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(Error::new("nested too deep")) } else { Ok(()) }
    }

    fn map(&mut self) -> Result<Entries<'_>, Error> {
        self.enter()?;
        let (start, first) = (self.out.len(), self.keys.len());
        // Room for the number of entries, which is known at the end.
        self.out.push(0);
        Ok(Entries { writer: self, start, first, in_order: true })
    }

    fn array(&mut self, len: Option<usize>) -> Result<Items<'_>, Error> {
        self.enter()?;
        let len = len.ok_or_else(|| Error::new("a list of unknown length"))?;
        self.head(major::ARRAY, len as u64);
        Ok(Items(self))
    }

    /// `{variant: …}`, as other formats write an enum's variant with content.
    fn variant(&mut self, variant: &str) -> Result<(), Error> {
        self.enter()?;
        self.head(major::MAP, 1);
        self.text(variant);
        Ok(())
    }
}

/// Numbers are written as the widest of their kind.
macro_rules! widened {
    ($($method:ident($type:ty) = $widest:ident;)+) => {$(
        fn $method(self, value: $type) -> Result<(), Error> {
            self.$widest(value.into())
        }
    )+};
}

impl<'a> ser::Serializer for &'a mut Writer {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Items<'a>;
    type SerializeMap = Entries<'a>;
    type SerializeStruct = Entries<'a>;
    type SerializeStructVariant = Entries<'a>;

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.out.push(if value { simple::TRUE } else { simple::FALSE });
        Ok(())
    }

    widened! {
        serialize_i8(i8) = serialize_i64;
        serialize_i16(i16) = serialize_i64;
        serialize_i32(i32) = serialize_i64;
        serialize_u8(u8) = serialize_u64;
        serialize_u16(u16) = serialize_u64;
        serialize_u32(u32) = serialize_u64;
        serialize_f32(f32) = serialize_f64;
    }

    fn serialize_i64(self, value: i64) -> Result<(), Error> {
        self.integer(value);
        Ok(())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Error> {
        self.head(major::UNSIGNED, value);
        Ok(())
    }

    /// Writes the shortest of the three formats that has exactly this value. NaN and infinities
    /// become null, as in JSON.
    fn serialize_f64(self, value: f64) -> Result<(), Error> {
        if !value.is_finite() {
            return self.serialize_none();
        }
        let single = value as f32;
        if f64::from(single).to_bits() != value.to_bits() {
            self.out.push(simple::F64);
            self.out.extend_from_slice(&value.to_be_bytes());
        } else if let Some(half) = half_bits(single) {
            self.out.push(simple::F16);
            self.out.extend_from_slice(&half.to_be_bytes());
        } else {
            self.out.push(simple::F32);
            self.out.extend_from_slice(&single.to_be_bytes());
        }
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        self.text(value);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Error> {
        self.byte_string(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.nothing = Some(self.out.len());
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        let begin = self.out.len();
        value.serialize(&mut *self)?;
        // Something that is null is read as nothing.
        if self.out[begin..] == [simple::NULL] {
            self.nothing = Some(begin);
        }
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.out.push(simple::NULL);
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.variant(variant)?;
        value.serialize(&mut *self)?;
        self.depth -= 1;
        Ok(())
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Items<'a>, Error> {
        self.array(len)
    }

    fn serialize_tuple(self, len: usize) -> Result<Items<'a>, Error> {
        self.array(Some(len))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Items<'a>, Error> {
        self.array(Some(len))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Items<'a>, Error> {
        self.variant(variant)?;
        self.depth -= 1;
        self.array(Some(len))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries<'a>, Error> {
        self.map()
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Entries<'a>, Error> {
        self.map()
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Entries<'a>, Error> {
        self.variant(variant)?;
        self.depth -= 1;
        self.map()
    }

    /// Derived members need not be written.
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The items of a list.
pub struct Items<'a>(&'a mut Writer);

macro_rules! items {
    ($($trait:ident $method:ident),+) => {$(
        impl ser::$trait for Items<'_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                value.serialize(&mut *self.0)
            }

            fn end(self) -> Result<(), Error> {
                self.0.depth -= 1;
                Ok(())
            }
        }
    )+};
}
items!(
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field
);

/// The entries of a map, written as they come and sorted at the end if necessary.
pub struct Entries<'a> {
    writer: &'a mut Writer,
    start: usize,
    /// The first of the map's own keys.
    first: usize,
    in_order: bool,
}

impl Key {
    /// Orders keys by their encoded bytes. The first byte, which has the length, mostly decides.
    fn cmp(&self, other: &Self, out: &[u8]) -> Ordering {
        let whole = || out[self.begin..self.end].cmp(&out[other.begin..other.end]);
        out[self.begin].cmp(&out[other.begin]).then_with(whole)
    }
}

impl Entries<'_> {
    /// A written key, possibly with its value after it.
    fn entry(&mut self, begin: usize, end: usize) {
        let Writer { out, keys, .. } = &mut *self.writer;
        let key = Key { begin, end, value_end: 0 };
        if let Some(last) = keys[self.first..].last() {
            self.in_order &= last.cmp(&key, out).is_lt();
        }
        keys.push(key);
    }

    /// A member of a struct. One that is not there is left out instead of being null.
    fn member<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), Error> {
        let begin = self.writer.out.len();
        self.writer.text(name);
        let end = self.writer.out.len();
        value.serialize(&mut *self.writer)?;
        if self.writer.nothing.take() == Some(end) {
            self.writer.out.truncate(begin);
        } else {
            self.entry(begin, end);
        }
        Ok(())
    }

    fn done(self) -> Result<(), Error> {
        let Writer { out, keys, scratch, depth, .. } = &mut *self.writer;
        *depth -= 1;
        let count = keys.len() - self.first;
        if !self.in_order {
            put_in_order(out, &mut keys[self.first..], scratch)?;
        }
        keys.truncate(self.first);
        match count {
            0..=23 => out[self.start] = major::MAP << 5 | count as u8,
            _ => {
                let entries = out.split_off(self.start + 1);
                out.truncate(self.start);
                self.writer.head(major::MAP, count as u64);
                self.writer.out.extend_from_slice(&entries);
            }
        }
        Ok(())
    }
}

/// Sorts the last written entries, those of one map, by their keys.
fn put_in_order(out: &mut [u8], keys: &mut [Key], scratch: &mut Vec<u8>) -> Result<(), Error> {
    let mut start = out.len();
    for key in keys.iter_mut().rev() {
        key.value_end = start;
        start = key.begin;
    }
    keys.sort_unstable_by(|a, b| a.cmp(b, out));
    if keys.windows(2).any(|pair| pair[0].cmp(&pair[1], out).is_eq()) {
        return Err(Error::new("a map with two equal keys"));
    }
    scratch.clear();
    keys.iter().for_each(|key| scratch.extend_from_slice(&out[key.begin..key.value_end]));
    out[start..].copy_from_slice(scratch);
    Ok(())
}

impl ser::SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        let begin = self.writer.out.len();
        key.serialize(&mut *self.writer)?;
        self.entry(begin, self.writer.out.len());
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.writer)
    }

    fn end(self) -> Result<(), Error> {
        self.done()
    }
}

macro_rules! fields {
    ($($trait:ident),+) => {$(
        impl ser::$trait for Entries<'_> {
            type Ok = ();
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
                self.member(key, value)
            }

            fn end(self) -> Result<(), Error> {
                self.done()
            }
        }
    )+};
}
fields!(SerializeStruct, SerializeStructVariant);
