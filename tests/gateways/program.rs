//! Real programs: found, started in a directory of their own, ended with their test and nothing else with them.

use std::env;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::free_ports_in_a_row;
use crate::server::wait_until;

const READY_WITHIN: Duration = Duration::from_secs(30);

/// The program called `name`, on the path or where `tests/gateways/install` puts what no package has. `None`:
/// it is not here, and the test says so and ends; where programs must be here it fails.
pub fn find(name: &str) -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/gateways/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    // Servers live beside what a user's path names.
    let system = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut folders = env::split_paths(&path).chain(system).chain([installed]);
    let found =
        folders.find_map(|folder| Some(folder.join(name)).filter(|candidate| candidate.is_file()));
    if found.is_none() {
        skip(name);
    }
    found
}

/// Says that a test cannot run for want of `what`; a failure where it must.
pub fn skip(what: &str) {
    assert!(
        env::var_os("HIGHWATER_GATEWAYS").is_none_or(|wanted| wanted != "1"),
        "HIGHWATER_GATEWAYS=1, and there is no {what}: run tests/gateways/install"
    );
    println!("skipped: there is no {what}");
}

/// A port that nobody uses.
pub fn free_port() -> u16 {
    free_ports_in_a_row(1).start
}

/// A running program.
pub struct Program {
    child: Child,
    directory: TempDir,
}

impl Program {
    /// Starts `command` in `directory` and waits until it accepts connections at `port`.
    pub fn start(mut command: Command, directory: TempDir, port: u16) -> Self {
        let log = fs::File::create(directory.path().join("log")).expect("a log");
        let child = command
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let mut program = Self { child, directory };
        wait_until("the gateway accepts connections", READY_WITHIN, || {
            let ended = program.child.try_wait().expect("the child is ours");
            assert!(ended.is_none(), "it ended ({ended:?}):\n{}", program.log());
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        program
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // In order first: some have children of their own, which end with them then.
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid
            && matches!(self.child.try_wait(), Ok(None))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        for _ in 0..400 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("the program's log:\n{}", self.log());
        }
    }
}

/// The recipe at `ops/gateways/{path}` with its addresses replaced.
pub fn recipe(path: &str, addresses: &Addresses) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("ops/gateways")
        .join(path);
    let text = fs::read_to_string(&file).expect("a recipe");
    assert!(
        text.contains("7110") || text.contains("7113"),
        "{path} names Highwater's port"
    );
    assert!(
        text.contains("8000") && text.contains("8080"),
        "{path} names both other ports"
    );
    let mut replaced = text;
    for (written, port) in [
        ("7110", addresses.highwater),
        ("7113", addresses.highwater_grpc),
        ("8000", addresses.application),
        ("8080", addresses.edge),
    ] {
        replaced = replaced.replace(written, &port.to_string());
    }
    replaced
}

/// The ports of one test.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Highwater's check listener.
    pub highwater: u16,
    /// Highwater's gRPC listener.
    pub highwater_grpc: u16,
    /// The application behind the gateway.
    pub application: u16,
    /// The gateway itself.
    pub edge: u16,
}
