//! Neural circuits on the command line: import, info, verify, run, streams and timing, and what is said to bad input.

use schwann::io::{npy, npz, safetensors};
use schwann::nn::wiring::AutoNcp;
use schwann::nn::{Cfc, Embedding, Layer, Ltc, Model};
use schwann::{DType, Tensor};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// A folder that goes away with the test.
struct Folder(PathBuf);
impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("schwann-circuits-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    /// A folder with a model of three inputs and two outputs, `m.safetensors`.
    fn with(test: &str, layer: impl Into<Layer>) -> Folder {
        let folder = Folder::new(test);
        Model::new(layer.into(), 7).unwrap().save(folder.0.join("m.safetensors")).unwrap();
        folder
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command
    }
    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        checked(self.run(args))
    }
    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }
    /// Expects exit code 2, nothing on stdout, and these words on stderr.
    #[track_caller]
    fn refused(&self, args: &[&str], words: &[&str]) {
        let out = self.run(args);
        assert!(out.stdout.is_empty(), "{args:?} printed before it failed");
        refused(&out, words);
    }
    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
    /// `schwann run m.safetensors --stream` with this on its stdin.
    fn stream(&self, rows: &str, more: &[&str]) -> Output {
        let mut child = self.spawn(&[&["run", "m.safetensors", "--stream"], more].concat());
        // A program that refuses its first line may be gone before it has read the rest.
        let _ = child.stdin.take().unwrap().write_all(rows.as_bytes());
        child.wait_with_output().unwrap()
    }
    fn tensor(&self, name: &str, shape: &[usize], values: &[f32]) {
        npy::write_npy(self.0.join(name), &Tensor::new(shape, values).unwrap()).unwrap();
    }
    fn values(&self, name: &str) -> Vec<f32> {
        npy::read_npy(self.0.join(name)).unwrap().values::<f32>().unwrap().to_vec()
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn checked(out: Output) -> String {
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    String::from_utf8(out.stdout).unwrap()
}

#[track_caller]
fn refused(out: &Output, words: &[&str]) {
    let said = stderr(out);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "expected `{word}` in: {said}");
    }
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn golden(name: &str) -> String {
    format!("{}/../nn/tests/golden/{name}.safetensors", env!("CARGO_MANIFEST_DIR"))
}

fn circuit() -> Cfc {
    Cfc::new(3, AutoNcp::new(10, 2).wiring().unwrap())
}

/// Rows of CSV as numbers.
fn numbers(text: &str) -> Vec<Vec<f32>> {
    text.lines().map(|line| line.split(',').map(|f| f.parse().unwrap()).collect()).collect()
}

#[test]
fn help_shows_examples() {
    let folder = Folder::new("help");
    for args in
        [&["import"][..], &["import", "ncps"], &["info"], &["verify"], &["run"], &["bench"], &["bench", "circuits"]]
    {
        let text = folder.ok(&[args, &["--help"]].concat());
        assert!(text.contains("Examples:\n  schwann "), "{args:?}: {text}");
    }
}

#[test]
fn a_model_of_ncps_is_imported_shown_and_run() {
    let folder = Folder::new("import");
    let said = folder.ok(&["import", "ncps", &golden("wired_cfc_auto"), "-o", "m.safetensors"]);
    for words in ["m.safetensors, 48.8 KiB", "x f32[B, T, 8]", "AutoNCP", "423, 10.3% of all pairs", "10436, 40.7 KiB"]
    {
        assert!(said.contains(words), "expected `{words}` in\n{said}");
    }
    assert!(said.lines().count() < 25 && !said.contains('\x1b') && !said.contains("\\u00"), "{said}");
    assert!(said.contains("\n\nCfC\n") && said.contains("\n\nIn all\n"), "{said}");
    assert_eq!(folder.ok(&["info", "m.safetensors"]), said);
    let info = folder.json(&["info", "m.safetensors", "--json"]);
    assert_eq!(info["parameters"], 10436);
    assert_eq!(info["layers"][0]["synapses"], 423);
    assert_eq!(info["layers"][0]["options"]["units"]["class"], "AutoNCP");
    let size = std::fs::metadata(folder.0.join("m.safetensors")).unwrap().len();
    assert_eq!(info["file_bytes"], size);
    for figure in ["step_flops", "step_bytes", "arena_bytes", "resident_bytes", "state_bytes"] {
        assert!(info[figure].as_u64().is_some_and(|n| n > 0), "{figure}: {info}");
    }
    assert_eq!(
        folder.json(&["import", "ncps", &golden("ltc_full"), "-o", "l.safetensors", "--json"])["file"],
        "l.safetensors"
    );

    // The exported file is a model too, and both give what ncps gave.
    let file = safetensors::Reader::open(golden("wired_cfc_auto")).unwrap();
    npy::write_npy(folder.0.join("x.npy"), &file.tensor("x").unwrap()).unwrap();
    for model in ["m.safetensors", &golden("wired_cfc_auto")] {
        folder.ok(&["run", model, "--input", "x.npy", "--output", "y.npy", "--check"]);
        let expected = file.tensor("y").unwrap();
        let got = folder.values("y.npy");
        let off = got.iter().zip(expected.values::<f32>().unwrap()).map(|(a, b)| (a - b).abs());
        assert!(off.fold(0.0, f32::max) < 1e-5);
        assert!(folder.ok(&["graph", model]).contains("state: hn of one run is h0 of the next"));
        assert!(folder.ok(&["graph", model, "--plan", "--no-predict", "--set=B=1", "--set=T=1"]).contains("scan"));
    }
}

#[test]
fn what_cannot_be_imported_is_refused_with_the_way_out() {
    let folder = Folder::with("pickle", circuit());
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.0.join(name), bytes).unwrap();
    write("model.pt", b"PK\x03\x04 and so on");
    write("model.bin", b"\x80\x02}q\x00.");
    for name in ["model.pt", "model.bin"] {
        for args in [&["import", "ncps", name, "-o", "out"][..], &["info", name], &["run", name], &["verify", name]] {
            folder.refused(args, &[name, "pickle", "export_ncps.py"]);
        }
    }
    assert!(!folder.0.join("out").exists());
    folder.refused(&["import", "ncps", "m.safetensors", "-o", "out"], &["m.safetensors", "no `config`"]);
    folder.refused(&["import", "ncps", "nowhere", "-o", "out"], &["nowhere"]);
    folder.refused(&["import", "ncps", &golden("cfc_pure"), "-o", "no/such/out"], &["no/such/out"]);
    folder.refused(&["import", "ncps", &golden("cfc_pure")], &["--output"]);
    folder.refused(&["import", "keras", "x"], &["keras"]);
    folder.refused(&["info", "nowhere"], &["nowhere"]);
}

#[test]
fn a_graph_has_its_figures_too() {
    let folder = Folder::new("graph");
    folder.ok(&["demo", "net.safetensors", "--model", "rnn"]);
    assert!(folder.ok(&["info", "net.safetensors"]).contains("a graph of"));
    assert!(folder.json(&["info", "net.safetensors", "--json"])["flops"].as_u64().is_some_and(|n| n > 0));
    folder.refused(&["bench", "circuits", "--model", "net.safetensors"], &["a graph without layers"]);
}

#[test]
fn files_of_results_are_compared() {
    let folder = Folder::new("verify");
    let files = [golden("cfc_pure"), golden("ltc_timespans"), golden("wiring_ncp")];
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let said = folder.ok(&[&["verify"], &files[..], &["--grad"]].concat());
    assert!(said.contains("3 of 3 files agree on cpu") && said.lines().count() == 4, "{said}");
    assert!(said.contains("gradients") && said.contains("exact") && said.matches("  ok\n").count() == 3, "{said}");
    assert!(folder.ok(&["verify", files[0], "--reference"]).contains("ok"));
    assert!(folder.ok(&["verify", files[0], "--isa", "portable"]).contains("ok"));
    let lines = folder.ok(&[&["verify", "--json", "--grad"], &files[..]].concat());
    let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["verdict"], &lines[0]["class"]), (&"ok".into(), &"CfC".into()));
    assert!(lines[0]["largest_gradient_error"].as_f64().is_some_and(|e| e < 1e-4));

    // One that is off, one that is not there, one that is whole: each is told.
    let off = folder.run(&["verify", files[0], "--atol=0", "--rtol=1e-12"]);
    assert_eq!(off.status.code(), Some(1), "{}", stderr(&off));
    let text = String::from_utf8(off.stdout).unwrap();
    assert!(text.contains("OFF") && text.contains("y: off by") && text.contains("in f64"), "{text}");
    let mixed = folder.run(&["verify", files[0], "missing.safetensors", files[2]]);
    refused(&mixed, &["missing.safetensors"]);
    let text = String::from_utf8(mixed.stdout).unwrap();
    assert!(text.contains("2 of 3 files agree") && text.contains("1 not compared"), "{text}");
    folder.refused(&["verify"], &["FILE"]);
    folder.refused(&["verify", files[0], "--atol=-1"], &["--atol", "not negative"]);
    folder.refused(&["verify", files[0], "--rtol=much"], &["--rtol"]);
}

#[test]
fn a_model_runs_with_times_states_and_without_a_batch() {
    for (name, layer) in [("cfc", Layer::from(circuit())), ("ltc", Ltc { mixed_memory: true, ..Ltc::new(3, 4) }.into())]
    {
        let folder = Folder::with(&format!("run-{name}"), layer);
        let x: Vec<f32> = (0..24).map(|i| (i as f32 * 0.7).sin()).collect();
        folder.tensor("x.npy", &[2, 4, 3], &x);
        folder.tensor("one.npy", &[4, 3], &x[..12]);
        folder.tensor("t.npy", &[2, 4, 1], &[0.5; 8]);
        let run = |args: &[&str]| folder.ok(&[&["run", "m.safetensors", "--check", "--threads=1"], args].concat());
        run(&["--input=x.npy", "--timespans=t.npy", "--output=timed.npy"]);
        run(&["--input=x.npy", "--dt=0.5", "--output=constant.npy"]);
        run(&["--input=x.npy", "--output=whole.npy"]);
        let (timed, constant) = (folder.values("timed.npy"), folder.values("constant.npy"));
        assert!(timed.iter().zip(&constant).all(|(a, b)| (a - b).abs() < 1e-6));
        assert_ne!(folder.values("whole.npy"), constant);
        // Without a batch, and in two parts: the same as the first sample of the whole.
        run(&["--input=one.npy", "--output=one-y.npy"]);
        let (one, whole) = (folder.values("one-y.npy"), folder.values("whole.npy"));
        assert!(one.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-6));
        folder.tensor("a.npy", &[1, 2, 3], &x[..6]);
        folder.tensor("b.npy", &[2, 3], &x[6..12]);
        run(&["--input=a.npy", "--state-out=s.npz"]);
        run(&["--input=b.npy", "--state=s.npz", "--output=b-y.npy"]);
        assert!(folder.values("b-y.npy").iter().zip(&one[one.len() / 2..]).all(|(a, b)| (a - b).abs() < 1e-6));

        folder.refused(
            &["run", "m.safetensors", "--input=x.npy", "--state=s.npz"],
            &["s.npz", "0` is f32[1", "expected f32[2"],
        );
        folder.refused(&["run", "m.safetensors", "--input=one.npy", "--timespans=t.npy"], &["`timespans`", "f32[4]"]);
        folder.refused(&["run", "m.safetensors", "--input=x.npy", "--timespans=t.npy", "--dt=1"], &["--dt"]);
        folder.refused(&["run", "m.safetensors", "--input=x.npy", "--dt=NaN"], &["`timespans` is NaN"]);
        folder.refused(&["run", "m.safetensors"], &["no data for input `x`"]);
        folder.refused(&["run", "m.safetensors", "--input=t.npy"], &["`x`", "3]"]);
    }
}

#[test]
fn rows_become_steps() {
    let folder = Folder::with("stream", circuit());
    folder.tensor("x.npy", &[3, 3], &[0.1, 0.2, 0.3, -1.0, 0.5, 2.0, 0.0, 0.25, -0.75]);
    folder.ok(&["run", "m.safetensors", "--input=x.npy", "--output=y.npy"]);
    let expected: Vec<Vec<f32>> = folder.values("y.npy").chunks(2).map(<[f32]>::to_vec).collect();
    let csv = "0.1,0.2,0.3\n-1, 0.5 ,2e0\r\n\n0,.25,-0.75";
    let jsonl = "[0.1, 0.2, 0.3]\n{\"x\": [-1, 0.5, 2]}\n[0, 0.25, -0.75]\n";
    assert_eq!(numbers(&checked(folder.stream(csv, &[]))), expected);
    assert_eq!(numbers(&checked(folder.stream(&format!("\u{feff}a,b,c\n{csv}"), &["--format=csv"]))), expected);
    let answers = checked(folder.stream(jsonl, &[]));
    let answers: Vec<Value> = answers.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(answers[0].is_array() && answers[1]["y"].is_array() && answers[2].is_array());
    assert_eq!(answers[0][1].as_f64().map(|v| v as f32), Some(expected[0][1]));
    assert_eq!(answers[1]["y"][0].as_f64().map(|v| v as f32), Some(expected[1][0]));

    // The state goes on in another process, and no rows leave it as it was.
    assert_eq!(numbers(&checked(folder.stream("0.1,0.2,0.3\n", &["--state-out=s.npz"]))), expected[..1]);
    assert_eq!(checked(folder.stream("", &["--state=s.npz", "--state-out=s.npz"])), "");
    let rest = folder.stream("-1,0.5,2\n0,0.25,-0.75\n", &["--state=s.npz"]);
    assert_eq!(numbers(&checked(rest)), expected[1..]);
    let state = npz::read_npz(folder.0.join("s.npz")).unwrap();
    assert_eq!(state["h0"].shape(), [1, 10]);
}

#[test]
fn rows_may_have_times() {
    let folder = Folder::with("times", Ltc::new(2, 3));
    folder.tensor("x.npy", &[2, 2], &[0.5, -0.5, 1.0, 0.0]);
    folder.tensor("t.npy", &[2], &[0.1, 2.5]);
    folder.ok(&["run", "m.safetensors", "--input=x.npy", "--timespans=t.npy", "--output=y.npy"]);
    let expected: Vec<Vec<f32>> = folder.values("y.npy").chunks(3).map(<[f32]>::to_vec).collect();
    for (rows, column) in [
        ("dt,a,b\n0.1,0.5,-0.5\n2.5,1,0\n", "dt"),
        ("\"a\",\"dt\",\"b\"\n0.5,0.1,-0.5\n1,2.5,0\n", "dt"),
        ("0.5,-0.5,0.1\n1,0,2.5\n", "3"),
    ] {
        assert_eq!(numbers(&checked(folder.stream(rows, &["--dt-column", column]))), expected, "{rows}");
    }
    let rows = "{\"x\":[0.5,-0.5],\"dt\":0.1}\n{\"dt\":2.5,\"x\":[1,0]}\n";
    let answers = checked(folder.stream(rows, &[]));
    let last: Value = serde_json::from_str(answers.lines().nth(1).unwrap()).unwrap();
    assert_eq!(last["y"][2].as_f64().map(|v| v as f32), Some(expected[1][2]));
    folder.ok(&["run", "m.safetensors", "--input=x.npy", "--dt=0.1", "--output=y.npy"]);
    let constant = numbers(&checked(folder.stream("0.5,-0.5\n1,0\n", &["--dt=0.1"])));
    assert_eq!(constant.concat(), folder.values("y.npy"));

    let refuse = |rows: &str, more: &[&str], words: &[&str]| refused(&folder.stream(rows, more), words);
    refuse("{\"x\":[1,2],\"dt\":1}\n[1,2]\n", &[], &["line 2", "no time"]);
    refuse("[1,2]\n{\"x\":[1,2],\"dt\":1}\n", &[], &["line 2", "a time"]);
    refuse("{\"x\":[1,2],\"dt\":1}\n", &["--dt=1"], &["--dt is 1"]);
    refuse("a,b,c\n1,2,3\n", &["--dt-column=dt"], &["line 1", "--dt-column is dt", "a heading of this line"]);
    refuse("1,2,3\n", &["--dt-column=dt"], &["--dt-column is dt", "no headings"]);
    refuse("1,2\n", &["--dt-column=3"], &["line 1", "2 columns", "column 3"]);
    refuse("[1,2]\n", &["--dt-column=1"], &["--dt-column is for CSV"]);
}

#[test]
fn a_bad_row_is_named() {
    let folder = Folder::with("bad-rows", circuit());
    let good = "1,2,3\n";
    let jsonl = |row: &str| format!("[1,2,3]\n{row}\n");
    for (rows, words) in [
        (format!("{good}1,2\n"), &["line 2", "2 features", "takes 3"][..]),
        (format!("{good}\n1,2,x\n"), &["line 3", "column 3 is `x`"]),
        (format!("{good}1,NaN,3\n"), &["line 2", "column 2 is `NaN`", "finite"]),
        (format!("{good}1,1e99,3\n"), &["line 2", "`1e99`"]),
        ("1,b,3\n".into(), &["line 1", "column 2 is `b`"]),
        (jsonl("[1,2"), &["line 2", "EOF"]),
        (jsonl("[1,\"2\",3]"), &["line 2", "element 2"]),
        (jsonl("{\"y\": 1}"), &["line 2", "field `y`"]),
        (jsonl("{\"dt\": 1}"), &["line 2", "no field `x`"]),
        (jsonl("{\"x\": [1,2,3], \"dt\": \"1\"}"), &["line 2", "`dt` is"]),
        (jsonl("null"), &["line 2", "expected an array"]),
    ] {
        let out = folder.stream(&rows, &[]);
        refused(&out, words);
        let answered = usize::from(!words.contains(&"line 1"));
        assert_eq!(String::from_utf8(out.stdout).unwrap().lines().count(), answered, "{rows}");
    }
    refused(&folder.stream("1,2,3\n", &["--format=jsonl"]), &["line 1"]);
    refused(&folder.stream("1,2,3\n", &["--format=xml"]), &["jsonl"]);
    refused(&folder.stream("1,2,3\n", &["--input=x.npy"]), &["--input"]);
    refused(&folder.stream("1,2,3\n", &["--state=nowhere.npz"]), &["nowhere.npz"]);
    folder.refused(&["run", "m.safetensors", "--format=csv"], &["--stream"]);
    let mut child = folder.spawn(&["run", "m.safetensors", "--stream"]);
    child.stdin.take().unwrap().write_all(b"\xff\xfe\n").unwrap();
    refused(&child.wait_with_output().unwrap(), &["line 1", "UTF-8"]);
}

#[test]
fn answers_come_at_once_and_may_go_unread() {
    let folder = Folder::with("pipe", circuit());
    let mut child = folder.spawn(&["run", "m.safetensors", "--stream", "--state-out=s.npz"]);
    let mut rows = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..3 {
        // The next row is not written before the answer to this one is there.
        rows.write_all(b"1,2,3\n").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(numbers(&answer)[0].len(), 2);
    }
    drop(answers);
    let _ = rows.write_all(b"1,2,3\n1,2,3\n");
    drop(rows);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stderr(&out).is_empty() && folder.0.join("s.npz").exists(), "{}", stderr(&out));
}

#[test]
fn symbols_and_graphs_stream_too() {
    let folder = Folder::new("symbols");
    let layers: Vec<Layer> = vec![Embedding::new(5, 3).into(), circuit().into()];
    Model::new(layers, 1).unwrap().save(folder.0.join("m.safetensors")).unwrap();
    assert_eq!(numbers(&checked(folder.stream("4\n0\n", &[]))).len(), 2);
    refused(&folder.stream("1.5\n", &[]), &["line 1", "whole number", "i32"]);
    refused(&folder.stream("9\n", &[]), &["line 1"]);
    folder.ok(&["demo", "m.safetensors", "--model", "rnn"]);
    assert_eq!(numbers(&checked(folder.stream("1,2,3,4,5,6,7,8\n8,7,6,5,4,3,2,1\n", &[]))).len(), 2);
    refused(&folder.stream("1,2,3,4,5,6,7,8\n", &["--dt=2"]), &["--dt is for models"]);
}

#[test]
fn circuits_are_timed_in_the_form_that_scripts_read() {
    let folder = Folder::with("bench", circuit());
    fn bench<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["bench", "circuits", "--seconds=0.01"], args].concat()
    }
    let one = folder.json(&bench(&["--model=P", "--batch=2", "--steps=3", "--threads=1", "--json"]));
    for (field, value) in [("peer", "schwann"), ("model", "P")] {
        assert_eq!(one[field], value, "{one}");
    }
    for (field, value) in [("B", 2), ("T", 3), ("threads", 1)] {
        assert_eq!(one[field], value, "{one}");
    }
    assert!(one["min_ms"].as_f64() > Some(0.0) && one["min_ms"].as_f64() <= one["median_ms"].as_f64(), "{one}");
    assert!(one["n"].as_u64() >= Some(3) && one["flops"].as_u64() > Some(0) && one["kind"] == "infer", "{one}");
    for model in ["P", "W", "L", "m.safetensors"] {
        let one = folder.json(&bench(&["--model", model, "--batch=2", "--steps=3", "--train", "--json"]));
        let loss = |name: &str| one["training"][name].as_f64().unwrap();
        assert!(one["kind"] == "train" && loss("last_loss") < loss("first_loss"), "{one}");
    }
    let all = folder.ok(&bench(&["--batch=1", "--steps=1", "--threads=1,2"]));
    for words in [
        "projected-cfc CfC: 64 neurons",
        "wired-ltc LTC: 64 neurons, 423 synapses",
        "of peak",
        "functions/s",
        "measured",
    ] {
        assert!(all.contains(words), "expected `{words}` in\n{all}");
    }
    let small = &["--model=P,W", "--units=12", "--outputs=3", "--sparsity=0.8", "--backbone-layers=1", "--batch=1"][..];
    assert!(folder.ok(&bench(small)).contains("wired-cfc CfC: 12 neurons"));
    let shapes = folder.ok(&bench(&["--model=W", "--units=8", "--outputs=2", "--json"]));
    let batches: Vec<Value> = shapes.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["B"].clone()).collect();
    assert_eq!(batches, [1, 1, 32, 256]);

    folder.refused(&bench(&["--model=Q"]), &["--model is Q", "wired-cfc, dense-cfc"]);
    folder.refused(&bench(&["--batch=0"]), &["--batch", "from 1"]);
    folder.refused(&bench(&["--model=W", "--units=10"]), &["--outputs is 16 of 10 units"]);
    folder.refused(&bench(&["--model=W", "--sparsity=-1"]), &["--sparsity is -1"]);
    folder.refused(&bench(&["--model=P", "--sparsity=0.5"]), &["--sparsity is for wired-cfc"]);
    folder.refused(&bench(&["--model=L", "--backbone-layers=1"]), &["--backbone-layers is for projected-cfc"]);
    folder.refused(&bench(&["--model=P", "--backbone-layers=999"]), &["--backbone-layers is 999"]);
    folder.refused(&bench(&["--model=m.safetensors", "--units=4"]), &["--units is for built-in models"]);
    folder.refused(&["bench", "circuits", "--seconds=0"], &["more than 0"]);
}

#[test]
fn models_that_share_nothing_with_ncps_have_figures() {
    let folder = Folder::with("embedding", circuit());
    let layers: Vec<Layer> = vec![Embedding::new(5, 3).into(), circuit().into()];
    Model::new(layers, 1).unwrap().save(folder.0.join("e.safetensors")).unwrap();
    let said = folder.ok(&["info", "e.safetensors"]);
    assert!(said.contains("x i32[B, T]") && said.contains("0: Embedding") && said.contains("1: CfC"), "{said}");
    let x = Tensor::from_f64(DType::I32, &[1, 2], &[1.0, 4.0]).unwrap();
    npy::write_npy(folder.0.join("x.npy"), &x).unwrap();
    assert!(folder.ok(&["run", "e.safetensors", "--input=x.npy", "--check"]).contains("agrees"));
}
