//! Memory along the plan: what is alive at each step, and who holds the peak.

use super::scale::{Axis, round_up};
use super::unit::{Scale, brief, known, quantity};
use super::{Anchor, Drawing, Ink, Missing, SMALL, Size, clip, text_width};
use crate::Profile;
use crate::profile::MemoryPoint;

/// More steps than pixels cannot be seen; each pixel then shows the most of its steps.
const MOST_STEPS: usize = 1000;
/// Buffers shown one by one at the peak; the rest is one.
const MOST_HOLDERS: usize = 8;

/// Live bytes by step as an area, and the peak's buffers as a stack beside it.
pub fn memory(profile: &Profile, size: Size) -> Result<Drawing, Missing> {
    let timeline: Vec<(&MemoryPoint, f64)> = profile
        .memory
        .timeline
        .iter()
        .filter_map(|p| known(&p.live).filter(|v| *v >= 0.0).map(|live| (p, live)))
        .collect();
    let Some(peak) = timeline.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a }) else {
        let figures = profile.memory.timeline.iter().map(|p| &p.live).chain([&profile.memory.live_peak]);
        return Err(Missing::of("what is alive at each step is not known", figures));
    };
    if peak.1 == 0.0 {
        return Err(Missing("no step leaves anything to a later one but the outputs".into()));
    }
    let every = timeline.len().div_ceil(MOST_STEPS);
    let steps: Vec<(&MemoryPoint, f64)> =
        timeline.chunks(every).filter_map(|c| c.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })).collect();

    let label = format!("Memory over {} steps: at most {}, at {}", timeline.len(), quantity(peak.1, "B"), peak.0.step);
    let mut d = Drawing::new(size, label);
    let holders = &peak.0.holders;
    let stack = if size.is_narrow() || holders.is_empty() { 0.0 } else { (size.width * 0.34).clamp(160.0, 260.0) };
    let (left, right) = (46.0, size.width - 12.0 - stack);
    let (top, floor) = (34.0, size.height - 44.0);
    let arena = known(&profile.memory.arena).filter(|v| *v > 0.0);
    let scale = Scale::of("B", peak.1);
    let highest = round_up(arena.unwrap_or(0.0).max(peak.1) * 1.05 / scale.per) * scale.per;
    let y = Axis::linear(0.0, highest, floor, top);
    for tick in Axis::linear(0.0, highest / scale.per, floor, top).ticks(4) {
        let at = y.at(tick * scale.per);
        d.line([(left, at), (right, at)], Ink::Grid, 1.0);
        d.text(left - 6.0, at + 4.0, Anchor::End, SMALL, Ink::Muted, brief(tick));
    }
    d.text(4.0, 12.0, Anchor::Start, SMALL, Ink::Muted, format!("alive, {}", scale.label));

    let wide = (right - left) / steps.len() as f64;
    let mut points = vec![(left, floor)];
    for (i, (_, live)) in steps.iter().enumerate() {
        let at = left + i as f64 * wide;
        points.extend([(at, y.at(*live)), (at + wide, y.at(*live))]);
    }
    points.push((right, floor));
    d.area(points.clone(), Ink::Kind(2)).faint(0.3);
    d.line(&points[1..points.len() - 1], Ink::Kind(2), 1.6);
    for (i, (point, live)) in steps.iter().enumerate() {
        // Nothing is seen of these; they say what a pointer is on.
        d.rect(left + i as f64 * wide, top, wide, floor - top, Ink::Ground).faint(0.0).titled(format!(
            "{}: {}",
            point.step,
            quantity(*live, "B")
        ));
    }
    step_names(&mut d, &steps, [left, wide, floor, right]);
    d.line([(left, floor), (right, floor)], Ink::Muted, 1.0);
    let peak_at = steps.iter().position(|s| std::ptr::eq(s.0, peak.0)).unwrap_or(0);
    let middle = (left + (peak_at as f64 + 0.5) * wide).clamp(left + 40.0, right - 40.0);
    let words = format!("peak {}", quantity(peak.1, "B"));
    d.text(middle, y.at(peak.1) - 5.0, Anchor::Middle, SMALL, Ink::Text, words).outlined(Ink::Ground, 3.0);
    if let Some(arena) = arena.filter(|a| *a <= highest) {
        d.line([(left, y.at(arena)), (right, y.at(arena))], Ink::Text, 1.2).dashed();
        let words = format!("arena {}", quantity(arena, "B"));
        d.text(right - 2.0, y.at(arena) - 5.0, Anchor::End, SMALL, Ink::Text, words).outlined(Ink::Ground, 3.0);
    }
    if stack > 0.0 {
        holders_stack(&mut d, peak, &scale, [size.width - stack + 14.0, size.width, top, floor]);
    }
    Ok(d)
}

fn step_names(d: &mut Drawing, steps: &[(&MemoryPoint, f64)], [left, wide, floor, right]: [f64; 4]) {
    let fit = steps.iter().all(|s| text_width(&s.0.step, SMALL) < wide - 4.0);
    if fit {
        for (i, (point, _)) in steps.iter().enumerate() {
            let at = left + (i as f64 + 0.5) * wide;
            d.text(at, floor + 16.0, Anchor::Middle, SMALL, Ink::Muted, point.step.as_str());
        }
    } else {
        for tick in Axis::linear(0.0, steps.len() as f64, left, right).ticks(5) {
            if tick.fract() == 0.0 && tick >= 1.0 {
                let at = left + (tick - 0.5) * wide;
                d.text(at, floor + 16.0, Anchor::Middle, SMALL, Ink::Muted, format!("{tick}"));
            }
        }
    }
    d.text(right, floor + 33.0, Anchor::End, SMALL, Ink::Muted, "steps of the plan, in order");
}

/// The buffers at the peak, greatest below.
fn holders_stack(d: &mut Drawing, peak: (&MemoryPoint, f64), scale: &Scale, [left, right, top, floor]: [f64; 4]) {
    d.text(
        left,
        12.0,
        Anchor::Start,
        SMALL,
        Ink::Muted,
        clip(&format!("at the peak, {}", peak.0.step), SMALL, right - left),
    );
    let mut parts: Vec<(&str, f64)> = peak
        .0
        .holders
        .iter()
        .filter_map(|h| known(&h.figure).filter(|v| *v > 0.0).map(|v| (h.name.as_str(), v)))
        .collect();
    let rest: f64 = parts.iter().skip(MOST_HOLDERS).map(|p| p.1).sum();
    parts.truncate(MOST_HOLDERS);
    if rest > 0.0 {
        parts.push(("others", rest));
    }
    let whole: f64 = parts.iter().map(|p| p.1).sum::<f64>().max(1e-30);
    let mut base = floor;
    let mut label = floor + 14.0;
    for (i, (name, bytes)) in parts.iter().enumerate() {
        let high = (floor - top) * bytes / whole;
        base -= high;
        let ink = Ink::Kind(i);
        let title = format!("{name}: {}", quantity(*bytes, "B"));
        d.rect(left, base, 22.0, (high - 1.0).max(0.5), ink).faint(0.85).titled(&title);
        // Labels of thin parts move up so that none hides another.
        label = (base + high / 2.0 + 4.0).min(label - 14.0);
        let number = format!("{} {}", scale.number(*bytes), scale.label);
        let room = right - left - 32.0 - text_width(&number, SMALL) - 10.0;
        let words = format!("{}  {number}", clip(name, SMALL, room));
        d.text(left + 30.0, label, Anchor::Start, SMALL, Ink::Text, words).titled(title);
    }
}
