//! See `targets`: the same function replays the corpus in an ordinary test.
#![no_main]

#[path = "../../crates/nn/tests/fuzz_targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::decoder(data);
});
