//! A kernel call as a type: which kernel, for which sizes and element types, and with which choices.
//!
//! Prices, advice and reports match on these types. Their text is for people, and nothing reads it.

use crate::dtype::DType;
use crate::op::{Activation, Code, Map, MapResult, PerElement, Reduction};
use serde::Serialize;
use std::fmt;

/// The kernel of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kernel {
    /// A matrix product, with what is done to its result while that is in cache.
    Product(Product),
    /// Three heads of one product and the gate between them.
    GatedCell(GatedCell),
    /// Sums over synapses, or their ratio.
    Synapses(Synapses),
    /// Sums over synapses whose numbers are values of the run, or their gradients.
    WiredSynapses(WiredSynapses),
    /// An elementwise program.
    Map(Elementwise),
    /// A loop over time. Its body is a plan of its own.
    Scan(Scan),
    /// Scaled dot-product attention.
    Attention(Attention),
    /// A softmax over contiguous rows.
    Softmax(Rows),
    /// A normalization of contiguous rows.
    Norm(Norm),
    /// A reduction of the middle one of three axes.
    Reduce(Reduce),
    /// Rows of a table, by index.
    Gather(Gather),
    /// Sums of rows by the index of their segment.
    SegmentSum(SegmentSum),
    /// Bytes that are moved, repeated or set, without arithmetic.
    Move(Move),
    /// Exact arithmetic on integers, element by element.
    Integer(Integer),
    /// A kernel that only its backend knows.
    Other(Other),
}

/// Which axis of a batch's values is the batch, and with it what fills the lanes of a vector register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchAxis {
    /// The first: lanes are units, columns or destinations of one row.
    First,
    /// The last: lanes are rows of the batch.
    Last,
}

/// How a matrix of weights is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// As it was given, element by element.
    Dense,
    /// Packed before the run into panels of a few registers' columns.
    Panels,
    /// The same in few bits, with scales.
    LowBit {
        /// How its numbers are coded.
        code: Code,
        /// Numbers that share a scale.
        block: usize,
        /// Whether rows are rounded to 8 bits, so that the product is in integers.
        rounded: bool,
        /// Whether blocks of weights become `f32` first, for the tiles of other products: so for many rows of `f32`.
        widened: bool,
        /// Bytes of codes, scales and offsets.
        bytes: usize,
    },
}

/// A matrix product: `batch` times m × k by k × n.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Product {
    /// Products that differ in both operands.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Elements of a row of the left operand.
    pub k: usize,
    /// Element type of the left operand.
    pub left: DType,
    /// Element type of the right operand.
    pub right: DType,
    /// Element type of the result.
    pub out: DType,
    /// How the right operand is kept.
    pub format: Format,
    /// Whether one number for each row or column is added.
    pub bias: bool,
    /// What is done to each element of the result.
    pub then: Option<MapWork>,
    /// Threads that share it.
    pub threads: usize,
}

impl Kernel {
    /// Whether it is a product in integers of 8 bits.
    pub fn is_integer_product(&self) -> bool {
        matches!(self, Kernel::Product(Product { format: Format::LowBit { rounded: true, .. }, .. }))
    }
}

impl Product {
    /// Whether everything it touches is `f32`.
    pub fn is_f32(&self) -> bool {
        [self.left, self.right, self.out].iter().all(|t| *t == DType::F32)
    }
    /// Bytes of the right operand.
    pub fn weight_bytes(&self) -> usize {
        if let Format::LowBit { bytes, .. } = self.format {
            return bytes;
        }
        self.n.saturating_mul(self.k).saturating_mul(self.right.size())
    }
}

/// A gated cell: three products of `inputs` values with `units` columns each, then tanh a + σ(t) · (tanh b − tanh a).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GatedCell {
    /// Rows.
    pub rows: usize,
    /// Units, each with three heads.
    pub units: usize,
    /// Values that a head multiplies.
    pub inputs: usize,
    /// Weights of 0 that are not multiplied.
    pub skipped: usize,
    /// What fills the lanes.
    pub batch: BatchAxis,
}

/// Sums over synapses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Synapses {
    /// Rows, each with a value for every source.
    pub rows: usize,
    /// Synapses.
    pub count: usize,
    /// Values of a row that they read.
    pub sources: usize,
    /// Sums of a destination.
    pub sums: usize,
    /// Destinations.
    pub destinations: usize,
    /// What a synapse does to what it reads.
    pub activation: Activation,
    /// What fills the lanes.
    pub batch: BatchAxis,
    /// Registers of synapses that a row takes, where destinations fill the lanes.
    pub rounds: Option<Rounds>,
    /// Values that the sums start from.
    pub starts: usize,
    /// How many times the ratio of the two sums is applied, each time to its own result; 0 where the sums themselves
    /// are the result.
    pub ratios: usize,
}

/// Sums over synapses whose numbers are values of the run, or their gradients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WiredSynapses {
    /// Rows, each with a value for every source.
    pub rows: usize,
    /// Synapses.
    pub count: usize,
    /// Values of a row that they read.
    pub sources: usize,
    /// Sums of a destination.
    pub sums: usize,
    /// Destinations.
    pub destinations: usize,
    /// What a synapse does to what it reads.
    pub activation: Activation,
    /// Where rows are the last axis. They fill the lanes in either case.
    pub batch: BatchAxis,
    /// How many times the ratio of the two sums is applied, each time to its own result; 0 for the sums themselves.
    pub ratios: usize,
    /// Whether it is the gradient.
    pub gradient: bool,
}

/// Registers of synapses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rounds {
    /// All of them.
    pub all: usize,
    /// How many of these gather their values from memory.
    pub gathered: usize,
}

/// What an elementwise program does to one element.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapWork {
    /// Everything that is computed.
    pub operations: usize,
    /// How many of these are exponentials, logarithms and the like.
    pub functions: usize,
    /// How many of these are divisions and square roots.
    pub divisions: usize,
    /// The program as text, if it is short enough for a line.
    pub text: Option<String>,
}

/// The longest program that is written out.
const MOST_TEXT: usize = 40;

impl MapWork {
    /// The work of a program whose results are its last value and those of `also`.
    pub fn of(map: &Map, also: &[MapResult]) -> MapWork {
        let PerElement { operations, functions, divisions } = map.per_element();
        let text = Some(map.text(also)).filter(|text| text.chars().count() <= MOST_TEXT);
        MapWork { operations, functions, divisions, text }
    }
}

/// An elementwise program over whole results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Elementwise {
    /// Elements of a result.
    pub elements: usize,
    /// Element types of the operands.
    pub inputs: Vec<DType>,
    /// Element types of the results.
    pub outs: Vec<DType>,
    /// What is done to each element.
    pub work: MapWork,
}

impl Elementwise {
    /// Whether everything it touches is `f32`.
    pub fn is_f32(&self) -> bool {
        self.inputs.iter().chain(&self.outs).all(|t| *t == DType::F32)
    }
}

/// A loop over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scan {
    /// Steps.
    pub steps: usize,
    /// Blocks of rows, where rows are independent.
    pub blocks: Option<Blocks>,
    /// What fills the lanes in the body.
    pub batch: BatchAxis,
    /// Results that stay batch-last, since only other loops with the same blocks read them.
    pub passed: usize,
    /// The bytes of these.
    pub passed_bytes: usize,
}

/// How a loop's rows are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Blocks {
    /// Rows in all.
    pub rows: usize,
    /// Rows of a block; the last one may have fewer.
    pub block_rows: usize,
    /// Threads that take blocks at the same time.
    pub threads: usize,
}

/// Attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Queries.
    pub queries: usize,
    /// Keys.
    pub keys: usize,
    /// Width of a query and a key.
    pub dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Pairs of a query and a key that a head looks at.
    pub pairs: usize,
    /// Whether a mask is added to the scores.
    pub masked: bool,
}

/// Contiguous rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rows {
    /// How many.
    pub rows: usize,
    /// Elements of a row.
    pub len: usize,
}

impl Rows {
    /// Elements of all rows.
    pub fn elements(&self) -> usize {
        self.rows.saturating_mul(self.len)
    }
}

/// A normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Norm {
    /// By mean and variance (layer norm), or by the mean square alone.
    pub centred: bool,
    /// Its rows.
    #[serde(flatten)]
    pub rows: Rows,
}

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reduce {
    /// How elements are combined.
    pub by: Reduction,
    /// Sizes before, along and after the axis that is reduced.
    pub shape: [usize; 3],
    /// Element type.
    pub dtype: DType,
}

/// Rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gather {
    /// Indices.
    pub count: usize,
    /// Rows of the table.
    pub of: usize,
}

/// Sums by segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentSum {
    /// Rows that are summed.
    pub len: usize,
    /// Segments.
    pub segments: usize,
    /// Element type.
    pub dtype: DType,
}

/// Bytes that are moved, repeated or set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "move", rename_all = "snake_case")]
pub enum Move {
    /// A copy of a view of another value.
    Copy {
        /// The operation that made the view.
        of: String,
    },
    /// Axes in another order.
    Transpose {
        /// For each axis of the result, the axis of the operand.
        axes: Vec<usize>,
    },
    /// One value many times.
    Broadcast,
    /// A part.
    Slice {
        /// Along this axis.
        axis: usize,
    },
    /// A copy of a value into the concatenation that contains it.
    Join {
        /// Along this axis.
        axis: usize,
    },
    /// An operand that is broadcast in memory to its result's size.
    Stretch,
    /// Zeros.
    Zero,
    /// A copy of a value into its place between zeros.
    IntoPadding,
    /// A copy of elements to given places of another value.
    Put {
        /// Along this axis.
        axis: usize,
    },
    /// A copy of a result into an output's memory.
    ToOutput,
}

/// Exact arithmetic on integers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Integer {
    /// The operation.
    pub operation: String,
}

/// A kernel that only its backend knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Other {
    /// Its name.
    pub name: String,
}

impl Kernel {
    /// A kernel that only its backend knows, by its name.
    pub fn other(name: impl Into<String>) -> Kernel {
        Kernel::Other(Other { name: name.into() })
    }
}

impl fmt::Display for BatchAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BatchAxis::First => "batch-first",
            BatchAxis::Last => "batch-last",
        })
    }
}

impl fmt::Display for MapWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => write!(f, "map of {} operations", self.operations),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Product(p) => {
                f.write_str(if p.m == 1 { "gemv" } else { "gemm" })?;
                match p.format {
                    Format::Dense => {}
                    Format::Panels => f.write_str(" packed")?,
                    Format::LowBit { code, block, rounded, .. } => {
                        write!(f, " {}", code.name())?;
                        if block < p.k {
                            write!(f, " by {block}")?;
                        }
                        f.write_str(if rounded { ", rows of 8 bits," } else { ", rows of f32," })?;
                    }
                }
                if p.right != DType::F32 && !matches!(p.format, Format::LowBit { .. }) {
                    write!(f, " {}", p.right)?;
                }
                if p.batch > 1 {
                    write!(f, " {} ×", p.batch)?;
                }
                write!(f, " {}×{}×{}", p.m, p.n, p.k)?;
                if p.bias {
                    f.write_str(" + bias")?;
                }
                p.then.as_ref().map_or(Ok(()), |then| write!(f, ", then {then}"))
            }
            Kernel::GatedCell(c) => {
                write!(f, "gated cell {}×3·{}×{}", c.rows, c.units, c.inputs)?;
                if c.skipped > 0 {
                    write!(f, " less {} weights", c.skipped)?;
                }
                write!(f, ", {}", c.batch)
            }
            Kernel::Synapses(s) => {
                write!(f, "{} synapses, {} to {} × {}, {}", s.count, s.sources, s.sums, s.destinations, s.batch)?;
                if let Some(Rounds { all, gathered }) = s.rounds {
                    write!(f, ", {gathered} of {all} rounds gathered")?;
                }
                match s.ratios {
                    0 => Ok(()),
                    1 => f.write_str(", then their ratio"),
                    n => write!(f, ", then their ratio, {n} times"),
                }
            }
            Kernel::WiredSynapses(s) => {
                let of = if s.gradient { "gradient of " } else { "" };
                write!(f, "{of}{} synapses, {} to {} × {}, {}", s.count, s.sources, s.sums, s.destinations, s.batch)?;
                match s.ratios {
                    0 => Ok(()),
                    1 => f.write_str(", then their ratio"),
                    n => write!(f, ", then their ratio, {n} times"),
                }
            }
            Kernel::Map(m) => {
                m.work.fmt(f)?;
                match (m.outs.len(), &m.work.text) {
                    (1, _) | (_, Some(_)) => Ok(()),
                    (results, None) => write!(f, ", {results} results"),
                }
            }
            Kernel::Scan(s) => {
                write!(f, "scan of {} steps", s.steps)?;
                if let Some(b) = s.blocks {
                    write!(f, ", {} rows by {}, {}", b.rows, b.block_rows, s.batch)?;
                }
                match s.passed {
                    0 => Ok(()),
                    1 => write!(f, ", 1 result stays batch-last"),
                    n => write!(f, ", {n} results stay batch-last"),
                }
            }
            Kernel::Attention(a) => {
                write!(f, "attention {}×{}×{}×{}, {} keys", a.batch, a.heads, a.queries, a.dim, a.keys)
            }
            Kernel::Softmax(r) => write!(f, "softmax {}×{}", r.rows, r.len),
            Kernel::Norm(n) => {
                let name = if n.centred { "layer" } else { "rms" };
                write!(f, "{name} norm {}×{}", n.rows.rows, n.rows.len)
            }
            Kernel::Reduce(r) => {
                let [outer, len, inner] = r.shape;
                write!(f, "{} {outer}×{len}×{inner}", r.by.name())
            }
            Kernel::Gather(g) => write!(f, "gather {} of {}", g.count, g.of),
            Kernel::SegmentSum(s) => write!(f, "segment sum {} into {}", s.len, s.segments),
            Kernel::Move(m) => m.fmt(f),
            Kernel::Integer(i) => write!(f, "integer {}", i.operation),
            Kernel::Other(o) => f.write_str(&o.name),
        }
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Move::Copy { of } => write!(f, "copy {of}"),
            Move::Transpose { axes } => write!(f, "transpose {axes:?}"),
            Move::Broadcast => f.write_str("broadcast"),
            Move::Slice { axis } => write!(f, "slice axis {axis}"),
            Move::Join { axis } => write!(f, "join axis {axis}"),
            Move::Stretch => f.write_str("stretch"),
            Move::Zero => f.write_str("zero"),
            Move::Put { axis } => write!(f, "copy to places of axis {axis}"),
            Move::IntoPadding => f.write_str("copy into padding"),
            Move::ToOutput => f.write_str("copy to output"),
        }
    }
}
