//! Units: looks, several at once, units that go back, limits that travel with a call.

use highwater::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use highwater::grpc::proto::envoy::r#type::v3::RateLimitUnit;
use serde_json::Value;
use serde_json::json;

use crate::client::ask;
use crate::client::back;
use crate::client::decided;
use crate::client::descriptor;
use crate::client::hits;
use crate::client::own;
use crate::client::passed;
use crate::client::passes;
use crate::client::request;
use crate::client::server_with;
use crate::server::Server;

const A: &[(&str, &str)] = &[("user", "a")];

fn per_user(quota: u64, more: &Value) -> Value {
    let mut limit = json!({ "algorithm": "fixed_window", "quota": quota, "window": "1m", "key": "user", "match": ["user"] });
    for (name, value) in more.as_object().expect("fields") {
        limit[name] = value.clone();
    }
    limit
}

fn server(quota: u64, more: &Value) -> Server {
    server_with(&json!({ "per-user": per_user(quota, more) }))
}

fn remaining(server: &Server) -> u32 {
    decided(server, &[hits(A, 0)]).statuses[0].limit_remaining
}

/// API-1: unset and 0 of the request are one; 0 of a descriptor is a look, which says at the end that one more
/// would not pass; a descriptor's own number beats the request's.
#[test]
fn nothing_is_one_and_zero_is_a_look() {
    let server = server(3, &json!({}));
    let with = |of_request: u32, descriptor| RateLimitRequest {
        hits_addend: of_request,
        ..request(&[descriptor])
    };
    let left = |request| {
        let told = ask(&server, request).expect("a decision");
        assert_eq!(told.overall_code(), Code::Ok);
        told.statuses[0].limit_remaining
    };
    assert_eq!(left(request(&[hits(A, 0)])), 3, "a look takes nothing");
    assert_eq!(left(request(&[descriptor(A)])), 2, "unset is one");
    assert_eq!(left(with(5, hits(A, 0))), 2, "the descriptor's number wins");
    assert_eq!(left(with(2, descriptor(A))), 0, "the request's number");
    let look = decided(&server, &[hits(A, 0)]);
    assert_eq!(look.overall_code(), Code::OverLimit);
    assert_eq!(look.statuses[0].limit_remaining, 0);
    let http = json!({ "tenant": "edge", "limit": "per-user", "key": "a", "cost": 0 });
    assert_eq!(
        server.post("/v1/check", &http).status,
        429,
        "HTTP says the same"
    );
}

/// A number beyond 2^53 − 1 is an error; one beyond the quota is refused and takes nothing.
#[test]
fn too_many_units_take_nothing() {
    let server = server(3, &json!({}));
    let error = ask(&server, request(&[hits(A, u64::MAX)])).expect_err("an error");
    assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error:?}");
    let twice = [hits(A, (1 << 53) - 1), hits(A, (1 << 53) - 1)];
    let error = ask(&server, request(&twice)).expect_err("an error");
    assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error:?}");
    let told = decided(&server, &[hits(A, 4)]);
    assert_eq!(told.overall_code(), Code::OverLimit);
    let names: Vec<&str> = told
        .response_headers_to_add
        .iter()
        .map(|header| header.key.as_str())
        .collect();
    assert!(
        !names.contains(&"retry-after"),
        "waiting cannot help: {names:?}"
    );
    assert_eq!(remaining(&server), 3);
}

/// Two descriptors of one counter are charged together, and both are told of it.
#[test]
fn descriptors_of_one_counter_are_charged_once_each() {
    let server = server(5, &json!({}));
    let told = decided(&server, &[hits(A, 2), hits(A, 3)]);
    assert_eq!(told.overall_code(), Code::Ok);
    assert!(
        told.statuses
            .iter()
            .all(|status| status.limit_remaining == 0)
    );
    let told = decided(&server, &[descriptor(A), descriptor(&[("user", "b")])]);
    assert_eq!(told.overall_code(), Code::OverLimit);
    assert_eq!(told.statuses[0].code(), Code::OverLimit);
    assert_eq!(told.statuses[1].code(), Code::Ok);
    assert_eq!(
        passed(&server, &[("user", "b")], 6),
        5,
        "the refused request took nothing"
    );
}

/// Negative hits give back, at most what the window has in use; what is told is how it stands then.
fn gives_back(mode: &str, more: &Value) {
    let server = server(5, more);
    assert_eq!(passed(&server, A, 5), 5, "{mode}");
    let told = decided(&server, &[back(A, 2)]);
    assert_eq!(told.overall_code(), Code::Ok, "{mode}");
    assert_eq!(told.statuses[0].code(), Code::Ok, "{mode}");
    assert_eq!(told.statuses[0].limit_remaining, 2, "{mode}");
    assert_eq!(passed(&server, A, 4), 2, "{mode}");
    let told = decided(&server, &[back(A, 100)]);
    assert_eq!(
        told.statuses[0].limit_remaining, 5,
        "{mode}: never more than was used"
    );
    let told = decided(&server, &[back(A, 1)]);
    assert_eq!(
        told.statuses[0].limit_remaining, 5,
        "{mode}: nothing is in use"
    );
}

#[test]
fn negative_hits_give_units_back() {
    gives_back("regional", &json!({}));
    gives_back("approximate", &json!({ "mode": "approximate" }));
    gives_back("sync", &json!({ "durability": "sync" }));
}

#[test]
fn negative_hits_give_units_of_a_strict_limit_back() {
    gives_back("strict", &json!({ "mode": "strict" }));
}

/// A refused request moves nothing, neither way.
#[test]
fn nothing_goes_back_with_a_refusal() {
    let server = server(2, &json!({}));
    assert_eq!(passed(&server, A, 2), 2);
    assert_eq!(passed(&server, &[("user", "b")], 2), 2);
    let told = decided(&server, &[back(A, 1), descriptor(&[("user", "b")])]);
    assert_eq!(told.overall_code(), Code::OverLimit);
    assert_eq!(
        told.statuses[0].code(),
        Code::Ok,
        "what goes back is not refused"
    );
    assert_eq!(remaining(&server), 0);
}

/// A limit that travels with the call takes the place of the selected one.
#[test]
fn a_call_can_bring_its_own_limit() {
    let server = server(2, &json!({}));
    let same_unit = own(A, 4, RateLimitUnit::Minute);
    for left in [3, 2, 1, 0] {
        let told = decided(&server, std::slice::from_ref(&same_unit));
        assert_eq!(told.statuses[0].limit_remaining, left);
        let limit = told.statuses[0].current_limit.clone().expect("a limit");
        assert_eq!(
            (limit.requests_per_unit, limit.unit(), limit.name.as_str()),
            (4, Unit::Minute, "per-user")
        );
    }
    assert!(!passes(&server, A), "the same counter");
    let other_unit = own(A, 3, RateLimitUnit::Hour);
    for _ in 0..3 {
        assert_eq!(
            decided(&server, std::slice::from_ref(&other_unit)).overall_code(),
            Code::Ok
        );
    }
    server.advance(60_000);
    let told = decided(&server, std::slice::from_ref(&other_unit));
    assert_eq!(
        told.overall_code(),
        Code::OverLimit,
        "an hour is not over after a minute"
    );
    assert_eq!(
        told.statuses[0].current_limit.clone().expect("it").unit(),
        Unit::Hour
    );
    assert_eq!(passed(&server, A, 3), 2, "the selected limit counts beside");
    let unit = ask(&server, request(&[own(A, 1, RateLimitUnit::Unknown)])).expect_err("no unit");
    assert_eq!(unit.code(), tonic::Code::InvalidArgument);
    let unmatched = own(&[("nobody", "x")], 0, RateLimitUnit::Minute);
    assert_eq!(
        decided(&server, &[unmatched]).overall_code(),
        Code::Ok,
        "no limit is selected"
    );
}

/// It is enforced where the selected limit is only counted, and cannot raise a strict one.
#[test]
fn an_own_limit_is_enforced_and_never_beats_a_strict_one() {
    let shadow = server(9, &json!({ "enforce": false }));
    let zero = own(A, 0, RateLimitUnit::Minute);
    assert_eq!(
        decided(&shadow, std::slice::from_ref(&zero)).overall_code(),
        Code::OverLimit
    );
    let strict = server(1, &json!({ "mode": "strict" }));
    let many = own(A, 100, RateLimitUnit::Minute);
    assert_eq!(
        decided(&strict, std::slice::from_ref(&many)).overall_code(),
        Code::Ok
    );
    assert_eq!(
        decided(&strict, std::slice::from_ref(&many)).overall_code(),
        Code::OverLimit
    );
}

/// An own limit survives a restart like any other count.
#[test]
fn own_limits_are_counted_across_a_restart() {
    let mut server = server(2, &json!({ "durability": "sync" }));
    let hourly = own(A, 3, RateLimitUnit::Day);
    for _ in 0..2 {
        assert_eq!(
            decided(&server, std::slice::from_ref(&hourly)).overall_code(),
            Code::Ok
        );
    }
    server.restart(crate::server::Stop::Kill);
    let told = decided(&server, std::slice::from_ref(&hourly));
    assert_eq!(told.statuses[0].limit_remaining, 0);
    assert_eq!(decided(&server, &[hourly]).overall_code(), Code::OverLimit);
}
