//! Who may use what is left: one region alone, all together, in parts and in one burst.

use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::approximate::Which;
use crate::approximate::cluster_with;
use crate::approximate::fixed;
use crate::approximate::heal;
use crate::approximate::inject;
use crate::approximate::of;
use crate::approximate::spend;
use crate::approximate::take_patiently;
use crate::approximate::wait_agreed;
use crate::approximate::with;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::load::Call;
use crate::load::Tally;
use crate::load::at_once;
use crate::server::T0;
use crate::server::wait_until;

/// Whoever is alone has all of it, one call after the other and in one burst.
#[test]
fn one_region_alone_uses_the_whole_quota_without_a_refusal() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "one": fixed(1, LONG), "ten": fixed(10, LONG), "thousand": fixed(1000, LONG) }),
    );
    for (limit, quota) in [("one", 1), ("ten", 10), ("thousand", 1000)] {
        for region in 0..2 {
            let tenant = format!("alone {region}");
            let which = Which(&tenant, limit, "");
            for call in 0..quota {
                let answer = which.at(&cluster, region).take(1);
                assert!(answer.allowed(), "call {call}: {answer:?}");
                assert_eq!(answer.only()["degraded"], false, "{answer:?}");
            }
            for other in 0..3 {
                // The others may not know it yet, and have no part of it then.
                let counter = which.at(&cluster, other);
                crate::load::wait_used_at(&counter, quota);
                let refused = counter.take(1);
                assert!(!refused.allowed());
                assert_eq!(refused.reason(), "quota_exceeded");
                assert_eq!(refused.remaining(), 0);
            }
        }
        let calls = usize::try_from(quota).expect("small").div_ceil(10);
        let which = Which("burst", limit, "");
        let body = which.at(&cluster, 2).body();
        let burst = cluster[2].in_parallel(10, calls, "/v1/check", &body);
        let tally = Tally::of(&burst);
        assert_eq!(tally.allowed, quota, "{tally:?}");
    }
}

/// Calls go round the regions: no unit is stuck, and hardly any is given twice.
#[test]
fn calls_that_go_round_the_regions_use_the_whole_quota() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "one": fixed(1, LONG), "ten": fixed(10, LONG), "hundred": fixed(100, LONG), "thousand": fixed(1000, LONG) }),
    );
    for (limit, quota, runs) in [
        ("one", 1_u64, 3),
        ("ten", 10, 3),
        ("hundred", 100, 2),
        ("thousand", 1000, 1),
    ] {
        for run in 0..runs {
            let tenant = format!("run {run}");
            let which = Which(&tenant, limit, "");
            let taken = spend(&cluster, &[0, 1, 2], which);
            let sum: u64 = taken.iter().sum();
            println!("{limit}: {taken:?}, {sum} of {quota}");
            // One unit for each region that does not know of the others' last.
            assert!((quota..=quota + 2).contains(&sum), "{limit}: {taken:?}");
            wait_agreed(&cluster, which, &taken);
        }
    }
}

/// Calls that cost several units, each known everywhere before the next: exact.
#[test]
fn calls_of_several_units_fit_until_the_rest_is_too_small_for_them() {
    let cluster = cluster_with(&Setup::of(3), json!({ "units": fixed(100, LONG) }));
    let which = of("units");
    let mut used = [0; 3];
    for call in 0..14 {
        let region = call % 3;
        let answer = take_patiently(&which.at(&cluster, region), 7);
        used[region] += 7;
        assert_eq!(answer.used(), used.iter().sum::<u64>(), "{answer:?}");
        wait_agreed(&cluster, which, &used);
    }
    for region in 0..3 {
        let refused = which.at(&cluster, region).take(7);
        assert!(!refused.allowed());
        assert_eq!(
            (refused.used(), refused.remaining()),
            (98, 2),
            "{refused:?}"
        );
        let never = which.at(&cluster, region).take(101);
        assert_eq!(never.reason(), "cost_exceeds_quota", "{never:?}");
    }
    take_patiently(&which.at(&cluster, 1), 2);
    used[1] += 2;
    wait_agreed(&cluster, which, &used);
    // Whole quotas at once, from each region in turn of another tenant.
    for region in 0..3 {
        let tenant = format!("whole {region}");
        let whole = Which(&tenant, "units", "");
        assert!(whole.at(&cluster, region).take(100).allowed());
        let other = (region + 1) % 3;
        crate::load::wait_used_at(&whole.at(&cluster, other), 100);
        assert!(!whole.at(&cluster, other).take(1).allowed());
    }
}

/// The same burst in all regions before any hears of another's.
fn burst(cluster: &Cluster, calls: usize, body: &Value) -> [u64; 3] {
    let calls = (0..3 * calls)
        .map(|call| Call::check(call % 3, body.clone()))
        .collect();
    let mut allowed = [0; 3];
    for (call, answer) in at_once(cluster, 12, calls) {
        let answer = answer.unwrap_or_else(|error| panic!("{call:?}: {error}"));
        allowed[call.region] += u64::from(answer.allowed());
    }
    allowed
}

/// What nobody can know: all regions at once. `equal` parts are never passed, `none` gives each region all.
#[test]
fn a_burst_everywhere_at_once_is_what_the_split_says() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({
            "equal": with(fixed(31, LONG), "split", "equal"),
            "adaptive": fixed(31, LONG),
            "none": with(fixed(31, LONG), "split", "none"),
        }),
    );
    let slow = json!({ "kind": "latency", "delay": "700ms", "ttl": "60s" });
    let faults: Vec<(usize, String)> = (0..3)
        .map(|region| (region, inject(&cluster, region, &slow)))
        .collect();
    let [equal, adaptive, none] = ["equal", "adaptive", "none"].map(|limit| {
        let body = json!({ "tenant": "t", "limit": limit });
        (limit, burst(&cluster, 40, &body))
    });
    println!("{equal:?}, {adaptive:?}, {none:?} of 31");
    let mut parts = equal.1;
    parts.sort_unstable();
    assert_eq!(parts, [10, 10, 11], "the rest of 31 goes to one region");
    assert_eq!(none.1, [31; 3]);
    assert!(adaptive.1.iter().all(|allowed| *allowed <= 31));
    heal(&cluster, &faults);
    for (limit, used) in [equal, adaptive, none] {
        wait_agreed(&cluster, of(limit), &used);
        for region in 0..3 {
            assert!(!of(limit).at(&cluster, region).take(1).allowed());
        }
    }
}

/// One region alone gets more than an equal part as the others hear of it; the sum is exact.
#[test]
fn equal_parts_are_parts_of_what_nobody_has_used_yet() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "equal": with(fixed(30, LONG), "split", "equal") }),
    );
    let which = of("equal");
    let taken = spend(&cluster, &[2], which);
    println!("one region alone: {taken:?} of 30");
    assert!(taken[2] >= 28, "{taken:?}");
    let rest = spend(&cluster, &[0, 1, 2], which);
    let sum: Vec<u64> = (0..3).map(|region| taken[region] + rest[region]).collect();
    assert_eq!(sum.iter().sum::<u64>(), 30, "{sum:?}");
    wait_agreed(&cluster, which, &sum);
}

/// REP-8, for approximate limits.
#[test]
fn every_region_refuses_with_one_reset_time_and_a_new_window_is_a_full_one() {
    let cluster = cluster_with(
        &Setup::of(3).with_manual_clocks(),
        json!({ "shared": fixed(10, "30s") }),
    );
    let which = of("shared");
    let resets_at = |answer: &Answer, window_end_ms: i64| {
        assert_eq!(answer.reset_at(), (T0 + window_end_ms) / 1000, "{answer:?}");
    };
    let mut allowed = [0_u64; 3];
    let began = Instant::now();
    for call in 0..30_i64 {
        // The pace of the calls.
        let due = u32::try_from(call).expect("small") * Duration::from_millis(200);
        wait_until("it is time for the next call", WITHIN, || {
            began.elapsed() >= due
        });
        cluster.at(call * 200);
        let region = usize::try_from(call).expect("small") % 3;
        let answer = which.at(&cluster, region).take(1);
        resets_at(&answer, 30_000);
        allowed[region] += u64::from(answer.allowed());
    }
    println!("{allowed:?} of the first 30");
    let sum: u64 = allowed.iter().sum();
    assert!((10..=12).contains(&sum), "{allowed:?}");
    wait_agreed(&cluster, which, &allowed);
    for region in 0..3 {
        let refused = which.at(&cluster, region).take(1);
        assert!(!refused.allowed());
        assert_eq!(refused.reason(), "quota_exceeded", "{refused:?}");
        resets_at(&refused, 30_000);
    }
    for start in [31_000, 61_000] {
        cluster.at(start);
        for region in 0..3 {
            let look = which.at(&cluster, region).look();
            assert_eq!((look.used(), look.remaining()), (0, 10), "{look:?}");
            resets_at(&look, (start / 30_000 + 1) * 30_000);
        }
        let used = spend(&cluster, &[0, 1, 2], which);
        println!("{used:?} from {start}");
        let sum: u64 = used.iter().sum();
        assert!((10..=12).contains(&sum), "{used:?}");
        wait_agreed(&cluster, which, &used);
        for region in 0..3 {
            let refused = which.at(&cluster, region).take(1);
            assert!(!refused.allowed());
            resets_at(&refused, (start / 30_000 + 1) * 30_000);
        }
    }
}
