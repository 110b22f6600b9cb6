//! Inputs that are larger than memory: `run --chunk` reads and writes them piece by piece.

use crate::common::Place;
use schwann_core::{DType, Tensor, io};
use std::io::{Seek, SeekFrom, Write};
use std::process::Command;

/// A file of so many rows of 16 zeros, of which the disk keeps nothing but the header.
fn zeros(place: &Place, rows: usize) {
    let mut file = std::fs::File::create(place.0.join("large.npy")).unwrap();
    file.write_all(&io::npy_header(DType::F32, &[rows, 16]).unwrap()).unwrap();
    let start = file.stream_position().unwrap();
    file.set_len(start + rows as u64 * 64).unwrap();
    file.seek(SeekFrom::Start(start)).unwrap();
    // Something else in the first row and the last.
    file.write_all(&1.0f32.to_le_bytes()).unwrap();
    file.seek(SeekFrom::End(-4)).unwrap();
    file.write_all(&2.0f32.to_le_bytes()).unwrap();
}

#[test]
fn pieces_give_what_the_whole_gives() {
    let place = Place::new("chunks");
    place.run(0, &["demo", "net.safetensors", "--model", "gated", "--input", "x.npy"]);
    let run = ["run", "net.safetensors", "--input", "x.npy"];
    place.run(0, &[&run[..], &["--output", "whole.npy"]].concat());
    let whole = io::read_npy(place.0.join("whole.npy")).unwrap();
    for rows in ["1", "5", "32", "1000"] {
        let (said, _) = place.run(0, &[&run[..], &["--output", "y.npy", "--chunk", rows]].concat());
        assert!(said.contains("in ") && said.contains("piece"), "{said}");
        let pieces = io::read_npy(place.0.join("y.npy")).unwrap();
        assert_eq!(pieces.shape(), whole.shape());
        for (a, b) in pieces.values::<f32>().unwrap().iter().zip(whole.values::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-6, "{rows} rows: {a} instead of {b}");
        }
    }
    // A model's sequences, each from a state of zero.
    let x = Tensor::new(&[6, 3, 8], &(0..144).map(|i| (i as f32).sin()).collect::<Vec<_>>()).unwrap();
    io::write_npy(place.0.join("x.npy"), &x).unwrap();
    let run = ["run", "wired-cfc", "--input", "x.npy", "--output"];
    place.run(0, &[&run[..], &["y=whole.npy"]].concat());
    place.run(0, &[&run[..], &["y=y.npy", "--chunk", "4", "--json"]].concat());
    let (whole, pieces) = (place.0.join("whole.npy"), place.0.join("y.npy"));
    let (whole, pieces) = (io::read_npy(whole).unwrap(), io::read_npy(pieces).unwrap());
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
    assert!(pieces.values::<f32>().unwrap().iter().zip(whole.values::<f32>().unwrap()).all(near));
}

#[cfg(target_os = "linux")]
#[test]
fn an_input_that_does_not_fit_the_memory_that_is_allowed_runs_in_pieces() {
    let place = Place::new("large");
    place.run(0, &["demo", "net.safetensors", "--model", "gated"]);
    // 256 MiB, where the program may have 128 of its own (mapped files do not count).
    let rows = 4 << 20;
    zeros(&place, rows);
    let limited = |more: &str| {
        let program = env!("CARGO_BIN_EXE_schwann");
        let run = format!("{program} run net.safetensors --input large.npy --output y.npy --threads 1 {more}");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -d 131072 && exec {run}")]).current_dir(&place.0);
        command.env("SCHWANN_DATA", place.0.join("data")).env("XDG_CONFIG_HOME", place.0.join("settings"));
        command.output().unwrap()
    };
    let whole = limited("");
    assert!(!whole.status.success(), "it fits, so that this test shows nothing");
    assert!(!place.0.join("y.npy").exists());
    let pieces = limited("--chunk 4096");
    assert!(pieces.status.success(), "{}", String::from_utf8_lossy(&pieces.stderr));
    let y = io::map_npy(place.0.join("y.npy")).unwrap();
    assert_eq!(y.shape(), [rows, 4]);
    let values = y.values::<f32>().unwrap();
    // Rows of zeros all give the same, and the two others something else.
    let row = |i: usize| &values[4 * i..4 * i + 4];
    assert!((1..rows - 1).step_by(997).all(|i| row(i) == row(1)));
    assert!(row(0) != row(1) && row(rows - 1) != row(1));
}

#[test]
fn what_cannot_run_in_pieces_is_refused_with_the_reason() {
    let place = Place::new("chunks-bad");
    place.run(0, &["demo", "net.safetensors", "--model", "gated", "--input", "x.npy"]);
    place.run(0, &["demo", "rnn.safetensors", "--model", "rnn", "--input", "r.npy"]);
    let run = ["run", "net.safetensors", "--input", "x.npy", "--chunk", "4"];
    for (more, words) in [
        (&[][..], "wants one --output"),
        (&["--output", "y.npy", "--check"], "--check does not go with --chunk"),
        (&["--output", "y.npy", "--repeat", "3"], "--repeat does not go with --chunk"),
        (&["--output", "x.npy"], "would overwrite"),
    ] {
        let (_, said) = place.run(2, &[&run[..], more].concat());
        assert!(said.contains(words), "{more:?}: {said}");
    }
    std::fs::write(place.0.join("cut.npy"), &std::fs::read(place.0.join("x.npy")).unwrap()[..200]).unwrap();
    for (file, words) in [("cut.npy", "follow the header"), ("none.npy", "none.npy")] {
        let (_, said) = place.run(2, &["run", "net.safetensors", "--input", file, "--output", "y.npy", "--chunk", "4"]);
        assert!(said.contains(words), "{said}");
    }
    let (_, said) = place.run(2, &["run", "rnn.safetensors", "--input", "r.npy", "--output", "y.npy", "--chunk", "4"]);
    assert!(said.contains("--chunk"), "{said}");
    assert!(!place.0.join("y.npy").exists());
}
