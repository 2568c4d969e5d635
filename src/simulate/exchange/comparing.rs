//! Comparing with a peer, as `region::exchange::compare` does.

use std::collections::VecDeque;

use crate::replication::pages::Pages;
use crate::replication::pass;
use crate::replication::pass::Marks;
use crate::replication::repair::Collection;
use crate::replication::repair::Listing;
use crate::replication::repair::Sums;
use crate::replication::repair::WANT_MAX;
use crate::replication::repair::Want;
use crate::replication::wire::Frame;
use crate::replication::wire::Kind;

use super::At;
use super::Comparison;
use super::Exchange;
use super::Limits;

impl Exchange {
    pub(super) fn compare(&mut self, at: At, limits: &impl Limits, peer: usize, reply: &[u8]) {
        let Ok(frame) = Frame::read(reply) else {
            return;
        };
        let Ok(listing) = Listing::read(&frame) else {
            return;
        };
        let mut collection = Collection::begin_pass(at.now, listing.ranges());
        self.collect(at, limits, &mut collection);
        let difference = collection.compare(&listing);
        self.repaired += u64::try_from(difference.give.len() + difference.want.len()).unwrap_or(0);
        let mut todo = VecDeque::new();
        let names = limits.names();
        for references in difference.give.chunks(500) {
            let pages = Pages::of(&self.ledger, names, references, false);
            let frames = pages.finish(&self.ledger, Kind::Repair, self.round);
            todo.extend(frames.into_iter().map(|(bytes, _)| bytes));
        }
        let own = self.ledger.actors().own_actor();
        let wants = difference.want.chunks(WANT_MAX);
        todo.extend(wants.map(|wanted| Want::write(own, self.round, wanted)));
        let next = listing.next();
        self.comparisons.insert(peer, Comparison { next, todo });
    }

    pub(super) fn sums(&self, at: At, limits: &impl Limits) -> Sums {
        let mut sums = Sums::begin_pass(at.now);
        let mut marks = Marks::default();
        for shard in 0..self.ledger.shards() {
            let names = limits.names();
            pass::visit(
                &self.ledger,
                names,
                shard,
                at.now,
                |_, identity, counter| {
                    let state = pass::state(&self.ledger, identity, counter, &mut marks);
                    sums.add(state, counter.dead_at);
                },
            );
        }
        sums
    }

    pub(super) fn collect(&self, at: At, limits: &impl Limits, collection: &mut Collection) {
        let mut marks = Marks::default();
        for shard in 0..self.ledger.shards() {
            let names = limits.names();
            pass::visit(
                &self.ledger,
                names,
                shard,
                at.now,
                |place, identity, counter| {
                    if collection.wants(identity) {
                        let state = pass::state(&self.ledger, identity, counter, &mut marks);
                        collection.add(state, counter.dead_at, place);
                    }
                },
            );
        }
        collection.finish_pass();
    }
}
