//! Tables as text: CSV with a line of headings.

use super::{Rows, Sequences};
use crate::{Error, Result};
use schwann_core::Tensor;
use std::path::Path;

/// Which columns of a table are what, by their headings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// What goes in.
    pub inputs: Vec<String>,
    /// What is wanted.
    pub targets: Vec<String>,
    /// A clock: the time between steps is the difference from the row before.
    pub time: Option<String>,
    /// What tells sequences apart: rows that follow each other and have the same text here are one.
    pub group: Option<String>,
}

/// Reads a table into memory. What is wrong is said with its line.
pub fn read_csv(path: impl AsRef<Path>, columns: &Columns) -> Result<Sequences> {
    let path = path.as_ref();
    read(path, columns).map_err(|e| e.in_file(path))
}

fn read(path: &Path, columns: &Columns) -> Result<Sequences> {
    let file = std::fs::File::open(path).map_err(|source| schwann_core::Error::Io { path: path.to_owned(), source })?;
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(std::io::BufReader::new(file));
    let unreadable = |e: csv::Error| Error::file(e.to_string());
    let headings = reader.headers().map_err(unreadable)?.clone();
    let find = |name: &String| {
        headings.iter().position(|h| h == name).ok_or_else(|| {
            let known: Vec<&str> = headings.iter().collect();
            Error::argument("a column", name, format!("one of {}", known.join(", ")))
        })
    };
    let all = |names: &[String]| names.iter().map(find).collect::<Result<Vec<_>>>();
    let (inputs, targets) = (all(&columns.inputs)?, all(&columns.targets)?);
    let (time, group) = (columns.time.as_ref().map(find).transpose()?, columns.group.as_ref().map(find).transpose()?);
    for (name, list) in [("inputs", &inputs), ("targets", &targets)] {
        if list.is_empty() {
            return Err(Error::argument(name, "no column", "one at least"));
        }
    }

    let (mut x, mut y, mut clock): (Vec<f32>, Vec<f32>, Vec<f64>) = (vec![], vec![], vec![]);
    let mut spans: Vec<(usize, usize)> = vec![];
    let mut last = String::new();
    let mut record = csv::StringRecord::new();
    let mut rows = 0;
    while reader.read_record(&mut record).map_err(unreadable)? {
        let line = record.position().map_or(0, csv::Position::line);
        let number = |column: usize| {
            let text = record.get(column).unwrap_or_default();
            let value = text.parse::<f64>().ok().filter(|v| v.is_finite());
            value.ok_or_else(|| {
                let place = format!("line {line}, column {}", headings.get(column).unwrap_or_default());
                Error::argument(place, format!("{text:?}"), "a finite number")
            })
        };
        for column in &inputs {
            x.push(number(*column)? as f32);
        }
        for column in &targets {
            y.push(number(*column)? as f32);
        }
        if let Some(column) = time {
            clock.push(number(column)?);
        }
        let own = group.map_or("", |column| record.get(column).unwrap_or_default());
        match spans.last_mut() {
            Some(span) if own == last => span.1 += 1,
            _ => {
                own.clone_into(&mut last);
                spans.push((rows, 1));
            }
        }
        rows += 1;
    }
    if rows == 0 {
        return Err(Error::file("the table has no rows"));
    }
    let (width, wanted) = (inputs.len(), targets.len());
    let timespans = match time {
        None => None,
        Some(_) => Some(Rows::of_width(Tensor::new(&[rows], &between(&clock, &spans)?)?, 1)?),
    };
    Ok(Sequences {
        x: Rows::of_width(Tensor::new(&[rows, width], &x)?, width)?,
        target: Rows::of_width(Tensor::new(&[rows, wanted], &y)?, wanted)?,
        one_target: false,
        timespans,
        spans,
    })
}

/// The time since the row before; the first row of a sequence, which has none, gets the second's.
fn between(clock: &[f64], spans: &[(usize, usize)]) -> Result<Vec<f32>> {
    let mut out = vec![1.0f32; clock.len()];
    for &(start, len) in spans {
        for row in start + 1..start + len {
            let elapsed = clock[row] - clock[row - 1];
            if elapsed <= 0.0 {
                let got = format!("{} after {}", clock[row], clock[row - 1]);
                return Err(Error::argument(format!("the time of row {row}"), got, "a later time"));
            }
            out[row] = elapsed as f32;
        }
        if len > 1 {
            out[start] = out[start + 1];
        }
    }
    Ok(out)
}
