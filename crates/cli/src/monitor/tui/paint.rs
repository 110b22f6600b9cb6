//! Colours by what they say, from the sixteen that every terminal's own theme has. Without colours what matters is bold, dim
//! or reversed, and every state is a word too.

use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    pub(super) colours: bool,
}

impl Paint {
    fn of(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn plain(self) -> Style {
        Style::new()
    }

    pub(super) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn dim(self) -> Style {
        if self.colours { Style::new().fg(Color::DarkGray) } else { Style::new().add_modifier(Modifier::DIM) }
    }

    /// Medians, and whatever a panel is about.
    pub(super) fn main(self) -> Style {
        self.of(Color::Cyan)
    }

    /// What 99 of 100 stay below.
    pub(super) fn tail(self) -> Style {
        self.of(Color::Yellow)
    }

    pub(super) fn good(self) -> Style {
        self.of(Color::Green)
    }

    /// Limits, and what is beyond them.
    pub(super) fn bad(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// The chosen row or tab.
    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// By how much of something is used, in %.
    pub(super) fn load(self, percent: f64) -> Style {
        match percent {
            p if p >= 90.0 => self.of(Color::Yellow),
            p if p >= 60.0 => self.of(Color::Green),
            _ => self.of(Color::Cyan),
        }
    }
}
