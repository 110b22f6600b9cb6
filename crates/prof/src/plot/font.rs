//! The font inside the program: how wide words are, and the outlines that a PNG is painted with.
//!
//! `roboto.ttf` is Roboto Regular 2.138 (copyright 2011 Google Inc., Apache License 2.0), cut down to Latin, Greek,
//! Cyrillic, punctuation and some signs, without hinting and layout tables. It is a file here and not a crate, since the
//! crates that carry fonts are either whole families or have not been kept. Pages and SVG files use the reader's own
//! fonts, whose widths are near enough.

use std::sync::LazyLock;
use ttf_parser::{Face, GlyphId, OutlineBuilder};

static FACE: LazyLock<Option<Face<'static>>> = LazyLock::new(|| Face::parse(include_bytes!("roboto.ttf"), 0).ok());

/// A glyph's width where there is no font: that of most letters.
const USUAL: f64 = 0.55;

fn glyph(face: &Face<'_>, c: char) -> GlyphId {
    face.glyph_index(c).unwrap_or(GlyphId(0))
}

fn advance(face: &Face<'_>, glyph: GlyphId) -> f64 {
    f64::from(face.glyph_hor_advance(glyph).unwrap_or_default()) / f64::from(face.units_per_em())
}

/// How wide a text is, in the unit of its size.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    let one = |c: char| FACE.as_ref().map_or(USUAL, |face| advance(face, glyph(face, c)));
    text.chars().map(one).sum::<f64>() * size
}

/// A text cut to a width, with an ellipsis where it was cut; nothing where not even that has room.
pub(crate) fn clip(text: &str, size: f64, room: f64) -> String {
    // Other fonts are up to a tenth wider than ours.
    let room = room / 1.08;
    // A long text is cut before it is measured: names come from files.
    let most = (room / size * 5.0).max(0.0) as usize;
    let short: String = text.chars().take(most).collect();
    if short.len() == text.len() && width(text, size) <= room {
        return short;
    }
    let mut cut = short;
    while !cut.is_empty() && width(&cut, size) + width("…", size) > room {
        cut.pop();
    }
    if cut.trim_end().is_empty() { String::new() } else { format!("{}…", cut.trim_end()) }
}

/// Draws a text's outline into a builder that knows where each glyph begins; y goes down.
pub(super) fn outline(text: &str, x: f64, y: f64, size: f64, out: &mut impl FnMut(Stroke)) {
    let Some(face) = FACE.as_ref() else { return };
    let scale = size / f64::from(face.units_per_em());
    let mut at = x;
    for c in text.chars() {
        let id = glyph(face, c);
        face.outline_glyph(id, &mut Pen { x: at, y, scale, out });
        at += advance(face, id) * size;
    }
}

/// A stroke of a glyph's outline.
pub(super) enum Stroke {
    Move([f32; 2]),
    Line([f32; 2]),
    Quad([f32; 4]),
    Cubic([f32; 6]),
    Close,
}

struct Pen<'a, F: FnMut(Stroke)> {
    x: f64,
    y: f64,
    scale: f64,
    out: &'a mut F,
}

impl<F: FnMut(Stroke)> Pen<'_, F> {
    fn at(&self, x: f32, y: f32) -> [f32; 2] {
        [(self.x + f64::from(x) * self.scale) as f32, (self.y - f64::from(y) * self.scale) as f32]
    }
}

impl<F: FnMut(Stroke)> OutlineBuilder for Pen<'_, F> {
    fn move_to(&mut self, x: f32, y: f32) {
        let at = self.at(x, y);
        (self.out)(Stroke::Move(at));
    }
    fn line_to(&mut self, x: f32, y: f32) {
        let at = self.at(x, y);
        (self.out)(Stroke::Line(at));
    }
    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ([a, b], [c, d]) = (self.at(x1, y1), self.at(x, y));
        (self.out)(Stroke::Quad([a, b, c, d]));
    }
    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ([a, b], [c, d], [e, f]) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        (self.out)(Stroke::Cubic([a, b, c, d, e, f]));
    }
    fn close(&mut self) {
        (self.out)(Stroke::Close);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_font_has_every_letter_that_plots_write() {
        let face = FACE.as_ref().unwrap();
        for c in "0123456789 azAZ·×µ–−≤≥…%/()⁻⁰¹²³⁴⁵⁶⁷⁸⁹\u{202f}\u{a0}".chars() {
            assert!(face.glyph_index(c).is_some(), "{c:?}");
        }
    }

    #[test]
    fn a_long_name_is_cut_to_its_room() {
        assert_eq!(clip("backbone", 12.0, 200.0), "backbone");
        let cut = clip(&"w".repeat(100_000), 12.0, 60.0);
        assert!(cut.ends_with('…') && width(&cut, 12.0) <= 60.0, "{cut}");
        assert_eq!(clip("backbone", 12.0, 2.0), "");
        assert_eq!(clip("backbone", 12.0, -5.0), "");
    }
}
