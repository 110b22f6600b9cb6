//! Pictures of graphs and plans: SVG that needs nothing else, in light and dark.
//!
//! Text is monospaced, so its width is known without a font; what is too long for its box is cut, and whole in the
//! box's tooltip. Everything goes from top to bottom, so that a picture is as wide as a page however large the network:
//! weights and literals are named in the boxes that read them, what belongs to one layer (by the names of its weights and
//! nodes) is a band with the layer's name, and a loop's body is a frame of its own below its graph. A plan also shows its
//! arena, as time against address.

mod layout;

use anyhow::{Result, bail};
use schwann::graph::Node;
use schwann::plan::{self, Forecast, Place, Plan};
use schwann::show::{self, xml as escape};
use schwann::{Graph, Op};
use std::collections::BTreeMap;
use std::fmt::Write;

/// More boxes than this make no picture that a person can read.
const MOST_BOXES: usize = 3000;
/// Characters of a line in a box.
const LONGEST_LINE: usize = 46;
const FONT: f64 = 12.0;
/// A monospaced character's width is 0.6 of its height, or a little less.
const CHAR: f64 = FONT * 0.61;
const LINE: f64 = 16.0;
const PAD: f64 = 24.0;
/// What a band has beyond its boxes on each side.
const BAND: f64 = 12.0;

/// What a box stands for; the colours are those of the DOT output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Input,
    Constant,
    Product,
    Loop,
    Elementwise,
    Other,
    Output,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::Input, Kind::Constant, Kind::Product, Kind::Elementwise, Kind::Other, Kind::Loop, Kind::Output];

    fn of(op: &Op) -> Kind {
        match op {
            Op::Input { .. } => Kind::Input,
            Op::Weight { .. } | Op::Const(_) => Kind::Constant,
            Op::MatMul { .. }
            | Op::MatMulMap { .. }
            | Op::Attention { .. }
            | Op::SynapseSum { .. }
            | Op::SynapseRatio { .. } => Kind::Product,
            Op::Scan(_) => Kind::Loop,
            op if op.is_elementwise() => Kind::Elementwise,
            _ => Kind::Other,
        }
    }

    /// The kind of a plan's step, by the name of its operation.
    fn named(op: &str) -> Kind {
        match op {
            "matmul" | "matmul_map" | "attention" | "synapse_sum" | "synapse_ratio" => Kind::Product,
            "scan" => Kind::Loop,
            "softmax" | "layer_norm" | "rms_norm" | "reshape" | "transpose" | "slice" | "pad" | "concat"
            | "broadcast" | "gather" | "segment_sum" | "sum" | "mean" | "reduce" => Kind::Other,
            _ => Kind::Elementwise,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Kind::Input => "input",
            Kind::Constant => "constant",
            Kind::Product => "product",
            Kind::Loop => "loop",
            Kind::Elementwise => "elementwise",
            Kind::Other => "other",
            Kind::Output => "output",
        }
    }

    fn legend(self) -> &'static str {
        match self {
            Kind::Input => "input",
            Kind::Constant => "weight or literal",
            Kind::Product => "product or attention",
            Kind::Loop => "loop",
            Kind::Elementwise => "elementwise",
            Kind::Other => "rows, layout",
            Kind::Output => "output",
        }
    }
}

/// A box: its first line is its name.
struct Item {
    lines: Vec<String>,
    kind: Kind,
}

/// Boxes and edges with a title; a picture is one of these for each graph and loop body.
#[derive(Default)]
struct Panel {
    title: String,
    items: Vec<Item>,
    edges: Vec<(usize, usize)>,
    /// The layer that each box belongs to; empty where no structure is known.
    groups: Vec<String>,
}

/// The layer that a name tells of: `encoder` for `encoder.weight` and for `encoder.shifted`.
fn prefix(name: &str) -> Option<&str> {
    name.split_once(['.', '/']).map(|(layer, _)| layer).filter(|layer| !layer.is_empty())
}

/// A graph as a picture.
pub(crate) fn graph(graph: &Graph, title: &str) -> Result<String> {
    let mut panels = vec![];
    graph_panels(graph, title.to_owned(), &mut panels)?;
    Ok(draw(&panels, None))
}

fn graph_panels(graph: &Graph, title: String, panels: &mut Vec<Panel>) -> Result<()> {
    let mut panel = Panel { title, ..Panel::default() };
    let mut bodies = vec![];
    let nodes = graph.nodes();
    // A weight or literal is a line in the boxes that read it; one that nobody reads but the caller has its own.
    let given = |i: usize| graph.outputs().iter().any(|o| o.value.node as usize == i);
    let constant = |i: usize| matches!(nodes[i].op, Op::Weight { .. } | Op::Const(_)) && !given(i);
    let mut item_of = vec![None; nodes.len()];
    // The nodes' lines in text say what there is to say about each; the type is shown on a line of its own.
    for (i, node) in nodes.iter().enumerate().filter(|(i, _)| !constant(*i)) {
        let types: Vec<String> = node.outs.iter().map(ToString::to_string).collect();
        let about = match &node.op {
            Op::Map { map, .. } => map.to_string(),
            Op::MatMulMap { map, .. } => format!("matmul then {map}"),
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) => node.op.name().to_owned(),
            // Shortest digits that read back as the same f32.
            Op::Const(t) if t.len() == 1 => format!("const {}", t.to_f64()[0] as f32),
            op => op.name().to_owned(),
        };
        let mut lines = vec![node.name.clone()];
        lines.extend((about != node.name).then_some(about));
        let with: Vec<&Node> =
            node.inputs.iter().map(|v| v.node as usize).filter(|v| constant(*v)).map(|v| &nodes[v]).collect();
        lines.extend((!with.is_empty()).then(|| with.iter().map(|n| said(n)).collect::<Vec<_>>().join(", ")));
        lines.push(types.join(", "));
        let this = panel.items.len();
        item_of[i] = Some(this);
        panel.items.push(Item { lines, kind: Kind::of(&node.op) });
        let sources: Vec<usize> = node.inputs.iter().filter_map(|v| item_of[v.node as usize]).collect();
        // Named after its layer, or reading a layer's weights, or working on what that layer gave.
        let own = with.iter().find_map(|n| prefix(&n.name)).or_else(|| prefix(&node.name)).map(str::to_owned);
        let group = own.or_else(|| sources.iter().max().map(|s| panel.groups[*s].clone())).unwrap_or_default();
        panel.groups.push(if matches!(node.op, Op::Input { .. }) { String::new() } else { group });
        panel.edges.extend(sources.into_iter().map(|s| (s, this)));
        if let Op::Scan(scan) = &node.op {
            bodies.push((format!("one step of {}", node.name), &scan.body));
        }
    }
    for output in graph.outputs() {
        let from = item_of[output.value.node as usize];
        panel.edges.extend(from.map(|from| (from, panel.items.len())));
        panel.items.push(Item { lines: vec![output.name.clone()], kind: Kind::Output });
        panel.groups.push(String::new());
    }
    check_size(&panel)?;
    panels.push(panel);
    bodies.into_iter().try_for_each(|(title, body)| graph_panels(body, title, panels))
}

/// A weight or literal in the box that reads it: `layer1.weight [784, 256]`, `0.5`.
fn said(node: &Node) -> String {
    match &node.op {
        // Shortest digits that read back as the same f32.
        Op::Const(t) if t.len() == 1 => format!("{}", t.to_f64()[0] as f32),
        _ => {
            let shape = node.outs.first().map(|ty| ty.shape.to_string()).unwrap_or_default();
            format!("{} {shape}", node.name)
        }
    }
}

/// A plan as a picture: its steps, and its arena.
pub(crate) fn plan(plan: &Plan, forecast: Option<&Forecast>, title: &str) -> Result<String> {
    let mut panels = vec![];
    plan_panels(plan, forecast, &[], title.to_owned(), &mut panels)?;
    Ok(draw(&panels, Some(plan)))
}

fn plan_panels(
    plan: &Plan,
    forecast: Option<&Forecast>,
    path: &[usize],
    title: String,
    panels: &mut Vec<Panel>,
) -> Result<()> {
    let mut panel = Panel { title, ..Panel::default() };
    let mut writer: Vec<Option<usize>> = vec![None; plan.buffers.len()];
    let mut given: BTreeMap<&str, usize> = BTreeMap::new();
    let mut written: BTreeMap<&str, usize> = BTreeMap::new();
    let mut bodies = vec![];
    for (number, step) in plan.steps.iter().enumerate() {
        let (mut sources, mut with) = (vec![], vec![]);
        for place in &step.reads {
            match place {
                Place::Buffer(b) => sources.extend(writer.get(*b).copied().flatten()),
                Place::Output(name) => sources.extend(written.get(name.as_str())),
                Place::Constant(name) => with.push(name.as_str()),
                Place::Input(name) => {
                    let items = &mut panel.items;
                    sources.push(*given.entry(name).or_insert_with(|| {
                        items.push(Item { lines: vec![name.clone()], kind: Kind::Input });
                        items.len() - 1
                    }));
                }
            }
        }
        let this = panel.items.len();
        let place = [path, &[number]].concat();
        let predicted = forecast.map(|f| format!(", {} predicted", f.step(&place))).unwrap_or_default();
        let work = format!("{} flops, {}{predicted}", plan::count(step.cost.flops), plan::bytes(step.cost.bytes()));
        let name = format!("{number}: {}{}", step.name, if step.in_place { " (in place)" } else { "" });
        with.dedup();
        let mut lines = vec![name, step.kernel.clone()];
        lines.extend((!with.is_empty()).then(|| format!("with {}", with.join(", "))));
        lines.extend([step.out.clone(), work]);
        panel.items.push(Item { lines, kind: Kind::named(&step.op) });
        sources.sort_unstable();
        sources.dedup();
        panel.edges.extend(sources.into_iter().map(|s| (s, this)));
        for place in &step.writes {
            match place {
                Place::Buffer(b) => {
                    if let Some(slot) = writer.get_mut(*b) {
                        *slot = Some(this);
                    }
                }
                Place::Output(name) => {
                    written.insert(name, this);
                }
                _ => {}
            }
        }
        if let Some(looped) = &step.looped {
            let rows = looped.block_rows.map_or("all rows at once".into(), |r| format!("blocks of {r} rows"));
            bodies.push((format!("{}: {} steps, {rows}", step.name, looped.steps), &looped.body, place));
        }
    }
    for (name, from) in written {
        panel.edges.push((from, panel.items.len()));
        panel.items.push(Item { lines: vec![name.to_owned()], kind: Kind::Output });
    }
    check_size(&panel)?;
    panels.push(panel);
    bodies.into_iter().try_for_each(|(title, body, path)| plan_panels(body, forecast, &path, title, panels))
}

/// The band of each box: boxes of one layer that follow each other. One band for all where layers would only scatter.
fn bands(panel: &Panel) -> Vec<usize> {
    let count = panel.items.len();
    let mut bands = vec![0; count];
    // Inputs stand with whoever reads them first, outputs with what they are.
    let mut groups = panel.groups.clone();
    groups.resize(count, String::new());
    for i in (0..count).rev() {
        if groups[i].is_empty() {
            let reader = panel.edges.iter().filter(|e| e.0 == i).map(|e| e.1).min();
            let source = panel.edges.iter().filter(|e| e.1 == i).map(|e| e.0).max();
            match (reader, source) {
                (Some(near), None) | (None, Some(near)) => groups[i] = groups[near].clone(),
                _ => {}
            }
        }
    }
    // Inputs come before everything: they belong to the first band that reads them, not to one of their own.
    let is_input: Vec<bool> = panel.items.iter().map(|item| item.kind == Kind::Input).collect();
    let mut band = 0;
    let mut last: Option<&str> = None;
    for i in (0..count).filter(|i| !is_input[*i]) {
        if last.is_some_and(|last| last != groups[i]) {
            band += 1;
        }
        last = Some(&groups[i]);
        bands[i] = band;
    }
    for i in (0..count).filter(|i| is_input[*i]) {
        bands[i] = panel.edges.iter().filter(|e| e.0 == i).map(|e| bands[e.1]).min().unwrap_or(0);
    }
    // A band for every other box groups nothing.
    if band == 0 || (band + 1) * 3 > count * 2 { vec![0; count] } else { bands }
}

fn check_size(panel: &Panel) -> Result<()> {
    if panel.items.len() > MOST_BOXES {
        bail!(
            "{} boxes make no picture that a person can read (at most {MOST_BOXES}); --dot or --json hold them all",
            panel.items.len()
        );
    }
    Ok(())
}

const STYLE: &str = "\
svg{background:#fff;font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace}\
text{fill:#1b1b1b}.n{font-weight:600}.s{fill:#4d4d4d}.t{font-weight:600;font-size:14px}\
.b{stroke:#00000040;stroke-width:1}.e{fill:none;stroke:#777;stroke-width:1.2}.h{fill:#777}\
.p{fill:none;stroke:#8866cc;stroke-dasharray:4 3}.g{fill:#00000009;stroke:#00000018}.a{stroke:#999;stroke-width:1}\
.input{fill:#cfe8ff}.constant{fill:#eee}.product{fill:#ffd9b3}.loop{fill:#e0ccff}.elementwise{fill:#d5f0d0}\
.other{fill:#fff3b0}.output{fill:#ffc9c9}.scratch{fill:#ddd}\
@media(prefers-color-scheme:dark){svg{background:#16181d}text{fill:#eee}.s{fill:#b8bcc4}.b{stroke:#ffffff40}\
.e{stroke:#8b919c}.h{fill:#8b919c}.g{fill:#ffffff0c;stroke:#ffffff20}.input{fill:#1f4a70}.constant{fill:#3a3d44}.product{fill:#7a4a17}.loop{fill:#4d3580}\
.elementwise{fill:#2b5a2b}.other{fill:#665811}.output{fill:#7a2b2b}.scratch{fill:#2b2e34}}";

fn draw(panels: &[Panel], memory: Option<&Plan>) -> String {
    let mut body = String::new();
    let (mut height, mut width) = (0.0f64, 0.0f64);
    for (i, panel) in panels.iter().enumerate() {
        let (w, h) = draw_panel(&mut body, panel, PAD, height + PAD, i > 0);
        width = width.max(PAD + w + PAD);
        height += PAD + h;
    }
    if let Some(plan) = memory.filter(|p| !p.buffers.is_empty() && p.arena_bytes > 0) {
        let (w, h) = draw_memory(&mut body, plan, PAD, height + PAD);
        width = width.max(PAD + w + PAD);
        height += PAD + h;
    }
    let kinds: Vec<Kind> =
        Kind::ALL.into_iter().filter(|k| panels.iter().flat_map(|p| &p.items).any(|item| item.kind == *k)).collect();
    let mut at = PAD;
    let y = height + PAD;
    for kind in kinds {
        let text = kind.legend();
        let _ = write!(
            body,
            "<rect class=\"b {}\" x=\"{at:.0}\" y=\"{y:.0}\" width=\"14\" height=\"14\" rx=\"3\"/><text class=\"s\" x=\"{:.0}\" y=\"{:.0}\">{text}</text>",
            kind.class(),
            at + 20.0,
            y + 11.0
        );
        at += 20.0 + text.len() as f64 * CHAR + 18.0;
    }
    width = width.max(at);
    height = y + 14.0 + PAD;
    let title = panels.first().map(|p| escape(&p.title)).unwrap_or_default();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path class=\"h\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n{body}\n</svg>\n"
    )
}

/// Draws a panel with its top left corner at (x, y); gives its size.
fn draw_panel(out: &mut String, panel: &Panel, x: f64, y: f64, framed: bool) -> (f64, f64) {
    let lines: Vec<Vec<String>> =
        panel.items.iter().map(|item| item.lines.iter().map(|l| shorten(l, LONGEST_LINE)).collect()).collect();
    let widest = |lines: &Vec<String>| lines.iter().map(|l| l.chars().count()).max().unwrap_or(0) as f64;
    let sizes: Vec<(f64, f64)> =
        lines.iter().map(|l| (widest(l) * CHAR + 20.0, l.len() as f64 * LINE + 10.0)).collect();
    let bands = bands(panel);
    let placed = layout::place(&sizes, &panel.edges, &bands);
    // Bands reach a little beyond their boxes.
    let inset = if framed { 16.0 } else { 0.0 } + if placed.bands.len() > 1 { BAND } else { 0.0 };
    let title = shorten(&panel.title, 90);
    let width = placed.width.max(title.chars().count() as f64 * CHAR * 14.0 / FONT) + 2.0 * inset;
    let (left, top) = (x + inset, y + 36.0 + inset);
    let height = 36.0 + placed.height + 2.0 * inset;
    if framed {
        let _ = write!(
            out,
            "<rect class=\"p\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"8\"/>"
        );
    }
    let _ = writeln!(out, "<text class=\"t\" x=\"{left:.1}\" y=\"{:.1}\">{}</text>", y + 14.0 + inset, escape(&title));
    for (band, &(from, to)) in placed.bands.iter().enumerate() {
        let in_band = |i: &usize| bands[*i] == band && !panel.groups.get(*i).is_none_or(String::is_empty);
        let name = (0..bands.len()).find(in_band).map(|i| panel.groups[i].as_str()).unwrap_or_default();
        if name.is_empty() {
            continue;
        }
        // The name stands above the boxes.
        let (y, tall) = (from + top - 22.0, to - from + 30.0);
        let wide = placed.width + 2.0 * BAND;
        let _ = write!(
            out,
            "<rect class=\"g\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{tall:.1}\" rx=\"8\"/><text class=\"s\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - BAND,
            left - BAND + 6.0,
            y + 14.0,
            escape(&shorten(name, 24))
        );
    }
    for route in &placed.routes {
        // A piece of no length has no direction, and an arrow at its end would point anywhere.
        let mut route = route.clone();
        route.dedup_by(|a, b| (a.0 - b.0).abs() < 0.05 && (a.1 - b.1).abs() < 0.05);
        let mut d = String::new();
        for (i, &(px, py)) in route.iter().enumerate() {
            let (px, py) = (px + left, py + top);
            match i {
                0 => {
                    let _ = write!(d, "M{px:.1} {py:.1}");
                }
                _ if (route[i - 1].0 - route[i].0).abs() < 0.05 => {
                    let _ = write!(d, "V{py:.1}");
                }
                _ => {
                    // Leaves and arrives vertically.
                    let (fx, fy) = (route[i - 1].0 + left, route[i - 1].1 + top);
                    let middle = (fy + py) / 2.0;
                    let _ = write!(d, "C{fx:.1} {middle:.1} {px:.1} {middle:.1} {px:.1} {py:.1}");
                }
            }
        }
        let _ = writeln!(out, "<path class=\"e\" marker-end=\"url(#arrow)\" d=\"{d}\"/>");
    }
    for ((item, lines), (&(ix, iy), &(w, h))) in panel.items.iter().zip(&lines).zip(placed.at.iter().zip(&sizes)) {
        let (ix, iy) = (ix + left, iy + top);
        let radius = if item.kind == Kind::Output { h / 2.0 } else { 6.0 };
        let _ = write!(
            out,
            "<g><title>{}</title><rect class=\"b {}\" x=\"{ix:.1}\" y=\"{iy:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"{radius:.1}\"/>",
            item.lines.iter().map(|line| escape(line)).collect::<Vec<_>>().join("\n"),
            item.kind.class()
        );
        for (i, line) in lines.iter().enumerate() {
            let class = if i == 0 { "n" } else { "s" };
            let _ = write!(
                out,
                "<text class=\"{class}\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                ix + w / 2.0,
                iy + 17.0 + i as f64 * LINE,
                escape(line)
            );
        }
        out.push_str("</g>\n");
    }
    (width, height)
}

/// Draws the arena: steps to the right, addresses downwards.
fn draw_memory(out: &mut String, plan: &Plan, x: f64, y: f64) -> (f64, f64) {
    let steps = plan.steps.len().max(1);
    let column = (640.0 / steps as f64).clamp(6.0, 90.0);
    let tall = 200.0;
    let scale = tall / plan.arena_bytes as f64;
    let (left, top) = (x, y + 30.0);
    let title = format!(
        "arena: {} for {} buffers; at one moment {} are alive (derived)",
        plan::bytes(plan.arena_bytes as u64),
        plan.buffers.len(),
        plan::bytes(plan.live_bytes as u64)
    );
    let _ = writeln!(out, "<text class=\"t\" x=\"{left:.1}\" y=\"{:.1}\">{}</text>", y + 14.0, escape(&title));
    for buffer in &plan.buffers {
        let (bx, by) = (left + buffer.first as f64 * column, top + buffer.offset as f64 * scale);
        let w = (buffer.last - buffer.first + 1) as f64 * column;
        let h = (buffer.bytes as f64 * scale).max(1.0);
        let label = format!("{} {}", buffer.name, plan::bytes(buffer.bytes as u64));
        let class = if buffer.scratch { "scratch" } else { "elementwise" };
        let _ = write!(
            out,
            "<g><title>{}</title><rect class=\"b {class}\" x=\"{bx:.1}\" y=\"{by:.1}\" width=\"{w:.1}\" height=\"{h:.1}\"/>",
            escape(&format!("{label} at {}, steps {} to {}", buffer.offset, buffer.first, buffer.last))
        );
        let room = ((w - 8.0) / CHAR) as usize;
        if h >= 14.0 && room >= 4 {
            let _ = write!(
                out,
                "<text class=\"s\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                bx + 4.0,
                by + h / 2.0 + 4.0,
                escape(&shorten(&label, room))
            );
        }
        out.push_str("</g>\n");
    }
    let bottom = top + tall;
    let _ = writeln!(
        out,
        "<path class=\"a\" fill=\"none\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{:.1}\"/>",
        left + steps as f64 * column
    );
    let every = (steps as f64 / 16.0).ceil().max(1.0) as usize;
    for step in (0..steps).step_by(every) {
        let _ = write!(
            out,
            "<text class=\"s\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{step}</text>",
            left + (step as f64 + 0.5) * column,
            bottom + 15.0
        );
    }
    let right = left + steps as f64 * column;
    let _ = writeln!(out, "<text class=\"s\" x=\"{:.1}\" y=\"{:.1}\">step</text>", right + 8.0, bottom + 15.0);
    let title_width = title.chars().count() as f64 * CHAR * 14.0 / FONT;
    (title_width.max(right - left + 50.0), 30.0 + tall + 22.0)
}

fn shorten(text: &str, most: usize) -> String {
    let text = show::line(text).into_owned();
    if text.chars().count() <= most { text } else { text.chars().take(most.max(1) - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut() {
        assert_eq!(shorten("abcdef", 4), "abc…");
        assert_eq!(shorten("abcd", 4), "abcd");
    }
}
