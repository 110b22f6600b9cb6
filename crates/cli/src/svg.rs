//! Pictures of graphs and plans: SVG that needs nothing else, in light and dark.
//!
//! Text is monospaced, so its width is known without a font; what is too long for its box is cut, and whole in the
//! box's tooltip. Everything goes from top to bottom, so that a picture is as wide as a page however large the network:
//! weights, literals and what a loop takes from outside are named in the boxes that read them, what belongs to one layer
//! (by the names of its weights and nodes) is a band with the layer's name, and a loop's body is a frame of its own below
//! its graph. A plan also shows its arena, as time against address.

mod layout;

use anyhow::{Result, bail};
use schwann::graph::Node;
use schwann::plan::{self, Forecast, Place, Plan};
use schwann::show;
use schwann::svg::{Path, Svg};
use schwann::{Graph, Op};
use std::collections::BTreeMap;

/// More boxes than this make no picture that a person can read.
const MOST_BOXES: usize = 3000;
/// Characters of a line in a box.
const LONGEST_LINE: usize = 46;
/// Lines of a box that name what it reads, and that say what its kernel does; the rest is counted.
const MOST_NAMES: usize = 3;
const MOST_KERNEL: usize = 5;
const FONT: f64 = 12.0;
/// A monospaced character's width is 0.6 of its height, or a little less.
const CHAR: f64 = FONT * 0.61;
const LINE: f64 = 16.0;
const PAD: f64 = 24.0;
/// What a band has beyond its boxes on each side, and above them for its name.
const BAND: f64 = 12.0;
const BAND_NAME: f64 = 22.0;

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
            | Op::SynapseRatio { .. }
            | Op::GatedCell { .. } => Kind::Product,
            Op::Scan(_) => Kind::Loop,
            op if op.is_elementwise() => Kind::Elementwise,
            _ => Kind::Other,
        }
    }

    /// The kind of a plan's step, by the name of its operation.
    fn named(op: &str) -> Kind {
        match op {
            "matmul" | "matmul_map" | "attention" | "synapse_sum" | "synapse_ratio" | "gated_cell" => Kind::Product,
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
    /// What a pointer that rests on it is told: all of it, where the lines say less.
    whole: Vec<String>,
    kind: Kind,
}

impl Item {
    fn new(lines: Vec<String>, kind: Kind) -> Item {
        Item { whole: lines.clone(), lines, kind }
    }
}

/// A list in few lines of a box.
fn packed(parts: &[String], most: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for (i, part) in parts.iter().enumerate() {
        let full = lines.len() == most;
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + part.chars().count() <= LONGEST_LINE => {
                *line += &format!(", {part}")
            }
            _ if full => {
                lines.push(format!("and {} more", parts.len() - i));
                break;
            }
            _ => lines.push(part.clone()),
        }
    }
    lines
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
    graph_panels(graph, title.to_owned(), &BTreeMap::new(), &mut panels)?;
    Ok(draw(&panels, None))
}

/// What a loop takes from outside and keeps: the name that it has there, and how it is told, by the name of the body's
/// input.
type Fixed = BTreeMap<String, (String, String)>;

fn graph_panels(graph: &Graph, title: String, fixed: &Fixed, panels: &mut Vec<Panel>) -> Result<()> {
    let mut panel = Panel { title, ..Panel::default() };
    let mut bodies = vec![];
    let nodes = graph.nodes();
    // What does not change is a line in the boxes that read it; where nobody reads it but the caller, it has its own.
    let given = |i: usize| graph.outputs().iter().any(|o| o.value.node as usize == i);
    let told = |i: usize| match &nodes[i].op {
        Op::Input { name, .. } => fixed.get(name).cloned(),
        Op::Weight { .. } | Op::Const(_) => Some((nodes[i].name.clone(), said(&nodes[i]))),
        _ => None,
    };
    let constant = |i: usize| if given(i) { None } else { told(i) };
    let mut item_of = vec![None; nodes.len()];
    // The nodes' lines in text say what there is to say about each; the type is shown on a line of its own.
    for (i, node) in nodes.iter().enumerate().filter(|(i, _)| constant(*i).is_none()) {
        let types: Vec<String> = node.outs.iter().map(ToString::to_string).collect();
        let about = match &node.op {
            Op::Map { map, also, .. } => map.text(also),
            Op::MatMulMap { map, .. } => format!("matmul then {map}"),
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) => node.op.name().to_owned(),
            // Shortest digits that read back as the same f32.
            Op::Const(t) if t.len() == 1 => format!("const {}", t.to_f64()[0] as f32),
            op => op.name().to_owned(),
        };
        let mut first = vec![node.name.clone()];
        first.extend((about != node.name).then_some(about));
        let with: Vec<(String, String)> = node.inputs.iter().filter_map(|v| constant(v.node as usize)).collect();
        let names: Vec<String> = with.iter().map(|(_, said)| said.clone()).collect();
        let last = vec![types.join(", ")];
        let this = panel.items.len();
        item_of[i] = Some(this);
        let (lines, whole) = ([first.clone(), packed(&names, MOST_NAMES), last.clone()], [first, names, last]);
        panel.items.push(Item { lines: lines.concat(), whole: whole.concat(), kind: Kind::of(&node.op) });
        let sources: Vec<usize> = node.inputs.iter().filter_map(|v| item_of[v.node as usize]).collect();
        // Named after its layer, or reading a layer's weights, or working on what that layer gave.
        let own = with.iter().find_map(|(name, _)| prefix(name)).or_else(|| prefix(&node.name)).map(str::to_owned);
        let group = own.or_else(|| sources.iter().max().map(|s| panel.groups[*s].clone())).unwrap_or_default();
        panel.groups.push(if matches!(node.op, Op::Input { .. }) { String::new() } else { group });
        panel.edges.extend(sources.into_iter().map(|s| (s, this)));
        if let Op::Scan(scan) = &node.op {
            let changes = scan.states + scan.sequences;
            let outside = |v: &schwann::Value| {
                let from = v.node as usize;
                told(from).unwrap_or_else(|| (nodes[from].name.clone(), said(&nodes[from])))
            };
            let inside = scan.body.inputs().map(|(name, _)| name.to_owned());
            let kept: Fixed = inside.zip(&node.inputs).skip(changes).map(|(name, v)| (name, outside(v))).collect();
            bodies.push((format!("one step of the loop `{}`", node.name), &scan.body, kept));
        }
    }
    for output in graph.outputs() {
        let from = item_of[output.value.node as usize];
        panel.edges.extend(from.map(|from| (from, panel.items.len())));
        panel.items.push(Item::new(vec![output.name.clone()], Kind::Output));
        panel.groups.push(String::new());
    }
    check_size(&panel)?;
    panels.push(panel);
    bodies.into_iter().try_for_each(|(title, body, kept)| graph_panels(body, title, &kept, panels))
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
                // What a loop takes from outside is named where it is read, as weights are.
                Place::Input(name) if !path.is_empty() && from_outside(name).is_some() => {
                    with.extend(from_outside(name));
                }
                Place::Input(name) => {
                    let items = &mut panel.items;
                    sources.push(*given.entry(name).or_insert_with(|| {
                        items.push(Item::new(vec![name.clone()], Kind::Input));
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
        let text = step.kernel.to_string();
        let kernel: Vec<String> = text.split(", ").map(str::to_owned).collect();
        let with: Vec<String> =
            with.iter().enumerate().map(|(i, n)| format!("{}{n}", if i == 0 { "with " } else { "" })).collect();
        let last = vec![step.out.clone(), work];
        let lines =
            [vec![name.clone()], packed(&kernel, MOST_KERNEL), packed(&with, MOST_NAMES), last.clone()].concat();
        let whole = [vec![name, text], with, last].concat();
        panel.items.push(Item { lines, whole, kind: Kind::named(&step.op) });
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
            let rows = match looped.block_rows {
                None => "all rows at once".into(),
                Some(1) => "row by row".into(),
                Some(rows) => format!("blocks of {rows} rows"),
            };
            let steps = if looped.steps == 1 { "1 step".into() } else { format!("{} steps", looped.steps) };
            bodies.push((format!("one step of the loop `{}` ({steps}, {rows})", step.name), &looped.body, place));
        }
    }
    for (name, from) in written {
        panel.edges.push((from, panel.items.len()));
        panel.items.push(Item::new(vec![name.to_owned()], Kind::Output));
    }
    check_size(&panel)?;
    panels.push(panel);
    bodies.into_iter().try_for_each(|(title, body, path)| plan_panels(body, forecast, &path, title, panels))
}

/// The name outside of what a loop takes from there: `weight` for `fixed.3.weight`, as the graph's builder names it.
fn from_outside(name: &str) -> Option<&str> {
    let (number, name) = name.strip_prefix("fixed.")?.split_once('.')?;
    number.parse::<usize>().ok().map(|_| name)
}

/// A band of its own for every few boxes tells nothing: layers that come back more often than this become one with the
/// layer that they take turns with.
const MOST_TURNS: usize = 2;

/// Makes layers one that take turns again and again, as what a cell is made of does. `groups` are of the boxes in order.
fn merge_turns(groups: &mut [String]) {
    loop {
        let mut runs: Vec<String> = groups.to_vec();
        runs.dedup();
        let mut turns: BTreeMap<&str, usize> = BTreeMap::new();
        runs.iter().for_each(|run| *turns.entry(run).or_default() += 1);
        let Some((most, _)) = turns.iter().filter(|(_, n)| **n > MOST_TURNS).max_by_key(|(_, n)| **n) else { return };
        let mut beside: BTreeMap<&str, usize> = BTreeMap::new();
        for pair in runs.windows(2) {
            let other = if pair[0] == *most { &pair[1] } else { &pair[0] };
            if pair.iter().any(|run| run == most) {
                *beside.entry(other).or_default() += 1;
            }
        }
        let Some((other, _)) = beside.into_iter().max_by_key(|(_, n)| *n) else { return };
        let mut names: Vec<&str> = most.split(", ").chain(other.split(", ")).filter(|n| !n.is_empty()).collect();
        names.sort_unstable();
        names.dedup();
        let (most, other, both) = ((*most).to_owned(), other.to_owned(), names.join(", "));
        groups.iter_mut().filter(|g| **g == most || **g == other).for_each(|g| both.clone_into(g));
    }
}

/// The band of each box, and the name of each band: boxes of one layer
/// that follow each other. One band without a name where layers would only scatter.
fn bands(panel: &Panel) -> (Vec<usize>, Vec<String>) {
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
    let boxes: Vec<usize> = (0..count).filter(|i| !is_input[*i]).collect();
    let mut of_boxes: Vec<String> = boxes.iter().map(|i| std::mem::take(&mut groups[*i])).collect();
    merge_turns(&mut of_boxes);
    let mut names: Vec<String> = vec![];
    for (i, group) in boxes.into_iter().zip(of_boxes) {
        if names.last() != Some(&group) {
            names.push(group);
        }
        bands[i] = names.len() - 1;
    }
    for i in (0..count).filter(|i| is_input[*i]) {
        bands[i] = panel.edges.iter().filter(|e| e.0 == i).map(|e| bands[e.1]).min().unwrap_or(0);
    }
    // One band around everything, or one for every other box, groups nothing.
    if names.len() < 2 || names.len() * 3 > count * 2 { (vec![0; count], vec![]) } else { (bands, names) }
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
    let mut body = Svg::default();
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
        body.rect(at, y, 14.0, 14.0).class(&format!("b {}", kind.class())).attr("rx", 3.0).done();
        body.text(at + 20.0, y + 11.0).class("s").words(text);
        at += 20.0 + text.len() as f64 * CHAR + 18.0;
    }
    let label = panels.first().map(|p| p.title.as_str()).unwrap_or_default();
    let mut svg = Svg::file(width.max(at).round(), (y + 14.0 + PAD).round(), label);
    svg.style(STYLE);
    svg.element("defs").begin();
    let tip = svg.element("marker").attr("id", "arrow").attr("viewBox", "0 0 8 8").attr("refX", 7.0).attr("refY", 4.0);
    tip.attr("markerWidth", 7.0).attr("markerHeight", 7.0).attr("orient", "auto").begin();
    svg.path(&Path::from(0.0, 0.0).line(8.0, 4.0).line(0.0, 8.0).close()).class("h").done();
    svg.end();
    svg.end();
    svg.append(body);
    svg.finish()
}

/// Draws a panel with its top left corner at (x, y); gives its size.
fn draw_panel(out: &mut Svg, panel: &Panel, x: f64, y: f64, framed: bool) -> (f64, f64) {
    let lines: Vec<Vec<String>> =
        panel.items.iter().map(|item| item.lines.iter().map(|l| shorten(l, LONGEST_LINE)).collect()).collect();
    let widest = |lines: &Vec<String>| lines.iter().map(|l| l.chars().count()).max().unwrap_or(0) as f64;
    let sizes: Vec<(f64, f64)> =
        lines.iter().map(|l| (widest(l) * CHAR + 20.0, l.len() as f64 * LINE + 10.0)).collect();
    let (bands, names) = bands(panel);
    let placed = layout::place(&sizes, &panel.edges, &bands);
    // Bands reach a little beyond their boxes, and the name of the first stands below the title.
    let (beyond, above) = if names.is_empty() { (0.0, 0.0) } else { (BAND, BAND_NAME) };
    let inset = if framed { 16.0 } else { 0.0 } + beyond;
    let title = shorten(&panel.title, 90);
    let width = placed.width.max(title.chars().count() as f64 * CHAR * 14.0 / FONT) + 2.0 * inset;
    let (left, top) = (x + inset, y + 36.0 + above + inset);
    let height = 36.0 + above + placed.height + 2.0 * inset;
    if framed {
        out.rect(x, y, width, height).class("p").attr("rx", 8.0).done();
    }
    out.text(left - beyond, y + 14.0 + inset).class("t").words(&title);
    for (name, &(from, to)) in names.iter().zip(&placed.bands).filter(|(name, _)| !name.is_empty()) {
        // The name stands above the boxes.
        let (y, tall) = (from + top - BAND_NAME, to - from + BAND_NAME + 8.0);
        out.rect(left - BAND, y, placed.width + 2.0 * BAND, tall).class("g").attr("rx", 8.0).done();
        out.text(left - BAND + 6.0, y + 14.0).class("s").words(&shorten(name, 60));
    }
    for route in &placed.routes {
        // A piece of no length has no direction, and an arrow at its end would point anywhere.
        let mut route: Vec<(f64, f64)> = route.iter().map(|(px, py)| (px + left, py + top)).collect();
        route.dedup_by(|a, b| (a.0 - b.0).abs() < 0.05 && (a.1 - b.1).abs() < 0.05);
        let Some(&(first_x, first_y)) = route.first() else { continue };
        let mut path = Path::from(first_x, first_y);
        for pair in route.windows(2) {
            let ((fx, fy), (px, py)) = (pair[0], pair[1]);
            // It leaves and arrives vertically.
            let middle = (fy + py) / 2.0;
            path = match (fx - px).abs() < 0.05 {
                true => path.vertical(py),
                false => path.curve([(fx, middle), (px, middle), (px, py)]),
            };
        }
        out.path(&path).class("e").attr("marker-end", "url(#arrow)").done();
    }
    for ((item, lines), (&(ix, iy), &(w, h))) in panel.items.iter().zip(&lines).zip(placed.at.iter().zip(&sizes)) {
        let (ix, iy) = (ix + left, iy + top);
        let radius = if item.kind == Kind::Output { h / 2.0 } else { 6.0 };
        out.element("g").begin();
        out.element("title").words(&item.whole.join(" · "));
        out.rect(ix, iy, w, h).class(&format!("b {}", item.kind.class())).attr("rx", radius).done();
        for (i, line) in lines.iter().enumerate() {
            let class = if i == 0 { "n" } else { "s" };
            let text = out.text(ix + w / 2.0, iy + 17.0 + i as f64 * LINE).class(class);
            text.attr("text-anchor", "middle").words(line);
        }
        out.end();
    }
    (width, height)
}

/// Draws the arena: steps to the right, addresses downwards.
fn draw_memory(out: &mut Svg, plan: &Plan, x: f64, y: f64) -> (f64, f64) {
    let steps = plan.steps.len().max(1);
    let column = (640.0 / steps as f64).clamp(6.0, 150.0);
    let tall = 200.0;
    let scale = tall / plan.arena_bytes as f64;
    let (left, top) = (x, y + 30.0);
    let title = format!(
        "memory while it runs: {} for {} buffer{}, at most {} in use at once (derived)",
        plan::bytes(plan.arena_bytes as u64),
        plan.buffers.len(),
        if plan.buffers.len() == 1 { "" } else { "s" },
        plan::bytes(plan.live_bytes as u64)
    );
    out.text(left, y + 14.0).class("t").words(&title);
    for buffer in &plan.buffers {
        let (bx, by) = (left + buffer.first as f64 * column, top + buffer.offset as f64 * scale);
        let w = (buffer.last - buffer.first + 1) as f64 * column;
        let h = (buffer.bytes as f64 * scale).max(1.0);
        let label = format!("{} {}", buffer.name, plan::bytes(buffer.bytes as u64));
        let class = if buffer.scratch { "b scratch" } else { "b elementwise" };
        out.element("g").begin();
        let whole = format!("{label} at {}, steps {} to {}", buffer.offset, buffer.first, buffer.last);
        out.element("title").words(&whole);
        out.rect(bx, by, w, h).class(class).done();
        let room = ((w - 8.0) / CHAR) as usize;
        if h >= 14.0 && room >= 4 {
            out.text(bx + 4.0, by + h / 2.0 + 4.0).class("s").words(&shorten(&label, room));
        }
        out.end();
    }
    let (bottom, right) = (top + tall, left + steps as f64 * column);
    let axes = Path::from(left, top).vertical(bottom).horizontal(right);
    out.path(&axes).class("a").attr("fill", "none").done();
    let every = (steps as f64 / 16.0).ceil().max(1.0) as usize;
    for step in (0..steps).step_by(every) {
        let text = out.text(left + (step as f64 + 0.5) * column, bottom + 15.0).class("s");
        text.attr("text-anchor", "middle").words(&step.to_string());
    }
    out.text(right + 8.0, bottom + 15.0).class("s").words("step");
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
    fn a_list_takes_few_lines_and_says_how_much_it_leaves_out() {
        let parts: Vec<String> = (0..9).map(|i| format!("layer{i}.weight [128, 128]")).collect();
        let lines = packed(&parts, 3);
        assert_eq!((lines.len(), lines[3].as_str()), (4, "and 6 more"));
        assert_eq!(packed(&["a [1]".into(), "b [2]".into()], 3), ["a [1], b [2]"]);
        assert!(packed(&[], 3).is_empty());
    }

    #[test]
    fn layers_that_take_turns_again_and_again_are_one_and_others_are_not() {
        let merged = |text: &str| {
            let mut groups: Vec<String> = text.split(' ').map(str::to_owned).collect();
            merge_turns(&mut groups);
            groups.dedup();
            groups
        };
        assert_eq!(merged("cell synapses cell synapses cell synapses head"), ["cell, synapses", "head"]);
        // A layer that is read once more at the end, as tied weights are.
        assert_eq!(merged("embed block1 block1 block2 embed"), ["embed", "block1", "block2", "embed"]);
        assert_eq!(merged("a b c d"), ["a", "b", "c", "d"]);
    }

    #[test]
    fn what_a_loop_takes_from_outside_is_known_by_its_name() {
        assert_eq!(from_outside("fixed.12.cell.weight"), Some("cell.weight"));
        for other in ["x", "fixed.x.y", "fixed.1", "other.1.x"] {
            assert_eq!(from_outside(other), None);
        }
    }

    #[test]
    fn text_is_cut() {
        assert_eq!(shorten("abcdef", 4), "abc…");
        assert_eq!(shorten("abcd", 4), "abcd");
    }
}
