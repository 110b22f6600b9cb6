//! The monitor as a program: what is driven, what is attached to, recordings, rules, metrics; and what happens to either
//! side when the other is killed.

use crate::common::Place;
use schwann::nn::{Cfc, Model};
use serde_json::Value;
use std::fs::{DirBuilder, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A busy machine may take this long for what takes a moment.
const PATIENCE: Duration = Duration::from_secs(60);

fn place(name: &str) -> Place {
    let place = Place::new(&format!("monitor-{name}"));
    DirBuilder::new().mode(0o700).create(place.0.join("run")).unwrap();
    place
}

/// The program, with a runtime directory of the test's own.
fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = place.command(args);
    command.env("XDG_RUNTIME_DIR", place.0.join("run"));
    command
}

#[track_caller]
fn run(place: &Place, code: i32, args: &[&str]) -> (String, String) {
    let out = command(place, args).output().unwrap();
    let said = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!(out.status.code(), Some(code), "{args:?}: {}{}", said.0, said.1);
    said
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn rings(place: &Place) -> Vec<PathBuf> {
    let Ok(files) = std::fs::read_dir(place.0.join("run/schwann")) else { return vec![] };
    files.map(|f| f.unwrap().path()).collect()
}

/// A program that is watched: a stream that gets a row about every millisecond.
struct Robot {
    child: Child,
    answers: Arc<AtomicUsize>,
}

impl Robot {
    fn start(place: &Place, name: &str) -> Robot {
        Model::new(Cfc::new(3, 8), 7).unwrap().save(place.0.join("m.safetensors")).unwrap();
        let mut command = command(place, &["run", "m.safetensors", "--stream", "--watch", name]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (mut rows, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        std::thread::spawn(move || {
            while rows.write_all(b"0.1,0.2,0.3\n").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let answers = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&answers);
        std::thread::spawn(move || {
            for _ in BufReader::new(out).lines().map_while(Result::ok) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let robot = Robot { child, answers };
        robot.answers_more();
        robot
    }

    /// Waits until it has answered some more.
    fn answers_more(&self) {
        let (before, end) = (self.answers.load(Ordering::Relaxed), Instant::now() + PATIENCE);
        while self.answers.load(Ordering::Relaxed) < before + 20 {
            assert!(Instant::now() < end, "the program no longer answers");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Robot {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_program_that_opened_its_door_is_watched_by_name_and_by_process_number() {
    let place = place("attach");
    let robot = Robot::start(&place, "robot");
    let pid = robot.child.id();
    for who in ["robot".to_owned(), pid.to_string()] {
        let args = ["monitor", "--attach", &who, "--json", "--every", "300ms", "--for", "1.5s", "--deadline", "10s"];
        let (out, _) = run(&place, 0, &args);
        let lines = lines(&out);
        assert_eq!((lines[0]["model"].as_str(), lines[0]["pid"].as_u64()), (Some("robot"), Some(pid.into())));
        assert_eq!((lines[0]["program"].as_str(), lines[0]["threads"].as_u64()), (Some("schwann"), Some(1)));
        assert!(lines.len() >= 3, "{out}");
        let last = &lines[lines.len() - 1];
        assert!(lines[1..].iter().any(|m| m["latency"]["runs"]["value"].as_f64() > Some(0.0)), "{out}");
        assert!(last["latency"]["total"]["value"].as_f64() > Some(20.0));
        assert_eq!(last["latency"]["misses"]["value"].as_f64(), Some(0.0));
        assert!(last["memory"]["arena"]["value"].as_f64() > Some(0.0) && last["work"]["flops"]["unit"] == "flop/s");
        assert!(last["memory"]["pool"]["reason"].as_str().unwrap().contains("door.pool"));
        if cfg!(target_os = "linux") {
            assert!(last["memory"]["rss"]["source"].as_str().unwrap().contains(&pid.to_string()));
        }
    }
    let (_, said) = run(&place, 2, &["run", "m.safetensors", "--stream", "--watch", "a/b"]);
    assert!(said.contains("`a/b` is no name"), "{said}");
}

#[test]
fn a_training_is_watched_step_by_step() {
    let place = place("attach-training");
    let args = ["train", "--example", "sine", "--steps", "100000000", "--folder", "t", "--watch", "learner", "--quiet"];
    let child = command(&place, &args).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
    let learner = Robot { child, answers: Arc::default() };
    let end = Instant::now() + PATIENCE;
    // While it is being made, it has another name.
    while !rings(&place).iter().any(|ring| ring.extension().is_some_and(|e| e == "ring")) {
        assert!(Instant::now() < end, "the training opened no door");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (out, _) = run(&place, 0, &["monitor", "--attach", "learner", "--json", "--every", "300ms", "--for", "3s"]);
    let lines = lines(&out);
    assert_eq!(lines[0]["pid"].as_u64(), Some(learner.child.id().into()));
    let parts = lines[lines.len() - 1]["operations"].as_array().unwrap();
    assert!(parts.iter().any(|part| part["name"].as_str().unwrap().starts_with("grad.")), "{parts:?}");
}

#[test]
fn killing_the_monitor_changes_nothing_for_the_program() {
    let place = place("kill-monitor");
    let robot = Robot::start(&place, "robot");
    for _ in 0..2 {
        let mut monitor = command(&place, &["monitor", "--attach", "robot", "--json", "--every", "50ms"]);
        let mut monitor = monitor.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut out = BufReader::new(monitor.stdout.take().unwrap());
        let mut line = String::new();
        for _ in 0..3 {
            out.read_line(&mut line).unwrap();
        }
        assert!(line.lines().count() == 3, "{line}");
        monitor.kill().unwrap();
        monitor.wait().unwrap();
        robot.answers_more();
    }
    // At any moment: while it starts, attaches, waits, and writes.
    for milliseconds in [0, 1, 3, 7, 15, 30, 60, 120, 240] {
        let mut monitor = command(&place, &["monitor", "--attach", "robot", "--json", "--every", "5ms"]);
        let mut monitor = monitor.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        monitor.kill().unwrap();
        monitor.wait().unwrap();
        robot.answers_more();
    }
    let args = ["monitor", "--attach", "robot", "--json", "--every", "100ms", "--for", "300ms"];
    let (out, _) = run(&place, 0, &args);
    assert!(lines(&out)[1..].iter().any(|m| m["latency"]["runs"]["value"].as_f64() > Some(0.0)), "{out}");
}

#[test]
fn slow_browsers_and_a_full_disk_change_nothing_for_the_program() {
    let place = place("slow-browsers");
    let mut robot = Robot::start(&place, "robot");
    // A hundred pages that ask and never read, a recording that has no room, and two views beside.
    let limited = "ulimit -f 8 && exec \"$0\" monitor --attach robot --every 20ms --web=127.0.0.1:0 --prometheus 127.0.0.1:0 \
                   --record run.jsonl";
    let mut monitor = Command::new("sh");
    monitor.args(["-c", limited]).arg(env!("CARGO_BIN_EXE_schwann")).current_dir(&place.0);
    for (name, value) in command(&place, &[]).get_envs() {
        match value {
            Some(value) => monitor.env(name, value),
            None => monitor.env_remove(name),
        };
    }
    let mut monitor = monitor.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(monitor.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).unwrap().trim().trim_end_matches('/').to_owned();
    let pages: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut page = TcpStream::connect(&address).unwrap();
            write!(page, "GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
            page
        })
        .collect();
    let mut said = String::new();
    let mut words = BufReader::new(monitor.stderr.take().unwrap());
    while !said.contains("recording to run.jsonl ended") {
        assert!(words.read_line(&mut said).unwrap() > 0, "{said}");
        robot.answers_more();
    }
    // Moments go on coming to a page that reads.
    let mut reads = TcpStream::connect(&address).unwrap();
    reads.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(reads, "GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let moments = BufReader::new(reads).lines().map_while(Result::ok).filter(|l| l == "event: moment").take(20);
    assert_eq!(moments.count(), 20);
    robot.answers_more();
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    drop(pages);
    robot.answers_more();
    assert!(robot.child.try_wait().unwrap().is_none());
}

#[test]
fn the_monitor_ends_with_its_program_and_a_dead_programs_ring_is_cleaned_up() {
    let place = place("kill-program");
    let mut robot = Robot::start(&place, "robot");
    let mut monitor = command(&place, &["monitor", "--attach", "robot", "--json", "--every", "100ms"]);
    let mut monitor = monitor.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(monitor.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..2 {
        out.read_line(&mut line).unwrap();
    }
    assert_eq!(rings(&place).len(), 1);
    // As `kill -9` does: the program has no say in what it leaves behind.
    robot.kill();
    let said = monitor.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.code() == Some(0) && words.contains("has ended"), "{:?}: {words}", said.status);
    assert_eq!(rings(&place).len(), 1, "nobody has cleaned up yet");
    let (_, said) = run(&place, 2, &["monitor", "--attach", "robot"]);
    assert!(said.contains("no program called `robot` can be watched"), "{said}");
    assert_eq!(rings(&place), [] as [PathBuf; 0]);
}

#[test]
fn nobody_to_watch_and_files_that_are_no_rings_are_told_apart() {
    let place = place("nobody");
    let (_, said) = run(&place, 2, &["monitor", "--attach", "nobody-has-this-name"]);
    assert!(said.contains("live::open"), "{said}");
    let (_, said) = run(&place, 2, &["monitor", "--attach", "1"]);
    assert!(
        ["process 1 belongs to user", "process 1 has not opened", "no program"].iter().any(|w| said.contains(w)),
        "{said}"
    );
    // Somebody else's process: another user's, where this one may start such, else the system's first.
    let mut of_nobody = Command::new("sleep").arg("60").uid(65534).spawn().ok();
    let who = of_nobody.as_ref().map_or(1, Child::id).to_string();
    let (_, said) = run(&place, 2, &["monitor", "--attach", &who]);
    if cfg!(target_os = "linux") {
        assert!(said.contains("only one's own programs can be watched"), "{said}");
    }
    if let Some(mut process) = of_nobody.take() {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    // One that somebody holds, and that is none of ours.
    let folder = place.0.join("run/schwann");
    DirBuilder::new().mode(0o700).create(&folder).unwrap();
    let path = folder.join(format!("odd.{}-0.ring", std::process::id()));
    let mut file = File::create(&path).unwrap();
    file.write_all(&[7; 5000]).unwrap();
    file.lock().unwrap();
    let (_, said) = run(&place, 2, &["monitor", "--attach", "odd"]);
    assert!(said.contains("none of Schwann's rings"), "{said}");
    assert_eq!(std::fs::read(&path).unwrap(), [7; 5000]);
    // Another user's file in this user's folder is not read.
    if std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
        let (_, said) = run(&place, 2, &["monitor", "--attach", "odd"]);
        assert!(said.contains("belongs to user 65534"), "{said}");
    }
    // And one that nobody holds is gone. Processes that other tests are just starting may hold it for a moment longer.
    drop(file);
    let end = Instant::now() + PATIENCE;
    while path.exists() {
        assert!(Instant::now() < end, "a file that nobody holds is still there");
        run(&place, 2, &["monitor", "--attach", "odd"]);
    }
}

#[test]
fn a_folder_that_others_may_enter_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let place = place("folder");
    let folder = place.0.join("run/schwann");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let name = format!("open-folder-{}", std::process::id());
    let _robot = Robot::start(&place, &name);
    assert_eq!(rings(&place), [] as [PathBuf; 0]);
    // It is in the next best folder, and found there.
    run(&place, 0, &["monitor", "--attach", &name, "--json", "--for", "100ms"]);
}

#[test]
fn a_recording_is_replayed_line_by_line_and_becomes_a_trace() {
    let place = place("record");
    let args = ["monitor", "wired-cfc", "--batch", "1", "--steps", "1", "--every", "200ms", "--for", "800ms"];
    let (plain, _) = run(&place, 0, &[&args[..], &["--record", "run.jsonl", "--rule", "latency_p50 > 0s"]].concat());
    assert!(plain.lines().count() >= 3 && plain.lines().all(|l| l.contains("p50") && l.contains("alert")), "{plain}");
    let file = std::fs::read_to_string(place.0.join("run.jsonl")).unwrap();
    let moments = lines(&file);
    assert!(moments.len() >= 4 && moments[0]["schwann_recording"] == "moments");
    assert!(moments[1]["latency"]["p50"]["value"].as_f64() > Some(0.0));
    let (again, _) = run(&place, 0, &["monitor", "--replay", "run.jsonl", "--json"]);
    assert_eq!(again, file);
    let (trace, _) = run(&place, 0, &["monitor", "--replay", "run.jsonl", "--trace", "-"]);
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|e| e["ph"] == "C" && e["name"] == "latency p50 (s)"));
    assert!(events.iter().any(|e| e["ph"] == "X" && e["name"] == "latency_p50 > 0s"));
    // What is there is not written over, and what is no recording is refused.
    let (_, said) = run(&place, 2, &[&args[..], &["--record", "run.jsonl"]].concat());
    assert!(said.contains("run.jsonl") && said.contains("exists"), "{said}");
    std::fs::write(place.0.join("odd.jsonl"), "{}\n").unwrap();
    let (_, said) = run(&place, 2, &["monitor", "--replay", "odd.jsonl"]);
    assert!(said.contains("odd.jsonl") && said.contains("line 1"), "{said}");
}

#[test]
fn a_disk_that_is_full_ends_the_recording_and_not_the_monitor() {
    let place = place("full");
    let limited =
        "ulimit -f 8 && exec \"$0\" monitor wired-cfc --batch 1 --every 100ms --for 1s --json --record run.jsonl";
    let plain = command(&place, &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", limited]).arg(env!("CARGO_BIN_EXE_schwann")).current_dir(&place.0);
    for (name, value) in plain.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    let out = shell.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("recording to run.jsonl ended"), "{:?} {said}", out.status);
    assert!(String::from_utf8_lossy(&out.stdout).lines().count() > 5, "{said}");
}

#[test]
fn rules_decide_the_exit_code_and_the_unknown_does_not_pass() {
    let place = place("rules");
    let args = ["monitor", "wired-cfc", "--batch", "1", "--every", "100ms", "--for", "300ms", "--fail-on"];
    for (rule, code, word) in [
        ("latency_p50 > 0s", 1, "held"),
        ("latency_p50 > 1h", 0, ""),
        // Nothing counts how busy the Neural Engine is, on any machine.
        ("ane_utilization > 1%", 3, "could not be judged"),
        ("latency_p50 > 0s for 10min", 3, "not watched for as long"),
        ("misses > 0", 3, "no deadline"),
        ("latency_p98 > 1ms", 2, "column 1"),
        ("latency_p99 > 1mz", 2, "column 16"),
    ] {
        let (_, said) = run(&place, code, &[&args[..], &[rule]].concat());
        assert!(said.contains(word), "{rule}: {said}");
    }
    std::fs::write(place.0.join("bad.toml"), "# mine\n[[rule]]\nwhen = 'busy > '\n").unwrap();
    let (_, said) = run(&place, 2, &["monitor", "wired-cfc", "--rules", "bad.toml"]);
    assert!(said.contains("bad.toml") && said.contains("line 3, column"), "{said}");
}

#[test]
fn a_rule_from_a_file_runs_its_command_and_sends_its_message_once() {
    let place = place("action");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rules = format!(
        "[[rule]]\nname = 'slow'\nwhen = 'latency_p50 > 0s'\nrun = 'echo \"$SCHWANN_RULE $SCHWANN_UNIT\" >> fired'\n\
         post = 'http://{}/alert'\nfail = true\n",
        listener.local_addr().unwrap()
    );
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut text, mut part) = (String::new(), [0; 1024]);
        while !text.ends_with('}') {
            let count = stream.read(&mut part).unwrap();
            text += std::str::from_utf8(&part[..count]).unwrap();
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        text
    });
    std::fs::write(place.0.join("rules.toml"), rules).unwrap();
    let args = ["monitor", "wired-cfc", "--batch", "1", "--every", "100ms", "--for", "500ms", "--rules", "rules.toml"];
    let (out, said) = run(&place, 1, &args);
    assert!(out.contains("alert: slow") && said.contains("`slow` held"), "{out}{said}");
    assert_eq!(std::fs::read_to_string(place.0.join("fired")).unwrap(), "slow s\n");
    let heard = heard.join().unwrap();
    assert!(heard.starts_with("POST /alert HTTP/1.1\r\n"), "{heard}");
    let message: Value = serde_json::from_str(heard.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&message["rule"], &message["unit"]), (&Value::from("slow"), &Value::from("s")));
    assert!(message["value"].as_f64() > Some(0.0), "{message}");
}

/// A monitor that serves metrics, its port, and what it said.
struct Serving {
    child: Child,
    port: u16,
    said: String,
}

impl Serving {
    fn start(place: &Place, address: &str) -> Serving {
        let args =
            ["monitor", "wired-cfc", "--batch", "1", "--rate", "100", "--every", "100ms", "--prometheus", address];
        let mut child = command(place, &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        while !said.contains("metrics at") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "{said}");
        }
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let port = said.rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap();
        Serving { child, port, said }
    }

    /// Sends bytes, and gives all that comes back.
    fn ask(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = vec![];
        // A server that has seen enough closes while it is still written to.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get(&self, more: &str) -> String {
        self.ask(format!("GET /metrics HTTP/1.1\r\nConnection: close\r\n{more}\r\n").as_bytes())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn metrics_are_served_on_this_machine_and_survive_ten_thousand_malformed_requests() {
    let place = place("metrics");
    let serving = Serving::start(&place, "127.0.0.1:0");
    let end = Instant::now() + PATIENCE;
    let good = loop {
        let answer = serving.get("Host: localhost\r\n");
        if answer.contains("schwann_runs_total") || Instant::now() > end {
            break answer;
        }
    };
    assert!(good.starts_with("HTTP/1.1 200") && good.contains("application/openmetrics-text"), "{good}");
    assert!(
        good.contains("schwann_run_duration_seconds{stat=\"p50\"}") && good.trim_end().ends_with("# EOF"),
        "{good}"
    );
    // A page of another site that was led here by a name of its own gets nothing.
    for host in ["Host: evil.example\r\n", ""] {
        let answer = serving.get(host);
        assert!(answer.starts_with("HTTP/1.1 403") && !answer.contains("schwann_runs_total"), "{answer}");
    }
    let mut garbage: Vec<Vec<u8>> = vec![
        b"\r\n\r\n".to_vec(),
        b"GET".to_vec(),
        b"GET /metrics HTTP/9.9\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n".to_vec(),
        b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n".to_vec(),
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n".to_vec(),
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_vec(),
        [&b"GET /"[..], &[b'x'; 9000], b" HTTP/1.1\r\n\r\n"].concat(),
        [&b"GET / HTTP/1.1\r\n"[..], &b"A: b\r\n".repeat(300), b"\r\n"].concat(),
    ];
    let mut state = 1u64;
    for _ in 0..40 {
        let mut bytes = vec![];
        for _ in 0..64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.push((state >> 33) as u8);
        }
        garbage.push(bytes);
    }
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (serving, garbage) = (&serving, &garbage);
            scope.spawn(move || {
                for i in 0..2500 {
                    let answer = serving.ask(&garbage[(i + part * 7) % garbage.len()]);
                    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
                }
            });
        }
    });
    assert!(serving.get("Host: 127.0.0.1\r\n").contains("schwann_runs_total"));
    // Its port is taken, and whoever wants it hears so.
    let again = format!("127.0.0.1:{}", serving.port);
    let (_, said) = run(&place, 2, &["monitor", "wired-cfc", "--prometheus", &again]);
    assert!(said.contains("another program has this port"), "{said}");
}

#[test]
fn an_address_that_others_can_reach_needs_its_token() {
    let place = place("token");
    let serving = Serving::start(&place, "0.0.0.0:0");
    let token = serving.said.split("token=").nth(1).unwrap().trim().to_owned();
    assert_eq!(token.len(), 32);
    for wrong in [String::new(), "Authorization: Bearer x\r\n".into(), format!("Authorization: Bearer {token}0\r\n")] {
        let answer = serving.get(&format!("Host: localhost\r\n{wrong}"));
        assert!(answer.starts_with("HTTP/1.1 401") && !answer.contains("schwann_watched"), "{answer}");
    }
    let answer = serving.get(&format!("Host: somewhere\r\nAuthorization: Bearer {token}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("schwann_watched"), "{answer}");
    std::fs::write(place.0.join("token"), "short\n").unwrap();
    let args = ["monitor", "wired-cfc", "--prometheus", "127.0.0.1:0", "--token-file", "token"];
    let (_, said) = run(&place, 2, &args);
    assert!(said.contains("16 to 256"), "{said}");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let place = place("options");
    for (args, word) in [
        (&["monitor"][..], "required"),
        (&["monitor", "wired-cfc", "--attach", "x"], "cannot be used with"),
        (&["monitor", "--attach", "x", "--batch", "3"], "cannot be used with"),
        (&["monitor", "--replay", "x", "--deadline", "1ms"], "cannot be used with"),
        (&["monitor", "wired-cfc", "--trace", "x.json"], "--replay"),
        (&["monitor", "wired-cfc", "--rate", "0"], "runs a second"),
        (&["monitor", "wired-cfc", "--every", "1"], "no unit"),
        (&["monitor", "wired-cfc", "--prometheus", "nowhere"], "not a port"),
        (&["monitor", "no-such-model"], "no-such-model"),
    ] {
        let (_, said) = run(&place, 2, args);
        assert!(said.contains(word), "{args:?}: {said}");
    }
}
