//! Each measured figure has one source: a file in `docs/figures`, written by the command that measured. Pages quote it.
//!
//! A page quotes a table between `<!-- table NAME -->` and `<!-- /table -->`, where NAME is a file of `docs/figures`, and a
//! single figure as `<!-- figure NAME KEY -->1.57×<!-- /figure -->`. `SCHWANN_WRITE_DOCS=1 cargo test --workspace --test
//! schwann_tests figures::` writes both anew; without it the test fails where a page says something else.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The pages that people read.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.push(root().join("README.md"));
    pages.sort();
    pages
}

/// What a file of figures holds: the table as Markdown, and single figures by key.
struct Figures {
    table: String,
    by_key: BTreeMap<String, String>,
}

fn load(name: &str) -> Figures {
    let path = root().join("docs/figures").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    match value["rows"].as_array() {
        Some(rows) if rows.first().is_some_and(|r| r["question"].is_string()) => verdicts(&value),
        Some(_) => circuits(&value),
        None => plain(&value),
    }
}

/// What `schwann gate experiment --json` wrote: a line for each question and kind of pair.
fn verdicts(value: &Value) -> Figures {
    let mut table = String::from(
        "| question | pairs | faster | slower | same | undecided | share, and 95% interval | slow-down seen | seconds, median and most |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let mut by_key = BTreeMap::new();
    for row in value["rows"].as_array().unwrap() {
        let number = |key: &str| row[key]["value"].as_f64().unwrap();
        let (question, kind) = (row["question"].as_str().unwrap(), row["kind"].as_str().unwrap());
        let share = format!("{:.1}%", number("rate"));
        table.push_str(&format!(
            "| `{question}` | {} {kind} | {} | {} | {} | {} | {share} ({:.1} to {:.1}) | {:+.2}% | {:.1}, {:.1} |\n",
            number("pairs"),
            number("faster"),
            number("slower"),
            number("same"),
            number("undecided"),
            number("low"),
            number("high"),
            number("slowdown"),
            number("seconds"),
            number("seconds_max"),
        ));
        by_key.insert(format!("{question}.{kind}"), share);
    }
    Figures { table, by_key }
}

/// A file of plain figures: `{"figures": {KEY: TEXT}}`; its table has a line for each.
fn plain(value: &Value) -> Figures {
    let figures = value["figures"].as_object().expect("a file of figures has `rows` or `figures`");
    let by_key: BTreeMap<String, String> = figures
        .iter()
        .map(|(key, text)| (key.clone(), text.as_str().expect("a figure is a text").to_owned()))
        .collect();
    let mut table = String::from("| | |\n|---|---|\n");
    for (key, text) in &by_key {
        table.push_str(&format!("| {key} | {text} |\n"));
    }
    Figures { table, by_key }
}

/// Rows that `benches/peers/circuits.py --json` wrote. Of a peer, the better setting of malloc counts.
fn circuits(value: &Value) -> Figures {
    type Times = BTreeMap<String, (f64, f64)>;
    let mut cases: Vec<((String, String, String, u64), Times)> = Vec::new();
    for row in value["rows"].as_array().unwrap() {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        let shape = format!("{} × {}", row["B"], row["T"]);
        let case = (text("kind"), text("model"), shape, row["threads"].as_u64().unwrap());
        let at = cases.iter().position(|(other, _)| *other == case).unwrap_or_else(|| {
            cases.push((case, Times::new()));
            cases.len() - 1
        });
        for (peer, times) in row["ms"].as_object().unwrap() {
            let times = (times[0].as_f64().unwrap(), times[1].as_f64().unwrap());
            let kept = cases[at].1.entry(peer.clone()).or_insert(times);
            if times.0 < kept.0 {
                *kept = times;
            }
        }
    }
    let mut table = String::from(
        "| | model | batch × steps | threads | schwann, ms | peers, ms | ratio to the best |\n|---|---|---|---|---|---|---|\n",
    );
    let mut by_key = BTreeMap::new();
    for ((kind, model, shape, threads), times) in &cases {
        let ours = times["schwann"];
        let mut peers: Vec<(&String, &(f64, f64))> = times.iter().filter(|(peer, _)| *peer != "schwann").collect();
        peers.sort_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let (best, &(least, _)) = peers[0];
        let ratio = significant(least / ours.0, 3);
        let ms = |(least, median): (f64, f64)| format!("{} ({})", significant(least, 3), significant(median, 3));
        let others: Vec<String> = peers.iter().map(|(peer, times)| format!("{peer} {}", ms(**times))).collect();
        table.push_str(&format!(
            "| {kind} | {model} | {shape} | {threads} | {} | {} | **{ratio}×** {best} |\n",
            ms(ours),
            others.join(", ")
        ));
        by_key.insert(format!("{kind}.{model}.{}.{threads}", shape.replace(" × ", "x")), format!("{ratio}×"));
    }
    Figures { table, by_key }
}

/// A number with so many significant digits, never in exponential form.
fn significant(value: f64, digits: i32) -> String {
    let decimals = (digits - 1 - value.abs().log10().floor() as i32).max(0) as usize;
    format!("{value:.decimals$}")
}

/// A page with every quotation replaced by what its source says.
fn quoted(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some(start) = rest.find("<!-- ") {
        let Some(length) = rest[start..].find(" -->") else { break };
        let (before, from) = rest.split_at(start);
        let (marker, after) = from.split_at(length + " -->".len());
        text.push_str(before);
        text.push_str(marker);
        rest = after;
        let words: Vec<&str> = marker["<!-- ".len()..length].split(' ').collect();
        let (content, end) = match words[..] {
            ["table", name] => (format!("\n{}", load(name).table), "<!-- /table -->"),
            ["figure", name, key] => {
                let figures = load(name).by_key;
                (
                    figures.get(key).unwrap_or_else(|| panic!("docs/figures/{name}.json has no figure {key}")).clone(),
                    "<!-- /figure -->",
                )
            }
            _ => continue,
        };
        let Some(end) = after.find(end) else { panic!("`{marker}` is not closed") };
        text.push_str(&content);
        rest = &after[end..];
    }
    text + rest
}

#[test]
fn pages_quote_figures_as_they_were_measured() {
    for path in pages() {
        let page = std::fs::read_to_string(&path).unwrap();
        let right = quoted(&page);
        if std::env::var_os("SCHWANN_WRITE_DOCS").is_some() {
            std::fs::write(&path, &right).unwrap();
        }
        for (line, (has, wants)) in page.lines().zip(right.lines()).enumerate() {
            assert_eq!(has, wants, "{}, line {}", path.display(), line + 1);
        }
        assert_eq!(page, right, "{}", path.display());
    }
}

/// A ratio such as `1.57×`, a share such as `within 14%`: figures of a measurement, not of a setting.
fn looks_measured(line: &str) -> bool {
    let ratio = line.char_indices().any(|(at, c)| {
        c == '×' && line[..at].ends_with(|d: char| d.is_ascii_digit()) && {
            let number: Vec<char> = line[..at].chars().rev().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            number.contains(&'.')
        }
    });
    let share = ["within ", "under ", "over "].iter().any(|word| {
        line.match_indices(word).any(|(at, _)| {
            let number: String =
                line[at + word.len()..].chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            !number.is_empty() && line[at + word.len() + number.len()..].starts_with('%')
        })
    });
    ratio || share
}

/// Lines of prose: what is in fences, in indented blocks (what a program printed) or in quotations of figures is not.
fn prose(page: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !line.starts_with("    ") {
            let mut line = line.to_owned();
            while let (Some(from), Some(to)) = (line.find("<!-- figure "), line.find("<!-- /figure -->")) {
                line.replace_range(from..to + "<!-- /figure -->".len(), "");
            }
            lines.push((number + 1, line));
        }
    }
    lines
}

#[test]
fn no_page_but_the_benchmarks_states_a_measurement_of_its_own() {
    for path in pages() {
        if path.ends_with(Path::new("docs/benchmarks.md")) {
            continue;
        }
        for (number, line) in prose(&std::fs::read_to_string(&path).unwrap()) {
            assert!(
                !looks_measured(&line),
                "{}, line {number}: a measured figure belongs to docs/benchmarks.md, or is quoted from docs/figures:\n{line}",
                path.display()
            );
        }
    }
}

#[test]
fn figures_are_found_quoted_and_rounded() {
    assert_eq!(significant(1.5678, 3), "1.57");
    assert_eq!(significant(0.0004252, 3), "0.000425");
    assert_eq!(significant(348.9, 3), "349");
    assert!(looks_measured("it was 1.57× as fast") && looks_measured("all within 14% of it"));
    assert!(!looks_measured("a 3 × 4 matrix") && !looks_measured("`--max-regress 3%`"));
    let text = "fast\n    1.62× printed\n<!-- figure a b -->1.57×<!-- /figure --> here";
    assert!(prose(text).iter().all(|(_, line)| !looks_measured(line)));
}
