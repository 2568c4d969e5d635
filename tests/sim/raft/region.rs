//! A process as a region: the shell around `grants::reservation`, checks that are spent here, and requests
//! that the log decides.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::domain::time::WindowId;
use highwater::grants::account::Account;
use highwater::grants::account::Holder;
use highwater::grants::exchange::Exchange;
use highwater::grants::message::ToLeader;
use highwater::grants::message::ToRegion;
use highwater::grants::message::Why;
use highwater::grants::reservation::Effect;
use highwater::grants::reservation::Now;
use highwater::grants::reservation::Reservation;
use highwater::grants::reservation::Spend;
use highwater::grants::reservation::Ticket;
use highwater::grants::reservation::Times;
use highwater::grants::reservation::Verdict;
use highwater::machine::charge::RequestNumber;
use highwater::machine::command::Command;
use highwater::machine::command::Reply;
use openraft::AsyncRuntime;
use openraft_rt_sim::SimRuntime;
use tokio::sync::mpsc;

use super::node::Life;
use super::types::Forwarded;
use super::types::Letter;
use super::types::Request;
use super::wire::forwarded;
use crate::model::MS;
use crate::model::SECOND;
use crate::model::replica::account;
use crate::model::replica::counter_of;

/// One reservation in its place.
struct Seat {
    reservation: Reservation,
    spent: BTreeMap<WindowId, u64>,
}

/// What a process holds. Nothing of it survives its end.
#[derive(Default)]
pub struct Desk {
    pub exchange: Exchange,
    seats: BTreeMap<Account, Seat>,
    waiting: BTreeMap<u64, mpsc::Sender<(Account, Verdict)>>,
    next_check: u64,
    last_request: u64,
    open: BTreeSet<u64>,
}

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Granted,
    Refused,
    OutOfReach,
    Unavailable,
}

/// Why a proposal did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Nothing was proposed.
    Unavailable,
    Unknown,
}

impl Life {
    /// A counter's account, quota and window length by the catalogue here.
    pub fn terms(&self, counter: usize) -> Option<(Account, u64, Span)> {
        let core = self.core.lock();
        let tenant = core.machine.catalogue().view().tenant("acme")?;
        let key = counter.to_string();
        let (limit, epoch) = tenant.limit("exports")?.at(&key, core.machine.log_time());
        let length = Span::from_nanos(self.sim.setup.window);
        Some((account(counter, epoch), limit.rule.quota(), length))
    }

    /// Lets a reservation act and carries its effects out.
    fn seat<T>(
        &self,
        account: &Account,
        act: impl FnOnce(&mut Reservation, &Now<'_>, &mut Vec<Effect>) -> T,
    ) -> Option<T> {
        let (_, quota, length) = self.terms(counter_of(account))?;
        let boot = self.boot();
        let mut desk = self.desk.lock();
        let Desk {
            exchange,
            seats,
            waiting,
            ..
        } = &mut *desk;
        let seat = seats.entry(account.clone()).or_insert_with(|| {
            let holder = self.holder.clone();
            Seat {
                reservation: Reservation::new(account.clone(), holder, quota, length, boot),
                spent: BTreeMap::new(),
            }
        });
        let mut out = Vec::new();
        let done = act(&mut seat.reservation, &Now { boot, exchange }, &mut out);
        let mut words = Vec::new();
        for effect in out {
            match effect {
                Effect::Send(word) => words.push(word),
                Effect::Wake(Ticket(ticket), verdict) => {
                    if let Some(waiting) = waiting.get(&ticket) {
                        waiting.try_send((account.clone(), verdict)).ok();
                    }
                }
            }
        }
        drop(desk);
        for word in words {
            self.to_leader(word);
        }
        Some(done)
    }

    pub fn to_leader(&self, word: ToLeader) {
        if let Some(leader) = self.leader() {
            self.letter(leader, &Letter::ToLeader(word));
        }
    }

    fn seats(&self) -> Vec<Account> {
        self.desk.lock().seats.keys().cloned().collect()
    }

    pub fn tick_region(&self) {
        let boot = self.boot();
        let mut due = Vec::new();
        for (account, seat) in &self.desk.lock().seats {
            if seat.reservation.due() <= boot {
                due.push(account.clone());
            }
        }
        for account in due {
            self.seat(&account, |reservation, now, out| {
                reservation.tick(now, out);
            });
            self.audit_seat(&account);
            let mut desk = self.desk.lock();
            let seat = desk.seats.get(&account);
            if seat.is_some_and(|seat| seat.reservation.is_releasable()) {
                desk.seats.remove(&account);
            }
        }
    }

    /// The region's half of S1, against what all nodes know together.
    fn audit_seat(&self, account: &Account) {
        let view = self.seat(account, |reservation, now, _| reservation.view(now));
        let Some(Some(view)) = view else { return };
        let spent = self.desk.lock().seats.get(account).map(|seat| {
            let spent = seat.spent.get(&view.window.id);
            spent.copied().unwrap_or(0)
        });
        let used = view.spent + view.held;
        self.sim.audited(|audit| {
            assert_eq!(Some(view.spent), spent, "spent units were forgotten");
            let granted = audit.granted(account, view.window.id, &self.holder);
            assert!(used <= granted, "S1: {used} held of {granted} granted");
        });
    }

    /// The catalogue here may be another one.
    pub fn learn_catalogue(&self) {
        for account in self.seats() {
            let Some((newest, quota, _)) = self.terms(counter_of(&account)) else {
                continue;
            };
            self.seat(&account, |reservation, now, out| {
                if newest == account {
                    reservation.set_quota(quota);
                } else {
                    reservation.close(now, out);
                }
            });
        }
    }

    fn version(&self) -> u64 {
        self.core.lock().machine.catalogue().version()
    }

    pub fn hear_leader(&self, holder: &Holder, word: &ToRegion) {
        if *holder != self.holder || self.is_dead() {
            return;
        }
        let boot = self.boot();
        let (stamp, account) = match word {
            ToRegion::Pulse(answer) => {
                self.desk.lock().exchange.pulse(answer, boot);
                return;
            }
            ToRegion::Answer(answer) => (Some(answer.stamp), &answer.account),
            ToRegion::Refused(refused) => (Some(refused.stamp), &refused.account),
            ToRegion::Recall(recall) => (None, &recall.account),
        };
        if let Some(stamp) = stamp {
            self.desk.lock().exchange.heard(&stamp, boot);
        }
        if let ToRegion::Refused(refused) = word
            && matches!(refused.why, Why::Changed { version } if version <= self.version())
        {
            return;
        }
        if !self.desk.lock().seats.contains_key(account) {
            return;
        }
        let took = self.seat(account, |reservation, now, out| match word {
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
        if let Some(Some(took)) = took {
            self.desk.lock().exchange.refilled(took);
        }
    }

    // Checks that are spent here.

    pub async fn check(self: Arc<Self>, items: Vec<(usize, u64)>) -> Ended {
        let (tell, mut told) = mpsc::channel(64);
        let boot = self.boot();
        let (ticket, wait) = {
            let mut desk = self.desk.lock();
            desk.next_check += 1;
            let ticket = desk.next_check;
            desk.waiting.insert(ticket, tell);
            (ticket, desk.exchange.max_wait())
        };
        let times = Times {
            came: boot,
            deadline: boot.plus(wait),
        };
        let mut waits_at = BTreeSet::new();
        let patience = wait.plus(Span::from_seconds(2)).to_std();
        let ended = loop {
            if self.is_dead() {
                return Ended::Unavailable;
            }
            if let Some(ended) = self.decide(ticket, &items, times, &mut waits_at) {
                break ended;
            }
            let Ok(Some((account, verdict))) = SimRuntime::timeout(patience, told.recv()).await
            else {
                if !self.is_dead() && self.sim.setup.faults.pauses == 0 {
                    self.sim
                        .broke(&format!("S10: no verdict after {wait:?} and 2 s"));
                }
                return Ended::Unavailable;
            };
            if verdict != Verdict::Retry {
                waits_at.remove(&account);
            }
            match verdict {
                Verdict::Retry | Verdict::Closed => {}
                Verdict::Dry { .. } => break Ended::Refused,
                Verdict::OutOfReach => break Ended::OutOfReach,
                Verdict::Changed { version } => {
                    while self.version() < version && self.boot() < boot.plus(wait) {
                        self.sim.sleep(10 * MS).await;
                    }
                    if self.version() < version {
                        break Ended::Unavailable;
                    }
                }
                Verdict::Capacity => panic!("nothing here is near its bounds"),
            }
        };
        for account in &waits_at {
            self.seat(account, |reservation, now, out| {
                reservation.done(Ticket(ticket), now, out);
            });
        }
        self.desk.lock().waiting.remove(&ticket);
        ended
    }

    /// The atomic step: all limits of a check, or none.
    fn decide(
        &self,
        ticket: u64,
        items: &[(usize, u64)],
        times: Times,
        waits_at: &mut BTreeSet<Account>,
    ) -> Option<Ended> {
        let mut wanted = Vec::new();
        for (counter, units) in items {
            let Some((account, _, _)) = self.terms(*counter) else {
                return Some(Ended::Unavailable);
            };
            wanted.push((account, *units));
        }
        let ticket = Ticket(ticket);
        let mut said = Vec::new();
        for (account, units) in &wanted {
            let spend = self.seat(account, |reservation, now, _| {
                reservation.can_spend(*units, Some(ticket), now)
            });
            said.push(spend.unwrap_or(Spend::Short));
        }
        if said.iter().all(|spend| *spend == Spend::Ready) {
            for (account, units) in &wanted {
                self.spend(account, *units, ticket);
            }
            return Some(Ended::Granted);
        }
        for ((account, units), said) in wanted.iter().zip(&said) {
            if matches!(said, Spend::Dry { .. }) {
                self.seat(account, |reservation, now, out| {
                    reservation.refuse(*units, now, out);
                });
                return Some(Ended::Refused);
            }
        }
        for ((account, units), said) in wanted.iter().zip(&said) {
            if *said == Spend::Short || waits_at.contains(account) {
                waits_at.insert(account.clone());
                self.seat(account, |reservation, now, out| {
                    reservation.wait(ticket, *units, times, now, out);
                });
            }
        }
        None
    }

    fn spend(&self, account: &Account, units: u64, ticket: Ticket) {
        let window = self.seat(account, |reservation, now, out| {
            let window = reservation.spend(units, Some(ticket), now);
            reservation.after_spend(now, out);
            window
        });
        let Some(Some(window)) = window else {
            panic!("ready, and yet nothing to spend");
        };
        let term = {
            let mut desk = self.desk.lock();
            if let Some(seat) = desk.seats.get_mut(account) {
                *seat.spent.entry(window).or_default() += units;
            }
            desk.exchange.term()
        };
        // S5, by the clock of the leader that this region goes by.
        let log = term.and_then(|term| self.sim.log_time_of(term));
        let start = Timestamp::from_nanos(window.0);
        let end = start.plus(Span::from_nanos(self.sim.setup.window));
        self.sim.audited(|audit| {
            if let Some(log) = log {
                assert!(
                    start <= log && log < end,
                    "S5: {log:?} is outside of {window:?} by the clock of term {term:?}"
                );
            }
            audit.spent(account, window, units);
        });
    }

    // Requests that the log decides.

    /// A new request, open until [`Life::answered`].
    pub fn request(&self) -> RequestNumber {
        let mut desk = self.desk.lock();
        desk.last_request += 1;
        let number = desk.last_request;
        desk.open.insert(number);
        RequestNumber {
            holder: self.holder.clone(),
            number,
            answered_below: desk.open.first().copied().unwrap_or(number),
        }
    }

    pub fn answered(&self, number: u64) {
        self.desk.lock().open.remove(&number);
    }

    /// Proposes until it is known that it was done or was not, by whoever leads.
    pub async fn propose(
        self: &Arc<Self>,
        command: Command,
        patience: Span,
    ) -> Result<(u64, Reply), Failed> {
        let ends = self.sim.now() + patience.as_nanos();
        let mut may_count = false;
        loop {
            let left = ends.saturating_sub(self.sim.now());
            if left == 0 || self.is_dead() {
                return Err(if may_count || self.is_dead() {
                    Failed::Unknown
                } else {
                    Failed::Unavailable
                });
            }
            let said = match self.leader() {
                Some(leader) if leader == self.node => {
                    Arc::clone(self).propose_here(command.clone(), left).await
                }
                Some(leader) => {
                    let request = Request::Forward(Box::new(command.clone()), left);
                    // Links break, and the same is asked again while the first is still being worked on.
                    let deadline = Duration::from_nanos(left.min(3 * SECOND / 2));
                    forwarded(self.call(leader, request, deadline).await)
                }
                None => Forwarded::NotLeader,
            };
            match said {
                Forwarded::Done(index, reply) if !self.is_dead() => return Ok((index, reply)),
                Forwarded::Unknown => may_count = true,
                _ => {}
            }
            // Only what counts once however often it is proposed is asked again.
            if may_count && !matches!(command, Command::Charge(_) | Command::Enroll(_)) {
                return Err(Failed::Unknown);
            }
            self.sim.sleep(20 * MS).await;
        }
    }
}
