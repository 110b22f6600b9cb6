//! What a device does is tried before kernels rely on it.
//!
//! Languages for GPUs promise exchanges of values within a subgroup, but not which threads are in one; kernels here exchange
//! values between threads of neighbouring numbers. And they let devices treat small `f16` as 0.

use crate::device::{Device, Launch};
use half::f16;
use schwann_codegen::lang::{Expr, Kernel, Kind, Maker, Ty};
use schwann_core::Result;
use std::sync::Arc;

const THREADS: u32 = 256;

/// Runs a kernel in which each thread writes a word, made of the thread's number among all threads.
fn words<D: Device>(device: &D, count: u32, word: impl Fn(Expr) -> Expr) -> Result<Vec<u32>> {
    let bytes = 4 * u64::from(count);
    let buffers = [device.buffer("a trial", bytes)?, device.buffer("a trial", 16)?, device.buffer("a trial", 16)?];
    device.zero(&buffers[0], 0, bytes)?;
    let kernel = device.compile(&Arc::new(kernel(word)))?;
    let launch = Launch { kernel, groups: [count / THREADS, 1, 1], args: vec![] };
    let list = device.list([&buffers[0], &buffers[1], &buffers[2]], &[launch], None)?;
    device.wait(device.submit(&list, false)?)?;
    let mut got = vec![0u8; bytes as usize];
    device.read(&buffers[0], &mut [(0, &mut got)])?;
    Ok(got.chunks_exact(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect())
}

fn kernel(word: impl Fn(Expr) -> Expr) -> Kernel {
    let mut m = Maker::new("probe", THREADS);
    let out = m.buffer("arena", true);
    m.buffer("constants", false);
    m.buffer("faults", true);
    let number = m.group(0) * THREADS + m.thread();
    let number = m.name("number", number);
    m.store(out, number.clone(), word(number));
    m.finish()
}

/// How many neighbouring threads exchange values as [`Kind::Exchange`] says: a power of two up to `most`, and 1 if none do.
pub(crate) fn lanes<D: Device>(device: &D, most: u32) -> Result<u32> {
    let mut lanes = 1;
    while 2 * lanes <= most.min(THREADS) {
        let got = words(device, 4 * THREADS, |number| Expr::new(Ty::U32, Kind::Exchange(number, lanes)))?;
        if !got.iter().zip(0u32..).all(|(got, number)| *got == number ^ lanes) {
            break;
        }
        lanes *= 2;
    }
    Ok(lanes)
}

/// Whether [`Kind::FromHalf`] is exact for every `f16`.
pub(crate) fn exact_halves<D: Device>(device: &D) -> Result<bool> {
    let got = words(device, 1 << 16, |number| number.half_to_float().bits(Ty::U32))?;
    let right = |(got, number): (&u32, u16)| {
        let (got, want) = (f32::from_bits(*got), f16::from_bits(number).to_f32());
        got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan()
    };
    Ok(got.iter().zip(0u16..=u16::MAX).all(right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Limits;
    use crate::simulated::Simulated;

    #[test]
    fn a_device_is_found_to_have_what_it_has() {
        let device = Simulated::new(Limits { lanes: 32, ..Limits::default() }, false);
        assert_eq!(lanes(&device, 32).unwrap(), 32);
        assert_eq!(lanes(&device, 8).unwrap(), 8);
        assert_eq!(lanes(&device, 1).unwrap(), 1);
        assert!(exact_halves(&device).unwrap());
    }
}
