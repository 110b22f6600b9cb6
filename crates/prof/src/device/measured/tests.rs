//! Reports: what is taken from one, and what is refused.

use super::*;
use crate::device::Catalog;
use crate::device::calibrate::tests::made_up;
use crate::device::predict::tests::plan;
use serde_json::json;

/// A report as the script writes it, of a chip.
fn report(chip: &str) -> Value {
    let run = |model: &str, batch: usize, on: &str, seconds: f64| {
        let profile = json!({ "profiles": [{ "compute": { "time_p50": { "value": seconds, "unit": "s" } } }] });
        json!({ "model": model, "batch": batch, "steps": 16, "threads": 1, "on": on, "profile": profile, "prediction": {} })
    };
    json!({
        "format": FORMAT, "version": VERSION, "date": "2026-11-18", "commit": "0123456789ab", "quick": true,
        "system": { "chip": chip, "os": "macOS 15.1", "memory_bytes": 17_179_869_184u64, "cpu_cores": 8, "gpu_cores": 10 },
        "calibration": made_up(),
        "runs": [run("wired-cfc", 1, "cpu", 9e-6), run("wired-cfc", 32, "cpu", 2e-4), run("wired-cfc", 32, "gpu", 3e-4)],
    })
}

#[test]
fn a_report_gives_its_chip_rates_and_runs() {
    let found = Report::parse(&report("Apple M2").to_string()).unwrap();
    assert_eq!(found.chip, "Apple M2");
    let m = &found.measured;
    assert_eq!((m.runs.len(), m.runs[2].on, m.runs[1].measured_s), (3, Side::Gpu, 2e-4));
    // The made-up machine does 100 Gflop/s on a core, and has 20 GB/s of memory there.
    assert_eq!(m.core_flops, Some(100e9));
    assert!(m.core_bandwidth.is_some_and(|b| b >= 20e9), "{m:?}");
}

#[test]
fn a_report_that_is_wrong_is_refused_with_the_field() {
    let refused = |change: &dyn Fn(&mut Value), words: &[&str]| {
        let mut wrong = report("Apple M2");
        change(&mut wrong);
        let why = Report::parse(&wrong.to_string()).unwrap_err();
        assert!(words.iter().all(|w| why.contains(w)), "{words:?}: {why}");
    };
    refused(&|r| r["format"] = json!("something"), &["no report", "mac-report"]);
    refused(&|r| r["version"] = json!(99), &["version 99"]);
    refused(&|r| r["system"]["chip"] = json!("Apple \u{1b}[31mM2"), &["system.chip", "plain"]);
    refused(&|r| r["system"]["chip"] = json!("x".repeat(5000)), &["system.chip", "100 letters"]);
    refused(&|r| r["system"] = json!(null), &["system.os"]);
    refused(&|r| r["date"] = json!("yesterday"), &["date", "2026-11-18"]);
    refused(&|r| r["runs"] = json!({}), &["`runs`"]);
    refused(&|r| r["runs"] = json!(vec![json!({}); MOST_RUNS + 1]), &["1001 runs"]);
    refused(&|r| r["runs"][1]["batch"] = json!(0), &["run 2", "`batch` is 0"]);
    refused(&|r| r["runs"][1]["steps"] = json!(-4), &["run 2", "`steps` is -4"]);
    refused(&|r| r["runs"][0]["on"] = json!("moon"), &["run 1", "`on`"]);
    for time in [json!(-1.0), json!(0.0), json!(1e300)] {
        refused(
            &|r| r["runs"][0]["profile"]["profiles"][0]["compute"]["time_p50"]["value"] = time.clone(),
            &["measured_s"],
        );
    }
    refused(&|r| r["runs"][0]["profile"] = json!(null), &["run 1", "time_p50"]);
    refused(&|r| r["calibration"]["limits"][0]["flops_per_s"] = json!(1e200), &["core_flops"]);
    for text in ["", "{", "[]", "null", "{\"format\": 1}"] {
        assert!(Report::parse(text).is_err(), "{text}");
    }
    // What cannot be a number is no number in JSON either.
    assert!(Report::parse(&report("Apple M2").to_string().replace("0.0002", "NaN")).is_err());
}

#[test]
fn a_measured_device_says_so_and_its_band_holds_what_was_seen() {
    let mut measured = Report::parse(&report("Apple M2").to_string()).unwrap().measured;
    let catalog = Catalog::own().unwrap();
    let mut m2 = catalog.find("Apple M2").unwrap().clone();
    let plan = plan("W", 32, 16, 1);
    let before = crate::device::on(&plan, &m2, &made_up());
    assert!(before.compared.contains("never compared"));
    // Ten times as long as predicted, and half as long.
    for (run, ratio) in measured.runs.iter_mut().zip([10.0, 0.5, 3.0]) {
        run.predicted_s = Some(run.measured_s / ratio);
    }
    m2.measured = vec![measured];
    let after = crate::device::on(&plan, &m2, &made_up());
    assert!(after.compared.contains("compared with a real one: 2 runs") && after.compared.contains("2026-11-18"));
    assert!(after.compared.contains("0.50 to 10 times"), "{}", after.compared);
    let (likely, band) = (after.time.value.unwrap(), after.time.spread.unwrap());
    assert!(band.high >= 9.99 * likely && band.low <= 0.501 * likely, "{:?}", after.time);
    assert!(after.time.source.contains("measured on a real one (2026-11-18, macOS 15.1, commit 0123456789ab)"));
    assert_eq!(m2.core_flops().provenance, schwann_core::Provenance::Measured);
    // On the GPU it is another run.
    let work = crate::device::gpu::tests::work(&crate::device::gpu::tests::prospect("W"), 32, 16);
    let gpu = crate::device::gpu::on_gpu(Ok(&work), &m2);
    assert!(gpu.compared.contains("1 run,") && gpu.compared.contains("3.0 to 3.0"), "{}", gpu.compared);
    // As a file of the user's own it reads as itself.
    let mut again = Catalog::default();
    again.add("again", &m2.to_toml(), None).unwrap();
    assert_eq!(again.devices, [m2]);
}
