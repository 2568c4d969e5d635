//! Empty pools: who is told what, when units are recalled and to whom they go.

use crate::domain::time::Span;
use crate::grants::account::Totals;
use crate::grants::leader::tests::Scene;
use crate::grants::leader::tests::answers;
use crate::grants::leader::tests::grants_of;
use crate::grants::leader::tests::holder;
use crate::grants::leader::tests::proposed;
use crate::grants::leader::tests::recalls;
use crate::grants::leader::tests::the_answer;
use crate::grants::leader::tests::the_entry;
use crate::grants::leader::tests::told;
use crate::grants::leader::tests::told_all;

/// b and c hold all of 10 units, and a asked for 4.
fn dry_scene() -> (Scene, u64) {
    let mut scene = Scene::new(10);
    scene.give("b", 6);
    scene.give("c", 4);
    let out = scene.ask("a", 4, 9, Totals::default());
    let answer = the_answer(&out);
    let dry = answer.dry.expect("dry");
    assert_eq!((dry.lasts, dry.recalling), (Span::from_seconds(1), true));
    let asked: Vec<String> = recalls(&out)
        .iter()
        .map(|recall| recall.holder.region.to_string())
        .collect();
    assert_eq!(asked, ["b", "c"]);
    let round = recalls(&out)[0].round;
    (scene, round)
}

#[test]
fn what_comes_back_goes_to_the_hungry_in_one_entry() {
    let (mut scene, round) = dry_scene();
    let out = scene.report("b", told(3, 3), round);
    let entry = the_entry(&out);
    assert_eq!(entry.1.returns, [(holder("b"), told(3, 3))]);
    assert_eq!(grants_of(&entry), [("a".to_owned(), 3)]);
    assert_eq!(answers(&out), []);
    let out = scene.report("c", told(2, 2), round);
    let second = the_entry(&out);
    // 1 was still needed, and half of what is left is worth holding.
    assert_eq!(grants_of(&second), [("a".to_owned(), 4)]);
    let answer = the_answer(&scene.apply(&entry));
    assert_eq!(
        (answer.granted, answer.dry, answer.stamp.echo),
        (3, None, None)
    );
    let answer = the_answer(&scene.apply(&second));
    assert_eq!((answer.granted, answer.dry), (4, None));
}

#[test]
fn one_round_runs_at_a_time_and_ends_when_all_have_answered() {
    let (mut scene, round) = dry_scene();
    let out = scene.ask("a", 5, 9, Totals::default());
    assert_eq!(recalls(&out), []);
    assert!(the_answer(&out).dry.is_some_and(|dry| dry.recalling));
    assert_eq!(scene.report("b", told(6, 0), round), []);
    // An answer to another round does not end this one.
    assert_eq!(scene.report("c", told(3, 0), round + 1), []);
    let out = scene.report("c", told(4, 0), round);
    let answer = the_answer(&out);
    assert_eq!(answer.holder, holder("a"));
    assert!(answer.dry.is_some_and(|dry| !dry.recalling));
}

#[test]
fn a_round_ends_after_the_longest_round_trip() {
    let (mut scene, _) = dry_scene();
    // 1.3 of 200 ms and 30 ms.
    assert_eq!(scene.wait_ms(289), []);
    let answer = the_answer(&scene.wait_ms(1));
    assert!(answer.dry.is_some_and(|dry| !dry.recalling));
    // Units that come later are pushed all the same, for a second after the ask.
    let entry = the_entry(&scene.report("b", told(0, 2), 0));
    assert_eq!(grants_of(&entry), [("a".to_owned(), 2)]);
    let (mut scene, round) = dry_scene();
    scene.wait_ms(1_000);
    assert_eq!(proposed(&scene.report("b", told(0, 2), round)), []);
}

#[test]
fn regions_that_hold_nothing_or_are_not_heard_are_not_asked() {
    let mut scene = Scene::new(10);
    scene.give("b", 6);
    scene.give("c", 4);
    scene.report("b", told(6, 0), 0);
    scene.now.boot = scene.now.boot.plus(Span::from_ms(1_001));
    let out = scene.ask("a", 1, 1, Totals::default());
    assert!(the_answer(&out).dry.is_some_and(|dry| !dry.recalling));
    assert_eq!(recalls(&out), []);
}

#[test]
fn a_return_in_an_ask_serves_others_too() {
    let (mut scene, _) = dry_scene();
    let out = scene.ask("c", 0, 0, told(1, 3));
    let entry = the_entry(&out);
    assert_eq!(entry.1.returns, [(holder("c"), told(1, 3))]);
    assert_eq!(grants_of(&entry), [("a".to_owned(), 3)]);
}

#[test]
fn the_hungry_share_by_demand() {
    let (mut scene, round) = dry_scene();
    let dry = the_answer(&scene.ask("c", 8, 8, told(4, 0))).dry;
    assert!(dry.is_some());
    let out = scene.report("b", told(0, 6), round);
    let entry = the_entry(&out);
    let mut grants = grants_of(&entry);
    grants.sort();
    assert_eq!(grants, [("a".to_owned(), 3), ("c".to_owned(), 7)]);
}

#[test]
fn the_last_word_is_shorter_near_the_end_of_the_window() {
    let mut scene = Scene::new(10);
    scene.give("b", 10);
    scene.wait_ms(58_700);
    let dry = the_answer(&scene.ask("a", 1, 1, Totals::default())).dry;
    assert_eq!(dry.expect("dry").lasts, Span::from_ms(300));
}

#[test]
fn a_lowered_quota_is_noted_and_recalled() {
    let mut scene = Scene::new(10);
    scene.give("b", 6);
    scene.give("c", 2);
    scene.quota = 5;
    let mut out = Vec::new();
    let Scene {
        leader, book, now, ..
    } = &mut scene;
    let account = crate::grants::leader::tests::account(1);
    leader.set_quota(*now, book, &account, 5, &mut out);
    assert_eq!(recalls(&out).len(), 2);
    scene.apply(&the_entry(&out));
    let standing = scene.book.standing(&account, recalls(&out)[0].window, None);
    assert_eq!(standing.map(|standing| standing.quota), Some(5));
    let round = recalls(&out)[0].round;
    scene.report("b", told(6, 0), round);
    scene.report("c", told(0, 0), round);
    // One unit may still be out too much: it is asked for again.
    let out = scene.wait_ms(1_000);
    let asked: Vec<String> = recalls(&out)
        .iter()
        .map(|recall| recall.holder.region.to_string())
        .collect();
    assert_eq!(asked, ["c"]);
}

#[test]
fn a_raised_quota_goes_to_the_hungry() {
    let (mut scene, _) = dry_scene();
    scene.quota = 12;
    let mut out = Vec::new();
    let Scene {
        leader, book, now, ..
    } = &mut scene;
    let account = crate::grants::leader::tests::account(1);
    leader.set_quota(*now, book, &account, 12, &mut out);
    let entries = proposed(&out);
    assert_eq!(
        grants_of(&entries[entries.len() - 1]),
        [("a".to_owned(), 2)]
    );
}

#[test]
fn what_comes_back_to_an_earlier_epoch_serves_the_newest() {
    let mut scene = Scene::new(10);
    scene.give("b", 10);
    scene.epoch = 2;
    let out = scene.ask("a", 4, 4, Totals::default());
    assert!(the_answer(&out).dry.is_some());
    // The book learns of the new epoch by its first entry, here a charge of nothing.
    let first = crate::grants::account::Transfer {
        account: crate::grants::leader::tests::account(2),
        window: crate::grants::leader::tests::minute(),
        returns: Vec::new(),
        grants: vec![(holder("a"), 0)],
    };
    let taken = scene.book.transfer(scene.now.log, &first, 10);
    assert_eq!(taken.map(|taken| taken.standing.free), Ok(0));
    scene.epoch = 1;
    let back = the_entry(&scene.report("b", told(3, 7), 0));
    scene.epoch = 2;
    let out = scene.apply(&back);
    assert_eq!(grants_of(&the_entry(&out)), [("a".to_owned(), 4)]);
    assert_eq!(told_all(&out), []);
}
