//! What the others know of the own use: the last rounds in which it was gathered, and how much it was.

/// Rounds that are remembered.
const ROUNDS: usize = 4;

/// The own use by round of gathering.
///
/// Kept small: uses are told above `floor`, rounds by how many came after them. Both saturate, and then too
/// little is taken to be known, which only makes this region more careful.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    /// The newest round.
    newest: u64,
    /// Use that every reachable region knows.
    floor: u64,
    /// Use of each round above the floor, the oldest first.
    above: [u32; ROUNDS],
    /// How far each round but the newest is behind it.
    ages: [u16; ROUNDS - 1],
    len: u16,
}

impl Ring {
    fn age(&self, place: usize) -> u16 {
        if place + 1 == usize::from(self.len) {
            0
        } else {
            self.ages.get(place).copied().unwrap_or(0)
        }
    }

    fn used(&self, place: usize) -> u64 {
        self.floor.saturating_add(u64::from(self.above[place]))
    }

    /// The use that was gathered last.
    pub(super) fn sent(&self) -> u64 {
        match usize::from(self.len) {
            0 => self.floor,
            len => self.used(len - 1),
        }
    }

    /// The own use was `own` when it was gathered for `round`.
    pub(super) fn gathered(&mut self, round: u64, own: u64) {
        if own == self.sent() || (self.len > 0 && round < self.newest) {
            return;
        }
        if own < self.floor {
            let lowered = u32::try_from(self.floor - own).unwrap_or(u32::MAX);
            for above in self.above.iter_mut().take(usize::from(self.len)) {
                *above = above.saturating_add(lowered);
            }
            self.floor = own;
        }
        let above = u32::try_from(own - self.floor).unwrap_or(u32::MAX);
        if self.len > 0 && round == self.newest {
            self.above[usize::from(self.len) - 1] = above;
            return;
        }
        if usize::from(self.len) == ROUNDS {
            self.thin();
        }
        let passed = u16::try_from(round.saturating_sub(self.newest)).unwrap_or(u16::MAX);
        for (place, age) in self.ages.iter_mut().enumerate() {
            if place < usize::from(self.len) {
                let before = if place + 1 == usize::from(self.len) {
                    0
                } else {
                    *age
                };
                *age = before.saturating_add(passed);
            }
        }
        self.above[usize::from(self.len)] = above;
        self.len += 1;
        self.newest = round;
    }

    /// Makes room: forgets the round whose neighbours are nearest to each other, never the oldest one.
    fn thin(&mut self) {
        let gap = |place: &usize| {
            let after = self.age(place + 1);
            self.age(place - 1).saturating_sub(after)
        };
        let forgotten = (1..ROUNDS - 1).min_by_key(gap).unwrap_or(1);
        // A use that fell and rose again stays in mind.
        self.above[forgotten - 1] = self.above[forgotten - 1].min(self.above[forgotten]);
        self.forget(forgotten);
    }

    fn forget(&mut self, place: usize) {
        for later in place..usize::from(self.len) - 1 {
            self.above[later] = self.above[later + 1];
            if later < ROUNDS - 1 {
                self.ages[later] = self.age(later + 1);
            }
        }
        self.len -= 1;
    }

    /// The least that a region may take the own use for that has merged everything up to `acked`.
    pub(super) fn known_by(&self, acked: u64) -> u64 {
        let len = usize::from(self.len);
        let merged = (0..len)
            .rev()
            .find(|place| self.newest.saturating_sub(u64::from(self.age(*place))) <= acked);
        match merged {
            Some(merged) => (merged..len).map(|place| self.used(place)).min(),
            None => None,
        }
        .unwrap_or(self.floor)
    }

    /// What all regions know that have merged everything up to `acked`: the least that any of them may
    /// take the own use for.
    pub(super) fn known(&mut self, acked: u64) -> u64 {
        while self.len > 0 && self.newest.saturating_sub(u64::from(self.age(0))) <= acked {
            // A use that fell since may be what some of them know by now.
            let entries = self.above.iter().take(usize::from(self.len));
            let raised = entries.min().copied().unwrap_or(0);
            for above in self.above.iter_mut().take(usize::from(self.len)) {
                *above -= raised;
            }
            self.floor = self.floor.saturating_add(u64::from(raised));
            self.forget(0);
        }
        self.floor
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prop_assert;
    use proptest::proptest;

    use super::*;

    #[test]
    fn what_is_known_is_what_was_gathered_in_the_last_acked_round() {
        let mut ring = Ring::default();
        for (round, own) in [(3, 10), (5, 25), (9, 40)] {
            ring.gathered(round, own);
        }
        assert_eq!(ring.sent(), 40);
        assert_eq!(
            [0, 3, 4, 5, 8, 9].map(|acked| ring.known_by(acked)),
            [0, 10, 10, 25, 25, 40]
        );
        assert_eq!(
            [2, 4, 8, 20].map(|acked| ring.known(acked)),
            [0, 10, 25, 40]
        );
        assert_eq!(ring.sent(), 40);
        // Nothing is unlearned.
        assert_eq!(ring.known(0), 40);
    }

    #[test]
    fn use_that_did_not_change_needs_no_new_round() {
        let mut ring = Ring::default();
        ring.gathered(1, 10);
        ring.gathered(7, 10);
        assert_eq!(ring.known(1), 10);
    }

    #[test]
    fn use_that_fell_is_taken_at_its_least() {
        let mut ring = Ring::default();
        ring.gathered(1, 10);
        ring.gathered(2, 4);
        ring.gathered(3, 8);
        assert_eq!(ring.known(1), 4);
        assert_eq!(ring.known(2), 4);
        assert_eq!(ring.known(3), 8);
        ring.gathered(4, 5);
        assert_eq!(ring.known(3), 5);
    }

    #[test]
    fn the_newest_and_the_oldest_round_are_kept() {
        let mut ring = Ring::default();
        for round in 1..=1_000 {
            ring.gathered(round, round);
        }
        assert_eq!(ring.sent(), 1_000);
        assert_eq!(ring.known_by(1_000), 1_000);
        assert_eq!(ring.known_by(1), 1);
    }

    #[test]
    fn huge_uses_and_gaps_only_make_it_careful() {
        let mut ring = Ring::default();
        ring.gathered(1, 1 << 60);
        assert_eq!(ring.known_by(1), u64::from(u32::MAX));
        ring.gathered(1 << 60, u64::MAX);
        ring.gathered(u64::MAX, 0);
        assert_eq!(ring.known(1), 0);
        ring.gathered(2, 5);
        assert_eq!(ring.known(u64::MAX), 0);
    }

    proptest! {
        /// Against a list of everything: never more is taken to be known than may be.
        #[test]
        fn it_never_tells_more_than_the_others_know(
            steps in vec((1_u64..5_000, 0_u64..60, 0_u64..8), 1..60),
        ) {
            let mut ring = Ring::default();
            let (mut all, mut round, mut acked) = (vec![(0_u64, 0_u64)], 0, 0);
            for (gap, own, lag) in steps {
                round += gap;
                ring.gathered(round, own);
                all.push((round, own));
                let seen = all[all.len().saturating_sub(1 + lag as usize)].0;
                acked = acked.max(seen);
                let merged = all.iter().rposition(|(round, _)| *round <= acked).unwrap_or(0);
                let least = all[merged..].iter().map(|(_, own)| *own).min().unwrap_or(0);
                prop_assert!(ring.known_by(acked) <= least);
                if lag % 2 == 0 {
                    prop_assert!(ring.known(acked) <= least);
                }
            }
            prop_assert!(ring.known(round) == all[all.len() - 1].1);
        }
    }
}
