//! What the operating system counts for this process, by `getrusage`.

/// Counts since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Page faults that needed no disk.
    pub minor_faults: u64,
    /// Page faults that read a disk.
    pub major_faults: u64,
    /// Times a thread waited.
    pub voluntary_switches: u64,
    /// Times a thread was put aside.
    pub involuntary_switches: u64,
    /// CPU time in user code, all threads.
    pub user_s: f64,
    /// CPU time in the kernel, all threads.
    pub system_s: f64,
    /// Most bytes resident at once.
    pub rss_peak: u64,
}

impl Usage {
    /// The step of the CPU times.
    pub const RESOLUTION_S: f64 = 1e-6;

    /// Page faults of both kinds.
    pub fn faults(&self) -> u64 {
        self.minor_faults + self.major_faults
    }

    /// Context switches of both kinds.
    pub fn switches(&self) -> u64 {
        self.voluntary_switches + self.involuntary_switches
    }

    /// User and kernel time.
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }
}

/// What this process has used, or why that is not known.
#[cfg(unix)]
pub fn usage() -> Result<Usage, String> {
    let mut raw = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `raw` is a writable `rusage`, which the call fills; all-zero bytes are a valid one.
    let raw = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, raw.as_mut_ptr()) != 0 {
            return Err(format!("getrusage failed: {}", std::io::Error::last_os_error()));
        }
        raw.assume_init()
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    // Linux counts kibibytes where macOS counts bytes.
    let peak_unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
    Ok(Usage {
        minor_faults: raw.ru_minflt as u64,
        major_faults: raw.ru_majflt as u64,
        voluntary_switches: raw.ru_nvcsw as u64,
        involuntary_switches: raw.ru_nivcsw as u64,
        user_s: seconds(raw.ru_utime),
        system_s: seconds(raw.ru_stime),
        rss_peak: raw.ru_maxrss as u64 * peak_unit,
    })
}

/// What this process has used, or why that is not known.
#[cfg(not(unix))]
pub fn usage() -> Result<Usage, String> {
    Err("this system has no getrusage, and nothing else is read here yet".into())
}
