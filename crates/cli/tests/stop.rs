//! Ctrl-C during a measurement: what was measured is kept and marked, and the exit code says so. A real process gets a
//! real signal.
#![cfg(unix)]

mod common;

use common::Place;
use serde_json::Value;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn start(place: &Place, args: &[&str]) -> Child {
    place.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs, interrupts after so long, and waits for the end, which must come soon.
fn interrupt(place: &Place, args: &[&str], after: Duration) -> Output {
    let child = start(place, args);
    std::thread::sleep(after);
    signal(&child);
    let asked = Instant::now();
    let out = child.wait_with_output().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(60), "{args:?} did not end");
    assert_eq!(out.status.code(), Some(130), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    out
}

/// The same, later and later until something was measured: nobody knows how long starting takes.
fn until_measured(place: &Place, args: &[&str], measured: impl Fn(&str) -> bool) -> String {
    let mut said = String::new();
    for seconds in [2, 4, 8, 16, 32] {
        let out = interrupt(place, args, Duration::from_secs(seconds));
        said = String::from_utf8(out.stdout).unwrap();
        if measured(&said) {
            return said;
        }
    }
    panic!("{args:?} measured nothing: {said}");
}

fn signal(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

const LONG: [&str; 5] = ["--no-roof", "--runs", "1000000", "--seconds", "300"];

#[test]
fn a_profile_keeps_its_samples_and_is_saved_as_partial() {
    let place = Place::new("profile");
    let args = [&["profile", "W", "G", "--json", "--save", "cut", "--html", "cut.html"], &LONG[..]].concat();
    let said = until_measured(&place, &args, |said| !said.is_empty());
    let document: Value = serde_json::from_str(&said).unwrap();
    let [profile] = &document["profiles"].as_array().unwrap()[..] else { panic!("{said}") };
    let samples = profile["compute"]["samples"]["values"].as_array().unwrap().len();
    assert!(samples > 0 && profile["compute"]["time_p50"]["value"].is_number());
    let partial = profile["partial"].as_str().unwrap();
    assert!(partial.contains(&format!("{samples} of 1000000 samples")), "{partial}");
    // The report and the baseline say so, and a comparison warns.
    let page = std::fs::read_to_string(place.0.join("cut.html")).unwrap();
    assert!(page.contains(partial), "the report does not say that it is partial");
    let (shown, _) = place.run(0, &["baseline", "show", "cut"]);
    assert!(shown.contains("partial"), "{shown}");
    let (_, warned) = place.run(0, &["compare", "cut", "cut"]);
    assert!(warned.contains("the baseline is partial"), "{warned}");
}

#[test]
fn the_page_of_a_profile_that_was_stopped_says_so() {
    let place = Place::new("page");
    let said = until_measured(&place, &[&["profile", "W"], &LONG[..]].concat(), |said| !said.is_empty());
    assert!(said.contains("partial") && said.contains("median"), "{said}");
}

#[test]
fn a_benchmark_keeps_the_cases_that_were_done() {
    let place = Place::new("bench");
    let args = ["bench", "ops", "--no-roof", "--threads", "1", "--seconds", "0.5"];
    let measured = |said: &str| said.contains("partial: stopped after") && !said.contains("after 0 of");
    let said = until_measured(&place, &args, measured);
    assert!(said.lines().count() > 4, "{said}");
    let said = until_measured(&place, &[&args[..], &["--json"]].concat(), |said| said.lines().count() > 1);
    let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(last["kind"], "partial");
    assert_eq!(last["done"].as_u64().unwrap() as usize, said.lines().count() - 1);
}

#[test]
fn the_gate_shows_what_it_had_and_decides_nothing() {
    let place = Place::new("gate");
    // Long samples: it decides nothing before it has thirty of each.
    let shape = ["--batch", "8192", "--steps", "256", "--seconds", "600"];
    let args = [&["gate", "--model", "W", "--against", "W", "--max-regress", "0%", "--json"], &shape[..]].concat();
    let said = until_measured(&place, &args, |said| said.contains("undecided"));
    let ruling: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&ruling["partial"], ruling["decision"].as_str()), (&Value::Bool(true), Some("undecided")));
}

#[test]
fn a_second_time_ends_at_once() {
    let place = Place::new("twice");
    let child = start(&place, &[&["profile", "W", "--batch", "4096", "--steps", "256"], &LONG[..]].concat());
    std::thread::sleep(Duration::from_secs(2));
    signal(&child);
    std::thread::sleep(Duration::from_millis(20));
    // It may have ended by itself by now.
    let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).output();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
}
