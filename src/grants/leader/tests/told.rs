//! What regions told and no grant carried, and what is forgotten.

use crate::domain::time::Span;
use crate::grants::account::Totals;
use crate::grants::leader::Action;
use crate::grants::leader::tests::Scene;
use crate::grants::leader::tests::account;
use crate::grants::leader::tests::holder;
use crate::grants::leader::tests::minute;
use crate::grants::leader::tests::proposed;
use crate::grants::leader::tests::the_answer;
use crate::grants::leader::tests::the_entry;
use crate::grants::leader::tests::told;
use crate::grants::message::ToRegion;
use crate::grants::message::Why;

#[test]
fn use_rides_with_grants_and_else_goes_once_a_second() {
    let mut scene = Scene::new(100);
    scene.give("a", 10);
    for spent in 1..=5 {
        assert_eq!(scene.report("a", told(spent, 0), 0), []);
        assert_eq!(scene.wait_ms(100), []);
    }
    // The leader's view is ahead of the book.
    let answer = the_answer(&scene.ask("b", 0, 0, Totals::default()));
    assert_eq!(answer.standing.used, 5);
    assert_eq!(scene.wait_ms(499), []);
    let entry = the_entry(&scene.wait_ms(1));
    assert_eq!(entry.1.returns, [(holder("a"), told(5, 0))]);
    assert_eq!(entry.1.grants, []);
    scene.apply(&entry);
    assert_eq!(proposed(&scene.wait_ms(5_000)), []);
    // In an entry that goes anyway.
    scene.report("a", told(7, 0), 0);
    let entry = the_entry(&scene.ask("b", 1, 1, Totals::default()));
    assert_eq!(entry.1.returns, [(holder("a"), told(7, 0))]);
    scene.apply(&entry);
    assert_eq!(proposed(&scene.wait_ms(5_000)), []);
}

#[test]
fn what_a_lost_entry_carried_is_told_again() {
    let mut scene = Scene::new(100);
    scene.give("a", 10);
    scene.report("a", told(4, 0), 0);
    let lost = the_entry(&scene.wait_ms(1_000));
    scene.leader.failed(scene.now, &scene.book, lost.0);
    let entry = the_entry(&scene.wait_ms(1_000));
    assert_eq!(entry.1.returns, [(holder("a"), told(4, 0))]);
}

#[test]
fn the_use_of_a_window_is_complete_when_it_is_forgotten() {
    let mut scene = Scene::new(100);
    scene.give("a", 10);
    scene.wait_ms(58_900);
    scene.report("a", told(9, 0), 0);
    let entry = the_entry(&scene.wait_ms(100));
    scene.apply(&entry);
    // The region's last report arrives after the end.
    scene.report("a", told(10, 0), 0);
    let entry = the_entry(&scene.wait_ms(1_000));
    scene.apply(&entry);
    assert_eq!(proposed(&scene.wait_ms(9_000)), []);
    assert!(scene.leader.desks.is_empty() && scene.leader.wakes.is_empty());
    assert_eq!(scene.leader.next_wake(), None);
    let closed = scene.book.expire(scene.now.log, 10);
    assert_eq!(closed.len(), 1);
    assert_eq!((closed[0].used(), closed[0].free), (10, 90));
}

#[test]
fn a_window_that_nothing_came_of_is_forgotten() {
    let mut scene = Scene::new(0);
    let answer = the_answer(&scene.ask("a", 1, 1, Totals::default()));
    assert!(answer.dry.is_some());
    assert_eq!(answer.standing.free, 0);
    for _ in 0..11 {
        assert_eq!(proposed(&scene.wait_ms(1_000)), []);
    }
    assert!(scene.leader.desks.is_empty() && scene.leader.wakes.is_empty());
}

#[test]
fn reports_of_what_nobody_knows_change_nothing() {
    let mut scene = Scene::new(10);
    // It may be a bucket that was forgotten: that is all that is said.
    let out = scene.report("a", told(5, 5), 3);
    assert!(
        matches!(&out[..], [Action::Tell(_, ToRegion::Refused(refused))]
        if matches!(refused.why, Why::Forgotten { .. }))
    );
    assert!(scene.leader.desks.is_empty());
    scene.give("a", 5);
    // Told by a process that was never granted anything.
    assert_eq!(scene.report("b", told(5, 5), 3), []);
    let tally = scene.book.tally(&account(1), minute().id, &holder("b"));
    assert_eq!((tally.spent, tally.returned), (0, 0));
    assert_eq!(scene.now.boot.minus(Span::from_seconds(1_000)), Span::ZERO);
}

#[test]
fn a_process_that_ended_still_gives_back_what_it_told_late() {
    let mut scene = Scene::new(10);
    scene.give("b", 10);
    let mut again = holder("b");
    again.incarnation = 2;
    scene.book.enroll(scene.now.log, &again);
    let out = scene.ask("a", 2, 2, Totals::default());
    let dry = the_answer(&out).dry.expect("dry");
    assert!(!dry.recalling, "an ended process is not asked");
    let entry = the_entry(&scene.report("b", told(6, 4), 0));
    assert_eq!(entry.1.grants, [(holder("a"), 2)]);
    let answer = the_answer(&scene.apply(&entry));
    assert_eq!((answer.granted, answer.standing.stranded), (2, 0));
}
