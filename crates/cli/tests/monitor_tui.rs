//! `schwann monitor` in a real terminal: tmux draws it, presses keys, and changes its size. Without tmux the tests say that
//! they were skipped, and fail instead where `SCHWANN_REQUIRE_TMUX=1`.

use crate::common::Place;
use std::process::Command;
use std::time::{Duration, Instant};

/// A terminal with a shell in it.
struct Terminal {
    socket: String,
    place: Place,
}

impl Terminal {
    #[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
    fn open(name: &str, environment: &[(&str, &str)]) -> Option<Terminal> {
        if !Command::new("tmux").arg("-V").output().is_ok_and(|out| out.status.success()) {
            assert!(std::env::var_os("SCHWANN_REQUIRE_TMUX").is_none_or(|v| v != "1"), "no tmux was found");
            eprintln!("skipped: no tmux");
            return None;
        }
        let place = Place::new(&format!("tui-{name}"));
        let terminal = Terminal { socket: format!("schwann-{}-{name}", std::process::id()), place };
        let folder = terminal.place.0.to_str().unwrap().to_owned();
        let mut variables = vec![
            ("SCHWANN_DATA", format!("{folder}/data")),
            ("XDG_CONFIG_HOME", format!("{folder}/settings")),
            ("PS1", "$ ".to_owned()),
            ("LC_ALL", "C.UTF-8".to_owned()),
        ];
        variables.extend(environment.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let mut words: Vec<String> =
            ["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", &folder].map(str::to_owned).into();
        for (name, value) in variables {
            words.extend(["-e".to_owned(), format!("{name}={value}")]);
        }
        words.push("sh".to_owned());
        terminal.tmux(&words.iter().map(String::as_str).collect::<Vec<_>>());
        Some(terminal)
    }

    fn tmux(&self, words: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.env_remove("TMUX").args(["-u", "-L", &self.socket]).args(words);
        let out = tmux.output().unwrap();
        assert!(out.status.success(), "tmux {words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn say(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    fn size(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    fn until(&self, what: &str, seen: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + Duration::from_secs(90);
        loop {
            let screen = self.screen();
            if seen(&screen) {
                return screen;
            }
            assert!(Instant::now() < until, "never {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn until_says(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }

    /// Starts the monitor, which tells its process in `pid`, and how it ended on the screen.
    fn monitor(&self, more: &str) {
        let program = env!("CARGO_BIN_EXE_schwann");
        let driven = "wired-cfc --batch 1 --steps 4 --every 100ms --deadline 1s";
        self.say("clear");
        self.say(&format!("sh -c 'echo $$ >pid; exec {program} monitor {driven} {more}'; echo ended=$?"));
        self.until("a moment", |screen| screen.contains("▸ live") && screen.contains("Latency (measured)"));
    }

    /// The monitor has ended like this, and the terminal is as it was.
    fn is_given_back(&self, code: u8) {
        self.until_says(&format!("ended={code}"));
        let state = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(state.trim(), "0 1", "the alternate screen, the cursor");
        self.say("clear; stty -a | tr ' ;' '\\n\\n' | grep -x -e icanon -e echo -e isig | sort | tr '\\n' ' '");
        self.until_says("echo icanon isig");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut tmux = Command::new("tmux");
        let _ = tmux.env_remove("TMUX").args(["-L", &self.socket, "kill-server"]).output();
    }
}

#[test]
fn keys_and_sizes_do_what_they_should_and_the_terminal_is_given_back() {
    let Some(terminal) = Terminal::open("keys", &[]) else { return };
    terminal.monitor("");
    let screen = terminal.until_says("cfc.inter.ga");
    for wanted in ["wired-cfc", "B=1 T=4", "Runs", "Of the roof", "Memory", "Machine", "p99", "deadline 1.00 s"] {
        assert!(screen.contains(wanted), "no {wanted}:\n{screen}");
    }
    terminal.press(&["2"]);
    terminal.until_says("Time by operation");
    terminal.press(&["Tab"]);
    terminal.until_says("Where memory is");
    terminal.press(&["4"]);
    terminal.until_says("Readings");
    terminal.press(&["5"]);
    terminal.until_says("No rule has held");
    terminal.press(&["1", "Space"]);
    terminal.until_says("‖ paused");
    terminal.press(&["-"]);
    terminal.until_says("+- 2 min");
    terminal.press(&["Space", "?"]);
    terminal.until_says("choose a row");
    terminal.press(&["Escape"]);
    terminal.until("the help gone", |screen| !screen.contains("choose a row"));
    for (width, height) in [(200, 60), (40, 10), (3, 2), (60, 18), (120, 40), (80, 24)] {
        terminal.size(width, height);
        if width >= 60 {
            // Redrawn as wide as it is now: the state stands at the right end of the first line.
            let redrawn = |screen: &str| {
                let first = screen.lines().next().unwrap_or_default();
                let wide = first.trim_end().chars().count() + 1 == usize::from(width);
                wide && first.contains("▸ live") && screen.lines().any(|l| l.contains("q quit") || l.contains("? help"))
            };
            terminal.until(&format!("{width} × {height}"), redrawn);
        } else if width == 40 {
            terminal.until_says("too small");
        }
    }
    terminal.press(&["r"]);
    terminal.until_says("● recording");
    let file = terminal.place.0.join("wired-cfc-1.jsonl");
    terminal.until("a recorded moment", |_| std::fs::read_to_string(&file).is_ok_and(|text| text.lines().count() > 2));
    terminal.press(&["r"]);
    terminal.until_says("recorded to wired-cfc-1.jsonl");
    terminal.press(&["b"]);
    terminal.until_says("the baseline `wired-cfc`?");
    terminal.press(&["y"]);
    terminal.until_says("saved as the baseline `wired-cfc`");
    terminal.press(&["q"]);
    terminal.is_given_back(0);
    assert!(terminal.place.run(0, &["baseline", "list"]).0.contains("wired-cfc"));
    // What was recorded can be looked at, and stays when it is over.
    terminal.say(&format!("clear; {} monitor --replay wired-cfc-1.jsonl", env!("CARGO_BIN_EXE_schwann")));
    terminal.until_says("ended");
    terminal.press(&["q"]);
    terminal.until("the end", |screen| !screen.contains("Latency"));
}

#[test]
fn a_signal_and_ctrl_c_give_the_terminal_back_too() {
    let Some(terminal) = Terminal::open("signals", &[("NO_COLOR", "1")]) else { return };
    terminal.monitor("");
    let colours = terminal.tmux(&["capture-pane", "-p", "-e"]);
    // 39 is the terminal's own colour.
    let coloured = colours.replace("\u{1b}[39m", "").contains("\u{1b}[3");
    assert!(!coloured, "NO_COLOR is set, and there are colours: {colours:?}");
    terminal.press(&["C-c"]);
    terminal.is_given_back(130);
    for signal in ["-TERM", "-HUP"] {
        terminal.monitor("");
        let process = std::fs::read_to_string(terminal.place.0.join("pid")).unwrap();
        assert!(Command::new("kill").args([signal, process.trim()]).status().unwrap().success());
        terminal.is_given_back(130);
    }
}

#[test]
fn a_monitor_whose_terminal_goes_away_ends() {
    let Some(terminal) = Terminal::open("gone", &[]) else { return };
    terminal.monitor("");
    let process = std::fs::read_to_string(terminal.place.0.join("pid")).unwrap();
    terminal.tmux(&["kill-server"]);
    let lives = || Command::new("kill").args(["-0", process.trim()]).output().unwrap().status.success();
    let until = Instant::now() + Duration::from_secs(60);
    while lives() {
        assert!(Instant::now() < until, "it goes on without a terminal");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_monitor_for_some_time_ends_by_itself() {
    let Some(terminal) = Terminal::open("time", &[]) else { return };
    terminal.monitor("--for 3s");
    terminal.is_given_back(0);
}
