//! The program as people use it: every command, every form, and what it says to bad input.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A folder that goes away with the test.
struct Folder(PathBuf);
impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("schwann-cli-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    /// A folder with an example network `net.safetensors` and an input `x.npy`.
    fn with(test: &str, model: &str) -> Folder {
        let folder = Folder::new(test);
        let made = folder.run(&["demo", "net.safetensors", "--model", model, "--input", "x.npy"]);
        assert!(made.status.success(), "{}", stderr(&made));
        folder
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.args(args).current_dir(&self.0).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command.env("SCHWANN_DATA", self.0.join("data"));
        command
    }
    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
    /// Runs and expects success; gives what was printed.
    fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", stderr(&out));
        String::from_utf8(out.stdout).unwrap()
    }
    fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }
    /// Runs and expects exit code 2, nothing on stdout, and these words on stderr.
    fn refused(&self, args: &[&str], words: &[&str]) {
        let out = self.run(args);
        let said = stderr(&out);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(out.stdout.is_empty(), "{args:?} printed before it failed");
        assert!(!said.contains("panicked"), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?}: expected `{word}` in: {said}");
        }
    }
    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn exists(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.len() > 0)
}

#[test]
fn help_shows_examples_for_every_command() {
    let folder = Folder::new("help");
    for args in [&["--help"][..], &["graph", "--help"], &["run", "--help"], &["bench", "--help"], &["demo", "--help"]] {
        let text = folder.ok(args);
        assert!(text.contains("Examples:") && text.contains("schwann "), "{args:?}: {text}");
    }
    assert!(folder.ok(&["--version"]).starts_with("schwann "));
}

#[test]
fn a_graph_is_shown_in_every_form() {
    for (model, sizes) in [
        ("mlp", &["--set", "B=4"][..]),
        ("rnn", &["--set", "B=4", "--set", "T=3"]),
        ("transformer", &["--set", "B=1", "--set", "T=5"]),
        ("gated", &["--set", "B=7"]),
    ] {
        let folder = Folder::with(&format!("graph-{model}"), model);
        let net = "net.safetensors";
        assert!(folder.ok(&["graph", net]).contains("return y"));
        assert!(folder.ok(&["graph", net, "--optimized"]).contains("return y"));
        assert!(folder.ok(&["graph", net, "--dot"]).starts_with("digraph"));
        assert!(folder.json(&["graph", net, "--json"])["nodes"].is_array());
        assert!(folder.ok(&["graph", net, "--passes"]).contains("fuse"));
        assert!(folder.json(&["graph", net, "--passes", "--json"]).is_array());
        let picture = folder.ok(&["graph", net, "--svg", "-"]);
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>") && picture.contains("viewBox"));
        folder.ok(&["graph", net, "--svg", "net.svg"]);
        assert!(exists(&folder.path("net.svg")));

        let plan = [&["graph", net, "--plan", "--no-predict"][..], sizes].concat();
        assert!(folder.ok(&plan).contains("derived"));
        assert!(folder.ok(&[&plan[..], &["--dot"]].concat()).starts_with("digraph"));
        assert!(folder.ok(&[&plan[..], &["--svg", "-"]].concat()).starts_with("<svg"));
        let json = folder.json(&[&plan[..], &["--json"]].concat());
        assert!(json["steps"].as_array().is_some_and(|s| !s.is_empty()));
        assert!(json["estimate"]["time"].is_null());
    }
}

#[test]
fn a_plan_is_predicted_from_a_calibration_and_says_how_to_get_one() {
    let folder = Folder::with("predict", "mlp");
    let plan = ["graph", "net.safetensors", "--plan", "--set", "B=8", "--threads", "1"];
    let without = folder.run(&plan);
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.success() && said.contains("schwann devices calibrate"), "{said}");
    assert!(!String::from_utf8_lossy(&without.stdout).contains("predicted"));
    folder.ok(&["devices", "calibrate", "--quick"]);
    let text = folder.ok(&plan);
    assert!(text.contains("predicted") && text.contains(" to "), "{text}");
    let json = folder.json(&["graph", "net.safetensors", "--plan", "--set", "B=8", "--threads", "1", "--json"]);
    assert_eq!(json["estimate"]["time"]["provenance"], "predicted");
    let text = folder.ok(&["graph", "net.safetensors", "--fusion", "--set", "B=8"]);
    assert!(text.contains("matmul epilogue"), "{text}");
    assert!(folder.json(&["graph", "net.safetensors", "--fusion", "--set", "B=8", "--json"]).is_array());
}

#[test]
fn a_graph_without_weights_can_be_planned_but_not_run() {
    let folder = Folder::with("json", "mlp");
    folder.write("net.json", folder.ok(&["graph", "net.safetensors", "--json"]).as_bytes());
    assert!(folder.ok(&["graph", "net.json"]).contains("weights without data"));
    assert!(folder.ok(&["graph", "net.json", "--plan", "--no-predict", "--set", "B=2"]).contains("steps on cpu"));
    folder.refused(&["run", "net.json", "--input", "x.npy"], &["layer1.weight"]);
}

#[test]
fn a_network_runs_and_agrees_with_the_reference() {
    for model in ["mlp", "transformer", "gated", "rnn"] {
        let folder = Folder::with(&format!("run-{model}"), model);
        let text = folder.ok(&["run", "net.safetensors", "--input", "x.npy", "--check", "--threads", "1"]);
        assert!(text.contains("agrees") && text.contains("mean"), "{text}");
        let text = folder.ok(&["run", "net.safetensors", "--input", "x=x.npy", "--output", "y.npy", "--repeat", "3"]);
        assert!(text.contains("y.npy") && text.contains("median") && text.contains("measured"), "{text}");
        assert!(exists(&folder.path("y.npy")));
        let json = folder.json(&["run", "net.safetensors", "--input", "x.npy", "--json", "--repeat", "2"]);
        assert_eq!(json["outputs"][0]["name"], "y");
        assert_eq!(json["timing"]["provenance"], "measured");
    }
}

#[test]
fn a_state_goes_on_where_it_was_left() {
    let folder = Folder::with("state", "rnn");
    let run = |more: &[&str]| {
        let args = [&["run", "net.safetensors", "--input", "x.npy", "--json", "--threads", "1"][..], more].concat();
        folder.json(&args)["outputs"][0]["first"].clone()
    };
    let twice = run(&["--repeat", "2"]);
    let first = run(&["--state-out", "s.npz"]);
    let second = run(&["--state-in", "s.npz", "--check"]);
    assert_eq!(second, twice);
    assert_ne!(first, second);
    folder.refused(&["run", "net.safetensors", "--input", "x.npy", "--state-in", "x.npy"], &["x.npy"]);
}

#[test]
fn bad_input_is_refused_with_words() {
    let folder = Folder::with("bad", "mlp");
    folder.write("empty.safetensors", b"");
    folder.write("noise.safetensors", &[0xff; 300]);
    folder.write("noise.npy", b"\x93NUMPY\x01\x00\xff\xffnothing");
    folder.write("noise.json", b"{\"version\": 1, \"nodes\": [");
    folder.write("huge.json", br#"{"version":1,"nodes":[{"name":"w","op":{"weight":{"name":"w","ty":{"dtype":"f32","shape":[1000000,1000000]}}}},{"name":"y","op":{"unary":"exp"},"inputs":[[0,0]]}],"outputs":[{"name":"y","value":[1,0]}]}"#);
    folder.ok(&["demo", "rnn.safetensors", "--model", "rnn"]);
    let net = "net.safetensors";
    folder.refused(&["graph", "missing.safetensors"], &["missing.safetensors"]);
    folder.refused(&["graph", "empty.safetensors"], &["empty.safetensors", "expected"]);
    folder.refused(&["graph", "noise.safetensors"], &["noise.safetensors"]);
    folder.refused(&["graph", "x.npy"], &["x.npy"]);
    folder.refused(&["graph", "noise.json"], &["noise.json", "line"]);
    folder.refused(&["graph", "huge.json", "--plan", "--no-predict"], &["`w`", "more than"]);
    folder.refused(&["graph", "."], &[]);
    folder.refused(&["graph", net, "--plan"], &["`B`", "--set B=32"]);
    folder.refused(&["graph", net, "--plan", "--set", "Q=1"], &["no symbol `Q`", "`B`"]);
    folder.refused(&["graph", net, "--plan", "--set", "B"], &["SYMBOL=SIZE"]);
    folder.refused(&["graph", net, "--plan", "--set", "B=-1"], &["not a size"]);
    folder.refused(&["graph", net, "--plan", "--set", "B=1", "--set", "B=2"], &["twice"]);
    folder.refused(&["graph", net, "--plan", "--no-predict", "--set", "B=18446744073709551615"], &["size"]);
    folder.refused(&["graph", net, "--dot", "--json"], &["cannot be used with"]);
    folder.refused(&["graph", net, "--passes", "--dot"], &["--passes"]);
    folder.refused(&["graph", net, "--svg", "no/such/folder/x.svg"], &["no/such/folder"]);
    folder.refused(&["run", net], &["no data for input `x`", "f32[B, 64]"]);
    folder.refused(&["run", net, "--input", "missing.npy"], &["missing.npy"]);
    folder.refused(&["run", net, "--input", "noise.npy"], &["noise.npy"]);
    folder.refused(&["run", net, "--input", "z=x.npy"], &["no input `z`", "x: f32[B, 64]"]);
    folder.refused(&["run", net, "--input", "x.npy", "--input", "x=x.npy"], &["twice"]);
    folder.refused(&["run", net, "--input", "x.npy", "--output", "q=y.npy"], &["no output `q`", "y: f32"]);
    folder.refused(&["run", net, "--input", "x.npy", "--repeat", "0"], &["0"]);
    folder.refused(&["run", net, "--input", "x.npy", "--threads", "many"], &["expected a number"]);
    folder.refused(&["run", net, "--input", "x.npy", "--isa", "mmx"], &["this CPU has", "portable"]);
    folder.refused(&["run", net, "--input", "x.npy", "--state-out", "s.npz"], &["no states"]);
    folder.refused(&["run", "rnn.safetensors", "--input", "x.npy"], &["`x`", "f32[B, T, 8]"]);
    folder.refused(&["bench", "ops", "--filter", "no such case"], &["no case"]);
    folder.refused(&["bench", "ops", "--seconds", "0"], &["more than 0"]);
    folder.refused(&["demo", "no/such/folder/net.safetensors"], &["no/such/folder"]);
    folder.refused(&["demo", "net.safetensors", "--model", "cnn"], &["transformer"]);
    folder.refused(&["nonsense"], &["nonsense"]);
}

#[test]
fn bench_gives_one_json_object_a_line() {
    let folder = Folder::new("bench");
    let args = ["bench", "ops", "--filter", "unary/tanh/f32/4096", "--seconds", "0.01", "--threads", "1", "--json"];
    let text = folder.ok(&args);
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines[0]["kind"], "roof");
    let case = &lines[1];
    assert_eq!((&case["case"], &case["threads"]), (&"unary/tanh/f32/4096".into(), &1.into()));
    assert!(case["min_s"].as_f64().unwrap() > 0.0 && case["min_s"].as_f64() <= case["median_s"].as_f64());
    assert_eq!(case["flops"], 4096);
    assert_eq!(case["provenance"]["times"], "measured");
    let table =
        folder.ok(&["bench", "ops", "--filter", "overhead", "--seconds", "0.01", "--threads", "1", "--no-roof"]);
    assert!(table.contains("overhead/10-steps") && table.contains("measured"), "{table}");
    assert!(folder.ok(&["bench", "ops", "--list"]).lines().count() > 30);
}

#[test]
fn colours_are_for_terminals_and_for_those_who_ask() {
    let folder = Folder::with("colour", "mlp");
    let escapes = |out: Output| out.stdout.contains(&0x1b);
    assert!(!escapes(folder.run(&["graph", "net.safetensors"])));
    assert!(escapes(folder.run(&["graph", "net.safetensors", "--color", "always"])));
    assert!(!escapes(folder.command(&["graph", "net.safetensors"]).env("NO_COLOR", "1").output().unwrap()));
    assert!(escapes(folder.command(&["graph", "net.safetensors"]).env("CLICOLOR_FORCE", "1").output().unwrap()));
    let refused = folder.command(&["graph", "none"]).env("NO_COLOR", "1").output().unwrap();
    assert!(!refused.stderr.contains(&0x1b));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = Folder::with("pipe", "transformer");
    for args in
        [&["graph", "net.safetensors", "--json"][..], &["graph", "net.safetensors"], &["bench", "ops", "--list"]]
    {
        let mut child = folder.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).is_empty(), "{args:?}: {}", stderr(&out));
    }
}

#[test]
fn a_reader_that_goes_away_changes_no_verdict_and_costs_no_file() {
    let folder = Folder::with("gone", "rnn");
    folder.write("garbage.safetensors", b"no model");
    let gone = |args: &[&str]| {
        let mut child = folder.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        child.wait_with_output().unwrap()
    };
    assert_eq!(gone(&["verify", "garbage.safetensors"]).status.code(), Some(2));
    let run = ["run", "net.safetensors", "--input", "x.npy", "--output", "y=-", "--state-out", "s.npz"];
    let out = gone(&run);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(folder.path("s.npz").exists(), "{}", stderr(&out));
}
