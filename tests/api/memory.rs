//! Memory: a big limit costs nothing up front, and keys are bounded.

use std::fs;

use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;

const MIB: u64 = 1 << 20;

/// MEM-1: a log of a million entries is not set aside; memory follows the calls made, and comes back.
#[test]
fn a_sliding_log_takes_memory_for_the_calls_made() {
    let server = Server::start();
    let changed = server.limits(&json!({
        "log": { "algorithm": "sliding_log", "quota": 1_000_000, "window": "60s", "key": "visitor" },
    }));
    let warnings = changed.body["warnings"].to_string();
    assert!(
        warnings.contains("log") && warnings.contains("memory"),
        "the admin answer warns: {changed:?}"
    );

    let keys: Vec<String> = (0..10_000).map(|key| key.to_string()).collect();
    let calls: Vec<Value> = keys
        .iter()
        .map(|key| Counter::keyed(&server, "t", "log", key).body())
        .collect();
    call_all(&server, &calls[..1000]);
    let before = resident(&server);
    for calls in calls.chunks(1000) {
        call_all(&server, calls);
    }
    let grown = resident(&server).saturating_sub(before);
    // Most of it is what the allocator and the store set aside once; a million entries each would be 160 GB.
    assert!(
        grown < 64 * MIB,
        "10 000 keys with a call each took {grown} bytes"
    );

    server.at(0);
    let busy = Counter::keyed(&server, "t", "log", "busy");
    let one_thousand = vec![busy.body(); 1000];
    let before = resident(&server);
    for ms in 1..=200 {
        server.at(ms);
        call_all(&server, &one_thousand);
    }
    assert_eq!(busy.used(), 200_000);
    let once = resident(&server).saturating_sub(before);
    assert!(
        once < 32 * 200_000 + 48 * MIB,
        "200 000 calls took {once} bytes"
    );

    let before = resident(&server);
    for round in 1..=3 {
        for ms in 1..=100 {
            server.at(round * 61_000 + ms);
            call_all(&server, &one_thousand);
        }
        assert_eq!(
            busy.used(),
            100_000,
            "the entries before have left the window"
        );
    }
    let again = resident(&server).saturating_sub(before);
    assert!(
        again < 48 * MIB,
        "entries that left make room for new ones, yet {again} bytes more"
    );
}

/// At the bound a new key follows its limit's policy, marked degraded; a live one is never forgotten.
#[test]
fn at_the_bound_new_keys_follow_the_policy_and_live_ones_stay() {
    let server = Server::with(&[("memory.max_keys", "200")]);
    let limit = |policy: &str| json!({ "algorithm": "fixed_window", "quota": 2, "window": "60s", "key": "user", "on_unavailable": policy });
    server.limits(
        &json!({ "open": limit("open"), "closed": limit("closed"), "local": limit("local") }),
    );
    let keys: Vec<String> = (0..200).map(|key| key.to_string()).collect();
    for key in &keys {
        assert!(
            Counter::keyed(&server, "t", "closed", key)
                .take(2)
                .allowed()
        );
    }
    let mut degraded = 0;
    for new in ["new 1", "new 2", "new 3"] {
        Counter::keyed(&server, "t", "closed", new)
            .take(1)
            .unavailable();
        let open = Counter::keyed(&server, "t", "open", new).take(1);
        assert!(open.allowed());
        assert_eq!(
            (&open.only()["degraded"], &open.only()["decided_by"]),
            (&json!(true), &json!("fallback")),
            "{open:?}"
        );
        degraded += 1;
    }
    assert!(
        server.metric("rate_limit_degraded_total", &["policy=\"open\""]) >= f64::from(degraded)
    );
    for key in &keys {
        assert!(
            !Counter::keyed(&server, "t", "closed", key)
                .take(1)
                .allowed(),
            "{key} is still counted"
        );
    }
    server.at(120_000);
    crate::server::wait_until(
        "ended counters make room",
        std::time::Duration::from_secs(20),
        || {
            let fresh = Counter::keyed(&server, "t", "closed", "new 1").take(1);
            fresh.status == 200 && fresh.only()["degraded"] == false
        },
    );
}

/// One tenant's flood of keys does not touch another's, whether the catalogue names them or not.
#[test]
fn a_flood_of_one_tenant_does_not_touch_another() {
    let server = Server::with(&[
        ("memory.max_keys", "1000"),
        ("memory.max_keys_per_tenant", "100"),
    ]);
    server.catalogue(&json!({
        "limits": {
            "closed": {
                "algorithm": "fixed_window", "quota": 2, "window": "60s", "key": "user",
                "on_unavailable": "closed",
            },
        },
        "default_plan": "all",
        "plans": { "all": {} },
        "tenants": { "flood": {}, "calm": {} },
    }));
    let statuses = |tenant: &dyn Fn(usize) -> String, calls: usize| -> Vec<u16> {
        (0..calls)
            .map(|call| {
                let (tenant, key) = (tenant(call), call.to_string());
                Counter::keyed(&server, &tenant, "closed", &key)
                    .take(1)
                    .status
            })
            .collect()
    };
    let expected = [vec![200; 100], vec![503; 50]].concat();
    assert_eq!(statuses(&|_| "flood".to_owned(), 150), expected);
    assert_eq!(statuses(&|_| "unnamed flood".to_owned(), 150), expected);
    assert_eq!(statuses(&|call| format!("unnamed {call}"), 50), [200; 50]);
    assert_eq!(statuses(&|_| "calm".to_owned(), 50), [200; 50]);
    let answer = Counter::keyed(&server, "calm", "closed", "0").take(1);
    assert_eq!(
        (answer.used(), &answer.only()["degraded"]),
        (2, &json!(false))
    );
}

/// API-1, MEM-1: looks, usage reports and refusals of things that were never used leave nothing behind.
#[test]
fn looking_creates_no_counter() {
    let server = Server::with(&[("memory.max_keys", "10")]);
    server.limits(&json!({
        "closed": { "algorithm": "fixed_window", "quota": 2, "window": "60s", "key": "user", "on_unavailable": "closed" },
    }));
    for key in (0..100).map(|key| key.to_string()) {
        let counter = Counter::keyed(&server, "t", "closed", &key);
        assert_eq!(
            (counter.left(), counter.used(), counter.refunded(1)),
            (2, 0, 0)
        );
        assert!(!counter.take(3).allowed());
    }
    assert!(
        Counter::keyed(&server, "t", "closed", "first")
            .take(1)
            .allowed()
    );
}

fn call_all(server: &Server, calls: &[Value]) {
    for result in server.batch(calls) {
        assert_eq!(result["status"], 200, "{result}");
    }
}

/// Resident memory of the server in bytes.
fn resident(server: &Server) -> u64 {
    let status =
        fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server runs");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("resident memory");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number");
    kib * 1024
}
