//! Functions that the caller brings, applied element by element or to whole values: for operations without a kernel. They
//! are slow, and plans say so.

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

/// Takes the result of a number, and the element's number in it, and the element.
pub type Put<'a> = dyn FnMut(usize, usize, f32) + 'a;

/// What a function of whole values does: of the bytes of its inputs it makes elements of its results, and hands each over. An
/// error is a sentence.
pub type WholeBody = dyn Fn(&[&[u8]], &mut Put<'_>) -> Result<(), String> + Send + Sync;

/// A function of whole values.
#[derive(Clone)]
pub struct Whole(pub Arc<WholeBody>);

impl fmt::Debug for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Whole")
    }
}

/// Runs a function of whole values. What it hands over beyond the end of a result is left out.
///
/// # Safety
/// Each input must be readable for its bytes, and each output writable for its floats. No output overlaps an input or another
/// output. There are at most [`MAX_INPUTS`] inputs.
pub(crate) unsafe fn whole(
    function: &Whole,
    inputs: &[(*const u8, usize)],
    outs: &[(*mut f32, usize)],
) -> Result<(), String> {
    let mut slices: [&[u8]; MAX_INPUTS] = [&[]; MAX_INPUTS];
    for (slice, (ptr, bytes)) in slices.iter_mut().zip(inputs) {
        if *bytes > 0 {
            // SAFETY: the caller's promise; nothing writes to it meanwhile.
            *slice = unsafe { std::slice::from_raw_parts(*ptr, *bytes) };
        }
    }
    let mut put = |out: usize, number: usize, value: f32| {
        if let Some((ptr, _)) = outs.get(out).filter(|(_, len)| number < *len) {
            // SAFETY: the number is below the output's length.
            unsafe { ptr.add(number).write_unaligned(value) };
        }
    };
    (function.0)(&slices[..inputs.len().min(MAX_INPUTS)], &mut put)
}

/// The most outputs of a function of whole values.
pub const MAX_OUTPUTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_whole_values_sees_bytes_and_writes_within_its_results() {
        let (bytes, mut out, mut other) = ([1u8, 2, 3], [0.0f32; 2], [5.0f32; 1]);
        let last = Whole(Arc::new(|inputs, put| {
            put(0, 1, inputs[0][2].into());
            put(0, 2, 7.0);
            put(2, 0, 7.0);
            if inputs[1].is_empty() { Err("nothing there".into()) } else { Ok(()) }
        }));
        let inputs = [(bytes.as_ptr(), 3), (std::ptr::null(), 0)];
        // SAFETY: three bytes can be read, and two floats and one be written.
        let result = unsafe { whole(&last, &inputs, &[(out.as_mut_ptr(), 2), (other.as_mut_ptr(), 1)]) };
        assert_eq!(result.unwrap_err(), "nothing there");
        assert_eq!((out, other), ([0.0, 3.0], [5.0]));
    }

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
