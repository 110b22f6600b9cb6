//! Describes a node's kernel for the plan: sizes, types and work.

use schwann_core::graph::Node;
use schwann_core::op::PerElement;
use schwann_core::plan::kernel::{
    Attention, BatchAxis, Blocks, Elementwise, Format, GatedCell, Gather, Integer, MapWork, Move, Norm, Product,
    Reduce, Rows, Scan, SegmentSum, Synapses,
};
use schwann_core::plan::{Kernel, Loop};
use schwann_core::{Bindings, DType, Graph, Op, Result};

/// The kernel of a node.
pub(super) fn kernel(graph: &Graph, node: &Node, bindings: &Bindings, looped: Option<&Loop>) -> Result<Kernel> {
    let sizes = |i: usize| graph.ty(node.inputs[i]).shape.eval(bindings);
    let dtype = |i: usize| graph.ty(node.inputs[i]).dtype;
    let out = node.outs[0].shape.eval(bindings)?;
    let elements: usize = out.iter().product();
    let rows = || {
        let len = out.last().copied().unwrap_or(1);
        Rows { rows: elements / len.max(1), len }
    };
    Ok(match &node.op {
        Op::MatMul { transpose_a, .. } | Op::MatMulMap { transpose_a, .. } => {
            let a = sizes(0)?;
            let k = if *transpose_a { a[a.len() - 2] } else { a[a.len() - 1] };
            let (m, n) = (out[out.len() - 2], out[out.len() - 1]);
            let then = match &node.op {
                Op::MatMulMap { map, .. } => Some(MapWork::of(map, &[])),
                _ => None,
            };
            let batch = out[..out.len() - 2].iter().product();
            let (left, right, out) = (dtype(0), dtype(1), node.outs[0].dtype);
            let format = Format::Dense;
            Kernel::Product(Product { batch, m, n, k, left, right, out, format, bias: false, then, threads: 1 })
        }
        Op::GatedCell { batch_last, by_column, .. } => {
            let (rows, units) = if *batch_last { (out[1], out[0]) } else { (out[0], out[1]) };
            let inputs = sizes(1)?[usize::from(*by_column)];
            Kernel::GatedCell(GatedCell { rows, units, inputs, skipped: 0, batch: BatchAxis::First })
        }
        Op::SynapseSum { activation, axis, .. } | Op::SynapseRatio { activation, axis, .. } => {
            let x = sizes(0)?;
            let (sums, ratios) = match &node.op {
                Op::SynapseRatio { times, .. } => (2, *times),
                _ => (node.outs.len(), 0),
            };
            let tables = 5 + sums;
            Kernel::Synapses(Synapses {
                rows: elements / out[*axis].max(1),
                count: sizes(1)?[0],
                sources: x[*axis],
                sums,
                destinations: out[*axis],
                activation: *activation,
                batch: BatchAxis::First,
                rounds: None,
                starts: if ratios == 0 { node.inputs.len() - tables } else { 0 },
                ratios,
            })
        }
        Op::Map { map, also, .. } => Kernel::Map(Elementwise {
            elements,
            inputs: (0..node.inputs.len()).map(dtype).collect(),
            outs: node.outs.iter().map(|t| t.dtype).collect(),
            work: MapWork::of(map, also),
        }),
        Op::Scan(_) => {
            let blocks = looped.and_then(|l| {
                l.block_rows.map(|block_rows| Blocks { rows: block_rows * l.blocks, block_rows, threads: 1 })
            });
            let steps = looped.map_or(0, |l| l.steps);
            Kernel::Scan(Scan { steps, blocks, batch: BatchAxis::First, passed: 0, passed_bytes: 0 })
        }
        Op::Attention { causal, .. } => {
            let (q, k, v) = (sizes(0)?, sizes(1)?, sizes(2)?);
            let visible = |i: usize| if *causal { (i + k[2] + 1).saturating_sub(q[2]).min(k[2]) } else { k[2] };
            Kernel::Attention(Attention {
                batch: q[0],
                heads: q[1],
                queries: q[2],
                keys: k[2],
                dim: q[3],
                value_dim: v[3],
                pairs: (0..q[2]).map(visible).sum(),
                masked: node.inputs.len() > 3,
            })
        }
        Op::Softmax { .. } => Kernel::Softmax(rows()),
        Op::LayerNorm { .. } => Kernel::Norm(Norm { centred: true, rows: rows() }),
        Op::RmsNorm { .. } => Kernel::Norm(Norm { centred: false, rows: rows() }),
        Op::Reduce { kind, axes, .. } => {
            let x = sizes(0)?;
            let (first, last) = (axes.first().copied().unwrap_or(0), axes.last().map_or(0, |a| a + 1));
            let parts = [&x[..first], &x[first..last], &x[last..]].map(|part| part.iter().product());
            Kernel::Reduce(Reduce { by: *kind, shape: parts, dtype: dtype(0) })
        }
        Op::Gather { axis } => Kernel::Gather(Gather { count: sizes(1)?.iter().product(), of: sizes(0)?[*axis] }),
        Op::SegmentSum { axis, .. } => {
            Kernel::SegmentSum(SegmentSum { len: sizes(0)?[*axis], segments: out[*axis], dtype: dtype(0) })
        }
        Op::Concat { axis } => Kernel::Move(Move::Join { axis: *axis }),
        Op::Pad { .. } => Kernel::Move(Move::IntoPadding),
        Op::Put { axis } => Kernel::Move(Move::Put { axis: *axis }),
        Op::Custom { name } => Kernel::other(format!("custom {name}")),
        op if op.is_elementwise()
            && node.outs[0].dtype.is_float()
            && node.inputs.iter().all(|v| graph.ty(*v).dtype.is_float()) =>
        {
            let divisions = usize::from(matches!(op, Op::Binary(schwann_core::op::Binary::Div)));
            let functions = usize::from(matches!(op, Op::Unary(u) if u.is_transcendental()));
            let PerElement { operations, .. } = PerElement { operations: 1, functions, divisions };
            let text = Some(op.name().to_owned());
            Kernel::Map(Elementwise {
                elements,
                inputs: (0..node.inputs.len()).map(dtype).collect(),
                outs: vec![node.outs[0].dtype],
                work: MapWork { operations, functions, divisions, text },
            })
        }
        op if op.is_elementwise() && dtype(0) != DType::F32 => Kernel::Integer(Integer { operation: op.name().into() }),
        op => Kernel::Move(Move::Copy { of: op.name().into() }),
    })
}
