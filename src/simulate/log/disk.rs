//! What of the log is on a disk.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::machine::command::Payload;

use super::KEPT_ENTRIES;
use super::SNAPSHOT_ENTRIES;

/// A voter: its region, and the id of its directory.
pub type Voter = (usize, u64);

/// What an entry says.
#[derive(Clone, Debug)]
pub enum Body {
    /// A leader has begun.
    Blank,
    /// Who votes from here on.
    Voters(Vec<Voter>),
    /// Something for the machine.
    Payload(Box<Payload>),
}

/// An entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Of which term.
    pub term: u64,
    /// What it says.
    pub body: Rc<Body>,
}

/// A state of the machine in place of the entries up to a place.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The place and its term.
    pub last: (u64, u64),
    /// Who voted then.
    pub voters: Vec<Voter>,
    /// The machine.
    pub bytes: Rc<Vec<u8>>,
}

/// What of the log is on a disk.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Of the directory; a lost one is replaced by one with another id.
    pub voter: u64,
    pub(super) term: u64,
    pub(super) voted: Option<u64>,
    /// Place and term of the last entry that is no more there.
    base: (u64, u64),
    entries: VecDeque<Entry>,
    /// The newest entry that is known to be committed.
    pub(super) committed: u64,
    /// Who votes, from which place on.
    pub(super) voters: Vec<(u64, Vec<Voter>)>,
    pub(super) snapshot: Option<Snapshot>,
}

impl Disk {
    /// An empty one.
    pub const fn empty(voter: u64) -> Self {
        Self {
            voter,
            term: 0,
            voted: None,
            base: (0, 0),
            entries: VecDeque::new(),
            committed: 0,
            voters: Vec::new(),
            snapshot: None,
        }
    }

    /// One of a cluster that was just founded.
    pub fn founded(voter: u64, voters: Vec<Voter>) -> Self {
        let mut disk = Self::empty(voter);
        disk.append(Entry {
            term: 0,
            body: Rc::new(Body::Voters(voters)),
        });
        disk.committed = 1;
        disk
    }

    /// Place and term of the last entry.
    pub fn last(&self) -> (u64, u64) {
        let len = u64::try_from(self.entries.len()).unwrap_or(0);
        let term = self.entries.back().map_or(self.base.1, |entry| entry.term);
        (self.base.0 + len, term)
    }

    /// The newest term that it knows.
    pub const fn term(&self) -> u64 {
        self.term
    }

    /// The newest entry that is known to be committed.
    pub const fn committed(&self) -> u64 {
        self.committed
    }

    /// The newest snapshot.
    pub const fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// The entry at a place, if it is there.
    pub fn entry(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.base.0 + 1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    pub(super) fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        self.entry(index).map(|entry| entry.term)
    }

    /// Who votes.
    pub fn voters(&self) -> &[Voter] {
        self.voters.last().map_or(&[], |(_, voters)| voters)
    }

    pub(super) fn append(&mut self, entry: Entry) {
        let index = self.last().0 + 1;
        if let Body::Voters(voters) = &*entry.body {
            self.voters.push((index, voters.clone()));
        }
        self.entries.push_back(entry);
    }

    pub(super) fn truncate(&mut self, after: u64) {
        let kept = after.saturating_sub(self.base.0);
        self.entries.truncate(usize::try_from(kept).unwrap_or(0));
        self.voters.retain(|(index, _)| *index <= after);
    }

    /// Whether enough was applied since the last snapshot.
    pub fn wants_snapshot(&self, applied: u64) -> bool {
        let last = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.last.0);
        applied >= last + SNAPSHOT_ENTRIES
    }

    /// Keeps a snapshot that was taken after `index` was applied.
    pub fn keep_snapshot(&mut self, index: u64, bytes: Vec<u8>) {
        let Some(term) = self.term_at(index) else {
            return;
        };
        let known = self.voters.iter().rev();
        let voters = known
            .clone()
            .find(|(from, _)| *from <= index)
            .map(|(_, voters)| voters.clone())
            .unwrap_or_default();
        self.snapshot = Some(Snapshot {
            last: (index, term),
            voters,
            bytes: Rc::new(bytes),
        });
        let from = index.saturating_sub(KEPT_ENTRIES);
        while self.base.0 < from
            && let Some(gone) = self.entries.pop_front()
        {
            self.base = (self.base.0 + 1, gone.term);
        }
    }

    pub(super) fn install(&mut self, snapshot: &Snapshot) {
        self.base = snapshot.last;
        self.entries.clear();
        self.voters = vec![(snapshot.last.0, snapshot.voters.clone())];
        self.committed = snapshot.last.0;
        self.snapshot = Some(snapshot.clone());
    }
}

/// Takes entries of the leader; up to where both logs are the same then, or may be.
pub(super) fn take(
    disk: &mut Disk,
    before: (u64, u64),
    entries: Vec<Entry>,
    committed: u64,
) -> Result<u64, u64> {
    let (index, term) = before;
    let known = disk.term_at(index);
    let is_kept = index < disk.base.0;
    if !is_kept && known != Some(term) {
        let last = disk.last().0;
        return Err(last.min(index.saturating_sub(1)));
    }
    let mut at = index;
    for entry in entries {
        at += 1;
        if at <= disk.base.0 || disk.term_at(at) == Some(entry.term) {
            continue;
        }
        if disk.term_at(at).is_some() {
            disk.truncate(at - 1);
        }
        disk.append(entry);
    }
    disk.committed = disk.committed.max(committed.min(at));
    Ok(at)
}
