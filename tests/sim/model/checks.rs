//! Checks: the atomic step, waiting, and what the auditor makes of the verdicts.

use std::collections::BTreeMap;

use highwater::domain::time::Span;
use highwater::domain::time::WindowId;
use highwater::grants::account::Account;
use highwater::grants::account::Holder;
use highwater::grants::reservation::Spend;
use highwater::grants::reservation::Ticket;
use highwater::grants::reservation::Times;
use highwater::grants::reservation::Verdict;

use super::Event;
use super::MS;
use super::SECOND;
use super::World;
use super::bucket::Happens;
use super::index;
use super::region::Check;
use super::replica::counter_of;

/// What became of a check.
pub enum Decided {
    Granted,
    Refused,
    Waits,
}

impl World {
    pub fn arrive(&mut self, region: usize) {
        let next = self.regions[region].source.next(&mut self.rng, self.at);
        if next < self.ends {
            self.schedule(next, Event::Arrive(region));
        }
        if self.at < self.regions[region].quiet_until && self.rng.chance(0.95) {
            return;
        }
        let boot = self.clock(region).boot(self.at);
        let wait = if !self.setup.faults.is_calm() && self.rng.chance(0.1) {
            Some(Span::from_nanos(self.rng.between(0, 400 * MS)))
        } else {
            None
        };
        let counters = self.setup.all_counters();
        let first = self.rng.between(0, counters as u64) as usize;
        let cost = self.rng.between(1, self.setup.cost_max + 1);
        let mut items = vec![(first, cost)];
        if counters > 1 && self.rng.chance(self.setup.pairs) {
            items.push(((first + 1) % counters, cost));
        }
        let is_keyed = self.rng.chance(self.setup.keyed);
        let is_refund = self.rng.chance(self.setup.refunds);
        let at = self.at;
        let Some(process) = self.regions[region].process.as_mut() else {
            return;
        };
        if process.catalogue.is_none() {
            return;
        }
        let holder = process.holder.clone();
        if is_keyed {
            self.begin_keyed(&holder, first, cost);
            return;
        }
        let wait = wait.unwrap_or_else(|| process.exchange.max_wait());
        process.next_check += 1;
        let id = process.next_check;
        let check = Check {
            items,
            came: at,
            deadline: boot.plus(wait.min(process.exchange.max_wait())),
            waits_at: BTreeMap::new(),
            parked: None,
            empties: None,
        };
        process.checks.insert(id, check);
        self.audit.checks += 1;
        let turn = (at - self.begins) / self.setup.window;
        *self.audit.wanted.entry(turn).or_default() += cost;
        let without_leader = self.group.lost_at.is_some();
        self.audit.leaderless.0 += u64::from(without_leader);
        if let Decided::Granted = self.decide(&holder, id) {
            self.audit.leaderless.1 += u64::from(without_leader);
        }
        if is_refund {
            self.begin_refund(&holder, first);
        }
    }

    /// Asks for all that a bucket has in some region, until it is given.
    pub fn empty(&mut self, counter: usize) {
        let (standing, flow) = self.bucket_of(counter);
        let drawn = standing.map_or(0, |standing| standing.drawn);
        let drawn = drawn.div_ceil(u128::from(flow.per.as_nanos()));
        let left = flow.capacity.saturating_sub(drawn as u64);
        if left == 0 && flow.rate > 0 {
            self.audit.emptied.insert(counter);
        }
        if self.audit.emptied.contains(&counter) {
            return;
        }
        // Not while another one waits: each would keep from the other what it holds.
        if self.at + 2 * SECOND >= self.ends + self.setup.faults.aftermath() {
            return;
        }
        self.schedule(self.at + 2 * SECOND, Event::Empty(counter));
        let region = self.rng.between(0, self.regions.len() as u64) as usize;
        let (at, boot) = (self.at, self.clock(region).boot(self.at));
        let Some(process) = self.regions[region].process.as_mut() else {
            return;
        };
        let holder = process.holder.clone();
        process.next_check += 1;
        let id = process.next_check;
        let check = Check {
            items: vec![(counter, left)],
            came: at,
            deadline: boot.plus(process.exchange.max_wait()),
            waits_at: BTreeMap::new(),
            parked: None,
            empties: Some(counter),
        };
        process.checks.insert(id, check);
        self.decide(&holder, id);
    }

    /// The atomic step: all limits of a check, or none.
    pub fn decide(&mut self, holder: &Holder, id: u64) -> Decided {
        let Some(process) = self.process(holder) else {
            return Decided::Refused;
        };
        let (Some(check), Some(catalogue)) = (process.checks.get(&id).cloned(), &process.catalogue)
        else {
            return Decided::Refused;
        };
        let ticket = Some(Ticket(id));
        let items: Vec<(Account, u64)> = check
            .items
            .iter()
            .map(|(counter, units)| (catalogue.account(*counter), *units))
            .collect();
        let mut said = Vec::new();
        for (account, units) in &items {
            let spend = self.seat(holder, account, |reservation, now, _| {
                reservation.can_spend(*units, ticket, now)
            });
            said.push(spend.unwrap_or(Spend::Short));
        }
        if said.iter().all(|spend| *spend == Spend::Ready) {
            for (account, units) in &items {
                self.spend(holder, account, *units, ticket);
            }
            self.end_check(holder, id, true);
            return Decided::Granted;
        }
        let dry = said
            .iter()
            .position(|spend| matches!(spend, Spend::Dry { .. }));
        if let Some(dry) = dry {
            let (account, units) = &items[dry];
            self.assert_dry(holder, account);
            self.seat(holder, account, |reservation, now, out| {
                reservation.refuse(*units, now, out);
            });
            self.refused(&items);
            self.end_check(holder, id, false);
            return Decided::Refused;
        }
        let at = self.at;
        let times = Times {
            came: self.clock(index(&holder.region)).boot(check.came),
            deadline: check.deadline,
        };
        for ((account, units), spend) in items.iter().zip(said) {
            if spend == Spend::Short || check.waits_at.contains_key(account) {
                if let Some(check) = self
                    .process(holder)
                    .and_then(|process| process.checks.get_mut(&id))
                {
                    check.waits_at.entry(account.clone()).or_insert(at);
                }
                self.seat(holder, account, |reservation, now, out| {
                    reservation.wait(Ticket(id), *units, times, now, out);
                });
            }
        }
        Decided::Waits
    }

    fn spend(&mut self, holder: &Holder, account: &Account, units: u64, ticket: Option<Ticket>) {
        let window = self.seat(holder, account, |reservation, now, out| {
            let window = reservation.spend(units, ticket, now);
            reservation.after_spend(now, out);
            window
        });
        let Some(Some(window)) = window else {
            panic!("ready, and yet nothing to spend");
        };
        let Some(process) = self.process(holder) else {
            return;
        };
        let term = process.exchange.term();
        if let Some(seat) = process.seats.get_mut(account) {
            *seat.spent.entry(window).or_default() += units;
        }
        let earned = self.earned();
        if self.audit.bucket(earned, account, Happens::Use(units)) {
            self.audit.granted_units += units;
            return;
        }
        // S5, by the clock of the leader that this region goes by.
        let length = Span::from_nanos(self.setup.window);
        if let Some(term) = term {
            let log = self.log_time_of(term);
            let start = highwater::domain::time::Timestamp::from_nanos(window.0);
            assert!(
                start <= log && log < start.plus(length),
                "S5: {log:?} is outside of {window:?} by the clock of term {term}"
            );
        }
        self.audit.window(account, window).spent += units;
        self.audit.granted_units += units;
        self.audit.assert_within(account, window);
    }

    /// S4: no refusal without a leader's word that still holds.
    fn assert_dry(&mut self, holder: &Holder, account: &Account) {
        let boot = self.clock(index(&holder.region)).boot(self.at);
        if let Some(seat) = self
            .process(holder)
            .and_then(|process| process.seats.get(account))
        {
            assert!(
                boot < seat.dry_until.plus(Span::from_seconds(1)),
                "S4: a dry word outlived its second"
            );
        }
    }

    fn refused(&mut self, items: &[(Account, u64)]) {
        self.audit.refused += 1;
        let windows = items
            .iter()
            .filter(|(account, _)| counter_of(account) < self.setup.counters);
        let is_early = windows.clone().count() > 0
            && windows.clone().all(|(account, units)| {
                let log = self.log_time_of(self.group.term).as_nanos();
                let window = log - log.rem_euclid(self.setup.window as i64);
                self.audit.unused(account, WindowId(window)) >= *units
            });
        self.audit.refused_early += u64::from(is_early);
    }

    /// A check is decided: it waits nowhere any more.
    fn end_check(&mut self, holder: &Holder, id: u64, is_granted: bool) {
        let at = self.at;
        let Some(check) = self
            .process(holder)
            .and_then(|process| process.checks.remove(&id))
        else {
            return;
        };
        if let (Some(counter), true) = (check.empties, is_granted) {
            self.audit.emptied.insert(counter);
        }
        self.audit.waited(at - check.came, is_granted);
        let is_local = at == check.came;
        self.audit.local += u64::from(is_local);
        self.audit.granted += u64::from(is_granted);
        self.audit.granted_local += u64::from(is_local && is_granted);
        for account in check.waits_at.keys() {
            self.seat(holder, account, |reservation, now, out| {
                reservation.done(Ticket(id), now, out);
            });
        }
        let clock = self.clock(index(&holder.region));
        if self.setup.faults.pauses == 0 {
            let late = clock.boot(at).minus(check.deadline);
            assert!(late <= Span::from_ms(1), "S10: {late} after the deadline");
        }
    }

    pub fn woken(
        &mut self,
        holder: &Holder,
        id: u64,
        account: &Account,
        verdict: Verdict,
        given: u64,
    ) {
        let Some(check) = self
            .process(holder)
            .and_then(|process| process.checks.get_mut(&id))
        else {
            return;
        };
        let items = check.items.clone();
        let since = check.waits_at.get(account).copied().unwrap_or(check.came);
        if verdict != Verdict::Retry {
            check.waits_at.remove(account);
        }
        match verdict {
            Verdict::Retry | Verdict::Closed => {
                self.decide(holder, id);
            }
            Verdict::Dry { retry_after } => {
                assert!(retry_after >= Span::from_seconds(1));
                let items: Vec<(Account, u64)> = items
                    .iter()
                    .map(|(counter, units)| {
                        let account = super::replica::account(*counter, account.epoch);
                        (account, *units)
                    })
                    .collect();
                self.refused(&items);
                self.end_check(holder, id, false);
            }
            Verdict::OutOfReach => {
                let seat = self
                    .process(holder)
                    .and_then(|process| process.seats.get(account));
                let answered = seat.and_then(|seat| seat.answered);
                assert!(
                    answered.is_none_or(|answered| answered < since || answered >= given),
                    "S10: out of reach at {given}, and yet a leader answered at {answered:?}: {holder:?} waits \
                     since {since} for {account:?}"
                );
                self.audit.out_of_reach += 1;
                self.end_check(holder, id, false);
            }
            Verdict::Changed { version } => self.park(holder, id, version),
            Verdict::Capacity => panic!("nothing here is near its bounds"),
        }
    }

    fn park(&mut self, holder: &Holder, id: u64, version: u64) {
        let clock = self.clock(index(&holder.region));
        let Some(process) = self.process(holder) else {
            return;
        };
        let known = process.catalogue.as_ref().map_or(0, |known| known.version);
        let Some(check) = process.checks.get_mut(&id) else {
            return;
        };
        if known >= version {
            self.decide(holder, id);
            return;
        }
        check.parked = Some(version);
        let at = clock.at(check.deadline);
        let event = Event::GiveUp {
            holder: holder.clone(),
            check: id,
        };
        self.schedule(at, event);
    }

    /// The catalogue did not come in time.
    pub fn give_up(&mut self, holder: &Holder, id: u64) {
        let is_parked = self.process(holder).is_some_and(|process| {
            let check = process.checks.get(&id);
            check.is_some_and(|check| check.parked.is_some())
        });
        if is_parked {
            self.audit.unavailable += 1;
            self.end_check(holder, id, false);
        }
    }

    pub fn assert_everybody_was_answered(&self) {
        for region in &self.regions {
            let Some(process) = &region.process else {
                continue;
            };
            assert!(
                process.checks.is_empty(),
                "S10: checks of region {} have no answer: {:?}",
                region.index,
                process.checks
            );
        }
    }
}
