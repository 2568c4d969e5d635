//! Counts between regions, simulated: the ledger, the sender of rounds, repair and what the share rule sees of the
//! peers, driven as `region::exchange` drives them.
//!
//! Links are pings: one is up while both sides hear each other, and calls on it fail when it goes, or after the
//! product's time. What cannot be read is not answered.

mod comparing;
mod links;

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use links::Link;

use crate::catalogue::intern::Interner;
use crate::domain::limit::Limit;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::Bounds;
use crate::ledger::Ledger;
use crate::ledger::counter::Counter;
use crate::ledger::mesh::Mesh;
use crate::ledger::sharing::ROUND_EVERY;
use crate::replication::merge;
use crate::replication::merge::Place;
use crate::replication::pages;
use crate::replication::pages::Pages;
use crate::replication::repair::Collection;
use crate::replication::repair::Digest;
use crate::replication::repair::Want;
use crate::replication::sender::Action;
use crate::replication::sender::REPLY_WITHIN;
use crate::replication::sender::Ref;
use crate::replication::sender::Replication;
use crate::replication::sender::SendId;
use crate::replication::sight::Sight;
use crate::replication::sight::Standing;
use crate::replication::turns::Turns;
use crate::replication::wire::Entry;
use crate::replication::wire::Frame;
use crate::replication::wire::FrameWriter;
use crate::replication::wire::Head;
use crate::replication::wire::Kind;
use crate::usage::actor::ActorTable;

/// A link without any sign of the peer for so long is closed.
const SILENCE_MAX: Span = Span::from_ms(1_500);
/// Every so many ticks the peers are pinged.
const PING_TICKS: u64 = 2;
/// Counters that one step of a walk looks at, at least.
const WALK_STEP: usize = 50;

/// Limits as a region knows them.
pub trait Limits {
    /// The names that have numbers.
    fn names(&self) -> &Interner;
    /// Which version of the catalogue they are from.
    fn version(&self) -> u64;
    /// The limit as it holds for a tenant and a key, and its epoch.
    fn limit(&self, tenant: &str, name: &str, key: &str, now: Timestamp) -> Option<(&Limit, u64)>;
}

/// A region's clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Region time.
    pub now: Timestamp,
    /// The boot clock.
    pub boot: Span,
}

/// A message with the process that sent it.
#[derive(Clone, Debug)]
pub struct Message {
    /// The process; later ones have higher numbers.
    pub incarnation: u64,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Debug)]
pub enum Body {
    /// The sender lives.
    Ping {
        /// The process of the receiver that it hears.
        hears: Option<u64>,
        /// When it was sent, by the sender's clocks.
        sent: At,
        /// When the receiver's last ping was sent, by its own boot clock, and how long ago that came here.
        echo: Option<(Span, Span)>,
    },
    /// A frame that wants a reply.
    Call {
        /// Names it.
        id: u64,
        /// The frame.
        bytes: Bytes,
    },
    /// The reply.
    Reply {
        /// The process that is meant.
        to: u64,
        /// The call.
        id: u64,
        /// `None`: the call was not taken.
        bytes: Option<Bytes>,
    },
}

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

/// A comparison that is under way.
#[derive(Debug, Default)]
struct Comparison {
    next: Option<u16>,
    todo: VecDeque<Bytes>,
}

/// The counts of one process, and what it tells of them.
pub struct Exchange {
    /// Its region.
    pub index: usize,
    /// Its number; later processes have higher ones.
    pub incarnation: u64,
    /// What it counts.
    pub ledger: Ledger,
    /// What it tells.
    pub machine: Replication,
    /// The round that was gathered last.
    pub round: u64,
    /// Counts that were refused.
    pub refused: u64,
    /// Counters that a comparison found to differ.
    pub repaired: u64,
    /// The most calls that were under way at once.
    pub calls_max: usize,
    /// Entries of frames that were taken.
    pub entries: u64,
    /// Frames that were gathered, and in which round, if that is to be kept.
    pub gathered: Option<Vec<(u64, Bytes)>>,
    /// Frames that tell a peer again of what was gathered before, if what is gathered is kept.
    pub told_again: Vec<Bytes>,
    /// Whether the way to a peer is measured, instead of known.
    pub measures: bool,
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

impl Exchange {
    /// Of the process that `table` calls its own, in region number `index` of `names`; `latencies`: the ways there.
    pub fn start(
        index: usize,
        names: &Rc<Vec<RegionName>>,
        latencies: &[Span],
        (table, start): (ActorTable, u32),
    ) -> Self {
        let bounds = Bounds {
            keys_max: 100_000,
            keys_per_tenant_max: 100_000,
        };
        let actor = table.own_actor().clone();
        let seed = [u64::try_from(index).unwrap_or(0), u64::from(start)];
        let ledger = Ledger::new(bounds, table, start, seed);
        ledger.keep_for_peers(names.len() > 1);
        let exchange = Self {
            index,
            incarnation: actor.incarnation,
            ledger,
            machine: Replication::new(actor),
            round: 0,
            refused: 0,
            repaired: 0,
            calls_max: 0,
            entries: 0,
            gathered: None,
            told_again: Vec::new(),
            measures: false,
            names: Rc::clone(names),
            latencies: latencies.to_vec(),
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
        exchange.show(Span::ZERO);
        exchange
    }

    /// A counter came near its limit: peers are told at once.
    pub fn tell_urgent(&mut self, at: At, limits: &impl Limits, out: &mut Outbox) {
        self.round += 1;
        let pages = Pages::urgent(&self.ledger, limits.names(), self.round, at.boot);
        self.end_round(at, limits, pages, out);
        self.show(at.boot);
    }

    fn end_round(&mut self, at: At, limits: &impl Limits, pages: Pages, out: &mut Outbox) {
        let frames = pages.finish(&self.ledger, Kind::Round, self.round);
        if let Some(gathered) = &mut self.gathered {
            let bytes = frames.iter().map(|(bytes, _)| (self.round, bytes.clone()));
            gathered.extend(bytes);
        }
        let actions = self.machine.round(at.boot, self.round, frames);
        self.act(at, limits, actions, out);
    }

    /// Every 100 ms.
    pub fn tick(&mut self, at: At, limits: &impl Limits, out: &mut Outbox) {
        self.ticks += 1;
        let overdue = self.calls.iter().filter(|(_, call)| call.until <= at.boot);
        for id in overdue.map(|(id, _)| *id).collect::<Vec<u64>>() {
            self.settle(at, limits, id, None, out);
        }
        self.follow_links(at, limits, out);
        self.round += 1;
        let pages = Pages::changed(&self.ledger, limits.names(), self.round, at.boot);
        self.end_round(at, limits, pages, out);
        let actions = self.machine.tick(at.boot);
        self.act(at, limits, actions, out);
        while let Some((peer, from)) = self.turns.due(at.boot) {
            let sums = self.sums(at, limits);
            let own = self.ledger.actors().own_actor();
            let bytes = sums.digest(own, self.round, from);
            let Some(peer) = self.number(&peer) else {
                continue;
            };
            self.comparisons.insert(peer, Comparison::default());
            self.call(at, limits, (peer, Purpose::Digest), bytes, out);
        }
        self.show(at.boot);
    }

    const fn message(&self, body: Body) -> Message {
        Message {
            incarnation: self.incarnation,
            body,
        }
    }

    fn number(&self, name: &RegionName) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    fn call(
        &mut self,
        at: At,
        limits: &impl Limits,
        (peer, purpose): (usize, Purpose),
        bytes: Bytes,
        out: &mut Outbox,
    ) {
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
            self.settle(at, limits, id, None, out);
        }
    }

    fn act(&mut self, at: At, limits: &impl Limits, actions: Vec<Action>, out: &mut Outbox) {
        let mut waiting = VecDeque::from(actions);
        while let Some(action) = waiting.pop_front() {
            match action {
                Action::Send { peer, id, bytes } => {
                    if let Some(peer) = self.number(&peer) {
                        self.call(at, limits, (peer, Purpose::Frame(id)), bytes, out);
                    }
                }
                Action::Encode { peer, id, refs } => {
                    let pages = Pages::of(&self.ledger, limits.names(), &refs, false);
                    let frames = pages.finish(&self.ledger, Kind::Backlog, self.round);
                    if self.gathered.is_some() {
                        let bytes = frames.iter().map(|(bytes, _)| bytes.clone());
                        self.told_again.extend(bytes);
                    }
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

    fn walk(&mut self, peer: &RegionName, pass: u64) -> (Vec<Ref>, bool) {
        let Some(peer) = self.number(peer) else {
            return (Vec::new(), true);
        };
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
    pub fn receive(
        &mut self,
        at: At,
        limits: &impl Limits,
        from: usize,
        message: Message,
        out: &mut Outbox,
    ) {
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
                self.lose_link(at, limits, from, out);
            }
        }
        match message.body {
            Body::Ping { hears, sent, echo } => {
                self.measure(at, from, sent, echo);
                self.links[from].hears_us = hears == Some(self.incarnation);
                let link = self.links[from];
                if link.hears_us && !link.is_up {
                    self.connect(at, limits, from, out);
                } else if !link.hears_us && link.is_up {
                    self.lose_link(at, limits, from, out);
                }
            }
            Body::Call { id, bytes } => {
                let reply = self.hear(at, limits, (from, message.incarnation), &bytes);
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
                    self.settle(at, limits, id, bytes, out);
                }
            }
        }
        self.show(at.boot);
    }

    /// What became of a call.
    fn settle(
        &mut self,
        at: At,
        limits: &impl Limits,
        id: u64,
        reply: Option<Bytes>,
        out: &mut Outbox,
    ) {
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        let name = self.names[call.peer].clone();
        let merged = reply.as_ref().and_then(|reply| match call.purpose {
            Purpose::Digest => Some(()),
            Purpose::Frame(_) | Purpose::Repair => {
                let frame = Frame::read(reply).ok()?;
                self.merge(at, limits, call.peer, &frame, None)
            }
        });
        match call.purpose {
            Purpose::Frame(sent) => {
                let actions = match merged {
                    Some(()) => self.machine.replied(&name, sent, at.boot),
                    None => self.machine.failed(&name, sent, at.boot),
                };
                self.act(at, limits, actions, out);
            }
            Purpose::Digest | Purpose::Repair => {
                if let Purpose::Digest = call.purpose
                    && let Some(reply) = reply
                {
                    self.compare(at, limits, call.peer, &reply);
                }
                let next = self
                    .comparisons
                    .get_mut(&call.peer)
                    .filter(|_| merged.is_some());
                match next {
                    Some(comparison) => match comparison.todo.pop_front() {
                        Some(bytes) => {
                            self.call(at, limits, (call.peer, Purpose::Repair), bytes, out);
                        }
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

    fn hear(
        &mut self,
        at: At,
        limits: &impl Limits,
        (from, incarnation): (usize, u64),
        bytes: &[u8],
    ) -> Option<Bytes> {
        let frame = Frame::read(bytes).ok()?;
        let head = frame.head();
        match head.kind {
            Kind::Digest => {
                let digest = Digest::read(&frame).ok()?;
                let choice = self.sums(at, limits).choose(&digest);
                let mut collection = Collection::begin_pass(at.now, choice.ranges);
                self.collect(at, limits, &mut collection);
                let own = self.ledger.actors().own_actor();
                let listing = collection.listing(own, head.round, choice.next);
                self.collections.insert(from, collection);
                Some(listing)
            }
            Kind::Want => {
                let want = Want::read(&frame).ok()?;
                let references = self.collections.get(&from)?.places(&want);
                let pages = Pages::of(&self.ledger, limits.names(), &references, true);
                Some(pages.single(&self.ledger, Kind::Repair, head.round))
            }
            _ => {
                let mut reply = FrameWriter::new(self.ledger.actors().own());
                self.merge(at, limits, from, &frame, Some(&mut reply))?;
                self.entries += u64::try_from(frame.entries().count()).unwrap_or(0);
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
        limits: &impl Limits,
        from: usize,
        frame: &Frame<'_>,
        reply: Option<&mut FrameWriter>,
    ) -> Option<()> {
        let place = Place {
            ledger: &self.ledger,
            names: limits.names(),
            version: limits.version(),
            now: at.now,
            boot: at.boot,
            round_every: ROUND_EVERY,
        };
        let lives = |region: &RegionName, process| self.sight.lives(region, process, at.boot);
        let keep = |entry: &Entry<'_>, counter: &mut Counter, mesh: &Mesh| {
            if let Some((limit, epoch)) = limits.limit(entry.tenant, entry.limit, entry.key, at.now)
                && epoch == counter.epoch
            {
                counter.reserve(limit, mesh, at.boot, at.now);
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
                    latency: self.latency(peer),
                    lag: self.machine.lag(name, boot),
                    backlog: self.machine.backlog_len(name),
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

    /// How many regions there are.
    pub fn regions(&self) -> usize {
        self.names.len()
    }

    /// A region's name.
    pub fn name_of(&self, peer: usize) -> &RegionName {
        &self.names[peer]
    }

    /// How long ago the oldest counts were gathered that a peer has not acknowledged; of the one furthest behind.
    pub fn lag(&self, boot: Span) -> Span {
        let lags = self.names.iter().map(|name| self.machine.lag(name, boot));
        lags.max().unwrap_or(Span::ZERO)
    }
}
