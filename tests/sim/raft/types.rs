//! The vocabulary of the consensus library on the simulated runtime, and what nodes send each other.

use std::fmt;

use bytes::Bytes;
use highwater::grants::account::Holder;
use highwater::grants::message::ToLeader;
use highwater::grants::message::ToRegion;
use highwater::machine::command::Command;
use highwater::machine::command::Payload;
use highwater::machine::command::Reply;
use openraft::raft::AppendEntriesRequest;
use openraft::raft::AppendEntriesResponse;
use openraft::raft::SnapshotResponse;
use openraft::raft::VoteRequest;
use openraft::raft::VoteResponse;
use openraft::vote::RaftLeaderId;
use serde::Deserialize;
use serde::Serialize;

/// What an entry says: an encoded [`Payload`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written(pub Vec<u8>);

impl Written {
    pub fn of(payload: &Payload) -> Self {
        Self(postcard::to_allocvec(payload).expect("it encodes"))
    }

    pub fn payload(&self) -> Payload {
        postcard::from_bytes(&self.0).expect("it decodes")
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

openraft::declare_raft_types!(
    pub SimConfig:
        D = Written,
        R = Option<Reply>,
        NodeId = u64,
        Node = openraft::EmptyNode,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = openraft_rt_sim::SimRuntime,
);

pub type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;
pub type Committer = <LeaderId as RaftLeaderId>::Committed;
pub type LogId = openraft::LogId<Committer>;
pub type Vote = openraft::Vote<LeaderId>;
pub type EntryBody = openraft::EntryPayload<Written, u64, openraft::EmptyNode>;
pub type Entry = openraft::Entry<Committer, EntryBody>;
pub type StoredMembers = openraft::StoredMembership<Committer, u64, openraft::EmptyNode>;
pub type SnapshotMeta = openraft::SnapshotMeta<Committer, u64, openraft::EmptyNode>;
pub type Snapshot = openraft::Snapshot<Committer, u64, openraft::EmptyNode, Bytes>;

/// What is answered.
#[derive(Clone)]
pub enum Request {
    Append(AppendEntriesRequest<SimConfig>),
    Vote(VoteRequest<SimConfig>),
    PreVote(VoteRequest<SimConfig>),
    Snapshot(Vote, Snapshot),
    /// A proposal for whoever leads, and how long its sender waits.
    Forward(Box<Command>, u64),
}

/// Answers.
pub enum Answer {
    Append(AppendEntriesResponse<SimConfig>),
    Vote(VoteResponse<SimConfig>),
    Snapshot(SnapshotResponse<SimConfig>),
    Forwarded(Forwarded),
    Stopped,
}

/// What came of a proposal.
#[derive(Clone, Debug)]
pub enum Forwarded {
    /// Committed at this place of the log, or answered without an entry (0).
    Done(u64, Reply),
    NotLeader,
    /// Nothing was proposed.
    Unavailable,
    /// It may or may not count.
    Unknown,
}

/// What is not answered.
#[derive(Clone, Debug)]
pub enum Letter {
    ToLeader(ToLeader),
    ToRegion(Holder, ToRegion),
}

/// A hash that is the same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(pub u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn numbers(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.bytes(&number.to_le_bytes());
        }
    }

    pub fn of(bytes: &[u8]) -> u64 {
        let mut trace = Self::default();
        trace.bytes(bytes);
        trace.0
    }
}
