//! No server, a slow one, or something that is none: the policy decides, in time.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::http::StatusCode;
use axum::response::Redirect;
use axum::routing::post;
use futures_util::future::join_all;
use highwater::client::Charge;
use highwater::client::Check;
use highwater::client::Client;
use highwater::client::Failure;
use highwater::client::OnFailure;
use highwater::client::Verdict;
use serde_json::Value;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::calls::RUNTIME;
use crate::server::Server;
use crate::server::Stop;
use crate::web::PATIENCE;
use crate::web::accept;
use crate::web::patient;
use crate::web::serve;
use crate::web::timed;

const DEADLINE: Duration = Duration::from_millis(100);
/// What a busy machine may add to a deadline.
const LATE: Duration = Duration::from_secs(1);

fn check() -> Check {
    Check::new("acme", Charge::on("exports"))
}

fn yes() -> Value {
    json!({ "decision": "allow", "region": "us-east-1", "delay_ms": 0, "results": [] })
}

/// Asks with both policies; the failure that both verdicts tell of.
fn failure(server: &str) -> Failure {
    let verdict = |policy| {
        let client = patient(server, policy);
        let verdict = RUNTIME.block_on(client.check(&check()));
        verdict.expect("a verdict")
    };
    let (allowed, denied) = (verdict(OnFailure::Allow), verdict(OnFailure::Deny));
    assert_eq!((allowed.is_allowed(), denied.is_allowed()), (true, false));
    assert_eq!((allowed.status(), denied.status()), (200, 503));
    assert_eq!(allowed.retry_after(), None);
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
    for verdict in [&allowed, &denied] {
        assert!(verdict.is_local() && verdict.is_degraded());
        assert!(verdict.results().is_empty() && verdict.region().is_none());
        assert_eq!(verdict.rate_limit(), None);
    }
    let failure = allowed.failure().expect("a failure").clone();
    assert_eq!(
        std::mem::discriminant(&failure),
        std::mem::discriminant(denied.failure().expect("a failure"))
    );
    failure
}

/// Asks with a short deadline and holds it to it.
fn late(server: &str) -> Verdict {
    let builder = Client::builder(server).deadline(DEADLINE);
    let client = builder.on_failure(OnFailure::Deny).build().expect("built");
    let (verdict, took) = timed(client.check(&check()));
    let verdict = verdict.expect("a verdict");
    assert_eq!(verdict.failure(), Some(&Failure::Deadline(DEADLINE)));
    assert!(took >= DEADLINE && took < DEADLINE + LATE, "{took:?}");
    println!("a deadline of {DEADLINE:?} took {took:?}");
    verdict
}

#[test]
fn a_stopped_server_is_answered_by_policy_and_a_started_one_again_by_itself() {
    let mut server = Server::on_real_clock(&[]);
    let limit = json!({ "algorithm": "fixed_window", "quota": 1000, "window": "24h" });
    server.limits(&json!({ "exports": limit }));
    let url = server.check_url().to_owned();
    let client = patient(&url, OnFailure::Allow);
    let ask = || RUNTIME.block_on(client.check(&check())).expect("a verdict");
    assert!(!ask().is_local());
    server.stop(Stop::Terminate);
    // The connection that was kept open is closed, and no new one can be made.
    let verdict = ask();
    assert!(verdict.is_allowed() && verdict.is_local());
    assert!(matches!(failure(&url), Failure::Unreachable(_)));

    server.start_again();
    let url = server.check_url().to_owned();
    let client = patient(&url, OnFailure::Deny);
    let verdict = RUNTIME.block_on(client.check(&check()));
    assert!(!verdict.expect("a verdict").is_local());
}

/// Accepts and says nothing.
#[test]
fn the_deadline_holds_when_no_answer_comes() {
    let server = accept(|mut stream: TcpStream| async move {
        let mut request = [0; 1024];
        while matches!(stream.read(&mut request).await, Ok(read) if read > 0) {}
    });
    assert!(!late(&server).is_allowed());
}

/// Every piece comes soon, the whole never.
#[test]
fn the_deadline_holds_when_an_answer_drips() {
    let server = accept(|mut stream: TcpStream| async move {
        let asked = stream.read(&mut [0; 1024]).await;
        assert!(asked.is_ok_and(|read| read > 0), "a question first");
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";
        let mut sent = stream.write_all(head).await;
        while sent.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            sent = stream.write_all(b" ").await;
        }
    });
    late(&server);
}

#[test]
fn the_deadline_holds_while_waiting_for_a_turn() {
    let server = accept(|mut stream: TcpStream| async move {
        let mut request = [0; 1024];
        while matches!(stream.read(&mut request).await, Ok(read) if read > 0) {}
    });
    let builder = Client::builder(server).deadline(DEADLINE);
    let client = builder.connections_max(1).build().expect("a client");
    let check = check();
    let (verdicts, took) = timed(join_all((0..8).map(|_| client.check(&check))));
    assert!(took >= DEADLINE && took < DEADLINE + LATE, "{took:?}");
    for verdict in verdicts {
        let verdict = verdict.expect("a verdict");
        assert_eq!(verdict.failure(), Some(&Failure::Deadline(DEADLINE)));
    }
}

#[test]
fn what_is_no_answer_of_a_server_is_a_failure() {
    let route = |answer| serve(Router::new().route("/v1/check", answer)).0;
    let closing = accept(|stream: TcpStream| async move { drop(stream) });
    assert!(matches!(failure(&closing), Failure::Unreachable(_)));
    let endless = route(post(|| async { "x".repeat(300 * 1024) }));
    let Failure::Unreadable(why) = failure(&endless) else {
        panic!("too long");
    };
    assert!(why.contains("262144 bytes"), "{why}");
    let page = route(post(|| async { "<html>" }));
    assert!(matches!(failure(&page), Failure::Unreadable(_)));
    let contradiction = route(post(|| async {
        (StatusCode::TOO_MANY_REQUESTS, Json(yes()))
    }));
    assert!(matches!(failure(&contradiction), Failure::Unreadable(_)));
    for status in [429, 500, 502, 503, 504] {
        let status = StatusCode::from_u16(status).expect("a status");
        let proxy = route(post(move || async move { status }));
        assert_eq!(failure(&proxy), Failure::Status(status.as_u16()));
    }
    // Whoever sends elsewhere is not followed.
    let elsewhere = route(post(|| async { Json(yes()) }));
    let redirecting = route(post(move || {
        let target = format!("{elsewhere}/v1/check");
        async move { Redirect::temporary(&target) }
    }));
    assert_eq!(failure(&redirecting), Failure::Status(307));
}

#[test]
fn connections_are_kept_and_bounded() {
    const CONNECTIONS: usize = 4;
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counting = {
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        post(move || {
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            async move {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Json(yes())
            }
        })
    };
    let (url, accepted) = serve(Router::new().route("/v1/check", counting));
    let builder = Client::builder(url).deadline(PATIENCE);
    let builder = builder.on_failure(OnFailure::Deny);
    let client = builder.connections_max(CONNECTIONS).build().expect("built");
    let check = check();
    let ask = async || client.check(&check).await.expect("a verdict").is_allowed();

    for _ in 0..20 {
        assert!(RUNTIME.block_on(ask()));
    }
    // Few more than one: a question may follow before the answered connection is back in the pool.
    let alone = accepted.load(Ordering::Relaxed);
    assert!(alone <= 5, "{alone} connections for 20 checks");
    let verdicts = RUNTIME.block_on(join_all((0..100).map(|_| ask())));
    assert!(verdicts.iter().all(|allowed| *allowed));
    assert_eq!(most.load(Ordering::SeqCst), CONNECTIONS);
    let together = accepted.load(Ordering::Relaxed) - alone;
    assert!(together <= 25, "{together} connections for 100 checks");
    println!("{alone} connections for 20 checks in turn, {together} for 100 at once");
}
