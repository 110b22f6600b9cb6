use super::*;
use crate::stats::Random;
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
    let list = store.list().unwrap().all;
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
    assert_eq!(store.list().unwrap().all.len(), 3);
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
    let points = store.track("time_p50", |_| true).unwrap().all;
    assert_eq!(points[0].figure, example::profile().compute.time_p50);
    assert_eq!((points[1].figure.value, points[1].figure.reason.is_some()), (None, true));
    assert!(store.track("time_p50", |e| e.name == "none").unwrap().all.is_empty());
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
        assert!(said.contains("version 9") && said.contains("up to 2"), "{said}");
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
fn a_store_that_brings_queries_of_its_own_is_refused() {
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";
    for (sql, says) in [
        (format!("DROP TABLE runs; CREATE VIEW runs AS {endless} SELECT * FROM n"), "view runs"),
        (
            format!(
                "CREATE TRIGGER more AFTER INSERT ON runs BEGIN DELETE FROM runs WHERE number IN ({endless} SELECT i FROM n); END"
            ),
            "trigger more",
        ),
        ("CREATE TABLE notes (text TEXT)".into(), "table notes"),
        ("ALTER TABLE runs ADD COLUMN notes TEXT".into(), "the columns number, name"),
    ] {
        let (_folder, path) = folder();
        one(&path);
        rusqlite::Connection::open(&path).unwrap().execute_batch("ANALYZE").unwrap();
        assert_eq!(
            Store::open(&path).unwrap().list().unwrap().all.len(),
            1,
            "what SQLite makes for itself is no matter"
        );
        rusqlite::Connection::open(&path).unwrap().execute_batch(&sql).unwrap();
        for error in [Store::open(&path).err().unwrap(), Store::create(&path).err().unwrap()] {
            assert!(matches!(error, Error::Foreign { .. }) && error.to_string().contains(says), "{sql}: {error}");
        }
    }
}

#[test]
fn a_full_disk_loses_nothing() {
    let (_folder, path) = folder();
    one(&path);
    let mut store = Store::create(&path).unwrap();
    store.limit_pages(std::fs::metadata(&path).unwrap().len() as i64 / 4096 + 2);
    let error = store.save("more", &numbered(1)).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert_eq!(store.list().unwrap().all.len(), 1);
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
        let found = store.list().unwrap().all.len() as u64;
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
    assert_eq!(Store::open(&path).unwrap().list().unwrap().all.len(), 20);
}

#[test]
fn a_slower_run_is_called_slower_and_the_operations_with_it() {
    let (base, slow) = (example::profile(), example::scaled(1.08, 2));
    let compared = compare(&base, &slow);
    assert_eq!((compared.verdict, compared.unlike.len()), (Word::Slower, 0));
    let time = &compared.metrics[0];
    let spread = time.change.spread.unwrap();
    assert!(spread.low > 6.0 && spread.high < 10.0 && spread.low < 8.0 && spread.high > 8.0, "{:?}", time.change);
    assert_eq!(time.effect, Some(crate::stats::Size::Large));
    let judged = |of: &str| compared.metrics.iter().find(|m| m.metric == of).unwrap().word;
    assert_eq!((judged("compute.time_p99"), judged("compute.time_mean")), (Word::NotJudged, Word::NotJudged));
    let rate = compared.metrics.iter().find(|m| m.metric == "compute.tflops").unwrap();
    assert_eq!(rate.word, Word::Slower, "less of a rate is slower");
    assert_eq!(compared.ops[0].name, "heads", "the greatest difference first");
    assert!(compared.ops.iter().all(|op| (op.change.value.unwrap() - 8.0).abs() < 1e-6));
    assert_eq!(compare(&slow, &base).verdict, Word::Faster);
}

#[test]
fn the_same_again_does_not_stand_out() {
    let compared = compare(&example::profile(), &example::scaled(1.0, 2));
    assert!(matches!(compared.verdict, Word::NoDifference | Word::Undecided), "{:?}", compared.metrics[0].change);
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
    other.machine.cpu = "Another CPU".into();
    other.model.hash = "0".into();
    other.workload.threads = schwann_core::Figure::derived(2.0, "threads", "--threads");
    other.workload.dtype = "bf16".into();
    other.workload.compilation = "node by node".into();
    let n = schwann_core::Figure::derived(8.0, "elements", "--set");
    other.workload.sizes = vec![crate::profile::Named { name: "N".into(), figure: n }];
    let what: Vec<String> = unlike(&base, &other).into_iter().map(|u| u.what).collect();
    assert_eq!(what, ["machine", "model", "threads", "type", "compilation", "sizes"]);
}

#[test]
fn operations_that_had_a_number_for_a_name_are_matched_by_their_place() {
    let base = example::profile();
    let mut before = base.clone();
    before.compute.ops[1].name = "tanh_8".into();
    before.compute.ops[4].name = "matmul_3.merged".into();
    let mut now = base.clone();
    now.compute.ops[0].name = "cfc.x.turned".into();
    let compared = compare(&before, &now);
    assert_eq!(compared.ops.len(), base.compute.ops.len());
    assert!(compared.ops.iter().all(|op| op.change.value == Some(0.0)));
    let names: Vec<&str> = compared.ops.iter().map(|op| op.name.as_str()).collect();
    assert!(["cfc.x.turned", "backbone.0", "projected"].iter().all(|name| names.contains(name)), "{names:?}");
}

#[test]
fn a_loop_that_only_one_side_told_apart_is_compared_as_a_whole() {
    let base = example::profile();
    let mut apart = base.clone();
    let looped = &mut apart.compute.ops[1];
    looped.whole_time = Some(looped.self_time.clone());
    looped.self_time.value = looped.self_time.value.map(|t| t / 10.0);
    let change = |before: &Profile, now: &Profile| {
        let compared = compare(before, now);
        compared.ops.iter().find(|op| op.name == "backbone.0").unwrap().change.value
    };
    assert_eq!((change(&base, &apart), change(&apart, &base)), (Some(0.0), Some(0.0)));
    let mut quicker = apart.clone();
    quicker.compute.ops[1].self_time.value = apart.compute.ops[1].self_time.value.map(|t| t / 2.0);
    assert_eq!(change(&apart, &quicker), Some(-50.0), "of two that did, what the parts leave");
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

#[test]
fn a_slower_machine_does_not_pose_as_a_slower_program() {
    let base = example::profile();
    let mut other = example::scaled(1.2, 2);
    let starts = other.compute.starts.as_mut().unwrap();
    // All of it took 1.2 times as long, the yardstick too.
    starts.yardstick.values.iter_mut().flatten().for_each(|y| *y *= 1.2);
    starts.ratio.values.iter_mut().flatten().for_each(|r| *r /= 1.2);
    let compared = compare(&base, &other);
    assert!(matches!(compared.verdict, Word::NoDifference | Word::Undecided), "{:?}", compared.metrics[0].change);
    assert!((compared.basis.machine.value.unwrap() - 20.0).abs() < 1.0, "{:?}", compared.basis);
    let ruling = Rule::new(0.03).records(&base, &other);
    assert_ne!(ruling.decision, Decision::Regressed, "{ruling:?}");
    // With another yardstick nothing can be taken off, and 20% may be the machine's.
    other.compute.starts.as_mut().unwrap().yardstick_name = "another".into();
    assert!(compare(&base, &other).basis.how.contains("without a yardstick"));
}

#[test]
fn a_profile_of_one_start_is_judged_by_its_samples_with_a_wide_interval() {
    let without = |profile: Profile| {
        let mut profile = profile;
        profile.compute.starts = None;
        profile
    };
    let base = without(example::profile());
    let compared = compare(&base, &without(example::scaled(1.05, 2)));
    assert_eq!(compared.verdict, Word::Undecided);
    assert!(compared.basis.how.contains("cannot tell below"), "{:?}", compared.basis);
    assert_eq!(compare(&base, &without(example::scaled(2.0, 2))).verdict, Word::Slower);
    assert_eq!(compare(&base, &example::scaled(2.0, 2)).verdict, Word::Slower, "one side may have starts");
}

#[test]
fn the_gate_alarms_passes_and_does_not_know() {
    let rule = Rule::new(0.03);
    let of = |factor: f64| rule.records(&example::profile(), &example::scaled(factor, 2)).decision;
    assert_eq!((of(1.08), of(1.0), of(0.8)), (Decision::Regressed, Decision::Passed, Decision::Passed));
    assert_eq!(of(1.03), Decision::Undecided);
    assert_eq!(rule.records(&example::profile(), &example::nothing()).decision, Decision::Undecided);
}

/// A store as an earlier version made it, from its SQL.
fn old(path: &std::path::Path, version: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let sql = std::fs::read_to_string(format!("{}/tests/old/store-{version}.sql", env!("CARGO_MANIFEST_DIR"))).unwrap();
    rusqlite::Connection::open(path).unwrap().execute_batch(&sql).unwrap();
}

#[test]
fn a_store_of_every_earlier_version_is_read_and_brought_up_to_date() {
    for version in 1..2 {
        for reading in [true, false] {
            let (_folder, path) = folder();
            old(&path, version);
            let mut store = if reading { Store::open(&path) } else { Store::create(&path) }.unwrap();
            let found = store.list().unwrap();
            assert_eq!((found.all.len(), found.unreadable.len()), (2, 0), "version {version}");
            // A kernel update and a limit on memory lie between the two: one machine all the same.
            assert_eq!(found.all[0].fingerprint, found.all[1].fingerprint);
            let (first, second) = (store.load(&found.all[0].id).unwrap(), store.load("main").unwrap());
            assert_ne!(first.machine.fingerprint, second.machine.fingerprint, "as that version wrote them");
            assert_eq!(unlike(&first, &second), []);
            assert_eq!(first.comparisons[0].verdict, crate::profile::Verdict::Untested, "it had no such field");
            assert_eq!(first.recommendations[0].verdict, crate::profile::Verdict::Gain);
            assert_eq!(compare(&first, &second).verdict, Word::Undecided, "10% of one start each");
            assert_eq!(store.track("time_p50", |_| true).unwrap().all.len(), 2);
            // Saving goes on where the old ones are.
            store.save("main", &example::profile()).unwrap();
            assert_eq!(store.list().unwrap().all.len(), 3);
            drop(store);
            let connection = rusqlite::Connection::open(&path).unwrap();
            let now: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
            assert_eq!(now, 2);
            Store::open(&path).unwrap().verify().unwrap();
        }
    }
}

#[test]
fn one_bad_row_hides_no_other() {
    let (_folder, path) = folder();
    let mut store = Store::create(&path).unwrap();
    (0..4).for_each(|n| store.save("main", &numbered(n)).unwrap());
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute("UPDATE runs SET document = '{\"schema\": 1, \"id\": ' WHERE number = 2", []).unwrap();
    connection.execute("UPDATE runs SET workload = CAST(X'ff' AS TEXT) WHERE number = 3", []).unwrap();
    let list = store.list().unwrap();
    assert_eq!((list.all.len(), list.unreadable.len(), list.unreadable[0].number), (3, 1, 3));
    let track = store.track("time_p50", |_| true).unwrap();
    assert_eq!((track.all.len(), track.unreadable.len()), (2, 2), "{:?}", track.unreadable);
    assert_eq!(store.load("main").unwrap().id, "run-3");
    assert!(matches!(store.load("run-1"), Err(Error::Document(_))));
    assert_eq!(store.matching("run-0").unwrap().len(), 1);
    // A version before cannot know what is wrong with them, and leaves them as they are.
    connection.pragma_update(None, "user_version", 1).unwrap();
    drop((store, connection));
    assert_eq!(Store::open(&path).unwrap().list().unwrap().all.len(), 3);
}

#[test]
fn what_is_saved_is_on_the_disk_on_macos_too() {
    let (_folder, path) = folder();
    let store = Store::create(&path).unwrap();
    let pragma = |name: &str| store.pragma_value(name);
    assert_eq!((pragma("synchronous"), pragma("fullfsync"), pragma("checkpoint_fullfsync")), (2, 1, 1));
}
