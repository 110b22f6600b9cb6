//! Letting a running program be watched: what its sessions run, and how long each run takes.
//!
//! Two lines open the door:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let mut session: schwann_core::Session = unimplemented!();
//! let door = schwann_core::live::open("robot")?;
//! session.watch(&door);
//! // … and from then on each `session.run` can be seen from outside.
//! # Ok(())
//! # }
//! ```
//!
//! `schwann monitor --attach robot` watches it, from another process of the same user, at any time and as often as
//! wanted. What is to be seen is in a file in memory, in the user's runtime directory: a ring of the latest runs, and for
//! each watched session what it runs ([`Facts`]) and where its time goes. A run writes four words there, with neither a
//! lock nor a system call, and does not know whether anybody looks: a monitor that is slow, or killed, changes nothing.
//! Now and then a run is watched operation by operation, and about once a second what that gave is written down.
//!
//! Whoever reads ([`Ring`]) trusts nothing that is in the file.

mod facts;
#[cfg(unix)]
mod place;
#[cfg(unix)]
mod ring;
mod watch;
#[cfg(unix)]
mod write;

pub use facts::{Facts, Part};
#[cfg(unix)]
pub use place::{Found, found};
#[cfg(unix)]
pub use ring::{Ring, Seen, Told};
pub(crate) use watch::Watch;
pub use watch::{Door, open};

use std::path::PathBuf;

/// The version of the rings that this program writes and reads.
pub const VERSION: u64 = 1;

/// What can be wrong with a door or a ring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that cannot be one.
    #[error("`{}` is no name for a program that is watched; expected 1 to 48 letters, digits, `-`, `_` or `.`", crate::show::line(.name))]
    Name {
        /// What was given.
        name: String,
    },
    /// There is no place for rings.
    #[error("there is no safe folder for what is watched: {problem}")]
    Folder {
        /// What is wrong with each folder that was tried.
        problem: String,
    },
    /// A file could not be made or read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nobody of this name can be watched.
    #[error("{problem}")]
    Nobody {
        /// Who can be, or why not.
        problem: String,
    },
    /// A file that is no ring, or not one of ours.
    #[error("{}: {problem}", path.display())]
    Ring {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Not on this system.
    #[error("programs can be watched on Unix systems only, so far")]
    System,
}

/// A result with this module's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
