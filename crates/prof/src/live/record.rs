//! Moments in files: JSON lines, the first of which says what is watched. That is also what scripts get.

use super::{About, Moment, Result, Source};
use schwann_sensors::{Error, Text, VERSION};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a recording of moments is called in its first line.
const MOMENTS: &str = "moments";
/// The longest wait between two moments of a recording; whoever paused for longer need not be waited for.
const MOST_WAIT: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_millis(20);

/// What every recording's first line has.
#[derive(Deserialize)]
struct Kind {
    schwann_recording: String,
    version: u32,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Header<A> {
    schwann_recording: String,
    version: u32,
    #[serde(flatten)]
    about: A,
}

/// Writes moments, one a line.
pub struct Recorder<W: Write> {
    out: W,
}

impl<W: Write> Recorder<W> {
    /// Writes the first line at once.
    pub fn new(out: W, about: &About) -> std::io::Result<Recorder<W>> {
        let mut recorder = Recorder { out };
        recorder.write(&Header { schwann_recording: MOMENTS.into(), version: VERSION, about })?;
        Ok(recorder)
    }

    /// Adds a moment; each is passed on whole, so a recording that is cut off loses at most its last line.
    pub fn record(&mut self, moment: &Moment) -> std::io::Result<()> {
        self.write(moment)
    }

    fn write(&mut self, value: &impl Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.out.write_all(&line).and_then(|()| self.out.flush())
    }

    /// The writer.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// Plays a recording back.
pub struct Replay<R> {
    about: About,
    text: Text<R>,
    /// Whether moments come at the pace of the recording, or as fast as they are read.
    paced: bool,
    /// When the first moment was given, and its time.
    first: Option<(Instant, f64)>,
    last: Option<f64>,
    cancel: Arc<AtomicBool>,
    cut: Option<u64>,
}

impl<R: BufRead> Replay<R> {
    /// Reads the first line.
    pub fn new(input: R, paced: bool, cancel: Arc<AtomicBool>) -> Result<Replay<R>> {
        let mut text = Text::new(input);
        let expected = format!("{{\"schwann_recording\":\"{MOMENTS}\",\"version\":{VERSION},…}}");
        let wrong = |problem: String| Error::Header { expected: expected.clone(), problem };
        let first = match text.next_line() {
            Ok(line) => line.ok_or_else(|| wrong("the file is empty".into()))?,
            Err(Error::Line { problem, .. }) => return Err(wrong(problem).into()),
            Err(other) => return Err(other.into()),
        };
        let kind: Kind = serde_json::from_str(&first).map_err(|e| wrong(e.to_string()))?;
        if kind.schwann_recording != MOMENTS {
            return Err(wrong(format!("this is a recording of `{}`", kind.schwann_recording)).into());
        }
        if kind.version > VERSION {
            return Err(Error::Newer { found: kind.version }.into());
        }
        let header: Header<About> = serde_json::from_str(&first).map_err(|e| wrong(e.to_string()))?;
        Ok(Replay { about: header.about, text, paced, first: None, last: None, cancel, cut: None })
    }

    /// The next moment, at once.
    fn read(&mut self) -> Result<Option<Moment>> {
        loop {
            let Some(line) = self.text.next_line()? else { return Ok(None) };
            if line.trim().is_empty() {
                continue;
            }
            let number = self.text.line();
            let moment: Moment = match serde_json::from_str(&line) {
                Ok(moment) => moment,
                // Whoever recorded was stopped in the middle of a line.
                Err(_) if !line.ends_with('\n') => {
                    self.cut = Some(number);
                    return Ok(None);
                }
                Err(e) => return Err(Error::Line { line: number, problem: e.to_string() }.into()),
            };
            if self.last.is_some_and(|last| moment.at_s < last) {
                let problem = format!("its time goes back: {} after {}", moment.at_s, self.last.unwrap_or_default());
                return Err(Error::Line { line: number, problem }.into());
            }
            return Ok(Some(moment));
        }
    }
}

impl<R: BufRead + Send> Source for Replay<R> {
    fn about(&self) -> &About {
        &self.about
    }

    fn next_moment(&mut self) -> Result<Option<Moment>> {
        if self.cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Some(moment) = self.read()? else { return Ok(None) };
        let gap = self.last.map_or(0.0, |last| moment.at_s - last);
        self.last = Some(moment.at_s);
        if self.paced {
            let (began, at) = *self.first.get_or_insert((Instant::now(), moment.at_s));
            let after = Duration::try_from_secs_f64(moment.at_s - at).unwrap_or(Duration::MAX);
            let gap = Duration::try_from_secs_f64(gap).unwrap_or(MOST_WAIT).min(MOST_WAIT);
            let now = Instant::now();
            let due = began.checked_add(after).unwrap_or(now + gap).min(now + gap);
            while Instant::now() < due {
                if self.cancel.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                std::thread::sleep(due.saturating_duration_since(Instant::now()).min(NAP));
            }
        }
        Ok(Some(moment))
    }

    fn ended(&self) -> Option<String> {
        self.cut.map(|line| format!("the recording ends in the middle of line {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sum::{about, tests::moment};
    use super::*;

    fn moments() -> Vec<Moment> {
        (0..3)
            .map(|i| Moment {
                number: i,
                at_s: 0.1 * (i + 1) as f64,
                alerts: vec!["latency_p50 > 1µs".into()],
                ..moment()
            })
            .collect()
    }

    fn recorded() -> Vec<u8> {
        let mut recorder = Recorder::new(vec![], &about("W", 7, 0.5, Some(1e-3), None, None)).unwrap();
        moments().iter().for_each(|m| recorder.record(m).unwrap());
        recorder.into_inner()
    }

    fn play(file: &[u8], paced: bool) -> Result<(Vec<Moment>, Option<String>)> {
        let mut replay = Replay::new(file, paced, Arc::default())?;
        let mut all = vec![];
        while let Some(moment) = replay.next_moment()? {
            all.push(moment);
        }
        Ok((all, replay.ended()))
    }

    #[test]
    fn what_is_recorded_is_played_back_to_the_last_bit() {
        let file = recorded();
        let replay = Replay::new(&file[..], false, Arc::default()).unwrap();
        assert_eq!(replay.about().pid, 7);
        let (mut all, ended) = play(&file, false).unwrap();
        let mut wanted = moments();
        // Readings of the machine are of each moment's making.
        for m in all.iter_mut().chain(&mut wanted) {
            assert!(!m.machine.is_empty());
            m.machine.clear();
            (m.memory.rss, m.span_s) = (m.memory.arena.clone(), 1.0);
            (m.latency.rate, m.latency.busy) = (m.latency.p50.clone(), m.latency.p50.clone());
        }
        assert_eq!((all, ended), (wanted, None));
    }

    #[test]
    fn a_paced_replay_takes_its_time_and_can_be_cancelled() {
        let file = recorded();
        let start = Instant::now();
        assert_eq!(play(&file, true).unwrap().0.len(), 3);
        assert!(start.elapsed() >= Duration::from_millis(195));
        let cancel = Arc::new(AtomicBool::new(true));
        assert!(Replay::new(&file[..], true, cancel).unwrap().next_moment().unwrap().is_none());
    }

    #[test]
    fn a_recording_that_is_cut_off_plays_to_its_last_whole_line() {
        let file = recorded();
        let first = file.iter().position(|b| *b == b'\n').unwrap() + 1;
        for end in (0..file.len()).step_by(97) {
            match play(&file[..end], false) {
                Ok((all, _)) => assert!(end + 1 >= first && all.len() <= 3),
                Err(why) => assert!(end < first && why.to_string().starts_with("line 1"), "{why}"),
            }
        }
        let (all, ended) = play(&file[..file.len() - 20], false).unwrap();
        assert!(all.len() == 2 && ended.unwrap().contains("middle of line 4"));
        // In the middle of a letter too.
        let letter = file.iter().rposition(|b| *b >= 0xc0).unwrap();
        let (all, ended) = play(&file[..=letter], false).unwrap();
        assert!(all.len() == 2 && ended.unwrap().contains("middle of line 4"));
    }

    #[test]
    fn other_files_and_bad_lines_are_named() {
        let good = String::from_utf8(recorded()).unwrap();
        for (file, word) in [
            (String::new(), "empty"),
            ("{}\n".into(), "schwann_recording"),
            (r#"{"schwann_recording":"samples","version":1}"#.into(), "recording of `samples`"),
            (r#"{"schwann_recording":"moments","version":9}"#.into(), "version 9"),
            (r#"{"schwann_recording":"moments","version":1}"#.into(), "missing field"),
            (format!("{good}{{}}\n"), "line 5"),
            (format!("{good}{}\n", "x".repeat(2 << 20)), "longer"),
            (format!("{good}{}\n", good.lines().nth(1).unwrap()), "goes back"),
        ] {
            let why = play(file.as_bytes(), false).unwrap_err().to_string();
            assert!(why.contains(word), "{word}: {why}");
        }
    }
}
