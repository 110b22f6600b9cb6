//! `schwann report`: a profile that was saved, as a page, plots, and flame graphs.

use crate::baseline::Place;
use crate::{Outcome, out};
use anyhow::{Context, Result, bail};
use schwann::io;
use schwann::prof::plot::{PLOTS, Size, heading};
use schwann::prof::{Profile, flame, report};
use std::path::{Path, PathBuf};

/// Dots of a PNG for each pixel of a plot: sharp on screens of today.
const DOTS: f32 = 2.0;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann profile --json > run.json && schwann report run.json --open
  schwann report main -o report.html           what was saved with --save main
  schwann report run.json --plots plots        every plot as SVG and PNG
  schwann report run.json --flame flame.svg --folded stacks.txt
  schwann report --schema > profile.schema.json")]
pub(crate) struct Args {
    /// What `schwann profile --json` printed (a file that ends with .json), or a saved profile's name or id.
    #[arg(value_name = "RUN", required_unless_present = "schema")]
    run: Option<String>,
    /// Print the JSON Schema of a profile, for programs that read or check one.
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Where the page goes; `-` for stdout. Without this and without other outputs: RUN with .html.
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// Show the page in the browser.
    #[arg(long)]
    open: bool,
    /// Write every plot as SVG and PNG into this directory.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Write a flame graph; `-` for stdout.
    #[arg(long, value_name = "FILE.svg")]
    flame: Option<PathBuf>,
    /// Write folded stacks, with nanoseconds, for other flame graph tools; `-` for stdout.
    #[arg(long, value_name = "FILE")]
    folded: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if args.schema {
        out::print(&serde_json::to_string_pretty(&schwann::prof::export::schema())?)?;
        return Ok(Outcome::Done);
    }
    let run = args.run.as_deref().context("no profile is named")?;
    if let Some(folder) = &args.plots {
        out::not_stdout(folder, "--plots", "a folder, for there are many plots")?;
    }
    if args.open && args.output.as_deref().is_some_and(out::is_stdout) {
        bail!("a page on stdout cannot be opened; give -o FILE.html");
    }
    let outputs = [&args.output, &args.flame, &args.folded].into_iter().flatten();
    out::apart(outputs.map(PathBuf::as_path), run.ends_with(".json").then_some(Path::new(run)))?;
    let profiles = args.place.profiles(run)?;
    if let Some(folder) = &args.plots {
        plots(&profiles, folder)?;
    }
    let stacks: Vec<flame::Stack> = profiles.iter().flat_map(flame::of_profile).collect();
    if let Some(path) = &args.flame {
        let drawing = flame::drawing(&stacks, Size::WIDE).context("there is no flame graph to draw")?;
        out::deliver(path, &drawing.file())?;
    }
    if let Some(path) = &args.folded {
        if stacks.is_empty() {
            bail!("there are no stacks to write: no operation was timed");
        }
        let mut text = vec![];
        flame::write_folded(&stacks, &mut text)?;
        out::deliver(path, &String::from_utf8_lossy(&text))?;
    }
    let other = args.plots.is_some() || args.flame.is_some() || args.folded.is_some();
    let page = match &args.output {
        Some(path) => Some(path.clone()),
        None if other && !args.open => None,
        None => Some(beside(run)?),
    };
    if let Some(path) = page {
        out::deliver(&path, &report::html(&profiles))?;
        if args.open {
            open(&path)?;
        }
    }
    Ok(Outcome::Done)
}

/// The page's place where none is given.
fn beside(run: &str) -> Result<PathBuf> {
    match run {
        "-" => bail!("say where the page goes with -o"),
        run => Ok(Path::new(run).with_extension("html")),
    }
}

/// Every plot in two forms; with several profiles, each in a folder of its own.
fn plots(profiles: &[Profile], folder: &Path) -> Result<()> {
    let work = profiles.len() * PLOTS.len();
    let bar = out::progress(work as u64);
    let (mut written, mut missing) = (0, vec![]);
    for (i, profile) in profiles.iter().enumerate() {
        let place =
            if profiles.len() == 1 { folder.to_owned() } else { folder.join(format!("{}-{}", i + 1, slug(profile))) };
        std::fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        for (name, plot, size) in PLOTS {
            bar.set_message(name);
            match plot(profile, size) {
                Ok(drawing) => {
                    let drawing = drawing.headed(&heading(profile));
                    let (svg, png) = (place.join(name).with_extension("svg"), place.join(name).with_extension("png"));
                    let cannot = |path: &Path| format!("cannot write {}", path.display());
                    io::write_text(&svg, &drawing.file()).with_context(|| cannot(&svg))?;
                    io::write_bytes(&png, &drawing.png(DOTS)?).with_context(|| cannot(&png))?;
                    written += 2;
                }
                Err(reason) => missing.push(format!("no {name} of {}: {reason}", profile.model.name)),
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    missing.iter().for_each(|line| out::note(line));
    out::note(&format!("wrote {written} plots to {}", folder.display()));
    Ok(())
}

/// A model's name as part of a file's: letters and digits alone, so that no name leads out of the folder.
fn slug(profile: &Profile) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = profile.model.name.chars().take(40).map(plain).collect();
    text.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

/// Shows a file in the browser, by the system's own way.
fn open(path: &Path) -> Result<()> {
    let (program, before): (&str, &[&str]) = match std::env::consts::OS {
        "macos" => ("open", &[]),
        "windows" => ("cmd", &["/C", "start", ""]),
        _ => ("xdg-open", &[]),
    };
    let status = std::process::Command::new(program)
        .args(before)
        .arg(path)
        .status()
        .with_context(|| format!("cannot start `{program}` to show {}", path.display()))?;
    if !status.success() {
        bail!("`{program}` could not show {}; open it in a browser", path.display());
    }
    Ok(())
}
