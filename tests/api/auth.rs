//! Auth: who may check, read and change what.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::calls::RUNTIME;
use crate::calls::new_client;
use crate::calls::send;
use crate::counter::Counter;
use crate::server::ADMIN_TOKEN;
use crate::server::Server;

/// Creates a token and gives its secret.
pub fn create_token(server: &Server, request: &Value) -> String {
    let created = server.admin(Method::POST, "/admin/v1/tokens", request);
    created.succeeded();
    created.body["token"]
        .as_str()
        .unwrap_or_else(|| panic!("no token: {created:?}"))
        .to_owned()
}

struct Tokens {
    check: String,
    own: String,
    other: String,
    read: String,
}

fn guarded() -> (Server, Tokens) {
    let server = Server::with(&[("auth.check", "\"token\"")]);
    server.catalogue(&json!({
        "limits": { "fixed": { "algorithm": "fixed_window", "quota": 1000, "window": "1h" } },
        "plans": { "pro": {} },
        "tenants": { "t1": { "plan": "pro" }, "t2": {} },
    }));
    let tokens = Tokens {
        check: create_token(&server, &json!({ "scope": "check", "tenant": "t1" })),
        own: create_token(&server, &json!({ "scope": "tenant", "tenant": "t1" })),
        other: create_token(&server, &json!({ "scope": "tenant", "tenant": "t2" })),
        read: create_token(&server, &json!({ "scope": "read" })),
    };
    (server, tokens)
}

fn check_as(server: &Server, token: Option<&str>, tenant: &str) -> Answer {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> = bearer
        .iter()
        .map(|bearer| ("authorization", bearer.as_str()))
        .collect();
    server.post_with(
        "/v1/check",
        &headers,
        &Counter::new(server, tenant, "fixed").body(),
    )
}

/// What each of the case's attempts on tenant t1 is answered: read, put, delete, reset, list tenants.
fn attempts(server: &Server, token: Option<&str>) -> [u16; 5] {
    let limit = "/admin/v1/tenants/t1/limits/fixed";
    [
        server.admin_as(token, Method::GET, limit, &Value::Null),
        server.admin_as(token, Method::PUT, limit, &json!({ "quota": 900 })),
        server.admin_as(token, Method::DELETE, limit, &Value::Null),
        server.admin_as(token, Method::POST, &format!("{limit}/reset"), &json!({})),
        server.admin_as(token, Method::GET, "/admin/v1/tenants", &Value::Null),
    ]
    .map(|answer| answer.status)
}

/// AUTH-1.
#[test]
fn only_the_admin_of_a_tenant_changes_its_limits() {
    let (server, tokens) = guarded();
    assert_eq!(attempts(&server, None), [401; 5], "no token");
    assert_eq!(
        attempts(&server, Some("hw_wrong")),
        [401; 5],
        "a wrong token"
    );
    assert_eq!(
        attempts(&server, Some(&tokens.check)),
        [403; 5],
        "a token that may only check"
    );
    assert_eq!(
        attempts(&server, Some(&tokens.own)),
        [200, 200, 200, 403, 403],
        "the tenant's admin, who cannot give its use back to itself"
    );
    let foreign = attempts(&server, Some(&tokens.other));
    assert!(
        foreign.iter().all(|status| matches!(status, 403 | 404)),
        "another tenant's admin: {foreign:?}"
    );
    assert_eq!(
        attempts(&server, Some(&tokens.read)),
        [200, 403, 403, 403, 200],
        "a token that may only read"
    );
    assert_eq!(attempts(&server, Some(ADMIN_TOKEN)), [200; 5], "root");
}

/// AUTH-1, checks.
#[test]
fn a_check_token_checks_for_its_tenant_only() {
    let (server, tokens) = guarded();
    assert_eq!(check_as(&server, None, "t1").status, 401);
    assert_eq!(check_as(&server, Some("hw_wrong"), "t1").status, 401);
    assert_eq!(check_as(&server, Some(&tokens.check), "t1").status, 200);
    let foreign = check_as(&server, Some(&tokens.check), "t2");
    let missing = check_as(&server, Some(&tokens.check), "t9");
    foreign.problem(403, "forbidden");
    missing.problem(403, "forbidden");
    assert_eq!(
        foreign.text.replace("t2", "t9"),
        missing.text,
        "whether a tenant is there is not told"
    );
    let every = create_token(&server, &json!({ "scope": "check" }));
    assert_eq!(
        [
            check_as(&server, Some(&every), "t1").status,
            check_as(&server, Some(&every), "t2").status
        ],
        [200; 2]
    );
    check_as(&server, Some(&tokens.read), "t1").problem(403, "forbidden");
}

/// AUTH-1: for the admin of t2, t1 looks like a tenant that is not there.
#[test]
fn another_tenant_looks_like_none_at_all() {
    let (server, tokens) = guarded();
    for (method, body) in [
        (Method::GET, Value::Null),
        (Method::PUT, json!({ "quota": 1 })),
        (Method::DELETE, Value::Null),
    ] {
        let ask = |tenant: &str| {
            let path = format!("/admin/v1/tenants/{tenant}/limits/fixed");
            server.admin_as(Some(&tokens.other), method.clone(), &path, &body)
        };
        let (there, missing) = (ask("t1"), ask("t9"));
        assert!(matches!(there.status, 403 | 404), "{there:?}");
        assert_eq!(there.status, missing.status, "{method}");
        assert_eq!(there.text.replace("t1", "t9"), missing.text, "{method}");
    }
}

/// AUTH-1: no tenant goes above the ceiling that root has set.
#[test]
fn a_tenant_cannot_raise_its_own_ceiling() {
    let (server, tokens) = guarded();
    let path = "/admin/v1/tenants/t1/limits/fixed";
    let quota = || {
        server
            .admin(Method::GET, "/v1/usage?tenant=t1&limit=fixed", &Value::Null)
            .quota()
    };
    server
        .admin_as(
            Some(&tokens.own),
            Method::PUT,
            path,
            &json!({ "quota": 1000 }),
        )
        .succeeded();
    server
        .admin_as(
            Some(&tokens.own),
            Method::PUT,
            path,
            &json!({ "quota": 10 }),
        )
        .succeeded();
    assert_eq!(quota(), 10);
    for raised in [
        json!({ "quota": 1001 }),
        json!({ "unlimited": true }),
        json!({ "enforce": false }),
        json!({ "algorithm": "fixed_window", "quota": 10, "window": "1s" }),
        json!({ "always_allow": ["k"] }),
    ] {
        let refused = server.admin_as(Some(&tokens.own), Method::PUT, path, &raised);
        assert!(matches!(refused.status, 403 | 422), "{raised}: {refused:?}");
        assert_eq!(quota(), 10, "{raised} changed nothing");
    }
    for (method, path, body) in [
        (
            Method::PUT,
            "/admin/v1/tenants/t1",
            json!({ "plan": "pro" }),
        ),
        (
            Method::PUT,
            "/admin/v1/limits/fixed",
            json!({ "algorithm": "fixed_window", "quota": 9, "window": "1h" }),
        ),
        (Method::PUT, "/admin/v1/catalogue", json!({})),
        (
            Method::POST,
            "/admin/v1/tokens",
            json!({ "scope": "admin" }),
        ),
    ] {
        server
            .admin_as(Some(&tokens.own), method, path, &body)
            .problem(403, "forbidden");
    }
}

/// AUTH-1: a thousand wrong tokens are answered late and alike, while the right one still works; no token is
/// ever written to the log.
#[test]
fn guessing_tokens_is_slow_and_leaves_no_trace_of_them() {
    let (server, tokens) = guarded();
    let url = format!("{}/admin/v1/limits", server.admin_url());
    let one = std::time::Instant::now();
    server
        .admin_as(
            Some("hw_guess"),
            Method::GET,
            "/admin/v1/limits",
            &Value::Null,
        )
        .problem(401, "unauthorized");
    assert!(
        one.elapsed() >= Duration::from_millis(50),
        "a delayed 401, not one after {:?}",
        one.elapsed()
    );
    let guessers: Vec<_> = (0..100)
        .map(|guesser| {
            let url = url.clone();
            RUNTIME.spawn(async move {
                let client = new_client();
                for guess in 0..10 {
                    let bearer = format!("Bearer hw_guess-{guesser}-{guess}");
                    let headers = [("authorization", bearer.as_str())];
                    let answer = send(&client, Method::GET, &url, &headers, &Value::Null)
                        .await
                        .expect("an answer");
                    answer.problem(401, "unauthorized");
                    assert!(answer.header("www-authenticate").is_some(), "{answer:?}");
                }
            })
        })
        .collect();
    assert_eq!(
        check_as(&server, Some(&tokens.check), "t1").status,
        200,
        "while they guess"
    );
    for guesser in guessers {
        RUNTIME.block_on(guesser).expect("every guess was refused");
    }
    let log = server.log();
    for secret in [
        &tokens.check,
        &tokens.own,
        &tokens.other,
        &tokens.read,
        &"hw_guess".to_owned(),
    ] {
        assert!(!log.contains(secret.as_str()), "a token in the log");
    }
}

/// A token is shown once, listed without its secret, ends at its time, and works no more once revoked.
#[test]
fn tokens_are_shown_once_and_can_end() {
    let (server, _) = guarded();
    let request = json!({ "scope": "check", "tenant": "t1", "expires_at": "2035-01-01T01:00:00Z" });
    let created = server.admin(Method::POST, "/admin/v1/tokens", &request);
    created.succeeded();
    let secret = created.body["token"].as_str().expect("a token").to_owned();
    let id = created.body["id"].as_str().expect("an id").to_owned();
    let listed = server.admin(Method::GET, "/admin/v1/tokens", &Value::Null);
    assert!(
        listed.text.contains(&id) && !listed.text.contains(&secret),
        "{listed:?}"
    );
    assert_eq!(check_as(&server, Some(&secret), "t1").status, 200);
    server.at(3_600_000 - 1);
    assert_eq!(check_as(&server, Some(&secret), "t1").status, 200);
    server.at(3_600_000);
    assert_eq!(
        check_as(&server, Some(&secret), "t1").status,
        401,
        "expired"
    );

    let created = server.admin(
        Method::POST,
        "/admin/v1/tokens",
        &json!({ "scope": "read" }),
    );
    let (secret, id) = (
        created.body["token"].as_str().expect("a token"),
        created.body["id"].as_str().expect("an id"),
    );
    server
        .admin_as(Some(secret), Method::GET, "/admin/v1/limits", &Value::Null)
        .succeeded();
    server
        .admin(
            Method::DELETE,
            &format!("/admin/v1/tokens/{id}"),
            &Value::Null,
        )
        .succeeded();
    assert_eq!(
        server
            .admin_as(Some(secret), Method::GET, "/admin/v1/limits", &Value::Null)
            .status,
        401
    );
    server
        .admin(
            Method::DELETE,
            &format!("/admin/v1/tokens/{id}"),
            &Value::Null,
        )
        .problem(404, "not_found");
    for odd in [
        json!({}),
        json!({ "scope": "root" }),
        json!({ "scope": "tenant" }),
        json!({ "scope": "read", "tenat": "t" }),
    ] {
        let refused = server.admin(Method::POST, "/admin/v1/tokens", &odd);
        assert!(matches!(refused.status, 400 | 422), "{odd}: {refused:?}");
    }
}
