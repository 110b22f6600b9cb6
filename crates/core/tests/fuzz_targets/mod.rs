//! What the fuzzers run on each input, shared with the ordinary test that replays their corpora.
//!
//! A target panics exactly when the library broke a promise: reading anything is an error or a value, a value that was
//! read can be used, and writing it and reading it again gives the same.
#![allow(dead_code, reason = "each fuzzer uses one of these")]

use schwann_core::io::safetensors::Reader;
use schwann_core::io::{Limits, graph_of, npy, npz};
use schwann_core::{Bindings, DType, Graph};
use std::collections::BTreeMap;

/// A graph's JSON: what parses is well formed, can be shown and costed, and reads back equal.
pub(crate) fn graph_json(data: &[u8]) {
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

/// Safetensors: what opens can be read or refused tensor by tensor, and reads back after writing.
pub(crate) fn safetensors(data: &[u8]) {
    let Ok(file) = Reader::from_bytes(data) else { return };
    let mut whole = BTreeMap::new();
    for entry in file.entries() {
        assert_eq!(file.bytes(&entry.name).expect("listed").len(), entry.window.len());
        for dtype in DType::ALL {
            if let Ok(tensor) = file.tensor_as(&entry.name, dtype) {
                assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &entry.shape[..]));
            }
        }
        if let Ok(tensor) = file.tensor(&entry.name) {
            assert_eq!(tensor.bytes(), file.bytes(&entry.name).expect("listed"));
            whole.insert(entry.name.as_str(), tensor);
        }
    }
    let written = schwann_core::io::safetensors::to_bytes(whole.iter().map(|(n, t)| (*n, t)), file.metadata());
    let again =
        Reader::from_bytes(written.expect("what was read can be written")).expect("what was written reads back");
    assert_eq!(again.metadata(), file.metadata());
    let tensors = again.tensors().expect("only our types were written");
    assert!(tensors.iter().map(|(n, t)| (n.as_str(), t)).eq(whole.iter().map(|(n, t)| (*n, t))));
    if let Ok(graph) = graph_of(&file) {
        graph.verify().expect("what loads is well formed");
    }
}

/// Npy, and where it is no npy, npz: what reads can be written and reads back equal.
pub(crate) fn npy(data: &[u8]) {
    if let Ok(tensor) = npy::from_bytes(data) {
        let written = npy::to_bytes(&tensor).expect("what was read can be written");
        assert_eq!(npy::from_bytes(&written).expect("what was written reads back"), tensor);
    }
    let limits = Limits { total_bytes: 16 << 20, arrays: 100 };
    if let Ok(tensors) = npz::from_bytes(data, &limits) {
        let written =
            npz::to_bytes(tensors.iter().map(|(n, t)| (n.as_str(), t))).expect("what was read can be written");
        assert_eq!(npz::from_bytes(&written, &limits).expect("what was written reads back"), tensors);
    }
}
