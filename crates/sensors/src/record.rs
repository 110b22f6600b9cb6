//! Samples in files: JSON lines, the first of which says what follows and in which version. They are read line by line,
//! so a long recording needs no more memory than its longest line, and a line has a limit.

use crate::source::described;
use crate::{Available, Sample, Source, now};
use schwann_core::Figure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::marker::PhantomData;

/// The version of the form; a greater one is refused.
pub const VERSION: u32 = 1;
/// The longest line that is read.
const LINE_LIMIT: u64 = 1 << 20;
/// What a recording of samples is called in its first line.
pub(crate) const SAMPLES: &str = "samples";

/// What can be wrong with a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It could not be read or written.
    #[error("line {line}: {source}")]
    Io {
        /// The line, counted from 1.
        line: u64,
        /// What the system said.
        source: std::io::Error,
    },
    /// The first line is not that of a recording.
    #[error("line 1: expected a recording's first line, such as {expected}; {problem}")]
    Header {
        /// A first line that would do.
        expected: String,
        /// What is wrong with this one.
        problem: String,
    },
    /// It was written by a newer program.
    #[error("the recording has version {found}; this program reads up to version {VERSION}")]
    Newer {
        /// The version it has.
        found: u32,
    },
    /// A line that is no sample.
    #[error("line {line}: {problem}")]
    Line {
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Header {
    /// What the lines are.
    schwann_recording: String,
    version: u32,
    /// What was recorded, for people.
    #[serde(default)]
    note: String,
}

/// Writes samples, one a line.
pub struct Recorder<W: Write> {
    out: W,
    line: u64,
}

impl<W: Write> Recorder<W> {
    /// A recording with a note for people, such as the machine's name. The first line is written at once.
    pub fn new(out: W, note: &str) -> Result<Recorder<W>, Error> {
        let mut recorder = Recorder { out, line: 1 };
        let header = Header { schwann_recording: SAMPLES.into(), version: VERSION, note: note.into() };
        recorder.write(&header)?;
        Ok(recorder)
    }

    /// Adds a sample; each is passed on whole, so a recording that is cut off loses at most its last line.
    pub fn record(&mut self, sample: &Sample) -> Result<(), Error> {
        self.line += 1;
        if let Some(problem) = sample.problem() {
            return Err(Error::Line { line: self.line, problem });
        }
        self.write(sample)
    }

    /// The writer.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn write(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let io = |source| Error::Io { line: self.line, source };
        let mut line = serde_json::to_vec(value).map_err(|e| io(e.into()))?;
        line.push(b'\n');
        self.out.write_all(&line).and_then(|()| self.out.flush()).map_err(io)
    }
}

/// The text of a file, line by line; a line has a limit.
pub struct Text<R> {
    input: R,
    line: u64,
}

impl<R: BufRead> Text<R> {
    /// From the first line on.
    pub fn new(input: R) -> Text<R> {
        Text { input, line: 0 }
    }

    /// The number of the line that was read last, counted from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next line, with its end; `None` after the last. One that is cut off in the middle of a letter is text all the same.
    pub fn next_line(&mut self) -> Result<Option<String>, Error> {
        self.line += 1;
        let line = self.line;
        let mut bytes = vec![];
        let read = self.input.by_ref().take(LINE_LIMIT + 1).read_until(b'\n', &mut bytes);
        match read.map_err(|source| Error::Io { line, source })? {
            0 => return Ok(None),
            n if n as u64 > LINE_LIMIT => {
                return Err(Error::Line { line, problem: format!("it is longer than {LINE_LIMIT} bytes") });
            }
            _ => {}
        }
        match std::str::from_utf8(&bytes) {
            Err(e) if e.error_len().is_some() || bytes.ends_with(b"\n") => {
                Err(Error::Line { line, problem: "it is not UTF-8 text".into() })
            }
            _ => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        }
    }
}

/// The lines of a recording.
pub(crate) struct Lines<R, T> {
    text: Text<R>,
    pub(crate) note: String,
    kind: PhantomData<fn() -> T>,
}

impl<R: BufRead, T: DeserializeOwned> Lines<R, T> {
    pub(crate) fn new(input: R, kind: &str) -> Result<Lines<R, T>, Error> {
        let mut lines = Lines { text: Text::new(input), note: String::new(), kind: PhantomData };
        let expected = format!("{{\"schwann_recording\":\"{kind}\",\"version\":{VERSION}}}");
        let wrong = |problem: String| Error::Header { expected: expected.clone(), problem };
        let text = match lines.text.next_line() {
            Ok(text) => text.ok_or_else(|| wrong("the file is empty".into()))?,
            Err(Error::Line { problem, .. }) => return Err(wrong(problem)),
            Err(other) => return Err(other),
        };
        let header: Header = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        if header.schwann_recording != kind {
            return Err(wrong(format!("this is a recording of `{}`", header.schwann_recording)));
        }
        if header.version > VERSION {
            return Err(Error::Newer { found: header.version });
        }
        lines.note = header.note;
        Ok(lines)
    }

    /// The next value with its line's number.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, T)>, Error> {
        loop {
            let Some(text) = self.text.next_line()? else { return Ok(None) };
            if text.trim().is_empty() {
                continue;
            }
            let line = self.text.line();
            let value = serde_json::from_str(&text);
            return value.map(|v| Some((line, v))).map_err(|e| Error::Line { line, problem: e.to_string() });
        }
    }
}

/// Plays a recording back: an iterator over its samples, and a source.
///
/// As a source it gives one recorded sample a call, with the recorded time. When the recording is over, or a line is
/// bad, every name seen before is unavailable, and the reason says so.
pub struct Replay<R> {
    lines: Lines<R, Sample>,
    units: BTreeMap<String, Figure>,
    last: f64,
    done: bool,
}

impl<R: BufRead> Replay<R> {
    /// Reads the first line.
    pub fn new(input: R) -> Result<Replay<R>, Error> {
        Ok(Replay { lines: Lines::new(input, SAMPLES)?, units: BTreeMap::new(), last: f64::MIN, done: false })
    }

    /// What was recorded, in the words of whoever did.
    pub fn note(&self) -> &str {
        &self.lines.note
    }

    /// The next sample; `None` at the end. After an error there is no more.
    pub fn next_sample(&mut self) -> Result<Option<Sample>, Error> {
        if self.done {
            return Ok(None);
        }
        let next = self.lines.next().and_then(|next| {
            let Some((line, sample)) = next else { return Ok(None) };
            let backwards =
                (sample.at < self.last).then(|| format!("its time goes back: {} after {}", sample.at, self.last));
            match sample.problem().or(backwards) {
                Some(problem) => Err(Error::Line { line, problem }),
                None => Ok(Some(sample)),
            }
        });
        match &next {
            Ok(Some(sample)) => {
                self.last = sample.at;
                self.units.extend(sample.readings.iter().map(|(n, f)| (n.clone(), f.clone())));
            }
            _ => self.done = true,
        }
        next
    }
}

impl<R: BufRead> Iterator for Replay<R> {
    type Item = Result<Sample, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_sample().transpose()
    }
}

impl<R: BufRead + Send> Source for Replay<R> {
    fn name(&self) -> &str {
        "replay"
    }

    /// The readings of the samples played so far.
    fn describe(&self) -> Vec<Available> {
        described(&self.units)
    }

    fn sample(&mut self) -> Sample {
        let reason = match self.next_sample() {
            Ok(Some(sample)) => return sample,
            Ok(None) => "the recording is over".to_string(),
            Err(error) => format!("the recording cannot be read further: {error}"),
        };
        let gone = |(name, f): (&String, &Figure)| (name.clone(), Figure::unavailable(&f.unit, &f.source, &reason));
        let at = if self.last == f64::MIN { now() } else { self.last };
        Sample { at, readings: self.units.iter().map(gone).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: f64, watts: f64) -> Sample {
        let readings = [
            ("package_power".to_string(), Figure::measured(watts, "W", "powercap").with_resolution(1e-6)),
            ("ane_power".to_string(), Figure::unavailable("W", "macmon", "no such part")),
        ];
        Sample { at, readings: readings.into() }
    }

    fn recorded() -> Vec<u8> {
        let mut recorder = Recorder::new(vec![], "a test").unwrap();
        for i in 0..3 {
            recorder.record(&sample(f64::from(i), 10.0 + f64::from(i))).unwrap();
        }
        recorder.into_inner()
    }

    #[test]
    fn what_is_recorded_is_played_back() {
        let file = recorded();
        let replay = Replay::new(&file[..]).unwrap();
        assert_eq!(replay.note(), "a test");
        let samples: Vec<_> = replay.map(Result::unwrap).collect();
        assert_eq!(samples, (0..3).map(|i| sample(f64::from(i), 10.0 + f64::from(i))).collect::<Vec<_>>());
    }

    #[test]
    fn after_its_end_a_source_says_so_under_the_same_names() {
        let file = recorded();
        let mut source = Replay::new(&file[..]).unwrap();
        let played: Vec<_> = (0..4).map(|_| source.sample()).collect();
        assert_eq!(played[2].readings["package_power"].value, Some(12.0));
        let over = &played[3].readings["package_power"];
        assert_eq!(
            (over.value, over.unit.as_str(), over.reason.as_deref()),
            (None, "W", Some("the recording is over"))
        );
        assert_eq!(played[3].readings.len(), 2);
        assert_eq!(source.describe().len(), 2);
    }

    #[test]
    fn a_newer_recording_is_refused() {
        let file = br#"{"schwann_recording":"samples","version":99}"#;
        let error = Replay::new(&file[..]).map(drop).unwrap_err();
        assert!(matches!(error, Error::Newer { found: 99 }), "{error}");
        assert!(error.to_string().contains("99"));
    }

    #[test]
    fn what_is_no_recording_is_refused_at_line_one() {
        for file in [&b""[..], b"\n", b"{}", b"[1]", b"\xff\xfe", br#"{"schwann_recording":"apple","version":1}"#] {
            let error = Replay::new(file).map(drop).unwrap_err();
            assert!(error.to_string().starts_with("line 1"), "{error}");
        }
    }

    #[test]
    fn a_bad_line_is_named_with_its_number() {
        let good = String::from_utf8(recorded()).unwrap();
        let last = good.lines().last().unwrap();
        for (bad, word) in [
            ("{", "EOF"),
            ("null", "null"),
            (r#"{"at":9,"readings":{"x":{"value":1,"unit":"W","provenance":"measured","source":""}}}"#, "no source"),
            (
                r#"{"at":9,"readings":{"x":{"value":null,"unit":"W","provenance":"unavailable","source":"s"}}}"#,
                "reason",
            ),
            (
                r#"{"at":9,"readings":{"x":{"value":null,"unit":"W","provenance":"measured","source":"s"}}}"#,
                "unavailable",
            ),
            (r#"{"at":9,"readings":{"x":{"value":1e999,"unit":"W","provenance":"measured","source":"s"}}}"#, "range"),
            (r#"{"at":0,"readings":{}}"#, "goes back"),
            (&"x".repeat(2 << 20), "longer"),
        ] {
            let file = format!("{good}\n{bad}\n{last}\n");
            let mut replay = Replay::new(file.as_bytes()).unwrap();
            let error = replay.by_ref().find_map(Result::err).expect("an error");
            // Four lines of the recording, one empty line, then the bad one.
            assert!(error.to_string().starts_with("line 6: ") && error.to_string().contains(word), "{error}");
            assert!(replay.next().is_none(), "nothing follows an error");
        }
    }

    #[test]
    fn cutting_a_recording_anywhere_never_panics() {
        let file = recorded();
        for end in 0..file.len() {
            if let Ok(replay) = Replay::new(&file[..end]) {
                assert!(replay.count() <= 4);
            }
        }
    }

    #[test]
    fn a_number_without_a_source_is_not_recorded() {
        let mut recorder = Recorder::new(vec![], "").unwrap();
        let bad = Sample { at: 0.0, readings: [("x".into(), Figure::measured(1.0, "W", ""))].into() };
        assert!(recorder.record(&bad).is_err());
    }
}
