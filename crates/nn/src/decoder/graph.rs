//! A decoder as a graph.

use super::{Decoder, FeedForward, Pairing, Weights};
use crate::{Error, Result};
use schwann_core::io::Stored;
use schwann_core::op::LowBit;
use schwann_core::{DType, Dim, Graph, GraphBuilder, Shape, Tensor, Value, shape};
use std::collections::BTreeMap;

/// A matrix in the graph: as its file has it, so that a dense one of 16 bits stays so until it is multiplied with.
#[derive(Clone, Copy)]
enum Matrix {
    Dense(Value),
    LowBit { format: LowBit, codes: Value, scales: Value, offsets: Option<Value> },
}

/// cos and sin of the angles by which the pairs of each position turn, `[T, head_size/2]`.
type Rotation = [Value; 2];

struct Build<'a> {
    decoder: &'a Decoder,
    weights: &'a Weights,
    b: GraphBuilder,
    matrices: BTreeMap<String, Matrix>,
}

impl Decoder {
    /// The network: from `tokens` i32 `[B, T]` to `logits` f32 `[B, T, vocabulary]`, where T is at most the context.
    /// Position i sees positions up to i.
    pub fn graph(&self, weights: &Weights) -> Result<Graph> {
        self.check_weights(weights)?;
        let mut build = Build { decoder: self, weights, b: GraphBuilder::new(), matrices: BTreeMap::new() };
        let tokens = build.b.input("tokens", DType::I32, shape!["B", "T"])?;
        let rotation = build.rotation(Dim::symbol("T"))?;
        let mut x = build.embedded(tokens)?;
        for layer in 0..self.layers {
            let outside = build.b.enter(&format!("layers.{layer}"));
            x = build.part("attention", |build| build.attention(x, rotation))?;
            x = build.part("mlp", |build| build.feed_forward(x))?;
            build.b.leave(outside);
        }
        let x = build.norm("norm", x)?;
        let head = build.matrix(if self.tied { "embedding" } else { "head" })?;
        let head = build.numbers("head", head)?;
        let logits = build.b.named("head").linear(x, head, None)?;
        build.b.output("logits", logits)?;
        Ok(build.b.build()?)
    }

    /// cos and sin of every angle, `[context, head_size/2]` each.
    fn angles(&self) -> Result<[Tensor; 2]> {
        let pairs = self.head_size / 2;
        let each: Vec<f64> = (0..pairs)
            .map(|i| {
                let slower = self.rope.factors.get(i).copied().unwrap_or(1.0);
                self.rope.theta.powf(-2.0 * i as f64 / self.head_size as f64) / slower
            })
            .collect();
        let all = || (0..self.context).flat_map(|position| each.iter().map(move |angle| position as f64 * angle));
        let table = |of: fn(f64) -> f64| {
            Tensor::new(&[self.context, pairs], &all().map(|angle| of(angle) as f32).collect::<Vec<f32>>())
        };
        Ok([table(f64::cos)?, table(f64::sin)?])
    }
}

impl Build<'_> {
    fn part<T>(&mut self, part: &str, build: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outside = self.b.enter(part);
        let built = build(self);
        self.b.leave(outside);
        built
    }

    /// The name of a tensor of the part that is being built.
    fn name(&self, tensor: &str) -> String {
        if self.b.path().is_empty() { tensor.to_owned() } else { format!("{}.{tensor}", self.b.path()) }
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        self.weights.get(name).ok_or_else(|| Error::weight(name, "missing", "data"))
    }

    /// A norm's weight or a bias, as `f32`.
    fn vector(&mut self, name: &str) -> Result<Value> {
        let name = self.name(name);
        let data = match self.stored(&name)? {
            Stored::Floats(data) if data.dtype() == DType::F32 => data.clone(),
            Stored::Floats(data) => Tensor::from_f64(DType::F32, data.shape(), &data.to_f64())?,
            Stored::LowBit(_) => return Err(Error::weight(&name, "low-bit", "floats")),
        };
        Ok(self.b.weight(&name, data)?)
    }

    /// A matrix of the part that is being built; one that is read twice is in the graph once.
    fn matrix(&mut self, name: &str) -> Result<Matrix> {
        let name = self.name(name);
        if let Some(matrix) = self.matrices.get(&name) {
            return Ok(*matrix);
        }
        let matrix = match self.stored(&format!("{name}.weight"))?.clone() {
            Stored::Floats(data) => Matrix::Dense(self.b.weight(&format!("{name}.weight"), data)?),
            Stored::LowBit(matrix) => {
                let mut weight = |part: &str, data: Tensor| self.b.weight(&format!("{name}.{part}"), data);
                Matrix::LowBit {
                    format: matrix.format,
                    codes: weight("codes", matrix.codes)?,
                    scales: weight("scales", matrix.scales)?,
                    offsets: matrix.offsets.map(|offsets| weight("offsets", offsets)).transpose()?,
                }
            }
        };
        self.matrices.insert(name, matrix);
        Ok(matrix)
    }

    /// A matrix as `f32`, to multiply with. The compiler widens dense ones once, and codes only where that is faster.
    fn numbers(&mut self, name: &str, matrix: Matrix) -> Result<Value> {
        let b = self.b.named(&format!("{name}.weights"));
        Ok(match matrix {
            Matrix::LowBit { format, codes, scales, offsets } => b.low_bit(format, codes, scales, offsets)?,
            Matrix::Dense(value) if b.ty(value).dtype == DType::F32 => value,
            Matrix::Dense(value) => b.cast(value, DType::F32)?,
        })
    }

    /// A product with the matrix of this name, and its bias if there is one.
    fn linear(&mut self, name: &str, x: Value) -> Result<Value> {
        let matrix = self.matrix(name)?;
        let numbers = self.numbers(name, matrix)?;
        let bias = format!("{name}.bias");
        let bias = if self.weights.contains_key(&self.name(&bias)) { Some(self.vector(&bias)?) } else { None };
        Ok(self.b.named(name).linear(x, numbers, bias)?)
    }

    fn norm(&mut self, name: &str, x: Value) -> Result<Value> {
        let weight = self.vector(&format!("{name}.weight"))?;
        Ok(self.b.named(name).rms_norm(x, Some(weight), self.decoder.norm_eps)?)
    }

    /// What products multiply with weights: rows of 8 bits, if the decoder has them.
    fn rows(&mut self, name: &str, x: Value) -> Result<Value> {
        Ok(if self.decoder.rounded { self.b.named(name).round_rows(x)? } else { x })
    }

    /// The row of the table for each symbol. Of a low-bit table only those rows become `f32`; its codes are not widened, since
    /// the table may be most of a small decoder.
    fn embedded(&mut self, tokens: Value) -> Result<Value> {
        let table = self.matrix("embedding")?;
        self.part("embedding", |build| {
            let b = &mut build.b;
            Ok(match table {
                Matrix::Dense(table) => {
                    let rows = b.named("").gather(table, tokens, 0)?;
                    if b.ty(rows).dtype == DType::F32 { rows } else { b.named("rows").cast(rows, DType::F32)? }
                }
                Matrix::LowBit { format, codes, scales, offsets } => {
                    let codes = b.named("codes").gather(codes, tokens, 0)?;
                    // Where all rows share their scales, there is one row of them.
                    let shared = b.ty(scales).shape[0].is(1) && build.decoder.vocabulary != 1;
                    let mut row = |name: &str, of: Value| {
                        if shared { Ok(of) } else { b.named(name).gather(of, tokens, 0) }
                    };
                    let scales = row("scales", scales)?;
                    let offsets = offsets.map(|offsets| row("offsets", offsets)).transpose()?;
                    b.named("").low_bit(format, codes, scales, offsets)?
                }
            })
        })
    }

    /// The rotation of the first `length` positions.
    fn rotation(&mut self, length: Dim) -> Result<Rotation> {
        let context = self.decoder.context;
        let [cos, sin] = self.decoder.angles()?;
        self.part("rope", |build| {
            let b = &mut build.b;
            // 0, 1, 2 …, and after the last position −1, which no table has: a sequence beyond the context is refused.
            let numbers: Vec<i32> = (0..context as i32).collect();
            let within = b.weight("rope.numbers", Tensor::new(&[context], &numbers)?)?;
            let none = b.named("none").constant(Tensor::scalar(-1i32))?;
            let beyond = b.named("beyond_context").broadcast(none, shape![length.clone()])?;
            let all = b.named("all").concat(&[within, beyond], 0)?;
            let positions = b.named("positions").slice(all, 0, 0, length)?;
            let [cos, sin] = [b.weight("rope.cos", cos)?, b.weight("rope.sin", sin)?];
            Ok([b.named("cos").gather(cos, positions, 0)?, b.named("sin").gather(sin, positions, 0)?])
        })
    }

    /// x with attention added.
    fn attention(&mut self, x: Value, rotation: Rotation) -> Result<Value> {
        let decoder = self.decoder;
        let normed = self.norm("norm", x)?;
        let rows = self.rows("rounded", normed)?;
        let mut split = vec![];
        for (part, heads) in [("q", decoder.heads), ("k", decoder.key_heads), ("v", decoder.key_heads)] {
            let all = self.linear(part, rows)?;
            let [batch, length, _] = self.b.ty(all).shape.dims() else { unreachable!("three axes go in") };
            let shape = shape![batch, length, heads, decoder.head_size];
            let mut each = self.b.named(&format!("{part}.heads")).reshape(all, shape)?;
            if decoder.head_norms && part != "v" {
                each = self.norm(&format!("{part}.norm"), each)?;
            }
            split.push(self.b.named(&format!("{part}.by_head")).transpose(each, &[0, 2, 1, 3])?);
        }
        let mut attended = self.attend([split[0], split[1], split[2]], rotation)?;
        if decoder.sub_norms {
            attended = self.norm("sub_norm", attended)?;
        }
        let rows = self.rows("out.rounded", attended)?;
        let out = self.linear("out", rows)?;
        Ok(self.b.named("sum").add(x, out)?)
    }

    /// Attention of queries `[B, heads, T, head_size]` to keys and values `[B, key_heads, T, head_size]`, as
    /// `[B, T, heads · head_size]`.
    fn attend(&mut self, [q, k, v]: [Value; 3], rotation: Rotation) -> Result<Value> {
        let (q, k) = (self.turned("q.turned", q, rotation)?, self.turned("k.turned", k, rotation)?);
        let attended = self.b.named("attend").attention(q, k, v, None, true)?;
        let by_position = self.b.named("by_position").transpose(attended, &[0, 2, 1, 3])?;
        let [batch, length, ..] = self.b.ty(by_position).shape.dims() else { unreachable!("four axes") };
        let shape = shape![batch, length, self.decoder.heads * self.decoder.head_size];
        Ok(self.b.named("joined").reshape(by_position, shape)?)
    }

    /// x `[B, heads, T, head_size]` with its pairs turned. The first numbers of all pairs come first then, which is another
    /// order for neighbours: queries and keys have the same, so that their products stay as they are.
    fn turned(&mut self, name: &str, x: Value, [cos, sin]: Rotation) -> Result<Value> {
        let pairs = self.decoder.head_size / 2;
        self.part(name, |build| {
            let b = &mut build.b;
            let [first, second] = match build.decoder.rope.pairing {
                Pairing::Halves => [b.slice(x, 3, 0, pairs)?, b.slice(x, 3, pairs, 2 * pairs)?],
                Pairing::Neighbours => {
                    let lead = b.ty(x).shape.dims()[..3].to_vec();
                    let shape = |last: &[usize]| {
                        let last = last.iter().map(|size| Dim::fixed(*size));
                        Shape::from(lead.iter().cloned().chain(last).collect::<Vec<Dim>>())
                    };
                    let split = b.reshape(x, shape(&[pairs, 2]))?;
                    let mut half = |at: usize| {
                        let one = b.slice(split, 4, at, at + 1)?;
                        b.reshape(one, shape(&[pairs]))
                    };
                    [half(0)?, half(1)?]
                }
            };
            let mut sum = |a: Value, c: Value, minus: bool| {
                let (a, c) = (b.mul(a, cos)?, b.mul(c, sin)?);
                if minus { b.sub(a, c) } else { b.add(a, c) }
            };
            let [a, c] = [sum(first, second, true)?, sum(second, first, false)?];
            Ok(b.named("").concat(&[a, c], 3)?)
        })
    }

    /// x with the feed-forward part added.
    fn feed_forward(&mut self, x: Value) -> Result<Value> {
        let normed = self.norm("norm", x)?;
        let rows = self.rows("rounded", normed)?;
        let (gate, up) = (self.linear("gate", rows)?, self.linear("up", rows)?);
        let gate = match self.decoder.feed_forward {
            FeedForward::SwiGlu => self.b.named("silu").silu(gate)?,
            FeedForward::SquaredRelu => {
                let positive = self.b.named("relu").relu(gate)?;
                self.b.named("square").square(positive)?
            }
        };
        let mut gated = self.b.named("gated").mul(gate, up)?;
        if self.decoder.sub_norms {
            gated = self.norm("sub_norm", gated)?;
        }
        let rows = self.rows("down.rounded", gated)?;
        let down = self.linear("down", rows)?;
        Ok(self.b.named("sum").add(x, down)?)
    }
}
