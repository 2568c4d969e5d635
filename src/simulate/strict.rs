//! Checks of one process: decided at once, or waiting for units, for the log or for the disk, as `region::deciding` does
//! it. A check is of one limit here.

mod ending;

use std::collections::BTreeMap;

use crate::domain::limit::Durability;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::drill::record::Answer;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::message::ToRegion;
use crate::grants::reservation::Effect;
use crate::grants::reservation::Now;
use crate::grants::reservation::Reservation;
use crate::grants::reservation::Ticket;
use crate::grants::reservation::Times;
use crate::grants::reservation::Verdict;
use crate::ledger::check::Item;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::ledger::check::Word;
use crate::ledger::idempotency::Operation;
use crate::machine::charge::Charge;
use crate::machine::charge::ChargeItem;
use crate::machine::charge::Keyed;
use crate::machine::charge::RequestNumber;
use crate::machine::command::Command;
use crate::machine::strict;
use crate::machine::strict::Seats;
use crate::machine::strict::Stepped;
use crate::machine::strict::Strict;
use crate::machine::strict::Want;
use crate::machine::strict::window_length;

use super::process::Call;
use super::process::Context;
use super::process::Event;
use super::process::Out;
use super::process::Process;
use super::proposing::Purpose;

/// A check that the log decides waits at least so long for its commit.
const COMMIT_WAIT_MIN: Span = Span::from_ms(500);
/// How long the catalogue may take to follow the leader's.
const CATCH_UP: Span = Span::from_seconds(1);
/// How much later than its deadline a verdict may come.
const VERDICT_GRACE: Span = Span::from_seconds(1);
/// How often a check looks its limit up.
const LOOKUPS_MAX: u32 = 3;
/// How long answers under keys are remembered.
const RETENTION: Span = Span::from_seconds(24 * 3_600);

#[derive(Clone, Debug)]
enum Stage {
    /// It is being decided.
    Deciding,
    /// For units.
    Waits { ticket: Ticket, times: Times },
    /// For the catalogue of a version.
    Parked { version: u64 },
    /// For the log, by the number of its request; what the region itself has charged.
    Led { number: u64, outcome: Outcome },
    /// For the disk.
    Keeps { outcome: Outcome },
}

/// A check that is not answered yet.
#[derive(Clone, Debug)]
pub struct Check {
    call: Call,
    lookups: u32,
    stage: Stage,
}

/// The reservations of a process.
struct Held<'a> {
    seats: &'a mut BTreeMap<Account, Reservation>,
    holder: &'a Holder,
}

impl Seats for Held<'_> {
    fn get(&mut self, want: &Want<'_>, boot: Span) -> Option<&mut Reservation> {
        if !self.seats.contains_key(&want.account) {
            if want.units == 0 {
                return None;
            }
            let reservation = Reservation::new(
                want.account.clone(),
                self.holder.clone(),
                Quota::of(&want.limit.rule),
                window_length(&want.limit.rule),
                boot,
            );
            self.seats.insert(want.account.clone(), reservation);
        }
        let found = self.seats.get_mut(&want.account)?;
        found.set_quota(Quota::of(&want.limit.rule));
        Some(found)
    }
}

/// What came of looking at a check.
enum Looked {
    /// There is no such limit.
    Unknown,
    /// It is decided; under which epoch.
    Decided(Outcome, u64),
    /// The region's own part is charged; the log decides.
    Led(Box<Charge>, Outcome),
    /// It lacks units of this account.
    Short(Account),
}

impl Process {
    /// A caller asks.
    pub(super) fn called(&mut self, context: &mut Context<'_>, call: Call) {
        if let Some(key) = &call.idempotency
            && let Some(answer) = context.disk.answers.get(&**key)
        {
            context.out.push(Out::Tell(call.id, answer.clone()));
            return;
        }
        let check = Check {
            lookups: 0,
            stage: Stage::Deciding,
            call,
        };
        let id = check.call.id;
        self.checks.insert(id, check);
        self.decide(context, id, None);
    }

    /// Lets a reservation act, if there is one.
    pub(super) fn with_seat<T>(
        &mut self,
        context: &mut Context<'_>,
        account: &Account,
        act: impl FnOnce(&mut Reservation, &Now<'_>, &mut Vec<Effect>) -> T,
    ) -> Option<T> {
        let talk = self.talk;
        let now = Now {
            boot: context.at.boot,
            exchange: &talk,
        };
        let mut effects = Vec::new();
        let done = act(self.seats.get_mut(account)?, &now, &mut effects);
        self.carry_out(context, effects);
        Some(done)
    }

    fn carry_out(&mut self, context: &mut Context<'_>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(word) => self.say_to_leader(context, word),
                Effect::Wake(ticket, verdict) => {
                    context.later(Span::ZERO, Event::Woken(ticket, verdict));
                }
            }
        }
    }

    /// The leader told this process something.
    pub(super) fn hear_leader(&mut self, context: &mut Context<'_>, word: &ToRegion) {
        let boot = context.at.boot;
        let account = match word {
            ToRegion::Pulse(pulse) => {
                self.talk.pulse(pulse, boot);
                return;
            }
            ToRegion::Answer(answer) if answer.holder == self.holder => {
                self.adopt(answer, boot, context.at.now);
                self.talk.heard(&answer.stamp, boot);
                &answer.account
            }
            ToRegion::Refused(refused) if refused.holder == self.holder => {
                self.talk.heard(&refused.stamp, boot);
                &refused.account
            }
            ToRegion::Recall(recall) if recall.holder == self.holder => &recall.account,
            _ => return,
        };
        let took = self.with_seat(context, account, |reservation, now, effects| match word {
            ToRegion::Answer(answer) => reservation.answer(answer, now, effects),
            ToRegion::Refused(refused) => {
                reservation.refused(refused, now, effects);
                None
            }
            ToRegion::Recall(recall) => {
                reservation.recall(recall, now, effects);
                None
            }
            ToRegion::Pulse(_) => None,
        });
        if let Some(Some(took)) = took {
            self.talk.refilled(took);
        }
    }

    /// Makes a reservation for units of a bucket that were asked for by one that is gone by now: it gives them back.
    fn adopt(&mut self, answer: &crate::grants::message::Answer, boot: Span, now: Timestamp) {
        if !answer.window.is_endless()
            || answer.granted == answer.lapsed_to
            || self.seats.contains_key(&answer.account)
        {
            return;
        }
        let Some((_, limit)) = self.machine.limit_of(&answer.account, now) else {
            return;
        };
        if Quota::of(&limit.rule).flow().is_some() {
            let reservation = Reservation::new(
                answer.account.clone(),
                self.holder.clone(),
                Quota::of(&limit.rule),
                window_length(&limit.rule),
                boot,
            );
            self.seats.insert(answer.account.clone(), reservation);
        }
    }

    /// The atomic step, or what a last word makes of it.
    fn look(
        &mut self,
        context: &mut Context<'_>,
        id: u64,
        word: Option<Verdict>,
    ) -> Option<Looked> {
        let check = self.checks.get(&id)?;
        let call = check.call.clone();
        let ticket = match check.stage {
            Stage::Waits { ticket, .. } => Some(ticket),
            _ => None,
        };
        let at = context.at;
        let view = std::sync::Arc::clone(self.machine.catalogue().view());
        let found = view
            .tenant(&call.tenant)
            .and_then(|tenant| tenant.limit(&call.limit));
        let Some(found) = found else {
            return Some(Looked::Unknown);
        };
        let (limit, epoch) = found.at(&call.key, at.now);
        let items = [Item {
            limit,
            id: found.id,
            epoch,
            key: &call.key,
            cost: call.cost,
        }];
        let is_keyed = call.idempotency.is_some();
        let request = Request {
            now: at.now,
            boot: at.boot,
            tenant: &call.tenant,
            items: &items,
            hold: None,
            keep: is_keyed
                || limit.durability == Durability::Sync
                || limit.mode == crate::domain::limit::Mode::Strict,
            store_failed: self.is_store_failed,
            judge_only: false,
            words: &[],
        };
        let talk = self.talk;
        let now = Now {
            boot: at.boot,
            exchange: &talk,
        };
        let Some(parts) = strict::parts(&request, is_keyed) else {
            return Some(Looked::Decided(self.counts.ledger.check(&request), epoch));
        };
        if let Some(verdict) = word
            && let Some(want) = parts.wants.first()
        {
            let seat = self.seats.get_mut(&want.account);
            let view = seat.and_then(|reservation| reservation.view(&now));
            let seen = view.map(strict::seen);
            let word =
                strict::verdict_word(want, verdict, seen, at.now).unwrap_or(Word::OutOfReach);
            let words = strict::last_words(&request, &parts, 0, word);
            let outcome = self.counts.ledger.check(&Request {
                words: &words,
                ..request
            });
            return Some(Looked::Decided(outcome, epoch));
        }
        let mut seats = Held {
            seats: &mut self.seats,
            holder: &self.holder,
        };
        let strict = Strict {
            request: &request,
            parts: &parts,
            tickets: &[ticket],
        };
        let looked = |want: &Want<'_>, view| {
            strict::looked(&self.machine, &self.holder, &request, want, view)
        };
        let mut effects = Vec::new();
        let stepped = strict::step(
            strict,
            &now,
            &mut seats,
            &self.counts.ledger,
            looked,
            &mut effects,
        );
        let looked = match stepped {
            Stepped::Short(_) => {
                let want = parts.wants.first();
                want.map_or(Looked::Unknown, |want| Looked::Short(want.account.clone()))
            }
            Stepped::Decided(outcome) => {
                let is_led = outcome.allowed
                    && !parts.led.is_empty()
                    && outcome.items.iter().all(|told| !told.degraded);
                if is_led {
                    let account = strict::account(&call.tenant, &items[0]);
                    let charge = self.charge(account, &call, &now);
                    Looked::Led(Box::new(charge), outcome)
                } else {
                    Looked::Decided(outcome, epoch)
                }
            }
        };
        self.carry_out(context, effects);
        Some(looked)
    }

    /// What the log is asked: the check's charge, and what is held for it.
    fn charge(&mut self, account: Account, call: &Call, now: &Now<'_>) -> Charge {
        let seat = self.seats.get_mut(&account);
        let told = seat.and_then(|seat| seat.take_for_charge(call.cost, now));
        Charge {
            request: request_number(&mut self.requests, &self.holder),
            tenant: account.tenant,
            items: vec![ChargeItem {
                limit: account.limit,
                key: account.key,
                epoch: account.epoch,
                units: call.cost,
                window: None,
                told,
            }],
            hold: None,
            keyed: call.idempotency.as_ref().map(|key| Keyed {
                operation: Operation::Check,
                key: key.to_string(),
                fingerprint: 1,
                retention: RETENTION,
            }),
            local: Vec::new(),
            up_to: false,
        }
    }

    /// Decides a check, or lets it wait.
    fn decide(&mut self, context: &mut Context<'_>, id: u64, word: Option<Verdict>) {
        let Some(looked) = self.look(context, id, word) else {
            return;
        };
        match looked {
            Looked::Unknown => self.answer(context, id, Answer::Wrong(404)),
            Looked::Decided(outcome, epoch) => self.decided(context, id, outcome, epoch),
            Looked::Short(account) => self.wait(context, id, &account),
            Looked::Led(charge, outcome) => {
                let number = charge.request.number;
                if let Some(check) = self.checks.get_mut(&id) {
                    check.stage = Stage::Led { number, outcome };
                }
                let patience = self.talk.max_wait().max(COMMIT_WAIT_MIN);
                let command = Command::Charge(*charge);
                self.propose(context, command, patience, Purpose::Check(id));
            }
        }
    }

    fn wait(&mut self, context: &mut Context<'_>, id: u64, account: &Account) {
        let boot = context.at.boot;
        let usual = self.talk.max_wait();
        let Some(check) = self.checks.get_mut(&id) else {
            return;
        };
        let (ticket, times) = match check.stage {
            Stage::Waits { ticket, times } => (ticket, times),
            _ => {
                self.last_ticket += 1;
                let times = Times {
                    came: boot,
                    deadline: boot.plus(usual),
                };
                let ticket = Ticket(self.last_ticket);
                self.tickets.insert(ticket, id);
                let late = times.deadline.plus(VERDICT_GRACE);
                context.out.push(Out::At(late, Event::Overdue(id)));
                (ticket, times)
            }
        };
        check.stage = Stage::Waits { ticket, times };
        let units = check.call.cost;
        self.with_seat(context, account, |reservation, now, effects| {
            reservation.wait(ticket, units, times, now, effects);
        });
    }

    /// A check that waits is told.
    pub(super) fn woken(&mut self, context: &mut Context<'_>, ticket: Ticket, verdict: Verdict) {
        let Some(id) = self.tickets.get(&ticket).copied() else {
            return;
        };
        match verdict {
            Verdict::Retry => self.decide(context, id, None),
            Verdict::Closed => {
                self.tickets.remove(&ticket);
                self.look_again(context, id);
            }
            Verdict::Changed { version } => {
                self.tickets.remove(&ticket);
                self.park(context, id, version);
            }
            Verdict::Dry { .. } | Verdict::OutOfReach | Verdict::Capacity => {
                self.tickets.remove(&ticket);
                if let Some(check) = self.checks.get_mut(&id) {
                    check.stage = Stage::Deciding;
                }
                self.decide(context, id, Some(verdict));
            }
        }
    }

    fn park(&mut self, context: &mut Context<'_>, id: u64, version: u64) {
        if self.machine.catalogue().version() >= version {
            self.look_again(context, id);
            return;
        }
        if let Some(check) = self.checks.get_mut(&id) {
            check.stage = Stage::Parked { version };
            context.later(CATCH_UP, Event::Overdue(id));
        }
    }

    /// The limit is another one by now.
    fn look_again(&mut self, context: &mut Context<'_>, id: u64) {
        let Some(check) = self.checks.get_mut(&id) else {
            return;
        };
        check.lookups += 1;
        check.stage = Stage::Deciding;
        if check.lookups >= LOOKUPS_MAX {
            let unavailable = Answer::Unavailable {
                may_be_charged: false,
            };
            self.answer(context, id, unavailable);
        } else {
            self.decide(context, id, None);
        }
    }

    /// Checks that waited for the catalogue go on.
    pub(super) fn go_on_parked(&mut self, context: &mut Context<'_>) {
        let known = self.machine.catalogue().version();
        let parked = self.checks.iter().filter(
            |(_, check)| matches!(check.stage, Stage::Parked { version } if version <= known),
        );
        for id in parked.map(|(id, _)| *id).collect::<Vec<u64>>() {
            self.look_again(context, id);
        }
    }

    /// Nothing came in time.
    pub(super) fn overdue(&mut self, context: &mut Context<'_>, id: u64) {
        match self.checks.get(&id).map(|check| &check.stage) {
            Some(Stage::Waits { ticket, times })
                if times.deadline.plus(VERDICT_GRACE) <= context.at.boot =>
            {
                let ticket = *ticket;
                self.woken(context, ticket, Verdict::OutOfReach);
            }
            Some(Stage::Parked { .. }) => self.look_again(context, id),
            _ => {}
        }
    }

    fn with_item<T>(
        &self,
        context: &Context<'_>,
        call: &Call,
        act: impl FnOnce(&Self, &Context<'_>, Item<'_>) -> T,
    ) -> Option<T> {
        let view = std::sync::Arc::clone(self.machine.catalogue().view());
        let found = view.tenant(&call.tenant)?.limit(&call.limit)?;
        let (limit, epoch) = found.at(&call.key, context.at.now);
        let item = Item {
            limit,
            id: found.id,
            epoch,
            key: &call.key,
            cost: call.cost,
        };
        Some(act(self, context, item))
    }
}

fn request_number(
    requests: &mut (u64, std::collections::BTreeSet<u64>),
    holder: &Holder,
) -> RequestNumber {
    let (last, open) = requests;
    *last += 1;
    open.insert(*last);
    RequestNumber {
        holder: holder.clone(),
        number: *last,
        answered_below: open.first().copied().unwrap_or(*last),
    }
}
