//! Leader and book together, under random schedules: messages lost, doubled and out of order, entries lost
//! or noticed late, processes and leaders that die. Regions are as simple as can be: they spend at once, wait
//! without an end, and give all back on a recall when nothing waits.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::prop_oneof;
use proptest::proptest;
use proptest::test_runner::TestCaseError;

use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::account::Transfer;
use crate::grants::book::Book;
use crate::grants::book::Charge;
use crate::grants::book::NotTaken;
use crate::grants::book::Transferred;
use crate::grants::leader::Action;
use crate::grants::leader::Leader;
use crate::grants::leader::Now;
use crate::grants::leader::Part;
use crate::grants::message::Ask;
use crate::grants::message::Report;
use crate::grants::message::ToLeader;
use crate::grants::message::ToRegion;

const REGIONS: [&str; 3] = ["a", "b", "c"];

fn account() -> Account {
    Account {
        tenant: "acme".into(),
        limit: LimitName::new("exports").expect("a limit's name"),
        key: "".into(),
        epoch: 1,
    }
}

fn hour() -> Window {
    Window::aligned(Timestamp::EPOCH, Span::from_seconds(3_600))
}

#[derive(Clone, Debug)]
enum Step {
    Check {
        region: usize,
        units: u64,
        ahead: u64,
    },
    Deliver {
        message: usize,
        again: bool,
    },
    Lose {
        message: usize,
    },
    Commit {
        notice: bool,
    },
    Notice,
    FailEntry,
    Charge {
        region: usize,
        units: u64,
    },
    Wait(u64),
    Restart {
        region: usize,
    },
    NewLeader {
        survive: usize,
    },
    Quota(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_usize..3, 1_u64..5, 0_u64..6)
            .prop_map(|(region, units, ahead)| Step::Check { region, units, ahead }),
        16 => (0_usize..64, proptest::bool::weighted(0.1))
            .prop_map(|(message, again)| Step::Deliver { message, again }),
        1 => (0_usize..64).prop_map(|message| Step::Lose { message }),
        6 => proptest::bool::ANY.prop_map(|notice| Step::Commit { notice }),
        4 => Just(Step::Notice),
        1 => Just(Step::FailEntry),
        2 => (0_usize..3, 1_u64..4).prop_map(|(region, units)| Step::Charge { region, units }),
        4 => (1_u64..400).prop_map(Step::Wait),
        1 => (0_usize..3).prop_map(|region| Step::Restart { region }),
        1 => (0_usize..4).prop_map(|survive| Step::NewLeader { survive }),
        1 => (5_u64..30).prop_map(Step::Quota),
    ]
}

#[derive(Clone, Debug)]
enum Entry {
    Transfer(u64, Transfer),
    Charge(u64, Charge),
}

#[derive(Clone, Debug)]
enum Notice {
    Applied(u64, Box<Transfer>, Result<Transferred, NotTaken>),
    /// With the units that the book did not charge.
    Charged(u64, u64),
}

#[derive(Clone, Debug)]
enum Message {
    Up(ToLeader),
    Down(ToRegion),
}

/// One process of a region.
#[derive(Clone, Debug)]
struct Process {
    holder: Holder,
    received: u64,
    totals: Totals,
    waits: u64,
    charged: u64,
}

impl Process {
    fn held(&self) -> u64 {
        self.received - self.totals.spent - self.totals.returned
    }

    fn spend(&mut self) {
        let units = self.held().min(self.waits);
        self.totals.spent += units;
        self.waits -= units;
    }

    fn ask(&self, ahead: u64) -> Message {
        let need_to = self.totals.spent + self.totals.returned + self.waits;
        Message::Up(ToLeader::Ask(Ask {
            holder: self.holder.clone(),
            account: account(),
            at: None,
            need_to,
            want_to: need_to + ahead,
            demand: 1_000,
            totals: self.totals,
            sent_boot: Span::ZERO,
        }))
    }

    fn report(&self, recall: u64) -> Message {
        Message::Up(ToLeader::Report(Report {
            holder: self.holder.clone(),
            account: account(),
            window: hour().id,
            totals: self.totals,
            demand: 1_000,
            recall,
        }))
    }
}

struct World {
    book: Book,
    leader: Leader,
    term: u64,
    now: Now,
    quota: u64,
    quota_max: u64,
    processes: Vec<Process>,
    dead: Vec<Process>,
    log: VecDeque<Entry>,
    notices: VecDeque<Notice>,
    messages: Vec<Message>,
    charges: Vec<(u64, Charge)>,
    tickets: u64,
    incarnations: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            book: Book::default(),
            leader: Leader::new(1),
            term: 1,
            now: Now {
                boot: Span::from_seconds(9),
                log: Timestamp::EPOCH,
            },
            quota: 20,
            quota_max: 20,
            processes: Vec::new(),
            dead: Vec::new(),
            log: VecDeque::new(),
            notices: VecDeque::new(),
            messages: Vec::new(),
            charges: Vec::new(),
            tickets: 0,
            incarnations: 0,
        };
        for region in REGIONS {
            let process = world.process(region);
            world.processes.push(process);
        }
        world
    }

    fn process(&mut self, region: &str) -> Process {
        self.incarnations += 1;
        let holder = Holder {
            region: RegionName::new(region).expect("a region's name"),
            incarnation: self.incarnations,
        };
        self.book.enroll(self.now.log, &holder);
        Process {
            holder,
            received: 0,
            totals: Totals::default(),
            waits: 0,
            charged: 0,
        }
    }

    fn act(&mut self, out: Vec<Action>) -> Result<(), TestCaseError> {
        for action in out {
            match action {
                Action::Propose { ticket, transfer } => {
                    self.log.push_back(Entry::Transfer(ticket, transfer));
                }
                Action::Charge { ticket } => {
                    let place = self.charges.iter().position(|(known, _)| *known == ticket);
                    let (_, charge) = self.charges.remove(place.expect("a charge that waits"));
                    self.log.push_back(Entry::Charge(ticket, charge));
                }
                Action::RefuseCharge { ticket, .. } => {
                    self.charges.retain(|(known, _)| *known != ticket);
                }
                // Leases are a matter of buckets.
                Action::Lapse(_) => {}
                Action::Tell(holder, message) => {
                    self.check_word(&holder, &message)?;
                    self.messages.push(Message::Down(message));
                }
            }
        }
        Ok(())
    }

    /// "Dry" is said for an empty plan only, and not before a grant on its way to the same holder.
    fn check_word(&self, holder: &Holder, message: &ToRegion) -> Result<(), TestCaseError> {
        let ToRegion::Answer(answer) = message else {
            return Ok(());
        };
        let granted = |holder: &Holder| self.book.tally(&account(), hour().id, holder).granted;
        prop_assert_eq!(answer.granted, granted(holder));
        if answer.dry.is_none() {
            return Ok(());
        }
        let preview = self
            .book
            .preview(self.now.log, &account(), hour(), self.quota);
        let mut free = preview.expect("a window that runs").free;
        let mut planned: Vec<(Holder, u64)> = Vec::new();
        for entry in &self.log {
            match entry {
                Entry::Transfer(_, transfer) => {
                    for (to, _) in &transfer.grants {
                        prop_assert!(to != holder, "dry before a grant to {}", holder.region);
                    }
                    planned.extend(transfer.grants.iter().cloned());
                }
                Entry::Charge(_, charge) => free -= i128::from(charge.units),
            }
        }
        // Until the leader hears that an entry was cut, it takes the rest of it for planned.
        for notice in &self.notices {
            match notice {
                Notice::Applied(_, transfer, _) => planned.extend(transfer.grants.iter().cloned()),
                Notice::Charged(_, left) => free -= i128::from(*left),
            }
        }
        for process in &self.processes {
            let own = planned.iter().filter(|(to, _)| *to == process.holder);
            let to = own.map(|(_, to)| *to).max().unwrap_or(0);
            free -= i128::from(to.saturating_sub(granted(&process.holder)));
        }
        prop_assert!(free <= 0, "dry with {} units to be had", free);
        Ok(())
    }

    fn receive(&mut self, message: &Message) -> Result<(), TestCaseError> {
        let mut out = Vec::new();
        let (now, book) = (self.now, &self.book);
        match message {
            Message::Up(ToLeader::Ask(ask)) => {
                self.leader
                    .ask(now, book, ask, hour(), self.quota, &mut out);
            }
            Message::Up(ToLeader::Report(report)) => {
                self.leader.report(now, book, report, &mut out);
            }
            Message::Up(ToLeader::Pulse(pulse)) => self.leader.pulse(now, book, pulse, &mut out),
            Message::Down(ToRegion::Answer(answer)) => {
                let mut lives = self.processes.iter_mut();
                if let Some(process) = lives.find(|process| process.holder == answer.holder) {
                    process.received = process.received.max(answer.granted);
                    process.spend();
                }
            }
            Message::Down(ToRegion::Recall(recall)) => {
                let mut lives = self.processes.iter_mut();
                if let Some(process) = lives.find(|process| process.holder == recall.holder) {
                    if process.waits == 0 {
                        process.totals.returned += process.held();
                    }
                    let report = process.report(recall.round);
                    self.messages.push(report);
                }
            }
            Message::Down(_) => {}
        }
        self.act(out)
    }

    fn commit(&mut self) {
        match self.log.pop_front() {
            None => {}
            Some(Entry::Transfer(ticket, transfer)) => {
                let outcome = self.book.transfer(self.now.log, &transfer, self.quota);
                self.notices
                    .push_back(Notice::Applied(ticket, Box::new(transfer), outcome));
            }
            Some(Entry::Charge(ticket, charge)) => {
                let outcome = self.book.charge(self.now.log, &[(&charge, self.quota)]);
                let left = if outcome.is_ok() { 0 } else { charge.units };
                if outcome.is_ok() {
                    let mut all = self.processes.iter_mut().chain(&mut self.dead);
                    if let Some(process) = all.find(|process| process.holder == charge.holder) {
                        process.charged += charge.units;
                    }
                }
                self.notices.push_back(Notice::Charged(ticket, left));
            }
        }
    }

    fn notice(&mut self) -> Result<(), TestCaseError> {
        let mut out = Vec::new();
        let (now, book) = (self.now, &self.book);
        match self.notices.pop_front() {
            None => {}
            Some(Notice::Applied(ticket, _, outcome)) => {
                self.leader.applied(now, book, ticket, &outcome, &mut out);
            }
            Some(Notice::Charged(ticket, left)) => {
                self.leader.charged(now, book, ticket, left == 0, &mut out);
            }
        }
        self.act(out)
    }

    fn wait(&mut self, ms: u64) -> Result<(), TestCaseError> {
        self.now.boot = self.now.boot.plus(Span::from_ms(ms));
        self.now.log = self.now.log.plus(Span::from_ms(ms));
        let mut out = Vec::new();
        self.leader.tick(self.now, &self.book, &mut out);
        self.act(out)
    }

    fn go(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let count = self.messages.len().max(1);
        match *step {
            Step::Check {
                region,
                units,
                ahead,
            } => {
                let process = &mut self.processes[region];
                process.waits += units;
                process.spend();
                let ask = process.ask(ahead);
                self.messages.push(ask);
            }
            Step::Deliver { message, again } => {
                if let Some(found) = self.messages.get(message % count).cloned() {
                    if !again {
                        self.messages.remove(message % count);
                    }
                    self.receive(&found)?;
                }
            }
            Step::Lose { message } => {
                if !self.messages.is_empty() {
                    self.messages.remove(message % count);
                }
            }
            Step::Commit { notice } => {
                self.commit();
                if notice {
                    self.notice()?;
                }
            }
            Step::Notice => self.notice()?,
            Step::FailEntry => {
                let mut out = Vec::new();
                match self.log.pop_back() {
                    None => {}
                    Some(Entry::Transfer(ticket, _)) => {
                        self.leader.failed(self.now, &self.book, ticket);
                    }
                    Some(Entry::Charge(ticket, _)) => {
                        let (now, book) = (self.now, &self.book);
                        self.leader.charged(now, book, ticket, false, &mut out);
                    }
                }
                self.act(out)?;
            }
            Step::Charge { region, units } => {
                let process = &mut self.processes[region];
                process.totals.returned += process.held().min(units);
                let charge = Charge {
                    account: account(),
                    window: hour(),
                    holder: process.holder.clone(),
                    totals: process.totals,
                    units,
                };
                self.tickets += 1;
                self.charges.push((self.tickets, charge.clone()));
                let part = Part {
                    charge,
                    quota: self.quota.into(),
                };
                let mut out = Vec::new();
                let (now, book) = (self.now, &self.book);
                self.leader
                    .charge(now, book, self.tickets, vec![part], &mut out);
                self.act(out)?;
            }
            Step::Wait(ms) => self.wait(ms)?,
            Step::Restart { region } => {
                let process = self.process(REGIONS[region]);
                let dead = std::mem::replace(&mut self.processes[region], process);
                self.dead.push(dead);
            }
            Step::NewLeader { survive } => {
                self.term += 1;
                self.log.truncate(survive);
                while !self.log.is_empty() {
                    self.commit();
                }
                self.notices.clear();
                self.charges.clear();
                self.leader = Leader::new(self.term);
            }
            Step::Quota(quota) => {
                self.quota = quota;
                self.quota_max = self.quota_max.max(quota);
                let mut out = Vec::new();
                self.leader
                    .set_quota(self.now, &self.book, &account(), quota, &mut out);
                self.act(out)?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.book.imbalances(), []);
        let all = self.processes.iter().chain(&self.dead);
        let used: u64 = all
            .map(|process| process.totals.spent + process.charged)
            .sum();
        prop_assert!(used <= self.quota_max, "{} of {}", used, self.quota_max);
        Ok(())
    }

    /// Nothing is lost from here on; regions ask again every second.
    fn calm_down(&mut self) -> Result<(), TestCaseError> {
        for second in 0..8 {
            for place in 0..self.processes.len() {
                let process = &self.processes[place];
                let message = if process.waits > 0 {
                    process.ask(0)
                } else {
                    process.report(0)
                };
                self.messages.push(message);
            }
            for _ in 0..20 {
                for message in std::mem::take(&mut self.messages) {
                    self.receive(&message)?;
                }
                let mut entries = 0;
                while !self.log.is_empty() || !self.notices.is_empty() {
                    self.commit();
                    self.notice()?;
                    entries += 1;
                    prop_assert!(entries < 1_000, "entries without an end");
                }
                self.wait(50)?;
            }
            self.check()?;
            if second > 0 {
                prop_assert!(self.charges.is_empty(), "a charge waits for ever");
            }
        }
        Ok(())
    }
}

proptest! {
    /// The plan promises nothing twice, "dry" is true, charges are decided, and once the world calms down no
    /// check waits while a unit lies idle, in the pool or in another region.
    #[test]
    fn the_leader_is_safe_and_gets_everywhere(steps in vec(step(), 1..200)) {
        let mut world = World::new();
        for step in &steps {
            world.go(step)?;
            world.check()?;
        }
        world.calm_down()?;
        if world.processes.iter().any(|process| process.waits > 0) {
            let (log, quota) = (world.now.log, world.quota);
            let preview = world.book.preview(log, &account(), hour(), quota);
            let free = preview.expect("a window that runs").free;
            prop_assert!(free <= 0, "{} units lie idle", free);
            for process in &world.processes {
                prop_assert!(process.waits > 0 || process.held() == 0, "{:?}", process);
            }
        }
        // The book's view of use is exact.
        for process in &world.processes {
            let tally = world.book.tally(&account(), hour().id, &process.holder);
            prop_assert_eq!(tally.spent, process.totals.spent);
            prop_assert_eq!(tally.returned, process.totals.returned);
        }
    }
}
