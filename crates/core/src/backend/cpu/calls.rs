//! Which kernel runs a node, and with what arguments.

use super::lower::{Label, Lower, Sized};
use super::matmul;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Node, Value};
use crate::op::custom::{self, Form};
use crate::op::low_bit::Rounding;
use crate::op::{Binary, Compare, Map, MapInstr, MapResult, Op, Reduction, Unary, visible_pairs};
use crate::plan::Kernel;
use crate::plan::kernel::{self as kernels, Gather, MapWork, Move, Norm, Rows, SegmentSum};
use crate::reference::{self, HostValue, Precision};
use schwann_kernels::attention::{Attention, attention_scratch_bytes};
use schwann_kernels::each::{Function, Whole};
use schwann_kernels::exact::{IntOp, IntReduce};
use schwann_kernels::map::{self as kernel, Elem, Instr, Program};
use schwann_kernels::reduce::Reduce;
use schwann_kernels::tape::{self, Attend, Call, Ref};
use std::sync::Arc;

pub(super) fn elem(dtype: DType) -> Elem {
    match dtype {
        DType::F32 => Elem::F32,
        DType::F16 => Elem::F16,
        DType::Bf16 => Elem::Bf16,
        DType::I8 => Elem::I8,
        DType::U8 => Elem::U8,
        DType::I32 => Elem::I32,
        DType::Bool => Elem::Bool,
    }
}

fn isizes(strides: &[usize]) -> Vec<isize> {
    strides.iter().map(|&s| s as isize).collect()
}

/// A copy between strides.
pub(super) fn copy(sized: &Sized, src: Ref, from: &[usize], dst: Ref, to: &[usize]) -> Call {
    let (dims, strides) = collapse(&sized.shape, &[from.to_vec(), to.to_vec()]);
    if dims.len() <= 1 && strides.iter().flatten().all(|s| *s == 1) {
        let bytes = sized.bytes();
        return Call::Move { bytes, src, dst };
    }
    let (elem, dims) = (sized.dtype.size(), sized.shape.clone());
    Call::Copy { elem, dims, src, src_strides: isizes(from), dst, dst_strides: isizes(to) }
}

/// Lowers one node; `value` is its first output.
pub(super) fn lower(l: &mut Lower<'_>, value: Value, node: &Node) -> Result<()> {
    let out = l.sized(value)?;
    let cost = l.graph.node_cost(node, l.bindings)?;
    let label = |kernel: Kernel| Label { kernel, cost, in_place: false, looped: None };
    let moved = |how: Move| label(Kernel::Move(how));
    if out.count() == 0 {
        // All results of a node with several have one shape.
        return (0..node.outs.len() as u16).try_for_each(|slot| l.write(Value { slot, ..value }).map(|_| ()));
    }
    let input = |l: &Lower<'_>, i: usize| l.sized(node.inputs[i]);
    match &node.op {
        Op::Map { map, also, .. } => elementwise(l, value, node, map, also, &out),
        Op::MatMul { .. } | Op::MatMulMap { .. } | Op::LowBitMatMul(_) => matmul::lower(l, value, node),
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast { .. } => integers(l, value, node, &out),
        Op::Reduce { kind, axes, .. } => {
            let x = input(l, 0)?;
            let (first, last) = (axes[0], axes[axes.len() - 1]);
            let size = |r: std::ops::Range<usize>| x.shape[r].iter().product::<usize>();
            let shape = [size(0..first), size(first..last + 1), size(last + 1..x.shape.len())];
            let (src, dst) = (l.read(node.inputs[0])?, l.write(value)?);
            let call = if x.dtype == DType::I32 {
                let op = match kind {
                    Reduction::Sum | Reduction::Mean => IntReduce::Sum,
                    Reduction::Max => IntReduce::Max,
                    Reduction::Min => IntReduce::Min,
                };
                Call::IntReduce { op, shape, src, dst }
            } else {
                let op = match kind {
                    Reduction::Sum => Reduce::Sum,
                    Reduction::Mean => Reduce::Mean,
                    Reduction::Max => Reduce::Max,
                    Reduction::Min => Reduce::Min,
                };
                Call::Reduce { op, shape, src, dst }
            };
            l.call(value, call, label(Kernel::Reduce(kernels::Reduce { by: *kind, shape, dtype: x.dtype })))
        }
        Op::Softmax { .. } => {
            let len = *out.shape.last().unwrap_or(&1);
            let rows = out.count() / len;
            let src = l.read(node.inputs[0])?;
            let (dst, in_place) = l.write_over(value, &node.inputs[..1])?;
            let call = Call::Softmax { rows, len, src, dst };
            l.call(value, call, Label { in_place, ..label(Kernel::Softmax(Rows { rows, len })) })
        }
        Op::LayerNorm { eps } | Op::RmsNorm { eps } => {
            let len = *out.shape.last().unwrap_or(&1);
            let rows = out.count() / len;
            let src = l.read(node.inputs[0])?;
            let mut extra = |i: usize| node.inputs.get(i).map(|v| l.read(*v)).transpose();
            let (gamma, beta) = (extra(1)?, extra(2)?);
            let (dst, in_place) = l.write_over(value, &node.inputs[..1])?;
            let (call, centred) = match node.op {
                Op::LayerNorm { .. } => (Call::LayerNorm { rows, len, eps: eps.0, gamma, beta, src, dst }, true),
                _ => (Call::RmsNorm { rows, len, eps: eps.0, gamma, src, dst }, false),
            };
            let kernel = Kernel::Norm(Norm { centred, rows: Rows { rows, len } });
            l.call(value, call, Label { in_place, ..label(kernel) })
        }
        Op::Attention { causal, scale, .. } => {
            let call = attention(l, value, node, *causal, scale.map(|s| s.0))?;
            let Call::Attention(a) = &call else { unreachable!("attention lowers to attention") };
            let s = &a.shape;
            let pairs =
                if s.causal { visible_pairs(s.queries as u64, s.keys as u64) as usize } else { s.queries * s.keys };
            let kernel = kernels::Attention {
                batch: s.batch,
                heads: s.heads,
                queries: s.queries,
                keys: s.keys,
                dim: s.dim,
                value_dim: s.value_dim,
                pairs,
                masked: s.mask.is_some() || a.positions.is_some(),
            };
            l.call(value, call, label(Kernel::Attention(kernel)))
        }
        Op::Transpose { perm } => {
            let (src, strides) = l.view(node.inputs[0])?;
            let from: Vec<usize> = perm.iter().map(|&p| strides[p]).collect();
            let call = copy(&out, src, &from, l.write(value)?, &out.strides());
            l.call(value, call, moved(Move::Transpose { axes: perm.clone() }))
        }
        // Only a broadcast whose result is an output gets here; others are not copied until a call needs them in
        // memory.
        Op::Broadcast { .. } => {
            let (x, (src, own)) = (input(l, 0)?, l.view(node.inputs[0])?);
            let missing = out.shape.len() - x.shape.len();
            let kept = |i: usize| i >= missing && x.shape[i - missing] == out.shape[i];
            let from: Vec<usize> = (0..out.shape.len()).map(|i| if kept(i) { own[i - missing] } else { 0 }).collect();
            let call = copy(&out, src, &from, l.write(value)?, &out.strides());
            l.call(value, call, moved(Move::Broadcast))
        }
        Op::Slice { axis, start, .. } => {
            let (mut src, strides) = l.view(node.inputs[0])?;
            let skip = start.eval(l.bindings)? * strides[*axis] * out.dtype.size();
            src.offset += skip;
            src.len -= skip;
            let call = copy(&out, src, &strides, l.write(value)?, &out.strides());
            l.call(value, call, moved(Move::Slice { axis: *axis }))
        }
        Op::Pad { axis, before, .. } => {
            let (x, strides) = (input(l, 0)?, out.strides());
            let src = l.view(node.inputs[0])?;
            let dst = l.write(value)?;
            l.call(value, Call::Zero { dst }, Label { cost: Default::default(), ..moved(Move::Zero) })?;
            let at = before.eval(l.bindings)? * strides[*axis];
            place_within(l, value, &x, src, dst, at, &strides, moved(Move::IntoPadding))
        }
        Op::Concat { axis } => {
            let strides = out.strides();
            let dst = l.write(value)?;
            let mut at = 0;
            for &v in &node.inputs {
                let x = l.sized(v)?;
                let before = at * strides[*axis] * x.dtype.size();
                at += x.shape[*axis];
                if l.is_within(v, value, before) {
                    continue;
                }
                let src = l.view(v)?;
                let bytes = x.bytes() as u64;
                let cost = crate::op::Cost { bytes_read: bytes, bytes_written: bytes, ..Default::default() };
                let label = Label { cost, ..moved(Move::Join { axis: *axis }) };
                place_within(l, value, &x, src, dst, before / x.dtype.size(), &strides, label)?;
            }
            Ok(())
        }
        Op::Gather { axis } => {
            let (x, indices) = (input(l, 0)?, input(l, 1)?);
            let shape = around(&x, *axis);
            let (src, index, dst) = (l.read(node.inputs[0])?, l.read(node.inputs[1])?, l.write(value)?);
            let count = indices.count();
            let call = Call::Gather { elem: x.dtype.size(), shape, indices: index, count, src, dst };
            l.call(value, call, label(Kernel::Gather(Gather { count, of: shape[1] })))
        }
        Op::Put { axis } => {
            let (x, part, indices) = (input(l, 0)?, input(l, 1)?, input(l, 2)?);
            let shape = around(&x, *axis);
            let dst = l.write(value)?;
            let in_place = l.placement.in_place.contains(&value);
            if !in_place {
                let (src, strides) = l.view(node.inputs[0])?;
                let bytes = x.bytes() as u64;
                let cost = crate::op::Cost { bytes_read: bytes, bytes_written: bytes, ..Default::default() };
                let kernel = moved(Move::Copy { of: l.graph.node(node.inputs[0]).op.name().into() });
                l.call(value, copy(&x, src, &strides, dst, &x.strides()), Label { cost, ..kernel })?;
            }
            let (src, index) = (l.read(node.inputs[1])?, l.read(node.inputs[2])?);
            let call = Call::Put { elem: x.dtype.size(), shape, indices: index, count: indices.count(), src, dst };
            let bytes = part.bytes() as u64;
            let cost = crate::op::Cost {
                bytes_read: bytes + indices.bytes() as u64,
                bytes_written: bytes,
                ..Default::default()
            };
            l.call(value, call, Label { cost, in_place, ..moved(Move::Put { axis: *axis }) })
        }
        Op::SegmentSum { axis, .. } => {
            let x = input(l, 0)?;
            let (shape, count) = (around(&x, *axis), out.shape[*axis]);
            let (src, segments, dst) = (l.read(node.inputs[0])?, l.read(node.inputs[1])?, l.write(value)?);
            let call = match x.dtype {
                DType::I32 => Call::IntSegmentSum { shape, segments, count, src, dst },
                _ => Call::SegmentSum { shape, segments, count, src, dst },
            };
            let kernel = SegmentSum { len: shape[1], segments: count, dtype: x.dtype };
            l.call(value, call, label(Kernel::SegmentSum(kernel)))
        }
        Op::Custom { name } => {
            let custom = custom::get(name).map_err(|problem| Error::Custom { name: name.clone(), problem })?;
            let kernel = Kernel::other(format!("custom {name}, by its definition in f64 (slow)"));
            let inputs = node.inputs.iter().map(|&v| Ok((l.sized(v)?, l.read(v)?))).collect::<Result<Vec<_>>>()?;
            let call = match custom.form() {
                Form::Elements { definition, .. } => {
                    let strided = |(x, r): (Sized, Ref)| (r, pad6(&x.strides_in(&out.shape), 0));
                    let inputs = inputs.into_iter().map(strided).collect();
                    let function = Function(Arc::clone(definition));
                    Call::Each { function, dims: pad6(&out.shape, 1), inputs, out: l.write(value)? }
                }
                Form::Places(places) => {
                    let places = Arc::clone(places);
                    let dtypes: Vec<DType> = inputs.iter().map(|(x, _)| x.dtype).collect();
                    let sizes = places.sizes(inputs.iter().map(|(x, _)| x.shape.clone()).collect());
                    let sizes = sizes.map_err(|problem| Error::Custom { name: name.clone(), problem })?;
                    let whole = Whole(Arc::new(move |inputs, put| {
                        let mut read = |k: usize, number: usize| custom::element(dtypes[k], inputs[k], number);
                        places.whole(&sizes, &mut read, &mut |k, number, value| put(k, number, value as f32))
                    }));
                    let outs = 0..node.outs.len() as u16;
                    let outs = outs.map(|slot| l.write(Value { slot, ..value })).collect::<Result<_>>()?;
                    Call::Whole { whole, inputs: inputs.into_iter().map(|(_, r)| r).collect(), outs }
                }
            };
            l.call(value, call, label(kernel))
        }
        // These meet kernels only as parts of products with known weights; alone they are rare.
        Op::LowBit(format) => {
            let kernel = Kernel::other("low-bit numbers one by one (slow)");
            let (codes, scales) = (input(l, 0)?, input(l, 1)?);
            let lead = &codes.shape[..codes.shape.len() - 1];
            let blocks: Vec<usize> = lead.iter().copied().chain([format.blocks()]).collect();
            // Where the scales of a row begin, for each axis before.
            let strides = scales.strides_in(&blocks)[..lead.len()].to_vec();
            let (format, lead, dtype) = (*format, lead.to_vec(), scales.dtype);
            let row_bytes = codes.shape[lead.len()];
            let body = Whole(Arc::new(move |inputs, put| {
                for row in 0..lead.iter().product() {
                    let (mut rest, mut first) = (row, 0);
                    for (size, stride) in lead.iter().zip(&strides).rev() {
                        first += rest % size * stride;
                        rest /= size;
                    }
                    let codes = &inputs[0][row * row_bytes..][..row_bytes];
                    for k in 0..format.len {
                        let part = |i: usize| custom::element(dtype, inputs[i], first + k / format.block) as f32;
                        let offset = if format.offsets { part(2) } else { 0.0 };
                        put(0, row * format.len + k, format.number(format.code.get(codes, k), part(1), offset));
                    }
                }
                Ok(())
            }));
            whole(l, value, node, label(kernel), body)
        }
        Op::RoundRows => {
            let len = out.shape.last().copied().unwrap_or(1);
            let body = Whole(Arc::new(move |inputs, put| {
                let value = |at: usize| custom::element(DType::F32, inputs[0], at) as f32;
                for first in (0..inputs[0].len() / 4).step_by(len) {
                    let rounding = Rounding::of((first..first + len).map(value));
                    (first..first + len).for_each(|at| put(0, at, rounding.round(value(at))));
                }
                Ok(())
            }));
            whole(l, value, node, label(Kernel::other("rows rounded one by one (slow)")), body)
        }
        Op::Input { .. }
        | Op::Weight { .. }
        | Op::Const(_)
        | Op::Reshape { .. }
        | Op::Quantize { .. }
        | Op::Dequantize
        | Op::SynapseSum { .. }
        | Op::SynapseRatio { .. }
        | Op::SynapseGradient { .. }
        | Op::GatedCell { .. }
        | Op::Scan(_) => Err(Error::Internal(format!("`{}` ({}) reached the kernels", node.name, node.op.name()))),
    }
}

/// Runs a function of whole values that gives one result of `f32`.
fn whole(l: &mut Lower<'_>, value: Value, node: &Node, label: Label, whole: Whole) -> Result<()> {
    let inputs = node.inputs.iter().map(|&v| l.read(v)).collect::<Result<Vec<_>>>()?;
    let out = l.write(value)?;
    l.call(value, Call::Whole { whole, inputs, outs: vec![out] }, label)
}

/// Runs a node whose result is `f32` as the reference defines it.
pub(super) fn by_definition(l: &mut Lower<'_>, value: Value, node: &Node, kernel: Kernel) -> Result<()> {
    let label = Label { kernel, cost: l.graph.node_cost(node, l.bindings)?, in_place: false, looped: None };
    let out = l.sized(value)?;
    if out.dtype != DType::F32 {
        let problem = format!("by its definition it gives f32 only, not {}", out.dtype);
        return Err(Error::Unsupported { node: node.name.clone(), op: node.op.name().into(), problem });
    }
    let types = node.inputs.iter().map(|&v| l.sized(v)).collect::<Result<Vec<Sized>>>()?;
    let (name, op, outs, bindings) = (node.name.clone(), node.op.clone(), [(out.dtype, out.shape)], l.bindings.clone());
    let body = Whole(Arc::new(move |inputs, put| {
        let value = |(ty, bytes): (&Sized, &&[u8])| {
            let data = (0..ty.count()).map(|at| custom::element(ty.dtype, bytes, at)).collect();
            HostValue { dtype: ty.dtype, shape: ty.shape.clone(), data }
        };
        let values: Vec<HostValue> = types.iter().zip(inputs).map(value).collect();
        let values: Vec<&HostValue> = values.iter().collect();
        let results = reference::eval_node(&name, &op, &values, &outs, &bindings, Precision::Storage);
        let results = results.map_err(|e| e.to_string())?;
        results[0].data.iter().enumerate().for_each(|(at, y)| put(0, at, *y as f32));
        Ok(())
    }));
    whole(l, value, node, label, body)
}

/// [outer, axis, inner] around an axis.
fn around(x: &Sized, axis: usize) -> [usize; 3] {
    [x.shape[..axis].iter().product(), x.shape[axis], x.shape[axis + 1..].iter().product()]
}

/// Copies `x` into a larger result at element `at`.
#[expect(clippy::too_many_arguments, reason = "two operands and where one goes in the other")]
fn place_within(
    l: &mut Lower<'_>,
    value: Value,
    x: &Sized,
    (src, from): (Ref, Vec<usize>),
    dst: Ref,
    at: usize,
    strides: &[usize],
    label: Label,
) -> Result<()> {
    if x.count() == 0 {
        return Ok(());
    }
    let skip = at * x.dtype.size();
    let dst = Ref { offset: dst.offset + skip, len: dst.len - skip, ..dst };
    l.call(value, copy(x, src, &from, dst, strides), label)
}

fn attention(l: &mut Lower<'_>, value: Value, node: &Node, causal: bool, scale: Option<f32>) -> Result<Call> {
    let [q, k, v] = [l.sized(node.inputs[0])?, l.sized(node.inputs[1])?, l.sized(node.inputs[2])?];
    let out = l.sized(value)?;
    let three = |s: &Sized| {
        let strides = s.strides();
        [strides[0] as isize, strides[1] as isize, strides[2] as isize]
    };
    let scores = [q.shape[0], q.shape[1], q.shape[2], k.shape[2]];
    let (mask, positions) = node.op.attention_extras(node.inputs.len());
    let mask = mask.map(|at| {
        let m = node.inputs[at];
        let strides = l.sized(m)?.strides_in(&scores);
        Ok::<_, Error>((l.read(m)?, [0, 1, 2, 3].map(|i| strides[i] as isize)))
    });
    let mask = mask.transpose()?;
    let shape = Attention {
        batch: q.shape[0],
        heads: q.shape[1],
        kv_heads: k.shape[1],
        queries: q.shape[2],
        keys: k.shape[2],
        dim: q.shape[3],
        value_dim: v.shape[3],
        scale: scale.unwrap_or_else(|| 1.0 / (q.shape[3] as f32).sqrt()),
        causal,
        q: three(&q),
        k: three(&k),
        v: three(&v),
        out: three(&out),
        mask: mask.as_ref().map(|(_, strides)| *strides),
    };
    let positions = positions.map(|at| l.read(node.inputs[at])).transpose()?;
    let qkv = [l.read(node.inputs[0])?, l.read(node.inputs[1])?, l.read(node.inputs[2])?];
    let scratch = l.scratch(attention_scratch_bytes(l.target.isa, l.target.threads, &shape));
    let out = l.write(value)?;
    Ok(Call::Attention(Box::new(Attend { shape, qkv, mask: mask.map(|(r, _)| r), positions, out, scratch })))
}

/// Merges neighbouring axes that are contiguous in every operand; gives sizes and each operand's strides.
pub(super) fn collapse(shape: &[usize], operands: &[Vec<usize>]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut dims: Vec<usize> = Vec::new();
    let mut strides: Vec<Vec<usize>> = vec![Vec::new(); operands.len()];
    for (axis, &size) in shape.iter().enumerate() {
        if size == 1 {
            continue;
        }
        let merges = !dims.is_empty()
            && operands.iter().zip(&strides).all(|(o, s)| s.last().is_some_and(|outer| *outer == o[axis] * size));
        if merges {
            *dims.last_mut().expect("not empty") *= size;
        } else {
            dims.push(size);
        }
        for (own, o) in strides.iter_mut().zip(operands) {
            if merges {
                own.pop();
            }
            own.push(o[axis]);
        }
    }
    (dims, strides)
}

fn pad4(values: &[usize], fill: usize) -> [usize; 4] {
    let mut padded = [fill; 4];
    padded[4 - values.len()..].copy_from_slice(values);
    padded
}

fn elementwise(l: &mut Lower<'_>, value: Value, node: &Node, map: &Map, also: &[MapResult], out: &Sized) -> Result<()> {
    let cost = l.graph.node_cost(node, l.bindings)?;
    let inputs: Vec<Sized> = node.inputs.iter().map(|&v| l.sized(v)).collect::<Result<_>>()?;
    // Operands are read in place, with strides, if their innermost stride is 0 or 1.
    let inner = out.shape.iter().rposition(|&d| d != 1);
    let mut refs = Vec::with_capacity(inputs.len());
    let mut strides: Vec<Vec<usize>> = Vec::with_capacity(inputs.len());
    for (x, &v) in inputs.iter().zip(&node.inputs) {
        let (mut at, mut steps) = match l.stretched(v, x, out)? {
            Some(stretched) => (stretched, out.strides()),
            None => {
                let (at, own) = l.view(v)?;
                (at, x.stretch(&own, &out.shape))
            }
        };
        if inner.is_some_and(|axis| steps[axis] > 1) {
            (at, steps) = (l.read(v)?, x.strides_in(&out.shape));
        }
        refs.push(at);
        strides.push(steps);
    }
    let mut stretched = vec![false; inputs.len()];
    // The kernel walks four axes. Where broadcasts in several places leave more, stretch operands in memory.
    for i in 0..inputs.len() {
        let with_out: Vec<Vec<usize>> = strides.iter().cloned().chain([out.strides()]).collect();
        if collapse(&out.shape, &with_out).0.len() <= 4 {
            break;
        }
        if strides[i] == out.strides() || inputs[i].count() == 1 {
            continue;
        }
        let full = Sized { dtype: inputs[i].dtype, shape: out.shape.clone() };
        let dst = l.scratch(full.bytes());
        let call = copy(&full, refs[i], &strides[i], dst, &full.strides());
        let moved = crate::op::Cost {
            bytes_read: inputs[i].bytes() as u64,
            bytes_written: full.bytes() as u64,
            ..Default::default()
        };
        l.call(value, call, Label { kernel: Kernel::Move(Move::Stretch), cost: moved, in_place: false, looped: None })?;
        (refs[i], stretched[i]) = (dst, true);
        strides[i] = full.strides();
    }
    let with_out: Vec<Vec<usize>> = strides.iter().cloned().chain([out.strides()]).collect();
    let (dims, collapsed) = collapse(&out.shape, &with_out);
    if dims.len() > 4 {
        return Err(Error::Internal(format!("`{}` has too many axes to walk", node.name)));
    }
    let program = compile(map, also, node.inputs.len())?;
    let operands: Vec<_> =
        inputs.iter().enumerate().map(|(i, x)| (refs[i], elem(x.dtype), pad4(&collapsed[i], 0))).collect();
    let scratch = l.scratch(kernel::scratch_bytes(&program, l.target.threads));
    let mut outs = Vec::with_capacity(node.outs.len());
    let mut in_place = false;
    for (slot, ty) in (0u16..).zip(&node.outs) {
        // Operands of the result's own layout and element size may be overwritten.
        let candidates: Vec<Value> = (0..inputs.len())
            .filter(|&i| inputs[i].shape == out.shape && inputs[i].dtype.size() == ty.dtype.size() && !stretched[i])
            .map(|i| node.inputs[i])
            .collect();
        let (dst, over) = l.write_over(Value { slot, ..value }, &candidates)?;
        outs.push((dst, elem(ty.dtype)));
        in_place |= over;
    }
    let work = MapWork::of(map, also);
    let map = tape::Map::new(l.target.machine(), program, pad4(&dims, 1), operands, outs, scratch);
    let call = Call::Map(Box::new(map.map_err(Error::Internal)?));
    let kernel = Kernel::Map(kernels::Elementwise {
        elements: out.count(),
        inputs: inputs.iter().map(|x| x.dtype).collect(),
        outs: node.outs.iter().map(|ty| ty.dtype).collect(),
        work,
    });
    l.call(value, call, Label { kernel, cost, in_place, looped: None })
}

/// The kernel's form of a program whose results are its last value and those of `also`.
pub(super) fn compile(map: &Map, also: &[MapResult], inputs: usize) -> Result<Program> {
    let mut code: Vec<Instr> = Vec::with_capacity(map.code.len());
    let mut at: Vec<u16> = Vec::with_capacity(map.code.len());
    for instr in &map.code {
        let mut emit = |i: Instr| {
            code.push(i);
            (code.len() - 1) as u16
        };
        let reg = |o: u16| at[usize::from(o)];
        let result = match *instr {
            MapInstr::Input(n) => emit(Instr::Input(n)),
            MapInstr::Const(c) => emit(Instr::constant(c.0)),
            MapInstr::Unary(u, a) => emit(Instr::Unary(u.kernel(), reg(a))),
            MapInstr::Binary(b, x, y) => emit(Instr::Binary(binary(b), reg(x), reg(y))),
            MapInstr::Compare(c, x, y) => emit(Instr::Binary(compare(c), reg(x), reg(y))),
            MapInstr::Select(c, x, y) => emit(Instr::Select(reg(c), reg(x), reg(y))),
            // sign(x)·⌊|x|⌋
            MapInstr::Trunc(a) => {
                let size = emit(Instr::Unary(kernel::Unary::Abs, reg(a)));
                let whole = emit(Instr::Unary(kernel::Unary::Floor, size));
                let sign = emit(Instr::Unary(kernel::Unary::Sign, reg(a)));
                emit(Instr::Binary(kernel::Binary::Mul, sign, whole))
            }
        };
        at.push(result);
    }
    let last = *at.last().ok_or_else(|| Error::Internal("an empty program".into()))?;
    let outputs = std::iter::once(last).chain(also.iter().map(|r| at[usize::from(r.at)])).collect();
    Program::new(code, outputs, inputs).map_err(Error::Internal)
}

fn binary(b: Binary) -> kernel::Binary {
    use kernel::Binary as K;
    match b {
        Binary::Add => K::Add,
        Binary::Sub => K::Sub,
        Binary::Mul => K::Mul,
        Binary::Div => K::Div,
        Binary::Min => K::Min,
        Binary::Max => K::Max,
        Binary::Pow => K::Pow,
        Binary::And => K::And,
        Binary::Or => K::Or,
    }
}

fn compare(c: Compare) -> kernel::Binary {
    use kernel::Binary as K;
    match c {
        Compare::Eq => K::Eq,
        Compare::Ne => K::Ne,
        Compare::Lt => K::Lt,
        Compare::Le => K::Le,
        Compare::Gt => K::Gt,
        Compare::Ge => K::Ge,
    }
}

fn pad6(values: &[usize], fill: usize) -> [usize; 6] {
    let mut padded = [fill; 6];
    padded[6 - values.len()..].copy_from_slice(values);
    padded
}

/// Elementwise work on 32-bit integers, and casts between integers: exact, outside `f32`.
fn integers(l: &mut Lower<'_>, value: Value, node: &Node, out: &Sized) -> Result<()> {
    let op = match node.op {
        Op::Unary(Unary::Neg) => IntOp::Neg,
        Op::Unary(Unary::Abs) => IntOp::Abs,
        Op::Unary(Unary::Sign) => IntOp::Sign,
        Op::Unary(Unary::Square) => IntOp::Square,
        Op::Unary(Unary::Relu) => IntOp::Relu,
        Op::Binary(Binary::Add) => IntOp::Add,
        Op::Binary(Binary::Sub) => IntOp::Sub,
        Op::Binary(Binary::Mul) => IntOp::Mul,
        Op::Binary(Binary::Div) => IntOp::Div,
        Op::Binary(Binary::Min) => IntOp::Min,
        Op::Binary(Binary::Max) => IntOp::Max,
        Op::Compare(Compare::Eq) => IntOp::Eq,
        Op::Compare(Compare::Ne) => IntOp::Ne,
        Op::Compare(Compare::Lt) => IntOp::Lt,
        Op::Compare(Compare::Le) => IntOp::Le,
        Op::Compare(Compare::Gt) => IntOp::Gt,
        Op::Compare(Compare::Ge) => IntOp::Ge,
        Op::Select => IntOp::Select,
        Op::Cast { .. } => IntOp::Cast,
        _ => return Err(Error::Internal(format!("`{}` ({}) is no integer operation", node.name, node.op.name()))),
    };
    let cost = l.graph.node_cost(node, l.bindings)?;
    let mut inputs = Vec::with_capacity(node.inputs.len());
    for &v in &node.inputs {
        let x = l.sized(v)?;
        inputs.push((l.read(v)?, elem(x.dtype), pad6(&x.strides_in(&out.shape), 0)));
    }
    let dst = l.write(value)?;
    let call = Call::Int { op, dims: pad6(&out.shape, 1), inputs, out: (dst, elem(out.dtype)) };
    let kernel = Kernel::Integer(kernels::Integer { operation: node.op.name().into() });
    l.call(value, call, Label { kernel, cost, in_place: false, looped: None })
}
