//! Comparing with a peer, as `region::exchange::compare` does.

use std::collections::VecDeque;

use highwater::replication::pages::Pages;
use highwater::replication::pass;
use highwater::replication::pass::Marks;
use highwater::replication::repair::Collection;
use highwater::replication::repair::Listing;
use highwater::replication::repair::Sums;
use highwater::replication::repair::WANT_MAX;
use highwater::replication::repair::Want;
use highwater::replication::wire::Frame;
use highwater::replication::wire::Kind;

use super::At;
use super::Comparison;
use super::Node;

impl Node {
    pub(super) fn compare(&mut self, at: At, peer: usize, reply: &[u8]) {
        let frame = Frame::read(reply).expect("a listing");
        let listing = Listing::read(&frame).expect("a listing");
        let mut collection = Collection::begin_pass(at.now, listing.ranges());
        self.collect(at, &mut collection);
        let difference = collection.compare(&listing);
        self.repaired += (difference.give.len() + difference.want.len()) as u64;
        let mut todo = VecDeque::new();
        let names = &self.catalogue.names;
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

    pub(super) fn sums(&self, at: At) -> Sums {
        let mut sums = Sums::begin_pass(at.now);
        let mut marks = Marks::default();
        for shard in 0..self.ledger.shards() {
            let names = &self.catalogue.names;
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

    pub(super) fn collect(&self, at: At, collection: &mut Collection) {
        let mut marks = Marks::default();
        for shard in 0..self.ledger.shards() {
            let names = &self.catalogue.names;
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
