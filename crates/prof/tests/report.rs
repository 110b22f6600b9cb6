//! The report, the plots, the trace and the stacks of made-up profiles, hostile and empty ones among them.

use crate::sample;
use schwann_prof::plot::{PLOTS, Size};
use schwann_prof::trace::{Event, Trace, Track};
use schwann_prof::{flame, report};

const PANELS: [&str; 16] = [
    "summary",
    "time",
    "roofline",
    "ops",
    "latency",
    "comparisons",
    "memory",
    "sweep",
    "devices",
    "predictions",
    "requirements",
    "efficiency",
    "bottlenecks",
    "recommendations",
    "hardware",
    "origins",
];

#[test]
fn every_panel_is_there_and_nothing_is_loaded() {
    let html = report::html(&[sample::full(), sample::nothing()]);
    for panel in PANELS {
        assert_eq!(html.matches(&format!("data-panel=\"{panel}\"")).count(), 2, "{panel}");
    }
    for load in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!html.contains(load), "{load}");
    }
    assert!(html.contains("default-src 'none'"));
    assert!(html.len() < 1_000_000, "{} bytes", html.len());
}

#[test]
fn figures_that_are_not_known_are_never_drawn_nor_numbers() {
    let nothing = sample::nothing();
    for (name, plot, size) in PLOTS {
        let missing = plot(&nothing, size).expect_err(name);
        let words = missing.to_string();
        assert!(words.contains("no instrument") || words.contains("--sweep"), "{name}: {words}");
    }
    let html = report::html(&[nothing]);
    assert!(!html.contains("<data "), "a number without a source");
    assert!(html.contains("there is no instrument here"));
    assert!(!html.contains("<svg"), "a plot of nothing");
}

#[test]
fn every_number_of_the_document_is_listed_with_its_source() {
    let profile = sample::full();
    let value = serde_json::to_value(&profile).unwrap();
    fn count(value: &serde_json::Value) -> usize {
        match value {
            serde_json::Value::Object(map) if map.contains_key("provenance") => 1,
            serde_json::Value::Object(map) => map.values().map(count).sum(),
            serde_json::Value::Array(values) => values.iter().map(count).sum(),
            _ => 0,
        }
    }
    let html = report::html(&[profile]);
    let list = &html[html.find("sortable all").unwrap()..];
    assert_eq!(list.matches("<tr>").count() - 1, count(&value));
}

#[test]
fn names_cannot_put_markup_into_the_page_or_a_plot() {
    let hostile = sample::hostile();
    let html = report::html(std::slice::from_ref(&hostile));
    assert_eq!(html.matches("<script").count(), 1, "our own alone");
    assert!(!html.contains("alert(1)</script>") && !html.contains('\u{1b}') && !html.contains('\0'));
    for (name, plot, size) in PLOTS {
        let svg = plot(&hostile, size).unwrap().file();
        assert!(!svg.contains("<script") && !svg.contains('\0'), "{name}");
        parse_xml(name, &svg);
    }
}

/// Enough of an XML reader to find a tag that is not closed, or text that should have been escaped.
fn parse_xml(name: &str, text: &str) {
    let mut open: Vec<&str> = vec![];
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let end = at + rest[at..].find('>').unwrap_or_else(|| panic!("{name}: a tag has no end"));
        let tag = &rest[at + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{name}: {tag}");
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed), "{name}");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{name}: {open:?}");
}

#[test]
fn every_plot_is_an_svg_and_a_png_that_is_not_blank() {
    let profile = sample::full();
    for (name, plot, size) in PLOTS {
        for size in [size, Size::HALF, Size::NARROW] {
            let drawing = plot(&profile, size).unwrap();
            let svg = drawing.file();
            assert!(svg.starts_with("<svg xmlns=") && !svg.contains("var(--") && !svg.contains("NaN"), "{name}");
            parse_xml(name, &svg);
        }
        let drawing = plot(&profile, size).unwrap();
        let png = drawing.png(2.0).unwrap();
        let pixels = tiny_skia::Pixmap::decode_png(&png).unwrap();
        let wide = (drawing.size.width * 2.0).round() as u32;
        assert_eq!(pixels.width(), wide, "{name}");
        let ink = pixels.pixels().iter().filter(|p| p.red() < 200).count();
        assert!(ink * 200 > pixels.pixels().len(), "{name}: {ink} dark pixels");
    }
}

#[test]
fn extreme_numbers_break_no_plot() {
    for extreme in [0.0, -1.0, 1e-300, 1e300, f64::MAX, 5e-324] {
        let mut value = serde_json::to_value(sample::full()).unwrap();
        set(&mut value, extreme);
        let profile = serde_json::from_value(value).unwrap();
        for (name, plot, size) in PLOTS {
            for size in [size, Size::NARROW] {
                if let Ok(drawing) = plot(&profile, size) {
                    let svg = drawing.file();
                    assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{name} at {extreme}");
                    assert!(svg.len() < 500_000, "{name} at {extreme}: {} bytes", svg.len());
                }
            }
        }
        report::html(&[profile]);
    }
    fn set(value: &mut serde_json::Value, to: f64) {
        match value {
            serde_json::Value::Object(map) if map.contains_key("provenance") => {
                if let Some(values) = map.get_mut("values").and_then(|v| v.as_array_mut()) {
                    values.iter_mut().for_each(|v| *v = to.into());
                } else {
                    map.insert("value".into(), to.into());
                }
            }
            serde_json::Value::Object(map) => map.values_mut().for_each(|v| set(v, to)),
            serde_json::Value::Array(values) => values.iter_mut().for_each(|v| set(v, to)),
            _ => {}
        }
    }
}

#[test]
fn folded_stacks_of_a_profile_sum_to_its_operations() {
    let profile = sample::full();
    let mut text = vec![];
    flame::write_folded(&flame::of_profile(&profile), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("AutoNCP 64/16 CfC;scan;command.gate 52400\n"), "{text}");
    assert!(text.contains("AutoNCP 64/16 CfC;scan 3100\n"), "{text}");
    let sum: f64 = text.lines().map(|l| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum();
    let ops: f64 = profile.compute.ops.iter().filter_map(|o| o.self_time.value).sum();
    assert!((sum * 1e-9 - ops).abs() < 1e-8);
}

fn trace() -> Trace {
    let mut trace = Trace::new("a \"model\"\n</script>");
    trace.threads = vec!["main".into(), "worker 1".into()];
    for thread in 0..2 {
        trace.events.push(Event::new("scan", "loop", thread, 1e-6, 100.4e-6));
        for step in 0..16 {
            let at = 1e-6 + f64::from(step) * 100.4e-6 / 16.0;
            // Ends that rounding must not push beyond the loop's.
            trace.events.push(Event::new("command.gate", "op", thread, at, 100.4e-6 / 16.0).arg("step", step));
        }
    }
    trace.add_memory(&sample::full().memory.timeline);
    trace.tracks.push(Track {
        name: "package power".into(),
        unit: "W".into(),
        provenance: schwann_core::figure::Provenance::Measured,
        source: "recorded samples".into(),
        points: vec![(0.0, Some(11.5)), (50e-6, None), (90e-6, Some(12.25))],
    });
    trace
}

#[test]
fn a_trace_is_what_perfetto_reads() {
    let trace = trace();
    trace.check().unwrap();
    let mut text = vec![];
    trace.write_chrome(&mut text).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let of = |kind: &str| events.iter().filter(|e| e["ph"] == kind).collect::<Vec<_>>();
    assert_eq!(events.len(), of("M").len() + of("X").len() + of("C").len());
    assert_eq!(of("X").len(), trace.events.len());
    for event in of("X") {
        assert!(event["name"].is_string() && event["cat"].is_string() && event["args"].is_object(), "{event}");
        assert!(event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        assert!(event["ts"].as_f64().unwrap() >= 0.0 && event["dur"].as_f64().unwrap() >= 0.0, "{event}");
    }
    // No partial overlap on a thread, in the numbers that were written.
    for tid in [1, 2] {
        let ns = |e: &serde_json::Value, key: &str| (e[key].as_f64().unwrap() * 1e3).round() as i64;
        let mut open: Vec<i64> = vec![];
        let on = of("X").into_iter().filter(|e| e["tid"] == tid);
        for event in on {
            let (start, end) = (ns(event, "ts"), ns(event, "ts") + ns(event, "dur"));
            open.retain(|e| *e > start);
            assert!(open.iter().all(|e| end <= *e), "{event}");
            open.push(end);
        }
    }
    let names: Vec<&str> =
        of("M").iter().filter(|e| e["name"] == "thread_name").map(|e| e["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["main", "worker 1"]);
    let process = of("M").into_iter().find(|e| e["name"] == "process_name").unwrap();
    assert_eq!(process["args"]["name"], "a \"model\"\n</script>");
    let power: Vec<f64> = of("C")
        .iter()
        .filter(|e| e["name"] == "package power (W)")
        .map(|e| e["args"]["value"].as_f64().unwrap())
        .collect();
    assert_eq!(power, [11.5, 12.25], "what was not known is no point");
    assert!(of("C").iter().any(|e| e["name"] == "live memory (B)" && e["args"]["value"] == 61_440.0));
    assert!(json["otherData"]["track package power (W)"].as_str().unwrap().contains("recorded samples"));
}

#[test]
fn events_that_overlap_without_nesting_are_found() {
    let mut trace = trace();
    trace.events.push(Event::new("late", "op", 1, 90e-6, 50e-6));
    let overlap = trace.check().unwrap_err();
    assert_eq!((overlap.thread, overlap.second.as_str()), (1, "late"));
    assert!(overlap.to_string().contains("neither lies inside"), "{overlap}");
}

#[test]
fn what_is_not_there_is_one_line_and_requirements_come_last_without_a_cross() {
    let profile = sample::full();
    let page = report::html(std::slice::from_ref(&profile));
    let panel = |name: &str| {
        let from = page.find(&format!("data-panel=\"{name}\"")).unwrap_or_else(|| panic!("no panel {name}"));
        let len = page[from..].find("</section>").unwrap();
        (from, &page[from..from + len])
    };
    let (_, hardware) = panel("hardware");
    let absent = profile.hardware.values().filter(|f| f.value.is_none()).count();
    assert!(absent > 0 && hardware.contains(&format!("{absent} more are not there")), "{hardware}");
    let table = &hardware[..hardware.find("<details>").unwrap()];
    assert!(!table.contains("unavailable"), "{table}");
    let (at, summary) = panel("summary");
    let (requirements_at, requirements) = panel("requirements");
    assert!(!summary.contains("not met") && !requirements.contains("× not"), "a small model is no failure of a chip");
    for other in ["time", "bottlenecks", "recommendations", "devices", "hardware"] {
        assert!(at < panel(other).0 && panel(other).0 < requirements_at, "{other}");
    }
    let (_, ways) = panel("comparisons");
    assert!(!ways.contains("as fast"), "{ways}");
}

#[test]
fn a_page_of_something_that_was_stopped_says_so_first() {
    let mut profile = sample::full();
    profile.stopped_at("7 of 200 samples");
    let page = report::html(std::slice::from_ref(&profile));
    let (partial, longest) = (page.find("7 of 200 samples").unwrap(), page.find("takes longest").unwrap());
    assert!(partial < longest);
}

#[test]
fn a_prediction_is_told_with_two_digits_and_the_range_that_it_is_expected_in() {
    use schwann_core::figure::{Ends, Spread};
    let mut profile = sample::full();
    let device = profile.devices.iter_mut().find(|d| !d.host).unwrap();
    let spread = Spread { low: 91.2e-6, high: 188.0e-6, ends: Ends::Band, samples: 40 };
    device.time = schwann_core::Figure::predicted(133.4e-6, "s", "prices").with_spread(spread);
    let page = report::html(std::slice::from_ref(&profile)).replace('\u{a0}', " ");
    assert!(page.contains(">130 µs<") && page.contains(">91 µs to 190 µs<"), "the table has no band");
}
