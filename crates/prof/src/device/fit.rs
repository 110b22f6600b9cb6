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

use schwann_core::plan::{Loop, Place, Plan, Step};
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
    TurnedByte,
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
            | Unit::ReduceElement => Kind::Compute,
            Unit::MapFunction
            | Unit::GatedFunction
            | Unit::SynapseRow
            | Unit::SynapseRound
            | Unit::SynapseGather
            | Unit::SoftmaxElement => Kind::Functions,
            Unit::RowByteL1
            | Unit::RowByteL2
            | Unit::RowByteFar
            | Unit::ProductPacked
            | Unit::MapByte
            | Unit::CopyByte
            | Unit::GatherByte
            | Unit::TurnedByte => Kind::Cache,
            _ => Kind::Overhead,
        }
    }
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

/// Rows of a tile of a product, in the kernels.
const TILE_ROWS: usize = 6;

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
    match Form::of(step) {
        Some(Form::Product { batch: 1, packed: true, n, k, .. }) => 4 * n * k,
        Some(Form::Product { batch: 1, m, k, .. }) => 4 * m * k,
        Some(Form::Synapses { count, sums, .. }) => count * 4 * (3 + sums),
        Some(Form::Gated { units, k, .. }) => 12 * units * k,
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
    let (rows, columns) = loop_rows(&step.kernel);
    let (blocks, work) = match (looped.block_rows, rows) {
        (Some(block), Some(rows)) if block > 0 => (rows.div_ceil(block), rows as f64 / block as f64),
        _ => (1, 1.0),
    };
    let calls = times * looped.steps as f64 * blocks as f64;
    let mut own = Counts::from([(Unit::LoopBlock, times * blocks as f64), (Unit::LoopStep, calls)]);
    if columns {
        own.insert(Unit::TurnedByte, times * step.cost.bytes_written as f64);
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
        CopyCall, GatedCall, GatherCall, MapCall, NormCall, ProductCall, ReduceCall, RowCall, SoftmaxCall, SynapseCall,
    };
    matches!(
        unit,
        RowCall
            | ProductCall
            | MapCall
            | SynapseCall
            | GatedCall
            | CopyCall
            | SoftmaxCall
            | NormCall
            | ReduceCall
            | GatherCall
    )
}

/// What a kernel's description says of its shape.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Product {
        batch: usize,
        m: usize,
        n: usize,
        k: usize,
        packed: bool,
        bias: bool,
        then: bool,
    },
    /// With rounds a row (gathered, of all), destinations fill the lanes; without, rows do.
    Synapses {
        count: usize,
        sums: usize,
        rounds: Option<[usize; 2]>,
    },
    /// With weights that are skipped, rows fill the lanes; without, units do.
    Gated {
        rows: usize,
        units: usize,
        k: usize,
        skipped: Option<usize>,
    },
    /// Rows or axes of so many elements in all.
    Softmax(usize),
    Norm(usize),
    Reduce(usize),
    Gather,
    Copy,
    Map,
}

/// What the text of a kernel that only moves bytes begins with.
const COPIES: [&str; 8] =
    ["copy ", "transpose ", "broadcast", "slice axis", "join axis", "stretch", "zero", "copy to output"];

/// What the kernel's text of a ratio of sums over synapses ends with; how often may follow.
const RATIO: &str = ", then their ratio";

impl Form {
    /// Reads what the backend writes: `gemm packed 32×64×16 + bias, then tanh(x0)`, `423 synapses, 64 to 2 × 64, …`,
    /// `gated cell 32×3·29×37 less 240 weights, lanes are rows`.
    fn of(step: &Step) -> Option<Form> {
        let kernel = &step.kernel;
        let found = Form::product(kernel).or_else(|| Form::synapses(kernel)).or_else(|| Form::gated(kernel));
        found.or_else(|| Form::rows(kernel)).or_else(|| {
            let copies = COPIES.iter().any(|c| kernel.starts_with(c));
            let map = step.op == "map" || kernel.starts_with("map of ");
            if copies && step.cost.flops == 0 { Some(Form::Copy) } else { map.then_some(Form::Map) }
        })
    }

    /// `softmax 8×10`, `layer norm 8×64`, `sum 8×64×1`, `gather 3 of 10`.
    fn rows(kernel: &str) -> Option<Form> {
        let elements = |sizes: &str| {
            sizes.split('×').try_fold(1usize, |product, size| product.checked_mul(size.parse::<usize>().ok()?))
        };
        for (name, form) in [
            ("softmax ", Form::Softmax as fn(usize) -> Form),
            ("layer norm ", Form::Norm),
            ("rms norm ", Form::Norm),
            ("sum ", Form::Reduce),
            ("mean ", Form::Reduce),
            ("max ", Form::Reduce),
            ("min ", Form::Reduce),
        ] {
            if let Some(sizes) = kernel.strip_prefix(name) {
                return elements(sizes).map(form);
            }
        }
        kernel.starts_with("gather ").then_some(Form::Gather)
    }

    fn gated(kernel: &str) -> Option<Form> {
        let (shape, lanes) = kernel.strip_prefix("gated cell ")?.split_once(", lanes are ")?;
        let (sizes, less) = shape.split_once(" less ").unwrap_or((shape, "0 weights"));
        let (rows, rest) = sizes.split_once("×3·")?;
        let (units, k) = rest.split_once('×')?;
        let skipped = if lanes == "rows" { Some(less.strip_suffix(" weights")?.parse().ok()?) } else { None };
        Some(Form::Gated { rows: rows.parse().ok()?, units: units.parse().ok()?, k: k.parse().ok()?, skipped })
    }

    fn product(kernel: &str) -> Option<Form> {
        let rest = kernel.strip_prefix("gemm ").or_else(|| kernel.strip_prefix("gemv "))?;
        let (packed, rest) = rest.strip_prefix("packed ").map_or((false, rest), |rest| (true, rest));
        let (batch, rest) = match rest.split_once(" × ") {
            Some((batch, rest)) if batch.bytes().all(|b| b.is_ascii_digit()) => (batch.parse().ok()?, rest),
            _ => (1, rest),
        };
        let sizes = rest.split([' ', ',']).next()?;
        let mut sizes = sizes.split('×').map(str::parse);
        let mut next = || sizes.next()?.ok();
        let (m, n, k) = (next()?, next()?, next()?);
        let (bias, then) = (rest.contains(" + bias"), rest.contains(", then "));
        Some(Form::Product { batch, m, n, k, packed, bias, then })
    }

    fn synapses(kernel: &str) -> Option<Form> {
        let (count, rest) = kernel.split_once(" synapses, ")?;
        let (_, sums) = rest.split_once(" to ")?;
        let sums = sums.split_once(" × ")?.0.parse().ok()?;
        let kernel = kernel.split_once(RATIO).map_or(kernel, |(sums, _)| sums);
        let rounds = kernel.strip_suffix(" rounds gathered").and_then(|k| k.rsplit_once(", ")).and_then(|(_, n)| {
            let (gathered, all) = n.split_once(" of ")?;
            Some([gathered.parse().ok()?, all.parse().ok()?])
        });
        Some(Form::Synapses { count: count.parse().ok()?, sums, rounds })
    }
}

/// Rows of a blocked loop, and whether its body wants them as columns: `scan of 16 steps, 32 rows by 16 as columns`.
fn loop_rows(kernel: &str) -> (Option<usize>, bool) {
    let rows = kernel.split_once(" steps, ").and_then(|(_, rest)| rest.split_once(" rows by "));
    (rows.and_then(|(rows, _)| rows.parse().ok()), kernel.ends_with(" as columns"))
}

/// Units of one call of a step that is no loop, or why its kernel has no price.
fn priced(step: &Step, working_set: usize, target: &Target) -> (Counts, Option<String>) {
    let kernel = &step.kernel;
    let Some(form) = Form::of(step) else {
        return (Counts::new(), Some(format!("no price is known for the kernel `{kernel}` of `{}`", step.name)));
    };
    // Prices are of f32. A product whose operands are fewer bytes than its weights would be has others.
    let narrow = match form {
        Form::Product { n, k, .. } => step.cost.bytes_read < 4 * (n * k) as u64,
        Form::Copy | Form::Gather => false,
        _ => !step.out.starts_with("f32"),
    };
    if narrow {
        let what = format!("prices are of f32, and `{}` ({kernel}) computes with another type", step.name);
        return (Counts::new(), Some(what));
    }
    (step_counts(step, form, working_set, target), None)
}

fn step_counts(step: &Step, form: Form, working_set: usize, target: &Target) -> Counts {
    let cost = &step.cost;
    let plain = cost.flops.saturating_sub(cost.transcendentals) as f64;
    let mut counts = Counts::new();
    let mut add = |unit, n: f64| {
        if n > 0.0 {
            *counts.entry(unit).or_insert(0.0) += n;
        }
    };
    let row_bytes = |add: &mut dyn FnMut(Unit, f64), bytes: usize| {
        let units = [Unit::RowByteL1, Unit::RowByteL2, Unit::RowByteFar];
        for (unit, part) in units.into_iter().zip(residence(working_set, target)) {
            add(unit, bytes as f64 * part);
        }
    };
    let lanes = target.lanes;
    let width = lanes * target.panel;
    match form {
        Form::Product { batch, m, n, k, packed, bias, then } => {
            let padded = n.next_multiple_of(lanes);
            if m == 1 && batch == 1 {
                add(Unit::RowCall, 1.0);
                add(Unit::RowRound, (n.div_ceil(width) * k) as f64);
                row_bytes(&mut add, 4 * padded * k);
            } else {
                let b = batch as f64;
                add(Unit::ProductCall, b);
                add(Unit::ProductTile, b * (m.div_ceil(TILE_ROWS) * n.div_ceil(width)) as f64);
                add(Unit::ProductWork, b * (m * padded * k) as f64);
                if !packed {
                    add(Unit::ProductPacked, b * (k * padded) as f64);
                }
            }
            if then {
                let elements = (batch * m * n) as f64;
                add(Unit::MapCall, 1.0);
                let product = 2.0 * (batch * m * n * k) as f64;
                add(Unit::MapPlain, plain - product - if bias { elements } else { 0.0 });
                add(Unit::MapFunction, cost.transcendentals as f64);
                add(Unit::MapByte, 8.0 * elements);
            }
        }
        Form::Synapses { count, rounds, sums } => {
            // Two for the affine map, one function where there is one, two a sum: see the operation's cost.
            let each = 2 + u64::from(cost.transcendentals > 0) + 2 * sums as u64;
            let synapses = match cost.transcendentals {
                0 => cost.flops as f64 / each as f64,
                functions => functions as f64,
            };
            add(Unit::SynapseCall, 1.0);
            // What they start from, or become: of a ratio's five operations one is a division.
            let more = cost.flops as f64 - synapses * each as f64;
            add(Unit::MapPlain, more);
            if step.kernel.contains(RATIO) {
                add(Unit::MapDivide, more / 5.0);
            }
            match rounds {
                Some([gathered, all]) => {
                    let rows = synapses / count.max(1) as f64;
                    add(Unit::SynapseRound, all.saturating_sub(gathered) as f64 * rows);
                    add(Unit::SynapseGather, gathered as f64 * rows);
                }
                None => add(Unit::SynapseRow, synapses),
            }
        }
        Form::Gated { rows, units, k, skipped } => {
            add(Unit::GatedCall, 1.0);
            match skipped {
                Some(skipped) => {
                    let rows = rows.next_multiple_of(lanes);
                    add(Unit::GatedWork, (rows * (3 * units * k).saturating_sub(skipped)) as f64);
                    add(Unit::GatedFunction, (3 * units * rows) as f64);
                }
                None => {
                    // Whole registers of units, and what is left of the three heads together.
                    let registers = 3 * (units / lanes) + (3 * (units % lanes)).div_ceil(lanes);
                    row_bytes(&mut add, 4 * registers * lanes * k);
                    add(Unit::GatedFunction, 3.0 * units.next_multiple_of(lanes) as f64);
                }
            }
        }
        Form::Softmax(elements) => {
            add(Unit::SoftmaxCall, 1.0);
            add(Unit::SoftmaxElement, elements as f64);
        }
        Form::Norm(elements) => {
            add(Unit::NormCall, 1.0);
            add(Unit::NormElement, elements as f64);
        }
        Form::Reduce(elements) => {
            add(Unit::ReduceCall, 1.0);
            add(Unit::ReduceElement, elements as f64);
        }
        Form::Gather => {
            add(Unit::GatherCall, 1.0);
            add(Unit::GatherByte, cost.bytes() as f64);
        }
        Form::Copy => {
            add(Unit::CopyCall, 1.0);
            add(Unit::CopyByte, cost.bytes() as f64);
        }
        Form::Map => {
            add(Unit::MapCall, 1.0);
            let divisions = step.kernel.matches(" / ").count() as f64;
            add(Unit::MapPlain, plain);
            add(Unit::MapFunction, cost.transcendentals as f64);
            if divisions > 0.0 {
                let operations = operations(&step.kernel);
                add(Unit::MapDivide, divisions * cost.flops as f64 / operations.max(1) as f64);
            }
            add(Unit::MapByte, cost.bytes() as f64);
        }
    }
    counts
}

/// Operations of a map that is written out: `(x0 * x1 + x2) / x3` has three.
fn operations(kernel: &str) -> usize {
    let signs = [" + ", " - ", " * ", " / "].iter().map(|s| kernel.matches(s).count()).sum::<usize>();
    let functions = kernel.as_bytes().windows(2).filter(|w| w[0].is_ascii_alphabetic() && w[1] == b'(').count();
    signs + functions
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
