//! Concurrency limit: slots are leases that end in time, and held is always the count of unexpired leases.

use serde_json::json;

use crate::auth::create_token;
use crate::counter::Counter;
use crate::counter::Hold;
use crate::server::Server;

/// CONC-1.
#[test]
fn a_holder_that_dies_gives_its_slot_back_on_time() {
    let server = Server::start();
    server.limits(&json!({ "sockets": { "algorithm": "concurrency", "quota": 2, "ttl": "30s" } }));
    let sockets = Counter::new(&server, "t", "sockets");
    let a = Hold::granted(&sockets.hold(1, ""));
    let _b = Hold::granted(&sockets.hold(1, ""));
    server.at(20_000);
    a.renew(&server, "30s").succeeded();
    let attempts = [
        (29_900, Some(100)),
        (30_000, None),
        (30_000, Some(20_000)),
        (49_900, Some(100)),
        (50_000, None),
        (50_000, Some(10_000)),
    ];
    for (at, wait_ms) in attempts {
        server.at(at);
        let answer = sockets.hold(1, "");
        assert_eq!(answer.allowed(), wait_ms.is_none(), "at {at}: {answer:?}");
        assert_eq!(
            answer.retry_after_ms(),
            wait_ms,
            "the soonest lease end, at {at}: {answer:?}"
        );
        assert_eq!(
            answer.retry_after(),
            wait_ms.map(|ms| ms.div_ceil(1000)),
            "at {at}: {answer:?}"
        );
        assert_eq!(answer.used(), 2, "held, at {at}");
    }
}

/// CONC-3.
#[test]
fn releasing_twice_and_renewing_too_late_change_nothing() {
    let server = Server::start();
    server.limits(&json!({ "sockets": { "algorithm": "concurrency", "quota": 2, "ttl": "30s" } }));
    let sockets = Counter::new(&server, "t", "sockets");
    let first = Hold::granted(&sockets.hold(1, ""));
    let second = Hold::granted(&sockets.hold(1, ""));
    let released = first.release(&server);
    released.succeeded();
    let again = first.release(&server);
    assert_eq!(
        (again.status, &again.body),
        (released.status, &released.body),
        "the same release answers the same"
    );
    assert_eq!(sockets.used(), 1);

    server.at(10_000);
    let _third = Hold::granted(&sockets.hold(1, ""));
    assert!(!sockets.hold(1, "").allowed(), "the fourth");

    server.at(30_000);
    assert_eq!(sockets.used(), 1, "the second has expired");
    let fifth = Hold::granted(&sockets.hold(1, ""));
    second.renew(&server, "30s").problem(410, "hold_expired");
    assert_eq!(sockets.used(), 2);
    second.release(&server).problem(410, "hold_expired");
    assert_eq!(sockets.used(), 2);

    fifth.release(&server).succeeded();
    assert_eq!(sockets.used(), 1);
}

/// CONC-3: a hold of another tenant is as good as none.
#[test]
fn another_tenant_cannot_touch_a_hold() {
    let server = Server::with(&[("auth.check", "\"token\"")]);
    server.limits(&json!({ "sockets": { "algorithm": "concurrency", "quota": 2, "ttl": "30s" } }));
    let owner = create_token(&server, &json!({ "scope": "check", "tenant": "t" }));
    let other = create_token(&server, &json!({ "scope": "check", "tenant": "u" }));
    let bearer = |token: &str| format!("Bearer {token}");
    let sockets = Counter::new(&server, "t", "sockets");
    let answer = server.post_with(
        "/v1/holds",
        &[("authorization", &bearer(&owner))],
        &sockets.body(),
    );
    let hold = Hold::granted(&answer);
    let foreign = hold.release_as(&server, Some(&other));
    foreign.problem(404, "not_found");
    let unknown = Hold(format!("{}.{}", crate::server::REGION, "0".repeat(32)))
        .release_as(&server, Some(&other));
    unknown.problem(404, "not_found");
    let foreign_renewal = server.post_with(
        &format!("/v1/holds/{}/renew", hold.0),
        &[("authorization", &bearer(&other))],
        &json!({ "ttl": "30s" }),
    );
    foreign_renewal.problem(404, "not_found");
    let again = server.post_with(
        "/v1/holds",
        &[("authorization", &bearer(&owner))],
        &sockets.body(),
    );
    assert_eq!(again.used(), 2, "the hold is intact: {again:?}");
    hold.release_as(&server, Some(&owner)).succeeded();
}

/// The lease length of a hold is the limit's unless it says another; at most a day.
#[test]
fn a_hold_may_choose_its_length() {
    let server = Server::start();
    server.limits(&json!({
        "sockets": { "algorithm": "concurrency", "quota": 1, "key": "user" },
    }));
    let default = Counter::keyed(&server, "t", "sockets", "default");
    let short = Counter::keyed(&server, "t", "sockets", "short");
    let long = Counter::keyed(&server, "t", "sockets", "long");
    assert!(default.hold(1, "").allowed());
    assert!(short.hold(1, "500ms").allowed());
    assert!(long.hold(1, "24h").allowed());
    for ttl in ["24h1ms", "86401s", "25h", "0s", "-1s", "soon", "1.5s"] {
        let refused = long.hold(1, ttl);
        assert!(matches!(refused.status, 400 | 422), "{ttl}: {refused:?}");
    }
    server.at(499);
    assert_eq!(
        [default, short, long].map(|counter| counter.used()),
        [1, 1, 1]
    );
    server.at(500);
    assert_eq!(
        [default, short, long].map(|counter| counter.used()),
        [1, 0, 1]
    );
    server.at(60_000);
    assert_eq!(
        [default, short, long].map(|counter| counter.used()),
        [0, 0, 1]
    );
    server.at(86_400_000);
    assert_eq!(long.used(), 0);
}

/// A plain check cannot take a slot, for it could never give it back; a look may.
#[test]
fn a_plain_check_of_a_concurrency_limit_is_refused() {
    let server = Server::start();
    server.limits(&json!({ "sockets": { "algorithm": "concurrency", "quota": 2, "ttl": "30s" } }));
    let sockets = Counter::new(&server, "t", "sockets");
    sockets.take(1).problem_with_status(400);
    let look = sockets.look();
    assert_eq!(
        (
            look.allowed(),
            look.used(),
            look.remaining(),
            look.reset_after_ms()
        ),
        (true, 0, 2, 0),
        "{look:?}"
    );
    assert!(sockets.hold(2, "").allowed());
    assert!(!sockets.look().allowed(), "nothing is left");
}

/// Several slots in one hold, and a hold over two limits: all or none.
#[test]
fn a_hold_takes_all_or_none() {
    let server = Server::start();
    server.limits(&json!({
        "sockets": { "algorithm": "concurrency", "quota": 3, "ttl": "30s" },
        "calls": { "algorithm": "fixed_window", "quota": 2, "window": "60s" },
    }));
    let (sockets, calls) = (
        Counter::new(&server, "t", "sockets"),
        Counter::new(&server, "t", "calls"),
    );
    let both = json!({ "tenant": "t", "checks": [{ "limit": "sockets", "cost": 2 }, { "limit": "calls", "cost": 1 }] });
    let hold = Hold::granted(&server.post("/v1/holds", &both));
    assert_eq!((sockets.used(), calls.used()), (2, 1));
    assert!(
        !server.post("/v1/holds", &both).allowed(),
        "one slot is left of two asked for"
    );
    assert_eq!((sockets.used(), calls.used()), (2, 1));
    hold.release(&server).succeeded();
    assert_eq!((sockets.used(), calls.used()), (0, 0));
}

/// A lower quota takes no slot from a holder; the surplus drains.
#[test]
fn lowering_the_quota_keeps_holders() {
    let server = Server::start();
    server.limits(&json!({ "sockets": { "algorithm": "concurrency", "quota": 3, "ttl": "30s" } }));
    let sockets = Counter::new(&server, "t", "sockets");
    let holds = [0; 3].map(|_| Hold::granted(&sockets.hold(1, "")));
    server.limits(&json!({ "sockets": { "algorithm": "concurrency", "quota": 1, "ttl": "30s" } }));
    let look = sockets.look();
    assert_eq!(
        (look.allowed(), look.used(), look.remaining()),
        (false, 3, 0),
        "{look:?}"
    );
    holds[0].release(&server).succeeded();
    holds[1].release(&server).succeeded();
    assert!(!sockets.hold(1, "").allowed());
    holds[2].release(&server).succeeded();
    assert!(sockets.hold(1, "").allowed());
}
