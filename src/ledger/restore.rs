//! Bringing a ledger back from what the store kept.
//!
//! Records arrive in any order and any number per counter; they join by maximum. Sliding logs are joined
//! as records first and built once at the end, since building one for every record would take the square
//! of its length.

use hashbrown::HashMap;

use crate::algorithm::concurrency::Lease;
use crate::catalogue::intern::LimitId;
use crate::domain::name::KEY_BYTES_MAX;
use crate::domain::name::LimitName;
use crate::domain::name::is_tenant_name;
use crate::ledger::Ledger;
use crate::ledger::counter::Counter;
use crate::ledger::hold::HoldRecord;
use crate::ledger::hold::HoldState;
use crate::ledger::shard::Name;
use crate::usage::actor::Site;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;

/// Collects what the store kept and puts it into a ledger.
#[derive(Debug)]
pub struct Restorer<'a> {
    ledger: &'a Ledger,
    logs: HashMap<CounterId, CounterRecord>,
}

impl<'a> Restorer<'a> {
    /// Begins to restore `ledger`.
    pub fn new(ledger: &'a Ledger) -> Self {
        Self {
            ledger,
            logs: HashMap::new(),
        }
    }

    /// Joins one record. `limit` is the number of its limit's name.
    pub fn counter(&mut self, record: CounterRecord, limit: LimitId) {
        if record.log.is_empty() && !self.logs.contains_key(&record.id) {
            self.ledger.merge(&record, limit);
            return;
        }
        match self.logs.get_mut(&record.id) {
            Some(joined) => joined.merge(record),
            None => {
                self.logs.insert(record.id.clone(), record);
            }
        }
    }

    /// Puts the logs in. `id_of` tells a limit's number.
    pub fn finish(self, id_of: impl Fn(&LimitName) -> Option<LimitId>) {
        for record in self.logs.values() {
            if let Some(limit) = id_of(&record.id.limit) {
                self.ledger.merge(record, limit);
            }
        }
    }
}

impl Ledger {
    /// Joins a record into its counter, which is made if it is not there yet. A record of an older epoch
    /// than the counter's changes nothing, one of a newer epoch replaces it.
    pub fn merge(&self, record: &CounterRecord, limit: LimitId) {
        let (tenant, key) = (record.id.tenant.as_str(), record.id.key.as_str());
        self.with_counter(limit, tenant, key, record.epoch, |counter| {
            counter.enter_epoch(record.epoch);
            if counter.epoch == record.epoch {
                let sites = self.roster.read();
                let region = |actor| self.actors.get(actor).map(|actor| &actor.region);
                counter.merge(record, self.actors.own(), self.start, |actor| {
                    let site = region(actor).and_then(|region| sites.known_site(region));
                    site.unwrap_or(Site::HOME)
                });
            }
        });
    }

    /// Takes over the leases of a hold that was read back from disk. A hold that was settled or released has
    /// none: a lease of a concurrency limit is the hold itself and ends with it.
    pub fn restore_leases(
        &self,
        hold: &HoldRecord,
        concurrency: impl Fn(&CounterId) -> Option<LimitId>,
    ) {
        if hold.state != HoldState::Open {
            return;
        }
        for receipt in &hold.receipts {
            let Some(limit) = concurrency(&receipt.counter) else {
                continue;
            };
            let lease = Lease {
                hold: hold.key.0,
                expires_at: hold.expires_at,
                units: receipt.units,
            };
            let (tenant, key) = (
                receipt.counter.tenant.as_str(),
                receipt.counter.key.as_str(),
            );
            self.with_counter(limit, tenant, key, receipt.epoch, |counter| {
                counter.enter_epoch(receipt.epoch);
                if counter.epoch == receipt.epoch {
                    counter.restore_lease(lease);
                }
            });
        }
    }

    fn with_counter(
        &self,
        limit: LimitId,
        tenant: &str,
        key: &str,
        epoch: u64,
        change: impl FnOnce(&mut Counter),
    ) {
        // Names on disk were checked when they came in; a row that says otherwise is damaged, and its counter
        // could never be found again.
        if !is_tenant_name(tenant) || key.len() > KEY_BYTES_MAX {
            return;
        }
        let (shard, hash) = self.locate(limit, tenant, key);
        let mut shard = self.shards[shard].lock();
        let place = shard.find(hash, limit, tenant, key).unwrap_or_else(|| {
            self.admit_key(tenant, true);
            shard.insert(hash, Name::new(limit, tenant, key), Counter::new(epoch))
        });
        if let Some(entry) = shard.get(place) {
            change(&mut entry.counter);
            // Who tells peers begins with everything that is here; what comes later they would not hear of.
            shard.mark_all_unsent(place);
        }
    }
}
