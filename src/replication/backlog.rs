//! What one peer is owed: counters whose newest gathered counts it may not have.
//!
//! Each counter stands here once, with the first and the last of the rounds whose gathering it is owed for.
//! The oldest debt is paid first, so what a peer has acknowledged moves on in order. A list per first round
//! finds it; when a debt shrinks or is paid, its old place in a list is left behind and passed over later.

use std::collections::BTreeMap;

use ahash::RandomState;
use hashbrown::HashMap;

use crate::replication::sender::Ref;

/// Lists may hold this many places that were left behind, beside as many as there are debts.
const STALE_MAX: usize = 1024;

/// Rounds that gathered a counter and that the peer may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owed {
    /// None before this one.
    pub(crate) first: u64,
    /// None after this one.
    pub(crate) last: u64,
}

impl Owed {
    pub(crate) const fn of(round: u64) -> Self {
        Self {
            first: round,
            last: round,
        }
    }
}

/// The debts.
#[derive(Debug)]
pub(crate) struct Backlog {
    owed: HashMap<Ref, Owed, RandomState>,
    by_first: BTreeMap<u64, Vec<Ref>>,
    listed: usize,
}

impl Backlog {
    pub(crate) fn new() -> Self {
        Self {
            owed: HashMap::with_hasher(RandomState::with_seeds(5, 6, 7, 8)),
            by_first: BTreeMap::new(),
            listed: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.owed.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// The oldest round that a counter is owed for.
    pub(crate) fn first(&self) -> Option<u64> {
        // `trim` leaves a debt that stands in the first list.
        self.by_first.first_key_value().map(|(round, _)| *round)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    /// Adds debts.
    pub(crate) fn add(&mut self, debts: impl IntoIterator<Item = (Ref, Owed)>) {
        for (place, more) in debts {
            let known = self.owed.get_mut(&place);
            let is_listed = known.as_ref().is_some_and(|k| k.first <= more.first);
            match known {
                Some(known) => {
                    known.first = known.first.min(more.first);
                    known.last = known.last.max(more.last);
                }
                None => {
                    self.owed.insert(place, more);
                }
            }
            if !is_listed {
                self.list(place, more.first);
            }
        }
        self.trim();
    }

    /// The peer has merged each of `places` as it stood in `round` or later.
    pub(crate) fn settle(&mut self, places: impl IntoIterator<Item = Ref>, round: u64) {
        if self.owed.is_empty() {
            return;
        }
        for place in places {
            let Some(owed) = self.owed.get_mut(&place) else {
                continue;
            };
            if owed.last <= round {
                self.owed.remove(&place);
            } else if owed.first <= round {
                // Some later round gathered it; which one is not kept, so it counts as the very next.
                owed.first = round + 1;
                self.list(place, round + 1);
            }
        }
        self.trim();
    }

    /// Takes out up to `count` of the oldest debts.
    pub(crate) fn take(&mut self, count: usize) -> Vec<(Ref, Owed)> {
        let mut taken = Vec::with_capacity(count.min(self.owed.len()));
        while taken.len() < count
            && let Some(mut list) = self.by_first.first_entry()
        {
            let first = *list.key();
            match list.get_mut().pop() {
                Some(place) => {
                    self.listed -= 1;
                    if self
                        .owed
                        .get(&place)
                        .is_some_and(|owed| owed.first == first)
                        && let Some(owed) = self.owed.remove(&place)
                    {
                        taken.push((place, owed));
                    }
                }
                None => {
                    list.remove();
                }
            }
        }
        self.trim();
        taken
    }

    fn list(&mut self, place: Ref, first: u64) {
        self.by_first.entry(first).or_default().push(place);
        self.listed += 1;
    }

    fn trim(&mut self) {
        if self.owed.is_empty() {
            self.by_first.clear();
            self.listed = 0;
            return;
        }
        if self.listed > 2 * self.owed.len() + STALE_MAX {
            self.by_first.clear();
            for (place, owed) in &self.owed {
                self.by_first.entry(owed.first).or_default().push(*place);
            }
            self.listed = self.owed.len();
        }
        while let Some(mut list) = self.by_first.first_entry() {
            let first = *list.key();
            match list.get().last() {
                Some(place) if self.owed.get(place).is_some_and(|o| o.first == first) => return,
                Some(_) => {
                    list.get_mut().pop();
                    self.listed -= 1;
                }
                None => {
                    list.remove();
                }
            }
        }
    }
}
