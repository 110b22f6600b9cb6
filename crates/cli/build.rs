//! Which commit this is built from, so that a profile can say which program made it. Built without git, from a package, or
//! inside another project's checkout, it is not known, and nothing is claimed. `SCHWANN_COMMIT` says otherwise.

use std::path::Path;
use std::process::Command;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let commit = match std::env::var("SCHWANN_COMMIT") {
        Ok(given) => Some(given).filter(|g| !g.is_empty() && g.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')),
        Err(_) => commit(&root),
    };
    println!("cargo:rerun-if-env-changed=SCHWANN_COMMIT");
    // What the program is built from: any change makes the tree dirty or the commit another one.
    for of in ["crates", "src", "Cargo.toml", "Cargo.lock", ".git/HEAD", ".git/logs/HEAD", ".git/index"] {
        let path = root.join(of);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    if let Some(commit) = &commit {
        println!("cargo:rustc-env=SCHWANN_COMMIT={commit}");
    }
    let short: String = commit.as_deref().unwrap_or("commit unknown").chars().take(14).collect();
    let short = match &commit {
        Some(c) => format!("{}{}", &c[..c.len().min(10)], if c.ends_with("-dirty") { "-dirty" } else { "" }),
        None => short,
    };
    println!("cargo:rustc-env=SCHWANN_VERSION={} ({short})", env!("CARGO_PKG_VERSION"));
}

/// The commit of the checkout that these sources are, with `-dirty` where they were changed since.
fn commit(root: &Path) -> Option<String> {
    let git = |args: &[&str]| {
        let out = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    // These sources may lie inside another project's checkout, whose commit says nothing of them.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let head = git(&["rev-parse", "HEAD"]).filter(|h| h.len() >= 40 && h.chars().all(|c| c.is_ascii_hexdigit()))?;
    // Documents make no other program.
    let changed = git(&["status", "--porcelain", "--", "crates", "src", "Cargo.toml", "Cargo.lock"])?;
    Some(if changed.is_empty() { head } else { format!("{head}-dirty") })
}
