//! What regions tell each other of their counters: gathering own changes, hearing those of peers.
//!
//! A peer's word raises slots that belong to other processes and nothing else: it opens no window here, moves no
//! clock, and what it says of this process itself is not news. Counters that were never seen here are kept.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockReadGuard;

use crate::catalogue::intern::LimitId;
use crate::domain::name::KEY_BYTES_MAX;
use crate::domain::name::is_tenant_name;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::ledger::Ledger;
use crate::ledger::SHARDS;
use crate::ledger::counter::Counter;
use crate::ledger::mesh::Mesh;
use crate::ledger::shard::GRACE;
use crate::ledger::shard::Name;
use crate::ledger::shard::Place;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorId;
use crate::usage::actor::Roster;
use crate::usage::actor::Site;
use crate::usage::window::Slot;

/// A calendar window's name is civil time, which lies up to this far from its start.
const CIVIL_OFFSET_MAX: Span = Span::from_seconds(24 * 3600);

/// Leases end within a day and slices at most an eighth of it later; clocks differ.
const SLICE_END_MAX: Span = Span::from_seconds(48 * 3600);
/// In [`News::since`]: nobody knows since when.
pub const LONG_AGO: Timestamp = Timestamp::from_nanos(i64::MIN);

/// Where a counter stands in this ledger. After the counter ended, another may stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference(pub u64);

impl Reference {
    const fn new(shard: usize, place: u32) -> Self {
        Self((shard as u64) << 32 | place as u64)
    }

    pub(super) const fn of(shard: usize, place: Place) -> Self {
        Self::new(shard, place.number())
    }

    const fn shard(self) -> usize {
        (self.0 >> 32) as usize % SHARDS
    }

    const fn place(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }
}

/// What a peer tells of one counter, before its windows.
#[derive(Clone, Copy, Debug)]
pub struct News<'a> {
    /// The limit.
    pub limit: LimitId,
    /// The tenant.
    pub tenant: &'a str,
    /// The key, or nothing.
    pub key: &'a str,
    /// The epoch of the use.
    pub epoch: u64,
    /// From here on it can change no decision.
    pub dead_at: Timestamp,
    /// What is new in its fresh slots was charged after this, or [`LONG_AGO`].
    pub since: Timestamp,
}

/// One slot in what a peer tells.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Of which window.
    pub window: WindowId,
    /// The slot.
    pub slot: Slot,
    /// Whether the process of the slot tells of it itself. If not, others may lack it and would hear of it from nobody.
    pub speaks: bool,
    /// Whether the process of the slot is in touch, so that what is news was charged after [`News::since`]. What is
    /// heard of another was charged at any time: who tells it may have learnt of it only now.
    pub is_fresh: bool,
}

/// What came of a peer's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Kept, or known before.
    Kept,
    /// The use ended, or its epoch did.
    Over,
    /// The window begins too far ahead.
    TooFarAhead,
    /// There is no room for another counter, or its name is none.
    Refused,
}

impl Ledger {
    /// Whether changes are kept for peers from now on.
    pub fn keep_for_peers(&self, kept: bool) {
        for shard in &self.shards {
            shard.lock().keep_for_peers(kept);
        }
    }

    /// Says how it stands with the other regions.
    pub fn set_mesh(&self, mesh: Mesh) {
        self.mesh.store(Arc::new(mesh));
    }

    pub(super) fn note_ended(&self, (overshoot, quota): (u64, u64)) {
        self.ended[0].fetch_add(overshoot, Ordering::Relaxed);
        self.ended[1].fetch_add(quota, Ordering::Relaxed);
    }

    /// Of the shared windows that were seen to end since the start: units that all regions admitted beyond their
    /// quotas, as far as is known here, and the sum of these quotas.
    pub fn ended_windows(&self) -> (u64, u64) {
        let of = |place: usize| self.ended[place].load(Ordering::Relaxed);
        (of(0), of(1))
    }

    /// How it stands with the other regions, as last told.
    pub fn mesh(&self) -> Arc<Mesh> {
        self.mesh.load_full()
    }

    /// The number of a process and of its region.
    pub fn number(&self, actor: &Actor) -> Option<(ActorId, Site)> {
        self.roster.write().number(actor)
    }

    /// The number of a region.
    pub fn site(&self, region: &crate::domain::name::RegionName) -> Option<Site> {
        self.roster.write().site(region)
    }

    /// The processes whose slots are told apart.
    pub fn roster(&self) -> RwLockReadGuard<'_, Roster> {
        self.roster.read()
    }

    /// Hands out every counter of one shard that changed since the last call; whoever takes them tells the peers.
    pub fn gather(&self, shard: usize, mut each: impl FnMut(Reference, &Name, &mut Counter)) {
        let shard = shard % SHARDS;
        self.shards[shard]
            .lock()
            .drain_unsent(|place, name, counter| {
                each(Reference::new(shard, place), name, counter);
            });
    }

    /// Shows the counter at a reference; false when none stands there.
    pub fn at(&self, reference: Reference, each: impl FnOnce(&Name, &mut Counter)) -> bool {
        let mut shard = self.shards[reference.shard()].lock();
        match shard.at(reference.place()) {
            Some((name, counter)) => {
                each(name, counter);
                true
            }
            None => false,
        }
    }

    /// Shows every counter of one shard.
    pub fn visit(&self, shard: usize, mut each: impl FnMut(Reference, &Name, &Counter)) {
        let shard = shard % SHARDS;
        self.shards[shard].lock().visit(|place, name, counter| {
            each(Reference::new(shard, place), name, counter);
        });
    }

    /// References to all counters of one shard.
    pub fn references(&self, shard: usize, out: &mut Vec<Reference>) {
        let shard = shard % SHARDS;
        let places = self.shards[shard].lock();
        out.extend(places.places().map(|place| Reference::new(shard, place)));
    }

    /// Counters near their limits that peers should hear of at once.
    pub fn take_urgent(&self) -> Vec<Reference> {
        std::mem::take(&mut *self.urgent.lock())
    }

    /// Joins what a peer told of one counter. `before` sees the counter as it was, `then` as it is afterwards.
    pub fn hear(
        &self,
        news: &News<'_>,
        now: Timestamp,
        told: impl Iterator<Item = Told>,
        before: impl FnOnce(&mut Counter),
        then: impl FnOnce(&mut Counter),
    ) -> Heard {
        if !is_tenant_name(news.tenant) || news.key.len() > KEY_BYTES_MAX {
            return Heard::Refused;
        }
        let is_over = news.dead_at.plus(GRACE) <= now;
        let own = self.actors.own();
        let (index, hash) = self.locate(news.limit, news.tenant, news.key);
        let mut shard = self.shards[index].lock();
        let place = match shard.find(hash, news.limit, news.tenant, news.key) {
            Some(place) => place,
            None if is_over => return Heard::Over,
            // Keys of other regions never take the last room from those that are asked here.
            None if self.keys() >= self.bounds.keys_max / 8 * 7 => return Heard::Refused,
            None => {
                let mut room = self.admit_key(news.tenant, false);
                if !room {
                    self.relieve(&mut shard, now, &[]);
                    room = self.admit_key(news.tenant, false);
                }
                if !room {
                    return Heard::Refused;
                }
                let name = Name::new(news.limit, news.tenant, news.key);
                shard.insert(hash, name, Counter::new(news.epoch))
            }
        };
        let Some(entry) = shard.get(place) else {
            return Heard::Refused;
        };
        let counter = &mut entry.counter;
        if news.epoch < counter.epoch {
            return Heard::Over;
        }
        if is_over {
            let epoch = counter.epoch;
            let others = told.filter(|told| told.slot.actor != own && news.epoch == epoch);
            for told in others.filter(|told| !is_too_far_ahead(told.window, news.dead_at, now)) {
                counter.hear_over(told.window, told.slot, now);
            }
            return Heard::Over;
        }
        counter.enter_epoch(news.epoch);
        before(counter);
        let mut heard = Heard::Kept;
        let mut is_orphan = false;
        for told in told {
            if is_too_far_ahead(told.window, news.dead_at, now) {
                heard = Heard::TooFarAhead;
            } else if told.slot.actor != own {
                let since = if told.is_fresh { news.since } else { LONG_AGO };
                let raise = counter.hear(told.window, told.slot, since, now);
                is_orphan |= !told.speaks && !raise.is_zero();
            }
        }
        if heard == Heard::Kept {
            counter.live_until(news.dead_at);
        }
        counter.draw_heard(now, news.dead_at);
        then(counter);
        if is_orphan {
            shard.mark_all_unsent(place);
        }
        heard
    }
}

/// Whether a window begins more than its length and 10 s after `now`; its length is told by when its use ends. A
/// slice of leases, which is named by the negative of its end, may end no later than any lease can.
fn is_too_far_ahead(window: WindowId, dead_at: Timestamp, now: Timestamp) -> bool {
    if window.0 < 0 {
        let end = Timestamp::from_nanos(window.0.saturating_neg());
        return end > now.plus(SLICE_END_MAX);
    }
    let start = Timestamp::from_nanos(window.0);
    let latest = now.plus(dead_at.since(start)).plus(GRACE);
    start > latest && start > now.plus(CIVIL_OFFSET_MAX)
}
