//! `schwann wiring` as people use it: every circuit, every form, and what it says to bad input.

use std::io::Write;
use std::process::{Command, Output, Stdio};

const AUTO: &[&str] = &["auto", "--units", "64", "--outputs", "16", "--inputs", "8"];
const NCP: &[&str] = &[
    "ncp",
    "--inter=12",
    "--command=6",
    "--motor=1",
    "--inputs=32",
    "--sensory-fanout=4",
    "--inter-fanout=3",
    "--recurrent=6",
    "--motor-fanin=3",
];
const RANDOM: &[&str] = &["random", "--units=20", "--outputs=5", "--sparsity=0.6", "--inputs=6", "--seed=99"];
const FULL: &[&str] = &["full", "--units=12", "--outputs=3", "--inputs=4"];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
    command.arg("wiring").args(args);
    for name in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(name);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn checked(out: Output) -> String {
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    text(&out.stdout)
}

#[track_caller]
fn ok(args: &[&str]) -> String {
    checked(command(args).output().unwrap())
}

/// `schwann wiring show -` with this on its stdin.
fn show(json: &str, form: &[&str]) -> Output {
    let args = [&["show", "-"], form].concat();
    let mut child = command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(json.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Expects exit code 2, nothing on stdout, and these words on stderr.
#[track_caller]
fn refused(out: Output, words: &[&str]) {
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(out.stdout.is_empty() && !said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "expected `{word}` in: {said}");
    }
}

#[test]
fn help_shows_examples() {
    for args in [&["--help"][..], &["auto", "--help"], &["ncp", "--help"], &["random", "--help"], &["show", "--help"]] {
        assert!(ok(args).contains("Examples:\n  schwann wiring "), "{args:?}");
    }
}

#[test]
fn a_circuit_is_shown_with_its_numbers() {
    let said = ok(AUTO);
    for words in [
        "Neural circuit policy, sparsity 0.5, seed 22222",
        "inputs 8 → inter 29 → command 19 → motor 16",
        "+ excites, − inhibits",
        "synapses             423 of 4096 possible",
        "all 16 are reached by all 8 inputs",
    ] {
        assert!(said.contains(words), "expected `{words}` in\n{said}");
    }
    assert!(ok(NCP).contains("inputs 32 → inter 12 → command 6 → motor 1"));
    assert!(ok(RANDOM).contains("Random circuit, sparsity 0.6, seed 99"));
    assert!(ok(FULL).contains("144 of 144 possible"));
    assert!(ok(&[FULL, &["--no-self-connections"]].concat()).contains("132 of 144 possible"));
    // What does not fit is drawn coarser.
    let narrow = checked(command(AUTO).env("COLUMNS", "40").output().unwrap());
    assert!(narrow.contains('█') && narrow.lines().skip(5).take(20).all(|line| line.chars().count() <= 40), "{narrow}");
}

#[test]
fn colours_come_only_where_they_are_allowed() {
    assert!(!ok(AUTO).contains('\x1b'));
    assert!(ok(&[AUTO, &["--color", "always"]].concat()).contains("\x1b[38;5;39m"));
    assert!(!ok(&[AUTO, &["--color", "never"]].concat()).contains('\x1b'));
    assert!(!checked(command(AUTO).env("NO_COLOR", "1").output().unwrap()).contains('\x1b'));
}

#[test]
fn every_circuit_comes_in_every_form_and_back() {
    for circuit in [AUTO, NCP, RANDOM, FULL] {
        let json = ok(&[circuit, &["--json"]].concat());
        assert!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["synapses"].is_array());
        for form in [&[][..], &["--json"], &["--dot"], &["--svg", "-"]] {
            let direct = ok(&[circuit, form].concat());
            assert_eq!(checked(show(&json, form)), direct, "{circuit:?} {form:?}");
        }
        assert!(ok(&[circuit, &["--dot"]].concat()).starts_with("digraph"));
        assert!(ok(&[circuit, &["--svg", "-"]].concat()).starts_with("<svg"));
    }
    let other = ok(&[AUTO, &["--seed", "1", "--json"]].concat());
    assert_ne!(other, ok(&[AUTO, &["--json"]].concat()));
}

#[test]
fn a_picture_and_a_circuit_go_to_files() {
    let folder = std::env::temp_dir().join(format!("schwann-wiring-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (svg, json) = (folder.join("circuit.svg"), folder.join("circuit.json"));
    let (svg, json) = (svg.to_str().unwrap(), json.to_str().unwrap());
    assert_eq!(ok(&[AUTO, &["--svg", svg]].concat()), "");
    assert!(std::fs::read_to_string(svg).unwrap().ends_with("</svg>\n"));
    std::fs::write(json, ok(&[NCP, &["--json"]].concat())).unwrap();
    assert_eq!(ok(&["show", json]), ok(NCP));
    std::fs::write(json, [0xff, 0xfe]).unwrap();
    refused(command(&["show", json]).output().unwrap(), &["circuit.json is not a circuit"]);
    refused(command(&["show", "/no/such/circuit.json"]).output().unwrap(), &["/no/such/circuit.json"]);
    refused(command(&[AUTO, &["--svg", "/no/such/circuit.svg"]].concat()).output().unwrap(), &["cannot write"]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn bad_options_are_named() {
    let refuse = |args: &[&str], words: &[&str]| refused(command(args).output().unwrap(), words);
    refuse(&["auto", "--units=64", "--outputs=62", "--inputs=8"], &["--outputs is 62 of 64 units", "from 1 to 61"]);
    refuse(&["auto", "--units=3", "--outputs=1", "--inputs=8"], &["--outputs", "at least 4 `units`"]);
    refuse(&["auto", "--units=100000", "--outputs=1", "--inputs=8"], &["--units is 100000", "from 1 to 8192"]);
    refuse(&["auto", "--units=18446744073709551615", "--outputs=1", "--inputs=8"], &["--units is 1844"]);
    refuse(&["auto", "--units=18446744073709551616", "--outputs=1", "--inputs=8"], &["--units"]);
    refuse(&[AUTO, &["--sparsity", "0"]].concat(), &["--sparsity is 0", "from 0.1 to 1"]);
    refuse(&[AUTO, &["--sparsity", "-0.5"]].concat(), &["--sparsity is -0.5"]);
    refuse(&[AUTO, &["--sparsity", "NaN"]].concat(), &["--sparsity is NaN"]);
    refuse(&[AUTO, &["--seed", "4294967296"]].concat(), &["--seed"]);
    refuse(&["auto", "--units=64", "--outputs=16"], &["--inputs"]);
    refuse(&["auto", "--units=64", "--outputs=16", "--inputs=0"], &["--inputs is 0"]);
    refuse(&["auto", "--units=64", "--outputs=16", "--inputs=99999999"], &["--inputs is 99999999"]);
    refuse(&["random", "--units=9", "--inputs=1", "--sparsity=1"], &["--sparsity is 1", "less than 1"]);
    refuse(&["full", "--units=9", "--inputs=1", "--outputs=10"], &["--outputs is 10", "from 1 to 9"]);
    refuse(&["full", "--units=0", "--inputs=1"], &["--units is 0"]);
    for (flag, words) in [
        ("--inter=0", "--inter is 0"),
        ("--command=0", "--command is 0"),
        ("--motor=0", "--motor is 0"),
        ("--sensory-fanout=13", "--sensory-fanout is 13; expected at most 12"),
        ("--inter-fanout=7", "--inter-fanout is 7; expected at most 6"),
        ("--motor-fanin=7", "--motor-fanin is 7; expected at most 6"),
        ("--recurrent=99999999999", "--recurrent is 99999999999"),
    ] {
        let name = flag.split('=').next().unwrap();
        let args: Vec<&str> = NCP.iter().copied().filter(|a| a.split('=').next() != Some(name)).collect();
        refuse(&[&args[..], &[flag]].concat(), &[words]);
    }
    refuse(&[AUTO, &["--svg", "-", "--dot"]].concat(), &["--dot"]);
    refuse(&["full", "--units=400", "--inputs=1", "--svg=-"], &["--svg", "160400 synapses", "--dot"]);
    refuse(&["small-world"], &["small-world"]);
}

#[test]
fn a_bad_circuit_is_refused() {
    for (json, word) in [
        ("", "EOF"),
        ("{}", "missing field"),
        ("[1]", "is unreadable"),
        (r#"{"class":"AutoNCP","units":64,"output_size":16}"#, "unknown field `class`"),
        (
            r#"{"config":{"class":"Custom","units":99999999999,"output_dim":1},"units":99999999999,"output_dim":1,
                "input_dim":1,"layers":[[0]],"synapses":[],"sensory_synapses":[]}"#,
            "`units` is 99999999999",
        ),
    ] {
        refused(show(json, &[]), &["stdin is not a circuit", word]);
    }
}
