//! Windows of strict limits, by clocks that the test sets.

use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::Setup;
use crate::load::Tally;
use crate::load::decided;
use crate::load::wait_used;
use crate::server::T0;

/// REP-8.
fn every_region_refuses_with_one_reset_time_and_a_new_window_is_a_full_one(regions: usize) {
    let cluster = Cluster::set_up(&Setup::of(regions).with_manual_clocks());
    cluster.limits(&json!({ "shared": { "algorithm": "fixed_window", "quota": 10, "window": "30s", "mode": "strict" } }));
    let body = json!({ "tenant": "t", "limit": "shared" });
    let resets_at = |answer: &Answer, window_end_ms: i64| {
        let end = (T0 + window_end_ms) / 1000;
        assert_eq!(answer.reset_at(), end, "{answer:?}");
    };

    let mut first = Vec::new();
    for call in 0..30 {
        cluster.at(call * 200);
        let region = usize::try_from(call).expect("small") % regions;
        let answer = decided(&cluster[region], &body);
        resets_at(&answer, 30_000);
        first.push(answer);
    }
    let tally = Tally::of(&first);
    assert_eq!((tally.allowed, tally.refused), (10, 20), "{tally:?}");
    assert!(
        first[..10].iter().all(Answer::allowed),
        "the first ten calls are the allowed ones"
    );
    for refused in &first[10..] {
        assert_eq!(refused.reason(), "quota_exceeded", "{refused:?}");
    }

    for start in [31_000, 61_000] {
        cluster.at(start);
        let mut answers = Vec::new();
        for region in 0..regions {
            for _ in 0..10 {
                let answer = decided(&cluster[region], &body);
                resets_at(&answer, (start / 30_000 + 1) * 30_000);
                answers.push(answer);
            }
        }
        let tally = Tally::of(&answers);
        let refused = 10 * regions as u64 - 10;
        assert_eq!((tally.allowed, tally.refused), (10, refused), "{tally:?}");
    }
}

#[test]
fn three_regions_refuse_with_one_reset_time_and_a_new_window_is_a_full_one() {
    every_region_refuses_with_one_reset_time_and_a_new_window_is_a_full_one(3);
}

#[test]
fn five_regions_refuse_with_one_reset_time_and_a_new_window_is_a_full_one() {
    every_region_refuses_with_one_reset_time_and_a_new_window_is_a_full_one(5);
}

/// REP-3: when the window rolls, every region's part goes, whoever is the first to count in the new one.
#[test]
fn a_new_window_begins_without_any_regions_part_of_the_old_one() {
    for first in [0, 1] {
        let cluster = Cluster::set_up(&Setup::of(2).with_manual_clocks());
        cluster.limits(&json!({ "shared": { "algorithm": "fixed_window", "quota": 10, "window": "60s", "mode": "strict" } }));
        let at = |region: usize| Counter::new(&cluster[region], "t", "shared");
        assert_eq!((at(0).passes(4), at(1).passes(5)), (4, 5));
        wait_used(&cluster, "t", "shared", 9);
        cluster.at(60_500);
        let answer = decided(
            &cluster[first],
            &json!({ "tenant": "t", "limit": "shared" }),
        );
        assert!(answer.allowed(), "{answer:?}");
        assert_eq!(answer.only()["window_start_ms"], T0 + 60_000, "{answer:?}");
        wait_used(&cluster, "t", "shared", 1);
        for region in 0..2 {
            let look = at(region).look();
            assert_eq!((look.used(), look.remaining()), (1, 9), "{look:?}");
        }
    }
}
