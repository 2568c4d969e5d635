//! The vocabulary of the consensus library, fixed to what Highwater puts into it.
//!
//! An entry's command and its reply are bytes to everything below this module's users. The std kind of
//! leader id is used: one leader per term, so that a place in the log is a term and an index.

use std::fmt;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::vote::RaftLeaderId;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de::Visitor;

use crate::consensus::Member;
use crate::consensus::Membership;
use crate::domain::name::RegionName;
use crate::store::LogPlace;

/// What an entry says: bytes of the caller.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Command(pub Bytes);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Serialize for Command {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsBytes;
        impl Visitor<'_> for AsBytes {
            type Value = Command;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Command, E> {
                Ok(Command(Bytes::copy_from_slice(bytes)))
            }
        }
        deserializer.deserialize_bytes(AsBytes)
    }
}

/// What applying an entry gave: bytes of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outcome(pub Vec<u8>);

/// A member as the log carries it; its voter id is the key beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Peer {
    pub region: String,
    pub url: String,
}

impl Peer {
    pub fn of(member: &Member) -> Self {
        Self {
            region: member.region.to_string(),
            url: member.url.clone(),
        }
    }

    /// The member with this voter id. A name that is none was never written by [`Peer::of`].
    pub fn member(&self, voter: u64) -> Option<Member> {
        Some(Member {
            voter,
            region: RegionName::new(&self.region).ok()?,
            url: self.url.clone(),
        })
    }
}

openraft::declare_raft_types!(
    pub(super) TypeConfig:
        D = Command,
        R = Outcome,
        NodeId = u64,
        Node = Peer,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = Runtime,
);

#[allow(
    deprecated,
    reason = "the crate that it moved to is a part of the library"
)]
pub(super) type Runtime = openraft::impls::TokioRuntime;
pub(super) type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;
pub(super) type Leader = <LeaderId as RaftLeaderId>::Committed;
pub(super) type LogId = openraft::LogId<Leader>;
pub(super) type Vote = openraft::Vote<LeaderId>;
pub(super) type Payload = EntryPayload<Command, u64, Peer>;
pub(super) type Entry = openraft::Entry<Leader, Payload>;
pub(super) type Members = openraft::Membership<u64, Peer>;
pub(super) type StoredMembers = openraft::StoredMembership<Leader, u64, Peer>;
pub(super) type SnapshotMeta = openraft::SnapshotMeta<Leader, u64, Peer>;
pub(super) type Snapshot = openraft::Snapshot<Leader, u64, Peer, Bytes>;

pub(super) fn place_of(id: &LogId) -> LogPlace {
    LogPlace {
        term: id.leader_id.term,
        index: id.index,
    }
}

pub(super) fn id_of(place: LogPlace) -> LogId {
    LogId::new(Leader::new(place.term), place.index)
}

/// Who votes and who listens. During a change all voters of both sides vote.
pub(super) fn membership_of(members: &Members) -> Membership {
    let named = |voter: u64| members.get_node(&voter)?.member(voter);
    let mut membership = Membership {
        voters: members.voter_ids().filter_map(named).collect(),
        learners: members.learner_ids().filter_map(named).collect(),
    };
    membership.voters.sort_by(|a, b| a.region.cmp(&b.region));
    membership.learners.sort_by(|a, b| a.region.cmp(&b.region));
    membership
}
