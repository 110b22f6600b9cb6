//! Rows from a stream that go wrong: each is named, the state is never lost, and nothing is taken for what it is not.

use schwann::io::{npz, read_npz};
use schwann::nn::{Cfc, Layer, Ltc, Model};
use schwann::{DType, GraphBuilder, Tensor};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

struct Folder(PathBuf);
impl Folder {
    /// A folder with a model of three inputs, `m.safetensors`.
    fn with(test: &str, layer: impl Into<Layer>) -> Folder {
        let path = std::env::temp_dir().join(format!("schwann-streams-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Model::new(layer.into(), 7).unwrap().save(path.join("m.safetensors")).unwrap();
        Folder(path)
    }
    fn spawn(&self, more: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.args(["run", "m.safetensors", "--stream"]).args(more).current_dir(&self.0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
    fn stream(&self, rows: impl AsRef<[u8]>, more: &[&str]) -> Output {
        let mut child = self.spawn(more);
        let _ = child.stdin.take().unwrap().write_all(rows.as_ref());
        child.wait_with_output().unwrap()
    }
    /// The answers to rows that are all good.
    #[track_caller]
    fn answers(&self, rows: &str, more: &[&str]) -> String {
        let out = self.stream(rows, more);
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        String::from_utf8(out.stdout).unwrap()
    }
    #[track_caller]
    fn refused(&self, rows: impl AsRef<[u8]>, more: &[&str], words: &[&str]) {
        let out = self.stream(rows, more);
        assert_eq!(out.status.code(), Some(2), "{}", stderr(&out));
        said(&out, words);
    }
    fn state(&self, name: &str) -> Vec<f32> {
        read_npz(self.0.join(name)).unwrap()["h0"].values::<f32>().unwrap().to_vec()
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

#[track_caller]
fn said(out: &Output, words: &[&str]) {
    for word in words {
        assert!(stderr(out).contains(word), "expected `{word}` in: {}", stderr(out));
    }
    assert!(!stderr(out).contains("panicked"), "{}", stderr(out));
}

fn cfc() -> Cfc {
    Cfc::new(3, 4)
}

/// What is no row, after two that are.
const BAD: [&str; 8] = ["1,x,3", "1,2", "1,2,3,4", "1,nan,3", "1,inf,3", "1,1e99,3", "\u{1b}[2J,2,3", "\u{202e}"];

#[test]
fn a_bad_row_stops_skips_or_holds_and_the_state_is_kept() {
    let folder = Folder::with("bad", cfc());
    let good = ["1,2,3", "0.5,0,-1", "2,2,2"];
    let both = folder.answers(&format!("{}\n{}\n", good[0], good[1]), &["--state-out=two.npz"]);
    let three = folder.answers(&good.join("\n"), &["--state-out=three.npz"]);
    let held = folder.answers(&[good[0], good[1], good[1], good[2]].join("\n"), &["--state-out=held.npz"]);
    for bad in BAD {
        let rows = format!("{}\n{}\n{bad}\n{}\n", good[0], good[1], good[2]);
        let out = folder.stream(&rows, &["--state-out=s.npz"]);
        assert_eq!(out.status.code(), Some(2), "{bad}: {}", stderr(&out));
        said(&out, &["line 3", "is not a valid row"]);
        assert!(!stderr(&out).contains(['\u{1b}', '\u{202e}']), "{:?}", stderr(&out));
        assert_eq!(String::from_utf8_lossy(&out.stdout), both, "{bad}");
        assert_eq!(folder.state("s.npz"), folder.state("two.npz"), "{bad}");

        let out = folder.stream(&rows, &["--on-bad-row=skip", "--state-out=s.npz"]);
        assert_eq!(out.status.code(), Some(0), "{bad}: {}", stderr(&out));
        said(&out, &["line 3", "left out", "1 line was not a valid row"]);
        assert_eq!(String::from_utf8_lossy(&out.stdout), three, "{bad}");
        assert_eq!(folder.state("s.npz"), folder.state("three.npz"), "{bad}");

        let out = folder.stream(&rows, &["--on-bad-row=hold", "--state-out=s.npz"]);
        said(&out, &["line 3", "used again"]);
        assert_eq!(String::from_utf8_lossy(&out.stdout), held, "{bad}");
        assert_eq!(folder.state("s.npz"), folder.state("held.npz"), "{bad}");
    }
    // Before the first good row there is nothing to hold, and the state is what it was.
    let out = folder.stream("1,2\n1,2,3\n", &["--on-bad-row=hold"]);
    said(&out, &["line 1", "no good row before it"]);
    assert_eq!(out.stdout.iter().filter(|b| **b == b'\n').count(), 1);
    folder.refused("1,2\n", &["--state=two.npz", "--state-out=s.npz"], &["line 1"]);
    assert_eq!(folder.state("s.npz"), folder.state("two.npz"));
    // The same of JSON.
    for bad in ["[1,2", "[1,null,3]", "{\"x\":[1,2,3],\"z\":1}", "[1,2]", "[1,2,1e99]", "null"] {
        let out = folder.stream(format!("[1,2,3]\n{bad}\n[2,2,2]\n"), &["--on-bad-row=skip"]);
        assert_eq!(out.status.code(), Some(0), "{bad}: {}", stderr(&out));
        said(&out, &["line 2"]);
        assert_eq!(out.stdout.iter().filter(|b| **b == b'\n').count(), 2, "{bad}");
    }
}

#[test]
fn a_first_line_of_words_is_a_heading_only_where_it_may_be_one() {
    let folder = Folder::with("heading", cfc());
    let plain = folder.answers("1,2,3\n", &[]);
    for heading in ["a,b,c", "x1,x2,x3", "x.1,x_2,x-3", "\"left\",\"right\",\"speed (m/s)\""] {
        let out = folder.stream(format!("{heading}\n1,2,3\n"), &[]);
        assert_eq!(String::from_utf8_lossy(&out.stdout), plain, "{heading}");
        said(&out, &["line 1", "heading"]);
    }
    // Other columns, a number among them, or the start of one: a row that went wrong.
    for row in [
        "a,b",
        "a,b,c,d",
        "a,b,3",
        "1.5V,2V,3V",
        "-1x,b,c",
        ".5x,b,c",
        "--,--,--",
        ",,",
        "nan,nan,nan",
        "1.O2,3,4",
        "a,b,1.O2",
        "-x,b,c",
        "+x,b,c",
        ".x,b,c",
        "−x,b,c",
    ] {
        folder.refused(format!("{row}\n1,2,3\n"), &[], &["line 1", "is not a valid row"]);
    }
    folder.refused("1,2,3\na,b,c\n", &[], &["line 2"]);
}

#[test]
fn other_separators_are_understood_and_commas_in_numbers_are_named() {
    let folder = Folder::with("separators", cfc());
    let plain = folder.answers("1,2.5,-3\n4,5,6\n", &[]);
    for (rows, between) in [
        ("1;2.5;-3\n4; 5 ;6\n", ";"),
        ("1\t2.5\t-3\n4\t5\t6\n", "\t"),
        ("1 2.5  -3\n 4 5 6 \n", " "),
        ("a;b;c\n1;2.5;-3\n4;5;6\n", ";"),
        ("\"1\",\"2.5\",\"-3\"\n4,5,6\n", ","),
    ] {
        assert_eq!(folder.answers(rows, &[]), plain.replace(',', between), "{rows:?}");
    }
    folder.refused("1,5;2,5;3,5\n", &[], &["line 1", "column 1 is `1,5`", "1.5 instead of 1,5"]);
    folder.refused("1,5,2,5,3,5\n", &[], &["line 1", "6 features", "1.5 instead of 1,5"]);
    folder.refused("1,2,3\n1;2;3\n", &[], &["line 2", "semicolons between numbers", "the first line has commas"]);
    folder.refused("1\t\t3\n", &[], &["line 1", "column 2"]);
}

#[test]
fn nan_passes_only_where_it_is_asked_for() {
    let folder = Folder::with("nan", cfc());
    folder.refused("1,NaN,3\n", &[], &["line 1", "column 2 is `NaN`", "--nan pass"]);
    assert!(folder.answers("1,NaN,3\n", &["--nan=pass"]).contains("NaN"));
    assert!(folder.answers("[1,null,3]\n", &["--nan=pass"]).contains("null"));
    folder.refused("1,1e99,3\n", &["--nan=pass"], &["column 2 is `1e99`"]);
    folder.refused("1,2,3\n", &["--dt=NaN"], &["timespans", "NaN"]);
}

#[test]
fn times_are_not_negative_and_not_zero_where_they_are_divided_by() {
    let row = |dt: &str| format!("{{\"x\":[1,2,3],\"dt\":1}}\n{{\"x\":[1,2,3],\"dt\":{dt}}}\n");
    for (name, layer, zero) in [("cfc", Layer::from(cfc()), true), ("ltc", Layer::from(Ltc::new(3, 4)), false)] {
        let folder = Folder::with(name, layer);
        for dt in ["-1", "-1e-9", "null", "1e99"] {
            folder.refused(row(dt), &["--state-out=s.npz"], &["line 2"]);
            assert!(folder.state("s.npz").iter().all(|v| v.is_finite()), "{name}, {dt}");
            folder.refused(row(dt), &["--nan=pass"], &["line 2"]);
        }
        folder.refused("1,2,3\n", &["--dt=-1"], &["timespans", "-1"]);
        match zero {
            true => assert!(folder.stream(row("0"), &[]).status.success()),
            false => folder.refused(row("0"), &[], &["line 2", "divides by it"]),
        }
        let out = folder.stream(row("-1"), &["--on-bad-row=skip"]);
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    }
}

#[test]
fn a_state_of_another_model_is_refused() {
    let folder = Folder::with("state", cfc());
    folder.answers("1,2,3\n", &["--state-out=s.npz"]);
    let next = folder.answers("1,2,3\n", &["--state=s.npz"]);
    // The same sizes and names, and other weights.
    Model::new(cfc(), 8).unwrap().save(folder.0.join("m.safetensors")).unwrap();
    folder.refused("1,2,3\n", &["--state=s.npz"], &["s.npz", "another model", "--any-state"]);
    folder.answers("1,2,3\n", &["--state=s.npz", "--any-state"]);
    Model::new(cfc(), 7).unwrap().save(folder.0.join("m.safetensors")).unwrap();
    // Files of earlier versions do not say whose they are.
    let mut old = read_npz(folder.0.join("s.npz")).unwrap();
    old.retain(|name, _| name == "h0");
    let write = |tensors: &std::collections::BTreeMap<String, Tensor>| {
        npz::write_npz(folder.0.join("s.npz"), tensors.iter().map(|(n, t)| (n.as_str(), t))).unwrap();
    };
    write(&old);
    assert_eq!(folder.answers("1,2,3\n", &["--state=s.npz"]), next);
    let h0 = old["h0"].clone();
    old.insert("c0".into(), h0.clone());
    write(&old);
    folder.refused("1,2,3\n", &["--state=s.npz"], &["s.npz", "`c0`"]);
    write(&[("h0".to_owned(), Tensor::new(&[1, 5], &[0f32; 5]).unwrap())].into());
    folder.refused("1,2,3\n", &["--state=s.npz"], &["s.npz", "h0", "at most 4 numbers"]);
    write(&[("h".to_owned(), h0)].into());
    folder.refused("1,2,3\n", &["--state=s.npz"], &["s.npz", "no state `h`"]);
}

#[test]
fn a_line_without_an_end_takes_bounded_memory() {
    let folder = Folder::with("endless", cfc());
    let long = "1".repeat(3 << 20);
    folder.refused(format!("1,2,3\n{long}"), &[], &["line 2", "longer than 1048576 bytes"]);
    let out = folder.stream(format!("1,2,3\n{long}\n1,2,3\n"), &["--on-bad-row=skip"]);
    assert_eq!(
        (out.status.code(), out.stdout.iter().filter(|b| **b == b'\n').count()),
        (Some(0), 2),
        "{}",
        stderr(&out)
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_state() {
    let folder = Folder::with("interrupt", cfc());
    folder.answers("1,2,3\n", &["--state-out=one.npz"]);
    let mut child = folder.spawn(&["--state-out=s.npz"]);
    let mut rows = child.stdin.take().unwrap();
    rows.write_all(b"1,2,3\n").unwrap();
    let mut answer = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
    // It waits for the next row now.
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", stderr(&out));
    said(&out, &["interrupted", "s.npz"]);
    assert_eq!(folder.state("s.npz"), folder.state("one.npz"));
    drop(rows);
}

#[test]
fn a_model_that_is_written_over_does_not_end_a_running_stream() {
    let folder = Folder::with("overwritten", Ltc::new(3, 40));
    let expected = folder.answers("1,2,3\n1,2,3\n", &[]);
    let mut child = folder.spawn(&["--state-out=s.npz"]);
    let (mut rows, mut answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut all = String::new();
    rows.write_all(b"1,2,3\n").unwrap();
    answers.read_line(&mut all).unwrap();
    // In place: the file is cut to nothing first.
    std::fs::File::create(folder.0.join("m.safetensors")).unwrap();
    rows.write_all(b"1,2,3\n").unwrap();
    answers.read_line(&mut all).unwrap();
    drop(rows);
    assert!(child.wait().unwrap().success());
    assert_eq!(all, expected);
    assert!(folder.0.join("s.npz").exists());
}

/// A network that gives back what it gets, negated where the type has negative numbers.
fn echo(folder: &Folder, dtype: DType, negate: bool) {
    let mut b = GraphBuilder::new();
    let x = b.input("x", dtype, [1, 2]).unwrap();
    let y = if negate { b.neg(x) } else { b.abs(x) }.unwrap();
    b.output("y", y).unwrap();
    schwann::io::save(folder.0.join("m.safetensors"), &b.build().unwrap()).unwrap();
}

#[test]
fn numbers_of_every_type_come_and_go_unchanged_or_are_refused() {
    let folder = Folder::with("types", Cfc::new(3, 4));
    echo(&folder, DType::I32, true);
    assert_eq!(folder.answers("16777217,2147483647\n", &[]), "-16777217,-2147483647\n");
    assert_eq!(folder.answers("[16777217, -5]\n", &[]), "[-16777217,5]\n");
    folder.refused("4e9,1\n", &[], &["line 1", "whole number", "i32"]);
    echo(&folder, DType::F16, false);
    assert_eq!(folder.answers("0.5,65504\n", &[]), "0.5,65504.0\n");
    folder.refused("70000,1\n", &[], &["line 1", "f16"]);
    folder.refused("70000,1\n", &["--nan", "pass"], &["line 1", "f16"]);
    echo(&folder, DType::F32, true);
    assert_eq!(folder.answers("0.1,3e38\n", &[]), "-0.1,-3e+38\n");
    folder.refused("4e38,1\n", &[], &["line 1", "finite"]);
}
