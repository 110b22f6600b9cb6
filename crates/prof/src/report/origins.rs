//! Every figure of the document with its source, found by walking the document itself, so that none can be forgotten.

use super::Panel;
use super::cell::{Cell, Table, escape, plural, provenance_class, provenance_word};
use crate::Profile;
use crate::plot::unit::known;
use schwann_core::Figure;
use schwann_core::figure::Provenance;
use serde_json::Value;

/// A file of more figures than this is listed up to here, and the rest is counted.
const MOST_ROWS: usize = 5000;

/// What was found at a place of the document.
enum Found {
    One(Figure),
    Many { count: usize, unit: String, provenance: Provenance, words: String },
}

pub(super) fn panel(profile: &Profile) -> Panel {
    let mut all = vec![];
    if let Ok(value) = serde_json::to_value(profile) {
        walk(&value, &mut String::new(), &mut all);
    }
    let mut counts = [0usize; 4];
    for (_, found) in &all {
        counts[match found.provenance() {
            Provenance::Measured => 0,
            Provenance::Derived => 1,
            Provenance::Predicted => 2,
            Provenance::Unavailable => 3,
        }] += 1;
    }
    let mut table = Table::new("Every figure and its source", "sortable all", &["figure", ">value", "how", "source"]);
    for (path, found) in all.iter().take(MOST_ROWS) {
        let (value, words) = match found {
            Found::One(of) => (Cell::figure(of), source(of)),
            Found::Many { count, unit, words, .. } => {
                let value = format!("{} in {}", plural(*count, "value"), escape(unit));
                (Cell::html(value, *count as f64).class("n"), words.clone())
            }
        };
        let how = Cell::text(provenance_word(found.provenance()));
        table.row("", [Cell::text(path), value, how, Cell::text(&words).class("words")]);
    }
    let left = all.len().saturating_sub(MOST_ROWS);
    let left = if left > 0 { format!("<p class=\"say\">{left} more are in the JSON.</p>") } else { String::new() };
    let legend = [
        (Provenance::Measured, "read off a clock or a counter"),
        (Provenance::Derived, "computed from shapes or from measurements"),
        (Provenance::Predicted, "computed from a model of a device"),
        (Provenance::Unavailable, "not known here, with the reason"),
    ]
    .map(|(provenance, words)| {
        let (class, word) = (provenance_class(provenance), provenance_word(provenance));
        format!("<span><span class=\"f {class}\">{word}</span>: {words}</span>")
    })
    .concat();
    let [measured, derived, predicted, unavailable] = counts;
    let say = format!(
        "{} in this profile: {measured} measured, {derived} derived, {predicted} predicted, {unavailable} unavailable. \
         Rest on a figure, or tap it, to see where it comes from.",
        plural(all.len(), "figure")
    );
    let body = format!(
        "<div class=\"legend\">{legend}</div><details><summary>Every figure with its source</summary>{}{left}</details>",
        table.html()
    );
    Panel::new("origins", "Where the figures come from", say, body).class("long")
}

fn source(of: &Figure) -> String {
    let mut words = of.source.clone();
    if let (None, Some(reason)) = (known(of), &of.reason) {
        words += &format!(": {reason}");
    }
    if let Some(spread) = &of.spread {
        words += &format!("; {}", super::cell::spread_words(of, spread));
    }
    words
}

impl Found {
    fn provenance(&self) -> Provenance {
        match self {
            Found::One(of) if known(of).is_none() => Provenance::Unavailable,
            Found::One(of) => of.provenance,
            Found::Many { provenance, .. } => *provenance,
        }
    }
}

/// Finds figures and series: objects with a unit, a provenance and a source.
fn walk(value: &Value, path: &mut String, all: &mut Vec<(String, Found)>) {
    match value {
        Value::Object(map) if map.contains_key("provenance") && map.contains_key("unit") => {
            if map.contains_key("value") {
                if let Ok(figure) = serde_json::from_value(value.clone()) {
                    all.push((path.clone(), Found::One(figure)));
                }
            } else if let Ok(series) = serde_json::from_value::<schwann_core::Series>(value.clone()) {
                let words = [series.source.as_str(), series.reason.as_deref().unwrap_or_default()].join(" ");
                let count = series.values.iter().flatten().count();
                let (unit, provenance) = (series.unit, series.provenance);
                all.push((path.clone(), Found::Many { count, unit, provenance, words: words.trim().into() }));
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                step(path, key, |path| walk(value, path, all));
            }
        }
        Value::Array(values) => {
            for (i, value) in values.iter().enumerate() {
                let name = ["name", "device", "step", "title", "what"].iter().find_map(|k| value.get(*k)?.as_str());
                let key = name.map_or_else(|| i.to_string(), |name| format!("{i} {name}"));
                step(path, &key, |path| walk(value, path, all));
            }
        }
        _ => {}
    }
}

fn step(path: &mut String, key: &str, f: impl FnOnce(&mut String)) {
    let before = path.len();
    if before > 0 {
        path.push_str(" › ");
    }
    path.push_str(key);
    f(path);
    path.truncate(before);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_figure_of_a_document_is_found_with_its_place() {
        let figure = serde_json::to_value(Figure::measured(1.0, "s", "clock")).unwrap();
        let series = serde_json::to_value(schwann_core::Series::measured([1.0, 2.0], "s", "clock")).unwrap();
        let mut all = vec![];
        walk(&json!({"a": figure, "b": [{"name": "op", "c": figure}], "d": series}), &mut String::new(), &mut all);
        let places: Vec<&str> = all.iter().map(|f| f.0.as_str()).collect();
        assert_eq!(places, ["a", "b › 0 op › c", "d"]);
    }
}
