//! The picture in ten seconds: one sentence, six figures, and what follows from them.

use super::Panel;
use super::cell::{escape, figure, marked, plural, spread_words};
use crate::Profile;
use crate::analyze::cliffs;
use crate::plot::by_time;
use crate::plot::unit::{faster, known};
use crate::profile::Verdict;
use schwann_core::Figure;
use std::fmt::Write;

/// How a verdict is meant; a sign and a word, so that colour is not all that tells.
#[derive(Clone, Copy)]
enum Tone {
    Good,
    Warn,
    Plain,
}

impl Tone {
    fn mark(self) -> String {
        let (class, sign, word) = match self {
            Tone::Good => ("good", "✓", "good"),
            Tone::Warn => ("warn", "!", "doubt"),
            Tone::Plain => ("dim", "→", "note"),
        };
        format!("<span class=\"mark {class}\" role=\"img\" aria-label=\"{word}\">{sign}</span>")
    }
}

pub(super) fn summary(profile: &Profile) -> Panel {
    let (c, w) = (&profile.compute, &profile.workload);
    let lead = match known(&c.time_p50) {
        None => {
            format!("<p class=\"lead\">How long a run takes is {}: {}.</p>", figure(&c.time_p50), reason(&c.time_p50))
        }
        Some(_) => format!(
            "<p class=\"lead\">A run of {} × {} takes {} on {}: {}, {} of this {}'s limit.</p>",
            figure(&w.batch),
            figure(&w.steps),
            figure(&c.time_p50),
            if w.on_cpu() { figure(&w.threads) } else { escape(&profile.roof.device) },
            figure(&c.throughput),
            figure(&c.of_roof),
            if w.on_cpu() { "machine" } else { "device" }
        ),
    };
    let mean = match &c.time_mean.spread {
        Some(spread) if known(&c.time_mean).is_some() => spread_words(&c.time_mean, spread),
        _ => "of the samples".into(),
    };
    let tile = |name: &str, of: &Figure, below: String| {
        format!("<div><dt>{name}</dt><dd>{}<small>{below}</small></dd></div>", figure(of))
    };
    let tiles = [
        tile("median time", &c.time_p50, format!("p99 {}", figure(&c.time_p99))),
        tile("mean time", &c.time_mean, escape(&mean)),
        tile("arithmetic", &c.tflops, format!("roof {}", figure(&profile.roof.flops))),
        tile("of the roof", &c.of_roof, "least possible over measured time".into()),
        tile(
            "bandwidth",
            &profile.memory.bandwidth,
            format!("{} in use", figure(&profile.memory.bandwidth_utilization)),
        ),
        tile(
            "memory",
            // What loops of another device than the processor keep to themselves is in no arena.
            if w.on_cpu() { &profile.memory.live_peak } else { &profile.memory.held },
            format!("weights {}", figure(&profile.memory.weights)),
        ),
    ]
    .concat();
    let body = format!("{lead}<dl class=\"tiles\">{tiles}</dl><ul class=\"verdicts\">{}</ul>", verdicts(profile));
    Panel::new("summary", "Summary", "", body)
}

fn reason(figure: &Figure) -> String {
    escape(figure.reason.as_deref().unwrap_or("no reason is given"))
}

fn verdicts(profile: &Profile) -> String {
    let mut out = String::new();
    let mut say = |tone: Tone, html: String| {
        let _ = write!(out, "<li>{}<span>{html}</span></li>", tone.mark());
    };
    if let Some(partial) = &profile.partial {
        say(Tone::Warn, format!("<b>Partial:</b> {}.", escape(partial)));
    }
    if let Some(op) = by_time(profile).first().filter(|op| known(&op.self_time).is_some()) {
        let name = escape(&op.name);
        let limit = crate::plot::bound_words(op.bound);
        say(Tone::Plain, format!("<b>{name}</b> takes longest: {} of a run, limited by {limit}.", figure(&op.share)));
    }
    if let Some(worst) = profile.bottlenecks.first() {
        let (what, why) = (escape(&worst.what), escape(&worst.why));
        let win = figure(&worst.could_win);
        say(
            Tone::Plain,
            format!("<b>Largest possible gain:</b> {what}, up to {win} per run ({}): {why}.", figure(&worst.share)),
        );
    }
    for advice in &profile.recommendations {
        let title = escape(&advice.title);
        match advice.verdict {
            Verdict::Gain => {
                say(
                    Tone::Good,
                    format!("<b>Proven:</b> {title}: {}.", marked(&advice.measured, &faster(&advice.measured))),
                );
            }
            Verdict::Loss => {
                let came = marked(&advice.measured, &faster(&advice.measured));
                say(Tone::Plain, format!("<b>Tried, and worse:</b> {title}: {came}."));
            }
            Verdict::None | Verdict::Undecided => {
                let came = marked(&advice.measured, &faster(&advice.measured));
                say(Tone::Plain, format!("<b>Tried:</b> {title}: {came}."));
            }
            Verdict::Untested => {}
        }
    }
    for cliff in cliffs(profile) {
        say(Tone::Warn, format!("{}.", escape(&cliff)));
    }
    let untested = profile.recommendations.iter().filter(|r| r.verdict == Verdict::Untested).count();
    if untested > 0 {
        let words = plural(untested, "recommendation");
        say(Tone::Plain, format!("<b>{words} not yet tried.</b> <code>--prove</code> applies and measures them."));
    }
    let c = &profile.compute;
    say(
        Tone::Plain,
        format!(
            "<b>The measurement itself:</b> watching added {}; operations account for {} of the time.",
            figure(&c.overhead),
            figure(&c.attributed)
        ),
    );
    let absent = profile.hardware.values().filter(|f| known(f).is_none()).count();
    if absent > 0 {
        let all = profile.hardware.len();
        say(
            Tone::Plain,
            format!("<b>{absent} of {all} counters and sensors</b> are not available here; reasons below."),
        );
    }
    for doubt in &profile.doubts {
        say(Tone::Warn, escape(doubt));
    }
    out
}
