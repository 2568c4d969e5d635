//! What keeps use and what starts it from zero.

use serde_json::Value;
use serde_json::json;

use super::Fixture;
use super::limit;
use super::plan;
use super::tenant;
use crate::catalogue::change::Applied;
use crate::catalogue::change::Change;
use crate::domain::name::Key;
use crate::domain::name::PlanName;
use crate::domain::name::TenantName;
use crate::domain::time::Span;

fn start() -> Fixture {
    Fixture::with(&json!({
        "limits": {
            "api": { "algorithm": "fixed_window", "quota": 10, "window": "1m", "key": "user" },
            "exports": { "quota": 5, "period": "day" },
        },
        "plans": { "free": {}, "pro": { "limits": { "api": { "quota": 100 } } } },
        "tenants": {
            "acme": { "plan": "pro" },
            "b": { "plan": "free" },
            "c": {},
            "special": { "plan": "pro", "limits": { "api": { "window": "1h" } } },
        },
    }))
}

fn told(applied: &Applied) -> Vec<(Option<&str>, Option<&str>, &str)> {
    applied
        .new_epochs
        .iter()
        .map(|new| {
            let plan = new.plan.as_ref().map(PlanName::as_str);
            (
                plan,
                new.tenant.as_ref().map(TenantName::as_str),
                new.limit.as_str(),
            )
        })
        .collect()
}

#[test]
fn amounts_and_policies_keep_use() {
    let mut fixture = start();
    let spec = json!({
        "algorithm": "fixed_window", "quota": 11, "window": "1m", "key": "user", "actions": ["x"],
        "on_unavailable": "local", "fallback_quota": 3, "always_allow": ["vip"], "overdraft": true,
        "durability": "sync", "enforce": false,
    });
    let applied = fixture.put_limit("api", &spec).expect("accepted");
    assert!(applied.new_epochs.is_empty(), "{applied:?}");
    for of in ["acme", "b", "c", "special"] {
        assert_eq!(fixture.epoch(of, "api"), 1);
    }
}

#[test]
fn another_shape_starts_from_zero() {
    let api = |changes: &[(&str, Value)]| {
        let mut spec =
            json!({ "algorithm": "fixed_window", "quota": 10, "window": "1m", "key": "user" });
        for (field, value) in changes {
            spec[*field] = value.clone();
        }
        spec
    };
    for (name, spec) in [
        ("api", api(&[("window", json!("2m"))])),
        ("api", api(&[("algorithm", json!("sliding_window"))])),
        ("api", api(&[("algorithm", json!("sliding_log"))])),
        ("api", api(&[("key", json!("ip"))])),
        ("exports", json!({ "quota": 5, "period": "hour" })),
        (
            "exports",
            json!({ "quota": 5, "period": "day", "every": 2 }),
        ),
        (
            "exports",
            json!({ "quota": 5, "period": "day", "anchor": "2026-01-01T00:00:00" }),
        ),
        (
            "exports",
            json!({ "quota": 5, "period": "day", "time_zone": "Asia/Kolkata" }),
        ),
    ] {
        let mut fixture = start();
        let applied = fixture.put_limit(name, &spec).expect("accepted");
        assert_eq!(fixture.epoch("acme", name), 2, "{spec}");
        assert_eq!(fixture.epoch("c", name), 2, "{spec}");
        assert!(
            told(&applied).contains(&(Some("pro"), None, name)),
            "{applied:?}"
        );
        assert_eq!(fixture.reread().view(), fixture.catalogue.view());
    }
}

#[test]
fn saying_the_default_out_loud_is_no_change_of_shape() {
    let mut fixture = start();
    let spec = json!({
        "algorithm": "calendar_window", "quota": 5, "period": "day", "every": 1, "time_zone": "UTC",
        "anchor": "1970-01-01T00:00:00", "mode": "regional",
    });
    assert!(
        fixture
            .put_limit("exports", &spec)
            .expect("accepted")
            .new_epochs
            .is_empty()
    );
    assert_eq!(fixture.epoch("acme", "exports"), 1);
}

#[test]
fn buckets_and_leases_have_their_own_shape() {
    let bucket = |capacity: u64, refill: u64, per: &str| json!({ "capacity": capacity, "refill": refill, "per": per });
    let mut fixture = start();
    fixture
        .put_limit("bucket", &bucket(10, 1, "1s"))
        .expect("accepted");
    fixture
        .put_limit("bucket", &bucket(20, 5, "1s"))
        .expect("accepted");
    assert_eq!(fixture.epoch("acme", "bucket"), 2);
    fixture
        .put_limit("bucket", &bucket(20, 5, "2s"))
        .expect("accepted");
    assert_eq!(fixture.epoch("acme", "bucket"), 4);
    fixture
        .put_limit("slots", &json!({ "quota": 1, "ttl": "60s" }))
        .expect("accepted");
    fixture
        .put_limit("slots", &json!({ "quota": 2, "ttl": "60s" }))
        .expect("accepted");
    assert_eq!(fixture.epoch("acme", "slots"), 5);
    fixture
        .put_limit("slots", &json!({ "quota": 2, "ttl": "61s" }))
        .expect("accepted");
    assert_eq!(fixture.epoch("acme", "slots"), 7);
}

#[test]
fn a_tenant_whose_shape_is_its_own_keeps_its_use() {
    let mut fixture = start();
    let spec = json!({ "algorithm": "fixed_window", "quota": 10, "window": "2m", "key": "user" });
    fixture.put_limit("api", &spec).expect("accepted");
    assert_eq!(
        fixture.epoch("special", "api"),
        1,
        "its window is still one hour"
    );
    assert_eq!(fixture.epoch("acme", "api"), 2);
    let applied = fixture
        .patch(&json!({ "tenants": { "special": { "limits": { "api": { "window": "2m" } } } } }))
        .expect("accepted");
    assert_eq!(fixture.epoch("special", "api"), 3);
    assert_eq!(told(&applied), [(None, Some("special"), "api")]);
}

#[test]
fn moving_to_another_plan_keeps_use_when_the_shape_is_the_same() {
    let mut fixture = start();
    fixture.reset("b", "api", None).expect("accepted");
    let mv = |name: &str| json!({ "tenants": { "b": { "plan": name } } });
    let applied = fixture.patch(&mv("pro")).expect("accepted");
    assert!(applied.new_epochs.is_empty());
    assert_eq!(
        (fixture.quota("b", "api"), fixture.epoch("b", "api")),
        (100, 2)
    );
    fixture
        .patch(&json!({ "plans": { "hourly": { "limits": { "api": { "window": "1h" } } } } }))
        .expect("accepted");
    let applied = fixture.patch(&mv("hourly")).expect("accepted");
    assert_eq!(
        (fixture.epoch("b", "api"), fixture.epoch("b", "exports")),
        (5, 1)
    );
    assert_eq!(told(&applied), [(None, Some("b"), "api")]);
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}

#[test]
fn a_tenants_zone_and_anchor_are_part_of_its_calendar_windows() {
    let mut fixture = start();
    fixture
        .patch(&json!({ "tenants": { "acme": { "time_zone": "Asia/Kolkata" } } }))
        .expect("accepted");
    assert_eq!(
        (
            fixture.epoch("acme", "exports"),
            fixture.epoch("acme", "api")
        ),
        (2, 1)
    );
    fixture
        .patch(&json!({ "tenants": { "acme": { "anchor": "2026-01-31T00:00:00" } } }))
        .expect("accepted");
    assert_eq!(
        (
            fixture.epoch("acme", "exports"),
            fixture.epoch("b", "exports")
        ),
        (3, 1)
    );
}

#[test]
fn a_reset_starts_one_limit_of_one_tenant_from_zero() {
    let mut fixture = start();
    let applied = fixture.reset("acme", "api", None).expect("accepted");
    assert_eq!(applied.version, 2);
    assert_eq!(told(&applied), [(None, Some("acme"), "api")]);
    assert_eq!(
        (
            fixture.epoch("acme", "api"),
            fixture.epoch("acme", "exports")
        ),
        (2, 1)
    );
    assert_eq!(fixture.epoch("special", "api"), 1);
    // Later amounts of the plan reach it, and keep its epoch.
    fixture
        .patch(&json!({ "plans": { "pro": { "limits": { "api": { "quota": 7 } } } } }))
        .expect("accepted");
    assert_eq!(
        (fixture.quota("acme", "api"), fixture.epoch("acme", "api")),
        (7, 2)
    );
}

#[test]
fn a_reset_of_one_key_leaves_the_others() {
    let mut fixture = start();
    let applied = fixture.reset("acme", "api", Some("u1")).expect("accepted");
    assert_eq!(
        applied.new_epochs[0].key,
        Some(Key::new("u1").expect("a key"))
    );
    let view = fixture.limit("acme", "api");
    assert_eq!(view.at("u1", fixture.now).1, 2);
    assert_eq!(view.at("u2", fixture.now).1, 1);
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
    // A reset of the whole limit is newer than that of the key.
    fixture.reset("acme", "api", None).expect("accepted");
    assert_eq!(fixture.limit("acme", "api").at("u1", fixture.now).1, 3);
    let refused = fixture.reset("acme", "exports", Some("u1"));
    assert!(super::fault(refused).starts_with("key: is given, but the limit has no `key`"));
}

#[test]
fn a_reset_of_a_key_is_forgotten_when_all_from_before_is_dead() {
    let mut fixture = start();
    fixture.reset("acme", "api", Some("u1")).expect("accepted");
    fixture.reset("acme", "api", Some("u2")).expect("accepted");
    // Two windows of a minute, and the grace.
    fixture.now = fixture.now.plus(Span::from_seconds(129));
    fixture.patch(&json!({})).expect("accepted");
    assert_eq!(fixture.limit("acme", "api").at("u1", fixture.now).1, 2);
    fixture.now = fixture.now.plus(Span::from_seconds(1));
    fixture.patch(&json!({})).expect("accepted");
    assert_eq!(fixture.limit("acme", "api").at("u1", fixture.now).1, 1);
    assert_eq!(fixture.limit("acme", "api").resets, None);
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}

#[test]
fn deleting_and_making_again_starts_from_zero_and_says_so() {
    let mut fixture = start();
    fixture
        .change(Change::DeleteLimit {
            limit: limit("exports"),
        })
        .expect("accepted");
    let applied = fixture
        .put_limit("exports", &json!({ "quota": 5, "period": "day" }))
        .expect("accepted");
    assert_eq!(fixture.epoch("acme", "exports"), 3);
    assert_eq!(told(&applied), [(None, None, "exports")]);
    let applied = fixture
        .put_limit("brand-new", &json!({ "quota": 5, "period": "day" }))
        .expect("accepted");
    assert!(
        applied.new_epochs.is_empty(),
        "there is no use that could be lost"
    );
}

#[test]
fn a_new_tenant_has_the_epochs_of_its_plan() {
    let mut fixture = start();
    fixture
        .patch(&json!({ "tenants": { "new": { "plan": "pro" } } }))
        .expect("accepted");
    assert_eq!(fixture.epoch("new", "api"), 1);
}

#[test]
fn a_tenant_that_is_deleted_and_made_again_starts_from_zero() {
    let mut fixture = start();
    fixture
        .change(Change::DeleteTenant {
            tenant: tenant("acme"),
        })
        .expect("accepted");
    assert!(fixture.catalogue.view().tenant("acme").is_none());
    fixture
        .patch(&json!({ "tenants": { "acme": { "plan": "pro" } } }))
        .expect("accepted");
    assert_eq!(
        (
            fixture.epoch("acme", "api"),
            fixture.epoch("acme", "exports")
        ),
        (3, 3)
    );
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
    // Much later nobody remembers, and nothing is left that could be counted.
    fixture
        .change(Change::DeleteTenant {
            tenant: tenant("b"),
        })
        .expect("accepted");
    fixture.now = fixture.now.plus(Span::from_seconds(10 * 86_400));
    fixture.patch(&json!({})).expect("accepted");
    fixture
        .patch(&json!({ "tenants": { "b": { "plan": "free" } } }))
        .expect("accepted");
    assert_eq!(fixture.epoch("b", "api"), 1);
}

fn with_default_plan() -> Fixture {
    let mut fixture = start();
    fixture
        .patch(&json!({ "default_plan": "free" }))
        .expect("accepted");
    fixture
}

#[test]
fn unknown_tenants_share_their_epochs() {
    let mut fixture = with_default_plan();
    assert_eq!(
        fixture.epoch("x", "api"),
        2,
        "counted from when there is a default plan"
    );
    assert_eq!(fixture.epoch("b", "api"), 1);
    // Another default plan with the same shape keeps what they used.
    fixture
        .patch(&json!({ "default_plan": "pro" }))
        .expect("accepted");
    assert_eq!(
        (fixture.quota("x", "api"), fixture.epoch("x", "api")),
        (100, 2)
    );
    assert_eq!(
        (fixture.quota("c", "api"), fixture.epoch("c", "api")),
        (100, 1)
    );
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}

#[test]
fn a_tenant_that_becomes_known_keeps_its_use() {
    let mut fixture = with_default_plan();
    fixture
        .patch(&json!({ "tenants": { "x": { "plan": "pro" } } }))
        .expect("accepted");
    assert_eq!(
        (fixture.quota("x", "api"), fixture.epoch("x", "api")),
        (100, 2)
    );
    fixture
        .patch(&json!({ "tenants": { "y": { "limits": { "api": { "window": "1h" } } } } }))
        .expect("accepted");
    assert_eq!(
        (fixture.epoch("y", "api"), fixture.epoch("y", "exports")),
        (4, 2)
    );
    // And back again.
    fixture
        .change(Change::DeleteTenant {
            tenant: tenant("x"),
        })
        .expect("accepted");
    assert_eq!(
        (fixture.quota("x", "api"), fixture.epoch("x", "api")),
        (10, 2)
    );
    fixture
        .change(Change::DeleteTenant {
            tenant: tenant("y"),
        })
        .expect("accepted");
    assert_eq!(
        (fixture.epoch("y", "api"), fixture.epoch("y", "exports")),
        (6, 2)
    );
    assert_eq!(fixture.epoch("z", "api"), 2, "the others are not concerned");
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}

#[test]
fn one_unknown_tenant_can_be_reset() {
    let mut fixture = with_default_plan();
    fixture.reset("x", "exports", None).expect("accepted");
    fixture.reset("x", "api", Some("u1")).expect("accepted");
    assert_eq!(
        (fixture.epoch("x", "exports"), fixture.epoch("y", "exports")),
        (3, 2)
    );
    assert_eq!(fixture.limit("x", "api").at("u1", fixture.now).1, 4);
    assert!(!fixture.catalogue.view().tenant("x").expect("counted").known);
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
    fixture.now = fixture.now.plus(Span::from_seconds(10 * 86_400));
    fixture.patch(&json!({})).expect("accepted");
    assert_eq!(fixture.epoch("x", "exports"), 2);
    assert_eq!(fixture.reread(), fixture.catalogue);
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}

#[test]
fn without_a_default_plan_everybody_unknown_is_gone_and_comes_back_at_zero() {
    let mut fixture = with_default_plan();
    fixture.reset("x", "api", None).expect("accepted");
    let mut tree = fixture.catalogue.tree().clone();
    tree.default_plan = None;
    fixture.change(Change::Replace { tree }).expect("accepted");
    assert!(fixture.catalogue.view().tenant("x").is_none());
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
    fixture
        .patch(&json!({ "tenants": { "x": {} } }))
        .expect("accepted");
    assert_eq!(fixture.epoch("x", "api"), 5, "there may be use from before");
    fixture
        .patch(&json!({ "default_plan": "free" }))
        .expect("accepted");
    assert_eq!(fixture.epoch("y", "api"), 6);
    assert_eq!(fixture.epoch("x", "api"), 5);
}

#[test]
fn a_plan_that_goes_leaves_nothing() {
    let mut fixture = start();
    fixture
        .patch(&json!({ "tenants": { "acme": { "plan": "free" }, "special": { "plan": "free" } } }))
        .expect("accepted");
    fixture
        .change(Change::DeletePlan { plan: plan("pro") })
        .expect("accepted");
    fixture
        .patch(&json!({ "plans": { "pro": { "limits": { "api": { "window": "2m" } } } } }))
        .expect("accepted");
    fixture
        .patch(&json!({ "tenants": { "acme": { "plan": "pro" } } }))
        .expect("accepted");
    assert_eq!(
        (
            fixture.epoch("acme", "api"),
            fixture.epoch("acme", "exports")
        ),
        (5, 1)
    );
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}
