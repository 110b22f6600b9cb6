//! Weights in few bits.

use crate::error::Problem;
use crate::model::Model;
use crate::network::Network;
use pyo3::exceptions::PyLookupError;
use pyo3::prelude::*;
use schwann::nn::GraphOptions;
use schwann::quant::{Errors, Layers, Scheme, Share, Weights, halve, prepared, quantize};
use schwann::{DType, Tensor};
use std::collections::BTreeMap;

/// What became of a layer: name, shape, bytes before and after, and the error of its weights as a share of their root mean
/// square.
type Row = (String, (usize, usize), usize, usize, Option<f64>);

enum Form {
    Half(DType),
    Few(Scheme),
}

fn form(to: &str, block: Option<usize>, offsets: bool) -> Result<Form, Problem> {
    let plain = match to {
        "bfloat16" | "bf16" => return Ok(Form::Half(DType::Bf16)),
        "float16" | "f16" => return Ok(Form::Half(DType::F16)),
        "int8" => Scheme::INT8,
        "int4" => Scheme::INT4,
        "ternary" if offsets => {
            return Err(Problem::argument("offsets", "True", "False, since ternary weights have none"));
        }
        "ternary" => Scheme::TERNARY,
        other => {
            let expected = "\"int8\", \"int4\", \"ternary\", \"bfloat16\" or \"float16\"";
            return Err(Problem::argument("to", format!("{other:?}"), expected));
        }
    };
    let share = match block {
        Some(0) => return Err(Problem::argument("block", 0, "1 at least")),
        Some(block) => Share::Block(block),
        None => plain.share,
    };
    // Offsets in 16 bits would not leave zeros exact.
    let wide = offsets || !matches!(share, Share::Block(_));
    Ok(Form::Few(Scheme { share, offsets, scales: if wide { DType::F32 } else { DType::F16 }, ..plain }))
}

/// Whether a layer has this name, or belongs to the part of the network that has it.
fn is_within(name: &str, part: &str) -> bool {
    name.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// See `schwann.quantize`.
#[pyfunction]
#[pyo3(signature = (model, to, *, block, offsets, activations, keep))]
pub(crate) fn _quantize(
    py: Python<'_>,
    model: &Model,
    to: &str,
    block: Option<usize>,
    offsets: bool,
    activations: &str,
    keep: Vec<String>,
) -> Result<(Model, Vec<Row>), Problem> {
    let form = form(to, block, offsets)?;
    let rounded = match activations {
        "float32" => false,
        "int8" if matches!(form, Form::Few(_)) => true,
        "int8" => {
            return Err(Problem::argument(
                "activations",
                "\"int8\"",
                "\"float32\", since products with 16-bit weights are not in integers",
            ));
        }
        other => return Err(Problem::argument("activations", format!("{other:?}"), "\"float32\" or \"int8\"")),
    };
    let (graph, rows) = py.detach(|| -> Result<_, Problem> {
        let given = match &model.network {
            Network::Model(model) => model.graph(&GraphOptions::default())?,
            Network::Graph(graph) => graph.clone(),
        };
        let graph = prepared(&given)?;
        let layers = Layers::of(&graph);
        if layers.list().is_empty() {
            return Err(Problem::argument(
                "model",
                "without a matrix of float32 weights",
                "one that a product multiplies with",
            ));
        }
        for kept in &keep {
            if !layers.list().iter().any(|layer| is_within(&layer.name, kept)) {
                let names: Vec<&str> = layers.list().iter().map(|l| l.name.as_str()).collect();
                let text =
                    format!("`keep` has {kept:?}, and no layer is called so; the layers are {}", names.join(", "));
                return Err(PyLookupError::new_err(text).into());
            }
        }
        let (mut all, mut rows) = (BTreeMap::new(), vec![]);
        for (number, layer) in layers.list().iter().enumerate() {
            let before = 4 * layer.count();
            let shape = (layer.rows, layer.len);
            if keep.iter().any(|kept| is_within(&layer.name, kept)) {
                rows.push((layer.name.clone(), shape, before, before, None));
                continue;
            }
            let matrix: Tensor = layers.matrix(layer)?;
            let made = match &form {
                Form::Half(kind) => Weights::Half(halve(&matrix, *kind)?),
                Form::Few(scheme) => Weights::LowBit { matrix: quantize(&matrix, *scheme, None)?, rounded },
            };
            let error = Errors::of(matrix.values()?, &made.numbers()).relative;
            rows.push((layer.name.clone(), shape, before, made.bytes(), error));
            all.insert(number, made);
        }
        Ok((layers.with(&all)?, rows))
    })?;
    Ok((Model::new(Network::Graph(graph), &model.name, model.how.clone())?, rows))
}
