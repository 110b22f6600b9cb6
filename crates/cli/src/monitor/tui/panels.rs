//! One subject on the whole screen: operations, memory, the machine, alerts.

use super::draw::frame_of;
use super::overview::{ends, why};
use super::paint::Paint;
use super::plot::{self, Chart, Curve};
use super::view::View;
use super::words;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};
use schwann::prof::live::Moment;
use schwann::{Figure, show};

/// The first of so many rows, for the chosen one to be seen among `room`.
fn first_row(chosen: usize, rows: usize, room: usize) -> usize {
    chosen.saturating_sub(room / 2).min(rows.saturating_sub(room))
}

pub(super) fn operations(view: &mut View, frame: &mut Frame, area: Rect, paint: Paint) {
    let Some(now) = view.now.clone() else { return };
    view.choose_among(now.operations.len());
    let [list, detail] = Layout::vertical([Constraint::Min(5), Constraint::Length(7)]).areas(area);
    let count = Line::styled(format!(" {} ", now.operations.len()), paint.dim());
    let origin = now.operations.first().map_or(String::new(), |o| format!(" ({})", words::origin(&o.share)));
    let inner = frame_of(frame, list, &format!("Time by operation{origin}"), Some(count), paint);
    operation_rows(&now, frame, inner, paint, Some(view.chosen()));
    let inner = frame_of(frame, detail, "The chosen one", None, paint);
    let Some(chosen) = now.operations.get(view.chosen()) else { return };
    let name = format!("{}  {}", show::name(&chosen.name), show::name(&chosen.kernel));
    let text = format!("{} of a run's time, {} a run", words::value_or_why(&chosen.share), words::value(&chosen.time));
    let lines = [
        Line::styled(words::cut(&name, usize::from(inner.width)), paint.title()),
        Line::raw(words::cut(&text, usize::from(inner.width))),
        Line::styled(words::cut(&source(&chosen.time), usize::from(inner.width)), paint.dim()),
        Line::from(vec![
            Span::styled(words::fit(&format!("share, {}", words::span(view.span_s())), 14), paint.dim()),
            Span::styled(
                plot::spark(
                    &view.columns(&format!("operations.{}", chosen.name), usize::from(inner.width).saturating_sub(14)),
                    Some(100.0),
                ),
                paint.main(),
            ),
        ]),
    ];
    for (line, y) in lines.into_iter().zip(inner.y..inner.bottom()) {
        frame.render_widget(line, Rect { y, height: 1, ..inner });
    }
}

/// Operations as bars, as many as there is room for; with a chosen one, around that.
pub(super) fn operation_rows(now: &Moment, frame: &mut Frame, area: Rect, paint: Paint, chosen: Option<usize>) {
    if now.operations.is_empty() {
        let reason = now.operations_reason.as_deref().unwrap_or("no run was watched in this moment");
        let text = Paragraph::new(format!("unavailable: {}", show::line(reason))).style(paint.dim());
        return frame.render_widget(text.wrap(Wrap { trim: true }), area);
    }
    let (width, room) = (usize::from(area.width), usize::from(area.height));
    let bars = (width / 5).clamp(6, 40);
    let kernels = if width >= 70 { (width - bars - 18) / 2 } else { 0 };
    let names = width.saturating_sub(5 + bars + 1 + kernels + 10);
    let first = chosen.map_or(0, |chosen| first_row(chosen, now.operations.len(), room));
    let greatest = now.operations.iter().filter_map(|o| o.share.value).fold(1.0, f64::max);
    for ((at, o), y) in now.operations.iter().enumerate().skip(first).zip(area.y..area.bottom()) {
        let share = o.share.value.map_or("–".into(), |v| format!("{v:.0}%"));
        let part = o.share.value.map_or(0.0, |v| v / greatest);
        let mut spans = vec![
            Span::raw(format!("{} ", words::right(&share, 4))),
            Span::styled(plot::bar(part, bars), paint.main()),
            Span::raw(format!(" {}", words::fit(&show::name(&o.name), names))),
        ];
        if kernels > 0 {
            let text = words::fit(&show::name(&o.kernel), kernels - 1);
            spans.push(Span::styled(format!(" {text}"), paint.dim()));
        }
        let time = o.time.value.map_or("–".into(), |_| words::value(&o.time));
        spans.push(Span::raw(words::right(&time, 10)));
        let line = Line::from(spans);
        let style = if chosen == Some(at) { paint.chosen() } else { paint.plain() };
        frame.render_widget(line.style(style), Rect { y, height: 1, ..area });
    }
}

/// What stands beside a figure: its origin, its source.
fn source(figure: &Figure) -> String {
    format!("{}: {}", words::origin(figure), show::line(&figure.source))
}

/// A list of readings with their courses; all of the chosen one below.
fn readings(
    view: &mut View,
    frame: &mut Frame,
    area: Rect,
    paint: Paint,
    title: &str,
    rows: &[(String, String, Figure)],
) {
    view.choose_among(rows.len());
    let [list, detail] = Layout::vertical([Constraint::Min(3), Constraint::Length(5)]).areas(area);
    let inner = frame_of(frame, list, title, Some(Line::styled(" ↑ ↓ choose ", paint.dim())), paint);
    let width = usize::from(inner.width);
    let names = rows.iter().map(|r| usize::from(words::columns(&r.1))).max().unwrap_or(0).clamp(8, width / 3);
    let courses = width.saturating_sub(names + 1 + 14 + 1 + 12).min(120);
    let first = first_row(view.chosen(), rows.len(), usize::from(inner.height));
    for ((at, (key, name, figure)), y) in rows.iter().enumerate().skip(first).zip(inner.y..inner.bottom()) {
        let name = Span::raw(format!("{} ", words::fit(name, names)));
        let line = if figure.value.is_some() {
            let values = view.columns(key, courses);
            let top = matches!(figure.unit.as_str(), "%" | "°C").then_some(100.0);
            Line::from(vec![
                name,
                Span::raw(format!("{} ", words::right(&words::value(figure), 14))),
                Span::styled(words::fit(&plot::spark(&values, top), courses), paint.main()),
                Span::styled(words::right(words::origin(figure), 12), paint.dim()),
            ])
        } else {
            let text = words::fit(&words::value_or_why(figure), width.saturating_sub(names + 1));
            Line::from(vec![name, Span::styled(text, paint.dim())])
        };
        let style = if at == view.chosen() { paint.chosen() } else { paint.plain() };
        frame.render_widget(line.style(style), Rect { y, height: 1, ..inner });
    }
    let Some((key, name, figure)) = rows.get(view.chosen()) else { return };
    let inner = frame_of(frame, detail, name, None, paint);
    let key = key.split_once('.').map_or(key.as_str(), |(_, name)| name);
    let text = match figure.value {
        Some(_) => format!("{} ({}), {}", words::value(figure), source(figure), show::name(key)),
        None => format!("{}; source: {}", words::value_or_why(figure), show::line(&figure.source)),
    };
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), inner);
}

pub(super) fn memory(view: &mut View, frame: &mut Frame, area: Rect, paint: Paint) {
    let Some(now) = view.now.clone() else { return };
    let m = &now.memory;
    let mut rows: Vec<(String, String, Figure)> = [
        ("rss", "resident (RSS)", &m.rss),
        ("arena", "arena of a session", &m.arena),
        ("weights", "packed weights", &m.weights),
        ("pool", "pool for reuse", &m.pool),
    ]
    .into_iter()
    .map(|(key, name, figure)| (format!("memory.{key}"), name.to_owned(), figure.clone()))
    .collect();
    let of_machine = |name: &str| name.starts_with("memory") || name.starts_with("swap") || name.contains("_memory_");
    rows.extend(listed(&now, of_machine));
    let below = (rows.len() as u16 + 7).min(area.height.saturating_sub(7));
    let [top, list] = Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(area);
    let aside = Line::styled(format!(" {} ", words::value(&m.rss)), paint.main());
    let inner = frame_of(frame, top, &format!("Resident memory ({})", words::origin(&m.rss)), Some(aside), paint);
    let values = view.columns("memory.rss", plot::points(inner.width, "B"));
    if values.iter().all(Option::is_none) {
        why(frame, inner, &m.rss, paint);
    } else {
        let curves = vec![Curve { values, style: paint.main() }];
        let chart = Chart { curves, unit: "B", limit: None, least_top: 0.0, events: None, ends: ends(view) };
        chart.draw(inner, frame.buffer_mut(), paint);
    }
    readings(view, frame, list, paint, "Where memory is", &rows);
}

/// Readings of the machine that a rule picks: key, label, figure; what is known comes first.
fn listed(now: &Moment, wanted: impl Fn(&str) -> bool) -> Vec<(String, String, Figure)> {
    let reading = |(name, figure): (&String, &Figure)| (format!("machine.{name}"), words::label(name), figure.clone());
    let mut rows: Vec<_> = now.machine.iter().filter(|(name, _)| wanted(name)).map(reading).collect();
    rows.sort_by_key(|(_, _, figure)| figure.value.is_none());
    rows
}

/// A core's number, load and clock.
pub(super) type Core<'a> = (usize, Option<&'a Figure>, Option<&'a Figure>);

/// The cores that are told of, by their numbers.
pub(super) fn cores(now: &Moment) -> Vec<Core<'_>> {
    let number = |name: &str, what: &str| name.strip_prefix("cpu")?.strip_suffix(what)?.parse::<usize>().ok();
    let mut numbers: Vec<usize> =
        now.machine.keys().filter_map(|name| number(name, "_load").or(number(name, "_frequency"))).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let get = |core: usize, what: &str| now.machine.get(&format!("cpu{core}_{what}"));
    numbers.into_iter().map(|core| (core, get(core, "load"), get(core, "frequency"))).collect()
}

/// Cores in columns; how many rows it took.
pub(super) fn draw_cores(view: &View, now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) -> u16 {
    let (cores, most) = (cores(now), usize::from(area.height));
    if cores.is_empty() || most == 0 || area.width < 20 {
        return 0;
    }
    // As few columns as the rows allow: wide ones show more.
    let columns = cores.len().div_ceil(most).max(if area.width >= 70 { 2 } else { 1 });
    let columns = columns.min((usize::from(area.width) / 22).max(1)).min(cores.len());
    // Where not all have a place, the last row says so.
    let rows = if columns * most < cores.len() { most - 1 } else { cores.len().div_ceil(columns) };
    let width = usize::from(area.width) / columns;
    for (at, (core, load, clock)) in cores.iter().enumerate().take(rows * columns) {
        let (column, row) = (at / rows, at % rows);
        let place =
            Rect { x: area.x + (column * width) as u16, y: area.y + row as u16, width: width as u16, height: 1 };
        let clock = clock.filter(|c| c.value.is_some()).map(words::value).unwrap_or_default();
        let clock = if width >= 34 { words::right(&clock, 9) } else { String::new() };
        let room = width.saturating_sub(4 + 6 + usize::from(words::columns(&clock)) + 2);
        let mut spans = vec![Span::styled(words::fit(&core.to_string(), 4), paint.dim())];
        match load.and_then(|f| f.value) {
            Some(percent) => {
                let (bars, course) = if room >= 24 { (room / 2, room - room / 2 - 1) } else { (room, 0) };
                spans.push(Span::styled(plot::bar(percent / 100.0, bars), paint.load(percent)));
                if course > 0 {
                    let values = view.columns(&format!("machine.cpu{core}_load"), course);
                    spans.push(Span::styled(format!(" {}", plot::spark(&values, Some(100.0))), paint.dim()));
                }
                spans.push(Span::raw(words::right(&format!("{percent:.0} %"), 6)));
            }
            None => {
                let text = load.map_or("unavailable".into(), words::value_or_why);
                spans.push(Span::styled(words::fit(&text, room + 6), paint.dim()));
            }
        }
        spans.push(Span::styled(clock, paint.plain()));
        frame.render_widget(Line::from(spans), place);
    }
    let left = cores.len().saturating_sub(rows * columns);
    if left == 0 {
        return rows as u16;
    }
    let place = Rect { y: area.y + rows as u16, height: 1, ..area };
    frame.render_widget(Line::styled(format!("and {left} cores more, in the list of readings"), paint.dim()), place);
    rows as u16 + 1
}

/// Load and clock of all cores above, all other readings below.
pub(super) fn machine(view: &mut View, frame: &mut Frame, area: Rect, paint: Paint) {
    let Some(now) = view.now.clone() else { return };
    let count = cores(&now).len();
    let columns = (usize::from(area.width - 4) / 22).max(1);
    let wanted = if count == 0 { 0 } else { count.div_ceil(if area.width >= 74 { 2 } else { 1 }) as u16 + 2 };
    let above = wanted.min(area.height / 2);
    let [top, list] = Layout::vertical([Constraint::Length(above), Constraint::Min(8)]).areas(area);
    if count > 0 {
        let about = Line::styled(format!(" {} ", show::name(&view.about.machine)), paint.dim());
        let inner = frame_of(frame, top, "Load and clock by core (measured)", Some(about), paint);
        draw_cores(view, &now, frame, inner, paint);
    }
    // What is drawn above is not listed again, unless there was no room for all.
    let per_core = |name: &str| {
        let rest = name.strip_prefix("cpu").unwrap_or("");
        rest.starts_with(|c: char| c.is_ascii_digit()) && (rest.ends_with("_load") || rest.ends_with("_frequency"))
    };
    let all_fit = count <= columns * usize::from(above.saturating_sub(2));
    let rows = listed(&now, |name| !(all_fit && per_core(name)));
    readings(view, frame, list, paint, "Readings", &rows);
}

/// The rules that hold now.
pub(super) fn holding(now: &Moment, frame: &mut Frame, area: Rect, paint: Paint) {
    let inner = frame_of(frame, area, "Alerts", None, paint);
    if now.alerts.is_empty() {
        return frame.render_widget(Line::styled("none", paint.good()), Rect { height: inner.height.min(1), ..inner });
    }
    for (rule, y) in now.alerts.iter().zip(inner.y..inner.bottom()) {
        let text = words::cut(&show::name(rule), usize::from(inner.width));
        frame.render_widget(Line::styled(text, paint.bad()), Rect { y, height: 1, ..inner });
    }
}

pub(super) fn alerts(view: &mut View, frame: &mut Frame, area: Rect, paint: Paint) {
    view.choose_among(view.alerts.all().len());
    let inner = frame_of(frame, area, "Alerts, the newest first", None, paint);
    if view.alerts.all().is_empty() {
        let text = "No rule has held since this view began.";
        return frame.render_widget(Line::styled(text, paint.dim()), Rect { height: 1, ..inner });
    }
    let room = usize::from(inner.height);
    let first = first_row(view.chosen(), view.alerts.all().len(), room);
    let now = view.end_s();
    for ((at, alert), y) in view.alerts.all().iter().enumerate().skip(first).zip(inner.y..inner.bottom()) {
        let from = format!("at {}", words::time(alert.from_s));
        let (state, style) = match alert.to_s {
            None => (format!("holds for {}", words::time(now - alert.from_s)), paint.bad()),
            Some(to) => (format!("held for {}", words::time(to - alert.from_s)), paint.dim()),
        };
        let line = Line::from(vec![
            Span::raw(format!("{} ", words::fit(&from, 12))),
            Span::styled(format!("{} ", words::fit(&state, 20)), style),
            Span::raw(words::cut(&show::name(&alert.rule), usize::from(inner.width).saturating_sub(34))),
        ]);
        let style = if at == view.chosen() { paint.chosen() } else { paint.plain() };
        frame.render_widget(line.style(style), Rect { y, height: 1, ..inner });
    }
}
