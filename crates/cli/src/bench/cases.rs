//! What `bench ops` times: the library's own list of cases, and the larger ones that say how good its kernels are.
//!
//! A case is built when its turn comes, since some hold tens of megabytes.

use anyhow::Result;
use schwann::pass::PassOptions;
use schwann::prof::device::roof::{self, numbers};
use schwann::quant::Scheme;
use schwann::{DType, Graph, GraphBuilder, Op, Tensor, op::Unary};

/// A graph with inputs, ready to be compiled.
pub(super) struct Built {
    pub(super) graph: Graph,
    pub(super) inputs: Vec<(String, Tensor)>,
}

/// One thing to time.
pub(super) struct Case {
    /// Unique, such as `gemm/f32/512x512x512`.
    pub(super) name: String,
    /// The first part of the name.
    pub(super) group: String,
    /// What passes may do to it.
    pub(super) passes: PassOptions,
    build: Box<dyn Fn() -> Result<Built>>,
}

impl Case {
    fn new(name: String, build: impl Fn() -> Result<Built> + 'static) -> Case {
        let group = name.split('/').next().unwrap_or_default().to_owned();
        Case { name, group, passes: PassOptions::default(), build: Box::new(build) }
    }
    fn unfused(mut self) -> Case {
        self.passes = PassOptions::none();
        self
    }
    pub(super) fn build(&self) -> Result<Built> {
        (self.build)()
    }
}

/// Every case whose name contains `filter`.
pub(super) fn all(filter: &str) -> Vec<Case> {
    let mut cases = engine();
    for case in schwann::cases::speed() {
        let name = case.name.clone();
        cases.push(Case::new(name, move || {
            Ok(Built { graph: case.graph.clone(), inputs: case.inputs.clone().into_iter().collect() })
        }));
    }
    cases.retain(|c| c.name.contains(filter));
    cases
}

/// The cases that are about the engine rather than a network.
fn engine() -> Vec<Case> {
    let mut cases = vec![];
    for (dtype, n) in [(DType::F32, 512), (DType::F32, 1024), (DType::F32, 2048), (DType::Bf16, 2048)] {
        cases.push(Case::new(format!("gemm/{dtype}/{n}x{n}x{n}"), move || product(dtype, n)));
    }
    for sizes in [[32, 64, 64], [32, 256, 256], [1, 1024, 256]] {
        cases.push(weights([DType::F32; 2], sizes));
    }
    // Weights of half the bytes beside their twins.
    for n in [512, 2048] {
        for m in [1, 32, 256] {
            let types = [[DType::F32; 2], [DType::F32, DType::Bf16], [DType::F32, DType::F16], [DType::Bf16; 2]];
            cases.extend(types.map(|types| weights(types, [m, n, n])));
        }
    }
    for (name, scheme) in [("ternary", Scheme::TERNARY), ("int4", Scheme::INT4), ("int8", Scheme::INT8)] {
        for (k, n) in [(2560, 2560), (2560, 6912), (6912, 2560)] {
            for m in [1, 32] {
                let low_bit = |rounded: bool| move || low_bit(scheme, rounded, [m, k, n]);
                cases.push(Case::new(format!("low_bit/{name}/rows-of-8-bits/{m}x{k}x{n}"), low_bit(true)));
                if k < n {
                    cases.push(Case::new(format!("low_bit/{name}/rows-of-f32/{m}x{k}x{n}"), low_bit(false)));
                }
            }
        }
    }
    cases.push(Case::new("chain/fused/6-ops/16M".into(), chain));
    cases.push(Case::new("chain/unfused/6-ops/16M".into(), chain).unfused());
    cases.push(Case::new("softmax/f32/4096x1024".into(), || rows(|b, x| b.softmax(x, 1))));
    cases.push(Case::new("layer_norm/f32/4096x1024".into(), || rows(|b, x| b.layer_norm(x, None, None, 1e-5))));
    for (name, causal) in [("plain", false), ("causal", true)] {
        cases.push(Case::new(format!("attention/f32/1x8x1024x64/{name}"), move || attention(causal)));
    }
    for op in [Unary::Tanh, Unary::Sigmoid, Unary::Exp] {
        cases.push(Case::new(format!("unary/{}/f32/4096", op.name()), move || {
            let mut b = GraphBuilder::new();
            let x = b.input("x", DType::F32, &[4096][..])?;
            let y = b.push(Op::Unary(op), &[x])?;
            b.output("y", y)?;
            Ok(Built { graph: b.build()?, inputs: vec![("x".into(), numbers(DType::F32, &[4096], -4.0, 4.0)?)] })
        }));
    }
    cases.push(Case::new("transpose/f32/4096x4096/10".into(), || {
        let shape = [4096, 4096];
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, &shape[..])?;
        let y = b.transpose(x, &[1, 0])?;
        b.output("y", y)?;
        Ok(Built { graph: b.build()?, inputs: vec![("x".into(), numbers(DType::F32, &shape, -1.0, 1.0)?)] })
    }));
    cases.push(
        Case::new(format!("overhead/{}-steps", roof::OVERHEAD_STEPS), || {
            let (graph, inputs) = roof::overhead()?;
            Ok(Built { graph, inputs })
        })
        .unfused(),
    );
    cases
}

/// A product of rows of one type with weights of another, packed ahead.
fn weights(types: [DType; 2], sizes @ [m, k, n]: [usize; 3]) -> Case {
    let kind = if m == 1 { "gemv" } else { "gemm" };
    let name = if types[0] == types[1] { types[0].to_string() } else { format!("{}-{}", types[0], types[1]) };
    Case::new(format!("{kind}/{name}/prepacked/{m}x{k}x{n}"), move || {
        let (graph, inputs) = roof::packed_product(types, sizes)?;
        Ok(Built { graph, inputs })
    })
}

/// A product with low-bit weights.
fn low_bit(scheme: Scheme, rounded: bool, [m, k, n]: [usize; 3]) -> Result<Built> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &[m, k][..])?;
    let w = roof::low_bit_weights(&mut b, "w", scheme, [k, n])?;
    let left = if rounded { b.round_rows(x)? } else { x };
    let y = b.matmul_t(left, w, false, true)?;
    b.output("y", y)?;
    Ok(Built { graph: b.build()?, inputs: vec![("x".into(), numbers(DType::F32, &[m, k], -1.0, 1.0)?)] })
}

/// A product of two inputs, neither packed ahead.
fn product(dtype: DType, n: usize) -> Result<Built> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", dtype, &[n, n][..])?;
    let w = b.input("w", dtype, &[n, n][..])?;
    let y = b.matmul(x, w)?;
    b.output("y", y)?;
    let data = numbers(dtype, &[n, n], -1.0, 1.0)?;
    Ok(Built { graph: b.build()?, inputs: vec![("x".into(), data.clone()), ("w".into(), data)] })
}

/// Six elementwise operations over 16 million floats: |relu(1.1·x + 0.5)·0.9 − 0.1|.
fn chain() -> Result<Built> {
    let count = 16 << 20;
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &[count][..])?;
    let [scale, shift, rescale, less] = [1.1, 0.5, 0.9, 0.1].map(|c| b.scalar(c));
    let y = b.mul(x, scale?)?;
    let y = b.add(y, shift?)?;
    let y = b.relu(y)?;
    let y = b.mul(y, rescale?)?;
    let y = b.sub(y, less?)?;
    let y = b.abs(y)?;
    b.output("y", y)?;
    Ok(Built { graph: b.build()?, inputs: vec![("x".into(), numbers(DType::F32, &[count], -1.0, 1.0)?)] })
}

fn rows(f: impl Fn(&mut GraphBuilder, schwann::Value) -> schwann::Result<schwann::Value>) -> Result<Built> {
    let shape = [4096, 1024];
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &shape[..])?;
    let y = f(&mut b, x)?;
    b.output("y", y)?;
    Ok(Built { graph: b.build()?, inputs: vec![("x".into(), numbers(DType::F32, &shape, -4.0, 4.0)?)] })
}

fn attention(causal: bool) -> Result<Built> {
    let shape = [1, 8, 1024, 64];
    let mut b = GraphBuilder::new();
    let mut inputs = vec![];
    let mut values = vec![];
    for name in ["q", "k", "v"] {
        values.push(b.input(name, DType::F32, &shape[..])?);
        inputs.push((name.to_owned(), numbers(DType::F32, &shape, -1.0, 1.0)?));
    }
    let y = b.attention(values[0], values[1], values[2], None, causal)?;
    b.output("y", y)?;
    Ok(Built { graph: b.build()?, inputs })
}
