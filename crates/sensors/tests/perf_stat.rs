//! Our counters beside `perf stat`'s, on the same work. Where the machine has no counters or no `perf`, it says so and
//! stops.
#![cfg(target_os = "linux")]
#![expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that is skipped says why; the inner run reports by printing"
)]

use schwann_sensors::Counters;
use std::process::Command;

const INNER: &str = "SCHWANN_SENSORS_INNER";

/// Some hundred million instructions, among them branches.
fn work() -> u64 {
    (0..100_000_000u64).fold(1, |x, i| std::hint::black_box(x ^ x.wrapping_mul(i | 1)))
}

#[test]
fn hardware_counters_agree_with_perf_stat() {
    let mut counters = Counters::open();
    counters.start();
    let inner = std::env::var_os(INNER).is_some();
    if inner {
        assert_ne!(work(), 0);
    }
    let readings = counters.stop();
    if inner {
        for name in ["instructions", "branches"] {
            println!("counted {name} {}", readings[name].value.unwrap_or(f64::NAN));
        }
        return;
    }
    if let Some(reason) = &readings["instructions"].reason {
        eprintln!("skipped: {reason}");
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x", ",", "-e", "instructions:u,branches:u"]).arg(this);
    perf.args(["--exact", "perf_stat::hardware_counters_agree_with_perf_stat", "--nocapture"]).env(INNER, "1");
    let Ok(output) = perf.output() else {
        eprintln!("skipped: `perf` is not installed");
        return;
    };
    let (ours, theirs) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for name in ["instructions", "branches"] {
        let counted =
            ours.lines().find_map(|l| l.split_once(&format!("counted {name} "))?.1.trim().parse::<f64>().ok());
        let stat = theirs.lines().find(|l| l.contains(name)).and_then(|l| l.split(',').next()?.parse::<f64>().ok());
        let (Some(counted), Some(stat)) = (counted, stat) else {
            eprintln!("skipped: perf stat did not count {name}: {theirs}");
            return;
        };
        // perf stat has the start of the process in it too.
        let difference = (stat - counted) / stat;
        assert!((-0.02..0.05).contains(&difference), "{name}: ours {counted}, perf stat {stat}");
        eprintln!("{name}: ours {counted}, perf stat {stat}: {:.2}% apart", 100.0 * difference);
    }
}
