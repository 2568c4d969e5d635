//! What one tenant is subject to.

use axum::http::Method;
use serde_json::Value;
use serde_json::json;

use super::Server;

#[tokio::test]
async fn a_tenants_limit_tells_where_each_field_comes_from() {
    let server = Server::with_catalogue().await;
    server
        .put(
            "/admin/v1/tenants/acme/limits/api",
            &json!({ "enforce": false }),
        )
        .await
        .ok();
    let limit = server.get("/admin/v1/tenants/acme/limits/api").await.ok();
    assert_eq!(limit["effective"]["quota"], 100);
    assert_eq!(limit["from"]["quota"], "plans.pro.limits.api");
    assert_eq!(limit["from"]["window"], "limits.api");
    assert_eq!(limit["from"]["enforce"], "tenants.acme.limits.api");
    assert_eq!(limit["from"]["mode"], "default");
    assert_eq!(limit["written"], json!({ "enforce": false }));
    assert_eq!(
        (&limit["known"], &limit["plan"], &limit["epoch"]),
        (&json!(true), &json!("pro"), &json!(1))
    );
    server
        .delete("/admin/v1/tenants/acme/limits/api")
        .await
        .ok();
    let limit = server.get("/admin/v1/tenants/acme/limits/api").await.ok();
    assert_eq!(limit["effective"]["enforce"], true);
}

#[tokio::test]
async fn a_tenants_limits_are_listed_as_they_are_in_force() {
    let server = Server::with_catalogue().await;
    let page = server.get("/admin/v1/tenants/acme/limits").await.ok();
    let items = page["items"].as_array().expect("a list");
    assert_eq!(
        (&items[0]["name"], &items[0]["quota"]),
        (&json!("api"), &json!(100))
    );
    assert_eq!(items[1]["time_zone"], "Asia/Kolkata");
    let first = server
        .get("/admin/v1/tenants/acme/limits?page_size=1")
        .await
        .ok();
    assert_eq!(first["next"], "api");
    let unknown = server.get("/admin/v1/tenants/somebody/limits").await.ok();
    assert_eq!(
        unknown["items"][0]["quota"], 10,
        "counted under the default plan"
    );
    let limit = server
        .get("/admin/v1/tenants/somebody/limits/api")
        .await
        .ok();
    assert_eq!(
        (&limit["known"], &limit["plan"]),
        (&json!(false), &json!("free"))
    );
    server
        .get("/admin/v1/tenants/somebody")
        .await
        .problem(404, "not_found");
    server
        .get("/admin/v1/tenants/acme/limits/nope")
        .await
        .problem(404, "not_found");
}

#[tokio::test]
async fn limits_of_a_tenant_that_is_not_named_cannot_be_set() {
    let server = Server::with_catalogue().await;
    let refused = server
        .put(
            "/admin/v1/tenants/somebody/limits/api",
            &json!({ "quota": 1 }),
        )
        .await;
    refused.problem(404, "not_found");
    assert!(refused.text.contains("adds it first"), "{refused:?}");
}

#[tokio::test]
async fn overrides_are_of_one_key_whatever_it_is() {
    let server = Server::with_catalogue().await;
    let path = |key: &str| format!("/admin/v1/tenants/acme/limits/api/override?key={key}");
    server
        .put(
            &path("a%00b%26c"),
            &json!({ "quota": 3, "expires_at": "2100-01-01T00:00:00Z" }),
        )
        .await
        .ok();
    let found = server.get(&path("a%00b%26c")).await.ok();
    assert_eq!(found["key"], "a\u{0}b&c");
    assert_eq!(
        found["written"],
        json!({ "quota": 3, "expires_at": "2100-01-01T00:00:00Z" })
    );
    assert_eq!(found["effective"]["quota"], 3);
    assert_eq!(found["effective"]["window"], "1m");
    server.get(&path("a")).await.problem(404, "not_found");
    server.delete(&path("a%00b%26c")).await.ok();
    server
        .delete(&path("a%00b%26c"))
        .await
        .problem(404, "not_found");
    for odd in ["key=", "", "key=a&key=b", "kei=a"] {
        let path = format!("/admin/v1/tenants/acme/limits/api/override?{odd}");
        assert_eq!(
            server.put(&path, &json!({ "quota": 3 })).await.status,
            400,
            "{odd}"
        );
    }
    let unkeyed = "/admin/v1/tenants/acme/limits/exports/override?key=a";
    server
        .put(unkeyed, &json!({ "quota": 3 }))
        .await
        .problem(422, "invalid");
}

#[tokio::test]
async fn a_reset_is_of_one_key_or_of_all() {
    let server = Server::with_catalogue().await;
    let path = "/admin/v1/tenants/acme/limits/api/reset";
    let reset = |body: Value| {
        let server = &server;
        async move { server.root(Method::POST, path, &body).await }
    };
    let answer = reset(json!({ "key": "u1" })).await.ok();
    assert_eq!(
        answer["new_epochs"],
        json!([{ "limit": "api", "tenant": "acme", "key": "u1" }])
    );
    let epoch = |key: &str| {
        let view = server.region.view();
        let limit = view
            .tenant("acme")
            .and_then(|tenant| tenant.limit("api"))
            .expect("a limit");
        limit.at(key, server.region.clock.now()).1
    };
    assert_eq!((epoch("u1"), epoch("u2")), (2, 1));
    let answer = reset(json!({})).await.ok();
    assert_eq!(
        answer["new_epochs"],
        json!([{ "limit": "api", "tenant": "acme" }])
    );
    assert_eq!((epoch("u1"), epoch("u2")), (3, 3));
    reset(Value::Null).await.ok();
    assert_eq!(epoch("u1"), 4, "an empty body means all too");
    for odd in [
        json!({ "key": null }),
        json!({ "key": "" }),
        json!({ "key": 1 }),
        json!([]),
        json!({ "kei": "u" }),
    ] {
        assert_eq!(reset(odd.clone()).await.status, 400, "{odd}");
    }
    assert_eq!(epoch("u1"), 4);
    let unknown = "/admin/v1/tenants/somebody/limits/api/reset";
    server.root(Method::POST, unknown, &json!({})).await.ok();
    let missing = "/admin/v1/tenants/acme/limits/nope/reset";
    server
        .root(Method::POST, missing, &json!({}))
        .await
        .problem(404, "not_found");
    let unkeyed = "/admin/v1/tenants/acme/limits/exports/reset";
    server
        .root(Method::POST, unkeyed, &json!({ "key": "u" }))
        .await
        .problem(422, "invalid");
}

#[tokio::test]
async fn a_tenants_token_chooses_amounts_below_the_ceiling() {
    let server = Server::with_catalogue().await;
    let token = server
        .token(&json!({ "scope": "tenant", "tenant": "acme" }))
        .await;
    let path = "/admin/v1/tenants/acme/limits/api";
    let put = |body: Value| {
        let (server, token) = (&server, &token);
        async move { server.as_token(token, Method::PUT, path, &body).await }
    };
    put(json!({ "quota": 40 })).await.ok();
    let limit = server
        .as_token(&token, Method::GET, path, &Value::Null)
        .await
        .ok();
    assert_eq!(limit["effective"]["quota"], 40);
    assert_eq!(limit["from"]["quota"], "tenants.acme.limits.api.own");
    let refused = put(json!({ "quota": 101 })).await;
    refused.problem(403, "forbidden");
    assert!(refused.text.contains("100"), "{refused:?}");
    put(json!({ "unlimited": true }))
        .await
        .problem(422, "invalid");
    let key = "/admin/v1/tenants/acme/limits/api/override?key=u";
    server
        .as_token(&token, Method::PUT, key, &json!({ "quota": 7 }))
        .await
        .ok();
    let found = server
        .as_token(&token, Method::GET, key, &Value::Null)
        .await
        .ok();
    assert_eq!(
        (&found["own"]["quota"], &found["effective"]["quota"]),
        (&json!(7), &json!(7))
    );
    server
        .as_token(&token, Method::DELETE, key, &Value::Null)
        .await
        .ok();
    server
        .as_token(&token, Method::DELETE, path, &Value::Null)
        .await
        .ok();
    assert_eq!(server.get(path).await.ok()["effective"]["quota"], 100);
}
