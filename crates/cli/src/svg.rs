//! Pictures of graphs and plans: SVG that needs nothing else, in light and dark.
//!
//! Text is monospaced, so its width is known without a font; what is too long for its box is cut, and whole in the
//! box's tooltip. A loop's body is a panel of its own beside its graph; a plan also shows its arena, as time against
//! address.

mod layout;

use anyhow::{Result, bail};
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
struct Panel {
    title: String,
    items: Vec<Item>,
    edges: Vec<(usize, usize)>,
}

/// A graph as a picture.
pub(crate) fn graph(graph: &Graph, title: &str) -> Result<String> {
    let mut panels = vec![];
    graph_panels(graph, title.to_owned(), &mut panels)?;
    Ok(draw(&panels, None))
}

fn graph_panels(graph: &Graph, title: String, panels: &mut Vec<Panel>) -> Result<()> {
    let mut panel = Panel { title, items: vec![], edges: vec![] };
    let mut bodies = vec![];
    // The nodes' lines in text say what there is to say about each; the type is shown on a line of its own.
    for (i, node) in graph.nodes().iter().enumerate() {
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
        lines.push(types.join(", "));
        panel.items.push(Item { lines, kind: Kind::of(&node.op) });
        panel.edges.extend(node.inputs.iter().map(|v| (v.node as usize, i)));
        if let Op::Scan(scan) = &node.op {
            bodies.push((format!("one step of {}", node.name), &scan.body));
        }
    }
    for output in graph.outputs() {
        panel.edges.push((output.value.node as usize, panel.items.len()));
        panel.items.push(Item { lines: vec![output.name.clone()], kind: Kind::Output });
    }
    check_size(&panel)?;
    panels.push(panel);
    bodies.into_iter().try_for_each(|(title, body)| graph_panels(body, title, panels))
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
    let mut panel = Panel { title, items: vec![], edges: vec![] };
    let mut writer: Vec<Option<usize>> = vec![None; plan.buffers.len()];
    let mut given: BTreeMap<(bool, &str), usize> = BTreeMap::new();
    let mut written: BTreeMap<&str, usize> = BTreeMap::new();
    let mut bodies = vec![];
    for (number, step) in plan.steps.iter().enumerate() {
        let mut sources = vec![];
        for place in &step.reads {
            match place {
                Place::Buffer(b) => sources.extend(writer.get(*b).copied().flatten()),
                Place::Output(name) => sources.extend(written.get(name.as_str())),
                Place::Input(name) | Place::Constant(name) => {
                    let is_input = matches!(place, Place::Input(_));
                    let items = &mut panel.items;
                    sources.push(*given.entry((is_input, name)).or_insert_with(|| {
                        let kind = if is_input { Kind::Input } else { Kind::Constant };
                        items.push(Item { lines: vec![name.clone()], kind });
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
        panel
            .items
            .push(Item { lines: vec![name, step.kernel.clone(), step.out.clone(), work], kind: Kind::named(&step.op) });
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
.p{fill:none;stroke:#8866cc;stroke-dasharray:4 3}.a{stroke:#999;stroke-width:1}\
.input{fill:#cfe8ff}.constant{fill:#eee}.product{fill:#ffd9b3}.loop{fill:#e0ccff}.elementwise{fill:#d5f0d0}\
.other{fill:#fff3b0}.output{fill:#ffc9c9}.scratch{fill:#ddd}\
@media(prefers-color-scheme:dark){svg{background:#16181d}text{fill:#eee}.s{fill:#b8bcc4}.b{stroke:#ffffff40}\
.e{stroke:#8b919c}.h{fill:#8b919c}.input{fill:#1f4a70}.constant{fill:#3a3d44}.product{fill:#7a4a17}.loop{fill:#4d3580}\
.elementwise{fill:#2b5a2b}.other{fill:#665811}.output{fill:#7a2b2b}.scratch{fill:#2b2e34}}";

fn draw(panels: &[Panel], memory: Option<&Plan>) -> String {
    let mut body = String::new();
    let (mut x, mut height, mut width) = (PAD, 0.0f64, 0.0f64);
    for (i, panel) in panels.iter().enumerate() {
        let (w, h) = draw_panel(&mut body, panel, x, PAD, i > 0);
        x += w + PAD;
        width = x;
        height = height.max(PAD + h);
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
    let placed = layout::place(&sizes, &panel.edges);
    let inset = if framed { 16.0 } else { 0.0 };
    let title = shorten(&panel.title, 90);
    let width = placed.width.max(title.chars().count() as f64 * CHAR * 14.0 / FONT) + 2.0 * inset;
    let (left, top) = (x + inset, y + 30.0 + inset);
    let height = 30.0 + placed.height + 2.0 * inset;
    if framed {
        let _ = write!(
            out,
            "<rect class=\"p\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"8\"/>"
        );
    }
    let _ = writeln!(out, "<text class=\"t\" x=\"{left:.1}\" y=\"{:.1}\">{}</text>", y + 14.0 + inset, escape(&title));
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
