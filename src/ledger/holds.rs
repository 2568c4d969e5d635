//! The table of holds: open ones, and closed ones for as long as their answer may be asked for again.
//!
//! A hold is changed under its shard's lock, which is always taken before any lock of the counters. The
//! table is bounded; a hold that is closed or expired, and that the disk knows to be so, makes room for a
//! new one; an open one never does.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::algorithm::concurrency;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::hold::HoldKey;
use crate::ledger::hold::HoldRecord;
use crate::ledger::hold::HoldState;

const SHARDS: usize = 64;
/// A closed or expired hold is remembered this long after its end.
pub const REMEMBERED: Span = Span::from_seconds(3600);
/// The longest hold.
pub const TTL_MAX: Span = concurrency::TTL_MAX;

#[derive(Debug)]
struct Held {
    record: HoldRecord,
    /// Whether the disk lacks this version.
    dirty: bool,
}

#[derive(Debug, Default)]
struct Shard {
    holds: HashMap<HoldKey, Held>,
    order: VecDeque<HoldKey>,
    dirty: Vec<HoldKey>,
}

/// All holds of one region.
#[derive(Debug)]
pub struct Holds {
    shards: Box<[Mutex<Shard>]>,
    count: AtomicUsize,
    max: usize,
}

/// Where a hold stands at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Can be settled, renewed and released.
    Open,
    /// Its time is over.
    Expired,
    /// Settled or released.
    Closed,
}

impl HoldRecord {
    /// Where the hold stands.
    pub fn standing(&self, now: Timestamp) -> Standing {
        match self.state {
            HoldState::Closed { .. } => Standing::Closed,
            HoldState::Open if concurrency::is_live(self.expires_at, now) => Standing::Open,
            HoldState::Open => Standing::Expired,
        }
    }
}

impl Holds {
    /// An empty table for at most `max` holds.
    pub fn new(max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            max,
        }
    }

    fn shard(&self, key: HoldKey) -> &Mutex<Shard> {
        // The key is random bits, so its low ones spread well.
        let index = usize::try_from(key.0 & 0xffff).unwrap_or(0);
        &self.shards[index % SHARDS]
    }

    /// Holds that are remembered.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a place for one more hold; false when the table is full of open ones.
    pub fn reserve(&self, now: Timestamp) -> bool {
        if self.count.fetch_add(1, Ordering::Relaxed) < self.max {
            return true;
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            // A hold whose end the disk has not seen would come back open and be given back twice.
            let over = |held: &Held| !held.dirty && held.record.standing(now) != Standing::Open;
            if self.drop_ended(&mut shard, 64, over) > 0 {
                return true;
            }
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Gives a reserved place back.
    pub fn unreserve(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Puts a new hold on its reserved place.
    pub fn open(&self, record: HoldRecord) {
        let key = record.key;
        let mut shard = self.shard(key).lock();
        shard.order.push_back(key);
        shard.dirty.push(key);
        let held = Held {
            record,
            dirty: true,
        };
        if shard.holds.insert(key, held).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Puts another version in place of a hold that was opened before.
    pub fn replace(&self, record: HoldRecord) {
        let key = record.key;
        self.with(key, |hold| {
            *hold = HoldRecord {
                version: hold.version + 1,
                ..record
            }
        });
    }

    /// Takes over a hold that was read back from disk; the newest version of one hold wins.
    pub fn restore(&self, record: HoldRecord) {
        let key = record.key;
        let mut shard = self.shard(key).lock();
        match shard.holds.get_mut(&key) {
            Some(known) if known.record.version >= record.version => {}
            Some(known) => known.record = record,
            None => {
                let held = Held {
                    record,
                    dirty: false,
                };
                shard.order.push_back(key);
                shard.holds.insert(key, held);
                self.count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Runs `change` on a hold under its lock; `None` when there is no such hold. The hold goes to disk
    /// again if its version rose.
    pub fn with<T>(&self, key: HoldKey, change: impl FnOnce(&mut HoldRecord) -> T) -> Option<T> {
        let mut shard = self.shard(key).lock();
        let held = shard.holds.get_mut(&key)?;
        let version = held.record.version;
        let done = change(&mut held.record);
        if held.record.version != version && !held.dirty {
            held.dirty = true;
            shard.dirty.push(key);
        }
        Some(done)
    }

    /// Every hold, a shard at a time.
    pub fn for_each(&self, mut each: impl FnMut(&HoldRecord)) {
        for shard in &self.shards {
            let shard = shard.lock();
            shard.holds.values().for_each(|held| each(&held.record));
        }
    }

    /// Holds that changed since the last call, for disk.
    pub fn drain(&self) -> Vec<HoldRecord> {
        let mut changed = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            for key in std::mem::take(&mut shard.dirty) {
                if let Some(held) = shard.holds.get_mut(&key)
                    && held.dirty
                {
                    held.dirty = false;
                    changed.push(held.record.clone());
                }
            }
        }
        changed
    }

    /// Forgets holds whose time to be remembered is over: at most `most` of each shard.
    pub fn sweep(&self, now: Timestamp, most: usize) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.drop_ended(&mut shard, most, |held| held.record.forget_at <= now);
        }
    }

    fn drop_ended(&self, shard: &mut Shard, most: usize, ended: impl Fn(&Held) -> bool) -> usize {
        let mut dropped = 0;
        for _ in 0..most.min(shard.order.len()) {
            let Some(key) = shard.order.pop_front() else {
                break;
            };
            match shard.holds.get(&key) {
                Some(held) if ended(held) => {
                    shard.holds.remove(&key);
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    dropped += 1;
                }
                Some(_) => shard.order.push_back(key),
                None => {}
            }
        }
        dropped
    }
}
