//! What a project that depends on the runtime alone takes in, and what the tests of each package are made of.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages that a build of the façade needs on 64-bit Linux, itself included.
fn packages(features: &[&str]) -> BTreeSet<String> {
    let out = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--package", "schwann", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(["--locked", "--target", "x86_64-unknown-linux-gnu"])
        .args(features)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let lines = String::from_utf8(out.stdout).unwrap();
    lines.lines().filter_map(|line| line.split(" (").next()).map(str::to_owned).collect()
}

#[test]
fn the_runtime_alone_brings_no_profiler_and_as_few_packages_as_the_readme_says() {
    let alone = packages(&["--no-default-features"]);
    for unwanted in ["schwann-prof", "schwann-sensors", "rusqlite", "nvml-wrapper", "tiny-skia", "schemars", "toml"] {
        let found = alone.iter().find(|p| p.split(' ').next() == Some(unwanted));
        assert_eq!(found, None, "the runtime alone must not need it");
    }
    let readme = include_str!("../README.md");
    let said = format!("{} packages", alone.len());
    assert!(readme.contains(&said), "README.md should say {said:?}");
    let all = packages(&[]);
    assert!(all.len() > 2 * alone.len(), "{} of {} packages are too little to be called small", alone.len(), all.len());
}

#[test]
fn every_file_of_tests_belongs_to_a_program() {
    let files = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for package in files(root.join("crates")).chain([root.to_owned()]) {
        let read = |file: &str| fs::read_to_string(package.join(file)).unwrap_or_default();
        let lists = read("Cargo.toml") + &read("tests/all.rs");
        for file in files(package.join("tests")).filter(|file| file.extension().is_some_and(|e| e == "rs")) {
            let name = file.file_stem().unwrap().to_str().unwrap();
            let ways = [format!("mod {name};"), format!("name = \"{name}\""), format!("path = \"tests/{name}.rs\"")];
            let listed = lists.lines().any(|line| ways.iter().any(|way| way == line));
            assert!(listed, "{} is in no `all.rs` and no `Cargo.toml`: nothing would compile it", file.display());
            seen += 1;
        }
    }
    assert!(seen > 70, "{seen} files");
}
