//! What is asked for, and when.

use super::*;
use crate::grants::reservation::Ticket;

#[test]
fn the_first_check_asks_for_what_it_needs_and_what_is_worth_holding() {
    let mut scene = Scene::new(6_000, 60_000);
    scene.wait(1, 3, 400);
    let asks = scene.asks();
    assert_eq!(asks.len(), 1);
    assert_eq!(asks[0].need_to, 3);
    assert!(asks[0].want_to > 3);
    assert_eq!(asks[0].at, None, "no window is known");
    assert_eq!(asks[0].sent_boot, scene.boot);
}

#[test]
fn a_burst_asks_again_before_the_first_answer_but_not_for_each_check() {
    let mut scene = Scene::new(100_000, 60_000);
    for ticket in 0..100 {
        scene.wait(ticket, 1, 400);
        scene.pass(1);
    }
    let asks = scene.asks();
    assert!((4..=16).contains(&asks.len()), "{}", asks.len());
    assert!(asks.is_sorted_by_key(|ask| ask.need_to));
    assert!(asks.last().expect("asks").need_to > 60);
}

#[test]
fn an_ask_that_gets_lost_is_asked_again() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 1, 5_000);
    scene.pass(3_000);
    assert!(scene.asks().len() >= 4, "one for each longest wait");
}

#[test]
fn steady_use_asks_before_it_runs_out() {
    let mut scene = Scene::new(6_000, 60_000);
    let mut granted = 20;
    scene.granted(granted, None, None);
    let mut delayed: Option<(Span, u64)> = None;
    for step in 0..2_000_u64 {
        if !scene.spend(1) {
            assert!(step < 300, "ran out at step {step}");
            scene.wait(step, 1, 400);
        }
        scene.pass(10);
        if let Some(ask) = scene.asks().pop() {
            granted = granted.max(ask.want_to);
            delayed = Some((scene.boot, granted));
        }
        if let Some((asked, total)) = delayed
            && scene.boot.minus(asked) >= Span::from_ms(100)
        {
            scene.granted(total, None, Some(asked));
            delayed = None;
            scene.retry_all(1);
        }
    }
    // Two refills at 100 a second and 3 s beyond, and half of that again.
    let held = scene.held();
    assert!((250..=600).contains(&held), "{held}");
}

#[test]
fn a_short_grant_pulls_the_low_water_mark_down() {
    let mut scene = Scene::new(6_000, 60_000);
    scene.granted(40, None, None);
    for _ in 0..20 {
        scene.spend(1);
        scene.pass(10);
    }
    let asked = scene.asks().len();
    assert!(asked > 0);
    scene.granted(44, None, None);
    scene.asks();
    // 24 held, far below what is worth holding; the pool gave little, so half of it is used up first.
    for _ in 0..10 {
        assert!(scene.spend(1));
    }
    assert_eq!(scene.asks(), []);
    for _ in 0..4 {
        assert!(scene.spend(1));
    }
    scene.pass(600);
    assert!(scene.spend(1));
    assert_eq!(scene.asks().len(), 1);
}

#[test]
fn a_region_that_keeps_restarting_asks_for_no_more_than_what_waits() {
    let mut scene = Scene::new(6_000, 60_000);
    let answer = crate::grants::message::PulseAnswer {
        stamp: scene.stamp(Some(scene.boot)),
        slowest_refill: Span::ZERO,
        restarting: true,
    };
    scene.exchange.pulse(&answer, scene.boot);
    scene.wait(1, 3, 400);
    let asks = scene.asks();
    assert_eq!((asks[0].need_to, asks[0].want_to), (3, 3));
    scene.granted(3, None, Some(asks[0].sent_boot));
    scene.with(|reservation, now, out| {
        assert!(reservation.spend(3, Some(Ticket(1)), now).is_some());
        reservation.done(Ticket(1), now, out);
        reservation.after_spend(now, out);
    });
    assert_eq!(scene.asks(), []);
}

#[test]
fn a_refill_is_measured_from_the_ask_that_was_answered() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 1, 400);
    let sent = scene.asks()[0].sent_boot;
    scene.pass(120);
    assert_eq!(scene.granted(2, None, Some(sent)), Some(Span::from_ms(120)));
    assert_eq!(
        scene.granted(3, None, Some(sent)),
        None,
        "the same answer again"
    );
    assert_eq!(scene.granted(9, None, None), None, "a push answers nothing");
}

#[test]
fn a_recall_takes_all_and_the_units_leave_before_the_report() {
    let mut scene = Scene::new(100, 60_000);
    scene.granted(10, None, None);
    assert!(scene.spend(4));
    let report = scene.recall();
    assert_eq!((report.totals.spent, report.totals.returned), (4, 6));
    assert_eq!(report.recall, 4);
    assert_eq!(scene.held(), 0);
    assert!(!scene.spend(1));
    // The same total again brings nothing back.
    scene.granted(10, None, None);
    assert_eq!(scene.held(), 0);
}

#[test]
fn a_recall_leaves_what_checks_wait_for() {
    let mut scene = Scene::new(100, 60_000);
    scene.granted(10, None, None);
    scene.wait(1, 30, 400);
    let report = scene.recall();
    assert_eq!((report.totals.spent, report.totals.returned), (0, 0));
    assert_eq!(scene.held(), 10);
}

#[test]
fn units_for_a_charge_leave_the_reservation_and_no_more_than_needed() {
    let mut scene = Scene::new(100, 60_000);
    assert_eq!(scene.with(|r, now, _| r.take_for_charge(3, now)), None);
    scene.granted(10, None, None);
    let (window, totals) = scene
        .with(|r, now, _| r.take_for_charge(3, now))
        .expect("a window runs");
    assert_eq!(window, scene.window().id);
    assert_eq!((totals.spent, totals.returned), (0, 3));
    let (_, totals) = scene
        .with(|r, now, _| r.take_for_charge(30, now))
        .expect("a window runs");
    assert_eq!(totals.returned, 10);
    assert_eq!(scene.held(), 0);
}

#[test]
fn changed_totals_are_told_after_100_ms_and_twice_more() {
    let mut scene = Scene::new(100, 60_000);
    scene.granted(10, None, None);
    scene.pass(500);
    scene.out.clear();
    assert!(scene.spend(1));
    scene.out.clear();
    scene.pass(99);
    assert_eq!(scene.reports(), []);
    scene.pass(1);
    assert_eq!(scene.reports().len(), 1);
    scene.pass(20_000);
    let reports = scene.reports();
    assert_eq!(reports.len(), 2);
    assert!(reports.iter().all(|report| report.totals.spent == 1));
}

#[test]
fn totals_that_a_silence_may_have_swallowed_are_told_again_when_it_is_over() {
    let mut scene = Scene::new(100, 600_000);
    scene.granted(10, None, None);
    scene.pass(500);
    scene.hear_clock();
    scene.pass(1_900);
    assert!(scene.spend(1));
    scene.pass(20_000);
    assert_eq!(scene.reports().len(), 3);
    scene.pass(100_000);
    assert_eq!(scene.reports(), []);
    scene.hear_clock();
    scene.with(Reservation::tick);
    let reports = scene.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].totals.spent, 1);
    // What was told and heard of before needs no more telling.
    scene.pass(20_000);
    assert_eq!(scene.reports().len(), 1);
    for _ in 0..200 {
        scene.pass(200);
        scene.hear_clock();
    }
    scene.pass(20_000);
    scene.hear_clock();
    scene.with(Reservation::tick);
    assert_eq!(scene.reports(), []);
}

#[test]
fn another_leader_is_told_what_the_last_one_may_have_kept_to_itself() {
    let mut scene = Scene::new(100, 600_000);
    scene.granted(10, None, None);
    assert!(scene.spend(3));
    scene.pass(200);
    assert_eq!(scene.reports().len(), 1);
    scene.hear_clock();
    scene.with(Reservation::tick);
    assert_eq!(scene.reports(), []);
    let stamp = LogStamp {
        term: 2,
        ..scene.stamp(Some(scene.boot.minus(HALF_TRIP)))
    };
    scene.exchange.heard(&stamp, scene.boot);
    scene.with(Reservation::tick);
    let reports = scene.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].totals.spent, 3);
}
