//! Programs in static single assignment, and their translation for the block machine of [`super::machine`].
//!
//! The machine has one accumulator (a block of values held in registers) and memory slots of one block each, in L1. So
//! translation mainly chooses an order: values are computed depth first, the operand that needs more slots first, and a
//! value is saved to a slot unless its only use is the very next step. Slots are reused as soon as their value is dead.
//! Outputs are written after the last read of any input, because an output may lie where an input does.

use super::functions::unary_functions;

/// A register: the result of the instruction of that number.
pub type Reg = u16;

/// Functions of two values; comparisons and logic give 1 or 0, and any value but 0 counts as true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the function its name says")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// NaN where either is NaN.
    Min,
    /// NaN where either is NaN.
    Max,
    /// Lane by lane through `std`.
    Pow,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

/// One instruction; its result is the register of its own index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instr {
    /// The element of that input.
    Input(u16),
    /// The bits of a constant, see [`Instr::constant`].
    Const(u32),
    /// A function of one register.
    Unary(Unary, Reg),
    /// A function of two registers.
    Binary(Binary, Reg, Reg),
    /// The second where the first is not 0 (NaN is not 0), else the third.
    Select(Reg, Reg, Reg),
    /// The first times the second plus the third, rounded once where the machine can.
    MulAdd(Reg, Reg, Reg),
}

impl Instr {
    /// A constant.
    pub fn constant(x: f32) -> Instr {
        Instr::Const(x.to_bits())
    }
}

/// How a product a · b is combined with a third value c in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fused {
    /// a · b + c
    Add,
    /// a · b − c
    Sub,
    /// c − a · b
    From,
}

/// Functions of one value: a step of the machine each, and a cost.
macro_rules! with_unary {
    (lanes { $($(#[doc = $d:literal])? $lanes:ident = $f:ident, $c:literal;)* }
     singly { $($(#[doc = $e:literal])? $single:ident = $m:ident, $k:literal;)* }) => {
        with_unary!($($(#[doc = $d])? $lanes $c)* $($(#[doc = $e])? $single $k)*);
    };
    ($($(#[doc = $doc:literal])? $name:ident $cost:literal)*) => {
        /// Functions of one value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each is the function its name says")]
        pub enum Unary {
            $($(#[doc = $doc])? $name,)*
        }

        impl Unary {
            /// Roughly sixteenths of a cycle for each element.
            fn cost(self) -> usize {
                match self { $(Unary::$name => $cost),* }
            }
        }

        /// What a step does to the accumulator; `a` and `b` are its memory operands. One flat list, so that a step
        /// costs one jump. Functions of one value (acc = f(acc)) and of two (acc = f(acc, a)) come first, with the
        /// names that they have above.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Op {
            $($name,)*
            Add,
            Sub,
            Mul,
            Div,
            Min,
            Max,
            Pow,
            Eq,
            Ne,
            Lt,
            Le,
            Gt,
            Ge,
            And,
            Or,
            /// acc = a
            Load,
            /// a = acc
            Save,
            /// a = acc, where `a` is an output
            Output,
            /// acc = a − acc
            SubFrom,
            /// acc = a / acc
            DivInto,
            /// acc = a to the power acc
            PowOf,
            /// acc = acc · a + b
            ProductAdd,
            /// acc = acc · a − b
            ProductSub,
            /// acc = b − acc · a
            ProductFrom,
            /// acc = a · b + acc
            AccumulateAdd,
            /// acc = a · b − acc
            AccumulateSub,
            /// acc = acc − a · b
            AccumulateFrom,
            /// acc = acc ? a : b
            SelectBy,
            /// acc = a ? acc : b
            SelectThen,
            /// acc = a ? b : acc
            SelectElse,
            /// acc = tanh a + sigmoid acc · (tanh b − tanh a)
            Gate,
        }

        impl Op {
            fn unary(f: Unary) -> Op {
                match f { $(Unary::$name => Op::$name),* }
            }
        }
    };
}
unary_functions!(with_unary);

/// Maps variants to those of [`Op`] with the same names.
macro_rules! same_names {
    ($value:expr, $from:ident: $($name:ident)*) => {
        match $value {
            $($from::$name => Op::$name,)*
        }
    };
}

impl Op {
    /// acc = f(acc, a)
    fn binary(f: Binary) -> Op {
        same_names!(f, Binary: Add Sub Mul Div Min Max Pow Eq Ne Lt Le Gt Ge And Or)
    }

    /// acc = f(a, acc)
    fn reversed(f: Binary) -> Op {
        match f {
            Binary::Sub => Op::SubFrom,
            Binary::Div => Op::DivInto,
            Binary::Pow => Op::PowOf,
            Binary::Lt => Op::Gt,
            Binary::Le => Op::Ge,
            Binary::Gt => Op::Lt,
            Binary::Ge => Op::Le,
            symmetric => Op::binary(symmetric),
        }
    }

    /// The accumulator as a factor.
    fn product(f: Fused) -> Op {
        match f {
            Fused::Add => Op::ProductAdd,
            Fused::Sub => Op::ProductSub,
            Fused::From => Op::ProductFrom,
        }
    }

    /// The accumulator as the other summand.
    fn accumulate(f: Fused) -> Op {
        match f {
            Fused::Add => Op::AccumulateAdd,
            Fused::Sub => Op::AccumulateSub,
            Fused::From => Op::AccumulateFrom,
        }
    }
}

/// A register's worth of floats, on any instruction set.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; 16]);

/// One step of the machine. Operands are numbered: inputs, outputs, constants, slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) a: u16,
    pub(super) b: u16,
}

/// A checked and translated program.
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) steps: Vec<Step>,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Each repeated for a whole register.
    pub(super) constants: Vec<Line>,
    pub(super) slots: usize,
    pub(super) cost: usize,
    /// The layout of its scratch memory.
    pub(super) layout: [usize; 4],
}

/// The most inputs and outputs together.
pub(crate) const MAX_OPERANDS: usize = 24;
/// The most instructions.
pub(crate) const MAX_INSTRS: usize = 4096;

#[derive(Clone, Copy)]
enum Node {
    Leaf(u16),
    Unary(Unary, Reg),
    Binary(Binary, Reg, Reg),
    Select(Reg, Reg, Reg),
    Fused(Fused, Reg, Reg, Reg),
    /// (t, a, b): tanh a + sigmoid t · (tanh b − tanh a).
    Gate(Reg, Reg, Reg),
}

impl Node {
    fn operands(self) -> ([Reg; 3], usize) {
        match self {
            Node::Leaf(_) => ([0; 3], 0),
            Node::Unary(_, a) => ([a, 0, 0], 1),
            Node::Binary(_, a, b) => ([a, b, 0], 2),
            Node::Select(a, b, c) | Node::Fused(_, a, b, c) | Node::Gate(a, b, c) => ([a, b, c], 3),
        }
    }
    fn uses(self) -> impl Iterator<Item = usize> {
        let (operands, n) = self.operands();
        operands.into_iter().take(n).map(usize::from)
    }
    /// Roughly sixteenths of a cycle for each element.
    fn cost(self) -> usize {
        match self {
            Node::Leaf(_) => 0,
            Node::Unary(f, _) => f.cost(),
            Node::Binary(Binary::Pow, ..) => 160,
            Node::Gate(..) => 30,
            Node::Binary(Binary::Div, ..) => 8,
            _ => 1,
        }
    }
}

impl Program {
    /// Checks the instructions (operands name earlier registers and existing inputs) and translates them. Products with
    /// a single use, which is a sum or difference, are fused with it; what no output needs is dropped.
    pub fn new(instrs: Vec<Instr>, outputs: Vec<Reg>, inputs: usize) -> Result<Program, String> {
        if instrs.len() > MAX_INSTRS {
            return Err(format!("{} instructions are more than {MAX_INSTRS}", instrs.len()));
        }
        if inputs + outputs.len() > MAX_OPERANDS {
            return Err(format!("{inputs} inputs and {} outputs are more than {MAX_OPERANDS}", outputs.len()));
        }
        if let Some(r) = outputs.iter().find(|&&r| usize::from(r) >= instrs.len()) {
            return Err(format!("an output names register {r} of {}", instrs.len()));
        }
        let mut constants: Vec<f32> = Vec::new();
        let mut nodes = Vec::with_capacity(instrs.len());
        for (i, &instr) in instrs.iter().enumerate() {
            let node = match instr {
                Instr::Input(k) if usize::from(k) >= inputs => {
                    return Err(format!("instruction {i} reads input {k} of {inputs}"));
                }
                Instr::Input(k) => Node::Leaf(k),
                Instr::Const(bits) => {
                    let at = constants.iter().position(|c| c.to_bits() == bits).unwrap_or_else(|| {
                        constants.push(f32::from_bits(bits));
                        constants.len() - 1
                    });
                    Node::Leaf((inputs + outputs.len() + at) as u16)
                }
                Instr::Unary(f, a) => Node::Unary(f, a),
                Instr::Binary(Binary::Mul, a, b) if a == b => Node::Unary(Unary::Square, a),
                Instr::Binary(f, a, b) => Node::Binary(f, a, b),
                Instr::Select(c, a, b) => Node::Select(c, a, b),
                Instr::MulAdd(a, b, c) => Node::Fused(Fused::Add, a, b, c),
            };
            if let Some(r) = node.uses().find(|&r| r >= i) {
                return Err(format!("instruction {i} uses register {r}, which is not before it"));
            }
            nodes.push(node);
        }
        fuse(&mut nodes, &outputs);
        find_gates(&mut nodes, &outputs);
        let order = order(&nodes, &outputs);
        let cost = order.iter().map(|&r| nodes[r].cost()).sum::<usize>().max(1);
        let first_slot = inputs + outputs.len() + constants.len();
        let mut emit = Emit::new(&nodes, &outputs, inputs, first_slot as u16);
        emit.all(&order);
        let (steps, slots) = (emit.steps, emit.slots as usize);
        let constants = constants.into_iter().map(|c| Line([c; 16])).collect();
        let mut program = Program { steps, inputs, outputs: outputs.len(), constants, slots, cost, layout: [0; 4] };
        program.layout = super::plan::lay_out(&program);
        Ok(program)
    }

    /// How many inputs a run takes.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How many outputs a run takes.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The inputs t, a and b, if tanh a + sigmoid t · (tanh b − tanh a) is all the program computes.
    pub fn gate(&self) -> Option<[usize; 3]> {
        match self.steps[..] {
            [Step { op: Op::Load, a: t, .. }, Step { op: Op::Gate, a, b }, Step { op: Op::Output, .. }] => {
                let inputs = [t, a, b].map(usize::from);
                inputs.iter().all(|&i| i < self.inputs).then_some(inputs)
            }
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_gate(&self) -> bool {
        self.steps.iter().any(|s| s.op == Op::Gate)
    }

    pub(super) fn operands(&self) -> usize {
        self.inputs + self.outputs
    }
}

/// How often each register is used, by nodes and by outputs.
fn count(nodes: &[Node], outputs: &[Reg]) -> Vec<usize> {
    let mut uses = vec![0; nodes.len()];
    nodes.iter().flat_map(|n| n.uses()).for_each(|r| uses[r] += 1);
    outputs.iter().for_each(|&r| uses[usize::from(r)] += 1);
    uses
}

/// Turns a product that only a sum or difference uses into one fused node.
fn fuse(nodes: &mut [Node], outputs: &[Reg]) {
    let uses = count(nodes, outputs);
    for i in 0..nodes.len() {
        let product = |r: Reg| match nodes[usize::from(r)] {
            Node::Binary(Binary::Mul, a, b) if uses[usize::from(r)] == 1 => Some((a, b)),
            _ => None,
        };
        if let Node::Binary(f @ (Binary::Add | Binary::Sub), x, y) = nodes[i] {
            let (left, right) = if f == Binary::Add { (Fused::Add, Fused::Add) } else { (Fused::Sub, Fused::From) };
            if let Some((a, b)) = product(x) {
                nodes[i] = Node::Fused(left, a, b, y);
            } else if let Some((a, b)) = product(y) {
                nodes[i] = Node::Fused(right, a, b, x);
            }
        }
    }
}

/// Turns tanh a + sigmoid t · (tanh b − tanh a), the gate of a recurrent cell, into one node: three independent chains of
/// arithmetic that the machine overlaps only if they are one step.
fn find_gates(nodes: &mut [Node], outputs: &[Reg]) {
    // Counts only uses by nodes that are still needed: a product that was fused into its sum is not.
    let mut uses = vec![0; nodes.len()];
    order(nodes, outputs).iter().flat_map(|&r| nodes[r].uses()).for_each(|r| uses[r] += 1);
    outputs.iter().for_each(|&r| uses[usize::from(r)] += 1);
    let of = |nodes: &[Node], r: Reg, f: Unary, times: usize| match nodes[usize::from(r)] {
        Node::Unary(g, x) if g == f && uses[usize::from(r)] == times => Some(x),
        _ => None,
    };
    for i in 0..nodes.len() {
        let Node::Fused(Fused::Add, x, y, from) = nodes[i] else { continue };
        for (gate, toward) in [(x, y), (y, x)] {
            let Node::Binary(Binary::Sub, to, start) = nodes[usize::from(toward)] else { continue };
            let alone = uses[usize::from(toward)] == 1 && start == from;
            let parts =
                (of(nodes, gate, Unary::Sigmoid, 1), of(nodes, from, Unary::Tanh, 2), of(nodes, to, Unary::Tanh, 1));
            if let (true, (Some(t), Some(a), Some(b))) = (alone, parts) {
                nodes[i] = Node::Gate(t, a, b);
                break;
            }
        }
    }
}

/// The nodes that outputs need, operands first, the operand that needs more slots before the others.
fn order(nodes: &[Node], outputs: &[Reg]) -> Vec<usize> {
    let mut need = vec![0usize; nodes.len()];
    let children = |r: usize, need: &[usize]| {
        let mut c: Vec<usize> = nodes[r].uses().filter(|&c| !matches!(nodes[c], Node::Leaf(_))).collect();
        c.sort_by_key(|&c| std::cmp::Reverse(need[c]));
        c.dedup();
        c
    };
    for r in 0..nodes.len() {
        need[r] = children(r, &need).iter().enumerate().map(|(i, &c)| need[c] + i).max().unwrap_or(0).max(1);
    }
    let mut done = vec![false; nodes.len()];
    let mut order = Vec::new();
    for &root in outputs {
        let mut stack = vec![(usize::from(root), false)];
        while let Some((r, expanded)) = stack.pop() {
            if done[r] || matches!(nodes[r], Node::Leaf(_)) {
                continue;
            }
            if expanded {
                done[r] = true;
                order.push(r);
            } else {
                stack.push((r, true));
                stack.extend(children(r, &need).into_iter().rev().map(|c| (c, false)));
            }
        }
    }
    order
}

/// The state of a translation.
struct Emit<'a> {
    nodes: &'a [Node],
    outputs: &'a [Reg],
    inputs: usize,
    first_slot: u16,
    /// Uses still to come.
    left: Vec<usize>,
    /// The slot of each saved value.
    slot: Vec<Option<u16>>,
    free: Vec<u16>,
    slots: u16,
    /// What the accumulator holds.
    acc: Option<usize>,
    steps: Vec<Step>,
}

impl<'a> Emit<'a> {
    fn new(nodes: &'a [Node], outputs: &'a [Reg], inputs: usize, first_slot: u16) -> Self {
        let (slot, steps) = (vec![None; nodes.len()], Vec::new());
        let left = vec![0; nodes.len()];
        Emit { nodes, outputs, inputs, first_slot, left, slot, free: Vec::new(), slots: 0, acc: None, steps }
    }

    fn all(&mut self, order: &[usize]) {
        let nodes = self.nodes;
        order.iter().flat_map(|&r| nodes[r].uses()).for_each(|r| self.left[r] += 1);
        self.outputs.iter().for_each(|&r| self.left[usize::from(r)] += 1);
        let reads_input = |r: &usize| nodes[*r].uses().any(|c| self.is_input(c));
        let last_read = order.iter().rposition(reads_input).unwrap_or(0);
        let mut late = Vec::new();
        for (k, &r) in self.outputs.iter().enumerate() {
            // An input that is also an output must be saved before anything is written over it.
            if self.is_input(usize::from(r)) {
                self.step(Op::Load, self.place(r.into()), 0);
                self.acc = Some(r.into());
                if self.slot[usize::from(r)].is_none() {
                    self.save(r.into());
                }
            }
            if matches!(nodes[usize::from(r)], Node::Leaf(_)) {
                late.push((k, usize::from(r)));
            }
        }
        for (i, &r) in order.iter().enumerate() {
            self.node(r);
            for k in (0..self.outputs.len()).filter(|&k| usize::from(self.outputs[k]) == r) {
                if i >= last_read {
                    self.step(Op::Output, (self.inputs + k) as u16, 0);
                    self.left[r] -= 1;
                } else {
                    late.push((k, r));
                }
            }
            let next = order.get(i + 1).map_or(0, |&n| nodes[n].uses().filter(|&c| c == r).count());
            if self.left[r] > 0 && !(next == 1 && self.left[r] == 1) {
                self.save(r);
            }
        }
        for (k, r) in late {
            if self.acc != Some(r) {
                self.step(Op::Load, self.slot[r].unwrap_or_else(|| self.place(r)), 0);
                self.acc = Some(r);
            }
            self.step(Op::Output, (self.inputs + k) as u16, 0);
        }
    }

    fn is_input(&self, r: usize) -> bool {
        matches!(self.nodes[r], Node::Leaf(k) if usize::from(k) < self.inputs)
    }

    fn step(&mut self, op: Op, a: u16, b: u16) {
        self.steps.push(Step { op, a, b });
    }

    fn save(&mut self, r: usize) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.first_slot + self.slots - 1
        });
        self.slot[r] = Some(slot);
        self.step(Op::Save, slot, 0);
    }

    /// Where a value lies in memory.
    fn place(&self, r: usize) -> u16 {
        match self.nodes[r] {
            Node::Leaf(k) => k,
            _ => self.slot[r].expect("a value that is not in the accumulator was saved"),
        }
    }

    /// Computes one node into the accumulator.
    fn node(&mut self, r: usize) {
        let node = self.nodes[r];
        let ([a, b, c], _) = node.operands();
        let [a, b, c] = [a, b, c].map(usize::from);
        // A gate's first operand must be in the accumulator; another one that is there moves to memory.
        let elsewhere = matches!(node, Node::Gate(..)) && self.acc != Some(a);
        if let Some(other) = self.acc.filter(|o| elsewhere && [b, c].contains(o))
            && self.slot[other].is_none()
            && !matches!(self.nodes[other], Node::Leaf(_))
        {
            self.save(other);
        }
        if elsewhere || !node.uses().any(|c| Some(c) == self.acc) {
            self.step(Op::Load, self.place(a), 0);
            self.acc = Some(a);
        }
        let acc = self.acc;
        match node {
            Node::Leaf(_) => unreachable!("leaves are not computed"),
            Node::Unary(f, _) => self.step(Op::unary(f), 0, 0),
            Node::Binary(f, ..) if acc == Some(a) => self.step(Op::binary(f), self.place(b), 0),
            Node::Binary(f, ..) => self.step(Op::reversed(f), self.place(a), 0),
            Node::Fused(f, ..) if acc == Some(a) => self.step(Op::product(f), self.place(b), self.place(c)),
            Node::Fused(f, ..) if acc == Some(b) => self.step(Op::product(f), self.place(a), self.place(c)),
            Node::Fused(f, ..) => self.step(Op::accumulate(f), self.place(a), self.place(b)),
            Node::Select(..) if acc == Some(a) => self.step(Op::SelectBy, self.place(b), self.place(c)),
            Node::Select(..) if acc == Some(b) => self.step(Op::SelectThen, self.place(a), self.place(c)),
            Node::Select(..) => self.step(Op::SelectElse, self.place(a), self.place(b)),
            Node::Gate(..) => self.step(Op::Gate, self.place(b), self.place(c)),
        }
        for operand in node.uses() {
            self.left[operand] -= 1;
            if self.left[operand] == 0
                && let Some(slot) = self.slot[operand].take()
            {
                self.free.push(slot);
            }
        }
        self.acc = Some(r);
    }
}
