//! The operations: a small closed set, so that every `match` over it lists what a new one must touch.
//!
//! An operation's meaning is its code in `reference`; its types are in `infer.rs`, its cost in `cost.rs`, its
//! gradient in `grad/table.rs`. `docs/adding-an-op.md` walks through an addition.

mod cost;
pub mod custom;
mod float;
mod infer;
pub mod low_bit;
mod map;
mod unary;

pub(crate) use cost::visible_pairs;
pub use cost::{Cost, PerElement};
pub use custom::Custom;
pub use float::Float;
pub use low_bit::{Code, LowBit, LowBitMatMul};
pub use map::{MAX_PROGRAM, MAX_PROGRAM_INPUTS, MAX_PROGRAM_OPERANDS, Map, MapInstr, MapResult};
pub use unary::Unary;

use crate::dtype::DType;
use crate::graph::Graph;
use crate::shape::{Dim, Shape};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Element type and shape of a value.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Shape,
}
impl Type {
    /// `dtype` elements in `shape`.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Type {
        Type { dtype, shape: shape.into() }
    }
}
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Two values in, stretched to one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binary {
    /// a + b
    Add,
    /// a − b
    Sub,
    /// a · b
    Mul,
    /// a / b (integers: toward zero, and 0 where b is 0)
    Div,
    /// the smaller; NaN where either is NaN
    Min,
    /// the larger; NaN where either is NaN
    Max,
    /// aᵇ, floats only
    Pow,
    /// both, of truth values
    And,
    /// either, of truth values
    Or,
}
impl Binary {
    /// Every binary operation.
    pub const ALL: [Binary; 9] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Min,
        Binary::Max,
        Binary::Pow,
        Binary::And,
        Binary::Or,
    ];
    /// Whether its result is one of the operands or a truth value, so that nothing is rounded.
    pub fn is_exact(self) -> bool {
        matches!(self, Binary::Min | Binary::Max | Binary::And | Binary::Or)
    }
    /// Whether `a op b` is `b op a`.
    pub fn commutes(self) -> bool {
        !matches!(self, Binary::Sub | Binary::Div | Binary::Pow)
    }
}

/// Two values in, truth values out. With NaN only `Ne` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// a = b
    Eq,
    /// a ≠ b
    Ne,
    /// a < b
    Lt,
    /// a ≤ b
    Le,
    /// a > b
    Gt,
    /// a ≥ b
    Ge,
}
impl Compare {
    /// Every comparison.
    pub const ALL: [Compare; 6] = [Compare::Eq, Compare::Ne, Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge];
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// their sum (0 of none)
    Sum,
    /// their mean (NaN of none)
    Mean,
    /// the largest (−∞ of none); NaN if any is NaN
    Max,
    /// the smallest (+∞ of none); NaN if any is NaN
    Min,
}

/// What a synapse does to its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// nothing
    Identity,
    /// 1/(1 + e⁻ˣ)
    Sigmoid,
    /// tanh x
    Tanh,
}
impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 3] = [Activation::Identity, Activation::Sigmoid, Activation::Tanh];

    /// The elementwise operation that it is, if it does anything.
    pub fn unary(self) -> Option<Unary> {
        match self {
            Activation::Identity => None,
            Activation::Sigmoid => Some(Unary::Sigmoid),
            Activation::Tanh => Some(Unary::Tanh),
        }
    }
}

/// A loop over the steps of a sequence.
///
/// Inputs: `states` initial states, then `sequences` sequences, then values that stay the same. The body takes one step:
/// the states, one element of each sequence (its `axis` removed), the fixed values; and gives the new states, then one
/// element of each output sequence. Outputs: the final states, then the output sequences (with `axis` put back).
/// With no step at all the final states are the initial ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scan {
    /// One step; its inputs and outputs in the order above.
    pub body: Arc<Graph>,
    /// How many states.
    pub states: usize,
    /// How many input sequences; at least 1, since they give the number of steps.
    pub sequences: usize,
    /// Which axis of every sequence is time: 0, or 1 behind a batch axis.
    pub axis: usize,
    /// From the last step to the first; output sequences keep the order of the input.
    pub reverse: bool,
}

/// An operation. Shapes are those of `infer.rs`; meanings those of the reference backend.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A value that a run supplies.
    Input {
        /// Its name in a run.
        name: String,
        /// Its type.
        ty: Type,
    },
    /// A trained value that comes with the graph.
    Weight {
        /// Its name in the file.
        name: String,
        /// Its type, without symbols.
        ty: Type,
    },
    /// A literal.
    Const(Tensor),
    /// A unary operation.
    Unary(Unary),
    /// A binary operation with broadcasting.
    Binary(Binary),
    /// A comparison with broadcasting.
    Compare(Compare),
    /// (condition, a, b): a where the condition holds, else b, with broadcasting.
    Select,
    /// Matrix product of the last two axes; leading axes broadcast. Accumulates in at least `f32`. Both sides have one type,
    /// or one of them is `f32` and the other a half type: then the result is `f32`.
    MatMul {
        /// Whether the left operand is stored with its last two axes swapped.
        transpose_a: bool,
        /// Whether the right operand is stored with its last two axes swapped.
        transpose_b: bool,
    },
    /// A reduction over axes.
    Reduce {
        /// How to combine.
        kind: Reduction,
        /// Which axes, ascending.
        axes: Vec<usize>,
        /// Whether they stay, with size 1.
        keep: bool,
    },
    /// eˣ / Σ eˣ along an axis.
    Softmax {
        /// The axis.
        axis: usize,
    },
    /// (x − mean)/√(variance + ε) along the last axis, times an optional second input, plus an optional third. Kernels sum
    /// squares in `f32`, so numbers beyond about 2·10¹⁹ overflow, here and in the root mean square.
    LayerNorm {
        /// ε
        eps: Float,
    },
    /// x/√(mean(x²) + ε) along the last axis, times an optional second input.
    RmsNorm {
        /// ε
        eps: Float,
    },
    /// Scaled-dot-product attention: (queries [B, H, L, D], keys [B, G, S, D], values [B, G, S, E], optional additive
    /// mask that stretches to [B, H, L, S]) → [B, H, L, E]. H is a multiple of G: query heads share key heads in order.
    /// A row that sees no key gives 0.
    Attention {
        /// Query i sees keys up to i + S − L.
        causal: bool,
        /// What to multiply scores by; 1/√D if absent.
        scale: Option<Float>,
        /// Whether there is one more input, the last: `i32 [L]`, the last key that each query sees. Keys after it are not
        /// read, so that K and V may have room for keys to come. Not together with `causal`.
        #[serde(default, skip_serializing_if = "is_false")]
        positions: bool,
    },
    /// The same elements in another shape.
    Reshape {
        /// The shape.
        shape: Shape,
    },
    /// Axes in another order: output axis i is input axis `perm[i]`.
    Transpose {
        /// The order.
        perm: Vec<usize>,
    },
    /// Elements `start..end` along an axis.
    Slice {
        /// The axis.
        axis: usize,
        /// The first.
        start: Dim,
        /// One past the last.
        end: Dim,
    },
    /// Zeros put before and after along an axis (the gradient of a slice).
    Pad {
        /// The axis.
        axis: usize,
        /// How many before.
        before: Dim,
        /// How many after.
        after: Dim,
    },
    /// Inputs one after the other along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Stretched to a shape.
    Broadcast {
        /// The shape.
        shape: Shape,
    },
    /// (data, `i32` indices): the elements at the indices along an axis; the indices' shape takes the axis' place.
    Gather {
        /// The axis.
        axis: usize,
    },
    /// (data, part, `i32` indices, ascending): the data, with the elements at the indices along an axis replaced by those
    /// of the part, which has as many there as there are indices. Where the data is a state and the result its next
    /// value, nothing else is copied.
    Put {
        /// The axis.
        axis: usize,
    },
    /// (data, `i32` segment of each element along an axis): sums by segment; the axis gets size `segments`.
    SegmentSum {
        /// The axis.
        axis: usize,
        /// How many segments.
        segments: Dim,
    },
    /// Sums over sparse synapses (made by a pass). Inputs: x of one or two axes, then for each synapse e its source
    /// along `axis` of x and its destination (`i32`), a scale, a shift, and `sums` weights c₁ …, all of one length.
    /// Output k is like x with `segments` elements along `axis`: element d is the sum of `cₖ[e] · act(scale[e] ·
    /// x[source e] + shift[e])` over the e with destination d. `sums` further inputs, if there are any, are what the
    /// sums start from; they broadcast to the result's shape. Backends may need all inputs except x and these to be
    /// known before the run.
    SynapseSum {
        /// What a synapse does to its input.
        activation: Activation,
        /// The axis.
        axis: usize,
        /// How many sums over the same activations: 1 or 2.
        sums: usize,
        /// How many destinations.
        segments: usize,
    },
    /// One step of the neurons of a leaky network (made by a pass): `(p · x + q + s₂) / (r + s₁)`, where s₁ and s₂ are
    /// what `SynapseSum` gives from the first seven inputs. p, q and r follow, and stretch to the shape of x, which is
    /// the result's too. With `times` above 1 the step is repeated, each time with the result as x, as a solver unfolds
    /// a step.
    SynapseRatio {
        /// What a synapse does to its input.
        activation: Activation,
        /// The axis.
        axis: usize,
        /// How many times the step is taken, at least once.
        #[serde(default = "once", skip_serializing_if = "is_once")]
        times: usize,
    },
    /// The gradients of `SynapseSum` without starts, or of `SynapseRatio` (made by differentiation). Inputs: those of the
    /// operation, then the gradient of each of its results. Outputs: the gradient of x; those of scales, shifts and each
    /// list of weights, summed over rows, with one number for each synapse; and of a ratio, those of p, q and r in the
    /// shape of x. With y = scale · x\[source\] + shift, a = act(y) and the gradients hₖ of the sums at the destination,
    /// a synapse adds `b = act′(y) · (c₁·h₁ + c₂·h₂)` times its scale to the gradient of x\[source\], b times x\[source\]
    /// to that of its scale, b to that of its shift, and a·hₖ to that of its weight cₖ. For a ratio y = above / below with
    /// the gradient g, `h₂ = g / below` and `h₁ = −h₂ · y`; the gradient of x begins with p · h₂, and those of p, q and r
    /// are h₂ · x, h₂ and h₁, summed over all times.
    SynapseGradient {
        /// What a synapse does to its input.
        activation: Activation,
        /// The axis.
        axis: usize,
        /// What is differentiated.
        of: SynapseResult,
    },
    /// The cell of a gated recurrent network (made by a pass): the columns of one product are three heads a, b and t, and
    /// the result is `tanh a + σ(t) · (tanh b − tanh a)`. Inputs: x `[rows, inputs]`, weights `[inputs, 3·units]`, and
    /// optionally one number for each of the 3·units columns, which is added to the products.
    GatedCell {
        /// Whether x is `[inputs, rows]` and the result `[units, rows]`; the numbers to add are then `[3·units, 1]`.
        batch_last: bool,
        /// Whether the weights are `[3·units, inputs]`.
        by_column: bool,
        /// The column at which each of a, b and t begins.
        heads: [usize; 3],
    },
    /// Another element type: floats round to nearest even; float to integer truncates and saturates, NaN is 0; integer
    /// to integer keeps the low bits; to truth is "not 0".
    Cast {
        /// The type.
        dtype: DType,
    },
    /// (x, scale, zero point): round(x / scale) + zero point, saturated to the type; NaN gives the zero point.
    Quantize {
        /// `i8` or `u8`.
        dtype: DType,
    },
    /// (q, scale, zero point): (q − zero point) · scale, as `f32`.
    Dequantize,
    /// (codes, scales, offsets if the format has them): the numbers that they stand for, as `f32`; see [`LowBit`].
    LowBit(LowBit),
    /// Each row (along the last axis) rounded to multiples of 1/127 of its largest absolute value, as `f32`: what a product
    /// with 8-bit values computes with. See [`low_bit::Rounding`]. A row with infinity or NaN becomes NaN. Its gradient
    /// is that of the values themselves.
    RoundRows,
    /// Rows times a matrix of low-bit weights, each of whose rows is a column of the product (made by a pass). Inputs: x
    /// `[…, len]`, then codes `[columns, …]`, scales and offsets as in [`Op::LowBit`], then the program's inputs from 1 on.
    ///
    /// Where rows are rounded, the sum of a block, of at most [`low_bit::LONGEST_SUM`] numbers at a time, is computed in
    /// integers. In `f32`, with one rounding for each line, an element is
    ///
    /// ```text
    /// sum = fma(Σ (c − centre)·q, scale, sum)                        without offsets
    /// sum = fma(Σ c·q, scale, fma(Σ q, offset, sum))                 with offsets
    /// element = sum · step
    /// ```
    LowBitMatMul(Box<LowBitMatMul>),
    /// The loop.
    Scan(Box<Scan>),
    /// A fused elementwise program (made by a pass). Its first result is the program's last value; the others, of the same
    /// shape, are values of the program too.
    Map {
        /// The program.
        map: Map,
        /// The first result's element type.
        dtype: DType,
        /// Further results.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        also: Vec<MapResult>,
    },
    /// A matrix product whose result passes through an elementwise program while in cache (made by a pass). Inputs: a,
    /// b, then the program's inputs from 1 on; its input 0 is the product.
    MatMulMap {
        /// As in `MatMul`.
        transpose_a: bool,
        /// As in `MatMul`.
        transpose_b: bool,
        /// The program.
        map: Map,
        /// The result's element type.
        dtype: DType,
    },
    /// A custom operation. It holds only the name under which the operation is registered, with its types and definition:
    /// see [`Custom`].
    Custom {
        /// The name.
        name: String,
    },
}

/// What synapses give, to differentiate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SynapseResult {
    /// Sums: how many, and of how many destinations.
    Sums {
        /// 1 or 2.
        sums: usize,
        /// How many destinations.
        segments: usize,
    },
    /// A ratio.
    Ratio {
        /// How many times it is taken.
        times: usize,
    },
}

impl SynapseResult {
    /// How many sums there are.
    pub fn sums(self) -> usize {
        if let SynapseResult::Sums { sums, .. } = self { sums } else { 2 }
    }
    /// The slots of the gradients of its lists, which are sums over rows.
    pub fn lists(self) -> std::ops::Range<usize> {
        1..3 + self.sums()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn once() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_once(times: &usize) -> bool {
    *times == 1
}

impl Op {
    /// A program of one result.
    pub fn map(map: Map, dtype: DType) -> Op {
        Op::Map { map, dtype, also: vec![] }
    }

    /// For an attention with so many inputs: the places of its mask and of its positions among them.
    pub fn attention_extras(&self, inputs: usize) -> (Option<usize>, Option<usize>) {
        let positions = usize::from(matches!(self, Op::Attention { positions: true, .. }));
        ((inputs > 3 + positions).then_some(3), (positions > 0).then(|| inputs - 1))
    }

    /// For sums over synapses: how many of the inputs are x and the tables. Inputs after those have one number for each
    /// destination.
    pub(crate) fn synapse_tables(&self) -> Option<usize> {
        match self {
            Op::SynapseSum { sums, .. } => Some(5 + sums),
            Op::SynapseRatio { .. } => Some(7),
            Op::SynapseGradient { of, .. } => Some(5 + of.sums()),
            _ => None,
        }
    }

    /// Its name in text, as the builder's method is called.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Weight { .. } => "weight",
            Op::Const(_) => "const",
            Op::Unary(u) => u.name(),
            Op::Binary(b) => b.name(),
            Op::Compare(c) => c.name(),
            Op::Select => "select",
            Op::MatMul { .. } => "matmul",
            Op::Reduce { kind, .. } => kind.name(),
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
    }

    /// Whether an operation has this name.
    pub fn is_name(text: &str) -> bool {
        const OTHERS: &str = "input weight const select matmul softmax layer_norm rms_norm attention reshape transpose \
                              slice pad concat broadcast gather put segment_sum synapse_sum synapse_ratio synapse_gradient \
                              gated_cell cast quantize dequantize low_bit round_rows low_bit_matmul scan map matmul_map custom";
        let lists = [Unary::NAMES, Binary::NAMES, Compare::NAMES, Reduction::NAMES];
        lists.iter().any(|names| names.contains(&text)) || OTHERS.split(' ').any(|name| name == text)
    }

    /// Whether each output element depends only on the input elements at its own (stretched) position.
    pub fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Op::Unary(_)
                | Op::Binary(_)
                | Op::Compare(_)
                | Op::Select
                | Op::Cast { .. }
                | Op::Quantize { .. }
                | Op::Dequantize
                | Op::Map { .. }
        ) || matches!(self, Op::Custom { name } if custom::is_elementwise(name))
    }

    /// Whether it only names a value that is already there, so that running it takes no work.
    pub fn is_source(&self) -> bool {
        matches!(self, Op::Input { .. } | Op::Weight { .. } | Op::Const(_))
    }
}

macro_rules! snake_names {
    ($($ty:ident { $($variant:ident => $name:literal),* $(,)? })*) => { $(
        impl $ty {
            /// The names of all.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Its name in text.
            pub fn name(self) -> &'static str {
                match self { $($ty::$variant => $name),* }
            }
        }
    )* };
}
snake_names! {
    Binary {
        Add => "add", Sub => "sub", Mul => "mul", Div => "div", Min => "min", Max => "max", Pow => "pow", And => "and",
        Or => "or",
    }
    Compare { Eq => "eq", Ne => "ne", Lt => "lt", Le => "le", Gt => "gt", Ge => "ge" }
    Activation { Identity => "identity", Sigmoid => "sigmoid", Tanh => "tanh" }
    Reduction { Sum => "sum", Mean => "mean", Max => "max", Min => "min" }
}
