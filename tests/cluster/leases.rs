//! Leases of a strict concurrency limit over a change of leader.

use std::thread;
use std::time::Duration;
use std::time::Instant;

use serde_json::json;

use crate::counter::Counter;
use crate::counter::Hold;
use crate::group::Cluster;
use crate::server::wait_until;

const STANDSTILL: Duration = Duration::from_secs(10);

#[test]
fn no_lease_is_lost_while_the_leader_of_three_stands_still_and_nobody_gets_a_third() {
    no_lease_is_lost_while_the_leader_stands_still(3);
}

#[test]
fn no_lease_is_lost_while_the_leader_of_five_stands_still_and_nobody_gets_a_third() {
    no_lease_is_lost_while_the_leader_stands_still(5);
}

/// LDR-2.
fn no_lease_is_lost_while_the_leader_stands_still(regions: usize) {
    let cluster = Cluster::of(regions);
    cluster.limits(&json!({ "slots": { "algorithm": "concurrency", "quota": 2, "ttl": "5s", "mode": "strict" } }));
    let old = cluster.leader();
    let others = cluster.others(old);
    let holds: Vec<(usize, Hold)> = others[..2]
        .iter()
        .map(|region| {
            let held = Counter::new(&cluster[*region], "t", "slots").hold(1, "5s");
            (*region, Hold::granted(&held))
        })
        .collect();
    let third = |region: usize| {
        let answer = Counter::new(&cluster[region], "t", "slots").hold(1, "5s");
        assert_ne!(answer.status, 200, "{answer:?}");
        answer.status
    };
    assert_eq!(third(others[0]), 429);

    cluster.pause(old);
    let stopped = Instant::now();
    thread::scope(|scope| {
        for (region, hold) in &holds {
            let server = &cluster[*region];
            scope.spawn(move || {
                while stopped.elapsed() < STANDSTILL + Duration::from_secs(3) {
                    let asked = Instant::now();
                    let renewed = hold.renew(server, "5s");
                    assert!(
                        renewed.status == 200 || renewed.status == 503,
                        "no lease is lost: {renewed:?}"
                    );
                    if renewed.status == 503 {
                        println!("renewal unsure after {:?}", asked.elapsed());
                    }
                    thread::sleep(Duration::from_secs(1).saturating_sub(asked.elapsed()));
                }
            });
        }
        scope.spawn(|| {
            let mut refused = 0;
            while stopped.elapsed() < STANDSTILL {
                if third(others[0]) == 429 {
                    refused += 1;
                }
                thread::sleep(Duration::from_millis(200));
            }
            assert!(refused > 10, "a new leader refuses: {refused}");
            cluster.go_on(old);
            // Also by the one that has slept.
            let mut refused = 0;
            while stopped.elapsed() < STANDSTILL + Duration::from_secs(3) {
                for region in [old, others[1]] {
                    if third(region) == 429 {
                        refused += 1;
                    }
                }
                thread::sleep(Duration::from_millis(100));
            }
            assert!(refused > 10, "it is refused afterwards: {refused}");
        });
    });
    let (region, hold) = &holds[0];
    hold.release(&cluster[*region]).succeeded();
    wait_until("the free slot is given", crate::group::WITHIN, || {
        let answer = Counter::new(&cluster[old], "t", "slots").hold(1, "60s");
        answer.status == 200
    });
    assert_eq!(third(others[0]), 429);
}

/// CONC-1, over regions: nothing is renewed, so the slots are free again, and not before.
#[test]
fn a_lease_that_nobody_renews_ends_by_log_time_in_every_region() {
    let cluster = Cluster::set_up(&crate::group::Setup::of(3).with_manual_clocks());
    cluster.limits(&json!({ "slots": { "algorithm": "concurrency", "quota": 2, "ttl": "30s", "mode": "strict" } }));
    let at = |region: usize| Counter::new(&cluster[region], "t", "slots");
    let first = Hold::granted(&at(0).hold(1, ""));
    Hold::granted(&at(1).hold(1, ""));
    cluster.at(20_000);
    first.renew(&cluster[0], "30s").succeeded();
    cluster.at(29_900);
    let refused = at(2).hold(1, "");
    assert!(!refused.allowed(), "{refused:?}");
    assert_eq!(refused.retry_after(), Some(1), "{refused:?}");
    cluster.at(30_000);
    Hold::granted(&at(2).hold(1, ""));
    assert!(!at(1).hold(1, "").allowed());
    cluster.at(49_900);
    assert!(!at(0).hold(1, "").allowed());
    cluster.at(50_000);
    Hold::granted(&at(1).hold(1, ""));
    first.renew(&cluster[0], "30s").problem(410, "hold_expired");
}
