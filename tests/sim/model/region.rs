//! A region: its process, what the process holds, and the checks that wait there.

use std::collections::BTreeMap;

use highwater::algorithm::bucket::Flow;
use highwater::domain::time::Span;
use highwater::domain::time::WindowId;
use highwater::grants::account::Account;
use highwater::grants::account::Holder;
use highwater::grants::account::Quota;
use highwater::grants::exchange::Exchange;
use highwater::grants::message::Pulse;
use highwater::grants::message::ToLeader;
use highwater::grants::message::ToRegion;
use highwater::grants::message::Why;
use highwater::grants::reservation::Effect;
use highwater::grants::reservation::Now;
use highwater::grants::reservation::Reservation;
use highwater::simulate::clock::Clock;

use super::Event;
use super::MS;
use super::Message;
use super::World;
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
    /// Until when hardly anybody asks here.
    pub quiet_until: u64,
    pub incarnations: u64,
    /// Until when its disk takes nothing.
    pub disk_full_until: u64,
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
    pub is_enrolled: bool,
    pub next_check: u64,
    pub keyed: BTreeMap<u64, KeyedCheck>,
}

/// One reservation in its place.
#[derive(Debug)]
pub struct Seat {
    pub reservation: Reservation,
    pub tick_at: u64,
    /// What this process spent, by window.
    pub spent: BTreeMap<WindowId, u64>,
    /// When a leader last said something about it that was not outdated.
    pub answered: Option<u64>,
    /// Until when, on the boot clock, any leader's word "dry" holds.
    pub dry_until: Span,
}

/// A check that waits.
#[derive(Clone, Debug)]
pub struct Check {
    pub items: Vec<(usize, u64)>,
    pub came: u64,
    pub deadline: Span,
    /// Where it waits, since when.
    pub waits_at: BTreeMap<Account, u64>,
    /// It waits for this version of the catalogue.
    pub parked: Option<u64>,
    /// It asks for all that a bucket has.
    pub empties: Option<usize>,
}

/// A keyed check whose answer is awaited.
#[derive(Clone, Debug)]
pub struct KeyedCheck {
    pub came: u64,
}

impl Region {
    pub fn new(index: usize, clock: Clock, source: Source) -> Self {
        Self {
            index,
            clock,
            source,
            process: None,
            paused_until: 0,
            quiet_until: 0,
            incarnations: 0,
            disk_full_until: 0,
        }
    }
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

    pub fn process(&mut self, holder: &Holder) -> Option<&mut Process> {
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
        let quota = process
            .catalogue
            .as_ref()
            .map_or(Quota::Window(0), |catalogue| {
                catalogue.counters[super::replica::counter_of(account)].quota
            });
        let window = process
            .catalogue
            .as_ref()
            .map_or(Span::ZERO, |catalogue| catalogue.window);
        let length = quota.flow().map_or(window, Flow::time_to_refill);
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
        // Units of a bucket count as spent, too, when they were not in time.
        let is_known = view.spent == spent || (view.window.is_endless() && view.spent > spent);
        assert!(is_known, "spent units were forgotten");
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
        let known = process.catalogue.as_ref().map_or(0, |known| known.version);
        if let ToRegion::Refused(refused) = message
            && matches!(refused.why, Why::Changed { version } if version <= known)
        {
            return;
        }
        let term = process.exchange.term();
        // Of a bucket also those that are not asked for any more: they go back.
        if let ToRegion::Answer(answer) = message
            && answer.window.is_endless()
            && process
                .catalogue
                .as_ref()
                .is_some_and(|known| known.account(super::replica::counter_of(account)) == *account)
        {
            self.seat(holder, account, |_, _, _| ());
        }
        let Some(process) = self.process(holder) else {
            return;
        };
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
}
