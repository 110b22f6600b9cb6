//! The store: whole documents in one SQLite file, with the samples and what is asked for often in columns.
//!
//! A save is one transaction with the rollback journal and `synchronous = FULL`: it is there entirely or not at all, and
//! what was saved before stays, whatever ends the process. Saving never replaces: a name stands for the latest profile
//! saved under it, and the earlier ones stay, which is what tracking over commits reads. The file is checked before
//! anything is written: a later version, another program's or a damaged file is refused and left as it is. An earlier
//! version is brought up to date, in one transaction; where that cannot be written, it is read as it is. A row that
//! cannot be read hides no other.

use crate::profiler::fingerprint;
use crate::{Profile, export};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior, params};
use schwann_core::{Figure, show};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The version of the tables.
const VERSION: i64 = 2;
/// What brings a file of one version to the next, the first from version 1 to 2.
const MIGRATIONS: [fn(&Connection) -> rusqlite::Result<()>; VERSION as usize - 1] = [fingerprints];
/// Tells our files from other programs': "Schw".
const APPLICATION: i64 = 0x5363_6877;
/// How long to wait for another process that writes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Characters of a name.
const MOST_NAME: usize = 200;

const TABLES: &str = "
CREATE TABLE runs (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT NOT NULL,
    id          TEXT NOT NULL,
    saved       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
    created     TEXT NOT NULL,
    commit_id   TEXT,
    model       TEXT NOT NULL,
    model_hash  TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    workload    TEXT NOT NULL,
    time_p50    REAL,   -- seconds; NULL where it was not measured
    time_min    REAL,   -- seconds
    tflops      REAL,   -- Tflop/s
    rss_peak    REAL,   -- bytes
    samples     BLOB NOT NULL,  -- seconds a run: f64, little-endian
    document    TEXT NOT NULL,  -- the profile's JSON
    UNIQUE (name, id)
) STRICT;
CREATE INDEX runs_by_id ON runs (id);
";

/// From version 1 to 2: what tells machines apart no longer has the memory's size and with it every change of the
/// kernel's.
fn fingerprints(connection: &Connection) -> rusqlite::Result<()> {
    let mut statement = connection.prepare("SELECT number, CAST(document AS BLOB) FROM runs")?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
    for row in rows {
        let (number, document) = row?;
        // A document that cannot be read keeps what it had.
        let Some(m) = std::str::from_utf8(&document).ok().and_then(|d| export::read(d, "").ok()).map(|p| p.machine)
        else {
            continue;
        };
        let now = fingerprint(&m.cpu, &m.isa, m.cores.value);
        connection.execute("UPDATE runs SET fingerprint = ?1 WHERE number = ?2", params![now, number])?;
    }
    Ok(())
}

/// The columns of the runs.
fn columns(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    connection.prepare("SELECT name FROM pragma_table_info('runs')")?.query_map([], |row| row.get(0))?.collect()
}

/// What can go wrong with a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody said where, and the system does not tell where data belongs.
    #[error("no place for baselines: neither SCHWANN_DATA, XDG_DATA_HOME nor HOME is set; give --db PATH")]
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

/// Where baselines are unless told otherwise.
pub fn default_path() -> Result<PathBuf> {
    Ok(crate::place::data_dir().ok_or(Error::NoPlace)?.join("baselines.db"))
}

/// A saved profile, as a list shows it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Entry {
    /// What it was saved as.
    pub name: String,
    /// The profile's.
    pub id: String,
    /// When it was saved: RFC 3339, UTC.
    pub saved: String,
    /// When it was made.
    pub created: String,
    /// Of which commit.
    pub commit: Option<String>,
    /// The model.
    pub model: String,
    /// How it was run.
    pub workload: String,
    /// What tells its machine.
    pub fingerprint: String,
    /// Median seconds of a run.
    pub time_p50: Figure,
}

/// A row that cannot be read.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Unreadable {
    /// Its place in the store, from 1.
    pub number: i64,
    /// What is wrong with it.
    pub what: String,
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "saved profile number {} cannot be read and is left out: {}", self.number, self.what)
    }
}

/// What was asked for, and the rows that could not be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Found<T> {
    /// Earliest first.
    pub all: Vec<T>,
    /// Left out.
    pub unreadable: Vec<Unreadable>,
}

/// A metric at one saved profile.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Point {
    /// Which.
    pub entry: Entry,
    /// The metric.
    pub figure: Figure,
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens a store to read; there must be one.
    pub fn open(path: &Path) -> Result<Store> {
        if !path.exists() {
            return Err(Error::Missing { path: path.to_owned() });
        }
        let mut store = Store::connect(path, OpenFlags::empty())?;
        match store.check()? {
            true => match store.migrate() {
                // What cannot be written can still be read: the columns are the same.
                Ok(()) | Err(Error::ReadOnly { .. } | Error::Full { .. } | Error::Busy { .. }) => Ok(store),
                Err(e) => Err(e),
            },
            false => Err(Error::Missing { path: path.to_owned() }),
        }
    }

    /// Opens a store to save in, and makes it where there is none.
    pub fn create(path: &Path) -> Result<Store> {
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|source| Error::Folder { path: folder.to_owned(), source })?;
        }
        let mut store = Store::connect(path, OpenFlags::SQLITE_OPEN_CREATE)?;
        if !store.check()? {
            store.make()?;
        }
        store.migrate()?;
        Ok(store)
    }

    fn connect(path: &Path, more: OpenFlags) -> Result<Store> {
        // Reading opens to write too: a journal that a killed process left is rolled back by whoever comes next. A file
        // that cannot be written is opened to read by SQLite itself.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
        let connection = Connection::open_with_flags(path, flags).map_err(|e| said(path, e))?;
        let store = Store { connection, path: path.to_owned() };
        store.connection.busy_timeout(PATIENCE).map_err(|e| store.said(e))?;
        // What is reported as saved is on the disk; macOS needs to be told so with words of its own.
        for (name, value) in [("synchronous", "FULL"), ("fullfsync", "1"), ("checkpoint_fullfsync", "1")] {
            store.connection.pragma_update(None, name, value).map_err(|e| store.said(e))?;
        }
        Ok(store)
    }

    fn said(&self, error: rusqlite::Error) -> Error {
        said(&self.path, error)
    }

    fn pragma(&self, name: &str) -> Result<i64> {
        self.connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).map_err(|e| self.said(e))
    }

    /// Whether there is a store in the file that can be used. Reads only.
    fn check(&self) -> Result<bool> {
        let (application, found) = (self.pragma("application_id")?, self.pragma("user_version")?);
        let path = || self.path.clone();
        let count = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 = self.connection.query_row(count, [], |row| row.get(0)).map_err(|e| self.said(e))?;
        if application == 0 && found == 0 && tables == 0 {
            return Ok(false);
        }
        if application != APPLICATION {
            let what = format!("a SQLite file of another program, with application_id {application}");
            return Err(Error::Foreign { path: path(), what });
        }
        if found > VERSION {
            return Err(Error::Newer { path: path(), found, known: VERSION });
        }
        // A file from elsewhere may bring queries of its own that run when ours do.
        let strange =
            "SELECT type || ' ' || name FROM sqlite_schema WHERE type IN ('view', 'trigger') OR type = 'table'
            AND name NOT LIKE 'sqlite#_%' ESCAPE '#' AND (name != 'runs' OR sql NOT LIKE 'CREATE TABLE%') LIMIT 1";
        let strange: Option<String> =
            self.connection.query_row(strange, [], |row| row.get(0)).optional().map_err(|e| self.said(e))?;
        if let Some(strange) = strange {
            let what = format!("it has a {}, which this program never makes", show::name(&strange));
            return Err(Error::Foreign { path: path(), what });
        }
        let own = Connection::open_in_memory().and_then(|c| c.execute_batch(TABLES).and_then(|()| columns(&c)));
        let (own, columns) = (own.map_err(|e| self.said(e))?, columns(&self.connection).map_err(|e| self.said(e))?);
        if own != columns {
            let what = format!("its table `runs` has the columns {}", show::name(&columns.join(", ")));
            return Err(Error::Foreign { path: path(), what });
        }
        let sound: String =
            self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|e| self.said(e))?;
        if sound != "ok" {
            return Err(Error::Corrupt { path: path(), what: sound });
        }
        Ok(true)
    }

    /// Brings a file of an earlier version up to date: entirely, or not at all.
    fn migrate(&mut self) -> Result<()> {
        if self.pragma("user_version")? >= VERSION {
            return Ok(());
        }
        let path = self.path.clone();
        let migrated = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|t| {
            // Another process may have done it since we looked.
            let found: i64 = t.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            for step in MIGRATIONS.iter().skip((found - 1).max(0) as usize) {
                step(&t)?;
            }
            t.pragma_update(None, "user_version", VERSION)?;
            t.commit()
        });
        migrated.map_err(|e| said(&path, e))
    }

    fn make(&mut self) -> Result<()> {
        let path = self.path.clone();
        let made = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|t| {
            // Another process may have made it since we looked.
            let there: i64 = t.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if there == 0 {
                t.execute_batch(TABLES)?;
                t.pragma_update(None, "application_id", APPLICATION)?;
                t.pragma_update(None, "user_version", VERSION)?;
            }
            t.commit()
        });
        made.map_err(|e| said(&path, e))
    }

    /// Saves a profile under a name. What was saved under it before stays, and the name stands for this one from now on.
    pub fn save(&mut self, name: &str, profile: &Profile) -> Result<()> {
        check_name(name)?;
        let path = self.path.clone();
        let samples: Vec<u8> = profile.compute.samples.values.iter().flatten().flat_map(|s| s.to_le_bytes()).collect();
        let (c, m) = (&profile.compute, &profile.memory);
        let mut save = || {
            let t = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            t.execute(
                "INSERT INTO runs (name, id, created, commit_id, model, model_hash, fingerprint, workload, time_p50,
                                   time_min, tflops, rss_peak, samples, document)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
                params![
                    name,
                    profile.id,
                    profile.created,
                    profile.commit,
                    profile.model.name,
                    profile.model.hash,
                    fingerprint(&profile.machine.cpu, &profile.machine.isa, profile.machine.cores.value),
                    export::title(profile),
                    c.time_p50.value,
                    c.time_min.value,
                    c.tflops.value,
                    m.rss_peak.value,
                    samples,
                    export::json(profile),
                ],
            )?;
            t.commit()
        };
        save().map_err(|e| match e.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation) => Error::Twice { id: profile.id.clone(), name: name.to_owned() },
            _ => said(&path, e),
        })
    }

    /// The latest of a name, or the one of an id.
    pub fn load(&self, name: &str) -> Result<Profile> {
        let query = "SELECT document FROM runs WHERE name = ?1 OR id = ?1 ORDER BY name = ?1 DESC, number DESC LIMIT 1";
        let found = self.connection.query_row(query, [name], |row| row.get::<_, String>(0)).optional();
        match found.map_err(|e| self.said(e))? {
            Some(text) => Ok(export::read(&text, &format!("`{name}` in {}", self.path.display()))?),
            None => Err(self.unknown(name)?),
        }
    }

    fn unknown(&self, name: &str) -> Result<Error> {
        let mut names: Vec<String> = self.list()?.all.into_iter().map(|e| e.name).collect();
        names.sort();
        names.dedup();
        let more = names.len().saturating_sub(12);
        names.truncate(12);
        let listed = names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
        let known = match (names.is_empty(), more) {
            (true, _) => "nothing is saved at all".to_owned(),
            (_, 0) => format!("there is {listed}"),
            _ => format!("there is {listed} and {more} more"),
        };
        Ok(Error::Unknown { name: name.to_owned(), known })
    }

    /// Everything saved, earliest first.
    pub fn list(&self) -> Result<Found<Entry>> {
        self.rows("", |entry, _| Ok(Some(entry)))
    }

    /// What a name, or else an id, stands for: what [`Store::delete`] would delete.
    pub fn matching(&self, name: &str) -> Result<Vec<Entry>> {
        let all = self.list()?.all;
        let of = |f: fn(&Entry) -> &str| all.iter().filter(|e| f(e) == name).cloned().collect::<Vec<_>>();
        let named = of(|e| &e.name);
        let found = if named.is_empty() { of(|e| &e.id) } else { named };
        if found.is_empty() { Err(self.unknown(name)?) } else { Ok(found) }
    }

    /// Each row with one more column, as far as it can be read.
    fn rows<T>(
        &self,
        more: &str,
        mut read: impl FnMut(Entry, &rusqlite::Row<'_>) -> Result<Option<T>, String>,
    ) -> Result<Found<T>> {
        let query = format!(
            "SELECT number, name, id, saved, created, commit_id, model, workload, fingerprint, time_p50{more} \
             FROM runs ORDER BY number"
        );
        let mut statement = self.connection.prepare(&query).map_err(|e| self.said(e))?;
        let mut rows = statement.query([]).map_err(|e| self.said(e))?;
        let mut found = Found { all: vec![], unreadable: vec![] };
        while let Some(row) = rows.next().map_err(|e| self.said(e))? {
            let number = row.get::<_, i64>(0).map_err(|e| self.said(e))?;
            match entry(row).map_err(|e| e.to_string()).and_then(|entry| read(entry, row)) {
                Ok(read) => found.all.extend(read),
                Err(what) => found.unreadable.push(Unreadable { number, what }),
            }
        }
        Ok(found)
    }

    /// A metric of everything saved, earliest first, by its path ([`export::figure`]). A profile without it has an
    /// unavailable figure; where none has it, that is an error.
    pub fn track(&self, metric: &str, keep: impl Fn(&Entry) -> bool) -> Result<Found<Point>> {
        let mut known = false;
        let points = self.rows(", document", |entry, row| {
            if !keep(&entry) {
                return Ok(None);
            }
            let text: String = row.get(10).map_err(|e| e.to_string())?;
            let at = format!("`{}` in {}", entry.name, self.path.display());
            let profile = export::read(&text, &at).map_err(|e| e.to_string())?;
            let found = export::figure(&profile, metric);
            known |= found.is_some();
            let missing = || Figure::unavailable("", metric, "this profile has no such figure");
            Ok(Some(Point { figure: found.unwrap_or_else(missing), entry }))
        })?;
        match known || points.all.is_empty() {
            true => Ok(points),
            false => {
                let known = "metrics are paths such as `time_p50`, `compute.tflops`, `memory.rss_peak`, `compute.ops[0].self_time`; \
                             `schwann baseline export NAME --format csv` lists them all"
                    .to_owned();
                Err(Error::Unknown { name: metric.to_owned(), known })
            }
        }
    }

    /// Deletes everything of a name, or the one of an id; how many that were.
    pub fn delete(&mut self, name: &str) -> Result<usize> {
        let path = self.path.clone();
        let mut delete = || {
            let t = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let named = t.execute("DELETE FROM runs WHERE name = ?1", [name])?;
            let gone = if named > 0 { named } else { t.execute("DELETE FROM runs WHERE id = ?1", [name])? };
            t.commit()?;
            Ok(gone)
        };
        match delete().map_err(|e| said(&path, e))? {
            0 => Err(self.unknown(name)?),
            gone => Ok(gone),
        }
    }

    /// Whether every page and row is sound.
    pub fn verify(&self) -> Result<()> {
        let query = "PRAGMA integrity_check(1)";
        let what: String = self.connection.query_row(query, [], |row| row.get(0)).map_err(|e| self.said(e))?;
        if what == "ok" { Ok(()) } else { Err(Error::Corrupt { path: self.path.clone(), what }) }
    }

    /// What SQLite says of a setting.
    #[cfg(test)]
    pub(crate) fn pragma_value(&self, name: &str) -> i64 {
        self.pragma(name).unwrap()
    }

    /// Lets the file grow to so many pages at most, as a full disk would.
    #[cfg(test)]
    pub(crate) fn limit_pages(&self, pages: i64) {
        self.connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
    }
}

fn entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<Entry> {
    let time: Option<f64> = row.get(9)?;
    let source = "median of the profile's samples";
    let time_p50 = match time {
        Some(s) => Figure::measured(s, "s", source),
        None => Figure::unavailable("s", source, "the profile has none"),
    };
    Ok(Entry {
        name: row.get(1)?,
        id: row.get(2)?,
        saved: row.get(3)?,
        created: row.get(4)?,
        commit: row.get(5)?,
        model: row.get(6)?,
        workload: row.get(7)?,
        fingerprint: row.get(8)?,
        time_p50,
    })
}

fn check_name(name: &str) -> Result<()> {
    let what = if name.is_empty() {
        "it is empty"
    } else if name.chars().count() > MOST_NAME {
        "it has over 200 characters"
    } else if name.chars().any(char::is_control) {
        "it has control characters"
    } else if name.starts_with('-') {
        "it starts with `-`, like an option"
    } else if name.ends_with(".json") {
        "it ends with .json, like a file; `compare` would read a file of that name"
    } else {
        return Ok(());
    };
    Err(Error::Name { name: name.to_owned(), what })
}

/// What SQLite says, in terms of what a person can do.
fn said(path: &Path, error: rusqlite::Error) -> Error {
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
