//! This machine, whatever it is.

use schwann_core::Provenance;
use schwann_sensors::{CATALOGUE, Recorder, Replay, System};

#[test]
fn every_reading_has_a_value_with_its_source_or_a_reason() {
    for mut system in [System::new(), System::with_counters()] {
        assert!(system.sources().count() > 0);
        for sample in [system.sample(), system.sample()] {
            assert_eq!(sample.problem(), None);
            for (name, figure) in &sample.readings {
                match figure.value {
                    Some(value) => assert!(value.is_finite() && !figure.source.is_empty(), "{name}: {figure:?}"),
                    None => assert!(figure.reason.as_ref().is_some_and(|r| r.len() > 5), "{name}: {figure:?}"),
                }
                assert!(!figure.unit.is_empty(), "{name} has no unit");
            }
            for entry in CATALOGUE {
                let figure = &sample.readings[entry.name];
                assert_eq!(figure.unit, entry.unit, "{}", entry.name);
                assert_ne!(figure.provenance, Provenance::Predicted, "{}", entry.name);
            }
        }
    }
}

#[test]
fn what_is_described_is_what_is_sampled() {
    let mut system = System::new();
    let described = system.describe();
    assert!(CATALOGUE.iter().all(|e| described.iter().any(|a| a.name == e.name)));
    std::thread::sleep(std::time::Duration::from_millis(30));
    let sample = system.sample();
    for available in described {
        let figure = &sample.readings[&available.name];
        assert_eq!(available.unit, figure.unit, "{}", available.name);
        if available.reason.is_some() {
            assert!(figure.value.is_none(), "{} was said to be unavailable: {figure:?}", available.name);
        }
    }
}

#[test]
fn samples_follow_one_another_in_time_and_survive_a_recording() {
    let mut system = System::new();
    let samples = [system.sample(), system.sample(), system.sample()];
    assert!(samples.windows(2).all(|w| w[0].at <= w[1].at));
    let mut recorder = Recorder::new(vec![], "this machine").unwrap();
    samples.iter().for_each(|s| recorder.record(s).unwrap());
    let file = recorder.into_inner();
    let again: Vec<_> = Replay::new(&file[..]).unwrap().map(Result::unwrap).collect();
    assert!(again == samples, "played back otherwise than recorded");
}

#[cfg(target_os = "linux")]
#[test]
fn linux_tells_at_least_memory_load_and_this_process() {
    let mut system = System::new();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let sample = system.sample();
    for name in
        ["rss", "rss_peak", "page_faults_minor", "cpu_time", "threads", "cpu_cores", "cpu_load", "memory_available"]
    {
        assert!(sample.readings[name].value.is_some(), "{name}: {:?}", sample.readings[name]);
    }
    let load = sample.readings["cpu_load"].value.unwrap();
    assert!((0.0..=100.0).contains(&load), "{load}");
    assert!(sample.readings["memory_available"].value <= sample.readings["memory_total"].value);
}
