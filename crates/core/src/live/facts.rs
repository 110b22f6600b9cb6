//! What a session says of itself to whoever watches it.

use crate::op::Cost;
use crate::plan::{Plan, sites};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Of one layout of a session: what runs, for which sizes, in how much memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// What computes it: `cpu (avx512bf16)`.
    pub backend: String,
    /// Threads of a run.
    pub threads: usize,
    /// The sizes that symbols stand for.
    pub sizes: BTreeMap<String, usize>,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Bytes of the weights as they are kept for running.
    pub weight_bytes: u64,
    /// Bytes that it reserved of its budget's pool for reuse; absent where it has no pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_bytes: Option<u64>,
    /// The work of a run.
    pub cost: Cost,
    /// Its operations, in the order that they run; an operation at several places is one.
    pub parts: Vec<Part>,
}

/// One operation of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its node.
    pub name: String,
    /// Its kernel, for people.
    pub kernel: String,
    /// How often a run calls it.
    pub calls: u64,
    /// The work of one call.
    pub cost: Cost,
    /// Whether it is a product in integers of 8 bits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub integers: bool,
}

impl Facts {
    /// What a plan says, and for each place of it the number of its operation.
    pub fn of(plan: &Plan) -> (Facts, BTreeMap<Vec<usize>, usize>) {
        let mut facts = Facts {
            backend: plan.backend.clone(),
            threads: plan.threads,
            sizes: plan.bindings.iter().map(|(name, size)| (name.to_owned(), size)).collect(),
            arena_bytes: plan.arena_bytes as u64,
            weight_bytes: plan.weight_bytes as u64,
            ..Facts::default()
        };
        let mut places = BTreeMap::new();
        let mut known: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for site in sites(plan) {
            facts.cost += site.own_cost();
            let looped = site.step.looped.is_some();
            let cost = if looped { Cost::default() } else { site.step.cost };
            // The rows left over after whole blocks are the same operation with another cost.
            let number = *known.entry((&site.step.name, format!("{cost:?}"))).or_insert_with(|| {
                facts.parts.push(Part {
                    name: site.step.name.clone(),
                    kernel: site.step.kernel.to_string(),
                    calls: 0,
                    cost,
                    integers: site.step.kernel.is_integer_product(),
                });
                facts.parts.len() - 1
            });
            facts.parts[number].calls += site.calls;
            places.insert(site.path, number);
        }
        (facts, places)
    }

    /// As JSON of at most so many bytes. Where that is too little, names and kernels are cut off, and then operations are
    /// left out from the end: their work is part of the run's all the same.
    pub fn text(&self, most: usize) -> String {
        let mut told = self.clone();
        for part in &mut told.parts {
            for text in [&mut part.name, &mut part.kernel] {
                cut(text, MOST_NAME);
            }
        }
        loop {
            let text = serde_json::to_string(&told).unwrap_or_default();
            if text.len() <= most {
                return text;
            }
            if told.parts.is_empty() {
                // Nothing else in it is of a length that others choose, but symbols' names.
                told = Facts { cost: told.cost, ..Facts::default() };
                continue;
            }
            told.parts.truncate(told.parts.len() * 3 / 4);
        }
    }
}

/// The most bytes of a name that is told.
const MOST_NAME: usize = 96;

/// Cuts a text off at a letter's end.
fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bindings, CompileOptions, DType, GraphBuilder, Program, Tensor};

    #[test]
    fn every_place_of_a_plan_is_an_operation_and_the_work_is_the_plans() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, crate::shape!["B", 8]).unwrap();
        let w = b.weight("w", Tensor::zeros(DType::F32, &[8, 4]).unwrap()).unwrap();
        let y = b.matmul(x, w).unwrap();
        b.output("y", y).unwrap();
        let program = Program::compile(&b.build().unwrap(), &CompileOptions::default()).unwrap();
        let plan = program.plan(&Bindings::new().with("B", 5)).unwrap();
        let (facts, places) = Facts::of(&plan);
        assert_eq!((facts.cost, facts.sizes["B"]), (plan.cost(), 5));
        assert_eq!(places.len(), sites(&plan).len());
        assert!(places.values().all(|n| *n < facts.parts.len()));
        let work: u64 = facts.parts.iter().map(|p| p.cost.times(p.calls).flops).sum();
        assert_eq!(work, plan.cost().flops);
    }

    #[test]
    fn the_text_keeps_within_its_room() {
        let part =
            Part { name: "é".repeat(500), kernel: "k".into(), calls: 1, cost: Cost::default(), integers: false };
        let facts = Facts { parts: vec![part; 1000], sizes: [("B".into(), 5)].into(), ..Facts::default() };
        let text = facts.text(32 << 10);
        let back: Facts = serde_json::from_str(&text).unwrap();
        assert!(text.len() <= 32 << 10 && back.parts.len() > 50 && back.sizes["B"] == 5, "{}", back.parts.len());
        let endless = Facts { sizes: [("x".repeat(99_999), 1)].into(), ..facts };
        assert!(serde_json::from_str::<Facts>(&endless.text(32 << 10)).unwrap().sizes.is_empty());
    }
}
