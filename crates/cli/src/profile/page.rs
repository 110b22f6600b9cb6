//! A profile on a terminal: what matters first (time, rate, where it goes, what to do), the rest after it, in as many
//! columns as there are.

use crate::{devices, out, predict};
use schwann::graph::is_automatic;
use schwann::plan::{bytes, count, seconds};
use schwann::prof::analyze::cliffs;
use schwann::prof::device::predict::NEVER_COMPARED;
use schwann::prof::plot::unit::{faster, percent};
use schwann::prof::profile::{Bound, Comparison, Op, Profile, Recommendation, Roof, Verdict};
use schwann::{Figure, Provenance};
use std::io::{Result, Write};

/// Operations shown one by one.
const MOST_OPS: usize = 6;
/// Columns of a bar that stands for the whole run.
const BAR: usize = 10;
/// Columns of the names of details.
const NAME: usize = 12;

/// A figure for people; without a value, why.
fn show(figure: &Figure, f: impl Fn(f64) -> String) -> String {
    match figure.value {
        Some(value) => f(value),
        None => format!("unavailable ({})", out::printable(figure.reason.as_deref().unwrap_or("no reason given"))),
    }
}

fn time(figure: &Figure) -> String {
    show(figure, seconds)
}

fn whole(figure: &Figure) -> String {
    show(figure, |v| format!("{v:.0}"))
}

/// Where the page goes, and how wide it is.
struct Page<'a> {
    out: &'a mut dyn Write,
    width: usize,
}

impl Page<'_> {
    /// Text from this column on, broken between words.
    fn text(&mut self, indent: usize, text: &str) -> Result<()> {
        writeln!(self.out, "{}", out::wrap(text, &" ".repeat(indent), &" ".repeat(indent), self.width))
    }

    fn heading(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "\n{}", out::wrap(&out::paint(out::TITLE, text), "  ", "  ", self.width))
    }

    /// A name, and what there is to say of it.
    fn detail(&mut self, name: &str, text: &str) -> Result<()> {
        let first = format!("  {} ", out::paint(out::NAME, format!("{name:<NAME$}")));
        writeln!(self.out, "{}", out::wrap(text, &first, &" ".repeat(NAME + 3), self.width))
    }
}

/// What a person can read in ten seconds, and then the details.
pub(super) fn write(out: &mut dyn Write, p: &Profile, width: usize) -> Result<()> {
    let mut page = Page { out, width };
    let (c, m, w) = (&p.compute, &p.memory, &p.workload);
    let title = out::paint(out::TITLE, out::printable(&p.model.name));
    page.text(0, &format!("{title}: {}", out::printable(&p.model.description)))?;
    let threads = show(&w.threads, |v| out::threads(v as usize));
    let steps = show(&w.steps, |v| format!("{v:.0} step{}", if v == 1.0 { "" } else { "s" }));
    // Another backend than the processor is what it was run on; the machine is where that is.
    let is_cpu = w.on_cpu();
    let cpu = out::printable(&p.machine.cpu);
    let on = match is_cpu {
        true => format!("{cpu}, {}, {threads}", p.machine.isa),
        false => format!("{}, in a machine with {cpu}", out::printable(&p.roof.device)),
    };
    let limit = if is_cpu { "this machine's limit" } else { "this device's limit" };
    let how = format!("{on}, batch {}, {steps}, {}, {}", whole(&w.batch), w.dtype, w.compilation);
    page.text(2, &out::paint(out::DIM, how))?;
    if let Some(tuned) = &p.tuned {
        page.text(2, &out::paint(out::DIM, out::printable(&tuned.to_string())))?;
    }
    if let Some(partial) = &p.partial {
        page.text(2, &out::paint(out::BAD, format!("partial: {}", out::printable(partial))))?;
    }
    writeln!(page.out)?;
    let median = out::paint(out::GOOD, time(&c.time_p50));
    let most = show(&c.time_p95, |v| format!("95% within {}", seconds(v)));
    page.text(2, &format!("{median} per run, the median of {} samples; {most} (measured)", whole(&w.runs)))?;
    let flops = show(&c.tflops, |v| format!("{}flop/s", out::rate(v * 1e12)));
    let roof = match c.of_roof.value {
        Some(v) => format!("{}% of {limit} (derived)", percent(v, 0)),
        None => format!("of {limit}: {}", show(&c.of_roof, |_| String::new())),
    };
    let rate = show(&c.throughput, |v| format!("{} sequence steps/s", out::rate(v)));
    page.text(2, &format!("{rate}, {flops} (derived); {roof}"))?;

    let derived = c.ops.iter().any(|op| op.whole_time.is_some());
    page.heading(if derived {
        "Where the time goes (measured; ≈ derived)"
    } else {
        "Where the time goes (measured)"
    })?;
    operations(&mut page, &c.ops)?;
    if !p.bottlenecks.is_empty() || !p.recommendations.is_empty() {
        page.heading("What to do")?;
        for r in &p.recommendations {
            recommendation(&mut page, r)?;
        }
        if let Some(b) = p.bottlenecks.first() {
            let win = format!("{} per run ({}%)", time(&b.could_win), show(&b.share, |v| percent(v, 0)));
            let (what, why) = (out::printable(&b.what), out::printable(&b.why));
            page.text(2, &format!("Largest possible gain: {win} at {what}: {why} (derived)"))?;
        }
    }
    if !p.comparisons.is_empty() {
        page.heading("Other ways to run it (measured in turns with this one)")?;
        comparisons(&mut page, &p.comparisons)?;
    }
    if !p.sweep.is_empty() {
        page.heading("Other sizes (times measured, rates derived)")?;
        sweep(&mut page, p)?;
    }

    page.heading("Details")?;
    page.detail(
        "times",
        &format!("least {}, p95 {}, p99 {} (measured)", time(&c.time_min), time(&c.time_p95), time(&c.time_p99)),
    )?;
    let sizes = [("arena", &m.arena), ("weights", &m.weights), ("held", &m.held), ("RSS", &m.rss)];
    // What nobody measured here is in the JSON, with the reason.
    let known = sizes.iter().filter_map(|(name, f)| Some(format!("{name} {}", bytes(f.value? as u64))));
    let moved = show(&m.bandwidth, |v| format!("{}B/s moved", out::rate(v * 1e9)));
    page.detail("memory", &format!("{}; {moved}", known.collect::<Vec<_>>().join(", ")))?;
    if !is_cpu && p.roof.flops.value.is_some() {
        page.detail("limits", &limits(&p.roof))?;
    }
    let watching = format!(
        "watching added {}% ({}), already subtracted; operations sum to {}% of the runs",
        show(&c.overhead, |v| percent(v, 1)),
        c.overhead.source.rsplit(", ").next().unwrap_or_default(),
        show(&c.attributed, |v| percent(v, 1))
    );
    page.detail("measurement", &watching)?;
    if let Some(phases) = &c.phases {
        let told = "times inside loops: what the kernel takes less without a step, run in turns with the whole";
        page.detail("≈ derived", &show(phases, |v| format!("{told}; that took {} (--phases never)", seconds(v))))?;
    }
    elsewhere(&mut page, p)?;
    for r in p.requirements.iter().filter(|_| p.requirements.len() <= 6) {
        let met = match r.met {
            Some(true) => out::paint(out::GOOD, "reached"),
            Some(false) => "not reached".into(),
            None => "not known".into(),
        };
        let asked =
            format!("{} {} {}: the guide asks for {}", r.device, r.level, r.metric, devices::number(&r.required));
        page.detail("guide", &format!("{asked}; {} is {met}", devices::number(&r.reached)))?;
    }
    for doubt in &p.doubts {
        page.detail("doubt", &out::printable(doubt))?;
    }
    Ok(())
}

/// What the device can do, as far as it was measured.
fn limits(roof: &Roof) -> String {
    let memory = roof.bandwidth.iter().find(|n| n.name == "memory");
    let memory = memory.map_or("–".into(), |n| devices::number(&n.figure));
    let (flops, functions) = (devices::number(&roof.flops), devices::number(&roof.functions));
    let run = roof.run_overhead.as_ref().map_or("–".into(), time);
    let step = time(&roof.step_overhead);
    format!(
        "{flops}, {functions} functions, {memory} memory, {run} for a run of nothing (measured), {step} for a step of nothing (derived)"
    )
}

/// What it would take on some other devices.
fn elsewhere(page: &mut Page<'_>, p: &Profile) -> Result<()> {
    let Some(host) = p.devices.iter().find(|d| d.host) else { return Ok(()) };
    let error = match host.error.value {
        Some(v) if v.abs() < 0.5 => "as measured".into(),
        Some(v) if v < 0.0 => format!("{:.0}% below what was measured", -v),
        Some(v) => format!("{v:.0}% above what was measured"),
        None => "nothing measured to compare it with".into(),
    };
    let there = |name: &str| {
        let found = p.devices.iter().find(|d| !d.host && d.device == name)?;
        found.time.value?;
        Some(format!("{name} {}", predict::told(&found.time)))
    };
    let there: Vec<String> = ["M1", "M1 Max", "M4"].into_iter().filter_map(there).collect();
    let here = predict::told(&host.time);
    let seen = p.devices.iter().any(|d| !d.host && !d.compared.is_empty() && d.compared != NEVER_COMPARED);
    let compared = if seen { "some compared with a real one (`schwann predict --device`)" } else { NEVER_COMPARED };
    page.detail("predicted", &format!("here {here}, {error}; {}, {compared}", there.join(", ")))
}

/// A recommendation: what, what came of it, and how it is done.
fn recommendation(page: &mut Page<'_>, r: &Recommendation) -> Result<()> {
    let came = match r.verdict {
        Verdict::Untested => match r.expected.value {
            Some(v) => format!("up to {v:.1}× faster (predicted, not tried; --prove tries it)"),
            None => "not tried".into(),
        },
        Verdict::Gain => out::paint(out::GOOD, format!("{} (measured)", faster(&r.measured))),
        Verdict::None | Verdict::Undecided => format!("{} (measured)", faster(&r.measured)),
        Verdict::Loss => format!("tried, do not: {} (measured)", faster(&r.measured)),
    };
    page.text(2, &format!("{}: {came}", out::printable(&r.title)))?;
    page.text(4, &out::paint(out::DIM, format!("{}; {}", out::printable(&r.evidence), out::printable(&r.how))))
}

fn comparisons(page: &mut Page<'_>, all: &[Comparison]) -> Result<()> {
    for comparison in all {
        let text = match comparison.speedup.value {
            None => show(&comparison.speedup, |_| String::new()),
            Some(_) => {
                let off = match comparison.difference.value {
                    Some(0.0) => "the same outputs".into(),
                    Some(d) => format!("outputs differ by {d:.1e} at most"),
                    None => "outputs not compared".to_owned(),
                };
                format!("{}; {} per run, {off}", faster(&comparison.speedup), time(&comparison.time))
            }
        };
        let name = format!("{}:", out::printable(&comparison.name));
        page.text(2, &format!("{} {text}", out::paint(out::NAME, name)))?;
    }
    Ok(())
}

fn sweep(page: &mut Page<'_>, p: &Profile) -> Result<()> {
    let mut table =
        out::Table::new(&[">  batch", ">steps", ">per run", ">flop/s", ">GB/s", ">sequence steps/s", ">memory"]);
    for point in &p.sweep {
        table.row([
            whole(&point.batch),
            whole(&point.steps),
            point.time.value.map_or("–".into(), seconds),
            point.tflops.value.map_or("–".into(), |v| out::rate(v * 1e12)),
            point.bandwidth.value.map_or("–".into(), |v| format!("{v:.1}")),
            point.throughput.value.map_or("–".into(), out::rate),
            point.memory.value.map_or("–".into(), |v| bytes(v as u64)),
        ]);
    }
    table.write(page.out)?;
    for point in p.sweep.iter().filter(|point| point.time.value.is_none()) {
        let why = point.time.reason.as_deref().unwrap_or("no reason given");
        page.text(2, &format!("batch {}: unavailable ({})", whole(&point.batch), out::printable(why)))?;
    }
    for cliff in cliffs(p) {
        page.text(2, &out::paint(out::BAD, cliff))?;
    }
    Ok(())
}

/// What limits an operation, in a word.
fn limit(bound: Bound) -> &'static str {
    match bound {
        Bound::Compute => "arithmetic",
        Bound::Functions => "functions",
        Bound::Memory => "memory",
        Bound::Overhead => "overhead",
        Bound::Unknown => "",
    }
}

/// A node's name where a person gave it one: `add_26` is a number in a list, and says nothing.
fn given_name(op: &Op) -> Option<String> {
    (!is_automatic(&op.name) && !op.path.is_empty()).then(|| out::printable(&op.name))
}

/// What an operation does, in words that fit.
fn what(op: &Op, width: usize) -> String {
    let kernel = match op.op.as_str() {
        "scan" if op.whole_time.is_none() && op.flops.value.is_none_or(|f| f == 0.0) => {
            "the loop itself: rows in and out, states".into()
        }
        _ => out::printable(&op.kernel),
    };
    out::cut(&given_name(op).map_or(kernel.clone(), |name| format!("{name}: {kernel}")), width)
}

/// A row of the table of operations.
struct Row {
    share: f64,
    time: String,
    what: String,
    limit: &'static str,
}

/// An operation's time; one that is derived is marked.
fn marked(figure: &Figure) -> String {
    let mark = if figure.provenance == Provenance::Derived { "≈" } else { "" };
    figure.value.map_or("–".into(), |value| format!("{mark}{}", seconds(value)))
}

/// What an operation took with what was told apart inside it, in seconds.
fn with_parts(op: &Op) -> Option<f64> {
    op.whole_time.as_ref().unwrap_or(&op.self_time).value
}

/// The operations that take longest, each with its part of the run; below a loop that was told apart, its parts.
fn operations(page: &mut Page<'_>, ops: &[Op]) -> Result<()> {
    // What has no time of its own is in the JSON, with the reason.
    let part_of = |op: &Op| ops.iter().position(|o| o.whole_time.is_some() && is_inside(op, o));
    let mut order: Vec<&Op> = ops.iter().filter(|op| with_parts(op).is_some() && part_of(op).is_none()).collect();
    order.sort_by(|a, b| with_parts(b).unwrap_or(0.0).total_cmp(&with_parts(a).unwrap_or(0.0)));
    let (shown, rest) = order.split_at(order.len().min(MOST_OPS));
    let column = if ops.iter().any(|op| op.whole_time.is_some()) { 9 } else { 8 };
    let wide = page.width.saturating_sub(2 + 4 + 2 + column + 2 + BAR + 2 + 2 + 10);
    // Seconds of all of them.
    let total = ops.iter().find_map(|op| Some(op.self_time.value? / op.share.value.filter(|s| *s > 0.0)? * 100.0));
    let mut rows = vec![];
    for op in shown {
        let Some(time) = &op.whole_time else {
            let share = op.share.value.unwrap_or(0.0);
            rows.push(Row { share, time: marked(&op.self_time), what: what(op, wide), limit: limit(op.bound) });
            continue;
        };
        let share = time.value.zip(total).map_or(0.0, |(time, total)| time / total * 100.0);
        rows.push(Row { share, time: marked(time), what: what(op, wide), limit: "" });
        let mut parts: Vec<&Op> = ops.iter().filter(|o| is_inside(o, op) && o.self_time.value.is_some()).collect();
        parts.sort_by(|a, b| b.self_time.value.unwrap_or(0.0).total_cmp(&a.self_time.value.unwrap_or(0.0)));
        let room = wide.saturating_sub(2);
        let (most, others) = parts.split_at(parts.len().min(MOST_OPS));
        for part in most {
            let (share, text) = (part.share.value.unwrap_or(0.0), format!("  {}", what(part, room)));
            rows.push(Row { share, time: marked(&part.self_time), what: text, limit: limit(part.bound) });
        }
        rows.extend(sum(others, "  "));
        if op.self_time.value.is_some() {
            let (share, text) = (op.share.value.unwrap_or(0.0), "  the rest of it: waiting, inputs in, results out");
            rows.push(Row { share, time: marked(&op.self_time), what: out::cut(text, wide), limit: "" });
        }
    }
    rows.extend(sum(rest, ""));
    for Row { share, time, what, limit } in rows {
        let bar = "█".repeat((share / 100.0 * BAR as f64).round() as usize);
        let gap = " ".repeat(wide.saturating_sub(out::columns(&what)));
        let share = percent(share, 0) + "%";
        let limit = if limit.is_empty() { String::new() } else { format!("{gap}  {}", out::paint(out::DIM, limit)) };
        writeln!(page.out, "  {share:>4}  {time:>column$}  {bar:<BAR$}  {what}{limit}")?;
    }
    without_times(page, ops)
}

/// Whether an operation is in this loop.
fn is_inside(op: &Op, looped: &Op) -> bool {
    op.path.len() > looped.path.len() && op.path.starts_with(&looped.path)
}

/// What is not shown one by one.
fn sum(ops: &[&Op], indent: &str) -> Option<Row> {
    let seconds_of: f64 = ops.iter().filter_map(|op| with_parts(op)).sum();
    let share: f64 = ops.iter().filter_map(|op| op.share.value).sum();
    let what = format!("{indent}{} more", count(ops.len() as u64));
    (!ops.is_empty()).then(|| Row { share, time: seconds(seconds_of), what, limit: "" })
}

/// Why some operations have no time.
fn without_times(page: &mut Page<'_>, ops: &[Op]) -> Result<()> {
    let mut missing: Vec<(&str, Vec<&Op>)> = vec![];
    for op in ops.iter().filter(|op| op.self_time.value.is_none()) {
        let why = op.self_time.reason.as_deref().unwrap_or("no reason given");
        match missing.iter_mut().find(|(known, _)| *known == why) {
            Some((_, ops)) => ops.push(op),
            None => missing.push((why, vec![op])),
        }
    }
    for (why, ops) in missing.iter().take(MOST_OPS) {
        let what = match &ops[..] {
            [op] if op.whole_time.is_some() => format!("the rest of {}", out::printable(&op.name)),
            [op] => out::printable(&op.name),
            several => format!("{} operations", several.len()),
        };
        page.text(2, &out::paint(out::DIM, format!("no time for {what}: {}", out::printable(why))))?;
    }
    if let Some(more) = missing.len().checked_sub(MOST_OPS + 1) {
        page.text(2, &out::paint(out::DIM, format!("no time for {} more (--json says why)", more + 1)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use schwann_prof::example;

    fn page(profile: &Profile, width: usize) -> String {
        let mut text = vec![];
        write(&mut text, profile, width).unwrap();
        anstream::adapter::strip_str(std::str::from_utf8(&text).unwrap()).to_string()
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_words_stay_whole() {
        let mut long = example::profile();
        long.model.description = "a rather long description of a network ".repeat(6);
        long.doubts.push("something or other was running beside this and took its time ".repeat(4));
        for profile in [example::profile(), example::nothing(), long] {
            for width in [70, 80, 120] {
                let text = page(&profile, width);
                for line in text.lines() {
                    assert!(out::columns(line) <= width, "{} columns: {line}", out::columns(line));
                }
                if width == 80 {
                    assert!(text.split_whitespace().any(|w| w == "run,") || text.contains("unavailable"), "{text}");
                }
            }
        }
    }

    #[test]
    fn the_table_of_a_backend_nothing_like_the_cpu_is_right() {
        use schwann::prof::models::{Sizes, built_in};
        use schwann::prof::profiler::{Options, Profiler};
        crate::strange::Strange::register().unwrap();
        let backend = "strange".parse().unwrap();
        let options = Options { batch: 2, steps: 3, runs: 10, seconds: 0.3, backend, ..Options::default() };
        let model = built_in("wired-cfc", &Sizes::default()).unwrap().unwrap();
        let profile = Profiler::new(model).named("wired-cfc").with(options).profile_all().unwrap();
        let text = page(&profile, 100);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("strange") && words.contains("batch 2, 3 steps, f32, fused"), "{text}");
        assert!(words.contains("of this device's limit: unavailable") && !words.contains("1 thread"), "{text}");
        // The longest come first, by the names that the backend gave them, and have the shares that were measured.
        let mut ops: Vec<&Op> = profile.compute.ops.iter().collect();
        ops.sort_by(|a, b| b.share.value.unwrap().total_cmp(&a.share.value.unwrap()));
        let table: Vec<&str> = text.lines().skip_while(|l| !l.contains("Where the time goes")).skip(1).collect();
        for (op, line) in ops.iter().zip(&table).take(3) {
            assert!(line.contains(&format!("{}%", percent(op.share.value.unwrap(), 0))), "{line}\n{text}");
            let (glyph, own) = (line.contains("glyph of "), op.path.is_empty() || op.op == "scan");
            assert!(glyph || own, "{line}\n{text}");
        }
        assert!(table.iter().any(|line| line.contains("glyph of ")), "{text}");
    }

    #[test]
    fn parts_of_a_loop_that_was_told_apart_stand_below_it_and_are_marked() {
        let mut profile = example::profile();
        let seconds = |value: f64| Figure::derived(value, "s", "made up");
        let mut looped = profile.compute.ops[0].clone();
        let parts: f64 = (1..5).filter_map(|i| profile.compute.ops[i].self_time.value).sum();
        (looped.name, looped.op, looped.path) = ("steps".into(), "scan".into(), vec![1]);
        looped.whole_time = Some(Figure::measured(parts + 1e-6, "s", "made up"));
        looped.self_time = seconds(1e-6);
        for op in &mut profile.compute.ops[1..5] {
            op.self_time = seconds(op.self_time.value.unwrap());
        }
        profile.compute.ops[4].self_time = Figure::unavailable("s", "made up", "below what can be told apart");
        profile.compute.ops[4].share = Figure::unavailable("%", "made up", "below what can be told apart");
        profile.compute.ops.insert(1, looped);
        profile.compute.phases = Some(Figure::measured(2.0, "s", "made up"));
        let text = page(&profile, 80);
        let table: Vec<&str> = text.lines().skip_while(|l| !l.contains("Where the time goes")).skip(1).collect();
        assert!(text.contains("(measured; ≈ derived)"), "{text}");
        assert!(table[0].contains("steps") && !table[0].contains('≈'), "{text}");
        let marked = |line: &str, name: &str| line.contains(name) && line.contains('≈');
        assert!(
            marked(table[1], "  heads") && marked(table[2], "backbone.1") && marked(table[3], "backbone.0"),
            "{text}"
        );
        assert!(marked(table[4], "the rest of it"), "{text}");
        assert!(table[5].contains("y") && !table[5].contains('≈'), "{text}");
        assert!(text.contains("no time for projected: below what can be told apart"), "{text}");
        assert!(text.contains("that took 2.00 s"), "{text}");
    }

    #[test]
    fn time_rate_operations_and_advice_come_before_the_details() {
        let text = page(&example::profile(), 80);
        let order = ["per run, the median", "sequence steps/s", "Where the time goes", "What to do", "Details", "p99"];
        let places: Vec<_> =
            order.map(|part| text.find(part).unwrap_or_else(|| panic!("no `{part}` in\n{text}"))).into();
        assert!(places.windows(2).all(|w| w[0] < w[1]), "{places:?}\n{text}");
    }

    #[test]
    fn ratios_are_told_in_the_direction_above_one_and_nothing_is_minus_zero() {
        let mut profile = example::profile();
        for (i, c) in profile.comparisons.iter_mut().enumerate() {
            c.speedup.value = Some([0.11, 1.6, 0.4][i % 3]);
            c.speedup.spread = None;
        }
        profile.compute.overhead.value = Some(-0.04);
        let text = page(&profile, 80);
        assert!(text.contains("9.1× slower") && !text.contains("× as fast"), "{text}");
        assert!(!text.contains("-0%") && !text.contains("-0.0%") && !text.contains("tflop/s"), "{text}");
    }

    #[test]
    fn a_larger_batch_that_does_less_is_said() {
        let mut profile = example::profile();
        assert!(!page(&profile, 80).contains("slower per sequence"));
        let slow = profile.sweep[0].throughput.value.unwrap() * 0.5;
        profile.sweep[1].throughput.value = Some(slow);
        let text = page(&profile, 80).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("Batch 8 with 16 steps is slower per sequence than batch 1"), "{text}");
    }
}
