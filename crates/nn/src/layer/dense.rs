//! Layers without a state, as PyTorch has them.

use super::{check_size, yes};
use crate::init::{Init, Param};
use crate::scope::{Outer, Scope};
use crate::{Error, Result};
use schwann_core::Value;
use serde::{Deserialize, Serialize};

/// y = x·wᵀ + b on the last axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Features in.
    pub in_features: usize,
    /// Features out.
    pub out_features: usize,
    /// Whether b is there.
    #[serde(default = "yes")]
    pub bias: bool,
}

impl Linear {
    /// From so many features to so many, with a bias.
    pub fn new(in_features: usize, out_features: usize) -> Linear {
        Linear { in_features, out_features, bias: true }
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        check_size("in_features", self.in_features)?;
        check_size("out_features", self.out_features)?;
        let init = Init::linear(self.in_features);
        let mut params = vec![Param::new("weight", &[self.out_features, self.in_features], init.clone())];
        if self.bias {
            params.push(Param::new("bias", &[self.out_features], init));
        }
        Ok(params)
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let weight = outer.param("weight")?;
        let bias = if self.bias { Some(outer.param("bias")?) } else { None };
        Ok(outer.b.named("").linear(x, weight, bias)?)
    }
}

/// A row of numbers for each of `num_embeddings` symbols. It must be the first layer; the model's input `x` is then `i32`
/// without a feature axis, `[B, T]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// How many symbols.
    pub num_embeddings: usize,
    /// Numbers for each.
    pub embedding_dim: usize,
}

impl Embedding {
    /// So many numbers for each of so many symbols.
    pub fn new(num_embeddings: usize, embedding_dim: usize) -> Embedding {
        Embedding { num_embeddings, embedding_dim }
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        check_size("num_embeddings", self.num_embeddings)?;
        check_size("embedding_dim", self.embedding_dim)?;
        Ok(vec![Param::new("weight", &[self.num_embeddings, self.embedding_dim], Init::Normal)])
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let weight = outer.param("weight")?;
        Ok(outer.b.named("").gather(weight, x, 0)?)
    }
}

/// y = x·weight + bias, feature by feature: what brings inputs to a common scale, or outputs to an actuator's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Affine {
    /// Features in and out.
    pub features: usize,
}

impl Affine {
    /// Of so many features.
    pub fn new(features: usize) -> Affine {
        Affine { features }
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        check_size("features", self.features)?;
        Ok(vec![
            Param::new("weight", &[self.features], Init::Constant(1.0)),
            Param::new("bias", &[self.features], Init::Constant(0.0)),
        ])
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let (weight, bias) = (outer.param("weight")?, outer.param("bias")?);
        let x = outer.b.named("scaled").mul(x, weight)?;
        Ok(outer.b.named("").add(x, bias)?)
    }
}

/// The features of each sample brought to mean 0 and variance 1, then y = x·weight + bias.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNorm {
    /// Features in and out: the last axis.
    pub normalized_shape: usize,
    /// Added to the variance.
    #[serde(default = "norm_eps")]
    pub eps: f32,
    /// Whether the weight is there.
    #[serde(default = "yes")]
    pub elementwise_affine: bool,
    /// Whether the bias is there; it needs the weight.
    #[serde(default = "yes")]
    pub bias: bool,
}

fn norm_eps() -> f32 {
    1e-5
}

impl LayerNorm {
    /// Of so many features, with weight and bias.
    pub fn new(features: usize) -> LayerNorm {
        LayerNorm { normalized_shape: features, eps: norm_eps(), elementwise_affine: true, bias: true }
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>> {
        check_size("normalized_shape", self.normalized_shape)?;
        if !(self.eps.is_finite() && self.eps >= 0.0) {
            return Err(Error::argument("eps", self.eps, "a finite number, not negative"));
        }
        let shape = [self.normalized_shape];
        let mut params = vec![];
        if self.elementwise_affine {
            params.push(Param::new("weight", &shape, Init::Constant(1.0)));
            if self.bias {
                params.push(Param::new("bias", &shape, Init::Constant(0.0)));
            }
        }
        Ok(params)
    }

    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let weight = if self.elementwise_affine { Some(outer.param("weight")?) } else { None };
        let bias = if self.elementwise_affine && self.bias { Some(outer.param("bias")?) } else { None };
        Ok(outer.b.named("").layer_norm(x, weight, bias, self.eps)?)
    }
}

/// Features as shares: exp(x) / Σ exp(x) over the last axis, or its logarithm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Softmax {
    /// Whether the logarithm is given.
    #[serde(default)]
    pub log: bool,
}

impl Softmax {
    pub(crate) fn build(&self, outer: &mut Outer<'_>, x: Value) -> Result<Value> {
        let b = &mut outer.b;
        let last = b.ty(x).shape.rank() - 1;
        if !self.log {
            return Ok(b.named("").softmax(x, last)?);
        }
        // x − max − ln Σ exp(x − max): nothing overflows.
        let most = b.named("max").reduce_max(x, &[last], true)?;
        let below = b.named("below").sub(x, most)?;
        let all = b.named("exp").exp(below)?;
        let all = b.named("sum").sum(all, &[last], true)?;
        let all = b.named("log").log(all)?;
        Ok(b.named("").sub(below, all)?)
    }
}
