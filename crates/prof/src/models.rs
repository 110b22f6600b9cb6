//! The built-in models: what ncps' users have, at the sizes that we measure.

use crate::stats::Random;
use schwann_nn::wiring::{self, AutoNcp};
use schwann_nn::{Cfc, Error, Ltc, Model};

/// Features of a sample.
pub const INPUTS: usize = 8;
/// Batch sizes and sequence lengths that figures are quoted for.
pub const SHAPES: [(usize, usize); 4] = [(1, 1), (1, 16), (32, 16), (256, 64)];

/// A built-in model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// Its name.
    pub name: &'static str,
    /// A letter that stands for it on the command line.
    pub short: &'static str,
    /// What it is.
    pub about: &'static str,
}

/// The built-in models.
pub const BUILT_IN: [BuiltIn; 4] = [
    BuiltIn { name: "wired-cfc", short: "W", about: "CfC on a sparse circuit of 64 neurons, AutoNCP(64, 16)" },
    BuiltIn { name: "dense-cfc", short: "G", about: "CfC with 64 units and a backbone of 2 × 64" },
    BuiltIn { name: "projected-cfc", short: "P", about: "the dense CfC, projected to 16 outputs" },
    BuiltIn { name: "wired-ltc", short: "L", about: "LTC on a sparse circuit of 64 neurons, AutoNCP(64, 16)" },
];

/// The two that are profiled where nothing else is said: a circuit, and a dense network of the same size.
pub const DEFAULT: [&str; 2] = ["wired-cfc", "dense-cfc"];

/// The three that speed and predictions are told for.
pub const CIRCUITS: [&str; 3] = ["projected-cfc", "wired-cfc", "wired-ltc"];

/// The built-in model of that name or letter.
pub fn find(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|m| m.name == name || m.short == name)
}

/// A built-in model's whole name; any other name as it is.
pub fn full_name(name: &str) -> &str {
    find(name).map_or(name, |m| m.name)
}

/// The built-in models, one a line, for help texts.
pub fn listed() -> String {
    let line = |m: &BuiltIn| format!("  {:<14} {}", m.name, m.about);
    BUILT_IN.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Sizes that can be changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Neurons.
    pub units: usize,
    /// Features out; the dense CfC has as many as units.
    pub outputs: usize,
    /// Layers of the backbone, of the dense and the projected CfC.
    pub backbone_layers: usize,
    /// About the share of pairs without a synapse, of wired models; `None` for the usual one.
    pub sparsity: Option<f64>,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { units: 64, outputs: 16, backbone_layers: 2, sparsity: None }
    }
}

/// The model of that name or letter; `None` where there is none.
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
    Some(match find(name)?.name {
        "projected-cfc" => Model::new(dense(Some(sizes.outputs)), 1),
        "dense-cfc" => Model::new(dense(None), 1),
        "wired-cfc" => wired().and_then(|w| Model::new(Cfc::new(INPUTS, w), 1)),
        "wired-ltc" => wired().and_then(|w| Model::new(Ltc::new(INPUTS, w), 1)),
        _ => return None,
    })
}

/// A circuit that nobody chose: its kind, sizes, wiring and weights are drawn by a seed. For tests of what must hold for any
/// model, such as the tuner.
pub fn random(seed: u64) -> Result<Model, Error> {
    let mut random = Random::new(seed);
    let mut between = |least: usize, most: usize| least + random.below(most - least + 1);
    let (inputs, units) = (between(2, 24), between(12, 160));
    let outputs = between(1, (units / 3).max(1));
    let sparsity = between(2, 8) as f64 / 10.0;
    let kind = between(0, 4);
    let (width, layers) = (between(16, 128), between(0, 3));
    let wiring_seed = between(0, 1 << 30);
    let wired = || {
        let mut options = AutoNcp::new(units, outputs);
        (options.sparsity_level, options.seed) = (sparsity, wiring_seed as u32);
        let mut wiring = options.wiring()?;
        wiring.build(inputs)?;
        Ok::<_, Error>(wiring)
    };
    let drawn = || {
        let mut options = wiring::Random::new(units.min(64), sparsity);
        (options.output_dim, options.random_seed) = (outputs.min(units.min(64)), wiring_seed as u64);
        let mut wiring = options.wiring()?;
        wiring.build(inputs)?;
        Ok::<_, Error>(wiring)
    };
    match kind {
        0 => Model::new(Cfc::new(inputs, wired()?), seed),
        1 => Model::new(Ltc::new(inputs, wired()?), seed),
        2 => Model::new(Ltc::new(inputs, drawn()?), seed),
        _ => {
            let backbone = Cfc {
                proj_size: (kind == 4).then_some(outputs),
                backbone_units: (layers > 0).then_some(width),
                backbone_layers: Some(layers),
                ..Cfc::new(inputs, units)
            };
            Model::new(backbone, seed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_of_the_list_is_there_by_name_and_by_letter() {
        for model in BUILT_IN {
            for name in [model.name, model.short] {
                built_in(name, &Sizes::default()).unwrap_or_else(|| panic!("no {name}")).unwrap();
                assert_eq!(full_name(name), model.name);
            }
        }
        assert!(DEFAULT.iter().chain(&CIRCUITS).all(|name| find(name).is_some_and(|m| m.name == *name)));
        assert!(built_in("X", &Sizes::default()).is_none() && full_name("X") == "X");
    }

    #[test]
    fn random_models_are_all_models_and_differ_by_their_seed_alone() {
        let kinds: std::collections::BTreeSet<String> = (0..40)
            .map(|seed| {
                let (one, again) = (random(seed).unwrap(), random(seed).unwrap());
                assert_eq!(one.weights(), again.weights());
                format!("{} {}", one.layers()[0].class(), one.params().len())
            })
            .collect();
        assert!(kinds.len() >= 4, "{kinds:?}");
    }
}
