//! The command line itself: help by headings, completions, man pages, quiet, version, defaults from a file; and pictures
//! that fit a page.

use crate::common::Place;

/// Writes the user's file of defaults.
fn settings(place: &Place, text: &str) {
    std::fs::create_dir_all(place.0.join("settings/schwann")).unwrap();
    std::fs::write(place.0.join("settings/schwann/config.toml"), text).unwrap();
}

#[test]
fn help_has_headings_and_the_version_has_a_commit() {
    let place = Place::new("help");
    let (help, _) = place.run(0, &["--help"]);
    for heading in
        ["Look at networks and files:", "Run it:", "Measure it:", "Compare measurements:", "Machines:", "Options:"]
    {
        assert!(help.contains(heading), "no `{heading}` in\n{help}");
    }
    assert!(!help.contains('\u{1b}') && help.lines().all(|line| line.chars().count() <= 80), "{help}");
    let (models, _) = place.run(0, &["profile", "--help"]);
    assert!(models.contains("wired-cfc") && models.contains("CfC on a sparse circuit"), "{models}");
    let (version, _) = place.run(0, &["--version"]);
    let commit = version.trim().rsplit_once('(').unwrap().1.trim_end_matches(')');
    let hash = commit.trim_end_matches("-dirty");
    assert!(hash == "commit unknown" || (hash.len() >= 7 && hash.chars().all(|c| c.is_ascii_hexdigit())), "{version}");
}

#[test]
fn shells_and_man_get_what_they_need() {
    let place = Place::new("describe");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (text, _) = place.run(0, &["completions", shell]);
        assert!(text.contains("schwann") && text.contains("profile") && text.contains("sweep"), "{shell}");
    }
    place.run(0, &["man", "pages"]);
    let page = std::fs::read_to_string(place.0.join("pages/schwann-profile.1")).unwrap();
    assert!(page.starts_with(".ie") || page.contains(".TH"), "{page}");
    assert!(page.contains("sweep"));
    assert!(place.0.join("pages/schwann.1").exists() && place.0.join("pages/schwann-wiring-show.1").exists());
    std::fs::write(place.0.join("file"), "").unwrap();
    let (_, said) = place.run(2, &["man", "file/pages"]);
    assert!(said.contains("cannot write man pages to file/pages"), "{said}");
}

#[test]
fn quiet_says_nothing_beside_the_result_and_verbose_says_more() {
    let place = Place::new("quiet");
    place.run(0, &["demo", "net.safetensors"]);
    let (_, said) = place.run(0, &["graph", "net.safetensors", "--svg", "net.svg"]);
    assert!(said.contains("wrote net.svg"), "{said}");
    let (_, said) = place.run(0, &["--quiet", "graph", "net.safetensors", "--svg", "net.svg"]);
    assert_eq!(said, "");
    let (_, said) = place.run(0, &["info", "net.safetensors", "-v"]);
    assert!(said.contains("reading net.safetensors") && said.contains("took"), "{said}");
    place.run(2, &["-q", "-v", "info", "net.safetensors"]);
}

#[test]
fn defaults_come_from_a_file_and_its_mistakes_are_named() {
    let place = Place::new("config");
    settings(&place, "quiet = true\n[profile]\nruns = 5\nseconds = 0.05\nbatch = 3\nno-roof = true\n");
    let (page, _) = place.run(0, &["profile", "W", "--steps", "2"]);
    assert!(page.contains("batch 3, 2 steps") && page.contains("of 5 samples"), "{page}");
    let (page, _) = place.run(0, &["profile", "W", "--steps", "2", "--batch", "1"]);
    assert!(page.contains("batch 1, 2 steps"), "{page}");
    for (text, words) in [
        ("thread = 1\n", ["config.toml has a mistake", "line 1", "did you mean `threads`"]),
        ("\n[profile]\nrun = 5\n", ["config.toml has a mistake", "line 3", "did you mean `runs`"]),
        ("[profile]\nruns = \"many\"\n", ["config.toml, line 2", "`runs` is many", "whole number"]),
    ] {
        settings(&place, text);
        let (_, said) = place.run(2, &["profile", "W"]);
        assert!(words.iter().all(|word| said.contains(word)), "{text}: {said}");
        // Help is there all the same.
        place.run(0, &["profile", "--help"]);
    }
    let out = place.command(&["demo"]).env("SCHWANN_CONFIG", place.0.join("none.toml")).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8(out.stderr).unwrap().contains("none.toml"), "a file that was named must be there");
}

#[test]
fn a_models_page_has_headings_and_fits_80_columns_whether_it_is_a_file_or_not() {
    let place = Place::new("info");
    let (page, _) = place.run(0, &["info", "wired-cfc"]);
    assert!(page.contains("\n\nCfC\n") && page.contains("\n\nIn all\n") && !page.contains("\\u000a"), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    assert!(page.starts_with("wired-cfc\n"), "{page}");
}

#[test]
fn a_models_circuit_can_be_shown() {
    let place = Place::new("wiring");
    let (text, _) = place.run(0, &["wiring", "show", "wired-cfc"]);
    assert!(text.contains("AutoNCP") || text.contains("64"), "{text}");
    place.run(0, &["wiring", "show", "wired-ltc", "--svg", "circuit.svg"]);
    assert!(std::fs::read_to_string(place.0.join("circuit.svg")).unwrap().starts_with("<svg"));
    let (_, said) = place.run(2, &["wiring", "show", "dense-cfc"]);
    assert!(said.contains("none of its layers has a wiring"), "{said}");
    let (_, said) = place.run(2, &["wiring", "show", "wired-cfc", "--layer", "5"]);
    assert!(said.contains("layer 5 has no wiring; layers with one: 0"), "{said}");
}

#[test]
fn pictures_of_networks_fit_a_page_and_name_their_layers() {
    let place = Place::new("svg");
    for model in ["mlp", "rnn", "transformer", "gated"] {
        let file = format!("{model}.safetensors");
        place.run(0, &["demo", &file, "--model", model]);
        let (svg, _) = place.run(0, &["graph", &file, "--svg", "-"]);
        let wide: f64 = svg.split(" width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        assert!(wide <= 1400.0, "{model} is {wide} px wide");
        assert!(svg.contains("class=\"g\"") || model == "rnn", "{model} shows no layers");
    }
    for model in ["wired-cfc", "wired-ltc", "dense-cfc"] {
        let (svg, _) = place.run(0, &["graph", model, "--svg", "-"]);
        // What a loop takes from outside has the name that it has there, and is no box of its own.
        assert!(!svg.contains("fixed.") && svg.contains("rnn_cell."), "{model}");
        let number = |tag: &str, name: &str| -> f64 {
            tag.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        // No band lies on a title.
        let tags = |class: &str| -> Vec<f64> {
            let mine = |tag: &&str| tag.contains(&format!("class=\"{class}\""));
            svg.split('<').filter(mine).map(|tag| number(tag, "y")).collect()
        };
        for title in tags("t") {
            assert!(tags("g").iter().all(|band| (band - title).abs() > 4.0), "{model}: {title} in {:?}", tags("g"));
        }
    }
}
