//! API: the forms of a check, costs, looks, and what answers say.

use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::REGION;
use crate::server::Server;

fn three() -> Server {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 3, "window": "60s" } }));
    server
}

/// API-1. The rules: an absent cost is 1; null is no cost; cost 0 is a look, answered as cost 1 would be.
#[test]
fn cost_missing_zero_null_and_looking() {
    let server = three();
    let fixed = Counter::new(&server, "t", "fixed");
    let missing = server.check(&fixed.body());
    assert_eq!((missing.allowed(), missing.remaining()), (true, 2));
    let zero = fixed.look();
    assert_eq!(
        (zero.allowed(), zero.remaining(), zero.used()),
        (true, 2, 1)
    );
    server
        .check(&fixed.costing(Value::Null))
        .problem(400, "malformed");
    let usage = fixed.usage();
    assert_eq!(usage.only(), zero.only(), "the usage report equals a look");
    assert_eq!(fixed.passes(2), 2);
    let exhausted = fixed.look();
    assert!(!exhausted.allowed(), "would a cost of 1 pass? no");
    assert_eq!(
        (exhausted.remaining(), exhausted.retry_after()),
        (0, Some(60)),
        "{exhausted:?}"
    );
    let usage = fixed.usage();
    assert_eq!((usage.status, usage.remaining()), (200, 0), "{usage:?}");
}

/// Everything that an answer says of one limit, exactly.
#[test]
fn an_answer_says_all_there_is_to_know() {
    let server = three();
    server.at(20_000);
    let fixed = Counter::new(&server, "t", "fixed");
    let answer = fixed.take(2);
    let epoch = answer.number("epoch");
    let expected = json!({
        "decision": "allow", "region": REGION, "delay_ms": 0,
        "results": [{
            "limit": "fixed", "key": null, "mode": "regional", "decision": "allow",
            "quota": 3, "used": 2, "remaining": 1, "reset_after_ms": 40_000, "retry_after_ms": null,
            "decided_by": "local", "staleness_ms": 0, "degraded": false,
            "window_start_ms": server.epoch(), "epoch": epoch,
        }],
    });
    assert_eq!(without_null(&answer.body), without_null(&expected));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some("\"fixed\";q=3;w=60")
    );
    assert_eq!(answer.header("ratelimit"), Some("\"fixed\";r=1;t=40"));
    assert_eq!(answer.header("x-ratelimit-limit"), Some("3"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(answer.reset_at(), server.epoch() / 1000 + 60);

    let refused = fixed.take(2);
    assert!(!refused.allowed());
    assert_eq!(refused.body["violated-policies"], json!(["fixed"]));
    assert!(
        refused.body["title"].is_string() && refused.body["detail"].is_string(),
        "{refused:?}"
    );
    assert_eq!(refused.only()["decision"], "deny");
    assert_eq!(
        (
            refused.reason(),
            refused.retry_after_ms(),
            refused.remaining()
        ),
        ("quota_exceeded", Some(40_000), 1)
    );
}

/// All are charged or none.
#[test]
fn a_check_of_several_limits_charges_all_or_none() {
    let server = Server::start();
    server.limits(&json!({
        "wide": { "algorithm": "fixed_window", "quota": 10, "window": "60s" },
        "narrow": { "algorithm": "token_bucket", "capacity": 3, "refill": 1, "per": "60s", "key": "user" },
    }));
    let check = |cost: u64| {
        let checks = json!([{ "limit": "wide", "cost": cost }, { "limit": "narrow", "key": "u", "cost": cost }]);
        server.check(&json!({ "tenant": "t", "checks": checks }))
    };
    let (wide, narrow) = (
        Counter::new(&server, "t", "wide"),
        Counter::keyed(&server, "t", "narrow", "u"),
    );
    let answer = check(2);
    assert!(answer.allowed());
    let order: Vec<&str> = answer.body["results"]
        .as_array()
        .expect("results")
        .iter()
        .filter_map(|r| r["limit"].as_str())
        .collect();
    assert_eq!(
        order,
        ["wide", "narrow"],
        "results come in the order of the checks"
    );
    assert!(!check(2).allowed());
    assert_eq!((wide.used(), narrow.used()), (2, 2));
    assert!(check(1).allowed());
    assert_eq!((wide.used(), narrow.used()), (3, 3));
}

/// The third form charges every limit of the action whose key is absent or given.
#[test]
fn an_action_charges_its_limits() {
    let server = Server::start();
    server.limits(&json!({
        "account": { "algorithm": "fixed_window", "quota": 9, "window": "60s", "actions": ["api", "export"] },
        "endpoint": { "algorithm": "fixed_window", "quota": 9, "window": "60s", "key": "endpoint", "actions": ["api"] },
        "email": { "algorithm": "fixed_window", "quota": 9, "window": "60s", "key": "email", "actions": ["api"] },
        "export": { "algorithm": "fixed_window", "quota": 9, "window": "60s", "actions": ["export"] },
    }));
    let names = |body: Value| -> Vec<String> {
        let answer = server.check(&body);
        assert!(answer.allowed());
        let results = answer.body["results"].as_array().expect("results");
        results
            .iter()
            .map(|result| {
                format!(
                    "{}={}",
                    result["limit"].as_str().unwrap_or(""),
                    result["used"]
                )
            })
            .collect()
    };
    let keys = json!({ "endpoint": "POST /v1/sms", "ip": "203.0.113.9" });
    assert_eq!(
        names(json!({ "tenant": "t", "action": "api", "keys": keys, "cost": 2 })),
        ["account=2", "endpoint=2"]
    );
    assert_eq!(
        names(json!({ "tenant": "t", "action": "api" })),
        ["account=3"]
    );
    assert_eq!(
        names(json!({ "tenant": "t", "action": "export", "keys": {} })),
        ["account=4", "export=1"]
    );
    assert_eq!(
        names(json!({ "tenant": "t", "action": "nothing" })),
        [""; 0]
    );
}

/// Every mistake in a check has its code.
#[test]
fn mistakes_in_a_check_are_named() {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": {
            "plain": { "algorithm": "fixed_window", "quota": 3, "window": "60s" },
            "keyed": { "algorithm": "fixed_window", "quota": 3, "window": "60s", "key": "user" },
        },
        "tenants": { "t": {} },
    }));
    let one = |fields: Value| {
        let mut body = json!({ "tenant": "t" });
        body.as_object_mut()
            .expect("an object")
            .extend(fields.as_object().expect("an object").clone());
        server.check(&body)
    };
    one(json!({ "tenant": "nobody", "limit": "plain" })).problem(404, "unknown_tenant");
    one(json!({ "limit": "nothing" })).problem(404, "unknown_limit");
    one(json!({ "limit": "keyed" })).problem(400, "key_required");
    one(json!({ "limit": "plain", "key": "k" })).problem(400, "key_unexpected");
    one(json!({ "limit": "Plain" })).problem(404, "unknown_limit");
    one(json!({ "limit": "plain", "colour": "red" })).problem(400, "unknown_field");
    one(json!({ "checks": [{ "limit": "plain", "colour": "red" }] })).problem(400, "unknown_field");
    one(json!({ "checks": [{ "limit": "plain" }, { "limit": "plain" }] }))
        .problem(400, "duplicate_check");
    one(json!({ "checks": [{ "limit": "plain" }, { "limit": "nothing" }] }))
        .problem(404, "unknown_limit");
    one(json!({ "checks": [] })).problem(400, "malformed");
    one(json!({})).problem(400, "malformed");
    one(json!({ "limit": "plain", "checks": [{ "limit": "plain" }] })).problem(400, "malformed");
    one(json!({ "limit": "plain", "action": "api" })).problem(400, "malformed");
    let keyed: Vec<Value> = (0..17)
        .map(|key| json!({ "limit": "keyed", "key": key.to_string() }))
        .collect();
    one(json!({ "checks": keyed })).problem(400, "malformed");
    assert!(
        one(json!({ "checks": keyed[..16] })).allowed(),
        "sixteen are fine"
    );
    one(json!({ "checks": [{ "limit": "keyed", "key": "k" }, { "limit": "keyed", "key": "k" }] }))
        .problem(400, "duplicate_check");
    assert_eq!(
        Counter::new(&server, "t", "plain").used(),
        0,
        "no mistake was charged"
    );
    assert_eq!(Counter::keyed(&server, "t", "keyed", "k").used(), 0);
}

/// Shadow limits count and report, and refuse nothing.
#[test]
fn a_shadow_limit_says_what_it_would_have_done() {
    let server = Server::start();
    server.limits(&json!({ "shadow": { "algorithm": "fixed_window", "quota": 1, "window": "60s", "enforce": false } }));
    let shadow = Counter::new(&server, "t", "shadow");
    let first = shadow.take(1);
    assert!(first.allowed());
    assert_ne!(first.only()["would_deny"], true, "{first:?}");
    let second = shadow.take(1);
    assert!(second.allowed());
    assert_eq!(
        (&second.only()["would_deny"], second.used()),
        (&json!(true), 2),
        "{second:?}"
    );
    assert_eq!(second.remaining(), 0);
}

/// An unlimited limit counts, and tells neither quota nor remainder.
#[test]
fn an_unlimited_limit_counts() {
    let server = Server::start();
    server.limits(&json!({ "free": { "unlimited": true } }));
    let free = Counter::new(&server, "t", "free");
    let answer = free.take(1_000_000);
    assert!(answer.allowed());
    let result = answer.only();
    assert_eq!(
        (&result["quota"], &result["remaining"], &result["used"]),
        (&Value::Null, &Value::Null, &json!(1_000_000))
    );
    assert_eq!(
        answer.header("ratelimit"),
        None,
        "there is no quota to tell: {answer:?}"
    );
    assert_eq!(free.used(), 1_000_000);
}

/// Keys on the list are never refused; counted all the same.
#[test]
fn always_allowed_keys_are_counted() {
    let server = Server::start();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 1, "window": "60s", "key": "ip", "always_allow": ["127.0.0.1"] },
    }));
    let home = Counter::keyed(&server, "t", "fixed", "127.0.0.1");
    assert_eq!((home.passes(5), home.used()), (5, 5));
    assert_eq!(
        Counter::keyed(&server, "t", "fixed", "127.0.0.2").passes(5),
        1
    );
}

/// Overdraft: passes while one unit is left, then charges in full, past the quota.
#[test]
fn an_overdraft_passes_once_and_is_charged_in_full() {
    let server = Server::start();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 100, "window": "60s", "overdraft": true },
        "bucket": { "algorithm": "token_bucket", "capacity": 100, "refill": 1, "per": "1s", "overdraft": true },
    }));
    for limit in ["fixed", "bucket"] {
        let counter = Counter::new(&server, "t", limit);
        assert!(counter.take(99).allowed());
        let over = counter.take(50);
        // What a bucket has used is told as its capacity less what remains, so its debt shows in the wait.
        let used = if limit == "fixed" { 149 } else { 100 };
        assert_eq!(
            (over.allowed(), over.used(), over.remaining()),
            (true, used, 0),
            "{limit}: {over:?}"
        );
        let refused = counter.take(1);
        assert!(!refused.allowed(), "{limit}");
        let wait = if limit == "fixed" { 60 } else { 50 };
        assert_eq!(
            refused.retry_after(),
            Some(wait),
            "the debt is paid first: {refused:?}"
        );
    }
    server.at(49_000);
    assert!(!Counter::new(&server, "t", "bucket").take(1).allowed());
    server.at(50_000);
    assert!(Counter::new(&server, "t", "bucket").take(1).allowed());
}

/// The labels choose nothing.
#[test]
fn endpoint_and_ip_are_labels_only() {
    let server = three();
    let mut body = Counter::new(&server, "t", "fixed").body();
    for (call, endpoint) in ["/a", "/b", "/c", "/d"].into_iter().enumerate() {
        body["endpoint"] = endpoint.into();
        body["ip"] = format!("203.0.113.{call}").into();
        body["max_wait_ms"] = 0.into();
        assert_eq!(server.check(&body).allowed(), call < 3);
    }
}

/// `GET /v1/usage` names what it misses.
#[test]
fn the_usage_report_needs_a_known_limit() {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": { "keyed": { "algorithm": "fixed_window", "quota": 3, "window": "60s", "key": "user" } },
        "tenants": { "t": {} },
    }));
    server
        .get("/v1/usage?tenant=nobody&limit=keyed&key=k")
        .problem(404, "unknown_tenant");
    server
        .get("/v1/usage?tenant=t&limit=nothing&key=k")
        .problem(404, "unknown_limit");
    server
        .get("/v1/usage?tenant=t&limit=keyed")
        .problem(400, "key_required");
    server.get("/v1/usage?tenant=t").problem(400, "malformed");
    server
        .get("/v1/usage?tenant=t&limit=keyed&key=")
        .problem(400, "malformed");
    server
        .get("/v1/usage?tenant=t&limit=keyed&key=%ff")
        .problem(400, "malformed");
    server
        .get("/v1/usage?tenant=t&limit=keyed&key=k&colour=red")
        .problem(400, "unknown_field");
    let counter = Counter::keyed(&server, "t", "keyed", "k&k=%");
    assert!(counter.take(2).allowed());
    let usage = counter.usage();
    assert_eq!((usage.used(), usage.remaining()), (2, 1));
    assert_eq!(usage.body["by_region"], json!({ REGION: 2 }), "{usage:?}");
}

fn without_null(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), without_null(value)))
            .collect(),
        Value::Array(items) => items.iter().map(without_null).collect(),
        other => other.clone(),
    }
}

/// Units of a strict limit that are used come back with the next window, also by a look; and a cost that no window has is
/// told how this one stands.
#[test]
fn a_used_up_strict_limit_is_told_alike_to_a_check_a_look_and_a_cost_above_it() {
    let server = Server::start();
    server.limits(&json!({
        "paid": { "algorithm": "fixed_window", "quota": 3, "window": "1h", "mode": "strict" },
    }));
    let paid = Counter::new(&server, "t", "paid");
    assert_eq!(paid.passes_once_decided(3), 3);
    assert_eq!(paid.passes_once_decided(1), 0);
    let refused = paid.take(1);
    let wait = refused.retry_after().expect("a wait");
    assert!(wait > 1, "{refused:?}");
    let look = paid.look();
    assert_eq!(
        (look.status, look.retry_after()),
        (429, Some(wait)),
        "{look:?}"
    );
    let above = paid.take(4);
    assert_eq!(above.reason(), "cost_exceeds_quota");
    assert_eq!((above.used(), above.remaining()), (3, 0), "{above:?}");
    assert_eq!(above.retry_after(), None);
}
