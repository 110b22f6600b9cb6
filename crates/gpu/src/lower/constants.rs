//! Weights and literals as words of one buffer, and tables of synapses sorted by destination.

use super::site::word;
use super::synapses::Lists;
use super::view::{Home, View};
use schwann_core::graph::Node;
use schwann_core::{DType, Error, Graph, Op, Result, Tensor, Value};
use std::collections::HashMap;
use std::ops::Range;

/// A node: the loops that it is in, and its number there.
type Key = (Vec<u32>, u32);

/// Where each constant is.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    at: HashMap<Key, u32>,
    lists: HashMap<Key, Lists>,
    /// The constants, in the order of their places.
    parts: Vec<(Range<u32>, Part)>,
    words: u32,
    /// Unused words after each part.
    gap: u32,
}

#[derive(Debug)]
enum Part {
    /// A weight of the graph, by name.
    Weight(String),
    /// A literal.
    Literal(Tensor),
    /// Tables of synapses: where each of them comes from, and how many sources and
    /// destinations there are.
    Lists { tables: Vec<Known>, ends: [usize; 2] },
}

/// The source of data that is known before a run.
#[derive(Clone, Debug)]
enum Known {
    Weight(String),
    Literal(Tensor),
}

impl Known {
    fn data<'a>(&'a self, graph: &'a Graph) -> Result<&'a Tensor> {
        match self {
            Known::Weight(name) => graph.weight(name),
            Known::Literal(tensor) => Ok(tensor),
        }
    }
}

impl Constants {
    /// Collects the constants of a graph and of the loops in it.
    pub(crate) fn of(graph: &Graph, gap: u32) -> Result<Constants> {
        let mut constants = Constants { gap, ..Constants::default() };
        constants.collect(graph, graph, &[], &[])?;
        Ok(constants)
    }

    fn add(&mut self, part: Part, words: usize) -> Result<u32> {
        let at = self.words;
        // Each begins at a multiple of four words, so that kernels can read four words at a time.
        let end = (at as usize).saturating_add(words.next_multiple_of(4).max(4)).saturating_add(self.gap as usize);
        self.words = word(end)?;
        self.parts.push((at..at + word(words)?, part));
        Ok(at)
    }

    /// `given` are the sources of those of the graph's inputs that are known.
    fn collect(&mut self, whole: &Graph, graph: &Graph, path: &[u32], given: &[Option<Known>]) -> Result<()> {
        let mut known: HashMap<Value, Known> = HashMap::new();
        let mut inputs = given.iter();
        for (id, node) in graph.nodes().iter().enumerate() {
            let id = id as u32;
            let value = Value { node: id, slot: 0 };
            let key = (path.to_vec(), id);
            match &node.op {
                Op::Input { .. } => {
                    if let Some(Some(data)) = inputs.next() {
                        known.insert(value, data.clone());
                    }
                }
                Op::Weight { name, .. } => {
                    let words = whole.weight(name)?.bytes().len().div_ceil(4);
                    let at = self.add(Part::Weight(name.clone()), words)?;
                    self.at.insert(key, at);
                    known.insert(value, Known::Weight(name.clone()));
                }
                Op::Const(tensor) => {
                    if number(tensor).is_none() {
                        let at = self.add(Part::Literal(tensor.clone()), tensor.bytes().len().div_ceil(4))?;
                        self.at.insert(key, at);
                    }
                    known.insert(value, Known::Literal(tensor.clone()));
                }
                Op::SynapseSum { axis, sums, .. } => {
                    let ends = [graph.ty(node.inputs[0]), &node.outs[0]].map(|t| t.shape.dims()[*axis].as_fixed());
                    self.add_lists(whole, node, &known, key, 5 + sums, ends)?;
                }
                Op::SynapseRatio { axis, .. } => {
                    let ends = [graph.ty(node.inputs[0]), &node.outs[0]].map(|t| t.shape.dims()[*axis].as_fixed());
                    self.add_lists(whole, node, &known, key, 7, ends)?;
                }
                Op::Scan(scan) => {
                    let given: Vec<Option<Known>> = node
                        .inputs
                        .iter()
                        .enumerate()
                        .map(|(i, v)| {
                            // States and elements of sequences differ from step to step.
                            if i < scan.states + scan.sequences { None } else { known.get(v).cloned() }
                        })
                        .collect();
                    self.collect(whole, &scan.body, &[path, &[id]].concat(), &given)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_lists(
        &mut self,
        whole: &Graph,
        node: &Node,
        known: &HashMap<Value, Known>,
        key: Key,
        tables: usize,
        ends: [Option<usize>; 2],
    ) -> Result<()> {
        let [Some(sources), Some(destinations)] = ends else { return Ok(()) };
        let Some(tables) = node.inputs[1..tables].iter().map(|v| known.get(v).cloned()).collect::<Option<Vec<_>>>()
        else {
            return Ok(());
        };
        let count = tables[0].data(whole)?.shape().first().copied().unwrap_or(0);
        let words = (destinations + 1).saturating_add(count.saturating_mul(tables.len() - 1));
        // Indices that are out of range are reported during the run, as for tables that are not known.
        if sorted(&tables, whole, [sources, destinations])?.is_none() {
            return Ok(());
        }
        let at = self.add(Part::Lists { tables, ends: [sources, destinations] }, words)?;
        let (destinations, count, words) = (word(destinations)?, word(count)?, word(words)?);
        self.lists.insert(key, Lists { at, destinations, count, words, copy: None });
        Ok(())
    }

    /// A constant of the graph as a value.
    pub(crate) fn view(&self, path: &[u32], id: u32, node: &Node) -> Result<View> {
        let ty = &node.outs[0];
        let home = match &node.op {
            Op::Const(tensor) if number(tensor).is_some() => Home::Number(number(tensor).unwrap_or(0)),
            _ => {
                let at = self.at.get(&(path.to_vec(), id)).copied();
                Home::Constant(at.ok_or_else(|| Error::Internal(format!("`{}` has no place", node.name)))?)
            }
        };
        View::whole(home, ty.dtype, true, ty.shape.dims())
    }

    /// A node's synapses, sorted by destination.
    pub(crate) fn lists(&self, path: &[u32], id: u32) -> Option<&Lists> {
        self.lists.get(&(path.to_vec(), id))
    }

    /// The words that belong to each constant.
    pub(crate) fn places(&self) -> impl Iterator<Item = Range<u32>> {
        self.parts.iter().map(|(place, _)| place.clone())
    }

    /// The words, with a graph's weights.
    pub(crate) fn words(&self, graph: &Graph) -> Result<Vec<u32>> {
        let mut words = vec![0u32; self.words as usize];
        for (place, part) in &self.parts {
            let to = &mut words[place.start as usize..];
            match part {
                Part::Weight(name) => put(to, graph.weight(name)?.bytes()),
                Part::Literal(tensor) => put(to, tensor.bytes()),
                Part::Lists { tables, ends } => {
                    let list = sorted(tables, graph, *ends)?
                        .ok_or_else(|| Error::Internal("a synapse's end has moved out of range".into()))?;
                    to[..list.len()].copy_from_slice(&list);
                }
            }
        }
        Ok(words)
    }
}

/// Writes bytes into words, little-endian.
fn put(words: &mut [u32], bytes: &[u8]) {
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(4)) {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        *word = u32::from_le_bytes(four);
    }
}

/// The bits of a literal of one element, as a kernel holds it.
fn number(tensor: &Tensor) -> Option<u32> {
    let value = *tensor.to_f64().first().filter(|_| tensor.to_f64().len() == 1)?;
    Some(match tensor.dtype() {
        DType::F32 | DType::F16 | DType::Bf16 => (value as f32).to_bits(),
        DType::I8 | DType::U8 | DType::I32 => value as i32 as u32,
        DType::Bool => u32::from(value != 0.0),
    })
}

/// The words of [`Lists`]; none where a destination or a source is out of range.
fn sorted(tables: &[Known], graph: &Graph, [most, destinations]: [usize; 2]) -> Result<Option<Vec<u32>>> {
    let data = tables.iter().map(|t| t.data(graph)).collect::<Result<Vec<_>>>()?;
    let (sources, to) = (data[0].to_f64(), data[1].to_f64());
    let mut order: Vec<usize> = (0..to.len()).collect();
    let outside = |index: &f64, size: usize| *index < 0.0 || *index >= size as f64;
    if sources.iter().any(|s| outside(s, most)) || to.iter().any(|d| outside(d, destinations)) {
        return Ok(None);
    }
    order.sort_by_key(|&e| to[e] as usize);
    let mut words = Vec::with_capacity(destinations + 1 + order.len() * (data.len() - 1));
    let mut begin = 0usize;
    for destination in 0..=destinations {
        while begin < order.len() && (to[order[begin]] as usize) < destination {
            begin += 1;
        }
        words.push(word(begin)?);
    }
    words.extend(order.iter().map(|&e| sources[e] as u32));
    for table in &data[2..] {
        let numbers = table.to_f64();
        words.extend(order.iter().map(|&e| (numbers[e] as f32).to_bits()));
    }
    Ok(Some(words))
}
