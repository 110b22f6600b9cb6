//! Baselines, comparisons and the gate as people use them, and what they say to bad input.

use schwann_prof::{Profile, example};
use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder with profiles: `a.json`, `same.json`, `slow.json` (8% slower), `nothing.json`.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("schwann-baseline-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let folder = Folder(path);
        let named = |id: &str, profile: Profile| Profile { id: id.into(), ..profile };
        folder.put("a.json", &example::profile());
        folder.put("same.json", &named("same", example::scaled(1.0, 2)));
        folder.put("slow.json", &named("slow", example::scaled(1.08, 3)));
        folder.put("nothing.json", &named("nothing", example::nothing()));
        folder
    }
    fn put(&self, name: &str, profile: &Profile) {
        std::fs::write(self.0.join(name), serde_json::to_string(profile).unwrap()).unwrap();
    }
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.args(args).current_dir(&self.0).env("SCHWANN_DATA", self.0.join("data"));
        command.env_remove("CLICOLOR_FORCE").output().unwrap()
    }
    fn ends(&self, code: i32, args: &[&str]) -> String {
        let out = self.run(args);
        let (said, text) = (String::from_utf8_lossy(&out.stderr), String::from_utf8_lossy(&out.stdout));
        assert_eq!(out.status.code(), Some(code), "{args:?}: {text}{said}");
        assert!(!said.contains("panicked"), "{said}");
        text.into_owned()
    }
    fn ok(&self, args: &[&str]) -> String {
        self.ends(0, args)
    }
    fn refused(&self, args: &[&str], words: &[&str]) {
        let out = self.run(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(out.stdout.is_empty() && !said.contains("panicked"), "{args:?}: {said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{args:?}: expected `{word}` in: {said}"));
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn profiles_are_saved_listed_shown_tracked_and_deleted() {
    let f = Folder::new("saved");
    f.refused(&["baseline", "list"], &["no store", "data/baselines.db"]);
    f.ok(&["baseline", "save", "main", "a.json"]);
    f.ok(&["baseline", "save", "main", "slow.json"]);
    f.ok(&["baseline", "save", "empty", "nothing.json"]);
    f.refused(&["baseline", "save", "main", "a.json"], &["already saved"]);
    let list = f.ok(&["baseline", "list"]);
    assert_eq!(list.lines().count(), 4, "{list}");
    let json: serde_json::Value = serde_json::from_str(&f.ok(&["baseline", "list", "--json"])).unwrap();
    assert_eq!((json[1]["id"].as_str(), json[2]["time_p50"]["value"].is_null()), (Some("slow"), true));
    let document = f.ok(&["baseline", "show", "main", "--json"]);
    assert_eq!(serde_json::from_str::<Profile>(&document).unwrap().id, "slow", "the latest of the name");
    let shown = f.ok(&["baseline", "show", "empty"]);
    assert!(shown.contains("compute.time_p50") && shown.contains("there is no instrument"), "{shown}");
    let track = f.ok(&["baseline", "track", "time_p50", "--name", "main"]);
    assert!(track.contains("▁█") && track.contains("0123456789") && track.contains("+7.9%"), "{track}");
    let json: serde_json::Value = serde_json::from_str(&f.ok(&["baseline", "track", "memory.rss", "--json"])).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 3);
    f.refused(&["baseline", "track", "speed"], &["speed", "time_p50"]);
    f.refused(&["baseline", "track", "time_p50", "--name", "none"], &["nothing is saved"]);
    f.refused(&["baseline", "show", "other"], &["other", "`main`"]);
    f.refused(&["baseline", "delete", "main"], &["2 profiles", "--all"]);
    f.ok(&["baseline", "delete", "slow"]);
    f.refused(&["baseline", "delete", "slow"], &["slow"]);
    assert!(f.ok(&["baseline", "show", "main"]).contains("20260102T030405Z"), "the earlier one is left");
    f.ok(&["baseline", "save", "main", "slow.json"]);
    f.ok(&["baseline", "delete", "main", "--all"]);
    f.refused(&["baseline", "show", "main"], &["main"]);
}

#[test]
fn every_form_is_written() {
    let f = Folder::new("forms");
    f.ok(&["baseline", "save", "main", "a.json"]);
    let csv = f.ok(&["baseline", "export", "main", "--format", "csv"]);
    assert!(csv.starts_with("path,value,low,high,unit,provenance,source,reason"));
    f.ok(&["baseline", "export", "main", "--format", "markdown", "-o", "main.md"]);
    assert!(std::fs::read_to_string(f.0.join("main.md")).unwrap().contains("| time, median | 412 µs |"));
    for form in ["json", "bencher", "github"] {
        let text = f.ok(&["baseline", "export", "a.json", "--format", form]);
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }
    f.refused(&["baseline", "export", "main", "--format", "xml"], &["xml", "bencher"]);
    let schema: serde_json::Value = serde_json::from_str(&f.ok(&["report", "--schema"])).unwrap();
    assert!(schema["properties"]["compute"].is_object());
}

#[test]
fn two_profiles_are_compared_with_intervals() {
    let f = Folder::new("compared");
    let text = f.ok(&["compare", "a.json", "slow.json"]);
    assert!(text.starts_with("the candidate is slower: +"), "{text}");
    assert!(text.contains("heads") && text.contains("large (+0.9") && text.contains("8 starts"), "{text}");
    assert_eq!(text.matches(" slower\n").count(), 3, "the time and the two rates that follow from it: {text}");
    let same = f.ok(&["compare", "a.json", "same.json"]);
    assert!(same.starts_with("no difference of 1% or more") || same.starts_with("undecided"), "{same}");
    let json: serde_json::Value = serde_json::from_str(&f.ok(&["compare", "slow.json", "a.json", "--json"])).unwrap();
    assert_eq!(json["verdict"], "faster");
    assert!(json["metrics"][0]["change"]["spread"]["low"].is_number());
    assert!(f.ok(&["compare", "a.json", "slow.json", "--markdown"]).contains("| compute.time_p50 | 412 µs |"));
    assert!(f.ok(&["compare", "a.json", "nothing.json"]).starts_with("not known"));
}

#[test]
fn what_is_unlike_is_refused_unless_asked_for() {
    let f = Folder::new("unlike");
    let mut other = example::profile();
    other.machine.cpu = "another machine".into();
    f.put("other.json", &other);
    f.refused(&["compare", "a.json", "other.json"], &["another machine", "Example CPU", "--anyway"]);
    f.refused(&["gate", "--baseline", "a.json", "--candidate", "other.json"], &["another machine"]);
    assert!(f.ok(&["compare", "a.json", "other.json", "--anyway"]).contains("unlike: machine"));
    let words = ["machine Example CPU", "model P (9f2c61d04be87a35)", "--anyway"];
    f.refused(&["gate", "--baseline", "a.json", "--model", "P"], &words);
    let changes: [fn(&mut Profile); 2] =
        [|p| p.workload.dtype = "bf16".into(), |p| p.workload.compilation = "node by node".into()];
    for change in changes {
        let mut other = example::profile();
        change(&mut other);
        f.put("other.json", &other);
        f.refused(
            &["gate", "--baseline", "a.json", "--candidate", "other.json"],
            &["differ in more than time", "--anyway"],
        );
    }
}

#[test]
fn the_gate_has_an_exit_code() {
    let f = Folder::new("gate");
    f.ok(&["baseline", "save", "main", "a.json"]);
    assert!(f.ends(1, &["gate", "--baseline", "main", "--candidate", "slow.json"]).starts_with("regressed"));
    f.ok(&["gate", "--max-regress", "20%", "--baseline", "main", "--candidate", "slow.json"]);
    // Undecided has an exit code of its own, unless it is said what it counts as.
    let edge = ["gate", "--max-regress", "8%", "--baseline", "main", "--candidate", "slow.json"];
    assert!(f.ends(3, &edge).starts_with("undecided"));
    f.ends(0, &[&edge[..], &["--undecided", "pass"]].concat());
    f.ends(1, &[&edge[..], &["--undecided", "fail"]].concat());
    let same = f.ok(&["gate", "--baseline", "main", "--candidate", "same.json", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&same).unwrap()["decision"], "passed");
    f.refused(&["gate", "--baseline", "main", "--candidate", "nothing.json"], &["no instrument"]);
    f.refused(&["gate"], &["--baseline"]);
    f.refused(&["gate", "--model", "P"], &["--against"]);
    f.refused(&["gate", "--max-regress", "3", "--baseline", "main", "--candidate", "a.json"], &["3%"]);
    f.refused(&["gate", "--model", "Q", "--against", "P"], &["`Q`", "wired-cfc, dense-cfc"]);
    f.refused(&["gate", "--model", "P", "--against-program", "/bin/echo"], &["/bin/echo"]);
}

#[test]
fn the_gate_measures_now() {
    let f = Folder::new("live");
    let tiny = ["--batch", "1", "--steps", "1", "--seconds", "5"];
    let gate = |more: &[&'static str]| -> Vec<&'static str> { [&["gate", "--json"], more, &tiny[..]].concat() };
    // L takes about twice as long as W.
    let json = f.ends(1, &gate(&["--model", "L", "--against", "W"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["design"].as_str(), json["decision"].as_str()), (Some("in turns"), Some("regressed")));
    f.ok(&gate(&["--model", "W", "--against", "L"]));
    // This program against itself may take any time, but not ten times as much.
    let own = env!("CARGO_BIN_EXE_schwann");
    f.ok(&[&gate(&["--model", "P", "--against-program", own])[..], &["--max-regress", "900%"]].concat());
    // Against a record of 412 µs, one step of one sequence is fast.
    let now = f.ok(&gate(&["--model", "P", "--baseline", "a.json", "--anyway"]));
    assert!(now.contains("by the yardstick"), "{now}");
}

#[test]
fn a_saved_profile_is_held_against_the_model_only_if_all_of_it_is_alike() {
    let f = Folder::new("saved-live");
    let quick = ["--batch", "2", "--steps", "2", "--runs", "20", "--seconds", "0.3", "--no-roof"];
    let save = |more: &[&'static str]| f.ok(&[&["profile", "P", "--json"], more, &quick[..]].concat());
    std::fs::write(f.0.join("run.json"), save(&["--save", "plain"])).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(f.0.join("run.json")).unwrap()).unwrap();
    let starts = &document["profiles"][0]["compute"]["starts"];
    let count = starts["ratio"]["values"].as_array().unwrap().len();
    assert!((24..=96).contains(&count), "{count}: {starts}");
    assert!(starts["time"]["values"].as_array().unwrap().iter().all(|t| t.as_f64().is_some_and(|t| t > 0.0)));
    save(&["--save", "nodes", "--node-by-node"]);
    let gate = |more: &[&'static str]| [&["gate", "--max-regress", "900%", "--seconds", "3"], more].concat();
    // As it was saved: the shape comes from the record.
    assert!(f.ok(&gate(&["--baseline", "plain", "--model", "P"])).contains("by the yardstick"));
    assert!(f.ok(&gate(&["--baseline", "nodes", "--model", "P"])).contains("by the yardstick"));
    f.refused(&gate(&["--baseline", "plain", "--model", "P", "--batch", "3"]), &["batch 2 and 3", "--anyway"]);
    f.refused(&gate(&["--baseline", "plain", "--model", "W"]), &["model projected-cfc", "and wired-cfc", "--anyway"]);
    f.refused(&gate(&["--baseline", "plain", "--candidate", "nodes"]), &["compilation fused and node by node"]);
}

#[test]
fn a_profile_names_the_commit_of_the_build_and_not_of_where_it_is_run() {
    let f = Folder::new("commit");
    let version = f.ok(&["--version"]);
    let (_, built) = version.trim().trim_end_matches(')').split_once('(').expect("a commit in parentheses");
    // A repository of somebody else's, as the current directory.
    let git = |args: &[&str]| Command::new("git").args(args).current_dir(&f.0).output();
    let init = git(&["init", "-q"]).is_ok_and(|o| o.status.success());
    let named = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"];
    let committed = init && git(&named).is_ok_and(|o| o.status.success());
    let head = git(&["rev-parse", "HEAD"]).map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    let tiny = ["--batch", "1", "--steps", "1", "--runs", "6", "--seconds", "0.1", "--no-roof"];
    let document = f.ok(&[&["profile", "P", "--json"][..], &tiny].concat());
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let commit = document["profiles"][0]["commit"].as_str();
    match commit {
        Some(commit) => {
            let short = &built[..built.len().min(10)];
            assert!(commit.starts_with(short), "{commit} and {version}");
            assert_eq!(commit.ends_with("-dirty"), built.ends_with("-dirty"));
            assert!(!committed || head.is_ok_and(|h| !commit.starts_with(&h)));
        }
        None => assert_eq!(built, "commit unknown"),
    }
}

#[test]
fn the_experiment_asks_every_question_and_writes_down_each_answer() {
    let f = Folder::new("experiment");
    let args = ["gate", "experiment", "--pairs", "1", "--planted", "100%", "--max-regress", "10%", "--json"];
    let more =
        ["--model", "P", "--batch", "1", "--seconds-per-pair", "1", "--start-seconds", "0.02", "--out", "pairs.jsonl"];
    let out = f.run(&[&args[..], &more].concat());
    let said = String::from_utf8_lossy(&out.stderr);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(json["planted"]["value"], 100.0);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12, "six questions, identical and planted");
    for row in rows {
        assert_eq!(row["pairs"]["value"], 1.0, "{row}");
        let sum: f64 =
            ["faster", "slower", "same", "undecided"].iter().map(|w| row[w]["value"].as_f64().unwrap()).sum();
        assert_eq!(sum, 1.0, "{row}");
    }
    let lines = std::fs::read_to_string(f.0.join("pairs.jsonl")).unwrap();
    assert_eq!(lines.lines().filter(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()).count(), 12);
    f.refused(&["gate", "experiment", "--planted", "0.1%"], &["2.5%"]);
}

#[test]
fn bad_files_are_refused_and_left_as_they_are() {
    let f = Folder::new("bad");
    std::fs::write(f.0.join("cut.json"), "{\"schema\": 1, \"id\": ").unwrap();
    std::fs::write(f.0.join("later.json"), "{\"schema\": 9}").unwrap();
    f.refused(&["compare", "a.json", "cut.json"], &["cut.json, line 1"]);
    f.refused(&["baseline", "save", "x", "later.json"], &["version 9", "version 1"]);
    f.refused(&["compare", "a.json", "missing.json"], &["missing.json"]);
    std::fs::write(f.0.join("bad.db"), "no database at all, but a text of some length").unwrap();
    f.refused(&["baseline", "save", "x", "a.json", "--db", "bad.db"], &["bad.db", "left as it is"]);
    assert!(std::fs::read_to_string(f.0.join("bad.db")).unwrap().starts_with("no database"));
    if cfg!(target_os = "linux") {
        f.refused(&["baseline", "save", "x", "a.json", "--db", "/proc/x.db"], &["/proc/x.db", "cannot be written"]);
    }
}
