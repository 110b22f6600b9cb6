//! Where things are kept that must not be lost: a SQLite file, or a PostgreSQL server that a team shares.
//!
//! A write is one transaction: it is there entirely or not at all, and what was there before stays, whatever ends the
//! process. What is kept is checked before anything is written: a later version, another program's or a damaged file is
//! refused and left as it is.

mod file;
#[cfg(feature = "postgres")]
mod server;

pub(crate) use file::{File, Kind};

use crate::export;
use rusqlite::types::ToSqlOutput;
use rusqlite::{ErrorCode, params_from_iter};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where something is kept: a file, or a server by its URL.
#[derive(Clone, PartialEq, Eq)]
pub enum Place {
    /// A SQLite file.
    File(PathBuf),
    /// A PostgreSQL server: `postgres://user:password@host/database`.
    Server(String),
}

impl Place {
    /// A URL of a server, or else a file's path.
    pub fn of(text: &str) -> Place {
        match text.starts_with("postgres://") || text.starts_with("postgresql://") {
            true => Place::Server(text.to_owned()),
            false => Place::File(PathBuf::from(text)),
        }
    }
}

impl std::fmt::Display for Place {
    /// Without a server's password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Server(url) => {
                let bare = url.split(['?', '#']).next().unwrap_or_default();
                match (bare.split_once("://"), bare.rsplit_once('@')) {
                    (Some((scheme, _)), Some((before, host))) => {
                        let user = before.rsplit('/').next().unwrap_or_default();
                        let user = user.split(':').next().unwrap_or_default();
                        write!(f, "{scheme}://{user}@{host}")
                    }
                    _ => f.write_str(bare),
                }
            }
        }
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// How long to wait for another process that writes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// What can go wrong with a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody said where, and the system does not tell where data belongs.
    #[error("no place to keep anything: neither SCHWANN_DATA, XDG_DATA_HOME nor HOME is set; give --db PATH")]
    NoPlace,
    /// The folder cannot be made.
    #[error("cannot make the folder {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no store yet, and nothing was to be written.
    #[error("there is no store at {}: nothing was saved yet (`schwann baseline save NAME PROFILE.json` saves)", path.display())]
    Missing {
        /// Where it would be.
        path: PathBuf,
    },
    /// Made by a later version of this program.
    #[error("{} has version {found}; this program knows up to {known}. It was left as it is: use a newer program, or another file with --db", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The greatest known.
        known: i64,
    },
    /// A file of something else.
    #[error("{} is not a store of this program ({what}). It was left as it is: give another file with --db", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// Damaged.
    #[error("{} is damaged ({what}). It was left as it is: put a copy of it in its place, or give another file with --db", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        what: String,
    },
    /// Nothing can be written there.
    #[error("{} cannot be written ({what}): give --db PATH or SCHWANN_DATA=FOLDER that can. Nothing was changed", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        what: String,
    },
    /// No room.
    #[error("no room to save in {} ({what}). Nothing was changed, and what was saved before is still there", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        what: String,
    },
    /// The system fails to read or write: a limit on files' sizes, a quota, a bad disk.
    #[error("the system could not read or write {} ({what}): is there a limit on files' sizes, or a bad disk? What was saved before is still there", path.display())]
    Device {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        what: String,
    },
    /// Another process writes without end.
    #[error("another process has been writing to {} for over {} s; nothing was changed", path.display(), PATIENCE.as_secs())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A server that cannot be reached.
    #[error("cannot reach the server {server}: {what}. Is it running, and is the address right? Nothing was changed")]
    Away {
        /// Which, without the password.
        server: String,
        /// What the system said.
        what: String,
    },
    /// A server that does not let this user in.
    #[error("the server {server} does not let this user in: {what}")]
    Refused {
        /// Which, without the password.
        server: String,
        /// What it said.
        what: String,
    },
    /// Something else that a server says.
    #[error("{server}: {what}")]
    Server {
        /// Which, without the password.
        server: String,
        /// What it said.
        what: String,
    },
    /// A server with tables of a later version.
    #[error(
        "{server} has version {found} of `{table}`; this program knows up to {known}. Nothing was changed: use a newer program"
    )]
    NewerServer {
        /// Which, without the password.
        server: String,
        /// Of which table.
        table: String,
        /// Its version.
        found: i64,
        /// The greatest known.
        known: i64,
    },
    /// A row that cannot be read.
    #[error("a row in {place} cannot be read: {what}")]
    Row {
        /// Where.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// A build without servers.
    #[error("this build cannot use PostgreSQL ({server}): build with `--features postgres`, or give a file")]
    NoServers {
        /// What was asked for, without the password.
        server: String,
    },
    /// Anything else that SQLite says.
    #[error("{}: {source}", path.display())]
    Sql {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: rusqlite::Error,
    },
    /// Nothing of that name.
    #[error("nothing is saved as `{name}`; {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A name that cannot be one.
    #[error("`{name}` is not a name for a baseline: {what}")]
    Name {
        /// The name.
        name: String,
        /// Why.
        what: &'static str,
    },
    /// The same document again.
    #[error("profile {id} is already saved as `{name}`")]
    Twice {
        /// The profile.
        id: String,
        /// The name.
        name: String,
    },
    /// A document that cannot be read.
    #[error(transparent)]
    Document(#[from] export::Error),
}

/// Something's outcome.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What SQLite says, in terms of what a person can do.
pub(crate) fn said(path: &Path, error: rusqlite::Error) -> Error {
    let path = path.to_owned();
    let what = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => Error::Corrupt { path, what },
        Some(ErrorCode::NotADatabase) => Error::Foreign { path, what },
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            Error::ReadOnly { path, what }
        }
        Some(ErrorCode::SystemIoFailure) => Error::Device { path, what },
        Some(ErrorCode::DiskFull) => Error::Full { path, what },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Busy { path },
        _ => Error::Sql { path, source: error },
    }
}

/// A value of a statement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Param {
    Text(Option<String>),
    Real(Option<f64>),
    Int(i64),
    Blob(Vec<u8>),
}

impl rusqlite::ToSql for Param {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Param::Text(text) => text.to_sql(),
            Param::Real(number) => number.to_sql(),
            Param::Int(number) => number.to_sql(),
            Param::Blob(bytes) => bytes.to_sql(),
        }
    }
}

/// A row of a result.
pub(crate) enum Row<'a> {
    File(&'a rusqlite::Row<'a>),
    #[cfg(feature = "postgres")]
    Server(&'a ::postgres::Row),
}

impl Row<'_> {
    pub(crate) fn text(&self, column: usize) -> Result<String, String> {
        self.text_or_none(column)?.ok_or_else(|| format!("column {column} is empty"))
    }
    pub(crate) fn text_or_none(&self, column: usize) -> Result<Option<String>, String> {
        match self {
            Row::File(row) => row.get(column).map_err(|e| e.to_string()),
            #[cfg(feature = "postgres")]
            Row::Server(row) => row.try_get(column).map_err(|e| e.to_string()),
        }
    }
    pub(crate) fn int(&self, column: usize) -> Result<i64, String> {
        match self {
            Row::File(row) => row.get(column).map_err(|e| e.to_string()),
            #[cfg(feature = "postgres")]
            Row::Server(row) => row.try_get(column).map_err(|e| e.to_string()),
        }
    }
    pub(crate) fn real(&self, column: usize) -> Result<Option<f64>, String> {
        match self {
            Row::File(row) => row.get(column).map_err(|e| e.to_string()),
            #[cfg(feature = "postgres")]
            Row::Server(row) => row.try_get(column).map_err(|e| e.to_string()),
        }
    }
}

/// Why a statement did nothing.
pub(crate) enum Failure {
    /// There is such a row already.
    Taken,
    /// Anything else.
    Other(Error),
}

impl Failure {
    /// As an error, where a row that is there already is none that could be.
    pub(crate) fn other(self, db: &Db) -> Error {
        match self {
            Failure::Other(e) => e,
            Failure::Taken => Error::Row { place: db.told(), what: "it is there already".into() },
        }
    }
}

/// An open file or server. Statements are the same for both; `$1` stands for the first value.
#[derive(Debug)]
pub(crate) enum Db {
    File(File),
    #[cfg(feature = "postgres")]
    Server(server::Server),
}

impl Db {
    /// To read; there must be something.
    pub(crate) fn open(place: &Place, kind: &'static Kind) -> Result<Db> {
        match place {
            Place::File(path) => Ok(Db::File(File::open(path, kind)?)),
            #[cfg(feature = "postgres")]
            Place::Server(url) => Ok(Db::Server(server::Server::open(url, kind, false)?)),
            #[cfg(not(feature = "postgres"))]
            Place::Server(_) => Err(Error::NoServers { server: place.to_string() }),
        }
    }

    /// To write; it is made where there is none.
    pub(crate) fn create(place: &Place, kind: &'static Kind) -> Result<Db> {
        match place {
            Place::File(path) => Ok(Db::File(File::create(path, kind)?)),
            #[cfg(feature = "postgres")]
            Place::Server(url) => Ok(Db::Server(server::Server::open(url, kind, true)?)),
            #[cfg(not(feature = "postgres"))]
            Place::Server(_) => Err(Error::NoServers { server: place.to_string() }),
        }
    }

    /// Where it is, for people.
    pub(crate) fn told(&self) -> String {
        match self {
            Db::File(file) => file.path().display().to_string(),
            #[cfg(feature = "postgres")]
            Db::Server(server) => server.told().to_owned(),
        }
    }

    /// Each row of a result.
    pub(crate) fn each(
        &self,
        query: &str,
        params: &[Param],
        read: &mut dyn FnMut(&Row<'_>) -> Result<()>,
    ) -> Result<()> {
        match self {
            Db::File(file) => {
                let mut statement = file.connection.prepare(query).map_err(|e| file.said(e))?;
                let mut rows = statement.query(params_from_iter(params)).map_err(|e| file.said(e))?;
                while let Some(row) = rows.next().map_err(|e| file.said(e))? {
                    read(&Row::File(row))?;
                }
                Ok(())
            }
            #[cfg(feature = "postgres")]
            Db::Server(server) => server.each(query, params, read),
        }
    }

    /// Does one statement, entirely or not at all; how many rows it changed.
    pub(crate) fn execute(&mut self, statement: &str, params: &[Param]) -> Result<usize, Failure> {
        match self {
            Db::File(file) => {
                let done = file.write(|t| t.execute(statement, params_from_iter(params)));
                done.map_err(|e| match e.sqlite_error_code() {
                    Some(ErrorCode::ConstraintViolation) => Failure::Taken,
                    _ => Failure::Other(file.said(e)),
                })
            }
            #[cfg(feature = "postgres")]
            Db::Server(server) => server.execute(statement, params),
        }
    }

    /// Whether every page and row is sound, as far as that can be asked.
    pub(crate) fn verify(&self) -> Result<()> {
        match self {
            Db::File(file) => file.verify(),
            #[cfg(feature = "postgres")]
            Db::Server(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://ada:secret@db.example/team", "postgres://ada@db.example/team"),
            ("postgres://ada:se@cret@db/team?password=secret", "postgres://ada@db/team"),
            ("postgresql://db/team", "postgresql://db/team"),
            ("postgres:///team?host=/tmp/x&password=secret", "postgres:///team"),
        ] {
            let place = Place::of(url);
            assert_eq!((place.to_string(), format!("{place:?}")), (shown.to_owned(), shown.to_owned()));
        }
        assert_eq!(Place::of("postgres.db"), Place::File("postgres.db".into()));
    }

    #[cfg(not(feature = "postgres"))]
    #[test]
    fn a_build_without_servers_says_so() {
        static NONE: Kind = Kind { application: 1, version: 1, table: "t", tables: "", migrations: &[], on_server: "" };
        let error = Db::open(&Place::of("postgres://a:b@c/d"), &NONE).unwrap_err().to_string();
        assert!(error.contains("--features postgres") && !error.contains(":b@"), "{error}");
    }
}
