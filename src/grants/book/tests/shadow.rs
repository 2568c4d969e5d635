//! A shadow bucket beside random entries and processes that spend all they may, as late as they may.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::ProptestConfig;
use proptest::prelude::TestCaseError;
use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::proptest;

use super::account;
use super::buckets::START;
use super::buckets::flow;
use super::holder;
use crate::algorithm::bucket::Flow;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::Book;
use crate::grants::book::Charge;
use crate::grants::exchange::LEASE;
use crate::grants::leader::LAPSE_MARGIN;

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
