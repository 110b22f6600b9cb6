//! What the terminal shows, as text in `screens/`: a change of the view is seen in its diff. `SCHWANN_UPDATE=1` writes them anew.

use super::draw::draw;
use super::view::{Asked, View};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use schwann::Figure;
use schwann::prof::live::made_up;
use std::path::Path;

/// A view after so many made-up seconds.
fn after(seconds: u64) -> View {
    let mut view = View::new(made_up::about(), true, true);
    (0..seconds).for_each(|number| view.push(made_up::moment(number, 1.0)));
    view
}

fn screen(view: &mut View, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(view, frame)).unwrap();
    terminal
}

fn text(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let row = |y: u16| {
        let mut line = String::new();
        let mut x = 0;
        while x < buffer.area.width {
            let symbol = buffer[(x, y)].symbol();
            line += symbol;
            x += crate::out::columns(symbol).max(1) as u16;
        }
        line.trim_end().to_owned() + "\n"
    };
    (0..buffer.area.height).map(row).collect()
}

fn press(view: &mut View, keys: &[KeyCode]) -> Asked {
    keys.iter().map(|code| view.key(KeyEvent::new(*code, KeyModifiers::NONE))).last().unwrap_or(Asked::Nothing)
}

fn is_as_kept(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/monitor/tui/screens").join(format!("{name}.txt"));
    if std::env::var_os("SCHWANN_UPDATE").is_some_and(|v| v == "1") {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(text, kept, "{name} is not as it was; SCHWANN_UPDATE=1 writes it anew\n{text}");
}

#[test]
fn every_panel_is_as_it_was_at_the_usual_sizes() {
    let mut view = after(200);
    for (panel, key) in [("overview", '1'), ("operations", '2'), ("memory", '3'), ("machine", '4'), ("alerts", '5')] {
        press(&mut view, &[KeyCode::Char(key)]);
        for (width, height) in [(80, 24), (200, 60)] {
            if (width, height) == (80, 24) || matches!(panel, "overview" | "machine") {
                is_as_kept(&format!("{panel}-{width}x{height}"), &text(&screen(&mut view, width, height)));
            }
        }
    }
    press(&mut view, &[KeyCode::Char('1'), KeyCode::Char('?')]);
    is_as_kept("help-80x24", &text(&screen(&mut view, 80, 24)));
    is_as_kept("small-40x10", &text(&screen(&mut view, 40, 10)));
}

#[test]
fn no_size_panics_and_every_size_says_something() {
    let mut view = after(70);
    for key in '1'..='5' {
        press(&mut view, &[KeyCode::Char(key)]);
        for width in [1, 2, 5, 20, 59, 60, 61, 72, 80, 99, 119, 120, 140, 200, 300] {
            for height in [1, 2, 3, 10, 17, 18, 19, 24, 33, 34, 40, 60, 100] {
                assert!(!text(&screen(&mut view, width, height)).trim().is_empty(), "{width} × {height}, panel {key}");
            }
        }
    }
}

#[test]
fn a_view_without_moments_says_that_it_waits() {
    let said = text(&screen(&mut after(0), 80, 24));
    assert!(said.contains("waiting for the first moment of wired-cfc"), "{said}");
}

#[test]
fn names_and_reasons_bring_nothing_hidden_to_the_terminal() {
    let nasty = "a\u{1b}]0;x\u{7}\u{202e}b\u{9b}2J";
    let mut about = made_up::about();
    (about.model, about.backend, about.machine) = (nasty.into(), nasty.into(), nasty.into());
    about.sizes.insert(nasty.into(), 3);
    let mut view = View::new(about, true, true);
    for number in 0..3 {
        let mut moment = made_up::moment(number, 1.0);
        moment.operations[0].name = nasty.into();
        moment.operations[0].kernel = nasty.into();
        moment.machine.insert(nasty.into(), Figure::unavailable("W", nasty, nasty));
        moment.memory.rss = Figure::unavailable("B", nasty, nasty);
        moment.latency.p50 = Figure::unavailable("s", nasty, nasty);
        moment.alerts.push(nasty.into());
        view.push(moment);
    }
    view.say(nasty);
    let keys = [KeyCode::Char('1'), KeyCode::Char('2'), KeyCode::Char('3'), KeyCode::Char('4'), KeyCode::End];
    for key in keys.into_iter().chain([KeyCode::Char('5'), KeyCode::Char('b')]) {
        press(&mut view, &[key]);
        for (width, height) in [(80, 24), (200, 60)] {
            let said = text(&screen(&mut view, width, height));
            let hidden = said.chars().find(|c| schwann::show::is_hidden(*c) && *c != '\n');
            assert_eq!(hidden, None, "{said}");
        }
    }
}

#[test]
fn what_is_unavailable_says_why_in_full_when_it_is_chosen() {
    let mut view = after(5);
    press(&mut view, &[KeyCode::Char('4')]);
    screen(&mut view, 80, 24);
    press(&mut view, &[KeyCode::End]);
    let said = text(&screen(&mut view, 80, 24));
    let reason = [
        "unavailable: no GPU was found that tells it: NVIDIA's are read through NVML,",
        "Apple's through macmon; source",
    ];
    assert!(reason.iter().all(|line| said.contains(line)), "{said}");
}

#[test]
fn keys_pause_zoom_look_back_and_ask_before_a_baseline() {
    let mut view = after(100);
    assert_eq!(press(&mut view, &[KeyCode::Char(' ')]), Asked::Nothing);
    view.push(made_up::moment(100, 1.0));
    assert!(text(&screen(&mut view, 80, 24)).contains("‖ paused  1:40"));
    press(&mut view, &[KeyCode::Char(' ')]);
    view.push(made_up::moment(101, 1.0));
    assert!(text(&screen(&mut view, 80, 24)).contains("▸ live  1:42"));
    press(&mut view, &[KeyCode::Char('+'), KeyCode::Char('+')]);
    assert_eq!(view.span_s(), 15.0);
    press(&mut view, &[KeyCode::Char('-'); 9]);
    assert_eq!(view.span_s(), 3600.0);
    press(&mut view, &[KeyCode::Char('+'); 9]);
    press(&mut view, &[KeyCode::Left; 4]);
    assert_eq!(view.end_s(), 87.0);
    press(&mut view, &[KeyCode::Left; 400]);
    assert_eq!(view.end_s(), 15.0);
    press(&mut view, &[KeyCode::Right; 400]);
    assert_eq!(view.end_s(), 102.0);
    assert_eq!(press(&mut view, &[KeyCode::Char('r')]), Asked::Record);
    assert_eq!(press(&mut view, &[KeyCode::Char('b'), KeyCode::Char('n')]), Asked::Nothing);
    assert_eq!(press(&mut view, &[KeyCode::Char('b'), KeyCode::Char('y')]), Asked::Baseline);
    view.save(true);
    press(&mut view, &[KeyCode::Char('b')]);
    assert!(text(&screen(&mut view, 80, 24)).contains("a baseline is being made"));
    assert_eq!(press(&mut view, &[KeyCode::Char('?'), KeyCode::Char('x')]), Asked::Nothing);
    assert_eq!(press(&mut view, &[KeyCode::Char('q')]), Asked::Quit);
    assert_eq!(view.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Asked::Stop);
}

#[test]
fn lost_moments_and_the_end_are_said_and_alerts_have_their_times() {
    let mut view = after(50);
    view.push(made_up::moment(53, 1.0));
    let said = text(&screen(&mut view, 120, 30));
    assert!(said.contains("3 moments were lost"), "{said}");
    press(&mut view, &[KeyCode::Char('5')]);
    let said = text(&screen(&mut view, 80, 24));
    assert!(
        said.contains("at 40 s") && said.contains("held for 6 s") && said.contains("latency_p99 > 250us"),
        "{said}"
    );
    view.end("the program that was watched has ended");
    let said = text(&screen(&mut view, 80, 24));
    assert!(said.contains("ended") && said.contains("the program that was watched has ended"), "{said}");
}

#[test]
fn without_colours_nothing_is_coloured() {
    let mut view = View::new(made_up::about(), false, false);
    (0..60).for_each(|number| view.push(made_up::moment(number, 1.0)));
    for key in '1'..='5' {
        press(&mut view, &[KeyCode::Char(key)]);
        let terminal = screen(&mut view, 200, 60);
        let cells = terminal.backend().buffer().content();
        assert!(cells.iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)), "panel {key}");
    }
}
