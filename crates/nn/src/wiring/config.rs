//! How a circuit is made: the options of each generator, and their JSON, which is that of ncps.

use super::{MOST_PAIRS, Wiring, check_sizes, generate, refuse};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// ncps' seed for fully connected and random wirings.
const DENSE_SEED: u64 = 1111;
/// ncps' seed for NCPs.
const NCP_SEED: u32 = 22222;
const AUTO_SPARSITY: f64 = 0.5;

/// Every neuron reaches every neuron, every input every neuron; one synapse in three inhibits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FullyConnected {
    /// How many neurons.
    pub units: usize,
    /// How many of them are outputs.
    pub output_dim: usize,
    /// Decides the polarities.
    pub erev_init_seed: u64,
    /// Whether neurons reach themselves.
    pub self_connections: bool,
}

impl FullyConnected {
    /// `units` neurons, all of them outputs, with ncps' defaults.
    pub fn new(units: usize) -> FullyConnected {
        FullyConnected { units, output_dim: units, erev_init_seed: DENSE_SEED, self_connections: true }
    }
}

/// A share of all pairs, drawn at random; one synapse in three inhibits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Random {
    /// How many neurons.
    pub units: usize,
    /// How many of them are outputs.
    pub output_dim: usize,
    /// The share of pairs without a synapse, from 0 to less than 1.
    pub sparsity_level: f64,
    /// Decides which pairs, and the polarities.
    pub random_seed: u64,
}

impl Random {
    /// `units` neurons, all of them outputs, with ncps' default seed.
    pub fn new(units: usize, sparsity_level: f64) -> Random {
        Random { units, output_dim: units, sparsity_level, random_seed: DENSE_SEED }
    }
}

/// A neural circuit policy: inputs → inter → command ⟲ → motor neurons, each layer sparse.
///
/// Neuron ids: motor first, then command, then inter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ncp {
    /// How many neurons read the inputs.
    pub inter_neurons: usize,
    /// How many neurons decide, with synapses among themselves.
    pub command_neurons: usize,
    /// How many neurons are outputs.
    pub motor_neurons: usize,
    /// Inter neurons that each input reaches.
    pub sensory_fanout: usize,
    /// Command neurons that each inter neuron reaches.
    pub inter_fanout: usize,
    /// How often a synapse among command neurons is drawn; a pair may be drawn again.
    pub recurrent_command_synapses: usize,
    /// Command neurons that reach each motor neuron.
    pub motor_fanin: usize,
    /// Decides the synapses and their polarities.
    pub seed: u32,
}

impl Ncp {
    /// So many neurons a layer, one synapse a neuron; the other fields say more.
    pub fn new(inter_neurons: usize, command_neurons: usize, motor_neurons: usize) -> Ncp {
        Ncp {
            inter_neurons,
            command_neurons,
            motor_neurons,
            sensory_fanout: 1,
            inter_fanout: 1,
            recurrent_command_synapses: 1,
            motor_fanin: 1,
            seed: NCP_SEED,
        }
    }
}

/// An [`Ncp`] from its size alone: 60 % of the neurons that are no outputs are inter, 40 % command neurons.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AutoNcp {
    /// How many neurons in all.
    pub units: usize,
    /// How many of them are motor neurons, the outputs; fewer than `units` − 2.
    pub output_size: usize,
    /// About the share of pairs without a synapse, from 0.1 to 1.
    pub sparsity_level: f64,
    /// Decides the synapses and their polarities.
    pub seed: u32,
}

impl AutoNcp {
    /// `units` neurons, `output_size` of them outputs, with ncps' defaults.
    pub fn new(units: usize, output_size: usize) -> AutoNcp {
        AutoNcp { units, output_size, sparsity_level: AUTO_SPARSITY, seed: NCP_SEED }
    }

    /// The layers and fans that come of these options.
    pub fn to_ncp(&self) -> Result<Ncp> {
        let AutoNcp { units, output_size, sparsity_level, seed } = *self;
        check_sizes(units, units.max(1))?;
        if output_size == 0 || output_size >= units.saturating_sub(2) {
            let most = units.saturating_sub(3);
            let expected = match most {
                0 => "at least 4 `units`, since an NCP has inter, command and motor neurons".to_owned(),
                _ => format!("from 1 to {most}, less than `units` − 2"),
            };
            return Err(refuse("output_size", format!("{output_size} of {units} units"), expected));
        }
        if !(0.1..=1.0).contains(&sparsity_level) {
            return Err(refuse("sparsity_level", sparsity_level, "from 0.1 to 1"));
        }
        // The order of these products decides how they round, and so the circuit.
        let density = 1.0 - sparsity_level;
        let share = |neurons: usize| ((neurons as f64 * density) as usize).max(1);
        let inter_and_command = units - output_size;
        let command_neurons = ((0.4 * inter_and_command as f64) as usize).max(1);
        let inter_neurons = inter_and_command - command_neurons;
        Ok(Ncp {
            inter_neurons,
            command_neurons,
            motor_neurons: output_size,
            sensory_fanout: share(inter_neurons),
            inter_fanout: share(command_neurons),
            recurrent_command_synapses: ((command_neurons as f64 * density * 2.0) as usize).max(1),
            motor_fanin: share(command_neurons),
            seed,
        })
    }
}

/// How a circuit was made.
///
/// Its JSON is the class name and the constructor's arguments of ncps, `{"class":"AutoNCP","units":64,"output_size":16}`;
/// what is left out has ncps' defaults, what is unknown is an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class", try_from = "Value")]
#[non_exhaustive]
pub enum WiringConfig {
    /// See [`FullyConnected`].
    FullyConnected(FullyConnected),
    /// See [`Random`].
    Random(Random),
    /// See [`Ncp`].
    #[serde(rename = "NCP")]
    Ncp(Ncp),
    /// See [`AutoNcp`].
    #[serde(rename = "AutoNCP")]
    AutoNcp(AutoNcp),
    /// Wired by hand.
    Custom {
        /// How many neurons.
        units: usize,
        /// How many of them are outputs.
        output_dim: usize,
    },
}

impl WiringConfig {
    /// The circuit, not yet built: the number of inputs is still open. A custom one has no synapses.
    pub fn to_wiring(&self) -> Result<Wiring> {
        let (units, output_dim) = self.sizes()?;
        let layers = match self.as_ncp()? {
            Some(ncp) => ncp.layers(),
            None => vec![(0..units).collect()],
        };
        let mut wiring = Wiring::blank(self.clone(), units, output_dim, layers);
        generate::at_once(&mut wiring);
        Ok(wiring)
    }

    /// The layers and fans of an NCP; `None` for the others.
    pub(super) fn as_ncp(&self) -> Result<Option<Ncp>> {
        match self {
            WiringConfig::Ncp(ncp) => Ok(Some(ncp.clone())),
            WiringConfig::AutoNcp(auto) => auto.to_ncp().map(Some),
            _ => Ok(None),
        }
    }

    /// Checks every option; gives the numbers of neurons and of outputs.
    pub(super) fn sizes(&self) -> Result<(usize, usize)> {
        let (units, output_dim) = match *self {
            WiringConfig::FullyConnected(FullyConnected { units, output_dim, .. })
            | WiringConfig::Custom { units, output_dim } => (units, output_dim),
            WiringConfig::Random(Random { units, output_dim, sparsity_level, .. }) => {
                if !(0.0..1.0).contains(&sparsity_level) {
                    return Err(refuse("sparsity_level", sparsity_level, "from 0 to less than 1"));
                }
                (units, output_dim)
            }
            WiringConfig::Ncp(ref ncp) => return ncp.sizes(),
            WiringConfig::AutoNcp(ref auto) => return auto.to_ncp()?.sizes(),
        };
        check_sizes(units, output_dim)?;
        Ok((units, output_dim))
    }

    /// As JSON, in the form of ncps.
    pub fn to_json(&self) -> String {
        // Numbers and strings: there is nothing that JSON could not hold.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the JSON of ncps: `{"class":"AutoNCP","units":64,"output_size":16}`.
    pub fn from_json(text: &str) -> Result<WiringConfig> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| refuse("wiring config", format!("unreadable ({e})"), "a JSON object with a `class`"))?;
        WiringConfig::try_from(value)
    }
}

impl Ncp {
    fn sizes(&self) -> Result<(usize, usize)> {
        let layers = [
            ("inter_neurons", self.inter_neurons),
            ("command_neurons", self.command_neurons),
            ("motor_neurons", self.motor_neurons),
        ];
        let most = MOST_PAIRS.isqrt();
        for (name, neurons) in layers {
            if neurons == 0 || neurons > most {
                return Err(refuse(name, neurons, format!("from 1 to {most}")));
            }
        }
        let units = layers.iter().map(|(_, neurons)| neurons).sum();
        check_sizes(units, self.motor_neurons)?;
        for (name, fan, layer, neurons) in [
            ("motor_fanin", self.motor_fanin, "command", self.command_neurons),
            ("sensory_fanout", self.sensory_fanout, "inter", self.inter_neurons),
            ("inter_fanout", self.inter_fanout, "command", self.command_neurons),
        ] {
            if fan > neurons {
                return Err(refuse(name, fan, format!("at most {neurons}, the number of {layer} neurons")));
            }
        }
        // Each is a draw, so that a number beyond all reason would keep us drawing for ever.
        if self.recurrent_command_synapses > MOST_PAIRS {
            let got = self.recurrent_command_synapses;
            return Err(refuse("recurrent_command_synapses", got, format!("at most {MOST_PAIRS}")));
        }
        Ok((units, self.motor_neurons))
    }

    /// Inter, command, motor.
    fn layers(&self) -> Vec<Vec<usize>> {
        let command = self.motor_neurons;
        let inter = command + self.command_neurons;
        vec![
            (inter..inter + self.inter_neurons).collect(),
            (command..inter).collect(),
            (0..self.motor_neurons).collect(),
        ]
    }
}

macro_rules! generator {
    ($options:ident) => {
        impl $options {
            /// The circuit, not yet built: the number of inputs is still open.
            pub fn wiring(&self) -> Result<Wiring> {
                WiringConfig::$options(self.clone()).to_wiring()
            }

            /// The circuit, built for `input_dim` inputs.
            pub fn build(&self, input_dim: usize) -> Result<Wiring> {
                let mut wiring = self.wiring()?;
                wiring.build(input_dim)?;
                Ok(wiring)
            }
        }

        impl From<$options> for WiringConfig {
            fn from(options: $options) -> WiringConfig {
                WiringConfig::$options(options)
            }
        }
    };
}
generator!(FullyConnected);
generator!(Random);
generator!(Ncp);
generator!(AutoNcp);

impl TryFrom<Value> for WiringConfig {
    type Error = Error;

    fn try_from(value: Value) -> Result<WiringConfig> {
        const CLASSES: &str = "one of FullyConnected, Random, NCP, AutoNCP, Custom";
        let Value::Object(mut values) = value else {
            return Err(refuse("wiring config", shortened(&value), "a JSON object with a `class`"));
        };
        let class = match values.remove("class") {
            Some(Value::String(class)) => class,
            Some(other) => return Err(refuse("class", shortened(&other), CLASSES)),
            None => return Err(refuse("class", "missing", CLASSES)),
        };
        let mut fields = Fields { class, values, known: vec![] };
        let config = match fields.class.as_str() {
            "FullyConnected" => {
                let units = fields.required("units", SIZE, to_usize)?;
                let defaults = FullyConnected::new(units);
                WiringConfig::FullyConnected(FullyConnected {
                    units,
                    output_dim: fields.or("output_dim", SIZE, to_usize, defaults.output_dim)?,
                    erev_init_seed: fields.or("erev_init_seed", SEED, Value::as_u64, defaults.erev_init_seed)?,
                    self_connections: fields.or("self_connections", BOOL, Value::as_bool, defaults.self_connections)?,
                })
            }
            "Random" => {
                let units = fields.required("units", SIZE, to_usize)?;
                let defaults = Random::new(units, 0.0);
                WiringConfig::Random(Random {
                    units,
                    output_dim: fields.or("output_dim", SIZE, to_usize, defaults.output_dim)?,
                    sparsity_level: fields.or("sparsity_level", SHARE, Value::as_f64, defaults.sparsity_level)?,
                    random_seed: fields.or("random_seed", SEED, Value::as_u64, defaults.random_seed)?,
                })
            }
            "NCP" => WiringConfig::Ncp(Ncp {
                inter_neurons: fields.required("inter_neurons", SIZE, to_usize)?,
                command_neurons: fields.required("command_neurons", SIZE, to_usize)?,
                motor_neurons: fields.required("motor_neurons", SIZE, to_usize)?,
                sensory_fanout: fields.required("sensory_fanout", SIZE, to_usize)?,
                inter_fanout: fields.required("inter_fanout", SIZE, to_usize)?,
                recurrent_command_synapses: fields.required("recurrent_command_synapses", SIZE, to_usize)?,
                motor_fanin: fields.required("motor_fanin", SIZE, to_usize)?,
                seed: fields.or("seed", SHORT_SEED, to_u32, NCP_SEED)?,
            }),
            "AutoNCP" => WiringConfig::AutoNcp(AutoNcp {
                units: fields.required("units", SIZE, to_usize)?,
                output_size: fields.required("output_size", SIZE, to_usize)?,
                sparsity_level: fields.or("sparsity_level", SHARE, Value::as_f64, AUTO_SPARSITY)?,
                seed: fields.or("seed", SHORT_SEED, to_u32, NCP_SEED)?,
            }),
            "Custom" => WiringConfig::Custom {
                units: fields.required("units", SIZE, to_usize)?,
                output_dim: fields.required("output_dim", SIZE, to_usize)?,
            },
            other => return Err(refuse("class", shortened(&other.into()), CLASSES)),
        };
        fields.finish()?;
        Ok(config)
    }
}

const SIZE: &str = "a whole number";
const SHARE: &str = "a number";
const BOOL: &str = "true or false";
const SEED: &str = "a whole number below 2^64";
const SHORT_SEED: &str = "a whole number below 2^32";

fn to_usize(value: &Value) -> Option<usize> {
    value.as_u64()?.try_into().ok()
}

fn to_u32(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

/// A value for an error message, which need not hold a whole file.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(59).chain(['…']).collect() }
}

/// The fields of one JSON object, taken one by one; what is left at the end is unknown.
struct Fields {
    class: String,
    values: Map<String, Value>,
    known: Vec<&'static str>,
}

impl Fields {
    fn or<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
        default: T,
    ) -> Result<T> {
        self.known.push(name);
        match self.values.remove(name) {
            None => Ok(default),
            Some(value) => read(&value).ok_or_else(|| refuse(&self.path(name), shortened(&value), expected)),
        }
    }

    fn required<T>(&mut self, name: &'static str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Result<T> {
        self.known.push(name);
        let value = self.values.remove(name).ok_or_else(|| refuse(&self.path(name), "missing", expected))?;
        read(&value).ok_or_else(|| refuse(&self.path(name), shortened(&value), expected))
    }

    fn path(&self, name: &str) -> String {
        format!("{}.{name}", self.class)
    }

    fn finish(self) -> Result<()> {
        match self.values.keys().next() {
            None => Ok(()),
            Some(name) => {
                let name: String = name.chars().take(60).collect();
                Err(refuse(&self.path(&name), "unknown", format!("one of {}", self.known.join(", "))))
            }
        }
    }
}
