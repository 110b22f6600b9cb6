//! GPUs of Macs in predictions, and reports of real ones.

use crate::common::Place;
use serde_json::{Value, json};

fn calibrated(name: &str) -> Place {
    let place = Place::new(name);
    place.run(0, &["devices", "calibrate", "--quick"]);
    place
}

fn json_of(place: &Place, args: &[&str]) -> Value {
    serde_json::from_str(&place.run(0, args).0).unwrap()
}

/// A report of a chip as `scripts/mac-report` packs it, with this machine's calibration for its own.
fn report(place: &Place, chip: &str, runs: &[(&str, usize, usize, &str, f64)]) -> Value {
    let file = std::fs::read_dir(place.0.join("data")).unwrap().map(|f| f.unwrap().path());
    let file = file.into_iter().find(|p| p.extension().is_some_and(|e| e == "json")).unwrap();
    let calibration: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let run = |&(model, batch, steps, on, seconds): &(&str, usize, usize, &str, f64)| {
        let profile = json!({ "profiles": [{ "compute": { "time_p50": { "value": seconds } } }] });
        json!({ "model": model, "batch": batch, "steps": steps, "threads": 1, "on": on, "profile": profile })
    };
    json!({
        "format": "schwann-mac-report", "version": 1, "date": "2026-11-18", "commit": "0.1.0 (0123456789ab)",
        "system": { "chip": chip, "os": "macOS 15.1" }, "calibration": calibration,
        "runs": runs.iter().map(run).collect::<Vec<_>>(),
    })
}

#[test]
fn cpu_and_gpu_of_a_chip_stand_side_by_side_as_bands() {
    let place = calibrated("both");
    let (text, _) = place.run(0, &["predict", "wired-cfc", "--device", "M1 Max", "--batch", "32", "--steps", "16"]);
    for part in [
        "on the GPU of M1 Max (predicted)",
        "one dispatch",
        "published peak of 10.4 Tflop/s",
        "CPU or GPU? M1 Max at batch 32",
        "handing a run over and waiting for its end: 30 to 250 µs",
        "--threads 8 compares",
        "what the GPU's band takes for granted",
        "functions a second",
        "never compared with a real one",
        "65536",
    ] {
        assert!(text.contains(part), "`{part}` in {text}");
    }
    let (_, beside) = text.split_once("on the GPU of").unwrap();
    assert!(beside.lines().all(|l| l.chars().count() <= 80), "{text}");
    let all = json_of(&place, &["predict", "wired-cfc", "--device", "M1 Max", "--steps", "16", "--json"]);
    let (time, points) = (&all["gpu"]["time"], all["where"]["points"].as_array().unwrap());
    assert!(time["spread"]["low"].as_f64().unwrap() < time["spread"]["high"].as_f64().unwrap(), "{time}");
    assert_eq!((time["provenance"].as_str(), points.len()), (Some("predicted"), 17));
    assert!(all["gpu"]["assumptions"].as_array().unwrap().len() > 10);
    assert!(["cpu", "gpu", "cannot_tell"].contains(&all["where"]["now"].as_str().unwrap()));
    assert!(all["where"]["crossing"]["asked_until"] == 65536, "{}", all["where"]["crossing"]);
    // What nobody has published is said, and is no 0.
    let (text, _) = place.run(0, &["predict", "wired-cfc", "--device", "Raspberry Pi 5"]);
    assert!(text.contains("GPU: unavailable; the number of cores of the GPU of Raspberry Pi 5"), "{text}");
    let all = json_of(&place, &["predict", "wired-cfc", "--seconds", "0", "--json"]);
    let of = |name: &str| all["devices"].as_array().unwrap().iter().find(|d| d["device"] == name).cloned().unwrap();
    assert!(of("M1")["gpu_time"]["value"].is_number() && of("M5 Max")["gpu_time"]["value"].is_null());
    assert!(of("M5 Max")["gpu_time"]["reason"].is_string() && of("Raspberry Pi 5")["gpu_time"].is_null());
}

#[test]
fn a_report_of_a_real_mac_makes_its_predictions_compared_ones() {
    let place = calibrated("report");
    let runs =
        [("wired-cfc", 1, 16, "cpu", 2e-5), ("wired-ltc", 32, 16, "cpu", 4e-3), ("wired-cfc", 256, 16, "gpu", 9e-4)];
    let file = place.0.join("m2.json");
    std::fs::write(&file, report(&place, "Apple M2", &runs).to_string()).unwrap();
    let (before, _) = place.run(0, &["predict", "wired-cfc", "--device", "m2"]);
    assert!(before.contains("never compared") && !before.contains("2026-11-18"), "{before}");
    let (toml, _) = place.run(0, &["devices", "add-report", "m2.json", "--toml"]);
    assert!(
        toml.contains("measured = [") && toml.contains("predicted_s = ") && !place.0.join("settings/schwann").exists()
    );
    let (text, said) = place.run(0, &["devices", "add-report", "m2.json"]);
    assert!(["M2", "wired-ltc", "GPU", "compared with a real one: 2 runs"].iter().all(|w| text.contains(w)), "{text}");
    assert!(said.contains("devices.toml"), "{said}");
    let (after, _) = place.run(0, &["predict", "wired-cfc", "--device", "Apple M2"]);
    let words = after.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("compared with a real one: 2 runs, the latest of 2026-11-18 (macOS 15.1"), "{after}");
    assert!(words.contains("compared with a real one: 1 run,"), "the GPU's: {after}");
    let (_, said) = place.run(0, &["devices", "add-report", "m2.json"]);
    assert!(said.contains("nothing added"), "{said}");
    let other = place.run(0, &["predict", "wired-cfc", "--device", "M1"]).0;
    assert!(other.contains("never compared") && !other.contains("2026-11-18"));
}

#[test]
fn a_report_that_is_not_to_be_trusted_is_refused_in_a_sentence() {
    let place = calibrated("distrust");
    let good = report(&place, "Apple M2", &[("wired-cfc", 1, 16, "cpu", 2e-5)]);
    let refused = |change: &dyn Fn(&mut Value), words: &[&str]| {
        let mut wrong = good.clone();
        change(&mut wrong);
        std::fs::write(place.0.join("wrong.json"), wrong.to_string()).unwrap();
        let (_, said) = place.run(2, &["devices", "add-report", "wrong.json"]);
        assert!(words.iter().all(|w| said.contains(w)), "{words:?}: {said}");
    };
    refused(&|r| r["system"]["chip"] = json!("Intel(R) Xeon(R) Processor"), &["no device `Intel(R) Xeon(R)"]);
    refused(&|r| r["runs"][0]["model"] = json!("/etc/passwd"), &["run 1", "no built-in model"]);
    refused(&|r| r["runs"][0]["batch"] = json!(1u64 << 40), &["run 1", "`batch`"]);
    refused(&|r| r["runs"][0]["profile"] = json!([]), &["run 1", "time_p50"]);
    refused(&|r| *r = json!([1, 2]), &["no report"]);
    std::fs::write(place.0.join("wrong.json"), [0xff, 0xfe, 0x00]).unwrap();
    place.run(2, &["devices", "add-report", "wrong.json"]);
    place.run(2, &["devices", "add-report", "nowhere.json"]);
    // Sizes and threads beyond all measure are no run to wait for: they have no prediction.
    let mut large = good.clone();
    large["runs"][0]["batch"] = json!(1 << 24);
    large["runs"][0]["steps"] = json!(1 << 24);
    large["runs"][0]["threads"] = json!(1 << 20);
    std::fs::write(place.0.join("large.json"), large.to_string()).unwrap();
    let (toml, _) = place.run(0, &["devices", "add-report", "large.json", "--toml"]);
    assert!(toml.contains("measured_s") && !toml.contains("predicted_s"), "{toml}");
}

/// Everything that the script does, in some minutes: on request.
#[cfg(unix)]
#[test]
#[expect(clippy::print_stdout, reason = "a test that was skipped says so")]
fn the_script_for_macs_packs_one_file_that_can_be_read() {
    if std::env::var_os("SCHWANN_LONG").is_none() {
        println!("skipped: scripts/mac-report takes minutes; set SCHWANN_LONG");
        return;
    }
    let place = Place::new("script");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/mac-report");
    let out = std::process::Command::new("bash")
        .args([script, "--quick", "--program", env!("CARGO_BIN_EXE_schwann"), "--out"])
        .arg(&place.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let file = std::fs::read_dir(&place.0).unwrap().map(|f| f.unwrap().path()).next().unwrap();
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("schwann-mac-report-") && name.ends_with(".json"), "{name}");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(all["runs"].as_array().unwrap().len() >= 8 && all["calibration"]["limits"].is_array());
}
