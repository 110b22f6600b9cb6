//! Reading networks and the options that several commands share.

use anyhow::{Context, Result, anyhow, bail};
use schwann::backend::{self, Backend, Choice};
use schwann::io::safetensors::Reader;
use schwann::memory::Budget;
use schwann::nn::{self, GraphOptions, Model};
use schwann::prof::device::Processor;
use schwann::prof::models;
use schwann::prof::nearest::did_you_mean;
use schwann::{Bindings, DType, Graph, Isa, Tensor, io};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A graph's JSON beyond this is no graph of a small network.
const MOST_JSON_BYTES: u64 = 256 << 20;

/// What a file holds that can run.
pub(crate) enum Network {
    /// A graph as it is.
    Graph(Box<Graph>),
    /// Layers and weights, which become a graph in more than one way.
    Model(Box<Model>),
}

/// Reads a network: a safetensors file with a graph or a model inside (ours, or one that ncps' users exported), or a
/// graph's JSON (without weights).
pub(crate) fn network(path: &Path) -> Result<Network> {
    if !path.exists() {
        let name = path.to_string_lossy();
        if let Some(model) = built_in(&name) {
            return model;
        }
        let names = models::BUILT_IN.map(|m| m.name);
        let meant = did_you_mean(&name, names);
        let list = names.join(", ");
        bail!("no file and no built-in model is called `{name}`{meant}; expected a network's file, or one of {list}");
    }
    crate::out::detail(&format!("reading {}", path.display()));
    let json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
    let network = if json { json_network(path).map(|g| Network::Graph(Box::new(g))) } else { tensors_network(path) };
    network.with_context(|| {
        let expected = ".safetensors with a graph or a model inside, or a graph's .json";
        format!("{} is not a network (expected {expected})", path.display())
    })
}

/// The same with its weights in memory and not in the mapped file, for what runs for long: a file that is written over
/// while it is mapped ends the program.
pub(crate) fn network_in_memory(path: &Path) -> Result<Network> {
    let copy = |t: &Tensor| Tensor::from_bytes(t.dtype(), t.shape(), t.bytes());
    let copies = |all: &BTreeMap<String, Tensor>| -> Result<Vec<(String, Tensor)>> {
        let mapped = all.iter().filter(|(_, t)| t.is_mapped());
        mapped.map(|(name, t)| Ok((name.clone(), copy(t)?))).collect()
    };
    let mut network = network(path)?;
    match &mut network {
        Network::Graph(graph) => {
            for (name, data) in copies(graph.weights())? {
                graph.set_weight(&name, data)?;
            }
        }
        Network::Model(model) => {
            for (name, data) in copies(model.weights())? {
                model.set_weight(&name, data)?;
            }
        }
    }
    Ok(network)
}

/// Reads a network as a graph; a model as it is with GraphOptions' defaults.
pub(crate) fn graph(path: &Path) -> Result<Graph> {
    Ok(match network(path)? {
        Network::Graph(graph) => *graph,
        Network::Model(model) => model.graph(&GraphOptions::default())?,
    })
}

/// Reads a model; a mere graph is refused.
pub(crate) fn model(path: &Path) -> Result<Model> {
    match network(path)? {
        Network::Model(model) => Ok(*model),
        Network::Graph(_) => bail!(
            "{} holds a graph without layers; expected a model, such as `schwann import ncps` writes",
            path.display()
        ),
    }
}

fn tensors_network(path: &Path) -> Result<Network> {
    let reader = match Reader::open(path) {
        Ok(reader) => reader,
        // A model's reader knows a pickle when it sees one.
        Err(e) => return Err(Model::load(path).err().map_or_else(|| e.into(), anyhow::Error::from)),
    };
    let has = |key: &str| reader.metadata().contains_key(key);
    if has(nn::MODEL_KEY) {
        Ok(Network::Model(Box::new(Model::load(path)?)))
    } else if has(io::GRAPH_KEY) {
        Ok(Network::Graph(Box::new(io::graph_of(&reader).map_err(|e| e.in_file(path))?)))
    } else if has(nn::CONFIG_KEY) {
        Ok(Network::Model(Box::new(nn::import_ncps(path)?)))
    } else {
        let keys = [io::GRAPH_KEY, nn::MODEL_KEY, nn::CONFIG_KEY].map(|key| format!("`{key}`")).join(", ");
        bail!("its metadata has none of {keys}: weights alone do not say what is computed with them")
    }
}

fn json_network(path: &Path) -> Result<Graph> {
    let text = io::read_text(path, MOST_JSON_BYTES)?;
    Graph::from_json(&text).map_err(|e| e.in_file(path).into())
}

fn built_in(name: &str) -> Option<Result<Network>> {
    let model = models::built_in(name, &models::Sizes::default())?;
    Some(model.map(|model| Network::Model(Box::new(model))).map_err(Into::into))
}

/// A built-in model by its name, or a network from a file.
pub(crate) fn named(name: &str) -> Result<Network> {
    if let Some(model) = built_in(name) {
        return model;
    }
    network(Path::new(name))
}

/// Reads a model: a file, or a built-in model's whole name where its short form was given.
pub(crate) fn model_name(text: &str) -> Result<String, String> {
    Ok(models::full_name(text).to_owned())
}

/// Reads a size: sequences in a batch, steps, units.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=1 << 20).contains(&n) => Ok(n),
        _ => Err(format!("expected a whole number from 1 to {}", 1 << 20)),
    }
}

/// A size that a symbol stands for, as given on the command line: `B=32`.
#[derive(Clone, Debug)]
pub(crate) struct Setting(String, usize);

impl Setting {
    /// A symbol's size.
    pub(crate) fn new(symbol: &str, size: usize) -> Setting {
        Setting(symbol.into(), size)
    }
    /// Whether it is this symbol's.
    pub(crate) fn is_for(&self, symbol: &str) -> bool {
        self.0 == symbol
    }
}

impl std::str::FromStr for Setting {
    type Err = String;
    fn from_str(text: &str) -> Result<Setting, String> {
        let (symbol, size) = text.split_once('=').ok_or("expected SYMBOL=SIZE, such as B=32")?;
        let size = size.parse().map_err(|_| format!("`{size}` is not a size; expected a number, such as B=32"))?;
        Ok(Setting(symbol.to_owned(), size))
    }
}

impl Setting {
    pub(crate) fn symbol(&self) -> &str {
        &self.0
    }
    pub(crate) fn size(&self) -> usize {
        self.1
    }
}

/// The sizes for a graph's symbols; one that is missing or unknown is an error that says what to write.
pub(crate) fn bindings(graph: &Graph, settings: &[Setting]) -> Result<Bindings> {
    let symbols = graph.symbols();
    let list = |names: &mut dyn Iterator<Item = &str>| names.map(|s| format!("`{s}`")).collect::<Vec<_>>().join(", ");
    let mut bindings = Bindings::new();
    for Setting(symbol, size) in settings {
        if !symbols.contains(symbol) {
            let known = list(&mut symbols.iter().map(String::as_str));
            let known = if known.is_empty() { "none".into() } else { known };
            bail!("--set {symbol}={size}: the graph has no symbol `{symbol}`; it has {known}");
        }
        bindings.bind(symbol, *size).map_err(|old| anyhow!("--set {symbol} is given twice: {old} and {size}"))?;
    }
    let missing: Vec<&str> = symbols.iter().map(String::as_str).filter(|s| bindings.get(s).is_none()).collect();
    if !missing.is_empty() {
        let example: Vec<String> = missing.iter().map(|s| format!("--set {s}=32")).collect();
        bail!("no size for {}: a plan is for fixed sizes; add {}", list(&mut missing.into_iter()), example.join(" "));
    }
    Ok(bindings)
}

/// Reads the name of an instruction set that this CPU has.
pub(crate) fn isa(name: &str) -> Result<Isa, String> {
    Isa::named(name).ok_or_else(|| {
        let there: Vec<&str> = Isa::available().iter().map(|i| i.name()).collect();
        format!("this CPU has {}", there.join(", "))
    })
}

/// More threads than this on one machine is a slip of the finger.
const MOST_THREADS: usize = 1024;

/// Reads a number of threads; 0 is one a core.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= MOST_THREADS => Ok(n),
        _ => Err(format!("expected a number from 0 (one per core) to {MOST_THREADS}")),
    }
}

/// The CPU with an instruction set (the widest unless told) and threads (0: one per core).
pub(crate) fn cpu(isa: Option<Isa>, threads: usize) -> Result<Processor> {
    Ok(Processor::new(isa, threads)?)
}

/// Reads a backend's name, with a variant after a colon.
pub(crate) fn backend(text: &str) -> Result<Choice, String> {
    text.parse().map_err(|problem| {
        let known = backend::known();
        let name = text.split_once(':').map_or(text, |(name, _)| name);
        if !schwann::HAS_GPU && ["wgpu", "gpu", "metal", "vulkan"].contains(&name) {
            return format!("{problem}; GPUs are not in this build: build with `--features gpu`");
        }
        format!("{problem}{}", did_you_mean(name, known.iter().map(|k| k.name).filter(|k| *k != name)))
    })
}

/// What to run on: options that several commands share.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct On {
    /// What to run on [default: cpu]; `cpu:avx2` is one of its variants, `reference` is slow and the definition.
    #[arg(long, value_name = "NAME", value_parser = backend)]
    backend: Option<Choice>,
    /// Use this instruction set of the CPU instead of the widest one.
    #[arg(long, value_name = "NAME", value_parser = isa)]
    isa: Option<Isa>,
}

impl On {
    /// The backend that was asked for.
    pub(crate) fn choice(&self) -> Result<Choice> {
        let choice = self.backend.clone().unwrap_or_default();
        let Some(isa) = self.isa else { return Ok(choice) };
        match choice.wanted_variant() {
            _ if !choice.is_cpu() => bail!("--isa is for the CPU; --backend is {choice}"),
            Some(other) if other != isa.name() => bail!("--isa is {isa}, and --backend is {choice}"),
            _ => Ok(choice.variant(isa.name())?),
        }
    }

    /// The same, made, with threads (0: one per core).
    pub(crate) fn make(&self, threads: usize) -> Result<Arc<dyn Backend>> {
        Ok(self.choice()?.make(threads)?)
    }

    /// The processor, where that is what was asked for.
    pub(crate) fn processor(&self, threads: usize) -> Result<Option<Processor>> {
        let choice = self.choice()?;
        if !choice.is_cpu() {
            return Ok(None);
        }
        cpu(choice.wanted_variant().and_then(Isa::named), threads).map(Some)
    }
}

/// Zeros, where this machine has room for them: sizes come from files.
pub(crate) fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let bytes = schwann::tensor::count(shape).and_then(|n| dtype.bytes_for(n)).unwrap_or(usize::MAX);
    let _room = budget().reserve(bytes, &format!("{dtype}{shape:?}"))?;
    Ok(Tensor::zeros(dtype, shape)?)
}

/// Nearly all of this machine's memory: what asks for more is refused with words and not by the system's killer.
pub(crate) fn budget() -> Budget {
    Budget::fraction(0.9).unwrap_or_default()
}

/// Reads seconds to measure for.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if s > 0.0 && s <= 3600.0 => Ok(s),
        _ => Err("expected seconds, more than 0 and at most 3600".into()),
    }
}
