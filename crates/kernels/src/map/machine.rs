//! The block machine: runs a program's steps over one block of eight registers at a time.
//!
//! The accumulator is an array of eight lane registers with constant indices only, so the compiler keeps it in machine
//! registers across the loop over steps. A step is one well predicted jump and eight vector instructions, whose other
//! operand comes from memory: an input in place, a slot in L1, or a constant (step 0 reads the same vector eight
//! times). So a chain of operations touches memory only for what it really reads and writes, and a block is small
//! enough (128 floats with AVX-512) that all slots of a large program stay in L1 and that loads from beyond L1 overlap
//! with arithmetic.

use super::program::{Op, Step};
use crate::{Simd, math};

/// Registers in a block. What is left of a domain is done by blocks of 4, 2 and 1.
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

/// The same expression for each of the first `W` registers, written out: the accumulator must not be indexed by a
/// variable, and a closure might not inline into code compiled for another instruction set. On the portable path, where
/// registers are arrays, neither matters, and a loop compiles faster.
macro_rules! each {
    ($s:ident, $v:ident => $e:expr) => {
        if S::FUSED {
            [
                each!(@ $s $v 0 $e), each!(@ $s $v 1 $e), each!(@ $s $v 2 $e), each!(@ $s $v 3 $e),
                each!(@ $s $v 4 $e), each!(@ $s $v 5 $e), each!(@ $s $v 6 $e), each!(@ $s $v 7 $e),
            ]
        } else {
            std::array::from_fn(|$v| if $v < W { $e } else { $s.splat(0.0) })
        }
    };
    (@ $s:ident $v:ident $n:literal $e:expr) => {
        if $n < W {
            let $v: usize = $n;
            $e
        } else {
            $s.splat(0.0)
        }
    };
}

/// # Safety
/// The place must be readable for a block.
#[inline(always)]
unsafe fn load<S: Simd, const W: usize>(s: S, place: Place) -> Acc<S> {
    // SAFETY: the caller's promise.
    unsafe { each!(s, v => s.load(place.at.add(v * place.step))) }
}

/// # Safety
/// The place must be writable for a block.
#[inline(always)]
unsafe fn store<S: Simd, const W: usize>(s: S, place: Place, acc: Acc<S>) {
    for (v, &x) in acc[..W].iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { s.store(place.at.add(v * place.step), x) }
    }
}

/// Lane by lane, through memory, out of line so that the calls do not disturb the other steps.
#[inline(never)]
fn lanewise(block: &mut [f32], other: &[f32], f: fn(f32, f32) -> f32) {
    block.iter_mut().zip(other).for_each(|(x, &y)| *x = f(*x, y));
}

#[inline(always)]
fn scalar<S: Simd, const W: usize>(s: S, a: Acc<S>, b: Acc<S>, f: fn(f32, f32) -> f32) -> Acc<S> {
    let mut x = [0.0f32; MAX_BLOCK];
    let mut y = [0.0f32; MAX_BLOCK];
    // SAFETY: eight registers of at most 16 lanes fit the arrays.
    unsafe {
        store::<S, W>(s, Place { at: x.as_mut_ptr(), step: S::LANES }, a);
        store::<S, W>(s, Place { at: y.as_mut_ptr(), step: S::LANES }, b);
    }
    lanewise(&mut x[..W * S::LANES], &y, f);
    // SAFETY: as above.
    unsafe { load::<S, W>(s, Place { at: x.as_mut_ptr(), step: S::LANES }) }
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

/// a · b − c
#[inline(always)]
fn mul_sub<S: Simd>(s: S, a: S::F, b: S::F, c: S::F) -> S::F {
    s.mul_add(a, b, s.neg(c))
}

/// Where `c` is not 0, `a`, else `b`.
#[inline(always)]
fn choose<S: Simd>(s: S, c: S::F, a: S::F, b: S::F) -> S::F {
    s.select(is_zero(s, c), b, a)
}

/// Runs every step once, on the blocks of `W` registers that `places` names.
///
/// # Safety
/// Every operand of a step must be a valid index of `places`, whose entry is readable (writable where a step writes)
/// for a block; with `stream`, outputs must be aligned to a register.
#[inline(always)]
pub(super) unsafe fn block<S: Simd, const W: usize>(s: S, steps: &[Step], places: *const Place, stream: bool) {
    let mut acc: Acc<S> = [s.splat(0.0); WIDTH];
    for step in steps {
        // SAFETY: the caller vouches for every operand index and for the memory behind it.
        unsafe {
            let a = *places.add(step.a as usize);
            // x is the accumulator, y the first memory operand and z the second.
            let x = acc;
            macro_rules! two {
                ($y:ident, $v:ident => $e:expr) => {{
                    let $y = load::<S, W>(s, a);
                    each!(s, $v => $e)
                }};
            }
            macro_rules! three {
                ($y:ident, $z:ident, $v:ident => $e:expr) => {{
                    let $y = load::<S, W>(s, a);
                    let $z = load::<S, W>(s, *places.add(step.b as usize));
                    each!(s, $v => $e)
                }};
            }
            match step.op {
                Op::Load => acc = load::<S, W>(s, a),
                Op::Save => store::<S, W>(s, a, x),
                Op::Output if stream => {
                    for (v, &x) in x[..W].iter().enumerate() {
                        s.stream(a.at.add(v * S::LANES), x);
                    }
                }
                Op::Output => store::<S, W>(s, a, x),
                Op::Neg => acc = each!(s, v => s.neg(x[v])),
                Op::Abs => acc = each!(s, v => s.abs(x[v])),
                Op::Sign => acc = each!(s, v => math::sign(s, x[v])),
                Op::Sqrt => acc = each!(s, v => s.sqrt(x[v])),
                Op::Recip => acc = each!(s, v => math::recip(s, x[v])),
                Op::Square => acc = each!(s, v => math::square(s, x[v])),
                Op::Exp => acc = each!(s, v => math::exp(s, x[v])),
                Op::Log => acc = each!(s, v => math::log(s, x[v])),
                Op::Tanh => acc = each!(s, v => math::tanh(s, x[v])),
                Op::Sigmoid => acc = each!(s, v => math::sigmoid(s, x[v])),
                Op::Softplus => acc = each!(s, v => math::softplus(s, x[v])),
                Op::Relu => acc = each!(s, v => math::relu(s, x[v])),
                Op::Silu => acc = each!(s, v => math::silu(s, x[v])),
                Op::Gelu => acc = each!(s, v => math::gelu(s, x[v])),
                Op::Erf => acc = each!(s, v => math::erf(s, x[v])),
                Op::Floor => acc = each!(s, v => s.floor(x[v])),
                Op::Round => acc = each!(s, v => s.round(x[v])),
                Op::Not => acc = each!(s, v => truth(s, s.eq(x[v], s.splat(0.0)))),
                Op::Sin => acc = scalar::<S, W>(s, x, x, |x, _| x.sin()),
                Op::Cos => acc = scalar::<S, W>(s, x, x, |x, _| x.cos()),
                Op::Add => acc = two!(y, v => s.add(x[v], y[v])),
                Op::Sub => acc = two!(y, v => s.sub(x[v], y[v])),
                Op::Mul => acc = two!(y, v => s.mul(x[v], y[v])),
                Op::Div => acc = two!(y, v => s.div(x[v], y[v])),
                Op::Min => acc = two!(y, v => math::min(s, x[v], y[v])),
                Op::Max => acc = two!(y, v => math::max(s, x[v], y[v])),
                Op::Eq => acc = two!(y, v => truth(s, s.eq(x[v], y[v]))),
                Op::Ne => acc = two!(y, v => truth(s, s.mask_not(s.eq(x[v], y[v])))),
                Op::Lt => acc = two!(y, v => truth(s, s.lt(x[v], y[v]))),
                Op::Le => acc = two!(y, v => truth(s, s.le(x[v], y[v]))),
                Op::Gt => acc = two!(y, v => truth(s, s.lt(y[v], x[v]))),
                Op::Ge => acc = two!(y, v => truth(s, s.le(y[v], x[v]))),
                Op::And => acc = two!(y, v => truth(s, s.mask_not(s.mask_or(is_zero(s, x[v]), is_zero(s, y[v]))))),
                Op::Or => acc = two!(y, v => truth(s, s.mask_not(s.mask_and(is_zero(s, x[v]), is_zero(s, y[v]))))),
                Op::SubFrom => acc = two!(y, v => s.sub(y[v], x[v])),
                Op::DivInto => acc = two!(y, v => s.div(y[v], x[v])),
                Op::Pow => acc = scalar::<S, W>(s, x, load::<S, W>(s, a), f32::powf),
                Op::PowOf => acc = scalar::<S, W>(s, load::<S, W>(s, a), x, f32::powf),
                Op::ProductAdd => acc = three!(y, z, v => s.mul_add(x[v], y[v], z[v])),
                Op::ProductSub => acc = three!(y, z, v => mul_sub(s, x[v], y[v], z[v])),
                Op::ProductFrom => acc = three!(y, z, v => s.neg_mul_add(x[v], y[v], z[v])),
                Op::AccumulateAdd => acc = three!(y, z, v => s.mul_add(y[v], z[v], x[v])),
                Op::AccumulateSub => acc = three!(y, z, v => mul_sub(s, y[v], z[v], x[v])),
                Op::AccumulateFrom => acc = three!(y, z, v => s.neg_mul_add(y[v], z[v], x[v])),
                Op::SelectBy => acc = three!(y, z, v => choose(s, x[v], y[v], z[v])),
                Op::SelectThen => acc = three!(y, z, v => choose(s, y[v], x[v], z[v])),
                Op::Gate => acc = three!(y, z, v => math::gate(s, x[v], y[v], z[v])),
                Op::SelectElse => acc = three!(y, z, v => choose(s, y[v], z[v], x[v])),
            }
        }
    }
}
