//! Where this program keeps what it learns: calibrations, baselines, reports.

use std::path::PathBuf;

/// The directory for data: `$SCHWANN_DATA`, else `schwann` in the system's usual place; `None` where nothing says where
/// the user's home is.
pub fn data_dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(own) = set("SCHWANN_DATA") {
        return Some(own);
    }
    if cfg!(target_os = "macos") {
        return set("HOME").map(|home| home.join("Library/Application Support/schwann"));
    }
    if cfg!(windows) {
        return set("LOCALAPPDATA").map(|local| local.join("schwann"));
    }
    // A path that is not absolute is to be ignored, says the standard.
    let data = set("XDG_DATA_HOME").filter(|p| p.is_absolute());
    data.or_else(|| set("HOME").map(|home| home.join(".local/share"))).map(|data| data.join("schwann"))
}
