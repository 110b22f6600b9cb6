//! Every instruction, element type, stride pattern and path against plain scalar code.

use super::functions::unary_functions;
use super::*;
use crate::simd::portable::Portable;
use crate::tuning::on;
use crate::{Isa, math};

/// A small deterministic generator (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// Mostly moderate values, now and then a special one.
    fn float(&mut self) -> f32 {
        const SPECIAL: [f32; 10] =
            [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e-45, 1e18, -200.0, 1.0];
        if self.below(8) == 0 {
            SPECIAL[self.below(SPECIAL.len())]
        } else {
            (self.next() % 20_001) as f32 * 1e-3 - 10.0
        }
    }
}

const BINARY: [Binary; 15] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Min,
    Binary::Max,
    Binary::Pow,
    Binary::Eq,
    Binary::Ne,
    Binary::Lt,
    Binary::Le,
    Binary::Gt,
    Binary::Ge,
    Binary::And,
    Binary::Or,
];
const ELEMS: [Elem; 7] = [Elem::F32, Elem::F16, Elem::Bf16, Elem::I8, Elem::U8, Elem::I32, Elem::Bool];

macro_rules! plain_unary {
    (lanes { $($(#[doc = $d:literal])? $lanes:ident = $function:ident, $c:literal;)* }
     singly { $($(#[doc = $e:literal])? $single:ident = $method:ident, $k:literal;)* }) => {
        const UNARY: &[Unary] = &[$(Unary::$lanes,)* $(Unary::$single,)*];

        /// A function alone; `math` tests how exact it is.
        fn unary(f: Unary, x: f32) -> f32 {
            match f {
                $(Unary::$lanes => math::$function(Portable::<4>, [x; 4])[0],)*
                $(Unary::$single => x.$method(),)*
            }
        }
    };
}
unary_functions!(plain_unary);

fn binary(f: Binary, x: f32, y: f32) -> f32 {
    let nan = x.is_nan() || y.is_nan();
    match f {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Min => {
            if nan {
                f32::NAN
            } else {
                x.min(y)
            }
        }
        Binary::Max => {
            if nan {
                f32::NAN
            } else {
                x.max(y)
            }
        }
        Binary::Pow => x.powf(y),
        Binary::Eq => f32::from(x == y),
        Binary::Ne => f32::from(x != y),
        Binary::Lt => f32::from(x < y),
        Binary::Le => f32::from(x <= y),
        Binary::Gt => f32::from(x > y),
        Binary::Ge => f32::from(x >= y),
        Binary::And => f32::from(x != 0.0 && y != 0.0),
        Binary::Or => f32::from(x != 0.0 || y != 0.0),
    }
}

fn evaluate(instrs: &[Instr], outputs: &[Reg], inputs: &[f32]) -> Vec<f32> {
    let mut r: Vec<f32> = Vec::new();
    for &instr in instrs {
        let at = |k: Reg| r[usize::from(k)];
        r.push(match instr {
            Instr::Input(k) => inputs[usize::from(k)],
            Instr::Const(bits) => f32::from_bits(bits),
            Instr::Unary(f, a) => unary(f, at(a)),
            Instr::Binary(f, a, b) => binary(f, at(a), at(b)),
            Instr::Select(c, a, b) => {
                if at(c) != 0.0 {
                    at(a)
                } else {
                    at(b)
                }
            }
            Instr::MulAdd(a, b, c) => at(a) * at(b) + at(c),
        });
    }
    outputs.iter().map(|&k| r[usize::from(k)]).collect()
}

fn read(elem: Elem, bytes: &[u8]) -> f32 {
    match elem {
        Elem::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()),
        Elem::F16 => half::f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
        Elem::Bf16 => half::bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
        Elem::I8 => f32::from(bytes[0] as i8),
        Elem::U8 => f32::from(bytes[0]),
        Elem::I32 => i32::from_ne_bytes(bytes.try_into().unwrap()) as f32,
        Elem::Bool => f32::from(bytes[0] != 0),
    }
}

fn write(elem: Elem, x: f32) -> Vec<u8> {
    match elem {
        Elem::F32 => x.to_ne_bytes().to_vec(),
        Elem::F16 => half::f16::from_f32(x).to_ne_bytes().to_vec(),
        Elem::Bf16 => half::bf16::from_f32(x).to_ne_bytes().to_vec(),
        Elem::I8 => vec![x.round_ties_even() as i8 as u8],
        Elem::U8 => vec![x.round_ties_even() as u8],
        Elem::I32 => (x.round_ties_even() as i32).to_ne_bytes().to_vec(),
        Elem::Bool => vec![u8::from(x != 0.0)],
    }
}

/// 64-byte lines, so that element pointers and scratch memory are aligned.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read as bytes")] [u8; 64]);

#[derive(Clone)]
struct Buffer(Vec<Line>);

impl Buffer {
    fn new(bytes: usize) -> Buffer {
        Buffer(vec![Line([0xA5; 64]); bytes.div_ceil(64) + 1])
    }
    fn bytes(&self) -> &[u8] {
        // SAFETY: a line is 64 plain bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 64) }
    }
    fn ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
    fn set(&mut self, at: usize, from: &[u8]) {
        // SAFETY: the range is checked against the bytes of the buffer.
        let all = unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<u8>(), self.0.len() * 64) };
        all[at..at + from.len()].copy_from_slice(from);
    }
}

struct Case {
    instrs: Vec<Instr>,
    results: Vec<Reg>,
    dims: [usize; 4],
    inputs: Vec<Layout>,
    outputs: Vec<Layout>,
    /// Output `k` lies on that input.
    alias: Vec<Option<usize>>,
    /// Elements before index 0, so that pointers are not aligned to registers.
    skew: usize,
    /// Allowed error relative to the larger of the value and 1, in `f32`; `None` compares what is stored exactly.
    tolerance: Option<f32>,
}

fn extent(dims: [usize; 4], strides: [usize; 4]) -> usize {
    if dims.contains(&0) { 0 } else { 1 + (0..4).map(|d| (dims[d] - 1) * strides[d]).sum::<usize>() }
}

fn indices(dims: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
    let [_, b, c, d] = dims;
    (0..dims.iter().product()).map(move |i: usize| [i / (b * c * d), i / (c * d) % b, i / d % c, i % d])
}

fn offset(i: [usize; 4], strides: [usize; 4]) -> usize {
    (0..4).map(|d| i[d] * strides[d]).sum()
}

impl Case {
    /// Runs on every path, with one to three threads, and compares each element; also that nothing else is written.
    fn check(&self, random: &mut Random, teams: &[Team]) {
        let program = Program::new(self.instrs.clone(), self.results.clone(), self.inputs.len()).unwrap();
        let mut buffers: Vec<Buffer> = Vec::new();
        for &(elem, strides) in &self.inputs {
            let n = extent(self.dims, strides);
            let mut buffer = Buffer::new((n + self.skew) * elem.size());
            (0..n).for_each(|i| buffer.set((i + self.skew) * elem.size(), &write(elem, random.float())));
            buffers.push(buffer);
        }
        for (k, &(elem, strides)) in self.outputs.iter().enumerate() {
            let fresh = Buffer::new((extent(self.dims, strides) + self.skew) * elem.size());
            buffers.push(self.alias[k].map_or(fresh, |i| buffers[i].clone()));
        }
        let mut expected = buffers[self.inputs.len()..].to_vec();
        for i in indices(self.dims) {
            let element = |(k, &(elem, strides)): (usize, &Layout)| {
                let at = (offset(i, strides) + self.skew) * elem.size();
                read(elem, &buffers[k].bytes()[at..at + elem.size()])
            };
            let x: Vec<f32> = self.inputs.iter().enumerate().map(element).collect();
            for (k, y) in evaluate(&self.instrs, &self.results, &x).into_iter().enumerate() {
                let (elem, strides) = self.outputs[k];
                expected[k].set((offset(i, strides) + self.skew) * elem.size(), &write(elem, y));
            }
        }
        for team in teams {
            for &isa in Isa::available() {
                self.run_and_compare(isa.name(), &buffers, &expected, team.threads(), |pointers, scratch| {
                    let (ins, outs) = pointers.split_at(self.inputs.len());
                    let ins: Vec<*const u8> = ins.iter().map(|p| p.cast_const()).collect();
                    if team.threads() == 2 {
                        let prepared = Prepared::new(on(isa), program.clone(), self.dims, &self.inputs, &self.outputs);
                        // SAFETY: buffers cover what the strides reach; outputs alias inputs exactly or not at all.
                        return unsafe { prepared.run(Some(team), &ins, outs, scratch) };
                    }
                    let operand = |(&ptr, &(elem, strides)): (&*const u8, &Layout)| Operand { ptr, elem, strides };
                    let target = |(&ptr, &(elem, strides)): (&*mut u8, &Layout)| OperandMut { ptr, elem, strides };
                    let ins: Vec<Operand> = ins.iter().zip(&self.inputs).map(operand).collect();
                    let outs: Vec<OperandMut> = outs.iter().zip(&self.outputs).map(target).collect();
                    // SAFETY: as above.
                    unsafe { run(on(isa), Some(team), &program, self.dims, &ins, &outs, scratch) }
                });
            }
        }
        let layouts = || self.inputs.iter().chain(&self.outputs).copied();
        let plan = plan::Plan::new(
            on(Isa::PORTABLE).tuning,
            &program,
            self.dims,
            self.inputs.len(),
            self.outputs.len(),
            layouts(),
        );
        let ports = |pointers: &[*mut u8]| {
            let mut ports = [std::ptr::null_mut(); MAX_OPERANDS];
            ports[..pointers.len()].copy_from_slice(pointers);
            ports
        };
        self.run_and_compare("portable8", &buffers, &expected, 1, |pointers, scratch| {
            // SAFETY: as above.
            unsafe { plan.run_lanes(Portable::<8>, &program, &ports(pointers), scratch) }
        });
        self.run_and_compare("portable16", &buffers, &expected, 1, |pointers, scratch| {
            // SAFETY: as above.
            unsafe { plan.run_lanes(Portable::<16>, &program, &ports(pointers), scratch) }
        });
    }

    fn run_and_compare(
        &self,
        path: &str,
        buffers: &[Buffer],
        expected: &[Buffer],
        threads: usize,
        run: impl Fn(&[*mut u8], *mut u8),
    ) {
        let program = Program::new(self.instrs.clone(), self.results.clone(), self.inputs.len()).unwrap();
        let mut memory = buffers.to_vec();
        let mut scratch = Buffer::new(scratch_bytes(&program, threads));
        let layouts = self.inputs.iter().chain(&self.outputs);
        let mut pointers: Vec<*mut u8> =
            layouts.zip(&mut memory).map(|(&(elem, _), b)| b.ptr().wrapping_add(self.skew * elem.size())).collect();
        for (k, alias) in self.alias.iter().enumerate() {
            if let Some(i) = *alias {
                pointers[self.inputs.len() + k] = pointers[i];
            }
        }
        run(&pointers, scratch.ptr());
        for (k, expected) in expected.iter().enumerate() {
            let found = &memory[self.alias[k].unwrap_or(self.inputs.len() + k)];
            self.compare(path, k, expected, found);
        }
    }

    fn compare(&self, path: &str, k: usize, expected: &Buffer, found: &Buffer) {
        let (elem, strides) = self.outputs[k];
        let mut touched = vec![false; expected.bytes().len()];
        for i in indices(self.dims) {
            let at = (offset(i, strides) + self.skew) * elem.size();
            let bytes = at..at + elem.size();
            touched[bytes.clone()].fill(true);
            let (e, f) = (read(elem, &expected.bytes()[bytes.clone()]), read(elem, &found.bytes()[bytes]));
            let same = e == f || (e.is_nan() && f.is_nan());
            let near = self.tolerance.is_some_and(|t| (e - f).abs() <= t * e.abs().max(1.0));
            assert!(same || near, "{path}: {:?} at {i:?} of {:?}: {f:e}, not {e:e}", self.instrs, self.dims);
        }
        for (at, _) in touched.iter().enumerate().filter(|&(_, &t)| !t) {
            assert_eq!(expected.bytes()[at], found.bytes()[at], "{path}: byte {at} outside the output was written");
        }
    }

    /// Contiguous f32 operands over one dimension.
    fn flat(instrs: Vec<Instr>, results: Vec<Reg>, inputs: usize, n: usize) -> Case {
        let row = (Elem::F32, [0, 0, 0, 1]);
        let (inputs, outputs) = (vec![row; inputs], vec![row; results.len()]);
        let alias = vec![None; results.len()];
        Case { instrs, results, dims: [1, 1, 1, n], inputs, outputs, alias, skew: 0, tolerance: Some(4e-6) }
    }
}

fn teams() -> Vec<Team> {
    (1..=3).map(|n| Team::new(n).unwrap()).collect()
}

/// The steps of an accumulator chain, with each operand an input: every instruction, in both operand orders.
#[test]
fn every_instruction_matches_scalar_code_at_every_short_length() {
    let (random, teams) = (&mut Random(7), &teams()[..1]);
    let (x, y, z) = (Instr::Input(0), Instr::Input(1), Instr::Input(2));
    let lengths = |i: usize| (0..=67).filter(move |n| n % 9 == i % 9 || *n == 67).chain([200]);
    for (i, &f) in UNARY.iter().enumerate() {
        for n in lengths(i) {
            Case::flat(vec![x, Instr::Unary(f, 0)], vec![1], 1, n).check(random, teams);
        }
    }
    for (i, f) in BINARY.into_iter().enumerate() {
        for n in lengths(i) {
            Case::flat(vec![x, y, Instr::Binary(f, 0, 1)], vec![2], 2, n).check(random, teams);
            // The accumulator second, and both operands the same.
            let neg = Instr::Unary(Unary::Neg, 1);
            Case::flat(vec![x, y, neg, Instr::Binary(f, 0, 2)], vec![3], 2, n).check(random, teams);
            let same = vec![x, Instr::Unary(Unary::Neg, 0), Instr::Binary(f, 1, 1)];
            Case::flat(same, vec![2], 1, n).check(random, teams);
            let constant = vec![x, Instr::constant(1.5), Instr::Binary(f, 0, 1), Instr::Binary(f, 1, 2)];
            Case::flat(constant, vec![3], 1, n).check(random, teams);
        }
    }
    for n in 0..=67 {
        let three = |instrs: Vec<Instr>| {
            let last = (instrs.len() - 1) as Reg;
            Case::flat(instrs, vec![last], 3, n).check(&mut Random(n as u64 + 1), teams);
        };
        let abs = |r| Instr::Unary(Unary::Abs, r);
        for (a, b, c) in [(0, 1, 2), (3, 1, 2), (0, 3, 2), (0, 1, 3), (3, 3, 3)] {
            let operand = [a, b, c].iter().position(|&r| r == 3).unwrap_or(0) as Reg;
            three(vec![x, y, z, abs(operand), Instr::Select(a, b, c)]);
            three(vec![x, y, z, abs(operand), Instr::MulAdd(a, b, c)]);
        }
    }
}

#[test]
fn fused_products_match_in_every_position() {
    let (random, teams) = (&mut Random(3), &teams()[..1]);
    let inputs = [Instr::Input(0), Instr::Input(1), Instr::Input(2)];
    for f in [Binary::Add, Binary::Sub] {
        for product_first in [true, false] {
            for extra in [vec![], vec![Instr::Unary(Unary::Neg, 2)]] {
                let mut instrs = inputs.to_vec();
                instrs.extend(&extra);
                let c = (instrs.len() - 1) as Reg;
                instrs.push(Instr::Binary(Binary::Mul, 0, 1));
                let p = c + 1;
                instrs.push(if product_first { Instr::Binary(f, p, c) } else { Instr::Binary(f, c, p) });
                let mut case = Case::flat(instrs, vec![p + 1], 3, 300);
                // One rounding instead of two: relative to the operands of the sum, which are up to 100.
                case.tolerance = Some(3e-5);
                case.check(random, teams);
            }
        }
    }
}

#[test]
fn gates_match_wherever_their_operands_come_from() {
    let (random, teams) = (&mut Random(5), &teams()[..1]);
    // Each of the three as it is, or computed right before.
    for computed in 0..4 {
        for (flipped, kept) in [(false, false), (true, false), (false, true)] {
            let mut instrs = vec![Instr::Input(0), Instr::Input(1), Instr::Input(2)];
            let mut push = |i: Instr| {
                instrs.push(i);
                (instrs.len() - 1) as Reg
            };
            let [t, a, b] = [0, 1, 2].map(|k| if k == computed { push(Instr::Unary(Unary::Abs, k)) } else { k });
            let (from, to) = (push(Instr::Unary(Unary::Tanh, a)), push(Instr::Unary(Unary::Tanh, b)));
            let gate = push(Instr::Unary(Unary::Sigmoid, t));
            let toward = push(Instr::Binary(Binary::Sub, to, from));
            let change = push(if flipped {
                Instr::Binary(Binary::Mul, toward, gate)
            } else {
                Instr::Binary(Binary::Mul, gate, toward)
            });
            let next = push(Instr::Binary(Binary::Add, from, change));
            // Where somebody else reads a part, it is no gate.
            let outputs = if kept { vec![next, toward] } else { vec![next] };
            let program = Program::new(instrs.clone(), outputs.clone(), 3).unwrap();
            assert_eq!(program.is_gate(), !kept, "{instrs:?}");
            for n in [1, 16, 29, 64, 300] {
                let mut case = Case::flat(instrs.clone(), outputs.clone(), 3, n);
                case.tolerance = Some(3e-6);
                case.check(random, teams);
            }
        }
    }
}

#[test]
fn every_pair_of_element_types_converts() {
    let random = &mut Random(11);
    for from in ELEMS {
        for to in ELEMS {
            for n in [0, 1, 15, 16, 67, 300] {
                let mut case = Case::flat(vec![Instr::Input(0)], vec![0], 1, n);
                (case.inputs[0].0, case.outputs[0].0) = (from, to);
                case.tolerance = None;
                case.skew = n % 3;
                case.check(random, &teams()[..1]);
            }
        }
    }
}

#[test]
fn operands_broadcast_in_every_position() {
    let (random, teams) = (&mut Random(5), &teams());
    let instrs = vec![
        Instr::Input(0),
        Instr::Input(1),
        Instr::Input(2),
        Instr::Binary(Binary::Sub, 0, 1),
        Instr::Binary(Binary::Max, 3, 2),
    ];
    for dims in
        [[1, 1, 5, 16], [1, 1, 40, 24], [2, 3, 4, 5], [3, 1, 2, 130], [1, 1, 3, 600], [2, 2, 1, 256], [4, 3, 7, 1]]
    {
        let [_, b, c, d] = dims;
        let dense = [b * c * d, c * d, d, 1];
        for pattern in 0..16 {
            let kept: [usize; 4] = std::array::from_fn(|i| if pattern >> i & 1 == 1 { dense[i] } else { 0 });
            // Rows apart from each other, as in a window on a larger matrix.
            let apart = [b * c * (d + 3), c * (d + 3), d + 3, 1];
            for (output, third) in [(dense, apart), (apart, dense)] {
                let elem = ELEMS[random.below(7)];
                let mut case = Case::flat(instrs.clone(), vec![4], 3, 0);
                case.dims = dims;
                case.inputs = vec![(Elem::F32, dense), (elem, kept), (Elem::F32, third)];
                case.outputs = vec![(Elem::F32, output)];
                case.skew = random.below(4);
                case.tolerance = None;
                case.check(random, &teams[..1 + usize::from(pattern == 7)]);
            }
        }
    }
}

#[test]
fn outputs_may_lie_on_inputs() {
    let (random, teams) = (&mut Random(9), &teams()[..1]);
    // The second output needs an input that the first one overwrites; the third is an input itself.
    let instrs = vec![
        Instr::Input(0),
        Instr::Input(1),
        Instr::Binary(Binary::Add, 0, 1),
        Instr::Unary(Unary::Neg, 2),
        Instr::Binary(Binary::Sub, 3, 0),
    ];
    for n in [1, 64, 127, 128, 500] {
        let mut case = Case::flat(instrs.clone(), vec![2, 4, 1], 2, n);
        case.alias = vec![Some(0), Some(1), None];
        case.check(random, teams);
        let mut case = Case::flat(instrs.clone(), vec![4, 0], 2, n);
        case.alias = vec![Some(0), Some(1)];
        (case.inputs[0], case.outputs[0]) = ((Elem::F16, [0, 0, 0, 1]), (Elem::Bf16, [0, 0, 0, 1]));
        case.tolerance = Some(1e-2);
        case.check(random, teams);
    }
}

#[test]
fn random_programs_match_scalar_code() {
    let (random, teams) = (&mut Random(42), &teams());
    for round in 0..300 {
        let inputs = 1 + random.below(4);
        let mut instrs: Vec<Instr> = (0..inputs).map(|k| Instr::Input(k as u16)).collect();
        instrs.push(Instr::constant(0.75));
        // Exact operations only, so that any difference is a fault: products may fuse only with a rounding of their own.
        for _ in 0..1 + random.below(24) {
            let n = instrs.len();
            let mut reg = || random.below(n) as Reg;
            let (a, b, c) = (reg(), reg(), reg());
            instrs.push(match random.below(8) {
                0 => Instr::Unary([Unary::Neg, Unary::Abs, Unary::Relu, Unary::Floor, Unary::Not][random.below(5)], a),
                1 => Instr::Select(a, b, c),
                2 => Instr::Binary(BINARY[7 + random.below(8)], a, b),
                3 => Instr::Binary(Binary::Min, a, b),
                4 => Instr::Binary(Binary::Max, a, b),
                5 => Instr::Binary(Binary::Div, a, b),
                _ => Instr::Binary([Binary::Add, Binary::Sub][random.below(2)], a, b),
            });
        }
        let results = (0..1 + random.below(3)).map(|_| random.below(instrs.len()) as Reg).collect();
        let n = if round % 20 == 0 { 30_000 } else { random.below(600) };
        let mut case = Case::flat(instrs, results, inputs, n);
        case.tolerance = None;
        case.skew = random.below(16);
        case.check(random, if round % 20 == 0 { teams } else { &teams[..1] });
    }
}

#[test]
fn outputs_beyond_the_cache_are_complete() {
    let n = (2 << 20) + 77;
    let mut x = vec![0.0f32; n];
    x.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 1013) as f32);
    let program = Program::new(vec![Instr::Input(0), Instr::Unary(Unary::Neg, 0)], vec![1], 1).unwrap();
    for &isa in Isa::available() {
        for team in &teams() {
            for skew in [0, 3] {
                let mut y = vec![7.0f32; n];
                let mut scratch = Buffer::new(scratch_bytes(&program, team.threads()));
                let row = (Elem::F32, [0, 0, 0, 1]);
                let prepared = Prepared::new(on(isa), program.clone(), [1, 1, 1, n - 8], &[row], &[row]);
                let (from, to) = (x[skew..].as_ptr().cast(), y[skew..].as_mut_ptr().cast());
                // SAFETY: both vectors hold n − 8 floats after the skew.
                unsafe { prepared.run(Some(team), &[from], &[to], scratch.ptr()) };
                let inside = skew..skew + n - 8;
                assert!((0..n).all(|i| y[i] == if inside.contains(&i) { -x[i] } else { 7.0 }), "{isa} {team:?} {skew}");
            }
        }
    }
}

#[test]
fn malformed_programs_are_refused() {
    let refused = |instrs: Vec<Instr>, outputs: Vec<Reg>, inputs| Program::new(instrs, outputs, inputs).is_err();
    assert!(refused(vec![Instr::Input(1)], vec![0], 1));
    assert!(refused(vec![Instr::Unary(Unary::Neg, 0)], vec![0], 0));
    assert!(refused(vec![Instr::Input(0)], vec![1], 1));
    assert!(refused(vec![Instr::Input(0); MAX_INSTRS + 1], vec![0], 1));
    assert!(refused(vec![Instr::Input(0)], vec![0], MAX_OPERANDS));
    assert!(!refused(vec![], vec![], 0));
}
