//! Removes nodes that are not needed, and merges equal ones.

use super::PassOptions;
use super::merge::with_body;
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::op::{Map, MapInstr, MapResult, Op, Scan};
use crate::shape::Shape;
use std::collections::{HashMap, HashSet};

/// Loops without the values that they are handed and do not read.
pub(super) fn unread_by_loops(graph: &Graph) -> Result<Graph> {
    let mut r = graph.rebuild();
    for (id, node) in (0u32..).zip(graph.nodes()) {
        let Op::Scan(scan) = &node.op else {
            r.copy(id)?;
            continue;
        };
        let inner = unread_by_loops(&scan.body)?;
        let (uses, first) = (inner.uses(), scan.states + scan.sequences);
        let (mut body, mut inputs) = (inner.rebuild(), vec![]);
        let unread: HashSet<u32> =
            inner.inputs().skip(first).map(|(_, v)| v.node).filter(|id| uses[*id as usize] == [0]).collect();
        for ((_, value), outer) in inner.inputs().zip(&node.inputs) {
            if !unread.contains(&value.node) {
                inputs.push(r.get(*outer)?);
            }
        }
        for id in (0..inner.nodes().len() as u32).filter(|id| !unread.contains(id)) {
            body.copy(id)?;
        }
        let new = r.new.push(Op::Scan(Box::new(with_body(scan, body.finish()?))), inputs, node.name.clone())?;
        r.set_all(id, new);
    }
    r.finish()
}

/// Drops nodes that no result depends on, and results of programs and sequences of loops that are not read. Inputs stay:
/// they are the graph's interface.
pub(crate) fn dead_code(graph: &Graph, _: &PassOptions) -> Result<Graph> {
    let nodes = graph.nodes();
    let mut live: Vec<Vec<bool>> = nodes.iter().map(|n| vec![false; n.outs.len()]).collect();
    let read = |live: &mut Vec<Vec<bool>>, v: &Value| live[v.node as usize][usize::from(v.slot)] = true;
    graph.outputs().iter().for_each(|o| read(&mut live, &o.value));
    // Programs that lose a result may also lose inputs: nodes that only those inputs need are dead too.
    let mut smaller: HashMap<u32, Program> = HashMap::new();
    for (at, node) in nodes.iter().enumerate().rev() {
        let (id, slots) = (at as u32, &live[at]);
        if !slots.contains(&true) {
            continue;
        }
        let inputs = match &node.op {
            Op::Map { map, dtype, also } if slots.contains(&false) => {
                let last = MapResult { at: (map.code.len() - 1) as u16, dtype: *dtype };
                let all: Vec<MapResult> = std::iter::once(last).chain(also.iter().copied()).collect();
                let kept: Vec<usize> = (0..all.len()).filter(|&k| slots[k]).collect();
                let results: Vec<MapResult> = kept.iter().map(|&k| all[k]).collect();
                let mut program = Program::giving(graph, map, &node.inputs, &results);
                program.order.iter_mut().for_each(|k| *k = kept[*k]);
                &smaller.entry(id).or_insert(program).inputs
            }
            _ => &node.inputs,
        };
        inputs.iter().for_each(|v| read(&mut live, v));
    }
    let mut r = graph.rebuild();
    for (id, node) in (0u32..).zip(nodes) {
        if let Some(Program { op, inputs, order }) = smaller.remove(&id) {
            let inputs = r.all(&inputs)?;
            let new = r.new.push(op, inputs, node.name.clone())?;
            for (slot, old) in (0u16..).zip(order) {
                r.set(Value { node: id, slot: old as u16 }, Value { slot, ..new });
            }
        } else if let Op::Scan(scan) = &node.op
            && live[id as usize].contains(&true)
            && live[id as usize][scan.states..].contains(&false)
        {
            let (op, kept) = without_unread(scan, &live[id as usize])?;
            let inputs = r.all(&node.inputs)?;
            let new = r.new.push(op, inputs, node.name.clone())?;
            for (slot, old) in (0u16..).zip(kept) {
                r.set(Value { node: id, slot: old as u16 }, Value { slot, ..new });
            }
        } else if live[id as usize].contains(&true) || matches!(node.op, Op::Input { .. }) {
            r.copy(id)?;
        }
    }
    r.finish()
}

/// A loop without the sequences that nobody reads, and which of its outputs are left.
fn without_unread(scan: &Scan, read: &[bool]) -> Result<(Op, Vec<usize>)> {
    let kept: Vec<usize> = (0..read.len()).filter(|&slot| slot < scan.states || read[slot]).collect();
    let mut body = scan.body.rebuild();
    for id in 0..scan.body.nodes().len() as u32 {
        body.copy(id)?;
    }
    let body = body.finish_with(&kept)?;
    Ok((Op::Scan(Box::new(Scan { body: body.into(), ..scan.clone() })), kept))
}

/// A program that computes only its results.
pub(super) struct Program {
    pub(super) op: Op,
    pub(super) inputs: Vec<Value>,
    /// For each of its results, which of the requested results it is.
    pub(super) order: Vec<usize>,
}

impl Program {
    /// The program that gives these values of `map`, whose inputs are these values of the graph.
    pub(super) fn giving(graph: &Graph, map: &Map, inputs: &[Value], results: &[MapResult]) -> Program {
        let (mut op, order) = map.giving(results);
        let mut inputs = inputs.to_vec();
        if let Op::Map { map, .. } = &mut op {
            let is_read = |n: usize| map.code.contains(&MapInstr::Input(n as u16));
            let read: Vec<usize> = (0..inputs.len()).filter(|&n| is_read(n)).collect();
            let shape = |numbers: &mut dyn Iterator<Item = usize>| {
                let scalar = Some(Shape::scalar());
                numbers.fold(scalar, |shape, n| shape?.broadcast(&graph.ty(inputs[n]).shape))
            };
            // An input that is not read may still give the results their shape.
            if shape(&mut read.iter().copied()) == shape(&mut (0..inputs.len())) {
                for instr in &mut map.code {
                    if let MapInstr::Input(n) = instr {
                        *n = read.iter().position(|k| k == &usize::from(*n)).unwrap_or(0) as u16;
                    }
                }
                inputs = read.iter().map(|&n| inputs[n]).collect();
            }
        }
        Program { op, inputs, order }
    }
}

/// Merges nodes with the same operation and inputs; the first one's name stays.
pub(super) fn common_subexpressions(graph: &Graph, _: &PassOptions) -> Result<Graph> {
    let mut r = graph.rebuild();
    #[expect(
        clippy::mutable_key_type,
        reason = "a tensor that is yet to be made is known by its address, not by its data"
    )]
    let mut seen: HashMap<(Op, Vec<Value>), Value> = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate() {
        let id = id as u32;
        let mut inputs = r.all(&node.inputs)?;
        if let Op::Binary(b) = node.op
            && b.commutes()
        {
            inputs.sort();
        }
        let key = (node.op.clone(), inputs);
        if let Some(&first) = seen.get(&key) {
            r.set_all(id, first);
            continue;
        }
        let new = r.copy(id)?;
        if !matches!(node.op, Op::Input { .. }) {
            seen.insert(key, new);
        }
    }
    r.finish()
}
