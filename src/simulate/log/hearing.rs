//! What a member makes of the messages of others.

use crate::domain::time::Span;

use super::Message;
use super::Node;
use super::Outbox;
use super::Peer;
use super::Role;
use super::Word;
use super::disk::Disk;
use super::disk::take;
use super::patience;

impl Node {
    /// Takes a message.
    pub fn hear(
        &mut self,
        disk: &mut Disk,
        boot: Span,
        from: usize,
        message: Message,
        out: &mut Outbox,
    ) {
        if message.to.is_some_and(|to| to != disk.voter) {
            self.say(disk, (from, None), Word::Here, out);
            return;
        }
        let back = (from, Some(message.voter));
        let is_nothing_new = matches!(
            message.word,
            Word::Vote { is_trial: true, .. }
                | Word::Voted { is_trial: true, .. }
                | Word::Who
                | Word::Here
        );
        if message.term > disk.term && !is_nothing_new && !self.ignores(&message.word, boot) {
            self.follow(disk, message.term, boot);
        }
        match message.word {
            Word::Append {
                before,
                entries,
                committed,
                sent,
            } => {
                let upto = if message.term < disk.term {
                    Err(disk.last().0)
                } else {
                    self.heed(disk, from, message.term, boot);
                    take(disk, before, entries, committed)
                };
                self.say(disk, back, Word::Appended { upto, sent }, out);
            }
            Word::Install { snapshot, sent } => {
                if message.term >= disk.term {
                    self.heed(disk, from, message.term, boot);
                    if snapshot.last.0 > disk.committed {
                        disk.install(&snapshot);
                    }
                    let upto = Ok(disk.committed);
                    self.say(disk, back, Word::Appended { upto, sent }, out);
                }
            }
            Word::Appended { upto, sent } => {
                if self.leads() && message.term == disk.term {
                    self.appended(disk, boot, from, (message.voter, upto, sent), out);
                }
            }
            Word::Vote {
                is_trial,
                is_wanted,
                last,
            } => {
                let candidate = (from, message.voter, message.term);
                let is_granted = self.votes(disk, boot, candidate, (is_trial, is_wanted), last);
                let word = Word::Voted {
                    is_trial,
                    is_granted,
                };
                self.say(disk, back, word, out);
            }
            Word::Voted {
                is_trial,
                is_granted,
            } => {
                if is_granted
                    && let Role::Candidate {
                        is_trial: asked,
                        votes,
                    } = &mut self.role
                    && *asked == is_trial
                    && (is_trial || message.term == disk.term)
                    && !votes.contains(&message.voter)
                {
                    votes.push(message.voter);
                    self.count_votes(disk, boot, out);
                }
            }
            Word::TakeOver => {
                if message.term == disk.term && self.is_voter(disk) {
                    self.stand(disk, boot, false, true, out);
                }
            }
            Word::Who => self.say(disk, back, Word::Here, out),
            Word::Here => self.meet(from, message.voter),
        }
    }

    /// Notes which directory is in a region: what is known of the one before does not hold.
    fn meet(&mut self, from: usize, voter: u64) {
        if let Some(peer) = self.peers.get_mut(from)
            && peer.voter != Some(voter)
        {
            *peer = Peer {
                voter: Some(voter),
                next: 1,
                ..Peer::default()
            };
        }
    }

    /// A vote that its leader's lease forbids changes nothing, not even the term.
    fn ignores(&self, word: &Word, boot: Span) -> bool {
        matches!(
            word,
            Word::Vote {
                is_wanted: false,
                ..
            }
        ) && self.is_leased(boot)
    }

    fn is_leased(&self, boot: Span) -> bool {
        let (lease, ..) = patience(self.rank);
        let is_heard = |heard: Span| boot.minus(heard) < lease;
        self.leads() || self.heard.is_some_and(is_heard)
    }

    fn heed(&mut self, disk: &mut Disk, from: usize, term: u64, boot: Span) {
        self.follow(disk, term, boot);
        self.leader = Some(from);
        self.heard = Some(boot);
        self.wait(boot);
    }

    fn votes(
        &mut self,
        disk: &mut Disk,
        boot: Span,
        (from, voter, term): (usize, u64, u64),
        (is_trial, is_wanted): (bool, bool),
        last: (u64, u64),
    ) -> bool {
        let (own_index, own_term) = disk.last();
        let has_enough = (last.1, last.0) >= (own_term, own_index);
        let members = disk.members();
        let knows = members.is_none_or(|members| members.has_voter((from, voter)));
        if !has_enough || !knows || (!is_wanted && self.is_leased(boot)) {
            return false;
        }
        if is_trial {
            return term >= disk.term;
        }
        if term < disk.term || disk.voted.is_some_and(|voted| voted != voter) {
            return false;
        }
        disk.voted = Some(voter);
        self.wait(boot);
        true
    }

    fn appended(
        &mut self,
        disk: &mut Disk,
        boot: Span,
        from: usize,
        (voter, upto, sent): (u64, Result<u64, u64>, Span),
        out: &mut Outbox,
    ) {
        let last = disk.last().0;
        self.meet(from, voter);
        let Some(peer) = self.peers.get_mut(from) else {
            return;
        };
        peer.acked = peer.acked.max(Some(sent));
        peer.waiting_since = None;
        match upto {
            Ok(upto) => {
                peer.matched = peer.matched.max(upto);
                peer.next = peer.next.max(upto + 1);
                let is_behind = peer.next <= last;
                if self.commit(disk) {
                    // Others are told at once, not with the next sign of life.
                    self.tell_all(disk, boot, out);
                    self.finish_change(disk, boot, out);
                } else if is_behind {
                    self.tell(disk, boot, from, out);
                }
            }
            Err(upto) => {
                let next = (upto + 1).min(last).max(1);
                if next < peer.next || peer.matched == 0 {
                    peer.next = next;
                    self.tell(disk, boot, from, out);
                }
            }
        }
    }
}
