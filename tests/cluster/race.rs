//! Parallel callers over several regions: exact totals.

use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::WITHIN;
use crate::load::Call;
use crate::load::Tally;
use crate::load::answers;
use crate::load::at_once;
use crate::load::in_turn;
use crate::load::spend_all;
use crate::load::wait_used;
use crate::server::wait_until;

const REGIONS: [usize; 3] = [0, 1, 2];
const FIVE: [usize; 5] = [0, 1, 2, 3, 4];
const WIDTH: usize = 50;

fn strict(fields: &Value) -> Value {
    let mut limit = json!({ "mode": "strict" });
    let fields = fields.as_object().expect("an object").clone();
    limit.as_object_mut().expect("an object").extend(fields);
    limit
}

/// RACE-1 (c): a thousand calls over all regions; what the storm leaves over is there to the last unit.
fn admits_exactly_over(regions: &[usize], limit: &Value, quota: u64, calls: usize) {
    let cluster = Cluster::of(regions.len());
    cluster.limits(&json!({ "raced": strict(limit) }));
    let body = json!({ "tenant": "t", "limit": "raced" });
    let stormed = answers(at_once(&cluster, WIDTH, in_turn(regions, calls, &body)));
    let tally = Tally::of(&stormed);
    println!("{limit}: {tally:?}");
    assert!(tally.allowed <= quota, "{tally:?}");
    let rest = spend_all(&cluster, &body);
    // What a call was charged that was not told its outcome is nobody's; there are such calls only when a leader
    // changes in the middle.
    let told = tally.allowed + rest;
    assert!(
        told <= quota && told + tally.unknown >= quota,
        "{tally:?}, and {rest}"
    );
    wait_used(&cluster, "t", "raced", quota);
}

fn admits_exactly(limit: &Value, quota: u64, calls: usize) {
    admits_exactly_over(&REGIONS, limit, quota, calls);
}

#[test]
fn a_fixed_window_admits_exactly_its_quota_over_five_regions() {
    let limit = json!({ "algorithm": "fixed_window", "quota": 100, "window": LONG });
    admits_exactly_over(&FIVE, &limit, 100, 1000);
}

/// REP-5 with real regions: all are cut off from each other, each spends what it holds, and nowhere is there a 31st
/// unit. What was lost on the way is held by nobody twice, and all of it is there once the cuts are healed.
#[test]
fn regions_cut_off_from_each_other_spend_what_they_hold_and_no_unit_more() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({
        "raced": strict(&json!({ "algorithm": "fixed_window", "quota": 30, "window": LONG })),
        "canary": strict(&json!({ "algorithm": "fixed_window", "quota": 1_000_000, "window": LONG })),
    }));
    let body = json!({ "tenant": "t", "limit": "raced" });
    let calls = in_turn(&REGIONS, 6, &body);
    let mut allowed = Tally::of(&answers(at_once(&cluster, 6, calls))).allowed;
    assert_eq!(allowed, 6);
    let cuts = REGIONS.map(|region| cluster.cut_off(region));
    for region in REGIONS {
        wait_until("it decides nothing any more", WITHIN, || {
            Counter::new(&cluster[region], "t", "canary").take(1).status == 503
        });
        wait_until("what it holds is spent", WITHIN, || {
            let answer = cluster[region].check(&body);
            allowed += u64::from(answer.status == 200);
            answer.status != 200
        });
    }
    println!("{allowed} before they were healed");
    assert!((6..=30).contains(&allowed), "{allowed}");
    for (region, cut) in REGIONS.into_iter().zip(cuts) {
        cluster[region].heal(&cut);
    }
    cluster.wait_granted("canary");
    assert_eq!(allowed + spend_all(&cluster, &body), 30);
    wait_used(&cluster, "t", "raced", 30);
}

#[test]
fn a_fixed_window_admits_exactly_its_quota_over_three_regions() {
    let limit = json!({ "algorithm": "fixed_window", "quota": 100, "window": LONG });
    admits_exactly(&limit, 100, 1000);
}

#[test]
fn a_token_bucket_admits_exactly_its_capacity_over_three_regions() {
    let limit = json!({ "algorithm": "token_bucket", "capacity": 100, "refill": 1, "per": "30d" });
    admits_exactly(&limit, 100, 1000);
}

#[test]
fn a_sliding_window_admits_exactly_its_quota_over_three_regions() {
    let limit = json!({ "algorithm": "sliding_window", "quota": 100, "window": LONG });
    admits_exactly(&limit, 100, 1000);
}

#[test]
fn a_sliding_log_admits_exactly_its_quota_over_three_regions() {
    let limit = json!({ "algorithm": "sliding_log", "quota": 50, "window": LONG });
    admits_exactly(&limit, 50, 500);
}

#[test]
fn a_concurrency_limit_has_exactly_its_quota_of_holders_over_three_regions() {
    let cluster = Cluster::of(3);
    let limit = json!({ "algorithm": "concurrency", "quota": 50, "ttl": "1h" });
    cluster.limits(&json!({ "slots": strict(&limit) }));
    let body = json!({ "tenant": "t", "limit": "slots" });
    let holds: Vec<Call> = in_turn(&REGIONS, 300, &body)
        .into_iter()
        .map(|call| Call {
            path: "/v1/holds",
            ..call
        })
        .collect();
    let answered = at_once(&cluster, WIDTH, holds);
    let granted: Vec<(usize, String)> = answered
        .iter()
        .filter_map(|(call, answer)| {
            let answer = answer.as_ref().expect("an answer");
            (answer.status == 200).then(|| (call.region, answer.hold_id()))
        })
        .collect();
    let tally = Tally::of(&answers(answered));
    println!("{limit}: {tally:?}");
    assert_eq!((tally.allowed, tally.unknown), (50, 0), "{tally:?}");
    wait_used(&cluster, "t", "slots", 50);
    for (region, hold) in &granted {
        let path = format!("{}/v1/holds/{hold}", cluster[*region].check_url());
        cluster[*region]
            .send(reqwest::Method::DELETE, &path, &[], &Value::Null)
            .succeeded();
    }
    for region in REGIONS {
        assert_eq!(
            Counter::new(&cluster[region], "t", "slots")
                .hold(1, "")
                .status,
            200
        );
    }
    wait_used(&cluster, "t", "slots", 3);
}

/// Costs above 1 that do not fit into what is left, smaller ones do: nothing is lost to rounding.
#[test]
fn big_and_small_costs_together_use_a_quota_up_exactly() {
    let cluster = Cluster::of(3);
    let limit = json!({ "algorithm": "fixed_window", "quota": 1000, "window": LONG });
    cluster.limits(&json!({ "raced": strict(&limit) }));
    let costs = [1_u64, 7, 30, 2, 90];
    let calls: Vec<Call> = (0..300)
        .map(|call| {
            let body = json!({ "tenant": "t", "limit": "raced", "cost": costs[call % 5] });
            Call::check(call % 3, body)
        })
        .collect();
    let mut used = 0;
    for (call, answer) in at_once(&cluster, WIDTH, calls) {
        let answer = answer.expect("an answer");
        let mut tally = Tally::default();
        tally.add(&answer);
        assert_eq!(tally.unknown, 0, "{answer:?}");
        used += tally.allowed * call.body["cost"].as_u64().expect("a cost");
    }
    assert!(used <= 1000, "{used}");
    let rest = spend_all(&cluster, &json!({ "tenant": "t", "limit": "raced" }));
    assert_eq!(used + rest, 1000);
    wait_used(&cluster, "t", "raced", 1000);
}
