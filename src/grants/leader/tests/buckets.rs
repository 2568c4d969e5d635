//! Buckets: their windows, leases, and asks of those who know another one.

use super::Scene;
use super::account;
use super::answers;
use super::holder;
use super::proposed;
use super::told;
use crate::algorithm::bucket::Flow;
use crate::domain::time::Span;
use crate::domain::time::Window;
use crate::grants::account::Totals;
use crate::grants::exchange::LEASE;
use crate::grants::leader::Action;
use crate::grants::leader::EARLIER_LEADERS;
use crate::grants::leader::LAPSE_MARGIN;
use crate::grants::message::Ask;
use crate::grants::message::Pulse;
use crate::grants::message::Report;
use crate::grants::message::ToRegion;

const FLOW: Flow = Flow {
    capacity: 10,
    rate: 1,
    per: Span::from_seconds(1),
};

impl Scene {
    fn bucket(&mut self) -> Window {
        let (now, book) = (self.now, &self.book);
        self.leader.bucket_window(now, book, &account(1), FLOW)
    }

    /// Asks for `need` units, by totals of the bucket that began at `at`.
    fn ask_bucket(
        &mut self,
        region: &str,
        need: u64,
        totals: Totals,
        known: Option<Window>,
    ) -> Vec<Action> {
        let done = totals.spent + totals.returned;
        let ask = Ask {
            holder: holder(region),
            account: account(1),
            at: known.map(|window| window.start),
            need_to: done + need,
            want_to: done + need,
            demand: 1_000,
            totals,
            sent_boot: self.now.boot,
        };
        let window = self.bucket();
        self.leader
            .ask(self.now, &self.book, &ask, window, FLOW, &mut self.out);
        std::mem::take(&mut self.out)
    }

    fn apply_bucket(&mut self, out: &[Action]) -> Vec<Action> {
        for (ticket, transfer) in proposed(out) {
            let outcome = self.book.transfer(self.now.log, &transfer, FLOW);
            assert_eq!(self.book.imbalances(), []);
            self.leader
                .applied(self.now, &self.book, ticket, &outcome, &mut self.out);
        }
        std::mem::take(&mut self.out)
    }

    fn pulse(&mut self, region: &str) -> Option<Span> {
        let pulse = Pulse {
            holder: holder(region),
            sent_boot: self.now.boot,
            refill: Span::ZERO,
            region_time: self.now.log,
        };
        self.leader
            .pulse(self.now, &self.book, &pulse, &mut self.out);
        match std::mem::take(&mut self.out).pop() {
            Some(Action::Tell(_, ToRegion::Pulse(answer))) => answer.stamp.lease,
            other => panic!("{other:?}"),
        }
    }

    fn ended(&mut self, after: Span) -> Vec<Action> {
        self.now.boot = self.now.boot.plus(after);
        self.now.log = self.now.log.plus(after);
        self.leader.end_leases(self.now, &self.book, &mut self.out);
        std::mem::take(&mut self.out)
    }
}

#[test]
fn asks_before_the_first_entry_mean_the_same_bucket() {
    let mut scene = Scene::new(1);
    let first = scene.ask_bucket("a", 4, Totals::default(), None);
    scene.wait_ms(5);
    let second = scene.ask_bucket("b", 9, Totals::default(), None);
    let windows: Vec<Window> = [&first, &second]
        .iter()
        .flat_map(|out| proposed(out))
        .map(|(_, transfer)| transfer.window)
        .collect();
    assert_eq!(windows.len(), 2);
    assert_eq!(windows[0], windows[1]);
    let said = scene.apply_bucket(&first);
    assert_eq!(answers(&said)[0].granted, 4);
    let said = scene.apply_bucket(&second);
    assert_eq!(answers(&said)[0].granted, 6);
    assert_eq!(scene.bucket(), windows[0]);
}

#[test]
fn dry_lasts_until_a_unit_is_earned() {
    let mut scene = Scene::new(1);
    let out = scene.ask_bucket("a", 10, Totals::default(), None);
    scene.apply_bucket(&out);
    let window = scene.bucket();
    // The bucket earns nothing before its use is known, so that is made known at once.
    let report = Report {
        holder: holder("a"),
        account: account(1),
        window: window.id,
        totals: told(10, 0),
        demand: 0,
        recall: 0,
    };
    let (now, book) = (scene.now, &scene.book);
    scene.leader.report(now, book, &report, &mut scene.out);
    let out = std::mem::take(&mut scene.out);
    assert_eq!(proposed(&out).len(), 1);
    scene.apply_bucket(&out);
    scene.wait_ms(300);
    let out = scene.ask_bucket("a", 1, told(10, 0), Some(window));
    let dry = answers(&out).first().and_then(|answer| answer.dry);
    let lasts = dry.expect("dry").lasts;
    assert_eq!(lasts, Span::from_ms(700));
    scene.wait_ms(lasts.as_ms_ceil());
    let out = scene.ask_bucket("a", 1, told(10, 0), Some(window));
    assert_eq!(proposed(&out).len(), 1, "it has earned");
}

#[test]
fn a_bucket_that_begins_empty_is_opened_and_earns() {
    let mut scene = Scene::new(1);
    // All of the epoch before is held, and does not come back.
    let out = scene.ask_bucket("a", 10, Totals::default(), None);
    scene.apply_bucket(&out);
    scene.wait_ms(100);
    let (now, newer) = (scene.now, account(2));
    let window = scene.leader.bucket_window(now, &scene.book, &newer, FLOW);
    let ask = |scene: &mut Scene| {
        let ask = Ask {
            holder: holder("b"),
            account: account(2),
            at: Some(window.start),
            need_to: 1,
            want_to: 1,
            demand: 1_000,
            totals: Totals::default(),
            sent_boot: scene.now.boot,
        };
        scene
            .leader
            .ask(scene.now, &scene.book, &ask, window, FLOW, &mut scene.out);
        std::mem::take(&mut scene.out)
    };
    let out = ask(&mut scene);
    let entries = proposed(&out);
    assert_eq!((entries.len(), &entries[0].1.grants[..]), (1, &[][..]));
    assert_eq!(proposed(&ask(&mut scene)), [], "one is on its way");
    scene.apply_bucket(&out);
    scene.wait_ms(999);
    assert_eq!(proposed(&ask(&mut scene)), []);
    scene.wait_ms(1);
    let entries = proposed(&ask(&mut scene));
    assert_eq!(entries[0].1.grants, [(holder("b"), 1)]);
}

#[test]
fn totals_of_another_bucket_count_for_nothing() {
    let mut scene = Scene::new(1);
    let out = scene.ask_bucket("a", 4, Totals::default(), None);
    scene.apply_bucket(&out);
    let old = Window::endless(scene.now.log.minus(Span::from_seconds(99)));
    let out = scene.ask_bucket("b", 2, told(500, 20), Some(old));
    let entries = proposed(&out);
    assert_eq!(entries[0].1.grants, [(holder("b"), 2)]);
    assert_eq!(entries[0].1.returns, []);
}

#[test]
fn a_lease_that_nobody_renews_ends_in_the_log() {
    let mut scene = Scene::new(1);
    for region in ["a", "b", "c"] {
        assert_eq!(scene.pulse(region), Some(scene.now.boot));
    }
    let out = scene.ask_bucket("b", 4, Totals::default(), None);
    let said = scene.apply_bucket(&out);
    assert_eq!(answers(&said)[0].stamp.lease, Some(scene.now.boot));
    let full = LEASE.plus(LAPSE_MARGIN);
    // Earlier leaders may have renewed leases for a while.
    assert_eq!(scene.ended(full), []);
    for region in ["a", "c"] {
        scene.pulse(region);
    }
    assert_eq!(scene.ended(EARLIER_LEADERS), [Action::Lapse(holder("b"))]);
    // While the entry is on its way nothing is granted or renewed.
    assert_eq!(scene.pulse("b"), None);
    assert_eq!(scene.ask_bucket("b", 1, Totals::default(), None), []);
    scene.leader.lapsed(&holder("b"), false);
    assert_eq!(scene.pulse("b"), None);
    assert_eq!(
        scene.ended(full.minus(EARLIER_LEADERS).minus(LAPSE_MARGIN)),
        [Action::Lapse(holder("b"))]
    );
    scene.book.lapse(scene.now.log, &holder("b"));
    scene.leader.lapsed(&holder("b"), true);
    for region in ["a", "c"] {
        scene.pulse(region);
    }
    assert_eq!(scene.ended(LEASE), [], "once is enough");
    assert_eq!(scene.pulse("b"), Some(scene.now.boot));
    let window = scene.bucket();
    let out = scene.ask_bucket("b", 1, Totals::default(), Some(window));
    let said = [out.clone(), scene.apply_bucket(&out)].concat();
    let answer = answers(&said).pop().expect("an answer");
    assert_eq!(answer.lapsed_to, 4);
}

#[test]
fn who_may_be_deposed_renews_nothing() {
    let mut scene = Scene::new(1);
    let before = scene.pulse("b");
    scene.wait_ms(1_000);
    scene.leader.renew_leases(false);
    assert_eq!(scene.pulse("b"), before);
    scene.leader.renew_leases(true);
    assert_eq!(scene.pulse("b"), Some(scene.now.boot));
}
