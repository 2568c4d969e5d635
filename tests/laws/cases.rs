//! Exact cases from public reports of faults in rate limiters, on single nanoseconds and at any clock
//! value, which HTTP cannot reach. The tests are named after what must hold; the tag in front of each is
//! the case's number in the project's list.

use highwater::domain::decision::Decision;
use highwater::domain::decision::Reason;
use highwater::domain::limit::Rule;
use highwater::domain::time::Span;
use highwater::ledger::Ledger;

use crate::restart::Order;
use crate::restart::restore;
use crate::scene::Desk;
use crate::scene::SECOND;
use crate::scene::T0;
use crate::scene::at;
use crate::scene::bucket;
use crate::scene::drain;
use crate::scene::fixed;
use crate::scene::leaky;
use crate::scene::ledger;
use crate::scene::log;
use crate::scene::ms;
use crate::scene::seconds;
use crate::scene::sliding;

/// How many of the calls of cost 1 at these milliseconds pass.
fn passed(ledger: &Ledger, desk: &Desk, at_ms: impl IntoIterator<Item = i64>) -> usize {
    let times = at_ms.into_iter();
    times.filter(|t| desk.passes(ledger, ms(*t), 1)).count()
}

/// Which of the calls of cost 1 at these milliseconds pass.
fn passing(desk: &Desk, at_ms: impl IntoIterator<Item = i64>) -> Vec<i64> {
    let ledger = ledger();
    let times = at_ms.into_iter();
    times.filter(|t| desk.passes(&ledger, ms(*t), 1)).collect()
}

#[test]
fn alg_1_a_leak_goes_on_while_hits_arrive() {
    let ledger = ledger();
    let slow = Desk::new(leaky(10, 10, seconds(30)));
    let left: Vec<u64> = (0..=10)
        .map(|t| {
            let told = slow.take(&ledger, ms(t * 1_000), 1);
            assert_eq!(told.decision, Decision::Allow, "at {t}");
            told.standing.remaining
        })
        .collect();
    assert_eq!(left, [9, 8, 7, 7, 6, 5, 5, 4, 3, 3, 2]);
    assert_eq!(slow.look(&ledger, ms(110_000)).standing.remaining, 10);

    let quick = Desk::new(leaky(3, 3, seconds(1)));
    let passing = passing(&quick, (0..100).map(|n| n * 100));
    assert_eq!(passing.len(), 32);
    assert_eq!(passing.iter().filter(|t| **t < 1_000).count(), 5);
    for second in 1..10 {
        let inside = second * 1_000..(second + 1) * 1_000;
        let count = passing.iter().filter(|t| inside.contains(*t)).count();
        assert_eq!(count, 3, "second {second}");
    }
}

#[test]
fn alg_3_a_denied_call_does_not_move_the_refill_clock() {
    let desk = Desk::new(bucket(1, 1, seconds(1)));
    assert_eq!(
        passing(&desk, (0..=50).map(|n| n * 100)),
        [0, 1_000, 2_000, 3_000, 4_000, 5_000]
    );
    assert_eq!(
        passing(&desk, (0..=20).map(|n| n * 300)),
        [0, 1_200, 2_400, 3_600, 4_800, 6_000]
    );
}

#[test]
fn alg_5_the_previous_window_weighs_in_what_remains() {
    let ledger = ledger();
    let desk = Desk::new(sliding(100, seconds(10)));
    assert_eq!(passed(&ledger, &desk, vec![5_000; 50]), 50);
    assert_eq!(passed(&ledger, &desk, vec![10_100; 10]), 10);
    assert_eq!(desk.look(&ledger, ms(11_000)).standing.remaining, 45);
    assert_eq!(passed(&ledger, &desk, vec![11_000; 46]), 45);
    assert_eq!(desk.look(&ledger, ms(30_000)).standing.remaining, 100);
}

#[test]
fn alg_7_the_oldest_entry_decides_when_to_come_back() {
    let ledger = ledger();
    let desk = Desk::new(log(2, seconds(60)));
    assert_eq!(passed(&ledger, &desk, [0, 10_000]), 2);
    let told = desk.take(&ledger, ms(20_000), 1);
    assert_eq!(told.retry_after, Some(seconds(40)));
    assert_eq!(passed(&ledger, &desk, [60_000, 60_000]), 1);
    assert_eq!(passed(&ledger, &desk, [69_900]), 0);
    assert_eq!(passed(&ledger, &desk, [70_000]), 1);

    let poll = Desk::new(log(1, seconds(10)));
    assert_eq!(
        passing(&poll, (0..=30).map(|n| n * 1_000)),
        [0, 10_000, 20_000, 30_000]
    );
}

#[test]
fn alg_9_a_denied_call_consumes_nothing() {
    let ledger = ledger();
    let desk = Desk::new(bucket(10, 1, seconds(10)));
    let steps = [
        (0, 8, Decision::Allow, 2),
        (0, 5, Decision::Deny, 2),
        (0, 1_000_000, Decision::Deny, 2),
        (0, 2, Decision::Allow, 0),
        (10_000, 1, Decision::Allow, 0),
    ];
    for (t, cost, decision, remaining) in steps {
        let told = desk.take(&ledger, ms(t), cost);
        assert_eq!(
            (told.decision, told.standing.remaining),
            (decision, remaining)
        );
    }

    let calls = || (0..120).map(|n| n * 5_000);
    let exact = passing(&Desk::new(log(10, seconds(60))), calls());
    assert_eq!(exact.len(), 100);
    for minute in 0..10 {
        let inside = minute * 60_000..(minute + 1) * 60_000;
        assert_eq!(exact.iter().filter(|t| inside.contains(*t)).count(), 10);
    }
    let weighted = passing(&Desk::new(sliding(10, seconds(60))), calls());
    assert_eq!(weighted.len(), 91);
}

#[test]
fn alg_11_a_cost_of_the_whole_capacity_comes_back_and_one_above_it_never() {
    let ledger = ledger();
    let desk = Desk::new(bucket(5, 1, seconds(60)));
    assert!(desk.passes(&ledger, ms(0), 5));
    let told = desk.take(&ledger, ms(0), 5);
    assert_eq!(told.reason, Some(Reason::QuotaExceeded));
    assert_eq!(told.retry_after, Some(seconds(300)));
    let never = desk.take(&ledger, ms(0), 6);
    assert_eq!(never.reason, Some(Reason::CostExceedsQuota));
    assert_eq!(never.retry_after, None);

    let fresh = desk.with_key("fresh");
    assert_eq!(
        fresh.take(&ledger, ms(0), 6).reason,
        Some(Reason::CostExceedsQuota)
    );
    assert_eq!(fresh.look(&ledger, ms(0)).standing.remaining, 5);

    let third = desk.with_key("third");
    assert!(third.passes(&ledger, ms(0), 3));
    let told = third.take(&ledger, ms(0), 5);
    assert_eq!(told.standing.remaining, 2);
    assert_eq!(told.retry_after, Some(seconds(180)));

    for rule in [
        fixed(5, seconds(60)),
        sliding(5, seconds(60)),
        log(5, seconds(60)),
    ] {
        let desk = Desk::new(rule).with_key("windows");
        let ledger = crate::scene::ledger();
        let told = desk.take(&ledger, ms(0), 6);
        assert_eq!(
            (told.reason, told.retry_after),
            (Some(Reason::CostExceedsQuota), None)
        );
        assert_eq!(desk.look(&ledger, ms(0)).standing.remaining, 5);
        assert_eq!(ledger.keys(), 0, "nothing is recorded");
    }
}

#[test]
fn bnd_1_twice_the_limit_passes_a_fixed_edge_and_no_sliding_one() {
    let minute = seconds(60);
    let edge = |rule: Rule| {
        let ledger = ledger();
        let desk = Desk::new(rule);
        let mut counts = Vec::new();
        for t in [59_900, 60_000, 90_000] {
            counts.push(passed(&ledger, &desk, vec![t; 60]));
        }
        counts
    };
    assert_eq!(edge(fixed(60, minute)), [60, 60, 0]);
    assert_eq!(edge(log(60, minute)), [60, 0, 0]);
    assert_eq!(edge(sliding(60, minute)), [60, 0, 30]);
}

#[test]
fn bnd_3_traffic_does_not_push_a_windows_end_away() {
    let ledger = ledger();
    let steady = Desk::new(fixed(5, seconds(600)));
    assert_eq!(passed(&ledger, &steady, (0..100).map(|n| n * 150_000)), 100);
    let once = Desk::new(fixed(1, seconds(3_600))).with_id(2);
    assert!(once.passes(&ledger, ms(0), 1));
    let told = once.take(&ledger, ms(3_540_000), 1);
    assert_eq!(told.retry_after, Some(seconds(60)));
    assert!(once.passes(&ledger, ms(3_600_000), 1));
}

#[test]
fn num_2_high_rates_have_no_zero_interval_and_lose_no_count() {
    let ledger = ledger();
    let wide = Desk::new(bucket(1_001, 1_000, seconds(60)));
    for remaining in [1_000, 999, 998] {
        assert_eq!(wide.take(&ledger, ms(0), 1).standing.remaining, remaining);
    }

    let quick = Desk::new(bucket(1, 2_000, seconds(1))).with_id(2);
    assert!(quick.passes(&ledger, ms(0), 1));
    let told = quick.take(&ledger, ms(0), 1);
    assert_eq!(told.retry_after, Some(Span::from_nanos(500_000)));
    let steps = (1..=4_000).filter(|n| quick.passes(&ledger, at(T0 + n * 250_000), 1));
    assert_eq!(steps.count(), 2_000);

    let burst = Desk::new(bucket(6_000, 6_000, seconds(1))).with_id(3);
    assert_eq!(passed(&ledger, &burst, vec![0; 7_000]), 6_000);

    // Two units a nanosecond: nothing is rounded away.
    let extreme = Desk::new(bucket(4, 2_000_000_000, seconds(1))).with_id(4);
    assert!(extreme.passes(&ledger, at(T0), 4));
    let told = extreme.take(&ledger, at(T0), 3);
    assert_eq!(told.retry_after, Some(Span::from_nanos(2)));
    assert!(!extreme.passes(&ledger, at(T0 + 1), 3));
    assert_eq!(extreme.look(&ledger, at(T0 + 1)).standing.remaining, 2);
    assert!(extreme.passes(&ledger, at(T0 + 2), 4));
}

#[test]
fn num_4_a_first_call_passes_at_every_clock_value() {
    let rules = [
        bucket(3, 3, seconds(1)),
        bucket(3, 7, seconds(1)),
        bucket(3, 1, seconds(3)),
        bucket(3, 17, seconds(30)),
        leaky(3, 3, seconds(1)),
        fixed(3, seconds(1)),
        sliding(3, Span::from_nanos(333_333_333)),
        log(3, Span::from_nanos(333_333_333)),
    ];
    let powers_of_two_in_seconds = (0..33).map(|n| SECOND << n);
    let powers_of_two_in_nanos = (0..63).map(|n| 1_i64 << n);
    let recent = (0..40).map(|n| (1_800_000_000_000 + n) * 1_000_000);
    let centres: Vec<i64> = powers_of_two_in_seconds
        .chain(powers_of_two_in_nanos)
        .chain(recent)
        .collect();
    let offsets = [-200_000_000, -1, 0, 1, 200_000_000];
    let ledger = ledger();
    let mut calls = 0;
    for (rule, id) in rules.into_iter().zip(1..) {
        let desk = Desk::new(rule).with_id(id);
        for now in centres
            .iter()
            .flat_map(|c| offsets.map(|o| c.saturating_add(o)))
        {
            let taker = desk.with_key(&format!("taker {now} {calls}"));
            let told = taker.take(&ledger, at(now), 1);
            assert_eq!(
                told.decision,
                Decision::Allow,
                "{:?} at {now}",
                desk.limit.rule
            );
            assert_eq!(told.standing.remaining, 2, "{:?} at {now}", desk.limit.rule);
            let looker = desk.with_key(&format!("looker {now} {calls}"));
            let told = looker.look(&ledger, at(now));
            assert_eq!(
                (told.decision, told.standing.remaining),
                (Decision::Allow, 3)
            );
            calls += 1;
        }
    }
    assert!(calls > 5_000);
}

#[test]
fn hdr_1_and_3_resets_count_down_and_waits_are_whole() {
    let ledger = ledger();
    let desk = Desk::new(fixed(2, seconds(60)));
    for (t, reset_ms) in [
        (0, 60_000),
        (1_000, 59_000),
        (10_000, 50_000),
        (59_500, 500),
    ] {
        let told = desk.take(&ledger, ms(t), 1);
        assert_eq!(told.standing.reset_after, Span::from_ms(reset_ms));
    }
    let told = desk.take(&ledger, at(T0 + 60 * SECOND - 1), 1);
    assert_eq!(told.retry_after, Some(Span::from_nanos(1)));
    assert_eq!(told.retry_after.map(Span::as_seconds_ceil), Some(1));
    let full = Desk::new(bucket(16, 30, seconds(60))).with_id(2);
    let told = full.take(&ledger, ms(0), 1);
    assert_eq!(told.standing.reset_after, seconds(2));
}

#[test]
fn clk_1_time_that_steps_back_earns_nothing_and_costs_nothing() {
    let ledger = ledger();
    let desk = Desk::new(bucket(10, 1, seconds(1)));
    assert_eq!(passed(&ledger, &desk, vec![100_000; 4]), 4);
    assert_eq!(passed(&ledger, &desk, vec![89_000; 7]), 6);
    assert_eq!(passed(&ledger, &desk, vec![101_000; 2]), 1);

    let jitter = Desk::new(bucket(5, 1, seconds(10)));
    let times = [100_000, 99_997, 100_001, 99_998, 100_002, 99_999];
    assert_eq!(passing(&jitter, times), times[..5]);

    // A sweep that holds an older time than a row just written.
    ledger.sweep(ms(0), 1 << 18);
    assert_eq!(ledger.keys(), 1);
    // Going back does not open a closed window again.
    let window = Desk::new(fixed(3, seconds(60))).with_id(2);
    assert_eq!(passed(&ledger, &window, vec![59_999; 3]), 3);
    assert_eq!(passed(&ledger, &window, vec![60_000; 1]), 1);
    assert_eq!(passed(&ledger, &window, vec![59_999; 3]), 2);
    assert_eq!(window.look(&ledger, ms(60_000)).standing.used, 3);
}

#[test]
fn ref_2_a_refund_gives_back_at_most_what_is_in_use() {
    let ledger = ledger();
    let window = Desk::new(fixed(10, seconds(60)));
    let taken = window
        .hold(&ledger, ms(0), 10, 1, ms(50_000))
        .expect("10 left");
    assert!(!window.passes(&ledger, ms(1), 1));
    assert_eq!(window.give_back(&ledger, ms(2), &taken, 4, 1), 4);
    assert_eq!(passed(&ledger, &window, vec![3; 6]), 4);
    assert_eq!(window.refund(&ledger, ms(4), 11), 10);
    assert_eq!(window.refund(&ledger, ms(4), 1), 0);

    let full = Desk::new(bucket(10, 1, seconds(1))).with_id(2);
    assert_eq!(full.refund(&ledger, ms(0), 5), 0);
    assert_eq!(full.look(&ledger, ms(0)).standing.remaining, 10);

    let quick = Desk::new(bucket(20, 10, seconds(1))).with_id(3);
    assert!(quick.passes(&ledger, ms(0), 15));
    let second = quick
        .hold(&ledger, ms(100), 6, 2, ms(50_000))
        .expect("6 left");
    assert_eq!(quick.look(&ledger, ms(100)).standing.remaining, 0);
    assert_eq!(quick.give_back(&ledger, ms(100), &second, 6, 2), 6);
    assert_eq!(quick.look(&ledger, ms(100)).standing.remaining, 6);
}

#[test]
fn api_1_a_look_takes_nothing_and_says_what_a_call_would_get() {
    let ledger = ledger();
    let desk = Desk::new(fixed(3, seconds(60)));
    let told = desk.look(&ledger, ms(0));
    assert_eq!(
        (told.decision, told.standing.remaining),
        (Decision::Allow, 3)
    );
    assert_eq!(ledger.keys(), 0);
    assert_eq!(passed(&ledger, &desk, vec![0; 3]), 3);
    let told = desk.look(&ledger, ms(0));
    assert_eq!(
        (told.decision, told.standing.remaining),
        (Decision::Deny, 0)
    );
    assert_eq!(told.retry_after, Some(seconds(60)));
}

#[test]
fn rst_3_windows_buckets_and_logs_keep_their_own_time_over_a_restart() {
    let restarted = |ledger: &Ledger, start| restore(&drain(ledger), Order::Written, start);
    let first = ledger();
    let window = Desk::new(fixed(10, seconds(60)));
    assert_eq!(passed(&first, &window, (0..7).map(|n| n * 3_000)), 7);
    let told = window.look(&restarted(&first, 2), ms(25_000)).standing;
    assert_eq!((told.remaining, told.reset_after), (3, seconds(35)));

    let first = ledger();
    let level = Desk::new(bucket(10, 1, seconds(1)));
    assert!(level.passes(&first, ms(0), 10));
    let second = restarted(&first, 2);
    assert_eq!(level.look(&second, ms(4_000)).standing.remaining, 4);
    assert!(level.passes(&second, ms(4_000), 4));
    assert_eq!(
        level
            .look(&restarted(&second, 3), ms(34_000))
            .standing
            .remaining,
        10
    );

    let first = ledger();
    let calls = Desk::new(log(2, seconds(60)));
    assert_eq!(passed(&first, &calls, [0, 10_000]), 2);
    let second = restarted(&first, 2);
    assert!(!calls.passes(&second, ms(59_900), 1));
    assert!(calls.passes(&second, ms(60_000), 1));
}
