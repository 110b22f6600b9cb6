//! The report: profiles as one HTML file that needs nothing else, for people.
//!
//! It has no network: its content-security policy forbids every load, and lets only its own script run (by that script's
//! hash, so that markup in a model's name could not run one even if it were let through). Without scripts all of it can
//! be read; the script sorts tables and shows origins on touch screens. Each plot is there twice, for a desk's width and
//! for a phone's, since text in a picture that is scaled down cannot be read. Every figure shown has its origin as a title,
//! and all figures of the document are listed at the end with their sources.
//!
//! Why by hand: `maud` escapes markup, but not what is hidden (marks of direction, controls), so every text would go through
//! `show::xml` here as it does now, marked as escaped already; pictures, style and script are whole strings anyway. What is
//! left for its macro are a few tags, for three more packages to build.

mod cell;
mod learning;
mod origins;
mod outlook;
mod panels;
mod summary;

pub use learning::{Learning, learning};

use crate::Profile;
use crate::plot::unit::{known, show};
use crate::plot::{Drawing, Missing, Size};
use cell::{escape, figure, why};
use std::collections::BTreeSet;
use std::fmt::Write;

/// How pages of this project look: colours for light and dark, panels, tables, figures by their origin.
pub const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// What the policy lets run: `openssl dgst -sha256 -binary page.js | base64`. The test in a browser fails when it is old.
const SCRIPT_HASH: &str = "qpEtnbz1veGLyqOeCURFgfzUu97osW3jm56vUrRFUKY=";

/// The report of some profiles, each on a tab of its own.
pub fn html(profiles: &[Profile]) -> String {
    let mut out = head(profiles);
    for (i, profile) in profiles.iter().enumerate() {
        let checked = if i == 0 { " checked" } else { "" };
        let name = escape(&profile.model.name);
        let _ = write!(
            out,
            "<input class=\"pick\" type=\"radio\" name=\"model\" id=\"pick{i}\" aria-label=\"{name}\"{checked}>"
        );
    }
    if profiles.len() > 1 {
        out += "<div class=\"tabs\">";
        for (i, profile) in profiles.iter().enumerate() {
            let name = escape(&profile.model.name);
            let time = match known(&profile.compute.time_p50) {
                Some(_) => format!("{} per run", escape(&show(&profile.compute.time_p50))),
                None => "time unknown".into(),
            };
            let _ = write!(out, "<label for=\"pick{i}\">{name}<small>{time}</small></label>");
        }
        out += "</div>";
    }
    out += "<main>";
    for (i, profile) in profiles.iter().enumerate() {
        out += &model(i, profile);
    }
    out += "</main><footer class=\"wrap\">";
    let versions: BTreeSet<String> = profiles.iter().map(|p| escape(&p.version)).collect();
    let _ = write!(out, "Made by schwann {}. ", versions.into_iter().collect::<Vec<_>>().join(", "));
    out += "This file loads nothing and sends nothing.</footer><div id=\"origin\" role=\"status\" hidden></div>";
    let _ = write!(out, "<script>{SCRIPT}</script></body></html>");
    out
}

/// The beginning of every page: its policy, its style, and a title that is escaped already.
fn begin(title: &str, style: &str) -> String {
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{SCRIPT_HASH}'; img-src data:; \
         base-uri 'none'; form-action 'none'"
    );
    format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><meta name=\"referrer\" content=\"no-referrer\">\
         <link rel=\"icon\" href=\"data:,\"><title>{title}</title><style>{style}</style></head><body>"
    )
}

fn head(profiles: &[Profile]) -> String {
    let names: Vec<&str> = profiles.iter().map(|p| p.model.name.as_str()).collect();
    let title = escape(&format!("{} – Schwann profile", names.join(", ")));
    let mut style = STYLE.to_owned();
    for i in 0..profiles.len() {
        let _ = write!(
            style,
            "#pick{i}:checked~main #model{i}{{display:block}}\
             #pick{i}:checked~.tabs label[for=pick{i}]{{background:var(--card);border-color:var(--rule);color:var(--ink)}}\
             #pick{i}:focus-visible~.tabs label[for=pick{i}]{{outline:2px solid var(--link);outline-offset:-3px}}"
        );
    }
    let mut out = begin(&title, &style);
    let Some(first) = profiles.first() else {
        out += "<header class=\"wrap\"><h1>No profiles</h1><p>There was nothing to report.</p></header>";
        return out;
    };
    let heading = match profiles {
        [one] => escape(&one.model.name),
        many => format!("{} models", many.len()),
    };
    let m = &first.machine;
    let same = profiles.iter().all(|p| p.machine.fingerprint == m.fingerprint);
    let on_cpu = profiles.iter().all(|p| p.workload.on_cpu());
    let one_device = profiles.iter().all(|p| p.roof.device == first.roof.device);
    let place = match (same, on_cpu || !one_device) {
        (true, true) => format!("on {}", m.cpu),
        (true, false) => format!("on {}", first.roof.device),
        (false, _) => "on several machines".into(),
    };
    let _ = write!(
        out,
        "<header class=\"wrap\"><p class=\"brand\">Schwann profile</p><h1>{heading} {}</h1><p class=\"facts\">\
         <span>{}</span>",
        escape(&place),
        escape(&when(&first.created))
    );
    if same {
        let memory = if m.unified_memory { "unified memory" } else { "memory" };
        // An instruction set says nothing where another device computed.
        let isa = format!("<span>{}</span>", escape(if on_cpu { &m.isa } else { &m.cpu }));
        let _ = write!(
            out,
            "<span>{}</span>{isa}<span>{}</span><span>{} {memory}</span>",
            escape(&m.os),
            figure(&m.cores),
            figure(&m.memory)
        );
    }
    if let Some(commit) = &first.commit {
        let _ = write!(out, "<span>commit {}</span>", escape(&commit.chars().take(10).collect::<String>()));
    }
    out + "</p></header>"
}

/// A time for people, where it is one: `2026-01-02 03:04 UTC`.
fn when(created: &str) -> String {
    match (created.get(..10), created.get(10..11), created.get(11..16), created.ends_with('Z')) {
        (Some(day), Some("T"), Some(time), true) => format!("{day} {time} UTC"),
        _ => created.to_owned(),
    }
}

/// A panel: its name in addresses and tests, its heading, a line that says what is to be seen, and what it shows.
struct Panel {
    name: &'static str,
    title: &'static str,
    say: String,
    body: String,
    class: &'static str,
}

impl Panel {
    fn new(name: &'static str, title: &'static str, say: impl Into<String>, body: impl Into<String>) -> Panel {
        Panel { name, title, say: say.into(), body: body.into(), class: "" }
    }

    fn class(mut self, class: &'static str) -> Panel {
        self.class = class;
        self
    }
}

fn model(index: usize, profile: &Profile) -> String {
    let (m, w) = (&profile.model, &profile.workload);
    let mut out = format!(
        "<section class=\"model\" id=\"model{index}\"><h2>{}</h2><p class=\"facts\"><span>{}</span><span>{}</span>\
         <span>{}</span><span>{}</span>{}<span>{}, {}, {}</span></p>",
        escape(&m.name),
        escape(&m.description),
        figure(&m.parameters),
        figure(&w.batch),
        figure(&w.steps),
        if w.on_cpu() { format!("<span>{}</span>", figure(&w.threads)) } else { String::new() },
        escape(&w.dtype),
        escape(&w.compilation),
        escape(if w.on_cpu() { &w.backend } else { &profile.roof.device })
    );
    let mut all = vec![summary::summary(profile)];
    all.extend(panels::panels(profile));
    all.extend(outlook::panels(profile));
    all.push(origins::panel(profile));
    out += "<nav class=\"contents\" aria-label=\"Panels\">";
    for panel in all.iter().skip(1) {
        let _ = write!(out, "<a href=\"#p{index}-{}\">{}</a>", panel.name, escape(panel.title));
    }
    out += "</nav><div class=\"panels\">";
    for panel in &all {
        let (name, title) = (panel.name, escape(panel.title));
        let _ = write!(
            out,
            "<section class=\"panel {}\" id=\"p{index}-{name}\" data-panel=\"{name}\"><h3>{title}</h3>",
            panel.class
        );
        if !panel.say.is_empty() {
            let _ = write!(out, "<p class=\"say\">{}</p>", panel.say);
        }
        out += &panel.body;
        out += "</section>";
    }
    out + "</div></section>"
}

/// A plot for both widths with a caption, or the reason why there is none.
fn plotted(plot: crate::plot::Plot, profile: &Profile, wide: Size, missing: &str, caption: &str) -> String {
    let draw = |size: Size| -> Result<Drawing, Missing> { plot(profile, size) };
    match (draw(wide), draw(Size { height: wide.height.clamp(270.0, 330.0), ..Size::NARROW })) {
        (Ok(wide), Ok(narrow)) => {
            let caption =
                if caption.is_empty() { String::new() } else { format!("<figcaption>{caption}</figcaption>") };
            format!("<figure>{}{}{caption}</figure>", wide.inline("wide"), narrow.inline("narrow"))
        }
        (Err(reason), _) | (_, Err(reason)) => why(missing, &reason.to_string()),
    }
}
