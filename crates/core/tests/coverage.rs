//! The case list leaves nothing out: every operation, with every kind, flag and element type that it is legal with.
//!
//! What is legal is not written down here: an operation is offered every combination, and its own rule (`Op::infer`) says
//! which it takes. The matches below do not compile when a variant is added, until it is listed here too.

use schwann_core::cases;
use schwann_core::op::{
    Activation, Binary, Code, Compare, Float, LowBit, LowBitMatMul, Map, MapInstr, MapResult, Reduction, SynapseResult,
};
use schwann_core::op::{Scan, Unary};
use schwann_core::pass::{self, PassOptions};
use schwann_core::{DType, Dim, Graph, GraphBuilder, Op, Tensor, Type};
use std::collections::BTreeSet;

/// A function that names each variant, and the list of these names, of one table.
macro_rules! named {
    ($(#[$about:meta])* $function:ident, $list:ident, $ty:ty: $($variant:pat => $name:literal),* $(,)?) => {
        $(#[$about])*
        fn $function(value: &$ty) -> &'static str {
            match value { $($variant => $name),* }
        }
        const $list: &[&str] = &[$($name),*];
    };
}

named! {
    /// What an operation is called here.
    kind, KINDS, Op:
    Op::Input { .. } => "input",
    Op::Weight { .. } => "weight",
    Op::Const(_) => "const",
    Op::Unary(_) => "unary",
    Op::Binary(_) => "binary",
    Op::Compare(_) => "compare",
    Op::Select => "select",
    Op::MatMul { .. } => "matmul",
    Op::Reduce { .. } => "reduce",
    Op::Softmax { .. } => "softmax",
    Op::LayerNorm { .. } => "layer_norm",
    Op::RmsNorm { .. } => "rms_norm",
    Op::Attention { .. } => "attention",
    Op::Reshape { .. } => "reshape",
    Op::Transpose { .. } => "transpose",
    Op::Slice { .. } => "slice",
    Op::Pad { .. } => "pad",
    Op::Concat { .. } => "concat",
    Op::Broadcast { .. } => "broadcast",
    Op::Gather { .. } => "gather",
    Op::Put { .. } => "put",
    Op::SegmentSum { .. } => "segment_sum",
    Op::SynapseSum { .. } => "synapse_sum",
    Op::SynapseRatio { .. } => "synapse_ratio",
    Op::SynapseGradient { .. } => "synapse_gradient",
    Op::GatedCell { .. } => "gated_cell",
    Op::Cast { .. } => "cast",
    Op::Quantize { .. } => "quantize",
    Op::Dequantize => "dequantize",
    Op::LowBit(_) => "low_bit",
    Op::RoundRows => "round_rows",
    Op::LowBitMatMul(_) => "low_bit_matmul",
    Op::Scan(_) => "scan",
    Op::Map { .. } => "map",
    Op::MatMulMap { .. } => "matmul_map",
    Op::Custom { .. } => "custom",
}
named! {
    instruction, INSTRUCTIONS, MapInstr:
    MapInstr::Input(_) => "input",
    MapInstr::Const(_) => "const",
    MapInstr::Unary(..) => "unary",
    MapInstr::Binary(..) => "binary",
    MapInstr::Compare(..) => "compare",
    MapInstr::Select(..) => "select",
    MapInstr::Trunc(_) => "trunc",
}
named! {
    reduction, REDUCTIONS, Reduction:
    Reduction::Sum => "sum", Reduction::Mean => "mean", Reduction::Max => "max", Reduction::Min => "min",
}
named! {
    binary, BINARY, Binary:
    Binary::Add => "add", Binary::Sub => "sub", Binary::Mul => "mul", Binary::Div => "div", Binary::Min => "min",
    Binary::Max => "max", Binary::Pow => "pow", Binary::And => "and", Binary::Or => "or",
}
named! {
    compare, COMPARE, Compare:
    Compare::Eq => "eq", Compare::Ne => "ne", Compare::Lt => "lt", Compare::Le => "le", Compare::Gt => "gt",
    Compare::Ge => "ge",
}
named! {
    activation, ACTIVATIONS, Activation:
    Activation::Identity => "identity", Activation::Sigmoid => "sigmoid", Activation::Tanh => "tanh",
}
named! {
    dtype, DTYPES, DType:
    DType::F32 => "f32", DType::F16 => "f16", DType::Bf16 => "bf16", DType::I8 => "i8", DType::U8 => "u8",
    DType::I32 => "i32", DType::Bool => "bool",
}

const REDUCE: [Reduction; 4] = [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min];

/// The lists that the library and this test go through are complete: a variant that is missing there is missing here. (That
/// of functions is made of the same table as they.)
#[test]
fn the_lists_of_kinds_are_whole() {
    let names = |list: Vec<&'static str>, all: &[&'static str]| {
        assert_eq!(list.iter().collect::<BTreeSet<_>>(), all.iter().collect::<BTreeSet<_>>());
        assert_eq!(list.len(), all.len());
    };
    names(Binary::ALL.iter().map(binary).collect(), BINARY);
    names(Compare::ALL.iter().map(compare).collect(), COMPARE);
    names(Activation::ALL.iter().map(activation).collect(), ACTIVATIONS);
    names(DType::ALL.iter().map(dtype).collect(), DTYPES);
    names(REDUCE.iter().map(reduction).collect(), REDUCTIONS);
}

/// What a node tries out, in words: an operation, and its kinds, flags and element types.
fn features(op: &Op, inputs: &[&Type]) -> Vec<String> {
    let name = kind(op);
    let of = |i: usize| inputs.get(i).map_or("nothing", |ty| dtype(&ty.dtype));
    let flag = |flag: bool, name: &'static str| if flag { name } else { "" };
    let program = |map: &Map, to: &DType, first: usize| {
        let mut all = vec![format!("{name} to {}", dtype(to))];
        all.extend(inputs.iter().skip(first).map(|ty| format!("{name} reads {}", dtype(&ty.dtype))));
        all.extend(map.code.iter().map(|i| match i {
            MapInstr::Unary(u, _) => format!("program of {}", u.name()),
            MapInstr::Binary(b, ..) => format!("program of {}", binary(b)),
            MapInstr::Compare(c, ..) => format!("program of {}", compare(c)),
            other => format!("program of {}", instruction(other)),
        }));
        all
    };
    match op {
        Op::Input { ty, .. } | Op::Weight { ty, .. } => vec![format!("{name} {}", dtype(&ty.dtype))],
        Op::Const(t) => vec![format!("{name} {}", dtype(&t.dtype()))],
        Op::Unary(u) => vec![format!("{} of {}", u.name(), of(0))],
        Op::Binary(b) => vec![format!("{} of {}", binary(b), of(0))],
        Op::Compare(c) => vec![format!("{} of {}", compare(c), of(0))],
        Op::Select => vec![format!("{name} of {}", of(1))],
        Op::MatMul { transpose_a, transpose_b } => {
            let types = if of(0) == of(1) { of(0).to_owned() } else { format!("{} and {}", of(0), of(1)) };
            vec![format!("{name} {}{}of {types}", flag(*transpose_a, "aT "), flag(*transpose_b, "bT "))]
        }
        Op::Reduce { kind, keep, .. } => {
            vec![format!("{} of {}", reduction(kind), of(0)), format!("{} {}", reduction(kind), flag(*keep, "kept"))]
        }
        Op::LayerNorm { .. } | Op::RmsNorm { .. } => {
            vec![format!("{name} of {}", of(0)), format!("{name} with {} inputs", inputs.len())]
        }
        Op::Attention { causal, scale, positions } => vec![
            format!("{name} of {}", of(0)),
            format!("{name} {}{}of {} inputs", flag(*causal, "causal "), flag(*positions, "positioned "), inputs.len()),
            format!("{name} {}", flag(scale.is_some(), "scaled")),
        ],
        Op::Softmax { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Broadcast { .. }
        | Op::Gather { .. }
        | Op::Put { .. }
        | Op::SegmentSum { .. } => vec![format!("{name} of {}", of(0))],
        Op::SynapseSum { activation: a, axis, sums, .. } => {
            let starts = flag(inputs.len() > 5 + sums, " from something");
            let rank = inputs.first().map_or(0, |x| x.shape.rank());
            vec![format!("{name} of {} along {axis} of {rank}, {sums}{starts}", activation(a))]
        }
        Op::SynapseRatio { activation: a, axis, times } => {
            let rank = inputs.first().map_or(0, |x| x.shape.rank());
            let again = flag(*times > 1, ", several times");
            vec![format!("{name} of {} along {axis} of {rank}", activation(a)), format!("{name}{again}")]
        }
        Op::SynapseGradient { activation: a, axis, of } => {
            let rank = inputs.first().map_or(0, |x| x.shape.rank());
            let what = match of {
                SynapseResult::Sums { sums, .. } => format!("{sums} sums"),
                SynapseResult::Ratio { times } => format!("a ratio{}", flag(*times > 1, ", several times")),
            };
            vec![format!("{name} of {} along {axis} of {rank}", activation(a)), format!("{name} of {what}")]
        }
        Op::GatedCell { batch_last, by_column, .. } => vec![format!(
            "{name} {}{}of {} inputs",
            flag(*batch_last, "batch-last "),
            flag(*by_column, "by column "),
            inputs.len()
        )],
        Op::Cast { dtype: to } => vec![format!("{name} {} to {}", of(0), dtype(to))],
        Op::Quantize { dtype: to } => vec![format!("{name} to {}", dtype(to))],
        Op::Dequantize => vec![format!("{name} {}", of(0))],
        Op::LowBit(format) => {
            vec![
                format!("{name} of {}{}", format.code.name(), flag(format.offsets, " and offsets")),
                format!("{name} by {}", of(1)),
            ]
        }
        Op::RoundRows => vec![format!("{name} of {}", of(0))],
        Op::LowBitMatMul(product) => {
            let rows = flag(product.rounded, " of rounded rows");
            let mut all = vec![format!("{name} of {}{rows}", product.weights.code.name())];
            all.extend(product.then.iter().flat_map(|map| program(map, &product.dtype, product.operands())));
            all
        }
        Op::Scan(scan) => {
            let mut all = vec![format!("{name} along {}{}", scan.axis, flag(scan.reverse, " in reverse"))];
            all.extend((0..scan.states).map(|i| format!("{name} of state {}", of(i))));
            all
        }
        Op::Map { map, dtype: to, also } => {
            let mut all = program(map, to, 0);
            all.extend(also.iter().map(|r| format!("{name} also to {}", dtype(&r.dtype))));
            all
        }
        Op::MatMulMap { transpose_a, transpose_b, map, dtype: to } => {
            let mut all = program(map, to, 2);
            all.push(format!("{name} {}{}of {}", flag(*transpose_a, "aT "), flag(*transpose_b, "bT "), of(0)));
            all
        }
        Op::Custom { .. } => vec![format!("{name} with {} inputs", inputs.len())],
    }
}

/// What a graph has, loops included: kinds of operations, and features.
#[derive(Default)]
struct Found {
    kinds: BTreeSet<&'static str>,
    instructions: BTreeSet<&'static str>,
    features: BTreeSet<String>,
}

impl Found {
    fn add(&mut self, graph: &Graph) {
        for node in graph.nodes() {
            let inputs: Vec<&Type> = node.inputs.iter().map(|v| graph.ty(*v)).collect();
            self.kinds.insert(kind(&node.op));
            self.features.extend(features(&node.op, &inputs));
            match &node.op {
                Op::Scan(scan) => self.add(&scan.body),
                Op::LowBitMatMul(product) => {
                    self.instructions.extend(product.then.iter().flat_map(|map| &map.code).map(instruction));
                }
                Op::Map { map, .. } | Op::MatMulMap { map, .. } => {
                    self.instructions.extend(map.code.iter().map(instruction));
                }
                _ => {}
            }
        }
    }
}

/// Every operation with all that can be said of it, and what it might be given; much of it is not legal.
fn offers() -> Vec<(Op, Vec<Type>)> {
    let ty = |dtype: DType, shape: &[usize]| Type::new(dtype, shape);
    let code = |i: Vec<MapInstr>| Map { code: i };
    let mut all: Vec<(Op, Vec<Type>)> = vec![];
    for d in DType::ALL {
        let x = ty(d, &[2, 3]);
        let list = ty(DType::I32, &[3]);
        all.push((Op::Input { name: "x".into(), ty: x.clone() }, vec![]));
        all.push((Op::Weight { name: "w".into(), ty: x.clone() }, vec![]));
        all.push((Op::Const(Tensor::zeros(d, &[2]).unwrap()), vec![]));
        all.extend(Unary::ALL.map(|u| (Op::Unary(u), vec![x.clone()])));
        all.extend(Binary::ALL.map(|b| (Op::Binary(b), vec![x.clone(); 2])));
        all.extend(Compare::ALL.map(|c| (Op::Compare(c), vec![x.clone(); 2])));
        all.push((Op::Select, vec![ty(DType::Bool, &[2, 3]), x.clone(), x.clone()]));
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let map = code(vec![MapInstr::Input(0)]);
            all.push((Op::MatMul { transpose_a, transpose_b }, vec![ty(d, &[3, 3]); 2]));
            let op = Op::MatMulMap { transpose_a, transpose_b, map, dtype: DType::F32 };
            all.push((op, vec![ty(d, &[3, 3]); 2]));
        }
        let plain = Op::MatMul { transpose_a: false, transpose_b: false };
        all.push((plain.clone(), vec![ty(d, &[3, 3]), ty(DType::F32, &[3, 3])]));
        all.push((plain, vec![ty(DType::F32, &[3, 3]), ty(d, &[3, 3])]));
        for (kind, keep) in REDUCE.into_iter().flat_map(|k| [(k, false), (k, true)]) {
            all.push((Op::Reduce { kind, axes: vec![1], keep }, vec![x.clone()]));
        }
        all.push((Op::Softmax { axis: 1 }, vec![x.clone()]));
        for n in 0..=3 {
            let inputs = [x.clone(), ty(d, &[3]), ty(d, &[3])];
            all.push((Op::LayerNorm { eps: Float(0.1) }, inputs[..n].to_vec()));
            all.push((Op::RmsNorm { eps: Float(0.1) }, inputs[..n].to_vec()));
        }
        for (causal, scale) in [(false, None), (true, None), (false, Some(Float(0.5))), (true, Some(Float(0.5)))] {
            for n in 3..=4 {
                let four = ty(d, &[1, 1, 2, 2]);
                all.push((Op::Attention { causal, scale, positions: false }, vec![four.clone(); n]));
                let last = [vec![four; n], vec![ty(DType::I32, &[2])]].concat();
                all.push((Op::Attention { causal, scale, positions: true }, last));
            }
        }
        all.push((Op::Reshape { shape: [6].into() }, vec![x.clone()]));
        all.push((Op::Transpose { perm: vec![1, 0] }, vec![x.clone()]));
        all.push((Op::Slice { axis: 1, start: Dim::fixed(0), end: Dim::fixed(2) }, vec![x.clone()]));
        all.push((Op::Pad { axis: 1, before: Dim::fixed(0), after: Dim::fixed(2) }, vec![x.clone()]));
        all.push((Op::Concat { axis: 1 }, vec![x.clone(); 2]));
        all.push((Op::Broadcast { shape: [2, 2, 3].into() }, vec![x.clone()]));
        all.push((Op::Gather { axis: 1 }, vec![x.clone(), list.clone()]));
        all.push((Op::Put { axis: 1 }, vec![x.clone(), x.clone(), list.clone()]));
        all.push((Op::SegmentSum { axis: 1, segments: Dim::fixed(2) }, vec![x.clone(), list]));
        all.extend(DType::ALL.map(|to| (Op::Cast { dtype: to }, vec![x.clone()])));
        let (scale, zero) = (ty(DType::F32, &[]), ty(DType::I32, &[]));
        all.push((Op::Quantize { dtype: d }, vec![ty(DType::F32, &[3]), scale.clone(), zero.clone()]));
        all.push((Op::Dequantize, vec![x.clone(), scale, zero]));
        all.push((Op::RoundRows, vec![x.clone()]));
        for (code, offsets) in Code::ALL.into_iter().flat_map(|code| [(code, false), (code, true)]) {
            let weights = LowBit { code, len: 3, block: 2, offsets };
            let (codes, scales) = (ty(DType::U8, &[2, code.row_bytes(3)]), ty(d, &[2, 2]));
            let parts = if offsets { vec![codes, scales.clone(), scales] } else { vec![codes, scales] };
            all.push((Op::LowBit(weights), parts.clone()));
            for rounded in [false, true] {
                let product = LowBitMatMul { weights, rounded, then: None, dtype: DType::F32 };
                all.push((Op::LowBitMatMul(Box::new(product)), [vec![x.clone()], parts.clone()].concat()));
            }
        }
        // The examples of the case list, which has registered them.
        all.push((Op::Custom { name: "example_bump".into() }, vec![x.clone(); 2]));
        all.push((Op::Custom { name: "example_half_of_all".into() }, vec![x.clone(); 8]));
        for (axis, reverse) in [(0, false), (0, true), (1, false), (1, true), (2, false)] {
            let mut b = GraphBuilder::new();
            let (s, e) = (b.input("s", d, [2, 3]).unwrap(), b.input("e", d, [2, 3]).unwrap());
            b.output("s_next", s).unwrap();
            b.output("y", e).unwrap();
            let scan = Scan { body: b.build().unwrap().into(), states: 1, sequences: 1, axis, reverse };
            let sequence = if axis == 0 { [4, 2, 3] } else { [2, 4, 3] };
            all.push((Op::Scan(Box::new(scan)), vec![x.clone(), ty(d, &sequence)]));
        }
        // To each type, and from each.
        let last = [MapInstr::Input(0), MapInstr::Trunc(0), MapInstr::Const(Float(1.0)), MapInstr::Select(0, 1, 2)];
        all.push((Op::map(code(last.to_vec()), d), vec![ty(DType::F32, &[3])]));
        all.push((Op::map(code(last.to_vec()), DType::F32), vec![x.clone()]));
        for at in [1, 4] {
            let also = vec![MapResult { at, dtype: d }];
            let op = Op::Map { map: code(last.to_vec()), dtype: DType::F32, also };
            all.push((op, vec![ty(DType::F32, &[3])]));
        }
        let matrices = vec![ty(DType::F32, &[3, 3]); 2];
        let op = |dtype: DType| Op::MatMulMap {
            transpose_a: false,
            transpose_b: false,
            map: code(vec![MapInstr::Input(0), MapInstr::Input(1)]),
            dtype,
        };
        all.push((op(d), [matrices.clone(), vec![ty(DType::F32, &[3])]].concat()));
        all.push((op(DType::F32), [matrices, vec![ty(d, &[3])]].concat()));
    }
    for instruction in (Unary::ALL.map(|u| MapInstr::Unary(u, 0)).into_iter())
        .chain(Binary::ALL.map(|b| MapInstr::Binary(b, 0, 0)))
        .chain(Compare::ALL.map(|c| MapInstr::Compare(c, 0, 0)))
    {
        let map = code(vec![MapInstr::Input(0), instruction]);
        all.push((Op::map(map, DType::F32), vec![ty(DType::F32, &[3])]));
    }
    for activation in Activation::ALL {
        for (shape, axis) in [(&[3usize] as &[usize], 0), (&[3, 3], 0), (&[3, 3], 1), (&[3, 3, 3], 2)] {
            let (x, list, numbers) = (ty(DType::F32, shape), ty(DType::I32, &[5]), ty(DType::F32, &[5]));
            let tables = |sums: usize| [vec![x.clone(), list.clone(), list.clone()], vec![numbers.clone(); 2 + sums]];
            for sums in 0..=3 {
                let op = Op::SynapseSum { activation, axis, sums, segments: 3 };
                all.push((op.clone(), tables(sums).concat()));
                all.push((op, [tables(sums).concat(), vec![x.clone(); sums]].concat()));
            }
            for times in 0..=2 {
                let op = Op::SynapseRatio { activation, axis, times };
                all.push((op, [tables(2).concat(), vec![x.clone(); 3]].concat()));
                let op = Op::SynapseGradient { activation, axis, of: SynapseResult::Ratio { times } };
                all.push((op, [tables(2).concat(), vec![x.clone(); 4]].concat()));
            }
            for sums in 0..=3 {
                let op = Op::SynapseGradient { activation, axis, of: SynapseResult::Sums { sums, segments: 3 } };
                all.push((op, [tables(sums).concat(), vec![x.clone(); sums]].concat()));
            }
        }
    }
    for (batch_last, by_column) in [(false, false), (false, true), (true, false), (true, true)] {
        let op = Op::GatedCell { batch_last, by_column, heads: [0, 2, 4] };
        let x = ty(DType::F32, if batch_last { &[5, 4] } else { &[4, 5] });
        let weights = ty(DType::F32, if by_column { &[6, 5] } else { &[5, 6] });
        let bias = ty(DType::F32, if batch_last { &[6, 1] } else { &[6] });
        all.push((op.clone(), vec![x.clone(), weights.clone()]));
        all.push((op, vec![x, weights, bias]));
    }
    all
}

/// As the CPU has them, which has a kernel for everything that passes make.
fn options() -> PassOptions {
    PassOptions { low_bit: true, ..PassOptions::default() }
}

#[test]
fn every_operation_has_a_case_with_every_kind_flag_and_type_that_is_legal() {
    let mut found = Found::default();
    for case in cases::all() {
        found.add(&case.graph);
        let (optimized, _) = pass::optimize(&case.graph, &options()).unwrap();
        found.add(&optimized);
    }
    assert_eq!(found.instructions.len(), INSTRUCTIONS.len(), "programs have only {:?}", found.instructions);
    let missing: Vec<&&str> = KINDS.iter().filter(|kind| !found.kinds.contains(**kind)).collect();
    assert!(missing.is_empty(), "no case of {missing:?}");

    let (mut legal, mut offered, mut refused) = (BTreeSet::new(), BTreeSet::new(), 0);
    for (op, inputs) in offers() {
        let inputs: Vec<&Type> = inputs.iter().collect();
        offered.insert(kind(&op));
        match op.infer(&inputs) {
            Ok(_) => legal.extend(features(&op, &inputs)),
            Err(_) => refused += 1,
        }
    }
    assert_eq!(offered.len(), KINDS.len(), "only {offered:?} are offered anything");
    assert!(legal.len() > 250 && refused > 100, "{} legal, {refused} refused", legal.len());
    let missing: Vec<&String> = legal.iter().filter(|feature| !found.features.contains(*feature)).collect();
    assert!(missing.is_empty(), "{} of {} have no case: {missing:#?}", missing.len(), legal.len());
}

/// Cases that have an operation as built try it out; those in which a pass makes it try out the pass.
#[test]
fn what_only_passes_make_is_also_made_by_passes() {
    let mut made: BTreeSet<&str> = BTreeSet::new();
    for case in cases::all() {
        let (mut before, mut after) = (Found::default(), Found::default());
        before.add(&case.graph);
        after.add(&pass::optimize(&case.graph, &options()).unwrap().0);
        made.extend(after.kinds.difference(&before.kinds));
        let several = |found: &Found| found.features.contains("map also to f32");
        if several(&after) && !several(&before) {
            made.insert("map of several results");
        }
    }
    for kind in ["map", "map of several results", "matmul_map", "synapse_sum", "synapse_ratio", "low_bit_matmul"] {
        assert!(made.contains(kind), "no case of which a pass makes {kind}: {made:?}");
    }
}
