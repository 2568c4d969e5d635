//! Algorithm: what each algorithm admits, call by call.

use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;

/// ALG-1 (a, c). By the documented rule the leaky bucket is a queue: it admits as the meter of the case does and
/// tells how long the call has to wait for its turn.
#[test]
fn a_leaky_bucket_leaks_while_calls_arrive() {
    let server = Server::start();
    server.limits(&json!({ "leaky": { "algorithm": "leaky_bucket", "capacity": 10, "drain": 10, "per": "30s" } }));
    let leaky = Counter::new(&server, "t", "leaky");
    let mut remaining = Vec::new();
    for second in 0..=10_u32 {
        server.at(i64::from(second) * 1000);
        let answer = leaky.take(1);
        assert!(answer.allowed(), "{answer:?}");
        assert_eq!(
            answer.body["delay_ms"],
            2000 * second,
            "level before the call / drain rate: {answer:?}"
        );
        remaining.push(answer.remaining());
    }
    assert_eq!(remaining, [9, 8, 7, 7, 6, 5, 5, 4, 3, 3, 2]);
    server.at(110_000);
    let look = leaky.look();
    assert_eq!(
        (look.remaining(), look.used(), look.reset_after_ms()),
        (10, 0, 0),
        "{look:?}"
    );
}

/// ALG-1 (b).
#[test]
fn a_leaky_bucket_is_not_emptied_at_once_every_period() {
    let server = Server::start();
    server.limits(&json!({ "leaky": { "algorithm": "leaky_bucket", "capacity": 3, "drain": 3, "per": "1s" } }));
    let leaky = Counter::new(&server, "t", "leaky");
    let mut allowed = [0; 10];
    for (second, allowed) in (0..).zip(allowed.iter_mut()) {
        for tenth in 0..10 {
            server.at(second * 1000 + tenth * 100);
            *allowed += leaky.passes(1);
        }
    }
    assert_eq!(allowed, [5, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
}

/// A leaky bucket's refusal tells the wait for this cost, its look the time to empty.
#[test]
fn a_leaky_bucket_tells_when_there_is_room_again() {
    let server = Server::start();
    server.limits(&json!({ "leaky": { "algorithm": "leaky_bucket", "capacity": 10, "drain": 10, "per": "30s" } }));
    let leaky = Counter::new(&server, "t", "leaky");
    assert!(leaky.take(9).allowed());
    let refused = leaky.take(4);
    assert!(!refused.allowed());
    assert_eq!(
        (refused.retry_after_ms(), refused.retry_after()),
        (Some(9000), Some(9)),
        "three units to leak"
    );
    assert_eq!(leaky.look().reset_after_ms(), 27_000);
}

/// ALG-3, polled every 100 ms.
#[test]
fn a_refused_call_does_not_move_the_refill_clock() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 1, "refill": 1, "per": "1s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    let allowed_at: Vec<i64> = (0..=50)
        .map(|tenth| tenth * 100)
        .filter(|ms| passes_at(&server, bucket, *ms))
        .collect();
    assert_eq!(allowed_at, [0, 1000, 2000, 3000, 4000, 5000]);
}

/// ALG-3, polled every 300 ms.
#[test]
fn polling_out_of_step_with_the_refill_still_gets_every_token() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 1, "refill": 1, "per": "1s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    let allowed_at: Vec<i64> = (0..=20)
        .map(|step| step * 300)
        .filter(|ms| passes_at(&server, bucket, *ms))
        .collect();
    assert_eq!(allowed_at, [0, 1200, 2400, 3600, 4800, 6000]);
}

/// ALG-5.
#[test]
fn a_sliding_window_weighs_the_window_before_also_in_what_remains() {
    let server = Server::start();
    server.limits(
        &json!({ "sliding": { "algorithm": "sliding_window", "quota": 100, "window": "10s" } }),
    );
    let sliding = Counter::new(&server, "t", "sliding");
    server.at(5000);
    assert_eq!(sliding.passes(50), 50);
    server.at(10_100);
    assert_eq!(sliding.passes(10), 10);
    server.at(11_000);
    assert_eq!(sliding.left(), 45, "100 − (50 × 0.9 + 10)");
    assert_eq!(sliding.passes(46), 45);
    server.at(30_000);
    assert_eq!(
        sliding.left(),
        100,
        "after two idle windows the old counts weigh nothing"
    );
}

/// ALG-7 (a).
#[test]
fn the_oldest_entry_of_a_sliding_log_decides_when_to_come_back() {
    let server = Server::start();
    server.limits(&json!({ "log": { "algorithm": "sliding_log", "quota": 2, "window": "60s" } }));
    let log = Counter::new(&server, "t", "log");
    assert!(passes_at(&server, log, 0));
    assert!(passes_at(&server, log, 10_000));
    server.at(20_000);
    let refused = log.take(1);
    assert!(!refused.allowed());
    assert_eq!(
        (refused.retry_after_ms(), refused.retry_after()),
        (Some(40_000), Some(40)),
        "40, not 50"
    );
    server.at(60_000);
    assert_eq!(
        log.passes(2),
        1,
        "an entry counts while now − entry < window"
    );
    assert!(!passes_at(&server, log, 69_900));
    assert!(passes_at(&server, log, 70_000));
}

/// ALG-7 (b).
#[test]
fn a_polled_sliding_log_admits_once_per_window() {
    let server = Server::start();
    server.limits(&json!({ "log": { "algorithm": "sliding_log", "quota": 1, "window": "10s" } }));
    let log = Counter::new(&server, "t", "log");
    let allowed_at: Vec<i64> = (0..=30)
        .filter(|second| passes_at(&server, log, second * 1000))
        .collect();
    assert_eq!(allowed_at, [0, 10, 20, 30]);
}

/// ALG-9 (a).
#[test]
fn a_refused_call_takes_nothing_from_a_bucket() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 10, "refill": 1, "per": "10s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    for (cost, allowed, remaining) in [
        (8, true, 2),
        (5, false, 2),
        (1_000_000, false, 2),
        (2, true, 0),
    ] {
        let answer = bucket.take(cost);
        assert_eq!(
            (answer.allowed(), answer.remaining()),
            (allowed, remaining),
            "cost {cost}: {answer:?}"
        );
    }
    server.at(10_000);
    let answer = bucket.take(1);
    assert_eq!(
        (answer.allowed(), answer.remaining()),
        (true, 0),
        "{answer:?}"
    );
}

/// ALG-9 (b): one call every 5 s against 10 per 60 s.
#[test]
fn a_slightly_too_fast_client_is_never_locked_out() {
    let server = Server::start();
    server.limits(&json!({
        "log": { "algorithm": "sliding_log", "quota": 10, "window": "60s" },
        "sliding": { "algorithm": "sliding_window", "quota": 10, "window": "60s" },
    }));
    let (log, sliding) = (
        Counter::new(&server, "t", "log"),
        Counter::new(&server, "t", "sliding"),
    );
    let (mut by_log, mut by_counter) = ([0; 10], [0; 10]);
    for (minute, (by_log, by_counter)) in (0..).zip(by_log.iter_mut().zip(by_counter.iter_mut())) {
        for call in 0..12 {
            server.at(minute * 60_000 + call * 5000);
            *by_log += log.passes(1);
            *by_counter += sliding.passes(1);
        }
    }
    assert_eq!(by_log, [10; 10], "100 of 120");
    assert_eq!(
        by_counter,
        [10, 9, 9, 9, 9, 9, 9, 9, 9, 9],
        "91 of 120 by exact weights"
    );
}

/// ALG-11, bucket.
#[test]
fn a_cost_equal_to_the_capacity_can_come_back_and_one_above_never_can() {
    let server = Server::start();
    server.limits(&json!({
        "bucket": { "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "60s", "key": "user" },
    }));
    let first = Counter::keyed(&server, "t", "bucket", "1");
    assert!(first.take(5).allowed());
    let refused = first.take(5);
    assert!(!refused.allowed());
    assert_eq!(
        (refused.retry_after(), refused.reason()),
        (Some(300), "quota_exceeded"),
        "{refused:?}"
    );
    refused_for_good(&first, 6, 0);

    let second = Counter::keyed(&server, "t", "bucket", "2");
    refused_for_good(&second, 6, 5);
    assert_eq!(second.left(), 5);

    let third = Counter::keyed(&server, "t", "bucket", "3");
    assert_eq!(third.take(3).remaining(), 2);
    let refused = third.take(5);
    assert!(!refused.allowed());
    assert_eq!(
        (refused.retry_after(), refused.retry_after_ms()),
        (Some(180), Some(180_000)),
        "{refused:?}"
    );
}

/// ALG-11, the other algorithms.
#[test]
fn a_cost_above_the_quota_is_refused_for_good_and_records_nothing() {
    let server = Server::start();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "60s" },
        "calendar": { "algorithm": "calendar_window", "quota": 5, "period": "day" },
        "sliding": { "algorithm": "sliding_window", "quota": 5, "window": "60s" },
        "log": { "algorithm": "sliding_log", "quota": 5, "window": "60s" },
        "leaky": { "algorithm": "leaky_bucket", "capacity": 5, "drain": 1, "per": "60s" },
    }));
    for limit in ["fixed", "calendar", "sliding", "log", "leaky"] {
        let counter = Counter::new(&server, "t", limit);
        refused_for_good(&counter, 6, 5);
        assert_eq!((counter.left(), counter.used()), (5, 0), "{limit}");
    }
}

/// A quota of 0 refuses always and tells nobody to come back.
#[test]
fn a_quota_of_zero_refuses_always() {
    let server = Server::start();
    server
        .limits(&json!({ "banned": { "algorithm": "fixed_window", "quota": 0, "window": "60s" } }));
    let banned = Counter::new(&server, "t", "banned");
    for at in [0, 60_000, 90_000] {
        server.at(at);
        let refused = banned.take(1);
        assert!(!refused.allowed());
        assert_eq!(
            (refused.retry_after(), refused.quota(), refused.remaining()),
            (None, 0, 0),
            "{refused:?}"
        );
    }
    assert!(!banned.look().allowed());
}

fn passes_at(server: &Server, counter: Counter<'_>, ms: i64) -> bool {
    server.at(ms);
    counter.take(1).allowed()
}

fn refused_for_good(counter: &Counter<'_>, cost: u64, remaining: u64) {
    let refused = counter.take(cost);
    assert!(!refused.allowed());
    assert_eq!(refused.reason(), "cost_exceeds_quota", "{refused:?}");
    assert_eq!(
        (refused.retry_after(), refused.retry_after_ms()),
        (None, None),
        "{refused:?}"
    );
    assert_eq!(refused.remaining(), remaining, "{refused:?}");
}
