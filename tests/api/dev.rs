//! `highwater dev`: regions that are one cluster when it says so, and lines that work as printed.

use std::io::BufRead;
use std::io::BufReader;
use std::net::TcpListener;
use std::process::Child;
use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;

use crate::calls::RUNTIME;
use crate::calls::new_client;
use crate::calls::send;
use crate::commands::alone;
use crate::commands::ended;
use crate::ports::free_ports_in_a_row;
use crate::server::ADMIN_TOKEN;
use crate::server::highwater;
use crate::server::wait_until;

/// A `dev` that runs; ends with the test.
struct Dev {
    child: Child,
    said: Vec<String>,
}

impl Drop for Dev {
    fn drop(&mut self) {
        // Its regions end with it. Both fail only when it has ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Dev {
    fn start(arguments: &[&str]) -> Self {
        let mut command = highwater();
        command
            .arg("dev")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("dev starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let mut dev = Self {
            child,
            said: Vec::new(),
        };
        for line in stdout.lines() {
            let line = line.expect("text");
            let is_last = line.starts_with("Ctrl-C");
            dev.said.push(line);
            if is_last {
                return dev;
            }
        }
        panic!("dev ended before it was ready: {:?}", dev.said);
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }
}

/// A base port all of whose regions' ports are free; region `n` of `dev` has the ten from base + 10 n on.
fn free_base_port(regions: u16) -> u16 {
    free_ports_in_a_row(10 * regions).start - 10
}

/// The words of a line as a shell reads them, with single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (index, part) in line.split('\'').enumerate() {
        let last = words.last_mut().expect("at least one");
        if index % 2 == 1 {
            last.push_str(part);
            continue;
        }
        let mut pieces = part.split(' ');
        last.push_str(pieces.next().unwrap_or_default());
        words.extend(pieces.map(str::to_owned));
    }
    words
}

/// Method, URL, headers and body of a line for curl.
fn curl(line: &str) -> (Method, String, Vec<(String, String)>, Value) {
    let words = words(line);
    let after = |flag: &str| {
        words
            .iter()
            .zip(&words[1..])
            .find(|(word, _)| *word == flag)
            .map(|(_, next)| next)
    };
    let body = after("-d").map_or(Value::Null, |body| {
        serde_json::from_str(body).expect("JSON")
    });
    let method = match after("-X") {
        Some(method) => method.parse().expect("a method"),
        None if body.is_null() => Method::GET,
        None => Method::POST,
    };
    let header = after("-H").and_then(|header| header.split_once(": "));
    let headers = header
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .collect();
    let url = words
        .iter()
        .find(|word| word.starts_with("http://"))
        .expect("a URL");
    (method, url.clone(), headers, body)
}

#[test]
fn dev_runs_regions_whose_lines_work_as_printed() {
    let base = free_base_port(2);
    let mut dev = Dev::start(&["--regions", "2", "--base-port", &base.to_string()]);
    let lines: Vec<&String> = dev
        .said
        .iter()
        .filter(|line| line.starts_with("curl "))
        .collect();
    assert_eq!(lines.len(), 3, "{:?}", dev.said);
    let client = new_client();
    for line in lines {
        let (method, url, headers, body) = curl(line);
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let answer = RUNTIME
            .block_on(send(&client, method, &url, &headers, &body))
            .expect("answers");
        assert_eq!(answer.status, 200, "{line}: {answer:?}");
    }
    let second = format!("http://127.0.0.1:{}", base + 21);
    let check = highwater()
        .args([
            "check",
            "demo",
            "regional-api",
            "alice",
            "--server",
            &second,
        ])
        .env("HIGHWATER_TOKEN", ADMIN_TOKEN)
        .output()
        .expect("runs");
    let (out, error, status) = ended(&check);
    assert_eq!(status, Some(0), "{error}");
    assert!(out.starts_with("allow in eu-west-1\n"), "{out}");

    let on = |arguments: &[&str]| {
        let mut command = highwater();
        command.args(arguments).args(["--server", &second]);
        let output = command.env("HIGHWATER_TOKEN", ADMIN_TOKEN).output();
        let (out, error, status) = ended(&output.expect("runs"));
        assert_eq!(status, Some(0), "{arguments:?}: {out}{error}");
        out
    };
    let status = on(&["status"]);
    let roles: Vec<&str> = status
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .filter(|word| ["leader", "voter"].contains(word))
        .collect();
    assert_eq!(roles.len(), 2, "{status}");
    let ledger = on(&["ledger", "demo", "billing-exports", "alice"]);
    assert!(ledger.contains("\neu-west-1  "), "{ledger}");
    let limits = on(&["limits", "list", "demo"]);
    assert!(
        limits.contains("hourly"),
        "made in the other region: {limits}"
    );

    let (_, error, status) = ended(&alone(&[
        "dev",
        "--regions",
        "1",
        "--base-port",
        &base.to_string(),
    ]));
    assert_eq!(status, Some(2));
    assert!(
        error.contains(&format!("port {}", base + 10)) && error.contains("--base-port"),
        "{error}"
    );

    rustix::process::kill_process(dev.pid(), rustix::process::Signal::TERM)
        .expect("the child is ours");
    wait_until("dev has ended", Duration::from_secs(30), || {
        dev.child.try_wait().expect("ours").is_some()
    });
    let status = dev.child.wait().expect("ours");
    assert!(status.success(), "{status}");
    assert!(
        TcpListener::bind(("127.0.0.1", base + 10)).is_ok(),
        "its regions have ended too"
    );
}

#[test]
fn the_regions_of_a_killed_dev_end_by_themselves() {
    let base = free_base_port(1);
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().to_str().expect("a readable path");
    let mut dev = Dev::start(&[
        "--regions",
        "1",
        "--base-port",
        &base.to_string(),
        "--data-dir",
        data,
    ]);
    dev.child.kill().expect("ours");
    dev.child.wait().expect("ours");
    wait_until("the region has ended", Duration::from_secs(30), || {
        TcpListener::bind(("127.0.0.1", base + 10)).is_ok()
    });
}
