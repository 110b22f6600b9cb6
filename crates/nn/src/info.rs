//! What a model is and what it costs: counted from its options and its graph, nothing measured.

use crate::layer::Layer;
use crate::model::Model;
use crate::scope::GraphOptions;
use crate::{Result, Units};
use schwann_core::plan::{bytes, count};
use schwann_core::{Bindings, CompileOptions, Program};
use serde::Serialize;
use std::fmt;

/// A model in figures. All of them are derived: from options, shapes and the compiled graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Info {
    /// The layers.
    pub layers: Vec<LayerInfo>,
    /// Trained numbers.
    pub parameters: usize,
    /// Bytes of the weights as they are in a file.
    pub weight_bytes: usize,
    /// Bytes that each stream's state takes.
    pub state_bytes: usize,
    /// Arithmetic of one step of one stream, after what does not change from run to run was done ahead.
    pub step_flops: u64,
    /// Of which exponentials and the like.
    pub step_transcendentals: u64,
    /// Bytes that such a step reads and writes at least, weights included.
    pub step_bytes: u64,
    /// Bytes of the weights as they are kept for running on this CPU, packed copies included.
    pub resident_bytes: usize,
    /// Working memory of such a step on this CPU.
    pub arena_bytes: usize,
}

/// A layer in figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerInfo {
    /// Its class.
    pub class: String,
    /// Its options as JSON; a wiring as how it was made.
    pub options: serde_json::Value,
    /// Trained numbers.
    pub parameters: usize,
    /// Neurons, of a recurrent layer.
    pub units: Option<usize>,
    /// Synapses between neurons, of a circuit.
    pub synapses: Option<usize>,
    /// Synapses from inputs, of a circuit.
    pub sensory_synapses: Option<usize>,
    /// The share of pairs of neurons that have a synapse.
    pub density: Option<f64>,
    /// The share of pairs of an input and a neuron that have a synapse.
    pub sensory_density: Option<f64>,
}

impl LayerInfo {
    /// What it is called in a line: its class, or the function of an activation.
    pub fn label(&self) -> &str {
        match &self.options["function"] {
            serde_json::Value::String(name) => name,
            serde_json::Value::Object(with_options) => with_options.keys().next().unwrap_or(&self.class),
            _ => &self.class,
        }
    }

    fn of(layer: &Layer) -> Result<LayerInfo> {
        let wiring = match layer {
            Layer::Cfc(cfc) => match &cfc.units {
                Units::Wired(wiring) => {
                    let mut wiring = wiring.clone();
                    wiring.build(cfc.input_size)?;
                    Some(wiring)
                }
                Units::Count(_) => None,
            },
            Layer::Ltc(ltc) => Some(ltc.wiring()?),
            _ => None,
        };
        let mut options = serde_json::to_value(layer).unwrap_or_default();
        // Every synapse would be a long list.
        if let Some(made) = options.pointer("/units/config").cloned() {
            options["units"] = made;
        }
        Ok(LayerInfo {
            class: layer.class().to_owned(),
            options,
            parameters: layer.params()?.iter().map(|p| p.count()).sum(),
            units: layer.state_size(),
            synapses: wiring.as_ref().map(|w| w.synapse_count()),
            sensory_synapses: wiring.as_ref().map(|w| w.sensory_synapse_count()),
            density: wiring.as_ref().map(|w| w.synapse_count() as f64 / w.adjacency().len().max(1) as f64),
            sensory_density: wiring
                .as_ref()
                .map(|w| w.sensory_synapse_count() as f64 / w.sensory_adjacency().len().max(1) as f64),
        })
    }
}

impl Model {
    /// What the model is and what it costs. The graph is compiled for this CPU to see what is left of it.
    pub fn info(&self) -> Result<Info> {
        let layers = self.layers().iter().map(LayerInfo::of).collect::<Result<Vec<_>>>()?;
        let graph = self.graph(&GraphOptions::default())?;
        let program = Program::compile(&graph, &CompileOptions::default().threads(1))?;
        let one = Bindings::new().with("B", 1).with("T", 1).with("C", 1);
        let cost = program.graph().cost(&one)?;
        let plan = program.plan(&one)?;
        let units = |input: &str| {
            let (_, value) = graph.inputs().find(|(name, _)| *name == input)?;
            graph.ty(value).shape.dims().last()?.as_fixed()
        };
        let parameters = self.params().iter().map(|p| p.count()).sum();
        Ok(Info {
            layers,
            parameters,
            weight_bytes: parameters * 4,
            state_bytes: graph.states().iter().filter_map(|s| units(&s.input)).sum::<usize>() * 4,
            step_flops: cost.flops,
            step_transcendentals: cost.transcendentals,
            step_bytes: cost.bytes(),
            resident_bytes: plan.weight_bytes,
            arena_bytes: plan.arena_bytes,
        })
    }
}

impl fmt::Display for Info {
    /// A short page for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for layer in &self.layers {
            writeln!(f, "{}: {} parameters", layer.label(), layer.parameters)?;
            if let Some(units) = layer.units {
                write!(f, "  {units} neurons")?;
                if let (Some(inner), Some(sensory)) = (layer.synapses, layer.sensory_synapses) {
                    write!(f, ", {inner} synapses between them, {sensory} from inputs")?;
                }
                writeln!(f)?;
            }
            writeln!(f, "  {}", layer.options)?;
        }
        let size = |n: usize| bytes(n as u64);
        writeln!(f, "in all: {} parameters, {}", self.parameters, size(self.weight_bytes))?;
        writeln!(
            f,
            "a step: {} flops ({} transcendental), {} moved at least (derived)",
            count(self.step_flops),
            count(self.step_transcendentals),
            bytes(self.step_bytes)
        )?;
        writeln!(
            f,
            "memory: {} a stream, {} for all of weights, {} to work in (derived, this CPU)",
            size(self.state_bytes),
            size(self.resident_bytes),
            size(self.arena_bytes)
        )
    }
}
