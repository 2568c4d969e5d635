//! The layer, before services of axum.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Extension;
use axum::Router;
use axum::routing::get;
use highwater::client::Charge;
use highwater::client::Check;
use highwater::client::CheckError;
use highwater::client::Client;
use highwater::client::OnFailure;
use highwater::client::QuotaLayer;
use highwater::client::Verdict;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;
use tower::Layer;
use tower::ServiceExt;

use crate::answer::Answer;
use crate::answer::QUOTA_EXCEEDED;
use crate::answer::REDUCED_CAPACITY;
use crate::calls::RUNTIME;
use crate::calls::new_client;
use crate::calls::send;
use crate::example;
use crate::server::Server;
use crate::server::Stop;
use crate::web::patient;
use crate::web::serve;

/// What a request to `service` is answered; `user` is its `x-user` header.
fn call(service: &str, path: &str, user: &str) -> Answer {
    let url = format!("{service}{path}");
    let headers = [("x-user", user)];
    let client = new_client();
    let call = send(&client, Method::GET, &url, &headers, &Value::Null);
    RUNTIME.block_on(call).expect("the service answers")
}

/// A service that counts its calls, behind a layer that asks for the limit `exports` by user.
fn counted(client: Client) -> (String, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let quota = QuotaLayer::new(client, |request| {
        let user = request.headers.get("x-user")?.to_str().ok()?;
        Some(Check::new("acme", Charge::on("exports").key(user)))
    });
    let answer = async move |verdict: Option<Extension<Verdict>>| {
        count.fetch_add(1, Ordering::Relaxed);
        match verdict {
            Some(Extension(verdict)) if verdict.is_local() => "local",
            Some(_) => "counted",
            None => "unasked",
        }
    };
    let router = Router::new().route("/", get(answer)).layer(quota);
    (serve(router).0, calls)
}

fn exports(server: &Server) {
    let limit = json!({ "algorithm": "fixed_window", "quota": 2, "window": "60s", "key": "user" });
    server.limits(&json!({ "exports": limit }));
}

#[test]
fn the_example_counts_refuses_and_outlives_its_server() {
    let mut server = Server::start();
    let limit = json!({ "algorithm": "fixed_window", "quota": 2, "window": "60s", "key": "user" });
    server.limits(&json!({ "regional-api": limit }));
    let service = example::router(server.check_url()).expect("a service");
    let (service, _) = serve(service);

    let first = call(&service, "/hello", "alice");
    assert_eq!(
        (first.status, first.text.as_str()),
        (200, "hello, 1 of 2 left")
    );
    let second = call(&service, "/hello", "alice");
    assert_eq!(
        (second.status, second.text.as_str()),
        (200, "hello, 0 of 2 left")
    );
    assert_eq!(second.rate_limit(), ("regional-api".to_owned(), 0, 60));
    let refused = call(&service, "/hello", "alice");
    assert_eq!(refused.status, 429);
    assert_eq!(call(&service, "/livez", "alice").text, "alive");
    assert_eq!(call(&service, "/hello", "bob").status, 200);

    server.stop(Stop::Kill);
    let alone = call(&service, "/hello", "alice");
    assert_eq!(
        (alone.status, alone.text.as_str()),
        (200, "hello, nobody counts")
    );
    assert_eq!(alone.header("ratelimit"), None);
}

/// Status, headers and body are those of the server.
#[test]
fn a_refusal_is_told_as_the_server_tells_it() {
    let server = Server::start();
    exports(&server);
    let (service, calls) = counted(patient(server.check_url(), OnFailure::Allow));
    for remaining in [1, 0] {
        let passed = call(&service, "/", "alice");
        assert_eq!((passed.status, passed.text.as_str()), (200, "counted"));
        assert_eq!(passed.rate_limit(), ("exports".to_owned(), remaining, 60));
        assert_eq!(
            passed.header("ratelimit-policy"),
            Some("\"exports\";q=2;w=60")
        );
        assert_eq!(passed.header("retry-after"), None);
    }
    server.at(18_500);
    let refused = call(&service, "/", "alice");
    let body = json!({ "tenant": "acme", "limit": "exports", "key": "alice" });
    let direct = server.check(&body);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("42"));
    assert_eq!(refused.body["type"], QUOTA_EXCEEDED);
    assert_eq!(refused.text, direct.text);
    for name in [
        "content-type",
        "cache-control",
        "retry-after",
        "ratelimit",
        "ratelimit-policy",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ] {
        assert!(direct.header(name).is_some(), "{name}");
        assert_eq!(refused.header(name), direct.header(name), "{name}");
    }
    // The service saw what passed, and nothing else.
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let unasked = {
        let client = new_client();
        let call = send(&client, Method::GET, &service, &[], &Value::Null);
        RUNTIME.block_on(call).expect("the service answers")
    };
    assert_eq!(unasked.text, "unasked");
    assert_eq!(unasked.header("ratelimit"), None);
}

#[test]
fn without_a_server_the_policy_decides() {
    let mut server = Server::start();
    exports(&server);
    let (open, _) = counted(patient(server.check_url(), OnFailure::Allow));
    let (closed, calls) = counted(patient(server.check_url(), OnFailure::Deny));
    server.stop(Stop::Kill);
    for _ in 0..5 {
        let passed = call(&open, "/", "alice");
        assert_eq!((passed.status, passed.text.as_str()), (200, "local"));
        assert_eq!(passed.header("ratelimit"), None);
    }
    let denied = call(&closed, "/", "alice");
    assert_eq!(denied.status, 503);
    assert_eq!(denied.header("retry-after"), Some("1"));
    assert_eq!(
        denied.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.body["type"], REDUCED_CAPACITY);
    assert_eq!(denied.body["degraded"], true);
    assert_eq!(denied.body["decision"], "deny");
    assert_eq!(denied.body["status"], 503);
    assert!(!denied.text.contains("127.0.0.1"), "{denied:?}");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[test]
fn a_wrong_question_is_a_fault_of_the_service() {
    let server = Server::start();
    server.limits(&json!({}));
    for policy in [OnFailure::Allow, OnFailure::Deny] {
        let (service, calls) = counted(patient(server.check_url(), policy));
        let fault = call(&service, "/", "alice");
        assert_eq!(fault.status, 500);
        assert_eq!(
            fault.header("content-type"),
            Some("application/problem+json")
        );
        assert!(!fault.text.contains("exports"), "{fault:?}");
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    }
}

/// Of any service whose body a text makes, without axum; what happened is in the extensions.
#[test]
fn services_of_other_kinds_are_asked_for_too() {
    let server = Server::start();
    exports(&server);
    let client = patient(server.check_url(), OnFailure::Deny);
    let quota = QuotaLayer::new(client, |request| {
        let key = request.uri.path();
        Some(Check::new("acme", Charge::on("exports").key(key).cost(2)))
    });
    let inner = tower::service_fn(async |_: axum::http::Request<u8>| {
        let mut response = axum::http::Response::new("inside".to_owned());
        let own = axum::http::HeaderValue::from_static("\"own\";r=1;t=1");
        response.headers_mut().insert("ratelimit", own);
        Ok::<_, std::convert::Infallible>(response)
    });
    let service = quota.layer(inner);
    let ask = || {
        let request = axum::http::Request::get("/a")
            .body(1_u8)
            .expect("a request");
        let answer = RUNTIME.block_on(service.clone().oneshot(request));
        answer.expect("infallible")
    };
    let passed = ask();
    assert_eq!(passed.body(), "inside");
    // What the service says of itself is not overwritten.
    assert_eq!(passed.headers()["ratelimit"], "\"own\";r=1;t=1");
    assert_eq!(passed.headers()["x-ratelimit-remaining"], "0");
    let verdict = passed.extensions().get::<Verdict>().expect("a verdict");
    assert!(verdict.is_allowed());
    let refused = ask();
    assert_eq!(refused.status(), 429);
    assert!(refused.body().contains("quota_exceeded"));
    let verdict = refused.extensions().get::<Verdict>().expect("a verdict");
    assert_eq!(verdict.retry_after(), Some(Duration::from_secs(60)));
    server.limits(&json!({}));
    let fault = ask();
    let error = fault.extensions().get::<CheckError>().expect("an error");
    assert!(error.to_string().contains("unknown_limit"), "{error}");
}
