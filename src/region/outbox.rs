//! What leaves the machines: words between regions and the leader, and the leader's own entries.
//!
//! Machines are called under locks and must not call each other, so what they want told goes through one
//! bounded queue and is carried out by one task ([`Region::deliver`]). When the queue is full a word is
//! dropped and counted: every one of them may be lost. An entry that cannot be queued is told to the leader's
//! state as failed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use serde::Deserialize;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::grants::account::Holder;
use crate::grants::account::Quota;
use crate::grants::account::Transfer;
use crate::grants::message::Answer;
use crate::grants::message::ToLeader;
use crate::grants::message::ToRegion;
use crate::machine::strict::Seats;
use crate::machine::strict::Want;
use crate::peer::Service;
use crate::region::progress::Progress;
use crate::region::state::Region;

/// Words that may wait.
const LETTERS_MAX: usize = 65_536;
/// Words that are carried out together.
const BATCH: usize = 1_024;

/// Something to be carried out.
#[derive(Clone, Debug)]
pub enum Letter {
    /// To whoever leads.
    ToLeader(ToLeader),
    /// To a region.
    ToRegion(RegionName, ToRegion),
    /// An own entry of the leader of `term`.
    Propose {
        /// The leader's term.
        term: u64,
        /// Names the entry.
        ticket: u64,
        /// The entry.
        transfer: Transfer,
    },
    /// An entry of the leader of a term: the lease of a process has ended.
    Lapse(u64, Holder),
}

/// Words between regions as they travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Words {
    /// For the leader.
    ToLeader(Vec<ToLeader>),
    /// For a region.
    ToRegion(Vec<ToRegion>),
    /// For every member: how far it and the others are.
    Progress(Progress),
}

/// The way into the queue. Copies share it.
#[derive(Clone, Debug)]
pub struct Outbox {
    letters: mpsc::Sender<Letter>,
    dropped: Arc<AtomicU64>,
}

impl Outbox {
    /// A queue and its other end.
    pub fn new() -> (Self, mpsc::Receiver<Letter>) {
        let (letters, queue) = mpsc::channel(LETTERS_MAX);
        let outbox = Self {
            letters,
            dropped: Arc::default(),
        };
        (outbox, queue)
    }

    /// Queues `letter`; whether there was room.
    pub fn push(&self, letter: Letter) -> bool {
        let is_queued = self.letters.try_send(letter).is_ok();
        if !is_queued {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_queued
    }

    /// Queues a word to the leader.
    pub fn to_leader(&self, word: ToLeader) {
        self.push(Letter::ToLeader(word));
    }

    /// Words that were dropped for want of room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Region {
    /// Carries out what is queued until the queue is closed.
    pub async fn deliver(self: Arc<Self>, mut queue: mpsc::Receiver<Letter>) {
        let mut letters = Vec::with_capacity(BATCH);
        while queue.recv_many(&mut letters, BATCH).await > 0 {
            let mut to_leader = Vec::new();
            let mut to_regions: BTreeMap<RegionName, Vec<ToRegion>> = BTreeMap::new();
            for letter in letters.drain(..) {
                match letter {
                    Letter::ToLeader(word) => to_leader.push(word),
                    Letter::ToRegion(region, word) => {
                        to_regions.entry(region).or_default().push(word);
                    }
                    Letter::Propose {
                        term,
                        ticket,
                        transfer,
                    } => {
                        tokio::spawn(Arc::clone(&self).propose_transfer(term, ticket, transfer));
                    }
                    Letter::Lapse(term, holder) => {
                        tokio::spawn(Arc::clone(&self).propose_lapse(term, holder));
                    }
                }
            }
            if !to_leader.is_empty() {
                self.send_to_leader(to_leader);
            }
            for (region, words) in to_regions {
                if region == self.name {
                    self.hear_leader(&words);
                } else {
                    self.tell(&region, &Words::ToRegion(words));
                }
            }
        }
    }

    fn send_to_leader(self: &Arc<Self>, words: Vec<ToLeader>) {
        let leader = self
            .consensus()
            .and_then(|consensus| consensus.leadership().borrow().leader.clone());
        let Some(leader) = leader else { return };
        if leader.region == self.name {
            self.hear_regions(&self.name.clone(), words);
        } else {
            self.tell(&leader.region, &Words::ToLeader(words));
        }
    }

    /// Tells another region something that may be lost.
    pub fn tell(&self, region: &RegionName, words: &Words) {
        if let Some(peers) = self.peers()
            && let Ok(body) = postcard::to_allocvec(words)
        {
            // A word that finds no link is lost, as any word may be.
            peers.tell(region, Service::Strict, Bytes::from(body));
        }
    }

    /// Makes a reservation for units of a bucket that were asked for by one that is gone by now: it gives them
    /// back. In a window they would come back by its end.
    fn adopt(&self, answer: &Answer, boot: Span) {
        let is_ours = answer.holder == *self.reservations.holder();
        let is_known = || {
            let found = self.reservations.with(&answer.account, boot, |_, _| ());
            found.is_some()
        };
        if !is_ours || answer.granted == answer.lapsed_to || is_known() {
            return;
        }
        let now = self.clock.now();
        let known = self
            .replica
            .core()
            .machine
            .limit_of(&answer.account, now)
            .map(|(_, limit)| limit);
        if let Some(limit) = known.filter(|limit| Quota::of(&limit.rule).flow().is_some()) {
            let want = Want {
                place: 0,
                account: answer.account.clone(),
                limit: &limit,
                units: 1,
            };
            let wants = [want];
            self.reservations.lock(&wants).get(&wants[0], boot);
        }
    }

    /// Takes in what the leader told this region.
    pub fn hear_leader(&self, words: &[ToRegion]) {
        let boot = self.clock.boot();
        let mut effects = Vec::new();
        for word in words {
            if let ToRegion::Answer(answer) = word
                && answer.window.is_endless()
            {
                self.adopt(answer, boot);
            }
            self.reservations.hear(word, boot, &mut effects);
        }
        self.carry_out(effects);
    }
}
