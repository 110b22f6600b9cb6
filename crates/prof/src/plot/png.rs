//! A drawing as PNG, painted without fonts or programs of the machine.

use super::font::{self, Stroke as Pen};
use super::{Anchor, Drawing, Form, Ink, Shape};
use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash, Transform,
};

/// Why a picture could not be painted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaintError {
    /// Its size is zero, or more than memory has place for.
    #[error("a picture of {width} × {height} pixels cannot be painted: expected 1 to {} each", MOST_PIXELS)]
    Size {
        /// Pixels from left to right.
        width: u32,
        /// Pixels from top to bottom.
        height: u32,
    },
    /// The pixels could not be written as PNG.
    #[error("cannot write the PNG: {0}")]
    Encode(String),
}

/// No side of a picture is longer.
const MOST_PIXELS: u32 = 16_384;

impl Drawing {
    /// As PNG, with so many dots for each pixel of the drawing (2 for screens of today).
    pub fn png(&self, dots: f32) -> Result<Vec<u8>, PaintError> {
        // A cast of a float to an integer is bounded, so that nonsense ends up as a size that is refused.
        let side = |pixels: f64| (pixels * f64::from(dots)).round() as u32;
        let (width, height) = (side(self.size.width), side(self.size.height));
        let wrong = PaintError::Size { width, height };
        if width > MOST_PIXELS || height > MOST_PIXELS {
            return Err(wrong);
        }
        let mut pixels = Pixmap::new(width, height).ok_or(wrong)?;
        pixels.fill(color(Ink::Ground, 1.0));
        for shape in &self.shapes {
            shape.paint(&mut pixels, Transform::from_scale(dots, dots));
        }
        pixels.encode_png().map_err(|e| PaintError::Encode(e.to_string()))
    }
}

fn color(ink: Ink, opacity: f64) -> Color {
    let [r, g, b] = ink.rgb();
    Color::from_rgba8(r, g, b, (opacity.clamp(0.0, 1.0) * 255.0).round() as u8)
}

impl Shape {
    fn path(&self) -> Option<Path> {
        match &self.form {
            Form::Rect([x, y, w, h]) => {
                Rect::from_xywh(*x as f32, *y as f32, *w as f32, *h as f32).map(PathBuilder::from_rect)
            }
            Form::Circle(x, y, r) => PathBuilder::from_circle(*x as f32, *y as f32, *r as f32),
            Form::Path(points, closed) => {
                let mut path = PathBuilder::new();
                for (i, (x, y)) in points.iter().enumerate() {
                    match i {
                        0 => path.move_to(*x as f32, *y as f32),
                        _ => path.line_to(*x as f32, *y as f32),
                    }
                }
                if *closed {
                    path.close();
                }
                path.finish()
            }
            Form::Text(x, y, anchor, size, words) => {
                let before = match anchor {
                    Anchor::Start => 0.0,
                    Anchor::Middle => font::width(words, *size) / 2.0,
                    Anchor::End => font::width(words, *size),
                };
                let mut path = PathBuilder::new();
                font::outline(words, x - before, *y, *size, &mut |stroke| match stroke {
                    Pen::Move([x, y]) => path.move_to(x, y),
                    Pen::Line([x, y]) => path.line_to(x, y),
                    Pen::Quad([a, b, x, y]) => path.quad_to(a, b, x, y),
                    Pen::Cubic([a, b, c, d, x, y]) => path.cubic_to(a, b, c, d, x, y),
                    Pen::Close => path.close(),
                });
                path.finish()
            }
        }
    }

    fn paint(&self, pixels: &mut Pixmap, at: Transform) {
        let Some(path) = self.path() else { return };
        let brush = |ink: Ink, opacity: f64| {
            let mut paint = Paint { anti_alias: true, ..Paint::default() };
            paint.set_color(color(ink, opacity));
            paint
        };
        let fill = |pixels: &mut Pixmap| {
            if let Some((ink, opacity)) = self.fill {
                pixels.fill_path(&path, &brush(ink, opacity), FillRule::Winding, at, None);
            }
        };
        let text = matches!(self.form, Form::Text(..));
        if !text {
            fill(pixels);
        }
        if let Some((ink, width)) = self.stroke {
            let dash = if self.dashed { StrokeDash::new(vec![5.0, 3.0], 0.0) } else { None };
            let (line_cap, line_join) = (LineCap::Butt, LineJoin::Round);
            let stroke = Stroke { width: width as f32, line_cap, line_join, dash, ..Stroke::default() };
            pixels.stroke_path(&path, &brush(ink, 1.0), &stroke, at, None);
        }
        // A text's outline is its seam, which lies under it.
        if text {
            fill(pixels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Size;

    #[test]
    fn words_are_painted_without_fonts_of_the_machine() {
        let size = Size { width: 80.0, height: 20.0 };
        let blank = Drawing::new(size, "blank").png(1.0).unwrap();
        let mut drawing = Drawing::new(size, "words");
        drawing.text(4.0, 15.0, Anchor::Start, 14.0, Ink::Text, "gemm");
        let pixels = Pixmap::decode_png(&drawing.png(1.0).unwrap()).unwrap();
        assert_eq!((pixels.width(), pixels.height()), (80, 20));
        let dark = pixels.pixels().iter().filter(|p| p.red() < 128).count();
        assert!((40..600).contains(&dark), "{dark} dark pixels");
        let blank = Pixmap::decode_png(&blank).unwrap();
        assert!(blank.pixels().iter().all(|p| p.red() == 255));
    }

    #[test]
    fn a_size_that_no_memory_holds_is_refused() {
        for size in [Size { width: 1e9, height: 1.0 }, Size { width: f64::NAN, height: 5.0 }] {
            assert!(matches!(Drawing::new(size, "odd").png(2.0), Err(PaintError::Size { .. })));
        }
    }
}
