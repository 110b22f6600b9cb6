//! Matrix products: weights are packed before the run, the kernel adds the bias, and the rest of a fused program runs
//! on the result while it is in cache.

use super::calls::{by_definition, compile, elem};
use super::lower::{Label, Lower, Sized};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Node, Value};
use crate::op::{Binary, LowBit, LowBitMatMul, Map, MapInstr, Op};
use crate::plan::Kernel;
use crate::plan::kernel::{Format, MapWork, Product};
use schwann_kernels::gemm::{Store, is_shared, multiplies_bf16};
use schwann_kernels::lowbit::is_direct;
use schwann_kernels::map::{self as kernel};
use schwann_kernels::tape::{Call, Epilogue, Gemm, GemmB, Ref, Strided};

pub(super) fn store(dtype: DType) -> Store {
    match dtype {
        DType::F16 => Store::F16,
        DType::Bf16 => Store::Bf16,
        _ => Store::F32,
    }
}

/// Rows, columns and their strides of the last two axes.
fn matrix(x: &Sized, transposed: bool) -> ([usize; 2], [usize; 2]) {
    let rank = x.shape.len();
    let (sizes, strides) = ([x.shape[rank - 2], x.shape[rank - 1]], [x.shape[rank - 1], 1]);
    if transposed { ([sizes[1], sizes[0]], [strides[1], strides[0]]) } else { (sizes, strides) }
}

pub(super) fn lower(l: &mut Lower<'_>, value: Value, node: &Node) -> Result<()> {
    let (transpose_a, transpose_b, map) = match &node.op {
        Op::MatMul { transpose_a, transpose_b } => (*transpose_a, *transpose_b, None),
        Op::MatMulMap { transpose_a, transpose_b, map, .. } => (*transpose_a, *transpose_b, Some(map)),
        Op::LowBitMatMul(product) => return low_bit(l, value, node, product),
        other => return Err(Error::Internal(format!("{} is no matrix product", other.name()))),
    };
    let out = l.sized(value)?;
    let (a, b) = (l.sized(node.inputs[0])?, l.sized(node.inputs[1])?);
    let mut types = [a.dtype, b.dtype];
    let ([mut m, k], [a_row, a_col]) = matrix(&a, transpose_a);
    let ([_, n], [b_row, b_col]) = matrix(&b, transpose_b);
    let leading = |x: &Sized| x.shape[..x.shape.len() - 2].iter().product::<usize>();
    let mut batch = leading(&out);
    let (a_batch, b_batch) = (leading(&a), leading(&b));
    // A batch of contiguous left-hand sides with one right-hand matrix is a single product with more rows.
    let flat = b_batch == 1 && a_batch == batch && (!transpose_a || batch == 1);
    if flat {
        m *= batch;
        batch = 1;
    }
    if map.is_some() && !flat {
        return Err(Error::Internal(format!("`{}`: an epilogue on a batch of products", node.name)));
    }
    let (left, rest) = match l.parts(node.inputs[0]) {
        Some([first, last]) => {
            let columns = l.sized(last)?.count();
            (first, Some((l.read(last)?, columns)))
        }
        None => (node.inputs[0], None),
    };
    let a = Strided {
        at: l.read(left)?,
        store: store(a.dtype),
        batch: if a_batch == 1 { 0 } else { m * k },
        row: a_row,
        col: a_col,
    };
    let data = if b_batch == 1 && batch == 1 { l.known.data(node.inputs[1])? } else { None };
    // Small weights in half precision are widened when they are packed, unless the machine multiplies them directly.
    let quick = types == [DType::Bf16; 2] && multiplies_bf16(l.target.machine());
    let small = k.saturating_mul(n).saturating_mul(4) <= l.target.tuning.gemm_widened_weight_bytes_most();
    if data.is_some() && matches!(types[1], DType::Bf16 | DType::F16) && small && !quick {
        types[1] = DType::F32;
    }
    let b = match data {
        Some(data) => {
            let packed = l.target.packs.get(l.target.isa, store(types[1]), &data, [k, n], [b_row, b_col])?;
            l.count_packed(std::sync::Arc::as_ptr(&packed).addr(), packed.bytes());
            GemmB::Packed(packed)
        }
        None => GemmB::Plain(Strided {
            at: l.read(node.inputs[1])?,
            store: store(b.dtype),
            batch: if b_batch == 1 { 0 } else { k * n },
            row: b_row,
            col: b_col,
        }),
    };
    let format = if matches!(b, GemmB::Packed(_)) { Format::Panels } else { Format::Dense };
    let nothing = Ref { slot: 0, offset: 0, len: 0 };
    let gemm = Gemm {
        shape: [batch, m, n, k],
        a,
        c: Strided { at: nothing, store: Store::F32, batch: m * n, row: n, col: 1 },
        b,
        a_rest: rest,
        add: None,
        bias: None,
        row_bias: None,
        epilogue: None,
        scratch: nothing,
    };
    finish(l, value, node, gemm, Rest { map, operands: 2, types, format })
}

/// A product with low-bit weights. If these are known, they are packed; otherwise it runs as it is defined.
fn low_bit(l: &mut Lower<'_>, value: Value, node: &Node, product: &LowBitMatMul) -> Result<()> {
    let operands = product.operands();
    let mut parts = Vec::with_capacity(operands - 1);
    for v in &node.inputs[1..operands] {
        match l.known.data(*v)? {
            Some(data) => parts.push(data),
            None => {
                let kernel = Kernel::other("by its definition (slow: the weights are not known before the run)");
                return by_definition(l, value, node, kernel);
            }
        }
    }
    let (k, n) = (product.weights.len, parts[0].tensor.shape()[0]);
    // Of the result, since rows may have no elements.
    let m = l.sized(value)?.count() / n.max(1);
    let packed = l.target.packs.low_bit(l.target.isa, &product.weights, &parts)?;
    l.count_packed(std::sync::Arc::as_ptr(&packed).addr(), packed.bytes());
    let nothing = Ref { slot: 0, offset: 0, len: 0 };
    let (LowBit { code, block, .. }, rounded) = (product.weights, product.rounded);
    let widened = !is_direct(l.target.tuning, m, rounded);
    let format = Format::LowBit { code, block: block.min(k), rounded, widened, bytes: packed.bytes() };
    let gemm = Gemm {
        shape: [1, m, n, k],
        a: Strided { at: l.read(node.inputs[0])?, store: Store::F32, batch: 0, row: k, col: 1 },
        c: Strided { at: nothing, store: Store::F32, batch: m * n, row: n, col: 1 },
        b: GemmB::LowBit { b: packed, rounded, next: None },
        a_rest: None,
        add: None,
        bias: None,
        row_bias: None,
        epilogue: None,
        scratch: nothing,
    };
    let types = [if rounded { DType::I8 } else { DType::F32 }, DType::U8];
    finish(l, value, node, gemm, Rest { map: product.then.as_ref(), operands, types, format })
}

/// What is left to say of a product.
struct Rest<'a> {
    /// The program on the result.
    map: Option<&'a Map>,
    /// How many of the node's inputs are the product's own; those of the program follow.
    operands: usize,
    types: [DType; 2],
    format: Format,
}

/// Adds the bias and the program, and makes the call.
fn finish(l: &mut Lower<'_>, value: Value, node: &Node, mut gemm: Gemm, rest: Rest<'_>) -> Result<()> {
    let Rest { map, operands, types, format } = rest;
    let cost = l.graph.node_cost(node, l.bindings)?;
    let out = l.sized(value)?;
    let [batch, m, n, k] = gemm.shape;
    let c = |at: Ref, dtype: DType| Strided { at, store: store(dtype), batch: m * n, row: n, col: 1 };
    let mut then = None;
    match map {
        None => gemm.c = c(l.write(value)?, out.dtype),
        // Packed products have kernels of their own for few rows, which add by the epilogue.
        Some(map)
            if added(map)
                && batch == 1
                && matches!(gemm.b, GemmB::Plain(_))
                && gemm.a_rest.is_none()
                && l.sized(node.inputs[operands])? == out =>
        {
            gemm.add = Some(l.read(node.inputs[operands])?);
            then = Some(MapWork::of(map, &[]));
            gemm.c = c(l.write(value)?, out.dtype);
        }
        Some(map) => {
            let dst = l.write(value)?;
            let (map, bias) = split_bias(l, node, operands, map, [m, n])?;
            match bias {
                Some((bias, Bias::Columns)) => gemm.bias = Some(bias),
                Some((bias, Bias::Rows)) => gemm.row_bias = Some(bias),
                None => {}
            }
            if map.code.len() == 1 && out.dtype.is_float() {
                gemm.c = c(dst, out.dtype);
            } else {
                // The program works on f32: on the result itself where that is f32, else on a copy.
                let product = if out.dtype == DType::F32 { dst } else { l.scratch(m * n * 4) };
                gemm.c = c(product, DType::F32);
                then = Some(MapWork::of(&map, &[]));
                gemm.epilogue = Some(Box::new(epilogue(l, node, operands, &map, &out, (m, n), dst)?));
            }
        }
    }
    let bytes = gemm.scratch_bytes(l.target.machine(), l.target.threads);
    gemm.scratch = l.scratch(bytes);
    let threads = if is_shared(l.target.tuning, m.saturating_mul(n).saturating_mul(k)) { l.target.threads } else { 1 };
    let kernel = Kernel::Product(Product {
        batch,
        m,
        n,
        k,
        left: types[0],
        right: types[1],
        out: out.dtype,
        format,
        bias: gemm.bias.is_some() || gemm.row_bias.is_some(),
        then,
        threads,
    });
    l.call(value, Call::Gemm(Box::new(gemm)), Label { kernel, cost, in_place: false, looped: None })
}

/// Whether a program does nothing but add its other input to the product.
fn added(map: &Map) -> bool {
    let sum = |i: &MapInstr| matches!(i, MapInstr::Binary(Binary::Add, 0, 1) | MapInstr::Binary(Binary::Add, 1, 0));
    matches!(&map.code[..], [MapInstr::Input(0), MapInstr::Input(1), last] if sum(last))
        || matches!(&map.code[..], [MapInstr::Input(1), MapInstr::Input(0), last] if sum(last))
}

/// Whether a bias has one float for each column or for each row.
#[derive(Clone, Copy)]
enum Bias {
    Columns,
    Rows,
}

/// Takes the addition of one float for each column, or row, out of a program that begins with it: the product's kernel
/// adds it at no cost.
fn split_bias(
    l: &mut Lower<'_>,
    node: &Node,
    operands: usize,
    map: &Map,
    [m, n]: [usize; 2],
) -> Result<(Map, Option<(Ref, Bias)>)> {
    let reads = |n: u16| map.code.iter().flat_map(|i| i.operands()).flatten().filter(|o| *o == n).count();
    let product = map.code.iter().position(|i| *i == MapInstr::Input(0)).map(|i| i as u16);
    let sum = map.code.iter().position(|i| match i {
        MapInstr::Binary(Binary::Add, x, y) => product.is_some_and(|p| (*x == p) != (*y == p) && reads(p) == 1),
        _ => false,
    });
    let (Some(product), Some(sum)) = (product, sum) else { return Ok((map.clone(), None)) };
    let MapInstr::Binary(_, x, y) = map.code[sum] else { unreachable!("found above") };
    let other = if x == product { y } else { x };
    let MapInstr::Input(input) = map.code[usize::from(other)] else { return Ok((map.clone(), None)) };
    let bias = node.inputs[usize::from(input) + operands - 1];
    let ty = l.sized(bias)?;
    let one_a_column = ty.shape.last() == Some(&n) && ty.count() == n && n > 1;
    let one_a_row = ty.shape == [m, 1] && m > 1;
    if !(one_a_column || one_a_row) || ty.dtype != DType::F32 || reads(other) != 1 {
        return Ok((map.clone(), None));
    }
    let kind = if one_a_column { Bias::Columns } else { Bias::Rows };
    // Instructions that read the sum read the product instead. Inputs keep their numbers, and so operands their order.
    let mut code = Vec::with_capacity(map.code.len());
    let mut at: Vec<u16> = Vec::with_capacity(map.code.len());
    for (i, instr) in map.code.iter().enumerate() {
        if i == sum {
            at.push(at[usize::from(product)]);
        } else if i == usize::from(other) {
            at.push(u16::MAX);
        } else {
            code.push(instr.map_operands(|o| at[usize::from(o)]));
            at.push((code.len() - 1) as u16);
        }
    }
    // If the sum was the program's last value, the product must become it.
    let last = at[at.len() - 1];
    if usize::from(last) + 1 != code.len() {
        code.push(MapInstr::Binary(Binary::Max, last, last));
    }
    let bias = l.read(bias)?;
    Ok((Map { code }, Some((bias, kind))))
}

fn epilogue(
    l: &mut Lower<'_>,
    node: &Node,
    operands: usize,
    map: &Map,
    out: &Sized,
    (m, n): (usize, usize),
    dst: Ref,
) -> Result<Epilogue> {
    // Inputs that the program no longer reads (the bias) are left out.
    let mut inputs = Vec::new();
    let mut number = vec![0u16; node.inputs.len()];
    for (i, &v) in (1..).zip(&node.inputs[operands..]) {
        let read = map.code.contains(&MapInstr::Input(i as u16));
        if !read {
            continue;
        }
        let x = l.sized(v)?;
        let strides = x.strides_in(&out.shape);
        let rank = out.shape.len();
        let col = if out.shape[rank - 1] == 1 { 0 } else { strides[rank - 1] };
        // One stride over all leading axes, as fusion made sure: either none, or whole rows of this operand's own width.
        let repeats = (0..rank - 1).all(|a| strides[a] == 0 || out.shape[a] == 1);
        let row = if repeats { 0 } else { *x.shape.last().unwrap_or(&1) };
        inputs.push((l.read(v)?, elem(x.dtype), [row, col]));
        number[i] = inputs.len() as u16;
    }
    let code = map.code.iter().map(|i| match i {
        MapInstr::Input(0) => MapInstr::Input(0),
        MapInstr::Input(n) => MapInstr::Input(number[usize::from(*n)]),
        other => *other,
    });
    let map = Map { code: code.collect() };
    let program = compile(&map, &[], inputs.len() + 1)?;
    let scratch = l.scratch(kernel::scratch_bytes(&program, l.target.threads));
    let epilogue = Epilogue::new(l.target.machine(), program, (m, n), n, inputs, (dst, elem(out.dtype)), scratch);
    epilogue.map_err(Error::Internal)
}
