//! The block machine: runs a program's steps over one block of eight registers at a time.
//!
//! The accumulator is an array of eight lane registers with constant indices only, so the compiler keeps it in machine
//! registers across the loop over steps. A step is one well predicted jump and eight vector instructions, whose other
//! operand comes from memory: an input in place, a slot in L1, or a constant (step 0 reads the same vector eight
//! times). So a chain of operations touches memory only for what it really reads and writes, and a block is small
//! enough (128 floats with AVX-512) that all slots of a large program stay in L1 and that loads from beyond L1 overlap
//! with arithmetic.

use super::program::{Binary, Fused, Op, Step, Unary};
use crate::{Simd, math};

/// Registers in a block.
pub(super) const WIDTH: usize = 8;
/// The most floats in a block, on any instruction set.
pub(super) const MAX_BLOCK: usize = WIDTH * 16;

/// Where an operand's block lies now: register `v` of it is at `at + v · step` floats.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) at: *mut f32,
    pub(super) step: usize,
}

type Acc<S> = [<S as Simd>::F; WIDTH];

/// The same expression for each of the eight registers, written out: the accumulator must never be indexed by a
/// variable, and a closure might not inline into code compiled for another instruction set.
macro_rules! each {
    ($v:ident => $e:expr) => {
        [
            each!(@ $v 0 $e), each!(@ $v 1 $e), each!(@ $v 2 $e), each!(@ $v 3 $e),
            each!(@ $v 4 $e), each!(@ $v 5 $e), each!(@ $v 6 $e), each!(@ $v 7 $e),
        ]
    };
    (@ $v:ident $n:literal $e:expr) => {{
        const $v: usize = $n;
        $e
    }};
}

/// # Safety
/// The place must be readable for a block.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, place: Place) -> Acc<S> {
    // SAFETY: the caller's promise.
    unsafe { each!(V => s.load(place.at.add(V * place.step))) }
}

/// Lane by lane, through memory, out of line so that the calls do not disturb the other steps.
#[inline(never)]
fn lanewise(block: &mut [f32], other: &[f32], f: fn(f32, f32) -> f32) {
    block.iter_mut().zip(other).for_each(|(x, &y)| *x = f(*x, y));
}

#[inline(always)]
fn scalar<S: Simd>(s: S, a: Acc<S>, b: Acc<S>, f: fn(f32, f32) -> f32) -> Acc<S> {
    let mut x = [0.0f32; MAX_BLOCK];
    let mut y = [0.0f32; MAX_BLOCK];
    for v in 0..WIDTH {
        // SAFETY: eight registers of at most 16 lanes fit the arrays.
        unsafe {
            s.store(x.as_mut_ptr().add(v * S::LANES), a[v]);
            s.store(y.as_mut_ptr().add(v * S::LANES), b[v]);
        }
    }
    lanewise(&mut x[..WIDTH * S::LANES], &y, f);
    // SAFETY: as above.
    unsafe { load(s, Place { at: x.as_mut_ptr(), step: S::LANES }) }
}

#[inline(always)]
fn unary<S: Simd>(s: S, f: Unary, x: Acc<S>) -> Acc<S> {
    match f {
        Unary::Neg => each!(V => s.neg(x[V])),
        Unary::Abs => each!(V => s.abs(x[V])),
        Unary::Sign => each!(V => math::sign(s, x[V])),
        Unary::Sqrt => each!(V => s.sqrt(x[V])),
        Unary::Recip => each!(V => math::recip(s, x[V])),
        Unary::Square => each!(V => math::square(s, x[V])),
        Unary::Exp => each!(V => math::exp(s, x[V])),
        Unary::Log => each!(V => math::log(s, x[V])),
        Unary::Tanh => each!(V => math::tanh(s, x[V])),
        Unary::Sigmoid => each!(V => math::sigmoid(s, x[V])),
        Unary::Softplus => each!(V => math::softplus(s, x[V])),
        Unary::Relu => each!(V => math::relu(s, x[V])),
        Unary::Silu => each!(V => math::silu(s, x[V])),
        Unary::Gelu => each!(V => math::gelu(s, x[V])),
        Unary::Erf => each!(V => math::erf(s, x[V])),
        Unary::Floor => each!(V => s.floor(x[V])),
        Unary::Round => each!(V => s.round(x[V])),
        Unary::Not => each!(V => truth(s, s.eq(x[V], s.splat(0.0)))),
        Unary::Sin => scalar(s, x, x, |x, _| x.sin()),
        Unary::Cos => scalar(s, x, x, |x, _| x.cos()),
    }
}

/// 1 where the mask holds, else 0.
#[inline(always)]
fn truth<S: Simd>(s: S, m: S::M) -> S::F {
    s.select(m, s.splat(1.0), s.splat(0.0))
}

#[inline(always)]
fn is_zero<S: Simd>(s: S, x: S::F) -> S::M {
    s.eq(x, s.splat(0.0))
}

#[inline(always)]
fn binary<S: Simd>(s: S, f: Binary, x: Acc<S>, y: Acc<S>) -> Acc<S> {
    match f {
        Binary::Add => each!(V => s.add(x[V], y[V])),
        Binary::Sub => each!(V => s.sub(x[V], y[V])),
        Binary::Mul => each!(V => s.mul(x[V], y[V])),
        Binary::Div => each!(V => s.div(x[V], y[V])),
        Binary::Min => each!(V => math::min(s, x[V], y[V])),
        Binary::Max => each!(V => math::max(s, x[V], y[V])),
        Binary::Pow => scalar(s, x, y, f32::powf),
        Binary::Eq => each!(V => truth(s, s.eq(x[V], y[V]))),
        Binary::Ne => each!(V => truth(s, s.mask_not(s.eq(x[V], y[V])))),
        Binary::Lt => each!(V => truth(s, s.lt(x[V], y[V]))),
        Binary::Le => each!(V => truth(s, s.le(x[V], y[V]))),
        Binary::Gt => each!(V => truth(s, s.lt(y[V], x[V]))),
        Binary::Ge => each!(V => truth(s, s.le(y[V], x[V]))),
        Binary::And => {
            each!(V => truth(s, s.mask_not(s.mask_or(is_zero(s, x[V]), is_zero(s, y[V])))))
        }
        Binary::Or => {
            each!(V => truth(s, s.mask_not(s.mask_and(is_zero(s, x[V]), is_zero(s, y[V])))))
        }
    }
}

#[inline(always)]
fn fused<S: Simd>(s: S, f: Fused, a: Acc<S>, b: Acc<S>, c: Acc<S>) -> Acc<S> {
    match f {
        Fused::Add => each!(V => s.mul_add(a[V], b[V], c[V])),
        Fused::Sub => each!(V => s.mul_add(a[V], b[V], s.neg(c[V]))),
        Fused::From => each!(V => s.neg_mul_add(a[V], b[V], c[V])),
    }
}

/// Where `c` is not 0, `a`, else `b`.
#[inline(always)]
fn choose<S: Simd>(s: S, c: Acc<S>, a: Acc<S>, b: Acc<S>) -> Acc<S> {
    each!(V => s.select(is_zero(s, c[V]), b[V], a[V]))
}

/// Runs every step once, on the blocks that `places` names.
///
/// # Safety
/// Every operand of a step must be a valid index of `places`, whose entry is readable (writable where a step writes)
/// for a block; with `stream`, outputs must be aligned to a register.
#[inline(always)]
pub(super) unsafe fn block<S: Simd>(s: S, steps: &[Step], places: *const Place, stream: bool) {
    let mut acc: Acc<S> = [s.splat(0.0); WIDTH];
    for step in steps {
        // SAFETY: the caller vouches for every operand index and for the memory behind it.
        unsafe {
            let a = *places.add(step.a as usize);
            match step.op {
                Op::Load => acc = load(s, a),
                Op::Save => {
                    for (v, &x) in acc.iter().enumerate() {
                        s.store(a.at.add(v * S::LANES), x);
                    }
                }
                Op::Output if stream => {
                    for (v, &x) in acc.iter().enumerate() {
                        s.stream(a.at.add(v * S::LANES), x);
                    }
                }
                Op::Output => {
                    for (v, &x) in acc.iter().enumerate() {
                        s.store(a.at.add(v * S::LANES), x);
                    }
                }
                Op::Unary(f) => acc = unary(s, f, acc),
                Op::Binary(f) => acc = binary(s, f, acc, load(s, a)),
                Op::SubFrom => acc = binary(s, Binary::Sub, load(s, a), acc),
                Op::DivInto => acc = binary(s, Binary::Div, load(s, a), acc),
                Op::PowOf => acc = binary(s, Binary::Pow, load(s, a), acc),
                Op::Product(f) => acc = fused(s, f, acc, load(s, a), load(s, *places.add(step.b as usize))),
                Op::Accumulate(f) => acc = fused(s, f, load(s, a), load(s, *places.add(step.b as usize)), acc),
                Op::SelectBy => acc = choose(s, acc, load(s, a), load(s, *places.add(step.b as usize))),
                Op::SelectThen => acc = choose(s, load(s, a), acc, load(s, *places.add(step.b as usize))),
                Op::SelectElse => acc = choose(s, load(s, a), load(s, *places.add(step.b as usize)), acc),
            }
        }
    }
}
