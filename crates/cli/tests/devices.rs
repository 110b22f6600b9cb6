//! `schwann devices` and `schwann predict` as people use them.

use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder with a quick calibration, so that nothing here measures for long; it goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("schwann-devices-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn calibrated(test: &str) -> Folder {
        let folder = Folder::new(test);
        folder.ok(&["devices", "calibrate", "--quick"]);
        folder
    }
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.args(args).current_dir(&self.0).env("SCHWANN_DATA", self.0.join("data"));
        command.env("XDG_CONFIG_HOME", self.0.join("config")).env_remove("SCHWANN_DEVICES").output().unwrap()
    }
    fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }
    fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }
    fn refused(&self, args: &[&str], words: &[&str]) {
        let out = self.run(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?}: expected `{word}` in: {said}");
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Every object with a `provenance` has a source, and a value or a reason.
fn walk(value: &serde_json::Value, seen: &mut usize) {
    match value {
        serde_json::Value::Object(map) => {
            if map.contains_key("provenance") && map.contains_key("unit") {
                *seen += 1;
                assert!(map["source"].as_str().is_some_and(|s| !s.is_empty()), "{value}");
                assert!(map["value"].is_number() || map["reason"].is_string(), "{value}");
            }
            map.values().for_each(|v| walk(v, seen));
        }
        serde_json::Value::Array(list) => list.iter().for_each(|v| walk(v, seen)),
        _ => {}
    }
}

#[test]
fn devices_are_listed_shown_and_refused_with_a_suggestion() {
    let folder = Folder::new("list");
    let text = folder.ok(&["devices"]);
    let known = ["M1 Ultra", "M5 Max", "Raspberry Pi Zero 2 W", "Jetson Orin Nano", "Snapdragon", "not calibrated yet"];
    assert!(known.iter().all(|w| text.contains(w)), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let text = folder.ok(&["devices", "show", "m1_max"]);
    assert!(
        ["400 GB/s", "hardware strategies guide", "estimate", "256, 256"].iter().all(|w| text.contains(w)),
        "{text}"
    );
    folder.refused(&["devices", "show", "M1 Mxa"], &["no device `M1 Mxa`", "did you mean `M1 Max`", "devices list"]);
    folder.refused(&["predict", "P", "--device", "M9"], &["no device `M9`"]);
    folder.refused(&["devices", "show", "pi5"], &["no device `pi5`", "did you mean `Raspberry Pi 5`"]);
    folder.refused(&["predict", "nothing"], &["called `nothing`;", "wired-cfc, dense-cfc, projected-cfc, wired-ltc"]);
    for command in ["predict", "profile", "info", "graph", "run"] {
        folder.refused(&[command, "wired-cfk"], &["called `wired-cfk` (did you mean `wired-cfc`?)"]);
    }
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let mut seen = 0;
    walk(&folder.json(&["devices", "show", "M4", "--json"]), &mut seen);
    assert!(seen > 10, "{seen}");
}

#[test]
fn this_machine_is_shown_in_one_place() {
    let folder = Folder::new("host");
    let text = folder.ok(&["devices", "show", "host"]);
    for part in ["this machine", "cores", "kernels", "caches", "memory", "not calibrated yet", "sensors", "rss"] {
        assert!(text.contains(part), "`{part}` in {text}");
    }
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    folder.ok(&["devices", "calibrate", "--quick"]);
    let text = folder.ok(&["devices", "show", "host"]);
    assert!(text.contains("f32 products, 1 thread") && text.contains("calibrated in"), "{text}");
    let json = folder.json(&["devices", "show", "host", "--json"]);
    assert!(json["sensors"]["gpu_power"]["unit"] == "W" && json["calibration"]["figures"].is_array(), "{json}");
    let mut seen = 0;
    walk(&json, &mut seen);
    assert!(seen > 60, "{seen}");
    let gone = folder.run(&["machine"]);
    assert_eq!(gone.status.code(), Some(2), "there is one way to see this machine");
}

/// Starts a process under a limit of its address space, in KiB.
#[cfg(target_os = "linux")]
fn limited(folder: &Folder, kib: usize, args: &str) -> Output {
    let script = format!("ulimit -v {kib} && exec {} {args}", env!("CARGO_BIN_EXE_schwann"));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("SCHWANN_DATA", folder.0.join("data")).output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_calibration_fits_into_the_memory_that_it_is_given() {
    let folder = Folder::new("limited");
    for kib in [400_000, 200_000] {
        let out = limited(&folder, kib, "devices calibrate --quick --json");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(0), "{kib} KiB: {said}");
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert!(json["figures"].as_array().is_some_and(|f| f.len() > 20), "{json}");
    }
}

#[test]
fn processes_that_start_together_calibrate_once() {
    let folder = Folder::new("together");
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.args(["devices", "settings"]).env("SCHWANN_DATA", folder.0.join("data"));
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<_> = (0..4).map(|_| start()).collect();
    let said: Vec<String> = all
        .into_iter()
        .map(|child| {
            let out = child.wait_with_output().unwrap();
            assert!(out.status.success(), "{out:?}");
            String::from_utf8(out.stderr).unwrap()
        })
        .collect();
    let measured = said.iter().filter(|s| s.contains("calibrated; saved as")).count();
    let waited = said.iter().filter(|s| s.contains("another process is calibrating")).count();
    assert_eq!((measured, waited), (1, 3), "{said:?}");
    let left: Vec<_> = std::fs::read_dir(folder.0.join("data")).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_users_own_device_is_read_and_its_mistakes_are_told() {
    let folder = Folder::new("own");
    let dir = folder.0.join("config/schwann");
    std::fs::create_dir_all(&dir).unwrap();
    let toml = folder.ok(&["devices", "show", "M1", "--toml"]).replace("name = \"M1\"", "name = \"Mine\"");
    std::fs::write(dir.join("devices.toml"), &toml).unwrap();
    assert!(folder.ok(&["devices"]).contains("Mine *"));
    std::fs::write(dir.join("devices.toml"), toml.replace("\"GHz\"", "\"Hz\"")).unwrap();
    folder.refused(&["devices"], &["devices.toml, line", "`clock`", "expected `GHz`"]);
}

#[test]
fn a_prediction_has_every_operation_and_stands_beside_a_measurement_here() {
    let folder = Folder::calibrated("predict");
    let there = folder.json(&["predict", "P", "--device", "M1 Max", "--batch", "4", "--steps", "3", "--json"]);
    let ops = there["prediction"]["ops"].as_array().unwrap();
    let sum: f64 = ops.iter().map(|op| op["time"]["value"].as_f64().unwrap()).sum();
    let beside = there["prediction"]["overhead"]["value"].as_f64().unwrap();
    let total = there["prediction"]["time"]["value"].as_f64().unwrap();
    assert!((sum + beside - total).abs() < 1e-9 * total && total > 0.0);
    assert_eq!(there["prediction"]["time"]["provenance"], "predicted");
    assert!(there["prediction"]["neural_engine"]["value"].is_null() && there["measured"].is_null());
    let here = folder.json(&["predict", "L", "--device", "host", "--seconds", "0.02", "--json"]);
    assert!(here["measured"]["value"].as_f64().unwrap() > 0.0 && here["error"]["value"].is_number());
    let all = folder.json(&["predict", "W", "--seconds", "0.02", "--json"]);
    assert!(all["devices"].as_array().unwrap().len() > 16 && all["devices"][0]["host"] == true);
    let mut seen = 0;
    [&there, &here, &all].into_iter().for_each(|v| walk(v, &mut seen));
    assert!(seen > 100, "{seen}");
    let text = folder.ok(&["predict", "P", "--batch", "32", "--steps", "2", "--seconds", "0.02"]);
    assert!(
        ["this machine", "M1 Ultra", "M5 Max: no prediction, the clock", "never compared with a", " to "]
            .iter()
            .all(|w| text.contains(w)),
        "{text}"
    );
}

#[test]
fn files_are_predicted_too() {
    let folder = Folder::calibrated("files");
    folder.ok(&["demo", "net.safetensors", "--model", "gated", "--input", "x.npy"]);
    let text = folder.ok(&["predict", "net.safetensors", "--batch", "32", "--device", "m1", "--seconds", "0.02"]);
    assert!(text.contains("gemm") && text.contains("predicted"), "{text}");
}

#[test]
fn a_corrupt_calibration_is_kept_and_a_directory_that_is_none_is_said() {
    let folder = Folder::calibrated("corrupt");
    let data = folder.0.join("data");
    let file = std::fs::read_dir(&data).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, "nonsense").unwrap();
    let out = folder.run(&["devices", "calibrate", "--quick"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && said.contains("no calibration") && said.contains("kept as"), "{said}");
    let kept = std::fs::read_dir(&data).unwrap().filter_map(|f| std::fs::read_to_string(f.ok()?.path()).ok());
    assert!(kept.into_iter().any(|text| text == "nonsense"));
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::write(&data, "a file").unwrap();
    let out = folder.run(&["devices", "calibrate", "--quick"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    // What was measured is shown; that it could not be kept, which is what the command is for, is an error.
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("not saved") && !out.stdout.is_empty(), "{said}");
}
