//! What there is to try: which numbers of the tuning record this network's plan depends on, and which values they get.

use super::config::{Changes, Config};
use crate::profiler::Options;
use crate::stats::Random;
use schwann_core::{DType, Graph, Op};
use schwann_kernels::tuning::{Entry, MachineClass, Tuning};
use std::collections::BTreeSet;

/// A number with so few values is tried with each of them.
const FEW: usize = 16;

/// What a network consists of, as far as numbers of the record depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Beginnings of the names of numbers that matter.
    kinds: BTreeSet<&'static str>,
    /// Whether anything is in a half-precision type.
    halves: bool,
}

impl Parts {
    /// Of a graph after the passes; loops' bodies too.
    pub(super) fn of(graph: &Graph) -> Parts {
        let mut parts = Parts::default();
        parts.add(graph);
        // What passes decide by is there in every graph.
        parts.kinds.extend(["fused_", "stretched_", "merged_"]);
        parts
    }

    fn add(&mut self, graph: &Graph) {
        for node in graph.nodes() {
            self.halves |= node.outs.iter().any(|t| matches!(t.dtype, DType::Bf16 | DType::F16));
            let kinds: &[&'static str] = match &node.op {
                Op::MatMul { .. } => &["gemm_"],
                Op::MatMulMap { .. } => &["gemm_", "map_"],
                Op::Map { .. } | Op::Unary(_) | Op::Binary(_) => &["map_"],
                Op::LowBitMatMul(_) | Op::LowBit(_) => &["lowbit_"],
                Op::Transpose { .. } | Op::Concat { .. } | Op::Slice { .. } | Op::Pad { .. } => &["copy_"],
                Op::Gather { .. } => &["gather_"],
                Op::SegmentSum { .. } => &["gather_", "segment_sum_"],
                Op::Reduce { .. } => &["reduce_"],
                Op::Softmax { .. } => &["softmax_"],
                Op::LayerNorm { .. } | Op::RmsNorm { .. } => &["norm_"],
                Op::Attention { .. } => &["attention_", "softmax_"],
                Op::SynapseSum { .. } | Op::SynapseRatio { .. } => &["synapse_"],
                Op::SynapseGradient { .. } => &["synapse_"],
                Op::GatedCell { .. } => &["gated_", "gemm_"],
                Op::Scan(scan) => {
                    self.add(&scan.body);
                    &["loop_", "transcendental_"]
                }
                _ => &[],
            };
            self.kinds.extend(kinds);
        }
    }

    /// Whether a number can make a difference to these parts on so many threads.
    fn depend_on(&self, name: &str, threads: usize) -> bool {
        let has = |kind: &str| self.kinds.iter().any(|k| *k == kind);
        let of_threads = name.contains("_thread") || name.starts_with("transcendental_") || name.starts_with("team_");
        if of_threads && threads < 2 {
            return false;
        }
        match name {
            "team_spins" => true,
            "gemm_bf16_instruction" | "gemm_widened_weight_bytes_most" | "gemm_widened_block_rows_least" => {
                self.halves && has("gemm_")
            }
            _ if name.starts_with("loop_") && name.contains("synapses") => has("loop_") && has("synapse_"),
            _ if name.starts_with("loop_") && name.contains("cells") => has("loop_") && has("gated_"),
            "loop_batch_last_halves" => has("loop_") && has("gated_"),
            _ => self.kinds.iter().any(|kind| name.starts_with(kind)),
        }
    }
}

/// Values to try in the place of a number's own.
fn values(entry: &Entry) -> Vec<usize> {
    let Entry { value, least, most, step, name, .. } = *entry;
    let all = (most - least) / step + 1;
    let mut values: Vec<usize> = match all <= FEW {
        true => (0..all).map(|i| least + i * step).collect(),
        false => {
            let mut near = vec![value / 4, value / 2, value.saturating_mul(2), value.saturating_mul(4)];
            if value <= FEW * step {
                near.extend([value.saturating_sub(step), value + step]);
            }
            near.push(least);
            // A number beyond all sizes means never; of what waits or fetches, more is only worse.
            if most > usize::MAX >> 8 {
                near.push(most - most % step);
            }
            if name == "team_spins" {
                near.push(value.saturating_mul(16));
            }
            near
        }
    };
    values.iter_mut().for_each(|v| *v = (*v / step * step).clamp(least.next_multiple_of(step), most));
    values.sort_unstable();
    values.dedup();
    values.retain(|v| *v != value);
    values
}

/// What may be varied beside the record's numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freedom {
    /// Whether the number of threads is the tuner's to choose.
    pub(super) threads: bool,
    /// Whether products and weights may be in bfloat16.
    pub(super) types: bool,
    /// Whether records of other classes of machines are tried as they are.
    pub(super) classes: bool,
}

/// Every change of one thing: a number, the number of threads, fusion, a type, a whole record.
pub(super) fn single(parts: &Parts, base: &Options, freedom: Freedom) -> Result<Vec<Config>, String> {
    let record = base.tuning.tuning()?.unwrap_or_else(Tuning::detect);
    let with = |changes: Changes| Config { changes, ..Config::default() };
    let own = &base.tuning;
    let mut all = vec![];
    let cores = crate::device::cpu::cores();
    let threads = if base.threads == 0 { cores } else { base.threads };
    if freedom.threads {
        let mut counts: Vec<usize> = (0..usize::BITS).map(|i| 1 << i).take_while(|n| *n < cores).collect();
        counts.extend([cores, cores / 2]);
        counts.sort_unstable();
        counts.dedup();
        let others = counts.into_iter().filter(|n| *n > 0 && *n != threads);
        all.extend(others.map(|n| Config { threads: Some(n), changes: own.clone(), ..Config::default() }));
    }
    if base.fused {
        all.push(with(Changes { unfused: true, ..own.clone() }));
    }
    if freedom.types {
        all.push(Config { bf16_products: true, changes: own.clone(), ..Config::default() });
        all.push(with(Changes { bf16_weights: true, ..own.clone() }));
    }
    if freedom.classes && base.tuning.is_none() {
        let mut seen = vec![record];
        for class in MachineClass::ALL {
            let other = Tuning::for_machine(class);
            if !seen.contains(&other) {
                seen.push(other);
                all.push(with(Changes { class: Some(class.name().into()), ..Changes::default() }));
            }
        }
    }
    let parts = &Parts { halves: parts.halves || freedom.types, ..parts.clone() };
    for entry in record.entries().iter().filter(|e| parts.depend_on(e.name, threads)) {
        for value in values(entry) {
            let mut changes = own.clone();
            changes.numbers.insert(entry.name.into(), value);
            all.push(with(changes));
        }
    }
    Ok(all)
}

/// So many of them, by a seed, in their order. Everything that is no number stays, and so do other values of numbers that the
/// start itself has changed.
pub(super) fn sample(all: Vec<Config>, base: &Changes, most: usize, seed: u64) -> Vec<Config> {
    let changed_anew =
        |c: &Config| c.changes.numbers.iter().any(|(n, v)| base.numbers.get(n).is_some_and(|own| own != v));
    let is_number =
        |c: &Config| c.threads.is_none() && !c.bf16_products && c.changes.numbers != base.numbers && !changed_anew(c);
    let numbers: Vec<usize> = (0..all.len()).filter(|i| is_number(&all[*i])).collect();
    let room = most.saturating_sub(all.len() - numbers.len());
    let mut chosen = numbers.clone();
    let mut random = Random::new(seed);
    (1..chosen.len()).rev().for_each(|i| chosen.swap(i, random.below(i + 1)));
    let out: BTreeSet<usize> = chosen.into_iter().skip(room).collect();
    all.into_iter().enumerate().filter(|(i, _)| !out.contains(i)).map(|(_, c)| c).collect()
}

/// Two configurations in one; where both choose the same thing, the first one's choice.
pub(super) fn both(first: &Config, second: &Config) -> Config {
    let mut numbers = second.changes.numbers.clone();
    numbers.extend(first.changes.numbers.clone());
    Config {
        threads: first.threads.or(second.threads),
        bf16_products: first.bf16_products || second.bf16_products,
        changes: Changes {
            class: first.changes.class.clone().or_else(|| second.changes.class.clone()),
            numbers,
            unfused: first.changes.unfused || second.changes.unfused,
            // Products in bfloat16 have their weights in it too.
            bf16_weights: (first.changes.bf16_weights || second.changes.bf16_weights)
                && !(first.bf16_products || second.bf16_products),
        },
    }
}

/// Whether they choose the same thing differently, so that the second adds nothing to the first or contradicts it.
fn clash(first: &Config, second: &Config, base: &Changes) -> bool {
    let own = |c: &Config| -> BTreeSet<String> {
        let numbers = c.changes.numbers.iter().filter(|(n, v)| base.numbers.get(*n) != Some(v));
        let mut own: BTreeSet<String> = numbers.map(|(n, _)| n.clone()).collect();
        own.extend(c.threads.map(|_| "threads".into()));
        own.extend((c.bf16_products || c.changes.bf16_weights).then(|| "type".into()));
        own.extend(c.changes.unfused.then(|| "fusion".into()));
        own.extend((c.changes.class != base.class).then(|| "class".into()));
        own
    };
    own(first).intersection(&own(second)).next().is_some()
}

/// Combinations of what was good alone, best first: the best with each other one, more and more of them together, and as
/// many random ones as there is room for.
pub(super) fn combined(good: &[Config], base: &Changes, most: usize, seed: u64) -> Vec<Config> {
    let mut found: Vec<Config> = vec![];
    let add = |config: Config, found: &mut Vec<Config>| {
        if !good.contains(&config) && !found.contains(&config) && found.len() < most {
            found.push(config);
        }
    };
    let together = |chosen: &[&Config]| {
        let mut all: Option<Config> = None;
        for one in chosen {
            all = Some(match all {
                None => (*one).clone(),
                Some(so_far) if clash(&so_far, one, base) => so_far,
                Some(so_far) => both(&so_far, one),
            });
        }
        all
    };
    for count in 2..=good.len() {
        add(together(&good[..count].iter().collect::<Vec<_>>()).unwrap_or_default(), &mut found);
    }
    for second in good.iter().skip(1) {
        add(together(&[&good[0], second]).unwrap_or_default(), &mut found);
    }
    let mut random = Random::new(seed);
    for _ in 0..most * 4 {
        let chosen: Vec<&Config> = good.iter().filter(|_| random.below(2) == 0).collect();
        if chosen.len() > 1 {
            add(together(&chosen).unwrap_or_default(), &mut found);
        }
    }
    found.retain(|c| !c.is_none());
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models;
    use crate::profiler::Subject;

    fn parts(model: &str) -> Parts {
        let subject = Subject::from(models::built_in(model, &models::Sizes::default()).unwrap().unwrap());
        let graph = subject.graph().unwrap();
        let program = schwann_core::Program::compile(&graph, &Default::default()).unwrap();
        Parts::of(program.graph())
    }

    #[test]
    fn only_numbers_that_a_network_depends_on_are_tried() {
        let (ltc, cfc) = (parts("wired-ltc"), parts("wired-cfc"));
        assert!(ltc.depend_on("synapse_group_cycles", 1) && !cfc.depend_on("synapse_group_cycles", 1));
        assert!(cfc.depend_on("loop_batch_last_halves", 1) && !ltc.depend_on("gated_rows_most", 1));
        for never in
            ["lowbit_widened_rows_least", "attention_threads_multiplications_least", "softmax_threads_elements_least"]
        {
            assert!(!ltc.depend_on(never, 2) && !cfc.depend_on(never, 2), "{never}");
        }
        // One thread shares nothing.
        assert!(ltc.depend_on("synapse_threads_evaluations_least", 2));
        assert!(!ltc.depend_on("synapse_threads_evaluations_least", 1) && !ltc.depend_on("team_spins", 1));
    }

    #[test]
    fn every_value_that_is_tried_is_one_that_the_record_takes() {
        for class in MachineClass::ALL {
            let record = Tuning::for_machine(class);
            for entry in record.entries() {
                let values = values(&entry);
                assert!(!values.is_empty(), "{}", entry.name);
                for value in values {
                    assert!(record.with(entry.name, value).is_ok(), "{} = {value}", entry.name);
                    assert_ne!(value, entry.value);
                }
            }
        }
    }

    #[test]
    fn a_sample_is_the_same_for_the_same_seed_and_keeps_what_is_no_number() {
        let freedom = Freedom { types: true, threads: true, classes: true };
        let base = Options { threads: 0, ..Options::default() };
        let all = single(&parts("wired-ltc"), &base, freedom).unwrap();
        let one = sample(all.clone(), &base.tuning, 20, 1);
        assert_eq!(one, sample(all.clone(), &base.tuning, 20, 1));
        assert_ne!(one, sample(all.clone(), &base.tuning, 20, 2));
        assert!(one.len() <= 20.max(all.len() - one.len()) && one.iter().any(|c| c.bf16_products));
        assert_eq!(sample(all.clone(), &base.tuning, 1000, 1), all);
    }

    #[test]
    fn combinations_keep_one_choice_of_each_thing() {
        let number = |name: &str, value: usize| {
            let mut config = Config::default();
            config.changes.numbers.insert(name.into(), value);
            config
        };
        let good = [
            number("gemm_tile_rows", 4),
            number("gemm_tile_rows", 5),
            Config { threads: Some(1), ..Config::default() },
        ];
        let found = combined(&good, &Changes::default(), 10, 1);
        let best = Config { threads: Some(1), ..number("gemm_tile_rows", 4) };
        assert_eq!(found[0], best);
        assert!(found.iter().all(|c| c.changes.numbers.len() == 1), "{found:?}");
        assert!(combined(&good[..1], &Changes::default(), 10, 1).is_empty());
        assert!(combined(&[], &Changes::default(), 10, 1).is_empty());
    }
}
