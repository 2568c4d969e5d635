//! The command as a user runs it.

use std::path::Path;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

/// Drills measure time: they run one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits for its turn.
pub fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `highwater`, without what is set for the test.
pub fn highwater() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HIGHWATER_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// `highwater drill` with these arguments, run to its end.
pub fn drill(arguments: &[&str]) -> Output {
    highwater()
        .arg("drill")
        .args(arguments)
        .output()
        .expect("the command runs")
}

/// What was written to standard output.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What was written to standard error.
pub fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A scenario in a file.
pub fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}
