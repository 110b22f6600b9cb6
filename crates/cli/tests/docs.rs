//! Every command that a page shows is one that this program takes, with these options and values.

use std::path::{Path, PathBuf};
use std::process::Command;

/// README and the pages in `docs`. The changelog is left out: it may name options without their values.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages: Vec<PathBuf> = std::fs::read_dir(root.join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    pages.sort();
    pages
}

/// The commands in a page, each with its line's number: lines of code blocks, and what stands between backticks.
fn commands(page: &str) -> Vec<(usize, String)> {
    let (mut found, mut fenced) = (vec![], false);
    for (at, line) in page.lines().enumerate() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            let start = if line.trim_start().trim_start_matches("$ ").starts_with("schwann ") {
                line.find("schwann ")
            } else {
                line.find("| schwann ").map(|pipe| pipe + 2)
            };
            found.extend(start.map(|start| (at + 1, line[start..].to_owned())));
        } else {
            let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("schwann "));
            found.extend(spans.map(|span| (at + 1, span.to_owned())));
        }
    }
    // The second is how a screen of the monitor begins.
    found.retain(|(_, command)| !command.starts_with("schwann =") && !command.starts_with("schwann  "));
    found
}

/// The words of a command up to a comment, a pipe or a redirection; placeholders such as `…` and `[MODEL]` are left out.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (vec![], String::new(), None);
    for c in command.chars().chain([' ']) {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => word.push(c),
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == ' ' => words.push(std::mem::take(&mut word)),
            None => word.push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    let end = words.iter().position(|w| matches!(w.as_str(), "#" | "|" | ">" | ">>" | "<" | "&&" | "\\"));
    words.truncate(end.unwrap_or(words.len()));
    words.retain(|word| word != "…" && !word.starts_with('['));
    words
}

#[test]
fn every_command_on_a_page_is_one_that_the_program_takes() {
    let (mut count, mut wrong) = (0, vec![]);
    for path in pages() {
        for (line, command) in commands(&std::fs::read_to_string(&path).unwrap()) {
            // With --help nothing runs, but what stands before it is parsed.
            let mut program = Command::new(env!("CARGO_BIN_EXE_schwann"));
            program.env("XDG_CONFIG_HOME", env!("CARGO_TARGET_TMPDIR")).env_remove("SCHWANN_CONFIG");
            let mut words = words(&command);
            // A build without GPUs knows no such backend, and all other words.
            if !schwann::HAS_GPU {
                words.iter_mut().filter(|word| *word == "wgpu").for_each(|word| *word = "cpu".into());
            }
            // What variants there are depends on the machine.
            words.iter_mut().filter(|word| word.starts_with("cuda")).for_each(|word| *word = "cpu".into());
            let out = program.args(&words[1..]).arg("--help").output().unwrap();
            count += 1;
            if !out.status.success() {
                let said = String::from_utf8_lossy(&out.stderr);
                wrong.push(format!("{}:{line}: {command}\n    {}", path.display(), said.lines().next().unwrap_or("")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "only {count} commands were found");
}
