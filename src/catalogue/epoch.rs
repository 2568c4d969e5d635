//! Epochs: from which entry of the log on a counter is counted.
//!
//! The epoch of a tenant's limit is the index of the last reset, re-creation or change of *shape* (all
//! that says what a counter means: algorithm, window, period, anchor, zone, per, ttl, key, mode). Other
//! amounts, another plan with the same shape and overrides keep it, and with it all use.
//!
//! Most tenants have the epochs of their plan, so only what differs is kept:
//!
//! - `base`, `plans`: of all tenants of a plan; `base` is for tenants without one;
//! - `unknown`: where tenants that the catalogue does not name differ from the default plan;
//! - `tenants`: where a named tenant differs from its plan;
//! - `departed`: where one unknown tenant differs from the others, because it was named once or was reset;
//! - `resets`: single keys.
//!
//! Epochs of a counter only rise. What is kept in `departed` and `resets` is forgotten once all use from
//! before has died; the counters that live on then have a higher epoch than the catalogue tells, and the
//! same shape: the ledger goes on with the higher one. The book of strict limits cannot: what it counts is
//! remembered for as long as it does.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use serde::Deserialize;
use serde::Serialize;

use crate::catalogue::effective::time_to_fill;
use crate::catalogue::sharded::ShardedMap;
use crate::catalogue::view::TenantView;
use crate::domain::limit::Limit;
use crate::domain::limit::Rule;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::TenantName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// Most single keys whose reset is remembered, and most tenants that are remembered without being named.
pub const REMEMBERED_MAX: usize = 100_000;
/// Most that one entry of the log forgets, so that no write is slow because of earlier ones.
pub const FORGOTTEN_PER_ENTRY: usize = 1_000;

/// Counters are kept so long after the last window that can matter.
const GRACE: Span = Span::from_seconds(10);
/// The longest hold; it may give back what it took that long ago.
const HOLD_MAX: Span = Span::from_seconds(86_400);

/// What is still counted when it could be forgotten is looked at again after this.
pub const COUNTED_AGAIN: Span = Span::from_seconds(60);

/// Epochs by limit.
pub type LimitEpochs = BTreeMap<LimitName, u64>;
/// Keys of one limit that were reset by themselves.
pub type KeyResets = ShardedMap<Key, KeyReset>;
/// Those of one tenant, by limit.
pub type TenantResets = BTreeMap<LimitName, KeyResets>;

/// The reset of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyReset {
    /// Index of the reset.
    pub epoch: u64,
    /// From here on all use from before it is dead.
    pub forget_at: Timestamp,
}

/// A tenant that the catalogue does not name, but that is not like the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departed {
    /// Where its epochs differ.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub epochs: LimitEpochs,
    /// From here on all use from before is dead.
    pub forget_at: Timestamp,
}

/// Something that is remembered for a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Memory {
    /// A departed tenant.
    Tenant(TenantName),
    /// The reset of one key.
    Key(TenantName, LimitName, Key),
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Epochs {
    pub base: LimitEpochs,
    pub plans: BTreeMap<PlanName, LimitEpochs>,
    pub unknown: LimitEpochs,
    pub tenants: BTreeMap<TenantName, LimitEpochs>,
    pub departed: BTreeMap<TenantName, Departed>,
    pub resets: BTreeMap<TenantName, TenantResets>,
    /// Until then a tenant that is named for the first time may have live use from before.
    pub anyone_departed_until: Timestamp,
}

impl Epochs {
    /// The epochs of all tenants of `plan`.
    pub fn of_plan(&self, plan: Option<&PlanName>) -> Option<&LimitEpochs> {
        match plan {
            Some(plan) => self.plans.get(plan),
            None => Some(&self.base),
        }
    }

    /// What differs for one tenant.
    pub fn of_tenant(&self, tenant: &TenantName) -> Option<&LimitEpochs> {
        let departed = || self.departed.get(tenant).map(|departed| &departed.epochs);
        self.tenants.get(tenant).or_else(departed)
    }

    /// Keys of the tenant's limit that were reset by themselves.
    pub fn resets_of(&self, tenant: &TenantName, limit: &LimitName) -> Option<&KeyResets> {
        self.resets.get(tenant)?.get(limit)
    }

    /// Whether counters of `tenant`, which is not named now, may be left from before.
    pub fn may_have_use(&self, tenant: &TenantName, now: Timestamp) -> bool {
        now < self.anyone_departed_until || self.departed.contains_key(tenant)
    }

    /// All that is to be forgotten, by time.
    pub fn memories(&self) -> BTreeSet<(Timestamp, Memory)> {
        let departed = self
            .departed
            .iter()
            .map(|(tenant, departed)| (departed.forget_at, Memory::Tenant(tenant.clone())));
        let keys = self.resets.iter().flat_map(|(tenant, limits)| {
            limits
                .iter()
                .flat_map(move |(limit, resets)| memories_of(tenant, limit, resets))
        });
        departed.chain(keys).collect()
    }
}

/// The memories of one limit's single keys.
pub fn memories_of<'a>(
    tenant: &'a TenantName,
    limit: &'a LimitName,
    resets: &'a KeyResets,
) -> impl Iterator<Item = (Timestamp, Memory)> + 'a {
    resets.iter().map(move |(key, reset)| {
        (
            reset.forget_at,
            Memory::Key(tenant.clone(), limit.clone(), key.clone()),
        )
    })
}

/// Whether counters of `a` mean the same under `b`.
pub fn same_shape(a: &Limit, b: &Limit) -> bool {
    a.key == b.key && a.mode == b.mode && same_rule(&a.rule, &b.rule)
}

fn same_rule(a: &Rule, b: &Rule) -> bool {
    match (a, b) {
        (Rule::FixedWindow { window: a, .. }, Rule::FixedWindow { window: b, .. })
        | (Rule::SlidingWindow { window: a, .. }, Rule::SlidingWindow { window: b, .. })
        | (Rule::SlidingLog { window: a, .. }, Rule::SlidingLog { window: b, .. })
        | (Rule::TokenBucket { per: a, .. }, Rule::TokenBucket { per: b, .. })
        | (Rule::LeakyBucket { per: a, .. }, Rule::LeakyBucket { per: b, .. })
        | (Rule::Concurrency { ttl: a, .. }, Rule::Concurrency { ttl: b, .. }) => a == b,
        (Rule::CalendarWindow { calendar: a, .. }, Rule::CalendarWindow { calendar: b, .. }) => {
            a == b
        }
        _ => false,
    }
}

/// How long after a charge it can still matter.
pub fn lifetime(limit: &Limit) -> Span {
    let longest = match &limit.rule {
        Rule::FixedWindow { window, .. }
        | Rule::SlidingWindow { window, .. }
        | Rule::SlidingLog { window, .. } => *window,
        Rule::CalendarWindow { calendar, .. } => calendar.longest(),
        Rule::TokenBucket {
            capacity,
            refill,
            per,
        } => time_to_fill(*capacity, *refill, *per),
        Rule::LeakyBucket {
            capacity,
            drain,
            per,
        } => time_to_fill(*capacity, *drain, *per),
        Rule::Concurrency { ttl, .. } => (*ttl).max(HOLD_MAX),
    };
    longest.plus(longest).plus(GRACE)
}

/// How long after a charge it can still matter to any limit of `tenant`.
pub fn lifetime_of_all(tenant: &TenantView) -> Span {
    tenant
        .limits()
        .map(|view| lifetime(&view.limit))
        .max()
        .unwrap_or(GRACE)
}
