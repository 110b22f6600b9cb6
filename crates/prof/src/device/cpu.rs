//! What the system says about its CPU. What it does not say is unavailable, with the reason, and never guessed.

use schwann_core::backend::{Backend, Choice};
use schwann_kernels::Isa;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// This machine's processor as something to run on: with an instruction set and some threads.
#[derive(Clone)]
pub struct Processor {
    isa: Isa,
    backend: Arc<dyn Backend>,
}

impl Processor {
    /// With an instruction set (the widest unless told) and threads (0 for one a core).
    pub fn new(isa: Option<Isa>, threads: usize) -> schwann_core::Result<Processor> {
        let isa = isa.unwrap_or_else(Isa::detect);
        Ok(Processor { isa, backend: Choice::default().variant(isa.name())?.make(threads)? })
    }

    /// Its instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Its threads.
    pub fn threads(&self) -> usize {
        self.backend.threads()
    }

    /// What runs programs on it.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }
}

impl std::fmt::Debug for Processor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Processor({}, {} threads)", self.isa, self.threads())
    }
}

/// A cache of data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u32,
    /// Its size.
    pub bytes: usize,
    /// How many logical CPUs share it; where known.
    pub shared_by: Option<usize>,
}

impl Cache {
    /// What so many threads on cores of their own have of it together: each core its own, or the caches that they share.
    /// Where nobody tells who shares it, the first level is a core's own and the others are counted once.
    pub fn capacity(&self, threads: usize) -> usize {
        let shared_by = self.shared_by.unwrap_or(if self.level == 1 { 1 } else { usize::MAX });
        self.bytes.saturating_mul(threads.max(1).div_ceil(shared_by.max(1)))
    }
}

/// The CPU's name.
pub fn name() -> Result<String, String> {
    if cfg!(target_os = "linux") {
        let text = read("/proc/cpuinfo")?;
        let line = text.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"));
        line.and_then(|l| l.split_once(':'))
            .map(|(_, name)| name.trim().to_owned())
            .ok_or_else(|| "/proc/cpuinfo has no model name".into())
    } else if cfg!(target_os = "macos") {
        sysctl("machdep.cpu.brand_string")
    } else {
        std::env::var("PROCESSOR_IDENTIFIER").map_err(|_| "this system is not asked yet".into())
    }
}

/// Logical CPUs that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Data caches, nearest first.
pub fn caches() -> Result<Vec<Cache>, String> {
    if cfg!(target_os = "linux") {
        linux_caches()
    } else if cfg!(target_os = "macos") {
        apple_caches(&|key| sysctl(key))
    } else {
        Err("this system is not asked yet".into())
    }
}

/// The fast cores' caches by `sysctl`: a first level each, and a second that the cores of a cluster share.
fn apple_caches(sysctl: &dyn Fn(&str) -> Result<String, String>) -> Result<Vec<Cache>, String> {
    let number = |key: &str| sysctl(key)?.parse::<usize>().map_err(|e| format!("{key}: {e}"));
    let one = |level, key: &str, shared_by| Ok::<_, String>(Cache { level, bytes: number(key)?, shared_by });
    Ok(vec![
        one(1, "hw.perflevel0.l1dcachesize", Some(1))?,
        one(2, "hw.perflevel0.l2cachesize", number("hw.perflevel0.cpusperl2").ok())?,
    ])
}

fn linux_caches() -> Result<Vec<Cache>, String> {
    let mut found = vec![];
    for index in 0..8 {
        let at = |file: &str| read(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}"));
        let Ok(kind) = at("type") else { break };
        if kind.trim() == "Instruction" {
            continue;
        }
        let level = at("level")?.trim().parse().map_err(|e| format!("cache level: {e}"))?;
        let bytes = size(at("size")?.trim()).ok_or("a cache's size does not read like 32K")?;
        let shared_by = at("shared_cpu_list").ok().and_then(|list| count_cpus(list.trim()));
        found.push(Cache { level, bytes, shared_by });
    }
    if found.is_empty() { Err("/sys/devices/system/cpu/cpu0/cache has no entry".into()) } else { Ok(found) }
}

/// `512K` or `32M` in bytes.
fn size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// How many CPUs a list such as `0-3,8` names.
fn count_cpus(list: &str) -> Option<usize> {
    let mut count = 0usize;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)?.checked_add(1)?;
    }
    Some(count)
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))
}

fn sysctl(key: &str) -> Result<String, String> {
    let out = std::process::Command::new("/usr/sbin/sysctl").args(["-n", key]).output();
    let out = out.map_err(|e| format!("sysctl: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    if out.status.success() && !text.is_empty() { Ok(text) } else { Err(format!("sysctl does not know {key}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_lists_read_as_the_kernel_writes_them() {
        assert_eq!(size("32K"), Some(32 << 10));
        assert_eq!(size("32768K"), Some(32 << 20));
        assert_eq!(size("1T"), None);
        assert_eq!(count_cpus("0-3,8"), Some(5));
        assert_eq!(count_cpus("3-1"), None);
    }

    #[test]
    fn a_cluster_shares_its_second_level() {
        let m1_max = |key: &str| {
            let known = [
                ("hw.perflevel0.l1dcachesize", "131072"),
                ("hw.perflevel0.l2cachesize", "12582912"),
                ("hw.perflevel0.cpusperl2", "4"),
            ];
            let found = known.iter().find(|(k, _)| *k == key).map(|(_, v)| (*v).to_owned());
            found.ok_or_else(|| format!("sysctl does not know {key}"))
        };
        let caches = apple_caches(&m1_max).unwrap();
        let capacity = |threads| [caches[0].capacity(threads), caches[1].capacity(threads)];
        assert_eq!(capacity(1), [128 << 10, 12 << 20]);
        assert_eq!(capacity(4), [512 << 10, 12 << 20]);
        assert_eq!(capacity(8), [1 << 20, 24 << 20]);
        let unknown = Cache { level: 2, bytes: 1 << 20, shared_by: None };
        assert_eq!(unknown.capacity(8), 1 << 20, "nobody tells who shares it: one for all");
    }
}
