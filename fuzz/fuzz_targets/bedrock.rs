#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| mynah_fuzz::answer("bedrock", bytes));
