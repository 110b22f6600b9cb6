//! `--backend`: the same answers from another backend, and what makes no sense is refused.

use crate::common::Place;

#[test]
fn a_backend_is_chosen_by_name_and_gives_the_same_answers() {
    let place = Place::new("backends");
    place.run(0, &["demo", "net.safetensors", "--model", "gated", "--input", "x.npy"]);
    let json = |args: &[&str]| -> serde_json::Value {
        let said = place.run(0, &[&["run", "net.safetensors", "--input", "x.npy", "--json"], args].concat()).0;
        serde_json::from_str(&said).unwrap()
    };
    let (cpu, reference) = (json(&["--threads", "2"]), json(&["--backend", "reference"]));
    assert!(cpu["backend"].as_str().unwrap().starts_with("cpu ("), "{cpu}");
    assert_eq!(
        (&cpu["threads"], &reference["backend"], &reference["threads"]),
        (&2.into(), &"reference".into(), &1.into())
    );
    for i in 0..3 {
        let of = |all: &serde_json::Value| all["outputs"][0]["first"][i].as_f64().unwrap();
        assert!((of(&cpu) - of(&reference)).abs() < 1e-5, "{cpu}\n{reference}");
    }
    assert_eq!(json(&["--backend", "cpu:portable"])["backend"], "cpu (portable)");
    assert_eq!(json(&["--backend", "cpu", "--isa", "portable"])["backend"], "cpu (portable)");

    let plan = ["graph", "net.safetensors", "--plan", "--set", "B=2", "--backend", "reference"];
    assert!(place.run(0, &plan).0.contains("on reference, 1 thread"));
    let bench = ["bench", "ops", "--filter", "overhead", "--seconds", "0.01", "--backend", "reference", "--json"];
    let said = place.run(0, &bench).0;
    let case: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert_eq!((&case["kind"], &case["isa"], &case["roof_s"]), (&"case".into(), &"reference".into(), &().into()));
    let circuits =
        ["bench", "circuits", "--model=W", "--batch=1", "--steps=1", "--seconds=0.01", "--backend=reference"];
    let said = place.run(0, &circuits).0;
    assert!(said.contains("reference, in a machine with") && !said.contains("peak:"), "{said}");
}

#[test]
fn a_gpus_peak_is_measured_and_what_is_inside_of_loops_is_told_apart() {
    let place = Place::new("backends-gpu");
    if !place.run(0, &["devices", "list"]).0.contains("wgpu:") {
        assert!(std::env::var_os("SCHWANN_REQUIRE_GPU").is_none(), "a GPU is required");
        return;
    }
    let small = ["--batch=4", "--steps=4", "--seconds=0.05", "--backend=wgpu"];
    let circuits = place.run(0, &[&["bench", "circuits", "--model=W"][..], &small].concat()).0;
    let plain = circuits.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain.contains("peak: 256 multiply-adds") && plain.contains("flop/s (measured)"), "{circuits}");
    assert!(!plain.contains("threads") && plain.contains("wgpu ("), "{circuits}");
    let profile = ["profile", "W", "--runs=5", "--no-roof", "--json", "--phases=always"];
    let said = place.run(0, &[&profile[..], &small].concat()).0;
    let told = serde_json::from_str::<serde_json::Value>(&said).unwrap()["profiles"][0]["compute"].clone();
    let why = told["phases"]["reason"].as_str().unwrap_or_default();
    assert!(told["phases"]["value"].is_f64() || why.contains("told apart"), "{}", told["phases"]);
}

#[test]
fn a_profile_of_another_backend_says_so_and_is_not_compared_with_the_processors() {
    let place = Place::new("backends-profile");
    let profile = |name: &str, more: &[&str]| {
        let args =
            ["profile", "W", "--batch=1", "--steps=1", "--seconds=0.05", "--runs=5", "--no-roof", "--save", name];
        place.run(0, &[&args[..], more].concat()).0
    };
    let text = profile("slow", &["--backend", "reference"]);
    assert!(text.contains("reference, in a machine with") && !text.contains("1 thread"), "{text}");
    assert!(text.contains("reference"), "{text}");
    profile("quick", &[]);
    let (_, said) = place.run(2, &["gate", "--baseline", "slow", "--candidate", "quick", "--max-regress", "3%"]);
    assert!(said.contains("backend reference and cpu"), "{said}");
}

#[test]
fn backends_that_are_not_there_and_choices_that_make_no_sense_are_refused() {
    let place = Place::new("backends-refused");
    place.run(0, &["demo", "net.safetensors", "--model", "gated", "--input", "x.npy"]);
    let refused = |args: &[&str], words: &[&str]| {
        let (_, said) = place.run(2, args);
        let plain = said.split_whitespace().collect::<Vec<_>>().join(" ");
        words.iter().for_each(|word| assert!(plain.contains(word), "no `{word}` in {said}"));
    };
    let run = |more: &[&'static str]| [&["run", "net.safetensors", "--input", "x.npy"][..], more].concat();
    refused(&run(&["--backend", "gpu"]), &["no backend named `gpu`", "`cpu`, `reference`"]);
    refused(&run(&["--backend", "refrence"]), &["`refrence`", "did you mean `reference`"]);
    refused(&run(&["--backend", "cpu:mmx"]), &["`cpu:mmx`", "`portable`"]);
    refused(&run(&["--backend", "reference", "--isa", "portable"]), &["--isa is for the CPU", "reference"]);
    refused(&["verify", "net.safetensors", "--reference", "--backend", "cpu"], &["cannot be used with"]);
    refused(&["profile", "W", "--backend", "reference:fast"], &["no variant", "none"]);
    refused(&["bench", "ops", "--backend", ""], &["no backend named ``"]);
}
