//! Layers of PyTorch: whole networks in files, what is refused, and each function against its formula.

use schwann_core::backend::cpu::Cpu;
use schwann_core::io::safetensors;
use schwann_core::{CompileOptions, DType, Program, Tensor};
use schwann_kernels::Isa;
use schwann_nn::{
    Activation, Affine, Cfc, Embedding, GraphOptions, Gru, Layer, LayerNorm, Linear, Lstm, Ltc, Model, Result, Rnn,
    Sequential, Softmax, Timespans, import_ncps, rounded_weights,
};
use std::collections::BTreeMap;

fn said<T>(result: Result<T>) -> String {
    result.err().map(|e| e.to_string()).unwrap_or_default()
}

fn networks() -> Vec<Sequential> {
    let head = Lstm { proj_size: Some(3), bias: false, return_sequences: false, ..Lstm::new(5, 7) };
    vec![
        Lstm::new(4, 6).into(),
        Gru { bias: false, ..Gru::new(4, 6) }.into(),
        Rnn { nonlinearity: Activation::Relu, ..Rnn::new(4, 6) }.into(),
        LayerNorm { bias: false, eps: 1e-3, ..LayerNorm::new(4) }.into(),
        vec![
            Affine::new(4).into(),
            Linear::new(4, 5).into(),
            LayerNorm::new(5).into(),
            Activation::Elu { alpha: 0.5 }.into(),
            Activation::Hardtanh { low: -2.0, high: 0.25 }.into(),
            head.into(),
            Softmax { log: true }.into(),
        ]
        .into(),
        vec![Embedding::new(9, 4).into(), Gru::new(4, 3).into(), Lstm::new(3, 2).into(), Rnn::new(2, 2).into()].into(),
    ]
}

#[test]
fn a_network_reads_back_from_one_file_as_it_was() -> Result<()> {
    for layers in networks() {
        let model = Model::new(layers, 3)?;
        assert_eq!(Model::from_bytes(model.to_bytes()?)?, model);
        assert!(model.info()?.parameters > 0);
    }
    Ok(())
}

#[test]
fn every_recurrent_layer_has_states_of_its_own() -> Result<()> {
    let network = networks().pop().unwrap();
    let graph = Model::new(network, 1)?.graph(&GraphOptions::default())?;
    let states: Vec<&str> = graph.states().iter().map(|s| s.input.as_str()).collect();
    assert_eq!(states, ["1.h0", "2.h0", "2.c0", "3.h0"]);
    Ok(())
}

#[test]
fn options_that_cannot_be_are_refused_by_name() {
    let function = |function| Layer::Activation { function };
    for (layer, problem) in [
        (Lstm::new(0, 6).into(), "`input_size` is 0; expected from 1 to 268435456"),
        (Gru::new(4, 0).into(), "`hidden_size` is 0; expected from 1 to 268435456"),
        (
            Lstm { proj_size: Some(6), ..Lstm::new(4, 6) }.into(),
            "`proj_size` is 6; expected less than `hidden_size`, 6, and above 0",
        ),
        (
            Rnn { nonlinearity: Activation::Gelu, ..Rnn::new(4, 6) }.into(),
            "`nonlinearity` is Gelu; expected tanh or relu",
        ),
        (
            LayerNorm { eps: f32::NAN, ..LayerNorm::new(4) }.into(),
            "`eps` is NaN; expected a finite number, not negative",
        ),
        (Affine::new(0).into(), "`features` is 0; expected from 1 to 268435456"),
        (function(Activation::LeakyRelu { slope: f32::INFINITY }), "`slope` is inf; expected a finite number"),
        (function(Activation::Softplus { beta: 0.0 }), "`beta` is 0; expected a finite number above 0"),
        (function(Activation::Hardtanh { low: 1.0, high: 0.0 }), "`low` is 1; expected at most `high`, 0"),
    ] as [(Layer, &str); 9]
    {
        assert_eq!(said(Model::new(layer, 1)), problem);
    }
    let backbone = Cfc { activation: Activation::Elu { alpha: f32::NAN }, ..Cfc::new(2, 3) };
    assert_eq!(said(Model::new(backbone, 1)), "`alpha` is NaN; expected a finite number");
}

#[test]
fn a_network_without_a_circuit_does_not_take_time_in_silence() -> Result<()> {
    let model = Model::new(Lstm::new(2, 3), 1)?;
    let graph = |timespans| said(model.graph(&GraphOptions::default().timespans(timespans)));
    assert_eq!(graph(Timespans::Constant(1.0)), "");
    assert_eq!(
        graph(Timespans::Constant(0.5)),
        "`timespans` is 0.5; expected 1, since no layer of the model knows of time"
    );
    assert!(graph(Timespans::PerStep).contains("expected a model with a CfC or an LTC"));
    Ok(())
}

/// The path of a file in the form that the exporter writes, removed when the test ends.
struct Exported(std::path::PathBuf);

impl Exported {
    fn new(name: &str, config: &str, tensors: &BTreeMap<String, Tensor>) -> Result<Exported> {
        let path = std::env::temp_dir().join(format!("schwann-networks-{}-{name}.safetensors", std::process::id()));
        let metadata = BTreeMap::from([("config".to_owned(), config.to_owned())]);
        safetensors::write(&path, tensors.iter().map(|(n, t)| (n.as_str(), t)), &metadata)?;
        Ok(Exported(path))
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn an_exported_network_is_its_layers_in_order() -> Result<()> {
    let model = Model::new(vec![Linear::new(2, 3).into(), Gru::new(3, 2).into()], 1)?;
    let tensors = model.weights().iter().map(|(n, t)| (format!("model.{n}"), t.clone())).collect();
    let layers = r#"[{"class": "Linear", "in_features": 2, "out_features": 3},
        {"class": "GRU", "input_size": 3, "hidden_size": 2}]"#;
    let file = Exported::new("order", &format!(r#"{{"class": "Sequential", "layers": {layers}}}"#), &tensors)?;
    assert_eq!(import_ncps(&file.0)?, model);
    assert!(rounded_weights(&file.0)?.is_empty());

    for (name, config, problem) in [
        ("none", r#"{"class": "Sequential"}"#, "a Sequential without a list `layers`"),
        ("empty", r#"{"class": "Sequential", "layers": []}"#, "`layers` is an empty list"),
        (
            "nested",
            r#"{"class": "Sequential", "layers": [{"class": "Sequential", "layers": []}]}"#,
            "unknown variant `Sequential`",
        ),
        (
            "class",
            r#"{"class": "Sequential", "layers": [{"class": "Linear", "in_features": 2, "out_features": 3}, {"class": "Conv"}]}"#,
            "layer 1: unknown variant `Conv`",
        ),
    ] {
        let file = Exported::new(name, config, &tensors)?;
        let found = said(import_ncps(&file.0));
        assert!(found.contains(problem), "{name}: {found}");
    }
    Ok(())
}

#[test]
fn many_small_circuits_cannot_ask_for_much_together() -> Result<()> {
    // Each is small enough for a file of its own.
    let layer = r#"{"class": "LTC", "input_size": 800, "units": 800}"#;
    let config = format!(r#"{{"class": "Sequential", "layers": [{}]}}"#, vec![layer; 100].join(","));
    let tensors = BTreeMap::from([("model.x".to_owned(), Tensor::zeros(DType::F32, &[4])?)]);
    let file = Exported::new("many", &config, &tensors)?;
    let problem = said(import_ncps(&file.0));
    assert!(problem.contains("a circuit of 800 neurons"), "{problem}");
    let model = Model::new(Ltc::new(2, 3), 1)?;
    let form = format!(r#"{{"version": 1, "layers": [{}]}}"#, vec![layer; 100].join(","));
    let metadata = BTreeMap::from([("schwann.model".to_owned(), form)]);
    let tensors = model.weights().iter().map(|(n, t)| (n.as_str(), t));
    let problem = said(Model::from_bytes(safetensors::to_bytes(tensors, &metadata)?));
    assert!(problem.contains("a circuit of 800 neurons"), "{problem}");
    Ok(())
}

#[test]
fn weights_of_64_bits_are_told_of() -> Result<()> {
    // The writer has no such type, so the file is made by hand.
    let header = r#"{"__metadata__":{"config":"{\"class\":\"Linear\",\"in_features\":1,\"out_features\":1}"},
        "model.weight":{"dtype":"F64","shape":[1,1],"data_offsets":[0,8]},
        "model.bias":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},
        "x":{"dtype":"F64","shape":[1,1],"data_offsets":[12,20]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&0.1f64.to_le_bytes());
    bytes.extend_from_slice(&1f32.to_le_bytes());
    bytes.extend_from_slice(&2f64.to_le_bytes());
    let path = std::env::temp_dir().join(format!("schwann-networks-{}-wide.safetensors", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let (rounded, model) = (rounded_weights(&path), import_ncps(&path));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(rounded?, ["weight"]);
    assert_eq!(model?.weight("weight")?.values::<f32>()?, [0.1f32]);
    Ok(())
}

#[test]
fn each_function_is_its_formula_on_every_instruction_set() -> Result<()> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let elu = |x: f64, alpha: f64| if x > 0.0 { x } else { alpha * x.exp_m1() };
    type Function<'a> = Box<dyn Fn(f64) -> f64 + 'a>;
    let functions: Vec<(Activation, Function<'_>)> = vec![
        (Activation::LecunTanh, Box::new(|x| 1.7159 * (0.666 * x).tanh())),
        (Activation::Silu, Box::new(|x| x * sigmoid(x))),
        (Activation::Relu, Box::new(|x| x.max(0.0))),
        (Activation::Tanh, Box::new(f64::tanh)),
        (
            Activation::GeluTanh,
            Box::new(|x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())),
        ),
        (Activation::Sigmoid, Box::new(sigmoid)),
        (Activation::LogSigmoid, Box::new(|x| -softplus(-x))),
        (Activation::Softplus { beta: 2.5 }, Box::new(|x| softplus(2.5 * x) / 2.5)),
        (Activation::Softsign, Box::new(|x| x / (1.0 + x.abs()))),
        (Activation::LeakyRelu { slope: -0.3 }, Box::new(|x| if x > 0.0 { x } else { -0.3 * x })),
        (Activation::Elu { alpha: 0.7 }, Box::new(|x| elu(x, 0.7))),
        (Activation::Selu, Box::new(|x| 1.0507009873554805 * elu(x, 1.6732632423543772))),
        (Activation::Hardtanh { low: -1.0, high: 0.5 }, Box::new(|x| x.clamp(-1.0, 0.5))),
        (Activation::Hardsigmoid, Box::new(|x| ((x + 3.0) / 6.0).clamp(0.0, 1.0))),
        (Activation::Hardswish, Box::new(|x| x * ((x + 3.0) / 6.0).clamp(0.0, 1.0))),
        (Activation::Mish, Box::new(|x| x * softplus(x).tanh())),
    ];
    let mut values: Vec<f32> = (-400..=400).map(|i| i as f32 / 40.0).collect();
    values.extend([-1e4, -120.0, -88.0, 88.0, 120.0, 1e4]);
    let x = Tensor::new(&[1, values.len()], &values)?;
    for (activation, formula) in functions {
        let text = serde_json::to_string(&Layer::from(activation)).unwrap();
        assert_eq!(serde_json::from_str::<Layer>(&text).unwrap(), Layer::from(activation), "{text}");
        let graph = Model::new(activation, 1)?.graph(&GraphOptions::default())?;
        for &isa in Isa::available() {
            let program = Program::compile_for(&graph, &Cpu::with_isa(isa, 1)?, &CompileOptions::default())?;
            let mut session = program.session();
            let got = session.run(&[("x", &x)])?[0].to_f64();
            for (&x, got) in values.iter().zip(got) {
                let want = formula(f64::from(x));
                assert!(
                    (got - want).abs() <= 2e-6 + 2e-6 * want.abs(),
                    "{activation:?}({x}) on {isa}: {got}, not {want}"
                );
            }
        }
    }
    Ok(())
}
