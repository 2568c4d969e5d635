//! Envoy with the ext_authz filter over HTTP.

use std::fs;
use std::process::Command;

use crate::edge::Edge;
use crate::edge::Promise;
use crate::program::Program;
use crate::program::find;
use crate::program::recipe;

fn edge(mode: &str) -> Option<Edge> {
    let envoy = find("envoy")?;
    Some(Edge::new(|addresses| {
        let directory = tempfile::tempdir().expect("a directory");
        let text = recipe("envoy/ext-authz.yaml", addresses);
        let text = text.replace(
            "failure_mode_allow: true",
            &format!("failure_mode_allow: {mode}"),
        );
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

#[test]
fn envoy_asks_over_http_and_fails_open() {
    let Some(mut edge) = edge("true") else { return };
    edge.keeps(&Promise {
        tells_allowed: true,
        passes_body: true,
        stopped: 200,
        slow: 200,
    });
}

#[test]
fn envoy_asks_over_http_and_fails_closed() {
    let Some(mut edge) = edge("false") else {
        return;
    };
    edge.keeps(&Promise {
        tells_allowed: true,
        passes_body: true,
        stopped: 503,
        slow: 503,
    });
}
