//! Moments as JSON lines on stdout: the same lines that a recording has.

use super::feed::Feed;
use crate::out;
use anyhow::Result;
use schwann::prof::live::Recorder;

/// Prints what is watched, then a line for each moment.
pub(super) fn lines(mut feed: &Feed) -> Result<()> {
    let mut recorder = Recorder::new(out::stdout(), feed.about())?;
    while let Some(moment) = Iterator::next(&mut feed) {
        recorder.record(&moment)?;
        if out::is_closed() {
            break;
        }
    }
    Ok(())
}
