//! Who may do what.

use axum::http::Method;
use axum::http::header;
use serde_json::Value;
use serde_json::json;

use super::Server;

/// A route: method, path with `{t}` for a tenant, body, whether it belongs to the tenant.
type Route = (Method, &'static str, Value, bool);

/// Every route.
fn routes() -> Vec<Route> {
    let lines = [of_catalogue(), of_tenants(), of_operations()];
    lines.concat()
}

fn of_catalogue() -> Vec<Route> {
    let spec = json!({ "quota": 5, "period": "day" });
    let none = Value::Null;
    vec![
        (Method::GET, "/admin/v1/catalogue", none.clone(), false),
        (Method::PUT, "/admin/v1/catalogue", json!({}), false),
        (Method::PATCH, "/admin/v1/catalogue", json!({}), false),
        (Method::GET, "/admin/v1/limits", none.clone(), false),
        (Method::GET, "/admin/v1/limits/api", none.clone(), false),
        (Method::PUT, "/admin/v1/limits/api", spec, false),
        (Method::DELETE, "/admin/v1/limits/api", none.clone(), false),
        (Method::GET, "/admin/v1/plans", none.clone(), false),
        (Method::GET, "/admin/v1/plans/pro", none.clone(), false),
        (Method::PUT, "/admin/v1/plans/pro", json!({}), false),
        (Method::DELETE, "/admin/v1/plans/pro", none.clone(), false),
        (Method::GET, "/admin/v1/tenants", none.clone(), false),
        (Method::PUT, "/admin/v1/tenants/{t}", json!({}), false),
        (Method::DELETE, "/admin/v1/tenants/{t}", none, false),
    ]
}

fn of_tenants() -> Vec<Route> {
    let none = Value::Null;
    let limit = "/admin/v1/tenants/{t}/limits/api";
    let key = "/admin/v1/tenants/{t}/limits/api/override?key=u";
    let reset = "/admin/v1/tenants/{t}/limits/api/reset";
    vec![
        (Method::GET, "/admin/v1/tenants/{t}", none.clone(), true),
        (
            Method::GET,
            "/admin/v1/tenants/{t}/limits",
            none.clone(),
            true,
        ),
        (Method::GET, limit, none.clone(), true),
        (Method::PUT, limit, json!({ "quota": 1 }), true),
        (Method::DELETE, limit, none.clone(), true),
        (Method::GET, key, none.clone(), true),
        (Method::PUT, key, json!({ "quota": 1 }), true),
        (Method::DELETE, key, none.clone(), true),
        (
            Method::GET,
            "/admin/v1/tenants/{t}/limits/api/ledger?key=u",
            none.clone(),
            true,
        ),
        (Method::GET, "/admin/v1/rejections?tenant={t}", none, true),
        // Whoever gives its own use back to itself has no limit.
        (Method::POST, reset, json!({}), false),
    ]
}

fn of_operations() -> Vec<Route> {
    let none = Value::Null;
    let token = json!({ "scope": "admin" });
    vec![
        (Method::GET, "/admin/v1/audit", none.clone(), false),
        (Method::GET, "/admin/v1/cluster", none.clone(), false),
        (Method::GET, "/admin/v1/tokens", none.clone(), false),
        (Method::POST, "/admin/v1/tokens", token, false),
        (Method::DELETE, "/admin/v1/tokens/x", none.clone(), false),
        (Method::GET, "/admin/v1/faults", none.clone(), false),
        (Method::POST, "/admin/v1/cluster/drain", none.clone(), false),
        (Method::POST, "/admin/v1/cluster/leader", json!({}), false),
        (
            Method::PUT,
            "/admin/v1/cluster/leader-preference",
            json!({}),
            false,
        ),
        (
            Method::PUT,
            "/admin/v1/cluster/regions/eu-west-1",
            json!({}),
            false,
        ),
        (
            Method::DELETE,
            "/admin/v1/cluster/regions/eu-west-1",
            none,
            false,
        ),
    ]
}

async fn status(server: &Server, token: &str, tenant: &str, route: &Route) -> (u16, String) {
    let path = route.1.replace("{t}", tenant);
    let answer = server
        .as_token(token, route.0.clone(), &path, &route.2)
        .await;
    (answer.status, answer.text)
}

#[tokio::test]
async fn a_reader_reads_everything_and_changes_nothing() {
    let server = Server::with_catalogue().await;
    let token = server.token(&json!({ "scope": "read" })).await;
    for route in routes() {
        let (status, text) = status(&server, &token, "acme", &route).await;
        let reads = route.0 == Method::GET;
        assert_eq!(
            status == 403,
            !reads,
            "{} {}: {status} {text}",
            route.0,
            route.1
        );
    }
}

#[tokio::test]
async fn a_tenants_token_reaches_its_own_tenant() {
    let server = Server::with_catalogue().await;
    let token = server
        .token(&json!({ "scope": "tenant", "tenant": "acme" }))
        .await;
    for route in routes() {
        let (status, text) = status(&server, &token, "acme", &route).await;
        assert_eq!(
            status == 403,
            !route.3,
            "{} {}: {status} {text}",
            route.0,
            route.1
        );
    }
}

#[tokio::test]
async fn whatever_is_asked_of_another_tenant_is_answered_alike() {
    let server = Server::with_catalogue().await;
    let token = server
        .token(&json!({ "scope": "tenant", "tenant": "acme" }))
        .await;
    let mut answers = std::collections::BTreeSet::new();
    for route in routes().iter().filter(|route| route.3) {
        for other in ["other", "nobody", "%00", "acme%20", "..."] {
            answers.insert(status(&server, &token, other, route).await);
        }
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|(status, _)| *status == 403));
}

#[tokio::test]
async fn a_check_token_reaches_nothing_here() {
    let server = Server::with_catalogue().await;
    for request in [
        json!({ "scope": "check" }),
        json!({ "scope": "check", "tenant": "acme" }),
    ] {
        let token = server.token(&request).await;
        for route in routes() {
            let (status, text) = status(&server, &token, "acme", &route).await;
            assert_eq!(status, 403, "{} {}: {text}", route.0, route.1);
        }
    }
}

#[tokio::test]
async fn without_a_token_and_with_a_wrong_one_everything_is_401() {
    let server = Server::with_catalogue().await;
    for (method, path, body, _) in routes() {
        let path = path.replace("{t}", "acme");
        for headers in [
            &[][..],
            &[("authorization", "Bearer wrong")],
            &[("authorization", "Basic cm9vdDo=")],
        ] {
            let answer = server
                .send(method.clone(), &path, headers, body.to_string())
                .await;
            answer.problem(401, "unauthorized");
            assert!(answer.headers.contains_key(header::WWW_AUTHENTICATE));
        }
    }
    let before = server.region.view().version();
    assert_eq!(before, 1, "nothing was changed");
}
