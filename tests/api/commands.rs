//! The command line against a running server: what it prints where, and how it exits.

use std::fs;
use std::process::Output;
use std::process::Stdio;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;
use crate::server::Stop;
use crate::server::highwater;

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("readable output")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("readable output")
}

fn as_json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("not JSON: {output:?}"))
}

fn two_keys() -> Server {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": { "a": { "algorithm": "fixed_window", "quota": 2, "window": "60s", "key": "user" } },
        "tenants": { "acme": {} },
    }));
    server
}

/// 0 allowed, 1 refused, 2 could not be decided; the answer on stdout.
#[test]
fn check_exits_by_the_answer() {
    let server = two_keys();
    let check = |arguments: &[&str]| server.cli(&[&["check"], arguments].concat());
    assert_eq!(code(&check(&["acme", "a", "k"])), Some(0));
    let look = check(&["acme", "a", "k", "--cost", "0", "--output", "json"]);
    assert_eq!(
        (code(&look), &as_json(&look)["results"][0]["used"]),
        (Some(0), &json!(1))
    );
    assert_eq!(
        code(&check(&["acme", "a", "k", "--cost", "2"])),
        Some(1),
        "refused"
    );
    assert_eq!(code(&check(&["acme", "a", "k"])), Some(0));
    for mistake in [
        &["acme", "nothing", "k"][..],
        &["nobody", "a", "k"],
        &["acme", "a"],
        &["acme", "a", "k", "--cost", "-1"],
    ] {
        let output = check(mistake);
        assert_eq!(code(&output), Some(2), "{mistake:?}: {output:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{output:?}"
        );
    }
    assert_eq!(Counter::keyed(&server, "acme", "a", "k").used(), 2);
}

/// `usage`, `why` and `reset` tell and change what they say.
#[test]
fn usage_why_and_reset() {
    let server = two_keys();
    let counter = Counter::keyed(&server, "acme", "a", "k");
    assert_eq!(counter.passes(3), 2);
    let usage = server.cli(&["usage", "acme", "a", "k", "--output", "json"]);
    assert_eq!(
        (code(&usage), &as_json(&usage)["results"][0]["used"]),
        (Some(0), &json!(2))
    );
    let why = server.cli(&["why", "acme", "--key", "k"]);
    assert_eq!(code(&why), Some(0), "{why:?}");
    assert!(
        stdout(&why).contains('a') && stdout(&why).contains('k'),
        "{why:?}"
    );
    assert_eq!(code(&server.cli(&["reset", "acme", "a", "k"])), Some(0));
    assert_eq!(counter.used(), 0);
    assert_eq!(
        code(&server.cli(&["reset", "acme", "nothing"])),
        Some(1),
        "the server said no"
    );
}

/// The catalogue by hand.
#[test]
fn limits_plans_tenants_and_tokens_by_hand() {
    let server = two_keys();
    let done = |arguments: &[&str]| {
        let output = server.cli(arguments);
        assert_eq!(code(&output), Some(0), "{arguments:?}: {output:?}");
        output
    };
    done(&[
        "limits", "set", "exports", "--quota", "10", "--period", "day",
    ]);
    assert_eq!(Counter::new(&server, "acme", "exports").left(), 10);
    done(&["limits", "set", "acme", "exports", "--quota", "50"]);
    assert_eq!(Counter::new(&server, "acme", "exports").left(), 50);
    assert!(stdout(&done(&["limits", "list"])).contains("exports"));
    assert!(stdout(&done(&["limits", "get", "acme", "exports"])).contains("50"));
    done(&[
        "limits",
        "set",
        "acme",
        "a",
        "--override",
        "vip",
        "--quota",
        "9",
    ]);
    assert_eq!(Counter::keyed(&server, "acme", "a", "vip").left(), 9);
    done(&["limits", "delete", "acme", "exports"]);
    assert_eq!(Counter::new(&server, "acme", "exports").left(), 10);
    let refused = server.cli(&["limits", "set", "bad", "--quota", "10", "--window", "0s"]);
    assert_eq!(code(&refused), Some(1), "{refused:?}");
    assert!(stderr(&refused).contains("window"), "{refused:?}");

    done(&["plans", "set", "pro"]);
    done(&["tenants", "set", "globex", "--plan", "pro"]);
    assert!(stdout(&done(&["tenants", "list"])).contains("globex"));
    let in_use = server.cli(&["plans", "delete", "pro"]);
    assert_eq!(code(&in_use), Some(1), "{in_use:?}");
    done(&["tenants", "delete", "globex"]);
    done(&["plans", "delete", "pro"]);

    let created = done(&["tokens", "create", "--scope", "read", "--output", "json"]);
    let token = as_json(&created);
    let (secret, id) = (
        token["token"].as_str().expect("a token"),
        token["id"].as_str().expect("an id"),
    );
    let list = || {
        server
            .admin_as(Some(secret), Method::GET, "/admin/v1/limits", &Value::Null)
            .status
    };
    assert_eq!(list(), 200);
    assert!(!stdout(&done(&["tokens", "list"])).contains(secret));
    done(&["tokens", "revoke", id]);
    assert_eq!(list(), 401);
}

/// A server that is not there, and a token that is wrong: 2 and a word on stderr.
#[test]
fn commands_that_cannot_be_run_exit_with_2() {
    let server = two_keys();
    let away = highwater()
        .args(["status", "--server", "http://127.0.0.1:9"])
        .env("HIGHWATER_TOKEN", "dev")
        .stdin(Stdio::null())
        .output()
        .expect("the command runs");
    assert_eq!(code(&away), Some(2), "{away:?}");
    let wrong = highwater()
        .args(["limits", "list", "--server", server.admin_url()])
        .env("HIGHWATER_TOKEN", "wrong")
        .output()
        .expect("the command runs");
    assert_eq!(code(&wrong), Some(2), "{wrong:?}");
    for output in [
        &away,
        &wrong,
        &server.cli(&["apply", "-f", "/no/such/file.toml"]),
    ] {
        assert!(
            !output.stderr.is_empty() && output.stdout.is_empty(),
            "{output:?}"
        );
        assert_eq!(code(output), Some(2), "{output:?}");
    }
    assert_eq!(code(&server.cli(&["status"])), Some(0));
    assert_eq!(code(&server.cli(&["audit"])), Some(0));
    let openapi = server.cli(&["openapi"]);
    assert!(as_json(&openapi)["paths"].is_object());
}

/// A backup of the running region, put into an empty directory, has all that was acknowledged before it.
#[test]
fn a_backup_can_be_started_from() {
    let mut server = Server::starting_soon();
    server.limits(&json!({
        "sync": { "algorithm": "fixed_window", "quota": 100, "window": "1h", "durability": "sync" },
        "async": { "algorithm": "fixed_window", "quota": 100, "window": "1h" },
    }));
    assert!(Counter::new(&server, "t", "sync").take(7).allowed());
    assert!(Counter::new(&server, "t", "async").take(9).allowed());
    let first = Counter::new(&server, "t", "sync").take_once("k", 1);
    let file = server.directory().join("backup");
    let path = file.to_str().expect("a readable path");
    let made = server.cli(&["backup", path]);
    assert_eq!(code(&made), Some(0), "{made:?}");
    assert_eq!(
        code(&server.cli(&["backup", path])),
        Some(2),
        "the file exists"
    );
    assert!(Counter::new(&server, "t", "sync").take(50).allowed());

    server.stop(Stop::Terminate);
    fs::remove_dir_all(server.data_dir()).expect("removed");
    let restored = highwater()
        .arg("restore")
        .arg(&file)
        .arg("--data-dir")
        .arg(server.data_dir())
        .output()
        .expect("the command runs");
    assert_eq!(code(&restored), Some(0), "{restored:?}");
    server.start_again();
    assert_eq!(Counter::new(&server, "t", "sync").used(), 8);
    assert_eq!(Counter::new(&server, "t", "async").used(), 9);
    let repeat = Counter::new(&server, "t", "sync").take_once("k", 1);
    assert_eq!(repeat.body, first.body);
}
