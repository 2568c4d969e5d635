//! Envoy with the ext_authz filter over HTTP, and with the rate limit filter over gRPC.

use std::fs;
use std::process::Command;

use crate::edge::Edge;
use crate::edge::Promise;
use crate::program::Program;
use crate::program::find;
use crate::program::recipe;

/// The gateway with `file` as its recipe, in which `written` is replaced.
fn edge(file: &str, (written, replaced): (&str, &str)) -> Option<Edge> {
    let envoy = find("envoy")?;
    Some(Edge::new(|addresses| {
        let directory = tempfile::tempdir().expect("a directory");
        let text = recipe(file, addresses);
        assert!(text.contains(written), "{file} says {written}");
        let text = text.replace(written, replaced);
        fs::write(directory.path().join("envoy.yaml"), text).expect("written");
        let mut command = Command::new(&envoy);
        command.args([
            "-c",
            "envoy.yaml",
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "-l",
            "warning",
        ]);
        Program::start(command, directory, addresses.edge)
    }))
}

const AUTHORIZATION: &str = "envoy/ext-authz.yaml";
const RATE_LIMIT: &str = "envoy/rate-limit-service.yaml";
const OPEN: (&str, &str) = ("failure_mode_allow: true", "failure_mode_allow: true");
const CLOSED: (&str, &str) = ("failure_mode_allow: true", "failure_mode_allow: false");
const DENY_NOT: (&str, &str) = ("failure_mode_deny: false", "failure_mode_deny: false");
const DENY: (&str, &str) = ("failure_mode_deny: false", "failure_mode_deny: true");

fn keeps(file: &str, mode: (&str, &str), without_highwater: u16) {
    let Some(mut edge) = edge(file, mode) else {
        return;
    };
    edge.keeps(&Promise {
        tells_allowed: true,
        passes_body: true,
        stopped: without_highwater,
        slow: without_highwater,
    });
}

#[test]
fn envoy_asks_over_http_and_fails_open() {
    keeps(AUTHORIZATION, OPEN, 200);
}

#[test]
fn envoy_asks_over_http_and_fails_closed() {
    keeps(AUTHORIZATION, CLOSED, 503);
}

#[test]
fn envoy_asks_over_grpc_and_fails_open() {
    keeps(RATE_LIMIT, DENY_NOT, 200);
}

#[test]
fn envoy_asks_over_grpc_and_fails_closed() {
    keeps(RATE_LIMIT, DENY, 503);
}
