//! Linux: `/proc`, `/sys` and perf events. Every file is read below a [`Root`], so that a tree of recorded files, or an
//! empty one, can stand in for the machine.

pub mod cpu;
pub mod perf;
pub mod pressure;
pub mod process;
pub mod rapl;
pub mod thermal;

use crate::Source;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// All that is read of one file: the longest, `/proc/stat` of a large machine, stays far below it.
const FILE_LIMIT: u64 = 4 << 20;

/// The directory that `/proc` and `/sys` are looked for in.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// This machine's.
    pub fn system() -> Root {
        Root("/".into())
    }

    /// A directory with a copy of some of these files.
    pub fn at(path: &Path) -> Root {
        Root(path.into())
    }

    fn is_system(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// A file's text, or why it could not be read. `path` is without the leading slash.
    fn text(&self, path: &str) -> Result<String, String> {
        let mut text = String::new();
        let read = std::fs::File::open(self.0.join(path)).and_then(|f| f.take(FILE_LIMIT).read_to_string(&mut text));
        match read {
            Ok(_) => Ok(text),
            Err(e) => Err(match e.kind() {
                ErrorKind::NotFound => format!("/{path} is not there"),
                ErrorKind::PermissionDenied => format!("/{path} may not be read by this user"),
                _ => format!("/{path}: {e}"),
            }),
        }
    }

    /// A file of one number.
    fn number(&self, path: &str) -> Result<f64, String> {
        let text = self.text(path)?;
        let number = text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
        number.ok_or_else(|| {
            format!("/{path} holds `{}`, not a number", text.trim().chars().take(40).collect::<String>())
        })
    }

    /// A file's first line, if it can be read and holds anything.
    fn word(&self, path: &str) -> Option<String> {
        let text = self.text(path).ok()?;
        Some(text.lines().next()?.trim().to_string()).filter(|w| !w.is_empty())
    }

    /// Names in a directory, in order; none where it cannot be listed.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort_by_key(|n| (n.len(), n.clone()));
        names
    }
}

/// The sources that are files below a directory.
pub fn sources(root: &Path) -> Vec<Box<dyn Source>> {
    let root = Root::at(root);
    vec![
        Box::new(process::source(root.clone())),
        Box::new(cpu::Cpu::new(root.clone())),
        Box::new(thermal::Thermal::new(root.clone())),
        Box::new(rapl::Rapl::new(root.clone())),
        Box::new(pressure::Pressure::new(root)),
    ]
}

/// A name in small letters, digits and underscores.
fn plain(label: &str) -> String {
    let letters = label.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
    let mut name = String::new();
    for c in letters {
        if c != '_' || !name.ends_with('_') {
            name.push(c);
        }
    }
    name.trim_matches('_').to_string()
}

/// A directory of files for a test, removed afterwards.
#[cfg(test)]
pub(crate) struct Tree(PathBuf);

#[cfg(test)]
impl Tree {
    pub(crate) fn new(files: &[(&str, &str)]) -> Tree {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("schwann-sensors-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let tree = Tree(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&tree.0).unwrap();
        for (path, text) in files {
            tree.write(path, text);
        }
        tree
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn root(&self) -> Root {
        Root::at(&self.0)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CATALOGUE, System};

    #[test]
    fn with_nothing_below_the_root_every_reading_is_unavailable_with_a_reason() {
        let tree = Tree::new(&[]);
        let mut system = System::from_sources(sources(tree.path()));
        let sample = system.sample();
        assert!(CATALOGUE.iter().all(|e| sample.readings.contains_key(e.name)));
        for (name, figure) in &sample.readings {
            assert_eq!(figure.value, None, "{name} has a value from nowhere: {figure:?}");
            assert!(figure.reason.as_ref().is_some_and(|r| r.len() > 10), "{name} has no reason");
        }
        assert_eq!(sample.problem(), None);
        assert!(system.describe().iter().all(|a| a.reason.is_some()));
    }

    #[test]
    fn names_of_sensors_become_plain() {
        assert_eq!(plain("Package id 0"), "package_id_0");
        assert_eq!(plain("  T-ctl °C "), "t_ctl_c");
        assert_eq!(plain("///"), "");
    }
}
