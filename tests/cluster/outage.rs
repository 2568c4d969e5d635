//! Fail open/closed on strict limits: a region without a leader, and one without a disk.

use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::load::Tally;
use crate::load::wait_used;
use crate::server::Server;
use crate::server::wait_until;

fn limits() -> Value {
    let limit = |policy: &str| json!({ "algorithm": "fixed_window", "quota": 3, "window": LONG, "mode": "strict", "on_unavailable": policy });
    let log = |policy: &str| json!({ "algorithm": "sliding_log", "quota": 3, "window": LONG, "mode": "strict", "on_unavailable": policy });
    let mut few = limit("local");
    few["quota"] = 1000.into();
    few["fallback_quota"] = 3.into();
    json!({
        "closed": limit("closed"), "open": limit("open"), "few": few,
        "log-closed": log("closed"), "log-open": log("open"),
        "held": { "algorithm": "fixed_window", "quota": 1_000_000_000_000_u64, "window": LONG, "mode": "strict" },
        "canary": { "algorithm": "fixed_window", "quota": 1_000_000, "window": LONG, "mode": "strict" },
    })
}

fn hundred(server: &Server, tenant: &str, limit: &str) -> Vec<Answer> {
    let body = Counter::new(server, tenant, limit).body();
    server.in_parallel(10, 10, "/v1/check", &body)
}

/// Every policy does exactly what it says on limits that this region has not used before.
fn follows_the_policies(server: &Server, tenant: &str) {
    for limit in ["closed", "log-closed"] {
        for answer in hundred(server, tenant, limit) {
            answer.unavailable();
            assert_eq!(answer.only()["decided_by"], "fallback", "{answer:?}");
        }
    }
    let before = server.metric("rate_limit_degraded_total", &["policy=\"open\""]);
    for limit in ["open", "log-open"] {
        for answer in hundred(server, tenant, limit) {
            assert_eq!(answer.status, 200, "{tenant}: {answer:?}");
            assert_eq!(
                (&answer.only()["degraded"], &answer.only()["decided_by"]),
                (&json!(true), &json!("fallback")),
                "{answer:?}"
            );
        }
    }
    let degraded = server.metric("rate_limit_degraded_total", &["policy=\"open\""]) - before;
    assert!(
        (degraded - 200.0).abs() < 0.5,
        "{tenant}: {degraded} counted"
    );
    let few = hundred(server, tenant, "few");
    let allowed: Vec<&Answer> = few.iter().filter(|answer| answer.status == 200).collect();
    assert_eq!(allowed.len(), 3, "{tenant}");
    for answer in allowed {
        assert_eq!(answer.only()["degraded"], true, "{answer:?}");
    }
}

/// FAIL-1: of the region that follows, and of the one that leads.
#[test]
fn a_region_without_a_leader_follows_each_limits_policy_and_recovers_by_itself() {
    let cluster = Cluster::of(3);
    cluster.limits(&limits());
    for (tenant, cut_off) in [("a", cluster.follower()), ("b", cluster.leader())] {
        let there = &cluster[cut_off];
        let others = cluster.others(cut_off);
        // Some units lie here when it is cut off.
        let held = Counter::new(there, tenant, "held");
        let steady = Instant::now();
        let mut allowed = 0;
        wait_until("units are held", WITHIN, || {
            allowed += u64::from(held.take(1).status == 200);
            steady.elapsed() > Duration::from_secs(2)
        });
        let cut = cluster.cut_off(cut_off);
        let mut kept = 0;
        wait_until("the held units are spent", WITHIN, || {
            let answer = held.take(1);
            match answer.status {
                200 => {
                    kept += 1;
                    assert_eq!(answer.only()["degraded"], false, "{answer:?}");
                    false
                }
                _ => {
                    answer.unavailable();
                    true
                }
            }
        });
        println!("{allowed} before, {kept} spent while cut off");
        assert!(kept > 0, "some were held");
        // A leader that is cut off is sure of its lead for no longer than its lease.
        let alone = Counter::new(there, tenant, "canary");
        wait_until("it knows that it is cut off", WITHIN, || {
            alone.take(1).status == 503
        });

        follows_the_policies(there, tenant);
        // The others have a leader, and all that this region has not taken.
        let at = Counter::new(&cluster[others[0]], tenant, "closed");
        let mut tally = Tally::default();
        wait_until("the others decide", WITHIN, || {
            tally.add(&at.take(1));
            tally.refused > 0
        });
        assert_eq!(tally.allowed, 3, "{tally:?}");

        there.heal(&cut);
        wait_until("it is granted units again", WITHIN, || {
            alone.take(1).status == 200
        });
        let there = Counter::new(there, tenant, "closed");
        wait_until("it refuses by the leader's word", WITHIN, || {
            let answer = there.take(1);
            assert_ne!(answer.status, 200, "{answer:?}");
            answer.status == 429
        });
        wait_used(&cluster, tenant, "closed", 3);
        wait_used(&cluster, tenant, "held", allowed + kept);
    }
}

#[test]
fn a_region_without_a_disk_follows_each_limits_policy_and_recovers_by_itself() {
    let cluster = Cluster::of(3);
    cluster.limits(&limits());
    for (tenant, broken) in [("a", cluster.follower()), ("b", cluster.leader())] {
        let there = &cluster[broken];
        let others = cluster.others(broken);
        let fault = there.inject("store_full");
        let canary = Counter::new(there, tenant, "canary");
        wait_until("the disk is known to be full", WITHIN, || {
            let answer = canary.take(1);
            assert_ne!(answer.status, 429, "{answer:?}");
            answer.status == 503
        });
        follows_the_policies(there, tenant);
        let at = Counter::new(&cluster[others[0]], tenant, "closed");
        let mut tally = Tally::default();
        wait_until("the others decide", WITHIN, || {
            tally.add(&at.take(1));
            tally.refused > 0
        });
        assert_eq!(tally.allowed, 3, "{tally:?}");
        there.heal(&fault);
        wait_until("it is granted units again", WITHIN, || {
            let answer = canary.take(1);
            answer.status == 200 && answer.only()["degraded"] == false
        });
        let there = Counter::new(there, tenant, "closed");
        wait_until("it refuses by the leader's word", WITHIN, || {
            let answer = there.take(1);
            assert_ne!(answer.status, 200, "{answer:?}");
            answer.status == 429
        });
        wait_used(&cluster, tenant, "closed", 3);
    }
}

/// Two regions: the loss of either stops strict limits, and the answer says why. Others go on.
#[test]
fn of_two_regions_one_alone_says_that_it_has_no_leader() {
    let mut cluster = Cluster::set_up(&Setup::of(2));
    let mut wanted = limits();
    wanted["here"] = json!({ "algorithm": "fixed_window", "quota": 100, "window": "1h" });
    cluster.limits(&wanted);
    cluster.kill(1);
    let alone = &cluster[0];
    let mut refused = None;
    wait_until("strict limits stop", WITHIN, || {
        let answer = Counter::new(alone, "t", "canary").take(1);
        let is_refused = answer.status != 200;
        refused = Some(answer);
        is_refused
    });
    let refused = refused.expect("an answer");
    refused.unavailable();
    let detail = refused.body["detail"].as_str().expect("a detail");
    println!("{detail}");
    assert!(detail.contains("canary"), "{refused:?}");
    assert_eq!(Counter::new(alone, "t", "here").passes(5), 5);
    let write = alone.admin(
        reqwest::Method::PUT,
        "/admin/v1/limits/here",
        &json!({ "algorithm": "fixed_window", "quota": 1, "window": "1h" }),
    );
    assert_eq!(write.status, 503, "{write:?}");
    let detail = write.body["detail"].as_str().expect("a detail");
    println!("{detail}");
    assert!(detail.contains("lead"), "{write:?}");
    cluster.start_again(1);
    cluster.wait_granted("canary");
    assert_eq!(Counter::new(&cluster[0], "t", "here").look().quota(), 100);
}

/// Five regions: two may be lost.
#[test]
fn of_five_regions_three_decide_and_two_do_not() {
    let mut cluster = Cluster::set_up(&Setup::of(5));
    cluster.limits(&limits());
    let leader = cluster.leader();
    let second = cluster.follower();
    cluster.kill(leader);
    cluster.kill(second);
    let body = json!({ "tenant": "t", "limit": "closed" });
    assert_eq!(crate::load::spend_all(&cluster, &body), 3);
    wait_used(&cluster, "t", "closed", 3);
    let third = cluster.leader();
    cluster.kill(third);
    for region in cluster.running() {
        let counter = Counter::new(&cluster[region], "t2", "closed");
        wait_until("two of five cannot decide", WITHIN, || {
            let answer = counter.take(1);
            // What it had been promised before is its own.
            answer.status == 503
        });
    }
    cluster.start_again(second);
    cluster.wait_granted("canary");
}
