//! `schwann run --stream`: rows from stdin, one step each, answers to stdout as they come.
//!
//! The network may be a model or a graph: every size that it leaves open is 1, and its states go on from row to row.

use super::{Args, fitted_state, states_of};
use crate::load::{self, Network};
use crate::{Outcome, out};
use anyhow::{Context, Result, anyhow, bail};
use schwann::nn::{GraphOptions, Timespans};
use schwann::{Bindings, CompileOptions, DType, Graph, Program, Session, Tensor, io};
use serde_json::Value;
use std::io::{BufRead, Read, Write};

/// A longer line is no row of numbers.
const MOST_LINE_BYTES: u64 = 16 << 20;

/// How rows are written.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Numbers with commas between them; a first line that has none is a heading.
    Csv,
    /// An array of numbers, or an object with `x` and, where wanted, `dt`.
    Jsonl,
}

/// One row: the features, and the time since the last.
#[derive(Default)]
struct Row {
    x: Vec<f32>,
    dt: Option<f32>,
    /// Whether it came as an object, and its answer is to be one.
    object: bool,
}

/// Reads rows, and knows where it is.
struct Rows<R> {
    from: R,
    line: Vec<u8>,
    number: usize,
    format: Option<Format>,
    /// Which column is the time, as it was given, and counted from 0 once that is known.
    dt_column: Option<String>,
    dt_at: Option<usize>,
    begun: bool,
}

impl<R: BufRead> Rows<R> {
    /// Reads the next row; false at the end.
    fn next(&mut self, row: &mut Row) -> Result<bool> {
        loop {
            self.line.clear();
            self.number += 1;
            let read = (&mut self.from).take(MOST_LINE_BYTES + 1).read_until(b'\n', &mut self.line);
            if read.context("cannot read stdin")? == 0 {
                return Ok(false);
            }
            let number = self.number;
            if self.parse(row).with_context(|| format!("stdin, line {number}, is no row"))? {
                return Ok(true);
            }
        }
    }

    /// Takes a row from the line at hand; false for a heading or an empty line.
    fn parse(&mut self, row: &mut Row) -> Result<bool> {
        if self.line.len() as u64 > MOST_LINE_BYTES {
            bail!("it is longer than {MOST_LINE_BYTES} bytes");
        }
        let text = std::str::from_utf8(&self.line).map_err(|e| anyhow!("it is no UTF-8 text: {e}"))?;
        let text = text.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            return Ok(false);
        }
        let format = *self.format.get_or_insert(match text.starts_with(['[', '{']) {
            true => Format::Jsonl,
            false => Format::Csv,
        });
        let first = !std::mem::replace(&mut self.begun, true);
        row.x.clear();
        (row.dt, row.object) = (None, false);
        if format == Format::Jsonl {
            if self.dt_column.is_some() {
                bail!("--dt-column is for CSV; in JSON the time is `dt`, as in {{\"x\": [1, 2], \"dt\": 0.1}}");
            }
            json_row(text, row)?;
            return Ok(true);
        }
        let fields = || text.split(',').map(str::trim);
        let heading = first && fields().all(|f| f.parse::<f32>().is_err());
        if let (true, Some(column)) = (first, &self.dt_column) {
            self.dt_at = Some(column_at(column, fields(), heading)?);
        }
        if heading {
            return Ok(false);
        }
        for (i, field) in fields().enumerate() {
            let value = field.parse::<f32>().ok().filter(|v| v.is_finite());
            let value = value.with_context(|| {
                format!(
                    "column {} is `{}`; expected a finite number",
                    i + 1,
                    field.chars().take(40).collect::<String>()
                )
            })?;
            if self.dt_at == Some(i) {
                row.dt = Some(value);
            } else {
                row.x.push(value);
            }
        }
        if let (Some(at), None) = (self.dt_at, row.dt) {
            bail!("it has {} columns; column {} is to be the time", fields().count(), at + 1);
        }
        Ok(true)
    }
}

/// Which column is meant, by its heading or by its number from 1.
fn column_at<'a>(column: &str, mut fields: impl Iterator<Item = &'a str>, heading: bool) -> Result<usize> {
    let named = |f: &str| f.trim_matches('"') == column;
    if heading && let Some(at) = fields.by_ref().position(named) {
        return Ok(at);
    }
    match column.parse::<usize>() {
        Ok(n) if n > 0 => Ok(n - 1),
        _ if heading => bail!("--dt-column is {column}; expected a heading of this line, or a column's number from 1"),
        _ => bail!("--dt-column is {column}; expected a column's number from 1, since there are no headings"),
    }
}

fn json_row(text: &str, row: &mut Row) -> Result<()> {
    let json: Value = serde_json::from_str(text)?;
    let x = match &json {
        Value::Array(_) => &json,
        Value::Object(fields) => {
            if let Some(other) = fields.keys().find(|k| !["x", "dt"].contains(&k.as_str())) {
                bail!("it has a field `{other}`; expected `x` and, where wanted, `dt`");
            }
            row.object = true;
            row.dt = fields.get("dt").map(|dt| number(dt).with_context(|| format!("`dt` is {dt}"))).transpose()?;
            fields.get("x").context("it has no field `x`")?
        }
        other => bail!("it is {other}; expected an array of numbers, or an object with `x`"),
    };
    match x {
        Value::Array(values) => {
            for (i, value) in values.iter().enumerate() {
                row.x.push(number(value).with_context(|| format!("element {} is {value}", i + 1))?);
            }
        }
        one => row.x.push(number(one).with_context(|| format!("`x` is {one}"))?),
    }
    Ok(())
}

fn number(value: &Value) -> Result<f32> {
    let number = value.as_f64().map(|v| v as f32).filter(|v| v.is_finite());
    number.context("expected a finite number")
}

/// A session of one stream, and the names that matter.
struct Stream {
    session: Session,
    input: String,
    output: String,
    x: Tensor,
    timespans: Option<Tensor>,
}

impl Stream {
    fn new(args: &Args, network: Network, timed: bool) -> Result<Stream> {
        let graph = match network {
            Network::Graph(graph) => *graph,
            Network::Model(model) => {
                let timespans = if timed { Timespans::PerStep } else { Timespans::Constant(args.dt.unwrap_or(1.0)) };
                model.graph(&GraphOptions::default().timespans(timespans))?
            }
        };
        let ones = graph.symbols().iter().fold(Bindings::new(), |all, symbol| all.with(symbol, 1));
        let is_state = |name: &str| graph.states().iter().any(|s| s.input == name);
        let ty = |name: &str| graph.inputs().find(|(n, _)| *n == name).map(|(_, value)| graph.ty(value));
        let inputs: Vec<&str> = graph.inputs().map(|(n, _)| n).filter(|n| !is_state(n) && *n != "timespans").collect();
        let [input] = inputs[..] else {
            bail!("--stream needs a network with one input; this one has {}", inputs.join(", "));
        };
        let plain: Vec<&str> = graph.outputs().iter().map(|o| o.name.as_str()).collect();
        let plain: Vec<&str> =
            plain.into_iter().filter(|name| graph.states().iter().all(|s| s.output != *name)).collect();
        let [output] = plain[..] else {
            bail!("--stream needs a network with one output; this one has {}", plain.join(", "));
        };
        if timed && ty("timespans").is_none() {
            bail!("the rows have a time, and the network has no input `timespans` for it");
        }
        let zeros = |name: &str| -> Result<Tensor> {
            let ty = ty(name).with_context(|| format!("no input `{name}`"))?;
            Ok(Tensor::zeros(ty.dtype, &ty.shape.eval(&ones)?)?)
        };
        let x = zeros(input)?;
        let timespans = if ty("timespans").is_some() { Some(zeros("timespans")?) } else { None };
        let states: Vec<(String, Tensor)> =
            graph.states().iter().map(|s| Ok((s.input.clone(), zeros(&s.input)?))).collect::<Result<_>>()?;
        let (input, output) = (input.to_owned(), output.to_owned());
        let mut session = compiled(args, &graph)?;
        for (name, zero) in states {
            session.set_state(&name, zero)?;
        }
        if let Some(path) = &args.state {
            for (name, value) in io::read_npz(path)? {
                let value =
                    fitted_state(&graph, &name, value, &ones).with_context(|| format!("--state {}", path.display()))?;
                session.set_state(&name, value).with_context(|| format!("in {}", path.display()))?;
            }
        }
        Ok(Stream { session, input, output, x, timespans })
    }

    fn step(&mut self, row: &Row) -> Result<&Tensor> {
        if row.x.len() != self.x.len() {
            bail!("it has {} features; the network takes {}", row.x.len(), self.x.len());
        }
        fill(&mut self.x, &row.x)?;
        match (&mut self.timespans, row.dt) {
            (Some(to), Some(dt)) => {
                fill(to, &[dt])?;
                self.session.run(&[(&self.input, &self.x), ("timespans", to)])?;
            }
            (None, None) => {
                self.session.run(&[(&self.input, &self.x)])?;
            }
            (Some(_), None) => {
                bail!("it has no time since the last row, which the rows before have (or the network needs)")
            }
            (None, Some(_)) => bail!("it has a time since the last row, which the rows before have not"),
        }
        Ok(self.session.output(&self.output)?)
    }
}

/// Writes a row into a tensor of whatever type the network takes.
fn fill(to: &mut Tensor, values: &[f32]) -> Result<()> {
    if to.dtype() == DType::F32 {
        to.values_mut::<f32>()?.copy_from_slice(values);
        return Ok(());
    }
    let wide: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
    if !to.dtype().is_float() && wide.iter().any(|v| v.fract() != 0.0) {
        bail!("it has a fraction; the network takes whole numbers ({})", to.dtype());
    }
    *to = Tensor::from_f64(to.dtype(), to.shape(), &wide)?;
    Ok(())
}

fn compiled(args: &Args, graph: &Graph) -> Result<Session> {
    // One row at a time is too little work to share.
    let threads = if args.threads == 0 { 1 } else { args.threads };
    let cpu = load::cpu(args.isa, threads)?;
    let program = Program::compile_for(graph, &cpu, &CompileOptions::default().budget(load::budget()))
        .with_context(|| format!("cannot compile {}", args.file.display()))?;
    Ok(program.session())
}

/// Writes an answer as the row came.
fn answer(out: &mut impl Write, y: &Tensor, format: Format, object: bool) -> Result<()> {
    let values: Vec<f32> = match y.dtype() {
        DType::F32 => y.values::<f32>()?.to_vec(),
        _ => y.to_f64().into_iter().map(|v| v as f32).collect(),
    };
    match format {
        Format::Csv => {
            for (i, value) in values.iter().enumerate() {
                if i > 0 {
                    out.write_all(b",")?;
                }
                // The shortest text that reads back as the same number.
                if value.is_finite() { serde_json::to_writer(&mut *out, value)? } else { write!(out, "{value}")? }
            }
        }
        Format::Jsonl if object => {
            out.write_all(b"{\"y\":")?;
            serde_json::to_writer(&mut *out, &values)?;
            out.write_all(b"}")?;
        }
        Format::Jsonl => serde_json::to_writer(&mut *out, &values)?,
    }
    out.write_all(b"\n")?;
    // Whoever waits for this row is not to wait for the next.
    Ok(out.flush()?)
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let network = load::network(&args.file)?;
    if args.dt.is_some() && matches!(network, Network::Graph(_)) {
        bail!("--dt is for models; {} holds a graph", args.file.display());
    }
    let mut rows = Rows {
        from: std::io::stdin().lock(),
        line: vec![],
        number: 0,
        format: args.format,
        dt_column: args.dt_column.clone(),
        dt_at: None,
        begun: false,
    };
    let mut row = Row::default();
    // Only the first row says whether there are times.
    let mut there = rows.next(&mut row)?;
    let timed = there && row.dt.is_some();
    if timed && args.dt.is_some() {
        bail!("--dt is {}, and the rows have times of their own", args.dt.unwrap_or_default());
    }
    let mut stream = Stream::new(args, network, timed)?;
    let mut out = out::stdout();
    while there {
        let y = stream.step(&row).with_context(|| format!("stdin, line {}, does not fit", rows.number))?;
        match answer(&mut out, y, rows.format.unwrap_or(Format::Csv), row.object) {
            // Whoever read the answers has enough of them; the state is still wanted.
            Err(e) if out::is_closed_pipe(&e) => break,
            other => other?,
        }
        there = rows.next(&mut row)?;
    }
    if let Some(path) = &args.state_out {
        let graph = std::sync::Arc::clone(stream.session.program());
        io::write_npz(path, states_of(graph.graph(), &stream.session)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(Outcome::Done)
}
