//! Writing.

use serde::{Serialize, ser};

use super::{Error, MAX_DEPTH, half_bits, major, simple};

/// The bytes of a value.
///
/// # Errors
/// A map with two equal keys, a length that is not known beforehand, or too deep a nesting.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    let mut writer = Writer { out: Vec::with_capacity(256), scratch: Vec::new(), depth: 0 };
    value.serialize(&mut writer)?;
    Ok(writer.out)
}

struct Writer {
    out: Vec<u8>,
    scratch: Vec<u8>,
    depth: usize,
}

impl Writer {
    fn head(&mut self, major: u8, argument: u64) {
        let major = major << 5;
        match argument {
            0..=23 => self.out.push(major | argument as u8),
            24..=0xff => self.out.extend([major | 24, argument as u8]),
            0x100..=0xffff => {
                self.out.push(major | 25);
                self.out.extend((argument as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.out.push(major | 26);
                self.out.extend((argument as u32).to_be_bytes());
            }
            _ => {
                self.out.push(major | 27);
                self.out.extend(argument.to_be_bytes());
            }
        }
    }

    fn enter(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(Error::new("nested too deep")) } else { Ok(()) }
    }

    fn map(&mut self) -> Result<Entries<'_>, Error> {
        self.enter()?;
        let start = self.out.len();
        Ok(Entries { writer: self, start, entries: Vec::new() })
    }

    fn array(&mut self, len: Option<usize>) -> Result<Items<'_>, Error> {
        self.enter()?;
        let len = len.ok_or_else(|| Error::new("a list of unknown length"))?;
        self.head(major::ARRAY, len as u64);
        Ok(Items { writer: self, wrapped: false })
    }

    /// `{variant: …}`, as other formats write an enum's variant with content.
    fn variant(&mut self, variant: &str) -> Result<(), Error> {
        self.enter()?;
        self.head(major::MAP, 1);
        ser::Serializer::serialize_str(self, variant)
    }
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

    fn serialize_i8(self, value: i8) -> Result<(), Error> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Error> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Error> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Error> {
        match u64::try_from(value) {
            Ok(value) => self.head(major::UNSIGNED, value),
            Err(_) => self.head(major::NEGATIVE, !(value as u64)),
        }
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), Error> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), Error> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), Error> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Error> {
        self.head(major::UNSIGNED, value);
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Error> {
        self.serialize_f64(value.into())
    }

    /// The shortest of the three that has exactly this value.
    fn serialize_f64(self, value: f64) -> Result<(), Error> {
        if value.is_nan() {
            self.out.extend([simple::F16, 0x7e, 0x00]);
            return Ok(());
        }
        let single = value as f32;
        if f64::from(single).to_bits() != value.to_bits() {
            self.out.push(simple::F64);
            self.out.extend(value.to_be_bytes());
        } else if let Some(half) = half_bits(single) {
            self.out.push(simple::F16);
            self.out.extend(half.to_be_bytes());
        } else {
            self.out.push(simple::F32);
            self.out.extend(single.to_be_bytes());
        }
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        self.head(major::TEXT, value.len() as u64);
        self.out.extend(value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Error> {
        self.head(major::BYTES, value.len() as u64);
        self.out.extend(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
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
        let items = self.array(Some(len))?;
        Ok(Items { wrapped: true, ..items })
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

    fn is_human_readable(&self) -> bool {
        true
    }
}

/// The items of a list.
struct Items<'a> {
    writer: &'a mut Writer,
    /// Whether the list is the content of a variant.
    wrapped: bool,
}

impl Items<'_> {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.writer)
    }

    fn done(self) -> Result<(), Error> {
        self.writer.depth -= 1 + usize::from(self.wrapped);
        Ok(())
    }
}

macro_rules! items {
    ($($trait:ident $method:ident),+) => {$(
        impl ser::$trait for Items<'_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.item(value)
            }

            fn end(self) -> Result<(), Error> {
                self.done()
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

/// The entries of a map, written as they come and put in order at the end.
struct Entries<'a> {
    writer: &'a mut Writer,
    start: usize,
    /// Where each key begins and ends.
    entries: Vec<(usize, usize)>,
}

impl Entries<'_> {
    fn key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        let begin = self.writer.out.len();
        key.serialize(&mut *self.writer)?;
        self.entries.push((begin, self.writer.out.len()));
        Ok(())
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.writer)
    }

    /// Puts the entries in order, and the number of them in front.
    fn done(mut self) -> Result<(), Error> {
        let Writer { out, scratch, depth } = self.writer;
        *depth -= 1;
        let end = out.len();
        let count = self.entries.len();
        // Each entry with the end of its value.
        let mut entries: Vec<(usize, usize, usize)> = Vec::with_capacity(count);
        for (index, (begin, key_end)) in self.entries.drain(..).enumerate() {
            entries.push((begin, key_end, index));
        }
        let ends: Vec<usize> = entries.iter().skip(1).map(|entry| entry.0).chain([end]).collect();
        entries.sort_by(|a, b| out[a.0..a.1].cmp(&out[b.0..b.1]));
        if entries.windows(2).any(|pair| out[pair[0].0..pair[0].1] == out[pair[1].0..pair[1].1]) {
            return Err(Error::new("a map with two equal keys"));
        }
        scratch.clear();
        for (begin, _, index) in &entries {
            scratch.extend_from_slice(&out[*begin..ends[*index]]);
        }
        out.truncate(self.start);
        self.writer.head(major::MAP, count as u64);
        let Writer { out, scratch, .. } = self.writer;
        out.extend_from_slice(scratch);
        Ok(())
    }
}

impl ser::SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.value(value)
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
                self.key(key)?;
                self.value(value)
            }

            fn end(self) -> Result<(), Error> {
                self.done()
            }
        }
    )+};
}
fields!(SerializeStruct, SerializeStructVariant);
