//! Shape and type rules. Each refuses what its operation cannot take, naming both sides.

use super::{Binary, MAX_PROGRAM_INPUTS, MAX_PROGRAM_OPERANDS, Op, Reduction, Scan, SynapseResult, Type, Unary};
use crate::dtype::DType;
use crate::shape::{Dim, Shape};

type Infer<T> = Result<T, String>;

fn ensure(ok: bool, problem: impl FnOnce() -> String) -> Infer<()> {
    if ok { Ok(()) } else { Err(problem()) }
}

fn arity(inputs: &[&Type], allowed: std::ops::RangeInclusive<usize>) -> Infer<()> {
    ensure(allowed.contains(&inputs.len()), || {
        let (lo, hi) = (allowed.start(), allowed.end());
        let want = if lo == hi { format!("{lo}") } else { format!("{lo} to {hi}") };
        format!("takes {want} inputs, got {}", inputs.len())
    })
}

/// Checks the inputs of sums over synapses: values, sources, destinations, and lists of numbers.
fn synapses(inputs: &[&Type], axis: usize) -> Infer<()> {
    let x = inputs[0];
    axis_of(x, axis)?;
    ensure(x.dtype == DType::F32 && x.shape.rank() <= 2, || format!("wants f32 of one or two axes, got {x}"))?;
    ensure(inputs[1].shape.rank() == 1, || format!("sources must be one list, got {}", inputs[1]))?;
    for (i, ty) in inputs.iter().enumerate().skip(1) {
        let dtype = if i < 3 { DType::I32 } else { DType::F32 };
        let want = Type::new(dtype, inputs[1].shape.clone());
        ensure(**ty == want, || format!("input {i} must be {want}, got {ty}"))?;
    }
    Ok(())
}

/// Checks that inputs from `first` on stretch to the result of sums over synapses and have a number for each destination.
fn a_number_each(inputs: &[&Type], first: usize, result: &Type, axis: usize) -> Infer<()> {
    for (i, ty) in inputs.iter().enumerate().skip(first) {
        let stretched = ty.shape.broadcast(&result.shape).is_some_and(|shape| shape == result.shape);
        let own = (axis + ty.shape.rank()).checked_sub(result.shape.rank()).map(|a| &ty.shape[a]);
        ensure(ty.dtype == DType::F32 && stretched && own == Some(&result.shape[axis]), || {
            format!("input {i} must be f32, stretch to {result} and have its axis {axis}, got {ty}")
        })?;
    }
    Ok(())
}

fn axis_of(ty: &Type, axis: usize) -> Infer<&Dim> {
    ty.shape.dims().get(axis).ok_or_else(|| format!("axis {axis} of {ty}, which has {} axes", ty.shape.rank()))
}

fn with_axis(shape: &Shape, axis: usize, dim: Dim) -> Shape {
    let mut dims = shape.dims().to_vec();
    dims[axis] = dim;
    dims.into()
}

fn broadcast(inputs: &[&Type]) -> Infer<Shape> {
    let mut shape = Shape::scalar();
    for ty in inputs {
        shape = shape.broadcast(&ty.shape).ok_or_else(|| {
            let all: Vec<String> = inputs.iter().map(|t| t.to_string()).collect();
            format!(
                "{} do not stretch to one shape: sizes must be equal, or 1, from the last axis on",
                all.join(" and ")
            )
        })?;
    }
    Ok(shape)
}

fn same_dtype(inputs: &[&Type]) -> Infer<DType> {
    let first = inputs[0].dtype;
    ensure(inputs.iter().all(|t| t.dtype == first), || {
        let all: Vec<String> = inputs.iter().map(|t| t.to_string()).collect();
        format!("{} have different element types; cast one", all.join(" and "))
    })?;
    Ok(first)
}

fn float(ty: &Type) -> Infer<()> {
    ensure(ty.dtype.is_float(), || format!("wants floats, got {ty}"))
}

fn no_negative(what: &str, dim: &Dim) -> Infer<()> {
    ensure(dim.eval_all(1 << 20) >= 0, || format!("{what} {dim} is negative"))
}

fn overflow() -> String {
    "sizes overflow".into()
}

/// The type and shape of a product. Of `f32` and a half type it is `f32`: halves are `f32` kept in fewer bits.
fn matmul(inputs: &[&Type], transpose_a: bool, transpose_b: bool) -> Infer<(DType, Shape)> {
    let (a, b) = (inputs[0], inputs[1]);
    let both = || format!("{a}{} times {b}{}", if transpose_a { "ᵀ" } else { "" }, if transpose_b { "ᵀ" } else { "" });
    ensure(a.shape.rank() >= 2 && b.shape.rank() >= 2, || format!("{}: each side needs two axes or more", both()))?;
    let (wide, floats) = (a.dtype == DType::F32 || b.dtype == DType::F32, a.dtype.is_float() && b.dtype.is_float());
    ensure(floats && (wide || a.dtype == b.dtype), || {
        format!("{}: want equal float types, or f32 with a half type", both())
    })?;
    let split = |t: &Type, transposed: bool| {
        let (batch, last) = t.shape.dims().split_at(t.shape.rank() - 2);
        let (rows, cols) = if transposed { (&last[1], &last[0]) } else { (&last[0], &last[1]) };
        (Shape::from(batch.to_vec()), rows.clone(), cols.clone())
    };
    let (batch_a, m, k) = split(a, transpose_a);
    let (batch_b, k2, n) = split(b, transpose_b);
    ensure(k == k2, || format!("{}: inner sizes {k} and {k2} differ", both()))?;
    let batch =
        batch_a.broadcast(&batch_b).ok_or_else(|| format!("{}: leading axes do not stretch to one shape", both()))?;
    let shape = batch.dims().iter().cloned().chain([m, n]).collect::<Vec<_>>().into();
    Ok((if wide { DType::F32 } else { a.dtype }, shape))
}

fn gated_cell(batch_last: bool, by_column: bool, heads: [usize; 3], inputs: &[&Type]) -> Infer<Vec<Type>> {
    arity(inputs, 2..=3)?;
    let (x, w) = (inputs[0], inputs[1]);
    for ty in inputs {
        ensure(ty.dtype == DType::F32, || format!("wants f32, got {ty}"))?;
    }
    let two = |ty: &Type| ensure(ty.shape.rank() == 2, || format!("wants two axes, got {ty}"));
    two(x)?;
    two(w)?;
    let (width, columns) = if by_column { (&w.shape[1], &w.shape[0]) } else { (&w.shape[0], &w.shape[1]) };
    let (values, rows) = if batch_last { (&x.shape[0], &x.shape[1]) } else { (&x.shape[1], &x.shape[0]) };
    ensure(values == width, || format!("{x} and weights {w} do not multiply"))?;
    let units = columns.as_fixed().filter(|n| n % 3 == 0).map(|n| n / 3);
    let units = units.ok_or_else(|| format!("wants three heads of a fixed size each, got weights {w}"))?;
    ensure(heads.iter().all(|start| *start <= 2 * units), || {
        format!("heads at {heads:?} of {units} units each end beyond {} columns", 3 * units)
    })?;
    if let Some(bias) = inputs.get(2) {
        let dims = bias.shape.dims();
        let fits = match (batch_last, dims) {
            (false, [n]) => n == columns,
            (false, [one, n]) => one.is(1) && n == columns,
            (true, [n, one]) => one.is(1) && n == columns,
            _ => false,
        };
        ensure(fits, || format!("{bias} is not one number for each column of {w}"))?;
    }
    let mut shape = vec![rows.clone(), Dim::fixed(units)];
    if batch_last {
        shape.reverse();
    }
    Ok(vec![Type::new(DType::F32, shape)])
}

fn scan(s: &Scan, inputs: &[&Type]) -> Infer<Vec<Type>> {
    let body_inputs = s.body.input_types();
    let body_outputs = s.body.output_types();
    ensure(s.sequences >= 1, || "a scan needs at least one sequence: it gives the number of steps".into())?;
    ensure(s.axis <= 1, || format!("time axis {} of a scan; want 0 or 1", s.axis))?;
    // Counts come from files, so their sum may overflow.
    ensure(s.states.checked_add(s.sequences).is_some_and(|n| n <= inputs.len()), || {
        format!("{} states and {} sequences, but only {} inputs", s.states, s.sequences, inputs.len())
    })?;
    ensure(body_inputs.len() == inputs.len(), || {
        format!("the body takes {} inputs, the scan has {}", body_inputs.len(), inputs.len())
    })?;
    ensure(s.body.weight_types().next().is_none(), || "weights enter a scan's body as inputs".into())?;
    ensure(body_outputs.len() >= s.states, || {
        format!("the body gives {} outputs for {} states", body_outputs.len(), s.states)
    })?;
    let mut steps: Option<Dim> = None;
    for (i, (outer, inner)) in inputs.iter().zip(&body_inputs).enumerate() {
        let sequence = (s.states..s.states + s.sequences).contains(&i);
        let mut expected = (*outer).clone();
        if sequence {
            let length = axis_of(outer, s.axis)?.clone();
            if let Some(known) = &steps {
                ensure(*known == length, || format!("sequences of {known} and {length} steps"))?;
            }
            steps = Some(length);
            let mut dims = outer.shape.dims().to_vec();
            dims.remove(s.axis);
            expected.shape = dims.into();
        }
        ensure(expected == *inner, || {
            let kind = if i < s.states {
                "state"
            } else if sequence {
                "sequence element"
            } else {
                "fixed value"
            };
            format!("body input {i} ({kind}) is {inner}, but the scan supplies {expected}")
        })?;
    }
    let steps = steps.expect("there is a sequence");
    for (i, out) in body_outputs.iter().take(s.states).enumerate() {
        ensure(*out == body_inputs[i], || {
            format!("state {i} enters a step as {} and leaves it as {out}", body_inputs[i])
        })?;
    }
    let mut outs: Vec<Type> = body_outputs[..s.states].to_vec();
    for out in &body_outputs[s.states..] {
        ensure(out.shape.rank() >= s.axis, || format!("output {out} has no axis to put time at {}", s.axis))?;
        let mut dims = out.shape.dims().to_vec();
        dims.insert(s.axis, steps.clone());
        outs.push(Type::new(out.dtype, dims));
    }
    ensure(!outs.is_empty(), || "a scan without outputs".into())?;
    Ok(outs)
}

impl Op {
    /// The types of the outputs, or what does not fit.
    pub fn infer(&self, inputs: &[&Type]) -> Infer<Vec<Type>> {
        let one = |dtype: DType, shape: Shape| Ok(vec![Type { dtype, shape }]);
        match self {
            Op::Input { ty, .. } => {
                arity(inputs, 0..=0)?;
                for dim in ty.shape.dims() {
                    let mut bad = None;
                    dim.for_each_symbol(|s| {
                        if !crate::shape::is_symbol(s) {
                            bad = Some(s.to_owned());
                        }
                    });
                    ensure(bad.is_none(), || format!("{:?} is not a symbol", bad.unwrap_or_default()))?;
                    no_negative("size", dim)?;
                }
                Ok(vec![ty.clone()])
            }
            Op::Weight { ty, .. } => {
                arity(inputs, 0..=0)?;
                ensure(ty.shape.as_fixed().is_some(), || format!("a weight's sizes must be numbers, got {ty}"))?;
                Ok(vec![ty.clone()])
            }
            Op::Const(t) => {
                arity(inputs, 0..=0)?;
                one(t.dtype(), t.shape().into())
            }
            Op::Unary(u) => {
                arity(inputs, 1..=1)?;
                let ty = inputs[0];
                match u {
                    Unary::Not => ensure(ty.dtype == DType::Bool, || format!("wants truth values, got {ty}"))?,
                    Unary::Neg | Unary::Abs | Unary::Sign | Unary::Square | Unary::Relu => {
                        ensure(ty.dtype.is_float() || ty.dtype == DType::I32, || {
                            format!("wants floats or i32, got {ty}")
                        })?;
                    }
                    _ => float(ty)?,
                }
                Ok(vec![ty.clone()])
            }
            Op::Binary(b) => {
                arity(inputs, 2..=2)?;
                let dtype = same_dtype(inputs)?;
                let fits = match b {
                    Binary::And | Binary::Or => dtype == DType::Bool,
                    Binary::Pow => dtype.is_float(),
                    _ => dtype.is_float() || dtype == DType::I32,
                };
                ensure(fits, || format!("is not defined for {} and {}", inputs[0], inputs[1]))?;
                one(dtype, broadcast(inputs)?)
            }
            Op::Compare(_) => {
                arity(inputs, 2..=2)?;
                same_dtype(inputs)?;
                one(DType::Bool, broadcast(inputs)?)
            }
            Op::Select => {
                arity(inputs, 3..=3)?;
                ensure(inputs[0].dtype == DType::Bool, || {
                    format!("the condition must be truth values, got {}", inputs[0])
                })?;
                let dtype = same_dtype(&inputs[1..])?;
                one(dtype, broadcast(inputs)?)
            }
            Op::MatMul { transpose_a, transpose_b } => {
                arity(inputs, 2..=2)?;
                let (dtype, shape) = matmul(inputs, *transpose_a, *transpose_b)?;
                one(dtype, shape)
            }
            Op::Reduce { kind, axes, keep } => {
                arity(inputs, 1..=1)?;
                let ty = inputs[0];
                ensure(ty.dtype.is_float() || (ty.dtype == DType::I32 && *kind != Reduction::Mean), || {
                    format!("is not defined for {ty}")
                })?;
                ensure(axes.windows(2).all(|w| w[0] < w[1]), || format!("axes {axes:?} must ascend"))?;
                for &axis in axes {
                    axis_of(ty, axis)?;
                }
                let dims = ty.shape.dims().iter().enumerate().filter_map(|(i, d)| match (axes.contains(&i), keep) {
                    (false, _) => Some(d.clone()),
                    (true, true) => Some(Dim::fixed(1)),
                    (true, false) => None,
                });
                one(ty.dtype, dims.collect::<Vec<_>>().into())
            }
            Op::Softmax { axis } => {
                arity(inputs, 1..=1)?;
                float(inputs[0])?;
                axis_of(inputs[0], *axis)?;
                Ok(vec![inputs[0].clone()])
            }
            Op::LayerNorm { eps } | Op::RmsNorm { eps } => {
                let most = if matches!(self, Op::LayerNorm { .. }) { 3 } else { 2 };
                arity(inputs, 1..=most)?;
                float(inputs[0])?;
                same_dtype(inputs)?;
                ensure(eps.0 >= 0.0 && eps.0.is_finite(), || {
                    format!("epsilon {:?} must be finite and not negative", eps.0)
                })?;
                let rank = inputs[0].shape.rank();
                ensure(rank >= 1, || "a single number has no last axis".into())?;
                let row = Shape::from(vec![inputs[0].shape[rank - 1].clone()]);
                for extra in &inputs[1..] {
                    ensure(extra.shape == row, || {
                        format!("scale and shift of {} must have shape {row}, got {extra}", inputs[0])
                    })?;
                }
                Ok(vec![inputs[0].clone()])
            }
            Op::Attention { scale, causal, positions } => {
                let extra = usize::from(*positions);
                arity(inputs, 3 + extra..=4 + extra)?;
                let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
                let all = || format!("queries {q}, keys {k}, values {v}");
                float(q)?;
                same_dtype(&inputs[..inputs.len() - extra])?;
                ensure([q, k, v].iter().all(|t| t.shape.rank() == 4), || format!("{}: want four axes each", all()))?;
                ensure(scale.is_none_or(|s| s.0.is_finite()), || "the scale must be finite".into())?;
                let (qs, ks, vs) = (&q.shape, &k.shape, &v.shape);
                ensure(qs[0] == ks[0] && ks[0] == vs[0], || format!("{}: batch sizes differ", all()))?;
                ensure(ks[1] == vs[1] && ks[2] == vs[2], || {
                    format!("{}: keys and values differ in heads or length", all())
                })?;
                ensure(qs[3] == ks[3], || format!("{}: queries and keys differ in width", all()))?;
                let grouped = match (qs[1].as_fixed(), ks[1].as_fixed()) {
                    (Some(h), Some(g)) => h == g || (g > 0 && h % g == 0),
                    _ => qs[1] == ks[1],
                };
                ensure(grouped, || format!("{}: query heads must be a multiple of key heads", all()))?;
                let (mask, last) = self.attention_extras(inputs.len());
                if let Some(last) = last {
                    let want = Type::new(DType::I32, vec![qs[2].clone()]);
                    ensure(*inputs[last] == want, || format!("positions of {q} must be {want}, got {}", inputs[last]))?;
                    ensure(!causal, || "positions say which keys are seen; `causal` would say it too".into())?;
                }
                if let Some(mask) = mask.map(|at| inputs[at]) {
                    let scores: Shape = vec![qs[0].clone(), qs[1].clone(), qs[2].clone(), ks[2].clone()].into();
                    ensure(mask.shape.broadcast(&scores).as_ref() == Some(&scores), || {
                        format!("mask {mask} does not stretch to {scores}")
                    })?;
                }
                one(q.dtype, vec![qs[0].clone(), qs[1].clone(), qs[2].clone(), vs[3].clone()].into())
            }
            Op::Reshape { shape } => {
                arity(inputs, 1..=1)?;
                let (from, to) = (inputs[0].shape.count().ok_or_else(overflow)?, shape.count().ok_or_else(overflow)?);
                ensure(from == to, || format!("{} has {from} elements, {shape} has {to}", inputs[0]))?;
                one(inputs[0].dtype, shape.clone())
            }
            Op::Transpose { perm } => {
                arity(inputs, 1..=1)?;
                let rank = inputs[0].shape.rank();
                let mut seen = vec![false; rank];
                ensure(
                    perm.len() == rank && perm.iter().all(|&p| p < rank && !std::mem::replace(&mut seen[p], true)),
                    || format!("{perm:?} is not an order of the {rank} axes of {}", inputs[0]),
                )?;
                one(inputs[0].dtype, perm.iter().map(|&p| inputs[0].shape[p].clone()).collect::<Vec<_>>().into())
            }
            Op::Slice { axis, start, end } => {
                arity(inputs, 1..=1)?;
                let size = axis_of(inputs[0], *axis)?;
                let length = end.checked_sub(start).ok_or_else(overflow)?;
                let rest = size.checked_sub(end).ok_or_else(overflow)?;
                for (what, d) in [("start", start), ("length", &length), ("rest after the slice", &rest)] {
                    no_negative(what, d).map_err(|e| format!("{start}..{end} of axis {axis} of {}: {e}", inputs[0]))?;
                }
                one(inputs[0].dtype, with_axis(&inputs[0].shape, *axis, length))
            }
            Op::Pad { axis, before, after } => {
                arity(inputs, 1..=1)?;
                no_negative("padding", before)?;
                no_negative("padding", after)?;
                let size = axis_of(inputs[0], *axis)?;
                let sum = size.checked_add(before).and_then(|s| s.checked_add(after)).ok_or_else(overflow)?;
                one(inputs[0].dtype, with_axis(&inputs[0].shape, *axis, sum))
            }
            Op::Concat { axis } => {
                ensure(!inputs.is_empty(), || "nothing to join".into())?;
                let dtype = same_dtype(inputs)?;
                let first = inputs[0];
                let mut sum = Dim::fixed(0);
                for ty in inputs {
                    let size = axis_of(ty, *axis)?.clone();
                    ensure(
                        ty.shape.rank() == first.shape.rank()
                            && with_axis(&ty.shape, *axis, Dim::fixed(0))
                                == with_axis(&first.shape, *axis, Dim::fixed(0)),
                        || format!("{first} and {ty} differ elsewhere than along axis {axis}"),
                    )?;
                    sum = sum.checked_add(&size).ok_or_else(overflow)?;
                }
                one(dtype, with_axis(&first.shape, *axis, sum))
            }
            Op::Broadcast { shape } => {
                arity(inputs, 1..=1)?;
                ensure(inputs[0].shape.broadcast(shape).as_ref() == Some(shape), || {
                    format!("{} does not stretch to {shape}", inputs[0])
                })?;
                one(inputs[0].dtype, shape.clone())
            }
            Op::Gather { axis } => {
                arity(inputs, 2..=2)?;
                axis_of(inputs[0], *axis)?;
                ensure(inputs[1].dtype == DType::I32, || format!("indices must be i32, got {}", inputs[1]))?;
                let dims = inputs[0].shape.dims();
                let shape: Vec<Dim> =
                    dims[..*axis].iter().chain(inputs[1].shape.dims()).chain(&dims[*axis + 1..]).cloned().collect();
                one(inputs[0].dtype, shape.into())
            }
            Op::Put { axis } => {
                arity(inputs, 3..=3)?;
                let (data, part, indices) = (inputs[0], inputs[1], inputs[2]);
                axis_of(data, *axis)?;
                ensure(indices.dtype == DType::I32 && indices.shape.rank() == 1, || {
                    format!("indices must be i32 with one axis, got {indices}")
                })?;
                let want = Type::new(data.dtype, with_axis(&data.shape, *axis, indices.shape[0].clone()));
                ensure(*part == want, || {
                    format!("what {indices} put into axis {axis} of {data} must be {want}, got {part}")
                })?;
                Ok(vec![data.clone()])
            }
            Op::SegmentSum { axis, segments } => {
                arity(inputs, 2..=2)?;
                let size = axis_of(inputs[0], *axis)?.clone();
                ensure(inputs[0].dtype.is_float() || inputs[0].dtype == DType::I32, || {
                    format!("is not defined for {}", inputs[0])
                })?;
                let want = Type::new(DType::I32, vec![size]);
                ensure(*inputs[1] == want, || {
                    format!("segments of axis {axis} of {} must be {want}, got {}", inputs[0], inputs[1])
                })?;
                no_negative("number of segments", segments)?;
                one(inputs[0].dtype, with_axis(&inputs[0].shape, *axis, segments.clone()))
            }
            Op::SynapseSum { axis, sums, segments, .. } => {
                ensure(matches!(sums, 1 | 2), || format!("{sums} sums of the same synapses; want 1 or 2"))?;
                let tables = 5 + sums;
                ensure(inputs.len() == tables || inputs.len() == tables + sums, || {
                    format!(
                        "takes {tables} inputs, or {} with what the sums start from, got {}",
                        tables + sums,
                        inputs.len()
                    )
                })?;
                synapses(&inputs[..tables], *axis)?;
                let result = Type::new(DType::F32, with_axis(&inputs[0].shape, *axis, Dim::fixed(*segments)));
                a_number_each(inputs, tables, &result, *axis)?;
                Ok(vec![result; *sums])
            }
            Op::SynapseRatio { axis, times, .. } => {
                arity(inputs, 10..=10)?;
                ensure(*times > 0, || "a ratio that is taken 0 times".into())?;
                synapses(&inputs[..7], *axis)?;
                let x = inputs[0];
                ensure(x.shape[*axis].as_fixed().is_some(), || format!("wants a fixed size of axis {axis} of {x}"))?;
                a_number_each(inputs, 7, x, *axis)?;
                one(DType::F32, x.shape.clone())
            }
            Op::SynapseGradient { axis, of, .. } => {
                let tables = 5 + of.sums();
                let (terms, results) = match of {
                    SynapseResult::Sums { sums, .. } => {
                        ensure(matches!(sums, 1 | 2), || format!("{sums} sums of the same synapses; want 1 or 2"))?;
                        (0, *sums)
                    }
                    SynapseResult::Ratio { times } => {
                        ensure(*times > 0, || "a ratio that is taken 0 times".into())?;
                        (3, 1)
                    }
                };
                arity(inputs, tables + terms + results..=tables + terms + results)?;
                synapses(&inputs[..tables], *axis)?;
                let x = inputs[0];
                let result = match of {
                    SynapseResult::Sums { segments, .. } => {
                        Type::new(DType::F32, with_axis(&x.shape, *axis, Dim::fixed(*segments)))
                    }
                    SynapseResult::Ratio { .. } => {
                        let fixed = x.shape[*axis].as_fixed().is_some();
                        ensure(fixed, || format!("wants a fixed size of axis {axis} of {x}"))?;
                        x.clone()
                    }
                };
                a_number_each(&inputs[..tables + terms], tables, &result, *axis)?;
                for (i, ty) in inputs.iter().enumerate().skip(tables + terms) {
                    ensure(**ty == result, || format!("input {i} must be {result}, got {ty}"))?;
                }
                let list = Type::new(DType::F32, inputs[1].shape.clone());
                let lists = of.lists().map(|_| list.clone());
                Ok(std::iter::once(x.clone()).chain(lists).chain((0..terms).map(|_| x.clone())).collect())
            }
            Op::GatedCell { batch_last, by_column, heads } => gated_cell(*batch_last, *by_column, *heads, inputs),
            Op::Cast { dtype } => {
                arity(inputs, 1..=1)?;
                one(*dtype, inputs[0].shape.clone())
            }
            Op::Quantize { dtype } => {
                arity(inputs, 3..=3)?;
                ensure(matches!(dtype, DType::I8 | DType::U8), || format!("quantizes to i8 or u8, not {dtype}"))?;
                ensure(inputs[0].dtype == DType::F32, || format!("wants f32, got {}", inputs[0]))?;
                quantization(inputs)?;
                one(*dtype, inputs[0].shape.clone())
            }
            Op::Dequantize => {
                arity(inputs, 3..=3)?;
                ensure(matches!(inputs[0].dtype, DType::I8 | DType::U8), || {
                    format!("wants i8 or u8, got {}", inputs[0])
                })?;
                quantization(inputs)?;
                one(DType::F32, inputs[0].shape.clone())
            }
            Op::Scan(s) => scan(s, inputs),
            Op::Map { map, dtype, also } => {
                map.check()?;
                arity(inputs, 0..=MAX_PROGRAM_INPUTS)?;
                let results = 1 + also.len();
                ensure(inputs.len().saturating_add(results) <= MAX_PROGRAM_OPERANDS, || {
                    format!(
                        "{} inputs and {results} results; want at most {MAX_PROGRAM_OPERANDS} together",
                        inputs.len()
                    )
                })?;
                if let Some(late) = also.iter().find(|r| usize::from(r.at) >= map.code.len()) {
                    return Err(format!("a result is value {} of a program of {}", late.at, map.code.len()));
                }
                ensure(map.inputs() <= inputs.len(), || {
                    format!("the program reads {} inputs, got {}", map.inputs(), inputs.len())
                })?;
                let shape = broadcast(inputs)?;
                let types = std::iter::once(*dtype).chain(also.iter().map(|r| r.dtype));
                Ok(types.map(|dtype| Type::new(dtype, shape.clone())).collect())
            }
            Op::MatMulMap { transpose_a, transpose_b, map, dtype } => {
                arity(inputs, 2..=MAX_PROGRAM_INPUTS)?;
                map.check()?;
                ensure(map.inputs() < inputs.len(), || {
                    format!("the program reads {} inputs, got {}", map.inputs(), inputs.len() - 1)
                })?;
                let (_, product) = matmul(&inputs[..2], *transpose_a, *transpose_b)?;
                for extra in &inputs[2..] {
                    ensure(extra.shape.broadcast(&product).as_ref() == Some(&product), || {
                        format!("{extra} does not stretch to the product's {product}")
                    })?;
                }
                one(*dtype, product)
            }
            Op::LowBit(format) => one(DType::F32, format.infer(inputs)?),
            Op::RoundRows => {
                arity(inputs, 1..=1)?;
                let x = inputs[0];
                ensure(x.dtype == DType::F32 && x.shape.rank() > 0, || format!("wants rows of f32, got {x}"))?;
                Ok(vec![x.clone()])
            }
            Op::LowBitMatMul(product) => Ok(vec![product.infer(inputs)?]),
            Op::Custom { name } => {
                let custom = super::custom::get(name)?;
                if let super::custom::Form::Places(places) = custom.form() {
                    return places.infer(inputs);
                }
                arity(inputs, custom.inputs()..=custom.inputs())?;
                if let Some(other) = inputs.iter().find(|ty| ty.dtype != DType::F32) {
                    return Err(format!("wants f32, got {other}"));
                }
                one(DType::F32, broadcast(inputs)?)
            }
        }
    }
}

fn quantization(inputs: &[&Type]) -> Infer<()> {
    ensure(inputs[1].dtype == DType::F32, || format!("the scale must be f32, got {}", inputs[1]))?;
    ensure(inputs[2].dtype == DType::I32, || format!("the zero point must be i32, got {}", inputs[2]))?;
    for extra in &inputs[1..] {
        ensure(extra.shape.broadcast(&inputs[0].shape).as_ref() == Some(&inputs[0].shape), || {
            format!("{extra} does not stretch to {}", inputs[0].shape)
        })?;
    }
    Ok(())
}
