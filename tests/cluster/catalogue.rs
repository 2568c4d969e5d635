//! The catalogue over regions: in force everywhere, changed by one at a time, not without a majority.

use std::thread;
use std::time::Instant;

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::NAMES;
use crate::group::WITHIN;
use crate::group::pending;
use crate::group::status;
use crate::group::version;
use crate::server::Server;
use crate::server::wait_until;

fn quota(quota: u64) -> Value {
    json!({ "algorithm": "fixed_window", "quota": quota, "window": "1h" })
}

fn put(server: &Server, name: &str, limit: &Value) -> Answer {
    server.admin(Method::PUT, &format!("/admin/v1/limits/{name}"), limit)
}

fn put_if(server: &Server, name: &str, limit: &Value, version: u64) -> Answer {
    server.send(
        Method::PUT,
        &format!("{}/admin/v1/limits/{name}", server.admin_url()),
        &[
            ("authorization", "Bearer dev"),
            ("if-match", &format!("\"{version}\"")),
        ],
        limit,
    )
}

/// The quota of a base limit as a region has it.
fn known_quota(server: &Server, name: &str) -> Option<u64> {
    let answer = server.admin(
        Method::GET,
        &format!("/admin/v1/limits/{name}"),
        &Value::Null,
    );
    if answer.status == 404 {
        return None;
    }
    answer.succeeded();
    let quota = answer.body["quota"]
        .as_u64()
        .or_else(|| answer.body["limit"]["quota"].as_u64());
    Some(quota.unwrap_or_else(|| panic!("no quota: {answer:?}")))
}

fn wait_quota(server: &Server, name: &str, wanted: Option<u64>) {
    wait_until(&format!("{name} is {wanted:?}"), WITHIN, || {
        known_quota(server, name) == wanted
    });
}

#[test]
fn a_change_made_in_any_region_is_in_force_in_all() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "api": quota(1) }));
    for (region, wanted) in [(0, 5), (1, 6), (2, 7)] {
        let answer = put(&cluster[region], "api", &quota(wanted));
        answer.succeeded();
        assert_eq!(pending(&answer), Vec::<String>::new(), "{answer:?}");
        // At once where it was made.
        assert_eq!(known_quota(&cluster[region], "api"), Some(wanted));
        assert_eq!(
            Counter::new(&cluster[region], "t", "api").look().quota(),
            wanted
        );
        for other in cluster.others(region) {
            wait_quota(&cluster[other], "api", Some(wanted));
            let look = Counter::new(&cluster[other], "t", "api").look();
            assert_eq!(look.quota(), wanted, "{look:?}");
        }
    }
    let gone = cluster[1].admin(Method::DELETE, "/admin/v1/limits/api", &Value::Null);
    gone.succeeded();
    for region in 0..3 {
        wait_quota(&cluster[region], "api", None);
    }
    // Every region tells the same history.
    let audits: Vec<Value> = (0..3)
        .map(|region| {
            cluster[region]
                .admin(Method::GET, "/admin/v1/audit", &Value::Null)
                .body
        })
        .collect();
    assert_eq!(audits[0], audits[1]);
    assert_eq!(audits[0], audits[2]);
}

#[test]
fn a_region_that_stands_still_is_pending_and_catches_up_when_it_goes_on() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "api": quota(1) }));
    let slow = cluster.follower();
    let here = cluster.others(slow)[0];
    cluster.pause(slow);
    let answer = put(&cluster[here], "api", &quota(2));
    answer.succeeded();
    assert_eq!(pending(&answer), [NAMES[slow]], "{answer:?}");
    cluster.go_on(slow);
    wait_quota(&cluster[slow], "api", Some(2));
    wait_until("it confirms again", WITHIN, || {
        let answer = put(&cluster[here], "api", &quota(3));
        answer.succeeded();
        pending(&answer).is_empty()
    });
}

#[test]
fn of_two_writers_with_one_version_the_second_is_told_so() {
    let cluster = Cluster::of(3);
    let mut known = version(&cluster.limits(&json!({ "api": quota(1) })));
    for round in 0..10 {
        let answers: Vec<Answer> = thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|region| {
                    let server = &cluster[region];
                    let wanted = quota(100 * round + region as u64 + 1);
                    scope.spawn(move || put_if(server, "api", &wanted, known))
                })
                .collect();
            let joined = writers.into_iter().map(|writer| writer.join());
            joined.map(|answer| answer.expect("no panic")).collect()
        });
        let won: Vec<usize> = (0..3)
            .filter(|region| answers[*region].status == 200)
            .collect();
        assert_eq!(won.len(), 1, "{answers:?}");
        for (region, lost) in answers.iter().enumerate() {
            if region != won[0] {
                lost.problem(412, "version_mismatch");
            }
        }
        known = version(&answers[won[0]]);
        cluster.wait_in_force(known);
        let wanted = 100 * round + won[0] as u64 + 1;
        for region in 0..3 {
            assert_eq!(known_quota(&cluster[region], "api"), Some(wanted));
        }
    }
}

#[test]
fn without_a_majority_nothing_changes_and_the_rest_serves_on() {
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({ "api": quota(1000) }));
    let leader = cluster.leader();
    let left = cluster.follower();
    let other = cluster.others(left);
    cluster.kill(leader);
    let third = *other
        .iter()
        .find(|region| **region != leader)
        .expect("three");
    cluster.kill(third);
    let before = status(&cluster[left])["catalogue_version"].clone();

    let started = Instant::now();
    let refused = put(&cluster[left], "api", &quota(1));
    refused.problem(503, "unavailable");
    assert!(refused.retry_after().is_some_and(|s| s >= 1), "{refused:?}");
    println!("told after {:?}", started.elapsed());
    assert_eq!(known_quota(&cluster[left], "api"), Some(1000));
    assert_eq!(status(&cluster[left])["catalogue_version"], before);
    // It serves by what it has.
    assert_eq!(cluster[left].get("/readyz").status, 200);
    assert_eq!(Counter::new(&cluster[left], "t", "api").passes(10), 10);

    for region in [leader, third] {
        cluster.start_again(region);
    }
    wait_until("writes pass again", WITHIN, || {
        put(&cluster[left], "other", &quota(2)).status == 200
    });
    for region in 0..3 {
        wait_quota(&cluster[region], "other", Some(2));
        assert_eq!(known_quota(&cluster[region], "api"), Some(1000));
    }
}

#[test]
fn a_region_that_is_cut_off_serves_by_what_it_has_and_catches_up() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({ "api": quota(100) }));
    // One that follows, then the one that leads.
    for region in [cluster.follower(), cluster.leader()] {
        let cut = cluster.cut_off(region);
        let there = &cluster[region];
        assert_eq!(Counter::new(there, "t", "api").passes(5), 5);
        let kept = known_quota(there, "api");
        let others = cluster.others(region);
        let wanted = 200 + region as u64;
        wait_until("the others go on without it", WITHIN, || {
            let answer = put(&cluster[others[0]], "api", &quota(wanted));
            answer.status == 200
        });
        wait_quota(&cluster[others[1]], "api", Some(wanted));
        let refused = put(there, "api", &quota(1));
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(known_quota(there, "api"), kept);
        assert_eq!(Counter::new(there, "t", "api").passes(5), 5);
        there.heal(&cut);
        wait_quota(there, "api", Some(wanted));
        wait_until("it can change things again", WITHIN, || {
            put(there, "other", &quota(1)).status == 200
        });
        // What it was asked while it was cut off has not come about.
        for region in 0..3 {
            assert_eq!(known_quota(&cluster[region], "api"), Some(wanted));
        }
    }
}

#[test]
fn a_region_that_was_down_catches_up_on_all_it_missed() {
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({ "api": quota(1) }));
    let down = cluster.follower();
    let here = cluster.others(down)[0];
    cluster.kill(down);
    for wanted in 2..40 {
        put(&cluster[here], "api", &quota(wanted)).succeeded();
    }
    put(&cluster[here], "new", &quota(9)).succeeded();
    cluster.start_again(down);
    wait_quota(&cluster[down], "new", Some(9));
    assert_eq!(known_quota(&cluster[down], "api"), Some(39));
    put(&cluster[down], "api", &quota(40)).succeeded();
    wait_quota(&cluster[here], "api", Some(40));
}

/// All processes end at once, and all is there when they are back.
#[test]
fn the_catalogue_survives_the_end_of_all_regions() {
    let mut cluster = Cluster::of(3);
    cluster.limits(&json!({ "api": quota(77) }));
    for region in 0..3 {
        cluster.kill(region);
    }
    for region in 0..3 {
        cluster.start_again(region);
    }
    for region in 0..3 {
        wait_quota(&cluster[region], "api", Some(77));
    }
    wait_until("writes pass again", WITHIN, || {
        put(&cluster[1], "api", &quota(78)).status == 200
    });
}

/// How much of the log is committed is written down late; a region that is killed before that does not go back to an
/// older catalogue when it serves again.
#[test]
fn a_killed_region_comes_back_with_the_catalogue_that_it_had_in_force() {
    let mut cluster = Cluster::of(3);
    let limit = |quota: u64| json!({ "algorithm": "fixed_window", "quota": quota, "window": LONG });
    let victim = cluster.follower();
    let other = cluster.others(victim)[0];
    for quota in 1..=6 {
        cluster.put_limit(other, "here", &limit(quota));
        for _ in 0..2 {
            cluster.kill(victim);
            cluster.start_again(victim);
            let look = Counter::new(&cluster[victim], "t", "here").look();
            assert_eq!(look.quota(), quota, "{look:?}");
        }
    }
}
