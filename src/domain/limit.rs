//! Limits: as users write them ([`LimitSpec`], every field optional) and as the ledger uses them
//! ([`Limit`], complete and validated).
//!
//! `catalogue::effective` lays the specs of base, plan, tenant and key over each other and compiles the
//! result into a [`Limit`]; nothing else makes one, so the ledger never sees a contradictory limit.

use std::collections::BTreeSet;
use std::sync::Arc;

use compact_str::CompactString;
use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::calendar::Calendar;
use crate::domain::calendar::Period;
use crate::domain::duration;
use crate::domain::name::Key;
use crate::domain::name::LimitName;
use crate::domain::time::Span;

/// The largest cost, quota, capacity, refill or drain: 2^53 − 1, the last integer that every JSON reader
/// keeps exactly.
pub const AMOUNT_MAX: u64 = (1 << 53) - 1;

/// How use is counted and when it comes back.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// `quota` per `window`, windows aligned to the Unix epoch.
    FixedWindow,
    /// `quota` per `every` calendar periods, counted from `anchor` in `time_zone`.
    CalendarWindow,
    /// `quota` per `window`; the previous window counts by the share of it that is still in sight.
    SlidingWindow,
    /// `quota` in any span of `window`, exact; memory in proportion to calls made.
    SlidingLog,
    /// Holds up to `capacity` units, earns `refill` units per `per`.
    TokenBucket,
    /// A queue of up to `capacity` units, served at `drain` units per `per`.
    LeakyBucket,
    /// `quota` units held at once; taken and given back with holds.
    Concurrency,
}

/// How global a limit is.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Each region counts alone.
    #[default]
    Regional,
    /// All regions share one limit; no check waits for another region.
    Approximate,
    /// One limit for the world, never exceeded.
    Strict,
}

/// What a check gets when this region cannot decide or cannot keep the answer.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OnUnavailable {
    /// Allowed, and marked degraded.
    #[default]
    Open,
    /// Answered 503.
    Closed,
    /// Allowed up to `fallback_quota` of this region's own use.
    Local,
}

/// Approximate limits: what a cut-off side may still admit.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OnPartition {
    /// Its share of what was left.
    #[default]
    Share,
    /// All that it does not know to be used.
    Open,
    /// The side with most regions goes on; the other answers 503.
    Majority,
}

/// Approximate limits: how the remainder is shared near the limit.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// By demand.
    #[default]
    Adaptive,
    /// In equal parts.
    Equal,
    /// Not at all.
    None,
}

/// When a charge is on disk.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Within one flush interval after the answer.
    #[default]
    Async,
    /// Before the answer.
    Sync,
}

/// A limit as it is written: each layer (base, plan, tenant, key) names only the fields it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// How use is counted. May be left out where the other fields leave one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Units per window, or units held at once. 0 refuses always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// Length of a fixed or sliding window, as in `60s`.
    #[serde(
        default,
        with = "duration::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>, example = "60s")]
    pub window: Option<Span>,
    /// Calendar period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Period>,
    /// Periods in one calendar window; 1 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    /// Civil time from which calendar windows are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2026-01-31T00:00:00")]
    pub anchor: Option<jiff::civil::DateTime>,
    /// IANA time zone of the anchor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "Asia/Kolkata")]
    pub time_zone: Option<String>,
    /// Most units that a bucket holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Units that a token bucket earns per `per`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refill: Option<u64>,
    /// Units that a leaky bucket serves per `per`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<u64>,
    /// The time in which `refill` or `drain` units pass, as in `1m`.
    #[serde(
        default,
        with = "duration::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>, example = "1m")]
    pub per: Option<Span>,
    /// How long a concurrency slot is held without renewal; 60s when absent.
    #[serde(
        default,
        with = "duration::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>, example = "60s")]
    pub ttl: Option<Span>,
    /// What is counted apart (`user`, `ip`, …). Absent: one counter per tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Actions that the limit applies to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actions: Option<BTreeSet<String>>,
    /// Descriptors of a gateway that the limit applies to: entries `key=value`, `key=prefix*` or `key`, in order.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    #[schema(example = json!(["destination_cluster=api", "remote_address"]))]
    pub matches: Option<Vec<String>>,
    /// How global the limit is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// What a check gets when this region cannot decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_unavailable: Option<OnUnavailable>,
    /// This region's own quota for `on_unavailable = "local"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_quota: Option<u64>,
    /// Approximate limits: what a cut-off side may admit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_partition: Option<OnPartition>,
    /// Approximate limits: how the remainder is shared near the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// Keys that are never refused; counted all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub always_allow: Option<BTreeSet<Key>>,
    /// Passes while 1 unit is left, then charges in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overdraft: Option<bool>,
    /// When a charge is on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// `false` counts and reports, and refuses nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce: Option<bool>,
    /// `true` counts and refuses nothing; a complete limit by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unlimited: Option<bool>,
}

/// The algorithm of a limit with all that it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// See [`Algorithm::FixedWindow`].
    FixedWindow {
        /// Units per window.
        quota: u64,
        /// Length of a window, not zero.
        window: Span,
    },
    /// See [`Algorithm::CalendarWindow`].
    CalendarWindow {
        /// Units per window.
        quota: u64,
        /// Where the windows lie.
        calendar: Calendar,
    },
    /// See [`Algorithm::SlidingWindow`].
    SlidingWindow {
        /// Units per window.
        quota: u64,
        /// Length of the window, not zero.
        window: Span,
    },
    /// See [`Algorithm::SlidingLog`].
    SlidingLog {
        /// Units in any span of `window`.
        quota: u64,
        /// Length of the window, not zero.
        window: Span,
    },
    /// See [`Algorithm::TokenBucket`].
    TokenBucket {
        /// Most units held, not zero.
        capacity: u64,
        /// Units earned per `per`, not zero.
        refill: u64,
        /// The time that `refill` units take, not zero.
        per: Span,
    },
    /// See [`Algorithm::LeakyBucket`].
    LeakyBucket {
        /// Most units queued, not zero.
        capacity: u64,
        /// Units served per `per`, not zero.
        drain: u64,
        /// The time that `drain` units take, not zero.
        per: Span,
    },
    /// See [`Algorithm::Concurrency`].
    Concurrency {
        /// Units held at once.
        quota: u64,
        /// How long a slot is held without renewal, not zero.
        ttl: Span,
    },
}

impl Rule {
    /// The algorithm's name.
    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::FixedWindow { .. } => Algorithm::FixedWindow,
            Self::CalendarWindow { .. } => Algorithm::CalendarWindow,
            Self::SlidingWindow { .. } => Algorithm::SlidingWindow,
            Self::SlidingLog { .. } => Algorithm::SlidingLog,
            Self::TokenBucket { .. } => Algorithm::TokenBucket,
            Self::LeakyBucket { .. } => Algorithm::LeakyBucket,
            Self::Concurrency { .. } => Algorithm::Concurrency,
        }
    }

    /// The most units that one check can ever be given: the quota, or a bucket's capacity.
    pub const fn quota(&self) -> u64 {
        match self {
            Self::FixedWindow { quota, .. }
            | Self::CalendarWindow { quota, .. }
            | Self::SlidingWindow { quota, .. }
            | Self::SlidingLog { quota, .. }
            | Self::Concurrency { quota, .. } => *quota,
            Self::TokenBucket { capacity, .. } | Self::LeakyBucket { capacity, .. } => *capacity,
        }
    }
}

/// A complete limit as one tenant (and maybe one key) has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The limit's name.
    pub name: LimitName,
    /// The algorithm and its amounts.
    pub rule: Rule,
    /// What is counted apart; `None`: one counter per tenant.
    pub key: Option<CompactString>,
    /// Actions that the limit applies to.
    pub actions: BTreeSet<String>,
    /// Descriptors of a gateway that the limit applies to, as `catalogue::descriptor` reads them; empty: none.
    pub matches: Arc<[String]>,
    /// How global the limit is.
    pub mode: Mode,
    /// What a check gets when this region cannot decide.
    pub on_unavailable: OnUnavailable,
    /// This region's own quota for [`OnUnavailable::Local`].
    pub fallback_quota: u64,
    /// Approximate limits: what a cut-off side may admit.
    pub on_partition: OnPartition,
    /// Approximate limits: how the remainder is shared.
    pub split: Split,
    /// Keys that are never refused.
    pub always_allow: BTreeSet<Key>,
    /// Passes while 1 unit is left, then charges in full.
    pub overdraft: bool,
    /// When a charge is on disk.
    pub durability: Durability,
    /// `false`: counts and reports, refuses nothing.
    pub enforce: bool,
    /// `true`: counts, refuses nothing, tells no quota.
    pub unlimited: bool,
}

impl Limit {
    /// A regional token bucket counted by some key, with the defaults of all else: for limits that come with a call
    /// and are in no catalogue.
    pub fn bucket(name: LimitName, capacity: u64, refill: u64, per: Span) -> Self {
        Self {
            name,
            rule: Rule::TokenBucket {
                capacity,
                refill,
                per,
            },
            key: Some(CompactString::const_new("key")),
            actions: BTreeSet::new(),
            matches: Arc::default(),
            mode: Mode::Regional,
            on_unavailable: OnUnavailable::Open,
            fallback_quota: capacity,
            on_partition: OnPartition::default(),
            split: Split::default(),
            always_allow: BTreeSet::new(),
            overdraft: false,
            durability: Durability::Async,
            enforce: true,
            unlimited: false,
        }
    }

    /// Whether a check of `key` is never refused: unlimited, or on the list.
    pub fn never_refuses(&self, key: &str) -> bool {
        self.unlimited || (!self.always_allow.is_empty() && self.always_allow.contains(key))
    }
}
