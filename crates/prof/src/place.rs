//! Where this program keeps what it learns (calibrations, baselines, reports) and reads what it is told (its settings).

use etcetera::BaseStrategy;
use std::path::PathBuf;

fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// The directory for data: `$SCHWANN_DATA`, else `schwann` in the system's usual place; `None` where nothing says where
/// the user's home is.
pub fn data_dir() -> Option<PathBuf> {
    let usual = || Some(etcetera::base_strategy::choose_native_strategy().ok()?.data_dir().join("schwann"));
    // On Windows what a machine learned of itself does not roam to others.
    let local = || set("LOCALAPPDATA").filter(|_| cfg!(windows)).map(|local| local.join("schwann"));
    set("SCHWANN_DATA").or_else(local).or_else(usual)
}

/// The file of the user's settings: `$SCHWANN_CONFIG`, else `schwann/config.toml` in `~/.config` (`$XDG_CONFIG_HOME`).
pub fn config_file() -> Option<PathBuf> {
    let usual = || Some(etcetera::choose_base_strategy().ok()?.config_dir().join("schwann/config.toml"));
    set("SCHWANN_CONFIG").or_else(usual)
}
