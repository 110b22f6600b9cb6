//! The roofline: what each operation reaches, under what the machine allows for its work per byte.

use super::ops::{bound_ink, bound_words, by_time};
use super::scale::Axis;
use super::unit::{Scale, brief, known, quantity, show};
use super::{Anchor, Drawing, Ink, LABEL, Missing, SMALL, Size, clip, text_width};
use crate::Profile;
use crate::profile::{Bound, KernelKind, Op};

/// More dots hide each other.
const MOST_DOTS: usize = 300;
const SHORT_OF_ROOM: f64 = 420.0;

struct Dot<'a> {
    op: &'a Op,
    x: f64,
    y: f64,
    radius: f64,
}

/// Rectangles that are taken, so that no label hides another.
#[derive(Default)]
struct Taken(Vec<[f64; 4]>);

impl Taken {
    fn free(&self, [x, y, w, h]: [f64; 4]) -> bool {
        self.0.iter().all(|[a, b, c, d]| x + w < *a || a + c < x || y + h < *b || b + d < y)
    }
}

/// flop/s over flop/B, both logarithmic: operations as dots by their time, the machine's limits as lines.
pub fn roofline(profile: &Profile, size: Size) -> Result<Drawing, Missing> {
    let peak = known(&profile.roof.flops).filter(|v| *v > 0.0);
    let levels: Vec<(&str, f64)> = profile
        .roof
        .bandwidth
        .iter()
        .filter_map(|level| known(&level.figure).filter(|v| *v > 0.0).map(|rate| (level.name.as_str(), rate)))
        .take(8)
        .collect();
    let (Some(peak), false) = (peak, levels.is_empty()) else {
        let figures = profile.roof.bandwidth.iter().map(|level| &level.figure);
        return Err(Missing::of("the machine's limits are not known", figures.chain([&profile.roof.flops])));
    };
    let all: Vec<(&Op, f64, f64)> = by_time(profile)
        .into_iter()
        .filter_map(|op| {
            let (flops, bytes) = (known(&op.gflops)? * 1e9, known(&op.gbps)? * 1e9);
            (flops > 0.0 && bytes > 0.0).then_some((op, flops / bytes, flops))
        })
        .take(MOST_DOTS)
        .collect();
    if all.is_empty() {
        let figures = profile.compute.ops.iter().flat_map(|op| [&op.self_time, &op.gflops]);
        return Err(Missing::of("no operation has both a time and arithmetic", figures));
    }

    // The line of integers only where a dot may lie below it and above that of f32.
    let has_integers = all.iter().any(|p| p.0.kind == KernelKind::IntegerProduct);
    let integers = profile.roof.int8.as_ref().and_then(known).filter(|v| has_integers && *v > 0.0);
    let highest = peak.max(integers.unwrap_or(0.0));
    let narrow = size.width < SHORT_OF_ROOM;
    let label = format!(
        "Roofline of {}: {} operations by flop/s and flop per byte, under {} and {} bandwidths",
        profile.roof.device,
        all.len(),
        quantity(peak, "flop/s"),
        levels.len()
    );
    let mut d = Drawing::new(size, label);
    let (left, right, top, bottom) = (if narrow { 34.0 } else { 48.0 }, 12.0, 44.0, 58.0);
    let least = |of: fn(&(&Op, f64, f64)) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&(&Op, f64, f64)) -> f64| all.iter().map(of).fold(0.0, f64::max);
    let slowest = levels.iter().map(|l| l.1).fold(f64::INFINITY, f64::min);
    let fastest = levels.iter().map(|l| l.1).fold(0.0, f64::max);
    let x = Axis::log(
        (least(|p| p.1) / 2.5).min(peak / fastest / 5.0).max(1e-6),
        (most(|p| p.1) * 2.5).max(highest / slowest * 4.0).min(1e9),
        left,
        size.width - right,
    );
    let (floor, ceiling) =
        ((least(|p| p.2) / 2.5).min(peak / 100.0).max(peak * 1e-9), highest.max(most(|p| p.2)) * 1.9);
    let y = Axis::log(floor, ceiling, size.height - bottom, top);

    for tick in x.ticks(8) {
        let at = x.at(tick);
        d.line([(at, top), (at, size.height - bottom)], Ink::Grid, 1.0);
        d.text(at, size.height - bottom + 15.0, Anchor::Middle, SMALL, Ink::Muted, brief(tick));
    }
    let scale = Scale::of("flop/s", 1e9);
    for tick in y.ticks(6) {
        let at = y.at(tick);
        d.line([(left, at), (size.width - right, at)], Ink::Grid, 1.0);
        d.text(left - 6.0, at + 4.0, Anchor::End, SMALL, Ink::Muted, brief(tick / scale.per));
    }
    d.text(4.0, 12.0, Anchor::Start, SMALL, Ink::Muted, "Gflop/s");
    let words = "arithmetic per byte moved, flop/B";
    d.text(size.width - right, size.height - bottom + 31.0, Anchor::End, SMALL, Ink::Muted, words);

    let mut taken = Taken::default();
    taken.0.push([size.width - right - 150.0, y.at(peak) - 20.0, 150.0, 24.0]);
    taken.0.extend(integers.map(|rate| [size.width - right - 190.0, y.at(rate) - 20.0, 190.0, 24.0]));
    roofs(&mut d, &levels, [peak, highest], (&x, &y), [left, size.width - right, floor], narrow, &mut taken);

    let slowest_op = all.iter().filter_map(|p| known(&p.0.self_time)).fold(0.0, f64::max);
    let dots: Vec<Dot<'_>> = all
        .iter()
        .map(|(op, intensity, flops)| {
            let part = known(&op.self_time).map_or(0.0, |t| t / slowest_op.max(1e-30));
            Dot { op, x: x.at(*intensity), y: y.at(*flops), radius: (part.sqrt() * 15.0).max(3.5) }
        })
        .collect();
    for dot in &dots {
        let op = dot.op;
        let title = format!(
            "{} ({}): {} per run, {} of it; {}, {}; limited by {}",
            op.name,
            op.op,
            show(&op.self_time),
            show(&op.share),
            show(&op.gflops),
            show(&op.gbps),
            bound_words(op.bound)
        );
        d.circle(dot.x, dot.y, dot.radius, bound_ink(op.bound)).faint(0.72).outlined(Ink::Ground, 1.2).titled(title);
    }
    names(&mut d, &dots, [left, size.width - right], if narrow { 5 } else { 9 }, taken);

    let bounds: Vec<(Ink, &str)> = Bound::ALL
        .into_iter()
        .filter(|b| all.iter().any(|p| p.0.bound == *b))
        .map(|b| (bound_ink(b), bound_words(b)))
        .collect();
    d.legend(left, 28.0, size.width - right, &bounds);
    let idle: Vec<&str> = by_time(profile)
        .into_iter()
        .filter(|op| known(&op.flops) == Some(0.0))
        .map(|op| op.name.as_str())
        .take(20)
        .collect();
    if !idle.is_empty() {
        let words = format!("without arithmetic, so not here: {}", idle.join(", "));
        let room = size.width - 8.0;
        d.text(4.0, size.height - 8.0, Anchor::Start, SMALL, Ink::Muted, clip(&words, SMALL, room)).titled(words);
    }
    Ok(d)
}

/// The sloped lines of the levels, up to the highest flat one: that of arithmetic, or of 8-bit integers above it.
fn roofs(
    d: &mut Drawing,
    levels: &[(&str, f64)],
    [peak, highest]: [f64; 2],
    (x, y): (&Axis, &Axis),
    [left, right, floor]: [f64; 3],
    narrow: bool,
    taken: &mut Taken,
) {
    let fastest = levels.iter().map(|l| l.1).fold(0.0, f64::max);
    for (name, rate) in levels {
        let ridge = highest / rate;
        // From where the line enters the plot: at its bottom or at its left side.
        let mut start = (floor / rate).max(1e-12);
        if x.at(start) <= left {
            start = unscaled(x, left).unwrap_or(start).max(start);
        }
        d.line([(x.at(start), y.at(start * rate)), (x.at(ridge), y.at(highest))], Ink::Muted, 1.3)
            .titled(format!("{name}: {}", quantity(*rate, "B/s")));
        // Names stand on their lines, a little way up, or further up where another line's name is.
        let words = if narrow { (*name).to_owned() } else { format!("{name} {}", quantity(*rate, "B/s")) };
        let wide = text_width(&words, SMALL) * 1.1;
        let places = [0.16, 0.34, 0.52, 0.7].map(|part| {
            let at = start * (ridge / start).powf(part);
            (x.at(at) + 7.0, y.at(at * rate) + 4.0)
        });
        let free = |(from, base): &(f64, f64)| taken.free([*from, base - SMALL, wide, SMALL + 3.0]);
        if let Some((from, base)) = places.into_iter().find(free) {
            taken.0.push([from, base - SMALL, wide, SMALL + 3.0]);
            d.text(from, base, Anchor::Start, SMALL, Ink::Muted, words).outlined(Ink::Ground, 3.0);
        }
    }
    d.line([(x.at(peak / fastest), y.at(peak)), (right, y.at(peak))], Ink::Text, 1.5);
    let words = format!("arithmetic {}", quantity(peak, "flop/s"));
    d.label(right, y.at(peak) - 7.0, Anchor::End, Ink::Text, words);
    if highest > peak {
        d.line([(x.at(highest / fastest), y.at(highest)), (right, y.at(highest))], Ink::Text, 1.5);
        let words = format!("8-bit integers {}", quantity(highest, "op/s"));
        d.label(right, y.at(highest) - 7.0, Anchor::End, Ink::Text, words);
    }
}

/// The number that lies at a pixel of a logarithmic axis, by halving.
fn unscaled(axis: &Axis, pixel: f64) -> Option<f64> {
    let (mut low, mut high) = (-12.0f64, 12.0f64);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if axis.at(10f64.powf(middle)) <= pixel { low = middle } else { high = middle }
    }
    Some(10f64.powf(high)).filter(|v| v.is_finite())
}

/// Names beside the dots that take longest, as far as there is room.
fn names(d: &mut Drawing, dots: &[Dot<'_>], [left, right]: [f64; 2], most: usize, mut taken: Taken) {
    taken.0.extend(dots.iter().take(40).map(|dot| {
        let r = dot.radius * 0.8;
        [dot.x - r, dot.y - r, 2.0 * r, 2.0 * r]
    }));
    for dot in dots.iter().take(most) {
        let words = clip(&dot.op.name, LABEL, 130.0);
        let (wide, high) = (text_width(&words, LABEL) * 1.05, LABEL);
        let gap = dot.radius + 4.0;
        let places = [
            (dot.x + gap, dot.y + 4.0, Anchor::Start, dot.x + gap),
            (dot.x - gap, dot.y + 4.0, Anchor::End, dot.x - gap - wide),
            (dot.x, dot.y - gap, Anchor::Middle, dot.x - wide / 2.0),
            (dot.x, dot.y + gap + 9.0, Anchor::Middle, dot.x - wide / 2.0),
            (dot.x + gap, dot.y - gap + 4.0, Anchor::Start, dot.x + gap),
            (dot.x + gap, dot.y + gap + 4.0, Anchor::Start, dot.x + gap),
        ];
        let place = places.into_iter().find(|(_, y, _, from)| {
            *from >= left && from + wide <= right && taken.free([*from, y - high, wide, high + 3.0])
        });
        if let Some((at, y, anchor, from)) = place {
            taken.0.push([from, y - high, wide, high + 3.0]);
            d.label(at, y, anchor, Ink::Text, words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use crate::plot::Form;

    #[test]
    fn levels_of_one_speed_have_their_names_apart() {
        let mut profile = example::profile();
        let first = profile.roof.bandwidth[0].figure.clone();
        profile.roof.bandwidth.iter_mut().for_each(|level| level.figure = first.clone());
        let d = roofline(&profile, Size::WIDE).unwrap();
        let named = |name: &str| {
            d.shapes.iter().find_map(|s| match &s.form {
                Form::Text(x, y, _, _, words) if words.starts_with(&format!("{name} ")) => Some((*x, *y)),
                _ => None,
            })
        };
        let places: Vec<(f64, f64)> = profile.roof.bandwidth.iter().filter_map(|level| named(&level.name)).collect();
        assert!(places.len() > 1, "{places:?}");
        for (i, a) in places.iter().enumerate() {
            assert!(places[..i].iter().all(|b| (a.1 - b.1).abs() > SMALL || (a.0 - b.0).abs() > 60.0), "{places:?}");
        }
    }
}
