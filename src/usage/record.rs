//! A counter as it stands on disk: absolute values, merged by maximum.
//!
//! A record may hold all of a counter or only what one process changed. Records may be lost, doubled and
//! reordered: [`CounterRecord::merge`] is a join. Three parts travel together:
//!
//! - `windows`: use per window, a PN-counter per actor;
//! - `bucket`: a token or leaky bucket's level. Only the region's newest process writes it; the stamp
//!   orders its versions, so the join is "the newer one";
//! - `log`: the entries of a sliding log. An entry is named by its stamp, which is given to one charge
//!   only, so all versions agree on its instant; its cost only falls (a refund), so the join is the minimum.
//!
//! What no decision reads any more is cut off by two horizons that only rise, one for windows and one for
//! log entries. They are part of the record, so that a late record cannot bring back what another has cut
//! off, and so that a counter that is used for years does not carry its years along. A record of a newer
//! epoch replaces one of an older epoch whole.

use std::collections::BTreeMap;

use compact_str::CompactString;
use crdts::CmRDT;
use crdts::CvRDT;
use crdts::PNCounter;
use litemap::LiteMap;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;

pub use crate::algorithm::sliding_log::LogEntry;
use crate::domain::name::LimitName;
pub use crate::domain::stamp::Stamp;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::usage::actor::ActorId;

/// The name of a counter.
///
/// Tenant and key are whatever the check named; the key is empty when the limit has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CounterId {
    /// The limit.
    pub limit: LimitName,
    /// The tenant.
    pub tenant: CompactString,
    /// The key, or nothing.
    pub key: CompactString,
}

/// How full a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BucketLevel {
    /// Version of this level.
    pub stamp: Stamp,
    /// When `drawn` was true.
    pub at: Timestamp,
    /// Units taken and not yet earned back, times the nanoseconds of the limit's `per`.
    pub drawn: u128,
}

/// A counter's state, whole or in part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CounterRecord {
    /// Which counter.
    pub id: CounterId,
    /// Its epoch.
    pub epoch: u64,
    /// Use per window and actor.
    #[serde(deserialize_with = "windows")]
    pub windows: LiteMap<WindowId, PNCounter<ActorId>>,
    /// A bucket's level.
    pub bucket: Option<BucketLevel>,
    /// A sliding log's entries.
    pub log: BTreeMap<Stamp, LogEntry>,
    /// Windows before this one are cut off; see [`CounterRecord::prune`].
    pub windows_from: Option<WindowId>,
    /// Log entries from before this instant are cut off; see [`CounterRecord::prune`].
    pub log_from: Option<Timestamp>,
    /// From here on nothing in the record can change a decision.
    pub dead_at: Timestamp,
}

impl CounterRecord {
    /// A record that says nothing yet.
    pub fn empty(id: CounterId, epoch: u64) -> Self {
        Self {
            id,
            epoch,
            windows: LiteMap::new(),
            bucket: None,
            log: BTreeMap::new(),
            windows_from: None,
            log_from: None,
            dead_at: Timestamp::EPOCH,
        }
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.bucket.is_none() && self.log.is_empty()
    }

    /// Sets what `actor` has charged (`p`) and given back (`n`) in `window`; never lowers either.
    pub fn set_slot(&mut self, window: WindowId, actor: ActorId, p: u64, n: u64) {
        let counter = self.windows.entry(window).or_default();
        let (known_p, known_n) = slot(counter, actor);
        if p > known_p {
            let op = counter.inc_many(actor, p - known_p);
            counter.apply(op);
        }
        if n > known_n {
            let op = counter.dec_many(actor, n - known_n);
            counter.apply(op);
        }
    }

    /// Joins `other` into this record. Both must name the same counter.
    pub fn merge(&mut self, other: Self) {
        debug_assert_eq!(self.id, other.id, "only records of one counter are joined");
        if other.epoch < self.epoch {
            return;
        }
        if other.epoch > self.epoch {
            *self = other;
            return;
        }
        for (window, counter) in other.windows {
            self.windows.entry(window).or_default().merge(counter);
        }
        self.bucket = self.bucket.max(other.bucket);
        for (stamp, entry) in other.log {
            self.log
                .entry(stamp)
                .and_modify(|known| {
                    known.cost = known.cost.min(entry.cost);
                    known.at = known.at.min(entry.at);
                })
                .or_insert(entry);
        }
        self.dead_at = self.dead_at.max(other.dead_at);
        self.windows_from = self.windows_from.max(other.windows_from);
        self.log_from = self.log_from.max(other.log_from);
        self.cut_off();
    }

    /// Raises the horizons: no decision reads windows that started before `windows_from` nor log entries
    /// from before `log_from` any more.
    pub fn prune(&mut self, windows_from: WindowId, log_from: Timestamp) {
        self.windows_from = self.windows_from.max(Some(windows_from));
        self.log_from = self.log_from.max(Some(log_from));
        self.cut_off();
    }

    fn cut_off(&mut self) {
        // A horizon of `None` is below every window and every instant.
        self.windows
            .retain(|window, _| Some(*window) >= self.windows_from);
        self.log.retain(|_, entry| Some(entry.at) >= self.log_from);
    }
}

/// Reads windows. The crate's own way sets aside as much memory as the bytes say that windows follow.
///
/// # Errors
/// When the bytes are something else.
pub fn windows<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<LiteMap<WindowId, PNCounter<ActorId>>, D::Error> {
    Ok(Vec::deserialize(from)?.into_iter().collect())
}

/// What `actor` has charged and given back, as far as `counter` knows.
pub fn slot(counter: &PNCounter<ActorId>, actor: ActorId) -> (u64, u64) {
    // The crate keeps its maps private; an increment by zero is its public way to read one value.
    (
        counter.inc_many(actor, 0).dot.counter,
        counter.dec_many(actor, 0).dot.counter,
    )
}

/// Every actor that has a slot in `counter`, with what it charged and gave back.
///
/// # Panics
/// Never: the form that `postcard` writes of the crate's counter is two maps, and a test holds it so.
pub fn slots(counter: &PNCounter<ActorId>) -> Vec<(ActorId, u64, u64)> {
    // The crate has no public way to list actors, but its written form is the two maps themselves.
    let written =
        postcard::to_allocvec(counter).expect("invariant: a counter of integers can be written");
    let (p, n): (BTreeMap<ActorId, u64>, BTreeMap<ActorId, u64>) =
        postcard::from_bytes(&written).expect("invariant: a written counter is two maps");
    let mut slots: BTreeMap<ActorId, (u64, u64)> =
        p.into_iter().map(|(actor, p)| (actor, (p, 0))).collect();
    for (actor, n) in n {
        slots.entry(actor).or_default().1 = n;
    }
    slots
        .into_iter()
        .map(|(actor, (p, n))| (actor, p, n))
        .collect()
}
