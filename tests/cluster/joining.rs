//! Founding and joining: who founds, who waits, and who is taken back.

use serde_json::json;

use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::group::is_ready;
use crate::load::decided;
use crate::load::spend_all;
use crate::load::wait_used;
use crate::server::wait_until;

/// Two of three are there: they wait for the third, and say so.
#[test]
fn an_empty_region_waits_for_all_its_peers_and_says_what_it_waits_for() {
    let cluster = Cluster::start(&Setup {
        started: 2,
        ..Setup::of(3)
    });
    for region in 0..2 {
        assert_eq!(cluster[region].get("/livez").status, 200);
        let ready = cluster[region].get("/readyz");
        assert_eq!(ready.status, 503, "{ready:?}");
        assert!(
            ready.text.contains("[-]catalogue (no cluster yet"),
            "{ready:?}"
        );
        assert!(ready.text.contains("[+]store ok"), "{ready:?}");
        let refused = cluster[region].admin(
            reqwest::Method::PUT,
            "/admin/v1/limits/api",
            &json!({ "algorithm": "fixed_window", "quota": 1, "window": "1m" }),
        );
        refused.problem(503, "unavailable");
    }
}

#[test]
fn a_wiped_region_is_taken_back_as_a_new_voter() {
    let mut cluster = Cluster::of(3);
    let limit = json!({ "exports": { "algorithm": "fixed_window", "quota": 100, "window": LONG, "mode": "strict" } });
    cluster.limits(&limit);
    let body = json!({ "tenant": "t", "limit": "exports" });
    for region in 0..3 {
        for _ in 0..10 {
            assert!(decided(&cluster[region], &body).allowed());
        }
    }
    wait_used(&cluster, "t", "exports", 30);
    for wiped in [cluster.follower(), cluster.leader()] {
        cluster.kill(wiped);
        cluster.wipe(wiped);
        cluster.start_again(wiped);
        wait_until("it is taken back", WITHIN, || is_ready(&cluster[wiped]));
        wait_until("it is granted units again", WITHIN, || {
            Counter::new(&cluster[wiped], "canary", "exports")
                .take(1)
                .status
                == 200
        });
    }
    wait_used(&cluster, "t", "exports", 30);
    // What the wiped ones still held is nobody's until the window ends, and every region says so.
    let left = Counter::new(&cluster[0], "t", "exports").left();
    println!("{} stranded", 70 - left);
    assert_eq!(spend_all(&cluster, &body), left);
    wait_used(&cluster, "t", "exports", 30 + left);
    for region in 0..3 {
        assert_eq!(Counter::new(&cluster[region], "t", "exports").left(), 0);
    }

    // It has a vote of its own: with it and one more there is a majority.
    let leader = cluster.leader();
    cluster.kill(leader);
    cluster.wait_for_another_leader(leader);
    let here = cluster.others(leader)[0];
    let fresh = json!({ "tenant": "fresh", "limit": "exports" });
    assert!(decided(&cluster[here], &fresh).allowed());
}
