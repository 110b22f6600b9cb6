//! Random tensors that are the same on every machine: splitmix64, whose whole state is one number.

use crate::dtype::DType;
use crate::tensor::{self, Tensor};

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded by a number.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Seeded by a name (FNV-1a of its bytes).
    pub fn named(name: &str) -> Random {
        Random(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`.
    pub fn float(&mut self, low: f64, high: f64) -> f64 {
        low + (self.bits() >> 11) as f64 / (1u64 << 53) as f64 * (high - low)
    }

    /// An integer of `low..high`; `low` where that is empty.
    pub fn int(&mut self, low: i32, high: i32) -> i32 {
        let span = (i64::from(high) - i64::from(low)).max(1) as u64;
        (i64::from(low) + (self.bits() % span) as i64) as i32
    }

    fn fill(&mut self, dtype: DType, shape: &[usize], mut next: impl FnMut(&mut Random) -> f64) -> Tensor {
        let count = tensor::count(shape).expect("a case's tensors are small");
        let data: Vec<f64> = (0..count).map(|_| next(self)).collect();
        Tensor::from_f64(dtype, shape, &data).expect("as many values as the shape has")
    }

    /// Single-precision numbers from `low` to `high`.
    pub fn floats(&mut self, shape: &[usize], low: f64, high: f64) -> Tensor {
        self.fill(DType::F32, shape, |r| r.float(low, high))
    }

    /// Numbers from `low` to `high`, rounded (floats) or truncated (integers) to `dtype`.
    pub fn floats_as(&mut self, dtype: DType, shape: &[usize], low: f64, high: f64) -> Tensor {
        self.fill(dtype, shape, |r| r.float(low, high))
    }

    /// Integers of `low..high`.
    pub fn ints(&mut self, shape: &[usize], low: i32, high: i32) -> Tensor {
        self.fill(DType::I32, shape, |r| r.int(low, high).into())
    }

    /// Truth values.
    pub fn bools(&mut self, shape: &[usize]) -> Tensor {
        self.fill(DType::Bool, shape, |r| r.int(0, 2).into())
    }

    /// Any values of `dtype` that are common there: floats from −8 to 8, the whole range of bytes and truth values.
    pub fn any(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        match dtype {
            DType::F32 | DType::F16 | DType::Bf16 => self.floats_as(dtype, shape, -8.0, 8.0),
            DType::I8 => self.fill(dtype, shape, |r| r.int(-128, 128).into()),
            DType::U8 => self.fill(dtype, shape, |r| r.int(0, 256).into()),
            DType::I32 => self.ints(shape, -1000, 1000),
            DType::Bool => self.bools(shape),
        }
    }
}

/// Values at which `f32` arithmetic is most likely to go wrong.
pub const SPECIAL: [f32; 21] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e30,
    -1e30,
    1e-30,
    -1e-30,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-42,
    -1e-42,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];
