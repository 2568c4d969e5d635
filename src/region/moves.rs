//! Planned moves: another leader, a region more or less, and who should lead.
//!
//! Whatever region is asked, the leader carries a move out; it is asked once, since a move that it turned
//! down would be turned down again, and one whose outcome is not known may still be under way. What can be
//! told at once from this region's own view is refused before that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Deserialize;
use serde::Serialize;
use thiserror::Error;

use crate::consensus;
use crate::consensus::Consensus;
use crate::consensus::Member;
use crate::consensus::Membership;
use crate::consensus::Status;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::machine::command::Command;
use crate::machine::command::Reply;
use crate::region::proposals::Forwarded;
use crate::region::proposals::ProposeError;
use crate::region::proposals::WRITE_DEADLINE;
use crate::region::state::Region;

/// How long a planned move may take.
pub const MOVE_DEADLINE: Span = Span::from_seconds(35);
/// How long the leader waits for a link to a region that is to be taken in.
const LINK_WITHIN: Span = Span::from_seconds(5);
/// How long the region that was asked waits until it sees what the leader has done.
const SEEN_WITHIN: Span = Span::from_seconds(2);
const LOOK_STEP: Duration = Duration::from_millis(20);

/// What one region asks the leader for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Asked {
    /// To append an entry.
    Propose(Box<Command>),
    /// To hand the lead to a region.
    Transfer(RegionName),
    /// To take a region in.
    Add {
        /// Which.
        region: RegionName,
        /// Its peer listener.
        url: String,
    },
    /// To let a region go.
    Remove(RegionName),
}

impl Asked {
    /// Whether it may be asked again when the leader says that it cannot be done now.
    pub const fn is_worth_another_try(&self) -> bool {
        matches!(self, Self::Propose(_))
    }
}

/// Why a move was not made.
#[derive(Debug, Error)]
pub enum MoveError {
    /// This region does not belong to a cluster.
    #[error("this region has not joined a cluster yet; ask one that has")]
    NotJoined,
    /// No such region belongs to the cluster.
    #[error("{0} is none of the cluster's regions")]
    NoMember(RegionName),
    /// The region has no vote.
    #[error("{0} is a learner: it has no vote and cannot lead")]
    NoVote(RegionName),
    /// Nobody said where the region is.
    #[error("{0} is not among this region's peers: say where its peer listener is, with url")]
    NoAddress(RegionName),
    /// The region is a member, elsewhere.
    #[error(
        "{region} is a member already, at {url}; let it go first, or change its address in the regions' files"
    )]
    OtherAddress {
        /// Which.
        region: RegionName,
        /// Where it is known to be.
        url: String,
    },
    /// The region is the only one.
    #[error("{0} is the last region of the cluster and cannot be let go")]
    LastOne(RegionName),
    /// The region leads.
    #[error("{0} leads: hand the lead to another region first")]
    Leads(RegionName),
    /// The leader did not do it, or nobody knows.
    #[error(transparent)]
    Failed(#[from] ProposeError),
}

impl Region {
    /// Hands the lead to `to`, and waits until this region sees it lead.
    ///
    /// # Errors
    /// When `to` has no vote here, there is no leader, or `to` does not take the lead.
    pub async fn transfer(self: &Arc<Self>, to: RegionName) -> Result<(), MoveError> {
        self.check_voter(&to)?;
        self.ask_leader(Asked::Transfer(to.clone()), MOVE_DEADLINE)
            .await?;
        self.look_until(|region| region.leader().is_some_and(|leader| leader == to))
            .await;
        Ok(())
    }

    /// Says which region should lead; `None`: any.
    ///
    /// # Errors
    /// When it has no vote here, or the log does not take it.
    pub async fn prefer(self: &Arc<Self>, region: Option<RegionName>) -> Result<(), MoveError> {
        if let Some(region) = &region {
            self.check_voter(region)?;
        }
        self.propose(Command::Prefer(region), WRITE_DEADLINE)
            .await?;
        Ok(())
    }

    /// Takes a region into the cluster; where it is, is known or told by `url`. Does nothing for a member.
    ///
    /// # Errors
    /// When nobody knows where it is, it is not there, or the log does not take it.
    pub async fn take_in(
        self: &Arc<Self>,
        region: RegionName,
        url: Option<String>,
    ) -> Result<Arc<Membership>, MoveError> {
        let members = self.joined()?;
        if let Some((member, _)) = find(&members, &region) {
            let is_there = url.is_none_or(|url| url == member.url);
            return if is_there {
                Ok(members)
            } else {
                Err(MoveError::OtherAddress {
                    url: member.url.clone(),
                    region,
                })
            };
        }
        let known = || {
            let peers = self.peer_status().into_iter();
            let mut found = peers.filter(|peer| peer.region == region);
            found.next().map(|peer| peer.url)
        };
        let url = url
            .or_else(known)
            .ok_or_else(|| MoveError::NoAddress(region.clone()))?;
        let asked = Asked::Add {
            region: region.clone(),
            url,
        };
        self.ask_leader(asked, MOVE_DEADLINE).await?;
        self.look_until(|here| find(&here.replica.members(), &region).is_some())
            .await;
        Ok(self.replica.members())
    }

    /// Lets a region go: it has no part in the cluster any more, and is granted nothing.
    ///
    /// # Errors
    /// When it is no member, the last one, or leads, or the log does not take it.
    pub async fn let_go(
        self: &Arc<Self>,
        region: RegionName,
    ) -> Result<Arc<Membership>, MoveError> {
        let members = self.joined()?;
        if find(&members, &region).is_none() {
            return Err(MoveError::NoMember(region));
        }
        if members.voters.len() + members.learners.len() == 1 {
            return Err(MoveError::LastOne(region));
        }
        if self.leader().is_some_and(|leader| leader == region) {
            return Err(MoveError::Leads(region));
        }
        self.ask_leader(Asked::Remove(region.clone()), MOVE_DEADLINE)
            .await?;
        self.look_until(|here| find(&here.replica.members(), &region).is_none())
            .await;
        Ok(self.replica.members())
    }

    /// Whether this region leads and has heard no majority lately: another may have been elected by those that it does
    /// not hear, and nothing that it is asked for can come to be.
    pub fn leads_without_majority(&self) -> bool {
        let leads = |consensus: &Consensus| consensus.leadership().borrow().is_self;
        !self.has_majority.load(Ordering::Relaxed) && self.consensus().is_some_and(leads)
    }

    /// How consensus stands. A region that leads without a majority does not say that it leads.
    pub fn consensus_status(&self) -> Status {
        let mut status = self.consensus().map(Consensus::status).unwrap_or_default();
        if self.leads_without_majority() {
            status.leader = None;
            status.is_ready = false;
        }
        status
    }

    /// Who leads, as far as this region knows.
    pub fn leader(&self) -> Option<RegionName> {
        if self.leads_without_majority() {
            return None;
        }
        let leadership = self.consensus()?.leadership();
        let leader = leadership.borrow().leader.clone();
        leader.map(|leader| leader.region)
    }

    fn joined(&self) -> Result<Arc<Membership>, MoveError> {
        let members = self.replica.members();
        if members.voters.is_empty() {
            return Err(MoveError::NotJoined);
        }
        Ok(members)
    }

    fn check_voter(&self, region: &RegionName) -> Result<(), MoveError> {
        let members = self.joined()?;
        match find(&members, region) {
            Some((_, true)) => Ok(()),
            Some((_, false)) => Err(MoveError::NoVote(region.clone())),
            None => Err(MoveError::NoMember(region.clone())),
        }
    }

    /// Waits a moment until `seen`: what the leader has done reaches this region a little later.
    async fn look_until(&self, seen: impl Fn(&Self) -> bool) {
        let started = self.clock.stopwatch();
        while !seen(self) && started.elapsed() < SEEN_WITHIN {
            tokio::time::sleep(LOOK_STEP).await;
        }
    }

    // The leader's side.

    /// Carries out what another region asks the leader for.
    pub async fn serve_asked(self: Arc<Self>, asked: Asked, left: Span) -> Forwarded {
        match asked {
            Asked::Propose(command) => self.propose_here(*command, left).await,
            Asked::Transfer(to) => {
                self.moved(|consensus| async move { consensus.transfer(to).await })
                    .await
            }
            Asked::Add { region, url } => match self.newcomer(&region, url).await {
                Ok(member) => {
                    self.moved(|consensus| async move { consensus.add(member).await })
                        .await
                }
                Err(why) => Forwarded::Unavailable(why),
            },
            Asked::Remove(region) => self.remove(region).await,
        }
    }

    async fn remove(self: &Arc<Self>, region: RegionName) -> Forwarded {
        if region == self.name {
            return Forwarded::Unavailable(MoveError::Leads(region).to_string());
        }
        let going = region.clone();
        let removed = self
            .moved(|consensus| async move { consensus.remove(going).await })
            .await;
        if matches!(removed, Forwarded::Done { .. })
            && !matches!(
                self.append_within(Command::Depart(region.clone()), WRITE_DEADLINE)
                    .await,
                Forwarded::Done { .. }
            )
        {
            tracing::warn!(%region, "it is no member any more; what it holds of strict limits counts as held until its windows end");
        }
        removed
    }

    async fn moved<F>(&self, act: impl FnOnce(Consensus) -> F) -> Forwarded
    where
        F: Future<Output = Result<(), consensus::ProposeError>>,
    {
        let Some(consensus) = self.consensus() else {
            return Forwarded::NotLeader;
        };
        match act(consensus.clone()).await {
            Ok(()) => Forwarded::Done {
                index: 0,
                reply: Reply::Done,
                pending: Vec::new(),
            },
            Err(consensus::ProposeError::NotLeader { .. }) => Forwarded::NotLeader,
            Err(consensus::ProposeError::Unavailable(why)) => Forwarded::Unavailable(why),
            Err(consensus::ProposeError::OutcomeUnknown) => {
                Forwarded::Unknown("it was not finished in time; look at the status".to_owned())
            }
        }
    }

    /// The member that `region` would be: it must be connected, to know its voter id.
    async fn newcomer(&self, region: &RegionName, url: String) -> Result<Member, String> {
        let Some(peers) = self.peers() else {
            return Err("this region has no links".to_owned());
        };
        peers.add(region.clone(), url.clone());
        let voter = || {
            let known = peers.status().into_iter();
            let mut known = known.filter(|peer| peer.region == *region && peer.is_connected);
            known.next()?.identity.map(|identity| identity.voter)
        };
        let started = self.clock.stopwatch();
        loop {
            if let Some(voter) = voter() {
                return Ok(Member {
                    voter,
                    region: region.clone(),
                    url,
                });
            }
            if started.elapsed() >= LINK_WITHIN {
                return Err(format!(
                    "the leader, {}, has no link to {region} at {url}: start it, with the cluster's regions among its peers",
                    self.name
                ));
            }
            tokio::time::sleep(LOOK_STEP).await;
        }
    }
}

/// The member called `region`, and whether it votes.
fn find<'m>(members: &'m Membership, region: &RegionName) -> Option<(&'m Member, bool)> {
    let voters = members.voters.iter().map(|member| (member, true));
    let learners = members.learners.iter().map(|member| (member, false));
    voters
        .chain(learners)
        .find(|(member, _)| member.region == *region)
}
