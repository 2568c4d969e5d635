//! The way into the log: from a process to the leader, wherever it is, as `region::proposals` goes it.
//!
//! A proposal waits for a leader up to its deadline; once it has left for one and no answer comes, nobody can say whether
//! it counts, and it is made again: requests count once however often they are proposed.

use crate::domain::time::Span;
use crate::grants::account::Holder;
use crate::grants::book::NotTaken;
use crate::machine::charge::Charged;
use crate::machine::command::Command;
use crate::machine::command::Payload;
use crate::machine::command::Reply;

use super::log::Body;
use super::process::Context;
use super::process::Event;
use super::process::Message;
use super::process::Out;
use super::process::Process;

/// How soon a proposal that found no leader tries again.
const RETRY_STEP: Span = Span::from_ms(20);
/// How long the leader works for another region, and waits for its own entries.
pub const WRITE_DEADLINE: Span = Span::from_seconds(5);

/// A proposal on its way to the leader.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The process that asks.
    pub from: u64,
    /// Names it there.
    pub id: u64,
    /// What is proposed.
    pub command: Command,
}

/// What came of a proposal.
#[derive(Clone, Debug)]
pub enum Forwarded {
    /// Committed at this place of the log, or answered without an entry (0).
    Done(u64, Reply),
    /// The region that was asked does not lead.
    NotLeader,
    /// Nothing was proposed.
    Unavailable,
    /// It may or may not count.
    Unknown,
}

/// Why nothing came of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Nothing was proposed.
    Unavailable,
    /// It may or may not count.
    Unknown,
}

/// What a proposal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// This process enrolls.
    Enroll,
    /// A check, by its call.
    Check(u64),
    /// Something that nobody waits for.
    Nothing,
}

/// A proposal of this process.
#[derive(Clone, Debug)]
pub struct Proposal {
    command: Command,
    until: Span,
    purpose: Purpose,
    may_count: bool,
    /// The leader that works on it.
    asked: Option<usize>,
    done: Option<(u64, Reply)>,
}

/// Who waits for an answer of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A proposal of this process.
    Own(u64),
    /// One of another region: which, its process, its name there.
    Region(usize, u64, u64),
}

/// Who waits for an entry of this leader.
#[derive(Clone, Debug)]
pub enum Waiter {
    /// The leader's plan: term and ticket.
    Transfer(u64, u64),
    /// The end of a lease, of the leader of a term.
    Lapse(u64, Holder),
    /// A check that the log decides, and its ticket in the leader's plan.
    Charge(Option<u64>, Asker),
    /// Anything else.
    Plain(Asker),
    /// Nobody.
    Nobody,
}

impl Process {
    /// Proposes until it is known that it was done or was not, by whoever leads.
    pub(super) fn propose(
        &mut self,
        context: &mut Context<'_>,
        command: Command,
        patience: Span,
        purpose: Purpose,
    ) {
        self.last_proposal += 1;
        let id = self.last_proposal;
        let until = context.at.boot.plus(patience);
        let proposal = Proposal {
            command,
            until,
            purpose,
            may_count: false,
            asked: None,
            done: None,
        };
        self.proposals.insert(id, proposal);
        context.out.push(Out::At(until, Event::Proposal(id)));
        self.try_proposal(context, id);
    }

    /// One try, or the end of all patience.
    pub(super) fn try_proposal(&mut self, context: &mut Context<'_>, id: u64) {
        let leader = self.leader();
        let (incarnation, index) = (self.holder.incarnation, self.index);
        let is_linked = leader.is_some_and(|leader| self.is_linked(leader));
        let Some(proposal) = self.proposals.get_mut(&id) else {
            return;
        };
        if context.at.boot >= proposal.until {
            if let Some((_, reply)) = proposal.done.clone() {
                // It is committed, and not yet in force here.
                self.finish_proposal(context, id, Ok(reply));
                return;
            }
            let is_unknown = proposal.may_count || proposal.asked.is_some();
            let failed = if is_unknown {
                Failed::Unknown
            } else {
                Failed::Unavailable
            };
            self.finish_proposal(context, id, Err(failed));
            return;
        }
        if proposal.asked.is_some() || proposal.done.is_some() {
            return;
        }
        match leader {
            Some(leader) if leader == index => {
                proposal.asked = Some(leader);
                let command = proposal.command.clone();
                self.serve(context, command, Asker::Own(id));
            }
            Some(leader) if is_linked => {
                proposal.asked = Some(leader);
                let forward = Box::new(Forward {
                    from: incarnation,
                    id,
                    command: proposal.command.clone(),
                });
                context
                    .out
                    .push(Out::Send(leader, Message::Forward(forward)));
            }
            _ => context.later(RETRY_STEP, Event::Proposal(id)),
        }
    }

    /// Another region proposes here.
    pub(super) fn forwarded(&mut self, context: &mut Context<'_>, from: usize, forward: Forward) {
        let asker = Asker::Region(from, forward.from, forward.id);
        self.serve(context, forward.command, asker);
    }

    /// The leader's word on a proposal of this process.
    pub(super) fn settled(&mut self, context: &mut Context<'_>, id: u64, said: Forwarded) {
        let Some(proposal) = self.proposals.get_mut(&id) else {
            return;
        };
        if proposal.asked.is_none() {
            return;
        }
        proposal.asked = None;
        match said {
            Forwarded::Done(index, reply) => {
                proposal.done = Some((index, reply));
                self.follow_applied(context);
            }
            Forwarded::NotLeader | Forwarded::Unavailable => {
                context.later(RETRY_STEP, Event::Proposal(id));
            }
            Forwarded::Unknown => {
                proposal.may_count = true;
                context.later(RETRY_STEP, Event::Proposal(id));
            }
        }
    }

    /// Proposals that are in force here by now are done.
    pub(super) fn follow_applied(&mut self, context: &mut Context<'_>) {
        let applied = self.applied;
        let done = self.proposals.iter().filter_map(|(id, proposal)| {
            let (index, reply) = proposal.done.as_ref()?;
            (*index <= applied).then(|| (*id, reply.clone()))
        });
        for (id, reply) in done.collect::<Vec<(u64, Reply)>>() {
            self.finish_proposal(context, id, Ok(reply));
        }
    }

    fn finish_proposal(
        &mut self,
        context: &mut Context<'_>,
        id: u64,
        ended: Result<Reply, Failed>,
    ) {
        let Some(proposal) = self.proposals.remove(&id) else {
            return;
        };
        match proposal.purpose {
            Purpose::Enroll => self.enrolled(context, ended.is_ok()),
            Purpose::Check(call) => self.log_decided(context, call, ended),
            Purpose::Nothing => {}
        }
    }

    /// Calls on links that are gone, or that took too long, have no answer; entries that were not committed in time, too.
    pub(super) fn give_up_waiters(&mut self, context: &mut Context<'_>) {
        let lost: Vec<u64> = self
            .proposals
            .iter()
            .filter(|(_, proposal)| proposal.asked.is_some_and(|leader| !self.is_linked(leader)))
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            self.settled(context, id, Forwarded::Unknown);
        }
        let boot = context.at.boot;
        let overdue = self.waiters.iter().filter(|(_, (until, _))| *until <= boot);
        for index in overdue.map(|(index, _)| *index).collect::<Vec<u64>>() {
            if let Some((_, waiter)) = self.waiters.remove(&index) {
                self.tell_waiter(context, waiter, Forwarded::Unknown);
            }
        }
        self.give_up_charges(context);
    }

    /// Appends an entry with the log time of now.
    pub(super) fn append(&mut self, context: &mut Context<'_>, command: Command, waiter: Waiter) {
        let Some((command, waiter)) = self.hold_back(command, waiter) else {
            return;
        };
        let log_time = self.log_time(context);
        let Some(log_time) = log_time else {
            self.tell_waiter(context, waiter, Forwarded::NotLeader);
            return;
        };
        let body = Body::Payload(Box::new(Payload { log_time, command }));
        let index = self.with_log(context, |log, disk, boot, out| {
            log.propose(disk, boot, body, out)
        });
        match index.flatten() {
            Some(index) => {
                let until = context.at.boot.plus(WRITE_DEADLINE);
                self.waiters.insert(index, (until, waiter));
            }
            None => self.tell_waiter(context, waiter, Forwarded::NotLeader),
        }
    }

    /// An entry is applied: whoever waits for it is told.
    pub(super) fn entry_applied(&mut self, context: &mut Context<'_>, index: u64, reply: Reply) {
        let Some((_, waiter)) = self.waiters.remove(&index) else {
            return;
        };
        self.tell_waiter(context, waiter, Forwarded::Done(index, reply));
    }

    /// Nobody knows what becomes of entries that were appended by a leader that is none any more.
    pub(super) fn lose_waiters(&mut self, context: &mut Context<'_>) {
        for (_, (_, waiter)) in std::mem::take(&mut self.waiters) {
            self.tell_waiter(context, waiter, Forwarded::Unknown);
        }
    }

    /// Tells whoever asked what came of it.
    pub(super) fn tell_asker(&mut self, context: &mut Context<'_>, asker: Asker, said: Forwarded) {
        match asker {
            Asker::Own(id) => self.settled(context, id, said),
            Asker::Region(region, to, id) => {
                let said = Box::new(said);
                let message = Message::Forwarded { to, id, said };
                context.out.push(Out::Send(region, message));
            }
        }
    }

    pub(super) fn tell_waiter(
        &mut self,
        context: &mut Context<'_>,
        waiter: Waiter,
        said: Forwarded,
    ) {
        match waiter {
            Waiter::Transfer(term, ticket) => self.transferred(context, (term, ticket), said),
            Waiter::Lapse(term, holder) => {
                let is_applied = matches!(said, Forwarded::Done(..));
                self.lapsed(context, term, &holder, is_applied);
            }
            Waiter::Charge(ticket, asker) => {
                if let Some(ticket) = ticket {
                    let counts = match &said {
                        Forwarded::Done(_, reply) => {
                            matches!(reply, Reply::Charged(Charged::Allowed(_)))
                        }
                        Forwarded::NotLeader | Forwarded::Unavailable => false,
                        Forwarded::Unknown => true,
                    };
                    self.charged(context, ticket, counts);
                }
                self.tell_asker(context, asker, said);
            }
            Waiter::Plain(asker) => self.tell_asker(context, asker, said),
            Waiter::Nobody => {}
        }
    }
}

/// What an own entry of the leader came to; `None`: nobody knows.
pub(super) fn outcome(
    said: Forwarded,
) -> Option<Result<crate::grants::book::Transferred, NotTaken>> {
    match said {
        Forwarded::Done(_, Reply::Transferred(transferred)) => Some(Ok(transferred)),
        Forwarded::Done(_, Reply::NotTaken(why)) => Some(Err(why)),
        Forwarded::Done(_, Reply::Stale { .. }) => Some(Err(NotTaken::Superseded)),
        _ => None,
    }
}
