//! Boundary: the edges of windows.

use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;

/// BND-1: 60 per 60 s, 60 calls just before the edge, 60 at it. The fixed window lets both through, which is
/// right for its kind; the sliding kinds do not.
#[test]
fn only_a_fixed_window_passes_twice_its_quota_across_an_edge() {
    let server = Server::start();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 60, "window": "60s" },
        "log": { "algorithm": "sliding_log", "quota": 60, "window": "60s" },
        "sliding": { "algorithm": "sliding_window", "quota": 60, "window": "60s" },
    }));
    let [fixed, log, sliding] =
        ["fixed", "log", "sliding"].map(|limit| Counter::new(&server, "t", limit));
    server.at(59_900);
    assert_eq!(
        [fixed, log, sliding].map(|counter| counter.passes(60)),
        [60, 60, 60]
    );
    server.at(60_000);
    assert_eq!(
        [fixed, log, sliding].map(|counter| counter.passes(60)),
        [60, 0, 0]
    );
    server.at(90_000);
    assert_eq!(sliding.passes(60), 30, "the window before weighs one half");
}

/// BND-3 (a).
#[test]
fn traffic_does_not_push_the_end_of_the_window_away() {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "600s" } }));
    let fixed = Counter::new(&server, "t", "fixed");
    for call in 0..100 {
        server.at(call * 150_000);
        let answer = fixed.take(1);
        assert!(answer.allowed(), "call {call}: {answer:?}");
        let into_window = call % 4 * 150_000;
        assert_eq!(
            answer.reset_after_ms(),
            u64::try_from(600_000 - into_window).expect("positive")
        );
    }
}

/// BND-3 (b).
#[test]
fn a_refused_call_does_not_start_the_window_again() {
    let server = Server::start();
    server.limits(
        &json!({ "fixed": { "algorithm": "fixed_window", "quota": 1, "window": "3600s" } }),
    );
    let fixed = Counter::new(&server, "t", "fixed");
    assert!(fixed.take(1).allowed());
    server.at(3_540_000);
    let refused = fixed.take(1);
    assert!(!refused.allowed());
    assert_eq!(refused.retry_after(), Some(60), "{refused:?}");
    server.at(3_600_000);
    assert!(fixed.take(1).allowed());
}

/// Windows are half-open: the last millisecond is in, the next one is out.
#[test]
fn windows_are_half_open() {
    let server = Server::start();
    server.limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 1, "window": "7s" } }));
    let fixed = Counter::new(&server, "t", "fixed");
    let start = (server.epoch() / 7000 + 1) * 7000;
    server.set_clock(start);
    let first = fixed.take(1);
    assert!(first.allowed());
    assert_eq!(
        first.only()["window_start_ms"],
        start,
        "aligned to the Unix epoch: {first:?}"
    );
    server.set_clock(start + 6999);
    let refused = fixed.take(1);
    assert!(!refused.allowed());
    assert_eq!(
        (refused.retry_after_ms(), refused.retry_after()),
        (Some(1), Some(1))
    );
    server.set_clock(start + 7000);
    let next = fixed.take(1);
    assert!(next.allowed());
    assert_eq!(next.only()["window_start_ms"], start + 7000);
}
