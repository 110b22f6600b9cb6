//! Names from files are data: whatever is in them, no command and no export lets it act on a terminal, a table, a page or
//! a spreadsheet.

use schwann::io::{GRAPH_KEY, safetensors};
use schwann::prof::export::Format;
use schwann::{DType, Tensor, show};
use schwann_prof::example;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Clears the screen, sets the title, forges lines, turns the text's direction, hides, closes markup.
const NASTY: &str = "\u{1b}[2J\u{1b}]0;pwn\u{7}\nFAKE: all ok\rFAKE\u{9b}31m\u{202e}evil\u{2066}\u{200b}\u{feff}\u{e0041}\
                     </script><img src=x onerror=alert(1)>\"'`|;\\ ]]> & [a](http://b)";

struct Folder(PathBuf);
impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("schwann-names-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("data")).unwrap();
        Folder(path)
    }
    /// Runs, checks everything that was printed, and gives it.
    #[track_caller]
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.args(args).current_dir(&self.0).env("SCHWANN_DATA", self.0.join("data")).stdin(Stdio::null());
        let out = command.args(["--color", "always"]).output().unwrap();
        clean(&out.stdout, &format!("{args:?}, stdout"));
        clean(&out.stderr, &format!("{args:?}, stderr"));
        assert!(!String::from_utf8_lossy(&out.stderr).contains("panicked"), "{args:?}");
        out
    }
    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }
    /// Checks every file of text that was written.
    fn files_are_clean(&self) {
        let mut folders = vec![self.0.clone()];
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
                if entry.is_dir() {
                    folders.push(entry);
                } else if !["safetensors", "db", "npy", "npz", "png", "given"]
                    .iter()
                    .any(|e| entry.extension().is_some_and(|x| x == *e))
                {
                    clean(&fs::read(&entry).unwrap(), &entry.display().to_string());
                    seen += 1;
                }
            }
        }
        assert!(seen > 0);
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Fails where anything is hidden in a text (but for styles, ends of lines and tabs), or where a name made a line.
#[track_caller]
fn clean(bytes: &[u8], what: &str) {
    let text = std::str::from_utf8(bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut rest = text;
    while let Some(at) = rest.find(|c| show::is_hidden(c) && !matches!(c, '\n' | '\t')) {
        let style = rest[at..].strip_prefix("\u{1b}[").and_then(|s| s.split_once('m'));
        if let Some((_, after)) = style.filter(|(inner, _)| inner.chars().all(|c| c.is_ascii_digit() || c == ';')) {
            rest = after;
        } else if let Some(after) = rest[at..].strip_prefix("\r\n") {
            rest = after;
        } else {
            let from = rest[..at].char_indices().rev().nth(60).map_or(0, |(i, _)| i);
            panic!("{what}: {:?}", rest[from..].chars().take(120).collect::<String>());
        }
    }
    for line in text.lines() {
        assert!(!line.trim_start().starts_with("FAKE"), "{what} has a forged line: {line}");
    }
}

/// No field of a table would be calculated.
fn no_formula(csv: &str, what: &str) {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in csv.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' | '\n' if !quoted => fields.push(String::new()),
            '\r' if !quoted => {}
            c => fields.last_mut().unwrap().push(c),
        }
    }
    for field in fields {
        let formula = field.starts_with(['=', '+', '-', '@', '\t', '\r']) && field.parse::<f64>().is_err();
        assert!(!formula, "{what}: {field:?}");
    }
}

/// A network whose every name is hostile; a few of them formulas.
fn hostile_network(folder: &Folder) {
    // Names of inputs, weights and outputs may not have control characters, and have everything else.
    let plain: String = NASTY.chars().filter(|c| !c.is_control()).collect();
    let name = |i: usize| format!("{NASTY}{i}");
    let (input, weight) = (format!("x{plain}"), format!("=w{plain}"));
    let square = json!({ "dtype": "f32", "shape": [8, 8] });
    let graph = json!({
        "version": 1,
        "nodes": [
            { "name": name(0), "op": { "input": { "name": input, "ty": { "dtype": "f32", "shape": ["B", 8] } } } },
            { "name": name(1), "op": { "weight": { "name": weight, "ty": square } } },
            { "name": name(2), "op": { "mat_mul": { "transpose_a": false, "transpose_b": false } }, "inputs": [[0, 0], [1, 0]] },
            { "name": format!("=cmd|'/C calc'!A0{NASTY}"), "op": { "softmax": { "axis": 1 } }, "inputs": [[2, 0]] },
            { "name": format!("+1+1|{NASTY}"), "op": { "mat_mul": { "transpose_a": false, "transpose_b": false } }, "inputs": [[3, 0], [1, 0]] },
            { "name": format!("@SUM({NASTY}"), "op": { "softmax": { "axis": 1 } }, "inputs": [[4, 0]] },
        ],
        "outputs": [{ "name": format!("=y{plain}"), "value": [5, 0] }, { "name": format!("-z{plain}"), "value": [3, 0] }],
    });
    let data = Tensor::new(&[8, 8], &[0.1f32; 64]).unwrap();
    let metadata = BTreeMap::from([(GRAPH_KEY.to_owned(), graph.to_string())]);
    let bytes = safetensors::to_bytes([(weight.as_str(), &data)], &metadata).unwrap();
    fs::write(folder.0.join("n.safetensors"), bytes).unwrap();
    fs::write(folder.0.join("n.given"), graph.to_string()).unwrap();
    schwann::io::write_npy(folder.0.join("x.npy"), &Tensor::zeros(DType::F32, &[2, 8]).unwrap()).unwrap();
}

#[test]
fn no_command_obeys_a_network_s_names() {
    let folder = Folder::new("network");
    hostile_network(&folder);
    let net = "n.safetensors";
    for more in [&[][..], &["--dot"], &["--optimized"], &["--optimized", "--dot"], &["--passes"], &["--svg", "a.svg"]] {
        folder.ok(&[&["graph", net], more].concat());
    }
    for more in [&[][..], &["--dot"], &["--json"], &["--svg", "plan.svg"]] {
        folder.ok(&[&["graph", net, "--plan", "--set", "B=2", "--no-predict"], more].concat());
    }
    // JSON keeps the names as they are.
    let shown: Value = serde_json::from_str(&folder.ok(&["graph", net, "--json"])).unwrap();
    let given: Value = serde_json::from_str(&fs::read_to_string(folder.0.join("n.given")).unwrap()).unwrap();
    let names =
        |graph: &Value| graph["nodes"].as_array().unwrap().iter().map(|n| n["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&shown), names(&given));
    folder.ok(&["run", net, "--input", "x.npy"]);
    folder.ok(&["run", net, "--input", "x.npy", "--json"]);
    folder.ok(&["run", net, "--input", "x.npy", "--check", "--repeat", "2"]);
    folder.ok(&["info", net]);
    folder.ok(&["info", net, "--json"]);
    let small = ["quantize", net, "--to", "int8", "--seconds", "0"];
    folder.ok(&[&small[..], &["--svg", "off.svg", "-o", "small.safetensors"]].concat());
    folder.ok(&[&small[..], &["--json"]].concat());
    folder.run(&[&small[..], &["--keep", "none"]].concat());
    folder.ok(&["graph", "small.safetensors"]);
    // What is wrong is said with names in it, too.
    for bad in [
        &["run", net][..],
        &["run", net, "--input", "nobody=x.npy"],
        &["run", net, "--input", "x.npy", "--output", "y.npy"],
        &["run", net, "--stream"],
        &["run", net, "--input", "x.npy", "--state-out", "s.npz"],
        &["graph", net, "--plan"],
        &["import", "ncps", net, "-o", "o.safetensors"],
        &["verify", net],
        &["wiring", "show", net],
    ] {
        assert_ne!(folder.run(bad).status.code(), Some(0), "{bad:?}");
    }
    let profile = ["profile", net, "--no-roof", "--set", "B=2", "--seconds", "0.05", "--runs", "20"];
    folder.ok(&[&profile[..], &["--save", "inj", "--html", "p.html", "--trace", "p.trace.json"]].concat());
    let document = folder.ok(&[&profile[..], &["--json", "--save", "inj"]].concat());
    fs::write(folder.0.join("run.json"), &document).unwrap();
    assert!(serde_json::from_str::<Value>(&document).unwrap().to_string().contains("@SUM("));
    views(&folder, "inj", "run.json");
    folder.files_are_clean();
}

/// Every view of a saved profile, by name and by file.
fn views(folder: &Folder, name: &str, file: &str) {
    folder.ok(&["baseline", "list"]);
    folder.ok(&["baseline", "list", "--json"]);
    folder.ok(&["baseline", "show", name]);
    folder.ok(&["baseline", "show", name, "--json"]);
    folder.ok(&["baseline", "track", "time_p50"]);
    folder.run(&["compare", name, file]);
    folder.run(&["compare", name, file, "--json"]);
    let table = String::from_utf8(folder.run(&["compare", name, file, "--markdown"]).stdout).unwrap();
    assert!(!table.contains("<img"), "markup came through: {table}");
    let bars = |line: &str| line.replace("\\|", "").matches('|').count();
    for block in table.split("\n\n") {
        let rows: Vec<usize> = block.lines().filter(|l| l.starts_with('|')).map(bars).collect();
        assert!(rows.windows(2).all(|w| w[0] == w[1]), "a cell broke its row:\n{block}");
    }
    folder.run(&["gate", name, file]);
    // A new form is in this list, and looked at, as soon as there is one.
    for (form, _) in Format::ALL {
        let text = folder.ok(&["baseline", "export", name, "--format", form]);
        folder.ok(&["baseline", "export", file, "--format", form, "-o", &format!("export-{form}.txt")]);
        if form.contains("csv") {
            no_formula(&text, form);
        }
    }
    let pictures = ["--plots", "plots", "--flame", "flame.svg", "--folded", "stacks.txt", "-o", "report.html"];
    folder.ok(&[&["report", file][..], &pictures].concat());
    let page = fs::read_to_string(folder.0.join("report.html")).unwrap();
    assert!(!page.contains("<img src=x"), "markup came through");
}

/// The example's document with every text in it hostile that may be any text.
fn hostile_document() -> Value {
    let mut document = serde_json::to_value(example::profile()).unwrap();
    let mut places = vec![];
    collect(&document, String::new(), &mut places);
    let mut changed = 0;
    for (i, place) in places.iter().enumerate() {
        let Some(Value::String(old)) = document.pointer(place).cloned() else { continue };
        let start = ["", "=", "+", "-", "@"][i % 5];
        *document.pointer_mut(place).unwrap() = format!("{start}{old}{NASTY}").into();
        // Some texts are one of a few words, or a time.
        let fits = schwann::prof::export::read(&document.to_string(), "it").is_ok();
        if !fits {
            *document.pointer_mut(place).unwrap() = old.into();
        }
        changed += usize::from(fits);
    }
    assert!(changed > 100, "{changed} texts");
    document
}

fn collect(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        // Enough of each list; all of a long one would take long and say no more.
        Value::Array(items) => {
            items.iter().enumerate().take(4).for_each(|(i, v)| collect(v, format!("{at}/{i}"), places))
        }
        Value::Object(fields) => fields.iter().for_each(|(key, v)| collect(v, format!("{at}/{key}"), places)),
        // Identity and units are looked for by others.
        Value::String(_) if !at.ends_with("/id") && !at.ends_with("/unit") && !at.ends_with("/created") => {
            places.push(at)
        }
        _ => {}
    }
}

#[test]
fn no_view_obeys_a_document_s_texts() {
    let folder = Folder::new("document");
    fs::write(folder.0.join("run.json"), show::line(&hostile_document().to_string()).as_bytes()).unwrap();
    folder.ok(&["baseline", "save", "inj", "run.json"]);
    views(&folder, "inj", "run.json");
    folder.files_are_clean();
}

/// A command that is added must be looked at here, or it is said why not.
#[test]
fn every_command_is_accounted_for() {
    let here = [
        "graph", "run", "info", "import", "verify", "wiring", "profile", "baseline", "compare", "gate", "report",
        "quantize",
    ];
    let no_names = [
        ("bench", "reads no file"),
        ("demo", "reads no file"),
        ("devices", "names of devices are the program's and the user's own"),
        ("predict", "its names go through `out::printable` or `out::Table`, which cleans its cells"),
        ("validate", "its names go through `out::printable` or `out::Table`, which cleans its cells"),
        ("doctor", "its names go through `out::printable` or `out::Table`, which cleans its cells"),
        ("entropy", "shows numbers of a file, and its path through `out::printable`"),
        ("generate", "all that it writes goes through `out::stdout`, which cleans it; the model's path through errors"),
        (
            "train",
            "its names go through `out::Table`, notes and errors, which clean them, and on its page through `show::xml`",
        ),
        ("monitor", "its names go through `out::printable`, and its views' own tests show hidden characters"),
        ("tune", "its names go through `out::Table`, `out::printable` and notes, which clean them"),
        ("eval", "shows numbers, and the model's path through `out::paragraph`, which cleans it"),
        ("export", "shows paths alone, through notes and errors, which clean them"),
        ("completions", "reads no file"),
        ("man", "reads no file"),
        ("help", "reads no file"),
    ];
    let out = Command::new(env!("CARGO_BIN_EXE_schwann")).arg("--help").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let listed = text.lines().take_while(|line| !line.starts_with("Options:"));
    let commands = listed.filter(|l| l.starts_with("  ") && !l.starts_with("   ")).filter_map(|l| {
        let word = l.split_whitespace().next()?;
        word.chars().all(|c| c.is_ascii_lowercase()).then_some(word)
    });
    for command in commands.filter(|c| *c != "schwann") {
        let known = here.contains(&command) || no_names.iter().any(|(name, _)| *name == command);
        assert!(known, "`{command}` is new: are names from files cleaned in what it shows?");
    }
}
