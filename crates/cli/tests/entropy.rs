//! `schwann entropy` as people use it: the page, the other forms, and what it says to bad input.

use crate::common::Place;
use std::io::Write;
use std::process::Stdio;

/// Half a page of one value, then every value, then a rest.
fn sample() -> Vec<u8> {
    [vec![0; 1024], (0..1024).map(|i| (i % 256) as u8).collect(), b"some text at the end".to_vec()].concat()
}

#[test]
fn the_page_fits_80_columns_and_shows_the_windows_at_both_ends() {
    let place = Place::new("entropy-page");
    std::fs::write(place.0.join("sample.bin"), sample()).unwrap();
    let (page, _) = place.run(0, &["entropy", "sample.bin"]);
    for words in ["2.02 KiB, 9 windows of 256 bytes", "0.0000 least", "1.0000 most", "0x400", "█"] {
        assert!(page.contains(words), "expected `{words}` in:\n{page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    assert!(!page.contains('\u{1b}'), "colours where nobody sees them");
    let (one, _) = place.run(0, &["entropy", "sample.bin", "--window", "16777216"]);
    assert!(one.contains("1 window of 2068 bytes"), "{one}");
}

#[test]
fn csv_and_json_have_every_window_and_agree_on_all_backends() {
    let place = Place::new("entropy-forms");
    std::fs::write(place.0.join("sample.bin"), sample()).unwrap();
    let (csv, _) = place.run(0, &["entropy", "sample.bin", "--csv"]);
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!(rows.len(), 10);
    assert_eq!(rows[..2], ["offset,bytes,entropy", "0,256,0"]);
    assert_eq!(rows[5], "1024,256,1");
    assert!(rows[9].starts_with("2048,20,0.390"), "{}", rows[9]);
    for backend in ["cpu", "reference"] {
        let (json, _) = place.run(0, &["entropy", "sample.bin", "--step", "100", "--json", "--backend", backend]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["bytes"], &json["window"], &json["step"]), (&2068.into(), &256.into(), &100.into()));
        let windows = json["windows"].as_array().unwrap();
        assert_eq!(windows.len(), 20);
        assert_eq!(windows[0]["entropy"], 0.0);
        assert_eq!((&windows[19]["offset"], &windows[19]["bytes"]), (&1900.into(), &168.into()));
    }
}

#[test]
fn a_picture_is_written_beside_the_page_or_to_stdout() {
    let place = Place::new("entropy-picture");
    std::fs::write(place.0.join("sample.bin"), sample()).unwrap();
    let (page, said) = place.run(0, &["entropy", "sample.bin", "--svg", "curve.svg"]);
    assert!(page.contains("whole file") && said.contains("wrote curve.svg"), "{page}{said}");
    let file = std::fs::read_to_string(place.0.join("curve.svg")).unwrap();
    let (printed, _) = place.run(0, &["entropy", "sample.bin", "--svg", "-"]);
    assert_eq!(file, printed);
    assert!(file.starts_with("<svg") && file.contains("Entropy of sample.bin by windows of 256 bytes"));
    let (_, said) = place.run(2, &["entropy", "sample.bin", "--svg", "-", "--csv"]);
    assert!(said.contains("give the picture a file"), "{said}");
    let (_, said) = place.run(2, &["entropy", "sample.bin", "--svg", "sample.bin"]);
    assert!(said.contains("would overwrite the input"), "{said}");
}

#[test]
fn stdin_is_read_to_its_end() {
    let place = Place::new("entropy-stdin");
    let mut command = place.command(&["entropy", "-", "--csv", "--window", "4"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"aaaabbccx").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "offset,bytes,entropy\n0,4,0\n4,4,0.125\n8,1,0\n");
}

#[test]
fn what_cannot_be_is_said_in_words() {
    let place = Place::new("entropy-bad");
    std::fs::write(place.0.join("empty"), []).unwrap();
    std::fs::write(place.0.join("some"), b"abc").unwrap();
    for (args, words) in [
        (&["entropy", "empty"][..], "empty is empty: there are no bytes to look at"),
        (&["entropy", "."], ". is a folder; expected a file"),
        (&["entropy", "missing"], "cannot read missing"),
        (&["entropy", "some", "--window", "0"], "from 1 to 16777216"),
        (&["entropy", "some", "--step", "0"], "1 or more"),
        (&["entropy", "some", "--step", "-3"], "--step"),
        (&["entropy", "some", "--backend", "nothing"], "`cpu`, `reference`"),
        (&["entropy", "some", "--csv", "--json"], "cannot be used with"),
    ] {
        let (printed, said) = place.run(2, args);
        assert!(printed.is_empty() && said.contains(words) && !said.contains("panicked"), "{args:?}: {said}");
    }
}
