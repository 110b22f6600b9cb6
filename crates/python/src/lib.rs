//! The native part of the Python package `schwann`; `python/schwann` has the rest.
//!
//! It binds the façade and nothing below it. Arrays come in and go out without a copy (`array`); errors become exceptions of
//! the kind that fits, with the same words (`error`); what runs does so without Python's lock, and what runs for long can be
//! interrupted (`wait`).

mod array;
mod compiled;
mod error;
mod layer;
mod measure;
mod model;
mod network;
mod quantize;
mod session;
mod stream;
mod train;
mod wait;

use error::Problem;
use model::{How, Model};
use network::Network;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::PathBuf;

fn how(backend: &str, threads: usize) -> Result<How, Problem> {
    Ok(How { backend: backend.parse()?, threads: model::check_threads(threads)?, tuned: None })
}

/// Reads a network: a file of Schwann's, one that `scripts/export_ncps.py` wrote, a graph as JSON, or a built-in model by its
/// name (`wired-cfc`, `dense-cfc`, `projected-cfc`, `wired-ltc`).
///
/// `backend` is what it runs on: `cpu`, `cpu:avx2`, `reference`, and where there are such devices `cuda` and `wgpu`. `threads`
/// is how many threads a run may use; 0 is one for each core.
///
/// >>> import schwann
/// >>> schwann.load("wired-ltc")
/// Model(LTC: x f32[B, T, 8] -> y f32[B, T, 16])
#[pyfunction]
#[pyo3(signature = (path, *, backend = "cpu", threads = 0))]
fn load(py: Python<'_>, path: PathBuf, backend: &str, threads: usize) -> Result<Model, Problem> {
    let name = path.to_string_lossy().into_owned();
    let how = how(backend, threads)?;
    Model::new(py.detach(|| Network::load(&name))?, &name, how)
}

/// The model in the bytes of a model file, such as `Model.to_bytes` gives.
#[pyfunction]
#[pyo3(signature = (data, *, name = "model", backend = "cpu", threads = 0))]
fn from_bytes(data: &Bound<'_, PyBytes>, name: &str, backend: &str, threads: usize) -> Result<Model, Problem> {
    Model::new(Network::from_bytes(data.as_bytes().to_vec())?, name, how(backend, threads)?)
}

/// What pickles call.
#[pyfunction]
fn _unpickled(
    data: &Bound<'_, PyBytes>,
    name: &str,
    backend: &str,
    threads: usize,
    tuned: Option<(usize, usize)>,
) -> Result<Model, Problem> {
    let how = How { tuned, ..how(backend, threads)? };
    Model::new(Network::from_bytes(data.as_bytes().to_vec())?, name, how)
}

/// A model of a state dict of PyTorch's: tensors by name, and the metadata that `scripts/export_ncps.py` writes.
#[pyfunction]
#[pyo3(signature = (tensors, metadata, *, name = "model", backend = "cpu", threads = 0))]
fn _from_state_dict(
    tensors: &Bound<'_, PyDict>,
    metadata: std::collections::BTreeMap<String, String>,
    name: &str,
    backend: &str,
    threads: usize,
) -> Result<Model, Problem> {
    let mut all = std::collections::BTreeMap::new();
    for (key, array) in tensors.iter() {
        let key: String = key.extract()?;
        let tensor = array::any_tensor(&key, &array)?;
        all.insert(key, tensor);
    }
    let bytes = schwann::io::safetensors::to_bytes(all.iter().map(|(n, t)| (n.as_str(), t)), &metadata)?;
    Model::new(Network::Model(schwann::nn::import_ncps_bytes(bytes)?), name, how(backend, threads)?)
}

/// A model as a state dict of PyTorch's: arrays by name, and the metadata that says which layers they are of.
#[pyfunction]
fn _state_dict<'py>(
    py: Python<'py>,
    model: &Model,
) -> Result<(Bound<'py, PyDict>, std::collections::BTreeMap<String, String>), Problem> {
    let bytes = schwann::nn::export_ncps_bytes(model.network.model("a state dict")?)?;
    let reader = schwann::io::safetensors::Reader::from_bytes(bytes)?;
    let all = PyDict::new(py);
    for entry in reader.entries() {
        all.set_item(&entry.name, array::to_numpy(py, &reader.tensor(&entry.name)?)?)?;
    }
    Ok((all, reader.metadata().clone()))
}

/// The native part of `schwann`.
#[pymodule]
mod _schwann {
    #[pymodule_export]
    use super::layer::Layer;
    #[pymodule_export]
    use super::measure::{_gate, _load_baseline, _predict, _profile, _save_baseline, _tune, _turns, Profile};
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::quantize::_quantize;
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::stream::{Runner, State};
    #[pymodule_export]
    use super::train::_train;
    #[pymodule_export]
    use super::{_from_state_dict, _state_dict, _unpickled, from_bytes, load};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // Backends for devices, by name. That they were there before is no mistake: a process may import twice.
        let _ = schwann::register_backends();
        Ok(())
    }
}
