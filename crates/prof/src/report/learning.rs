//! The page of a training: its curves, and a table of what came of it.

use super::cell::escape;
use super::{STYLE, begin};
use crate::plot::{Curve, Size, curves};
use std::fmt::Write;

/// What a page of a training shows.
#[derive(Clone, Debug)]
pub struct Learning {
    /// What was trained.
    pub title: String,
    /// Where and how, in a few words each.
    pub facts: Vec<String>,
    /// Headings and rows of the table.
    pub headings: Vec<String>,
    /// The table's rows.
    pub rows: Vec<Vec<String>>,
    /// What is to be said of the table's figures: whether they were measured.
    pub note: String,
    /// Pictures: what goes up in each over steps, and the lines.
    pub plots: Vec<(String, Vec<Curve>)>,
}

/// The page as one HTML file that needs nothing else.
pub fn learning(page: &Learning) -> String {
    let title = escape(&page.title);
    let mut out = begin(&format!("{title} – Schwann training"), STYLE);
    let _ = write!(
        out,
        "<header class=\"wrap\"><p class=\"brand\">Schwann training</p><h1>{title}</h1><p class=\"facts\">"
    );
    for fact in &page.facts {
        let _ = write!(out, "<span>{}</span>", escape(fact));
    }
    out += "</p></header><main><div class=\"panels\"><section class=\"panel\"><h3>Results</h3><table><thead><tr>";
    for heading in &page.headings {
        let _ = write!(out, "<th>{}</th>", escape(heading));
    }
    out += "</tr></thead><tbody>";
    for row in &page.rows {
        out += "<tr>";
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escape(cell));
        }
        out += "</tr>";
    }
    let _ = write!(out, "</tbody></table><p class=\"say\">{}</p></section>", escape(&page.note));
    for (up, lines) in &page.plots {
        let _ = write!(out, "<section class=\"panel\"><h3>{}</h3>", escape(up));
        match (curves(lines, "steps", up, Size::WIDE), curves(lines, "steps", up, Size::NARROW)) {
            (Ok(wide), Ok(narrow)) => {
                let _ = write!(out, "<figure>{}{}</figure>", wide.inline("wide"), narrow.inline("narrow"));
            }
            (Err(missing), _) | (_, Err(missing)) => {
                let _ = write!(out, "<p class=\"say\">No picture: {}</p>", escape(&missing.to_string()));
            }
        }
        out += "</section>";
    }
    out += "</div></main><footer class=\"wrap\">This file loads nothing and sends nothing.</footer></body></html>";
    out
}
