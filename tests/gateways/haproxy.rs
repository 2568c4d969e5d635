//! HAProxy with a Lua action that asks.

use std::fs;
use std::process::Command;

use reqwest::Method;
use serde_json::json;

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

/// A refusal that the profile gives a status of failures is a refusal all the same.
#[test]
fn haproxy_refuses_with_503_where_the_profile_says_so() {
    let Some(edge) = edge("allow") else {
        return;
    };
    let profile = json!({
        "tenant": "acme", "action": "api", "keys": { "ip": "client_ip/64" }, "original": "x-original",
        "deny_status": 503,
    });
    edge.server
        .admin(Method::PUT, "/admin/v1/profiles/haproxy", &profile)
        .succeeded();
    let statuses: Vec<u16> = (0..4)
        .map(|_| edge.call(Method::GET, "/hello", &[], "").status)
        .collect();
    assert_eq!(statuses, [200, 200, 503, 503]);
}
