//! Memory, Admin: what has ended leaves memory and disk, and what has not ended stays.

use std::time::Duration;

use rusqlite::Connection;
use rusqlite::OpenFlags;
use serde_json::Value;
use serde_json::json;

use crate::counter::Counter;
use crate::server::Server;
use crate::server::Stop;
use crate::server::wait_until;

const SWEPT_WITHIN: Duration = Duration::from_secs(30);
const HOUR: i64 = 3_600_000;

/// ADM-3 (c): 1000 keys on a 60 s limit, then no traffic for five minutes. Kept with the answer or soon after.
#[test]
fn counters_of_ended_windows_leave_memory_and_disk() {
    for durability in ["async", "sync"] {
        let server = Server::start();
        server.limits(&json!({
            "fixed": {
                "algorithm": "fixed_window", "quota": 5, "window": "60s", "key": "user",
                "durability": durability,
            },
        }));
        charge(&server, "fixed", 1000);
        assert!(server.metric("highwater_live_counters", &[]) >= 1000.0);
        wait_until("the counters are on disk", SWEPT_WITHIN, || {
            stored(&server, "counters.db", "counters") >= 1000
                || stored(&server, "counters.db", "journal") >= 1
        });
        server.at(300_000);
        wait_until("the counters have left memory", SWEPT_WITHIN, || {
            server.metric("highwater_live_counters", &[]) < 1.0
        });
        wait_until("the counters have left the disk", SWEPT_WITHIN, || {
            stored(&server, "counters.db", "counters") == 0
                && stored(&server, "counters.db", "journal") == 0
                && stored(&server, "log.db", "sync") == 0
        });
    }
}

/// Every algorithm's state ends by itself, and not before it is of no use to any decision.
#[test]
fn the_state_of_every_algorithm_ends() {
    let mut server = Server::starting_soon();
    server.limits(&json!({
        "fixed": { "algorithm": "fixed_window", "quota": 5, "window": "60s", "key": "user" },
        "calendar": { "algorithm": "calendar_window", "quota": 5, "period": "hour", "key": "user" },
        "sliding": { "algorithm": "sliding_window", "quota": 5, "window": "60s", "key": "user" },
        "log": { "algorithm": "sliding_log", "quota": 5, "window": "60s", "key": "user" },
        "bucket": { "algorithm": "token_bucket", "capacity": 5, "refill": 1, "per": "60s", "key": "user" },
        "leaky": { "algorithm": "leaky_bucket", "capacity": 5, "drain": 1, "per": "60s", "key": "user" },
    }));
    let limits = ["fixed", "calendar", "sliding", "log", "bucket", "leaky"];
    for limit in limits {
        charge(&server, limit, 20);
    }
    server.restart(Stop::Terminate);
    for limit in limits {
        assert_eq!(
            Counter::keyed(&server, "t", limit, "0").used(),
            1,
            "{limit}"
        );
    }
    assert!(
        server.metric("highwater_live_counters", &[]) >= 120.0,
        "still of use"
    );
    server.at(3 * HOUR);
    wait_until("all is forgotten", SWEPT_WITHIN, || {
        server.metric("highwater_live_counters", &[]) < 1.0
            && stored(&server, "counters.db", "counters") == 0
            && stored(&server, "counters.db", "journal") == 0
    });
}

/// Holds that ended and answers past their retention are forgotten.
#[test]
fn ended_holds_and_old_answers_leave_memory_and_disk() {
    let server = Server::with(&[("idempotency.retention", "\"2h\"")]);
    server.limits(&json!({
        "sockets": { "algorithm": "concurrency", "quota": 100, "ttl": "30s", "durability": "sync" },
        "fixed": { "algorithm": "fixed_window", "quota": 100, "window": "60s" },
    }));
    let sockets = Counter::new(&server, "t", "sockets");
    for _ in 0..50 {
        assert!(sockets.hold(1, "").allowed());
    }
    let fixed = Counter::new(&server, "t", "fixed");
    for key in 0..50 {
        assert!(fixed.take_once(&key.to_string(), 1).allowed());
    }
    assert!((server.metric("highwater_open_holds", &[]) - 50.0).abs() < 0.5);
    assert!((server.metric("highwater_idempotency_keys", &[]) - 50.0).abs() < 0.5);
    assert_eq!(
        stored(&server, "log.db", "answers"),
        50,
        "on disk before they were given"
    );
    server.at(2 * HOUR - 1);
    assert_eq!(fixed.take_once("7", 1).status, 200);
    assert_eq!(fixed.used(), 0, "that was a repeat");
    server.at(2 * HOUR);
    for metric in ["highwater_open_holds", "highwater_idempotency_keys"] {
        wait_until(metric, SWEPT_WITHIN, || server.metric(metric, &[]) < 1.0);
    }
    // The disk follows ten seconds later, so that a small step of the clock brings nothing back.
    server.at(2 * HOUR + 10_001);
    for (file, table) in [
        ("counters.db", "holds"),
        ("log.db", "answers"),
        ("log.db", "sync"),
    ] {
        wait_until(table, SWEPT_WITHIN, || stored(&server, file, table) == 0);
    }
}

fn charge(server: &Server, limit: &str, keys: usize) {
    let keys: Vec<String> = (0..keys).map(|key| key.to_string()).collect();
    let calls: Vec<Value> = keys
        .iter()
        .map(|key| Counter::keyed(server, "t", limit, key).body())
        .collect();
    for result in server.batch(&calls) {
        assert_eq!(result["status"], 200, "{result}");
    }
}

/// Rows of one table, read beside the running server.
fn stored(server: &Server, file: &str, table: &str) -> u64 {
    let path = server.data_dir().join(file);
    let reader =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("opened");
    reader.busy_timeout(Duration::from_secs(5)).expect("set");
    let count = format!("SELECT count(*) FROM {table}");
    reader
        .query_row(&count, [], |row| row.get(0))
        .expect("counted")
}
