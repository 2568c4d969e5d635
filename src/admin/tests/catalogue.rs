//! The catalogue as one document.

use axum::http::Method;
use axum::http::header;
use serde_json::Value;
use serde_json::json;

use super::ROOT;
use super::Server;
use super::catalogue_document;

const PATH: &str = "/admin/v1/catalogue";

#[tokio::test]
async fn what_is_read_can_be_put_back_as_it_is() {
    let server = Server::with_catalogue().await;
    let read = server.get(PATH).await;
    assert_eq!(read.headers.get(header::ETAG).expect("a tag"), "\"1\"");
    assert_eq!(
        read.headers.get(header::CACHE_CONTROL).expect("a policy"),
        "no-store"
    );
    let mut expected = catalogue_document();
    expected["version"] = json!(1);
    let document = read.ok();
    assert_eq!(document, expected);
    let written = server.put(PATH, &document).await.ok();
    assert_eq!(
        written,
        json!({ "version": 2, "pending_regions": [], "warnings": [], "new_epochs": [] })
    );
    server
        .put(PATH, &document)
        .await
        .problem(412, "version_mismatch");
}

#[tokio::test]
async fn a_write_says_its_version_its_warnings_and_what_starts_from_zero() {
    let server = Server::with_catalogue().await;
    let change = json!({
        "limits": { "api": { "algorithm": "sliding_log", "quota": 2_000_000, "window": "1m", "key": "user" } },
    });
    let written = server.root(Method::PATCH, PATH, &change).await;
    assert_eq!(written.headers.get(header::ETAG).expect("a tag"), "\"2\"");
    let written = written.ok();
    assert_eq!(written["version"], 2);
    assert!(
        written["warnings"][0]
            .as_str()
            .expect("a warning")
            .contains("sliding_log")
    );
    let restarted = written["new_epochs"].as_array().expect("a list");
    assert!(
        restarted.contains(&json!({ "limit": "api", "plan": "pro" })),
        "{written}"
    );
}

#[tokio::test]
async fn if_match_and_version_mean_the_same() {
    let server = Server::with_catalogue().await;
    let send = |tag: &'static str, body: Value| {
        let server = &server;
        async move {
            let bearer = format!("Bearer {ROOT}");
            let headers = [("authorization", bearer.as_str()), ("if-match", tag)];
            server
                .send(Method::PATCH, PATH, &headers, body.to_string())
                .await
        }
    };
    send("\"0\"", json!({}))
        .await
        .problem(412, "version_mismatch");
    send("\"1\"", json!({ "version": 0 }))
        .await
        .problem(400, "malformed");
    send("1", json!({})).await.problem(400, "malformed");
    send("\"1\"", json!({ "version": 1 })).await.ok();
    send("*", json!({})).await.ok();
    let odd = server
        .root(Method::PATCH, PATH, &json!({ "version": "3" }))
        .await;
    odd.problem(422, "invalid");
    assert_eq!(odd.body["errors"][0]["path"], "version");
}

#[tokio::test]
async fn every_fault_is_named_and_nothing_is_stored() {
    let server = Server::with_catalogue().await;
    let before = server.get(PATH).await.body;
    let bad = json!({
        "limits": { "new": { "quota": 1, "period": "day" }, "bad": { "quota": -1, "colour": "red" } },
        "tenants": { "acme": { "anchor": "soon" } },
    });
    for method in [Method::PUT, Method::PATCH] {
        let refused = server.root(method, PATH, &bad).await;
        refused.problem(422, "invalid");
        let mut paths: Vec<&str> = refused.body["errors"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|error| error["path"].as_str())
            .collect();
        paths.sort_unstable();
        assert_eq!(
            paths,
            [
                "limits.bad.colour",
                "limits.bad.quota",
                "tenants.acme.anchor"
            ]
        );
    }
    let shared = json!({ "limits": { "api": { "algorithm": "leaky_bucket", "capacity": 1, "drain": 1, "per": "1s", "mode": "approximate" } } });
    let refused = server.root(Method::PATCH, PATH, &shared).await;
    refused.problem(422, "invalid");
    assert_eq!(refused.body["errors"][0]["path"], "limits.api.mode");
    assert!(
        refused.text.contains("leaky_bucket cannot be approximate"),
        "{refused:?}"
    );
    assert_eq!(server.get(PATH).await.body, before);
}

#[tokio::test]
async fn what_is_not_json_is_malformed() {
    let server = Server::with_catalogue().await;
    let bearer = format!("Bearer {ROOT}");
    let headers = [("authorization", bearer.as_str())];
    for text in [
        "",
        "{",
        "{\"limits\":{},\"limits\":{}}",
        "\u{feff}{}",
        "{\"limits\":{\"a\":{\"quota\":1e400}}}",
    ] {
        server
            .send(Method::PUT, PATH, &headers, text.to_owned())
            .await
            .problem(400, "malformed");
    }
    for text in ["[]", "1", "{\"colour\":1}"] {
        server
            .send(Method::PUT, PATH, &headers, text.to_owned())
            .await
            .problem(422, "invalid");
    }
}

#[tokio::test]
async fn changes_are_in_the_audit_with_their_author() {
    let server = Server::with_catalogue().await;
    let token = server.token(&json!({ "scope": "admin" })).await;
    server
        .as_token(&token, Method::PATCH, PATH, &json!({}))
        .await
        .ok();
    let audit = server.get("/admin/v1/audit").await.ok();
    let entries = audit["audit"].as_array().expect("a list");
    assert_eq!(entries.len(), 3);
    assert_eq!(entries[0]["author"], "config");
    assert_eq!(
        entries[0]["summary"],
        "replace the catalogue (2 limits, 2 plans, 2 tenants)"
    );
    assert_ne!(entries[2]["author"], "config");
    assert!(!audit.to_string().contains(&token), "no token in the audit");
}
