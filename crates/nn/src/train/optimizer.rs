//! Optimizers, as part of the graph of a step: each parameter, its gradient and what the optimizer remembers of it become
//! one fused call, which writes all of them anew.

use super::round::Rounding;
use crate::{Error, Result};
use schwann_core::{GraphBuilder, Value};
use serde::{Deserialize, Serialize};

/// How gradients move weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Optimizer {
    /// w ← w − lr·v with v ← momentum·v + g, as PyTorch's `SGD`. Decay is added to the gradient.
    Sgd {
        /// How much of the velocity is kept; 0 keeps none and needs no memory.
        #[serde(default)]
        momentum: f32,
        /// Whether to look ahead: w ← w − lr·(g + momentum·v).
        #[serde(default)]
        nesterov: bool,
    },
    /// w ← w − lr·m̂ / (√v̂ + ε), as PyTorch's `Adam`. Decay is added to the gradient.
    Adam {
        /// How much of the means of gradients and of their squares is kept.
        #[serde(default = "betas")]
        betas: (f32, f32),
        /// ε
        #[serde(default = "eps")]
        eps: f32,
    },
    /// The same, where decay shrinks weights themselves, as PyTorch's `AdamW`.
    AdamW {
        /// How much of the means of gradients and of their squares is kept.
        #[serde(default = "betas")]
        betas: (f32, f32),
        /// ε
        #[serde(default = "eps")]
        eps: f32,
    },
}

fn betas() -> (f32, f32) {
    (0.9, 0.999)
}
fn eps() -> f32 {
    1e-8
}

impl Default for Optimizer {
    fn default() -> Optimizer {
        Optimizer::adam()
    }
}

impl Optimizer {
    /// Adam with PyTorch's defaults.
    pub fn adam() -> Optimizer {
        Optimizer::Adam { betas: betas(), eps: eps() }
    }
    /// AdamW with PyTorch's defaults, but for the decay, which a [`Group`] has.
    pub fn adam_w() -> Optimizer {
        Optimizer::AdamW { betas: betas(), eps: eps() }
    }

    pub(crate) fn check(self) -> Result<()> {
        let share = |name: &str, value: f32| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(Error::argument(name, value, "from 0 to less than 1")),
        };
        match self {
            Optimizer::Sgd { momentum, nesterov } => {
                share("momentum", momentum)?;
                match nesterov && momentum == 0.0 {
                    true => Err(Error::argument("nesterov", "true without momentum", "a momentum above 0")),
                    false => Ok(()),
                }
            }
            Optimizer::Adam { betas, eps } | Optimizer::AdamW { betas, eps } => {
                share("betas", betas.0)?;
                share("betas", betas.1)?;
                match eps.is_finite() && eps > 0.0 {
                    true => Ok(()),
                    false => Err(Error::argument("eps", eps, "a finite number above 0")),
                }
            }
        }
    }

    /// What it remembers of each weight: names, before the parameter's own.
    pub(crate) fn memory(self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd { momentum: 0.0, .. } => &[],
            Optimizer::Sgd { .. } => &["velocity"],
            Optimizer::Adam { .. } | Optimizer::AdamW { .. } => &["mean", "square"],
        }
    }

    /// What makes up for means that began at 0, in step `step` (the first is 1): of gradients, and of the root of squares.
    pub(crate) fn corrections(self, step: u64) -> Option<[f32; 2]> {
        let (Optimizer::Adam { betas: (a, b), .. } | Optimizer::AdamW { betas: (a, b), .. }) = self else {
            return None;
        };
        let left = |beta: f32| 1.0 - f64::from(beta).powf(step as f64);
        Some([(1.0 / left(a)) as f32, (1.0 / left(b).sqrt()) as f32])
    }

    /// Adds a step for one parameter: its new value, and what is remembered of it next.
    pub(crate) fn update(
        self,
        b: &mut GraphBuilder,
        rates: &Rates,
        group: &Group,
        weight: Value,
        gradient: Value,
        memory: &[Value],
    ) -> Result<(Value, Vec<Value>)> {
        let mut weight = weight;
        let mut g = gradient;
        let lr = scaled(b, "rate", rates.lr, group.rate)?;
        if group.decay > 0.0 {
            let decay = b.named("decay").scalar(group.decay)?;
            if let Optimizer::AdamW { .. } = self {
                let share = b.named("decay.share").mul(lr, decay)?;
                let part = b.named("decay.part").mul(weight, share)?;
                weight = b.named("decayed").sub(weight, part)?;
            } else {
                let part = b.named("decay.part").mul(weight, decay)?;
                g = b.named("decayed").add(g, part)?;
            }
        }
        match (self, memory, rates.corrections) {
            (Optimizer::Sgd { momentum, nesterov }, &[velocity], _) => {
                let kept = scaled(b, "velocity.kept", velocity, momentum)?;
                let velocity = b.named("velocity").add(kept, g)?;
                let mut way = velocity;
                if nesterov {
                    let ahead = scaled(b, "ahead.kept", velocity, momentum)?;
                    way = b.named("ahead").add(g, ahead)?;
                }
                let way = b.named("way").mul(way, lr)?;
                Ok((b.named("").sub(weight, way)?, vec![velocity]))
            }
            (
                Optimizer::Adam { betas, eps } | Optimizer::AdamW { betas, eps },
                &[mean, square],
                Some([of_mean, of_root]),
            ) => {
                // m + (1 − β)·(g − m), as PyTorch has it, and β·v + (1 − β)·g²
                let apart = b.named("mean.apart").sub(g, mean)?;
                let part = scaled(b, "mean.part", apart, 1.0 - betas.0)?;
                let mean = b.named("mean").add(mean, part)?;
                let kept = scaled(b, "square.kept", square, betas.1)?;
                let squared = b.named("gradient.square").square(g)?;
                let part = scaled(b, "square.part", squared, 1.0 - betas.1)?;
                let square = b.named("square").add(kept, part)?;
                let root = b.named("root").sqrt(square)?;
                let root = b.named("root.corrected").mul(root, of_root)?;
                let eps = b.named("eps").scalar(eps)?;
                let below = b.named("below").add(root, eps)?;
                let rate = b.named("rate.corrected").mul(lr, of_mean)?;
                let above = b.named("above").mul(mean, rate)?;
                let way = b.named("way").div(above, below)?;
                Ok((b.named("").sub(weight, way)?, vec![mean, square]))
            }
            _ => {
                let way = b.named("way").mul(g, lr)?;
                Ok((b.named("").sub(weight, way)?, vec![]))
            }
        }
    }
}

/// x·factor; nothing is built where the factor is 1.
fn scaled(b: &mut GraphBuilder, name: &str, x: Value, factor: f32) -> Result<Value> {
    if factor == 1.0 {
        return Ok(x);
    }
    let by = b.named("factor").scalar(factor)?;
    Ok(b.named(name).mul(x, by)?)
}

/// The numbers of a step that the graph is given.
pub(crate) struct Rates {
    /// The rate of learning.
    pub(crate) lr: Value,
    /// What makes up for means that began at 0.
    pub(crate) corrections: Option<[Value; 2]>,
}

/// How some parameters differ from the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Whose: parameters whose name this is, where `*` stands for any letters.
    pub parameters: String,
    /// What their rate of learning is multiplied by.
    #[serde(default = "one")]
    pub rate: f32,
    /// Weight decay.
    #[serde(default)]
    pub decay: f32,
    /// Whether they stay as they are.
    #[serde(default)]
    pub frozen: bool,
    /// What they are rounded to before each use, while the optimizer moves them as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<Rounding>,
}

fn one() -> f32 {
    1.0
}

impl Group {
    /// The parameters whose name fits `pattern`, as all others so far.
    pub fn of(pattern: impl Into<String>) -> Group {
        Group { parameters: pattern.into(), rate: 1.0, decay: 0.0, frozen: false, round: None }
    }
    /// With this weight decay.
    pub fn decay(mut self, decay: f32) -> Group {
        self.decay = decay;
        self
    }
    /// With this share of the rate of learning.
    pub fn rate(mut self, rate: f32) -> Group {
        self.rate = rate;
        self
    }
    /// As they are, for good.
    pub fn frozen(mut self) -> Group {
        self.frozen = true;
        self
    }
    /// Rounded before each use.
    pub fn rounded(mut self, round: Rounding) -> Group {
        self.round = Some(round);
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !(self.rate.is_finite() && self.rate >= 0.0) {
            return Err(Error::argument("rate", self.rate, "a finite number, not negative"));
        }
        if !(self.decay.is_finite() && self.decay >= 0.0) {
            return Err(Error::argument("decay", self.decay, "a finite number, not negative"));
        }
        Ok(())
    }

    /// Whether a parameter belongs to it.
    pub(crate) fn has(&self, name: &str) -> bool {
        fits(&self.parameters, name)
    }
}

/// Whether a name fits a pattern in which `*` stands for any letters.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut rest = rest;
    let mut last = None;
    for part in parts {
        if let Some(part) = last.replace(part) {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
    }
    last.map_or(rest.is_empty(), |end| rest.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_stand_for_names() {
        for (pattern, name, wanted) in [
            ("*", "rnn_cell.ff1.weight", true),
            ("rnn_cell.ff1.weight", "rnn_cell.ff1.weight", true),
            ("rnn_cell.ff1", "rnn_cell.ff1.weight", false),
            ("*.weight", "rnn_cell.ff1.weight", true),
            ("*.weight", "rnn_cell.ff1.bias", false),
            ("0.*.ff*.weight", "0.rnn_cell.ff1.weight", true),
            ("0.*.ff*.weight", "1.rnn_cell.ff1.weight", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("", "", true),
        ] {
            assert_eq!(fits(pattern, name), wanted, "{pattern} {name}");
        }
    }
}
