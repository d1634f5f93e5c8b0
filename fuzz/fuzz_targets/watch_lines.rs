#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pilotlight::fuzzing::watch_lines(data));
