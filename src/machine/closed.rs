//! How strict windows were used that the book has closed, for those who ask later.
//!
//! Part of the replicated state, so bounded by numbers that are the same in every member: the oldest go first
//! when there are too many, and each goes when it is old. Windows close in the order of their ends, so the
//! oldest stand first.

use std::collections::VecDeque;

use serde::Deserialize;
use serde::Serialize;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::book::Proof;

/// Closed windows that are kept, over all tenants.
pub const CLOSED_MAX: usize = 10_000;
/// How long after its end a closed window is kept: the longest that `strict.keep_closed` can ask for.
pub const CLOSED_KEPT: Span = Span::from_seconds(3_650 * 86_400);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed(VecDeque<Proof>);

impl Closed {
    /// Keeps `proofs`, which ended no earlier than those that were kept before, and forgets what is too old
    /// at `now` or too much.
    pub fn keep(&mut self, proofs: Vec<Proof>, now: Timestamp) {
        self.0.extend(proofs);
        let oldest = now.minus(CLOSED_KEPT);
        while self.0.len() > CLOSED_MAX
            || self
                .0
                .front()
                .is_some_and(|proof| proof.window.end <= oldest)
        {
            self.0.pop_front();
        }
    }

    /// The window of a counter that contains `at`; of several epochs the newest one's.
    pub fn find(&self, tenant: &str, limit: &str, key: &str, at: Timestamp) -> Option<&Proof> {
        self.0
            .iter()
            .filter(|proof| {
                let Proof {
                    account, window, ..
                } = proof;
                (window.start..window.end).contains(&at)
                    && account.key == key
                    && account.limit.as_str() == limit
                    && account.tenant == tenant
            })
            .max_by_key(|proof| proof.account.epoch)
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use crate::domain::name::LimitName;
    use crate::domain::time::Window;
    use crate::grants::account::Account;

    use super::*;

    /// The window of minute `minute`, of the epoch `epoch`.
    fn proof(minute: u64, epoch: u64) -> Proof {
        let start = Timestamp::EPOCH.plus(Span::from_seconds(60 * minute));
        Proof {
            account: Account {
                tenant: "t".into(),
                limit: LimitName::new("exports").expect("a name"),
                key: "k".into(),
                epoch,
            },
            window: Window::aligned(start, Span::from_seconds(60)),
            quota: 5,
            quota_max: 5,
            free: 5,
            withheld: 0,
            earned: 0,
            rows: Vec::new(),
        }
    }

    fn minute(minute: u64) -> Timestamp {
        Timestamp::EPOCH.plus(Span::from_seconds(60 * minute + 30))
    }

    #[test]
    fn a_window_is_found_by_its_counter_and_a_time_inside_it() {
        let mut closed = Closed::default();
        closed.keep(vec![proof(1, 7), proof(1, 9), proof(2, 7)], minute(3));
        let find = |key, at| closed.find("t", "exports", key, at);
        let epoch = |key, at| find(key, at).map(|proof| proof.account.epoch);
        assert_eq!(epoch("k", minute(1)), Some(9));
        assert_eq!(epoch("k", minute(2)), Some(7));
        assert_eq!(epoch("k", minute(3)), None);
        assert_eq!(epoch("", minute(1)), None);
        assert!(closed.find("u", "exports", "k", minute(1)).is_none());
        assert!(closed.find("t", "imports", "k", minute(1)).is_none());
        let edge = Timestamp::EPOCH.plus(Span::from_seconds(120));
        assert_eq!(epoch("k", edge), Some(7), "the end belongs to the next");
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_too_old() {
        let mut closed = Closed::default();
        let many = u64::try_from(CLOSED_MAX).expect("fits") + 3;
        closed.keep(
            (0..many).map(|minute| proof(minute, 1)).collect(),
            minute(many),
        );
        assert_eq!(closed.len(), CLOSED_MAX);
        assert!(closed.find("t", "exports", "k", minute(2)).is_none());
        assert!(closed.find("t", "exports", "k", minute(3)).is_some());
        let end_of_minute_3 = Timestamp::EPOCH.plus(Span::from_seconds(240));
        closed.keep(Vec::new(), end_of_minute_3.plus(CLOSED_KEPT));
        assert_eq!(closed.len(), CLOSED_MAX - 1);
        assert!(closed.find("t", "exports", "k", minute(3)).is_none());
        assert!(closed.find("t", "exports", "k", minute(4)).is_some());
    }
}
