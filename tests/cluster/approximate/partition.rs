//! Sides that cannot reach each other: what each may use, and how they come together.

use std::time::Instant;

use serde_json::Value;
use serde_json::json;

use crate::approximate::Which;
use crate::approximate::cluster_with;
use crate::approximate::cut;
use crate::approximate::fixed;
use crate::approximate::heal;
use crate::approximate::let_news_pass;
use crate::approximate::of;
use crate::approximate::spend;
use crate::approximate::wait_agreed;
use crate::approximate::wait_apart;
use crate::approximate::wait_in_touch;
use crate::approximate::with;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::NAMES;
use crate::group::Setup;

fn limits(quota: u64) -> Value {
    let limit = |policy: &str| with(fixed(quota, LONG), "on_partition", policy);
    json!({ "share": limit("share"), "open": limit("open"), "majority": limit("majority") })
}

/// What a side may use together: exactly so much.
fn spends(cluster: &Cluster, side: &[usize], limit: &str, exactly: u64) -> Vec<u64> {
    let taken = spend(cluster, side, of(limit));
    println!("{limit}: {taken:?} by {side:?}");
    assert_eq!(taken.iter().sum::<u64>(), exactly, "{limit}: {taken:?}");
    for region in side {
        let answer = of(limit).at(cluster, *region).take(1);
        assert!(!answer.allowed());
        assert_eq!(answer.only()["degraded"], true, "{answer:?}");
        assert_eq!(answer.only()["decided_by"], "local", "{answer:?}");
        assert!(
            answer.retry_after_ms().is_some_and(|ms| ms > 0),
            "{answer:?}"
        );
    }
    taken
}

fn is_unavailable(cluster: &Cluster, side: &[usize], limit: &str) {
    for region in side {
        let answer = of(limit).at(cluster, *region).take(1);
        answer.unavailable();
        assert_eq!(answer.only()["degraded"], true, "{answer:?}");
    }
}

fn sum(parts: &[Vec<u64>]) -> Vec<u64> {
    let column = |region: usize| parts.iter().map(|part| part[region]).sum();
    (0..NAMES.len()).map(column).collect()
}

/// All regions tell the same after the links are back, and nobody repairs anything.
fn comes_together(cluster: &Cluster, faults: &[(usize, String)], told: &[(&str, Vec<u64>)]) {
    heal(cluster, faults);
    let began = Instant::now();
    for (limit, used) in told {
        wait_agreed(cluster, of(limit), used);
    }
    println!("agreed {:?} after the links were back", began.elapsed());
    wait_in_touch(cluster);
    println!("in touch after {:?}", began.elapsed());
    for (limit, used) in told {
        for region in cluster.running() {
            let refused = of(limit).at(cluster, region).take(1);
            assert!(!refused.allowed());
            let used: u64 = used.iter().sum();
            assert_eq!(
                (refused.used(), refused.remaining()),
                (used, 0),
                "{refused:?}"
            );
            assert_eq!(refused.only()["degraded"], false, "{refused:?}");
        }
    }
}

#[test]
fn a_region_that_is_cut_off_does_what_the_limit_says_and_so_do_the_others() {
    let cluster = cluster_with(&Setup::of(3), limits(90));
    let alone = cluster.follower();
    let others = cluster.others(alone);
    let faults = cut(&cluster, &[alone], &others);
    wait_apart(&cluster, &[0, 1, 2]);
    // A third each is kept for whom one cannot see.
    let share = sum(&[
        spends(&cluster, &[alone], "share", 30),
        spends(&cluster, &others, "share", 60),
    ]);
    let open = sum(&[
        spends(&cluster, &[alone], "open", 90),
        spends(&cluster, &others, "open", 90),
    ]);
    is_unavailable(&cluster, &[alone], "majority");
    let majority = spends(&cluster, &others, "majority", 90);
    is_unavailable(&cluster, &[alone], "majority");
    comes_together(
        &cluster,
        &faults,
        &[("share", share), ("open", open), ("majority", majority)],
    );
}

/// What was used before the cut is known to all and nobody's to give again.
#[test]
fn a_part_is_one_of_what_was_left_at_the_cut() {
    let cluster = cluster_with(&Setup::of(3), limits(90));
    let alone = cluster.follower();
    let others = cluster.others(alone);
    let mut before = vec![0; NAMES.len()];
    for (region, calls) in [(alone, 10), (others[0], 15), (others[1], 5)] {
        assert_eq!(of("share").at(&cluster, region).passes(calls), calls);
        before[region] = u64::try_from(calls).expect("small");
    }
    wait_agreed(&cluster, of("share"), &before);
    // What nobody was heard to know counts as left at the cut.
    let_news_pass(&cluster);
    let faults = cut(&cluster, &[alone], &others);
    wait_apart(&cluster, &[0, 1, 2]);
    let share = sum(&[
        before,
        spends(&cluster, &others, "share", 40),
        spends(&cluster, &[alone], "share", 20),
    ]);
    comes_together(&cluster, &faults, &[("share", share)]);
}

/// A cut that heals before the quota is used up leaves no part behind.
#[test]
fn a_part_that_was_kept_is_free_again_after_the_cut() {
    let cluster = cluster_with(&Setup::of(3), limits(90));
    let alone = cluster.follower();
    let others = cluster.others(alone);
    let faults = cut(&cluster, &[alone], &others);
    wait_apart(&cluster, &[0, 1, 2]);
    let there = spends(&cluster, &[alone], "share", 30);
    assert_eq!(of("share").at(&cluster, others[0]).passes(10), 10);
    heal(&cluster, &faults);
    wait_in_touch(&cluster);
    let mut here = vec![0; NAMES.len()];
    here[others[0]] = 10;
    let so_far = sum(&[there, here]);
    wait_agreed(&cluster, of("share"), &so_far);
    let rest = spend(&cluster, &[others[1], alone], of("share"));
    let units: u64 = rest.iter().sum();
    assert!((50..=50).contains(&units), "{rest:?}");
    wait_agreed(&cluster, of("share"), &sum(&[so_far, rest]));
}

/// One way only: who hears nothing knows that he misses somebody.
#[test]
fn a_link_that_is_cut_one_way_heals_without_a_trace() {
    let cluster = cluster_with(&Setup::of(3), limits(1000));
    let fault = json!({ "kind": "partition", "direction": "out", "ttl": "60s" });
    let mute = cluster.follower();
    let faults = [(mute, crate::approximate::inject(&cluster, mute, &fault))];
    let others = cluster.others(mute);
    wait_apart(&cluster, &others);
    let mut used = vec![0; NAMES.len()];
    for (region, used) in used.iter_mut().enumerate().take(3) {
        assert_eq!(of("open").at(&cluster, region).passes(20), 20);
        *used = 20;
    }
    heal(&cluster, &faults);
    wait_agreed(&cluster, of("open"), &used);
    wait_in_touch(&cluster);
}

/// Five regions, two sides; then two of them die.
#[test]
fn five_regions_share_over_a_cut_of_two_from_three() {
    let mut cluster = cluster_with(&Setup::of(5), limits(100));
    let leader = cluster.leader();
    let others = cluster.others(leader);
    let (few, many) = ([others[0], others[1]], [leader, others[2], others[3]]);
    let whole = Which("whole", "share", "");
    let taken = spend(&cluster, &[0, 1, 2, 3, 4], whole);
    let units: u64 = taken.iter().sum();
    println!("five together: {taken:?}");
    assert!((100..=104).contains(&units), "{taken:?}");
    wait_agreed(&cluster, whole, &taken);

    let faults = cut(&cluster, &few, &many);
    wait_apart(&cluster, &[0, 1, 2, 3, 4]);
    let shared = [
        spend(&cluster, &few, of("share")),
        spend(&cluster, &many, of("share")),
    ];
    println!("share: {shared:?}");
    let units = shared.each_ref().map(|part| part.iter().sum::<u64>());
    // Two regions can overlap by a unit, as they can in one piece.
    assert!(
        (40..=41).contains(&units[0]) && (60..=62).contains(&units[1]),
        "{units:?}"
    );
    is_unavailable(&cluster, &few, "majority");
    let majority = spend(&cluster, &many, of("majority"));
    let units: u64 = majority.iter().sum();
    assert!((100..=102).contains(&units), "{majority:?}");
    comes_together(
        &cluster,
        &faults,
        &[("share", sum(&shared)), ("majority", majority)],
    );

    cluster.kill(few[0]);
    cluster.kill(few[1]);
    wait_apart(&cluster, &many);
    let late = Which("late", "share", "");
    let taken = spend(&cluster, &many, late);
    let units: u64 = taken.iter().sum();
    assert!((60..=62).contains(&units), "{taken:?}");
    cluster.start_again(few[0]);
    cluster.start_again(few[1]);
    wait_agreed(&cluster, late, &taken);
    wait_in_touch(&cluster);
    let rest = spend(&cluster, &few, late);
    let all: u64 = sum(&[taken, rest]).iter().sum();
    assert!((100..=104).contains(&all), "{all}");
}
