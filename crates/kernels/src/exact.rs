//! Integer arithmetic, exact and wrapping: what does not fit the `f32` registers of [`crate::map`].
//!
//! Integers index and count here; they are never the hot part of a network. So this is one plain loop over up to six
//! strided axes, through `i64`, without threads.

use crate::map::Elem;

/// An elementwise operation on integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the operation its name says")]
pub enum IntOp {
    Neg,
    Abs,
    Sign,
    Square,
    Relu,
    Add,
    Sub,
    Mul,
    /// Toward zero; 0 where the divisor is 0.
    Div,
    Min,
    Max,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// The second where the first is not 0, else the third.
    Select,
    /// Another integer type: the low bits.
    Cast,
}

impl IntOp {
    /// How many operands it takes.
    pub fn operands(self) -> usize {
        match self {
            IntOp::Neg | IntOp::Abs | IntOp::Sign | IntOp::Square | IntOp::Relu | IntOp::Cast => 1,
            IntOp::Select => 3,
            _ => 2,
        }
    }

    fn eval(self, [a, b, c]: [i64; 3]) -> i64 {
        match self {
            // Operands have 32 bits, so results have at most 33 bits, and a product at most 64: nothing overflows here.
            IntOp::Neg => -a,
            IntOp::Abs => a.abs(),
            IntOp::Sign => a.signum(),
            IntOp::Square => a * a,
            IntOp::Relu => a.max(0),
            IntOp::Add => a + b,
            IntOp::Sub => a - b,
            IntOp::Mul => a * b,
            IntOp::Div => a.checked_div(b).unwrap_or(0),
            IntOp::Min => a.min(b),
            IntOp::Max => a.max(b),
            IntOp::Eq => i64::from(a == b),
            IntOp::Ne => i64::from(a != b),
            IntOp::Lt => i64::from(a < b),
            IntOp::Le => i64::from(a <= b),
            IntOp::Gt => i64::from(a > b),
            IntOp::Ge => i64::from(a >= b),
            IntOp::Select => {
                if a != 0 {
                    b
                } else {
                    c
                }
            }
            IntOp::Cast => a,
        }
    }
}

/// How values combine in a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the combination its name says")]
pub enum IntReduce {
    Sum,
    Max,
    Min,
}

/// # Safety
/// `p` must be readable for one element; floats are not read here.
unsafe fn load(elem: Elem, p: *const u8) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        match elem {
            Elem::I8 => i64::from(p.cast::<i8>().read()),
            Elem::U8 | Elem::Bool => i64::from(p.read()),
            Elem::I32 => i64::from(p.cast::<i32>().read_unaligned()),
            Elem::F32 | Elem::F16 | Elem::Bf16 => unreachable!("floats go through `map`"),
        }
    }
}

/// # Safety
/// `p` must be writable for one element; floats are not written here.
unsafe fn store(elem: Elem, p: *mut u8, v: i64) {
    // SAFETY: the caller's promise.
    unsafe {
        match elem {
            Elem::I8 | Elem::U8 => p.write(v as u8),
            Elem::Bool => p.write(u8::from(v != 0)),
            Elem::I32 => p.cast::<i32>().write_unaligned(v as i32),
            Elem::F32 | Elem::F16 | Elem::Bf16 => unreachable!("floats go through `map`"),
        }
    }
}

/// Applies an operation to every element of `dims`; strides are in elements, and the output is contiguous.
///
/// # Panics
/// Where an element type is a float.
///
/// # Safety
/// Every element that `dims` and the strides reach must be readable, and `out` writable for the product of `dims`. The
/// output may be an operand exactly (same address, contiguous, same element size), and overlaps none otherwise.
pub(crate) unsafe fn map(
    op: IntOp,
    dims: &[usize; 6],
    operands: &[(*const u8, Elem, [usize; 6])],
    out: (*mut u8, Elem),
) {
    let total: usize = dims.iter().product();
    let mut index = [0usize; 6];
    for i in 0..total {
        let mut values = [0i64; 3];
        for (value, (ptr, elem, strides)) in values.iter_mut().zip(operands) {
            let at: usize = index.iter().zip(strides).map(|(i, s)| i * s).sum();
            // SAFETY: the index lies within `dims`.
            *value = unsafe { load(*elem, ptr.add(at * elem.size())) };
        }
        // SAFETY: `i` is below the product of `dims`.
        unsafe { store(out.1, out.0.add(i * out.1.size()), op.eval(values)) };
        for axis in (0..6).rev() {
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// `dst[o, i]` = the reduction of `src[o, .., i]`, wrapping.
///
/// # Safety
/// `src` must be readable for `outer · len · inner` integers and `dst` writable for `outer · inner`, without overlap.
pub(crate) unsafe fn reduce(op: IntReduce, outer: usize, len: usize, inner: usize, src: *const i32, dst: *mut i32) {
    for o in 0..outer {
        for i in 0..inner {
            // SAFETY: (o, j, i) lies within the shape.
            let values = (0..len).map(|j| unsafe { src.add((o * len + j) * inner + i).read_unaligned() });
            let value = match op {
                IntReduce::Sum => values.fold(0, i32::wrapping_add),
                IntReduce::Max => values.max().unwrap_or(i32::MIN),
                IntReduce::Min => values.min().unwrap_or(i32::MAX),
            };
            // SAFETY: (o, i) lies within the shape.
            unsafe { dst.add(o * inner + i).write_unaligned(value) };
        }
    }
}

/// `dst[o, s, i]` = the wrapping sum of `src[o, j, i]` over the j with `segments[j] = s`. If a segment is out of range,
/// the error is its position, and nothing is written.
///
/// # Safety
/// `src` must be readable for `outer · n · inner` integers, `segments` for `n`, and `dst` writable for
/// `outer · count · inner`, without overlap.
pub(crate) unsafe fn segment_sum(
    (outer, n, inner): (usize, usize, usize),
    segments: *const i32,
    count: usize,
    src: *const i32,
    dst: *mut i32,
) -> Result<(), usize> {
    // SAFETY: j < n.
    let segment = |j: usize| unsafe { segments.add(j).read_unaligned() };
    if let Some(bad) = (0..n).find(|&j| usize::try_from(segment(j)).map_or(true, |s| s >= count)) {
        return Err(bad);
    }
    // SAFETY: every index lies within the shapes, segments having been checked.
    unsafe {
        dst.write_bytes(0, outer * count * inner);
        for o in 0..outer {
            for j in 0..n {
                let to = dst.add((o * count + segment(j) as usize) * inner);
                let from = src.add((o * n + j) * inner);
                for i in 0..inner {
                    to.add(i).write_unaligned(to.add(i).read_unaligned().wrapping_add(from.add(i).read_unaligned()));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_wraps_and_division_by_zero_is_zero() {
        let a = [i32::MAX, 7, -7, i32::MIN];
        let b = [1, 0, 2, -1];
        let mut out = [0i32; 4];
        let dims = [1, 1, 1, 1, 1, 4];
        let strides = [0, 0, 0, 0, 0, 1];
        let mut run = |op| {
            let operands = [(a.as_ptr().cast(), Elem::I32, strides), (b.as_ptr().cast(), Elem::I32, strides)];
            // SAFETY: four elements each.
            unsafe { map(op, &dims, &operands, (out.as_mut_ptr().cast(), Elem::I32)) };
            out
        };
        assert_eq!(run(IntOp::Add), [i32::MIN, 7, -5, i32::MAX]);
        assert_eq!(run(IntOp::Div), [i32::MAX, 0, -3, i32::MIN]);
        assert_eq!(run(IntOp::Mul), [i32::MAX, 0, -14, i32::MIN]);
    }

    #[test]
    fn a_bad_segment_is_named_before_anything_is_written() {
        let (src, mut dst) = ([1, 2, 3], [9, 9]);
        let mut run = |segments: [i32; 3]| {
            // SAFETY: three values, two segments.
            let result = unsafe { segment_sum((1, 3, 1), segments.as_ptr(), 2, src.as_ptr(), dst.as_mut_ptr()) };
            (result, dst)
        };
        assert_eq!(run([0, -1, 0]), (Err(1), [9, 9]));
        assert_eq!(run([1, 0, 1]), (Ok(()), [2, 4]));
    }
}
