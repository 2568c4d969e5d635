//! One process of a region, made of the product's own machines: `highwater::simulate::exchange` with limits that all regions
//! know alike, and epochs that each learns of by itself.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::ops::DerefMut;
use std::rc::Rc;

use highwater::catalogue::intern::Interner;
use highwater::catalogue::intern::LimitId;
use highwater::domain::limit::Limit;
use highwater::domain::name::RegionName;
use highwater::domain::time::Span;
use highwater::domain::time::Timestamp;
use highwater::ledger::check::Item;
use highwater::ledger::check::Outcome;
use highwater::ledger::check::Request;
use highwater::ledger::restore::Restorer;
use highwater::simulate::exchange::Exchange;
use highwater::simulate::exchange::Limits;
use highwater::usage::actor::ActorTable;
use highwater::usage::record::CounterRecord;

pub use highwater::simulate::exchange::At;
pub use highwater::simulate::exchange::Body;
pub use highwater::simulate::exchange::Message;
pub use highwater::simulate::exchange::Outbox;

pub use super::parts::Catalogue;
pub use super::parts::Slot;
pub use super::parts::SlotId;
pub use super::parts::names;
use super::parts::slots_of;

/// The tenant of all checks.
pub const TENANT: &str = "acme";

/// A process.
pub struct Node {
    counts: Exchange,
    pub epochs: Vec<u64>,
    /// What was gathered in which round, if that is to be kept.
    pub gathered: Option<Vec<(u64, Slot)>>,
    /// When a counter was dead by what was told of its slot again, if what is gathered is kept.
    pub told_again: BTreeMap<SlotId, Timestamp>,
    catalogue: Rc<Catalogue>,
}

impl Deref for Node {
    type Target = Exchange;

    fn deref(&self) -> &Exchange {
        &self.counts
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Exchange {
        &mut self.counts
    }
}

/// What a process knows of limits.
struct Known<'a> {
    catalogue: &'a Catalogue,
    epochs: &'a [u64],
}

impl Limits for Known<'_> {
    fn names(&self) -> &Interner {
        &self.catalogue.names
    }

    /// What is heard of an epoch before the catalogue tells of it is part of what goes wrong here.
    fn version(&self) -> u64 {
        u64::MAX
    }

    fn limit(&self, _: &str, name: &str, _: &str, _: Timestamp) -> Option<(&Limit, u64)> {
        let id = self.catalogue.names.get(name)?.0 as usize;
        Some((self.catalogue.limits.get(id)?, *self.epochs.get(id)?))
    }
}

impl Node {
    pub fn start(
        index: usize,
        names: &Rc<Vec<RegionName>>,
        delays_ms: &[u64],
        catalogue: &Rc<Catalogue>,
        identity: (ActorTable, u32),
        epochs: Vec<u64>,
    ) -> Self {
        let delays: Vec<Span> = delays_ms.iter().map(|ms| Span::from_ms(*ms)).collect();
        let mut counts = Exchange::start(index, names, &delays, identity);
        counts.gathered = Some(Vec::new());
        Self {
            counts,
            epochs,
            gathered: None,
            told_again: BTreeMap::new(),
            catalogue: Rc::clone(catalogue),
        }
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

    fn with_counts(&mut self, act: impl FnOnce(&mut Exchange, &Known<'_>)) {
        let known = Known {
            catalogue: &self.catalogue,
            epochs: &self.epochs,
        };
        act(&mut self.counts, &known);
        let frames = self.counts.gathered.replace(Vec::new());
        let told_again = std::mem::take(&mut self.counts.told_again);
        if let Some(gathered) = &mut self.gathered {
            let slots = told_again.iter().flat_map(|bytes| slots_of(bytes));
            self.told_again
                .extend(slots.map(|slot| (slot.id, slot.dead_at)));
            for (round, bytes) in frames.into_iter().flatten() {
                let slots = slots_of(&bytes).into_iter();
                gathered.extend(slots.map(|slot| (round, slot)));
            }
        }
    }

    /// Every 100 ms.
    pub fn tick(&mut self, at: At, out: &mut Outbox) {
        self.with_counts(|counts, limits| counts.tick(at, limits, out));
    }

    /// A message of the region `from`.
    pub fn receive(&mut self, at: At, from: usize, message: Message, out: &mut Outbox) {
        self.with_counts(|counts, limits| counts.receive(at, limits, from, message, out));
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
            self.with_counts(|counts, limits| counts.tell_urgent(at, limits, out));
        }
        outcome
    }

    /// How full a bucket is, in units; below zero: what has to come back first.
    pub fn level(&self, limit: usize, key: &str, now: Timestamp) -> f64 {
        let item = self.item(limit, key, 0);
        let flow = highwater::ledger::counter::flow(&item.limit.rule).expect("a bucket");
        let refill = self.ledger.standing(&item, TENANT, now).reset_after;
        let earned = flow.rate as f64 * refill.as_nanos() as f64 / flow.per.as_nanos() as f64;
        flow.capacity as f64 - earned
    }

    /// The epoch of a limit by the catalogue that this process has.
    pub fn epoch_of(&self, limit: &str) -> u64 {
        let id = self.catalogue.names.get(limit);
        id.map_or(0, |id| self.epochs[id.0 as usize])
    }

    pub fn catalogue(&self) -> &Rc<Catalogue> {
        &self.catalogue
    }
}
