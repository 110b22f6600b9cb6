//! From a graph to dispatches: which kernel computes which node, where values are, and what arguments kernels get.
//!
//! Slices, transposes, broadcasts and reshapes are views of other values' memory and cost nothing. A loop whose rows
//! are independent is one kernel (`scan.rs`); other loops are the kernels of their bodies, dispatched again and again.
//! Everything that can differ from run to run is an argument, so that the text of a kernel depends on the graph but not
//! on sizes.

mod constants;
mod custom;
mod describe;
mod element;
mod grid;
mod low_bit;
mod rows;
mod scan;
mod segments;
mod site;
mod synapses;
mod view;

use crate::device::Limits;
use crate::program::{Dispatch, Fault, Item, Layout, Walk};
use constants::Constants;
use element::Call;
use schwann_codegen::lang::Kernel;
use schwann_core::backend::LeftOut;
use schwann_core::graph::Node;
use schwann_core::plan::memory::{Lifetime, assign};
use schwann_core::plan::{Buffer, Loop, Place, Plan, Step};
use schwann_core::{Bindings, DType, Dim, Error, Graph, Op, Result, Value};
use site::{Pending, Site, word};
use std::collections::HashMap;
use std::sync::Arc;
use synapses::ends_are_right;
use view::{Home, View};

/// Unused words between values in tests, which show reads and writes beyond a value's own memory.
const GAP: u32 = 16;

/// A graph with everything that does not depend on sizes.
#[derive(Debug)]
pub struct Prepared {
    graph: Arc<Graph>,
    limits: Limits,
    constants: Constants,
}

impl Prepared {
    /// Collects the constants of a graph, which has gone through the passes.
    pub fn new(graph: Arc<Graph>, limits: &Limits) -> Result<Prepared> {
        let constants = Constants::of(&graph, 0, limits)?;
        Ok(Prepared { graph, limits: limits.clone(), constants })
    }

    /// The same with a gap after each constant: for tests, as [`Prepared::lay_out_apart`] is.
    pub fn apart(graph: Arc<Graph>, limits: &Limits) -> Result<Prepared> {
        let constants = Constants::of(&graph, GAP, limits)?;
        Ok(Prepared { graph, limits: limits.clone(), constants })
    }

    /// The words of the buffer of constants that belong to each of them.
    pub fn constant_places(&self) -> impl Iterator<Item = std::ops::Range<u32>> {
        self.constants.places()
    }

    /// The graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The words of the buffer of constants, with the data that this graph has for its weights: the graph that was
    /// prepared, or the same one with other data.
    pub fn constants(&self, graph: &Graph) -> Result<Vec<u32>> {
        self.constants.words(graph)
    }

    /// The dispatches for one set of sizes.
    pub fn lay_out(&self, bindings: &Bindings) -> Result<Layout> {
        self.lay_out_by(bindings, assign)
    }

    /// The same with separate memory for every intermediate value, and a gap after each: for tests, which can then see
    /// writes beyond a value's own memory.
    pub fn lay_out_apart(&self, bindings: &Bindings) -> Result<Layout> {
        self.lay_out_by(bindings, |lifetimes| {
            let mut end = 0usize;
            let mut offsets = vec![];
            for lifetime in lifetimes {
                offsets.push(end);
                end = end.saturating_add(lifetime.bytes).saturating_add(4 * GAP as usize);
            }
            (offsets, end)
        })
    }

    fn lay_out_by(&self, bindings: &Bindings, place: Placement) -> Result<Layout> {
        Ok(self.lower(bindings, place, None)?.0)
    }

    /// The same with part of a loop's kernel left out, so that it can be measured what that part takes; none if there is no
    /// such kernel, or no such step in it.
    pub fn lay_out_without(&self, bindings: &Bindings, left_out: &LeftOut) -> Result<Option<Layout>> {
        let (layout, met) = self.lower(bindings, assign, Some(left_out))?;
        Ok(met.then_some(layout))
    }

    /// Lowers the graph, and says whether it met what is to be left out.
    fn lower(&self, bindings: &Bindings, place: Placement, left_out: Option<&LeftOut>) -> Result<(Layout, bool)> {
        schwann_core::plan::check_work(&self.graph, bindings)?;
        let mut lowering = Lowering {
            bindings,
            limits: &self.limits,
            constants: &self.constants,
            kernels: vec![],
            by_kernel: HashMap::new(),
            slots: vec![],
            faults: vec![],
            open: vec![vec![]],
            time: 0,
            inputs_read: vec![false; self.graph.inputs().len()],
            left_out,
            met: false,
        };
        let mut inputs = vec![];
        for (i, (_, value)) in self.graph.inputs().enumerate() {
            let ty = self.graph.ty(value);
            inputs.push(View::whole(Home::Input(i), ty.dtype, true, ty.shape.dims())?);
        }
        let outputs = (self.graph.outputs().iter().enumerate())
            .map(|(i, output)| {
                let ty = self.graph.ty(output.value);
                View::whole(Home::Output(i), ty.dtype, true, ty.shape.dims())
            })
            .collect::<Result<Vec<_>>>()?;
        let scope = Scope { graph: &self.graph, path: vec![], place: vec![] };
        let steps = lowering.graph(&scope, inputs, &outputs)?;
        let met = lowering.met;
        Ok((lowering.finish(steps, &self.graph, place)?, met))
    }
}

/// Gives buffers offsets in one arena, and the arena's size.
type Placement = fn(&[Lifetime]) -> (Vec<usize>, usize);

/// A graph that is being lowered: the whole one or a loop's body.
struct Scope<'a> {
    graph: &'a Graph,
    /// The loops that it is in, by the number of their nodes.
    path: Vec<u32>,
    /// The plan's steps of these loops.
    place: Vec<usize>,
}

/// Memory for an intermediate value.
struct Slot {
    name: String,
    words: usize,
    first: usize,
    last: usize,
}

/// A dispatch or a loop whose arguments are not known yet, since memory is planned at the end.
enum Pend {
    Dispatch { kernel: usize, groups: [u32; 3], args: Vec<Pending>, place: Vec<usize>, walk: Option<Walk> },
    Repeat { rounds: u32, body: Vec<Pend> },
}

struct Lowering<'a> {
    bindings: &'a Bindings,
    limits: &'a Limits,
    constants: &'a Constants,
    kernels: Vec<Arc<Kernel>>,
    by_kernel: HashMap<Arc<Kernel>, usize>,
    slots: Vec<Slot>,
    faults: Vec<Fault>,
    /// The lists of dispatches that are open, from the outside in: one more for each loop around.
    open: Vec<Vec<Pend>>,
    /// How many dispatches there are so far, with loops counted once: lifetimes in memory planning are counted in
    /// these.
    time: usize,
    inputs_read: Vec<bool>,
    /// What a loop's kernel is to leave out, and whether that loop was met.
    left_out: Option<&'a LeftOut>,
    met: bool,
}

pub(crate) fn overflow() -> Error {
    Error::Dimension { dim: "a view".into(), value: i64::MAX }
}
pub(crate) fn times(a: &Dim, b: &Dim) -> Result<Dim> {
    a.checked_mul(b).ok_or_else(overflow)
}
pub(crate) fn plus(a: &Dim, b: &Dim) -> Result<Dim> {
    a.checked_add(b).ok_or_else(overflow)
}
pub(crate) fn minus(a: &Dim, b: &Dim) -> Result<Dim> {
    a.checked_sub(b).ok_or_else(overflow)
}
pub(crate) fn product(dims: &[Dim]) -> Result<Dim> {
    dims.iter().try_fold(Dim::fixed(1), |n, d| times(&n, d))
}

/// How many times a node may be applied to its own result by separate dispatches; more become a loop.
pub(crate) const UNFOLDED_MOST: usize = 8;

/// Steps for people, with the dispatches that belong to them.
type Steps = Vec<Step>;

impl Lowering<'_> {
    fn count(&self, dims: &[Dim]) -> Result<usize> {
        let mut count = 1usize;
        for dim in dims {
            count = count.checked_mul(dim.eval(self.bindings)?).ok_or_else(overflow)?;
        }
        Ok(count)
    }

    /// Memory for a value of its own, with a word for each element.
    fn slot(&mut self, name: &str, dtype: DType, dims: &[Dim]) -> Result<View> {
        let words = self.count(dims)?.max(1);
        word(words)?;
        self.slots.push(Slot { name: name.into(), words, first: self.time, last: self.time });
        View::whole(Home::Slot(self.slots.len() - 1), dtype, false, dims)
    }

    /// Records that a view's memory is used now.
    fn touch(&mut self, home: &Home) {
        match home {
            Home::Slot(slot) => self.slots[*slot].last = self.time,
            Home::Input(input) => self.inputs_read[*input] = true,
            _ => {}
        }
    }

    /// Adds a dispatch of a kernel that is finished.
    fn dispatch(&mut self, site: Site<'_>, groups: [u32; 3], place: &[usize], walk: Option<Walk>) -> Result<()> {
        let (kernel, args) = site.finish();
        let kernel = Arc::new(kernel);
        let number = match self.by_kernel.get(&kernel) {
            Some(number) => *number,
            None => {
                self.kernels.push(Arc::clone(&kernel));
                self.by_kernel.insert(kernel, self.kernels.len() - 1);
                self.kernels.len() - 1
            }
        };
        self.time += 1;
        for arg in &args {
            self.touch(&arg.home);
        }
        let pend = Pend::Dispatch { kernel: number, groups, args, place: place.to_vec(), walk };
        self.open.last_mut().ok_or_else(|| Error::Internal("no list of dispatches is open".into()))?.push(pend);
        Ok(())
    }

    /// What follows is done `rounds` times.
    fn begin_repeat(&mut self) -> usize {
        self.open.push(vec![]);
        self.time
    }

    fn end_repeat(&mut self, rounds: u32, began: usize) {
        let body = self.open.pop().unwrap_or_default();
        self.time += 1;
        // A value from before the loop that is used in it is needed until the end of the last round.
        for slot in &mut self.slots {
            if slot.first <= began && slot.last > began {
                slot.last = self.time;
            }
        }
        if let Some(list) = self.open.last_mut() {
            list.push(Pend::Repeat { rounds, body });
        }
    }

    /// Lowers the nodes of a graph. `outputs` is where its results are wanted.
    fn graph(&mut self, scope: &Scope<'_>, inputs: Vec<View>, outputs: &[View]) -> Result<Steps> {
        let graph = scope.graph;
        let mut values: HashMap<Value, View> = HashMap::new();
        let mut steps: Steps = vec![];
        let mut inputs = inputs.into_iter();
        // Results that are computed directly into an output; a value that is several outputs, into the first of them.
        let mut wanted: HashMap<Value, &View> = HashMap::new();
        for (output, view) in graph.outputs().iter().zip(outputs) {
            let computed = !graph.node(output.value).op.is_source() && !may_be_view(&graph.node(output.value).op);
            if computed && (!view.packed || view.dtype.bits() == 32) {
                wanted.entry(output.value).or_insert(view);
            }
        }
        for (id, node) in graph.nodes().iter().enumerate() {
            let id = id as u32;
            let value = Value { node: id, slot: 0 };
            let get = |values: &HashMap<Value, View>, v: &Value| {
                values
                    .get(v)
                    .cloned()
                    .ok_or_else(|| Error::Internal(format!("`{}` reads a value too early", node.name)))
            };
            match &node.op {
                Op::Input { .. } => {
                    let view = inputs.next().ok_or_else(|| Error::Internal("a graph with an input too few".into()))?;
                    values.insert(value, view);
                    continue;
                }
                Op::Weight { .. } | Op::Const(_) => {
                    values.insert(value, self.constants.view(&scope.path, id, node)?);
                    continue;
                }
                _ => {}
            }
            let operands = node.inputs.iter().map(|v| get(&values, v)).collect::<Result<Vec<_>>>()?;
            if let Some(view) = self.as_view(node, &operands)? {
                values.insert(value, view);
                continue;
            }
            let mut outs = vec![];
            for (slot, ty) in node.outs.iter().enumerate() {
                let value = Value { node: id, slot: slot as u16 };
                outs.push(match wanted.get(&value) {
                    Some(view) => (*view).clone(),
                    None => self.slot(&node.name, ty.dtype, ty.shape.dims())?,
                });
            }
            let place = [&scope.place[..], &[steps.len()]].concat();
            let looped = self.node(scope, id, node, &operands, &outs, &place)?;
            steps.push(self.step(graph, node, &operands, &outs, looped)?);
            for (slot, view) in outs.into_iter().enumerate() {
                // Values that have a word for each element are read that way.
                let view = View { packed: view.packed && view.dtype.bits() != 32, ..view };
                values.insert(Value { node: id, slot: slot as u16 }, view);
            }
        }
        for (output, view) in graph.outputs().iter().zip(outputs) {
            let found = values.get(&output.value).ok_or_else(|| Error::Internal("a result is missing".into()))?.clone();
            if found.home == view.home && found.strides == view.strides {
                continue;
            }
            let place = [&scope.place[..], &[steps.len()]].concat();
            self.copy(&found, view, &place)?;
            steps.push(self.copy_step(&output.name, graph, output.value, &found, view)?);
        }
        Ok(steps)
    }

    /// The view of a node that needs no memory of its own, if it is one.
    fn as_view(&mut self, node: &Node, operands: &[View]) -> Result<Option<View>> {
        let dims = node.outs[0].shape.dims();
        Ok(match &node.op {
            Op::Reshape { .. } => operands[0].reshaped(dims)?,
            Op::Transpose { perm } => Some(operands[0].transposed(perm)),
            Op::Slice { axis, start, .. } => Some(operands[0].sliced(*axis, start, &dims[*axis])?),
            Op::Broadcast { .. } => Some(operands[0].stretched(dims)),
            _ => None,
        })
    }

    /// One node's dispatches; for a loop, how it runs.
    fn node(
        &mut self,
        scope: &Scope<'_>,
        id: u32,
        node: &Node,
        operands: &[View],
        outs: &[View],
        place: &[usize],
    ) -> Result<Option<Box<Loop>>> {
        if let Op::Scan(scan) = &node.op {
            return self.scan(scope, id, scan, operands, outs, place).map(Some);
        }
        let dtypes: Vec<DType> = node.outs.iter().map(|t| t.dtype).collect();
        let lists = self.constants.synapses(&scope.path, id);
        let right = match &node.op {
            Op::SynapseSum { axis, .. } | Op::SynapseRatio { axis, .. } => {
                let sizes = [&operands[0].dims[*axis], &node.outs[0].shape.dims()[*axis]];
                ends_are_right(self.constants, &operands[1..3], sizes)
            }
            _ => false,
        };
        let fault = self.fault(node, lists.is_some() || right)?;
        let call = Call {
            name: &node.name,
            op: &node.op,
            inputs: operands,
            dtypes: &dtypes,
            dims: node.outs[0].shape.dims(),
            synapses: lists,
            fault,
            lanes: None,
        };
        if self.rows(&call, outs, place)? {
            return Ok(None);
        }
        match &node.op {
            Op::SynapseRatio { activation, axis, times } if *times > 1 => {
                let once = Op::SynapseRatio { activation: *activation, axis: *axis, times: 1 };
                let mut x = operands[0].clone();
                let mut rest = *times;
                if rest > UNFOLDED_MOST {
                    // Alternates between two places.
                    let here = self.slot(&node.name, dtypes[0], call.dims)?;
                    let there = self.slot(&node.name, dtypes[0], call.dims)?;
                    self.copy(&x, &here, place)?;
                    let began = self.begin_repeat();
                    for [from, to] in [[&here, &there], [&there, &here]] {
                        let mut inputs = operands.to_vec();
                        inputs[0] = from.clone();
                        self.elements(&Call { op: &once, inputs: &inputs, ..call }, std::slice::from_ref(to), place)?;
                    }
                    let rounds = (rest - 1) / 2;
                    self.end_repeat(word(rounds)?, began);
                    rest -= 2 * rounds;
                    x = here;
                }
                for time in 0..rest {
                    let last = time + 1 == rest;
                    let to = if last { outs[0].clone() } else { self.slot(&node.name, dtypes[0], call.dims)? };
                    let mut inputs = operands.to_vec();
                    inputs[0] = x;
                    self.elements(&Call { op: &once, inputs: &inputs, ..call }, std::slice::from_ref(&to), place)?;
                    x = View { packed: false, ..to };
                }
            }
            _ => self.elements(&call, outs, place)?,
        }
        Ok(None)
    }

    /// A word of the buffer of faults for a node whose indices may be out of range.
    fn fault(&mut self, node: &Node, known: bool) -> Result<Option<u32>> {
        let what = match &node.op {
            Op::Gather { .. } => "an index",
            Op::Put { .. } => "an index",
            Op::Attention { positions: true, .. } => "a position",
            Op::SegmentSum { .. } => "a segment",
            Op::SynapseSum { .. } | Op::SynapseRatio { .. } if !known => "a source or destination",
            _ => return Ok(None),
        };
        let problem = match &node.op {
            Op::Put { .. } => format!("{what} is out of range, or not after the one before it"),
            _ => format!("{what} is out of range"),
        };
        self.faults.push(Fault { node: node.name.clone(), problem });
        word(self.faults.len() - 1).map(Some)
    }

    /// The plan's step of a node.
    fn step(
        &self,
        graph: &Graph,
        node: &Node,
        operands: &[View],
        outs: &[View],
        looped: Option<Box<Loop>>,
    ) -> Result<Step> {
        let shape = node.outs[0].shape.eval(self.bindings)?;
        Ok(Step {
            name: node.name.clone(),
            op: node.op.name().into(),
            kernel: describe::kernel(graph, node, self.bindings, looped.as_deref())?,
            out: format!("{}{shape:?}", node.outs[0].dtype),
            reads: operands.iter().map(|v| place_of(v, graph)).collect(),
            writes: outs.iter().map(|v| place_of(v, graph)).collect(),
            cost: graph.node_cost(node, self.bindings)?,
            in_place: false,
            looped,
        })
    }

    fn copy_step(&self, name: &str, graph: &Graph, value: Value, from: &View, to: &View) -> Result<Step> {
        let ty = graph.ty(value);
        let shape = ty.shape.eval(self.bindings)?;
        let bytes = (ty.dtype.size() * self.count(ty.shape.dims())?) as u64;
        Ok(Step {
            name: name.into(),
            op: "output".into(),
            kernel: schwann_core::plan::Kernel::Move(schwann_core::plan::kernel::Move::ToOutput),
            out: format!("{}{shape:?}", ty.dtype),
            reads: vec![place_of(from, graph)],
            writes: vec![place_of(to, graph)],
            cost: schwann_core::Cost { bytes_read: bytes, bytes_written: bytes, ..Default::default() },
            in_place: false,
            looped: None,
        })
    }

    /// Plans memory, and computes every argument.
    fn finish(mut self, steps: Steps, graph: &Graph, place: Placement) -> Result<Layout> {
        let lifetime = |slot: &Slot| Lifetime { bytes: slot.words * 4, first: slot.first, last: slot.last };
        let lifetimes: Vec<Lifetime> = self.slots.iter().map(lifetime).collect();
        let (offsets, arena_bytes) = place(&lifetimes);
        let words = offsets.iter().map(|&bytes| word(bytes / 4)).collect::<Result<Vec<_>>>()?;
        let items = settle(self.open.pop().unwrap_or_default(), &words)?;
        let buffer = |(slot, offset): (&Slot, &usize)| Buffer {
            name: slot.name.clone(),
            offset: *offset,
            bytes: slot.words * 4,
            first: slot.first,
            last: slot.last,
            scratch: false,
        };
        let buffers: Vec<Buffer> = self.slots.iter().zip(&offsets).map(buffer).collect();
        let plan = Plan {
            // Filled in by the backend that runs it.
            backend: String::new(),
            threads: 1,
            bindings: self.bindings.clone(),
            steps,
            live_bytes: live(&buffers),
            buffers,
            arena_bytes,
            weight_bytes: graph.weights().values().map(|t| t.bytes().len()).sum(),
            unified_memory: None,
        };
        Ok(Layout {
            plan,
            kernels: self.kernels,
            items,
            scratch_words: word(arena_bytes.div_ceil(4))?,
            inputs_read: self.inputs_read,
            faults: self.faults,
        })
    }
}

/// The most bytes that are alive at one time.
fn live(buffers: &[Buffer]) -> usize {
    let mut events: Vec<(usize, bool, usize)> = vec![];
    for b in buffers {
        events.push((b.first, true, b.bytes));
        events.push((b.last + 1, false, b.bytes));
    }
    // At the same time, buffers that end come before buffers that begin.
    events.sort_unstable();
    let (mut now, mut most) = (0usize, 0usize);
    for (_, comes, bytes) in events {
        now = if comes { now + bytes } else { now - bytes };
        most = most.max(now);
    }
    most
}

/// Whether an operation can be a view of its operand.
fn may_be_view(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. } | Op::Broadcast { .. })
}

fn settle(pending: Vec<Pend>, slots: &[u32]) -> Result<Vec<Item>> {
    let one = |pend| {
        Ok(match pend {
            Pend::Repeat { rounds, body } => Item::Repeat { rounds, body: settle(body, slots)? },
            Pend::Dispatch { kernel, groups, args, place, walk } => {
                let args = args.iter().map(|arg| arg.settle(slots)).collect::<Result<_>>()?;
                Item::Dispatch(Dispatch { kernel, groups, args, place, walk })
            }
        })
    };
    pending.into_iter().map(one).collect()
}

fn place_of(view: &View, graph: &Graph) -> Place {
    let input = |i: usize| graph.inputs().nth(i).map_or_else(String::new, |(name, _)| name.to_owned());
    match view.home {
        Home::Slot(slot) => Place::Buffer(slot),
        Home::Input(i) => Place::Input(input(i)),
        Home::Output(o) => Place::Output(graph.outputs().get(o).map_or_else(String::new, |o| o.name.clone())),
        Home::Constant(_) | Home::Number(_) | Home::Shared(..) => Place::Constant("constant".into()),
    }
}
