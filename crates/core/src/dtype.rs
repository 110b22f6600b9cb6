//! Element types.

use serde::{Deserialize, Serialize};

/// The type of one tensor element.
///
/// Sizes are asked for in bits, so that packed low-bit types can join without another concept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision; arithmetic is done in `f32`.
    F16,
    /// bfloat16; arithmetic is done in `f32`.
    Bf16,
    /// Signed byte, the usual type of quantized values.
    I8,
    /// Unsigned byte.
    U8,
    /// Signed 32-bit integer: indices, token ids, integer sums. Arithmetic wraps.
    I32,
    /// Truth value, one byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 7] = [DType::F32, DType::F16, DType::Bf16, DType::I8, DType::U8, DType::I32, DType::Bool];

    /// Bits that one element takes in memory.
    pub fn bits(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 32,
            DType::F16 | DType::Bf16 => 16,
            DType::I8 | DType::U8 | DType::Bool => 8,
        }
    }

    /// Bytes that `count` elements take, or `None` beyond the address space.
    pub fn bytes_for(self, count: usize) -> Option<usize> {
        Some(count.checked_mul(self.bits())?.div_ceil(8))
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        self.bits() / 8
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::Bf16)
    }

    /// Its name in text: `f32`, `bf16`, `bool` …
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::Bool => "bool",
        }
    }

    /// The type of that name.
    pub fn named(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
