//! Lowering: a graph and sizes become kernel calls over one arena, and the plan that describes them.
//!
//! Placement ([`super::place`]) comes first. Then nodes are visited in schedule order, and each chooses its calls. A
//! result goes where placement put it; else into the memory of an input that is read here for the last time, if the
//! kernel can work in place; else into a new buffer. Buffers have no offsets yet; calls name them by number. Once all
//! calls are chosen, each buffer's lifetime is known (from the first call that uses it to the last), and the numbers
//! become offsets.

use super::calls;
use super::gated::{self, Cells};
use super::known::{Data, Known};
use super::packs::Packs;
use super::place::Placement;
use super::{scan, synapse, totals, wired};
use crate::backend::state_places;
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value};
use crate::op::{Cost, Op};
use crate::plan::kernel::Move;
use crate::plan::memory::{self, Lifetime};
use crate::plan::{self, Buffer, Kernel, Loop, Plan, Step};
use crate::shape::Bindings;
use crate::{DType, Type};
use schwann_kernels::Isa;
use schwann_kernels::tape::{ARENA_ALIGN, Call, Const, Extent, LARGEST, Memory, Ref, Space, Tape};
use schwann_kernels::tuning::{Machine, Tuning};
use std::collections::HashMap;
use std::sync::Arc;

/// What lowering compiles for.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) isa: Isa,
    pub(super) tuning: &'a Tuning,
    pub(super) threads: usize,
    pub(super) packs: &'a Packs,
    pub(super) loops: &'a scan::Loops,
}

impl<'a> Target<'a> {
    /// The instruction set and tuning of the kernels.
    pub(super) fn machine(&self) -> Machine<'a> {
        Machine { isa: self.isa, tuning: self.tuning }
    }
}

/// A plan and the tape that carries it out.
#[derive(Debug)]
pub(super) struct Lowered {
    pub(super) plan: Arc<Plan>,
    pub(super) tape: Arc<Tape>,
    /// For states that are changed where they are, their places among the inputs and among the outputs.
    pub(super) in_place: Vec<(usize, usize)>,
}

/// Buffers that have no offset yet are slots from here on.
const UNPLACED: u32 = 1 << 31;

/// The most bytes of all values of a graph together, and of its arena. On 64 bits this is more than any machine has,
/// and small enough that sums of offsets do not overflow; on 32 bits it is a quarter of the address space.
const MOST_BYTES: usize = if usize::BITS > 32 { usize::MAX >> 8 } else { usize::MAX >> 2 };

/// Where a value is: in which memory, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) home: Home,
    pub(super) offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Input(usize),
    Output(usize),
    Const(usize),
    Buffer(usize),
}

struct BufferInfo {
    name: String,
    bytes: usize,
    first: usize,
    last: usize,
    scratch: bool,
}

pub(super) struct Lower<'a> {
    pub(super) graph: &'a Graph,
    pub(super) bindings: &'a Bindings,
    pub(super) target: Target<'a>,
    pub(super) known: Known<'a>,
    pub(super) placement: Placement,
    pub(super) cells: Cells,
    pub(super) memory: Memory,
    pub(super) const_names: Vec<String>,
    places: HashMap<Value, Place>,
    /// The strides of values that are slices or repetitions of others and have not been copied.
    views: HashMap<Value, Vec<usize>>,
    /// Known values that were repeated to fill a shape before the run.
    pub(super) stretched: HashMap<(Value, Vec<usize>), Place>,
    /// Values that loops pass to each other batch-last, in blocks of so many rows.
    pub(super) batch_last: HashMap<Value, usize>,
    /// The place in the schedule that is being lowered.
    at: usize,
    /// Inputs' names in their order.
    input_names: Vec<&'a str>,
    buffers: Vec<BufferInfo>,
    calls: Vec<Call>,
    steps: Vec<Step>,
    /// Bytes of packed weights, each counted once.
    packed: HashMap<usize, usize>,
}

/// Lowers `graph` for the sizes in `bindings`; `given` are inputs whose data is already known.
pub(super) fn lower(
    graph: &Graph,
    bindings: &Bindings,
    target: Target<'_>,
    given: &HashMap<usize, Data>,
) -> Result<Lowered> {
    check_slices(graph, bindings)?;
    let stretched = target.tuning.stretched_bytes_most();
    let mut known = Known::of(graph, bindings, given, stretched)?;
    let with_totals = totals::into_loops(graph, bindings, &target, &known)?;
    let graph = with_totals.as_ref().unwrap_or(graph);
    if with_totals.is_some() {
        known = Known::of(graph, bindings, given, stretched)?;
    }
    let cells = Cells::of(graph, bindings, &target, &known)?;
    match cells.expand_others(graph)? {
        None => lower_with(graph, bindings, target, known, cells),
        Some(graph) => {
            let known = Known::of(&graph, bindings, given, stretched)?;
            let cells = Cells::of(&graph, bindings, &target, &known)?;
            lower_with(&graph, bindings, target, known, cells)
        }
    }
}

/// A slice of a symbolic axis may turn out longer than the axis.
fn check_slices(graph: &Graph, bindings: &Bindings) -> Result<()> {
    for node in graph.nodes() {
        let Op::Slice { axis, start, end } = &node.op else { continue };
        let size = sized(graph, bindings, node.inputs[0])?.shape[*axis];
        let (start, end) = (start.eval(bindings)?, end.eval(bindings)?);
        if start > end || end > size {
            let problem = format!("slice {start}..{end} of {size} elements");
            return Err(Error::Value { node: node.name.clone(), problem });
        }
    }
    Ok(())
}

fn lower_with(
    graph: &Graph,
    bindings: &Bindings,
    target: Target<'_>,
    known: Known<'_>,
    cells: Cells,
) -> Result<Lowered> {
    // Sizes first: from here on, products of sizes do not overflow.
    let mut bytes = Vec::with_capacity(graph.nodes().len());
    let mut total = 0usize;
    for node in graph.nodes() {
        let mut all = 0usize;
        for t in &node.outs {
            let shape = t.shape.eval(bindings)?;
            let addressed = crate::tensor::count(&shape).is_some_and(|n| n <= LARGEST);
            let one = byte_size(t.dtype, &shape).filter(|_| addressed);
            all = one.and_then(|one| all.checked_add(one)).ok_or_else(|| too_large(node))?;
        }
        total = total.checked_add(all).filter(|n| *n <= MOST_BYTES).ok_or_else(|| too_large(node))?;
        bytes.push(all);
    }
    let order = plan::schedule(graph, &bytes);
    let placement = Placement::of(graph, bindings, &target, &known, &cells, &order)?;
    let mut lower = Lower {
        graph,
        bindings,
        target,
        known,
        placement,
        cells,
        memory: Memory::default(),
        const_names: Vec::new(),
        places: HashMap::new(),
        views: HashMap::new(),
        stretched: HashMap::new(),
        batch_last: HashMap::new(),
        at: 0,
        input_names: graph.inputs().map(|(name, _)| name).collect(),
        buffers: Vec::new(),
        calls: Vec::new(),
        steps: Vec::new(),
        packed: HashMap::new(),
    };
    lower.interface()?;
    for (at, id) in order.into_iter().enumerate() {
        lower.at = at;
        lower.node(id)?;
    }
    lower.copy_outputs()?;
    lower.finish()
}

fn too_large(node: &Node) -> Error {
    Error::Value { node: node.name.clone(), problem: "it has more elements than any memory holds".into() }
}

/// Bytes of a tensor; `None` beyond the address space.
pub(super) fn byte_size(dtype: DType, shape: &[usize]) -> Option<usize> {
    dtype.bytes_for(crate::tensor::count(shape)?).filter(|n| *n <= isize::MAX as usize)
}

/// A type with its sizes as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sized {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
}
impl Sized {
    pub(super) fn count(&self) -> usize {
        self.shape.iter().product()
    }
    pub(super) fn bytes(&self) -> usize {
        self.count() * self.dtype.size()
    }
    /// Row-major strides in elements.
    pub(super) fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.shape.len()];
        for i in (1..self.shape.len()).rev() {
            strides[i - 1] = strides[i] * self.shape[i].max(1);
        }
        strides
    }
    /// Strides with which this stretches to `shape`: 0 where an axis is repeated.
    pub(super) fn strides_in(&self, shape: &[usize]) -> Vec<usize> {
        self.stretch(&self.strides(), shape)
    }
    /// The same, for a value with the strides `own`.
    pub(super) fn stretch(&self, own: &[usize], shape: &[usize]) -> Vec<usize> {
        let missing = shape.len() - self.shape.len();
        (0..shape.len())
            .map(|i| if i < missing || (self.shape[i - missing] == 1 && shape[i] != 1) { 0 } else { own[i - missing] })
            .collect()
    }
}

/// How a step is described in the plan.
pub(super) struct Label {
    pub(super) kernel: Kernel,
    pub(super) cost: Cost,
    pub(super) in_place: bool,
    pub(super) looped: Option<Box<Loop>>,
}

/// The type of a value, with sizes.
pub(super) fn sized(graph: &Graph, bindings: &Bindings, value: Value) -> Result<Sized> {
    let Type { dtype, shape } = graph.ty(value);
    Ok(Sized { dtype: *dtype, shape: shape.eval(bindings)? })
}

impl Lower<'_> {
    /// The type of a value, with sizes.
    pub(super) fn sized(&self, value: Value) -> Result<Sized> {
        sized(self.graph, self.bindings, value)
    }

    fn interface(&mut self) -> Result<()> {
        for (i, (_, value)) in self.graph.inputs().enumerate() {
            let sized = self.sized(value)?;
            self.memory.inputs.push(Extent { bytes: sized.bytes(), align: sized.dtype.size() });
            self.places.insert(value, Place { home: Home::Input(i), offset: 0 });
        }
        for output in self.graph.outputs() {
            let sized = self.sized(output.value)?;
            self.memory.outputs.push(Extent { bytes: sized.bytes(), align: sized.dtype.size() });
        }
        Ok(())
    }

    fn node(&mut self, id: u32) -> Result<()> {
        let node = &self.graph.nodes()[id as usize];
        let value = Value { node: id, slot: 0 };
        match &node.op {
            // A weight becomes a constant of the tape when a call reads it, so that one that is only read in packed
            // form is not kept twice.
            Op::Input { .. } | Op::Weight { .. } | Op::Const(_) => Ok(()),
            Op::Broadcast { .. } if !self.placement.direct.contains_key(&value) && self.known.contains(value) => Ok(()),
            Op::GatedCell { .. } => match self.cells.get(value) {
                Some(cell) => gated::lower(self, value, cell),
                None => Err(Error::Internal(format!("`{}` is a cell that was not expanded", node.name))),
            },
            Op::Scan(s) => scan::lower(self, id, s),
            // Not made: its readers read its two parts.
            Op::Concat { .. } if self.placement.split.contains_key(&value) => Ok(()),
            Op::SynapseSum { .. } | Op::SynapseRatio { .. } => synapse::lower(self, id),
            Op::SynapseGradient { .. } => wired::lower(self, id),
            _ if self.alias(value, node)? || self.delay(value, node)? => Ok(()),
            _ => calls::lower(self, value, node),
        }
    }

    /// Gives the result its input's memory where the operation only renames it.
    fn alias(&mut self, value: Value, node: &Node) -> Result<bool> {
        let Some(&x) = node.inputs.first() else { return Ok(false) };
        let (from, to) = (self.sized(x)?, self.sized(value)?);
        if self.views.contains_key(&x) {
            if !matches!(node.op, Op::Reshape { .. }) {
                return Ok(false);
            }
            self.settle(x)?;
        }
        let moved = match &node.op {
            Op::Reshape { .. } => Some(0),
            Op::Broadcast { .. } if from.count() == to.count() => Some(0),
            // Only axes of size 1 change places.
            Op::Transpose { perm } => {
                let real: Vec<usize> = perm.iter().copied().filter(|p| from.shape[*p] != 1).collect();
                real.is_sorted().then_some(0)
            }
            Op::Slice { axis, start, .. } => {
                let outer: usize = from.shape[..*axis].iter().product();
                let inner: usize = from.shape[axis + 1..].iter().product();
                let start = start.eval(self.bindings)?;
                (outer <= 1 || from.shape[*axis] == to.shape[*axis]).then_some(start * inner * from.dtype.size())
            }
            _ => None,
        };
        // A value that goes straight to an output is copied there, unless it is a reshape: then the value that it
        // reshapes is written there.
        let Some(moved) = moved else { return Ok(false) };
        if self.placement.direct.contains_key(&value) && to.count() > 0 {
            return Ok(false);
        }
        let mut place = self.place(x)?;
        place.offset += moved;
        self.places.insert(value, place);
        Ok(true)
    }

    /// Makes a slice or a repetition a view of its operand's memory. Calls that can read strides use the view; for
    /// others it is copied when they need it.
    fn delay(&mut self, value: Value, node: &Node) -> Result<bool> {
        let to = self.sized(value)?;
        if !matches!(node.op, Op::Slice { .. } | Op::Broadcast { .. })
            || self.placement.direct.contains_key(&value)
            || to.count() == 0
        {
            return Ok(false);
        }
        let x = node.inputs[0];
        let from = self.sized(x)?;
        let own = self.views.get(&x).cloned().unwrap_or_else(|| from.strides());
        let mut place = self.place(x)?;
        let strides = match &node.op {
            Op::Slice { axis, start, .. } => {
                place.offset += start.eval(self.bindings)? * own[*axis] * from.dtype.size();
                own
            }
            _ => {
                let missing = to.shape.len() - from.shape.len();
                let kept = |i: usize| i >= missing && from.shape[i - missing] == to.shape[i];
                (0..to.shape.len()).map(|i| if kept(i) { own[i - missing] } else { 0 }).collect()
            }
        };
        self.places.insert(value, place);
        self.views.insert(value, strides);
        Ok(true)
    }

    /// A value to read with strides: where, and how far apart its elements are.
    pub(super) fn view(&mut self, value: Value) -> Result<(Ref, Vec<usize>)> {
        let sized = self.sized(value)?;
        let Some(strides) = self.views.get(&value).cloned() else {
            return Ok((self.read(value)?, sized.strides()));
        };
        let place = self.place(value)?;
        let last: usize = sized.shape.iter().zip(&strides).map(|(d, s)| d.saturating_sub(1) * s).sum();
        Ok((self.reference(place, (last + 1) * sized.dtype.size()), strides))
    }

    /// A matrix to read row by row: where, and how many elements rows are apart. Its columns are contiguous.
    pub(super) fn columns(&mut self, value: Value) -> Result<(Ref, usize)> {
        if self.views.get(&value).is_some_and(|strides| strides[1] != 1) {
            self.settle(value)?;
        }
        let (at, strides) = self.view(value)?;
        Ok((at, strides[0]))
    }

    /// Copies a view to memory of its own.
    fn settle(&mut self, value: Value) -> Result<()> {
        let (src, strides) = self.view(value)?;
        let sized = self.sized(value)?;
        self.views.remove(&value);
        let new = self.new_buffer(&self.graph.node(value).name.clone(), sized.bytes(), false);
        self.places.insert(value, new);
        let dst = self.reference(new, sized.bytes());
        let bytes = sized.bytes() as u64;
        let cost = Cost { bytes_read: bytes, bytes_written: bytes, ..Cost::default() };
        let kernel = Kernel::Move(Move::Copy { of: self.graph.node(value).op.name().into() });
        let call = calls::copy(&sized, src, &strides, dst, &sized.strides());
        self.call(value, call, Label { kernel, cost, in_place: false, looped: None })
    }

    fn place(&mut self, value: Value) -> Result<Place> {
        if let Some(place) = self.places.get(&value) {
            return Ok(*place);
        }
        let data = self.known.data(value)?.ok_or_else(|| {
            Error::Internal(format!("`{}` is read before it is computed", self.graph.node(value).name))
        })?;
        self.memory.consts.push(self.target.packs.constant(&data, None)?);
        self.const_names.push(self.graph.node(value).name.clone());
        let place = Place { home: Home::Const(self.memory.consts.len() - 1), offset: 0 };
        self.places.insert(value, place);
        Ok(place)
    }

    /// The parts of a concatenation that is read in parts.
    pub(super) fn parts(&self, value: Value) -> Option<[Value; 2]> {
        self.placement.split.get(&value).copied()
    }

    /// Whether a value was written directly into its place in a concatenation.
    pub(super) fn is_within(&self, part: Value, whole: Value, at: usize) -> bool {
        let Placement { within, also, .. } = &self.placement;
        [within, also].into_iter().any(|made| made.get(&part) == Some(&(whole, at)))
    }

    /// An operand with one known number for each row of `out`, repeated to a constant of all of `out`'s elements: the
    /// kernel reads that faster than one number for each row. `None` if `x` is not such an operand, or the constant
    /// would be too large.
    pub(super) fn stretched(&mut self, value: Value, x: &Sized, out: &Sized) -> Result<Option<Ref>> {
        let most = self.target.tuning.stretched_bytes_most();
        let one_a_row = x.dtype == DType::F32 && x.shape.last() == Some(&1) && out.shape.last().is_some_and(|n| *n > 1);
        if !one_a_row || x.count() * 2 > out.count() || x.count() < 2 || out.count() * 4 > most {
            return Ok(None);
        }
        let Some(data) = self.known.data(value)? else { return Ok(None) };
        let key = (value, out.shape.clone());
        let bytes = out.count() * 4;
        if let Some(&place) = self.stretched.get(&key) {
            return Ok(Some(self.reference(place, bytes)));
        }
        self.memory.consts.push(self.target.packs.constant(&data, Some(&out.shape))?);
        self.const_names.push(format!("{} (stretched)", self.graph.node(value).name));
        let place = Place { home: Home::Const(self.memory.consts.len() - 1), offset: 0 };
        self.stretched.insert(key, place);
        Ok(Some(self.reference(place, bytes)))
    }

    pub(super) fn reference(&self, place: Place, bytes: usize) -> Ref {
        let slot = match place.home {
            Home::Input(i) => self.memory.slot(Space::Input(i)),
            Home::Output(i) => self.memory.slot(Space::Output(i)),
            Home::Const(i) => self.memory.slot(Space::Const(i)),
            Home::Buffer(b) => UNPLACED + b as u32,
        };
        // An empty reference begins at 0, since the offset of an empty part may be beyond the memory's end.
        Ref { slot, offset: if bytes == 0 { 0 } else { place.offset }, len: bytes }
    }

    /// A value to read, contiguous.
    pub(super) fn read(&mut self, value: Value) -> Result<Ref> {
        if self.views.contains_key(&value) {
            self.settle(value)?;
        }
        let place = self.place(value)?;
        let bytes = self.sized(value)?.bytes();
        Ok(self.reference(place, bytes))
    }

    fn new_buffer(&mut self, name: &str, bytes: usize, scratch: bool) -> Place {
        let step = self.calls.len();
        let buffer = BufferInfo { name: name.into(), bytes, first: step, last: step, scratch };
        self.buffers.push(buffer);
        Place { home: Home::Buffer(self.buffers.len() - 1), offset: 0 }
    }

    /// Memory for a result.
    pub(super) fn write(&mut self, value: Value) -> Result<Ref> {
        let bytes = self.sized(value)?.bytes();
        // A concatenation got its place when the first of its parts was written.
        if let Some(&place) = self.places.get(&value) {
            return Ok(self.reference(place, bytes));
        }
        let Placement { direct, within, .. } = &self.placement;
        let place = match (direct.get(&value), within.get(&value).copied()) {
            (Some(&output), _) => Place { home: Home::Output(output), offset: 0 },
            (None, Some((whole, at))) => {
                self.write(whole)?;
                let mut place = self.place(whole)?;
                place.offset += at;
                place
            }
            (None, None) => self.new_buffer(&self.graph.node(value).name.clone(), bytes, false),
        };
        self.places.insert(value, place);
        Ok(self.reference(place, bytes))
    }

    /// A second place for a result, if it is wanted in two, and how many elements its rows are apart there.
    pub(super) fn write_also(&mut self, value: Value) -> Result<Option<(Ref, usize)>> {
        let Some(&(whole, at)) = self.placement.also.get(&value) else { return Ok(None) };
        self.write(whole)?;
        let mut place = self.place(whole)?;
        place.offset += at;
        let (own, apart) = (self.sized(value)?, self.sized(whole)?.strides()[0]);
        let last = own.shape[0].saturating_sub(1) * apart + own.shape[1];
        Ok(Some((self.reference(place, last * own.dtype.size()), apart)))
    }

    /// Memory for a result, which may overwrite one of `candidates` if nothing reads that one after this node. Also
    /// gives whether it does.
    pub(super) fn write_over(&mut self, value: Value, candidates: &[Value]) -> Result<(Ref, bool)> {
        let node = self.graph.node(value);
        let bytes = self.sized(value)?.bytes();
        let Placement { direct, within, .. } = &self.placement;
        if !direct.contains_key(&value) && !within.contains_key(&value) && bytes > 0 {
            for &candidate in candidates {
                let Some(&place) = self.places.get(&candidate) else { continue };
                if self.views.contains_key(&candidate) {
                    continue;
                }
                let Home::Buffer(b) = place.home else { continue };
                // Any other input in the same memory would be overwritten while it is still read.
                let shared = node
                    .inputs
                    .iter()
                    .any(|v| *v != candidate && self.places.get(v).is_some_and(|p| p.home == place.home));
                // Another result of the same call may already overwrite it.
                let taken = (0..value.slot)
                    .any(|slot| self.places.get(&Value { slot, ..value }).is_some_and(|p| p.home == place.home));
                let dies = self.placement.dies_at(candidate, self.at) && !shared && !taken;
                if dies && place.offset == 0 && self.buffers[b].bytes == bytes && !self.buffers[b].scratch {
                    self.places.insert(value, place);
                    return Ok((self.reference(place, bytes), true));
                }
            }
        }
        Ok((self.write(value)?, false))
    }

    /// Working memory for the next call.
    pub(super) fn scratch(&mut self, bytes: usize) -> Ref {
        if bytes == 0 {
            return Ref { slot: 0, offset: 0, len: 0 };
        }
        let place = self.new_buffer("scratch", bytes, true);
        self.reference(place, bytes)
    }

    /// Counts a packed weight's memory, once.
    pub(super) fn count_packed(&mut self, identity: usize, bytes: usize) {
        self.packed.insert(identity, bytes);
    }

    /// Adds a call. Scratch memory that was taken before it is needed until this call.
    pub(super) fn call(&mut self, value: Value, mut call: Call, label: Label) -> Result<()> {
        let node = self.graph.node(value);
        let out = self.sized(value)?;
        let refs = call.refs();
        let at = self.calls.len();
        for (r, _) in &refs {
            if r.slot >= UNPLACED {
                let buffer = &mut self.buffers[(r.slot - UNPLACED) as usize];
                buffer.last = buffer.last.max(at);
            }
        }
        let places = |written: bool| {
            refs.iter().filter(|(r, w)| *w == written && r.len > 0).map(|(r, _)| self.describe(r)).collect::<Vec<_>>()
        };
        let step = Step {
            name: node.name.clone(),
            op: node.op.name().into(),
            kernel: label.kernel,
            out: format!("{}{:?}", out.dtype, out.shape),
            reads: places(false),
            writes: places(true),
            cost: label.cost,
            in_place: label.in_place,
            looped: label.looped,
        };
        self.steps.push(step);
        self.calls.push(call);
        Ok(())
    }

    fn describe(&self, r: &Ref) -> plan::Place {
        if r.slot >= UNPLACED {
            return plan::Place::Buffer((r.slot - UNPLACED) as usize);
        }
        let slot = r.slot as usize;
        let (inputs, outputs) =
            (1 + self.memory.inputs.len(), 1 + self.memory.inputs.len() + self.memory.outputs.len());
        if slot < inputs {
            plan::Place::Input(self.input_names[slot - 1].to_owned())
        } else if slot < outputs {
            plan::Place::Output(self.graph.outputs()[slot - inputs].name.clone())
        } else {
            plan::Place::Constant(self.const_names[slot - outputs].clone())
        }
    }

    /// Copies results that are not in an output's memory yet: inputs, weights, parts of other values, and values that
    /// are several outputs.
    fn copy_outputs(&mut self) -> Result<()> {
        for i in 0..self.graph.outputs().len() {
            let output = &self.graph.outputs()[i];
            let value = output.value;
            let place = self.place(value)?;
            if place.home == Home::Output(i) {
                continue;
            }
            let sized = self.sized(value)?;
            if sized.count() == 0 {
                continue;
            }
            let (src, strides) = self.view(value)?;
            let dst = self.reference(Place { home: Home::Output(i), offset: 0 }, sized.bytes());
            let call = calls::copy(&sized, src, &strides, dst, &sized.strides());
            let bytes = sized.bytes() as u64;
            let cost = Cost { bytes_read: bytes, bytes_written: bytes, ..Cost::default() };
            self.call(
                value,
                call,
                Label { kernel: Kernel::Move(Move::ToOutput), cost, in_place: false, looped: None },
            )?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Lowered> {
        let lifetimes: Vec<Lifetime> =
            self.buffers.iter().map(|b| Lifetime { bytes: b.bytes, first: b.first, last: b.last }).collect();
        let (offsets, arena_bytes) = memory::assign(&lifetimes);
        if arena_bytes > MOST_BYTES {
            return Err(Error::Memory { what: "a session's arena".into(), bytes: arena_bytes });
        }
        self.memory.arena = arena_bytes;
        for call in &mut self.calls {
            call.for_each_ref(&mut |r| {
                if r.slot >= UNPLACED {
                    r.offset += offsets[(r.slot - UNPLACED) as usize];
                    r.slot = 0;
                }
            });
        }
        let buffers = self.buffers.iter().zip(&offsets).map(|(b, &offset)| Buffer {
            name: b.name.clone(),
            offset,
            bytes: b.bytes,
            first: b.first,
            last: b.last,
            scratch: b.scratch,
        });
        let buffers: Vec<Buffer> = buffers.collect();
        let constants: usize = self.memory.consts.iter().map(Const::bytes).sum();
        let in_place = state_places(self.graph);
        let in_place = in_place
            .into_iter()
            .filter(|(_, output)| self.placement.in_place.contains(&self.graph.outputs()[*output].value))
            .collect();
        let target @ Target { isa, threads, .. } = self.target;
        let bodies = self.steps.iter().filter_map(|s| s.looped.as_ref());
        let in_bodies: usize = bodies.map(|l| l.body.weight_bytes).sum();
        let plan = Plan {
            backend: format!("cpu ({isa})"),
            threads,
            bindings: self.bindings.clone(),
            steps: self.steps,
            buffers,
            arena_bytes,
            live_bytes: memory::largest_live_set(&lifetimes),
            weight_bytes: constants + self.packed.values().sum::<usize>() + in_bodies,
            unified_memory: None,
        };
        let tape = Tape::new(target.machine(), threads, self.memory, self.calls).map_err(Error::Internal)?;
        debug_assert_eq!(ARENA_ALIGN, memory::ALIGN);
        Ok(Lowered { plan: Arc::new(plan), tape: Arc::new(tape), in_place })
    }
}
