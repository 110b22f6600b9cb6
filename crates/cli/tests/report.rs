//! `schwann report` as people use it.

#[path = "../../prof/tests/sample/mod.rs"]
mod sample;

use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder that goes away with the test, with a profile `run.json` in it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("schwann-report-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let folder = Folder(path);
        let both = serde_json::json!({"schema": 1, "profiles": [sample::full(), sample::nothing()]});
        folder.write("both.json", &both.to_string());
        folder.write("run.json", &serde_json::to_string(&sample::full()).unwrap());
        folder
    }
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_schwann")).arg("report").args(args).current_dir(&self.0).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_page_is_written_beside_the_run() {
    let folder = Folder::new("page");
    let output = folder.run(&["both.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("wrote both.html") && output.stdout.is_empty());
    let page = String::from_utf8(folder.read("both.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("id=\"model1\""));
    let output = folder.run(&["run.json", "-o", "-"]);
    assert!(output.stdout.starts_with(b"<!DOCTYPE html>"));
}

#[test]
fn plots_and_stacks_are_files_of_their_own() {
    let folder = Folder::new("plots");
    let output = folder.run(&["run.json", "--plots", "plots", "--flame", "flame.svg", "--folded", "stacks.txt"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for name in ["roofline", "histogram", "sweep", "devices", "memory", "ops", "flame"] {
        assert!(folder.read(&format!("plots/{name}.svg")).starts_with(b"<svg xmlns="));
        assert!(folder.read(&format!("plots/{name}.png")).starts_with(b"\x89PNG"));
    }
    assert!(folder.read("flame.svg").starts_with(b"<svg"));
    assert!(folder.read("stacks.txt").starts_with(b"AutoNCP 64/16 CfC;x.turned 2600\n"));
    assert!(!folder.0.join("run.html").exists(), "no page was asked for");
    // Of two profiles each has a folder, and what is missing is said.
    let output = folder.run(&["both.json", "--plots", "two"]);
    assert!(folder.0.join("two/1-autoncp-64-16-cfc/sweep.png").exists());
    assert!(stderr(&output).contains("no roofline of nothing known: "), "{}", stderr(&output));
}

#[test]
fn files_that_are_no_profiles_are_refused_with_the_reason() {
    let folder = Folder::new("bad");
    folder.write("newer.json", "{\"schema\": 7}");
    folder.write("half.json", &String::from_utf8(folder.read("run.json")).unwrap()[..5000]);
    folder.write("list.json", "[1, 2]");
    folder.write("page.html", "{}");
    for (args, words) in [
        (&["missing.json"][..], "cannot read missing.json"),
        (&["newer.json"], "schema version 7; this program reads up to version 1"),
        (&["half.json"], "half.json, line "),
        (&["list.json"], "invalid type: "),
        (&["page.html"], "is not a saved profile"),
        (&["run.json", "-o", "nowhere/x.html"], "cannot write nowhere/x.html"),
        (&["run.json", "-o", "-", "--open"], "cannot be opened"),
    ] {
        let output = folder.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
    assert!(!folder.0.join("newer.html").exists());
}
