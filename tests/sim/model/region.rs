//! A region: its process, what the process holds, and the checks that wait there.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use highwater::domain::time::Span;
use highwater::domain::time::WindowId;
use highwater::grants::account::Account;
use highwater::grants::account::Holder;
use highwater::grants::account::Totals;
use highwater::grants::exchange::Exchange;
use highwater::grants::message::Pulse;
use highwater::grants::message::ToLeader;
use highwater::grants::message::ToRegion;
use highwater::grants::reservation::Effect;
use highwater::grants::reservation::Now;
use highwater::grants::reservation::Reservation;
use highwater::grants::reservation::Spend;
use highwater::grants::reservation::Ticket;
use highwater::grants::reservation::Times;
use highwater::grants::reservation::Verdict;

use super::Event;
use super::MS;
use super::Message;
use super::World;
use super::clock::Clock;
use super::index;
use super::name;
use super::replica::Catalogue;
use super::traffic::Source;

/// A machine and, when it runs, the process on it.
#[derive(Debug)]
pub struct Region {
    pub index: usize,
    pub clock: Clock,
    pub source: Source,
    pub process: Option<Process>,
    pub paused_until: u64,
    pub incarnations: u64,
}

/// One process. Nothing of it survives its end.
#[derive(Debug)]
pub struct Process {
    pub holder: Holder,
    pub exchange: Exchange,
    pub seats: BTreeMap<Account, Seat>,
    pub checks: BTreeMap<u64, Check>,
    pub catalogue: Option<Catalogue>,
    /// Who leads, as far as it knows: term and region.
    pub leader: Option<(u64, usize)>,
    is_enrolled: bool,
    next_check: u64,
    pub keyed: BTreeMap<u64, KeyedCheck>,
}

/// One reservation in its place.
#[derive(Debug)]
pub struct Seat {
    pub reservation: Reservation,
    tick_at: u64,
    /// What this process spent, by window.
    spent: BTreeMap<WindowId, u64>,
    /// When a leader last said something about it that was not outdated.
    answered: Option<u64>,
    /// Until when, on the boot clock, any leader's word "dry" holds.
    dry_until: Span,
}

/// A check that waits.
#[derive(Clone, Debug)]
pub struct Check {
    items: Vec<(usize, u64)>,
    came: u64,
    deadline: Span,
    waits_at: BTreeSet<Account>,
    /// It waits for this version of the catalogue.
    parked: Option<u64>,
}

/// A keyed check whose answer is awaited.
#[derive(Clone, Debug)]
pub struct KeyedCheck {
    came: u64,
}

impl Region {
    pub fn new(index: usize, clock: Clock, source: Source) -> Self {
        Self {
            index,
            clock,
            source,
            process: None,
            paused_until: 0,
            incarnations: 0,
        }
    }
}

/// What became of a check.
enum Decided {
    Granted,
    Refused,
    Waits,
}

impl World {
    // Starting and ending.

    pub fn start(&mut self, region: usize) {
        let place = &mut self.regions[region];
        place.incarnations += 1;
        let holder = Holder {
            region: name(region),
            incarnation: self.rng.next(),
        };
        place.process = Some(Process {
            holder: holder.clone(),
            exchange: Exchange::new(),
            seats: BTreeMap::new(),
            checks: BTreeMap::new(),
            catalogue: None,
            leader: None,
            is_enrolled: false,
            next_check: 0,
            keyed: BTreeMap::new(),
        });
        self.schedule(self.at, Event::Pulse(holder));
    }

    pub fn crash(&mut self, region: usize) {
        self.regions[region].process = None;
        self.regions[region].paused_until = 0;
    }

    fn process(&mut self, holder: &Holder) -> Option<&mut Process> {
        let process = self.regions[index(&holder.region)].process.as_mut()?;
        (process.holder == *holder).then_some(process)
    }

    // The leader, as this region sees it.

    pub fn hear_beat(&mut self, region: usize, term: u64, leader: usize, catalogue: Catalogue) {
        let Some(process) = self.regions[region].process.as_mut() else {
            return;
        };
        if process.leader.is_none_or(|(known, _)| known < term) {
            process.leader = Some((term, leader));
        }
        let known = process.catalogue.as_ref().map_or(0, |known| known.version);
        if catalogue.version > known {
            process.catalogue = Some(catalogue);
            let holder = process.holder.clone();
            self.learn_catalogue(&holder);
        }
    }

    /// The catalogue is another one: quotas follow, reservations of old epochs are given back, checks that
    /// waited for it go on.
    fn learn_catalogue(&mut self, holder: &Holder) {
        let Some(process) = self.process(holder) else {
            return;
        };
        let Some(catalogue) = process.catalogue.clone() else {
            return;
        };
        let accounts: Vec<Account> = process.seats.keys().cloned().collect();
        for account in accounts {
            let terms = catalogue.counters[super::replica::counter_of(&account)];
            let is_newest = terms.epoch == account.epoch;
            self.seat(holder, &account, |reservation, now, out| {
                if is_newest {
                    reservation.set_quota(terms.quota);
                } else {
                    reservation.close(now, out);
                }
            });
        }
        let Some(process) = self.process(holder) else {
            return;
        };
        let parked: Vec<u64> = process
            .checks
            .iter_mut()
            .filter(|(_, check)| {
                check
                    .parked
                    .is_some_and(|parked| parked <= catalogue.version)
            })
            .map(|(id, check)| {
                check.parked = None;
                *id
            })
            .collect();
        for check in parked {
            self.decide(holder, check);
        }
    }

    pub fn enrolled(&mut self, holder: &Holder) {
        if let Some(process) = self.process(holder) {
            process.is_enrolled = true;
        }
    }

    pub fn pulse(&mut self, holder: &Holder) {
        let region = index(&holder.region);
        let clock = self.clock(region);
        let (boot, region_time) = (clock.boot(self.at), clock.region_time(self.at));
        let Some(process) = self.process(holder) else {
            return;
        };
        if let Some((_, leader)) = process.leader {
            let pulse = ToLeader::Pulse(Pulse {
                holder: holder.clone(),
                sent_boot: boot,
                refill: process.exchange.measured_refill().unwrap_or_default(),
                region_time,
            });
            let is_enrolled = process.is_enrolled;
            self.send(region, leader, &Message::ToLeader(pulse));
            if !is_enrolled {
                self.send(region, leader, &Message::Enroll(holder.clone()));
            }
        }
        self.schedule(self.at + 250 * MS, Event::Pulse(holder.clone()));
    }

    // Reservations.

    /// Lets a reservation act and carries its effects out.
    pub fn seat<T>(
        &mut self,
        holder: &Holder,
        account: &Account,
        act: impl FnOnce(&mut Reservation, &Now<'_>, &mut Vec<Effect>) -> T,
    ) -> Option<T> {
        let region = index(&holder.region);
        let boot = self.clock(region).boot(self.at);
        let process = self.process(holder)?;
        let quota = process.catalogue.as_ref().map_or(0, |catalogue| {
            catalogue.counters[super::replica::counter_of(account)].quota
        });
        let length = process
            .catalogue
            .as_ref()
            .map_or(Span::ZERO, |catalogue| catalogue.window);
        let seat = process
            .seats
            .entry(account.clone())
            .or_insert_with(|| Seat {
                reservation: Reservation::new(account.clone(), holder.clone(), quota, length, boot),
                tick_at: u64::MAX,
                spent: BTreeMap::new(),
                answered: None,
                dry_until: Span::ZERO,
            });
        let now = Now {
            boot,
            exchange: &process.exchange,
        };
        let mut out = Vec::new();
        let done = act(&mut seat.reservation, &now, &mut out);
        let leader = process.leader;
        for effect in out {
            match effect {
                Effect::Send(message) => {
                    if let Some((_, leader)) = leader {
                        self.send(region, leader, &Message::ToLeader(message));
                    }
                }
                Effect::Wake(ticket, verdict) => {
                    let event = Event::Woken {
                        holder: holder.clone(),
                        check: ticket.0,
                        account: Box::new(account.clone()),
                        verdict,
                        given: self.at,
                    };
                    self.schedule(self.at + 1_000, event);
                }
            }
        }
        self.plan_tick(holder, account);
        Some(done)
    }

    fn plan_tick(&mut self, holder: &Holder, account: &Account) {
        let clock = self.clock(index(&holder.region));
        let at = self.at;
        let Some(seat) = self
            .process(holder)
            .and_then(|process| process.seats.get_mut(account))
        else {
            return;
        };
        let due = seat.reservation.due();
        if due == Span::MAX {
            return;
        }
        let due = clock.at(due).max(at);
        if due < seat.tick_at {
            seat.tick_at = due;
            let (holder, account) = (holder.clone(), Box::new(account.clone()));
            self.schedule(due, Event::TickRegion { holder, account });
        }
    }

    pub fn tick_region(&mut self, holder: &Holder, account: &Account) {
        let at = self.at;
        let Some(process) = self.process(holder) else {
            return;
        };
        let Some(seat) = process.seats.get_mut(account) else {
            return;
        };
        if seat.tick_at > at {
            return;
        }
        seat.tick_at = u64::MAX;
        self.seat(holder, account, |reservation, now, out| {
            reservation.tick(now, out);
            assert!(
                reservation.due() > now.boot,
                "a tick that leaves something due"
            );
        });
        self.audit_seat(holder, account);
        let Some(process) = self.process(holder) else {
            return;
        };
        if process
            .seats
            .get(account)
            .is_some_and(|seat| seat.reservation.is_releasable())
        {
            process.seats.remove(account);
        }
    }

    /// The region's half of S1.
    fn audit_seat(&mut self, holder: &Holder, account: &Account) {
        let view = self.seat(holder, account, |reservation, now, _| reservation.view(now));
        let Some(Some(view)) = view else { return };
        let granted = self
            .group
            .truth
            .book
            .tally(account, view.window.id, holder)
            .granted;
        let Some(seat) = self
            .process(holder)
            .and_then(|process| process.seats.get(account))
        else {
            return;
        };
        let spent = seat.spent.get(&view.window.id).copied().unwrap_or(0);
        assert_eq!(view.spent, spent, "spent units were forgotten");
        // A window is forgotten by the book a while after its end.
        assert!(
            view.spent + view.held <= granted || granted == 0,
            "S1: more held than granted"
        );
    }

    pub fn region_hears(&mut self, holder: &Holder, message: &ToRegion) {
        let region = index(&holder.region);
        let (boot, at) = (self.clock(region).boot(self.at), self.at);
        let Some(process) = self.process(holder) else {
            return;
        };
        let (stamp, account) = match message {
            ToRegion::Pulse(answer) => {
                process.exchange.pulse(answer, boot);
                return;
            }
            ToRegion::Answer(answer) => (Some(answer.stamp), &answer.account),
            ToRegion::Refused(refused) => (Some(refused.stamp), &refused.account),
            ToRegion::Recall(recall) => (None, &recall.account),
        };
        if let Some(stamp) = stamp {
            process.exchange.heard(&stamp, boot);
        }
        let term = process.exchange.term();
        let Some(seat) = process.seats.get_mut(account) else {
            return;
        };
        if stamp.is_some_and(|stamp| term.is_none_or(|term| stamp.term >= term)) {
            seat.answered = Some(at);
        }
        if let ToRegion::Answer(answer) = message
            && let Some(dry) = answer.dry
        {
            seat.dry_until = seat.dry_until.max(boot.plus(dry.lasts));
        }
        let account = account.clone();
        let took = self.seat(holder, &account, |reservation, now, out| match message {
            ToRegion::Answer(answer) => reservation.answer(answer, now, out),
            ToRegion::Refused(refused) => {
                reservation.refused(refused, now, out);
                None
            }
            ToRegion::Recall(recall) => {
                reservation.recall(recall, now, out);
                None
            }
            ToRegion::Pulse(_) => None,
        });
        if let (Some(Some(took)), Some(process)) = (took, self.process(holder)) {
            process.exchange.refilled(took);
        }
    }

    // Checks.

    pub fn arrive(&mut self, region: usize) {
        let next = self.regions[region].source.next(&mut self.rng, self.at);
        if next < self.ends {
            self.schedule(next, Event::Arrive(region));
        }
        let boot = self.clock(region).boot(self.at);
        let wait = if !self.setup.faults.is_calm() && self.rng.chance(0.1) {
            Some(Span::from_nanos(self.rng.between(0, 400 * MS)))
        } else {
            None
        };
        let counters = self.setup.counters;
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
            waits_at: BTreeSet::new(),
            parked: None,
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

    /// The atomic step: all limits of a check, or none.
    fn decide(&mut self, holder: &Holder, id: u64) -> Decided {
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
        let times = Times {
            came: self.clock(index(&holder.region)).boot(check.came),
            deadline: check.deadline,
        };
        for ((account, units), spend) in items.iter().zip(said) {
            if spend == Spend::Short || check.waits_at.contains(account) {
                if let Some(check) = self
                    .process(holder)
                    .and_then(|process| process.checks.get_mut(&id))
                {
                    check.waits_at.insert(account.clone());
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
        let is_early = items.iter().all(|(account, units)| {
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
        self.audit.waited(at - check.came, is_granted);
        let is_local = at == check.came;
        self.audit.local += u64::from(is_local);
        self.audit.granted += u64::from(is_granted);
        self.audit.granted_local += u64::from(is_local && is_granted);
        for account in &check.waits_at {
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
        let (came, items) = (check.came, check.items.clone());
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
                    answered.is_none_or(|answered| answered < came || answered > given),
                    "S10: out of reach, and yet a leader answered"
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

    // Keyed checks and refunds.

    fn begin_keyed(&mut self, holder: &Holder, counter: usize, units: u64) {
        let Some(process) = self.process(holder) else {
            return;
        };
        let Some(catalogue) = &process.catalogue else {
            return;
        };
        let account = catalogue.account(counter);
        let key = self.rng.next();
        self.audit.keyed += 1;
        let at = self.at;
        if let Some(process) = self.process(holder) {
            process.keyed.insert(key, KeyedCheck { came: at });
        }
        let taken = self.seat(holder, &account, |reservation, now, _| {
            let taken = reservation.take_for_charge(units, now);
            (taken, reservation.view(now).map(|view| view.window.start))
        });
        let (totals, window) = match taken {
            Some((Some((_, totals)), start)) => (totals, start),
            _ => (Totals::default(), None),
        };
        let keyed = super::leading::Keyed {
            key,
            account,
            at: window,
            holder: holder.clone(),
            totals,
            units,
        };
        let from = index(&holder.region);
        // The same key again, in case that the first got lost.
        let leader = self.process(holder).and_then(|process| process.leader);
        if let Some((_, leader)) = leader {
            let message = Message::Keyed(keyed);
            self.send(from, leader, &message);
            if self.rng.chance(0.3) {
                self.send(from, leader, &message);
            }
        }
    }

    pub fn keyed_answered(&mut self, holder: &Holder, key: u64, is_charged: bool) {
        let at = self.at;
        let Some(process) = self.process(holder) else {
            return;
        };
        let Some(keyed) = process.keyed.remove(&key) else {
            return;
        };
        self.audit.checks += 1;
        self.audit.granted += u64::from(is_charged);
        self.audit.waited(at - keyed.came, is_charged);
    }

    /// Gives a unit back in the running window, twice by mistake.
    fn begin_refund(&mut self, holder: &Holder, counter: usize) {
        let Some(process) = self.process(holder) else {
            return;
        };
        let Some(catalogue) = &process.catalogue else {
            return;
        };
        let account = catalogue.account(counter);
        let taken = self.seat(holder, &account, |reservation, now, _| {
            reservation.take_for_charge(0, now)
        });
        let Some(Some((window, totals))) = taken else {
            return;
        };
        let refund = super::replica::Refund {
            id: self.rng.next(),
            account,
            window,
            holder: holder.clone(),
            totals,
            units: self.rng.between(1, 4),
        };
        let from = index(&holder.region);
        let leader = self.process(holder).and_then(|process| process.leader);
        if let Some((_, leader)) = leader {
            for _ in 0..2 {
                self.send(from, leader, &Message::Refund(refund.clone()));
            }
        }
    }
}
