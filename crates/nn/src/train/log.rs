//! What is written down in the course of training, as CSV and as JSON lines.

use crate::{Error, Result};
use schwann_core::io::write_file;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Steps so far.
    pub step: u64,
    /// Whole passes over the data, and the part of the next.
    pub epoch: f64,
    /// The mean loss of the steps since the last record.
    pub loss: f64,
    /// The validation's loss, where one was made.
    pub validation: Option<f64>,
    /// Its metric.
    pub metric: Option<f64>,
    /// The rate of learning of the latest step.
    pub rate: f64,
    /// The length of the latest step's gradients.
    pub norm: f64,
    /// Windows learned from in a second, since the last record (measured).
    pub samples_per_s: f64,
    /// Seconds of training so far (measured).
    pub seconds: f64,
}

const HEADINGS: &str = "step,epoch,loss,validation,metric,rate,norm,samples_per_s,seconds";

/// Writes both logs, whole or not at all.
pub(crate) fn write(folder: &Path, records: &[Record]) -> Result<()> {
    write_file(folder.join("log.csv"), |out| {
        writeln!(out, "{HEADINGS}")?;
        for r in records {
            let maybe = |v: Option<f64>| v.map(|v| v.to_string()).unwrap_or_default();
            writeln!(
                out,
                "{},{},{},{},{},{},{},{},{}",
                r.step,
                r.epoch,
                r.loss,
                maybe(r.validation),
                maybe(r.metric),
                r.rate,
                r.norm,
                r.samples_per_s,
                r.seconds
            )?;
        }
        Ok(())
    })?;
    write_file(folder.join("log.jsonl"), |out| {
        for record in records {
            serde_json::to_writer(&mut *out, record)?;
            writeln!(out)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Reads the log up to a step; what is not there is no log.
pub(crate) fn read(folder: &Path, until: u64) -> Result<Vec<Record>> {
    const MOST: u64 = 1 << 30;
    let path = folder.join("log.jsonl");
    if !path.exists() {
        return Ok(vec![]);
    }
    let text = schwann_core::io::read_text(&path, MOST)?;
    let mut records = vec![];
    for (i, line) in text.lines().enumerate() {
        let record: Record =
            serde_json::from_str(line).map_err(|e| Error::file(format!("line {}: {e}", i + 1)).in_file(&path))?;
        if record.step <= until {
            records.push(record);
        }
    }
    Ok(records)
}
