//! The circuits that figures are quoted for, by name: what people who come from ncps have.

use schwann_nn::wiring::AutoNcp;
use schwann_nn::{Cfc, Error, Ltc, Model};

/// Features of a sample.
pub const INPUTS: usize = 8;
/// Batch sizes and sequence lengths that figures are quoted for.
pub const SHAPES: [(usize, usize); 4] = [(1, 1), (1, 16), (32, 16), (256, 64)];
/// The names that [`named`] knows.
pub const NAMES: [&str; 3] = ["P", "W", "L"];

/// Sizes of a named circuit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Neurons.
    pub units: usize,
    /// Features out.
    pub outputs: usize,
    /// Layers of P's backbone.
    pub backbone_layers: usize,
    /// About the share of pairs without a synapse, of W and L; `None` for ncps' default.
    pub sparsity: Option<f64>,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { units: 64, outputs: 16, backbone_layers: 2, sparsity: None }
    }
}

/// P is a dense CfC with a backbone and a projection, W a CfC on a circuit, L an LTC on a circuit; `None` for any other
/// name.
pub fn named(name: &str, sizes: &Sizes) -> Option<Result<Model, Error>> {
    let wired = || {
        let mut options = AutoNcp::new(sizes.units, sizes.outputs);
        options.sparsity_level = sizes.sparsity.unwrap_or(options.sparsity_level);
        let mut wiring = options.wiring()?;
        wiring.build(INPUTS)?;
        Ok::<_, Error>(wiring)
    };
    Some(match name {
        "P" => Model::new(
            Cfc {
                proj_size: Some(sizes.outputs),
                backbone_units: Some(64),
                backbone_layers: Some(sizes.backbone_layers),
                ..Cfc::new(INPUTS, sizes.units)
            },
            1,
        ),
        "W" => wired().and_then(|wiring| Model::new(Cfc::new(INPUTS, wiring), 1)),
        "L" => wired().and_then(|wiring| Model::new(Ltc::new(INPUTS, wiring), 1)),
        _ => return None,
    })
}
