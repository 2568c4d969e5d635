//! The node that leads, or still thinks so: the shell around `grants::leader` and `grants::log_time`, in the
//! manner of the product's `region::leading`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use highwater::domain::time::Span;
use highwater::grants::account::Account;
use highwater::grants::account::Transfer;
use highwater::grants::book::NotTaken;
use highwater::grants::leader::Action;
use highwater::grants::leader::Leader;
use highwater::grants::leader::Now;
use highwater::grants::log_time::Discipline;
use highwater::grants::log_time::LogTime;
use highwater::grants::log_time::Reading;
use highwater::grants::message::ToLeader;
use highwater::grants::message::ToRegion;
use highwater::machine::Machine;
use highwater::machine::charge::Charge;
use highwater::machine::charge::Charged;
use highwater::machine::command::Command;
use highwater::machine::command::Payload;
use highwater::machine::command::Reply;
use highwater::machine::lead;
use openraft::AsyncRuntime;
use openraft::errors::ClientWriteError;
use openraft::errors::ForwardReason;
use openraft::errors::RaftError;
use openraft_rt_sim::SimRuntime;
use tokio::sync::oneshot;

use super::Sim;
use super::node::Core;
use super::node::Life;
use super::types::Forwarded;
use super::types::Letter;
use super::types::Written;
use crate::model::MS;
use crate::model::SECOND;
use crate::model::index;
use crate::model::name;

/// How long a proposal is waited for.
const PROPOSE_TIMEOUT: u64 = 5 * SECOND;

/// What becomes of a charge that the leader's plan has looked at.
pub enum Go {
    Append,
    Refuse(NotTaken),
}

/// The leader's soft state.
pub struct Leading {
    pub term: u64,
    pub leader: Leader,
    pub log_time: LogTime,
    charges: BTreeMap<u64, oneshot::Sender<Go>>,
    last_charge: u64,
}

impl Leading {
    /// Keeps the clock of a term that ends, for the auditor.
    pub fn keep_clock(&self, sim: &Sim, node: usize) {
        let mut clocks = sim.clocks.lock();
        clocks.insert(self.term, (node, self.log_time.clone()));
    }

    fn go(&mut self, ticket: u64, go: Go) {
        if let Some(waiting) = self.charges.remove(&ticket) {
            waiting.send(go).ok();
        }
    }
}

impl Life {
    /// Lets the leader act; `None` when this node does not lead.
    pub fn lead<T>(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Leading, &Machine, Now, &mut Vec<Action>) -> T,
    ) -> Option<T> {
        if self.is_dead() || !self.has_majority.load(Ordering::Relaxed) {
            return None;
        }
        let Reading { boot, region_time } = self.reading();
        let mut core = self.core.lock();
        let Core {
            machine, leading, ..
        } = &mut *core;
        let leading = leading.as_mut()?;
        let now = Now {
            boot,
            log: leading.log_time.read(Reading { boot, region_time }),
        };
        leading.keep_clock(&self.sim, self.node);
        let mut actions = Vec::new();
        let done = act(leading, machine, now, &mut actions);
        let mut letters = Vec::new();
        for action in actions {
            match action {
                Action::Propose { ticket, transfer } => {
                    let life = Arc::clone(self);
                    let term = leading.term;
                    self.sim.spawn(async move {
                        life.propose_transfer(term, ticket, transfer).await;
                    });
                }
                Action::Tell(holder, word) => {
                    if let ToRegion::Answer(answer) = &word {
                        let (account, window) = (&answer.account, answer.window.id);
                        let tally = machine.book().tally(account, window, &answer.holder);
                        if answer.granted > tally.granted {
                            self.sim
                                .broke(&format!("S6: told before applied: {answer:?}"));
                        }
                    }
                    letters.push((index(&holder.region), Letter::ToRegion(holder, word)));
                }
                // Leases are a matter of buckets.
                Action::Lapse(_) => {}
                Action::Charge { ticket } => leading.go(ticket, Go::Append),
                Action::RefuseCharge { ticket, why, .. } => leading.go(ticket, Go::Refuse(why)),
            }
        }
        drop(core);
        for (to, letter) in letters {
            self.letter(to, &letter);
        }
        Some(done)
    }

    pub fn begin_to_lead(self: &Arc<Self>, term: u64) {
        let reading = self.reading();
        let voters = self.voters_times();
        let mut core = self.core.lock();
        if core
            .leading
            .as_ref()
            .is_some_and(|leading| leading.term == term)
        {
            return;
        }
        let last = core.machine.log_time();
        let clock = LogTime::start(Discipline::Slewed, name(self.node), reading, last, &voters);
        let mut leader = Leader::new(term);
        for node in 0..self.sim.nodes.len() {
            let trip = self.sim.net.lock().round_trip(self.node, node);
            leader.set_round_trip(&name(node), Span::from_nanos(trip));
        }
        let leading = Leading {
            term,
            leader,
            log_time: clock,
            charges: BTreeMap::new(),
            last_charge: 0,
        };
        leading.keep_clock(&self.sim, self.node);
        core.leading = Some(leading);
        drop(core);
        self.sim
            .audited(|audit| audit.fault("term with a ready leader"));
        self.sim.traced(b"leads", &[self.node as u64, term]);
    }

    pub fn end_to_lead(&self) {
        if let Some(leading) = self.core.lock().leading.take() {
            leading.keep_clock(&self.sim, self.node);
        }
    }

    pub fn tick_leader(self: &Arc<Self>) {
        let wake = {
            let core = self.core.lock();
            let leading = core.leading.as_ref();
            leading.and_then(|leading| leading.leader.next_wake())
        };
        if wake.is_some_and(|wake| wake <= self.boot()) {
            self.lead(|leading, machine, now, out| {
                leading.leader.tick(now, machine.book(), out);
            });
        }
    }

    /// The catalogue has changed: open windows get the quota that is in force.
    pub fn requote(self: &Arc<Self>) {
        self.lead(|leading, machine, now, out| {
            let mut open: Vec<Account> = machine.book().accounts().collect();
            open.dedup();
            for account in open {
                if let Some((_, limit)) = machine.limit_of(&account, now.log) {
                    let quota = limit.rule.quota();
                    let book = machine.book();
                    leading.leader.set_quota(now, book, &account, quota, out);
                }
            }
        });
    }

    pub fn hear_region(self: &Arc<Self>, word: &ToLeader) {
        self.lead(|leading, machine, now, out| match word {
            ToLeader::Ask(ask) => lead::ask(&mut leading.leader, machine, now, ask, out),
            ToLeader::Report(report) => {
                leading.leader.report(now, machine.book(), report, out);
            }
            ToLeader::Pulse(pulse) => {
                leading
                    .log_time
                    .tell(now.boot, &pulse.holder.region, pulse.region_time);
                leading.leader.pulse(now, machine.book(), pulse, out);
            }
        });
    }

    async fn propose_transfer(self: Arc<Self>, term: u64, ticket: u64, transfer: Transfer) {
        let done = self.append(Command::Transfer(transfer)).await;
        self.lead(|leading, machine, now, out| {
            if leading.term != term {
                return;
            }
            let outcome = match done {
                Forwarded::Done(_, Reply::Transferred(transferred)) => Ok(transferred),
                Forwarded::Done(_, Reply::NotTaken(why)) => Err(why),
                Forwarded::Done(_, Reply::Stale { .. }) => Err(NotTaken::Superseded),
                _ => {
                    leading.leader.failed(now, machine.book(), ticket);
                    return;
                }
            };
            let book = machine.book();
            leading.leader.applied(now, book, ticket, &outcome, out);
        });
    }

    /// Proposes at this node, which leads.
    pub async fn propose_here(self: Arc<Self>, command: Command, left: u64) -> Forwarded {
        match command {
            Command::Charge(charge) => self.charge_here(charge, left).await,
            command => {
                let is_change = matches!(command, Command::Change(_));
                let done = self.append(command).await;
                if is_change {
                    self.requote();
                }
                done
            }
        }
    }

    async fn charge_here(self: Arc<Self>, mut charge: Charge, left: u64) -> Forwarded {
        let planned = self.lead(|leading, machine, now, out| {
            let open = lead::parts(&mut leading.leader, machine, &mut charge, now);
            if let Some(said) = machine.judge(&charge, now.log) {
                return Err(said);
            }
            if open.is_empty() {
                return Ok(None);
            }
            leading.last_charge += 1;
            let ticket = leading.last_charge;
            let (tell, go) = oneshot::channel();
            leading.charges.insert(ticket, tell);
            let book = machine.book();
            leading.leader.charge(now, book, ticket, open, out);
            Ok(Some((ticket, go)))
        });
        let answered = |said| Forwarded::Done(0, Reply::Charged(said));
        let ticket = match planned {
            None => return Forwarded::NotLeader,
            Some(Err(said)) => return answered(said),
            Some(Ok(None)) => None,
            Some(Ok(Some((ticket, go)))) => {
                match SimRuntime::timeout(Duration::from_nanos(left), go).await {
                    Ok(Ok(Go::Append)) => Some(ticket),
                    Ok(Ok(Go::Refuse(NotTaken::Empty))) => {
                        let refusal =
                            self.lead(|_, machine, now, _| machine.refusal(&charge, now.log));
                        return refusal.map_or(Forwarded::NotLeader, answered);
                    }
                    Ok(Ok(Go::Refuse(_))) => return Forwarded::Unavailable,
                    Ok(Err(_)) => return Forwarded::NotLeader,
                    Err(_) => {
                        self.lead(|leading, machine, now, out| {
                            leading.charges.remove(&ticket);
                            let book = machine.book();
                            leading.leader.charged(now, book, ticket, false, out);
                        });
                        return Forwarded::Unavailable;
                    }
                }
            }
        };
        let done = self.append(Command::Charge(charge)).await;
        if let Some(ticket) = ticket {
            let counts = match &done {
                Forwarded::Done(_, reply) => {
                    matches!(reply, Reply::Charged(Charged::Allowed(_)))
                }
                Forwarded::NotLeader | Forwarded::Unavailable => false,
                Forwarded::Unknown => true,
            };
            self.lead(|leading, machine, now, out| {
                let book = machine.book();
                leading.leader.charged(now, book, ticket, counts, out);
            });
        }
        done
    }

    /// Appends an entry with the log time of now.
    pub async fn append(self: &Arc<Self>, command: Command) -> Forwarded {
        let Some(log_time) = self.lead(|_, _, now, _| now.log) else {
            return Forwarded::NotLeader;
        };
        let Some(raft) = self.raft.get() else {
            return Forwarded::NotLeader;
        };
        let written = Written::of(&Payload { log_time, command });
        let ends = self.sim.now() + PROPOSE_TIMEOUT;
        loop {
            let left = Duration::from_nanos(ends.saturating_sub(self.sim.now()));
            let tried = SimRuntime::timeout(left, raft.client_write(written.clone())).await;
            let error = match tried {
                Err(_) => return Forwarded::Unknown,
                Ok(Ok(done)) => {
                    let reply = done.data.expect("a command has a reply");
                    return Forwarded::Done(done.log_id.index, reply);
                }
                Ok(Err(error)) => error,
            };
            match error {
                RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
                    match forward.reason {
                        ForwardReason::NotLeader => return Forwarded::NotLeader,
                        ForwardReason::LeaseExpired | ForwardReason::LeadershipTransfer => {}
                    }
                }
                RaftError::APIError(ClientWriteError::LogEntryDiscarded(_))
                | RaftError::Fatal(_) => return Forwarded::Unknown,
                RaftError::APIError(_) => return Forwarded::Unavailable,
            }
            if self.sim.now() + PROPOSE_TIMEOUT / 8 >= ends {
                return Forwarded::Unavailable;
            }
            self.sim.sleep(10 * MS).await;
        }
    }
}
