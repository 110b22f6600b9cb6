//! Models: options, files, import, and what is refused.

use schwann_core::io::safetensors;
use schwann_core::{CompileOptions, DType, Tensor};
use schwann_nn::wiring::{AutoNcp, FullyConnected, Wiring};
use schwann_nn::{
    Activation, Cfc, CfcMode, Embedding, Error, GraphOptions, Init, InitialState, Layer, Linear, Ltc, MODEL_KEY,
    Mapping, Model, Parameters, Result, Sequential, Timespans, import_ncps, timespans_for,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn circuit() -> Wiring {
    AutoNcp::new(12, 3).wiring().unwrap()
}

fn said<T>(result: Result<T>) -> String {
    result.err().map(|e| e.to_string()).unwrap_or_default()
}

/// A path that is removed at the end.
struct Scratch(PathBuf);
impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("schwann-model-{}-{name}", std::process::id())))
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name)
}

/// Layers of every kind.
fn stacks() -> Vec<Sequential> {
    let mut by_hand = Wiring::new(3, 2).unwrap();
    by_hand.add_synapse(2, 0, -1).unwrap();
    by_hand.build(4).unwrap();
    by_hand.add_sensory_synapse(3, 2, 1).unwrap();
    vec![
        Cfc::new(4, 6).into(),
        Cfc { backbone_layers: Some(3), backbone_dropout: Some(0.5), activation: Activation::Gelu, ..Cfc::new(4, 6) }
            .into(),
        Cfc { mode: CfcMode::Pure, proj_size: Some(2), batch_first: false, ..Cfc::new(4, circuit()) }.into(),
        Ltc::new(4, 5).into(),
        Ltc { input_mapping: Mapping::None, mixed_memory: true, ..Ltc::new(4, by_hand) }.into(),
        vec![
            Embedding::new(11, 4).into(),
            Cfc::new(4, circuit()).into(),
            Activation::Relu.into(),
            Ltc { return_sequences: false, ..Ltc::new(3, 5) }.into(),
            Linear { bias: false, ..Linear::new(5, 2) }.into(),
        ]
        .into(),
    ]
}

#[test]
fn a_model_reads_back_from_one_file_as_it_was() -> Result<()> {
    for layers in stacks() {
        let model = Model::new(layers, 3)?;
        let path = Scratch::new("whole.safetensors");
        model.save(&path.0)?;
        assert_eq!(Model::load(&path.0)?, model);
        assert_eq!(Model::from_bytes(model.to_bytes()?)?, model);
        assert_eq!(Model::new(Sequential(model.layers().to_vec()), 3)?, model, "the same seed, the same model");
        assert_ne!(Model::new(Sequential(model.layers().to_vec()), 4)?.weights(), model.weights());
    }
    Ok(())
}

/// The bytes of a model's file with its JSON and tensors changed.
fn changed(model: &Model, json: impl Fn(String) -> String, tensors: impl Fn(&mut BTreeMap<String, Tensor>)) -> Vec<u8> {
    let reader = safetensors::Reader::from_bytes(model.to_bytes().unwrap()).unwrap();
    let mut weights = reader.tensors().unwrap();
    tensors(&mut weights);
    let metadata = BTreeMap::from([(MODEL_KEY.to_owned(), json(reader.metadata()[MODEL_KEY].clone()))]);
    safetensors::to_bytes(weights.iter().map(|(n, t)| (n.as_str(), t)), &metadata).unwrap()
}

#[test]
fn what_is_wrong_with_a_file_is_named() -> Result<()> {
    let model = Model::new(Cfc::new(4, 6), 1)?;
    let same = |json: String| json;
    let with =
        |tensors: &dyn Fn(&mut BTreeMap<String, Tensor>)| said(Model::from_bytes(changed(&model, same, tensors)));
    let name = "rnn_cell.ff1.weight";
    assert_eq!(
        with(&|w| drop(w.insert(name.into(), Tensor::zeros(DType::F32, &[6, 5]).unwrap()))),
        "tensor `rnn_cell.ff1.weight` is f32[6, 5]; expected f32[6, 128]"
    );
    assert_eq!(with(&|w| drop(w.remove(name))), "tensor `rnn_cell.ff1.weight` is missing; expected f32[6, 128]");
    let extra = with(&|w| drop(w.insert("other".into(), Tensor::scalar(1.0f32))));
    assert!(extra.starts_with("tensor `other` is f32[], and not of this model; expected only `rnn_cell."), "{extra}");
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let problem = with(&|w| w.get_mut(name).unwrap().values_mut::<f32>().unwrap()[7] = bad);
        assert_eq!(problem, format!("tensor `{name}` is {bad} at element 7; expected finite numbers"));
    }

    let with = |from: &str, to: &str| {
        let json = |text: String| {
            assert!(text.contains(from), "{text}");
            text.replace(from, to)
        };
        said(Model::from_bytes(changed(&model, json, |_| {})))
    };
    let problem = with("\"version\":1", "\"version\":2");
    assert_eq!(problem, "the model's form has version 2; this program reads version 1");
    assert!(with("\"version\":1,", "").contains("version null"));
    assert!(with("\"input_size\"", "\"color\":1,\"input_size\"").contains("unknown field `color`"));
    assert!(with("{\"version\"", "{\"more\":1,\"version\"").contains("unknown field `more`"));
    assert!(with("\"CfC\"", "\"Conv\"").contains("unknown variant `Conv`"));
    assert!(with("\"default\"", "\"fast\"").contains("unknown variant `fast`"));
    assert!(with("\"units\":6", "\"units\":-6").contains("expected a whole number or a wiring"));
    assert!(with("\"units\":6", "\"units\":60000000000").contains("expected from 1 to 268435456"));
    assert!(with("\"units\":6", "\"units\":18446744073709551615").contains("expected from 1 to 268435456"));
    assert!(with("\"units\":6", "\"units\":60000").contains("expected f32[128, 60004]"));
    assert!(with("\"units\":6,", "").contains("missing field `units`"));

    let bare = safetensors::to_bytes([], &BTreeMap::new())?;
    assert!(said(Model::from_bytes(bare)).contains("no `schwann.model`"));
    let cut = &model.to_bytes()?[..100];
    assert!(said(Model::from_bytes(cut)).contains("truncated"));
    let path = golden("cfc_pure.safetensors");
    let problem = said(Model::load(&path));
    assert!(problem.contains("import_ncps") && problem.contains("cfc_pure.safetensors"), "{problem}");
    assert!(said(Model::load("/nowhere/model.safetensors")).contains("/nowhere/model.safetensors"));
    Ok(())
}

#[test]
fn a_small_file_cannot_ask_for_a_large_circuit() -> Result<()> {
    let model = Model::new(Ltc::new(2, 3), 1)?;
    for (from, to) in [
        ("\"units\":3", "\"units\":8000"),
        ("\"units\":3", r#""wiring":{"class":"AutoNCP","units":8000,"output_size":4}"#),
        ("\"units\":3", r#""wiring":{"class":"NCP","inter_neurons":3000,"command_neurons":3000,"motor_neurons":9}"#),
        ("\"units\":3", r#""units":{"config":{"class":"Random","units":8000},"units":1}"#),
        ("\"input_size\":2", "\"input_size\":20000000"),
    ] {
        let problem = said(Model::from_bytes(changed(&model, |json| json.replace(from, to), |_| {})));
        assert!(problem.contains("a circuit of "), "{to}: {problem}");
    }
    Ok(())
}

#[test]
fn options_that_cannot_be_are_refused_by_name() {
    let refused = |layer: Layer| said(Model::new(layer, 1));
    let cfc = Cfc::new(4, 6);
    let wired = Cfc::new(4, circuit());
    let ltc = Ltc::new(4, 6);
    for (layer, problem) in [
        (Cfc::new(0, 6).into(), "`input_size` is 0; expected from 1 to 268435456"),
        (Cfc::new(4, 0).into(), "`units` is 0; expected from 1 to 268435456"),
        (Cfc { proj_size: Some(0), ..cfc.clone() }.into(), "`proj_size` is 0; expected from 1 to 268435456"),
        (Cfc { backbone_layers: Some(257), ..cfc.clone() }.into(), "`backbone_layers` is 257; expected from 0 to 256"),
        (Cfc { backbone_units: Some(0), ..cfc.clone() }.into(), "`backbone_units` is 0; expected from 1 to 268435456"),
        (Cfc { backbone_dropout: Some(1.0), ..cfc }.into(), "`backbone_dropout` is 1; expected from 0 to less than 1"),
        (
            Cfc { backbone_units: Some(64), ..wired.clone() }.into(),
            "`backbone_units` is 64; expected nothing, since a wired CfC has no backbone",
        ),
        (
            Cfc { backbone_layers: Some(1), ..wired.clone() }.into(),
            "`backbone_layers` is 1; expected nothing, since a wired CfC has no backbone",
        ),
        (
            Cfc { backbone_dropout: Some(0.1), ..wired }.into(),
            "`backbone_dropout` is 0.1; expected nothing, since a wired CfC has no backbone",
        ),
        (Ltc { ode_unfolds: 0, ..ltc.clone() }.into(), "`ode_unfolds` is 0; expected from 1 to 256"),
        (Ltc { epsilon: -1.0, ..ltc.clone() }.into(), "`epsilon` is -1; expected a finite number, not negative"),
        (Linear::new(0, 3).into(), "`in_features` is 0; expected from 1 to 268435456"),
    ] as [(Layer, &str); 12]
    {
        assert_eq!(refused(layer), problem);
    }
    let other = FullyConnected::new(5).build(3).unwrap();
    for layer in [Layer::from(Cfc::new(4, other.clone())), Ltc::new(4, other).into()] {
        assert!(refused(layer).contains("3, which this wiring was built for"));
    }
}

#[test]
fn layers_that_do_not_fit_each_other_are_refused() {
    let refused = |layers: Vec<Layer>| said(Model::new(layers, 1));
    assert_eq!(refused(vec![]), "`layers` is an empty list; expected at least one layer");
    assert_eq!(
        refused(vec![Cfc::new(2, 3).into(), Activation::Tanh.into(), Linear::new(4, 1).into()]),
        "`layers[2]'s input size` is 4; expected 3, what layers[1] gives"
    );
    let last = Cfc { return_sequences: false, ..Cfc::new(2, 3) };
    assert!(refused(vec![last.into(), Ltc::new(3, 2).into()]).contains("`return_sequences` false"));
    let time_first = Ltc { batch_first: false, ..Ltc::new(3, 2) };
    let problem = refused(vec![Cfc::new(2, 3).into(), time_first.into()]);
    assert_eq!(problem, "`layers[1].batch_first` is false; expected true, as in the layers before");
    assert!(refused(vec![Linear::new(2, 3).into(), Embedding::new(2, 3).into()]).contains("as the first layer"));
    let problem = refused(vec![Linear::new(2, 3).into(), Linear::new(3, 0).into()]);
    assert_eq!(problem, "`layers[1].out_features` is 0; expected from 1 to 268435456");
}

#[test]
fn inputs_of_the_wrong_shape_are_refused() -> Result<()> {
    let model = Model::new(Cfc { mixed_memory: true, ..Cfc::new(4, 6) }, 1)?;
    let options = GraphOptions::default().timespans(Timespans::PerStep);
    let program = model.compile(&options, &CompileOptions::default().threads(1))?;
    let zeros = |shape: &[usize]| Tensor::zeros(DType::F32, shape).unwrap();
    let run = |inputs: &[(&str, &[usize])]| {
        let tensors: Vec<Tensor> = inputs.iter().map(|(_, shape)| zeros(shape)).collect();
        let arguments: Vec<(&str, &Tensor)> = inputs.iter().zip(&tensors).map(|((n, _), t)| (*n, t)).collect();
        said(program.session().run(&arguments).map(drop).map_err(Error::from))
    };
    type Named<'a> = (&'a str, &'a [usize]);
    let (x, dt): (Named, Named) = (("x", &[2, 3, 4]), ("timespans", &[2, 3]));
    assert_eq!(run(&[x, dt]), "");
    assert_eq!(run(&[("x", &[2, 3, 5]), dt]), "input `x`: expected f32[B, T, 4], got shape [2, 3, 5]");
    assert_eq!(run(&[("x", &[3, 4]), dt]), "input `x`: expected f32[B, T, 4], got shape [3, 4]");
    assert!(run(&[x, ("timespans", &[3, 2])]).contains("input `timespans`: expected f32[B, T] with B = 2"));
    assert!(run(&[x, ("timespans", &[2, 3, 1])]).contains("input `timespans`: expected f32[B, T]"));
    assert!(run(&[x]).contains("input `timespans`: expected f32[B, T], got nothing"));
    assert!(run(&[x, dt, ("h0", &[2, 7])]).contains("input `h0`: expected f32[B, 6], got shape [2, 7]"));
    assert!(run(&[x, dt, ("c0", &[3, 6])]).contains("input `c0`: expected f32[B, 6] with B = 2"));

    let fits = |shape: &[usize]| timespans_for(&zeros(&[2, 3, 4]), &zeros(shape)).map(|t| t.shape().to_vec());
    assert_eq!((fits(&[2, 3])?, fits(&[2, 3, 1])?), (vec![2, 3], vec![2, 3]));
    let expected = "expected f32[2, 3], one number a sample and step";
    for shape in [&[3, 2][..], &[2, 3, 4], &[2], &[1, 2, 3]] {
        assert_eq!(said(fits(shape)), format!("`timespans` is f32{shape:?}; {expected}"));
    }

    let ltc = Model::new(Ltc::new(4, 6), 1)?;
    for dt in [0.0, -1.0, 1e-40, f32::NAN] {
        let options = GraphOptions::default().timespans(Timespans::Constant(dt));
        assert!(
            said(ltc.graph(&options))
                .starts_with(&format!("`timespans` is {dt}; expected a finite time of at least 1e-30"))
        );
    }
    let dense = Model::new(Linear::new(3, 2), 1)?;
    assert!(said(dense.graph(&options)).contains("a model with a CfC or an LTC"));
    Ok(())
}

#[test]
fn graphs_have_the_inputs_that_their_options_say() -> Result<()> {
    let names = |model: &Model, options: &GraphOptions| -> Result<Vec<String>> {
        let graph = model.graph(options)?;
        Ok(graph.inputs().map(|(name, value)| format!("{name} {}", graph.ty(value))).collect())
    };
    let options = GraphOptions::default();
    let cfc = Model::new(Cfc::new(4, 6), 1)?;
    assert_eq!(names(&cfc, &options)?, ["x f32[B, T, 4]", "h0 f32[B, 6]"]);
    let timed = options.clone().timespans(Timespans::PerStep);
    assert_eq!(names(&cfc, &timed)?, ["x f32[B, T, 4]", "timespans f32[B, T]", "h0 f32[B, 6]"]);
    let zero = options.clone().state(InitialState::Zero);
    assert_eq!(names(&cfc, &zero)?, ["x f32[B, T, 4]"]);
    let alone = timed.clone().batched(false);
    assert_eq!(names(&cfc, &alone)?, ["x f32[T, 4]", "timespans f32[T]", "h0 f32[6]"]);
    let time_first = Model::new(Cfc { batch_first: false, mixed_memory: true, ..Cfc::new(4, 6) }, 1)?;
    assert_eq!(names(&time_first, &timed)?, ["x f32[T, B, 4]", "timespans f32[T, B]", "h0 f32[B, 6]", "c0 f32[B, 6]"]);
    let symbols = Model::new(vec![Embedding::new(9, 4).into(), Cfc::new(4, 6).into(), Ltc::new(6, 2).into()], 1)?;
    assert_eq!(names(&symbols, &options)?, ["x i32[B, T]", "1.h0 f32[B, 6]", "2.h0 f32[B, 2]"]);
    assert_eq!(symbols.params()[0].name, "0.weight");
    let dense = Model::new(Linear::new(3, 2), 1)?;
    assert_eq!(names(&dense, &options)?, ["x f32[B, 3]"]);
    let parameters = names(&dense, &options.parameters(Parameters::Inputs))?;
    assert_eq!(parameters, ["x f32[B, 3]", "weight f32[2, 3]", "bias f32[2]"]);
    Ok(())
}

#[test]
fn dropout_is_a_mask_that_training_gives() -> Result<()> {
    let cfc = Cfc { backbone_layers: Some(3), backbone_dropout: Some(0.25), ..Cfc::new(4, 6) };
    let model = Model::new(cfc, 1)?;
    // PyTorch counts functions and dropouts among the layers.
    let backbone = model.params().iter().filter(|p| p.name.contains("backbone") && p.name.ends_with("weight"));
    let names: Vec<&str> = backbone.map(|p| p.name.as_str()).collect();
    assert_eq!(names, [0, 2, 5].map(|i| format!("rnn_cell.backbone.{i}.weight")));

    let inference = model.graph(&GraphOptions::default())?;
    assert!(inference.inputs().all(|(name, _)| !name.contains("mask")));
    let training = model.training_graph(&GraphOptions::training())?;
    let masks = model.dropout_masks(2, 5, 9)?;
    for (name, mask) in &masks {
        assert!(training.inputs().any(|(input, _)| input == name));
        assert_eq!(mask.shape(), [2, 5, 128]);
        let values = mask.values::<f32>()?;
        assert!(values.iter().all(|v| *v == 0.0 || (*v - 4.0 / 3.0).abs() < 1e-6));
        let dropped = values.iter().filter(|v| **v == 0.0).count() as f64 / values.len() as f64;
        assert!((dropped - 0.25).abs() < 0.05, "{dropped}");
    }
    let names: Vec<&str> = masks.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["rnn_cell.backbone.4.mask", "rnn_cell.backbone.7.mask"]);
    assert_eq!(masks, model.dropout_masks(2, 5, 9)?);
    Ok(())
}

#[test]
fn training_takes_parameters_as_inputs_and_gives_all_their_gradients() -> Result<()> {
    for layers in stacks() {
        let model = Model::new(layers, 3)?;
        let graph = model.training_graph(&GraphOptions::training())?;
        let (batch, steps) = (2, 3);
        let program = schwann_core::Program::compile(&graph, &CompileOptions::default().threads(1))?;
        let mut inputs: BTreeMap<String, Tensor> = model.weights().clone();
        inputs.extend(model.dropout_masks(batch, steps, 1)?);
        for (name, value) in graph.inputs() {
            if !inputs.contains_key(name) {
                let bindings = schwann_core::Bindings::new().with("B", batch).with("T", steps);
                let ty = graph.ty(value);
                inputs.insert(name.to_owned(), Tensor::zeros(ty.dtype, &ty.shape.eval(&bindings)?)?);
            }
        }
        let arguments: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let mut session = program.session();
        session.run(&arguments)?;
        assert!(session.output("loss")?.values::<f32>()?[0].is_finite());
        for param in model.params() {
            assert_eq!(session.output(&format!("grad.{}", param.name))?.shape(), param.shape);
        }
    }
    Ok(())
}

#[test]
fn explicit_weights_are_brought_back_above_zero() -> Result<()> {
    let explicit = Ltc { implicit_param_constraints: false, ..Ltc::new(2, 3) };
    for (ltc, clamped) in [(Ltc::new(2, 3), false), (explicit, true)] {
        let mut model = Model::new(ltc, 1)?;
        for name in ["rnn_cell.w", "rnn_cell.cm", "rnn_cell.mu"] {
            let shape = model.weight(name)?.shape().to_vec();
            let count = shape.iter().product();
            model.set_weight(name, Tensor::new(&shape, &vec![-1.0f32; count])?)?;
        }
        model.constrain()?;
        let all =
            |name: &str, value: f32| model.weight(name).unwrap().values::<f32>().unwrap().iter().all(|v| *v == value);
        let expected = if clamped { 0.0 } else { -1.0 };
        assert!(all("rnn_cell.w", expected) && all("rnn_cell.cm", expected) && all("rnn_cell.mu", -1.0));
    }
    Ok(())
}

#[test]
fn weights_of_the_wrong_shape_or_name_are_refused() -> Result<()> {
    let mut model = Model::new(Linear::new(2, 1), 1)?;
    assert_eq!(
        said(model.set_weight("weight", Tensor::zeros(DType::F32, &[2])?)),
        "tensor `weight` is f32[2]; expected f32[1, 2]"
    );
    assert_eq!(
        said(model.set_weight("w", Tensor::zeros(DType::F32, &[2])?)),
        "tensor `w` is not of this model; expected one of `weight`, `bias`"
    );
    assert!(said(model.set_weight("bias", Tensor::new(&[1], &[f32::NAN])?)).contains("NaN at element 0"));
    Ok(())
}

#[test]
fn parameters_start_as_ncps_starts_them() -> Result<()> {
    let model = Model::new(Ltc { mixed_memory: true, ..Ltc::new(4, circuit()) }, 8)?;
    let init = |name: &str| model.params().iter().find(|p| p.name == name).map(|p| p.init.clone());
    assert_eq!(init("rnn_cell.sigma"), Some(Init::Uniform { low: 3.0, high: 8.0 }));
    assert_eq!(init("lstm.recurrent_map.weight"), Some(Init::Orthogonal));
    let erev = model.weight("rnn_cell.erev")?.values::<f32>()?;
    let Layer::Ltc(ltc) = &model.layers()[0] else { unreachable!() };
    assert!(erev.iter().zip(ltc.wiring()?.adjacency()).all(|(e, p)| *e == f32::from(*p)));
    Ok(())
}

#[test]
fn import_compares_masks_with_the_circuit_and_keeps_none() -> Result<()> {
    for file in ["ltc_auto.safetensors", "wired_cfc_auto.safetensors"] {
        let model = import_ncps(golden(file))?;
        assert!(model.weights().keys().all(|name| !name.contains("mask")));
        // What was imported is whole in our own form too.
        assert_eq!(Model::from_bytes(model.to_bytes()?)?, model);

        // Another seed is another circuit.
        let reader = safetensors::Reader::open(golden(file))?;
        let metadata: BTreeMap<String, String> = reader
            .metadata()
            .iter()
            .map(|(k, v)| (k.clone(), v.replace("\"output_size\": 16", "\"output_size\": 16, \"seed\": 5")))
            .collect();
        let path = Scratch::new(file);
        let tensors = reader.tensors()?;
        safetensors::write(&path.0, tensors.iter().map(|(n, t)| (n.as_str(), t)), &metadata)?;
        let problem = said(import_ncps(&path.0));
        assert!(problem.contains("sparsity_mask") && problem.contains("another circuit"), "{problem}");
    }
    Ok(())
}

#[test]
fn import_takes_a_plain_state_dict_and_a_wiring_made_by_hand() -> Result<()> {
    let mut wiring = Wiring::new(4, 2)?;
    for (src, dest, polarity) in [(2, 0, 1), (3, 1, -1), (2, 3, 1), (3, 3, -1)] {
        wiring.add_synapse(src, dest, polarity)?;
    }
    wiring.build(3)?;
    wiring.add_sensory_synapse(0, 2, 1)?;
    wiring.add_sensory_synapse(2, 3, -1)?;
    let model = Model::new(Ltc::new(3, wiring.clone()), 1)?;
    let matrix = |values: &[i8], rows: usize| {
        let values: Vec<i32> = values.iter().map(|&p| i32::from(p)).collect();
        Tensor::new(&[rows, 4], &values).unwrap()
    };
    let mut tensors = model.weights().clone();
    tensors.insert("adjacency".into(), matrix(wiring.adjacency(), 4));
    tensors.insert("sensory_adjacency".into(), matrix(wiring.sensory_adjacency(), 3));
    let config = r#"{"class":"LTC","input_size":3,"wiring":{"class":"Custom","units":4,"output_dim":2}}"#;
    let metadata = BTreeMap::from([("config".to_owned(), config.to_owned())]);
    let path = Scratch::new("custom.safetensors");
    let write = |tensors: &BTreeMap<String, Tensor>| {
        safetensors::write(&path.0, tensors.iter().map(|(n, t)| (n.as_str(), t)), &metadata)
    };
    write(&tensors)?;
    let imported = import_ncps(&path.0)?;
    assert_eq!(imported.weights(), model.weights());
    let Layer::Ltc(ltc) = &imported.layers()[0] else { unreachable!() };
    assert_eq!(ltc.wiring()?.adjacency(), wiring.adjacency());
    assert_eq!(ltc.wiring()?.sensory_adjacency(), wiring.sensory_adjacency());

    tensors.insert("adjacency".into(), matrix(&[2; 16], 4));
    write(&tensors)?;
    assert!(said(import_ncps(&path.0)).contains("`polarity` is 2; expected -1"));
    tensors.insert("adjacency".into(), matrix(&[1; 12], 3));
    write(&tensors)?;
    assert!(said(import_ncps(&path.0)).contains("tensor `adjacency` is i32[3, 4]; expected i32[4, 4]"));
    tensors.remove("adjacency");
    write(&tensors)?;
    assert!(said(import_ncps(&path.0)).contains("tensor `adjacency` is missing"));
    Ok(())
}

#[test]
fn pickles_are_refused_with_the_way_out() {
    let zip = b"PK\x03\x04 and more";
    let pickle = b"\x80\x02}q\x00.";
    for (name, content) in [("model.bin", &zip[..]), ("model.data", pickle), ("model.pt", b"anything"), ("m.pth", b"")]
    {
        let path = Scratch::new(name);
        std::fs::write(&path.0, content).unwrap();
        for problem in [said(import_ncps(&path.0)), said(Model::load(&path.0))] {
            assert!(problem.contains("pickle") && problem.contains("scripts/export_ncps.py"), "{problem}");
            assert!(problem.contains(name), "{problem}");
        }
    }
    let path = Scratch::new("weights.safetensors");
    let metadata = BTreeMap::new();
    safetensors::write(&path.0, [("w", &Tensor::scalar(1.0f32))], &metadata).unwrap();
    let problem = said(import_ncps(&path.0));
    assert!(problem.contains("no `config`") && problem.contains("scripts/export_ncps.py"), "{problem}");
}

#[test]
fn info_counts_what_there_is() -> Result<()> {
    let model = Model::new(Ltc::new(8, AutoNcp::new(64, 16).wiring()?), 1)?;
    let info = model.info()?;
    let ltc = &info.layers[0];
    // Six matrices less what is no parameter: (64 + 8)·64 four times, three numbers a neuron, two a feature.
    assert_eq!(info.parameters, 4 * 72 * 64 + 3 * 64 + 2 * 8 + 2 * 16);
    assert_eq!((ltc.units, info.state_bytes), (Some(64), 256));
    let wiring = AutoNcp::new(64, 16).build(8)?;
    assert_eq!(ltc.synapses, Some(wiring.synapse_count()));
    assert_eq!(ltc.sensory_synapses, Some(wiring.sensory_synapse_count()));
    assert_eq!(ltc.options["units"]["class"], "AutoNCP");
    // Softplus of the weights is done ahead: what is left is a sigmoid for each synapse, six times, and for inputs once.
    let (inner, sensory) = (wiring.synapse_count() as u64, wiring.sensory_synapse_count() as u64);
    assert_eq!(info.step_transcendentals, 6 * inner + sensory);

    let mixed = Model::new(Cfc { mixed_memory: true, ..Cfc::new(4, 6) }, 1)?.info()?;
    assert_eq!((mixed.state_bytes, mixed.layers[0].synapses), (48, None));
    assert!(mixed.step_flops > 2 * 128 * 10 && mixed.resident_bytes >= mixed.weight_bytes);
    let page = mixed.to_string();
    assert!(page.contains("6 neurons") && page.contains("(derived)"), "{page}");
    assert_eq!(Model::new(Linear::new(2, 1), 1)?.info()?.state_bytes, 0);
    Ok(())
}
