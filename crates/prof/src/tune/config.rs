//! A way of compiling that differs from the usual one: what the tuner tries, and what it keeps.

use crate::profiler::{Options, Subject};
use schemars::JsonSchema;
use schwann_core::{CompileOptions, DType, Graph};
use schwann_kernels::tuning::{MachineClass, Tuning};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What differs from the usual way of compiling. Nothing, by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// The class of machines whose numbers these start from; this machine's unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Numbers of the tuning record, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, usize>,
    /// Whether elementwise work stays apart.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unfused: bool,
    /// Whether the right-hand sides of products are kept in bfloat16, and multiplied in f32.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bf16_weights: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Changes {
    /// Whether nothing differs.
    pub fn is_none(&self) -> bool {
        *self == Changes::default()
    }

    /// The numbers to compile with; `None` where they are the usual ones. An error says which name or value is wrong.
    pub fn tuning(&self) -> Result<Option<Tuning>, String> {
        if self.class.is_none() && self.numbers.is_empty() {
            return Ok(None);
        }
        let mut tuning = self.base()?;
        for (name, value) in &self.numbers {
            tuning = tuning.with(name, *value)?;
        }
        Ok(Some(tuning))
    }

    /// The record that the numbers replace some of.
    pub fn base(&self) -> Result<Tuning, String> {
        let Some(class) = &self.class else { return Ok(Tuning::detect()) };
        let known = || MachineClass::ALL.map(MachineClass::name).join(", ");
        let found = MachineClass::named(class);
        found
            .map(Tuning::for_machine)
            .ok_or_else(|| format!("no class of machines is called `{class}`; there is {}", known()))
    }
}

/// A candidate: changes, and the options that are its to choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// Threads, where it chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Whether products are computed in bfloat16.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bf16_products: bool,
    /// The rest.
    #[serde(flatten)]
    pub changes: Changes,
}

impl Config {
    /// Whether it is the usual way.
    pub fn is_none(&self) -> bool {
        *self == Config::default()
    }

    /// The options with this configuration.
    pub fn apply(&self, options: &Options) -> Options {
        Options {
            threads: self.threads.unwrap_or(options.threads),
            dtype: if self.bf16_products { DType::Bf16 } else { options.dtype },
            tuning: self.changes.clone(),
            ..options.clone()
        }
    }

    /// Options to compile a graph with, in this way. What it does to the graph itself is [`Config::graph`]'s to say.
    pub fn compile(&self, mut options: CompileOptions) -> Result<CompileOptions, String> {
        if let Some(tuning) = self.changes.tuning()? {
            options.tuning = Some(tuning);
        }
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
        options.passes.fuse &= !self.changes.unfused;
        Ok(options)
    }

    /// The graph, with its products in the types that this configuration wants.
    pub fn graph<'a>(&self, graph: &'a Graph) -> crate::profiler::Result<Cow<'a, Graph>> {
        crate::profiler::rig::in_types(graph, self.bf16_products, self.changes.bf16_weights)
    }

    /// Each difference from a usual way, for people.
    pub fn told(&self, usual: &Options) -> Vec<Change> {
        let text = |name: &str, from: &str, to: &str| Change { name: name.into(), from: from.into(), to: to.into() };
        let mut told = vec![];
        if let Some(threads) = self.threads {
            let before = match usual.threads {
                0 => format!("{} (one per core)", crate::device::cpu::cores()),
                n => n.to_string(),
            };
            told.push(text("threads", &before, &threads.to_string()));
        }
        if self.bf16_products {
            told.push(text("products", &usual.dtype.to_string(), "bf16"));
        }
        if self.changes.bf16_weights {
            told.push(text("weights of products", "f32", "bf16"));
        }
        if self.changes.unfused {
            told.push(text("elementwise work", "fused", "apart"));
        }
        if self.changes.class != usual.tuning.class
            && let Some(class) = &self.changes.class
        {
            let own = || MachineClass::detect().name().to_owned();
            told.push(text("numbers of the class", &usual.tuning.class.clone().unwrap_or_else(own), class));
        }
        let base = self.changes.base().unwrap_or_else(|_| Tuning::detect());
        for entry in base.entries() {
            if let Some(value) = self.changes.numbers.get(entry.name) {
                told.push(text(entry.name, &amount(entry.value), &format!("{} {}", amount(*value), entry.unit)));
            }
        }
        told
    }
}

/// A number for people: one beyond all that occurs is `never reached`.
fn amount(value: usize) -> String {
    if value >= usize::MAX >> 8 { "never reached".into() } else { value.to_string() }
}

/// One difference from the usual way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// What: a number of the tuning record, or an option.
    pub name: String,
    /// What it is usually.
    pub from: String,
    /// What it is here.
    pub to: String,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} → {}", self.name, self.from, self.to)
    }
}

/// All differences in a line.
pub fn line(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "the default".into();
    }
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The graph that a model is known by: with states that start at zero and a time of 1 between steps.
pub(crate) fn known_by(subject: &Subject) -> crate::profiler::Result<Graph> {
    subject.graph()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_become_numbers_to_compile_with_and_say_what_is_wrong_with_them() {
        assert_eq!(Changes::default().tuning(), Ok(None));
        let mut changes = Changes { class: Some("portable".into()), ..Changes::default() };
        assert_eq!(changes.tuning(), Ok(Some(Tuning::for_machine(MachineClass::Portable))));
        changes.numbers.insert("gemm_tile_rows".into(), 4);
        assert_eq!(changes.tuning().unwrap().unwrap().gemm_tile_rows(), 4);
        changes.numbers.insert("gemm_tile_rows".into(), 400);
        assert!(changes.tuning().unwrap_err().contains("`gemm_tile_rows` is 400 rows"));
        changes.class = Some("vax".into());
        assert!(changes.tuning().unwrap_err().contains("`vax`; there is portable, zen4"));
    }

    #[test]
    fn a_configuration_reads_back_from_json_and_says_how_it_differs() {
        let mut config = Config { threads: Some(2), ..Config::default() };
        config.changes.numbers.insert("gemm_tile_rows".into(), 4);
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(text, r#"{"threads":2,"numbers":{"gemm_tile_rows":4}}"#);
        assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), config);
        let usual = Options { threads: 1, ..Options::default() };
        assert_eq!(line(&config.told(&usual)), "threads 1 → 2, gemm_tile_rows 6 → 4 rows");
        assert_eq!(line(&Config::default().told(&usual)), "the default");
        let options = config.apply(&usual);
        assert_eq!((options.threads, options.tuning), (2, config.changes));
    }
}
