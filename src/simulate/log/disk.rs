//! What of the log is on a disk.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::machine::command::Payload;

use super::KEPT_ENTRIES;
use super::SNAPSHOT_ENTRIES;

/// A voter: its region, and the id of its directory.
pub type Voter = (usize, u64);

/// Who takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Who votes. Two sets while the second takes the place of the first: nothing is decided then without a majority of
    /// each.
    pub voters: Vec<Vec<Voter>>,
    /// Who is told everything, and does not vote.
    pub learners: Vec<Voter>,
}

impl Members {
    /// Whether of every set of voters more than half are so.
    pub fn is_majority(&self, is_so: impl Fn(&Voter) -> bool) -> bool {
        let is_most = |set: &Vec<Voter>| {
            let count = set.iter().filter(|voter| is_so(voter)).count();
            count * 2 > set.len()
        };
        !self.voters.is_empty() && self.voters.iter().all(is_most)
    }

    /// Whether it votes.
    pub fn has_voter(&self, voter: Voter) -> bool {
        self.voters.iter().any(|set| set.contains(&voter))
    }

    /// Whether it takes part.
    pub fn has(&self, member: Voter) -> bool {
        self.has_voter(member) || self.learners.contains(&member)
    }
}

/// What an entry says.
#[derive(Clone, Debug)]
pub enum Body {
    /// A leader has begun.
    Blank,
    /// Who takes part from here on.
    Members(Members),
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
    /// Who took part then.
    pub members: Members,
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
    /// Who takes part, from which place on.
    members: Vec<(u64, Members)>,
    pub(super) snapshot: Option<Snapshot>,
    /// What cannot be, and was.
    fault: Option<String>,
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
            members: Vec::new(),
            snapshot: None,
            fault: None,
        }
    }

    /// One of a cluster that was just founded.
    pub fn founded(voter: u64, members: Members) -> Self {
        let mut disk = Self::empty(voter);
        disk.append(Entry {
            term: 0,
            body: Rc::new(Body::Members(members)),
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

    /// What cannot be, and was: an entry that was committed here is another one by now.
    pub fn fault(&self) -> Option<String> {
        self.fault.clone()
    }

    /// What a machine that has applied so much can never get here, though it is committed.
    pub fn lacks(&self, applied: u64) -> Option<String> {
        let is_lacking = applied < self.committed && self.entry(applied + 1).is_none();
        is_lacking.then(|| {
            let (committed, (last, _), (base, _)) = (self.committed, self.last(), self.base);
            let snapshot = self.snapshot.as_ref().map(|snapshot| snapshot.last.0);
            format!(
                "entry {} cannot be applied: {committed} are committed, there are {base} to {last}, and a snapshot \
                 of {snapshot:?}",
                applied + 1
            )
        })
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

    /// Who takes part, by the newest entry that says so, whether that is committed or not.
    pub fn members(&self) -> Option<&Members> {
        self.members.last().map(|(_, members)| members)
    }

    /// Who votes; while one set takes the place of another: the new one.
    pub fn voters(&self) -> &[Voter] {
        let newest = self.members().and_then(|members| members.voters.last());
        newest.map_or(&[], Vec::as_slice)
    }

    /// Whether the newest entry that says who takes part is committed.
    pub(super) fn are_members_settled(&self) -> bool {
        let newest = self.members.last();
        newest.is_none_or(|(index, _)| *index <= self.committed)
    }

    pub(super) fn append(&mut self, entry: Entry) {
        let index = self.last().0 + 1;
        if let Body::Members(members) = &*entry.body {
            self.members.push((index, members.clone()));
        }
        self.entries.push_back(entry);
    }

    pub(super) fn truncate(&mut self, after: u64) {
        let kept = after.saturating_sub(self.base.0);
        self.entries.truncate(usize::try_from(kept).unwrap_or(0));
        self.members.retain(|(index, _)| *index <= after);
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
        let before = self.members.iter().rposition(|(from, _)| *from <= index);
        // Those before are over for good.
        self.members.drain(..before.unwrap_or(0));
        let members = before.and(self.members.first());
        self.snapshot = Some(Snapshot {
            last: (index, term),
            members: members
                .map(|(_, members)| members.clone())
                .unwrap_or_default(),
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
        self.members = vec![(snapshot.last.0, snapshot.members.clone())];
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
            if at <= disk.committed {
                disk.fault = Some(format!(
                    "entry {at} is committed, and becomes one of term {}",
                    entry.term
                ));
            }
            disk.truncate(at - 1);
        }
        disk.append(entry);
    }
    disk.committed = disk.committed.max(committed.min(at));
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Members {
        Members {
            voters: vec![vec![(0, 10), (1, 11), (2, 12)]],
            learners: Vec::new(),
        }
    }

    fn blank(term: u64) -> Entry {
        Entry {
            term,
            body: Rc::new(Body::Blank),
        }
    }

    #[test]
    fn two_sets_of_voters_decide_by_a_majority_of_each() {
        let mut members = members();
        let has = |members: &Members, voters: &[u64]| {
            members.is_majority(|(_, voter)| voters.contains(voter))
        };
        assert!(has(&members, &[10, 12]));
        assert!(!has(&members, &[10, 22]));
        members.voters.push(vec![(0, 10), (1, 11), (2, 22)]);
        // The one who was emptied and one more: of the old set that is one of three.
        assert!(!has(&members, &[10, 22]));
        assert!(!has(&members, &[10, 12]));
        assert!(has(&members, &[10, 11]));
        assert!(members.has_voter((2, 12)) && members.has_voter((2, 22)));
        assert!(!Members::default().is_majority(|_| true));
    }

    #[test]
    fn a_committed_entry_that_becomes_another_one_is_a_fault() {
        let mut disk = Disk::founded(10, members());
        assert_eq!(take(&mut disk, (1, 0), vec![blank(1), blank(1)], 2), Ok(3));
        // What is not committed may be another one.
        assert_eq!(take(&mut disk, (2, 1), vec![blank(2)], 2), Ok(3));
        assert_eq!(disk.fault(), None);
        assert_eq!(take(&mut disk, (1, 0), vec![blank(3)], 2), Ok(2));
        let fault = disk.fault().expect("a fault");
        assert!(fault.contains("entry 2"), "{fault}");
    }

    #[test]
    fn what_is_committed_and_is_neither_there_nor_in_a_snapshot_is_told() {
        let mut disk = Disk::founded(10, members());
        assert_eq!(disk.lacks(0), None);
        disk.committed = 3;
        assert_eq!(disk.lacks(0), None, "the next one is there");
        let lacks = disk.lacks(1).expect("the second is not");
        assert!(lacks.contains("entry 2"), "{lacks}");
        disk.install(&Snapshot {
            last: (5, 1),
            members: members(),
            bytes: Rc::new(Vec::new()),
        });
        assert_eq!(disk.voters().len(), 3);
        assert!(disk.lacks(1).is_some(), "a snapshot that cannot be read");
        assert_eq!(disk.lacks(5), None);
    }
}
