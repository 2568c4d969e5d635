//! Windows: when their units may be used, what is asked ahead, what is forgotten.

use super::*;
use crate::grants::message::Refused;
use crate::grants::message::Why;

/// Use of `per_step` every 10 ms, all asks answered at once, until `ms` have passed.
fn keep_busy(scene: &mut Scene, ms: u64) {
    let mut granted = 50;
    scene.granted(granted, None, None);
    for _ in 0..ms / 10 {
        scene.spend(1);
        scene.pass(10);
        for ask in scene.asks() {
            if ask.at.is_none_or(|at| at < scene.window().end) {
                granted = granted.max(ask.want_to) + 100;
                scene.granted(granted, None, None);
            } else {
                scene.out.push(Effect::Send(ToLeader::Ask(ask)));
                return;
            }
        }
    }
}

#[test]
fn the_next_window_is_asked_for_ahead_and_used_when_it_surely_runs() {
    let mut scene = Scene::new(12_000, 60_000);
    keep_busy(&mut scene, 60_000);
    let end = scene.window().end;
    let asks = scene.asks();
    assert_eq!(asks.len(), 1);
    assert_eq!(asks[0].at, Some(end));
    let early = end.since(scene.log_time()).as_ms_ceil();
    assert!((3_900..=4_050).contains(&early), "{early}");
    let ahead = Window::aligned(end, scene.length);
    let answer = scene.answer_of(ahead, 100, None, None);
    scene.hear(&answer);
    scene.pass(early - 100);
    scene.asks();
    scene.hear_clock();
    scene.pass(85);
    assert!(scene.spend(1), "the old window still runs");
    scene.pass(10);
    assert!(!scene.spend(1), "it may be over");
    assert_eq!(scene.held(), 0);
    scene.wait(1, 1, 400);
    scene.pass(20);
    assert_eq!(
        scene.verdicts(),
        [(1, Verdict::Retry)],
        "the next one surely runs"
    );
    scene.with(|reservation, now, out| {
        assert_eq!(reservation.spend(1, Some(Ticket(1)), now), Some(ahead.id));
        reservation.done(Ticket(1), now, out);
    });
    assert_eq!(scene.held(), 99);
}

#[test]
fn in_the_gap_the_next_window_is_asked_for_by_the_end_of_the_last() {
    let mut scene = Scene::new(100, 10_000);
    scene.granted(5, None, None);
    scene.pass(8_980);
    scene.hear_clock();
    scene.pass(13);
    assert_eq!(scene.window().start, Timestamp::EPOCH);
    scene.out.clear();
    scene.wait(1, 1, 400);
    let asks = scene.asks();
    assert_eq!(asks.len(), 1);
    assert_eq!(asks[0].at, Some(scene.window().end));
    assert_eq!(asks[0].totals, crate::grants::account::Totals::default());
}

#[test]
fn a_window_that_is_over_is_never_taken_up_again() {
    let mut scene = Scene::new(100, 10_000);
    let first = scene.window();
    scene.granted(5, None, None);
    assert!(scene.spend(5));
    scene.pass(10_000);
    let late = scene.answer_of(first, 9, None, None);
    scene.hear(&late);
    scene.pass(30_000);
    scene.hear(&late);
    assert_eq!(scene.held(), 0);
    assert!(scene.reservation.current.is_none() && scene.reservation.is_releasable());
}

#[test]
fn the_last_totals_of_a_window_are_told_when_it_is_over() {
    let mut scene = Scene::new(100, 10_000);
    scene.granted(5, None, None);
    scene.pass(8_950);
    assert!(scene.spend(2));
    scene.out.clear();
    scene.pass(60);
    let reports = scene.reports();
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].totals.spent, 2);
}

#[test]
fn a_window_that_the_leader_closed_is_over_here_too() {
    let mut scene = Scene::new(100, 10_000);
    scene.granted(2, None, None);
    scene.wait(1, 5, 400);
    let ask = scene.asks().pop().expect("an ask");
    let refused = Refused {
        holder: holder(),
        account: account(),
        why: Why::WindowClosed,
        stamp: scene.stamp(Some(ask.sent_boot)),
    };
    scene.pass(20);
    scene.with(|reservation, now, out| reservation.refused(&refused, now, out));
    assert_eq!(scene.held(), 0);
    let asks = scene.asks();
    assert_eq!(asks.len(), 1);
    assert_eq!(asks[0].at, Some(scene.window().end));
}

#[test]
fn another_process_or_account_changes_nothing() {
    let mut scene = Scene::new(100, 10_000);
    let mut answer = scene.answer_of(scene.window(), 9, None, None);
    answer.holder.incarnation = 12;
    scene.hear(&answer);
    let mut answer = scene.answer_of(scene.window(), 9, None, None);
    answer.account.epoch = 6;
    scene.hear(&answer);
    assert_eq!(scene.held(), 0);
    assert!(scene.reservation.current.is_none());
}

#[test]
fn the_view_adds_the_own_use_to_that_of_others() {
    let mut scene = Scene::new(100, 10_000);
    let mut answer = scene.answer_of(scene.window(), 9, None, None);
    answer.standing = PoolStanding {
        drawn: 0,
        quota: 80,
        free: 20,
        used: 30,
        used_by_holder: 4,
        stranded: 5,
    };
    scene.hear(&answer);
    for _ in 0..7 {
        assert!(scene.spend(1));
    }
    scene.pass(40);
    scene.hear(&answer);
    let view = scene
        .with(|reservation, now, _| reservation.view(now))
        .expect("a window");
    assert_eq!(
        (view.spent, view.held, view.used, view.remaining),
        (7, 2, 33, 42)
    );
    assert_eq!(view.staleness, Span::from_ms(40));
}
