//! Tells peers of changed counters: the task that drives [`Replication`].
//!
//! A round is gathered every `replication.interval`, and at once when a counter came near its limit; it is written once and
//! the same bytes go to every peer. What a peer did not acknowledge is written anew for it, as it stands then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::ledger::exchange::Reference;
use crate::peer::Service;
use crate::region::exchange::Word;
use crate::region::state::Region;
use crate::region::timers::stopped;
use crate::replication::pages::Pages;
use crate::replication::sender::Action;
use crate::replication::sender::Replication;
use crate::replication::sender::SendId;
use crate::replication::sight::Standing;
use crate::replication::turns::Turns;
use crate::replication::wire::Kind;

pub use crate::replication::pages::EntryHead;
pub use crate::replication::pages::put;
pub use crate::replication::sender::REPLY_WITHIN;

/// Counters that one step of a walk through the ledger looks at, at least, where there are as many.
const WALK_STEP: usize = 2_000;
/// Words that are taken together.
const WORDS_TOGETHER: usize = 256;

impl Region {
    /// Writes the counters at `references` as they stand now, each frame with those that are in it.
    pub(super) fn pages(
        &self,
        references: &[Reference],
        kind: Kind,
        round: u64,
    ) -> Vec<(Bytes, Vec<Reference>)> {
        Pages::of(&self.ledger, &self.replica.names(), references, false).finish(
            &self.ledger,
            kind,
            round,
        )
    }

    /// The same in one frame, for a reply.
    pub(super) fn page(&self, references: &[Reference], kind: Kind, round: u64) -> Bytes {
        let pages = Pages::of(&self.ledger, &self.replica.names(), references, true);
        pages.single(&self.ledger, kind, round)
    }
}

/// The task's state.
struct Telling {
    region: Arc<Region>,
    machine: Replication,
    round: u64,
    /// How far the walk through the ledger for a peer has come: which walk, and the next shard.
    walks: BTreeMap<RegionName, (u64, usize)>,
    /// The processes that links are up to.
    linked: BTreeMap<RegionName, u64>,
    turns: Turns,
    /// Whether changes are kept for peers: while there is one.
    keeps: bool,
}

/// Tells peers until `stop` turns true.
pub async fn run(region: Arc<Region>, mut stop: watch::Receiver<bool>) {
    let Some(mut inbox) = region.exchange.inbox.lock().take() else {
        return;
    };
    let machine = Replication::new(region.ledger.actors().own_actor().clone());
    let mut telling = Telling {
        region,
        machine,
        round: 0,
        walks: BTreeMap::new(),
        linked: BTreeMap::new(),
        turns: Turns::new(),
        keeps: false,
    };
    let mut ticks = tokio::time::interval(telling.region.exchange.interval.to_std());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let region = Arc::clone(&telling.region);
    let mut words = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut stop) => return,
            taken = inbox.recv_many(&mut words, WORDS_TOGETHER) => {
                if taken == 0 {
                    return;
                }
                telling.hear(&mut words);
            }
            () = region.exchange.urgent.notified() => telling.tell_urgent(),
            _ = ticks.tick() => telling.tick(),
        }
        telling.show();
    }
}

impl Telling {
    fn boot(&self) -> Span {
        self.region.clock.boot()
    }

    fn tick(&mut self) {
        self.follow_links();
        self.tell_changed();
        let actions = self.machine.tick(self.boot());
        self.act(actions);
        while let Some((peer, from)) = self.turns.due(self.boot()) {
            self.compare(peer, from);
        }
    }

    /// Compares with a peer, beside all else.
    fn compare(&self, peer: RegionName, from: u16) {
        let region = Arc::clone(&self.region);
        let words = region.exchange.words.clone();
        let round = self.round;
        tokio::spawn(async move {
            let compared = region.compare(&peer, round, from).await;
            // The task is gone only when the region stops.
            let _ = words.send(Word::Compared(peer, compared.ok())).await;
        });
    }

    /// Notes which links are up, and to whom.
    fn follow_links(&mut self) {
        let status = self.region.peer_status();
        if self.keeps == status.is_empty() {
            self.keeps = !status.is_empty();
            self.region.ledger.keep_for_peers(self.keeps);
        }
        let gone: Vec<RegionName> = self
            .machine
            .peers()
            .filter(|name| !status.iter().any(|peer| peer.region == **name))
            .cloned()
            .collect();
        for name in gone {
            self.machine.peer_removed(&name);
            self.linked.remove(&name);
            self.walks.remove(&name);
            self.turns.end(&name);
        }
        for peer in status {
            let live = peer.identity.filter(|_| peer.is_connected);
            match live.map(|identity| identity.incarnation) {
                Some(incarnation) if self.linked.get(&peer.region) != Some(&incarnation) => {
                    self.linked.insert(peer.region.clone(), incarnation);
                    let boot = self.boot();
                    self.turns.begin(&peer.region, boot);
                    let actions = self.machine.peer_connected(&peer.region, incarnation, boot);
                    self.act(actions);
                }
                Some(_) => {}
                None => {
                    if self.linked.remove(&peer.region).is_some() {
                        self.machine.peer_lost(&peer.region);
                        self.turns.end(&peer.region);
                    }
                }
            }
        }
    }

    /// Gathers all that changed.
    fn tell_changed(&mut self) {
        self.round += 1;
        let names = self.region.replica.names();
        let pages = Pages::changed(&self.region.ledger, &names, self.round, self.boot());
        drop(names);
        self.end_round(pages);
    }

    /// Gathers what is near a limit.
    fn tell_urgent(&mut self) {
        self.round += 1;
        let names = self.region.replica.names();
        let pages = Pages::urgent(&self.region.ledger, &names, self.round, self.boot());
        drop(names);
        self.end_round(pages);
    }

    fn end_round(&mut self, pages: Pages) {
        let frames = pages.finish(&self.region.ledger, Kind::Round, self.round);
        self.count(&frames, self.linked.len());
        let boot = self.boot();
        let actions = self.machine.round(boot, self.round, frames);
        self.act(actions);
    }

    /// Counts what `peers` are told.
    fn count(&self, frames: &[(Bytes, Vec<Reference>)], peers: usize) {
        let counters: usize = frames.iter().map(|(_, told)| told.len()).sum();
        let told = (counters * peers) as u64;
        self.region.exchange.told.fetch_add(told, Ordering::Relaxed);
    }

    fn hear(&mut self, words: &mut Vec<Word>) {
        for word in words.drain(..) {
            let boot = self.boot();
            let actions = match word {
                Word::Replied(peer, id) => self.machine.replied(&peer, id, boot),
                Word::Failed(peer, id) => self.machine.failed(&peer, id, boot),
                Word::ToldEverything(peer, incarnation) => {
                    self.machine.told_everything(&peer, incarnation, boot);
                    Vec::new()
                }
                Word::Compared(peer, compared) => {
                    match compared {
                        Some(next) => self.turns.ended(&peer, next, boot),
                        None => self.turns.failed(&peer, boot),
                    }
                    Vec::new()
                }
            };
            self.act(actions);
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        let mut waiting = std::collections::VecDeque::from(actions);
        while let Some(action) = waiting.pop_front() {
            let more = match action {
                Action::Send { peer, id, bytes } => {
                    self.send(peer, id, bytes);
                    Vec::new()
                }
                Action::Encode { peer, id, refs } => {
                    let frames = self.region.pages(&refs, Kind::Backlog, self.round);
                    self.count(&frames, 1);
                    let boot = self.boot();
                    self.machine.encoded(&peer, id, frames, boot)
                }
                Action::Everything { peer, pass } => self.walk(&peer, pass),
            };
            waiting.extend(more);
        }
    }

    /// Sends a frame; a task of its own waits for what becomes of it.
    fn send(&self, peer: RegionName, id: SendId, bytes: Bytes) {
        let region = Arc::clone(&self.region);
        let Some(peers) = region.peers.get() else {
            return;
        };
        let called = peers.call(&peer, Service::Usage, bytes, REPLY_WITHIN);
        let words: mpsc::Sender<Word> = region.exchange.words.clone();
        let region = Arc::clone(&self.region);
        tokio::spawn(async move {
            let merged = match called.await {
                Ok(reply) => region.hear_reply(&peer, &reply),
                Err(_) => None,
            };
            drop(region);
            let word = match merged {
                Some(()) => Word::Replied(peer, id),
                None => Word::Failed(peer, id),
            };
            // The task is gone only when the region stops.
            let _ = words.send(word).await;
        });
    }

    /// The next step of a walk through the whole ledger for `peer`.
    fn walk(&mut self, peer: &RegionName, pass: u64) -> Vec<Action> {
        let walk = self.walks.entry(peer.clone()).or_insert((pass, 0));
        if walk.0 != pass {
            *walk = (pass, 0);
        }
        let mut references = Vec::new();
        let shards = self.region.ledger.shards();
        while walk.1 < shards && references.len() < WALK_STEP {
            self.region.ledger.references(walk.1, &mut references);
            walk.1 += 1;
        }
        let is_last = walk.1 >= shards;
        let boot = self.region.clock.boot();
        self.machine.mark_all(peer, pass, references, is_last, boot)
    }

    /// Lets the ledger see how it stands with the peers.
    fn show(&self) {
        let status = self.region.peer_status();
        let boot = self.boot();
        let members = self.region.replica.members();
        // Who was taken out of the cluster is not missed, and who is not taken in yet neither.
        let is_member = |region: &RegionName| {
            let mut all = members.voters.iter().chain(&members.learners);
            all.any(|member| member.region == *region)
        };
        let standings: Vec<Standing> = status
            .into_iter()
            .filter(|peer| is_member(&peer.region))
            .map(|peer| Standing {
                incarnation: self.linked.get(&peer.region).copied(),
                lag: self.machine.lag(&peer.region, boot),
                backlog: self.machine.backlog_len(&peer.region),
                frames: self
                    .machine
                    .figures(&peer.region)
                    .map_or(0, |figures| figures.replied),
                is_caught_up: self.machine.is_caught_up(&peer.region),
                acked_round: self.machine.acked_round(&peer.region),
                latency: Span::from_nanos(peer.rtt_last.unwrap_or(Span::ZERO).as_nanos() / 2),
                region: peer.region,
            })
            .collect();
        let region = &self.region;
        region
            .exchange
            .sight
            .set(&standings, (self.round, boot), &region.name, &region.ledger);
    }
}
