//! What comes back by other entries, and what is gathered before an epoch ends.

use crate::domain::time::Span;
use crate::grants::account::Totals;
use crate::grants::leader::Action;
use crate::grants::leader::tests::Scene;
use crate::grants::leader::tests::account;
use crate::grants::leader::tests::answers;
use crate::grants::leader::tests::grants_of;
use crate::grants::leader::tests::holder;
use crate::grants::leader::tests::minute;
use crate::grants::leader::tests::proposed;
use crate::grants::leader::tests::recalls;
use crate::grants::leader::tests::the_answer;
use crate::grants::leader::tests::the_entry;
use crate::grants::leader::tests::told;

/// b has spent all 10 units, and a was told that there are none.
fn used_up() -> Scene {
    let mut scene = Scene::new(10);
    scene.give("b", 10);
    let entry = {
        scene.report("b", told(10, 0), 0);
        the_entry(&scene.wait_ms(1_000))
    };
    scene.apply(&entry);
    let answer = the_answer(&scene.ask("a", 2, 2, Totals::default()));
    assert!(answer.dry.is_some_and(|dry| !dry.recalling));
    scene
}

/// `units` of b's go back by an entry of their own.
fn refund(scene: &mut Scene, units: u64) -> Vec<Action> {
    let (log, account, window) = (scene.now.log, account(1), minute().id);
    let b = holder("b");
    let refunded = scene
        .book
        .refund(log, &account, window, &b, Totals::default(), units);
    assert_eq!(refunded, units);
    scene
        .leader
        .credited(scene.now, &scene.book, &account, &mut scene.out);
    std::mem::take(&mut scene.out)
}

#[test]
fn refunded_units_go_to_who_still_waits_for_them() {
    let mut scene = used_up();
    scene.wait_ms(500);
    let entry = the_entry(&refund(&mut scene, 3));
    assert_eq!(grants_of(&entry), [("a".to_owned(), 2)]);
    let answer = the_answer(&scene.apply(&entry));
    assert_eq!((answer.granted, answer.dry), (2, None));
}

#[test]
fn who_believes_that_there_is_nothing_is_told_of_refunded_units_and_nobody_else() {
    let mut scene = used_up();
    scene.wait_ms(1_500);
    let out = refund(&mut scene, 3);
    assert_eq!(proposed(&out), []);
    let answer = the_answer(&out);
    assert_eq!((answer.holder, answer.dry), (holder("a"), None));
    assert_eq!((answer.granted, answer.standing.free), (0, 3));
    assert_eq!(answers(&refund(&mut scene, 1)), [], "it knows");

    let mut scene = used_up();
    scene.wait_ms(2_100);
    assert_eq!(
        answers(&refund(&mut scene, 3)),
        [],
        "the word was forgotten"
    );
}

#[test]
fn before_an_epoch_ends_all_that_is_held_comes_back_and_all_that_was_spent_is_told() {
    let mut scene = Scene::new(10);
    scene.give("b", 6);
    scene.give("c", 3);
    let gather = |scene: &mut Scene, begins| {
        let account = account(1);
        let is_done = scene
            .leader
            .gather(scene.now, &scene.book, &account, begins, &mut scene.out);
        (is_done, std::mem::take(&mut scene.out))
    };
    let (is_done, out) = gather(&mut scene, true);
    assert!(!is_done);
    let rounds = recalls(&out);
    assert_eq!(rounds.len(), 2, "{out:?}");
    scene.report("b", told(4, 2), rounds[0].round);
    assert!(!gather(&mut scene, false).0, "c has not answered");
    scene.report("c", told(3, 0), rounds[0].round);
    let (is_done, out) = gather(&mut scene, false);
    assert!(!is_done);
    let entry = the_entry(&out);
    assert_eq!(
        entry.1.returns,
        [(holder("b"), told(4, 2)), (holder("c"), told(3, 0))]
    );
    assert_eq!(
        gather(&mut scene, false),
        (false, Vec::new()),
        "it is on its way"
    );
    scene.apply(&entry);
    assert_eq!(gather(&mut scene, false), (true, Vec::new()));
    let out: u64 = scene
        .book
        .tallies(&account(1), minute().id)
        .map(|(_, tally)| tally.outstanding())
        .sum();
    assert_eq!(out, 0);
}

#[test]
fn a_region_that_does_not_answer_is_not_waited_for() {
    let mut scene = Scene::new(10);
    scene.give("b", 6);
    let account = account(1);
    let gather = |scene: &mut Scene, begins| {
        let Scene {
            leader, book, now, ..
        } = scene;
        leader.gather(*now, book, &account, begins, &mut Vec::new())
    };
    assert!(!gather(&mut scene, true));
    // 1.3 of the longest round trip, and 30 ms.
    scene.wait_ms(100);
    assert!(!gather(&mut scene, false));
    scene.wait_ms(Span::from_ms(61).as_ms_ceil());
    assert!(gather(&mut scene, false));
}
