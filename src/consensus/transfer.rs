//! Handing the lead to another voter.
//!
//! The library's own transfer makes the leader refuse writes and fall silent until somebody is elected, also
//! when the message is lost. Here the leader only holds proposals back for a moment, sees that the other one
//! has everything, and asks it to stand for election; the others vote for it although their leader lives,
//! because such an election says that the leader wants it. If nothing comes of it, the leader has never
//! stopped leading, and lets the proposals go on.

use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use tokio::time::timeout;

use crate::consensus::Inner;
use crate::consensus::ProposeError;
use crate::consensus::message::Answer;
use crate::consensus::message::Request;
use crate::consensus::network::Link;
use crate::consensus::propose::stopped;
use crate::consensus::types::membership_of;
use crate::domain::name::RegionName;

fn unavailable(reason: &str) -> ProposeError {
    ProposeError::Unavailable(reason.to_owned())
}

/// See [`crate::consensus::Consensus::transfer`].
pub(super) async fn transfer(inner: &Arc<Inner>, to: &RegionName) -> Result<(), ProposeError> {
    if *to == inner.region && inner.leadership.borrow().is_self {
        return Ok(());
    }
    let patience = inner.settings.election_max * 2;
    // Proposals on their way hold the gate until they are applied; new ones wait for it to open.
    let gate = timeout(patience, Arc::clone(&inner.gate).write_owned()).await;
    let _closed =
        gate.map_err(|_| unavailable("entries on their way were not committed in time"))?;
    timeout(patience, hand_over(inner, to))
        .await
        .unwrap_or_else(|_| {
            Err(unavailable(
                "the other region did not take the lead in time",
            ))
        })
}

async fn hand_over(inner: &Inner, to: &RegionName) -> Result<(), ProposeError> {
    let running = inner.running().ok_or_else(stopped)?;
    let mut leadership = inner.leadership.subscribe();
    let before = leadership.borrow().clone();
    if !before.is_ready {
        return Err(ProposeError::NotLeader {
            leader: before.leader.filter(|_| !before.is_self),
        });
    }
    let mut metrics = running.raft.metrics();
    let target = {
        let metrics = metrics.borrow_watched();
        let members = membership_of(metrics.membership_config.membership());
        let mut voters = members.voters.into_iter();
        voters.find(|voter| voter.region == *to)
    };
    let target = target.ok_or_else(|| unavailable("that region has no vote"))?;
    let request = loop {
        let ready = {
            let metrics = metrics.borrow_and_update();
            let matched = metrics
                .replication
                .as_ref()
                .and_then(|all| all.get(&target.voter));
            let matched = matched.copied().flatten();
            let has_all = matched.map(|matched| matched.index) == metrics.last_log_index;
            let vote = metrics.vote;
            (has_all && vote.committed)
                .then(|| TransferLeaderRequest::new(vote, target.voter, matched))
        };
        if let Some(ready) = ready {
            break ready;
        }
        metrics.changed().await.map_err(|_| stopped())?;
    };
    let link = Link::to(target.clone(), running.network.clone());
    let asked = link.call(Request::Transfer(request), inner.settings.election_max);
    match asked.await {
        Ok(Answer::Transfer(Ok(()))) => {}
        Ok(Answer::Transfer(Err(reason))) => return Err(ProposeError::Unavailable(reason)),
        Ok(_) => return Err(unavailable("its answer is to something else")),
        Err(error) => return Err(ProposeError::Unavailable(error.to_string())),
    }
    loop {
        {
            let now = leadership.borrow_and_update();
            let leader = now.leader.as_ref().filter(|_| now.term > before.term);
            match leader {
                Some(leader) if leader.voter == target.voter => return Ok(()),
                Some(_) => return Err(unavailable("another region took the lead")),
                None => {}
            }
        }
        leadership.changed().await.map_err(|_| stopped())?;
    }
}
