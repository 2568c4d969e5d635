//! What the random tests have found, each with the values that showed it, so that it stays found.

use highwater::catalogue::intern::LimitId;
use highwater::domain::calendar::Period;
use highwater::domain::decision::Decision;
use highwater::domain::decision::Reason;
use highwater::domain::limit::AMOUNT_MAX;
use highwater::domain::limit::OnUnavailable;
use highwater::domain::limit::Rule;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::domain::time::Window;
use highwater::ledger::Bounds;
use highwater::ledger::check::Request;
use highwater::ledger::check::Word;
use highwater::machine::strict::Seen;
use highwater::machine::strict::held;
use highwater::usage::record::slots;

use crate::restart::Order;
use crate::restart::restore;
use crate::scene::Desk;
use crate::scene::WIDE;
use crate::scene::at;
use crate::scene::bucket;
use crate::scene::calendar;
use crate::scene::concurrency;
use crate::scene::drain;
use crate::scene::fixed;
use crate::scene::ledger;
use crate::scene::ledger_of_start;
use crate::scene::limit;
use crate::scene::log;
use crate::scene::ms;
use crate::scene::seconds;
use crate::scene::sliding;

/// The waits were told as if the clock stood where the counter had last seen it; a caller who waited that
/// long after a small step back came too early.
#[test]
fn waits_include_the_time_by_which_the_clock_is_behind() {
    let ledger = ledger();
    let window = Desk::new(fixed(1, seconds(60)));
    assert!(window.passes(&ledger, ms(0), 1));
    let told = window.take(&ledger, ms(-500), 1);
    assert_eq!(told.retry_after, Some(Span::from_ms(60_500)));
    assert_eq!(told.standing.reset_after, Span::from_ms(60_500));

    let weighted = Desk::new(sliding(1, seconds(60))).with_id(2);
    assert!(weighted.passes(&ledger, ms(0), 1));
    let told = weighted.take(&ledger, ms(-500), 1);
    assert_eq!(told.retry_after, Some(Span::from_ms(120_500)));

    let level = Desk::new(bucket(1, 1, seconds(1))).with_id(3);
    assert!(level.passes(&ledger, ms(0), 1));
    let told = level.take(&ledger, ms(-500), 1);
    assert_eq!(told.retry_after, Some(Span::from_ms(1_500)));
    assert!(!level.passes(&ledger, ms(999), 1));
    assert!(level.passes(&ledger, ms(1_000), 1));
}

/// A restored counter took whatever window came back second for the one before the newest: with use in
/// the first and the third window, the first still weighed in the third.
#[test]
fn only_the_window_right_before_weighs_after_a_restart() {
    let first = ledger_of_start(1, WIDE);
    let desk = Desk::new(sliding(10, seconds(60)));
    assert!(desk.passes(&first, ms(0), 8));
    let mut written = drain(&first);
    assert!(desk.passes(&first, ms(120_000), 1));
    written.extend(drain(&first));
    let second = restore(&written, Order::Folded, 2);
    assert_eq!(desk.look(&second, ms(120_000)).standing.used, 1);
}

/// A clock that was set back by more than an hour and then forward again found an empty window where it
/// had counted before.
#[test]
fn a_clock_that_comes_back_finds_its_window_as_it_left_it() {
    let ledger = ledger();
    let desk = Desk::new(fixed(6, seconds(86_400)));
    let hour = 3_600_000;
    assert!(desk.passes(&ledger, ms(-2 * hour), 1));
    assert!(desk.passes(&ledger, ms(hour), 5));
    assert_eq!(desk.look(&ledger, ms(-2 * hour)).standing.used, 1);
    assert_eq!(desk.look(&ledger, ms(hour)).standing.used, 5);
}

/// The name of a calendar window is civil time, and it was compared with the clock as if it were an
/// instant: west of Greenwich a clock set back by two hours over midnight got yesterday's bounds with
/// today's count, and kept that count for the whole of today.
#[test]
fn a_calendar_window_follows_the_clock_in_every_zone() {
    for (zone, midnight_utc) in [
        ("America/Los_Angeles", 8),
        ("Pacific/Kiritimati", -14),
        ("UTC", 0),
    ] {
        let midnight = midnight_utc * 3_600_000;
        let ledger = ledger();
        let desk = Desk::new(calendar(5, Period::Day, zone));
        assert!(desk.passes(&ledger, ms(midnight - 1), 2), "{zone}");
        assert!(desk.passes(&ledger, ms(midnight), 4), "{zone}");
        let back = desk.look(&ledger, ms(midnight - 3 * 3_600_000));
        assert_eq!(back.standing.used, 2, "{zone}");
        assert_eq!(back.standing.reset_after, seconds(3 * 3_600), "{zone}");
        assert_eq!(desk.look(&ledger, ms(midnight)).standing.used, 4, "{zone}");
        // By less than an hour: today goes on.
        let held = desk.look(&ledger, ms(midnight - 1_000));
        assert_eq!(held.standing.used, 4, "{zone}");
        assert_eq!(held.standing.reset_after, seconds(86_401), "{zone}");
        // The same when the process was started again in between and does not know the bounds.
        let restored = restore(&drain(&ledger), Order::Written, 2);
        let held = desk.look(&restored, ms(midnight - 1_000));
        assert_eq!(held.standing.used, 4, "{zone}");
        assert_eq!(held.standing.reset_after, seconds(86_401), "{zone}");
        assert_eq!(
            desk.look(&restored, ms(midnight - 3 * 3_600_000))
                .standing
                .used,
            2,
            "{zone}"
        );
    }
}

/// A log told the end of its newest entry as its reset even when a refund had taken all of that entry.
#[test]
fn a_log_is_empty_when_its_last_unit_was_given_back() {
    let ledger = ledger();
    let desk = Desk::new(log(2, seconds(60)));
    assert!(desk.passes(&ledger, ms(0), 1));
    assert_eq!(desk.refund(&ledger, ms(1), 1), 1);
    assert_eq!(desk.look(&ledger, ms(1)).standing.reset_after, Span::ZERO);
}

/// The sum of a log stopped at 2^64 − 1 and then lost more than it had, as entries ended: use that was
/// still in the window read zero.
#[test]
fn a_log_counts_on_past_the_largest_integer() {
    let ledger = ledger();
    let mut unlimited = limit(log(10, seconds(10)));
    unlimited.unlimited = true;
    let desk = Desk::of(unlimited);
    for _ in 0..2_100 {
        assert!(desk.passes(&ledger, ms(0), AMOUNT_MAX));
    }
    assert_eq!(desk.look(&ledger, ms(0)).standing.used, u64::MAX);
    assert!(desk.passes(&ledger, ms(5_000), 7));
    assert_eq!(desk.look(&ledger, ms(10_000)).standing.used, 7);
}

/// Each record of a log replaced what an earlier record had brought back.
#[test]
fn a_log_is_joined_from_all_its_records() {
    let first = ledger_of_start(1, WIDE);
    let desk = Desk::new(log(10, seconds(60)));
    assert!(desk.passes(&first, ms(0), 3));
    let mut written = drain(&first);
    assert!(desk.passes(&first, ms(1), 4));
    written.extend(drain(&first));
    let second = ledger_of_start(2, WIDE);
    for record in written.iter().chain(&written) {
        second.merge(record, desk.id);
    }
    assert_eq!(desk.look(&second, ms(2)).standing.used, 7);
}

/// A charge of an earlier process is given back by name, once, and stays given back over the next start.
#[test]
fn a_charge_from_before_a_restart_is_given_back_once() {
    let first = ledger_of_start(1, WIDE);
    let desk = Desk::new(log(10, seconds(60)));
    assert!(desk.passes(&first, ms(0), 1));
    let receipt = desk
        .hold(&first, ms(1), 5, 1, ms(50_000))
        .expect("room for 5");
    let mut written = drain(&first);
    let second = restore(&written, Order::Written, 2);
    assert!(desk.passes(&second, ms(2), 2));
    assert_eq!(desk.give_back(&second, ms(3), &receipt, 3, 1), 3);
    assert_eq!(desk.give_back(&second, ms(3), &receipt, 5, 1), 2);
    assert_eq!(desk.give_back(&second, ms(3), &receipt, 5, 1), 0);
    assert_eq!(desk.look(&second, ms(3)).standing.used, 3);
    written.extend(drain(&second));
    let third = restore(&written, Order::Reversed, 3);
    assert_eq!(desk.look(&third, ms(3)).standing.used, 3);
}

/// A counter that was swept and made again named its changes like those of its first life, so the disk
/// kept the old level of a bucket (10 drawn at 0 s) in place of the new one (9 drawn at 30 s).
#[test]
fn a_bucket_that_was_swept_and_made_again_is_newer_on_disk() {
    let first = ledger_of_start(1, WIDE);
    let desk = Desk::new(bucket(10, 1, seconds(1)));
    for _ in 0..10 {
        assert!(desk.passes(&first, ms(0), 1));
    }
    let mut written = drain(&first);
    first.sweep(ms(21_000), 1 << 18);
    assert_eq!(first.keys(), 0);
    assert!(desk.passes(&first, ms(30_000), 9));
    written.extend(drain(&first));
    let second = restore(&written, Order::Folded, 2);
    assert_eq!(desk.look(&second, ms(30_000)).standing.used, 9);
}

/// The same with a log: the disk joined entry 0 of the second life with entry 0 of the first and took it
/// for long over.
#[test]
fn a_log_that_was_swept_and_made_again_names_its_entries_anew() {
    let first = ledger_of_start(1, WIDE);
    let desk = Desk::new(log(10, seconds(60)));
    for _ in 0..3 {
        assert!(desk.passes(&first, ms(0), 2));
    }
    let mut written = drain(&first);
    first.sweep(ms(71_000), 1 << 18);
    assert_eq!(first.keys(), 0);
    assert!(desk.passes(&first, ms(100_000), 2));
    written.extend(drain(&first));
    let second = restore(&written, Order::Folded, 2);
    assert_eq!(desk.look(&second, ms(100_000)).standing.used, 2);
}

/// A sliding window of which all was given back was taken for dead within its window; made again, its slot
/// began at zero, below what the disk had seen, and the next charge vanished in the join.
#[test]
fn a_window_whose_use_was_given_back_lives_until_it_ends() {
    let first = ledger_of_start(1, WIDE);
    let desk = Desk::new(sliding(10, seconds(86_400)));
    assert!(desk.passes(&first, ms(0), 5));
    assert_eq!(desk.refund(&first, ms(1), 5), 5);
    let mut written = drain(&first);
    first.sweep(ms(60_000), 1 << 18);
    assert!(desk.passes(&first, ms(61_000), 3));
    written.extend(drain(&first));
    let second = restore(&written, Order::Folded, 2);
    assert_eq!(desk.look(&second, ms(62_000)).standing.used, 3);
    second.sweep(ms(3 * 86_400_000), 1 << 18);
    assert_eq!(second.keys(), 0);
}

/// A sweep with a later time than the caller's opened a closed window again, with a zero count.
#[test]
fn a_swept_window_is_not_opened_again_by_a_caller_who_is_behind() {
    let ledger = ledger();
    let desk = Desk::new(fixed(1, seconds(60)));
    assert!(desk.passes(&ledger, ms(59_999), 1));
    ledger.sweep(ms(70_000), 1 << 18);
    assert_eq!(ledger.keys(), 0);
    let told = desk.take(&ledger, ms(59_999), 1);
    assert_eq!(told.window_start, Some(ms(60_000)));
    assert!(!desk.passes(&ledger, ms(59_999), 1));
}

/// Calls that a bucket never refuses drew it into a debt without bound: after 600 calls on a bucket of 10
/// per second its tenant, no longer unlimited, was refused for a minute.
#[test]
fn what_a_bucket_never_refuses_leaves_no_debt() {
    let ledger = ledger();
    let mut desk = Desk::new(bucket(10, 10, seconds(1)));
    desk.limit.unlimited = true;
    for _ in 0..600 {
        assert!(desk.passes(&ledger, ms(0), 1));
    }
    desk.limit.unlimited = false;
    let told = desk.take(&ledger, ms(0), 1);
    assert_eq!(told.retry_after, Some(Span::from_ms(100)));
    assert!(desk.passes(&ledger, ms(1_000), 10));
}

/// Giving back a hold that a shadow bucket had only counted gave back what others had drawn.
#[test]
fn what_was_not_drawn_is_not_put_back() {
    let ledger = ledger();
    let mut desk = Desk::new(bucket(10, 1, seconds(1)));
    assert!(desk.passes(&ledger, ms(0), 8));
    desk.limit.enforce = false;
    let receipt = desk.hold(&ledger, ms(0), 5, 1, ms(9_000)).expect("shadow");
    assert_eq!(desk.give_back(&ledger, ms(0), &receipt, 5, 1), 5);
    assert_eq!(desk.look(&ledger, ms(0)).standing.used, 8);
}

/// A hold that was released long after its units had come back by themselves gave back what others had
/// drawn: 10 from a bucket of 10, 10 more an hour later, and the release made room for another 10 at once.
#[test]
fn a_bucket_takes_nothing_back_that_has_come_back_by_itself() {
    let ledger = ledger();
    let desk = Desk::new(bucket(10, 1, seconds(1)));
    let receipt = desk
        .hold(&ledger, ms(0), 10, 1, ms(7_200_000))
        .expect("full");
    assert!(desk.passes(&ledger, ms(1_800_000), 1));
    assert!(desk.passes(&ledger, ms(3_600_000), 10));
    assert_eq!(desk.give_back(&ledger, ms(3_600_000), &receipt, 10, 1), 0);
    assert!(!desk.passes(&ledger, ms(3_600_000), 1));
}

/// Making room for the second limit of a check swept the dead counter of its first limit, which had been
/// found already: it was allowed and charged nowhere, or to whatever took its place.
#[test]
fn making_room_for_one_limit_of_a_check_spares_the_others() {
    let narrow = Bounds {
        keys_max: 1,
        keys_per_tenant_max: 10,
    };
    let idle = Desk::new(bucket(1, 1, seconds(1)));
    for n in 0..800 {
        let ledger = ledger_of_start(1, narrow);
        let fresh = Desk::new(fixed(9, seconds(60)))
            .with_id(2)
            .with_key(&n.to_string());
        assert!(idle.passes(&ledger, ms(0), 1));
        let items = [idle.item(1), fresh.item(1)];
        let outcome = ledger.check(&Request {
            now: ms(5_000),
            tenant: "acme",
            items: &items,
            hold: None,
            keep: false,
            store_failed: false,
            judge_only: false,
            boot: Span::ZERO,
            words: &[],
        });
        assert!(outcome.allowed);
        assert_eq!(idle.look(&ledger, ms(5_000)).standing.used, 1, "beside {n}");
    }
}

/// With no room to count a key, `local` knew of no use and let every call pass.
#[test]
fn local_refuses_what_it_has_no_room_to_count() {
    let narrow = Bounds {
        keys_max: 1,
        keys_per_tenant_max: 10,
    };
    let ledger = ledger_of_start(1, narrow);
    let mut desk = Desk::new(fixed(9, seconds(60)));
    desk.limit.on_unavailable = OnUnavailable::Local;
    desk.limit.fallback_quota = 3;
    assert!(desk.passes(&ledger, ms(0), 1));
    let told = desk.with_key("user-2").take(&ledger, ms(0), 1);
    assert_eq!(told.decision, Decision::Deny);
    assert_eq!(told.reason, Some(Reason::Unavailable));
    // With a failed store, but room, it is as the limit says: 3 of its own, and 429 after that.
    let mut cut_off = desk.clone();
    cut_off.store_failed = true;
    assert!(cut_off.passes(&ledger, ms(0), 2));
    let told = cut_off.take(&ledger, ms(0), 1);
    assert_eq!(told.reason, Some(Reason::QuotaExceeded));
}

/// The sum of a sliding window did not fit 128 bits: a long window after much unlimited use.
#[test]
fn a_sliding_window_of_centuries_does_not_overflow() {
    let ledger = ledger();
    let mut endless = limit(sliding(
        u64::MAX,
        Span::from_nanos(14_134_175_105_097_540_531),
    ));
    endless.unlimited = true;
    let desk = Desk::of(endless);
    assert!(desk.passes(&ledger, ms(0), 1));
    assert!(desk.passes(&ledger, at(i64::MAX - 1), 15_637_434_852_309_302_170));
    assert!(desk.passes(&ledger, at(i64::MAX - 1), 8_437_713_813_297_254_335));
}

/// Units charged to a hold after it had taken some replaced its lease instead of adding to it.
#[test]
fn a_late_charge_adds_to_the_lease_of_its_hold() {
    let ledger = ledger();
    let desk = Desk::new(concurrency(9));
    assert!(desk.hold(&ledger, ms(0), 2, 7, ms(30_000)).is_some());
    assert_eq!(desk.charge_late(&ledger, ms(1), 3, 7, ms(30_000)), 3);
    assert_eq!(desk.look(&ledger, ms(2)).standing.used, 5);
    assert_eq!(desk.look(&ledger, ms(30_000)).standing.used, 0);
}

/// A damaged row with a tenant's name that no request can have stopped the start, or left counters that
/// nothing could find.
#[test]
fn a_row_with_an_impossible_name_is_passed_over() {
    let first = ledger_of_start(1, WIDE);
    assert!(Desk::new(fixed(9, seconds(60))).passes(&first, ms(0), 1));
    let written = drain(&first);
    let long = "x".repeat(129);
    for tenant in ["", ".", "a\nb", long.as_str()] {
        let second = ledger_of_start(2, WIDE);
        let mut damaged = written[0].clone();
        damaged.id.tenant = tenant.into();
        second.merge(&damaged, LimitId(1));
        assert_eq!(second.keys(), 0, "{tenant:?}");
    }
}

/// A caller whose limit was replaced by one of another shape was allowed and told that nothing is left.
#[test]
fn a_caller_with_a_replaced_limit_is_told_how_it_stood_unused() {
    let ledger = ledger();
    let old = Desk::new(fixed(10, seconds(60)));
    let mut new = Desk::new(log(10, seconds(60)));
    new.epoch = 2;
    assert!(new.passes(&ledger, ms(0), 4));
    let told = old.take(&ledger, ms(0), 3);
    assert_eq!(told.decision, Decision::Allow);
    assert_eq!(told.standing.remaining, 10);
    assert_eq!(new.look(&ledger, ms(0)).standing.used, 4);
}

/// Units of a strict limit that were spent near a window's end were counted in the window of the region's clock, though
/// they lay in that of the log: after a kill the region reported them of a window in which nobody had them.
#[test]
fn units_are_counted_in_the_window_that_they_lie_in() {
    const HOUR_MS: i64 = 3_600_000;
    let kinds = [
        fixed(9, seconds(3_600)),
        calendar(9, Period::Hour, "Asia/Kathmandu"),
    ];
    for rule in kinds {
        let ledger = ledger();
        let desk = Desk::new(rule.clone());
        // Of a calendar in a zone that is 5:45 ahead hours begin at a quarter past.
        let first = match &rule {
            Rule::CalendarWindow { calendar, .. } => calendar.window(ms(0)),
            _ => Window::aligned(ms(0), seconds(3_600)),
        };
        let second = match &rule {
            Rule::CalendarWindow { calendar, .. } => calendar.window(first.end),
            _ => Window::aligned(ms(HOUR_MS), seconds(3_600)),
        };
        let early = second.start.plus(Span::from_ms(100));
        let spend = |now: Timestamp, window: Window, units: u64| {
            let seen = Seen {
                window,
                used: 0,
                remaining: 9,
                bucket: None,
            };
            let items = [desk.item(units)];
            let told = held(&desk.limit, Some(seen), units, now);
            let outcome = ledger.check(&Request {
                now,
                tenant: "acme",
                items: &items,
                hold: None,
                keep: true,
                store_failed: false,
                judge_only: false,
                boot: Span::ZERO,
                words: &[Word::Decided(told)],
            });
            assert_eq!(outcome.receipts[0].window, window.id, "{rule:?}");
        };
        spend(ms(0), first, 1);
        spend(early, second, 2);
        spend(early, first, 3);
        let records = drain(&ledger);
        let used = |window: Window| {
            let counter = &records[0].windows[&window.id];
            slots(counter)[0].1
        };
        assert_eq!((used(first), used(second)), (4, 2), "{rule:?}");
    }
    // A clock that is behind counts in the window that has not begun by it.
    let ledger = ledger();
    let desk = Desk::new(fixed(9, seconds(60)));
    let ahead = Window::aligned(ms(60_000), seconds(60));
    let seen = Seen {
        window: ahead,
        used: 0,
        remaining: 9,
        bucket: None,
    };
    let items = [desk.item(1)];
    for now in [ms(59_000), ms(60_000)] {
        let told = held(&desk.limit, Some(seen), 1, now);
        let words = [Word::Decided(told)];
        let asked = Request {
            now,
            tenant: "acme",
            items: &items,
            hold: None,
            keep: true,
            store_failed: false,
            judge_only: false,
            boot: Span::ZERO,
            words: &words,
        };
        assert!(ledger.check(&asked).allowed);
    }
    let records = drain(&ledger);
    assert_eq!(slots(&records[0].windows[&ahead.id])[0].1, 2);
    assert_eq!(records[0].windows.len(), 1);
}
