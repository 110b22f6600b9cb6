//! The quantized weights of MLX: safetensors in which a matrix `p` is three tensors.
//!
//! `p.weight` is `u32 [rows, words]`: the bytes of a row are a stream of codes of so many bits, lowest bits first.
//! `p.scales` and `p.biases` are `[rows, groups]`; code c stands for c · scale + bias, which is what codes with offsets
//! stand for here ([`LowBit`]). How many bits a code has and how many numbers a group has is written in the `config.json`
//! beside the file. Codes of 4 and 8 bits lie as they do here and are not copied; others are widened to 4 or 8 bits.
//!
//! Where scales are f16 or bf16, MLX rounds each number to that type after computing it; here it stays `f32`.

use super::gguf::pack;
use super::safetensors::{Entry, Reader};
use super::{Kind, Stored, excerpt, read_text};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Code, LowBit};
use crate::quant::Quantized;
use crate::tensor::{Tensor, count};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const FORMAT: &str = "MLX";
/// More than any configuration has.
const MAX_CONFIG: u64 = 16 << 20;

fn bad(problem: impl Into<String>) -> Error {
    Error::File { path: None, format: FORMAT, problem: problem.into() }
}

/// How a matrix is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// Neighbours of a row that share a scale and a bias.
    pub size: usize,
}

/// The part of a `config.json` that says how matrices are quantized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How most matrices are.
    pub groups: Groups,
    /// Those that are otherwise, by name.
    pub layers: BTreeMap<String, Groups>,
}

impl Config {
    /// All matrices alike.
    pub fn new(groups: Groups) -> Config {
        Config { groups, layers: BTreeMap::new() }
    }

    /// Reads a `config.json`.
    pub fn open(path: impl AsRef<Path>) -> Result<Config> {
        let path = path.as_ref();
        Config::from_json(&read_text(path, MAX_CONFIG)?).map_err(|e| e.in_file(path))
    }

    /// The same for its text.
    pub fn from_json(text: &str) -> Result<Config> {
        let json: Value = serde_json::from_str(text).map_err(|e| bad(format!("config: {e}")))?;
        let all = json.get("quantization").and_then(Value::as_object).ok_or_else(|| {
            bad("config: no object `quantization`; expected {\"quantization\": {\"group_size\": 64, \"bits\": 4}}")
        })?;
        let groups = groups(all, None).map_err(|e| bad(format!("config: quantization: {e}")))?;
        let mut layers = BTreeMap::new();
        for (name, value) in all {
            // A layer that is not quantized is `false`: its tensors show it too, by having no scales.
            if let Some(fields) = value.as_object() {
                let own = groups_of(fields, groups, name)?;
                layers.insert(name.clone(), own);
            }
        }
        Ok(Config { groups, layers })
    }

    fn of(&self, name: &str) -> Groups {
        self.layers.get(name).copied().unwrap_or(self.groups)
    }
}

fn groups_of(fields: &serde_json::Map<String, Value>, all: Groups, name: &str) -> Result<Groups> {
    groups(fields, Some(all)).map_err(|e| bad(format!("config: quantization of {}: {e}", excerpt(name))))
}

/// What an object says; fields that it lacks are those of `all`.
fn groups(fields: &serde_json::Map<String, Value>, all: Option<Groups>) -> Result<Groups, String> {
    let whole = |key: &str, else_: Option<usize>| match (fields.get(key), else_) {
        (None, Some(known)) => Ok(known),
        (None, None) => Err(format!("`{key}` is missing")),
        (Some(value), _) => value
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| format!("`{key}` is {}; expected a whole number", excerpt(&value.to_string()))),
    };
    if let Some(mode) = fields.get("mode").filter(|mode| mode.as_str() != Some("affine")) {
        return Err(format!("the mode is {}; only `affine` is read", excerpt(&mode.to_string())));
    }
    let groups = Groups { bits: whole("bits", all.map(|a| a.bits))?, size: whole("group_size", all.map(|a| a.size))? };
    check(groups)?;
    Ok(groups)
}

fn check(groups: Groups) -> Result<(), String> {
    match groups {
        Groups { bits: 2..=6 | 8, size: 1.. } => Ok(()),
        Groups { bits, size } => {
            Err(format!("{bits} bits in groups of {size}; expected 2, 3, 4, 5, 6 or 8 bits in groups of 1 and more"))
        }
    }
}

/// Opened files of quantized weights: one, or several that a large model is split into.
#[derive(Clone, Debug)]
pub struct Mlx {
    readers: Vec<Reader>,
    /// In which of them each tensor is.
    places: BTreeMap<String, usize>,
    config: Config,
}

impl Mlx {
    /// Maps a file, and reads the `config.json` beside it.
    pub fn open(path: impl AsRef<Path>) -> Result<Mlx> {
        let path = path.as_ref();
        let config = Config::open(path.with_file_name("config.json"))?;
        Ok(Mlx::new(Reader::open(path)?, config))
    }

    /// A file whose configuration is known.
    pub fn new(reader: Reader, config: Config) -> Mlx {
        let places = reader.entries().iter().map(|entry| (entry.name.clone(), 0)).collect();
        Mlx { readers: vec![reader], places, config }
    }

    /// Several files, each with some of the tensors; one that two files have is refused.
    pub fn sharded(readers: Vec<Reader>, config: Config) -> Result<Mlx> {
        let mut places = BTreeMap::new();
        for (place, reader) in readers.iter().enumerate() {
            for entry in reader.entries() {
                if places.insert(entry.name.clone(), place).is_some() {
                    return Err(reader.named(bad(format!("tensor {} is in another file too", excerpt(&entry.name)))));
                }
            }
        }
        Ok(Mlx { readers, places, config })
    }

    /// The file that has a tensor, for those that are not weights of a layer.
    pub fn file_of(&self, name: &str) -> Result<&Reader> {
        self.places.get(name).map(|place| &self.readers[*place]).ok_or_else(|| Error::Unknown {
            kind: "tensor",
            name: name.into(),
            // Enough to see a misspelling; a model may have thousands.
            known: self.places.keys().take(20).cloned().collect(),
        })
    }

    /// The names of all matrices that are quantized.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().filter_map(|name| name.strip_suffix(".scales"))
    }

    /// The weight of a layer: codes and scales if it is quantized, else floats.
    pub fn tensor(&self, name: &str) -> Result<Stored> {
        let weight = format!("{name}.weight");
        let file = self.file_of(&weight)?;
        let [scales, biases] = ["scales", "biases"].map(|part| format!("{name}.{part}"));
        if !self.places.contains_key(&scales) {
            return file.tensor(&weight).map(Stored::Floats);
        }
        self.quantized(&weight, &scales, &biases, self.config.of(name)).map(Stored::LowBit)
    }

    fn quantized(&self, weight: &str, scales: &str, biases: &str, groups: Groups) -> Result<Quantized> {
        let file = self.file_of(weight)?;
        let refuse = |problem: String| file.named(bad(problem));
        check(groups).map_err(|e| refuse(format!("tensor {}: {e}", excerpt(weight))))?;
        let described = |e: &Entry| format!("tensor {} is {}{:?}", excerpt(&e.name), e.kind, e.shape);
        let codes = file.entry(weight)?;
        let [first, second] = [self.file_of(scales)?.entry(scales)?, self.file_of(biases)?.entry(biases)?];
        let (Kind::U32, [.., words]) = (codes.kind, &codes.shape[..]) else {
            return Err(refuse(format!("{}; expected u32 [rows, words]", described(codes))));
        };
        let Groups { bits, size } = groups;
        let lead = &codes.shape[..codes.shape.len() - 1];
        let rows = count(lead).unwrap_or(0);
        // The bytes are there, so their bits can be counted.
        let (row_bytes, len) = (words * 4, words * 32 / bits);
        if rows == 0 || len == 0 || words * 32 % bits != 0 || len % size != 0 {
            let problem = format!("expected rows of codes of {bits} bits in whole groups of {size}");
            return Err(refuse(format!("{}; {problem}", described(codes))));
        }
        let want = [lead, &[len / size]].concat();
        let fits = |e: &Entry| e.shape == want && e.kind.dtype().is_some_and(DType::is_float);
        if !fits(first) || !fits(second) || first.kind != second.kind {
            return Err(refuse(format!(
                "{} and {}; {len} codes of {bits} bits in groups of {size} take floats {want:?} of one type",
                described(first),
                described(second)
            )));
        }
        let code = if bits <= 4 { Code::Bits4 } else { Code::Bits8 };
        let shape = [rows, code.row_bytes(len)];
        let packed = match bits {
            4 | 8 => file.as_bytes(weight, &shape)?,
            _ => {
                let mut to = Tensor::zeros(DType::U8, &shape)?;
                let bytes = file.bytes(weight)?;
                for (from, to) in bytes.chunks_exact(row_bytes).zip(to.bytes_mut().chunks_exact_mut(shape[1])) {
                    widen(bits, code, from, to);
                }
                file.release(weight)?;
                to
            }
        };
        let floats = |name: &str| self.file_of(name)?.tensor(name)?.reshaped(&[rows, len / size]);
        let format = LowBit { code, len, block: size, offsets: true };
        Ok(Quantized { format, codes: packed, scales: floats(scales)?, offsets: Some(floats(biases)?) })
    }
}

/// Packs a row of codes of `bits` bits anew. A row is a multiple of 32 bits and of `bits`, and so are eight codes whole bytes.
fn widen(bits: usize, code: Code, from: &[u8], to: &mut [u8]) {
    for (from, to) in from.chunks_exact(bits).zip(to.chunks_exact_mut(8 / code.in_a_byte())) {
        let stream = from.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        let codes: [u8; 8] = std::array::from_fn(|i| (stream >> (i * bits)) as u8 & ((1 << bits) - 1));
        pack(code, &codes, to);
    }
}
