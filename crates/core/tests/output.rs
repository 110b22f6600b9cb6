//! Writing files: what is there before and after, whatever the path leads to.
#![cfg(unix)]

use schwann_core::io::{same_file, write_bytes, write_file, write_text};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// A directory of this test's own, removed in the end.
struct Scratch(PathBuf);
impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("schwann-output-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn refused(path: &Path, words: &str) {
    let said = write_bytes(path, b"new").unwrap_err().to_string();
    assert!(said.contains(words) && said.contains(&path.display().to_string()), "{said}");
}

#[test]
fn a_link_stays_and_what_it_leads_to_is_replaced() {
    let dir = Scratch::new("links");
    fs::create_dir(dir.at("deep")).unwrap();
    fs::write(dir.at("deep/real"), "old").unwrap();
    symlink("deep/real", dir.at("one")).unwrap();
    symlink(dir.at("one"), dir.at("two")).unwrap();
    write_bytes(dir.at("two"), b"new").unwrap();
    assert_eq!(fs::read(dir.at("deep/real")).unwrap(), b"new");
    assert!(fs::symlink_metadata(dir.at("one")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(dir.at("two")).unwrap().is_symlink());
    // One that leads to nothing makes what it leads to, and one in a directory that is a link is found too.
    symlink("deep/made", dir.at("dangling")).unwrap();
    symlink("deep", dir.at("folder")).unwrap();
    write_bytes(dir.at("dangling"), b"made").unwrap();
    assert_eq!(fs::read(dir.at("folder/made")).unwrap(), b"made");
    symlink("../deep/real", dir.at("deep/back")).unwrap();
    write_bytes(dir.at("folder/back"), b"newer").unwrap();
    assert_eq!(fs::read(dir.at("deep/real")).unwrap(), b"newer");
    symlink("b", dir.at("a")).unwrap();
    symlink("a", dir.at("b")).unwrap();
    refused(&dir.at("a"), "in a circle");
    assert_eq!(dir.files(), ["a", "b", "dangling", "deep", "folder", "one", "two"]);
}

#[test]
fn a_new_file_is_all_or_nothing_and_the_old_one_keeps_its_mode() {
    let dir = Scratch::new("atomic");
    let path = dir.at("f");
    for mode in [0o600, 0o644, 0o664, 0o755] {
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let before = fs::metadata(&path).unwrap();
        write_bytes(&path, b"new").unwrap();
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
        assert_ne!(after.ino(), before.ino(), "whoever has the old file mapped keeps it");
    }
    let failed = write_file(&path, |out| {
        out.write_all(&[b'x'; 100_000])?;
        Err(std::io::ErrorKind::StorageFull.into())
    });
    assert!(failed.unwrap_err().to_string().contains("the file is as it was"));
    assert_eq!(fs::read(&path).unwrap(), b"new");
    let failed = write_file(dir.at("g"), |_| Err(std::io::Error::other("no")));
    assert!(failed.unwrap_err().to_string().contains("no file was made"));
    // A name as long as names may be.
    let long = "n".repeat(255);
    write_bytes(dir.at(&long), b"long").unwrap();
    write_bytes(dir.at(&"ü".repeat(127)), b"long").unwrap();
    assert_eq!(dir.files(), ["f".to_owned(), long, "ü".repeat(127)]);
}

/// A new file's mode is what the user's mask says, and a private file is never readable meanwhile.
#[test]
fn a_private_file_is_private_while_it_is_written() {
    let dir = Scratch::new("private");
    let path = dir.at("f");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    write_file(&path, |out| {
        let modes = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().metadata().unwrap().mode() & 0o777);
        assert!(modes.into_iter().all(|mode| mode == 0o600));
        out.write_all(b"new")
    })
    .unwrap();
}

#[test]
fn pipes_and_devices_are_written_to_and_stay() {
    let dir = Scratch::new("pipes");
    let pipe = dir.at("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink("pipe", dir.at("link")).unwrap();
    for path in ["pipe", "link"] {
        let from = pipe.clone();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            File::open(from).unwrap().read_to_string(&mut text).unwrap();
            text
        });
        write_bytes(dir.at(path), b"through").unwrap();
        assert_eq!(reader.join().unwrap(), "through");
    }
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    symlink("/dev/null", dir.at("null")).unwrap();
    write_bytes(dir.at("null"), b"gone").unwrap();
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    #[cfg(target_os = "linux")]
    {
        let said = write_bytes("/dev/full", b"x").unwrap_err().to_string();
        assert!(said.contains("No space"), "{said}");
        // A descriptor that the shell gave is written to at its end, and what it is stays where it is.
        let mut file = File::create(dir.at("opened")).unwrap();
        file.write_all(b"before ").unwrap();
        let inode = file.metadata().unwrap().ino();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        write_bytes(format!("/dev/fd/{number}"), b"after").unwrap();
        assert_eq!(fs::read(dir.at("opened")).unwrap(), b"before after");
        assert_eq!(fs::metadata(dir.at("opened")).unwrap().ino(), inode);
    }
    assert!(!dir.files().iter().any(|name| name.ends_with(".tmp")), "{:?}", dir.files());
}

#[test]
fn what_is_no_file_is_refused() {
    let dir = Scratch::new("refused");
    refused(&dir.0, "directory");
    refused(&dir.at("new/"), "directory");
    refused(&dir.at("missing/f"), "No such file");
    refused(Path::new("/"), "directory");
    let socket = dir.at("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused(&socket, "socket");
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    // The superuser may write anywhere, and is not refused.
    fs::write(dir.at("read-only"), "old").unwrap();
    fs::set_permissions(dir.at("read-only"), fs::Permissions::from_mode(0o400)).unwrap();
    if File::options().write(true).open(dir.at("read-only")).is_err() {
        refused(&dir.at("read-only"), "ermission");
    }
    assert_eq!(dir.files(), ["read-only", "socket"]);
}

#[test]
fn leftovers_of_a_killed_run_go_with_the_next_write_and_nothing_else_does() {
    let dir = Scratch::new("leftovers");
    let left = [".f.schwann-1-0.tmp", ".f.schwann-4194303-17.tmp"];
    let others =
        [".f.schwann-1.tmp", ".f.schwann-1-x.tmp", ".f.schwann-1-2-3.tmp", ".g.schwann-1-0.tmp", "f.tmp", ".f"];
    for name in left.iter().chain(&others) {
        fs::write(dir.at(name), "rest").unwrap();
    }
    // One that is being written is locked, also by another writer of the same name.
    let busy = File::create(dir.at(".f.schwann-7-7.tmp")).unwrap();
    busy.lock().unwrap();
    write_file(dir.at("f"), |out| {
        write_bytes(dir.at("f"), b"inner").unwrap();
        out.write_all(b"outer")
    })
    .unwrap();
    assert_eq!(fs::read(dir.at("f")).unwrap(), b"outer");
    let mut expected: Vec<String> = others.iter().map(|&name| name.to_owned()).collect();
    expected.extend(["f".to_owned(), ".f.schwann-7-7.tmp".to_owned()]);
    expected.sort();
    assert_eq!(dir.files(), expected);
}

#[test]
fn many_writers_of_one_name_each_succeed_and_one_of_them_is_whole() {
    let dir = Scratch::new("many");
    let path = dir.at("f");
    std::thread::scope(|s| {
        for i in 0..8u8 {
            let path = &path;
            s.spawn(move || (0..20).for_each(|_| write_bytes(path, &[i; 10_000]).unwrap()));
        }
    });
    let found = fs::read(&path).unwrap();
    assert!(found.len() == 10_000 && found.iter().all(|b| *b == found[0]));
    assert_eq!(dir.files(), ["f"]);
}

#[test]
fn one_file_is_known_by_all_its_names() {
    let dir = Scratch::new("same");
    fs::write(dir.at("a"), "").unwrap();
    fs::hard_link(dir.at("a"), dir.at("hard")).unwrap();
    symlink("a", dir.at("soft")).unwrap();
    symlink("new", dir.at("dangling")).unwrap();
    fs::write(dir.at("b"), "").unwrap();
    for name in ["a", "hard", "soft", "./a"] {
        assert!(same_file(dir.at("a"), dir.at(name)), "{name}");
    }
    assert!(same_file(dir.at("new"), dir.at("dangling")) && same_file(dir.at("new"), dir.at("./new")));
    assert!(!same_file(dir.at("a"), dir.at("b")) && !same_file(dir.at("a"), dir.at("new")));
    assert!(!same_file("/dev/null", "/dev/null"), "nothing there is replaced");
}

#[test]
fn text_has_nothing_hidden_in_it() {
    let dir = Scratch::new("text");
    write_text(dir.at("t"), "a\u{1b}[2J\u{202e}\r\n\tb").unwrap();
    assert_eq!(fs::read_to_string(dir.at("t")).unwrap(), "a\\u001b[2J\\u202e\r\n\tb");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_without_an_end_is_read_to_its_limit_and_refused() {
    let dir = Scratch::new("endless");
    symlink("/dev/zero", dir.at("graph.json")).unwrap();
    let said = schwann_core::io::read_text(dir.at("graph.json"), 1000).unwrap_err().to_string();
    assert!(said.contains("more than 1000 bytes"), "{said}");
    for path in ["a.npy", "a.npz", "a.safetensors"] {
        symlink("/dev/zero", dir.at(path)).unwrap();
    }
    assert!(schwann_core::io::read_npy(dir.at("a.npy")).is_err());
    assert!(schwann_core::io::read_npz(dir.at("a.npz")).is_err());
    assert!(schwann_core::io::safetensors::Reader::open(dir.at("a.safetensors")).is_err());
}
