//! One SQLite file, with the rollback journal and `synchronous = FULL`.

use super::{Error, PATIENCE, Result, said};
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};
use schwann_core::show;
use std::path::{Path, PathBuf};

/// What is kept in a file of one kind, and what brings earlier versions of it up to date.
pub(crate) struct Kind {
    /// Tells these files from other programs'.
    pub(crate) application: i64,
    /// The version of the tables.
    pub(crate) version: i64,
    /// The one table.
    pub(crate) table: &'static str,
    /// What makes the tables.
    pub(crate) tables: &'static str,
    /// What brings a file of one version to the next, the first from version 1 to 2.
    pub(crate) migrations: &'static [fn(&Connection) -> rusqlite::Result<()>],
    /// What makes the tables on a server.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "read where there are servers"))]
    pub(crate) on_server: &'static str,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.table)
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) connection: Connection,
    path: PathBuf,
    kind: &'static Kind,
}

impl File {
    /// Opens a store to read; there must be one.
    pub(crate) fn open(path: &Path, kind: &'static Kind) -> Result<File> {
        if !path.exists() {
            return Err(Error::Missing { path: path.to_owned() });
        }
        let mut store = File::connect(path, kind, OpenFlags::empty())?;
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
    pub(crate) fn create(path: &Path, kind: &'static Kind) -> Result<File> {
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|source| Error::Folder { path: folder.to_owned(), source })?;
        }
        let mut store = File::connect(path, kind, OpenFlags::SQLITE_OPEN_CREATE)?;
        if !store.check()? {
            store.make()?;
        }
        store.migrate()?;
        Ok(store)
    }

    fn connect(path: &Path, kind: &'static Kind, more: OpenFlags) -> Result<File> {
        // Reading opens to write too: a journal that a killed process left is rolled back by whoever comes next. A file
        // that cannot be written is opened to read by SQLite itself.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
        let connection = Connection::open_with_flags(path, flags).map_err(|e| said(path, e))?;
        let store = File { connection, path: path.to_owned(), kind };
        store.connection.busy_timeout(PATIENCE).map_err(|e| store.said(e))?;
        // What is reported as saved is on the disk; macOS needs to be told so with words of its own.
        for (name, value) in [("synchronous", "FULL"), ("fullfsync", "1"), ("checkpoint_fullfsync", "1")] {
            store.connection.pragma_update(None, name, value).map_err(|e| store.said(e))?;
        }
        Ok(store)
    }

    pub(crate) fn said(&self, error: rusqlite::Error) -> Error {
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
        if application != self.kind.application {
            let what = format!("a SQLite file of another program, with application_id {application}");
            return Err(Error::Foreign { path: path(), what });
        }
        if found > self.kind.version {
            return Err(Error::Newer { path: path(), found, known: self.kind.version });
        }
        // A file from elsewhere may bring queries of its own that run when ours do.
        let strange =
            "SELECT type || ' ' || name FROM sqlite_schema WHERE type IN ('view', 'trigger') OR type = 'table'
            AND name NOT LIKE 'sqlite#_%' ESCAPE '#' AND (name != ?1 OR sql NOT LIKE 'CREATE TABLE%') LIMIT 1";
        let strange: Option<String> = self
            .connection
            .query_row(strange, [self.kind.table], |row| row.get(0))
            .optional()
            .map_err(|e| self.said(e))?;
        if let Some(strange) = strange {
            let what = format!("it has a {}, which this program never makes", show::name(&strange));
            return Err(Error::Foreign { path: path(), what });
        }
        let own = Connection::open_in_memory()
            .and_then(|c| c.execute_batch(self.kind.tables).and_then(|()| self.columns(&c)));
        let (own, columns) =
            (own.map_err(|e| self.said(e))?, self.columns(&self.connection).map_err(|e| self.said(e))?);
        if own != columns {
            let what = format!("its table `{}` has the columns {}", self.kind.table, show::name(&columns.join(", ")));
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
        if self.pragma("user_version")? >= self.kind.version {
            return Ok(());
        }
        let (path, kind) = (self.path.clone(), self.kind);
        let migrated = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|t| {
            // Another process may have done it since we looked.
            let found: i64 = t.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            for step in kind.migrations.iter().skip((found - 1).max(0) as usize) {
                step(&t)?;
            }
            t.pragma_update(None, "user_version", kind.version)?;
            t.commit()
        });
        migrated.map_err(|e| said(&path, e))
    }

    fn make(&mut self) -> Result<()> {
        let (path, kind) = (self.path.clone(), self.kind);
        let made = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|t| {
            // Another process may have made it since we looked.
            let there: i64 = t.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if there == 0 {
                t.execute_batch(kind.tables)?;
                t.pragma_update(None, "application_id", kind.application)?;
                t.pragma_update(None, "user_version", kind.version)?;
            }
            t.commit()
        });
        made.map_err(|e| said(&path, e))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The columns of the table.
    fn columns(&self, connection: &Connection) -> rusqlite::Result<Vec<String>> {
        let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?1)")?;
        statement.query_map([self.kind.table], |row| row.get(0))?.collect()
    }

    /// Does this in one transaction that keeps others from writing.
    pub(crate) fn write<T>(
        &mut self,
        f: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let t = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = f(&t)?;
        t.commit()?;
        Ok(done)
    }

    /// Whether every page and row is sound.
    pub(crate) fn verify(&self) -> Result<()> {
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
