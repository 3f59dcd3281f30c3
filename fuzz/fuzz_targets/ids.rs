//! `ids` of `pgshard::fuzzing`, with inputs of libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pgshard::fuzzing::run("ids", data));
