//! Baselines and tuned records on a real PostgreSQL server, which this test starts for itself in a folder of its own. Without
//! PostgreSQL it says that it was skipped, and fails instead where `SCHWANN_REQUIRE_POSTGRES=1`.

use schwann_prof::baseline::{Error, Store};
use schwann_prof::db::Place;
use schwann_prof::tune::AutoTuner;
use schwann_prof::{Profile, example};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A server that runs for as long as this lives.
struct Server {
    folder: tempfile::TempDir,
    programs: PathBuf,
}

/// Where the server's programs are.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()))
        .filter(|folder| ["initdb", "pg_ctl", "psql"].iter().all(|program| folder.join(program).exists()))
        .collect();
    found.sort();
    found.pop()
}

impl Server {
    /// Starts one; none, with a word, where there is no PostgreSQL.
    fn start() -> Option<Server> {
        let Some(programs) = programs() else {
            assert!(std::env::var_os("SCHWANN_REQUIRE_POSTGRES").is_none_or(|v| v != "1"), "no PostgreSQL was found");
            #[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
            {
                println!("skipped: there is no PostgreSQL (Debian: apt-get install postgresql)");
            }
            return None;
        };
        let folder = tempfile::Builder::new().prefix("schwann-pg").tempdir_in("/tmp").unwrap();
        let server = Server { folder, programs };
        // The server does not run as the superuser; whoever it runs as needs the folder.
        if is_root() {
            assert!(Command::new("chown").arg("postgres").arg(server.folder.path()).status().unwrap().success());
        }
        let password = server.folder.path().join("password");
        std::fs::write(&password, "right\n").unwrap();
        if is_root() {
            assert!(Command::new("chown").arg("postgres").arg(&password).status().unwrap().success());
        }
        let data = server.data();
        server.command(
            "initdb",
            &["-D", &data, "-U", "ada", "-A", "scram-sha-256", "--pwfile", password.to_str().unwrap(), "-N"],
        );
        server.up();
        Some(server)
    }

    fn data(&self) -> String {
        self.folder.path().join("data").to_str().unwrap().to_owned()
    }

    fn command(&self, program: &str, args: &[&str]) {
        let program = self.programs.join(program);
        let mut command = match is_root() {
            true => {
                let mut words = vec![program.to_str().unwrap().to_owned()];
                words.extend(args.iter().map(|a| format!("'{a}'")));
                let mut su = Command::new("su");
                su.args(["postgres", "-s", "/bin/sh", "-c", &words.join(" ")]);
                su
            }
            false => {
                let mut own = Command::new(program);
                own.args(args);
                own
            }
        };
        let ended =
            command.current_dir("/tmp").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(ended.unwrap().success(), "{args:?}");
    }

    fn up(&self) {
        let socket = self.folder.path().to_str().unwrap();
        let options = format!("-c listen_addresses= -c unix_socket_directories={socket} -c fsync=off");
        self.command("pg_ctl", &["-D", &self.data(), "-w", "-o", &options, "-l", &format!("{socket}/log"), "start"]);
    }

    fn down(&self) {
        self.command("pg_ctl", &["-D", &self.data(), "-m", "immediate", "stop"]);
    }

    fn url(&self, password: &str) -> String {
        let socket = self.folder.path().to_str().unwrap().replace('/', "%2F");
        format!("postgres://ada:{password}@{socket}/postgres")
    }

    fn place(&self) -> Place {
        Place::of(&self.url("right"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.down()));
        // It was down already.
        drop(stopped);
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    String::from_utf8_lossy(&id.stdout).trim() == "0"
}

fn numbered(number: usize) -> Profile {
    Profile { id: format!("run-{number}"), ..example::profile() }
}

#[test]
fn a_team_keeps_baselines_and_tuned_records_on_a_server() {
    let Some(server) = Server::start() else { return };
    let place = server.place();
    let none = Store::open_at(&place).unwrap_err().to_string();
    assert!(none.contains("nothing was saved there yet"), "{none}");

    // What a file does, a server does too.
    let mut store = Store::create_at(&place).unwrap();
    store.save("main", &numbered(0)).unwrap();
    store.save("main", &numbered(1)).unwrap();
    store.save("nothing", &Profile { id: "other".into(), ..example::nothing() }).unwrap();
    assert!(matches!(store.save("main", &numbered(1)), Err(Error::Twice { .. })));
    drop(store);
    let mut store = Store::open_at(&place).unwrap();
    assert_eq!(store.load("main").unwrap(), numbered(1));
    assert_eq!(store.load("run-0").unwrap(), numbered(0));
    let list = store.list().unwrap().all;
    assert_eq!((list.len(), list[0].name.as_str()), (3, "main"));
    assert_eq!(list[0].time_p50.value, example::profile().compute.time_p50.value);
    assert_eq!(list[2].time_p50.value, None);
    assert!(list[0].saved.ends_with('Z') && list[0].saved.len() == 20, "{}", list[0].saved);
    let points = store.track("time_p50", |_| true).unwrap().all;
    assert_eq!(points[0].figure, example::profile().compute.time_p50);
    assert_eq!(store.delete("run-0").unwrap(), 1);
    assert_eq!(store.delete("main").unwrap(), 1);
    assert!(matches!(store.delete("main"), Err(Error::Unknown { .. })));
    assert!(store.load("none").unwrap_err().to_string().contains("nothing is saved as `none`; there is `nothing`"));
    store.verify().unwrap();

    // Records of the tuner.
    let mut tuner = AutoTuner::kept_in(&place).unwrap().budget(0.05);
    tuner.benchmark_operation("some", &[7u32], |_| Ok::<(), std::fmt::Error>(())).unwrap();
    let again = AutoTuner::kept_in(&place).unwrap();
    assert_eq!(again.get_optimal_config::<u32>("some").unwrap(), Some(7));

    many_at_once(&server);
    what_is_wrong_is_said(&server);
}

/// Several people make the tables and write at the same time: everything is there once.
fn many_at_once(server: &Server) {
    let writers = 6;
    std::thread::scope(|s| {
        for writer in 0..writers {
            let place = server.place();
            s.spawn(move || {
                let mut store = Store::create_at(&place).unwrap();
                for n in 0..5 {
                    store.save("team", &numbered(1000 + writer * 5 + n)).unwrap();
                    // All of them try this one; one succeeds.
                    match store.save("shared", &numbered(5000 + n)) {
                        Ok(()) | Err(Error::Twice { .. }) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
    });
    let all = Store::open_at(&server.place()).unwrap().list().unwrap().all;
    let count = |name: &str| all.iter().filter(|e| e.name == name).count();
    assert_eq!((count("team"), count("shared")), (writers * 5, 5));
}

fn what_is_wrong_is_said(server: &Server) {
    let said = |url: &str| Store::open_at(&Place::of(url)).unwrap_err();
    let wrong = said(&server.url("wrong"));
    assert!(matches!(wrong, Error::Refused { .. }), "{wrong:?}");
    assert!(
        wrong.to_string().contains("does not let this user in") && !wrong.to_string().contains(":wrong@"),
        "{wrong}"
    );
    let nobody = said("postgres://ada:right@127.0.0.1:1/postgres");
    assert!(matches!(nobody, Error::Away { .. }) && !nobody.to_string().contains("right@"), "{nobody}");
    let malformed = said("postgres://ada:right@host:no-port/postgres");
    assert!(!malformed.to_string().contains("right"), "{malformed}");

    // A later version of this program was here.
    let socket = server.folder.path();
    psql(server, socket, "UPDATE schwann.versions SET version = 99 WHERE name = 'runs'");
    for newer in [Store::open_at(&server.place()), Store::create_at(&server.place())] {
        let newer = newer.unwrap_err();
        assert!(matches!(newer, Error::NewerServer { found: 99, .. }), "{newer:?}");
    }
    psql(server, socket, "UPDATE schwann.versions SET version = 2 WHERE name = 'runs'");

    // It goes away while it is used.
    let mut store = Store::create_at(&server.place()).unwrap();
    server.down();
    let away = store.save("late", &numbered(9000)).unwrap_err();
    assert!(matches!(away, Error::Away { .. } | Error::Server { .. }), "{away:?}");
    assert!(matches!(said(&server.url("right")), Error::Away { .. }));
    server.up();
    let all = Store::open_at(&server.place()).unwrap().list().unwrap().all;
    assert!(all.iter().any(|e| e.name == "team") && all.iter().all(|e| e.name != "late"));
}

fn psql(server: &Server, socket: &Path, statement: &str) {
    let ended = Command::new(server.programs.join("psql"))
        .env("PGPASSWORD", "right")
        .args(["-h", socket.to_str().unwrap(), "-U", "ada", "-d", "postgres", "-q", "-c", statement])
        .status();
    assert!(ended.unwrap().success());
}
