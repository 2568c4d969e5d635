//! A region made of the product's own machines, for the tables: one limit, one key.

use std::collections::BTreeSet;

use highwater::domain::decision::Decision;
use highwater::domain::limit::Durability;
use highwater::domain::limit::Limit;
use highwater::domain::limit::Mode;
use highwater::domain::limit::OnPartition;
use highwater::domain::limit::OnUnavailable;
use highwater::domain::limit::Rule;
use highwater::domain::limit::Split;
use highwater::domain::name::LimitName;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::simulate::clock::EPOCH_NANOS;
use highwater::usage::actor::Actor;
use highwater::usage::actor::ActorTable;

use super::Outbox;
use super::Region;
use super::Setup;
use super::node::At;
use super::node::Body;
use super::node::Catalogue;
use super::node::Message;
use super::node::Node;
use super::node::names;

/// An approximate limit that is enforced.
pub fn limit(name: &str, rule: Rule, split: Split, on_partition: OnPartition) -> Limit {
    Limit {
        name: LimitName::new(name).expect("a limit's name"),
        rule,
        key: None,
        actions: BTreeSet::new(),
        matches: Default::default(),
        mode: Mode::Approximate,
        on_unavailable: OnUnavailable::Closed,
        fallback_quota: 0,
        on_partition,
        split,
        always_allow: BTreeSet::new(),
        overdraft: false,
        durability: Durability::Async,
        enforce: true,
        unlimited: false,
    }
}

/// The region.
pub struct Machines {
    node: Node,
    own: usize,
    delays: Vec<u64>,
    /// Processes of this region until now.
    starts: u32,
}

fn started(setup: &Setup, own: usize, delays: &[u64], starts: u32) -> Node {
    let names = names(setup.regions);
    let rule = setup.rule();
    let limits = vec![limit("api", rule, setup.split, setup.on_partition)];
    let actor = Actor {
        region: names[own].clone(),
        incarnation: u64::from(starts) << 8 | own as u64,
    };
    let table = (ActorTable::alone(actor), starts);
    let catalogue = Catalogue::new(limits);
    Node::start(own, &names, delays, &catalogue, table, vec![1])
}

const fn clocks(now: u64) -> At {
    At {
        now: Timestamp::from_nanos(EPOCH_NANOS + now as i64),
        boot: Span::from_nanos(now),
    }
}

impl Region for Machines {
    type Message = Message;

    fn new(setup: &Setup, own: usize, delays: &[u64]) -> Self {
        Self {
            node: started(setup, own, delays, 1),
            own,
            delays: delays.to_vec(),
            starts: 1,
        }
    }

    fn begin_again(&mut self, setup: &Setup) {
        self.starts += 1;
        self.node = started(setup, self.own, &self.delays, self.starts);
    }

    fn check(&mut self, now: u64, units: u64, out: &mut Outbox<Message>) -> bool {
        let outcome = self.node.check(clocks(now), (0, "", units), None, out);
        let told = &outcome.items[0];
        if outcome.allowed {
            // A3: no region passes the quota by what it knows.
            let quota = self.node.catalogue().limits[0].rule.quota();
            assert!(told.standing.used <= quota, "{told:?}");
        }
        // A8: nothing is pushed for what was refused.
        assert!(outcome.allowed || !outcome.is_urgent);
        told.decision == Decision::Allow
    }

    fn tick(&mut self, now: u64, out: &mut Outbox<Message>) {
        self.node.tick(clocks(now), out);
    }

    fn receive(&mut self, now: u64, from: usize, message: Message, out: &mut Outbox<Message>) {
        self.node.receive(clocks(now), from, message, out);
    }

    fn entries(message: &Message) -> u64 {
        match &message.body {
            Body::Call { bytes, .. } => {
                let frame = highwater::replication::wire::Frame::read(bytes);
                frame.map_or(0, |frame| frame.entries().count() as u64)
            }
            _ => 0,
        }
    }
}
