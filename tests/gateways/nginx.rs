//! nginx with `auth_request`, which passes on 401 and 403 only.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use reqwest::Method;

use crate::edge::Edge;
use crate::edge::Promise;
use crate::program::Addresses;
use crate::program::Program;
use crate::program::find;
use crate::program::recipe;

fn start(nginx: &PathBuf, path: &str, addresses: &Addresses) -> Program {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("nginx.conf"), recipe(path, addresses)).expect("written");
    let mut command = Command::new(nginx);
    command.arg("-p").arg(directory.path()).args([
        "-e",
        "stderr",
        "-c",
        "nginx.conf",
        "-g",
        "daemon off;",
    ]);
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        fs::create_dir(directory.path().join(kind)).expect("made");
    }
    Program::start(command, directory, addresses.edge)
}

/// GW-1.
#[test]
fn nginx_with_a_403_of_ours() {
    let Some(nginx) = find("nginx") else { return };
    let mut edge = Edge::new(|addresses| start(&nginx, "nginx/deny-403.conf", addresses));
    // A request that cannot be judged is the client's mistake and passes by no policy.
    edge.keeps(&Promise {
        tells_allowed: true,
        passes_body: false,
        stopped: 200,
        slow: 200,
    });
}

/// GW-1.
#[test]
fn nginx_with_a_429_of_ours() {
    let Some(nginx) = find("nginx") else { return };
    let mut edge = Edge::new(|addresses| start(&nginx, "nginx/any-status.conf", addresses));
    edge.keeps(&Promise {
        tells_allowed: true,
        passes_body: false,
        stopped: 500,
        slow: 500,
    });
}

/// nginx passes on what a client writes; the profile says which of the two families is nginx's own.
#[test]
fn nginx_counts_the_path_that_it_was_asked_for() {
    let Some(nginx) = find("nginx") else { return };
    let edge = Edge::new(|addresses| start(&nginx, "nginx/deny-403.conf", addresses));
    let limit = serde_json::json!({
        "algorithm": "sliding_log", "quota": 1, "window": "1h", "key": "endpoint", "actions": ["api"],
    });
    let path = "/admin/v1/limits/per-path";
    edge.server.admin(Method::PUT, path, &limit).succeeded();
    let status = |path, headers: &[(&str, &str)]| edge.call(Method::GET, path, headers, "").status;
    assert_eq!(status("/dear", &[]), 200);
    assert_eq!(
        status(
            "/dear?x=1",
            &[("x-forwarded-uri", "/cheap"), ("x-original-uri", "/cheap")]
        ),
        429
    );
    assert_eq!(status("/cheap", &[]), 200);
}
