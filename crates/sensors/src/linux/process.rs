//! This process by `/proc/self/status`.

use super::Root;
use crate::{Process, ProcessStatus};

/// What `/proc/self/status` says.
pub fn parse_status(text: &str) -> ProcessStatus {
    let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    let kibibytes = |name: &str| field(name)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024);
    ProcessStatus {
        rss: kibibytes("VmRSS"),
        rss_peak: kibibytes("VmHWM"),
        threads: field("Threads").and_then(|t| t.trim().parse().ok()),
    }
}

/// What the system says of any process.
pub(crate) fn status_of(pid: u32) -> Result<ProcessStatus, String> {
    Root::system().text(&format!("proc/{pid}/status")).map(|text| parse_status(&text))
}

/// The source of this process; below another root than the machine's, `getrusage` says nothing of what was recorded
/// there.
pub fn source(root: Root) -> Process {
    let here = root.is_system();
    Process::from_parts(
        "/proc/self/status",
        move || root.text("proc/self/status").map(|t| parse_status(&t)),
        move || if here { crate::usage() } else { Err("getrusage is of this machine, and the files are not".into()) },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read_in_bytes_and_what_is_missing_stays_unknown() {
        let text = "Name:\tcat\nVmPeak:\t    3060 kB\nVmHWM:\t    1740 kB\nVmRSS:\t    1736 kB\nThreads:\t3\n";
        let status = parse_status(text);
        assert_eq!((status.rss, status.rss_peak, status.threads), (Some(1736 * 1024), Some(1740 * 1024), Some(3)));
        for bad in
            ["", "VmRSS", "VmRSS:\t-4 kB\n", "VmRSS:\t99999999999999999999 kB\n", "VmRSS:\t18446744073709551615 kB"]
        {
            assert_eq!(parse_status(bad), ProcessStatus::default(), "{bad:?}");
        }
    }
}
