//! How far each voter's log is known to have come, remembered while the process lives.
//!
//! A voter that acknowledged an entry has it on disk and never loses it. One whose log is found shorter was
//! given an old copy of its directory under the same voter id, and has forgotten votes and entries that
//! others rely on: it is refused from then on.
//!
//! Two things prove that a log went back. Within one term only the leader of the term changes a follower's
//! log, so a follower that acknowledged a place to it cannot lack an earlier one. And what was acknowledged
//! and is committed stays for ever, so that the last entry of a voter is never before it.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::store::LogPlace;

#[derive(Clone, Copy, Default)]
struct Known {
    /// Acknowledged to this member as the leader of `term`.
    term: u64,
    acked: Option<LogPlace>,
    /// Acknowledged and committed.
    kept: Option<LogPlace>,
    went_back: bool,
}

/// What is known of all voters that ever answered.
#[derive(Default)]
pub(super) struct Reach {
    voters: Mutex<BTreeMap<u64, Known>>,
}

impl Reach {
    /// `voter` has everything up to `place` on disk, says its answer to the leader of `term`.
    pub fn acked(
        &self,
        voter: u64,
        term: u64,
        place: Option<LogPlace>,
        committed: Option<LogPlace>,
    ) {
        let mut voters = self.voters.lock();
        let known = voters.entry(voter).or_default();
        if known.term == term {
            known.acked = known.acked.max(place);
        } else {
            known.term = term;
            known.acked = place;
        }
        known.kept = known.kept.max(place.min(committed));
    }

    /// `voter` lacks `place`, says its answer to the leader of `term`. Answers whether that is possible.
    pub fn lacks(&self, voter: u64, term: u64, place: LogPlace) -> bool {
        let mut voters = self.voters.lock();
        let known = voters.entry(voter).or_default();
        let has_had = known.term == term && known.acked >= Some(place);
        known.went_back |= has_had || known.kept >= Some(place);
        !known.went_back
    }

    /// `last` is the last entry of `voter`. Answers whether that is possible.
    pub fn ends_with(&self, voter: u64, last: Option<LogPlace>) -> bool {
        let mut voters = self.voters.lock();
        let known = voters.entry(voter).or_default();
        known.went_back |= last < known.kept;
        !known.went_back
    }

    /// Whether the log of `voter` is known to have gone back.
    pub fn went_back(&self, voter: u64) -> bool {
        let voters = self.voters.lock();
        voters.get(&voter).is_some_and(|known| known.went_back)
    }

    /// Forgets everyone who is not a member any more.
    pub fn retain(&self, is_member: impl Fn(u64) -> bool) {
        self.voters.lock().retain(|voter, _| is_member(*voter));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(term: u64, index: u64) -> LogPlace {
        LogPlace { term, index }
    }

    #[test]
    fn a_log_that_lacks_what_it_acknowledged_in_the_same_term_went_back() {
        let reach = Reach::default();
        reach.acked(1, 3, Some(at(3, 10)), None);
        assert!(reach.lacks(1, 3, at(3, 11)));
        assert!(!reach.lacks(1, 3, at(3, 10)));
        assert!(reach.went_back(1));
        assert!(!reach.went_back(2));
    }

    #[test]
    fn what_was_not_committed_may_be_gone_in_a_later_term() {
        let reach = Reach::default();
        reach.acked(1, 3, Some(at(3, 10)), Some(at(3, 7)));
        assert!(reach.ends_with(1, Some(at(3, 7))));
        assert!(reach.lacks(1, 4, at(3, 10)));
        assert!(!reach.ends_with(1, Some(at(3, 6))));
        assert!(reach.went_back(1));
    }

    #[test]
    fn what_is_no_member_is_forgotten() {
        let reach = Reach::default();
        reach.acked(1, 3, Some(at(3, 10)), Some(at(3, 10)));
        assert!(!reach.ends_with(1, None));
        reach.retain(|voter| voter != 1);
        assert!(!reach.went_back(1));
    }
}
