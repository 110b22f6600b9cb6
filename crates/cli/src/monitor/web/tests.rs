//! The page's server as clients meet it, and the page in a real browser.

use super::super::serve::{Address, Server, address};
use super::*;
use browser::Browser;
use schwann::prof::live::made_up;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread::JoinHandle;

#[path = "../../../tests/common/browser.rs"]
mod browser;

/// A served page, whose moments the test gives.
struct Served {
    hub: Arc<Hub>,
    address: Address,
    url: String,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn at(at: &str) -> Served {
        let server = Server::bind(address(at).unwrap(), None).unwrap();
        let (hub, over) = (Arc::new(Hub::new(&made_up::about()).unwrap()), Arc::new(AtomicBool::new(false)));
        let (bound, url, app) = (server.address, server.url("/"), app(Arc::clone(&hub), server.token().cloned()));
        let flag = Arc::clone(&over);
        let thread = std::thread::spawn(move || server.run(app, || flag.load(Ordering::Relaxed)).unwrap());
        Served { hub, address: bound, url, over, thread: Some(thread) }
    }

    fn give(&self, numbers: std::ops::Range<u64>, every_s: f64) {
        numbers.for_each(|number| self.hub.give(&made_up::moment(number, every_s)));
    }

    fn port(&self) -> String {
        self.address.to_string().rsplit(':').next().unwrap().to_owned()
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(format!("127.0.0.1:{}", self.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request as it is, and gives the answer's head and body.
    fn ask(&self, request: &str) -> (String, String) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (head.to_ascii_lowercase(), body.to_owned())
    }

    fn get(&self, path: &str, more: &str) -> (String, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}Connection: close\r\n\r\n"))
    }

    /// A page that listens: a stream after the head of the answer.
    fn listen(&self) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        BufReader::new(stream)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

/// The number of the next moment on a stream.
fn next_number(stream: &mut impl BufRead) -> u64 {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
        if let Some(rest) = line.strip_prefix("data: {\"number\":") {
            return rest.split(',').next().unwrap().parse().unwrap();
        }
    }
}

#[test]
fn every_answer_forbids_what_a_page_does_not_need() {
    let served = Served::at("127.0.0.1:0");
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/plots.js", "text/javascript"),
        ("/page.css", "text/css"),
    ] {
        let (head, body) = served.get(path, "");
        assert!(
            head.starts_with("http/1.1 200") && head.contains(&format!("content-type: {kind}; charset=utf-8")),
            "{head}"
        );
        assert!(body.len() > 1000);
        for wanted in
            ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "nosniff", "no-referrer", "no-store"]
        {
            assert!(head.contains(wanted), "{path} without {wanted}: {head}");
        }
        assert!(!head.contains("access-control") && !head.contains("unsafe"), "{head}");
    }
    assert!(served.get("/nothing", "").0.starts_with("http/1.1 404"));
    assert!(served.get("/../../etc/passwd", "").0.starts_with("http/1.1 404"));
    let post = "POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    assert!(served.ask(post).0.starts_with("http/1.1 405"));
    // Nothing in the page runs or looks in a way that the policy would forbid.
    assert!(!PAGE.contains("style=\"") && !PAGE.contains("onclick") && !PAGE.contains("<script>"));
}

#[test]
fn other_sites_and_other_names_get_nothing() {
    let served = Served::at("127.0.0.1:0");
    let rebound = format!("GET /events HTTP/1.1\r\nHost: evil.example:{}\r\nConnection: close\r\n\r\n", served.port());
    assert!(served.ask(&rebound).0.starts_with("http/1.1 403"));
    assert!(served.get("/events", "Sec-Fetch-Site: cross-site\r\n").0.starts_with("http/1.1 403"));
    assert_eq!(served.hub.pages(), 0);
}

#[test]
fn an_address_that_others_reach_needs_the_token_which_then_moves_into_a_cookie() {
    let served = Served::at("0.0.0.0:0");
    let token = served.url.split_once("?token=").unwrap().1.to_owned();
    assert!(served.get("/", "").0.starts_with("http/1.1 401"));
    assert!(
        served
            .get("/page.js", "Cookie: schwann_token=00000000000000000000000000000000\r\n")
            .0
            .starts_with("http/1.1 401")
    );
    assert!(served.get(&format!("/?token={}", &token[1..]), "").0.starts_with("http/1.1 401"));
    let (head, _) = served.get(&format!("/?token={token}"), "");
    assert!(head.starts_with("http/1.1 303") && head.contains("location: /\r\n"), "{head}");
    let cookie = head.lines().find_map(|l| l.strip_prefix("set-cookie: ")).unwrap().to_owned();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    let kept = cookie.split(';').next().unwrap();
    assert!(served.get("/", &format!("Cookie: other=1; {kept}\r\n")).0.starts_with("http/1.1 200"));
    assert!(served.get("/page.css", &format!("Authorization: Bearer {token}\r\n")).0.starts_with("http/1.1 200"));
}

#[test]
fn a_hundred_pages_of_which_half_never_read_hold_nobody_up() {
    let served = Served::at("127.0.0.1:0");
    served.give(0..50, 1.0);
    let mut reading: Vec<_> = (0..50).map(|_| served.listen()).collect();
    let silent: Vec<_> = (0..50).map(|_| served.listen()).collect();
    reading.iter_mut().for_each(|stream| assert_eq!(next_number(stream), 49));
    while served.hub.pages() < 100 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (told, threads): (Vec<_>, Vec<_>) = reading
        .into_iter()
        .map(|mut stream| {
            let (told, seen) = std::sync::mpsc::channel();
            let read = move || {
                let mut numbers = vec![];
                while numbers.last() != Some(&1049) {
                    numbers.push(next_number(&mut stream));
                    let _ = told.send(());
                }
                numbers
            };
            (seen, std::thread::spawn(read))
        })
        .unzip();
    for number in 50..1050 {
        served.hub.give(&made_up::moment(number, 1.0));
        // As moments come: no faster than pages that read can follow. Nothing waits for those that do not.
        if number % 16 == 0 {
            told.iter().for_each(|seen| assert!(seen.recv_timeout(Duration::from_secs(60)).is_ok()));
            told.iter().for_each(|seen| while seen.try_recv().is_ok() {});
        }
    }
    for thread in threads {
        let numbers = thread.join().unwrap();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(numbers.len() > 500, "a page that reads got {} of 1000", numbers.len());
    }
    // Those that did not read have missed some, and find out by the numbers.
    let mut late = silent.into_iter().next().unwrap();
    let mut numbers = vec![next_number(&mut late)];
    while numbers.len() < 900 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1) {
        served.hub.give(&made_up::moment(2000 + numbers.len() as u64, 1.0));
        numbers.push(next_number(&mut late));
    }
    assert!(numbers.windows(2).any(|pair| pair[1] > pair[0] + 1), "{numbers:?}");
    drop(late);
}

#[test]
fn ten_thousand_malformed_requests_harm_nothing() {
    let served = Served::at("127.0.0.1:0");
    served.give(0..3, 1.0);
    let long = "x".repeat(100_000);
    let requests = [
        "\r\n\r\n".to_owned(),
        "GET\r\n\r\n".into(),
        "GET / HTTP/9.9\r\n\r\n".into(),
        format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost: \u{1}\u{2}\r\n\r\n".into(),
        "GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n".into(),
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n".into(),
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0".into(),
        "GET /events?token=%00%ff HTTP/1.1\r\n".into(),
    ];
    for _ in 0..1000 {
        for request in &requests {
            let mut stream = served.connect();
            // A server that has heard enough may close while we still talk.
            let _ = stream.write_all(request.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = vec![];
            let _ = stream.take(1 << 16).read_to_end(&mut answer);
        }
    }
    assert_eq!(next_number(&mut served.listen()), 2);
}

/// What is wrong with the page as it is now: what is wider than the screen, and plots without a drop of ink.
const LOOK: &str = r#"(() => {
  const wrong = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) wrong.push(`the page is ${wide}px wider than the screen`);
  for (const panel of document.querySelectorAll(".panel")) {
    const box = panel.getBoundingClientRect();
    if (box.width < 100 || box.height < 40 || box.right > innerWidth + 1) wrong.push(`${panel.dataset.panel}: ${JSON.stringify(box)}`);
  }
  for (const canvas of document.querySelectorAll("canvas")) {
    if (canvas.hidden) continue;
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, colours = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) colours.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
    if (colours.size < 3 || canvas.dataset.drawn !== "yes") wrong.push(`${canvas.dataset.plot} is not drawn`);
  }
  return wrong;
})()"#;

#[test]
fn the_page_is_whole_on_a_phone_and_on_a_desk_and_finds_the_monitor_again() {
    let Some(mut browser) = Browser::start("page") else { return };
    let served = Served::at("127.0.0.1:0");
    served.give(0..3700, 1.0);
    browser.size(1280, 900);
    browser.dark(false);
    browser.open(&served.url);
    browser.wait_for("document.documentElement.dataset.ready === ''");
    served.give(3700..3704, 1.0);
    browser.wait_for("document.getElementById('state').dataset.state === 'live'");
    let plots =
        browser.value("[...document.querySelectorAll('canvas')].filter(c => !c.hidden).map(c => c.dataset.plot)");
    for wanted in [
        "timeline",
        "latency",
        "flops",
        "bandwidth",
        "operations",
        "memory",
        "load",
        "clock",
        "machine.temperature_cpu",
    ] {
        assert!(plots.as_array().unwrap().iter().any(|plot| plot == wanted), "{wanted} is not among {plots}");
    }
    let said = browser.value("document.getElementById('readings').textContent");
    assert!(said.as_str().unwrap().contains("only macOS on Apple silicon tells it"), "{said}");
    for (name, width, height, dark) in [
        ("desk", 1280, 900, false),
        ("desk-dark", 1280, 900, true),
        ("phone", 390, 844, false),
        ("phone-dark", 390, 844, true),
    ] {
        browser.size(width, height);
        browser.dark(dark);
        browser.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))");
        assert_eq!(browser.value(LOOK), serde_json::json!([]), "{name}");
        browser.picture(name, true);
    }
    browser.size(1280, 900);
    browser.dark(false);
    // An hour back, with the values of that time.
    browser.value("document.querySelector('[data-span=\"3600\"]').click()");
    browser.wait_for("document.querySelector('[data-span=\"3600\"]').getAttribute('aria-pressed') === 'true'");
    browser.picture("hour", false);
    browser.value("document.querySelector('[data-span=\"60\"]').click()");
    browser.value("document.dispatchEvent(new KeyboardEvent('keydown', { key: ' ' }))");
    browser.wait_for("document.getElementById('pause').textContent === 'Go on'");
    let before = browser.value("document.getElementById('shown').textContent");
    browser.value(
        "for (let i = 0; i < 400; i++) document.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft' }))",
    );
    browser.wait_for(&format!("document.getElementById('shown').textContent !== {before}"));
    assert_eq!(browser.value(LOOK), serde_json::json!([]), "an hour back");
    // The pointer reads values.
    browser.value("document.getElementById('pause').click()");
    let [x, y] = ["left + 500", "top + 100"].map(|at| {
        browser.value(&format!("document.querySelector('[data-plot=latency]').getBoundingClientRect().{at}"))
    });
    browser.ask("Input.dispatchMouseEvent", serde_json::json!({"type": "mouseMoved", "x": x, "y": y}));
    browser.wait_for("document.querySelector('[data-keys=latency]').textContent.includes('µs')");
    browser.picture("hover", false);
    assert_eq!(browser.complaints, Vec::<String>::new());

    // The monitor ends and comes back at the same address; the page says so, and goes on with what it had.
    let port = format!("127.0.0.1:{}", served.port());
    drop(served);
    browser.wait_for("document.getElementById('state').dataset.state === 'reconnecting'");
    browser.picture("away", false);
    let served = Served::at(&port);
    served.give(3710..3720, 1.0);
    browser.wait_for("document.getElementById('state').dataset.state === 'live'");
    browser.wait_for("document.getElementById('banner').hidden");
    assert_eq!(browser.value(LOOK), serde_json::json!([]), "after a restart");
    // While it was away the browser could not load what it asked for, and nothing else went wrong.
    browser.complaints.retain(|said| !said.contains("ERR_"));
    assert_eq!(browser.complaints, Vec::<String>::new());
    served.hub.end("the program that was watched has ended");
    browser.wait_for("document.getElementById('state').dataset.state === 'ended'");
}

#[test]
fn what_is_hostile_or_unknown_is_shown_as_text_and_with_its_reason() {
    let Some(mut browser) = Browser::start("hostile") else { return };
    let served = Served::at("127.0.0.1:0");
    let nasty = "<img src=x onerror=alert(1)>\u{202e}\u{1b}[2J</script>";
    let mut moment = made_up::moment(0, 1.0);
    let unknown = schwann::Figure::unavailable("s", nasty, nasty);
    moment.latency.p50 = unknown.clone();
    moment.latency.p99 = unknown.clone();
    moment.work.flops = unknown.clone();
    moment.memory.rss = unknown.clone();
    moment.operations[0].name = nasty.into();
    moment.machine.insert(format!("{nasty}_power"), unknown);
    moment.machine.retain(|name, _| !name.starts_with("cpu"));
    moment.alerts = vec![nasty.into()];
    served.hub.give(&moment);
    moment.operations.clear();
    moment.operations_reason = Some(nasty.into());
    (moment.number, moment.at_s) = (1, 2.0);
    browser.size(390, 844);
    browser.open(&served.url);
    browser.wait_for("document.documentElement.dataset.ready === ''");
    served.hub.give(&moment);
    browser.wait_for("document.querySelector('[data-panel=operations] .why') !== null");
    assert_eq!(browser.value("document.images.length"), 0);
    let said = browser.value("document.body.textContent");
    let said = said.as_str().unwrap();
    assert!(said.contains("<img src=x") && said.contains("\\u202e\\u001b[2J"), "{said}");
    assert!(!said.contains(['\u{202e}', '\u{1b}']), "{said}");
    let wide = browser.value("document.documentElement.scrollWidth - innerWidth");
    assert_eq!(wide, 0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}
