//! A limit on memory that several users share.
//!
//! A budget counts what its users say they take; it does not watch the allocator. What it promises is that the sum of
//! live reservations never exceeds the limit.
//!
//! The machine's memory is asked of the system without a dependency: Linux has text files for it, and macOS a tool
//! (`sysctl`) that is run once. Elsewhere the answer is an error, never a guess.

use super::lock;
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, OnceLock};

/// A shared limit; clones share it.
///
/// ```
/// # use schwann_core::memory::Budget;
/// let budget = Budget::bytes(1000);
/// let weights = budget.reserve(800, "weights")?;
/// assert!(budget.reserve(300, "activations").is_err());
/// drop(weights);
/// assert!(budget.reserve(300, "activations").is_ok());
/// assert_eq!((budget.stats().in_use, budget.stats().peak), (0, 800));
/// # Ok::<(), schwann_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: Option<usize>,
    use_: Mutex<Use>,
}

#[derive(Debug, Default)]
struct Use {
    now: usize,
    peak: usize,
}

/// A budget at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetStats {
    /// Bytes reserved.
    pub in_use: usize,
    /// The most bytes that were ever reserved at once.
    pub peak: usize,
    /// The limit, if there is one.
    pub limit: Option<usize>,
}

impl Default for Budget {
    /// What the machine has; no limit where that is not known.
    fn default() -> Budget {
        Budget::new(machine_bytes().ok())
    }
}

impl Budget {
    fn new(limit: Option<usize>) -> Budget {
        Budget(Arc::new(Inner { limit, use_: Mutex::default() }))
    }

    /// At most `limit` bytes.
    pub fn bytes(limit: usize) -> Budget {
        Budget::new(Some(limit))
    }

    /// At most this part of the machine's memory, or of the container's where that is less.
    pub fn fraction(part: f64) -> Result<Budget> {
        if !(part > 0.0 && part <= 1.0) {
            return Err(Error::Unavailable {
                what: "a budget",
                why: format!("{part} is no fraction of the memory; expected more than 0 and at most 1"),
            });
        }
        Ok(Budget::bytes((machine_bytes()? as f64 * part) as usize))
    }

    /// No limit; only counts.
    pub fn unlimited() -> Budget {
        Budget::new(None)
    }

    /// Takes `bytes` until the reservation is dropped; `what` is for the message if they are too many.
    pub fn reserve(&self, bytes: usize, what: &str) -> Result<Reservation> {
        let mut use_ = lock(&self.0.use_);
        let limit = self.0.limit.unwrap_or(usize::MAX);
        let Some(total) = use_.now.checked_add(bytes).filter(|&total| total <= limit) else {
            return Err(Error::Budget { what: what.into(), requested: bytes, in_use: use_.now, limit });
        };
        use_.now = total;
        use_.peak = use_.peak.max(total);
        Ok(Reservation { budget: self.clone(), bytes })
    }

    /// An error if this many bytes would not fit even into an unused budget.
    pub(crate) fn would_fit(&self, bytes: usize, what: &str) -> Result<()> {
        match self.0.limit {
            Some(limit) if bytes > limit => {
                Err(Error::Budget { what: what.into(), requested: bytes, in_use: self.stats().in_use, limit })
            }
            _ => Ok(()),
        }
    }

    /// Use, peak and limit, all of the same moment.
    pub fn stats(&self) -> BudgetStats {
        let use_ = lock(&self.0.use_);
        BudgetStats { in_use: use_.now, peak: use_.peak, limit: self.0.limit }
    }
}

/// Bytes taken from a budget, given back when this is dropped.
#[derive(Debug)]
#[must_use = "the bytes go back at once"]
pub struct Reservation {
    budget: Budget,
    bytes: usize,
}
impl Reservation {
    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.budget.0.use_).now -= self.bytes;
    }
}

/// Bytes of memory that this process may use: the machine's, or its container's where that is less.
pub fn machine_bytes() -> Result<usize> {
    static KNOWN: OnceLock<Result<usize, String>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| ask().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)));
    known.clone().map_err(|why| Error::Unavailable { what: "the machine's memory size", why })
}

#[cfg(target_os = "linux")]
fn ask() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|e| format!("/proc/meminfo: {e}"))?;
    let total = linux::kib_of(&text, "MemTotal:").ok_or("/proc/meminfo has no MemTotal")?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = linux::limit_files(&groups).into_iter();
    let limits = limits.filter_map(|file| linux::limit(&std::fs::read_to_string(file).ok()?));
    Ok(limits.fold(total, u64::min))
}

#[cfg(target_os = "macos")]
fn ask() -> Result<u64, String> {
    let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "hw.memsize"]).output();
    let output = output.map_err(|e| format!("sysctl hw.memsize: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| format!("sysctl hw.memsize answered {:?}", text.trim()))
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn ask() -> Result<u64, String> {
    Err("this system is not asked yet; give the budget in bytes".into())
}

/// Reading the kernel's text files; pure, so that every system tests it.
#[cfg(any(target_os = "linux", test))]
pub(super) mod linux {
    use std::path::PathBuf;

    /// The value in bytes of a line such as `MemTotal:  16318480 kB`.
    pub(in super::super) fn kib_of(text: &str, key: &str) -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// A control group's limit in bytes, if it has one.
    pub(in super::super) fn limit(text: &str) -> Option<u64> {
        // "max" is no limit. Version 1 has a number near 2⁶³ instead, which is more than any machine has.
        text.trim().parse().ok()
    }

    /// The files that may hold a limit for a process of these groups: its group's and every parent's.
    pub(in super::super) fn limit_files(groups: &str) -> Vec<PathBuf> {
        let mut files = vec![];
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
            let (root, file) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => continue,
            };
            let group = group.trim_start_matches('/');
            // A path with `..` lies outside what this container sees.
            let parts: Vec<&str> = group.split('/').filter(|p| !p.is_empty() && *p != "..").collect();
            for depth in (0..=parts.len()).rev() {
                files.push(PathBuf::from(root).join(parts[..depth].join("/")).join(file));
            }
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_under_threads() {
        let budget = Budget::bytes(100);
        std::thread::scope(|scope| {
            for t in 0..4 {
                let budget = budget.clone();
                scope.spawn(move || {
                    for i in 0..2000 {
                        let one = budget.reserve(20 + (i + t) % 30, "test");
                        let stats = budget.stats();
                        assert!(stats.in_use <= 100 && stats.peak <= 100 && stats.in_use <= stats.peak);
                        drop(one);
                    }
                });
            }
        });
        assert_eq!(budget.stats().in_use, 0);
        assert!(matches!(
            budget.reserve(101, "too much"),
            Err(Error::Budget { requested: 101, in_use: 0, limit: 100, .. })
        ));
        assert!(Budget::unlimited().reserve(usize::MAX, "").is_ok());
    }

    #[test]
    fn fractions_of_the_machine_are_known_here() {
        for part in [0.0, -1.0, 1.5, f64::NAN] {
            assert!(Budget::fraction(part).unwrap_err().to_string().contains("no fraction"), "{part}");
        }
        if cfg!(any(target_os = "linux", target_os = "macos")) {
            let whole = machine_bytes().unwrap();
            assert!(whole > 64 << 20, "{whole}");
            assert_eq!(Budget::fraction(0.5).unwrap().stats().limit, Some((whole as f64 * 0.5) as usize));
        }
    }

    #[test]
    fn kernel_files_are_read() {
        assert_eq!(linux::kib_of("MemFree: 1 kB\nMemTotal:       2048 kB\n", "MemTotal:"), Some(2 << 20));
        assert_eq!(linux::kib_of("MemTotal: x kB", "MemTotal:"), None);
        assert_eq!((linux::limit("max\n"), linux::limit("1048576\n")), (None, Some(1 << 20)));
        let files = linux::limit_files("4:cpu,memory:/a/b\n1:cpu:/x\n0::/../c\n");
        let files: Vec<_> = files.iter().map(|f| f.to_str().unwrap()).collect();
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
    }
}
