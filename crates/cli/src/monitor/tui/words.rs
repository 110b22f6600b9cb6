//! Figures and names in words, cut to columns.

use crate::out;
use schwann::Figure;
use schwann::prof::plot::unit;
use schwann::show;

/// A figure for people; `unavailable` where there is none.
pub(super) fn value(figure: &Figure) -> String {
    match unit::known(figure) {
        Some(_) => plain(&unit::show(figure)),
        None => "unavailable".into(),
    }
}

/// Spaces as terminals show them for certain.
pub(super) fn plain(text: &str) -> String {
    text.replace(['\u{a0}', '\u{202f}'], " ")
}

/// A figure, or why there is none.
pub(super) fn value_or_why(figure: &Figure) -> String {
    match unit::known(figure) {
        Some(_) => value(figure),
        None => format!("unavailable: {}", reason(figure)),
    }
}

/// Why there is no figure.
pub(super) fn reason(figure: &Figure) -> String {
    figure.reason.as_deref().map_or("no reason is given".into(), |r| show::line(r).into_owned())
}

/// Where a figure comes from, in one word.
pub(super) fn origin(figure: &Figure) -> &'static str {
    use schwann::Provenance::{Derived, Measured, Predicted, Unavailable};
    match figure.provenance {
        _ if figure.value.is_none() => "unavailable",
        Measured => "measured",
        Derived => "derived",
        Predicted => "predicted",
        Unavailable => "unavailable",
    }
}

/// A reading's name as one says it: `cpu0_load` is `CPU 0 load`.
pub(super) fn label(name: &str) -> String {
    let word = |word: &str| match word {
        "cpu" => "CPU".to_owned(),
        "gpu" => "GPU".to_owned(),
        "ane" => "Neural Engine".to_owned(),
        "dram" => "DRAM".to_owned(),
        "rss" => "RSS".to_owned(),
        "frequency" => "clock".to_owned(),
        w => match (w.strip_prefix("cpu"), w.strip_prefix("gpu")) {
            (Some(n), _) if number(n) => format!("CPU {n}"),
            (_, Some(n)) if number(n) => format!("GPU {n}"),
            _ => w.to_owned(),
        },
    };
    show::name(&name.split('_').map(word).collect::<Vec<_>>().join(" "))
}

fn number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Text in exactly so many columns, cut with `…` or filled with blanks.
pub(super) fn fit(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let blank = width.saturating_sub(out::columns(&text));
    text + &" ".repeat(blank)
}

/// The same, set to the right.
pub(super) fn right(text: &str, width: usize) -> String {
    let text = cut(text, width);
    " ".repeat(width.saturating_sub(out::columns(&text))) + &text
}

/// Text in at most so many columns.
pub(super) fn cut(text: &str, width: usize) -> String {
    if width == 0 { String::new() } else { out::cut(text, width) }
}

/// Columns that a text takes.
pub(super) fn columns(text: &str) -> u16 {
    out::columns(text).min(usize::from(u16::MAX)) as u16
}

/// A time of some seconds to hours: `45 s`, `12:30`, `1:02:03`.
pub(super) fn time(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{}:{:02}", s / 60, s % 60),
        _ => format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60),
    }
}

/// A span as one says it: `30 s`, `5 min`, `1 h`.
pub(super) fn span(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_readings_are_said_as_people_say_them() {
        let said = ["cpu0_load", "ane_power", "cpu_p_frequency", "memory_total", "a\u{1b}[2Jb"].map(label);
        assert_eq!(said, ["CPU 0 load", "Neural Engine power", "CPU p clock", "memory total", "a\\u001b[2Jb"]);
    }

    #[test]
    fn text_takes_the_columns_that_it_is_given() {
        for (text, width) in [("gated cell", 5), ("日本語", 5), ("ok", 6), ("", 3), ("x", 0)] {
            assert_eq!(out::columns(&fit(text, width)), width, "{text}");
            assert_eq!(out::columns(&right(text, width)), width, "{text}");
        }
        assert_eq!([time(45.9), time(750.0), time(3723.0)], ["45 s", "12:30", "1:02:03"]);
        assert_eq!([span(30.0), span(300.0), span(3600.0)], ["30 s", "5 min", "1 h"]);
    }
}
