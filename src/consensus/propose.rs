//! Proposals, and what each way of failing says about what was appended.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::errors::ClientWriteError;
use openraft::errors::ForwardReason;
use openraft::errors::ForwardToLeader;
use openraft::errors::RaftError;
use tokio::time::sleep;
use tokio::time::timeout;

use crate::consensus::Inner;
use crate::consensus::Member;
use crate::consensus::PROPOSAL_BYTES_MAX;
use crate::consensus::ProposeError;
use crate::consensus::Proposed;
use crate::consensus::types::Command;
use crate::consensus::types::TypeConfig;

/// Pause before a leader that may not write yet is asked again.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

pub(super) type WriteError = RaftError<TypeConfig, ClientWriteError<TypeConfig>>;

/// What to do about an error of the library.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Nothing was appended and the same may succeed a moment later.
    Again,
    Final(ProposeError),
}

/// What an error of a write says. Changes of members are told apart by their caller.
pub(super) fn judge(error: &WriteError) -> Verdict {
    let verdict = match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => match forward.reason {
            ForwardReason::NotLeader => ProposeError::NotLeader {
                leader: leader_of(forward),
            },
            // A leader right after its election, or one that has lost its majority for a moment.
            ForwardReason::LeaseExpired | ForwardReason::LeadershipTransfer => {
                return Verdict::Again;
            }
        },
        // It was in the log of this member, and may still be in that of the next leader.
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => ProposeError::OutcomeUnknown,
        RaftError::APIError(
            error @ (ClientWriteError::ChangeMembershipError(_)
            | ClientWriteError::PreconditionFailed(_)),
        ) => ProposeError::Unavailable(error.to_string()),
        // It stopped with the entry in its hands.
        RaftError::Fatal(_) => ProposeError::OutcomeUnknown,
    };
    Verdict::Final(verdict)
}

fn leader_of(forward: &ForwardToLeader<TypeConfig>) -> Option<Member> {
    forward.leader_node.as_ref()?.member(forward.leader_id?)
}

pub(super) fn stopped() -> ProposeError {
    ProposeError::Unavailable("it does not run here at the moment".to_owned())
}

/// See [`crate::consensus::Consensus::propose_within`].
pub(super) async fn propose(
    inner: Arc<Inner>,
    payload: Vec<u8>,
    time: Duration,
) -> Result<Proposed, ProposeError> {
    if payload.len() > PROPOSAL_BYTES_MAX {
        let reason = format!("an entry has at most {PROPOSAL_BYTES_MAX} bytes");
        return Err(ProposeError::Unavailable(reason));
    }
    let command = Command(Bytes::from(payload));
    // Whether an entry is on its way, so that a lost wait tells the truth.
    let mut is_underway = false;
    let written = timeout(time, write(&inner, command, time, &mut is_underway)).await;
    match written {
        Ok(written) => written,
        Err(_) if is_underway => Err(ProposeError::OutcomeUnknown),
        Err(_) => Err(no_majority()),
    }
}

async fn write(
    inner: &Inner,
    command: Command,
    time: Duration,
    is_underway: &mut bool,
) -> Result<Proposed, ProposeError> {
    // The last try begins early enough to be answered: one that is cut short could be anything.
    let mut last_try = pin!(sleep(time - time / 8));
    loop {
        // Held until the entry is applied: a transfer waits for what is on its way.
        let _open = Arc::clone(&inner.gate).read_owned().await;
        let running = inner.running().ok_or_else(stopped)?;
        *is_underway = true;
        let written = running.raft.client_write(command.clone()).await;
        let error = match written {
            Ok(written) => {
                return Ok(Proposed {
                    index: written.log_id.index,
                    term: written.log_id.leader_id.term,
                    reply: written.data.0,
                });
            }
            Err(error) => error,
        };
        match judge(&error) {
            Verdict::Final(error) => return Err(error),
            Verdict::Again => {
                *is_underway = false;
                tokio::select! {
                    biased;
                    () = &mut last_try => return Err(no_majority()),
                    () = sleep(PAUSE) => {}
                }
            }
        }
    }
}

fn no_majority() -> ProposeError {
    ProposeError::Unavailable("no majority was heard in time".to_owned())
}
