//! Numbers in as few bytes as they need: seven bits a byte, the lowest first, and the highest bit set in all but the last.

pub(crate) fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// The number that bytes begin with, which are then those behind it; none if they begin with none.
pub(crate) fn pull(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for bits in (0..u64::BITS).step_by(7) {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << bits;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_as_it_was() {
        for number in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, i64::MAX.cast_unsigned(), u64::MAX] {
            let mut bytes = Vec::new();
            push(&mut bytes, number);
            bytes.push(7);
            let mut rest = &bytes[..];
            assert_eq!((pull(&mut rest), rest), (Some(number), &[7][..]), "{number}");
        }
    }

    #[test]
    fn what_is_no_number_is_none() {
        for bytes in [&[][..], &[0x80], &[0xff; 9], &[0xff; 11]] {
            assert_eq!(pull(&mut { bytes }), None, "{bytes:?}");
        }
    }
}
