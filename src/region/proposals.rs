//! The way into the log: from this region to the leader, wherever it is.
//!
//! A proposal is stamped with log time by the leader and is answered when it is committed and in force in
//! the region that answers. Until there is a leader a proposal waits, up to its deadline; then nothing was
//! proposed and the answer says so. Once it has left for the leader and no answer comes, nobody can say
//! whether it counts.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde::Serialize;
use thiserror::Error;

use crate::catalogue::change::Applied;
use crate::catalogue::change::Entry;
use crate::catalogue::change::Refused;
use crate::consensus;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::machine::charge::Charged;
use crate::machine::command::Command;
use crate::machine::command::Payload;
use crate::machine::command::Reply;
use crate::machine::give::Given;
use crate::peer::PeerError;
use crate::peer::Service;
use crate::region::moves::Asked;
use crate::region::state::Region;

/// How long an admin write may take.
pub const WRITE_DEADLINE: Span = Span::from_seconds(5);
/// How long a write waits for regions that are connected to confirm it, so that `pending_regions` names only
/// those that are really behind.
const CONFIRM_WAIT: Span = Span::from_ms(250);
/// How often that is looked at.
const CONFIRM_STEP: Span = Span::from_ms(10);
/// What a leader says that has heard no majority lately.
const NO_MAJORITY: &str = "no majority of the regions is in reach";
/// How soon a proposal that found no leader tries again.
const RETRY_STEP: Span = Span::from_ms(20);

/// Why a change is not in force.
#[derive(Debug, Error)]
pub enum ProposeError {
    /// It may not be made.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Nothing was proposed.
    #[error("no leader can take the change: {0}")]
    Unavailable(String),
    /// It may or may not count.
    #[error("the leader did not say whether the change was made: {0}")]
    OutcomeUnknown(String),
}

/// What came of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// Its place in the log; 0 when the leader answered without an entry.
    pub index: u64,
    /// What the machine said.
    pub reply: Reply,
    /// Regions that have not confirmed it.
    pub pending: Vec<RegionName>,
}

/// The leader's answer to a forwarded proposal.
#[derive(Debug, Serialize, Deserialize)]
pub enum Forwarded {
    /// It was committed, or answered without an entry.
    Done {
        /// Its place in the log; 0: no entry.
        index: u64,
        /// What the machine said.
        reply: Reply,
        /// Regions that have not confirmed it.
        pending: Vec<RegionName>,
    },
    /// The region that was asked does not lead.
    NotLeader,
    /// Nothing was proposed.
    Unavailable(String),
    /// It may or may not count.
    Unknown(String),
}

/// What came of a change of the catalogue.
#[derive(Debug)]
pub struct Changed {
    /// What it did.
    pub applied: Applied,
    /// Regions that have not confirmed it.
    pub pending: Vec<RegionName>,
}

impl Region {
    /// Makes a change of the catalogue: committed, and in force here, when this returns.
    ///
    /// # Errors
    /// When it may not be made, or no leader is there, or its outcome is not known.
    pub async fn change(self: &Arc<Self>, entry: &Entry) -> Result<Changed, ProposeError> {
        let body = serde_json::to_vec(entry)
            .map_err(|error| ProposeError::Unavailable(error.to_string()))?;
        let done = self.propose(Command::Change(body), WRITE_DEADLINE).await?;
        match done.reply {
            Reply::Changed(applied) => Ok(Changed {
                applied,
                pending: done.pending,
            }),
            Reply::Refused(refused) => Err(refused.into()),
            reply => Err(ProposeError::Unavailable(format!("{reply:?}"))),
        }
    }

    /// Proposes `command` and waits until it is committed and in force here.
    ///
    /// # Errors
    /// When no leader is there by the deadline, or the outcome is not known.
    pub async fn propose(
        self: &Arc<Self>,
        command: Command,
        deadline: Span,
    ) -> Result<Done, ProposeError> {
        self.ask_leader(Asked::Propose(Box::new(command)), deadline)
            .await
    }

    /// Asks the leader for something and waits until it is done, and in force here.
    ///
    /// # Errors
    /// When no leader is there by the deadline, or the outcome is not known.
    pub async fn ask_leader(
        self: &Arc<Self>,
        asked: Asked,
        deadline: Span,
    ) -> Result<Done, ProposeError> {
        let started = self.clock.stopwatch();
        let mut why = "no region leads at the moment".to_owned();
        // A move may take long once it has begun; for somebody to begin it nobody waits as long.
        let patience = if asked.is_worth_another_try() {
            deadline
        } else {
            deadline.min(WRITE_DEADLINE)
        };
        loop {
            let left = deadline.minus(started.elapsed());
            let leads_alone = self.leads_without_majority();
            if leads_alone {
                NO_MAJORITY.clone_into(&mut why);
            }
            if patience.minus(started.elapsed()).is_zero()
                || (leads_alone && !asked.is_worth_another_try())
            {
                return Err(ProposeError::Unavailable(why));
            }
            match self.try_ask(&asked, left).await? {
                Ok(done) => {
                    self.wait_applied(done.index, left).await;
                    return Ok(done);
                }
                Err(reason) => why = reason,
            }
            tokio::time::sleep(RETRY_STEP.min(left).to_std()).await;
        }
    }

    /// One try; the inner error says why nothing was proposed and that it may be tried again.
    async fn try_ask(
        self: &Arc<Self>,
        asked: &Asked,
        left: Span,
    ) -> Result<Result<Done, String>, ProposeError> {
        let Some(consensus) = self.consensus() else {
            return Ok(Err("this region has not joined a cluster yet".to_owned()));
        };
        let leadership = consensus.leadership().borrow().clone();
        if leadership.is_self {
            let said = Arc::clone(self).serve_asked(asked.clone(), left).await;
            return settled(asked, said);
        }
        let Some(leader) = leadership.leader else {
            return Ok(Err("no region leads at the moment".to_owned()));
        };
        let body = postcard::to_allocvec(asked)
            .map_err(|error| ProposeError::Unavailable(error.to_string()))?;
        let Some(peers) = self.peers() else {
            return Ok(Err("this region has no peers".to_owned()));
        };
        let answered = peers
            .call(&leader.region, Service::Forward, Bytes::from(body), left)
            .await;
        let body = match answered {
            Ok(body) => body,
            Err(PeerError::TimedOut | PeerError::Closed) => {
                return Err(ProposeError::OutcomeUnknown(format!(
                    "{} leads and did not answer in time",
                    leader.region
                )));
            }
            Err(error) => return Ok(Err(format!("{} leads: {error}", leader.region))),
        };
        match postcard::from_bytes::<Forwarded>(&body) {
            Ok(said) => settled(asked, said),
            Err(error) => Err(ProposeError::OutcomeUnknown(format!(
                "the answer of {} cannot be read: {error}",
                leader.region
            ))),
        }
    }

    /// Proposes at this region, which leads; answers with what is to be told to whoever asked.
    pub async fn propose_here(self: &Arc<Self>, command: Command, left: Span) -> Forwarded {
        match command {
            Command::Charge(charge) => self.charge_here(charge, left).await,
            Command::GiveBack(give) => self.give_here(give, left).await,
            command => {
                let is_change = matches!(command, Command::Change(_));
                if let Command::Change(entry) = &command {
                    self.gather(entry).await;
                }
                let mut forwarded = self.append_within(command, left).await;
                if is_change && let Forwarded::Done { index, pending, .. } = &mut forwarded {
                    *pending = self.pending(*index).await;
                }
                forwarded
            }
        }
    }

    /// Appends an entry with the log time of now, and waits `left` at most until it is applied.
    pub async fn append_within(&self, command: Command, left: Span) -> Forwarded {
        let Some(consensus) = self.consensus() else {
            return Forwarded::NotLeader;
        };
        let Some(log_time) = self.log_time() else {
            return Forwarded::NotLeader;
        };
        let payload = Payload { log_time, command };
        let Ok(bytes) = postcard::to_allocvec(&payload) else {
            return Forwarded::Unavailable("the entry cannot be written".to_owned());
        };
        match consensus.propose_within(bytes, left.to_std()).await {
            Ok(proposed) => match postcard::from_bytes(&proposed.reply) {
                Ok(reply) => Forwarded::Done {
                    index: proposed.index,
                    reply,
                    pending: Vec::new(),
                },
                Err(error) => Forwarded::Unknown(error.to_string()),
            },
            Err(consensus::ProposeError::NotLeader { .. }) => Forwarded::NotLeader,
            Err(consensus::ProposeError::Unavailable(why)) => Forwarded::Unavailable(why),
            Err(consensus::ProposeError::OutcomeUnknown) => Forwarded::Unknown(
                "it was not committed in time, or leadership was lost".to_owned(),
            ),
        }
    }

    /// Regions whose disk has not confirmed the entry at `index`, after a moment for those that are quick.
    async fn pending(&self, index: u64) -> Vec<RegionName> {
        let Some(consensus) = self.consensus() else {
            return Vec::new();
        };
        let started = self.clock.stopwatch();
        loop {
            let status = consensus.status();
            let members = status.voters.into_iter().chain(status.learners);
            let behind: Vec<RegionName> = members
                .filter(|member| member.member.region != self.name)
                .filter(|member| member.matched_index.is_none_or(|matched| matched < index))
                .map(|member| member.member.region)
                .collect();
            if behind.is_empty() || started.elapsed() >= CONFIRM_WAIT {
                return behind;
            }
            tokio::time::sleep(CONFIRM_STEP.to_std()).await;
        }
    }

    /// Waits until this region has applied the entry at `index`, at most `left`.
    pub async fn wait_applied(&self, index: u64, left: Span) {
        let Some(consensus) = self.consensus() else {
            return;
        };
        let mut applied = consensus.applied();
        let reached = applied.wait_for(|applied| *applied >= index);
        if tokio::time::timeout(left.to_std(), reached).await.is_err() {
            tracing::warn!(index, "a change is committed and not yet in force here");
        }
    }
}

/// What the leader's word means for whoever asked; the inner error says that it may be tried again.
fn settled(asked: &Asked, said: Forwarded) -> Result<Result<Done, String>, ProposeError> {
    match said {
        Forwarded::Done {
            index,
            reply,
            pending,
        } => Ok(Ok(Done {
            index,
            reply,
            pending,
        })),
        Forwarded::NotLeader => Ok(Err("the leader is changing".to_owned())),
        Forwarded::Unavailable(why) if asked.is_worth_another_try() => Ok(Err(why)),
        Forwarded::Unavailable(why) => Err(ProposeError::Unavailable(why)),
        Forwarded::Unknown(why) => Err(ProposeError::OutcomeUnknown(why)),
    }
}

/// A check's reply.
pub fn charged(reply: Reply) -> Result<Charged, Reply> {
    match reply {
        Reply::Charged(charged) => Ok(charged),
        other => Err(other),
    }
}

/// The reply to units that went back.
pub fn given(reply: Reply) -> Result<Given, Reply> {
    match reply {
        Reply::Given(given) => Ok(given),
        other => Err(other),
    }
}
