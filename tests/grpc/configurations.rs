//! Configurations that people have, as facts: the examples of envoyproxy/ratelimit (CF-1).

use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use highwater::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use serde_json::json;

use crate::client::decided;
use crate::client::descriptor;
use crate::client::limit_of;
use crate::client::passed;
use crate::client::passes;
use crate::client::server_with;
use crate::server::Server;

/// `examples/ratelimit/config/example.yaml`.
fn example() -> Server {
    let minute = |quota: u64, matches: &[&str]| json!({ "quota": quota, "algorithm": "fixed_window", "window": "1m", "match": matches });
    let keyed = |mut limit: serde_json::Value, key: &str| {
        limit["key"] = json!(key);
        limit
    };
    server_with(&json!({
        "path": minute(1, &["source_cluster=proxy", "destination_cluster=mock"]),
        "foo": keyed(minute(2, &["foo"]), "foo"),
        "foo-bar": keyed(minute(3, &["foo", "bar"]), "foo,bar"),
        "foo-banned": keyed(minute(0, &["foo", "bar=banned"]), "foo"),
        "foo-baz": { "quota": 1, "algorithm": "fixed_window", "window": "1s", "match": ["foo", "baz"], "key": "foo,baz" },
        "foo-bay": { "unlimited": true, "match": ["foo", "bay"], "key": "foo,bay" },
        "foo-shady": { "quota": 1, "algorithm": "fixed_window", "window": "1m", "match": ["foo", "baz=shady"], "key": "foo", "enforce": false },
        "qux": { "unlimited": true, "match": ["qux"], "key": "qux" },
    }))
}

/// CF-1: a nested tree, each value its own counter, a value that is always refused.
#[test]
fn the_example_tree_counts_each_value_apart() {
    let server = example();
    let path = [("source_cluster", "proxy"), ("destination_cluster", "mock")];
    assert_eq!(passed(&server, &path, 3), 1);
    assert_eq!(passed(&server, &[("foo", "x")], 4), 2, "foo=x");
    assert_eq!(passed(&server, &[("foo", "y")], 4), 2, "still two of foo=y");
    assert_eq!(passed(&server, &[("foo", "x"), ("bar", "1")], 5), 3);
    assert_eq!(passed(&server, &[("foo", "x"), ("bar", "2")], 5), 3);
    assert_eq!(passed(&server, &[("foo", "z"), ("bar", "1")], 5), 3);
    for foo in ["x", "y"] {
        assert_eq!(
            passed(&server, &[("foo", foo), ("bar", "banned")], 2),
            0,
            "{foo}"
        );
    }
    assert_eq!(passed(&server, &[("foo", "x"), ("baz", "1")], 3), 1);
    server.advance(1_000);
    assert_eq!(passed(&server, &[("foo", "x"), ("baz", "1")], 3), 1);
    server.advance(60_000);
    assert_eq!(passed(&server, &path, 2), 1, "the minute is over");
}

/// CF-1: unlimited rules are told as such and never refuse; another depth matches nothing.
#[test]
fn unlimited_rules_and_unknown_depths_refuse_nothing() {
    let server = example();
    assert_eq!(passed(&server, &[("qux", "a")], 20), 20);
    assert_eq!(passed(&server, &[("foo", "x"), ("bay", "1")], 20), 20);
    let told = decided(&server, &[descriptor(&[("qux", "a")])]);
    assert_eq!(told.statuses[0].limit_remaining, u32::MAX);
    assert_eq!(told.statuses[0].current_limit, None);
    for unknown in [
        &[("source_cluster", "proxy")][..],
        &[("foo", "x"), ("bar", "banned"), ("deep", "1")],
        &[("other", "x")],
        &[],
    ] {
        assert_eq!(passed(&server, unknown, 5), 5, "{unknown:?}");
        assert_eq!(limit_of(&server, unknown), None, "{unknown:?}");
    }
}

/// CF-1: the second call of `shady` in a minute passes but is flagged.
#[test]
fn a_shadow_rule_counts_and_flags_and_never_refuses() {
    let server = example();
    let shady = [descriptor(&[("foo", "x"), ("baz", "shady")])];
    let first = decided(&server, &shady);
    assert_eq!(first.overall_code(), Code::Ok);
    assert_eq!(first.dynamic_metadata, None);
    let second = decided(&server, &shady);
    assert_eq!(second.overall_code(), Code::Ok);
    assert_eq!(second.statuses[0].limit_remaining, 0);
    let flags = second.dynamic_metadata.expect("the flag");
    assert!(
        format!("{:?}", flags.fields["would_deny"]).contains("foo-shady"),
        "{flags:?}"
    );
}

/// `test/config/share_threshold.yaml`.
fn wildcards() -> Server {
    let minute = |quota: u64, matches: &[&str]| json!({ "quota": quota, "algorithm": "fixed_window", "window": "1m", "match": matches });
    let keyed = |mut limit: serde_json::Value, key: &str| {
        limit["key"] = json!(key);
        limit
    };
    server_with(&json!({
        "files": minute(100, &["files=files/*"]),
        "nested-files": minute(200, &["nested=parent", "files=nested/*"]),
        "top-files": minute(300, &["files=top/*", "files=nested/*"]),
        "route": keyed(minute(60, &["route=api/*", "method"]), "method"),
        "path-file": keyed(minute(120, &["path=path/*", "file=file/*", "type"]), "file,type"),
        "user-resource": keyed(minute(150, &["user=user/*", "resource=res/*", "action"]), "action"),
        "file-test1": minute(50, &["file=test1"]),
        "file-tests": minute(100, &["file=test*"]),
        "midpath": minute(100, &["midpath=/api*v1"]),
        "multiroute": minute(50, &["multiroute=svc*ep*rpc"]),
        "tenant-resource": minute(60, &["tenant=t*prod", "resource=res*v2"]),
    }))
}

/// Takes so many units at once; whether they were there.
fn takes(server: &Server, entries: &[(&str, &str)], units: u64) -> bool {
    let response = decided(server, &[crate::client::hits(entries, units)]);
    response.overall_code() == Code::Ok
}

/// CF-1: 60 calls on files/a and 40 on files/b, then files/c is refused.
#[test]
fn a_shared_wildcard_has_one_counter_for_all_values() {
    let server = wildcards();
    assert_eq!(passed(&server, &[("files", "files/a")], 60), 60);
    assert_eq!(passed(&server, &[("files", "files/b")], 40), 40);
    assert!(!passes(&server, &[("files", "files/c")]));
    assert!(passes(&server, &[("files", "other/c")]), "no rule");
    assert!(takes(
        &server,
        &[("nested", "parent"), ("files", "nested/a")],
        200
    ));
    assert!(!passes(
        &server,
        &[("nested", "parent"), ("files", "nested/b")]
    ));
    assert!(takes(
        &server,
        &[("files", "top/a"), ("files", "nested/a")],
        300
    ));
    assert!(!passes(
        &server,
        &[("files", "top/b"), ("files", "nested/b")]
    ));
}

/// CF-1: an exact value beats a wildcard; wildcards in the middle.
#[test]
fn the_most_specific_rule_wins() {
    let server = wildcards();
    assert_eq!(
        limit_of(&server, &[("file", "test1")]).as_deref(),
        Some("file-test1")
    );
    assert!(takes(&server, &[("file", "test1")], 50));
    assert!(!passes(&server, &[("file", "test1")]));
    assert!(takes(&server, &[("file", "test2")], 60));
    assert!(takes(&server, &[("file", "test3")], 40));
    assert!(!passes(&server, &[("file", "test4")]));
    assert!(takes(&server, &[("midpath", "/api/a/v1")], 70));
    assert!(takes(&server, &[("midpath", "/api/b/v1")], 30));
    assert!(!passes(&server, &[("midpath", "/apiv1")]));
    assert!(passes(&server, &[("midpath", "/api/v2")]));
    assert!(takes(&server, &[("multiroute", "svc-a-ep-b-rpc")], 50));
    assert!(!passes(&server, &[("multiroute", "svceprpc")]));
    assert!(takes(
        &server,
        &[("tenant", "t1prod"), ("resource", "res1v2")],
        60
    ));
    assert!(!passes(
        &server,
        &[("tenant", "t2prod"), ("resource", "res9v2")]
    ));
}

/// CF-1: nested wildcards, some shared and some not.
#[test]
fn a_limit_says_which_wildcards_are_shared() {
    let server = wildcards();
    let call = |path, file, kind| [("path", path), ("file", file), ("type", kind)];
    assert!(takes(&server, &call("path/a", "file/a", "x"), 120));
    assert!(
        !passes(&server, &call("path/b", "file/a", "x")),
        "paths share"
    );
    assert!(
        takes(&server, &call("path/a", "file/b", "x"), 120),
        "files do not"
    );
    assert!(
        takes(&server, &call("path/a", "file/a", "y"), 120),
        "types do not"
    );
    let call =
        |user, resource, action| [("user", user), ("resource", resource), ("action", action)];
    assert!(takes(&server, &call("user/a", "res/a", "get"), 150));
    assert!(!passes(&server, &call("user/b", "res/b", "get")));
    assert!(passes(&server, &call("user/b", "res/b", "put")));
    assert!(takes(&server, &[("route", "api/a"), ("method", "get")], 60));
    assert!(!passes(&server, &[("route", "api/b"), ("method", "get")]));
}

/// CF-1: 20 per 5 minutes. There is no unit of 5 minutes, so none is told.
#[test]
fn a_window_may_be_a_multiple_of_a_unit() {
    let server = server_with(&json!({
        "five": { "quota": 20, "algorithm": "fixed_window", "window": "5m", "match": ["key"], "key": "key" },
    }));
    assert_eq!(passed(&server, &[("key", "a")], 25), 20);
    server.advance(299_000);
    assert!(!passes(&server, &[("key", "a")]));
    server.advance(1_000);
    let told = decided(&server, &[descriptor(&[("key", "a")])]);
    let limit = told.statuses[0].current_limit.clone().expect("a limit");
    assert_eq!((limit.requests_per_unit, limit.unit()), (20, Unit::Unknown));
}

/// The counters are those of the check API: the value is the key.
#[test]
fn gateways_and_services_share_counters() {
    let server = example();
    assert_eq!(passed(&server, &[("foo", "x")], 1), 1);
    let body = json!({ "tenant": "edge", "limit": "foo", "key": "x" });
    assert_eq!(server.post("/v1/check", &body).status, 200);
    assert_eq!(server.post("/v1/check", &body).status, 429);
    assert!(!passes(&server, &[("foo", "x")]));
    let several = json!({ "tenant": "edge", "limit": "foo-bar", "key": "x,1", "cost": 3 });
    assert_eq!(server.post("/v1/check", &several).status, 200);
    assert!(!passes(&server, &[("foo", "x"), ("bar", "1")]));
}

/// The example file as people have it, by way of `import` and `apply`.
#[test]
fn a_file_of_envoyproxy_ratelimit_is_imported() {
    let server = crate::client::server();
    let yaml = server.directory().join("config.yaml");
    std::fs::write(
        &yaml,
        "domain: edge\ndescriptors:\n  - key: foo\n    rate_limit: { unit: minute, requests_per_unit: 2 }\n    descriptors:\n      \
         - { key: bar, value: banned, rate_limit: { unit: minute, requests_per_unit: 0 } }\n  - { key: foo, value: free }\n",
    )
    .expect("written");
    let mut import = crate::server::highwater();
    let imported = import
        .args(["import", "envoy-ratelimit"])
        .arg(&yaml)
        .output()
        .expect("it runs");
    assert!(imported.status.success(), "{imported:?}");
    let toml = server.directory().join("limits.toml");
    std::fs::write(&toml, &imported.stdout).expect("written");
    let mut apply = crate::server::highwater();
    let applied = apply
        .args(["--server", server.admin_url(), "apply", "-f"])
        .arg(&toml)
        .env("HIGHWATER_TOKEN", crate::server::ADMIN_TOKEN)
        .output()
        .expect("it runs");
    assert!(applied.status.success(), "{applied:?}");
    assert_eq!(passed(&server, &[("foo", "x")], 3), 2);
    assert_eq!(passed(&server, &[("foo", "x"), ("bar", "banned")], 2), 0);
    assert_eq!(passed(&server, &[("foo", "free")], 9), 9);
    assert_eq!(passed(&server, &[("foo", "free"), ("bar", "banned")], 9), 9);
}
