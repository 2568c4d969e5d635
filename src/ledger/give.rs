//! Giving back, and what goes with holds: refunds, settles, releases, renewals.
//!
//! Units go back to the charge they came from: same epoch, same window, same entry. If that charge decides
//! nothing any more, nothing is given. No more is ever given than is in use, so a counter's sum never
//! passes below zero by a gift.

use crate::algorithm::concurrency::Lease;
use crate::catalogue::intern::LimitId;
use crate::domain::limit::Limit;
use crate::domain::time::Timestamp;
use crate::ledger::Ledger;
use crate::ledger::check::Item;
use crate::ledger::counter::Counter;
use crate::ledger::counter::Entries;
use crate::ledger::counter::GiveBack;
use crate::ledger::hold::Receipt;
use crate::ledger::shard::Entry;
use crate::ledger::shard::Name;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;

/// What came of a gift or a late charge.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moved {
    /// Units that moved.
    pub units: u64,
    /// The counter after it, for disk.
    pub record: Option<CounterRecord>,
}

impl Ledger {
    /// Runs `change` on the counter of (`id`, `tenant`, `key`), brought to `now`, if there is one and it is
    /// the one that is `meant`.
    fn change<T>(
        &self,
        (id, limit): (LimitId, &Limit),
        (tenant, key): (&str, &str),
        now: Timestamp,
        meant: impl FnOnce(&mut Counter) -> bool,
        change: impl FnOnce(&mut Counter) -> T,
    ) -> Option<(T, CounterRecord)> {
        let (shard, hash) = self.locate(id, tenant, key);
        let mut shard = self.shards[shard].lock();
        let place = shard.find(hash, id, tenant, key)?;
        let counter = &mut shard.get(place)?.counter;
        if !meant(counter) {
            return None;
        }
        // Before it is marked as changed: the mark is on the window that is the newest then.
        counter.prepare(&limit.rule, now);
        let known = shard.change(place)?;
        let done = change(known);
        let standing = known.standing(&limit.rule, now);
        known.note_life(&limit.rule, &standing, now);
        let counter = CounterId {
            limit: limit.name.clone(),
            tenant: tenant.into(),
            key: key.into(),
        };
        let record = known.record(counter, self.actors.own(), self.start, Entries::Unsaved);
        Some((done, record))
    }

    /// Gives up to `units` of one charge back to where they came from.
    pub fn give_back(
        &self,
        id: LimitId,
        limit: &Limit,
        receipt: &Receipt,
        units: u64,
        hold: u128,
        now: Timestamp,
    ) -> Moved {
        let counter = &receipt.counter;
        let what = GiveBack {
            units: units.min(receipt.units),
            window: receipt.window,
            entry: receipt.entry,
            hold,
        };
        let given = self.change(
            (id, limit),
            (&counter.tenant, &counter.key),
            now,
            |counter| counter.epoch == receipt.epoch && counter.fits(&limit.rule),
            |counter| counter.give_back(&limit.rule, &what, self.start),
        );
        given.map_or_else(Moved::default, |(units, record)| Moved {
            units,
            record: Some(record),
        })
    }

    /// Gives back up to `item.cost` units of what is in use now.
    pub fn refund(&self, item: &Item<'_>, tenant: &str, now: Timestamp) -> Moved {
        let given = self.change(
            (item.id, item.limit),
            (tenant, item.key),
            now,
            |counter| counter.enter_with(item.epoch, item.limit),
            |counter| counter.refund(&item.limit.rule, item.cost),
        );
        given.map_or_else(Moved::default, |(units, record)| Moved {
            units,
            record: Some(record),
        })
    }

    /// Charges `item.cost` units that have been used already, past the quota if need be.
    ///
    /// On a concurrency limit they are added to the hold's lease: `lease` names the hold and its end, its
    /// units are not read.
    pub fn charge_late(
        &self,
        item: &Item<'_>,
        tenant: &str,
        lease: Lease,
        now: Timestamp,
    ) -> Moved {
        let (shard, hash) = self.locate(item.id, tenant, item.key);
        let mut shard = self.shards[shard].lock();
        let (place, held) = match shard.find(hash, item.id, tenant, item.key) {
            Some(place) => (place, now),
            None => {
                // What was used is counted whatever the bounds say.
                self.admit_key(tenant, true);
                let held = shard.held(now);
                let name = Name::new(item.id, tenant, item.key);
                let counter = Counter::new(item.epoch);
                (shard.insert(hash, name, counter), held)
            }
        };
        // Prepared before it is marked as changed: the mark is on the window that is the newest then.
        let enters = |entry: &mut Entry| {
            let is_meant = entry.counter.enter_with(item.epoch, item.limit);
            if is_meant {
                entry.counter.prepare(&item.limit.rule, held);
            }
            is_meant
        };
        if !shard.get(place).is_some_and(enters) {
            // The limit has another shape by now, and its use began from zero.
            return Moved::default();
        }
        let Some(counter) = shard.change(place) else {
            return Moved::default();
        };
        counter.charge(&item.limit.rule, item.cost, now, Some(lease));
        let standing = counter.standing(&item.limit.rule, now);
        counter.note_life(&item.limit.rule, &standing, now);
        let id = CounterId {
            limit: item.limit.name.clone(),
            tenant: tenant.into(),
            key: item.key.into(),
        };
        let record = counter.record(id, self.actors.own(), self.start, Entries::Unsaved);
        Moved {
            units: item.cost,
            record: Some(record),
        }
    }

    /// Moves the end of a hold's lease on a concurrency limit.
    pub fn renew(
        &self,
        id: LimitId,
        limit: &Limit,
        receipt: &Receipt,
        hold: u128,
        expires_at: Timestamp,
        now: Timestamp,
    ) {
        let counter = &receipt.counter;
        self.change(
            (id, limit),
            (&counter.tenant, &counter.key),
            now,
            |counter| counter.epoch == receipt.epoch && counter.fits(&limit.rule),
            |counter| counter.renew(hold, expires_at),
        );
    }
}
