//! The graphs that prices are found with: each kind of kernel at several sizes, many calls to a run, so that what a run
//! costs beside them is small. None is a network that anybody would predict.

use super::Result;
use super::roof::{Ready, low_bit_weights, numbers};
use schwann_core::backend::Backend;
use schwann_core::op::{Activation, Op, Unary};
use schwann_core::pass::PassOptions;
use schwann_core::quant::Scheme;
use schwann_core::{DType, Graph, GraphBuilder, Tensor, Value};
use schwann_nn::wiring::AutoNcp;

/// A graph with inputs.
pub(super) struct Piece {
    pub(super) name: String,
    graph: Graph,
    inputs: Vec<(String, Tensor)>,
    passes: PassOptions,
}

impl Piece {
    pub(super) fn ready(self, backend: &dyn Backend) -> Result<Ready> {
        Ready::new(&self.graph, self.inputs, backend, self.passes)
    }
}

fn piece(name: String, b: GraphBuilder, inputs: Vec<(&str, Tensor)>) -> Result<Piece> {
    let inputs = inputs.into_iter().map(|(n, t)| (n.to_owned(), t)).collect();
    Ok(Piece { name, graph: b.build()?, inputs, passes: PassOptions::default() })
}

fn data(shape: &[usize]) -> Result<Tensor> {
    numbers(DType::F32, shape, -1.0, 1.0)
}

/// Products there and back, x·w or (batch-last) w·x, until their weights are about so many bytes.
fn products(rows: usize, [k, n]: [usize; 2], batch_last: bool, bytes: usize, tanh: bool) -> Result<Piece> {
    let pairs = (bytes / (8 * k * n)).clamp(1, 24);
    let mut b = GraphBuilder::new();
    let shape = if batch_last { [k, rows] } else { [rows, k] };
    let mut x = b.input("x", DType::F32, &shape[..])?;
    for pair in 0..pairs {
        for (half, [from, to]) in [[k, n], [n, k]].into_iter().enumerate() {
            let (weight, bias) = if batch_last { ([to, from], [to, 1]) } else { ([from, to], [1, to]) };
            let w = b.weight(&format!("w{pair}.{half}"), data(&weight)?)?;
            let product = if batch_last { b.matmul(w, x)? } else { b.matmul(x, w)? };
            let bias = b.weight(&format!("b{pair}.{half}"), data(&bias)?)?;
            x = b.add(product, bias)?;
            if tanh {
                x = b.tanh(x)?;
            }
        }
    }
    b.output("y", x)?;
    let kind = if batch_last { "batch-last" } else { "rows" };
    let then = if tanh { ", tanh" } else { "" };
    piece(format!("{} products of {rows} {kind}, {k} to {n}{then}", 2 * pairs), b, vec![("x", data(&shape)?)])
}

/// An elementwise program over three operands in each order of them.
fn maps(
    name: &str,
    shape: [usize; 2],
    f: fn(&mut GraphBuilder, [Value; 3]) -> schwann_core::Result<Value>,
) -> Result<Piece> {
    let mut b = GraphBuilder::new();
    let mut x = [b.input("a", DType::F32, &shape[..])?; 3];
    x[1] = b.input("b", DType::F32, &shape[..])?;
    x[2] = b.input("c", DType::F32, &shape[..])?;
    for (i, order) in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].into_iter().enumerate() {
        let y = f(&mut b, order.map(|j| x[j]))?;
        b.output(&format!("y{i}"), y)?;
    }
    let inputs = vec![("a", data(&shape)?), ("b", data(&shape)?), ("c", data(&shape)?)];
    piece(format!("{name} of {}×{}", shape[0], shape[1]), b, inputs)
}

/// Gated cells one after the other until their weights are about so many bytes; `batch_last` has rows in the lanes. Of a `masked`
/// cell's first two heads every other weight is 0.
fn cells(rows: usize, units: usize, batch_last: bool, bytes: usize, masked: bool) -> Result<Piece> {
    let count = (bytes / (12 * units * units)).clamp(2, 24);
    let mut b = GraphBuilder::new();
    let shape = if batch_last { [units, rows] } else { [rows, units] };
    let mut x = b.input("x", DType::F32, &shape[..])?;
    let axis = usize::from(!batch_last);
    for cell in 0..count {
        let weights = data(&[3 * units, units])?;
        let number = |(i, w): (usize, &f32)| if masked && i < 2 * units * units && i % 2 == 0 { 0.0 } else { *w };
        let weights: Vec<f32> = weights.values::<f32>()?.iter().enumerate().map(number).collect();
        let w = b.weight(&format!("w{cell}"), Tensor::new(&[3 * units, units], &weights)?)?;
        let bias = if batch_last { data(&[3 * units, 1])? } else { data(&[3 * units])? };
        let bias = b.weight(&format!("b{cell}"), bias)?;
        let product = if batch_last { b.matmul(w, x)? } else { b.matmul_t(x, w, false, true)? };
        let product = b.add(product, bias)?;
        let mut heads = [product; 3];
        for (i, head) in heads.iter_mut().enumerate() {
            *head = b.slice(product, axis, i * units, (i + 1) * units)?;
        }
        x = gate(&mut b, heads)?;
    }
    b.output("y", x)?;
    let kind = if batch_last { "batch-last" } else { "rows" };
    let masked = if masked { ", masked" } else { "" };
    piece(format!("{count} gated cells of {rows} {kind}, {units} units{masked}"), b, vec![("x", data(&shape)?)])
}

/// Sums over the synapses of a circuit, one after the other; `batch_last` has rows in the lanes. Circuits have layers, so a
/// destination's sources lie together: random ones would be slower.
fn synapses(rows: usize, units: usize, batch_last: bool) -> Result<Piece> {
    let mut b = GraphBuilder::new();
    let shape = if batch_last { [units, rows] } else { [rows, units] };
    let mut x = b.input("x", DType::F32, &shape[..])?;
    let mut wiring = AutoNcp::new(units, units / 4).wiring()?;
    wiring.build(8)?;
    let (from, to): (Vec<i32>, Vec<i32>) = wiring.synapses().map(|(s, d, _)| (s as i32, d as i32)).unzip();
    let count = from.len();
    for layer in 0..6 {
        let mut lists = vec![x];
        for (name, index) in [("from", &from), ("to", &to)] {
            lists.push(b.weight(&format!("{name}{layer}"), Tensor::new(&[count], index)?)?);
        }
        for name in ["scale", "shift", "one", "two"] {
            lists.push(b.weight(&format!("{name}{layer}"), data(&[count])?)?);
        }
        let axis = usize::from(!batch_last);
        let op = Op::SynapseSum { activation: Activation::Sigmoid, axis, sums: 2, segments: units };
        x = b.push(op, &lists)?;
    }
    b.output("y", x)?;
    let kind = if batch_last { "batch-last" } else { "rows" };
    piece(format!("{count} synapses of {units}, {rows} {kind}"), b, vec![("x", data(&shape)?)])
}

/// Products of two inputs, which nothing could pack ahead.
fn unpacked(rows: usize, [k, n]: [usize; 2]) -> Result<Piece> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, &[rows, k][..])?;
    let mut inputs = vec![("x", data(&[rows, k])?)];
    for name in ["a", "b", "c"] {
        let w = b.input(name, DType::F32, &[k, n][..])?;
        let y = b.matmul(x, w)?;
        b.output(&format!("y{name}"), y)?;
        inputs.push((name, data(&[k, n])?));
    }
    piece(format!("products of {rows} rows, {k} to {n}, not packed"), b, inputs)
}

/// The same operation on rows, several times over.
fn rows(
    name: &str,
    shape: [usize; 2],
    f: fn(&mut GraphBuilder, Value) -> schwann_core::Result<Value>,
) -> Result<Piece> {
    let mut b = GraphBuilder::new();
    let mut inputs = vec![];
    for input in ["a", "b", "c", "d"] {
        let x = b.input(input, DType::F32, &shape[..])?;
        let y = f(&mut b, x)?;
        b.output(&format!("y{input}"), y)?;
        inputs.push((input, data(&shape)?));
    }
    piece(format!("{name} of {}×{}", shape[0], shape[1]), b, inputs)
}

/// Attention over the same queries, keys and values in each order of them.
fn attentions(heads: usize, length: usize, width: usize, causal: bool) -> Result<Piece> {
    let mut b = GraphBuilder::new();
    let shape = [1, heads, length, width];
    let mut inputs = vec![];
    let mut all = vec![];
    for name in ["a", "b", "c"] {
        all.push(b.input(name, DType::F32, &shape[..])?);
        inputs.push((name, data(&shape)?));
    }
    for (i, order) in [[0, 1, 2], [1, 2, 0], [2, 0, 1]].into_iter().enumerate() {
        let [q, k, v] = order.map(|j| all[j]);
        let y = b.attention(q, k, v, None, causal)?;
        b.output(&format!("y{i}"), y)?;
    }
    let which = if causal { "causal " } else { "" };
    piece(format!("{which}attention of {heads} heads, {length}×{width}"), b, inputs)
}

/// Products with weights of a narrower type, there and back, of rows of that type or of f32.
fn narrow([left, dtype]: [DType; 2], rows: usize, [k, n]: [usize; 2], bytes: usize) -> Result<Piece> {
    let pairs = (bytes / (4 * k * n)).clamp(1, 12);
    let mut b = GraphBuilder::new();
    let mut x = b.input("x", left, &[rows, k][..])?;
    for pair in 0..pairs {
        for (half, [from, to]) in [[k, n], [n, k]].into_iter().enumerate() {
            let weights = numbers(dtype, &[from, to], -0.1, 0.1)?;
            let w = b.weight(&format!("w{pair}.{half}"), weights)?;
            x = b.matmul(x, w)?;
        }
    }
    b.output("y", x)?;
    let name = format!("{} products of {rows} rows of {left}, {k} to {n}, weights {dtype}", 2 * pairs);
    piece(name, b, vec![("x", numbers(left, &[rows, k], -1.0, 1.0)?)])
}

/// Products with low-bit weights, there and back, until these are about so many bytes.
fn low_bit(scheme: Scheme, rounded: bool, rows: usize, [k, n]: [usize; 2], bytes: usize) -> Result<Piece> {
    let each = scheme.bits(n, k) / 8.0 * (k * n) as f64;
    let pairs = ((bytes as f64 / 2.0 / each) as usize).clamp(1, 12);
    let mut b = GraphBuilder::new();
    let mut x = b.input("x", DType::F32, &[rows, k][..])?;
    for pair in 0..pairs {
        for (half, [from, to]) in [[k, n], [n, k]].into_iter().enumerate() {
            let w = low_bit_weights(&mut b, &format!("w{pair}.{half}"), scheme, [from, to])?;
            let left = if rounded { b.round_rows(x)? } else { x };
            let bias = b.weight(&format!("b{pair}.{half}"), data(&[to])?)?;
            x = b.linear(left, w, Some(bias))?;
        }
    }
    b.output("y", x)?;
    let of = if rounded { "8 bits" } else { "f32" };
    piece(
        format!("{} products of {rows} rows of {of}, {k} to {n}, {scheme}", 2 * pairs),
        b,
        vec![("x", data(&[rows, k])?)],
    )
}

/// Sums of two values of a narrower type.
fn converted(dtype: DType, shape: [usize; 2]) -> Result<Piece> {
    let mut b = GraphBuilder::new();
    let (one, two) = (b.input("a", dtype, &shape[..])?, b.input("b", dtype, &shape[..])?);
    for (i, [x, y]) in [[one, two], [two, one], [one, one], [two, two]].into_iter().enumerate() {
        let y = b.add(x, y)?;
        b.output(&format!("y{i}"), y)?;
    }
    let value = || numbers(dtype, &shape, -1.0, 1.0);
    piece(format!("sums of {dtype}, {}×{}", shape[0], shape[1]), b, vec![("a", value()?), ("b", value()?)])
}

/// Rows of a table, looked up.
fn lookups(count: usize, width: usize) -> Result<Piece> {
    const ROWS: usize = 256;
    let mut b = GraphBuilder::new();
    let table = b.input("table", DType::F32, &[ROWS, width][..])?;
    let mut inputs = vec![("table", data(&[ROWS, width])?)];
    for (at, name) in ["i", "j", "k"].into_iter().enumerate() {
        let index = b.input(name, DType::I32, &[count][..])?;
        let y = b.gather(table, index, 0)?;
        b.output(&format!("y{name}"), y)?;
        let rows: Vec<i32> = (0..count).map(|i| ((i * 37 + at * 11) % ROWS) as i32).collect();
        inputs.push((name, Tensor::new(&[count], &rows)?));
    }
    piece(format!("{count} rows of {width} looked up"), b, inputs)
}

/// Two parts joined.
fn joins(shape: [usize; 2], axis: usize) -> Result<Piece> {
    let mut b = GraphBuilder::new();
    let one = b.input("a", DType::F32, &shape[..])?;
    let two = b.input("b", DType::F32, &shape[..])?;
    for (i, parts) in [[one, two], [two, one], [one, one], [two, two]].iter().enumerate() {
        let y = b.concat(parts, axis)?;
        b.output(&format!("y{i}"), y)?;
    }
    piece(
        format!("joins of {}×{} along {axis}", shape[0], shape[1]),
        b,
        vec![("a", data(&shape)?), ("b", data(&shape)?)],
    )
}

/// A loop that does next to nothing: h ← |h|·x.
fn loops(rows: usize, width: usize, steps: usize) -> Result<Piece> {
    let mut body = GraphBuilder::new();
    let h = body.input("h", DType::F32, &[rows, width][..])?;
    let x = body.input("x", DType::F32, &[rows, width][..])?;
    let next = body.abs(h)?;
    let next = body.mul(next, x)?;
    body.output("h", next)?;
    body.output("y", next)?;
    let mut b = GraphBuilder::new();
    let h = b.input("h", DType::F32, &[rows, width][..])?;
    let x = b.input("x", DType::F32, &[rows, steps, width][..])?;
    let outs = b.scan(body.build()?, &[h], &[x], &[], 1)?;
    b.output("hn", outs[0])?;
    b.output("y", outs[1])?;
    let inputs = vec![("h", data(&[rows, width])?), ("x", data(&[rows, steps, width])?)];
    piece(format!("a loop of {steps} steps over {rows}×{width}"), b, inputs)
}

/// tanh a + sigmoid c · (tanh b − tanh a): the gate of recurrent cells.
pub(super) fn gate(b: &mut GraphBuilder, [x, y, t]: [Value; 3]) -> schwann_core::Result<Value> {
    let (x, y, t) = (b.tanh(x)?, b.tanh(y)?, b.sigmoid(t)?);
    let by = b.sub(y, x)?;
    let by = b.mul(t, by)?;
    b.add(x, by)
}

fn quotient(b: &mut GraphBuilder, [x, y, z]: [Value; 3]) -> schwann_core::Result<Value> {
    let top = b.mul(x, y)?;
    let top = b.add(top, z)?;
    let square = b.push(Op::Unary(Unary::Square), &[z])?;
    let one = b.scalar(1.5)?;
    let below = b.add(square, one)?;
    b.div(top, below)
}

fn plain(b: &mut GraphBuilder, [x, y, z]: [Value; 3]) -> schwann_core::Result<Value> {
    let p = b.mul(x, y)?;
    b.add(p, z)
}

fn sum(b: &mut GraphBuilder, [x, y, _]: [Value; 3]) -> schwann_core::Result<Value> {
    b.add(x, y)
}

fn tanh(b: &mut GraphBuilder, [x, y, _]: [Value; 3]) -> schwann_core::Result<Value> {
    let p = b.mul(x, y)?;
    b.tanh(p)
}

/// Gives each piece of the suite to `take`, for caches of these sizes; where one is not known, for sizes that most have.
/// One after the other, since all graphs together would take much memory beside what they become.
pub(super) fn each(l1: Option<usize>, l2: Option<usize>, take: &mut dyn FnMut(Piece) -> Result<()>) -> Result<()> {
    let (l1, l2) = (l1.unwrap_or(32 << 10), l2.unwrap_or(512 << 10));
    // A second level that a cluster shares may be many times what a core's share is.
    let l2 = l2.min(4 << 20);
    for sizes in [[16, 16], [32, 32], [64, 64], [80, 56], [40, 90], [64, 192], [128, 128]] {
        for bytes in [l1 / 2, l2 / 4] {
            take(products(1, sizes, false, bytes, false)?)?;
        }
    }
    take(products(1, [64, 64], false, l1 / 2, true)?)?;
    take(products(1, [128, 96], false, l2 / 4, true)?)?;
    for rows in [2, 4, 8, 24] {
        for sizes in [[32, 32], [64, 64], [80, 160]] {
            take(products(rows, sizes, false, l2 / 8, false)?)?;
        }
    }
    for rows in [16, 32, 48] {
        for sizes in [[24, 40], [64, 64], [37, 90], [80, 56], [64, 192], [128, 128]] {
            take(products(rows, sizes, true, l2 / 8, false)?)?;
        }
        take(products(rows, [64, 64], true, l2 / 8, true)?)?;
    }
    take(products(96, [256, 256], false, l2 / 4, false)?)?;
    for shape in [[1, 16], [1, 64], [64, 16], [64, 32], [64, 48], [1, 4096]] {
        take(maps("gate", shape, gate)?)?;
        take(maps("quotient", shape, quotient)?)?;
        take(maps("x·y + z", shape, plain)?)?;
        take(maps("x + y", shape, sum)?)?;
        take(maps("tanh", shape, tanh)?)?;
    }
    for units in [16, 24, 40, 64, 100] {
        for bytes in [l1 / 2, l2 / 4] {
            take(cells(1, units, false, bytes, false)?)?;
        }
    }
    for rows in [16, 32, 48] {
        for (units, masked) in [(16, false), (24, true), (40, true), (64, false), (100, false)] {
            take(cells(rows, units, true, l2 / 8, masked)?)?;
        }
    }
    for (rows, batch_last) in [(1, false), (4, false), (16, true), (32, true), (48, true)] {
        for units in [32, 48, 80, 96] {
            take(synapses(rows, units, batch_last)?)?;
        }
    }
    for (rows, sizes) in [(2, [32, 32]), (8, [64, 64]), (24, [64, 128]), (48, [128, 96])] {
        take(unpacked(rows, sizes)?)?;
    }
    for shape in [[1, 10], [1, 64], [8, 32], [32, 64], [64, 128]] {
        take(rows("softmax", shape, |b, x| b.softmax(x, 1))?)?;
        take(rows("layer norm", shape, |b, x| b.layer_norm(x, None, None, 1e-5))?)?;
        take(rows("sums of rows", shape, |b, x| b.sum(x, &[1], false))?)?;
    }
    for (count, width) in [(1, 16), (8, 64), (32, 32), (64, 128)] {
        take(lookups(count, width)?)?;
    }
    for (heads, length, width, causal) in
        [(1, 8, 16, false), (4, 16, 32, false), (2, 64, 32, false), (4, 48, 16, true), (8, 96, 64, false)]
    {
        take(attentions(heads, length, width, causal)?)?;
    }
    for dtype in [DType::Bf16, DType::F16] {
        for rows in [1, 8, 32] {
            for sizes in [[64, 64], [128, 192]] {
                take(narrow([dtype; 2], rows, sizes, l2 / 8)?)?;
            }
            // Smaller weights are widened before the run, unless there is an instruction for them.
            for sizes in [[320, 256], [512, 192]] {
                take(narrow([dtype; 2], rows, sizes, l2 / 8)?)?;
                take(narrow([DType::F32, dtype], rows, sizes, l2 / 8)?)?;
            }
        }
        take(converted(dtype, [64, 48])?)?;
    }
    for scheme in [Scheme::INT8, Scheme::INT4, Scheme::TERNARY] {
        // Square ones and wide ones, so that rounding rows and multiplying them are told apart.
        for sizes in [[64, 64], [256, 192], [256, 320], [32, 768], [512, 640], [1024, 64]] {
            take(low_bit(scheme, true, 1, sizes, l2 / 8)?)?;
        }
        for (rows, sizes) in [
            (4, [64, 64]),
            (8, [128, 192]),
            (32, [256, 128]),
            (16, [24, 24]),
            (12, [512, 512]),
            (16, [32, 512]),
            (32, [512, 384]),
        ] {
            take(low_bit(scheme, true, rows, sizes, l2 / 8)?)?;
        }
        // Rows of f32 read codes only of weights that are not small.
        for (rows, sizes) in [(1, [320, 256]), (3, [512, 192]), (32, [320, 256]), (96, [256, 320])] {
            take(low_bit(scheme, false, rows, sizes, l2 / 8)?)?;
        }
    }
    for (shape, axis) in [([1, 16], 1), ([1, 64], 1), ([16, 32], 0), ([64, 32], 0), ([40, 48], 0)] {
        take(joins(shape, axis)?)?;
    }
    for (rows, width, steps) in [
        (1, 8, 64),
        (1, 64, 64),
        (1, 16, 1),
        (1, 16, 4),
        (16, 16, 32),
        (32, 16, 32),
        (32, 64, 16),
        (48, 32, 16),
        (128, 16, 16),
    ] {
        take(loops(rows, width, steps)?)?;
    }
    Ok(())
}
