//! What was told to which peer, what it has acknowledged, and what it is told next.

use std::sync::Arc;

use bytes::Bytes;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::replication::history::History;
use crate::replication::recipient::Load;
use crate::replication::recipient::Recipient;
use crate::replication::wire::Head;
use crate::replication::wire::Kind;
use crate::replication::writer;
use crate::usage::actor::Actor;

pub use crate::ledger::exchange::Reference as Ref;

pub use crate::replication::recipient::BACKLOG_FLIGHTS_MAX;
pub use crate::replication::recipient::BACKLOG_LOST_MAX;
pub use crate::replication::recipient::FLIGHTS_MAX;
pub use crate::replication::recipient::FLYING_BYTES_MAX;

/// A frame that was not acknowledged for so long is given up and told anew.
pub const REPLY_WITHIN: Span = Span::from_seconds(5);

/// Names a frame on its way to one peer; never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// What the shell does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends `bytes` to `peer` as a request. Its end comes back through [`Replication::replied`], after the
    /// reply was merged, or [`Replication::failed`].
    Send {
        /// To whom.
        peer: RegionName,
        /// Names the frame.
        id: SendId,
        /// The frame.
        bytes: Bytes,
    },
    /// Writes the counters at `refs` as they stand now into frames of [`Kind::Backlog`], each with all slots
    /// that are known, and hands them to [`Replication::encoded`].
    Encode {
        /// For whom.
        peer: RegionName,
        /// Names the frame.
        id: SendId,
        /// The counters; some may be gone by now.
        refs: Vec<Ref>,
    },
    /// Hands the next counters of a walk through the whole ledger to [`Replication::mark_all`], as many as
    /// suits. A `pass` that is new for the peer begins at the beginning.
    Everything {
        /// For whom.
        peer: RegionName,
        /// Which walk.
        pass: u64,
    },
}

/// Figures of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Frames that were handed out to be sent.
    pub sent: u64,
    /// Frames that were acknowledged.
    pub replied: u64,
    /// Frames that failed, and those that a lost link took along.
    pub failed: u64,
    /// Frames on their way, those that are being written included.
    pub in_flight: usize,
    /// Their bytes.
    pub flying_bytes: usize,
    /// Counters that wait to be told.
    pub backlog: usize,
}

/// The sending side: all peers.
#[derive(Debug)]
pub struct Replication {
    own: Actor,
    peers: Vec<Recipient>,
    round: u64,
    next_id: u64,
    history: History,
}

impl Replication {
    /// Of the process `own`, which knows no peers yet.
    pub fn new(own: Actor) -> Self {
        Self {
            own,
            peers: Vec::new(),
            round: 0,
            next_id: 1,
            history: History::new(),
        }
    }

    fn peer(&self, name: &RegionName) -> Option<&Recipient> {
        self.peers.iter().find(|peer| peer.name == *name)
    }

    fn peer_mut(&mut self, name: &RegionName) -> Option<&mut Recipient> {
        self.peers.iter_mut().find(|peer| peer.name == *name)
    }

    fn known(&mut self, name: &RegionName, boot: Span) -> &mut Recipient {
        let at = match self.peers.iter().position(|peer| peer.name == *name) {
            Some(at) => at,
            None => {
                self.peers.push(Recipient::new(name.clone(), boot));
                self.peers.len() - 1
            }
        };
        &mut self.peers[at]
    }

    /// There is a link to the process `incarnation` of the region `name` from `boot` on. A process that is
    /// not the one before is told everything.
    pub fn peer_connected(
        &mut self,
        name: &RegionName,
        incarnation: u64,
        boot: Span,
    ) -> Vec<Action> {
        self.known(name, boot).connected(incarnation, boot);
        self.pump(name, boot)
    }

    /// The link is gone: nothing that is on its way counts as arrived, and nothing is sent until it is back.
    pub fn peer_lost(&mut self, name: &RegionName) {
        if let Some(peer) = self.peer_mut(name) {
            peer.lost();
        }
    }

    /// The region is no longer a peer; all about it is forgotten.
    pub fn peer_removed(&mut self, name: &RegionName) {
        self.peers.retain(|peer| peer.name != *name);
    }

    /// The counters in `frames` were gathered in `round`, which is later than all before. A frame without
    /// counters is a sign of life, which is left out for a peer that is busy.
    pub fn round(&mut self, boot: Span, round: u64, frames: Vec<(Bytes, Vec<Ref>)>) -> Vec<Action> {
        debug_assert!(round > self.round, "rounds are numbered upwards");
        self.round = self.round.max(round);
        self.history.add(round, boot);
        let mut actions = Vec::new();
        for (bytes, refs) in frames {
            let refs: Arc<[Ref]> = Arc::from(refs);
            for peer in &mut self.peers {
                if peer.is_connected() && peer.has_room(bytes.len()) {
                    let id = SendId(self.next_id);
                    self.next_id += 1;
                    peer.fly(id, Load::Round(Arc::clone(&refs), round), bytes.len());
                    actions.push(Action::Send {
                        peer: peer.name.clone(),
                        id,
                        bytes: bytes.clone(),
                    });
                } else {
                    peer.owe(&refs, round, boot);
                }
            }
        }
        for at in 0..self.peers.len() {
            self.pump_at(at, boot, &mut actions);
        }
        actions
    }

    /// `peer` has merged the frame `id`, and what its reply carried was merged here.
    pub fn replied(&mut self, peer: &RegionName, id: SendId, boot: Span) -> Vec<Action> {
        match self.peer_mut(peer) {
            Some(known) => known.replied(id),
            None => return Vec::new(),
        }
        self.prune();
        self.pump(peer, boot)
    }

    /// The frame `id` was not acknowledged by `peer` and will not be; it may have been merged all the same.
    /// What was in it is told again, after a pause that grows with each failure in a row.
    pub fn failed(&mut self, peer: &RegionName, id: SendId, boot: Span) -> Vec<Action> {
        match self.peer_mut(peer) {
            Some(known) => known.failed(id, boot),
            None => return Vec::new(),
        }
        self.pump(peer, boot)
    }

    /// The frames that [`Action::Encode`] asked for, each with the counters in it. What was asked for and is
    /// in none of them is taken to be gone for good.
    pub fn encoded(
        &mut self,
        peer: &RegionName,
        id: SendId,
        frames: Vec<(Bytes, Vec<Ref>)>,
        boot: Span,
    ) -> Vec<Action> {
        let mut next_id = self.next_id;
        let mut actions = Vec::new();
        let Some(known) = self.peer_mut(peer) else {
            return actions;
        };
        for (id, bytes) in known.encoded(id, frames, &mut next_id) {
            actions.push(Action::Send {
                peer: peer.clone(),
                id,
                bytes,
            });
        }
        self.next_id = next_id;
        actions.extend(self.pump(peer, boot));
        actions
    }

    /// More counters of the walk `pass`, and whether they are the last. Words about an older walk change
    /// nothing.
    pub fn mark_all(
        &mut self,
        peer: &RegionName,
        pass: u64,
        refs: impl IntoIterator<Item = Ref>,
        is_last: bool,
        boot: Span,
    ) -> Vec<Action> {
        if let Some(known) = self.peer_mut(peer) {
            known.mark(pass, refs, is_last);
        }
        self.pump(peer, boot)
    }

    /// `peer`'s process `incarnation` says that it has told all that it holds ([`Kind::Everything`]).
    pub fn told_everything(&mut self, peer: &RegionName, incarnation: u64, boot: Span) {
        self.known(peer, boot).told_everything(incarnation);
    }

    /// Whether `peer` and this process have told each other everything since the later of them started.
    pub fn is_caught_up(&self, peer: &RegionName) -> bool {
        self.peer(peer).is_some_and(Recipient::is_caught_up)
    }

    /// Sends what waits and may be sent now.
    pub fn tick(&mut self, boot: Span) -> Vec<Action> {
        let mut actions = Vec::new();
        for at in 0..self.peers.len() {
            self.pump_at(at, boot, &mut actions);
        }
        actions
    }

    /// The newest round such that all that was gathered in it and before was merged by the process of `peer`
    /// that was connected last; 0 until that process was told everything.
    pub fn acked_round(&self, peer: &RegionName) -> u64 {
        self.peer(peer)
            .map_or(0, |peer| peer.acked_round(self.round))
    }

    /// Counters that wait to be told to `peer`.
    pub fn backlog_len(&self, peer: &RegionName) -> usize {
        self.peer(peer).map_or(0, Recipient::backlog_len)
    }

    /// How long ago the oldest round was gathered that `peer` has not acknowledged; of a process that is
    /// still being told everything: since when it lacks that. Zero: it has all.
    pub fn lag(&self, peer: &RegionName, boot: Span) -> Span {
        let Some(known) = self.peer(peer) else {
            return Span::ZERO;
        };
        if let Some(since) = known.lacks_all_since() {
            return boot.minus(since);
        }
        let acked = known.acked_round(self.round);
        if acked >= self.round {
            return Span::ZERO;
        }
        self.history
            .at(acked + 1)
            .map_or(Span::ZERO, |gathered| boot.minus(gathered))
    }

    /// Figures of `peer`; `None`: it is not known.
    pub fn figures(&self, peer: &RegionName) -> Option<Figures> {
        self.peer(peer).map(Recipient::figures)
    }

    /// The peers that are known.
    pub fn peers(&self) -> impl Iterator<Item = &RegionName> {
        self.peers.iter().map(|peer| &peer.name)
    }

    fn prune(&mut self) {
        let acked = self.peers.iter().map(|peer| peer.acked_round(self.round));
        if let Some(acked) = acked.min() {
            self.history.forget_before(acked + 1);
        }
    }

    fn pump(&mut self, name: &RegionName, boot: Span) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(at) = self.peers.iter().position(|peer| peer.name == *name) {
            self.pump_at(at, boot, &mut actions);
        }
        actions
    }

    fn pump_at(&mut self, at: usize, boot: Span, actions: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        if let Some(pass) = peer.wants_walk() {
            actions.push(Action::Everything {
                peer: peer.name.clone(),
                pass,
            });
        }
        while peer.may_tell(boot)
            && let Some(load) = peer.next_load(self.round)
        {
            let id = SendId(self.next_id);
            self.next_id += 1;
            let name = peer.name.clone();
            actions.push(match load.refs() {
                Some(refs) => {
                    peer.write(id, load);
                    Action::Encode {
                        peer: name,
                        id,
                        refs,
                    }
                }
                None => {
                    let head = Head::single(Kind::Everything, self.round);
                    let bytes = writer::bare(&head, &self.own);
                    peer.fly(id, load, bytes.len());
                    Action::Send {
                        peer: name,
                        id,
                        bytes,
                    }
                }
            });
        }
    }
}
