//! A circuit as SVG that needs nothing else, in light and dark. In a browser, pointing at a neuron brings out the
//! synapses that leave it.

use super::{Node, Picture, Role, matrix};
use crate::Result;
use crate::wiring::{Wiring, refuse};
use schwann_core::svg::{Path, Svg};
use std::f64::consts::TAU;

/// More than this is a smear even as a matrix.
const MOST_NODES: usize = 2000;
const MOST_SYNAPSES: usize = 100_000;
/// Circuits with more synapses than this are shown as a matrix too: lines alone would hide each other.
const MATRIX_FROM: usize = 150;
const PAD: f64 = 32.0;
/// Where a panel begins: the title and the line below it are above.
const TOP: f64 = 84.0;
/// Room for the names of columns.
const HEADINGS: f64 = 32.0;
/// A wide character of a sans-serif font, in units of its size.
const CHAR: f64 = 0.6;

const STYLE: &str = "\
svg{background:#fff;font:12px system-ui,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif}\
text{fill:#1b1f24}.t{font-size:18px;font-weight:600}.s{fill:#57606a}.h{font-weight:600}.m{text-anchor:middle}\
.e{text-anchor:end}\
path{fill:none}.p{stroke:#0072b2}.q{stroke:#d55e00}.ph{fill:#0072b2;stroke:none}.qh{stroke:#d55e00;stroke-width:2}\
.pf{fill:#0072b2}.qf{fill:#d55e00}.g{stroke:#d0d7de;stroke-width:1}\
.n{stroke-width:1.5;pointer-events:none}.l{pointer-events:none;text-anchor:middle;fill:#1b1f24}\
.input{fill:#eaeef2;stroke:#6e7781}.inter{fill:#d3f0e6;stroke:#00775a}.command{fill:#f6dcea;stroke:#a8497f}\
.motor{fill:#fff3b8;stroke:#8a6d00}\
.o path{pointer-events:none}.hit{fill:#0000}.o:hover path{opacity:1!important;stroke-width:2.4!important}\
@media(prefers-color-scheme:dark){svg{background:#0f1318}text{fill:#e6edf3}.s{fill:#9da7b3}.l{fill:#e6edf3}\
.p{stroke:#56b4e9}.q{stroke:#ff8c42}.ph{fill:#56b4e9}.qh{stroke:#ff8c42}.pf{fill:#56b4e9}.qf{fill:#ff8c42}\
.g{stroke:#2b323b}\
.input{fill:#2b323b;stroke:#9da7b3}.inter{fill:#0d3d31;stroke:#3fc79f}.command{fill:#4a1f37;stroke:#e58dbd}\
.motor{fill:#453a08;stroke:#e3c341}}";

type Point = (f64, f64);

/// Where everything is.
struct Layout {
    at: Vec<Point>,
    radius: f64,
    /// Where the drawing ends.
    right: f64,
    bottom: f64,
    /// Half way down.
    middle: f64,
    /// The middle of the ring, where the neurons are on one.
    centre: Option<Point>,
    /// Column of each node.
    column: Vec<usize>,
    columns: usize,
    gap: f64,
}

impl Layout {
    /// Whether a node is in the last column.
    fn last(&self, node: Node) -> bool {
        self.column[node] + 1 == self.columns
    }

    /// Moves everything down where a curve would cross the names of columns, and the end where it would cross the legend.
    fn make_room(&mut self, picture: &Picture) {
        let (mut highest, mut lowest) = (f64::MAX, self.bottom);
        for (from, to, _) in picture.synapses() {
            let [a, b, c, d] = curve(self, from, to).map(|point| point.1);
            // A curve comes this near to its control points, and no nearer.
            let (near_b, near_c) = (a + 0.75 * (b.min(c) - a), d + 0.75 * (b.max(c) - d));
            highest = highest.min(near_b).min(d);
            lowest = lowest.max(near_c).max(a);
        }
        let down = (TOP + HEADINGS - highest).max(0.0);
        self.at.iter_mut().for_each(|at| at.1 += down);
        self.middle += down;
        self.bottom = lowest + down;
    }
}

impl Wiring {
    /// The circuit as an SVG picture: inputs, layers and outputs from left to right, or inputs beside a ring where there
    /// is one layer; large circuits also as a matrix. Without a title, it has one that says how the circuit was made.
    pub fn to_svg(&self, title: Option<&str>) -> Result<String> {
        let nodes = self.units + self.input_dim.unwrap_or(0);
        let synapses = self.synapse_count() + self.sensory_synapse_count();
        if nodes > MOST_NODES || synapses > MOST_SYNAPSES {
            return Err(refuse(
                "wiring",
                format!("{nodes} neurons and inputs with {synapses} synapses"),
                format!("at most {MOST_NODES} with {MOST_SYNAPSES}, or nobody could read the picture"),
            ));
        }
        let title = title.map_or_else(|| self.config().title(), str::to_owned);
        Ok(draw(&Picture::new(self), &title))
    }
}

fn draw(picture: &Picture<'_>, title: &str) -> String {
    let layout = if picture.layered { in_columns(picture) } else { on_a_ring(picture) };
    let mut body = Svg::default();
    draw_synapses(&mut body, picture, &layout);
    draw_nodes(&mut body, picture, &layout);
    let (mut right, mut bottom) = (layout.right, layout.bottom);
    if picture.synapse_count > MATRIX_FROM {
        let room = bottom - TOP;
        let (matrix_right, matrix_bottom) = matrix::draw(&mut body, picture, (right + 2.0 * PAD, TOP), room);
        (right, bottom) = (matrix_right, bottom.max(matrix_bottom));
    }
    right = right.max(draw_legend(&mut body, picture, bottom + PAD));
    right = right.max(PAD + title.chars().count() as f64 * 18.0 * 1.1 * CHAR);
    right = right.max(PAD + picture.caption.chars().count() as f64 * 12.0 * CHAR);
    let (width, height) = (right + PAD, bottom + 2.0 * PAD + 12.0);
    let tip = (0.6 * layout.radius).clamp(4.0, 7.0);
    let mut svg = Svg::file(width.round(), height.round(), &format!("{title}: {}", picture.caption));
    svg.style(STYLE);
    svg.element("defs").begin();
    // The tip of an arrow, and the bar that is the sign for inhibition.
    marker(&mut svg, "a", 7.0, tip, "ph", Path::from(0.0, 0.5).line(8.0, 4.0).line(0.0, 7.5).close());
    marker(&mut svg, "b", 4.0, tip, "qh", Path::from(4.0, 0.5).vertical(7.5));
    svg.end();
    svg.text(PAD, 40.0).class("t").words(title);
    svg.text(PAD, 60.0).class("s").words(&picture.caption);
    svg.append(body);
    svg.finish()
}

/// What a line ends in.
fn marker(svg: &mut Svg, id: &str, tip_at: f64, size: f64, class: &str, path: Path) {
    let marker = svg.element("marker").attr("id", id).attr("viewBox", "0 0 8 8").attr("refX", tip_at).attr("refY", 4.0);
    let marker = marker.attr("markerWidth", size).attr("markerHeight", size).attr("markerUnits", "userSpaceOnUse");
    marker.attr("orient", "auto").begin();
    svg.path(&path).class(class).done();
    svg.end();
}

/// A line in the style of its polarity: what excites ends in an arrow, what inhibits is dashed and ends in a bar.
fn synapse<'a>(svg: &'a mut Svg, path: &Path, excites: bool) -> schwann_core::svg::Element<'a> {
    let (class, end) = if excites { ("p", "url(#a)") } else { ("q", "url(#b)") };
    let dashes = (!excites).then_some("5 3");
    svg.path(path).class(class).attr("marker-end", end).maybe("stroke-dasharray", dashes)
}

/// Columns from left to right, each spread over the height of the longest.
fn in_columns(picture: &Picture) -> Layout {
    let longest = picture.groups.iter().map(|g| g.nodes.len()).max().unwrap_or(1) as f64;
    let pitch = (700.0 / longest).clamp(7.5, 52.0);
    let height = pitch * longest;
    // Long columns zigzag, so that their nodes may be larger than the room of one.
    let zigzag = pitch < 12.0;
    let radius = if zigzag { 5.6 } else { 0.41 * pitch }.clamp(5.0, 13.0);
    let gap = (0.36 * height).clamp(190.0, 380.0);
    let (left, top) = (PAD + 40.0, TOP + HEADINGS);
    let mut layout = Layout {
        at: vec![(0.0, 0.0); picture.role.len()],
        radius,
        right: left + gap * (picture.groups.len() - 1) as f64 + 52.0,
        bottom: top + height,
        middle: top + height / 2.0,
        centre: None,
        column: vec![0; picture.role.len()],
        columns: picture.groups.len(),
        gap,
    };
    for (c, group) in picture.groups.iter().enumerate() {
        let count = group.nodes.len() as f64;
        // Short columns are spread, but not torn.
        let own_pitch = (height / count).min(5.0 * pitch).min(88.0);
        let start = top + (height - own_pitch * (count - 1.0)) / 2.0;
        for (i, &node) in group.nodes.iter().enumerate() {
            let aside = match (zigzag && own_pitch < 2.2 * radius, i % 2) {
                (false, _) => 0.0,
                (true, 0) => -1.25 * radius,
                (true, _) => 1.25 * radius,
            };
            layout.at[node] = (left + gap * c as f64 + aside, start + own_pitch * i as f64);
            layout.column[node] = c;
        }
    }
    layout.make_room(picture);
    layout
}

/// Inputs in a column, and the neurons on a ring, clockwise, with the outputs to the right.
fn on_a_ring(picture: &Picture) -> Layout {
    let neurons = picture.role.len() - picture.inputs;
    let pitch = (2400.0 / neurons as f64).clamp(14.0, 100.0);
    let radius = (0.3 * pitch).clamp(5.0, 13.0);
    let ring = (pitch * neurons as f64 / TAU).max(70.0);
    let margin = outside(radius) + 14.0;
    let from_inputs = if picture.inputs > 0 { 160.0 } else { 0.0 };
    let input_pitch = (1.6 * ring / picture.inputs.max(1) as f64).clamp(13.0, 60.0);
    let half = (ring + margin).max(input_pitch * picture.inputs as f64 / 2.0 + 8.0);
    let centre = (PAD + 40.0 + from_inputs + ring, TOP + half);
    let mut at = vec![];
    for input in 0..picture.inputs {
        let middle = (picture.inputs - 1) as f64 / 2.0;
        at.push((PAD + 40.0, centre.1 + input_pitch * (input as f64 - middle)));
    }
    // Where all are outputs, the first is on top.
    let first = match picture.outputs == neurons {
        true => -TAU / 4.0,
        false => -TAU * (picture.outputs - 1) as f64 / 2.0 / neurons as f64,
    };
    for neuron in 0..neurons {
        let (sin, cos) = (first + TAU * neuron as f64 / neurons as f64).sin_cos();
        at.push((centre.0 + ring * cos, centre.1 + ring * sin));
    }
    // The ring is a column of its own.
    let column = (0..at.len()).map(|node| usize::from(node >= picture.inputs)).collect();
    let (right, bottom) = (centre.0 + ring + margin, centre.1 + half);
    Layout { at, radius, right, bottom, middle: centre.1, centre: Some(centre), column, columns: 2, gap: from_inputs }
}

/// How far from a neuron of the ring the name of its output is: beyond the self-loop.
fn outside(radius: f64) -> f64 {
    2.3 * radius + 14.0
}

/// How strongly lines are drawn, so that many of them still let each other through.
fn line_style(lines: usize) -> (f64, f64) {
    let crowd = (lines.max(1) as f64).sqrt();
    ((13.0 / crowd).clamp(0.2, 0.85), (22.0 / crowd).clamp(0.6, 1.5))
}

fn draw_synapses(out: &mut Svg, picture: &Picture<'_>, layout: &Layout) {
    let sideways = |&(from, to, _): &(Node, Node, i8)| {
        layout.centre.is_none() && layout.column[to] <= layout.column[from] || from == to
    };
    // What goes back or stays in its layer is rarer, and is what makes the circuit remember: it stands out.
    let recurrent = picture.synapses().filter(sideways).count();
    // On a ring, all lines cross in the middle.
    let crowd = if layout.centre.is_some() { 2 } else { 1 };
    let (opacity, width) = line_style(crowd * (picture.synapse_count - recurrent));
    let (strong, wide) = line_style(recurrent);
    let mut synapses = picture.synapses().peekable();
    for node in 0..picture.role.len() {
        // The circle is what a pointer finds; it lies under the node.
        let (x, y) = layout.at[node];
        out.element("g").class("o").begin();
        out.circle(x, y, layout.radius + 1.0).class("hit").titled("", &picture.describe(node));
        while let Some(one) = synapses.next_if(|s| s.0 == node) {
            let (opacity, width) =
                if sideways(&one) { (strong.max(opacity), wide.max(width)) } else { (opacity, width) };
            let (from, to, polarity) = one;
            let [a, b, c, d] = curve(layout, from, to);
            let line = synapse(out, &Path::from(a.0, a.1).curve([b, c, d]), polarity > 0);
            line.attr("opacity", format!("{opacity:.2}")).attr("stroke-width", format!("{width:.2}")).done();
        }
        out.end();
    }
}

/// The path of a synapse as a Bézier curve, from the rim of one node to the rim of the other.
fn curve(layout: &Layout, from: Node, to: Node) -> [Point; 4] {
    let (a, b) = (layout.at[from], layout.at[to]);
    if from == to {
        return self_loop(layout, from);
    }
    let apart = (b.0 - a.0, b.1 - a.1);
    let length = apart.0.hypot(apart.1);
    let (from_column, to_column) = (layout.column[from], layout.column[to]);
    let (c1, c2) = match layout.centre {
        // On the ring, chords bend towards the middle, and aside, so that both ways between two neurons are seen.
        Some(centre) if from_column == to_column => {
            let middle = ((a.0 + b.0) / 2.0, (a.1 + b.1) / 2.0);
            let (dx, dy) = (centre.0 - middle.0, centre.1 - middle.1);
            let pull = (0.25 * length / dx.hypot(dy).max(1.0)).min(0.4);
            let control = (middle.0 + pull * dx - 0.15 * apart.1, middle.1 + pull * dy + 0.15 * apart.0);
            (control, control)
        }
        Some(_) => ((a.0 + 0.4 * apart.0, a.1 + 0.1 * apart.1), (b.0 - 0.3 * apart.0, b.1 - 0.3 * apart.1)),
        None if from_column == to_column => {
            // Within a layer: down along the right side, up along the left. To the right of the last column are the names
            // of the outputs, so there both are on the left, one wider than the other.
            let down = apart.1 > 0.0;
            let mut bulge = (16.0 + 0.3 * apart.1.abs()).min(0.36 * layout.gap);
            if !down || layout.last(to) {
                bulge *= if down { -1.25 } else { -1.0 };
            }
            ((a.0 + bulge, a.1 + 0.15 * apart.1), (b.0 + bulge, b.1 - 0.15 * apart.1))
        }
        None => {
            // What skips a layer passes above or below the middle of it; what goes back, on the other side.
            let skipped = from_column.abs_diff(to_column) - 1;
            let above = a.1 + b.1 < 2.0 * layout.middle;
            let back = to_column < from_column;
            let bow = (skipped + usize::from(back)) as f64 * 0.16 * layout.gap;
            let bow = if above != back { -bow } else { bow };
            ((a.0 + 0.45 * apart.0, a.1 + bow), (b.0 - 0.45 * apart.0, b.1 - 0.22 * apart.1 + bow))
        }
    };
    [rim(a, c1, layout.radius), c1, c2, rim(b, c2, layout.radius + 2.5)]
}

/// The point of a circle around `centre` that is next to `towards`.
fn rim(centre: Point, towards: Point, radius: f64) -> Point {
    let (dx, dy) = (towards.0 - centre.0, towards.1 - centre.1);
    let length = dx.hypot(dy).max(1e-6);
    (centre.0 + dx / length * radius, centre.1 + dy / length * radius)
}

/// A loop outwards from the ring, or up and to the right.
fn self_loop(layout: &Layout, node: Node) -> [Point; 4] {
    let at = layout.at[node];
    let angle = match layout.centre {
        Some(centre) => (at.1 - centre.1).atan2(at.0 - centre.0),
        // Over the shoulder, on the side without names.
        None if layout.last(node) => -3.0 * TAU / 8.0,
        None => -TAU / 8.0,
    };
    let reach = 2.9 * layout.radius.max(5.0);
    let point = |turn: f64, distance: f64| {
        let (sin, cos) = (angle + turn).sin_cos();
        (at.0 + distance * cos, at.1 + distance * sin)
    };
    [point(-0.5, layout.radius), point(-0.75, reach), point(0.75, reach), point(0.5, layout.radius + 2.5)]
}

fn draw_nodes(out: &mut Svg, picture: &Picture<'_>, layout: &Layout) {
    let r = layout.radius;
    for node in 0..picture.role.len() {
        let (x, y) = layout.at[node];
        draw_node(out, picture.role[node], (x, y), r);
        let label = picture.label(node);
        let small = (1.5 * r).clamp(7.0, 12.0);
        if picture.role[node] == Role::Input {
            out.text(x - r - 6.0, y + 0.35 * small).class("e s").attr("style", sized(small)).words(&label);
        } else {
            let size = (1.9 * r / (CHAR * label.len().max(2) as f64 + 0.35)).min(r);
            out.text(x, y + 0.36 * size).class("l").attr("style", sized(size)).words(&label);
        }
        if let Some(output) = picture.output(node) {
            // Beside the last column, or outside of the ring and its loops.
            let (lx, ly, class) = match layout.centre {
                None => (x + r + 7.0, y, "s"),
                Some(centre) => {
                    let (lx, ly) = rim((x, y), (2.0 * x - centre.0, 2.0 * y - centre.1), outside(r));
                    (lx, ly, "m s")
                }
            };
            out.text(lx, ly + 0.35 * small).class(class).attr("style", sized(small)).words(&output);
        }
    }
    if layout.centre.is_some() {
        return;
    }
    for group in &picture.groups {
        let Some(&first) = group.nodes.first() else { continue };
        let x = layout.at[first].0;
        let name = if group.role == Role::Input || group.name.contains(' ') {
            group.name.clone()
        } else {
            format!("{} neurons", group.name)
        };
        out.text(x, TOP + 4.0).class("h m").words(&name);
        out.text(x, TOP + 20.0).class("s m").words(&group.nodes.len().to_string());
    }
}

/// Text of this size, whatever the style sheet has.
fn sized(pixels: f64) -> String {
    format!("font-size:{}px", schwann_core::svg::number(pixels))
}

fn draw_node(out: &mut Svg, role: Role, (x, y): Point, r: f64) {
    let node = match role {
        Role::Input => out.rect(x - 0.85 * r, y - 0.85 * r, 1.7 * r, 1.7 * r).attr("rx", 2.0),
        _ => out.circle(x, y, r),
    };
    node.class(&format!("n {}", role.name())).done();
}

/// What the signs mean; gives how far to the right it goes.
fn draw_legend(out: &mut Svg, picture: &Picture<'_>, y: f64) -> f64 {
    // Beside a sign of this width.
    let words = |out: &mut Svg, x: f64, width: f64, text: &str| {
        out.text(x + width + 8.0, y + 4.0).class("s").words(text);
        x + width + 8.0 + text.chars().count() as f64 * 12.0 * CHAR + 20.0
    };
    let mut x = PAD;
    for (excites, text) in [(true, "excites"), (false, "inhibits")] {
        synapse(out, &Path::from(x, y).horizontal(x + 34.0), excites).attr("stroke-width", 1.5).done();
        x = words(out, x, 36.0, text);
    }
    for role in [Role::Input, Role::Inter, Role::Command, Role::Motor] {
        if picture.role.contains(&role) {
            draw_node(out, role, (x + 7.0, y), 7.0);
            let text = match role {
                Role::Input => "input",
                Role::Inter => "inter neuron",
                Role::Command => "command neuron",
                Role::Motor => "motor neuron (output)",
            };
            x = words(out, x, 14.0, text);
        }
    }
    x
}
