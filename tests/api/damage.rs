//! A store that answers garbage: pages of one of the files are overwritten while the server is down.
//!
//! Whatever page it is, the next start is refused with a clear word that names the file, or it serves and tells exactly
//! what was used. No start invents, loses or gives away anything, and none panics.

use std::fs;
use std::io::BufRead;
use std::io::BufReader;
use std::path::Path;
use std::process::Output;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;
use crate::server::Stop;
use crate::server::wait_until;

const PAGE_BYTES: usize = 4096;
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// A server that was used, and its files as it left them.
fn used() -> (Server, tempfile::TempDir) {
    let mut server = Server::starting_soon();
    server.limits(&json!({
        "counted": { "algorithm": "fixed_window", "quota": 10, "window": "1h", "durability": "sync", "on_unavailable": "closed" },
        "paid": { "algorithm": "fixed_window", "quota": 10, "window": "1h", "mode": "strict" },
        "log": { "algorithm": "sliding_log", "quota": 10, "window": "1h", "mode": "strict" },
    }));
    for limit in ["counted", "paid", "log"] {
        let counter = Counter::new(&server, "t", limit);
        assert_eq!(counter.passes_once_decided(3), 3, "{limit}");
    }
    server.stop(Stop::Terminate);
    let kept = tempfile::tempdir().expect("a directory");
    copy(&server.data_dir(), kept.path());
    (server, kept)
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a file is copied");
    }
}

/// Overwrites one page with what no database has.
fn damage(file: &Path, page: usize) {
    let mut bytes = fs::read(file).expect("the file");
    bytes[page * PAGE_BYTES..(page + 1) * PAGE_BYTES].fill(0xa5);
    fs::write(file, bytes).expect("the file is written");
}

/// Tries a start by hand; what a process that ended said, or nothing when it serves, and then it is ended.
fn refusal(server: &Server) -> Option<Output> {
    let mut child = server
        .command()
        .arg("--stop-with-stdin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let stdout = child.stdout.take().expect("a pipe");
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).ok();
        tell.send(line).ok();
    });
    let line = told.recv_timeout(STARTS_WITHIN).expect("it serves or ends");
    if line.starts_with("ready ") {
        child.kill().expect("the child is ours");
        child.wait().expect("the child is ours");
        return None;
    }
    Some(child.wait_with_output().expect("it ends"))
}

/// Each page of a file damaged in turn; every start after it is refused or serves as if nothing had happened.
fn damage_each_page_of(name: &str) {
    let (mut server, kept) = used();
    let file = server.data_dir().join(name);
    let length = fs::metadata(&file).expect("the file").len();
    let pages = usize::try_from(length).expect("small") / PAGE_BYTES;
    let mut refused = 0;
    for page in 0..pages {
        fs::remove_dir_all(server.data_dir()).expect("removed");
        fs::create_dir(server.data_dir()).expect("made");
        copy(kept.path(), &server.data_dir());
        damage(&file, page);
        if let Some(output) = refusal(&server) {
            let error = String::from_utf8_lossy(&output.stderr);
            let last = error.lines().last().unwrap_or_default();
            println!("page {page} of {pages}: {last}");
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(last.contains(name), "names the file: {error}");
            assert!(!error.contains("panicked"), "{error}");
            refused += 1;
            continue;
        }
        println!("page {page} of {pages} holds nothing that a start needs");
        server.start_again();
        for limit in ["counted", "paid", "log"] {
            let counter = told_three(&server, limit);
            assert_eq!(counter.passes_once_decided(8), 7, "{limit}, page {page}");
        }
        server.stop(Stop::Kill);
    }
    // Free pages and those of tables without a row are of no use to anybody.
    assert!(refused * 2 > pages, "{refused} of {pages} refused");
    // Undamaged, it is all there.
    fs::remove_dir_all(server.data_dir()).expect("removed");
    fs::create_dir(server.data_dir()).expect("made");
    copy(kept.path(), &server.data_dir());
    server.start_again();
    for limit in ["counted", "paid", "log"] {
        told_three(&server, limit);
    }
}

/// The counter of a limit of which 3 are used. Log time follows a clock that was set a few milliseconds later, so that
/// strict limits are looked at in their window only then.
fn told_three<'a>(server: &'a Server, limit: &'a str) -> Counter<'a> {
    let counter = Counter::new(server, "t", limit);
    wait_until("3 are used", STARTS_WITHIN, || counter.used() == 3);
    counter
}

/// FAIL-1, RST-1 (c).
#[test]
fn a_damaged_page_of_the_log_file_is_told_and_nothing_is_invented() {
    damage_each_page_of("log.db");
}

/// FAIL-1, RST-1 (c).
#[test]
fn a_damaged_page_of_the_counter_file_is_told_and_nothing_is_invented() {
    damage_each_page_of("counters.db");
}
