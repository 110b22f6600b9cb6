//! What the fuzzers run on each input, shared with the ordinary test that replays their corpora.
//!
//! A target panics exactly when the library broke a promise: reading anything is an error or a value, a value that was
//! read can be used, and writing it and reading it again gives the same.
#![allow(dead_code, reason = "each fuzzer uses one of these")]

use schwann_core::{Bindings, Graph};

/// A graph's JSON: what parses is well formed, can be shown and costed, and reads back equal.
pub fn graph_json(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(graph) = Graph::from_json(text) else { return };
    graph.verify().expect("what parses is well formed");
    assert!(graph.to_string().len() + graph.to_dot().len() > 0);
    for size in [0, 1, 3] {
        let bindings = graph.symbols().iter().fold(Bindings::new(), |b, symbol| b.with(symbol, size));
        // Sizes such as T - 4 may have no value here; that is an error, and all that is asked.
        let _ = graph.cost(&bindings);
    }
    let again = Graph::from_json(&graph.to_json()).expect("what was written reads back");
    assert_eq!(graph, again);
}

/// Safetensors.
pub fn safetensors(_data: &[u8]) {}

/// Npy and npz.
pub fn npy(_data: &[u8]) {}
