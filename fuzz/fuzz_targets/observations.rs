#![no_main]

libfuzzer_sys::fuzz_target!(init: softly_fuzz::prepare(), |data: &[u8]| softly_fuzz::targets::observations(data));
