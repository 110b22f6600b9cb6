//! The view in a terminal; into a pipe, a line for each moment.

mod draw;
mod overview;
mod paint;
mod panels;
mod plot;
#[cfg(test)]
mod screens;
mod view;
mod words;

use super::feed::{Desk, Feed, Next};
use crate::{out, stop};
use anyhow::{Context, Result, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use schwann::prof::live::Moment;
use schwann::prof::plot::unit::show;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;
use view::{Asked, View};

/// How long a key may wait for an answer, and a moment to be shown.
const LOOK: Duration = Duration::from_millis(40);

/// Shows moments until there are no more, or somebody leaves.
pub(super) fn terminal(mut feed: Feed, desk: &Desk) -> Result<()> {
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        return plain(&mut feed);
    }
    let colours = !matches!(anstream::AutoStream::choice(&std::io::stdout()), anstream::ColorChoice::Never);
    let mut view = View::new(feed.about().as_ref().clone(), colours, desk.makes_baselines());
    view.record(recording(desk));
    // The terminal's own state comes back however this ends: below, in a panic, or at a second Ctrl-C.
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal; --json prints lines")?;
    stop::give_back(Some(ratatui::restore));
    out::hold_notes();
    let mut saving = None;
    let watched = watch(&mut terminal, &mut view, &feed, desk, &mut saving);
    stop::give_back(None);
    ratatui::restore();
    out::release_notes();
    if let Some(saving) = saving {
        out::note("waiting for the baseline");
        out::note(&finished(saving));
    }
    watched
}

/// A baseline that is being made.
type Saving = JoinHandle<Result<String>>;

/// What became of a baseline.
fn finished(saving: Saving) -> String {
    match saving.join() {
        Ok(Ok(said)) => said,
        Ok(Err(e)) => format!("{e:#}"),
        Err(_) => "no baseline was saved: its thread broke, which is a mistake in this program".into(),
    }
}

/// Draws what changes and obeys keys.
fn watch(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    feed: &Feed,
    desk: &Desk,
    saving: &mut Option<Saving>,
) -> Result<()> {
    let (mut over, mut changed, mut noted) = (false, true, None);
    let keys = keys()?;
    loop {
        while !over {
            match feed.next(Duration::ZERO) {
                Next::Moment(moment) => view.push(*moment),
                Next::Waiting => break,
                Next::Over => {
                    over = true;
                    let Some(why) = desk.ended() else { return Ok(()) };
                    view.end(&format!("{why}; q quits"));
                }
            }
            changed = true;
        }
        if desk.is_over() {
            return Ok(());
        }
        if let Some(done) = saving.take_if(|thread| thread.is_finished()) {
            view.save(false);
            view.say(&finished(done));
            changed = true;
        }
        let note = out::held_note();
        if note != noted {
            view.record(recording(desk));
            note.iter().for_each(|text| view.say(text));
            (noted, changed) = (note, true);
        }
        if changed {
            terminal.draw(|frame| draw::draw(view, frame)).context("cannot draw on this terminal")?;
            changed = false;
        }
        let event = match keys.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => bail!("cannot read keys"),
            Ok(event) => event.context("cannot read keys")?,
        };
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => match view.key(key) {
                Asked::Nothing => {}
                Asked::Quit => return Ok(()),
                Asked::Stop => {
                    stop::ask();
                    return Ok(());
                }
                Asked::Baseline => *saving = save(view, desk),
                Asked::Record => record(view, desk),
            },
            Event::Resize(..) => {}
            _ => continue,
        }
        changed = true;
    }
}

/// What is pressed, from a thread that ends with the process: where the terminal has gone away, reading from it never
/// returns, and the rest must end all the same.
fn keys() -> Result<Receiver<std::io::Result<Event>>> {
    let (send, keys) = mpsc::channel();
    let read = move || {
        while let Ok(()) = send.send(event::read()) {}
    };
    std::thread::Builder::new().name("schwann keys".into()).spawn(read).context("cannot read keys")?;
    Ok(keys)
}

/// Begins to make a baseline.
fn save(view: &mut View, desk: &Desk) -> Option<Saving> {
    let (desk, name) = (desk.clone(), view.baseline_name());
    let make = move || desk.save_baseline(&name).map(|()| format!("saved as the baseline `{name}`"));
    match std::thread::Builder::new().name("schwann baseline".into()).spawn(make) {
        Ok(thread) => {
            view.save(true);
            Some(thread)
        }
        Err(e) => {
            view.say(&format!("no baseline was saved: no thread can be started: {e}"));
            None
        }
    }
}

fn recording(desk: &Desk) -> Option<String> {
    desk.recording().map(|path| path.display().to_string())
}

/// Begins a recording in a new file here, or ends the one that there is.
fn record(view: &mut View, desk: &Desk) {
    match desk.stop_recording() {
        Some(path) => view.say(&format!("recorded to {}", path.display())),
        None => {
            let path = file_name(&view.about.model);
            match desk.record(&path) {
                Ok(()) => view.say(&format!("recording to {}", path.display())),
                Err(e) => view.say(&format!("{e:#}")),
            }
        }
    }
    view.record(recording(desk));
}

/// `wired-cfc-1.jsonl`, or the next number that is free.
fn file_name(model: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' };
    let stem: String = view::stem(model).chars().map(plain).take(60).collect();
    let file = |number: u32| PathBuf::from(format!("{stem}-{number}.jsonl"));
    (1..10_000).map(file).find(|path| !path.exists()).unwrap_or_else(|| file(10_000))
}

/// A line for each moment.
fn plain(feed: &mut Feed) -> Result<()> {
    let mut out = out::stdout();
    let mut feed: &Feed = feed;
    while let Some(moment) = Iterator::next(&mut feed) {
        writeln!(out, "{}", out::printable(&line(&moment)))?;
        out.flush()?;
        if out::is_closed() {
            break;
        }
    }
    Ok(())
}

fn line(m: &Moment) -> String {
    let l = &m.latency;
    let mut line = format!(
        "{:.1} s: {}, p50 {}, p99 {}, max {}, busy {}, {}, {} of the roof, rss {}",
        m.at_s,
        show(&l.rate),
        show(&l.p50),
        show(&l.p99),
        show(&l.max),
        show(&l.busy),
        show(&m.work.flops),
        show(&m.work.roof_share),
        show(&m.memory.rss),
    );
    if let Some(misses) = l.misses.value {
        line += &format!(", {misses:.0} misses");
    }
    for alert in &m.alerts {
        line += &format!(", alert: {alert}");
    }
    line
}
