//! What a leader does for the members of its cluster, and what every region does to reach them.

use std::sync::Arc;

use crate::consensus::Consensus;
use crate::consensus::Member;
use crate::domain::name::RegionName;
use crate::peer::Peers;
use crate::region::cluster::SURVEY_INTERVAL;
use crate::region::state::Region;

/// The preferred region must have been up and caught up for so many surveys before it is handed the lead.
const PREFERRED_SURVEYS: u32 = 10;
/// A leader hands over when its clock was far from the others' in so many surveys running: one that a time daemon
/// steps on all machines within a second or two is no reason, and log time does not follow steps anyhow.
const OFF_SURVEYS: u32 = 3;
/// After a hand-over the leader waits for so many surveys before it tries another.
const TRANSFER_PAUSE_SURVEYS: u32 = 10;

impl Region {
    /// Meets members, takes back those whose directory is new, and sees to it that the right region leads.
    pub(super) async fn look_after_members(self: Arc<Self>) {
        let (Some(consensus), Some(peers)) = (self.consensus(), self.peers()) else {
            return;
        };
        let mut ticks = tokio::time::interval(SURVEY_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut preferred_for = 0;
        let mut off_for = 0;
        let mut pause = 0_u32;
        loop {
            ticks.tick().await;
            self.meet_members(peers);
            if consensus.leadership().borrow().leader.is_some() {
                self.pay_debts().await;
            }
            let off = self.survey();
            if !consensus.leadership().borrow().is_ready {
                preferred_for = 0;
                off_for = 0;
                continue;
            }
            off_for = off.map_or(0, |_| off_for + 1);
            self.tell_progress(consensus);
            self.take_back(consensus, peers).await;
            pause = pause.saturating_sub(1);
            if pause > 0 {
                continue;
            }
            let preferred = self.replica.core().machine.preference().cloned();
            let near = self.voters_with_good_clocks();
            let preferred =
                preferred.filter(|region| *region != self.name && near.contains(region));
            let target = if let Some(off) = off.filter(|_| off_for >= OFF_SURVEYS) {
                tracing::warn!(
                    off_ms = off.as_ms_ceil(),
                    "this region's clock is far from the others': handing the lead over"
                );
                self.caught_up(consensus, peers, |voter| near.contains(voter))
            } else if let Some(preferred) = preferred {
                let is_there = self
                    .caught_up(consensus, peers, |voter| *voter == preferred)
                    .is_some();
                preferred_for = if is_there { preferred_for + 1 } else { 0 };
                (preferred_for >= PREFERRED_SURVEYS).then_some(preferred)
            } else {
                None
            };
            if let Some(target) = target {
                pause = TRANSFER_PAUSE_SURVEYS;
                preferred_for = 0;
                match consensus.transfer(target.clone()).await {
                    Ok(()) => tracing::info!(to = %target, "handed the lead over"),
                    Err(error) => tracing::warn!(to = %target, %error, "the lead stays here"),
                }
            }
        }
    }

    /// A voter of those wanted that is connected and whose log is as long as the leader's.
    pub(super) fn caught_up(
        &self,
        consensus: &Consensus,
        peers: &Peers,
        is_wanted: impl Fn(&RegionName) -> bool,
    ) -> Option<RegionName> {
        let status = consensus.status();
        let connected = peers.status();
        let is_there = |region: &RegionName| {
            connected
                .iter()
                .any(|peer| peer.region == *region && peer.is_connected)
        };
        status
            .voters
            .into_iter()
            .filter(|voter| voter.member.region != self.name && is_there(&voter.member.region))
            .filter(|voter| is_wanted(&voter.member.region))
            .filter(|voter| voter.matched_index >= status.committed_index)
            .max_by_key(|voter| voter.matched_index)
            .map(|voter| voter.member.region)
    }

    /// Opens links to members that the configuration does not know.
    fn meet_members(&self, peers: &Peers) {
        let members = self.replica.members();
        let known = peers.regions();
        for member in members.voters.iter().chain(&members.learners) {
            if member.region != self.name && !known.contains(&member.region) {
                peers.add(member.region.clone(), member.url.clone());
            }
        }
    }

    /// Takes back regions whose directory is a new one.
    async fn take_back(&self, consensus: &Consensus, peers: &Peers) {
        let members = self.replica.members();
        let all = || members.voters.iter().chain(&members.learners);
        for peer in peers.status() {
            let Some(identity) = peer.identity.filter(|_| peer.is_connected) else {
                continue;
            };
            // Whether it is empty does not matter: a leader before this one may have begun to fill it, and until
            // its old voter is gone that one counts for the majority.
            let is_new =
                all().any(|member| member.region == peer.region && member.voter != identity.voter);
            if is_new {
                tracing::info!(region = %peer.region, "its directory is new: taking it back as a new voter");
                let member = Member {
                    voter: identity.voter,
                    region: peer.region.clone(),
                    url: peer.url.clone(),
                };
                match consensus.add(member).await {
                    Ok(()) => tracing::info!(region = %peer.region, "it was taken back"),
                    Err(error) => {
                        tracing::warn!(region = %peer.region, %error, "it could not be taken back yet");
                    }
                }
            }
        }
    }
}
