//! Charges that the leader decides.

use crate::domain::time::Span;
use crate::grants::account::Totals;
use crate::grants::book::Charge;
use crate::grants::book::NotTaken;
use crate::grants::leader::Action;
use crate::grants::leader::tests::Scene;
use crate::grants::leader::tests::account;
use crate::grants::leader::tests::grants_of;
use crate::grants::leader::tests::holder;
use crate::grants::leader::tests::minute;
use crate::grants::leader::tests::recalls;
use crate::grants::leader::tests::the_answer;
use crate::grants::leader::tests::the_entry;
use crate::grants::leader::tests::told;

const SECOND: Span = Span::from_seconds(1);

fn refused(ticket: u64, why: NotTaken, retry: Span) -> Action {
    Action::RefuseCharge { ticket, why, retry }
}

/// Applies the charge's entry, as the shell does, and lets the leader know.
fn charge_applied(scene: &mut Scene, ticket: u64, region: &str, units: u64, totals: Totals) {
    let charge = Charge {
        account: account(1),
        window: minute(),
        holder: holder(region),
        totals,
        units,
    };
    let charged = scene.book.charge(scene.now.log, &[(&charge, scene.quota)]);
    charged.expect("what was planned fits");
    let Scene {
        leader,
        book,
        now,
        out,
        ..
    } = scene;
    leader.charged(*now, book, ticket, true, out);
}

#[test]
fn a_charge_that_fits_is_made_at_once_and_planned() {
    let mut scene = Scene::new(10);
    let out = scene.charge(1, "a", 6, Totals::default());
    assert_eq!(out, [Action::Charge { ticket: 1 }]);
    // It is on its way: only 4 are left for others.
    let out = scene.ask("b", 6, 6, Totals::default());
    let entry = the_entry(&out);
    assert_eq!(grants_of(&entry), [("b".to_owned(), 4)]);
    charge_applied(&mut scene, 1, "a", 6, Totals::default());
    scene.apply(&entry);
    assert_eq!(scene.granted("b"), 4);
    let out = scene.charge(2, "a", 1, Totals::default());
    assert_eq!(recalls(&out).len(), 1);
}

#[test]
fn a_charge_is_counted_once_while_its_end_is_not_noticed() {
    let mut scene = Scene::new(10);
    scene.charge(1, "a", 6, Totals::default());
    let charge = Charge {
        account: account(1),
        window: minute(),
        holder: holder("a"),
        totals: Totals::default(),
        units: 6,
    };
    scene
        .book
        .charge(scene.now.log, &[(&charge, 10)])
        .expect("fits");
    let out = scene.charge(2, "a", 4, Totals::default());
    assert_eq!(out, [Action::Charge { ticket: 2 }]);
}

#[test]
fn what_the_region_gave_back_pays_for_its_charge() {
    let mut scene = Scene::new(10);
    scene.give("a", 10);
    let out = scene.charge(1, "a", 2, told(5, 2));
    assert_eq!(out, [Action::Charge { ticket: 1 }]);
    charge_applied(&mut scene, 1, "a", 2, told(5, 2));
}

#[test]
fn a_charge_waits_one_round_before_it_is_refused() {
    let mut scene = Scene::new(10);
    scene.give("b", 10);
    let out = scene.charge(1, "a", 3, Totals::default());
    let round = recalls(&out)[0].round;
    assert_eq!(out.len(), 1);
    assert_eq!(scene.report("b", told(4, 0), 0), []);
    let out = scene.report("b", told(8, 2), round);
    assert_eq!(out, [refused(1, NotTaken::Empty, SECOND)]);
    // And is made when the round brings enough.
    let out = scene.charge(2, "a", 2, Totals::default());
    assert_eq!(out, [Action::Charge { ticket: 2 }]);
    let mut scene = Scene::new(10);
    scene.give("b", 10);
    let round = recalls(&scene.charge(1, "a", 3, Totals::default()))[0].round;
    let out = scene.report("b", told(5, 5), round);
    assert_eq!(out, [Action::Charge { ticket: 1 }]);
}

#[test]
fn a_charge_is_refused_when_the_round_is_over_without_an_answer() {
    let mut scene = Scene::new(10);
    scene.give("b", 10);
    let out = scene.charge(1, "a", 3, Totals::default());
    assert_eq!(recalls(&out).len(), 1);
    assert_eq!(scene.wait_ms(159), []);
    assert_eq!(scene.wait_ms(1), [refused(1, NotTaken::Empty, SECOND)]);
}

#[test]
fn waiting_charges_come_before_hungry_regions() {
    let mut scene = Scene::new(10);
    scene.give("b", 10);
    let dry = the_answer(&scene.ask("c", 4, 4, Totals::default())).dry;
    assert!(dry.is_some_and(|dry| dry.recalling));
    assert_eq!(scene.charge(1, "a", 3, Totals::default()), []);
    let out = scene.report("b", told(5, 5), 0);
    assert_eq!(out[0], Action::Charge { ticket: 1 });
    assert_eq!(grants_of(&the_entry(&out)), [("c".to_owned(), 2)]);
}

#[test]
fn a_charge_that_can_never_fit_is_refused_at_once() {
    let mut scene = Scene::new(10);
    scene.give("b", 5);
    let out = scene.charge(1, "a", 11, Totals::default());
    assert_eq!(out, [refused(1, NotTaken::Empty, SECOND)]);
    // Nobody holds anything that could come back.
    scene.report("b", told(5, 0), 0);
    let out = scene.charge(2, "a", 6, Totals::default());
    assert_eq!(out, [refused(2, NotTaken::Empty, SECOND)]);
}

#[test]
fn a_failed_charge_frees_its_units() {
    let mut scene = Scene::new(10);
    scene.charge(1, "a", 10, Totals::default());
    let dry = the_answer(&scene.ask("b", 2, 2, Totals::default())).dry;
    assert!(dry.is_some());
    let Scene {
        leader,
        book,
        now,
        out,
        ..
    } = &mut scene;
    leader.charged(*now, book, 1, false, out);
    assert_eq!(grants_of(&the_entry(out)), [("b".to_owned(), 2)]);
}

#[test]
fn a_charge_behind_one_that_failed_is_counted_once() {
    let mut scene = Scene::new(10);
    scene.charge(1, "a", 3, Totals::default());
    scene.charge(2, "a", 2, Totals::default());
    // The book refuses the first and takes the second; the leader hears of the first only.
    let charge = Charge {
        account: account(1),
        window: minute(),
        holder: holder("a"),
        totals: Totals::default(),
        units: 2,
    };
    let charged = scene.book.charge(scene.now.log, &[(&charge, scene.quota)]);
    charged.expect("what was planned fits");
    let Scene {
        leader,
        book,
        now,
        out,
        ..
    } = &mut scene;
    leader.charged(*now, book, 1, false, out);
    let out = scene.ask("b", 9, 9, Totals::default());
    assert_eq!(grants_of(&the_entry(&out)), [("b".to_owned(), 8)]);
}

#[test]
fn a_charge_that_waits_when_its_window_ends_cannot_be_decided() {
    let mut scene = Scene::new(10);
    scene.give("b", 10);
    scene.wait_ms(58_990);
    let out = scene.charge(1, "a", 3, Totals::default());
    assert_eq!(recalls(&out).len(), 1);
    let out = scene.wait_ms(10);
    assert_eq!(out, [refused(1, NotTaken::WindowClosed, Span::ZERO)]);
    let out = scene.charge(2, "a", 3, Totals::default());
    assert_eq!(out, [refused(2, NotTaken::WindowClosed, SECOND)]);
}
