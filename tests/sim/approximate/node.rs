//! One process of a region, made of the product's own machines: the ledger, the sender of rounds, repair and what
//! the share rule sees of the peers, driven as `region::exchange` drives them.
//!
//! Links are pings: one is up while both sides hear each other, and calls on it fail when it goes, or after the
//! product's time.

mod comparing;

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use highwater::catalogue::intern::LimitId;
use highwater::domain::name::RegionName;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::ledger::Bounds;
use highwater::ledger::Ledger;
use highwater::ledger::check::Item;
use highwater::ledger::check::Outcome;
use highwater::ledger::check::Request;
use highwater::ledger::counter::Counter;
use highwater::ledger::mesh::Mesh;
use highwater::ledger::restore::Restorer;
use highwater::ledger::sharing::ROUND_EVERY;
use highwater::region::exchange::mesh::Sight;
use highwater::region::exchange::mesh::Standing;
use highwater::region::exchange::tell::REPLY_WITHIN;
use highwater::replication::merge;
use highwater::replication::merge::Place;
use highwater::replication::pages;
use highwater::replication::pages::Pages;
use highwater::replication::repair::Collection;
use highwater::replication::repair::Digest;
use highwater::replication::repair::Want;
use highwater::replication::sender::Action;
use highwater::replication::sender::Ref;
use highwater::replication::sender::Replication;
use highwater::replication::sender::SendId;
use highwater::replication::turns::Turns;
use highwater::replication::wire::Entry;
use highwater::replication::wire::Frame;
use highwater::replication::wire::FrameWriter;
use highwater::replication::wire::Head;
use highwater::replication::wire::Kind;
use highwater::usage::actor::ActorTable;
use highwater::usage::record::CounterRecord;

pub use super::parts::At;
pub use super::parts::Body;
pub use super::parts::Catalogue;
pub use super::parts::Message;
pub use super::parts::Slot;
pub use super::parts::SlotId;
pub use super::parts::names;
use super::parts::slots_of;

/// The tenant of all checks.
pub const TENANT: &str = "acme";
/// A link without any sign of the peer for so long is closed.
const SILENCE_MAX: Span = Span::from_ms(1_500);
/// Every so many ticks the peers are pinged.
const PING_TICKS: u64 = 2;
/// Counters that one step of a walk looks at, at least.
const WALK_STEP: usize = 50;

/// What regions want sent: to whom, and what.
pub type Outbox = Vec<(usize, Message)>;

#[derive(Clone, Copy, Debug)]
enum Purpose {
    Frame(SendId),
    Digest,
    Repair,
}

#[derive(Debug)]
struct Call {
    peer: usize,
    purpose: Purpose,
    until: Span,
}

/// What is known of a peer's process.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    met: u64,
    heard: Option<Span>,
    hears_us: bool,
    is_up: bool,
}

/// A comparison that is under way.
#[derive(Debug, Default)]
struct Comparison {
    next: Option<u16>,
    todo: VecDeque<Bytes>,
}

/// A process.
pub struct Node {
    pub index: usize,
    pub incarnation: u64,
    pub ledger: Ledger,
    pub machine: Replication,
    pub epochs: Vec<u64>,
    pub round: u64,
    pub refused: u64,
    pub repaired: u64,
    pub calls_max: usize,
    pub entries: u64,
    /// What was gathered in which round, if that is to be kept.
    pub gathered: Option<Vec<(u64, Slot)>>,
    /// When a counter was dead by what was told of its slot again, if what is gathered is kept.
    pub told_again: BTreeMap<SlotId, Timestamp>,
    catalogue: Rc<Catalogue>,
    names: Rc<Vec<RegionName>>,
    latencies: Vec<Span>,
    sight: Sight,
    walks: BTreeMap<usize, (u64, usize)>,
    links: Vec<Link>,
    turns: Turns,
    ticks: u64,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    comparisons: BTreeMap<usize, Comparison>,
    collections: BTreeMap<usize, Collection>,
}

impl Node {
    pub fn start(
        index: usize,
        names: &Rc<Vec<RegionName>>,
        delays_ms: &[u64],
        catalogue: &Rc<Catalogue>,
        (table, start): (ActorTable, u32),
        epochs: Vec<u64>,
    ) -> Self {
        let bounds = Bounds {
            keys_max: 100_000,
            keys_per_tenant_max: 100_000,
        };
        let actor = table.own_actor().clone();
        let ledger = Ledger::new(bounds, table, start, [index as u64, u64::from(start)]);
        ledger.keep_for_peers(names.len() > 1);
        let node = Self {
            index,
            incarnation: actor.incarnation,
            ledger,
            machine: Replication::new(actor),
            epochs,
            round: 0,
            refused: 0,
            repaired: 0,
            calls_max: 0,
            entries: 0,
            gathered: None,
            told_again: BTreeMap::new(),
            catalogue: Rc::clone(catalogue),
            names: Rc::clone(names),
            latencies: delays_ms.iter().map(|ms| Span::from_ms(*ms)).collect(),
            sight: Sight::new(ROUND_EVERY),
            walks: BTreeMap::new(),
            links: vec![Link::default(); names.len()],
            turns: Turns::new(),
            ticks: 0,
            calls: BTreeMap::new(),
            next_call: 0,
            comparisons: BTreeMap::new(),
            collections: BTreeMap::new(),
        };
        node.show(Span::ZERO);
        node
    }

    /// Takes over what a disk kept.
    pub fn restore(&self, records: impl Iterator<Item = CounterRecord>) {
        let mut restorer = Restorer::new(&self.ledger);
        for record in records {
            if let Some(limit) = self.catalogue.names.get(record.id.limit.as_str()) {
                restorer.counter(record, limit);
            }
        }
        restorer.finish(|limit| self.catalogue.names.get(limit.as_str()));
    }

    pub fn item<'a>(&'a self, limit: usize, key: &'a str, cost: u64) -> Item<'a> {
        Item {
            limit: &self.catalogue.limits[limit],
            id: LimitId(limit as u32),
            epoch: self.epochs[limit],
            key,
            cost,
        }
    }

    /// A check; peers are told at once if it wants that.
    pub fn check(
        &mut self,
        at: At,
        (limit, key, cost): (usize, &str, u64),
        hold: Option<(u128, Timestamp)>,
        out: &mut Outbox,
    ) -> Outcome {
        let items = [self.item(limit, key, cost)];
        let outcome = self.ledger.check(&Request {
            now: at.now,
            boot: at.boot,
            tenant: TENANT,
            items: &items,
            hold,
            keep: self.catalogue.limits.len() > 1,
            store_failed: false,
            judge_only: false,
            words: &[],
        });
        if outcome.is_urgent {
            self.tell_urgent(at, out);
        }
        outcome
    }

    fn tell_urgent(&mut self, at: At, out: &mut Outbox) {
        self.round += 1;
        let pages = Pages::urgent(&self.ledger, &self.catalogue.names, self.round, at.boot);
        self.end_round(at, pages, out);
        self.show(at.boot);
    }

    fn end_round(&mut self, at: At, pages: Pages, out: &mut Outbox) {
        let frames = pages.finish(&self.ledger, Kind::Round, self.round);
        if let Some(gathered) = &mut self.gathered {
            for (bytes, _) in &frames {
                let slots = slots_of(bytes);
                gathered.extend(slots.into_iter().map(|slot| (self.round, slot)));
            }
        }
        let actions = self.machine.round(at.boot, self.round, frames);
        self.act(at, actions, out);
    }

    /// Every 100 ms.
    pub fn tick(&mut self, at: At, out: &mut Outbox) {
        self.ticks += 1;
        let overdue = self.calls.iter().filter(|(_, call)| call.until <= at.boot);
        for id in overdue.map(|(id, _)| *id).collect::<Vec<u64>>() {
            self.settle(at, id, None, out);
        }
        self.follow_links(at, out);
        self.round += 1;
        let pages = Pages::changed(&self.ledger, &self.catalogue.names, self.round, at.boot);
        self.end_round(at, pages, out);
        let actions = self.machine.tick(at.boot);
        self.act(at, actions, out);
        while let Some((peer, from)) = self.turns.due(at.boot) {
            let sums = self.sums(at);
            let own = self.ledger.actors().own_actor();
            let bytes = sums.digest(own, self.round, from);
            let peer = self.number(&peer);
            self.comparisons.insert(peer, Comparison::default());
            self.call(at, peer, Purpose::Digest, bytes, out);
        }
        self.show(at.boot);
    }

    fn follow_links(&mut self, at: At, out: &mut Outbox) {
        for peer in 0..self.links.len() {
            let link = self.links[peer];
            let hears = link
                .heard
                .is_some_and(|heard| at.boot.minus(heard) < SILENCE_MAX);
            if link.is_up && !hears {
                self.lose_link(at, peer, out);
                self.links[peer].hears_us = false;
            }
            if peer != self.index && self.ticks % PING_TICKS == 1 {
                let hears = hears.then_some(link.met);
                out.push((peer, self.message(Body::Ping { hears })));
            }
        }
    }

    fn lose_link(&mut self, at: At, peer: usize, out: &mut Outbox) {
        self.links[peer].is_up = false;
        let name = self.names[peer].clone();
        self.machine.peer_lost(&name);
        self.turns.end(&name);
        let broken = self.calls.iter().filter(|(_, call)| call.peer == peer);
        for id in broken.map(|(id, _)| *id).collect::<Vec<u64>>() {
            self.settle(at, id, None, out);
        }
    }

    fn connect(&mut self, at: At, peer: usize, out: &mut Outbox) {
        self.links[peer].is_up = true;
        let name = self.names[peer].clone();
        self.turns.begin(&name, at.boot);
        let met = self.links[peer].met;
        let actions = self.machine.peer_connected(&name, met, at.boot);
        self.act(at, actions, out);
    }

    const fn message(&self, body: Body) -> Message {
        Message {
            incarnation: self.incarnation,
            body,
        }
    }

    fn number(&self, name: &RegionName) -> usize {
        let found = self.names.iter().position(|known| known == name);
        found.expect("a known region")
    }

    fn call(&mut self, at: At, peer: usize, purpose: Purpose, bytes: Bytes, out: &mut Outbox) {
        self.next_call += 1;
        let until = at.boot.plus(REPLY_WITHIN);
        let call = Call {
            peer,
            purpose,
            until,
        };
        let id = self.next_call;
        self.calls.insert(id, call);
        self.calls_max = self.calls_max.max(self.calls.len());
        if self.links[peer].is_up {
            out.push((peer, self.message(Body::Call { id, bytes })));
        } else {
            self.settle(at, id, None, out);
        }
    }

    fn act(&mut self, at: At, actions: Vec<Action>, out: &mut Outbox) {
        let mut waiting = VecDeque::from(actions);
        while let Some(action) = waiting.pop_front() {
            match action {
                Action::Send { peer, id, bytes } => {
                    let peer = self.number(&peer);
                    self.call(at, peer, Purpose::Frame(id), bytes, out);
                }
                Action::Encode { peer, id, refs } => {
                    let pages = Pages::of(&self.ledger, &self.catalogue.names, &refs, false);
                    let frames = pages.finish(&self.ledger, Kind::Backlog, self.round);
                    self.note_told_again(&frames);
                    waiting.extend(self.machine.encoded(&peer, id, frames, at.boot));
                }
                Action::Everything { peer, pass } => {
                    let refs = self.walk(&peer, pass);
                    let actions = self.machine.mark_all(&peer, pass, refs.0, refs.1, at.boot);
                    waiting.extend(actions);
                }
            }
        }
    }

    fn note_told_again(&mut self, frames: &[(Bytes, Vec<Ref>)]) {
        if self.gathered.is_some() {
            let slots = frames.iter().flat_map(|(bytes, _)| slots_of(bytes));
            self.told_again
                .extend(slots.map(|slot| (slot.id, slot.dead_at)));
        }
    }

    fn walk(&mut self, peer: &RegionName, pass: u64) -> (Vec<Ref>, bool) {
        let peer = self.number(peer);
        let walk = self.walks.entry(peer).or_insert((pass, 0));
        if walk.0 != pass {
            *walk = (pass, 0);
        }
        let mut references = Vec::new();
        while walk.1 < self.ledger.shards() && references.len() < WALK_STEP {
            self.ledger.references(walk.1, &mut references);
            walk.1 += 1;
        }
        (references, walk.1 >= self.ledger.shards())
    }

    /// A message of the region `from`.
    pub fn receive(&mut self, at: At, from: usize, message: Message, out: &mut Outbox) {
        let link = &mut self.links[from];
        if message.incarnation < link.met {
            // Nothing is taken from a process any more once the one after it was met.
            return;
        }
        let is_new = message.incarnation > link.met;
        link.met = message.incarnation;
        link.heard = Some(at.boot);
        if is_new {
            link.hears_us = false;
            if link.is_up {
                self.lose_link(at, from, out);
            }
        }
        match message.body {
            Body::Ping { hears } => {
                self.links[from].hears_us = hears == Some(self.incarnation);
                let link = self.links[from];
                if link.hears_us && !link.is_up {
                    self.connect(at, from, out);
                } else if !link.hears_us && link.is_up {
                    self.lose_link(at, from, out);
                }
            }
            Body::Call { id, bytes } => {
                let reply = self.hear(at, from, message.incarnation, &bytes);
                let to = message.incarnation;
                let body = Body::Reply {
                    to,
                    id,
                    bytes: reply,
                };
                out.push((from, self.message(body)));
            }
            Body::Reply { to, id, bytes } => {
                if to == self.incarnation {
                    self.settle(at, id, bytes, out);
                }
            }
        }
        self.show(at.boot);
    }

    /// What became of a call.
    fn settle(&mut self, at: At, id: u64, reply: Option<Bytes>, out: &mut Outbox) {
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        let name = self.names[call.peer].clone();
        let merged = reply.as_ref().and_then(|reply| match call.purpose {
            Purpose::Digest => Some(()),
            Purpose::Frame(_) | Purpose::Repair => {
                let frame = Frame::read(reply).expect("a reply that can be read");
                self.merge(at, call.peer, &frame, None)
            }
        });
        match call.purpose {
            Purpose::Frame(sent) => {
                let actions = match merged {
                    Some(()) => self.machine.replied(&name, sent, at.boot),
                    None => self.machine.failed(&name, sent, at.boot),
                };
                self.act(at, actions, out);
            }
            Purpose::Digest | Purpose::Repair => {
                if let Purpose::Digest = call.purpose
                    && let Some(reply) = reply
                {
                    self.compare(at, call.peer, &reply);
                }
                let next = self
                    .comparisons
                    .get_mut(&call.peer)
                    .filter(|_| merged.is_some());
                match next {
                    Some(comparison) => match comparison.todo.pop_front() {
                        Some(bytes) => self.call(at, call.peer, Purpose::Repair, bytes, out),
                        None => {
                            let next = comparison.next;
                            self.turns.ended(&name, next, at.boot);
                        }
                    },
                    None => self.turns.failed(&name, at.boot),
                }
            }
        }
    }

    fn hear(&mut self, at: At, from: usize, incarnation: u64, bytes: &[u8]) -> Option<Bytes> {
        let frame = Frame::read(bytes).expect("a frame that can be read");
        let head = frame.head();
        match head.kind {
            Kind::Digest => {
                let digest = Digest::read(&frame).expect("a digest");
                let choice = self.sums(at).choose(&digest);
                let mut collection = Collection::begin_pass(at.now, choice.ranges);
                self.collect(at, &mut collection);
                let own = self.ledger.actors().own_actor();
                let listing = collection.listing(own, head.round, choice.next);
                self.collections.insert(from, collection);
                Some(listing)
            }
            Kind::Want => {
                let want = Want::read(&frame).expect("what is wanted");
                let references = self.collections.get(&from)?.places(&want);
                let pages = Pages::of(&self.ledger, &self.catalogue.names, &references, true);
                Some(pages.single(&self.ledger, Kind::Repair, head.round))
            }
            _ => {
                let mut reply = FrameWriter::new(self.ledger.actors().own());
                self.merge(at, from, &frame, Some(&mut reply))?;
                self.entries += frame.entries().count() as u64;
                let name = &self.names[from];
                if head.kind == Kind::Everything {
                    self.machine.told_everything(name, incarnation, at.boot);
                }
                let own = &self.names[self.index];
                self.sight.heard(name, at.boot, own, &self.ledger);
                let head = Head::single(Kind::Reply, head.round);
                Some(pages::finish(&self.ledger, reply, &head))
            }
        }
    }

    fn merge(
        &mut self,
        at: At,
        from: usize,
        frame: &Frame<'_>,
        reply: Option<&mut FrameWriter>,
    ) -> Option<()> {
        let place = Place {
            ledger: &self.ledger,
            names: &self.catalogue.names,
            // What is heard of an epoch before the catalogue tells of it is part of what goes wrong here.
            version: u64::MAX,
            now: at.now,
            boot: at.boot,
            round_every: ROUND_EVERY,
        };
        let lives = |region: &RegionName, process| self.sight.lives(region, process, at.boot);
        let keep = |entry: &Entry<'_>, counter: &mut Counter, mesh: &Mesh| {
            let limit = self
                .catalogue
                .names
                .get(entry.limit)
                .expect("a known limit");
            let limit = limit.0 as usize;
            if self.epochs[limit] == counter.epoch {
                counter.reserve(&self.catalogue.limits[limit], mesh, at.boot, at.now);
            }
        };
        let merged = merge::merge(&place, &self.names[from], frame, lives, keep, reply);
        self.refused += merged.refused;
        merged.is_whole.then_some(())
    }

    /// Lets the ledger see how it stands with the peers.
    fn show(&self, boot: Span) {
        let peers = (0..self.names.len()).filter(|peer| *peer != self.index);
        let standings: Vec<Standing> = peers
            .map(|peer| {
                let (name, link) = (&self.names[peer], self.links[peer]);
                Standing {
                    region: name.clone(),
                    is_caught_up: self.machine.is_caught_up(name),
                    acked_round: self.machine.acked_round(name),
                    latency: self.latencies[peer],
                    lag: Span::ZERO,
                    backlog: 0,
                    frames: 0,
                    incarnation: link.is_up.then_some(link.met),
                }
            })
            .collect();
        let own = &self.names[self.index];
        let now = (self.round, boot);
        self.sight.set(&standings, now, own, &self.ledger);
    }

    /// Whether the share rule takes a peer for reachable.
    pub fn reaches(&self, peer: usize) -> bool {
        let site = self.ledger.site(&self.names[peer]);
        let mesh = self.ledger.mesh();
        let mut peers = mesh.peers.iter();
        peers.any(|known| Some(known.site) == site && known.is_reachable)
    }

    /// The process of a peer that a link is up to.
    pub fn linked(&self, peer: usize) -> Option<u64> {
        self.links[peer].is_up.then_some(self.links[peer].met)
    }

    /// How full a bucket is, in units; below zero: what has to come back first.
    pub fn level(&self, limit: usize, key: &str, now: Timestamp) -> f64 {
        let item = self.item(limit, key, 0);
        let flow = highwater::ledger::counter::flow(&item.limit.rule).expect("a bucket");
        let refill = self.ledger.standing(&item, TENANT, now).reset_after;
        let earned = flow.rate as f64 * refill.as_nanos() as f64 / flow.per.as_nanos() as f64;
        flow.capacity as f64 - earned
    }

    pub fn regions(&self) -> usize {
        self.names.len()
    }

    /// The epoch of a limit by the catalogue that this process has.
    pub fn epoch_of(&self, limit: &str) -> u64 {
        let id = self.catalogue.names.get(limit);
        id.map_or(0, |id| self.epochs[id.0 as usize])
    }

    pub fn name_of(&self, peer: usize) -> &RegionName {
        &self.names[peer]
    }

    pub fn catalogue(&self) -> &Rc<Catalogue> {
        &self.catalogue
    }
}
