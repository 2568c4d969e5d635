//! Holds, settles, releases and refunds on strict limits: exact numbers over regions.

use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::counter::Counter;
use crate::counter::Hold;
use crate::group::Cluster;
use crate::group::LONG;
use crate::group::NAMES;
use crate::group::WITHIN;
use crate::load::Call;
use crate::load::answers;
use crate::load::at_once;
use crate::load::spend_all;
use crate::load::wait_used;
use crate::server::Server;
use crate::server::wait_until;

fn exports(quota: u64) -> Value {
    json!({ "exports": { "algorithm": "fixed_window", "quota": quota, "window": LONG, "mode": "strict" } })
}

fn body() -> Value {
    json!({ "tenant": "t", "limit": "exports" })
}

fn refund(server: &Server, key: Option<&str>, cost: u64) -> Answer {
    let headers: Vec<(&str, &str)> = key.iter().map(|key| ("idempotency-key", *key)).collect();
    let mut body = body();
    body["cost"] = cost.into();
    server.post_with("/v1/refund", &headers, &body)
}

fn refunded(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["refunded"].as_u64().expect("a number")
}

#[test]
fn a_refund_needs_a_key_counts_once_and_gives_back_at_most_what_was_used() {
    let cluster = Cluster::of(3);
    cluster.limits(&exports(20));
    for (region, cost) in [(0, 8), (1, 7), (2, 5)] {
        assert!(
            Counter::new(&cluster[region], "t", "exports")
                .take(cost)
                .allowed()
        );
    }
    let full = Counter::new(&cluster[0], "t", "exports").take(1);
    assert!(!full.allowed(), "{full:?}");

    let unnamed = refund(&cluster[0], None, 3);
    unnamed.problem(400, "malformed");
    assert!(unnamed.text.contains("Idempotency-Key"), "{unnamed:?}");
    wait_used(&cluster, "t", "exports", 20);

    // What another region charged can be given back here; the same key again moves nothing, wherever.
    assert_eq!(refunded(&refund(&cluster[0], Some("first"), 3)), 3);
    for region in 0..3 {
        assert_eq!(refunded(&refund(&cluster[region], Some("first"), 3)), 3);
        let other = refund(&cluster[region], Some("first"), 4);
        other.problem(422, "idempotency_mismatch");
    }
    wait_used(&cluster, "t", "exports", 17);
    assert_eq!(spend_all(&cluster, &body()), 3);
    wait_used(&cluster, "t", "exports", 20);

    let calls = (0..30)
        .map(|call| {
            let mut body = body();
            body["cost"] = 1.into();
            Call {
                region: call % 3,
                path: "/v1/refund",
                key: Some(format!("one of ten {}", call / 3)),
                body,
            }
        })
        .collect();
    for answer in answers(at_once(&cluster, 15, calls)) {
        // The same key at the same time in one region may be told so; never is anything else said.
        assert!(answer.status == 200, "{answer:?}");
    }
    wait_used(&cluster, "t", "exports", 10);

    assert_eq!(refunded(&refund(&cluster[2], Some("too many"), 1000)), 10);
    assert_eq!(refunded(&refund(&cluster[2], Some("nothing left"), 1)), 0);
    wait_used(&cluster, "t", "exports", 0);
    assert_eq!(spend_all(&cluster, &body()), 20);
}

#[test]
fn a_settle_gives_back_what_was_not_used_and_charges_only_what_is_free() {
    let cluster = Cluster::of(3);
    cluster.limits(&exports(10));
    let at = |region: usize| Counter::new(&cluster[region], "t", "exports");
    let one = at(0).hold(6, "1h");
    let mut two = at(1).hold(3, "1h");
    // Units that the first region held ahead come back within the Retry-After of a refusal.
    wait_until("units have come back", WITHIN, || {
        if !two.allowed() {
            two = at(1).hold(3, "1h");
        }
        two.allowed()
    });
    let (one, two) = (Hold::granted(&one), Hold::granted(&two));
    wait_used(&cluster, "t", "exports", 9);

    let less = one.settle(&cluster[0], 2);
    less.succeeded();
    assert_eq!(less.body["results"][0]["given_back"], 4, "{less:?}");
    assert_eq!(less.body["results"][0]["uncharged"], 0, "{less:?}");
    wait_used(&cluster, "t", "exports", 5);
    let again = one.settle(&cluster[0], 2);
    assert_eq!((again.status, &again.body), (200, &less.body));
    one.settle(&cluster[0], 3).problem(409, "hold_settled");
    wait_used(&cluster, "t", "exports", 5);

    // 5 are free; 3 taken, 20 used: 5 more are charged and 12 are not.
    let more = two.settle(&cluster[1], 20);
    more.succeeded();
    assert_eq!(more.body["results"][0]["given_back"], 0, "{more:?}");
    // Units that a region holds at that moment are not free; what is not charged stays to be spent.
    let uncharged = more.body["results"][0]["uncharged"].as_u64();
    let uncharged = uncharged.expect("a number");
    assert!((12..=17).contains(&uncharged), "{more:?}");
    let left = uncharged - 12;
    wait_used(&cluster, "t", "exports", 10 - left);
    let again = two.settle(&cluster[1], 20);
    assert_eq!((again.status, &again.body), (200, &more.body));
    wait_used(&cluster, "t", "exports", 10 - left);
    assert_eq!(spend_all(&cluster, &body()), left);
}

#[test]
fn a_release_gives_all_back_once_and_the_units_can_be_spent_anywhere() {
    let cluster = Cluster::of(3);
    cluster.limits(&exports(10));
    let held = Counter::new(&cluster[0], "t", "exports").hold(10, "1h");
    let hold = Hold::granted(&held);
    let refused = Counter::new(&cluster[1], "t", "exports").take(1);
    assert!(!refused.allowed(), "{refused:?}");
    let released = hold.release(&cluster[0]);
    released.succeeded();
    assert_eq!(
        released.body["results"][0]["given_back"], 10,
        "{released:?}"
    );
    let again = hold.release(&cluster[0]);
    assert_eq!((again.status, &again.body), (200, &released.body));
    wait_used(&cluster, "t", "exports", 0);
    assert_eq!(spend_all(&cluster, &body()), 10);
    wait_used(&cluster, "t", "exports", 10);
}

#[test]
fn a_hold_is_kept_by_the_region_that_opened_it_and_another_one_says_which() {
    let cluster = Cluster::of(3);
    cluster.limits(&exports(10));
    let held = Counter::new(&cluster[1], "t", "exports").hold(4, "1h");
    let hold = Hold::granted(&held);
    for region in [0, 2] {
        let there = &cluster[region];
        for answer in [
            hold.settle(there, 1),
            hold.renew(there, "2h"),
            hold.release(there),
        ] {
            answer.problem(421, "misdirected");
            assert_eq!(answer.body["region"], NAMES[1], "{answer:?}");
        }
    }
    wait_used(&cluster, "t", "exports", 4);
    hold.renew(&cluster[1], "2h").succeeded();
    hold.settle(&cluster[1], 1).succeeded();
    wait_used(&cluster, "t", "exports", 1);
}

#[test]
fn holds_settles_and_releases_at_once_over_all_regions_add_up() {
    let cluster = Cluster::of(3);
    cluster.limits(&exports(300));
    let opens: Vec<Call> = (0..60)
        .map(|call| {
            let mut body = body();
            body["cost"] = 5.into();
            Call {
                region: call % 3,
                path: "/v1/holds",
                key: None,
                body,
            }
        })
        .collect();
    // The last units may lie in one region when another one asks: then it is told to come back in a second.
    let mut wanted = opens;
    let mut holds: Vec<(usize, Hold)> = Vec::new();
    wait_until("all units are held", WITHIN, || {
        let opened = at_once(&cluster, 30, std::mem::take(&mut wanted));
        for (call, answer) in opened {
            let answer = answer.expect("an answer");
            if answer.status == 200 {
                holds.push((call.region, Hold::granted(&answer)));
            } else {
                assert_eq!(answer.retry_after(), Some(1), "{answer:?}");
                wanted.push(call);
            }
        }
        wanted.is_empty()
    });
    wait_used(&cluster, "t", "exports", 300);
    std::thread::scope(|scope| {
        for part in 0..6 {
            let (cluster, holds) = (&cluster, &holds);
            scope.spawn(move || {
                for (place, (region, hold)) in holds.iter().enumerate() {
                    if place % 6 != part {
                        continue;
                    }
                    match place % 4 {
                        0 => hold.settle(&cluster[*region], 5),
                        1 => hold.settle(&cluster[*region], 2),
                        2 => hold.settle(&cluster[*region], 0),
                        _ => hold.release(&cluster[*region]),
                    }
                    .succeeded();
                }
            });
        }
    });
    let used = 15 * 5 + 15 * 2;
    wait_used(&cluster, "t", "exports", used);
    assert_eq!(spend_all(&cluster, &body()), 300 - used);
}

/// Decided by the log entry by entry: the same numbers.
#[test]
fn sliding_kinds_give_back_exactly_too() {
    let cluster = Cluster::of(3);
    cluster.limits(&json!({
        "exports": { "algorithm": "sliding_log", "quota": 10, "window": LONG, "mode": "strict" },
    }));
    let at = |region: usize| Counter::new(&cluster[region], "t", "exports");
    let hold = Hold::granted(&at(0).hold(6, "1h"));
    assert!(at(1).take(4).allowed());
    assert!(!at(2).take(1).allowed());
    let less = hold.settle(&cluster[0], 1);
    assert_eq!(less.body["results"][0]["given_back"], 5, "{less:?}");
    wait_used(&cluster, "t", "exports", 5);
    assert_eq!(refunded(&refund(&cluster[2], Some("k"), 2)), 2);
    assert_eq!(refunded(&refund(&cluster[1], Some("k"), 2)), 2);
    wait_used(&cluster, "t", "exports", 3);
    assert_eq!(spend_all(&cluster, &body()), 7);
    let gone = cluster[0].send(
        Method::DELETE,
        &format!("{}/v1/holds/{}", cluster[0].check_url(), hold.0),
        &[],
        &Value::Null,
    );
    gone.problem(409, "hold_settled");
}
