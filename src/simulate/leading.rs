//! The region that leads: its clock, whom it grants, what it charges, as `region::leading` does it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::account::Transfer;
use crate::grants::book::NotTaken;
use crate::grants::leader::Action;
use crate::grants::leader::Leader;
use crate::grants::leader::Now;
use crate::grants::log_time::Discipline;
use crate::grants::log_time::LogTime;
use crate::grants::log_time::OFF_MEDIAN_MAX;
use crate::grants::message::ToLeader;
use crate::machine::Machine;
use crate::machine::charge::Charge;
use crate::machine::charge::Charged;
use crate::machine::command::Command;
use crate::machine::command::Reply;
use crate::machine::lead;

use super::log;
use super::process::Context;
use super::process::Event;
use super::process::Message;
use super::process::Out;
use super::process::Process;
use super::proposing::Asker;
use super::proposing::Forwarded;
use super::proposing::WRITE_DEADLINE;
use super::proposing::Waiter;
use super::proposing::outcome;

/// A leader that has not noted a majority for so long does not renew leases.
const MAJORITY_SURE: Span = Span::from_ms(1_500);
/// A leader hands over when its clock was far from the others' in so many surveys running.
const OFF_SURVEYS: u32 = 3;
/// After a hand-over the leader waits for so many surveys before it tries another.
const PAUSE_SURVEYS: u32 = 10;
/// How long a hand-over may take; proposals wait meanwhile.
const HAND_OVER_WITHIN: Span = Span::from_ms(2_000);
const HAND_OVER_STEP: Span = Span::from_ms(20);

/// The leader's soft state.
pub struct Leading {
    /// Its term.
    pub term: u64,
    leader: Leader,
    log_time: LogTime,
    charges: BTreeMap<u64, (Span, Charge, Asker)>,
    last_charge: u64,
    off_for: u32,
    pause: u32,
    /// To whom the lead is being handed over, until when.
    hand_over: Option<(usize, Span)>,
    /// What waits for that to end.
    held_back: Vec<(Command, Waiter)>,
}

impl Leading {
    /// When time brings something for it.
    pub fn due(&self) -> Option<Span> {
        self.leader.next_wake()
    }
}

impl Process {
    /// Lets the leader act; `None` when this process does not lead.
    fn lead<T>(
        &mut self,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut Leading, &Machine, Now, &mut Vec<Action>) -> T,
    ) -> Option<T> {
        if !self.has_majority {
            return None;
        }
        let leading = self.leading.as_mut()?;
        let now = Now {
            boot: context.at.boot,
            log: leading.log_time.read(context.reading()),
        };
        let is_sure = now.boot.minus(self.majority_noted) <= MAJORITY_SURE;
        leading.leader.renew_leases(is_sure);
        let mut actions = Vec::new();
        let done = act(leading, &self.machine, now, &mut actions);
        let term = leading.term;
        for action in actions {
            self.carry_out_action(context, term, action);
        }
        Some(done)
    }

    fn carry_out_action(&mut self, context: &mut Context<'_>, term: u64, action: Action) {
        match action {
            Action::Propose { ticket, transfer } => {
                self.propose_transfer(context, (term, ticket), transfer);
            }
            Action::Lapse(holder) => {
                let waiter = Waiter::Lapse(term, holder.clone());
                self.append(context, Command::Lapse(holder), waiter);
            }
            Action::Tell(holder, word) => {
                let to = self.names.iter().position(|name| *name == holder.region);
                match to {
                    Some(to) if to == self.index => self.to_region.push_back(word),
                    Some(to) if self.is_linked(to) => {
                        context.out.push(Out::Send(to, Message::ToRegion(word)));
                    }
                    _ => {}
                }
            }
            Action::Charge { ticket } => {
                let leading = self.leading.as_mut();
                let waiting = leading.and_then(|leading| leading.charges.remove(&ticket));
                if let Some((_, charge, asker)) = waiting {
                    let waiter = Waiter::Charge(Some(ticket), asker);
                    self.append(context, Command::Charge(charge), waiter);
                }
            }
            Action::RefuseCharge { ticket, why, .. } => {
                let leading = self.leading.as_mut();
                let waiting = leading.and_then(|leading| leading.charges.remove(&ticket));
                if let Some((_, charge, asker)) = waiting {
                    let said = match why {
                        NotTaken::Empty => self
                            .log_time(context)
                            .map(|log| self.machine.refusal(&charge, log)),
                        why => Some(Charged::NotTaken(why.to_string())),
                    };
                    let said = said.map_or(Forwarded::NotLeader, |said| {
                        Forwarded::Done(0, Reply::Charged(said))
                    });
                    self.tell_asker(context, asker, said);
                }
            }
        }
    }

    fn propose_transfer(
        &mut self,
        context: &mut Context<'_>,
        (term, ticket): (u64, u64),
        transfer: Transfer,
    ) {
        let waiter = Waiter::Transfer(term, ticket);
        self.append(context, Command::Transfer(transfer), waiter);
    }

    /// Log time, when this process leads.
    pub(super) fn log_time(&mut self, context: &mut Context<'_>) -> Option<Timestamp> {
        if !self.has_majority {
            return None;
        }
        let leading = self.leading.as_mut()?;
        Some(leading.log_time.read(context.reading()))
    }

    pub(super) fn transferred(
        &mut self,
        context: &mut Context<'_>,
        (term, ticket): (u64, u64),
        said: Forwarded,
    ) {
        let outcome = outcome(said);
        self.lead(context, |leading, machine, now, out| {
            if leading.term != term {
                return;
            }
            let book = machine.book();
            match &outcome {
                Some(outcome) => leading.leader.applied(now, book, ticket, outcome, out),
                None => leading.leader.failed(now, book, ticket),
            }
        });
    }

    pub(super) fn lapsed(
        &mut self,
        context: &mut Context<'_>,
        term: u64,
        holder: &Holder,
        is_applied: bool,
    ) {
        self.lead(context, |leading, _, _, _| {
            if leading.term == term {
                leading.leader.lapsed(holder, is_applied);
            }
        });
    }

    pub(super) fn charged(&mut self, context: &mut Context<'_>, ticket: u64, counts: bool) {
        self.lead(context, |leading, machine, now, out| {
            let book = machine.book();
            leading.leader.charged(now, book, ticket, counts, out);
        });
    }

    /// Begins or ends to lead, as the log says.
    pub(super) fn follow_lead(&mut self, context: &mut Context<'_>) {
        let leads = self.log.as_ref().is_some_and(log::Node::leads);
        let term = context.disk.log.term();
        let is_over = |leading: &mut Leading| !leads || leading.term != term;
        if let Some(leading) = self.leading.take_if(is_over) {
            for (_, _, asker) in leading.charges.into_values() {
                self.tell_asker(context, asker, Forwarded::NotLeader);
            }
            for (_, waiter) in leading.held_back {
                self.tell_waiter(context, waiter, Forwarded::NotLeader);
            }
            self.lose_waiters(context);
        }
        let is_ready = leads && self.applied_term == term;
        if !is_ready || self.leading.is_some() {
            return;
        }
        let reading = context.reading();
        let time_of = |region: usize| {
            if region == self.index {
                return Some(reading.region_time);
            }
            let ahead = self
                .counts
                .ahead(region)
                .filter(|_| self.is_linked(region))?;
            let time = reading.region_time.as_nanos().saturating_add(ahead);
            Some(Timestamp::from_nanos(time))
        };
        let voters = context.disk.log.voters().iter();
        let voters: Vec<(RegionName, Option<Timestamp>)> = voters
            .map(|(region, _)| (self.names[*region].clone(), time_of(*region)))
            .collect();
        let own = self.names[self.index].clone();
        let last = self.machine.log_time();
        self.leading = Some(Leading {
            term,
            leader: Leader::new(term),
            log_time: LogTime::start(Discipline::Slewed, own, reading, last, &voters),
            charges: BTreeMap::new(),
            last_charge: 0,
            off_for: 0,
            pause: 0,
            hand_over: None,
            held_back: Vec::new(),
        });
        self.has_majority = true;
        self.majority_noted = context.at.boot;
        self.append(context, Command::Begin, Waiter::Nobody);
    }

    /// Notes whether a majority has been heard lately.
    pub(super) fn note_majority(&mut self, context: &mut Context<'_>) {
        let boot = context.at.boot;
        let log = self.log.as_ref();
        self.has_majority =
            log.is_none_or(|log| !log.leads() || log.hears_majority(&context.disk.log, boot));
        if self.has_majority {
            self.majority_noted = boot;
        }
    }

    pub(super) fn end_leases(&mut self, context: &mut Context<'_>) {
        self.lead(context, |leading, machine, now, out| {
            leading.leader.end_leases(now, machine.book(), out);
        });
    }

    pub(super) fn tick_leader(&mut self, context: &mut Context<'_>) {
        self.lead(context, |leading, machine, now, out| {
            leading.leader.tick(now, machine.book(), out);
        });
    }

    /// The catalogue has changed: open windows get the quota that is in force.
    pub(super) fn requote(&mut self, context: &mut Context<'_>) {
        self.lead(context, |leading, machine, now, out| {
            let mut open: Vec<Account> = machine.book().accounts().collect();
            open.dedup();
            for account in open {
                if let Some((_, limit)) = machine.limit_of(&account, now.log) {
                    let quota = Quota::of(&limit.rule);
                    let book = machine.book();
                    leading.leader.set_quota(now, book, &account, quota, out);
                }
            }
        });
    }

    /// What this process was told as the leader goes into the log.
    pub(super) fn carry_all_told(&mut self, context: &mut Context<'_>) {
        self.lead(context, |leading, _, _, out| leading.leader.carry_all(out));
    }

    /// A region tells the leader something.
    pub(super) fn hear_region(&mut self, context: &mut Context<'_>, from: usize, word: ToLeader) {
        let from = self.names[from].clone();
        self.lead(context, |leading, machine, now, out| match word {
            ToLeader::Ask(ask) if ask.holder.region == from => {
                lead::ask(&mut leading.leader, machine, now, &ask, out);
            }
            ToLeader::Report(report) if report.holder.region == from => {
                leading.leader.report(now, machine.book(), &report, out);
            }
            ToLeader::Pulse(pulse) if pulse.holder.region == from => {
                leading
                    .log_time
                    .tell(now.boot, &pulse.holder.region, pulse.region_time);
                leading.leader.pulse(now, machine.book(), &pulse, out);
            }
            _ => {}
        });
    }

    /// Proposes here, where the lead is.
    pub(super) fn serve(&mut self, context: &mut Context<'_>, command: Command, asker: Asker) {
        match command {
            Command::Charge(charge) => self.charge_here(context, charge, asker),
            command => self.append(context, command, Waiter::Plain(asker)),
        }
    }

    fn charge_here(&mut self, context: &mut Context<'_>, mut charge: Charge, asker: Asker) {
        let until = context.at.boot.plus(WRITE_DEADLINE);
        let planned = self.lead(context, |leading, machine, now, out| {
            let open = lead::parts(&mut leading.leader, machine, &mut charge, now);
            if let Some(said) = machine.judge(&charge, now.log) {
                return Err(said);
            }
            if open.is_empty() || charge.up_to {
                return Ok(None);
            }
            leading.last_charge += 1;
            let ticket = leading.last_charge;
            let waiting = (until, charge.clone(), asker);
            leading.charges.insert(ticket, waiting);
            let book = machine.book();
            leading.leader.charge(now, book, ticket, open, out);
            Ok(Some(ticket))
        });
        match planned {
            None => self.tell_asker(context, asker, Forwarded::NotLeader),
            Some(Err(said)) => {
                let said = Forwarded::Done(0, Reply::Charged(said));
                self.tell_asker(context, asker, said);
            }
            Some(Ok(None)) => {
                let waiter = Waiter::Charge(None, asker);
                self.append(context, Command::Charge(charge), waiter);
            }
            Some(Ok(Some(_))) => {}
        }
    }

    /// Checks for which no units came in time.
    pub(super) fn give_up_charges(&mut self, context: &mut Context<'_>) {
        let boot = context.at.boot;
        let Some(leading) = &mut self.leading else {
            return;
        };
        let overdue = leading
            .charges
            .iter()
            .filter(|(_, waiting)| waiting.0 <= boot);
        let overdue: Vec<(u64, Asker)> = overdue.map(|(id, waiting)| (*id, waiting.2)).collect();
        for (ticket, asker) in overdue {
            if let Some(leading) = &mut self.leading {
                leading.charges.remove(&ticket);
            }
            self.charged(context, ticket, false);
            self.tell_asker(context, asker, Forwarded::Unavailable);
        }
    }

    /// Looks after the members: takes back those whose directory is new, and hands over when the clock is off.
    pub(super) fn survey(&mut self, context: &mut Context<'_>) {
        self.tell_inherited(context);
        if self.leading.is_none() {
            return;
        }
        self.with_log(context, |log, disk, boot, out| {
            log.take_back(disk, boot, out);
        });
        let trips: Vec<(RegionName, Option<Span>)> = (0..self.names.len())
            .filter(|region| *region != self.index)
            .map(|region| (self.names[region].clone(), self.counts.round_trip(region)))
            .collect();
        let voters = context.disk.log.voters().iter();
        let voters: Vec<RegionName> = voters
            .map(|(region, _)| self.names[*region].clone())
            .collect();
        let reading = context.reading();
        let off = self.lead(context, |leading, _, _, _| {
            for (region, trip) in &trips {
                if let Some(trip) = trip {
                    leading.leader.set_round_trip(region, *trip);
                }
            }
            leading.log_time.set_voters(voters);
            let is_off = leading.log_time.off_median(reading) > OFF_MEDIAN_MAX;
            leading.off_for = if is_off { leading.off_for + 1 } else { 0 };
            leading.pause = leading.pause.saturating_sub(1);
            let is_due = leading.off_for >= OFF_SURVEYS && leading.pause == 0;
            let near = leading.log_time.near_median(reading.boot).cloned();
            is_due.then(|| near.collect::<BTreeSet<RegionName>>())
        });
        if let Some(near) = off.flatten()
            && let Some(to) = self.caught_up(context, |region| near.contains(region))
        {
            if let Some(leading) = &mut self.leading {
                leading.pause = PAUSE_SURVEYS;
            }
            self.hand_over(context, to);
        }
    }

    /// Holds an entry back while the lead is being handed over; gives it back otherwise.
    pub(super) fn hold_back(
        &mut self,
        command: Command,
        waiter: Waiter,
    ) -> Option<(Command, Waiter)> {
        match &mut self.leading {
            Some(leading) if leading.hand_over.is_some() => {
                leading.held_back.push((command, waiter));
                None
            }
            _ => Some((command, waiter)),
        }
    }

    /// Hands the lead over: entries wait until the other one has everything and leads, or does not in time.
    pub(super) fn hand_over(&mut self, context: &mut Context<'_>, to: usize) {
        let until = context.at.boot.plus(HAND_OVER_WITHIN);
        if let Some(leading) = &mut self.leading
            && leading.hand_over.is_none()
            && to != self.index
        {
            leading.hand_over = Some((to, until));
            self.handing_over(context);
        }
    }

    /// Goes on with it.
    pub(super) fn handing_over(&mut self, context: &mut Context<'_>) {
        let Some(leading) = &mut self.leading else {
            return;
        };
        let Some((to, until)) = leading.hand_over else {
            return;
        };
        if context.at.boot >= until {
            leading.hand_over = None;
            for (command, waiter) in std::mem::take(&mut leading.held_back) {
                self.append(context, command, waiter);
            }
            return;
        }
        // What is on its way is applied first.
        if self.waiters.is_empty() {
            self.with_log(context, |log, disk, _, out| log.hand_over(disk, to, out));
        }
        context.later(HAND_OVER_STEP, Event::HandingOver);
    }
}
