//! Elementwise functions, as PyTorch has them.

use crate::{Error, Result};
use schwann_core::{GraphBuilder, Value};
use serde::{Deserialize, Serialize};

/// An elementwise function: a layer of its own, or the one of a CfC's backbone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activation {
    /// 1.7159·tanh(0.666·x)
    #[default]
    LecunTanh,
    /// x·σ(x)
    Silu,
    /// max(x, 0)
    Relu,
    /// tanh x
    Tanh,
    /// x·Φ(x), by the error function
    Gelu,
    /// x·Φ(x), by its approximation with tanh
    GeluTanh,
    /// σ(x) = 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// ln σ(x)
    LogSigmoid,
    /// ln(1 + eᵇˣ) / b
    Softplus {
        /// b
        beta: f32,
    },
    /// x / (1 + |x|)
    Softsign,
    /// x where it is above 0, slope·x elsewhere
    LeakyRelu {
        /// The slope below 0.
        slope: f32,
    },
    /// x where it is above 0, alpha·(eˣ − 1) elsewhere
    Elu {
        /// The bound below, of the other sign.
        alpha: f32,
    },
    /// ELU with alpha ≈ 1.6733, times ≈ 1.0507
    Selu,
    /// x, but at least `low` and at most `high`
    Hardtanh {
        /// The least.
        low: f32,
        /// The most.
        high: f32,
    },
    /// (x + 3) / 6 within 0 and 1
    Hardsigmoid,
    /// x times hardsigmoid x
    Hardswish,
    /// x·tanh(ln(1 + eˣ))
    Mish,
}

impl Activation {
    /// Refuses options that are no function.
    pub(crate) fn check(self) -> Result<()> {
        let finite = |name: &str, value: f32| match value.is_finite() {
            true => Ok(()),
            false => Err(Error::argument(name, value, "a finite number")),
        };
        match self {
            Activation::Softplus { beta } if !(beta.is_finite() && beta > 0.0) => {
                Err(Error::argument("beta", beta, "a finite number above 0"))
            }
            Activation::LeakyRelu { slope } => finite("slope", slope),
            Activation::Elu { alpha } => finite("alpha", alpha),
            Activation::Hardtanh { low, high } => {
                finite("low", low)?;
                finite("high", high)?;
                match low <= high {
                    true => Ok(()),
                    false => Err(Error::argument("low", low, format!("at most `high`, {high}"))),
                }
            }
            _ => Ok(()),
        }
    }

    /// Its name, as its JSON has it.
    pub(crate) fn word(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            Ok(serde_json::Value::Object(with_options)) => with_options.keys().next().cloned().unwrap_or_default(),
            _ => "activation".to_owned(),
        }
    }

    /// The function of `x`, as the part of the network that is being built: its last operation has the part's own name.
    pub(crate) fn build(self, b: &mut GraphBuilder, x: Value) -> Result<Value> {
        Ok(match self {
            Activation::LecunTanh => {
                let x = scaled(b, "scaled", x, 0.666)?;
                let x = b.named("tanh").tanh(x)?;
                scaled(b, "", x, 1.7159)?
            }
            Activation::Silu => b.named("").silu(x)?,
            Activation::Relu => b.named("").relu(x)?,
            Activation::Tanh => b.named("").tanh(x)?,
            Activation::Gelu => b.named("").gelu(x)?,
            Activation::GeluTanh => {
                // x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
                let square = b.named("square").square(x)?;
                let cubic = scaled(b, "cubic.scaled", square, 0.044_715)?;
                let cubic = shifted(b, "cubic.shifted", cubic, 1.0)?;
                let inner = b.named("cubic").mul(x, cubic)?;
                let inner = scaled(b, "tanh.scaled", inner, (2.0 / std::f32::consts::PI).sqrt())?;
                let inner = b.named("tanh").tanh(inner)?;
                let inner = shifted(b, "tanh.shifted", inner, 1.0)?;
                let half = scaled(b, "half", x, 0.5)?;
                b.named("").mul(half, inner)?
            }
            Activation::Sigmoid => b.named("").sigmoid(x)?,
            Activation::LogSigmoid => {
                let x = b.named("neg").neg(x)?;
                let x = b.named("softplus").softplus(x)?;
                b.named("").neg(x)?
            }
            Activation::Softplus { beta } => {
                let x = scaled(b, "scaled", x, beta)?;
                let name = if beta == 1.0 { "" } else { "softplus" };
                let x = b.named(name).softplus(x)?;
                scaled(b, "", x, 1.0 / beta)?
            }
            Activation::Softsign => {
                let size = b.named("size").abs(x)?;
                let size = shifted(b, "shifted", size, 1.0)?;
                b.named("").div(x, size)?
            }
            Activation::LeakyRelu { slope } => {
                let (above, below) = halves(b, x)?;
                let below = scaled(b, "below.scaled", below, slope)?;
                b.named("").add(above, below)?
            }
            Activation::Elu { alpha } => elu(b, "", x, alpha)?,
            Activation::Selu => {
                let x = elu(b, "elu", x, 1.673_263_2)?;
                scaled(b, "", x, 1.050_701)?
            }
            Activation::Hardtanh { low, high } => within(b, "", x, low, high)?,
            Activation::Hardsigmoid => hard_sigmoid(b, "", x)?,
            Activation::Hardswish => {
                let gate = hard_sigmoid(b, "gate", x)?;
                b.named("").mul(x, gate)?
            }
            Activation::Mish => {
                let gate = b.named("softplus").softplus(x)?;
                let gate = b.named("gate").tanh(gate)?;
                b.named("").mul(x, gate)?
            }
        })
    }
}

/// x·factor; nothing is built where the factor is 1.
fn scaled(b: &mut GraphBuilder, name: &str, x: Value, factor: f32) -> Result<Value> {
    if factor == 1.0 {
        return Ok(x);
    }
    let factor = b.named("factor").scalar(factor)?;
    Ok(b.named(name).mul(x, factor)?)
}

fn shifted(b: &mut GraphBuilder, name: &str, x: Value, by: f32) -> Result<Value> {
    let by = b.named("shift").scalar(by)?;
    Ok(b.named(name).add(x, by)?)
}

/// max(x, 0) and min(x, 0), which sum to x.
fn halves(b: &mut GraphBuilder, x: Value) -> Result<(Value, Value)> {
    let above = b.named("above").relu(x)?;
    let below = b.named("below.neg").neg(x)?;
    let below = b.named("below.relu").relu(below)?;
    Ok((above, b.named("below").neg(below)?))
}

/// max(x, 0) + alpha·(exp(min(x, 0)) − 1)
fn elu(b: &mut GraphBuilder, name: &str, x: Value, alpha: f32) -> Result<Value> {
    let (above, below) = halves(b, x)?;
    let below = b.named("below.expm1").expm1(below)?;
    let below = scaled(b, "below.scaled", below, alpha)?;
    Ok(b.named(name).add(above, below)?)
}

fn within(b: &mut GraphBuilder, name: &str, x: Value, low: f32, high: f32) -> Result<Value> {
    let (low, high) = (b.named("low").scalar(low)?, b.named("high").scalar(high)?);
    let x = b.named("capped").min(x, high)?;
    Ok(b.named(name).max(x, low)?)
}

fn hard_sigmoid(b: &mut GraphBuilder, name: &str, x: Value) -> Result<Value> {
    let x = shifted(b, "shifted", x, 3.0)?;
    let x = within(b, "clipped", x, 0.0, 6.0)?;
    scaled(b, name, x, 1.0 / 6.0)
}
