//! Base < plan < tenant < own choice < key, and what a view answers.

use serde_json::json;

use super::Fixture;
use super::fault;
use super::limit;
use super::tenant;
use crate::catalogue::document;
use crate::catalogue::path::FieldPath;
use crate::domain::limit::Algorithm;
use crate::domain::limit::Rule;
use crate::domain::name::PlanName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// The example of the documentation, with every mode as it is written there.
fn example() -> serde_json::Value {
    json!({
        "default_plan": "free",
        "limits": {
            "account": { "algorithm": "sliding_window", "quota": 100, "window": "1s", "actions": ["api"] },
            "endpoint": {
                "algorithm": "sliding_window", "quota": 25, "window": "1s", "key": "endpoint",
                "actions": ["api"],
            },
            "exports": {
                "algorithm": "calendar_window", "quota": 10, "period": "day", "mode": "strict",
                "actions": ["export"],
            },
            "tokens": {
                "algorithm": "token_bucket", "capacity": 40_000, "refill": 40_000, "per": "1m",
                "mode": "approximate", "key": "model",
            },
            "login": {
                "algorithm": "sliding_window", "quota": 5, "window": "1m", "mode": "approximate",
                "key": "ip", "on_unavailable": "closed", "actions": ["login"],
            },
            "sockets": { "algorithm": "concurrency", "quota": 5, "ttl": "60s", "key": "user" },
        },
        "plans": {
            "free": {},
            "pro": { "limits": {
                "exports": { "quota": 500 },
                "tokens": { "capacity": 400_000, "refill": 400_000 },
            } },
            "enterprise": { "limits": { "exports": { "unlimited": true } } },
        },
        "tenants": { "acme": {
            "plan": "pro", "time_zone": "Asia/Kolkata", "anchor": "2026-01-31T00:00:00",
            "limits": { "tokens": { "keys": {
                "gpt-5": { "capacity": 800_000, "expires_at": "2027-01-01T00:00:00Z" },
            } } },
        } },
    })
}

#[test]
fn the_documented_example_holds() {
    let mut fixture = Fixture::with(&example());
    assert_eq!(fixture.quota("acme", "exports"), 500);
    assert_eq!(
        fixture.quota("somebody", "exports"),
        10,
        "unknown: the default plan"
    );
    assert_eq!(fixture.quota("acme", "account"), 100);
    assert_eq!(fixture.key_quota("acme", "tokens", "gpt-4"), 400_000);
    assert_eq!(fixture.key_quota("acme", "tokens", "gpt-5"), 800_000);
    assert_eq!(fixture.key_quota("somebody", "tokens", "gpt-5"), 40_000);
    let Rule::TokenBucket { refill, .. } = fixture
        .limit("acme", "tokens")
        .at("gpt-5", fixture.now)
        .0
        .rule
    else {
        panic!("a bucket");
    };
    assert_eq!(refill, 400_000, "a key names only what it changes");

    // The override ends by itself, at the named instant.
    let end: jiff::Timestamp = "2027-01-01T00:00:00Z".parse().expect("an instant");
    let end = i64::try_from(end.as_nanosecond()).expect("in range");
    fixture.now = Timestamp::from_nanos(end - 1);
    assert_eq!(fixture.key_quota("acme", "tokens", "gpt-5"), 800_000);
    fixture.now = Timestamp::from_nanos(end);
    assert_eq!(fixture.key_quota("acme", "tokens", "gpt-5"), 400_000);

    let view = fixture.catalogue.view();
    let names = |of: &str, action: &str| -> Vec<String> {
        let limits = view.tenant(of).expect("a tenant").action(action);
        limits
            .iter()
            .map(|view| view.limit.name.to_string())
            .collect()
    };
    assert_eq!(names("acme", "api"), ["account", "endpoint"]);
    assert_eq!(names("somebody", "login"), ["login"]);
    assert!(names("acme", "unheard-of").is_empty());
}

#[test]
fn unlimited_in_a_plan_keeps_the_rest_of_the_limit() {
    let mut fixture = Fixture::with(&example());
    fixture
        .patch(&json!({ "tenants": { "big": { "plan": "enterprise" } } }))
        .expect("accepted");
    let exports = &fixture.limit("big", "exports").limit;
    assert!(exports.unlimited);
    assert_eq!(exports.rule.algorithm(), Algorithm::CalendarWindow);
    // An amount above takes the freedom back.
    let amount = json!({ "tenants": { "big": { "limits": { "exports": { "quota": 7 } } } } });
    fixture.patch(&amount).expect("accepted");
    let exports = &fixture.limit("big", "exports").limit;
    assert_eq!((exports.unlimited, exports.rule.quota()), (false, 7));
}

#[test]
fn the_tenants_calendar_is_the_default_of_its_calendar_windows() {
    let fixture = Fixture::with(&example());
    let Rule::CalendarWindow { calendar, .. } = &fixture.limit("acme", "exports").limit.rule else {
        panic!("a calendar window");
    };
    assert_eq!(calendar.zone_name(), "Asia/Kolkata");
    assert_eq!(calendar.anchor().to_string(), "2026-01-31T00:00:00");
    let Rule::CalendarWindow { calendar, .. } = &fixture.limit("somebody", "exports").limit.rule
    else {
        panic!("a calendar window");
    };
    assert_eq!(calendar.zone_name(), "UTC");
    // A limit that names its own zone keeps it.
    let mut example = example();
    example["limits"]["exports"]["time_zone"] = json!("Europe/Berlin");
    let fixture = Fixture::with(&example);
    let Rule::CalendarWindow { calendar, .. } = &fixture.limit("acme", "exports").limit.rule else {
        panic!("a calendar window");
    };
    assert_eq!(calendar.zone_name(), "Europe/Berlin");
    assert_eq!(calendar.anchor().to_string(), "2026-01-31T00:00:00");
}

#[test]
fn weeks_start_on_monday_unless_an_anchor_says_otherwise() {
    let fixture = Fixture::with(&json!({
        "limits": { "api": { "quota": 1, "period": "week" } },
        "tenants": { "acme": {}, "thu": { "anchor": "1970-01-01T00:00:00" } },
    }));
    let anchor = |of: &str| match &fixture.limit(of, "api").limit.rule {
        Rule::CalendarWindow { calendar, .. } => calendar.anchor().to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(anchor("acme"), "1970-01-05T00:00:00");
    assert_eq!(anchor("thu"), "1970-01-01T00:00:00");
}

#[test]
fn another_algorithm_drops_the_fields_that_it_does_not_have() {
    let fixture = Fixture::with(&json!({
        "limits": { "api": {
            "algorithm": "sliding_window", "quota": 10, "window": "1s", "actions": ["api"],
            "on_unavailable": "local", "fallback_quota": 3,
        } },
        "plans": { "pro": { "limits": { "api": {
            "algorithm": "token_bucket", "capacity": 20, "refill": 10, "per": "1s",
            "on_unavailable": "closed",
        } } } },
        "tenants": { "acme": { "plan": "pro" } },
    }));
    let limit = &fixture.limit("acme", "api").limit;
    let second = Span::from_seconds(1);
    assert_eq!(
        limit.rule,
        Rule::TokenBucket {
            capacity: 20,
            refill: 10,
            per: second
        }
    );
    assert!(limit.actions.contains("api"), "the rest is kept");
}

#[test]
fn a_field_of_another_algorithm_without_naming_it_is_refused_where_it_stands() {
    let mut fixture = Fixture::empty();
    let found = fault(fixture.replace(&json!({
        "limits": { "api": { "algorithm": "sliding_window", "quota": 10, "window": "1s" } },
        "plans": { "pro": { "limits": { "api": { "period": "month" } } } },
    })));
    assert!(found.starts_with("plans.pro.limits.api.period: does not belong to sliding_window"));
}

#[test]
fn limits_may_exist_in_one_plan_or_for_one_tenant_only() {
    let fixture = Fixture::with(&json!({
        "plans": { "pro": { "limits": { "reports": { "quota": 3, "period": "day" } } } },
        "tenants": {
            "acme": { "plan": "pro", "limits": { "extra": { "quota": 1, "period": "hour" } } },
            "b": { "plan": "pro" },
            "c": {},
        },
    }));
    let names = |of: &str| -> Vec<String> {
        let view = fixture.catalogue.view().tenant(of).expect("a tenant");
        view.limits()
            .map(|limit| limit.limit.name.to_string())
            .collect()
    };
    assert_eq!(names("acme"), ["extra", "reports"]);
    assert_eq!(names("b"), ["reports"]);
    assert!(names("c").is_empty());
}

#[test]
fn without_a_default_plan_unknown_tenants_are_unknown() {
    let base =
        json!({ "limits": { "api": { "quota": 1, "period": "day" } }, "tenants": { "acme": {} } });
    let mut fixture = Fixture::with(&base);
    assert!(fixture.catalogue.view().tenant("nobody").is_none());
    fixture.patch(&json!({ "default_plan": "free", "plans": { "free": { "limits": { "api": { "quota": 7 } } } } }))
        .expect("accepted");
    let nobody = fixture
        .catalogue
        .view()
        .tenant("nobody")
        .expect("counted under the default plan");
    assert!(!nobody.known);
    assert_eq!(nobody.plan.as_ref().map(PlanName::as_str), Some("free"));
    assert_eq!(fixture.quota("nobody", "api"), 7);
    assert_eq!(
        fixture.quota("acme", "api"),
        7,
        "a named tenant without a plan has the default plan"
    );
    assert!(
        fixture
            .catalogue
            .view()
            .tenant("acme")
            .expect("a tenant")
            .known
    );
}

#[test]
fn a_limits_number_is_its_names() {
    let mut fixture = Fixture::with(&json!({
        "limits": { "b": { "quota": 1, "period": "day" }, "a": { "quota": 1, "period": "day" } },
        "tenants": { "x": {}, "y": { "limits": { "b": { "quota": 2 } } } },
    }));
    assert_eq!(fixture.limit("x", "b").id, fixture.limit("y", "b").id);
    assert_ne!(fixture.limit("x", "a").id, fixture.limit("x", "b").id);
    let before = fixture.limit("x", "b").id;
    fixture
        .replace(&json!({ "tenants": { "x": {} } }))
        .expect("accepted");
    fixture
        .put_limit("c", &json!({ "quota": 1, "period": "day" }))
        .expect("accepted");
    fixture
        .put_limit("b", &json!({ "quota": 1, "period": "day" }))
        .expect("accepted");
    assert_eq!(fixture.limit("x", "b").id, before);
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
}

#[test]
fn every_field_tells_where_it_comes_from() {
    let mut fixture = Fixture::with(&example());
    fixture
        .patch(&json!({ "tenants": { "acme": { "limits": { "exports": {
            "enforce": false, "own": { "quota": 400 },
        } } } } }))
        .expect("accepted");
    let answer = fixture
        .catalogue
        .effective(&tenant("acme"), &limit("exports"))
        .expect("a limit");
    let from = |field: &str| answer.from.get(field).map(String::as_str);
    assert_eq!(from("algorithm"), Some("limits.exports"));
    assert_eq!(from("quota"), Some("tenants.acme.limits.exports.own"));
    assert_eq!(from("enforce"), Some("tenants.acme.limits.exports"));
    assert_eq!(from("time_zone"), Some("tenants.acme"));
    assert_eq!(from("anchor"), Some("tenants.acme"));
    assert_eq!(from("every"), Some("default"));
    assert_eq!(from("overdraft"), Some("default"));
    assert_eq!(from("window"), None);
    assert_eq!(answer.effective.quota, Some(400));
    assert_eq!((answer.known, answer.epoch), (true, 1));
    let answer = fixture
        .catalogue
        .effective(&tenant("acme"), &limit("tokens"))
        .expect("a limit");
    assert_eq!(
        answer.from.get("capacity").map(String::as_str),
        Some("plans.pro.limits.tokens")
    );
    assert!(
        fixture
            .catalogue
            .effective(&tenant("acme"), &limit("nope"))
            .is_none()
    );
    assert!(
        !fixture
            .catalogue
            .effective(&tenant("nobody"), &limit("exports"))
            .expect("default")
            .known
    );
}

#[test]
fn what_is_effective_can_be_written_as_a_limit() {
    let fixture = Fixture::with(&example());
    for name in [
        "account", "endpoint", "exports", "tokens", "login", "sockets",
    ] {
        let effective = fixture
            .catalogue
            .effective(&tenant("acme"), &limit(name))
            .expect("a limit")
            .effective;
        let mut spec = serde_json::to_value(&effective).expect("json");
        // Fields that only some policies and modes may name.
        for field in ["fallback_quota", "on_partition", "split"] {
            spec.as_object_mut().expect("a table").remove(field);
        }
        let written = document::read_limit(&FieldPath::root(), &spec).expect("a limit");
        let mut again = Fixture::empty();
        again
            .patch(&json!({ "tenants": { "acme": {} } }))
            .expect("accepted");
        again
            .put_limit(name, &serde_json::to_value(written).expect("json"))
            .expect("accepted");
        assert_eq!(
            again.limit("acme", name).limit,
            fixture.limit("acme", name).limit
        );
    }
}
