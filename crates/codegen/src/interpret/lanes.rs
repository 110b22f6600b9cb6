//! Arithmetic on slots: one operation for all threads.
//!
//! If most threads are active, an operation is done for all, since results of inactive threads are never read; if few
//! are, only for those. Operations that can go wrong are only done for active threads.

use super::finding::Wrong;
use crate::lang::{Binary, Half, Run, Tile, Ty, Unary};

/// What a thread did wrong.
#[derive(Debug)]
pub(super) struct Halt {
    pub(super) thread: u32,
    pub(super) wrong: Wrong,
}

/// Whether so few threads are active that the others are left out.
fn few(active: &[u16], threads: usize) -> bool {
    active.len() * 4 < threads
}

/// Calls `f` for each active thread.
pub(super) fn each<E>(active: &[u16], threads: usize, mut f: impl FnMut(u16) -> Result<(), E>) -> Result<(), E> {
    if active.len() == threads {
        (0..threads as u16).try_for_each(f)
    } else {
        active.iter().try_for_each(|thread| f(*thread))
    }
}

fn map(to: &mut [u32], a: &[u32], active: &[u16], f: impl Fn(u32) -> u32) {
    if few(active, to.len()) {
        for &thread in active {
            to[usize::from(thread)] = f(a[usize::from(thread)]);
        }
    } else {
        for (to, a) in to.iter_mut().zip(a) {
            *to = f(*a);
        }
    }
}

fn map2(to: &mut [u32], a: &[u32], b: &[u32], active: &[u16], f: impl Fn(u32, u32) -> u32) {
    if few(active, to.len()) {
        for &thread in active {
            let thread = usize::from(thread);
            to[thread] = f(a[thread], b[thread]);
        }
    } else {
        for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
            *to = f(*a, *b);
        }
    }
}

fn map3(to: &mut [u32], operands: [&[u32]; 3], active: &[u16], f: impl Fn(u32, u32, u32) -> u32) {
    let [a, b, c] = operands;
    if few(active, to.len()) {
        for &thread in active {
            let thread = usize::from(thread);
            to[thread] = f(a[thread], b[thread], c[thread]);
        }
    } else {
        for (((to, a), b), c) in to.iter_mut().zip(a).zip(b).zip(c) {
            *to = f(*a, *b, *c);
        }
    }
}

fn float(bits: u32) -> f32 {
    f32::from_bits(bits)
}

pub(super) fn copy(to: &mut [u32], a: &[u32], active: &[u16]) {
    if active.len() == to.len() {
        to.copy_from_slice(a);
    } else {
        for &thread in active {
            to[usize::from(thread)] = a[usize::from(thread)];
        }
    }
}

pub(super) fn fma(to: &mut [u32], operands: [&[u32]; 3], active: &[u16]) {
    map3(to, operands, active, |a, b, c| float(a).mul_add(float(b), float(c)).to_bits());
}

pub(super) fn call(run: &Run, to: &mut [u32], operands: &[&[u32]], active: &[u16]) {
    let mut values = vec![0.0; operands.len()];
    for thread in active.iter().map(|thread| usize::from(*thread)) {
        for (value, operand) in values.iter_mut().zip(operands) {
            *value = float(operand[thread]);
        }
        to[thread] = (run.0)(&values).to_bits();
    }
}

/// The `f16` in the lowest 16 bits, as `f32`.
pub(super) fn from_half(to: &mut [u32], a: &[u32], active: &[u16]) {
    map(to, a, active, |a| half::f16::from_bits(a as u16).to_f32().to_bits());
}

/// The bits of a float rounded to 16.
fn half_bits(halves: Half, x: u32) -> u32 {
    u32::from(match halves {
        Half::F16 => half::f16::from_f32(float(x)).to_bits(),
        Half::Bf16 => half::bf16::from_f32(float(x)).to_bits(),
    })
}

pub(super) fn pack(halves: Half, to: &mut [u32], a: &[u32], b: &[u32], active: &[u16]) {
    map2(to, a, b, active, |a, b| half_bits(halves, a) | half_bits(halves, b) << 16);
}

/// The two numbers of a pair.
fn unpack(halves: Half, pair: u32) -> [f32; 2] {
    [pair as u16, (pair >> 16) as u16].map(|bits| match halves {
        Half::F16 => half::f16::from_bits(bits).to_f32(),
        Half::Bf16 => half::bf16::from_bits(bits).to_f32(),
    })
}

/// Adds a product of small matrices, for each 32 threads ([`Tile`]).
pub(super) fn multiply(halves: Half, sums: &mut [Box<[u32]>; 4], a: [&[u32]; 4], b: [&[u32]; 2]) {
    let threads = a[0].len();
    for first in (0..threads).step_by(32) {
        let (mut left, mut right) = ([[0f32; 16]; 16], [[0f32; 8]; 16]);
        for thread in 0..32u32 {
            let at = first + thread as usize;
            for (number, pairs) in (0..).zip(a) {
                let (row, column) = Tile::first(thread, number);
                left[row as usize][column as usize..][..2].copy_from_slice(&unpack(halves, pairs[at]));
            }
            for (number, pairs) in (0..).zip(b) {
                let (row, column) = Tile::second(thread, number);
                let [upper, lower] = unpack(halves, pairs[at]);
                (right[row as usize][column as usize], right[row as usize + 1][column as usize]) = (upper, lower);
            }
        }
        for thread in 0..32u32 {
            let at = first + thread as usize;
            for (number, sums) in (0..).zip(sums.iter_mut()) {
                let (row, column) = Tile::sum(thread, number);
                let products = left[row as usize].iter().zip(&right);
                let total: f64 = products.map(|(l, r)| f64::from(*l) * f64::from(r[column as usize])).sum();
                sums[at] = ((f64::from(float(sums[at])) + total) as f32).to_bits();
            }
        }
    }
}

/// What the thread has whose number differs in a bit; the verifier saw to it that there is one.
pub(super) fn exchange(to: &mut [u32], a: &[u32], bit: u32) {
    for (thread, to) in to.iter_mut().enumerate() {
        *to = a[thread ^ bit as usize];
    }
}

pub(super) fn select(to: &mut [u32], operands: [&[u32]; 3], active: &[u16]) {
    map3(to, operands, active, |condition, a, b| if condition != 0 { a } else { b });
}

pub(super) fn unary(op: Unary, ty: Ty, to: &mut [u32], a: &[u32], active: &[u16]) {
    match (op, ty) {
        // By its bits, so that the sign of a NaN changes too.
        (Unary::Neg, Ty::F32) => map(to, a, active, |a| a ^ 0x8000_0000),
        (Unary::Neg, _) => map(to, a, active, u32::wrapping_neg),
        (Unary::Not, _) => map(to, a, active, |a| !a),
        (Unary::Abs, _) => map(to, a, active, |a| a & 0x7fff_ffff),
        (Unary::Sqrt, _) => map(to, a, active, |a| float(a).sqrt().to_bits()),
        (Unary::Floor, _) => map(to, a, active, |a| float(a).floor().to_bits()),
        (Unary::Round, _) => map(to, a, active, |a| float(a).round_ties_even().to_bits()),
        (Unary::Trunc, _) => map(to, a, active, |a| float(a).trunc().to_bits()),
        (Unary::Exp2, _) => map(to, a, active, |a| float(a).exp2().to_bits()),
        (Unary::Tanh, _) => map(to, a, active, |a| float(a).tanh().to_bits()),
        (Unary::Recip, _) => map(to, a, active, |a| (1.0 / float(a)).to_bits()),
    }
}

/// The number as another type; `as` truncates, saturates, and gives 0 for NaN.
pub(super) fn convert(from: Ty, into: Ty, to: &mut [u32], a: &[u32], active: &[u16]) {
    match (from, into) {
        (Ty::F32, Ty::U32) => map(to, a, active, |a| float(a) as u32),
        (Ty::F32, Ty::I32) => map(to, a, active, |a| float(a) as i32 as u32),
        (Ty::U32 | Ty::Bool, Ty::F32) => map(to, a, active, |a| (a as f32).to_bits()),
        (Ty::I32, Ty::F32) => map(to, a, active, |a| (a as i32 as f32).to_bits()),
        // Between integers, and from a truth value to one, the bits stay.
        _ => map(to, a, active, |a| a),
    }
}

/// What is wrong with a divisor.
fn divisor(b: u32) -> Option<Wrong> {
    (b == 0).then_some(Wrong::DividedByZero)
}

/// What is wrong with a number of bits to shift by.
fn distance(b: u32) -> Option<Wrong> {
    (b >= 32).then_some(Wrong::Shift { by: b })
}

/// An operation that is wrong for some second operands.
fn checked(
    to: &mut [u32],
    a: &[u32],
    b: &[u32],
    active: &[u16],
    wrong: impl Fn(u32) -> Option<Wrong>,
    f: impl Fn(u32, u32) -> u32,
) -> Result<(), Halt> {
    each(active, to.len(), |thread| {
        let at = usize::from(thread);
        if let Some(wrong) = wrong(b[at]) {
            return Err(Halt { thread: thread.into(), wrong });
        }
        to[at] = f(a[at], b[at]);
        Ok(())
    })
}

pub(super) fn binary(op: Binary, ty: Ty, to: &mut [u32], a: &[u32], b: &[u32], active: &[u16]) -> Result<(), Halt> {
    match (ty, op) {
        (_, Binary::And) => map2(to, a, b, active, |a, b| a & b),
        (_, Binary::Or) => map2(to, a, b, active, |a, b| a | b),
        (_, Binary::Xor) => map2(to, a, b, active, |a, b| a ^ b),
        (_, Binary::Shl) => return checked(to, a, b, active, distance, |a, b| a << b),
        (Ty::I32, Binary::Shr) => return checked(to, a, b, active, distance, |a, b| (a as i32 >> b) as u32),
        (_, Binary::Shr) => return checked(to, a, b, active, distance, |a, b| a >> b),
        (_, Binary::Rem) => return checked(to, a, b, active, divisor, |a, b| a % b),
        (Ty::F32, _) => floats(op, to, a, b, active),
        (_, Binary::Add) => map2(to, a, b, active, u32::wrapping_add),
        (_, Binary::Sub) => map2(to, a, b, active, u32::wrapping_sub),
        (_, Binary::Mul) => map2(to, a, b, active, u32::wrapping_mul),
        (_, Binary::Eq) => map2(to, a, b, active, |a, b| (a == b).into()),
        (_, Binary::Ne) => map2(to, a, b, active, |a, b| (a != b).into()),
        (Ty::I32, Binary::Div) => {
            return checked(to, a, b, active, divisor, |a, b| (a as i32).wrapping_div(b as i32) as u32);
        }
        (_, Binary::Div) => return checked(to, a, b, active, divisor, |a, b| a / b),
        (Ty::I32, Binary::Min) => map2(to, a, b, active, |a, b| (a as i32).min(b as i32) as u32),
        (Ty::I32, Binary::Max) => map2(to, a, b, active, |a, b| (a as i32).max(b as i32) as u32),
        (Ty::I32, Binary::Lt) => map2(to, a, b, active, |a, b| ((a as i32) < b as i32).into()),
        (Ty::I32, Binary::Le) => map2(to, a, b, active, |a, b| (a as i32 <= b as i32).into()),
        (_, Binary::Min) => map2(to, a, b, active, u32::min),
        (_, Binary::Max) => map2(to, a, b, active, u32::max),
        (_, Binary::Lt) => map2(to, a, b, active, |a, b| (a < b).into()),
        (_, Binary::Le) => map2(to, a, b, active, |a, b| (a <= b).into()),
    }
    Ok(())
}

fn floats(op: Binary, to: &mut [u32], a: &[u32], b: &[u32], active: &[u16]) {
    match op {
        Binary::Add => map2(to, a, b, active, |a, b| (float(a) + float(b)).to_bits()),
        Binary::Sub => map2(to, a, b, active, |a, b| (float(a) - float(b)).to_bits()),
        Binary::Mul => map2(to, a, b, active, |a, b| (float(a) * float(b)).to_bits()),
        Binary::Div => map2(to, a, b, active, |a, b| (float(a) / float(b)).to_bits()),
        Binary::Min => map2(to, a, b, active, |a, b| float(a).min(float(b)).to_bits()),
        Binary::Max => map2(to, a, b, active, |a, b| float(a).max(float(b)).to_bits()),
        Binary::Eq => map2(to, a, b, active, |a, b| (float(a) == float(b)).into()),
        Binary::Ne => map2(to, a, b, active, |a, b| (float(a) != float(b)).into()),
        Binary::Lt => map2(to, a, b, active, |a, b| (float(a) < float(b)).into()),
        Binary::Le => map2(to, a, b, active, |a, b| (float(a) <= float(b)).into()),
        // The verifier refuses these for floats.
        Binary::Rem | Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => (),
    }
}
