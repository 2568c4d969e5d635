//! Concurrency that regions share, when a region goes.

use std::time::Duration;
use std::time::Instant;

use serde_json::json;

use crate::approximate::cluster_with;
use crate::approximate::is_degraded;
use crate::approximate::of;
use crate::approximate::wait_agreed;
use crate::approximate::wait_in_touch;
use crate::counter::Hold;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::server::wait_until;

/// What a dead region held is free when its leases end, at most an eighth of the limit's ttl late, and not before.
#[test]
fn slots_of_a_dead_region_free_themselves_when_their_leases_end() {
    let ttl = Duration::from_secs(8);
    let mut cluster = cluster_with(
        &Setup::of(3),
        json!({ "slots": { "algorithm": "concurrency", "quota": 10, "ttl": "8s", "mode": "approximate", "on_partition": "open" } }),
    );
    let which = of("slots");
    let held = Instant::now();
    for _ in 0..6 {
        Hold::granted(&which.at(&cluster, 0).hold(1, ""));
    }
    let kept = Hold::granted(&which.at(&cluster, 1).hold(1, ""));
    kept.renew(&cluster[1], "60s").succeeded();
    wait_agreed(&cluster, which, &[6, 1]);
    cluster.kill(0);
    let mut seen = 0;
    while held.elapsed() < ttl - Duration::from_secs(1) {
        assert_eq!(which.at(&cluster, 2).left(), 3, "they are held still");
        seen += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(seen > 0, "the machine is too slow to see it");
    wait_until("the dead region's slots are free", WITHIN, || {
        which.at(&cluster, 2).left() == 9
    });
    assert!(held.elapsed() >= ttl, "not before: {:?}", held.elapsed());
    let freed_late = held.elapsed().saturating_sub(ttl);
    println!("free {freed_late:?} after their end");
    // Back again it holds nothing, and the others' leases are as they were.
    cluster.start_again(0);
    wait_until("it is back", WITHIN, || !is_degraded(&cluster, 0));
    wait_in_touch(&cluster);
    wait_agreed(&cluster, which, &[0, 1]);
}

/// Leases outlive a killed process on its disk; peers count them once, whoever told of them.
#[test]
fn leases_of_a_region_that_comes_back_are_counted_once() {
    let mut cluster = cluster_with(
        &Setup::of(3),
        json!({ "slots": { "algorithm": "concurrency", "quota": 10, "ttl": "60s", "mode": "approximate", "durability": "sync", "on_partition": "open" } }),
    );
    let which = of("slots");
    let holds: Vec<Hold> = (0..4)
        .map(|_| Hold::granted(&which.at(&cluster, 0).hold(1, "")))
        .collect();
    wait_agreed(&cluster, which, &[4]);
    for _ in 0..2 {
        cluster.kill(0);
        cluster.start_again(0);
    }
    // At once, whatever the peers have handed back by then.
    let fifth = Hold::granted(&which.at(&cluster, 0).hold(1, ""));
    wait_in_touch(&cluster);
    wait_agreed(&cluster, which, &[5]);
    for hold in &holds {
        hold.release(&cluster[0]).succeeded();
    }
    wait_agreed(&cluster, which, &[1]);
    fifth.release(&cluster[0]).succeeded();
    wait_agreed(&cluster, which, &[]);
}
