//! Rows of numbers from a stream: what separates them, which line is a heading, and what is wrong with one.

use anyhow::{Context, Result, anyhow, bail};
use schwann::nn::NotFinite;
use schwann::{DType, Tensor, show};
use serde_json::Value;
use std::io::{BufRead, Read};

/// A line may be this long whatever the network takes.
const USUAL_LINE_BYTES: u64 = 1 << 20;
/// What a number may take of a longer line.
const NUMBER_BYTES: u64 = 64;
/// So much of a bad row is shown.
const SHOWN_CHARACTERS: usize = 60;

/// How rows are written.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Numbers with commas, semicolons, tabs or blanks between them, as the first line has it; a heading may come first.
    Csv,
    /// An array of numbers, or an object with `x` and, where wanted, `dt`.
    Jsonl,
}

/// What stands between the numbers of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Separator {
    Comma,
    Semicolon,
    Tab,
    Blanks,
}

impl Separator {
    /// As a line has it. A comma may be part of a number where something else separates them.
    fn of(line: &str) -> Separator {
        if line.contains('\t') {
            Separator::Tab
        } else if line.contains(';') {
            Separator::Semicolon
        } else if line.contains(',') || !line.contains(char::is_whitespace) {
            Separator::Comma
        } else {
            Separator::Blanks
        }
    }
    fn name(self) -> &'static str {
        match self {
            Separator::Comma => "commas",
            Separator::Semicolon => "semicolons",
            Separator::Tab => "tabs",
            Separator::Blanks => "blanks",
        }
    }
    /// As it is written in answers.
    pub(super) fn text(self) -> &'static str {
        match self {
            Separator::Comma => ",",
            Separator::Semicolon => ";",
            Separator::Tab => "\t",
            Separator::Blanks => " ",
        }
    }
    fn split(self, line: &str) -> Vec<&str> {
        let bare = |f| {
            let f = str::trim(f);
            f.strip_prefix('"').and_then(|f| f.strip_suffix('"')).unwrap_or(f)
        };
        match self {
            Separator::Comma => line.split(',').map(bare).collect(),
            Separator::Semicolon => line.split(';').map(bare).collect(),
            Separator::Tab => line.split('\t').map(bare).collect(),
            Separator::Blanks => line.split_whitespace().map(bare).collect(),
        }
    }
}

/// One row: the features, and the time since the last.
#[derive(Clone, Default)]
pub(super) struct Row {
    /// Each is a number of the type that the network takes.
    pub(super) x: Vec<f64>,
    pub(super) dt: Option<f32>,
    /// Whether it came as an object, and its answer is to be one.
    pub(super) object: bool,
}

/// What the next line is.
pub(super) enum Next {
    Row,
    /// No row; why.
    Bad(anyhow::Error),
    End,
}

/// Reads rows, and knows where it is.
pub(super) struct Rows<R> {
    from: R,
    line: Vec<u8>,
    pub(super) number: usize,
    pub(super) format: Option<Format>,
    pub(super) separator: Option<Separator>,
    /// How many numbers a row has, but for the time.
    features: usize,
    /// What type they have.
    dtype: DType,
    not_finite: NotFinite,
    /// Which column is the time, as it was given, and counted from 0 once that is known.
    dt_column: Option<String>,
    dt_at: Option<usize>,
    begun: bool,
    /// What was taken for a heading, to say so once.
    pub(super) heading: Option<(usize, String)>,
}

impl<R: BufRead> Rows<R> {
    pub(super) fn new(
        from: R,
        (features, dtype): (usize, DType),
        format: Option<Format>,
        dt_column: Option<&str>,
        not_finite: NotFinite,
    ) -> Rows<R> {
        Rows {
            from,
            line: vec![],
            number: 0,
            format,
            separator: None,
            features,
            dtype,
            not_finite,
            dt_column: dt_column.map(str::to_owned),
            dt_at: None,
            begun: false,
            heading: None,
        }
    }

    fn most_bytes(&self) -> u64 {
        USUAL_LINE_BYTES.max((self.features as u64 + 1).saturating_mul(NUMBER_BYTES))
    }

    /// Reads the next row. What cannot be read at all, and flags that fit no row, are errors.
    pub(super) fn next(&mut self, row: &mut Row) -> Result<Next> {
        loop {
            self.line.clear();
            self.number += 1;
            let most = self.most_bytes();
            let read =
                (&mut self.from).take(most + 1).read_until(b'\n', &mut self.line).context("cannot read stdin")?;
            if read == 0 {
                return Ok(Next::End);
            }
            if read as u64 > most && self.line.last() != Some(&b'\n') {
                return Ok(Next::Bad(anyhow!("it is longer than {most} bytes")));
            }
            match self.parse(row) {
                Ok(true) => return Ok(Next::Row),
                Ok(false) => {}
                Err(e) if e.is::<Flag>() => return Err(e.context(format!("stdin, line {}", self.number))),
                Err(e) => return Ok(Next::Bad(e)),
            }
        }
    }

    /// Reads on to the end of a line that was too long, without keeping it.
    pub(super) fn skip_rest(&mut self) -> Result<()> {
        while self.line.last() != Some(&b'\n') {
            self.line.clear();
            let part = (&mut self.from).take(1 << 16).read_until(b'\n', &mut self.line);
            if part.context("cannot read stdin")? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The line at hand, for a message.
    pub(super) fn excerpt(&self) -> String {
        let start = &self.line[..self.line.len().min(4 * SHOWN_CHARACTERS)];
        let text = String::from_utf8_lossy(start);
        let text = text.trim_end();
        let short: String = text.chars().take(SHOWN_CHARACTERS).collect();
        let more = if text.chars().count() > SHOWN_CHARACTERS { "…" } else { "" };
        format!("`{}{more}`", show::line(&short))
    }

    /// Takes a row from the line at hand; false for a heading or an empty line.
    fn parse(&mut self, row: &mut Row) -> Result<bool> {
        let text = std::str::from_utf8(&self.line).map_err(|e| anyhow!("it is not UTF-8 text: {e}"))?;
        let text = text.trim_start_matches('\u{feff}').trim_end_matches(['\n', '\r']);
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(false);
        }
        let format = *self.format.get_or_insert(match trimmed.starts_with(['[', '{']) {
            true => Format::Jsonl,
            false => Format::Csv,
        });
        let first = !std::mem::replace(&mut self.begun, true);
        row.x.clear();
        (row.dt, row.object) = (None, false);
        if format == Format::Jsonl {
            if self.dt_column.is_some() {
                let problem = "--dt-column is for CSV; in JSON the time is `dt`, as in {\"x\": [1, 2], \"dt\": 0.1}";
                return Err(Flag(problem.into()).into());
            }
            json_row(trimmed, row, self.dtype, self.not_finite)?;
            return Ok(true);
        }
        let separator = *self.separator.get_or_insert_with(|| Separator::of(trimmed));
        let fields = separator.split(if separator == Separator::Tab { text } else { trimmed });
        let columns = self.features + usize::from(self.dt_column.is_some());
        let heading = first && fields.len() == columns && fields.iter().all(|f| is_heading(f));
        if let (true, Some(column)) = (first, &self.dt_column) {
            self.dt_at = Some(column_at(column, &fields, heading)?);
        }
        if heading {
            self.heading = Some((self.number, self.excerpt()));
            return Ok(false);
        }
        for (i, field) in fields.iter().enumerate() {
            let is_time = self.dt_at == Some(i);
            let value = number_of(field, if is_time { DType::F32 } else { self.dtype }, self.not_finite);
            let value = value.map_err(|problem| anyhow!("column {} {problem}{}", i + 1, hint(field, separator)))?;
            if is_time {
                row.dt = Some(value as f32);
            } else {
                row.x.push(value);
            }
        }
        if let (Some(at), None) = (self.dt_at, row.dt) {
            bail!("it has {} columns; column {} is to be the time", fields.len(), at + 1);
        }
        if row.x.len() != self.features {
            let commas = separator == Separator::Comma && fields.len() == 2 * columns;
            let more = if commas { ". Are the commas in the numbers? Write 1.5 instead of 1,5" } else { "" };
            let between = format!("{} between them", separator.name());
            bail!("it has {} features ({between}); the network takes {}{more}", row.x.len(), self.features);
        }
        Ok(true)
    }
}

/// A flag that cannot be met by any row.
#[derive(Debug)]
struct Flag(String);
impl std::fmt::Display for Flag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Flag {}

/// Whether a field may be a column's name, such as `speed` or `x1`. What is a number, or starts as one does (with a digit,
/// a sign or a point), is a number that may be damaged, and never a name: a row is not to be lost as a heading.
fn is_heading(field: &str) -> bool {
    let like_a_number = |c: char| c.is_numeric() || "+-−.,".contains(c);
    field.parse::<f32>().is_err() && !field.starts_with(like_a_number) && field.contains(char::is_alphabetic)
}

/// The number of that type in a field, or what is wrong with it.
fn number_of(field: &str, dtype: DType, not_finite: NotFinite) -> Result<f64, String> {
    let shown = || format!("is `{}`", show::name(&field.chars().take(40).collect::<String>()));
    let wide: f64 = field.parse().map_err(|_| format!("{}; expected a number", shown()))?;
    // Rounded once: by way of f64 a number may come out as its neighbour.
    let value = if dtype == DType::F32 { field.parse::<f32>().map_or(wide, f64::from) } else { wide };
    let written = field.contains(|c: char| c.is_ascii_digit());
    fits(value, dtype, written, not_finite).map_err(|problem| format!("{}; {problem}", shown()))
}

/// A number as the type holds it, or what is expected instead; `written` if it was written with digits.
fn fits(value: f64, dtype: DType, written: bool, not_finite: NotFinite) -> Result<f64, String> {
    let (least, most) = match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => {
            let stored = Tensor::from_f64(dtype, &[], &[value]).map_or(f64::NAN, |t| t.to_f64()[0]);
            return match (stored.is_finite(), value.is_finite() || written, not_finite) {
                (true, ..) => Ok(stored),
                (false, true, _) => Err(format!("expected a finite number that {dtype} holds")),
                (false, false, NotFinite::Pass) => Ok(stored),
                (false, false, NotFinite::Refuse) => {
                    Err("expected a finite number (--nan pass lets others through)".into())
                }
            };
        }
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::I8 => (-128.0, 127.0),
        DType::U8 => (0.0, 255.0),
        DType::Bool => (0.0, 1.0),
    };
    match value.fract() == 0.0 && (least..=most).contains(&value) {
        true => Ok(value),
        false => Err(format!("expected a whole number from {least} to {most}, since the network takes {dtype}")),
    }
}

/// What else may be meant by a field that is no number.
fn hint(field: &str, separator: Separator) -> String {
    let number = |text: &str| text.trim().parse::<f32>().is_ok();
    if number(&field.replacen(',', ".", 1)) && !number(field) {
        return ": a comma in a number; write 1.5 instead of 1,5".into();
    }
    let other = [Separator::Tab, Separator::Semicolon, Separator::Comma, Separator::Blanks];
    let found = other
        .into_iter()
        .find(|o| *o != separator && o.split(field).len() > 1 && o.split(field).iter().all(|f| number(f)));
    found.map_or_else(String::new, |o| {
        format!(": {} between numbers, where the first line has {}", o.name(), separator.name())
    })
}

/// Which column is meant, by its heading or by its number from 1.
fn column_at(column: &str, fields: &[&str], heading: bool) -> Result<usize, Flag> {
    if heading && let Some(at) = fields.iter().position(|f| *f == column) {
        return Ok(at);
    }
    match column.parse::<usize>() {
        Ok(n) if n > 0 => Ok(n - 1),
        _ if heading => {
            Err(Flag(format!("--dt-column is {column}; expected a heading of this line, or a column's number from 1")))
        }
        _ => Err(Flag(format!(
            "--dt-column is {column}; expected a column's number from 1, since there are no headings: this line has {} \
             columns of words or numbers",
            fields.len()
        ))),
    }
}

fn json_row(text: &str, row: &mut Row, dtype: DType, not_finite: NotFinite) -> Result<()> {
    let json: Value = serde_json::from_str(text)?;
    let shown = |value: &Value| show::name(&value.to_string());
    let number = |value: &Value, dtype: DType| match value {
        // JSON has no other word for what is no number.
        Value::Null if not_finite == NotFinite::Pass => {
            fits(f64::NAN, dtype, false, not_finite).map_err(|e| anyhow!(e))
        }
        _ => {
            let number = value.as_f64().context("expected a finite number")?;
            fits(number, dtype, true, not_finite).map_err(|e| anyhow!(e))
        }
    };
    let x = match &json {
        Value::Array(_) => &json,
        Value::Object(fields) => {
            if let Some(other) = fields.keys().find(|k| !["x", "dt"].contains(&k.as_str())) {
                bail!("it has a field `{}`; expected `x` and, where wanted, `dt`", show::name(other));
            }
            row.object = true;
            let time = fields
                .get("dt")
                .map(|dt| number(dt, DType::F32).with_context(|| format!("`dt` is {}", shown(dt))))
                .transpose()?;
            row.dt = time.map(|dt| dt as f32);
            fields.get("x").context("it has no field `x`")?
        }
        other => bail!("it is {}; expected an array of numbers, or an object with `x`", shown(other)),
    };
    match x {
        Value::Array(values) => {
            for (i, value) in values.iter().enumerate() {
                row.x.push(number(value, dtype).with_context(|| format!("element {} is {}", i + 1, shown(value)))?);
            }
        }
        one => row.x.push(number(one, dtype).with_context(|| format!("`x` is {}", shown(one)))?),
    }
    Ok(())
}
