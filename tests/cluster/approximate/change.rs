//! Changes of the catalogue while regions cannot hear each other, and what is given back.

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::approximate::by_region;
use crate::approximate::cluster_with;
use crate::approximate::cut;
use crate::approximate::fixed;
use crate::approximate::heal;
use crate::approximate::let_news_pass;
use crate::approximate::of;
use crate::approximate::reset;
use crate::approximate::take_patiently;
use crate::approximate::wait_agreed;
use crate::approximate::wait_apart;
use crate::approximate::wait_in_touch;
use crate::approximate::wait_told;
use crate::approximate::with;
use crate::counter::Hold;
use crate::group::LONG;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::group::version;
use crate::server::wait_until;

/// A reset or a deletion with making again that one region does not hear of until it is back; what it used
/// meanwhile is of the old epoch.
#[test]
fn late_use_of_an_old_epoch_changes_nothing() {
    let open = |quota| with(fixed(quota, LONG), "on_partition", "open");
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "reset": open(20), "again": open(20), "other": open(20) }),
    );
    let known = json!({ "plan": "all" });
    let tenant = cluster[0].admin(Method::PUT, "/admin/v1/tenants/t", &known);
    cluster.wait_in_force(version(&tenant));
    let leader = cluster.leader();
    let others = cluster.others(leader);
    let (late, here) = (others[0], others[1]);
    let all = [leader, here, late];
    for limit in ["reset", "again", "other"] {
        for region in all {
            assert_eq!(of(limit).at(&cluster, region).passes(3), 3);
        }
        wait_agreed(&cluster, of(limit), &[3, 3, 3]);
    }
    let faults = cut(&cluster, &[late], &[leader, here]);
    wait_apart(&cluster, &[0, 1, 2]);
    for limit in ["reset", "again", "other"] {
        assert_eq!(of(limit).at(&cluster, late).passes(4), 4);
    }
    let done = reset(&cluster, leader, "reset");
    let path = "/admin/v1/limits/again";
    cluster[leader]
        .admin(Method::DELETE, path, &Value::Null)
        .succeeded();
    let made = cluster[leader].admin(Method::PUT, path, &open(20));
    made.succeeded();
    for region in [leader, here] {
        wait_until("the changes are in force on this side", WITHIN, || {
            let known = crate::group::status(&cluster[region])["catalogue_version"].as_u64();
            known >= Some(done.max(version(&made)))
        });
        for limit in ["reset", "again"] {
            let fresh = of(limit).at(&cluster, region);
            assert!(fresh.look().used() <= 2, "{:?}", fresh.look());
            assert_eq!(fresh.passes(2), 2);
        }
    }
    // Over there the old epoch still counts.
    assert_eq!(of("reset").at(&cluster, late).take(1).used(), 14);
    heal(&cluster, &faults);
    cluster.wait_in_force(version(&made));
    let mut fresh = vec![2; 3];
    fresh[late] = 0;
    let mut other = vec![3; 3];
    other[late] = 7;
    for _ in 0..2 {
        wait_agreed(&cluster, of("reset"), &fresh);
        wait_agreed(&cluster, of("again"), &fresh);
        wait_agreed(&cluster, of("other"), &other);
        wait_in_touch(&cluster);
        let_news_pass(&cluster);
    }
    for region in 0..3 {
        let look = of("reset").at(&cluster, region).look();
        assert_eq!((look.used(), look.remaining()), (4, 16), "{look:?}");
        let epoch = of("reset").at(&cluster, 0).look().number("epoch");
        assert_eq!(look.number("epoch"), epoch, "{look:?}");
    }
}

/// A reset by one region, used in all at once, many times over.
#[test]
fn every_reset_begins_at_zero_in_every_region() {
    let cluster = cluster_with(&Setup::of(3), json!({ "again": fixed(1000, LONG) }));
    let known = json!({ "plan": "all" });
    let tenant = cluster[0].admin(Method::PUT, "/admin/v1/tenants/t", &known);
    cluster.wait_in_force(version(&tenant));
    for round in 0..6_usize {
        for region in 0..3 {
            assert_eq!(of("again").at(&cluster, region).passes(round), round);
        }
        // News of the old epoch may be on its way.
        let done = reset(&cluster, round % 3, "again");
        cluster.wait_in_force(done);
        for region in 0..3 {
            assert!(of("again").at(&cluster, region).take(1).allowed());
        }
        wait_agreed(&cluster, of("again"), &[1, 1, 1]);
        let_news_pass(&cluster);
        wait_agreed(&cluster, of("again"), &[1, 1, 1]);
        let done = reset(&cluster, (round + 1) % 3, "again");
        cluster.wait_in_force(done);
        wait_agreed(&cluster, of("again"), &[]);
    }
}

/// Amounts change and use stays; another mode begins from zero.
#[test]
fn a_changed_quota_keeps_the_use_of_all_regions() {
    let cluster = cluster_with(&Setup::of(3), json!({ "shared": fixed(10, LONG) }));
    let which = of("shared");
    for region in 0..3 {
        assert_eq!(which.at(&cluster, region).passes(3), 3);
    }
    wait_agreed(&cluster, which, &[3, 3, 3]);
    cluster.put_limit(1, "shared", &fixed(12, LONG));
    wait_agreed(&cluster, which, &[3, 3, 3]);
    for region in 0..3 {
        take_patiently(&which.at(&cluster, region), 1);
    }
    wait_agreed(&cluster, which, &[4, 4, 4]);
    cluster.put_limit(2, "shared", &fixed(6, LONG));
    for region in 0..3 {
        let refused = which.at(&cluster, region).take(1);
        assert!(!refused.allowed());
        assert_eq!(
            (refused.used(), refused.remaining()),
            (12, 0),
            "{refused:?}"
        );
    }
    let mut regional = fixed(20, LONG);
    regional["mode"] = "regional".into();
    cluster.put_limit(0, "shared", &regional);
    for region in 0..3 {
        assert_eq!(which.at(&cluster, region).take(1).used(), 1);
    }
    cluster.put_limit(0, "shared", &fixed(20, LONG));
    wait_agreed(&cluster, which, &[]);
}

/// What one region charged can be given back in another.
#[test]
fn a_refund_in_another_region_than_the_charge_counts_everywhere() {
    let cluster = cluster_with(
        &Setup::of(3).with_manual_clocks(),
        json!({
            "fixed": fixed(10, LONG),
            "sliding": { "algorithm": "sliding_window", "quota": 10, "window": LONG, "mode": "approximate" },
            "bucket": { "algorithm": "token_bucket", "capacity": 10, "refill": 1, "per": "1h", "mode": "approximate" },
        }),
    );
    for limit in ["fixed", "sliding", "bucket"] {
        let which = of(limit);
        assert_eq!(which.at(&cluster, 0).passes(10), 10);
        wait_agreed(&cluster, which, &[10]);
        assert_eq!(which.at(&cluster, 1).refunded(4), 4, "{limit}");
        let told = |used: u64| {
            for region in 0..3 {
                crate::load::wait_used_at(&which.at(&cluster, region), used);
            }
        };
        told(6);
        // No more than is in use, by all regions together.
        assert_eq!(which.at(&cluster, 2).refunded(100), 6, "{limit}");
        told(0);
        assert_eq!(which.at(&cluster, 1).refunded(1), 0, "{limit}");
        for call in 0..10 {
            take_patiently(&which.at(&cluster, call % 3), 1);
            told(u64::try_from(call).expect("small") + 1);
        }
        for region in 0..3 {
            assert!(!which.at(&cluster, region).take(1).allowed());
        }
    }
}

/// Holds: less is given back, more is charged past the quota, everywhere.
#[test]
fn holds_settle_for_all_regions() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "shared": fixed(30, LONG), "bucket": { "algorithm": "token_bucket", "capacity": 30, "refill": 1, "per": "30d", "mode": "approximate" } }),
    );
    for limit in ["shared", "bucket"] {
        let which = of(limit);
        let hold =
            |region: usize, cost: u64| Hold::granted(&which.at(&cluster, region).hold(cost, "60s"));
        let [less, more, none] = [hold(0, 10), hold(1, 5), hold(2, 5)];
        wait_agreed(&cluster, which, &[10, 5, 5]);
        assert_eq!(which.at(&cluster, 1).left(), 10);
        less.settle(&cluster[0], 3).succeeded();
        wait_agreed(&cluster, which, &[3, 5, 5]);
        none.release(&cluster[2]).succeeded();
        wait_agreed(&cluster, which, &[3, 5]);
        more.settle(&cluster[1], 29).succeeded();
        wait_told(
            &cluster,
            which,
            &[3, 29],
            if limit == "bucket" { 30 } else { 32 },
        );
        for region in 0..3 {
            assert!(!which.at(&cluster, region).take(1).allowed());
        }
        // Another region's hold is not settled here.
        assert_eq!(less.settle(&cluster[1], 1).status, 421);
        let usage = which.at(&cluster, 0).usage();
        assert_eq!(by_region(&usage)[..3], [3, 29, 0], "{usage:?}");
    }
}
