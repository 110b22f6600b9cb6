//! A drawing as SVG: in a page, or as a file of its own.

use super::{Anchor, Drawing, Form, Ink, Shape};
use std::fmt::{self, Write};

/// Fonts in the order of preference; the last is there everywhere.
const FONTS: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

pub(crate) use schwann_core::show::xml as escape;

/// A coordinate in as few characters as a tenth of a pixel needs.
fn px(value: f64) -> String {
    let value = if value.is_finite() { value.clamp(-1e5, 1e5) } else { 0.0 };
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".into(),
        Some(whole) => whole.into(),
        None => text,
    }
}

impl Drawing {
    /// For a page: inks are the page's CSS variables, fonts are its fonts.
    pub fn inline(&self, class: &str) -> String {
        let head = format!("class=\"{}\"", escape(class));
        self.write(&head, &Ink::css).unwrap_or_default()
    }

    /// A file: light colours, a ground, and nothing else needed.
    pub fn file(&self) -> String {
        let head = format!(
            "xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"{FONTS}\"",
            px(self.size.width),
            px(self.size.height)
        );
        let rgb = |ink: Ink| {
            let [r, g, b] = ink.rgb();
            format!("#{r:02x}{g:02x}{b:02x}")
        };
        self.write(&head, &rgb).unwrap_or_default()
    }

    fn write(&self, head: &str, color: &dyn Fn(Ink) -> String) -> Result<String, fmt::Error> {
        let mut out = String::new();
        let (w, h) = (px(self.size.width), px(self.size.height));
        let label = escape(&self.label);
        write!(out, "<svg {head} viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{label}\">")?;
        if head.starts_with("xmlns") {
            write!(out, "<title>{label}</title><rect width=\"{w}\" height=\"{h}\" fill=\"{}\"/>", color(Ink::Ground))?;
        }
        for shape in &self.shapes {
            shape.write(&mut out, color)?;
        }
        out += "</svg>";
        Ok(out)
    }
}

impl Shape {
    fn write(&self, out: &mut String, color: &dyn Fn(Ink) -> String) -> fmt::Result {
        let name = match &self.form {
            Form::Rect([x, y, w, h]) => {
                let (x, y, w, h) = (px(*x), px(*y), px(*w), px(*h));
                write!(out, "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"")?;
                "rect"
            }
            Form::Circle(x, y, r) => {
                write!(out, "<circle cx=\"{}\" cy=\"{}\" r=\"{}\"", px(*x), px(*y), px(*r))?;
                "circle"
            }
            Form::Path(points, closed) => {
                *out += "<path d=\"";
                for (i, (x, y)) in points.iter().enumerate() {
                    write!(out, "{}{} {}", if i == 0 { 'M' } else { 'L' }, px(*x), px(*y))?;
                }
                *out += if *closed { "Z\"" } else { "\"" };
                "path"
            }
            Form::Text(x, y, anchor, size, _) => {
                write!(out, "<text x=\"{}\" y=\"{}\" font-size=\"{}\"", px(*x), px(*y), px(*size))?;
                match anchor {
                    Anchor::Start => {}
                    Anchor::Middle => *out += " text-anchor=\"middle\"",
                    Anchor::End => *out += " text-anchor=\"end\"",
                }
                "text"
            }
        };
        match self.fill {
            Some((ink, opacity)) => {
                write!(out, " fill=\"{}\"", color(ink))?;
                if opacity < 1.0 {
                    write!(out, " fill-opacity=\"{opacity:.2}\"")?;
                }
            }
            None => *out += " fill=\"none\"",
        }
        if let Some((ink, width)) = self.stroke {
            write!(out, " stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"", color(ink), px(width))?;
            if name == "text" {
                *out += " paint-order=\"stroke\"";
            }
        }
        if self.dashed {
            *out += " stroke-dasharray=\"5 3\"";
        }
        let words = match &self.form {
            Form::Text(.., words) => escape(words),
            _ => String::new(),
        };
        if self.title.is_empty() && words.is_empty() {
            *out += "/>";
            return Ok(());
        }
        *out += ">";
        if !self.title.is_empty() {
            write!(out, "<title>{}</title>", escape(&self.title))?;
        }
        write!(out, "{words}</{name}>")
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
