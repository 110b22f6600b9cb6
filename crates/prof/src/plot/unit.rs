//! Numbers for people: three digits that count, and a prefix that keeps them short.
//!
//! A profile keeps plain units (`s`, `B`, `flop/s`), so that scripts can compute; people get `412 µs`. A column or an
//! axis has one prefix, from its greatest number, so that lengths and digits can be compared.

use crate::device::predict::{rounded, two_digits};
use schwann_core::Figure;
use schwann_core::figure::Provenance;

/// A no-break space that is narrow: between a number and its unit, and between thousands.
const THIN: char = '\u{202f}';

/// How the numbers of one unit are written: divided by something, with a label.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// What one of the label is, in the figures' unit.
    pub per: f64,
    /// The unit with its prefix.
    pub label: String,
}

/// A unit without its prefix, and what the prefix stands for.
fn plain(unit: &str) -> (f64, &str) {
    match unit {
        "Tflop/s" => (1e12, "flop/s"),
        "Gflop/s" => (1e9, "flop/s"),
        "GB/s" => (1e9, "B/s"),
        "ms" => (1e-3, "s"),
        "us" | "µs" => (1e-6, "s"),
        "ns" => (1e-9, "s"),
        unit => (1.0, unit),
    }
}

impl Scale {
    /// For numbers of a unit up to this one.
    pub fn of(unit: &str, greatest: f64) -> Scale {
        let (factor, base) = plain(unit);
        let greatest = greatest.abs() * factor;
        let steps: &[(f64, &str)] = match base {
            "s" => &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")],
            "B" => {
                &[(1024f64.powi(4), "TiB"), (1024f64.powi(3), "GiB"), (1048576.0, "MiB"), (1024.0, "KiB"), (1.0, "B")]
            }
            "%" | "×" | "" | "1" | "°C" => &[(1.0, "")],
            _ => &[(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")],
        };
        let fits = |&&(per, _): &&(f64, &str)| greatest >= per * 0.9995;
        let (per, prefix) = steps.iter().find(fits).or(steps.last()).copied().unwrap_or((1.0, ""));
        let label = match base {
            "s" | "B" => prefix.to_owned(),
            "" | "1" => String::new(),
            // A prefix is part of a unit's sign (`Gflop/s`), and a word of its own before a noun (`k samples/s`).
            "B/s" | "flop/s" | "flop" | "W" | "J" | "Hz" => format!("{prefix}{base}"),
            _ if prefix.is_empty() => base.to_owned(),
            _ => format!("{prefix} {base}"),
        };
        Scale { per: per / factor, label }
    }

    /// For these figures.
    pub fn across<'a>(unit: &str, figures: impl IntoIterator<Item = &'a Figure>) -> Scale {
        let known = figures.into_iter().filter_map(known).filter(|v| v.is_finite());
        Scale::of(unit, known.fold(0.0, |a: f64, b| a.max(b.abs())))
    }

    /// A number in this scale, without the unit.
    pub fn number(&self, value: f64) -> String {
        digits(value / self.per)
    }

    /// A number in this scale with so many decimals, for columns.
    pub fn fixed(&self, value: f64, decimals: usize) -> String {
        grouped(&format!("{:.decimals$}", value / self.per))
    }
}

/// A figure's number, where there is one.
pub fn known(figure: &Figure) -> Option<f64> {
    figure.value.filter(|v| v.is_finite())
}

/// A number with its unit: `412 µs`, `1.24 M samples/s`, `98 304 B`.
pub fn quantity(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return "unknown".into();
    }
    let (_, base) = plain(unit);
    if base == "%" && value.fract() != 0.0 {
        let decimals = [(100.0, 0), (1.0, 1), (0.0, 2)].into_iter().find(|d| value.abs() >= d.0).map_or(2, |d| d.1);
        return with_unit(grouped(&format!("{value:.decimals$}")), base);
    }
    // What is counted one by one is written out as long as it is short.
    let countable = !matches!(base, "s" | "B" | "B/s" | "flop/s" | "flop");
    if countable && value.fract() == 0.0 && value.abs() < 1e6 {
        let unit = if value == 1.0 { one_of(base) } else { base };
        return with_unit(grouped(&format!("{value:.0}")), unit);
    }
    let scale = Scale::of(unit, value);
    with_unit(scale.number(value), &scale.label)
}

/// A unit of which there is one.
fn one_of(unit: &str) -> &str {
    match unit {
        "runs" | "samples" | "threads" | "cores" | "sequences" | "steps" | "calls" | "faults" | "parameters"
        | "cycles" | "instructions" | "functions" | "allocations" => &unit[..unit.len() - 1],
        "misses" | "switches" => &unit[..unit.len() - 2],
        unit => unit,
    }
}

fn with_unit(number: String, unit: &str) -> String {
    match unit {
        "" | "1" | "count" => number,
        "×" | "%" => format!("{number}{THIN}{unit}"),
        _ => format!("{number}\u{a0}{unit}"),
    }
}

/// A predicted quantity with its unit: two digits, since nobody knows the third.
pub fn rough(value: f64, unit: &str) -> String {
    let value = rounded(value);
    let scale = Scale::of(unit, value);
    with_unit(two_digits(value / scale.per), &scale.label)
}

/// A figure with its unit, or `unknown`.
pub fn show(figure: &Figure) -> String {
    match known(figure) {
        None => "unknown".into(),
        Some(value) if figure.provenance == Provenance::Predicted => rough(value, &figure.unit),
        Some(value) => quantity(value, &figure.unit),
    }
}

/// A percentage without its sign, and never `-0`.
pub fn percent(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.strip_prefix('-') {
        Some(plain) if plain.chars().all(|c| matches!(c, '0' | '.')) => plain.to_owned(),
        _ => text,
    }
}

/// A change in percent with its direction: `+3.1%`, `0.0%`, `-2.0%`.
pub fn change(value: f64, decimals: usize) -> String {
    let text = percent(value, decimals);
    let plus = value > 0.0 && text.chars().any(|c| matches!(c, '1'..='9'));
    format!("{}{text}%", if plus { "+" } else { "" })
}

/// There is no difference where the whole interval is nearer to 1 than this; verdicts have the same rule.
const NEAR: f64 = 1.01;

/// How many times as fast something is, told in the direction that is above one, with its interval where it has one:
/// `1.40× faster (1.38 to 1.42)`, `9.1× slower (8.9 to 9.3)`. An interval that holds 1 shows no difference where all of it is near, and is undecided else.
pub fn faster(speedup: &Figure) -> String {
    let Some(ratio) = known(speedup).filter(|r| *r > 0.0) else {
        return format!("unknown ({})", speedup.reason.as_deref().unwrap_or("no reason is given"));
    };
    let two = |v: f64| {
        if v >= 9.95 {
            format!("{v:.0}")
        } else if v >= 3.0 {
            format!("{v:.1}")
        } else {
            format!("{v:.2}")
        }
    };
    let side = |v: f64| match v {
        v if (v - 1.0).abs() < 0.0005 => "as fast".to_owned(),
        v if v <= 0.5 => format!("{}× slower", two(1.0 / v)),
        v if v >= 2.0 => format!("{}× faster", two(v)),
        v if v < 1.0 => format!("{}% slower", percent((1.0 / v - 1.0) * 100.0, 1)),
        v => format!("{}% faster", percent((v - 1.0) * 100.0, 1)),
    };
    match speedup.spread {
        Some(s) if s.low <= 1.0 && s.high >= 1.0 && s.low > 0.0 => {
            let word = if s.low >= 1.0 / NEAR && s.high <= NEAR { "no difference" } else { "undecided" };
            format!("{word} ({} to {})", side(s.low), side(s.high))
        }
        spread => {
            let (word, up) = if ratio < 1.0 { ("slower", 1.0 / ratio) } else { ("faster", ratio) };
            let ends = spread.filter(|s| s.low > 0.0).map(|s| {
                let (low, high) = if ratio < 1.0 { (1.0 / s.high, 1.0 / s.low) } else { (s.low, s.high) };
                format!(" ({} to {})", two(low), two(high))
            });
            format!("{}× {word}{}", two(up), ends.unwrap_or_default())
        }
    }
}

/// Three digits that count.
pub fn digits(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".into();
    }
    if !(1e-3..1e7).contains(&size) {
        let text = format!("{value:.1e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{mantissa}{THIN}×{THIN}10{}", raised(exponent)).replace('-', "−");
    }
    // Rounded first: 0.9999 has its three digits at 1.00.
    let rounded = format!("{size:.2e}").parse().unwrap_or(size);
    let decimals = (2 - f64::log10(rounded).floor() as i32).clamp(0, 5) as usize;
    grouped(&format!("{value:.decimals$}"))
}

/// A round number as short as it can be: the marks of axes.
pub(super) fn brief(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e5).contains(&size) {
        let power = size.log10().floor() as i32;
        let times = value / 10f64.powi(power);
        let raised = raised(&power.to_string());
        return if (times - 1.0).abs() < 1e-6 { format!("10{raised}") } else { format!("{times:.1}×10{raised}") };
    }
    let text = format!("{value:.4}");
    grouped(text.trim_end_matches('0').trim_end_matches('.'))
}

fn raised(exponent: &str) -> String {
    let high = |c: char| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        c => c.to_digit(10).and_then(|d| char::from_u32(0x2070 + d)).unwrap_or(c),
    };
    exponent.chars().map(high).collect()
}

/// A number's text with its thousands apart and a true minus.
fn grouped(text: &str) -> String {
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |rest| ("−", rest));
    let (whole, part) = text.split_once('.').map_or((text, None), |(w, p)| (w, Some(p)));
    let mut out = sign.to_owned();
    for (i, c) in whole.chars().enumerate() {
        // Four digits stay together, as is usual.
        if i > 0 && whole.len() > 4 && (whole.len() - i) % 3 == 0 {
            out.push(THIN);
        }
        out.push(c);
    }
    part.map_or(out.clone(), |part| format!("{out}.{part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain_spaces(text: String) -> String {
        text.replace(['\u{a0}', THIN], " ")
    }

    #[test]
    fn ratios_are_told_in_the_direction_above_one() {
        use schwann_core::figure::{Ends, Spread};
        let told = |value: f64, ends: Option<(f64, f64)>| {
            let figure = Figure::measured(value, "×", "turns");
            faster(&match ends {
                Some((low, high)) => figure.with_spread(Spread { low, high, ends: Ends::Confidence95, samples: 30 }),
                None => figure,
            })
        };
        assert_eq!(told(0.11, None), "9.1× slower");
        assert_eq!(told(0.5, Some((0.4, 0.625))), "2.00× slower (1.60 to 2.50)");
        assert_eq!(told(1.64, Some((1.6, 1.68))), "1.64× faster (1.60 to 1.68)");
        assert_eq!(told(1.01, Some((0.98, 1.04))), "undecided (2.0% slower to 4.0% faster)");
        assert_eq!(told(1.001, Some((0.995, 1.008))), "no difference (0.5% slower to 0.8% faster)");
        assert_eq!(told(0.9, Some((0.1, 2.5))), "undecided (10× slower to 2.50× faster)");
        assert!(faster(&Figure::unavailable("×", "turns", "it does not run")).contains("it does not run"));
    }

    #[test]
    fn predictions_have_two_digits_and_counts_no_word() {
        let predicted = |v: f64, unit: &str| plain_spaces(show(&Figure::predicted(v, unit, "prices")));
        assert_eq!(predicted(133.4e-6, "s"), "130 µs");
        assert_eq!(predicted(0.996e-3, "s"), "1.0 ms");
        assert_eq!(predicted(72.14e9, "flop/s"), "72 Gflop/s");
        assert_eq!(plain_spaces(show(&Figure::measured(133.4e-6, "s", "a clock"))), "133 µs");
        assert_eq!(show(&Figure::measured(0.0, "count", "the system")), "0");
    }

    #[test]
    fn no_percentage_is_minus_zero() {
        assert_eq!(
            [percent(-0.4, 0), percent(-0.04, 1), percent(-0.6, 0), percent(12.34, 1)],
            ["0", "0.0", "-1", "12.3"]
        );
        assert_eq!(
            [change(-0.04, 1), change(0.04, 1), change(3.06, 1), change(-2.0, 0)],
            ["0.0%", "0.0%", "+3.1%", "-2%"]
        );
    }

    #[test]
    fn numbers_are_short_and_have_their_unit() {
        for (value, unit, expected) in [
            (412.3e-6, "s", "412 µs"),
            (0.9999e-3, "s", "1.00 ms"),
            (27e-9, "s", "27.0 ns"),
            (0.0, "s", "0 ns"),
            (65_536.0, "B", "64.0 KiB"),
            (0.0512, "Tflop/s", "51.2 Gflop/s"),
            (115e9, "flop/s", "115 Gflop/s"),
            (0.4, "GB/s", "400 MB/s"),
            (25_936.0, "parameters", "25 936 parameters"),
            (1_242_718.4, "samples/s", "1.24 M samples/s"),
            (12.0, "%", "12 %"),
            (1.614, "×", "1.61 ×"),
            (6e-8, "1", "6.0 × 10⁻⁸"),
            (-3.25, "%", "−3.2 %"),
            (0.96, "%", "0.96 %"),
            (1.0, "runs", "1 run"),
            (f64::NAN, "s", "unknown"),
        ] {
            assert_eq!(plain_spaces(quantity(value, unit)), expected);
        }
    }

    #[test]
    fn a_column_has_one_prefix() {
        let scale = Scale::of("s", 131e-6);
        assert_eq!((scale.label.as_str(), scale.fixed(4.1e-6, 1).as_str()), ("µs", "4.1"));
        assert_eq!(Scale::of("%", 1e6).label, "%");
    }

    #[test]
    fn marks_of_axes_are_short() {
        assert_eq!([0.01, 0.5, 1.0, 10.0, 1000.0, 1e6, 0.0].map(brief), ["0.01", "0.5", "1", "10", "1000", "10⁶", "0"]);
    }
}
