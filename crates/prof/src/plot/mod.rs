//! Pictures of a [`Profile`]: shapes first, then SVG for pages and files, or PNG.
//!
//! A plot is a list of shapes in inks, not a string, because it is shown in three ways: inside the report its inks are
//! CSS variables, so that it follows dark mode and print; a file of its own has the light theme's colours and a ground;
//! a PNG is painted from the same shapes by `tiny-skia`. That is the rasterizer of `resvg`, whose text stack would
//! triple what a build compiles for a few labels; the glyphs come from a small font in the program, so that a machine
//! without fonts gets the same picture. Views compute nothing: a plot places figures of the profile, and one that the
//! profile does not know is left out or said to be unknown, never drawn at 0.

mod curves;
mod devices;
mod font;
mod histogram;
mod memory;
mod ops;
mod png;
mod roofline;
mod scale;
mod svg;
mod sweep;
pub mod unit;

pub use curves::{Curve, curves};
pub use devices::devices;
pub use histogram::histogram;
pub use memory::memory;
pub use ops::ops;
pub use png::PaintError;
pub use roofline::roofline;
pub use sweep::{sweep, sweep_of};

pub(crate) use font::{clip, width as text_width};
pub(crate) use ops::{bound_ink, bound_words, by_time};
pub(crate) use svg::escape;

use crate::Profile;
use schwann_core::Figure;

/// Why there is no plot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Missing(pub String);

impl Missing {
    /// The first reason that these figures give.
    fn of<'a>(what: &str, figures: impl IntoIterator<Item = &'a Figure>) -> Missing {
        let reason = figures.into_iter().find_map(|f| f.reason.as_deref());
        Missing(format!("{what}: {}", reason.unwrap_or("the profile does not say why")))
    }
}

/// What a shape is drawn in: a role, which each theme gives a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Text and marks.
    Text,
    /// Text that matters less.
    Muted,
    /// Lines that guide the eye.
    Grid,
    /// What everything lies on.
    Ground,
    /// Good news, and what is bound by nothing.
    Good,
    /// Bad news.
    Bad,
    /// One of [`Ink::KINDS`] colours that tell kinds apart.
    Kind(usize),
}

impl Ink {
    /// How many colours tell kinds apart.
    pub const KINDS: usize = 7;

    pub(crate) fn css(self) -> String {
        match self {
            Ink::Text => "var(--ink)".into(),
            Ink::Muted => "var(--muted)".into(),
            Ink::Grid => "var(--rule)".into(),
            Ink::Ground => "var(--card)".into(),
            Ink::Good => "var(--good)".into(),
            Ink::Bad => "var(--bad)".into(),
            Ink::Kind(n) => format!("var(--k{})", n % Ink::KINDS),
        }
    }

    /// The light theme's colour; the page's style sheet has the same.
    fn rgb(self) -> [u8; 3] {
        const KINDS: [[u8; 3]; Ink::KINDS] = [
            [0x2c, 0x6d, 0xa3],
            [0xc4, 0x6f, 0x1f],
            [0x2f, 0x8a, 0x66],
            [0x80, 0x56, 0xa6],
            [0xa8, 0x8a, 0x12],
            [0xb2, 0x47, 0x5f],
            [0x76, 0x82, 0x8f],
        ];
        match self {
            Ink::Text => [0x1b, 0x23, 0x30],
            Ink::Muted => [0x5a, 0x65, 0x74],
            Ink::Grid => [0xe1, 0xe5, 0xea],
            Ink::Ground => [0xff, 0xff, 0xff],
            Ink::Good => [0x1d, 0x7a, 0x4d],
            Ink::Bad => [0xb3, 0x30, 0x3c],
            Ink::Kind(n) => KINDS[n % Ink::KINDS],
        }
    }
}

/// Where a text stands beside its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// To the right of it.
    Start,
    /// Around it.
    Middle,
    /// To the left of it.
    End,
}

/// What a shape is, in pixels from the top left.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// Left, top, width, height.
    Rect([f64; 4]),
    /// Points in a row; closed ones are an area.
    Path(Vec<(f64, f64)>, bool),
    /// Centre and radius.
    Circle(f64, f64, f64),
    /// Left or other end of the base line, size, and the words.
    Text(f64, f64, Anchor, f64, String),
}

/// One mark of a drawing.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// What it is.
    pub form: Form,
    /// What fills it, and how much of the ground it hides.
    pub fill: Option<(Ink, f64)>,
    /// What its outline is drawn in, and how wide.
    pub stroke: Option<(Ink, f64)>,
    /// Whether the outline is dashed: a limit, or a prediction.
    pub dashed: bool,
    /// What is shown when a pointer rests on it; nothing where empty.
    pub title: String,
}

impl Shape {
    /// With a text for pointers that rest on it.
    pub fn titled(&mut self, title: impl Into<String>) -> &mut Shape {
        self.title = title.into();
        self
    }

    /// With an outline.
    pub fn outlined(&mut self, ink: Ink, width: f64) -> &mut Shape {
        self.stroke = Some((ink, width));
        self
    }

    /// With a broken outline.
    pub fn dashed(&mut self) -> &mut Shape {
        self.dashed = true;
        self
    }

    /// So that less of it is seen.
    pub fn faint(&mut self, opacity: f64) -> &mut Shape {
        if let Some((_, of)) = &mut self.fill {
            *of = opacity;
        }
        self
    }
}

/// Width and height that a plot is made for: labels keep their size, so a phone gets a plot of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Pixels from left to right.
    pub width: f64,
    /// Pixels from top to bottom; a plot of a list takes what it needs.
    pub height: f64,
}

impl Size {
    /// The whole width of a report on a desk, and of files.
    pub const WIDE: Size = Size { width: 1000.0, height: 440.0 };
    /// Half of it.
    pub const HALF: Size = Size { width: 490.0, height: 300.0 };
    /// A phone's.
    pub const NARROW: Size = Size { width: 340.0, height: 270.0 };

    /// Whether there is room for one column alone.
    pub fn is_narrow(self) -> bool {
        self.width < 420.0
    }
}

/// Text of axes.
const SMALL: f64 = 11.0;
/// Text of labels.
const LABEL: f64 = 12.0;

/// A picture: shapes in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    /// Its size in pixels.
    pub size: Size,
    /// What it shows, for those who do not see it.
    pub label: String,
    /// What it is made of.
    pub shapes: Vec<Shape>,
}

impl Drawing {
    /// An empty picture.
    pub fn new(size: Size, label: impl Into<String>) -> Drawing {
        Drawing { size, label: label.into(), shapes: vec![] }
    }

    fn push(&mut self, form: Form, fill: Option<(Ink, f64)>) -> &mut Shape {
        let at = self.shapes.len();
        self.shapes.push(Shape { form, fill, stroke: None, dashed: false, title: String::new() });
        &mut self.shapes[at]
    }

    /// A filled rectangle.
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, ink: Ink) -> &mut Shape {
        self.push(Form::Rect([x, y, width.max(0.0), height.max(0.0)]), Some((ink, 1.0)))
    }

    /// A line through points.
    pub fn line(&mut self, points: impl Into<Vec<(f64, f64)>>, ink: Ink, width: f64) -> &mut Shape {
        self.push(Form::Path(points.into(), false), None).outlined(ink, width)
    }

    /// The area between points.
    pub fn area(&mut self, points: impl Into<Vec<(f64, f64)>>, ink: Ink) -> &mut Shape {
        self.push(Form::Path(points.into(), true), Some((ink, 1.0)))
    }

    /// A dot.
    pub fn circle(&mut self, x: f64, y: f64, radius: f64, ink: Ink) -> &mut Shape {
        self.push(Form::Circle(x, y, radius), Some((ink, 1.0)))
    }

    /// Words.
    pub fn text(
        &mut self,
        x: f64,
        y: f64,
        anchor: Anchor,
        size: f64,
        ink: Ink,
        words: impl Into<String>,
    ) -> &mut Shape {
        self.push(Form::Text(x, y, anchor, size, words.into()), Some((ink, 1.0)))
    }

    /// Words on a seam of the ground's colour, to be read on top of lines.
    fn label(&mut self, x: f64, y: f64, anchor: Anchor, ink: Ink, words: impl Into<String>) -> &mut Shape {
        self.text(x, y, anchor, LABEL, ink, words).outlined(Ink::Ground, 3.0)
    }

    /// The same below a heading, for a file that has no page around it.
    pub fn headed(mut self, heading: &str) -> Drawing {
        const ROOM: f64 = 34.0;
        for shape in &mut self.shapes {
            match &mut shape.form {
                Form::Rect([_, y, ..]) | Form::Circle(_, y, _) | Form::Text(_, y, ..) => *y += ROOM,
                Form::Path(points, _) => points.iter_mut().for_each(|p| p.1 += ROOM),
            }
        }
        self.size.height += ROOM;
        let words = clip(heading, 15.0, self.size.width - 8.0);
        self.text(4.0, 19.0, Anchor::Start, 15.0, Ink::Text, words);
        self
    }

    /// A row of coloured squares with their meaning, from a point on; gives the y below the last row.
    fn legend(&mut self, x: f64, y: f64, right: f64, entries: &[(Ink, &str)]) -> f64 {
        let (mut at, mut row) = (x, y);
        for (ink, words) in entries {
            let wide = 16.0 + text_width(words, SMALL) * 1.12 + 14.0;
            if at > x && at + wide > right {
                (at, row) = (x, row + 17.0);
            }
            self.rect(at, row - 9.0, 10.0, 10.0, *ink);
            self.text(at + 15.0, row, Anchor::Start, SMALL, Ink::Muted, *words);
            at += wide;
        }
        row + 12.0
    }
}

/// A plot of a profile, for a width.
pub type Plot = fn(&Profile, Size) -> Result<Drawing, Missing>;

/// Says of which run a plot is: model, batch, length, threads, CPU.
pub fn heading(profile: &Profile) -> String {
    let w = &profile.workload;
    let settings = [&w.batch, &w.steps, &w.threads].map(unit::show).join(", ");
    format!("{}: {settings} on {}", profile.model.name, profile.machine.cpu)
}

/// Every plot, with the name of its file and the size it has there.
pub const PLOTS: [(&str, Plot, Size); 7] = [
    ("roofline", roofline, Size::WIDE),
    ("ops", ops, Size::WIDE),
    ("flame", crate::flame::plot, Size::WIDE),
    ("histogram", histogram, Size { width: 760.0, height: 380.0 }),
    ("memory", memory, Size { width: 760.0, height: 380.0 }),
    ("sweep", sweep, Size { width: 900.0, height: 340.0 }),
    ("devices", devices, Size::WIDE),
];
