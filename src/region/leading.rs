//! The region that leads: its clock, whom it grants, what it charges.
//!
//! The soft state lives as long as a term does here: it is made when this region has applied its own first
//! entry of the term, and dropped when another region leads. It stands beside the machine under one lock
//! ([`crate::region::replica::Core`]), because it plans on top of the book; actions are carried out when the
//! lock is gone.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;

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
use crate::grants::log_time::Reading;
use crate::grants::message::ToLeader;
use crate::machine::Machine;
use crate::machine::charge::Charge;
use crate::machine::charge::Charged;
use crate::machine::command::Command;
use crate::machine::command::Reply;
use crate::machine::give::GiveBack;
use crate::machine::give::Source;
use crate::machine::lead;
use crate::region::outbox::Letter;
use crate::region::outbox::Outbox;
use crate::region::proposals::Forwarded;
use crate::region::proposals::WRITE_DEADLINE;
use crate::region::replica::Core;
use crate::region::state::Region;

/// A leader that has not noted a majority for so long does not renew leases: it may have been stopped for a
/// while, and another may have been elected. With the age of what it notes, less than [`EARLIER_LEADERS`].
///
/// [`EARLIER_LEADERS`]: crate::grants::leader::EARLIER_LEADERS
const MAJORITY_SURE: Span = Span::from_ms(1_500);
/// Counters that are gathered before one change at most.
const GATHERED_MAX: usize = 1_000;
/// How long that may take.
const GATHERING_MAX: Span = Span::from_ms(500);
/// How often it is looked at.
const GATHERING_STEP: Duration = Duration::from_millis(5);

/// What becomes of a charge that the leader's plan has looked at.
#[derive(Debug)]
pub enum Go {
    /// The units are there: append it.
    Append,
    /// They are not.
    Refuse(NotTaken),
}

/// The leader's soft state.
#[derive(Debug)]
pub struct Leading {
    /// Its term.
    pub term: u64,
    leader: Leader,
    log_time: LogTime,
    charges: HashMap<u64, oneshot::Sender<Go>>,
    last_charge: u64,
}

impl Leading {
    fn now(&mut self, boot: Span, region_time: Timestamp) -> Now {
        Now {
            boot,
            log: self.log_time.read(Reading { boot, region_time }),
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>, outbox: &Outbox) {
        for action in actions {
            match action {
                Action::Propose { ticket, transfer } => {
                    let letter = Letter::Propose {
                        term: self.term,
                        ticket,
                        transfer,
                    };
                    outbox.push(letter);
                }
                Action::Tell(holder, word) => {
                    outbox.push(Letter::ToRegion(holder.region, word));
                }
                Action::Lapse(holder) => {
                    let term = self.term;
                    let letter = Letter::Lapse(term, holder.clone());
                    if !outbox.push(letter) {
                        self.leader.lapsed(&holder, false);
                    }
                }
                Action::Charge { ticket } => self.go(ticket, Go::Append),
                Action::RefuseCharge { ticket, why, .. } => self.go(ticket, Go::Refuse(why)),
            }
        }
    }

    fn go(&mut self, ticket: u64, go: Go) {
        if let Some(waiting) = self.charges.remove(&ticket) {
            // Whoever waited may have gone.
            waiting.send(go).ok();
        }
    }
}

impl Region {
    /// Runs `act` on the leader's state; `None` when this region does not lead.
    fn lead<T>(
        &self,
        act: impl FnOnce(&mut Leading, &Machine, Now, &mut Vec<Action>) -> T,
    ) -> Option<T> {
        // A leader that has lost its majority may be deposed: what it says of the pool is nobody's word.
        if !self.has_majority.load(Ordering::Relaxed) {
            return None;
        }
        let mut core = self.replica.core();
        let Core { machine, leading } = &mut *core;
        let leading = leading.as_mut()?;
        let now = leading.now(self.clock.boot(), self.clock.now());
        leading.leader.renew_leases(
            now.boot.minus(Span::from_nanos(
                self.majority_noted.load(Ordering::Relaxed),
            )) <= MAJORITY_SURE,
        );
        let mut actions = Vec::new();
        let done = act(leading, machine, now, &mut actions);
        leading.carry_out(actions, &self.outbox);
        Some(done)
    }

    /// Log time, when this region leads.
    pub fn log_time(&self) -> Option<Timestamp> {
        self.lead(|_, _, now, _| now.log)
    }

    /// Begins to lead in `term`; whether it did not already.
    pub fn begin_to_lead(&self, term: u64) -> bool {
        let (boot, region_time) = (self.clock.boot(), self.clock.now());
        let voters: Vec<(RegionName, Option<Timestamp>)> = self.voters_times(region_time);
        let mut core = self.replica.core();
        let Core { machine, leading } = &mut *core;
        if leading.as_ref().is_some_and(|leading| leading.term == term) {
            return false;
        }
        let discipline = if self.clock.is_manual() {
            Discipline::Follows
        } else {
            Discipline::Slewed
        };
        let log_time = LogTime::start(
            discipline,
            self.name.clone(),
            Reading { boot, region_time },
            machine.log_time(),
            &voters,
        );
        *leading = Some(Leading {
            term,
            leader: Leader::new(term),
            log_time,
            charges: HashMap::new(),
            last_charge: 0,
        });
        tracing::info!(term, "this region leads");
        true
    }

    /// Leads no more.
    pub fn end_to_lead(&self) {
        if self.replica.core().leading.take().is_some() {
            tracing::info!("this region leads no more");
        }
    }

    /// The region times of the voters, as far as their clocks are known.
    fn voters_times(&self, own: Timestamp) -> Vec<(RegionName, Option<Timestamp>)> {
        let status = self
            .peers()
            .map(crate::peer::Peers::status)
            .unwrap_or_default();
        let members = self.replica.members();
        let time_of = |region: &RegionName| {
            if *region == self.name {
                return Some(own);
            }
            let peer = status.iter().find(|peer| peer.region == *region)?;
            let ahead = peer.clock_offset_ns?;
            Some(Timestamp::from_nanos(own.as_nanos().saturating_add(ahead)))
        };
        let voters = members.voters.iter();
        voters
            .map(|voter| (voter.region.clone(), time_of(&voter.region)))
            .collect()
    }

    /// Takes in what `from` told the leader.
    pub fn hear_regions(&self, from: &RegionName, words: Vec<ToLeader>) {
        self.lead(|leading, machine, now, out| {
            for word in words {
                let holder = match &word {
                    ToLeader::Ask(ask) => &ask.holder,
                    ToLeader::Report(report) => &report.holder,
                    ToLeader::Pulse(pulse) => &pulse.holder,
                };
                if holder.region != *from {
                    continue;
                }
                match word {
                    ToLeader::Ask(ask) => lead::ask(&mut leading.leader, machine, now, &ask, out),
                    ToLeader::Report(report) => {
                        leading.leader.report(now, machine.book(), &report, out);
                    }
                    ToLeader::Pulse(pulse) => {
                        leading
                            .log_time
                            .tell(now.boot, &pulse.holder.region, pulse.region_time);
                        leading.leader.pulse(now, machine.book(), &pulse, out);
                    }
                }
            }
        });
    }

    /// What time brings for the leader.
    pub fn tick_leader(&self) {
        self.lead(|leading, machine, now, out| {
            if leading
                .leader
                .next_wake()
                .is_some_and(|wake| wake <= now.boot)
            {
                leading.leader.tick(now, machine.book(), out);
            }
            leading.leader.end_leases(now, machine.book(), out);
        });
    }

    /// Puts what this region was told as the leader into the log; nothing when it does not lead.
    pub fn carry_all_told(&self) {
        self.lead(|leading, _, _, out| leading.leader.carry_all(out));
    }

    /// Tells the leader's state how far away everybody is, who votes, and whether its own clock is off.
    pub fn survey(&self) -> Option<Span> {
        let peers = self
            .peers()
            .map(crate::peer::Peers::status)
            .unwrap_or_default();
        let voters: Vec<RegionName> = self
            .replica
            .members()
            .voters
            .iter()
            .map(|voter| voter.region.clone())
            .collect();
        let region_time = self.clock.now();
        self.lead(|leading, _, now, _| {
            for peer in &peers {
                if let Some(rtt) = peer.rtt_last {
                    leading.leader.set_round_trip(&peer.region, rtt);
                }
            }
            leading.log_time.set_voters(voters);
            let own = leading.log_time.off_median(Reading {
                boot: now.boot,
                region_time,
            });
            (own > OFF_MEDIAN_MAX).then_some(own)
        })
        .flatten()
    }

    /// Voters whose clocks are near the median of all, as far as this region leads and has heard them.
    pub fn voters_with_good_clocks(&self) -> BTreeSet<RegionName> {
        let near = self
            .lead(|leading, _, now, _| leading.log_time.near_median(now.boot).cloned().collect());
        near.unwrap_or_default()
    }

    /// The catalogue has changed: open windows get the quota that is in force.
    pub fn requote(&self) {
        self.lead(|leading, machine, now, out| {
            let mut open: Vec<Account> = machine.book().accounts().collect();
            open.dedup();
            for account in open {
                if let Some((_, limit)) = machine.limit_of(&account, now.log) {
                    let quota = Quota::of(&limit.rule);
                    leading
                        .leader
                        .set_quota(now, machine.book(), &account, quota, out);
                }
            }
        });
    }

    /// Before a change that begins new epochs: what regions hold and have spent of the old ones is brought into
    /// the book, for a moment at most, so that as little as can be is kept back from the new ones.
    pub async fn gather(&self, entry: &[u8]) {
        let ended = self.lead(|_, machine, _, _| machine.ended_by(entry, GATHERED_MAX));
        let ended = ended.unwrap_or_default();
        let started = self.clock.stopwatch();
        let mut begins = true;
        while !ended.is_empty() && started.elapsed() < GATHERING_MAX {
            let is_done = self.lead(|leading, machine, now, out| {
                let mut is_done = true;
                for account in &ended {
                    is_done &= leading
                        .leader
                        .gather(now, machine.book(), account, begins, out);
                }
                is_done
            });
            if is_done != Some(false) {
                return;
            }
            begins = false;
            tokio::time::sleep(GATHERING_STEP).await;
        }
    }

    /// Appends an own entry of the leader of `term` and tells its state what came of it.
    pub async fn propose_transfer(self: Arc<Self>, term: u64, ticket: u64, transfer: Transfer) {
        let done = self
            .append_within(Command::Transfer(transfer), WRITE_DEADLINE)
            .await;
        self.lead(|leading, machine, now, out| {
            if leading.term != term {
                return;
            }
            let outcome = match done {
                Forwarded::Done {
                    reply: Reply::Transferred(transferred),
                    ..
                } => Ok(transferred),
                Forwarded::Done {
                    reply: Reply::NotTaken(why),
                    ..
                } => Err(why),
                Forwarded::Done {
                    reply: Reply::Stale { .. },
                    ..
                } => Err(NotTaken::Superseded),
                _ => {
                    leading.leader.failed(now, machine.book(), ticket);
                    return;
                }
            };
            leading
                .leader
                .applied(now, machine.book(), ticket, &outcome, out);
        });
    }

    /// Appends the entry that ends the lease of `holder`, for the leader of `term`.
    pub async fn propose_lapse(self: Arc<Self>, term: u64, holder: Holder) {
        let done = self
            .append_within(Command::Lapse(holder.clone()), WRITE_DEADLINE)
            .await;
        self.lead(|leading, _, _, _| {
            if leading.term == term {
                let is_applied = matches!(done, Forwarded::Done { .. });
                leading.leader.lapsed(&holder, is_applied);
            }
        });
    }

    /// Decides a check at this region, which leads.
    pub async fn charge_here(self: &Arc<Self>, mut charge: Charge, left: Span) -> Forwarded {
        let started = self.clock.stopwatch();
        let planned = self.lead(|leading, machine, now, out| {
            let open = lead::parts(&mut leading.leader, machine, &mut charge, now);
            if let Some(said) = machine.judge(&charge, now.log) {
                return Err(said);
            }
            if open.is_empty() || charge.up_to {
                return Ok(None);
            }
            leading.last_charge += 1;
            let ticket = leading.last_charge;
            let (tell, go) = oneshot::channel();
            leading.charges.insert(ticket, tell);
            leading
                .leader
                .charge(now, machine.book(), ticket, open, out);
            Ok(Some((ticket, go)))
        });
        let answered = |said| Forwarded::Done {
            index: 0,
            reply: Reply::Charged(said),
            pending: Vec::new(),
        };
        let ticket = match planned {
            None => return Forwarded::NotLeader,
            Some(Err(said)) => return answered(said),
            Some(Ok(None)) => None,
            Some(Ok(Some((ticket, go)))) => {
                match tokio::time::timeout(left.to_std(), go).await {
                    Ok(Ok(Go::Append)) => Some(ticket),
                    Ok(Ok(Go::Refuse(NotTaken::Empty))) => {
                        let refusal =
                            self.lead(|_, machine, now, _| machine.refusal(&charge, now.log));
                        return refusal.map_or(Forwarded::NotLeader, answered);
                    }
                    Ok(Ok(Go::Refuse(why))) => {
                        return answered(Charged::NotTaken(why.to_string()));
                    }
                    // The term ended, or the caller's patience: nothing was proposed.
                    Ok(Err(_)) => return Forwarded::NotLeader,
                    Err(_) => {
                        self.lead(|leading, machine, now, out| {
                            leading.charges.remove(&ticket);
                            let book = machine.book();
                            leading.leader.charged(now, book, ticket, false, out);
                        });
                        return Forwarded::Unavailable("no units came in time".to_owned());
                    }
                }
            }
        };
        let left = left.minus(started.elapsed());
        let done = self.append_within(Command::Charge(charge), left).await;
        if let Some(ticket) = ticket {
            let counts = match &done {
                Forwarded::Done { reply, .. } => {
                    matches!(reply, Reply::Charged(Charged::Allowed(_)))
                }
                Forwarded::NotLeader | Forwarded::Unavailable(_) => false,
                Forwarded::Unknown(_) => true,
            };
            self.lead(|leading, machine, now, out| {
                let book = machine.book();
                leading.leader.charged(now, book, ticket, counts, out);
            });
        }
        done
    }

    /// Gives units back at this region, which leads.
    pub async fn give_here(&self, mut give: GiveBack, left: Span) -> Forwarded {
        let account = give.account();
        if let Source::Use { window, .. } = &mut give.source {
            let found = self.lead(|leading, machine, now, _| {
                let (_, limit) = machine.limit_of(&account, now.log)?;
                lead::window(
                    &mut leading.leader,
                    machine,
                    now,
                    (&account, &limit.rule),
                    now.log,
                )
            });
            match found {
                None => return Forwarded::NotLeader,
                Some(found) => *window = found,
            }
        }
        let done = self.append_within(Command::GiveBack(give), left).await;
        self.lead(|leading, machine, now, out| {
            leading.leader.credited(now, machine.book(), &account, out);
        });
        done
    }
}
