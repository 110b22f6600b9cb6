//! Element types that files have and this crate lacks, and how their values are converted.
//!
//! A conversion never loses a number silently: integers must fit, floats may only round (to the nearest, and a finite
//! one must stay finite), an integer becomes a float only where the float is exactly it, and a float never becomes an
//! integer: how to round is up to the author of the file.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Bytes, Tensor};
use half::{bf16, f16};

/// An element type in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One that a tensor can have.
    Ours(DType),
    /// IEEE double precision.
    F64,
    /// Signed 16 bits.
    I16,
    /// Unsigned 16 bits.
    U16,
    /// Unsigned 32 bits.
    U32,
    /// Signed 64 bits.
    I64,
    /// Unsigned 64 bits.
    U64,
    /// One that is only known by name and size in bits.
    Other(&'static str, usize),
}

impl Kind {
    /// Bits of one element in the file.
    pub fn bits(self) -> usize {
        match self {
            Kind::Ours(dtype) => dtype.bits(),
            Kind::I16 | Kind::U16 => 16,
            Kind::U32 => 32,
            Kind::F64 | Kind::I64 | Kind::U64 => 64,
            Kind::Other(_, bits) => bits,
        }
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ours(dtype) => dtype.name(),
            Kind::F64 => "f64",
            Kind::I16 => "i16",
            Kind::U16 => "u16",
            Kind::U32 => "u32",
            Kind::I64 => "i64",
            Kind::U64 => "u64",
            Kind::Other(name, _) => name,
        }
    }

    /// Our type, if it is one.
    pub fn dtype(self) -> Option<DType> {
        if let Kind::Ours(dtype) = self { Some(dtype) } else { None }
    }

    /// Bytes that `count` elements take in the file; elements of packed types must fill whole bytes.
    pub(super) fn bytes_for(self, count: usize) -> Option<usize> {
        let bits = count.checked_mul(self.bits())?;
        (bits % 8 == 0).then_some(bits / 8)
    }

    /// The type in which its values are best kept here.
    pub fn nearest(self) -> Option<DType> {
        match self {
            Kind::Ours(dtype) => Some(dtype),
            Kind::F64 => Some(DType::F32),
            Kind::I16 | Kind::U16 | Kind::U32 | Kind::I64 | Kind::U64 => Some(DType::I32),
            Kind::Other(..) => None,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A value between two conversions, without loss.
#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Float(f64),
}

fn element<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

/// Little-endian elements of `kind` as a tensor of `dtype`.
pub(super) fn tensor(kind: Kind, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Tensor> {
    if kind == Kind::Ours(dtype) {
        return Tensor::from_bytes(dtype, shape, bytes);
    }
    let no_way = || Error::Tensor {
        expected: format!("a type that converts to {dtype} without loss"),
        got: format!("{kind}; floats convert to floats, integers to integers they fit and to floats that equal them"),
    };
    let size = kind.bits() / 8;
    let read: fn(&[u8]) -> Number = match kind {
        Kind::Ours(DType::F32) => |b| Number::Float(f32::from_le_bytes(element(b)).into()),
        Kind::Ours(DType::F16) => |b| Number::Float(f16::from_le_bytes(element(b)).into()),
        Kind::Ours(DType::Bf16) => |b| Number::Float(bf16::from_le_bytes(element(b)).into()),
        Kind::Ours(DType::I8) => |b| Number::Int(i8::from_le_bytes(element(b)).into()),
        Kind::Ours(DType::U8) => |b| Number::Int(b[0].into()),
        Kind::Ours(DType::I32) => |b| Number::Int(i32::from_le_bytes(element(b)).into()),
        Kind::F64 => |b| Number::Float(f64::from_le_bytes(element(b))),
        Kind::I16 => |b| Number::Int(i16::from_le_bytes(element(b)).into()),
        Kind::U16 => |b| Number::Int(u16::from_le_bytes(element(b)).into()),
        Kind::U32 => |b| Number::Int(u32::from_le_bytes(element(b)).into()),
        Kind::I64 => |b| Number::Int(i64::from_le_bytes(element(b)).into()),
        Kind::U64 => |b| Number::Int(u64::from_le_bytes(element(b)).into()),
        Kind::Ours(DType::Bool) | Kind::Other(..) => return Err(no_way()),
    };
    let write: fn(Number, &mut [u8]) -> bool = match dtype {
        DType::I8 => |n, out| int(n).and_then(|i| i8::try_from(i).ok()).map(|v| out[0] = v as u8).is_some(),
        DType::U8 => |n, out| int(n).and_then(|i| u8::try_from(i).ok()).map(|v| out[0] = v).is_some(),
        DType::I32 => {
            |n, out| int(n).and_then(|i| i32::try_from(i).ok()).map(|v| out.copy_from_slice(&v.to_le_bytes())).is_some()
        }
        DType::F32 => |n, out| float(n, |x| x as f32, f64::from, |v| out.copy_from_slice(&v.to_le_bytes())),
        DType::F16 => |n, out| float(n, f16::from_f64, f64::from, |v| out.copy_from_slice(&v.to_le_bytes())),
        DType::Bf16 => |n, out| float(n, bf16::from_f64, f64::from, |v| out.copy_from_slice(&v.to_le_bytes())),
        DType::Bool => return Err(no_way()),
    };
    let count = bytes.len() / size;
    let size_here = dtype.bytes_for(count).ok_or_else(no_way)?;
    let mut out = Bytes::try_zeroed(size_here, &format!("a tensor {dtype}{shape:?}"))?;
    for (i, (from, to)) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(dtype.size())).enumerate() {
        let number = read(from);
        if !write(number, to) {
            let (value, is_float) = match number {
                Number::Int(i) => (i.to_string(), false),
                Number::Float(x) => (format!("{x:?}"), true),
            };
            if is_float && !dtype.is_float() {
                return Err(no_way());
            }
            return Err(Error::Tensor {
                expected: format!("values that {dtype} can hold"),
                got: format!("{value} ({kind}) at element {i}"),
            });
        }
    }
    Tensor::from_buffer(dtype, shape, out)
}

fn int(number: Number) -> Option<i128> {
    if let Number::Int(i) = number { Some(i) } else { None }
}

/// Narrows to a float type `T`, and checks the conditions in the module's header.
fn float<T: Copy>(number: Number, narrow: fn(f64) -> T, widen: fn(T) -> f64, put: impl FnOnce(T)) -> bool {
    let (wide, exact) = match number {
        Number::Float(x) => (x, None),
        Number::Int(i) => (i as f64, Some(i)),
    };
    let value = narrow(wide);
    let back = widen(value);
    let fits = match exact {
        None => back.is_finite() || !wide.is_finite(),
        // Both sides as integers: `i as f64` may itself have rounded.
        Some(i) => back.is_finite() && back as i128 == i,
    };
    if fits {
        put(value);
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize, T: Copy>(values: &[T], f: fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&v| f(v)).collect()
    }

    #[test]
    fn doubles_round_and_stay_finite() {
        let data = bytes(&[0.1f64, -0.0, f64::INFINITY, 1e300], f64::to_le_bytes);
        let t = tensor(Kind::F64, DType::F32, &[3], &data[..24]).unwrap();
        assert_eq!(t.values::<f32>().unwrap(), [0.1f32, -0.0, f32::INFINITY]);
        let error = tensor(Kind::F64, DType::F32, &[4], &data).unwrap_err().to_string();
        assert!(error.contains("1e300 (f64) at element 3"), "{error}");
        let error = tensor(Kind::F64, DType::I32, &[3], &data[..24]).unwrap_err().to_string();
        assert!(error.contains("floats convert to floats"), "{error}");
    }

    #[test]
    fn integers_must_fit() {
        let data = bytes(&[1i64, -7, i64::from(i32::MAX), 1 << 40], i64::to_le_bytes);
        let t = tensor(Kind::I64, DType::I32, &[3], &data[..24]).unwrap();
        assert_eq!(t.values::<i32>().unwrap(), [1, -7, i32::MAX]);
        let error = tensor(Kind::I64, DType::I32, &[4], &data).unwrap_err().to_string();
        assert!(error.contains("1099511627776 (i64) at element 3"), "{error}");
        assert!(tensor(Kind::I64, DType::F32, &[3], &data[..24]).is_err(), "i32::MAX is no f32");
        assert_eq!(tensor(Kind::I64, DType::F32, &[2], &data[..16]).unwrap().values::<f32>().unwrap(), [1.0, -7.0]);
        let huge = bytes(&[u64::MAX], u64::to_le_bytes);
        assert!(tensor(Kind::U64, DType::F32, &[1], &huge).is_err());
        assert!(tensor(Kind::U64, DType::I32, &[1], &huge).is_err());
        assert_eq!(tensor(Kind::U16, DType::I32, &[1], &[255, 255]).unwrap().values::<i32>().unwrap(), [65535]);
    }
}
