//! How long runs take: how often each time came, and the marks that the profile gives.

use super::scale::{Axis, round_up};
use super::unit::{Scale, brief, known, quantity, show};
use super::{Anchor, Drawing, Ink, Missing, SMALL, Size, text_width};
use crate::Profile;

const FEWEST_BINS: f64 = 8.0;
/// Times farther from the middle half than this many times its width share one bar at the end.
const FAR: f64 = 6.0;

/// The samples' times; what lies far out is one bar of its own, so that the rest keeps its form.
pub fn histogram(profile: &Profile, size: Size) -> Result<Drawing, Missing> {
    let c = &profile.compute;
    let mut times: Vec<f64> =
        c.samples.values.iter().flatten().copied().filter(|v| v.is_finite() && *v >= 0.0).collect();
    if times.is_empty() {
        let reason = c.samples.reason.as_deref().unwrap_or("the profile holds no samples");
        return Err(Missing(format!("no run was timed: {reason}")));
    }
    times.sort_by(f64::total_cmp);
    let quarter = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let middle = (quarter(0.75) - quarter(0.25)).max(quarter(0.5) * 1e-3);
    let (low, last) = (times[0], times[times.len() - 1]);
    let far = quarter(0.75) + FAR * middle;
    let beyond = times.iter().filter(|t| **t > far).count();
    let high = if beyond > 0 { far } else { last };
    // Freedman and Diaconis: bins as wide as the spread and the count of samples bear.
    let width = 2.0 * middle / (times.len() as f64).cbrt();
    let most_bins = (size.width / 9.0).min(60.0);
    let bins = ((high - low) / width.max(1e-18)).ceil().clamp(FEWEST_BINS, most_bins.max(FEWEST_BINS)) as usize;
    let mut counts = vec![0usize; bins];
    for time in times.iter().filter(|t| **t <= high) {
        let part = if high > low { (time - low) / (high - low) } else { 0.5 };
        counts[((part * bins as f64) as usize).min(bins - 1)] += 1;
    }

    let label = format!(
        "Histogram of {} samples from {} to {}; median {}",
        times.len(),
        quantity(low, "s"),
        quantity(last, "s"),
        show(&c.time_p50)
    );
    let mut d = Drawing::new(size, label);
    let (left, top, floor) = (38.0, 62.0, size.height - 40.0);
    let tail = if beyond > 0 { 54.0 } else { 0.0 };
    let right = size.width - 12.0 - tail;
    let x = Axis::linear(low, high, left, right);
    let greatest = counts.iter().copied().max().unwrap_or(1).max(beyond);
    let y = Axis::linear(0.0, round_up(greatest as f64 * 1.02), floor, top);
    for tick in y.ticks(4).into_iter().filter(|t| t.fract() == 0.0) {
        d.line([(left, y.at(tick)), (size.width - 12.0, y.at(tick))], Ink::Grid, 1.0);
        d.text(left - 6.0, y.at(tick) + 4.0, Anchor::End, SMALL, Ink::Muted, brief(tick));
    }
    d.text(4.0, 12.0, Anchor::Start, SMALL, Ink::Muted, "samples");
    let scale = Scale::of("s", high);
    let about = ((right - left) / 80.0) as usize;
    for tick in Axis::linear(low / scale.per, high / scale.per, left, right).ticks(about.max(2)) {
        let at = x.at(tick * scale.per);
        d.line([(at, floor), (at, floor + 4.0)], Ink::Muted, 1.0);
        d.text(at, floor + 16.0, Anchor::Middle, SMALL, Ink::Muted, brief(tick));
    }
    let unit = format!("time of a run, {}", scale.label);
    d.text(right, floor + 32.0, Anchor::End, SMALL, Ink::Muted, unit);

    let wide = (right - left) / bins as f64;
    for (i, count) in counts.iter().enumerate().filter(|c| *c.1 > 0) {
        let from = low + (high - low) * i as f64 / bins as f64;
        let to = low + (high - low) * (i + 1) as f64 / bins as f64;
        let top = y.at(*count as f64);
        let gap = if wide > 5.0 { 1.0 } else { 0.0 };
        d.rect(left + i as f64 * wide, top, wide - gap, floor - top, Ink::Kind(0)).faint(0.8).titled(format!(
            "{count} samples from {} to {}",
            quantity(from, "s"),
            quantity(to, "s")
        ));
    }
    if beyond > 0 {
        let at = y.at(beyond as f64).min(floor - 1.5);
        let words = format!("{beyond} samples beyond {}, up to {}", quantity(high, "s"), quantity(last, "s"));
        d.rect(right + 20.0, at, 22.0, floor - at, Ink::Kind(6)).faint(0.8).titled(&words);
        let words = format!("> {}", scale.number(high));
        d.text(right + 31.0, floor + 16.0, Anchor::Middle, SMALL, Ink::Muted, words);
        d.text(right + 16.0, floor - 4.0, Anchor::End, SMALL, Ink::Muted, beyond.to_string())
            .outlined(Ink::Ground, 3.0);
    }
    d.line([(left, floor), (size.width - 12.0, floor)], Ink::Muted, 1.0);

    // Marks come from the profile; labels stand one above another, so that near ones can both be read.
    for (i, (name, figure)) in
        [("p50", &c.time_p50), ("p95", &c.time_p95), ("p99", &c.time_p99)].into_iter().enumerate()
    {
        let Some(time) = known(figure) else { continue };
        let at = if time > high && beyond > 0 { right + 31.0 } else { x.at(time) };
        let up = 26.0 + 14.0 * (2 - i) as f64 - 14.0;
        d.line([(at, up + 3.0), (at, floor)], Ink::Text, 1.3)
            .dashed()
            .titled(format!("{name}: {}", quantity(time, "s")));
        let words = format!("{name} {}", quantity(time, "s"));
        let room = at + 5.0 + text_width(&words, SMALL) * 1.08 < size.width;
        let (at, anchor) = if room { (at + 5.0, Anchor::Start) } else { (at - 5.0, Anchor::End) };
        d.text(at, up + 10.0, anchor, SMALL, Ink::Text, words).outlined(Ink::Ground, 3.0);
    }
    Ok(d)
}
