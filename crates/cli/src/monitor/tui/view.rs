//! What the terminal shows and which keys change it, without a terminal.

use crate::monitor::history::{History, Log};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use schwann::prof::live::{About, Moment};
use schwann::show;
use std::path::Path;

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
    /// Profile the model, and keep that as a baseline.
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
    /// Whether the model is run here, so that a baseline can be made of it.
    baselines: bool,
    /// Whether one is being made.
    pub(super) saving: bool,
}

impl View {
    /// A view of what is watched, which may be a model that is run here, so that baselines can be made of it.
    pub(crate) fn new(about: About, colours: bool, baselines: bool) -> View {
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
            baselines,
            saving: false,
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

    /// A baseline is being made, or no more.
    pub(crate) fn save(&mut self, saving: bool) {
        self.saving = saving;
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

    fn ask_for_baseline(&mut self) {
        if !self.baselines || self.saving {
            let why = if self.saving {
                "a baseline is being made"
            } else {
                "a baseline is made of a model that the monitor runs itself: schwann monitor MODEL"
            };
            return self.say(why);
        }
        let text = format!(
            "Profile {} for some seconds, as it runs here, and keep that as the baseline `{}`? Meanwhile it is not watched.",
            show::name(&self.about.model),
            show::name(&self.baseline_name())
        );
        self.question = Some(Question { text, asked: Asked::Baseline });
    }

    /// What a baseline is called: as the model's file.
    pub(super) fn baseline_name(&self) -> String {
        stem(&self.about.model)
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
            KeyCode::Char('b') => self.ask_for_baseline(),
            _ => {}
        }
        Asked::Nothing
    }
}

/// A model's name, or its file's without folder and ending.
pub(super) fn stem(model: &str) -> String {
    Path::new(model).file_stem().map_or("monitor".into(), |stem| stem.to_string_lossy().into_owned())
}
