//! What goes wrong is told as what it is, and never as UNKNOWN.

use highwater::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use reqwest::Method;
use serde_json::json;
use tonic::Code as Grpc;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::client::ask;
use crate::client::ask_with;
use crate::client::descriptor;
use crate::client::passed;
use crate::client::request;
use crate::client::server_with;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::Setup;
use crate::server::Server;

fn limit() -> serde_json::Value {
    json!({ "algorithm": "fixed_window", "quota": 3, "window": "1m", "key": "user", "match": ["user"] })
}

/// No domain, no descriptors, too many of them or of their entries.
#[test]
fn a_request_without_form_is_an_invalid_argument() {
    let server = server_with(&json!({ "per-user": limit() }));
    let one = descriptor(&[("user", "a")]);
    let wide = descriptor(&[("user", "a"); 65]);
    for request in [
        RateLimitRequest {
            domain: String::new(),
            ..request(std::slice::from_ref(&one))
        },
        request(&[]),
        request(&vec![one.clone(); 65]),
        request(&[wide]),
    ] {
        let error = ask(&server, request).expect_err("an error");
        assert_eq!(error.code(), Grpc::InvalidArgument, "{error:?}");
        assert!(!error.message().is_empty());
    }
    let many = ask(
        &server,
        request(&vec![descriptor(&[("user", "b"); 64]); 64]),
    );
    assert_eq!(many.expect("within the bounds").statuses.len(), 64);
}

/// A value that is longer than any key is counted all the same, and apart from others.
#[test]
fn a_huge_value_cannot_slip_past() {
    let server = server_with(&json!({ "per-user": limit() }));
    let (a, b) = ("x".repeat(60_000), format!("{}y", "x".repeat(59_999)));
    assert_eq!(passed(&server, &[("user", &a)], 5), 3);
    assert_eq!(passed(&server, &[("user", &b)], 5), 3);
    assert_eq!(passed(&server, &[("user", "")], 5), 3);
    assert_eq!(passed(&server, &[("user", "\u{0}\n")], 5), 3);
    let error = ask(
        &server,
        request(&[descriptor(&[("user", &"x".repeat(2_000_000))])]),
    );
    let error = error.expect_err("beyond the largest message");
    assert_ne!(error.code(), Grpc::Unknown, "{error:?}");
}

/// With `auth.check = "token"` the metadata `authorization` carries a check token, of the tenant or of all.
#[test]
fn a_token_is_asked_for_where_checks_need_one() {
    let server = Server::with(&[
        ("listen.grpc", "\"127.0.0.1:0\""),
        ("auth.check", "\"token\""),
    ]);
    server.catalogue(
        &json!({ "limits": { "per-user": limit() }, "tenants": { "edge": {}, "other": {} } }),
    );
    let token = |tenant: &str| {
        let body = json!({ "scope": "check", "tenant": tenant });
        let made = server.admin(Method::POST, "/admin/v1/tokens", &body);
        made.succeeded();
        let token = made.body["token"].as_str().expect("a token").to_owned();
        format!("Bearer {token}")
    };
    let (own, others) = (token("edge"), token("other"));
    let call = || request(&[descriptor(&[("user", "a")])]);
    let code = |metadata: &[(&'static str, &str)]| {
        ask_with(&server, metadata, call()).map_or_else(|error| error.code(), |_| Grpc::Ok)
    };
    assert_eq!(code(&[]), Grpc::Unauthenticated);
    assert_eq!(
        code(&[("authorization", "Bearer wrong")]),
        Grpc::Unauthenticated
    );
    assert_eq!(
        code(&[("authorization", others.as_str())]),
        Grpc::PermissionDenied
    );
    assert_eq!(code(&[("authorization", own.as_str())]), Grpc::Ok);
}

/// A store that fails: `open` passes and says so, `closed` is UNAVAILABLE.
#[test]
fn a_failed_store_follows_each_limits_policy() {
    let server = server_with(&json!({
        "open": { "algorithm": "fixed_window", "quota": 3, "window": "1m", "match": ["policy=open"] },
        "closed": { "algorithm": "fixed_window", "quota": 3, "window": "1m", "match": ["policy=closed"], "on_unavailable": "closed" },
        "synced": { "algorithm": "fixed_window", "quota": 3, "window": "1m", "match": ["policy=synced"], "on_unavailable": "closed", "durability": "sync" },
    }));
    let fault = server.inject("store_errors");
    // The fault is found out when something is written.
    let synced = request(&[descriptor(&[("policy", "synced")])]);
    let error = ask(&server, synced.clone()).expect_err("it cannot be kept");
    assert_eq!(error.code(), Grpc::Unavailable, "{error:?}");
    assert!(error.message().contains("synced: unavailable"), "{error:?}");
    let told = ask(&server, request(&[descriptor(&[("policy", "open")])])).expect("open");
    assert_eq!(told.overall_code(), Code::Ok);
    let metadata = told.dynamic_metadata.expect("it says so");
    assert!(metadata.fields.contains_key("degraded"), "{metadata:?}");
    let error = ask(&server, request(&[descriptor(&[("policy", "closed")])])).expect_err("closed");
    assert_eq!(error.code(), Grpc::Unavailable);
    server.heal(&fault);
}

/// A region that belongs to no cluster yet knows no limits and cannot say that there are none.
#[test]
fn a_region_without_a_cluster_is_unavailable() {
    let server = Server::on_real_clock(&[
        ("listen.grpc", "\"127.0.0.1:0\""),
        ("auth.peer_secret", "\"between regions\""),
        // Nobody can listen on this port, so the cluster is never founded.
        (
            "peers",
            "[{ region = \"ap-south-1\", url = \"http://127.0.0.1:1\" }]",
        ),
    ]);
    let error = ask(&server, request(&[descriptor(&[("user", "a")])])).expect_err("not ready");
    assert_eq!(error.code(), Grpc::Unavailable, "{error:?}");
    assert!(error.message().contains("not joined"), "{error:?}");
    assert_eq!(
        crate::services::health_of(&server, ""),
        Ok(ServingStatus::NotServing)
    );
}

/// A strict limit whose leader cannot be reached is UNAVAILABLE by the caller's deadline, and takes nothing with
/// it; what needs no leader is decided.
#[test]
fn a_strict_limit_out_of_reach_is_unavailable() {
    let cluster = Cluster::set_up(&Setup {
        settings: &[("listen.grpc", "\"127.0.0.1:0\"")],
        ..Setup::of(3)
    });
    let limit = |name: &str, mode: &str| json!({ "algorithm": "fixed_window", "quota": 9, "window": LONG, "mode": mode, "match": [format!("l={name}")] });
    cluster.limits(&json!({
        "near": limit("near", "regional"),
        "shared": limit("shared", "approximate"),
        "exact": limit("exact", "strict"),
    }));
    let follower = cluster.follower();
    let region = &cluster[follower];
    let call = |names: &[&str]| {
        let descriptors: Vec<_> = names
            .iter()
            .map(|name| descriptor(&[("l", name)]))
            .collect();
        ask_with(region, &[("grpc-timeout", "3S")], request(&descriptors))
    };
    let served = call(&["near", "shared", "exact"]).expect("within reach");
    assert_eq!(served.overall_code(), Code::Ok);
    // A new limit, of which this region holds nothing yet.
    cluster.put_limit(cluster.leader(), "later", &limit("later", "strict"));
    region.disturb();
    cluster.cut_off(follower);
    for _ in 0..3 {
        let error = call(&["near", "later"]).expect_err("nobody to ask");
        assert_eq!(error.code(), Grpc::Unavailable, "{error:?}");
        assert!(error.message().contains("later: unavailable"), "{error:?}");
    }
    let told = call(&["near"]).expect("no leader is needed");
    assert_eq!(
        told.statuses[0].limit_remaining, 7,
        "what was UNAVAILABLE took nothing"
    );
}
