//! Files are written in one place, `schwann::io::write_file`: nobody writes around it.

use std::path::{Path, PathBuf};

/// What opens a file for writing.
const WAYS: [&str; 6] = ["fs::write(", "File::create(", "File::create_new(", "OpenOptions", "fs::rename(", "fs::copy("];

/// Who may, and why.
const ALLOWED: [(&str, &str); 7] = [
    ("crates/core/src/io/output.rs", "it is the writer"),
    ("crates/prof/src/device/store.rs", "moves a calibration that cannot be read aside"),
    ("crates/cli/src/gate/experiment.rs", "goes on with a log, line by line"),
    ("crates/cli/src/monitor/feed.rs", "a recording grows line by line"),
    ("crates/cli/src/monitor/tui/screens.rs", "it is a test's"),
    ("crates/core/src/live/write.rs", "its file is shared memory, which is written word by word"),
    ("crates/prof/src/db/mod.rs", "a database has a writer of its own"),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            found.push(entry);
        }
    }
}

/// Lines outside of tests that have one of these texts, but for those of files that may.
fn lines_with(texts: &[&str], may: &[(&str, &str)]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![];
    for place in ["src", "crates/core/src", "crates/nn/src", "crates/sensors/src", "crates/prof/src", "crates/cli/src"]
    {
        sources(&root.join(place), &mut files);
    }
    let mut found = vec![];
    for file in files {
        let name = file.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
        if may.iter().any(|(allowed, _)| *allowed == name) || name.ends_with("/tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        // Tests write what they like.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| texts.iter().any(|text| line.contains(text))) {
            found.push(format!("{name}:{}: {}", i + 1, line.trim()));
        }
    }
    found
}

#[test]
fn every_file_is_written_by_the_one_writer() {
    let around = lines_with(&WAYS, &ALLOWED);
    assert!(around.is_empty(), "these write around `io::write_file`:\n{}", around.join("\n"));
}

#[test]
fn every_picture_is_written_by_the_one_writer() {
    let by_hand = lines_with(&["<svg", "<rect", "<circle", "<path", "<text "], &[]);
    assert!(by_hand.is_empty(), "these write SVG around `svg`:\n{}", by_hand.join("\n"));
}
