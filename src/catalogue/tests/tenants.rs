//! What a tenant's token may do to its own limits.

use serde_json::Value;
use serde_json::json;

use super::Fixture;
use super::faults;
use super::limit;
use super::override_of;
use super::spec_of;
use super::tenant;
use super::tenant_author;
use crate::catalogue::change::Applied;
use crate::catalogue::change::Change;
use crate::catalogue::change::Refused;
use crate::catalogue::tree::Tenant;
use crate::catalogue::tree::Tree;
use crate::domain::limit::Rule;
use crate::domain::name::Key;
use crate::domain::time::Span;

fn start() -> Fixture {
    Fixture::with(&json!({
        "limits": {
            "api": { "algorithm": "fixed_window", "quota": 10, "window": "1m", "key": "user" },
            "bucket": { "capacity": 100, "refill": 10, "per": "1s" },
            "free": { "unlimited": true },
        },
        "plans": { "pro": { "limits": { "api": { "quota": 100 } } } },
        "tenants": {
            "acme": { "plan": "pro", "limits": { "api": { "keys": { "blocked": { "quota": 0 }, "big": { "quota": 500 } } } } },
            "other": { "plan": "pro" },
        },
    }))
}

fn put(fixture: &mut Fixture, name: &str, spec: &Value) -> Result<Applied, Refused> {
    let change = Change::PutTenantLimit {
        tenant: tenant("acme"),
        limit: limit(name),
        spec: spec_of(spec),
    };
    fixture.apply(tenant_author("acme"), change)
}

fn put_key(fixture: &mut Fixture, key: &str, spec: &Value) -> Result<Applied, Refused> {
    let change = Change::PutOverride {
        tenant: tenant("acme"),
        limit: limit("api"),
        key: Key::new(key).expect("a key"),
        spec: override_of(spec),
    };
    fixture.apply(tenant_author("acme"), change)
}

#[track_caller]
fn forbidden(result: Result<Applied, Refused>, words: &str) {
    match result {
        Err(Refused::Forbidden(text)) => assert!(text.contains(words), "{text}"),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn a_tenant_lowers_its_limits_up_to_the_ceiling() {
    let mut fixture = start();
    put(&mut fixture, "api", &json!({ "quota": 40 })).expect("below the ceiling");
    assert_eq!(fixture.quota("acme", "api"), 40);
    put(&mut fixture, "api", &json!({ "quota": 100 })).expect("at the ceiling");
    forbidden(
        put(&mut fixture, "api", &json!({ "quota": 101 })),
        "101 is above 100",
    );
    assert_eq!(fixture.quota("acme", "api"), 100);
    put(&mut fixture, "bucket", &json!({ "refill": 1 })).expect("below the ceiling");
    forbidden(
        put(
            &mut fixture,
            "bucket",
            &json!({ "refill": 1, "capacity": 101 }),
        ),
        "capacity",
    );
    assert_eq!(fixture.quota("other", "api"), 100);
    assert_eq!(fixture.epoch("acme", "api"), 1, "use is kept");
}

#[test]
fn a_choice_is_cut_when_the_ceiling_comes_down() {
    let mut fixture = start();
    put(&mut fixture, "api", &json!({ "quota": 80 })).expect("below the ceiling");
    fixture
        .patch(&json!({ "plans": { "pro": { "limits": { "api": { "quota": 50 } } } } }))
        .expect("accepted");
    assert_eq!(fixture.quota("acme", "api"), 50);
    fixture
        .patch(&json!({ "plans": { "pro": { "limits": { "api": { "quota": 90 } } } } }))
        .expect("accepted");
    assert_eq!(fixture.quota("acme", "api"), 80);
    let delete = Change::DeleteTenantLimit {
        tenant: tenant("acme"),
        limit: limit("api"),
    };
    fixture
        .apply(tenant_author("acme"), delete)
        .expect("accepted");
    assert_eq!(fixture.quota("acme", "api"), 90);
    assert_eq!(
        fixture.key_quota("acme", "api", "blocked"),
        0,
        "the administrator's word stays"
    );
}

#[test]
fn a_choice_that_does_not_fit_any_more_stands_in_nobodys_way() {
    let mut fixture = start();
    put(&mut fixture, "api", &json!({ "quota": 5 })).expect("below the ceiling");
    put(&mut fixture, "bucket", &json!({ "refill": 1 })).expect("below the ceiling");
    let calendar = json!({ "capacity": 7, "refill": 1, "per": "1m", "key": "user" });
    fixture
        .patch(&json!({
            "limits": { "api": calendar },
            "plans": { "pro": { "limits": { "api": { "capacity": 9 } } } },
            "tenants": { "acme": { "limits": { "api": { "keys": {
                "blocked": { "capacity": 1 }, "big": { "capacity": 1 },
            } } } } },
        }))
        .expect("the tenant's own quota is passed over");
    assert_eq!(fixture.quota("acme", "api"), 9);
    // A rate of 1 would take far too long to fill what the bucket holds now; it holds less then.
    fixture
        .put_limit(
            "bucket",
            &json!({ "capacity": 1_000_000_000, "refill": 1_000, "per": "1s" }),
        )
        .expect("accepted");
    assert!(fixture.quota("acme", "bucket") < 1_000_000_000);
}

#[test]
fn a_limit_goes_although_a_tenant_has_chosen_an_amount_for_it() {
    let mut fixture = start();
    put(&mut fixture, "bucket", &json!({ "refill": 1 })).expect("below the ceiling");
    let limit = limit("bucket");
    fixture
        .change(Change::DeleteLimit { limit })
        .expect("a choice holds nothing");
    let view = fixture.catalogue.view().tenant("acme").expect("a tenant");
    assert!(view.limit("bucket").is_none());
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
    let bucket = json!({ "capacity": 100, "refill": 10, "per": "1s" });
    fixture.put_limit("bucket", &bucket).expect("accepted");
    let limit = &fixture.limit("acme", "bucket").limit;
    let Rule::TokenBucket { refill, .. } = limit.rule else {
        panic!("{limit:?}");
    };
    assert_eq!(refill, 1, "the choice counts again");
}

#[test]
fn only_amounts_can_be_chosen() {
    let mut fixture = start();
    for (field, value) in [
        ("enforce", json!(false)),
        ("unlimited", json!(true)),
        ("window", json!("1h")),
        ("mode", json!("regional")),
        ("always_allow", json!(["me"])),
        ("on_unavailable", json!("open")),
        ("fallback_quota", json!(1)),
    ] {
        let found = faults(put(
            &mut fixture,
            "api",
            &json!({ "quota": 1, field: value }),
        ));
        assert_eq!(found[0].path, format!("tenants.acme.limits.api.{field}"));
    }
    let found = faults(put(&mut fixture, "api", &json!({ "capacity": 1 })));
    assert!(
        found[0].message.contains("does not belong to fixed_window"),
        "{found:?}"
    );
    let found = faults(put_key(&mut fixture, "u", &json!({ "unlimited": true })));
    assert!(found[0].path.ends_with("keys.u.unlimited"), "{found:?}");
    assert!(matches!(
        put(&mut fixture, "nope", &json!({ "quota": 1 })),
        Err(Refused::NotFound(_))
    ));
}

#[test]
fn an_unlimited_limit_has_no_ceiling() {
    let mut fixture = start();
    put(&mut fixture, "free", &json!({ "quota": 1_000_000 })).expect("any amount is below");
    let free = &fixture.limit("acme", "free").limit;
    assert_eq!((free.unlimited, free.rule.quota()), (false, 1_000_000));
}

#[test]
fn overrides_stay_below_what_the_administrator_gave_the_key() {
    let mut fixture = start();
    put_key(&mut fixture, "u", &json!({ "quota": 7 })).expect("below the ceiling");
    assert_eq!(fixture.key_quota("acme", "api", "u"), 7);
    forbidden(
        put_key(&mut fixture, "u", &json!({ "quota": 101 })),
        "above 100",
    );
    forbidden(
        put_key(&mut fixture, "blocked", &json!({ "quota": 1 })),
        "above 0",
    );
    put_key(&mut fixture, "big", &json!({ "quota": 300 })).expect("the key has 500");
    assert_eq!(fixture.key_quota("acme", "api", "big"), 300);

    // A key may have more than the tenant chose for the rest.
    put(&mut fixture, "api", &json!({ "quota": 5 })).expect("below the ceiling");
    assert_eq!(fixture.key_quota("acme", "api", "u"), 7);
    assert_eq!(fixture.key_quota("acme", "api", "x"), 5);

    // It takes back its own override, not the administrator's.
    let delete = |key: &str| Change::DeleteOverride {
        tenant: tenant("acme"),
        limit: limit("api"),
        key: Key::new(key).expect("a key"),
    };
    fixture
        .apply(tenant_author("acme"), delete("big"))
        .expect("accepted");
    assert_eq!(fixture.key_quota("acme", "api", "big"), 500);
    let result = fixture.apply(tenant_author("acme"), delete("blocked"));
    assert!(matches!(result, Err(Refused::NotFound(_))), "{result:?}");
}

#[test]
fn both_kinds_of_override_end_by_themselves() {
    let mut fixture = start();
    fixture
        .patch(
            &json!({ "tenants": { "acme": { "limits": { "api": { "keys": {
            "big": { "quota": 500, "expires_at": "2026-12-01T00:00:00Z" },
        } } } } } }),
        )
        .expect("accepted");
    put_key(
        &mut fixture,
        "big",
        &json!({ "quota": 300, "expires_at": "2026-12-10T00:00:00Z" }),
    )
    .expect("the key has 500");
    assert_eq!(fixture.key_quota("acme", "api", "big"), 300);
    fixture.now = fixture.now.plus(Span::from_seconds(3 * 86_400));
    assert_eq!(
        fixture.key_quota("acme", "api", "big"),
        100,
        "cut: the administrator's has ended"
    );
    fixture.now = fixture.now.plus(Span::from_seconds(30 * 86_400));
    assert_eq!(fixture.key_quota("acme", "api", "big"), 100);
}

#[test]
fn nothing_of_others_and_nothing_else_can_be_touched() {
    let mut fixture = start();
    let key = Key::new("u").expect("a key");
    for change in [
        Change::Replace {
            tree: Tree::default(),
        },
        Change::Patch {
            tree: Tree::default(),
        },
        Change::PutLimit {
            limit: limit("api"),
            spec: spec_of(&json!({ "quota": 1, "period": "day" })),
        },
        Change::DeleteLimit {
            limit: limit("api"),
        },
        Change::PutTenant {
            tenant: tenant("acme"),
            definition: Tenant::default(),
        },
        Change::DeleteTenant {
            tenant: tenant("acme"),
        },
        Change::PutTenantLimit {
            tenant: tenant("other"),
            limit: limit("api"),
            spec: spec_of(&json!({ "quota": 1 })),
        },
        Change::PutTenantLimit {
            tenant: tenant("nobody"),
            limit: limit("api"),
            spec: spec_of(&json!({ "quota": 1 })),
        },
        Change::DeleteTenantLimit {
            tenant: tenant("other"),
            limit: limit("api"),
        },
        Change::PutOverride {
            tenant: tenant("other"),
            limit: limit("api"),
            key: key.clone(),
            spec: override_of(&json!({ "quota": 1 })),
        },
        Change::DeleteOverride {
            tenant: tenant("other"),
            limit: limit("api"),
            key,
        },
        Change::Reset {
            tenant: tenant("other"),
            limit: limit("api"),
            key: None,
        },
        Change::RevokeToken { id: "x".to_owned() },
    ] {
        forbidden(
            fixture.apply(tenant_author("acme"), change),
            "its own tenant's limits only",
        );
    }
    let reset = Change::Reset {
        tenant: tenant("acme"),
        limit: limit("api"),
        key: None,
    };
    forbidden(fixture.apply(tenant_author("acme"), reset), "limits only");
}

#[test]
fn an_administrators_put_keeps_what_the_tenant_chose() {
    let mut fixture = start();
    put(&mut fixture, "api", &json!({ "quota": 5 })).expect("below the ceiling");
    let change = Change::PutTenantLimit {
        tenant: tenant("acme"),
        limit: limit("api"),
        spec: spec_of(&json!({ "quota": 60 })),
    };
    fixture.change(change).expect("accepted");
    assert_eq!(fixture.quota("acme", "api"), 5);
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}
