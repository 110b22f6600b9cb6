//! A whole study as people make it: calibrate, profile against a device, look at the report and the trace, keep it, hold
//! it against another, and ask the doctor.

mod common;

use common::Place;
use serde_json::Value;

fn read_json(place: &Place, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(place.0.join(name)).unwrap()).unwrap()
}

/// Every number of a document lies in a figure or a series, which says where it comes from.
fn walk(value: &Value, at: &str, figures: &mut usize) {
    match value {
        Value::Object(map) if map.contains_key("provenance") => {
            *figures += 1;
            let known = map.get("value").is_some_and(|v| v.is_number())
                || map.get("values").and_then(Value::as_array).is_some_and(|v| !v.is_empty());
            let word = map["provenance"].as_str().unwrap();
            assert!(["measured", "derived", "predicted", "unavailable"].contains(&word), "{at}: {word}");
            assert_eq!(known, word != "unavailable", "{at}: {value}");
            assert!(map["source"].as_str().is_some_and(|s| !s.is_empty()), "{at}: {value}");
            assert!(map["unit"].is_string(), "{at}: {value}");
            assert!(known || map["reason"].as_str().is_some_and(|r| !r.is_empty()), "{at}: {value}");
        }
        Value::Object(map) => map.iter().for_each(|(key, value)| walk(value, &format!("{at}.{key}"), figures)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| walk(v, &format!("{at}[{i}]"), figures)),
        Value::Number(_) => {
            let place = at.ends_with(".schema") || at.contains(".path[");
            assert!(place, "{at} is a number without a source");
        }
        _ => {}
    }
}

#[test]
fn a_study_from_calibration_to_gate() {
    let place = Place::new("whole");
    place.run(0, &["devices", "calibrate", "--quick"]);
    let quick = ["--batch", "4", "--steps", "4", "--runs", "20", "--seconds", "0.5"];
    let wanted = ["profile", "W", "--device", "m1", "--prove", "--compare", "--json", "--save", "main"];
    let files = ["--trace", "run.trace.json", "--html", "run.html"];
    let (json, _) = place.run(0, &[&wanted[..], &files, &quick].concat());
    std::fs::write(place.0.join("run.json"), &json).unwrap();
    let document = read_json(&place, "run.json");
    let mut figures = 0;
    walk(&document, "", &mut figures);
    assert!(figures > 300, "{figures} figures");
    let profile = &document["profiles"][0];
    assert!(profile["compute"]["of_roof"]["value"].as_f64().is_some_and(|v| v > 0.0));
    assert_eq!(profile["memory"]["allocations"]["value"], 0.0, "a run allocates nothing");
    assert_eq!(profile["requirements"].as_array().unwrap().len(), 6, "the M1's two levels of three");
    assert!(
        profile["devices"].as_array().unwrap().iter().any(|d| d["host"] == true && d["error"]["value"].is_number())
    );
    assert!(!profile["bottlenecks"].as_array().unwrap().is_empty());
    for advice in profile["recommendations"].as_array().unwrap() {
        let tried = advice["verdict"] != "untested";
        assert_eq!(advice["measured"]["value"].is_number(), tried, "{advice}");
    }
    let trace = read_json(&place, "run.trace.json");
    let events = trace["traceEvents"].as_array().unwrap();
    let named =
        |ph: &str, name: &str| events.iter().any(|e| e["ph"] == ph && e["name"].as_str().unwrap().contains(name));
    assert!(named("X", "cfc.inter") && named("C", "live memory") && named("M", "thread_name"));
    // Sensors move with the time: the time on the CPU is known everywhere.
    let times: Vec<f64> = events
        .iter()
        .filter(|e| e["ph"] == "C" && e["name"] == "task_clock per run (s)")
        .map(|e| e["ts"].as_f64().unwrap())
        .collect();
    assert!(times.len() > 3 && times.is_sorted_by(|a, b| a < b), "{times:?}");
    let page = std::fs::read_to_string(place.0.join("run.html")).unwrap();
    assert!(page.contains("data-panel=\"roofline\"") && page.contains("data-panel=\"efficiency\""));

    place.run(0, &["report", "main", "-o", "main.html"]);
    place.run(0, &["report", "run.json", "--plots", "plots"]);
    assert!(place.0.join("plots/roofline.png").exists());
    let (table, _) = place.run(0, &["compare", "main", "run.json"]);
    assert!(table.starts_with("no difference of 1% or more") || table.starts_with("undecided"), "{table}");
    let gate = ["gate", "--baseline", "main", "--candidate", "run.json", "--max-regress", "3%", "--undecided", "pass"];
    let (said, _) = place.run(0, &gate);
    assert!(said.contains("run.json against main is 0.0%"), "{said}");
    // One question has one answer on a page, whoever asks it.
    for advice in profile["recommendations"].as_array().unwrap() {
        let way = match advice["title"].as_str().unwrap() {
            "Use every core" => "threads",
            "Compute products in bfloat16" => "bf16",
            _ => continue,
        };
        let compared = profile["comparisons"].as_array().unwrap();
        let Some(same) = compared.iter().find(|c| c["name"].as_str().unwrap().contains(way)) else { continue };
        assert_eq!((&same["speedup"], &same["verdict"]), (&advice["measured"], &advice["verdict"]), "{advice}");
    }
    let (list, _) = place.run(0, &["baseline", "list"]);
    assert!(list.contains("main"), "{list}");
}

#[test]
fn without_a_command_two_models_are_profiled_and_a_report_is_written() {
    let place = Place::new("alone");
    place.run(0, &["devices", "calibrate", "--quick"]);
    let (page, _) = place.run(0, &[]);
    for part in [
        "wired-cfc: CfC",
        "dense-cfc: CfC",
        "sequence steps/s",
        "Largest possible gain",
        "What to do",
        "predicted",
        "Other ways",
        "(measured)",
    ] {
        assert!(page.contains(part), "`{part}` is not in:\n{page}");
    }
    let report = place.0.join("data/reports/latest.html");
    assert!(page.contains(&report.display().to_string()), "{page}");
    assert!(std::fs::read_to_string(report).unwrap().contains("data-panel=\"summary\""));
}

#[test]
fn requirements_are_an_exit_code_and_the_doctor_says_what_is_not_known() {
    let place = Place::new("doctor");
    place.run(0, &["devices", "calibrate", "--quick"]);
    let (said, _) = place.run(1, &["validate", "W", "--device", "M1", "--require", "target", "--steps", "4"]);
    for part in [
        "asked: at least 3",
        "not reached",
        "predicted: ",
        "Tflop/s",
        "whole chip",
        "above the chip's own published peak of 2.6",
    ] {
        assert!(said.contains(part), "`{part}` in {said}");
    }
    assert!(
        !said.contains("tflop/s") && !said.contains("gb/s") && !said.contains("mib"),
        "units are not words: {said}"
    );
    let (_, said) = place.run(2, &["validate", "W", "--device", "M1 Mxa", "--deadline", "1ms"]);
    assert!(said.contains("did you mean `M1 Max`?"), "{said}");
    let (_, said) = place.run(2, &["validate", "W", "--device", "M4", "--require", "minimum"]);
    assert!(said.contains("requirements for M4") && said.contains("M1 Ultra"), "{said}");
    // What people need: a deadline, a rate, memory; measured here, predicted there.
    let (_, said) = place.run(2, &["validate", "W"]);
    assert!(said.contains("--deadline 1ms") && said.contains("schwann verify"), "{said}");
    let (_, said) = place.run(2, &["validate", "W", "--deadline", "1"]);
    assert!(said.contains("such as 1ms"), "{said}");
    let here = ["validate", "W", "--seconds", "0.5"];
    let (said, _) = place.run(0, &[&here[..], &["--memory", "1GB", "--throughput", "0.001/s"]].concat());
    for part in
        ["this machine, batch 1, 1 step\n", "at most 1GB;", "at least 0.001/s;", "pass", "measured: ", "derived: "]
    {
        assert!(said.contains(part), "`{part}` in {said}");
    }
    // On a busy machine there may be too few runs to be sure; a fail it is not.
    let out = place.command(&[&here[..], &["--deadline", "1000s"]].concat()).output().unwrap();
    assert!([Some(0), Some(3)].contains(&out.status.code()), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stdout).contains("95%"), "{out:?}");
    let (said, _) = place.run(1, &[&here[..], &["--deadline", "1ns", "--memory", "1B"]].concat());
    assert!(said.contains("fail"), "{said}");
    // Too few runs to tell one in a thousand.
    let (said, _) =
        place.run(3, &["validate", "W", "--batch", "256", "--steps", "256", "--deadline", "100s", "--seconds", "0.1"]);
    assert!(said.contains("cannot tell") && said.contains("too few runs"), "{said}");
    let there = ["validate", "W", "--device", "Raspberry Pi 5", "--json"];
    let (said, _) = place.run(0, &[&there[..], &["--deadline", "1s"]].concat());
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["verdict"], &said["needs"][0]["reached"]["provenance"]), (&"pass".into(), &"predicted".into()));
    assert_eq!(said["needs"][0]["reached"]["spread"]["ends"], "band");
    place.run(1, &[&there[..], &["--deadline", "1ns"]].concat());
    place.run(3, &[&there[..], &["--p99", "1s"]].concat());
    let out = place.command(&["doctor", "W", "--batch", "1", "--steps", "2", "--json"]).output().unwrap();
    // A build for tests is itself a problem.
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
    let checks: Value = serde_json::from_slice(&out.stdout).unwrap();
    let checks = checks["checks"].as_array().unwrap();
    let state = |name: &str| checks.iter().find(|c| c["name"] == name).map(|c| c["state"].as_str().unwrap().to_owned());
    for name in ["instruction set", "kernel fusion", "allocation", "threads", "alignment", "batch size", "type"] {
        assert!(state(name).is_some_and(|s| s != "unknown"), "{name}: {:?}", state(name));
    }
    assert!(checks.iter().all(|c| !c["finding"].as_str().unwrap().is_empty()));
    let (page, _) = place.run(1, &["doctor"]);
    assert!(page.contains("memory pressure") && page.contains("not known here"), "{page}");
}
