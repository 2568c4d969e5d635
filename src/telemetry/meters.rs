//! The counters of allowed and rejected checks: one pair for each limit, plan, mode and endpoint.
//!
//! [`LimitTable::limit`] hands out [`LimitMeters`], which make each counter when it is first used and keep
//! it, so that a check adds to an atomic and does nothing else. A family holds at most [`LABEL_SETS_MAX`]
//! label sets; what would be beyond is counted under `other`.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::OnceLock;

use parking_lot::Mutex;
use parking_lot::RwLock;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::domain::decision::Reason;
use crate::domain::limit::Mode;

/// The most label sets of one family before further ones are counted under `other`.
pub const LABEL_SETS_MAX: usize = 1_000;
/// The label value for all that has none of its own.
const OTHER: &str = "other";
/// The label value for what was not given: a tenant without a plan, a check without an endpoint.
const NONE: &str = "none";

/// Labels of an allowed check.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AllowedLabels {
    limit: Arc<str>,
    tier: Arc<str>,
    mode: &'static str,
    endpoint: Arc<str>,
}

/// Labels of a check that was not allowed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RejectedLabels {
    limit: Arc<str>,
    tier: Arc<str>,
    mode: &'static str,
    endpoint: Arc<str>,
    reason: &'static str,
}

/// All modes, in the order of [`mode_index`].
pub const MODES: [Mode; 3] = [Mode::Regional, Mode::Approximate, Mode::Strict];

/// The place of a mode in [`MODES`].
pub const fn mode_index(mode: Mode) -> usize {
    match mode {
        Mode::Regional => 0,
        Mode::Approximate => 1,
        Mode::Strict => 2,
    }
}

/// A mode as a label value.
pub const fn mode_label(mode: Mode) -> &'static str {
    match mode {
        Mode::Regional => "regional",
        Mode::Approximate => "approximate",
        Mode::Strict => "strict",
    }
}

const REASONS: [Reason; 4] = [
    Reason::QuotaExceeded,
    Reason::CostExceedsQuota,
    Reason::Unavailable,
    Reason::OutcomeUnknown,
];

const fn reason_index(reason: Reason) -> usize {
    match reason {
        Reason::QuotaExceeded => 0,
        Reason::CostExceedsQuota => 1,
        Reason::Unavailable => 2,
        Reason::OutcomeUnknown => 3,
    }
}

/// An endpoint as a label value: one that is let through, `other`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint(usize);

impl Endpoint {
    /// The check names no endpoint.
    pub const NONE: Self = Self(0);
    /// The check names one that is not let through.
    pub const OTHER: Self = Self(1);
}

/// A family of counters that holds a bounded number of label sets.
#[derive(Debug)]
struct Bounded<S: Clone + Eq + Hash> {
    family: Family<S, Counter>,
    /// How many label sets the family holds. Locked while one is added, so that the bound is kept exactly.
    sets: Mutex<usize>,
}

impl<S: Clone + Eq + Hash> Bounded<S> {
    fn new(family: Family<S, Counter>) -> Self {
        let sets = Mutex::new(0);
        Self { family, sets }
    }

    /// The counter of the label set `own`, or `None` when there is none and the family is full.
    fn counter(&self, own: &S) -> Option<Counter> {
        let mut sets = self.sets.lock();
        if self.family.get(own).is_none() {
            if *sets >= LABEL_SETS_MAX {
                return None;
            }
            *sets += 1;
        }
        Some(self.family.get_or_create_owned(own))
    }
}

/// The two counters of a limit, with all that makes a label set of them.
#[derive(Debug)]
struct Families {
    allowed: Bounded<AllowedLabels>,
    rejected: Bounded<RejectedLabels>,
    endpoints: Vec<Arc<str>>,
    collapsed: Counter,
}

/// The counters of one limit under one plan.
#[derive(Debug)]
pub struct LimitMeters {
    families: Arc<Families>,
    limit: Arc<str>,
    tier: Arc<str>,
    mode: &'static str,
    rows: Box<[Row]>,
}

/// The counters of one endpoint, each made when it is first used.
#[derive(Debug, Default)]
struct Row {
    allowed: OnceLock<Counter>,
    rejected: [OnceLock<Counter>; REASONS.len()],
}

impl LimitMeters {
    fn new(families: Arc<Families>, limit: Arc<str>, tier: Arc<str>, mode: Mode) -> Self {
        let rows = families.endpoints.iter().map(|_| Row::default()).collect();
        let mode = mode_label(mode);
        Self {
            families,
            limit,
            tier,
            mode,
            rows,
        }
    }

    /// The counter of allowed checks.
    pub fn allowed(&self, endpoint: Endpoint) -> &Counter {
        let make = || self.make_allowed(endpoint);
        self.rows[endpoint.0].allowed.get_or_init(make)
    }

    /// The counter of checks that were not allowed for `reason`.
    pub fn rejected(&self, endpoint: Endpoint, reason: Reason) -> &Counter {
        let make = || self.make_rejected(endpoint, reason);
        self.rows[endpoint.0].rejected[reason_index(reason)].get_or_init(make)
    }

    #[cold]
    fn make_allowed(&self, endpoint: Endpoint) -> Counter {
        let own = AllowedLabels {
            limit: self.limit.clone(),
            tier: self.tier.clone(),
            mode: self.mode,
            endpoint: self.families.endpoints[endpoint.0].clone(),
        };
        self.families.allowed.counter(&own).unwrap_or_else(|| {
            self.families.collapsed.inc();
            self.families
                .allowed
                .family
                .get_or_create_owned(&AllowedLabels {
                    limit: OTHER.into(),
                    tier: OTHER.into(),
                    endpoint: OTHER.into(),
                    ..own
                })
        })
    }

    #[cold]
    fn make_rejected(&self, endpoint: Endpoint, reason: Reason) -> Counter {
        let own = RejectedLabels {
            limit: self.limit.clone(),
            tier: self.tier.clone(),
            mode: self.mode,
            endpoint: self.families.endpoints[endpoint.0].clone(),
            reason: reason.as_str(),
        };
        self.families.rejected.counter(&own).unwrap_or_else(|| {
            self.families.collapsed.inc();
            self.families
                .rejected
                .family
                .get_or_create_owned(&RejectedLabels {
                    limit: OTHER.into(),
                    tier: OTHER.into(),
                    endpoint: OTHER.into(),
                    ..own
                })
        })
    }
}

type MeterKey = (Arc<str>, Arc<str>, Mode);

/// The counters of every limit.
#[derive(Debug)]
pub struct LimitTable {
    families: Arc<Families>,
    endpoints: HashMap<Arc<str>, Endpoint, ahash::RandomState>,
    meters: RwLock<HashMap<MeterKey, Arc<LimitMeters>, ahash::RandomState>>,
    overflow: [Arc<LimitMeters>; 3],
}

impl LimitTable {
    /// A table over two registered families that lets the values `endpoints` of the label through.
    /// `collapsed` counts the label sets that found a family full.
    pub fn new(
        allowed: Family<AllowedLabels, Counter>,
        rejected: Family<RejectedLabels, Counter>,
        collapsed: Counter,
        endpoints: &[String],
    ) -> Self {
        let named = endpoints.iter().map(String::as_str);
        let families = Arc::new(Families {
            allowed: Bounded::new(allowed),
            rejected: Bounded::new(rejected),
            endpoints: [NONE, OTHER]
                .into_iter()
                .chain(named)
                .map(Arc::from)
                .collect(),
            collapsed,
        });
        let overflow = |mode| LimitMeters::new(families.clone(), OTHER.into(), OTHER.into(), mode);
        Self {
            overflow: MODES.map(|mode| Arc::new(overflow(mode))),
            endpoints: index(&families.endpoints),
            meters: RwLock::default(),
            families,
        }
    }

    /// The endpoint that a check names, as a label value.
    pub fn endpoint(&self, name: Option<&str>) -> Endpoint {
        match name {
            None => Endpoint::NONE,
            Some(name) => self.endpoints.get(name).copied().unwrap_or(Endpoint::OTHER),
        }
    }

    /// The counters of the limit `limit` in `mode` for tenants of the plan `tier`. Meant to be kept by the
    /// caller; two calls with the same arguments give the same counters.
    pub fn limit(&self, limit: &str, tier: Option<&str>, mode: Mode) -> Arc<LimitMeters> {
        let key: MeterKey = (limit.into(), tier.unwrap_or(NONE).into(), mode);
        if let Some(meters) = self.meters.read().get(&key) {
            return meters.clone();
        }
        let mut meters = self.meters.write();
        if meters.len() >= LABEL_SETS_MAX && !meters.contains_key(&key) {
            return self.overflow[mode_index(mode)].clone();
        }
        let (limit, tier, _) = key.clone();
        let made = || Arc::new(LimitMeters::new(self.families.clone(), limit, tier, mode));
        let made = meters.entry(key).or_insert_with(made).clone();
        // Shown as zero from the start, so that the first refusal is a rise and not a new series.
        made.allowed(Endpoint::NONE);
        made.rejected(Endpoint::NONE, Reason::QuotaExceeded);
        made
    }
}

/// Every endpoint's place; the two that are no names are left out, so that a client that sends `none`
/// counts as `other`.
fn index(endpoints: &[Arc<str>]) -> HashMap<Arc<str>, Endpoint, ahash::RandomState> {
    let named = endpoints.iter().enumerate().skip(2);
    named
        .map(|(place, name)| (name.clone(), Endpoint(place)))
        .collect()
}
