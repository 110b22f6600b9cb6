//! Data to learn from: arrays in memory or in mapped files, windows of sequences, and batches that a thread prepares while
//! the last one is being learned from.
//!
//! Everything is rows: a row is a step of a sequence, with its features. A sequence is a span of rows, a window a part of
//! a sequence. So arrays `[N, T, C]`, one long recording `[T, C]` and a table with groups are the same thing, and a batch
//! copies rows from wherever they lie, which may be a file larger than memory.
//!
//! [`Loader`] makes batches to learn from; [`Chunks`] gives a file's rows piece by piece, for runs on inputs that are larger than
//! memory (`schwann run --chunk`). Both have buffers that were made once and a thread that reads ahead.

mod chunks;
pub mod examples;
mod loader;
mod table;
mod windows;

pub use chunks::{Chunk, Chunks};
pub use loader::{Bad, Filled, Loader};
pub use table::{Columns, read_csv};
pub use windows::{Order, Split, Window, Windows, split};

use crate::train::Loss;
use crate::{Affine, Error, Layer, Model, Result};
use schwann_core::{DType, Tensor, io};
use std::ops::Range;
use std::path::Path;

/// One array as rows of so many numbers.
#[derive(Clone, Debug)]
pub struct Rows {
    data: Tensor,
    width: usize,
}

impl Rows {
    /// The last axis as features, all others as rows; a single axis is rows of one number each.
    pub fn new(data: Tensor) -> Result<Rows> {
        let width = if data.shape().len() > 1 { data.shape().last().copied().unwrap_or(1) } else { 1 };
        Rows::of_width(data, width)
    }

    /// Rows of so many numbers.
    pub fn of_width(data: Tensor, width: usize) -> Result<Rows> {
        if width == 0 || !data.len().is_multiple_of(width) {
            return Err(Error::argument("an array", &data, format!("rows of {width} numbers")));
        }
        Ok(Rows { data, width })
    }

    /// Numbers in a row.
    pub fn width(&self) -> usize {
        self.width
    }
    /// How many rows.
    pub fn len(&self) -> usize {
        self.data.len() / self.width
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether it lies in a mapped file.
    pub fn is_mapped(&self) -> bool {
        self.data.is_mapped()
    }

    fn span(&self, rows: Range<usize>) -> Range<usize> {
        let size = self.width * self.data.dtype().size();
        rows.start * size..rows.end * size
    }

    /// Copies rows as `f32`; gives the place of the first number that is not finite.
    pub(crate) fn read(&self, rows: Range<usize>, out: &mut [f32]) -> Option<usize> {
        let bytes = &self.data.bytes()[self.span(rows)];
        match self.data.dtype() {
            DType::F32 => {
                let from = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                out.iter_mut().zip(from).for_each(|(to, from)| *to = from);
            }
            DType::I32 => {
                let from = bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32);
                out.iter_mut().zip(from).for_each(|(to, from)| *to = from);
            }
            DType::I8 => out.iter_mut().zip(bytes).for_each(|(to, from)| *to = f32::from(*from as i8)),
            DType::U8 | DType::Bool => out.iter_mut().zip(bytes).for_each(|(to, from)| *to = f32::from(*from)),
            DType::F16 | DType::Bf16 => {
                let wide = |b: &[u8]| match self.data.dtype() {
                    DType::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16),
                    _ => half_to_f32(u16::from_le_bytes([b[0], b[1]])),
                };
                out.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(to, from)| *to = wide(from));
            }
        }
        // One pass that a compiler makes vectors of; where it fails, the place is looked for.
        let finite = out.iter().fold(true, |ok, v| ok & v.is_finite());
        if finite { None } else { out.iter().position(|v| !v.is_finite()) }
    }

    /// Copies whole numbers; gives the first place of a number that is none, or is not below `most`.
    pub(crate) fn read_whole(&self, rows: Range<usize>, out: &mut [i32], most: usize) -> Option<usize> {
        let bytes = &self.data.bytes()[self.span(rows)];
        let good = |v: f64| v.fract() == 0.0 && v >= 0.0 && v < most as f64;
        let mut bad = None;
        let number = |i: usize| match self.data.dtype() {
            DType::I32 => f64::from(i32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap_or_default())),
            DType::F32 => f64::from(f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap_or_default())),
            DType::I8 => f64::from(bytes[i] as i8),
            DType::U8 | DType::Bool => f64::from(bytes[i]),
            DType::F16 | DType::Bf16 => f64::NAN,
        };
        for (i, to) in out.iter_mut().enumerate() {
            let value = number(i);
            if !good(value) && bad.is_none() {
                bad = Some(i);
            }
            *to = if good(value) { value as i32 } else { 0 };
        }
        bad
    }
}

/// IEEE half precision, widened.
fn half_to_f32(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0f32 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

/// Sequences: what goes in, what is wanted, and the time between steps.
#[derive(Clone, Debug)]
pub struct Sequences {
    pub(crate) x: Rows,
    pub(crate) target: Rows,
    /// Whether there is one target for each sequence rather than for each step.
    pub(crate) one_target: bool,
    pub(crate) timespans: Option<Rows>,
    /// Where each sequence begins, and how long it is.
    pub(crate) spans: Vec<(usize, usize)>,
}

impl Sequences {
    /// From arrays. `x` is `[N, T, C]`, or `[T, C]` for one sequence; whole numbers for an embedding are `[N, T]` of
    /// `i32`. `target` has one row for each step, or one for each sequence.
    pub fn new(x: Tensor, target: Tensor) -> Result<Sequences> {
        let symbols = x.dtype() == DType::I32 && x.shape().len() == 2;
        let (count, steps, width) = match *x.shape() {
            [n, t] if symbols => (n, t, 1),
            [n, t, c] => (n, t, c),
            [t, c] => (1, t, c),
            _ => return Err(Error::argument("x", &x, "[N, T, C], [T, C], or i32[N, T]")),
        };
        if count == 0 || steps == 0 || width == 0 {
            return Err(Error::argument("x", &x, "some rows"));
        }
        let rows = count * steps;
        let (one_target, target_width) = target_layout(&target, count, steps, rows)?;
        Ok(Sequences {
            x: Rows::of_width(x, width)?,
            target: Rows::of_width(target, target_width)?,
            one_target,
            timespans: None,
            spans: (0..count).map(|i| (i * steps, steps)).collect(),
        })
    }

    /// Samples without a time axis: `x` is `[N, C]`, `target` `[N, O]` or `[N]`. For models that have no state.
    pub fn samples(x: Tensor, target: Tensor) -> Result<Sequences> {
        let (x, target) = (Rows::new(x)?, Rows::new(target)?);
        if x.len() != target.len() || x.is_empty() {
            let expected = format!("{} rows, one for each of x", x.len());
            return Err(Error::argument("target", format!("{} rows", target.len()), expected));
        }
        let spans = (0..x.len()).map(|i| (i, 1)).collect();
        Ok(Sequences { x, target, one_target: true, timespans: None, spans })
    }

    /// With the time between steps, one number for each row of x.
    pub fn timespans(mut self, timespans: Tensor) -> Result<Sequences> {
        if timespans.len() != self.x.len() {
            let expected = format!("{} numbers, one for each step", self.x.len());
            return Err(Error::argument("timespans", &timespans, expected));
        }
        self.timespans = Some(Rows::of_width(timespans, 1)?);
        Ok(self)
    }

    /// With sequences of these lengths; the rows after each are not looked at.
    pub fn lengths(mut self, lengths: &[usize]) -> Result<Sequences> {
        if lengths.len() != self.spans.len() {
            return Err(Error::argument("lengths", lengths.len(), format!("{}, one a sequence", self.spans.len())));
        }
        for (i, (span, length)) in self.spans.iter_mut().zip(lengths).enumerate() {
            if *length == 0 || *length > span.1 {
                return Err(Error::argument(format!("lengths[{i}]"), length, format!("from 1 to {}", span.1)));
            }
            span.1 = *length;
        }
        Ok(self)
    }

    /// With the time between steps as one more input, for layers that know of no time; it stays what it was for those
    /// that do. The inputs are copied into memory.
    pub fn with_time_as_input(mut self) -> Result<Sequences> {
        let Some(timespans) = &self.timespans else {
            return Err(Error::argument("time_as_input", true, "data with the time between steps"));
        };
        let (rows, width) = (self.x.len(), self.x.width());
        let mut wide = vec![0.0f32; rows * (width + 1)];
        for (row, out) in wide.chunks_exact_mut(width + 1).enumerate() {
            let (own, last) = out.split_at_mut(width);
            // What is not finite is found, and said, when it is learned from.
            self.x.read(row..row + 1, own);
            timespans.read(row..row + 1, last);
        }
        self.x = Rows::of_width(Tensor::new(&[rows, width + 1], &wide)?, width + 1)?;
        Ok(self)
    }

    /// How many sequences.
    pub fn len(&self) -> usize {
        self.spans.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
    /// The longest sequence's steps.
    pub fn longest(&self) -> usize {
        self.spans.iter().map(|s| s.1).max().unwrap_or(0)
    }
    /// Features in.
    pub fn inputs(&self) -> usize {
        self.x.width()
    }
    /// Features wanted.
    pub fn targets(&self) -> usize {
        self.target.width()
    }
    /// Whether the time between steps is known.
    pub fn is_timed(&self) -> bool {
        self.timespans.is_some()
    }

    /// The arrays by name, as they were given: `x`, `target`, and `timespans` where they are known.
    pub fn arrays(&self) -> Vec<(&'static str, &Tensor)> {
        let mut arrays = vec![("x", &self.x.data), ("target", &self.target.data)];
        arrays.extend(self.timespans.as_ref().map(|rows| ("timespans", &rows.data)));
        arrays
    }

    /// The number of the sequence that a row belongs to.
    pub(crate) fn sequence_of(&self, row: usize) -> usize {
        self.spans.partition_point(|span| span.0 <= row).saturating_sub(1)
    }

    /// Mean and deviation of each feature over the rows of these windows; `of_targets` says of which.
    pub fn scale(&self, windows: &[Window], of_targets: bool) -> Result<Scale> {
        let rows = if of_targets { &self.target } else { &self.x };
        let width = rows.width();
        let (mut sums, mut squares, mut count) = (vec![0f64; width], vec![0f64; width], 0u64);
        let mut buffer = vec![];
        // Differences from the first row, whose squares lose nothing to a large mean.
        let mut first: Vec<f64> = vec![];
        for window in windows {
            let span = match of_targets && self.one_target {
                true => {
                    let sequence = self.sequence_of(window.start);
                    sequence..sequence + 1
                }
                false => window.start..window.start + window.len as usize,
            };
            buffer.resize(span.len() * width, 0.0f32);
            if let Some(at) = rows.read(span.clone(), &mut buffer) {
                let what = if of_targets { "target" } else { "x" };
                return Err(Error::argument(
                    format!("{what}, row {}, column {}", span.start + at / width, at % width),
                    buffer[at],
                    "a finite number",
                ));
            }
            if first.is_empty() {
                first = buffer[..width].iter().map(|v| f64::from(*v)).collect();
            }
            for row in buffer.chunks_exact(width) {
                for (i, value) in row.iter().enumerate() {
                    let apart = f64::from(*value) - first[i];
                    sums[i] += apart;
                    squares[i] += apart * apart;
                }
                count += 1;
            }
        }
        if count == 0 {
            return Err(Error::argument("windows", 0, "one at least"));
        }
        let n = count as f64;
        let mean = sums.iter().zip(&first).map(|(s, f)| (f + s / n) as f32).collect();
        let deviation = |(s, q): (&f64, &f64)| (q / n - (s / n) * (s / n)).max(0.0).sqrt() as f32;
        // A feature that is always the same is only shifted.
        let deviation = |pair| Some(deviation(pair)).filter(|d| *d > 1e-12).unwrap_or(1.0);
        Ok(Scale { mean, deviation: sums.iter().zip(&squares).map(deviation).collect() })
    }
}

/// Whether targets are one for each sequence, and their width.
fn target_layout(target: &Tensor, count: usize, steps: usize, rows: usize) -> Result<(bool, usize)> {
    let layout = match *target.shape() {
        [n, t, o] if n == count && t == steps => Some((false, o)),
        [n, t] if n == count && t == steps && count > 1 => Some((false, 1)),
        [n, o] if n == count && count > 1 => Some((true, o)),
        [n] if n == count && count > 1 => Some((true, 1)),
        [t, o] if count == 1 && t == rows => Some((false, o)),
        [t] if count == 1 && t == rows => Some((false, 1)),
        _ => None,
    };
    layout.filter(|(_, width)| *width > 0).ok_or_else(|| {
        let expected = format!("[{count}, {steps}, O] with a row for each step, or [{count}, O] with one a sequence");
        Error::argument("target", target, expected)
    })
}

/// Mean and deviation of each feature.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// The mean.
    pub mean: Vec<f32>,
    /// The standard deviation; 1 where a feature never changes.
    pub deviation: Vec<f32>,
}

impl Scale {
    /// A layer that brings features of this scale to mean 0 and deviation 1, or with `back` the reverse.
    fn layer(&self, back: bool) -> Result<(Layer, [Tensor; 2])> {
        let n = self.mean.len();
        let pairs = self.mean.iter().zip(&self.deviation);
        let (weight, bias): (Vec<f32>, Vec<f32>) = match back {
            true => pairs.map(|(m, d)| (*d, *m)).unzip(),
            false => pairs.map(|(m, d)| (1.0 / d, -m / d)).unzip(),
        };
        Ok((Affine::new(n).into(), [Tensor::new(&[n], &weight)?, Tensor::new(&[n], &bias)?]))
    }
}

/// A model between layers that bring its inputs to a common scale and its results back to the targets' own: so
/// normalisation is part of the model, wherever it is used. Gives the names of the parameters that must not learn.
pub fn normalized(model: &Model, inputs: Option<&Scale>, targets: Option<&Scale>) -> Result<(Model, Vec<String>)> {
    let mut layers: Vec<Layer> = vec![];
    let mut own = vec![];
    if let Some(scale) = inputs {
        let (layer, values) = scale.layer(false)?;
        own.push((layers.len(), values));
        layers.push(layer);
    }
    let first = layers.len();
    layers.extend(model.layers().iter().cloned());
    if let Some(scale) = targets {
        let (layer, values) = scale.layer(true)?;
        own.push((layers.len(), values));
        layers.push(layer);
    }
    if own.is_empty() {
        return Ok((model.clone(), vec![]));
    }
    let single = model.layers().len() == 1;
    let mut weights = std::collections::BTreeMap::new();
    for (name, data) in model.weights() {
        let name = match (single, name.split_once('.')) {
            (true, _) => format!("{first}.{name}"),
            (false, Some((number, rest))) => {
                format!("{}.{rest}", number.parse::<usize>().map_or(first, |n| n + first))
            }
            (false, None) => name.clone(),
        };
        weights.insert(name, data.clone());
    }
    let mut frozen = vec![];
    for (layer, [weight, bias]) in own {
        for (part, data) in [("weight", weight), ("bias", bias)] {
            frozen.push(format!("{layer}.{part}"));
            weights.insert(format!("{layer}.{part}"), data);
        }
    }
    Ok((Model::with_weights(layers, weights)?, frozen))
}

/// What a model and its loss need of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Whether x has a time axis.
    pub steps: bool,
    /// Whether x is whole numbers below this, for an embedding.
    pub symbols: Option<usize>,
    /// Whether targets are numbers of classes, below this.
    pub classes: Option<usize>,
    /// Whether there is a target for each step.
    pub each_step: bool,
    /// Features wanted.
    pub targets: usize,
    /// Whether windows differ in length.
    pub masked: bool,
    /// Whether windows of a sequence follow each other, with the states between them.
    pub carried: bool,
    /// Whether the time between steps is an input.
    pub timed: bool,
}

impl Layout {
    /// For a model, a loss and data; what does not fit is refused.
    pub fn of(model: &Model, loss: Loss, data: &Sequences, windows: &Windows) -> Result<Layout> {
        let sequential = model.sequential();
        let recurrent = sequential.batch_first().is_some();
        let each_step = recurrent && model.layers().iter().filter_map(Layer::recurrent).all(|(_, all)| all);
        let symbols = match model.layers().first() {
            Some(Layer::Embedding(e)) => Some(e.num_embeddings),
            _ => None,
        };
        let outputs = model.layers().iter().rev().find_map(|l| l.widths().output);
        let classes = outputs.filter(|_| loss.is_of_classes());
        let inputs = sequential.input_size();
        if let Some(inputs) = inputs.filter(|n| *n != data.inputs()) {
            return Err(Error::argument(
                "x",
                format!("{} features", data.inputs()),
                format!("{inputs}, as the model has"),
            ));
        }
        match (classes, outputs) {
            (Some(_), _) if data.targets() != 1 => {
                return Err(Error::argument("target", format!("{} numbers a row", data.targets()), "1, the class"));
            }
            (None, Some(n)) if n != data.targets() => {
                let expected = format!("{n}, as the model gives");
                return Err(Error::argument("target", format!("{} features", data.targets()), expected));
            }
            _ => {}
        }
        if each_step && data.one_target {
            let expected = "a row for each step, or a model that gives its last step only (`return_sequences` false)";
            return Err(Error::argument("target", "one row for each sequence", expected));
        }
        if !each_step && windows.masked && recurrent {
            let expected = "sequences of one length, or a model that gives every step (`return_sequences` true)";
            return Err(Error::argument("sequences", "of several lengths", expected));
        }
        let timed = data.is_timed() && model.layers().iter().any(Layer::timed);
        Ok(Layout {
            steps: recurrent,
            symbols,
            classes,
            each_step,
            targets: data.targets(),
            masked: each_step && (windows.masked || windows.carried),
            carried: windows.carried,
            timed,
        })
    }
}

/// An array from a `.npy` file, which stays there, or from an `.npz` archive (`file.npz:name`), which is read into memory.
pub fn read_array(path: &str) -> Result<Tensor> {
    let archive = |file: &str, name: Option<&str>| -> Result<Tensor> {
        let mut arrays = io::read_npz(file)?;
        match name {
            Some(name) => arrays.remove(name).ok_or_else(|| {
                let known = arrays.keys().cloned().collect::<Vec<_>>().join(", ");
                Error::argument(path, "not in the archive", format!("one of {known}"))
            }),
            None if arrays.len() == 1 => Ok(arrays.into_values().next().unwrap_or_else(|| Tensor::scalar(0.0f32))),
            None => {
                let known = arrays.keys().cloned().collect::<Vec<_>>().join(", ");
                Err(Error::argument(path, "an archive", format!("{path}:NAME with one of {known}")))
            }
        }
    };
    if let Some((file, name)) = path.rsplit_once(".npz:") {
        return archive(&format!("{file}.npz"), Some(name));
    }
    match Path::new(path).extension().and_then(|e| e.to_str()) {
        Some("npz") => archive(path, None),
        Some("npy") => Ok(io::map_npy(path)?),
        _ => Err(Error::argument("a file of data", path, "one that ends with .npy or .npz")),
    }
}
