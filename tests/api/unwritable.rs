//! RST-1 (c): a data directory that cannot be used is refused with a clear word and left as it is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::process::Output;

use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;
use crate::server::Stop;

const NOBODY: u32 = 65_534;

/// RST-1 (c).
#[test]
fn an_unwritable_directory_is_refused_and_its_files_stay_as_they_are() {
    let mut server = used_three_times();
    server.stop(Stop::Terminate);
    let before = contents(&server.data_dir());
    assert!(!before.is_empty());
    let files: Vec<_> = before
        .keys()
        .map(|name| server.data_dir().join(name))
        .collect();
    for file in &files {
        set_mode(file, 0o444);
    }
    set_mode(&server.data_dir(), 0o555);
    set_mode(server.directory(), 0o755);
    let output = as_ordinary_user(&server, server.command())
        .output()
        .expect("the server runs");
    set_mode(&server.data_dir(), 0o755);
    for file in &files {
        set_mode(file, 0o644);
    }
    refused(&output, &server.data_dir());
    assert_eq!(
        contents(&server.data_dir()),
        before,
        "not a byte has changed"
    );
    server.start_again();
    assert_eq!(Counter::new(&server, "t", "fixed").used(), 3);
}

/// A directory that another process uses is refused, and the other process does not notice.
#[test]
fn a_directory_in_use_is_refused() {
    let server = used_three_times();
    let output = server.command().output().expect("the server runs");
    refused(&output, &server.data_dir());
    assert_eq!(Counter::new(&server, "t", "fixed").take(1).used(), 4);
}

/// A path that is a file, and a directory whose files are something else.
#[test]
fn a_directory_with_something_else_in_it_is_refused() {
    let mut server = used_three_times();
    server.stop(Stop::Terminate);
    let names: Vec<String> = contents(&server.data_dir()).into_keys().collect();
    fs::remove_dir_all(server.data_dir()).expect("removed");

    fs::write(server.data_dir(), "a file of somebody else").expect("written");
    refused(
        &server.command().output().expect("the server runs"),
        &server.data_dir(),
    );
    assert_eq!(
        fs::read(server.data_dir()).expect("still there"),
        b"a file of somebody else"
    );
    fs::remove_file(server.data_dir()).expect("removed");

    fs::create_dir(server.data_dir()).expect("made");
    for name in &names {
        fs::write(
            server.data_dir().join(name),
            format!("not a database: {}", "x".repeat(8192)),
        )
        .expect("written");
    }
    let before = contents(&server.data_dir());
    refused(
        &server.command().output().expect("the server runs"),
        &server.data_dir(),
    );
    let after = contents(&server.data_dir());
    for (name, content) in before {
        assert_eq!(after.get(&name), Some(&content), "{name} is as it was");
    }
}

/// The data of another region is not taken for one's own.
#[test]
fn the_directory_of_another_region_is_refused() {
    let mut server = used_three_times();
    server.stop(Stop::Terminate);
    let config = server.directory().join("region.toml");
    drop(server.command());
    let other = fs::read_to_string(&config)
        .expect("read")
        .replace("us-east-1", "eu-west-1");
    let other_config = server.directory().join("other.toml");
    fs::write(&other_config, other).expect("written");
    let mut command = crate::server::highwater();
    let output = command
        .arg("serve")
        .arg("--config")
        .arg(&other_config)
        .output()
        .expect("the server runs");
    refused(&output, &server.data_dir());
    server.start_again();
    assert_eq!(Counter::new(&server, "t", "fixed").used(), 3);
}

fn used_three_times() -> Server {
    let server = Server::starting_soon();
    server.limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "1h", "durability": "sync" } }));
    assert_eq!(Counter::new(&server, "t", "fixed").passes(3), 3);
    server
}

/// Exit status 2, nothing on stdout, and a message that names the directory.
fn refused(output: &Output, directory: &Path) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        output.stdout.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(
        error.contains(&*directory.to_string_lossy()),
        "names the directory: {error}"
    );
    assert!(!error.contains("panicked"), "{error}");
}

/// File modes bind no superuser, so where the tests run as one, the server runs as nobody and from a copy of
/// its binary that nobody may read.
fn as_ordinary_user(server: &Server, command: Command) -> Command {
    if !rustix::process::geteuid().is_root() {
        return command;
    }
    let copy = server.directory().join("highwater");
    fs::copy(command.get_program(), &copy).expect("the binary is copied");
    set_mode(&copy, 0o755);
    let mut ordinary = Command::new(copy);
    ordinary.args(command.get_args()).uid(NOBODY).gid(NOBODY);
    ordinary
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the mode is set");
}

/// Every file of the directory by its name, except the shared-memory index that SQLite makes anew.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(directory)
        .expect("the directory is read")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            (name, fs::read(path).expect("the file is read"))
        })
        .filter(|(name, _)| !name.ends_with("-shm"))
        .collect()
}
