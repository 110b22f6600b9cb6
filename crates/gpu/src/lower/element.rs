//! Code that computes one element of a result, for operations whose elements can be computed independently.
//!
//! The same code is used for the kernel of a node that runs alone and for the part of a loop's kernel that computes the
//! node. Only the places of operands differ, and which thread computes which element.

use super::custom;
use super::grid::coordinates;
use super::low_bit;
use super::site::{Functions, Site};
use super::synapses::{Lanes, Lists, synapse_ratio, synapse_sums};
use super::view::{Home, View, register};
use schwann_codegen::lang::{self, Expr, Ty, Var};
use schwann_codegen::math;
use schwann_core::op::{Binary, Compare, Map, MapInstr, Op, Reduction, Unary};
use schwann_core::{DType, Dim, Error, Result};

/// A node to be computed: its operation, its operands' places, and its results' types and sizes.
pub(crate) struct Call<'a> {
    pub(crate) name: &'a str,
    pub(crate) op: &'a Op,
    pub(crate) inputs: &'a [View],
    pub(crate) dtypes: &'a [DType],
    pub(crate) dims: &'a [Dim],
    /// Synapses sorted by destination, where they are known.
    pub(crate) synapses: Option<&'a Lists>,
    /// The word of the buffer of faults for an index that is out of range.
    pub(crate) fault: Option<u32>,
    /// Threads that share each sum over synapses, where several do.
    pub(crate) lanes: Option<&'a Lanes>,
}

impl Call<'_> {
    pub(super) fn unsupported(&self, problem: &str) -> Error {
        Error::Unsupported { node: self.name.into(), op: self.op.name().into(), problem: problem.into() }
    }
}

/// The results at one place: one for each output.
pub(crate) fn element(s: &mut Site<'_>, call: &Call<'_>, at: &[Expr]) -> Result<Vec<Expr>> {
    let stretched = |view: &View| view.stretched(call.dims);
    let dtype = call.dtypes[0];
    let operand = |s: &mut Site<'_>, i: usize| s.load(&stretched(&call.inputs[i]), at);
    Ok(vec![match call.op {
        Op::Unary(u) => {
            let x = operand(s, 0)?;
            match call.inputs[0].dtype {
                DType::I32 => unary_i32(*u, &x),
                DType::Bool => not(&x),
                _ => unary(s, *u, &x),
            }
        }
        Op::Binary(b) => {
            let x = operand(s, 0)?;
            let y = if call.inputs[0] == call.inputs[1] { x.clone() } else { operand(s, 1)? };
            match x.ty() {
                Ty::F32 => binary(s, *b, &x, &y),
                Ty::Bool => {
                    if *b == Binary::And {
                        x.and(y)
                    } else {
                        x.or(y)
                    }
                }
                _ => binary_i32(s, *b, &x, &y),
            }
        }
        Op::Compare(c) => {
            let (x, y) = (operand(s, 0)?, operand(s, 1)?);
            compare(s, *c, &x, &y)
        }
        Op::Select => {
            let (c, x, y) = (operand(s, 0)?, operand(s, 1)?, operand(s, 2)?);
            c.select(x, y)
        }
        Op::Cast { dtype } => {
            let x = operand(s, 0)?;
            cast(&x, *dtype)
        }
        Op::Quantize { dtype } => {
            let (x, scale, zero) = (operand(s, 0)?, operand(s, 1)?, operand(s, 2)?);
            quantize(s, &x, &scale, &zero, *dtype)
        }
        Op::Dequantize => {
            let (q, scale, zero) = (operand(s, 0)?, operand(s, 1)?, operand(s, 2)?);
            dequantize(&q, &scale, &zero)
        }
        Op::LowBit(format) => {
            let (k, row) = (&at[at.len() - 1], &at[..at.len() - 1]);
            low_bit::number(s, format, call.inputs, row, k)?
        }
        Op::RoundRows => low_bit::round_rows(s, &call.inputs[0], at)?,
        Op::LowBitMatMul(product) => low_bit::matmul(s, call, product, at)?,
        Op::Map { map, dtype, also } => {
            let mut inputs = vec![];
            for i in 0..call.inputs.len() {
                inputs.push(operand(s, i)?);
            }
            let values = program(s, map, &inputs)?;
            let last = values.last().cloned().ok_or_else(|| call.unsupported("an empty program"))?;
            let mut results = vec![map_result(s, &last, *dtype)];
            for result in also {
                results.push(map_result(s, &values[usize::from(result.at)], result.dtype));
            }
            return Ok(results);
        }
        Op::Custom { name } => return custom::results(s, call, name, at),
        Op::MatMul { transpose_a, transpose_b } => product(s, call, *transpose_a, *transpose_b, at)?,
        Op::MatMulMap { transpose_a, transpose_b, map, dtype } => {
            let sum = product(s, call, *transpose_a, *transpose_b, at)?;
            epilogue(s, call, 2, map, *dtype, sum, at)?
        }
        Op::GatedCell { batch_last, by_column, heads } => gated_cell(s, call, *batch_last, *by_column, *heads, at)?,
        Op::Reduce { kind, axes, keep } => reduce(s, call, *kind, axes, *keep, at)?,
        Op::Pad { axis, before, after } => {
            let before = s.size(before)?;
            let x = &call.inputs[0];
            let place = s.maker.name("place", &at[*axis] - &before);
            let inside = if after.is(0) {
                not(&at[*axis].lt(before))
            } else {
                // Unsigned, so an index before the data wraps to a very large number and fails the comparison.
                place.lt(s.size(&x.dims[*axis])?)
            };
            let mut at = at.to_vec();
            at[*axis] = place.clone();
            let result = s.maker.variable("found", zero_word(dtype));
            s.guarded(inside, |s| {
                let value = s.load(x, &at)?;
                let value = as_word(&value);
                s.maker.set(result, value);
                Ok(())
            })?;
            from_word(&s.maker.get(result), dtype)
        }
        Op::Concat { axis } => concat(s, call, *axis, at)?,
        Op::Gather { axis } => gather(s, call, *axis, at)?,
        Op::Put { axis } => put(s, call, *axis, at)?,
        Op::SegmentSum { axis, .. } => segment_sum(s, call, *axis, at)?,
        Op::SynapseSum { activation, axis, sums, .. } => {
            let start = 5 + sums;
            let mut from = vec![];
            for k in 0..*sums {
                from.push(if call.inputs.len() > start { operand(s, start + k)? } else { 0.0f32.into() });
            }
            return synapse_sums(s, call, &call.inputs[0], *activation, *axis, from, at);
        }
        Op::SynapseRatio { activation, axis, times: 1 } => {
            let x = call.inputs[0].clone();
            synapse_ratio(s, call, &x, *activation, *axis, at)?
        }
        // An operation that is usually a view, but is copied here because a reader needs it contiguous.
        Op::Reshape { .. } => {
            let number = s.index(&View::whole(Home::Number(0), dtype, false, call.dims)?, at)?;
            let number = s.maker.name("number", number);
            let at = coordinates(s, &number, &call.inputs[0].dims)?;
            s.load(&call.inputs[0], &at)?
        }
        Op::Transpose { perm } => s.load(&call.inputs[0].transposed(perm), at)?,
        Op::Slice { axis, start, .. } => s.load(&call.inputs[0].sliced(*axis, start, &call.dims[*axis])?, at)?,
        Op::Broadcast { .. } => operand(s, 0)?,
        _ => return Err(call.unsupported("there is no kernel for it")),
    }])
}

fn not(x: &Expr) -> Expr {
    x.select(false, true)
}

pub(crate) fn zero(dtype: DType) -> Expr {
    match register(dtype) {
        Ty::F32 => 0.0f32.into(),
        Ty::Bool => false.into(),
        _ => 0i32.into(),
    }
}

/// A function of a float.
pub(crate) fn unary(s: &mut Site<'_>, op: Unary, x: &Expr) -> Expr {
    use schwann_codegen::lang::Unary as L;
    let m = &mut s.maker;
    let x = &m.name("x", x);
    let y = match op {
        Unary::Tanh if s.functions == Functions::Rough => x.unary(L::Tanh),
        Unary::Tanh if s.functions == Functions::Fast => math::fast::tanh(m, x),
        Unary::Sigmoid if s.functions == Functions::Rough => math::fast::sigmoid_of_tanh(m, x),
        Unary::Sigmoid if s.functions == Functions::Fast => math::fast::sigmoid(m, x),
        Unary::Neg => x.unary(L::Neg),
        Unary::Abs => x.unary(L::Abs),
        Unary::Sign => math::sign(m, x),
        Unary::Sqrt => math::sqrt(m, x),
        Unary::Recip => math::recip(m, x),
        Unary::Square => x * x,
        Unary::Exp => math::exp(m, x),
        Unary::Log => math::log(m, x),
        Unary::Tanh => math::tanh(m, x),
        Unary::Sigmoid => math::sigmoid(m, x),
        Unary::Softplus => math::softplus(m, x),
        Unary::Relu => math::relu(m, x),
        Unary::Silu => math::silu(m, x),
        Unary::Gelu => math::gelu(m, x),
        Unary::Erf => math::erf(m, x),
        Unary::Floor => x.unary(L::Floor),
        Unary::Round => x.unary(L::Round),
        Unary::Sin => math::sin(m, x),
        Unary::Cos => math::cos(m, x),
        Unary::Expm1 => math::expm1(m, x),
        Unary::Not => x.eq(0.0f32).to(Ty::F32),
    };
    s.maker.name("y", y)
}

fn unary_i32(op: Unary, x: &Expr) -> Expr {
    let negative = x.lt(0i32);
    let neg = || Expr::from(0i32) - x;
    match op {
        Unary::Abs => negative.select(neg(), x),
        Unary::Sign => negative.select(-1i32, x.eq(0i32).select(0i32, 1i32)),
        Unary::Square => x * x,
        Unary::Relu => negative.select(0i32, x),
        _ => neg(),
    }
}

/// A float that may be 0 or what it is combined with, so that no compiler sees it: those for GPUs may take it that nothing is
/// infinite and that there is no NaN, and so make 0 of `x · 0`, `0 / x` and `x − x`, and what they like of `x / 0`. No compiler
/// knows the argument of a kernel.
fn hidden(s: &mut Site<'_>, x: &Expr) -> Expr {
    let nothing = s.number("zero", 0);
    x.bits(Ty::U32).binary(lang::Binary::Xor, nothing).bits(Ty::F32)
}

/// A function of two floats.
pub(crate) fn binary(s: &mut Site<'_>, op: Binary, x: &Expr, y: &Expr) -> Expr {
    let zero = |x: &Expr| x.as_const().is_some_and(|bits| bits << 1 == 0);
    let [hide_x, hide_y] = match op {
        Binary::Mul => [zero(x), zero(y)],
        Binary::Div => [zero(x), zero(y) || x == y],
        Binary::Sub => [false, x == y],
        _ => [false, false],
    };
    let x = &if hide_x { hidden(s, x) } else { x.clone() };
    let y = &if hide_y { hidden(s, y) } else { y.clone() };
    let m = &mut s.maker;
    let value = match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Min => math::min(m, x, y),
        Binary::Max => math::max(m, x, y),
        Binary::Pow => math::pow(m, x, y),
        Binary::And => x.ne(0.0f32).and(y.ne(0.0f32)).to(Ty::F32),
        Binary::Or => x.ne(0.0f32).or(y.ne(0.0f32)).to(Ty::F32),
    };
    s.maker.name("y", value)
}

fn binary_i32(s: &mut Site<'_>, op: Binary, x: &Expr, y: &Expr) -> Expr {
    match op {
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Min => x.min(y),
        Binary::Max => x.max(y),
        Binary::Div => {
            // Division by 0 gives 0, and dividing the least number by −1 wraps: neither is left to the hardware.
            let (by_zero, by_minus_one) = (y.eq(0i32), y.eq(-1i32));
            let safe = s.maker.name("by", by_zero.clone().or(by_minus_one.clone()).select(1i32, y));
            let quotient = s.maker.name("q", x / safe);
            by_zero.select(0i32, by_minus_one.select(Expr::from(0i32) - x, quotient))
        }
        _ => x + y,
    }
}

/// A comparison of two values of one kind.
pub(crate) fn compare(s: &mut Site<'_>, op: Compare, x: &Expr, y: &Expr) -> Expr {
    if x.ty() == Ty::F32 {
        return float_compare(s, op, x, y);
    }
    // Truth values compare as 0 and 1.
    let number = |e: &Expr| if e.ty() == Ty::Bool { e.to(Ty::U32) } else { e.clone() };
    let (x, y) = (number(x), number(y));
    match op {
        Compare::Eq => x.eq(y),
        Compare::Ne => x.ne(y),
        Compare::Lt => x.lt(y),
        Compare::Le => x.le(y),
        Compare::Gt => y.lt(x),
        Compare::Ge => y.le(x),
    }
}

fn float_compare(s: &mut Site<'_>, op: Compare, x: &Expr, y: &Expr) -> Expr {
    // NaN is detected by its bits: compilers for GPUs may assume that there is none.
    let m = &mut s.maker;
    let nan = math::is_nan(x).or(math::is_nan(y));
    let nan = m.name("nan", nan);
    let plain = match op {
        Compare::Eq => x.eq(y),
        Compare::Ne => x.ne(y),
        Compare::Lt => x.lt(y),
        Compare::Le => x.le(y),
        Compare::Gt => y.lt(x),
        Compare::Ge => y.le(x),
    };
    match op {
        Compare::Ne => nan.or(plain),
        _ => not(&nan).and(plain),
    }
}

/// Converts a value to another element type: floats are truncated to integers.
fn cast(x: &Expr, to: DType) -> Expr {
    match (x.ty(), to) {
        (_, DType::F32 | DType::F16 | DType::Bf16) => x.to(Ty::F32),
        (Ty::F32, DType::Bool) => x.ne(0.0f32).or(is_nan_bits(x)),
        (Ty::Bool, DType::Bool) => x.clone(),
        (_, DType::Bool) => x.to(Ty::I32).ne(0i32),
        (Ty::F32, DType::I8) => x.to(Ty::I32).max(-128i32).min(127i32),
        (Ty::F32, DType::U8) => x.to(Ty::I32).max(0i32).min(255i32),
        (_, DType::I32) => x.to(Ty::I32),
        (_, DType::I8) => x.to(Ty::I32).shl(24u32).shr(24u32),
        (_, DType::U8) => x.to(Ty::I32).and(255i32),
    }
}

fn is_nan_bits(x: &Expr) -> Expr {
    Expr::from(0x7f80_0000u32).lt(x.bits(Ty::U32).and(0x7fff_ffffu32))
}

/// clamp(round(x / scale) + zero point); NaN gives the zero point.
fn quantize(s: &mut Site<'_>, x: &Expr, scale: &Expr, zero: &Expr, dtype: DType) -> Expr {
    use schwann_codegen::lang::Unary as L;
    let (least, most) = if dtype == DType::I8 { (-128i32, 127i32) } else { (0i32, 255i32) };
    let quotient = binary(s, Binary::Div, x, scale);
    let round = quotient.unary(L::Round);
    // Limits far beyond the result's range, so that adding the zero point cannot wrap.
    let whole = round.max(-1_073_741_824.0f32).min(1_073_741_824.0f32).to(Ty::I32);
    let whole = s.maker.name("w", whole);
    let zero_point = s.maker.name("z", zero.max(-1_073_741_824i32).min(1_073_741_824i32));
    let sum = (&whole + &zero_point).max(least).min(most);
    is_nan_bits(&quotient).select(zero_point.max(least).min(most), sum)
}

/// (q − zero point) · scale
fn dequantize(q: &Expr, scale: &Expr, zero: &Expr) -> Expr {
    (q.to(Ty::F32) - zero.to(Ty::F32)) * scale
}

/// All values of an elementwise program.
pub(crate) fn program(s: &mut Site<'_>, map: &Map, inputs: &[Expr]) -> Result<Vec<Expr>> {
    // A 0 is hidden wherever it is used, and so is what another number is made of.
    let is_number = |i: &u16| matches!(map.code[usize::from(*i)], MapInstr::Const(_));
    let operands = |instr: &MapInstr| instr.operands().into_iter().flatten().collect::<Vec<u16>>();
    let folded: Vec<u16> = map.code.iter().map(operands).filter(|all| all.iter().all(is_number)).flatten().collect();
    let mut values: Vec<Expr> = vec![];
    for instr in &map.code {
        let get = |i: u16| values[usize::from(i)].clone();
        let value = match *instr {
            MapInstr::Input(n) => inputs[usize::from(n)].to(Ty::F32),
            MapInstr::Const(c) if c.0 == 0.0 || folded.contains(&(values.len() as u16)) => hidden(s, &c.0.into()),
            MapInstr::Const(c) => c.0.into(),
            MapInstr::Unary(u, a) => unary(s, u, &get(a)),
            MapInstr::Binary(b, x, y) => binary(s, b, &get(x), &get(y)),
            MapInstr::Compare(c, x, y) => float_compare(s, c, &get(x), &get(y)).to(Ty::F32),
            MapInstr::Select(c, x, y) => {
                let c = get(c);
                c.ne(0.0f32).or(is_nan_bits(&c)).select(get(x), get(y))
            }
            MapInstr::Trunc(a) => get(a).unary(lang::Unary::Trunc),
        };
        let value = s.maker.name("v", value);
        values.push(value);
    }
    Ok(values)
}

/// A program's result as an element: integers are rounded to the nearest.
pub(crate) fn map_result(s: &mut Site<'_>, value: &Expr, dtype: DType) -> Expr {
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => value.clone(),
        DType::Bool => cast(value, dtype),
        _ => {
            let whole = s.maker.name("w", value.unary(lang::Unary::Round));
            cast(&whole, dtype)
        }
    }
}

/// The result of a product's epilogue, whose own inputs are those from number `first` on.
pub(crate) fn epilogue(
    s: &mut Site<'_>,
    call: &Call<'_>,
    first: usize,
    map: &Map,
    dtype: DType,
    sum: Expr,
    at: &[Expr],
) -> Result<Expr> {
    let mut inputs = vec![s.maker.name("sum", sum)];
    for view in &call.inputs[first..] {
        inputs.push(s.load(&view.stretched(call.dims), at)?);
    }
    let values = program(s, map, &inputs)?;
    let last = values.last().cloned().ok_or_else(|| call.unsupported("an empty program"))?;
    Ok(map_result(s, &last, dtype))
}

/// The operands of a product as views whose last two axes are rows × inner and inner × columns, stretched over the batch.
pub(crate) fn factors(call: &Call<'_>, transpose_a: bool, transpose_b: bool) -> (View, View) {
    let oriented = |view: &View, swap: bool| {
        let rank = view.dims.len();
        let mut perm: Vec<usize> = (0..rank).collect();
        if swap {
            perm.swap(rank - 2, rank - 1);
        }
        let view = view.transposed(&perm);
        let batch = &call.dims[..call.dims.len() - 2];
        let last = view.dims[rank - 2..].to_vec();
        view.stretched(&batch.iter().cloned().chain(last).collect::<Vec<_>>())
    };
    (oriented(&call.inputs[0], transpose_a), oriented(&call.inputs[1], transpose_b))
}

/// Σₖ a[…, i, k] · b[…, k, j]
fn product(s: &mut Site<'_>, call: &Call<'_>, transpose_a: bool, transpose_b: bool, at: &[Expr]) -> Result<Expr> {
    let (a, b) = factors(call, transpose_a, transpose_b);
    let rank = at.len();
    let inner = s.size(&a.dims[rank - 1])?;
    let sum = s.maker.variable("sum", 0.0f32);
    s.counted("k", 0u32, inner, |s, k| {
        let (mut at_a, mut at_b) = (at.to_vec(), at.to_vec());
        at_a[rank - 1] = k.clone();
        at_b[rank - 2] = k;
        let (x, y) = (s.load(&a, &at_a)?, s.load(&b, &at_b)?);
        let next = x.fma(y, s.maker.get(sum));
        s.maker.set(sum, next);
        Ok(())
    })?;
    Ok(s.maker.get(sum))
}

/// tanh a + σ(t) · (tanh b − tanh a)
pub(crate) fn gate(s: &mut Site<'_>, heads: [&Expr; 3]) -> Expr {
    if s.functions == Functions::Fast {
        return math::fast::gate(&mut s.maker, heads);
    }
    let from = unary(s, Unary::Tanh, heads[0]);
    let to = unary(s, Unary::Tanh, heads[1]);
    let t = unary(s, Unary::Sigmoid, heads[2]);
    t.fma(to - &from, from)
}

fn gated_cell(
    s: &mut Site<'_>,
    call: &Call<'_>,
    batch_last: bool,
    by_column: bool,
    heads: [usize; 3],
    at: &[Expr],
) -> Result<Expr> {
    let (row, unit) = if batch_last { (&at[1], &at[0]) } else { (&at[0], &at[1]) };
    let x = if batch_last { call.inputs[0].transposed(&[1, 0]) } else { call.inputs[0].clone() };
    let w = if by_column { call.inputs[1].transposed(&[1, 0]) } else { call.inputs[1].clone() };
    let inner = s.size(&w.dims[0])?;
    let columns: Vec<Expr> = heads.iter().map(|&h| Ok(unit + super::site::word(h)?)).collect::<Result<_>>()?;
    let sums = [(); 3].map(|()| s.maker.variable("sum", 0.0f32));
    s.counted("k", 0u32, inner, |s, k| {
        let value = s.load(&x, &[row.clone(), k.clone()])?;
        for (sum, column) in sums.iter().zip(&columns) {
            let weight = s.load(&w, &[k.clone(), column.clone()])?;
            let next = value.fma(weight, s.maker.get(*sum));
            s.maker.set(*sum, next);
        }
        Ok(())
    })?;
    let mut totals = vec![];
    for (sum, column) in sums.iter().zip(&columns) {
        let sum = s.maker.get(*sum);
        totals.push(match call.inputs.get(2) {
            None => sum,
            Some(bias) => {
                let flat = bias.reshaped(&[w.dims[1].clone()])?;
                let flat = flat.ok_or_else(|| call.unsupported("numbers to add that are not one list"))?;
                sum + s.load(&flat, std::slice::from_ref(column))?
            }
        });
    }
    Ok(gate(s, [&totals[0], &totals[1], &totals[2]]))
}

/// The initial value of a reduction.
pub(crate) fn start(kind: Reduction, ty: Ty) -> Expr {
    match (kind, ty) {
        (Reduction::Sum | Reduction::Mean, Ty::F32) => 0.0f32.into(),
        (Reduction::Max, Ty::F32) => f32::NEG_INFINITY.into(),
        (Reduction::Min, Ty::F32) => f32::INFINITY.into(),
        (Reduction::Sum | Reduction::Mean, _) => 0i32.into(),
        (Reduction::Max, _) => i32::MIN.into(),
        (Reduction::Min, _) => i32::MAX.into(),
    }
}

/// Combines two partial results of a reduction.
pub(crate) fn combine(s: &mut Site<'_>, kind: Reduction, a: &Expr, b: &Expr) -> Expr {
    match (kind, a.ty()) {
        (Reduction::Sum | Reduction::Mean, _) => a + b,
        (Reduction::Max, Ty::F32) => math::max(&mut s.maker, a, b),
        (Reduction::Min, Ty::F32) => math::min(&mut s.maker, a, b),
        (Reduction::Max, _) => a.max(b),
        (Reduction::Min, _) => a.min(b),
    }
}

fn reduce(s: &mut Site<'_>, call: &Call<'_>, kind: Reduction, axes: &[usize], keep: bool, at: &[Expr]) -> Result<Expr> {
    let x = &call.inputs[0];
    let sum = s.maker.variable("sum", start(kind, register(x.dtype)));
    let mut place: Vec<Expr> = vec![0u32.into(); x.dims.len()];
    let mut kept = at.iter().enumerate().filter(|(i, _)| !keep || !axes.contains(i)).map(|(_, e)| e.clone());
    for (axis, place) in place.iter_mut().enumerate() {
        if !axes.contains(&axis) {
            *place = kept.next().ok_or_else(|| call.unsupported("a reduction of other axes"))?;
        }
    }
    fn nest(
        s: &mut Site<'_>,
        x: &View,
        axes: &[usize],
        place: &mut Vec<Expr>,
        last: &mut dyn FnMut(&mut Site<'_>, Expr),
    ) -> Result<()> {
        let Some((&axis, rest)) = axes.split_first() else {
            let value = s.load(x, place)?;
            last(s, value);
            return Ok(());
        };
        let size = s.size(&x.dims[axis])?;
        s.counted("r", 0u32, size, |s, r| {
            place[axis] = r;
            nest(s, x, rest, place, last)
        })
    }
    nest(s, x, axes, &mut place, &mut |s, value| {
        let so_far = s.maker.get(sum);
        let next = combine(s, kind, &so_far, &value);
        s.maker.set(sum, next);
    })?;
    let total = s.maker.get(sum);
    if kind != Reduction::Mean {
        return Ok(total);
    }
    let count = axes.iter().try_fold(Dim::fixed(1), |n, &axis| super::times(&n, &x.dims[axis]))?;
    let count = s.size(&count)?.to(Ty::F32);
    Ok(total / count)
}

fn concat(s: &mut Site<'_>, call: &Call<'_>, axis: usize, at: &[Expr]) -> Result<Expr> {
    let result = s.maker.variable("part", zero_word(call.dtypes[0]));
    let parts: Vec<&View> = call.inputs.iter().filter(|view| !view.dims.iter().any(|d| d.is(0))).collect();
    concat_parts(s, &parts, axis, at, &at[axis], result)?;
    Ok(from_word(&s.maker.get(result), call.dtypes[0]))
}

/// Sets the result to an element of one of these parts: of the first if `place` is within it, else of one of the rest.
/// `place` is never beyond the last part.
fn concat_parts(s: &mut Site<'_>, parts: &[&View], axis: usize, at: &[Expr], place: &Expr, result: Var) -> Result<()> {
    let Some((first, rest)) = parts.split_first() else { return Ok(()) };
    let take = |s: &mut Site<'_>| {
        let mut at = at.to_vec();
        at[axis] = place.clone();
        let value = s.load(first, &at)?;
        let value = as_word(&value);
        s.maker.set(result, value);
        Ok(())
    };
    if rest.is_empty() {
        return take(s);
    }
    let size = s.size(&first.dims[axis])?;
    s.either(place.lt(&size), take, |s| {
        let beyond = s.maker.name("beyond", place - &size);
        concat_parts(s, rest, axis, at, &beyond, result)
    })
}

/// The zero of a type as memory holds it, where truth values are the words 0 and 1.
fn zero_word(dtype: DType) -> Expr {
    if dtype == DType::Bool { 0u32.into() } else { zero(dtype) }
}
fn as_word(value: &Expr) -> Expr {
    if value.ty() == Ty::Bool { value.to(Ty::U32) } else { value.clone() }
}
fn from_word(value: &Expr, dtype: DType) -> Expr {
    if dtype == DType::Bool { value.ne(0u32) } else { value.clone() }
}

/// The given index if it is within `0..size`; otherwise 0, and a fault is reported.
pub(super) fn checked_index(s: &mut Site<'_>, call: &Call<'_>, index: &Expr, size: &Expr) -> Expr {
    let index = s.maker.name("index", index.bits(Ty::U32));
    let inside = s.maker.name("inside", index.lt(size));
    if let Some(fault) = call.fault {
        let faults = s.faults;
        let number = s.number("fault", fault);
        s.maker.either(&inside, |_| (), |m| m.fault(faults, number));
    }
    s.maker.name("index", inside.select(index, 0u32))
}

fn gather(s: &mut Site<'_>, call: &Call<'_>, axis: usize, at: &[Expr]) -> Result<Expr> {
    let (x, indices) = (&call.inputs[0], &call.inputs[1]);
    let many = indices.dims.len();
    let index = s.load(indices, &at[axis..axis + many])?;
    let size = s.size(&x.dims[axis])?;
    let index = checked_index(s, call, &index, &size);
    let place: Vec<Expr> = at[..axis].iter().cloned().chain([index]).chain(at[axis + many..].iter().cloned()).collect();
    // An empty table has no element 0 that could be read instead.
    match size.as_const() {
        Some(0) => return Ok(zero(call.dtypes[0])),
        Some(_) => return s.load(x, &place),
        None => {}
    }
    let result = s.maker.variable("found", zero_word(call.dtypes[0]));
    s.guarded(size.ne(0u32), |s| {
        let value = s.load(x, &place)?;
        let value = as_word(&value);
        s.maker.set(result, value);
        Ok(())
    })?;
    Ok(from_word(&s.maker.get(result), call.dtypes[0]))
}

fn put(s: &mut Site<'_>, call: &Call<'_>, axis: usize, at: &[Expr]) -> Result<Expr> {
    let [data, part, indices] = [0, 1, 2].map(|i| &call.inputs[i]);
    let (count, size) = (s.size(&indices.dims[0])?, s.size(&data.dims[axis])?);
    let value = s.load(data, at)?;
    let result = s.maker.variable("found", as_word(&value));
    // One more than the index before, so that the first may be 0.
    let least = s.maker.variable("least", 0u32);
    s.counted("j", 0u32, count, |s, j| {
        let index = s.load(indices, std::slice::from_ref(&j))?.bits(Ty::U32);
        let index = s.maker.name("index", index);
        if let Some(fault) = call.fault {
            let (faults, number) = (s.faults, s.number("fault", fault));
            let early = index.lt(s.maker.get(least));
            let inside = s.maker.name("inside", early.select(false, index.lt(&size)));
            s.maker.either(&inside, |_| (), |m| m.fault(faults, number));
        }
        s.maker.set(least, &index + 1u32);
        let mut place = at.to_vec();
        place[axis] = j;
        s.guarded(index.eq(&at[axis]), |s| {
            let value = s.load(part, &place)?;
            let value = as_word(&value);
            s.maker.set(result, value);
            Ok(())
        })
    })?;
    Ok(from_word(&s.maker.get(result), call.dtypes[0]))
}

fn segment_sum(s: &mut Site<'_>, call: &Call<'_>, axis: usize, at: &[Expr]) -> Result<Expr> {
    let (x, segments) = (&call.inputs[0], &call.inputs[1]);
    let size = s.size(&x.dims[axis])?;
    let count = s.size(&call.dims[axis])?;
    let sum = s.maker.variable("sum", zero(call.dtypes[0]));
    s.counted("e", 0u32, size, |s, e| {
        let segment = s.load(segments, std::slice::from_ref(&e))?.bits(Ty::U32);
        let segment = s.maker.name("segment", segment);
        if let Some(fault) = call.fault {
            let (faults, number) = (s.faults, s.number("fault", fault));
            s.maker.either(segment.lt(&count), |_| (), |m| m.fault(faults, number));
        }
        let mut place = at.to_vec();
        place[axis] = e;
        s.guarded(segment.eq(&at[axis]), |s| {
            let value = s.load(x, &place)?;
            let next = s.maker.get(sum) + value;
            s.maker.set(sum, next);
            Ok(())
        })
    })?;
    Ok(s.maker.get(sum))
}
