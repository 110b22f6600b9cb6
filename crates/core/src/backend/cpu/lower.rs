//! Lowering: a graph and sizes become kernel calls over one arena, and the plan that describes them.
//!
//! Nodes are visited in schedule order. Each result gets a place: an output of the run if it is one, the memory of an
//! input that dies here if the kernel can work in place, or a buffer of its own. Buffers have no offsets yet; calls name
//! them by number, and the numbers become offsets once all lifetimes are known.

use super::calls;
use super::gated::{self, Cells};
use super::packs::Packs;
use super::scan;
use super::synapse::{self, Repeats};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value};
use crate::op::{Cost, Op};
use crate::plan::memory::{self, Lifetime};
use crate::plan::{self, Buffer, Loop, Plan, Step};
use crate::shape::Bindings;
use crate::tensor::Tensor;
use crate::{DType, Type};
use schwann_kernels::Isa;
use schwann_kernels::tape::{ARENA_ALIGN, Call, Extent, LARGEST, Memory, Ref, Space, Tape};
use schwann_kernels::tuning::{Machine, Tuning};
use std::collections::HashMap;
use std::sync::Arc;

/// What lowering aims at.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) isa: Isa,
    pub(super) tuning: &'a Tuning,
    pub(super) threads: usize,
    pub(super) packs: &'a Packs,
}

impl<'a> Target<'a> {
    /// What kernels are made for.
    pub(super) fn machine(&self) -> Machine<'a> {
        Machine { isa: self.isa, tuning: self.tuning }
    }
}

/// A plan and the tape that carries it out.
#[derive(Debug)]
pub(super) struct Lowered {
    pub(super) plan: Plan,
    pub(super) tape: Tape,
}

/// Buffers that have no offset yet are slots from here on.
const UNPLACED: u32 = 1 << 31;

/// All values of a graph together at most, and its arena: far beyond any machine, and so far below what an address holds
/// that sums of offsets do not overflow. Where an address has only 32 bits, a quarter of what it holds.
const MOST_BYTES: usize = if usize::BITS > 32 { usize::MAX >> 8 } else { usize::MAX >> 2 };

/// Where a value lies: in which memory, from which byte on.
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
    /// Reads still to come, through whichever value.
    readers: u32,
    scratch: bool,
}

pub(super) struct Lower<'a> {
    pub(super) graph: &'a Graph,
    pub(super) bindings: &'a Bindings,
    pub(super) target: Target<'a>,
    /// Inputs whose data is known: a loop's fixed values that are weights outside.
    known: &'a HashMap<usize, Tensor>,
    pub(super) memory: Memory,
    pub(super) const_names: Vec<String>,
    places: HashMap<Value, Place>,
    /// Values that are parts or repetitions of others, not copied yet: their strides from their place on.
    views: HashMap<Value, Vec<usize>>,
    /// Known values that were stretched ahead to a shape.
    pub(super) stretched: HashMap<(Value, Vec<usize>), Place>,
    /// Concatenations that are never made: who reads them reads their two parts.
    pub(super) split: HashMap<Value, [Value; 2]>,
    /// Products and gates that are one call.
    pub(super) cells: Cells,
    /// Ratios of sums over synapses that are one call.
    pub(super) repeats: Repeats,
    /// Cells that are written to an output, and to their place in a concatenation too.
    pub(super) also: HashMap<Value, (Value, usize)>,
    /// How often a value has been read.
    consumed: HashMap<Value, u32>,
    /// Values to be written straight to an output.
    pub(super) direct: HashMap<Value, usize>,
    /// Values to be written straight into the concatenation that takes them, and at which byte of it.
    pub(super) within: HashMap<Value, (Value, usize)>,
    /// For each node that is known before the run, the source that it renames or repeats.
    sources: Vec<Option<Value>>,
    /// For each node, what it renames through reshapes; itself where it is none.
    renamed: Vec<Value>,
    /// Inputs' names and places in their order.
    input_names: Vec<&'a str>,
    input_places: HashMap<u32, usize>,
    /// Who reads each node, and whether it is a result.
    pub(super) node_readers: Vec<Vec<u32>>,
    pub(super) results: Vec<bool>,
    uses: Vec<Vec<u32>>,
    buffers: Vec<BufferInfo>,
    calls: Vec<Call>,
    steps: Vec<Step>,
    /// Bytes of packed weights, each counted once.
    packed: HashMap<usize, usize>,
}

/// Lowers `graph` for the sizes in `bindings`.
pub(super) fn lower(
    graph: &Graph,
    bindings: &Bindings,
    target: Target<'_>,
    known: &HashMap<usize, Tensor>,
) -> Result<Lowered> {
    let mut lower = Lower {
        graph,
        bindings,
        target,
        known,
        memory: Memory::default(),
        const_names: Vec::new(),
        places: HashMap::new(),
        views: HashMap::new(),
        stretched: HashMap::new(),
        split: HashMap::new(),
        cells: Cells::default(),
        repeats: Repeats::of(graph),
        also: HashMap::new(),
        consumed: HashMap::new(),
        direct: HashMap::new(),
        within: HashMap::new(),
        sources: Vec::with_capacity(graph.nodes().len()),
        renamed: Vec::with_capacity(graph.nodes().len()),
        input_names: graph.inputs().map(|(name, _)| name).collect(),
        input_places: graph.inputs().enumerate().map(|(i, (_, v))| (v.node, i)).collect(),
        node_readers: graph.readers(),
        results: graph.results(),
        uses: graph.uses(),
        buffers: Vec::new(),
        calls: Vec::new(),
        steps: Vec::new(),
        packed: HashMap::new(),
    };
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
    lower.trace_sources()?;
    lower.interface()?;
    lower.find_cells()?;
    lower.join()?;
    for id in plan::schedule(graph, &bytes) {
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
    /// Likewise, from strides of its own.
    pub(super) fn stretch(&self, own: &[usize], shape: &[usize]) -> Vec<usize> {
        let missing = shape.len() - self.shape.len();
        (0..shape.len())
            .map(|i| if i < missing || (self.shape[i - missing] == 1 && shape[i] != 1) { 0 } else { own[i - missing] })
            .collect()
    }
}

/// What a step says of itself.
pub(super) struct Label {
    pub(super) kernel: String,
    pub(super) cost: Cost,
    pub(super) in_place: bool,
    pub(super) looped: Option<Box<Loop>>,
}

impl Lower<'_> {
    /// The type of a value, with sizes.
    pub(super) fn sized(&self, value: Value) -> Result<Sized> {
        let Type { dtype, shape } = self.graph.ty(value);
        Ok(Sized { dtype: *dtype, shape: shape.eval(self.bindings)? })
    }

    fn interface(&mut self) -> Result<()> {
        for (i, (_, value)) in self.graph.inputs().enumerate() {
            let sized = self.sized(value)?;
            self.memory.inputs.push(Extent { bytes: sized.bytes(), align: sized.dtype.size() });
            self.places.insert(value, Place { home: Home::Input(i), offset: 0 });
        }
        for (i, output) in self.graph.outputs().iter().enumerate() {
            let sized = self.sized(output.value)?;
            self.memory.outputs.push(Extent { bytes: sized.bytes(), align: sized.dtype.size() });
            // A reshape only renames, so what it renames can be written to the output too.
            let root = if output.value.slot == 0 { self.renamed[output.value.node as usize] } else { output.value };
            if !self.graph.node(root).op.is_source() {
                self.direct.entry(root).or_insert(i);
            }
        }
        Ok(())
    }

    fn node(&mut self, id: u32) -> Result<()> {
        let node = &self.graph.nodes()[id as usize];
        let value = Value { node: id, slot: 0 };
        self.check_slice(node)?;
        if self.cells.contains(id) {
            return Ok(());
        }
        let cell = self.cells.get(value);
        match &node.op {
            _ if let Some(cell) = &cell => gated::lower(self, value, cell)?,
            Op::Input { .. } => return Ok(()),
            Op::Weight { .. } | Op::Const(_) => {
                // Registered when somebody reads it, so that a weight that is only read packed is not kept twice.
                return Ok(());
            }
            Op::Broadcast { .. } if !self.direct.contains_key(&value) && self.is_known(value) => {}
            Op::Scan(s) => scan::lower(self, id, s)?,
            // Its readers read its parts: each of them once more than the concatenation itself would.
            Op::Concat { .. } if self.split.contains_key(&value) => {
                let readers = self.readers(value);
                for part in node.inputs.clone() {
                    self.read(part)?;
                    if let Home::Buffer(b) = self.place(part)?.home {
                        self.buffers[b].readers += readers;
                    }
                }
            }
            Op::SynapseRatio { .. } if self.repeats.contains(id) => {}
            Op::SynapseSum { .. } | Op::SynapseRatio { .. } => synapse::lower(self, id)?,
            _ if self.alias(value, node)? || self.delay(value, node)? => {}
            _ => calls::lower(self, value, node)?,
        }
        let parts = |v: &Value| self.split.get(v).map_or_else(|| vec![*v], |parts| parts.to_vec());
        let read: Vec<Value> = self.operands(value).iter().flat_map(parts).collect();
        for v in &read {
            *self.consumed.entry(*v).or_default() += 1;
            if let Some(Place { home: Home::Buffer(b), .. }) = self.places.get(v) {
                let last = self.calls.len().saturating_sub(1);
                let b = *b;
                let readers = self.less(b, 1)?;
                let buffer = &mut self.buffers[b];
                buffer.readers = readers;
                buffer.last = buffer.last.max(last);
            }
        }
        Ok(())
    }

    /// A buffer's readers still to come, without some that have read; an error where that comes out wrong.
    fn less(&self, buffer: usize, read: u32) -> Result<u32> {
        let BufferInfo { name, readers, .. } = &self.buffers[buffer];
        readers
            .checked_sub(read)
            .ok_or_else(|| Error::Internal(format!("`{name}` is read more often than it has readers")))
    }

    /// What a node's call reads. Where several nodes are one call, the last of them reads what reaches the first.
    fn operands(&self, value: Value) -> Vec<Value> {
        let inputs = &self.graph.node(self.cells.product(value).unwrap_or(value)).inputs;
        if self.repeats.contains(value.node) {
            return inputs[1..].to_vec();
        }
        match self.repeats.first(value.node) {
            Some(first) => [&[first], &inputs[1..]].concat(),
            None => inputs.clone(),
        }
    }

    /// A slice of a symbolic axis may turn out longer than the axis.
    fn check_slice(&self, node: &Node) -> Result<()> {
        let Op::Slice { axis, start, end } = &node.op else { return Ok(()) };
        let size = self.sized(node.inputs[0])?.shape[*axis];
        let (start, end) = (start.eval(self.bindings)?, end.eval(self.bindings)?);
        if start > end || end > size {
            let problem = format!("slice {start}..{end} of {size} elements");
            return Err(Error::Value { node: node.name.clone(), problem });
        }
        Ok(())
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
        // A value that an output wants in its own memory is made there instead, unless it is a reshape, whose root is.
        let Some(moved) = moved else { return Ok(false) };
        if self.direct.contains_key(&value) && to.count() > 0 {
            return Ok(false);
        }
        let mut place = self.place(x)?;
        place.offset += moved;
        if let Home::Buffer(b) = place.home {
            self.buffers[b].readers += self.readers(value);
        }
        self.places.insert(value, place);
        Ok(true)
    }

    /// Leaves a slice or a repetition where it is: whoever can reads it with strides, and only who cannot has it copied.
    fn delay(&mut self, value: Value, node: &Node) -> Result<bool> {
        let to = self.sized(value)?;
        if !matches!(node.op, Op::Slice { .. } | Op::Broadcast { .. })
            || self.direct.contains_key(&value)
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
        if let Home::Buffer(b) = place.home {
            self.buffers[b].readers += self.readers(value);
        }
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

    /// Copies a delayed value to memory of its own.
    fn settle(&mut self, value: Value) -> Result<()> {
        let (src, strides) = self.view(value)?;
        let sized = self.sized(value)?;
        let old = self.place(value)?;
        self.views.remove(&value);
        // Reads to come are no longer reads of the source.
        let to_come = self.readers(value).saturating_sub(self.consumed.get(&value).copied().unwrap_or(0));
        let new = self.new_buffer(&self.graph.node(value).name.clone(), sized.bytes(), to_come, false);
        self.places.insert(value, new);
        let dst = self.reference(new, sized.bytes());
        let bytes = sized.bytes() as u64;
        let cost = Cost { bytes_read: bytes, bytes_written: bytes, ..Cost::default() };
        let kernel = format!("copy {}", self.graph.node(value).op.name());
        let call = calls::copy(&sized, src, &strides, dst, &sized.strides());
        self.call(value, call, Label { kernel, cost, in_place: false, looped: None })?;
        if let Home::Buffer(b) = old.home {
            self.buffers[b].readers = self.less(b, to_come)?;
        }
        Ok(())
    }

    pub(super) fn readers(&self, value: Value) -> u32 {
        self.uses[value.node as usize][usize::from(value.slot)]
    }

    fn place(&mut self, value: Value) -> Result<Place> {
        if let Some(place) = self.places.get(&value) {
            return Ok(*place);
        }
        let data = self.data(value)?.ok_or_else(|| {
            Error::Internal(format!("`{}` is read before it is computed", self.graph.node(value).name))
        })?;
        self.memory.consts.push(Arc::new(data.at_hand()?));
        self.const_names.push(self.graph.node(value).name.clone());
        let place = Place { home: Home::Const(self.memory.consts.len() - 1), offset: 0 };
        self.places.insert(value, place);
        Ok(place)
    }

    /// Finds what is known before the run, and what reshapes rename: in order, since graphs can be deep.
    fn trace_sources(&mut self) -> Result<()> {
        for (id, node) in (0u32..).zip(self.graph.nodes()) {
            let own = Value { node: id, slot: 0 };
            let first = node.inputs.first().filter(|v| v.slot == 0);
            let source = first.and_then(|v| self.sources[v.node as usize]);
            let (source, renamed) = match (&node.op, first) {
                (Op::Const(_) | Op::Weight { .. }, _) => (Some(own), own),
                (Op::Input { .. }, _) => {
                    let known = self.input_places.get(&id).is_some_and(|i| self.known.contains_key(i));
                    (known.then_some(own), own)
                }
                // A reshape of known data is known too.
                (Op::Reshape { .. }, Some(x)) => (source, self.renamed[x.node as usize]),
                (Op::Reshape { .. }, None) => (None, node.inputs[0]),
                // So is a repetition of one element of it, if it is small: a state that starts at zero.
                (Op::Broadcast { .. }, Some(&x)) if source.is_some() => {
                    let (from, to) = (self.sized(x)?, self.sized(own)?);
                    let small =
                        to.bytes() <= self.target.tuning.stretched_bytes_most() && from.count() == 1 && to.count() > 0;
                    (source.filter(|_| small), own)
                }
                _ => (None, own),
            };
            self.sources.push(source);
            self.renamed.push(renamed);
        }
        Ok(())
    }

    /// Whether a value is known before the run.
    pub(super) fn is_known(&self, value: Value) -> bool {
        value.slot == 0 && self.sources[value.node as usize].is_some()
    }

    /// The data of a value that is known before the run.
    pub(super) fn data(&self, value: Value) -> Result<Option<Tensor>> {
        let source = if value.slot == 0 { self.sources[value.node as usize] } else { None };
        let Some(source) = source else { return Ok(None) };
        let data = match &self.graph.node(source).op {
            Op::Const(t) => Some(t.clone()),
            Op::Weight { name, .. } => Some(self.graph.weight(name)?.clone()),
            _ => self.input_places.get(&source.node).and_then(|i| self.known.get(i)).cloned(),
        };
        let Some(data) = data else { return Ok(None) };
        let to = self.sized(value)?;
        Ok(Some(match (data.shape() == to.shape, data.len() == to.count()) {
            (true, _) => data,
            (false, true) => data.reshaped(&to.shape)?,
            (false, false) => Tensor::from_bytes(to.dtype, &to.shape, &data.bytes().repeat(to.count()))?,
        }))
    }

    pub(super) fn reference(&self, place: Place, bytes: usize) -> Ref {
        let slot = match place.home {
            Home::Input(i) => self.memory.slot(Space::Input(i)),
            Home::Output(i) => self.memory.slot(Space::Output(i)),
            Home::Const(i) => self.memory.slot(Space::Const(i)),
            Home::Buffer(b) => UNPLACED + b as u32,
        };
        // A part of nothing begins where nothing does: its offset may lie beyond the memory's end.
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

    fn new_buffer(&mut self, name: &str, bytes: usize, readers: u32, scratch: bool) -> Place {
        let step = self.calls.len();
        let buffer = BufferInfo { name: name.into(), bytes, first: step, last: step, readers, scratch };
        self.buffers.push(buffer);
        Place { home: Home::Buffer(self.buffers.len() - 1), offset: 0 }
    }

    /// Memory for a result; `last_step` calls from now it is complete.
    pub(super) fn write(&mut self, value: Value) -> Result<Ref> {
        let bytes = self.sized(value)?.bytes();
        // A concatenation has its place from the first of its parts on.
        if let Some(&place) = self.places.get(&value) {
            return Ok(self.reference(place, bytes));
        }
        let place = match (self.direct.get(&value), self.within.get(&value).copied()) {
            (Some(&output), _) => Place { home: Home::Output(output), offset: 0 },
            (None, Some((whole, at))) => {
                self.write(whole)?;
                let mut place = self.place(whole)?;
                place.offset += at;
                if let Home::Buffer(b) = place.home {
                    self.buffers[b].readers += self.readers(value);
                }
                place
            }
            (None, None) => self.new_buffer(&self.graph.node(value).name.clone(), bytes, self.readers(value), false),
        };
        self.places.insert(value, place);
        Ok(self.reference(place, bytes))
    }

    /// A second place for a result, if it is wanted in two.
    pub(super) fn write_also(&mut self, value: Value) -> Result<Option<Ref>> {
        let Some(&(whole, at)) = self.also.get(&value) else { return Ok(None) };
        self.write(whole)?;
        let mut place = self.place(whole)?;
        place.offset += at;
        Ok(Some(self.reference(place, self.sized(value)?.bytes())))
    }

    /// Memory for a result that may take the place of one of `candidates`, if that one dies with this node. Also says
    /// whether it did.
    pub(super) fn write_over(&mut self, value: Value, candidates: &[Value]) -> Result<(Ref, bool)> {
        let node = self.graph.node(value);
        let bytes = self.sized(value)?.bytes();
        if !self.direct.contains_key(&value) && !self.within.contains_key(&value) && bytes > 0 {
            for &candidate in candidates {
                let Some(&place) = self.places.get(&candidate) else { continue };
                if self.views.contains_key(&candidate) {
                    continue;
                }
                let Home::Buffer(b) = place.home else { continue };
                let here = node.inputs.iter().filter(|v| **v == candidate).count() as u32;
                // Any other input in the same memory would be overwritten while it is still read.
                let shared = node
                    .inputs
                    .iter()
                    .any(|v| *v != candidate && self.places.get(v).is_some_and(|p| p.home == place.home));
                let dies = self.buffers[b].readers == here && !shared;
                if dies && place.offset == 0 && self.buffers[b].bytes == bytes && !self.buffers[b].scratch {
                    self.buffers[b].readers += self.readers(value);
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
        let place = self.new_buffer("scratch", bytes, 0, true);
        self.reference(place, bytes)
    }

    /// Counts a packed weight's memory, once.
    pub(super) fn count_packed(&mut self, identity: usize, bytes: usize) {
        self.packed.insert(identity, bytes);
    }

    /// Adds a call. Working memory taken before lives until it.
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

    /// Copies results that lie elsewhere: inputs, weights, parts of other values, and those wanted twice.
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
            self.call(value, call, Label { kernel: "copy to output".into(), cost, in_place: false, looped: None })?;
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
        let constants: usize = self.memory.consts.iter().map(|c| (**c).as_ref().len()).sum();
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
        };
        let tape = Tape::new(target.machine(), threads, self.memory, self.calls).map_err(Error::Internal)?;
        debug_assert_eq!(ARENA_ALIGN, memory::ALIGN);
        Ok(Lowered { plan, tape })
    }
}
