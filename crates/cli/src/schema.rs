//! `schwann schema`: the form of a profile's document, for programs that read or check it.

use crate::{Outcome, out};
use anyhow::Result;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann schema > profile.schema.json
  schwann schema | jq '.\"$defs\".Figure'")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<Outcome> {
    out::print(&serde_json::to_string_pretty(&schwann::prof::export::schema())?)?;
    Ok(Outcome::Done)
}
