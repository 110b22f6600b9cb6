//! `schwann run --stream`: rows from stdin, one step each, answers to stdout as they come.
//!
//! The network may be a model or a graph: every size that it leaves open is 1, and its states go on from row to row. The
//! state is written however the stream ends: at the end of the rows, at a bad one, at Ctrl-C, or when nobody reads the
//! answers any more.

use super::rows::{Format, Next, Row, Rows, Separator};
use super::{Args, read_state, states_of};
use crate::load::{self, Network};
use crate::{Outcome, out};
use anyhow::{Context, Result, anyhow, bail};
use schwann::nn::{GraphOptions, Guard, NotFinite, Timespans};
use schwann::{Bindings, DType, Session, Tensor, io, live};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// After so many notes on bad rows, the others are only counted.
const MOST_NOTES: usize = 100;
/// How long an interrupted step may take to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a row that cannot be used leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum BadRow {
    /// End with exit code 2. Earlier rows have been answered; the state before this row is written.
    #[default]
    Stop,
    /// Leave it out: no step, no answer, a note on stderr.
    Skip,
    /// Use the last good row once more, with a note on stderr; without a good row before it, leave it out.
    Hold,
}

/// A session of one stream, and the names that matter.
struct Stream {
    session: Session,
    guard: Guard,
    input: String,
    output: String,
    x: Tensor,
    timespans: Option<Tensor>,
}

impl Stream {
    fn new(args: &Args, network: &Network, timed: bool) -> Result<Stream> {
        let graph = match network {
            Network::Graph(graph) => (**graph).clone(),
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
            load::zeros(ty.dtype, &ty.shape.eval(&ones)?).with_context(|| format!("input `{name}`"))
        };
        let x = zeros(input)?;
        let timespans = if ty("timespans").is_some() { Some(zeros("timespans")?) } else { None };
        let states: Vec<(String, Tensor)> =
            graph.states().iter().map(|s| Ok((s.input.clone(), zeros(&s.input)?))).collect::<Result<_>>()?;
        let (input, output) = (input.to_owned(), output.to_owned());
        // One row at a time is too little work to share.
        let threads = if args.threads == 0 { 1 } else { args.threads };
        let (program, _) = super::compiled(args, network, &graph, &ones, threads)?;
        let mut session = program.session();
        if let Some(name) = &args.watch {
            session.watch(&live::open(name).context("--watch")?);
        }
        for (name, zero) in states {
            session.set_state(&name, zero)?;
        }
        if let Some(path) = &args.state {
            for (name, value) in read_state(path, args.any_state, &graph, &ones)? {
                session.set_state(&name, value).with_context(|| format!("in {}", path.display()))?;
            }
        }
        let guard = Guard::new(&graph, args.nan.into());
        Ok(Stream { session, guard, input, output, x, timespans })
    }

    /// Takes a row into the inputs; an error says what is wrong with it.
    fn take(&mut self, row: &Row) -> Result<()> {
        if row.x.len() != self.x.len() {
            bail!("it has {} features; the network takes {}", row.x.len(), self.x.len());
        }
        self.guard.sample(row.x.iter().map(|v| *v as f32))?;
        match (&mut self.timespans, row.dt) {
            (Some(to), Some(dt)) => {
                self.guard.elapsed(&[dt]).context("its time since the last row")?;
                fill(to, &[f64::from(dt)])?;
            }
            (None, None) => {}
            (Some(_), None) => {
                bail!("it has no time since the last row, but earlier rows have one (or the network needs it)")
            }
            (None, Some(_)) => bail!("it has a time since the last row, but earlier rows have none"),
        }
        fill(&mut self.x, &row.x)
    }

    /// Takes the step, and gives the answer into `y`.
    fn step(&mut self, y: &mut Answer) -> schwann::Result<()> {
        match &self.timespans {
            Some(times) => self.session.run(&[(&self.input, &self.x), ("timespans", times)])?,
            None => self.session.run(&[(&self.input, &self.x)])?,
        };
        let found = self.session.output(&self.output)?;
        y.is_whole = !found.dtype().is_float();
        y.values.clear();
        match found.dtype() {
            DType::F32 => y.values.extend(found.values::<f32>()?.iter().map(|v| f64::from(*v))),
            _ => y.values.extend(found.to_f64()),
        }
        Ok(())
    }

    fn save(&self, path: &Path) -> Result<()> {
        let graph = Arc::clone(self.session.program());
        let states = states_of(graph.graph(), &self.session)?;
        let states = states.iter().map(|(name, value)| (name.as_str(), value));
        io::write_npz(out::place(path), states).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Writes a row into a tensor of whatever type the network takes; the row's numbers are numbers of that type.
fn fill(to: &mut Tensor, values: &[f64]) -> Result<()> {
    if to.dtype() == DType::F32 {
        to.values_mut::<f32>()?.iter_mut().zip(values).for_each(|(to, v)| *to = *v as f32);
        return Ok(());
    }
    *to = Tensor::from_f64(to.dtype(), to.shape(), values)?;
    Ok(())
}

/// What a step answered.
#[derive(Default)]
struct Answer {
    values: Vec<f64>,
    /// Whether these are whole numbers or truth values, and not floats of at most 32 bits.
    is_whole: bool,
}

/// A number of an answer: the shortest text that reads back as the same number.
fn write_number(out: &mut impl Write, value: f64, is_whole: bool) -> Result<()> {
    match (is_whole, value as f32) {
        (true, _) => write!(out, "{}", value as i64)?,
        (false, v) if v.is_finite() => serde_json::to_writer(out, &v)?,
        (false, v) => write!(out, "{v}")?,
    }
    Ok(())
}

/// Writes an answer as the row came.
fn answer(out: &mut impl Write, y: &Answer, format: Format, separator: Separator, object: bool) -> Result<()> {
    let (before, between, after) = match (format, object) {
        (Format::Csv, _) => ("", separator.text(), ""),
        (Format::Jsonl, true) => ("{\"y\":[", ",", "]}"),
        (Format::Jsonl, false) => ("[", ",", "]"),
    };
    out.write_all(before.as_bytes())?;
    for (i, value) in y.values.iter().enumerate() {
        if i > 0 {
            out.write_all(between.as_bytes())?;
        }
        // JSON has no other word for what is no number.
        match format == Format::Jsonl && !value.is_finite() {
            true => out.write_all(b"null")?,
            false => write_number(out, *value, y.is_whole)?,
        }
    }
    out.write_all(after.as_bytes())?;
    out.write_all(b"\n")?;
    // Whoever waits for this row is not to wait for the next.
    Ok(out.flush()?)
}

/// The stream as the steps and an interruption share it: nobody holds it while waiting for a row or for a reader.
type Shared = Arc<Mutex<Stream>>;

fn locked(stream: &Shared) -> MutexGuard<'_, Stream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// At Ctrl-C, writes the state as it is between two steps, and ends the program. A stream waits for its next row most of
/// the time, and nothing but the end of the program ends that wait.
fn end_when_interrupted(stream: &Shared, state_out: Option<std::path::PathBuf>) {
    let stream = Arc::clone(stream);
    // A handler that another part of the program has set already is as good.
    let _ = ctrlc::set_handler(move || {
        let start = std::time::Instant::now();
        let guard = loop {
            match stream.try_lock() {
                Ok(guard) => break Some(guard),
                Err(_) if start.elapsed() > PATIENCE => break None,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        match (&state_out, guard) {
            (None, _) => {}
            (Some(path), Some(stream)) => match stream.save(path) {
                Ok(()) => out::note(&format!("interrupted; the state is in {}", path.display())),
                Err(e) => out::note(&format!("interrupted; the state could not be written: {e:#}")),
            },
            (Some(_), None) => out::note("interrupted in the middle of a step; the state was not written"),
        }
        std::process::exit(130);
    });
}

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let network = load::network_in_memory(&args.file)?;
    if args.dt.is_some() && matches!(network, Network::Graph(_)) {
        bail!("--dt is for models; {} holds a graph", args.file.display());
    }
    if args.state_out.as_deref().is_some_and(out::is_stdout) {
        bail!("--state-out is stdout, where the answers go; choose a file");
    }
    let stream = Stream::new(args, &network, args.dt_column.is_some())?;
    if args.state_out.is_some() {
        // Said before the first row, not after the last.
        let graph = stream.session.program().graph();
        if graph.states().is_empty() {
            bail!("--state-out: the network has no states to write");
        }
    }
    let (features, dtype) = (stream.x.len(), stream.x.dtype());
    let stream: Shared = Arc::new(Mutex::new(stream));
    end_when_interrupted(&stream, args.state_out.clone());
    let not_finite: NotFinite = args.nan.into();
    let rows =
        Rows::new(std::io::stdin().lock(), (features, dtype), args.format, args.dt_column.as_deref(), not_finite);
    let ended = steps(args, &network, &stream, rows);
    // However it ended, the state is written; where both fail, both are said.
    let stream = locked(&stream);
    let saved = args.state_out.as_deref().map_or(Ok(()), |path| stream.save(path));
    match (ended, saved) {
        (Err(e), Err(state)) => {
            out::note(&format!("the state could not be written: {state:#}"));
            Err(e)
        }
        (Ok(()), Err(e)) | (Err(e), Ok(())) => Err(e),
        (Ok(()), Ok(())) => Ok(Outcome::Done),
    }
}

/// Takes a step for each row until the rows end, one is bad, or nobody reads the answers.
fn steps(args: &Args, network: &Network, stream: &Shared, mut rows: Rows<impl std::io::BufRead>) -> Result<()> {
    let (mut row, mut last) = (Row::default(), None::<Row>);
    let (mut y, mut out) = (Answer::default(), out::stdout());
    let (mut bad, mut begun) = (0usize, false);
    loop {
        let next = rows.next(&mut row)?;
        if let Some((line, text)) = rows.heading.take() {
            out::note(&format!("stdin, line {line} is taken for a heading: {text}"));
        }
        let taken = match next {
            Next::End => break,
            Next::Bad(problem) => Err(problem),
            Next::Row => {
                // Only the first row says whether there are times.
                if !std::mem::replace(&mut begun, true) && row.dt.is_some() && args.dt_column.is_none() {
                    if let Some(dt) = args.dt {
                        bail!("--dt is {dt}, and the rows have times of their own");
                    }
                    *locked(stream) = Stream::new(args, network, true)?;
                }
                locked(stream).take(&row)
            }
        };
        if let Err(problem) = taken {
            let place = format!("stdin, line {} ({}), is not a valid row", rows.number, rows.excerpt());
            bad += 1;
            let held = last.is_some();
            let done = match args.on_bad_row {
                BadRow::Stop => return Err(problem.context(place)),
                BadRow::Hold if held => "the last good row is used again",
                BadRow::Hold => "left out: there is no good row before it",
                BadRow::Skip => "left out",
            };
            if bad <= MOST_NOTES {
                out::note(&format!("{place}: {problem:#}; {done}"));
            }
            rows.skip_rest()?;
            match &last {
                Some(good) if args.on_bad_row == BadRow::Hold => {
                    row.clone_from(good);
                    locked(stream).take(&row)?;
                }
                _ => continue,
            }
        } else if args.on_bad_row == BadRow::Hold {
            last = Some(row.clone());
        }
        let stepped = locked(stream).step(&mut y);
        if let Err(e) = stepped {
            let place = format!("stdin, line {} ({}), does not fit", rows.number, rows.excerpt());
            // What a value made impossible is the row's fault; anything else ends the stream.
            let of_row = matches!(e, schwann::Error::Value { .. } | schwann::Error::Input { .. });
            if !of_row || args.on_bad_row == BadRow::Stop {
                return Err(anyhow!(e).context(place));
            }
            bad += 1;
            last = None;
            out::note(&format!("{place}: {e}; left out"));
            continue;
        }
        let (format, separator) = (rows.format.unwrap_or(Format::Csv), rows.separator.unwrap_or(Separator::Comma));
        answer(&mut out, &y, format, separator, row.object)?;
        // Whoever read the answers has enough of them; the state is still wanted.
        if out::is_closed() {
            break;
        }
    }
    if bad > 0 {
        let lines =
            if bad == 1 { "1 line was not a valid row".into() } else { format!("{bad} lines were not valid rows") };
        out::note(&lines);
    }
    Ok(())
}
