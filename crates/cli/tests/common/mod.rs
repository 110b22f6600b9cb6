//! What tests of the program share: a folder of its own, and the program run in it.

use std::path::PathBuf;
use std::process::Command;

/// A folder for data, settings and results, which goes away with the test.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    /// An empty folder.
    pub(crate) fn new(name: &str) -> Place {
        let folder = std::env::temp_dir().join(format!("schwann-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Place(folder)
    }

    /// The program in this folder, with nothing of the user's own.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_schwann"));
        command.current_dir(&self.0).env("SCHWANN_DATA", self.0.join("data"));
        command.env("XDG_CONFIG_HOME", self.0.join("settings")).env_remove("SCHWANN_CONFIG");
        command.env_remove("SCHWANN_DEVICES").args(args);
        command
    }

    /// Runs, wants this exit code, and gives what was printed and what was said beside it.
    pub(crate) fn run(&self, code: i32, args: &[&str]) -> (String, String) {
        let out = self.command(args).output().unwrap();
        let said = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}{}", said.0, said.1);
        said
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
