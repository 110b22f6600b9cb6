//! Holding a backend's result against the reference's.

use schwann_core::{DType, Tensor};

/// How many elements there were, and how many of them could be compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Compared {
    pub(crate) elements: usize,
    pub(crate) compared: usize,
}

impl Compared {
    pub(crate) fn add(&mut self, other: Compared) {
        self.elements += other.elements;
        self.compared += other.compared;
    }
}

/// Compares where the result means something: where rounding between the operations, which backends do differently,
/// changes little. What it may change is told by the reference itself, run with it (`want`) and otherwise (`others`: without
/// it, or shaken).
pub(crate) fn compare(want: &Tensor, others: &[&[f64]], got: &Tensor) -> Result<Compared, String> {
    if want.shape() != got.shape() || want.dtype() != got.dtype() || others.iter().any(|o| o.len() != want.len()) {
        return Err(format!("{want} expected, got {got}"));
    }
    let (w, g) = (want.to_f64(), got.to_f64());
    let scale = w.iter().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
    let unit = match want.dtype() {
        DType::F16 => 2e-2,
        DType::Bf16 => 6e-2,
        DType::F32 => 1e-3,
        _ => 0.0,
    };
    let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
    // Beyond this, a kink or a cancellation lies between them, and none is more right.
    let tame = |i: usize| {
        let near = |o: &&[f64]| same(w[i], o[i]) || want.dtype().is_float() && (w[i] - o[i]).abs() <= 0.05 * scale;
        others.iter().all(near)
    };
    let tame: Vec<usize> = (0..w.len()).filter(|i| tame(*i)).collect();
    let apart = |i: usize| others.iter().filter(|o| !same(w[i], o[i])).fold(0.0f64, |m, o| m.max((w[i] - o[i]).abs()));
    let spread = tame.iter().fold(0.0f64, |m, i| m.max(apart(*i)));
    let allowed = scale * unit + 50.0 * spread;
    // The sign of an infinity may be that of a zero before it, which nobody promises.
    let agree = |w: f64, g: f64| same(w, g) || w.is_infinite() && g.is_infinite() || (w - g).abs() <= allowed;
    let apart: Vec<usize> = tame.iter().copied().filter(|i| !agree(w[*i], g[*i])).collect();
    // A whole number that was rounded from a fraction near a half may be the next one; but not many of them.
    let near = |i: &usize| !want.dtype().is_float() && (w[*i] - g[*i]).abs() == 1.0;
    match apart.first() {
        Some(i) if apart.len() > 1 + w.len() / 20 || !apart.iter().all(near) => {
            Err(format!("element {i} of {want}: expected {}, got {} (allowed {allowed:e})", w[*i], g[*i]))
        }
        _ => Ok(Compared { elements: w.len(), compared: tame.len() - apart.len() }),
    }
}
