//! Networks from files and bytes, and back.

use crate::error::Problem;
use pyo3::exceptions::PyValueError;
use schwann::io::safetensors::{self, Reader};
use schwann::io::{self, GRAPH_KEY};
use schwann::nn::{self, CONFIG_KEY, GraphOptions, InitialState, MODEL_KEY};
use schwann::prof::models;
use schwann::prof::profiler::Subject;
use schwann::{Graph, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

/// A graph's JSON beyond this is none.
const MOST_JSON_BYTES: u64 = 256 << 20;

/// Layers with weights, or a graph without layers.
#[derive(Clone)]
pub(crate) enum Network {
    Model(nn::Model),
    Graph(Graph),
}

/// Weights in memory: a program in Python runs for long, and a file that is overwritten meanwhile would end it.
fn in_memory(weights: &BTreeMap<String, Tensor>) -> Result<Vec<(String, Tensor)>, Problem> {
    let mapped = weights.iter().filter(|(_, data)| data.is_mapped());
    mapped
        .map(|(name, data)| Ok((name.clone(), Tensor::from_bytes(data.dtype(), data.shape(), data.bytes())?)))
        .collect()
}

impl Network {
    /// A built-in model by its name, or a file.
    pub(crate) fn load(name: &str) -> Result<Network, Problem> {
        if let Some(model) = models::built_in(name, &models::Sizes::default()) {
            return Ok(Network::Model(model?));
        }
        let path = Path::new(name);
        let mut network = match path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json")) {
            true => {
                Network::Graph(Graph::from_json(&io::read_text(path, MOST_JSON_BYTES)?).map_err(|e| e.in_file(path))?)
            }
            false => Network::of_file(path)?,
        };
        match &mut network {
            Network::Graph(graph) => {
                for (name, data) in in_memory(graph.weights())? {
                    graph.set_weight(&name, data)?;
                }
            }
            Network::Model(model) => {
                for (name, data) in in_memory(model.weights())? {
                    model.set_weight(&name, data)?;
                }
            }
        }
        Ok(network)
    }

    fn of_file(path: &Path) -> Result<Network, Problem> {
        let reader = match Reader::open(path) {
            Ok(reader) => reader,
            // A model's reader knows a pickle when it sees one.
            Err(e) => return Err(nn::Model::load(path).err().map_or_else(|| e.into(), Problem::from)),
        };
        let has = |key: &str| reader.metadata().contains_key(key);
        if has(MODEL_KEY) {
            Ok(Network::Model(nn::Model::load(path)?))
        } else if has(GRAPH_KEY) {
            Ok(Network::Graph(io::graph_of(&reader).map_err(|e| e.in_file(path))?))
        } else if has(CONFIG_KEY) {
            Ok(Network::Model(nn::import_ncps(path)?))
        } else {
            Err(unknown(&path.display().to_string()))
        }
    }

    /// What [`Network::to_bytes`] gave.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Network, Problem> {
        let reader = Reader::from_bytes(bytes.clone())?;
        let has = |key: &str| reader.metadata().contains_key(key);
        if has(MODEL_KEY) {
            Ok(Network::Model(nn::Model::from_bytes(bytes)?))
        } else if has(GRAPH_KEY) {
            Ok(Network::Graph(io::graph_of(&reader)?))
        } else if has(CONFIG_KEY) {
            Ok(Network::Model(nn::import_ncps_bytes(bytes)?))
        } else {
            Err(unknown("the file"))
        }
    }

    /// The file that has all of it.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, Problem> {
        match self {
            Network::Model(model) => Ok(model.to_bytes()?),
            Network::Graph(graph) => {
                let metadata = BTreeMap::from([(GRAPH_KEY.to_owned(), serde_json::to_string(graph)?)]);
                let weights = graph.weights().iter().map(|(name, data)| (name.as_str(), data));
                Ok(safetensors::to_bytes(weights, &metadata)?)
            }
        }
    }

    pub(crate) fn save(&self, path: &Path) -> Result<(), Problem> {
        match self {
            Network::Model(model) => Ok(model.save(path)?),
            Network::Graph(graph) => Ok(io::save(path, graph)?),
        }
    }

    /// The layers; a graph has none.
    pub(crate) fn model(&self, what: &str) -> Result<&nn::Model, Problem> {
        match self {
            Network::Model(model) => Ok(model),
            Network::Graph(_) => {
                let text = format!("`model` is a graph without layers; {what} expects a model with layers");
                Err(PyValueError::new_err(text).into())
            }
        }
    }

    /// As a graph; a model's states begin at zero in every run.
    pub(crate) fn graph(&self) -> Result<Graph, Problem> {
        match self {
            Network::Model(model) => Ok(model.graph(&GraphOptions::default().state(InitialState::Zero))?),
            Network::Graph(graph) => Ok(graph.clone()),
        }
    }

    pub(crate) fn subject(&self) -> Subject {
        match self {
            Network::Model(model) => model.clone().into(),
            Network::Graph(graph) => graph.clone().into(),
        }
    }

    pub(crate) fn weights(&self) -> &BTreeMap<String, Tensor> {
        match self {
            Network::Model(model) => model.weights(),
            Network::Graph(graph) => graph.weights(),
        }
    }

    /// What it is, in a few words.
    pub(crate) fn label(&self) -> String {
        match self {
            Network::Model(model) => model.layers().iter().map(|l| l.class()).collect::<Vec<_>>().join(", "),
            Network::Graph(graph) => format!("a graph of {} nodes", graph.nodes().len()),
        }
    }
}

fn unknown(of: &str) -> Problem {
    let keys = [GRAPH_KEY, MODEL_KEY, CONFIG_KEY].map(|key| format!("`{key}`")).join(", ");
    let text = format!("{of}: its metadata has none of {keys}: weights alone do not say what is computed with them");
    PyValueError::new_err(text).into()
}
