//! `schwann tune`, and what later commands make of it: each command here is a process of its own, so that whatever is found
//! again was kept.

use crate::common::Place;
use schwann_core::Bindings;
use schwann_core::Figure;
use schwann_core::backend::Choice;
use schwann_prof::db;
use schwann_prof::models;
use schwann_prof::profiler::{Options, Subject};
use schwann_prof::tune::{Config, Key, Objective, Outcome, Store, Verdict, Winner};
use serde_json::Value;

fn model() -> Subject {
    models::built_in("wired-cfc", &models::Sizes::default()).unwrap().unwrap().into()
}

/// Keeps a record that nobody measured: rows of a block, so that the plan shows whether it is used.
fn keep(place: &Place, key: Key, rows: usize) {
    let mut config = Config::default();
    config.changes.numbers.insert("loop_block_rows_most".into(), rows);
    let figure = |value: f64, unit: &str| Figure::measured(value, unit, "made up");
    let winner = Winner {
        changes: config.told(&Options::default()),
        config,
        gain: figure(1.25, "×"),
        time: figure(4e-6, "s"),
        base: figure(5e-6, "s"),
        difference: figure(0.0, "1"),
    };
    let outcome = Outcome {
        model: "wired-cfc".into(),
        objective: Objective::Latency,
        batch: figure(4.0, "sequences"),
        steps: figure(2.0, "steps"),
        threads: 1,
        backend: "cpu".into(),
        seed: 1,
        verdict: Verdict::Found,
        winner: Some(winner),
        confirmations: vec![],
        candidates: vec![],
        seconds: figure(1.0, "s"),
        partial: false,
    };
    let file = db::Place::File(place.0.join("data/tuned.db"));
    Store::create(&file).unwrap().keep(key, &outcome).unwrap();
}

fn key(batch: usize) -> Key {
    let sizes = Bindings::new().with("B", batch).with("T", 2);
    Key::new(&model(), &sizes, &Choice::default(), 1).unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// An input of so many sequences of 2 steps.
fn input(place: &Place, batch: usize) {
    let x = schwann_core::Tensor::zeros(schwann_core::DType::F32, &[batch, 2, 8]).unwrap();
    schwann_core::io::write_npy(place.0.join("x.npy"), &x).unwrap();
}

#[test]
fn a_search_says_what_it_tried_and_keeps_what_won() {
    let place = Place::new("tune");
    let args = ["tune", "wired-cfc", "--budget", "1.5s", "--batch", "4", "--steps", "2", "--threads", "1"];
    let (page, _) = place.run(0, &[&args[..], &["--dry-run"]].concat());
    assert!(page.contains("wired-cfc on cpu") && page.contains("candidates in"), "{page}");
    assert!(page.contains("found:") || page.contains("nothing found that is faster beyond noise"), "{page}");
    assert!(!place.0.join("data/tuned.db").exists(), "a dry run keeps nothing");
    let (text, _) = place.run(0, &[&args[..], &["--json"]].concat());
    let said = json(&text);
    let won = said["winner"].is_object();
    assert_eq!(said["kept"].is_string(), won);
    assert!(!said["candidates"].as_array().unwrap().is_empty());
    for candidate in said["candidates"].as_array().unwrap() {
        assert!(!candidate["outcome"].as_str().unwrap().is_empty());
    }
    assert_eq!(said["key"]["sizes"], "B=4 T=2");
    let (list, _) = place.run(0, &["tune", "--list", "--json"]);
    assert_eq!(json(&list).as_array().unwrap().len(), usize::from(won));
}

#[test]
fn a_kept_plan_is_used_unasked_and_only_for_its_network_size_and_machine() {
    let place = Place::new("tuned");
    let run = |args: &[&str]| {
        json(&place.run(0, &[&["run", "wired-cfc", "--input", "x.npy", "--threads", "1", "--json"], args].concat()).0)
    };
    input(&place, 4);
    assert!(run(&[])["tuned"].is_null(), "nothing is kept yet");
    keep(&place, key(4), 1);
    let tuned = run(&[]);
    assert_eq!(tuned["tuned"]["changes"][0]["name"], "loop_block_rows_most");
    assert_eq!(tuned["tuned"]["gain"]["value"], 1.25);
    assert!(run(&["--no-tuned"])["tuned"].is_null());
    // Another order of additions may change the last bits.
    let usual = run(&["--no-tuned"]);
    for (a, b) in tuned["outputs"].as_array().unwrap().iter().zip(usual["outputs"].as_array().unwrap()) {
        assert_eq!((&a["name"], &a["shape"]), (&b["name"], &b["shape"]));
        for (a, b) in a["first"].as_array().unwrap().iter().zip(b["first"].as_array().unwrap()) {
            assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-5, "{a} and {b}");
        }
    }
    // Of another size, type of machine, or number of threads there is none.
    input(&place, 5);
    assert!(run(&[])["tuned"].is_null());
    keep(&place, Key { machine: "0123456789abcdef".into(), ..key(5) }, 1);
    assert!(run(&[])["tuned"].is_null(), "a record of another machine");
    keep(&place, Key { threads: 2, ..key(5) }, 1);
    assert!(run(&[])["tuned"].is_null(), "a record for two threads");

    // The plan says so too, and a profile.
    let plan = ["graph", "wired-cfc", "--plan", "--set", "B=4", "--set", "T=2", "--threads", "1", "--no-predict"];
    let (with, said) = place.run(0, &plan);
    assert!(said.contains("tuned on") && said.contains("1.25× better"), "{said}");
    let (without, said) = place.run(0, &[&plan[..], &["--no-tuned"]].concat());
    assert!(with != without && !said.contains("tuned on"), "{with}");
    let profile = [
        "profile",
        "wired-cfc",
        "--batch",
        "4",
        "--steps",
        "2",
        "--seconds",
        "0.05",
        "--runs",
        "5",
        "--no-roof",
        "--json",
    ];
    let profiled = json(&place.run(0, &profile).0);
    assert_eq!(profiled["profiles"][0]["tuned"]["gain"]["value"], 1.25);
    let usual = json(&place.run(0, &[&profile[..], &["--no-tuned"]].concat()).0);
    assert!(usual["profiles"][0]["tuned"].is_null());

    // And it can be forgotten.
    let (_, said) = place.run(0, &["tune", "wired-cfc", "--batch", "4", "--steps", "2", "--threads", "1", "--forget"]);
    assert!(said.contains("forgotten"), "{said}");
    input(&place, 4);
    assert!(run(&[])["tuned"].is_null());
}

#[test]
fn a_damaged_store_is_said_and_left_alone_and_the_default_is_used() {
    let place = Place::new("tuned-damaged");
    std::fs::create_dir_all(place.0.join("data")).unwrap();
    let damaged = "not a database, and long enough to be looked at as one";
    std::fs::write(place.0.join("data/tuned.db"), damaged).unwrap();
    input(&place, 4);
    let (text, said) = place.run(0, &["run", "wired-cfc", "--input", "x.npy", "--json"]);
    assert!(said.contains("warning: what was tuned cannot be used") && said.contains("tuned.db"), "{said}");
    assert!(json(&text)["tuned"].is_null());
    let (_, said) = place.run(2, &["tune", "wired-cfc", "--budget", "1s"]);
    assert!(said.contains("tuned.db") && said.contains("left as it is"), "{said}");
    assert_eq!(std::fs::read_to_string(place.0.join("data/tuned.db")).unwrap(), damaged);
}

#[test]
fn the_frontier_names_its_knee_and_draws_a_picture() {
    let place = Place::new("batches");
    let args =
        ["tune", "wired-cfc", "--batches", "--max-batch", "32", "--steps", "2", "--threads", "1", "--budget", "1s"];
    let (page, _) = place.run(0, &[&args[..], &["--latency", "10s", "--svg", "f.svg"]].concat());
    assert!(page.contains("Knee: batch") && page.contains("Within 10.0 s: up to batch 32"), "{page}");
    assert!(std::fs::read_to_string(place.0.join("f.svg")).unwrap().contains("the knee"));
    let (text, _) = place.run(0, &[&args[..], &["--latency", "1ns", "--json"]].concat());
    let said = json(&text);
    assert!(said["points"].as_array().unwrap().len() >= 6);
    assert!((1..=32).contains(&said["knee"].as_u64().unwrap()));
    assert!(said["within"][1].is_null(), "no run ends within a nanosecond");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_flag() {
    let place = Place::new("tune-bad");
    for (args, words) in [
        (&["tune"][..], "MODEL"),
        (&["tune", "nothing.safetensors"], "nothing.safetensors"),
        (&["tune", "wired-cfc", "--budget", "soon"], "such as 60s"),
        (&["tune", "wired-cfc", "--max-error", "-1"], "0 or more"),
        (&["tune", "wired-cfc", "--from", "vax", "--budget", "1s"], "`vax`"),
        (&["tune", "wired-cfc", "--latency", "2ms"], "--batches"),
        (&["tune", "wired-cfc", "--store", "team.db"], "postgres://"),
        (&["tune", "wired-cfc", "--batch", "4", "--set", "B=4"], "say the same"),
        (&["tune", "experiment", "--models", "0"], "--models"),
    ] {
        let (_, said) = place.run(2, args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
