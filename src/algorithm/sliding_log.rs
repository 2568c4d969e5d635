//! Sliding log: every charge with its instant; exact, memory in proportion to calls made.
//!
//! An entry counts while now − entry < window. admit ⇔ used + asked ≤ quota; come back when enough of the
//! oldest entries have ended. A refund lowers the newest entries.
//!
//! Entries are named so that their persisted forms can be joined: those of this process by a counting
//! number, those that an earlier process wrote by the stamp it gave them. The two kinds stand in queues of
//! their own, each oldest first, so the names of this process's entries never move.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::VecDeque;

use serde::Deserialize;
use serde::Serialize;

use crate::algorithm::Admission;
use crate::algorithm::Standing;
use crate::algorithm::rebased;
use crate::domain::stamp::Stamp;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// One charge in a sliding log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// When it was charged.
    pub at: Timestamp,
    /// What is left of the charge after refunds.
    pub cost: u64,
}

impl LogEntry {
    /// Takes up to `units` off the entry; returns how many.
    fn lower(&mut self, units: u64) -> u64 {
        let lowered = units.min(self.cost);
        self.cost -= lowered;
        lowered
    }
}

/// A log of charges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// Entries of earlier processes, oldest first.
    inherited: VecDeque<(Stamp, LogEntry)>,
    /// Entries of this process, oldest first.
    own: VecDeque<LogEntry>,
    /// The number of `own[0]`.
    first: u64,
    /// What all entries cost; more than 64 bits so that no sum of costs is ever cut off.
    used: u128,
    /// Own entries below this number have been handed out for disk.
    clean_below: u64,
    /// Of those, the ones that were lowered since.
    lowered: BTreeSet<u64>,
    /// Inherited entries that were lowered since they were last handed out.
    lowered_inherited: BTreeSet<Stamp>,
}

impl Log {
    /// Drops the entries that have ended.
    pub fn advance(&mut self, window: Span, now: Timestamp) {
        if self
            .newest()
            .is_some_and(|newest| rebased(newest, now) != newest)
        {
            let inherited = self.inherited.iter_mut().map(|(_, entry)| entry);
            for entry in inherited.chain(&mut self.own) {
                entry.at = entry.at.min(now);
            }
        }
        let ended = |entry: &LogEntry| now.since(entry.at) >= window;
        while let Some((_, entry)) = self.inherited.pop_front_if(|(_, entry)| ended(entry)) {
            self.used -= u128::from(entry.cost);
        }
        while let Some(entry) = self.own.pop_front_if(|entry| ended(entry)) {
            self.used -= u128::from(entry.cost);
            self.first += 1;
        }
        if self.own.capacity() > 64 && self.own.len() < self.own.capacity() / 4 {
            self.own.shrink_to(self.own.len() * 2);
        }
        if self.inherited.is_empty() && self.inherited.capacity() > 0 {
            self.inherited = VecDeque::new();
            self.lowered_inherited.clear();
        }
    }

    /// Units in use.
    pub fn used(&self) -> u64 {
        u64::try_from(self.used).unwrap_or(u64::MAX)
    }

    /// When the oldest entry was charged.
    pub fn oldest(&self) -> Option<Timestamp> {
        let inherited = self.inherited.front().map(|(_, entry)| entry.at);
        let own = self.own.front().map(|entry| entry.at);
        match (inherited, own) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    /// When the newest entry was charged, whether or not anything is left of it.
    pub fn newest(&self) -> Option<Timestamp> {
        let inherited = self.inherited.back().map(|(_, entry)| entry.at);
        inherited.max(self.own.back().map(|entry| entry.at))
    }

    /// When the newest entry that still takes units was charged.
    fn newest_in_use(&self) -> Option<Timestamp> {
        let inherited = self.inherited.iter().rev().map(|(_, entry)| entry);
        let inherited = inherited.into_iter().find(|entry| entry.cost > 0);
        let own = self.own.iter().rev().find(|entry| entry.cost > 0);
        inherited
            .map(|entry| entry.at)
            .max(own.map(|entry| entry.at))
    }

    /// Calls that are remembered.
    pub fn len(&self) -> usize {
        self.inherited.len() + self.own.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// May `asked` units pass? Call [`Log::advance`] first.
    pub fn admission(&self, quota: u64, window: Span, asked: u64, now: Timestamp) -> Admission {
        if asked > quota {
            return Admission::Never;
        }
        let wanted = self.used.saturating_add(u128::from(asked));
        let mut excess = wanted.saturating_sub(u128::from(quota));
        if excess == 0 {
            return Admission::Pass;
        }
        let mut inherited = self.inherited.iter().map(|(_, entry)| entry).peekable();
        let mut own = self.own.iter().peekable();
        loop {
            let oldest = match (inherited.peek(), own.peek()) {
                (Some(a), Some(b)) if b.at < a.at => own.next(),
                (Some(_), _) => inherited.next(),
                (None, _) => own.next(),
            };
            let Some(entry) = oldest else {
                // With all entries gone nothing is used, and asked ≤ quota.
                return Admission::Pass;
            };
            excess = excess.saturating_sub(u128::from(entry.cost));
            if excess == 0 {
                return Admission::Wait {
                    retry_after: entry.at.plus(window).since(now),
                };
            }
        }
    }

    /// How the log stands. Call [`Log::advance`] first.
    pub fn standing(&self, quota: u64, window: Span, now: Timestamp) -> Standing {
        let used = self.used();
        let reset_after = self
            .newest_in_use()
            .map_or(Span::ZERO, |newest| newest.plus(window).since(now));
        Standing {
            used,
            remaining: quota.saturating_sub(used),
            reset_after,
        }
    }

    /// Notes a charge; returns the number that names it, which is not below `number` if no charge of this
    /// process is remembered.
    pub fn charge(&mut self, cost: u64, now: Timestamp, number: u64) -> u64 {
        if self.own.is_empty() {
            self.first = self.first.max(number);
        }
        // Entries stay in order even if the clock was set back: none is older than the one before it.
        let at = self.newest().map_or(now, |newest| newest.max(now));
        self.own.push_back(LogEntry { at, cost });
        self.used += u128::from(cost);
        self.next_number() - 1
    }

    fn next_number(&self) -> u64 {
        self.first + self.own.len() as u64
    }

    /// Gives back up to `units` of the entry that `stamp` names; returns how many.
    pub fn give_back(&mut self, units: u64, stamp: Stamp, own_start: u32) -> u64 {
        let given = if stamp.start == own_start {
            let index = stamp.count.checked_sub(self.first);
            let index = index.and_then(|index| usize::try_from(index).ok());
            let given = index
                .and_then(|index| self.own.get_mut(index))
                .map_or(0, |entry| entry.lower(units));
            self.note_lowered(stamp.count, given);
            given
        } else {
            let mut inherited = self.inherited.iter_mut();
            let given = inherited
                .find(|(name, _)| *name == stamp)
                .map_or(0, |(_, entry)| entry.lower(units));
            if given > 0 {
                self.lowered_inherited.insert(stamp);
            }
            given
        };
        self.used -= u128::from(given);
        given
    }

    /// Gives back up to `units` of whatever is in use, newest entries first; returns how many.
    pub fn refund(&mut self, units: u64) -> u64 {
        let mut left = units;
        let (mut own, mut inherited) = (self.own.len(), self.inherited.len());
        while left > 0 && own + inherited > 0 {
            let own_at = own.checked_sub(1).map(|last| self.own[last].at);
            let inherited_at = inherited
                .checked_sub(1)
                .map(|last| self.inherited[last].1.at);
            if own_at >= inherited_at {
                own -= 1;
                let lowered = self.own[own].lower(left);
                self.note_lowered(self.first + own as u64, lowered);
                left -= lowered;
            } else {
                inherited -= 1;
                let (stamp, entry) = &mut self.inherited[inherited];
                let lowered = entry.lower(left);
                if lowered > 0 {
                    self.lowered_inherited.insert(*stamp);
                }
                left -= lowered;
            }
        }
        let given = units - left;
        self.used -= u128::from(given);
        given
    }

    fn note_lowered(&mut self, number: u64, by: u64) {
        if by > 0 && number < self.clean_below {
            self.lowered.insert(number);
        }
    }

    /// Everything that changed since the last call, named for disk.
    pub fn take_changes(&mut self, own_start: u32) -> Vec<(Stamp, LogEntry)> {
        let changes = self.changes(own_start);
        self.clean_below = self.next_number();
        self.lowered.clear();
        self.lowered_inherited.clear();
        changes
    }

    /// Everything that changed since [`Log::take_changes`], named for disk.
    pub fn changes(&self, own_start: u32) -> Vec<(Stamp, LogEntry)> {
        let mut changes = self.charged_from(self.clean_below, own_start);
        for number in self.lowered.range(self.first..) {
            let index = usize::try_from(number - self.first).unwrap_or(usize::MAX);
            if let Some(entry) = self.own.get(index) {
                let count = *number;
                changes.push((
                    Stamp {
                        start: own_start,
                        count,
                    },
                    *entry,
                ));
            }
        }
        if !self.lowered_inherited.is_empty() {
            let lowered = self.inherited.iter();
            let lowered = lowered.filter(|(stamp, _)| self.lowered_inherited.contains(stamp));
            changes.extend(lowered.copied());
        }
        changes
    }

    /// This process's entries from number `from` on, named for disk.
    pub fn charged_from(&self, from: u64, own_start: u32) -> Vec<(Stamp, LogEntry)> {
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let skip = skip.min(self.own.len());
        let names = (self.first + skip as u64..).map(|count| Stamp {
            start: own_start,
            count,
        });
        names.zip(self.own.range(skip..).copied()).collect()
    }

    /// Joins entries that earlier processes wrote. An entry is charged once and its cost only falls, so of
    /// two versions the lower one is the newer.
    pub fn join(&mut self, entries: impl IntoIterator<Item = (Stamp, LogEntry)>, own_start: u32) {
        let mut joined: BTreeMap<Stamp, LogEntry> = self.inherited.drain(..).collect();
        for (stamp, news) in entries {
            if stamp.start == own_start {
                continue;
            }
            joined
                .entry(stamp)
                .and_modify(|known| {
                    known.cost = known.cost.min(news.cost);
                    known.at = known.at.min(news.at);
                })
                .or_insert(news);
        }
        let mut joined: Vec<(Stamp, LogEntry)> = joined.into_iter().collect();
        joined.sort_by_key(|(stamp, entry)| (entry.at, *stamp));
        self.inherited = joined.into();
        let inherited = self.inherited.iter().map(|(_, entry)| entry);
        self.used = inherited
            .chain(&self.own)
            .map(|entry| u128::from(entry.cost))
            .sum();
    }
}
