//! Operations: what an operator sees of refusals, changes, health and metrics, and can do to a region.

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::REGION;
use crate::server::Server;
use crate::server::Stop;

fn fixed(quota: u64) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": "60s", "key": "user" })
}

/// The newest refusals tell limit, key, counts, who decided and when to come back.
#[test]
fn refusals_can_be_looked_up() {
    let server = Server::start();
    server.limits(&json!({ "a": fixed(1), "b": fixed(1) }));
    for (at, tenant, limit, key) in [
        (20_000, "t", "a", "k"),
        (20_001, "t", "b", "l"),
        (20_002, "u", "a", "k"),
    ] {
        server.at(at);
        assert_eq!(Counter::keyed(&server, tenant, limit, key).passes(2), 1);
    }
    let look_up = |query: &str| -> Vec<Value> {
        let path = format!("/admin/v1/rejections?{query}");
        let answer = server.admin(Method::GET, &path, &Value::Null);
        answer.succeeded();
        answer.body["rejections"]
            .as_array()
            .expect("a list")
            .clone()
    };
    let of_tenant = look_up("tenant=t");
    let limits: Vec<&str> = of_tenant
        .iter()
        .filter_map(|one| one["limit"].as_str())
        .collect();
    assert_eq!(limits, ["b", "a"], "the newest first: {of_tenant:?}");
    let one = look_up("tenant=t&key=k&limit=a");
    assert_eq!(one.len(), 1, "{one:?}");
    let expected = json!({ "tenant": "t", "limit": "a", "key": "k", "used": 1, "quota": 1 });
    for (member, value) in expected.as_object().expect("an object") {
        assert_eq!(&one[0][member], value, "{member}: {}", one[0]);
    }
    assert_eq!(one[0]["decided_by"], "local", "{}", one[0]);
    assert_eq!(look_up("tenant=nobody").len(), 0);
}

/// Every change is in the audit trail with its author, and stays there.
#[test]
fn changes_are_recorded_with_their_author() {
    let mut server = Server::starting_soon();
    server.limits(&json!({ "a": fixed(1) }));
    let token = crate::auth::create_token(&server, &json!({ "scope": "admin" }));
    server
        .admin_as(Some(&token), Method::PUT, "/admin/v1/limits/a", &fixed(2))
        .succeeded();
    let refused = server.admin(Method::PUT, "/admin/v1/limits/a", &json!({ "quota": 1 }));
    refused.problem_with_status(422);
    server
        .admin(Method::DELETE, "/admin/v1/limits/a", &Value::Null)
        .succeeded();
    server.restart(Stop::Kill);
    let answer = server.admin(Method::GET, "/admin/v1/audit", &Value::Null);
    answer.succeeded();
    let entries = answer.body["audit"].as_array().expect("a list");
    let summaries: Vec<&str> = entries
        .iter()
        .filter_map(|entry| entry["summary"].as_str())
        .collect();
    assert_eq!(entries.len(), 4, "a refused change is none: {summaries:?}");
    assert_ne!(entries[2]["author"], entries[3]["author"], "{entries:?}");
    assert!(!answer.text.contains(&token), "no secret in the trail");
    let later = format!("/admin/v1/audit?after={}", entries[1]["index"]);
    let later = server.admin(Method::GET, &later, &Value::Null);
    assert_eq!(
        later.body["audit"].as_array().map(Vec::len),
        Some(2),
        "{later:?}"
    );
}

/// The metrics that users count by: names and labels of configured things only.
#[test]
fn metrics_count_by_configured_names_only() {
    let server = Server::with(&[("metrics.endpoints", "[\"/known\"]")]);
    server.catalogue(&json!({
        "limits": { "a": fixed(2) },
        "plans": { "pro": {} },
        "tenants": { "secret-tenant": { "plan": "pro" } },
    }));
    for endpoint in ["/known", "/made-up", "/known"] {
        let mut body = Counter::keyed(&server, "secret-tenant", "a", "secret-key").body();
        body["endpoint"] = endpoint.into();
        server.check(&body);
    }
    let labels = ["limit=\"a\"", "tier=\"pro\"", "mode=\"regional\""];
    let count = |name: &str, more: &[&str]| server.metric(name, &[&labels[..], more].concat());
    let close = |found: f64, wanted: f64| (found - wanted).abs() < 0.5;
    assert!(close(
        count("rate_limit_allowed_total", &["endpoint=\"/known\""]),
        1.0
    ));
    assert!(close(
        count("rate_limit_allowed_total", &["endpoint=\"other\""]),
        1.0
    ));
    let refused = ["endpoint=\"/known\"", "reason=\"quota_exceeded\""];
    assert!(close(count("rate_limit_rejected_total", &refused), 1.0));
    let measured = server.metric(
        "rate_limit_check_duration_seconds_count",
        &["mode=\"regional\""],
    );
    assert!(close(measured, 3.0), "{measured}");
    let all = server.admin(Method::GET, "/metrics", &Value::Null);
    assert!(
        !all.text.contains("secret") && !all.text.contains("made-up"),
        "{}",
        all.text
    );
    assert!(!server.log().contains("made-up\" ") || server.log().contains("refused"));
}

/// A refusal is logged with what an operator needs, at a bounded rate.
#[test]
fn refusals_are_logged_at_a_bounded_rate() {
    let server = Server::start();
    server.limits(&json!({ "a": fixed(1) }));
    let counter = Counter::keyed(&server, "t", "a", "the-key");
    assert_eq!(counter.passes(2000), 1);
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains("the-key")).count();
    assert!(
        (1..1000).contains(&lines),
        "{lines} lines for 1999 refusals"
    );
}

/// A draining region is not ready, still answers, and can be resumed.
#[test]
fn a_draining_region_is_not_ready_but_still_answers() {
    let server = Server::start();
    server.limits(&json!({ "a": fixed(5) }));
    let ready = || server.get("/readyz").status;
    assert_eq!(ready(), 200);
    server
        .admin(Method::POST, "/admin/v1/cluster/drain", &json!({}))
        .succeeded();
    assert_eq!((ready(), server.get("/livez").status), (503, 200));
    assert!(Counter::keyed(&server, "t", "a", "k").take(1).allowed());
    server
        .admin(Method::POST, "/admin/v1/cluster/resume", &json!({}))
        .succeeded();
    assert_eq!(ready(), 200);
    let status = server.admin(Method::GET, "/admin/v1/cluster", &Value::Null);
    assert_eq!(status.body["region"], REGION, "{status:?}");
}

/// Lists are paged: every item once, in order, whatever the size of a page.
#[test]
fn lists_are_paged() {
    let server = Server::start();
    let limits: serde_json::Map<String, Value> = (0..25)
        .map(|limit| (format!("l{limit:02}"), fixed(1)))
        .collect();
    server.catalogue(&json!({ "limits": limits.clone() }));
    let mut names = Vec::new();
    let mut path = "/admin/v1/limits?page_size=10".to_owned();
    for page in 0..4 {
        let answer = server.admin(Method::GET, &path, &Value::Null);
        answer.succeeded();
        let items = answer.body["items"].as_array().expect("a list");
        assert!(items.len() <= 10, "page {page}: {answer:?}");
        names.extend(
            items
                .iter()
                .filter_map(|item| item["name"].as_str().map(str::to_owned)),
        );
        let Some(next) = answer.body["next"].as_str() else {
            break;
        };
        path = format!("/admin/v1/limits?page_size=10&after={next}");
    }
    assert_eq!(names, limits.keys().cloned().collect::<Vec<String>>());
    for odd in ["page_size=0", "page_size=1001", "page_size=x", "colour=red"] {
        let refused = server.admin(
            Method::GET,
            &format!("/admin/v1/limits?{odd}"),
            &Value::Null,
        );
        refused.problem_with_status(400);
    }
}

/// Both listeners describe themselves; the description is JSON that names the routes.
#[test]
fn both_listeners_describe_themselves() {
    let server = Server::start();
    let check = server.get("/openapi.json");
    let admin = server.admin(Method::GET, "/openapi.json", &Value::Null);
    for (document, route) in [(&check, "/v1/check"), (&admin, "/admin/v1/catalogue")] {
        assert_eq!(document.status, 200);
        assert!(document.body["openapi"].is_string());
        assert!(document.body["paths"][route].is_object(), "{route}");
    }
    assert!(check.body["paths"]["/admin/v1/catalogue"].is_null());
}
