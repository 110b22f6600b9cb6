//! `schwann entropy`: how much surprise there is in each piece of a file. Text and tables are low, compressed and encrypted
//! data are high, and where the curve jumps, something else begins.

mod page;
mod patches;
mod picture;

use crate::{Outcome, load, out};
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use schwann::nn::entropy::{Entropy, MOST_WINDOW, Windows, count, of_counts};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is read at a time.
const PIECE_BYTES: usize = 1 << 20;
/// From here on a person wants to see that it goes on.
const PATIENCE: Duration = Duration::from_secs(2);
/// Four bytes are kept for each window: a gibibyte at most.
const MOST_WINDOWS: usize = 1 << 28;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann entropy net.safetensors                weights: bytes of floats
  schwann entropy disk.img --window 4096 --svg disk.svg
  schwann entropy log.gz --step 64               windows that overlap
  schwann entropy firmware.bin --csv > curve.csv
  curl -s https://example.org/a | schwann entropy - --json
  schwann entropy book.txt --patches --window 32 --threshold 0.45

Entropy is that of Shannon: bits a byte, divided by 8. It is exactly 0 where one
value is repeated, and exactly 1 where all 256 values occur equally often. A
window of n < 256 bytes cannot be above log2(n)/8. A window begins every --step
bytes until one reaches the end; the last one has what is left.

With --patches the file is cut into pieces for a network that reads bytes: the
entropy at a byte is that of the --window bytes that end there, and a patch
begins where it is above --threshold, or above that of the byte before by more
than --rise, within --least and --most bytes.")]
pub(crate) struct Args {
    /// Any file; `-` is stdin.
    file: PathBuf,
    /// Bytes of a window.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = window, allow_negative_numbers = true)]
    window: usize,
    /// Bytes from one window to the next [default: the window's, so that they do not overlap].
    #[arg(long, value_name = "BYTES", value_parser = step, allow_negative_numbers = true)]
    step: Option<usize>,
    #[command(flatten)]
    on: load::On,
    /// Print JSON: the whole file's entropy, and every window's.
    #[arg(long, group = "form")]
    json: bool,
    /// Print CSV: offset, bytes and entropy of every window.
    #[arg(long, group = "form")]
    csv: bool,
    /// Write a picture of the curve; `-` is stdout.
    #[arg(long, value_name = "OUT.svg", conflicts_with = "patches")]
    svg: Option<PathBuf>,
    /// Cut the file into patches that begin where something unexpected comes.
    #[arg(long, conflicts_with_all = ["step", "backend", "isa"])]
    patches: bool,
    /// The entropy above which a patch begins.
    #[arg(long, value_name = "0..1", default_value_t = 0.5, requires = "patches", allow_negative_numbers = true)]
    threshold: f32,
    /// By how much more than at the byte before it also does.
    #[arg(long, value_name = "0..1", requires = "patches", allow_negative_numbers = true)]
    rise: Option<f32>,
    /// The fewest bytes of a patch; the last one may have fewer.
    #[arg(long, value_name = "BYTES", default_value_t = 4, requires = "patches")]
    least: usize,
    /// The most bytes of a patch.
    #[arg(long, value_name = "BYTES", default_value_t = 64, requires = "patches")]
    most: usize,
}

fn window(text: &str) -> Result<usize, String> {
    let fits = |n: &usize| (1..=MOST_WINDOW).contains(n);
    text.parse().ok().filter(fits).ok_or_else(|| format!("expected a number of bytes from 1 to {MOST_WINDOW}"))
}

fn step(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "expected a number of bytes, 1 or more".into())
}

/// What was found.
struct Curve {
    /// The file's name, for people.
    name: String,
    bytes: u64,
    windows: Windows,
    /// Of the whole file.
    whole: f64,
    /// Of each window.
    entropy: Vec<f32>,
    backend: String,
    seconds: f64,
}

impl Curve {
    /// Where a window begins.
    fn offset(&self, k: usize) -> u64 {
        self.windows.place(k as u64, self.bytes).start
    }

    /// How many bytes a window has.
    fn length(&self, k: usize) -> u64 {
        let place = self.windows.place(k as u64, self.bytes);
        place.end - place.start
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    out::apart(args.svg.as_deref(), [args.file.as_path()])?;
    let prints = args.json || args.csv;
    if prints && args.svg.as_deref().is_some_and(out::is_stdout) {
        bail!("--svg is on stdout, where --json or --csv goes too; give the picture a file");
    }
    if args.patches {
        return patches::run(args);
    }
    let curve = measure(args)?;
    if let Some(path) = &args.svg {
        out::deliver(path, &picture::draw(&curve).file())?;
    }
    match args {
        Args { json: true, .. } => json(&curve)?,
        Args { csv: true, .. } => csv(&curve)?,
        Args { svg: Some(path), .. } if out::is_stdout(path) => {}
        _ => page::show(&curve)?,
    }
    Ok(Outcome::Done)
}

fn measure(args: &Args) -> Result<Curve> {
    let windows = Windows { window: args.window, step: args.step.unwrap_or(args.window) };
    let mut stream = Entropy::new(&args.on.choice()?, windows)?;
    let backend = stream.backend().to_owned();
    let (mut entropy, mut counts) = (vec![], [0u64; 256]);
    let begun = Instant::now();
    let (name, bytes) = read(&args.file, |name, piece| {
        count(piece, &mut counts);
        stream.feed(piece, &mut entropy)?;
        if entropy.len() > MOST_WINDOWS {
            bail!("{name} has more than {MOST_WINDOWS} windows; a larger --step gives fewer");
        }
        Ok(())
    })?;
    stream.finish(&mut entropy)?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(Curve { name, bytes, windows, whole: of_counts(&counts), entropy, backend, seconds })
}

/// Reads a file (or stdin) in pieces, with progress where it takes long; gives its name for people, and how many bytes it has.
fn read(path: &Path, mut take: impl FnMut(&str, &[u8]) -> Result<()>) -> Result<(String, u64)> {
    let stdin = path == Path::new("-");
    let name = if stdin { "stdin".to_owned() } else { out::printable(&path.display().to_string()) };
    let cannot = || format!("cannot read {name}");
    let (mut from, expected): (Box<dyn Read>, Option<u64>) = if stdin {
        (Box::new(std::io::stdin()), None)
    } else {
        let file = File::open(path).with_context(cannot)?;
        let about = file.metadata().with_context(cannot)?;
        if about.is_dir() {
            bail!("{name} is a folder; expected a file");
        }
        (Box::new(file), about.is_file().then_some(about.len()))
    };
    let (mut piece, mut bytes) = (vec![0; PIECE_BYTES], 0u64);
    let begun = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    loop {
        let read = match from.read(&mut piece) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other.with_context(cannot)?,
        };
        if read == 0 {
            break;
        }
        take(&name, &piece[..read])?;
        bytes += read as u64;
        if begun.elapsed() > PATIENCE {
            let done = bytes >> 20;
            let all = expected.map_or(done, |all| all >> 20).max(done);
            let bar = bar.get_or_insert_with(|| out::progress(all).with_message("MiB"));
            bar.set_length(all);
            bar.set_position(done);
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if bytes == 0 {
        bail!("{name} is empty: there are no bytes to look at");
    }
    Ok((name, bytes))
}

fn json(curve: &Curve) -> Result<()> {
    let mut out = out::stdout();
    let head = serde_json::json!({
        "file": curve.name, "bytes": curve.bytes, "window": curve.windows.window, "step": curve.windows.step,
        "backend": curve.backend, "entropy": curve.whole,
    });
    // Windows are written one by one: there may be very many.
    let head = head.to_string();
    write!(out, "{},\"windows\":[", head.trim_end_matches('}'))?;
    for (k, entropy) in curve.entropy.iter().enumerate() {
        let comma = if k == 0 { "\n" } else { ",\n" };
        let (offset, bytes) = (curve.offset(k), curve.length(k));
        write!(out, "{comma}{{\"offset\":{offset},\"bytes\":{bytes},\"entropy\":{entropy}}}")?;
    }
    writeln!(out, "\n]}}")?;
    Ok(out.flush()?)
}

fn csv(curve: &Curve) -> Result<()> {
    let mut out = out::stdout();
    writeln!(out, "offset,bytes,entropy")?;
    for (k, entropy) in curve.entropy.iter().enumerate() {
        writeln!(out, "{},{},{entropy}", curve.offset(k), curve.length(k))?;
    }
    Ok(out.flush()?)
}
