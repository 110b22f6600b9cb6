//! Models in files: our own form, whole in one safetensors file, and what ncps' users bring.
//!
//! A file's tensors are the weights under their names; its metadata entry [`MODEL_KEY`] says the rest, as JSON: the
//! form's version and the layers, with every option and every synapse. Whatever is read is taken for hostile: no size in
//! the JSON is believed before it is compared with the data that the file has.

use crate::layer::{Layer, Units};
use crate::model::{Model, Sequential};
use crate::train::{TRAINING_KEY, TRAINING_PREFIX};
use crate::wiring::{Wiring, WiringConfig};
use crate::{Error, Result};
use schwann_core::io::Kind;
use schwann_core::io::safetensors::{self, Reader};
use schwann_core::{DType, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// The metadata entry that holds a model's layers.
pub const MODEL_KEY: &str = "schwann.model";
/// The version of the JSON in it.
pub const MODEL_VERSION: u32 = 1;
/// The metadata entry that holds ncps' class and constructor arguments.
pub const CONFIG_KEY: &str = "config";
/// The metadata entry that holds what layers are called in PyTorch, as a list in JSON: `["encoder.0", "circuit"]`.
pub const NAMES_KEY: &str = "names";
/// How to bring a model from Python.
const EXPORTER: &str = "scripts/export_ncps.py writes one: `from export_ncps import export; export(model, path)`";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    version: u32,
    layers: Vec<Layer>,
}

impl Model {
    /// Writes the whole model, wiring, options and weights, into one safetensors file, whole or not at all.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        Ok(safetensors::write(path, self.tensors(), &self.metadata()?)?)
    }

    /// The same as the bytes that a file would have.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(safetensors::to_bytes(self.tensors(), &self.metadata()?)?)
    }

    fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.weights().iter().map(|(name, data)| (name.as_str(), data))
    }

    pub(crate) fn metadata(&self) -> Result<BTreeMap<String, String>> {
        let form = Form { version: MODEL_VERSION, layers: self.layers().to_vec() };
        let json = serde_json::to_string(&form).map_err(|e| Error::file(format!("the model's JSON: {e}")))?;
        let mut metadata = BTreeMap::from([(MODEL_KEY.to_owned(), json)]);
        if !self.names().is_empty() {
            let names = serde_json::to_string(self.names());
            let names = names.map_err(|e| Error::file(format!("the layers' names as JSON: {e}")))?;
            metadata.insert(NAMES_KEY.to_owned(), names);
        }
        Ok(metadata)
    }

    /// Reads what [`Model::save`] wrote; the weights stay in the mapped file.
    pub fn load(path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        open(path).and_then(|reader| Model::from_reader(&reader)).map_err(|e| e.in_file(path))
    }

    /// The model in a file's content.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Model> {
        Model::from_reader(&Reader::from_bytes(bytes)?)
    }

    fn from_reader(reader: &Reader) -> Result<Model> {
        let Some(text) = reader.metadata().get(MODEL_KEY) else {
            let hint = match reader.metadata().contains_key(CONFIG_KEY) {
                true => "It has a `config`, so it may be ncps' model: read it with `import_ncps`",
                false => "A file of weights alone does not say which layers they belong to",
            };
            return Err(Error::file(format!("no model: the metadata has no `{MODEL_KEY}`. {hint}")));
        };
        let unreadable = |e: serde_json::Error| Error::file(format!("metadata `{MODEL_KEY}`: {e}"));
        let json: Value = serde_json::from_str(text).map_err(unreadable)?;
        let version = json.get("version").cloned().unwrap_or(Value::Null);
        if version.as_u64() != Some(u64::from(MODEL_VERSION)) {
            let problem = format!("the model's form has version {version}; this program reads version {MODEL_VERSION}");
            return Err(Error::file(problem));
        }
        check_sizes(json["layers"].as_array().map_or(&[], Vec::as_slice), reader)?;
        let form: Form = serde_json::from_value(json).map_err(unreadable)?;
        // A checkpoint of training has more than weights.
        let training = reader.metadata().contains_key(TRAINING_KEY);
        let own = |name: &&str| !(training && name.starts_with(TRAINING_PREFIX));
        let names = reader.entries().iter().map(|e| e.name.as_str()).filter(own).map(|name| (name, name));
        Ok(with_names(Model::with_weights(form.layers, weights(reader, names)?)?, reader))
    }
}

/// Opens a safetensors file; Python's pickles are refused by what they are.
pub(crate) fn open(path: &Path) -> Result<Reader> {
    let mut start = [0u8; 4];
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(4).read(&mut start))
        .map_err(|source| schwann_core::Error::Io { path: path.to_owned(), source })?;
    let pickled = match &start[..read] {
        // A zip archive (PyTorch since 1.6), or a pickle of protocol 2 to 5.
        [b'P', b'K', 3 | 5, 4 | 6] => true,
        // The third byte of a pickle is an opcode; of a safetensors file, of the header's length: 0 in all but huge ones.
        [0x80, 2..=5, opcode, ..] => *opcode != 0,
        _ => false,
    };
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    if pickled || ["pt", "pth", "pkl", "pickle"].contains(&ending.as_str()) {
        return Err(Error::file(format!(
            "a Python pickle, which is a program that runs when it is read, and is not read here; expected safetensors: \
             {EXPORTER}"
        )));
    }
    Ok(Reader::open(path)?)
}

/// Tensors as `f32`, from names in the file to names in the model.
fn weights<'a>(reader: &Reader, names: impl Iterator<Item = (&'a str, &'a str)>) -> Result<BTreeMap<String, Tensor>> {
    names.map(|(from, to)| Ok((to.to_owned(), reader.tensor_as(from, DType::F32)?))).collect()
}

/// Compares the sizes of circuits in the JSON of layers (or of a wiring alone) with the data that the file has, before their matrices
/// are made: they may be sparse, but hardly a hundred times larger than their weights.
pub(crate) fn check_sizes(layers: &[Value], reader: &Reader) -> Result<()> {
    let bytes: u64 = reader.entries().iter().map(|e| e.window.len() as u64).sum();
    let most = bytes.saturating_mul(64).saturating_add(1 << 20);
    let mut pairs = 0u64;
    for layer in layers {
        let units = neurons(layer);
        pairs = pairs.saturating_add(units.saturating_mul(units.max(number(&layer["input_size"]))));
        if pairs > most {
            let problem =
                format!("a circuit of {units} neurons in a file with {bytes} bytes of weights; expected far more");
            return Err(Error::file(problem));
        }
    }
    Ok(())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// The neurons of a layer whose circuit has matrices; 0 of others.
fn neurons(layer: &Value) -> u64 {
    let of = |wiring: &Value| {
        let layered = ["inter_neurons", "command_neurons", "motor_neurons"].map(|n| number(&wiring[n]));
        layered.into_iter().fold(number(&wiring["units"]), u64::saturating_add)
    };
    // Missing fields index as null.
    let units = if layer["units"].is_null() { &layer["wiring"] } else { &layer["units"] };
    match units {
        Value::Object(_) => of(units).max(of(&units["config"])),
        // Only an LTC makes a circuit of a mere number.
        _ if layer["class"] == "LTC" => number(units),
        _ => 0,
    }
}

/// Reads a model of ncps or PyTorch from a safetensors file: its state dict as tensors (with or without `model.` before
/// their names), and its class and constructor arguments as JSON in the metadata entry `config`. A network of several
/// layers has the class `Sequential` and the list `layers`, and names begin with a layer's number.
///
/// `scripts/export_ncps.py` writes such files. Masks that ncps keeps in its state dict are compared with the circuit that
/// is drawn here and are not part of the model. Of a wiring that no generator made, the file holds the matrices too, as
/// `adjacency` and `sensory_adjacency`.
pub fn import_ncps(path: impl AsRef<Path>) -> Result<Model> {
    let path = path.as_ref();
    open(path).and_then(|reader| import(&reader)).map_err(|e| e.in_file(path))
}

/// The same from a file's content.
pub fn import_ncps_bytes(bytes: impl Into<Vec<u8>>) -> Result<Model> {
    import(&Reader::from_bytes(bytes)?)
}

/// The weights of such a file that are kept there in more digits than `f32` has: they are rounded when they are read.
pub fn rounded_weights(path: impl AsRef<Path>) -> Result<Vec<String>> {
    let path = path.as_ref();
    let reader = open(path).map_err(|e| e.in_file(path))?;
    let prefixed = has_prefix(&reader);
    let wide = reader.entries().iter().filter(|e| e.kind == Kind::F64);
    let names = wide.filter_map(|e| if prefixed { e.name.strip_prefix(PREFIX) } else { Some(e.name.as_str()) });
    Ok(names.map(str::to_owned).collect())
}

/// What the names of a state dict begin with where there is more in the file: samples, results, gradients.
const PREFIX: &str = "model.";

fn has_prefix(reader: &Reader) -> bool {
    reader.entries().iter().any(|e| e.name.starts_with(PREFIX))
}

/// The model of an opened file.
pub(crate) fn import(reader: &Reader) -> Result<Model> {
    let list = match config(reader)? {
        mut json if json["class"] == "Sequential" => match json["layers"].take() {
            Value::Array(list) => list,
            _ => return Err(Error::file(format!("metadata `{CONFIG_KEY}`: a Sequential without a list `layers`"))),
        },
        json => vec![json],
    };
    check_sizes(&list, reader)?;
    let count = list.len();
    let prefix = |i: usize| if count == 1 { String::new() } else { format!("{i}.") };
    let mut layers: Vec<Layer> = vec![];
    for (i, json) in list.into_iter().enumerate() {
        let at = if count == 1 { String::new() } else { format!(", layer {i}") };
        let unreadable = |e: serde_json::Error| Error::file(format!("metadata `{CONFIG_KEY}`{at}: {e}"));
        let mut layer: Layer = serde_json::from_value(json).map_err(unreadable)?;
        if let Layer::Cfc(crate::Cfc { units, input_size, .. }) | Layer::Ltc(crate::Ltc { units, input_size, .. }) =
            &mut layer
            && let Units::Wired(wiring) = units
        {
            wiring.build(*input_size)?;
            wire(wiring, reader, &prefix(i))?;
        }
        layers.push(layer);
    }

    // Of a network without weights there is nothing to take: what is in the file is its sample.
    let mut params = 0;
    for layer in &layers {
        params += layer.params()?.len() + layer.masks()?.len();
    }
    let prefixed = has_prefix(reader) || params == 0;
    let matrix = |name: &str| ["adjacency", "sensory_adjacency"].contains(&name.rsplit('.').next().unwrap_or(name));
    let names = reader.entries().iter().map(|e| e.name.as_str()).filter_map(|name| match prefixed {
        true => Some((name, name.strip_prefix(PREFIX)?)),
        false => (!matrix(name)).then_some((name, name)),
    });
    let mut weights = weights(reader, names)?;
    for (i, layer) in layers.iter().enumerate() {
        for (name, mask) in layer.masks()? {
            let name = prefix(i) + &name;
            if let Some(found) = weights.remove(&name) {
                check_mask(&name, &found, &mask)?;
            }
        }
    }
    Ok(with_names(Model::with_weights(Sequential::from(layers), weights)?, reader))
}

/// The model with the names that the file has for its layers. They are for people alone, so that those of a file that
/// makes no sense of them are left out.
fn with_names(model: Model, reader: &Reader) -> Model {
    let names = reader.metadata().get(NAMES_KEY).and_then(|text| serde_json::from_str::<Vec<String>>(text).ok());
    let Some(names) = names else { return model };
    // PyTorch's layers that are several of ours, each with the name and its number.
    let path = |name: &String| match name.rsplit_once(", layer ") {
        Some((name, number)) => format!("{name}.l{number}"),
        None => name.clone(),
    };
    let names = names.iter().map(path).collect();
    model.clone().with_names(names).unwrap_or(model)
}

/// The metadata's `config`.
pub(crate) fn config(reader: &Reader) -> Result<Value> {
    let Some(text) = reader.metadata().get(CONFIG_KEY) else {
        let problem =
            format!("no ncps model: the metadata has no `{CONFIG_KEY}` with its class and arguments. {EXPORTER}");
        return Err(Error::file(problem));
    };
    serde_json::from_str(text).map_err(|e| Error::file(format!("metadata `{CONFIG_KEY}`: {e}")))
}

/// Gives a wiring that was made by hand its synapses from the file; others must have the file's, if it has any.
fn wire(wiring: &mut Wiring, reader: &Reader, prefix: &str) -> Result<()> {
    let custom = matches!(wiring.config(), WiringConfig::Custom { .. });
    let key = format!("{prefix}layers");
    if let (true, Some(text)) = (custom, reader.metadata().get(&key)) {
        let layers = serde_json::from_str(text).map_err(|e| Error::file(format!("metadata `{key}`: {e}")))?;
        wiring.set_layers(layers)?;
    }
    for (matrix, sources) in
        [("adjacency", wiring.units()), ("sensory_adjacency", wiring.input_dim().unwrap_or_default())]
    {
        let name = &format!("{prefix}{matrix}");
        if reader.entry(name).is_err() {
            if custom && wiring.synapse_count() == 0 && matrix == "adjacency" {
                return Err(Error::weight(name, "missing", "the matrix of a wiring that no generator made"));
            }
            continue;
        }
        let found = reader.tensor_as(name, DType::I32)?;
        let shape = [sources, wiring.units()];
        if found.shape() != shape {
            return Err(Error::weight(name, &found, format!("i32{shape:?}")));
        }
        let values = found.values::<i32>()?;
        for (i, &polarity) in values.iter().enumerate() {
            let (src, dest) = (i / wiring.units(), i % wiring.units());
            let own = if matrix == "adjacency" { wiring.adjacency()[i] } else { wiring.sensory_adjacency()[i] };
            if !custom && i32::from(own) != polarity {
                let expected = format!("{own}, as the wiring's options and seed give it");
                return Err(Error::weight(name, format!("{polarity} from {src} to {dest}"), expected));
            }
            if custom && polarity != 0 {
                let polarity = i8::try_from(polarity).unwrap_or(i8::MAX);
                match matrix {
                    "adjacency" => wiring.add_synapse(src, dest, polarity)?,
                    _ => wiring.add_sensory_synapse(src, dest, polarity)?,
                }
            }
        }
    }
    Ok(())
}

/// Compares a mask of ncps with the circuit's.
fn check_mask(name: &str, found: &Tensor, mask: &Tensor) -> Result<()> {
    if found.shape() != mask.shape() {
        return Err(Error::weight(name, found, mask));
    }
    let (found, mask) = (found.values::<f32>()?, mask.values::<f32>()?);
    let other = found.iter().zip(mask).filter(|(f, m)| f != m).count();
    if other > 0 {
        let got = format!("another circuit: {other} of {} entries differ", mask.len());
        return Err(Error::weight(name, got, "the circuit that the wiring's options and seed give"));
    }
    Ok(())
}
