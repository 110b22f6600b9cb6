//! Ctrl-C: the first one ends a measurement where it is, and what was measured is shown and saved as partial; a second
//! one, or one before anything was measured, ends the program at once. Both exit with 130. The one other signal that is
//! heard says that a file has grown too large.

use crate::out;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The exit code of a program that was interrupted: 128 and SIGINT's number, as shells have it.
pub(crate) const EXIT_CODE: u8 = 130;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// Whether Ctrl-C was pressed when there was something to keep.
static SIGNALLED: AtomicBool = AtomicBool::new(false);
/// Whether there is something to keep.
static KEEPING: AtomicBool = AtomicBool::new(false);

/// What gives the terminal back, while a view has all of it.
static GIVE_BACK: Mutex<Option<fn()>> = Mutex::new(None);

/// While a view has the whole terminal: what gives it back before the program ends at once.
pub(crate) fn give_back(by: Option<fn()>) {
    *GIVE_BACK.lock().unwrap_or_else(PoisonError::into_inner) = by;
}

/// Ends the program, with the terminal as it was.
fn exit() -> ! {
    if let Some(give_back) = *GIVE_BACK.lock().unwrap_or_else(PoisonError::into_inner) {
        give_back();
    }
    std::process::exit(i32::from(EXIT_CODE))
}

/// A file that grows beyond what the system allows is an error with words, as a full disk is, and not a signal that ends
/// the program in the middle of writing.
pub(crate) fn outlive_file_limits() {
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// Listens for Ctrl-C. Until [`keep`] is called it ends the program at once.
pub(crate) fn listen() -> Arc<AtomicBool> {
    let begin = || {
        let asked = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&asked);
        // Where the system lets nobody listen, Ctrl-C does what it always does.
        let _ = ctrlc::set_handler(move || {
            if !KEEPING.load(Ordering::SeqCst) {
                out::note("\nstopped before anything was measured; nothing was written");
                exit();
            }
            SIGNALLED.store(true, Ordering::SeqCst);
            if flag.swap(true, Ordering::SeqCst) {
                exit();
            }
            out::note("\nstopping; press Ctrl-C again to quit at once and keep nothing");
        });
        asked
    };
    Arc::clone(ASKED.get_or_init(begin))
}

/// From now on there may be something to keep: the first Ctrl-C sets the flag, and the program ends by itself.
pub(crate) fn keep() -> Arc<AtomicBool> {
    let flag = listen();
    KEEPING.store(true, Ordering::SeqCst);
    flag
}

/// Whether somebody asked for an end.
pub(crate) fn asked() -> bool {
    ASKED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Whether it was Ctrl-C: the flag may also be set by a view that was closed.
pub(crate) fn asked_by_signal() -> bool {
    SIGNALLED.load(Ordering::SeqCst)
}

/// Ctrl-C as a key, where a view has the whole terminal and reads keys itself.
pub(crate) fn ask() {
    SIGNALLED.store(true, Ordering::SeqCst);
    listen().store(true, Ordering::SeqCst);
}

/// Somebody asked for an end.
#[derive(Debug)]
pub(crate) struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped by Ctrl-C")
    }
}

impl std::error::Error for Stopped {}

/// An error where somebody asked for an end, for the calls of a measurement.
pub(crate) fn check() -> anyhow::Result<()> {
    if asked() { Err(Stopped.into()) } else { Ok(()) }
}
