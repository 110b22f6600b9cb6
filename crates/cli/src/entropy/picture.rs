//! The curve as a picture: the mean of each piece of the file, and around it what its windows reach from the least to the
//! most.

use super::{Curve, page::spread};
use schwann::plan::bytes;
use schwann::prof::plot::{Anchor, Drawing, Ink, Size};

/// Pieces of the file from left to right, where there are so many windows.
const COLUMNS: usize = 900;
const SIZE: Size = Size { width: 1000.0, height: 330.0 };
/// The ends of both axes, in pixels.
const LEFT: f64 = 46.0;
const RIGHT: f64 = 980.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 282.0;
const SMALL: f64 = 11.0;
/// Marks along the file.
const MARKS: u64 = 8;

pub(super) fn draw(curve: &Curve) -> Drawing {
    let many = curve.entropy.len();
    let label = format!("Entropy of {}: {many} windows, {:.3} as a whole", curve.name, curve.whole);
    let mut d = Drawing::new(SIZE, label);
    let height = |entropy: f64| BOTTOM - entropy * (BOTTOM - TOP);
    let across = |offset: u64| LEFT + (RIGHT - LEFT) * offset as f64 / curve.bytes as f64;

    d.text(4.0, 16.0, Anchor::Start, SMALL, Ink::Muted, "entropy of a window: bits a byte, divided by 8");
    let form = match many > COLUMNS {
        true => "line: mean of neighbouring windows; band: least to most; dashed: the whole file",
        false => "line: each window; dashed: the whole file",
    };
    d.text(RIGHT, 16.0, Anchor::End, SMALL, Ink::Muted, form);
    for mark in [0.0, 0.25, 0.5, 0.75, 1.0] {
        d.line([(LEFT, height(mark)), (RIGHT, height(mark))], Ink::Grid, 1.0);
        d.text(LEFT - 6.0, height(mark) + 4.0, Anchor::End, SMALL, Ink::Muted, format!("{mark}"));
    }
    for mark in mark_offsets(curve.bytes) {
        let x = across(mark);
        d.line([(x, BOTTOM), (x, BOTTOM + 4.0)], Ink::Muted, 1.0);
        let words = if mark == 0 { "0".into() } else { bytes(mark).replace(".00 ", " ").replace(".0 ", " ") };
        d.text(x, BOTTOM + 17.0, Anchor::Middle, SMALL, Ink::Muted, words);
    }
    d.text(
        RIGHT,
        BOTTOM + 34.0,
        Anchor::End,
        SMALL,
        Ink::Muted,
        format!("offset in the file ({})", bytes(curve.bytes)),
    );
    d.line([(LEFT, BOTTOM), (RIGHT, BOTTOM)], Ink::Muted, 1.0);

    // A step for each window, or for each of so many groups of neighbours.
    let (mut upper, mut lower, mut mean) = (vec![], vec![], vec![]);
    let columns = many.min(COLUMNS);
    for windows in spread(many, columns) {
        let left = across(curve.offset(windows.start));
        let right = if windows.end < many { across(curve.offset(windows.end)) } else { RIGHT };
        let part = &curve.entropy[windows];
        let least = part.iter().copied().fold(f32::INFINITY, f32::min);
        let most = part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let middle = part.iter().map(|e| f64::from(*e)).sum::<f64>() / part.len() as f64;
        for x in [left, right] {
            upper.push((x, height(f64::from(most))));
            lower.push((x, height(f64::from(least))));
            mean.push((x, height(middle)));
        }
    }
    lower.reverse();
    if many > COLUMNS {
        d.area([upper, lower].concat(), Ink::Kind(0)).faint(0.25);
    } else {
        let floor = [(RIGHT, BOTTOM), (LEFT, BOTTOM)];
        d.area([mean.clone(), floor.to_vec()].concat(), Ink::Kind(0)).faint(0.12);
    }
    d.line(mean, Ink::Kind(0), 1.4);
    let whole = height(curve.whole);
    d.line([(LEFT, whole), (RIGHT, whole)], Ink::Kind(1), 1.2).dashed();
    d.headed(&format!("Entropy of {} by windows of {} bytes", curve.name, curve.windows.window))
}

/// Offsets at round numbers of bytes: powers of two, of which there are a few.
fn mark_offsets(bytes: u64) -> Vec<u64> {
    let mut step = 1u64;
    while bytes / step > MARKS {
        step = step.saturating_mul(2);
    }
    (0..=bytes / step).map(|k| k * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use schwann::nn::entropy::Windows;

    #[test]
    fn a_picture_of_any_file_is_bounded_and_hides_nothing() {
        for many in [1usize, 2, 900, 901, 200_000] {
            let entropy = (0..many).map(|k| k as f32 / many as f32).collect();
            let windows = Windows { window: 256, step: 256 };
            let (name, bytes) = ("a\u{202e}<b>".to_owned(), many as u64 * 256 - 255);
            let curve = Curve { name, bytes, windows, whole: 0.5, entropy, backend: String::new(), seconds: 1.0 };
            let text = draw(&curve).file();
            assert!(text.len() < 200_000, "{} bytes for {many} windows", text.len());
            assert!(!text.contains('\u{202e}') && !text.contains("<b>") && !text.contains("NaN"));
        }
        assert_eq!(mark_offsets(1000), [0, 128, 256, 384, 512, 640, 768, 896]);
        assert_eq!(mark_offsets(1), [0, 1]);
        assert!(mark_offsets(u64::MAX).len() <= 9);
    }
}
