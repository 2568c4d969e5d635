//! Odd requests on strict limits: callers that do not wait, strange keys, huge costs.

use std::time::Duration;
use std::time::Instant;

use reqwest::Method;
use serde_json::json;

use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::load::decided;
use crate::server::wait_until;

#[test]
fn who_does_not_want_to_wait_is_answered_at_once() {
    let cluster = Cluster::set_up(&Setup::of(3));
    cluster.limits(&json!({
        "window": { "algorithm": "fixed_window", "quota": 100, "window": LONG, "mode": "strict" },
        "log": { "algorithm": "sliding_log", "quota": 100, "window": LONG, "mode": "strict" },
    }));
    let far = cluster.follower();
    let slow = cluster[far].admin(
        Method::POST,
        "/admin/v1/faults",
        &json!({ "kind": "latency", "delay": "1s", "ttl": "60s" }),
    );
    slow.succeeded();
    for limit in ["window", "log"] {
        let body = json!({ "tenant": "t", "limit": limit, "max_wait_ms": 0 });
        let started = Instant::now();
        let answer = cluster[far].check(&body);
        let took = started.elapsed();
        answer.unavailable();
        assert!(took < Duration::from_millis(700), "{took:?}: {answer:?}");
    }
    // It was asked for all the same: the units come, and then it passes without waiting.
    let body = json!({ "tenant": "t", "limit": "window", "max_wait_ms": 0 });
    wait_until("units have come", WITHIN, || {
        let started = Instant::now();
        let answer = cluster[far].check(&body);
        let took = started.elapsed();
        assert!(took < Duration::from_millis(700), "{took:?}: {answer:?}");
        answer.status == 200
    });
}

#[test]
fn odd_keys_are_counters_of_their_own_in_every_region() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "exports": { "algorithm": "fixed_window", "quota": 2, "window": LONG, "mode": "strict", "key": "user" } }));
    let long = "x".repeat(512);
    let longer = "é".repeat(256);
    let keys = [
        "a\u{0}b", "a", "a\u{0}", "🦀", "e\u{301}", "é", " ", "a b", "a|b", "a/b", "a%2Fb", "\"",
        "\u{feff}", &long, &longer,
    ];
    for (place, key) in keys.iter().enumerate() {
        for (step, wanted) in [true, true, false].into_iter().enumerate() {
            let region = (place + step) % 3;
            let body = json!({ "tenant": "t:a", "limit": "exports", "key": key });
            let answer = decided(&cluster[region], &body);
            assert_eq!(answer.allowed(), wanted, "{key:?}: {answer:?}");
            assert_eq!(answer.only()["key"], *key, "{answer:?}");
        }
    }
    for key in ["", &"x".repeat(513)] {
        let body = json!({ "tenant": "t:a", "limit": "exports", "key": key });
        assert_eq!(cluster[0].check(&body).status, 400);
    }
}

#[test]
fn huge_costs_are_refused_for_good_and_charge_nothing() {
    let cluster = Cluster::of(3);
    let most = 9_007_199_254_740_991_u64;
    cluster.limits(&json!({
        "few": { "algorithm": "fixed_window", "quota": 10, "window": LONG, "mode": "strict" },
        "log": { "algorithm": "sliding_log", "quota": 10, "window": LONG, "mode": "strict" },
        "many": { "algorithm": "fixed_window", "quota": most, "window": LONG, "mode": "strict" },
    }));
    for limit in ["few", "log"] {
        for cost in [11, most] {
            for region in 0..3 {
                let body = json!({ "tenant": "t", "limit": limit, "cost": cost });
                let answer = decided(&cluster[region], &body);
                assert!(!answer.allowed(), "{answer:?}");
                assert_eq!(answer.reason(), "cost_exceeds_quota", "{answer:?}");
                assert_eq!(answer.retry_after(), None, "{answer:?}");
            }
        }
        let body = json!({ "tenant": "t", "limit": limit, "cost": most + 1 });
        assert_eq!(cluster[0].check(&body).status, 400);
        assert!(
            decided(
                &cluster[1],
                &json!({ "tenant": "t", "limit": limit, "cost": 10 })
            )
            .allowed()
        );
    }
    let at = |region: usize, cost: u64| {
        decided(
            &cluster[region],
            &json!({ "tenant": "t", "limit": "many", "cost": cost }),
        )
    };
    assert!(at(0, most - 2).allowed());
    assert!(at(1, 2).allowed());
    let refused = at(2, 1);
    assert!(!refused.allowed(), "{refused:?}");
    crate::load::wait_used(&cluster, "t", "many", most);
    assert_eq!(Counter::new(&cluster[2], "t", "many").left(), 0);
}

#[test]
fn a_quota_of_nothing_is_always_refused_and_asks_nobody_to_come_back() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({
        "none": { "algorithm": "fixed_window", "quota": 0, "window": LONG, "mode": "strict" },
        "none-log": { "algorithm": "sliding_log", "quota": 0, "window": LONG, "mode": "strict" },
    }));
    for limit in ["none", "none-log"] {
        for region in 0..3 {
            let answer = decided(&cluster[region], &json!({ "tenant": "t", "limit": limit }));
            assert!(!answer.allowed(), "{answer:?}");
            assert_eq!(answer.retry_after(), None, "{answer:?}");
        }
    }
}
