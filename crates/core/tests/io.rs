//! Files: round trips, other programs' files, and malformed ones.

use crate::hostile::{self, Format, Zip, npy_bytes};
#[allow(dead_code, reason = "shared with the test of memory")]
use half::{bf16, f16};
use schwann_core::io::{self, Kind, Limits, npy, npz, safetensors, safetensors::Reader};
use schwann_core::{CompileOptions, DType, Graph, GraphBuilder, Program, Tensor, shape};
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of this test's own, removed in the end.
struct Scratch(PathBuf);
impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("schwann-io-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
    fn files(&self) -> Vec<String> {
        std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

/// Tensors of every type and of shapes from none to six axes.
fn tensors() -> BTreeMap<String, Tensor> {
    let shapes: [&[usize]; 6] = [&[], &[1], &[0, 3], &[5], &[2, 3], &[1, 2, 3, 1, 2, 2]];
    let mut all = BTreeMap::new();
    for dtype in DType::ALL {
        for shape in shapes {
            let values: Vec<f64> = (0..shape.iter().product::<usize>()).map(|i| (i % 2) as f64).collect();
            all.insert(format!("{dtype} {shape:?}"), Tensor::from_f64(dtype, shape, &values).unwrap());
        }
    }
    all.insert("odd".into(), Tensor::new(&[4], &[f32::NAN, -0.0, f32::INFINITY, 1e-45]).unwrap());
    all
}

fn refs(tensors: &BTreeMap<String, Tensor>) -> impl Iterator<Item = (&str, &Tensor)> {
    tensors.iter().map(|(n, t)| (n.as_str(), t))
}

#[test]
fn safetensors_read_back_bit_for_bit_and_aligned() {
    let scratch = Scratch::new("st");
    let path = scratch.0.join("all.safetensors");
    let all = tensors();
    let metadata =
        BTreeMap::from([("a \"key\"".to_owned(), "a\nvalue \u{1f9e0}".to_owned()), (String::new(), String::new())]);
    safetensors::write(&path, refs(&all), &metadata).unwrap();
    assert_eq!(scratch.files(), ["all.safetensors"], "nothing temporary stays");
    let file = Reader::open(&path).unwrap();
    assert_eq!(file.metadata(), &metadata);
    assert_eq!(file.tensors().unwrap(), all);
    assert_eq!(file.entries()[0].window.start % 64, 0);
    // What may be indices is copied, all else is used where it lies.
    let stays =
        |(name, tensor): (&String, &Tensor)| file.tensor(name).unwrap().is_mapped() == (tensor.dtype() != DType::I32);
    assert!(all.iter().all(stays), "every tensor is aligned in the file");
    assert!(file.entries().iter().all(|e| e.window.start % tensors()[&e.name].dtype().size() == 0));
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes, safetensors::to_bytes(refs(&all), &metadata).unwrap());
    let memory = Reader::from_bytes(bytes).unwrap();
    assert_eq!(memory.entries(), file.entries());
    assert_eq!(memory.tensors().unwrap(), all);
    assert!(Reader::from_bytes(safetensors::to_bytes([], &BTreeMap::new()).unwrap()).unwrap().entries().is_empty());
}

#[test]
fn npy_and_npz_read_back_bit_for_bit() {
    let scratch = Scratch::new("npy");
    let (one, many) = (scratch.0.join("a.npy"), scratch.0.join("a.npz"));
    let (bf, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
        tensors().into_iter().partition(|(_, t)| t.dtype() == DType::Bf16);
    for (name, tensor) in &rest {
        npy::write_npy(&one, tensor).unwrap();
        assert_eq!(&npy::read_npy(&one).unwrap(), tensor, "{name}");
        assert_eq!(std::fs::read(&one).unwrap(), npy::to_bytes(tensor).unwrap());
        assert_eq!(npy::from_bytes(&npy::to_bytes(tensor).unwrap()).unwrap().bytes(), tensor.bytes());
    }
    npz::write_npz(&many, refs(&rest)).unwrap();
    assert_eq!(npz::read_npz(&many).unwrap(), rest);
    npz::write_npz(&many, []).unwrap();
    assert!(npz::read_npz(&many).unwrap().is_empty());
    let error = npy::write_npy(scratch.0.join("bf.npy"), &bf["bf16 [5]"]).unwrap_err().to_string();
    assert!(error.contains("bf.npy") && error.contains("cast to f32"), "{error}");
    assert!(npz::write_npz(scratch.0.join("bf.npz"), refs(&bf)).unwrap_err().to_string().contains("cast to f32"));
    let mut files = scratch.files();
    files.sort();
    assert_eq!(files, ["a.npy", "a.npz"], "a refused file leaves nothing");
}

#[test]
fn a_graph_comes_back_with_its_weights() {
    let scratch = Scratch::new("graph");
    let path = scratch.0.join("model.safetensors");
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 3]).unwrap();
    let w = b.weight("layer/w", Tensor::new(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, f32::NAN]).unwrap()).unwrap();
    let c = b.weight("half", Tensor::new(&[2], &[f16::ONE, f16::NEG_ZERO]).unwrap()).unwrap();
    let c = b.cast(c, DType::F32).unwrap();
    let h = b.matmul(x, w).unwrap();
    let y = b.add(h, c).unwrap();
    b.output("y", y).unwrap();
    let graph = b.build().unwrap();
    io::save(&path, &graph).unwrap();
    let again = io::load(&path).unwrap();
    assert_eq!(again, graph);
    assert!(again.weights().values().all(Tensor::is_mapped));
    // Saving over the file that a graph is mapped from leaves that graph as it was.
    io::save(&path, &again).unwrap();
    assert_eq!(again, graph);
    assert_eq!(io::load(&path).unwrap(), graph);

    let error = io::load(data("types.safetensors")).unwrap_err().to_string();
    assert!(error.contains("types.safetensors") && error.contains("no `schwann.graph`"), "{error}");
    let wrong = Tensor::scalar(1.0f32);
    let metadata = Reader::open(&path).unwrap().metadata().clone();
    for (name, says) in [("layer/w", "expected f32[3, 2], got f32[]"), ("other", "no weight named `other`")] {
        safetensors::write(&path, [(name, &wrong)], &metadata).unwrap();
        let error = io::load(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("tensor `{name}` does not fit")) && error.contains(says), "{error}");
    }
}

/// Overwrites, in the file itself, where a tensor of that name lies.
#[test]
fn programs_of_one_result_are_written_as_ever_and_of_several_come_back() {
    let graph = |also: &str| {
        let x = r#"{"name": "x", "op": {"input": {"name": "x", "ty": {"dtype": "f32", "shape": [3]}}}}"#;
        let code = r#"{"code": [{"input": 0}, {"unary": ["exp", 0]}, {"unary": ["tanh", 1]}]}"#;
        let map =
            format!(r#"{{"name": "y", "op": {{"map": {{"map": {code}, "dtype": "f32"{also}}}}}, "inputs": [[0, 0]]}}"#);
        let outputs = r#"[{"name": "y", "value": [1, 0]}]"#;
        Graph::from_json(&format!(r#"{{"version": 1, "nodes": [{x}, {map}], "outputs": {outputs}}}"#))
    };
    let one = graph("").unwrap();
    assert_eq!(one.nodes()[1].outs.len(), 1);
    assert!(!one.to_json().contains("also"), "{}", one.to_json());
    let several = graph(r#", "also": [{"at": 1, "dtype": "f16"}, {"at": 0, "dtype": "bool"}]"#).unwrap();
    let types: Vec<String> = several.nodes()[1].outs.iter().map(ToString::to_string).collect();
    assert_eq!(types, ["f32[3]", "f16[3]", "bool[3]"]);
    assert_eq!(Graph::from_json(&several.to_json()).unwrap(), several);
    let refused = |also: &str| graph(also).unwrap_err().to_string();
    assert!(refused(r#", "also": [{"at": 3, "dtype": "f32"}]"#).contains("value 3 of a program of 3"));
    let many = vec![r#"{"at": 0, "dtype": "f32"}"#; 23].join(", ");
    assert!(refused(&format!(r#", "also": [{many}]"#)).contains("1 inputs and 24 results"));
}

fn overwrite(path: &Path, name: &str, bytes: &[u8]) {
    let window = Reader::open(path).unwrap().entry(name).unwrap().window.clone();
    assert_eq!(window.len(), bytes.len());
    let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(window.start as u64)).unwrap();
    file.write_all(bytes).unwrap();
}

#[test]
fn indices_are_those_of_the_file_as_it_was_read() {
    let scratch = Scratch::new("indices");
    let path = scratch.0.join("model.safetensors");
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 4]).unwrap();
    let picks = b.weight("picks", Tensor::new(&[3], &[2i32, 0, 3]).unwrap()).unwrap();
    let segments = b.weight("segments", Tensor::new(&[3], &[1i32, 0, 1]).unwrap()).unwrap();
    let factors = b.weight("factors", Tensor::new(&[3], &[1.0f32, 10.0, 100.0]).unwrap()).unwrap();
    let picked = b.gather(x, picks, 1).unwrap();
    let scaled = b.mul(picked, factors).unwrap();
    let y = b.segment_sum(scaled, segments, 1, 2).unwrap();
    b.output("picked", picked).unwrap();
    b.output("y", y).unwrap();
    io::save(&path, &b.build().unwrap()).unwrap();

    let x = Tensor::new(&[2, 4], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
    let as_read = |program: &Arc<Program>| {
        let mut session = program.session();
        let [picked, y] = session.run(&[("x", &x)]).unwrap() else { panic!("two outputs") };
        assert_eq!(picked.values::<f32>().unwrap(), [3.0, 1.0, 4.0, 7.0, 5.0, 8.0]);
        assert_eq!(y.values::<f32>().unwrap(), [10.0, 403.0, 50.0, 807.0]);
    };
    let compile = || Program::compile(&io::load(&path).unwrap(), &CompileOptions::default()).unwrap();
    let program = compile();
    let reader = Reader::open(&path).unwrap();
    let (before, factors) = (reader.tensor("picks").unwrap(), reader.tensor("factors").unwrap());
    as_read(&program);
    // Other indices that there are, and then some that there are not, with the file still mapped.
    for indices in [[1i32, 1, 0], [1 << 30, -1, i32::MIN]] {
        let bytes: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
        overwrite(&path, "picks", &bytes);
        overwrite(&path, "segments", &bytes);
        as_read(&program);
        assert_eq!(before.values::<i32>().unwrap(), [2, 0, 3]);
    }
    // The file is indeed still mapped, and one that is read now has the new indices.
    overwrite(&path, "factors", &2.0f32.to_le_bytes().repeat(3));
    assert_eq!(factors.values::<f32>().unwrap(), [2.0; 3]);
    assert!(compile().session().run(&[("x", &x)]).unwrap_err().to_string().contains("1073741824"));
}

#[test]
fn writers_refuse_what_readers_would() {
    let one = Tensor::scalar(1.0f32);
    let none = BTreeMap::new();
    for (name, says) in [("", "empty name"), ("a\0", "control character"), ("__metadata__", "reserved")] {
        let error = safetensors::to_bytes([(name, &one)], &none).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(safetensors::to_bytes([("a", &one), ("a", &one)], &none).unwrap_err().to_string().contains("given twice"));
    let deep = Tensor::new(&[1; 65], &[1.0f32]).unwrap();
    assert!(safetensors::to_bytes([("a", &deep)], &none).is_err());
    assert!(npy::to_bytes(&deep).is_err());
    let missing = Path::new("/no such directory/a.npy");
    assert!(matches!(npy::write_npy(missing, &one), Err(schwann_core::Error::Io { .. })));
    assert!(matches!(npy::read_npy(missing), Err(schwann_core::Error::Io { .. })));
    assert!(matches!(Reader::open(std::env::temp_dir()), Err(schwann_core::Error::Io { .. })));
}

/// 0, 1 … 5 as NumPy made them in `tests/data`, through a formula.
fn expect(tensor: &Tensor, dtype: DType, f: impl Fn(f64) -> f64) {
    let values: Vec<f64> = (0..6).map(|i| f(f64::from(i))).collect();
    assert_eq!(tensor, &Tensor::from_f64(dtype, &[2, 3], &values).unwrap());
}

#[test]
fn numpys_files_are_read() {
    let read = |name: &str| npy::read_npy(data(&format!("{name}.npy"))).unwrap_or_else(|e| panic!("{e}"));
    let halves = |x: f64| x * 0.5 - 1.0;
    for name in ["f4", "big_f4", "version2", "version3"] {
        expect(&read(name), DType::F32, halves);
    }
    expect(&read("f2"), DType::F16, halves);
    expect(&read("f8"), DType::F32, |x| x * 0.1);
    expect(&read("i1"), DType::I8, |x| x - 3.0);
    expect(&read("u1"), DType::U8, |x| x + 250.0);
    for name in ["i2", "i4", "i8", "big_i8"] {
        expect(&read(name), DType::I32, |x| x - 3.0);
    }
    expect(&read("u2"), DType::I32, |x| x + 65530.0);
    expect(&read("u4"), DType::I32, |x| x + 7.0);
    expect(&read("u8"), DType::I32, |x| x + 3.0);
    expect(&read("b1"), DType::Bool, |x| (x + 1.0) % 2.0);
    let counted: Vec<i32> = (0..24).collect();
    assert_eq!(read("fortran"), Tensor::new(&[2, 3, 4], &counted).unwrap());
    assert_eq!(read("scalar"), Tensor::scalar(2.5f32));
    assert_eq!(read("empty"), Tensor::zeros(DType::F32, &[0, 3]).unwrap());
    assert_eq!(read("rank6").shape(), [1, 2, 3, 1, 4, 1]);
    for (name, says) in [
        ("wide_i8", "1099511627776 (i64) at element 0"),
        ("complex", "type `<c8` is not supported"),
        ("text", "type `<U2` is not supported"),
        ("record", "structured types"),
        ("object", "pickled Python objects"),
    ] {
        let error = npy::read_npy(data(&format!("{name}.npy"))).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(says), "{error}");
    }
    for name in ["stored", "deflated"] {
        let mut arrays = npz::read_npz(data(&format!("{name}.npz"))).unwrap();
        expect(&arrays["a"], DType::F32, halves);
        assert_eq!(arrays["b"], Tensor::new(&[3], &[0i32, 1, 2]).unwrap());
        assert_eq!(arrays["s"], Tensor::scalar(2.5f32));
        assert_eq!(arrays.remove("big").map(|t| t.len()), (name == "deflated").then_some(20000));
    }
    let small = Limits { total_bytes: 50_000, ..Limits::default() };
    let error = npz::read_npz_within(data("deflated.npz"), &small).unwrap_err().to_string();
    assert!(error.contains("the limit is 50000"), "{error}");
    let few = Limits { arrays: 3, ..Limits::default() };
    let error = npz::read_npz_within(data("deflated.npz"), &few).unwrap_err().to_string();
    assert!(error.contains("4 entries; the limit is 3"), "{error}");
}

#[test]
fn safetensors_files_of_the_original_are_read() {
    let file = Reader::open(data("types.safetensors")).unwrap();
    assert_eq!(file.metadata()["é"], "\"quoted\"");
    expect(&file.tensor("f32").unwrap(), DType::F32, |x| x * 0.5 - 1.0);
    expect(&file.tensor("f16").unwrap(), DType::F16, |x| x * 0.5 - 1.0);
    expect(&file.tensor("i8").unwrap(), DType::I8, |x| x - 3.0);
    expect(&file.tensor("u8").unwrap(), DType::U8, |x| x);
    expect(&file.tensor("i32").unwrap(), DType::I32, |x| x - 3.0);
    expect(&file.tensor("bool").unwrap(), DType::Bool, |x| (x + 1.0) % 2.0);
    assert_eq!(file.tensor("scalar").unwrap(), Tensor::scalar(2.5f32));
    assert_eq!(file.tensor("empty").unwrap().shape(), [0, 3]);
    assert_eq!(file.tensor("rank6").unwrap().shape(), [1, 2, 3, 1, 4, 1]);
    assert_eq!(file.entry("f64").unwrap().kind, Kind::F64);
    expect(&file.tensor_as("f64", DType::F32).unwrap(), DType::F32, |x| x * 0.1);
    expect(&file.tensor_as("i64", DType::I32).unwrap(), DType::I32, |x| x - 3.0);
    expect(&file.tensor_as("i64", DType::Bf16).unwrap(), DType::Bf16, |x| x - 3.0);
    assert!(file.tensor_as("i64", DType::U8).unwrap_err().to_string().contains("-3 (i64) at element 0"));
    let error = file.tensor("i64").unwrap_err().to_string();
    assert!(error.contains("types.safetensors") && error.contains("tensor `i64` is I64"), "{error}");
    assert!(file.tensor("nothing").unwrap_err().to_string().contains("no tensor named `nothing`; there is `bool`"));
    let narrow = Tensor::new(&[1], &[bf16::ONE]).unwrap();
    let file = Reader::from_bytes(safetensors::to_bytes([("b", &narrow)], &BTreeMap::new()).unwrap()).unwrap();
    assert_eq!(file.tensor_as("b", DType::F32).unwrap(), Tensor::new(&[1], &[1.0f32]).unwrap());
}

#[test]
fn malformed_files_are_refused_with_the_reason() {
    let cases = hostile::cases();
    assert!(cases.len() >= 100, "{}", cases.len());
    let mut wrong = vec![];
    for (i, case) in cases.iter().enumerate() {
        let error = match case.format {
            Format::Safetensors => Reader::from_bytes(&case.bytes[..]).and_then(|f| f.tensors()).map(drop),
            Format::Npy => npy::from_bytes(&case.bytes).map(drop),
            Format::Npz => npz::from_bytes(&case.bytes, &Limits::default()).map(drop),
            Format::Gguf => hostile::read_gguf(&case.bytes),
        };
        let error =
            error.err().unwrap_or_else(|| panic!("case {i}, expected to say {:?}, was read", case.says)).to_string();
        if !error.contains(case.says) {
            wrong.push(format!("case {i}: {error:?} does not say {:?}", case.says));
        }
        assert!(error.len() < 1000 && !error.contains('\0'), "case {i}: {error}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_truncated_file_is_refused_wherever_it_ends() {
    let tensor = Tensor::new(&[2, 3], &[1.0f32; 6]).unwrap();
    let st = safetensors::to_bytes([("a", &tensor)], &BTreeMap::new()).unwrap();
    let one = npy::to_bytes(&tensor).unwrap();
    let archives = [npz::to_bytes([("a", &tensor)]).unwrap(), Zip::deflated(one.clone()).bytes()];
    assert!(npz::from_bytes(&archives[1], &Limits::default()).is_ok());
    for end in 0..st.len() {
        assert!(Reader::from_bytes(&st[..end]).is_err(), "{end}");
    }
    for end in 0..one.len() {
        assert!(npy::from_bytes(&one[..end]).is_err(), "{end}");
    }
    for archive in archives {
        for end in 0..archive.len() {
            assert!(npz::from_bytes(&archive[..end], &Limits::default()).is_err(), "{end}");
        }
    }
}

#[test]
fn a_header_of_version_2_may_be_long() {
    let padded = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (), }}{}", " ".repeat(60_000));
    assert_eq!(npy::from_bytes(&npy_bytes(2, padded, &2.5f32.to_le_bytes())).unwrap(), Tensor::scalar(2.5f32));
}
