//! Asks that can be met, and the plan that keeps them apart.

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::book::Book;
use crate::grants::book::NotTaken;
use crate::grants::leader::Action;
use crate::grants::leader::DRY_MAX;
use crate::grants::leader::ENTRIES_IN_FLIGHT_MAX;
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
use crate::grants::leader::tests::told_all;
use crate::grants::message::Pulse;
use crate::grants::message::ToRegion;
use crate::grants::message::Why;

#[test]
fn an_ask_is_answered_once_its_entry_is_applied() {
    let mut scene = Scene::new(100);
    let out = scene.ask("a", 4, 4, Totals::default());
    let entry = the_entry(&out);
    assert_eq!(answers(&out), []);
    assert_eq!(grants_of(&entry), [("a".to_owned(), 4)]);
    let answer = the_answer(&scene.apply(&entry));
    assert_eq!((answer.granted, answer.dry), (4, None));
    assert_eq!(answer.stamp.echo, Some(Span::from_nanos(4)));
    assert_eq!(
        (answer.stamp.term, answer.stamp.log_time),
        (7, scene.now.log)
    );
    assert_eq!((answer.standing.quota, answer.standing.free), (100, 96));
}

#[test]
fn more_than_needed_is_half_of_the_regions_share() {
    let mut scene = Scene::new(100);
    // All demand is a's: 10 needed, half of the other 90.
    let entry = the_entry(&scene.ask("a", 10, 100, Totals::default()));
    assert_eq!(grants_of(&entry), [("a".to_owned(), 55)]);
    scene.apply(&entry);
    // Half of the demand is b's: a quarter of 45.
    let entry = the_entry(&scene.ask("b", 0, 100, Totals::default()));
    assert_eq!(grants_of(&entry), [("b".to_owned(), 11)]);
}

#[test]
fn asks_in_flight_are_never_promised_the_same_unit() {
    let mut scene = Scene::new(10);
    let first = the_entry(&scene.ask("a", 7, 7, Totals::default()));
    let out = scene.ask("b", 7, 7, Totals::default());
    let second = the_entry(&out);
    assert_eq!(grants_of(&second), [("b".to_owned(), 3)]);
    // A third finds nothing, and no region holds anything yet.
    let answer = the_answer(&scene.ask("c", 1, 1, Totals::default()));
    let dry = answer.dry.expect("dry");
    assert_eq!((dry.lasts, dry.recalling), (DRY_MAX, false));
    assert_eq!(the_answer(&scene.apply(&first)).granted, 7);
    let answer = the_answer(&scene.apply(&second));
    assert_eq!(answer.granted, 3);
    assert!(answer.dry.is_some());
}

/// The book may be ahead of what the leader was told about its entries: units that are in it must not be
/// counted again as planned.
#[test]
fn an_entry_that_is_in_the_book_already_is_not_planned_any_more() {
    let mut scene = Scene::new(10);
    let first = the_entry(&scene.ask("a", 6, 6, Totals::default()));
    scene.commit(&first).expect("taken");
    let out = scene.ask("b", 4, 4, Totals::default());
    assert_eq!(grants_of(&the_entry(&out)), [("b".to_owned(), 4)]);
}

#[test]
fn repeated_and_late_asks_make_no_entry() {
    let mut scene = Scene::new(10);
    let entry = the_entry(&scene.ask("a", 5, 5, Totals::default()));
    // While the entry is on its way its repetition waits.
    assert_eq!(scene.ask("a", 5, 5, Totals::default()), []);
    let out = scene.apply(&entry);
    let granted: Vec<u64> = answers(&out).iter().map(|answer| answer.granted).collect();
    assert_eq!(granted, [5, 5]);
    let answer = the_answer(&scene.ask("a", 3, 3, Totals::default()));
    assert_eq!((answer.granted, answer.dry), (5, None));
}

#[test]
fn an_empty_pool_is_not_dry_for_a_region_without_waiting_checks() {
    let mut scene = Scene::new(10);
    scene.give("a", 10);
    let out = scene.ask("a", 10, 20, told(4, 0));
    let answer = the_answer(&out);
    assert_eq!((answer.granted, answer.dry), (10, None));
    assert_eq!((recalls(&out), proposed(&out)), (vec![], vec![]));
    let out = scene.ask("b", 0, 5, Totals::default());
    assert_eq!(the_answer(&out).dry, None);
}

#[test]
fn a_dry_word_never_overtakes_a_grant() {
    let mut scene = Scene::new(10);
    let first = the_entry(&scene.ask("a", 10, 10, Totals::default()));
    // The pool is planned empty, but a's own grant is on its way: no word before it.
    let out = scene.ask("a", 12, 12, Totals::default());
    assert_eq!(told_all(&out), []);
    let out = scene.apply(&first);
    let told: Vec<(u64, bool)> = answers(&out)
        .iter()
        .map(|answer| (answer.granted, answer.dry.is_some()))
        .collect();
    assert_eq!(told, [(10, true), (10, true)]);
}

#[test]
fn a_lost_entry_frees_its_units() {
    let mut scene = Scene::new(10);
    let lost = the_entry(&scene.ask("a", 10, 10, Totals::default()));
    let dry = the_answer(&scene.ask("b", 1, 1, Totals::default())).dry;
    assert!(dry.is_some());
    scene.leader.failed(scene.now, &scene.book, lost.0);
    let entry = the_entry(&scene.ask("b", 8, 8, Totals::default()));
    assert_eq!(grants_of(&entry), [("b".to_owned(), 8)]);
    // It was appended after all: the book cuts the later one, and b is told what it has.
    scene.commit(&lost).expect("taken");
    let out = scene.apply(&entry);
    let answer = the_answer(&out);
    assert_eq!(answer.granted, 0);
    assert!(answer.dry.is_some_and(|dry| dry.recalling));
    assert_eq!(recalls(&out).len(), 1);
}

#[test]
fn asks_beyond_the_entries_in_flight_wait_for_one() {
    let mut scene = Scene::new(1_000);
    let mut entries = Vec::new();
    for to in 1..=ENTRIES_IN_FLIGHT_MAX as u64 {
        entries.push(the_entry(&scene.ask("a", to, to, Totals::default())));
    }
    assert_eq!(scene.ask("b", 5, 5, Totals::default()), []);
    let out = scene.apply(&entries[0]);
    let entry = the_entry(&out);
    assert_eq!(grants_of(&entry), [("b".to_owned(), 5)]);
    let to_b = |out: &[Action]| {
        let answers = answers(out).into_iter();
        answers
            .filter(|answer| answer.holder == holder("b"))
            .map(|answer| (answer.granted, answer.dry, answer.stamp.echo))
            .collect::<Vec<_>>()
    };
    assert_eq!(to_b(&out), []);
    let out = scene.apply(&entry);
    assert_eq!(to_b(&out), [(5, None, Some(Span::from_nanos(5)))]);
}

#[test]
fn a_region_that_restarts_gets_only_what_waits() {
    let mut scene = Scene::new(100);
    let mut again = holder("b");
    again.incarnation = 2;
    scene.book.enroll(scene.now.log, &again);
    // The ended process gets no answer at all.
    assert_eq!(scene.ask("b", 5, 50, Totals::default()), []);
    let mut third = scene.ask("a", 5, 50, Totals::default());
    assert_eq!(grants_of(&the_entry(&third)), [("a".to_owned(), 50)]);
    scene.book.enroll(scene.now.log, &holder("b"));
    assert_eq!(scene.book.newest(&again.region), Some(2));
    let ask = crate::grants::message::Ask {
        holder: again,
        account: account(1),
        at: None,
        need_to: 5,
        want_to: 50,
        demand: 1_000,
        totals: Totals::default(),
        sent_boot: Span::ZERO,
    };
    third.clear();
    let Scene {
        book, leader, now, ..
    } = &mut scene;
    leader.ask(*now, book, &ask, minute(), 100, &mut third);
    assert_eq!(grants_of(&the_entry(&third)), [("b".to_owned(), 5)]);
}

#[test]
fn what_cannot_be_granted_is_refused_with_the_reason() {
    let mut scene = Scene::new(10);
    scene.wait_ms(60_000);
    let out = scene.ask("a", 1, 1, Totals::default());
    let [ToRegion::Refused(refused)] = &told_all(&out)[..] else {
        panic!("one refusal: {out:?}");
    };
    assert_eq!(refused.why, Why::WindowClosed);
    assert_eq!(refused.stamp.echo, Some(Span::from_nanos(1)));
    let mut small = Scene::new(10);
    small.book = Book::new(crate::grants::book::Bounds {
        counters_per_tenant_max: 0,
        counters_max: 0,
    });
    small.book.enroll(small.now.log, &holder("a"));
    let out = small.ask("a", 1, 1, Totals::default());
    let [ToRegion::Refused(refused)] = &told_all(&out)[..] else {
        panic!("one refusal: {out:?}");
    };
    assert_eq!(refused.why, Why::Capacity);
}

#[test]
fn an_entry_that_the_book_does_not_take_is_answered_with_the_reason() {
    let mut scene = Scene::new(10);
    let entry = the_entry(&scene.ask("a", 1, 1, Totals::default()));
    let refused = Err(NotTaken::Capacity);
    scene
        .leader
        .applied(scene.now, &scene.book, entry.0, &refused, &mut scene.out);
    let out = std::mem::take(&mut scene.out);
    assert!(
        matches!(&told_all(&out)[..], [ToRegion::Refused(refused)] if refused.why == Why::Capacity)
    );
}

#[test]
fn a_pulse_tells_the_slowest_living_region() {
    let mut scene = Scene::new(10);
    let pulse = |region: &str, refill_ms| Pulse {
        holder: holder(region),
        sent_boot: Span::from_ms(5),
        refill: Span::from_ms(refill_ms),
        region_time: scene.now.log,
    };
    let (slow, fast) = (pulse("c", 900), pulse("a", 90));
    let slowest = |scene: &mut Scene, pulse: &Pulse| {
        let mut out = Vec::new();
        scene.leader.pulse(scene.now, &scene.book, pulse, &mut out);
        match &told_all(&out)[..] {
            [ToRegion::Pulse(answer)] => (answer.slowest_refill, answer.stamp.echo),
            other => panic!("one answer: {other:?}"),
        }
    };
    let echo = Some(Span::from_ms(5));
    slowest(&mut scene, &slow);
    assert_eq!(slowest(&mut scene, &fast), (Span::from_ms(900), echo));
    scene.now.boot = scene.now.boot.plus(Span::from_ms(1_001));
    assert_eq!(slowest(&mut scene, &fast), (Span::from_ms(90), echo));
    // One that never enrolled is answered and changes nothing.
    let stranger = Pulse {
        holder: Holder {
            region: RegionName::new("z").expect("a region's name"),
            incarnation: 1,
        },
        ..slow
    };
    assert_eq!(slowest(&mut scene, &stranger), (Span::from_ms(90), echo));
}
