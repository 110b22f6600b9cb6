//! Lines over time in dots, bars and sparklines in blocks.

use super::paint::Paint;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{Canvas, Line as Stroke};
use schwann::prof::plot::unit::{Scale, quantity};

/// Columns that the marks of a vertical axis of this unit take.
fn marks(unit: &str) -> u16 {
    if matches!(unit, "flop/s" | "Gflop/s" | "Tflop/s") { 12 } else { 9 }
}

/// A line over time: a value for each half of a column.
pub(super) struct Curve {
    pub(super) values: Vec<Option<f64>>,
    pub(super) style: Style,
}

/// Curves on a common axis from zero on.
pub(super) struct Chart<'a> {
    /// The lower ones come later and are drawn over the upper ones.
    pub(super) curves: Vec<Curve>,
    pub(super) unit: &'a str,
    /// A line at a height, and its name.
    pub(super) limit: Option<f64>,
    /// The greatest value that the axis has at least.
    pub(super) least_top: f64,
    /// Where something happened that counts: one for each column.
    pub(super) events: Option<Vec<bool>>,
    /// What the ends of the time axis are called.
    pub(super) ends: (String, String),
}

/// How many values a curve of this unit needs for an area of this width.
pub(super) fn points(width: u16, unit: &str) -> usize {
    columns(width, unit) * 2
}

/// How many columns such an area has for events.
pub(super) fn columns(width: u16, unit: &str) -> usize {
    usize::from(width.saturating_sub(marks(unit)))
}

/// A round number that is not below this one.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|v| *v >= value * 0.999)
        .unwrap_or(value)
}

impl Chart<'_> {
    pub(super) fn draw(&self, area: Rect, buffer: &mut Buffer, paint: Paint) {
        let strip = u16::from(self.events.is_some() && area.height >= 5);
        let marks = marks(self.unit);
        if area.width < marks + 8 || area.height < 3 + strip {
            return;
        }
        let plot = Rect { x: area.x + marks, width: area.width - marks, height: area.height - 1 - strip, ..area };
        let known = self.curves.iter().flat_map(|c| c.values.iter().flatten());
        let greatest = known.copied().fold(self.least_top, f64::max);
        // A limit that is far above would press the lines flat; it is told in words then.
        let shown = self.limit.filter(|limit| *limit <= greatest * 2.5);
        let scale = Scale::of(self.unit, greatest.max(shown.unwrap_or(0.0)));
        let top = round_up(greatest.max(shown.unwrap_or(0.0)) * 1.02 / scale.per) * scale.per;

        self.axis(area, plot, top, shown, buffer, paint);
        let columns = f64::from(plot.width) * 2.0;
        let limit_colour = paint.bad().fg.unwrap_or(Color::Reset);
        Canvas::default()
            .marker(Marker::Braille)
            .x_bounds([0.0, columns - 1.0])
            .y_bounds([0.0, top])
            .paint(|canvas| {
                if let Some(limit) = shown {
                    for x in (0..columns as u32).step_by(6) {
                        let x = f64::from(x);
                        canvas.draw(&Stroke { x1: x, y1: limit, x2: x + 2.0, y2: limit, color: limit_colour });
                    }
                    canvas.layer();
                }
                for curve in &self.curves {
                    let color = curve.style.fg.unwrap_or(Color::Reset);
                    let mut before: Option<(f64, f64)> = None;
                    for (at, value) in curve.values.iter().enumerate() {
                        let here = value.map(|value| (at as f64, value.min(top)));
                        if let Some((x, y)) = here {
                            let (x1, y1) = before.unwrap_or((x, y));
                            canvas.draw(&Stroke { x1, y1, x2: x, y2: y, color });
                        }
                        before = here;
                    }
                    canvas.layer();
                }
            })
            .render(plot, buffer);
        if let Some(events) = self.events.as_ref().filter(|_| strip == 1) {
            let y = plot.bottom();
            buffer.set_stringn(area.x, y, "misses", usize::from(marks), paint.dim());
            for (at, _) in events.iter().enumerate().take(usize::from(plot.width)).filter(|(_, event)| **event) {
                buffer.set_string(plot.x + at as u16, y, "×", paint.bad());
            }
        }
        let y = area.bottom() - 1;
        buffer.set_stringn(plot.x, y, &self.ends.0, usize::from(plot.width), paint.dim());
        let end = super::words::columns(&self.ends.1).min(plot.width);
        buffer.set_stringn(plot.right() - end, y, &self.ends.1, usize::from(end), paint.dim());
    }

    fn axis(&self, area: Rect, plot: Rect, top: f64, limit: Option<f64>, buffer: &mut Buffer, paint: Paint) {
        let mut mark = |value: f64, style: Style| {
            let row = ((1.0 - value / top) * f64::from(plot.height - 1)).round().clamp(0.0, f64::from(plot.height - 1));
            let text = if value == 0.0 { "0".to_owned() } else { quantity(value, self.unit) };
            let width = usize::from(plot.x - area.x);
            let text = super::words::right(&super::words::plain(&text), width - 1);
            buffer.set_stringn(area.x, plot.y + row as u16, text, width, style);
        };
        mark(top, paint.dim());
        if plot.height >= 5 {
            mark(top / 2.0, paint.dim());
        }
        mark(0.0, paint.dim());
        if let Some(limit) = limit {
            mark(limit, paint.bad());
        }
    }
}

/// Values as blocks of eight heights, from 0 to the top or, without one, to the greatest; what never changes is a line, and
/// what is not known a blank.
pub(super) fn spark(values: &[Option<f64>], top: Option<f64>) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let known = || values.iter().flatten().copied();
    let (least, greatest) = (known().fold(f64::INFINITY, f64::min), known().fold(0.0, f64::max));
    if top.is_none() && greatest - least <= greatest.abs() * 1e-3 {
        return values.iter().map(|value| value.map_or(' ', |_| '─')).collect();
    }
    let top = top.unwrap_or(greatest);
    let block = |value: f64| BLOCKS[(value / top * 7.0).round().clamp(0.0, 7.0) as usize];
    values.iter().map(|value| value.map_or(' ', block)).collect()
}

/// A part of 1 as a bar of eighths of columns.
pub(super) fn bar(part: f64, width: usize) -> String {
    const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (part.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let mut out = "█".repeat(eighths / 8);
    if out.chars().count() < width {
        out.push(PARTS[eighths % 8]);
    }
    let used = out.chars().count();
    out + &" ".repeat(width.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_sparklines_are_as_wide_as_asked() {
        for part in [-1.0, 0.0, 0.01, 0.5, 0.99, 1.0, 7.0, f64::NAN] {
            assert_eq!(bar(part, 10).chars().count(), 10, "{part}");
        }
        assert_eq!(bar(0.5, 4), "██  ");
        assert_eq!(spark(&[Some(0.0), None, Some(50.0), Some(100.0), Some(200.0)], Some(100.0)), "▁ ▅██");
        assert_eq!(spark(&[Some(1.0), Some(8.0)], None), "▂█");
        assert_eq!(spark(&[Some(0.0), None, Some(0.0)], None), "─ ─");
    }

    #[test]
    fn an_axis_ends_at_a_round_number() {
        assert_eq!([0.93, 1.2, 187.0, 8.4, 0.0].map(round_up), [1.0, 1.5, 200.0, 10.0, 1.0]);
    }
}
