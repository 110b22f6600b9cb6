//! The view in a browser.

use super::feed::{Desk, Feed};
use super::serve::Address;
use anyhow::{Result, bail};

/// Serves the page until there are no more moments.
pub(super) fn web(_feed: Feed, _at: &Address, _desk: &Desk) -> Result<()> {
    bail!("the page is not there yet; without --web the view is in the terminal")
}
