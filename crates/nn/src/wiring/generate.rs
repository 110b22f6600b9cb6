//! Drawing circuits at random, draw for draw as ncps does: the order of the draws *is* the circuit.
//!
//! Options were checked before ([`WiringConfig::to_wiring`]), so nothing here can fail.

use super::Wiring;
use super::config::{FullyConnected, Ncp, Random, WiringConfig};
use super::numpy_random::{Generator, RandomState};

/// The synapses that do not wait for the number of inputs.
pub(super) fn at_once(wiring: &mut Wiring) {
    match wiring.config.clone() {
        WiringConfig::FullyConnected(options) => {
            options.draw(|src, dest, polarity| wiring.set(src, dest, polarity));
        }
        WiringConfig::Random(options) => {
            options.draw(|src, dest, polarity| wiring.set(src, dest, polarity));
        }
        WiringConfig::Ncp(_) | WiringConfig::AutoNcp(_) | WiringConfig::Custom { .. } => {}
    }
}

/// The synapses that wait for the number of inputs. Synapses added by hand stay, unless drawn again.
pub(super) fn on_build(wiring: &mut Wiring, inputs: usize) {
    match wiring.config.clone() {
        // The stream goes on from where the synapses between neurons left it.
        WiringConfig::FullyConnected(options) => {
            let mut rng = options.draw(|_, _, _| {});
            for input in 0..inputs {
                for dest in 0..options.units {
                    wiring.set_sensory(input, dest, mostly_excites(&mut rng));
                }
            }
        }
        WiringConfig::Random(options) => {
            let mut rng = options.draw(|_, _, _| {});
            for (input, dest) in options.pairs(inputs, &mut rng) {
                // ncps draws each polarity twice and keeps the second.
                mostly_excites(&mut rng);
                wiring.set_sensory(input, dest, mostly_excites(&mut rng));
            }
        }
        config => {
            if let Ok(Some(ncp)) = config.as_ncp() {
                draw_ncp(&ncp, wiring, inputs);
            }
        }
    }
}

/// −1 once in three.
fn mostly_excites(rng: &mut Generator) -> i8 {
    [-1, 1, 1][rng.choose(3)]
}

impl FullyConnected {
    /// Draws the synapses between neurons; gives the stream as they leave it.
    fn draw(&self, mut set: impl FnMut(usize, usize, i8)) -> Generator {
        let mut rng = Generator::new(self.erev_init_seed);
        for src in 0..self.units {
            for dest in 0..self.units {
                if src != dest || self.self_connections {
                    set(src, dest, mostly_excites(&mut rng));
                }
            }
        }
        rng
    }
}

impl Random {
    /// Draws the synapses between neurons; gives the stream as they leave it.
    fn draw(&self, mut set: impl FnMut(usize, usize, i8)) -> Generator {
        let mut rng = Generator::new(self.random_seed);
        for (src, dest) in self.pairs(self.units, &mut rng) {
            set(src, dest, mostly_excites(&mut rng));
        }
        rng
    }

    /// The pairs of a source and a neuron that have a synapse, in the order drawn; their number is rounded half to even.
    fn pairs(&self, sources: usize, rng: &mut Generator) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (units, pairs) = (self.units, sources * self.units);
        let kept = (pairs as f64 * (1.0 - self.sparsity_level)).round_ties_even();
        // At most `MOST_PAIRS`, which fits.
        let drawn = rng.sample(pairs as u32, kept as u32);
        drawn.into_iter().map(move |pair| (pair as usize / units, pair as usize % units))
    }
}

fn draw_ncp(ncp: &Ncp, wiring: &mut Wiring, inputs: usize) {
    let (motors, commands, inters) = (ncp.motor_neurons, ncp.command_neurons, ncp.inter_neurons);
    // Ids: motor, command, inter.
    let (command, inter) = (motors, motors + commands);
    let mut rng = RandomState::new(ncp.seed);
    let polarity = |rng: &mut RandomState| [-1, 1][rng.choose(2)];

    let mut reached = vec![false; inters];
    for input in 0..inputs {
        for dest in rng.sample(inters, ncp.sensory_fanout) {
            reached[dest] = true;
            wiring.set_sensory(input, inter + dest, polarity(&mut rng));
        }
    }
    let fan_in = (inputs * ncp.sensory_fanout / inters).clamp(1, inputs);
    for dest in missed(&reached) {
        for input in rng.sample(inputs, fan_in) {
            wiring.set_sensory(input, inter + dest, polarity(&mut rng));
        }
    }

    let mut reached = vec![false; commands];
    for src in 0..inters {
        for dest in rng.sample(commands, ncp.inter_fanout) {
            reached[dest] = true;
            wiring.set(inter + src, command + dest, polarity(&mut rng));
        }
    }
    let fan_in = (inters * ncp.inter_fanout / commands).clamp(1, commands);
    for dest in missed(&reached) {
        for src in rng.sample(inters, fan_in) {
            wiring.set(inter + src, command + dest, polarity(&mut rng));
        }
    }

    for _ in 0..ncp.recurrent_command_synapses {
        let src = rng.choose(commands);
        let dest = rng.choose(commands);
        wiring.set(command + src, command + dest, polarity(&mut rng));
    }

    let mut used = vec![false; commands];
    for dest in 0..motors {
        for src in rng.sample(commands, ncp.motor_fanin) {
            used[src] = true;
            wiring.set(command + src, dest, polarity(&mut rng));
        }
    }
    let fan_out = (motors * ncp.motor_fanin / commands).clamp(1, motors);
    for src in missed(&used) {
        for dest in rng.sample(motors, fan_out) {
            wiring.set(command + src, dest, polarity(&mut rng));
        }
    }
}

/// The indices of those that are false.
fn missed(flags: &[bool]) -> impl Iterator<Item = usize> + '_ {
    flags.iter().enumerate().filter(|(_, flag)| !**flag).map(|(i, _)| i)
}
