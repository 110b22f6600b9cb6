//! The built-in models: what ncps' users have, at the sizes that we measure.

use schwann_nn::wiring::AutoNcp;
use schwann_nn::{Cfc, Error, Ltc, Model};

/// Features of a sample.
pub const INPUTS: usize = 8;
/// Batch sizes and sequence lengths that figures are quoted for.
pub const SHAPES: [(usize, usize); 4] = [(1, 1), (1, 16), (32, 16), (256, 64)];

/// Names of the built-in models, each with what it is.
pub const NAMES: [(&str, &str); 4] = [
    ("P", "CfC with 64 units and a backbone of 2 × 64, projected to 16"),
    ("W", "CfC on a circuit, AutoNCP(64, 16)"),
    ("L", "LTC on a circuit, AutoNCP(64, 16)"),
    ("G", "CfC with 64 units and a backbone of 2 × 64"),
];

/// The two that are profiled where nothing else is said: a circuit, and a dense network of the same size.
pub const DEFAULT: [&str; 2] = ["W", "G"];

/// Sizes that can be changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Neurons.
    pub units: usize,
    /// Features out, of P, W and L.
    pub outputs: usize,
    /// Layers of the backbone, of P and G.
    pub backbone_layers: usize,
    /// About the share of pairs without a synapse, of W and L; `None` for the usual one.
    pub sparsity: Option<f64>,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { units: 64, outputs: 16, backbone_layers: 2, sparsity: None }
    }
}

/// The model of that name; `None` where there is none.
pub fn built_in(name: &str, sizes: &Sizes) -> Option<Result<Model, Error>> {
    let wired = || {
        let mut options = AutoNcp::new(sizes.units, sizes.outputs);
        options.sparsity_level = sizes.sparsity.unwrap_or(options.sparsity_level);
        let mut wiring = options.wiring()?;
        wiring.build(INPUTS)?;
        Ok(wiring)
    };
    let dense = |proj_size| Cfc {
        proj_size,
        backbone_units: Some(64),
        backbone_layers: Some(sizes.backbone_layers),
        ..Cfc::new(INPUTS, sizes.units)
    };
    Some(match name {
        "P" => Model::new(dense(Some(sizes.outputs)), 1),
        "G" => Model::new(dense(None), 1),
        "W" => wired().and_then(|w| Model::new(Cfc::new(INPUTS, w), 1)),
        "L" => wired().and_then(|w| Model::new(Ltc::new(INPUTS, w), 1)),
        _ => return None,
    })
}
