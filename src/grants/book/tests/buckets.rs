//! Buckets: each rule by itself.

use super::account;
use super::holder;
use super::told;
use crate::algorithm::bucket::Flow;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::account::Quota;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::Book;
use crate::grants::book::Charge;
use crate::grants::book::NotTaken;

pub(super) const START: Timestamp = Timestamp::from_unix_ms(1_000_000);

pub(super) fn flow(capacity: u64, rate: u64) -> Flow {
    Flow {
        capacity,
        rate,
        per: Span::from_seconds(1),
    }
}

/// A book with one bucket, and its log time.
struct Scene {
    book: Book,
    log: Timestamp,
    quota: Quota,
    epoch: u64,
    window: Window,
}

impl Scene {
    fn new(capacity: u64, rate: u64) -> Self {
        let mut book = Book::default();
        for region in ["a", "b", "c"] {
            book.enroll(START, &holder(region, 1));
        }
        Self {
            book,
            log: START,
            quota: flow(capacity, rate).into(),
            epoch: 1,
            window: Window::endless(START),
        }
    }

    fn wait_ms(&mut self, ms: u64) {
        self.log = self.log.plus(Span::from_ms(ms));
    }

    fn send(&mut self, region: &str, totals: Totals, to: Option<u64>) -> Result<u64, NotTaken> {
        let holder = holder(
            region,
            self.book.newest(&holder(region, 1).region).expect("it"),
        );
        let transfer = Transfer {
            account: account(self.epoch),
            window: self.window,
            returns: vec![(holder.clone(), totals)],
            grants: to.map(|to| (holder, to)).into_iter().collect(),
        };
        let taken = self.book.transfer(self.log, &transfer, self.quota);
        assert_eq!(self.book.imbalances(), []);
        taken.map(|taken| taken.granted.first().map_or(0, |(_, total)| *total))
    }

    fn grant(&mut self, region: &str, to: u64) -> u64 {
        self.send(region, Totals::default(), Some(to))
            .expect("taken")
    }

    fn tell(&mut self, region: &str, totals: Totals) {
        self.send(region, totals, None).expect("taken");
    }

    fn free(&self) -> i128 {
        self.book
            .preview(self.log, &account(self.epoch), self.window, self.quota)
            .expect("open")
            .free
    }

    fn drawn(&self) -> u128 {
        let (account, id) = (account(self.epoch), self.window.id);
        let standing = self.book.standing_at(self.log, &account, id, None);
        standing.expect("open").drawn
    }
}

#[test]
fn it_earns_by_the_nanosecond_and_never_above_its_capacity() {
    let mut scene = Scene::new(5, 3);
    assert_eq!(scene.grant("a", 9), 5);
    scene.tell("a", told(5, 0));
    scene.log = scene.log.plus(Span::from_nanos(333_333_333));
    assert_eq!(scene.free(), 0);
    scene.log = scene.log.plus(Span::from_nanos(1));
    assert_eq!(scene.free(), 1);
    // Looks at odd times lose nothing.
    for _ in 0..7 {
        scene.log = scene.log.plus(Span::from_nanos(111_111_111));
        scene.tell("a", told(5, 0));
    }
    assert_eq!(scene.free(), 3, "3 a second for 1.11 s");
    scene.wait_ms(60_000);
    assert_eq!((scene.free(), scene.drawn()), (5, 0));
}

#[test]
fn units_in_the_field_are_still_in_the_bucket() {
    let mut scene = Scene::new(10, 1);
    scene.grant("a", 6);
    scene.wait_ms(60_000);
    assert_eq!((scene.free(), scene.drawn()), (4, 0));
    // Spent now, as far as the book knows: nothing was earned before.
    scene.tell("a", told(6, 0));
    assert_eq!(scene.free(), 4);
    scene.wait_ms(2_000);
    assert_eq!(scene.free(), 6);
    // What comes back is there at once, and leaves no room to earn in.
    scene.grant("b", 6);
    scene.tell("b", told(0, 6));
    assert_eq!(scene.free(), 6);
}

#[test]
fn what_was_not_told_is_spent_when_the_lease_ends() {
    let mut scene = Scene::new(10, 1);
    scene.grant("a", 8);
    scene.tell("a", told(3, 0));
    scene.wait_ms(20_000);
    assert_eq!(scene.free(), 5, "the three that were spent");
    scene.book.lapse(scene.log, &holder("a", 1));
    assert_eq!(scene.free(), 5, "not before it can have earned");
    scene.wait_ms(2_000);
    assert_eq!(scene.free(), 7);
    // It had given two back and the word was lost: they stay spent, and so do two more that may be those.
    scene.tell("a", told(6, 2));
    assert_eq!(scene.free(), 7);
    assert_eq!(scene.grant("a", 10), 10);
    scene.tell("a", told(6, 4));
    assert_eq!(scene.free(), 5);
    let id = scene.window.id;
    assert_eq!(scene.book.lapsed_to(&account(1), id, &holder("a", 1)), 8);
    // A second end of its lease, noticed at the next touch and as of when it was.
    scene.grant("a", 12);
    scene.wait_ms(1_000);
    scene.book.lapse(scene.log, &holder("a", 1));
    scene.wait_ms(60_000);
    assert_eq!(scene.free(), 10);
}

#[test]
fn what_a_replaced_process_held_is_spent() {
    let mut scene = Scene::new(10, 1);
    scene.grant("a", 8);
    scene.wait_ms(1_000);
    scene.book.enroll(scene.log, &holder("a", 2));
    scene.wait_ms(3_000);
    assert_eq!(scene.free(), 5);
    let standing = scene
        .book
        .standing_at(scene.log, &account(1), scene.window.id, None);
    assert_eq!(standing.expect("open").stranded, 0);
    // Of a region that has departed nothing is known until its lease ends.
    scene.grant("b", 5);
    scene.book.depart(scene.log, &holder("b", 1).region);
    assert!(scene.book.leased().any(|leased| leased == holder("b", 1)));
    scene.wait_ms(60_000);
    assert_eq!(scene.free(), 5);
    scene.book.lapse(scene.log, &holder("b", 1));
    // Of who is no member any more the end of the lease is noticed when the bucket is touched.
    scene.tell("a", Totals::default());
    scene.wait_ms(1_000);
    assert_eq!(scene.free(), 6);
    assert!(!scene.book.leased().any(|leased| leased == holder("b", 1)));
}

#[test]
fn a_changed_capacity_keeps_the_use() {
    let mut scene = Scene::new(10, 1);
    scene.grant("a", 4);
    scene.tell("a", told(4, 0));
    scene.quota = flow(100, 1).into();
    assert_eq!(scene.free(), 96);
    scene.quota = flow(3, 1).into();
    scene.tell("a", told(4, 0));
    assert_eq!(scene.free(), -1);
    assert_eq!(scene.grant("a", 9), 4);
    scene.wait_ms(2_000);
    assert_eq!(scene.grant("a", 9), 5);
    // Up and down again makes no units.
    scene.quota = flow(50, 1).into();
    scene.tell("a", told(4, 0));
    scene.quota = flow(3, 1).into();
    scene.tell("a", told(4, 0));
    assert_eq!(scene.grant("a", 9), 5);
}

#[test]
fn nothing_is_earned_over_a_jump() {
    let mut scene = Scene::new(10, 1);
    scene.grant("a", 10);
    scene.tell("a", told(10, 0));
    scene.wait_ms(500);
    scene.tell("a", told(10, 0));
    scene.wait_ms(30_000);
    scene.book.skip(scene.log);
    assert_eq!(scene.free(), 0);
    scene.wait_ms(499);
    assert_eq!(scene.free(), 0);
    scene.wait_ms(1);
    assert_eq!(scene.free(), 1);
}

#[test]
fn it_is_charged_and_refunded_up_to_its_capacity() {
    let mut scene = Scene::new(5, 1);
    let charge = Charge {
        account: account(1),
        window: scene.window,
        holder: holder("a", 1),
        totals: Totals::default(),
        units: 4,
    };
    let part = [(&charge, scene.quota)];
    assert!(scene.book.charge(scene.log, &part).is_ok());
    let refused = scene.book.charge(scene.log, &part);
    assert_eq!(refused, Err((0, NotTaken::Empty)));
    scene.wait_ms(1_500);
    let id = scene.window.id;
    let a = holder("a", 1);
    let refund = |scene: &mut Scene, units| {
        let none = Totals::default();
        scene
            .book
            .refund(scene.log, &account(1), id, &a, none, units)
    };
    assert_eq!(refund(&mut scene, 1), 1);
    assert_eq!(refund(&mut scene, 9), 2, "the last one in part");
    assert_eq!((scene.free(), scene.drawn()), (5, 0));
    assert_eq!(refund(&mut scene, 9), 0);
    assert_eq!(scene.book.imbalances(), []);
}

#[test]
fn it_is_forgotten_when_it_is_full_and_never_opened_under_the_old_name() {
    let mut scene = Scene::new(5, 1);
    scene.grant("a", 1);
    scene.wait_ms(3_600_000);
    assert_eq!(scene.book.expire(scene.log, 9), [], "a unit is held");
    scene.tell("a", told(0, 1));
    scene.wait_ms(59_999);
    assert_eq!(scene.book.expire(scene.log, 9), []);
    scene.wait_ms(70_001);
    let closed = scene.book.expire(scene.log, 9);
    assert_eq!((closed.len(), scene.book.counters()), (1, 0));
    let late = scene.send("a", Totals::default(), Some(2));
    assert_eq!(late, Err(NotTaken::WindowClosed));
    // What was told of the old one does nothing to the new one.
    let old = scene.window.id;
    scene.window = Window::endless(scene.log);
    assert_eq!(scene.grant("a", 2), 2);
    let said = [(holder("a", 1), told(1, 1))];
    scene.book.returns(scene.log, &account(1), old, &said);
    assert_eq!(scene.free(), 3);
    // Another name while it is open is refused.
    scene.wait_ms(1_000);
    scene.window = Window::endless(scene.log);
    let other = scene.send("a", Totals::default(), Some(3));
    assert_eq!(other, Err(NotTaken::WindowClosed));
}

#[test]
fn a_new_epoch_begins_without_what_the_old_one_has_out() {
    let mut scene = Scene::new(10, 1);
    scene.grant("a", 6);
    scene.wait_ms(1_000);
    scene.epoch = 2;
    scene.window = Window::endless(scene.log);
    assert_eq!(scene.grant("b", 10), 4);
    scene.wait_ms(2_000);
    assert_eq!(scene.free(), 2);
    // The old one goes when nothing of it is out.
    scene.wait_ms(100_000);
    assert_eq!(scene.book.expire(scene.log, 9), []);
    scene.book.lapse(scene.log, &holder("a", 1));
    scene.wait_ms(100_000);
    assert_eq!(scene.book.expire(scene.log, 9).len(), 1);
}
