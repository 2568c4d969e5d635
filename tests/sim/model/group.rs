//! The Raft group as a model: an entry commits, in order, when a majority can have it on disk; leaders are
//! lost and elected after a gap; of what an old leader had not committed, some prefix survives.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::grants::account::Account;
use highwater::grants::account::Quota;
use highwater::grants::leader::Leader;
use highwater::grants::log_time::Discipline;
use highwater::grants::log_time::LogTime;

use super::Event;
use super::MS;
use super::World;
use super::bucket::Happens;
use super::leading::Leading;
use super::name;
use super::replica::Entry;
use super::replica::Outcome;
use super::replica::Replica;
use super::replica::counter_of;

/// Time for a disk to keep an entry.
pub const FSYNC: u64 = 2 * MS;

/// An entry that was appended and not committed.
#[derive(Clone, Debug)]
pub struct Pending {
    pub entry: Entry,
    pub term: u64,
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
    /// By term, how long buckets had earned when it began, and when that was by log time; and how long until its
    /// leader was lost.
    earning: BTreeMap<u64, (u64, Timestamp)>,
    earned: u64,
    /// Whose clock a term's log time is.
    pub clocks: BTreeMap<u64, (usize, LogTime)>,
    /// Counts losses, so that a late election is not held twice.
    losses: u64,
    pub lost_at: Option<u64>,
    pub gap: u64,
    /// When a stalled commit is tried again.
    retry_at: u64,
    /// How long a disk takes to keep an entry.
    pub fsync: u64,
}

impl Group {
    pub fn new(quotas: &[Quota], window: Span) -> Self {
        Self {
            term: 0,
            leader: None,
            truth: Replica::new(quotas, window),
            pending: VecDeque::new(),
            last_log: Timestamp::EPOCH,
            earning: BTreeMap::new(),
            earned: 0,
            clocks: BTreeMap::new(),
            losses: 0,
            lost_at: None,
            gap: 3_500 * MS,
            retry_at: 0,
            fsync: FSYNC,
        }
    }

    /// The time that buckets earn by at the log time `log` of a term.
    fn earned_at(&self, term: u64, log: Timestamp) -> u64 {
        let (earned, since) = self.earning[&term];
        earned + log.since(since).as_nanos()
    }
}

impl World {
    fn is_up(&self, region: usize) -> bool {
        self.regions[region].process.is_some() && self.regions[region].paused_until <= self.at
    }

    /// Whether its disk keeps what it is given.
    fn keeps(&self, region: usize) -> bool {
        self.is_up(region) && self.regions[region].disk_full_until <= self.at
    }

    /// How long an entry takes to reach a majority from here; `None`: it does not.
    fn commit_delay(&self, from: usize) -> Option<u64> {
        if !self.keeps(from) {
            return None;
        }
        let mut trips: Vec<u64> = (0..self.regions.len())
            .filter(|to| *to == from || (self.keeps(*to) && self.net.connects(from, *to)))
            .map(|to| {
                if to == from {
                    0
                } else {
                    self.net.round_trip(from, to)
                }
            })
            .collect();
        trips.sort_unstable();
        trips
            .get(self.regions.len() / 2)
            .map(|trip| trip + self.group.fsync)
    }

    /// The time that buckets earn by.
    pub fn earned(&mut self) -> u64 {
        if self.setup.buckets.is_empty() {
            return 0;
        }
        let leading = self
            .group
            .leader
            .and_then(|leader| self.leadings.get_mut(&leader));
        let Some(leading) = leading else {
            return self.group.earned;
        };
        // Between two readings it is not yet certain how the clock went.
        let reading = self.regions[leading.region].clock.reading(self.at);
        let log = leading.clock.read(reading);
        self.group.earned_at(leading.term, log)
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
        let (region, term) = (leading.region, leading.term);
        if let Entry::Begin = entry {
            let earned = self.group.earned;
            self.group.earning.insert(term, (earned, log));
        }
        let delay = self.commit_delay(region).unwrap_or(100 * MS);
        let jitter = self.rng.exponential(delay as f64 / 10.0) as u64;
        let last = self.group.pending.back().map_or(0, |last| last.at);
        let at = (self.at + delay + jitter).max(last);
        self.group.pending.push_back(Pending {
            entry,
            term,
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
        let outcome = self
            .group
            .truth
            .apply(pending.term, pending.log, &pending.entry);
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

    /// What an entry made of a bucket.
    fn audit_bucket(&mut self, earned: u64, log: Timestamp, account: &Account) {
        let truth = &self.group.truth;
        let Some(bucket) = self.audit.buckets.get_mut(&counter_of(account)) else {
            return;
        };
        let Some(quota) = truth.quota(account) else {
            return;
        };
        let Some(window) = truth.book.windows(account).next() else {
            return;
        };
        let noted = truth.book.window(account, window.id);
        if let Some((_, Quota::Bucket(flow))) = noted {
            bucket.amounts(earned, flow);
        }
        bucket.opened(earned, account.epoch);
        let preview = truth.book.preview(log, account, window, quota);
        if preview.is_ok_and(|preview| preview.free >= 0) {
            bucket.happens(earned, Happens::Settled);
        }
    }

    fn audit_entry(&mut self, pending: &Pending, outcome: &Outcome) {
        let earned = self.group.earned_at(pending.term, pending.log);
        let touched = match &pending.entry {
            Entry::Transfer(transfer) => Some(&transfer.account),
            Entry::Keyed { charge, .. } => Some(&charge.account),
            _ => None,
        };
        if let Some(account) = touched {
            self.audit_bucket(earned, pending.log, account);
        }
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
                    && !proof.window.is_endless()
                {
                    assert!(
                        proof.free >= 0 || proof.quota < proof.quota_max || proof.withheld > 0,
                        "S1: below zero without a lowered quota"
                    );
                }
            }
            Entry::Quota { counter, .. } | Entry::Reset { counter } => {
                let account = self.group.truth.catalogue.account(*counter);
                match self.group.truth.catalogue.counters[*counter].quota {
                    Quota::Window(quota) => self.audit.in_force(pending.log, &account, quota),
                    // In force from the next entry about the bucket on.
                    Quota::Bucket(_) => {}
                }
            }
            Entry::Keyed { charge, .. } => {
                if let Outcome::Keyed {
                    is_charged: true,
                    is_first: true,
                } = outcome
                {
                    let (account, window) = (&charge.account, charge.window.id);
                    let units = charge.units;
                    if !self.audit.bucket(earned, account, Happens::Use(units)) {
                        self.audit.window(account, window).charged += units;
                        self.audit.assert_within(account, window);
                    }
                    self.audit.keyed_charged += 1;
                    self.audit.granted_units += units;
                }
                assert!(book.imbalances().is_empty(), "S1: {:?}", book.imbalances());
            }
            Entry::Refund(refund) => {
                if let Outcome::Refunded { credited } = outcome
                    && *credited > 0
                {
                    assert!(*credited <= refund.units, "S7: more than was asked");
                    let (account, window) = (&refund.account, refund.window);
                    if !self
                        .audit
                        .bucket(earned, account, Happens::Credit(*credited))
                    {
                        self.audit.window(account, window).refunded += credited;
                        self.audit.assert_within(account, window);
                    }
                    self.audit.refunds += 1;
                }
            }
            Entry::Lapse(_) => self.audit.fault("end of a lease"),
            Entry::Begin | Entry::Enroll(_) => {}
        }
    }

    /// The leader is lost to the group. It goes on talking until `talks_until`, if that is ahead.
    pub fn lose_leader(&mut self, talks_until: u64) {
        let earned = self.earned();
        let Some(serial) = self.group.leader.take() else {
            return;
        };
        self.group.earned = earned;
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
            leading.lost_at = Some(self.at);
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
                lost_at: None,
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
