//! What views get: moments ([`Feed`]), and what they may ask for ([`Desk`]).

use super::alerts::Alerts;
use super::drive::Baselines;
use crate::{Outcome, out};
use anyhow::{Context, Result, bail};
use schwann::prof::live::{About, Judged, Moment, Recorder, openmetrics};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Moments that wait for a view; a view that is slower than that misses some.
const WAITING: usize = 64;

/// Moments for a view, as they come.
pub(crate) struct Feed {
    about: Arc<About>,
    moments: Receiver<Moment>,
}

/// What a feed has to give.
pub(crate) enum Next {
    /// The next moment.
    Moment(Box<Moment>),
    /// None came within the time.
    Waiting,
    /// There will be no more.
    Over,
}

impl Feed {
    /// What is watched.
    pub(crate) fn about(&self) -> &Arc<About> {
        &self.about
    }

    /// Waits so long for the next moment.
    pub(crate) fn next(&self, wait: Duration) -> Next {
        match self.moments.recv_timeout(wait) {
            Ok(moment) => Next::Moment(Box::new(moment)),
            Err(RecvTimeoutError::Timeout) => Next::Waiting,
            Err(RecvTimeoutError::Disconnected) => Next::Over,
        }
    }
}

impl Iterator for &Feed {
    type Item = Moment;

    /// Waits for the next moment; `None` when there will be no more.
    fn next(&mut self) -> Option<Moment> {
        self.moments.recv().ok()
    }
}

/// Where a view asks for what is not its own: to record, to end. Clones are the same desk.
#[derive(Clone)]
pub(crate) struct Desk(Arc<Shared>);

struct Shared {
    about: Arc<About>,
    cancel: Arc<AtomicBool>,
    baselines: Option<Baselines>,
    state: Mutex<State>,
}

struct State {
    /// Taken away when there are no more moments, which tells the view.
    view: Option<SyncSender<Moment>>,
    recording: Option<(PathBuf, Recorder<File>)>,
    /// Whether a recording could not be written to its end.
    lost: bool,
    alerts: Alerts,
    latest: Option<Moment>,
    /// Why there are no more moments, where a view should stay to tell it.
    ended: Option<String>,
}

impl Desk {
    pub(super) fn new(
        about: About,
        alerts: Alerts,
        baselines: Option<Baselines>,
        cancel: Arc<AtomicBool>,
    ) -> (Desk, Feed) {
        let about = Arc::new(about);
        let (view, moments) = sync_channel(WAITING);
        let state = State { view: Some(view), recording: None, lost: false, alerts, latest: None, ended: None };
        let feed = Feed { about: Arc::clone(&about), moments };
        (Desk(Arc::new(Shared { about, cancel, baselines, state: Mutex::new(state) })), feed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on moments go to this file too, which must not exist yet.
    pub(crate) fn record(&self, path: &Path) -> Result<()> {
        let file = File::create_new(path).with_context(|| format!("cannot record to {}", path.display()))?;
        let recorder = Recorder::new(file, &self.0.about);
        let recorder = recorder.with_context(|| format!("cannot record to {}", path.display()))?;
        self.state().recording = Some((path.to_owned(), recorder));
        Ok(())
    }

    /// Ends the recording; gives its file, if there was one.
    pub(crate) fn stop_recording(&self) -> Option<PathBuf> {
        self.state().recording.take().map(|(path, _)| path)
    }

    /// Where moments are recorded now.
    pub(crate) fn recording(&self) -> Option<PathBuf> {
        self.state().recording.as_ref().map(|(path, _)| path.clone())
    }

    /// Profiles the model and keeps that under a name, to compare with later. Takes some seconds, in which the model is not
    /// watched; a view has a thread of its own for that.
    pub(crate) fn save_baseline(&self, name: &str) -> Result<()> {
        match &self.0.baselines {
            Some(baselines) => baselines.save(name).context("no baseline was saved"),
            None => bail!("a baseline is made of a model that the monitor runs itself: `schwann monitor MODEL`"),
        }
    }

    /// Whether the monitor runs the model itself, so that baselines can be made of it.
    pub(crate) fn makes_baselines(&self) -> bool {
        self.0.baselines.is_some()
    }

    /// Whether the monitor is to end: Ctrl-C, or somebody's wish.
    pub(crate) fn is_over(&self) -> bool {
        self.0.cancel.load(Ordering::Relaxed)
    }

    pub(super) fn lost_recording(&self) -> bool {
        self.state().lost
    }

    /// A moment for everybody. A live view that does not keep up misses some; a recording's waits.
    pub(super) fn give(&self, mut moment: Moment, may_skip: bool) {
        let view = {
            let mut guard = self.state();
            let state = &mut *guard;
            state.alerts.judge(&mut moment, &self.0.about);
            state.latest = Some(moment.clone());
            if let Some((path, recorder)) = &mut state.recording
                && let Err(why) = recorder.record(&moment)
            {
                out::note(&format!("recording to {} ended: {why}", path.display()));
                state.recording = None;
                state.lost = true;
            }
            state.view.clone()
        };
        let Some(view) = view else { return };
        let gone = match may_skip {
            true => matches!(view.try_send(moment), Err(TrySendError::Disconnected(_))),
            false => view.send(moment).is_err(),
        };
        if gone {
            self.close();
        }
    }

    /// What Prometheus reads.
    pub(super) fn metrics(&self) -> String {
        let state = self.state();
        openmetrics(&self.0.about, state.latest.as_ref(), &state.alerts.now())
    }

    /// What is watched.
    pub(super) fn about(&self) -> &About {
        &self.0.about
    }

    /// The latest moment, if there was one, and what rules say of it.
    pub(super) fn latest(&self) -> Option<(Moment, Vec<Judged>)> {
        let state = self.state();
        state.latest.clone().map(|moment| (moment, state.alerts.now()))
    }

    /// What the rules that decide say in the end.
    pub(super) fn outcome(&self) -> Outcome {
        self.state().alerts.outcome()
    }

    /// There will be no more moments, and nobody wished for that: views stay, and say why.
    pub(super) fn tell_end(&self, why: String) {
        self.state().ended = Some(why);
    }

    /// Why there are no more moments; `None` where somebody wished for the end.
    pub(crate) fn ended(&self) -> Option<String> {
        self.state().ended.clone()
    }

    /// There are no more moments.
    pub(super) fn close(&self) {
        self.state().view = None;
    }
}
