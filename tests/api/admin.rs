//! Admin: what changes of the catalogue do to running counters.

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;

fn window(quota: u64, window: &str) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": window })
}

/// ADM-1.
#[test]
fn raising_a_limit_acts_at_once_and_in_the_listing() {
    let server = Server::start();
    server.limits(&json!({ "fixed": window(5, "60s") }));
    let fixed = Counter::new(&server, "t", "fixed");
    assert_eq!(fixed.passes(6), 5);
    server
        .admin(Method::PUT, "/admin/v1/limits/fixed", &window(10, "60s"))
        .succeeded();
    assert_eq!(fixed.passes(3), 3);
    let usage = fixed.usage();
    assert_eq!(
        (usage.quota(), usage.used(), usage.remaining()),
        (10, 8, 2),
        "{usage:?}"
    );
    assert_eq!(fixed.passes(3), 2);
}

/// Lowering it below what is used leaves nothing, and nothing wraps around.
#[test]
fn lowering_a_limit_below_its_use_leaves_nothing() {
    let server = Server::start();
    server.limits(&json!({ "fixed": window(10, "60s") }));
    let fixed = Counter::new(&server, "t", "fixed");
    assert_eq!(fixed.passes(8), 8);
    server
        .admin(Method::PUT, "/admin/v1/limits/fixed", &window(5, "60s"))
        .succeeded();
    let usage = fixed.usage();
    assert_eq!(
        (usage.quota(), usage.used(), usage.remaining()),
        (5, 8, 0),
        "{usage:?}"
    );
    assert!(!fixed.take(1).allowed());
    server.at(60_000);
    assert_eq!(fixed.passes(6), 5);
}

/// A change of capacity keeps what a bucket has used.
#[test]
fn changing_a_bucket_keeps_its_use() {
    let server = Server::start();
    let bucket = |capacity: u64| json!({ "bucket": { "algorithm": "token_bucket", "capacity": capacity, "refill": 1, "per": "10s" } });
    server.limits(&bucket(10));
    let counter = Counter::new(&server, "t", "bucket");
    assert!(counter.take(7).allowed());
    server.limits(&bucket(20));
    assert_eq!((counter.look().used(), counter.left()), (7, 13));
    server.limits(&bucket(5));
    assert_eq!(
        (counter.usage().remaining(), counter.look().allowed()),
        (0, false)
    );
}

/// ADM-3 (a). The rule: a new window is a new epoch that starts from zero at once.
#[test]
fn changing_the_window_starts_from_zero() {
    let server = Server::start();
    server.limits(&json!({ "fixed": window(5, "60s") }));
    let fixed = Counter::new(&server, "t", "fixed");
    server.at(20_000);
    assert_eq!(fixed.passes(4), 4);
    let before = fixed.look().number("epoch");
    server.at(21_000);
    let changed = server.admin(Method::PUT, "/admin/v1/limits/fixed", &window(5, "10s"));
    changed.succeeded();
    assert!(
        changed.text.contains("fixed"),
        "the answer says which limits start from zero: {changed:?}"
    );
    server.at(22_000);
    assert_eq!(fixed.passes(3), 3);
    assert!(fixed.look().number("epoch") > before);
    server.at(31_000);
    assert_eq!(fixed.passes(6), 5);
}

/// ADM-3 (b). The rule: deleting removes the use.
#[test]
fn a_limit_that_is_made_again_starts_from_zero() {
    let server = Server::start();
    let month = json!({ "algorithm": "calendar_window", "quota": 3, "period": "month" });
    server.limits(&json!({ "monthly": month.clone() }));
    let monthly = Counter::new(&server, "t", "monthly");
    assert_eq!(monthly.passes(4), 3);
    server
        .admin(Method::DELETE, "/admin/v1/limits/monthly", &Value::Null)
        .succeeded();
    monthly.take(1).problem(404, "unknown_limit");
    server
        .admin(Method::PUT, "/admin/v1/limits/monthly", &month)
        .succeeded();
    assert_eq!(monthly.passes(4), 3);
}

/// ADM-5 (a): without a key two routes share one counter, with one each has its own.
#[test]
fn which_calls_share_a_counter_is_declared() {
    let server = Server::start();
    server.limits(&json!({
        "shared": { "algorithm": "fixed_window", "quota": 5, "window": "60s", "actions": ["shared"] },
        "apart": { "algorithm": "fixed_window", "quota": 5, "window": "60s", "key": "route", "actions": ["apart"] },
    }));
    let passes = |action: &str| {
        let call =
            |route: &str| json!({ "tenant": "t", "action": action, "keys": { "route": route } });
        (0..3)
            .flat_map(|_| ["R1", "R2"])
            .filter(|route| server.check(&call(route)).allowed())
            .count()
    };
    assert_eq!(passes("shared"), 5);
    assert_eq!(passes("apart"), 6);
}

/// ADM-5 (b): limits of one period on one key do not feed each other.
#[test]
fn limits_of_equal_periods_count_apart() {
    let server = Server::start();
    let minute = |quota: u64| json!({ "algorithm": "fixed_window", "quota": quota, "window": "60s", "key": "user" });
    server.limits(&json!({ "a": minute(5), "b": minute(5), "c": minute(10), "d": minute(20) }));
    let checks: Vec<Value> = ["a", "b", "c", "d"]
        .map(|limit| json!({ "limit": limit, "key": "k" }))
        .into();
    assert!(
        server
            .check(&json!({ "tenant": "t", "checks": checks }))
            .allowed()
    );
    for (limit, quota) in [("a", 5), ("b", 5), ("c", 10), ("d", 20)] {
        let usage = Counter::keyed(&server, "t", limit, "k").usage();
        assert_eq!(
            (usage.used(), usage.quota()),
            (1, quota),
            "{limit}: {usage:?}"
        );
    }
}

/// ADM-5 (c).
#[test]
fn a_narrow_limit_on_marked_calls_does_not_count_the_others() {
    let server = Server::start();
    server.limits(&json!({
        "all": { "algorithm": "fixed_window", "quota": 200, "window": "60s", "key": "user", "actions": ["plain", "marked"] },
        "marked": { "algorithm": "fixed_window", "quota": 2, "window": "60s", "key": "user", "actions": ["marked"] },
    }));
    let call = |action: &str| {
        server
            .check(&json!({ "tenant": "t", "action": action, "keys": { "user": "u" } }))
            .allowed()
    };
    assert_eq!((0..10).filter(|_| call("plain")).count(), 10);
    assert_eq!((0..2).filter(|_| call("marked")).count(), 2);
    assert!(!call("marked"));
    assert_eq!(Counter::keyed(&server, "t", "all", "u").used(), 12);
}

/// A reset starts a new epoch: of one key, or of all keys.
#[test]
fn a_reset_brings_use_back_to_zero() {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": { "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "60s", "key": "user" } },
        "tenants": { "t": {}, "u": {} },
    }));
    let [a, b] = ["a", "b"].map(|key| Counter::keyed(&server, "t", "fixed", key));
    let other = Counter::keyed(&server, "u", "fixed", "a");
    assert_eq!([a, b, other].map(|counter| counter.passes(5)), [5; 3]);
    let reset = "/admin/v1/tenants/t/limits/fixed/reset";
    server
        .admin(Method::POST, reset, &json!({ "key": "a" }))
        .succeeded();
    assert_eq!([a, b, other].map(|counter| counter.used()), [0, 5, 5]);
    assert_eq!(a.passes(6), 5);
    server.admin(Method::POST, reset, &json!({})).succeeded();
    assert_eq!([a, b, other].map(|counter| counter.used()), [0, 0, 5]);
}

/// Plans and overrides of amounts keep the use; an override may end by itself.
#[test]
fn moving_between_plans_keeps_the_use() {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": { "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "1h", "key": "user" } },
        "plans": { "pro": { "limits": { "fixed": { "quota": 50 } } }, "free": {} },
        "tenants": { "t": { "plan": "free" } },
    }));
    let counter = Counter::keyed(&server, "t", "fixed", "u");
    assert_eq!(counter.passes(6), 5);
    server
        .admin(
            Method::PUT,
            "/admin/v1/tenants/t",
            &json!({ "plan": "pro" }),
        )
        .succeeded();
    assert_eq!((counter.look().quota(), counter.look().used()), (50, 5));
    let path = "/admin/v1/tenants/t/limits/fixed/override?key=u";
    let until = json!({ "quota": 7, "expires_at": "2035-01-01T00:10:00Z" });
    server.admin(Method::PUT, path, &until).succeeded();
    assert_eq!((counter.look().quota(), counter.left()), (7, 2));
    server.at(600_000 - 1);
    assert_eq!(counter.look().quota(), 7);
    server.at(600_000);
    assert_eq!(
        (counter.look().quota(), counter.left()),
        (50, 45),
        "the override has ended"
    );
    server
        .admin(
            Method::PUT,
            "/admin/v1/tenants/t",
            &json!({ "plan": "free" }),
        )
        .succeeded();
    assert_eq!(
        (counter.look().quota(), counter.usage().remaining()),
        (5, 0)
    );
    server
        .admin(Method::DELETE, "/admin/v1/plans/free", &Value::Null)
        .problem_with_status(409);
}

/// A write that lost a race is told so and changes nothing.
#[test]
fn a_lost_race_is_refused() {
    let server = Server::start();
    server.limits(&json!({ "fixed": window(5, "60s") }));
    let read = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
    let version = read.body["version"]
        .as_u64()
        .unwrap_or_else(|| panic!("no version: {read:?}"));
    let url = format!("{}/admin/v1/limits/fixed", server.admin_url());
    let put = |version: u64, quota: u64| {
        let tag = format!("\"{version}\"");
        let headers = [("authorization", "Bearer dev"), ("if-match", tag.as_str())];
        server.send(Method::PUT, &url, &headers, &window(quota, "60s"))
    };
    let written = put(version, 6);
    written.succeeded();
    assert!(
        written.body["version"].as_u64() > Some(version),
        "{written:?}"
    );
    put(version, 7).problem(412, "version_mismatch");
    assert_eq!(Counter::new(&server, "t", "fixed").look().quota(), 6);
}

/// All or nothing: one bad part of a document leaves everything as it was, and is named.
#[test]
fn a_bad_part_refuses_the_whole_document() {
    let server = Server::start();
    server.limits(&json!({ "fixed": window(5, "60s") }));
    let before = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
    let bad: [(Value, &str); 13] = [
        (
            json!({ "algorithm": "fixed_window", "quota": 5, "window": "0s" }),
            "window",
        ),
        (json!({ "algorithm": "fixed_window", "quota": 5 }), "window"),
        (
            json!({ "algorithm": "fixed_window", "window": "1s" }),
            "quota",
        ),
        (
            json!({ "algorithm": "fixed_window", "quota": 5, "window": "1s", "refill": 3 }),
            "refill",
        ),
        (
            json!({ "algorithm": "fixed_window", "quota": 5, "window": "1s", "colour": "red" }),
            "colour",
        ),
        (
            json!({ "algorithm": "leaky_bucket", "capacity": 5, "drain": 0, "per": "1s" }),
            "drain",
        ),
        (
            json!({ "algorithm": "token_bucket", "capacity": 0, "refill": 1, "per": "1s" }),
            "capacity",
        ),
        (
            json!({ "algorithm": "token_bucket", "capacity": 400, "refill": 1, "per": "10d" }),
            "capacity",
        ),
        (
            json!({ "algorithm": "leaky_bucket", "capacity": 5, "drain": 1, "per": "1s", "mode": "strict" }),
            "mode",
        ),
        (
            json!({ "algorithm": "fixed_window", "quota": 5, "window": "1s", "mode": "global" }),
            "mode",
        ),
        (
            json!({ "algorithm": "calendar_window", "quota": 5, "period": "day", "time_zone": "Mars/Olympus" }),
            "time_zone",
        ),
        (json!({ "quota": 5, "window": "1s" }), "algorithm"),
        (
            json!({ "algorithm": "magic", "quota": 5, "window": "1s" }),
            "algorithm",
        ),
    ];
    for (limit, field) in bad {
        let document = json!({
            "default_plan": "all", "plans": { "all": {} },
            "limits": { "fixed": window(9, "60s"), "bad": limit.clone() },
        });
        for method in [Method::PUT, Method::PATCH] {
            let refused = server.admin(method, "/admin/v1/catalogue", &document);
            refused.problem_with_status(422);
            assert!(
                refused.text.contains(field),
                "{limit} names {field}: {refused:?}"
            );
        }
        let after = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
        assert_eq!(after.body, before.body, "{limit}");
    }
}
