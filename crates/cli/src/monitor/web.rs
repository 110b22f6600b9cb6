//! The view in a browser.

use super::feed::{Desk, Feed};
use super::serve::Server;
use anyhow::{Result, bail};

/// Serves the page until there are no more moments.
pub(super) fn web(_feed: Feed, server: Server, _desk: &Desk) -> Result<()> {
    bail!("there is no page yet to serve at {}; without --web the view is in the terminal", server.address)
}
