//! What is counted, and who holds units of it.

use compact_str::CompactString;
use serde::Deserialize;
use serde::Serialize;

use crate::algorithm::bucket::Flow;
use crate::domain::limit::Rule;
use crate::domain::name::LimitName;
use crate::domain::name::RegionName;
use crate::domain::time::Window;

/// One counter of a strict limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Account {
    /// Whose it is.
    pub tenant: CompactString,
    /// The limit's name.
    pub limit: LimitName,
    /// The key; empty when the limit has none.
    pub key: CompactString,
    /// The limit's epoch for the tenant and the key.
    pub epoch: u64,
}

/// One process of one region: who may hold units.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// The region.
    pub region: RegionName,
    /// The random number of the process's start.
    pub incarnation: u64,
}

/// How many units there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quota {
    /// So many in a window.
    Window(u64),
    /// A bucket: as many as its capacity, and what was spent comes back at its rate.
    Bucket(Flow),
}

impl Quota {
    /// The quota of a rule.
    pub const fn of(rule: &Rule) -> Self {
        match rule {
            Rule::TokenBucket {
                capacity,
                refill,
                per,
            } => Self::Bucket(Flow {
                capacity: *capacity,
                rate: *refill,
                per: *per,
            }),
            rule => Self::Window(rule.quota()),
        }
    }

    /// Most units that can be out at once.
    pub const fn units(&self) -> u64 {
        match self {
            Self::Window(units) => *units,
            Self::Bucket(flow) => flow.capacity,
        }
    }

    /// A bucket's amounts.
    pub const fn flow(&self) -> Option<&Flow> {
        match self {
            Self::Window(_) => None,
            Self::Bucket(flow) => Some(flow),
        }
    }
}

impl From<u64> for Quota {
    fn from(units: u64) -> Self {
        Self::Window(units)
    }
}

impl From<Flow> for Quota {
    fn from(flow: Flow) -> Self {
        Self::Bucket(flow)
    }
}

/// What a holder has done with its units of one window. Cumulative; two tellings merge by maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Units that were spent.
    pub spent: u64,
    /// Units that left the reservation, back to the pool.
    pub returned: u64,
}

impl Totals {
    /// The later of two tellings.
    #[must_use]
    pub const fn merge(self, other: Self) -> Self {
        Self {
            spent: if self.spent > other.spent {
                self.spent
            } else {
                other.spent
            },
            returned: if self.returned > other.returned {
                self.returned
            } else {
                other.returned
            },
        }
    }
}

/// An entry of the log: returns are taken in first, then grants are made in order, each as far as the pool
/// goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The counter.
    pub account: Account,
    /// The window, as the leader found it by the limit's definition.
    pub window: Window,
    /// What holders said of themselves.
    pub returns: Vec<(Holder, Totals)>,
    /// Up to which cumulative total each is granted.
    pub grants: Vec<(Holder, u64)>,
}

/// How a window stands in the book. A view for people and answers; no decision in a region rests on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStanding {
    /// The quota that the book knows.
    pub quota: u64,
    /// Units that nobody holds; 0 when a lowered quota left less than nothing.
    pub free: u64,
    /// Units known to be used: spent as last told, charged by the leader, less what was refunded.
    pub used: u64,
    /// Of `used`, what the addressed holder itself had told.
    pub used_by_holder: u64,
    /// Units that processes took with them when they ended, or that may still be spent under earlier epochs.
    pub stranded: u64,
    /// Buckets: what was drawn and has not come back, in units times nanoseconds of `per`; units that are held
    /// unspent are not drawn. 0 for windows.
    pub drawn: u128,
}
