//! The gradient of a loop is a loop in the other direction.
//!
//! With a step (s', y) = f(s, x, w), the backward loop takes one step for each forward step, from the last to the
//! first: (ds, dx, dw) = (ds', dy)·Jacobian of f there. ds is its state, dy and what it needs of the forward step are
//! its sequences, dx is an output sequence, and dw adds up over the steps.
//!
//! The body is differentiated like any graph, which gives one graph of both directions. It is then cut in two. The
//! backward body gets each forward value that it needs in the first of these ways that applies: as an element of an
//! input sequence, which it reads again; computed again, if the value does not change from step to step, or is a
//! rearrangement or a cheap function of others; or else from an additional output sequence of the forward loop, such as
//! the state that entered a step.
//!
//! A loop inside a loop is computed again. What its steps would save is as long as both loops together; computed again, it
//! is as long as one, and only the states that enter the inner loop are saved. A long loop that is written as a loop over
//! segments is therefore differentiated in little memory, for the time of one more forward pass. Gradients of fixed values
//! all add up in states there.
//!
//! The usual gradients of weights are products over the batch (dW = aᵀ·b), and of biases sums over it. Those are
//! computed after the loop: the loop outputs a and b of every step, and one large product over batch and time follows.
//! All other gradients of fixed values add up in a state.

use super::tape::Tape;
use super::{Forward, backward, forward};
use crate::error::Result;
use crate::graph::{Graph, MAX_RANK, Value};
use crate::op::{Binary, Op, Reduction, Scan, Type, Unary};
use crate::shape::{Dim, Shape};
use std::collections::{BTreeMap, BTreeSet};

/// Which inputs and outputs of a loop depend on the variables of differentiation, given the inputs that do. A state
/// that depends on them after one step does so in all later steps.
fn active(s: &Scan, inputs: &[bool]) -> (Vec<bool>, Vec<bool>) {
    let mut inputs = inputs.to_vec();
    loop {
        let values = body_inputs(&s.body, &inputs);
        let reached = super::active(&s.body, values);
        let mut outputs: Vec<bool> = s.body.outputs().iter().map(|o| reached.contains(&o.value)).collect();
        let grown: Vec<usize> = (0..s.states).filter(|&i| outputs[i] && !inputs[i]).collect();
        if grown.is_empty() {
            // Without any step, the final states are the initial ones.
            (0..s.states).for_each(|i| outputs[i] = inputs[i]);
            return (inputs, outputs);
        }
        grown.into_iter().for_each(|i| inputs[i] = true);
    }
}

pub(super) fn active_outputs(s: &Scan, inputs: &[bool]) -> Vec<bool> {
    active(s, inputs).1
}

fn body_inputs(body: &Graph, which: &[bool]) -> Vec<Value> {
    body.inputs().zip(which).filter(|(_, w)| **w).map(|((_, v), _)| v).collect()
}

/// Which inputs and outputs of a loop lie on the path: from active inputs to outputs that are wanted.
pub(super) struct Path {
    pub(super) inputs: Vec<bool>,
    pub(super) outputs: Vec<bool>,
}
impl Path {
    pub(super) fn of(s: &Scan, active_inputs: &[bool], wanted: &[bool]) -> Path {
        let (active_inputs, _) = active(s, active_inputs);
        let reached = super::active(&s.body, body_inputs(&s.body, &active_inputs));
        let mut outputs = wanted.to_vec();
        loop {
            let targets = s.body.outputs().iter().zip(&outputs).filter(|(_, w)| **w).map(|(o, _)| o.value).collect();
            let path = super::path(&s.body, &reached, &targets);
            let mut inputs: Vec<bool> = s.body.inputs().map(|(_, v)| path.contains(&v)).collect();
            let grown: Vec<usize> = (0..s.states).filter(|&i| inputs[i] && !outputs[i]).collect();
            if grown.is_empty() {
                (0..s.states).for_each(|i| inputs[i] |= outputs[i] && active_inputs[i]);
                return Path { inputs, outputs };
            }
            grown.into_iter().for_each(|i| outputs[i] = true);
        }
    }
}

/// Where a sequence around the backward loop comes from.
#[derive(Clone, Copy)]
enum Source {
    /// The gradient of an output of the forward loop.
    Gradient(usize),
    /// An input of the forward loop.
    Input(usize),
    /// An output of the forward loop.
    Saved(usize),
    /// An output of the backward loop.
    Emitted(usize),
}

/// A part of a fixed value's gradient that is taken over all steps at once.
enum Term {
    /// aᵀ·b, whose rows are batch and time.
    Product(Source, Source),
    /// The sum over these axes of a step's value, and over time.
    Sum(Source, Vec<usize>),
}

/// The backward plan of one loop.
pub(super) struct Plan {
    /// The backward loop; its inputs are gradients of states, sums for fixed values, sequences, fixed values.
    scan: Scan,
    /// States of the forward loop that have a gradient.
    states: Vec<usize>,
    /// Fixed inputs whose gradient adds up in a state.
    sums: Vec<usize>,
    sequences: Vec<Source>,
    /// Inputs of the forward loop that the backward loop reads whole.
    fixed: Vec<usize>,
    /// Input sequences that have a gradient, in the order of the outputs after the states.
    gradients: Vec<usize>,
    /// Fixed inputs whose gradient is taken after the loop.
    after: Vec<(usize, Vec<Term>)>,
}

/// The forward loop with the additional outputs, and the backward plan.
pub(super) fn extend(s: &Scan, name: &str, active_inputs: &[bool], wanted: &[bool]) -> Result<(Scan, Plan)> {
    let Path { inputs, outputs } = Path::of(s, active_inputs, wanted);
    let of: BTreeSet<Value> =
        s.body.outputs().iter().zip(&outputs).filter(|(_, w)| **w).map(|(o, _)| o.value).collect();
    let Forward { graph: saving, plans, wrt } = forward(&s.body, &body_inputs(&s.body, &inputs), &of)?;

    // Both directions in one graph.
    let mut tape = Tape::new(saving.clone(), name);
    let mut seeds = BTreeMap::new();
    for (j, output) in saving.outputs().iter().enumerate().filter(|(j, _)| outputs[*j]) {
        let name = fresh("gradient", |n| tape.graph.inputs().any(|(known, _)| known == n));
        let ty = saving.ty(output.value).clone();
        seeds.insert(j, tape.graph.push(Op::Input { name: name.clone(), ty }, vec![], name)?);
    }
    let pairs: Vec<(Value, Value)> = seeds.iter().map(|(&j, &seed)| (saving.outputs()[j].value, seed)).collect();
    let found = backward(&mut tape, &plans, &pairs, &wrt)?;
    let mut roots: BTreeMap<usize, Value> = BTreeMap::new();
    for (i, root) in (0..inputs.len()).filter(|&i| inputs[i]).zip(found) {
        roots.extend(root.map(|root| (i, root)));
    }

    let forward_nodes = saving.nodes().len();
    let cut = Cut {
        s,
        varies: varies(&tape.graph, s.states + s.sequences),
        inputs: saving.inputs().map(|(_, v)| v).zip(0..).collect(),
        seeds: seeds.iter().map(|(&j, &v)| (v, j)).collect(),
        joint: tape.graph,
        forward_nodes,
        again: BTreeSet::new(),
        saving,
        body: Tape::new(Graph::default(), name),
        moved: BTreeMap::new(),
        states: 0,
        sequences: vec![],
    };
    cut.make(&seeds, &roots)
}

/// Whether each node depends on anything that changes from step to step.
fn varies(graph: &Graph, changing: usize) -> Vec<bool> {
    let mut varies: Vec<bool> = vec![];
    let inputs: BTreeSet<u32> = graph.inputs().take(changing).map(|(_, v)| v.node).collect();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        varies.push(inputs.contains(&id) || node.inputs.iter().any(|v| varies[v.node as usize]));
    }
    varies
}

/// A name that is not taken.
fn fresh(base: &str, taken: impl Fn(&str) -> bool) -> String {
    (0..).map(|i| format!("{base}.{i}")).find(|n| !taken(n)).unwrap_or_default()
}

/// The cut of the graph of both directions into a forward and a backward body.
struct Cut<'a> {
    s: &'a Scan,
    joint: Graph,
    forward_nodes: usize,
    varies: Vec<bool>,
    /// Forward nodes that the backward body computes again from values that it has anyway.
    again: BTreeSet<u32>,
    /// The body's inputs and their numbers.
    inputs: BTreeMap<Value, usize>,
    /// Inputs that stand for gradients of the body's outputs, and the outputs' numbers.
    seeds: BTreeMap<Value, usize>,
    /// The forward body, which gains outputs.
    saving: Graph,
    /// The backward body.
    body: Tape,
    /// For values of the joint graph, their counterparts in the backward body.
    moved: BTreeMap<Value, Value>,
    /// How many states the backward loop has.
    states: usize,
    sequences: Vec<Source>,
}

impl Cut<'_> {
    fn make(mut self, seeds: &BTreeMap<usize, Value>, roots: &BTreeMap<usize, Value>) -> Result<(Scan, Plan)> {
        let (states, sequences) = (self.s.states, self.s.sequences);
        let mut sums = vec![];
        let mut terms: Vec<(usize, Vec<Parts>)> = vec![];
        // Around a loop, operands for later would be as long as both loops together: the memory that is to be saved.
        let around = self.s.body.nodes().iter().any(|n| matches!(n.op, Op::Scan(_)));
        for (&i, &root) in roots.range(states + sequences..) {
            match self.parts(root).filter(|_| !around) {
                Some(parts) => terms.push((i, parts)),
                None => sums.push(i),
            }
        }

        // What the backward body must compute, and the values that it needs for that.
        let mut live: BTreeSet<Value> = roots.range(..states + sequences).map(|(_, &v)| v).collect();
        live.extend(sums.iter().map(|i| roots[i]));
        let operands = terms.iter().flat_map(|(_, parts)| parts).flat_map(Parts::operands);
        live.extend(operands.filter(|&v| !self.stays_outside(v)));
        let (_, first) = self.sweep(live.clone());
        self.compute_again(&first);
        let (copied, leaves) = self.sweep(live);

        // Its inputs, in a scan's order: first the states,
        let carried: Vec<usize> = (0..states).filter(|i| seeds.contains_key(i)).collect();
        for i in &carried {
            let seed = seeds[i];
            let moved = self.input("state", self.joint.ty(seed).clone())?;
            self.moved.insert(seed, moved);
        }
        let mut totals = vec![];
        for i in &sums {
            totals.push(self.input("sum", self.joint.ty(roots[i]).clone())?);
        }
        self.states = self.body.graph.inputs().len();
        // then the sequences,
        for &leaf in &leaves {
            self.sequence(leaf)?;
        }
        if self.sequences.is_empty() {
            // A loop needs a sequence, which gives its number of steps, even if its body reads none.
            let (_, first) = self.s.body.inputs().nth(states).ok_or_else(|| self.body.too_large())?;
            self.sequences.push(Source::Input(states));
            self.input("steps", self.s.body.ty(first).clone())?;
        }
        // then the fixed values.
        let mut fixed = vec![];
        for &leaf in &leaves {
            if let Some(&i) = self.inputs.get(&leaf)
                && i >= states + sequences
            {
                let moved = self.input("fixed", self.joint.ty(leaf).clone())?;
                self.moved.insert(leaf, moved);
                fixed.push(i);
            }
        }
        self.reshape_flattened(&leaves)?;
        for &id in copied.iter().rev() {
            let node = &self.joint.nodes()[id as usize];
            let inputs = node.inputs.iter().map(|v| self.moved[v]).collect();
            let new = self.body.graph.push(node.op.clone(), inputs, node.name.clone())?;
            for slot in 0..node.outs.len() as u16 {
                self.moved.insert(Value { node: id, slot }, Value { node: new.node, slot });
            }
        }

        // Its outputs: gradients of states, sums, gradients of sequences, and operands for after the loop.
        for i in &carried {
            let next = match roots.get(i) {
                Some(root) => self.moved[root],
                None => self.body.zeros(&self.joint.ty(seeds[i]).clone())?,
            };
            self.output(next)?;
        }
        for (i, &total) in sums.iter().zip(&totals) {
            let next = self.body.add(total, self.moved[&roots[i]])?;
            self.output(next)?;
        }
        let gradients: Vec<usize> = roots.range(states..states + sequences).map(|(&i, _)| i).collect();
        for i in &gradients {
            self.output(self.moved[&roots[i]])?;
        }
        let mut after = vec![];
        for (i, parts) in terms {
            let mut list = vec![];
            for part in parts {
                list.push(match part {
                    Parts::Product(a, b) => Term::Product(self.source(a)?, self.source(b)?),
                    Parts::Sum(x, axes) => Term::Sum(self.source(x)?, axes),
                });
            }
            after.push((i, list));
        }

        let forward = Scan { body: self.saving.into(), ..self.s.clone() };
        let scan = Scan {
            body: self.body.graph.into(),
            states: self.states,
            sequences: self.sequences.len(),
            axis: self.s.axis,
            reverse: !self.s.reverse,
        };
        Ok((forward, Plan { scan, states: carried, sums, sequences: self.sequences, fixed, gradients, after }))
    }

    /// The nodes that the backward body copies to compute `live`, last first, and the values that it must get from
    /// outside.
    fn sweep(&self, mut live: BTreeSet<Value>) -> (Vec<u32>, BTreeSet<Value>) {
        let mut copied = vec![];
        let mut leaves = BTreeSet::new();
        for id in (0..self.joint.nodes().len() as u32).rev() {
            let slots = live.range(Value { node: id, slot: 0 }..Value { node: id + 1, slot: 0 });
            let slots: Vec<Value> = slots.copied().collect();
            if slots.is_empty() {
                continue;
            }
            if self.is_given(id) {
                leaves.extend(slots);
            } else {
                copied.push(id);
                live.extend(&self.joint.nodes()[id as usize].inputs);
            }
        }
        (copied, leaves)
    }

    /// Finds values that one cheap operation can compute again from others: a sum or product costs less than writing it
    /// to memory in the forward loop and reading it in the backward loop.
    fn compute_again(&mut self, leaves: &BTreeSet<Value>) {
        for leaf in leaves.iter().filter(|v| (v.node as usize) < self.forward_nodes) {
            let node = self.joint.node(*leaf);
            let cheap = match &node.op {
                Op::Binary(b) => !matches!(b, Binary::Div | Binary::Pow),
                Op::Unary(u) => matches!(u, Unary::Neg | Unary::Abs | Unary::Square | Unary::Relu),
                Op::Compare(_) | Op::Select | Op::Cast { .. } => true,
                _ => false,
            };
            let there = |v: &Value| {
                let element = self.inputs.get(v).is_some_and(|&i| i >= self.s.states);
                leaves.contains(v) || element || !self.varies[v.node as usize]
            };
            if cheap && node.inputs.iter().all(there) {
                self.again.insert(leaf.node);
            }
        }
    }

    /// Whether the backward body gets the node's value from outside rather than computing it.
    fn is_given(&self, id: u32) -> bool {
        if self.again.contains(&id) {
            return false;
        }
        let op = &self.joint.nodes()[id as usize].op;
        let made_again = matches!(
            op,
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Broadcast { .. } | Op::Concat { .. } | Op::Scan(_)
        );
        let forward = (id as usize) < self.forward_nodes;
        matches!(op, Op::Input { .. }) || (forward && self.varies[id as usize] && !made_again)
    }

    fn input(&mut self, kind: &str, ty: Type) -> Result<Value> {
        let name = format!("{kind}.{}", self.body.graph.inputs().len());
        self.body.graph.push(Op::Input { name: name.clone(), ty }, vec![], name)
    }
    fn output(&mut self, value: Value) -> Result<usize> {
        let number = self.body.graph.outputs().len();
        self.body.graph.push_output(format!("{number}"), value)?;
        Ok(number)
    }

    /// The sequence outside of the backward loop whose elements are this value, if there is one; adds it to the forward
    /// loop's outputs if needed.
    fn outside(&mut self, value: Value) -> Result<Option<Source>> {
        let (states, sequences) = (self.s.states, self.s.sequences);
        if let Some(&j) = self.seeds.get(&value) {
            return Ok((j >= states).then_some(Source::Gradient(j)));
        }
        match self.inputs.get(&value) {
            Some(&i) if i >= states + sequences => return Ok(None),
            Some(&i) if i >= states => return Ok(Some(Source::Input(i))),
            _ => {}
        }
        if !self.is_given(value.node) {
            return Ok(None);
        }
        let mut saved = value;
        if self.is_flattened(value) {
            let shape = self.flat(value)?;
            let same = |n: &crate::graph::Node| n.inputs == [value] && n.op == Op::Reshape { shape: shape.clone() };
            saved = match self.saving.nodes().iter().position(same) {
                Some(node) => Value { node: node as u32, slot: 0 },
                None => {
                    let name = format!("{}.saved", self.saving.node(value).name);
                    self.saving.push(Op::Reshape { shape: shape.clone() }, vec![value], name)?
                }
            };
        }
        // A state's own output is its last value only; the others are sequences.
        if let Some(known) = self.saving.outputs().iter().skip(states).position(|o| o.value == saved) {
            return Ok(Some(Source::Saved(states + known)));
        }
        let name = fresh("saved", |n| self.saving.outputs().iter().any(|o| o.name == n));
        self.saving.push_output(name, saved)?;
        Ok(Some(Source::Saved(self.saving.outputs().len() - 1)))
    }

    /// Whether a value can be read as a sequence outside of the backward loop, so that work after that loop needs no
    /// output of it.
    fn stays_outside(&self, value: Value) -> bool {
        let of_state = self.seeds.get(&value).is_some_and(|&j| j < self.s.states);
        let fixed = self.inputs.get(&value).is_some_and(|&i| i >= self.s.states + self.s.sequences);
        self.is_given(value.node) && !of_state && !fixed && !self.is_flattened(value)
    }

    /// Whether a value must be saved as a single row: it has no axis behind which time could go, or already has the
    /// most axes allowed.
    fn is_flattened(&self, value: Value) -> bool {
        let rank = self.joint.ty(value).shape.rank();
        let own = self.seeds.contains_key(&value) || self.inputs.get(&value).is_some_and(|&i| i >= self.s.states);
        !own && (rank < self.s.axis || rank >= MAX_RANK)
    }
    fn flat(&self, value: Value) -> Result<Shape> {
        let count = self.joint.ty(value).shape.count().ok_or_else(|| self.body.too_large())?;
        Ok(vec![count].into())
    }

    /// Makes a value an input sequence of the backward body, unless it is a state or fixed.
    fn sequence(&mut self, leaf: Value) -> Result<()> {
        if let Some(source) = self.outside(leaf)? {
            self.sequences.push(source);
            let mut ty = self.joint.ty(leaf).clone();
            if self.is_flattened(leaf) {
                ty.shape = self.flat(leaf)?;
            }
            let moved = self.input("sequence", ty)?;
            self.moved.insert(leaf, moved);
        }
        Ok(())
    }
    fn reshape_flattened(&mut self, leaves: &BTreeSet<Value>) -> Result<()> {
        for &leaf in leaves {
            if self.is_flattened(leaf) {
                let restored = self.body.reshape(self.moved[&leaf], &self.joint.ty(leaf).shape.clone())?;
                self.moved.insert(leaf, restored);
            }
        }
        Ok(())
    }

    /// A value of every step, as a sequence for work after the loop.
    fn source(&mut self, value: Value) -> Result<Source> {
        match if self.stays_outside(value) { self.outside(value)? } else { None } {
            Some(source) => Ok(source),
            None => {
                let moved = self.moved[&value];
                let known = self.body.graph.outputs().iter().skip(self.states).position(|o| o.value == moved);
                match known {
                    Some(known) => Ok(Source::Emitted(self.states + known)),
                    None => Ok(Source::Emitted(self.output(moved)?)),
                }
            }
        }
    }

    /// A gradient as a sum of products and row sums that can be taken after the loop.
    fn parts(&self, root: Value) -> Option<Vec<Parts>> {
        let mut parts = vec![];
        let mut rest = vec![root];
        while let Some(value) = rest.pop() {
            let node = self.joint.node(value);
            let ty = |v: Value| self.joint.ty(v);
            let rank = |v: Value| ty(v).shape.rank();
            match (&node.op, &node.inputs[..]) {
                _ if (value.node as usize) < self.forward_nodes => return None,
                (Op::Binary(Binary::Add), &[a, b]) if ty(a) == ty(b) => rest.extend([b, a]),
                (Op::MatMul { transpose_a: true, transpose_b: false }, &[a, b]) if rank(a) == 2 && rank(b) == 2 => {
                    parts.push(Parts::Product(a, b));
                }
                (Op::Reduce { kind: Reduction::Sum, axes, keep: false }, &[x])
                    if rank(value) <= 1 && (self.s.axis..=2).contains(&rank(x)) =>
                {
                    parts.push(Parts::Sum(x, axes.clone()));
                }
                // A reshape that only adds axes of size 1 to such a sum; the result gets its shape at the end.
                (Op::Reshape { .. }, &[x]) if rank(value) <= 2 && rank(x) <= 1 => rest.push(x),
                _ => return None,
            }
        }
        Some(parts)
    }
}

/// As [`Term`], of values in the joint graph.
enum Parts {
    Product(Value, Value),
    Sum(Value, Vec<usize>),
}
impl Parts {
    fn operands(&self) -> Vec<Value> {
        match self {
            Parts::Product(a, b) => vec![*a, *b],
            Parts::Sum(x, _) => vec![*x],
        }
    }
}

impl Plan {
    /// Adds the backward loop: from the gradients of the loop's outputs to those of its inputs.
    pub(super) fn apply(
        &self,
        tape: &mut Tape,
        node: u32,
        inputs: &[Value],
        outs: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let mut result = vec![None; inputs.len()];
        let out = |i: usize| Value { node, slot: i as u16 };
        let mut given: BTreeMap<usize, Value> = BTreeMap::new();
        let mut gradient = |tape: &mut Tape, i: usize| match outs.get(i).copied().flatten().or(given.get(&i).copied()) {
            Some(g) => Ok(g),
            None => {
                let zeros = tape.zeros(&tape.ty(out(i)).clone())?;
                given.insert(i, zeros);
                Ok::<Value, crate::error::Error>(zeros)
            }
        };
        let mut args = vec![];
        for &i in &self.states {
            args.push(gradient(tape, i)?);
        }
        for &i in &self.sums {
            args.push(tape.zeros(&tape.ty(inputs[i]).clone())?);
        }
        for &source in &self.sequences {
            args.push(match source {
                Source::Gradient(j) => gradient(tape, j)?,
                Source::Input(i) => inputs[i],
                Source::Saved(i) => out(i),
                Source::Emitted(i) => unreachable!("the backward loop would read its own output {i}"),
            });
        }
        args.extend(self.fixed.iter().map(|&i| inputs[i]));
        let back = if self.scan.body.outputs().is_empty() {
            None
        } else {
            Some(tape.push(Op::Scan(Box::new(self.scan.clone())), &args)?.node)
        };
        let back = |i: usize| Value { node: back.unwrap_or(node), slot: i as u16 };
        let in_loop = self.states.iter().chain(&self.sums).chain(&self.gradients);
        for (slot, &i) in in_loop.enumerate() {
            result[i] = Some(back(slot));
        }

        let axis = self.scan.axis;
        for (i, terms) in &self.after {
            let mut total = None;
            for term in terms {
                let mut whole = |tape: &mut Tape, source| match source {
                    Source::Gradient(j) => gradient(tape, j),
                    Source::Input(i) => Ok(inputs[i]),
                    Source::Saved(i) => Ok(out(i)),
                    Source::Emitted(i) => Ok(back(i)),
                };
                let part = match term {
                    Term::Product(a, b) => {
                        let (a, b) = (whole(tape, *a)?, whole(tape, *b)?);
                        let (a, b) = (rows(tape, a)?, rows(tape, b)?);
                        tape.matmul(a, b, true, false)?
                    }
                    Term::Sum(x, axes) => {
                        let x = whole(tape, *x)?;
                        let mut axes: Vec<usize> = axes.iter().map(|&a| if a < axis { a } else { a + 1 }).collect();
                        axes.push(axis);
                        axes.sort_unstable();
                        tape.push(Op::Reduce { kind: Reduction::Sum, axes, keep: false }, &[x])?
                    }
                };
                let part = tape.reshape(part, &tape.shape(inputs[*i]))?;
                total = Some(tape.accumulate(total, part)?);
            }
            result[*i] = total;
        }
        Ok(result)
    }
}

/// The two leading axes, batch and time in either order, as one.
fn rows(tape: &mut Tape, x: Value) -> Result<Value> {
    let shape = tape.shape(x);
    let rows: Dim = shape[0].checked_mul(&shape[1]).ok_or_else(|| tape.too_large())?;
    tape.reshape(x, &vec![rows, shape[2].clone()].into())
}
