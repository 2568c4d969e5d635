//! Anti-entropy: finds counters that differ between two regions although nobody owes them.
//!
//! Rounds and backlog tell all that changes; this finds what slipped past them, whatever the reason.
//!
//! ```text
//! a: pass over the ledger ─ Digest: 4096 (count, sum) ────────► b: pass, sums that differ, some ranges
//! a: collect the same ranges ◄──── Listing: (identity, state) ─ b: collect these ranges, keep where they stand
//! a: compare ─ Repair: counters that b lacks or has otherwise ► b: merge
//!            ─ Want: counters that a lacks or has otherwise ──► b: Repair as the reply ─► a: merge
//! ```
//!
//! A counter's identity is a fixed hash of its name and epoch; the top bits say its range. Its state is the
//! wrapping sum of a hash of each of its slots, and a range's sum that of its counters' states, so the order
//! of a walk does not matter. A counter that changes during this is taken to differ and told once more, which
//! merging does not mind; what one turn may list is bounded, and the next turn goes on behind it.

use bytes::Bytes;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::replication::sender::Ref;
use crate::usage::actor::Actor;

pub use crate::replication::survey::Digest;
pub use crate::replication::survey::Listing;
pub use crate::replication::survey::Want;

/// Ranges of counters.
pub const RANGES: u16 = 4096;
/// Counters that one listing has at most; a single range may have more.
pub const LISTING_ITEMS_MAX: usize = 8192;
/// Counters that are kept of one collection at most, come what may.
pub const COLLECTED_MAX: usize = 4 * LISTING_ITEMS_MAX;
/// Counters in one [`Want`].
pub const WANT_MAX: usize = 500;
/// Counters that die sooner than this are left out: clocks differ, and nobody will read them long.
pub const MARGIN: Span = Span::from_seconds(5);

const fn mix(mut x: u64) -> u64 {
    // The finalizer of splitmix64. Regions compare what it gives, so it is part of the wire format.
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn fold(mut hash: u64, text: &str) -> u64 {
    let (words, tail) = text.as_bytes().as_chunks::<8>();
    for word in words {
        hash = mix(hash ^ u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(tail) {
        *to = *from;
    }
    hash = mix(hash ^ u64::from_le_bytes(last));
    mix(hash ^ text.len() as u64)
}

/// A counter's name and epoch as a number that is the same in every region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(pub u64);

impl Identity {
    /// The identity of a counter; `key` is empty when the limit has none.
    pub fn new(limit: &str, tenant: &str, key: &str, epoch: u64) -> Self {
        Self(mix(fold(fold(fold(0, limit), tenant), key) ^ epoch))
    }

    /// The range that it is in, below [`RANGES`].
    pub const fn range(self) -> u16 {
        (self.0 >> 52) as u16
    }
}

/// An actor as a number that is the same in every region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActorMark(u64);

impl ActorMark {
    /// The mark of an actor.
    pub fn new(actor: &Actor) -> Self {
        Self(mix(fold(1, actor.region.as_str()) ^ actor.incarnation))
    }
}

/// The state of a counter: what is told in sums and listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    identity: Identity,
    sum: u64,
}

impl State {
    /// The state of a counter without slots.
    pub const fn new(identity: Identity) -> Self {
        Self { identity, sum: 0 }
    }

    /// Adds a slot; in any order, each once. Slots of windows that nobody reads any more are left out, since
    /// a peer need not take them.
    pub const fn slot(&mut self, window: WindowId, actor: ActorMark, p: u64, n: u64) {
        if p == 0 && n == 0 {
            return;
        }
        let counts = mix(p ^ mix(n));
        let slot = mix(window.0 as u64 ^ mix(actor.0 ^ counts));
        self.sum = self.sum.wrapping_add(mix(self.identity.0 ^ slot));
    }

    /// The counter.
    pub const fn identity(self) -> Identity {
        self.identity
    }

    /// The sum; 0: there is nothing in it.
    pub const fn sum(self) -> u64 {
        self.sum
    }
}

fn is_left_out(state: State, dead_at: Timestamp, now: Timestamp) -> bool {
    state.sum == 0 || dead_at <= now.plus(MARGIN)
}

/// A set of ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet([u64; 64]);

impl RangeSet {
    /// No range.
    pub const fn new() -> Self {
        Self([0; 64])
    }

    /// Adds a range below [`RANGES`].
    pub fn insert(&mut self, range: u16) {
        if let Some(word) = self.0.get_mut(usize::from(range / 64)) {
            *word |= 1 << (range % 64);
        }
    }

    /// Takes out a range.
    pub fn remove(&mut self, range: u16) {
        if let Some(word) = self.0.get_mut(usize::from(range / 64)) {
            *word &= !(1 << (range % 64));
        }
    }

    /// Whether a range is in it.
    pub fn contains(&self, range: u16) -> bool {
        self.0
            .get(usize::from(range / 64))
            .is_some_and(|word| word >> (range % 64) & 1 == 1)
    }

    /// Whether no range is in it.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(crate) const fn words(&self) -> &[u64; 64] {
        &self.0
    }

    pub(crate) fn from_words(words: impl Iterator<Item = u64>) -> Self {
        let mut set = Self::new();
        for (to, from) in set.0.iter_mut().zip(words) {
            *to = from;
        }
        set
    }

    /// Its ranges, beginning at `from` and going on at 0 behind the last.
    pub fn iter_from(&self, from: u16) -> impl Iterator<Item = u16> {
        (0..RANGES)
            .map(move |n| (from % RANGES + n) % RANGES)
            .filter(|range| self.contains(*range))
    }
}

impl Default for RangeSet {
    fn default() -> Self {
        Self::new()
    }
}

/// What a pass over the ledger found in each range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    now: Timestamp,
    /// Count of counters, and the sum of their states.
    ranges: Vec<(u32, u64)>,
}

/// Ranges that are looked at in one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The ranges.
    pub ranges: RangeSet,
    /// Where the next turn goes on; `None`: all that differ are in this one.
    pub next: Option<u16>,
}

impl Sums {
    /// Begins a pass at `now`.
    pub fn begin_pass(now: Timestamp) -> Self {
        Self {
            now,
            ranges: vec![(0, 0); usize::from(RANGES)],
        }
    }

    /// Adds a counter; each once, in any order.
    pub fn add(&mut self, state: State, dead_at: Timestamp) {
        if is_left_out(state, dead_at, self.now) {
            return;
        }
        if let Some((count, sum)) = self.ranges.get_mut(usize::from(state.identity.range())) {
            *count = count.saturating_add(1);
            *sum = sum.wrapping_add(state.sum);
        }
    }

    /// The count and the sum of each range.
    pub fn ranges(&self) -> &[(u32, u64)] {
        &self.ranges
    }

    /// The frame that asks a peer to compare, from the range `from` on.
    pub fn digest(&self, own: &Actor, round: u64, from: u16) -> Bytes {
        Digest::write(own, round, from, &self.ranges)
    }

    /// The ranges in which `theirs` differ, as many as one listing can have, from the one on that they name.
    pub fn choose(&self, theirs: &Digest<'_>) -> Choice {
        let mut differ = RangeSet::new();
        let mut counts = vec![0_usize; usize::from(RANGES)];
        for ((range, ours), their) in (0..).zip(&self.ranges).zip(theirs.ranges()) {
            if *ours != their {
                differ.insert(range);
                if let Some(count) = counts.get_mut(usize::from(range)) {
                    *count = ours.0.max(their.0) as usize;
                }
            }
        }
        let mut chosen = RangeSet::new();
        let mut items = 0;
        for range in differ.iter_from(theirs.from()) {
            items += counts.get(usize::from(range)).copied().unwrap_or_default();
            if items > LISTING_ITEMS_MAX && !chosen.is_empty() {
                return Choice {
                    ranges: chosen,
                    next: Some(range),
                };
            }
            chosen.insert(range);
        }
        Choice {
            ranges: chosen,
            next: None,
        }
    }
}

/// A counter that was collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    state: State,
    place: Ref,
}

/// The counters in some ranges, with where they stand.
#[derive(Clone, Debug)]
pub struct Collection {
    now: Timestamp,
    ranges: RangeSet,
    items: Vec<Item>,
}

/// What two regions have to tell each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// What the peer lacks or has otherwise: to be told in frames of [`crate::replication::wire::Kind::Repair`].
    pub give: Vec<Ref>,
    /// What the peer has and this region lacks or has otherwise: to be asked for, [`WANT_MAX`] at a time.
    pub want: Vec<Identity>,
}

impl Collection {
    /// Begins a pass at `now` that collects what is in `ranges`.
    pub const fn begin_pass(now: Timestamp, ranges: RangeSet) -> Self {
        Self {
            now,
            ranges,
            items: Vec::new(),
        }
    }

    /// Whether a counter is to be added; for the rest the state need not be computed.
    pub fn wants(&self, identity: Identity) -> bool {
        self.ranges.contains(identity.range())
    }

    /// Adds a counter; each once, in any order. Those in other ranges are passed over.
    pub fn add(&mut self, state: State, dead_at: Timestamp, place: Ref) {
        if !self.wants(state.identity) || is_left_out(state, dead_at, self.now) {
            return;
        }
        self.items.push(Item { state, place });
        if self.items.len() > COLLECTED_MAX {
            // Far more than was counted: rather none of a range than a part of it.
            let range = state.identity.range();
            self.ranges.remove(range);
            self.items
                .retain(|item| item.state.identity.range() != range);
        }
    }

    /// Ends the pass.
    pub fn finish_pass(&mut self) {
        self.items.sort_by_key(|item| item.state.identity);
    }

    /// Counters that were collected.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether none was collected.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The frame that lists them; `next` is where the next turn goes on.
    pub fn listing(&self, own: &Actor, round: u64, next: Option<u16>) -> Bytes {
        let items = self
            .items
            .iter()
            .map(|item| (item.state.identity, item.state.sum));
        Listing::write(own, round, next, &self.ranges, items)
    }

    /// Compares with what a peer listed, in the ranges that both have; both passes have ended.
    pub fn compare(&self, theirs: &Listing<'_>) -> Difference {
        let ranges = theirs.ranges();
        let has_both = |identity: Identity| {
            ranges.contains(identity.range()) && self.ranges.contains(identity.range())
        };
        let mut difference = Difference::default();
        let mut ours = self
            .items
            .iter()
            .filter(|item| has_both(item.state.identity))
            .peekable();
        for (identity, sum) in theirs.items().filter(|(identity, _)| has_both(*identity)) {
            while let Some(item) = ours.next_if(|item| item.state.identity < identity) {
                difference.give.push(item.place);
            }
            match ours.next_if(|item| item.state.identity == identity) {
                Some(item) if item.state.sum == sum => {}
                Some(item) => {
                    difference.give.push(item.place);
                    difference.want.push(identity);
                }
                None => difference.want.push(identity),
            }
        }
        difference.give.extend(ours.map(|item| item.place));
        difference
    }

    /// Where the counters stand that a peer wants.
    pub fn places(&self, want: &Want<'_>) -> Vec<Ref> {
        want.identities()
            .filter_map(|identity| {
                let at = self
                    .items
                    .binary_search_by_key(&identity, |item| item.state.identity)
                    .ok()?;
                self.items.get(at).map(|item| item.place)
            })
            .collect()
    }
}
