//! Requests of several descriptors: all or none, a status each, what is told in headers and body.

use std::collections::BTreeMap;

use highwater::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use serde_json::Value;
use serde_json::json;

use crate::client::ask;
use crate::client::decided;
use crate::client::descriptor;
use crate::client::limit_of;
use crate::client::passed;
use crate::client::passes;
use crate::client::request;
use crate::client::server;
use crate::client::server_with;
use crate::client::set;

fn window(quota: u64, window: &str, matches: &[&str]) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": window, "match": matches })
}

/// All limits of a request are one check, whatever their modes: charged all or none.
#[test]
fn all_descriptors_are_charged_or_none() {
    for mode in ["regional", "approximate", "strict"] {
        let mut wide = window(10, "1m", &["wide=1"]);
        wide["mode"] = json!(mode);
        let mut narrow = window(2, "1m", &["narrow=1"]);
        narrow["mode"] = json!(mode);
        let plain = window(5, "1m", &["plain=1"]);
        let server = server_with(&json!({ "wide": wide, "narrow": narrow, "plain": plain }));
        let all = [
            descriptor(&[("wide", "1")]),
            descriptor(&[("nothing", "1")]),
            descriptor(&[("narrow", "1")]),
            descriptor(&[("plain", "1")]),
        ];
        for _ in 0..2 {
            assert_eq!(decided(&server, &all).overall_code(), Code::Ok, "{mode}");
        }
        for _ in 0..3 {
            let told = decided(&server, &all);
            assert_eq!(told.overall_code(), Code::OverLimit, "{mode}");
            let codes: Vec<Code> = told.statuses.iter().map(|status| status.code()).collect();
            assert_eq!(
                codes,
                [Code::Ok, Code::Ok, Code::OverLimit, Code::Ok],
                "{mode}"
            );
            assert_eq!(told.statuses[1].current_limit, None, "{mode}");
        }
        assert_eq!(passed(&server, &[("wide", "1")], 12), 8, "{mode}");
        assert_eq!(passed(&server, &[("plain", "1")], 12), 3, "{mode}");
    }
}

/// Limits whose `match` is the same hold together; the status tells of the tighter one.
#[test]
fn limits_of_one_match_hold_together() {
    let server = server_with(&json!({
        "burst": window(2, "1s", &["api=1"]),
        "minute": window(3, "1m", &["api=1"]),
    }));
    let call = &[("api", "1")];
    assert_eq!(limit_of(&server, call).as_deref(), Some("burst"));
    assert_eq!(passed(&server, call, 4), 2);
    server.advance(1_000);
    let told = decided(&server, &[descriptor(call)]);
    assert_eq!(
        told.statuses[0].current_limit.clone().expect("it").name,
        "minute"
    );
    let told = decided(&server, &[descriptor(call)]);
    assert_eq!(told.overall_code(), Code::OverLimit);
    assert_eq!(
        told.statuses[0].current_limit.clone().expect("it").name,
        "minute"
    );
}

/// A status has all that a gateway makes its own headers from.
#[test]
fn a_status_tells_limit_remainder_and_reset() {
    let server = server_with(&json!({
        "second": window(5, "1s", &["u=second"]),
        "minute": window(5, "1m", &["u=minute"]),
        "hour": window(5, "1h", &["u=hour"]),
        "day": { "algorithm": "calendar_window", "quota": 5, "period": "day", "match": ["u=day"] },
        "week": { "algorithm": "sliding_window", "quota": 5, "window": "7d", "match": ["u=week"] },
        "month": { "algorithm": "calendar_window", "quota": 5, "period": "month", "match": ["u=month"] },
        "year": { "algorithm": "calendar_window", "quota": 5, "period": "year", "match": ["u=year"] },
        "quarter": { "algorithm": "calendar_window", "quota": 5, "period": "quarter", "match": ["u=quarter"] },
        "bucket": { "algorithm": "token_bucket", "capacity": 5, "refill": 5, "per": "1m", "match": ["u=bucket"] },
        "slow": { "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "1m", "match": ["u=slow"] },
        "large": window(9_000_000_000, "1m", &["u=large"]),
    }));
    for (value, unit, reset_ms) in [
        ("second", Unit::Second, 1_000),
        ("minute", Unit::Minute, 60_000),
        ("hour", Unit::Hour, 3_600_000),
        ("day", Unit::Day, 86_400_000),
        ("month", Unit::Month, 31 * 86_400_000),
        ("year", Unit::Year, 365 * 86_400_000),
        ("bucket", Unit::Minute, 12_000),
        ("slow", Unit::Unknown, 60_000),
    ] {
        let told = decided(&server, &[descriptor(&[("u", value)])]);
        let status = &told.statuses[0];
        let limit = status.current_limit.clone().expect("a limit");
        assert_eq!(
            (limit.name.as_str(), limit.requests_per_unit, limit.unit()),
            (value, 5, unit)
        );
        assert_eq!(status.limit_remaining, 4, "{value}");
        let reset = status.duration_until_reset.expect("a reset");
        assert_eq!(
            reset.seconds * 1_000 + i64::from(reset.nanos) / 1_000_000,
            reset_ms,
            "{value}"
        );
    }
    for (value, unit) in [("week", Unit::Week), ("quarter", Unit::Unknown)] {
        let told = decided(&server, &[descriptor(&[("u", value)])]);
        let limit = told.statuses[0].current_limit.clone().expect("a limit");
        assert_eq!(limit.unit(), unit, "{value}");
    }
    let told = decided(&server, &[descriptor(&[("u", "large")])]);
    let limit = told.statuses[0].current_limit.clone().expect("a limit");
    assert_eq!(limit.requests_per_unit, u32::MAX, "the most that fits");
}

/// What the caller of the gateway sees is what the check API says: headers, and on a refusal the problem.
#[test]
fn headers_and_body_are_those_of_the_check_api() {
    let server = server_with(&json!({ "api": window(1, "1m", &["api=1"]) }));
    let call = [descriptor(&[("api", "1")])];
    let seen = |told: &highwater::grpc::proto::envoy::service::ratelimit::v3::RateLimitResponse| {
        told.response_headers_to_add
            .iter()
            .map(|header| (header.key.clone(), header.value.clone()))
            .collect::<BTreeMap<String, String>>()
    };
    let allowed = decided(&server, &call);
    assert!(allowed.raw_body.is_empty());
    let headers = seen(&allowed);
    assert_eq!(headers["ratelimit"], "\"api\";r=0;t=60");
    assert_eq!(headers["ratelimit-policy"], "\"api\";q=1;w=60");
    assert_eq!(headers["x-ratelimit-remaining"], "0");
    assert!(
        !headers.contains_key("content-type"),
        "the body is the service's: {headers:?}"
    );
    let refused = decided(&server, &call);
    let http = server.post("/v1/check", &json!({ "tenant": "edge", "limit": "api" }));
    assert_eq!(http.status, 429);
    let headers = seen(&refused);
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["retry-after"], "60");
    assert_eq!(headers["ratelimit"], "\"api\";r=0;t=60");
    assert_eq!(headers["cache-control"], "no-store");
    let body: Value = serde_json::from_slice(&refused.raw_body).expect("JSON");
    assert_eq!(body, http.body);
    for (name, value) in &headers {
        assert_eq!(http.header(name), Some(value.as_str()), "{name}");
    }
}

/// The domain is the tenant; the catalogue may say that it stands for another one. Without a tenant, or without
/// a match, there is no limit.
#[test]
fn a_domain_is_a_tenant_or_stands_for_one() {
    let server = server();
    let catalogue = json!({
        "domains": { "ingress.example": "acme" },
        "limits": { "api": { "algorithm": "fixed_window", "quota": 2, "window": "1m", "match": ["api=1"] } },
        "tenants": { "acme": {} },
    });
    server.catalogue(&catalogue);
    let call = |domain: &str| {
        let request = RateLimitRequest {
            domain: domain.to_owned(),
            ..request(&[descriptor(&[("api", "1")])])
        };
        let told = ask(&server, request).expect("a decision");
        (
            told.overall_code() == Code::Ok,
            told.statuses[0].current_limit.is_some(),
        )
    };
    assert_eq!(call("acme"), (true, true));
    assert_eq!(call("ingress.example"), (true, true), "the same counter");
    assert_eq!(call("acme"), (false, true));
    assert_eq!(call("ingress.example"), (false, true));
    for _ in 0..3 {
        assert_eq!(call("unknown"), (true, false));
    }
    // Changes and removals are in force at once.
    server.admin(
        reqwest::Method::PATCH,
        "/admin/v1/catalogue",
        &json!({ "domains": { "unknown": "acme" } }),
    );
    assert_eq!(call("unknown"), (false, true));
    let told = server.admin(reqwest::Method::GET, "/admin/v1/catalogue", &Value::Null);
    assert_eq!(
        told.body["domains"],
        json!({ "ingress.example": "acme", "unknown": "acme" })
    );
    server.catalogue(&json!({ "limits": catalogue["limits"], "tenants": { "acme": {} } }));
    assert_eq!(call("ingress.example"), (true, false));
    server.limits(&catalogue["limits"]);
    for passes in [true, true, false] {
        assert_eq!(
            call("anybody"),
            (passes, true),
            "a default plan knows every tenant"
        );
    }
}

/// A change of the catalogue is in force with its answer.
#[test]
fn a_changed_match_is_in_force_at_once() {
    let server = server_with(&json!({ "api": window(1, "1m", &["api=1"]) }));
    assert_eq!(passed(&server, &[("api", "1")], 3), 1);
    set(&server, &json!({ "api": window(1, "1m", &["api=2"]) }));
    assert_eq!(passed(&server, &[("api", "1")], 3), 3);
    assert!(!passes(&server, &[("api", "2")]), "the count stays");
}

/// A `match` that cannot be is refused by name, and nothing is stored.
#[test]
fn an_impossible_match_is_refused() {
    let server = server();
    for (limit, message) in [
        (json!({ "match": ["user"] }), "needs a key"),
        (
            json!({ "match": ["user=1"], "key": "user" }),
            "can have no key",
        ),
        (json!({ "match": ["=1"] }), "has no key"),
        (json!({ "match": ["a*=1"] }), "only a value"),
        (json!({ "match": vec!["a=1"; 17] }), "at most 16"),
    ] {
        let mut whole = json!({ "algorithm": "fixed_window", "quota": 1, "window": "1m" });
        for (name, value) in limit.as_object().expect("fields") {
            whole[name] = value.clone();
        }
        let answer = server.admin(reqwest::Method::PUT, "/admin/v1/limits/x", &whole);
        assert_eq!(answer.status, 422, "{limit}");
        let text = answer.body.to_string();
        assert!(text.contains("x.match"), "{text}");
        assert!(text.contains(message), "{text}");
    }
    let held = json!({ "algorithm": "concurrency", "quota": 1, "match": ["a=1"] });
    let answer = server.admin(reqwest::Method::PUT, "/admin/v1/limits/x", &held);
    assert_eq!(answer.status, 422);
}
