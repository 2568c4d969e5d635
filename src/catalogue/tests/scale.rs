//! A hundred thousand tenants: writes stay cheap, and what is alike is shared.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::Fixture;
use super::limit;
use super::operator;
use super::spec_of;
use super::tenant;
use crate::catalogue::change::Change;
use crate::catalogue::change::Entry;
use crate::catalogue::epoch::REMEMBERED_MAX;
use crate::catalogue::tree::Tenant;
use crate::catalogue::tree::Tree;

const TENANTS: usize = 100_000;

fn crowd(default_plan: Option<&str>) -> Fixture {
    let tenants: Map<String, Value> = (0..TENANTS)
        .map(|i| (format!("tenant-{i}"), json!({ "plan": "pro" })))
        .collect();
    Fixture::with(&json!({
        "default_plan": default_plan,
        "limits": {
            "api": { "algorithm": "fixed_window", "quota": 10, "window": "1m", "actions": ["api"] },
            "exports": { "quota": 5, "period": "day" },
        },
        "plans": { "free": {}, "pro": { "limits": { "api": { "quota": 100 } } } },
        "tenants": tenants,
    }))
}

/// Without the copies that the fixture makes to compare.
fn apply(fixture: &mut Fixture, change: Change) {
    fixture.index += 1;
    let entry = Entry {
        author: operator(),
        expected_version: None,
        change,
    };
    fixture
        .catalogue
        .apply(fixture.index, fixture.now, &entry)
        .expect("accepted");
}

#[test]
fn tenants_for_whom_nothing_differs_share_one_view() {
    let mut fixture = crowd(None);
    let view = Arc::clone(fixture.catalogue.view());
    let shared = view.tenant("tenant-1").expect("a tenant");
    assert!(Arc::ptr_eq(
        shared,
        view.tenant("tenant-99999").expect("a tenant")
    ));

    let spec = spec_of(&json!({ "quota": 7 }));
    apply(
        &mut fixture,
        Change::PutTenantLimit {
            tenant: tenant("tenant-5"),
            limit: limit("api"),
            spec,
        },
    );
    assert_eq!(fixture.quota("tenant-5", "api"), 7);
    let after = fixture.catalogue.view();
    assert!(
        Arc::ptr_eq(shared, after.tenant("tenant-1").expect("a tenant")),
        "the rest is untouched"
    );
    assert_eq!(
        view.tenant("tenant-5")
            .expect("a tenant")
            .limit("api")
            .expect("a limit")
            .limit
            .rule
            .quota(),
        100
    );

    apply(
        &mut fixture,
        Change::PutLimit {
            limit: limit("api"),
            spec: spec_of(&json!({ "algorithm": "fixed_window", "quota": 10, "window": "2m" })),
        },
    );
    let after = fixture.catalogue.view();
    let shared = after.tenant("tenant-1").expect("a tenant");
    assert!(Arc::ptr_eq(
        shared,
        after.tenant("tenant-99999").expect("a tenant")
    ));
    assert_eq!(
        (
            fixture.epoch("tenant-1", "api"),
            fixture.epoch("tenant-5", "api")
        ),
        (3, 3)
    );
}

#[test]
fn a_tenants_without_differences_cost_the_snapshot_nothing_but_their_names() {
    let fixture = crowd(Some("free"));
    let json = serde_json::to_string(&fixture.catalogue).expect("json");
    assert!(json.len() < TENANTS * 40, "{} bytes", json.len());
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}

#[test]
fn deleting_more_tenants_than_are_remembered_starts_all_unknown_ones_from_zero() {
    let mut fixture = crowd(Some("free"));
    // One more than fits, so that not all can be remembered.
    apply(
        &mut fixture,
        Change::PutTenant {
            tenant: tenant("one-more"),
            definition: Tenant::default(),
        },
    );
    apply(
        &mut fixture,
        Change::Reset {
            tenant: tenant("unknown"),
            limit: limit("api"),
            key: None,
        },
    );
    let mut tree: Tree = fixture.catalogue.tree().clone();
    tree.tenants.clear();
    const { assert!(TENANTS + 2 > REMEMBERED_MAX) };
    apply(&mut fixture, Change::Replace { tree });
    for of in ["tenant-1", "unknown", "somebody"] {
        assert_eq!(fixture.epoch(of, "api"), 4, "{of}");
    }
    assert!(fixture.catalogue.epochs.departed.is_empty());
    assert!(fixture.catalogue.memories.is_empty());
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}

#[test]
fn without_a_default_plan_whoever_comes_back_starts_from_zero() {
    let mut fixture = crowd(None);
    apply(
        &mut fixture,
        Change::PutTenant {
            tenant: tenant("one-more"),
            definition: Tenant::default(),
        },
    );
    let full = fixture.catalogue.tree().clone();
    apply(
        &mut fixture,
        Change::Replace {
            tree: Tree {
                tenants: BTreeMap::new(),
                ..full.clone()
            },
        },
    );
    assert!(fixture.catalogue.epochs.departed.len() <= REMEMBERED_MAX);
    apply(&mut fixture, Change::Replace { tree: full });
    assert_eq!(fixture.epoch("tenant-1", "api"), 4);
    assert_eq!(fixture.epoch("one-more", "api"), 4);
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}
