//! Operations by their time, each beside the least that the machine could do it in.

use super::unit::{Scale, known, quantity, show};
use super::{Anchor, Drawing, Ink, LABEL, Missing, SMALL, Size, clip};
use crate::Profile;
use crate::profile::{Bound, Op};

/// More bars are no picture; the rest is one bar.
const MOST_BARS: usize = 14;
const ROW: f64 = 25.0;

impl Bound {
    pub(crate) const ALL: [Bound; 5] =
        [Bound::Compute, Bound::Functions, Bound::Memory, Bound::Overhead, Bound::Unknown];
}

/// The colour of what limits an operation.
pub(crate) fn bound_ink(bound: Bound) -> Ink {
    match bound {
        Bound::Compute => Ink::Kind(0),
        Bound::Functions => Ink::Kind(3),
        Bound::Memory => Ink::Kind(1),
        Bound::Overhead => Ink::Kind(4),
        Bound::Unknown => Ink::Kind(6),
    }
}

/// What limits an operation, in words.
pub(crate) fn bound_words(bound: Bound) -> &'static str {
    match bound {
        Bound::Compute => "arithmetic",
        Bound::Functions => "functions",
        Bound::Memory => "memory",
        Bound::Overhead => "overhead",
        Bound::Unknown => "unknown",
    }
}

/// Operations, the longest first; those without a time last.
pub(crate) fn by_time(profile: &Profile) -> Vec<&Op> {
    let mut ops: Vec<&Op> = profile.compute.ops.iter().collect();
    let time = |op: &Op| known(&op.self_time).unwrap_or(-1.0);
    ops.sort_by(|a, b| time(b).total_cmp(&time(a)));
    ops
}

/// Self times as bars in the colour of what limits them, with a mark at the least possible time.
pub fn ops(profile: &Profile, size: Size) -> Result<Drawing, Missing> {
    let timed: Vec<(&Op, f64)> =
        by_time(profile).into_iter().filter_map(|op| known(&op.self_time).map(|t| (op, t.max(0.0)))).collect();
    if timed.is_empty() {
        let figures = profile.compute.ops.iter().map(|op| &op.self_time);
        return Err(Missing::of("no operation was timed", figures));
    }
    let bars = if timed.len() > MOST_BARS { MOST_BARS - 1 } else { timed.len() };
    let (shown, rest) = timed.split_at(bars);
    let rows = shown.len() + usize::from(!rest.is_empty());
    let others: f64 = rest.iter().map(|r| r.1).sum();
    let greatest = shown.iter().map(|s| s.1).fold(others, f64::max).max(1e-30);

    let top = 40.0;
    let size = Size { width: size.width, height: top + rows as f64 * ROW + 8.0 };
    let longest = &shown[0];
    let label = format!(
        "{} operations by self time; {} takes longest with {}",
        timed.len(),
        longest.0.name,
        quantity(longest.1, "s")
    );
    let mut d = Drawing::new(size, label);
    let names = if size.is_narrow() { 104.0 } else { (size.width * 0.2).clamp(120.0, 190.0) };
    let (left, right) = (names + 8.0, size.width - if size.is_narrow() { 58.0 } else { 118.0 });
    let scale = Scale::of("s", greatest);
    let long = |time: f64| (right - left) * time / greatest;
    let mut legend: Vec<(Ink, &str)> = Bound::ALL
        .into_iter()
        .filter(|b| shown.iter().any(|s| s.0.bound == *b))
        .map(|b| (bound_ink(b), bound_words(b)))
        .collect();
    if shown.iter().any(|s| known(&s.0.predicted).is_some()) {
        legend.push((Ink::Text, if size.is_narrow() { "least possible" } else { "least possible by the roof" }));
    }
    d.legend(4.0, 14.0, size.width, &legend);

    for (i, (op, time)) in shown.iter().enumerate() {
        let y = top + i as f64 * ROW;
        let title = format!("{} ({}, {}): {} per run", op.name, op.op, op.kernel, show(&op.self_time));
        d.text(names, y + 15.0, Anchor::End, LABEL, Ink::Text, clip(&op.name, LABEL, names - 4.0)).titled(&title);
        d.rect(left, y + 3.0, long(*time).max(1.0), ROW - 8.0, bound_ink(op.bound)).faint(0.85).titled(&title);
        if let Some(least) = known(&op.predicted).filter(|v| *v >= 0.0 && *v <= greatest * 1.02) {
            let at = left + long(least);
            d.line([(at, y), (at, y + ROW - 2.0)], Ink::Text, 2.0).titled(format!(
                "{}: {} at the least",
                op.name,
                quantity(least, "s")
            ));
        }
        let number = with_unit(&scale, *time);
        let edge = (left + long(*time)).max(known(&op.predicted).map_or(0.0, |p| left + long(p.clamp(0.0, greatest))));
        let words = match (size.is_narrow(), known(&op.share)) {
            (false, Some(share)) => format!("{number} · {}", quantity(share, "%")),
            _ => number,
        };
        d.text(edge + 7.0, y + 15.0, Anchor::Start, SMALL + 0.5, Ink::Muted, words);
    }
    if !rest.is_empty() {
        let y = top + shown.len() as f64 * ROW;
        d.text(names, y + 15.0, Anchor::End, LABEL, Ink::Muted, format!("{} others", rest.len()));
        d.rect(left, y + 3.0, long(others).max(1.0), ROW - 8.0, Ink::Kind(6)).faint(0.5);
        let words = with_unit(&scale, others);
        d.text(left + long(others) + 7.0, y + 15.0, Anchor::Start, SMALL + 0.5, Ink::Muted, words);
    }
    Ok(d)
}

fn with_unit(scale: &Scale, time: f64) -> String {
    format!("{}\u{a0}{}", scale.number(time), scale.label)
}
