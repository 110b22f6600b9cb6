//! What people see: one writer that knows about colours and closed pipes, progress on stderr, tables. Nothing hidden that
//! a file brought reaches a terminal: `printable` cleans names, and the writer lets nothing through that was forgotten.

use anstyle::{AnsiColor, Style};
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use schwann::prof::device::Progress;
use schwann::show::{self, Cleaner};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

pub(crate) const TITLE: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const NAME: Style = AnsiColor::Cyan.on_default();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Standard output, buffered; colours are taken out where nobody would see them. Where its reader has gone, what is written
/// is dropped: files are still to be written, and verdicts still to be given.
pub(crate) fn stdout() -> impl Write {
    io::BufWriter::new(Read(Cleaner::new(anstream::stdout())))
}

/// Whether whoever read our output went away: nobody waits for more of it.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

static CLOSED: AtomicBool = AtomicBool::new(false);

/// A writer that goes on when nobody reads what it writes.
struct Read<W>(W);

impl<W: Write> Write for Read<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if is_closed() {
            return Ok(bytes.len());
        }
        self.0.write(bytes).or_else(|e| dropped(e).map(|()| bytes.len()))
    }
    fn flush(&mut self) -> io::Result<()> {
        if is_closed() { Ok(()) } else { self.0.flush().or_else(dropped) }
    }
}

/// Remembers that stdout is closed, if that is what an error says.
fn dropped(error: io::Error) -> io::Result<()> {
    if error.kind() != io::ErrorKind::BrokenPipe {
        return Err(error);
    }
    CLOSED.store(true, Ordering::Relaxed);
    Ok(())
}

/// The outcome of writing a file that may be stdout by another name: there, too, a reader may go.
pub(crate) fn written(path: &Path, outcome: schwann::Result<()>) -> schwann::Result<()> {
    match outcome {
        Err(e) if is_stdout(path) && is_closed_pipe(&e) => {
            CLOSED.store(true, Ordering::Relaxed);
            Ok(())
        }
        other => other,
    }
}

/// Standard error, for what people read while stdout carries something else.
pub(crate) fn stderr() -> impl Write {
    io::BufWriter::new(Cleaner::new(anstream::stderr()))
}

/// Text in a style.
pub(crate) fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Writes text to a file, or to stdout for `-`.
pub(crate) fn deliver(path: &Path, text: &str) -> anyhow::Result<()> {
    if path == Path::new("-") {
        return print(text);
    }
    schwann::io::write_text(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    note(&format!("wrote {}", path.display()));
    Ok(())
}

/// Where a file that is written by its path goes: `-` is stdout.
pub(crate) fn place(path: &Path) -> &Path {
    if path == Path::new("-") { Path::new("/dev/stdout") } else { path }
}

/// Refuses `-` where stdout will not do: the option, and what it wants instead.
pub(crate) fn not_stdout(path: &Path, option: &str, wanted: &str) -> anyhow::Result<()> {
    match path == Path::new("-") {
        true => bail!("{option} is `-`, which stands for stdout; expected {wanted}"),
        false => Ok(()),
    }
}

/// Where words go: to stdout, or to stderr where one of these outputs is on stdout already.
pub(crate) fn talk<'a>(outputs: impl IntoIterator<Item = &'a Path>) -> Box<dyn Write> {
    match outputs.into_iter().any(is_stdout) {
        true => Box::new(stderr()),
        false => Box::new(stdout()),
    }
}

/// Refuses outputs that are among the inputs, or that are one file (or all on stdout): asked before anything is written.
pub(crate) fn apart<'a>(
    outputs: impl IntoIterator<Item = &'a Path>,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> anyhow::Result<()> {
    let files = |path: &&Path| *path != Path::new("-");
    let (printed, outputs): (Vec<&Path>, Vec<&Path>) = outputs.into_iter().partition(|path| is_stdout(path));
    if printed.len() > 1 {
        bail!("{} outputs are to go to stdout, where they would be one; give all but one a file", printed.len());
    }
    for input in inputs.into_iter().filter(files) {
        if let Some(output) = outputs.iter().find(|output| schwann::io::same_file(output, input)) {
            let (output, input) = (output.display(), input.display());
            bail!("{output} would overwrite the input {input}; choose another name for the output");
        }
    }
    for (i, a) in outputs.iter().enumerate() {
        if let Some(b) = outputs[..i].iter().find(|b| schwann::io::same_file(a, b)) {
            bail!(
                "{} and {} are the same file, but two outputs go there; choose another name",
                b.display(),
                a.display()
            );
        }
    }
    Ok(())
}

/// Whether a path leads to where stdout goes, so that nothing else should be printed there.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-") || ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|p| path == Path::new(p))
}

/// Writes to stdout, with a line's end.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

/// Whether an error is that nobody reads a pipe any more.
fn is_closed_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(e) = cause {
        if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            return true;
        }
        cause = e.source();
    }
    false
}

/// A message whose further lines are indented: a name with a line's end in it, a file's too, begins no message of its own.
fn within(message: &str) -> String {
    show::lines(message).lines().map(str::trim).collect::<Vec<_>>().join("\n    ")
}

/// Says what is wrong about the command line, or gives the help that was asked for.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().ansi().to_string();
    if error.use_stderr() {
        let _ = stderr().write_all(text.as_bytes());
        return ExitCode::from(2);
    }
    match print(&text) {
        Err(e) => {
            complain(&e, "schwann");
            ExitCode::from(2)
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// An error with everything that led to it, each cause on a line of its own.
pub(crate) fn complain(error: &anyhow::Error, program: &str) {
    let mut err = anstream::stderr();
    let mut text = format!("{}: {}\n", paint(BAD, format!("{program}: error")), within(&error.to_string()));
    let mut last = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Some errors repeat their source's words.
        if !last.contains(&cause) {
            text += &format!("  because: {}\n", within(&cause));
        }
        last = cause;
    }
    let _ = err.write_all(text.as_bytes());
}

static QUIET: AtomicBool = AtomicBool::new(false);
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// How much is said beside results: `--quiet`, `--verbose`.
pub(crate) fn set_talk(quiet: bool, verbose: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
    VERBOSE.store(verbose, Ordering::Relaxed);
}

/// What only who asked for it wants to know.
pub(crate) fn detail(text: &str) {
    if VERBOSE.load(Ordering::Relaxed) {
        note(text);
    }
}

/// Remarks that wait while a view has the whole terminal, the last ones; `None` while none has it.
static WAITING: Mutex<Option<Vec<String>>> = Mutex::new(None);
const MOST_WAITING: usize = 20;

/// From now on remarks wait: a view has the whole terminal.
pub(crate) fn hold_notes() {
    *WAITING.lock().unwrap_or_else(PoisonError::into_inner) = Some(vec![]);
}

/// The last remark that waits, for the view.
pub(crate) fn held_note() -> Option<String> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.last().cloned()
}

/// The terminal is free again: says what has waited.
pub(crate) fn release_notes() {
    let waited = WAITING.lock().unwrap_or_else(PoisonError::into_inner).take();
    waited.unwrap_or_default().iter().for_each(|text| note(text));
}

/// A remark that is no result: to stderr, so that pipes stay clean.
pub(crate) fn note(text: &str) {
    if QUIET.load(Ordering::Relaxed) {
        return;
    }
    if let Some(waiting) = WAITING.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        if waiting.len() == MOST_WAITING {
            waiting.remove(0);
        }
        return waiting.push(text.trim_start().to_owned());
    }
    // An empty line before it is meant.
    let (before, text) = text.strip_prefix('\n').map_or(("", text), |rest| ("\n", rest));
    let text = within(text);
    // Where nobody looks at a terminal, lines stay whole for whoever searches them.
    let text = match terminal_size::terminal_size_of(io::stderr()) {
        Some((columns, _)) => {
            text.lines().map(|l| wrap(l, "", "", usize::from(columns.0).max(40))).collect::<Vec<_>>().join("\n")
        }
        None => text,
    };
    let _ = writeln!(anstream::stderr(), "{before}{}", paint(DIM, text));
}

/// A name or other text from a file, on one line and with nothing hidden in it.
pub(crate) fn printable(text: &str) -> String {
    show::line(text).into_owned()
}

/// A progress bar on stderr; drawn only on a terminal.
pub(crate) fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30.cyan} {pos:>3}/{len} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    if QUIET.load(Ordering::Relaxed) {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps).with_style(style);
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

/// What the library tells while it measures, on a bar: of a hundred where it says how much is done, else step by step.
pub(crate) fn watch(bar: &ProgressBar) -> impl FnMut(Progress) + use<> {
    let (bar, mut first) = (bar.clone(), true);
    move |progress| {
        match progress.done {
            Some(done) => bar.set_position((done * bar.length().unwrap_or(100) as f64) as u64),
            None if first => {}
            None => bar.inc(1),
        }
        first = false;
        bar.set_message(printable(&progress.what));
    }
}

/// Columns that a page has: the terminal's, or 80 where there is none.
pub(crate) fn width() -> usize {
    let columns = terminal_size::terminal_size_of(io::stdout()).map_or(80, |(width, _)| usize::from(width.0));
    columns.clamp(40, 120)
}

/// Columns that a text takes on a terminal, without what only colours it.
pub(crate) fn columns(text: &str) -> usize {
    anstream::adapter::strip_str(text).map(UnicodeWidthStr::width).sum()
}

/// The beginning of a text, whole words in so many columns; `…` stands for the rest.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        if kept.width() + c.width().unwrap_or(0) + 1 > width {
            break;
        }
        kept.push(c);
    }
    // Whole words, unless little would be left.
    let whole = text[kept.len()..].starts_with(' ');
    let end = kept.rfind(' ').filter(|end| !whole && *end > kept.len() / 2).unwrap_or(kept.len());
    format!("{}…", kept[..end].trim_end_matches([' ', ',', ':']))
}

/// Units that stay on the line of their number.
const UNITS: [&str; 13] = ["s", "ms", "µs", "ns", "B", "KiB", "MiB", "GiB", "GB/s", "k", "M", "G", "T"];

/// The words of a text; a number and its unit are one.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = vec![];
    for word in text.split(' ').filter(|w| !w.is_empty()) {
        let unit = UNITS.contains(&word.trim_end_matches([',', ';', ':', ')', '.']));
        match words.last_mut().filter(|last| unit && last.ends_with(|c: char| c.is_ascii_digit())) {
            Some(number) => *number += &format!(" {word}"),
            None => words.push(word.to_owned()),
        }
    }
    words
}

/// Text broken between words into lines of so many columns. Only a word that is wider than a line is broken itself.
pub(crate) fn wrap(text: &str, first: &str, rest: &str, width: usize) -> String {
    let mut lines = vec![];
    let (mut line, mut used, mut empty) = (first.to_owned(), columns(first), true);
    for mut word in words(text) {
        if !empty && used + 1 + columns(&word) > width {
            lines.push(std::mem::replace(&mut line, rest.to_owned()));
            (used, empty) = (columns(rest), true);
        }
        while used + columns(&word) > width && columns(&word) > 1 && width > columns(rest) + 1 {
            let plain = anstream::adapter::strip_str(&word).to_string();
            let mut part = String::new();
            let mut left = plain.chars();
            while let Some(c) = left.clone().next().filter(|c| used + part.width() + c.width().unwrap_or(0) <= width) {
                part.push(c);
                left.next();
            }
            line += &part;
            lines.push(std::mem::replace(&mut line, rest.to_owned()));
            (used, word) = (columns(rest), left.collect());
        }
        if !empty {
            line.push(' ');
            used += 1;
        }
        line += &word;
        used += columns(&word);
        empty = false;
    }
    lines.push(line);
    lines.join("\n")
}

/// A paragraph from this column on, in a style, as wide as the page.
pub(crate) fn paragraph(out: &mut dyn Write, indent: usize, style: Style, text: &str) -> io::Result<()> {
    let blank = " ".repeat(indent);
    writeln!(out, "{}", paint(style, wrap(&printable(text), &blank, &blank, width())))
}

/// Columns as wide as their content; numbers to the right.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these headings; one that starts with `>` is set to the right.
    pub(crate) fn new(headings: &[&str]) -> Table {
        let right = headings.iter().map(|h| h.starts_with('>')).collect();
        Table { rows: vec![headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect()], right }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|t| columns(t)).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        for (i, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((text, &width), right) in row.iter().zip(&widths).zip(&self.right) {
                let pad = " ".repeat(width - columns(text));
                line += &if *right { format!("{pad}{text}  ") } else { format!("{text}{pad}  ") };
            }
            let line = line.trim_end();
            writeln!(out, "{}", if i == 0 { paint(TITLE, line) } else { line.to_owned() })?;
        }
        Ok(())
    }
}

/// A rate for people: `312 G`.
pub(crate) fn rate(per_second: f64) -> String {
    if !per_second.is_finite() || per_second < 0.0 {
        return "–".into();
    }
    schwann::plan::count(per_second as u64)
}

/// `1 thread`, `2 threads`.
pub(crate) fn threads(count: usize) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_colours_take_no_room() {
        let text = format!("one two {} four", paint(GOOD, "three"));
        let wrapped = wrap(&text, "> ", "  ", 10);
        assert_eq!(anstream::adapter::strip_str(&wrapped).to_string(), "> one two\n  three\n  four");
        // Wide characters take two columns, and a word that is too long is broken.
        assert_eq!(wrap("日本語 日本", "", "", 7), "日本語\n日本");
        assert_eq!(wrap("abcdefghij k", "", "", 4), "abcd\nefgh\nij k");
        assert_eq!(wrap("", "x ", "", 10), "x ");
        // A number keeps its unit.
        assert_eq!(wrap("it took 85 µs, or 1 more", "", "", 11), "it took\n85 µs, or 1\nmore");
    }

    #[test]
    fn what_is_cut_ends_with_a_word_and_says_that_there_is_more() {
        assert_eq!(cut("gated cell of 32 rows", 40), "gated cell of 32 rows");
        assert_eq!(cut("gated cell of 32 rows, lanes", 18), "gated cell of 32…");
        assert_eq!(cut("gated cell of 32 rows, lanes", 17), "gated cell of 32…");
        assert!(cut("日本語日本語日本語", 7).width() <= 7);
    }
}
