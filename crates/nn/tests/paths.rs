//! Operations of layers in all their modes, and of networks from PyTorch, are called by the parts of the network they
//! belong to.

#[path = "named/mod.rs"]
mod named;

use named::check_model;
use schwann_nn::wiring::AutoNcp;
use schwann_nn::{
    Activation, Affine, Cfc, CfcMode, Gru, Layer, LayerNorm, Linear, Lstm, Ltc, Model, Rnn, Softmax, import_ncps,
};
use std::path::PathBuf;

/// The steps of a layer's plan for a batch, but for copies of what enters a cell.
fn fused(layer: impl Into<Layer>) -> Vec<String> {
    let mut steps = check_model("one layer", &Model::new(layer.into(), 1).unwrap());
    steps.retain(|name| !name.ends_with(".joined"));
    steps
}

#[test]
fn steps_of_a_wired_cfc_are_its_layers_gates() {
    let steps = fused(Cfc::new(8, AutoNcp::new(64, 16).wiring().unwrap()));
    assert_eq!(steps, ["cfc.steps", "cfc.inter.gate", "cfc.command.gate", "cfc.motor.gate"]);
}

#[test]
fn steps_of_a_projected_cfc_are_its_backbone_its_gate_and_its_projection() {
    let backbone = Cfc { backbone_units: Some(64), backbone_layers: Some(2), ..Cfc::new(8, 64) };
    let steps = fused(Cfc { proj_size: Some(16), ..backbone });
    assert_eq!(steps, ["cfc.steps", "cfc.backbone.0", "cfc.backbone.2", "cfc.gate", "cfc.projection"]);
}

#[test]
fn steps_of_an_ltc_are_its_sensory_synapses_its_voltage_and_its_output() {
    let steps = fused(Ltc::new(8, AutoNcp::new(64, 16).wiring().unwrap()));
    assert_eq!(steps, ["ltc.steps", "ltc.sensory", "ltc.voltage", "ltc.output"]);
}

#[test]
fn modes_of_cfc_and_ltc_have_paths_too() {
    let wired = || AutoNcp::new(21, 4).wiring().unwrap();
    let dense = || Cfc { mixed_memory: true, backbone_layers: Some(2), backbone_dropout: Some(0.1), ..Cfc::new(5, 9) };
    let one = |layer: Layer| Model::new(layer, 1).unwrap();
    for mode in [CfcMode::Default, CfcMode::Pure, CfcMode::NoGate] {
        check_model("dense", &one(Cfc { mode, proj_size: Some(3), ..dense() }.into()));
        check_model("last only", &one(Cfc { mode, return_sequences: false, ..Cfc::new(5, wired()) }.into()));
    }
    check_model("LTC", &one(Ltc { mixed_memory: true, ..Ltc::new(5, wired()) }.into()));
    check_model("explicit", &one(Ltc { implicit_param_constraints: false, ..Ltc::new(5, 4) }.into()));
}

#[test]
fn layers_of_a_network_have_their_number_and_class_or_the_name_they_were_given() {
    use Activation::*;
    let functions = [LecunTanh, Silu, Relu, Tanh, Gelu, GeluTanh, Sigmoid, LogSigmoid, Softsign, Selu, Hardsigmoid];
    let others = [Softplus { beta: 2.0 }, LeakyRelu { slope: 0.1 }, Elu { alpha: 0.5 }, Hardswish, Mish];
    let mut layers: Vec<Layer> = vec![Affine::new(4).into(), Linear::new(4, 4).into(), LayerNorm::new(4).into()];
    layers.extend(functions.into_iter().chain(others).map(Layer::from));
    layers.extend([Hardtanh { low: -1.0, high: 1.0 }.into(), Softmax { log: true }.into()]);
    let steps = check_model("dense", &Model::new(layers, 1).unwrap());
    assert_eq!(steps.first().map(String::as_str), Some("0.affine"), "{steps:?}");
    assert!(steps.iter().any(|name| name == "1.linear"), "{steps:?}");

    let recurrent =
        vec![Lstm::new(4, 6).into(), Gru::new(6, 5).into(), Rnn::new(5, 3).into(), Linear::new(3, 2).into()];
    let model = Model::new(recurrent, 1).unwrap();
    let names = |steps: &[String], path: &str| steps.iter().filter(|name| name.starts_with(path)).count();
    let numbered = check_model("recurrent", &model);
    assert!(["0.lstm.", "1.gru.", "2.rnn.", "3.linear"].iter().all(|path| names(&numbered, path) > 0), "{numbered:?}");
    let given = ["memory", "gates", "plain", "head"].map(str::to_owned);
    let named = check_model("recurrent", &model.clone().with_names(given.to_vec()).unwrap());
    assert!(given.iter().all(|path| names(&named, path) > 0), "{named:?}");
    assert!(model.with_names(vec!["one".to_owned()]).is_err());
}

#[test]
fn every_file_from_pytorch_has_its_modules_names() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut named = 0;
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "safetensors")) {
        // Files of a wiring alone are no models.
        let Ok(model) = import_ncps(file) else { continue };
        let what = file.file_name().unwrap().to_string_lossy();
        check_model(&what, &model);
        named += usize::from(!model.names().is_empty());
        let again = Model::from_bytes(model.to_bytes().unwrap()).unwrap();
        assert_eq!(again.names(), model.names(), "{what}");
    }
    assert!(named >= 10, "{named} files with names");
    let file = format!("{folder}/network_1_0056.safetensors");
    let model = import_ncps(file).unwrap();
    let paths: Vec<String> = (0..model.layers().len()).map(|i| model.path(i)).collect();
    let [scale, encoder, _, first, second, ..] = &paths[..] else { panic!("{paths:?}") };
    assert_eq!(
        [scale, encoder, first, second].map(String::as_str),
        ["div", "encoder.0", "circuits.0.l0", "circuits.0.l1"]
    );
}
