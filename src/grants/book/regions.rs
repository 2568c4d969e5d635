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
    /// The youngest last.
    earlier: Vec<u64>,
}

/// Which process of each region enrolled last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Regions(BTreeMap<RegionName, Enrolled>);

impl Regions {
    pub(super) fn enroll(&mut self, log: Timestamp, holder: &Holder) {
        let Some(known) = self.0.get_mut(&holder.region) else {
            let enrolled = Enrolled {
                newest: holder.incarnation,
                at: log,
                before_at: None,
                earlier: Vec::new(),
            };
            self.0.insert(holder.region.clone(), enrolled);
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
    }

    pub(super) fn depart(&mut self, region: &RegionName) {
        self.0.remove(region);
    }

    pub(super) fn newest(&self, region: &RegionName) -> Option<u64> {
        self.0.get(region).map(|known| known.newest)
    }

    pub(super) fn is_newest(&self, holder: &Holder) -> bool {
        self.newest(&holder.region) == Some(holder.incarnation)
    }

    pub(super) fn is_restarting(&self, region: &RegionName, log: Timestamp) -> bool {
        self.0
            .get(region)
            .and_then(|known| known.before_at)
            .is_some_and(|before_at| log.since(before_at) < RESTARTING_WITHIN)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Holder> + '_ {
        self.0.iter().map(|(region, known)| Holder {
            region: region.clone(),
            incarnation: known.newest,
        })
    }
}
