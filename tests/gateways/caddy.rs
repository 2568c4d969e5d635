//! Caddy with `forward_auth`, which passes a refusal on as it is.

use std::fs;
use std::process::Command;

use crate::edge::Edge;
use crate::edge::Promise;
use crate::program::Program;
use crate::program::find;
use crate::program::recipe;

#[test]
fn caddy_passes_a_refusal_on() {
    let Some(caddy) = find("caddy") else { return };
    let mut edge = Edge::new(|addresses| {
        let directory = tempfile::tempdir().expect("a directory");
        let text = recipe("caddy/Caddyfile", addresses);
        fs::write(directory.path().join("Caddyfile"), text).expect("written");
        let mut command = Command::new(&caddy);
        command
            .args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"])
            .env("HOME", directory.path())
            .env("XDG_CONFIG_HOME", directory.path())
            .env("XDG_DATA_HOME", directory.path());
        Program::start(command, directory, addresses.edge)
    });
    edge.keeps(&Promise {
        tells_allowed: false,
        passes_body: true,
        stopped: 502,
        slow: 504,
    });
}
