use super::*;
use crate::stats::Random;
use crate::stats::tests::timings;
use crate::{Profile, example};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/baselines.db");
    (folder, path)
}

fn numbered(number: u64) -> Profile {
    Profile { id: format!("run-{number}"), ..example::profile() }
}

#[test]
fn what_is_saved_comes_back_as_it_was() {
    let (_folder, path) = folder();
    let (full, empty) = (example::profile(), Profile { id: "other".into(), ..example::nothing() });
    let mut store = Store::create(&path).unwrap();
    store.save("main", &full).unwrap();
    store.save("nothing", &empty).unwrap();
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(store.load("main").unwrap(), full);
    assert_eq!(store.load(&full.id).unwrap(), full);
    assert_eq!(store.load("nothing").unwrap(), empty);
    let list = store.list().unwrap();
    assert_eq!((list.len(), list[0].name.as_str()), (2, "main"));
    assert_eq!(list[0].time_p50.value, full.compute.time_p50.value);
    assert_eq!(list[1].time_p50.value, None, "what was not measured is not 0");
    store.verify().unwrap();
}

#[test]
fn a_name_stands_for_the_latest_and_the_earlier_stay() {
    let (_folder, path) = folder();
    let mut store = Store::create(&path).unwrap();
    for n in 0..3 {
        store.save("main", &numbered(n)).unwrap();
    }
    assert_eq!(store.load("main").unwrap().id, "run-2");
    assert_eq!(store.load("run-0").unwrap().id, "run-0");
    assert!(matches!(store.save("main", &numbered(1)), Err(Error::Twice { .. })));
    assert_eq!(store.list().unwrap().len(), 3);
    assert_eq!(store.delete("run-1").unwrap(), 1);
    assert_eq!(store.delete("main").unwrap(), 2);
    assert!(matches!(store.delete("main"), Err(Error::Unknown { .. })));
}

#[test]
fn a_metric_is_tracked_by_its_path() {
    let (_folder, path) = folder();
    let mut store = Store::create(&path).unwrap();
    store.save("main", &numbered(0)).unwrap();
    store.save("main", &Profile { id: "b".into(), ..example::nothing() }).unwrap();
    let points = store.track("time_p50", |_| true).unwrap();
    assert_eq!(points[0].figure, example::profile().compute.time_p50);
    assert_eq!((points[1].figure.value, points[1].figure.reason.is_some()), (None, true));
    assert!(store.track("time_p50", |e| e.name == "none").unwrap().is_empty());
    assert!(matches!(store.track("nonsense", |_| true), Err(Error::Unknown { .. })));
}

#[test]
fn names_that_would_confuse_are_refused() {
    let (_folder, path) = folder();
    let mut store = Store::create(&path).unwrap();
    for name in ["", "a\nb", "x.json", "--db", &"n".repeat(201)] {
        assert!(matches!(store.save(name, &example::profile()), Err(Error::Name { .. })), "{name:?}");
    }
    let said = store.load("nobody").unwrap_err().to_string();
    assert!(said.contains("nobody") && said.contains("nothing is saved"), "{said}");
}

#[test]
fn reading_makes_no_store() {
    let (_folder, path) = folder();
    assert!(matches!(Store::open(&path), Err(Error::Missing { .. })));
    assert!(!path.exists() && !path.parent().unwrap().exists());
}

/// A store of one profile; its file's bytes.
fn one(path: &std::path::Path) -> Vec<u8> {
    Store::create(path).unwrap().save("main", &example::profile()).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn a_later_version_is_refused_and_left_alone() {
    let (_folder, path) = folder();
    one(&path);
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 9).unwrap();
    let before = std::fs::read(&path).unwrap();
    for result in [Store::open(&path), Store::create(&path)] {
        let said = result.unwrap_err().to_string();
        assert!(said.contains("version 9") && said.contains("up to 1"), "{said}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_damaged_file_is_refused_and_left_alone() {
    let (_folder, path) = folder();
    let whole = one(&path);
    let mut torn = whole.clone();
    // Every page but the first, which has the header.
    torn[4096..].iter_mut().for_each(|b| *b = 0x5a);
    let cut = whole[..whole.len() / 2].to_vec();
    let text = b"this is a letter and no database, and long enough to have a header".to_vec();
    for (what, bytes) in [("torn", torn), ("cut", cut), ("text", text)] {
        std::fs::write(&path, &bytes).unwrap();
        for result in [Store::open(&path), Store::create(&path)] {
            let error = result.map(|_| ()).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. } | Error::Foreign { .. }), "{what}: {error}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{what}");
    }
}

#[test]
fn another_programs_database_is_refused_and_left_alone() {
    let (_folder, path) = folder();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE notes (text TEXT)").unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(Store::create(&path), Err(Error::Foreign { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_full_disk_loses_nothing() {
    let (_folder, path) = folder();
    one(&path);
    let mut store = Store::create(&path).unwrap();
    store.limit_pages(std::fs::metadata(&path).unwrap().len() as i64 / 4096 + 2);
    let error = store.save("more", &numbered(1)).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert_eq!(store.list().unwrap().len(), 1);
    drop(store);
    let mut store = Store::create(&path).unwrap();
    store.verify().unwrap();
    assert_eq!(store.load("main").unwrap(), example::profile());
    store.save("more", &numbered(1)).unwrap();
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_is_said() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, path) = folder();
    one(&path);
    let parent = path.parent().unwrap();
    let mode =
        |of: &std::path::Path, mode| std::fs::set_permissions(of, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(&path, 0o444);
    mode(parent, 0o555);
    // The superuser writes anywhere; the rest of this test is then not about anything.
    let powerless = std::fs::write(parent.join("probe"), "").is_err();
    if powerless {
        let error = Store::create(&path).unwrap().save("more", &numbered(1)).unwrap_err();
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
        assert_eq!(Store::open(&path).unwrap().load("main").unwrap(), example::profile(), "reading still works");
        let error = Store::create(&parent.join("new.db")).unwrap_err();
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    }
    mode(parent, 0o755);
    drop(folder);
    // Where not even the superuser may write.
    if cfg!(target_os = "linux") {
        let error = Store::create(std::path::Path::new("/proc/none/baselines.db")).unwrap_err();
        assert!(matches!(error, Error::Folder { .. }), "{error}");
        let error = Store::create(std::path::Path::new("/proc/baselines.db")).unwrap_err();
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    }
}

/// Not a test: saves without end, for the one below, which kills it.
#[test]
#[ignore = "the child of another test"]
fn child_that_saves() {
    let Some(path) = std::env::var_os("SCHWANN_TEST_STORE") else { return };
    let first: u64 = std::env::var("SCHWANN_TEST_FIRST").unwrap().parse().unwrap();
    let mut store = Store::create(path.as_ref()).unwrap();
    for number in first.. {
        store.save("main", &numbered(number)).unwrap();
        #[expect(clippy::print_stdout, reason = "this is how the parent knows what was saved")]
        {
            println!("saved {number}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_killed_process_loses_nothing_that_was_saved() {
    let (_folder, path) = folder();
    let mut random = Random::new(99);
    let (mut saved, mut journals) = (0u64, 0);
    for round in 0..12 {
        let first = round * 1000;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "baseline::tests::child_that_saves", "--ignored", "--nocapture", "--test-threads=1"])
            .env("SCHWANN_TEST_STORE", &path)
            .env("SCHWANN_TEST_FIRST", first.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Wait for one save, then strike at any moment of the ones after it.
        let told = |line: &String| line.rsplit_once("saved ").map(|(_, n)| n.parse::<u64>().unwrap());
        let mut last = lines.by_ref().find_map(|line| told(&line)).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(random.below(15_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        last = lines.filter_map(|line| told(&line)).last().unwrap_or(last);
        journals += usize::from(path.with_file_name("baselines.db-journal").exists());
        let store = Store::open(&path).unwrap();
        store.verify().unwrap();
        saved += last - first + 1;
        let found = store.list().unwrap().len() as u64;
        // What was reported is there; one more may have been written and not yet reported.
        assert!(found == saved || found == saved + 1, "round {round}: {found} of {saved}");
        saved = found;
        assert_eq!(store.load(&format!("run-{last}")).unwrap(), numbered(last));
    }
    // With none, no kill fell into a save, and this test showed nothing.
    assert!(journals > 0, "no kill fell into a save");
}

#[test]
fn two_writers_wait_for_each_other() {
    let (_folder, path) = folder();
    let write = |first: u64| {
        let mut store = Store::create(&path).unwrap();
        (first..first + 10).for_each(|n| store.save("main", &numbered(n)).unwrap());
    };
    std::thread::scope(|s| {
        s.spawn(|| write(0));
        s.spawn(|| write(100));
    });
    assert_eq!(Store::open(&path).unwrap().list().unwrap().len(), 20);
}

#[test]
fn a_slower_run_is_called_slower_and_the_operations_with_it() {
    let (base, slow) = (example::profile(), example::scaled(1.08, 2));
    let compared = compare(&base, &slow);
    assert_eq!((compared.verdict, compared.unlike.len()), (Word::Slower, 0));
    let time = &compared.metrics[0];
    let spread = time.change.spread.unwrap();
    assert!(spread.low > 7.0 && spread.high < 9.0 && spread.low < 8.0 && spread.high > 8.0, "{:?}", time.change);
    assert_eq!(time.effect, Some(crate::stats::Size::Large));
    let rate = compared.metrics.iter().find(|m| m.metric == "compute.tflops").unwrap();
    assert_eq!(rate.word, Word::Slower, "less of a rate is slower");
    assert_eq!(compared.ops[0].name, "heads", "the greatest difference first");
    assert!(compared.ops.iter().all(|op| (op.change.value.unwrap() - 8.0).abs() < 1e-6));
    assert_eq!(compare(&slow, &base).verdict, Word::Faster);
}

#[test]
fn the_same_again_does_not_stand_out() {
    let compared = compare(&example::profile(), &example::scaled(1.0, 2));
    assert_eq!(compared.verdict, Word::NoDifference);
    let arena = compared.metrics.iter().find(|m| m.metric == "memory.arena").unwrap();
    assert_eq!(arena.word, Word::Same);
    let rss = compared.metrics.iter().find(|m| m.metric == "memory.allocations").unwrap();
    assert_eq!((rss.word, rss.change.value), (Word::Unknown, None));
}

#[test]
fn nothing_measured_gives_no_verdict() {
    let compared = compare(&example::profile(), &example::nothing());
    assert_eq!(compared.verdict, Word::Unknown);
    assert!(compared.metrics[0].change.reason.is_some());
}

#[test]
fn what_is_unlike_is_named() {
    let base = example::profile();
    let mut other = base.clone();
    other.machine.fingerprint = "another".into();
    other.model.hash = "0".into();
    other.workload.threads = schwann_core::Figure::derived(2.0, "threads", "--threads");
    let what: Vec<String> = unlike(&base, &other).into_iter().map(|u| u.what).collect();
    assert_eq!(what, ["machine", "model", "threads"]);
}

#[test]
fn operations_that_came_and_went_are_kept_apart() {
    let base = example::profile();
    let mut other = base.clone();
    other.compute.ops.remove(0);
    other.compute.ops[0].name = "renamed".into();
    let compared = compare(&base, &other);
    let of = |name: &str| compared.ops.iter().find(|op| op.name == name).unwrap();
    assert_eq!((of("x.turned").candidate.value, of("renamed").base.value), (None, None));
    assert_eq!(compared.ops.len(), 7);
}

fn decide(base: f64, candidate: f64, seed: u64) -> Decision {
    let (mut a, mut b) = (Random::new(seed), Random::new(seed + 1_000_000));
    // The machine's speed wanders, for both alike.
    let step = std::cell::Cell::new(0u64);
    let speed = || {
        step.set(step.get() + 1);
        1.0 + 0.3 * (step.get() as f64 / 50.0).sin().abs()
    };
    let budget = Budget { seconds: 5.0, rounds: 1 };
    let mut before = || Ok::<_, ()>(speed() * timings(&mut a, base, 0.03, 0.0, 1)[0]);
    let mut after = || Ok::<_, ()>(speed() * timings(&mut b, candidate, 0.03, 0.0, 1)[0]);
    in_turns(&Rule::new(0.03), &budget, &mut before, &mut after, &mut |_| ()).unwrap().decision
}

#[test]
fn in_turns_the_gate_catches_what_was_planted_and_nothing_else() {
    let alarms = |candidate| (0..60).filter(|s| decide(1.0, candidate, *s) == Decision::Regressed).count();
    assert_eq!(alarms(1.0), 0);
    assert_eq!(alarms(0.8), 0, "faster is no regression");
    assert!(alarms(1.05) >= 58, "{}", alarms(1.05));
}

#[test]
fn apart_an_alarm_must_last() {
    let mut random = Random::new(4);
    let base = timings(&mut random, 1.0, 0.02, 0.3, 200);
    let rule = Rule::new(0.03);
    let slow = timings(&mut random, 1.06, 0.02, 0.3, 200);
    assert_eq!(apart(&rule, &base, &slow).decision, Decision::Regressed);
    assert_eq!(apart(&rule, &base, &base).decision, Decision::Passed);
    assert_eq!(apart(&rule, &base, &[]).decision, Decision::Undecided);
    // The machine is slow in the first of three rounds only.
    let start = std::time::Instant::now();
    let budget = Budget { seconds: 0.06, rounds: 3 };
    let mut candidate = || {
        std::thread::sleep(std::time::Duration::from_micros(100));
        let busy = if start.elapsed().as_secs_f64() < 0.02 { 1.3 } else { 1.0 };
        Ok::<_, ()>(busy * timings(&mut random, 1.0, 0.02, 0.3, 1)[0])
    };
    let ruling = fastest_round(&rule, &budget, &base, &mut candidate, &mut |_| ()).unwrap();
    assert_ne!(ruling.decision, Decision::Regressed, "{ruling:?}");
}

#[test]
fn a_failed_measurement_ends_the_gate() {
    let budget = Budget { seconds: 1.0, rounds: 1 };
    let (mut fine, mut broken) = (|| Ok(1.0), || Err("no"));
    assert_eq!(in_turns(&Rule::new(0.03), &budget, &mut fine, &mut broken, &mut |_| ()).unwrap_err(), "no");
}
