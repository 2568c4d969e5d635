//! How far each member's copy of the log is. The leader alone knows it; it tells all members once a second,
//! so that whoever is asked can say it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use crate::consensus::Consensus;
use crate::consensus::Status;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::region::outbox::Words;
use crate::region::state::Region;

/// What the leader told longer ago than this says nothing of now.
const TOLD_WITHIN: Span = Span::from_seconds(5);

/// How far the log and its copies are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The leader's term.
    pub term: u64,
    /// Index of the leader's last entry.
    pub last_index: u64,
    /// Index up to which the copy of each other member is known to be the same; absent: nothing is known.
    pub matched: BTreeMap<RegionName, u64>,
}

/// What was heard, and when.
#[derive(Debug)]
pub struct Heard {
    at: Span,
    progress: Progress,
}

impl Progress {
    /// As the leader knows it; `None` when `status` is not a leader's.
    fn of(status: &Status) -> Option<Self> {
        let members = status.voters.iter().chain(&status.learners);
        status.is_ready.then(|| Self {
            term: status.term,
            last_index: status.last_log_index.unwrap_or(0),
            matched: members
                .filter_map(|member| Some((member.member.region.clone(), member.matched_index?)))
                .collect(),
        })
    }
}

impl Region {
    /// Tells the other members how far they are. Does nothing where this region does not lead.
    pub fn tell_progress(&self, consensus: &Consensus) {
        let Some(progress) = Progress::of(&consensus.status()) else {
            return;
        };
        let members = self.replica.members();
        for member in members.voters.iter().chain(&members.learners) {
            if member.region != self.name {
                self.tell(&member.region, &Words::Progress(progress.clone()));
            }
        }
    }

    /// Takes in what the leader told.
    pub fn hear_progress(&self, progress: Progress) {
        let at = self.clock.uptime();
        *self.progress.lock() = Some(Heard { at, progress });
    }

    /// How far the members are, as the leader knows it or told lately.
    pub fn progress(&self, status: &Status) -> Option<Progress> {
        if let Some(own) = Progress::of(status) {
            return Some(own);
        }
        let now = self.clock.uptime();
        let heard = self.progress.lock();
        let heard = heard.as_ref()?;
        let is_fresh = now.minus(heard.at) <= TOLD_WITHIN && heard.progress.term == status.term;
        is_fresh.then(|| heard.progress.clone())
    }
}
