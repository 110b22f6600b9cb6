//! All of it at a glance.

use super::draw::frame_of;
use super::paint::Paint;
use super::plot::{self, Chart, Curve};
use super::view::View;
use super::{panels, words};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use schwann::Figure;
use schwann::prof::live::Moment;

pub(super) fn draw(view: &mut View, frame: &mut Frame, area: Rect, paint: Paint) {
    let Some(now) = view.now.clone() else { return };
    view.choose_among(0);
    if area.width >= 120 && area.height >= 34 {
        wide(view, &now, frame, area, paint)
    } else {
        narrow(view, &now, frame, area, paint)
    }
}

fn narrow(view: &View, now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let spare = area.height.saturating_sub(6);
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(spare * 3 / 5), Constraint::Length(6), Constraint::Min(0)]).areas(area);
    latency(view, now, frame, top, paint);
    let [runs_area, roof_area, memory_area] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1), Constraint::Fill(1)]).areas(middle);
    runs(view, now, frame, runs_area, paint);
    roof(view, now, frame, roof_area, paint);
    memory(now, frame, memory_area, paint);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(bottom);
    operations(now, frame, left, paint);
    machine(view, now, frame, right, paint);
}

fn wide(view: &View, now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let [left, right] = Layout::horizontal([Constraint::Fill(5), Constraint::Fill(3)]).areas(area);
    let list = (now.operations.len() as u16 + 2).clamp(5, area.height / 3);
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Fill(5), Constraint::Fill(4), Constraint::Length(list)]).areas(left);
    latency(view, now, frame, top, paint);
    let [flops, bandwidth] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(middle);
    let curves = [
        (flops, "Arithmetic", "work.flops", &now.work.flops, &view.about.flops_roof),
        (bandwidth, "Memory traffic", "work.bandwidth", &now.work.bandwidth, &view.about.bandwidth_roof),
    ];
    for (area, title, name, figure, roof) in curves {
        against(view, frame, area, paint, (title, name, figure, roof));
    }
    operations(now, frame, bottom, paint);
    let alerts = if now.alerts.is_empty() { 3 } else { (now.alerts.len() as u16 + 2).min(6) };
    let [runs_area, roof_area, memory_area, alerts_area, machine_area] = Layout::vertical([
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(alerts),
        Constraint::Min(8),
    ])
    .areas(right);
    runs(view, now, frame, runs_area, paint);
    roof(view, now, frame, roof_area, paint);
    memory(now, frame, memory_area, paint);
    panels::holding(now, frame, alerts_area, paint);
    let inner = frame_of(frame, machine_area, "Machine", None, paint);
    let most = inner.height.saturating_sub(7);
    let rows = panels::draw_cores(view, now, frame, Rect { height: most, ..inner }, paint);
    let below = Rect { y: inner.y + rows, height: inner.height.saturating_sub(rows), ..inner };
    machine_rows(view, now, frame, below, paint);
}

/// What the left end of the time axis is called, and the right one.
pub(super) fn ends(view: &View) -> (String, String) {
    let back = view.history.end_s().unwrap_or(0.0) - view.end_s();
    let ago = |s: f64| if s < 1.0 { "now".to_owned() } else { format!("{} ago", words::time(s)) };
    (ago(back + view.span_s()), ago(back))
}

pub(super) fn latency(view: &View, now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let l = &now.latency;
    let part = |name: &'static str, figure: &Figure, style| {
        [Span::raw(name), Span::styled(format!(" {}  ", words::value(figure)), style)]
    };
    let parts = [
        part(" p50", &l.p50, paint.main()),
        part("p95", &l.p95, paint.plain()),
        part("p99", &l.p99, paint.tail()),
        part("max", &l.max, paint.plain()),
    ];
    let title = format!("Latency ({})", words::origin(&l.p50));
    // Where all four have no room, the two that are drawn stay.
    let all = Line::from(parts.iter().flatten().cloned().collect::<Vec<_>>());
    let few = Line::from([&parts[0], &parts[2]].into_iter().flatten().cloned().collect::<Vec<_>>());
    let room = usize::from(area.width.saturating_sub(words::columns(&title) + 6));
    let aside = if all.width() <= room { all } else { few };
    let inner = frame_of(frame, area, &title, Some(aside), paint);
    if l.p50.value.is_none() && view.columns("latency.p50", 64).iter().all(Option::is_none) {
        return why(frame, inner, &l.p50, paint);
    }
    let points = plot::points(inner.width, "s");
    let misses = view.about.deadline_s.map(|_| {
        let columns = view.columns("latency.misses", plot::columns(inner.width, "s"));
        columns.iter().map(|v| v.is_some_and(|v| v > 0.0)).collect()
    });
    let (begin, end) = ends(view);
    let above = match view.about.deadline_s {
        Some(limit) => format!("deadline {}  {end}", words::plain(&schwann::prof::plot::unit::quantity(limit, "s"))),
        None => end,
    };
    let chart = Chart {
        curves: vec![
            Curve { values: view.columns("latency.p99", points), style: paint.tail() },
            Curve { values: view.columns("latency.p50", points), style: paint.main() },
        ],
        unit: "s",
        limit: view.about.deadline_s,
        least_top: 0.0,
        events: misses,
        ends: (begin, above),
    };
    chart.draw(inner, frame.buffer_mut(), paint);
}

fn against(view: &View, frame: &mut Frame, area: Rect, paint: Paint, what: (&str, &str, &Figure, &Figure)) {
    let (title, name, figure, roof) = what;
    let aside = Line::from(vec![
        Span::styled(format!(" {}", words::value(figure)), paint.main()),
        Span::styled(format!(" of {} ", words::value(roof)), paint.dim()),
    ]);
    let inner = frame_of(frame, area, &format!("{title} ({})", words::origin(figure)), Some(aside), paint);
    let values = view.columns(name, plot::points(inner.width, &figure.unit));
    if values.iter().all(Option::is_none) {
        return why(frame, inner, figure, paint);
    }
    let chart = Chart {
        curves: vec![Curve { values, style: paint.main() }],
        unit: &figure.unit,
        limit: roof.value,
        least_top: 0.0,
        events: None,
        ends: ends(view),
    };
    chart.draw(inner, frame.buffer_mut(), paint);
}

/// Why there is nothing to draw.
pub(super) fn why(frame: &mut Frame, area: Rect, figure: &Figure, paint: Paint) {
    let text = format!("unavailable: {}", words::reason(figure));
    let text = ratatui::widgets::Paragraph::new(text).style(paint.dim());
    frame.render_widget(text.wrap(ratatui::widgets::Wrap { trim: true }), area);
}

/// Names and figures in rows; where a figure is not known, the reason.
pub(super) fn rows(frame: &mut Frame, area: Rect, names: usize, rows: &[(&str, &Figure)], paint: Paint) {
    for ((name, figure), y) in rows.iter().zip(area.y..area.bottom()) {
        let room = usize::from(area.width).saturating_sub(names);
        let value = words::cut(&words::value_or_why(figure), room);
        let style = if figure.value.is_some() { paint.plain() } else { paint.dim() };
        let line = Line::from(vec![Span::styled(words::fit(name, names), paint.dim()), Span::styled(value, style)]);
        frame.render_widget(line, Rect { y, height: 1, ..area });
    }
}

fn runs(view: &View, now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let l = &now.latency;
    let inner = frame_of(frame, area, "Runs", None, paint);
    rows(frame, inner, 8, &[("rate", &l.rate), ("busy", &l.busy), ("in all", &l.total)], paint);
    let y = inner.y + 3;
    if y >= inner.bottom() {
        return;
    }
    let row = Rect { y, height: 1, ..inner };
    let name = Span::styled(words::fit("misses", 8), paint.dim());
    let line = match (view.about.deadline_s, l.misses.value, l.misses_total.value) {
        (None, None, _) => Line::from(vec![name, Span::styled("no deadline", paint.dim())]),
        (_, Some(misses), Some(total)) => {
            let style = if misses > 0.0 { paint.bad() } else { paint.good() };
            let all = format!(", {total:.0} in all");
            Line::from(vec![name, Span::styled(format!("{misses:.0}"), style), Span::raw(all)])
        }
        _ => {
            let text = words::cut(&words::value_or_why(&l.misses), usize::from(inner.width).saturating_sub(8));
            Line::from(vec![name, Span::styled(text, paint.dim())])
        }
    };
    frame.render_widget(line, row);
    if y + 1 < inner.bottom() {
        let values = view.columns("latency.rate", usize::from(inner.width).saturating_sub(8));
        let line = Line::from(vec![
            Span::styled(words::fit("rate", 8), paint.dim()),
            Span::styled(plot::spark(&values, None), paint.main()),
        ]);
        frame.render_widget(line, Rect { y: y + 1, height: 1, ..inner });
    }
}

fn roof(view: &View, now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let w = &now.work;
    let inner = frame_of(frame, area, "Of the roof", None, paint);
    let width = usize::from(inner.width);
    let mut lines = vec![];
    match w.roof_share.value {
        Some(share) => {
            let room = width.saturating_sub(7);
            lines.push(Line::from(vec![
                Span::styled(words::right(&words::value(&w.roof_share), 6), paint.title()),
                Span::raw(" "),
                Span::styled(plot::bar(share / 100.0, room), paint.main()),
            ]));
        }
        None => lines.push(Line::styled(words::cut(&words::value_or_why(&w.roof_share), width), paint.dim())),
    }
    for (figure, roof) in [(&w.flops, &view.about.flops_roof), (&w.bandwidth, &view.about.bandwidth_roof)] {
        let text = match (figure.value, roof.value) {
            (None, _) => words::value_or_why(figure),
            (_, Some(_)) => format!("{} of {}", words::value(figure), words::value(roof)),
            (_, None) => format!("{}, roof {}", words::value(figure), words::value_or_why(roof)),
        };
        let style = if figure.value.is_some() { paint.plain() } else { paint.dim() };
        lines.push(Line::styled(words::cut(&text, width), style));
    }
    lines.push(Line::styled(words::origin(&w.flops), paint.dim()));
    for (line, y) in lines.into_iter().zip(inner.y..inner.bottom()) {
        frame.render_widget(line, Rect { y, height: 1, ..inner });
    }
}

fn memory(now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let m = &now.memory;
    let inner = frame_of(frame, area, "Memory", None, paint);
    rows(frame, inner, 9, &[("RSS", &m.rss), ("arena", &m.arena), ("weights", &m.weights), ("pool", &m.pool)], paint);
}

fn operations(now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let origin = now.operations.first().map_or(String::new(), |o| format!(" ({})", words::origin(&o.share)));
    let inner = frame_of(frame, area, &format!("Operations{origin}"), None, paint);
    panels::operation_rows(now, frame, inner, paint, None);
}

fn machine(view: &View, now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let inner = frame_of(frame, area, "Machine", None, paint);
    machine_rows(view, now, frame, inner, paint);
}

/// What matters most of the machine, a row each; where there is room, the other readings that are known.
fn machine_rows(view: &View, now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let reading = |name: &str| now.machine.get(name).map(|figure| (name.to_owned(), figure));
    let first = |names: &[&str]| {
        let mut told = names.iter().filter_map(|name| reading(name));
        let first = told.next()?;
        Some(if first.1.value.is_some() { first } else { told.find(|(_, f)| f.value.is_some()).unwrap_or(first) })
    };
    let wide = area.width >= 60;
    let wanted: [(&str, &[&str]); 7] = [
        ("load", &["cpu_load"]),
        ("clock", &["cpu_frequency", "cpu0_frequency"]),
        (if wide { "temperature" } else { "temp." }, &["temperature_cpu"]),
        ("power", &["package_power", "system_power", "cpu_power"]),
        ("GPU", &["gpu_load", "gpu_power"]),
        (if wide { "Neural Engine" } else { "ANE" }, &["ane_power"]),
        ("traffic", &["dram_bandwidth"]),
    ];
    let mut rows: Vec<(String, Option<(String, &Figure)>)> =
        wanted.iter().map(|(label, names)| ((*label).to_owned(), first(names))).collect();
    let others = now.machine.iter().filter(|(name, figure)| {
        let core = name.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let said = rows.iter().any(|(_, row)| row.as_ref().is_some_and(|(other, _)| other == *name));
        figure.value.is_some() && !core && !said
    });
    rows.extend(others.map(|(name, f)| (words::label(name), Some((name.clone(), f)))).collect::<Vec<_>>());
    let (width, names) = (usize::from(area.width), if wide { 18 } else { 8 });
    for ((label, row), y) in rows.into_iter().zip(area.y..area.bottom()) {
        let title = Span::styled(format!("{} ", words::fit(&label, names - 1)), paint.dim());
        let line = match row {
            None => Line::from(vec![title, Span::styled("not among the readings", paint.dim())]),
            Some((_, figure)) if figure.value.is_none() => {
                let text = words::cut(&words::value_or_why(figure), width.saturating_sub(names));
                Line::from(vec![title, Span::styled(text, paint.dim())])
            }
            Some((name, figure)) => {
                let values = view.columns(&format!("machine.{name}"), width.saturating_sub(names + 11).min(60));
                let top = matches!(figure.unit.as_str(), "%" | "°C").then_some(100.0);
                let value = words::fit(&words::value(figure), 11);
                Line::from(vec![title, Span::raw(value), Span::styled(plot::spark(&values, top), paint.main())])
            }
        };
        frame.render_widget(line, Rect { y, height: 1, ..area });
    }
}
