//! A Mac's own functions, and no more than them: they fill an [`AppleSample`], and everything else is made of that.
//!
//! Power, frequencies, temperatures and memory come through macmon, which reads IOReport and the system controller
//! without asking for root. It blocks for an interval, so it runs on a thread of its own. DRAM traffic is in a group of
//! IOReport that macmon leaves out; its subscription serves for that too.

use crate::{AppleFeed, AppleSample, Cluster, Present, ProcessStatus, dram_bytes, guarded, low_power_mode, present};
use macmon::sources::{IOReport, cfio_integer_value};
use std::process::Command;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

/// The interval of a sample in milliseconds: IOReport's counters move about every 10 ms or slower.
const INTERVAL_MS: u32 = 100;
/// Samples that wait to be fetched. When there are as many the thread waits, and its next interval is a long one:
/// nothing is lost but detail.
const WAITING: usize = 600;

/// macmon on its thread.
pub struct Macmon {
    samples: Receiver<Result<AppleSample, String>>,
    ended: Option<String>,
    begun: bool,
}

impl Macmon {
    /// Starts the thread, which ends after this is dropped.
    pub fn open() -> Macmon {
        let (send, samples) = sync_channel(WAITING);
        let spawned = std::thread::Builder::new().name("macmon".into()).spawn(move || {
            // macmon asserts what it expects of a chip, and a chip that it does not know yet may be otherwise.
            let mut reader = match guarded("macmon", Reader::new) {
                Ok(reader) => reader,
                Err(reason) => return drop(send.send(Err(reason))),
            };
            loop {
                let sample = guarded("macmon", || reader.read());
                let failed = sample.is_err();
                if send.send(sample).is_err() || failed {
                    return;
                }
            }
        });
        let ended = spawned.err().map(|e| format!("the thread for macmon could not be started: {e}"));
        Macmon { samples, ended, begun: false }
    }
}

impl AppleFeed for Macmon {
    fn name(&self) -> &str {
        "macmon (IOReport, SMC)"
    }

    fn poll(&mut self) -> Result<Vec<AppleSample>, String> {
        let mut found = vec![];
        // The first interval is waited for, so that the first sample has values.
        if !self.begun && self.ended.is_none() {
            self.begun = true;
            match self.samples.recv_timeout(Duration::from_millis(u64::from(INTERVAL_MS) + 3000)) {
                Ok(Ok(sample)) => found.push(sample),
                Ok(Err(reason)) => self.ended = Some(reason),
                Err(_) => {}
            }
        }
        while self.ended.is_none() {
            match self.samples.try_recv() {
                Ok(Ok(sample)) => found.push(sample),
                Ok(Err(reason)) => self.ended = Some(reason),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.ended = Some("macmon's thread has ended".into()),
            }
        }
        match &self.ended {
            Some(reason) if found.is_empty() => Err(reason.clone()),
            _ => Ok(found),
        }
    }
}

/// macmon and what it leaves out.
struct Reader {
    sampler: macmon::Sampler,
    traffic: Option<IOReport>,
    present: Present,
    modes: (Option<bool>, Option<bool>),
    last: std::time::Instant,
}

impl Reader {
    fn new() -> Result<Reader, String> {
        let sampler = macmon::Sampler::new().map_err(|e| format!("macmon cannot read this Mac: {e}"))?;
        let mut traffic = IOReport::new(vec![("AMC Stats", Some("Perf Counters"))]).ok();
        // The first call sets where the next one counts from.
        if let Some(report) = &mut traffic {
            report.get_samples(0, 1);
        }
        let energies = IOReport::new(vec![("Energy Model", None), ("PMP", Some("Energy Counters"))]).ok();
        let channels: Vec<_> = energies.iter().flat_map(|r| r.get_sample(1)).collect();
        let present = present(channels.iter().map(|c| (c.group.as_str(), c.channel.as_str(), c.unit.as_str())));
        let modes = low_power_mode(&pmset(&["-g"]), &pmset(&["-g", "batt"]));
        Ok(Reader { sampler, traffic, present, modes, last: std::time::Instant::now() })
    }

    fn read(&mut self) -> Result<AppleSample, String> {
        let metrics = self.sampler.get_metrics(INTERVAL_MS).map_err(|e| format!("macmon: {e}"))?;
        let seconds = self.last.elapsed().as_secs_f64();
        self.last = std::time::Instant::now();
        let traffic = self.traffic.as_mut().and_then(|report| {
            let (channels, ms) = report.get_samples(0, 1).pop()?;
            let values: Vec<(String, i64)> =
                channels.map(|c| (c.channel.clone(), cfio_integer_value(c.item))).collect();
            let (read, written) = dram_bytes(values.iter().map(|(name, value)| (name.as_str(), *value)))?;
            // Its interval is a little longer or shorter than macmon's.
            let scale = seconds / (ms as f64 * 1e-3);
            Some(((read as f64 * scale) as u64, (written as f64 * scale) as u64))
        });
        let soc = self.sampler.get_soc_info();
        let real = !soc.vm;
        // macmon gives 0 for what it could not read; whether 0 can be true depends on the part.
        let positive = |value: f64| (real && value > 0.0).then_some(value);
        let power = |watts: f32, counted: bool| (real && (counted || watts > 0.0)).then_some(f64::from(watts));
        let clusters = metrics.cpu_tiers.iter().zip(&soc.cpu_tiers).map(|(tier, info)| Cluster {
            label: tier.label.clone(),
            cores: u32::from(info.cores),
            mhz: positive(f64::from(tier.freq_mhz)),
            load_percent: Some(f64::from(tier.active_ratio) * 100.0),
        });
        let gpu_states = real && soc.gpu_freqs.len() > 1;
        Ok(AppleSample {
            seconds,
            chip: Some(soc.chip_name.clone()).filter(|c| !c.is_empty()),
            virtual_machine: soc.vm,
            cpu_power_w: positive(f64::from(metrics.cpu_power)),
            gpu_power_w: power(metrics.gpu_power, self.present.gpu),
            ane_power_w: power(metrics.ane_power, self.present.ane),
            dram_power_w: power(metrics.ram_power, self.present.dram),
            system_power_w: positive(f64::from(metrics.sys_power)),
            cpu_load_percent: Some(f64::from(metrics.cpu_active_ratio) * 100.0),
            clusters: clusters.collect(),
            gpu_load_percent: gpu_states.then_some(f64::from(metrics.gpu_active_ratio) * 100.0),
            gpu_mhz: positive(f64::from(metrics.gpu_freq_mhz)),
            cpu_temperature_c: metrics.temp.cpu_temp_avg.map(f64::from),
            gpu_temperature_c: metrics.temp.gpu_temp_avg.map(f64::from),
            ram_total: Some(metrics.memory.ram_total).filter(|&b| b > 0),
            ram_used: Some(metrics.memory.ram_usage).filter(|&b| b > 0),
            swap_total: Some(metrics.memory.swap_total),
            swap_used: Some(metrics.memory.swap_usage),
            dram_read: traffic.map(|t| t.0),
            dram_written: traffic.map(|t| t.1),
            pressure_level: sysctl_u32(c"kern.memorystatus_vm_pressure_level"),
            low_power: self.modes.0,
            on_battery: self.modes.1,
        })
    }
}

/// What `pmset` prints; nothing where it cannot be run.
fn pmset(arguments: &[&str]) -> String {
    let output = Command::new("/usr/bin/pmset").args(arguments).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
}

fn sysctl_u32(name: &std::ffi::CStr) -> Option<u32> {
    let mut value = 0u32;
    let mut size = size_of::<u32>();
    // SAFETY: `name` ends in a zero byte, `value` has `size` writable bytes, and no new value is set.
    let status =
        unsafe { libc::sysctlbyname(name.as_ptr(), (&raw mut value).cast(), &mut size, std::ptr::null_mut(), 0) };
    (status == 0 && size == size_of::<u32>()).then_some(value)
}

/// This process by `proc_pidinfo`.
pub fn process_status() -> Result<ProcessStatus, String> {
    let mut info = std::mem::MaybeUninit::<libc::proc_taskinfo>::zeroed();
    let size = size_of::<libc::proc_taskinfo>() as libc::c_int;
    // SAFETY: `info` has `size` writable bytes, which the call fills; all-zero bytes are a valid one.
    let (filled, info) = unsafe {
        let filled = libc::proc_pidinfo(libc::getpid(), libc::PROC_PIDTASKINFO, 0, info.as_mut_ptr().cast(), size);
        (filled, info.assume_init())
    };
    if filled != size {
        return Err(format!("proc_pidinfo failed: {}", std::io::Error::last_os_error()));
    }
    Ok(ProcessStatus {
        rss: Some(info.pti_resident_size),
        rss_peak: None,
        threads: u64::try_from(info.pti_threadnum).ok(),
    })
}
