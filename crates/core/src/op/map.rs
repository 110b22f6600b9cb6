//! Fused elementwise programs: what a [`Map`](super::Op::Map) or the epilogue of a product computes for each element.

use super::{Binary, Compare, Float, Op, Unary};
use crate::dtype::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One instruction of a fused elementwise program; instruction i gives value i.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MapInstr {
    /// Input number n, widened to `f32` and stretched.
    Input(u16),
    /// A constant.
    Const(Float),
    /// A unary operation of an earlier value.
    Unary(Unary, u16),
    /// A binary operation of two earlier values.
    Binary(Binary, u16, u16),
    /// A comparison, giving 1 or 0.
    Compare(Compare, u16, u16),
    /// The second where the first is not 0, else the third.
    Select(u16, u16, u16),
    /// Truncated toward zero (the step before a conversion to an integer type).
    Trunc(u16),
}

/// An elementwise program over inputs that stretch to one shape, evaluated in `f32`; the last value is the result, rounded to
/// the nearest integer where it is stored as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Map {
    /// Straight-line code in dependency order.
    pub code: Vec<MapInstr>,
}

/// A value of a program that is a result, beside the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapResult {
    /// The instruction that gives it.
    pub at: u16,
    /// Its element type; it is stored as the last value is.
    pub dtype: DType,
}

/// The most instructions of a fused program, which the kernels' interpreter has room for.
pub const MAX_PROGRAM: usize = 1024;
/// The most inputs of a fused program, likewise.
pub const MAX_PROGRAM_INPUTS: usize = 22;
/// The most inputs and results of a fused program together, likewise.
pub const MAX_PROGRAM_OPERANDS: usize = 24;

impl Map {
    /// How many inputs the program reads.
    pub fn inputs(&self) -> usize {
        self.code
            .iter()
            .filter_map(|i| if let MapInstr::Input(n) = i { Some(usize::from(*n) + 1) } else { None })
            .max()
            .unwrap_or(0)
    }

    /// The inputs t, a and b, if all that the program computes is tanh a + σ(t) · (tanh b − tanh a).
    pub fn gate(&self) -> Option<[usize; 3]> {
        let last = self.code.len().checked_sub(1)?;
        // Three inputs, three functions, a difference, a product and a sum: nothing is left over.
        (self.code.len() == 9).then_some(())?;
        let at = |i: u16| self.code.get(usize::from(i));
        let function = |i: u16, of: Unary| match at(i)? {
            MapInstr::Unary(u, x) if *u == of => match at(*x)? {
                MapInstr::Input(n) => Some(usize::from(*n)),
                _ => None,
            },
            _ => None,
        };
        let MapInstr::Binary(Binary::Add, x, y) = *self.code.get(last)? else { return None };
        [(x, y), (y, x)].into_iter().find_map(|(from, change)| {
            let MapInstr::Binary(Binary::Mul, p, q) = *at(change)? else { return None };
            [(p, q), (q, p)].into_iter().find_map(|(gate, toward)| {
                let MapInstr::Binary(Binary::Sub, to, back) = *at(toward)? else { return None };
                let found = [function(gate, Unary::Sigmoid)?, function(from, Unary::Tanh)?, function(to, Unary::Tanh)?];
                (back == from).then_some(found)
            })
        })
    }

    /// The operation whose results are these values of the program, with these types, and that computes nothing else.
    /// Its result k is number `order[k]` of `results`, which must not be empty.
    pub(crate) fn giving(&self, results: &[MapResult]) -> (Op, Vec<usize>) {
        let mut needed = vec![false; self.code.len()];
        results.iter().for_each(|r| needed[usize::from(r.at)] = true);
        for (i, instr) in self.code.iter().enumerate().rev() {
            if needed[i] {
                instr.operands().into_iter().flatten().for_each(|o| needed[usize::from(o)] = true);
            }
        }
        let mut at = vec![0u16; self.code.len()];
        let mut code = Vec::with_capacity(self.code.len());
        for (i, instr) in self.code.iter().enumerate().filter(|(i, _)| needed[*i]) {
            code.push(instr.map_operands(|o| at[usize::from(o)]));
            at[i] = (code.len() - 1) as u16;
        }
        // No instruction reads the last one, so it is a result: it comes first, the others keep their order.
        let is_last = |r: &MapResult| usize::from(at[usize::from(r.at)]) + 1 == code.len();
        let first = results.iter().position(is_last).unwrap_or(0);
        let order: Vec<usize> = std::iter::once(first).chain((0..results.len()).filter(|&k| k != first)).collect();
        let moved = |&k: &usize| MapResult { at: at[usize::from(results[k].at)], dtype: results[k].dtype };
        let also = order[1..].iter().map(moved).collect();
        (Op::Map { map: Map { code }, dtype: results[first].dtype, also }, order)
    }

    /// Checks that every operand is an earlier value.
    pub fn check(&self) -> Result<(), String> {
        if self.code.is_empty() || self.code.len() > MAX_PROGRAM {
            return Err(format!("a program of {} instructions; want 1 to {MAX_PROGRAM}", self.code.len()));
        }
        for (i, instr) in self.code.iter().enumerate() {
            if let Some(late) = instr.operands().into_iter().flatten().find(|&o| usize::from(o) >= i) {
                return Err(format!("instruction {i} reads value {late}, which is not earlier"));
            }
        }
        Ok(())
    }
}

impl MapInstr {
    /// The earlier values it reads.
    pub fn operands(&self) -> [Option<u16>; 3] {
        match *self {
            MapInstr::Input(_) | MapInstr::Const(_) => [None; 3],
            MapInstr::Unary(_, a) | MapInstr::Trunc(a) => [Some(a), None, None],
            MapInstr::Binary(_, a, b) | MapInstr::Compare(_, a, b) => [Some(a), Some(b), None],
            MapInstr::Select(a, b, c) => [Some(a), Some(b), Some(c)],
        }
    }

    /// The same with every operand passed through `f`.
    pub fn map_operands(self, f: impl Fn(u16) -> u16) -> MapInstr {
        match self {
            MapInstr::Input(_) | MapInstr::Const(_) => self,
            MapInstr::Unary(u, a) => MapInstr::Unary(u, f(a)),
            MapInstr::Trunc(a) => MapInstr::Trunc(f(a)),
            MapInstr::Binary(op, a, b) => MapInstr::Binary(op, f(a), f(b)),
            MapInstr::Compare(op, a, b) => MapInstr::Compare(op, f(a), f(b)),
            MapInstr::Select(a, b, c) => MapInstr::Select(f(a), f(b), f(c)),
        }
    }

    /// Its name in text.
    pub fn name(&self) -> &'static str {
        match self {
            MapInstr::Input(_) => "input",
            MapInstr::Const(_) => "const",
            MapInstr::Unary(u, _) => u.name(),
            MapInstr::Binary(b, ..) => b.name(),
            MapInstr::Compare(c, ..) => c.name(),
            MapInstr::Select(..) => "select",
            MapInstr::Trunc(_) => "trunc",
        }
    }
}

impl fmt::Display for Map {
    /// One line: `tanh(x0 + x1) * x2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&[]))
    }
}

impl Map {
    /// The program in one line, further results after the first: `tanh(x0 + x1) * x2, x0 + x1`.
    pub fn text(&self, also: &[MapResult]) -> String {
        // Values are shared, so a short program can be extremely long when written out as a tree: depth and length are
        // limited.
        fn expr(code: &[MapInstr], at: u16, depth: usize, left: &mut usize) -> String {
            if depth > 12 || *left == 0 {
                return "…".into();
            }
            *left -= 1;
            let mut sub = |i: u16| expr(code, i, depth + 1, left);
            match code[usize::from(at)] {
                MapInstr::Input(n) => format!("x{n}"),
                MapInstr::Const(c) => format!("{:?}", c.0),
                MapInstr::Unary(u, a) => format!("{}({})", u.name(), sub(a)),
                MapInstr::Trunc(a) => format!("trunc({})", sub(a)),
                MapInstr::Binary(b, x, y) => match b {
                    Binary::Add => format!("({} + {})", sub(x), sub(y)),
                    Binary::Sub => format!("({} - {})", sub(x), sub(y)),
                    Binary::Mul => format!("{} * {}", sub(x), sub(y)),
                    Binary::Div => format!("{} / {}", sub(x), sub(y)),
                    _ => format!("{}({}, {})", b.name(), sub(x), sub(y)),
                },
                MapInstr::Compare(c, x, y) => format!("{}({}, {})", c.name(), sub(x), sub(y)),
                MapInstr::Select(c, x, y) => format!("select({}, {}, {})", sub(c), sub(x), sub(y)),
            }
        }
        if self.check().is_err() || also.iter().any(|r| usize::from(r.at) >= self.code.len()) {
            return "invalid program".into();
        }
        let results = std::iter::once((self.code.len() - 1) as u16).chain(also.iter().map(|r| r.at));
        let mut left = 500;
        results.map(|at| expr(&self.code, at, 0, &mut left)).collect::<Vec<_>>().join(", ")
    }
}
