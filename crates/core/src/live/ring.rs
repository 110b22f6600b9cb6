//! A ring as its readers see it: read with ordinary reads, so that a program that cuts its file off while somebody reads it
//! harms nobody, and with nothing taken on trust.

use super::place::{self, is_held};
use super::write::*;
use super::{Error, Facts, Result, VERSION};
use schwann_kernels::shared::user;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

/// Slots that are read at once.
const AT_ONCE: usize = 4096;
/// How often a block that is being written is tried again.
const TRIES: usize = 8;
/// A run that has its number and no slot for so many runs is given up: its thread was put to sleep in between.
const PATIENCE: u64 = SLOTS as u64 / 4;
/// A tick is a time between these, in seconds.
const TICKS: std::ops::Range<f64> = 1e-12..1e-3;
/// Longer runs than this are a mistake, or a lie.
const MOST_SECONDS: f64 = 1e6;

/// A program that is watched.
#[derive(Debug)]
pub struct Ring {
    file: File,
    path: PathBuf,
    name: String,
    program: String,
    pid: u32,
    began_ns: u64,
    /// The next run to read.
    next: u64,
    buffer: Vec<u8>,
}

/// Runs that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Those that were given.
    pub runs: u64,
    /// Those that went by before they could be read.
    pub lost: u64,
    /// All runs since the door was opened.
    pub total: u64,
}

/// What a session told.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Its number, as the runs have it.
    pub session: u64,
    /// What it runs.
    pub facts: Facts,
    /// Runs that were watched operation by operation, since it runs this.
    pub watched: u64,
    /// Seconds of those in no operation.
    pub outside: f64,
    /// Seconds of those by operation, in the facts' order.
    pub seconds: Vec<f64>,
}

impl Ring {
    /// The program of this name or process number; it must belong to this user.
    pub fn attach(who: &str) -> Result<Ring> {
        Ring::open(&place::one(who)?.path)
    }

    /// The ring in this file.
    pub fn open(path: &Path) -> Result<Ring> {
        let fail = |source| Error::File { path: path.to_owned(), source };
        let wrong = |problem: String| Error::Ring { path: path.to_owned(), problem };
        let about = std::fs::symlink_metadata(path).map_err(fail)?;
        if !about.is_file() {
            return Err(wrong("it is no plain file".into()));
        }
        if about.uid() != user() {
            return Err(wrong(format!("it belongs to user {}; only one's own programs can be watched", about.uid())));
        }
        let file = File::open(path).map_err(fail)?;
        let mut ring = Ring {
            file,
            path: path.to_owned(),
            name: String::new(),
            program: String::new(),
            pid: 0,
            began_ns: 0,
            next: 0,
            buffer: vec![],
        };
        let head = ring.words(0, HEAD).map_err(|_| wrong("it is too short to be one of Schwann's rings".into()))?;
        if head[AT_MAGIC] != MAGIC {
            return Err(wrong("it is none of Schwann's rings".into()));
        }
        match head[AT_VERSION] {
            VERSION => {}
            0 => return Err(wrong("it has no version".into())),
            other => {
                let which = if other > VERSION { "a newer" } else { "an older" };
                return Err(wrong(format!(
                    "its program was built with {which} version of Schwann: its format is {other}, and this program reads \
                     {VERSION}; build both from one version"
                )));
            }
        }
        if head[AT_WORDS] != ALL as u64 || ring.file.metadata().map_err(fail)?.len() != ALL as u64 * 8 {
            return Err(wrong("it does not have the size of its version".into()));
        }
        let pid = u32::try_from(head[AT_PID]).ok().filter(|pid| *pid != 0);
        ring.pid = pid.ok_or_else(|| wrong("it names no process".into()))?;
        ring.name = text(&head[AT_NAME..AT_NAME + NAME_WORDS]);
        ring.program = text(&head[AT_PROGRAM..AT_PROGRAM + NAME_WORDS]);
        ring.began_ns = head[AT_BEGAN];
        ring.next = head[AT_RUNS];
        ring.tick_s()?;
        Ok(ring)
    }

    /// What the program calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The program's file.
    pub fn program(&self) -> &str {
        &self.program
    }
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }
    /// When the door was opened, in seconds since 1970.
    pub fn began_s(&self) -> f64 {
        self.began_ns as f64 / 1e9
    }
    /// Runs until now, or until the last reading.
    pub fn total(&self) -> u64 {
        self.next
    }

    /// Whether its program still lives, and has the door open.
    pub fn is_alive(&self) -> bool {
        is_held(&self.file) && self.path.exists()
    }

    fn wrong(&self, problem: &str) -> Error {
        Error::Ring { path: self.path.clone(), problem: problem.into() }
    }

    /// So many words from this place on.
    fn words(&mut self, at: usize, count: usize) -> Result<Vec<u64>> {
        self.buffer.resize(count * 8, 0);
        let read = self.file.read_exact_at(&mut self.buffer, at as u64 * 8);
        read.map_err(|source| Error::File { path: self.path.clone(), source })?;
        // What is read next was not written before this.
        fence(Ordering::SeqCst);
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default();
        Ok(self.buffer.chunks_exact(8).map(word).collect())
    }

    fn word(&mut self, at: usize) -> Result<u64> {
        Ok(self.words(at, 1)?[0])
    }

    /// Seconds of a tick.
    fn tick_s(&mut self) -> Result<f64> {
        let tick = f64::from_bits(self.word(AT_TICK)?);
        if TICKS.contains(&tick) { Ok(tick) } else { Err(self.wrong("its clock makes no sense")) }
    }

    /// Gives the seconds and the session of every run that ended since the last reading.
    pub fn read(&mut self, mut run: impl FnMut(f64, u64)) -> Result<Seen> {
        let tick = self.tick_s()?;
        let head = self.word(AT_RUNS)?;
        let mut seen = Seen { total: head, ..Seen::default() };
        if head < self.next {
            return Err(self.wrong("its count of runs went back"));
        }
        let kept = SLOTS as u64;
        if head - self.next > kept {
            seen.lost += head - self.next - kept;
            self.next = head - kept;
        }
        while self.next < head {
            let at = (self.next % kept) as usize;
            let count = ((head - self.next) as usize).min(SLOTS - at).min(AT_ONCE);
            let slots = self.words(AT_SLOTS + at * SLOT, count * SLOT)?;
            // Slots of runs that began meanwhile may be half written over.
            let now = self.word(AT_RUNS)?;
            for slot in slots.chunks_exact(SLOT) {
                let [whole, _, length, session] = slot else { break };
                let gone = now.saturating_sub(self.next) >= kept;
                if *whole != self.next.wrapping_add(1) || gone {
                    // Not there yet: the next reading will find it.
                    if !gone && *whole <= self.next && now.saturating_sub(self.next) < PATIENCE {
                        return Ok(seen);
                    }
                    seen.lost += 1;
                } else {
                    let seconds = *length as f64 * tick;
                    if seconds <= MOST_SECONDS {
                        seen.runs += 1;
                        run(seconds, *session);
                    } else {
                        seen.lost += 1;
                    }
                }
                self.next += 1;
            }
        }
        Ok(seen)
    }

    /// What each watched session told last.
    pub fn told(&mut self) -> Result<Vec<Told>> {
        let mut all = vec![];
        for block in 0..BLOCKS {
            for _ in 0..TRIES {
                let at = HEAD + block * BLOCK;
                let before = self.word(at + IN_SEQUENCE)?;
                let words = self.words(at, BLOCK)?;
                if before % 2 == 0 && before == self.word(at + IN_SEQUENCE)? {
                    all.extend(told(block, &words));
                    break;
                }
            }
        }
        Ok(all)
    }
}

/// A block that nobody wrote meanwhile; `None` where it is empty or makes no sense.
fn told(block: usize, words: &[u64]) -> Option<Told> {
    let bytes = usize::try_from(words[IN_TEXT_BYTES]).ok().filter(|n| (1..=MOST_TEXT).contains(n))?;
    let text: Vec<u8> = words[IN_TEXT..].iter().flat_map(|w| w.to_ne_bytes()).take(bytes).collect();
    let facts: Facts = serde_json::from_slice(&text).ok()?;
    let parts = usize::try_from(words[IN_PARTS]).ok().filter(|n| *n <= MOST_PARTS)?;
    let seconds = |word: u64| Some(f64::from_bits(word)).filter(|s| s.is_finite() && *s >= 0.0);
    let mut each: Vec<f64> =
        words[IN_SECONDS..IN_SECONDS + parts].iter().map(|w| seconds(*w)).collect::<Option<_>>()?;
    // Operations that had no room among the facts count as beside them.
    let beyond: f64 = each.get(facts.parts.len()..).unwrap_or_default().iter().sum();
    each.resize(facts.parts.len(), 0.0);
    let outside = seconds(words[IN_OUTSIDE])? + beyond;
    Some(Told { session: block as u64, facts, watched: words[IN_WATCHED], outside, seconds: each })
}

/// A text of words, up to its end.
fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::write;
    use super::*;
    use crate::live::Part;
    use crate::op::Cost;

    fn facts() -> Facts {
        let part = |name: &str| Part {
            name: name.into(),
            kernel: "gemm".into(),
            calls: 2,
            cost: Cost { flops: 5, ..Cost::default() },
            integers: false,
        };
        Facts { backend: "cpu".into(), threads: 1, parts: vec![part("a"), part("b")], ..Facts::default() }
    }

    /// A ring's file with three runs and one session in it.
    fn written(name: &str) -> (write::Ring, Ring) {
        let ring = write::Ring::create(name).unwrap();
        let found = place::found();
        let file = found.iter().find(|f| f.name == name && f.pid == std::process::id()).unwrap();
        let reader = Ring::open(&file.path).unwrap();
        let block = ring.take_block().unwrap();
        ring.tell(block, &facts());
        ring.sum(block, 7, 0.5, &[0.25, 0.125]);
        (1..=3).for_each(|i| ring.push(0, i * 1000, block as u64));
        (ring, reader)
    }

    fn all(ring: &mut Ring) -> (Vec<(f64, u64)>, Seen) {
        let mut runs = vec![];
        let seen = ring.read(|s, session| runs.push((s, session))).unwrap();
        (runs, seen)
    }

    #[test]
    fn a_reader_sees_runs_once_and_what_a_session_told() {
        let (ring, mut reader) = written("reader-sees");
        assert_eq!((reader.name(), reader.pid(), reader.is_alive()), ("reader-sees", std::process::id(), true));
        let (runs, seen) = all(&mut reader);
        assert_eq!((runs.len(), seen), (3, Seen { runs: 3, lost: 0, total: 3 }));
        assert!((runs[2].0 / runs[0].0 - 3.0).abs() < 1e-9 && runs[0].1 == 0);
        assert_eq!(all(&mut reader).0, []);
        let told = reader.told().unwrap();
        let wanted = Told { session: 0, facts: facts(), watched: 7, outside: 0.5, seconds: vec![0.25, 0.125] };
        assert_eq!(told, [wanted]);
        ring.free_block(0);
        assert_eq!(reader.told().unwrap(), []);
        drop(ring);
        assert!(!reader.is_alive());
    }

    #[test]
    fn runs_that_nobody_read_in_time_are_counted_as_lost() {
        let (ring, mut reader) = written("reader-loses");
        (0..SLOTS as u64 * 2).for_each(|_| ring.push(0, 1, NO_BLOCK));
        let (runs, seen) = all(&mut reader);
        assert_eq!(seen.total, SLOTS as u64 * 2 + 3);
        assert_eq!(seen.runs + seen.lost, seen.total);
        assert!(runs.len() >= SLOTS - 1);
    }

    #[test]
    fn of_threads_that_write_at_once_every_run_is_read_or_counted_as_lost() {
        let (ring, mut reader) = written("reader-threads");
        let (threads, each) = (4u64, 3000u64);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..each).for_each(|i| ring.push(i, 1, NO_BLOCK)));
            }
            // A run is lost where its thread has to wait in the middle of writing it while others write many.
            let (mut runs, mut lost, mut tries) = (0, 0, 0);
            while runs + lost < threads * each + 3 && tries < 100_000 {
                let seen = reader.read(|_, _| {}).unwrap();
                (runs, lost, tries) = (runs + seen.runs, lost + seen.lost, tries + 1);
            }
            assert_eq!(runs + lost, threads * each + 3);
            assert!(lost < each / 10, "{lost} lost");
        });
    }

    #[test]
    fn a_file_that_is_cut_off_or_has_any_byte_wrong_harms_nobody() {
        let (ring, reader) = written("reader-garbled");
        let good = std::fs::read(&reader.path).unwrap();
        let path = std::env::temp_dir().join(format!("schwann-garbled-{}", std::process::id()));
        let look = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let Ok(mut ring) = Ring::open(&path) else { return false };
            ring.next = 0;
            let mut runs = 0;
            let seen = ring.read(|s, _| {
                assert!(s.is_finite() && s >= 0.0);
                runs += 1;
            });
            assert!(runs <= SLOTS as u64 && seen.is_ok_and(|s| s.runs == runs) || runs < 4);
            for told in ring.told().unwrap_or_default() {
                assert!(told.seconds.len() == told.facts.parts.len() && told.outside.is_finite());
            }
            true
        };
        assert!(look(&good));
        for end in [0, 1, 7, 8, HEAD * 8 - 1, HEAD * 8, good.len() / 2, good.len() - 1] {
            assert!(!look(&good[..end]), "cut off at {end}");
        }
        // Every byte that says something: head, the first block to the end of its text, the first slots.
        let told = (HEAD * 8..(HEAD + IN_SECONDS + 4) * 8).chain((HEAD + IN_TEXT) * 8..(HEAD + IN_TEXT) * 8 + 400);
        let bytes = (0..HEAD * 8).chain(told).chain(AT_SLOTS * 8..(AT_SLOTS + 4 * SLOT) * 8);
        let step = if std::env::var_os("SCHWANN_LONG").is_some() { 1 } else { 7 };
        let mut bad = good.clone();
        for at in bytes.step_by(step) {
            for change in [0xff, 0x01, 0x80] {
                bad[at] ^= change;
                look(&bad);
                bad[at] = good[at];
            }
        }
        std::fs::remove_file(&path).unwrap();
        drop(ring);
    }

    #[test]
    fn a_ring_of_another_version_is_refused_with_a_word() {
        let (ring, reader) = written("reader-version");
        let good = std::fs::read(&reader.path).unwrap();
        let path = std::env::temp_dir().join(format!("schwann-version-{}", std::process::id()));
        for (version, word) in [(0u64, "no version"), (2, "newer"), (u64::MAX, "newer")] {
            let mut bytes = good.clone();
            bytes[AT_VERSION * 8..][..8].copy_from_slice(&version.to_ne_bytes());
            std::fs::write(&path, &bytes).unwrap();
            let why = Ring::open(&path).unwrap_err().to_string();
            assert!(why.contains(word), "{why}");
        }
        std::fs::write(&path, vec![b'x'; good.len()]).unwrap();
        assert!(Ring::open(&path).unwrap_err().to_string().contains("none of Schwann's rings"));
        std::fs::remove_file(&path).unwrap();
        drop(ring);
    }

    #[test]
    fn names_that_would_leave_the_folder_are_refused() {
        for bad in ["", ".", "..", "a/b", "a b", "é", "../x", &"x".repeat(49)] {
            assert!(matches!(write::Ring::create(bad), Err(Error::Name { .. })), "{bad}");
        }
    }
}
