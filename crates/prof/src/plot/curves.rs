//! Lines over steps: what a training's losses do.

use super::scale::Axis;
use super::unit::brief;
use super::{Anchor, Drawing, Ink, Missing, SMALL, Size};

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What it is.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Which of the colours it has; lines that belong together have one.
    pub color: usize,
    /// Whether it is dashed.
    pub dashed: bool,
}

/// Lines on a logarithmic scale (a linear one where a value is not above 0); numbers that are not finite are left out.
pub fn curves(lines: &[Curve], across: &str, up: &str, size: Size) -> Result<Drawing, Missing> {
    let finite = |p: &&(f64, f64)| p.0.is_finite() && p.1.is_finite();
    let all = || lines.iter().flat_map(|line| line.points.iter().filter(finite));
    if all().count() < 2 {
        return Err(Missing("there are fewer than two points".into()));
    }
    let span = |of: fn(&(f64, f64)) -> f64| {
        let values = || all().map(of);
        (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
    };
    let ((first, last), (least, most)) = (span(|p| p.0), span(|p| p.1));
    let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    let mut d = Drawing::new(size, format!("{up} over {across}: {}", names.join(", ")));
    let legend: Vec<(Ink, &str)> = lines.iter().map(|line| (Ink::Kind(line.color), line.name.as_str())).collect();
    let top = d.legend(4.0, 12.0, size.width, &legend);
    let (left, right, roof, floor) = (56.0, size.width - 14.0, top + 22.0, size.height - 36.0);
    let x = Axis::linear(first, last, left, right);
    let y = match least > 0.0 {
        true => Axis::log(least / 1.2, most * 1.2, floor, roof),
        false => Axis::linear(least.min(0.0), most, floor, roof),
    };
    for tick in y.ticks(5) {
        d.line([(left, y.at(tick)), (right, y.at(tick))], Ink::Grid, 1.0);
        d.text(left - 6.0, y.at(tick) + 4.0, Anchor::End, SMALL, Ink::Muted, brief(tick));
    }
    d.text(4.0, top + 8.0, Anchor::Start, SMALL, Ink::Muted, up);
    d.line([(left, floor), (right, floor)], Ink::Muted, 1.0);
    for tick in x.ticks(if size.is_narrow() { 3 } else { 8 }) {
        d.line([(x.at(tick), floor), (x.at(tick), floor + 4.0)], Ink::Muted, 1.0);
        d.text(x.at(tick), floor + 16.0, Anchor::Middle, SMALL, Ink::Muted, brief(tick));
    }
    d.text(right, floor + 31.0, Anchor::End, SMALL, Ink::Muted, across);
    for line in lines {
        let points: Vec<(f64, f64)> = line.points.iter().filter(finite).map(|p| (x.at(p.0), y.at(p.1))).collect();
        let title = match line.points.iter().rfind(finite) {
            Some((at, value)) => format!("{}: {} at {} {across}", line.name, brief(*value), brief(*at)),
            None => continue,
        };
        let shape = d.line(points, Ink::Kind(line.color), 1.8);
        if line.dashed {
            shape.dashed();
        }
        shape.titled(title);
    }
    Ok(d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_within_the_plot_and_what_is_not_finite_is_left_out() {
        let points = vec![(0.0, 1.0), (10.0, f64::NAN), (20.0, 0.01)];
        let line = Curve { name: "loss".into(), points, color: 0, dashed: false };
        let drawn = curves(std::slice::from_ref(&line), "steps", "loss", Size::WIDE).unwrap();
        let svg = drawn.file();
        assert!(svg.contains("loss: 0.01 at 20 steps") && !svg.contains("NaN"), "{svg}");
        assert!(curves(&[Curve { points: vec![(0.0, 1.0)], ..line }], "steps", "loss", Size::WIDE).is_err());
    }
}
