//! Restart: acknowledged use survives, and windows, buckets, logs and leases keep their own time.
//!
//! Limits are `sync` where the server is killed; `async` ones are restarted cleanly. Time zero is a few minutes
//! ahead of the real time, for the manual clock starts at the real time again.

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::calls::RUNTIME;
use crate::calls::new_client;
use crate::calls::send;
use crate::counter::Counter;
use crate::server::Server;
use crate::server::Stop;

const CALLERS: u64 = 4;

/// RST-1 (a), with a `sync` limit: used ≥ acknowledged, and ≤ acknowledged + calls without an answer.
#[test]
fn acknowledged_charges_survive_kill_9() {
    let mut server = Server::starting_soon();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 100_000, "window": "1h", "durability": "sync" },
    }));
    let mut random = StdRng::seed_from_u64(1);
    let (mut acknowledged, mut unanswered) = (0, 0);
    for round in 0..3 {
        let body = Counter::new(&server, "t", "fixed").body();
        let url = format!("{}/v1/check", server.check_url());
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| RUNTIME.spawn(call_until_it_dies(url.clone(), body.clone())))
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(
            random.random_range(50..300),
        ));
        server.stop(Stop::Kill);
        for caller in callers {
            let (answered, cut_off) = RUNTIME.block_on(caller).expect("the caller ends");
            acknowledged += answered;
            unanswered += cut_off;
        }
        server.start_again();
        let used = Counter::new(&server, "t", "fixed").used();
        assert!(
            used >= acknowledged,
            "round {round}: {used} used of {acknowledged} acknowledged"
        );
        assert!(
            used <= acknowledged + unanswered,
            "round {round}: {used} used, {acknowledged} + {unanswered} sent"
        );
    }
    assert!(acknowledged > 0, "there was load");
}

/// Alone, a region has nobody to give its units back to but itself.
#[test]
fn no_unit_of_a_strict_limit_is_stranded_when_a_region_alone_ends_in_good_order() {
    let mut server = Server::starting_soon();
    server.limits(&json!({
        "paid": { "algorithm": "fixed_window", "quota": 100, "window": "1h", "mode": "strict" },
    }));
    for round in 0..3 {
        let paid = Counter::new(&server, "t", "paid");
        assert_eq!(paid.passes_once_decided(10), 10);
        server.restart(Stop::Terminate);
        let look = Counter::new(&server, "t", "paid").look();
        let used = 10 * (round + 1);
        assert_eq!((look.used(), look.remaining()), (used, 100 - used));
    }
    assert_eq!(
        Counter::new(&server, "t", "paid").passes_once_decided(100),
        70
    );
}

/// Calls until the connection breaks; how many were answered, and whether one was not.
async fn call_until_it_dies(url: String, body: Value) -> (u64, u64) {
    let client = new_client();
    let mut answered = 0;
    loop {
        match send(&client, Method::POST, &url, &[], &body).await {
            Ok(answer) => {
                assert!(answer.allowed(), "{answer:?}");
                answered += 1;
            }
            Err(error) => return (answered, u64::from(!error.is_connect())),
        }
    }
}

/// RST-3 (a).
#[test]
fn a_window_keeps_its_end_over_a_restart() {
    for (durability, how) in [("sync", Stop::Kill), ("async", Stop::Terminate)] {
        let mut server = Server::starting_soon();
        server.limits(&json!({
            "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "60s", "durability": durability },
        }));
        server.at(5000);
        assert_eq!(Counter::new(&server, "t", "fixed").passes(4), 4);
        server.at(20_000);
        assert_eq!(Counter::new(&server, "t", "fixed").passes(3), 3);
        server.at(21_000);
        server.restart(how);
        server.at(25_000);
        let look = Counter::new(&server, "t", "fixed").look();
        assert_eq!(
            (look.remaining(), look.reset_after_ms()),
            (3, 35_000),
            "{how:?}: {look:?}"
        );
        server.at(60_000);
        assert_eq!(Counter::new(&server, "t", "fixed").left(), 10, "{how:?}");
    }
}

/// RST-3 (b).
#[test]
fn a_bucket_refills_while_the_server_is_down() {
    for (durability, how) in [("sync", Stop::Kill), ("async", Stop::Terminate)] {
        let mut server = Server::starting_soon();
        server.limits(&json!({
            "bucket": { "algorithm": "token_bucket", "capacity": 10, "refill": 1, "per": "1s", "durability": durability },
        }));
        assert!(Counter::new(&server, "t", "bucket").take(10).allowed());
        server.at(1000);
        server.restart(how);
        server.at(4000);
        assert_eq!(Counter::new(&server, "t", "bucket").left(), 4, "{how:?}");
        assert!(Counter::new(&server, "t", "bucket").take(4).allowed());
        server.restart(how);
        server.at(34_000);
        assert_eq!(Counter::new(&server, "t", "bucket").left(), 10, "{how:?}");
    }
}

/// The same of a leaky bucket and of a sliding window.
#[test]
fn the_other_kinds_with_memory_go_on_where_they_were() {
    for (durability, how) in [("sync", Stop::Kill), ("async", Stop::Terminate)] {
        let mut server = Server::starting_soon();
        server.limits(&json!({
            "leaky": { "algorithm": "leaky_bucket", "capacity": 10, "drain": 1, "per": "1s", "durability": durability },
            "sliding": { "algorithm": "sliding_window", "quota": 100, "window": "10s", "durability": durability },
            "day": { "algorithm": "calendar_window", "quota": 10, "period": "day", "durability": durability },
        }));
        let take = |server: &Server, limit: &str, cost: u64| {
            assert!(
                Counter::new(server, "t", limit).take(cost).allowed(),
                "{limit}"
            );
        };
        take(&server, "leaky", 10);
        server.at(5000);
        take(&server, "sliding", 50);
        take(&server, "day", 7);
        server.restart(how);
        server.at(10_100);
        take(&server, "sliding", 10);
        server.restart(how);
        server.at(11_000);
        assert_eq!(Counter::new(&server, "t", "sliding").left(), 45, "{how:?}");
        assert_eq!(Counter::new(&server, "t", "leaky").left(), 10, "{how:?}");
        assert_eq!(Counter::new(&server, "t", "day").left(), 3, "{how:?}");
    }
}

/// RST-3 (c).
#[test]
fn a_sliding_log_keeps_its_entries_times() {
    for (durability, how) in [("sync", Stop::Kill), ("async", Stop::Terminate)] {
        let mut server = Server::starting_soon();
        server.limits(&json!({
            "log": { "algorithm": "sliding_log", "quota": 2, "window": "60s", "durability": durability },
        }));
        assert!(Counter::new(&server, "t", "log").take(1).allowed());
        server.at(10_000);
        assert!(Counter::new(&server, "t", "log").take(1).allowed());
        server.at(20_000);
        server.restart(how);
        server.at(59_900);
        let refused = Counter::new(&server, "t", "log").take(1);
        assert_eq!(
            (refused.allowed(), refused.retry_after_ms()),
            (false, Some(100)),
            "{how:?}: {refused:?}"
        );
        server.at(60_000);
        assert_eq!(Counter::new(&server, "t", "log").passes(2), 1, "{how:?}");
    }
}

/// RST-3 (d).
#[test]
fn a_lease_ends_when_it_was_going_to() {
    for (durability, how) in [("sync", Stop::Kill), ("async", Stop::Terminate)] {
        let mut server = Server::starting_soon();
        server.limits(&json!({
            "sockets": { "algorithm": "concurrency", "quota": 1, "ttl": "30s", "durability": durability },
        }));
        assert!(Counter::new(&server, "t", "sockets").hold(1, "").allowed());
        server.at(10_000);
        server.restart(how);
        server.at(29_999);
        let refused = Counter::new(&server, "t", "sockets").hold(1, "");
        assert_eq!(
            (refused.allowed(), refused.retry_after_ms()),
            (false, Some(1)),
            "{how:?}: {refused:?}"
        );
        server.at(30_000);
        assert!(
            Counter::new(&server, "t", "sockets").hold(1, "").allowed(),
            "{how:?}: free at 30, not at 40"
        );
    }
}

/// Many restarts in a row, with a call each, lose nothing and double nothing.
#[test]
fn use_adds_up_over_many_restarts() {
    let mut server = Server::starting_soon();
    server.limits(&json!({
        "sync": { "algorithm": "fixed_window", "quota": 1000, "window": "1h", "durability": "sync" },
        "async": { "algorithm": "fixed_window", "quota": 1000, "window": "1h" },
    }));
    for round in 1..=6 {
        assert!(Counter::new(&server, "t", "sync").take(3).allowed());
        assert!(Counter::new(&server, "t", "async").take(5).allowed());
        server.restart(if round % 2 == 0 {
            Stop::Kill
        } else {
            Stop::Terminate
        });
        assert_eq!(Counter::new(&server, "t", "sync").used(), 3 * round);
        if round % 2 == 0 {
            // The kill may have come before the flush of the last charge, and only of that one.
            let used = Counter::new(&server, "t", "async").used();
            assert!(
                used == 5 * round || used == 5 * (round - 1),
                "{used} in round {round}"
            );
            let lost = 5 * round - used;
            assert!(lost == 0 || Counter::new(&server, "t", "async").take(lost).allowed());
        } else {
            assert_eq!(Counter::new(&server, "t", "async").used(), 5 * round);
        }
    }
}

/// The catalogue, its version and its tokens survive.
#[test]
fn acknowledged_admin_writes_survive_kill_9() {
    let mut server = Server::starting_soon();
    server
        .limits(&json!({ "fixed": { "algorithm": "fixed_window", "quota": 10, "window": "1h" } }));
    let token = crate::auth::create_token(&server, &json!({ "scope": "read" }));
    let raised = json!({ "algorithm": "fixed_window", "quota": 77, "window": "1h" });
    server
        .admin(Method::PUT, "/admin/v1/limits/fixed", &raised)
        .succeeded();
    let before = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
    before.succeeded();
    server.restart(Stop::Kill);
    let after = server.admin(Method::GET, "/admin/v1/catalogue", &Value::Null);
    assert_eq!(after.body, before.body);
    assert_eq!(Counter::new(&server, "t", "fixed").look().quota(), 77);
    server
        .admin_as(Some(&token), Method::GET, "/admin/v1/limits", &Value::Null)
        .succeeded();
}

/// A server that is told to stop answers what it has accepted, keeps it, and exits with 0.
#[test]
fn a_clean_stop_keeps_every_acknowledged_async_charge() {
    let mut server = Server::starting_soon();
    server.limits(
        &json!({ "fixed": { "algorithm": "fixed_window", "quota": 100_000, "window": "1h" } }),
    );
    let body = Counter::new(&server, "t", "fixed").body();
    let url = format!("{}/v1/check", server.check_url());
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| RUNTIME.spawn(call_until_it_dies(url.clone(), body.clone())))
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let status = server.stop(Stop::Terminate);
    assert!(status.success(), "{status}");
    let (mut acknowledged, mut unanswered) = (0, 0);
    for caller in callers {
        let (answered, cut_off) = RUNTIME.block_on(caller).expect("the caller ends");
        acknowledged += answered;
        unanswered += cut_off;
    }
    server.start_again();
    let used = Counter::new(&server, "t", "fixed").used();
    assert!(
        (acknowledged..=acknowledged + unanswered).contains(&used),
        "{used}, {acknowledged} + {unanswered}"
    );
}
