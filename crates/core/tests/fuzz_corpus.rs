//! Replays the fuzzers' corpora, found crashes among them, with the stable compiler.

#[path = "fuzz_targets/mod.rs"]
mod fuzz_targets;

use schwann_core::io::gguf::Gguf;
use schwann_core::io::safetensors::{Entry, Reader};
use schwann_core::op::{Map, MapInstr};
use schwann_core::{DType, Graph, GraphBuilder, Op, Tensor, op::Binary, op::Float, op::Unary, shape};
use std::path::{Path, PathBuf};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Runs a target on its corpus, of which at least `least` files must have something to check.
fn replay(target: &str, least: usize, run: fn(&[u8]) -> usize) {
    let files: Vec<PathBuf> = std::fs::read_dir(corpus(target)).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(!files.is_empty(), "the corpus of {target} is missing");
    let mut checked = 0;
    for file in files {
        let data = std::fs::read(&file).unwrap();
        match std::panic::catch_unwind(|| run(&data)) {
            Ok(found) => checked += usize::from(found > 0),
            Err(_) => panic!("{target} fails on {}", file.display()),
        }
    }
    assert!(checked >= least, "{target} found something to check in {checked} files only");
}

#[test]
fn the_graph_corpus_holds() {
    replay("graph_json", 5, fuzz_targets::graph_json);
}

#[test]
fn the_graph_corpus_compiles_and_runs_or_is_refused() {
    replay("graph_json", 4, fuzz_targets::graph_run);
    for graph in graphs().unwrap() {
        assert!(fuzz_targets::graph_run(graph.to_json().as_bytes()) > 0, "nothing to compare of {graph}");
    }
}

#[test]
fn the_safetensors_corpus_holds() {
    replay("safetensors", 6, fuzz_targets::safetensors);
}

#[test]
fn the_npy_corpus_holds() {
    replay("npy", 10, fuzz_targets::npy);
}

#[test]
fn the_gguf_corpus_holds() {
    replay("gguf", 11, fuzz_targets::gguf);
}

#[test]
fn the_mlx_corpus_holds() {
    replay("mlx", 6, fuzz_targets::mlx);
}

/// Files of the corpora with a few bytes changed, cut, doubled or put together are read or refused: 2,000 of each format,
/// always the same; with `SCHWANN_LONG=n` anew for n seconds each.
#[test]
#[expect(clippy::print_stdout, reason = "how many files were tried is what a long run is for")]
fn changed_low_bit_files_are_read_or_refused() {
    let long: Option<u64> = std::env::var("SCHWANN_LONG").ok().and_then(|v| v.parse().ok()).filter(|n| *n > 1);
    for (target, run) in [("gguf", fuzz_targets::gguf as fn(&[u8]) -> usize), ("mlx", fuzz_targets::mlx)] {
        let mut seeds: Vec<PathBuf> = std::fs::read_dir(corpus(target)).unwrap().map(|e| e.unwrap().path()).collect();
        seeds.sort();
        // What fuzzing found is mostly refused already.
        seeds.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-")));
        let seeds: Vec<Vec<u8>> = seeds.iter().map(|path| std::fs::read(path).unwrap()).collect();
        let started = std::time::Instant::now();
        let (mut tried, mut read) = (0u64, 0u64);
        // The time is only a seed that differs from run to run; a failure names it.
        let first = long.map_or(0, |_| std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64));
        while long.map_or(tried < 2_000, |seconds| started.elapsed().as_secs() < seconds) {
            let seed = first.wrapping_add(tried);
            let changed = changed(&seeds, seed);
            match std::panic::catch_unwind(|| run(&changed)) {
                Ok(found) => read += u64::from(found > 0),
                Err(_) => {
                    let kept = std::env::temp_dir().join(format!("schwann-{target}-{seed}"));
                    std::fs::write(&kept, &changed).unwrap();
                    panic!("{target} fails on {}", kept.display());
                }
            }
            tried += 1;
        }
        println!("{target}: {tried} files, of which {read} were read");
        assert!(read > tried / 50 && read < tried, "{target}: {read} of {tried} were read");
    }
}

/// One of the files, changed in one to four ways.
fn changed(seeds: &[Vec<u8>], seed: u64) -> Vec<u8> {
    // SplitMix64. Seeds are spread by another factor than its own, or the numbers of one would be those of its neighbour.
    let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95);
    let mut below = |n: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n.max(1) as u64) as usize
    };
    let mut file = seeds[below(seeds.len())].clone();
    for _ in 0..1 + below(4) {
        // Counts and sizes are at the beginning.
        let reach = if below(2) == 0 { file.len().min(200) } else { file.len() };
        let at = below(reach);
        let end = (at + 1 + below(32)).min(file.len());
        match below(8) {
            _ if file.is_empty() => file.push(below(256) as u8),
            0 => file[at] = below(256) as u8,
            1 => file[at] ^= 1 << below(8),
            2 => file[at] = file[at].wrapping_add(if below(2) == 0 { 1 } else { 255 }),
            3 => {
                let odd = [0, 1, 31, 32, 1 << 31, 1 << 32, 1 << 60, 1 << 63, u64::MAX, u64::MAX - 31][below(10)];
                let width = end.min(at + 8) - at;
                file[at..at + width].copy_from_slice(&odd.to_le_bytes()[..width]);
            }
            4 => file.truncate(at),
            5 => drop(file.drain(at..end)),
            6 => {
                let part = file[at..end].to_vec();
                file.splice(at..at, part);
            }
            _ => {
                let other = &seeds[below(seeds.len())];
                file.truncate(at);
                file.extend_from_slice(&other[below(other.len())..]);
            }
        }
    }
    file
}

/// Small graphs that use every operation between them.
fn graphs() -> schwann_core::Result<Vec<Graph>> {
    let mut graphs = vec![];
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 3])?;
    let w = b.weight("w", Tensor::new(&[2, 3], &[1.0f32; 6])?)?;
    let bias = b.weight("bias", Tensor::new(&[2], &[0.5f32, -0.5])?)?;
    let y = b.linear(x, w, Some(bias))?;
    let y = b.gelu(y)?;
    let p = b.softmax(y, 1)?;
    let c = b.scalar(0.5)?;
    let mask = b.gt(p, c)?;
    let z = b.select(mask, y, p)?;
    let m = b.mean(z, &[0], true)?;
    b.output("z", z)?;
    b.output("mean", m)?;
    graphs.push(b.build()?);

    let mut b = GraphBuilder::new();
    let q = b.input("q", DType::F16, shape!["B", 4, "L", 8])?;
    let k = b.input("k", DType::F16, shape!["B", 2, "S", 8])?;
    let a = b.attention(q, k, k, None, true)?;
    let t = b.transpose(a, &[0, 2, 1, 3])?;
    let r = b.reshape(t, shape!["B", "L", 32])?;
    let n = b.layer_norm(r, None, None, 1e-5)?;
    let n = b.rms_norm(n, None, 1e-6)?;
    let s = b.slice(n, 2, 4, 8)?;
    let s = b.pad(s, 1, 1, "2*S")?;
    let s = b.concat(&[s, s], 2)?;
    let s = b.cast(s, DType::F32)?;
    let g = b.broadcast(s, shape![2, "B", "L + 2*S + 1", 8])?;
    b.output("y", g)?;
    graphs.push(b.build()?);

    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape![10, "N"])?;
    let i = b.input("i", DType::I32, shape!["M"])?;
    let s = b.input("s", DType::I32, shape![10])?;
    let g = b.gather(x, i, 0)?;
    let h = b.segment_sum(x, s, 0, 4)?;
    let q = b.quantize_with(g, 0.1)?;
    let scale = b.scalar(0.1)?;
    let zero = b.constant(Tensor::scalar(0i32))?;
    let d = b.dequantize(q, scale, zero)?;
    b.output("d", d)?;
    b.output("h", h)?;
    graphs.push(b.build()?);

    let mut body = GraphBuilder::new();
    let h = body.input("h", DType::F32, shape!["B", 4])?;
    let x = body.input("x", DType::F32, shape!["B", 4])?;
    let k = body.input("k", DType::F32, shape![4])?;
    let code = vec![
        MapInstr::Input(0),
        MapInstr::Input(1),
        MapInstr::Const(Float(f32::NEG_INFINITY)),
        MapInstr::Binary(Binary::Max, 0, 2),
        MapInstr::Binary(Binary::Mul, 3, 1),
        MapInstr::Unary(Unary::Tanh, 4),
        MapInstr::Select(5, 4, 0),
        MapInstr::Trunc(6),
    ];
    let n = body.push(Op::map(Map { code: code.clone() }, DType::F32), &[h, x, k])?;
    body.output("h", n)?;
    body.output("y", x)?;
    let body = body.build()?;
    let mut b = GraphBuilder::new();
    let h = b.input("h0", DType::F32, shape!["B", 4])?;
    let x = b.input("x", DType::F32, shape!["B", "T", 4])?;
    let k = b.constant(Tensor::new(&[4], &[f32::NAN, -0.0, 1.0, 2.0])?)?;
    let outs = b.scan(body, &[h], &[x], &[k], 1)?;
    let e = b.constant(Tensor::zeros(DType::F32, &[4, 2])?)?;
    let map = Map { code: vec![MapInstr::Input(0), MapInstr::Unary(Unary::Relu, 0)] };
    let op = Op::MatMulMap { transpose_a: false, transpose_b: false, map, dtype: DType::F32 };
    let m = b.push(op, &[outs[1], e])?;
    b.output("h1", outs[0])?;
    b.output("y", m)?;
    b.state("h0", "h1")?;
    graphs.push(b.build()?);

    fuzz_targets::register();
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", "2*T + 3"])?;
    let t = b.input("t", DType::F32, shape!["T"])?;
    let bytes = b.input("bytes", DType::U8, shape!["B"])?;
    let steps = b.custom_results(fuzz_targets::STEP, &[x, bytes])?;
    let again = b.custom(fuzz_targets::STEP, &[steps[1], bytes])?;
    b.output("step", steps[0])?;
    b.output("again", again)?;
    b.output("t", t)?;
    graphs.push(b.build()?);
    Ok(graphs)
}

#[test]
fn every_seed_graph_holds() {
    for graph in graphs().unwrap() {
        assert_eq!(fuzz_targets::graph_json(graph.to_json().as_bytes()), 1, "{graph}");
    }
}

#[test]
#[ignore = "writes the seeds from which the corpora grew"]
fn write_seeds() {
    for (i, graph) in graphs().unwrap().iter().enumerate() {
        std::fs::write(corpus("graph_json").join(format!("seed-{i}")), serde_json::to_string(graph).unwrap()).unwrap();
        schwann_core::io::save(corpus("safetensors").join(format!("seed-{i}")), graph).unwrap();
    }
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/low_bit");
    let whole = std::fs::read(data.join("all.gguf")).unwrap();
    let file = Gguf::from_bytes(&whole[..]).unwrap();
    // All metadata and no tensor; then each tensor alone.
    let mut none = whole[..file.entries()[0].offset].to_vec();
    none[8..16].fill(0);
    std::fs::write(corpus("gguf").join("seed-metadata"), none).unwrap();
    for entry in file.entries().iter().filter(|entry| !entry.name.ends_with(".512")) {
        let number = |n: usize| (n as u64).to_le_bytes();
        let mut alone = [b"GGUF", &3u32.to_le_bytes()[..], &number(1), &number(0)].concat();
        alone.extend([&number(1)[..], b"a", &(entry.shape.len() as u32).to_le_bytes()].concat());
        entry.shape.iter().rev().for_each(|size| alone.extend(number(*size)));
        alone.extend([&entry.kind.0.to_le_bytes()[..], &number(0)].concat());
        alone.resize(alone.len().next_multiple_of(32), 0);
        alone.extend(&whole[entry.offset..entry.offset + entry.bytes.unwrap()]);
        std::fs::write(corpus("gguf").join(format!("seed-{}", entry.name)), alone).unwrap();
    }
    let file = Reader::open(data.join("model.safetensors")).unwrap();
    for (bits, size) in [(2, 32), (3, 64), (4, 64), (5, 128), (6, 64), (8, 32)] {
        let (mut header, mut bytes) = (vec![], vec![]);
        for part in ["weight", "scales", "biases"] {
            let name = format!("layers.{bits}.{size}.{part}");
            let Entry { kind, shape, .. } = file.entry(&name).unwrap();
            let start = bytes.len();
            bytes.extend(file.bytes(&name).unwrap());
            let kind = kind.name().to_uppercase();
            let offsets = format!("[{start},{}]", bytes.len());
            header.push(format!(r#""a.{part}":{{"dtype":"{kind}","shape":{shape:?},"data_offsets":{offsets}}}"#));
        }
        let header = format!("{{{}}}", header.join(","));
        let config =
            format!(r#"{{"quantization":{{"group_size":32,"bits":4,"a":{{"bits":{bits},"group_size":{size}}}}}}}"#);
        let seed = [config.as_bytes(), &[0], &(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes].concat();
        std::fs::write(corpus("mlx").join(format!("seed-{bits}-{size}")), seed).unwrap();
    }
}
