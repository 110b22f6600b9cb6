//! `schwann train` as people use it: a training that is killed goes on to the same weights, what is wrong is said with its
//! place, and what was good is kept.

use crate::common::Place;
use schwann_core::io::npy;
use schwann_core::io::safetensors::Reader;
use schwann_core::{Tensor, io};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

/// A training with everything that is random: order, dropout, division; and all that is remembered.
const TRAINING: &str = r#"
[model]
seed = 3
layers = [{ class = "CfC", input_size = 2, units = 6, proj_size = 1, backbone_units = 8, backbone_layers = 2, backbone_dropout = 0.2 }]
[data]
example = "cart-pole"
window = 8
validation = 0.5
normalize = "both"
[train]
steps = 2400
batch = 8
rate = 0.003
schedule = "cosine"
warm_up = 30
clip_norm = 1.0
validate_every = 400
checkpoint_every = 10
seed = 5
[output]
folder = "run"
"#;

fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let tensors = Reader::open(path).unwrap().tensors().unwrap();
    tensors.into_iter().map(|(name, data)| (name, data.bytes().to_vec())).collect()
}

fn write(place: &Place, name: &str, text: &str) {
    std::fs::write(place.0.join(name), text).unwrap();
}

/// Numbers without order, for moments.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn a_training_that_is_killed_at_twenty_moments_comes_to_the_same_weights() {
    let place = Place::new("train-killed");
    write(&place, "whole.toml", &TRAINING.replace("\"run\"", "\"whole\""));
    write(&place, "killed.toml", &TRAINING.replace("\"run\"", "\"killed\""));
    place.run(0, &["train", "whole.toml", "--threads", "1", "--quiet"]);
    let last = place.0.join("killed/last.safetensors");
    let changed = || std::fs::metadata(&last).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut seed = 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id());
    let (mut kills, mut resumed, mut tries) = (0, 0, 0);
    while kills < 20 {
        tries += 1;
        assert!(tries < 100, "{kills} kills in {tries} tries: the training is too short to be met");
        let before = changed();
        let mut child = place.command(&["train", "killed.toml", "--threads", "1", "--quiet"]);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Every other kill comes after a new checkpoint, so that there is progress; the rest at any moment.
        while kills % 2 == 0 && changed() == before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(random(&mut seed) % 60_000));
        if child.try_wait().unwrap().is_some() {
            // On a machine that was busy elsewhere it came to its end: once more from the beginning.
            std::fs::remove_dir_all(place.0.join("killed")).unwrap();
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        resumed += usize::from(last.exists());
    }
    assert!(resumed >= 10, "{resumed} of {kills} kills left a checkpoint");
    place.run(0, &["train", "killed.toml", "--threads", "1", "--quiet"]);
    for file in ["last.safetensors", "best.safetensors"] {
        let (whole, killed) = (tensors(&place.0.join("whole").join(file)), tensors(&place.0.join("killed").join(file)));
        assert!(whole.len() > 8 && whole == killed, "{file} differs");
    }
    let losses = |folder: &str| -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(place.0.join(folder).join("log.jsonl")).unwrap();
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        text.lines().map(line).map(|r| serde_json::json!([r["step"], r["loss"], r["validation"]])).collect()
    };
    assert_eq!(losses("whole"), losses("killed"));
}

#[test]
fn a_full_disk_leaves_the_last_good_checkpoint() {
    let place = Place::new("train-full");
    write(&place, "my.toml", &TRAINING.replace("steps = 2400", "steps = 20"));
    place.run(0, &["train", "my.toml", "--quiet"]);
    let before = tensors(&place.0.join("run/last.safetensors"));
    write(&place, "my.toml", &TRAINING.replace("steps = 2400", "steps = 40"));
    let program = env!("CARGO_BIN_EXE_schwann");
    let mut shell = std::process::Command::new("bash");
    // A file may have 512 bytes here; the signal for more is not obeyed.
    shell.current_dir(&place.0).args(["-c", &format!("ulimit -f 1; {program} train my.toml --quiet")]);
    let out = shell.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("the file is as it was"), "{said}");
    assert_eq!(tensors(&place.0.join("run/last.safetensors")), before);
    // And goes on from there when there is room.
    let (_, said) = place.run(0, &["train", "my.toml"]);
    assert!(said.contains("goes on from step 20"), "{said}");
}

/// Arrays of a training, with a number of x and one of y in the fourth sequence's fifth step.
fn arrays(place: &Place, value: f32, wanted: f32) {
    let mut x: Vec<f32> = (0..6 * 10 * 2).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut y: Vec<f32> = (0..6 * 10).map(|i| (i as f32 * 0.3).cos()).collect();
    x[(3 * 10 + 4) * 2 + 1] = value;
    y[3 * 10 + 4] = wanted;
    io::write_npy(place.0.join("x.npy"), &Tensor::new(&[6, 10, 2], &x).unwrap()).unwrap();
    std::fs::write(place.0.join("y.npy"), npy::to_bytes(&Tensor::new(&[6, 10, 1], &y).unwrap()).unwrap()).unwrap();
}

const ARRAYS: &str = r#"
[model]
layers = [{ class = "CfC", input_size = 2, units = 6, proj_size = 1 }]
[data]
inputs = "x.npy"
targets = "y.npy"
[train]
steps = 30
batch = 2
rate = 0.01
validate_every = 5
checkpoint_every = 1
"#;

#[test]
fn what_is_not_finite_is_found_where_it_is_first() {
    let place = Place::new("train-nan");
    arrays(&place, f32::NAN, 0.5);
    write(&place, "my.toml", ARRAYS);
    let (_, said) = place.run(2, &["train", "my.toml"]);
    for words in ["`x` is NaN", "row 34, column 1", "sequence 3", "expected a finite number"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // A number that is finite and far too large: its square is not, and is named, with its place.
    arrays(&place, 0.5, 1e30);
    let (_, said) = place.run(2, &["train", "my.toml", "--anew"]);
    for words in ["the loss is not finite. First of all, `loss.each`", "in row ", "step 4"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // What was before is kept, and is a model; where the first batch has it, there is none.
    if place.0.join("training/last.safetensors").exists() {
        assert!(said.contains("last.safetensors is of before it"), "{said}");
        place.run(0, &["info", "training/last.safetensors"]);
    }
}

#[test]
fn a_training_is_evaluated_exported_and_read_back() {
    let place = Place::new("train-eval");
    arrays(&place, 0.5, 0.5);
    write(&place, "my.toml", ARRAYS);
    let (lines, _) = place.run(0, &["train", "my.toml", "--json", "--threads", "2"]);
    let lines: Vec<serde_json::Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 7, "{lines:?}");
    let result = &lines[6];
    assert_eq!((&result["ended"], &result["steps"]), (&"done".into(), &30.into()), "{result}");
    assert!(lines[5]["loss"].as_f64() < lines[0]["loss"].as_f64());
    for file in ["best.safetensors", "last.safetensors", "log.csv", "log.jsonl", "curves.svg", "report.html"] {
        assert!(place.0.join("training").join(file).exists(), "{file}");
    }
    let (json, _) = place.run(0, &["eval", "my.toml", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["loss"].as_f64().unwrap() < lines[0]["loss"].as_f64().unwrap(), "{json}");
    // A checkpoint is a model too.
    place.run(0, &["eval", "my.toml", "--model", "training/last.safetensors"]);
    place.run(0, &["export", "ncps", "training/best.safetensors", "-o", "py.safetensors"]);
    place.run(0, &["import", "ncps", "py.safetensors", "-o", "back.safetensors"]);
    assert_eq!(tensors(&place.0.join("back.safetensors")), tensors(&place.0.join("training/best.safetensors")));
    place.run(0, &["train", "my.toml", "--graph", "step.safetensors"]);
    let (page, _) = place.run(0, &["graph", "step.safetensors", "--plan", "--set", "B=2", "--set", "T=10"]);
    assert!(page.contains("step.fc.weight"), "the optimizer is part of the step: {page}");
    place.run(0, &["train", "my.toml", "--write-data", "data.npz"]);
    assert_eq!(io::read_npz(place.0.join("data.npz")).unwrap()["x"].shape(), [6, 10, 2]);
    let (table, _) = place.run(0, &["train", "my.toml", "--ways"]);
    assert!(table.contains("whole") && table.contains("measured"), "{table}");
    // Another training does not go on from this one.
    write(&place, "my.toml", &ARRAYS.replace("rate = 0.01", "rate = 0.02"));
    let (_, said) = place.run(2, &["train", "my.toml"]);
    assert!(said.contains("of another training") && said.contains("--anew"), "{said}");
}

#[test]
fn a_mistake_in_a_training_is_named_with_key_and_line() {
    let place = Place::new("train-mistakes");
    arrays(&place, 0.5, 0.5);
    for (from, to, words) in [
        ("batch = 2", "bach = 2", &["my.toml, line 9", "unknown field `bach`"][..]),
        ("batch = 2", "batch = 0", &["my.toml, line 9", "`batch` is 0; expected 1 at least"]),
        ("\"y.npy\"", "\"z.npy\"", &["z.npy"]),
        ("units = 6", "units = 6, mode = \"slow\"", &["my.toml, line 3", "slow"]),
        ("input_size = 2", "input_size = 3", &["x", "2 features", "3, as the model has"]),
    ] {
        write(&place, "my.toml", &ARRAYS.replace(from, to));
        let (_, said) = place.run(2, &["train", "my.toml"]);
        assert!(words.iter().all(|word| said.contains(word)), "{to}: {said}");
    }
    let (_, said) = place.run(2, &["train", "--example", "sin"]);
    assert!(said.contains("did you mean `sine`"), "{said}");
}

#[test]
fn a_network_that_learned_to_be_ternary_loses_nothing_when_it_is_kept_so() {
    let place = Place::new("train-ternary");
    arrays(&place, 0.5, 0.5);
    let rounded = format!("{ARRAYS}\n[[groups]]\nparameters = \"*.weight\"\nround = \"ternary\"\n");
    write(&place, "my.toml", &rounded.replace("steps = 30", "steps = 60"));
    let (lines, _) = place.run(0, &["train", "my.toml", "--json"]);
    let losses: Vec<serde_json::Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(losses[11]["loss"].as_f64() < losses[0]["loss"].as_f64(), "{lines}");
    let json = ["quantize", "training/best.safetensors", "--to", "ternary", "--json", "-o", "small.safetensors"];
    let (found, _) = place.run(0, &json);
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let off = found["outputs"]["relative"].as_f64().unwrap_or(0.0);
    assert!(off < 1e-5, "{off}: {found}");
}
