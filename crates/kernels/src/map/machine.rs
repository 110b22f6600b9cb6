//! The block machine: runs a program's steps over one block of eight registers at a time.
//!
//! The accumulator is an array of eight lane registers with constant indices only, so the compiler keeps it in machine
//! registers across the loop over steps. A step is one well predicted jump and eight vector instructions, whose other
//! operand comes from memory: an input in place, a slot in L1, or a constant (step 0 reads the same vector eight
//! times). So a chain of operations touches memory only for what it really reads and writes, and a block is small
//! enough (128 floats with AVX-512) that all slots of a large program stay in L1 and that loads from beyond L1 overlap
//! with arithmetic.

use super::functions::unary_functions;
use super::program::{Op, Step};
use crate::Simd;
use crate::math::{self, is_zero, truth};

/// Registers in a block. The end of a domain is done by blocks of 4, 2 and 1.
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

/// Lane by lane, through memory. Out of line, so that these calls do not make the other steps spill registers.
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

/// With the first memory operand as `$y`.
macro_rules! two {
    ($s:ident, $a:ident, $y:ident, $v:ident => $e:expr) => {{
        let $y = load::<S, W>($s, $a);
        each!($s, $v => $e)
    }};
}

/// With both memory operands.
macro_rules! three {
    ($s:ident, $a:ident, $b:ident, $y:ident, $z:ident, $v:ident => $e:expr) => {{
        let $y = load::<S, W>($s, $a);
        let $z = load::<S, W>($s, *$b);
        each!($s, $v => $e)
    }};
}

macro_rules! machine {
    (lanes { $($(#[doc = $d:literal])? $lanes:ident = $function:ident, $c:literal;)* }
     singly { $($(#[doc = $e:literal])? $single:ident = $method:ident, $k:literal;)* }) => {
        /// Runs every step once, on the blocks of `W` registers that `places` names.
        ///
        /// # Safety
        /// Every operand of a step must be a valid index of `places`, whose entry is readable (writable where a step writes)
        /// for a block; with `stream`, outputs must be aligned to a register.
        #[inline(always)]
        pub(super) unsafe fn block<S: Simd, const W: usize>(s: S, steps: &[Step], places: *const Place, stream: bool) {
            let mut acc: Acc<S> = [s.splat(0.0); WIDTH];
            for step in steps {
                // SAFETY: the caller promises every operand index and the memory behind it.
                unsafe {
                    let a = *places.add(step.a as usize);
                    let b = places.add(step.b as usize);
                    // x is the accumulator, y the first memory operand and z the second.
                    let x = acc;
                    match step.op {
                        Op::Load => acc = load::<S, W>(s, a),
                        Op::Save => store::<S, W>(s, a, x),
                        Op::Output if stream => {
                            for (v, &x) in x[..W].iter().enumerate() {
                                s.stream(a.at.add(v * S::LANES), x);
                            }
                        }
                        Op::Output => store::<S, W>(s, a, x),
                        $(Op::$lanes => acc = each!(s, v => math::$function(s, x[v])),)*
                        $(Op::$single => acc = scalar::<S, W>(s, x, x, |x, _| x.$method()),)*
                        Op::Add => acc = two!(s, a, y, v => s.add(x[v], y[v])),
                        Op::Sub => acc = two!(s, a, y, v => s.sub(x[v], y[v])),
                        Op::Mul => acc = two!(s, a, y, v => s.mul(x[v], y[v])),
                        Op::Div => acc = two!(s, a, y, v => s.div(x[v], y[v])),
                        Op::Min => acc = two!(s, a, y, v => math::min(s, x[v], y[v])),
                        Op::Max => acc = two!(s, a, y, v => math::max(s, x[v], y[v])),
                        Op::Eq => acc = two!(s, a, y, v => truth(s, s.eq(x[v], y[v]))),
                        Op::Ne => acc = two!(s, a, y, v => truth(s, s.mask_not(s.eq(x[v], y[v])))),
                        Op::Lt => acc = two!(s, a, y, v => truth(s, s.lt(x[v], y[v]))),
                        Op::Le => acc = two!(s, a, y, v => truth(s, s.le(x[v], y[v]))),
                        Op::Gt => acc = two!(s, a, y, v => truth(s, s.lt(y[v], x[v]))),
                        Op::Ge => acc = two!(s, a, y, v => truth(s, s.le(y[v], x[v]))),
                        Op::And => acc = two!(s, a, y, v => truth(s, s.mask_not(s.mask_or(is_zero(s, x[v]), is_zero(s, y[v]))))),
                        Op::Or => acc = two!(s, a, y, v => truth(s, s.mask_not(s.mask_and(is_zero(s, x[v]), is_zero(s, y[v]))))),
                        Op::SubFrom => acc = two!(s, a, y, v => s.sub(y[v], x[v])),
                        Op::DivInto => acc = two!(s, a, y, v => s.div(y[v], x[v])),
                        Op::Pow => acc = scalar::<S, W>(s, x, load::<S, W>(s, a), f32::powf),
                        Op::PowOf => acc = scalar::<S, W>(s, load::<S, W>(s, a), x, f32::powf),
                        Op::ProductAdd => acc = three!(s, a, b, y, z, v => s.mul_add(x[v], y[v], z[v])),
                        Op::ProductSub => acc = three!(s, a, b, y, z, v => mul_sub(s, x[v], y[v], z[v])),
                        Op::ProductFrom => acc = three!(s, a, b, y, z, v => s.neg_mul_add(x[v], y[v], z[v])),
                        Op::AccumulateAdd => acc = three!(s, a, b, y, z, v => s.mul_add(y[v], z[v], x[v])),
                        Op::AccumulateSub => acc = three!(s, a, b, y, z, v => mul_sub(s, y[v], z[v], x[v])),
                        Op::AccumulateFrom => acc = three!(s, a, b, y, z, v => s.neg_mul_add(y[v], z[v], x[v])),
                        Op::SelectBy => acc = three!(s, a, b, y, z, v => choose(s, x[v], y[v], z[v])),
                        Op::SelectThen => acc = three!(s, a, b, y, z, v => choose(s, y[v], x[v], z[v])),
                        Op::Gate => acc = three!(s, a, b, y, z, v => math::gate(s, x[v], y[v], z[v])),
                        Op::SelectElse => acc = three!(s, a, b, y, z, v => choose(s, y[v], z[v], x[v])),
                    }
                }
            }
        }
    };
}
unary_functions!(machine);
