//! What a real server's answers become.

use std::time::Duration;

use highwater::client::Action;
use highwater::client::Charge;
use highwater::client::Check;
use highwater::client::CheckError;
use highwater::client::Client;
use highwater::client::DecidedBy;
use highwater::client::Decision;
use highwater::client::OnFailure;
use highwater::client::Reason;
use highwater::client::Verdict;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::calls::RUNTIME;
use crate::counter::Counter;
use crate::server::Server;
use crate::server::wait_until;
use crate::web::PATIENCE;
use crate::web::patient;

fn window(quota: u64) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": "60s" })
}

fn with(mut limit: Value, fields: &Value) -> Value {
    let fields = fields.as_object().expect("fields");
    let limit_fields = limit.as_object_mut().expect("a limit");
    limit_fields.extend(fields.clone());
    limit
}

/// A client whose policy is the opposite of what a test waits for, so that a policy never passes for an answer.
fn ask(server: &Server, policy: OnFailure, check: &Check) -> Result<Verdict, CheckError> {
    let client = patient(server.check_url(), policy);
    RUNTIME.block_on(client.check(check))
}

fn allowed(server: &Server, check: &Check) -> Verdict {
    let verdict = ask(server, OnFailure::Deny, check).expect("a verdict");
    assert!(verdict.is_allowed() && !verdict.is_local(), "{verdict:?}");
    assert_eq!((verdict.status(), verdict.retry_after()), (200, None));
    verdict
}

fn denied(server: &Server, check: &Check) -> Verdict {
    let verdict = ask(server, OnFailure::Allow, check).expect("a verdict");
    assert!(!verdict.is_allowed() && !verdict.is_local(), "{verdict:?}");
    verdict
}

fn mistake(server: &Server, check: &Check) -> (u16, Option<String>) {
    let mut told = None;
    for policy in [OnFailure::Allow, OnFailure::Deny] {
        let error = ask(server, policy, check).expect_err("a mistake");
        let CheckError::Refused { status, code, .. } = error else {
            panic!("{error:?}");
        };
        let this = (status, code);
        assert!(told.is_none_or(|told| told == this), "{this:?}");
        told = Some(this);
    }
    told.expect("two policies")
}

#[test]
fn a_limit_passes_its_quota_and_says_when_to_come_back() {
    let server = Server::start();
    server.limits(&json!({ "exports": with(window(2), &json!({ "key": "user" })) }));
    let check = Check::new("acme", Charge::on("exports").key("alice"));

    let first = allowed(&server, &check);
    assert_eq!(first.region(), Some("us-east-1"));
    assert!(!first.is_degraded());
    let [result] = first.results() else {
        panic!("one result: {first:?}");
    };
    assert_eq!(
        (result.limit.as_str(), result.key.as_deref()),
        ("exports", Some("alice"))
    );
    assert_eq!(
        (result.quota, result.used, result.remaining),
        (Some(2), 1, Some(1))
    );
    assert_eq!(result.decision, Decision::Allow);
    assert_eq!(result.decided_by, Some(DecidedBy::Local));
    assert_eq!(result.reset_after, Duration::from_secs(60));
    let stands = first.rate_limit().expect("headers");
    assert_eq!(stands.limit, "exports");
    assert_eq!((stands.quota, stands.remaining), (2, 1));
    assert_eq!(stands.reset_after, Duration::from_secs(60));
    assert_eq!(stands.window, Some(Duration::from_secs(60)));

    allowed(&server, &check);
    server.at(18_500);
    let refused = denied(&server, &check);
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.results()[0].reason, Some(Reason::QuotaExceeded));
    let wait = refused.retry_after().expect("waiting helps");
    assert_eq!(wait, Duration::from_millis(41_500));

    // Coming back exactly then works.
    server.advance(41_500);
    allowed(&server, &check);
    let never = denied(
        &server,
        &Check::new("acme", Charge::on("exports").key("bob").cost(3)),
    );
    assert_eq!(never.retry_after(), None);
    assert_eq!(never.results()[0].reason, Some(Reason::CostExceedsQuota));
}

#[test]
fn several_limits_are_charged_all_or_none() {
    let server = Server::start();
    server.limits(&json!({ "wide": window(10), "narrow": window(2) }));
    let wide = Counter::new(&server, "acme", "wide");
    let check = |cost| {
        Check::new(
            "acme",
            [Charge::on("wide").cost(cost), Charge::on("narrow")],
        )
    };
    assert_eq!(allowed(&server, &check(1)).results().len(), 2);
    assert_eq!(
        allowed(&server, &check(0)).rate_limit().map(|l| l.limit),
        Some("narrow".to_owned())
    );
    let refused = denied(&server, &check(1));
    assert_eq!(refused.results()[0].decision, Decision::Allow);
    assert_eq!(refused.results()[1].decision, Decision::Deny);
    assert_eq!(wide.used(), 1);
}

#[test]
fn an_action_charges_the_limits_that_it_has_keys_for() {
    let server = Server::start();
    let of_api = json!({ "actions": ["api"] });
    server.limits(&json!({
        "account": with(window(5), &of_api),
        "by-user": with(with(window(1), &of_api), &json!({ "key": "user" })),
        "other": window(0),
    }));
    let alice = Check::new("acme", Action::named("api").key("user", "alice"));
    assert_eq!(allowed(&server, &alice).results().len(), 2);
    denied(&server, &alice);
    let costly = Check::new("acme", Action::named("api").cost(4))
        .endpoint("GET /")
        .ip("203.0.113.9")
        .max_wait(Duration::ZERO);
    assert_eq!(allowed(&server, &costly).results().len(), 1);
    let nothing = Check::new("acme", Action::named("unheard-of"));
    let verdict = allowed(&server, &nothing);
    assert!(verdict.results().is_empty());
    assert_eq!(verdict.rate_limit(), None);
}

#[test]
fn an_idempotent_question_is_charged_once() {
    let server = Server::start();
    server.limits(&json!({ "exports": window(10) }));
    let check = Check::new("acme", Charge::on("exports")).idempotency_key("order \"7\" \\ 1");
    allowed(&server, &check);
    allowed(&server, &check);
    assert_eq!(Counter::new(&server, "acme", "exports").used(), 1);
    let other =
        Check::new("acme", Charge::on("exports").cost(2)).idempotency_key("order \"7\" \\ 1");
    let wanted = (422, Some("idempotency_mismatch".to_owned()));
    assert_eq!(mistake(&server, &other), wanted);
    let wrong = Check::new("acme", Charge::on("exports")).idempotency_key("");
    let error = ask(&server, OnFailure::Allow, &wrong).expect_err("a mistake");
    assert_eq!(error, CheckError::IdempotencyKey);
}

#[test]
fn a_wrong_question_is_an_error_and_never_the_policy() {
    let server = Server::start();
    server.catalogue(&json!({
        "plans": { "all": {} }, "tenants": { "acme": { "plan": "all" } },
        "limits": { "a": window(10), "keyed": with(window(10), &json!({ "key": "user" })) },
    }));
    let twice = [Charge::on("a"), Charge::on("a")];
    let long = Charge::on("keyed").key("x".repeat(70_000));
    let cases = [
        (Check::new("acme", Charge::on("b")), 404, "unknown_limit"),
        (Check::new("other", Charge::on("a")), 404, "unknown_tenant"),
        (Check::new("acme", Charge::on("keyed")), 400, "key_required"),
        (
            Check::new("acme", Charge::on("a").key("k")),
            400,
            "key_unexpected",
        ),
        (Check::new("acme", twice), 400, "duplicate_check"),
        (Check::new("acme", Vec::new()), 400, "malformed"),
        (
            Check::new("acme", Charge::on("a").cost(u64::MAX)),
            400,
            "malformed",
        ),
        (Check::new("acme", long), 413, "body_too_large"),
    ];
    for (check, status, code) in cases {
        let wanted = (status, Some(code.to_owned()));
        assert_eq!(mistake(&server, &check), wanted, "{code}");
    }
    assert_eq!(Counter::new(&server, "acme", "a").used(), 0);
}

#[test]
fn the_token_is_shown_and_a_wrong_one_is_a_mistake() {
    let server = Server::with(&[("auth.check", "\"token\"")]);
    server.limits(&json!({ "a": window(10) }));
    let created = server.admin(
        Method::POST,
        "/admin/v1/tokens",
        &json!({ "scope": "check" }),
    );
    created.succeeded();
    let token = created.body["token"].as_str().expect("a token");
    let check = Check::new("acme", Charge::on("a"));
    let with_token = |token: &str| {
        let builder = Client::builder(server.check_url()).deadline(PATIENCE);
        let client = builder.token(token).build().expect("a client");
        RUNTIME.block_on(client.check(&check))
    };
    assert!(with_token(token).expect("a verdict").is_allowed());
    assert_eq!(
        mistake(&server, &check),
        (401, Some("unauthorized".to_owned()))
    );
    let wrong = with_token("wrong").expect_err("a mistake");
    assert!(
        matches!(wrong, CheckError::Refused { status: 401, .. }),
        "{wrong:?}"
    );
}

/// A limit's own `on_unavailable` stands over the client's policy, and is told as what it is.
#[test]
fn what_a_server_cannot_decide_follows_the_limit() {
    let server = Server::start();
    server.limits(&json!({
        "closed": with(window(10), &json!({ "on_unavailable": "closed" })),
        "open": with(window(10), &json!({ "on_unavailable": "open" })),
    }));
    server.inject("store_errors");
    let closed = Counter::new(&server, "acme", "closed");
    wait_until("the store is known to fail", PATIENCE, || {
        closed.take(1).status == 503
    });
    let verdict = denied(&server, &Check::new("acme", Charge::on("closed")));
    assert_eq!(verdict.status(), 503);
    assert_eq!(verdict.results()[0].reason, Some(Reason::Unavailable));
    assert!(verdict.is_degraded());
    assert_eq!(verdict.results()[0].decided_by, Some(DecidedBy::Fallback));
    assert!(verdict.retry_after().is_some(), "{verdict:?}");
    let open = allowed(&server, &Check::new("acme", Charge::on("open")));
    assert!(open.is_degraded());
    assert_eq!(open.results()[0].decided_by, Some(DecidedBy::Fallback));
}
