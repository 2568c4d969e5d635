//! Unicode-key: the parts of a counter's name cannot run together, and keys are compared byte for byte.

use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;
use crate::server::Stop;

const AWKWARD: [&str; 16] = [
    " ",
    "a|b",
    "a/b",
    "a%3Ab",
    "a\u{0}b",
    "a",
    "A",
    "a ",
    "\u{0}",
    "é",
    "e\u{301}",
    "ß",
    "ss",
    "K",
    "\u{212a}",
    "\u{10ffff}",
];

fn once_each() -> Value {
    let once = json!({ "algorithm": "fixed_window", "quota": 1, "window": "1h", "key": "any", "durability": "sync" });
    json!({ "p": once, "p-x": once, "px": once })
}

/// KEY-1. Limit names cannot hold a colon, so "p" and "p:x" become "p", "p-x" and "px".
#[test]
fn different_triples_are_different_counters() {
    let server = Server::start();
    server.limits(&once_each());
    let triples = [
        ("a:b", "p", "c"),
        ("a", "p", "b:c"),
        ("a:b:", "p", "c"),
        ("a", "p", ":b:c"),
        ("21", "p", "1"),
        ("2", "p", "11"),
        ("2", "p", "1"),
        ("t", "p", "x"),
        ("t", "p-x", "x"),
        ("t", "px", "x"),
        ("t", "p", "-x"),
        ("t", "p", "-xx"),
        ("tp", "px", "x"),
        ("é", "p", "x"),
        ("e\u{301}", "p", "x"),
    ];
    let counters = triples.map(|(tenant, limit, key)| Counter::keyed(&server, tenant, limit, key));
    assert_eq!(
        counters.map(|counter| counter.take(1).allowed()),
        [true; 15],
        "each first call"
    );
    assert_eq!(
        counters.map(|counter| counter.take(1).allowed()),
        [false; 15],
        "each second call"
    );
    assert_eq!(
        counters.map(|counter| counter.used()),
        [1; 15],
        "by the usage report"
    );
}

/// KEY-1: no normalisation, no trimming, no decoding; a NUL is a byte like any other, also on disk.
#[test]
fn awkward_keys_are_counters_of_their_own_also_after_a_restart() {
    let mut server = Server::starting_soon();
    server.limits(&once_each());
    assert_eq!(
        AWKWARD.map(|key| Counter::keyed(&server, "t", "p", key).take(1).allowed()),
        [true; 16]
    );
    assert_eq!(
        AWKWARD.map(|key| Counter::keyed(&server, "t", "p", key).take(1).allowed()),
        [false; 16]
    );
    server.restart(Stop::Kill);
    assert_eq!(
        AWKWARD.map(|key| Counter::keyed(&server, "t", "p", key).used()),
        [1; 16]
    );
    assert_eq!(
        AWKWARD.map(|key| Counter::keyed(&server, "t", "p", key).take(1).allowed()),
        [false; 16]
    );
    let answer = Counter::keyed(&server, "t", "p", "a\u{0}b").take(1);
    assert_eq!(
        answer.only()["key"],
        "a\u{0}b",
        "the key comes back as it was sent: {answer:?}"
    );
}

/// KEY-1. The rule: an empty key is refused, and so is one of more than 512 bytes.
#[test]
fn keys_are_1_to_512_bytes() {
    let server = Server::start();
    server.limits(&once_each());
    Counter::keyed(&server, "t", "p", "")
        .take(1)
        .problem(400, "malformed");
    let longest = "k".repeat(512);
    assert!(
        Counter::keyed(&server, "t", "p", &longest)
            .take(1)
            .allowed()
    );
    let two_bytes_each = "é".repeat(256);
    assert!(
        Counter::keyed(&server, "t", "p", &two_bytes_each)
            .take(1)
            .allowed()
    );
    for too_long in ["k".repeat(513), format!("{two_bytes_each}k")] {
        Counter::keyed(&server, "t", "p", &too_long)
            .take(1)
            .problem(400, "malformed");
    }
}

/// Tenants are 1 to 128 bytes without control characters.
#[test]
fn tenants_are_1_to_128_bytes_without_control_characters() {
    let server = Server::start();
    server.limits(&once_each());
    let longest = "t".repeat(128);
    for good in [longest.as_str(), "a b", "a/b", "ü", "...", "-", "t\u{a0}"] {
        assert!(
            Counter::keyed(&server, good, "p", "k").take(1).allowed(),
            "{good:?}"
        );
    }
    let too_long = "t".repeat(129);
    for bad in [
        too_long.as_str(),
        "",
        ".",
        "..",
        "a\nb",
        "a\u{0}",
        "\u{7f}",
        "\u{85}",
    ] {
        Counter::keyed(&server, bad, "p", "k")
            .take(1)
            .problem(400, "malformed");
    }
}

/// Tenants with awkward names can be managed through the admin API's paths.
#[test]
fn awkward_tenants_have_admin_routes() {
    let server = Server::start();
    server.limits(&once_each());
    for tenant in ["a/b", "a:b", "a b", "a%2Fb", "ü", "?x=1#y", "+"] {
        let path = format!(
            "/admin/v1/tenants/{}",
            crate::counter::percent_encoded(tenant)
        );
        server
            .admin(reqwest::Method::PUT, &path, &json!({ "plan": "all" }))
            .succeeded();
        let read = server.admin(reqwest::Method::GET, &path, &Value::Null);
        read.succeeded();
        assert!(
            Counter::keyed(&server, tenant, "p", "k").take(1).allowed(),
            "{tenant}"
        );
        let reset = format!("{path}/limits/p/reset");
        server
            .admin(reqwest::Method::POST, &reset, &json!({ "key": "k" }))
            .succeeded();
        assert_eq!(
            Counter::keyed(&server, tenant, "p", "k").used(),
            0,
            "{tenant}"
        );
    }
}
