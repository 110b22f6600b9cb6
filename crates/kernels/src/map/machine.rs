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

/// The same expression for each of the eight registers, written out: the accumulator must not be indexed by a variable,
/// and a closure might not inline into code compiled for another instruction set. Where lanes are arrays, none of this
/// helps, and a loop compiles faster.
macro_rules! each {
    ($v:ident => $e:expr) => {
        if S::FUSED {
            [
                each!(@ $v 0 $e), each!(@ $v 1 $e), each!(@ $v 2 $e), each!(@ $v 3 $e),
                each!(@ $v 4 $e), each!(@ $v 5 $e), each!(@ $v 6 $e), each!(@ $v 7 $e),
            ]
        } else {
            std::array::from_fn(|$v| $e)
        }
    };
    (@ $v:ident $n:literal $e:expr) => {{
        let $v: usize = $n;
        $e
    }};
}

/// # Safety
/// The place must be readable for a block.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, place: Place) -> Acc<S> {
    // SAFETY: the caller's promise.
    unsafe { each!(v => s.load(place.at.add(v * place.step))) }
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
        Unary::Neg => each!(v => s.neg(x[v])),
        Unary::Abs => each!(v => s.abs(x[v])),
        Unary::Sign => each!(v => math::sign(s, x[v])),
        Unary::Sqrt => each!(v => s.sqrt(x[v])),
        Unary::Recip => each!(v => math::recip(s, x[v])),
        Unary::Square => each!(v => math::square(s, x[v])),
        Unary::Exp => each!(v => math::exp(s, x[v])),
        Unary::Log => each!(v => math::log(s, x[v])),
        Unary::Tanh => each!(v => math::tanh(s, x[v])),
        Unary::Sigmoid => each!(v => math::sigmoid(s, x[v])),
        Unary::Softplus => each!(v => math::softplus(s, x[v])),
        Unary::Relu => each!(v => math::relu(s, x[v])),
        Unary::Silu => each!(v => math::silu(s, x[v])),
        Unary::Gelu => each!(v => math::gelu(s, x[v])),
        Unary::Erf => each!(v => math::erf(s, x[v])),
        Unary::Floor => each!(v => s.floor(x[v])),
        Unary::Round => each!(v => s.round(x[v])),
        Unary::Not => each!(v => truth(s, s.eq(x[v], s.splat(0.0)))),
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
        Binary::Add => each!(v => s.add(x[v], y[v])),
        Binary::Sub => each!(v => s.sub(x[v], y[v])),
        Binary::Mul => each!(v => s.mul(x[v], y[v])),
        Binary::Div => each!(v => s.div(x[v], y[v])),
        Binary::Min => each!(v => math::min(s, x[v], y[v])),
        Binary::Max => each!(v => math::max(s, x[v], y[v])),
        Binary::Pow => scalar(s, x, y, f32::powf),
        Binary::Eq => each!(v => truth(s, s.eq(x[v], y[v]))),
        Binary::Ne => each!(v => truth(s, s.mask_not(s.eq(x[v], y[v])))),
        Binary::Lt => each!(v => truth(s, s.lt(x[v], y[v]))),
        Binary::Le => each!(v => truth(s, s.le(x[v], y[v]))),
        Binary::Gt => each!(v => truth(s, s.lt(y[v], x[v]))),
        Binary::Ge => each!(v => truth(s, s.le(y[v], x[v]))),
        Binary::And => {
            each!(v => truth(s, s.mask_not(s.mask_or(is_zero(s, x[v]), is_zero(s, y[v])))))
        }
        Binary::Or => {
            each!(v => truth(s, s.mask_not(s.mask_and(is_zero(s, x[v]), is_zero(s, y[v])))))
        }
    }
}

#[inline(always)]
fn fused<S: Simd>(s: S, f: Fused, a: Acc<S>, b: Acc<S>, c: Acc<S>) -> Acc<S> {
    match f {
        Fused::Add => each!(v => s.mul_add(a[v], b[v], c[v])),
        Fused::Sub => each!(v => s.mul_add(a[v], b[v], s.neg(c[v]))),
        Fused::From => each!(v => s.neg_mul_add(a[v], b[v], c[v])),
    }
}

/// Where `c` is not 0, `a`, else `b`.
#[inline(always)]
fn choose<S: Simd>(s: S, c: Acc<S>, a: Acc<S>, b: Acc<S>) -> Acc<S> {
    each!(v => s.select(is_zero(s, c[v]), b[v], a[v]))
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
