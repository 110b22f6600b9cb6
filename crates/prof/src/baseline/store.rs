//! The store: whole documents in one SQLite file, or on a server, with the samples and what is asked for often in columns.
//!
//! A save is one transaction with the rollback journal and `synchronous = FULL`: it is there entirely or not at all, and
//! what was saved before stays, whatever ends the process. Saving never replaces: a name stands for the latest profile
//! saved under it, and the earlier ones stay, which is what tracking over commits reads. The file is checked before
//! anything is written: a later version, another program's or a damaged file is refused and left as it is. An earlier
//! version is brought up to date, in one transaction; where that cannot be written, it is read as it is. A row that
//! cannot be read hides no other.

use crate::db::{Db, Failure, Kind, Param, Place, Row};
pub use crate::db::{Error, Result};
use crate::profiler::fingerprint;
use crate::{Profile, export};
use rusqlite::{Connection, params};
use schwann_core::Figure;
use std::path::{Path, PathBuf};

/// Characters of a name.
const MOST_NAME: usize = 200;

/// Files tell themselves from other programs' by "Schw".
static KIND: Kind = Kind {
    application: 0x5363_6877,
    version: 2,
    table: "runs",
    tables: TABLES,
    migrations: &[fingerprints],
    on_server: ON_SERVER,
};

/// The same on a server.
const ON_SERVER: &str = "
CREATE TABLE runs (
    number      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        TEXT NOT NULL,
    id          TEXT NOT NULL,
    saved       TEXT NOT NULL DEFAULT to_char(now() AT TIME ZONE 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'),
    created     TEXT NOT NULL,
    commit_id   TEXT,
    model       TEXT NOT NULL,
    model_hash  TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    workload    TEXT NOT NULL,
    time_p50    DOUBLE PRECISION,
    time_min    DOUBLE PRECISION,
    tflops      DOUBLE PRECISION,
    rss_peak    DOUBLE PRECISION,
    samples     BYTEA NOT NULL,
    document    TEXT NOT NULL,
    UNIQUE (name, id)
);
CREATE INDEX runs_by_id ON runs (id);
";

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
    db: Db,
}

impl Store {
    /// Opens a store to read; there must be one.
    pub fn open(path: &Path) -> Result<Store> {
        Store::open_at(&Place::File(path.to_owned()))
    }

    /// Opens a store to save in, and makes it where there is none.
    pub fn create(path: &Path) -> Result<Store> {
        Store::create_at(&Place::File(path.to_owned()))
    }

    /// Opens a store in a file or on a server to read.
    pub fn open_at(place: &Place) -> Result<Store> {
        Ok(Store { db: Db::open(place, &KIND)? })
    }

    /// Opens a store in a file or on a server to save in.
    pub fn create_at(place: &Place) -> Result<Store> {
        Ok(Store { db: Db::create(place, &KIND)? })
    }

    /// Saves a profile under a name. What was saved under it before stays, and the name stands for this one from now on.
    pub fn save(&mut self, name: &str, profile: &Profile) -> Result<()> {
        check_name(name)?;
        let samples: Vec<u8> = profile.compute.samples.values.iter().flatten().flat_map(|s| s.to_le_bytes()).collect();
        let (c, m) = (&profile.compute, &profile.memory);
        let text = |text: &str| Param::Text(Some(text.to_owned()));
        let saved = self.db.execute(
            "INSERT INTO runs (name, id, created, commit_id, model, model_hash, fingerprint, workload, time_p50,
                               time_min, tflops, rss_peak, samples, document)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
            &[
                text(name),
                text(&profile.id),
                text(&profile.created),
                Param::Text(profile.commit.clone()),
                text(&profile.model.name),
                text(&profile.model.hash),
                text(&fingerprint(&profile.machine.cpu, &profile.machine.isa, profile.machine.cores.value)),
                text(&export::title(profile)),
                Param::Real(c.time_p50.value),
                Param::Real(c.time_min.value),
                Param::Real(c.tflops.value),
                Param::Real(m.rss_peak.value),
                Param::Blob(samples),
                text(&export::json(profile)),
            ],
        );
        match saved {
            Ok(_) => Ok(()),
            Err(Failure::Taken) => Err(Error::Twice { id: profile.id.clone(), name: name.to_owned() }),
            Err(Failure::Other(e)) => Err(e),
        }
    }

    /// The latest of a name, or the one of an id.
    pub fn load(&self, name: &str) -> Result<Profile> {
        let query = "SELECT document FROM runs WHERE name = $1 OR id = $1 ORDER BY name = $1 DESC, number DESC LIMIT 1";
        let mut found = None;
        self.db.each(query, &[Param::Text(Some(name.to_owned()))], &mut |row| {
            found = Some(row.text(0));
            Ok(())
        })?;
        match found {
            Some(Ok(text)) => Ok(export::read(&text, &format!("`{name}` in {}", self.db.told()))?),
            Some(Err(what)) => Err(Error::Row { place: self.db.told(), what }),
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
        mut read: impl FnMut(Entry, &Row<'_>) -> Result<Option<T>, String>,
    ) -> Result<Found<T>> {
        let query = format!(
            "SELECT number, name, id, saved, created, commit_id, model, workload, fingerprint, time_p50{more} \
             FROM runs ORDER BY number"
        );
        let mut found = Found { all: vec![], unreadable: vec![] };
        self.db.each(&query, &[], &mut |row| {
            let number = row.int(0).map_err(|what| Error::Row { place: self.db.told(), what })?;
            match entry(row).and_then(|entry| read(entry, row)) {
                Ok(read) => found.all.extend(read),
                Err(what) => found.unreadable.push(Unreadable { number, what }),
            }
            Ok(())
        })?;
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
            let text = row.text(10)?;
            let at = format!("`{}` in {}", entry.name, self.db.told());
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
        let query = "DELETE FROM runs
            WHERE name = $1 OR (id = $1 AND NOT EXISTS (SELECT 1 FROM runs AS named WHERE named.name = $1))";
        match self.db.execute(query, &[Param::Text(Some(name.to_owned()))]) {
            Ok(0) => Err(self.unknown(name)?),
            Ok(gone) => Ok(gone),
            Err(failure) => Err(failure.other(&self.db)),
        }
    }

    /// Whether every page and row is sound.
    pub fn verify(&self) -> Result<()> {
        self.db.verify()
    }

    /// The file, for tests.
    #[cfg(test)]
    fn file(&self) -> &crate::db::File {
        match &self.db {
            Db::File(file) => file,
            #[cfg(feature = "postgres")]
            Db::Server(_) => panic!("it is on a server"),
        }
    }

    /// What SQLite says of a setting.
    #[cfg(test)]
    pub(crate) fn pragma_value(&self, name: &str) -> i64 {
        self.file().pragma_value(name)
    }

    /// Lets the file grow to so many pages at most, as a full disk would.
    #[cfg(test)]
    pub(crate) fn limit_pages(&self, pages: i64) {
        self.file().limit_pages(pages);
    }
}

fn entry(row: &Row<'_>) -> Result<Entry, String> {
    let source = "median of the profile's samples";
    let time_p50 = match row.real(9)? {
        Some(s) => Figure::measured(s, "s", source),
        None => Figure::unavailable("s", source, "the profile has none"),
    };
    Ok(Entry {
        name: row.text(1)?,
        id: row.text(2)?,
        saved: row.text(3)?,
        created: row.text(4)?,
        commit: row.text_or_none(5)?,
        model: row.text(6)?,
        workload: row.text(7)?,
        fingerprint: row.text(8)?,
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
