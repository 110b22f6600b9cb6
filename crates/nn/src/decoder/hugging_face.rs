//! Decoders in Hugging Face's form: a folder with `config.json` and safetensors.
//!
//! Matrices are dense, ternary as BitNet's classes save them, or in few bits as MLX saves them.

use super::config::check_shape;
use super::names::{Style, foreign, is_in_layer};
use super::ternary::{self, Ternary};
use super::{Decoder, FeedForward, Pairing, Rope, Weights};
use crate::init::Param;
use crate::{Error, Result};
use schwann_core::DType;
use schwann_core::io::mlx::{self, Mlx};
use schwann_core::io::safetensors::Reader;
use schwann_core::io::{Kind, Stored, read_text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// More than a configuration has, and than a list of tensors.
const MOST_CONFIG: u64 = 16 << 20;
const MOST_INDEX: u64 = 256 << 20;
/// More files than any model is split into.
const MOST_FILES: usize = 4096;

/// The classes that are read.
const CLASSES: [&str; 5] =
    ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "BitNetForCausalLM"];

/// How matrices are kept.
enum Form {
    Dense,
    Ternary(Ternary),
    Mlx(mlx::Config),
}

pub(super) fn open(folder: &Path) -> Result<(Decoder, Weights)> {
    let path = folder.join(CONFIG);
    let text = read_text(&path, MOST_CONFIG)?;
    let (decoder, form) = config(&text).map_err(|e| e.in_file(&path))?;
    let weights = weights(&decoder, &form, files(folder)?).map_err(|e| e.in_file(folder))?;
    Ok((decoder, weights))
}

/// What a `config.json` says.
fn config(text: &str) -> Result<(Decoder, Form)> {
    let json: Value = serde_json::from_str(text).map_err(Error::file)?;
    let fields = Fields { json: &json, path: "" };
    let class = json["architectures"][0].as_str().unwrap_or_default();
    if !CLASSES.contains(&class) {
        let got = if class.is_empty() { "missing" } else { class };
        return Err(Error::argument("architectures", got, format!("one of {}", CLASSES.join(", "))));
    }
    let (bitnet, qwen2, qwen3) =
        (class == "BitNetForCausalLM", class == "Qwen2ForCausalLM", class == "Qwen3ForCausalLM");
    for name in ["attention_bias", "mlp_bias"] {
        if fields.truth(name)?.unwrap_or(false) {
            return Err(Error::argument(name, true, "false, or no such field"));
        }
    }
    let (width, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let head_size = match fields.whole("head_dim")? {
        Some(size) => size,
        None if qwen3 => 128,
        None if heads > 0 && width.is_multiple_of(heads) => width / heads,
        None => return Err(Error::argument("num_attention_heads", heads, format!("a divisor of the width {width}"))),
    };
    let mut context = fields.size("max_position_embeddings")?;
    // Within the window, attention to the window is attention to all.
    let windowed = class == "MistralForCausalLM" || fields.truth("use_sliding_window")?.unwrap_or(false);
    if let (true, Some(window)) = (windowed, fields.whole("sliding_window")?) {
        context = context.min(window);
    }
    let feed_forward = match fields.text("hidden_act")?.unwrap_or(if bitnet { "relu2" } else { "silu" }) {
        "silu" => FeedForward::SwiGlu,
        "relu2" => FeedForward::SquaredRelu,
        other => return Err(Error::argument("hidden_act", other, "silu or relu2")),
    };
    let form = form(&fields, text)?;
    let mut decoder = Decoder {
        vocabulary: fields.size("vocab_size")?,
        width,
        layers: fields.size("num_hidden_layers")?,
        heads,
        key_heads: fields.whole("num_key_value_heads")?.unwrap_or(heads),
        head_size,
        hidden: fields.size("intermediate_size")?,
        context: context.min(Decoder::longest_context(head_size)),
        norm_eps: fields.float("rms_norm_eps")?.ok_or_else(|| fields.missing("rms_norm_eps"))? as f32,
        rope: rope(&fields, head_size, if bitnet { 500_000.0 } else { 10_000.0 })?,
        feed_forward,
        sub_norms: bitnet,
        rounded: matches!(form, Form::Ternary(_)),
        tied: fields.truth("tie_word_embeddings")?.unwrap_or(false),
        biases: qwen2,
        head_norms: qwen3,
    };
    decoder.bound_context()?;
    Ok((decoder, form))
}

/// How queries and keys turn: `rope_parameters`, or the older `rope_theta` and `rope_scaling`.
fn rope(fields: &Fields<'_>, head_size: usize, default_theta: f64) -> Result<Rope> {
    let old = Fields { json: &fields.json["rope_scaling"], path: "rope_scaling." };
    let new = Fields { json: &fields.json["rope_parameters"], path: "rope_parameters." };
    let own = if new.json.is_null() { old } else { new };
    let theta = match own.float("rope_theta")? {
        Some(theta) => theta,
        None => fields.float("rope_theta")?.unwrap_or(default_theta),
    };
    for part in [fields, &own] {
        if let Some(share) = part.float("partial_rotary_factor")?.filter(|share| *share != 1.0) {
            return Err(Error::argument(part.name("partial_rotary_factor"), share, "1: all numbers of a head turn"));
        }
    }
    let (key, kind) = match own.text("rope_type")? {
        Some(kind) => ("rope_type", kind),
        None => ("type", own.text("type")?.unwrap_or("default")),
    };
    let number = |key: &str| match own.float(key)? {
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        Some(value) => Err(Error::argument(own.name(key), value, "a number above 0")),
        None => Err(own.missing(key)),
    };
    let pairs = head_size / 2;
    // Sizes are not checked yet, and may be anything.
    let factors = match kind {
        "default" => vec![],
        _ if pairs > 1 << 12 => return Err(Error::argument("head_dim", head_size, "at most 4096")),
        "linear" => vec![number("factor")?; pairs],
        "llama3" => {
            let (factor, low, high) = (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
            let original = number("original_max_position_embeddings")?;
            (0..pairs)
                .map(|i| {
                    // How often the pair turns around within the original context.
                    let angle = theta.powf(-2.0 * i as f64 / head_size as f64);
                    let turns = original * angle / std::f64::consts::TAU;
                    let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    // In between, the angle is a mean of the slower one and its own.
                    1.0 / ((1.0 - share) / factor + share)
                })
                .collect()
        }
        other => return Err(Error::argument(own.name(key), other, "default, linear or llama3")),
    };
    Ok(Rope { theta, pairing: Pairing::Halves, factors })
}

fn form(fields: &Fields<'_>, text: &str) -> Result<Form> {
    // MLX writes the same under both names, without a method.
    if fields.json.get("quantization").is_some_and(|value| !value.is_null()) {
        return Ok(Form::Mlx(mlx::Config::from_json(text)?));
    }
    let own = Fields { json: &fields.json["quantization_config"], path: "quantization_config." };
    if own.json.is_null() {
        return Ok(Form::Dense);
    }
    match own.text("quant_method")? {
        Some("bitnet") => {}
        other => return Err(Error::argument(own.name("quant_method"), other.unwrap_or("missing"), "bitnet")),
    }
    if own.truth("use_rms_norm")?.unwrap_or(false) {
        return Err(Error::argument(own.name("use_rms_norm"), true, "false: norms within products are not read"));
    }
    let kept = &own.json["modules_to_not_convert"];
    if !kept.is_null() && *kept != serde_json::json!(["lm_head"]) {
        return Err(Error::argument(own.name("modules_to_not_convert"), kept, "null or [\"lm_head\"]"));
    }
    let class = own.text("linear_class")?.unwrap_or("bitlinear");
    let mode = own.text("quantization_mode")?.unwrap_or("offline");
    Ok(Form::Ternary(match (class, mode) {
        ("bitlinear", "offline") => Ternary::Divided,
        ("autobitlinear", "offline") => Ternary::Multiplied,
        ("autobitlinear", "online") => Ternary::Master,
        _ => {
            let expected = "bitlinear and offline, autobitlinear and offline, or autobitlinear and online";
            return Err(Error::argument("quantization_config", format!("{class} and {mode}"), expected));
        }
    }))
}

/// The files of a folder that hold weights.
fn files(folder: &Path) -> Result<Vec<Reader>> {
    let index = folder.join(INDEX);
    if !index.exists() {
        return Ok(vec![Reader::open(folder.join(WEIGHTS))?]);
    }
    let named = |e: Error| e.in_file(&index);
    let json: Value = serde_json::from_str(&read_text(&index, MOST_INDEX)?).map_err(|e| named(Error::file(e)))?;
    let map = json["weight_map"].as_object();
    let map = map.ok_or_else(|| named(Error::argument("weight_map", "missing", "an object of files by tensor")))?;
    let mut names = BTreeSet::new();
    for file in map.values() {
        // A file of this folder and nothing else.
        match file.as_str().filter(|name| Path::new(name).file_name().is_some_and(|own| own == *name)) {
            Some(name) => names.insert(name),
            None => return Err(named(Error::argument("weight_map", file, "the name of a file of the same folder"))),
        };
    }
    if names.is_empty() || names.len() > MOST_FILES {
        return Err(named(Error::argument(
            "weight_map",
            format!("{} files", names.len()),
            format!("1 to {MOST_FILES}"),
        )));
    }
    names.into_iter().map(|name| Ok(Reader::open(folder.join(name))?)).collect()
}

/// Every tensor that the decoder needs.
fn weights(decoder: &Decoder, form: &Form, files: Vec<Reader>) -> Result<Weights> {
    let groups = match form {
        Form::Mlx(config) => config.clone(),
        // Never asked for: tensors are read as they are.
        _ => mlx::Config::new(mlx::Groups { bits: 4, size: 64 }),
    };
    let files = Mlx::sharded(files, groups)?;
    let mut weights = BTreeMap::new();
    for Param { name, shape, .. } in decoder.params()? {
        let there = foreign(&name, Style::HuggingFace).ok_or_else(|| Error::weight(&name, "unknown", "a tensor"))?;
        let missing = |e: schwann_core::Error| match e {
            schwann_core::Error::Unknown { .. } => Error::weight(&there, "missing", format!("{shape:?}")),
            other => other.into(),
        };
        let stored = match (form, &shape[..]) {
            (Form::Mlx(_), [_, _]) => {
                let layer = there.strip_suffix(".weight").unwrap_or(&there);
                files.tensor(layer).map_err(missing)?
            }
            (Form::Ternary(kind), &[rows, len]) if is_in_layer(&name) => ternary(&files, &there, [rows, len], *kind)
                .map_err(|e| match e {
                    Error::Engine(e) => missing(e),
                    other => other,
                })?,
            _ => Stored::Floats(files.file_of(&there).and_then(|file| file.tensor(&there)).map_err(missing)?),
        };
        check_shape(&there, &stored, &shape)?;
        weights.insert(name, stored);
    }
    Ok(weights)
}

/// A ternary matrix of BitNet, in whichever form it is.
fn ternary(files: &Mlx, name: &str, shape: [usize; 2], kind: Ternary) -> Result<Stored> {
    let file = files.file_of(name)?;
    let packed = file.entry(name)?.kind == Kind::Ours(DType::U8);
    let numbers = file.tensor(name)?;
    if !packed {
        check_shape(name, &Stored::Floats(numbers.clone()), &shape)?;
    }
    if !packed && kind == Ternary::Master {
        return Ok(Stored::LowBit(ternary::master(&numbers)?));
    }
    if kind == Ternary::Master {
        return Err(Error::weight(name, &numbers, format!("floats {shape:?}, since the mode is `online`")));
    }
    let beside = format!("{name}_scale");
    let scale = match files.file_of(&beside) {
        Ok(file) => ternary::scale(&beside, &file.tensor(&beside)?, kind)?,
        Err(_) => return Err(Error::weight(&beside, "missing", "one number")),
    };
    Ok(Stored::LowBit(match packed {
        true => ternary::unpack(name, &numbers, shape, scale)?,
        false => ternary::plain(name, &numbers, shape, scale)?,
    }))
}

/// Fields of an object; of a field that is missing or `null` there is nothing.
struct Fields<'a> {
    json: &'a Value,
    /// What comes before a field's name in messages.
    path: &'static str,
}

impl<'a> Fields<'a> {
    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }
    fn missing(&self, key: &str) -> Error {
        Error::argument(self.name(key), "missing", "a number")
    }

    fn get<T>(&self, key: &str, expected: &str, of: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.json.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match of(value) {
                Some(found) => Ok(Some(found)),
                None => Err(Error::argument(self.name(key), value, expected)),
            },
        }
    }
    fn whole(&self, key: &str) -> Result<Option<usize>> {
        self.get(key, "a whole number from 0 on", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }
    fn size(&self, key: &str) -> Result<usize> {
        self.whole(key)?.ok_or_else(|| self.missing(key))
    }
    fn float(&self, key: &str) -> Result<Option<f64>> {
        self.get(key, "a number", Value::as_f64)
    }
    fn truth(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", Value::as_bool)
    }
    fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.get(key, "text", Value::as_str)
    }
}
