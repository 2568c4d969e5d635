//! Sliding log: every charge with its instant; exact, memory in proportion to calls made.
//!
//! An entry counts while now − entry < window. admit ⇔ used + asked ≤ quota; come back when enough of the
//! oldest entries have ended. Entries are named by a counting number so that their persisted forms can be
//! joined; a refund lowers the newest entries.

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

/// A log of charges, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<LogEntry>,
    used: u64,
    /// Entries that left at the front since the log began: the number of `entries[0]`.
    first: u64,
    /// Entries below this number are on disk as they are here.
    clean_below: u64,
    /// Entries that an earlier process wrote, oldest first, with the names it gave them.
    inherited: VecDeque<Stamp>,
}

impl Log {
    /// Drops the entries that have ended.
    pub fn advance(&mut self, window: Span, now: Timestamp) {
        if self
            .entries
            .back()
            .is_some_and(|newest| rebased(newest.at, now) != newest.at)
        {
            for entry in &mut self.entries {
                entry.at = entry.at.min(now);
            }
        }
        while self
            .entries
            .front()
            .is_some_and(|oldest| now.since(oldest.at) >= window)
        {
            if let Some(oldest) = self.entries.pop_front() {
                self.used = self.used.saturating_sub(oldest.cost);
                self.first += 1;
                self.inherited.pop_front();
            }
        }
        if self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Units in use.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// When the newest entry was charged.
    pub fn newest(&self) -> Option<Timestamp> {
        self.entries.back().map(|entry| entry.at)
    }

    /// Calls that are remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// May `asked` units pass? Call [`Log::advance`] first.
    pub fn admission(&self, quota: u64, window: Span, asked: u64, now: Timestamp) -> Admission {
        if asked > quota {
            return Admission::Never;
        }
        let mut excess = self.used.saturating_add(asked).saturating_sub(quota);
        if excess == 0 {
            return Admission::Pass;
        }
        for entry in &self.entries {
            excess = excess.saturating_sub(entry.cost);
            if excess == 0 {
                return Admission::Wait {
                    retry_after: entry.at.plus(window).since(now),
                };
            }
        }
        // Not reached: with all entries gone used is 0 and asked ≤ quota. A full window is safe to say.
        Admission::Wait {
            retry_after: window,
        }
    }

    /// How the log stands. Call [`Log::advance`] first.
    pub fn standing(&self, quota: u64, window: Span, now: Timestamp) -> Standing {
        let reset_after = self
            .newest()
            .map_or(Span::ZERO, |newest| newest.plus(window).since(now));
        Standing {
            used: self.used,
            remaining: quota.saturating_sub(self.used),
            reset_after,
        }
    }

    /// Notes a charge; returns the number that names it.
    pub fn charge(&mut self, cost: u64, now: Timestamp) -> u64 {
        // Entries stay in order even if the clock was followed back: the newest is never older than the last.
        let at = self.newest().map_or(now, |newest| newest.max(now));
        self.entries.push_back(LogEntry { at, cost });
        self.used = self.used.saturating_add(cost);
        self.first + self.entries.len() as u64 - 1
    }

    /// Gives back up to `units`, newest entries first, of entry `only` alone if it is named; returns how many.
    pub fn give_back(&mut self, units: u64, only: Option<u64>) -> u64 {
        let mut left = units;
        let first = self.first;
        for (index, entry) in self.entries.iter_mut().enumerate().rev() {
            let number = first + index as u64;
            if left == 0 || only.is_some_and(|only| number < only) {
                break;
            }
            if only.is_some_and(|only| number != only) || entry.cost == 0 {
                continue;
            }
            let given = left.min(entry.cost);
            entry.cost -= given;
            left -= given;
            self.clean_below = self.clean_below.min(number);
        }
        let given = units - left;
        self.used = self.used.saturating_sub(given);
        given
    }

    /// The number of the entry that an earlier process named `stamp`.
    pub fn number_of(&self, stamp: Stamp, own_start: u32) -> Option<u64> {
        if stamp.start == own_start {
            let present = self.first..self.first + self.entries.len() as u64;
            return present.contains(&stamp.count).then_some(stamp.count);
        }
        let index = self.inherited.iter().position(|known| *known == stamp)?;
        Some(self.first + index as u64)
    }

    /// Everything that changed since the last call, named for disk.
    pub fn take_changes(&mut self, own_start: u32) -> Vec<(Stamp, LogEntry)> {
        let changes = self.changes_from(self.clean_below, own_start);
        self.clean_below = self.first + self.entries.len() as u64;
        changes
    }

    /// The number from which on the disk may lack something.
    pub const fn clean_below(&self) -> u64 {
        self.clean_below
    }

    /// The entries from number `from` on, named for disk.
    pub fn changes_from(&self, from: u64, own_start: u32) -> Vec<(Stamp, LogEntry)> {
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.entries
            .iter()
            .enumerate()
            .skip(skip)
            .map(|(index, entry)| {
                let own = Stamp {
                    start: own_start,
                    count: self.first + index as u64,
                };
                (self.inherited.get(index).copied().unwrap_or(own), *entry)
            })
            .collect()
    }

    /// A log read back from disk: `entries` of earlier processes.
    pub fn restored(entries: impl IntoIterator<Item = (Stamp, LogEntry)>) -> Self {
        let mut named: Vec<(Stamp, LogEntry)> = entries
            .into_iter()
            .filter(|(_, entry)| entry.cost > 0)
            .collect();
        named.sort_by_key(|(stamp, entry)| (entry.at, *stamp));
        let used = named
            .iter()
            .fold(0_u64, |used, (_, entry)| used.saturating_add(entry.cost));
        Self {
            used,
            first: 0,
            clean_below: named.len() as u64,
            inherited: named.iter().map(|(stamp, _)| *stamp).collect(),
            entries: named.into_iter().map(|(_, entry)| entry).collect(),
        }
    }

    /// The entries that earlier processes wrote, by name.
    pub fn inherited(&self) -> impl Iterator<Item = (Stamp, LogEntry)> + '_ {
        self.inherited
            .iter()
            .copied()
            .zip(self.entries.iter().copied())
    }
}
