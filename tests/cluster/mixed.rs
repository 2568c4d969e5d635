//! Checks of several limits, regional and strict together: all are charged or none.

use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::load::Call;
use crate::load::Tally;
use crate::load::answers;
use crate::load::at_once;
use crate::load::wait_used;

fn window(quota: u64, mode: &str) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": LONG, "mode": mode })
}

fn check(limits: &[&str]) -> Value {
    let checks: Vec<Value> = limits
        .iter()
        .map(|limit| json!({ "limit": limit }))
        .collect();
    json!({ "tenant": "t", "checks": checks })
}

/// Sends `calls` checks over three regions at once, then one by one until nothing more passes; how many passed.
fn pass(cluster: &Cluster, calls: usize, limits: &[&str]) -> u64 {
    let body = check(limits);
    let calls: Vec<Call> = (0..calls)
        .map(|call| Call::check(call % 3, body.clone()))
        .collect();
    let tally = Tally::of(&answers(at_once(cluster, 45, calls)));
    println!("{limits:?}: {tally:?}");
    assert_eq!(tally.unknown, 0, "{tally:?}");
    tally.allowed + crate::load::spend_all(cluster, &body)
}

fn used_here(cluster: &Cluster, limit: &str) -> u64 {
    (0..3)
        .map(|region| Counter::new(&cluster[region], "t", limit).used())
        .sum()
}

#[test]
fn the_smaller_strict_limit_decides_and_the_others_are_charged_no_more() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({
        "here": window(1000, "regional"), "world": window(100, "strict"), "bills": window(60, "strict"),
    }));
    assert_eq!(pass(&cluster, 300, &["here", "world", "bills"]), 60);
    for limit in ["world", "bills"] {
        wait_used(&cluster, "t", limit, 60);
    }
    assert_eq!(used_here(&cluster, "here"), 60);
    // What refused checks had asked for was not spent: it is there for checks of that limit alone.
    assert_eq!(pass(&cluster, 90, &["world"]), 40);
}

#[test]
fn a_refusal_of_a_regional_limit_costs_strict_limits_nothing() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({
        "here": window(15, "regional"), "world": window(1000, "strict"), "bills": window(60, "strict"),
    }));
    assert_eq!(pass(&cluster, 300, &["bills", "here", "world"]), 45);
    for limit in ["world", "bills"] {
        wait_used(&cluster, "t", limit, 45);
    }
    for region in 0..3 {
        assert_eq!(Counter::new(&cluster[region], "t", "here").used(), 15);
    }
    assert_eq!(pass(&cluster, 30, &["bills"]), 15);
}

#[test]
fn limits_that_the_log_decides_join_in() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({
        "here": window(1000, "regional"),
        "log": { "algorithm": "sliding_log", "quota": 40, "window": LONG, "mode": "strict" },
        "bucket": { "algorithm": "token_bucket", "capacity": 55, "refill": 1, "per": "60d", "mode": "strict" },
        "bills": window(70, "strict"),
    }));
    assert_eq!(pass(&cluster, 240, &["here", "log", "bucket", "bills"]), 40);
    for limit in ["log", "bucket", "bills"] {
        wait_used(&cluster, "t", limit, 40);
    }
    assert_eq!(used_here(&cluster, "here"), 40);
    assert_eq!(pass(&cluster, 60, &["bucket", "here"]), 15);
    assert_eq!(pass(&cluster, 90, &["bills", "here"]), 30);
    assert_eq!(used_here(&cluster, "here"), 85);
    wait_used(&cluster, "t", "bills", 70);
    wait_used(&cluster, "t", "bucket", 55);
}

/// Checks of two strict limits in both orders at once: nobody waits for ever, nothing is charged twice.
#[test]
fn crossing_checks_of_two_strict_limits_neither_lock_nor_lose_units() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "one": window(80, "strict"), "two": window(80, "strict") }));
    let calls: Vec<Call> = (0..240)
        .map(|call| {
            let body = match call % 4 {
                0 => check(&["one", "two"]),
                1 => check(&["two", "one"]),
                2 => check(&["one"]),
                _ => check(&["two"]),
            };
            Call::check(call % 3, body)
        })
        .collect();
    let mut used = [0, 0];
    for (call, answer) in at_once(&cluster, 45, calls) {
        let answer = answer.expect("an answer");
        let tally = Tally::of([&answer]);
        assert_eq!(tally.unknown, 0, "{answer:?}");
        let text = call.body.to_string();
        for (limit, used) in ["one", "two"].iter().zip(&mut used) {
            if text.contains(limit) {
                *used += tally.allowed;
            }
        }
    }
    for (limit, used) in ["one", "two"].iter().zip(used) {
        assert!(used <= 80, "{limit}: {used}");
        wait_used(&cluster, "t", limit, used);
        assert_eq!(
            crate::load::spend_all(&cluster, &check(&[limit])),
            80 - used
        );
    }
}
