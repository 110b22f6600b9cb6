//! Floats inside operations: comparable, hashable, and exact in a file.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A float compared and hashed by its bits, so that an operation holding one can be a key.
#[derive(Clone, Copy)]
pub struct Float(pub f32);
impl Serialize for Float {
    /// A number that reads back bit for bit; JSON has none for infinities and NaN, so these are their bits as text.
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let x = self.0;
        if !x.is_finite() {
            return s.serialize_str(&format!("{:#010x}", x.to_bits()));
        }
        // Readers of JSON may parse an `f64` that is off by its last bit; the short form must still give the same
        // `f32`.
        let short: f64 = format!("{x:?}").parse().unwrap_or(f64::NAN);
        let survives = short.next_up() as f32 == x && short.next_down() as f32 == x && (x != 0.0 || short == 0.0);
        if survives { s.serialize_f32(x) } else { s.serialize_f64(f64::from(x)) }
    }
}
impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Float, D::Error> {
        struct Either;
        impl serde::de::Visitor<'_> for Either {
            type Value = Float;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number within f32's range, or the bits of one that is not finite, such as \"0xff800000\"",
                )
            }
            fn visit_f64<E: serde::de::Error>(self, x: f64) -> Result<Float, E> {
                let narrow = x as f32;
                if narrow.is_finite() {
                    Ok(Float(narrow))
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Float(x), &self))
                }
            }
            fn visit_u64<E: serde::de::Error>(self, x: u64) -> Result<Float, E> {
                self.visit_f64(x as f64)
            }
            fn visit_i64<E: serde::de::Error>(self, x: i64) -> Result<Float, E> {
                self.visit_f64(x as f64)
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Float, E> {
                let bits = text
                    .strip_prefix("0x")
                    .filter(|t| t.len() == 8 && t.bytes().all(|b| b.is_ascii_hexdigit()))
                    .and_then(|t| u32::from_str_radix(t, 16).ok());
                bits.map(|b| Float(f32::from_bits(b)))
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        d.deserialize_any(Either)
    }
}
impl PartialEq for Float {
    fn eq(&self, other: &Float) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}
impl Eq for Float {}
impl std::hash::Hash for Float {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.0.to_bits().hash(h);
    }
}
impl fmt::Debug for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_reads_back_bit_for_bit() {
        // A stride that visits all exponents, and the neighbours of every power of two.
        let strided = (0..=u32::MAX).step_by(99_991);
        let edges = (0..512u32).flat_map(|e| [e << 23, (e << 23) + 1, (e << 23).wrapping_sub(1)]);
        for bits in strided.chain(edges) {
            let text = serde_json::to_string(&Float(f32::from_bits(bits))).unwrap();
            let again: Float = serde_json::from_str(&text).unwrap();
            assert_eq!(again.0.to_bits(), bits, "{text}");
        }
        assert_eq!(serde_json::to_string(&Float(1e-5)).unwrap(), "0.00001");
        for bad in ["1e39", "-1e39", "null", "\"inf\"", "\"0x+fffffff\"", "\"0x12\""] {
            assert!(serde_json::from_str::<Float>(bad).is_err(), "{bad}");
        }
    }
}
