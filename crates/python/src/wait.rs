//! Long work that Python can interrupt: it is done by a thread of its own, while this one asks Python from time to time whether
//! somebody pressed Ctrl-C, and hands on what the work has to tell.

use crate::error::Problem;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// How long a Ctrl-C may go unnoticed.
const LOOK: Duration = Duration::from_millis(50);

/// Does work that takes long, without Python's lock. `told` gets what the work sends, in this thread; if it fails, or somebody
/// presses Ctrl-C, `cancel` asks the work to stop, and its end is waited for.
pub(crate) fn interruptible<T: Send, M: Send>(
    py: Python<'_>,
    cancel: impl Fn() + Sync,
    mut told: impl FnMut(M) -> PyResult<()>,
    work: impl FnOnce(&Sender<M>) -> T + Send,
) -> Result<T, Problem> {
    let (sender, receiver) = channel::<M>();
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("schwann".into()).spawn_scoped(scope, move || work(&sender));
        let worker = worker.map_err(schwann::Error::Thread)?;
        let mut stopped: Option<PyErr> = None;
        let mut receiver = Some(receiver);
        while let Some(open) = receiver.take() {
            // The receiver goes into the stretch without the lock and comes back.
            let (open, message) = py.detach(move || {
                let message = open.recv_timeout(LOOK);
                (open, message)
            });
            let heard = match message {
                Ok(message) if stopped.is_none() => told(message),
                Ok(_) | Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            receiver = Some(open);
            if stopped.is_none()
                && let Err(problem) = heard.and_then(|()| py.check_signals())
            {
                cancel();
                stopped = Some(problem);
            }
        }
        let done = py.detach(|| worker.join());
        if let Some(problem) = stopped {
            return Err(problem.into());
        }
        done.map_err(|_| {
            PyRuntimeError::new_err("internal: a thread of Schwann's ended unexpectedly; please report it").into()
        })
    })
}
