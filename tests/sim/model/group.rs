//! The Raft group as a model: an entry commits, in order, when a majority can have it on disk; leaders are
//! lost and elected after a gap; of what an old leader had not committed, some prefix survives.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::grants::leader::Leader;
use highwater::grants::log_time::Discipline;
use highwater::grants::log_time::LogTime;

use super::Event;
use super::MS;
use super::World;
use super::leading::Leading;
use super::name;
use super::replica::Entry;
use super::replica::Outcome;
use super::replica::Replica;

/// Time for a disk to keep an entry.
const FSYNC: u64 = 2 * MS;

/// An entry that was appended and not committed.
#[derive(Clone, Debug)]
pub struct Pending {
    pub entry: Entry,
    pub log: Timestamp,
    /// The leader that appended it, and its name for it.
    pub serial: u64,
    pub ticket: u64,
    at: u64,
}

/// The log and who leads.
#[derive(Debug)]
pub struct Group {
    pub term: u64,
    /// The serial number of who leads by the last election.
    pub leader: Option<u64>,
    pub truth: Replica,
    pub pending: VecDeque<Pending>,
    last_log: Timestamp,
    /// Whose clock a term's log time is.
    pub clocks: BTreeMap<u64, (usize, LogTime)>,
    /// Counts losses, so that a late election is not held twice.
    losses: u64,
    pub lost_at: Option<u64>,
    pub gap: u64,
    /// When a stalled commit is tried again.
    retry_at: u64,
}

impl Group {
    pub fn new(counters: usize, quota: u64, window: Span) -> Self {
        Self {
            term: 0,
            leader: None,
            truth: Replica::new(counters, quota, window),
            pending: VecDeque::new(),
            last_log: Timestamp::EPOCH,
            clocks: BTreeMap::new(),
            losses: 0,
            lost_at: None,
            gap: 3_500 * MS,
            retry_at: 0,
        }
    }
}

impl World {
    fn is_up(&self, region: usize) -> bool {
        self.regions[region].process.is_some() && self.regions[region].paused_until <= self.at
    }

    /// How long an entry takes to reach a majority from here; `None`: it does not.
    fn commit_delay(&self, from: usize) -> Option<u64> {
        if !self.is_up(from) {
            return None;
        }
        let mut trips: Vec<u64> = (0..self.regions.len())
            .filter(|to| *to == from || (self.is_up(*to) && self.net.connects(from, *to)))
            .map(|to| {
                if to == from {
                    0
                } else {
                    self.net.round_trip(from, to)
                }
            })
            .collect();
        trips.sort_unstable();
        trips.get(self.regions.len() / 2).map(|trip| trip + FSYNC)
    }

    pub fn reaches_majority(&self, from: usize) -> bool {
        self.commit_delay(from).is_some()
    }

    /// Appends an entry of a leader that still is one.
    pub fn append(&mut self, serial: u64, ticket: u64, entry: Entry) {
        let Some(leading) = self.leadings.get_mut(&serial) else {
            return;
        };
        if self.group.leader != Some(serial) {
            // A deposed leader appends to a log that nobody will ever read.
            return;
        }
        let reading = self.regions[leading.region].clock.reading(self.at);
        let log = leading.clock.read(reading);
        let region = leading.region;
        let delay = self.commit_delay(region).unwrap_or(100 * MS);
        let jitter = self.rng.exponential(delay as f64 / 10.0) as u64;
        let last = self.group.pending.back().map_or(0, |last| last.at);
        let at = (self.at + delay + jitter).max(last);
        self.group.pending.push_back(Pending {
            entry,
            log,
            serial,
            ticket,
            at,
        });
        self.schedule(at, Event::Commit);
    }

    /// Commits what is due, if a majority is there.
    pub fn commit_due(&mut self) {
        while self
            .group
            .pending
            .front()
            .is_some_and(|front| front.at <= self.at)
        {
            let leader = self
                .group
                .leader
                .and_then(|leader| self.leadings.get(&leader));
            let can_commit =
                leader.is_some_and(|leader| self.commit_delay(leader.region).is_some());
            if !can_commit {
                // A new leader schedules its own.
                if leader.is_some() && self.group.retry_at <= self.at {
                    self.group.retry_at = self.at + 50 * MS;
                    self.schedule(self.group.retry_at, Event::Commit);
                }
                return;
            }
            if let Some(pending) = self.group.pending.pop_front() {
                self.commit(&pending);
            }
        }
    }

    fn commit(&mut self, pending: &Pending) {
        assert!(pending.log >= self.group.last_log, "S6: log time fell");
        self.group.last_log = pending.log;
        let outcome = self.group.truth.apply(pending.log, &pending.entry);
        self.audit_entry(pending, &outcome);
        let Some(serial) = self.group.leader else {
            return;
        };
        if let Entry::Begin = pending.entry {
            if let Some(leading) = self.leadings.get_mut(&serial)
                && pending.serial == serial
            {
                let mut leader = Leader::new(leading.term);
                for region in 0..self.regions.len() {
                    let trip = self.net.round_trip(leading.region, region);
                    leader.set_round_trip(&name(region), Span::from_nanos(trip));
                }
                leading.leader = Some(leader);
            }
            self.announce(serial);
        }
        self.applied(serial, pending, &outcome);
    }

    fn audit_entry(&mut self, pending: &Pending, outcome: &Outcome) {
        let book = &self.group.truth.book;
        let told = match &pending.entry {
            Entry::Transfer(transfer) => Some((&transfer.account, transfer.window.id)),
            Entry::Keyed { charge, .. } => Some((&charge.account, charge.window.id)),
            _ => None,
        };
        if let Some((account, window)) = told
            && book.window(account, window).is_some()
        {
            self.audit.opened(account, window);
        }
        match &pending.entry {
            Entry::Transfer(transfer) => {
                self.audit.entries += 1;
                assert!(book.imbalances().is_empty(), "S1: {:?}", book.imbalances());
                if let Outcome::Transferred(Ok(done)) = outcome
                    && let Some(proof) = book.proof(&transfer.account, done.window.id)
                {
                    assert!(
                        proof.free >= 0 || proof.quota < proof.quota_max || proof.withheld > 0,
                        "S1: below zero without a lowered quota"
                    );
                }
            }
            Entry::Quota { counter, .. } | Entry::Reset { counter } => {
                let account = self.group.truth.catalogue.account(*counter);
                let quota = self.group.truth.catalogue.counters[*counter].quota;
                self.audit.in_force(pending.log, &account, quota);
            }
            Entry::Keyed { charge, .. } => {
                if let Outcome::Keyed {
                    is_charged: true,
                    is_first: true,
                } = outcome
                {
                    let (account, window) = (&charge.account, charge.window.id);
                    self.audit.window(account, window).charged += charge.units;
                    self.audit.keyed_charged += 1;
                    self.audit.granted_units += charge.units;
                    self.audit.assert_within(account, window);
                }
                assert!(book.imbalances().is_empty(), "S1: {:?}", book.imbalances());
            }
            Entry::Refund(refund) => {
                if let Outcome::Refunded { credited } = outcome
                    && *credited > 0
                {
                    assert!(*credited <= refund.units, "S7: more than was asked");
                    self.audit.window(&refund.account, refund.window).refunded += credited;
                    self.audit.assert_within(&refund.account, refund.window);
                    self.audit.refunds += 1;
                }
            }
            Entry::Begin | Entry::Enroll(_) => {}
        }
    }

    /// The leader is lost to the group. It goes on talking until `talks_until`, if that is ahead.
    pub fn lose_leader(&mut self, talks_until: u64) {
        let Some(serial) = self.group.leader.take() else {
            return;
        };
        let survivors = self.rng.between(0, self.group.pending.len() as u64 + 1);
        self.group.pending.truncate(survivors as usize);
        self.group.lost_at = Some(self.at);
        self.group.losses += 1;
        let gap = self.group.gap;
        self.schedule(self.at + gap, Event::Elect(self.group.losses));
        if let Some(leading) = self.leadings.get_mut(&serial) {
            let clock = leading.clock.clone();
            self.group
                .clocks
                .insert(leading.term, (leading.region, clock));
            leading.replica = Some(Box::new(self.group.truth.clone()));
            self.schedule(talks_until, Event::StepDown(serial));
        }
    }

    pub fn step_down(&mut self, serial: u64) {
        if self.group.leader != Some(serial) {
            self.leadings.remove(&serial);
        }
    }

    pub fn elect_after(&mut self, loss: u64) {
        if loss != self.group.losses || self.group.leader.is_some() {
            return;
        }
        let mut fit: Vec<usize> = (0..self.regions.len())
            .filter(|region| self.commit_delay(*region).is_some())
            .collect();
        if self.setup.faults.is_calm() {
            fit.truncate(1);
        }
        match self.rng.pick(&fit).copied() {
            Some(region) => self.elect(region),
            None => self.schedule(self.at + 500 * MS, Event::Elect(loss)),
        }
    }

    pub fn elect(&mut self, region: usize) {
        // Whoever still talks from here as an older leader learns of it at once.
        self.leadings.retain(|_, leading| leading.region != region);
        self.group.term += 1;
        self.group.lost_at = None;
        self.serials += 1;
        let (serial, term) = (self.serials, self.group.term);
        let reading = self.clock(region).reading(self.at);
        let last = self
            .group
            .pending
            .back()
            .map_or(self.group.last_log, |pending| pending.log);
        let voters: Vec<_> = (0..self.regions.len())
            .map(|voter| {
                let knows = self.is_up(voter) && self.net.connects(region, voter);
                let time = self.clock(voter).region_time(self.at);
                (name(voter), knows.then_some(time))
            })
            .collect();
        let clock = LogTime::start(Discipline::Slewed, name(region), reading, last, &voters);
        self.group.clocks.insert(term, (region, clock.clone()));
        self.leadings.insert(
            serial,
            Leading {
                serial,
                term,
                region,
                clock,
                leader: None,
                replica: None,
                keyed: BTreeMap::new(),
                enrolling: Vec::new(),
                tick_at: u64::MAX,
                tickets: 0,
            },
        );
        self.group.leader = Some(serial);
        // What survived of the old leader is committed with the first entry of the new one.
        let delay = self.commit_delay(region).unwrap_or(100 * MS);
        for pending in &mut self.group.pending {
            pending.at = self.at + delay;
        }
        self.append(serial, 0, Entry::Begin);
        self.beat(serial);
    }
}
