//! Loops: by blocks of rows where rows are independent, else step by step over all of them.

use super::known::{Data, Identity, Known};
use super::lower::{Label, Lower, Lowered, Target, byte_size, lower as lower_graph};
use super::totals::{self, Term};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value};
use crate::memory::Recent;
use crate::op::{Op, Scan, Type};
use crate::pass::rows;
use crate::plan::kernel::{self, BatchAxis, Blocks};
use crate::plan::{Kernel, Loop};
use crate::shape::Bindings;
use crate::tensor::Tensor;
use schwann_kernels::tape::{self, Call, Ref, ScanState, Sequence};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The body for one number of rows, and whether it is batch-last.
struct Block {
    lowered: Arc<Lowered>,
    batch_last: bool,
}

/// The body for a block of rows: batch-last, if there are enough of them to fill the lanes and it has that form.
fn block(l: &Lower<'_>, rows: usize, bodies: &Bodies, known: &Fixed) -> Result<Block> {
    block_as(l, rows, bodies, known, rows >= bodies.rows_batch_last(&l.target))
}

fn block_as(l: &Lower<'_>, rows: usize, bodies: &Bodies, known: &Fixed, batch_last: bool) -> Result<Block> {
    let bindings = l.bindings.clone().with(rows::ROWS, rows);
    let target = Target { threads: 1, ..l.target };
    let body = bodies.batch_last.as_ref().filter(|_| batch_last).unwrap_or(&bodies.batch_first);
    Ok(Block { lowered: lower_body(body, &bindings, target, known)?, batch_last })
}

/// A body as kernel calls. They are shared with sequences of other lengths, and with batches whose blocks have as many
/// rows.
fn lower_body(body: &Body, bindings: &Bindings, target: Target<'_>, known: &Fixed) -> Result<Arc<Lowered>> {
    let sizes: Option<Vec<usize>> = body.symbols.iter().map(|s| bindings.get(s)).collect();
    // If a size is missing, lowering reports it with the node's name.
    let Some(sizes) = sizes else { return lower_graph(&body.graph, bindings, target, &known.data).map(Arc::new) };
    let key = BodyKey {
        body: Arc::as_ptr(&body.graph).addr(),
        sizes,
        threads: target.threads,
        known: known.identity.clone(),
    };
    if let Some(lowered) = target.loops.lowered(&key) {
        return Ok(lowered);
    }
    let used = body.symbols.iter().filter_map(|s| Some((s, bindings.get(s)?)));
    let bindings = used.fold(Bindings::new(), |all, (s, size)| all.with(s, size));
    let lowered = Arc::new(lower_graph(&body.graph, &bindings, target, &known.data)?);
    target
        .loops
        .keep(key, KeptBody { lowered: Arc::clone(&lowered), _of: (Arc::clone(&body.graph), known.addressed()) });
    Ok(lowered)
}

/// A body, and the symbols that its sizes depend on.
#[derive(Clone)]
struct Body {
    graph: Arc<Graph>,
    symbols: Vec<String>,
}

impl Body {
    fn new(graph: Arc<Graph>) -> Body {
        Body { symbols: graph.symbols().into_iter().collect(), graph }
    }
}

/// The body for any number of rows, with rows as the first axis and, where it has that form, as the last.
#[derive(Clone)]
struct Bodies {
    batch_first: Body,
    batch_last: Option<Body>,
    products: Products,
    /// Which states are totals.
    totals: Vec<bool>,
}

/// What products a body has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Products {
    /// None.
    None,
    /// No products, but sums over synapses.
    Synapses,
    /// Likewise, with numbers that are values of the run.
    Wired,
    /// Only those of gated cells.
    Cells,
    /// Others, with weights that are values of the run, such as those of a network that learns. Batch-last they are read
    /// where they are; batch-first they would be packed in each step.
    Unpacked,
    /// Others.
    Others,
}

impl Products {
    fn of(body: &Graph) -> Products {
        let has = |found: &dyn Fn(&Op) -> bool| body.nodes().iter().any(|n| found(&n.op));
        if has(&|op| matches!(op, Op::MatMul { .. } | Op::MatMulMap { .. })) {
            Products::Others
        } else if has(&|op| matches!(op, Op::GatedCell { .. })) {
            Products::Cells
        } else if has(&|op| matches!(op, Op::SynapseGradient { .. })) {
            Products::Wired
        } else if has(&|op| matches!(op, Op::SynapseSum { .. } | Op::SynapseRatio { .. })) {
            Products::Synapses
        } else {
            Products::None
        }
    }
}

impl Bodies {
    /// `None` if rows depend on each other. A rewrite that fails is a bug of the compiler: debug builds report it, and
    /// a release runs the loop step by step, which is slow but right; the records of the passes say why.
    fn of(scan: &Scan) -> Result<Option<Bodies>> {
        let Some(general) = form(rows::independent(scan))? else { return Ok(None) };
        let batch_last = form(general.batch_last())?.map(|graph| Body::new(Arc::new(graph)));
        let products = Products::of(&general.body);
        let totals = general.totals().to_vec();
        Ok(Some(Bodies { batch_first: Body::new(Arc::new(general.body)), batch_last, products, totals }))
    }

    /// The same where these fixed values are known: synapses whose numbers are not have other kernels.
    fn given(&self, known: &Fixed) -> Bodies {
        let body = &self.batch_first.graph;
        let inputs: HashMap<Value, usize> = body.inputs().enumerate().map(|(i, (_, v))| (v, i)).collect();
        let unknown = |v: &Value| inputs.get(v).is_some_and(|i| !known.data.contains_key(i));
        let lists = |n: &Node| match n.op {
            Op::SynapseSum { .. } | Op::SynapseRatio { .. } => n.inputs[3..n.op.synapse_tables().unwrap_or(3)].to_vec(),
            _ => vec![],
        };
        let wired = body.nodes().iter().any(|n| lists(n).iter().any(unknown));
        let weights = |n: &Node| match n.op {
            Op::MatMul { .. } | Op::MatMulMap { .. } => vec![n.inputs[1]],
            _ => vec![],
        };
        let unpacked = body.nodes().iter().any(|n| weights(n).iter().any(unknown));
        match self.products {
            Products::Others if unpacked => Bodies { products: Products::Unpacked, ..self.clone() },
            Products::Synapses if wired => Bodies { products: Products::Wired, ..self.clone() },
            _ => self.clone(),
        }
    }

    /// By how many rows a batch-last block grows: those that a register holds, or half of one.
    fn rows_more(&self, target: &Target<'_>) -> usize {
        match self.products {
            Products::Cells if target.tuning.loop_batch_last_halves() == 1 => target.isa.half_lanes(),
            _ => target.isa.lanes(),
        }
    }

    /// Of so many rows, how many a batch-last block takes, beyond whole registers, where rows of several destinations share
    /// lanes: others are faster one by one.
    fn rows_shared(&self, target: &Target<'_>, rows: usize) -> Option<usize> {
        let (lanes, tuning) = (target.isa.lanes(), target.tuning);
        if !self.shares_lanes(target) {
            return None;
        }
        let part = |sixteenths: usize| (lanes * sixteenths).div_ceil(16);
        let filled = part(tuning.loop_filled_sixteenths_of_shared_synapses_least());
        let least = part(tuning.loop_shared_sixteenths_of_synapses_least());
        // Half a register of rows is the most that shares one. From some more on, the lanes that all of them leave idle cost
        // less than rows one by one.
        Some(match rows % lanes {
            left if left >= filled => left,
            left if left >= least => left.min(lanes / 2),
            _ => 0,
        })
    }

    /// Whether rows of several destinations can share lanes.
    fn shares_lanes(&self, target: &Target<'_>) -> bool {
        self.products == Products::Synapses && target.isa.shares_lanes()
    }

    /// The most rows of a block, and how many one has where a thread takes so many.
    fn rows_of_block(&self, target: &Target<'_>, each: usize) -> (usize, usize) {
        if self.products == Products::Unpacked {
            // Blocks of the same size, as far as possible: few rows left over would take nearly as long as a block.
            let most = target.tuning.loop_block_rows_of_given_products_most();
            return (most, each.div_ceil(each.div_ceil(most)));
        }
        let most = target.tuning.loop_block_rows_most();
        (most, each.min(most))
    }

    /// From how many rows on a block is batch-last.
    fn rows_batch_last(&self, target: &Target<'_>) -> usize {
        let (lanes, tuning) = (target.isa.lanes(), target.tuning);
        match self.products {
            _ if self.batch_last.is_none() => usize::MAX,
            Products::None => lanes,
            // A register that is filled in part takes as long as a whole one in either form.
            Products::Wired => 1,
            Products::Synapses if self.shares_lanes(target) => {
                (lanes * tuning.loop_shared_sixteenths_of_synapses_least()).div_ceil(16)
            }
            Products::Synapses => lanes.min(self.rows_filled(target)),
            Products::Cells => (lanes * tuning.loop_batch_last_sixteenths_of_cells_least()).div_ceil(16),
            Products::Unpacked => lanes * tuning.loop_batch_last_registers_of_given_products_least(),
            Products::Others => lanes * tuning.loop_batch_last_registers_of_products_least(),
        }
    }

    /// From how many rows on the last register of a batch-last block is filled in part.
    fn rows_filled(&self, target: &Target<'_>) -> usize {
        let (lanes, tuning) = (target.isa.lanes(), target.tuning);
        let sixteenths = match self.products {
            Products::Synapses => tuning.loop_filled_sixteenths_of_synapses_least(),
            Products::Cells => tuning.loop_filled_sixteenths_of_cells_least(),
            Products::Wired => 0,
            Products::None | Products::Unpacked | Products::Others => 16,
        };
        (lanes * sixteenths).div_ceil(16)
    }
}

/// A loop's fixed values that are known, by their place among its inputs.
#[derive(Default)]
struct Fixed {
    data: HashMap<usize, Data>,
    /// What identifies them: for each one its place, its data, and the shape in which it is read.
    identity: Vec<(usize, Identity, Vec<usize>)>,
}

impl Fixed {
    fn of(of: &Known<'_>, node: &Node, scan: &Scan) -> Result<Fixed> {
        let mut known = Fixed::default();
        for (i, &v) in node.inputs.iter().enumerate().skip(scan.states + scan.sequences) {
            if let (Some(origin), Some(data)) = (of.origin(v), of.data(v)?) {
                known.identity.push((i, origin, data.tensor.shape().to_vec()));
                known.data.insert(i, data);
            }
        }
        Ok(known)
    }

    /// The data that is identified by its address.
    fn addressed(&self) -> Vec<Tensor> {
        self.data.values().filter(|data| data.slot.is_none()).map(|data| data.tensor.clone()).collect()
    }
}

/// What a loop's lowered body depends on. The number of steps is not part of it, unless the body computes with that
/// number.
#[derive(Clone, PartialEq, Eq, Hash)]
struct BodyKey {
    /// The body's address.
    body: usize,
    sizes: Vec<usize>,
    threads: usize,
    known: Vec<(usize, Identity, Vec<usize>)>,
}

/// A lowered body, with everything that its key identifies by address: as long as it is kept, nothing else can get such
/// an address.
struct KeptBody {
    lowered: Arc<Lowered>,
    _of: (Arc<Graph>, Vec<Tensor>),
}

/// The forms that a body has, if its rows are independent.
type Forms = Option<Arc<Bodies>>;

/// A body with its forms.
type FormsOf = (Arc<Graph>, Forms);

/// Bodies that were lowered, for other lengths of a sequence to use.
pub(super) struct Loops {
    lowered: Mutex<Recent<BodyKey, KeptBody>>,
    /// The forms of a loop's body, by its address; the body is kept for the same reason.
    forms: Mutex<Recent<(usize, usize), FormsOf>>,
    /// Bodies that add sums to totals, by the address of what they were made of and what they add.
    totals: Mutex<Recent<TotalsKey, WithTotals>>,
}

/// What a body with totals was made of, kept so that its address stays its own, and the body.
type WithTotals = (Arc<Graph>, Arc<Graph>);

/// What tells bodies with totals apart.
#[derive(Clone, PartialEq, Eq, Hash)]
struct TotalsKey {
    body: usize,
    terms: Vec<Term>,
    added: Vec<Type>,
}

/// How many bodies are kept: some for each layout that a program keeps.
const MOST_BODIES: usize = 256;

impl Default for Loops {
    fn default() -> Loops {
        Loops {
            lowered: Mutex::new(Recent::new(MOST_BODIES)),
            forms: Mutex::new(Recent::new(MOST_BODIES)),
            totals: Mutex::new(Recent::new(MOST_BODIES)),
        }
    }
}

impl Loops {
    fn lowered(&self, key: &BodyKey) -> Option<Arc<Lowered>> {
        let mut all = self.lowered.lock().expect("nothing panics while it is locked");
        all.get(key).map(|kept| Arc::clone(&kept.lowered))
    }

    fn keep(&self, key: BodyKey, kept: KeptBody) {
        self.lowered.lock().expect("nothing panics while it is locked").insert(key, kept);
    }

    fn forms(&self, scan: &Scan) -> Result<Forms> {
        // The forms depend on which of its inputs have rows, too.
        let key = (Arc::as_ptr(&scan.body).addr(), scan.states + scan.sequences);
        if let Some((_, found)) = self.forms.lock().expect("nothing panics while it is locked").get(&key) {
            return Ok(found.clone());
        }
        let found = Bodies::of(scan)?.map(Arc::new);
        let mut all = self.forms.lock().expect("nothing panics while it is locked");
        all.insert(key, (Arc::clone(&scan.body), found.clone()));
        Ok(found)
    }

    /// The body that adds these terms to totals of its own; see [`totals::body_with`].
    pub(super) fn with_totals(
        &self,
        scan: &Scan,
        terms: &[Term],
        types: &[Type],
        added: &[Type],
        names: &[&str],
    ) -> Result<Arc<Graph>> {
        let body = Arc::as_ptr(&scan.body).addr();
        let key = TotalsKey { body, terms: terms.to_vec(), added: added.to_vec() };
        if let Some((_, made)) = self.totals.lock().expect("nothing panics while it is locked").get(&key) {
            return Ok(Arc::clone(made));
        }
        let made = totals::body_with(scan, terms, types, added, names)?;
        let mut all = self.totals.lock().expect("nothing panics while it is locked");
        all.insert(key, (Arc::clone(&scan.body), Arc::clone(&made)));
        Ok(made)
    }

    /// Whether a loop has products and takes so many rows batch-last, also where every thread takes some.
    pub(super) fn has_products_batch_last(
        &self,
        node: &Node,
        scan: &Scan,
        rows: usize,
        known: &Known<'_>,
        target: &Target<'_>,
    ) -> Result<bool> {
        let Some(bodies) = self.forms(scan)? else { return Ok(false) };
        let bodies = bodies.given(&Fixed::of(known, node, scan)?);
        let products = matches!(bodies.products, Products::Unpacked | Products::Others);
        Ok(products && rows.div_ceil(target.threads) >= bodies.rows_batch_last(target))
    }
}

fn form<T>(found: Result<rows::Form<T>>) -> Result<Option<T>> {
    match found {
        Ok(form) => Ok(form.ok()),
        Err(e) if cfg!(debug_assertions) => Err(e),
        Err(_) => Ok(None),
    }
}

/// Finds results of a batch-last loop that only other loops read, such as what the backward loop needs of the forward one.
/// They stay batch-last, in blocks of so many rows, if all readers take such blocks; gives whether there are any.
fn pass_on(l: &mut Lower<'_>, id: u32, states: usize, rows: usize) -> Result<bool> {
    let mut any = false;
    let graph = l.graph;
    let mut readers = graph.readers().swap_remove(id as usize);
    readers.dedup();
    for slot in states..graph.nodes()[id as usize].outs.len() {
        let value = Value { node: id, slot: slot as u16 };
        if graph.outputs().iter().any(|output| output.value == value) {
            continue;
        }
        let readers: Vec<&Node> = readers.iter().map(|id| &graph.nodes()[*id as usize]).collect();
        let mut takes = vec![];
        for node in readers.into_iter().filter(|node| node.inputs.contains(&value)) {
            takes.push(takes_blocks(l, node, value, rows)?);
        }
        if !takes.is_empty() && !takes.contains(&false) {
            l.batch_last.insert(value, rows);
            any = true;
        }
    }
    Ok(any)
}

/// Whether a node is a loop that reads a value as a sequence and nothing else, and takes such blocks batch-last, too.
fn takes_blocks(l: &Lower<'_>, node: &Node, value: Value, rows: usize) -> Result<bool> {
    let Op::Scan(scan) = &node.op else { return Ok(false) };
    let sequences = scan.states..scan.states + scan.sequences;
    let mut places = (0..node.inputs.len()).filter(|i| node.inputs[*i] == value);
    let mut others = node.inputs[sequences.clone()].iter().filter_map(|v| l.batch_last.get(v));
    if scan.axis != 0 || !places.all(|i| sequences.contains(&i)) || others.any(|other| *other != rows) {
        return Ok(false);
    }
    for (i, v) in node.inputs[..sequences.end].iter().enumerate() {
        if l.sized(*v)?.shape.get(usize::from(i >= scan.states)) == Some(&0) {
            return Ok(false);
        }
    }
    let Some(bodies) = l.target.loops.forms(scan)? else { return Ok(false) };
    Ok(rows >= bodies.given(&Fixed::of(&l.known, node, scan)?).rows_batch_last(&l.target))
}

pub(super) fn lower(l: &mut Lower<'_>, id: u32, scan: &Scan) -> Result<()> {
    let node = &l.graph.nodes()[id as usize];
    let out = |slot: usize| Value { node: id, slot: slot as u16 };
    let carried = scan.states + scan.sequences;
    let mut cost = l.graph.node_cost(node, l.bindings)?;

    let steps = l.sized(node.inputs[scan.states])?.shape[scan.axis];
    // Fixed values that are known now can be packed now.
    let known = Fixed::of(&l.known, node, scan)?;
    let elements: Vec<Vec<usize>> = node.inputs[..carried]
        .iter()
        .enumerate()
        .map(|(i, &v)| {
            let mut shape = l.sized(v)?.shape;
            if i >= scan.states {
                shape.remove(scan.axis);
            }
            Ok(shape)
        })
        .collect::<Result<_>>()?;
    let bodies = if elements.iter().all(|s| s.first() != Some(&0)) { l.target.loops.forms(scan)? } else { None };
    let bodies = bodies.map(|bodies| bodies.given(&known));
    let is_total = |i: usize| bodies.as_ref().is_some_and(|b| b.totals.get(i) == Some(&true));
    let totals: Vec<bool> = (0..carried).map(is_total).collect();
    let batch = (0..carried).find(|i| !totals[*i]).and_then(|i| elements[i].first().copied()).unwrap_or(1);
    let threads = l.target.threads;
    let passed = node.inputs[scan.states..carried].iter().find_map(|v| l.batch_last.get(v).copied());
    let (blocks, body, mut tail) = match (&bodies, passed) {
        (Some(bodies), Some(rows)) => {
            // The blocks of the loop that passes values on to this one.
            let left = batch % rows;
            let body = block_as(l, rows, bodies, &known, true)?;
            let tail = if left > 0 { Some(block_as(l, left, bodies, &known, true)?) } else { None };
            (Some((batch, rows)), body, tail)
        }
        (Some(bodies), None) => {
            let (lanes, tuning) = (l.target.isa.lanes(), l.target.tuning);
            let each = tuning.transcendental_operations() as u64;
            let work = cost.flops.saturating_add(cost.transcendentals.saturating_mul(each));
            let worth = work / tuning.loop_thread_operations_least() as u64;
            let worth = usize::try_from(worth).unwrap_or(usize::MAX).max(1);
            let each = batch.div_ceil(threads.min(worth)).max(1);
            let (most, mut rows) = bodies.rows_of_block(&l.target, each);
            let (wide, more) = (bodies.rows_batch_last(&l.target), bodies.rows_more(&l.target));
            if let (Some(shared), true) = (bodies.rows_shared(&l.target, rows), rows >= wide) {
                rows = rows / lanes * lanes + shared;
            } else if rows > wide.max(more) && rows % lanes < bodies.rows_filled(&l.target) {
                // Whole registers of rows, and half of one where that pays; the remaining rows are the tail. (Or all rows,
                // if the last register is nearly full.)
                rows =
                    if rows.div_ceil(more) * more <= batch { rows.next_multiple_of(more) } else { rows / more * more };
                rows = rows.min(most / more * more);
            }
            let mut body = block(l, rows, bodies, &known)?;
            let least = match (bodies.products, body.batch_last) {
                // Their working memory does not depend on the number of rows.
                (Products::Wired, _) => rows,
                (_, true) => wide,
                (_, false) => tuning.loop_block_rows_least(),
            };
            while body.lowered.tape.arena_bytes() > tuning.loop_block_bytes_most() && rows > least {
                rows = if body.batch_last { rows.saturating_sub(lanes).max(least) } else { rows.div_ceil(2) };
                body = block(l, rows, bodies, &known)?;
            }
            let left = batch % rows;
            let tail = if left > 0 { Some(block(l, left, bodies, &known)?) } else { None };
            (Some((batch, rows)), body, tail)
        }
        (None, _) => {
            let body = Body::new(Arc::clone(&scan.body));
            let lowered = lower_body(&body, l.bindings, l.target, &known)?;
            (None, Block { lowered, batch_last: false }, None)
        }
    };

    if let (Some((rows, block)), Some(bodies)) = (blocks, &bodies)
        && scan.axis == 0
        && body.batch_last
        && pass_on(l, id, scan.states, block)?
        && tail.as_ref().is_some_and(|tail| !tail.batch_last)
    {
        // What is passed on has one form in all blocks, so the rows that are left over take it too.
        tail = Some(block_as(l, rows % block, bodies, &known, true)?);
    }

    let types = scan.body.input_types();
    let row_shape = |i: usize, shape: &[usize]| {
        // Rows matter where blocks are cut, or where time lies inside them.
        let rows = if blocks.is_some() || scan.axis == 1 { shape.first().copied().unwrap_or(1) } else { 1 };
        let bytes = byte_size(types[i].dtype, shape).unwrap_or(0);
        (rows, bytes.checked_div(rows).unwrap_or(0))
    };
    let mut states = Vec::with_capacity(scan.states);
    for (i, element) in elements[..scan.states].iter().enumerate() {
        let (init, last) = (l.read(node.inputs[i])?, l.write(out(i))?);
        let total = totals[i];
        let (rows, row_bytes) =
            if total { (1, byte_size(types[i].dtype, element).unwrap_or(0)) } else { row_shape(i, element) };
        states.push(ScanState { init, last, rows, row_bytes, total });
    }
    let mut sequences = Vec::with_capacity(scan.sequences);
    for (i, element) in elements.iter().enumerate().skip(scan.states) {
        let (rows, row_bytes) = row_shape(i, element);
        let batch_last = l.batch_last.contains_key(&node.inputs[i]);
        sequences.push(Sequence { at: l.read(node.inputs[i])?, rows, row_bytes, batch_last });
    }
    let tapes = || std::iter::once(&body).chain(&tail).map(|block| &block.lowered.tape);
    let mut fixed = Vec::with_capacity(node.inputs.len() - carried);
    for (i, &v) in node.inputs.iter().enumerate().skip(carried) {
        // Weights that are only read in packed form need no memory of their own in the run; what they still hold is
        // counted.
        match known.data.get(&i).filter(|_| !tapes().any(|tape| tape.reads_input(i))) {
            Some(data) => {
                l.count_packed(data.tensor.identity(), data.tensor.held());
                fixed.push(Ref { slot: 0, offset: 0, len: 0 });
            }
            None => fixed.push(l.read(v)?),
        }
    }
    let mut outputs = Vec::with_capacity(node.outs.len() - scan.states);
    for slot in scan.states..node.outs.len() {
        let sized = l.sized(out(slot))?;
        let mut shape = sized.shape.clone();
        shape.remove(scan.axis);
        let rows = if blocks.is_some() || scan.axis == 1 { shape.first().copied().unwrap_or(1) } else { 1 };
        let bytes = byte_size(sized.dtype, &shape).unwrap_or(0);
        let at = l.write(out(slot))?;
        let batch_last = l.batch_last.contains_key(&out(slot));
        outputs.push(Sequence { at, rows, row_bytes: bytes.checked_div(rows).unwrap_or(0), batch_last });
    }
    let tape = |block: &Block| tape::Body { tape: Arc::clone(&block.lowered.tape), batch_last: block.batch_last };
    let plan = |block: &Block| Arc::clone(&block.lowered.plan);
    let batch_axis = if body.batch_last { BatchAxis::Last } else { BatchAxis::First };
    let mut call = tape::Scan {
        steps,
        reverse: scan.reverse,
        time_inside: scan.axis == 1,
        states,
        sequences,
        fixed,
        outputs,
        blocks,
        body: tape(&body),
        tail: tail.as_ref().map(tape),
        scratch: Ref { slot: 0, offset: 0, len: 0 },
    };
    let workers = if blocks.is_some() { threads } else { 1 };
    let bytes = call.worker_bytes().checked_mul(workers).ok_or_else(|| Error::Value {
        node: node.name.clone(),
        problem: "its working memory does not fit the address space".into(),
    })?;
    call.scratch = l.scratch(bytes);
    let whole = blocks.map_or(1, |(rows, block)| rows / block);
    let block_rows = blocks.map(|(_, rows)| rows);
    // Work is counted from the bodies' plans, which may leave out some of the graph's work.
    let (plan, tail_plan) = (plan(&body), tail.as_ref().map(plan));
    let mut inside = plan.cost().times(whole as u64);
    tail_plan.iter().for_each(|tail| inside += tail.cost());
    let inside = inside.times(steps as u64);
    (cost.flops, cost.transcendentals) = (inside.flops, inside.transcendentals);
    let looped = Loop { steps, block_rows, blocks: whole, body: plan, tail: tail_plan, workgroup: None };
    let passed = || call.outputs.iter().filter(|output| output.batch_last);
    let kernel = Kernel::Scan(kernel::Scan {
        steps,
        blocks: blocks.map(|(rows, block_rows)| Blocks { rows, block_rows, threads: workers }),
        batch: batch_axis,
        passed: passed().count(),
        passed_bytes: passed().map(|output| steps * output.rows * output.row_bytes).sum(),
    });
    l.call(out(0), Call::Scan(Box::new(call)), Label { kernel, cost, in_place: false, looped: Some(Box::new(looped)) })
}
