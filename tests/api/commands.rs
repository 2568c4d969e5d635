//! The command line against a running region: what commands say, and how they end.
//!
//! Exit status: 0 done, 1 the answer is no, 2 the command could not be run.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Output;
use std::process::Stdio;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;
use crate::server::Stop;
use crate::server::highwater;

/// What a command wrote to standard output, to standard error, and its exit status.
pub fn ended(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    )
}

/// Runs a command that is expected to be done; its standard output.
#[track_caller]
fn done(server: &Server, arguments: &[&str]) -> String {
    let (out, error, status) = ended(&server.cli(arguments));
    assert_eq!(status, Some(0), "{arguments:?}: {out}{error}");
    out
}

/// Runs a command whose answer is expected to be no; all that it said.
#[track_caller]
fn no(server: &Server, arguments: &[&str]) -> String {
    let (out, error, status) = ended(&server.cli(arguments));
    assert_eq!(status, Some(1), "{arguments:?}: {out}{error}");
    out + &error
}

/// The same answer as JSON.
#[track_caller]
fn as_json(server: &Server, arguments: &[&str]) -> Value {
    let mut arguments = arguments.to_vec();
    arguments.extend(["--output", "json"]);
    let out = done(server, &arguments);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// Runs a command that needs no server.
pub fn alone(arguments: &[&str]) -> Output {
    highwater()
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the command runs")
}

fn write(server: &Server, name: &str, text: &str) -> String {
    let path = server.directory().join(name);
    fs::write(&path, text).expect("written");
    path.to_str().expect("a readable path").to_owned()
}

#[test]
fn check_usage_why_and_reset_tell_one_story() {
    let server = Server::start();
    let stranger = no(
        &server,
        &["limits", "set", "acme", "exports", "--unlimited"],
    );
    assert!(
        stranger.contains("`highwater tenants set acme` makes a new tenant"),
        "{stranger}"
    );
    done(&server, &["tenants", "set", "acme"]);
    done(
        &server,
        &[
            "limits",
            "set",
            "acme",
            "exports",
            "--quota",
            "3",
            "--window",
            "1h",
            "--algorithm",
            "fixed_window",
            "--key",
            "user",
        ],
    );
    let allowed = done(
        &server,
        &["check", "acme", "exports", "alice", "--cost", "2"],
    );
    assert!(allowed.starts_with("allow in us-east-1\n"), "{allowed}");
    let refused = no(
        &server,
        &["check", "acme", "exports", "alice", "--cost", "2"],
    );
    assert!(refused.starts_with("deny in us-east-1: "), "{refused}");
    assert!(refused.contains("quota_exceeded"), "{refused}");
    let used = as_json(&server, &["usage", "acme", "exports", "alice"]);
    assert_eq!(used["by_region"], json!({ "us-east-1": 2 }));
    let why = done(&server, &["why", "acme", "--key", "alice"]);
    assert_eq!(why.lines().count(), 2, "{why}");
    assert!(why.contains("exports") && why.contains("alice"), "{why}");
    done(&server, &["reset", "acme", "exports", "alice"]);
    assert_eq!(
        Counter::keyed(&server, "acme", "exports", "alice").used(),
        0
    );
    let unknown = no(&server, &["check", "acme", "nothing"]);
    assert!(unknown.contains("unknown_limit"), "{unknown}");
}

#[test]
fn limits_plans_and_tenants_are_kept_by_hand() {
    let server = Server::start();
    done(
        &server,
        &[
            "limits",
            "set",
            "tokens",
            "--capacity",
            "100",
            "--refill",
            "100",
            "--per",
            "1m",
            "--key",
            "model",
        ],
    );
    done(&server, &["plans", "set", "free"]);
    let pro = write(
        &server,
        "pro.toml",
        "limits.tokens = { capacity = 200, refill = 200 }\n",
    );
    done(&server, &["plans", "set", "pro", "-f", &pro]);
    done(&server, &["tenants", "set", "a/b", "--plan", "pro"]);
    done(
        &server,
        &[
            "limits",
            "set",
            "a/b",
            "tokens",
            "--override",
            "gpt 5",
            "--capacity",
            "900",
        ],
    );
    let quota = |key: &str| Counter::keyed(&server, "a/b", "tokens", key).look().quota();
    assert_eq!((quota("gpt 5"), quota("other")), (900, 200));

    done(
        &server,
        &["tenants", "set", "a/b", "--time-zone", "Asia/Kolkata"],
    );
    let tenant = as_json(&server, &["tenants", "get", "a/b"]);
    assert_eq!(
        (&tenant["plan"], &tenant["time_zone"]),
        (&json!("pro"), &json!("Asia/Kolkata"))
    );
    assert_eq!(quota("gpt 5"), 900, "fields of a tenant change one by one");

    for (list, name) in [("limits", "tokens"), ("plans", "pro"), ("tenants", "a/b")] {
        let listed = done(&server, &[list, "list"]);
        assert!(listed.contains(name), "{list}: {listed}");
    }
    let of_tenant = done(&server, &["limits", "list", "a/b"]);
    assert!(of_tenant.contains("200"), "{of_tenant}");
    let in_use = no(&server, &["plans", "delete", "pro"]);
    assert!(in_use.contains("HTTP 409"), "{in_use}");
    done(
        &server,
        &["limits", "delete", "a/b", "tokens", "--override", "gpt 5"],
    );
    assert_eq!(quota("gpt 5"), 200);
    done(&server, &["tenants", "delete", "a/b"]);
    done(&server, &["plans", "delete", "pro"]);
    done(&server, &["limits", "delete", "tokens"]);
    assert_eq!(done(&server, &["limits", "list"]), "(none)\n");
    no(&server, &["limits", "get", "tokens"]);
}

#[test]
fn a_fault_in_a_part_of_the_catalogue_names_its_line() {
    let server = Server::start();
    let limit = write(
        &server,
        "limit.toml",
        "algorithm = \"fixed_window\"\nquota = 5\nwindow = \"0s\"\n",
    );
    let told = no(&server, &["limits", "set", "exports", "-f", &limit]);
    assert!(
        told.contains(&format!("{limit}:3: limits.exports.window: ")),
        "{told}"
    );
    let told = no(
        &server,
        &["limits", "set", "exports", "--quota", "5", "--window", "1s"],
    );
    assert!(told.contains("algorithm"), "{told}");
}

#[test]
fn pruning_takes_what_the_file_does_not_name_and_no_tenant() {
    let server = Server::start();
    let whole = write(
        &server,
        "whole.toml",
        "[limits]\na = { algorithm = \"fixed_window\", quota = 5, window = \"1m\" }\n\
         b = { algorithm = \"fixed_window\", quota = 5, window = \"1m\" }\n[plans.pro]\n[plans.free]\n\
         [tenants.acme]\nplan = \"free\"\nlimits.a.quota = 9\n",
    );
    done(&server, &["apply", "-f", &whole]);
    let part = write(
        &server,
        "part.toml",
        "[limits]\na = { algorithm = \"sliding_window\", quota = 6, window = \"1m\" }\n[plans.free]\n",
    );
    let preview = no(&server, &["diff", "-f", &part, "--prune"]);
    assert_eq!(
        preview.lines().collect::<Vec<_>>(),
        [
            "~ limits.a.algorithm: \"fixed_window\" -> \"sliding_window\"  (use starts from zero)",
            "~ limits.a.quota: 5 -> 6",
            "- limits.b = { algorithm = \"fixed_window\", quota = 5, window = \"1m\" }",
            "- plans.pro = { limits = {} }",
        ]
    );
    done(&server, &["apply", "-f", &part]);
    assert!(
        done(&server, &["limits", "list"]).contains("b "),
        "nothing is deleted without --prune"
    );
    done(&server, &["apply", "-f", &part, "--prune"]);
    done(&server, &["diff", "-f", &part, "--prune"]);
    let catalogue = server
        .admin(Method::GET, "/admin/v1/catalogue", &Value::Null)
        .body;
    let names = |table: &str| {
        catalogue[table]
            .as_object()
            .expect("a table")
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (names("limits"), names("plans"), names("tenants")),
        (vec!["a".into()], vec!["free".into()], vec!["acme".into()])
    );
    assert_eq!(
        Counter::new(&server, "acme", "a").look().quota(),
        9,
        "what tenants have stays"
    );
}

#[test]
fn a_token_is_shown_once_alone_and_ends_when_revoked() {
    let server = Server::start();
    let (out, error, status) = ended(&server.cli(&["tokens", "create", "--scope", "read"]));
    assert_eq!(status, Some(0), "{error}");
    assert_eq!(out.lines().count(), 1, "it can go into a file: {out}");
    let file = write(&server, "token", &out);
    done(&server, &["limits", "list", "--token-file", &file]);
    let listed = as_json(&server, &["tokens", "list"]);
    assert!(!listed.to_string().contains(out.trim()), "{listed}");
    let id = listed[0]["id"].as_str().expect("an id").to_owned();
    done(&server, &["tokens", "revoke", &id]);
    let (_, error, status) = ended(&server.cli(&["limits", "list", "--token-file", &file]));
    assert_eq!(status, Some(2), "{error}");
    assert!(error.contains("HTTP 401"), "{error}");
}

#[test]
fn status_audit_and_openapi_answer() {
    let server = Server::start();
    done(&server, &["limits", "set", "a", "--unlimited"]);
    let status = done(&server, &["status"]);
    assert!(status.contains("us-east-1 leads, term "), "{status}");
    assert!(status.contains("us-east-1  leader  here  0"), "{status}");
    let status = as_json(&server, &["status"]);
    assert_eq!(status["leader"], "us-east-1", "{status}");
    let audit = done(&server, &["audit"]);
    assert!(audit.contains("set limit a"), "{audit}");
    let document: Value = serde_json::from_str(&done(&server, &["openapi"])).expect("JSON");
    assert!(document["paths"]["/v1/check"].is_object());
}

#[test]
fn a_backup_becomes_a_region_again() {
    let mut server = Server::start();
    done(&server, &["tenants", "set", "acme"]);
    done(
        &server,
        &[
            "limits", "set", "acme", "exports", "--quota", "10", "--period", "year",
        ],
    );
    Counter::new(&server, "acme", "exports").take(4);
    let file = server.directory().join("all.backup");
    let name = file.to_str().expect("a readable path").to_owned();
    done(&server, &["backup", &name]);
    let again = ended(&server.cli(&["backup", &name]));
    assert_eq!(
        again.2,
        Some(2),
        "an existing file is not written over: {}",
        again.1
    );
    Counter::new(&server, "acme", "exports").take(3);
    server.stop(Stop::Terminate);
    let data = server.data_dir();
    let data = data.to_str().expect("a readable path");
    let refused = ended(&alone(&["restore", &name, "--data-dir", data]));
    assert_eq!(
        refused.2,
        Some(2),
        "a directory with data is not written over: {}",
        refused.1
    );
    fs::remove_dir_all(data).expect("removed");
    let restored = ended(&alone(&["restore", &name, "--data-dir", data]));
    assert_eq!(restored.2, Some(0), "{}", restored.1);
    server.start_again();
    assert_eq!(Counter::new(&server, "acme", "exports").used(), 4);
}

#[test]
fn a_server_that_is_not_there_is_told_from_a_no() {
    let free = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("bound");
    let (_, error, status) = ended(&alone(&["status", "--server", &format!("http://{free}")]));
    assert_eq!(status, Some(2));
    assert!(error.contains("no server answers at"), "{error}");
}

#[test]
fn the_sample_regions_are_valid_and_shown_without_secrets() {
    for region in ["us-east-1", "eu-west-1", "ap-south-1"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("regions/{region}.toml"));
        let output = highwater()
            .arg("check-config")
            .arg(file)
            .env("HIGHWATER_AUTH__ADMIN_TOKEN", "hunter2")
            .output()
            .expect("runs");
        let (out, error, status) = ended(&output);
        assert_eq!(status, Some(0), "{error}");
        assert!(out.contains(region) && !out.contains("hunter2"), "{out}");
    }
}

#[test]
fn a_wrong_configuration_is_told_by_line_and_not_served() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("region.toml");
    fs::write(&file, "region = \"a\"\nlisten.chek = \"x\"\n").expect("written");
    let told = |command: &mut std::process::Command| ended(&command.output().expect("runs"));
    let (_, error, status) = told(highwater().arg("check-config").arg(&file));
    assert_eq!(status, Some(1), "{error}");
    assert!(
        error.contains("region.toml:2: listen.chek: unknown key"),
        "{error}"
    );
    let (out, error, status) = told(highwater().arg("serve").arg("--config").arg(&file));
    assert_eq!((out.as_str(), status), ("", Some(2)), "{error}");
    assert!(
        error.contains("region.toml:2: listen.chek: unknown key"),
        "{error}"
    );
}

#[test]
fn a_region_alone_keeps_the_lead_and_stays() {
    let server = Server::start();
    let shown = done(&server, &["leader", "show"]);
    assert!(shown.starts_with("us-east-1 leads, term "), "{shown}");
    done(&server, &["leader", "transfer", "us-east-1"]);
    done(&server, &["leader", "prefer", "us-east-1"]);
    let shown = as_json(&server, &["leader", "show"]);
    assert_eq!(shown["leader_preference"], "us-east-1");
    done(&server, &["leader", "prefer", "--none"]);
    let shown = as_json(&server, &["leader", "show"]);
    assert_eq!(shown["leader_preference"], Value::Null);
    for arguments in [
        &["leader", "transfer", "eu-west-1"][..],
        &["leader", "prefer", "eu-west-1"],
        &["region", "add", "eu-west-1"],
        &["region", "remove", "us-east-1"],
        &["region", "remove", "eu-west-1"],
    ] {
        no(&server, arguments);
    }
    let (_, error, status) = ended(&server.cli(&["leader", "prefer"]));
    assert_eq!(status, Some(2), "{error}");
    let drained = done(&server, &["region", "drain"]);
    assert!(drained.contains("true"), "{drained}");
    assert!(done(&server, &["status"]).contains("us-east-1, draining"));
    done(&server, &["region", "resume"]);
    assert!(done(&server, &["status"]).contains("us-east-1, ready"));
}

#[test]
fn a_drain_with_a_time_ends_by_itself() {
    let server = Server::start();
    for ttl in ["0s", "25h", "soon"] {
        let error = no(&server, &["region", "drain", "--ttl", ttl]);
        assert!(error.contains("ttl: "), "{error}");
    }
    assert!(done(&server, &["status"]).contains("us-east-1, ready"));
    done(&server, &["region", "drain", "--ttl", "1h"]);
    assert!(done(&server, &["status"]).contains("us-east-1, draining"));
    // The newest word holds.
    done(&server, &["region", "drain", "--ttl", "200ms"]);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !done(&server, &["status"]).contains("us-east-1, ready") {
        assert!(std::time::Instant::now() < deadline, "it still drains");
    }
}

#[test]
fn a_strict_window_can_be_added_up() {
    let server = Server::start();
    let limit = write(
        &server,
        "strict.toml",
        "[limits]\nexports = { algorithm = \"calendar_window\", quota = 10, period = \"day\", mode = \"strict\", key = \"user\" }\n\
         calls = { algorithm = \"sliding_window\", quota = 10, window = \"1m\", mode = \"strict\" }\n[tenants.acme]\n",
    );
    done(&server, &["apply", "-f", &limit]);
    let none = no(&server, &["ledger", "acme", "exports", "alice"]);
    assert!(none.contains("no window is known"), "{none}");
    done(&server, &["check", "acme", "exports", "alice"]);
    let page = done(&server, &["ledger", "acme", "exports", "alice"]);
    assert!(page.starts_with("exports of acme, key alice, "), "{page}");
    assert!(
        page.contains("\nus-east-1  ") && page.contains("\nit adds up"),
        "{page}"
    );
    let at = server.epoch().to_string();
    let ledger = as_json(
        &server,
        &["ledger", "acme", "exports", "alice", "--at", &at],
    );
    assert_eq!(ledger["adds_up"], true, "{ledger}");
    let yesterday = [
        "ledger",
        "acme",
        "exports",
        "alice",
        "--at",
        "2034-12-31T12:00:00Z",
    ];
    no(&server, &yesterday);
    let sliding = no(&server, &["ledger", "acme", "calls"]);
    assert!(sliding.contains("one by one"), "{sliding}");
}
