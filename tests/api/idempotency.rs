//! Idempotency: a key is bound to tenant, operation and body, and refusals are not frozen.

use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::counter::Hold;
use crate::server::Server;
use crate::server::Stop;

fn limits() -> serde_json::Value {
    json!({ "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "60s", "durability": "sync" } })
}

/// IDM-1 (a).
#[test]
fn a_key_with_another_body_is_refused_and_charges_nothing() {
    let server = Server::start();
    server.limits(&limits());
    let fixed = Counter::new(&server, "t", "fixed");
    let first = fixed.take_once("k", 1);
    assert!(first.allowed());
    let repeat = fixed.take_once("k", 1);
    same(&first, &repeat);
    fixed.take_once("k", 2).problem(422, "idempotency_mismatch");
    assert_eq!(fixed.used(), 1);
    same(&first, &fixed.take_once("\"k\"", 1));
    assert_eq!(fixed.used(), 1, "quoted or not, it is the same key");
}

/// A repeat gets the first answer again, also when time and use have moved on.
#[test]
fn a_repeat_gets_the_first_answer_again() {
    let server = Server::start();
    server.limits(&limits());
    let fixed = Counter::new(&server, "t", "fixed");
    let first = fixed.take_once("k", 2);
    assert_eq!(fixed.passes(5), 3);
    server.at(61_000);
    same(&first, &fixed.take_once("k", 2));
    assert_eq!(fixed.used(), 0, "the window that runs now is not charged");
}

/// IDM-1 (b).
#[test]
fn two_tenants_may_use_the_same_key() {
    let server = Server::start();
    server.limits(&limits());
    let [one, two] = ["t1", "t2"].map(|tenant| Counter::new(&server, tenant, "fixed"));
    assert_eq!(one.take_once("k", 1).used(), 1);
    assert_eq!(two.take_once("k", 3).used(), 3);
    assert_eq!((one.used(), two.used()), (1, 3));
}

/// IDM-1 (c). The rule: only allowed answers are remembered.
#[test]
fn a_refusal_is_judged_afresh() {
    let server = Server::start();
    server.limits(&limits());
    let fixed = Counter::new(&server, "t", "fixed");
    assert_eq!(fixed.passes(5), 5);
    server.at(30_000);
    assert!(!fixed.take_once("k2", 1).allowed());
    server.at(60_000);
    assert!(fixed.take_once("k2", 1).allowed());
    assert_eq!(fixed.used(), 1);
}

/// IDM-1 (d).
#[test]
fn each_operation_has_its_own_keys() {
    let server = Server::start();
    server.limits(&limits());
    let fixed = Counter::new(&server, "t", "fixed");
    let key = [("idempotency-key", "k")];
    assert_eq!(fixed.take_once("k", 2).used(), 2);
    let refund = server.post_with("/v1/refund", &key, &fixed.costing(1));
    assert_eq!(
        (refund.status, &refund.body["refunded"]),
        (200, &json!(1)),
        "{refund:?}"
    );
    let held = server.post_with("/v1/holds", &key, &fixed.costing(3));
    let hold = Hold::granted(&held);
    let settle = |cost: u64| {
        server.post_with(
            &format!("/v1/holds/{}/settle", hold.0),
            &key,
            &json!({ "cost": cost }),
        )
    };
    settle(1).succeeded();
    assert_eq!(fixed.used(), 2, "2 − 1 + 1");
    let again = server.post_with("/v1/holds", &key, &fixed.costing(3));
    assert_eq!(again.hold_id(), hold.0, "the same hold, not a second one");
    assert_eq!(fixed.used(), 2);
    server
        .post_with("/v1/holds", &key, &fixed.costing(1))
        .problem(422, "idempotency_mismatch");
    server
        .post_with("/v1/refund", &key, &fixed.costing(2))
        .problem(422, "idempotency_mismatch");
    settle(1).succeeded();
    assert_eq!(fixed.used(), 2);
}

/// Keys are kept for the retention and no longer.
#[test]
fn keys_are_remembered_for_the_retention() {
    let server = Server::with(&[("idempotency.retention", "\"1h\"")]);
    server.limits(&limits());
    let fixed = Counter::new(&server, "t", "fixed");
    let first = fixed.take_once("k", 1);
    server.at(3_599_999);
    same(&first, &fixed.take_once("k", 1));
    server.at(3_600_000);
    let after = fixed.take_once("k", 2);
    assert_eq!(
        (after.allowed(), after.used()),
        (true, 2),
        "forgotten, so judged afresh: {after:?}"
    );
}

/// An acknowledged keyed charge is known after kill -9.
#[test]
fn keys_survive_kill_9() {
    let mut server = Server::starting_soon();
    server.limits(&limits());
    let first = Counter::new(&server, "t", "fixed").take_once("k", 2);
    assert!(first.allowed());
    server.restart(Stop::Kill);
    let fixed = Counter::new(&server, "t", "fixed");
    same(&first, &fixed.take_once("k", 2));
    fixed.take_once("k", 3).problem(422, "idempotency_mismatch");
    assert_eq!(fixed.used(), 2);
}

/// When the table is full, new keys follow the limit's policy and nothing known is forgotten.
#[test]
fn a_full_table_follows_the_policy() {
    let server = Server::with(&[("idempotency.max_keys", "3")]);
    let limit = |policy: &str| json!({ "algorithm": "fixed_window", "quota": 50, "window": "60s", "on_unavailable": policy });
    server.limits(&json!({ "closed": limit("closed"), "open": limit("open") }));
    let [closed, open] = ["closed", "open"].map(|limit| Counter::new(&server, "t", limit));
    for key in ["1", "2", "3"] {
        assert!(closed.take_once(key, 1).allowed());
    }
    closed.take_once("4", 1).unavailable();
    assert_eq!(closed.used(), 3, "nothing was charged");
    let degraded = open.take_once("4", 1);
    assert_eq!(
        (degraded.allowed(), &degraded.only()["degraded"]),
        (true, &json!(true)),
        "{degraded:?}"
    );
    assert_eq!(closed.take_once("1", 1).used(), 1, "still known");
    assert!(closed.take(1).allowed(), "without a key all is well");
}

/// Keys that no caller means.
#[test]
fn odd_keys_are_refused() {
    let server = Server::start();
    server.limits(&limits());
    let fixed = Counter::new(&server, "t", "fixed");
    let long = "k".repeat(1000);
    for odd in ["", "\"\"", long.as_str()] {
        let refused = fixed.take_once(odd, 1);
        refused.problem(400, "malformed");
    }
    assert_eq!(fixed.used(), 0);
}

fn same(first: &Answer, repeat: &Answer) {
    assert_eq!(
        (repeat.status, &repeat.body),
        (first.status, &first.body),
        "{first:?}\n{repeat:?}"
    );
    for name in [
        "ratelimit",
        "ratelimit-policy",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ] {
        assert_eq!(repeat.header(name), first.header(name), "{name}");
    }
}
