//! Fusion: elementwise work becomes one program over its inputs, and the program moves into the matrix product it follows.
//!
//! A group is a tree of elementwise nodes of one shape whose inner results no other node reads; it becomes one `Map`,
//! so that inner results never reach memory. If one of its inputs is a matrix product that only the group reads, the
//! program runs on the product while that is in cache: it is then the product's *epilogue* (`MatMulMap`). An explicit
//! cast to a narrower type always rounds; the implicit rounding of half-precision arithmetic is left out inside a
//! group, which only makes it more exact. A value that is also read outside its group ends the group here; maps with
//! several results are made later ([`super::join`]).

use super::PassOptions;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value, name};
use crate::op::{Binary, Compare, Float, LowBitMatMul, Map, MapInstr, MapResult, Op, Type, Unary};
use crate::shape::{Bindings, Shape};
use std::collections::HashMap;

pub(super) fn fuse(graph: &Graph, options: &PassOptions) -> Result<Graph> {
    let groups = Groups::find(graph, options)?;
    let mut r = graph.rebuild();
    for (id, node) in graph.nodes().iter().enumerate() {
        let id = id as u32;
        match groups.role[id as usize] {
            // Made with the group's root.
            Role::Inner(_) | Role::Product(_) => continue,
            Role::Root => {}
            Role::Alone => {
                r.copy(id)?;
                continue;
            }
        }
        let fused = groups.program(graph, id)?;
        let mut inputs = r.all(&fused.inputs)?;
        let dtype = node.outs[0].dtype;
        let product_name = fused.product.map(|product| graph.node(product).name.as_str());
        let others = groups.members(id).map(|member| graph.nodes()[member as usize].name.as_str());
        let name = name::fused(product_name, &node.name, others);
        let op = match fused.product {
            None => Op::Map { map: fused.map, dtype, also: fused.also },
            Some(product) => {
                let product = graph.node(product);
                inputs.splice(0..0, r.all(&product.inputs)?);
                match &product.op {
                    Op::MatMul { transpose_a, transpose_b } => {
                        let (transpose_a, transpose_b) = (*transpose_a, *transpose_b);
                        Op::MatMulMap { transpose_a, transpose_b, map: fused.map, dtype }
                    }
                    Op::LowBitMatMul(product) => {
                        let (weights, rounded) = (product.weights, product.rounded);
                        Op::LowBitMatMul(Box::new(LowBitMatMul { weights, rounded, then: Some(fused.map), dtype }))
                    }
                    other => {
                        let problem = format!("{} was given an epilogue", other.name());
                        return Err(Error::Pass { pass: "", node: product.name.clone(), problem });
                    }
                }
            }
        };
        let new = r.new.push(op, inputs, name)?;
        r.set_all(id, new);
    }
    r.finish()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Not part of a program.
    Alone,
    /// The result of a program.
    Root,
    /// An inner value of the program whose root is that node.
    Inner(u32),
    /// The matrix product under the program whose root is that node.
    Product(u32),
}

struct Groups {
    role: Vec<Role>,
    /// The inner nodes of each root, last first, and its product.
    inner: HashMap<u32, Vec<u32>>,
    products: HashMap<u32, u32>,
}

struct Fused {
    map: Map,
    /// Further results, where the root has several.
    also: Vec<MapResult>,
    /// The program's inputs, without the product; if there is one, it is input 0.
    inputs: Vec<Value>,
    product: Option<Value>,
}

impl Groups {
    /// Which nodes form a group; with fusion off, every elementwise node is a program of its own.
    fn find(graph: &Graph, options: &PassOptions) -> Result<Groups> {
        let (merge, tuning) = (options.fuse, &options.tuning);
        let (most_instructions, most_inputs) = (tuning.fused_instructions_most(), tuning.fused_inputs_most());
        let nodes = graph.nodes();
        let (readers, is_output) = (graph.readers(), graph.results());
        let mut groups =
            Groups { role: vec![Role::Alone; nodes.len()], inner: HashMap::new(), products: HashMap::new() };
        for id in (0..nodes.len()).rev() {
            if !is_convertible(graph, &nodes[id]) {
                continue;
            }
            groups.role[id] = Role::Root;
            if !merge || is_output[id] || !flows_on(&nodes[id]) {
                continue;
            }
            if let Some(root) = groups.common_reader(&readers[id])
                && nodes[id].outs[0].shape == nodes[root as usize].outs[0].shape
            {
                groups.role[id] = Role::Inner(root);
                groups.inner.entry(root).or_default().push(id as u32);
                let fused = groups.program(graph, root)?;
                if fused.map.code.len() > most_instructions || fused.inputs.len() > most_inputs {
                    groups.role[id] = Role::Root;
                    groups.inner.entry(root).or_default().pop();
                }
            }
        }
        if merge {
            for id in 0..nodes.len() {
                if is_bare_product(&nodes[id].op)
                    && !is_output[id]
                    && let Some(root) = groups.common_reader(&readers[id])
                    && nodes[root as usize].outs.len() == 1
                    && !groups.products.contains_key(&root)
                {
                    groups.products.insert(root, id as u32);
                    let others = groups.program(graph, root)?.inputs;
                    if takes_epilogue(graph, id as u32, &others, &nodes[root as usize].outs[0].shape) {
                        groups.role[id] = Role::Product(root);
                    } else {
                        groups.products.remove(&root);
                    }
                }
            }
        }
        Ok(groups)
    }

    /// The group that all readers belong to.
    fn common_reader(&self, readers: &[u32]) -> Option<u32> {
        let group = |id: u32| match self.role[id as usize] {
            Role::Root => Some(id),
            Role::Inner(root) => Some(root),
            _ => None,
        };
        let first = group(*readers.first()?)?;
        readers.iter().all(|&r| group(r) == Some(first)).then_some(first)
    }

    fn members(&self, root: u32) -> impl Iterator<Item = u32> {
        self.inner.get(&root).into_iter().flatten().rev().copied().chain([root])
    }

    fn program(&self, graph: &Graph, root: u32) -> Result<Fused> {
        let product = self.products.get(&root).map(|&node| Value { node, slot: 0 });
        let with = |inline_constants| {
            let mut code = Coder { code: Vec::new(), inputs: Vec::new(), values: HashMap::new(), inline_constants };
            if let Some(product) = product {
                code.input(product);
            }
            for id in self.members(root) {
                code.node(graph, id)?;
            }
            code.end(Value { node: root, slot: 0 });
            Ok::<Coder, Error>(code)
        };
        let mut code = with(true)?;
        // A constant that gives the result its shape must stay an input.
        let mut shape = Shape::scalar();
        for v in &code.inputs {
            shape = shape.broadcast(&graph.ty(*v).shape).unwrap_or_default();
        }
        if shape != graph.nodes()[root as usize].outs[0].shape {
            code = with(false)?;
        }
        let results = (0u16..).zip(&graph.nodes()[root as usize].outs).skip(1);
        let result = |(slot, ty): (u16, &Type)| {
            let at = *code.values.get(&Value { node: root, slot })?;
            Some(MapResult { at, dtype: ty.dtype })
        };
        let also = results.filter_map(result).collect();
        let mut inputs = code.inputs;
        if product.is_some() {
            inputs.remove(0);
        }
        Ok(Fused { map: Map { code: code.code }, also, inputs, product })
    }
}

/// Whether the node can be an instruction of a program, which computes in `f32`: 32-bit integers do not fit.
fn is_convertible(graph: &Graph, node: &Node) -> bool {
    let dtype = |i: usize| graph.ty(node.inputs[i]).dtype;
    let exact = |d: DType| d != DType::I32;
    match node.op {
        Op::Unary(_) | Op::Binary(_) => exact(dtype(0)),
        Op::Compare(_) => exact(dtype(0)),
        Op::Select => exact(dtype(1)),
        Op::Cast { dtype: to } => match (dtype(0), to) {
            (from, to) if from.is_float() || to.is_float() || to == DType::Bool => true,
            (DType::Bool, _) | (DType::I8 | DType::U8, DType::I32) => true,
            (from, to) => from == to && exact(from),
        },
        Op::Quantize { .. } | Op::Dequantize | Op::Map { .. } => true,
        _ => false,
    }
}

/// Whether readers may take the value from a register: not if storing it would change it. Nodes with several results
/// are left to the later pass that joins maps.
fn flows_on(node: &Node) -> bool {
    let [Type { dtype: out, .. }] = node.outs[..] else { return false };
    match &node.op {
        Op::Cast { .. } => matches!(out, DType::F32 | DType::Bool),
        Op::Quantize { .. } => false,
        Op::Map { map, .. } => map.code.last().is_some_and(|last| keeps(*last, out)),
        _ => true,
    }
}

/// Whether a program's value stays the same when it is stored as this type.
pub(super) fn keeps(by: MapInstr, dtype: DType) -> bool {
    // Every number except 0 is stored as true, which reads as 1; only a comparison is already 0 or 1.
    dtype == DType::F32 || dtype == DType::Bool && matches!(by, MapInstr::Compare(..))
}

/// Whether an operation is a product without a program.
fn is_bare_product(op: &Op) -> bool {
    match op {
        Op::MatMul { .. } => true,
        Op::LowBitMatMul(product) => product.then.is_none(),
        _ => false,
    }
}

/// Whether a product can run a program on its result: it has one right-hand matrix, and every other input has one value
/// for each row, one for each column, a single one, or the result's shape.
fn takes_epilogue(graph: &Graph, product: u32, others: &[Value], shape: &Shape) -> bool {
    let node = &graph.nodes()[product as usize];
    let rank = |v: Value| graph.ty(v).shape.rank();
    let one_matrix = match node.op {
        Op::MatMul { transpose_a, .. } => rank(node.inputs[1]) == 2 && (rank(node.inputs[0]) == 2 || !transpose_a),
        _ => is_bare_product(&node.op),
    };
    node.outs[0].shape == *shape && one_matrix && others.iter().all(|&v| is_row_like(&graph.ty(v).shape, shape))
}

/// Whether `shape`, stretched to `full`, has one stride over all but the last axis.
pub(crate) fn is_row_like(shape: &Shape, full: &Shape) -> bool {
    let lead = full.rank() - 1;
    let missing = full.rank() - shape.rank();
    let dims: Vec<_> = (0..lead).map(|i| if i < missing { None } else { Some(&shape[i - missing]) }).collect();
    let all_full = dims.iter().enumerate().all(|(i, d)| d.map_or(full[i].is(1), |d| *d == full[i]));
    let all_one = dims.iter().all(|d| d.is_none_or(|d| d.is(1)));
    all_full || all_one
}

/// Writes a group's code.
struct Coder {
    code: Vec<MapInstr>,
    inputs: Vec<Value>,
    values: HashMap<Value, u16>,
    inline_constants: bool,
}

impl Coder {
    fn emit(&mut self, instr: MapInstr) -> u16 {
        self.code.push(instr);
        // Groups are limited to far less than this; an attempt that is too large saturates and is dropped.
        u16::try_from(self.code.len() - 1).unwrap_or(u16::MAX)
    }

    fn constant(&mut self, value: f32) -> u16 {
        self.emit(MapInstr::Const(Float(value)))
    }

    fn input(&mut self, value: Value) -> u16 {
        if let Some(&at) = self.values.get(&value) {
            return at;
        }
        self.inputs.push(value);
        let at = self.emit(MapInstr::Input((self.inputs.len() - 1) as u16));
        self.values.insert(value, at);
        at
    }

    fn operand(&mut self, graph: &Graph, value: Value) -> u16 {
        if let Some(&at) = self.values.get(&value) {
            return at;
        }
        match &graph.node(value).op {
            Op::Const(t) if self.inline_constants && t.len() == 1 => {
                let at = self.constant(t.to_f64()[0] as f32);
                self.values.insert(value, at);
                at
            }
            _ => self.input(value),
        }
    }

    fn node(&mut self, graph: &Graph, id: u32) -> Result<()> {
        let node = &graph.nodes()[id as usize];
        let args: Vec<u16> = node.inputs.iter().map(|&v| self.operand(graph, v)).collect();
        let result = match &node.op {
            Op::Unary(u) => self.emit(MapInstr::Unary(*u, args[0])),
            Op::Binary(b) => self.emit(MapInstr::Binary(*b, args[0], args[1])),
            Op::Compare(c) => self.emit(MapInstr::Compare(*c, args[0], args[1])),
            Op::Select => self.emit(MapInstr::Select(args[0], args[1], args[2])),
            Op::Cast { dtype } => self.cast(graph.ty(node.inputs[0]).dtype, *dtype, args[0]),
            // NaN becomes the zero point.
            Op::Quantize { .. } => {
                let ratio = self.emit(MapInstr::Binary(Binary::Div, args[0], args[1]));
                let rounded = self.emit(MapInstr::Unary(Unary::Round, ratio));
                let shifted = self.emit(MapInstr::Binary(Binary::Add, rounded, args[2]));
                let number = self.emit(MapInstr::Compare(Compare::Eq, shifted, shifted));
                self.emit(MapInstr::Select(number, shifted, args[2]))
            }
            Op::Dequantize => {
                let steps = self.emit(MapInstr::Binary(Binary::Sub, args[0], args[2]));
                self.emit(MapInstr::Binary(Binary::Mul, steps, args[1]))
            }
            Op::Map { map, also, .. } => {
                let mut at = Vec::with_capacity(map.code.len());
                for instr in &map.code {
                    at.push(match instr {
                        MapInstr::Input(n) => args[usize::from(*n)],
                        other => self.emit(other.map_operands(|o| at[usize::from(o)])),
                    });
                }
                for (slot, r) in (1u16..).zip(also) {
                    self.values.insert(Value { node: id, slot }, at[usize::from(r.at)]);
                }
                at[at.len() - 1]
            }
            other => {
                let problem = format!("{} was taken for an elementwise operation", other.name());
                return Err(Error::Pass { pass: "", node: node.name.clone(), problem });
            }
        };
        self.values.insert(Value { node: id, slot: 0 }, result);
        Ok(())
    }

    /// Makes `result` the last value, which is what a program gives.
    fn end(&mut self, result: Value) {
        if let Some(&at) = self.values.get(&result)
            && usize::from(at) + 1 != self.code.len()
        {
            self.emit(MapInstr::Binary(Binary::Max, at, at));
        }
    }

    fn cast(&mut self, from: DType, to: DType, x: u16) -> u16 {
        match to {
            DType::Bool if from != DType::Bool => {
                let zero = self.constant(0.0);
                self.emit(MapInstr::Compare(Compare::Ne, x, zero))
            }
            DType::I8 | DType::U8 | DType::I32 if from.is_float() => self.emit(MapInstr::Trunc(x)),
            // Widening happens on load and rounding on store: the value itself passes through.
            _ => x,
        }
    }
}

/// Work that fusion would save.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Opportunity {
    /// What kind: `matmul epilogue`, `add + multiply`, `activation chain`, `elementwise chain`, `quantize + dequantize`
    /// or the name of a user's pattern.
    pub pattern: String,
    /// The nodes that would become one, by name.
    pub nodes: Vec<String>,
    /// Bytes that would no longer be written and read again (derived from shapes); `None` for a user's pattern, whose
    /// replacement is not built yet.
    pub bytes_saved: Option<u64>,
}

/// What fusion would do to this graph, under `bindings`. Scan bodies are not listed.
pub fn fusion_opportunities(graph: &Graph, options: &PassOptions, bindings: &Bindings) -> Result<Vec<Opportunity>> {
    let groups = Groups::find(graph, &PassOptions::default())?;
    let mut found = Vec::new();
    for root in 0..graph.nodes().len() as u32 {
        if groups.role[root as usize] != Role::Root {
            continue;
        }
        let product = groups.products.get(&root);
        let members: Vec<u32> = product.copied().into_iter().chain(groups.members(root)).collect();
        if members.len() < 2 {
            continue;
        }
        let mut saved = 0u64;
        for &id in &members {
            let node = &graph.nodes()[id as usize];
            if id != root {
                let readers =
                    members.iter().flat_map(|&m| &graph.nodes()[m as usize].inputs).filter(|v| v.node == id).count()
                        as u64;
                saved += type_bytes(&node.outs[0], bindings)? * (1 + readers);
            }
        }
        found.push(Opportunity {
            pattern: kind(graph, &members, product.is_some()).into(),
            nodes: members.iter().map(|&m| graph.nodes()[m as usize].name.clone()).collect(),
            bytes_saved: Some(saved),
        });
    }
    for pattern in &options.patterns {
        for node in 0..graph.nodes().len() as u32 {
            let value = Value { node, slot: 0 };
            if pattern.matches(graph, value).is_some() {
                found.push(Opportunity {
                    pattern: pattern.name().into(),
                    nodes: vec![graph.node(value).name.clone()],
                    bytes_saved: None,
                });
            }
        }
    }
    Ok(found)
}

fn type_bytes(ty: &Type, bindings: &Bindings) -> Result<u64> {
    let count = ty.shape.eval(bindings)?.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64));
    Ok(count.saturating_mul(ty.dtype.bits() as u64).div_ceil(8))
}

fn kind(graph: &Graph, members: &[u32], product: bool) -> &'static str {
    let ops: Vec<&Op> = members.iter().map(|&m| &graph.nodes()[m as usize].op).collect();
    let is = |f: fn(&Op) -> bool| ops.iter().any(|op| f(op));
    if product {
        "matmul epilogue"
    } else if is(|op| matches!(op, Op::Quantize { .. })) && is(|op| matches!(op, Op::Dequantize)) {
        "quantize + dequantize"
    } else if ops.iter().all(|op| matches!(op, Op::Unary(_))) {
        "activation chain"
    } else if ops.len() == 2 && is(|op| *op == Op::Binary(Binary::Add)) && is(|op| *op == Op::Binary(Binary::Mul)) {
        "add + multiply"
    } else {
        "elementwise chain"
    }
}
