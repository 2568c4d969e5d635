//! HAProxy with a Lua action that asks.

use std::fs;
use std::process::Command;

use crate::edge::Edge;
use crate::edge::Promise;
use crate::program::Program;
use crate::program::find;
use crate::program::recipe;

fn edge(without: &str) -> Option<Edge> {
    let haproxy = find("haproxy")?;
    Some(Edge::new(|addresses| {
        let directory = tempfile::tempdir().expect("a directory");
        let text = recipe("haproxy/haproxy.cfg", addresses);
        let text = text.replace("haproxy 250 allow", &format!("haproxy 250 {without}"));
        fs::write(directory.path().join("haproxy.cfg"), text).expect("written");
        let lua = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/ops/gateways/haproxy/highwater.lua"
        );
        fs::copy(lua, directory.path().join("highwater.lua")).expect("copied");
        let mut command = Command::new(&haproxy);
        command.args(["-db", "-f", "haproxy.cfg"]);
        Program::start(command, directory, addresses.edge)
    }))
}

#[test]
fn haproxy_asks_in_lua_and_fails_open() {
    let Some(mut edge) = edge("allow") else {
        return;
    };
    edge.keeps(&Promise {
        tells_allowed: true,
        passes_body: true,
        stopped: 200,
        slow: 200,
    });
}

#[test]
fn haproxy_asks_in_lua_and_fails_closed() {
    let Some(mut edge) = edge("deny") else {
        return;
    };
    edge.keeps(&Promise {
        tells_allowed: true,
        passes_body: true,
        stopped: 503,
        slow: 503,
    });
}
