//! What members send each other: one request and one answer, with a version byte before them.
//!
//! A request names the voter that it is for. A region that was wiped or restored is another voter at the same
//! address, and must not take what was meant for the one before it.

use bytes::Bytes;
use openraft::raft::AppendEntriesRequest;
use openraft::raft::AppendEntriesResponse;
use openraft::raft::TransferLeaderRequest;
use openraft::raft::VoteRequest;
use openraft::raft::VoteResponse;
use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::consensus::types::Command;
use crate::consensus::types::SnapshotMeta;
use crate::consensus::types::TypeConfig;
use crate::consensus::types::Vote;

/// Version of these messages.
const VERSION: u8 = 1;

#[derive(Serialize, Deserialize)]
pub(super) struct Envelope {
    /// The voter that this is for.
    pub to: u64,
    pub request: Request,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    Append(AppendEntriesRequest<TypeConfig>),
    Vote(VoteRequest<TypeConfig>),
    PreVote(VoteRequest<TypeConfig>),
    Transfer(TransferLeaderRequest<TypeConfig>),
    Snapshot(Chunk),
    /// The sender has seen the receiver's log further than it is now.
    WentBack,
}

/// A part of a snapshot. Parts come in order, each after the answer to the one before it.
#[derive(Serialize, Deserialize)]
pub(super) struct Chunk {
    pub vote: Vote,
    pub meta: SnapshotMeta,
    /// Bytes before this part, and bytes of all parts.
    pub offset: u64,
    pub total: u64,
    pub part: Command,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Answer {
    Append(AppendEntriesResponse<TypeConfig>),
    Vote(VoteResponse<TypeConfig>),
    Transfer(Result<(), String>),
    /// The part was taken; with the last one the whole snapshot was.
    Snapshot(Vote),
    Refused(Refusal),
}

/// Why a request was not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Refusal {
    /// Consensus does not run here at the moment.
    Stopped,
    /// The voter that was meant is not here, or the sender is not who the request speaks for.
    OtherVoter,
    /// The sender's log is shorter than it was once.
    WentBack,
    /// The request cannot be read, or is out of order.
    Unreadable,
}

/// The bytes of a message.
pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Writing to memory cannot fail, and all types here have fixed shapes.
    postcard::to_extend(message, vec![VERSION]).unwrap_or_default()
}

/// The message in `bytes`, if it is one of this version.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (&VERSION, body) = bytes.split_first()? else {
        return None;
    };
    postcard::from_bytes(body).ok()
}

impl Chunk {
    pub fn new(
        vote: Vote,
        meta: SnapshotMeta,
        offset: usize,
        snapshot: &Bytes,
        part_bytes: usize,
    ) -> Self {
        let end = snapshot.len().min(offset.saturating_add(part_bytes));
        let as_u64 = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        Self {
            vote,
            meta,
            offset: as_u64(offset),
            total: as_u64(snapshot.len()),
            part: Command(snapshot.slice(offset..end)),
        }
    }
}
