//! What the terminal shows and which keys change it, without a terminal.

use crate::monitor::history::{History, Log};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use schwann::prof::live::{About, Moment};

/// Spans of time that plots can have, in seconds.
const SPANS: [f64; 7] = [15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

/// What is asked of the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Nothing,
    Quit,
    /// End as Ctrl-C ends any command.
    Stop,
    /// Begin or end a recording.
    Record,
    /// Leave, and save a profile as a baseline.
    Baseline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Panel {
    Overview,
    Operations,
    Memory,
    Machine,
    Alerts,
}

pub(super) const PANELS: [(Panel, &str); 5] = [
    (Panel::Overview, "Overview"),
    (Panel::Operations, "Operations"),
    (Panel::Memory, "Memory"),
    (Panel::Machine, "Machine"),
    (Panel::Alerts, "Alerts"),
];

/// A question before something is done.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    pub(super) text: String,
    asked: Asked,
}

pub(crate) struct View {
    pub(super) about: About,
    pub(super) history: History,
    /// The last moment, or the one that was last when the view was paused.
    pub(super) now: Option<Moment>,
    /// Where the time axis ended when the view was paused.
    pub(super) paused: Option<f64>,
    span: usize,
    pub(super) panel: Panel,
    selected: [usize; PANELS.len()],
    /// Rows of the panel's list when it was last drawn.
    pub(super) rows: usize,
    pub(super) help: bool,
    pub(super) question: Option<Question>,
    pub(super) alerts: Log,
    /// The alerts of the last moment, also while the view is paused.
    pub(super) holding: usize,
    pub(super) colours: bool,
    /// Where a recording goes, while there is one.
    pub(super) recording: Option<String>,
    /// What was last said, such as an error.
    pub(super) said: Option<String>,
    /// Why no more moments come.
    pub(super) ended: Option<String>,
    /// Moments that were lost on their way.
    pub(super) lost: u64,
    last: Option<u64>,
    /// What saving a baseline means here, as a question; or why it cannot be.
    baseline: Result<String, String>,
}

impl View {
    /// A view of what is watched. `baseline`: the question before one is saved, or why that cannot be.
    pub(crate) fn new(about: About, colours: bool, baseline: Result<String, String>) -> View {
        View {
            about,
            history: History::default(),
            now: None,
            paused: None,
            span: 2,
            panel: Panel::Overview,
            selected: [0; PANELS.len()],
            rows: 0,
            help: false,
            question: None,
            alerts: Log::default(),
            holding: 0,
            colours,
            recording: None,
            said: None,
            ended: None,
            lost: 0,
            last: None,
            baseline,
        }
    }

    /// The next moment.
    pub(crate) fn push(&mut self, moment: Moment) {
        if let Some(last) = self.last.filter(|last| moment.number > *last) {
            self.lost += moment.number - last - 1;
        }
        self.last = Some(moment.number);
        self.history.push(&moment);
        self.holding = moment.alerts.len();
        self.alerts.push(&moment);
        if self.paused.is_none() {
            self.now = Some(moment);
        }
    }

    /// No more moments come, and why.
    pub(crate) fn end(&mut self, why: &str) {
        self.ended = Some(why.to_owned());
    }

    /// A word to whoever looks.
    pub(crate) fn say(&mut self, text: &str) {
        self.said = Some(text.to_owned());
    }

    /// A recording began, with its file's name, or ended.
    pub(crate) fn record(&mut self, file: Option<String>) {
        self.recording = file;
    }

    /// The time that plots show, in seconds.
    pub(super) fn span_s(&self) -> f64 {
        SPANS[self.span]
    }

    /// Where the time axis ends.
    pub(super) fn end_s(&self) -> f64 {
        self.paused.or(self.history.end_s()).unwrap_or(0.0)
    }

    /// The chosen row of the panel.
    pub(super) fn chosen(&self) -> usize {
        self.selected[self.panel as usize]
    }

    /// A list was drawn with so many rows: the chosen one is among them.
    pub(super) fn choose_among(&mut self, rows: usize) {
        self.rows = rows;
        let chosen = &mut self.selected[self.panel as usize];
        *chosen = (*chosen).min(rows.saturating_sub(1));
    }

    /// A number of a name for each of so many columns of the shown time.
    pub(super) fn columns(&self, name: &str, columns: usize) -> Vec<Option<f64>> {
        let end = self.end_s();
        self.history.columns(name, end - self.span_s(), end, columns)
    }

    fn pause(&mut self) {
        self.paused = match self.paused {
            None => Some(self.end_s()),
            Some(_) => None,
        };
    }

    /// Looks back, or forward again, by a quarter of what is shown.
    fn back(&mut self, quarters: f64) {
        let end = self.history.end_s().unwrap_or(0.0);
        let first = self.history.begin_s().unwrap_or(0.0) + self.span_s().min(end);
        let at = self.end_s() + quarters * self.span_s() / 4.0;
        self.paused = Some(at.clamp(first.min(end), end));
    }

    /// A key was pressed.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Asked {
        self.said = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Asked::Stop } else { Asked::Nothing };
        }
        if let Some(question) = self.question.take() {
            return match key.code {
                KeyCode::Char('y' | 'Y') | KeyCode::Enter => question.asked,
                _ => Asked::Nothing,
            };
        }
        if std::mem::take(&mut self.help) {
            return if key.code == KeyCode::Char('q') { Asked::Quit } else { Asked::Nothing };
        }
        let place = self.panel as usize;
        let switch = |by: usize| PANELS[(place + by) % PANELS.len()].0;
        let page = 10.min(self.rows);
        let selected = &mut self.selected[place];
        match key.code {
            KeyCode::Char('q') => return Asked::Quit,
            KeyCode::Char(' ' | 'p') => self.pause(),
            KeyCode::Char('+' | '=') => self.span = self.span.saturating_sub(1),
            KeyCode::Char('-' | '_') => self.span = (self.span + 1).min(SPANS.len() - 1),
            KeyCode::Left => self.back(-1.0),
            KeyCode::Right => self.back(1.0),
            KeyCode::Tab => self.panel = switch(1),
            KeyCode::BackTab => self.panel = switch(PANELS.len() - 1),
            KeyCode::Char(digit @ '1'..='5') => self.panel = PANELS[digit as usize - '1' as usize].0,
            KeyCode::Up | KeyCode::Char('k') => *selected = selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => *selected = (*selected + 1).min(self.rows.saturating_sub(1)),
            KeyCode::PageUp => *selected = selected.saturating_sub(page),
            KeyCode::PageDown => *selected = (*selected + page).min(self.rows.saturating_sub(1)),
            KeyCode::Home => *selected = 0,
            KeyCode::End => *selected = self.rows.saturating_sub(1),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('r') => return Asked::Record,
            KeyCode::Char('b') => match &self.baseline {
                Ok(text) => self.question = Some(Question { text: text.clone(), asked: Asked::Baseline }),
                Err(why) => self.said = Some(why.clone()),
            },
            _ => {}
        }
        Asked::Nothing
    }
}
