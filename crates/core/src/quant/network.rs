//! The matrices of a network's products, and the network with some of them quantized.

use super::Quantized;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, Rebuild, Value};
use crate::op::{Op, Scan, Type};
use crate::pass;
use crate::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A matrix of weights that products multiply with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The product's name, which is its path in the network; of several products, the first.
    pub name: String,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub len: usize,
    /// The matrix.
    pub(super) value: Value,
    /// Whether it is stored `[inputs, outputs]`.
    transposed: bool,
}

impl Layer {
    /// How many weights there are.
    pub fn count(&self) -> usize {
        self.rows * self.len
    }
}

/// What becomes of a layer.
#[derive(Clone, Debug)]
pub enum Weights {
    /// Codes and scales.
    LowBit {
        /// The quantized matrix.
        matrix: Quantized,
        /// Whether what it is multiplied with is rounded to 8 bits, row by row.
        rounded: bool,
    },
    /// Numbers of half precision, `[outputs, inputs]`; see [`super::halve`].
    Half(Tensor),
}

impl Weights {
    /// Bytes that the weights take.
    pub fn bytes(&self) -> usize {
        match self {
            Weights::LowBit { matrix, .. } => matrix.bytes(),
            Weights::Half(matrix) => matrix.size(),
        }
    }

    /// The numbers that they stand for, row after row.
    pub fn numbers(&self) -> Vec<f32> {
        match self {
            Weights::LowBit { matrix, .. } => matrix.numbers(),
            Weights::Half(matrix) => matrix.to_f64().into_iter().map(|x| x as f32).collect(),
        }
    }
}

/// A network's matrices.
#[derive(Clone, Debug)]
pub struct Layers<'a> {
    graph: &'a Graph,
    layers: Vec<Layer>,
}

/// The network as it is quantized: products that are added up, such as the two time heads of a CfC whose time span is constant,
/// are one product with the sum of their weights, and factors are in the weights. Compiling does the same with weights of
/// `f32`, but cannot with codes. Where weights are rounded already the network stays as it is: sums of such
/// weights have more values than few bits hold.
pub fn prepared(graph: &Graph) -> Result<Graph> {
    let made = pass::absorbed(graph)?;
    let (before, after) = (Layers::of(graph), Layers::of(&made));
    if before.list().len() != after.list().len() {
        for layer in before.list() {
            if is_rounded(before.matrix(layer)?.values::<f32>()?, layer.len) {
                return Ok(graph.clone());
            }
        }
    }
    Ok(made)
}

/// Whether a matrix has no other numbers than −s, 0 and s, or in each row only multiples of a 127th of the largest, as training for
/// few bits leaves them.
fn is_rounded(numbers: &[f32], len: usize) -> bool {
    let largest = |part: &[f32]| part.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let most = largest(numbers);
    let ternary = numbers.iter().all(|x| *x == 0.0 || x.abs() == most);
    let whole = |row: &[f32]| {
        let most = largest(row).max(f32::MIN_POSITIVE);
        row.iter().map(|x| x / most * 127.0).all(|code| (code - code.round()).abs() < 1e-3)
    };
    // A few numbers may be such by chance.
    numbers.len() >= 8 && len >= 2 && (ternary || numbers.chunks(len).all(whole))
}

impl<'a> Layers<'a> {
    /// The matrices of `f32` that products of a graph, or of its loops, multiply with, and that weights alone determine.
    /// One that is read in both orientations, or otherwise too, is left out.
    pub fn of(graph: &'a Graph) -> Layers<'a> {
        let known = known(graph);
        let mut uses: BTreeMap<Value, Use> = BTreeMap::new();
        let own: HashMap<Value, Value> = (0u32..)
            .zip(graph.nodes())
            .flat_map(|(id, node)| (0..node.outs.len() as u16).map(move |slot| Value { node: id, slot }))
            .map(|v| (v, v))
            .collect();
        collect(graph, &own, &mut uses);
        let mut layers = vec![];
        for (value, read) in uses {
            let ty = graph.ty(value);
            let shape = ty.shape.as_fixed().filter(|s| s.len() == 2 && s.iter().all(|d| *d > 0));
            let both = read.orientations.len() > 1;
            let (Some(shape), Some(transposed), false) = (shape, read.orientations.first().copied(), both) else {
                continue;
            };
            if !known[value.node as usize] || read.otherwise || ty.dtype != DType::F32 {
                continue;
            }
            let [rows, len] = if transposed { [shape[1], shape[0]] } else { [shape[0], shape[1]] };
            layers.push(Layer { name: read.name, rows, len, value, transposed });
        }
        // Names tell layers apart, and become names of weights, which have no control characters and an end.
        let mut seen: BTreeSet<String> = BTreeSet::new();
        for layer in &mut layers {
            let base: String = layer.name.chars().filter(|c| !c.is_control()).take(100).collect();
            layer.name.clone_from(&base);
            for n in 2.. {
                if seen.insert(layer.name.clone()) {
                    break;
                }
                layer.name = format!("{base}.{n}");
            }
        }
        Layers { graph, layers }
    }

    pub(super) fn graph(&self) -> &'a Graph {
        self.graph
    }

    /// The layers, in the order of the graph.
    pub fn list(&self) -> &[Layer] {
        &self.layers
    }

    /// The numbers of a layer, `[outputs, inputs]`.
    pub fn matrix(&self, layer: &Layer) -> Result<Tensor> {
        let tensor = pass::evaluate_known(self.graph, layer.value)?;
        if !layer.transposed {
            return Ok(tensor);
        }
        let (numbers, [rows, len]) = (tensor.values::<f32>()?, [layer.rows, layer.len]);
        let turned: Vec<f32> = (0..rows * len).map(|i| numbers[i % len * rows + i / len]).collect();
        Tensor::new(&[rows, len], &turned)
    }

    /// The network with some layers quantized; each has the number of its layer.
    pub fn with(&self, weights: &BTreeMap<usize, Weights>) -> Result<Graph> {
        let chosen: HashMap<Value, (&Layer, &Weights)> = weights
            .iter()
            .filter_map(|(number, weights)| self.layers.get(*number).map(|layer| (layer.value, (layer, weights))))
            .collect();
        let rounded: HashSet<Value> = chosen
            .iter()
            .filter(|(_, (_, w))| matches!(w, Weights::LowBit { rounded: true, .. }))
            .map(|(v, _)| *v)
            .collect();
        let mut r = self.graph.rebuild();
        let mut rows = HashMap::new();
        for (id, value) in (0..self.graph.nodes().len() as u32).map(|id| (id, Value { node: id, slot: 0 })) {
            copy_rounded(&mut r, id, &rounded, &mut rows)?;
            if let Some((layer, weights)) = chosen.get(&value) {
                let new = numbers(&mut r.new, layer, weights)?;
                r.set(value, new);
            }
        }
        pass::tidy(&r.finish()?)
    }
}

/// Adds a quantized matrix in the layer's orientation.
fn numbers(graph: &mut Graph, layer: &Layer, weights: &Weights) -> Result<Value> {
    let (op, parts) = match weights {
        Weights::LowBit { matrix: Quantized { format, codes, scales, offsets }, .. } => {
            let offsets = offsets.as_ref().map(|offsets| (offsets, "offsets"));
            (Op::LowBit(*format), [(codes, "codes"), (scales, "scales")].into_iter().chain(offsets).collect())
        }
        Weights::Half(matrix) => (Op::Cast { dtype: DType::F32 }, vec![(matrix, "half")]),
    };
    let mut inputs = vec![];
    for (tensor, part) in parts {
        let name = format!("{}.{part}", layer.name);
        if graph.names_weight(&name) {
            let problem = format!("the graph has a weight `{name}` already; rename it before quantizing");
            return Err(Error::Value { node: layer.name.clone(), problem });
        }
        let ty = Type::new(tensor.dtype(), tensor.shape());
        inputs.push(graph.push(Op::Weight { name: name.clone(), ty }, vec![], name.clone())?);
        graph.set_weight(&name, tensor.clone())?;
    }
    let new = graph.push(op, inputs, format!("{}.weights", layer.name))?;
    if !layer.transposed {
        return Ok(new);
    }
    graph.push(Op::Transpose { perm: vec![1, 0] }, vec![new], format!("{}.weights", layer.name))
}

/// Copies a node. If it is a product with one of these matrices, its rows are rounded first, each value once (`rows`); a
/// loop that is given one of them is rewritten inside.
fn copy_rounded(
    r: &mut Rebuild<'_>,
    id: u32,
    matrices: &HashSet<Value>,
    rows: &mut HashMap<Value, Value>,
) -> Result<()> {
    let node = &r.old.nodes()[id as usize];
    match &node.op {
        Op::MatMul { .. } if matrices.contains(&node.inputs[1]) => {
            let (x, name) = (r.get(node.inputs[0])?, format!("{}.rounded", node.name));
            let rounded = match rows.get(&x) {
                Some(rounded) => *rounded,
                None => r.new.push(Op::RoundRows, vec![x], name)?,
            };
            rows.insert(x, rounded);
            let inputs = vec![rounded, r.get(node.inputs[1])?];
            let new = r.new.push(node.op.clone(), inputs, node.name.clone())?;
            r.set_all(id, new);
        }
        Op::Scan(scan) => {
            let fixed = scan.body.inputs().zip(&node.inputs).skip(scan.states + scan.sequences);
            let inside: HashSet<Value> = fixed.filter(|(_, v)| matrices.contains(v)).map(|((_, v), _)| v).collect();
            let mut body = scan.body.rebuild();
            let mut rows = HashMap::new();
            for id in 0..scan.body.nodes().len() as u32 {
                copy_rounded(&mut body, id, &inside, &mut rows)?;
            }
            let scan = Scan { body: body.finish()?.into(), ..(**scan).clone() };
            let inputs = r.all(&node.inputs)?;
            let new = r.new.push(Op::Scan(Box::new(scan)), inputs, node.name.clone())?;
            r.set_all(id, new);
        }
        _ => {
            r.copy(id)?;
        }
    }
    Ok(())
}

/// Which nodes weights and literals alone determine.
fn known(graph: &Graph) -> Vec<bool> {
    let mut known: Vec<bool> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        known.push(match &node.op {
            Op::Const(_) => true,
            Op::Weight { name, .. } => graph.weights().contains_key(name) && !graph.may_change(name),
            Op::Input { .. } | Op::Scan(_) => false,
            _ => node.outs.len() == 1 && !node.inputs.is_empty() && node.inputs.iter().all(|v| known[v.node as usize]),
        });
    }
    known
}

/// How a value is read.
#[derive(Default)]
struct Use {
    name: String,
    /// As the right-hand side of products, and whether it is `[inputs, outputs]` there.
    orientations: BTreeSet<bool>,
    otherwise: bool,
}

/// Notes how values of the outermost graph are read, here and in loops; `outer` says which of them a value is.
fn collect(graph: &Graph, outer: &HashMap<Value, Value>, uses: &mut BTreeMap<Value, Use>) {
    for output in graph.outputs() {
        if let Some(v) = outer.get(&output.value) {
            uses.entry(*v).or_default().otherwise = true;
        }
    }
    for node in graph.nodes() {
        let fixed = match &node.op {
            Op::Scan(scan) => {
                let first = scan.states + scan.sequences;
                let handed = scan.body.inputs().zip(&node.inputs).skip(first);
                collect(&scan.body, &handed.filter_map(|((_, v), o)| Some((v, *outer.get(o)?))).collect(), uses);
                first
            }
            _ => node.inputs.len(),
        };
        for (i, v) in node.inputs[..fixed].iter().enumerate() {
            let Some(value) = outer.get(v) else { continue };
            let reader = uses.entry(*value).or_default();
            match node.op {
                Op::MatMul { transpose_a: false, transpose_b } if i == 1 => {
                    reader.orientations.insert(!transpose_b);
                    if reader.name.is_empty() {
                        reader.name.clone_from(&node.name);
                    }
                }
                _ => reader.otherwise = true,
            }
        }
    }
}
