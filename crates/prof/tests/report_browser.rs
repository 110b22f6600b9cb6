//! The report in a real browser: no errors, nothing wider than the screen, every panel and plot drawn.
//!
//! Chromium is looked for in `SCHWANN_CHROMIUM` and under its usual names; without one the test says that it was
//! skipped, and fails instead where `SCHWANN_REQUIRE_CHROMIUM=1`.

use crate::sample;
use std::path::{Path, PathBuf};
use std::process::Command;

fn chromium() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("SCHWANN_CHROMIUM") {
        return Some(given.into());
    }
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
        .iter()
        .find_map(|name| folders.iter().map(|f| f.join(name)).find(|path| path.is_file()))
}

/// Looks at the page from inside and tells the page around it. The policy of a report lets no other script run, so the
/// copy that is looked at names this one too.
const PROBE: &str = r#"
const errors = [];
addEventListener("error", (e) => errors.push(`error: ${e.message}`));
addEventListener("securitypolicyviolation", (e) => errors.push(`policy: ${e.violatedDirective} ${e.blockedURI}`));
addEventListener("load", () => {
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) errors.push(`the page is ${wide}px wider than the screen`);
  const panels = [];
  for (const pick of document.querySelectorAll(".pick")) {
    pick.checked = true;
    for (const panel of document.querySelectorAll(`#model${pick.id.slice(4)} .panel`)) {
      const box = panel.getBoundingClientRect();
      const name = `${pick.id} ${panel.dataset.panel}`;
      if (box.width < 100 || box.height < 40) errors.push(`${name} is ${box.width} x ${box.height}`);
      if (box.right > innerWidth + 1) errors.push(`${name} ends at ${box.right}`);
      const drawn = [...panel.querySelectorAll("svg")].filter((s) => getComputedStyle(s).display !== "none");
      for (const svg of drawn) {
        const inside = svg.getBBox(), outside = svg.getBoundingClientRect();
        if (inside.width < 50 || inside.height < 10 || outside.width < 100) errors.push(`${name}: a plot is not drawn`);
        const view = svg.viewBox.baseVal;
        // Names that are hostile may hold signs of any width, and lose an end.
        for (const text of pick.id === "pick2" ? [] : svg.querySelectorAll("text")) {
          const b = text.getBBox();
          if (b.x < -3 || b.x + b.width > view.width + 3) errors.push(`${name}: "${text.textContent}" is cut off`);
        }
      }
      panels.push(`${name}:${drawn.length}`);
    }
  }
  const table = document.querySelector("table.sortable");
  const button = table?.querySelector("th button");
  if (!button) errors.push("tables cannot be sorted");
  button?.click();
  if (button && !table.querySelector("th[aria-sort]")) errors.push("sorting does nothing");
  const figure = document.querySelector(".f");
  figure.click();
  if (!document.getElementById("origin").textContent.includes(":")) errors.push("a tap shows no origin");
  parent.postMessage({ width: innerWidth, panels, errors }, "*");
});
"#;

/// Holds the report at both widths (headless windows are never as narrow as a phone), and writes what came back where
/// `--dump-dom` shows it.
const AROUND: &str = r#"<!DOCTYPE html><title>both</title><script>
const seen = [];
addEventListener("message", (e) => {
  seen.push(e.data);
  document.documentElement.dataset.seen = JSON.stringify(seen);
});
</script><iframe src="report.html" width="1280" height="900"></iframe>
<iframe src="report.html" width="390" height="844"></iframe>"#;

fn look(chromium: &Path, html: &str) -> Vec<serde_json::Value> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("report-browser-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let probed = html.replacen("script-src 'sha256-", "script-src 'nonce-probe' 'sha256-", 1).replacen(
        "</title>",
        &format!("</title><script nonce=\"probe\">{PROBE}</script>"),
        1,
    );
    std::fs::write(folder.join("report.html"), probed).unwrap();
    std::fs::write(folder.join("both.html"), AROUND).unwrap();
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--enable-logging=stderr", "--v=0", "--virtual-time-budget=5000", "--dump-dom"])
        .args(["--hide-scrollbars", "--window-size=1400,1000"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("file://{}", folder.join("both.html").display()))
        .output()
        .unwrap();
    let (dom, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let console: Vec<&str> = log.lines().filter(|l| l.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:?}");
    let from = dom.find("data-seen=\"").unwrap_or_else(|| panic!("the page was not seen: {log}")) + 11;
    let text = dom[from..].split('"').next().unwrap().replace("&quot;", "\"").replace("&amp;", "&");
    let _ = std::fs::remove_dir_all(&folder);
    serde_json::from_str(&text).unwrap()
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
fn the_report_is_whole_on_a_phone_and_on_a_desk() {
    let Some(chromium) = chromium() else {
        assert!(std::env::var_os("SCHWANN_REQUIRE_CHROMIUM").is_none_or(|v| v != "1"), "no Chromium was found");
        eprintln!("skipped: no Chromium in SCHWANN_CHROMIUM or PATH");
        return;
    };
    let html = schwann_prof::report::html(&[sample::full(), sample::nothing(), sample::hostile()]);
    let seen = look(&chromium, &html);
    for (name, width) in [("desk", 1280), ("phone", 390)] {
        let seen = seen.iter().find(|s| s["width"] == width).unwrap_or_else(|| panic!("{name}: not seen"));
        assert_eq!(seen["errors"], serde_json::json!([]), "{name}");
        let panels: Vec<&str> = seen["panels"].as_array().unwrap().iter().filter_map(|p| p.as_str()).collect();
        assert_eq!(panels.len(), 3 * 16, "{name}: {panels:?}");
        for with_plot in ["time:2", "roofline:1", "latency:1", "memory:1", "sweep:1", "devices:1"] {
            assert!(panels.contains(&format!("pick0 {with_plot}").as_str()), "{name}: {with_plot} in {panels:?}");
        }
        assert!(panels.iter().filter(|p| p.starts_with("pick1")).all(|p| p.ends_with(":0")), "{panels:?}");
    }
}
