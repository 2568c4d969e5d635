//! Units of a bucket: leases, answers that come late, buckets that were forgotten.

use super::Scene;
use super::account;
use super::holder;
use crate::algorithm::bucket::Flow;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::exchange::LEASE;
use crate::grants::message::Answer;
use crate::grants::message::PulseAnswer;
use crate::grants::message::Refused;
use crate::grants::message::Why;
use crate::grants::reservation::Now;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::Times;

const OPENED: Timestamp = Timestamp::from_unix_ms(1_000);

/// A reservation of a bucket, to a leader that answers at once.
fn scene(capacity: u64, rate: u64) -> Scene {
    let mut scene = Scene::new(capacity, 1_000);
    let flow = Flow {
        capacity,
        rate,
        per: Span::from_seconds(1),
    };
    let length = flow.time_to_refill();
    scene.reservation = Reservation::new(account(), holder(), flow, length, scene.boot);
    scene
}

fn answer(scene: &Scene, granted: u64, lapsed_to: u64) -> Answer {
    let mut answer = scene.answer_of(Window::endless(OPENED), granted, None, Some(scene.boot));
    answer.lapsed_to = lapsed_to;
    answer.stamp.lease = Some(scene.boot);
    answer
}

fn give(scene: &mut Scene, granted: u64) {
    let answer = answer(scene, granted, 0);
    scene.hear(&answer);
}

/// The leader answers a pulse that is sent now.
fn renew(scene: &mut Scene) {
    let mut stamp = scene.stamp(Some(scene.boot));
    stamp.lease = Some(scene.boot);
    let pulse = PulseAnswer {
        stamp,
        slowest_refill: Span::ZERO,
        restarting: false,
    };
    scene.exchange.pulse(&pulse, scene.boot);
}

/// A check that comes now and waits for as long as it may.
fn times(now: &Now<'_>) -> Times {
    Times {
        came: now.boot,
        deadline: now.boot.plus(LEASE),
    }
}

fn held(scene: &mut Scene) -> u64 {
    scene.with(|reservation, now, _| reservation.held(now))
}

#[test]
fn units_are_spent_under_a_lease_and_not_an_instant_longer() {
    let mut scene = scene(100, 100);
    give(&mut scene, 20);
    let sent = scene.boot;
    scene.pass(4_000);
    assert!(scene.spend(1));
    renew(&mut scene);
    scene.pass(3_000);
    assert!(scene.spend(1));
    scene.boot = sent.plus(Span::from_ms(4_000)).plus(LEASE);
    scene.boot = scene.boot.minus(Span::from_nanos(1));
    assert!(scene.spend(1));
    scene.boot = scene.boot.plus(Span::from_nanos(1));
    assert!(!scene.spend(1));
    // A lease that begins later does not bring them back, and they are told as spent.
    renew(&mut scene);
    assert_eq!(held(&mut scene), 0);
    scene.out.clear();
    scene.pass(200);
    assert_eq!(scene.reports().last().expect("a report").totals.spent, 20);
}

#[test]
fn a_lease_that_ended_unseen_is_seen() {
    let mut scene = scene(100, 100);
    give(&mut scene, 20);
    // Nobody looks while it ends and another begins.
    scene.boot = scene.boot.plus(LEASE);
    renew(&mut scene);
    assert_eq!(held(&mut scene), 0);
    give(&mut scene, 25);
    assert_eq!(held(&mut scene), 5);
}

#[test]
fn what_lapsed_at_the_leader_is_not_spent() {
    let mut scene = scene(100, 100);
    give(&mut scene, 5);
    // Ten more were granted; the answer is on its way for too long.
    let late = answer(&scene, 15, 0);
    scene.boot = scene.boot.plus(LEASE);
    renew(&mut scene);
    scene.hear(&late);
    assert_eq!(held(&mut scene), 0);
    // The leader took all fifteen for spent, and gave three more.
    let newer = answer(&scene, 18, 15);
    scene.hear(&newer);
    assert_eq!(held(&mut scene), 3);
    scene.hear(&late);
    assert_eq!(held(&mut scene), 3);
    assert!(scene.spend(3));
    scene.with(|reservation, now, out| {
        reservation.wait(super::Ticket(1), 2, times(now), now, out);
    });
    let asks = scene.asks();
    assert_eq!(asks.last().expect("an ask").need_to, 20);
}

#[test]
fn a_word_without_a_lease_brings_no_units() {
    let mut scene = scene(100, 100);
    let mut bare = answer(&scene, 5, 0);
    bare.stamp.lease = None;
    scene.hear(&bare);
    assert_eq!(held(&mut scene), 0);
    // Nor does one of a leader that was deposed.
    renew(&mut scene);
    let mut old = answer(&scene, 5, 0);
    old.stamp.term = 0;
    scene.hear(&old);
    assert_eq!(held(&mut scene), 0);
    give(&mut scene, 5);
    assert_eq!(held(&mut scene), 5);
}

#[test]
fn a_bucket_that_earns_slowly_is_asked_for_need_only() {
    for (rate, asks_more) in [(1, false), (1_000, true)] {
        let mut scene = scene(5 * rate, rate);
        for ticket in 0..200 {
            let ticket = super::Ticket(ticket);
            scene.with(|reservation, now, out| {
                reservation.wait(ticket, 1, times(now), now, out);
            });
            scene.boot = scene.boot.plus(Span::from_ms(1));
        }
        let asks = scene.asks();
        let more = asks.iter().any(|ask| ask.want_to > ask.need_to);
        assert_eq!(more, asks_more, "{rate} a second");
    }
}

#[test]
fn unused_units_go_back_and_what_was_forgotten_is_dropped() {
    let mut scene = scene(100, 100);
    give(&mut scene, 20);
    assert!(scene.spend(1));
    for _ in 0..6 {
        scene.pass(1_000);
        renew(&mut scene);
    }
    let report = scene.reports().pop().expect("a report");
    assert_eq!((report.totals.spent, report.totals.returned), (1, 19));
    assert!(!scene.reservation.is_releasable());
    // Once in a while the leader is asked whether it still knows the bucket.
    for _ in 0..80 {
        scene.pass(1_000);
        renew(&mut scene);
    }
    assert!(!scene.reports().is_empty());
    let refused = Refused {
        holder: holder(),
        account: account(),
        why: Why::Forgotten {
            window: Window::endless(OPENED).id,
        },
        stamp: scene.stamp(None),
    };
    scene.with(|reservation, now, out| reservation.refused(&refused, now, out));
    assert!(scene.reservation.is_releasable());
    // A word of it that comes late does not bring it back.
    let late = answer(&scene, 20, 0);
    scene.hear(&late);
    assert_eq!(held(&mut scene), 0);
}

#[test]
fn a_newer_bucket_takes_the_place_of_one_that_was_forgotten() {
    let mut scene = scene(100, 100);
    give(&mut scene, 3);
    assert!(scene.spend(3));
    let mut newer = answer(&scene, 2, 0);
    newer.window = Window::endless(OPENED.plus(Span::from_ms(1)));
    scene.hear(&newer);
    assert_eq!(held(&mut scene), 2);
    give(&mut scene, 9);
    assert_eq!(held(&mut scene), 2);
}

#[test]
fn the_view_is_the_leaders_with_what_was_spent_since_and_earned() {
    let mut scene = scene(10, 1);
    let mut told = answer(&scene, 6, 0);
    told.standing.drawn = 2_000_000_000;
    scene.hear(&told);
    assert!(scene.spend(3));
    let view = scene
        .with(|reservation, now, _| reservation.view(now))
        .expect("known");
    assert_eq!((view.used, view.remaining), (5, 5));
    scene.boot = scene.boot.plus(Span::from_ms(2_500));
    let view = scene
        .with(|reservation, now, _| reservation.view(now))
        .expect("known");
    assert_eq!((view.used, view.remaining), (3, 7));
}
