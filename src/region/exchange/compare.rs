//! Compares this region's counters with those of a peer and tells each other what differs: finds what slipped past
//! the rounds, whatever the reason. See [`crate::replication::repair`].
//!
//! A comparison runs beside the telling task, a shard at a time, so that no check waits long for a lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::domain::name::RegionName;
use crate::domain::time::Timestamp;
use crate::ledger::counter::Counter;
use crate::ledger::exchange::Reference;
use crate::peer::Service;
use crate::region::exchange::tell::REPLY_WITHIN;
use crate::region::state::Region;
use crate::replication::pass::Marks;
use crate::replication::pass::state;
use crate::replication::pass::visit;
use crate::replication::repair::Collection;
use crate::replication::repair::Digest;
use crate::replication::repair::Identity;
use crate::replication::repair::Listing;
use crate::replication::repair::Sums;
use crate::replication::repair::WANT_MAX;
use crate::replication::repair::Want;
use crate::replication::wire::Frame;
use crate::replication::wire::Kind;

/// Shards that are walked before others get a turn.
const SHARDS_TOGETHER: usize = 8;
/// Counters in one frame of what a peer lacks.
const GIVEN_TOGETHER: usize = 500;

impl Region {
    /// Compares with `peer`, beginning at the range `from`, and tells each other what differs. Says where the next
    /// turn goes on; the error: the peer was not reached, or said something else.
    ///
    /// # Errors
    /// See above.
    pub async fn compare(
        self: Arc<Self>,
        peer: &RegionName,
        round: u64,
        from: u16,
    ) -> Result<Option<u16>, Unanswered> {
        let own = self.ledger.actors().own_actor().clone();
        let sums = self.sums().await;
        let reply = self.ask(peer, sums.digest(&own, round, from)).await?;
        let frame = Frame::read(&reply).map_err(|_| Unanswered)?;
        let listing = Listing::read(&frame).map_err(|_| Unanswered)?;
        let next = listing.next();
        let mut collection = Collection::begin_pass(self.clock.now(), listing.ranges());
        self.collect(&mut collection).await;
        let difference = collection.compare(&listing);
        let repaired = difference.give.len() + difference.want.len();
        self.exchange
            .repaired
            .fetch_add(repaired as u64, Ordering::Relaxed);
        for references in difference.give.chunks(GIVEN_TOGETHER) {
            for (bytes, _) in self.pages(references, Kind::Repair, round) {
                let reply = self.ask(peer, bytes).await?;
                self.hear_reply(peer, &reply).ok_or(Unanswered)?;
            }
        }
        for identities in difference.want.chunks(WANT_MAX) {
            let reply = self.ask(peer, Want::write(&own, round, identities)).await?;
            self.hear_reply(peer, &reply).ok_or(Unanswered)?;
        }
        Ok(next)
    }

    async fn ask(&self, peer: &RegionName, bytes: Bytes) -> Result<Bytes, Unanswered> {
        let peers = self.peers.get().ok_or(Unanswered)?;
        let called = peers.call(peer, Service::Usage, bytes, REPLY_WITHIN);
        called.await.map_err(|_| Unanswered)
    }

    /// Lists the ranges in which a peer's sums differ from those here.
    pub async fn answer_digest(&self, from: &RegionName, body: &[u8]) -> Option<Bytes> {
        let frame = Frame::read(body).ok()?;
        let digest = Digest::read(&frame).ok()?;
        let sums = self.sums().await;
        let choice = sums.choose(&digest);
        let mut collection = Collection::begin_pass(self.clock.now(), choice.ranges);
        self.collect(&mut collection).await;
        let own = self.ledger.actors().own_actor();
        let listing = collection.listing(own, frame.head().round, choice.next);
        // What the peer then wants is named by what it was listed by.
        let mut collections = self.exchange.collections.lock();
        collections.insert(from.clone(), collection);
        Some(listing)
    }

    /// Tells a peer the counters that it wants of the last listing.
    pub fn answer_want(&self, from: &RegionName, frame: &Frame<'_>) -> Option<Bytes> {
        let want = Want::read(frame).ok()?;
        let references = {
            let collections = self.exchange.collections.lock();
            collections.get(from)?.places(&want)
        };
        Some(self.page(&references, Kind::Repair, frame.head().round))
    }

    async fn sums(&self) -> Sums {
        let now = self.clock.now();
        let mut sums = Sums::begin_pass(now);
        let mut marks = Marks::default();
        self.walk(now, |_, identity, counter| {
            sums.add(
                state(&self.ledger, identity, counter, &mut marks),
                counter.dead_at,
            );
        })
        .await;
        sums
    }

    async fn collect(&self, collection: &mut Collection) {
        let now = self.clock.now();
        let mut marks = Marks::default();
        self.walk(now, |reference, identity, counter| {
            if collection.wants(identity) {
                let state = state(&self.ledger, identity, counter, &mut marks);
                collection.add(state, counter.dead_at, reference);
            }
        })
        .await;
        collection.finish_pass();
    }

    /// Shows every counter that lives on for a while.
    async fn walk(&self, now: Timestamp, mut each: impl FnMut(Reference, Identity, &Counter)) {
        for shard in 0..self.ledger.shards() {
            let names = self.replica.names();
            visit(&self.ledger, &names, shard, now, &mut each);
            drop(names);
            if shard % SHARDS_TOGETHER == SHARDS_TOGETHER - 1 {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// The peer was not reached, or said something else.
#[derive(Clone, Copy, Debug)]
pub struct Unanswered;
