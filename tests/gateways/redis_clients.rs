//! Clients that people have: redis-cli, redis-py and ioredis, with their own first words.

use std::path::Path;
use std::process::Command;
use std::process::Output;

use serde_json::json;

use crate::program::find;
use crate::program::skip;
use crate::server::Server;

fn server() -> Server {
    let server = Server::on_real_clock(&[
        ("listen.resp", "\"127.0.0.1:0\""),
        ("resp.tenant", "\"acme\""),
    ]);
    server.catalogue(&json!({
        "limits": { "whole": { "algorithm": "sliding_log", "quota": 2, "window": "1h" } },
        "tenants": { "acme": {} },
    }));
    server
}

fn port(server: &Server) -> &str {
    server.resp_address().rsplit(':').next().expect("a port")
}

/// The lines that `command` printed; fails with what it said otherwise.
fn printed(mut command: Command) -> Vec<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&stdout).into_owned();
    assert!(
        status.success(),
        "{status}: {text}\n{}",
        String::from_utf8_lossy(&stderr)
    );
    text.lines().map(str::to_owned).collect()
}

/// What every client says after its own handshake, pipelined where it can.
const ANSWERS: [&str; 5] = [
    "0 2 1 -1 3600",
    "0 2 0 -1 7200",
    "1 2 0 3600 7200",
    "0 2 1 -1 3600",
    "PONG",
];

#[test]
fn redis_cli_in_both_forms() {
    let Some(program) = find("redis-cli") else {
        return;
    };
    let server = server();
    for (form, key) in [("-2", "two"), ("-3", "three")] {
        let call = |words: &[&str]| {
            let mut command = Command::new(&program);
            command
                .args([form, "-p", port(&server), "--user", "acme", "--pass", "x"])
                .arg("--no-auth-warning")
                .args(words);
            printed(command).join(" ")
        };
        let throttle = ["CL.THROTTLE", key, "1", "1", "3600"];
        for told in &ANSWERS[..3] {
            assert_eq!(call(&throttle), *told, "{form}");
        }
        assert_eq!(call(&["PING"]), "PONG");
        assert!(call(&["GET", "x"]).starts_with("ERR unknown command"));
    }
}

#[test]
fn redis_py_speaks_resp3_by_itself() {
    let python = venv_python();
    let Some(python) = python else {
        return skip("redis-py");
    };
    let server = server();
    let script = r#"
import sys, redis
client = redis.Redis(port=int(sys.argv[1]), username="acme", password="x")
pipe = client.pipeline(transaction=False)
for _ in range(3):
    pipe.execute_command("CL.THROTTLE", "k", 1, 1, 3600)
pipe.execute_command("HW.CHECK", "acme", "whole", "")
for answer in pipe.execute():
    print(*answer)
print("PONG" if client.ping() else "no")
"#;
    let mut command = Command::new(python);
    command.args(["-c", script, port(&server)]);
    assert_eq!(printed(command), ANSWERS);
}

fn venv_python() -> Option<std::path::PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/gateways/bin/python");
    let has_redis = Command::new(&python)
        .args(["-c", "import redis"])
        .output()
        .is_ok_and(|output| output.status.success());
    has_redis.then_some(python)
}

#[test]
fn ioredis_waits_until_it_is_ready() {
    let Some(node) = find("node") else { return };
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/gateways/node_modules");
    if !modules.join("ioredis").is_dir() {
        return skip("ioredis");
    }
    let server = server();
    let script = r#"
const Redis = require("ioredis");
const redis = new Redis({ port: Number(process.argv[1]), username: "acme", password: "x" });
(async () => {
  const pipe = redis.pipeline();
  for (let i = 0; i < 3; i++) pipe.call("CL.THROTTLE", "k", 1, 1, 3600);
  pipe.call("HW.CHECK", "acme", "whole", "");
  for (const [error, answer] of await pipe.exec()) console.log(error ? String(error) : answer.join(" "));
  console.log(await redis.ping());
  await redis.quit();
})();
"#;
    let mut command = Command::new(node);
    command
        .env("NODE_PATH", modules)
        .args(["-e", script, port(&server)]);
    assert_eq!(printed(command), ANSWERS);
}
