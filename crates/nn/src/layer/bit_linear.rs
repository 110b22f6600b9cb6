//! BitNet's linear layer.

use super::{check_size, yes};
use crate::init::{Init, Param};
use crate::scope::{Outer, Scope};
use crate::train::Rounding;
use crate::{Error, Result};
use schwann_core::Value;
use serde::{Deserialize, Serialize};

/// A linear layer of BitNet b1.58: y = round(norm(x))·tᵀ + b on the last axis.
///
/// Rows are rounded to 8 bits, and t is `weight` as −1, 0 and 1 times its mean absolute value γ (10⁻⁵ at least):
/// t = γ · clamp(round(weight / γ), −1, 1). The weight itself stays as it was trained: training moves it by the gradient of
/// t, and rows pass gradients as if they were not rounded.
///
/// Within a model, products with t are as fast as those with any other `f32`; decoders of BitNet
/// ([`crate::decoder`]) keep ternary codes and multiply in integers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BitLinear {
    /// Features in.
    pub in_features: usize,
    /// Features out.
    pub out_features: usize,
    /// Whether b is there.
    #[serde(default)]
    pub bias: bool,
    /// Whether x goes through a root-mean-square norm first.
    #[serde(default = "yes")]
    pub norm: bool,
    /// What the norm adds to the mean square.
    #[serde(default = "norm_eps")]
    pub eps: f32,
}

fn norm_eps() -> f32 {
    1e-5
}

impl BitLinear {
    /// From so many features to so many, with a norm and without a bias.
    pub fn new(in_features: usize, out_features: usize) -> BitLinear {
        BitLinear { in_features, out_features, bias: false, norm: true, eps: norm_eps() }
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        check_size("in_features", self.in_features)?;
        check_size("out_features", self.out_features)?;
        if !(self.eps.is_finite() && self.eps >= 0.0) {
            return Err(Error::argument("eps", self.eps, "a finite number, not negative"));
        }
        let init = Init::linear(self.in_features);
        let mut params = vec![Param::new("weight", &[self.out_features, self.in_features], init.clone())];
        if self.bias {
            params.push(Param::new("bias", &[self.out_features], init));
        }
        if self.norm {
            params.push(Param::new("norm.weight", &[self.in_features], Init::Constant(1.0)));
        }
        Ok(params)
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let weight = outer.param("weight")?;
        let bias = if self.bias { Some(outer.param("bias")?) } else { None };
        let norm = if self.norm { Some(outer.param("norm.weight")?) } else { None };
        let b = &mut outer.b;
        let x = if self.norm { b.named("norm").rms_norm(x, norm, self.eps)? } else { x };
        let x = b.named("rounded").round_rows(x)?;
        // In training, what comes in is rounded already: its gradient is taken where it is used.
        let ternary = if outer.training { weight } else { Rounding::Ternary.build(b, weight)? };
        Ok(outer.b.named("").linear(x, ternary, bias)?)
    }
}
