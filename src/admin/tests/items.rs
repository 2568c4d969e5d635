//! The catalogue item by item.

use axum::http::Method;
use axum::http::header;
use serde_json::Value;
use serde_json::json;

use super::ROOT;
use super::Server;

#[tokio::test]
async fn a_limit_is_put_read_and_deleted() {
    let server = Server::with_catalogue().await;
    let spec = json!({ "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "1s" });
    let written = server.put("/admin/v1/limits/new", &spec).await.ok();
    assert_eq!(written["version"], 2);
    let read = server.get("/admin/v1/limits/new").await;
    assert_eq!(read.headers.get(header::ETAG).expect("a tag"), "\"2\"");
    assert_eq!(read.ok(), spec);
    assert_eq!(
        server.delete("/admin/v1/limits/new").await.ok()["version"],
        3
    );
    server
        .get("/admin/v1/limits/new")
        .await
        .problem(404, "not_found");
    server
        .delete("/admin/v1/limits/new")
        .await
        .problem(404, "not_found");
}

#[tokio::test]
async fn faults_of_an_item_are_told_by_its_place_in_the_catalogue() {
    let server = Server::with_catalogue().await;
    let cases = [
        (
            "/admin/v1/limits/new",
            json!({ "quota": "x" }),
            "limits.new.quota",
        ),
        (
            "/admin/v1/plans/pro",
            json!({ "limits": { "api": { "window": "0s" } } }),
            "plans.pro.limits.api.window",
        ),
        (
            "/admin/v1/plans/pro",
            json!({ "tier": 1 }),
            "plans.pro.tier",
        ),
        (
            "/admin/v1/tenants/a.b",
            json!({ "plan": "none" }),
            "tenants.\"a.b\".plan",
        ),
        (
            "/admin/v1/tenants/acme/limits/api",
            json!({ "refill": 3 }),
            "tenants.acme.limits.api.refill",
        ),
        (
            "/admin/v1/tenants/acme/limits/api",
            json!({ "keys": {} }),
            "tenants.acme.limits.api.keys",
        ),
        (
            "/admin/v1/tenants/acme/limits/api/override?key=u%201",
            json!({ "capacity": 1 }),
            "tenants.acme.limits.api.keys.\"u 1\".capacity",
        ),
    ];
    for (path, body, fault) in cases {
        let refused = server.put(path, &body).await;
        refused.problem(422, "invalid");
        assert_eq!(refused.body["errors"][0]["path"], fault, "{path}");
    }
}

#[tokio::test]
async fn a_plan_in_use_stays() {
    let server = Server::with_catalogue().await;
    server
        .delete("/admin/v1/plans/pro")
        .await
        .problem(409, "in_use");
    server
        .delete("/admin/v1/plans/free")
        .await
        .problem(409, "in_use");
    server.put("/admin/v1/plans/max", &json!({})).await.ok();
    assert_eq!(
        server.get("/admin/v1/plans/max").await.ok(),
        json!({ "limits": {} })
    );
    server.delete("/admin/v1/plans/max").await.ok();
    server
        .delete("/admin/v1/limits/api")
        .await
        .problem(409, "in_use");
}

#[tokio::test]
async fn a_tenant_is_put_as_a_whole() {
    let server = Server::with_catalogue().await;
    let whole = json!({ "plan": "free", "limits": { "api": { "quota": 7, "keys": { "u": { "quota": 1 } } } } });
    server.put("/admin/v1/tenants/acme", &whole).await.ok();
    assert_eq!(server.get("/admin/v1/tenants/acme").await.ok(), whole);
    server.put("/admin/v1/tenants/acme", &json!({})).await.ok();
    assert_eq!(server.get("/admin/v1/tenants/acme").await.ok(), json!({}));
    server.delete("/admin/v1/tenants/acme").await.ok();
    server
        .get("/admin/v1/tenants/acme")
        .await
        .problem(404, "not_found");
}

#[tokio::test]
async fn lists_are_read_page_by_page() {
    let server = Server::start().await;
    let tenants: serde_json::Map<String, Value> =
        (0..25).map(|i| (format!("t/{i:02}"), json!({}))).collect();
    server
        .put("/admin/v1/catalogue", &json!({ "tenants": tenants }))
        .await
        .ok();
    let mut names = Vec::new();
    let mut path = "/admin/v1/tenants?page_size=10".to_owned();
    for _ in 0..4 {
        let page = server.get(&path).await.ok();
        assert_eq!(page["version"], 1);
        names.extend(
            page["items"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|item| item["name"].clone()),
        );
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!(
            "/admin/v1/tenants?page_size=10&after={}",
            next.replace('/', "%2F")
        );
    }
    let expected: Vec<Value> = (0..25).map(|i| json!(format!("t/{i:02}"))).collect();
    assert_eq!(names, expected);

    let server = Server::with_catalogue().await;
    let limits = server.get("/admin/v1/limits").await.ok();
    assert_eq!(
        limits["items"][1],
        json!({ "name": "exports", "quota": 5, "period": "day" })
    );
    assert!(limits.get("next").is_none());
    let plans = server.get("/admin/v1/plans?after=free").await.ok();
    assert_eq!(
        plans["items"],
        json!([{ "name": "pro", "limits": { "api": { "quota": 100 } } }])
    );
    server
        .get("/admin/v1/plans?page_size=0")
        .await
        .problem(400, "malformed");
    server
        .get("/admin/v1/plans?size=1")
        .await
        .problem(400, "unknown_field");
}

#[tokio::test]
async fn a_lost_race_is_refused_for_every_item() {
    let server = Server::with_catalogue().await;
    let bearer = format!("Bearer {ROOT}");
    let headers = [("authorization", bearer.as_str()), ("if-match", "\"0\"")];
    for (method, path, body) in [
        (
            Method::PUT,
            "/admin/v1/limits/exports",
            json!({ "quota": 6, "period": "day" }),
        ),
        (Method::DELETE, "/admin/v1/limits/exports", Value::Null),
        (Method::PUT, "/admin/v1/plans/pro", json!({})),
        (Method::DELETE, "/admin/v1/plans/pro", Value::Null),
        (Method::PUT, "/admin/v1/tenants/acme", json!({})),
        (Method::DELETE, "/admin/v1/tenants/acme", Value::Null),
        (
            Method::PUT,
            "/admin/v1/tenants/acme/limits/api",
            json!({ "quota": 6 }),
        ),
        (
            Method::DELETE,
            "/admin/v1/tenants/acme/limits/api",
            Value::Null,
        ),
        (
            Method::PUT,
            "/admin/v1/tenants/acme/limits/api/override?key=u",
            json!({ "quota": 6 }),
        ),
        (
            Method::DELETE,
            "/admin/v1/tenants/acme/limits/api/override?key=u",
            Value::Null,
        ),
        (
            Method::POST,
            "/admin/v1/tenants/acme/limits/api/reset",
            json!({}),
        ),
    ] {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let refused = server.send(method.clone(), path, &headers, body).await;
        assert_eq!(refused.status, 412, "{method} {path}: {refused:?}");
    }
    assert_eq!(server.get("/admin/v1/catalogue").await.ok()["version"], 1);
}

#[tokio::test]
async fn names_are_percent_encoded_and_must_be_names() {
    let server = Server::with_catalogue().await;
    for (encoded, name) in [
        ("a%2Fb", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("%C3%BC", "ü"),
        ("%3Fx=1%23y", "?x=1#y"),
    ] {
        server
            .put(
                &format!("/admin/v1/tenants/{encoded}"),
                &json!({ "plan": "pro" }),
            )
            .await
            .ok();
        let tree = server.get("/admin/v1/catalogue").await.ok();
        assert_eq!(tree["tenants"][name], json!({ "plan": "pro" }), "{name}");
    }
    for path in [
        "/admin/v1/limits/A",
        "/admin/v1/limits/-a",
        "/admin/v1/plans/%00",
        "/admin/v1/tenants/%FF",
    ] {
        server.put(path, &json!({})).await.problem(400, "malformed");
    }
    for path in [
        "/admin/v1/limits/A",
        "/admin/v1/plans/%00",
        "/admin/v1/tenants/%0A",
    ] {
        server.get(path).await.problem(404, "not_found");
        server.delete(path).await.problem(404, "not_found");
    }
    server
        .root(Method::POST, "/admin/v1/limits/api", &json!({}))
        .await
        .problem(405, "method_not_allowed");
    server
        .get("/admin/v1/nothing")
        .await
        .problem(404, "not_found");
}
