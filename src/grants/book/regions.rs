//! Which process of each region may hold units.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::account::Holder;

/// A region that enrolled twice within this time gets only what its waiting checks need.
pub const RESTARTING_WITHIN: Span = Span::from_seconds(60);
/// So many earlier processes of a region are remembered, so that a doubled enrolment of one of them does
/// not bring it back.
const EARLIER_MAX: usize = 16;

/// The processes of one region, as they enrolled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Enrolled {
    newest: u64,
    at: Timestamp,
    before_at: Option<Timestamp>,
    /// `at` by the clock of buckets: what earlier processes held of them counts as spent from then on.
    clock_at: Timestamp,
    /// How often the lease of the newest process ended, and when it did last.
    lapses: u64,
    lapsed_at: Timestamp,
    /// The youngest last.
    earlier: Vec<u64>,
}

/// Which process of each region enrolled last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Regions {
    known: BTreeMap<RegionName, Enrolled>,
    /// Processes of regions that departed and whose leases have not ended since, and how often they had before.
    departed: BTreeMap<Holder, u64>,
}

/// The end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lapse {
    /// How often the holder's lease has ended.
    pub(super) count: u64,
    /// When it did last, by the clock of buckets; later than that is as good.
    pub(super) at: Timestamp,
}

impl Regions {
    pub(super) fn enroll(&mut self, log: Timestamp, clock: Timestamp, holder: &Holder) {
        let lapses = self.departed.remove(holder).unwrap_or(0);
        let Some(known) = self.known.get_mut(&holder.region) else {
            let enrolled = Enrolled {
                newest: holder.incarnation,
                at: log,
                before_at: None,
                clock_at: clock,
                lapses,
                lapsed_at: clock,
                earlier: Vec::new(),
            };
            self.known.insert(holder.region.clone(), enrolled);
            return;
        };
        if known.newest == holder.incarnation || known.earlier.contains(&holder.incarnation) {
            return;
        }
        if known.earlier.len() >= EARLIER_MAX {
            known.earlier.remove(0);
        }
        known.earlier.push(known.newest);
        known.newest = holder.incarnation;
        known.before_at = Some(known.at);
        known.at = log;
        known.clock_at = clock;
        known.lapses = 0;
        known.lapsed_at = clock;
    }

    pub(super) fn depart(&mut self, region: &RegionName) {
        if let Some(known) = self.known.remove(region) {
            let holder = Holder {
                region: region.clone(),
                incarnation: known.newest,
            };
            self.departed.insert(holder, known.lapses);
        }
    }

    /// The lease of `holder` has ended.
    pub(super) fn note_lapse(&mut self, clock: Timestamp, holder: &Holder) {
        self.departed.remove(holder);
        if let Some(known) = self.known.get_mut(&holder.region)
            && known.newest == holder.incarnation
        {
            known.lapses += 1;
            known.lapsed_at = clock;
        }
    }

    /// The last end of the lease of `holder`; `None`: it has not ended.
    pub(super) fn lapse(&self, holder: &Holder) -> Option<Lapse> {
        if self.departed.contains_key(holder) {
            return None;
        }
        let ended = |at| Lapse {
            count: u64::MAX,
            at,
        };
        match self.known.get(&holder.region) {
            Some(known) if known.newest == holder.incarnation => Some(Lapse {
                count: known.lapses,
                at: known.lapsed_at,
            }),
            Some(known) => Some(ended(known.clock_at)),
            None => Some(ended(Timestamp::MAX)),
        }
    }

    /// How often the lease of `holder` has ended.
    pub(super) fn lapses(&self, holder: &Holder) -> u64 {
        self.lapse(holder).map_or(0, |lapse| lapse.count)
    }

    /// Processes whose leases may run.
    pub(super) fn leased(&self) -> impl Iterator<Item = Holder> + '_ {
        self.iter().chain(self.departed.keys().cloned())
    }

    pub(super) fn newest(&self, region: &RegionName) -> Option<u64> {
        self.known.get(region).map(|known| known.newest)
    }

    pub(super) fn is_newest(&self, holder: &Holder) -> bool {
        self.newest(&holder.region) == Some(holder.incarnation)
    }

    pub(super) fn is_restarting(&self, region: &RegionName, log: Timestamp) -> bool {
        self.known
            .get(region)
            .and_then(|known| known.before_at)
            .is_some_and(|before_at| log.since(before_at) < RESTARTING_WITHIN)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Holder> + '_ {
        self.known.iter().map(|(region, known)| Holder {
            region: region.clone(),
            incarnation: known.newest,
        })
    }
}
