//! Redis clients: what is sent over a socket and what comes back, byte for byte.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::redis_client::Redis;
use crate::redis_client::command;
use crate::server::Server;
use crate::server::Stop;
use crate::server::wait_until;

fn server(settings: &[(&str, &str)]) -> Server {
    let mut all = vec![
        ("listen.resp", "\"127.0.0.1:0\""),
        ("resp.tenant", "\"acme\""),
    ];
    all.extend(settings);
    let server = Server::with(&all);
    server.catalogue(&json!({
        "limits": {
            "fixed": { "algorithm": "fixed_window", "quota": 2, "window": "60s", "key": "user" },
            "whole": { "algorithm": "fixed_window", "quota": 5, "window": "60s", "durability": "sync" },
            "free": { "algorithm": "fixed_window", "window": "60s", "quota": 1, "unlimited": true },
            "strict": { "algorithm": "fixed_window", "quota": 3, "window": "60s", "mode": "strict" },
        },
        "tenants": { "acme": {}, "other": {} },
    }));
    server
}

#[test]
fn cl_throttle_is_answered_as_redis_cell_answers_it() {
    let server = server(&[]);
    let mut redis = Redis::connect(&server);
    assert_eq!(
        redis.call(&["CL.THROTTLE", "user123", "15", "30", "60", "1"]),
        "[0 16 15 -1 2]"
    );
    assert_eq!(
        redis.call(&["cl.throttle", "u", "0", "1", "2"]),
        "[0 1 0 -1 2]"
    );
    assert_eq!(
        redis.call(&["cl.throttle", "u", "0", "1", "2"]),
        "[1 1 0 2 2]"
    );
    for (ms, quantity, told) in [
        (0, "6", "[1 5 5 -1 0]"),
        (0, "1", "[0 5 4 -1 1]"),
        (0, "1", "[0 5 3 -1 2]"),
        (0, "1", "[0 5 2 -1 3]"),
        (0, "1", "[0 5 1 -1 4]"),
        (0, "1", "[0 5 0 -1 5]"),
        (0, "1", "[1 5 0 1 5]"),
        (3_000, "1", "[0 5 2 -1 3]"),
        (3_100, "1", "[0 5 1 -1 4]"),
        (4_000, "1", "[0 5 1 -1 4]"),
        (8_000, "1", "[0 5 4 -1 1]"),
        (9_500, "1", "[0 5 4 -1 1]"),
        (9_500, "0", "[0 5 4 -1 1]"),
        (9_500, "2", "[0 5 2 -1 3]"),
        (9_500, "5", "[1 5 2 3 3]"),
    ] {
        server.at(ms);
        let answer = redis.call(&["CL.THROTTLE", "foo", "4", "1", "1", quantity]);
        assert_eq!(answer, told, "at {ms}: {quantity}");
    }
    for (words, error) in [
        (
            vec!["CL.THROTTLE", "k", "1"],
            "-Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]",
        ),
        (
            vec!["CL.THROTTLE", "k", "a", "1", "1"],
            "-Cell error: Couldn't parse as integer: a",
        ),
        (
            vec!["CL.THROTTLE", "k", "1", "0", "1"],
            "-Cell error: Zero rates are not supported",
        ),
    ] {
        assert_eq!(redis.call(&words), error);
    }
}

/// The amounts of a call are not part of the key, as in redis-cell.
#[test]
fn changed_amounts_keep_a_keys_use() {
    let server = server(&[]);
    let mut redis = Redis::connect(&server);
    assert_eq!(
        redis.call(&["CL.THROTTLE", "k", "9", "10", "10", "8"]),
        "[0 10 2 -1 8]"
    );
    // 8 s until all is back: at two per second and 20 at once that are 16 of 20.
    assert_eq!(
        redis.call(&["CL.THROTTLE", "k", "19", "20", "10", "0"]),
        "[0 20 4 -1 8]"
    );
    // A burst that has become smaller than what is used refuses a look too.
    assert_eq!(
        redis.call(&["CL.THROTTLE", "k", "4", "10", "10", "0"]),
        "[1 5 0 3 8]"
    );
}

#[test]
fn throttled_keys_survive_a_restart_and_are_their_tenants() {
    let mut server = Server::try_launch(
        &[("listen.resp", "\"127.0.0.1:0\"")],
        true,
        (crate::server::real_unix_ms() / 600_000 + 1) * 600_000,
    )
    .expect("starts");
    server.catalogue(&json!({ "tenants": { "acme": {}, "other": {} } }));
    let throttle = ["CL.THROTTLE", "k", "1", "1", "3600"];
    let mut redis = Redis::connect(&server);
    assert!(redis.call(&throttle).starts_with("-ERR no tenant"));
    assert_eq!(redis.call(&["AUTH", "acme", "x"]), "+OK");
    assert_eq!(redis.call(&throttle), "[0 2 1 -1 3600]");
    assert_eq!(redis.call(&throttle), "[0 2 0 -1 7200]");
    server.restart(Stop::Terminate);
    let mut redis = Redis::connect(&server);
    redis.call(&["AUTH", "acme", "x"]);
    assert_eq!(redis.call(&throttle), "[1 2 0 3600 7200]");
    redis.call(&["AUTH", "other", "x"]);
    assert_eq!(redis.call(&throttle), "[0 2 1 -1 3600]");
    redis.call(&["AUTH", "nobody", "x"]);
    assert!(redis.call(&throttle).starts_with("-ERR there is no tenant"));
}

/// No limit of a catalogue can be counted with those that come with calls.
#[test]
fn the_name_that_throttled_keys_count_under_is_taken() {
    let server = server(&[]);
    let refused = server.admin(
        Method::PUT,
        "/admin/v1/limits/cl-throttle",
        &json!({ "algorithm": "fixed_window", "quota": 1, "window": "1s" }),
    );
    assert_eq!(refused.status, 422, "{refused:?}");
}

#[test]
fn hw_check_asks_the_catalogue() {
    let server = server(&[]);
    let mut redis = Redis::connect(&server);
    assert_eq!(
        redis.call(&["HW.CHECK", "acme", "fixed", "ann"]),
        "[0 2 1 -1 60]"
    );
    assert_eq!(
        redis.call(&["hw.check", "acme", "fixed", "ann", "0"]),
        "[0 2 1 -1 60]"
    );
    assert_eq!(
        redis.call(&["hw.check", "acme", "fixed", "ann", "1"]),
        "[0 2 0 -1 60]"
    );
    assert_eq!(
        redis.call(&["hw.check", "acme", "fixed", "ann"]),
        "[1 2 0 60 60]"
    );
    assert_eq!(
        redis.call(&["hw.check", "acme", "fixed", "bob", "3"]),
        "[1 2 2 -1 60]"
    );
    assert_eq!(
        redis.call(&["hw.check", "acme", "whole", "", "2"]),
        "[0 5 3 -1 60]"
    );
    assert_eq!(
        redis.call(&["hw.check", "acme", "free", ""]),
        "[0 -1 -1 -1 60]"
    );
    // A strict limit may be undecided while the disk stands still, and then it has charged nothing.
    for (words, told) in [
        (&["hw.check", "acme", "strict", "", "3"][..], "[0 3"),
        (&["hw.check", "acme", "strict", ""], "[1 3"),
    ] {
        let mut reply = String::new();
        wait_until("the check is decided", Duration::from_secs(10), || {
            reply = redis.call(words);
            reply.starts_with('[')
        });
        assert_eq!(&reply[..4], told);
    }
    for words in [
        vec!["HW.CHECK", "acme", "fixed"],
        vec!["HW.CHECK", "acme", "fixed", ""],
        vec!["HW.CHECK", "acme", "whole", "ann"],
        vec!["HW.CHECK", "acme", "no-such", ""],
        vec!["HW.CHECK", "nobody", "whole", ""],
        vec!["HW.CHECK", "acme", "whole", "", "-1"],
        vec!["HW.CHECK", "acme", "whole", "", "9007199254740992"],
    ] {
        let answer = redis.call(&words);
        assert!(answer.starts_with("-ERR "), "{words:?}: {answer}");
    }
    let used = server.get("/v1/usage?tenant=acme&limit=whole");
    assert_eq!(used.used(), 2, "{used:?}");
}

#[test]
fn clients_shake_hands_in_both_forms() {
    let server = server(&[]);
    let mut redis = Redis::connect(&server);
    assert_eq!(redis.call(&["PING"]), "+PONG");
    assert_eq!(redis.call(&["ping", "a b"]), "a b");
    assert_eq!(redis.call(&["ECHO", "x"]), "x");
    assert_eq!(redis.call(&["CLIENT", "GETNAME"]), "nil");
    let hello = redis.call(&["HELLO", "3", "AUTH", "default", "any", "SETNAME", "web"]);
    assert!(
        hello.starts_with('{') && hello.contains("server highwater") && hello.contains("proto 3"),
        "{hello}"
    );
    assert_eq!(redis.call(&["CLIENT", "GETNAME"]), "web");
    assert_eq!(redis.call(&["CLIENT", "SETINFO", "LIB-NAME", "x"]), "+OK");
    assert_eq!(redis.call(&["CLIENT", "SETNAME", "a b"])[..4], *"-ERR");
    assert!(
        redis
            .call(&["CLIENT", "ID"])
            .parse::<i64>()
            .expect("a number")
            > 0
    );
    assert!(redis.call(&["INFO"]).contains("loading:0"));
    assert_eq!(redis.call(&["COMMAND"]), "[]");
    assert_eq!(redis.call(&["COMMAND", "DOCS"]), "{}");
    assert_eq!(redis.call(&["COMMAND", "COUNT"]), "0");
    assert_eq!(redis.call(&["SELECT", "0"]), "+OK");
    assert!(redis.call(&["SELECT", "1"]).starts_with("-ERR DB index"));
    assert_eq!(
        redis.call(&["CL.THROTTLE", "k", "0", "1", "1"]),
        "[0 1 0 -1 1]"
    );
    assert_eq!(redis.call(&["HELLO", "4"])[..8], *"-NOPROTO");
    assert_eq!(redis.call(&["GET", "x"]), "-ERR unknown command 'GET'");
    assert_eq!(redis.call(&["RESET"]), "+RESET");
    assert!(redis.call(&["HELLO"]).starts_with("[server highwater"));
    assert_eq!(redis.call(&["CLIENT", "GETNAME"]), "nil");
    assert_eq!(redis.call(&["QUIT"]), "+OK");
    assert!(redis.is_closed());
}

#[test]
fn a_token_is_wanted_where_the_region_wants_one() {
    let server = server(&[("auth.check", "\"token\"")]);
    let created = server.admin(
        Method::POST,
        "/admin/v1/tokens",
        &json!({ "scope": "check", "tenant": "other" }),
    );
    created.succeeded();
    let token = created.body["token"]
        .as_str()
        .expect("shown once")
        .to_owned();
    let id = created.body["id"].as_str().expect("an id").to_owned();
    let throttle = ["CL.THROTTLE", "k", "0", "1", "60"];
    let mut redis = Redis::connect(&server);
    for words in [
        &["PING"][..],
        &throttle,
        &["HELLO", "3"],
        &["HW.CHECK", "acme", "whole", ""],
    ] {
        assert!(redis.call(words).starts_with("-NOAUTH"), "{words:?}");
    }
    assert!(redis.call(&["AUTH", "wrong"]).starts_with("-WRONGPASS"));
    assert!(
        redis
            .call(&["AUTH", "acme", &token])
            .starts_with("-WRONGPASS")
    );
    assert_eq!(redis.call(&["AUTH", &token]), "+OK");
    // The token's tenant and not the region's default is counted.
    assert_eq!(redis.call(&throttle), "[0 1 0 -1 60]");
    assert!(
        redis
            .call(&["HW.CHECK", "acme", "whole", ""])
            .starts_with("-NOPERM")
    );
    assert_eq!(
        redis.call(&["HW.CHECK", "other", "whole", ""]),
        "[0 5 4 -1 60]"
    );
    let mut third = Redis::connect(&server);
    assert!(
        third
            .call(&["HELLO", "3", "AUTH", "default", &token])
            .contains("proto 3")
    );
    assert_eq!(third.call(&throttle), "[1 1 0 60 60]");
    server
        .admin(
            Method::DELETE,
            &format!("/admin/v1/tokens/{id}"),
            &Value::Null,
        )
        .succeeded();
    assert!(redis.call(&throttle).starts_with("-NOAUTH"));
}

#[test]
fn commands_that_arrive_together_are_answered_together_in_order() {
    let server = server(&[]);
    let mut redis = Redis::connect(&server);
    let mut bytes = Vec::new();
    for n in 0..1_000 {
        bytes.extend(command(&["ECHO", &n.to_string()]));
        bytes.extend(command(&["CL.THROTTLE", "k", "999", "1", "60"]));
        bytes.extend(command(&["HW.CHECK", "acme", "whole", "", "0"]));
    }
    bytes.extend(b"\r\nPING inline\r\n*0\r\necho \"a b\"\r\n");
    redis.send(&bytes);
    for n in 0..1_000 {
        assert_eq!(redis.reply(), n.to_string());
        assert!(
            redis
                .reply()
                .starts_with(&format!("[0 1000 {} -1 ", 999 - n)),
            "{n}"
        );
        assert_eq!(redis.reply(), "[0 5 5 -1 60]");
    }
    assert_eq!(redis.reply(), "inline");
    assert_eq!(redis.reply(), "a b");
    // One byte at a time is as good.
    for byte in command(&["ECHO", "slow"]) {
        redis.send(&[byte]);
    }
    assert_eq!(redis.reply(), "slow");
}

#[test]
fn what_is_no_command_ends_the_connection_with_a_word() {
    let server = server(&[]);
    for bytes in [
        "*1025\r\n".to_owned(),
        "*1\r\n$16385\r\n".to_owned(),
        "*1\r\n:1\r\n".to_owned(),
        "ECHO \"x\r\n".to_owned(),
        "x".repeat(64 * 1024),
        "GET / HTTP/1.1\r\nHost: \"\r\n".to_owned(),
    ] {
        let mut redis = Redis::connect(&server);
        redis.send(bytes.as_bytes());
        let mut reply = redis.reply();
        while !reply.starts_with("-ERR Protocol error") {
            assert!(reply.starts_with("-ERR unknown command"), "{reply}");
            reply = redis.reply();
        }
        assert!(redis.is_closed(), "{bytes:.20}");
    }
    let mut redis = Redis::connect(&server);
    assert!(
        redis
            .call(&["CL.THROTTLE", "", "1", "1", "1"])
            .starts_with("-ERR a key is")
    );
    let long = "x".repeat(513);
    assert!(
        redis
            .call(&["CL.THROTTLE", &long, "1", "1", "1"])
            .starts_with("-ERR a key is")
    );
    redis.send(b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\n\xff\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n");
    assert!(redis.reply().starts_with("-ERR a key is"));
}

#[test]
fn a_store_that_fails_limits_nobody_and_says_so_where_it_must() {
    let server = server(&[]);
    server
        .admin(
            Method::PATCH,
            "/admin/v1/catalogue",
            &json!({ "limits": { "closed": { "algorithm": "fixed_window", "quota": 9, "window": "60s", "on_unavailable": "closed" } } }),
        )
        .succeeded();
    let mut redis = Redis::connect(&server);
    let fault = server.inject("store_full");
    wait_until("the store fails", Duration::from_secs(20), || {
        redis
            .call(&["HW.CHECK", "acme", "closed", ""])
            .starts_with("-UNAVAILABLE")
    });
    for _ in 0..3 {
        let answer = redis.call(&["CL.THROTTLE", "k", "0", "1", "60"]);
        assert!(answer.starts_with("[0 1 0 "), "{answer}");
    }
    server.heal(&fault);
}
