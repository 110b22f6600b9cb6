//! SVG as text: the one writer of it, for graphs and plans, circuits, plots and flame graphs.
//!
//! Every text and attribute goes through [`show::xml`](crate::show::xml), so that no name from a file becomes markup or
//! hides anything, and every number is finite and has one decimal. It is written by hand because little more is needed:
//! the crate `svg` keeps a tree of boxed nodes with hashed attributes, `xmlwriter` handles neither numbers nor hidden
//! characters, and `resvg` and its family read SVG but write none.

use crate::show::xml;
use std::fmt::Write;

/// A number with at most one decimal; 0 if it is not finite.
pub fn number(value: f64) -> String {
    let value = if value.is_finite() { value.clamp(-1e6, 1e6) } else { 0.0 };
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".into(),
        Some(whole) => whole.into(),
        None => text,
    }
}

/// What an attribute may be: text, or a number in pixels.
pub trait Value {
    /// The text between the quotes.
    fn quoted(&self) -> String;
}

impl Value for f64 {
    fn quoted(&self) -> String {
        number(*self)
    }
}

impl Value for &str {
    fn quoted(&self) -> String {
        xml(self)
    }
}

impl Value for String {
    fn quoted(&self) -> String {
        xml(self)
    }
}

/// Elements in their order; those that were begun and not ended yet are ended by [`finish`](Svg::finish).
#[derive(Debug, Default)]
pub struct Svg {
    text: String,
    open: Vec<&'static str>,
}

impl Svg {
    /// A picture that is a file of its own, of this size in pixels; the label says what it shows to those who do not see
    /// it, and is its title.
    pub fn file(width: f64, height: f64, label: &str) -> Svg {
        let mut svg = Svg::default();
        let root = svg.element("svg").attr("xmlns", "http://www.w3.org/2000/svg");
        root.sized(width, height, label).attr("width", width).attr("height", height).begin();
        svg.element("title").words(label);
        svg
    }

    /// A picture in a page, which gives it its size, by this class.
    pub fn inline(width: f64, height: f64, label: &str, class: &str) -> Svg {
        let mut svg = Svg::default();
        svg.element("svg").class(class).sized(width, height, label).begin();
        svg
    }

    /// An element, whose attributes follow; it is written when it ends or begins to have children.
    pub fn element(&mut self, name: &'static str) -> Element<'_> {
        self.text.push('<');
        self.text += name;
        Element { svg: self, name }
    }

    /// A rectangle.
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64) -> Element<'_> {
        self.element("rect").attr("x", x).attr("y", y).attr("width", width).attr("height", height)
    }

    /// A circle.
    pub fn circle(&mut self, x: f64, y: f64, radius: f64) -> Element<'_> {
        self.element("circle").attr("cx", x).attr("cy", y).attr("r", radius)
    }

    /// A line or an area.
    pub fn path(&mut self, path: &Path) -> Element<'_> {
        self.element("path").attr("d", path.0.as_str())
    }

    /// Words at a point, which [`words`](Element::words) gives.
    pub fn text(&mut self, x: f64, y: f64) -> Element<'_> {
        self.element("text").attr("x", x).attr("y", y)
    }

    /// A style sheet from the program itself, written without escaping.
    pub fn style(&mut self, sheet: &'static str) {
        self.text += "<style>";
        self.text += sheet;
        self.text += "</style>\n";
    }

    /// Ends the innermost element that was begun.
    pub fn end(&mut self) {
        if let Some(name) = self.open.pop() {
            self.text += "</";
            self.text += name;
            self.text += ">\n";
        }
    }

    /// Appends another drawing.
    pub fn append(&mut self, other: Svg) {
        self.text += &other.finish();
    }

    /// The whole as text.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.end();
        }
        self.text
    }
}

/// An element that is being written.
#[must_use = "an element is to be ended: `done`, `words`, `titled` or `begin`"]
#[derive(Debug)]
pub struct Element<'a> {
    svg: &'a mut Svg,
    name: &'static str,
}

impl Element<'_> {
    /// With an attribute.
    pub fn attr(self, name: &str, value: impl Value) -> Self {
        // Writing to a string does not fail.
        let _ = write!(self.svg.text, " {name}=\"{}\"", value.quoted());
        self
    }

    /// With an attribute where there is a value.
    pub fn maybe(self, name: &str, value: Option<impl Value>) -> Self {
        match value {
            Some(value) => self.attr(name, value),
            None => self,
        }
    }

    /// With classes of the style sheet.
    pub fn class(self, names: &str) -> Self {
        self.attr("class", names)
    }

    fn sized(self, width: f64, height: f64, label: &str) -> Self {
        let size = format!("0 0 {} {}", number(width), number(height));
        self.attr("viewBox", size).attr("role", "img").attr("aria-label", label)
    }

    /// With nothing inside.
    pub fn done(self) {
        self.svg.text += "/>";
    }

    /// With words inside.
    pub fn words(self, words: &str) {
        self.titled(words, "");
    }

    /// With words inside, and others that are shown when a pointer rests on it; either may be empty.
    pub fn titled(self, words: &str, title: &str) {
        if words.is_empty() && title.is_empty() {
            return self.done();
        }
        self.svg.text.push('>');
        if !title.is_empty() {
            let _ = write!(self.svg.text, "<title>{}</title>", xml(title));
        }
        let _ = write!(self.svg.text, "{}</{}>", xml(words), self.name);
    }

    /// Begun: what is drawn next is inside, until [`Svg::end`].
    pub fn begin(self) {
        self.svg.text.push('>');
        self.svg.open.push(self.name);
    }
}

/// Where a line goes, in pixels.
#[derive(Clone, Debug, Default)]
pub struct Path(String);

impl Path {
    /// A path from a point on.
    pub fn from(x: f64, y: f64) -> Path {
        Path::default().step('M', &[x, y])
    }

    /// Through these points.
    pub fn through(points: impl IntoIterator<Item = (f64, f64)>) -> Path {
        let mut path = Path::default();
        for (x, y) in points {
            path = if path.0.is_empty() { Path::from(x, y) } else { path.line(x, y) };
        }
        path
    }

    fn step(mut self, command: char, numbers: &[f64]) -> Path {
        self.0.push(command);
        self.0 += &numbers.iter().map(|v| number(*v)).collect::<Vec<_>>().join(" ");
        self
    }

    /// Continues from another point, without a line to it.
    pub fn jump(self, x: f64, y: f64) -> Path {
        self.step('M', &[x, y])
    }

    /// A straight line to a point.
    pub fn line(self, x: f64, y: f64) -> Path {
        self.step('L', &[x, y])
    }

    /// Up or down.
    pub fn vertical(self, y: f64) -> Path {
        self.step('V', &[y])
    }

    /// To the left or right.
    pub fn horizontal(self, x: f64) -> Path {
        self.step('H', &[x])
    }

    /// A Bézier curve: its two control points and its end.
    pub fn curve(self, [b, c, d]: [(f64, f64); 3]) -> Path {
        self.step('C', &[b.0, b.1, c.0, c.1, d.0, d.1])
    }

    /// Back to where it began.
    pub fn close(mut self) -> Path {
        self.0.push('Z');
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup_and_numbers_stay_numbers() {
        let mut svg = Svg::file(10.0, f64::NAN, "\"><script>");
        svg.element("g").class("a\" onload=\"x").begin();
        svg.rect(f64::INFINITY, -0.04, 1e300, 1.25).titled("</svg><b>", "a\u{1b}\nb<");
        svg.path(&Path::through([(0.0, 1.0), (2.55, f64::NAN)]).close()).done();
        let text = svg.finish();
        assert_eq!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 10 0\" role=\"img\" \
             aria-label=\"&quot;&gt;&lt;script&gt;\" width=\"10\" height=\"0\"><title>&quot;&gt;&lt;script&gt;</title>\
             <g class=\"a&quot; onload=&quot;x\"><rect x=\"0\" y=\"0\" width=\"1000000\" height=\"1.2\">\
             <title>a\\u001b\\u000ab&lt;</title>&lt;/svg&gt;&lt;b&gt;</rect><path d=\"M0 1L2.5 0Z\"/></g>\n</svg>\n"
        );
    }

    #[test]
    fn what_was_begun_is_ended_and_what_was_drawn_elsewhere_is_inside() {
        let mut inner = Svg::default();
        inner.text(1.0, 2.0).attr("text-anchor", "end").words("x");
        inner.text(1.0, 2.0).maybe("font-size", None::<f64>).words("");
        let mut svg = Svg::inline(5.0, 5.0, "two", "wide");
        svg.element("g").begin();
        svg.append(inner);
        svg.end();
        svg.circle(1.0, 1.0, 0.5).done();
        let text = svg.finish();
        assert!(
            text.starts_with("<svg class=\"wide\" viewBox=\"0 0 5 5\" role=\"img\" aria-label=\"two\"><g>"),
            "{text}"
        );
        assert!(
            text.contains("<text x=\"1\" y=\"2\" text-anchor=\"end\">x</text><text x=\"1\" y=\"2\"/></g>"),
            "{text}"
        );
        assert!(text.ends_with("<circle cx=\"1\" cy=\"1\" r=\"0.5\"/></svg>\n"), "{text}");
    }
}
