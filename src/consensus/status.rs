//! How consensus stands, for people and metrics.

use std::time::Duration;

use openraft::Instant;
use openraft::async_runtime::WatchReceiver;

use crate::consensus::Inner;
use crate::consensus::Member;
use crate::consensus::types::membership_of;

/// How consensus stands on this member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The newest term that this member has seen.
    pub term: u64,
    /// Who leads.
    pub leader: Option<Member>,
    /// Whether this member leads and may decide.
    pub is_ready: bool,
    /// Those whose majority decides, in the order of their names.
    pub voters: Vec<MemberStatus>,
    /// Those that only listen, in the order of their names.
    pub learners: Vec<MemberStatus>,
    /// Index of the last entry of the log here.
    pub last_log_index: Option<u64>,
    /// Index of the newest entry known here to be committed.
    pub committed_index: Option<u64>,
    /// Index of the newest entry applied here.
    pub applied_index: Option<u64>,
    /// Index up to which the newest snapshot goes.
    pub snapshot_index: Option<u64>,
    /// Index up to which entries were deleted.
    pub purged_index: Option<u64>,
    /// On the leader: how long ago a majority was heard.
    pub since_majority: Option<Duration>,
    /// Why it does not run, when it does not.
    pub fault: Option<String>,
}

/// How one member stands, as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Which one.
    pub member: Member,
    /// On the leader: index up to which its log is known to be the same.
    pub matched_index: Option<u64>,
    /// On the leader: how long ago something was sent to which it has answered.
    pub since_contact: Option<Duration>,
    /// Whether its log is shorter than it was once: its directory is an old copy, and it is refused.
    pub went_back: bool,
}

/// See [`crate::consensus::Consensus::status`].
pub(super) fn status(inner: &Inner) -> Status {
    let leadership = inner.leadership.borrow().clone();
    let mut status = Status {
        term: leadership.term,
        leader: leadership.leader,
        is_ready: leadership.is_ready,
        applied_index: inner.applied.last().map(|last| last.index),
        fault: inner.fault.lock().clone(),
        ..Status::default()
    };
    let Some(running) = inner.running() else {
        return status;
    };
    let metrics = running.raft.metrics().borrow_watched().clone();
    let of = |member: Member| {
        let matched = metrics
            .replication
            .as_ref()
            .and_then(|all| all.get(&member.voter));
        let contact = metrics
            .heartbeat
            .as_ref()
            .and_then(|all| all.get(&member.voter));
        MemberStatus {
            matched_index: matched.copied().flatten().map(|matched| matched.index),
            since_contact: contact.copied().flatten().map(|contact| contact.elapsed()),
            went_back: inner.reach.went_back(member.voter),
            member,
        }
    };
    let membership = membership_of(metrics.membership_config.membership());
    status.voters = membership.voters.into_iter().map(of).collect();
    status.learners = membership.learners.into_iter().map(of).collect();
    status.last_log_index = metrics.last_log_index;
    status.committed_index = metrics.local_committed.map(|committed| committed.index);
    status.snapshot_index = metrics.snapshot.map(|snapshot| snapshot.index);
    status.purged_index = metrics.purged.map(|purged| purged.index);
    status.since_majority = metrics.last_quorum_acked.map(|acked| acked.elapsed());
    status
}
