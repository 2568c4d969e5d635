//! The ledger: the admission machine of one region.
//!
//! ```text
//! Request { now, tenant, items } ──► lock the shards of all items, in index order
//!                                    ├─ prepare each counter (roll windows, drop what ended)
//!                                    ├─ ask each: may it pass?            (nothing written yet)
//!                                    └─ all pass: charge all; else charge none
//!                                  ──► Outcome { per item: decision, standing, receipt, record }
//! ```
//!
//! Files: [`counter`] (one counter's state), [`shard`] (many counters behind a lock), [`check`] (the atomic
//! step), [`exchange`] (what
//! peers are told and what they tell), [`give`] (refunds, settles, releases), [`holds`] and [`answers`] (tables of open holds and
//! remembered answers), [`look`] (use by region), [`mesh`] (the other regions) and [`sharing`] (who may use
//! what is left of an approximate limit), [`restore`] (what comes back from disk), [`export`] (all of
//! it at once).
//!
//! Invariants kept here, with the tests that hold them (in `tests/laws/`):
//! - 1 A check is atomic: `parallel_checks_never_pass_more_than_the_quota`,
//!   `a_check_of_several_limits_charges_all_or_none`.
//! - 4, 5 Use is per (incarnation, window, epoch): `use_of_an_old_epoch_or_window_changes_nothing`.
//! - 7 No input, clock or amount makes it panic or wrap: `no_input_panics`.
//! - 9 Counters are bounded, per region and per tenant, and live ones are never dropped to make room:
//!   `a_live_counter_survives_any_flood`.
//!
//! The ledger never reads a clock, never waits for a disk and never sees another region: `region` does
//! these things around it. Its mutexes are held for single decisions only, and several are always taken in
//! index order.

pub mod answers;
pub mod check;
pub mod counter;
pub mod exchange;
pub mod export;
pub mod give;
pub mod hold;
pub mod holds;
pub mod idempotency;
mod judge;
pub mod look;
pub mod mesh;
pub mod restore;
pub mod shard;
pub mod sharing;

use std::hash::BuildHasher;
use std::hash::Hasher;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use ahash::RandomState;
use arc_swap::ArcSwap;
use compact_str::CompactString;
use hashbrown::HashMap;
use parking_lot::Mutex;
use parking_lot::RwLock;

use crate::catalogue::intern::LimitId;
use crate::domain::name::LimitName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::counter::Entries;
use crate::ledger::exchange::Reference;
use crate::ledger::mesh::Mesh;
use crate::ledger::shard::Entry;
use crate::ledger::shard::GRACE;
use crate::ledger::shard::Place;
use crate::ledger::shard::Shard;
use crate::usage::actor::ActorTable;
use crate::usage::actor::Roster;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;

/// Shards: enough that two threads seldom meet, few enough that a sweep step of each is quick.
const SHARDS: usize = 256;
/// Places that a full ledger looks at in one shard to make room for a new counter.
const PRESSURE_CELLS: u32 = 128;
/// Shards of the table of counters per tenant.
const TENANT_SHARDS: usize = 64;

/// Bounds of a ledger.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Counters in all.
    pub keys_max: usize,
    /// Counters of one tenant.
    pub keys_per_tenant_max: usize,
}

/// The counters of one region.
#[derive(Debug)]
pub struct Ledger {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    bounds: Bounds,
    keys: AtomicUsize,
    tenants: Box<[Mutex<HashMap<CompactString, u32>>]>,
    refused_keys: AtomicU64,
    actors: ActorTable,
    roster: RwLock<Roster>,
    urgent: Mutex<Vec<Reference>>,
    mesh: ArcSwap<Mesh>,
    /// Of shared windows that ended: units beyond the quotas, and the quotas.
    ended: [AtomicU64; 2],
    start: u32,
    sweep_next: AtomicU32,
}

impl Ledger {
    /// An empty ledger.
    ///
    /// `seed` is 128 random bits that keep key hashes unguessable; `start` is the number of this process's
    /// start in its store.
    pub fn new(bounds: Bounds, actors: ActorTable, start: u32, seed: [u64; 2]) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(start))).collect(),
            hasher: RandomState::with_seeds(
                seed[0],
                seed[1],
                0x9e37_79b9_7f4a_7c15,
                0x2545_f491_4f6c_dd1d,
            ),
            bounds,
            keys: AtomicUsize::new(0),
            tenants: (0..TENANT_SHARDS).map(|_| Mutex::default()).collect(),
            refused_keys: AtomicU64::new(0),
            roster: RwLock::new(Roster::new(actors.clone())),
            urgent: Mutex::default(),
            mesh: ArcSwap::default(),
            ended: [AtomicU64::new(0), AtomicU64::new(0)],
            actors,
            start,
            sweep_next: AtomicU32::new(0),
        }
    }

    /// Counters that are kept now.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// New counters that were refused because the ledger, or their tenant's part, was full.
    pub fn refused_keys(&self) -> u64 {
        self.refused_keys.load(Ordering::Relaxed)
    }

    /// The processes whose slots this ledger knows.
    pub const fn actors(&self) -> &ActorTable {
        &self.actors
    }

    /// The number of this process's start.
    pub const fn start(&self) -> u32 {
        self.start
    }

    fn locate(&self, limit: LimitId, tenant: &str, key: &str) -> (usize, u32) {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(limit.0);
        hasher.write_usize(tenant.len());
        hasher.write(tenant.as_bytes());
        hasher.write(key.as_bytes());
        let hash = hasher.finish();
        // Shard and place come from different bits.
        let shard = usize::try_from(hash >> 40).unwrap_or(0) % SHARDS;
        (shard, (hash & u64::from(u32::MAX)) as u32)
    }

    fn tenant_shard(&self, tenant: &str) -> &Mutex<HashMap<CompactString, u32>> {
        let hash = usize::try_from(self.hasher.hash_one(tenant) >> 1).unwrap_or(0);
        &self.tenants[hash % TENANT_SHARDS]
    }

    /// Counts a new counter in; false when it would pass a bound. `forced` passes every bound: what was
    /// live before a restart is never forgotten.
    fn admit_key(&self, tenant: &str, forced: bool) -> bool {
        {
            let mut tenants = self.tenant_shard(tenant).lock();
            match tenants.get_mut(tenant) {
                Some(keys) if *keys as usize >= self.bounds.keys_per_tenant_max && !forced => {
                    return false;
                }
                Some(keys) => *keys = keys.saturating_add(1),
                None if self.bounds.keys_per_tenant_max == 0 && !forced => return false,
                None => {
                    tenants.insert(CompactString::new(tenant), 1);
                }
            }
        }
        let before = self.keys.fetch_add(1, Ordering::Relaxed);
        if before >= self.bounds.keys_max && !forced {
            self.forget_key(tenant);
            return false;
        }
        true
    }

    fn forget_key(&self, tenant: &str) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
        let mut tenants = self.tenant_shard(tenant).lock();
        if let Some(keys) = tenants.get_mut(tenant) {
            *keys = keys.saturating_sub(1);
            if *keys == 0 {
                tenants.remove(tenant);
            }
        }
    }

    fn forget(&self, entry: &Entry) {
        self.forget_key(entry.name.tenant());
    }

    /// Makes room in `shard` by dropping dead counters, at once and without their grace; not those at `spared`.
    fn relieve(&self, shard: &mut Shard, now: Timestamp, spared: &[Place]) {
        shard.sweep(now, Span::ZERO, PRESSURE_CELLS, spared, |entry| {
            self.forget(&entry);
        });
    }

    /// Drops dead counters: looks at about `cells` places, going on from the last call.
    pub fn sweep(&self, now: Timestamp, cells: u32) {
        const STEP: u32 = 256;
        for _ in 0..cells.div_ceil(STEP) {
            let next = self.sweep_next.load(Ordering::Relaxed) as usize % SHARDS;
            let ended = self.shards[next]
                .lock()
                .sweep(now, GRACE, STEP, &[], |entry| self.forget(&entry));
            if ended {
                let following = u32::try_from((next + 1) % SHARDS).unwrap_or(0);
                self.sweep_next.store(following, Ordering::Relaxed);
            }
        }
    }

    /// How many shards [`Ledger::drain`] can be asked for.
    pub const fn shards(&self) -> usize {
        SHARDS
    }

    /// What the counters of one shard changed since the last call, for disk. `name_of` gives a limit's name.
    pub fn drain(
        &self,
        shard: usize,
        name_of: impl Fn(LimitId) -> Option<LimitName>,
        out: &mut Vec<CounterRecord>,
    ) {
        let own = self.actors.own();
        self.shards[shard % SHARDS]
            .lock()
            .drain_dirty(|name, counter| {
                if let Some(limit) = name_of(name.limit) {
                    let id = CounterId {
                        limit,
                        tenant: name.tenant().into(),
                        key: name.key().into(),
                    };
                    let record = counter.record(id, own, self.start, Entries::TakeUnsaved);
                    if !record.is_empty() {
                        out.push(record);
                    }
                }
            });
    }
}
