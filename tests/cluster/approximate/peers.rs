//! What peers tell: all of it is counted, once, in the window that it belongs to.

use std::time::Duration;
use std::time::Instant;

use reqwest::Method;
use serde_json::json;

use crate::approximate::DELAY;
use crate::approximate::INTERVAL;
use crate::approximate::MACHINE;
use crate::approximate::Which;
use crate::approximate::by_region;
use crate::approximate::cluster_with;
use crate::approximate::cut;
use crate::approximate::fixed;
use crate::approximate::heal;
use crate::approximate::let_news_pass;
use crate::approximate::of;
use crate::approximate::take_patiently;
use crate::approximate::wait_agreed;
use crate::approximate::wait_apart;
use crate::approximate::wait_in_touch;
use crate::approximate::with;
use crate::group::LONG;
use crate::group::Setup;
use crate::group::WITHIN;
use crate::server::wait_until;

/// REP-3 (a), and the same with many more calls elsewhere.
#[test]
fn the_first_call_of_a_window_reads_one_whatever_was_heard_in_the_last() {
    let setup = Setup::of(3).with_manual_clocks();
    let cluster = cluster_with(
        &setup,
        json!({ "few": fixed(10, "60s"), "many": fixed(1000, "60s") }),
    );
    for (region, few, many) in [(0, 4, 3), (1, 5, 140), (2, 0, 250)] {
        assert_eq!(of("few").at(&cluster, region).passes(few), few);
        assert_eq!(of("many").at(&cluster, region).passes(many), many);
    }
    wait_agreed(&cluster, of("few"), &[4, 5]);
    wait_agreed(&cluster, of("many"), &[3, 140, 250]);
    for limit in ["few", "many"] {
        let counter = of(limit).at(&cluster, 0);
        let before = counter.look();
        cluster[0].at(60_500);
        let first = counter.take(1);
        assert!(first.allowed());
        assert_eq!(
            (first.used(), first.remaining()),
            (1, before.quota() - 1),
            "{first:?}"
        );
        let usage = counter.usage();
        assert_eq!(by_region(&usage), [1, 0, 0, 0, 0], "{usage:?}");
    }
    // The others are still in the old window, which is as it was.
    let usage = of("many").at(&cluster, 1).usage();
    assert_eq!(by_region(&usage), [3, 140, 250, 0, 0], "{usage:?}");
    cluster.at(60_500);
    wait_agreed(&cluster, of("few"), &[1]);
    wait_agreed(&cluster, of("many"), &[1]);
}

/// REP-3 (b): a peer whose clock is ahead is in the next window already.
#[test]
fn what_a_peer_used_in_the_next_window_waits_there_and_moves_no_window() {
    let setup = Setup::of(3).with_manual_clocks();
    let cluster = cluster_with(
        &setup,
        json!({
            "fixed": fixed(10, "60s"),
            "sliding": { "algorithm": "sliding_window", "quota": 10, "window": "60s", "mode": "approximate" },
            "hour": { "algorithm": "calendar_window", "quota": 10, "period": "hour", "mode": "approximate" },
        }),
    );
    for (limit, next) in [("fixed", 60_500), ("sliding", 120_000), ("hour", 3_600_000)] {
        assert_eq!(of(limit).at(&cluster, 0).passes(4), 4);
        assert_eq!(of(limit).at(&cluster, 1).passes(5), 5);
        wait_agreed(&cluster, of(limit), &[4, 5]);
        cluster[1].at(next);
        let ahead = take_patiently(&of(limit).at(&cluster, 1), 1);
        // Sliding: at the very start of its second window all of the first still counts.
        let used = if limit == "sliding" { 10 } else { 1 };
        assert_eq!(ahead.used(), used, "{ahead:?}");
        let_news_pass(&cluster);
        for region in [0, 2] {
            let usage = of(limit).at(&cluster, region).usage();
            assert_eq!((usage.used(), usage.remaining()), (9, 1), "{usage:?}");
        }
        cluster.at(next);
        for region in 0..3 {
            let look = of(limit).at(&cluster, region).look();
            assert_eq!(
                (look.used(), look.remaining()),
                (used, 10 - used),
                "{look:?}"
            );
            let usage = of(limit).at(&cluster, region).usage();
            assert_eq!(by_region(&usage), [0, 1, 0, 0, 0], "{usage:?}");
        }
    }
}

/// A counter that a region never saw, of a limit that it knows, or will know in a moment.
#[test]
fn news_of_an_unknown_key_or_limit_is_kept_and_counted() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "keyed": with(fixed(10, LONG), "key", "user") }),
    );
    for key in ["a", "b\u{0}c", "ü"] {
        let which = Which("t", "keyed", key);
        assert_eq!(which.at(&cluster, 0).passes(3), 3);
        wait_agreed(&cluster, which, &[3]);
        assert_eq!(which.at(&cluster, 1).take(1).used(), 4);
        wait_agreed(&cluster, which, &[3, 1]);
        assert_eq!(which.at(&cluster, 2).take(2).used(), 6);
        wait_agreed(&cluster, which, &[3, 1, 2]);
    }
    // Another tenant's key of the same name is another counter.
    assert_eq!(Which("other", "keyed", "a").at(&cluster, 0).used(), 0);

    // One region stands still while a limit is made and used; what it is told then is of a limit that it has
    // not heard of.
    let late = cluster.others(cluster.leader())[1];
    let here = cluster.others(late)[0];
    cluster.pause(late);
    let put = cluster[here].admin(Method::PUT, "/admin/v1/limits/new", &fixed(10, LONG));
    put.succeeded();
    wait_until("the limit is in force here", WITHIN, || {
        of("new").at(&cluster, here).take(1).status == 200
    });
    assert_eq!(of("new").at(&cluster, here).passes(6), 6);
    cluster.go_on(late);
    wait_until("the limit is in force there", WITHIN, || {
        of("new").at(&cluster, late).look().status == 200
    });
    let mut used = vec![0; 3];
    used[here] = 7;
    wait_agreed(&cluster, of("new"), &used);
    for _ in 0..3 {
        take_patiently(&of("new").at(&cluster, late), 1);
    }
    assert_eq!(of("new").at(&cluster, late).passes(2), 0);
}

/// No call need follow: what was charged last is told by the next round.
#[test]
fn the_last_call_of_a_burst_reaches_every_peer_within_two_rounds() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "bursts": with(fixed(1_000_000, LONG), "key", "user") }),
    );
    let mut took = Vec::new();
    for burst in 0_u64..12 {
        let key = format!("burst {burst}");
        let which = Which("t", "bursts", &key);
        let from = usize::try_from(burst).expect("small") % 3;
        let body = which.at(&cluster, from).body();
        for answer in cluster[from].in_parallel(4, 50, "/v1/check", &body) {
            assert!(answer.allowed());
        }
        let ended = Instant::now();
        let mut used = vec![0; 3];
        used[from] = 200;
        wait_agreed(&cluster, which, &used);
        took.push(ended.elapsed());
    }
    took.sort();
    println!("the last call was known everywhere after {took:?}");
    let promised = 2 * INTERVAL + DELAY;
    assert!(took[took.len() / 2] < promised, "{took:?}");
    assert!(took[took.len() - 1] < promised + MACHINE, "{took:?}");
}

/// Near a limit all that is known travels along, so a region hears of its own use from others.
#[test]
fn what_a_region_charged_itself_is_not_counted_again_when_it_hears_of_it() {
    let mut cluster = cluster_with(&Setup::of(3), json!({ "near": fixed(16, LONG) }));
    let which = of("near");
    assert_eq!(which.at(&cluster, 0).passes(5), 5);
    wait_agreed(&cluster, which, &[5]);
    for (region, calls) in [(1, 7), (2, 2)] {
        for _ in 0..calls {
            take_patiently(&which.at(&cluster, region), 1);
        }
    }
    wait_agreed(&cluster, which, &[5, 7, 2]);
    let_news_pass(&cluster);
    wait_agreed(&cluster, which, &[5, 7, 2]);
    // A new process hears of what the old one charged, which it has on its own disk as well.
    for (region, calls) in [(0, 1), (1, 1)] {
        cluster.kill(region);
        cluster.start_again(region);
        wait_in_touch(&cluster);
        let_news_pass(&cluster);
        let before = which.at(&cluster, region).used();
        assert_eq!(before, 14 + u64::try_from(region).expect("small"));
        for _ in 0..calls {
            take_patiently(&which.at(&cluster, region), 1);
        }
        let used = [6, 7 + u64::try_from(region).expect("small"), 2];
        wait_agreed(&cluster, which, &used);
    }
    assert_eq!(which.at(&cluster, 2).passes(3), 0);
    let_news_pass(&cluster);
    wait_agreed(&cluster, which, &[6, 8, 2]);
}

/// Every answer says how old the news is that it rests on.
#[test]
fn staleness_is_small_in_touch_and_grows_without_a_peer() {
    let cluster = cluster_with(
        &Setup::of(3),
        json!({ "far": fixed(1000, LONG), "here": { "algorithm": "fixed_window", "quota": 1000, "window": LONG } }),
    );
    let stale = |region: usize| {
        of("far")
            .at(&cluster, region)
            .take(1)
            .number("staleness_ms")
    };
    let mut seen: Vec<u64> = (0..60).map(|call| stale(call % 3)).collect();
    seen.sort_unstable();
    println!("in touch: median {} ms, most {} ms", seen[30], seen[59]);
    let interval = u64::try_from((INTERVAL + DELAY).as_millis()).expect("short");
    assert!(seen[30] <= interval + 20, "{seen:?}");
    assert!(seen[59] <= 1_000, "{seen:?}");
    assert_eq!(of("here").at(&cluster, 0).take(1).number("staleness_ms"), 0);
    let usage = of("far").at(&cluster, 1).usage();
    assert!(usage.number("staleness_ms") <= 1_000, "{usage:?}");

    let fault = cluster.cut_off(2);
    let began = Instant::now();
    wait_until("time passes", WITHIN, || {
        began.elapsed() > Duration::from_secs(2)
    });
    for region in 0..3 {
        let at_least = u64::try_from(began.elapsed().as_millis()).expect("short");
        let told = stale(region);
        assert!(told + 20 >= at_least, "{told} after {at_least}");
        assert!(told <= at_least + 1_500, "{told} after {at_least}");
    }
    cluster[2].heal(&fault);
    wait_in_touch(&cluster);
    assert!(stale(0) <= 1_000);
}

/// What a third region heard from one that died is told on to whom it could not tell itself.
#[test]
fn use_of_a_dead_region_reaches_those_that_it_never_reached_itself() {
    let mut cluster = cluster_with(
        &Setup::of(3),
        json!({ "far": fixed(1000, LONG), "near": fixed(10, LONG) }),
    );
    let dying = cluster.follower();
    let others = cluster.others(dying);
    let (witness, deaf) = (others[0], others[1]);
    let faults = cut(&cluster, &[deaf], &[dying]);
    wait_apart(&cluster, &[dying, deaf]);
    let mut used = vec![0; 3];
    used[dying] = 6;
    for limit in ["far", "near"] {
        for _ in 0..6 {
            take_patiently(&of(limit).at(&cluster, dying), 1);
        }
        let heard = of(limit).at(&cluster, witness);
        wait_until("the witness heard of it", WITHIN, || heard.used() == 6);
    }
    cluster.kill(dying);
    heal(&cluster, &faults[..1]);
    let began = Instant::now();
    // Regions compare what they hold every half minute.
    let compared = Duration::from_secs(70);
    for limit in ["far", "near"] {
        let counter = of(limit).at(&cluster, deaf);
        wait_until("it is told on", compared, || counter.used() == 6);
        wait_agreed(&cluster, of(limit), &used);
    }
    println!("told on {:?} after its death", began.elapsed());
    // Back again without anything on its disk, it is told of its own use.
    cluster.wipe(dying);
    cluster.start_again(dying);
    wait_until("it knows the limits", WITHIN, || {
        of("near").at(&cluster, dying).look().status == 200
    });
    wait_agreed(&cluster, of("far"), &used);
}
