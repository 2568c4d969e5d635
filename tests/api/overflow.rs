//! Overflow: high rates, awkward fractions, large and odd numbers.

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;

/// NUM-2 (a).
#[test]
fn a_rate_that_is_no_whole_number_per_second_loses_no_count() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 1001, "refill": 1000, "per": "60s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    assert_eq!([0; 3].map(|_| bucket.take(1).remaining()), [1000, 999, 998]);
}

/// NUM-2 (b): 0.5 ms is told as 1 ms, durations in answers are whole milliseconds rounded up. The manual clock
/// counts milliseconds; the trace of a call every 0.25 ms is a test of the algorithm itself.
#[test]
fn an_interval_below_a_millisecond_is_not_rounded_to_nothing() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 1, "refill": 2000, "per": "1s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    for ms in 0..100 {
        server.at(ms);
        assert!(bucket.take(1).allowed(), "at {ms} ms");
        let refused = bucket.take(1);
        assert!(!refused.allowed(), "at {ms} ms");
        assert_eq!(
            (refused.retry_after_ms(), refused.retry_after()),
            (Some(1), Some(1))
        );
    }
}

/// NUM-2 (c).
#[test]
fn a_large_bucket_is_exact_at_one_instant() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 6000, "refill": 6000, "per": "1s" } }));
    let calls = vec![Counter::new(&server, "t", "bucket").body(); 1000];
    let allowed: usize = (0..7).map(|_| count_allowed(&server.batch(&calls))).sum();
    assert_eq!(allowed, 6000);
}

/// NUM-2 (d): two thousand million per second works exactly.
#[test]
fn a_rate_above_one_per_nanosecond_is_exact() {
    let server = Server::start();
    server.limits(&json!({
        "bucket": { "algorithm": "token_bucket", "capacity": 2_000_000_000, "refill": 2_000_000_000, "per": "1s" },
    }));
    let bucket = Counter::new(&server, "t", "bucket");
    assert_eq!(bucket.take(2_000_000_000).remaining(), 0);
    assert!(!bucket.take(1).allowed());
    server.at(1);
    assert_eq!(bucket.left(), 2_000_000);
    let refused = bucket.take(5_000_000);
    assert!(!refused.allowed());
    assert_eq!(refused.retry_after_ms(), Some(2), "1.5 ms, rounded up");
    server.at(1000);
    assert_eq!(bucket.left(), 2_000_000_000);
}

/// The largest amounts and the largest cost work without overflow.
#[test]
fn the_largest_amounts_are_exact() {
    let largest = (1_u64 << 53) - 1;
    let server = Server::start();
    server.limits(&json!({
        "bucket": { "algorithm": "token_bucket", "capacity": largest, "refill": largest, "per": "1s" },
        "fixed": { "algorithm": "fixed_window", "quota": largest, "window": "1s" },
        "sliding": { "algorithm": "sliding_window", "quota": largest, "window": "1s" },
    }));
    for limit in ["bucket", "fixed", "sliding"] {
        let counter = Counter::new(&server, "t", limit);
        assert_eq!(counter.take(largest).remaining(), 0, "{limit}");
        let refused = counter.take(largest);
        assert!(!refused.allowed(), "{limit}");
        assert!(
            refused
                .retry_after_ms()
                .is_some_and(|ms| (1..=2000).contains(&ms)),
            "{refused:?}"
        );
    }
}

/// NUM-4: 10 000 fresh keys at clock values around powers of two (of seconds, milliseconds, nanoseconds) and
/// near 1.8 × 10¹² ms, at rates whose interval is no whole number of nanoseconds.
#[test]
fn the_first_call_of_a_fresh_key_never_fails_by_rounding() {
    let server = Server::start();
    let bucket = |capacity: u64, refill: u64, per: &str| json!({ "algorithm": "token_bucket", "capacity": capacity, "refill": refill, "per": per, "key": "user" });
    server.limits(&json!({
        "thrice": bucket(3, 3, "1s"), "seven": bucket(7, 7, "1s"), "third": bucket(1, 1, "3s"), "odd": bucket(17, 17, "30s"),
    }));
    let around = [
        1_800_000_000_000_i64,
        1000 << 31,
        1 << 41,
        (1 << 61) / 1_000_000,
    ];
    for base in around {
        for offset in [-200, -1, 0, 1, 200] {
            let at = base + offset;
            server.set_clock(at);
            let keys: Vec<String> = (0..500).map(|key| format!("{at}-{key}")).collect();
            let takes: Vec<Value> = keys
                .iter()
                .map(|key| Counter::keyed(&server, "t", "thrice", key).body())
                .collect();
            for result in server.batch(&takes) {
                assert_eq!(
                    (&result["status"], remaining(&result)),
                    (&json!(200), Some(2)),
                    "at {at}: {result}"
                );
            }
            let key = format!("look-{at}");
            for (limit, capacity) in [("thrice", 3), ("seven", 7), ("third", 1), ("odd", 17)] {
                let fresh = Counter::keyed(&server, "t", limit, &key);
                let look = fresh.look();
                assert_eq!(
                    (look.allowed(), look.remaining()),
                    (true, capacity),
                    "{limit} at {at}: {look:?}"
                );
                assert_eq!(fresh.take(1).remaining(), capacity - 1, "{limit} at {at}");
            }
        }
    }
}

/// NUM-6, costs. By the documented rule a cost is an integer of 0 … 2⁵³ − 1: a larger one is malformed, like the
/// other odd ones, where the case would have it refused as never possible.
#[test]
fn odd_costs_are_refused_and_charge_nothing() {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "60s" } }));
    let fixed = Counter::new(&server, "t", "fixed");
    assert!(fixed.take(5).allowed());
    for possible in [4_294_967_296_u64, (1 << 53) - 1] {
        let refused = fixed.take(possible);
        assert!(!refused.allowed());
        assert_eq!(
            (refused.reason(), refused.retry_after()),
            ("cost_exceeds_quota", None),
            "{refused:?}"
        );
        assert_eq!(refused.used(), 5);
    }
    let odd = [
        "9007199254740992",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "1e400",
        "1e2",
        "0.5",
        "1.0",
        "-1",
        "\"1\"",
        "true",
        "null",
        "[1]",
        "{}",
    ];
    for cost in odd {
        let body = format!("{{\"tenant\":\"t\",\"limit\":\"fixed\",\"cost\":{cost}}}");
        server
            .post_text("/v1/check", &body)
            .problem(400, "malformed");
        server
            .post_text("/v1/holds", &body)
            .problem(400, "malformed");
        server
            .post_text("/v1/refund", &body)
            .problem(400, "malformed");
        assert_eq!(fixed.used(), 5, "after cost {cost}");
    }
}

/// NUM-6, amounts: the largest reads back exactly, a larger one is refused by name of its field.
#[test]
fn the_largest_quota_reads_back_exactly_and_a_larger_one_is_refused() {
    let server = Server::start();
    server.limits(&json!({}));
    let limit = |quota: &str| {
        format!("{{\"algorithm\":\"fixed_window\",\"window\":\"60s\",\"quota\":{quota}}}")
    };
    let put = |quota: &str| {
        let url = format!("{}/admin/v1/limits/big", server.admin_url());
        server.send_text(
            Method::PUT,
            &url,
            &[("authorization", "Bearer dev")],
            &limit(quota),
        )
    };
    put("9007199254740991").succeeded();
    let read = server.admin(Method::GET, "/admin/v1/limits/big", &Value::Null);
    assert!(read.text.contains("9007199254740991"), "{read:?}");
    for quota in [
        "9007199254740992",
        "9007199254740993",
        "18446744073709551616",
        "-1",
        "0.5",
        "1e3",
        "\"10\"",
        "true",
    ] {
        let refused = put(quota);
        assert!(matches!(refused.status, 400 | 422), "{quota}: {refused:?}");
        assert!(
            refused.text.contains("quota"),
            "the answer names the field: {refused:?}"
        );
        let read = server.admin(Method::GET, "/admin/v1/limits/big", &Value::Null);
        assert!(
            read.text.contains("9007199254740991"),
            "{quota} changed nothing: {read:?}"
        );
    }
}

fn count_allowed(results: &[Value]) -> usize {
    results
        .iter()
        .filter(|result| result["status"] == 200)
        .count()
}

fn remaining(result: &Value) -> Option<u64> {
    result["results"][0]["remaining"].as_u64()
}
