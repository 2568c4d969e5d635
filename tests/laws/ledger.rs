//! The properties that the header of `src/ledger/mod.rs` names.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;

use highwater::domain::decision::Decision;
use highwater::domain::limit::Rule;
use highwater::domain::name::Key;
use highwater::domain::time::Span;
use highwater::ledger::Ledger;
use highwater::ledger::check::Item;
use highwater::ledger::check::Outcome;
use highwater::ledger::check::Request;
use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::prop_assert;
use proptest::prelude::prop_assert_eq;
use proptest::prop_oneof;
use proptest::test_runner::TestCaseResult;
use proptest::test_runner::TestRunner;

use crate::restart::Order;
use crate::restart::restore;
use crate::scene::Desk;
use crate::scene::WIDE;
use crate::scene::bucket;
use crate::scene::concurrency;
use crate::scene::config;
use crate::scene::drain;
use crate::scene::fixed;
use crate::scene::leaky;
use crate::scene::ledger;
use crate::scene::ledger_of_start;
use crate::scene::log;
use crate::scene::ms;
use crate::scene::seconds;
use crate::scene::sliding;

const THREADS: u64 = 8;

/// One rule of every kind that a plain check can charge, each with `quota` units and a long memory.
fn rules(quota: u64) -> [Rule; 5] {
    let hour = seconds(3_600);
    [
        fixed(quota, hour),
        sliding(quota, hour),
        log(quota, hour),
        bucket(quota, 1, hour),
        leaky(quota, 1, hour),
    ]
}

fn ask_all(ledger: &Ledger, desks: &[&Desk], cost: u64, at_ms: i64) -> Outcome {
    let items: Vec<Item<'_>> = desks.iter().map(|desk| desk.item(cost)).collect();
    ledger.check(&Request {
        now: ms(at_ms),
        tenant: "acme",
        items: &items,
        hold: None,
        keep: false,
        store_failed: false,
        judge_only: false,
        boot: Span::ZERO,
        words: &[],
    })
}

#[test]
fn parallel_checks_never_pass_more_than_the_quota() {
    for rule in rules(100) {
        let ledger = ledger();
        let desk = Desk::new(rule.clone());
        let left: Vec<u64> = thread::scope(|scope| {
            let callers: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let told = (0..125).map(|_| desk.take(&ledger, ms(1), 1));
                        told.filter(|told| told.decision == Decision::Allow)
                            .map(|told| told.standing.remaining)
                            .collect::<Vec<u64>>()
                    })
                })
                .collect();
            let told = callers
                .into_iter()
                .map(|caller| caller.join().expect("no panic"));
            told.flatten().collect()
        });
        assert_eq!(left.len(), 100, "{rule:?}");
        let different: BTreeSet<u64> = left.into_iter().collect();
        assert_eq!(different, (0..100).collect(), "{rule:?}");
    }
}

#[test]
fn parallel_checks_pass_exactly_what_a_bucket_has_earned() {
    let ledger = ledger();
    let desk = Desk::new(bucket(1, 1, seconds(1)));
    assert!(desk.passes(&ledger, ms(0), 1));
    for round in 1..=100 {
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let one = u64::from(desk.passes(&ledger, ms(round * 1_000), 1));
                        passed.fetch_add(one, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 1, "round {round}");
    }
}

#[test]
fn a_check_of_several_limits_charges_all_or_none() {
    let costs = vec((1_u64..4, vec(0_usize..30, 1..=16)), 1..60);
    TestRunner::new(config(300))
        .run(&costs, |checks| {
            let ledger = ledger();
            // Thirty counters of five kinds; enough names that several share a shard in some checks.
            let desks: Vec<Desk> = (0..30)
                .map(|n| {
                    let quota = 3 + u64::from(n) % 4;
                    let rule = rules(quota)[n as usize % 5].clone();
                    Desk::new(rule)
                        .with_id(n % 10)
                        .with_key(&format!("user-{n}"))
                })
                .collect();
            for (cost, mut chosen) in checks {
                chosen.sort_unstable();
                chosen.dedup();
                check_once(&ledger, &desks, &chosen, cost)?;
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

fn check_once(ledger: &Ledger, desks: &[Desk], chosen: &[usize], cost: u64) -> TestCaseResult {
    let stand = || {
        desks
            .iter()
            .map(|desk| desk.look(ledger, ms(0)).standing)
            .collect::<Vec<_>>()
    };
    let before = stand();
    let keys = ledger.keys();
    let asked: Vec<&Desk> = chosen.iter().map(|n| &desks[*n]).collect();
    let outcome = ask_all(ledger, &asked, cost, 0);
    let after = stand();
    let enough = chosen.iter().all(|n| before[*n].remaining >= cost);
    prop_assert_eq!(outcome.allowed, enough);
    for (n, (before, after)) in before.iter().zip(&after).enumerate() {
        let charged = if outcome.allowed && chosen.contains(&n) {
            cost
        } else {
            0
        };
        prop_assert_eq!(after.used, before.used + charged, "limit {}", n);
    }
    prop_assert!(outcome.allowed || ledger.keys() == keys);
    Ok(())
}

#[test]
fn parallel_checks_of_several_limits_charge_all_or_none_and_never_lock_each_other_out() {
    let ledger = ledger();
    let desks: Vec<Desk> = (0..6)
        .map(|n| Desk::new(fixed(400, seconds(3_600))).with_id(n))
        .collect();
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..4_usize {
            let (ledger, desks, passed) = (&ledger, &desks, &passed);
            scope.spawn(move || {
                for _ in 0..300 {
                    let mut asked: Vec<&Desk> = desks.iter().collect();
                    asked.rotate_left(thread);
                    if thread % 2 == 1 {
                        asked.reverse();
                    }
                    let allowed = ask_all(ledger, &asked, 1, 0).allowed;
                    passed.fetch_add(u64::from(allowed), Ordering::Relaxed);
                }
            });
        }
        let ledger = &ledger;
        scope.spawn(move || {
            for _ in 0..200 {
                ledger.sweep(ms(0), 4_096);
                drain(ledger);
            }
        });
    });
    assert_eq!(passed.into_inner(), 400);
    for desk in &desks {
        assert_eq!(desk.look(&ledger, ms(0)).standing.used, 400);
    }
}

/// Every kind, and hours and days of the aligned kinds: what an epoch can change from and to.
fn shapes() -> impl Strategy<Value = Rule> {
    let windows = prop_oneof![Just(10_u64), Just(60), Just(3_600)];
    (0_usize..6, windows).prop_map(|(kind, window)| {
        let window = seconds(window);
        match kind {
            0 => fixed(10, window),
            1 => sliding(10, window),
            2 => log(10, window),
            3 => bucket(10, 1, window),
            4 => leaky(10, 1, window),
            _ => concurrency(10),
        }
    })
}

#[test]
fn use_of_an_old_epoch_or_window_changes_nothing() {
    let strategy = (shapes(), shapes(), 1_u64..9, 1_u64..9, 0_i64..5_000);
    TestRunner::new(config(600))
        .run(&strategy, |(old_rule, new_rule, old_use, new_use, wait)| {
            let mut old = Desk::new(old_rule);
            old.epoch = 4;
            let mut new = Desk::new(new_rule);
            new.epoch = 9;
            let hold = |desk: &Desk, ledger: &Ledger, units, id| {
                desk.hold(ledger, ms(0), units, id, ms(50_000))
            };
            let first = ledger_of_start(1, WIDE);
            let old_receipt = hold(&old, &first, old_use, 1).expect("within the quota");
            let old_records = drain(&first);
            hold(&new, &first, new_use, 2).expect("a new epoch begins at zero");
            let before = new.look(&first, ms(wait)).standing;

            // Late words about the old epoch, and a caller who still holds the old catalogue.
            for record in &old_records {
                first.merge(record, old.id);
            }
            prop_assert_eq!(old.give_back(&first, ms(wait), &old_receipt, old_use, 1), 0);
            if old.limit.rule != new.limit.rule {
                old.refund(&first, ms(wait), 1);
                old.passes(&first, ms(wait), 1);
                old.look(&first, ms(wait));
            }
            prop_assert_eq!(new.look(&first, ms(wait)).standing, before);

            // The same over a restart, where the old epoch comes back last.
            let mut written = drain(&first);
            written.extend(old_records);
            if !matches!(new.limit.rule, Rule::Concurrency { .. }) {
                let second = restore(&written, Order::Written, 2);
                prop_assert_eq!(new.look(&second, ms(wait)).standing, before);
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn use_of_an_ended_window_changes_nothing() {
    let first = ledger_of_start(1, WIDE);
    let desk = Desk::new(fixed(10, seconds(60)));
    let receipt = desk.hold(&first, ms(0), 4, 1, ms(1_000_000)).expect("room");
    let ended = drain(&first);
    let second = ledger_of_start(2, WIDE);
    assert!(desk.passes(&second, ms(120_000), 2));
    for record in &ended {
        second.merge(record, desk.id);
    }
    assert_eq!(desk.look(&second, ms(120_000)).standing.used, 2);
    assert_eq!(desk.give_back(&second, ms(120_000), &receipt, 4, 1), 0);
    assert_eq!(desk.look(&second, ms(120_000)).standing.used, 2);
}

#[test]
fn a_caller_with_the_old_catalogue_is_counted_in_the_new_epoch_of_the_same_shape() {
    for rule in rules(10) {
        let ledger = ledger();
        let old = Desk::new(rule.clone());
        let mut new = old.clone();
        new.epoch = 2;
        assert!(old.passes(&ledger, ms(0), 10));
        assert!(new.passes(&ledger, ms(0), 4));
        assert!(old.passes(&ledger, ms(0), 6), "{rule:?}");
        assert!(!old.passes(&ledger, ms(0), 1), "{rule:?}");
        assert_eq!(new.look(&ledger, ms(0)).standing.used, 10, "{rule:?}");
    }
}

#[test]
fn an_unknown_key_takes_nothing_when_it_is_refused_or_looked_at() {
    let ledger = ledger();
    for rule in rules(3) {
        let mut desk = Desk::new(rule);
        desk.look(&ledger, ms(0));
        assert!(!desk.passes(&ledger, ms(0), 4));
        desk.limit
            .always_allow
            .insert(Key::new("someone-else").expect("a key"));
        assert!(!desk.passes(&ledger, ms(0), 4));
        assert_eq!(desk.refund(&ledger, ms(0), 1), 0);
    }
    assert_eq!(ledger.keys(), 0);
}
