//! What the fuzzers run on each input, shared with the ordinary test that replays their corpora: reading anything is an error
//! or a value, and a value that was read can be written and reads back.
#![allow(dead_code, reason = "each fuzzer uses one of these")]

use schwann_nn::Model;
use schwann_nn::wiring::{Wiring, WiringConfig};

/// The JSON of a wiring, or of how one is drawn.
pub(crate) fn wiring(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(wiring) = Wiring::from_json(text) {
        let again = Wiring::from_json(&wiring.to_json()).expect("what was written reads back");
        assert_eq!(wiring, again);
    }
    let _ = WiringConfig::from_json(text);
}

/// A model's file: its metadata, and the weights that must fit it.
pub(crate) fn model(data: &[u8]) {
    let Ok(model) = Model::from_bytes(data) else { return };
    let written = model.to_bytes().expect("what was read can be written");
    Model::from_bytes(written).expect("what was written reads back");
}
