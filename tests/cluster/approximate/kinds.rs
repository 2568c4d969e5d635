//! Sliding and calendar windows and token buckets that regions share, by clocks that the test sets.

use serde_json::Value;
use serde_json::json;

use crate::approximate::Which;
use crate::approximate::cluster_with;
use crate::approximate::cut;
use crate::approximate::heal;
use crate::approximate::of;
use crate::approximate::spend;
use crate::approximate::take_patiently;
use crate::approximate::wait_agreed;
use crate::approximate::wait_apart;
use crate::approximate::wait_in_touch;
use crate::approximate::wait_told;
use crate::approximate::with;
use crate::group::Cluster;
use crate::group::Setup;
use crate::load::wait_used_at;

const MANUAL: Setup<'_> = Setup::of(3).with_manual_clocks();

/// Every region tells `used` and `left` of a counter.
fn tells(cluster: &Cluster, which: Which<'_>, used: u64, left: u64) {
    for region in 0..3 {
        let counter = which.at(cluster, region);
        wait_used_at(&counter, used);
        let look = counter.look();
        assert_eq!((look.used(), look.remaining()), (used, left), "{look:?}");
    }
}

#[test]
fn a_sliding_window_weighs_the_use_of_all_regions() {
    let cluster = cluster_with(
        &MANUAL,
        json!({ "sliding": { "algorithm": "sliding_window", "quota": 100, "window": "60s", "mode": "approximate" } }),
    );
    let which = of("sliding");
    for (region, calls) in [(0, 40), (1, 30), (2, 10)] {
        assert_eq!(which.at(&cluster, region).passes(calls), calls);
    }
    wait_agreed(&cluster, which, &[40, 30, 10]);
    tells(&cluster, which, 80, 20);
    for (at, used) in [(60_000, 80), (75_000, 60), (90_000, 40)] {
        cluster.at(at);
        tells(&cluster, which, used, 100 - used);
    }
    // Half of the 80 counts still: 60 more fit, wherever they are asked for.
    let taken = spend(&cluster, &[0, 1, 2], which);
    println!("{taken:?} of 60");
    let new: u64 = taken.iter().sum();
    assert!((60..=62).contains(&new), "{taken:?}");
    wait_told(&cluster, which, &taken, 40 + new);
    cluster.at(120_000);
    tells(&cluster, which, new, 100 - new);
    cluster.at(180_000);
    tells(&cluster, which, 0, 100);
}

#[test]
fn a_calendar_window_is_the_same_one_in_every_region() {
    let hour = 3_600_000;
    let cluster = cluster_with(
        &MANUAL,
        json!({
            "hour": { "algorithm": "calendar_window", "quota": 20, "period": "hour", "mode": "approximate" },
            "day": { "algorithm": "calendar_window", "quota": 20, "period": "day", "time_zone": "Asia/Kolkata", "mode": "approximate" },
        }),
    );
    for limit in ["hour", "day"] {
        for region in 0..3 {
            assert_eq!(of(limit).at(&cluster, region).passes(5), 5);
        }
        wait_agreed(&cluster, of(limit), &[5, 5, 5]);
        let starts: Vec<Value> = (0..3)
            .map(|region| {
                let look = of(limit).at(&cluster, region).look();
                look.only()["window_start_ms"].clone()
            })
            .collect();
        assert_eq!(starts, vec![starts[0].clone(); 3]);
        for region in [0, 1, 2, 0, 1] {
            take_patiently(&of(limit).at(&cluster, region), 1);
        }
        wait_agreed(&cluster, of(limit), &[7, 7, 6]);
        assert!(!of(limit).at(&cluster, 2).take(1).allowed());
    }
    cluster.at(hour);
    tells(&cluster, of("hour"), 0, 20);
    tells(&cluster, of("day"), 20, 0);
    // Over there a day ends at 18:30 UTC.
    cluster.at(18 * hour + hour / 2 - 1);
    tells(&cluster, of("day"), 20, 0);
    cluster.at(18 * hour + hour / 2);
    tells(&cluster, of("day"), 0, 20);
    for region in 0..3 {
        assert_eq!(of("day").at(&cluster, region).passes(2), 2);
    }
    wait_agreed(&cluster, of("day"), &[2, 2, 2]);
}

fn bucket(capacity: u64, refill: u64, per: &str) -> Value {
    json!({ "algorithm": "token_bucket", "capacity": capacity, "refill": refill, "per": per, "mode": "approximate" })
}

/// A full bucket is spent from three regions, and fills up for all of them.
#[test]
fn a_bucket_is_spent_by_all_regions_and_refills_once() {
    let cluster = cluster_with(&MANUAL, json!({ "bucket": bucket(30, 30, "60s") }));
    let which = of("bucket");
    let taken = spend(&cluster, &[0, 1, 2], which);
    let sum: u64 = taken.iter().sum();
    println!("{taken:?} of 30");
    assert!((30..=32).contains(&sum), "{taken:?}");
    wait_told(&cluster, which, &taken, 30);
    // Nothing comes while time stands, whatever is heard.
    for region in 0..3 {
        assert!(!which.at(&cluster, region).take(1).allowed());
    }
    cluster.at(10_000);
    let over = sum - 30;
    tells(&cluster, which, 25 + over, 5 - over);
    let more = spend(&cluster, &[0, 1, 2], which);
    let more: u64 = more.iter().sum();
    println!("{more} of {}", 5 - over);
    assert!((5 - over..=7).contains(&more), "{more}");
    // Full again, and no fuller.
    cluster.at(200_000);
    tells(&cluster, which, 0, 30);
}

/// Each side of a cut spends a full bucket; the debt is paid back before anything is given again.
#[test]
fn what_two_sides_of_a_cut_drew_too_much_is_paid_back() {
    let cluster = cluster_with(
        &MANUAL,
        json!({ "bucket": with(bucket(30, 30, "60s"), "on_partition", "open") }),
    );
    let which = of("bucket");
    let alone = cluster.follower();
    let others = cluster.others(alone);
    for region in 0..3 {
        assert!(which.at(&cluster, region).take(1).allowed());
    }
    wait_agreed(&cluster, which, &[1, 1, 1]);
    let faults = cut(&cluster, &[alone], &others);
    wait_apart(&cluster, &[0, 1, 2]);
    let here = spend(&cluster, &[alone], which);
    let there = spend(&cluster, &[others[0]], which);
    assert_eq!((here[alone], there[others[0]]), (27, 27));
    let mut used = vec![1; 3];
    used[alone] = 28;
    used[others[0]] = 28;
    heal(&cluster, &faults);
    wait_told(&cluster, which, &used, 30);
    wait_in_touch(&cluster);
    // Minus 27 at 0: nothing at 54, two at 58.
    for (at, left) in [(30_000, 0), (54_000, 0), (58_000, 2)] {
        cluster.at(at);
        tells(&cluster, which, 30 - left, left);
    }
    take_patiently(&which.at(&cluster, others[1]), 2);
    tells(&cluster, which, 30, 0);
}

/// Over a long time no more is given than a bucketful and what is refilled, and hardly less.
#[test]
fn the_long_run_rate_of_a_bucket_is_its_refill() {
    let cluster = cluster_with(&MANUAL, json!({ "bucket": bucket(20, 1, "1s") }));
    let which = of("bucket");
    let mut sum = 0;
    let mut steps = Vec::new();
    for step in 0..6_u64 {
        cluster.at(i64::try_from(step * 7_000).expect("small"));
        let taken: u64 = spend(&cluster, &[0, 1, 2], which).iter().sum();
        sum += taken;
        steps.push(taken);
        let earned = 20 + 7 * step;
        assert!(sum <= earned + 2, "{sum} of {earned}: {steps:?}");
        assert!(sum + 1 >= earned, "{sum} of {earned}: {steps:?}");
    }
    println!("{steps:?}, {sum} in all of 55");
}

/// A bucket that is full again in less than 3 s is not shared out in parts; its debt is paid back all the same.
#[test]
fn a_small_bucket_is_spent_freely_and_its_debt_is_paid_back() {
    let cluster = cluster_with(&MANUAL, json!({ "small": bucket(10, 10, "2s") }));
    let which = of("small");
    let taken = spend(&cluster, &[0, 1, 2], which);
    let sum: u64 = taken.iter().sum();
    println!("{taken:?} of 10");
    assert!((10..=12).contains(&sum), "{taken:?}");
    wait_told(&cluster, which, &taken, 10);
    let debt = sum - 10;
    let ms = i64::try_from(200 * (debt + 1)).expect("small");
    cluster.at(ms - 1);
    tells(&cluster, which, 10, 0);
    cluster.at(ms);
    tells(&cluster, which, 9, 1);
}
