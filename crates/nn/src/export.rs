//! Models as state dicts of PyTorch: what [`import_ncps`](crate::import_ncps) reads, written.

use crate::layer::{Layer, Units};
use crate::wiring::WiringConfig;
use crate::{CONFIG_KEY, Error, Model, NAMES_KEY, Result};
use schwann_core::Tensor;
use schwann_core::io::safetensors;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Writes a model as its state dict in PyTorch, as tensors of a safetensors file: what `load_state_dict` of the same
/// layers of ncps and PyTorch takes, masks included. The metadata entry `config` has classes and constructor arguments, as
/// `import_ncps` reads them; `scripts/load_schwann.py` makes the layers of it. Of a wiring that no generator made,
/// the matrices are in the file too.
pub fn export_ncps(model: &Model, path: impl AsRef<Path>) -> Result<()> {
    let (tensors, metadata) = parts(model)?;
    Ok(safetensors::write(path, tensors.iter().map(|(n, t)| (n.as_str(), t)), &metadata)?)
}

/// The same as the bytes that a file would have.
pub fn export_ncps_bytes(model: &Model) -> Result<Vec<u8>> {
    let (tensors, metadata) = parts(model)?;
    Ok(safetensors::to_bytes(tensors.iter().map(|(n, t)| (n.as_str(), t)), &metadata)?)
}

type Parts = (BTreeMap<String, Tensor>, BTreeMap<String, String>);

fn parts(model: &Model) -> Result<Parts> {
    let single = model.layers().len() == 1;
    let prefix = |i: usize| if single { String::new() } else { format!("{i}.") };
    let mut tensors = model.weights().clone();
    let mut metadata = BTreeMap::new();
    let mut configs = vec![];
    for (i, layer) in model.layers().iter().enumerate() {
        if let Layer::BitLinear(_) = layer {
            let expected = "layers that ncps or PyTorch have";
            return Err(Error::argument(format!("layers[{i}]"), "a BitLinear", expected));
        }
        let mut config = serde_json::to_value(layer).map_err(|e| Error::file(format!("a layer's JSON: {e}")))?;
        for (name, mask) in layer.masks()? {
            tensors.insert(prefix(i) + &name, mask);
        }
        if let Layer::Cfc(crate::Cfc { units, input_size, .. }) | Layer::Ltc(crate::Ltc { units, input_size, .. }) =
            layer
            && let Units::Wired(wiring) = units
        {
            let mut wiring = wiring.clone();
            wiring.build(*input_size)?;
            config["units"] = serde_json::from_str(&wiring.config().to_json()).unwrap_or(Value::Null);
            if let WiringConfig::Custom { .. } = wiring.config() {
                for (name, matrix) in
                    [("adjacency", wiring.adjacency()), ("sensory_adjacency", wiring.sensory_adjacency())]
                {
                    let shape = [matrix.len() / wiring.units().max(1), wiring.units()];
                    let numbers: Vec<i32> = matrix.iter().map(|p| i32::from(*p)).collect();
                    tensors.insert(prefix(i) + name, Tensor::new(&shape, &numbers)?);
                }
                let layers: Vec<&[usize]> = (0..wiring.layer_count()).map(|l| wiring.layer(l)).collect();
                metadata.insert(prefix(i) + "layers", json!(layers).to_string());
            }
        }
        configs.push(config);
    }
    let config = match configs.len() {
        1 => configs.remove(0),
        _ => json!({ "class": "Sequential", "layers": configs }),
    };
    metadata.insert(CONFIG_KEY.to_owned(), config.to_string());
    if !model.names().is_empty() {
        metadata.insert(NAMES_KEY.to_owned(), json!(model.names()).to_string());
    }
    Ok((tensors, metadata))
}
