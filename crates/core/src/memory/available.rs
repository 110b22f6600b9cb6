//! How much memory this process could still take: the machine's free memory, or less if a limit applies.

use crate::error::{Error, Result};

/// Bytes that this process could still take now: what the machine can give without swapping, less where its container,
/// or a limit on its address space or data (`ulimit -v`, `ulimit -d`), leaves less.
pub fn available_bytes() -> Result<usize> {
    let why = |why| Error::Unavailable { what: "the memory that is free", why };
    ask().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)).map_err(why)
}

#[cfg(target_os = "linux")]
fn ask() -> Result<u64, String> {
    use super::budget::linux;
    let read = |file: &str| std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"));
    let machine = read("/proc/meminfo")?;
    let mut least = linux::kib_of(&machine, "MemAvailable:").ok_or("/proc/meminfo has no MemAvailable")?;
    let (status, limits) = (read("/proc/self/status")?, read("/proc/self/limits").unwrap_or_default());
    for (limit, taken) in [("Max address space", "VmSize:"), ("Max data size", "VmData:")] {
        if let (Some(limit), Some(taken)) = (soft_limit(&limits, limit), linux::kib_of(&status, taken)) {
            least = least.min(limit.saturating_sub(taken));
        }
    }
    for file in linux::limit_files(&read("/proc/self/cgroup").unwrap_or_default()) {
        let beside = |name: &str| std::fs::read_to_string(file.with_file_name(name)).ok();
        let Some(limit) = std::fs::read_to_string(&file).ok().and_then(|text| linux::limit(&text)) else { continue };
        let taken = beside("memory.current").or_else(|| beside("memory.usage_in_bytes"));
        let Some(taken) = taken.and_then(|text| linux::limit(&text)) else { continue };
        let cached = beside("memory.stat").and_then(|text| unused_cache(&text)).unwrap_or(0);
        least = least.min(limit.saturating_sub(taken.saturating_sub(cached)));
    }
    Ok(least)
}

#[cfg(target_os = "macos")]
fn ask() -> Result<u64, String> {
    let output = std::process::Command::new("/usr/bin/vm_stat").output().map_err(|e| format!("vm_stat: {e}"))?;
    free_pages(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| "vm_stat tells no free pages".into())
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn ask() -> Result<u64, String> {
    Err("this system is not asked yet".into())
}

/// The soft limit in bytes of a line of `/proc/self/limits`; `None` where it is unlimited.
#[cfg(any(target_os = "linux", test))]
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Bytes of files that a control group would give up for memory.
#[cfg(any(target_os = "linux", test))]
fn unused_cache(stat: &str) -> Option<u64> {
    let of = |key: &str| stat.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    of("total_inactive_file").or_else(|| of("inactive_file"))
}

/// Bytes that `vm_stat` calls free, speculative, or inactive.
#[cfg(any(target_os = "macos", test))]
fn free_pages(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("page size of ")?;
    let size: u64 = rest.split_whitespace().next()?.parse().ok()?;
    let pages = |key: &str| -> Option<u64> {
        text.lines().find_map(|l| l.strip_prefix(key))?.trim().trim_end_matches('.').parse().ok()
    };
    let more = pages("Pages inactive:").unwrap_or(0) + pages("Pages speculative:").unwrap_or(0);
    pages("Pages free:")?.checked_add(more)?.checked_mul(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_systems_write_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max data size             unlimited            unlimited            bytes     \n\
                      Max address space         409600000            unlimited            bytes     \n";
        assert_eq!(soft_limit(limits, "Max address space"), Some(409_600_000));
        assert_eq!(soft_limit(limits, "Max data size"), None);
        assert_eq!(unused_cache("file 9\ninactive_file 4096\n"), Some(4096));
        assert_eq!(unused_cache("inactive_file 1\ntotal_inactive_file 2\n"), Some(2));
        assert_eq!(unused_cache(""), None);
        let mac = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:               10.\n\
                   Pages active:             99.\nPages inactive:            5.\nPages speculative:         1.\n";
        assert_eq!(free_pages(mac), Some(16 * 16384));
        assert_eq!(free_pages("nothing"), None);
    }

    #[test]
    fn no_more_is_available_than_the_machine_has() {
        if let (Ok(available), Ok(all)) = (available_bytes(), super::super::machine_bytes()) {
            assert!(available > 0 && available <= all, "{available} of {all}");
        }
    }
}
