//! Every rule that a limit must keep, and the field that is named when it does not.

use serde_json::Value;
use serde_json::json;

use super::Fixture;
use super::fault;
use super::faults;
use super::override_of;
use super::tenant;
use crate::catalogue::change::Change;
use crate::catalogue::change::FAULTS_MAX;
use crate::domain::limit::AMOUNT_MAX;
use crate::domain::limit::Algorithm;
use crate::domain::limit::OnUnavailable;
use crate::domain::limit::Rule;
use crate::domain::time::Span;

#[track_caller]
fn accepts(spec: &Value) -> Fixture {
    let mut fixture = Fixture::with(&json!({ "tenants": { "acme": {} } }));
    fixture
        .put_limit("api", spec)
        .unwrap_or_else(|refused| panic!("{spec}: {refused}"));
    fixture
}

#[track_caller]
fn refuses(spec: &Value, path: &str, words: &str) {
    let mut fixture = Fixture::empty();
    let fault = fault(fixture.put_limit("api", spec));
    assert!(fault.starts_with(&format!("{path}: ")), "{spec}: {fault}");
    assert!(fault.contains(words), "{spec}: {fault}");
}

#[test]
fn every_algorithm_with_its_fields_is_accepted() {
    for (spec, algorithm) in [
        (
            json!({ "algorithm": "fixed_window", "quota": 5, "window": "60s" }),
            Algorithm::FixedWindow,
        ),
        (
            json!({ "algorithm": "sliding_window", "quota": 5, "window": "60s" }),
            Algorithm::SlidingWindow,
        ),
        (
            json!({ "algorithm": "sliding_log", "quota": 5, "window": "60s" }),
            Algorithm::SlidingLog,
        ),
        (
            json!({ "algorithm": "calendar_window", "quota": 5, "period": "month" }),
            Algorithm::CalendarWindow,
        ),
        (
            json!({ "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "1s" }),
            Algorithm::TokenBucket,
        ),
        (
            json!({ "algorithm": "leaky_bucket", "capacity": 5, "drain": 1, "per": "1s" }),
            Algorithm::LeakyBucket,
        ),
        (
            json!({ "algorithm": "concurrency", "quota": 5 }),
            Algorithm::Concurrency,
        ),
    ] {
        let fixture = accepts(&spec);
        let limit = &fixture.limit("acme", "api").limit;
        assert_eq!(limit.rule.algorithm(), algorithm);
        assert_eq!(limit.rule.quota(), 5);
    }
}

#[test]
fn an_algorithm_that_the_fields_leave_no_choice_of_may_be_left_out() {
    for (spec, algorithm) in [
        (
            json!({ "quota": 5, "period": "day" }),
            Algorithm::CalendarWindow,
        ),
        (json!({ "quota": 5, "ttl": "60s" }), Algorithm::Concurrency),
        (
            json!({ "capacity": 5, "refill": 1, "per": "1s" }),
            Algorithm::TokenBucket,
        ),
        (
            json!({ "capacity": 5, "drain": 1, "per": "1s" }),
            Algorithm::LeakyBucket,
        ),
    ] {
        let fixture = accepts(&spec);
        assert_eq!(
            fixture.limit("acme", "api").limit.rule.algorithm(),
            algorithm
        );
    }
}

#[test]
fn an_algorithm_that_cannot_be_told_is_asked_for() {
    refuses(
        &json!({ "quota": 5, "window": "60s" }),
        "limits.api.algorithm",
        "fixed_window, sliding_window or sliding_log",
    );
    refuses(
        &json!({ "capacity": 5, "per": "1s" }),
        "limits.api.algorithm",
        "token_bucket",
    );
    refuses(
        &json!({ "quota": 5 }),
        "limits.api.algorithm",
        "name fixed_window",
    );
    refuses(&json!({}), "limits.api.algorithm", "is missing");
    refuses(
        &json!({ "quota": 5, "period": "day", "ttl": "5s" }),
        "limits.api.algorithm",
        "period and ttl exclude each other",
    );
}

#[test]
fn unlimited_alone_is_a_complete_limit() {
    let fixture = accepts(&json!({ "unlimited": true }));
    let limit = &fixture.limit("acme", "api").limit;
    assert!(limit.unlimited);
    let day = Span::from_seconds(86_400);
    assert_eq!(
        limit.rule,
        Rule::FixedWindow {
            quota: AMOUNT_MAX,
            window: day
        }
    );
    let fixture =
        accepts(&json!({ "unlimited": true, "algorithm": "sliding_window", "window": "1m" }));
    assert_eq!(
        fixture.limit("acme", "api").limit.rule.algorithm(),
        Algorithm::SlidingWindow
    );
    refuses(
        &json!({ "unlimited": false }),
        "limits.api.algorithm",
        "is missing",
    );
}

#[test]
fn a_missing_field_is_named() {
    for (spec, field) in [
        (
            json!({ "algorithm": "fixed_window", "window": "60s" }),
            "quota",
        ),
        (json!({ "algorithm": "fixed_window", "quota": 1 }), "window"),
        (
            json!({ "algorithm": "sliding_window", "quota": 1 }),
            "window",
        ),
        (json!({ "algorithm": "sliding_log", "quota": 1 }), "window"),
        (
            json!({ "algorithm": "calendar_window", "quota": 1 }),
            "period",
        ),
        (
            json!({ "algorithm": "calendar_window", "period": "day" }),
            "quota",
        ),
        (
            json!({ "algorithm": "token_bucket", "refill": 1, "per": "1s" }),
            "capacity",
        ),
        (
            json!({ "algorithm": "token_bucket", "capacity": 1, "per": "1s" }),
            "refill",
        ),
        (
            json!({ "algorithm": "token_bucket", "capacity": 1, "refill": 1 }),
            "per",
        ),
        (
            json!({ "algorithm": "leaky_bucket", "capacity": 1, "per": "1s" }),
            "drain",
        ),
        (json!({ "algorithm": "concurrency" }), "quota"),
    ] {
        refuses(&spec, &format!("limits.api.{field}"), "is missing");
    }
}

#[test]
fn all_that_is_missing_is_told_at_once() {
    let mut fixture = Fixture::empty();
    let faults = faults(fixture.put_limit("api", &json!({ "algorithm": "token_bucket" })));
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(
        paths,
        ["limits.api.capacity", "limits.api.refill", "limits.api.per"]
    );
}

#[test]
fn a_field_of_another_algorithm_is_named() {
    for (spec, field) in [
        (
            json!({ "algorithm": "fixed_window", "quota": 1, "window": "1s", "period": "day" }),
            "period",
        ),
        (
            json!({ "algorithm": "fixed_window", "quota": 1, "window": "1s", "refill": 1 }),
            "refill",
        ),
        (
            json!({ "algorithm": "sliding_log", "quota": 1, "window": "1s", "ttl": "1s" }),
            "ttl",
        ),
        (
            json!({ "algorithm": "calendar_window", "quota": 1, "period": "day", "window": "1s" }),
            "window",
        ),
        (
            json!({ "algorithm": "concurrency", "quota": 1, "anchor": "2026-01-01T00:00:00" }),
            "anchor",
        ),
        (
            json!({ "algorithm": "concurrency", "quota": 1, "every": 2 }),
            "every",
        ),
        (
            json!({ "algorithm": "token_bucket", "capacity": 1, "refill": 1, "per": "1s", "quota": 1 }),
            "quota",
        ),
        (
            json!({ "algorithm": "token_bucket", "capacity": 1, "refill": 1, "per": "1s", "drain": 1 }),
            "drain",
        ),
        (
            json!({ "algorithm": "leaky_bucket", "capacity": 1, "drain": 1, "per": "1s", "time_zone": "UTC" }),
            "time_zone",
        ),
    ] {
        refuses(&spec, &format!("limits.api.{field}"), "does not belong to");
    }
}

#[test]
fn amounts_have_bounds() {
    let window =
        |quota: u64| json!({ "algorithm": "fixed_window", "quota": quota, "window": "1s" });
    assert_eq!(
        accepts(&window(AMOUNT_MAX)).quota("acme", "api"),
        AMOUNT_MAX
    );
    assert_eq!(accepts(&window(0)).quota("acme", "api"), 0);
    refuses(
        &window(AMOUNT_MAX + 1),
        "limits.api.quota",
        "at most 9007199254740991",
    );
    refuses(
        &window(9_007_199_254_740_993),
        "limits.api.quota",
        "at most 9007199254740991",
    );
    let bucket = |capacity: u64, refill: u64| json!({ "algorithm": "token_bucket", "capacity": capacity, "refill": refill, "per": "1s" });
    refuses(&bucket(0, 1), "limits.api.capacity", "at least 1");
    refuses(&bucket(1, 0), "limits.api.refill", "at least 1");
    refuses(&bucket(1, AMOUNT_MAX + 1), "limits.api.refill", "at most");
    let leaky = json!({ "algorithm": "leaky_bucket", "capacity": 1, "drain": 0, "per": "1s" });
    refuses(&leaky, "limits.api.drain", "at least 1");
}

#[test]
fn lengths_have_bounds() {
    let window =
        |window: &str| json!({ "algorithm": "fixed_window", "quota": 1, "window": window });
    accepts(&window("1ms"));
    accepts(&window("36525d"));
    refuses(&window("0s"), "limits.api.window", "longer than zero");
    refuses(&window("36526d"), "limits.api.window", "at most 36525d");
    let per = json!({ "algorithm": "token_bucket", "capacity": 1, "refill": 1, "per": "0ms" });
    refuses(&per, "limits.api.per", "longer than zero");
    let ttl = |ttl: &str| json!({ "algorithm": "concurrency", "quota": 1, "ttl": ttl });
    accepts(&ttl("24h"));
    refuses(&ttl("0s"), "limits.api.ttl", "longer than zero");
    refuses(&ttl("25h"), "limits.api.ttl", "at most 1d");
}

#[test]
fn a_bucket_that_takes_more_than_ten_years_to_fill_is_refused() {
    let days = |days: u64| json!({ "capacity": days, "refill": 1, "per": "1d" });
    accepts(&days(3_652));
    refuses(&days(3_653), "limits.api.refill", "ten years");
    let leaky = json!({ "capacity": AMOUNT_MAX, "drain": 1, "per": "1s" });
    refuses(&leaky, "limits.api.drain", "ten years");
}

#[test]
fn calendars_are_checked() {
    let day = |field: &str, value: Value| {
        let mut spec = json!({ "quota": 1, "period": "day" });
        spec[field] = value;
        spec
    };
    accepts(&day("time_zone", json!("Asia/Kolkata")));
    refuses(
        &day("time_zone", json!("Mars/Olympus")),
        "limits.api.time_zone",
        "Europe/Berlin",
    );
    refuses(&day("every", json!(0)), "limits.api.every", "at least 1");
    accepts(&day("every", json!(36_000)));
    refuses(
        &day("every", json!(40_000)),
        "limits.api.every",
        "a hundred years",
    );
    accepts(&day("anchor", json!("1970-01-01T00:00:00")));
    refuses(
        &day("anchor", json!("0001-01-01T00:00:00")),
        "limits.api.anchor",
        "1700 to 2200",
    );
}

#[test]
fn every_mode_that_an_algorithm_has_is_taken() {
    for mode in ["regional", "approximate", "strict"] {
        accepts(&json!({ "algorithm": "fixed_window", "quota": 1, "window": "1s", "mode": mode }));
    }
    accepts(&json!({ "algorithm": "concurrency", "quota": 1, "mode": "approximate" }));
}

#[test]
fn modes_that_an_algorithm_lacks_are_refused_as_such() {
    for mode in ["approximate", "strict"] {
        let spec = json!({ "capacity": 1, "drain": 1, "per": "1s", "mode": mode });
        refuses(&spec, "limits.api.mode", "leaky_bucket cannot be");
    }
    let log =
        json!({ "algorithm": "sliding_log", "quota": 1, "window": "1s", "mode": "approximate" });
    refuses(&log, "limits.api.mode", "it can be regional or strict");
}

#[test]
fn fields_that_need_another_field_are_refused_without_it() {
    let window = |field: &str, value: Value| {
        let mut spec = json!({ "algorithm": "fixed_window", "quota": 10, "window": "1s" });
        spec[field] = value;
        spec
    };
    refuses(
        &window("fallback_quota", json!(3)),
        "limits.api.fallback_quota",
        "\"local\"",
    );
    refuses(
        &window("on_partition", json!("open")),
        "limits.api.on_partition",
        "\"approximate\"",
    );
    refuses(
        &window("split", json!("equal")),
        "limits.api.split",
        "\"approximate\"",
    );
    refuses(
        &window("always_allow", json!(["vip"])),
        "limits.api.always_allow",
        "no `key`",
    );
    accepts(&window("always_allow", json!([])));
    accepts(&window("overdraft", json!(true)));
}

#[test]
fn overdraft_and_strict_exclude_each_other() {
    let spec = json!({
        "algorithm": "fixed_window", "quota": 1, "window": "1s", "mode": "strict", "overdraft": true,
    });
    let mut fixture = Fixture::empty();
    let faults = faults(fixture.put_limit("api", &spec));
    assert!(
        faults
            .iter()
            .any(|fault| fault.path == "limits.api.overdraft"),
        "{faults:?}"
    );
}

#[test]
fn labels_are_short_printable_texts() {
    let keyed = |key: &str| json!({ "quota": 1, "period": "day", "key": key });
    accepts(&keyed("user"));
    refuses(&keyed(""), "limits.api.key", "1 to 64 bytes");
    refuses(&keyed(&"x".repeat(65)), "limits.api.key", "1 to 64 bytes");
    refuses(&keyed("a\u{0}"), "limits.api.key", "control characters");
    let action = |action: &str| json!({ "quota": 1, "period": "day", "actions": [action] });
    accepts(&action("api"));
    refuses(&action(""), "limits.api.actions", "1 to 64 bytes");
    let many: Vec<String> = (0..65).map(|i| format!("a{i}")).collect();
    refuses(
        &json!({ "quota": 1, "period": "day", "actions": many }),
        "limits.api.actions",
        "at most 64",
    );
}

#[test]
fn defaults_are_those_of_the_contract() {
    let fixture =
        accepts(&json!({ "algorithm": "concurrency", "quota": 7, "on_unavailable": "local" }));
    let limit = &fixture.limit("acme", "api").limit;
    assert_eq!(
        limit.rule,
        Rule::Concurrency {
            quota: 7,
            ttl: Span::from_seconds(60)
        }
    );
    assert_eq!(limit.fallback_quota, 7, "quota / regions");
    assert!(limit.enforce && !limit.unlimited && !limit.overdraft);
    let fixture = accepts(&json!({ "algorithm": "concurrency", "quota": 7 }));
    assert_eq!(
        fixture.limit("acme", "api").limit.on_unavailable,
        OnUnavailable::Open
    );
}

#[test]
fn overrides_must_fit_the_limit() {
    let mut fixture = Fixture::with(&json!({
        "limits": {
            "keyed": { "algorithm": "fixed_window", "quota": 1, "window": "1m", "key": "user" },
            "plain": { "algorithm": "fixed_window", "quota": 1, "window": "1m" },
            "bucket": { "capacity": 10, "refill": 1, "per": "1d", "key": "user" },
        },
        "tenants": { "acme": {} },
    }));
    let mut put = |limit: &str, spec: Value| {
        fixture.change(Change::PutOverride {
            tenant: tenant("acme"),
            limit: super::limit(limit),
            key: "u.1".parse().expect("a key"),
            spec: override_of(&spec),
        })
    };
    assert!(put("keyed", json!({ "quota": 5, "enforce": false })).is_ok());
    let path = r#"tenants.acme.limits.keyed.keys."u.1".capacity"#;
    let found = fault(put("keyed", json!({ "capacity": 5 })));
    assert!(
        found.starts_with(path) && found.contains("its amounts are quota"),
        "{found}"
    );
    assert!(fault(put("plain", json!({ "quota": 5 }))).contains("the limit has no `key`"));
    assert!(fault(put("keyed", json!({ "quota": AMOUNT_MAX + 1 }))).contains("at most"));
    assert!(fault(put("bucket", json!({ "capacity": 0 }))).contains("at least 1"));
    assert!(fault(put("bucket", json!({ "capacity": 10_000 }))).contains("ten years"));
}

#[test]
fn a_change_below_is_refused_when_a_layer_above_does_not_fit_any_more() {
    let mut fixture = Fixture::with(&json!({
        "limits": { "api": { "algorithm": "fixed_window", "quota": 1, "window": "1m", "key": "user" } },
        "plans": { "pro": { "limits": { "api": { "quota": 5 } } } },
        "tenants": { "acme": { "plan": "pro", "limits": { "api": { "keys": { "u": { "quota": 9 } } } } } },
    }));
    let bucket = json!({ "capacity": 1, "refill": 1, "per": "1s", "key": "user" });
    let found = fault(fixture.put_limit("api", &bucket));
    assert!(found.starts_with("plans.pro.limits.api.quota: "), "{found}");
    let unkeyed = json!({ "algorithm": "fixed_window", "quota": 1, "window": "1m" });
    let found = fault(fixture.put_limit("api", &unkeyed));
    assert!(
        found.starts_with("tenants.acme.limits.api.keys.u: "),
        "{found}"
    );
}

#[test]
fn references_must_exist() {
    let mut fixture = Fixture::empty();
    let found = fault(fixture.replace(&json!({ "default_plan": "free" })));
    assert!(
        found.starts_with("default_plan: there is no plan \"free\""),
        "{found}"
    );
    let found = fault(fixture.replace(&json!({ "tenants": { "acme": { "plan": "pro" } } })));
    assert!(
        found.starts_with("tenants.acme.plan: there is no plan \"pro\""),
        "{found}"
    );
    let found =
        fault(fixture.replace(&json!({ "tenants": { "acme": { "time_zone": "Nowhere" } } })));
    assert!(found.starts_with("tenants.acme.time_zone: "), "{found}");
    let found = fault(
        fixture.replace(&json!({ "plans": { "pro": { "limits": { "api": { "quota": 5 } } } } })),
    );
    assert!(
        found
            .starts_with("plans.pro.limits.api.algorithm: is missing; there is no limit api below")
    );
}

#[test]
fn an_override_of_a_limit_that_does_not_exist_is_named() {
    let mut fixture = Fixture::with(&json!({
        "limits": { "orders": { "quota": 1, "period": "day", "key": "account" } },
    }));
    let found = fault(fixture.patch(&json!({
        "tenants": { "acme": { "limits": { "odrers": { "keys": { "1": { "quota": 5 } } } } } },
    })));
    assert_eq!(
        found,
        "tenants.acme.limits.odrers.keys.1: there is no limit odrers whose keys could be overridden"
    );
}

#[test]
fn dropping_a_plan_that_a_tenant_keeps_names_the_tenant() {
    let mut fixture =
        Fixture::with(&json!({ "plans": { "pro": {} }, "tenants": { "acme": { "plan": "pro" } } }));
    let found = fault(fixture.replace(&json!({ "tenants": { "acme": { "plan": "pro" } } })));
    assert!(
        found.starts_with("tenants.acme.plan: there is no plan \"pro\""),
        "{found}"
    );
}

#[test]
fn faults_are_bounded() {
    let limits: serde_json::Map<String, Value> = (0..500)
        .map(|i| (format!("l{i}"), json!({ "quota": 1 })))
        .collect();
    let mut fixture = Fixture::empty();
    assert_eq!(
        faults(fixture.replace(&json!({ "limits": limits }))).len(),
        FAULTS_MAX
    );
}

#[test]
fn a_domain_of_a_tenant_that_there_is_not_is_accepted_with_a_word() {
    let mut fixture = Fixture::empty();
    let domains = json!({ "edge.example": "acme" });
    let applied = fixture.replace(&json!({ "domains": domains }));
    let warnings = applied.expect("accepted").warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("edge.example stands for the tenant acme, which there is not"));
    let plans = json!({ "free": {} });
    for known in [
        json!({ "domains": domains, "tenants": { "acme": {} } }),
        json!({ "domains": domains, "default_plan": "free", "plans": plans }),
    ] {
        let mut fixture = Fixture::empty();
        let applied = fixture.replace(&known).expect("accepted");
        assert!(applied.warnings.is_empty(), "{known}");
    }
}

#[test]
fn a_big_sliding_log_is_accepted_with_a_word_about_memory() {
    let mut fixture = Fixture::empty();
    let log = |quota: u64| json!({ "algorithm": "sliding_log", "quota": quota, "window": "60s" });
    let applied = fixture.put_limit("api", &log(1_000_000)).expect("accepted");
    assert_eq!(applied.warnings.len(), 1);
    assert!(applied.warnings[0].contains("limits.api: a sliding_log keeps every call"));
    assert!(
        fixture
            .put_limit("api", &log(100))
            .expect("accepted")
            .warnings
            .is_empty()
    );
}

#[test]
fn a_window_too_short_to_be_shared_well_is_accepted_with_the_expected_error() {
    let mut fixture = Fixture::empty();
    let window = |window: &str| json!({ "algorithm": "fixed_window", "quota": 1_000, "window": window, "mode": "approximate" });
    let mut warnings = |spec| {
        let applied = fixture.put_limit("api", &spec).expect("accepted");
        applied.warnings
    };
    assert!(warnings(window("1s")).is_empty(), "one region knows all");
    fixture.catalogue.set_regions(3);
    let applied = fixture
        .put_limit("api", &window("900ms"))
        .expect("accepted");
    // (1 − 1/3)·D·(50 ms + 50 ms) with D = 2 · 1000 in 900 ms.
    assert!(
        applied.warnings[0].contains("even traffic at twice the limit up to 148"),
        "{:?}",
        applied.warnings
    );
    let quiet = fixture.put_limit("api", &window("2s")).expect("accepted");
    assert!(quiet.warnings.is_empty(), "{:?}", quiet.warnings);
}
