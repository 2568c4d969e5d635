//! Buckets: each rule, and a shadow bucket beside random entries and processes that spend all they may, as late
//! as they may.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::ProptestConfig;
use proptest::prelude::TestCaseError;
use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::proptest;

use super::account;
use super::holder;
use super::told;
use crate::algorithm::bucket::Flow;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::Book;
use crate::grants::book::Charge;
use crate::grants::book::NotTaken;
use crate::grants::exchange::LEASE;
use crate::grants::leader::LAPSE_MARGIN;

const START: Timestamp = Timestamp::from_unix_ms(1_000_000);

fn flow(capacity: u64, rate: u64) -> Flow {
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

// The shadow.

/// A process as it is, whatever the book knows.
#[derive(Clone, Debug, Default)]
struct Process {
    incarnation: u64,
    window: Option<WindowId>,
    received: u64,
    totals: Totals,
    /// When it sent what the leader heard last.
    heard: Option<Timestamp>,
    /// Whether the book has taken the units of that lease for spent.
    is_lapsed: bool,
    /// What it said at some time, for late reports.
    said: Vec<(WindowId, Totals)>,
    /// Answers on their way: when, of which window, granted, lapsed.
    answers: Vec<(Timestamp, WindowId, u64, u64)>,
}

impl Process {
    fn held(&self) -> u64 {
        self.received - self.totals.spent - self.totals.returned
    }

    fn lease_ends(&self) -> Timestamp {
        self.heard.map_or(START, |heard| heard.plus(LEASE))
    }

    /// Its own clock shows `log`: units of a lease that ended are gone.
    fn settle(&mut self, log: Timestamp) {
        if log >= self.lease_ends() {
            self.totals.spent += self.held();
        }
    }
}

struct World {
    book: Book,
    log: Timestamp,
    skipped: Span,
    flow: Flow,
    processes: BTreeMap<&'static str, Process>,
    /// What a single bucket would have drawn, and when: by the clock that leaves jumps out.
    drawn: u128,
    drawn_at: Timestamp,
}

const REGIONS: [&str; 3] = ["a", "b", "c"];

impl World {
    fn new(flow: Flow) -> Self {
        let mut world = Self {
            book: Book::default(),
            log: START,
            skipped: Span::ZERO,
            flow,
            processes: BTreeMap::new(),
            drawn: 0,
            drawn_at: START,
        };
        for region in REGIONS {
            world.replace(region);
        }
        world
    }

    fn holder(&self, region: &str) -> Holder {
        holder(region, self.processes[region].incarnation)
    }

    fn account(&self) -> Account {
        account(1)
    }

    fn process(&mut self, region: &str) -> &mut Process {
        let log = self.log;
        let process = self.processes.get_mut(region).expect("a region");
        process.settle(log);
        process
    }

    fn replace(&mut self, region: &'static str) {
        let before = self.processes.get(region);
        let process = Process {
            incarnation: before.map_or(1, |before| before.incarnation + 1),
            heard: Some(self.log),
            ..Process::default()
        };
        self.processes.insert(region, process);
        let holder = self.holder(region);
        self.book.enroll(self.log, &holder);
    }

    fn window(&self) -> Window {
        let mut open = self.book.windows(&account(1));
        open.next().unwrap_or_else(|| Window::endless(self.log))
    }

    /// The leader hears the process: its lease runs from now.
    fn hear(&mut self, region: &str) {
        let log = self.log;
        let process = self.process(region);
        process.heard = Some(log);
        process.is_lapsed = false;
    }

    fn ask(&mut self, region: &str, units: u64) {
        self.hear(region);
        let window = self.window();
        let holder = self.holder(region);
        let process = self.process(region);
        let totals = if process.window == Some(window.id) {
            process.totals
        } else {
            Totals::default()
        };
        let granted = self.book.tally(&account(1), window.id, &holder).granted;
        let transfer = Transfer {
            account: self.account(),
            window,
            returns: vec![(holder.clone(), totals)],
            grants: vec![(holder.clone(), granted + units)],
        };
        if let Ok(taken) = self.book.transfer(self.log, &transfer, self.flow) {
            let lapsed_to = self.book.lapsed_to(&account(1), window.id, &holder);
            let log = self.log;
            let answer = (log, window.id, taken.granted[0].1, lapsed_to);
            self.process(region).answers.push(answer);
        }
    }

    /// One of the answers on their way arrives, maybe not for the first time.
    fn deliver(&mut self, region: &str, which: usize) {
        let log = self.log;
        let process = self.process(region);
        let Some((sent, window, granted, lapsed_to)) = process
            .answers
            .get(which % process.answers.len().max(1))
            .copied()
        else {
            return;
        };
        if log >= sent.plus(LEASE) {
            return;
        }
        if process.window < Some(window) {
            process.window = Some(window);
            process.received = 0;
            process.totals = Totals::default();
        }
        if process.window == Some(window) {
            process.received = process.received.max(granted);
            let done = process.totals.spent + process.totals.returned;
            process.totals.spent += lapsed_to.saturating_sub(done);
        }
    }

    fn spend(&mut self, region: &str, units: u64) -> Result<(), TestCaseError> {
        let process = self.process(region);
        let units = units.min(process.held());
        process.totals.spent += units;
        self.admit(units)
    }

    fn admit(&mut self, units: u64) -> Result<(), TestCaseError> {
        let per = u128::from(self.flow.per.as_nanos());
        let clock = self.log.minus(self.skipped);
        let earned = u128::from(clock.since(self.drawn_at).as_nanos()) * u128::from(self.flow.rate);
        self.drawn_at = self.drawn_at.max(clock);
        self.drawn = self.drawn.saturating_sub(earned) + u128::from(units) * per;
        prop_assert!(
            self.drawn <= u128::from(self.flow.capacity) * per,
            "more than a bucket has"
        );
        Ok(())
    }

    fn tell(&mut self, region: &str, late: Option<usize>) {
        let holder = self.holder(region);
        let process = self.process(region);
        if let Some(window) = process.window {
            process.said.push((window, process.totals));
        }
        let said = match late {
            Some(which) if !process.said.is_empty() => {
                process.said.get(which % process.said.len()).copied()
            }
            _ => process.said.last().copied(),
        };
        if let Some((window, totals)) = said {
            self.book
                .returns(self.log, &account(1), window, &[(holder, totals)]);
        }
    }

    fn give(&mut self, region: &str, units: u64) {
        let process = self.process(region);
        process.totals.returned += units.min(process.held());
    }

    /// The leader ends leases that ran out.
    fn end_leases(&mut self) {
        for region in REGIONS {
            let log = self.log;
            let process = self.process(region);
            let is_over = log >= process.lease_ends().plus(LAPSE_MARGIN);
            if is_over && !process.is_lapsed {
                process.is_lapsed = true;
                let holder = self.holder(region);
                self.book.lapse(log, &holder);
            }
        }
    }

    fn charge(&mut self, region: &str, units: u64) -> Result<(), TestCaseError> {
        let charge = Charge {
            account: self.account(),
            window: self.window(),
            holder: self.holder(region),
            totals: Totals::default(),
            units,
        };
        if self.book.charge(self.log, &[(&charge, self.flow)]).is_ok() {
            self.admit(units)?;
        }
        Ok(())
    }

    fn refund(&mut self, region: &str, units: u64) {
        let holder = self.holder(region);
        let window = self.window().id;
        let process = self.process(region);
        let totals = if process.window == Some(window) {
            process.totals
        } else {
            Totals::default()
        };
        let credited = self
            .book
            .refund(self.log, &account(1), window, &holder, totals, units);
        let per = u128::from(self.flow.per.as_nanos());
        self.drawn = self.drawn.saturating_sub(u128::from(credited) * per);
    }

    fn step(
        &mut self,
        (kind, which, units, ms): (u8, usize, u64, u64),
    ) -> Result<(), TestCaseError> {
        let region = REGIONS[which % 3];
        match kind {
            0..=3 => self.ask(region, units),
            4..=5 => self.deliver(region, which),
            6..=7 => self.spend(region, units)?,
            8 => self.tell(region, None),
            9 => self.tell(region, Some(which)),
            10 => self.give(region, units),
            11 => self.hear(region),
            12 => {
                // At the last instant everything is spent, and nobody is told.
                let last = self.processes[region].lease_ends();
                let last = last.minus(Span::from_nanos(1)).max(self.log);
                self.log = last;
                self.spend(region, u64::MAX)?;
            }
            13 => self.log = self.log.plus(Span::from_ms(ms * 40)),
            14 => self.charge(region, units)?,
            15 => self.refund(region, units),
            16 if ms > 400 => self.replace(region),
            17 if ms > 300 => {
                let before = self.log;
                self.log = self.log.plus(Span::from_ms(ms * 100));
                // Between two terms no lease is ended, and the new leader lets all run in full.
                for process in self.processes.values_mut() {
                    process.settle(before);
                    process.heard = process.heard.map(|_| self.log);
                }
                self.book.skip(self.log);
                self.skipped = self.skipped.plus(self.log.since(before));
            }
            _ => self.log = self.log.plus(Span::from_ms(ms)),
        }
        self.end_leases();
        self.book.expire(self.log, 4);
        prop_assert_eq!(self.book.imbalances(), []);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_more_is_spent_than_from_one_bucket(
        capacity in 1_u64..40,
        rate in 1_u64..30,
        steps in vec((0_u8..20, 0_usize..60, 1_u64..12, 0_u64..600), 1..150),
    ) {
        let mut world = World::new(flow(capacity, rate));
        for step in steps {
            world.step(step)?;
        }
        // In the end every process spends what it has left.
        for region in REGIONS {
            for which in 0..world.processes[region].answers.len() {
                world.deliver(region, which);
            }
            world.spend(region, u64::MAX)?;
        }
        let bytes = postcard::to_allocvec(&world.book).expect("bytes");
        let copy: Book = postcard::from_bytes(&bytes).expect("a book");
        prop_assert_eq!(&copy, &world.book);
    }
}
