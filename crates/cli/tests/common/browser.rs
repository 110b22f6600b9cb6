//! A real browser, told what to do over its debugging pipe, for tests of pages that change by themselves.
//!
//! Chromium is looked for in `SCHWANN_CHROMIUM` and under its usual names; without one a test says that it was skipped, and
//! fails instead where `SCHWANN_REQUIRE_CHROMIUM=1`.

use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What a browser may take to answer, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(90);

fn chromium() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("SCHWANN_CHROMIUM") {
        return Some(given.into());
    }
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
        .iter()
        .find_map(|name| folders.iter().map(|f| f.join(name)).find(|path| path.is_file()))
}

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    folder: PathBuf,
    session: Option<String>,
    asked: u64,
    /// What the page complained about.
    pub(crate) complaints: Vec<String>,
}

impl Browser {
    /// Starts one; `None` where there is none, which is said.
    #[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
    pub(crate) fn start(name: &str) -> Option<Browser> {
        let Some(program) = chromium() else {
            assert!(std::env::var_os("SCHWANN_REQUIRE_CHROMIUM").is_none_or(|v| v != "1"), "no Chromium was found");
            eprintln!("skipped: no Chromium in SCHWANN_CHROMIUM or PATH");
            return None;
        };
        let folder = std::env::temp_dir().join(format!("schwann-browser-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let pipes = ["to", "from"].map(|pipe| folder.join(pipe));
        assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
        // Chromium reads commands from its descriptor 3 and answers on 4.
        let child = Command::new("sh")
            .args(["-c", r#"in=$1 out=$2; shift 2; exec "$@" 3<"$in" 4>"$out""#, "sh"])
            .args(&pipes)
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--hide-scrollbars", "--remote-debugging-pipe", "about:blank"])
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = File::options().write(true).open(&pipes[0]).unwrap();
        let answers = BufReader::new(File::open(&pipes[1]).unwrap());
        let (give, from) = channel();
        std::thread::spawn(move || {
            for message in answers.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if give.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser { child, to, from, folder, session: None, asked: 0, complaints: vec![] };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.ask("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for what in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.ask(what, json!({}));
        }
        Some(browser)
    }

    /// Asks the browser for something and waits for the answer.
    pub(crate) fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let mut message = json!({"id": self.asked, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let answer = self.from.recv_timeout(left).unwrap_or_else(|e| panic!("{method} was not answered: {e}"));
            if answer["id"] == self.asked {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.hear(&answer);
        }
    }

    fn hear(&mut self, event: &Value) {
        let said = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.complaints.push(said["exceptionDetails"].to_string()),
            "Log.entryAdded" if said["entry"]["level"] == "error" => self.complaints.push(said["entry"].to_string()),
            "Runtime.consoleAPICalled" if said["type"] == "error" => self.complaints.push(said["args"].to_string()),
            _ => {}
        }
    }

    /// Opens an address.
    pub(crate) fn open(&mut self, address: &str) {
        let opened = self.ask("Page.navigate", json!({"url": address}));
        assert!(opened["errorText"].is_null(), "{address}: {}", opened["errorText"]);
    }

    /// As wide and as high as a screen; a phone's has more points in a pixel.
    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let phone = width < 600;
        let scale = if phone { 2 } else { 1 };
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}),
        );
    }

    /// Light or dark.
    pub(crate) fn dark(&mut self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": value}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        self.evaluate(expression).unwrap_or_else(|e| panic!("{expression}: {e}"))
    }

    fn evaluate(&mut self, expression: &str) -> Result<Value, Value> {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.ask("Runtime.evaluate", parameters);
        match &answer["exceptionDetails"] {
            Value::Null => Ok(answer["result"]["value"].clone()),
            wrong => Err(wrong.clone()),
        }
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let until = Instant::now() + PATIENCE;
        // While a page is exchanged for another, there is nothing to ask.
        while self.evaluate(expression) != Ok(Value::Bool(true)) {
            assert!(Instant::now() < until, "never: {expression}; {:?}", self.complaints);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A picture of the page, all of it or what the screen shows, as a file `NAME.png` in the folder that
    /// `SCHWANN_SCREENSHOTS` names; without that, none.
    pub(crate) fn picture(&mut self, name: &str, whole: bool) {
        let Some(folder) = std::env::var_os("SCHWANN_SCREENSHOTS") else { return };
        let answer = self.ask("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": whole}));
        std::fs::create_dir_all(&folder).unwrap();
        let path = Path::new(&folder).join(format!("{name}.png"));
        std::fs::write(path, base64(answer["data"].as_str().unwrap())).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn base64(text: &str) -> Vec<u8> {
    const SIGNS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = vec![];
    let (mut bits, mut count) = (0u32, 0);
    for value in text.bytes().filter_map(|b| SIGNS.iter().position(|s| *s == b)) {
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    out
}
