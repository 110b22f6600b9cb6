//! What a circuit looks like in numbers, and whether its outputs can know its inputs at all.

use super::Wiring;
use serde::Serialize;
use std::fmt;

/// A circuit in numbers; made by [`Wiring::stats`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// How many neurons.
    pub units: usize,
    /// How many inputs; `None` while the wiring is not built.
    pub inputs: Option<usize>,
    /// How many of the neurons are outputs.
    pub outputs: usize,
    /// Synapses between neurons.
    pub synapses: Synapses,
    /// Synapses from inputs to neurons.
    pub sensory_synapses: Synapses,
    /// Neurons that reach themselves with one synapse.
    pub self_loops: usize,
    /// Synapses into a neuron, from inputs and neurons.
    pub in_degree: Degrees,
    /// Synapses from a neuron to neurons.
    pub out_degree: Degrees,
    /// Synapses from an input to neurons.
    pub input_degree: Degrees,
    /// Strongly connected components: the largest sets of neurons that all reach each other, largest first. A neuron on
    /// no cycle is a component of its own.
    pub components: Vec<Vec<usize>>,
    /// For each output, the inputs that reach it over any number of synapses.
    pub inputs_of_output: Vec<Vec<usize>>,
    /// Neurons that no input reaches: they compute without ever seeing anything. Empty while the wiring is not built.
    pub unreached: Vec<usize>,
    /// Neurons that reach no output: what they compute is lost.
    pub dangling: Vec<usize>,
    /// Inputs that reach no output.
    pub unused_inputs: Vec<usize>,
}

/// Synapses of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Synapses {
    /// How many there are.
    pub count: usize,
    /// How many of them excite.
    pub excitatory: usize,
    /// How many of them inhibit.
    pub inhibitory: usize,
    /// How many there could be.
    pub possible: usize,
}

impl Synapses {
    fn of(matrix: &[i8]) -> Synapses {
        let excitatory = matrix.iter().filter(|&&p| p > 0).count();
        let inhibitory = matrix.iter().filter(|&&p| p < 0).count();
        Synapses { count: excitatory + inhibitory, excitatory, inhibitory, possible: matrix.len() }
    }

    /// The share of possible synapses that there are, from 0 to 1.
    pub fn density(&self) -> f64 {
        self.count as f64 / self.possible.max(1) as f64
    }
}

/// Synapses of one neuron or input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Degrees {
    /// The fewest.
    pub min: usize,
    /// On average.
    pub mean: f64,
    /// The most.
    pub max: usize,
}

impl Degrees {
    fn of(degrees: &[usize]) -> Degrees {
        Degrees {
            min: degrees.iter().copied().min().unwrap_or(0),
            mean: degrees.iter().sum::<usize>() as f64 / degrees.len().max(1) as f64,
            max: degrees.iter().copied().max().unwrap_or(0),
        }
    }
}

impl Wiring {
    /// The circuit in numbers.
    pub fn stats(&self) -> Stats {
        let mut into = vec![0; self.units];
        let mut out_of = vec![0; self.units];
        let mut out_of_input = vec![0; self.input_dim.unwrap_or(0)];
        for (src, dest, _) in self.synapses() {
            out_of[src] += 1;
            into[dest] += 1;
        }
        for (input, dest, _) in self.sensory_synapses() {
            out_of_input[input] += 1;
            into[dest] += 1;
        }
        let mut components = self.components();
        let reach = Reach::new(self, &components);
        components.sort_by_key(|component| (usize::MAX - component.len(), component[0]));
        Stats {
            units: self.units,
            inputs: self.input_dim,
            outputs: self.output_dim,
            synapses: Synapses::of(&self.adjacency),
            sensory_synapses: Synapses::of(&self.sensory_adjacency),
            self_loops: (0..self.units).filter(|n| self.adjacency[n * self.units + n] != 0).count(),
            in_degree: Degrees::of(&into),
            out_degree: Degrees::of(&out_of),
            input_degree: Degrees::of(&out_of_input),
            components,
            inputs_of_output: (0..self.output_dim).map(|n| reach.inputs_of(n)).collect(),
            unreached: match self.input_dim {
                Some(_) => (0..self.units).filter(|&n| reach.inputs_of(n).is_empty()).collect(),
                None => vec![],
            },
            dangling: (0..self.units).filter(|&n| !reach.reaches_output[reach.component_of[n]]).collect(),
            unused_inputs: reach.unused_inputs(self),
        }
    }

    /// Strongly connected components, each sorted, and no component before one that it reaches: Tarjan's algorithm, with
    /// a stack of its own, since a chain of neurons may be longer than the thread's.
    fn components(&self) -> Vec<Vec<usize>> {
        const NEW: usize = usize::MAX;
        let units = self.units;
        let mut order = vec![NEW; units];
        let mut lowest = vec![0; units];
        let mut waiting = vec![false; units];
        let (mut found, mut stack, mut components) = (0, vec![], vec![]);
        for root in 0..units {
            // Neurons being visited, each with the next destination to look at.
            let mut path = if order[root] == NEW { vec![(root, 0)] } else { vec![] };
            while let Some((neuron, next)) = path.last_mut() {
                let neuron = *neuron;
                if order[neuron] == NEW {
                    order[neuron] = found;
                    lowest[neuron] = found;
                    found += 1;
                    stack.push(neuron);
                    waiting[neuron] = true;
                }
                let row = &self.adjacency[neuron * units..][..units];
                let dest = (*next..units).find(|&dest| row[dest] != 0);
                if let Some(dest) = dest {
                    *next = dest + 1;
                    if order[dest] == NEW {
                        path.push((dest, 0));
                    } else if waiting[dest] {
                        lowest[neuron] = lowest[neuron].min(order[dest]);
                    }
                    continue;
                }
                path.pop();
                if let Some(&(parent, _)) = path.last() {
                    lowest[parent] = lowest[parent].min(lowest[neuron]);
                }
                if lowest[neuron] == order[neuron] {
                    let start = stack.iter().rposition(|&n| n == neuron).unwrap_or(0);
                    let mut component = stack.split_off(start);
                    component.iter().for_each(|&n| waiting[n] = false);
                    component.sort_unstable();
                    components.push(component);
                }
            }
        }
        components
    }
}

/// Who reaches whom over any number of synapses. Neurons of a component reach the same, so it is kept once for each.
struct Reach {
    component_of: Vec<usize>,
    /// A row of bits for each component: the inputs that reach it.
    inputs: Vec<u64>,
    words: usize,
    reaches_output: Vec<bool>,
}

impl Reach {
    /// Of components in the order of [`Wiring::components`].
    fn new(wiring: &Wiring, components: &[Vec<usize>]) -> Reach {
        let words = wiring.input_dim.unwrap_or(0).div_ceil(64);
        let mut component_of = vec![0; wiring.units];
        for (i, component) in components.iter().enumerate() {
            component.iter().for_each(|&n| component_of[n] = i);
        }
        let mut inputs = vec![0; components.len() * words];
        for (input, dest, _) in wiring.sensory_synapses() {
            inputs[component_of[dest] * words + input / 64] |= 1 << (input % 64);
        }
        let mut reaches_output: Vec<bool> = components.iter().map(|c| c[0] < wiring.output_dim).collect();
        // What a component reaches comes before it: inputs flow from last to first, outputs are found from first to last.
        for (i, component) in components.iter().enumerate().rev() {
            for j in successors(wiring, component, &component_of) {
                let (before, from) = inputs.split_at_mut(i * words);
                for (to, from) in before[j * words..].iter_mut().zip(&from[..words]) {
                    *to |= from;
                }
            }
        }
        for (i, component) in components.iter().enumerate() {
            let any = successors(wiring, component, &component_of).any(|j| reaches_output[j]);
            reaches_output[i] |= any;
        }
        Reach { component_of, inputs, words, reaches_output }
    }

    fn inputs_of(&self, neuron: usize) -> Vec<usize> {
        let row = &self.inputs[self.component_of[neuron] * self.words..][..self.words];
        (0..self.words * 64).filter(|i| row[i / 64] >> (i % 64) & 1 == 1).collect()
    }

    fn unused_inputs(&self, wiring: &Wiring) -> Vec<usize> {
        let mut used = vec![false; wiring.input_dim.unwrap_or(0)];
        for (input, dest, _) in wiring.sensory_synapses() {
            used[input] |= self.reaches_output[self.component_of[dest]];
        }
        (0..used.len()).filter(|&i| !used[i]).collect()
    }
}

/// The other components that a component has synapses to; some more than once.
fn successors<'a>(
    wiring: &'a Wiring,
    component: &'a [usize],
    component_of: &'a [usize],
) -> impl Iterator<Item = usize> + 'a {
    component.iter().flat_map(move |&src| {
        let row = &wiring.adjacency[src * wiring.units..][..wiring.units];
        let here = component_of[src];
        row.iter().zip(component_of).filter(move |(p, to)| **p != 0 && **to != here).map(|(_, &to)| to)
    })
}

impl Stats {
    /// The components that are cycles: more than one neuron. (A self-loop is a cycle too; [`Stats::self_loops`] counts
    /// those.)
    pub fn cycles(&self) -> impl Iterator<Item = &[usize]> {
        self.components.iter().map(Vec::as_slice).filter(|component| component.len() > 1)
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let synapses = |s: &Synapses| {
            format!(
                "{} of {} possible ({:.1} %): {} excite, {} inhibit",
                s.count,
                s.possible,
                100.0 * s.density(),
                s.excitatory,
                s.inhibitory
            )
        };
        let degrees = |d: &Degrees| format!("{} to {}, {:.1} on average", d.min, d.max, d.mean);
        writeln!(f, "synapses             {}", synapses(&self.synapses))?;
        match self.inputs {
            Some(_) => writeln!(f, "sensory synapses     {}", synapses(&self.sensory_synapses))?,
            None => writeln!(f, "sensory synapses     none yet: the wiring is not built")?,
        }
        writeln!(f, "into a neuron        {}", degrees(&self.in_degree))?;
        writeln!(f, "out of a neuron      {}", degrees(&self.out_degree))?;
        if self.inputs.is_some() {
            writeln!(f, "out of an input      {}", degrees(&self.input_degree))?;
        }
        let cycles: Vec<usize> = self.cycles().map(<[usize]>::len).collect();
        let cycles = match cycles.as_slice() {
            [] => "no two neurons reach each other".to_owned(),
            [one] => format!("{one} neurons that all reach each other"),
            many => format!("{} groups, the largest of {} neurons that all reach each other", many.len(), many[0]),
        };
        let loops = match self.self_loops {
            0 => String::new(),
            1 => "; 1 self-loop".into(),
            many => format!("; {many} self-loops"),
        };
        writeln!(f, "recurrence           {cycles}{loops}")?;
        if let Some(inputs) = self.inputs {
            let fewest = self.inputs_of_output.iter().map(Vec::len).min().unwrap_or(0);
            let all = self.inputs_of_output.iter().filter(|of| of.len() == inputs).count();
            let seen = match (all == self.outputs, self.outputs, inputs) {
                (true, 1, 1) => "the output is reached by the input".to_owned(),
                (true, 1, _) => format!("the output is reached by all {inputs} inputs"),
                (true, outputs, 1) => format!("all {outputs} are reached by the input"),
                (true, outputs, _) => format!("all {outputs} are reached by all {inputs} inputs"),
                (false, outputs, _) => {
                    format!("{all} of {outputs} are reached by all {inputs} inputs, the poorest by {fewest}")
                }
            };
            writeln!(f, "outputs              {seen}")?;
        }
        for (what, ids) in [
            ("no input reaches", &self.unreached),
            ("reach no output", &self.dangling),
            ("inputs without use", &self.unused_inputs),
        ] {
            if !ids.is_empty() {
                writeln!(f, "{what:<20} {}", listed(ids))?;
            }
        }
        Ok(())
    }
}

/// The first of these, and how many more.
fn listed(ids: &[usize]) -> String {
    const SHOWN: usize = 12;
    let shown: Vec<String> = ids.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = if ids.len() > SHOWN { format!(" and {} more", ids.len() - SHOWN) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::{FullyConnected, Ncp};
    use super::*;

    /// A wiring of these synapses, all excitatory.
    fn circuit(
        (units, outputs, inputs): (usize, usize, usize),
        sensory: &[(usize, usize)],
        inner: &[(usize, usize)],
    ) -> Wiring {
        let mut wiring = Wiring::new(units, outputs).unwrap();
        wiring.build(inputs).unwrap();
        sensory.iter().for_each(|&(input, dest)| wiring.add_sensory_synapse(input, dest, 1).unwrap());
        inner.iter().for_each(|&(src, dest)| wiring.add_synapse(src, dest, 1).unwrap());
        wiring
    }

    #[test]
    fn cycles_outputs_and_lost_neurons_are_found() {
        // x0 → 2 ⇄ 3 → 0; x1 → 4 (lost); 5 → 1 (blind); 6 alone, with a self-loop.
        let wiring = circuit((7, 2, 3), &[(0, 2), (1, 4)], &[(2, 3), (3, 2), (3, 0), (5, 1), (6, 6)]);
        let stats = wiring.stats();
        assert_eq!(stats.cycles().collect::<Vec<_>>(), [&[2, 3]]);
        assert_eq!(stats.components.len(), 6);
        assert_eq!(stats.self_loops, 1);
        assert_eq!(stats.inputs_of_output, [vec![0], vec![]]);
        assert_eq!(stats.unreached, [1, 5, 6]);
        assert_eq!(stats.dangling, [4, 6]);
        assert_eq!(stats.unused_inputs, [1, 2]);
        assert_eq!((stats.synapses.count, stats.synapses.possible), (5, 49));
        assert_eq!((stats.in_degree.min, stats.in_degree.max), (0, 2));
        assert!((stats.in_degree.mean - 1.0).abs() < 1e-12);
        let text = stats.to_string();
        assert!(text.contains("no input reaches     1, 5, 6") && text.contains("the poorest by 0"), "{text}");
    }

    #[test]
    fn reach_is_that_of_a_plain_search() {
        for seed in 0..40 {
            let wiring = super::super::Random {
                output_dim: 9,
                random_seed: seed,
                ..super::super::Random::new(30, 0.9 + 0.002 * seed as f64)
            }
            .build(70)
            .unwrap();
            let stats = wiring.stats();
            let reached = |start: usize| {
                let mut seen = vec![false; 30];
                let mut todo: Vec<usize> =
                    (0..30).filter(|d| wiring.sensory_adjacency()[start * 30 + d] != 0).collect();
                while let Some(neuron) = todo.pop() {
                    if !std::mem::replace(&mut seen[neuron], true) {
                        todo.extend((0..30).filter(|d| wiring.adjacency()[neuron * 30 + d] != 0));
                    }
                }
                seen
            };
            let reached: Vec<Vec<bool>> = (0..70).map(reached).collect();
            for (output, inputs) in stats.inputs_of_output.iter().enumerate() {
                assert!(inputs.iter().copied().eq((0..70).filter(|&i| reached[i][output])));
            }
            assert!(stats.unreached.iter().copied().eq((0..30).filter(|&n| !reached.iter().any(|r| r[n]))));
            assert!(stats.unused_inputs.iter().copied().eq((0..70).filter(|&i| !reached[i][..9].contains(&true))));
        }
    }

    #[test]
    fn a_long_chain_overflows_no_stack() {
        let units = 8192;
        let mut wiring = Wiring::new(units, 1).unwrap();
        for neuron in 0..units {
            wiring.add_synapse(neuron, (neuron + 1) % units, 1).unwrap();
        }
        let stats = wiring.stats();
        assert_eq!(stats.components.len(), 1);
        assert!(stats.unreached.is_empty() && stats.dangling.is_empty() && stats.inputs_of_output[0].is_empty());
        assert!(stats.to_string().contains("not built"));
    }

    #[test]
    fn nothing_is_lost_in_generated_circuits() {
        let full = FullyConnected::new(12).build(3).unwrap().stats();
        assert_eq!((full.synapses.density(), full.sensory_synapses.density()), (1.0, 1.0));
        assert_eq!((full.components.len(), full.self_loops), (1, 12));
        let ncp = Ncp::new(12, 6, 2).build(4).unwrap().stats();
        assert!(ncp.unreached.is_empty() && ncp.dangling.is_empty() && ncp.unused_inputs.is_empty());
        assert!(ncp.inputs_of_output.iter().all(|inputs| !inputs.is_empty()));
    }
}
