//! What the fuzzers run on each input, shared with the ordinary test that replays their corpora: reading anything is an error
//! or a value, and a value that was read can be written and reads back. Each says how many values there were to check.
#![allow(dead_code, reason = "each fuzzer uses one of these")]

use schwann_core::io::gguf::Gguf;
use schwann_core::io::safetensors;
use schwann_core::{Bindings, CompileOptions, Program, Tensor, Type};
use schwann_nn::decoder;
use schwann_nn::wiring::{Wiring, WiringConfig};
use schwann_nn::{CONFIG_KEY, GraphOptions, Layer, MODEL_KEY, Model, import_ncps_bytes};
use serde_json::Value;
use std::collections::BTreeMap;

/// The JSON of a wiring, or of how one is drawn.
pub(crate) fn wiring(data: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(data) else { return 0 };
    let mut checked = 0;
    if let Ok(wiring) = Wiring::from_json(text) {
        let again = Wiring::from_json(&wiring.to_json()).expect("what was written reads back");
        assert_eq!(wiring, again);
        checked += 1;
    }
    if let Ok(config) = WiringConfig::from_json(text) {
        let again = WiringConfig::from_json(&config.to_json()).expect("what was written reads back");
        assert_eq!(config, again);
        checked += 1;
        // A circuit that is drawn takes memory by the square of its neurons; a fuzzer has none to spare.
        if serde_json::from_str(text).is_ok_and(|json| small(&json))
            && let Ok(wiring) = config.to_wiring()
        {
            assert_eq!(Wiring::from_json(&wiring.to_json()).expect("what was drawn reads back"), wiring);
        }
    }
    checked
}

/// A decoder: a GGUF file; or `config.json`, a byte of 0, and `model.safetensors`. What is read makes a network, and a small
/// one runs.
pub(crate) fn decoder(data: &[u8]) -> usize {
    let opened = if data.starts_with(b"GGUF") {
        Gguf::from_bytes(data.to_vec()).map_err(schwann_nn::Error::from).and_then(|file| decoder::from_gguf(&file))
    } else {
        let Some(end) = data.iter().position(|byte| *byte == 0) else { return 0 };
        let folder = std::env::temp_dir().join(format!("schwann-decoder-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("there is a folder for temporary files");
        std::fs::write(folder.join("config.json"), &data[..end]).expect("room for it");
        std::fs::write(folder.join("model.safetensors"), &data[end + 1..]).expect("room for it");
        let opened = decoder::open(&folder);
        std::fs::remove_dir_all(&folder).expect("its own folder");
        opened
    };
    let Ok((decoder, weights)) = opened else { return 0 };
    let graph = decoder.graph(&weights).expect("what was read makes a network");
    graph.verify().expect("which is well formed");
    if graph.weights().values().map(|t| t.bytes().len()).sum::<usize>() <= 1 << 20 && graph.nodes().len() <= 1 << 10 {
        let program = Program::compile(&graph, &CompileOptions::default()).expect("which compiles");
        let tokens = Tensor::new(&[1, 1], &[0i32]).expect("one symbol");
        let logits = program.session().run(&[("tokens", &tokens)]).expect("and runs")[0].clone();
        assert_eq!(logits.shape(), [1, 1, decoder.vocabulary]);
    }
    1
}

/// A model's file, or the JSON of its layers alone: what is read can be written, reads back, and compiles and runs.
pub(crate) fn model(data: &[u8]) -> usize {
    let mut checked = 0;
    for model in [Model::from_bytes(data), import_ncps_bytes(data)].iter().flatten() {
        checked += holds(model);
    }
    let Ok(text) = std::str::from_utf8(data) else { return checked };
    let weight = Tensor::scalar(1.0f32);
    for key in [MODEL_KEY, CONFIG_KEY] {
        let metadata = BTreeMap::from([(key.to_owned(), text.to_owned())]);
        let bytes = safetensors::to_bytes([("w", &weight)], &metadata).expect("one number and a text");
        for model in [Model::from_bytes(&*bytes), import_ncps_bytes(&*bytes)].iter().flatten() {
            checked += holds(model);
        }
    }
    // Layers without their weights, which are drawn; what a file of weights would refuse for its size is left out.
    let Ok(json) = serde_json::from_str::<Value>(text) else { return checked };
    let layers = json.get("layers").unwrap_or(&json).clone();
    let layers = if layers.is_array() { layers } else { Value::Array(vec![layers]) };
    if !small(&layers) {
        return checked;
    }
    let Ok(layers) = serde_json::from_value::<Vec<Layer>>(layers) else { return checked };
    checked + Model::new(layers, 1).iter().map(holds).sum::<usize>()
}

/// Whether no number in it is large.
fn small(json: &Value) -> bool {
    match json {
        Value::Number(n) => n.as_f64().is_some_and(|n| n.abs() <= 40.0),
        Value::Array(list) => list.len() <= 40 && list.iter().all(small),
        Value::Object(map) => map.values().all(small),
        _ => true,
    }
}

/// Whether it ran, as a number.
fn holds(model: &Model) -> usize {
    let written = model.to_bytes().expect("what was read can be written");
    assert_eq!(&Model::from_bytes(written).expect("what was written reads back"), model);
    let Ok(graph) = model.graph(&GraphOptions::default()) else { return 0 };
    graph.verify().expect("layers build a graph that is well formed");
    let program = Program::compile(&graph, &CompileOptions::default().threads(1)).expect("what layers build compiles");
    let bindings = graph.symbols().iter().fold(Bindings::new(), |b, symbol| b.with(symbol, 2));
    let value = |ty: &Type| Tensor::zeros(ty.dtype, &ty.shape.eval(&bindings)?);
    let inputs: schwann_core::Result<Vec<(&str, Tensor)>> =
        graph.inputs().map(|(name, v)| Ok((name, value(graph.ty(v))?))).collect();
    let inputs = inputs.expect("sizes of 2");
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, t)| (*name, t)).collect();
    program.session().run(&given).expect("what compiles runs");
    1
}
