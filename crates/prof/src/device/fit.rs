//! The cost model: what a plan does in countable units of work, and what one of each costs on this machine.
//!
//! A step's time is a sum of countable things: calls, tiles and multiply-adds of a product, bytes of weights by the cache
//! that holds them, elements of a map, synapses, bytes copied, steps of a loop. The counts follow from the plan; the
//! price of each is found by timing a suite of small graphs (`suite.rs`) and solving for the prices that explain
//! their times best (`solve.rs`). The suite's plans are counted by the same function as a plan to be predicted, so the
//! model holds no constant of its own. A kernel that nothing here counts has no price: it is named, and a plan with it
//! is not predicted.
//!
//! A sum, not the greater of arithmetic and memory: in cache, loads and arithmetic of small kernels overlap only in
//! part, and a sum whose prices were measured together absorbs the part that does. For data beyond the second-level
//! cache the bandwidth of the level that holds it is a second bound ([`mod@super::predict`]).

use schwann_core::DType;
use schwann_core::op::Code;
use schwann_core::plan::kernel::{BatchAxis, Elementwise, Format, GatedCell, MapWork, Product, Rounds, Synapses};
use schwann_core::plan::{Kernel, Loop, Place, Plan, Step};
use schwann_kernels::tuning::{MachineClass, Tuning};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Something countable that costs time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A run of a session.
    Run,
    /// An input or output of a run.
    Operand,
    /// A block of rows that a loop takes through its steps.
    LoopBlock,
    /// A step of a loop over one block.
    LoopStep,
    /// A byte that a loop turns between rows and columns.
    TransposedByte,
    /// A product of one row.
    RowCall,
    /// A round of its sums: one step of k over one panel of columns.
    RowRound,
    /// A byte of its weights in the first-level cache.
    RowByteL1,
    /// A byte of its weights in the second-level cache.
    RowByteL2,
    /// A byte of its weights beyond that.
    RowByteFar,
    /// A product of several rows.
    ProductCall,
    /// A tile of its result.
    ProductTile,
    /// A multiply-add in whole registers.
    ProductWork,
    /// An element of a right-hand side that was not packed ahead.
    ProductPacked,
    /// A fused elementwise program, alone or after a product.
    MapCall,
    /// A plain operation on one element.
    MapPlain,
    /// An exponential or the like on one element.
    MapFunction,
    /// A division of one element.
    MapDivide,
    /// A byte of its operands and result.
    MapByte,
    /// A sum over synapses.
    SynapseCall,
    /// A synapse of one row, where rows fill the lanes.
    SynapseRow,
    /// A register of synapses of one row, where destinations fill the lanes.
    SynapseRound,
    /// The same, with values gathered from memory.
    SynapseGather,
    /// A gated cell: its products and the gate in one.
    GatedCall,
    /// A multiply-add of it in whole registers, where rows fill the lanes. (Else it is bytes of weights, as of a row.)
    GatedWork,
    /// A function of one unit of it.
    GatedFunction,
    /// A copy.
    CopyCall,
    /// A byte of it, read or written.
    CopyByte,
    /// A softmax.
    SoftmaxCall,
    /// An element of it.
    SoftmaxElement,
    /// A normalization of rows.
    NormCall,
    /// An element of it.
    NormElement,
    /// A sum, mean or the like along axes.
    ReduceCall,
    /// An element that it reads.
    ReduceElement,
    /// Rows looked up in a table.
    GatherCall,
    /// A byte of it, read or written.
    GatherByte,
    /// Attention.
    AttentionCall,
    /// A multiply-add of its two products.
    AttentionWork,
    /// A score of it: scale, exponential, sum.
    AttentionScore,
    /// A multiply-add of a product of several rows of f32 with weights of half precision.
    HalfWork,
    /// A byte of such weights in a product of one row.
    HalfRowByte,
    /// A multiply-add of a product of several rows of bfloat16 with weights of it.
    Bf16Work,
    /// A byte of such weights in a product of one row.
    Bf16RowByte,
    /// A multiply-add of a product of several rows of f16 with weights of it.
    F16Work,
    /// A byte of such weights in a product of one row.
    F16RowByte,
    /// An element that a map or product reads or writes in another type than f32.
    Converted,
    /// A product in integers: rows of 8 bits with low-bit weights.
    RoundedCall,
    /// A row that is rounded to 8 bits for it.
    RoundedRow,
    /// A block of such a row, of which the sum is taken.
    RoundedBlock,
    /// An element of such a row.
    RoundedElement,
    /// A tile of the product's result.
    RoundedTile,
    /// A sum of integers that is scaled: one for each block of each row and column.
    ScaledSum,
    /// A byte of packed 8-bit codes in a product in integers of one row.
    Int8RowByte,
    /// The same of 4-bit codes.
    Int4RowByte,
    /// The same of ternary codes.
    TernaryRowByte,
    /// A multiply-add of a product in integers of several rows, with 8-bit codes.
    Int8Work,
    /// The same with 4-bit codes.
    Int4Work,
    /// The same with ternary codes.
    TernaryWork,
    /// A product of a few rows of f32 with low-bit weights.
    WidenedCall,
    /// A code that is taken apart for a tile of it.
    ApartCode,
    /// A multiply-add of it.
    ApartWork,
    /// A code that becomes an f32 before it meets many rows.
    WidenedCode,
}

/// What bounds a unit's price on another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Multiply-adds.
    Compute,
    /// Functions.
    Functions,
    /// Bytes near by: caches run at the core's clock.
    Cache,
    /// What a call costs: the core's clock.
    Overhead,
    /// Arithmetic in a type narrower than f32: each chip has its own way, or none, and its f32 peak says nothing of it.
    Narrow,
}

impl Unit {
    /// What bounds its price.
    pub fn kind(self) -> Kind {
        match self {
            Unit::ProductWork
            | Unit::GatedWork
            | Unit::MapPlain
            | Unit::MapDivide
            | Unit::NormElement
            | Unit::AttentionWork
            | Unit::Converted
            | Unit::ReduceElement => Kind::Compute,
            Unit::MapFunction
            | Unit::GatedFunction
            | Unit::SynapseRow
            | Unit::SynapseRound
            | Unit::SynapseGather
            | Unit::AttentionScore
            | Unit::SoftmaxElement => Kind::Functions,
            Unit::HalfWork
            | Unit::HalfRowByte
            | Unit::Bf16Work
            | Unit::Bf16RowByte
            | Unit::F16Work
            | Unit::F16RowByte
            | Unit::RoundedBlock
            | Unit::RoundedElement
            | Unit::ScaledSum
            | Unit::Int8RowByte
            | Unit::Int4RowByte
            | Unit::TernaryRowByte
            | Unit::Int8Work
            | Unit::Int4Work
            | Unit::TernaryWork
            | Unit::ApartCode
            | Unit::ApartWork
            | Unit::WidenedCode => Kind::Narrow,
            Unit::RowByteL1
            | Unit::RowByteL2
            | Unit::RowByteFar
            | Unit::ProductPacked
            | Unit::MapByte
            | Unit::CopyByte
            | Unit::GatherByte
            | Unit::TransposedByte => Kind::Cache,
            Unit::Run
            | Unit::Operand
            | Unit::LoopBlock
            | Unit::LoopStep
            | Unit::RowCall
            | Unit::RowRound
            | Unit::ProductCall
            | Unit::ProductTile
            | Unit::RoundedCall
            | Unit::RoundedRow
            | Unit::RoundedTile
            | Unit::WidenedCall
            | Unit::MapCall
            | Unit::SynapseCall
            | Unit::GatedCall
            | Unit::CopyCall
            | Unit::SoftmaxCall
            | Unit::NormCall
            | Unit::ReduceCall
            | Unit::GatherCall
            | Unit::AttentionCall => Kind::Overhead,
        }
    }
}

/// Rows of a tile of a product.
fn tile_rows() -> usize {
    Tuning::for_machine(MachineClass::Portable).gemm_tile_rows()
}

/// How often each unit occurs.
pub type Counts = BTreeMap<Unit, f64>;

/// What one of each unit costs, in seconds.
pub type Prices = BTreeMap<Unit, f64>;

/// What counting has to know of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Floats of a register.
    pub lanes: usize,
    /// Registers of a panel of a packed matrix.
    pub panel: usize,
    /// Bytes of a core's first-level cache, where that is known.
    pub l1: Option<usize>,
    /// Bytes of the second-level cache that a core can fill.
    pub l2: Option<usize>,
}

/// One place of a plan with all its calls of a run.
#[derive(Clone, Debug)]
pub struct Counted<'a> {
    /// Its place: step, and in loops the step of the body.
    pub path: Vec<usize>,
    /// The step.
    pub step: &'a Step,
    /// Its loop's node, where it is in one.
    pub within: Option<&'a str>,
    /// Calls of a run.
    pub calls: f64,
    /// Units of a run, all calls together; empty where its kernel has no price.
    pub counts: Counts,
    /// Why its kernel has no price.
    pub unpriced: Option<String>,
    /// Blocks that several threads can take at once, where it is in a loop.
    pub blocks: Option<usize>,
    /// Bytes that the steps around it go over again and again.
    pub working_set: usize,
}

/// Counts the units of every step of a plan, loops' bodies in place of the loops (whose own cost is an entry of its own);
/// the run's own come first, without a step.
pub fn count<'a>(plan: &'a Plan, target: &Target) -> (Counts, Vec<Counted<'a>>) {
    let mut operands = BTreeSet::new();
    for step in &plan.steps {
        for place in step.reads.iter().chain(&step.writes) {
            match place {
                Place::Input(name) => operands.insert((0, name)),
                Place::Output(name) => operands.insert((1, name)),
                _ => false,
            };
        }
    }
    let run = Counts::from([(Unit::Run, 1.0), (Unit::Operand, operands.len() as f64)]);
    let mut all = vec![];
    let set = working_set(plan);
    for (i, step) in plan.steps.iter().enumerate() {
        match &step.looped {
            Some(looped) => count_loop(step, looped, vec![i], 1.0, target, &mut all),
            None => {
                let (counts, unpriced) = priced(step, set, target);
                all.push(Counted {
                    path: vec![i],
                    step,
                    within: None,
                    calls: 1.0,
                    counts,
                    unpriced,
                    blocks: None,
                    working_set: set,
                });
            }
        }
    }
    (run, all)
}

/// Bytes that one pass over a plan's steps touches at most: its arena, and the weights of its products and synapses.
fn working_set(plan: &Plan) -> usize {
    let weights: usize = plan.steps.iter().map(weight_bytes).sum();
    plan.arena_bytes + weights
}

fn weight_bytes(step: &Step) -> usize {
    match &step.kernel {
        Kernel::Product(p) if p.batch == 1 && p.format != Format::Dense => p.weight_bytes(),
        // Batch-last, the weights are the left operand.
        Kernel::Product(p) if p.batch == 1 => p.left.size() * p.m * p.k,
        Kernel::Synapses(s) => s.count * 4 * (3 + s.sums),
        Kernel::GatedCell(c) => 12 * c.units * c.inputs,
        _ => 0,
    }
}

fn count_loop<'a>(
    step: &'a Step,
    looped: &'a Loop,
    path: Vec<usize>,
    times: f64,
    target: &Target,
    all: &mut Vec<Counted<'a>>,
) {
    let (cut, transposed) = match &step.kernel {
        Kernel::Scan(scan) => {
            let last = scan.batch == BatchAxis::Last;
            let transposed = last.then(|| step.cost.bytes_written.saturating_sub(scan.passed_bytes as u64));
            (scan.blocks.filter(|b| b.block_rows > 0), transposed)
        }
        _ => (None, None),
    };
    let (blocks, work) = cut.map_or((1, 1.0), |b| (b.rows.div_ceil(b.block_rows), b.rows as f64 / b.block_rows as f64));
    let calls = times * looped.steps as f64 * blocks as f64;
    let mut own = Counts::from([(Unit::LoopBlock, times * blocks as f64), (Unit::LoopStep, calls)]);
    if let Some(bytes) = transposed {
        own.insert(Unit::TransposedByte, times * bytes as f64);
    }
    let set = working_set(&looped.body);
    let split = looped.block_rows.map(|_| blocks);
    all.push(Counted {
        path: path.clone(),
        step,
        within: None,
        calls: times,
        counts: own,
        unpriced: None,
        blocks: split,
        working_set: set,
    });
    for (i, inner) in looped.body.steps.iter().enumerate() {
        let path: Vec<usize> = path.iter().copied().chain([i]).collect();
        match &inner.looped {
            Some(deeper) => count_loop(inner, deeper, path, calls, target, all),
            None => {
                // The last block may be smaller: less work, but a call all the same.
                let (each, unpriced) = priced(inner, set, target);
                let repeated = |(unit, n): (Unit, f64)| {
                    let times_of = if is_call(unit) { calls } else { times * looped.steps as f64 * work };
                    (unit, n * times_of)
                };
                all.push(Counted {
                    path,
                    step: inner,
                    within: Some(&step.name),
                    calls,
                    counts: each.into_iter().map(repeated).collect(),
                    unpriced,
                    blocks: split,
                    working_set: set,
                });
            }
        }
    }
}

fn is_call(unit: Unit) -> bool {
    use Unit::{
        AttentionCall, CopyCall, GatedCall, GatherCall, MapCall, NormCall, ProductCall, ReduceCall, RoundedCall,
        RowCall, SoftmaxCall, SynapseCall, WidenedCall,
    };
    matches!(
        unit,
        RowCall
            | AttentionCall
            | ProductCall
            | MapCall
            | SynapseCall
            | GatedCall
            | CopyCall
            | SoftmaxCall
            | NormCall
            | ReduceCall
            | GatherCall
            | RoundedCall
            | WidenedCall
    )
}

/// Units of one call of a step that is no loop, or why its kernel has no price.
fn priced(step: &Step, working_set: usize, target: &Target) -> (Counts, Option<String>) {
    let mut units = Units { counts: Counts::new(), working_set, target };
    let cost = &step.cost;
    let unpriced = |what: &str| Some(format!("{what} (`{}`, {})", step.name, step.kernel));
    let why = match &step.kernel {
        Kernel::Product(p) => units.product(p),
        Kernel::GatedCell(c) => units.gated(c),
        Kernel::Synapses(s) => units.synapses(s),
        Kernel::WiredSynapses(_) => Some("no price is known for synapses whose numbers are values of the run"),
        Kernel::Map(m) => {
            units.map(m, cost.bytes());
            None
        }
        Kernel::Attention(a) => {
            let pairs = (a.batch * a.heads * a.pairs) as f64;
            units.add(Unit::AttentionCall, 1.0);
            units.add(Unit::AttentionWork, pairs * (a.dim + a.value_dim) as f64);
            units.add(Unit::AttentionScore, pairs);
            None
        }
        Kernel::Softmax(r) => units.call(Unit::SoftmaxCall, Unit::SoftmaxElement, r.elements()),
        Kernel::Norm(n) => units.call(Unit::NormCall, Unit::NormElement, n.rows.elements()),
        Kernel::Reduce(r) if r.dtype == DType::F32 => {
            units.call(Unit::ReduceCall, Unit::ReduceElement, r.shape.iter().product())
        }
        Kernel::Gather(_) => units.call(Unit::GatherCall, Unit::GatherByte, cost.bytes() as usize),
        Kernel::Move(_) => units.call(Unit::CopyCall, Unit::CopyByte, cost.bytes() as usize),
        Kernel::Reduce(_) | Kernel::Integer(_) => Some("no price is known for integer arithmetic"),
        Kernel::SegmentSum(_) => Some("no price is known for sums by segment"),
        Kernel::Scan(_) => Some("no price is known for a loop without a body"),
        Kernel::Other(_) => Some("no price is known for a kernel of another backend"),
    };
    match why {
        Some(why) => (Counts::new(), unpriced(why)),
        None => (units.counts, None),
    }
}

/// Units of a call, being counted.
struct Units<'a> {
    counts: Counts,
    working_set: usize,
    target: &'a Target,
}

impl Units<'_> {
    fn add(&mut self, unit: Unit, n: f64) {
        if n > 0.0 {
            *self.counts.entry(unit).or_insert(0.0) += n;
        }
    }

    /// A call and so many of what it works on.
    fn call(&mut self, call: Unit, each: Unit, n: usize) -> Option<&'static str> {
        self.add(call, 1.0);
        self.add(each, n as f64);
        None
    }

    /// Bytes of f32 weights that are read once, from the caches that hold them.
    fn row_bytes(&mut self, bytes: usize) {
        let parts = residence(self.working_set, self.target);
        for (unit, part) in [Unit::RowByteL1, Unit::RowByteL2, Unit::RowByteFar].into_iter().zip(parts) {
            self.add(unit, bytes as f64 * part);
        }
    }

    /// An elementwise program on so many elements.
    fn work(&mut self, work: &MapWork, elements: f64) {
        self.add(Unit::MapCall, 1.0);
        self.add(Unit::MapPlain, elements * (work.operations - work.functions) as f64);
        self.add(Unit::MapFunction, elements * work.functions as f64);
        self.add(Unit::MapDivide, elements * work.divisions as f64);
    }

    fn map(&mut self, map: &Elementwise, bytes: u64) {
        let elements = map.elements as f64;
        self.work(&map.work, elements);
        self.add(Unit::MapByte, bytes as f64);
        let others = map.inputs.iter().chain(&map.outs).filter(|t| **t != DType::F32).count();
        self.add(Unit::Converted, elements * others as f64);
    }

    fn product(&mut self, p: &Product) -> Option<&'static str> {
        if let Format::LowBit { .. } = p.format {
            self.low_bit(p);
            return None;
        }
        let Target { lanes, panel, .. } = *self.target;
        let (padded, width) = (p.n.next_multiple_of(lanes), lanes * panel);
        let (batch, one_row) = (p.batch as f64, p.m == 1 && p.batch == 1);
        let work = batch * (p.m * padded * p.k) as f64;
        let narrow = match (p.left, p.right) {
            // Narrow rows are widened first, which is counted below.
            (DType::F32 | DType::Bf16 | DType::F16, DType::F32) => None,
            (DType::F32, DType::Bf16 | DType::F16) => Some((Unit::HalfWork, Unit::HalfRowByte)),
            (DType::Bf16, DType::Bf16) => Some((Unit::Bf16Work, Unit::Bf16RowByte)),
            (DType::F16, DType::F16) => Some((Unit::F16Work, Unit::F16RowByte)),
            _ => return Some("no price is known for a product of these types"),
        };
        if one_row {
            self.add(Unit::RowCall, 1.0);
            self.add(Unit::RowRound, (p.n.div_ceil(width) * p.k) as f64);
            match narrow {
                Some((_, byte)) => self.add(byte, (p.right.size() * padded * p.k) as f64),
                None => self.row_bytes(4 * padded * p.k),
            }
        } else {
            self.tiles(p);
            self.add(narrow.map_or(Unit::ProductWork, |(work, _)| work), work);
            if p.format == Format::Dense {
                self.add(Unit::ProductPacked, batch * (p.k * padded) as f64);
            }
        }
        if p.left != DType::F32 {
            self.add(Unit::Converted, batch * (p.m * p.k) as f64);
        }
        self.results(p);
        None
    }

    /// The calls of a product of several rows, and the tiles of its results.
    fn tiles(&mut self, p: &Product) {
        let (batch, width) = (p.batch as f64, self.target.lanes * self.target.panel);
        self.add(Unit::ProductCall, batch);
        self.add(Unit::ProductTile, batch * (p.m.div_ceil(tile_rows()) * p.n.div_ceil(width)) as f64);
    }

    /// What is done to a product's results.
    fn results(&mut self, p: &Product) {
        let results = p.batch as f64 * (p.m * p.n) as f64;
        if let Some(then) = &p.then {
            self.work(then, results);
            self.add(Unit::MapByte, 8.0 * results);
        }
        if p.out != DType::F32 {
            self.add(Unit::Converted, results);
        }
    }

    /// A product with low-bit weights. One row in integers is bound by the bytes of packed codes, several rows by
    /// multiply-adds; rows of f32 either meet codes that are taken apart for them, or codes that were widened before.
    fn low_bit(&mut self, p: &Product) {
        let Format::LowBit { code, block, rounded, widened, .. } = p.format else { return };
        let padded = p.n.next_multiple_of(self.target.lanes);
        let (codes, work) = ((p.k * padded) as f64, (p.m * p.k * padded) as f64);
        let (bits, byte, multiply) = match code {
            Code::Bits8 => (8.0, Unit::Int8RowByte, Unit::Int8Work),
            Code::Bits4 => (4.0, Unit::Int4RowByte, Unit::Int4Work),
            // However they came, packed ternary codes have two bits.
            Code::Ternary4 | Code::Ternary5 => (2.0, Unit::TernaryRowByte, Unit::TernaryWork),
        };
        if rounded {
            let (blocks, width) = (p.k.div_ceil(block.max(1)), self.target.lanes * self.target.panel);
            self.add(Unit::RoundedCall, 1.0);
            self.add(Unit::RoundedRow, p.m as f64);
            self.add(Unit::RoundedBlock, (p.m * blocks) as f64);
            self.add(Unit::RoundedElement, (p.m * p.k) as f64);
            self.add(Unit::RoundedTile, (p.m.div_ceil(tile_rows()) * p.n.div_ceil(width)) as f64);
            self.add(Unit::ScaledSum, (p.m * padded * blocks) as f64);
            match p.m {
                1 => self.add(byte, codes * bits / 8.0),
                _ => self.add(multiply, work),
            }
        } else if widened {
            self.tiles(p);
            self.add(Unit::WidenedCode, codes);
            self.add(Unit::ProductWork, work);
        } else {
            // Codes are taken apart for every tile of rows.
            self.add(Unit::WidenedCall, 1.0);
            self.add(Unit::ApartCode, codes * p.m.div_ceil(tile_rows()) as f64);
            self.add(Unit::ApartWork, work);
        }
        self.results(p);
    }

    fn synapses(&mut self, s: &Synapses) -> Option<&'static str> {
        self.add(Unit::SynapseCall, 1.0);
        let times = s.ratios.max(1) as f64;
        let (rows, results) = (times * s.rows as f64, times * (s.rows * s.destinations) as f64);
        // What the sums start from, or become: of a ratio's five operations one is a division.
        let more = if s.ratios > 0 { 5 } else { s.starts };
        self.add(Unit::MapPlain, results * more as f64);
        if s.ratios > 0 {
            self.add(Unit::MapDivide, results);
        }
        match s.rounds {
            Some(Rounds { all, gathered }) => {
                self.add(Unit::SynapseRound, rows * all.saturating_sub(gathered) as f64);
                self.add(Unit::SynapseGather, rows * gathered as f64);
            }
            None => {
                let lanes = self.target.lanes;
                // A register takes the same time however many of its lanes hold rows. Half of them share it with another
                // destination, where the instruction set can do that, which takes an eighth longer.
                let last = match s.rows % lanes {
                    0 => 0.0,
                    left if lanes >= 16 && left <= lanes / 2 => 1.125 * (lanes / 2) as f64,
                    _ => lanes as f64,
                };
                let whole = (s.rows / lanes * lanes) as f64;
                self.add(Unit::SynapseRow, times * (whole + last) * s.count as f64);
            }
        }
        None
    }

    fn gated(&mut self, c: &GatedCell) -> Option<&'static str> {
        let lanes = self.target.lanes;
        self.add(Unit::GatedCall, 1.0);
        match c.batch {
            BatchAxis::Last => {
                let rows = c.rows.next_multiple_of(lanes);
                self.add(Unit::GatedWork, (rows * (3 * c.units * c.inputs).saturating_sub(c.skipped)) as f64);
                self.add(Unit::GatedFunction, (3 * c.units * rows) as f64);
            }
            BatchAxis::First => {
                // Whole registers of units, and what is left of the three heads together.
                let registers = 3 * (c.units / lanes) + (3 * (c.units % lanes)).div_ceil(lanes);
                if c.rows == 1 {
                    self.row_bytes(4 * registers * lanes * c.inputs);
                } else {
                    // Weights are loaded for several rows at a time, so multiplying takes longer than that.
                    self.add(Unit::GatedWork, (c.rows * registers * lanes * c.inputs) as f64);
                }
                self.add(Unit::GatedFunction, (c.rows * 3 * c.units.next_multiple_of(lanes)) as f64);
            }
        }
        None
    }
}

/// Which part of a working set that is gone over again and again is found in the first level, the second, and beyond.
/// What is somewhat too large for a level finds less than its part there, since the oldest makes room for the newest.
fn residence(bytes: usize, target: &Target) -> [f64; 3] {
    // Where a level's size is not known, nothing is said to miss it: its price then stands for all of them.
    let missing = |capacity: Option<usize>| {
        let over = capacity.map_or(0.0, |c| bytes as f64 / c.max(1) as f64 - 1.0);
        (2.0 * over).clamp(0.0, 1.0)
    };
    let (first, second) = (missing(target.l1), missing(target.l2));
    [1.0 - first, first * (1.0 - second), first * second]
}

/// Seconds of these units; the unit that has no price, where one has none.
pub fn seconds(counts: &Counts, prices: &Prices) -> Result<f64, Unit> {
    counts.iter().map(|(unit, n)| prices.get(unit).map(|p| n * p).ok_or(*unit)).sum()
}
