//! What happens to a process, what it wants done, and what survives it.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::domain::time::Span;
use crate::drill::record::Answer;
use crate::grants::log_time::Reading;
use crate::grants::message::ToLeader;
use crate::grants::message::ToRegion;
use crate::grants::reservation::Ticket;
use crate::grants::reservation::Verdict;
use crate::machine::command::Command;
use crate::simulate::exchange;
use crate::simulate::exchange::At;
use crate::simulate::log;
use crate::simulate::proposing::Forward;
use crate::simulate::proposing::Forwarded;
use crate::usage::actor::Actor;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;

/// What survives a process.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The log.
    pub log: log::Disk,
    /// Counters.
    pub records: BTreeMap<CounterId, CounterRecord>,
    /// The processes that ran from it, by number.
    pub actors: Vec<Actor>,
    /// Answers to keyed calls of limits that the region decides, by key.
    pub answers: BTreeMap<String, Answer>,
}

impl Disk {
    /// An empty directory.
    pub const fn empty(log: log::Disk) -> Self {
        Self {
            log,
            records: BTreeMap::new(),
            actors: Vec::new(),
            answers: BTreeMap::new(),
        }
    }
}

/// A call of a caller.
#[derive(Clone, Debug)]
pub struct Call {
    /// Names it.
    pub id: u64,
    /// Whose limit.
    pub tenant: Rc<str>,
    /// Which limit.
    pub limit: Rc<str>,
    /// Of which key; empty when the limit has none.
    pub key: Rc<str>,
    /// Units.
    pub cost: u64,
    /// Its `Idempotency-Key`.
    pub idempotency: Option<Rc<str>>,
}

/// What travels between regions.
#[derive(Clone, Debug)]
pub enum Message {
    /// Counts, and signs of life.
    Counts(exchange::Message),
    /// The log.
    Log(log::Message),
    /// For the leader.
    ToLeader(ToLeader),
    /// From the leader.
    ToRegion(ToRegion),
    /// A proposal for the leader.
    Forward(Box<Forward>),
    /// What came of it.
    Forwarded {
        /// The process that asked.
        to: u64,
        /// Names the proposal there.
        id: u64,
        /// What came of it.
        said: Box<Forwarded>,
    },
}

/// Something happens to a process.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message of a region came.
    Message(usize, Box<Message>),
    /// A caller asks.
    Call(Call),
    /// Time to tell peers, and to write.
    Round,
    /// Time to tell the leader that it lives.
    Pulse,
    /// Time to look after members.
    Survey,
    /// Time to try a failed disk.
    Probe,
    /// Time passes for the log.
    Log,
    /// Time passes for reservations.
    Seats,
    /// Time passes for the leader.
    Lead,
    /// A check that waits is told.
    Woken(Ticket, Verdict),
    /// A check, by its call, has waited for too long.
    Overdue(u64),
    /// A check's charges are on disk, or are not.
    Kept(u64),
    /// A proposal is tried again, or given up.
    Proposal(u64),
    /// It is asked to end.
    Leave,
    /// It goes on ending.
    Leaving,
    /// The lead is to be handed over.
    HandOver(usize),
    /// That goes on.
    HandingOver,
    /// An operator wants this.
    Administer(Box<Command>),
}

/// What a process wants done.
#[derive(Clone, Debug)]
pub enum Out {
    /// Send this.
    Send(usize, Message),
    /// Let this happen when the boot clock shows that.
    At(Span, Event),
    /// Tell a caller.
    Tell(u64, Answer),
    /// It has ended.
    Ended,
    /// It found what cannot be: the run is worth nothing.
    Broken(String),
}

/// What a process works with at one moment.
pub struct Context<'a> {
    /// Its clocks.
    pub at: At,
    /// Its disk.
    pub disk: &'a mut Disk,
    /// Whether that takes nothing.
    pub is_full: bool,
    /// What it wants done.
    pub out: &'a mut Vec<Out>,
}

impl Context<'_> {
    /// Lets something happen later.
    pub fn later(&mut self, wait: Span, event: Event) {
        self.out.push(Out::At(self.at.boot.plus(wait), event));
    }

    /// Both clocks.
    pub const fn reading(&self) -> Reading {
        Reading {
            boot: self.at.boot,
            region_time: self.at.now,
        }
    }
}
