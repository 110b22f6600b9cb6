//! A drawing as SVG: in a page, or as a file of its own.

use super::{Anchor, Drawing, Form, Ink, Shape};
use schwann_core::svg::{Path, Svg};

/// Fonts in the order of preference; the last is there everywhere.
const FONTS: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

pub(crate) use schwann_core::show::xml as escape;

impl Drawing {
    /// For a page: inks are the page's CSS variables, fonts are its fonts.
    pub fn inline(&self, class: &str) -> String {
        let mut svg = Svg::inline(self.size.width, self.size.height, &self.label, class);
        self.shapes.iter().for_each(|shape| shape.write(&mut svg, &Ink::css));
        svg.finish()
    }

    /// A file: light colours, a ground, and nothing else needed.
    pub fn file(&self) -> String {
        let rgb = |ink: Ink| {
            let [r, g, b] = ink.rgb();
            format!("#{r:02x}{g:02x}{b:02x}")
        };
        let (width, height) = (self.size.width, self.size.height);
        let mut svg = Svg::file(width, height, &self.label);
        svg.rect(0.0, 0.0, width, height).attr("fill", rgb(Ink::Ground)).done();
        svg.element("g").attr("font-family", FONTS).begin();
        self.shapes.iter().for_each(|shape| shape.write(&mut svg, &rgb));
        svg.finish()
    }
}

impl Shape {
    fn write(&self, svg: &mut Svg, color: &dyn Fn(Ink) -> String) {
        let (element, words) = match &self.form {
            Form::Rect([x, y, w, h]) => (svg.rect(*x, *y, *w, *h), ""),
            Form::Circle(x, y, r) => (svg.circle(*x, *y, *r), ""),
            Form::Path(points, closed) => {
                let path = Path::through(points.iter().copied());
                (svg.path(&if *closed { path.close() } else { path }), "")
            }
            Form::Text(x, y, anchor, size, words) => {
                let anchor = match anchor {
                    Anchor::Start => None,
                    Anchor::Middle => Some("middle"),
                    Anchor::End => Some("end"),
                };
                (svg.text(*x, *y).attr("font-size", *size).maybe("text-anchor", anchor), words.as_str())
            }
        };
        let opacity = self.fill.filter(|(_, opacity)| *opacity < 1.0).map(|(_, opacity)| format!("{opacity:.2}"));
        let fill = self.fill.map_or("none".into(), |(ink, _)| color(ink));
        let mut element = element.attr("fill", fill).maybe("fill-opacity", opacity);
        if let Some((ink, width)) = self.stroke {
            element = element.attr("stroke", color(ink)).attr("stroke-width", width).attr("stroke-linejoin", "round");
            element = element.maybe("paint-order", (!words.is_empty()).then_some("stroke"));
        }
        element.maybe("stroke-dasharray", self.dashed.then_some("5 3")).titled(words, &self.title);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Size;

    #[test]
    fn names_cannot_become_markup() {
        let mut drawing = Drawing::new(Size::HALF, "\"><script>alert(1)</script>");
        drawing.text(0.0, 0.0, Anchor::Start, 12.0, Ink::Text, "</svg><img onerror=x>").titled("a\0b\u{1b}'c");
        for text in [drawing.inline("wide"), drawing.file()] {
            assert!(!text.contains("<script") && !text.contains("<img") && !text.contains('\0'), "{text}");
            assert_eq!(text.matches("</svg>").count(), 1);
        }
    }

    #[test]
    fn numbers_without_end_stay_inside_the_form() {
        let mut drawing = Drawing::new(Size::HALF, "odd");
        drawing.rect(f64::NAN, f64::INFINITY, 1e300, -1.0, Ink::Good);
        let text = drawing.file();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
