//! A PostgreSQL server that a team shares, with the same tables as the file.
//!
//! The tables lie in a schema of their own, `schwann`, with their version beside them. Who comes first makes them; several who
//! come at once wait for each other by a lock of the server's. Each statement is a transaction, and unique keys keep two who
//! write the same at the same time from both doing so.

use super::{Error, Failure, Kind, Param, Place, Result, Row};
use ::postgres::error::SqlState;
use ::postgres::types::ToSql;
use ::postgres::{Client, Config, NoTls};
use std::cell::RefCell;
use std::time::Duration;

/// How long to wait for a server to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The lock that whoever makes tables holds.
const LOCK: i64 = 0x5363_6877;

/// A connection.
pub(crate) struct Server {
    client: RefCell<Client>,
    told: String,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.told)
    }
}

impl Server {
    /// Connects, and makes the tables where there are none: reading makes none, and finds nothing saved.
    pub(crate) fn open(url: &str, kind: &'static Kind, make: bool) -> Result<Server> {
        let told = Place::Server(url.to_owned()).to_string();
        let parsed: Result<Config, ::postgres::Error> = url.parse();
        let mut config = parsed.map_err(|e| Error::Server { server: told.clone(), what: words(&e) })?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(PATIENCE);
        }
        config.application_name("schwann");
        let client = config.connect(NoTls).map_err(|e| said(&told, &e))?;
        let mut server = Server { client: RefCell::new(client), told };
        server.prepare(kind, make)?;
        Ok(server)
    }

    pub(crate) fn told(&self) -> &str {
        &self.told
    }

    fn prepare(&mut self, kind: &Kind, make: bool) -> Result<()> {
        let told = self.told.clone();
        let client = self.client.get_mut();
        let mut prepare = || -> Result<Option<i64>, ::postgres::Error> {
            client.batch_execute("SET search_path TO schwann, public")?;
            let mut t = client.transaction()?;
            let there: bool = t.query_one("SELECT to_regclass('schwann.versions') IS NOT NULL", &[])?.get(0);
            if !there && !make {
                return Ok(None);
            }
            if make {
                t.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
                // The superfluous word of a server whose schema is there already is no matter.
                t.batch_execute(
                    "SET LOCAL client_min_messages TO warning;
                     CREATE SCHEMA IF NOT EXISTS schwann;
                     CREATE TABLE IF NOT EXISTS schwann.versions (name TEXT PRIMARY KEY, version BIGINT NOT NULL)",
                )?;
            }
            let found = t.query_opt("SELECT version FROM schwann.versions WHERE name = $1", &[&kind.table])?;
            let found: Option<i64> = found.map(|row| row.get(0));
            if found.is_none() && make {
                t.batch_execute(kind.on_server)?;
                let statement = "INSERT INTO schwann.versions (name, version) VALUES ($1, $2)";
                t.execute(statement, &[&kind.table, &kind.version])?;
            }
            t.commit()?;
            Ok(found.or(make.then_some(kind.version)))
        };
        match prepare().map_err(|e| said(&told, &e))? {
            Some(found) if found > kind.version => {
                Err(Error::NewerServer { server: told, table: kind.table.into(), found, known: kind.version })
            }
            Some(_) => Ok(()),
            None => {
                let what = format!("nothing was saved there yet (there is no table `{}`)", kind.table);
                Err(Error::Server { server: told, what })
            }
        }
    }

    pub(crate) fn each(
        &self,
        query: &str,
        params: &[Param],
        read: &mut dyn FnMut(&Row<'_>) -> Result<()>,
    ) -> Result<()> {
        use ::postgres::fallible_iterator::FallibleIterator;
        let mut client = self.client.borrow_mut();
        let mut rows = client.query_raw(query, params.iter().map(value)).map_err(|e| said(&self.told, &e))?;
        while let Some(row) = rows.next().map_err(|e| said(&self.told, &e))? {
            read(&Row::Server(&row))?;
        }
        Ok(())
    }

    pub(crate) fn execute(&mut self, statement: &str, params: &[Param]) -> Result<usize, Failure> {
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(value).collect();
        match self.client.get_mut().execute(statement, &params) {
            Ok(rows) => Ok(rows as usize),
            Err(e) if e.code() == Some(&SqlState::UNIQUE_VIOLATION) => Err(Failure::Taken),
            Err(e) => Err(Failure::Other(said(&self.told, &e))),
        }
    }
}

/// A value as the server's driver takes it.
fn value(param: &Param) -> &(dyn ToSql + Sync) {
    match param {
        Param::Text(text) => text,
        Param::Real(number) => number,
        Param::Int(number) => number,
        Param::Blob(bytes) => bytes,
    }
}

/// An error with all its causes.
fn words(error: &::postgres::Error) -> String {
    let mut what = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        let text = e.to_string();
        if !what.contains(&text) {
            what += &format!(": {text}");
        }
        cause = e.source();
    }
    what
}

/// What a server says, in terms of what a person can do.
fn said(server: &str, error: &::postgres::Error) -> Error {
    let (server, what) = (server.to_owned(), words(error));
    match error.code() {
        Some(
            &SqlState::INVALID_PASSWORD
            | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            | &SqlState::INSUFFICIENT_PRIVILEGE
            | &SqlState::INVALID_CATALOG_NAME,
        ) => Error::Refused { server, what },
        Some(_) => Error::Server { server, what },
        None if what.contains("password") => Error::Refused { server, what },
        None if error.is_closed() || what.contains("connect") => Error::Away { server, what },
        None => Error::Server { server, what },
    }
}
