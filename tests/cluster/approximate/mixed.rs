//! Approximate limits beside others, and the settings that let calls pass all the same.

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::approximate::Which;
use crate::approximate::by_region;
use crate::approximate::cluster_with;
use crate::approximate::cut;
use crate::approximate::fixed;
use crate::approximate::heal;
use crate::approximate::let_news_pass;
use crate::approximate::of;
use crate::approximate::spend;
use crate::approximate::take_patiently;
use crate::approximate::wait_agreed;
use crate::approximate::wait_apart;
use crate::approximate::wait_in_touch;
use crate::approximate::wait_told;
use crate::approximate::with;
use crate::group::LONG;
use crate::group::NAMES;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::load::decided;
use crate::load::wait_used;
use crate::load::wait_used_at;
use crate::server::T0;
use crate::server::wait_until;

/// All of a check is charged or none, whatever the modes of its limits.
#[test]
fn a_check_of_several_modes_charges_all_or_none() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({
            "shared": fixed(6, LONG),
            "here": { "algorithm": "fixed_window", "quota": 100, "window": LONG },
            "paid": { "algorithm": "fixed_window", "quota": 100, "window": LONG, "mode": "strict" },
            "few": { "algorithm": "fixed_window", "quota": 2, "window": LONG },
        }),
    );
    let checks = |limits: &[&str]| {
        let checks: Vec<Value> = limits
            .iter()
            .map(|limit| json!({ "limit": limit }))
            .collect();
        json!({ "tenant": "t", "checks": checks })
    };
    let all = checks(&["here", "shared", "paid"]);
    for region in 0..3 {
        for _ in 0..2 {
            // Strict units may have to come from the leader first, and a share may be used up for a moment.
            wait_until("the check is allowed", WITHIN, || {
                decided(&cluster[region], &all).allowed()
            });
        }
    }
    wait_agreed(&cluster, of("shared"), &[2, 2, 2]);
    for region in 0..3 {
        for _ in 0..3 {
            let refused = decided(&cluster[region], &all);
            assert!(!refused.allowed());
            assert_eq!(refused.result("shared")["decision"], "deny", "{refused:?}");
        }
        assert_eq!(of("here").at(&cluster, region).used(), 2);
    }
    wait_used(&cluster, "t", "paid", 6);
    // Refused for another limit's sake: the shared one is not charged, anywhere.
    let other = json!({ "tenant": "other", "checks": [{ "limit": "few" }, { "limit": "shared" }] });
    for region in 0..2 {
        let allowed = (0..5)
            .filter(|_| cluster[region].check(&other).allowed())
            .count();
        assert_eq!(allowed, 2);
    }
    wait_agreed(&cluster, Which("other", "shared", ""), &[2, 2]);
    let_news_pass(&cluster);
    wait_agreed(&cluster, of("shared"), &[2, 2, 2]);
    wait_agreed(&cluster, Which("other", "shared", ""), &[2, 2]);
}

/// Counted in all regions and never refused, or refused by one answer too late.
#[test]
fn calls_that_pass_whatever_is_left_are_counted_for_all_regions() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({
            "shadow": with(fixed(3, LONG), "enforce", false),
            "unlimited": with(fixed(3, LONG), "unlimited", true),
            "always": with(with(fixed(3, LONG), "key", "user"), "always_allow", vec!["vip"]),
            "overdraft": with(fixed(100, LONG), "overdraft", true),
        }),
    );
    for limit in ["shadow", "unlimited"] {
        for region in 0..3 {
            assert_eq!(of(limit).at(&cluster, region).passes(4), 4, "{limit}");
        }
        wait_agreed(&cluster, of(limit), &[4, 4, 4]);
    }
    let shadow = of("shadow").at(&cluster, 1).take(1);
    assert_eq!(shadow.only()["would_deny"], true, "{shadow:?}");
    let vip = Which("t", "always", "vip");
    for region in 0..3 {
        assert_eq!(vip.at(&cluster, region).passes(4), 4);
    }
    wait_agreed(&cluster, vip, &[4, 4, 4]);

    let overdraft = of("overdraft");
    assert!(overdraft.at(&cluster, 0).take(99).allowed());
    wait_agreed(&cluster, overdraft, &[99]);
    // One unit is left, and with it all that this call costs.
    assert!(take_patiently(&overdraft.at(&cluster, 1), 1).allowed());
    wait_agreed(&cluster, overdraft, &[99, 1]);
    for region in 0..3 {
        assert!(!overdraft.at(&cluster, region).take(50).allowed());
    }
    let late = Which("late", "overdraft", "");
    assert!(late.at(&cluster, 0).take(99).allowed());
    wait_agreed(&cluster, late, &[99]);
    let deadline = std::time::Instant::now();
    wait_until("the last unit is this region's", WITHIN, || {
        late.at(&cluster, 1).take(50).allowed()
    });
    println!("had after {:?}", deadline.elapsed());
    wait_agreed(&cluster, late, &[99, 50]);
    for region in 0..3 {
        let refused = late.at(&cluster, region).take(1);
        assert!(!refused.allowed());
        assert_eq!(
            (refused.used(), refused.remaining()),
            (149, 0),
            "{refused:?}"
        );
    }
}

/// Every region counts alone, and every region can tell what all have used.
#[test]
fn use_of_a_regional_limit_is_told_to_all_and_held_against_nobody() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "here": { "algorithm": "fixed_window", "quota": 5, "window": LONG } }),
    );
    for region in 0..3 {
        assert_eq!(of("here").at(&cluster, region).passes(9), 5);
    }
    for region in 0..3 {
        let counter = of("here").at(&cluster, region);
        wait_until("it can tell the others' use", WITHIN, || {
            by_region(&counter.usage())[..3] == [5, 5, 5]
        });
        assert_eq!((counter.used(), counter.left()), (5, 0));
    }
}

/// Where the answer cannot be kept the limit's policy holds, and what passed is told once the disk is back.
#[test]
fn a_region_without_a_disk_follows_the_policy_and_the_others_go_on() {
    let limit = |policy: &str| {
        with(
            with(fixed(10, LONG), "on_unavailable", policy),
            "durability",
            "sync",
        )
    };
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "open": limit("open"), "closed": limit("closed") }),
    );
    let broken = cluster.follower();
    let here = cluster.others(broken)[0];
    let mut used = vec![0; 3];
    let fault = cluster[broken].inject("store_full");
    wait_until("the disk is known to be full", WITHIN, || {
        Which("canary", "closed", "")
            .at(&cluster, broken)
            .take(1)
            .status
            == 503
    });
    for _ in 0..4 {
        of("closed").at(&cluster, broken).take(1).unavailable();
        let passed = of("open").at(&cluster, broken).take(1);
        assert!(passed.allowed());
        assert_eq!(passed.only()["degraded"], true, "{passed:?}");
    }
    for limit in ["open", "closed"] {
        for _ in 0..3 {
            take_patiently(&of(limit).at(&cluster, here), 1);
        }
    }
    used[here] = 3;
    wait_agreed(&cluster, of("closed"), &used);
    cluster[broken].heal(&fault);
    wait_until("it counts again", WITHIN, || {
        let answer = of("closed").at(&cluster, broken).take(1);
        if answer.status == 200 {
            used[broken] += 1;
        }
        answer.status == 200
    });
    wait_agreed(&cluster, of("closed"), &used);
    let counted = of("open").at(&cluster, broken).usage();
    println!(
        "4 passed without a disk, {:?} are counted",
        by_region(&counted)
    );
    wait_agreed(&cluster, of("open"), &by_region(&counted)[..3]);
}

/// A cut over the end of a window: what was used in the old one is told too late to matter.
#[test]
fn news_of_a_window_that_is_over_changes_nothing_in_the_next() {
    let cluster = cluster_with(
        &Setup::of(3).with_manual_clocks(),
        json!({ "shared": with(fixed(30, "60s"), "on_partition", "open"), "sliding": {
            "algorithm": "sliding_window", "quota": 30, "window": "60s", "mode": "approximate", "on_partition": "open" } }),
    );
    let alone = cluster.follower();
    let others = cluster.others(alone);
    let faults = cut(&cluster, &[alone], &others);
    wait_apart(&cluster, &[0, 1, 2]);
    for limit in ["shared", "sliding"] {
        assert_eq!(of(limit).at(&cluster, alone).passes(20), 20);
        assert_eq!(of(limit).at(&cluster, others[0]).passes(4), 4);
    }
    cluster.at(60_000);
    let mut used = vec![0; 3];
    for region in [alone, others[0]] {
        assert!(of("shared").at(&cluster, region).take(1).allowed());
        used[region] = 1;
    }
    heal(&cluster, &faults);
    wait_in_touch(&cluster);
    wait_agreed(&cluster, of("shared"), &used);
    let_news_pass(&cluster);
    wait_agreed(&cluster, of("shared"), &used);
    // A sliding window still weighs the old one, and learns of it.
    for region in 0..3 {
        wait_used_at(&of("sliding").at(&cluster, region), 24);
    }
    for region in 0..3 {
        let path = format!("/v1/usage?tenant=t&limit=shared&at={}", T0 / 1000 + 30);
        let answer = cluster[region].get(&path);
        println!("{}: {} {}", NAMES[region], answer.status, answer.text);
    }
    cluster.at(120_000);
    for region in 0..3 {
        assert_eq!(of("shared").at(&cluster, region).left(), 30);
        // (of the sliding window's second half nothing was used)
        assert_eq!(of("sliding").at(&cluster, region).left(), 30);
    }
}

/// Two regions: one alone has half of what was left, and no majority.
#[test]
fn of_two_regions_each_alone_has_half() {
    let mut cluster = cluster_with(
        &Setup::of(2),
        json!({ "share": fixed(20, LONG), "majority": with(fixed(20, LONG), "on_partition", "majority") }),
    );
    assert_eq!(of("share").at(&cluster, 0).passes(3), 3);
    assert_eq!(of("share").at(&cluster, 1).passes(1), 1);
    wait_agreed(&cluster, of("share"), &[3, 1]);
    cluster.kill(1);
    wait_apart(&cluster, &[0]);
    assert_eq!(spend(&cluster, &[0], of("share"))[0], 8);
    of("majority").at(&cluster, 0).take(1).unavailable();
    cluster.start_again(1);
    wait_in_touch(&cluster);
    wait_agreed(&cluster, of("share"), &[11, 1]);
    assert_eq!(spend(&cluster, &[1], of("share"))[1], 8);
    wait_agreed(&cluster, of("share"), &[11, 9]);
}

/// Nothing is kept for a region that was taken out.
#[test]
fn a_region_that_was_removed_is_not_missed() {
    let mut cluster = cluster_with(&Setup::of(3), json!({ "share": fixed(30, LONG) }));
    let gone = cluster.follower();
    let others = cluster.others(gone);
    assert_eq!(of("share").at(&cluster, gone).passes(3), 3);
    let mut used = vec![0; 3];
    used[gone] = 3;
    wait_agreed(&cluster, of("share"), &used);
    cluster.kill(gone);
    wait_apart(&cluster, &others);
    let path = format!("/admin/v1/cluster/regions/{}", NAMES[gone]);
    let removed = cluster[others[0]].admin(Method::DELETE, &path, &Value::Null);
    removed.succeeded();
    wait_in_touch(&cluster);
    let taken = spend(&cluster, &others, of("share"));
    assert_eq!(taken.iter().sum::<u64>(), 27, "{taken:?}");
    for region in &others {
        used[*region] = taken[*region];
    }
    wait_told(&cluster, of("share"), &used, 30);
}
