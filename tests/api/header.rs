//! Header: the RateLimit fields, Retry-After and their agreement with the body.

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::counter::Hold;
use crate::server::Server;

/// HDR-1.
#[test]
fn the_reset_keeps_counting_down_after_exhaustion() {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 2, "window": "60s" } }));
    let fixed = Counter::new(&server, "t", "fixed");
    let steps = [
        (0, true, 1, 60),
        (1000, true, 0, 59),
        (10_000, false, 0, 50),
        (59_500, false, 0, 1),
        (60_000, true, 1, 60),
    ];
    for (at, allowed, remaining, reset) in steps {
        server.at(at);
        let answer = fixed.take(1);
        assert_eq!(answer.allowed(), allowed, "at {at}: {answer:?}");
        assert_eq!(
            answer.rate_limit(),
            ("fixed".to_owned(), remaining, reset),
            "at {at}: {answer:?}"
        );
        let window_end = if at < 60_000 { 60 } else { 120 };
        assert_eq!(
            answer.reset_at(),
            server.epoch() / 1000 + window_end,
            "at {at}: {answer:?}"
        );
    }
}

/// HDR-1: 0 is a value like any other, not "unset".
#[test]
fn a_reset_of_zero_is_sent() {
    let server = Server::start();
    server.limits(&json!({
        "sockets": { "algorithm": "concurrency", "quota": 2, "ttl": "30s" },
        "bucket": { "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "1s" },
    }));
    let held = Counter::new(&server, "t", "sockets").hold(1, "");
    assert!(held.allowed());
    assert_eq!(held.rate_limit(), ("sockets".to_owned(), 1, 0), "{held:?}");
    assert_eq!(
        (held.policy("q"), held.policy("w")),
        (Some("2"), None),
        "{held:?}"
    );
    assert_eq!(
        held.policy("qu"),
        Some("\"concurrent-requests\""),
        "{held:?}"
    );
    let full = Counter::new(&server, "t", "bucket").look();
    assert_eq!(full.rate_limit(), ("bucket".to_owned(), 5, 0), "{full:?}");
}

/// HDR-3 (a, b).
#[test]
fn retry_after_is_rounded_up_and_waiting_exactly_that_works() {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "60s" } }));
    let fixed = Counter::new(&server, "t", "fixed");
    assert_eq!(fixed.passes(5), 5);
    server.at(10_600);
    let refused = fixed.take(1);
    assert!(!refused.allowed());
    assert_eq!(
        (refused.retry_after(), refused.retry_after_ms()),
        (Some(50), Some(49_400))
    );
    server.at(59_999);
    let refused = fixed.take(1);
    assert!(!refused.allowed());
    assert_eq!(
        (refused.retry_after(), refused.retry_after_ms()),
        (Some(1), Some(1))
    );
    server.at(60_600);
    assert!(fixed.take(1).allowed());
}

/// HDR-3 (c).
#[test]
fn the_time_until_a_bucket_is_full_is_exact() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 16, "refill": 30, "per": "60s" } }));
    let answer = Counter::new(&server, "t", "bucket").take(1);
    assert_eq!(
        answer.rate_limit(),
        ("bucket".to_owned(), 15, 2),
        "{answer:?}"
    );
    assert_eq!(answer.reset_after_ms(), 2000);
    assert_eq!(
        (answer.policy("q"), answer.policy("w")),
        (Some("16"), Some("32")),
        "capacity; time to refill it"
    );
}

/// HDR-5 (a).
#[test]
fn all_fields_describe_the_limit_nearest_to_exhaustion() {
    let server = two_limits();
    let (a, b) = (
        Counter::new(&server, "t", "a"),
        Counter::new(&server, "t", "b"),
    );
    assert!(b.take(98).allowed());
    server.at(30_000);
    assert!(a.take(7).allowed());
    let look = server.check(&both(0));
    assert!(look.allowed());
    assert_eq!(look.rate_limit(), ("b".to_owned(), 2, 30), "{look:?}");
    let answer = server.check(&both(1));
    assert!(answer.allowed());
    assert_eq!(answer.rate_limit(), ("b".to_owned(), 1, 30), "{answer:?}");
    assert_eq!(
        (answer.policy("q"), answer.policy("w")),
        (Some("100"), Some("60")),
        "{answer:?}"
    );
    assert_eq!(answer.header("x-ratelimit-limit"), Some("100"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(answer.reset_at(), server.epoch() / 1000 + 60);
    assert_eq!(
        answer.result("a")["remaining"],
        2,
        "each result tells of its own limit: {answer:?}"
    );
    assert_eq!(answer.result("b")["remaining"], 1, "{answer:?}");
}

/// HDR-5 (b). With windows aligned to whole seconds "0.4 s and 30 s" becomes 0.4 s and 29.4 s.
#[test]
fn a_refusal_tells_the_longest_wait_of_those_that_refused() {
    let server = two_limits();
    let (a, b) = (
        Counter::new(&server, "t", "a"),
        Counter::new(&server, "t", "b"),
    );
    assert!(b.take(100).allowed());
    server.at(30_600);
    assert!(a.take(10).allowed());
    let refused = server.check(&both(1));
    assert!(!refused.allowed());
    assert_eq!(refused.rate_limit(), ("b".to_owned(), 0, 30), "{refused:?}");
    assert_eq!(refused.retry_after(), Some(30), "{refused:?}");
    assert_eq!(refused.result("a")["retry_after_ms"], 400, "{refused:?}");
    assert_eq!(refused.result("b")["retry_after_ms"], 29_400, "{refused:?}");
    let mut violated: Vec<&str> = refused.body["violated-policies"]
        .as_array()
        .expect("an array")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    violated.sort_unstable();
    assert_eq!(violated, ["a", "b"], "{refused:?}");
}

/// A refusal by one limit of several names that one only and charges none.
#[test]
fn a_refusal_names_only_the_limits_that_refused() {
    let server = two_limits();
    let (a, b) = (
        Counter::new(&server, "t", "a"),
        Counter::new(&server, "t", "b"),
    );
    assert!(a.take(10).allowed());
    let refused = server.check(&both(1));
    assert!(!refused.allowed());
    assert_eq!(
        refused.body["violated-policies"],
        json!(["a"]),
        "{refused:?}"
    );
    assert_eq!(refused.result("b")["decision"], "allow", "{refused:?}");
    assert_eq!(refused.rate_limit(), ("a".to_owned(), 0, 1), "{refused:?}");
    assert_eq!(b.used(), 0);
}

/// Every answer forbids caches, and the body agrees with the headers.
#[test]
fn answers_are_not_to_be_cached() {
    let server = two_limits();
    let a = Counter::new(&server, "t", "a");
    for answer in [
        a.take(10),
        a.take(1),
        server.check(&json!({ "tenant": "t", "limit": "none" })),
    ] {
        assert_eq!(
            answer.header("cache-control"),
            Some("no-store"),
            "{answer:?}"
        );
    }
}

/// Each style is a set of headers; `none` sends none of them.
#[test]
fn the_style_picks_the_headers() {
    let families: [(&str, &[&str]); 4] = [
        ("ietf", &["ratelimit", "ratelimit-policy"]),
        (
            "github",
            &[
                "x-ratelimit-limit",
                "x-ratelimit-remaining",
                "x-ratelimit-reset",
            ],
        ),
        (
            "legacy",
            &["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
        ),
        ("none", &[]),
    ];
    for (style, expected) in families {
        let server = Server::with(&[("headers.style", &format!("[\"{style}\"]"))]);
        server.limits(
            &json!({ "fixed": { "algorithm": "fixed_window", "quota": 1, "window": "60s" } }),
        );
        let fixed = Counter::new(&server, "t", "fixed");
        for answer in [fixed.take(1), fixed.take(1)] {
            let mut found: Vec<&str> = answer
                .headers
                .iter()
                .map(|(name, _)| name.as_str())
                .filter(|name| name.contains("ratelimit"))
                .collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{style}: {answer:?}");
            if style == "legacy" {
                assert_eq!(
                    answer.header("ratelimit-reset"),
                    Some("60"),
                    "delta seconds: {answer:?}"
                );
                assert_eq!(answer.header("ratelimit-limit"), Some("1"), "{answer:?}");
            }
            assert_eq!(
                answer.status == 429,
                answer.retry_after().is_some(),
                "{style}: {answer:?}"
            );
        }
    }
}

/// A look and the usage report carry what the next check would.
#[test]
fn a_hold_carries_the_same_headers_as_a_check() {
    let server = two_limits();
    let b = Counter::new(&server, "t", "b");
    let held = b.hold(40, "30s");
    assert_eq!(held.rate_limit(), ("b".to_owned(), 60, 60), "{held:?}");
    Hold::granted(&held).settle(&server, 30).succeeded();
    assert_eq!(b.look().rate_limit(), ("b".to_owned(), 70, 60));
    let url = format!("{}/v1/check", server.admin_url());
    let answer = server.send(Method::POST, &url, &[], &b.costing(1));
    assert_eq!(
        answer.rate_limit(),
        ("b".to_owned(), 69, 60),
        "the admin listener serves the check routes too"
    );
}

fn two_limits() -> Server {
    let server = Server::start();
    server.limits(&json!({
        "a": { "algorithm": "fixed_window", "quota": 10, "window": "1s" },
        "b": { "algorithm": "fixed_window", "quota": 100, "window": "60s" },
    }));
    server
}

fn both(cost: u64) -> Value {
    json!({ "tenant": "t", "checks": [{ "limit": "a", "cost": cost }, { "limit": "b", "cost": cost }] })
}
