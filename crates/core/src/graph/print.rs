//! Graphs for people: text, and DOT for a picture.

use super::{Graph, Node, Value};
use crate::op::{Op, SynapseResult};
use crate::show;
use std::fmt::{self, Write};

/// What the text shows of an operation beside its name.
fn details(op: &Op) -> String {
    let flags = |a: bool, b: bool| format!("{}{}", if a { " aᵀ" } else { "" }, if b { " bᵀ" } else { "" });
    match op {
        Op::Const(t) if t.len() <= 4 => {
            let values: Vec<String> = t.to_f64().iter().map(|v| format!("{v}")).collect();
            format!(" {}", values.join(" "))
        }
        Op::MatMul { transpose_a, transpose_b } => flags(*transpose_a, *transpose_b),
        Op::Reduce { axes, keep, .. } => format!(" over {axes:?}{}", if *keep { " kept" } else { "" }),
        Op::Softmax { axis } | Op::Concat { axis } | Op::Gather { axis } | Op::Put { axis } => format!(" axis {axis}"),
        Op::SegmentSum { axis, segments } => format!(" axis {axis} into {segments}"),
        Op::SynapseSum { activation, axis, segments, .. } => {
            format!(" {} axis {axis} into {segments}", activation.name())
        }
        Op::SynapseRatio { activation, axis, times: 1 } => format!(" {} axis {axis}", activation.name()),
        Op::SynapseRatio { activation, axis, times } => format!(" {} axis {axis}, {times} times", activation.name()),
        Op::SynapseGradient { activation, axis, of } => match of {
            SynapseResult::Sums { segments, .. } => format!(" {} axis {axis} from {segments}", activation.name()),
            SynapseResult::Ratio { times } => format!(" {} axis {axis}, {times} times", activation.name()),
        },
        Op::GatedCell { batch_last: true, .. } => " batch-last".into(),
        Op::LayerNorm { eps } | Op::RmsNorm { eps } => format!(" eps {:?}", eps.0),
        Op::Attention { causal, scale, positions } => {
            format!(
                "{}{}{}",
                if *causal { " causal" } else { "" },
                if *positions { " up to positions" } else { "" },
                scale.map(|s| format!(" scale {:?}", s.0)).unwrap_or_default()
            )
        }
        Op::LowBit(format) => format!(" {format}"),
        Op::LowBitMatMul(product) => {
            let rows = if product.rounded { ", rows of 8 bits" } else { "" };
            let then = product.then.as_ref().map(|map| format!(" then {map}")).unwrap_or_default();
            format!(" {}{rows}{then}", product.weights)
        }
        Op::Transpose { perm } => format!(" {perm:?}"),
        Op::Slice { axis, start, end } => format!(" axis {axis} {start}..{end}"),
        Op::Pad { axis, before, after } => format!(" axis {axis} by {before} and {after}"),
        Op::Scan(s) => {
            let way = if s.reverse { " backwards" } else { "" };
            format!(" over axis {}{way}, {} states, {} sequences", s.axis, s.states, s.sequences)
        }
        Op::Custom { name } => format!(" {}", show::name(name)),
        Op::Map { map, also, .. } => format!(" {}", map.text(also)),
        Op::MatMulMap { transpose_a, transpose_b, map, .. } => {
            format!("{} then {map}", flags(*transpose_a, *transpose_b))
        }
        _ => String::new(),
    }
}

fn write_graph(graph: &Graph, out: &mut dyn Write, indent: usize) -> fmt::Result {
    let pad = " ".repeat(indent);
    let name = |v: &Value| v.to_string();
    for (i, node) in graph.nodes.iter().enumerate() {
        let args: Vec<String> = node.inputs.iter().map(name).collect();
        let types: Vec<String> = node.outs.iter().map(ToString::to_string).collect();
        let args = if args.is_empty() { String::new() } else { format!("({})", args.join(", ")) };
        writeln!(
            out,
            "{pad}%{i} = {}{args}{} : {}  # {}",
            node.op.name(),
            details(&node.op),
            show::line(&types.join(", ")),
            show::name(&node.name)
        )?;
        if let Op::Scan(scan) = &node.op {
            write_graph(&scan.body, out, indent + 4)?;
        }
    }
    for output in &graph.outputs {
        writeln!(out, "{pad}return {} = {}", show::name(&output.name), name(&output.value))?;
    }
    Ok(())
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_graph(self, f, 0)
    }
}

/// Escapes a DOT string. Line ends stay, since the caller made them; other hidden characters become visible.
pub(crate) fn quote(text: &str) -> String {
    format!("\"{}\"", show::lines(text).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

fn colour(op: &Op) -> &'static str {
    match op {
        Op::Input { .. } => "#cfe8ff",
        Op::Weight { .. } | Op::Const(_) => "#eeeeee",
        Op::MatMul { .. }
        | Op::MatMulMap { .. }
        | Op::LowBitMatMul(_)
        | Op::Attention { .. }
        | Op::SynapseSum { .. }
        | Op::SynapseRatio { .. }
        | Op::SynapseGradient { .. }
        | Op::GatedCell { .. } => "#ffd9b3",
        Op::Scan(_) => "#e0ccff",
        op if op.is_elementwise() => "#d5f0d0",
        _ => "#fff3b0",
    }
}

impl Graph {
    /// The graph in the DOT language; a scan's body is a cluster of its own.
    pub fn to_dot(&self) -> String {
        let mut out = String::from(
            "digraph schwann {\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\", fontsize=11];\n  edge [fontname=\"sans-serif\", fontsize=9];\n",
        );
        self.dot_nodes(&mut out, "n");
        out.push_str("}\n");
        out
    }

    fn dot_nodes(&self, out: &mut String, prefix: &str) {
        let label = |node: &Node| {
            let types: Vec<String> = node.outs.iter().map(ToString::to_string).collect();
            let mut about = details(&node.op);
            if about.chars().count() > 60 {
                about = about.chars().take(59).chain(['…']).collect();
            }
            format!("{}\n{}{about}\n{}", show::name(&node.name), node.op.name(), show::line(&types.join(", ")))
        };
        for (i, node) in self.nodes.iter().enumerate() {
            let _ = writeln!(out, "  {prefix}{i} [label={}, fillcolor=\"{}\"];", quote(&label(node)), colour(&node.op));
            for v in &node.inputs {
                let _ = writeln!(out, "  {prefix}{} -> {prefix}{i};", v.node);
            }
            if let Op::Scan(scan) = &node.op {
                let _ = writeln!(
                    out,
                    "  subgraph cluster_{prefix}{i} {{ label={}; color=\"#8866cc\";",
                    quote(&format!("body of {}", show::name(&node.name)))
                );
                scan.body.dot_nodes(out, &format!("{prefix}{i}_"));
                out.push_str("  }\n");
            }
        }
        for (i, output) in self.outputs.iter().enumerate() {
            let _ = writeln!(
                out,
                "  {prefix}out{i} [label={}, shape=ellipse, fillcolor=\"#ffc9c9\"];",
                quote(&show::name(&output.name))
            );
            let _ = writeln!(out, "  {prefix}{} -> {prefix}out{i};", output.value.node);
        }
    }
}
