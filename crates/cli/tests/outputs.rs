//! What is written: through links, to pipes, whole or not at all, and never over what is read.
#![cfg(unix)]

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A folder that goes away with the test, with a network `net.safetensors`, its input `x.npy`, and data of its own.
struct Folder(PathBuf);
impl Folder {
    fn new(test: &str, model: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("schwann-outputs-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("data")).unwrap();
        let folder = Folder(path);
        folder.ok(&["demo", "net.safetensors", "--model", model, "--input", "x.npy"]);
        folder
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.args(args).current_dir(&self.0).env("SCHWANN_DATA", self.at("data")).stdin(Stdio::null());
        command
    }
    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
    #[track_caller]
    fn ok(&self, args: &[&str]) -> Vec<u8> {
        let out = self.run(args);
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", stderr(&out));
        out.stdout
    }
    #[track_caller]
    fn refused(&self, args: &[&str], words: &str) {
        let before = self.contents();
        let out = self.run(args);
        let said = stderr(&out);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words) && !said.contains("panicked"), "{args:?}: {said}");
        assert_eq!(self.contents(), before, "{args:?} changed something");
    }
    /// A shell's words, with `schwann` for the program.
    fn shell(&self, script: &str) -> Output {
        let script = format!("schwann() {{ '{}' \"$@\"; }}; {script}", env!("CARGO_BIN_EXE_schwann"));
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).current_dir(&self.0).env("SCHWANN_DATA", self.at("data"));
        shell.output().unwrap()
    }
    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// Every file's name and content, but for the program's own data.
    fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let mut all: Vec<_> = fs::read_dir(&self.0)
            .unwrap()
            .map(|e| e.unwrap())
            .filter(|e| e.metadata().is_ok_and(|m| m.is_file()))
            .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
            .collect();
        all.sort();
        all
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn an_output_goes_through_links_and_to_pipes() {
    let folder = Folder::new("links", "mlp");
    folder.ok(&["run", "net.safetensors", "--input", "x.npy", "--output", "plain.npy"]);
    let plain = fs::read(folder.at("plain.npy")).unwrap();
    fs::write(folder.at("real.npy"), "old").unwrap();
    fs::set_permissions(folder.at("real.npy"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("real.npy", folder.at("link.npy")).unwrap();
    folder.ok(&["run", "net.safetensors", "--input", "x.npy", "--output", "link.npy"]);
    assert!(fs::symlink_metadata(folder.at("link.npy")).unwrap().is_symlink());
    assert_eq!(fs::read(folder.at("real.npy")).unwrap(), plain);
    assert_eq!(fs::metadata(folder.at("real.npy")).unwrap().permissions().mode() & 0o777, 0o640);

    assert!(Command::new("mkfifo").arg(folder.at("pipe")).status().unwrap().success());
    let pipe = folder.at("pipe");
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![];
        fs::File::open(pipe).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    });
    folder.ok(&["run", "net.safetensors", "--input", "x.npy", "--output", "pipe"]);
    assert_eq!(reader.join().unwrap(), plain);
    assert!(fs::metadata(folder.at("pipe")).unwrap().file_type().is_fifo());

    // Stdout is a pipe here, a file there; either way the array is all that it gets.
    for path in ["-", "/dev/stdout"] {
        assert_eq!(folder.ok(&["run", "net.safetensors", "--input", "x.npy", "--output", path]), plain, "{path}");
        let script = format!("schwann run net.safetensors --input x.npy --output {path} > by-shell.npy");
        assert!(folder.shell(&script).status.success());
        assert_eq!(fs::read(folder.at("by-shell.npy")).unwrap(), plain, "{path}");
    }
    let appended = folder.shell("{ echo before; schwann graph net.safetensors --svg /dev/stdout; echo after; } > all");
    assert!(appended.status.success());
    let all = fs::read_to_string(folder.at("all")).unwrap();
    assert!(all.starts_with("before\n<svg") && all.ends_with("after\n"), "{all:.200}");
    folder.ok(&["run", "net.safetensors", "--input", "x.npy", "--output", "/dev/null"]);
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    folder.refused(&["run", "net.safetensors", "--input", "x.npy", "--output", "data"], "directory");
    folder.refused(&["graph", "net.safetensors", "--svg", "data"], "directory");
}

#[test]
fn nothing_is_written_over_what_is_read() {
    let folder = Folder::new("inputs", "rnn");
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../nn/tests/golden/cfc_default.safetensors");
    fs::copy(golden, folder.at("g.safetensors")).unwrap();
    symlink("g.safetensors", folder.at("g-link.safetensors")).unwrap();
    fs::hard_link(folder.at("g.safetensors"), folder.at("g-hard.safetensors")).unwrap();
    for output in ["g.safetensors", "./g.safetensors", "g-link.safetensors", "g-hard.safetensors"] {
        folder.refused(&["import", "ncps", "g.safetensors", "-o", output], "choose another name");
    }
    let run = |more: &[&'static str]| [&["run", "net.safetensors", "--input", "x=x.npy"], more].concat();
    folder.refused(&run(&["--output", "x.npy"]), "choose another name");
    folder.refused(&run(&["--output", "net.safetensors"]), "choose another name");
    folder.refused(&run(&["--state-out", "x.npy"]), "choose another name");
    folder.refused(&run(&["--output", "y=new.npy", "--output", "h_next=./new.npy"]), "the same file");
    folder.refused(&["graph", "net.safetensors", "--svg", "net.safetensors"], "choose another name");
    folder.refused(&["profile", "net.safetensors", "--html", "net.safetensors"], "choose another name");
    folder.refused(&["demo", "a", "--input", "a"], "the same file");
    // A state goes on in its own file: that is what it is for.
    folder.ok(&run(&["--state-out", "s.npz"]));
    folder.ok(&run(&["--state", "s.npz", "--state-out", "s.npz"]));
}

#[test]
fn a_full_disk_leaves_the_old_file_and_nothing_beside_it() {
    let folder = Folder::new("full", "mlp");
    for (command, name) in [
        ("run net.safetensors --input x.npy --output", "y.npy"),
        ("graph net.safetensors --svg", "y.svg"),
        ("demo", "y.safetensors"),
    ] {
        fs::write(folder.at(name), "old").unwrap();
        // A file may have 512 bytes here; the signal for more is not obeyed.
        let out = folder.shell(&format!("ulimit -f 1; schwann {command} {name}"));
        assert_eq!(out.status.code(), Some(2), "{command}: {}", stderr(&out));
        assert!(stderr(&out).contains("the file is as it was"), "{command}: {}", stderr(&out));
        assert_eq!(fs::read(folder.at(name)).unwrap(), b"old", "{command}");
    }
    let left: Vec<String> =
        folder.contents().into_iter().map(|(name, _)| name).filter(|n| n.ends_with("tmp")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_a_killed_run_left_goes_with_the_next() {
    let folder = Folder::new("killed", "mlp");
    // What a run that was killed while writing leaves: its new file, which nobody has locked.
    fs::write(folder.at(".new.safetensors.schwann-1-0.tmp"), "half").unwrap();
    let left = |folder: &Folder| folder.contents().iter().filter(|(name, _)| name.ends_with(".tmp")).count();
    assert_eq!((left(&folder), folder.at("new.safetensors").exists()), (1, false));
    folder.ok(&["demo", "new.safetensors"]);
    assert_eq!((left(&folder), folder.at("new.safetensors").exists()), (0, true));
}

#[test]
fn a_profile_is_kept_before_it_is_printed() {
    let folder = Folder::new("kept", "mlp");
    // Whoever reads the output is gone before its first byte.
    let profile = "profile net.safetensors --no-roof --set B=2 --seconds 0.05 --runs 20 --json";
    let files = "--save a --html a.html --trace a.trace.json";
    let out = folder.shell(&format!("exec 3> >(exit 0); sleep 0.3; schwann {profile} {files} >&3"));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(!stderr(&out).contains("error"), "{}", stderr(&out));
    let list = String::from_utf8(folder.ok(&["baseline", "list", "--json"])).unwrap();
    assert!(list.contains("\"a\""), "{list}");
    for file in ["a.html", "a.trace.json"] {
        assert!(fs::read(folder.at(file)).unwrap().len() > 1000, "{file}");
    }
    let mut full = folder.command(&["graph", "net.safetensors"]);
    let out = full.stdout(fs::File::options().write(true).open("/dev/full").unwrap()).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "what could not be printed is an error");
    for words in ["--help", "--version", "profile --help"] {
        let out = folder.shell(&format!("schwann {words} > /dev/full"));
        assert_eq!(out.status.code(), Some(2), "{words}: {}", stderr(&out));
    }
}

#[test]
fn a_dash_is_stdout_or_refused_and_never_a_file() {
    let folder = Folder::new("dash", "rnn");
    let quick = ["profile", "wired-cfc", "--steps=1", "--batch=1", "--runs=3", "--seconds=0.05", "--no-roof"];
    let with = |more: &[&'static str]| [&quick[..], more].concat();
    // What was asked for, and not a word beside it.
    let trace: serde_json::Value = serde_json::from_slice(&folder.ok(&with(&["--trace", "-"]))).unwrap();
    assert!(trace["traceEvents"].as_array().is_some_and(|events| !events.is_empty()));
    let page = String::from_utf8(folder.ok(&with(&["--html", "-"]))).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"), "{:.200}", page);
    let run = ["run", "net.safetensors", "--input=x.npy"];
    let array = folder.ok(&[&run[..], &["--output", "y=-"]].concat());
    assert!(array.starts_with(b"\x93NUMPY"));
    fs::write(folder.at("run.json"), folder.ok(&with(&["--json"]))).unwrap();
    let flame = folder.ok(&["report", "run.json", "--flame", "-"]);
    assert!(flame.starts_with(b"<svg"));

    for (args, words) in [
        (with(&["--html=-", "--trace=-"]), "2 outputs are to go to stdout"),
        (with(&["--html=-", "--trace=/dev/stdout"]), "2 outputs are to go to stdout"),
        (with(&["--json", "--trace=-"]), "--json is printed on stdout"),
        ([&run[..], &["--output=y=-", "--state-out=-"]].concat(), "2 outputs are to go to stdout"),
        (vec!["report", "run.json", "-o", "-", "--folded", "-"], "2 outputs are to go to stdout"),
        (vec!["report", "run.json", "-o", "-", "--open"], "cannot be opened"),
        (vec!["report", "run.json", "--plots", "-"], "--plots is `-`"),
        (vec!["demo", "-"], "OUT is `-`"),
        (vec!["demo", "other.safetensors", "--input", "-"], "--input is `-`"),
        (vec!["import", "ncps", "net.safetensors", "-o", "-"], "--output is `-`"),
        (vec!["man", "-"], "DIR is `-`"),
        (vec!["baseline", "list", "--db", "-"], "--db is `-`"),
        (vec!["gate", "experiment", "--pairs=1", "--out", "-"], "--out is `-`"),
    ] {
        folder.refused(&args, words);
    }
    assert!(!folder.at("-").exists());
}

#[test]
fn hostile_files_are_refused_within_bounds() {
    let folder = Folder::new("hostile", "mlp");
    symlink("/dev/zero", folder.at("endless.json")).unwrap();
    folder.refused(&["graph", "endless.json"], "more than");
    folder.refused(&["compare", "endless.json", "endless.json"], "more than");
    let mut endless = folder.command(&["devices", "list"]);
    let out = endless.env("SCHWANN_CONFIG", "/dev/zero").output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", stderr(&out));
    assert!(stderr(&out).contains("more than 1048576 bytes"), "{}", stderr(&out));
    // A file's name is data too: it begins no line of its own.
    let out = folder.run(&["graph", "a\nschwann: all is well"]);
    assert!(stderr(&out).lines().skip(1).all(|l| l.starts_with("  ")), "{}", stderr(&out));
    let out = folder.run(&["graph", "net.safetensors", "--isa", "\u{9b}31m"]);
    assert!(!stderr(&out).contains('\u{9b}'), "{}", stderr(&out));
    // Arrays that the network cannot take are not read: their shape says so.
    let x = |shape: &[usize]| {
        schwann::io::write_npy(folder.at("other.npy"), &schwann::Tensor::zeros(schwann::DType::F32, shape).unwrap())
            .unwrap();
        schwann::io::write_npz(
            folder.at("other.npz"),
            [("x", &schwann::io::read_npy(folder.at("other.npy")).unwrap())],
        )
        .unwrap();
    };
    for shape in [&[2, 63][..], &[64], &[1, 2, 64]] {
        x(shape);
        folder.refused(&["run", "net.safetensors", "--input", "x=other.npy"], "input `x` is f32[B, 64]");
        folder.refused(&["run", "net.safetensors", "--inputs", "other.npz"], "input `x` is f32[B, 64]");
    }
    schwann::io::write_npz(
        folder.at("other.npz"),
        [("z", &schwann::Tensor::zeros(schwann::DType::F32, &[2]).unwrap())],
    )
    .unwrap();
    folder.refused(&["run", "net.safetensors", "--inputs", "other.npz"], "no input `z`");
}

#[test]
fn a_check_allows_what_narrow_types_inside_a_network_cost() {
    let folder = Folder::new("narrow", "mlp");
    let mut b = schwann::GraphBuilder::new();
    let x = b.input("x", schwann::DType::F32, schwann::shape![64]).unwrap();
    let x = b.cast(x, schwann::DType::Bf16).unwrap();
    let square = b.mul(x, x).unwrap();
    let sum = b.add(square, x).unwrap();
    let wide = b.cast(sum, schwann::DType::F32).unwrap();
    b.output("y", wide).unwrap();
    schwann::io::save(folder.at("narrow.safetensors"), &b.build().unwrap()).unwrap();
    let x = schwann::Tensor::new(&[64], &(0..64).map(|i| (i as f32).sin()).collect::<Vec<_>>()).unwrap();
    schwann::io::write_npy(folder.at("narrow.npy"), &x).unwrap();
    folder.ok(&["run", "narrow.safetensors", "--input", "narrow.npy", "--check"]);
    let twice = ["profile", "net.safetensors", "--no-roof", "--batch", "4", "--set", "B=3"];
    folder.refused(&twice, "--batch and --set B say the same");
    let unknown = ["profile", "net.safetensors", "--no-roof", "--set", "ZZZ=3"];
    folder.refused(&unknown, "`ZZZ` is no size to be given by name");
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_text_is_no_reason_to_panic() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let folder = std::env::temp_dir().join(format!("schwann-no-text-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let odd = |bytes: &[u8]| folder.join(OsString::from_vec(bytes.to_vec()));
    let (file, devices) = (odd(b"f\xff.safetensors"), odd(b"d\xff.toml"));
    fs::write(&devices, "").unwrap();
    let run = |args: &[&str], file: Option<&std::path::Path>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.args(args).args(file).arg("--json").env("SCHWANN_DEVICES", &devices);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(matches!(out.status.code(), Some(0 | 2)), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{args:?}: {said}");
    };
    // A file that is not there, one that is no network, and a network.
    for round in 0..3 {
        match round {
            0 => {}
            1 => fs::write(&file, "nothing").unwrap(),
            _ => {
                let mut demo = Command::new(env!("CARGO_BIN_EXE_schwann"));
                assert!(demo.arg("demo").arg(&file).output().unwrap().status.success());
            }
        }
        run(&["info"], Some(&file));
        run(&["verify"], Some(&file));
    }
    run(&["devices", "list"], None);
    run(&["devices", "show", "M1"], None);
    fs::remove_dir_all(&folder).unwrap();
}
