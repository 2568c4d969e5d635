//! Access tokens.

use axum::http::Method;
use serde_json::Value;
use serde_json::json;

use super::Server;

const PATH: &str = "/admin/v1/tokens";

#[tokio::test]
async fn a_token_is_shown_once() {
    let server = Server::with_catalogue().await;
    let request =
        json!({ "scope": "tenant", "tenant": "acme", "expires_at": "2100-01-01T02:00:00+02:00" });
    let created = server.root(Method::POST, PATH, &request).await.ok();
    let (token, id) = (
        created["token"].as_str().expect("a token"),
        created["id"].as_str().expect("an id"),
    );
    assert!(token.starts_with(&format!("hw_tenant_{id}_")), "{token}");
    assert_eq!(token.len(), "hw_tenant__".len() + 16 + 64);
    assert_eq!(created["expires_at"], "2100-01-01T00:00:00Z");
    let listed = server.get(PATH).await.ok();
    let item = &listed["tokens"][0];
    assert_eq!(
        (&item["id"], &item["scope"], &item["tenant"]),
        (&json!(id), &json!("tenant"), &json!("acme"))
    );
    assert_eq!(item["expired"], false);
    assert!(!listed.to_string().contains(token));
    let catalogue = serde_json::to_string(&*server.region.replica.catalogue()).expect("json");
    let secret = token.rsplit('_').next().expect("a secret");
    assert!(!catalogue.contains(secret), "the hash alone is kept");
}

#[tokio::test]
async fn a_token_works_until_it_ends_or_is_revoked() {
    let server = Server::with_catalogue().await;
    let now = server.region.clock.now().as_unix_ms();
    let end = jiff::Timestamp::from_millisecond(now + 10_000)
        .expect("an instant")
        .to_string();
    let token = server
        .token(&json!({ "scope": "read", "expires_at": end }))
        .await;
    let read = |token: String| {
        let server = &server;
        async move {
            server
                .as_token(&token, Method::GET, "/admin/v1/limits", &Value::Null)
                .await
                .status
        }
    };
    assert_eq!(read(token.clone()).await, 200);
    server
        .put("/admin/v1/clock", &json!({ "advance_ms": 10_000 }))
        .await
        .ok();
    assert_eq!(read(token).await, 401);
    assert_eq!(server.get(PATH).await.ok()["tokens"][0]["expired"], true);

    let created = server
        .root(Method::POST, PATH, &json!({ "scope": "read" }))
        .await
        .ok();
    let (token, id) = (
        created["token"].as_str().expect("a token"),
        created["id"].as_str().expect("an id"),
    );
    assert_eq!(read(token.to_owned()).await, 200);
    let path = format!("{PATH}/{id}");
    let revoked = server.delete(&path).await.ok();
    assert_eq!(
        revoked["version"], 1,
        "tokens do not move the catalogue's version"
    );
    assert_eq!(read(token.to_owned()).await, 401);
    server.delete(&path).await.problem(404, "not_found");
}

#[tokio::test]
async fn odd_requests_make_no_token() {
    let server = Server::with_catalogue().await;
    for (request, status) in [
        (json!({}), 400),
        (json!({ "scope": "root" }), 400),
        (json!({ "scope": "read", "tenat": "acme" }), 400),
        (json!({ "scope": "check", "tenant": "" }), 400),
        (json!({ "scope": "check", "expires_at": "soon" }), 400),
        (json!({ "scope": "tenant" }), 422),
        (json!({ "scope": "read", "tenant": "acme" }), 422),
        (
            json!({ "scope": "read", "expires_at": "2001-01-01T00:00:00Z" }),
            422,
        ),
    ] {
        let refused = server.root(Method::POST, PATH, &request).await;
        assert_eq!(refused.status, status, "{request}: {refused:?}");
    }
    assert_eq!(server.get(PATH).await.ok()["tokens"], json!([]));
}
