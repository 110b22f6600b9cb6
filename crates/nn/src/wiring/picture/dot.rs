//! A circuit as DOT, for graphviz.

use super::{Picture, Role};
use crate::wiring::Wiring;
use std::fmt::Write;

impl Wiring {
    /// The circuit as DOT, for graphviz: `dot -Tsvg`.
    pub fn to_dot(&self) -> String {
        let picture = Picture::new(self);
        let mut out = String::from(
            "digraph wiring {\n  rankdir=LR; ranksep=2; nodesep=0.1;\n  \
             node [style=filled, fontname=\"sans-serif\", margin=0.02, width=0.4, height=0.4];\n  edge [arrowsize=0.6];\n",
        );
        for (i, group) in picture.groups.iter().enumerate() {
            let (shape, colour) = match group.role {
                Role::Input => ("box", "#eaeef2"),
                Role::Inter => ("circle", "#d3f0e6"),
                Role::Command => ("circle", "#f6dcea"),
                Role::Motor => ("doublecircle", "#fff3b8"),
            };
            let _ =
                writeln!(out, "  subgraph layer{i} {{\n    rank=same; node [shape={shape}, fillcolor=\"{colour}\"];");
            for &node in &group.nodes {
                let _ = writeln!(
                    out,
                    "    {} [label=\"{}\", tooltip=\"{}\"];",
                    id(&picture, node),
                    picture.label(node),
                    picture.describe(node)
                );
            }
            out.push_str("  }\n");
        }
        for (from, to, polarity) in picture.synapses() {
            let style = match polarity {
                1 => "color=\"#0072b2\"",
                _ => "color=\"#d55e00\", style=dashed, arrowhead=tee",
            };
            let _ = writeln!(out, "  {} -> {} [{style}];", id(&picture, from), id(&picture, to));
        }
        out.push_str("}\n");
        out
    }
}

/// `x3` for an input, `n3` for a neuron.
fn id(picture: &Picture<'_>, node: usize) -> String {
    if node < picture.inputs { format!("x{node}") } else { format!("n{}", node - picture.inputs) }
}
