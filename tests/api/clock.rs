//! Clock: steps back, steps forward, jitter.

use reqwest::Method;
use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;

/// CLK-1 (a): region time never goes back by up to an hour, so at 89 it stands at 100.
#[test]
fn a_step_back_earns_nothing_and_the_way_forward_gives_no_free_refill() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 10, "refill": 1, "per": "1s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    server.at(100_000);
    assert_eq!(bucket.passes(4), 4);
    assert_eq!(bucket.left(), 6);
    server.at(89_000);
    assert_eq!(bucket.passes(7), 6);
    server.at(101_000);
    assert_eq!(
        bucket.passes(2),
        1,
        "one second earned since 100, not twelve since 89"
    );
}

/// CLK-1 (b).
#[test]
fn a_clock_that_runs_back_and_forth_by_milliseconds_refuses_nobody() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "10s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    let allowed = [100_000, 99_997, 100_001, 99_998, 100_002, 99_999].map(|at| {
        server.at(at);
        bucket.take(1).allowed()
    });
    assert_eq!(allowed, [true, true, true, true, true, false]);
}

/// CLK-1, windows.
#[test]
fn a_step_back_does_not_open_a_closed_window_again() {
    let server = Server::start();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "60s" },
        "sliding": { "algorithm": "sliding_window", "quota": 5, "window": "60s" },
        "log": { "algorithm": "sliding_log", "quota": 5, "window": "60s" },
    }));
    let counters = ["fixed", "sliding", "log"].map(|limit| Counter::new(&server, "t", limit));
    server.at(59_000);
    assert_eq!(counters.map(|counter| counter.passes(6)), [5; 3]);
    server.at(61_000);
    assert_eq!(counters.map(|counter| counter.passes(1)), [1, 0, 0]);
    server.at(59_000);
    let look = counters[0].look();
    assert_eq!(
        look.only()["window_start_ms"],
        server.epoch() + 60_000,
        "time stands at 61: {look:?}"
    );
    assert_eq!(counters.map(|counter| counter.passes(6)), [4, 0, 0]);
}

/// Every algorithm, every step back within the hour: no more than the quota at one held instant.
#[test]
fn holding_time_admits_nothing_new() {
    let server = Server::start();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "1s" },
        "calendar": { "algorithm": "calendar_window", "quota": 5, "period": "hour" },
        "sliding": { "algorithm": "sliding_window", "quota": 5, "window": "1s" },
        "log": { "algorithm": "sliding_log", "quota": 5, "window": "1s" },
        "bucket": { "algorithm": "token_bucket", "capacity": 5, "refill": 5, "per": "1s" },
        "leaky": { "algorithm": "leaky_bucket", "capacity": 5, "drain": 5, "per": "1s" },
    }));
    server.at(3_600_000);
    let counters = ["fixed", "calendar", "sliding", "log", "bucket", "leaky"]
        .map(|limit| Counter::new(&server, "t", limit));
    assert_eq!(counters.map(|counter| counter.passes(6)), [5; 6]);
    for back in [1, 999, 1000, 59_999, 1_800_000, 3_599_999] {
        server.at(3_600_000 - back);
        assert_eq!(
            counters.map(|counter| counter.passes(1)),
            [0; 6],
            "{back} ms back"
        );
    }
}

/// More than an hour back: the clock is followed. What was drawn from buckets and logs counts as drawn at the
/// time of the next call, so nobody earns by the step and nobody is locked out until the clock has come back.
#[test]
fn a_step_back_of_more_than_an_hour_is_followed() {
    let server = Server::start();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "60s" },
        "bucket": { "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "60s" },
        "leaky": { "algorithm": "leaky_bucket", "capacity": 5, "drain": 1, "per": "60s" },
        "log": { "algorithm": "sliding_log", "quota": 5, "window": "60s" },
        "sliding": { "algorithm": "sliding_window", "quota": 5, "window": "60s" },
    }));
    let day = 86_400_000;
    server.at(day);
    let counters = ["fixed", "bucket", "leaky", "log", "sliding"]
        .map(|limit| Counter::new(&server, "t", limit));
    assert_eq!(counters.map(|counter| counter.passes(6)), [5; 5]);
    server.at(0);
    let first = counters[0].take(1);
    assert_eq!(first.only()["window_start_ms"], server.epoch(), "{first:?}");
    for counter in &counters[1..4] {
        let refused = counter.take(1);
        assert!(!refused.allowed(), "{refused:?}");
        assert_eq!(refused.retry_after(), Some(60), "{refused:?}");
    }
    server.at(300_000);
    assert_eq!(
        counters.map(|counter| counter.passes(6)),
        [5; 5],
        "a day of lock-out would be the fault"
    );
}

/// The clock can be set only where the server was started for it.
#[test]
fn the_clock_of_a_server_on_real_time_cannot_be_set() {
    let server = Server::on_real_clock(&[]);
    let answer = server.admin(
        Method::PUT,
        "/admin/v1/clock",
        &json!({ "advance_ms": 1000 }),
    );
    answer.problem(404, "not_found");
}

/// A manual clock stands still until it is told to move, and moves by exactly that much.
#[test]
fn a_manual_clock_moves_only_when_told() {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "60s" } }));
    let fixed = Counter::new(&server, "t", "fixed");
    assert_eq!(fixed.look().reset_after_ms(), 60_000);
    server.advance(1);
    assert_eq!(fixed.look().reset_after_ms(), 59_999);
    server.advance(59_998);
    assert_eq!(fixed.look().reset_after_ms(), 1);
    server.advance(1);
    assert_eq!(fixed.look().reset_after_ms(), 60_000);
    for body in [
        json!({}),
        json!({ "unix_ms": "now" }),
        json!({ "unix_ms": 1, "advance_ms": 1 }),
        json!({ "advance_ms": -1 }),
    ] {
        let refused = server.admin(Method::PUT, "/admin/v1/clock", &body);
        assert!(matches!(refused.status, 400 | 422), "{body}: {refused:?}");
        assert_eq!(fixed.look().reset_after_ms(), 60_000, "{body}");
    }
}
