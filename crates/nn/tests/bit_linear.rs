//! BitNet's linear layer gives what transformers' class gives (`decoders/make.py` wrote it), and has no gradient.

use schwann_core::io::safetensors::Reader;
use schwann_core::pass::PassOptions;
use schwann_core::{CompileOptions, Tensor};
use schwann_nn::{BitLinear, GraphOptions, Layer, Model};
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn it_gives_what_transformers_class_gives() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decoders/bit_linear.safetensors");
    let mut tensors: BTreeMap<String, Tensor> = Reader::open(path).unwrap().tensors().unwrap();
    let [x, y] = ["x", "y"].map(|name| tensors.remove(name).unwrap());
    let layer = BitLinear { bias: true, ..BitLinear::new(30, 17) };
    let model = Model::with_weights(layer, tensors).unwrap();
    for passes in [PassOptions::default(), PassOptions::none()] {
        let compile = CompileOptions::default().passes(passes);
        let program = model.compile(&GraphOptions::default(), &compile).unwrap();
        let got = program.session().run(&[("x", &x)]).unwrap()[0].values::<f32>().unwrap().to_vec();
        let off = got.iter().zip(y.values::<f32>().unwrap()).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "off by {off}");
    }
}

#[test]
fn its_json_has_defaults_and_is_checked() {
    let layer: Layer = serde_json::from_str(r#"{"class": "BitLinear", "in_features": 3, "out_features": 5}"#).unwrap();
    assert_eq!(layer, BitLinear::new(3, 5).into());
    assert_eq!(layer.params().unwrap().iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["weight", "norm.weight"]);
    assert!(serde_json::from_str::<Layer>(r#"{"class": "BitLinear", "in_features": 3, "out": 5}"#).is_err());
    assert!(Model::new(BitLinear { eps: -1.0, ..BitLinear::new(3, 5) }, 1).is_err());
    // Weights that are all 0 give 0 and not NaN.
    let zeros = BTreeMap::from([("weight".to_owned(), Tensor::new(&[5, 3], &[0.0f32; 15]).unwrap())]);
    let model = Model::with_weights(BitLinear { norm: false, ..BitLinear::new(3, 5) }, zeros).unwrap();
    let mut session = model.compile(&GraphOptions::default(), &CompileOptions::default()).unwrap().session();
    let x = Tensor::new(&[1, 3], &[1.0f32, -2.0, 3.0]).unwrap();
    assert_eq!(session.run(&[("x", &x)]).unwrap()[0].values::<f32>().unwrap(), [0.0; 5]);
}
