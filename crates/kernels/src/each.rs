//! A function that the caller brings, applied element by element: for operations without a kernel. It is slow, and
//! plans say so.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The most operands of such a function.
pub const MAX_INPUTS: usize = 8;

/// What a function does.
pub type Body = dyn Fn(&[f64]) -> f64 + Send + Sync;

/// A function of some numbers, in `f64`.
#[derive(Clone)]
pub struct Function(pub Arc<Body>);

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Function")
    }
}

/// Applies a function to every element of `dims`; strides are in elements, and the output is contiguous. An error where
/// the function panics.
///
/// # Safety
/// Every element that `dims` and the strides reach must be readable, and `out` writable for the product of `dims`. The
/// output overlaps no operand. There are at most [`MAX_INPUTS`] operands.
pub(crate) unsafe fn each(
    function: &Function,
    dims: &[usize; 6],
    operands: &[(*const f32, [usize; 6])],
    out: *mut f32,
) -> Result<(), String> {
    let total: usize = dims.iter().product();
    let mut index = [0usize; 6];
    for i in 0..total {
        let mut values = [0f64; MAX_INPUTS];
        for (value, (ptr, strides)) in values.iter_mut().zip(operands) {
            let at: usize = index.iter().zip(strides).map(|(i, s)| i * s).sum();
            // SAFETY: the index lies within `dims`.
            *value = unsafe { ptr.add(at).read_unaligned() }.into();
        }
        let values = &values[..operands.len().min(MAX_INPUTS)];
        // The result is written after the call, so that a panic leaves no element half written.
        let result = catch_unwind(AssertUnwindSafe(|| (function.0)(values)))
            .map_err(|_| format!("the function panicked on {values:?}"))?;
        // SAFETY: `i` is below the product of `dims`.
        unsafe { out.add(i).write_unaligned(result as f32) };
        for axis in (0..6).rev() {
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_stretched_and_a_panic_is_an_error() {
        let (rows, columns, mut out) = ([1.0f32, 2.0], [10.0f32, 20.0, 30.0], [0.0f32; 6]);
        let dims = [1, 1, 1, 1, 2, 3];
        let operands = [(rows.as_ptr(), [0, 0, 0, 0, 1, 0]), (columns.as_ptr(), [0, 0, 0, 0, 0, 1])];
        let sum = Function(Arc::new(|x| x[0] + x[1]));
        // SAFETY: the strides reach two rows and three columns, and there is room for six results.
        unsafe { each(&sum, &dims, &operands, out.as_mut_ptr()) }.unwrap();
        assert_eq!(out, [11.0, 21.0, 31.0, 12.0, 22.0, 32.0]);
        let panics = Function(Arc::new(|x| if x[1] > 25.0 { panic!("too large") } else { 0.0 }));
        // SAFETY: as above.
        let error = unsafe { each(&panics, &dims, &operands, out.as_mut_ptr()) }.unwrap_err();
        assert_eq!(error, "the function panicked on [1.0, 30.0]");
    }
}
