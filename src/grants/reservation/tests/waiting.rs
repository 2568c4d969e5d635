//! Checks that wait: order, verdicts, deadlines.

use super::*;

#[test]
fn waiters_are_woken_in_order_and_their_units_are_kept_for_them() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 3, 400);
    scene.wait(2, 2, 400);
    scene.wait(3, 4, 400);
    scene.granted(6, None, None);
    assert_eq!(scene.verdicts(), [(1, Verdict::Retry), (2, Verdict::Retry)]);
    assert!(!scene.spend(1), "a new check may not pass those that wait");
    scene.with(|reservation, now, out| {
        let second = Some(Ticket(2));
        assert_eq!(reservation.can_spend(2, second, now), Spend::Ready);
        assert!(reservation.spend(2, second, now).is_some());
        reservation.done(Ticket(2), now, out);
        assert_eq!(reservation.can_spend(4, Some(Ticket(3)), now), Spend::Short);
        assert_eq!(reservation.can_spend(3, Some(Ticket(1)), now), Spend::Ready);
    });
}

#[test]
fn a_need_that_is_too_big_does_not_block_the_small_ones_behind_it() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 50, 400);
    scene.wait(2, 2, 400);
    scene.granted(5, None, None);
    assert_eq!(scene.verdicts(), [(2, Verdict::Retry)]);
}

#[test]
fn one_who_lacks_another_limit_is_passed_over_and_blocks_nobody() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 2, 400);
    scene.wait(2, 2, 400);
    scene.granted(2, None, None);
    assert_eq!(scene.verdicts(), [(1, Verdict::Retry)]);
    // The first comes back from its retry: the other limit was short.
    scene.wait(1, 2, 9_000);
    assert_eq!(scene.verdicts(), [(2, Verdict::Retry)]);
    scene.with(|reservation, now, out| {
        assert!(reservation.spend(2, Some(Ticket(2)), now).is_some());
        reservation.done(Ticket(2), now, out);
    });
    scene.granted(3, None, None);
    assert!(scene.spend(1), "a check that is passed over blocks nobody");
    // Its units are gone: now it waits for units again, and its first deadline holds.
    scene.wait(1, 2, 9_000);
    scene.granted(5, None, None);
    assert_eq!(scene.verdicts(), [], "it was woken a moment ago");
    scene.pass(1);
    assert_eq!(scene.verdicts(), [(1, Verdict::Retry)]);
    scene.wait(1, 2, 9_000);
    scene.pass(450);
    assert_eq!(
        scene.verdicts(),
        [(1, Verdict::Retry)],
        "the other limit has the last word"
    );
    scene.pass(10_000);
    assert!(
        scene.reservation.queue.is_none(),
        "who never comes back is forgotten"
    );
}

#[test]
fn without_a_leader_the_verdict_at_the_deadline_is_out_of_reach() {
    let mut scene = Scene::silent(100, 60_000);
    scene.wait(1, 1, 300);
    scene.pass(299);
    assert_eq!(scene.verdicts(), []);
    scene.pass(1);
    assert_eq!(scene.verdicts(), [(1, Verdict::OutOfReach)]);
}

#[test]
fn a_leader_that_answered_in_time_makes_it_a_refusal() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 5, 300);
    scene.pass(100);
    scene.granted(2, None, None);
    scene.pass(200);
    let retry_after = Span::from_seconds(1);
    assert_eq!(scene.verdicts(), [(1, Verdict::Dry { retry_after })]);
}

#[test]
fn who_does_not_want_to_wait_has_a_verdict_at_once_and_the_units_are_asked_for() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 2, 0);
    assert_eq!(scene.verdicts(), [(1, Verdict::OutOfReach)]);
    let asks = scene.asks();
    assert_eq!(asks.len(), 1);
    assert_eq!(asks[0].need_to, 2);
}

#[test]
fn an_empty_pool_refuses_everybody_at_once_and_is_believed_for_a_while() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 1, 2_500);
    scene.pass(50);
    scene.granted(0, dry(1_000, false), None);
    assert!(matches!(scene.verdicts()[..], [(1, Verdict::Dry { .. })]));
    scene.out.clear();
    scene.with(|reservation, now, out| {
        assert!(matches!(
            reservation.can_spend(1, None, now),
            Spend::Dry { retry_after } if retry_after >= Span::from_seconds(1)
        ));
        reservation.refuse(1, now, out);
    });
    assert_eq!(scene.asks(), [], "the word is fresh");
    scene.pass(1_100);
    scene.hear_clock();
    scene.with(|reservation, now, out| {
        assert!(matches!(
            reservation.can_spend(1, None, now),
            Spend::Dry { .. }
        ));
        reservation.refuse(1, now, out);
        reservation.refuse(1, now, out);
    });
    let asks = scene.asks();
    assert_eq!(asks.len(), 1, "one ask in the background");
    assert_eq!(asks[0].need_to, 1, "for what was refused");
    scene.pass(50);
    scene.granted(0, dry(1_000, false), Some(asks[0].sent_boot));
    scene.pass(1_900);
    assert!(
        matches!(
            scene.with(|reservation, now, _| reservation.can_spend(1, None, now)),
            Spend::Dry { .. }
        ),
        "the leader said so again"
    );
    scene.pass(200);
    assert_eq!(
        scene.with(|reservation, now, _| reservation.can_spend(1, None, now)),
        Spend::Short,
        "an old word is forgotten"
    );
}

#[test]
fn while_a_recall_runs_checks_wait_for_one_round() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 1, 2_500);
    scene.granted(0, dry(1_000, true), None);
    assert_eq!(scene.verdicts(), []);
    let verdict =
        |scene: &mut Scene| scene.with(|reservation, now, _| reservation.can_spend(1, None, now));
    assert_eq!(verdict(&mut scene), Spend::Short);
    scene.asks();
    scene.wait(2, 1, 2_500);
    assert_eq!(scene.asks(), [], "the leader knows that somebody waits");
    scene.granted(1, None, None);
    assert_eq!(scene.verdicts(), [(1, Verdict::Retry)]);
    scene.granted(1, dry(1_000, true), None);
    scene.pass(400);
    assert!(matches!(verdict(&mut scene), Spend::Dry { .. }));
}

#[test]
fn a_dry_word_means_nothing_while_nobody_waits_or_when_it_is_old() {
    let mut scene = Scene::new(100, 60_000);
    scene.granted(0, dry(1_000, false), None);
    let verdict =
        |scene: &mut Scene| scene.with(|reservation, now, _| reservation.can_spend(1, None, now));
    assert_eq!(verdict(&mut scene), Spend::Short);
    let old = scene.answer_of(scene.window(), 0, dry(1_000, false), None);
    scene.pass(1_500);
    scene.wait(1, 1, 400);
    scene.hear(&old);
    assert_eq!(scene.verdicts(), []);
    assert_eq!(verdict(&mut scene), Spend::Short);
}

#[test]
fn closing_tells_everybody_and_returns_everything() {
    let mut scene = Scene::new(100, 60_000);
    scene.granted(9, None, None);
    assert!(scene.spend(2));
    scene.wait(1, 50, 400);
    scene.out.clear();
    scene.with(Reservation::close);
    assert_eq!(scene.verdicts(), [(1, Verdict::Closed)]);
    assert_eq!(scene.reports().last().expect("a report").totals.returned, 7);
    scene.wait(2, 1, 400);
    assert_eq!(scene.verdicts(), [(2, Verdict::Closed)]);
    scene.granted(12, None, None);
    assert_eq!(
        scene.reports().last().expect("a report").totals.returned,
        10
    );
    assert_eq!(scene.held(), 0);
    assert!(!scene.reservation.is_releasable());
    scene.pass(7_000);
    assert!(scene.reservation.is_releasable());
}

#[test]
fn draining_keeps_only_what_checks_wait_for() {
    let mut scene = Scene::new(100, 60_000);
    scene.granted(9, None, None);
    scene.wait(1, 12, 400);
    scene.with(Reservation::give_back_all);
    assert_eq!(scene.held(), 9, "somebody waits for all of it");
    scene.granted(20, None, None);
    assert_eq!(scene.held(), 12);
    scene.with(|reservation, now, out| {
        assert!(reservation.spend(12, Some(Ticket(1)), now).is_some());
        reservation.done(Ticket(1), now, out);
    });
    scene.granted(25, None, None);
    assert_eq!(scene.held(), 0);
}

#[test]
fn those_that_hold_another_catalogue_are_told_the_version() {
    let mut scene = Scene::new(100, 60_000);
    scene.wait(1, 1, 400);
    let refused = crate::grants::message::Refused {
        holder: holder(),
        account: account(),
        why: crate::grants::message::Why::Changed { version: 31 },
        stamp: scene.stamp(None),
    };
    scene.with(|reservation, now, out| reservation.refused(&refused, now, out));
    assert_eq!(scene.verdicts(), [(1, Verdict::Changed { version: 31 })]);
}

#[test]
fn the_word_that_there_is_nothing_ends_with_a_raised_quota_and_with_units_that_are_free() {
    let refused = || {
        let mut scene = Scene::new(100, 60_000);
        scene.wait(1, 1, 2_500);
        scene.pass(50);
        scene.granted(0, dry(1_000, false), None);
        assert!(matches!(scene.verdicts()[..], [(1, Verdict::Dry { .. })]));
        scene
    };
    let look =
        |scene: &mut Scene| scene.with(|reservation, now, _| reservation.can_spend(1, None, now));
    let mut scene = refused();
    scene.reservation.set_quota(100);
    scene.reservation.set_quota(90);
    assert!(matches!(look(&mut scene), Spend::Dry { .. }));
    scene.reservation.set_quota(91);
    assert_eq!(look(&mut scene), Spend::Short);

    let mut scene = refused();
    scene.pass(10);
    let mut answer = scene.answer_of(scene.window(), 0, None, None);
    answer.standing.free = 0;
    scene.hear(&answer);
    assert!(matches!(look(&mut scene), Spend::Dry { .. }));
    answer.standing.free = 1;
    scene.hear(&answer);
    assert_eq!(look(&mut scene), Spend::Short);
}
