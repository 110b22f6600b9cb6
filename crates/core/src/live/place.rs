//! Where rings are: a folder that only this user can enter.

use super::{Error, Result};
use schwann_kernels::shared::user;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What rings' files end with, and those that are being made.
pub(super) const RING: &str = ".ring";
pub(super) const MAKING: &str = ".making";
/// Nobody takes so long to make one.
const MAKING_TIME: Duration = Duration::from_secs(60);
/// More files than this in the folder are not looked at.
const MOST_FILES: usize = 4096;

/// The folders in which rings may be, the best first. The runtime directory and `/dev/shm` are in memory: no disk can be
/// too full or too slow for them.
fn folders() -> Vec<PathBuf> {
    let own = format!("schwann-{}", user());
    let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let shared = Path::new("/dev/shm");
    let mut all: Vec<PathBuf> = set.map(|dir| dir.join("schwann")).into_iter().collect();
    if shared.is_dir() {
        all.push(shared.join(&own));
    }
    all.push(std::env::temp_dir().join(own));
    all
}

/// What speaks against a folder: somebody else could put a file there.
fn unsafe_because(folder: &Path) -> Option<String> {
    let about = match fs::symlink_metadata(folder) {
        Ok(about) => about,
        Err(e) => return Some(e.to_string()),
    };
    if !about.is_dir() {
        return Some("it is no folder".into());
    }
    if about.uid() != user() {
        return Some(format!("it belongs to user {}, and this is user {}", about.uid(), user()));
    }
    (about.mode() & 0o077 != 0).then(|| "other users may enter it; expected mode 0700".into())
}

/// A folder to put a ring into.
pub(super) fn folder() -> Result<PathBuf> {
    let mut problems = vec![];
    for folder in folders() {
        let made = DirBuilder::new().mode(0o700).create(&folder);
        let problem = match made {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Some(e.to_string()),
            _ => unsafe_because(&folder),
        };
        match problem {
            None => return Ok(folder),
            Some(problem) => problems.push(format!("{}: {problem}", folder.display())),
        }
    }
    Err(Error::Folder { problem: problems.join("; ") })
}

/// A program that can be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it calls itself.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its ring.
    pub path: PathBuf,
}

/// Whether somebody holds a file locked: a ring's program does while it lives, however it ends.
pub(super) fn is_held(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => {
            let _ = file.unlock();
            false
        }
        Err(TryLockError::WouldBlock) => true,
        // Where nobody can say, nothing is taken for dead.
        Err(TryLockError::Error(_)) => true,
    }
}

/// Removes a file that nobody holds any more.
fn remove_if_dead(path: &Path) -> bool {
    let dead = File::open(path).is_ok_and(|file| file.metadata().is_ok_and(|m| m.is_file()) && !is_held(&file));
    dead && fs::remove_file(path).is_ok()
}

/// Every program of this user that can be watched now. Rings of programs that have ended are removed.
pub fn found() -> Vec<Found> {
    let mut all: Vec<Found> = vec![];
    for folder in folders().into_iter().filter(|folder| unsafe_because(folder).is_none()) {
        let Ok(files) = fs::read_dir(&folder) else { continue };
        for file in files.take(MOST_FILES).flatten() {
            let path = file.path();
            // What is no plain file is none of ours; opening some kinds would wait for somebody.
            if !fs::symlink_metadata(&path).is_ok_and(|m| m.is_file()) {
                continue;
            }
            let name = file.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(MAKING) {
                let age = file.metadata().and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
                if age.is_some_and(|age| age > MAKING_TIME) {
                    remove_if_dead(&path);
                }
                continue;
            }
            let Some((name, pid)) = name.strip_suffix(RING).and_then(|rest| rest.rsplit_once('.')) else { continue };
            // One process may open several doors of one name.
            let Some(pid) = pid.split('-').next().and_then(|pid| pid.parse().ok()) else { continue };
            if !remove_if_dead(&path) && !all.iter().any(|f| f.path == path) {
                all.push(Found { name: name.to_owned(), pid, path });
            }
        }
    }
    all.sort_by(|a, b| (&a.name, a.pid, &a.path).cmp(&(&b.name, b.pid, &b.path)));
    all
}

/// The one program of this name or process number.
pub(super) fn one(who: &str) -> Result<Found> {
    let all = found();
    let wanted: Vec<&Found> = all.iter().filter(|f| f.name == who || f.pid.to_string() == who).collect();
    if let [one] = wanted[..] {
        return Ok(one.clone());
    }
    let list = |of: &[&Found]| {
        let each = of.iter().take(20).map(|f| format!("{} (process {})", f.name, f.pid));
        each.collect::<Vec<_>>().join(", ")
    };
    let who = crate::show::line(who);
    let problem = match wanted[..] {
        [_, ..] => format!("several programs are called `{who}`: {}; give the process number", list(&wanted)),
        [] => match somebody_elses(&who) {
            Some(why) => why,
            None if all.is_empty() => format!(
                "no program called `{who}` can be watched, and no other: a program opens its door with \
                 `schwann::live::open(\"NAME\")?` and `session.watch(&door)`"
            ),
            None => {
                format!("no program called `{who}` can be watched; there are {}", list(&all.iter().collect::<Vec<_>>()))
            }
        },
    };
    Err(Error::Nobody { problem })
}

/// Why a process that there is cannot be watched.
fn somebody_elses(who: &str) -> Option<String> {
    let pid: u32 = who.parse().ok()?;
    let owner = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    Some(match owner == user() {
        true => format!(
            "process {pid} has not opened its door: `schwann::live::open(\"NAME\")?` and `session.watch(&door)` in the \
             program do so"
        ),
        false => format!("process {pid} belongs to user {owner}; only one's own programs can be watched"),
    })
}
