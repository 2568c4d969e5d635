//! PUT, PATCH, DELETE, versions and races.

use serde_json::Value;
use serde_json::json;

use super::Fixture;
use super::limit;
use super::operator;
use super::override_of;
use super::plan;
use super::spec_of;
use super::tenant;
use crate::catalogue::change::Change;
use crate::catalogue::change::Refused;
use crate::domain::name::Key;

fn start() -> Fixture {
    Fixture::with(&json!({
        "default_plan": "free",
        "limits": {
            "api": { "algorithm": "fixed_window", "quota": 10, "window": "1m", "key": "user" },
            "exports": { "quota": 5, "period": "day" },
        },
        "plans": { "free": {}, "pro": { "limits": { "api": { "quota": 100 } } } },
        "tenants": { "acme": { "plan": "pro", "limits": {
            "api": { "quota": 50, "keys": { "a": { "quota": 1 }, "b": { "quota": 2 } } },
        } } },
    }))
}

fn document(fixture: &Fixture) -> Value {
    serde_json::to_value(fixture.catalogue.tree()).expect("json")
}

#[test]
fn put_replaces_all_of_the_catalogue() {
    let mut fixture = start();
    let new = json!({
        "limits": { "api": { "algorithm": "fixed_window", "quota": 11, "window": "1m" } },
        "plans": {},
        "tenants": { "b": {} },
    });
    fixture.replace(&new).expect("accepted");
    assert_eq!(document(&fixture), new);
    assert!(fixture.catalogue.view().tenant("acme").is_none());
    assert_eq!(fixture.quota("b", "api"), 11);
}

#[test]
fn what_is_read_can_be_put_back_unchanged() {
    let mut fixture = start();
    let before = (document(&fixture), fixture.epoch("acme", "api"));
    let applied = fixture.replace(&before.0).expect("accepted");
    assert!(applied.new_epochs.is_empty());
    assert_eq!((document(&fixture), fixture.epoch("acme", "api")), before);
}

#[test]
fn patch_creates_and_changes_and_deletes_nothing() {
    let mut fixture = start();
    fixture
        .patch(&json!({
            "limits": { "exports": { "quota": 6, "period": "day" } },
            "plans": { "pro": { "limits": { "exports": { "quota": 60 } } }, "max": {} },
            "tenants": {
                "acme": { "time_zone": "UTC", "limits": { "api": { "keys": { "b": { "quota": 3 } } } } },
                "new": { "plan": "max" },
            },
        }))
        .expect("accepted");
    assert_eq!(
        document(&fixture),
        json!({
            "default_plan": "free",
            "limits": {
                "api": { "algorithm": "fixed_window", "quota": 10, "window": "1m", "key": "user" },
                "exports": { "quota": 6, "period": "day" },
            },
            "plans": {
                "free": { "limits": {} },
                "max": { "limits": {} },
                "pro": { "limits": { "api": { "quota": 100 }, "exports": { "quota": 60 } } },
            },
            "tenants": {
                "acme": { "plan": "pro", "time_zone": "UTC", "limits": {
                    "api": { "quota": 50, "keys": { "a": { "quota": 1 }, "b": { "quota": 3 } } },
                } },
                "new": { "plan": "max" },
            },
        })
    );
}

#[test]
fn a_named_item_becomes_what_is_written() {
    let mut fixture = start();
    let item = json!({ "tenants": { "acme": { "limits": { "api": { "enforce": false } } } } });
    fixture.patch(&item).expect("accepted");
    assert_eq!(
        fixture.quota("acme", "api"),
        100,
        "the tenant's quota was not named again"
    );
    assert!(!fixture.limit("acme", "api").limit.enforce);
    assert_eq!(fixture.key_quota("acme", "api", "a"), 1, "overrides stay");
}

#[test]
fn single_items_are_put_and_deleted() {
    let mut fixture = start();
    fixture
        .put_limit("new", &json!({ "quota": 1, "period": "hour" }))
        .expect("accepted");
    assert_eq!(fixture.quota("acme", "new"), 1);
    fixture
        .change(Change::DeleteLimit {
            limit: limit("new"),
        })
        .expect("accepted");
    assert!(
        fixture
            .catalogue
            .view()
            .tenant("acme")
            .expect("a tenant")
            .limit("new")
            .is_none()
    );

    let definition =
        serde_json::from_value(json!({ "limits": { "api": { "quota": 7 } } })).expect("a plan");
    fixture
        .change(Change::PutPlan {
            plan: plan("pro"),
            definition,
        })
        .expect("accepted");
    fixture
        .change(Change::PutTenantLimit {
            tenant: tenant("acme"),
            limit: limit("api"),
            spec: spec_of(&json!({})),
        })
        .expect("accepted");
    assert_eq!(fixture.quota("acme", "api"), 7);

    fixture
        .change(Change::DeleteTenantLimit {
            tenant: tenant("acme"),
            limit: limit("api"),
        })
        .expect("accepted");
    assert_eq!(
        fixture.key_quota("acme", "api", "a"),
        7,
        "its overrides went with it"
    );

    fixture
        .change(Change::DeleteTenant {
            tenant: tenant("acme"),
        })
        .expect("accepted");
    assert_eq!(
        fixture.quota("acme", "api"),
        10,
        "unknown now: the default plan"
    );
}

#[test]
fn overrides_are_put_and_deleted_one_by_one() {
    let mut fixture = start();
    let key = Key::new("c\u{0}").expect("a key");
    let (of, name) = (tenant("acme"), limit("api"));
    let put = |spec: Value| Change::PutOverride {
        tenant: of.clone(),
        limit: name.clone(),
        key: key.clone(),
        spec: override_of(&spec),
    };
    fixture
        .change(put(json!({ "unlimited": true })))
        .expect("accepted");
    let view = fixture.limit("acme", "api");
    assert!(view.at("c\u{0}", fixture.now).0.unlimited);
    assert!(!view.at("c", fixture.now).0.unlimited);
    let answer = fixture
        .catalogue
        .effective_override(&of, &name, &key, fixture.now)
        .expect("one");
    assert_eq!(
        (answer.written, answer.effective.unlimited),
        (Some(override_of(&json!({ "unlimited": true }))), Some(true))
    );

    let past = fixture
        .change(put(
            json!({ "quota": 3, "expires_at": "2020-01-01T00:00:00Z" }),
        ))
        .expect("accepted");
    assert!(past.warnings[0].contains("has ended already"), "{past:?}");
    assert_eq!(fixture.key_quota("acme", "api", "c\u{0}"), 50);

    let delete = Change::DeleteOverride {
        tenant: of.clone(),
        limit: name.clone(),
        key: key.clone(),
    };
    fixture.change(delete.clone()).expect("accepted");
    assert!(
        fixture
            .catalogue
            .effective_override(&of, &name, &key, fixture.now)
            .is_none()
    );
    assert!(matches!(fixture.change(delete), Err(Refused::NotFound(_))));
}

#[test]
fn what_is_not_there_is_not_found() {
    let mut fixture = start();
    let key = Key::new("zzz").expect("a key");
    for change in [
        Change::DeleteLimit {
            limit: limit("nope"),
        },
        Change::DeletePlan { plan: plan("nope") },
        Change::DeleteTenant {
            tenant: tenant("nope"),
        },
        Change::PutTenantLimit {
            tenant: tenant("nope"),
            limit: limit("api"),
            spec: spec_of(&json!({})),
        },
        Change::DeleteTenantLimit {
            tenant: tenant("acme"),
            limit: limit("exports"),
        },
        Change::DeleteOverride {
            tenant: tenant("acme"),
            limit: limit("api"),
            key,
        },
        Change::Reset {
            tenant: tenant("acme"),
            limit: limit("nope"),
            key: None,
        },
        Change::RevokeToken {
            id: "nope".to_owned(),
        },
    ] {
        let result = fixture.change(change.clone());
        assert!(
            matches!(result, Err(Refused::NotFound(_))),
            "{change:?}: {result:?}"
        );
    }
}

#[test]
fn what_is_needed_is_not_deleted() {
    let mut fixture = start();
    let result = fixture.change(Change::DeletePlan { plan: plan("pro") });
    assert!(
        matches!(&result, Err(Refused::InUse(text)) if text.contains("acme")),
        "{result:?}"
    );
    let result = fixture.change(Change::DeletePlan { plan: plan("free") });
    assert!(
        matches!(&result, Err(Refused::InUse(text)) if text.contains("default plan")),
        "{result:?}"
    );
    let result = fixture.change(Change::DeleteLimit {
        limit: limit("api"),
    });
    assert!(
        matches!(&result, Err(Refused::InUse(text)) if text.contains("plans.pro.limits.api")),
        "{result:?}"
    );
    fixture
        .change(Change::DeleteLimit {
            limit: limit("exports"),
        })
        .expect("nobody needs it");
}

#[test]
fn the_version_is_the_index_of_the_last_change() {
    let mut fixture = start();
    assert_eq!(fixture.catalogue.version(), 1);
    let change = || Change::PutLimit {
        limit: limit("x"),
        spec: spec_of(&json!({ "quota": 1, "period": "day" })),
    };
    let applied = fixture
        .apply_at(operator(), Some(1), change())
        .expect("the version that was seen");
    assert_eq!(applied.version, 2);
    assert_eq!(fixture.catalogue.view().version(), 2);
    let result = fixture.apply_at(operator(), Some(1), change());
    assert_eq!(result, Err(Refused::VersionMismatch { current: 2 }));
    // The refused entry took an index of the log all the same.
    let applied = fixture
        .change(change())
        .expect("without a version nothing is compared");
    assert_eq!(applied.version, 4);
}

#[test]
fn entries_have_a_line_for_the_audit_trail() {
    let key = Key::new("a\n\"b\"").expect("a key");
    let change = Change::Reset {
        tenant: tenant("acme"),
        limit: limit("api"),
        key: Some(key),
    };
    assert_eq!(
        change.summary(),
        r#"reset "a\n\"b\"" in limit api of tenant acme"#
    );
    let tree = start().catalogue.tree().clone();
    assert_eq!(
        Change::Patch { tree }.summary(),
        "change the catalogue (2 limits, 2 plans, 1 tenants)"
    );
}

#[test]
fn an_item_that_is_deleted_and_one_that_never_was_are_alike_in_a_patch() {
    let mut fixture = start();
    let before = document(&fixture);
    fixture.patch(&json!({})).expect("accepted");
    assert_eq!(document(&fixture), before);
}

#[test]
fn a_fallback_quota_that_is_left_open_is_shared_among_the_regions() {
    let mut fixture = Fixture::with(&json!({
        "limits": {
            "open": { "algorithm": "fixed_window", "quota": 10, "window": "1s", "on_unavailable": "local" },
            "named": { "algorithm": "fixed_window", "quota": 10, "window": "1s", "on_unavailable": "local", "fallback_quota": 7 },
        },
        "tenants": { "acme": {} },
    }));
    let quotas = |fixture: &Fixture| {
        ["open", "named"].map(|name| fixture.limit("acme", name).limit.fallback_quota)
    };
    assert_eq!(quotas(&fixture), [10, 7]);
    let before = fixture.catalogue.clone();
    fixture.catalogue.set_regions(3);
    assert_eq!(quotas(&fixture), [4, 7], "rounded up");
    assert_eq!(fixture.catalogue, before, "the document is the same");
    fixture.catalogue.set_regions(1);
    assert_eq!(quotas(&fixture), [10, 7]);
}
