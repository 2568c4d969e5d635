//! One process of a region: its counts, its copy of the machine, its part in the log, what it holds of strict limits,
//! the checks that wait there, and, while it leads, the leader's state.
//!
//! Everything that happens to it is an [`Event`] at a reading of its machine's clocks; what it wants done comes back as
//! [`Out`]s. `strict` are its checks, `leading` the leader, `proposing` its way into the log.

mod event;
mod keeping;
mod leaving;

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::catalogue::Catalogue;
use crate::catalogue::intern::Interner;
use crate::domain::draws::Draws;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::drill::record::Said;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::exchange::Exchange as Talk;
use crate::grants::log_time::Reading;
use crate::grants::message::Pulse;
use crate::grants::message::ToLeader;
use crate::grants::message::ToRegion;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::Ticket;
use crate::machine::Machine;
use crate::machine::charge::has_reservations;
use crate::machine::command::Command;
use crate::machine::inherited::Inherited;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorId;
use crate::usage::actor::ActorTable;
use crate::usage::record::CounterRecord;

use super::exchange;
use super::exchange::At;
use super::exchange::Exchange;
use super::exchange::Limits;
use super::leading::Leading;
use super::log;
use super::proposing::Proposal;
use super::proposing::Purpose;
use super::proposing::Waiter;
use super::strict::Check;

pub use event::Call;
pub use event::Context;
pub use event::Disk;
pub use event::Event;
pub use event::Message;
pub use event::Out;
pub(super) use keeping::keep;

/// Changes are told to peers, and written to disk, this often.
const ROUND: Span = Span::from_ms(100);
/// How often a region tells the leader that it lives; and one that has not answered yet.
const PULSE: Span = Span::from_ms(200);
const GREETING: Span = Span::from_ms(20);
/// How often the leader looks after the members.
const SURVEY: Span = Span::from_ms(1_000);
/// How often a failed disk is tried again.
const PROBE: Span = Span::from_ms(500);
/// How long one try to enroll may take, and how soon it is made again.
const ENROLL_WITHIN: Span = Span::from_seconds(5);
/// A process that starts waits so long to be enrolled before it serves by what it knows.
const CAUGHT_UP_WITHIN: Span = Span::from_ms(1_000);
/// Counters that one sweep looks at.
const SWEEP_CELLS: u32 = 4_096;
/// Windows of a counter that stay on disk: more than any decision reads.
const WINDOWS_KEPT: usize = 64;
/// A process that was asked to end waits so long for its successor in the lead, and for what it gives back.
const SUCCESSOR_WITHIN: Span = Span::from_ms(1_000);
const GIVE_BACK: Span = Span::from_ms(150);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Runs,
    /// It hands the lead over, since.
    Leaves(Span),
    /// It gives units back.
    GivesBack,
}

/// See the module.
pub struct Process {
    /// Its region.
    pub index: usize,
    /// It.
    pub holder: Holder,
    /// What it counts.
    pub counts: Exchange,
    /// Its copy of the machine.
    pub machine: Machine,
    /// Its part in the log; none while the disk fails.
    pub log: Option<log::Node>,
    /// Whether it is granted units.
    pub is_enrolled: bool,
    /// Whether it wants no more traffic.
    pub is_draining: bool,
    /// Whether its disk failed.
    pub is_store_failed: bool,
    pub(super) names: Rc<Vec<RegionName>>,
    pub(super) applied: u64,
    pub(super) applied_term: u64,
    pub(super) talk: Talk,
    pub(super) seats: BTreeMap<Account, Reservation>,
    pub(super) checks: BTreeMap<u64, Check>,
    pub(super) tickets: BTreeMap<Ticket, u64>,
    pub(super) last_ticket: u64,
    pub(super) leading: Option<Leading>,
    pub(super) has_majority: bool,
    pub(super) majority_noted: Span,
    pub(super) proposals: BTreeMap<u64, Proposal>,
    pub(super) last_proposal: u64,
    pub(super) requests: (u64, std::collections::BTreeSet<u64>),
    pub(super) waiters: BTreeMap<u64, (Span, Waiter)>,
    /// What is for this region's own leader, and from it.
    pub(super) to_leader: VecDeque<(usize, ToLeader)>,
    pub(super) to_region: VecDeque<ToRegion>,
    pub(super) inherited: Inherited,
    unplaced: Vec<CounterRecord>,
    lead_at: Span,
    seats_at: Span,
    log_at: Span,
    revision: u32,
    version: u64,
    started: Span,
    told_time: (Timestamp, Span),
    stage: Stage,
    rank: u64,
    draws: Draws,
    is_enrolling: bool,
}

/// The number and the ways of a process that begins.
pub struct Birth<'a> {
    /// Its region.
    pub index: usize,
    /// All regions.
    pub names: &'a Rc<Vec<RegionName>>,
    /// The ways to them.
    pub latencies: &'a [Span],
    /// The number of the process: higher than any before.
    pub incarnation: u64,
    /// What it draws from.
    pub draws: Draws,
}

impl Limits for Catalogue {
    fn names(&self) -> &Interner {
        Self::names(self)
    }

    fn version(&self) -> u64 {
        Self::version(self)
    }

    fn limit(&self, tenant: &str, name: &str, key: &str, now: Timestamp) -> Option<(&Limit, u64)> {
        let (limit, epoch) = self.view().tenant(tenant)?.limit(name)?.at(key, now);
        Some((limit, epoch))
    }
}

impl Process {
    /// A process that begins.
    pub fn start(birth: Birth<'_>, reading: Reading, disk: &mut Disk, out: &mut Vec<Out>) -> Self {
        let index = birth.index;
        let region = birth.names[index].clone();
        let incarnation = birth.incarnation;
        disk.actors.push(Actor {
            region: region.clone(),
            incarnation,
        });
        let start = u32::try_from(disk.actors.len()).unwrap_or(u32::MAX);
        let table = ActorTable::new(disk.actors.clone(), ActorId(start - 1));
        let mut counts = Exchange::start(index, birth.names, birth.latencies, (table, start));
        counts.measures = true;
        let boot = reading.boot;
        let before = birth.names.iter().filter(|name| **name < region).count();
        let rank = u64::try_from(before).unwrap_or(0);
        let regions = birth.names.len();
        let mut process = Self {
            index,
            holder: Holder {
                region,
                incarnation,
            },
            counts,
            machine: Machine::new(),
            log: None,
            is_enrolled: false,
            is_draining: false,
            is_store_failed: false,
            names: Rc::clone(birth.names),
            applied: 0,
            applied_term: 0,
            talk: Talk::new(),
            seats: BTreeMap::new(),
            checks: BTreeMap::new(),
            tickets: BTreeMap::new(),
            last_ticket: 0,
            leading: None,
            has_majority: true,
            majority_noted: boot,
            proposals: BTreeMap::new(),
            last_proposal: 0,
            requests: (0, std::collections::BTreeSet::new()),
            waiters: BTreeMap::new(),
            to_leader: VecDeque::new(),
            to_region: VecDeque::new(),
            inherited: Inherited::default(),
            unplaced: Vec::new(),
            lead_at: Span::MAX,
            seats_at: Span::MAX,
            log_at: Span::MAX,
            revision: 0,
            version: 0,
            started: boot,
            told_time: (reading.region_time, boot),
            stage: Stage::Runs,
            rank,
            draws: birth.draws,
            is_enrolling: false,
        };
        process
            .machine
            .set_regions(u32::try_from(regions).unwrap_or(u32::MAX));
        process.join_log(boot);
        let at = process.clocks(reading);
        let mut context = Context {
            at,
            disk,
            is_full: false,
            out,
        };
        process.install(&context);
        process.apply(&mut context);
        let records = context.disk.records.values().cloned().collect();
        process.restore(&context, records);
        let phase = process.draws.up_to(ROUND);
        context.later(phase, Event::Round);
        context.later(PULSE, Event::Pulse);
        context.later(SURVEY, Event::Survey);
        context.later(PROBE, Event::Probe);
        process.after(&mut context);
        process
    }

    fn join_log(&mut self, boot: Span) {
        let draws = Draws::new(self.draws.draw());
        let regions = self.names.len();
        self.log = Some(log::Node::new(self.index, regions, self.rank, draws, boot));
        self.log_at = Span::MAX;
    }

    /// Region time: what was told is not told back, up to an hour.
    fn clocks(&mut self, reading: Reading) -> At {
        let (told, since) = self.told_time;
        let wall = reading.region_time;
        let behind = told.since(wall);
        let now = if behind.is_zero() || behind > Span::from_seconds(3_600) {
            wall
        } else {
            // At half rate until it is caught up.
            let elapsed = reading.boot.minus(since);
            told.plus(Span::from_nanos(elapsed.as_nanos() / 2))
        };
        self.told_time = (now, reading.boot);
        At {
            now,
            boot: reading.boot,
        }
    }

    /// Something happens.
    pub fn handle(
        &mut self,
        reading: Reading,
        event: Event,
        (disk, is_full): (&mut Disk, bool),
        out: &mut Vec<Out>,
    ) {
        let at = self.clocks(reading);
        let mut context = Context {
            at,
            disk,
            is_full,
            out,
        };
        match event {
            Event::Message(from, message) => self.receive(&mut context, from, *message),
            Event::Call(call) => self.called(&mut context, call),
            Event::Round => self.round(&mut context),
            Event::Pulse => self.pulse(&mut context),
            Event::Survey => {
                self.survey(&mut context);
                context.later(SURVEY, Event::Survey);
            }
            Event::Probe => self.probe(&mut context),
            Event::Log => {
                if at.boot >= self.log_at {
                    self.log_at = Span::MAX;
                    self.with_log(&mut context, |log, disk, boot, words| {
                        log.tick(disk, boot, words);
                    });
                }
            }
            Event::Seats => {
                if at.boot >= self.seats_at {
                    self.seats_at = Span::MAX;
                    self.tick_seats(&mut context);
                }
            }
            Event::Lead => {
                if at.boot >= self.lead_at {
                    self.lead_at = Span::MAX;
                    self.tick_leader(&mut context);
                }
            }
            Event::Woken(ticket, verdict) => self.woken(&mut context, ticket, verdict),
            Event::Overdue(call) => self.overdue(&mut context, call),
            Event::Kept(call) => self.kept(&mut context, call),
            Event::Proposal(id) => self.try_proposal(&mut context, id),
            Event::Leave => {
                self.stage = Stage::Leaves(at.boot);
                self.leave(&mut context);
            }
            Event::Leaving => self.leave(&mut context),
            Event::HandOver(to) => self.hand_over(&mut context, to),
            Event::HandingOver => self.handing_over(&mut context),
            Event::Administer(command) => {
                self.propose(&mut context, *command, ENROLL_WITHIN, Purpose::Nothing);
            }
        }
        self.after(&mut context);
    }

    /// Whether callers find it.
    pub fn serves(&self, boot: Span) -> bool {
        let is_over = boot.minus(self.started) >= CAUGHT_UP_WITHIN;
        self.stage == Stage::Runs && (self.is_enrolled || is_over)
    }

    /// Who leads, as far as it knows.
    pub fn leader(&self) -> Option<usize> {
        self.log.as_ref().and_then(log::Node::leader)
    }

    /// Whether a link to a region is up.
    pub fn is_linked(&self, region: usize) -> bool {
        region == self.index || self.counts.linked(region).is_some()
    }

    /// Lets its part in the log act.
    pub(super) fn with_log<T>(
        &mut self,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut log::Node, &mut log::Disk, Span, &mut log::Outbox) -> T,
    ) -> Option<T> {
        let log = self.log.as_mut()?;
        let mut words = log::Outbox::new();
        let done = act(log, &mut context.disk.log, context.at.boot, &mut words);
        for (to, word) in words {
            // Like all else it travels over links.
            if self.is_linked(to) {
                context.out.push(Out::Send(to, Message::Log(word)));
            }
        }
        Some(done)
    }

    fn receive(&mut self, context: &mut Context<'_>, from: usize, message: Message) {
        match message {
            Message::Counts(message) => {
                let mut out = exchange::Outbox::new();
                let limits = self.machine.catalogue();
                self.counts
                    .receive(context.at, limits, from, message, &mut out);
                send(context, out);
            }
            Message::Log(message) => {
                self.with_log(context, |log, disk, boot, words| {
                    log.hear(disk, boot, from, message, words);
                });
            }
            Message::ToLeader(word) => self.to_leader.push_back((from, word)),
            Message::ToRegion(word) => self.to_region.push_back(word),
            Message::Forward(forward) => self.forwarded(context, from, *forward),
            Message::Forwarded { to, id, said } => {
                if to == self.holder.incarnation {
                    self.settled(context, id, *said);
                }
            }
        }
    }

    /// After everything: what is committed is applied, who leads is followed, and words within the region are heard.
    fn after(&mut self, context: &mut Context<'_>) {
        loop {
            // Before anything is applied: entries of this process are no more its own when another leads.
            self.follow_lead(context);
            self.install(context);
            self.apply(context);
            self.follow_lead(context);
            let log = &context.disk.log;
            // Nothing that comes later mends that, and to wait for it would be to wait for ever.
            let fault = log.fault().or_else(|| log.lacks(self.applied));
            if let Some(fault) = fault {
                context.out.push(Out::Broken(fault));
                return;
            }
            if let Some((from, word)) = self.to_leader.pop_front() {
                self.hear_region(context, from, word);
            } else if let Some(word) = self.to_region.pop_front() {
                self.hear_leader(context, &word);
            } else if self.applied >= context.disk.log.committed() {
                break;
            }
        }
        if !self.is_enrolling && !self.is_enrolled && self.machine.cluster().is_some() {
            self.is_enrolling = true;
            let enroll = Command::Enroll(self.holder.clone());
            self.propose(context, enroll, ENROLL_WITHIN, Purpose::Enroll);
        }
        let due = self.log.as_ref().map_or(Span::MAX, log::Node::due);
        plan(context, &mut self.log_at, due, Event::Log);
        let due = self.seats.values().map(Reservation::due).min();
        plan(
            context,
            &mut self.seats_at,
            due.unwrap_or(Span::MAX),
            Event::Seats,
        );
        // One that hears no majority does not speak.
        let leading = self.leading.as_ref().filter(|_| self.has_majority);
        let due = leading.and_then(Leading::due);
        plan(
            context,
            &mut self.lead_at,
            due.unwrap_or(Span::MAX),
            Event::Lead,
        );
    }

    pub(super) fn enrolled(&mut self, context: &mut Context<'_>, is_enrolled: bool) {
        self.is_enrolling = false;
        self.is_enrolled |= is_enrolled;
        if is_enrolled {
            let records = std::mem::take(&mut self.unplaced);
            self.restore(context, records);
            self.tell_inherited(context);
        }
    }

    fn round(&mut self, context: &mut Context<'_>) {
        context.later(ROUND, Event::Round);
        let mut out = exchange::Outbox::new();
        let limits = self.machine.catalogue();
        self.counts.tick(context.at, limits, &mut out);
        send(context, out);
        self.give_up_waiters(context);
        self.flush(context);
        self.counts.ledger.sweep(context.at.now, SWEEP_CELLS);
    }

    fn pulse(&mut self, context: &mut Context<'_>) {
        let leader = self.leader();
        let is_met = self.talk.term() >= Some(context.disk.log.term());
        let pause = if is_met || leader.is_none() {
            PULSE
        } else {
            GREETING
        };
        context.later(pause, Event::Pulse);
        self.note_majority(context);
        let word = ToLeader::Pulse(Pulse {
            holder: self.holder.clone(),
            sent_boot: context.at.boot,
            refill: self.talk.measured_refill().unwrap_or(Span::ZERO),
            region_time: context.at.now,
        });
        self.say_to_leader(context, word);
        self.end_leases(context);
    }

    pub(super) fn say_to_leader(&mut self, context: &mut Context<'_>, word: ToLeader) {
        match self.leader() {
            Some(leader) if leader == self.index => self.to_leader.push_back((leader, word)),
            Some(leader) if self.is_linked(leader) => {
                context.out.push(Out::Send(leader, Message::ToLeader(word)));
            }
            _ => {}
        }
    }

    /// The catalogue is another one: reservations of what is over are closed.
    fn reconcile(&mut self, context: &mut Context<'_>) {
        let now = context.at.now;
        let catalogue = self.machine.catalogue();
        let found = |account: &Account| {
            let limit = catalogue.limit(&account.tenant, account.limit.as_str(), &account.key, now);
            limit
                .filter(|(limit, epoch)| {
                    *epoch == account.epoch
                        && limit.mode == Mode::Strict
                        && has_reservations(&limit.rule)
                })
                .map(|(limit, _)| Quota::of(&limit.rule))
        };
        let known: Vec<(Account, Option<Quota>)> = self
            .seats
            .keys()
            .map(|account| (account.clone(), found(account)))
            .collect();
        for (account, quota) in known {
            self.with_seat(context, &account, |reservation, now, effects| match quota {
                Some(quota) => reservation.set_quota(quota),
                None => reservation.close(now, effects),
            });
        }
    }

    fn tick_seats(&mut self, context: &mut Context<'_>) {
        let revision = self.talk.revision();
        let has_moved = std::mem::replace(&mut self.revision, revision) != revision;
        let boot = context.at.boot;
        let due: Vec<Account> = self
            .seats
            .iter()
            .filter(|(_, seat)| has_moved || seat.due() <= boot)
            .map(|(account, _)| account.clone())
            .collect();
        for account in due {
            self.with_seat(context, &account, |reservation, now, effects| {
                reservation.tick(now, effects);
            });
            if self
                .seats
                .get(&account)
                .is_some_and(Reservation::is_releasable)
            {
                self.seats.remove(&account);
            }
        }
    }
}

/// Lets `event` happen at `due`, unless it is to happen before that anyhow.
fn plan(context: &mut Context<'_>, planned: &mut Span, due: Span, event: Event) {
    if due < *planned {
        let due = due.max(context.at.boot);
        *planned = due;
        context.out.push(Out::At(due, event));
    }
}

pub(super) fn send(context: &mut Context<'_>, out: exchange::Outbox) {
    let messages = out
        .into_iter()
        .map(|(to, message)| Out::Send(to, Message::Counts(message)));
    context.out.extend(messages);
}

/// What a limit said, as callers are told.
pub(super) fn said(told: &crate::ledger::check::ItemOutcome, epoch: u64) -> Said {
    let by = serde_json::to_value(told.decided_by).ok();
    let by = by.as_ref().and_then(serde_json::Value::as_str);
    Said {
        epoch,
        window_start_ms: told.window_start.map(Timestamp::as_unix_ms),
        decided_by: by.unwrap_or_default().to_owned(),
        is_degraded: told.degraded,
    }
}
