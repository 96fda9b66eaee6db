//! Any rows at all: no panic, and what cannot be read is refused.
//!
//! `PROPTEST_CASES` sets the number of cases; `cargo xtask nightly` also runs the same function under a fuzzer, see `fuzz/`.

use proptest::{collection::vec, prelude::*};

use crate::targets;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_rows_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        targets::rows(&bytes);
    }
}
