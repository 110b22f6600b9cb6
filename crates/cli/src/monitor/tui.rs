//! The view in a terminal; into a pipe, a line for each moment.

use super::feed::{Desk, Feed};
use crate::out;
use anyhow::Result;
use schwann::prof::live::Moment;
use schwann::prof::plot::unit::show;
use std::io::Write;

/// Shows moments until there are no more.
pub(super) fn terminal(mut feed: Feed, _desk: &Desk) -> Result<()> {
    plain(&mut feed)
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
