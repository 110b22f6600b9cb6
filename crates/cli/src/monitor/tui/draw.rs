//! The frame around panels: what is watched, tabs, keys, help.

use super::paint::Paint;
use super::view::{PANELS, Panel, View};
use super::{overview, panels, words};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear, Paragraph, Wrap};
use schwann::show;

/// Less than this shows nothing that can be read.
pub(super) const LEAST: (u16, u16) = (60, 18);

/// Draws all of it, on whatever size the terminal has now.
pub(crate) fn draw(view: &mut View, frame: &mut Frame) {
    let (area, paint) = (frame.area(), Paint { colours: view.colours });
    if area.width < LEAST.0 || area.height < LEAST.1 {
        return too_small(frame, area);
    }
    let [head, tabs, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(area);
    header(view, frame, head, paint);
    tab_line(view, frame, tabs, paint);
    match (view.now.is_some(), view.panel) {
        (false, _) => waiting(view, frame, body, paint),
        (true, Panel::Overview) => overview::draw(view, frame, body, paint),
        (true, Panel::Operations) => panels::operations(view, frame, body, paint),
        (true, Panel::Memory) => panels::memory(view, frame, body, paint),
        (true, Panel::Machine) => panels::machine(view, frame, body, paint),
        (true, Panel::Alerts) => panels::alerts(view, frame, body, paint),
    }
    footer(view, frame, foot, paint);
    if let Some(question) = &view.question {
        let lines = vec![Line::raw(question.text.clone()), Line::raw(""), Line::raw("y: yes    any other key: no")];
        window(frame, area, "Save a baseline", lines, paint);
    }
    if view.help {
        help(frame, area, paint);
    }
}

fn too_small(frame: &mut Frame, area: Rect) {
    let size = format!("{} × {}", area.width, area.height);
    let lines = ["too small".to_owned(), format!("{size}, at least {} × {}", LEAST.0, LEAST.1), "q: quit".to_owned()];
    let top = area.height.saturating_sub(lines.len() as u16) / 2;
    for (i, line) in lines.iter().enumerate().take(usize::from(area.height)) {
        let row = Rect { y: area.y + top + i as u16, height: 1, ..area }.intersection(area);
        frame.render_widget(Line::raw(words::cut(line, usize::from(area.width))).centered(), row);
    }
}

fn header(view: &View, frame: &mut Frame, area: Rect, paint: Paint) {
    let a = &view.about;
    let sizes: Vec<String> = a.sizes.iter().map(|(name, size)| format!("{}={size}", show::name(name))).collect();
    let threads = format!("{} thread{}", a.threads, if a.threads == 1 { "" } else { "s" });
    let what = [show::name(&a.backend), threads, sizes.join(" ")].into_iter().filter(|part| !part.is_empty());
    let mut right: Vec<Span> = vec![];
    if view.recording.is_some() {
        right.push(Span::styled("● recording  ", paint.bad()));
    }
    if view.saving {
        right.push(Span::styled("saving a baseline  ", paint.tail()));
    }
    match (&view.ended, view.paused) {
        (Some(_), _) => right.push(Span::styled("ended  ", paint.tail())),
        (None, Some(_)) => right.push(Span::styled("‖ paused  ", paint.tail())),
        (None, None) => right.push(Span::styled("▸ live  ", paint.good())),
    }
    let at = view.paused.or(view.now.as_ref().map(|m| m.at_s)).unwrap_or(0.0);
    right.push(Span::raw(format!("{} ", words::time(at))));
    let right = Line::from(right);
    let room = usize::from(area.width).saturating_sub(right.width() + 2);
    let title = if area.width >= 100 { " schwann monitor  " } else { " schwann  " };
    let name = words::cut(&show::name(&a.model), room.saturating_sub(title.len()));
    let used = title.len() as u16 + words::columns(&name);
    let rest = words::cut(&what.collect::<Vec<_>>().join(", "), room.saturating_sub(usize::from(used) + 2));
    let left = Line::from(vec![
        Span::styled(title, paint.dim()),
        Span::styled(name, paint.title()),
        Span::raw(format!("  {rest}")),
    ]);
    frame.render_widget(left, area);
    frame.render_widget(right.right_aligned(), area);
}

fn tab_line(view: &View, frame: &mut Frame, area: Rect, paint: Paint) {
    let mut spans = vec![Span::raw(" ")];
    for (i, (panel, name)) in PANELS.iter().enumerate() {
        let alerts = *panel == Panel::Alerts && view.holding > 0;
        let count = if alerts { format!(" ({})", view.holding) } else { String::new() };
        let style = match (*panel == view.panel, alerts) {
            (true, _) => paint.chosen(),
            (false, true) => paint.bad(),
            (false, false) => paint.plain(),
        };
        spans.push(Span::styled(format!(" {} {name}{count} ", i + 1), style));
        spans.push(Span::raw(" "));
    }
    frame.render_widget(Line::from(spans), area);
    if view.lost > 0 {
        let text = format!("{} moments were lost ", view.lost);
        let room = area.width.saturating_sub(62);
        if words::columns(&text) <= room {
            frame.render_widget(Line::styled(text, paint.tail()).right_aligned(), area);
        }
    }
}

fn footer(view: &View, frame: &mut Frame, area: Rect, paint: Paint) {
    let word = view.said.clone().or_else(|| view.ended.clone());
    if let Some(text) = word {
        let text = words::cut(&show::line(&text), usize::from(area.width) - 2);
        return frame.render_widget(Line::styled(format!(" {text}"), paint.tail()), area);
    }
    let record = if view.recording.is_some() { "end recording" } else { "record" };
    let pause = if view.paused.is_some() { "go on" } else { "pause" };
    let span = words::span(view.span_s());
    let mut keys = vec![
        ("space", pause),
        ("+-", span.as_str()),
        ("←→", "back"),
        ("Tab", "panel"),
        ("r", record),
        ("b", "baseline"),
        ("?", "help"),
        ("q", "quit"),
    ];
    let width = |keys: &[(&str, &str)]| -> u16 {
        keys.iter().map(|(key, what)| words::columns(key) + words::columns(what) + 3).sum::<u16>().saturating_sub(1)
    };
    // What is found by itself, or under help, goes first where there is no room for all.
    for dispensable in ["←→", "Tab", "b"] {
        if width(&keys) > area.width {
            keys.retain(|(key, _)| *key != dispensable);
        }
    }
    let mut spans = vec![Span::raw(" ")];
    for (key, what) in keys {
        spans.push(Span::styled(key, paint.title()));
        spans.push(Span::styled(format!(" {what}  "), paint.dim()));
    }
    frame.render_widget(Line::from(spans), area);
}

fn waiting(view: &View, frame: &mut Frame, area: Rect, paint: Paint) {
    let text = match &view.ended {
        Some(why) => words::cut(&show::line(why), usize::from(area.width)),
        None => format!("waiting for the first moment of {}", show::name(&view.about.model)),
    };
    let row = Rect { y: area.y + area.height / 2, height: 1, ..area };
    frame.render_widget(Line::styled(text, paint.dim()).centered(), row);
}

/// A panel's border and titles; what is inside.
pub(super) fn frame_of(frame: &mut Frame, area: Rect, title: &str, aside: Option<Line>, paint: Paint) -> Rect {
    let name = words::cut(title, usize::from(area.width.saturating_sub(4)));
    let used = words::columns(&name) + 4;
    let mut block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(paint.dim())
        .title(Line::styled(format!(" {name} "), paint.title()));
    if let Some(aside) = aside.filter(|aside| aside.width() + usize::from(used) + 2 <= usize::from(area.width)) {
        block = block.title(aside.right_aligned());
    }
    let inner = block.inner(area);
    frame.render_widget(block, area);
    // A blank on both sides: text never touches a border.
    Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner }
}

/// A window over everything else.
fn window(frame: &mut Frame, area: Rect, title: &str, lines: Vec<Line>, paint: Paint) {
    let width = area.width.saturating_sub(4).min(76);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false });
    // Lines may take several rows; at most they take what their columns need, and one for each break.
    let height = area.height.saturating_sub(2).min(24);
    let mut scratch = ratatui::buffer::Buffer::empty(Rect::new(0, 0, width.saturating_sub(4), height));
    ratatui::widgets::Widget::render(&text, scratch.area, &mut scratch);
    let rows = (0..height).rev().find(|y| (0..scratch.area.width).any(|x| scratch[(x, *y)].symbol() != " "));
    let height = (rows.unwrap_or(0) + 3).min(area.height);
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let inner = frame_of(frame, place, title, None, paint);
    frame.render_widget(text, inner);
}

fn help(frame: &mut Frame, area: Rect, paint: Paint) {
    let keys = [
        ("space", "pause the view, and go on; nothing is lost meanwhile"),
        ("+ -", "show less time, more time (15 s to 1 hour)"),
        ("← →", "look back, and forward again; space goes on"),
        ("Tab, 1 to 5", "panels: overview, operations, memory, machine, alerts"),
        ("↑ ↓", "choose a row: its source, or why it is unavailable"),
        ("r", "record to a file, and end the recording"),
        ("b", "profile the model and keep that as a baseline"),
        ("q, Ctrl-C", "quit"),
    ];
    let mut lines: Vec<Line> = keys
        .iter()
        .map(|(key, what)| Line::from(vec![Span::styled(words::fit(key, 13), paint.title()), Span::raw(*what)]))
        .collect();
    lines.push(Line::raw(""));
    for text in [
        "p50: half of the runs took no longer; p99: 99 of 100 did not.",
        "A column that stands for several moments has their greatest p99, and the mean of their p50.",
        "measured: read from a clock or counter. derived: computed from measured figures and exact counts.",
    ] {
        lines.push(Line::styled(text, paint.dim()));
    }
    window(frame, area, "Keys", lines, paint);
}
