//! Takes what peers tell of their counters. Runs where a frame arrives, one after another for each link.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::ledger::counter::Counter;
use crate::ledger::mesh::Mesh;
use crate::peer::Identity;
use crate::region::exchange::Word;
use crate::region::state::Region;
use crate::replication::merge::Place;
use crate::replication::merge::merge;
use crate::replication::pages;
use crate::replication::wire::Entry;
use crate::replication::wire::Frame;
use crate::replication::wire::FrameWriter;
use crate::replication::wire::Head;
use crate::replication::wire::Kind;

/// A limit that is in force elsewhere is in the catalogue here within this time, or not at all.
const NEW_LIMIT_WITHIN: Span = Span::from_seconds(5);
/// When no unknown limit was told of for so long, the next one is a new one.
const NEW_LIMITS_FORGOTTEN: Span = Span::from_seconds(60);

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
        let head = Head::single(Kind::Reply, head.round);
        Some(pages::finish(&self.ledger, reply, &head))
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

    /// Merges all entries; `None` when one of them cannot be merged yet.
    fn merge(
        &self,
        from: &RegionName,
        frame: &Frame<'_>,
        reply: Option<&mut FrameWriter>,
    ) -> Option<()> {
        let boot = self.clock.boot();
        let names = self.replica.names();
        let place = Place {
            ledger: &self.ledger,
            names: &names,
            now: self.clock.now(),
            boot,
            version: self.view().version(),
            round_every: self.exchange.interval,
        };
        let sight = &self.exchange.sight;
        let lives = |region: &RegionName, incarnation| sight.lives(region, incarnation, boot);
        let keep = |entry: &Entry<'_>, counter: &mut Counter, mesh: &Mesh| {
            self.keep_parts(&place, entry, counter, mesh);
        };
        let merged = merge(&place, from, frame, lives, keep, reply);
        self.exchange
            .refused
            .fetch_add(merged.refused, Ordering::Relaxed);
        (merged.is_whole || !self.waits_for_limits_of(from, boot)).then_some(())
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

    /// A region that did not use a limit when others were cut off takes their part from what was left then, not from
    /// what its side has left by the time it is asked.
    fn keep_parts(&self, place: &Place<'_>, entry: &Entry<'_>, counter: &mut Counter, mesh: &Mesh) {
        let view = self.view();
        let tenant = view.tenant(entry.tenant);
        let found = tenant.and_then(|tenant| tenant.limit(entry.limit));
        if let Some((limit, epoch)) = found.map(|found| found.at(entry.key, place.now))
            && epoch == counter.epoch
        {
            counter.reserve(limit, mesh, place.boot, place.now);
        }
    }
}
