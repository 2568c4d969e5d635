//! Taking in what the other members send.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::task::Waker;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use openraft::raft::AppendEntriesRequest;
use openraft::raft::VoteRequest;
use parking_lot::Mutex;

use crate::consensus::Inner;
use crate::consensus::Running;
use crate::consensus::message::Answer;
use crate::consensus::message::Chunk;
use crate::consensus::message::Envelope;
use crate::consensus::message::Refusal;
use crate::consensus::message::Request;
use crate::consensus::message::decode;
use crate::consensus::message::encode;
use crate::consensus::run::WENT_BACK;
use crate::consensus::types::LogId;
use crate::consensus::types::Snapshot;
use crate::consensus::types::TypeConfig;
use crate::consensus::types::Vote;
use crate::consensus::types::place_of;

/// Bytes of a snapshot that is taken in at most.
const SNAPSHOT_BYTES_MAX: u64 = 512 << 20;
/// Members whose snapshots are taken in at once; a leader that lost its place leaves one behind.
const INCOMING_MAX: usize = 2;

/// Snapshots that have come in part, by sender.
#[derive(Default)]
pub(super) struct Incoming {
    parts: Mutex<BTreeMap<u64, Partial>>,
}

struct Partial {
    vote: Vote,
    last: Option<LogId>,
    bytes: Vec<u8>,
}

impl Incoming {
    /// Takes a part in. Answers the whole snapshot with its last part, `Ok(None)` before.
    fn take(&self, from: u64, chunk: Chunk) -> Result<Option<Snapshot>, Refusal> {
        if chunk.total > SNAPSHOT_BYTES_MAX {
            return Err(Refusal::Unreadable);
        }
        let mut parts = self.parts.lock();
        if chunk.offset == 0 {
            if !parts.contains_key(&from) && parts.len() >= INCOMING_MAX {
                // The one that is no leader any more does not come back for its own.
                parts.clear();
            }
            parts.insert(
                from,
                Partial {
                    vote: chunk.vote,
                    last: chunk.meta.last_log_id,
                    bytes: Vec::new(),
                },
            );
        }
        let partial = parts.get_mut(&from).ok_or(Refusal::Unreadable)?;
        let have = u64::try_from(partial.bytes.len()).unwrap_or(u64::MAX);
        let is_next = partial.vote == chunk.vote
            && partial.last == chunk.meta.last_log_id
            && have == chunk.offset;
        if !is_next {
            parts.remove(&from);
            return Err(Refusal::Unreadable);
        }
        partial.bytes.extend_from_slice(&chunk.part.0);
        let have = u64::try_from(partial.bytes.len()).unwrap_or(u64::MAX);
        if have < chunk.total && !chunk.part.0.is_empty() {
            return Ok(None);
        }
        let whole = parts.remove(&from).map(|partial| partial.bytes);
        match whole {
            Some(bytes) if have == chunk.total => Ok(Some(Snapshot {
                meta: chunk.meta,
                snapshot: Bytes::from(bytes),
            })),
            _ => Err(Refusal::Unreadable),
        }
    }
}

/// See [`crate::consensus::Consensus::receive`].
pub(super) fn receive(
    inner: &Arc<Inner>,
    from: u64,
    message: &[u8],
) -> BoxFuture<'static, Vec<u8>> {
    let refuse = |refusal| encode(&Answer::Refused(refusal));
    let Some(Envelope { to, request }) = decode(message) else {
        return Box::pin(ready(refuse(Refusal::Unreadable)));
    };
    if to != inner.voter {
        return Box::pin(ready(refuse(Refusal::OtherVoter)));
    }
    let Some(running) = inner.running() else {
        return Box::pin(ready(refuse(Refusal::Stopped)));
    };
    if inner.reach.went_back(from) {
        return Box::pin(ready(refuse(Refusal::WentBack)));
    }
    let inner = Arc::clone(inner);
    let answer = async move {
        let answered = answer(&inner, &running, from, request).await;
        encode(&answered.unwrap_or_else(Answer::Refused))
    };
    // The first poll puts the request in the library's queue, so it is done here, where the order of arrival
    // is known, and not when the caller gets to it. It must not be cut short by the caller's budget.
    let mut answer: BoxFuture<'static, Vec<u8>> = Box::pin(tokio::task::unconstrained(answer));
    let mut nobody = Context::from_waker(Waker::noop());
    match answer.as_mut().poll(&mut nobody) {
        Poll::Ready(answer) => Box::pin(ready(answer)),
        Poll::Pending => answer,
    }
}

async fn answer(
    inner: &Arc<Inner>,
    running: &Running,
    from: u64,
    request: Request,
) -> Result<Answer, Refusal> {
    let raft = &running.raft;
    let is_from = |vote: &Vote| vote.leader_id.voted_for == from;
    let stopped = |_| Refusal::Stopped;
    match request {
        Request::Append(append) => {
            if !is_from(&append.vote) {
                return Err(Refusal::OtherVoter);
            }
            check_entries(&append)?;
            let answer = raft.append_entries(append).await;
            Ok(Answer::Append(answer.map_err(stopped)?))
        }
        Request::Vote(vote) => {
            check_candidate(inner, from, &vote)?;
            Ok(Answer::Vote(raft.vote(vote).await.map_err(stopped)?))
        }
        Request::PreVote(vote) => {
            check_candidate(inner, from, &vote)?;
            Ok(Answer::Vote(raft.pre_vote(vote).await.map_err(stopped)?))
        }
        Request::Transfer(transfer) => {
            if !is_from(transfer.from_leader()) || *transfer.to_node_id() != inner.voter {
                return Err(Refusal::OtherVoter);
            }
            let taken = raft.handle_transfer_leader(transfer).await;
            let taken = taken.map_err(|_| Refusal::Stopped)?;
            Ok(Answer::Transfer(taken.map_err(|error| error.to_string())))
        }
        Request::Snapshot(chunk) => {
            let vote = chunk.vote;
            if !is_from(&vote) {
                return Err(Refusal::OtherVoter);
            }
            match inner.incoming.take(from, chunk)? {
                None => Ok(Answer::Snapshot(vote)),
                Some(snapshot) => {
                    let installed = raft.install_full_snapshot(vote, snapshot).await;
                    Ok(Answer::Snapshot(
                        installed.map_err(|_| Refusal::Stopped)?.vote,
                    ))
                }
            }
        }
        Request::WentBack => {
            inner.stop(running.number, WENT_BACK);
            Err(Refusal::WentBack)
        }
    }
}

/// The library relies on entries that follow each other.
fn check_entries(append: &AppendEntriesRequest<TypeConfig>) -> Result<(), Refusal> {
    let mut last = append.prev_log_id;
    for entry in &append.entries {
        let is_next = match last {
            Some(last) => {
                last.index.checked_add(1) == Some(entry.log_id.index)
                    && last.leader_id <= entry.log_id.leader_id
            }
            None => entry.log_id.index == 0,
        };
        let is_of_leader = entry.log_id.leader_id.term <= append.vote.leader_id.term;
        if !is_next || !is_of_leader {
            return Err(Refusal::Unreadable);
        }
        last = Some(entry.log_id);
    }
    Ok(())
}

fn check_candidate(
    inner: &Inner,
    from: u64,
    request: &VoteRequest<TypeConfig>,
) -> Result<(), Refusal> {
    if request.vote.leader_id.voted_for != from {
        return Err(Refusal::OtherVoter);
    }
    let last = request.last_log_id.as_ref().map(place_of);
    if inner.reach.ends_with(from, last) {
        Ok(())
    } else {
        tracing::error!(
            voter = from,
            "the log of a member is shorter than it was: its directory is an old copy; it is refused"
        );
        Err(Refusal::WentBack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consensus::types::LeaderId;
    use crate::consensus::types::SnapshotMeta;
    use crate::consensus::types::id_of;
    use crate::store::LogPlace;

    fn chunk(term: u64, index: u64, offset: usize, body: &Bytes) -> Chunk {
        let vote = Vote {
            leader_id: LeaderId { term, voted_for: 1 },
            committed: true,
        };
        let meta = SnapshotMeta {
            last_log_id: Some(id_of(LogPlace { term, index })),
            ..SnapshotMeta::default()
        };
        Chunk::new(vote, meta, offset, body, 4)
    }

    #[test]
    fn parts_become_a_snapshot_only_in_their_order() {
        let incoming = Incoming::default();
        let body = Bytes::from_static(b"0123456789");
        let take = |part| {
            incoming
                .take(1, part)
                .map(|whole| whole.map(|it| it.snapshot))
        };
        assert_eq!(take(chunk(1, 5, 0, &body)), Ok(None));
        assert_eq!(take(chunk(1, 5, 4, &body)), Ok(None));
        assert_eq!(take(chunk(1, 5, 8, &body)), Ok(Some(body.clone())));
        // A part without a beginning, out of order, of another snapshot, of another term.
        assert_eq!(take(chunk(1, 5, 8, &body)), Err(Refusal::Unreadable));
        for wrong in [
            chunk(1, 5, 8, &body),
            chunk(1, 6, 4, &body),
            chunk(2, 5, 4, &body),
        ] {
            assert_eq!(take(chunk(1, 5, 0, &body)), Ok(None));
            assert_eq!(take(wrong), Err(Refusal::Unreadable));
        }
        // A new beginning replaces what came before; an empty snapshot is whole at once.
        assert_eq!(take(chunk(1, 5, 0, &body)), Ok(None));
        assert_eq!(take(chunk(1, 6, 0, &Bytes::new())), Ok(Some(Bytes::new())));
        let mut endless = chunk(1, 5, 0, &body);
        endless.total = SNAPSHOT_BYTES_MAX + 1;
        assert_eq!(take(endless), Err(Refusal::Unreadable));
    }

    #[test]
    fn only_few_senders_have_parts_here() {
        let incoming = Incoming::default();
        let body = Bytes::from_static(b"0123456789");
        for from in 0..100 {
            let taken = incoming.take(from, chunk(1, 5, 0, &body));
            assert_eq!(taken.map(|whole| whole.is_some()), Ok(false));
            assert!(incoming.parts.lock().len() <= INCOMING_MAX);
        }
    }
}
