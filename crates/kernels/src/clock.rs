//! The processor's own tick counter, for intervals of nanoseconds.
//!
//! Asking the system for the time costs some tens of nanoseconds, as much as a small kernel call. The counter of ticks
//! costs a fraction of that and runs at one rate on all cores of the machines we know (an invariant TSC on x86-64, the
//! generic timer on AArch64). Code that needs seconds measures the length of a tick against the system's clock:
//! [`Rate`].

use std::time::Instant;

/// The counter now; on other machines than x86-64 and AArch64, nanoseconds of the system's clock.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reading the time-stamp counter touches no memory; user programs may, on every system we run on.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads a register that user programs may read; touches neither memory nor flags.
        unsafe {
            std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags));
        }
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// What [`ticks`] reads, for people.
pub const NAME: &str = if cfg!(target_arch = "x86_64") {
    "time-stamp counter"
} else if cfg!(target_arch = "aarch64") {
    "CNTVCT_EL0"
} else {
    "system clock"
};

/// The counter's rate, measured from [`Rate::start`] until it is asked for; the longer that is, the more exact it is.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    started: Instant,
    ticks: u64,
}

impl Rate {
    /// Starts to measure.
    pub fn start() -> Rate {
        Rate { started: Instant::now(), ticks: ticks() }
    }

    /// Seconds of one tick. Waits until ten milliseconds have passed, so that a delay between the two readings matters
    /// little.
    pub fn seconds_per_tick(&self) -> f64 {
        loop {
            let (seconds, ticks) = (self.started.elapsed().as_secs_f64(), ticks().saturating_sub(self.ticks));
            if seconds >= 0.01 && ticks > 0 {
                return seconds / ticks as f64;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_forward_and_two_measurements_of_their_rate_agree() {
        let first = ticks();
        let rates = [(); 2].map(|()| Rate::start().seconds_per_tick());
        assert!(ticks() > first);
        // A wide margin, because a busy machine may suspend this thread between its two readings.
        let ratio = rates[0] / rates[1];
        assert!((0.5..2.0).contains(&ratio), "{rates:?}");
    }
}
