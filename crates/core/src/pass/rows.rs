//! Which loops can be cut into blocks of rows, and which can run batch-last. This is an analysis: the graph stays as it
//! is.
//!
//! The first axis of every state and sequence element is taken as the batch. If no operation of the body mixes rows,
//! the result is the body with that axis as a symbol, so that it can be planned for any number of rows.
//!
//! Such a body may also have a batch-last form: every value that has rows gets them as its last axis, so that the rows of
//! a block fill the lanes. Then heads and parts of a vector are contiguous whatever their width, and nothing is padded.
//!
//! A state may also be a *total*: it has no rows, and each step adds a sum over rows to it that an operation gives, such as
//! the gradient of a number that all rows share. Blocks then add to totals of their own, which are added up at the end.
//!
//! If a body has no such form, the result says which of its operations prevents it.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value};
use crate::op::{Binary, MapInstr, Op, Reduction, Scan, Type};
use crate::shape::{Dim, Shape};
use std::collections::{HashMap, HashSet};

/// The symbol for a block's rows. Users have no reason to write it.
pub const ROWS: &str = "__rows";

/// A form of a loop's body, or why there is none.
pub type Form<T> = std::result::Result<T, String>;

/// A body for any number of rows.
#[derive(Debug)]
pub struct Independent {
    /// The body: its nodes are those of the loop's, in the same order, with [`ROWS`] in place of the batch.
    pub body: Graph,
    /// Which axis of a value has the rows; absent where the value is the same for all rows.
    axis: HashMap<Value, usize>,
    /// Which states are totals.
    totals: Vec<bool>,
}

/// Which states of a loop are totals, and the nodes that add to them.
struct Totals {
    states: Vec<bool>,
    nodes: HashSet<u32>,
    /// Sums over rows that something else reads.
    misread: Option<u32>,
}

impl Totals {
    fn of(scan: &Scan) -> Totals {
        let (body, uses) = (&scan.body, scan.body.uses());
        let states: Vec<Value> = body.inputs().take(scan.states).map(|(_, v)| v).collect();
        let of_state: HashMap<Value, usize> = states.iter().copied().zip(0..).collect();
        let next = |i: usize| body.outputs()[i].value;
        let once = |v: Value| uses[v.node as usize][usize::from(v.slot)] == 1;
        let mut found = Totals { states: vec![false; scan.states], nodes: HashSet::new(), misread: None };
        for (id, node) in (0u32..).zip(body.nodes()) {
            if let Some(total) = product_added(node) {
                let own = Value { node: id, slot: 0 };
                let i = of_state.get(&total).copied().filter(|i| next(*i) == own);
                if let Some(i) = i.filter(|i| body.ty(total) == body.ty(own) && once(states[*i]) && once(own)) {
                    found.states[i] = true;
                    found.nodes.insert(id);
                }
                continue;
            }
            let Some(pairs) = added(node) else { continue };
            let state = |(slot, pair): (usize, &[Value; 2])| {
                let (i, sum) = match (of_state.get(&pair[0]), of_state.get(&pair[1])) {
                    (Some(&i), None) => (i, pair[1]),
                    (None, Some(&i)) => (i, pair[0]),
                    _ => return None,
                };
                let own = Value { node: id, slot: slot as u16 };
                let same = body.ty(sum) == body.ty(own) && body.ty(next(i)) == body.ty(own);
                let read = once(states[i]) && once(sum) && once(own);
                (next(i) == own && same && read && (over_rows(body, sum) || sum_of_rows(body, sum))).then_some(i)
            };
            if let Some(states) = pairs.iter().enumerate().map(state).collect::<Option<Vec<usize>>>() {
                states.into_iter().for_each(|i| found.states[i] = true);
                found.nodes.insert(id);
                found.nodes.extend(pairs.iter().flatten().filter(|v| sum_of_rows(body, **v)).map(|v| v.node));
            }
        }
        let misread = |node: &Node| node.inputs.iter().find(|v| over_rows(body, **v)).map(|v| v.node);
        let others = (0u32..).zip(body.nodes()).filter(|(id, _)| !found.nodes.contains(id));
        let results = body.outputs().iter().map(|o| o.value).find(|v| over_rows(body, *v)).map(|v| v.node);
        found.misread = others.filter_map(|(_, node)| misread(node)).next().or(results);
        found
    }
}

/// Whether a value is a sum over rows.
fn over_rows(body: &Graph, value: Value) -> bool {
    match body.node(value).op {
        Op::SynapseGradient { of, .. } => of.lists().contains(&usize::from(value.slot)),
        _ => false,
    }
}

/// Whether a value is the sum of a matrix' rows, if these are its first axis.
fn sum_of_rows(body: &Graph, value: Value) -> bool {
    let node = body.node(value);
    match &node.op {
        Op::Reduce { kind: Reduction::Sum, axes, keep: false } => {
            axes[..] == [0] && body.ty(node.inputs[0]).shape.rank() == 2
        }
        _ => false,
    }
}

/// For a node that does nothing but add a product aᵀ · b of matrices to a value: that value.
fn product_added(node: &Node) -> Option<Value> {
    let Op::MatMulMap { transpose_a: true, transpose_b: false, map, .. } = &node.op else { return None };
    let added = matches!(map.code[..], [MapInstr::Input(0), MapInstr::Input(1), MapInstr::Binary(Binary::Add, 0, 1)]);
    (added && node.inputs.len() == 3).then(|| node.inputs[2])
}

/// For a node that does nothing but add two of its inputs for each of its results: these.
fn added(node: &Node) -> Option<Vec<[Value; 2]>> {
    match &node.op {
        Op::Binary(Binary::Add) => Some(vec![[node.inputs[0], node.inputs[1]]]),
        Op::Map { map, also, .. } => {
            let input = |at: u16| match map.code.get(usize::from(at)) {
                Some(MapInstr::Input(n)) => node.inputs.get(usize::from(*n)).copied(),
                _ => None,
            };
            let last = (map.code.len() as u16).checked_sub(1)?;
            let results = std::iter::once(last).chain(also.iter().map(|r| r.at));
            let pair = |at: u16| match map.code.get(usize::from(at)) {
                Some(MapInstr::Binary(Binary::Add, a, b)) => Some([input(*a)?, input(*b)?]),
                _ => None,
            };
            results.map(pair).collect()
        }
        _ => None,
    }
}

/// A line of text about each loop of a graph.
pub(super) fn describe(graph: &Graph) -> Result<Vec<String>> {
    let mut all = vec![];
    for node in graph.nodes() {
        let Op::Scan(scan) = &node.op else { continue };
        let what = match independent(scan)? {
            Err(why) => format!("rows depend on each other: {why}"),
            Ok(general) => match general.batch_last()? {
                Ok(_) => "rows are independent, and can be the last axis".to_owned(),
                Err(why) => format!("rows are independent, and stay the first axis: {why}"),
            },
        };
        all.push(format!("loop `{}`: {what}", node.name));
        all.extend(describe(&scan.body)?);
    }
    Ok(all)
}

/// The body for any number of rows, if rows are independent; else the reason. An error is a bug of this module.
pub fn independent(scan: &Scan) -> Result<Form<Independent>> {
    let body = &scan.body;
    let carried = scan.states + scan.sequences;
    // A loop inside is not cut into blocks: bodies are planned several times, for several numbers of rows, and with
    // deeply nested loops that would multiply until compiling takes longer than running.
    if let Some(inner) = body.nodes().iter().find(|n| matches!(n.op, Op::Scan(_))) {
        return Ok(Err(format!("`{}` is a loop inside it", inner.name)));
    }
    let types = body.input_types();
    let totals = Totals::of(scan);
    if let Some(node) = totals.misread {
        return Ok(Err(format!("`{}` sums over them", body.nodes()[node as usize].name)));
    }
    let is_total = |i: usize| totals.states.get(i) == Some(&true);
    let first = (0..carried).find(|i| !is_total(*i));
    let Some(batch) = first.and_then(|i| types[i].shape.dims().first().cloned()) else {
        return Ok(Err("it has no first axis".into()));
    };
    if batch.is(1) {
        return Ok(Err("there is one row".into()));
    }
    // What has no rows has no elements either, and may be reshaped to anything that has none; with rows it may not.
    if batch.is(0) {
        return Ok(Err("there are no rows".into()));
    }
    let rows = body.inputs().zip(&types).take(carried).enumerate().filter(|(i, _)| !is_total(*i));
    let other = rows.map(|(_, input)| input).find(|(_, t)| t.shape.dims().first() != Some(&batch));
    if let Some(((name, _), ty)) = other {
        return Ok(Err(format!("`{name}` ({ty}) has another first axis than {batch}")));
    }
    let mut rows = Rows { batch, axis: HashMap::new(), new: Graph::default(), map: HashMap::new() };
    let inputs: HashMap<Value, usize> = body.inputs().enumerate().map(|(i, (_, v))| (v, i)).collect();
    for (id, node) in body.nodes().iter().enumerate() {
        let value = Value { node: id as u32, slot: 0 };
        let mut op = node.op.clone();
        let axis = match &mut op {
            Op::Input { ty, .. } => {
                let axis = (inputs[&value] < carried && !is_total(inputs[&value])).then_some(0);
                if axis.is_some() {
                    ty.shape = rows.with_rows(&ty.shape, 0);
                }
                axis
            }
            Op::Const(_) => None,
            // Of what adds to a total, only sums over rows read values that have some, as their first axis.
            Op::MatMulMap { .. } | Op::Reduce { .. } if totals.nodes.contains(&(id as u32)) => {
                let operands = if matches!(node.op, Op::Reduce { .. }) { 1 } else { 2 };
                if node.inputs[..operands].iter().any(|v| rows.axis.get(v) != Some(&0)) {
                    return Ok(Err(format!("`{}` ({}) mixes them", node.name, node.op.name())));
                }
                None
            }
            _ if totals.nodes.contains(&(id as u32)) => None,
            _ => match rows.axis_of(body, node.inputs.as_slice(), &node.op, &node.outs[0]) {
                Some(axis) => axis,
                None => return Ok(Err(format!("`{}` ({}) mixes them", node.name, node.op.name()))),
            },
        };
        if let (Op::Reshape { shape } | Op::Broadcast { shape }, Some(axis)) = (&mut op, axis) {
            *shape = rows.with_rows(shape, axis);
        }
        let new = node.inputs.iter().map(|v| rows.get(body, *v)).collect::<Result<Vec<_>>>()?;
        let new = rows.new.push(op, new, node.name.clone())?;
        for slot in 0..node.outs.len() as u16 {
            rows.map.insert(Value { slot, ..value }, Value { slot, ..new });
            let own = Value { slot, ..value };
            if let Some(axis) = axis.filter(|_| !over_rows(body, own)) {
                rows.axis.insert(own, axis);
            }
        }
    }
    for (i, output) in body.outputs().iter().enumerate() {
        // A state must keep its rows, and every output must have them first, but for totals.
        if rows.axis.get(&output.value) != Some(&0) && !is_total(i) {
            return Ok(Err(format!("its result `{}` has no rows as its first axis", output.name)));
        }
        let new = rows.get(body, output.value)?;
        rows.new.push_output(output.name.clone(), new)?;
    }
    let axis = rows.axis.iter().filter_map(|(old, axis)| Some((*rows.map.get(old)?, *axis))).collect();
    Ok(Ok(Independent { body: rows.new, axis, totals: totals.states }))
}

impl Independent {
    /// Which axis of a value has the rows; none where it is the same for all rows.
    pub fn row_axis(&self, value: Value) -> Option<usize> {
        self.axis.get(&value).copied()
    }

    /// Which states are totals.
    pub(crate) fn totals(&self) -> &[bool] {
        &self.totals
    }

    /// The body with the rows of every value as its last axis, if each of its operations has a form for that.
    pub(crate) fn batch_last(&self) -> Result<Form<Graph>> {
        let mut last =
            BatchLast { from: self, new: Graph::default(), map: HashMap::new(), columns: HashMap::new(), failed: None };
        for (id, node) in self.body.nodes().iter().enumerate() {
            let made = last.node(id as u32, node);
            if let Some(error) = last.failed {
                return Err(error);
            }
            if made.is_none() {
                return Ok(Err(format!("`{}` ({}) has no such form", node.name, node.op.name())));
            }
        }
        for output in self.body.outputs() {
            // The loop transposes rows word by word.
            let ty = self.body.ty(output.value);
            if ty.dtype.size() != 4 {
                return Ok(Err(format!("its result `{}` is {}", output.name, ty.dtype)));
            }
            let Some(new) = last.map.get(&output.value) else { return Err(lost(&self.body, output.value)) };
            last.new.push_output(output.name.clone(), *new)?;
        }
        Ok(Ok(last.new))
    }
}

/// The error for a value that the rewrite has not reached: a bug of this module.
fn lost(body: &Graph, value: Value) -> Error {
    let problem = format!("value {}.{} is read before it has been rewritten", value.node, value.slot);
    Error::Pass { pass: "", node: body.node(value).name.clone(), problem }
}

struct BatchLast<'a> {
    from: &'a Independent,
    new: Graph,
    map: HashMap<Value, Value>,
    /// Values that were given an axis of one element for the rows, each made once.
    columns: HashMap<(Value, Shape), Value>,
    /// The error if the graph refused a rewritten node: a bug of this module.
    failed: Option<Error>,
}

impl BatchLast<'_> {
    fn rank(&self, value: Value) -> usize {
        self.from.body.ty(value).shape.rank()
    }

    /// A shape with axis `at` moved to the end.
    fn moved(shape: &Shape, at: usize) -> Shape {
        let mut dims = shape.dims().to_vec();
        let rows = dims.remove(at);
        dims.push(rows);
        dims.into()
    }

    /// The number of an axis of a value in the batch-last form.
    fn axis(&self, value: Value, axis: usize) -> usize {
        match self.from.axis.get(&value) {
            Some(&rows) if axis == rows => self.rank(value) - 1,
            Some(&rows) if axis > rows => axis - 1,
            _ => axis,
        }
    }

    /// A value to be combined element by element with one of `rank` axes whose axis `at` has the rows: one that is the
    /// same for all rows gets an axis of one element in their place.
    fn aligned(&mut self, value: Value, at: usize, rank: usize) -> Option<Value> {
        let new = *self.map.get(&value)?;
        let own = self.rank(value);
        if let Some(rows) = self.from.axis.get(&value) {
            return (rows + rank - own == at).then_some(new);
        }
        // Axes are aligned from the last; with rows there, all other axes move one place to the front.
        let mut dims = self.from.body.ty(value).shape.dims().to_vec();
        match (at + own).checked_sub(rank) {
            Some(place) => {
                dims.get(place).is_some_and(|d| d.is(1)).then_some(())?;
                dims.remove(place);
            }
            None if own == 0 => return Some(new),
            None => {}
        }
        dims.push(Dim::fixed(1));
        let shape = Shape::from(dims);
        if let Some(known) = self.columns.get(&(value, shape.clone())) {
            return Some(*known);
        }
        let name = format!("{}.column", self.from.body.node(value).name);
        let column = self.push(Op::Reshape { shape: shape.clone() }, vec![new], name)?;
        self.columns.insert((value, shape), column);
        Some(column)
    }

    fn push(&mut self, op: Op, inputs: Vec<Value>, name: String) -> Option<Value> {
        self.new.push(op, inputs, name).map_err(|e| self.failed = Some(e)).ok()
    }

    /// Adds the batch-last form of a node; `None` where it has none.
    fn node(&mut self, id: u32, node: &Node) -> Option<()> {
        let value = Value { node: id, slot: 0 };
        let Independent { body, axis, .. } = self.from;
        let Some(&at) = axis.get(&value) else {
            let inputs = node.inputs.iter().map(|v| self.map.get(v).copied()).collect::<Option<Vec<_>>>()?;
            let mut op = node.op.clone();
            // What sums over rows finds them in the last axis now.
            match &mut op {
                Op::MatMulMap { transpose_a, transpose_b, .. } if axis.contains_key(&node.inputs[0]) => {
                    (*transpose_a, *transpose_b) = (false, true);
                }
                Op::Reduce { axes, .. } if axis.contains_key(&node.inputs[0]) => *axes = vec![1],
                _ => {}
            }
            let new = self.push(op, inputs, node.name.clone())?;
            self.made(id, node, new);
            return Some(());
        };
        let ty = &node.outs[0];
        let rank = ty.shape.rank();
        let first = node.inputs.first().copied();
        let mut op = node.op.clone();
        let inputs: Vec<Value> = match &mut op {
            // The loop transposes rows word by word.
            Op::Input { ty, .. } if ty.dtype == DType::F32 => {
                ty.shape = Self::moved(&ty.shape, at);
                vec![]
            }
            _ if node.op.is_elementwise() => {
                node.inputs.iter().map(|&v| self.aligned(v, at, rank)).collect::<Option<_>>()?
            }
            Op::MatMul { transpose_a, transpose_b } | Op::MatMulMap { transpose_a, transpose_b, .. } => {
                // (x · w)ᵀ = wᵀ · xᵀ, with x batch-last already.
                let (x, w) = (node.inputs[0], node.inputs[1]);
                let plain = !*transpose_a && self.rank(x) == 2 && self.rank(w) == 2;
                (plain && axis.get(&x) == Some(&0) && !axis.contains_key(&w)).then_some(())?;
                (body.ty(w).dtype == DType::F32 && ty.dtype == DType::F32).then_some(())?;
                (*transpose_a, *transpose_b) = (!*transpose_b, false);
                let mut inputs = vec![*self.map.get(&w)?, *self.map.get(&x)?];
                for &v in &node.inputs[2..] {
                    inputs.push(self.aligned(v, at, rank)?);
                }
                inputs
            }
            Op::Slice { axis, .. } | Op::Pad { axis, .. } | Op::SegmentSum { axis, .. } | Op::Gather { axis } => {
                // Indices and tables are the same for all rows, and take one axis' place.
                let one = |v: &Value| self.rank(*v) == 1 && !self.from.axis.contains_key(v);
                (node.inputs[1..].iter().all(one) && self.from.axis.contains_key(&first?)).then_some(())?;
                *axis = self.axis(first?, *axis);
                node.inputs.iter().map(|v| self.map.get(v).copied()).collect::<Option<_>>()?
            }
            Op::SynapseSum { axis, .. } | Op::SynapseRatio { axis, .. } | Op::SynapseGradient { axis, .. } => {
                let (tables, terms) = node.inputs.split_at(node.op.synapse_tables()?);
                let one = |v: &Value| self.rank(*v) == 1 && !self.from.axis.contains_key(v);
                (tables[1..].iter().all(one) && self.from.axis.contains_key(&first?)).then_some(())?;
                *axis = self.axis(first?, *axis);
                let mut inputs = tables.iter().map(|v| self.map.get(v).copied()).collect::<Option<Vec<_>>>()?;
                for &v in terms {
                    inputs.push(self.aligned(v, at, rank)?);
                }
                inputs
            }
            Op::GatedCell { batch_last, .. } => {
                let fixed = |v: &Value| !self.from.axis.contains_key(v);
                (!*batch_last && axis.get(&first?) == Some(&0) && node.inputs[1..].iter().all(fixed)).then_some(())?;
                *batch_last = true;
                let mut inputs = vec![*self.map.get(&first?)?, *self.map.get(&node.inputs[1])?];
                for &v in &node.inputs[2..] {
                    inputs.push(self.aligned(v, at, rank)?);
                }
                inputs
            }
            Op::Concat { axis } => {
                *axis = self.axis(first?, *axis);
                node.inputs.iter().map(|v| self.map.get(v).copied()).collect::<Option<_>>()?
            }
            Op::Reduce { axes, keep, .. } => {
                let x = first?;
                let rows = *axis.get(&x)?;
                (*keep || axes.iter().all(|a| *a > rows)).then_some(())?;
                axes.iter_mut().for_each(|a| *a = self.axis(x, *a));
                vec![*self.map.get(&x)?]
            }
            Op::Reshape { shape } => {
                // With rows in front on both sides, the rest keeps its order.
                (at == 0 && axis.get(&first?) == Some(&0)).then_some(())?;
                *shape = Self::moved(shape, 0);
                vec![*self.map.get(&first?)?]
            }
            Op::Broadcast { shape } => {
                *shape = Self::moved(shape, at);
                vec![self.aligned(first?, at, rank)?]
            }
            _ => return None,
        };
        let new = self.push(op, inputs, node.name.clone())?;
        self.made(id, node, new);
        Some(())
    }

    /// Records the new values of a node's results.
    fn made(&mut self, id: u32, node: &Node, new: Value) {
        for slot in 0..node.outs.len() as u16 {
            self.map.insert(Value { node: id, slot }, Value { slot, ..new });
        }
    }
}

struct Rows {
    batch: Dim,
    /// Which axis of a value is the batch; absent where the value is the same for all rows.
    axis: HashMap<Value, usize>,
    new: Graph,
    map: HashMap<Value, Value>,
}

impl Rows {
    /// The new value for a value of the body.
    fn get(&self, body: &Graph, old: Value) -> Result<Value> {
        self.map.get(&old).copied().ok_or_else(|| lost(body, old))
    }

    fn with_rows(&self, shape: &Shape, axis: usize) -> Shape {
        let mut dims = shape.dims().to_vec();
        dims[axis] = Dim::symbol(ROWS);
        dims.into()
    }

    /// The result's axis of rows, or `Some(None)` if it is the same for all rows; `None` if the operation mixes rows
    /// (or may do so).
    fn axis_of(&self, body: &Graph, inputs: &[Value], op: &Op, out: &Type) -> Option<Option<usize>> {
        let axis = |i: usize| inputs.get(i).and_then(|v| self.axis.get(v)).copied();
        let shape = |i: usize| &body.ty(inputs[i]).shape;
        let any = (0..inputs.len()).any(|i| axis(i).is_some());
        let rank = out.shape.rank();
        if !any {
            // The result is the same for all rows, unless this operation broadcasts it over them.
            return Some(match op {
                Op::Broadcast { shape: to } if to.dims().first() == Some(&self.batch) => {
                    let own = shape(0);
                    (own.rank() < rank || own[0].is(1)).then_some(0)
                }
                _ => None,
            });
        }
        let found = match op {
            op if op.is_elementwise() => self.elementwise(inputs, body, rank)?,
            Op::MatMul { transpose_a, .. } => self.matmul(inputs, body, *transpose_a, rank)?,
            Op::MatMulMap { transpose_a, .. } => {
                let at = self.matmul(&inputs[..2], body, *transpose_a, rank)?;
                let others = inputs[2..].iter().all(|v| self.stretches(*v, body, at, rank));
                others.then_some(at)?
            }
            Op::Reduce { axes, keep, .. } => {
                let at = axis(0)?;
                if axes.contains(&at) {
                    return None;
                }
                if *keep { at } else { at - axes.iter().filter(|a| **a < at).count() }
            }
            Op::Softmax { axis: over } => axis(0).filter(|at| at != over)?,
            Op::LowBitMatMul(product) => {
                let (own, others) = inputs.split_at(product.operands());
                let alone = own[1..].iter().all(|v| !self.axis.contains_key(v));
                let at = axis(0).filter(|at| at + 1 < rank && alone)?;
                others.iter().all(|v| self.stretches(*v, body, at, rank)).then_some(at)?
            }
            Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::RoundRows => {
                let alone = inputs[1..].iter().all(|v| !self.axis.contains_key(v));
                axis(0).filter(|at| at + 1 < rank && alone)?
            }
            Op::Attention { .. } => {
                let all = (0..3).all(|i| axis(i) == Some(0));
                let (mask, last) = op.attention_extras(inputs.len());
                let mask = mask.is_none_or(|at| self.stretches(inputs[at], body, 0, rank));
                (all && mask && last.is_none_or(|at| axis(at).is_none())).then_some(0)?
            }
            Op::Reshape { shape: to } => (axis(0) == Some(0) && to.dims().first() == Some(&self.batch)).then_some(0)?,
            Op::Transpose { perm } => perm.iter().position(|p| Some(*p) == axis(0))?,
            Op::Slice { axis: over, .. } | Op::Pad { axis: over, .. } => axis(0).filter(|at| at != over)?,
            Op::Concat { axis: over } => {
                let first = axis(0)?;
                let same = (0..inputs.len()).all(|i| axis(i) == Some(first));
                (same && first != *over).then_some(first)?
            }
            Op::Broadcast { .. } => axis(0)? + rank - shape(0).rank(),
            Op::Gather { axis: over } => match (axis(0), axis(1)) {
                (Some(at), None) if at < *over => at,
                (Some(at), None) if at > *over => at + shape(1).rank() - 1,
                (None, Some(at)) => over + at,
                _ => return None,
            },
            Op::Put { axis: over } => {
                let both = axis(0) == axis(1) && axis(2).is_none();
                axis(0).filter(|at| both && at != over)?
            }
            Op::SynapseSum { axis: over, .. }
            | Op::SynapseRatio { axis: over, .. }
            | Op::SynapseGradient { axis: over, .. } => {
                let at = axis(0).filter(|at| at != over)?;
                let tables = op.synapse_tables()?;
                let fixed = (1..tables).all(|i| axis(i).is_none());
                (fixed && inputs[tables..].iter().all(|v| self.stretches(*v, body, at, rank))).then_some(at)?
            }
            Op::GatedCell { batch_last, .. } => {
                let alone = inputs[1..].iter().all(|v| !self.axis.contains_key(v));
                let rows = usize::from(*batch_last);
                axis(0).filter(|at| *at == rows && alone)?
            }
            Op::SegmentSum { axis: over, .. } if axis(1).is_none() => axis(0).filter(|at| at != over)?,
            _ => return None,
        };
        Some(Some(found))
    }

    /// The batch axis of a value within a result of `rank` axes to which it stretches.
    fn aligned(&self, value: Value, body: &Graph, rank: usize) -> Option<usize> {
        self.axis.get(&value).map(|at| at + rank - body.ty(value).shape.rank())
    }

    /// Whether a value fits a result whose axis `at` has the rows: it has its rows there too, or is the same for all
    /// rows.
    fn stretches(&self, value: Value, body: &Graph, at: usize, rank: usize) -> bool {
        match self.aligned(value, body, rank) {
            Some(own) => own == at,
            None => {
                let shape = &body.ty(value).shape;
                (at + shape.rank()).checked_sub(rank).is_none_or(|i| shape[i].is(1))
            }
        }
    }

    fn elementwise(&self, inputs: &[Value], body: &Graph, rank: usize) -> Option<usize> {
        let at = inputs.iter().find_map(|v| self.aligned(*v, body, rank))?;
        inputs.iter().all(|v| self.stretches(*v, body, at, rank)).then_some(at)
    }

    fn matmul(&self, inputs: &[Value], body: &Graph, transpose_a: bool, rank: usize) -> Option<usize> {
        let own = body.ty(inputs[0]).shape.rank();
        let row_axis = if transpose_a { own - 1 } else { own - 2 };
        match (self.axis.get(&inputs[0]), self.axis.get(&inputs[1])) {
            (Some(&at), None) if at == row_axis => Some(rank - 2),
            (Some(&at), _) if at < own - 2 => {
                let at = at + rank - own;
                self.stretches(inputs[1], body, at, rank).then_some(at)
            }
            _ => None,
        }
    }
}
