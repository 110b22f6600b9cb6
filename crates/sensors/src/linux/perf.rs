//! Hardware counters of the own process by perf events.
//!
//! Counters whose ratio matters are opened as a pair that is always counted together, and the pairs take turns where
//! the CPU has too few registers: a group of all six would then never be counted at all. Every thread that exists gets
//! its own counters, which threads that it starts inherit. Counting leaves the kernel out, since that is what an
//! ordinary user is allowed; context switches happen in the kernel and need it in. What perf does not permit of page
//! faults, switches and CPU time, `getrusage` counts.
//!
//! On CPUs with cores of two kinds the kernel may count on one kind alone; then a counter has run for part of the time, and
//! is scaled up and says so, as where counters take turns.

use super::Root;
use crate::counters::{Counts, from_usage};
use crate::{Count, Counter, CounterSource};
use perf_event::events::{Hardware, Software};
use perf_event::{Builder, ReadFormat};
use std::io;

/// Counters that are counted together, the first one leading.
const GROUPS: [&[Counter]; 6] = [
    &[Counter::Cycles, Counter::Instructions],
    &[Counter::CacheReferences, Counter::CacheMisses],
    &[Counter::Branches, Counter::BranchMisses],
    &[Counter::PageFaults],
    &[Counter::ContextSwitches],
    &[Counter::TaskClock],
];

/// More threads than this get no counters of their own: files are limited, often to 1024 a process.
const THREADS: usize = 64;

struct Group {
    /// The first leads.
    members: Vec<(Counter, perf_event::Counter)>,
}

/// The counters of this process.
pub struct PerfCounters {
    groups: Vec<Group>,
    /// Of counters that could not be opened on any thread.
    reasons: std::collections::BTreeMap<Counter, String>,
    scope: String,
}

impl PerfCounters {
    /// Opens what this machine and this user have.
    pub fn open() -> PerfCounters {
        let mut threads: Vec<i32> =
            Root::system().names("proc/self/task").iter().filter_map(|n| n.parse().ok()).collect();
        let mut scope = match threads.len() {
            1 => "1 thread and those it starts".to_string(),
            n => format!("{n} threads and those they start"),
        };
        if threads.is_empty() || threads.len() > THREADS {
            scope = format!("the thread that opened them, and those it starts, of {} threads", threads.len());
            threads = vec![0];
        }
        let mut opened = PerfCounters { groups: vec![], reasons: Default::default(), scope };
        for thread in threads {
            for group in GROUPS {
                opened.open_group(thread, group);
            }
        }
        opened
    }

    fn open_group(&mut self, thread: i32, counters: &[Counter]) {
        let mut members: Vec<(Counter, perf_event::Counter)> = vec![];
        for &counter in counters {
            let built = match members.first_mut() {
                Some((_, leader)) => builder(counter, thread).build_with_group(leader),
                None => builder(counter, thread).build(),
            };
            match built {
                Ok(open) => members.push((counter, open)),
                // The thread has ended meanwhile.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) => drop(self.reasons.entry(counter).or_insert_with(|| reason(&e, paranoid()))),
            }
        }
        if !members.is_empty() {
            self.groups.push(Group { members });
        }
    }
}

fn builder(counter: Counter, thread: i32) -> Builder<'static> {
    let mut builder = match counter {
        Counter::Cycles => Builder::new(Hardware::CPU_CYCLES),
        Counter::Instructions => Builder::new(Hardware::INSTRUCTIONS),
        Counter::CacheReferences => Builder::new(Hardware::CACHE_REFERENCES),
        Counter::CacheMisses => Builder::new(Hardware::CACHE_MISSES),
        Counter::Branches => Builder::new(Hardware::BRANCH_INSTRUCTIONS),
        Counter::BranchMisses => Builder::new(Hardware::BRANCH_MISSES),
        Counter::PageFaults => Builder::new(Software::PAGE_FAULTS),
        Counter::ContextSwitches => Builder::new(Software::CONTEXT_SWITCHES),
        Counter::TaskClock => Builder::new(Software::TASK_CLOCK),
    };
    let times = ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING;
    builder.observe_pid(thread).any_cpu().inherit(true).read_format(ReadFormat::GROUP | ReadFormat::ID | times);
    // Without the kernel this one would always be 0.
    builder.exclude_kernel(counter != Counter::ContextSwitches);
    builder
}

fn paranoid() -> Option<i64> {
    Root::system().number("proc/sys/kernel/perf_event_paranoid").ok().map(|n| n as i64)
}

/// What an error of `perf_event_open` means, and what to do about it.
pub fn reason(error: &io::Error, paranoid: Option<i64>) -> String {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let level = paranoid.map_or("is not readable".to_string(), |p| format!("is {p}"));
            format!(
                "not permitted: kernel.perf_event_paranoid {level}; `sudo sysctl kernel.perf_event_paranoid=1` \
                 permits it until the next start, the capability CAP_PERFMON for one program; containers may forbid it \
                 by themselves (seccomp)"
            )
        }
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "this (virtual) machine exposes no hardware counters".to_string()
        }
        Some(libc::ENOSYS) => {
            "the kernel has no perf events (CONFIG_PERF_EVENTS), or a sandbox (seccomp) hides them".to_string()
        }
        Some(libc::EMFILE | libc::ENFILE) => "too many files are open: `ulimit -n` raises the limit".to_string(),
        Some(libc::EINVAL) => {
            "the kernel refuses this kind of counter (invalid argument): it may be too old".to_string()
        }
        _ => format!("perf_event_open failed: {error}"),
    }
}

impl CounterSource for PerfCounters {
    fn start(&mut self) {
        for group in &mut self.groups {
            // What fails to start counts nothing while enabled, and reading says so.
            let _ = group.members[0].1.enable_group();
        }
    }

    fn stop(&mut self) {
        for group in &mut self.groups {
            let _ = group.members[0].1.disable_group();
        }
    }

    fn read(&mut self) -> Counts {
        let mut counts = Counts::new();
        for group in &mut self.groups {
            let read = group.members[0].1.read_group();
            for (counter, member) in &group.members {
                let count = read.as_ref().map_err(|e| format!("reading the counter failed: {e}")).and_then(|data| {
                    let value = data.get(member).ok_or("the kernel gave no value for the counter")?.value();
                    let ns = |time: Option<std::time::Duration>| time.map_or(0, |t| t.as_nanos() as u64);
                    Ok((value, ns(data.time_enabled()), ns(data.time_running())))
                });
                let kernel = match counter {
                    Counter::ContextSwitches | Counter::TaskClock => "kernel included",
                    _ => "user code",
                };
                let empty = || Count {
                    value: 0,
                    enabled_ns: 0,
                    running_ns: 0,
                    source: format!("perf event {}, {kernel}, {}", counter.name().replace('_', "-"), self.scope),
                };
                let total = counts.entry(*counter).or_insert_with(|| Ok(empty()));
                match (total.as_mut(), count) {
                    (Ok(total), Ok((value, enabled, running))) => {
                        total.value += value;
                        total.enabled_ns += enabled;
                        total.running_ns += running;
                    }
                    (_, Err(e)) => *total = Err(e),
                    (Err(_), Ok(_)) => {}
                }
            }
        }
        for (counter, reason) in &self.reasons {
            // A counter that some thread lacks would count too little.
            counts.insert(*counter, from_usage(*counter).map_err(|_| reason.clone()));
        }
        for counter in Counter::ALL {
            counts.entry(counter).or_insert_with(|| Err("no thread could be counted".into()));
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counters, usage};

    #[test]
    fn errors_say_what_to_do() {
        let of = |code| reason(&io::Error::from_raw_os_error(code), Some(3));
        assert!(of(libc::EACCES).contains("paranoid is 3") && of(libc::EPERM).contains("CAP_PERFMON"));
        assert!(of(libc::EACCES).contains("sudo sysctl kernel.perf_event_paranoid=1"));
        assert!(of(libc::ENOENT).contains("no hardware counters") && of(libc::EOPNOTSUPP).contains("virtual"));
        assert!(of(libc::ENOSYS).contains("seccomp"));
        assert!(of(libc::EMFILE).contains("ulimit"));
        assert!(of(libc::EIO).contains("perf_event_open"));
    }

    /// Touches memory on this thread and on another, sleeping between, and gives what must have happened at least.
    fn work() -> (f64, f64) {
        let touch = || {
            let pages = 500;
            let mut block = vec![0u8; pages * 4096];
            block.iter_mut().step_by(4096).for_each(|b| *b = 1);
            std::thread::sleep(std::time::Duration::from_millis(2));
            assert_eq!(std::hint::black_box(&block).iter().map(|&b| u64::from(b)).sum::<u64>(), pages as u64);
        };
        touch();
        std::thread::spawn(touch).join().unwrap();
        (2.0, 1e-6)
    }

    #[test]
    fn software_counters_agree_with_getrusage() {
        let mut counters = Counters::open();
        let before = usage().unwrap();
        counters.start();
        let (switches, seconds) = work();
        let readings = counters.stop();
        let after = usage().unwrap();
        // getrusage was asked before and after, and other tests run beside this one in other threads, which perf may
        // miss if they began in the moment of opening; so it has seen at least as much, but for what opening itself
        // cost.
        let inside = |name: &str, most: f64| {
            let value = readings[name].value.unwrap_or_else(|| panic!("{name}: {:?}", readings[name]));
            assert!(value <= most * 1.05 + 2.0, "{name}: {value}, and getrusage {most}");
            value
        };
        assert!(inside("page_faults", (after.faults() - before.faults()) as f64) >= 1.0);
        assert!(inside("context_switches", (after.switches() - before.switches()) as f64) >= switches);
        assert!(inside("task_clock", after.cpu_s() - before.cpu_s() + 0.02) >= seconds);
    }

    #[test]
    fn threads_that_already_run_are_counted() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (done, finished) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            wait.recv().unwrap();
            let began = std::time::Instant::now();
            while began.elapsed().as_millis() < 30 {
                std::hint::black_box(0);
            }
            done.send(()).unwrap();
            let _ = wait.recv();
        });
        let mut counters = Counters::open();
        let before = usage().unwrap();
        counters.start();
        go.send(()).unwrap();
        finished.recv().unwrap();
        let clock = counters.stop()["task_clock"].value.unwrap();
        let used = usage().unwrap().cpu_s() - before.cpu_s();
        drop(go);
        thread.join().unwrap();
        // The thread was busy for 30 ms of wall clock, of which a loaded machine gave it a part.
        assert!(clock >= used * 0.5, "counted {clock} s, getrusage {used} s");
    }
}
