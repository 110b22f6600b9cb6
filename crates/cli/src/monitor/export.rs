//! `--replay FILE --trace OUT.json`: a recording as a trace for Perfetto.

use super::drive;
use crate::{Outcome, out, stop};
use anyhow::{Context, Result, bail};
use schwann::prof::live::{MOST_MOMENTS, Tracks};
use schwann::prof::trace;
use schwann::show::Cleaner;
use std::io::Write;
use std::path::Path;

/// Writes the trace.
pub(super) fn run(recording: &Path, path: &Path) -> Result<Outcome> {
    out::apart([path], [recording])?;
    let mut source = drive::replay(recording, false, stop::listen())?;
    let mut tracks = Tracks::new(source.about());
    let mut all = 0;
    while let Some(moment) = source.next_moment()? {
        if !tracks.add(&moment) {
            out::note(&format!("a trace holds {MOST_MOMENTS} moments; the rest of the recording is left out"));
            break;
        }
        all += 1;
    }
    if let Some(why) = source.ended() {
        out::note(&why);
    }
    if all == 0 {
        bail!("{} has no moments", recording.display());
    }
    let trace = tracks.trace();
    let written = schwann::io::write_file(out::place(path), |out| {
        let mut out = Cleaner::new(out);
        trace::write_all(std::slice::from_ref(&trace), &mut out)?;
        out.flush()
    });
    out::written(path, written).with_context(|| format!("cannot write {}", path.display()))?;
    if !out::is_stdout(path) {
        out::note(&format!("wrote {}; open it at ui.perfetto.dev", path.display()));
    }
    Ok(Outcome::Done)
}
