//! Where a calibration is kept: one file a machine, in the user's data directory, written whole or not at all. One process
//! at a time measures; others wait for it and take what it found.

use super::calibrate::{Calibration, Fingerprint, Pace, VERSION};
use super::{Error, Progress, Result};
use crate::place;
use schwann_core::io;
use schwann_kernels::Isa;
use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A calibration's file beyond this is none.
const MOST_BYTES: u64 = 4 << 20;

/// A calibration that was disturbed is repeated until there were so many.
const MOST_ATTEMPTS: u32 = 3;

/// What is told while another process measures.
pub const WAITING: &str = "another process is calibrating this machine; waiting for it";
/// After this, whoever holds the lock is taken to have stopped.
const MOST_WAIT: Duration = Duration::from_secs(120);

/// The right to measure, which one process has at a time; given back when dropped.
struct Lock {
    path: PathBuf,
    /// Holds the lock for as long as it is open.
    _file: File,
    /// Whether another process had it before.
    waited: bool,
}

impl Lock {
    /// Waits for it; `None` where files cannot be written or locked there, or whoever has it does not end.
    fn take(dir: &Path, fingerprint: &Fingerprint, tell: &mut dyn FnMut(Progress)) -> Option<Lock> {
        fs::create_dir_all(dir).ok()?;
        let path = dir.join(format!("calibration-{}.lock", fingerprint.hash()));
        let file = File::options().create(true).truncate(false).write(true).open(&path).ok()?;
        let began = Instant::now();
        let mut waited = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Some(Lock { path, _file: file, waited }),
                Err(TryLockError::WouldBlock) if began.elapsed() < MOST_WAIT => {}
                Err(_) => return None,
            }
            if !waited {
                tell(Progress::new(WAITING));
            }
            waited = true;
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Whoever waits has the file open, looks for a calibration before measuring, and does not miss the name.
        let _ = fs::remove_file(&self.path);
    }
}

/// The directory for the program's own data: `SCHWANN_DATA`, or `schwann` in `XDG_DATA_HOME`, in macOS's
/// `Library/Application Support`, or in `~/.local/share`.
pub fn data_dir() -> Result<PathBuf> {
    let why = "nothing says where the user's home is; set SCHWANN_DATA to a directory";
    place::data_dir().ok_or_else(|| Error::NoDirectory(why.into()))
}

/// How a calibration was come by.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// Read from a file.
    Stored(PathBuf),
    /// Measured now.
    Measured {
        /// Where it was saved, or why it was not.
        saved: Result<PathBuf, String>,
        /// Why a file that was there was not used, and where it is now.
        instead: Option<String>,
    },
}

impl Calibration {
    /// The file of this machine's calibration in a directory.
    pub fn file(dir: &Path, fingerprint: &Fingerprint) -> PathBuf {
        dir.join(format!("calibration-{}.json", fingerprint.hash()))
    }

    /// This machine's calibration from a directory; `None` where it has none. A file that is corrupt, newer than this
    /// program or of another machine is an error.
    pub fn load(dir: &Path, fingerprint: &Fingerprint) -> Result<Option<Calibration>> {
        let path = Calibration::file(dir, fingerprint);
        let fail = |source| Error::File { action: "read", path: path.clone(), source };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(fail(e)),
        };
        let refuse = |problem: String, advice: &str| {
            Err(Error::Calibration { file: path.clone(), problem, advice: advice.into() })
        };
        let again = "`schwann devices calibrate` measures anew and keeps the old file beside it";
        let mut bytes = vec![];
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > MOST_BYTES {
            return refuse(format!("more than {MOST_BYTES} bytes are no calibration"), again);
        }
        let Ok(text) = String::from_utf8(bytes) else { return refuse("is not text".into(), again) };
        #[derive(serde::Deserialize)]
        struct Versioned {
            version: u32,
        }
        match serde_json::from_str::<Versioned>(&text) {
            Ok(v) if v.version > VERSION => {
                let problem = format!("is of version {}, and this program reads up to {VERSION}", v.version);
                return refuse(problem, "use a newer program, or measure anew with `schwann devices calibrate`");
            }
            Ok(_) => {}
            Err(e) => return refuse(format!("is no calibration ({e})"), again),
        }
        let found: Calibration = match serde_json::from_str(&text) {
            Ok(found) => found,
            Err(e) => return refuse(format!("is no calibration ({e})"), again),
        };
        if let Err(problem) = found.sound() {
            return refuse(problem, again);
        }
        let differences = found.fingerprint.differences(fingerprint);
        if !differences.is_empty() {
            return refuse(format!("was measured on another machine: {}", differences.join(", ")), again);
        }
        Ok(Some(found))
    }

    /// Whether its numbers can be calculated with.
    fn sound(&self) -> Result<(), String> {
        if self.limits.is_empty() || self.lanes == 0 || self.panel == 0 {
            return Err("has no limits or registers".into());
        }
        let rates = self.limits.iter().flat_map(|l| {
            let levels = l.levels.iter().map(|level| level.bytes_per_s());
            [l.flops_per_s, l.functions_per_s].into_iter().chain(levels)
        });
        if let Some(rate) = rates.into_iter().find(|r| !(r.is_finite() && *r > 0.0)) {
            return Err(format!("has a rate of {rate}"));
        }
        match self.prices.iter().find(|(_, p)| !(p.is_finite() && **p >= 0.0)) {
            Some((unit, price)) => Err(format!("has a price of {price} for {unit:?}")),
            None => Ok(()),
        }
    }

    /// Writes it to its file in a directory, whole or not at all, and says where.
    pub fn save(&self, dir: &Path) -> Result<PathBuf> {
        let path = Calibration::file(dir, &self.fingerprint);
        let fail = |source| Error::File { action: "write", path: path.clone(), source };
        fs::create_dir_all(dir).map_err(fail)?;
        let text = serde_json::to_string_pretty(self).map_err(|e| fail(e.into()))?;
        io::write_text(&path, &(text + "\n")).map_err(|e| match e {
            schwann_core::Error::Io { source, .. } => fail(source),
            other => fail(std::io::Error::other(other)),
        })?;
        Ok(path)
    }

    /// The stored calibration of this machine, or one measured now and stored. What cannot be read is kept under another
    /// name; what cannot be written is used all the same, and the origin says so. Without a directory, nothing is stored.
    /// One that was disturbed, or had too little memory, is measured again.
    pub fn load_or_measure(
        dir: Option<&Path>,
        isa: Isa,
        pace: Pace,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<(Calibration, Origin)> {
        let fingerprint = Fingerprint::of(isa);
        let stored =
            |found| (found, Origin::Stored(dir.map(|d| Calibration::file(d, &fingerprint)).unwrap_or_default()));
        let look = || dir.map_or(Ok(None), |dir| Calibration::load(dir, &fingerprint));
        let mut found = look();
        if let Ok(Some(good)) = &found
            && good.again().is_none()
        {
            return Ok(stored(good.clone()));
        }
        let lock = dir.and_then(|dir| Lock::take(dir, &fingerprint, tell));
        if lock.as_ref().is_some_and(|l| l.waited) {
            // What another process measured just now is as good as it gets.
            found = look();
            if let Ok(Some(new)) = found {
                return Ok(stored(new));
            }
        }
        let mut measured = Calibration::measure(isa, pace, tell)?;
        let unusable = match found {
            Ok(Some(old)) => {
                measured = measured.better(old);
                None
            }
            Ok(None) => None,
            Err(e) => Some(e.to_string()),
        };
        let origin = measured.store(dir, unusable);
        Ok((measured, origin))
    }

    /// Measures this machine now, whatever is stored, and stores it.
    pub fn measure_anew(
        dir: Option<&Path>,
        isa: Isa,
        pace: Pace,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<(Calibration, Origin)> {
        let fingerprint = Fingerprint::of(isa);
        let _lock = dir.and_then(|dir| Lock::take(dir, &fingerprint, tell));
        let unusable = dir.and_then(|dir| Calibration::load(dir, &fingerprint).err()).map(|e| e.to_string());
        let measured = Calibration::measure(isa, pace, tell)?;
        let origin = measured.store(dir, unusable);
        Ok((measured, origin))
    }

    /// Why it should be measured again, where it should.
    pub fn again(&self) -> Option<String> {
        if self.pace == Pace::Quick {
            return None;
        }
        let doubts = self.conditions.doubts();
        if !doubts.is_empty() && self.conditions.attempts < MOST_ATTEMPTS {
            return Some(format!("it was disturbed: {}", doubts.join("; ")));
        }
        let fewer = self.limits.iter().find(|l| {
            let (_, now) = super::levels::places(&super::cpu::caches(), l.threads, super::levels::allowance());
            now.len() < l.left_out.len()
        });
        fewer.map(|_| "more memory can be spared now than when it was made".into())
    }

    /// The less disturbed of this one and an older one that was to be repeated.
    fn better(mut self, mut old: Calibration) -> Calibration {
        let attempts = old.conditions.attempts + 1;
        let complete = |c: &Calibration| c.limits.iter().map(|l| l.left_out.len()).sum::<usize>();
        let keep_old =
            complete(&old) <= complete(&self) && old.conditions.disturbance() < self.conditions.disturbance();
        old.conditions.attempts = attempts;
        self.conditions.attempts = attempts;
        if keep_old { old } else { self }
    }

    /// Saves it as [`Calibration::load_or_measure`] does; `unusable` is why the file that is there cannot be read.
    pub fn store(&self, dir: Option<&Path>, unusable: Option<String>) -> Origin {
        let Some(dir) = dir else {
            return Origin::Measured { saved: Err("there is no directory for data".into()), instead: unusable };
        };
        let path = Calibration::file(dir, &self.fingerprint);
        let mut instead = None;
        if let Some(why) = unusable {
            let aside = path.with_extension(format!("json.{}.old", self.created_unix_s));
            match fs::rename(&path, &aside) {
                Ok(()) => instead = Some(format!("{why}; it is kept as {}", aside.display())),
                Err(e) => {
                    let saved = Err(format!("{} is in the way and cannot be renamed: {e}", path.display()));
                    return Origin::Measured { saved, instead: Some(why) };
                }
            }
        }
        Origin::Measured { saved: self.save(dir).map_err(|e| e.to_string()), instead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::calibrate::tests::made_up;

    /// A directory of its own, removed at the end.
    struct Dir(PathBuf);
    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("schwann-store-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }
    }
    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_saved_is_loaded_and_leaves_no_other_file() {
        let dir = Dir::new("round");
        let made = made_up();
        assert_eq!(Calibration::load(&dir.0, &made.fingerprint).unwrap(), None);
        made.save(&dir.0).unwrap();
        assert_eq!(Calibration::load(&dir.0, &made.fingerprint).unwrap(), Some(made));
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1);
    }

    #[test]
    fn another_machines_calibration_is_refused() {
        let dir = Dir::new("other");
        let made = made_up();
        let mut here = made.fingerprint.clone();
        here.cpu = "another".into();
        // A file that was copied to this machine's name.
        fs::rename(made.save(&dir.0).unwrap(), Calibration::file(&dir.0, &here)).unwrap();
        let error = Calibration::load(&dir.0, &here).unwrap_err().to_string();
        assert!(error.contains("another machine") && error.contains("made up instead of another"), "{error}");
    }

    #[test]
    fn a_corrupt_or_newer_file_is_refused_with_advice_and_kept() {
        let dir = Dir::new("corrupt");
        let made = made_up();
        let path = Calibration::file(&dir.0, &made.fingerprint);
        for (text, word) in
            [("{ not json", "no calibration"), ("{\"version\": 999}", "version 999"), ("{}", "no calibration")]
        {
            fs::write(&path, text).unwrap();
            let error = Calibration::load(&dir.0, &made.fingerprint).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("schwann devices calibrate"), "{error}");
            let Origin::Measured { saved: Ok(_), instead: Some(instead) } = made.store(Some(&dir.0), Some(error))
            else {
                panic!("it was to be saved, and the old file kept");
            };
            let kept = dir.0.join(instead.rsplit_once('/').unwrap().1);
            assert_eq!(fs::read_to_string(&kept).unwrap(), text, "{instead}");
            assert!(Calibration::load(&dir.0, &made.fingerprint).unwrap().is_some());
            fs::remove_file(kept).unwrap();
        }
        let mut wrong = made.clone();
        wrong.limits[0].flops_per_s = 0.0;
        wrong.save(&dir.0).unwrap();
        assert!(Calibration::load(&dir.0, &made.fingerprint).unwrap_err().to_string().contains("a rate of 0"));
    }

    #[test]
    fn a_disturbed_calibration_is_repeated_a_few_times_and_the_better_one_kept() {
        let mut disturbed = made_up();
        disturbed.pace = Pace::Full;
        assert_eq!(disturbed.again(), None, "it was quiet");
        disturbed.conditions.others = Some(0.7);
        assert!(disturbed.again().is_some_and(|why| why.contains("70% of the cores")));
        let mut worse = disturbed.clone();
        worse.conditions.others = Some(0.9);
        let kept = worse.clone().better(disturbed.clone());
        assert_eq!((kept.conditions.others, kept.conditions.attempts), (Some(0.7), 2));
        let kept = disturbed.clone().better(worse);
        assert_eq!((kept.conditions.others, kept.conditions.attempts), (Some(0.7), 2));
        disturbed.conditions.attempts = MOST_ATTEMPTS;
        assert_eq!(disturbed.again(), None, "a machine that is never quiet is not measured for ever");
    }

    #[test]
    fn what_lacked_memory_is_repeated_when_there_is_some() {
        let mut small = made_up();
        small.pace = Pace::Full;
        small.limits[0].left_out = vec!["one".into(), "two".into(), "three".into(), "four".into(), "five".into()];
        assert!(small.again().is_some_and(|why| why.contains("memory")));
    }

    #[test]
    fn one_measures_while_others_wait_and_take_what_it_found() {
        let dir = Dir::new("lock");
        let made = made_up();
        let held = Lock::take(&dir.0, &made.fingerprint, &mut |_| {}).unwrap();
        assert!(!held.waited);
        let mut told = vec![];
        std::thread::scope(|scope| {
            let other =
                scope.spawn(|| Lock::take(&dir.0, &made.fingerprint, &mut |p| told.push(p.what)).unwrap().waited);
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
            assert!(other.join().unwrap());
        });
        assert_eq!(told, [WAITING]);
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0, "the lock's file is gone");
    }

    #[test]
    fn a_directory_that_cannot_be_written_leaves_the_calibration_usable() {
        let dir = Dir::new("readonly");
        // A file where the directory should be: refused for every user, root too.
        let place = dir.0.join("file");
        fs::write(&place, "").unwrap();
        let made = made_up();
        let Origin::Measured { saved: Err(why), .. } = made.store(Some(&place), None) else { panic!("saved?") };
        assert!(why.contains("cannot write") && why.contains("file"), "{why}");
    }
}
