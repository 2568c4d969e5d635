//! A model of the replicated log: leaders are elected by a reachable majority after the product's times, entries commit at
//! a majority's disks, and the log is kept.
//!
//! It stands in for the library below `consensus`, whose own behaviour `tests/sim/raft` runs: what is modelled is what
//! a region notices of it. [`Disk`] survives a process, [`Node`] is one.

mod disk;
mod hearing;
mod joining;

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::domain::draws::Draws;
use crate::domain::time::Span;

pub use disk::Body;
pub use disk::Disk;
pub use disk::Entry;
pub use disk::Members;
pub use disk::Snapshot;
pub use disk::Voter;

/// How often a leader is heard.
pub const HEARTBEAT: Span = Span::from_ms(250);
/// A leader that has not heard a majority for longer does not speak as one.
pub const MAJORITY_WITHIN: Span = Span::from_ms(1_000);
/// Until an entry is on disk.
pub const FSYNC: Span = Span::from_ms(2);
/// Entries after which a snapshot is taken.
const SNAPSHOT_ENTRIES: u64 = 2_000;
/// Entries that stay in the log when a snapshot holds what they did.
const KEPT_ENTRIES: u64 = 500;
/// Entries of one message.
const BATCH: usize = 512;
/// An append without an answer for longer is taken for lost.
const ANSWER_WITHIN: Span = Span::from_ms(700);

/// How long the member of a rank waits after it last heard a leader before it stands for election: its lease, and a time
/// between both.
pub const fn patience(rank: u64) -> (Span, Span, Span) {
    let rank = if rank > 4 { 4 } else { rank };
    let most = 800 + 200 * rank;
    (
        Span::from_ms(most),
        Span::from_ms(most - 180),
        Span::from_ms(most),
    )
}

/// What members tell each other.
#[derive(Clone, Debug)]
pub struct Message {
    /// The sender's directory.
    pub voter: u64,
    /// The directory that is meant; none: whichever is there.
    pub to: Option<u64>,
    /// Its term.
    pub term: u64,
    /// What it says.
    pub word: Word,
}

/// What a message says.
#[derive(Clone, Debug)]
pub enum Word {
    /// Entries of the leader; none: it lives.
    Append {
        /// Place and term of the entry before them.
        before: (u64, u64),
        /// They.
        entries: Vec<Entry>,
        /// What is committed.
        committed: u64,
        /// When it was sent, by the leader's boot clock.
        sent: Span,
    },
    /// A state in place of entries.
    Install {
        /// It.
        snapshot: Snapshot,
        /// When it was sent, by the leader's boot clock.
        sent: Span,
    },
    /// The answer to either.
    Appended {
        /// Up to where both logs are the same; `Err`: the last place that they may have in common.
        upto: Result<u64, u64>,
        /// As the leader sent it.
        sent: Span,
    },
    /// Who would be voted for, or is to be voted for.
    Vote {
        /// Nothing is decided by it.
        is_trial: bool,
        /// The leader wants it.
        is_wanted: bool,
        /// The candidate's last entry.
        last: (u64, u64),
    },
    /// The answer.
    Voted {
        /// To a trial.
        is_trial: bool,
        /// Yes or no.
        is_granted: bool,
    },
    /// Stand for election at once.
    TakeOver,
    /// Which directory is there?
    Who,
    /// The answer, also to what was meant for another directory. Neither changes anything but what the other knows.
    Here,
}

/// Messages, and to whom.
pub type Outbox = Vec<(usize, Message)>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Follower,
    Candidate { is_trial: bool, votes: Vec<u64> },
    Leader,
}

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// The directory that answered last.
    voter: Option<u64>,
    next: u64,
    matched: u64,
    /// When what it answered last was sent.
    acked: Option<Span>,
    /// When something that has no answer yet was sent.
    waiting_since: Option<Span>,
}

/// One process of a member.
#[derive(Clone, Debug)]
pub struct Node {
    own: usize,
    rank: u64,
    draws: Draws,
    role: Role,
    leader: Option<usize>,
    heard: Option<Span>,
    elect_at: Span,
    beat_at: Span,
    peers: Vec<Peer>,
}

impl Node {
    /// A process that begins.
    pub fn new(own: usize, regions: usize, rank: u64, draws: Draws, boot: Span) -> Self {
        let mut node = Self {
            own,
            rank,
            draws,
            role: Role::Follower,
            leader: None,
            heard: None,
            elect_at: boot,
            beat_at: boot,
            peers: vec![Peer::default(); regions],
        };
        node.wait(boot);
        node
    }

    fn wait(&mut self, boot: Span) {
        let (lease, least, most) = patience(self.rank);
        let more = self.draws.up_to(most.minus(least));
        self.elect_at = boot.plus(lease).plus(least).plus(more);
    }

    /// Whether it leads, or thinks so.
    pub fn leads(&self) -> bool {
        self.role == Role::Leader
    }

    /// Who leads, as far as it knows.
    pub const fn leader(&self) -> Option<usize> {
        self.leader
    }

    /// When time brings something.
    pub fn due(&self) -> Span {
        if self.leads() {
            self.beat_at
        } else {
            self.elect_at
        }
    }

    fn is_voter(&self, disk: &Disk) -> bool {
        let own = (self.own, disk.voter);
        disk.members().is_some_and(|members| members.has_voter(own))
    }

    fn is_majority(disk: &Disk, is_so: impl Fn(&Voter) -> bool) -> bool {
        disk.members()
            .is_some_and(|members| members.is_majority(is_so))
    }

    /// Whether a member is this process itself.
    fn is_self(&self, disk: &Disk, voter: Voter) -> bool {
        voter == (self.own, disk.voter)
    }

    /// For how long it has heard no majority; of a leader.
    pub fn hears_majority(&self, disk: &Disk, boot: Span) -> bool {
        Self::is_majority(disk, |(region, voter)| {
            self.is_self(disk, (*region, *voter))
                || self.peers.get(*region).is_some_and(|peer| {
                    peer.voter == Some(*voter)
                        && peer
                            .acked
                            .is_some_and(|acked| boot.minus(acked) <= MAJORITY_WITHIN)
                })
        })
    }

    /// Whether a voter has the entries up to `index`, by its answers to this leader.
    fn has(&self, disk: &Disk, region: usize, index: u64) -> bool {
        let voter = disk.voters().iter().find(|(one, _)| *one == region);
        let peer = self.peers.get(region);
        peer.zip(voter)
            .is_some_and(|(peer, (_, voter))| peer.voter == Some(*voter) && peer.matched >= index)
    }

    /// Whether a voter has all that is committed.
    pub fn is_caught_up(&self, disk: &Disk, region: usize) -> bool {
        self.has(disk, region, disk.committed)
    }

    /// Appends an entry of this leader; its place.
    pub fn propose(
        &mut self,
        disk: &mut Disk,
        boot: Span,
        body: Body,
        out: &mut Outbox,
    ) -> Option<u64> {
        if !self.leads() {
            return None;
        }
        disk.append(Entry {
            term: disk.term,
            body: Rc::new(body),
        });
        self.tell_all(disk, boot, out);
        self.commit(disk);
        Some(disk.last().0)
    }

    fn say(&self, disk: &Disk, (to, voter): (usize, Option<u64>), word: Word, out: &mut Outbox) {
        let message = Message {
            voter: disk.voter,
            to: voter,
            term: disk.term,
            word,
        };
        if to != self.own {
            out.push((to, message));
        }
    }

    fn tell(&mut self, disk: &Disk, boot: Span, to: usize, out: &mut Outbox) {
        let Some(peer) = self.peers.get_mut(to) else {
            return;
        };
        if peer
            .waiting_since
            .is_some_and(|since| boot.minus(since) > ANSWER_WITHIN)
        {
            peer.next = peer.matched + 1;
            peer.waiting_since = None;
        }
        let voter = peer.voter;
        let is_member = |voter| {
            disk.members()
                .is_some_and(|members| members.has((to, voter)))
        };
        if !voter.is_some_and(is_member) {
            // Nothing of the log is for who takes no part in it.
            self.say(disk, (to, None), Word::Who, out);
            return;
        }
        let before = peer.next.saturating_sub(1);
        let word = match disk.term_at(before) {
            Some(term) => {
                let entries: Vec<Entry> = (peer.next..)
                    .map_while(|index| disk.entry(index).cloned())
                    .take(BATCH)
                    .collect();
                peer.next += u64::try_from(entries.len()).unwrap_or(0);
                Word::Append {
                    before: (before, term),
                    entries,
                    committed: disk.committed,
                    sent: boot,
                }
            }
            None => match &disk.snapshot {
                Some(snapshot) => {
                    peer.next = snapshot.last.0 + 1;
                    Word::Install {
                        snapshot: snapshot.clone(),
                        sent: boot,
                    }
                }
                None => return,
            },
        };
        peer.waiting_since.get_or_insert(boot);
        self.say(disk, (to, voter), word, out);
    }

    fn tell_all(&mut self, disk: &Disk, boot: Span, out: &mut Outbox) {
        let own = self.own;
        for to in (0..self.peers.len()).filter(|to| *to != own) {
            self.tell(disk, boot, to, out);
        }
    }

    /// What time brings.
    pub fn tick(&mut self, disk: &mut Disk, boot: Span, out: &mut Outbox) {
        if boot < self.due() {
            return;
        }
        if self.leads() {
            self.beat_at = boot.plus(HEARTBEAT);
            self.tell_all(disk, boot, out);
        } else if self.is_voter(disk) {
            self.stand(disk, boot, true, false, out);
        } else {
            self.wait(boot);
        }
    }

    fn stand(
        &mut self,
        disk: &mut Disk,
        boot: Span,
        is_trial: bool,
        is_wanted: bool,
        out: &mut Outbox,
    ) {
        if !is_trial {
            disk.term += 1;
            disk.voted = Some(disk.voter);
        }
        self.leader = None;
        self.role = Role::Candidate {
            is_trial,
            votes: vec![disk.voter],
        };
        let (_, least, most) = patience(self.rank);
        let more = self.draws.up_to(most.minus(least));
        self.elect_at = boot.plus(least).plus(more);
        let last = disk.last();
        let sets = disk.members().into_iter().flat_map(|it| &it.voters);
        let voters: BTreeSet<Voter> = sets.flatten().copied().collect();
        for (to, voter) in voters {
            let word = Word::Vote {
                is_trial,
                is_wanted,
                last,
            };
            self.say(disk, (to, Some(voter)), word, out);
        }
        self.count_votes(disk, boot, out);
    }

    fn count_votes(&mut self, disk: &mut Disk, boot: Span, out: &mut Outbox) {
        let Role::Candidate { is_trial, votes } = &self.role else {
            return;
        };
        let is_trial = *is_trial;
        if !Self::is_majority(disk, |(_, voter)| votes.contains(voter)) {
            return;
        }
        if is_trial {
            self.stand(disk, boot, false, false, out);
            return;
        }
        self.role = Role::Leader;
        self.leader = Some(self.own);
        self.beat_at = boot.plus(HEARTBEAT);
        let next = disk.last().0 + 1;
        for peer in &mut self.peers {
            *peer = Peer {
                next,
                acked: Some(boot),
                ..Peer::default()
            };
        }
        // Who votes is known; the newest directory of a region that was taken back last.
        let members = disk.members().into_iter();
        let known = members.flat_map(|it| it.voters.iter().flatten().chain(&it.learners));
        for (region, voter) in known {
            if let Some(peer) = self.peers.get_mut(*region) {
                peer.voter = Some(*voter);
            }
        }
        self.propose(disk, boot, Body::Blank, out);
    }

    /// Commits what a majority has; whether that was news.
    fn commit(&self, disk: &mut Disk) -> bool {
        let mut index = disk.last().0;
        while index > disk.committed {
            let is_everywhere = Self::is_majority(disk, |(region, voter)| {
                self.is_self(disk, (*region, *voter))
                    || self
                        .peers
                        .get(*region)
                        .is_some_and(|peer| peer.voter == Some(*voter) && peer.matched >= index)
            });
            if is_everywhere {
                let is_own = disk.term_at(index) == Some(disk.term);
                if is_own {
                    disk.committed = index;
                }
                return is_own;
            }
            index -= 1;
        }
        false
    }

    fn follow(&mut self, disk: &mut Disk, term: u64, boot: Span) {
        if term > disk.term {
            disk.term = term;
            disk.voted = None;
        }
        if self.role != Role::Follower {
            self.role = Role::Follower;
            self.wait(boot);
        }
        self.leader = None;
    }

    /// Asks another member to stand for election; whether it has everything.
    pub fn hand_over(&self, disk: &Disk, to: usize, out: &mut Outbox) -> bool {
        let has_all = self.leads() && self.has(disk, to, disk.last().0);
        if has_all {
            self.say(disk, (to, None), Word::TakeOver, out);
        }
        has_all
    }
}
