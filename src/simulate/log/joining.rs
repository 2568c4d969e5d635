//! How a region whose directory is another one than before takes part again, in the product's steps: it is told everything
//! as a learner; then the old voters and the new ones decide together, by a majority of each; then the new ones alone.
//!
//! Without the old majority a leader that was replaced without knowing it, and the directory that it fills, would commit
//! what the others have never seen.

use crate::domain::time::Span;

use super::Node;
use super::Outbox;
use super::Voter;
use super::disk::Body;
use super::disk::Disk;
use super::disk::Members;

/// Entries that a learner may lack when it becomes a voter.
const LAG_MAX: u64 = 1_000;

impl Node {
    /// One step towards taking a directory in, once the step before is committed.
    pub fn take_back(&mut self, disk: &mut Disk, boot: Span, out: &mut Outbox) {
        if !self.leads() || !disk.are_members_settled() {
            return;
        }
        let next = disk
            .members()
            .and_then(|members| self.next_members(disk, members));
        if let Some(members) = next {
            self.propose(disk, boot, Body::Members(members), out);
        }
    }

    /// Ends a change that this leader, or one before it, has begun: both majorities would be needed for ever.
    pub(super) fn finish_change(&mut self, disk: &mut Disk, boot: Span, out: &mut Outbox) {
        let is_joint = disk.members().is_some_and(|it| it.voters.len() > 1);
        if is_joint {
            self.take_back(disk, boot, out);
        }
    }

    fn next_members(&self, disk: &Disk, members: &Members) -> Option<Members> {
        let mut next = members.clone();
        if let [_, new] = members.voters.as_slice() {
            next.voters = vec![new.clone()];
            return Some(next);
        }
        let there = self.peers.iter().enumerate();
        let there = there.filter_map(|(region, peer)| Some(((region, peer.voter?), peer)));
        let is_voting = |(region, _): Voter| {
            let mut voters = members.voters.iter().flatten();
            voters.any(|(voting, _)| *voting == region)
        };
        for (member, peer) in there {
            if members.has_voter(member) || member.0 == self.own {
                continue;
            }
            if !members.learners.contains(&member) {
                next.learners.retain(|(region, _)| *region != member.0);
                next.learners.push(member);
                return Some(next);
            }
            let is_near = peer.matched > 0 && peer.matched + LAG_MAX >= disk.last().0;
            if is_voting(member) && is_near {
                next.learners.retain(|known| *known != member);
                let replace = |voter: &Voter| if voter.0 == member.0 { member } else { *voter };
                let old = members.voters.first()?;
                next.voters.push(old.iter().map(replace).collect());
                return Some(next);
            }
        }
        None
    }
}
