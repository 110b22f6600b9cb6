//! What was found is kept by graph, sizes, machine, backend, threads and version, and found again by all of them: a record of
//! another graph, machine or version is never used.

use super::config::{Change, Config, known_by, line};
use super::search::{Objective, Outcome, Winner};
use super::{Error, Result};
use crate::db::{Db, Kind, Param, Place, Row};
use crate::device::calibrate::Fingerprint;
use crate::profiler::{Subject, hash, now};
use schemars::JsonSchema;
use schwann_core::backend::Choice;
use schwann_core::{Bindings, CompileOptions, Figure, Graph, Program};
use schwann_kernels::Isa;
use schwann_kernels::tuning::{MachineClass, Tuning};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files tell themselves from other programs' by "Scht".
static KIND: Kind = Kind {
    application: 0x5363_6874,
    version: 1,
    table: "tuned",
    tables: TABLES,
    migrations: &[],
    on_server: ON_SERVER,
};

const TABLES: &str = "
CREATE TABLE tuned (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    graph     TEXT NOT NULL,     -- hash of graph and weights, or an operation's name
    sizes     TEXT NOT NULL,     -- such as B=32 T=16
    machine   TEXT NOT NULL,     -- as of calibrations
    backend   TEXT NOT NULL,     -- such as cpu (avx512)
    threads   INTEGER NOT NULL,  -- as asked for; 0: one per core
    version   TEXT NOT NULL,     -- of this program and its numbers
    saved     TEXT NOT NULL,
    document  TEXT NOT NULL,     -- the record's JSON
    UNIQUE (graph, sizes, machine, backend, threads, version)
) STRICT;
";

const ON_SERVER: &str = "
CREATE TABLE tuned (
    number    BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    graph     TEXT NOT NULL,
    sizes     TEXT NOT NULL,
    machine   TEXT NOT NULL,
    backend   TEXT NOT NULL,
    threads   BIGINT NOT NULL,
    version   TEXT NOT NULL,
    saved     TEXT NOT NULL,
    document  TEXT NOT NULL,
    UNIQUE (graph, sizes, machine, backend, threads, version)
);
";

/// Where tuned records are unless told otherwise.
pub fn default_path() -> Result<PathBuf> {
    Ok(crate::place::data_dir().ok_or(crate::db::Error::NoPlace)?.join("tuned.db"))
}

/// This program's version, and a hash of the numbers that it compiles with if nothing is tuned: with other numbers to begin
/// with, or numbers by other names, a record says nothing.
fn version() -> String {
    let mut all = Sha256::new();
    for class in MachineClass::ALL {
        for entry in Tuning::for_machine(class).entries() {
            all.update(format!("{}={};", entry.name, entry.value).as_bytes());
        }
    }
    let hash: String = all.finalize().iter().take(4).map(|b| format!("{b:02x}")).collect();
    let build = if cfg!(debug_assertions) { ", debug" } else { "" };
    format!("{} ({hash}{build})", env!("CARGO_PKG_VERSION"))
}

/// What a record is of, and is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    /// A hash of the graph and its weights.
    pub graph: String,
    /// Its sizes, such as `B=32 T=16`.
    pub sizes: String,
    /// What tells the machine from others, as of calibrations.
    pub machine: String,
    /// What runs it, with its variant.
    pub backend: String,
    /// Threads that were asked for; 0: one per core.
    pub threads: usize,
    /// Of this program and its numbers.
    pub version: String,
}

impl Key {
    /// Of a network on this machine.
    pub fn new(subject: &Subject, sizes: &Bindings, backend: &Choice, threads: usize) -> Result<Key> {
        let graph = known_by(subject)?;
        let isa = backend.wanted_variant().filter(|_| backend.is_cpu()).and_then(Isa::named);
        let isa = isa.unwrap_or_else(Isa::detect);
        // The name that a backend gives itself tells devices apart; the processor's is known without making a team of threads.
        let name = if backend.is_cpu() { format!("cpu ({isa})") } else { backend.make(1)?.name() };
        Ok(Key {
            sizes: sizes_text(&graph, sizes),
            graph: hash(&graph),
            machine: Fingerprint::of(isa).hash(),
            backend: name,
            threads,
            version: version(),
        })
    }

    /// Of something that has no graph.
    pub(super) fn operation(name: &str) -> Key {
        let machine = Fingerprint::of(Isa::detect()).hash();
        let graph = format!("operation {name}");
        Key { graph, sizes: String::new(), machine, backend: String::new(), threads: 0, version: version() }
    }

    fn params(&self) -> Vec<Param> {
        let Key { graph, sizes, machine, backend, threads, version } = self;
        let text = |text: &String| Param::Text(Some(text.clone()));
        let threads = Param::Int(i64::try_from(*threads).unwrap_or(i64::MAX));
        vec![text(graph), text(sizes), text(machine), text(backend), threads, text(version)]
    }
}

/// Sizes of a graph's symbols, in the order of their names.
fn sizes_text(graph: &Graph, sizes: &Bindings) -> String {
    let mut symbols: Vec<String> = graph.symbols().into_iter().collect();
    symbols.sort();
    let one = |s: &String| sizes.get(s).map(|n| format!("{s}={n}"));
    symbols.iter().filter_map(one).collect::<Vec<_>>().join(" ")
}

/// A winner that is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What it is of.
    pub key: Key,
    /// When it was kept: RFC 3339, UTC.
    pub saved: String,
    /// The model's file or built-in name then.
    pub model: String,
    /// The processor, for people.
    pub cpu: String,
    /// What counted.
    pub objective: Objective,
    /// What was found.
    pub winner: Winner,
}

impl Record {
    /// What a profile or a plan says of it.
    pub fn in_use(&self) -> InUse {
        InUse {
            saved: self.saved.clone(),
            objective: self.objective,
            gain: self.winner.gain.clone(),
            difference: self.winner.difference.clone(),
            changes: self.winner.changes.clone(),
        }
    }

    /// What to compile with.
    pub fn config(&self) -> &Config {
        &self.winner.config
    }
}

/// A tuned record in use, as profiles and plans name it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InUse {
    /// When it was kept.
    pub saved: String,
    /// What counted.
    pub objective: Objective,
    /// What it gained when it was found, over the default.
    pub gain: Figure,
    /// How far outputs differed from the default's.
    pub difference: Figure,
    /// How it differs from the default.
    pub changes: Vec<Change>,
}

impl std::fmt::Display for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let day = self.saved.split('T').next().unwrap_or_default();
        let gain = match self.gain.value {
            Some(gain) => format!("{gain:.2}× better in {} then (measured)", self.objective.name()),
            None => "an unknown gain".into(),
        };
        write!(f, "tuned on {day}, {gain}: {}", line(&self.changes))
    }
}

/// An open store of tuned records.
#[derive(Debug)]
pub struct Store {
    db: Db,
}

impl Store {
    /// Opens a store to read; there must be one.
    pub fn open(place: &Place) -> Result<Store> {
        Ok(Store { db: Db::open(place, &KIND)? })
    }

    /// Opens a store to keep records in, and makes it where there is none.
    pub fn create(place: &Place) -> Result<Store> {
        Ok(Store { db: Db::create(place, &KIND)? })
    }

    /// Keeps a search's winner; an earlier record of the same key is replaced. `None` where nothing won.
    pub fn keep(&mut self, key: Key, outcome: &Outcome) -> Result<Option<Record>> {
        let Some(winner) = &outcome.winner else { return Ok(None) };
        let cpu = crate::device::cpu::name().unwrap_or_else(|why| format!("unknown CPU ({why})"));
        let (saved, model) = (now(), outcome.model.clone());
        let record = Record { key, saved, model, cpu, objective: outcome.objective, winner: winner.clone() };
        let text = serde_json::to_string(&record).map_err(|e| self.unreadable(e))?;
        self.put(&record.key, &record.saved, text)?;
        Ok(Some(record))
    }

    pub(super) fn put(&mut self, key: &Key, saved: &str, document: String) -> Result<()> {
        let mut params = key.params();
        params.extend([saved.to_owned(), document].map(|t| Param::Text(Some(t))));
        let statement = "INSERT INTO tuned (graph, sizes, machine, backend, threads, version, saved, document)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
            ON CONFLICT (graph, sizes, machine, backend, threads, version)
            DO UPDATE SET saved = excluded.saved, document = excluded.document";
        match self.db.execute(statement, &params) {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.other(&self.db).into()),
        }
    }

    fn unreadable(&self, e: impl std::fmt::Display) -> Error {
        crate::db::Error::Row { place: self.db.told(), what: e.to_string() }.into()
    }

    /// The record of a key.
    pub fn find(&self, key: &Key) -> Result<Option<Record>> {
        let Some(text) = self.document(key)? else { return Ok(None) };
        let record: Record = serde_json::from_str(&text).map_err(|e| self.unreadable(e))?;
        // Numbers that this program does not know, or that are out of range, are worth nothing; what a record says of its own
        // place must be where it lies.
        record.winner.config.changes.tuning().map_err(|e| self.unreadable(e))?;
        if record.key != *key {
            return Err(self.unreadable("it says that it is of another graph, size or machine"));
        }
        Ok(Some(record))
    }

    pub(super) fn document(&self, key: &Key) -> Result<Option<String>> {
        let query = "SELECT document FROM tuned WHERE graph = $1 AND sizes = $2 AND machine = $3 AND backend = $4
            AND threads = $5 AND version = $6";
        let mut found = None;
        self.db.each(query, &key.params(), &mut |row| {
            found = Some(row.text(0));
            Ok(())
        })?;
        found.transpose().map_err(|e| self.unreadable(e))
    }

    /// Deletes the record of a key; whether there was one.
    pub fn forget(&mut self, key: &Key) -> Result<bool> {
        let statement = "DELETE FROM tuned WHERE graph = $1 AND sizes = $2 AND machine = $3 AND backend = $4
            AND threads = $5 AND version = $6";
        match self.db.execute(statement, &key.params()) {
            Ok(gone) => Ok(gone > 0),
            Err(failure) => Err(failure.other(&self.db).into()),
        }
    }

    /// Every record of a network, earliest first, with those that cannot be read left out and counted.
    pub fn list(&self) -> Result<(Vec<Record>, usize)> {
        let (mut all, mut unreadable) = (vec![], 0);
        let query = "SELECT document FROM tuned WHERE backend <> '' ORDER BY number";
        self.db.each(query, &[], &mut |row: &Row<'_>| {
            match row.text(0).ok().and_then(|text| serde_json::from_str(&text).ok()) {
                Some(record) => all.push(record),
                None => unreadable += 1,
            }
            Ok(())
        })?;
        Ok((all, unreadable))
    }

    /// Whether there may be records in a file, without opening it: who never tuned pays nothing.
    pub fn is_there(place: &Place) -> bool {
        match place {
            Place::File(path) => path.exists(),
            Place::Server(_) => true,
        }
    }
}

/// Compiles a graph as it was tuned for these sizes on this machine, with what is kept in a file ([`default_path`] unless
/// told); in the usual way where nothing is kept. Gives the record that is in use.
///
/// The program runs other sizes too; the record was measured with these.
pub fn compile(
    graph: &Graph,
    sizes: &Bindings,
    options: &CompileOptions,
    file: Option<&Path>,
) -> Result<(Arc<Program>, Option<Record>)> {
    let place = Place::File(match file {
        Some(path) => path.to_owned(),
        None => default_path()?,
    });
    let found = match Store::is_there(&place) && options.tuning.is_none() {
        false => None,
        true => {
            let key = Key::new(&graph.clone().into(), sizes, &options.backend, options.threads)?;
            Store::open(&place)?.find(&key)?
        }
    };
    let program = match &found {
        None => Program::compile(graph, options)?,
        Some(record) => {
            let config = record.config();
            let options = config.compile(options.clone()).map_err(|what| crate::profiler::Error::Tuning { what })?;
            Program::compile(&*config.graph(graph)?, &options)?
        }
    };
    Ok((program, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models;
    use crate::profiler::Options;
    use crate::tune::{Changes, Verdict};

    fn subject() -> Subject {
        models::built_in("wired-cfc", &models::Sizes::default()).unwrap().unwrap().into()
    }

    fn sizes() -> Bindings {
        Bindings::new().with("B", 4).with("T", 2)
    }

    fn key() -> Key {
        Key::new(&subject(), &sizes(), &Choice::default(), 1).unwrap()
    }

    /// The outcome of a search that nobody made.
    fn outcome(rows: usize) -> Outcome {
        let mut changes = Changes::default();
        changes.numbers.insert("loop_block_rows_most".into(), rows);
        let config = Config { changes, ..Config::default() };
        let figure = |value: f64, unit: &str| Figure::measured(value, unit, "made up");
        let winner = Winner {
            changes: config.told(&Options::default()),
            config,
            gain: figure(1.25, "×"),
            time: figure(4e-6, "s"),
            base: figure(5e-6, "s"),
            difference: figure(0.0, "1"),
        };
        Outcome {
            model: "wired-cfc".into(),
            objective: Objective::Latency,
            batch: figure(4.0, "sequences"),
            steps: figure(2.0, "steps"),
            threads: 1,
            backend: "cpu".into(),
            seed: 1,
            verdict: Verdict::Found,
            winner: Some(winner),
            confirmations: vec![],
            candidates: vec![],
            seconds: figure(1.0, "s"),
            partial: false,
        }
    }

    fn place() -> (tempfile::TempDir, Place) {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::File(folder.path().join("tuned.db"));
        (folder, place)
    }

    #[test]
    fn a_winner_is_found_again_and_a_later_one_takes_its_place() {
        let (_folder, place) = place();
        let kept = Store::create(&place).unwrap().keep(key(), &outcome(8)).unwrap().unwrap();
        let store = Store::open(&place).unwrap();
        assert_eq!(store.find(&key()).unwrap(), Some(kept.clone()));
        assert!(
            kept.in_use()
                .to_string()
                .contains("1.25× better in latency then (measured): loop_block_rows_most 48 → 8 rows")
        );
        drop(store);
        let mut store = Store::create(&place).unwrap();
        store.keep(key(), &outcome(16)).unwrap();
        assert_eq!(store.find(&key()).unwrap().unwrap().config().changes.numbers["loop_block_rows_most"], 16);
        assert_eq!(store.list().unwrap().0.len(), 1);
        assert!(store.forget(&key()).unwrap() && !store.forget(&key()).unwrap());
        assert_eq!(store.find(&key()).unwrap(), None);
        let nothing = Outcome { winner: None, ..outcome(8) };
        assert_eq!(store.keep(key(), &nothing).unwrap(), None);
    }

    #[test]
    fn a_record_of_another_machine_version_graph_size_or_thread_is_not_used() {
        let (_folder, place) = place();
        let mut store = Store::create(&place).unwrap();
        let own = key();
        let others = [
            Key { machine: "0123456789abcdef".into(), ..own.clone() },
            Key { version: "0.0.9 (00000000)".into(), ..own.clone() },
            Key { backend: "cpu (sse2)".into(), ..own.clone() },
            Key { threads: 2, ..own.clone() },
            Key::new(&subject(), &sizes().with("C", 1), &Choice::default(), 0).unwrap(),
            Key::new(&subject(), &Bindings::new().with("B", 5).with("T", 2), &Choice::default(), 1).unwrap(),
            Key::new(&models::random(3).unwrap().into(), &sizes(), &Choice::default(), 1).unwrap(),
        ];
        for other in &others {
            assert_ne!(*other, own);
            store.keep(other.clone(), &outcome(8)).unwrap();
        }
        assert_eq!(store.find(&own).unwrap(), None);
        // A row that was moved to this machine's key says itself that it is another's.
        let text = store.document(&others[0]).unwrap().unwrap();
        store.put(&own, "2026-01-01T00:00:00Z", text).unwrap();
        assert!(store.find(&own).unwrap_err().to_string().contains("another graph, size or machine"));
    }

    #[test]
    fn compiling_uses_what_is_kept_for_these_sizes_alone() {
        let (folder, place) = place();
        let file = folder.path().join("tuned.db");
        let graph = subject().graph().unwrap();
        let options = CompileOptions::default().threads(1);
        let (_, none) = compile(&graph, &sizes(), &options, Some(&file)).unwrap();
        assert_eq!(none, None);
        let key = Key::new(&graph.clone().into(), &sizes(), &Choice::default(), 1).unwrap();
        Store::create(&place).unwrap().keep(key, &outcome(1)).unwrap();
        let (program, found) = compile(&graph, &sizes(), &options, Some(&file)).unwrap();
        assert!(found.is_some());
        let rows = |program: &Program| {
            let plan = program.plan(&sizes()).unwrap();
            plan.steps.iter().find_map(|s| s.looped.as_ref().and_then(|l| l.block_rows))
        };
        let usual = Program::compile(&graph, &options).unwrap();
        assert_eq!((rows(&program), rows(&usual)), (Some(1), Some(4)));
        let (_, other) = compile(&graph, &Bindings::new().with("B", 8).with("T", 2), &options, Some(&file)).unwrap();
        assert_eq!(other, None);
    }

    #[test]
    fn a_damaged_or_foreign_store_is_refused_and_left_as_it_is() {
        let (folder, place) = place();
        let file = folder.path().join("tuned.db");
        std::fs::write(&file, "this is no database, and long enough to be looked at as one").unwrap();
        let said = Store::open(&place).unwrap_err().to_string();
        assert!(said.contains("tuned.db") && said.contains("left as it is"), "{said}");
        assert!(std::fs::read_to_string(&file).unwrap().starts_with("this is no database"));
        std::fs::remove_file(&file).unwrap();
        // Baselines are another file.
        drop(crate::baseline::Store::create(&file).unwrap());
        assert!(Store::create(&place).unwrap_err().to_string().contains("another program"));
        std::fs::remove_file(&file).unwrap();
        // A document that is none, or has numbers that cannot be.
        let mut store = Store::create(&place).unwrap();
        store.put(&key(), "then", "{".into()).unwrap();
        assert!(store.find(&key()).unwrap_err().to_string().contains("a row in"));
        assert_eq!(store.list().unwrap(), (vec![], 1));
        store.keep(key(), &outcome(usize::MAX)).unwrap();
        assert!(store.find(&key()).unwrap_err().to_string().contains("loop_block_rows_most"));
    }

    #[test]
    fn writers_at_the_same_time_leave_one_record_each() {
        let (_folder, place) = place();
        std::thread::scope(|s| {
            for threads in 0..4usize {
                let place = &place;
                s.spawn(move || {
                    let mut store = Store::create(place).unwrap();
                    for rows in 1..6 {
                        store.keep(Key { threads: threads % 2, ..key() }, &outcome(rows)).unwrap();
                    }
                });
            }
        });
        assert_eq!(Store::open(&place).unwrap().list().unwrap().0.len(), 2);
    }
}
