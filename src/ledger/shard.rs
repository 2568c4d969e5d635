//! One shard of the ledger: the counters whose name hashes here, behind one short lock.
//!
//! Counters stand in chunks that never move, so growing never copies them and the sweep can go through
//! them in small steps; a table of (position, hash) finds them. A counter's name is (limit, tenant, key)
//! with the tenant's length in front, so that the parts can never run together.

use std::mem;

use compact_str::CompactString;
use hashbrown::HashTable;

use crate::algorithm::BACK_STEP_MAX;
use crate::catalogue::intern::LimitId;
use crate::domain::name::TENANT_BYTES_MAX;
use crate::domain::stamp::Stamp;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::counter;
use crate::ledger::counter::Counter;

/// Counters in one chunk.
const CHUNK: usize = 64;
/// A dead counter is kept this long, so that late words about it find it.
pub const GRACE: Span = Span::from_seconds(10);

/// The name of a counter inside the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The limit.
    pub limit: LimitId,
    /// Length of the tenant's name less one, the tenant, the key.
    text: CompactString,
}

impl Name {
    /// The name of `tenant`'s counter of `limit` for `key` (empty: the limit has no key).
    pub fn new(limit: LimitId, tenant: &str, key: &str) -> Self {
        debug_assert!(
            (1..=TENANT_BYTES_MAX).contains(&tenant.len()),
            "a tenant's name was checked at the edge"
        );
        let length = u8::try_from(tenant.len().saturating_sub(1)).unwrap_or(127) & 127;
        let mut text = CompactString::with_capacity(1 + tenant.len() + key.len());
        text.push(char::from(length));
        text.push_str(tenant);
        text.push_str(key);
        Self { limit, text }
    }

    fn split(&self) -> (&str, &str) {
        let length = usize::from(self.text.as_bytes().first().copied().unwrap_or(0)) + 1;
        let rest = self.text.get(1..).unwrap_or("");
        rest.split_at_checked(length).unwrap_or((rest, ""))
    }

    /// The tenant.
    pub fn tenant(&self) -> &str {
        self.split().0
    }

    /// The key, or nothing.
    pub fn key(&self) -> &str {
        self.split().1
    }

    fn is(&self, limit: LimitId, tenant: &str, key: &str) -> bool {
        self.limit == limit && self.split() == (tenant, key)
    }
}

/// A counter in its place.
#[derive(Debug)]
pub struct Entry {
    /// The counter's name.
    pub name: Name,
    /// The counter.
    pub counter: Counter,
    hash: u32,
}

/// Where a counter stands in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// Its number in the shard.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The counters of one shard.
#[derive(Debug)]
pub struct Shard {
    index: HashTable<(u32, u32)>,
    chunks: Vec<Vec<Option<Entry>>>,
    free: Vec<u32>,
    dirty: Vec<u32>,
    /// Places of counters that peers lack something of.
    unsent: Vec<u32>,
    keeps_for_peers: bool,
    swept: u32,
    /// No counter that was removed had a higher version.
    floor: u64,
    /// The latest instant at which a counter was removed.
    horizon: Timestamp,
}

/// The cells of a chunk, those that were never used included.
fn chunk_cells(chunk: &[Option<Entry>]) -> impl Iterator<Item = Option<&Entry>> {
    let unused = CHUNK - chunk.len();
    let used = chunk.iter().map(Option::as_ref);
    used.chain(std::iter::repeat_n(None, unused))
}

const fn spread(hash: u32) -> u64 {
    // The table takes its control byte from the top and its position from the bottom.
    (hash as u64) << 32 | hash as u64
}

impl Shard {
    /// An empty shard of the `start`-th process.
    pub fn new(start: u32) -> Self {
        Self {
            index: HashTable::new(),
            chunks: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            unsent: Vec::new(),
            keeps_for_peers: false,
            swept: 0,
            floor: counter::version(Stamp { start, count: 0 }),
            horizon: Timestamp::from_nanos(i64::MIN),
        }
    }

    /// The instant to which a counter that is not here is brought at `now`: it may have been here until the
    /// last sweep, and time does not run back behind that.
    pub fn held(&self, now: Timestamp) -> Timestamp {
        if self.horizon <= now.plus(BACK_STEP_MAX) {
            self.horizon.max(now)
        } else {
            now
        }
    }

    /// Counters that stand here.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether nothing stands here.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    fn cell(&self, place: u32) -> Option<&Entry> {
        self.chunks
            .get(place as usize / CHUNK)?
            .get(place as usize % CHUNK)?
            .as_ref()
    }

    fn cell_mut(&mut self, place: u32) -> Option<&mut Entry> {
        self.chunks
            .get_mut(place as usize / CHUNK)?
            .get_mut(place as usize % CHUNK)?
            .as_mut()
    }

    /// Finds a counter.
    pub fn find(&self, hash: u32, limit: LimitId, tenant: &str, key: &str) -> Option<Place> {
        self.index
            .find(spread(hash), |(place, known)| {
                *known == hash
                    && self
                        .cell(*place)
                        .is_some_and(|entry| entry.name.is(limit, tenant, key))
            })
            .map(|(place, _)| Place(*place))
    }

    /// The counter at a place that `find` or `insert` gave under the same lock.
    pub fn get(&mut self, place: Place) -> Option<&mut Entry> {
        self.cell_mut(place.0)
    }

    /// Puts in a counter that is not here yet.
    pub fn insert(&mut self, hash: u32, name: Name, counter: Counter) -> Place {
        let entry = Entry {
            name,
            counter,
            hash,
        };
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
                    self.chunks.push(Vec::with_capacity(CHUNK));
                }
                let full_chunks = self.chunks.len() - 1;
                let last = &mut self.chunks[full_chunks];
                last.push(None);
                u32::try_from(full_chunks * CHUNK + last.len() - 1).expect(
                    "invariant: max_keys is checked to fit u32 when the configuration is read",
                )
            }
        };
        if let Some(cell) = self
            .chunks
            .get_mut(place as usize / CHUNK)
            .and_then(|c| c.get_mut(place as usize % CHUNK))
        {
            *cell = Some(entry);
        }
        self.index
            .insert_unique(spread(hash), (place, hash), |(_, hash)| spread(*hash));
        Place(place)
    }

    /// The counter at a place, about to be changed: the disk lacks something of it from now on.
    pub fn change(&mut self, place: Place) -> Option<&mut Counter> {
        if self.dirty.len() >= self.chunks.len() * CHUNK * 2 {
            self.compact_dirty();
        }
        let cell = self.chunks.get_mut(place.0 as usize / CHUNK)?;
        let entry = cell.get_mut(place.0 as usize % CHUNK)?.as_mut()?;
        if !entry.counter.dirty {
            entry.counter.dirty = true;
            self.dirty.push(place.0);
        }
        if self.keeps_for_peers && entry.counter.mark_unsent() {
            self.unsent.push(place.0);
        }
        entry.counter.touch(self.floor);
        Some(&mut entry.counter)
    }

    /// Lists every dirty place once.
    ///
    /// A place whose counter was swept stands in the list once more when its next counter is changed; as
    /// long as nobody drains the list (a failed store), only this keeps it from growing without end.
    fn compact_dirty(&mut self) {
        let cells = u32::try_from(self.chunks.len() * CHUNK).unwrap_or(u32::MAX);
        let is_dirty = |place: &u32| self.cell(*place).is_some_and(|entry| entry.counter.dirty);
        self.dirty = (0..cells).filter(is_dirty).collect();
    }

    /// Hands out every dirty counter once and takes the mark from it.
    pub fn drain_dirty(&mut self, mut each: impl FnMut(&Name, &mut Counter)) {
        for place in mem::take(&mut self.dirty) {
            if let Some(entry) = self.cell_mut(place)
                && entry.counter.dirty
            {
                entry.counter.dirty = false;
                each(&entry.name, &mut entry.counter);
            }
        }
    }

    /// Whether changes are kept for peers from now on.
    pub fn keep_for_peers(&mut self, kept: bool) {
        self.keeps_for_peers = kept;
        if !kept {
            self.drain_unsent(|_, _, _| {});
        }
    }

    /// Peers lack something of the counter at a place that did not change itself.
    pub fn mark_unsent(&mut self, place: Place) {
        if self.keeps_for_peers
            && let Some(entry) = self.cell_mut(place.0)
            && entry.counter.mark_unsent()
        {
            self.unsent.push(place.0);
        }
    }

    /// Peers may lack anything of the counter at a place, of other processes' slots too.
    pub fn mark_all_unsent(&mut self, place: Place) {
        if self.keeps_for_peers
            && let Some(entry) = self.cell_mut(place.0)
            && entry.counter.mark_all_unsent()
        {
            self.unsent.push(place.0);
        }
    }

    /// Hands out every counter that peers lack something of; whoever takes it takes the mark from it.
    pub fn drain_unsent(&mut self, mut each: impl FnMut(u32, &Name, &mut Counter)) {
        for place in mem::take(&mut self.unsent) {
            if let Some(entry) = self.cell_mut(place)
                && entry.counter.is_unsent()
            {
                each(place, &entry.name, &mut entry.counter);
                entry.counter.take_unsent();
            }
        }
    }

    /// The counter that stands at a place by now.
    pub fn at(&mut self, place: u32) -> Option<(&Name, &mut Counter)> {
        self.cell_mut(place)
            .map(|entry| (&entry.name, &mut entry.counter))
    }

    /// Shows every counter and its place.
    pub fn visit(&self, mut each: impl FnMut(u32, &Name, &Counter)) {
        for (place, cell) in (0..).zip(self.chunks.iter().flat_map(|chunk| chunk_cells(chunk))) {
            if let Some(entry) = cell {
                each(place, &entry.name, &entry.counter);
            }
        }
    }

    /// Places where a counter stands.
    pub fn places(&self) -> impl Iterator<Item = u32> {
        let cells = u32::try_from(self.chunks.len() * CHUNK).unwrap_or(u32::MAX);
        (0..cells).filter(|place| self.cell(*place).is_some())
    }

    /// Looks at up to `cells` places, going on from the last call, and removes counters that are dead at
    /// `now`, but none at `spared`; returns whether the end was reached. Removed entries are handed to `gone`.
    pub fn sweep(
        &mut self,
        now: Timestamp,
        grace: Span,
        cells: u32,
        spared: &[Place],
        mut gone: impl FnMut(Entry),
    ) -> bool {
        let end = u32::try_from(self.chunks.len() * CHUNK).unwrap_or(u32::MAX);
        let from = if self.swept >= end { 0 } else { self.swept };
        let to = from.saturating_add(cells).min(end);
        for place in from..to {
            if self
                .cell(place)
                .is_some_and(|entry| entry.counter.ends_at().plus(grace) <= now)
                && !spared.contains(&Place(place))
                && let Some(entry) = self.remove(place)
            {
                self.horizon = self.horizon.max(now);
                gone(entry);
            }
        }
        self.swept = to;
        if to < end {
            return false;
        }
        self.swept = 0;
        if self.index.is_empty() && !self.chunks.is_empty() {
            self.index = HashTable::new();
            self.chunks = Vec::new();
            self.free = Vec::new();
            self.dirty = Vec::new();
            self.unsent = Vec::new();
        }
        true
    }

    /// Removes every counter that is dead at `now`, wherever it stands: which ones these are depends on
    /// nothing but their own state.
    pub fn sweep_all(&mut self, now: Timestamp, mut gone: impl FnMut(Entry)) {
        let cells = u32::try_from(self.chunks.len() * CHUNK).unwrap_or(u32::MAX);
        for place in 0..cells {
            if self
                .cell(place)
                .is_some_and(|entry| entry.counter.ends_at() <= now)
                && let Some(entry) = self.remove(place)
            {
                self.horizon = self.horizon.max(now);
                gone(entry);
            }
        }
    }

    /// What the shard remembers of counters that are gone: the floor of versions and the horizon.
    pub const fn memory(&self) -> (u64, Timestamp) {
        (self.floor, self.horizon)
    }

    /// Takes over what another shard remembered.
    pub fn remember(&mut self, (floor, horizon): (u64, Timestamp)) {
        self.floor = self.floor.max(floor);
        self.horizon = self.horizon.max(horizon);
    }

    /// Every counter.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().flatten().flatten()
    }

    fn remove(&mut self, place: u32) -> Option<Entry> {
        let entry = self
            .chunks
            .get_mut(place as usize / CHUNK)?
            .get_mut(place as usize % CHUNK)?
            .take()?;
        if let Ok(found) = self
            .index
            .find_entry(spread(entry.hash), |(known, _)| *known == place)
        {
            found.remove();
        }
        self.free.push(place);
        self.floor = self.floor.max(entry.counter.version());
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_dirty_places_is_bounded_when_nobody_drains_it() {
        let mut shard = Shard::new(1);
        // One counter that lives keeps the shard from being emptied as a whole.
        let keep = shard.insert(8, Name::new(LimitId(1), "t", "x"), live());
        shard.change(keep);
        let mut place = shard.insert(7, Name::new(LimitId(1), "t", "0"), Counter::new(1));
        for n in 1..10_000 {
            shard.change(place);
            shard.sweep(Timestamp::EPOCH, Span::ZERO, 64, &[], |_| ());
            assert_eq!(shard.len(), 1);
            let name = Name::new(LimitId(1), "t", &n.to_string());
            place = shard.insert(7, name, Counter::new(1));
        }
        assert!(shard.dirty.len() <= 2 * CHUNK, "{}", shard.dirty.len());
        shard.change(place);
        let mut drained = Vec::new();
        shard.drain_dirty(|name, _| drained.push(name.key().to_owned()));
        drained.sort();
        assert_eq!(drained, ["9999", "x"]);
    }

    fn live() -> Counter {
        let mut counter = Counter::new(1);
        counter.dead_at = Timestamp::MAX;
        counter
    }

    #[test]
    fn parts_of_a_name_do_not_run_together() {
        let long = "t".repeat(TENANT_BYTES_MAX);
        for (tenant, key) in [
            ("a:b", "c"),
            ("a", "b:c"),
            ("a", ""),
            (long.as_str(), "\u{0}"),
            ("日本", "語"),
        ] {
            let name = Name::new(LimitId(1), tenant, key);
            assert_eq!((name.tenant(), name.key()), (tenant, key));
        }
    }
}
