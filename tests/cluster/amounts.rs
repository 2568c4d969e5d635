//! Strict limits that are changed while they are used: amounts, resets, new epochs, other modes.

use std::thread;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::WITHIN;
use crate::group::version;
use crate::load::Tally;
use crate::load::answers;
use crate::load::at_once;
use crate::load::decided;
use crate::load::in_turn;
use crate::load::spend_all;
use crate::load::wait_used;
use crate::server::wait_until;

fn exports(quota: u64, mode: &str) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": LONG, "mode": mode })
}

fn body() -> Value {
    json!({ "tenant": "t", "limit": "exports" })
}

fn reset(cluster: &Cluster, region: usize, tenant: &str) {
    let answer = cluster[region].admin(
        Method::POST,
        &format!("/admin/v1/tenants/{tenant}/limits/exports/reset"),
        &json!({}),
    );
    answer.succeeded();
    cluster.wait_in_force(version(&answer));
}

fn known_tenant(cluster: &Cluster) {
    let answer = cluster[0].admin(
        Method::PUT,
        "/admin/v1/tenants/t",
        &json!({ "plan": "all" }),
    );
    answer.succeeded();
    cluster.wait_in_force(version(&answer));
}

/// ADM-1.
#[test]
fn a_raised_quota_can_be_spent_at_once_in_every_region() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "exports": exports(50, "strict") }));
    assert_eq!(spend_all(&cluster, &body()), 50);
    cluster.put_limit(1, "exports", &exports(80, "strict"));
    // No refusal that is remembered outlives the change.
    for region in 0..3 {
        let answer = decided(&cluster[region], &body());
        assert!(answer.allowed(), "{answer:?}");
        assert_eq!(answer.quota(), 80, "{answer:?}");
    }
    wait_used(&cluster, "t", "exports", 53);
    assert_eq!(spend_all(&cluster, &body()), 27);
    wait_used(&cluster, "t", "exports", 80);
}

#[test]
fn a_lowered_quota_holds_from_the_change_on_and_use_is_kept() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "exports": exports(1000, "strict") }));
    // Units lie about in all regions.
    let tally = Tally::of(&answers(at_once(
        &cluster,
        20,
        in_turn(&[0, 1, 2], 60, &body()),
    )));
    assert_eq!(tally.allowed, 60, "{tally:?}");
    cluster.put_limit(0, "exports", &exports(100, "strict"));
    let rest = spend_all(&cluster, &body());
    assert_eq!(60 + rest, 100);
    wait_used(&cluster, "t", "exports", 100);
    // Below what is used: nothing passes until it is raised above that.
    cluster.put_limit(2, "exports", &exports(30, "strict"));
    for region in 0..3 {
        let refused = decided(&cluster[region], &body());
        assert!(!refused.allowed(), "{refused:?}");
        assert_eq!(refused.remaining(), 0, "{refused:?}");
    }
    cluster.put_limit(1, "exports", &exports(110, "strict"));
    assert_eq!(spend_all(&cluster, &body()), 10);
    wait_used(&cluster, "t", "exports", 110);
}

/// While it is being used in all regions: the largest quota in force is never passed, and what is left is there.
#[test]
fn amounts_change_under_load_and_no_unit_is_lost_or_made() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "exports": exports(100, "strict") }));
    let (tally, last) = thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let calls = in_turn(&[0, 1, 2], 900, &body());
            Tally::of(&answers(at_once(&cluster, 12, calls)))
        });
        for (round, quota) in [150, 60, 400, 350].into_iter().enumerate() {
            cluster.put_limit(round % 3, "exports", &exports(quota, "strict"));
        }
        (calls.join().expect("no panic"), 350)
    });
    println!("{tally:?}");
    assert_eq!(tally.unknown, 0, "{tally:?}");
    // 400 was in force for a while.
    assert!(tally.allowed <= 400, "{tally:?}");
    let rest = spend_all(&cluster, &body());
    assert_eq!(tally.allowed + rest, tally.allowed.max(last));
    wait_used(&cluster, "t", "exports", tally.allowed + rest);
}

#[test]
fn a_reset_starts_from_zero_with_what_the_old_epoch_has_not_let_out() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "exports": exports(60, "strict") }));
    known_tenant(&cluster);
    assert_eq!(spend_all(&cluster, &body()), 60);
    let before = Counter::new(&cluster[0], "t", "exports").look();
    reset(&cluster, 1, "t");
    for region in 0..3 {
        let look = Counter::new(&cluster[region], "t", "exports").look();
        assert_eq!((look.used(), look.remaining()), (0, 60), "{look:?}");
        assert!(
            look.only()["epoch"].as_u64() > before.only()["epoch"].as_u64(),
            "{look:?}"
        );
    }
    assert_eq!(spend_all(&cluster, &body()), 60);
    wait_used(&cluster, "t", "exports", 60);
}

/// Units of an old epoch may be spent until their region has learnt of the new one, so they are kept back from it.
#[test]
fn resets_under_load_let_out_no_more_than_one_quota_an_epoch() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "exports": exports(90, "strict") }));
    known_tenant(&cluster);
    let resets = 4;
    let tally = thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let calls = in_turn(&[0, 1, 2], 900, &body());
            Tally::of(&answers(at_once(&cluster, 12, calls)))
        });
        for round in 0..resets {
            reset(&cluster, usize::try_from(round).expect("small") % 3, "t");
        }
        calls.join().expect("no panic")
    });
    println!("{tally:?}");
    assert!(tally.allowed <= 90 * (resets + 1), "{tally:?}");
    // What had not been told when an epoch began is kept back from it; once all is told, a reset is a full one.
    wait_until("a reset is a full one", WITHIN, || {
        reset(&cluster, 0, "t");
        let spent = spend_all(&cluster, &body());
        wait_used(&cluster, "t", "exports", spent);
        spent == 90
    });
}

/// ADM-3 (b).
#[test]
fn a_limit_that_is_made_again_starts_from_zero() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "exports": exports(30, "strict") }));
    assert_eq!(spend_all(&cluster, &body()), 30);
    let gone = cluster[2].admin(Method::DELETE, "/admin/v1/limits/exports", &Value::Null);
    gone.succeeded();
    cluster.wait_in_force(version(&gone));
    for region in 0..3 {
        cluster[region].check(&body()).problem(404, "unknown_limit");
    }
    cluster.put_limit(1, "exports", &exports(30, "strict"));
    assert_eq!(spend_all(&cluster, &body()), 30);
    wait_used(&cluster, "t", "exports", 30);
}

/// ADM-3 (a): another window length is another counter, at once.
#[test]
fn another_window_starts_from_zero() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "exports": exports(20, "strict") }));
    assert_eq!(spend_all(&cluster, &body()), 20);
    let mut shorter = exports(20, "strict");
    shorter["window"] = "364d".into();
    cluster.put_limit(0, "exports", &shorter);
    assert_eq!(spend_all(&cluster, &body()), 20);
    let mut log = shorter.clone();
    log["algorithm"] = "sliding_log".into();
    cluster.put_limit(1, "exports", &log);
    assert_eq!(spend_all(&cluster, &body()), 20);
    wait_used(&cluster, "t", "exports", 20);
}

#[test]
fn a_mode_changes_from_strict_to_regional_and_back_with_full_quotas_of_its_own() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "exports": exports(30, "strict") }));
    assert_eq!(spend_all(&cluster, &body()), 30);
    cluster.put_limit(0, "exports", &exports(30, "regional"));
    // Every region by itself.
    assert_eq!(spend_all(&cluster, &body()), 90);
    cluster.put_limit(2, "exports", &exports(30, "strict"));
    assert_eq!(spend_all(&cluster, &body()), 30);
    wait_used(&cluster, "t", "exports", 30);
    for region in 0..3 {
        let look = Counter::new(&cluster[region], "t", "exports").look();
        assert_eq!(look.only()["mode"], "strict", "{look:?}");
    }
}

/// One key's own amount, above and below the others'.
#[test]
fn a_key_of_its_own_amount_is_strict_too() {
    let cluster = Cluster::of(3);
    let mut keyed = exports(10, "strict");
    keyed["key"] = "user".into();
    cluster.limits(&json!({ "exports": keyed }));
    known_tenant(&cluster);
    let answer = cluster[0].admin(
        Method::PUT,
        "/admin/v1/tenants/t/limits/exports/override?key=big",
        &json!({ "quota": 40 }),
    );
    answer.succeeded();
    cluster.wait_in_force(version(&answer));
    for (key, quota) in [("big", 40), ("small", 10)] {
        let body = json!({ "tenant": "t", "limit": "exports", "key": key });
        let calls = in_turn(&[0, 1, 2], 90, &body);
        let tally = Tally::of(&answers(at_once(&cluster, 20, calls)));
        assert_eq!(tally.allowed + spend_all(&cluster, &body), quota);
    }
}
