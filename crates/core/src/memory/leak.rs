//! Memory that is taken and never given back.
//!
//! A single comparison with a baseline is right for exact counts (a pool, a budget). The process' resident size is not
//! exact: allocators keep pages, and other threads come and go. A watch therefore takes repeated samples and alarms only
//! when the *least* of the last k is above the baseline by more than the tolerance, and the median slope between
//! samples is upward: one high reading is no alarm, and neither is a size that rose once and stays.

use super::budget::Budget;
use super::pool::Pool;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::fmt;

/// Something whose use of memory can be read.
pub trait Usage {
    /// Bytes in use now.
    fn bytes(&self) -> Result<usize>;
}
impl Usage for Pool {
    /// Bytes lent; what is kept for later is no leak.
    fn bytes(&self) -> Result<usize> {
        Ok(self.stats().lent_bytes)
    }
}
impl Usage for Budget {
    fn bytes(&self) -> Result<usize> {
        Ok(self.stats().in_use)
    }
}
impl<F: Fn() -> usize> Usage for F {
    fn bytes(&self) -> Result<usize> {
        Ok(self())
    }
}

/// This process' memory in RAM, on systems that report it (Linux for now).
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessMemory;
impl Usage for ProcessMemory {
    fn bytes(&self) -> Result<usize> {
        let unavailable = |why: String| Error::Unavailable { what: "this process' memory", why };
        resident().map_err(unavailable)
    }
}

#[cfg(target_os = "linux")]
fn resident() -> Result<usize, String> {
    // `statm` counts in pages, whose size would take another call; `status` says it in kB.
    let text = std::fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let bytes = super::budget::linux::kib_of(&text, "VmRSS:").ok_or("/proc/self/status has no VmRSS")?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}
#[cfg(not(target_os = "linux"))]
fn resident() -> Result<usize, String> {
    Err("it is read on Linux only for now; watch a pool or a budget".into())
}

/// A comparison with the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeakReport {
    /// Bytes at the baseline.
    pub baseline: usize,
    /// Bytes now; of a watch, the least of its last samples.
    pub current: usize,
    /// The difference.
    pub growth: i64,
    /// The median growth from sample to sample; of a watch with two samples or more.
    pub per_sample: Option<f64>,
    /// Whether this is an alarm.
    pub leaking: bool,
}

/// Compares use with a baseline.
///
/// ```
/// # use schwann_core::memory::{LeakDetector, Pool};
/// let pool = Pool::default();
/// let mut detector = LeakDetector::of(pool.clone(), 1024);
/// detector.set_baseline()?;
/// pool.with(4096, |_| ())?;
/// assert!(!detector.check()?.leaking);
/// std::mem::forget(pool.get(4096)?);
/// assert_eq!(detector.check()?.growth, 4096);
/// # Ok::<(), schwann_core::Error>(())
/// ```
pub struct LeakDetector {
    usage: Box<dyn Usage + Send>,
    tolerance: usize,
    baseline: Option<usize>,
    /// How many samples a growth must persist.
    window: usize,
    samples: VecDeque<usize>,
}

impl LeakDetector {
    /// Watches this process; growth up to `tolerance_bytes` is no leak.
    pub fn new(tolerance_bytes: usize) -> LeakDetector {
        LeakDetector::of(ProcessMemory, tolerance_bytes)
    }

    /// Watches something else: a pool, a budget, or what a closure says.
    pub fn of(usage: impl Usage + Send + 'static, tolerance_bytes: usize) -> LeakDetector {
        let usage = Box::new(usage);
        LeakDetector { usage, tolerance: tolerance_bytes, baseline: None, window: 8, samples: VecDeque::new() }
    }

    /// Over how many samples a growth must persist before a watch alarms (at least 2; by default 8).
    pub fn window(mut self, samples: usize) -> LeakDetector {
        self.window = samples.max(2);
        self
    }

    /// Takes the present use as the baseline, and forgets former samples.
    pub fn set_baseline(&mut self) -> Result<usize> {
        let now = self.usage.bytes()?;
        self.baseline = Some(now);
        self.samples.clear();
        Ok(now)
    }

    /// Compares the present use with the baseline (which it becomes, if there is none).
    pub fn check(&mut self) -> Result<LeakReport> {
        let current = self.usage.bytes()?;
        let baseline = *self.baseline.get_or_insert(current);
        Ok(self.report(baseline, current, None))
    }

    /// Takes a sample and judges the last ones together, as the module's header says.
    pub fn watch(&mut self) -> Result<LeakReport> {
        let current = self.usage.bytes()?;
        let baseline = *self.baseline.get_or_insert(current);
        self.samples.push_back(current);
        while self.samples.len() > self.window {
            self.samples.pop_front();
        }
        let least = self.samples.iter().copied().min().unwrap_or(current);
        let slope = median_slope(self.samples.make_contiguous());
        let report = self.report(baseline, least, slope);
        let persists = self.samples.len() == self.window && slope.is_some_and(|s| s > 0.0);
        Ok(LeakReport { leaking: report.leaking && persists, ..report })
    }

    fn report(&self, baseline: usize, current: usize, per_sample: Option<f64>) -> LeakReport {
        let growth = (current as i64).saturating_sub(baseline as i64);
        let leaking = current.saturating_sub(baseline) > self.tolerance;
        LeakReport { baseline, current, growth, per_sample, leaking }
    }
}

/// The median of the slopes between all pairs of samples (Theil and Sen): a few wild samples do not move it.
fn median_slope(samples: &[usize]) -> Option<f64> {
    let mut slopes = vec![];
    for (i, &a) in samples.iter().enumerate() {
        for (j, &b) in samples.iter().enumerate().skip(i + 1) {
            slopes.push((b as f64 - a as f64) / (j - i) as f64);
        }
    }
    slopes.sort_by(f64::total_cmp);
    let middle = slopes.len() / 2;
    match slopes.len() {
        0 => None,
        n if n % 2 == 1 => Some(slopes[middle]),
        _ => Some((slopes[middle - 1] + slopes[middle]) / 2.0),
    }
}

impl fmt::Debug for LeakDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeakDetector")
            .field("tolerance", &self.tolerance)
            .field("baseline", &self.baseline)
            .field("samples", &self.samples)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn detector(window: usize, tolerance: usize) -> (Arc<AtomicUsize>, LeakDetector) {
        let level = Arc::new(AtomicUsize::new(1000));
        let source = level.clone();
        let mut detector = LeakDetector::of(move || source.load(Ordering::Relaxed), tolerance).window(window);
        detector.set_baseline().unwrap();
        (level, detector)
    }
    fn alarms(levels: &[usize]) -> Vec<bool> {
        let (level, mut detector) = detector(4, 100);
        let watch = |&l: &usize| {
            level.store(l, Ordering::Relaxed);
            detector.watch().unwrap().leaking
        };
        levels.iter().map(watch).collect()
    }

    #[test]
    fn a_watch_alarms_on_growth_that_persists_and_on_nothing_else() {
        assert_eq!(alarms(&[1000, 5000, 1000, 1000, 1000, 1000]), [false; 6], "one spike");
        assert_eq!(alarms(&[5000, 5000, 5000, 5000, 5000, 5000]), [false; 6], "rose once and stays");
        assert_eq!(alarms(&[1010, 1020, 1030, 1040, 1050, 1060]), [false; 6], "within the tolerance");
        assert_eq!(alarms(&[900, 800, 700, 600, 500, 400]), [false; 6], "shrinks");
        let steady = alarms(&[1200, 1400, 1600, 1800, 2000, 2200]);
        assert_eq!(steady, [false, false, false, true, true, true]);
        let noisy = alarms(&[1200, 1500, 1400, 1700, 1600, 1900]);
        assert_eq!(noisy[3..], [true; 3], "grows with noise");
    }

    #[test]
    fn a_check_compares_with_the_baseline() {
        let (level, mut detector) = detector(4, 100);
        level.store(1100, Ordering::Relaxed);
        assert!(!detector.check().unwrap().leaking);
        level.store(1101, Ordering::Relaxed);
        let report = detector.check().unwrap();
        assert_eq!((report.baseline, report.current, report.growth, report.leaking), (1000, 1101, 101, true));
        level.store(10, Ordering::Relaxed);
        assert_eq!(detector.check().unwrap().growth, -990);
    }
}
