//! Decoders in GGUF files, by their metadata.

use super::config::check_shape;
use super::names::{Style, foreign, is_in_layer};
use super::{Decoder, FeedForward, Pairing, Rope, Weights};
use crate::init::Param;
use crate::{Error, Result};
use schwann_core::io::Stored;
use schwann_core::io::gguf::Gguf;
use schwann_core::quant::Quantized;
use schwann_core::{DType, Tensor};
use std::path::Path;

/// What the kinds of decoders that are read have in common with the others, and what not.
struct Architecture {
    name: &'static str,
    pairing: Pairing,
    feed_forward: FeedForward,
    /// Sub-norms, and rows of 8 bits.
    bitnet: bool,
    biases: bool,
    head_norms: bool,
}

const PLAIN: Architecture = Architecture {
    name: "",
    pairing: Pairing::Halves,
    feed_forward: FeedForward::SwiGlu,
    bitnet: false,
    biases: false,
    head_norms: false,
};
const ARCHITECTURES: [Architecture; 6] = [
    Architecture { name: "llama", pairing: Pairing::Neighbours, ..PLAIN },
    Architecture { name: "qwen2", biases: true, ..PLAIN },
    Architecture { name: "qwen3", head_norms: true, ..PLAIN },
    Architecture { name: "bitnet", bitnet: true, ..PLAIN },
    Architecture { name: "bitnet-25", bitnet: true, feed_forward: FeedForward::SquaredRelu, ..PLAIN },
    Architecture { name: "bitnet-b1.58", bitnet: true, feed_forward: FeedForward::SquaredRelu, ..PLAIN },
];

/// The tensor by which pairs turn slower.
const FACTORS: &str = "rope_freqs.weight";
/// Tensors of these kinds change what is computed in ways that are not built here.
const UNKNOWN_PARTS: [&str; 5] =
    ["attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias", "ffn_gate_inp.weight"];

pub(super) fn open(path: &Path) -> Result<(Decoder, Weights)> {
    let file = Gguf::open(path)?;
    read(&file).map_err(|e| e.in_file(path))
}

/// The decoder of an opened file.
pub(super) fn read(file: &Gguf) -> Result<(Decoder, Weights)> {
    let decoder = config(file)?;
    let weights = weights(&decoder, file)?;
    Ok((decoder, weights))
}

fn config(file: &Gguf) -> Result<Decoder> {
    let name = file.text("general.architecture")?;
    let Some(own) = ARCHITECTURES.iter().find(|known| known.name == name) else {
        let known: Vec<&str> = ARCHITECTURES.iter().map(|known| known.name).collect();
        return Err(Error::argument("general.architecture", name, format!("one of {}", known.join(", "))));
    };
    let key = |part: &str| format!("{name}.{part}");
    let whole = |part: &str| {
        let value = file.whole(&key(part))?;
        usize::try_from(value).map_err(|_| Error::argument(key(part), value, "a size"))
    };
    let has = |part: &str| file.metadata().contains_key(&key(part));
    let (width, heads) = (whole("embedding_length")?, whole("attention.head_count")?);
    let head_size = match has("attention.key_length") {
        true => whole("attention.key_length")?,
        false if heads > 0 && width.is_multiple_of(heads) => width / heads,
        false => return Err(Error::argument(key("attention.head_count"), heads, format!("a divisor of {width}"))),
    };
    for part in ["attention.value_length", "rope.dimension_count"] {
        if has(part) && whole(part)? != head_size {
            return Err(Error::argument(key(part), whole(part)?, format!("{head_size}, the size of a head")));
        }
    }
    if has("expert_count") && whole("expert_count")? > 0 {
        return Err(Error::argument(
            key("expert_count"),
            whole("expert_count")?,
            "0: mixtures of experts are not read",
        ));
    }
    let mut context = whole("context_length")?.min(Decoder::longest_context(head_size));
    if has("attention.sliding_window") {
        // Within the window, attention to the window is attention to all.
        context = context.min(whole("attention.sliding_window")?.max(1));
    }
    let rope = Rope {
        theta: if has("rope.freq_base") { file.float(&key("rope.freq_base"))? } else { 10_000.0 },
        pairing: own.pairing,
        factors: factors(file, name, head_size)?,
    };
    let mut decoder = Decoder {
        // The table of embeddings says how many symbols there are; lists of them may be longer or missing.
        vocabulary: file.entry("token_embd.weight").map_err(|_| missing("token_embd.weight"))?.shape[..]
            .first()
            .copied()
            .unwrap_or(0),
        width,
        layers: whole("block_count")?,
        heads,
        key_heads: if has("attention.head_count_kv") { whole("attention.head_count_kv")? } else { heads },
        head_size,
        hidden: whole("feed_forward_length")?,
        context,
        norm_eps: file.float(&key("attention.layer_norm_rms_epsilon"))? as f32,
        rope,
        feed_forward: own.feed_forward,
        sub_norms: own.bitnet,
        rounded: own.bitnet,
        tied: file.entry("output.weight").is_err(),
        biases: own.biases,
        head_norms: own.head_norms,
    };
    decoder.bound_context()?;
    Ok(decoder)
}

fn missing(name: &str) -> Error {
    Error::weight(name, "missing", "a tensor")
}

/// By how much each pair turns slower: a tensor of the file, or one factor for all.
fn factors(file: &Gguf, name: &str, head_size: usize) -> Result<Vec<f64>> {
    let key = |part: &str| format!("{name}.rope.scaling.{part}");
    let kind = match file.metadata().contains_key(&key("type")) {
        true => file.text(&key("type"))?,
        false => "none",
    };
    let pairs = head_size / 2;
    match kind {
        _ if pairs > 1 << 12 => Err(Error::argument("the size of a head", head_size, "at most 4096")),
        "none" if file.entry(FACTORS).is_ok() => match file.tensor(FACTORS)? {
            Stored::Floats(tensor) if tensor.shape() == [pairs] => Ok(tensor.to_f64()),
            other => {
                check_shape(FACTORS, &other, &[pairs])?;
                Err(Error::weight(FACTORS, "low-bit", "floats"))
            }
        },
        "none" => Ok(vec![]),
        "linear" => Ok(vec![file.float(&key("factor"))?; pairs]),
        other => Err(Error::argument(key("type"), other, "none or linear")),
    }
}

fn weights(decoder: &Decoder, file: &Gguf) -> Result<Weights> {
    if let Some(entry) = file.entries().iter().find(|e| UNKNOWN_PARTS.iter().any(|part| e.name.ends_with(part))) {
        return Err(Error::weight(&entry.name, "there", "a decoder without it: it is not read"));
    }
    let mut weights = Weights::new();
    for Param { name, shape, .. } in decoder.params()? {
        let there = foreign(&name, Style::Gguf).ok_or_else(|| Error::weight(&name, "unknown", "a tensor"))?;
        let stored = match file.entry(&there) {
            Ok(_) => file.tensor(&there)?,
            Err(_) => return Err(Error::weight(&there, "missing", format!("{shape:?}"))),
        };
        check_shape(&there, &stored, &shape)?;
        let stored = match there.strip_suffix(".weight").map(|stem| format!("{stem}.scale")) {
            // llama.cpp keeps the scale of BitNet's matrices beside them.
            Some(scale) if is_in_layer(&name) && shape.len() == 2 && file.entry(&scale).is_ok() => {
                scaled(stored, &scale, file)?
            }
            _ => stored,
        };
        weights.insert(name, stored);
    }
    Ok(weights)
}

/// A matrix times the one number of another tensor.
fn scaled(stored: Stored, name: &str, file: &Gguf) -> Result<Stored> {
    let factor = match file.tensor(name)? {
        Stored::Floats(tensor) if tensor.len() == 1 => tensor.to_f64()[0],
        _ => return Err(Error::weight(name, "not one float", "one float")),
    };
    let times = |tensor: &Tensor| {
        let values: Vec<f64> = tensor.to_f64().iter().map(|x| x * factor).collect();
        Tensor::from_f64(DType::F32, tensor.shape(), &values)
    };
    Ok(match stored {
        Stored::Floats(tensor) => Stored::Floats(times(&tensor)?),
        Stored::LowBit(matrix) => {
            let offsets = matrix.offsets.as_ref().map(times).transpose()?;
            Stored::LowBit(Quantized { scales: times(&matrix.scales)?, offsets, ..matrix })
        }
    })
}
