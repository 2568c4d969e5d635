//! Holds on quotas: taken now, settled, renewed or given back later.

use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::counter::Hold;
use crate::server::REGION;
use crate::server::Server;

fn fixed() -> Server {
    let server = Server::start();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "60s" } }));
    server
}

/// Less than taken is given back.
#[test]
fn settling_below_what_was_taken_gives_the_rest_back() {
    let server = fixed();
    let counter = Counter::new(&server, "t", "fixed");
    let answer = counter.hold(8, "30s");
    let hold = Hold::granted(&answer);
    assert!(
        hold.0.starts_with(&format!("{REGION}.")),
        "an id names its region: {}",
        hold.0
    );
    assert!(
        hold.0[REGION.len() + 1..]
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit()),
        "{}",
        hold.0
    );
    assert_eq!(counter.used(), 8);
    hold.settle(&server, 3).succeeded();
    assert_eq!(counter.used(), 3);
}

/// More than taken is charged, past the quota if need be.
#[test]
fn settling_above_what_was_taken_charges_past_the_quota() {
    let server = fixed();
    let counter = Counter::new(&server, "t", "fixed");
    let hold = Hold::granted(&counter.hold(8, "30s"));
    hold.settle(&server, 15).succeeded();
    let look = counter.look();
    assert_eq!(
        (look.allowed(), look.used(), look.remaining()),
        (false, 15, 0),
        "{look:?}"
    );
    server.at(60_000);
    assert_eq!(counter.left(), 10, "the debt ends with its window");
}

/// The same settle again answers as the first time, a different one is told that it is too late.
#[test]
fn settling_twice_changes_nothing() {
    let server = fixed();
    let counter = Counter::new(&server, "t", "fixed");
    let hold = Hold::granted(&counter.hold(8, "30s"));
    let first = hold.settle(&server, 3);
    first.succeeded();
    let again = hold.settle(&server, 3);
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    hold.settle(&server, 4).problem(409, "hold_settled");
    hold.release(&server).problem(409, "hold_settled");
    hold.renew(&server, "30s").problem(409, "hold_settled");
    assert_eq!(counter.used(), 3);
}

/// Units go back to the window they came from, not to the one that runs when they come back.
#[test]
fn units_go_back_to_the_window_they_came_from() {
    let server = fixed();
    let counter = Counter::new(&server, "t", "fixed");
    server.at(50_000);
    let hold = Hold::granted(&counter.hold(8, "30s"));
    server.at(60_000);
    assert!(counter.take(9).allowed());
    hold.settle(&server, 2).succeeded();
    assert_eq!(counter.used(), 9, "the running window gets nothing back");

    let hold = Hold::granted(&counter.hold(1, "120s"));
    server.at(120_000);
    assert!(counter.take(4).allowed());
    hold.settle(&server, 5).succeeded();
    assert_eq!(counter.used(), 8, "four more are charged now");
}

/// A sliding log forgets the entry of the hold, not the oldest one.
#[test]
fn a_release_takes_its_own_entry_from_a_sliding_log() {
    let server = Server::start();
    server.limits(&json!({ "log": { "algorithm": "sliding_log", "quota": 2, "window": "60s" } }));
    let log = Counter::new(&server, "t", "log");
    assert!(log.take(1).allowed());
    server.at(30_000);
    let hold = Hold::granted(&log.hold(1, "60s"));
    server.at(40_000);
    assert!(!log.take(1).allowed());
    hold.release(&server).succeeded();
    assert!(log.take(1).allowed());
    server.at(60_000);
    assert_eq!(
        log.passes(2),
        1,
        "the entry of second 0 has left, that of second 40 has not"
    );
}

/// On a quota an expired hold stays charged in full.
#[test]
fn an_expired_hold_on_a_quota_stays_charged() {
    let server = fixed();
    let counter = Counter::new(&server, "t", "fixed");
    let hold = Hold::granted(&counter.hold(8, "10s"));
    server.at(9_999);
    hold.renew(&server, "20s").succeeded();
    server.at(29_998);
    assert_eq!(counter.used(), 8);
    server.at(29_999);
    hold.settle(&server, 1).problem(410, "hold_expired");
    hold.renew(&server, "20s").problem(410, "hold_expired");
    hold.release(&server).problem(410, "hold_expired");
    assert_eq!(counter.used(), 8);
}

/// A refused hold takes nothing and has no id.
#[test]
fn a_refused_hold_takes_nothing() {
    let server = fixed();
    let counter = Counter::new(&server, "t", "fixed");
    assert!(counter.take(5).allowed());
    let refused = counter.hold(6, "10s");
    assert!(!refused.allowed());
    assert_eq!(
        (refused.retry_after(), refused.used()),
        (Some(60), 5),
        "{refused:?}"
    );
    assert_eq!(refused.body["hold"], Value::Null, "{refused:?}");
}

/// A hold over several limits is settled limit by limit; unnamed ones keep what was taken.
#[test]
fn settling_names_the_limits_that_change() {
    let server = Server::start();
    server.limits(&json!({
        "calls": { "algorithm": "fixed_window", "quota": 10, "window": "60s" },
        "tokens": { "algorithm": "token_bucket", "capacity": 1000, "refill": 1000, "per": "60s", "key": "model" },
    }));
    let (calls, tokens) = (
        Counter::new(&server, "t", "calls"),
        Counter::keyed(&server, "t", "tokens", "m"),
    );
    let body = json!({ "tenant": "t", "checks": [
        { "limit": "calls" }, { "limit": "tokens", "key": "m", "cost": 600 },
    ] });
    let hold = Hold::granted(&server.post("/v1/holds", &body));
    assert_eq!((calls.used(), tokens.used()), (1, 600));
    hold.settle(&server, 5).problem_with_status(400);
    let settle = |checks: Value| {
        server.post(
            &format!("/v1/holds/{}/settle", hold.0),
            &json!({ "checks": checks }),
        )
    };
    settle(json!([{ "limit": "tokens", "key": "other", "cost": 1 }])).problem_with_status(400);
    settle(json!([{ "limit": "tokens", "key": "m", "cost": 150 }])).succeeded();
    assert_eq!((calls.used(), tokens.used()), (1, 150));
}

/// Ids that name nobody's hold, no hold at all, or a hold of another region.
#[test]
fn a_hold_that_is_not_here_is_told_apart() {
    let server = fixed();
    let unknown = Hold(format!("{REGION}.{}", "0".repeat(32)));
    unknown.settle(&server, 1).problem(404, "not_found");
    unknown.release(&server).problem(404, "not_found");
    for odd in ["x", REGION, "us-east-1.", "us-east-1.zz", "%00", "a.b.c"] {
        let answer = Hold(odd.to_owned()).settle(&server, 1);
        assert!(matches!(answer.status, 404 | 421), "{odd}: {answer:?}");
    }
    let elsewhere = Hold(format!("eu-west-1.{}", "0".repeat(32))).settle(&server, 1);
    elsewhere.problem(421, "misdirected");
    assert!(
        elsewhere.text.contains("eu-west-1"),
        "names the region: {elsewhere:?}"
    );
}

/// Holds live through a restart, clean or not.
#[test]
fn a_hold_survives_a_restart() {
    let mut server = Server::starting_soon();
    server.limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "60s", "durability": "sync" } }));
    let hold = Hold::granted(&Counter::new(&server, "t", "fixed").hold(8, "50s"));
    server.restart(crate::server::Stop::Kill);
    server.at(20_000);
    assert_eq!(Counter::new(&server, "t", "fixed").used(), 8);
    hold.settle(&server, 3).succeeded();
    assert_eq!(Counter::new(&server, "t", "fixed").used(), 3);
    server.restart(crate::server::Stop::Terminate);
    server.at(21_000);
    assert_eq!(Counter::new(&server, "t", "fixed").used(), 3);
    hold.settle(&server, 3).succeeded();
    hold.settle(&server, 2).problem(409, "hold_settled");
    assert_eq!(Counter::new(&server, "t", "fixed").used(), 3);
}
