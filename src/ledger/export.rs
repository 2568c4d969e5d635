//! All of a ledger as one value, and back: for a replicated log, whose snapshots must go on exactly like the
//! original.
//!
//! Unlike the records of [`crate::ledger::restore`], which join what different processes counted, this is a
//! copy: names of log entries, leases and the memory of counters that are gone come over as they are.

use compact_str::CompactString;
use serde::Deserialize;
use serde::Serialize;

use crate::catalogue::intern::LimitId;
use crate::domain::time::Timestamp;
use crate::ledger::Ledger;
use crate::ledger::counter::Counter;
use crate::ledger::shard::Name;

/// Everything that a ledger knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Image {
    counters: Vec<Exported>,
    /// By shard.
    memories: Vec<(u64, Timestamp)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Exported {
    limit: LimitId,
    tenant: CompactString,
    key: CompactString,
    counter: Counter,
}

impl Ledger {
    /// Drops every dead counter at once, so that what is left depends on what was decided alone.
    pub fn sweep_all(&self, now: Timestamp) {
        for shard in &self.shards {
            shard.lock().sweep_all(now, |entry| self.forget(&entry));
        }
    }

    /// A copy of everything. Ledgers that go on alike give equal copies, whether they were imported or not.
    pub fn export(&self) -> Image {
        let mut image = Image::default();
        for shard in &self.shards {
            let shard = shard.lock();
            image.memories.push(shard.memory());
            image.counters.extend(shard.entries().map(|entry| {
                let mut counter = entry.counter.clone();
                // The mark says that a disk lacks something, and the list of those marks is not part of a copy.
                counter.dirty = false;
                Exported {
                    limit: entry.name.limit,
                    tenant: CompactString::new(entry.name.tenant()),
                    key: CompactString::new(entry.name.key()),
                    counter,
                }
            }));
        }
        image.counters.sort_unstable_by(|one, other| {
            (one.limit, &one.tenant, &one.key).cmp(&(other.limit, &other.tenant, &other.key))
        });
        image
    }

    /// Takes an image over; meant for a ledger that is empty and was made with the same seed.
    pub fn import(&self, image: Image) {
        for (shard, memory) in self.shards.iter().zip(image.memories) {
            shard.lock().remember(memory);
        }
        for exported in image.counters {
            let (shard, hash) = self.locate(exported.limit, &exported.tenant, &exported.key);
            self.admit_key(&exported.tenant, true);
            let name = Name::new(exported.limit, &exported.tenant, &exported.key);
            self.shards[shard]
                .lock()
                .insert(hash, name, exported.counter);
        }
    }
}
