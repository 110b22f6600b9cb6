//! What a decoder is: its sizes, and which of the known kinds each part is.

use super::Weights;
use crate::init::{Init, Param, Random};
use crate::{Error, Result};
use schwann_core::Tensor;
use schwann_core::io::Stored;
use serde::{Deserialize, Serialize};

/// A decoder's sizes and kinds. None of the sizes has to be a multiple of anything but what is said here.
///
/// Each of the `layers` adds to x, in turn, attention of its norm and a feed-forward part of its norm:
///
/// ```text
/// x ← x + out(sub_norm(attend(q(n), k(n), v(n))))        n = norm(x)
/// x ← x + down(sub_norm(act(gate(n)) · up(n)))           n = norm(x)
/// logits = head(norm(x))
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// Symbols.
    pub vocabulary: usize,
    /// Numbers of a position between layers.
    pub width: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values: as many as those of queries, or a divisor, and neighbouring heads of queries share one.
    pub key_heads: usize,
    /// Numbers of a head, which are even.
    pub head_size: usize,
    /// Numbers between the two products of the feed-forward part.
    pub hidden: usize,
    /// The longest sequence.
    pub context: usize,
    /// What norms add to the mean square.
    pub norm_eps: f32,
    /// How queries and keys are turned by their position.
    pub rope: Rope,
    /// The feed-forward part.
    #[serde(default)]
    pub feed_forward: FeedForward,
    /// Whether there is a norm before the last product of attention and of the feed-forward part (BitNet).
    #[serde(default)]
    pub sub_norms: bool,
    /// Whether what the layers' products multiply with weights is rounded to 8 bits, row by row (BitNet b1.58).
    #[serde(default)]
    pub rounded: bool,
    /// Whether the head's matrix is the table of embeddings.
    #[serde(default)]
    pub tied: bool,
    /// Whether queries, keys and values have a bias (Qwen2).
    #[serde(default)]
    pub biases: bool,
    /// Whether each head of queries and keys goes through a norm before it is turned (Qwen3).
    #[serde(default)]
    pub head_norms: bool,
}

/// Turns pairs of numbers of queries and keys by angles that grow with the position.
///
/// The angle of pair i at position p is p · theta^(−2i / head_size) / factors\[i\].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// The base of the angles.
    pub theta: f64,
    /// Which numbers are a pair.
    #[serde(default)]
    pub pairing: Pairing,
    /// By how much each pair turns slower (Llama 3.1 and later); empty if none does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub factors: Vec<f64>,
}

/// Which numbers of a head are a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// Number i and number i + head_size/2, as in Hugging Face's files and GPT-NeoX.
    #[default]
    Halves,
    /// Numbers 2i and 2i + 1, as in the original Llama and GGUF's `llama`.
    Neighbours,
}

/// The function in the feed-forward part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    /// silu(gate) · up
    #[default]
    SwiGlu,
    /// relu(gate)² · up
    SquaredRelu,
}

/// The tables of angles have at most this many numbers.
const MOST_ANGLES: usize = 1 << 23;
/// A table of angles that is no larger than this may have more numbers than there are weights.
const FEW_ANGLES: usize = 1 << 17;

impl Decoder {
    /// A small decoder of bytes, to change.
    pub fn tiny() -> Decoder {
        Decoder {
            vocabulary: 256,
            width: 64,
            layers: 2,
            heads: 4,
            key_heads: 2,
            head_size: 16,
            hidden: 96,
            context: 128,
            norm_eps: 1e-5,
            rope: Rope { theta: 10_000.0, pairing: Pairing::Halves, factors: vec![] },
            feed_forward: FeedForward::SwiGlu,
            sub_norms: false,
            rounded: false,
            tied: false,
            biases: false,
            head_norms: false,
        }
    }

    /// The longest context that a decoder with heads of this size can have: its tables of angles have a bound.
    pub fn longest_context(head_size: usize) -> usize {
        MOST_ANGLES / (head_size / 2).max(1)
    }

    /// Shortens the context of a decoder from a file until a table of angles has no more numbers than there are weights, so
    /// that a small file cannot ask for much memory and time. Tables of up to [`FEW_ANGLES`] stay.
    pub(super) fn bound_context(&mut self) -> Result<()> {
        let size = |param: &Param| param.shape.iter().fold(1, |n: usize, axis| n.saturating_mul(*axis));
        let weights = self.params()?.iter().map(size).fold(0, usize::saturating_add);
        let pairs = (self.head_size / 2).max(1);
        self.context = self.context.min(weights.max(FEW_ANGLES) / pairs);
        Ok(())
    }

    /// Refuses what cannot be, by its name.
    pub fn check(&self) -> Result<()> {
        let sizes = [
            ("vocabulary", self.vocabulary, 1 << 24),
            ("width", self.width, 1 << 20),
            ("layers", self.layers, 1 << 10),
            ("heads", self.heads, 1 << 12),
            ("key_heads", self.key_heads, self.heads),
            ("head_size", self.head_size, 1 << 12),
            ("hidden", self.hidden, 1 << 22),
            ("context", self.context, Decoder::longest_context(self.head_size)),
        ];
        for (name, size, most) in sizes {
            if !(1..=most).contains(&size) {
                return Err(Error::argument(name, size, format!("from 1 to {most}")));
            }
        }
        if !self.heads.is_multiple_of(self.key_heads) {
            return Err(Error::argument("key_heads", self.key_heads, format!("a divisor of the {} heads", self.heads)));
        }
        if !self.head_size.is_multiple_of(2) {
            return Err(Error::argument(
                "head_size",
                self.head_size,
                "an even number, since its numbers turn in pairs",
            ));
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return Err(Error::argument("norm_eps", self.norm_eps, "a finite number, not negative"));
        }
        let Rope { theta, factors, .. } = &self.rope;
        if !(theta.is_finite() && *theta > 0.0) {
            return Err(Error::argument("rope.theta", theta, "a finite number above 0"));
        }
        if !factors.is_empty() && factors.len() != self.head_size / 2 {
            let expected = format!("none, or {}, one for each pair of a head", self.head_size / 2);
            return Err(Error::argument("rope.factors", format!("{} numbers", factors.len()), expected));
        }
        match factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            Some(bad) => Err(Error::argument("rope.factors", bad, "finite numbers above 0")),
            None => Ok(()),
        }
    }

    /// Every tensor that it needs: name, shape, and what it starts as. Names of matrices end with `.weight` and have two
    /// axes, `[outputs, inputs]`.
    pub fn params(&self) -> Result<Vec<Param>> {
        self.check()?;
        let (queries, keys) = (self.heads * self.head_size, self.key_heads * self.head_size);
        let mut params = vec![];
        let mut add = |name: String, shape: &[usize]| {
            let init = match shape {
                [_, inputs] => Init::linear(*inputs),
                _ if name.ends_with(".bias") => Init::Constant(0.0),
                _ => Init::Constant(1.0),
            };
            params.push(Param::new(name, shape, init));
        };
        add("embedding.weight".into(), &[self.vocabulary, self.width]);
        for layer in 0..self.layers {
            let attention = |part: &str| format!("layers.{layer}.attention.{part}");
            add(attention("norm.weight"), &[self.width]);
            for (part, rows) in [("q", queries), ("k", keys), ("v", keys)] {
                add(attention(&format!("{part}.weight")), &[rows, self.width]);
                if self.biases {
                    add(attention(&format!("{part}.bias")), &[rows]);
                }
                if self.head_norms && part != "v" {
                    add(attention(&format!("{part}.norm.weight")), &[self.head_size]);
                }
            }
            if self.sub_norms {
                add(attention("sub_norm.weight"), &[queries]);
            }
            add(attention("out.weight"), &[self.width, queries]);
            let mlp = |part: &str| format!("layers.{layer}.mlp.{part}.weight");
            add(mlp("norm"), &[self.width]);
            add(mlp("gate"), &[self.hidden, self.width]);
            add(mlp("up"), &[self.hidden, self.width]);
            if self.sub_norms {
                add(mlp("sub_norm"), &[self.hidden]);
            }
            add(mlp("down"), &[self.width, self.hidden]);
        }
        add("norm.weight".into(), &[self.width]);
        if !self.tied {
            add("head.weight".into(), &[self.vocabulary, self.width]);
        }
        Ok(params)
    }

    /// Random dense weights, drawn from `seed`.
    pub fn draw(&self, seed: u64) -> Result<Weights> {
        let draw = |param: Param| {
            let values = param.init.draw(&param.shape, &mut Random::new(seed, &param.name));
            Ok((param.name, Stored::Floats(Tensor::new(&param.shape, &values)?)))
        };
        self.params()?.into_iter().map(draw).collect()
    }

    /// Whether these are its weights: every tensor and nothing else, each of its shape.
    pub fn check_weights(&self, weights: &Weights) -> Result<()> {
        let params = self.params()?;
        for Param { name, shape, .. } in &params {
            let stored = weights.get(name).ok_or_else(|| Error::weight(name, "missing", format!("{shape:?}")))?;
            check_shape(name, stored, shape)?;
        }
        if weights.len() > params.len() {
            let extra = weights.keys().find(|name| params.iter().all(|p| p.name != **name));
            let extra = extra.map_or("", String::as_str);
            return Err(Error::weight(extra, "not of this decoder", "only the tensors that its options need"));
        }
        Ok(())
    }
}

/// Refuses a tensor of another shape, or one in few bits where only matrices are.
pub(super) fn check_shape(name: &str, stored: &Stored, shape: &[usize]) -> Result<()> {
    let got = match stored {
        Stored::Floats(tensor) if tensor.dtype().is_float() && tensor.shape() == shape => return Ok(()),
        Stored::Floats(tensor) => tensor.to_string(),
        Stored::LowBit(matrix) => match [matrix.codes.shape()[0], matrix.format.len] {
            own if own == shape => return Ok(()),
            own => format!("{own:?} of {}", matrix.format),
        },
    };
    Err(Error::weight(name, got, format!("floats {shape:?}{}", if shape.len() == 2 { ", or low-bit" } else { "" })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_by_its_name() {
        let refused = |change: fn(&mut Decoder)| {
            let mut decoder = Decoder::tiny();
            change(&mut decoder);
            decoder.params().unwrap_err().to_string()
        };
        for (change, words) in [
            (|d| d.vocabulary = 0, "`vocabulary` is 0; expected from 1 to 16777216"),
            (|d| d.layers = 2000, "`layers` is 2000; expected from 1 to 1024"),
            (|d| d.key_heads = 3, "`key_heads` is 3; expected a divisor of the 4 heads"),
            (|d| d.key_heads = 8, "`key_heads` is 8; expected from 1 to 4"),
            (|d| d.head_size = 5, "`head_size` is 5; expected an even number"),
            (|d| d.context = usize::MAX, "`context` is 18446744073709551615; expected from 1 to 1048576"),
            (|d| d.norm_eps = f32::NAN, "`norm_eps` is NaN"),
            (|d| d.rope.theta = -1.0, "`rope.theta` is -1"),
            (|d| d.rope.factors = vec![1.0; 3], "`rope.factors` is 3 numbers; expected none, or 8"),
            (|d| d.rope.factors = vec![0.0; 8], "`rope.factors` is 0; expected finite numbers above 0"),
        ] as [(fn(&mut Decoder), &str); 10]
        {
            let error = refused(change);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn options_read_back_from_their_json() {
        let mut decoder = Decoder { sub_norms: true, feed_forward: FeedForward::SquaredRelu, ..Decoder::tiny() };
        decoder.rope.factors = vec![1.5; 8];
        let text = serde_json::to_string(&decoder).unwrap();
        assert_eq!(serde_json::from_str::<Decoder>(&text).unwrap(), decoder);
        assert!(serde_json::from_str::<Decoder>(&text.replace("sub_norms", "sub_norm")).is_err());
    }

    #[test]
    fn weights_that_do_not_fit_are_named_with_both_shapes() {
        let decoder = Decoder::tiny();
        let good = decoder.draw(1).unwrap();
        decoder.check_weights(&good).unwrap();
        let mut missing = good.clone();
        missing.remove("layers.1.mlp.down.weight");
        let error = decoder.check_weights(&missing).unwrap_err().to_string();
        assert_eq!(error, "tensor `layers.1.mlp.down.weight` is missing; expected [64, 96]");
        let mut wrong = good.clone();
        wrong.insert("layers.0.attention.k.weight".into(), good["layers.0.attention.q.weight"].clone());
        let error = decoder.check_weights(&wrong).unwrap_err().to_string();
        assert!(error.contains("`layers.0.attention.k.weight` is f32[64, 64]; expected floats [32, 64]"), "{error}");
        let mut extra = good.clone();
        extra.insert("layers.0.attention.q.bias".into(), good["norm.weight"].clone());
        let error = decoder.check_weights(&extra).unwrap_err().to_string();
        assert!(error.contains("`layers.0.attention.q.bias` is not of this decoder"), "{error}");
    }
}
