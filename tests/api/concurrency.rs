//! Concurrency: parallel callers and exact totals.

use std::collections::BTreeSet;

use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::server::Server;

/// RACE-1 (a): 1000 calls on 50 connections.
#[test]
fn parallel_callers_share_a_window_exactly() {
    let server = Server::start();
    server.limits(
        &json!({ "fixed": { "algorithm": "fixed_window", "quota": 100, "window": "60s" } }),
    );
    let fixed = Counter::new(&server, "t", "fixed");
    let answers = server.in_parallel(50, 20, "/v1/check", &fixed.body());
    let remaining: Vec<u64> = answers
        .iter()
        .filter(|answer| answer.allowed())
        .map(Answer::remaining)
        .collect();
    assert_eq!(remaining.len(), 100);
    assert_eq!(
        remaining.into_iter().collect::<BTreeSet<u64>>(),
        (0..100).collect(),
        "each once"
    );
    assert_eq!(fixed.used(), 100);
}

/// RACE-1 (b): after one second exactly one of 50 parallel calls gets the one token, a hundred times.
#[test]
fn parallel_callers_get_one_token_once() {
    let server = Server::start();
    server.limits(&json!({ "bucket": { "algorithm": "token_bucket", "capacity": 1, "refill": 1, "per": "1s" } }));
    let bucket = Counter::new(&server, "t", "bucket");
    assert!(bucket.take(1).allowed());
    for round in 1..=100 {
        server.at(round * 1000);
        let answers = server.in_parallel(10, 5, "/v1/check", &bucket.body());
        assert_eq!(
            answers.iter().filter(|answer| answer.allowed()).count(),
            1,
            "round {round}"
        );
    }
}

/// Several limits at once: parallel checks charge all or none, so the limits agree whatever the order of calls.
#[test]
fn parallel_checks_of_several_limits_charge_all_or_none() {
    let server = Server::start();
    server.limits(&json!({
        "wide": { "algorithm": "fixed_window", "quota": 1000, "window": "60s" },
        "narrow": { "algorithm": "token_bucket", "capacity": 90, "refill": 1, "per": "60s", "key": "user" },
        "exact": { "algorithm": "sliding_log", "quota": 70, "window": "60s", "durability": "sync" },
    }));
    let body = json!({ "tenant": "t", "checks": [
        { "limit": "wide" }, { "limit": "narrow", "key": "u" }, { "limit": "exact" },
    ] });
    let answers = server.in_parallel(20, 10, "/v1/check", &body);
    assert_eq!(answers.iter().filter(|answer| answer.allowed()).count(), 70);
    assert_eq!(Counter::new(&server, "t", "wide").used(), 70);
    assert_eq!(Counter::keyed(&server, "t", "narrow", "u").used(), 70);
    assert_eq!(Counter::new(&server, "t", "exact").used(), 70);
}

/// Every algorithm, with answers that wait for the disk and without.
#[test]
fn no_algorithm_admits_more_than_its_quota_to_parallel_callers() {
    let server = Server::start();
    let mut limits = json!({
        "fixed": { "algorithm": "fixed_window", "quota": 30, "window": "60s" },
        "calendar": { "algorithm": "calendar_window", "quota": 30, "period": "month" },
        "sliding": { "algorithm": "sliding_window", "quota": 30, "window": "60s" },
        "log": { "algorithm": "sliding_log", "quota": 30, "window": "60s" },
        "bucket": { "algorithm": "token_bucket", "capacity": 30, "refill": 30, "per": "60s" },
        "leaky": { "algorithm": "leaky_bucket", "capacity": 30, "drain": 30, "per": "60s" },
        "sockets": { "algorithm": "concurrency", "quota": 30, "ttl": "60s" },
    });
    for durability in ["async", "sync"] {
        for (_, limit) in limits.as_object_mut().expect("an object") {
            limit["durability"] = durability.into();
        }
        server.limits(&limits);
        for limit in [
            "fixed", "calendar", "sliding", "log", "bucket", "leaky", "sockets",
        ] {
            let counter = Counter::new(&server, durability, limit);
            let path = if limit == "sockets" {
                "/v1/holds"
            } else {
                "/v1/check"
            };
            let answers = server.in_parallel(10, 10, path, &counter.body());
            assert_eq!(
                answers.iter().filter(|answer| answer.allowed()).count(),
                30,
                "{limit}, {durability}"
            );
            assert_eq!(counter.used(), 30, "{limit}, {durability}");
        }
    }
}

/// Parallel refunds of the same units give them back once.
#[test]
fn parallel_refunds_give_back_no_more_than_was_taken() {
    let server = Server::start();
    server.limits(
        &json!({ "fixed": { "algorithm": "fixed_window", "quota": 100, "window": "60s" } }),
    );
    let fixed = Counter::new(&server, "t", "fixed");
    assert!(fixed.take(35).allowed());
    let answers = server.in_parallel(20, 1, "/v1/refund", &fixed.costing(2));
    let refunded: u64 = answers
        .iter()
        .filter_map(|answer| answer.body["refunded"].as_u64())
        .sum();
    assert_eq!(refunded, 35, "of 40 asked for");
    assert_eq!(fixed.used(), 0);
}

/// The same `Idempotency-Key` from many callers at once charges once.
#[test]
fn parallel_repeats_of_one_request_charge_once() {
    let server = Server::start();
    server.limits(
        &json!({ "fixed": { "algorithm": "fixed_window", "quota": 100, "window": "60s" } }),
    );
    let fixed = Counter::new(&server, "t", "fixed");
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| fixed.take_once("the same", 3)))
            .collect();
        for caller in callers {
            let answer = caller.join().expect("the caller ends");
            match answer.status {
                200 => assert_eq!(answer.used(), 3, "{answer:?}"),
                _ => answer.problem(409, "idempotency_running"),
            }
        }
    });
    assert_eq!(fixed.used(), 3);
    let repeat = fixed.take_once("the same", 3);
    assert_eq!((repeat.status, repeat.used()), (200, 3), "{repeat:?}");
}
