//! Cases of gated cells: three heads of one product and the gate that reads them, which a backend may run as one call.

use super::{List, Maker, Tolerance};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Value;
use crate::op::{Binary, Map, MapInstr, Op, Unary};

/// A cell, and the special features in `with` that a backend must not overlook.
struct Cell {
    name: &'static str,
    /// Inputs of each of the two parts, which are concatenated; a single part if the second is 0.
    inputs: [usize; 2],
    units: usize,
    rows: usize,
    /// Rows are the last axis, and the product is weights · values.
    batch_last: bool,
    with: With,
}

#[derive(Clone, Copy, Default)]
struct With {
    /// Weights are stored transposed, and the product transposes them back.
    transposed: bool,
    no_bias: bool,
    /// The heads' order among the columns: where a, b and t begin, in units.
    order: Option<[usize; 3]>,
    /// Half of a's and b's weights are 0.
    masked: bool,
    /// Weights, or the bias, are not known before the run.
    given_weights: bool,
    given_bias: bool,
    /// Other nodes read the product, a head, or the joined inputs too.
    product_read: bool,
    head_read: bool,
    inputs_read: bool,
    /// The result is an output, and also a part of another output.
    twice: bool,
    /// The bias has one number for each row, not one for each column.
    bias_by_row: bool,
    /// One head is both t and a, and another node reads the product.
    two_heads: bool,
    /// Heads overlap.
    overlapping: bool,
    /// The second part is the same value as the first, or a slice that is not contiguous.
    same_part: bool,
    sliced_part: bool,
    /// The product has columns that belong to no head.
    more_columns: bool,
    /// A special number that every other row has among its inputs, and in which of the two parts.
    special: Option<(f32, usize)>,
}

/// One part of the inputs.
fn part(m: &mut Maker, cell: &Cell, which: usize) -> Result<Value> {
    let (features, rows) = (cell.inputs[which], cell.rows);
    let shape = if cell.batch_last { [features, rows] } else { [rows, features] };
    let Some((special, _)) = cell.with.special.filter(|(_, part)| *part == which) else { return m.uniform(&shape) };
    let data = m.random.floats(&shape, -1.0, 1.0);
    let mut data = data.values::<f32>()?.to_vec();
    for row in (0..rows).step_by(2) {
        let feature = (row * 5 + 2) % features;
        data[if cell.batch_last { feature * rows + row } else { row * features + feature }] = special;
    }
    m.given(crate::Tensor::new(&shape, &data)?)
}

fn build(m: &mut Maker, cell: &Cell) -> Result<()> {
    let &Cell { inputs, units, rows, batch_last, with, .. } = cell;
    let (axis, all) = (usize::from(!batch_last), inputs[0] + inputs[1]);
    let of = |features: usize| if batch_last { [features, rows] } else { [rows, features] };
    let mut x = part(m, cell, 0)?;
    if inputs[1] > 0 {
        let state = match (with.same_part, with.sliced_part) {
            (true, _) => x,
            (_, true) => {
                let wide = m.uniform(&of(inputs[1] + 3).map(|n| n + 2))?;
                let part = m.slice(wide, axis, 1, inputs[1] + 1)?;
                m.slice(part, 1 - axis, 1, rows + 1)?
            }
            _ => part(m, cell, 1)?,
        };
        x = m.concat(&[x, state], axis)?;
    }
    let order = with.order.unwrap_or([0, 1, 2]);
    let columns = 3 * units + if with.more_columns { 4 } else { 0 };
    let range = 2.0 / (all as f64).sqrt();
    let weights = m.random.floats(&[all, columns], -range, range);
    let mut weights = weights.values::<f32>()?.to_vec();
    if with.masked {
        let mask = m.random.floats(&[all, units], 0.0, 1.0);
        for (i, keep) in mask.values::<f32>()?.iter().enumerate() {
            let (input, unit) = (i / units, i % units);
            for head in &order[..2] {
                weights[input * columns + head * units + unit] *= keep.round();
            }
        }
    }
    // Weights are stored by input for a batch-first product that reads them as they are, or a batch-last one that
    // transposes them.
    let by_input = batch_last == with.transposed;
    let data = if by_input {
        crate::Tensor::new(&[all, columns], &weights)?
    } else {
        let transposed: Vec<f32> = (0..all * columns).map(|i| weights[i % all * columns + i / all]).collect();
        crate::Tensor::new(&[columns, all], &transposed)?
    };
    let w = if with.given_weights { m.given(data)? } else { m.trained(data)? };
    let mut product = match batch_last {
        true => m.matmul_t(w, x, with.transposed, false)?,
        false => m.matmul_t(x, w, false, with.transposed)?,
    };
    if !with.no_bias {
        let shape: &[usize] = match (batch_last, with.bias_by_row) {
            (true, false) => &[columns, 1],
            (true, true) => &[rows],
            (false, false) => &[columns],
            (false, true) => &[rows, 1],
        };
        let bias = if with.given_bias { m.uniform(shape)? } else { m.trained_uniform(shape)? };
        product = m.add(product, bias)?;
    }
    let head = |m: &mut Maker, at: usize| {
        let start = if with.overlapping { at * units / 2 } else { at * units };
        m.slice(product, axis, start, start + units)
    };
    let [a, b] = [head(m, order[0])?, head(m, order[1])?];
    let t = if with.two_heads { a } else { head(m, order[2])? };
    let (from, to, by) = (m.tanh(a)?, m.tanh(b)?, m.sigmoid(t)?);
    let way = m.sub(to, from)?;
    let way = m.mul(by, way)?;
    let y = m.add(from, way)?;
    m.result(y)?;
    if with.twice {
        let whole = m.concat(&[y, x], axis)?;
        m.result(whole)?;
    }
    let also =
        |m: &mut Maker, read: bool, value: Value| if read { m.abs(value).and_then(|v| m.result(v)) } else { Ok(()) };
    also(m, with.product_read || with.two_heads, product)?;
    also(m, with.head_read, a)?;
    also(m, with.inputs_read, x)
}

pub(super) fn cells(list: &mut List<'_>) {
    list.add("gated", "own-operations", Tolerance::CHAIN, own_operations);
    for (batch_last, by_column, biased) in (0..8).map(|i| (i & 1 > 0, i & 2 > 0, i & 4 > 0)) {
        for rows in [1, 3, 20] {
            let way = if batch_last { "last" } else { "first" };
            let weights = if by_column { "by-column" } else { "by-input" };
            let title = format!("operation/{rows}-{way}/{weights}{}", if biased { "-biased" } else { "" });
            list.add("gated", title, Tolerance::CHAIN, |m| operation(m, rows, batch_last, by_column, biased));
        }
    }
    let plain = With::default();
    let withs = [
        ("plain", plain),
        ("transposed", With { transposed: true, ..plain }),
        ("no-bias", With { no_bias: true, ..plain }),
        ("t-first", With { order: Some([1, 2, 0]), ..plain }),
        ("b-first", With { order: Some([2, 0, 1]), masked: true, ..plain }),
        ("masked", With { masked: true, ..plain }),
        ("masked-transposed", With { masked: true, transposed: true, ..plain }),
        // 0 · ∞ is NaN, so that a weight of 0 is not the same as none.
        ("masked-infinity", With { masked: true, special: Some((f32::INFINITY, 0)), ..plain }),
        ("masked-minus-infinity", With { masked: true, special: Some((f32::NEG_INFINITY, 1)), ..plain }),
        ("masked-nan", With { masked: true, special: Some((f32::NAN, 1)), ..plain }),
        ("infinity", With { special: Some((f32::INFINITY, 1)), ..plain }),
        ("given-weights", With { given_weights: true, ..plain }),
        ("given-bias", With { given_bias: true, ..plain }),
        ("product-read", With { product_read: true, ..plain }),
        ("head-read", With { head_read: true, ..plain }),
        ("inputs-read", With { inputs_read: true, ..plain }),
        ("twice", With { twice: true, ..plain }),
        ("bias-by-row", With { bias_by_row: true, ..plain }),
        ("two-heads", With { two_heads: true, ..plain }),
        ("overlapping", With { overlapping: true, ..plain }),
        ("sliced-part", With { sliced_part: true, ..plain }),
        ("more-columns", With { more_columns: true, ..plain }),
    ];
    for batch_last in [false, true] {
        for (name, with) in withs {
            let cell =
                Cell { name, inputs: [8, 29], units: 29, rows: if batch_last { 33 } else { 1 }, batch_last, with };
            add(list, &cell);
        }
        let with = With { same_part: true, ..plain };
        add(
            list,
            &Cell {
                name: "same-part",
                inputs: [7, 7],
                units: 9,
                rows: if batch_last { 20 } else { 1 },
                batch_last,
                with,
            },
        );
        // As many rows as columns, so that the bias's shape alone does not tell them apart.
        let with = With { bias_by_row: true, ..plain };
        add(list, &Cell { name: "bias-by-row", inputs: [4, 4], units: 6, rows: 18, batch_last, with });
        // Sizes around registers of 4, 8 and 16, of one part or two.
        for (inputs, units) in
            [([1, 0], 1), ([3, 5], 5), ([29, 19], 19), ([19, 16], 16), ([64, 0], 64), ([2, 100], 100)]
        {
            for rows in if batch_last { &[1, 16, 19, 48][..] } else { &[1, 3][..] } {
                let with = With { masked: batch_last, ..plain };
                add(list, &Cell { name: "sizes", inputs, units, rows: *rows, batch_last, with });
            }
        }
    }
}

/// The operation itself.
fn operation(m: &mut Maker, rows: usize, batch_last: bool, by_column: bool, biased: bool) -> Result<()> {
    let (width, units) = (7, 5);
    let mut inputs = vec![m.uniform(&if batch_last { [width, rows] } else { [rows, width] })?];
    inputs.push(m.trained_uniform(&if by_column { [3 * units, width] } else { [width, 3 * units] })?);
    if biased {
        inputs.push(m.trained_uniform(if batch_last { &[15, 1][..] } else { &[15] })?);
    }
    let y = m.push(Op::GatedCell { batch_last, by_column, heads: [units, 2 * units, 0] }, &inputs)?;
    m.result(y)
}

/// What the passes make of a cell, but with operands that they never produce.
fn own_operations(m: &mut Maker) -> Result<()> {
    use MapInstr::Input;
    let x = m.uniform(&[1, 5])?;
    let w = m.trained_uniform(&[5, 12])?;
    let biases = [m.trained_uniform(&[12])?, m.trained_uniform(&[12])?];
    for (reads, inputs) in [([0, 2], 3), ([1, 2], 3), ([2, 0], 3), ([0, 1], 4)] {
        let code = vec![Input(reads[0]), Input(reads[1]), MapInstr::Binary(Binary::Add, 0, 1)];
        let op = Op::MatMulMap { transpose_a: false, transpose_b: false, map: Map { code }, dtype: DType::F32 };
        let product = m.push(op, &[x, w, biases[0], biases[1]])?;
        let mut heads = vec![];
        for start in [0, 4, 8] {
            heads.push(m.slice(product, 1, start, start + 4)?);
        }
        let given = m.uniform(&[1, 4])?;
        let unread = m.abs(given)?;
        m.result(unread)?;
        heads.push(unread);
        let code = vec![
            Input(0),
            Input(1),
            Input(2),
            MapInstr::Unary(Unary::Tanh, 0),
            MapInstr::Unary(Unary::Tanh, 1),
            MapInstr::Unary(Unary::Sigmoid, 2),
            MapInstr::Binary(Binary::Sub, 4, 3),
            MapInstr::Binary(Binary::Mul, 5, 6),
            MapInstr::Binary(Binary::Add, 3, 7),
        ];
        let y = m.push(Op::map(Map { code }, DType::F32), &heads[..inputs])?;
        m.result(y)?;
    }
    Ok(())
}

fn add(list: &mut List<'_>, cell: &Cell) {
    let Cell { name, inputs, units, rows, batch_last, .. } = cell;
    let kind = if *batch_last { "columns" } else { "rows" };
    let title = format!("{name}/{}+{}to{units}/{rows}-{kind}", inputs[0], inputs[1]);
    list.add("gated", title, Tolerance::CHAIN, |m| build(m, cell));
}
