//! Which neuron reaches which: the circuit that a CfC or LTC layer runs on.
//!
//! A wiring is two matrices of polarities, −1 (inhibits), 0 (no synapse) and +1 (excites): one between the neurons and,
//! once [`Wiring::build`] was told how many inputs there are, one from the inputs to the neurons. Neurons
//! `0..output_dim` are the outputs.
//!
//! Circuits are drawn at random by [`FullyConnected`], [`Random`], [`Ncp`] and [`AutoNcp`], or built by hand:
//!
//! ```
//! use schwann_nn::wiring::{AutoNcp, Wiring};
//!
//! # fn main() -> schwann_nn::Result<()> {
//! // 64 neurons, 16 of them motor neurons, reading 8 inputs.
//! let drawn = AutoNcp::new(64, 16).build(8)?;
//! assert_eq!(drawn.layer_count(), 3);
//!
//! // Two neurons that inhibit each other.
//! let mut flip_flop = Wiring::new(2, 2)?;
//! flip_flop.add_synapse(0, 1, -1)?;
//! flip_flop.add_synapse(1, 0, -1)?;
//! flip_flop.build(1)?;
//! flip_flop.add_sensory_synapse(0, 0, 1)?;
//! assert_eq!(flip_flop.synapse_count() + flip_flop.sensory_synapse_count(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! The generators draw NumPy's streams bit for bit, so the same options and seed give the same circuit as the Python
//! package ncps, and weights trained there fit here.

mod config;
mod generate;
mod numpy_random;
mod picture;
mod stats;

pub use config::{AutoNcp, FullyConnected, Ncp, Random, WiringConfig};
pub use stats::{Degrees, Stats, Synapses};

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// The most entries that one of a wiring's matrices may have: 8192² neurons, 64 MiB.
pub const MOST_PAIRS: usize = 1 << 26;

/// The refusal of an argument.
fn refuse(argument: &str, got: impl Display, expected: impl Display) -> Error {
    Error::Argument { argument: argument.to_owned(), got: got.to_string(), expected: expected.to_string() }
}

/// Which neuron reaches which, and with which polarity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Record", into = "Record")]
pub struct Wiring {
    config: WiringConfig,
    units: usize,
    output_dim: usize,
    input_dim: Option<usize>,
    layers: Vec<Vec<usize>>,
    adjacency: Vec<i8>,
    sensory_adjacency: Vec<i8>,
}

impl Wiring {
    /// A circuit of `units` neurons without synapses, to be wired by hand. Neurons `0..output_dim` are its outputs, and
    /// all of them are one layer until [`set_layers`](Wiring::set_layers).
    pub fn new(units: usize, output_dim: usize) -> Result<Wiring> {
        WiringConfig::Custom { units, output_dim }.to_wiring()
    }

    /// A circuit without synapses, of sizes that `config` found fit.
    fn blank(config: WiringConfig, units: usize, output_dim: usize, layers: Vec<Vec<usize>>) -> Wiring {
        Wiring {
            config,
            units,
            output_dim,
            input_dim: None,
            layers,
            adjacency: vec![0; units * units],
            sensory_adjacency: vec![],
        }
    }

    /// Adds a synapse between two neurons, or changes the polarity (−1 or +1) of the one that is there.
    pub fn add_synapse(&mut self, src: usize, dest: usize, polarity: i8) -> Result<()> {
        check_below("src", src, self.units, "neurons")?;
        check_below("dest", dest, self.units, "neurons")?;
        check_polarity(polarity)?;
        self.set(src, dest, polarity);
        Ok(())
    }

    /// Adds a synapse from an input to a neuron, or changes the polarity (−1 or +1) of the one that is there. The wiring
    /// must be built: before, it does not know its inputs.
    pub fn add_sensory_synapse(&mut self, input: usize, dest: usize, polarity: i8) -> Result<()> {
        let Some(inputs) = self.input_dim else {
            return Err(refuse("input", input, "no sensory synapse before `build` said how many inputs there are"));
        };
        check_below("input", input, inputs, "inputs")?;
        check_below("dest", dest, self.units, "neurons")?;
        check_polarity(polarity)?;
        self.set_sensory(input, dest, polarity);
        Ok(())
    }

    /// Tells the wiring how many inputs it reads; what is drawn at random and depends on them is drawn now. Building
    /// again for the same number changes nothing.
    pub fn build(&mut self, input_dim: usize) -> Result<()> {
        match self.input_dim {
            Some(inputs) if inputs == input_dim => return Ok(()),
            Some(inputs) => {
                return Err(refuse("input_dim", input_dim, format!("{inputs}, which this wiring was built for")));
            }
            None => {}
        }
        check_inputs(input_dim, self.units)?;
        self.input_dim = Some(input_dim);
        self.sensory_adjacency = vec![0; input_dim * self.units];
        generate::on_build(self, input_dim);
        Ok(())
    }

    /// Groups the neurons into layers, first to last. Each neuron is in one layer; where there are several, the last
    /// one is the outputs, `0..output_dim`.
    pub fn set_layers(&mut self, layers: Vec<Vec<usize>>) -> Result<()> {
        check_layers(&layers, self.units, self.output_dim)?;
        self.layers = layers;
        Ok(())
    }

    /// Whether the number of inputs is known.
    pub fn is_built(&self) -> bool {
        self.input_dim.is_some()
    }

    /// How many neurons there are.
    pub fn units(&self) -> usize {
        self.units
    }

    /// How many inputs there are; `None` before [`build`](Wiring::build).
    pub fn input_dim(&self) -> Option<usize> {
        self.input_dim
    }

    /// How many neurons are outputs: the first ones.
    pub fn output_dim(&self) -> usize {
        self.output_dim
    }

    /// Polarities between neurons, row-major `[src, dest]`, `units` × `units`.
    pub fn adjacency(&self) -> &[i8] {
        &self.adjacency
    }

    /// Polarities from inputs to neurons, row-major `[input, dest]`, `input_dim` × `units`; empty before
    /// [`build`](Wiring::build).
    pub fn sensory_adjacency(&self) -> &[i8] {
        &self.sensory_adjacency
    }

    /// How many layers there are: three for NCPs (inter, command, motor), one for unlayered circuits.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// The neurons of a layer, in the layer's order; none where there is no such layer.
    pub fn layer(&self, index: usize) -> &[usize] {
        self.layers.get(index).map_or(&[], Vec::as_slice)
    }

    /// What a layer is called: the last is `motor`, the one before it `command`, and those before them `inter`, with a
    /// number where there are several. Circuits of one layer have no name for it.
    pub fn layer_name(&self, index: usize) -> String {
        let layers = self.layers.len();
        if layers < 2 || index >= layers {
            return String::new();
        }
        let role = picture::Role::of_layer(index, layers);
        match role {
            picture::Role::Inter if layers > 3 => format!("inter.{}", index + 1),
            _ => role.name().to_owned(),
        }
    }

    /// How many synapses there are between neurons.
    pub fn synapse_count(&self) -> usize {
        count(&self.adjacency)
    }

    /// How many synapses there are from inputs to neurons.
    pub fn sensory_synapse_count(&self) -> usize {
        count(&self.sensory_adjacency)
    }

    /// How the circuit was made. Synapses that were added by hand afterwards are not part of it.
    pub fn config(&self) -> &WiringConfig {
        &self.config
    }

    /// Synapses between neurons as (src, dest, polarity), in row-major order.
    pub fn synapses(&self) -> impl Iterator<Item = (usize, usize, i8)> + '_ {
        entries(&self.adjacency, self.units)
    }

    /// Synapses from inputs as (input, dest, polarity), in row-major order.
    pub fn sensory_synapses(&self) -> impl Iterator<Item = (usize, usize, i8)> + '_ {
        entries(&self.sensory_adjacency, self.units)
    }

    /// The circuit as JSON: how it was made, its sizes and layers, and every synapse.
    pub fn to_json(&self) -> String {
        // Numbers, strings and lists of them: there is nothing that JSON could not hold.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`to_json`](Wiring::to_json) wrote. The text may come from anywhere.
    pub fn from_json(text: &str) -> Result<Wiring> {
        serde_json::from_str(text).map_err(|e| refuse("wiring", format!("unreadable ({e})"), "a wiring's JSON"))
    }

    fn set(&mut self, src: usize, dest: usize, polarity: i8) {
        self.adjacency[src * self.units + dest] = polarity;
    }

    fn set_sensory(&mut self, input: usize, dest: usize, polarity: i8) {
        self.sensory_adjacency[input * self.units + dest] = polarity;
    }
}

fn count(matrix: &[i8]) -> usize {
    matrix.iter().filter(|&&polarity| polarity != 0).count()
}

fn entries(matrix: &[i8], units: usize) -> impl Iterator<Item = (usize, usize, i8)> + '_ {
    matrix.iter().enumerate().filter(|(_, p)| **p != 0).map(move |(i, &p)| (i / units, i % units, p))
}

fn check_below(argument: &str, index: usize, count: usize, what: &str) -> Result<()> {
    if index >= count {
        return Err(refuse(argument, index, format!("less than {count}, the number of {what}")));
    }
    Ok(())
}

fn check_polarity(polarity: i8) -> Result<()> {
    if !matches!(polarity, -1 | 1) {
        return Err(refuse("polarity", polarity, "-1 (inhibits) or 1 (excites)"));
    }
    Ok(())
}

/// Whether a circuit may have this many neurons and outputs; nothing is allocated before this was asked.
fn check_sizes(units: usize, output_dim: usize) -> Result<()> {
    if units == 0 || units.checked_mul(units).is_none_or(|pairs| pairs > MOST_PAIRS) {
        return Err(refuse("units", units, format!("from 1 to {}", MOST_PAIRS.isqrt())));
    }
    if output_dim == 0 || output_dim > units {
        return Err(refuse("output_dim", output_dim, format!("from 1 to {units}, the number of neurons")));
    }
    Ok(())
}

fn check_inputs(input_dim: usize, units: usize) -> Result<()> {
    if input_dim == 0 || input_dim > MOST_PAIRS / units {
        let most = MOST_PAIRS / units;
        return Err(refuse("input_dim", input_dim, format!("from 1 to {most} for a circuit of {units} neurons")));
    }
    Ok(())
}

fn check_layers(layers: &[Vec<usize>], units: usize, output_dim: usize) -> Result<()> {
    let mut seen = vec![false; units];
    for (i, layer) in layers.iter().enumerate() {
        if layer.is_empty() {
            return Err(refuse("layers", format!("layer {i} without neurons"), "neurons in each layer"));
        }
        for &neuron in layer {
            check_below("layers", neuron, units, "neurons")?;
            if std::mem::replace(&mut seen[neuron], true) {
                return Err(refuse("layers", format!("neuron {neuron} twice"), "each neuron once"));
            }
        }
    }
    if let Some(missing) = seen.iter().position(|s| !s) {
        return Err(refuse("layers", format!("without neuron {missing}"), "each neuron once"));
    }
    if let [_, .., last] = layers
        && !last.iter().copied().eq(0..output_dim)
    {
        let outputs = format!("0 to {}, the outputs, in this order", output_dim - 1);
        return Err(refuse("layers", format!("{} neurons in the last one", last.len()), outputs));
    }
    Ok(())
}

/// A wiring as it is written. Every field is checked on reading.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    config: WiringConfig,
    units: usize,
    output_dim: usize,
    input_dim: Option<usize>,
    layers: Vec<Vec<usize>>,
    /// (src, dest, polarity).
    synapses: Vec<(usize, usize, i8)>,
    /// (input, dest, polarity).
    sensory_synapses: Vec<(usize, usize, i8)>,
}

impl From<Wiring> for Record {
    fn from(wiring: Wiring) -> Record {
        Record {
            synapses: wiring.synapses().collect(),
            sensory_synapses: wiring.sensory_synapses().collect(),
            config: wiring.config,
            units: wiring.units,
            output_dim: wiring.output_dim,
            input_dim: wiring.input_dim,
            layers: wiring.layers,
        }
    }
}

impl TryFrom<Record> for Wiring {
    type Error = Error;

    fn try_from(record: Record) -> Result<Wiring> {
        let made = record.config.sizes()?;
        if (record.units, record.output_dim) != made {
            let got = format!("{} with output_dim {}", record.units, record.output_dim);
            return Err(refuse("units", got, format!("{} with output_dim {}, as in `config`", made.0, made.1)));
        }
        let mut wiring = Wiring::blank(record.config, record.units, record.output_dim, vec![]);
        wiring.set_layers(record.layers)?;
        if let Some(inputs) = record.input_dim {
            check_inputs(inputs, record.units)?;
            wiring.input_dim = record.input_dim;
            wiring.sensory_adjacency = vec![0; inputs * record.units];
        }
        let (synapses, sensory_synapses) = (record.synapses.len(), record.sensory_synapses.len());
        for (src, dest, polarity) in record.synapses {
            wiring.add_synapse(src, dest, polarity)?;
        }
        for (input, dest, polarity) in record.sensory_synapses {
            wiring.add_sensory_synapse(input, dest, polarity)?;
        }
        // One that overwrote another is missing now.
        if wiring.synapse_count() != synapses {
            return Err(refuse("synapses", "a list with a pair twice", "each pair once"));
        }
        if wiring.sensory_synapse_count() != sensory_synapses {
            return Err(refuse("sensory_synapses", "a list with a pair twice", "each pair once"));
        }
        Ok(wiring)
    }
}
