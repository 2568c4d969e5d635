//! Idempotency keys on strict limits: one charge, whichever region is asked.

use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::Setup;
use crate::load::Call;
use crate::load::answers;
use crate::load::at_once;
use crate::load::is_unknown;
use crate::load::wait_used;
use crate::server::wait_until;

fn limit(quota: u64) -> serde_json::Value {
    json!({ "paid": { "algorithm": "fixed_window", "quota": quota, "window": "60s", "mode": "strict" } })
}

/// A keyed check, sent again with the same key until it is decided.
fn take_once(cluster: &Cluster, region: usize, key: &str, cost: u64) -> Answer {
    let mut answer = None;
    wait_until("a keyed check is decided", crate::group::WITHIN, || {
        let sent = Counter::new(&cluster[region], "t", "paid").take_once(key, cost);
        let is_decided = sent.status != 503;
        answer = Some(sent);
        is_decided
    });
    answer.expect("an answer")
}

/// IDM-1.
fn a_key_belongs_to_its_tenant_operation_and_body(regions: usize) {
    let cluster = Cluster::set_up(&Setup::of(regions).with_manual_clocks());
    cluster.limits(&limit(5));
    let first = take_once(&cluster, 0, "k", 1);
    assert!(first.allowed(), "{first:?}");
    for region in 0..regions {
        let again = take_once(&cluster, region, "k", 1);
        assert!(again.allowed(), "{again:?}");
        assert_eq!(again.used(), first.used(), "{again:?}");
        assert_eq!(again.body["results"], first.body["results"], "{again:?}");
        // (a)
        take_once(&cluster, region, "k", 2).problem(422, "idempotency_mismatch");
    }
    wait_used(&cluster, "t", "paid", 1);
    // (b)
    let other = Counter::new(&cluster[1], "t2", "paid").take_once("k", 2);
    assert!(other.allowed(), "{other:?}");
    wait_used(&cluster, "t2", "paid", 2);
    // (d)
    let refund = cluster[2].post_with(
        "/v1/refund",
        &[("idempotency-key", "k")],
        &json!({ "tenant": "t", "limit": "paid", "cost": 1 }),
    );
    refund.succeeded();
    assert_eq!(refund.body["refunded"], 1, "{refund:?}");
    wait_used(&cluster, "t", "paid", 0);
    // (c)
    assert!(take_once(&cluster, 1, "all", 5).allowed());
    cluster.at(30_000);
    for region in 0..regions {
        let refused = take_once(&cluster, region, "later", 1);
        assert!(!refused.allowed(), "{refused:?}");
    }
    cluster.at(60_000);
    let afresh = take_once(&cluster, 2, "later", 1);
    assert!(afresh.allowed(), "{afresh:?}");
    for region in 0..regions {
        assert!(take_once(&cluster, region, "later", 1).allowed());
    }
    wait_used(&cluster, "t", "paid", 1);
}

#[test]
fn a_key_belongs_to_its_tenant_operation_and_body_in_each_of_three_regions() {
    a_key_belongs_to_its_tenant_operation_and_body(3);
}

#[test]
fn a_key_belongs_to_its_tenant_operation_and_body_in_each_of_five_regions() {
    a_key_belongs_to_its_tenant_operation_and_body(5);
}

#[test]
fn a_key_is_known_after_the_leader_changed() {
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({ "paid": { "algorithm": "fixed_window", "quota": 10, "window": LONG, "mode": "strict" } }));
    for region in 0..3 {
        let key = format!("from {region}");
        assert!(take_once(&cluster, region, &key, 1).allowed());
    }
    let old = cluster.leader();
    cluster.kill(old);
    cluster.wait_for_another_leader(old);
    for region in cluster.others(old) {
        for from in 0..3 {
            let key = format!("from {from}");
            assert!(take_once(&cluster, region, &key, 1).allowed());
            take_once(&cluster, region, &key, 2).problem(422, "idempotency_mismatch");
        }
    }
    cluster.start_again(old);
    for from in 0..3 {
        let key = format!("from {from}");
        assert!(take_once(&cluster, old, &key, 1).allowed());
    }
    wait_used(&cluster, "t", "paid", 3);
}

/// The same key at the same time in all regions: one charge, and nobody is told anything but that charge or to wait.
#[test]
fn one_key_in_all_regions_at_once_is_one_charge() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "paid": { "algorithm": "fixed_window", "quota": 1000, "window": LONG, "mode": "strict" } }));
    let calls: Vec<Call> = (0..120)
        .map(|call| Call {
            region: call % 3,
            path: "/v1/check",
            key: Some(format!("key {}", call / 12)),
            body: json!({ "tenant": "t", "limit": "paid", "cost": 7 }),
        })
        .collect();
    for answer in answers(at_once(&cluster, 40, calls)) {
        let is_running = answer.body["code"] == "idempotency_running";
        assert!(
            answer.status == 200 || is_running || is_unknown(&answer),
            "{answer:?}"
        );
    }
    for key in 0..10 {
        for region in 0..3 {
            assert!(take_once(&cluster, region, &format!("key {key}"), 7).allowed());
        }
    }
    wait_used(&cluster, "t", "paid", 70);
}
