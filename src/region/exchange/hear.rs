//! Takes what peers tell of their counters. Runs where a frame arrives, one after another for each link.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use crate::catalogue::intern::LimitId;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::counter;
use crate::ledger::counter::Counter;
use crate::ledger::counter::Unsent;
use crate::ledger::exchange::Heard;
use crate::ledger::exchange::LONG_AGO;
use crate::ledger::exchange::News;
use crate::ledger::exchange::Told;
use crate::ledger::mesh::Mesh;
use crate::ledger::sharing::Gossip;
use crate::peer::Identity;
use crate::region::exchange::Word;
use crate::region::state::Region;
use crate::replication::wire::Entry;
use crate::replication::wire::Frame;
use crate::replication::wire::FrameWriter;
use crate::replication::wire::Head;
use crate::replication::wire::Kind;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorId;
use crate::usage::actor::Site;
use crate::usage::window::Slot;

/// A limit that is in force elsewhere is in the catalogue here within this time, or not at all.
const NEW_LIMIT_WITHIN: Span = Span::from_seconds(5);
/// When no unknown limit was told of for so long, the next one is a new one.
const NEW_LIMITS_FORGOTTEN: Span = Span::from_seconds(60);

/// What the actors in a frame are called here; `None`: there are too many.
type Numbers = SmallVec<[Option<Number>; 8]>;

/// What an actor in a frame is called here.
#[derive(Clone, Copy)]
struct Number {
    actor: ActorId,
    site: Site,
    /// Whether the actor tells of itself, here or in frames of its own.
    speaks: bool,
}

/// What all entries of a frame are merged with.
struct Merging<'a> {
    /// Whose frame it is.
    site: Site,
    /// What is new was charged after this.
    since: Timestamp,
    numbers: Numbers,
    mesh: &'a Mesh,
    boot: Span,
}

impl Region {
    /// Takes a frame of `from`. What is told is merged before this returns.
    pub fn hear_usage(
        self: Arc<Self>,
        from: &Identity,
        body: Bytes,
    ) -> Option<BoxFuture<'static, Bytes>> {
        let frame = match Frame::read(&body) {
            Ok(frame) => frame,
            Err(error) => {
                self.exchange.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(region = %from.region, %error, "counts that cannot be read");
                return None;
            }
        };
        let peer = from.region.clone();
        match frame.head().kind {
            Kind::Digest => {
                let answered = async move { self.answer_digest(&peer, &body).await };
                // An empty reply is none: the peer tries again.
                Some(answered.map(Option::unwrap_or_default).boxed())
            }
            Kind::Want => {
                let reply = self.answer_want(&peer, &frame)?;
                Some(std::future::ready(reply).boxed())
            }
            _ => {
                let reply = self.hear_frame(from, &frame)?;
                Some(std::future::ready(reply).boxed())
            }
        }
    }

    /// Merges a frame; the reply says so, and tells what the sender may not know of the counters in it that are near
    /// their limits. `None`: it was not merged, and must be told again.
    fn hear_frame(&self, from: &Identity, frame: &Frame<'_>) -> Option<Bytes> {
        let head = frame.head();
        let mut reply = FrameWriter::new(self.ledger.actors().own());
        self.merge(&from.region, frame, Some(&mut reply))?;
        if head.kind == Kind::Everything {
            let word = Word::ToldEverything(from.region.clone(), from.incarnation);
            self.exchange.words.try_send(word).ok()?;
        }
        let boot = self.clock.boot();
        self.exchange
            .sight
            .heard(&from.region, boot, &self.name, &self.ledger);
        Some(self.finish(reply, &Head::single(Kind::Reply, head.round)))
    }

    /// Merges the reply to a frame.
    pub fn hear_reply(&self, from: &RegionName, body: &[u8]) -> Option<()> {
        match Frame::read(body) {
            Ok(frame) => self.merge(from, &frame, None),
            Err(error) => {
                self.exchange.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(region = %from, %error, "a reply that cannot be read");
                None
            }
        }
    }

    /// The bytes of a frame of this region.
    pub fn finish(&self, writer: FrameWriter, head: &Head) -> Bytes {
        let roster = self.ledger.roster();
        writer.finish(head, |id| roster.actor(id))
    }

    /// Merges all entries; `None` when one of them cannot be merged yet.
    fn merge(
        &self,
        from: &RegionName,
        frame: &Frame<'_>,
        mut reply: Option<&mut FrameWriter>,
    ) -> Option<()> {
        let boot = self.clock.boot();
        let numbers: Numbers = frame
            .actors()
            .enumerate()
            .map(|(index, named)| {
                let region = RegionName::new(named.region).ok()?;
                let incarnation = named.incarnation;
                // The sender is the first actor of its frame.
                let speaks = index == 0 || self.exchange.sight.lives(&region, incarnation, boot);
                let actor = Actor {
                    region,
                    incarnation,
                };
                let (actor, site) = self.ledger.number(&actor)?;
                Some(Number {
                    actor,
                    site,
                    speaks,
                })
            })
            .collect();
        let site = self.ledger.site(from)?;
        let mesh = self.ledger.mesh();
        let latency = mesh.peers.iter().find(|peer| peer.site == site);
        // What a peer could not tell at once was charged at any time before.
        let is_fresh = matches!(frame.head().kind, Kind::Round | Kind::Reply)
            && latency.is_some_and(|peer| peer.is_reachable);
        let latency = latency.map_or(Span::ZERO, |peer| peer.latency);
        let since = if is_fresh {
            self.clock.now().minus(self.exchange.interval.plus(latency))
        } else {
            LONG_AGO
        };
        if numbers.iter().any(Option::is_none) {
            // Slots of processes that cannot be told apart are lost.
            self.exchange.refused.fetch_add(1, Ordering::Relaxed);
        }
        let merging = Merging {
            site,
            since,
            numbers,
            mesh: &mesh,
            boot,
        };
        let names = self.replica.names();
        let version = self.view().version();
        let mut limit: Option<(&str, LimitId)> = None;
        let mut is_whole = true;
        for entry in frame.entries() {
            let known = match limit {
                Some((name, id)) if name == entry.limit => Some(id),
                _ => names.get(entry.limit),
            };
            let Some(id) = known.filter(|_| entry.epoch <= version) else {
                // Newer than the catalogue here, which comes in a moment: all else is merged, and it is told again.
                is_whole &= !self.waits_for_limits_of(from, boot);
                continue;
            };
            limit = Some((entry.limit, id));
            self.merge_entry(&merging, id, &entry, reply.as_deref_mut());
        }
        is_whole.then_some(())
    }

    /// Whether a frame with a limit that the catalogue here lacks is to be told again: a new limit comes in a moment.
    /// One that was deleted never does, and must not hold up all the rest.
    fn waits_for_limits_of(&self, from: &RegionName, boot: Span) -> bool {
        let mut unknown = self.exchange.unknown_limits.lock();
        let (since, last) = unknown.entry(from.clone()).or_insert((boot, boot));
        if boot.minus(*last) > NEW_LIMITS_FORGOTTEN {
            *since = boot;
        }
        *last = boot;
        boot.minus(*since) < NEW_LIMIT_WITHIN
    }

    fn merge_entry(
        &self,
        merging: &Merging<'_>,
        limit: LimitId,
        entry: &Entry<'_>,
        reply: Option<&mut FrameWriter>,
    ) {
        let (site, boot, now) = (merging.site, merging.boot, self.clock.now());
        let news = News {
            limit,
            tenant: entry.tenant,
            key: entry.key,
            epoch: entry.epoch,
            dead_at: entry.dead_at,
            since: merging.since,
        };
        let told = entry.windows().flat_map(|window| {
            let start = window.start;
            window.slots().filter_map(move |counts| {
                let number = merging.numbers.get(counts.actor as usize);
                let number = number.copied().flatten()?;
                Some(Told {
                    window: start,
                    slot: Slot {
                        actor: number.actor,
                        p: counts.p,
                        n: counts.n,
                        site: number.site,
                    },
                    speaks: number.speaks,
                })
            })
        });
        let gossip = entry.gossip.map(|[demand, peak]| Gossip { demand, peak });
        let before = |counter: &mut Counter| {
            if merging.mesh.is_degraded() && counter.is_shared() {
                self.keep_parts(merging, entry, counter, now);
            }
        };
        let heard = self.ledger.hear(&news, now, told, before, |counter| {
            counter.hear_demand(boot, site, gossip);
            if entry.near
                && let Some(reply) = reply
            {
                self.put_known(reply, entry, counter);
            }
        });
        if matches!(heard, Heard::Refused | Heard::TooFarAhead) {
            self.exchange.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A region that did not use a limit when others were cut off takes their part from what was left then, not from
    /// what its side has left by the time it is asked.
    fn keep_parts(
        &self,
        merging: &Merging<'_>,
        entry: &Entry<'_>,
        counter: &mut Counter,
        now: Timestamp,
    ) {
        let view = self.view();
        let tenant = view.tenant(entry.tenant);
        let found = tenant.and_then(|tenant| tenant.limit(entry.limit));
        if let Some((limit, epoch)) = found.map(|found| found.at(entry.key, now))
            && epoch == counter.epoch
        {
            counter.reserve(limit, merging.mesh, merging.boot, now);
        }
    }

    /// Puts all that is known of a counter into a reply.
    fn put_known(&self, reply: &mut FrameWriter, entry: &Entry<'_>, counter: &Counter) {
        if reply.is_full() {
            return;
        }
        let head = crate::region::exchange::tell::EntryHead {
            limit: entry.limit,
            tenant: entry.tenant,
            key: entry.key,
            gossip: None,
        };
        let own = self.ledger.actors().own();
        crate::region::exchange::tell::put(
            reply,
            &head,
            counter,
            counter::Told::ChangedWithAll,
            Unsent::ALL,
            own,
        );
    }
}
