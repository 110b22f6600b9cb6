//! Computes what a straight piece of code does, number by number.

use crate::lang::{Binary, Expr, Kernel, Kind, Maker, Memory, Stmt, Ty, Unary};

/// What the hardware does as it likes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Machine {
    /// a · b + c is rounded once.
    fused: bool,
    /// Division and roots are off by 2 units in the last place; subnormal results are 0; the smaller or larger of NaN and a
    /// number is the number; and n · a + (n · b + x) becomes n · (a + b) + x, as some compilers have it.
    rough: bool,
}

impl Machine {
    pub(super) const ALL: [Machine; 3] = [
        Machine { fused: true, rough: false },
        Machine { fused: false, rough: false },
        Machine { fused: false, rough: true },
    ];
}

/// A kernel that loads operands from the buffer's beginning and stores a result.
pub(super) fn made(operands: u32, make: impl FnOnce(&mut Maker, &[Expr]) -> Expr) -> Kernel {
    let mut m = Maker::new("made", 1);
    let memory = m.buffer("data", true);
    let operands: Vec<Expr> = (0..operands).map(|i| m.load(memory, i, Ty::F32)).collect();
    let result = make(&mut m, &operands);
    m.store(memory, 0u32, result);
    m.finish()
}

/// The bits of what the kernel stores.
pub(super) fn evaluate(kernel: &Kernel, machine: Machine, operands: &[u32]) -> u32 {
    let mut run = Run { machine, operands, vars: vec![0; kernel.vars.len()], result: 0 };
    run.block(&kernel.body);
    run.result
}

struct Run<'a> {
    machine: Machine,
    operands: &'a [u32],
    vars: Vec<u32>,
    result: u32,
}

impl Run<'_> {
    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::Set { var, value } => self.vars[var.0 as usize] = self.value(value),
                Stmt::Store { value, .. } => self.result = self.value(value),
                Stmt::If { condition, then, otherwise } => {
                    self.block(if self.value(condition) != 0 { then } else { otherwise });
                }
                other => panic!("not straight: {other:?}"),
            }
        }
    }

    fn float(&self, e: &Expr) -> f32 {
        f32::from_bits(self.value(e))
    }

    /// What the hardware makes of the right result.
    fn stored(&self, y: f32, off: bool) -> u32 {
        let y = if off && self.machine.rough && y.is_normal() { f32::from_bits(y.to_bits() + 2) } else { y };
        if self.machine.rough && y.is_subnormal() { 0 } else { y.to_bits() }
    }

    fn value(&self, e: &Expr) -> u32 {
        match e.kind() {
            Kind::Const(bits) => *bits,
            Kind::Var(var) => self.vars[var.0 as usize],
            Kind::Load(Memory::Buffer(_), index) => self.operands[self.value(index) as usize],
            Kind::Fma(a, b, c) => {
                if let Kind::Fma(same, other, rest) = c.kind()
                    && self.machine.rough
                    && same == a
                {
                    let factor = self.float(b) + self.float(other);
                    return self.stored(self.float(a) * factor + self.float(rest), false);
                }
                let (a, b, c) = (self.float(a), self.float(b), self.float(c));
                self.stored(if self.machine.fused { a.mul_add(b, c) } else { a * b + c }, false)
            }
            Kind::Select(condition, a, b) => self.value(if self.value(condition) != 0 { a } else { b }),
            Kind::Bits(a) => self.value(a),
            Kind::Convert(a) => {
                let bits = self.value(a);
                match (a.ty(), e.ty()) {
                    (Ty::F32, Ty::U32) => f32::from_bits(bits) as u32,
                    (Ty::F32, Ty::I32) => f32::from_bits(bits) as i32 as u32,
                    (Ty::U32, Ty::F32) => (bits as f32).to_bits(),
                    (Ty::I32, Ty::F32) => (bits as i32 as f32).to_bits(),
                    other => panic!("no such conversion: {other:?}"),
                }
            }
            Kind::Unary(op, a) => self.unary(*op, self.float(a)),
            Kind::Binary(op, a, b) => match a.ty() {
                Ty::F32 => self.of_floats(*op, self.float(a), self.float(b)),
                Ty::I32 => of_signed(*op, self.value(a) as i32, self.value(b)),
                Ty::U32 | Ty::Bool => of_unsigned(*op, self.value(a), self.value(b)),
            },
            other => panic!("not straight: {other:?}"),
        }
    }

    fn unary(&self, op: Unary, a: f32) -> u32 {
        match op {
            Unary::Neg => (-a).to_bits(),
            Unary::Abs => a.abs().to_bits(),
            Unary::Sqrt => self.stored(a.sqrt(), true),
            Unary::Floor => a.floor().to_bits(),
            Unary::Round => a.round_ties_even().to_bits(),
            Unary::Trunc => a.trunc().to_bits(),
            Unary::Exp2 => self.stored(a.exp2(), true),
            Unary::Recip => self.stored(1.0 / a, true),
            Unary::Tanh => self.stored(a.tanh() * (1.0 + 2f32.powi(-11)), false),
            Unary::Not => panic!("{op:?} is not for functions"),
        }
    }

    fn of_floats(&self, op: Binary, a: f32, b: f32) -> u32 {
        match op {
            Binary::Add => self.stored(a + b, false),
            Binary::Sub => self.stored(a - b, false),
            Binary::Mul => self.stored(a * b, false),
            Binary::Div => self.stored(a / b, true),
            Binary::Min if self.machine.rough => a.min(b).to_bits(),
            Binary::Max if self.machine.rough => a.max(b).to_bits(),
            Binary::Min => (if a < b { a } else { b }).to_bits(),
            Binary::Max => (if a > b { a } else { b }).to_bits(),
            Binary::Eq => (a == b).into(),
            Binary::Ne => (a != b).into(),
            Binary::Lt => (a < b).into(),
            Binary::Le => (a <= b).into(),
            other => panic!("{other:?} of floats"),
        }
    }
}

fn of_signed(op: Binary, a: i32, b: u32) -> u32 {
    let other = b as i32;
    match op {
        Binary::Eq => (a == other).into(),
        Binary::Ne => (a != other).into(),
        Binary::Lt => (a < other).into(),
        Binary::Le => (a <= other).into(),
        Binary::Shr => (a >> b) as u32,
        op => of_unsigned(op, a as u32, b),
    }
}

fn of_unsigned(op: Binary, a: u32, b: u32) -> u32 {
    match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => a << b,
        Binary::Shr => a >> b,
        Binary::Eq => (a == b).into(),
        Binary::Ne => (a != b).into(),
        Binary::Lt => (a < b).into(),
        Binary::Le => (a <= b).into(),
        Binary::Div | Binary::Rem => panic!("{op:?} of integers"),
    }
}
