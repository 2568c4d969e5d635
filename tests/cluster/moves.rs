//! Planned moves: the leader ends in good order, a region gives its units back.

use serde_json::json;

use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::WITHIN;
use crate::load::spend_all;
use crate::load::wait_used;
use crate::restart::Callers;
use crate::server::wait_until;

/// The leader is stopped as for an upgrade, under steady load in the other regions. What they hold by then covers
/// the hand-over.
#[test]
fn no_check_fails_while_the_leader_ends_in_good_order_and_comes_back() {
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({ "paid": { "algorithm": "fixed_window", "quota": 1_000_000_000_000_u64, "window": LONG, "mode": "strict" } }));
    let body = json!({ "tenant": "t", "limit": "paid" });
    let leader = cluster.leader();
    let urls: Vec<String> = cluster
        .others(leader)
        .iter()
        .map(|region| cluster[*region].check_url().to_owned())
        .collect();
    let tally = Callers::while_running(&urls, &body, |callers| {
        wait_until("some pass", WITHIN, || callers.seen().allowed > 1000);
        cluster.terminate(leader);
        cluster.wait_for_another_leader(leader);
        cluster.start_again(leader);
        let before = callers.seen().allowed;
        wait_until("some pass", WITHIN, || {
            callers.seen().allowed > before + 500
        });
    });
    println!("{tally:?}");
    let failed = tally.refused + tally.unavailable + tally.unknown;
    assert_eq!(failed, 0, "{tally:?}");
    wait_used(&cluster, "t", "paid", tally.allowed);
}

/// What a region holds goes back when it ends in good order: the others can use all of the quota.
#[test]
fn a_region_that_ends_in_good_order_gives_its_units_back() {
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({ "paid": { "algorithm": "fixed_window", "quota": 600, "window": LONG, "mode": "strict" } }));
    let body = json!({ "tenant": "t", "limit": "paid" });
    for going in [cluster.follower(), cluster.leader()] {
        let urls = [cluster[going].check_url().to_owned()];
        let before = Counter::new(&cluster[going], "t", "paid").used();
        let tally = Callers::while_running(&urls, &body, |callers| {
            wait_until("some pass", WITHIN, || callers.seen().allowed > 100);
        });
        assert_eq!(tally.unknown, 0, "{tally:?}");
        cluster.terminate(going);
        let here = Counter::new(&cluster[cluster.others(going)[0]], "t", "paid");
        wait_until("its use and its units are known", WITHIN, || {
            let look = here.look();
            look.used() == before + tally.allowed && look.remaining() + look.used() == 600
        });
        cluster.start_again(going);
        cluster.wait_granted("paid");
    }
    let used = Counter::new(&cluster[0], "t", "paid").used();
    assert_eq!(spend_all(&cluster, &body), 600 - used);
    wait_used(&cluster, "t", "paid", 600);
}
