//! The ring as its program writes it, and how it is laid out.
//!
//! All of it is words of 64 bits. First a head, then a block for each session, then the slots of runs. A run takes the
//! next number from the head, and writes its slot: start, duration, session, and last the number, which says that the
//! slot is whole. A block is written under a sequence number that is odd meanwhile.

use super::place::{MAKING, RING, folder, found};
use super::{Error, Facts, Result, VERSION};
use schwann_kernels::clock;
use schwann_kernels::shared::Words;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// The first word: no other file begins so.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"SCHWLIVE");
/// Places in the head.
pub(super) const AT_MAGIC: usize = 0;
pub(super) const AT_VERSION: usize = 1;
pub(super) const AT_WORDS: usize = 2;
pub(super) const AT_PID: usize = 3;
pub(super) const AT_BEGAN: usize = 4;
pub(super) const AT_TICK: usize = 5;
pub(super) const AT_NAME: usize = 8;
pub(super) const AT_PROGRAM: usize = 16;
/// Words of a text in the head: its bytes, the rest 0.
pub(super) const NAME_WORDS: usize = 8;
/// The number of runs so far, on a line of its own.
pub(super) const AT_RUNS: usize = 32;
pub(super) const HEAD: usize = 64;

/// Sessions with a block.
pub(super) const BLOCKS: usize = 8;
/// Places in a block.
pub(super) const IN_SEQUENCE: usize = 0;
pub(super) const IN_TEXT_BYTES: usize = 1;
pub(super) const IN_WATCHED: usize = 2;
pub(super) const IN_OUTSIDE: usize = 3;
pub(super) const IN_PARTS: usize = 4;
pub(super) const IN_SECONDS: usize = 8;
/// Operations with a time of their own.
pub(super) const MOST_PARTS: usize = 256;
pub(super) const IN_TEXT: usize = IN_SECONDS + MOST_PARTS;
/// Bytes of the JSON that says what a session runs.
pub(super) const MOST_TEXT: usize = 32 << 10;
pub(super) const BLOCK: usize = IN_TEXT + MOST_TEXT / 8;

/// Runs that are kept, and words of each.
pub(super) const SLOTS: usize = 1 << 15;
pub(super) const SLOT: usize = 4;
pub(super) const AT_SLOTS: usize = HEAD + BLOCKS * BLOCK;
pub(super) const ALL: usize = AT_SLOTS + SLOTS * SLOT;

/// The session of a run that belongs to none.
pub(super) const NO_BLOCK: u64 = u64::MAX;

/// A ring that this program writes. Its file goes away with it.
#[derive(Debug)]
pub(super) struct Ring {
    words: Words,
    path: PathBuf,
    rate: clock::Rate,
    /// Which blocks are taken.
    taken: Mutex<[bool; BLOCKS]>,
    /// Locked while this program lives, and the ring with it.
    _file: File,
}

/// A text as words.
fn words_of(text: &str, most: usize) -> impl Iterator<Item = u64> + '_ {
    text.as_bytes().chunks(8).take(most).map(|chunk| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(bytes)
    })
}

impl Ring {
    pub(super) fn create(name: &str) -> Result<Ring> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !(1..=48).contains(&name.len()) || !name.chars().all(plain) || name.starts_with('.') {
            return Err(Error::Name { name: name.into() });
        }
        // Those of programs that were killed go away here.
        found();
        let (folder, rate) = (folder()?, clock::Rate::start());
        let pid = std::process::id();
        // A process may have more doors than one, by one name too.
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{name}.{pid}-{number}{RING}"));
        let making = folder.join(format!("{name}.{pid}-{number}{MAKING}"));
        let fail = |source| Error::File { path: path.clone(), source };
        // A process of the same number that was killed while it made its own left this.
        let _ = std::fs::remove_file(&making);
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(&making).map_err(fail)?;
        let ring = (|| {
            file.lock().map_err(fail)?;
            // Written and not only stretched: a folder that is too full says so now, and not in the middle of a run.
            let zeros = vec![0u8; 1 << 16];
            let mut left = ALL * 8;
            while left > 0 {
                let part = left.min(zeros.len());
                file.write_all(&zeros[..part]).map_err(fail)?;
                left -= part;
            }
            let words = Words::map(&file).map_err(fail)?;
            let ring = Ring { words, path: path.clone(), rate, taken: Mutex::default(), _file: file };
            ring.begin(name);
            std::fs::rename(&making, &path).map_err(fail)?;
            Ok(ring)
        })();
        if ring.is_err() {
            let _ = std::fs::remove_file(&making);
        }
        ring
    }

    fn begin(&self, name: &str) {
        let all = self.words.all();
        let set = |at: usize, value: u64| all[at].store(value, Ordering::Relaxed);
        set(AT_VERSION, VERSION);
        set(AT_WORDS, ALL as u64);
        set(AT_PID, std::process::id().into());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        set(AT_BEGAN, now.map_or(0, |d| d.as_nanos() as u64));
        set(AT_TICK, self.rate.seconds_per_tick().to_bits());
        let program = std::env::current_exe().ok();
        let program = program.as_ref().and_then(|path| path.file_name()?.to_str()).unwrap_or_default();
        let texts = [(AT_NAME, name), (AT_PROGRAM, program)];
        for (at, text) in texts {
            words_of(text, NAME_WORDS).enumerate().for_each(|(i, word)| set(at + i, word));
        }
        all[AT_MAGIC].store(MAGIC, Ordering::Release);
    }

    /// A run that began at this tick and took so many.
    #[inline]
    pub(super) fn push(&self, start: u64, ticks: u64, block: u64) {
        let all = self.words.all();
        let (Some(head), Some(slots)) = (all.get(AT_RUNS), all.get(AT_SLOTS..ALL)) else { return };
        let number = head.fetch_add(1, Ordering::Relaxed);
        // Whoever sees what is written below also sees that the number was taken.
        fence(Ordering::Release);
        let at = (number as usize % SLOTS) * SLOT;
        let Some([whole, begin, length, session]) = slots.get(at..at + SLOT) else { return };
        begin.store(start, Ordering::Relaxed);
        length.store(ticks, Ordering::Relaxed);
        session.store(block, Ordering::Relaxed);
        whole.store(number.wrapping_add(1), Ordering::Release);
    }

    /// A block for a session; none where all are taken.
    pub(super) fn take_block(&self) -> Option<usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let block = taken.iter().position(|taken| !taken)?;
        taken[block] = true;
        Some(block)
    }

    /// The session is gone.
    pub(super) fn free_block(&self, block: usize) {
        self.write(block, |words| words[IN_TEXT_BYTES].store(0, Ordering::Relaxed));
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = taken.get_mut(block) {
            *taken = false;
        }
    }

    /// What a session runs.
    pub(super) fn tell(&self, block: usize, facts: &Facts) {
        let text = facts.text(MOST_TEXT);
        self.write(block, |words| {
            words[IN_TEXT_BYTES].store(text.len() as u64, Ordering::Relaxed);
            for (to, word) in words[IN_TEXT..].iter().zip(words_of(&text, MOST_TEXT / 8)) {
                to.store(word, Ordering::Relaxed);
            }
            for word in &words[IN_WATCHED..IN_TEXT] {
                word.store(0, Ordering::Relaxed);
            }
        });
    }

    /// Where the time of its watched runs went, all of them together.
    pub(super) fn sum(&self, block: usize, runs: u64, outside: f64, seconds: &[f64]) {
        self.words.all()[AT_TICK].store(self.rate.seconds_per_tick().to_bits(), Ordering::Relaxed);
        let kept = seconds.len().min(MOST_PARTS);
        self.write(block, |words| {
            words[IN_WATCHED].store(runs, Ordering::Relaxed);
            let beyond: f64 = seconds[kept..].iter().sum();
            words[IN_OUTSIDE].store((outside + beyond).to_bits(), Ordering::Relaxed);
            words[IN_PARTS].store(kept as u64, Ordering::Relaxed);
            for (to, seconds) in words[IN_SECONDS..].iter().zip(&seconds[..kept]) {
                to.store(seconds.to_bits(), Ordering::Relaxed);
            }
        });
    }

    /// Writes a block under its sequence number.
    fn write(&self, block: usize, change: impl FnOnce(&[AtomicU64])) {
        let at = HEAD + block * BLOCK;
        let Some(words) = self.words.all().get(at..at + BLOCK).filter(|_| block < BLOCKS) else { return };
        let sequence = words[IN_SEQUENCE].load(Ordering::Relaxed) | 1;
        words[IN_SEQUENCE].store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        change(words);
        words[IN_SEQUENCE].store(sequence.wrapping_add(1), Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
