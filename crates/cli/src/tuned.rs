//! What `schwann tune` kept, looked up by the commands that compile: found by graph, sizes, machine, backend, threads and
//! version, or not used at all.

use crate::{load, out};
use anyhow::Result;
use schwann::Bindings;
use schwann::backend::Choice;
use schwann::prof::db::{self, Place};
use schwann::prof::profiler::Subject;
use schwann::prof::tune::{self, Key, Record, Store};

/// Where teams keep baselines and tuned plans.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Shared {
    /// The PostgreSQL server on which baselines and tuned plans are kept, such as postgres://user:password@host/database.
    #[arg(long, value_name = "URL", global = true, value_parser = server)]
    pub(crate) store: Option<Place>,
}

fn server(text: &str) -> Result<Place, String> {
    match Place::of(text) {
        place @ Place::Server(_) => Ok(place),
        Place::File(_) => Err("expected postgres://user:password@host/database; a file is named by --db".into()),
    }
}

/// Whether what was tuned is used.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Tuned {
    /// Compile in the usual way, whatever `schwann tune` found.
    #[arg(long)]
    pub(crate) no_tuned: bool,
}

/// Where tuned records are: on the server that was given, or in the user's data directory.
pub(crate) fn place(shared: &Shared) -> Result<Place> {
    Ok(match &shared.store {
        Some(place) => place.clone(),
        None => Place::File(tune::default_path()?),
    })
}

impl Tuned {
    /// The record for a network of these sizes, the first that there is of these numbers of threads. Whatever is wrong with
    /// the store is said, and nothing of it used.
    pub(crate) fn find(
        &self,
        shared: &Shared,
        subject: &Subject,
        sizes: &Bindings,
        (choice, threads): (&Choice, &[usize]),
    ) -> Option<Record> {
        if self.no_tuned {
            return None;
        }
        let look = || -> tune::Result<Option<Record>> {
            let Ok(place) = place(shared) else { return Ok(None) };
            if !Store::is_there(&place) {
                return Ok(None);
            }
            let store = match Store::open(&place) {
                Err(tune::Error::Store(db::Error::Missing { .. })) => return Ok(None),
                opened => opened?,
            };
            let mut key = Key::new(subject, sizes, choice, 0)?;
            for &count in threads {
                key.threads = count;
                if let Some(found) = store.find(&key)? {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        };
        match look() {
            Ok(found) => {
                if let Some(record) = &found {
                    out::detail(&format!("{}; --no-tuned compiles in the usual way", record.in_use()));
                }
                found
            }
            Err(e) => {
                out::note(&format!("warning: what was tuned cannot be used, so the default is: {e}"));
                None
            }
        }
    }
}

/// Reads a time to search for: `60s`, `2min`, or plain seconds.
pub(crate) fn budget(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let scale = match text[end..].trim() {
        "" | "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    match (text[..end].parse::<f64>(), scale) {
        (Ok(value), Some(scale)) if value > 0.0 && value * scale <= 86_400.0 => Ok(value * scale),
        _ => Err("expected a time of at most a day, such as 60s or 5min".into()),
    }
}

/// A network's file or a built-in model, and what it is called.
pub(crate) fn subject(network: &load::Network) -> Subject {
    match network {
        load::Network::Graph(graph) => (**graph).clone().into(),
        load::Network::Model(model) => (**model).clone().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_search_for_have_units_or_are_seconds() {
        for (text, seconds) in
            [("60s", 60.0), ("5min", 300.0), ("2m", 120.0), ("1.5 s", 1.5), ("7", 7.0), ("1h", 3600.0)]
        {
            assert_eq!(budget(text), Ok(seconds), "{text}");
        }
        for bad in ["", "s", "0s", "-1s", "1 week", "25h", "nan", "1e3s"] {
            assert!(budget(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_a_servers_address_is_a_store_for_teams() {
        assert!(server("postgres://a@b/c").is_ok());
        assert!(server("team.db").unwrap_err().contains("--db"));
    }
}
