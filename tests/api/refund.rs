//! Refund: at most what the current window has in use, once, and possible at zero.

use serde_json::json;

use crate::counter::Counter;
use crate::counter::Hold;
use crate::server::Server;

/// REF-2 (a, b). The rule: a refund names no reservation; it gives back at most what the current window has in
/// use. So refunding 7 after all ten units are used again gives 7 back, and never are there 11.
#[test]
fn a_refund_gives_back_at_most_what_is_in_use() {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "60s" } }));
    let fixed = Counter::new(&server, "t", "fixed");
    assert!(fixed.take(10).allowed());
    assert!(!fixed.take(1).allowed());
    assert_eq!(fixed.refunded(4), 4);
    assert_eq!(fixed.passes(6), 4);
    assert_eq!(fixed.refunded(7), 7);
    assert_eq!(fixed.refunded(7), 3, "no more was in use");
    assert_eq!(fixed.refunded(7), 0);
    assert_eq!((fixed.left(), fixed.used()), (10, 0));
    assert_eq!(fixed.passes(12), 10);
}

/// REF-2 (a, b) with a reservation: what a hold took and has given back cannot be given back again.
#[test]
fn a_hold_gives_back_at_most_what_it_took() {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "60s" } }));
    let fixed = Counter::new(&server, "t", "fixed");
    let hold = Hold::granted(&fixed.hold(10, "30s"));
    assert!(!fixed.take(1).allowed());
    hold.settle(&server, 6).succeeded();
    assert_eq!(fixed.passes(6), 4);
    hold.settle(&server, 0).problem(409, "hold_settled");
    hold.release(&server).problem(409, "hold_settled");
    assert_eq!(fixed.used(), 10);
}

/// REF-2 (c). The rule: nothing is in use, so 0 is refunded.
#[test]
fn a_full_bucket_takes_no_refund() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 10, "refill": 1, "per": "1s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    assert_eq!(bucket.refunded(5), 0);
    assert_eq!(bucket.left(), 10);
    assert_eq!(bucket.passes(11), 10);
}

/// REF-2 (d).
#[test]
fn a_refund_to_a_bucket_comes_back_at_once_and_a_repeat_has_no_effect() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 20, "refill": 10, "per": "1s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    assert_eq!(bucket.take(15).remaining(), 5);
    server.at(100);
    assert_eq!(bucket.left(), 6);
    assert_eq!(bucket.take(6).remaining(), 0);
    let refund = || {
        server.post_with(
            "/v1/refund",
            &[("idempotency-key", "r2")],
            &bucket.costing(6),
        )
    };
    let first = refund();
    assert_eq!(
        (first.status, &first.body["refunded"]),
        (200, &json!(6)),
        "{first:?}"
    );
    assert_eq!(bucket.left(), 6);
    let repeat = refund();
    assert_eq!(
        (repeat.status, &repeat.body["refunded"]),
        (200, &json!(6)),
        "{repeat:?}"
    );
    assert_eq!(bucket.left(), 6, "no further effect");
}

/// Each algorithm takes a refund of what it has in use, and no window but the current one changes.
#[test]
fn every_algorithm_takes_refunds() {
    let server = Server::start();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "60s" },
        "calendar": { "algorithm": "calendar_window", "quota": 10, "period": "hour" },
        "sliding": { "algorithm": "sliding_window", "quota": 10, "window": "60s" },
        "log": { "algorithm": "sliding_log", "quota": 10, "window": "60s" },
        "bucket": { "algorithm": "token_bucket", "capacity": 10, "refill": 1, "per": "60s" },
        "leaky": { "algorithm": "leaky_bucket", "capacity": 10, "drain": 1, "per": "60s" },
    }));
    for limit in ["fixed", "calendar", "sliding", "log", "bucket", "leaky"] {
        let counter = Counter::new(&server, "t", limit);
        assert!(counter.take(10).allowed(), "{limit}");
        assert_eq!(counter.refunded(3), 3, "{limit}");
        assert_eq!((counter.left(), counter.used()), (3, 7), "{limit}");
        assert_eq!(counter.refunded(100), 7, "{limit}");
        assert_eq!((counter.left(), counter.used()), (10, 0), "{limit}");
        assert_eq!(counter.refunded(0), 0, "{limit}");
    }
}

/// The window before is closed to refunds: it is not in use any more.
#[test]
fn a_refund_does_not_reach_an_ended_window() {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "60s" } }));
    let fixed = Counter::new(&server, "t", "fixed");
    assert!(fixed.take(10).allowed());
    server.at(60_000);
    assert_eq!(fixed.refunded(10), 0);
    assert_eq!(fixed.take(2).remaining(), 8);
    assert_eq!(fixed.refunded(10), 2);
    assert_eq!(fixed.passes(11), 10);
}

/// A refund of an unknown tenant or limit is the caller's mistake.
#[test]
fn a_refund_of_something_unknown_is_refused() {
    let server = Server::start();
    server.catalogue(&json!({
        "limits": { "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "60s" } },
        "tenants": { "t": {} },
    }));
    Counter::new(&server, "nobody", "fixed")
        .refund(1)
        .problem(404, "unknown_tenant");
    Counter::new(&server, "t", "nothing")
        .refund(1)
        .problem(404, "unknown_limit");
    Counter::keyed(&server, "t", "fixed", "k")
        .refund(1)
        .problem(400, "key_unexpected");
}
