//! Joins maps: elementwise work whose inner values are also read elsewhere becomes one map that writes all of these.
//!
//! Fusion stops at a value that is read twice, or that is a result. This pass runs after fusion, so epilogues of
//! products and gates of cells are already gone from the maps. It joins a map with one that reads its result, or that
//! reads the same values: shared operands are then read once, a value that one map makes for the other stays in
//! registers, and there is one call less. Values that other nodes read are results of the joined map.
//!
//! Two maps must not be joined if one depends on the other by way of a third node, which would then have to run in the
//! middle of the joined map. Maps are visited from last to first, so units that are already joined come after the
//! visited map, and it cannot depend on them. It is therefore enough to follow the map's other readers.

use super::PassOptions;
use super::dead::Program;
use super::fuse::keeps;
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value, name};
use crate::op::{Map, MapInstr, MapResult, Op};
use schwann_kernels::tuning::Tuning;
use std::collections::{HashMap, HashSet};

/// The most results of one map: each one is written to a different place in memory, beside the inputs that are read.
const MOST_RESULTS: usize = 8;
/// How many maps are tried for each map, and how many nodes are visited for each try, so that the pass takes linear
/// time.
const MOST_TRIES: usize = 4;
const MOST_VISITS: usize = 512;

pub(super) fn join_maps(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    if !options.fuse {
        return Ok(graph.clone());
    }
    let mut joined = Joined::new(graph, options);
    for id in (0..graph.nodes().len() as u32).rev() {
        if let Op::Map { .. } = graph.nodes()[id as usize].op {
            joined.try_joining(id)?;
        }
    }
    if joined.members.is_empty() { Ok(graph.clone()) } else { joined.rebuild() }
}

/// The joined map of several members.
struct Whole {
    map: Map,
    inputs: Vec<Value>,
    /// Its results, each with the value of the old graph that it replaces.
    results: Vec<(Value, MapResult)>,
}

struct Joined<'a> {
    graph: &'a Graph,
    tuning: &'a Tuning,
    readers: Vec<Vec<u32>>,
    outputs: HashSet<Value>,
    /// For each node, the unit that it belongs to: the last node of its joined map, or itself.
    unit: Vec<u32>,
    /// The nodes of each unit that has more than one.
    members: HashMap<u32, Vec<u32>>,
}

impl<'a> Joined<'a> {
    fn new(graph: &'a Graph, options: &'a PassOptions) -> Joined<'a> {
        Joined {
            graph,
            tuning: &options.tuning,
            readers: graph.readers(),
            outputs: graph.outputs().iter().map(|o| o.value).collect(),
            unit: (0..graph.nodes().len() as u32).collect(),
            members: HashMap::new(),
        }
    }

    fn node(&self, id: u32) -> &'a Node {
        &self.graph.nodes()[id as usize]
    }

    /// The nodes of a unit, in order.
    fn members(&self, unit: u32) -> Vec<u32> {
        self.members.get(&unit).cloned().unwrap_or_else(|| vec![unit])
    }

    /// Joins a map to the first later unit that it may be joined to.
    fn try_joining(&mut self, id: u32) -> Result<()> {
        let node = self.node(id);
        let shape = &node.outs[0].shape;
        let after = |readers: &[u32]| readers.iter().filter(|&&other| other > id).copied().collect::<Vec<_>>();
        // Candidates are first its readers, then maps that read the same operands. Of operands only those of the full
        // shape count: reading a row or a number once more costs nothing.
        let mut others = after(&self.readers[id as usize]);
        for v in node.inputs.iter().filter(|v| self.graph.ty(**v).shape == *shape) {
            let reads = |other: &u32| self.node(*other).inputs.contains(v);
            others.extend(after(&self.readers[v.node as usize]).into_iter().filter(reads));
        }
        let alike = |unit: &u32| {
            let last = self.node(*unit);
            matches!(last.op, Op::Map { .. }) && last.outs[0].shape == *shape
        };
        let mut seen = HashSet::new();
        let units = others.into_iter().map(|other| self.unit[other as usize]);
        let units: Vec<u32> = units.filter(|u| alike(u) && seen.insert(*u)).take(MOST_TRIES).collect();
        for unit in units {
            let mut members = self.members(unit);
            members.insert(0, id);
            if self.fits(id, unit, &members)? {
                self.unit[id as usize] = unit;
                self.members.insert(unit, members);
                break;
            }
        }
        Ok(())
    }

    fn fits(&self, id: u32, unit: u32, members: &[u32]) -> Result<bool> {
        if self.leads_to(id, unit) {
            return Ok(false);
        }
        let Some(Whole { map, inputs, results }) = self.whole(members)? else { return Ok(false) };
        let small = map.code.len() <= self.tuning.fused_instructions_most();
        Ok(small && inputs.len() <= self.tuning.fused_inputs_most() && results.len() <= MOST_RESULTS)
    }

    /// Whether there is (or may be) a path from a node to a unit through a third node.
    fn leads_to(&self, id: u32, unit: u32) -> bool {
        let mut seen: HashSet<u32> = HashSet::from([id]);
        let mut stack = vec![id];
        let mut visits = 0;
        while let Some(at) = stack.pop() {
            for member in self.members(at) {
                visits += 1;
                for &reader in &self.readers[member as usize] {
                    let next = self.unit[reader as usize];
                    if next == unit && at != id || visits > MOST_VISITS {
                        return true;
                    }
                    if next != unit && seen.insert(next) {
                        stack.push(next);
                    }
                }
            }
        }
        false
    }

    /// The program of several maps, in order; `None` if one reads a value that storing would have changed.
    fn whole(&self, members: &[u32]) -> Result<Option<Whole>> {
        let (mut code, mut inputs): (Vec<MapInstr>, Vec<Value>) = (vec![], vec![]);
        // The position in the program of each value that it reads or computes.
        let mut values: HashMap<Value, u16> = HashMap::new();
        let mut made: Vec<(Value, MapResult)> = vec![];
        for &id in members {
            let node = self.node(id);
            let Op::Map { map, dtype, also } = &node.op else {
                let problem = format!("{} was taken for a map", node.op.name());
                return Err(Error::Pass { pass: "", node: node.name.clone(), problem });
            };
            let mut at: Vec<u16> = Vec::with_capacity(map.code.len());
            for instr in &map.code {
                let known = match instr {
                    MapInstr::Input(n) => values.get(&node.inputs[usize::from(*n)]).copied(),
                    _ => None,
                };
                if let Some(known) = known {
                    at.push(known);
                    continue;
                }
                code.push(match instr {
                    MapInstr::Input(n) => {
                        let value = node.inputs[usize::from(*n)];
                        values.insert(value, code.len() as u16);
                        inputs.push(value);
                        MapInstr::Input((inputs.len() - 1) as u16)
                    }
                    other => other.map_operands(|o| at[usize::from(o)]),
                });
                at.push((code.len() - 1) as u16);
            }
            // An input that a map does not read may still give it its shape.
            for v in node.inputs.iter().filter(|v| !members.contains(&v.node)) {
                if !inputs.contains(v) {
                    inputs.push(*v);
                }
            }
            let last = MapResult { at: (map.code.len() - 1) as u16, dtype: *dtype };
            for (slot, r) in (0u16..).zip(std::iter::once(&last).chain(also)) {
                let (value, at) = (Value { node: id, slot }, at[usize::from(r.at)]);
                values.insert(value, at);
                made.push((value, MapResult { at, dtype: r.dtype }));
            }
        }
        let inside = |reader: &u32| members.contains(reader);
        let mut results = vec![];
        for (value, r) in made {
            let read = |reader: &&u32| self.node(**reader).inputs.contains(&value);
            let mut readers = self.readers[value.node as usize].iter().filter(read).peekable();
            if readers.clone().any(inside) && !keeps(code[usize::from(r.at)], r.dtype) {
                return Ok(None);
            }
            if self.outputs.contains(&value) || readers.any(|reader| !inside(reader)) {
                results.push((value, r));
            }
        }
        // If nothing is read at all, dead-code removal deletes it.
        Ok((!results.is_empty()).then_some(Whole { map: Map { code }, inputs, results }))
    }

    /// The graph with every unit as one node, each after its operands.
    fn rebuild(self) -> Result<Graph> {
        let graph = self.graph;
        let mut r = graph.rebuild();
        let mut done = vec![false; graph.nodes().len()];
        // First the inputs, whose order is part of the graph's interface.
        for (_, value) in graph.inputs() {
            r.copy(value.node)?;
            done[value.node as usize] = true;
        }
        for id in 0..graph.nodes().len() as u32 {
            // An explicit stack instead of recursion, since graphs can be deep: (unit, whether its operands are done).
            let mut stack = if self.unit[id as usize] == id { vec![(id, false)] } else { vec![] };
            while let Some((unit, ready)) = stack.pop() {
                if done[unit as usize] {
                    continue;
                }
                let members = self.members(unit);
                if !ready {
                    stack.push((unit, true));
                    let read = members.iter().flat_map(|&m| &self.node(m).inputs).map(|v| self.unit[v.node as usize]);
                    let mut read: Vec<u32> = read.filter(|&u| u != unit && !done[u as usize]).collect();
                    read.sort_unstable();
                    stack.extend(read.into_iter().rev().map(|u| (u, false)));
                    continue;
                }
                done[unit as usize] = true;
                if members.len() == 1 {
                    r.copy(unit)?;
                    continue;
                }
                let Some(Whole { map, inputs, results }) = self.whole(&members)? else {
                    let problem = "maps were joined that cannot be".into();
                    return Err(Error::Pass { pass: "", node: self.node(unit).name.clone(), problem });
                };
                let (values, results): (Vec<Value>, Vec<MapResult>) = results.into_iter().unzip();
                let Program { op, inputs, order } = Program::giving(graph, &map, &inputs, &results);
                let inputs = r.all(&inputs)?;
                let new = r.new.push(op, inputs, self.name(&values, &members))?;
                for (slot, k) in (0u16..).zip(order) {
                    r.set(values[k], Value { slot, ..new });
                }
            }
        }
        r.finish()
    }

    /// A map of several results is called after the path that their names share; where they share none, or there is one
    /// result, after the last.
    fn name(&self, results: &[Value], members: &[u32]) -> String {
        let names = |ids: &[u32]| ids.iter().map(|&id| self.node(id).name.as_str()).collect::<Vec<_>>();
        let results: Vec<&str> = results.iter().map(|v| self.graph.node(*v).name.as_str()).collect();
        match (name::shared(&results), results.last()) {
            // The path `grad` alone would say nothing.
            (Some(path), _) if results.len() > 1 && path != "grad" => path,
            (_, Some(last)) => name::fused(None, last, names(members).into_iter()),
            (_, None) => String::new(),
        }
    }
}
