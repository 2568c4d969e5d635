//! Fail open/closed: what each limit does while this region cannot keep its answers.

use std::time::Duration;

use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::server::Server;
use crate::server::wait_until;

const NOTICED_WITHIN: Duration = Duration::from_secs(20);
const FAULTS: [&str; 2] = ["store_errors", "store_full"];

fn limits(durability: &str) -> Value {
    let limit = |policy: &str| json!({ "algorithm": "fixed_window", "quota": 3, "window": "60s", "on_unavailable": policy, "durability": durability });
    json!({
        "closed": limit("closed"), "open": limit("open"), "local": limit("local"),
        "canary": { "algorithm": "fixed_window", "quota": 1_000_000, "window": "60s", "on_unavailable": "closed" },
    })
}

/// Starts the fault and waits until the server has noticed: only a write tells it.
fn break_store(server: &Server, fault: &str) -> String {
    let id = server.inject(fault);
    let canary = Counter::new(server, "t", "canary");
    wait_until("the store is known to fail", NOTICED_WITHIN, || {
        canary.take(1).status == 503
    });
    id
}

fn mend_store(server: &Server, fault: &str) {
    server.heal(fault);
    let canary = Counter::new(server, "t", "canary");
    wait_until("the store works again", NOTICED_WITHIN, || {
        let answer = canary.take(1);
        answer.status == 200 && answer.only()["degraded"] == false
    });
}

fn hundred(server: &Server, limit: &str) -> Vec<Answer> {
    server.in_parallel(
        10,
        10,
        "/v1/check",
        &Counter::new(server, "t", limit).body(),
    )
}

fn allowed(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.status == 200).count()
}

/// FAIL-1, with both kinds of failure and with answers that wait for the disk and without.
#[test]
fn each_policy_does_exactly_what_it_says_and_recovers_without_a_restart() {
    for fault in FAULTS {
        for durability in ["async", "sync"] {
            let server = Server::start();
            server.limits(&limits(durability));
            let id = break_store(&server, fault);
            let degraded_before = server.metric("rate_limit_degraded_total", &["policy=\"open\""]);

            let closed = hundred(&server, "closed");
            for answer in &closed {
                answer.unavailable();
                assert_eq!(answer.only()["decided_by"], "fallback", "{answer:?}");
            }

            let open = hundred(&server, "open");
            assert_eq!(allowed(&open), 100, "{fault}, {durability}");
            for answer in &open {
                let result = answer.only();
                assert_eq!(
                    (&result["degraded"], &result["decided_by"]),
                    (&json!(true), &json!("fallback")),
                    "{answer:?}"
                );
            }
            let degraded =
                server.metric("rate_limit_degraded_total", &["policy=\"open\""]) - degraded_before;
            assert!(
                (degraded - 100.0).abs() < 0.5,
                "{degraded} counted; {fault}, {durability}"
            );

            let local = hundred(&server, "local");
            assert_eq!(allowed(&local), 3, "{fault}, {durability}");
            for answer in local.iter().filter(|answer| answer.status == 200) {
                assert_eq!(answer.only()["degraded"], true, "{answer:?}");
            }

            mend_store(&server, &id);
            server.at(60_000);
            for limit in ["closed", "open", "local"] {
                let answers = hundred(&server, limit);
                assert_eq!(allowed(&answers), 3, "{limit} after {fault}, {durability}");
                assert!(
                    answers
                        .iter()
                        .all(|answer| answer.only()["degraded"] == false)
                );
            }
        }
    }
}

/// FAIL-1: the mistakes of a caller never follow the policy.
#[test]
fn mistakes_of_the_caller_do_not_follow_the_policy() {
    let server = Server::start();
    server.catalogue(&json!({ "limits": limits("async"), "tenants": { "t": {} } }));
    for fault in FAULTS {
        let id = break_store(&server, fault);
        server.post_text("/v1/check", "{").problem(400, "malformed");
        Counter::new(&server, "nobody", "open")
            .take(1)
            .problem(404, "unknown_tenant");
        Counter::new(&server, "t", "nothing")
            .take(1)
            .problem(404, "unknown_limit");
        Counter::keyed(&server, "t", "open", "k")
            .take(1)
            .problem(400, "key_unexpected");
        let too_much = Counter::new(&server, "t", "closed").take(4);
        assert!(matches!(too_much.status, 429 | 503), "{too_much:?}");
        mend_store(&server, &id);
    }
}

/// Readiness tells that the store has failed; liveness does not.
#[test]
fn a_failing_store_is_not_ready_but_alive() {
    let server = Server::start();
    server.limits(&limits("async"));
    assert_eq!(
        (server.get("/readyz").status, server.get("/livez").status),
        (200, 200)
    );
    let id = break_store(&server, "store_errors");
    assert_eq!(
        (server.get("/readyz").status, server.get("/livez").status),
        (503, 200)
    );
    mend_store(&server, &id);
    wait_until("ready again", NOTICED_WITHIN, || {
        server.get("/readyz").status == 200
    });
}

/// A check of several limits passes only when each of its policies lets it: one closed is enough for a 503, and
/// a real refusal beats it.
#[test]
fn refused_beats_unavailable_beats_allowed() {
    let server = Server::start();
    server.limits(&limits("async"));
    assert_eq!(Counter::new(&server, "t", "local").passes(3), 3);
    let id = break_store(&server, "store_errors");
    let check = |limits: &[&str]| {
        let checks: Vec<Value> = limits
            .iter()
            .map(|limit| json!({ "limit": limit }))
            .collect();
        server
            .check(&json!({ "tenant": "t", "checks": checks }))
            .status
    };
    assert_eq!(check(&["open", "canary"]), 503);
    assert_eq!(
        check(&["open", "local"]),
        429,
        "local knows that its quota is used up"
    );
    assert_eq!(check(&["local", "canary"]), 429);
    assert_eq!(check(&["open"]), 200);
    mend_store(&server, &id);
    assert_eq!(Counter::new(&server, "t", "canary").look().status, 200);
}

/// Admin writes that cannot be kept are not acknowledged and not in force.
#[test]
fn an_admin_write_that_cannot_be_kept_is_refused() {
    let server = Server::start();
    server.limits(&limits("async"));
    let id = break_store(&server, "store_errors");
    let raised = json!({ "algorithm": "fixed_window", "quota": 77, "window": "60s", "on_unavailable": "open" });
    let refused = server.admin(reqwest::Method::PUT, "/admin/v1/limits/open", &raised);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(Counter::new(&server, "t", "open").look().quota(), 3);
    mend_store(&server, &id);
    server
        .admin(reqwest::Method::PUT, "/admin/v1/limits/open", &raised)
        .succeeded();
    assert_eq!(Counter::new(&server, "t", "open").look().quota(), 77);
}

/// What was charged before the fault is there after it, also through a restart.
#[test]
fn use_from_before_a_fault_is_kept() {
    let mut server = Server::starting_soon();
    server.limits(&limits("sync"));
    assert_eq!(Counter::new(&server, "t", "closed").passes(2), 2);
    let id = break_store(&server, "store_full");
    assert_eq!(Counter::new(&server, "t", "closed").usage().used(), 2);
    mend_store(&server, &id);
    assert_eq!(Counter::new(&server, "t", "closed").passes(2), 1);
    server.restart(crate::server::Stop::Kill);
    assert_eq!(Counter::new(&server, "t", "closed").used(), 3);
}

/// Faults need the configuration to allow them, and end by themselves.
#[test]
fn faults_are_off_unless_enabled_and_end_at_their_ttl() {
    let off = Server::with(&[("faults.enabled", "false")]);
    let fault = json!({ "kind": "store_errors", "ttl": "1s" });
    off.admin(reqwest::Method::POST, "/admin/v1/faults", &fault)
        .problem(404, "not_found");

    let server = Server::start();
    server.limits(&limits("async"));
    for odd in [
        json!({ "kind": "store_errors" }),
        json!({ "kind": "store_errors", "ttl": "16m" }),
        json!({ "kind": "fire", "ttl": "1s" }),
    ] {
        let refused = server.admin(reqwest::Method::POST, "/admin/v1/faults", &odd);
        assert!(matches!(refused.status, 400 | 422), "{odd}: {refused:?}");
    }
    server
        .admin(reqwest::Method::POST, "/admin/v1/faults", &fault)
        .succeeded();
    let canary = Counter::new(&server, "t", "canary");
    wait_until("the store works by itself again", NOTICED_WITHIN, || {
        let listed = server.admin(reqwest::Method::GET, "/admin/v1/faults", &Value::Null);
        !listed.text.contains("store_errors") && canary.take(1).status == 200
    });
}
