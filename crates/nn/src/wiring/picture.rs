//! Circuits for people: SVG, DOT, and text for a terminal.
//!
//! All three show groups of neurons from left to right, inputs first and outputs last. Polarity is never told by colour
//! alone: what inhibits is dashed and ends in a bar, or is a `−`. The two colours, blue and vermilion, are among those
//! that all kinds of colour vision tell apart.

mod dot;
mod matrix;
mod svg;
mod text;

use super::{Wiring, WiringConfig};

/// Circuits of more layers are shown as if they had none: so many columns side by side would be a line.
const MOST_LAYERS: usize = 24;

/// What a neuron is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Input,
    Inter,
    Command,
    Motor,
}

impl Role {
    /// What the neurons of a layer are there for, in a circuit of several layers.
    pub(super) fn of_layer(layer: usize, layers: usize) -> Role {
        match layers - 1 - layer {
            0 => Role::Motor,
            1 if layers > 2 => Role::Command,
            _ => Role::Inter,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Role::Input => "input",
            Role::Inter => "inter",
            Role::Command => "command",
            Role::Motor => "motor",
        }
    }
}

/// An input or a neuron. Inputs are numbered first, then neurons.
type Node = usize;

/// Nodes that are shown together.
pub(super) struct Group {
    pub(super) role: Role,
    pub(super) name: String,
    pub(super) nodes: Vec<Node>,
}

/// A circuit as all pictures see it.
pub(super) struct Picture<'a> {
    wiring: &'a Wiring,
    inputs: usize,
    outputs: usize,
    groups: Vec<Group>,
    role: Vec<Role>,
    synapse_count: usize,
    /// Whether the groups are layers, one after the other.
    layered: bool,
    caption: String,
}

impl<'a> Picture<'a> {
    pub(super) fn new(wiring: &'a Wiring) -> Picture<'a> {
        let inputs = wiring.input_dim.unwrap_or(0);
        let mut groups = vec![];
        if inputs > 0 {
            groups.push(Group { role: Role::Input, name: "inputs".into(), nodes: (0..inputs).collect() });
        }
        let nodes = |neurons: &mut dyn Iterator<Item = usize>| neurons.map(|n| inputs + n).collect();
        let layers = if wiring.layer_count() > MOST_LAYERS { 1 } else { wiring.layer_count() };
        if layers == 1 {
            // One layer of everything: what is no output is an inter neuron.
            if wiring.output_dim < wiring.units {
                let nodes = nodes(&mut (wiring.output_dim..wiring.units));
                groups.push(Group { role: Role::Inter, name: "inter".into(), nodes });
            }
            groups.push(Group { role: Role::Motor, name: "motor".into(), nodes: nodes(&mut (0..wiring.output_dim)) });
        } else {
            for layer in 0..layers {
                let role = Role::of_layer(layer, layers);
                let name = if role == Role::Inter && layers > 3 {
                    format!("inter {}", layer + 1)
                } else {
                    role.name().to_owned()
                };
                groups.push(Group { role, name, nodes: nodes(&mut wiring.layer(layer).iter().copied()) });
            }
        }
        let mut role = vec![Role::Input; inputs + wiring.units];
        for group in &groups {
            group.nodes.iter().for_each(|&node| role[node] = group.role);
        }
        let excites = |matrix: &[i8]| matrix.iter().filter(|&&polarity| polarity > 0).count();
        let excite = excites(wiring.adjacency()) + excites(wiring.sensory_adjacency());
        let synapse_count = wiring.synapse_count() + wiring.sensory_synapse_count();
        let caption = format!(
            "{}, {}, {}; {}: {excite} excite, {} inhibit",
            counted(wiring.units, "neuron"),
            match wiring.input_dim {
                Some(inputs) => counted(inputs, "input"),
                None => "inputs still open".into(),
            },
            counted(wiring.output_dim, "output"),
            counted(synapse_count, "synapse"),
            synapse_count - excite
        );
        let (outputs, layered) = (wiring.output_dim, layers > 1);
        Picture { wiring, inputs, outputs, groups, role, synapse_count, layered, caption }
    }

    /// (from, to, polarity), in the order of the sources.
    fn synapses(&self) -> impl Iterator<Item = (Node, Node, i8)> + '_ {
        let inputs = self.inputs;
        let sensory = self.wiring.sensory_synapses().map(move |(input, dest, p)| (input, inputs + dest, p));
        sensory.chain(self.wiring.synapses().map(move |(src, dest, p)| (inputs + src, inputs + dest, p)))
    }

    /// `x3` for an input, the id for a neuron.
    fn label(&self, node: Node) -> String {
        if node < self.inputs { format!("x{node}") } else { (node - self.inputs).to_string() }
    }

    /// `y3` for a neuron that is an output.
    fn output(&self, node: Node) -> Option<String> {
        let neuron = node.checked_sub(self.inputs)?;
        (neuron < self.outputs).then(|| format!("y{neuron}"))
    }

    /// `input x3`, `command neuron 17`, `motor neuron 0, output y0`.
    fn describe(&self, node: Node) -> String {
        let label = self.label(node);
        let role = self.role[node].name();
        match (self.role[node], self.output(node)) {
            (Role::Input, _) => format!("{role} {label}"),
            (_, None) => format!("{role} neuron {label}"),
            (_, Some(output)) => format!("{role} neuron {label}, output {output}"),
        }
    }
}

/// `1 neuron`, `2 neurons`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

impl WiringConfig {
    /// A title: the kind of circuit, and its seed.
    pub fn title(&self) -> String {
        match self {
            WiringConfig::FullyConnected(o) => format!("Fully connected circuit, seed {}", o.erev_init_seed),
            WiringConfig::Random(o) => {
                format!("Random circuit, sparsity {}, seed {}", o.sparsity_level, o.random_seed)
            }
            WiringConfig::Ncp(o) => format!("Neural circuit policy, seed {}", o.seed),
            WiringConfig::AutoNcp(o) => {
                format!("Neural circuit policy, sparsity {}, seed {}", o.sparsity_level, o.seed)
            }
            WiringConfig::Custom { .. } => "Circuit built by hand".into(),
        }
    }
}
