//! A real `highwater serve` process for one test: its configuration, its clock, its death and its rebirth.
//!
//! The process listens on ports that the system picks and keeps its data in a temporary directory. Dropping a
//! [`Server`] kills the child that it started, by its handle, and nothing else. Where a test must wait, it polls
//! a condition and fails at a deadline.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufRead;
use std::io::BufReader;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::ChildStdin;
use std::process::Command;
use std::process::ExitStatus;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use reqwest::Client;
use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;

use crate::calls::new_client;

/// The admin token of every test server.
pub const ADMIN_TOKEN: &str = "dev";
/// The region of every test server.
pub const REGION: &str = "us-east-1";
/// 2035-01-01T00:00:00Z in Unix milliseconds: a Monday, the start of a year, quarter, month, week, day and hour,
/// and far enough ahead that the manual clock only goes forward to reach it.
pub const T0: i64 = 2_051_222_400_000;

const READY_WITHIN: Duration = Duration::from_secs(20);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// How a server is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGKILL: nothing is flushed.
    Kill,
    /// SIGTERM: it drains and exits with 0.
    Terminate,
}

/// One region under test.
pub struct Server {
    directory: TempDir,
    settings: BTreeMap<String, String>,
    manual_clock: bool,
    epoch: i64,
    running: Option<Running>,
    calm: Arc<AtomicBool>,
}

struct Running {
    child: Child,
    /// The server ends when this does: also when the tests themselves are killed.
    _stdin: ChildStdin,
    check: String,
    admin: String,
    resp: Option<String>,
    grpc: Option<String>,
    client: Client,
}

impl Server {
    /// A server with a manual clock that stands at [`T0`].
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// The same with settings (`("memory.max_keys", "100")`) over those of [`Server::start`]; values are TOML.
    pub fn with(settings: &[(&str, &str)]) -> Self {
        Self::launch(settings, true, T0)
    }

    /// A server on the real clock.
    #[allow(dead_code, reason = "each test binary uses its part of the harness")]
    pub fn on_real_clock(settings: &[(&str, &str)]) -> Self {
        Self::launch(settings, false, 0)
    }

    /// A server whose time zero is the next full ten minutes of the real clock, so that a restart, which starts
    /// the manual clock at the real time again, is a step back of a few minutes and not of years.
    #[allow(dead_code, reason = "each test binary uses its part of the harness")]
    pub fn starting_soon() -> Self {
        let ten_minutes = 600_000;
        Self::launch(&[], true, (real_unix_ms() / ten_minutes + 1) * ten_minutes)
    }

    fn launch(settings: &[(&str, &str)], manual_clock: bool, epoch: i64) -> Self {
        match Self::try_launch(settings, manual_clock, epoch) {
            Ok(server) => server,
            Err(why) => panic!("{why}"),
        }
    }

    /// A server with or without a manual clock that stands at `epoch`.
    ///
    /// # Errors
    /// When it does not get ready: with its log.
    pub fn try_launch(
        settings: &[(&str, &str)],
        manual_clock: bool,
        epoch: i64,
    ) -> Result<Self, String> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut server = Self {
            settings: default_settings(directory.path()),
            directory,
            manual_clock,
            epoch,
            running: None,
            calm: Arc::default(),
        };
        for (name, value) in settings {
            server
                .settings
                .insert((*name).to_owned(), (*value).to_owned());
        }
        server.run()?;
        Ok(server)
    }

    /// The directory that holds the configuration, the data and the log.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The directory that holds the data.
    pub fn data_dir(&self) -> PathBuf {
        self.directory().join("data")
    }

    /// What the server has written to its log so far.
    pub fn log(&self) -> String {
        fs::read(self.directory().join("log"))
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// `serve` with this server's configuration, not started; the data directory is still free.
    pub fn command(&self) -> Command {
        let config = self.directory().join("region.toml");
        let lines: Vec<String> = self
            .settings
            .iter()
            .map(|(name, value)| format!("{name} = {value}\n"))
            .collect();
        fs::write(&config, lines.concat()).expect("the configuration is written");
        let mut command = highwater();
        command
            .arg("serve")
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null());
        if self.manual_clock {
            command.arg("--manual-clock");
        }
        command
    }

    fn run(&mut self) -> Result<(), String> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory().join("log"));
        let mut child = self
            .command()
            .arg("--stop-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.expect("the log is opened"))
            .spawn()
            .expect("the server starts");
        let stdin = child.stdin.take().expect("stdin is a pipe");
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let Some([Some(check), Some(admin), grpc, resp]) =
            ready_addresses(stdout, &self.settings["region"])
        else {
            let status = child.try_wait();
            child.kill().expect("the child is ours");
            child.wait().expect("the child is ours");
            return Err(format!(
                "the server was not ready ({status:?}); its log:\n{}",
                self.log()
            ));
        };
        self.running = Some(Running {
            child,
            _stdin: stdin,
            check,
            admin,
            resp: resp.map(|url| url.trim_start_matches("redis://").to_owned()),
            grpc,
            client: new_client(),
        });
        if self.manual_clock {
            self.at(0);
        }
        Ok(())
    }

    /// Until a test does something to one of the servers that share this, none of them has a reason to answer 503
    /// but that the machine is too slow for a leader's heartbeats: calls that change something are made again then.
    #[allow(dead_code, reason = "the tests of joined regions share this server")]
    pub fn share_calm(&mut self, calm: &Arc<AtomicBool>) {
        self.calm = Arc::clone(calm);
    }

    /// Whether nothing was done yet.
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// From here on a 503 may be what a test is about.
    pub fn disturb(&self) {
        self.calm.store(false, Ordering::Relaxed);
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the server runs")
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.running().child.id()
    }

    /// The check listener, `http://ADDR`.
    pub fn check_url(&self) -> &str {
        &self.running().check
    }

    /// The admin listener, `http://ADDR`.
    pub fn admin_url(&self) -> &str {
        &self.running().admin
    }

    /// The listener for Redis clients, `ADDR`.
    #[allow(dead_code, reason = "each test binary uses its part of the harness")]
    pub fn resp_address(&self) -> &str {
        let address = self.running().resp.as_deref();
        address.expect("listen.resp is set")
    }

    /// The gRPC listener, `http://ADDR`.
    #[allow(dead_code, reason = "each test binary uses its part of the harness")]
    pub fn grpc_url(&self) -> &str {
        let grpc = self.running().grpc.as_deref();
        grpc.expect("listen.grpc was set")
    }

    /// The client of this life of the server.
    pub fn client(&self) -> &Client {
        &self.running().client
    }

    /// Ends the server and tells how it ended.
    pub fn stop(&mut self, how: Stop) -> ExitStatus {
        self.disturb();
        let mut running = self.running.take().expect("the server runs");
        match how {
            Stop::Kill => running.child.kill().expect("the child is ours"),
            Stop::Terminate => terminate(&running.child),
        }
        let deadline = Instant::now() + STOPPED_WITHIN;
        loop {
            if let Some(status) = running.child.try_wait().expect("the child is ours") {
                return status;
            }
            if Instant::now() > deadline {
                running.child.kill().expect("the child is ours");
                running.child.wait().expect("the child is ours");
                panic!(
                    "the server did not end after {how:?}; its log:\n{}",
                    self.log()
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts a stopped server again on the same data; its manual clock stands at time zero or, where that would
    /// be a step back, where it stood.
    pub fn start_again(&mut self) {
        assert!(self.running.is_none(), "stopped before");
        if let Err(why) = self.run() {
            panic!("{why}");
        }
    }

    /// Whether the process has been started and not been stopped since.
    #[allow(dead_code, reason = "the tests of joined regions share this server")]
    pub const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Ends the server and starts it again on the same data.
    pub fn restart(&mut self, how: Stop) {
        let status = self.stop(how);
        if how == Stop::Terminate {
            assert!(
                status.success(),
                "a drained server exits with 0, not {status}; its log:\n{}",
                self.log()
            );
        }
        self.start_again();
    }

    /// Unix milliseconds of this server's time zero.
    pub const fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Sets the manual clock to `ms` after time zero.
    pub fn at(&self, ms: i64) {
        self.set_clock(self.epoch + ms);
    }

    /// Sets the manual clock to a Unix time.
    pub fn set_clock(&self, unix_ms: i64) {
        self.admin(
            Method::PUT,
            "/admin/v1/clock",
            &json!({ "unix_ms": unix_ms }),
        )
        .succeeded();
    }

    /// Moves the manual clock ahead.
    pub fn advance(&self, ms: i64) {
        self.admin(Method::PUT, "/admin/v1/clock", &json!({ "advance_ms": ms }))
            .succeeded();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        // Both fail only when the child has ended by itself.
        drop(running.child.kill());
        drop(running.child.wait());
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "last lines of the server's log:\n{}",
                lines[lines.len().saturating_sub(20)..].join("\n")
            );
        }
    }
}

/// The binary under test, with nothing of this process's `HIGHWATER_` environment.
pub fn highwater() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HIGHWATER_") {
            command.env_remove(name);
        }
    }
    command
}

/// Polls `condition` until it holds; fails with `what` after `within`.
pub fn wait_until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "waited {within:?} in vain for this: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// The real time.
pub fn real_unix_ms() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the year 292 million")
}

fn default_settings(directory: &Path) -> BTreeMap<String, String> {
    let data_dir = directory.join("data");
    let settings = [
        ("cluster", "\"test\"".to_owned()),
        ("region", format!("\"{REGION}\"")),
        (
            "data_dir",
            serde_json::Value::from(data_dir.to_string_lossy()).to_string(),
        ),
        ("listen.check", "\"127.0.0.1:0\"".to_owned()),
        ("listen.admin", "\"127.0.0.1:0\"".to_owned()),
        ("listen.peer", "\"127.0.0.1:0\"".to_owned()),
        ("auth.admin_token", format!("\"{ADMIN_TOKEN}\"")),
        ("faults.enabled", "true".to_owned()),
    ];
    settings
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Reads stdout up to the line `ready region=NAME check=http://ADDR admin=http://ADDR …`; none when the server
/// ends before or takes too long. Gives the addresses of check, admin, gRPC and RESP.
fn ready_addresses(stdout: std::process::ChildStdout, region: &str) -> Option<[Option<String>; 4]> {
    let (found, ready) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            // The receiver is gone once the first line was taken; later lines are only drained.
            drop(found.send(line));
        }
    });
    let line = ready.recv_timeout(READY_WITHIN).ok()?;
    let words: BTreeMap<&str, &str> = line
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .collect();
    assert!(
        line.starts_with("ready "),
        "the first line says ready: {line}"
    );
    assert_eq!(
        words.get("region"),
        Some(&region.trim_matches('"')),
        "{line}"
    );
    let names = ["check", "admin", "grpc", "resp"];
    Some(names.map(|name| words.get(name).map(|url| (*url).to_owned())))
}

fn terminate(child: &Child) {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .expect("a process id");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the child is ours");
}
