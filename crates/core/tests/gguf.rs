//! Low-bit weights of other people's files have exactly the numbers that their own packages compute.
//!
//! The files and the numbers were made by `data/low_bit/make.py`, which says with what.

use schwann_core::io::gguf::{Gguf, List, Value};
use schwann_core::io::mlx::{Config, Groups, Mlx};
use schwann_core::io::safetensors::Reader;
use schwann_core::io::{Stored, read_npz};
use schwann_core::op::Code;
use schwann_core::quant::Quantized;
use schwann_core::{DType, Tensor};
use std::path::PathBuf;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/low_bit").join(name)
}

fn low_bit(stored: Stored) -> Quantized {
    match stored {
        Stored::LowBit(quantized) => quantized,
        Stored::Floats(floats) => panic!("floats: {floats}"),
    }
}

/// Compares bits, so that -0 is not 0.
fn assert_same(name: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{name}");
    let wrong = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits());
    assert!(wrong.is_none(), "{name}: number {wrong:?} is {}, expected {}", got[wrong.unwrap()], want[wrong.unwrap()]);
}

#[test]
fn every_type_of_gguf_has_the_numbers_of_its_package() {
    let file = Gguf::open(data("all.gguf")).unwrap();
    let numbers = read_npz(data("numbers.npz")).unwrap();
    let formats = [
        ("q8_0", Code::Bits8, 32, DType::F16, false),
        ("q4_0", Code::Bits4, 32, DType::F16, false),
        ("q4_k", Code::Bits4, 32, DType::F32, true),
        ("q6_k", Code::Bits8, 16, DType::F32, false),
        ("tq1_0", Code::Ternary4, 256, DType::F16, false),
        ("tq2_0", Code::Ternary4, 256, DType::F16, false),
        ("i2_s", Code::Ternary4, 0, DType::F32, false),
    ];
    let mut seen = 0;
    for (kind, code, block, scales, offsets) in formats {
        for len in [256, 512] {
            let name = format!("{kind}.{len}");
            let want = &numbers[&name];
            assert_eq!(file.entry(&name).unwrap().shape, want.shape(), "{name}");
            let got = low_bit(file.tensor(&name).unwrap());
            assert_same(&name, &got.numbers(), want.values().unwrap());
            let one_scale = block == 0;
            let block = if one_scale { len } else { block };
            assert_eq!((got.format.code, got.format.len, got.format.block), (code, len, block), "{name}");
            assert_eq!((got.scales.dtype(), got.offsets.is_some()), (scales, offsets), "{name}");
            assert_eq!(got.scales.shape(), [if one_scale { 1 } else { 2 }, len / block], "{name}");
            seen += 1;
        }
    }
    let mut floats = vec!["f32", "f16"];
    floats.extend(["bf16.256", "bf16.512"]);
    for name in floats {
        let Stored::Floats(got) = file.tensor(name).unwrap() else { panic!("{name} is not low-bit") };
        assert_eq!(got.dtype().name(), name.split('.').next().unwrap());
        assert!(got.is_mapped(), "{name} is copied");
        let values: Vec<f32> = got.to_f64().iter().map(|x| *x as f32).collect();
        assert_same(name, &values, numbers[name].values().unwrap());
        assert_eq!(got.shape(), numbers[name].shape());
        seen += 1;
    }
    // Axes before the last are rows.
    assert_eq!(file.entry("q8_0.experts").unwrap().shape, [2, 2, 64]);
    let experts = low_bit(file.tensor("q8_0.experts").unwrap());
    assert_eq!(experts.codes.shape(), [4, 64]);
    assert_same("experts", &experts.numbers(), numbers["q8_0.experts"].values().unwrap());
    assert_eq!(seen + 1, numbers.len(), "each tensor of the file was compared");
}

#[test]
fn metadata_of_every_type_is_read() {
    let file = Gguf::open(data("all.gguf")).unwrap();
    let number = |key: &str| file.metadata()[key].clone();
    assert_eq!(number("test.u8"), Value::U8(200));
    assert_eq!(number("test.i8"), Value::I8(-100));
    assert_eq!(number("test.u16"), Value::U16(60_000));
    assert_eq!(number("test.i16"), Value::I16(-30_000));
    assert_eq!(number("test.u32"), Value::U32(4_000_000_000));
    assert_eq!(number("test.i32"), Value::I32(-2_000_000_000));
    assert_eq!(number("test.u64"), Value::U64(1 << 63));
    assert_eq!(number("test.i64"), Value::I64(-(1 << 62)));
    assert_eq!(number("test.f64"), Value::F64(0.1));
    assert_eq!(file.float("test.f32").unwrap(), f64::from(0.1f32));
    assert!(file.truth("test.bool").unwrap());
    assert_eq!(file.text("test.text").unwrap(), "Grüße, 世界");
    assert_eq!(file.texts("test.texts").unwrap(), ["a", "", "ßé"]);
    assert_eq!(file.list("test.numbers").unwrap(), &List::I32(vec![1, -2, 3]));
    assert_eq!(file.list("test.floats").unwrap(), &List::F32(vec![0.5, -1.5]));
    assert_eq!(file.list("test.truths").unwrap(), &List::Bool(vec![true, false]));
    assert_eq!(file.whole("test.u64").unwrap(), 1 << 63);

    let error = |e: schwann_core::Error| e.to_string();
    assert!(error(file.whole("test.i8").unwrap_err()).contains("`test.i8` is the i8 -100; expected a whole number"));
    assert!(error(file.text("test.texts").unwrap_err()).contains("a list of text; expected text"));
    assert!(error(file.text("test.nothing").unwrap_err()).contains("no metadata named `test.nothing`"));
}

#[test]
fn a_type_that_is_not_read_is_named_with_those_that_are() {
    let file = Gguf::open(data("all.gguf")).unwrap();
    let error = file.tensor("q5_0").unwrap_err().to_string();
    let supported = "F32, F16, Q4_0, Q8_0, Q4_K, Q6_K, BF16, TQ1_0, TQ2_0, I2_S";
    for part in ["all.gguf", "`q5_0`", &format!("expected one of the types {supported}, got Q5_0")] {
        assert!(error.contains(part), "{error}");
    }
    assert!(file.tensor("q9").unwrap_err().to_string().contains("no tensor named `q9`"));
}

#[test]
fn a_gguf_file_cut_anywhere_is_an_error_that_names_the_tensor() {
    let whole = std::fs::read(data("all.gguf")).unwrap();
    let file = Gguf::from_bytes(&whole[..]).unwrap();
    let first = file.entries().iter().map(|e| e.offset).min().unwrap();
    let last = file.entries().iter().max_by_key(|e| e.offset).unwrap();
    let end = last.offset + last.bytes.unwrap();
    for len in 0..end {
        let error = Gguf::from_bytes(&whole[..len]).unwrap_err().to_string();
        assert!(error.contains("truncated"), "{len}: {error}");
        if len >= first {
            // The one listed first of those that are not whole.
            let cut = file.entries().iter().find(|e| e.offset + e.bytes.unwrap() > len).unwrap();
            assert!(error.contains(&format!("truncated at tensor `{}`", cut.name)), "{len}: {error}");
        }
    }
    assert!(Gguf::from_bytes(&whole[..end]).is_ok());
}

#[test]
fn every_width_of_mlx_has_the_numbers_of_its_package() {
    let file = Mlx::open(data("model.safetensors")).unwrap();
    let numbers = Reader::open(data("mlx.safetensors")).unwrap();
    let mut seen = 0;
    for name in file.names() {
        let [_, bits, size] = name.split('.').collect::<Vec<_>>()[..] else { panic!("{name}") };
        let (bits, size): (usize, usize) = (bits.parse().unwrap(), size.parse().unwrap());
        let got = low_bit(file.tensor(name).unwrap());
        let code = if bits <= 4 { Code::Bits4 } else { Code::Bits8 };
        assert_eq!((got.format.code, got.format.len, got.format.block), (code, 256, size), "{name}");
        assert_eq!(got.codes.is_mapped(), bits == 4 || bits == 8, "{name}: copied only to be widened");
        assert_same(name, &got.numbers(), numbers.tensor(name).unwrap().values().unwrap());
        // Where scales are narrow, MLX rounds the product and the sum to their type.
        if let Ok(rounded) = numbers.tensor(&format!("{name}.rounded")) {
            assert_eq!(rounded.dtype(), got.scales.dtype());
            let (near, steps) = (rounded.to_f64(), if rounded.dtype() == DType::F16 { 1024.0 } else { 128.0 });
            let most = near.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            for (x, near) in got.numbers().iter().zip(near) {
                assert!((f64::from(*x) - near).abs() <= 2.0 * most / steps, "{name}: {x} and {near}");
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 18);
    assert!(matches!(file.tensor("norm"), Ok(Stored::Floats(t)) if t.shape() == [5]));
    assert!(file.tensor("nothing").unwrap_err().to_string().contains("no tensor named `nothing.weight`"));
}

#[test]
fn mlx_files_that_do_not_fit_their_configuration_are_refused() {
    let file = Reader::open(data("model.safetensors")).unwrap();
    let error = |bits, size, name: &str| {
        let config = Config::new(Groups { bits, size });
        Mlx::new(file.clone(), config).tensor(name).unwrap_err().to_string()
    };
    assert!(error(8, 64, "layers.4.64").contains("128 codes of 8 bits in groups of 64 take floats [2, 2] of one type"));
    assert!(error(3, 64, "layers.4.64").contains("u32[2, 32]; expected rows of codes of 3 bits in whole groups of 64"));
    assert!(error(7, 64, "layers.4.64").contains("7 bits in groups of 64; expected 2, 3, 4, 5, 6 or 8 bits"));
    assert!(error(4, 0, "layers.4.64").contains("4 bits in groups of 0"));
    assert!(error(4, usize::MAX, "layers.4.64").contains("whole groups of 18446744073709551615"));

    for (text, says) in [
        ("", "config: EOF"),
        ("[]", "no object `quantization`"),
        (r#"{"quantization": {"bits": 4}}"#, "`group_size` is missing"),
        (r#"{"quantization": {"bits": -4, "group_size": 64}}"#, "`bits` is `-4`; expected a whole number"),
        (r#"{"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}"#, "the mode is `\"mxfp4\"`"),
        (r#"{"quantization": {"bits": 4, "group_size": 64, "a": {"bits": 9}}}"#, "quantization of `a`: 9 bits"),
    ] {
        let error = Config::from_json(text).unwrap_err().to_string();
        assert!(error.contains(says), "{error:?} does not say {says:?}");
    }

    let tensor = |shape: &[usize]| Tensor::zeros(DType::F32, shape).unwrap();
    let open = |parts: &[(&str, &Tensor)]| {
        let bytes = schwann_core::io::safetensors::to_bytes(parts.iter().copied(), &Default::default()).unwrap();
        let file = Mlx::new(Reader::from_bytes(bytes).unwrap(), Config::new(Groups { bits: 4, size: 32 }));
        file.tensor("a").unwrap_err().to_string()
    };
    let scales = tensor(&[1, 1]);
    assert!(open(&[("a.weight", &scales), ("a.scales", &scales)]).contains("no tensor named `a.biases`"));
    let all = [("a.weight", &scales), ("a.scales", &scales), ("a.biases", &scales)];
    assert!(open(&all).contains("tensor `a.weight` is f32[1, 1]; expected u32 [rows, words]"));
}
