//! Weights and literals as words of one buffer, and tables of synapses sorted by destination.

use super::scan::abreast::Order;
use super::scan::tiles::{Matrix, Product, Tiled, tiled};
use super::site::word;
use super::synapses::Lists;
use super::view::{Home, View};
use crate::device::{Limits, Products};
use schwann_core::graph::Node;
use schwann_core::op::{Activation, Scan};
use schwann_core::pass::rows::independent;
use schwann_core::{DType, Dim, Error, Graph, Op, Result, Tensor, Value};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A node: the loops that it is in, and its number there.
type Key = (Vec<u32>, u32);

/// Where each constant is.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    at: HashMap<Key, u32>,
    lists: HashMap<Key, Lists>,
    /// Synapses in the order in which rows abreast sum over them, and the word at which each begins.
    orders: HashMap<Key, (Arc<Order>, u32)>,
    /// Loops in tiles, by the numbers of their nodes from the outside in.
    tiled: HashMap<Vec<u32>, Tiled>,
    /// The constants, in the order of their places.
    parts: Vec<(Range<u32>, Part)>,
    words: u32,
    /// Unused words after each part.
    gap: u32,
    /// How products of many rows are made.
    products: Products,
    /// Whether kernels sum over synapses with the device's own functions.
    fast_functions: bool,
}

#[derive(Debug)]
enum Part {
    /// A weight of the graph, by name.
    Weight(String),
    /// A literal.
    Literal(Tensor),
    /// Tables of synapses: where each of them comes from (ends alone, where the numbers are values of the run), and how many
    /// sources and destinations there are.
    Lists { tables: Vec<Known>, ends: [usize; 2] },
    /// A matrix as teams of threads read it.
    Matrix { from: Known, matrix: Matrix },
    /// The numbers of synapses as rows abreast read them: where scales, shifts and weights come from.
    Order { tables: Vec<Known>, order: Arc<Order> },
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
    pub(crate) fn of(graph: &Graph, gap: u32, limits: &Limits) -> Result<Constants> {
        let Limits { products, fast_functions, .. } = *limits;
        let mut constants = Constants { gap, products, fast_functions, ..Constants::default() };
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
                Op::SynapseSum { axis, sums, activation, .. } => {
                    let ends = [graph.ty(node.inputs[0]), &node.outs[0]].map(|t| t.shape.dims()[*axis].as_fixed());
                    self.add_order(whole, node, &known, &key, (*activation, *sums), ends)?;
                    self.add_lists(whole, node, &known, key, 5 + sums, ends)?;
                }
                Op::SynapseRatio { axis, activation, .. } => {
                    let ends = [graph.ty(node.inputs[0]), &node.outs[0]].map(|t| t.shape.dims()[*axis].as_fixed());
                    self.add_order(whole, node, &known, &key, (*activation, 2), ends)?;
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
                    self.tile(whole, scan, &[path, &[id]].concat(), &given)?;
                    self.collect(whole, &scan.body, &[path, &[id]].concat(), &given)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Lays out the matrices of a loop that can run in tiles.
    fn tile(&mut self, whole: &Graph, scan: &Scan, path: &[u32], given: &[Option<Known>]) -> Result<()> {
        if self.products == Products::Single {
            return Ok(());
        }
        let Ok(body) = independent(scan)? else { return Ok(()) };
        let mut known: HashMap<Value, Known> = HashMap::new();
        let mut inputs = given.iter();
        for (id, node) in body.body.nodes().iter().enumerate() {
            let value = Value { node: id as u32, slot: 0 };
            let data = match &node.op {
                Op::Input { .. } => inputs.next().cloned().flatten(),
                Op::Weight { name, .. } => Some(Known::Weight(name.clone())),
                Op::Const(tensor) => Some(Known::Literal(tensor.clone())),
                _ => None,
            };
            known.extend(data.map(|data| (value, data)));
        }
        let (mut parts, products) = (vec![], self.products);
        let found = tiled(scan, &body, |node, rows, width| {
            let from = known.get(&node.inputs[1])?;
            let (by_column, heads) = match &node.op {
                Op::GatedCell { by_column, heads, .. } => (*by_column, heads.iter().map(|head| *head as u32).collect()),
                Op::MatMul { transpose_b, .. } | Op::MatMulMap { transpose_b, .. } => (*transpose_b, vec![0]),
                _ => return None,
            };
            let matrix = Matrix::new(by_column, rows, heads, width, products);
            // What cannot be said in 16 bits is left to other kernels.
            matrix.pack(from.data(whole).ok()?).ok()?;
            parts.push((from.clone(), matrix.clone()));
            Some(Product { matrix, at: 0 })
        });
        let Some(mut tiled) = found else { return Ok(()) };
        for (product, (from, matrix)) in tiled.products.values_mut().zip(parts) {
            let words = matrix.words() as usize;
            product.at = self.add(Part::Matrix { from, matrix }, words)?;
        }
        self.tiled.insert(path.to_vec(), tiled);
        Ok(())
    }

    /// How a loop's values lie in tiles, if they do.
    pub(crate) fn tiled(&self, path: &[u32]) -> Option<&Tiled> {
        self.tiled.get(path)
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
        let sources_of = |inputs: &[Value]| inputs.iter().map(|v| known.get(v).cloned()).collect::<Option<Vec<_>>>();
        let (tables, has_numbers) = match (sources_of(&node.inputs[1..tables]), sources_of(&node.inputs[1..3])) {
            (Some(tables), _) => (tables, true),
            // Numbers are values of the run, and the ends are known for good.
            (None, Some(ends)) if ends.iter().all(|end| matches!(end, Known::Literal(_))) => (ends, false),
            _ => return Ok(()),
        };
        let count = tables[0].data(whole)?.shape().first().copied().unwrap_or(0);
        let columns = if has_numbers { tables.len() - 1 } else { 2 };
        let words = (destinations + 1).saturating_add(count.saturating_mul(columns));
        let degrees = match &tables[1] {
            Known::Literal(to) => Some(degrees(to, destinations)),
            Known::Weight(_) => None,
        };
        // Indices that are out of range are reported during the run, as for tables that are not known.
        if sorted(&tables, whole, [sources, destinations])?.is_none() {
            return Ok(());
        }
        let at = self.add(Part::Lists { tables, ends: [sources, destinations] }, words)?;
        let (destinations, count, words) = (word(destinations)?, word(count)?, word(words)?);
        self.lists.insert(key, Lists { at, destinations, count, words, has_numbers, degrees, copy: None });
        Ok(())
    }

    /// Puts the synapses of a loop's body in the order in which rows abreast sum over them, if it is known for good which they
    /// are: numbers may change, but a kernel is made for the ends.
    fn add_order(
        &mut self,
        whole: &Graph,
        node: &Node,
        known: &HashMap<Value, Known>,
        key: &Key,
        (activation, sums): (Activation, usize),
        ends: [Option<usize>; 2],
    ) -> Result<()> {
        let [Some(sources), Some(destinations)] = ends else { return Ok(()) };
        if !self.fast_functions || key.0.is_empty() {
            return Ok(());
        }
        let tables = node.inputs[1..5 + sums].iter().map(|v| known.get(v).cloned()).collect::<Option<Vec<_>>>();
        let Some([Known::Literal(from), Known::Literal(to), numbers @ ..]) = tables.as_deref() else { return Ok(()) };
        let same = |table: &Known| Ok(table.data(whole)?.shape() == from.shape());
        let alike = numbers.iter().map(same).collect::<Result<Vec<bool>>>()?;
        let Some(order) = Order::of(activation, sums, [from, to], [sources, destinations]) else { return Ok(()) };
        if alike.contains(&false) {
            return Ok(());
        }
        let order = Arc::new(order);
        let part = Part::Order { tables: numbers.to_vec(), order: Arc::clone(&order) };
        let at = self.add(part, order.words() as usize)?;
        self.orders.insert(key.clone(), (order, at));
        Ok(())
    }

    /// A node's synapses as rows abreast sum over them, and the word at which they begin.
    pub(crate) fn order(&self, path: &[u32], id: u32) -> Option<&(Arc<Order>, u32)> {
        self.orders.get(&(path.to_vec(), id))
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

    /// Whether all elements of a value are literals from 0 on, and below a size.
    pub(crate) fn are_below(&self, home: &Home, size: &Dim) -> bool {
        let Some(size) = size.as_fixed() else { return false };
        let below = |number: f64| number >= 0.0 && number < size as f64;
        match home {
            Home::Number(bits) => below(f64::from(*bits as i32)),
            Home::Constant(at) => self.parts.iter().any(|(place, part)| match part {
                Part::Literal(tensor) => place.start == *at && tensor.to_f64().into_iter().all(below),
                _ => false,
            }),
            _ => false,
        }
    }

    /// A node's synapses, sorted by destination.
    pub(crate) fn synapses(&self, path: &[u32], id: u32) -> Option<&Lists> {
        self.lists.get(&(path.to_vec(), id))
    }

    /// The same where their numbers are known too.
    pub(crate) fn lists(&self, path: &[u32], id: u32) -> Option<&Lists> {
        self.synapses(path, id).filter(|lists| lists.has_numbers)
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
                Part::Matrix { from, matrix } => {
                    let packed = matrix.pack(from.data(graph)?)?;
                    to[..packed.len()].copy_from_slice(&packed);
                }
                Part::Order { tables, order } => {
                    let tables = tables.iter().map(|table| table.data(graph)).collect::<Result<Vec<_>>>()?;
                    let packed = order.pack(&tables)?;
                    to[..packed.len()].copy_from_slice(&packed);
                }
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

/// How often each destination is meant.
fn degrees(to: &Tensor, destinations: usize) -> Vec<u32> {
    let mut degrees = vec![0u32; destinations];
    for to in to.to_f64() {
        if let Some(degree) = degrees.get_mut(to as usize) {
            *degree += 1;
        }
    }
    degrees
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
    if data.len() == 2 {
        words.extend(order.iter().map(|&e| e as u32));
    }
    for table in &data[2..] {
        let numbers = table.to_f64();
        words.extend(order.iter().map(|&e| (numbers[e] as f32).to_bits()));
    }
    Ok(Some(words))
}
