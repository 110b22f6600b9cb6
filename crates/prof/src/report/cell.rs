//! The pieces of a page: figures that say where they come from, tables, bars. Everything that is put in is escaped here.

use crate::plot::Ink;
pub(super) use crate::plot::escape;
use crate::plot::unit::{Scale, known, quantity, show};
use schwann_core::Figure;
use schwann_core::figure::{Ends, Provenance};
use std::fmt::Write;

/// How a provenance is called.
pub(super) fn provenance_word(provenance: Provenance) -> &'static str {
    match provenance {
        Provenance::Measured => "measured",
        Provenance::Derived => "derived",
        Provenance::Predicted => "predicted",
        Provenance::Unavailable => "unavailable",
    }
}

/// The class that sets a provenance apart.
pub(super) fn provenance_class(provenance: Provenance) -> &'static str {
    match provenance {
        Provenance::Measured => "m",
        Provenance::Derived => "d",
        Provenance::Predicted => "p",
        Provenance::Unavailable => "u",
    }
}

/// Where a figure comes from, in words.
pub(super) fn origin(figure: &Figure) -> String {
    if known(figure).is_none() {
        let reason = figure.reason.as_deref().unwrap_or("no reason is given");
        return format!("unavailable: {reason} (source: {})", figure.source);
    }
    let mut words = format!("{}: {}", provenance_word(figure.provenance), figure.source);
    if let Some(spread) = &figure.spread {
        words += &format!("; {}", spread_words(figure, spread));
    }
    if let Some(resolution) = figure.resolution {
        words += &format!("; resolution {}", quantity(resolution, &figure.unit));
    }
    words
}

/// How far measurements lie apart, in words.
pub(super) fn spread_words(figure: &Figure, spread: &schwann_core::figure::Spread) -> String {
    let ends = match spread.ends {
        Ends::Extremes => "extremes",
        Ends::Quartiles => "quartiles",
        Ends::Confidence95 => "95% confidence",
        Ends::Band => "expected band",
        Ends::Confidence99 => "99% confidence",
    };
    let (low, high) = (quantity(spread.low, &figure.unit), quantity(spread.high, &figure.unit));
    format!("{ends} {low} to {high} of {} samples", spread.samples)
}

/// A figure with its unit; its origin is its title. One that is not known says of what, where its unit is a word.
pub(super) fn figure(figure: &Figure) -> String {
    let noun = figure.unit.len() > 3 && figure.unit.chars().all(|c| c.is_ascii_lowercase());
    match known(figure) {
        None if noun => marked(figure, &format!("unknown {}", figure.unit)),
        _ => marked(figure, &show(figure)),
    }
}

/// A figure in words of its own.
pub(super) fn marked(figure: &Figure, words: &str) -> String {
    let provenance = known(figure).map_or(Provenance::Unavailable, |_| figure.provenance);
    let (class, title, words) = (provenance_class(provenance), escape(&origin(figure)), escape(words));
    match known(figure) {
        Some(value) => format!("<data class=\"f {class}\" value=\"{value:e}\" title=\"{title}\">{words}</data>"),
        None => format!("<span class=\"f {class}\" title=\"{title}\">{words}</span>"),
    }
}

/// A cell: what it shows, and what it is sorted by.
pub(super) struct Cell {
    html: String,
    sort: Option<String>,
    class: &'static str,
}

impl Cell {
    /// Text, sorted as text.
    pub(super) fn text(text: &str) -> Cell {
        Cell { html: escape(text), sort: Some(text.chars().take(80).collect()), class: "" }
    }

    /// Markup that was escaped before.
    pub(super) fn html(html: String, sort: impl Into<Option<f64>>) -> Cell {
        Cell { html, sort: sort.into().map(|v| format!("{v:e}")), class: "" }
    }

    /// A name, with something smaller below.
    pub(super) fn name(name: &str, below: &str) -> Cell {
        let below = if below.is_empty() { String::new() } else { format!("<small>{}</small>", escape(below)) };
        Cell { html: escape(name) + &below, sort: Some(name.chars().take(80).collect()), class: "name" }
    }

    /// With a class.
    pub(super) fn class(mut self, class: &'static str) -> Cell {
        self.class = class;
        self
    }

    /// A figure with its own unit.
    pub(super) fn figure(of: &Figure) -> Cell {
        Cell { class: "n", ..Cell::html(figure(of), known(of)) }
    }

    /// A figure in its column's scale.
    pub(super) fn number(of: &Figure, column: &Column) -> Cell {
        let words = match known(of) {
            Some(value) => column.scale.fixed(value, column.decimals),
            None => "unknown".into(),
        };
        Cell { class: "n", ..Cell::html(marked(of, &words), known(of)) }
    }

    /// A share of 100% as a bar with its number.
    pub(super) fn bar(of: &Figure, ink: Ink) -> Cell {
        let Some(share) = known(of) else { return Cell::figure(of) };
        let number = marked(of, &format!("{share:.1}\u{202f}%"));
        let (wide, color) = (share.clamp(0.0, 100.0), ink.css());
        let bar = format!(
            "<span class=\"bar\"><i style=\"--w:{wide:.1}%;--c:{color}\"></i><span class=\"n\">{number}</span></span>"
        );
        Cell::html(bar, share)
    }
}

/// A column's unit and decimals, from all that stands in it.
pub(super) struct Column {
    scale: Scale,
    decimals: usize,
}

impl Column {
    /// For these figures, all of one unit.
    pub(super) fn of<'a>(figures: impl IntoIterator<Item = &'a Figure> + Clone) -> Column {
        let unit = figures.clone().into_iter().next().map_or("", |f| f.unit.as_str());
        let scale = Scale::across(unit, figures.clone());
        let values = || figures.clone().into_iter().filter_map(known).map(|v| (v / scale.per).abs());
        let greatest = values().fold(0.0, f64::max);
        let whole = values().all(|v| v.fract() == 0.0);
        let most = if unit == "%" { 1 } else { 3 };
        let decimals = if whole || greatest <= 0.0 { 0 } else { (3 - greatest.log10().floor() as i32).clamp(0, most) };
        Column { scale, decimals: decimals as usize }
    }

    /// A heading with the unit.
    pub(super) fn head(&self, words: &str) -> String {
        match self.scale.label.as_str() {
            "" => words.to_owned(),
            label => format!("{words}, {label}"),
        }
    }
}

/// A table in a box of its own that scrolls.
pub(super) struct Table {
    caption: String,
    heads: Vec<String>,
    rows: String,
    class: &'static str,
}

impl Table {
    /// A table with headings; one that starts with `>` is set to the right.
    pub(super) fn new(caption: &str, class: &'static str, heads: &[&str]) -> Table {
        let heads = heads.iter().map(|h| (*h).to_owned()).collect();
        Table { caption: caption.into(), heads, rows: String::new(), class }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, class: &str, cells: impl IntoIterator<Item = Cell>) {
        let _ = write!(self.rows, "<tr{}>", attribute("class", class));
        for cell in cells {
            let sort = cell.sort.map(|s| format!(" data-v=\"{}\"", escape(&s))).unwrap_or_default();
            let _ = write!(self.rows, "<td{}{sort}>{}</td>", attribute("class", cell.class), cell.html);
        }
        self.rows += "</tr>";
    }

    /// The table's markup.
    pub(super) fn html(&self) -> String {
        let caption = escape(&self.caption);
        let mut out = format!(
            "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\"><table{}>\
             <caption class=\"hidden\">{caption}</caption><thead><tr>",
            attribute("class", self.class)
        );
        for head in &self.heads {
            let (class, words) = head.strip_prefix('>').map_or(("", head.as_str()), |words| ("n", words));
            let _ = write!(out, "<th scope=\"col\"{}>{}</th>", attribute("class", class), escape(words));
        }
        out + "</tr></thead><tbody>" + &self.rows + "</tbody></table></div>"
    }
}

fn attribute(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {name}=\"{value}\"") }
}

/// Names with figures, side by side.
pub(super) fn pairs<'a>(entries: impl IntoIterator<Item = (&'a str, &'a Figure)>) -> String {
    let mut out = String::from("<dl class=\"pairs\">");
    for (name, of) in entries {
        let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), figure(of));
    }
    out + "</dl>"
}

/// Says why something is not shown.
pub(super) fn why(what: &str, reason: &str) -> String {
    format!("<div class=\"why\"><b>{}</b> {}</div>", escape(what), escape(reason))
}

/// `1 thing`, `2 things`.
pub(super) fn plural(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_shows_its_reason_and_no_number() {
        let unknown = Figure::unavailable("W", "RAPL", "not <permitted>");
        let html = figure(&unknown);
        assert!(html.contains("unavailable: not &lt;permitted&gt;") && html.contains("unknown"), "{html}");
        assert!(!html.contains('0') && !html.contains("<data"), "{html}");
        // A number that is none is not shown either.
        let odd = Figure { value: Some(f64::NAN), ..unknown };
        assert!(figure(&odd).contains(">unknown<"));
        assert!(figure(&Figure::unavailable("threads", "", "")).contains(">unknown threads<"));
    }

    #[test]
    fn a_columns_figures_have_one_unit_and_as_many_decimals() {
        let times = [131e-6, 4.1e-6].map(|t| Figure::measured(t, "s", "clock"));
        let column = Column::of(&times);
        assert_eq!(column.head("time"), "time, µs");
        assert!(Cell::number(&times[1], &column).html.contains(">4.1<"));
    }
}
