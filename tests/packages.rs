//! What a project that depends on the runtime alone takes in.

use std::collections::BTreeSet;
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
