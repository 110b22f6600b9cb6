//! A Mac's readings, from samples that were built or recorded: all of the code above the foreign functions.

use schwann_core::Provenance;
use schwann_sensors::{
    Apple, AppleFeed, AppleReplay, AppleSample, CATALOGUE, Cluster, Present, Recorder, Replay, Sample, Source, System,
    dram_bytes, guarded, low_power_mode, present,
};
use std::collections::VecDeque;

/// Built by hand, five intervals each: idle, CPU busy, Neural Engine busy, GPU busy. Its first line says so.
const BUILT: &[u8] = include_bytes!("data/apple_m1_max_built.jsonl");

fn played() -> Vec<Sample> {
    let mut apple = Apple::new(AppleReplay::new(BUILT).unwrap());
    (0..20).map(|_| apple.sample()).collect()
}

fn value(sample: &Sample, name: &str) -> f64 {
    sample.readings[name].value.unwrap_or_else(|| panic!("{name}: {:?}", sample.readings[name]))
}

/// Samples as they are, each poll as many as it says.
struct Feed(VecDeque<Result<Vec<AppleSample>, String>>);

impl AppleFeed for Feed {
    fn name(&self) -> &str {
        "a test"
    }

    fn poll(&mut self) -> Result<Vec<AppleSample>, String> {
        self.0.pop_front().unwrap_or(Ok(vec![]))
    }
}

fn apple(polls: impl IntoIterator<Item = Result<Vec<AppleSample>, String>>) -> Apple {
    Apple::new(Feed(polls.into_iter().collect()))
}

#[test]
fn a_recording_of_a_mac_gives_every_reading_in_plain_units() {
    let samples = played();
    let [idle, cpu, ane, gpu] = [4, 9, 14, 19].map(|i| &samples[i]);
    assert_eq!(value(idle, "ane_power"), 0.0, "asleep, and counted: a true zero");
    assert!((value(ane, "ane_power") - 4.68).abs() < 1e-9);
    assert!((value(cpu, "cpu_power") - 24.96).abs() < 1e-9);
    assert_eq!(value(gpu, "gpu_frequency"), 1296e6);
    assert!((value(gpu, "dram_bandwidth") - 310e9).abs() < 1e3);
    assert_eq!(value(cpu, "cpu_p_frequency"), 3036e6);
    assert_eq!(value(idle, "cpu_cores"), 10.0);
    assert_eq!(value(cpu, "cpu_frequency"), (2.0 * 2064e6 + 8.0 * 3036e6) / 10.0);
    assert_eq!((value(idle, "memory_pressure_level"), value(gpu, "memory_pressure_level")), (1.0, 2.0));
    assert_eq!((value(idle, "on_battery"), value(cpu, "on_battery"), value(cpu, "power_saving")), (1.0, 0.0, 0.0));
    assert_eq!(value(idle, "unified_memory"), 1.0);
    assert!(value(idle, "memory_available") < value(idle, "memory_total"));
    let package = &cpu.readings["package_power"];
    assert_eq!(package.provenance, Provenance::Derived);
    assert!((package.value.unwrap() - (24.96 + 0.052)).abs() < 1e-9);
    assert!(
        ane.readings["ane_power"].source.contains("Apple M1 Max")
            && ane.readings["ane_power"].source.contains("0.10 s")
    );
    for sample in &samples {
        assert_eq!(sample.problem(), None);
    }
}

#[test]
fn nobody_claims_to_know_how_busy_the_neural_engine_is() {
    for sample in played() {
        let figure = &sample.readings["ane_utilization"];
        assert_eq!(figure.value, None);
        assert!(figure.reason.as_ref().is_some_and(|r| r.contains("ane_power")));
        assert!(sample.readings["gpu_memory_used"].reason.as_ref().is_some_and(|r| r.contains("share one memory")));
    }
}

#[test]
fn energy_is_power_added_up_over_every_interval() {
    let samples = played();
    let last = samples.last().unwrap();
    // Five intervals of 0.1 s at 4.5 W on average.
    assert!((value(last, "ane_energy") - 2.25).abs() < 1e-9);
    assert!((value(last, "cpu_energy") - 0.5 * (0.3 + 24.0 + 3.0 + 5.0)).abs() < 1e-9);
    assert_eq!(last.readings["ane_energy"].provenance, Provenance::Derived);

    let sample = |watts| AppleSample { seconds: 0.5, cpu_power_w: Some(watts), ..AppleSample::default() };
    let mut several = apple([Ok(vec![sample(2.0), sample(4.0)]), Ok(vec![]), Ok(vec![sample(1.0)])]);
    let energies: Vec<f64> = (0..3).map(|_| value(&several.sample(), "cpu_energy")).collect();
    assert_eq!(energies, [3.0, 3.0, 3.5], "each interval counts once, whenever it is fetched");
}

#[test]
fn power_is_the_mean_of_all_the_time_since_the_sample_before() {
    let sample = |seconds, watts: f64, read| AppleSample {
        seconds,
        cpu_power_w: Some(watts),
        dram_read: Some(read),
        dram_written: Some(0),
        clusters: vec![Cluster { label: "P".into(), cores: 4, mhz: Some(1000.0 * watts), load_percent: Some(watts) }],
        ..AppleSample::default()
    };
    let mut source = apple([Ok(vec![sample(0.5, 2.0, 10), sample(1.5, 4.0, 30)]), Ok(vec![])]);
    let first = source.sample();
    assert_eq!(value(&first, "cpu_power"), 3.5);
    assert!(first.readings["cpu_power"].source.contains("2.00 s"), "{:?}", first.readings["cpu_power"]);
    assert_eq!((value(&first, "cpu_p_frequency"), value(&first, "dram_bandwidth")), (3.5e9, 20.0));
    assert_eq!(value(&first, "cpu_energy"), 7.0);
    assert_eq!(value(&source.sample(), "cpu_power"), 3.5, "no interval has ended since");
    // One interval without power: the whole has none, and says so.
    let gap = AppleSample { cpu_power_w: None, ..sample(1.0, 1.0, 0) };
    let first = apple([Ok(vec![sample(1.0, 2.0, 0), gap])]).sample();
    assert!(first.readings["cpu_power"].value.is_none() && first.readings["cpu_power"].reason.is_some());
}

#[test]
fn a_sensor_that_panics_becomes_a_reason() {
    let failed: Result<(), String> = guarded("macmon", || panic!("calc_freq invalid data: {} vs {}", 5, 7));
    let reason = failed.unwrap_err();
    assert!(reason.contains("macmon does not know this chip") && reason.contains("5 vs 7"), "{reason}");
    assert_eq!(guarded("x", || Ok::<_, String>(3)), Ok(3));
    assert_eq!(guarded("x", || Err::<(), _>("why".to_string())), Err("why".to_string()));
}

#[test]
fn an_interval_without_power_makes_energy_unknown_from_then_on() {
    let sample = |cpu_power_w| AppleSample { seconds: 1.0, cpu_power_w, ..AppleSample::default() };
    let mut source = apple([Ok(vec![sample(Some(2.0))]), Ok(vec![sample(None)]), Ok(vec![sample(Some(2.0))])]);
    let energies: Vec<Option<f64>> = (0..3).map(|_| source.sample().readings["cpu_energy"].value).collect();
    assert_eq!(energies, [Some(2.0), None, None]);
}

#[test]
fn what_a_mac_does_not_tell_is_unavailable_and_never_zero() {
    let bare = AppleSample { seconds: 0.1, ..AppleSample::default() };
    let machine = AppleSample { virtual_machine: true, ..bare.clone() };
    for (sample, word) in [(bare, "IOReport"), (machine, "virtual machine")] {
        let readings = apple([Ok(vec![sample])]).sample().readings;
        for (name, figure) in &readings {
            assert!(figure.value.is_none() || name == "unified_memory", "{name}: {figure:?}");
        }
        assert!(readings["ane_power"].reason.as_ref().is_some_and(|r| r.contains(word)), "{:?}", readings["ane_power"]);
        assert_eq!(Sample { at: 0.0, readings }.problem(), None);
    }
}

#[test]
fn a_mac_that_cannot_be_read_says_why_everywhere() {
    let mut system = System::from_sources(vec![Box::new(apple([Err("macmon cannot read this Mac: test".into())]))]);
    let sample = system.sample();
    assert!(sample.readings.values().all(|f| f.value.is_none()));
    assert!(sample.readings["gpu_power"].reason.as_ref().is_some_and(|r| r.contains("macmon cannot")));
    assert!(CATALOGUE.iter().all(|e| sample.readings[e.name].unit == e.unit));
    assert_eq!(sample.problem(), None);
}

#[test]
fn a_macs_samples_are_recorded_and_played_back_the_same() {
    let samples = played();
    let mut recorder = Recorder::new(vec![], "an M1 Max").unwrap();
    samples.iter().for_each(|s| recorder.record(s).unwrap());
    let file = recorder.into_inner();
    let again: Vec<Sample> = Replay::new(&file[..]).unwrap().map(Result::unwrap).collect();
    assert!(again == samples, "played back otherwise than recorded");
}

#[test]
fn a_damaged_recording_of_a_mac_says_where() {
    let text = std::str::from_utf8(BUILT).unwrap();
    let header = text.lines().next().unwrap();
    for (line, word) in
        [("{", "line 2"), (r#"{"seconds":0}"#, "interval"), (r#"{"seconds":"x"}"#, "line 2"), ("", "over")]
    {
        let file = format!("{header}\n{line}\n");
        let mut source = Apple::new(AppleReplay::new(file.as_bytes()).map(Owned::from).unwrap());
        let reason = source.sample().readings["cpu_power"].reason.clone().unwrap();
        assert!(reason.contains(word), "{line:?}: {reason}");
    }
    assert!(AppleReplay::new(&b"{\"schwann_recording\":\"apple\",\"version\":2}\n"[..]).is_err());
}

/// What a borrowed recording gives, read ahead, so that a source may own it.
struct Owned(Vec<Result<Vec<AppleSample>, String>>);

impl<'a> From<AppleReplay<&'a [u8]>> for Owned {
    fn from(mut replay: AppleReplay<&'a [u8]>) -> Owned {
        Owned(vec![replay.poll()])
    }
}

impl AppleFeed for Owned {
    fn name(&self) -> &str {
        "a recording"
    }

    fn poll(&mut self) -> Result<Vec<AppleSample>, String> {
        self.0.pop().unwrap_or(Ok(vec![]))
    }
}

#[test]
fn traffic_is_the_sum_of_the_dies_and_of_nothing_else() {
    let channels = [("DCS RD", 70), ("DCS WR", 30), ("PCPU0 DCS RD", 50), ("ANE DCS WR", 10)];
    assert_eq!(dram_bytes(channels), Some((70, 30)));
    let dies =
        [("DIE_0_DCS RD", 7), ("DIE_1_DCS RD", 8), ("DIE_0_DCS WR", 1), ("DIE1 DCS WR", 2), ("DIE_0_PCPU DCS RD", 9)];
    assert_eq!(dram_bytes(dies), Some((15, 3)));
    assert_eq!(dram_bytes([("DCS RD", i64::MIN), ("DCS WR", 30)]), None, "a counter that is kept back");
    assert_eq!(dram_bytes([("DCS RD", 5)]), None, "half of the traffic is not the traffic");
    assert_eq!(dram_bytes([]), None);
}

#[test]
fn only_energy_channels_count_as_meters() {
    let channels =
        [("Energy Model", "GPU Energy", "nJ"), ("Energy Model", "ANE0", "mJ"), ("Energy Model", "DRAM0", "mJ")];
    assert_eq!(present(channels), Present { gpu: true, ane: true, dram: true });
    assert_eq!(present([("PMP", "ANE", "events"), ("SoC Stats", "ANE", "mJ")]), Present::default());
    assert!(present([("PMP", "ANE", "mJ")]).ane);
}

#[test]
fn power_mode_is_what_pmset_prints() {
    let settings = "System-wide power settings:\nCurrently in use:\n standby              1\n powermode            1\n";
    assert_eq!(
        low_power_mode(settings, "Now drawing from 'Battery Power'\n -InternalBattery-0\n"),
        (Some(true), Some(true))
    );
    let older = "Currently in use:\n lowpowermode         0\n";
    assert_eq!(low_power_mode(older, "Now drawing from 'AC Power'\n"), (Some(false), Some(false)));
    assert_eq!(low_power_mode("", ""), (None, None));
}

#[test]
fn clusters_of_any_label_have_plain_names() {
    let cluster = |label: &str| Cluster { label: label.into(), cores: 1, mhz: Some(1000.0), load_percent: Some(5.0) };
    let sample = AppleSample { seconds: 0.1, clusters: vec![cluster("_"), cluster("S")], ..AppleSample::default() };
    let readings = apple([Ok(vec![sample])]).sample().readings;
    assert_eq!(readings["cpu_s_frequency"].value, Some(1e9));
    assert_eq!(readings["cpu_x_load"].value, Some(5.0));
}
