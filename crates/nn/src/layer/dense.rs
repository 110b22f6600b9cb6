//! Layers without a state, as PyTorch has them.

use super::{check_size, yes};
use crate::Result;
use crate::init::{Init, Param};
use crate::scope::{Outer, Scope};
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
        Ok(outer.b.linear(x, weight, bias)?)
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
        Ok(outer.b.gather(weight, x, 0)?)
    }
}
